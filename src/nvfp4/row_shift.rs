//! The row shift: one vector subtracted from every row of a head before it is quantized.
//!
//! It changes every logit of a state by the same number, so softmax and argmax stay; and since real heads have a large
//! common row, what is left is smaller and errs less. Logits themselves change: not for heads whose logits are capped,
//! compared with another head's, or used as they are.

use half::bf16;
use rayon::prelude::*;

use super::quality::{Head, STATES_AT_A_TIME, logits};

/// The shift for a head `[n, k]` from hidden states `[n_states, k]`: half the mean row weighted by the probability of its
/// token, half the mean row weighted by the root of that, which counts rare tokens more.
///
/// # Panics
/// States and rows do not divide into `k`, or there are none.
pub fn row_shift(head: &[bf16], k: usize, states: &[bf16]) -> Vec<f32> {
    assert!(!states.is_empty() && states.len().is_multiple_of(k) && head.len().is_multiple_of(k), "no rows of {k}");
    let probabilities = mean_probabilities(head, k, states);
    let total: f64 = probabilities.iter().sum();
    let total_root: f64 = probabilities.iter().map(|p| p.sqrt()).sum();
    let weight = |p: f64| (p / total + p.sqrt() / total_root) / 2.0;
    let mut shift = vec![0f64; k];
    for (row, p) in head.chunks_exact(k).zip(probabilities) {
        shift.iter_mut().zip(row).for_each(|(sum, w)| *sum += weight(p) * w.to_f64());
    }
    shift.into_iter().map(|x| x as f32).collect()
}

/// The mean softmax probability of each row.
fn mean_probabilities(head: &[bf16], k: usize, states: &[bf16]) -> Vec<f64> {
    let n_rows = head.len() / k;
    let mut sums = vec![0f64; n_rows];
    for states in states.chunks(STATES_AT_A_TIME * k) {
        let mut logits = logits(Head::Bf16(head), k, states);
        logits.par_chunks_exact_mut(n_rows).for_each(softmax);
        sums.par_iter_mut().enumerate().for_each(|(row, sum)| {
            *sum += logits.chunks_exact(n_rows).map(|state| f64::from(state[row])).sum::<f64>();
        });
    }
    let n_states = (states.len() / k) as f64;
    sums.into_iter().map(|sum| sum / n_states).collect()
}

fn softmax(logits: &mut [f32]) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    logits.iter_mut().for_each(|x| *x = (*x - largest).exp());
    let sum: f64 = logits.iter().map(|&x| f64::from(x)).sum();
    logits.iter_mut().for_each(|x| *x = (f64::from(*x) / sum) as f32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_common_to_all_is_the_shift_when_all_are_as_likely() {
        let head: Vec<bf16> = [1.0, 3.0, 1.0, 5.0].map(bf16::from_f32).to_vec();
        let states = [1.0, 0.0].map(bf16::from_f32);
        assert_eq!(row_shift(&head, 2, &states), [1.0, 4.0]);
    }
}
