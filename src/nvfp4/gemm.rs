//! The inner loop of everything that multiplies: eight columns of coefficients against a vector of rows.

use super::simd::Simd;

/// Coefficients of eight columns, one entry an element of the inner dimension.
pub(super) type Columns8 = [f32; 8];

/// Sums over the inner dimension, in order: `sum_i columns[i][c] * rows[i]` for eight columns `c`, where `rows` holds a
/// vector of rows an entry.
#[inline(always)]
pub(super) fn multiply<S: Simd>(columns: &[Columns8], rows: &[f32]) -> [S::F; 8] {
    let mut sums = [S::splat(0.0); 8];
    for (column, row) in columns.iter().zip(rows.chunks_exact(S::LANES)) {
        let row = S::load(row);
        for c in 0..8 {
            sums[c] = S::add(sums[c], S::mul(S::splat(column[c]), row));
        }
    }
    sums
}
