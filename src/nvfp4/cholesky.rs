//! FP64 symmetric matrices for GPTQ: rank updates and the Cholesky factor, blocked and spread over threads.
//!
//! Each element is computed by one thread, with the same operations in the same order whatever the number of threads or
//! the width of vectors (no fused multiply-add), so results do not depend on the machine.

use anyhow::{Result, bail};
use rayon::prelude::*;

use super::simd::{self, Kernel, Simd};

/// Columns factored at a time: a panel of 64 columns and 5120 rows takes 2.6 MB.
pub(super) const PANEL: usize = 64;
/// Columns and rows of the register tile.
const TILE_COLUMNS: usize = 8;
const TILE_ROWS: usize = 4;

/// The lower Cholesky factor of a symmetric positive definite `a` `[n, n]`, in place; what is above the diagonal is of
/// no use afterwards. `panel_done` is called after each panel, with its number of columns.
///
/// # Errors
/// A pivot is not positive: the matrix is not positive definite. Or whatever `panel_done` says.
pub(super) fn cholesky(a: &mut [f64], n: usize, mut panel_done: impl FnMut(usize) -> Result<()>) -> Result<()> {
    let mut panel = Vec::new();
    for first in (0..n).step_by(PANEL) {
        let width = PANEL.min(n - first);
        factor_diagonal(a, n, first, width)?;
        let (above, below) = a.split_at_mut((first + width) * n);
        let diagonal = |i: usize, j: usize| above[(first + i) * n + first + j];
        // Rows below: solve x L^T = row.
        below.par_chunks_exact_mut(n).for_each(|row| {
            let x = &mut row[first..first + width];
            for j in 0..width {
                let known: f64 = (0..j).map(|p| x[p] * diagonal(j, p)).sum();
                x[j] = (x[j] - known) / diagonal(j, j);
            }
        });
        // What remains loses panel * panel^T. The panel is needed transposed, a row a column of it.
        let n_below = n - first - width;
        panel.clear();
        panel.resize(width * n_below, 0.0);
        for (i, row) in below.chunks_exact(n).enumerate() {
            for (p, &x) in row[first..first + width].iter().enumerate() {
                panel[p * n_below + i] = x;
            }
        }
        rank_update(below, n, first + width, &panel, -1.0);
        panel_done(width)?;
    }
    Ok(())
}

fn factor_diagonal(a: &mut [f64], n: usize, first: usize, width: usize) -> Result<()> {
    for j in first..first + width {
        for i in j..first + width {
            let known: f64 = (first..j).map(|p| a[i * n + p] * a[j * n + p]).sum();
            let x = a[i * n + j] - known;
            if i > j {
                a[i * n + j] = x / a[j * n + j];
            } else if x > 0.0 && x.is_finite() {
                a[j * n + j] = x.sqrt();
            } else {
                bail!("the second-moment matrix is not positive definite: pivot {j} is {x}");
            }
        }
    }
    Ok(())
}

/// Adds `sign * panel^T panel` to the lower triangle of a matrix (and to some of the upper): `rows` are rows of `n` numbers whose first triangle
/// element is in column `column`, `panel` `[p, rows]`.
pub(super) fn rank_update(rows: &mut [f64], n: usize, column: usize, panel: &[f64], sign: f64) {
    let n_rows = rows.len() / n;
    rows.par_chunks_mut(n * TILE_ROWS).enumerate().for_each(|(tile, rows)| {
        simd::dispatch(RankUpdate { rows, n, n_rows, column, first_row: tile * TILE_ROWS, panel, sign });
    });
}

/// Up to four rows of [`rank_update`].
struct RankUpdate<'a> {
    rows: &'a mut [f64],
    n: usize,
    n_rows: usize,
    column: usize,
    first_row: usize,
    panel: &'a [f64],
    sign: f64,
}

impl Kernel for RankUpdate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { rows, n, n_rows, column, first_row, panel, sign } = self;
        let n_tile_rows = rows.len() / n;
        let last = first_row + n_tile_rows;
        let mut j = 0;
        while j + TILE_COLUMNS <= n_rows && j < last && n_tile_rows == TILE_ROWS {
            let mut sums = [[0f64; TILE_COLUMNS]; TILE_ROWS];
            for row in panel.chunks_exact(n_rows) {
                let (left, right) = (&row[first_row..first_row + TILE_ROWS], &row[j..j + TILE_COLUMNS]);
                for r in 0..TILE_ROWS {
                    for c in 0..TILE_COLUMNS {
                        sums[r][c] += left[r] * right[c];
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                let out = &mut rows[r * n + column + j..][..TILE_COLUMNS];
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sign * sum);
            }
            j += TILE_COLUMNS;
        }
        // The ragged rest, to the diagonal.
        for r in 0..n_tile_rows {
            for c in j..=first_row + r {
                let sum: f64 = panel.chunks_exact(n_rows).map(|row| row[first_row + r] * row[c]).sum();
                rows[r * n + column + c] += sign * sum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn positive_definite(n: usize) -> Vec<f64> {
        let mut a = vec![0.0; n * n];
        for i in 0..n {
            for j in 0..n {
                a[i * n + j] = 1.0 / (1.0 + i.abs_diff(j) as f64) + if i == j { 0.5 } else { 0.0 };
            }
        }
        a
    }

    #[test]
    fn the_factor_times_its_transpose_is_the_matrix() {
        for n in [1, 7, 64, 65, 131, 200] {
            let a = positive_definite(n);
            let mut factor = a.clone();
            let mut n_done = 0;
            cholesky(&mut factor, n, |width| {
                n_done += width;
                Ok(())
            })
            .unwrap();
            assert_eq!(n_done, n);
            for i in 0..n {
                for j in 0..=i {
                    let product: f64 = (0..=j).map(|p| factor[i * n + p] * factor[j * n + p]).sum();
                    assert!((product - a[i * n + j]).abs() < 1e-12, "n {n} at {i}, {j}: {product}");
                }
            }
        }
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_is_refused() {
        let error = cholesky(&mut [1.0, 0.0, 2.0, 1.0], 2, |_| Ok(())).unwrap_err();
        assert_eq!(error.to_string(), "the second-moment matrix is not positive definite: pivot 1 is -3");
        assert!(cholesky(&mut [f64::NAN], 1, |_| Ok(())).is_err());
    }
}
