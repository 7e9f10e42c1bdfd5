//! How the warps of a card share a product: which kernel, how many blocks, how much shared memory.

use anyhow::{Result, ensure};

use super::{Gpu, kernels::most_clusters};
use crate::nvfp4::BLOCK;

/// The most vectors a product takes.
pub const MAX_M: u32 = 8;

/// What the kernels have of fixed shared memory, rounded up.
const FIXED_SHARED_BYTES: u32 = 1536;

/// As in kernels/gemv.cu: one vector.
mod one {
    pub(super) const WARPS: u32 = 16;
    /// Halves of warps, each of which takes rows of its own.
    pub(super) const GROUPS: u32 = 2 * WARPS;
    pub(super) const STEP_K: u32 = 512;
}

/// As in kernels/gemv_mma.cu: several vectors, or rows that do not start at 16 bytes.
mod several {
    /// Warps of a thread block: as many as there is shared memory for.
    pub(super) const WARPS: [u32; 2] = [16, 12];
    /// Of kernels/gemv_mma_few.cu.
    pub(super) const FEW_WARPS: u32 = 12;
    pub(super) const TILE_ROWS: u32 = 32;
    pub(super) const STEP_K: u32 = 256;
    pub(super) const SLOT_BYTES: u32 = 4608;
    /// Of kernels/gemv_mma_few.cu: blocks that share tiles.
    pub(super) const CLUSTER: u32 = 8;
    /// The sums of a tile in one warp.
    pub(super) const SUMS_BYTES: u32 = 1024;

    /// Warps of a block, and how many of them share a tile.
    pub(super) fn ways(n_steps: u32) -> impl Iterator<Item = (u32, u32)> {
        let splits = move |warps: u32| (1..=warps.min(n_steps)).map(move |split| (warps, split));
        WARPS.into_iter().flat_map(splits).filter(|(warps, split)| warps.is_multiple_of(*split))
    }
}

/// What a plan needs to know of a card.
#[derive(Debug, Clone, Copy)]
pub struct Card {
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Dynamic shared memory that a block may have.
    pub block_bytes: u32,
    /// Blocks of kernels/gemv.cu that a multiprocessor holds: 2 from compute capability 9.0 on, where fewer registers are
    /// needed, else 1.
    pub gemv_blocks: u32,
    /// Clusters of kernels/gemv_mma_few.cu that run at a time; none before compute capability 9.0.
    pub clusters: u32,
}

/// How the warps share one product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    pub(super) module: &'static str,
    pub(super) kernel: &'static str,
    /// Vectors a launch takes; more take more launches.
    pub m: u32,
    /// Groups of lanes, or warps, that share rows.
    pub split: u32,
    pub(super) grid: u32,
    pub(super) warps: u32,
    pub(super) shared_bytes: u32,
}

impl Plan {
    /// For `n` x `k` weights and `m` vectors.
    pub fn new(n: u32, k: u32, m: u32, card: Card) -> Result<Self> {
        ensure!(
            n > 0 && k > 0 && k.is_multiple_of(BLOCK as u32),
            "{n} x {k} is no NVFP4 matrix: k is a multiple of 16"
        );
        ensure!((1..=MAX_M).contains(&m), "{m} vectors: expected 1 to {MAX_M}");
        // The kernels count blocks in 32 bits.
        ensure!(
            u64::from(n) * u64::from(k) / BLOCK as u64 <= u64::from(u32::MAX),
            "{n} x {k} has more than 2^32 blocks"
        );
        let one = Self::one(n, k, card);
        let one_fits = k.is_multiple_of(32) && one.shared_bytes <= card.block_bytes;
        if m == 1 && one_fits {
            return Ok(one);
        }
        match Self::several(n, k, m, card) {
            Ok(several) if several.m > 1 || !one_fits => Ok(several),
            // Vector after vector then.
            _ if one_fits => Ok(one),
            refused => refused,
        }
    }

    /// One vector, kernels/gemv.cu. Rows are few when a group has hardly more than one; then, and where it leaves no step
    /// over, two groups share rows (fitted on an H200).
    fn one(n: u32, k: u32, card: Card) -> Self {
        let grid = n.min(card.n_multiprocessors * card.gemv_blocks);
        let few = u64::from(n) * 4 <= u64::from(grid) * u64::from(one::GROUPS) * 5;
        let n_steps = k.div_ceil(one::STEP_K);
        let split = if few || n_steps.is_multiple_of(2) { 2 } else { 1 };
        Self {
            module: "gemv",
            kernel: if few { "nvfp4_gemv_few" } else { "nvfp4_gemv" },
            m: 1,
            split,
            grid,
            warps: one::WARPS,
            // x, and the logits and token ids of a block's rows
            shared_bytes: n_steps.next_multiple_of(split) * one::STEP_K * 2 + n.div_ceil(grid) * 8,
        }
    }

