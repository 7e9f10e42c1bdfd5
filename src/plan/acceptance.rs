//! How long a draft lives: the acceptance of each draft position, and the tokens that a step yields.
//!
//! `rates[i]` is conditional: how often position i + 1 is accepted when all before it were. A step of k drafts yields
//! tau = 1 + sum over i <= k of the product of the first i rates, the 1 being the target's own token. A draft head with
//! coverage c can propose the right token only that often, so each rate is multiplied by c (VOCAB.md section 3).

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::MOST_DRAFTED;

/// First-position acceptance that stands in for a missing one: 0.835, rounded down, is published for Qwen3.6's MTP over
/// 51 million positions of mixed chat, code and mathematics.
const ASSUMED_FIRST: f64 = 0.83;

/// What each further position keeps of the rate before it: the fall that the seed's 27B figures imply (docs/plan.md).
const ASSUMED_FALL: f64 = 0.945;

/// Positions of an assumed curve.
const ASSUMED_POSITIONS: i32 = 16;

/// Acceptance by draft position.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Acceptance {
    rates: Vec<f64>,
    /// Where the rates come from, in words.
    pub origin: String,
    /// Whether nothing was measured.
    pub is_assumed: bool,
}

impl Acceptance {
    /// Conditional rates, the first position first.
    ///
    /// # Errors
    /// No rate, or one outside 0 to 1.
    pub fn new(rates: Vec<f64>, origin: impl Into<String>) -> Result<Self> {
        ensure!(!rates.is_empty(), "there is no acceptance rate");
        for (i, rate) in rates.iter().enumerate() {
            ensure!((0.0..=1.0).contains(rate), "acceptance of position {} is {rate}, expected 0 to 1", i + 1);
        }
        Ok(Self { rates, origin: origin.into(), is_assumed: false })
    }

    /// Rates from how often each position is reached and accepted, which is what runtimes count.
    ///
    /// # Errors
    /// A share that is larger than the one before it: those are not survivals.
    pub fn from_survival(shares: &[f64], origin: impl Into<String>) -> Result<Self> {
        let mut before = 1.0;
        let mut rates = Vec::new();
        for (i, &share) in shares.iter().enumerate() {
            ensure!(share <= before, "position {} is accepted more often than the one before it", i + 1);
            rates.push(if before > 0.0 { share / before } else { 0.0 });
            before = share;
        }
        Self::new(rates, origin)
    }

    /// The constant rate with which k drafts yield `tau` tokens a step: all that a mean accept length tells.
    ///
    /// # Errors
    /// `tau` is outside 1 to k + 1, or k is no number of draft tokens.
    pub fn from_accept_length(tau: f64, n_drafted: usize, origin: impl Into<String>) -> Result<Self> {
        let is_possible = (1..=MOST_DRAFTED).contains(&n_drafted);
        ensure!(is_possible, "{n_drafted} tokens drafted a step, expected 1 to {MOST_DRAFTED}");
        let most = n_drafted as f64 + 1.0;
        ensure!((1.0..=most).contains(&tau), "the accept length is {tau}, expected 1 to {most} with k = {n_drafted}");
        let yields =
            |rate: f64| Self { rates: vec![rate], origin: String::new(), is_assumed: false }.tau(n_drafted, 1.0);
        let rate = bisect(0.0, 1.0, |rate| yields(rate) < tau);
        Self::new(vec![rate; n_drafted], origin)
    }

    /// What is taken when nothing was measured; callers must say so.
    pub fn assumed() -> Self {
        Self {
            rates: (0..ASSUMED_POSITIONS).map(|i| ASSUMED_FIRST * ASSUMED_FALL.powi(i)).collect(),
            origin: format!(
                "ASSUMED: {ASSUMED_FIRST} at the first position, {ASSUMED_FALL} of it at each further one; nothing was \
                 measured"
            ),
            is_assumed: true,
        }
    }

    /// The rates that are known, the first position first.
    pub fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// The rate of a position from 1; past the known ones, the last known.
    fn rate(&self, position: usize) -> f64 {
        self.rates[position.clamp(1, self.rates.len()) - 1]
    }

    /// Tokens a step, with k drafts from a head that covers `coverage` of the tokens.
    pub fn tau(&self, n_drafted: usize, coverage: f64) -> f64 {
        let mut survival = 1.0;
        let mut tau = 1.0;
        for position in 1..=n_drafted {
            survival *= self.rate(position) * coverage;
            tau += survival;
        }
        tau
    }

    /// Every rate moved by `delta`, within 0 to 1.
    #[must_use]
    pub fn shifted(&self, delta: f64) -> Self {
        let rates = self.rates.iter().map(|rate| (rate + delta).clamp(0.0, 1.0)).collect();
        Self { rates, ..self.clone() }
    }
}

/// The point between `low` and `high` where `is_below` turns false, to the last bit that matters.
pub(super) fn bisect(mut low: f64, mut high: f64, is_below: impl Fn(f64) -> bool) -> f64 {
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if is_below(middle) {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tau_is_one_and_the_survivals() {
        let acceptance = Acceptance::new(vec![0.8, 0.5], "test").unwrap();
        assert_eq!(acceptance.tau(0, 1.0), 1.0);
        assert!((acceptance.tau(2, 1.0) - 2.2).abs() < 1e-12);
        assert!((acceptance.tau(2, 0.5) - (1.0 + 0.4 + 0.1)).abs() < 1e-12);
        assert!((acceptance.tau(3, 1.0) - 2.4).abs() < 1e-12, "the last rate stands for further positions");
    }

    #[test]
    fn survivals_become_conditional_rates() {
        let acceptance = Acceptance::from_survival(&[0.8, 0.4, 0.0, 0.0], "test").unwrap();
        assert_eq!(acceptance.rates(), [0.8, 0.5, 0.0, 0.0]);
        let error = Acceptance::from_survival(&[0.5, 0.6], "test").unwrap_err();
        assert!(error.to_string().contains("position 2"), "{error}");
    }

    #[test]
    fn an_accept_length_gives_back_itself() {
        let acceptance = Acceptance::from_accept_length(3.2, 5, "test").unwrap();
        assert!((acceptance.tau(5, 1.0) - 3.2).abs() < 1e-9);
        assert!(Acceptance::from_accept_length(6.5, 5, "test").unwrap_err().to_string().contains("expected 1 to 6"));
    }

    #[test]
    fn rates_outside_zero_to_one_are_refused() {
        for rates in [vec![], vec![0.5, 1.2], vec![f64::NAN]] {
            assert!(Acceptance::new(rates, "test").is_err());
        }
    }
}
