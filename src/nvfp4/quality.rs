//! What a head drafts: how the logits of one head follow those of another on hidden states. Not Frobenius error, which
//! ranks heads wrongly: two heads whose logits differ by a common shift draft the same tokens.

use half::bf16;
use rayon::prelude::*;

use super::{
    decode_rows,
    gemm::{Columns8, multiply},
    simd::{self, Kernel, Simd},
};

/// The rows of a head, `[n, k]`.
#[derive(Debug, Clone, Copy)]
pub enum Head<'a> {
    /// As in the checkpoint.
    Bf16(&'a [bf16]),
    /// Quantized.
    Nvfp4 {
        /// `[n, k/2]`
        codes: &'a [u8],
        /// `[n, k/16]`
        block_scales: &'a [u8],
        /// The tensor's scale.
        global_scale: f32,
    },
}

/// How a head follows a reference head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Hidden states judged on.
    pub n_states: usize,
    /// Root mean square of the difference of logits, each state's mean removed, over that of the reference's logits, each
    /// state's mean removed.
    pub centred_error: f64,
    /// Mean Kullback-Leibler divergence of the head's softmax from the reference's, in nats.
    pub kl: f64,
    /// The part of states in which both heads have the same largest logit (the first of equals).
    pub top1_agreement: f64,
    /// The part of states in which the reference's largest logit is among the head's four largest.
    pub top4_agreement: f64,
    /// The median over states of the reference's largest logit less its second.
    pub median_margin: f64,
    /// The same among states in which the heads disagree; `None` when they never do. Small: only close calls are lost.
    pub median_margin_lost: Option<f64>,
}

/// States whose logits are in memory at a time: two heads of 64,064 rows take 131 MB.
pub(crate) const STATES_AT_A_TIME: usize = 256;
/// Rows decoded at a time.
const ROWS_AT_A_TIME: usize = 64;

/// Compares `head` with `reference`, row for row, on `states` `[n, k]`. `logits` is [`logits`], or gives the same; it gets
/// 256 states at a time.
///
/// # Errors
/// Whatever `logits` says.
///
/// # Panics
/// The heads differ in their number of rows, or states and rows in `k`.
pub fn compare(
    reference: Head,
    head: Head,
    k: usize,
    states: &[bf16],
    logits: impl Fn(Head, usize, &[bf16]) -> anyhow::Result<Vec<f32>>,
) -> anyhow::Result<Quality> {
    assert!(states.len().is_multiple_of(k), "{} values are no states of {k}", states.len());
    assert_eq!(reference.n_rows(k), head.n_rows(k), "heads of different sizes");
    let mut figures = Vec::with_capacity(states.len() / k);
    for states in states.chunks(STATES_AT_A_TIME * k) {
        let (expected, found) = (logits(reference, k, states)?, logits(head, k, states)?);
        let n_rows = reference.n_rows(k);
        figures.par_extend(
            expected.par_chunks_exact(n_rows).zip(found.par_chunks_exact(n_rows)).map(|(e, f)| StateFigures::of(e, f)),
        );
    }
    Ok(summarize(&figures))
}

/// The logits of a head, `[n_states, n_rows]`: sums over `k` in order, in F32.
pub fn logits(head: Head, k: usize, states: &[bf16]) -> Vec<f32> {
    let (n_states, n_rows) = (states.len() / k, head.n_rows(k));
    let columns = transpose(states, k);
    // By rows first, since a tile of rows is decoded once; then turned.
    let mut by_rows = vec![0f32; n_rows * n_states];
    by_rows.par_chunks_mut(ROWS_AT_A_TIME * n_states).enumerate().for_each(|(tile, out)| {
        let first = tile * ROWS_AT_A_TIME;
        let rows = head.decode(k, first, out.len() / n_states);
        simd::dispatch(Logits { rows: &rows, k, columns: &columns, n_states, out });
    });
    let mut by_states = vec![0f32; by_rows.len()];
    by_states.par_chunks_exact_mut(n_rows).enumerate().for_each(|(state, out)| {
        out.iter_mut().enumerate().for_each(|(row, out)| *out = by_rows[row * n_states + state]);
    });
    by_states
}

impl Head<'_> {
    /// Rows of `k` columns.
    pub fn n_rows(&self, k: usize) -> usize {
        match self {
            Self::Bf16(weights) => weights.len() / k,
            Self::Nvfp4 { codes, .. } => codes.len() / (k / 2),
        }
    }

    fn decode(&self, k: usize, first: usize, n_rows: usize) -> Vec<f32> {
        let of = |per_row: usize| first * per_row..(first + n_rows) * per_row;
        match self {
            Self::Bf16(weights) => weights[of(k)].iter().map(|w| w.to_f32()).collect(),
            Self::Nvfp4 { codes, block_scales, global_scale } => {
                let mut out = vec![0.0; n_rows * k];
                decode_rows(&codes[of(k / 2)], &block_scales[of(k / 16)], k, *global_scale, &mut out);
                out
            }
        }
    }
}