    /// Up to eight vectors, kernels/gemv_mma.cu; kernels/gemv_mma_few.cu where there are few rows.
    fn several(n: u32, k: u32, m: u32, card: Card) -> Result<Self> {
        use several::{STEP_K, TILE_ROWS};
        let ragged = !k.is_multiple_of(STEP_K) || n < TILE_ROWS;
        let n_steps = k.div_ceil(STEP_K);
        if let Some(few) = Self::few(n, n_steps, m, card).filter(|_| !ragged) {
            return Ok(few);
        }
        let tiles = n.div_ceil(TILE_ROWS);
        let grid = tiles.min(card.n_multiprocessors);
        let tiles_per_block = tiles.div_ceil(grid);
        // The steps that the busiest warp takes, and what joining a team's sums costs, as fitted on an H200.
        let step_cost = if ragged { 20 } else { 4 };
        let cost = |&(warps, split): &(u32, u32)| {
            tiles_per_block.div_ceil(warps / split) * (step_cost * n_steps.div_ceil(split) + 5 * split)
        };
        let cheapest = |m: u32, depth: u32| {
            let bytes = |warps, split| Self::several_bytes(n_steps, m, depth, warps, split);
            several::ways(n_steps).filter(|&(warps, split)| bytes(warps, split) <= card.block_bytes).min_by_key(cost)
        };
        // Fewer launches first, then the deeper prefetch.
        let choices = (1..=m).rev().flat_map(|m| [(m, 2), (m, 1)]).filter(|&(_, depth)| !ragged || depth == 1);
        let mut best = choices.filter_map(|(m, depth)| Some((m, depth, cheapest(m, depth)?)));
        let Some((m, depth, (warps, split))) = best.next() else {
            anyhow::bail!(
                "one vector of {k} columns does not fit the card's {} bytes of shared memory a block",
                card.block_bytes
            );
        };
        let kernel = match (ragged, depth) {
            (true, _) => "nvfp4_mma_ragged",
            (_, 2) => "nvfp4_mma",
            _ => "nvfp4_mma_shallow",
        };
        let shared_bytes = Self::several_bytes(n_steps, m, depth, warps, split);
        Ok(Self { module: "gemv_mma", kernel, m, split, grid, warps, shared_bytes })
    }

    /// Few rows, kernels/gemv_mma_few.cu: hardly a tile for every multiprocessor (fitted on an H200). None: they are not
    /// few, or the card has no clusters, or not all vectors fit.
    fn few(n: u32, n_steps: u32, m: u32, card: Card) -> Option<Self> {
        use several::{CLUSTER, FEW_WARPS, SUMS_BYTES, TILE_ROWS};
        let tiles = n.div_ceil(TILE_ROWS);
        let clusters = tiles.min(card.clusters);
        if clusters == 0 || m == 1 || tiles * 2 > card.n_multiprocessors * 3 {
            return None;
        }
        let tiles_per_cluster = tiles.div_ceil(clusters);
        // The steps that the busiest warp takes.
        let cost = |split: u32| tiles_per_cluster.div_ceil(FEW_WARPS / split) * n_steps.div_ceil(CLUSTER * split);
        let splits = [1, 2, 3, 4, 6, 12].into_iter().filter(|split| CLUSTER * split <= n_steps);
        let split = splits.min_by_key(|&split| cost(split))?;
        let sums_bytes = tiles_per_cluster.div_ceil(CLUSTER) * CLUSTER * split * SUMS_BYTES;
        let shared_bytes = Self::staged_bytes(n_steps.div_ceil(CLUSTER), m, 2, FEW_WARPS) + sums_bytes;
        let (module, kernel, grid) = ("gemv_mma_few", "nvfp4_mma_few", clusters * CLUSTER);
        let plan = Self { module, kernel, m, split, grid, warps: FEW_WARPS, shared_bytes };
        (shared_bytes <= card.block_bytes).then_some(plan)
    }

    /// Dynamic shared memory of kernels/gemv_mma.cu: x, the weights in flight, and the sums of teams.
    fn several_bytes(n_steps: u32, m: u32, depth: u32, warps: u32, split: u32) -> u32 {
        let sums_bytes = if split > 1 { 2 * warps * several::SUMS_BYTES } else { 0 };
        Self::staged_bytes(n_steps, m, depth, warps) + sums_bytes
    }

