//! Machines as the cost model sees them: peak bandwidth as published, and the share of it that each kind of kernel
//! reaches.
//!
//! Shares that were measured name their figure in `source`; the others are assumptions, replaced by `bench` figures
//! or a NAME.toml.

use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use crate::{
    error::Hint,
    input::{parse_toml, read_text},
};

/// A machine, in numbers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// What to call it.
    #[serde(default = "unnamed")]
    pub name: String,
    /// Peak memory bandwidth, 10^9 bytes a second.
    pub bandwidth_gb_s: f64,
    /// Share of it that a BF16 GEMV reaches.
    #[serde(default = "assumed_efficiency")]
    pub bf16_efficiency: f64,
    /// Share of it that an FP8 GEMV reaches.
    #[serde(default = "assumed_efficiency")]
    pub fp8_efficiency: f64,
    /// Share of it that an NVFP4 GEMV reaches.
    #[serde(default = "assumed_efficiency")]
    pub nvfp4_efficiency: f64,
    /// Share of it that the target's forward pass reaches.
    #[serde(default = "assumed_efficiency")]
    pub target_efficiency: f64,
    /// What a draft step costs beyond its bytes: kernel launches, the argmax, the loop. Microseconds.
    #[serde(default = "assumed_launch_floor_us")]
    pub launch_floor_us: f64,
    /// What a target step costs beyond its bytes: scheduling, launches, sampling. Microseconds.
    #[serde(default = "assumed_step_overhead_us")]
    pub step_overhead_us: f64,
    /// Dense BF16 tensor throughput, 10^12 operations a second; large batches meet it. Absent: never the limit.
    #[serde(default)]
    pub bf16_tflops: Option<f64>,
    /// Where the figures come from.
    #[serde(default = "unsourced")]
    pub source: String,
}

const ASSUMED_EFFICIENCY: f64 = 0.8;
/// Fits the seed's two machines alike (docs/plan.md).
const ASSUMED_LAUNCH_FLOOR_US: f64 = 100.0;
const ASSUMED_STEP_OVERHEAD_US: f64 = 2_000.0;

fn unnamed() -> String {
    "unnamed machine".to_owned()
}

fn unsourced() -> String {
    "no source given".to_owned()
}

fn assumed_efficiency() -> f64 {
    ASSUMED_EFFICIENCY
}

fn assumed_launch_floor_us() -> f64 {
    ASSUMED_LAUNCH_FLOOR_US
}

fn assumed_step_overhead_us() -> f64 {
    ASSUMED_STEP_OVERHEAD_US
}

/// The names that [`Hardware::named`] knows.
pub const NAMES: [&str; 5] = ["gb10", "rtx5090", "rtx-pro-6000", "b200", "h200"];

impl Hardware {
    /// A machine of which only the bandwidth is known.
    ///
    /// # Errors
    /// The bandwidth is not a positive number.
    pub fn of_bandwidth(bandwidth_gb_s: f64) -> Result<Self> {
        let machine = Self {
            name: format!("{bandwidth_gb_s} GB/s"),
            bandwidth_gb_s,
            bf16_efficiency: ASSUMED_EFFICIENCY,
            fp8_efficiency: ASSUMED_EFFICIENCY,
            nvfp4_efficiency: ASSUMED_EFFICIENCY,
            target_efficiency: ASSUMED_EFFICIENCY,
            launch_floor_us: ASSUMED_LAUNCH_FLOOR_US,
            step_overhead_us: ASSUMED_STEP_OVERHEAD_US,
            bf16_tflops: None,
            source: "the bandwidth is the user's; every efficiency is assumed".to_owned(),
        };
        machine.check("`--bandwidth`")?;
        Ok(machine)
    }

