//! Every family, one table each. To add one, see docs/families.md.
//!
//! Names and shapes follow the checkpoints; fused groups and padding follow vLLM's `model_executor/models`.

use super::{
    families_nextn::{DEEPSEEK_V3, ERNIE45, GLM45, MIMO, MIMO_V2, NEMOTRON_H},
    families_qwen::{QWEN3_NEXT, QWEN35_DENSE, QWEN35_MOE, QWEN38_FLASH_NEXT},
    family::Family,
};

/// In the order in which `synth` lists them.
pub static FAMILIES: &[&Family] = &[
    &QWEN35_DENSE,
    &QWEN35_MOE,
    &QWEN3_NEXT,
    &QWEN38_FLASH_NEXT,
    &DEEPSEEK_V3,
    &GLM45,
    &MIMO,
    &MIMO_V2,
    &NEMOTRON_H,
    &ERNIE45,
];