    /// What kernels/gemv_mma.cu and gemv_mma_few.cu both have of it: x, and the weights in flight.
    fn staged_bytes(n_steps: u32, m: u32, depth: u32, warps: u32) -> u32 {
        use several::{SLOT_BYTES, STEP_K};
        n_steps * STEP_K * 2 * m + warps * depth * SLOT_BYTES
    }
}

impl Gpu {
    /// The plan for `matrix` and `m` vectors on this card.
    ///
    /// # Errors
    /// The shape is no NVFP4 matrix, or a vector does not fit the card's shared memory.
    pub fn plan(&self, n: u32, k: u32, m: u32) -> Result<Plan> {
        let card = Card {
            n_multiprocessors: u32::try_from(self.n_multiprocessors)?,
            block_bytes: self.shared_block_bytes.saturating_sub(FIXED_SHARED_BYTES),
            gemv_blocks: if self.capability >= (9, 0) { 2 } else { 1 },
            clusters: if m > 1 && self.capability >= (9, 0) { self.clusters()? } else { 0 },
        };
        Plan::new(n, k, m, card)
    }

    /// Clusters of kernels/gemv_mma_few.cu that the card runs at a time, each block with all its shared memory.
    fn clusters(&self) -> Result<u32> {
        let kernel = self.kernel("gemv_mma_few", "nvfp4_mma_few_logits")?;
        let shared_bytes = self.allow_shared(&kernel)?;
        most_clusters(&kernel, several::CLUSTER, several::FEW_WARPS * 32, shared_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Card = Card { n_multiprocessors: 132, block_bytes: 230_912, gemv_blocks: 2, clusters: 15 };
    const SMALL: Card = Card { n_multiprocessors: 48, block_bytes: 100_352, gemv_blocks: 1, clusters: 0 };

    #[test]
    fn every_shape_of_a_drafter_gets_a_plan_that_fits() {
        for card in [H200, SMALL] {
            for (n, k) in
                [(64128, 2560), (64128, 5120), (248_320, 2560), (10240, 2560), (5120, 17408), (1, 16), (7, 2576)]
            {
                for m in 1..=MAX_M {
                    let plan = Plan::new(n, k, m, card).unwrap();
                    assert!(
                        plan.shared_bytes <= card.block_bytes && plan.m <= m && plan.warps.is_multiple_of(plan.split)
                    );
                    assert!(plan.grid <= n.min(card.n_multiprocessors * card.gemv_blocks));
                    assert_eq!(plan.module == "gemv", plan.m == 1 && k % 32 == 0, "{n} x {k}, {m}");
                    assert_eq!(plan.m > 1, m > 1 && (card.block_bytes > 200_000 || k < 17408), "{n} x {k}, {m}");
                }
            }
        }
    }

    /// Warps, and how many of them share a tile.
    #[test]
    fn tiles_are_shared_as_was_fastest_on_an_h200() {
        let ways =
            [((64128, 2560), (16, 1)), ((64128, 5120), (16, 1)), ((10240, 2560), (16, 2)), ((2560, 640), (12, 3))];
        for ((n, k), expected) in ways {
            for m in [2, 8] {
                let plan = Plan::new(n, k, m, H200).unwrap();
                assert_eq!((plan.warps, plan.split), expected, "{n} x {k}, {m}");
            }
        }
    }

    #[test]
    fn the_constants_are_those_of_the_kernels() {
        let constant = |source: &str, name: &str, value: u32| {
            let line = source.lines().find(|line| line.starts_with(&format!("#define {name} "))).unwrap();
            assert_eq!(line.split_whitespace().nth(2).unwrap(), value.to_string(), "{name}");
        };
        let one = include_str!("../../kernels/gemv.cu");
        constant(one, "WARPS", one::WARPS);
        constant(one, "STEP_K", one::STEP_K);
        let several = include_str!("../../kernels/gemv_mma.cuh");
        constant(several, "MOST_WARPS", several::WARPS[0]);
        constant(several, "TILE_ROWS", several::TILE_ROWS);
        constant(several, "STEP_K", several::STEP_K);
        constant(several, "SLOT_BYTES", several::SLOT_BYTES);
        constant(several, "SUMS", several::SUMS_BYTES / 128);
        constant(include_str!("../../kernels/gemv_mma_few.cu"), "CLUSTER", several::CLUSTER);
        constant(include_str!("../../kernels/gemv.cuh"), "MAX_M", MAX_M);
        constant(include_str!("../../kernels/gemv_bf16.cu"), "WARPS", crate::gpu::gemv::BF16_WARPS);
    }
}
