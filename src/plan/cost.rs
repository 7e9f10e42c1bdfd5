//! The cost model: bytes in, microseconds and tokens a second out.
//!
//! At small batches a step is bound by the bytes that it reads:
//!
//! ```text
//! step        = T_verify(k, B) + k * T_draft
//! T_draft     = linears + kept weights + head + cache, each over its kernel's bandwidth, + launch floor
//! T_verify    = max(bytes over bandwidth, operations over throughput) + caches + step overhead
//! tokens/s    = B * tau(k, c(N)) / step
//! ```
//!
//! Weights are read once a step for all B requests; caches are read once a request. Of routed experts a step reads the
//! expected number of distinct ones, E * (1 - (1 - active / E)^tokens), as if tokens chose independently.

use serde::{Deserialize, Serialize};

use super::hardware::Hardware;

/// Element type of the draft head or of the MTP linears.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// 2 bytes a weight.
    Bf16,
    /// 1 byte a weight.
    Fp8,
    /// 9/16 byte a weight: a nibble, and an E4M3 scale a block of 16.
    Nvfp4,
}

impl Format {
    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Nvfp4 => "nvfp4",
        }
    }

    /// Bytes of so many weights.
    pub fn bytes(self, n_weights: f64) -> f64 {
        n_weights
            * match self {
                Self::Bf16 => 2.0,
                Self::Fp8 => 1.0,
                Self::Nvfp4 => 0.5625,
            }
    }

    fn efficiency(self, hardware: &Hardware) -> f64 {
        match self {
            Self::Bf16 => hardware.bf16_efficiency,
            Self::Fp8 => hardware.fp8_efficiency,
            Self::Nvfp4 => hardware.nvfp4_efficiency,
        }
    }
}

/// Experts of which a token uses a few.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RoutedExperts {
    /// Bytes of all of them.
    pub all_bytes: f64,
    /// Experts a token uses.
    pub n_active: usize,
    /// Experts there are.
    pub n_total: usize,
}

impl RoutedExperts {
    /// Bytes that a step over `n_tokens` tokens reads.
    fn read_bytes(&self, n_tokens: usize) -> f64 {
        let unused = 1.0 - (self.n_active as f64 / self.n_total.max(1) as f64).min(1.0);
        self.all_bytes * (1.0 - unused.powi(i32::try_from(n_tokens).unwrap_or(i32::MAX)))
    }
}

/// What a draft step reads, without the head's size and formats.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Drafter {
    /// H, columns of the head.
    pub hidden_size: usize,
    /// V, rows of the target's head.
    pub target_rows: usize,
    /// Weights of the linears that become NVFP4.
    pub n_linear_weights: f64,
    /// Bytes of the linears as the checkpoint has them.
    pub linear_source_bytes: f64,
    /// Bytes of what is read at each step and kept as it is, without routed experts.
    pub kept_bytes: f64,
    /// Its routed experts.
    pub routed: Option<RoutedExperts>,
    /// Bytes of keys and values that one token of context adds.
    pub cache_bytes_per_token: f64,
}

/// What a target step reads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Bytes that every step reads: all but embeddings, towers, MTP and routed experts.
    pub dense_bytes: f64,
    /// Its routed experts.
    pub routed: Option<RoutedExperts>,
    /// Weights that one token is multiplied with.
    pub n_active_weights: f64,
    /// Bytes of keys and values that one token of context adds.
    pub cache_bytes_per_token: f64,
    /// A measured step of one token, microseconds: it then replaces the prediction, which only adds what changes with k
    /// and B.
    pub measured_step_us: Option<f64>,
}

/// The traffic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Requests decoded together.
    pub batch: usize,
    /// Tokens of context of each.
    pub n_context_tokens: usize,
}

/// A drafter's design.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Design {
    /// Rows of the draft head, N.
    pub n_rows: usize,
    /// Its format.
    pub head: Format,
    /// The format of the MTP linears.
    pub linears: Format,
}

/// The machine and the model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Costs {
    /// The machine.
    pub hardware: Hardware,
    /// The target.
    pub target: Target,
    /// The drafter.
    pub drafter: Drafter,
    /// The traffic.
    pub load: Load,
}

impl Costs {
    /// Microseconds of a target step that verifies `n_drafted` tokens a request (0: plain decoding).
    pub fn verify_us(&self, n_drafted: usize) -> f64 {
        let predicted = self.predicted_verify_us(n_drafted, self.load.batch);
        match self.target.measured_step_us {
            Some(measured_us) => measured_us + predicted - self.predicted_verify_us(0, 1),
            None => predicted,
        }
    }

    fn predicted_verify_us(&self, n_drafted: usize, batch: usize) -> f64 {
        let Self { hardware, target, load, .. } = self;
        let n_tokens = batch * (n_drafted + 1);
        let weights = target.dense_bytes + target.routed.map_or(0.0, |routed| routed.read_bytes(n_tokens));
        let read_us = hardware.read_us(weights, hardware.target_efficiency);
        let operations = 2.0 * target.n_active_weights * n_tokens as f64;
        let compute_us = hardware.bf16_tflops.map_or(0.0, |tflops| operations / (tflops * 1e6));
        let cache = target.cache_bytes_per_token * (batch * load.n_context_tokens) as f64;
        read_us.max(compute_us) + hardware.read_us(cache, hardware.target_efficiency) + hardware.step_overhead_us
    }

