//! A sidecar in another layout: the same numbers under the names and in the order that other runtimes read.
//!
//! The sidecar's own layout, ModelOpt's, is the master copy; exports are made from it and never read back. Codes and block
//! scales are carried over bit for bit (compressed-tensors) or permuted (Marlin, GGUF); nothing is quantized again.

mod gguf;

use std::{collections::BTreeMap, fs};

use anyhow::{Context, Result, ensure};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::{
    checkpoint::{Checkpoint, Tensor},
    interrupt,
    nvfp4::{
        BLOCK,
        marlin::{self, Activation},
    },
    output::StagedDir,
    report::Progress,
    sidecar::{DrafterFile, OutputTensor, Sidecar},
    vocab::forms::Form,
};

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// `nvfp4-pack-quantized`: `weight_packed`, `weight_scale`, `weight_global_scale`, which divides.
    CompressedTensors,
    /// `qweight`, `scales`, `global_scale` as vLLM's Marlin kernel reads them.
    Marlin(Activation),
    /// One GGUF file with ggml's NVFP4 blocks.
    Gguf,
}

impl Layout {
    /// Its name on the command line and in the metadata.
    pub fn name(self) -> &'static str {
        match self {
            Self::CompressedTensors => "compressed-tensors",
            Self::Marlin(Activation::Bf16) => "marlin-bf16",
            Self::Marlin(Activation::Fp16) => "marlin-fp16",
            Self::Gguf => "gguf",
        }
    }
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq, serde::Serialize)]
pub struct Exported {
    /// Linears in the new layout, the draft head among them.
    pub n_quantized: usize,
    /// Tensors copied as they were.
    pub n_kept: usize,
    /// Blocks that the new layout cannot say and that became zero.
    pub n_flushed_blocks: usize,
}

const TENSOR_SCALE: &str = ".weight_scale_2";

/// The bytes that [`export`] reads, for its progress.
pub fn n_bytes(sidecar: &Sidecar) -> u64 {
    sidecar.drafter.n_bytes()
}

/// The element type of the model's activations, from the sidecar's config: BF16 unless it says float16.
///
/// # Errors
/// `config.json` cannot be read.
pub fn activation(sidecar: &Sidecar) -> Result<Activation> {
    let text = fs::read(sidecar.dir.join("config.json")).context("`config.json`: cannot read")?;
    let config: Value = serde_json::from_slice(&text).context("`config.json` is not valid JSON")?;
    let places = [Some(&config), config.get("text_config")];
    let dtype = places.into_iter().flatten().find_map(|object| object.get("dtype").or(object.get("torch_dtype")));
    Ok(if dtype.and_then(Value::as_str) == Some("float16") { Activation::Fp16 } else { Activation::Bf16 })
}

/// Writes `drafter.safetensors`, `config.json` and the vocabulary into `staged`, or `drafter.gguf` alone.
///
/// # Errors
/// A quantized tensor is not of its shape, a scale is beyond the layout, or the disk is full.
pub fn export(sidecar: &Sidecar, layout: Layout, staged: &StagedDir, progress: &Progress) -> Result<Exported> {
    let packing = match layout {
        Layout::CompressedTensors => Packing::CompressedTensors,
        Layout::Marlin(activation) => Packing::Marlin(activation),
        Layout::Gguf => return gguf::export(sidecar, staged, progress),
    };
    let drafter = &sidecar.drafter;
    let linears = linears(drafter)?;
    let mut tensors = BTreeMap::new();
    for (module, linear) in &linears {
        tensors.extend(linear.outputs(module, packing));
    }
    let kept: Vec<&String> = drafter.entries().keys().filter(|name| !is_part(name, &linears)).collect();
    for name in &kept {
        let tensor = drafter.tensor(name)?;
        tensors.insert((*name).clone(), OutputTensor { dtype: tensor.dtype, shape: tensor.shape.to_vec() });
    }
    let metadata = BTreeMap::from([
        ("format".to_owned(), "pt".to_owned()),
        ("draftfast.layout".to_owned(), layout.name().to_owned()),
    ]);
    let file = DrafterFile::create(staged, &tensors, &metadata)?;
    let mut exported = Exported { n_quantized: linears.len(), n_kept: kept.len(), n_flushed_blocks: 0 };
    for (module, linear) in &linears {
        interrupt::check()?;
        exported.n_flushed_blocks += linear.write(module, packing, &file)?;
        progress.advance((linear.codes.data.len() + linear.block_scales.data.len()) as u64);
    }
    for name in kept {
        interrupt::check()?;
        let data = drafter.tensor(name)?.data;
        file.write_at(name, 0, data)?;
        progress.advance(data.len() as u64);
    }
    file.finish()?;
    copy_rest(sidecar, packing, &linears, staged)?;
    Ok(exported)
}

