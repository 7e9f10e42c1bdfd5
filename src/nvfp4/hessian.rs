//! What a linear's inputs look like: the second-moment matrix E[x x^T], which is the Hessian of the squared output error.

use std::ops::Range;

use anyhow::{Result, ensure};
use rayon::prelude::*;

use super::{Weight, cholesky};

/// E[x x^T] `[k, k]` of a linear's inputs, in FP64.
#[derive(Debug, Clone, PartialEq)]
pub struct Hessian {
    k: usize,
    n_states: usize,
    /// Row-major, symmetric.
    matrix: Vec<f64>,
}

impl Hessian {
    /// From inputs of the linear, `states` `[n, k]`, as they come: no mean is removed.
    ///
    /// # Errors
    /// There are no states, their number does not fit `k`, or one is not finite.
    pub fn from_states<W: Weight>(states: &[W], k: usize) -> Result<Self> {
        ensure!(
            k > 0 && !states.is_empty() && states.len().is_multiple_of(k),
            "{} values are no states of {k}",
            states.len()
        );
        if let Some(at) = super::find_non_finite(states) {
            anyhow::bail!("state {} is not finite in column {}", at / k, at % k);
        }
        let n_states = states.len() / k;
        let mut matrix = vec![0.0; k * k];
        for states in states.chunks(k * cholesky::PANEL) {
            let panel: Vec<f64> = states.iter().map(|x| f64::from(x.widen())).collect();
            cholesky::rank_update(&mut matrix, k, 0, &panel, 1.0);
        }
        matrix.par_iter_mut().for_each(|x| *x /= n_states as f64);
        mirror(&mut matrix, k);
        Ok(Self { k, n_states, matrix })
    }

    /// From a saved matrix, row-major `[k, k]`; `n_states` is the number of states behind it, which decides how much it
    /// is damped.
    ///
    /// # Errors
    /// The length is not `k * k`, a value is not finite, a diagonal value is negative, or the matrix is not symmetric.
    pub fn from_matrix(matrix: Vec<f64>, k: usize, n_states: usize) -> Result<Self> {
        ensure!(k > 0 && matrix.len() == k * k, "{} values are no {k} x {k} matrix", matrix.len());
        for i in 0..k {
            for j in 0..=i {
                let (lower, upper) = (matrix[i * k + j], matrix[j * k + i]);
                ensure!(
                    lower.is_finite() && upper.is_finite(),
                    "the second moment of columns {i} and {j} is not finite"
                );
                let scale = (matrix[i * k + i] * matrix[j * k + j]).abs().sqrt();
                ensure!((lower - upper).abs() <= 1e-6 * scale, "the second moments of columns {i} and {j} differ");
            }
            ensure!(matrix[i * k + i] >= 0.0, "the second moment of column {i} is negative");
        }
        Ok(Self { k, n_states, matrix })
    }

    /// Of some of the columns.
    ///
    /// # Panics
    /// There are fewer columns.
    pub fn part(&self, columns: Range<usize>) -> Self {
        let rows = self.matrix[columns.start * self.k..columns.end * self.k].chunks_exact(self.k);
        let matrix = rows.flat_map(|row| &row[columns.clone()]).copied().collect();
        Self { k: columns.len(), n_states: self.n_states, matrix }
    }

    /// The number of columns.
    pub fn k(&self) -> usize {
        self.k
    }

    /// The number of states it was measured on.
    pub fn n_states(&self) -> usize {
        self.n_states
    }

    /// The matrix, row-major.
    pub fn matrix(&self) -> &[f64] {
        &self.matrix
    }

    /// E[x_k^2] of each column over the largest: what [`super::QuantizeConfig::importance`] takes.
    pub fn importance(&self) -> Vec<f32> {
        let diagonal: Vec<f64> = (0..self.k).map(|i| self.matrix[i * (self.k + 1)]).collect();
        normalized(&diagonal)
    }
}

/// E[x_k^2] of each column over the largest, from `states` `[n, k]`, without the rest of the matrix.
pub fn importance_of_states<W: Weight>(states: &[W], k: usize) -> Vec<f32> {
    let mut squares = vec![0f64; k];
    for state in states.chunks_exact(k) {
        squares.iter_mut().zip(state).for_each(|(sum, x)| *sum += f64::from(x.widen()).powi(2));
    }
    normalized(&squares)
}

/// The energy of each column of the head itself over the largest: mean over rows of w_ik^2. A stand-in for E[x_k^2] where
/// nothing was measured.
pub fn importance_of_columns<W: Weight>(weights: &[W], k: usize) -> Vec<f32> {
    importance_of_states(weights, k)
}

fn normalized(energies: &[f64]) -> Vec<f32> {
    let largest = energies.iter().copied().fold(0.0, f64::max);
    energies.iter().map(|&energy| if largest > 0.0 { (energy / largest) as f32 } else { 1.0 }).collect()
}

/// Copies the lower triangle to the upper.
fn mirror(matrix: &mut [f64], k: usize) {
    for i in 0..k {
        for j in 0..i {
            matrix[j * k + i] = matrix[i * k + j];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_of_states_is_the_mean_of_outer_products() {
        for (n, k) in [(1, 1), (3, 16), (70, 37), (130, 48)] {
            let states: Vec<f32> = (0..n * k).map(|i| ((i * 31 % 17) as f32 - 8.0) / 4.0).collect();
            let hessian = Hessian::from_states(&states, k).unwrap();
            for i in 0..k {
                for j in 0..k {
                    let mean = states.chunks(k).map(|x| f64::from(x[i]) * f64::from(x[j])).sum::<f64>() / n as f64;
                    assert!((hessian.matrix()[i * k + j] - mean).abs() < 1e-12);
                }
            }
            let (a, b) = (hessian.importance(), importance_of_states(&states, k));
            assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-6));
        }
    }

    #[test]
    fn matrices_that_are_no_second_moments_are_refused() {
        assert!(Hessian::from_matrix(vec![1.0, 0.5, 0.5, 1.0], 2, 10).is_ok());
        for bad in [vec![1.0, 0.5, 0.4, 1.0], vec![-1.0, 0.0, 0.0, 1.0], vec![1.0, f64::NAN, 0.0, 1.0], vec![1.0; 3]] {
            assert!(Hessian::from_matrix(bad, 2, 10).is_err());
        }
        assert!(Hessian::from_states(&[1.0, f32::INFINITY], 2).is_err());
        assert!(Hessian::from_states::<f32>(&[], 2).is_err());
    }
}