    /// Bytes that a draft step reads.
    pub fn draft_bytes(&self, design: &Design) -> f64 {
        self.head_bytes(design) + self.linear_bytes(design) + self.other_bytes()
    }

    /// Microseconds of one draft step for the whole batch.
    pub fn draft_us(&self, design: &Design) -> f64 {
        let Self { hardware, .. } = self;
        hardware.read_us(self.head_bytes(design), design.head.efficiency(hardware))
            + hardware.read_us(self.linear_bytes(design), design.linears.efficiency(hardware))
            + hardware.read_us(self.other_bytes(), hardware.bf16_efficiency)
            + hardware.launch_floor_us
    }

    /// Tokens a second of the whole batch, when a step yields `tau` tokens a request.
    pub fn tokens_per_second(&self, n_drafted: usize, tau: f64, draft_us: f64) -> f64 {
        self.load.batch as f64 * tau / (self.verify_us(n_drafted) + n_drafted as f64 * draft_us) * 1e6
    }

    fn head_bytes(&self, design: &Design) -> f64 {
        design.head.bytes(design.n_rows as f64 * self.drafter.hidden_size as f64)
    }

    fn linear_bytes(&self, design: &Design) -> f64 {
        match design.linears {
            Format::Bf16 => self.drafter.linear_source_bytes,
            format => format.bytes(self.drafter.n_linear_weights),
        }
    }

    fn other_bytes(&self) -> f64 {
        let Self { drafter, load, .. } = self;
        let routed = drafter.routed.map_or(0.0, |routed| routed.read_bytes(load.batch));
        drafter.kept_bytes + routed + drafter.cache_bytes_per_token * (load.batch * load.n_context_tokens) as f64
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The seed's 27B on `hardware`, with its target's step as measured.
    pub fn costs_27b(hardware: Hardware, measured_step_us: f64) -> Costs {
        Costs {
            hardware,
            target: Target {
                dense_bytes: 0.0,
                routed: None,
                n_active_weights: 0.0,
                cache_bytes_per_token: 0.0,
                measured_step_us: Some(measured_step_us),
            },
            drafter: Drafter {
                hidden_size: 5_120,
                target_rows: 248_320,
                n_linear_weights: 424_673_280.0,
                linear_source_bytes: 849_346_560.0,
                kept_bytes: 0.0,
                routed: None,
                cache_bytes_per_token: 0.0,
            },
            load: Load { batch: 1, n_context_tokens: 0 },
        }
    }

    #[test]
    fn the_bytes_are_the_seed_s_ledger() {
        let costs = costs_27b(Hardware::of_bandwidth(1_000.0).unwrap(), 1.0);
        let native = Design { n_rows: 248_320, head: Format::Bf16, linears: Format::Bf16 };
        let ours = Design { n_rows: 64_064, head: Format::Nvfp4, linears: Format::Nvfp4 };
        assert_eq!((costs.draft_bytes(&native), costs.draft_bytes(&ours)), (3_392_143_360.0, 423_383_040.0));
    }

    #[test]
    fn a_step_is_the_target_s_and_k_drafts() {
        let costs = costs_27b(Hardware::of_bandwidth(1_000.0).unwrap(), 70_000.0);
        let speed = costs.tokens_per_second(5, 4.0, 6_000.0);
        assert!((speed - 40.0).abs() < 1e-9, "4 tokens in 100 ms, not {speed}");
        assert!((costs.tokens_per_second(0, 1.0, 6_000.0) - 1e6 / 70_000.0).abs() < 1e-9);
    }

    #[test]
    fn more_tokens_read_more_experts_and_never_more_than_all() {
        let routed = RoutedExperts { all_bytes: 512.0, n_active: 10, n_total: 512 };
        assert!((routed.read_bytes(1) - 10.0).abs() < 1e-9);
        assert!(routed.read_bytes(2) < 20.0 && routed.read_bytes(2) > 19.0);
        assert!((routed.read_bytes(100_000) - 512.0).abs() < 1e-9);
    }

    #[test]
    fn a_large_batch_meets_the_compute_roof_and_a_long_context_its_cache() {
        let mut costs = costs_27b(Hardware::named("gb10").unwrap(), 0.0);
        costs.target = Target {
            dense_bytes: 16e9,
            n_active_weights: 26e9,
            cache_bytes_per_token: 65_536.0,
            measured_step_us: None,
            ..costs.target
        };
        let alone_us = costs.verify_us(8);
        assert!((alone_us - costs.verify_us(0)).abs() < 1e-6, "nine tokens are still bound by bytes");
        costs.load.n_context_tokens = 100_000;
        assert!((costs.verify_us(8) - alone_us - 6.5536e9 / (273.0 * 0.8 * 1e3)).abs() < 1e-3);
        costs.load = Load { batch: 64, n_context_tokens: 0 };
        assert!(costs.verify_us(8) > 2.0 * alone_us, "576 tokens are bound by operations");
    }
}