/// The layouts that are safetensors.
#[derive(Debug, Clone, Copy)]
enum Packing {
    CompressedTensors,
    Marlin(Activation),
}

/// A quantized linear of the sidecar.
struct Linear<'a> {
    codes: Tensor<'a>,
    block_scales: Tensor<'a>,
    global_scale: f32,
    n: usize,
    k: usize,
}

fn linears(drafter: &Checkpoint) -> Result<BTreeMap<String, Linear<'_>>> {
    let modules = drafter.entries().keys().filter_map(|name| name.strip_suffix(TENSOR_SCALE));
    modules.map(|module| Ok((module.to_owned(), Linear::read(drafter, module)?))).collect()
}

fn is_part(name: &str, linears: &BTreeMap<String, Linear>) -> bool {
    [".weight", ".weight_scale", TENSOR_SCALE]
        .iter()
        .any(|suffix| name.strip_suffix(suffix).is_some_and(|module| linears.contains_key(module)))
}

impl<'a> Linear<'a> {
    fn read(drafter: &'a Checkpoint, module: &str) -> Result<Self> {
        let codes = drafter.tensor(&format!("{module}.weight"))?;
        let block_scales = drafter.tensor(&format!("{module}.weight_scale"))?;
        let scale = drafter.tensor(&format!("{module}{TENSOR_SCALE}"))?;
        let (n, k) = match *codes.shape {
            [n, half_k] if codes.dtype == Dtype::U8 => (n, half_k * 2),
            _ => anyhow::bail!(
                "`{}`: tensor `{}` is {} {:?}, expected U8 codes of two dimensions",
                codes.file,
                codes.name,
                codes.dtype,
                codes.shape
            ),
        };
        ensure!(
            block_scales.dtype == Dtype::F8_E4M3 && block_scales.shape == [n, k / BLOCK] && k.is_multiple_of(BLOCK),
            "`{}`: tensor `{}` is {} {:?}, expected F8_E4M3 [{n}, {}]",
            codes.file,
            block_scales.name,
            block_scales.dtype,
            block_scales.shape,
            k / BLOCK
        );
        let bytes: [u8; 4] = scale.data.try_into().ok().filter(|_| scale.dtype == Dtype::F32).with_context(|| {
            format!("`{}`: tensor `{}` is {} {:?}, expected one F32", scale.file, scale.name, scale.dtype, scale.shape)
        })?;
        let global_scale = f32::from_le_bytes(bytes);
        ensure!(
            global_scale.is_finite() && global_scale > 0.0,
            "`{}`: tensor `{}` is {global_scale}, expected a positive number",
            scale.file,
            scale.name
        );
        Ok(Self { codes, block_scales, global_scale, n, k })
    }

    fn outputs(&self, module: &str, packing: Packing) -> Vec<(String, OutputTensor)> {
        let tensor = |suffix: &str, dtype, shape: &[usize]| {
            (format!("{module}.{suffix}"), OutputTensor { dtype, shape: shape.to_vec() })
        };
        let (n, k) = (self.n, self.k);
        match packing {
            Packing::CompressedTensors => vec![
                tensor("weight_packed", Dtype::U8, &[n, k / 2]),
                tensor("weight_scale", Dtype::F8_E4M3, &[n, k / BLOCK]),
                tensor("weight_global_scale", Dtype::F32, &[1]),
            ],
            Packing::Marlin(_) => {
                let (n, k) = marlin::padded(n, k);
                vec![
                    tensor("qweight", Dtype::I32, &[k / BLOCK, 2 * n]),
                    tensor("scales", Dtype::F8_E4M3, &[k / BLOCK, n]),
                    tensor("global_scale", Dtype::F32, &[]),
                ]
            }
        }
    }

