//! What GPTQ needs to know about a linear's inputs, made once a tensor from its Hessian and read by every row.
//!
//! The error of a row is `(w - d)^T H (w - d)`. With `H = V V^T`, `V` upper triangular, it is a sum over columns of
//! `V_jj^2 (t_j - d_j)^2`, where `t_j = w_j + sum_{i < j} V_ij / V_jj (w_i - d_i)`: rounding `t_j` instead of `w_j` makes
//! each column repair the errors of those before it. (This is GPTQ's update with the inverse Hessian, without the
//! inverse.) Blocks are visited in descending energy, since the last ones have nobody left to repair them.

use std::ops::Range;

use anyhow::{Result, ensure};
use rayon::prelude::*;

use super::{BLOCK, Hessian, cholesky, gemm::Columns8};
use crate::{interrupt, report::Progress};

/// How GPTQ rounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GptqConfig {
    /// What is added to the diagonal of the Hessian, as a part of its mean: `None` takes it from the number of states,
    /// 0.1 at 1024 and in inverse proportion, within 0.03 and 0.3.
    pub damping: Option<f64>,
    /// How often the scale and the codes of each block are chosen anew, given all others, after the first pass.
    pub n_rounds: usize,
    /// More columns than this are divided into panels, and errors carried on within a panel only: memory grows with the
    /// square of a panel's columns, 22 bytes an element while a plan is made.
    pub max_panel_columns: usize,
}

impl Default for GptqConfig {
    fn default() -> Self {
        Self { damping: None, n_rounds: 2, max_panel_columns: 5120 }
    }
}

impl GptqConfig {
    fn damping(&self, n_states: usize) -> f64 {
        self.damping.unwrap_or_else(|| (0.1 * 1024.0 / n_states.max(1) as f64).clamp(0.03, 0.3))
    }
}

/// What is known about a linear's inputs, panel by panel.
#[derive(Debug)]
pub struct GptqPlan {
    pub(super) k: usize,
    pub(super) panels: Vec<PanelPlan>,
}

/// The Hessian of neighbouring columns, damped, with its columns in the order in which they are visited, and factored. In
/// F32 and in units of its mean diagonal.
#[derive(Debug)]
pub(super) struct PanelPlan {
    /// Columns of the panel.
    pub(super) k: usize,
    pub(super) n_rounds: usize,
    /// Blocks in the order of visit.
    pub(super) blocks: Vec<BlockPlan>,
}

/// What concerns the 16 columns of a block. `earlier` and `others` are each in two halves of eight columns.
#[derive(Debug)]
pub(super) struct BlockPlan {
    /// Which block of the row it is.
    pub(super) block: usize,
    /// `V_ij / V_jj`: what an error in an earlier column `i` adds to the target of column `j`.
    pub(super) earlier: [Vec<Columns8>; 2],
    /// `H_ij` of all columns `i`, in the order of visit; 0 for the block's own.
    pub(super) others: [Vec<Columns8>; 2],
    /// The block's part of `V`.
    pub(super) factor: BlockFactor,
    /// The factor of the block's part of `H`: for when all other columns are fixed.
    pub(super) own_factor: BlockFactor,
    /// The block's part of `H`, and of its inverse.
    pub(super) hessian: [[f32; BLOCK]; BLOCK],
    pub(super) inverse: [[f32; BLOCK]; BLOCK],
}

/// How errors within a block carry over and what they cost.
#[derive(Debug)]
pub(super) struct BlockFactor {
    /// `feedback[j][i]`, `i < j`: what an error in column `i` adds to the target of column `j`.
    pub(super) feedback: [[f32; BLOCK]; BLOCK],
    /// What a squared distance from the target costs.
    pub(super) cost: [f32; BLOCK],
}

impl GptqPlan {
    /// Damps, orders and factors a Hessian. `progress` advances by columns, `k` in all.
    ///
    /// # Errors
    /// `k` is no multiple of 16, all states are zero, the matrix is not positive definite, or an interrupt.
    pub fn new(hessian: &Hessian, config: &GptqConfig, progress: &Progress) -> Result<Self> {
        Self::by_panels(hessian.k(), config, |columns| Ok(hessian.part(columns)), progress)
    }

    /// The same from a function that gives the Hessian of a range of columns, so that the whole need not be in memory.
    ///
    /// # Errors
    /// As [`GptqPlan::new`], and those of the function.
    pub fn by_panels(
        k: usize,
        config: &GptqConfig,
        hessian_of: impl Fn(Range<usize>) -> Result<Hessian>,
        progress: &Progress,
    ) -> Result<Self> {
        ensure!(
            k > 0 && k.is_multiple_of(BLOCK),
            "a second-moment matrix of {k} columns does not divide into blocks of {BLOCK}"
        );
        let n_blocks = k / BLOCK;
        let n_panels = k.div_ceil(config.max_panel_columns.max(BLOCK));
        // Panels of the same size, give or take a block.
        let edge = |panel: usize| panel * n_blocks / n_panels * BLOCK;
        let panels = (0..n_panels).map(|panel| {
            let columns = edge(panel)..edge(panel + 1);
            PanelPlan::new(&hessian_of(columns.clone())?, columns.start / BLOCK, config, progress)
        });
        Ok(Self { k, panels: panels.collect::<Result<_>>()? })
    }
}

