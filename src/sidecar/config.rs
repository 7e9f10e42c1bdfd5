//! The sidecar's `config.json`: the target's, with a `quantization_config` in ModelOpt's terms.
//!
//! With it the directory is a model that `speculative_config.model` can name for method `mtp`.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::{NVFP4, manifest::TensorRecord};
use crate::nvfp4::BLOCK;

/// The config of the sidecar of a target with `config`. `tensors` are the manifest's.
pub fn drafter_config(config: &Value, tensors: &BTreeMap<String, TensorRecord>) -> Value {
    let mut config = config.clone();
    if let Value::Object(object) = &mut config {
        object.insert("quantization_config".to_owned(), quantization_config(tensors));
    }
    config
}

fn quantization_config(tensors: &BTreeMap<String, TensorRecord>) -> Value {
    let mut quantized = Map::new();
    let mut excluded = BTreeSet::from(["lm_head"]);
    for (name, record) in tensors {
        let module = name.strip_suffix(".weight").unwrap_or(name);
        if record.to == NVFP4 {
            quantized.insert(name.clone(), json!({ "quant_algo": "W4A16_NVFP4", "group_size": BLOCK }));
        } else if tensors.contains_key(&format!("{module}.weight_scale_2")) {
            // Packed already in the target; with a static activation scale it runs as W4A4.
            let algo = if tensors.contains_key(&format!("{module}.input_scale")) { NVFP4 } else { "W4A16_NVFP4" };
            quantized.insert(module.to_owned(), json!({ "quant_algo": algo, "group_size": BLOCK }));
        } else if name.ends_with(".weight") && record.shape.len() == 2 {
            excluded.insert(module);
        }
    }
    json!({
        "quant_method": "modelopt",
        "quant_algo": "MIXED_PRECISION",
        "group_size": BLOCK,
        "quantized_layers": quantized,
        "exclude_modules": excluded,
    })
}