    /// Writes the linear; returns how many blocks became zero.
    fn write(&self, module: &str, packing: Packing, file: &DrafterFile) -> Result<usize> {
        let name = |suffix: &str| format!("{module}.{suffix}");
        match packing {
            Packing::CompressedTensors => {
                let divisor = 1.0 / self.global_scale;
                ensure!(
                    divisor.is_finite() && divisor > 0.0,
                    "tensor `{module}`: the scale {} has no reciprocal in F32, which compressed-tensors stores",
                    self.global_scale
                );
                file.write_at(&name("weight_packed"), 0, self.codes.data)?;
                file.write_at(&name("weight_scale"), 0, self.block_scales.data)?;
                file.write_at(&name("weight_global_scale"), 0, &divisor.to_le_bytes())?;
                Ok(0)
            }
            Packing::Marlin(activation) => {
                let (codes, block_scales) = (self.codes.data, self.block_scales.data);
                let packed = marlin::pack(codes, block_scales, (self.n, self.k), self.global_scale, activation)
                    .with_context(|| format!("tensor `{module}`"))?;
                let words: Vec<u8> = packed.qweight.iter().flat_map(|word| word.to_le_bytes()).collect();
                file.write_at(&name("qweight"), 0, &words)?;
                file.write_at(&name("scales"), 0, &packed.scales)?;
                file.write_at(&name("global_scale"), 0, &packed.global_scale.to_le_bytes())?;
                Ok(packed.n_flushed_blocks)
            }
        }
    }
}

/// The config, with a `quantization_config` in the layout's terms, and the vocabulary.
fn copy_rest(
    sidecar: &Sidecar,
    packing: Packing,
    linears: &BTreeMap<String, Linear>,
    staged: &StagedDir,
) -> Result<()> {
    let read = |name: &str| fs::read(sidecar.dir.join(name)).with_context(|| format!("`{name}`: cannot read"));
    let mut config: Value = serde_json::from_slice(&read("config.json")?).context("`config.json` is not valid JSON")?;
    if let Value::Object(object) = &mut config {
        match packing {
            Packing::CompressedTensors => {
                object.insert("quantization_config".to_owned(), quantization_config(&sidecar.drafter, linears));
            }
            // No quantization method of a config describes weights that a kernel has already rearranged.
            Packing::Marlin(_) => {
                object.remove("quantization_config");
            }
        }
    }
    let text = serde_json::to_string_pretty(&config).context("cannot encode the config")? + "\n";
    staged.write("config.json", text.as_bytes())?;
    let vocab = Form::Safetensors.file_name();
    staged.write(vocab, &read(vocab)?)?;
    Ok(())
}

fn quantization_config(drafter: &Checkpoint, linears: &BTreeMap<String, Linear>) -> Value {
    let matrices = drafter.entries().iter().filter(|(_, entry)| entry.shape.len() == 2);
    let modules = matrices.filter_map(|(name, _)| name.strip_suffix(".weight"));
    let ignored: Vec<&str> = modules.filter(|module| !linears.contains_key(*module)).chain(["lm_head"]).collect();
    json!({
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {
            "group_0": {
                "targets": linears.keys().collect::<Vec<_>>(),
                "format": "nvfp4-pack-quantized",
                "weights": {
                    "num_bits": 4,
                    "type": "float",
                    "strategy": "tensor_group",
                    "group_size": BLOCK,
                    "symmetric": true,
                    "dynamic": false,
                },
                "input_activations": null,
                "output_activations": null,
            }
        },
        "ignore": ignored,
    })
}