/// Eight states a group, side by side; the last group filled with zeros.
fn transpose(states: &[bf16], k: usize) -> Vec<Vec<Columns8>> {
    let group = |states: &[bf16]| {
        let state = |s: usize, i: usize| states.get(s * k + i).map_or(0.0, |x| x.to_f32());
        (0..k).map(|i| std::array::from_fn(|s| state(s, i))).collect()
    };
    states.chunks(8 * k).map(group).collect()
}

struct Logits<'a> {
    rows: &'a [f32],
    k: usize,
    columns: &'a [Vec<Columns8>],
    n_states: usize,
    out: &'a mut [f32],
}

impl Kernel for Logits<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { rows, k, columns, n_states, out } = self;
        let mut turned = vec![0.0; k * S::LANES];
        for (rows, out) in rows.chunks(k * S::LANES).zip(out.chunks_mut(n_states * S::LANES)) {
            for (lane, row) in rows.chunks_exact(k).enumerate() {
                row.iter().enumerate().for_each(|(i, &x)| turned[i * S::LANES + lane] = x);
            }
            for (group, columns) in columns.iter().enumerate() {
                for (s, sums) in multiply::<S>(columns, &turned).into_iter().enumerate() {
                    let state = group * 8 + s;
                    let mut lanes = [0.0; super::lanes::MAX_LANES];
                    S::store(sums, &mut lanes);
                    if state < n_states {
                        out.chunks_exact_mut(n_states).zip(lanes).for_each(|(row, logit)| row[state] = logit);
                    }
                }
            }
        }
    }
}

/// What one state contributes.
struct StateFigures {
    sq_error: f64,
    sq_logit: f64,
    kl: f64,
    top1: bool,
    top4: bool,
    margin: f64,
}

impl StateFigures {
    fn of(expected: &[f32], found: &[f32]) -> Self {
        let n = expected.len() as f64;
        let mean = |x: &[f32]| x.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let (mean_expected, mean_found) = (mean(expected), mean(found));
        let (best, second) = two_largest(expected);
        let log_sum = |x: &[f32], max: f64| x.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln() + max;
        let largest = |x: &[f32]| x.iter().fold(f32::NEG_INFINITY, |max, &x| max.max(x));
        let log_expected = log_sum(expected, f64::from(expected[best]));
        let log_found = log_sum(found, f64::from(largest(found)));
        let (mut sq_error, mut sq_logit, mut kl) = (0.0, 0.0, 0.0);
        for (&e, &f) in expected.iter().zip(found) {
            let (e, f) = (f64::from(e), f64::from(f));
            sq_error += ((f - mean_found) - (e - mean_expected)).powi(2);
            sq_logit += (e - mean_expected).powi(2);
            let log_p = e - log_expected;
            kl += log_p.exp() * (log_p - (f - log_found));
        }
        // How many of the head's logits come before the one that should be first.
        let before =
            found.iter().enumerate().filter(|&(i, &f)| f > found[best] || (f == found[best] && i < best)).count();
        let margin = f64::from(expected[best]) - second;
        Self { sq_error, sq_logit, kl, top1: before == 0, top4: before < 4, margin }
    }
}

/// The position of the largest (the first of equals) and the value of the second largest.
fn two_largest(logits: &[f32]) -> (usize, f64) {
    let (mut best, mut second) = (0, f32::NEG_INFINITY);
    for (i, &x) in logits.iter().enumerate().skip(1) {
        if x > logits[best] {
            (best, second) = (i, logits[best]);
        } else if x > second {
            second = x;
        }
    }
    (best, f64::from(second))
}

fn summarize(states: &[StateFigures]) -> Quality {
    let n = states.len().max(1) as f64;
    let sum = |f: fn(&StateFigures) -> f64| states.iter().map(f).sum::<f64>();
    let part = |f: fn(&StateFigures) -> bool| states.iter().filter(|s| f(s)).count() as f64 / n;
    let median = |mut margins: Vec<f64>| {
        margins.sort_by(f64::total_cmp);
        margins.get(margins.len() / 2).copied()
    };
    let error = sum(|s| s.sq_error) / sum(|s| s.sq_logit);
    Quality {
        n_states: states.len(),
        centred_error: if error.is_finite() { error.sqrt() } else { 0.0 },
        kl: sum(|s| s.kl) / n,
        top1_agreement: part(|s| s.top1),
        top4_agreement: part(|s| s.top4),
        median_margin: median(states.iter().map(|s| s.margin).collect()).unwrap_or(0.0),
        median_margin_lost: median(states.iter().filter(|s| !s.top1).map(|s| s.margin).collect()),
    }
}