    /// A machine of the table, or `NAME.toml`.
    ///
    /// # Errors
    /// Neither a known name nor a readable file, no bandwidth in it, or a figure that no machine has.
    pub fn named(name: &str) -> Result<Self> {
        if let Some(machine) = built_in(name) {
            return Ok(machine);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            return Err(anyhow!("`{name}` is not a known machine"))
                .hint(format!("known are {}; a file must end in `.toml`", NAMES.join(", ")));
        }
        let text = read_text(path).with_context(|| format!("`{name}`"))?;
        let mut machine: Self = parse_toml(&text)
            .with_context(|| format!("`{name}` is not a hardware file"))
            .hint("it needs at least `bandwidth_gb_s = 273`; docs/plan.md lists the keys")?;
        if machine.name == unnamed() {
            machine.name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        machine.check(&format!("`{name}`"))?;
        Ok(machine)
    }

    fn check(&self, whose: &str) -> Result<()> {
        let positive = |key: &str, value: f64| {
            ensure!(value.is_finite() && value > 0.0, "{whose}: `{key}` is {value}, expected more than 0");
            Ok(())
        };
        positive("bandwidth_gb_s", self.bandwidth_gb_s)?;
        if let Some(tflops) = self.bf16_tflops {
            positive("bf16_tflops", tflops)?;
        }
        for (key, share) in [
            ("bf16_efficiency", self.bf16_efficiency),
            ("fp8_efficiency", self.fp8_efficiency),
            ("nvfp4_efficiency", self.nvfp4_efficiency),
            ("target_efficiency", self.target_efficiency),
        ] {
            ensure!(share > 0.0 && share <= 1.0, "{whose}: `{key}` is {share}, expected more than 0 and at most 1");
        }
        for (key, time_us) in [("launch_floor_us", self.launch_floor_us), ("step_overhead_us", self.step_overhead_us)] {
            ensure!(time_us.is_finite() && time_us >= 0.0, "{whose}: `{key}` is {time_us}, expected 0 or more");
        }
        Ok(())
    }

    /// Microseconds to read `n_bytes` at a share of the peak.
    pub fn read_us(&self, n_bytes: f64, efficiency: f64) -> f64 {
        n_bytes / (self.bandwidth_gb_s * efficiency * 1e3)
    }
}

/// Peak figures are NVIDIA's product pages and data sheets (dense BF16, without sparsity).
fn built_in(name: &str) -> Option<Hardware> {
    let machine = |bandwidth_gb_s, shares: [f64; 4], overheads_us: [f64; 2], tflops, source: &str| Hardware {
        name: name.to_owned(),
        bandwidth_gb_s,
        bf16_efficiency: shares[0],
        fp8_efficiency: shares[1],
        nvfp4_efficiency: shares[2],
        target_efficiency: shares[3],
        launch_floor_us: overheads_us[0],
        step_overhead_us: overheads_us[1],
        bf16_tflops: Some(tflops),
        source: source.to_owned(),
    };
    Some(match name {
        "gb10" => machine(
            273.0,
            [0.675, 0.80, 0.89, 0.80],
            [100.0, 5_000.0],
            125.0,
            "LPDDR5X peak: data sheet; BF16 and NVFP4 shares: the seed's published GEMVs (13,791 us for the BF16 head of \
             a 27B, 757 us for 64,064 NVFP4 rows); the rest assumed",
        ),
        "rtx5090" => machine(
            1_792.0,
            [0.85, 0.85, 0.75, 0.80],
            [50.0, 2_000.0],
            209.5,
            "GDDR7 peak: data sheet; shares and overheads assumed",
        ),
        "rtx-pro-6000" => machine(
            1_792.0,
            [0.85, 0.85, 0.75, 0.80],
            [50.0, 2_000.0],
            252.0,
            "GDDR7 peak: data sheet; shares and overheads assumed",
        ),
        "b200" => machine(
            8_000.0,
            [0.88, 0.75, 0.42, 0.60],
            [100.0, 4_400.0],
            2_250.0,
            "HBM3e peak: data sheet; BF16 and NVFP4 (Marlin) shares as measured on an H200; step overhead from the \
             seed's 128.6 tok/s without MTP; the rest assumed",
        ),
        "h200" => machine(
            4_800.0,
            [0.88, 0.75, 0.44, 0.80],
            [20.0, 1_300.0],
            989.0,
            "HBM3e peak: data sheet; BF16 (cuBLAS), NVFP4 (Marlin, N % 128 == 0) and overheads measured for this \
             project; the rest assumed",
        ),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_of_the_table_is_sane() {
        for name in NAMES {
            Hardware::named(name).unwrap().check(name).unwrap();
        }
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = Hardware::named("gb11").unwrap_err();
        assert!(crate::error::hints(&error)[0].contains("gb10, rtx5090"));
    }

    #[test]
    fn the_seed_s_gemv_times_come_out() {
        let gb10 = Hardware::named("gb10").unwrap();
        let (bf16, nvfp4) = (248_320.0 * 5_120.0 * 2.0, 64_064.0 * 5_120.0 * 0.5625);
        assert!((gb10.read_us(bf16, gb10.bf16_efficiency) / 13_791.0 - 1.0).abs() < 0.01);
        assert!((gb10.read_us(nvfp4, gb10.nvfp4_efficiency) / 757.0 - 1.0).abs() < 0.01);
    }
}