impl PanelPlan {
    fn new(hessian: &Hessian, first_block: usize, config: &GptqConfig, progress: &Progress) -> Result<Self> {
        let k = hessian.k();
        let mean = (0..k).map(|i| hessian.matrix()[i * (k + 1)]).sum::<f64>() / k as f64;
        ensure!(mean > 0.0, "the second-moment matrix is zero: were the states captured?");
        let order = descending_energy(hessian);
        let column = |i: usize| order[i / BLOCK] * BLOCK + i % BLOCK;
        let damping = config.damping(hessian.n_states());
        let damped = |i: usize, j: usize| {
            hessian.matrix()[column(i) * k + column(j)] / mean + if i == j { damping } else { 0.0 }
        };
        // The lower factor of the matrix read backwards is the upper factor read backwards.
        let mut factor = vec![0.0; k * k];
        factor.par_chunks_exact_mut(k).enumerate().for_each(|(i, row)| {
            row.iter_mut().enumerate().for_each(|(j, x)| *x = damped(k - 1 - i, k - 1 - j));
        });
        cholesky::cholesky(&mut factor, k, |n_columns| {
            progress.advance(n_columns as u64);
            interrupt::check()
        })?;
        let v = |i: usize, j: usize| factor[(k - 1 - i) * k + (k - 1 - j)];
        let blocks = (0..k / BLOCK)
            .into_par_iter()
            .map(|at| plan_block(at, first_block + order[at], k, &damped, &v))
            .collect::<Result<_>>()?;
        Ok(Self { k, n_rounds: config.n_rounds, blocks })
    }
}

/// The blocks of a row by their share of the Hessian's trace, the largest first; the first of equals first.
fn descending_energy(hessian: &Hessian) -> Vec<usize> {
    let k = hessian.k();
    let energy =
        |block: &usize| -> f64 { (block * BLOCK..(block + 1) * BLOCK).map(|i| hessian.matrix()[i * (k + 1)]).sum() };
    let mut order: Vec<usize> = (0..k / BLOCK).collect();
    order.sort_by(|a, b| energy(b).total_cmp(&energy(a)));
    order
}

fn plan_block(
    at: usize,
    block: usize,
    k: usize,
    damped: &(impl Fn(usize, usize) -> f64 + Sync),
    v: &(impl Fn(usize, usize) -> f64 + Sync),
) -> Result<BlockPlan> {
    let first = at * BLOCK;
    let half = |rows: usize, half: usize, element: &dyn Fn(usize, usize) -> f64| -> Vec<Columns8> {
        let column = |c: usize| first + half * 8 + c;
        (0..rows).map(|i| std::array::from_fn(|c| element(i, column(c)) as f32)).collect()
    };
    let earlier = |i: usize, j: usize| v(i, j) / v(j, j);
    let others = |i: usize, j: usize| if i / BLOCK == at { 0.0 } else { damped(i, j) };
    let own = |i: usize, j: usize| damped(first + i, first + j);
    // The same backwards trick as for the whole matrix.
    let mut own_lower: Vec<f64> =
        (0..BLOCK * BLOCK).map(|e| own(BLOCK - 1 - e / BLOCK, BLOCK - 1 - e % BLOCK)).collect();
    cholesky::cholesky(&mut own_lower, BLOCK, |_| Ok(()))?;
    let own_v = |i: usize, j: usize| own_lower[(BLOCK - 1 - i) * BLOCK + (BLOCK - 1 - j)];
    Ok(BlockPlan {
        block,
        earlier: [half(first, 0, &earlier), half(first, 1, &earlier)],
        others: [half(k, 0, &others), half(k, 1, &others)],
        factor: BlockFactor::new(|i, j| v(first + i, first + j)),
        own_factor: BlockFactor::new(own_v),
        hessian: std::array::from_fn(|i| std::array::from_fn(|j| own(i, j) as f32)),
        inverse: inverse_from_upper(own_v),
    })
}

impl BlockFactor {
    fn new(v: impl Fn(usize, usize) -> f64) -> Self {
        Self {
            feedback: std::array::from_fn(|j| {
                std::array::from_fn(|i| if i < j { (v(i, j) / v(j, j)) as f32 } else { 0.0 })
            }),
            cost: std::array::from_fn(|j| (v(j, j) * v(j, j)) as f32),
        }
    }
}

/// `(V V^T)^-1`, by solving for each unit vector.
fn inverse_from_upper(v: impl Fn(usize, usize) -> f64) -> [[f32; BLOCK]; BLOCK] {
    let column = |unit: usize| {
        let mut x = [0f64; BLOCK];
        for i in (0..BLOCK).rev() {
            let known: f64 = (i + 1..BLOCK).map(|j| v(i, j) * x[j]).sum();
            x[i] = (f64::from(u8::from(i == unit)) - known) / v(i, i);
        }
        for i in 0..BLOCK {
            let known: f64 = (0..i).map(|j| v(j, i) * x[j]).sum();
            x[i] = (x[i] - known) / v(i, i);
        }
        x
    };
    let columns: [[f64; BLOCK]; BLOCK] = std::array::from_fn(column);
    std::array::from_fn(|i| std::array::from_fn(|j| columns[j][i] as f32))
}
