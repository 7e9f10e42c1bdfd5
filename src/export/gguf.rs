//! The tensors of a sidecar in one GGUF file, version 3.
//!
//! A linear `X` becomes `X.weight`, NVFP4 in ggml's blocks, and `X.scale`, F32 [1], which the product is multiplied by, as
//! llama.cpp's converter writes ModelOpt's checkpoints; `d2t` I64 holds the absolute id of each row of the draft head.
//! Every other tensor keeps its name and its bytes. It is a container of weights, not a model that llama.cpp loads by
//! itself: its converter names tensors by architecture and adds a tokenizer.

use std::io::Write;

use anyhow::{Context, Result, bail, ensure};
use safetensors::Dtype;

use super::{Exported, Linear, is_part, linears};
use crate::{
    gguf::{self, ALIGNMENT, F32, I64, TensorInfo},
    interrupt,
    nvfp4::ggml,
    output::{HashingFile, StagedDir},
    quantize::TOKEN_IDS,
    report::Progress,
    sidecar::Sidecar,
};

/// The file.
pub const GGUF_NAME: &str = "drafter.gguf";

/// ggml's longest name, less the byte that ends it, and its most dimensions.
const MAX_NAME_BYTES: usize = 63;
const MAX_DIMENSIONS: usize = 4;

/// `ggml_type`
const NVFP4: u32 = 40;

/// A tensor to write.
struct GgufTensor<'a> {
    info: TensorInfo,
    n_bytes: usize,
    data: Data<'a>,
}

enum Data<'a> {
    Kept(&'a [u8]),
    Packed(&'a Linear<'a>),
    Scale(f32),
}

/// Writes `drafter.gguf` into `staged`.
///
/// # Errors
/// A tensor cannot be said in GGUF (its name, dtype, dimensions, columns or scales), or the disk is full.
pub(super) fn export(sidecar: &Sidecar, staged: &StagedDir, progress: &Progress) -> Result<Exported> {
    ensure!(
        sidecar.vocab.n_repeated == 0,
        "the draft head has {} rows that repeat the first, and llama.cpp refuses a `d2t` with an id twice: build it with \
         the next-ranked ids instead",
        sidecar.vocab.n_repeated
    );
    let drafter = &sidecar.drafter;
    let linears = linears(drafter)?;
    let mut tensors = Vec::new();
    for (module, linear) in &linears {
        let (n, k) = (linear.n, linear.k);
        let n_bytes = n * k / ggml::WEIGHTS_PER_BLOCK * ggml::BYTES_PER_BLOCK;
        let mut add = |suffix: &str, ggml_type, dimensions: &[usize], n_bytes, data| {
            tensors.push(GgufTensor::new(format!("{module}.{suffix}"), ggml_type, dimensions, n_bytes, data)?);
            Ok::<_, anyhow::Error>(())
        };
        add("weight", NVFP4, &[n, k], n_bytes, Data::Packed(linear))?;
        add("scale", F32, &[1], 4, Data::Scale(linear.global_scale))?;
    }
    let kept: Vec<_> = drafter.entries().keys().filter(|name| !is_part(name, &linears)).collect();
    for name in &kept {
        let tensor = drafter.tensor(name)?;
        let ggml_type = ggml_type(tensor.dtype).with_context(|| format!("tensor `{name}`"))?;
        let name = if *name == TOKEN_IDS { "d2t" } else { name };
        let data = Data::Kept(tensor.data);
        tensors.push(GgufTensor::new(name.to_owned(), ggml_type, tensor.shape, tensor.data.len(), data)?);
    }
    tensors.sort_by(|a: &GgufTensor<'_>, b| a.info.name.cmp(&b.info.name));
    let mut file = staged.file(GGUF_NAME)?;
    let say = || format!("`{GGUF_NAME}`: cannot write");
    file.write_all(&header(sidecar, &tensors)).with_context(say)?;
    for tensor in &tensors {
        tensor.write(&mut file, progress)?;
    }
    file.finish()?;
    Ok(Exported { n_quantized: linears.len(), n_kept: kept.len(), n_flushed_blocks: 0 })
}

/// The ggml type of numbers that are kept as they are.
fn ggml_type(dtype: Dtype) -> Result<u32> {
    Ok(match dtype {
        Dtype::F32 => F32,
        Dtype::F16 => 1,
        Dtype::BF16 => 30,
        Dtype::I8 => 24,
        Dtype::I16 => 25,
        Dtype::I32 => 26,
        Dtype::I64 => I64,
        Dtype::F64 => 28,
        other => bail!("has dtype {other}, and GGUF has no such type"),
    })
}

impl<'a> GgufTensor<'a> {
    /// `shape` is outermost first.
    fn new(name: String, ggml_type: u32, shape: &[usize], n_bytes: usize, data: Data<'a>) -> Result<Self> {
        ensure!(name.len() <= MAX_NAME_BYTES, "tensor `{name}`: GGUF's names end at {MAX_NAME_BYTES} bytes");
        ensure!(shape.len() <= MAX_DIMENSIONS, "tensor `{name}`: GGUF's tensors end at {MAX_DIMENSIONS} dimensions");
        let mut dimensions: Vec<u64> = shape.iter().rev().map(|&n| n as u64).collect();
        if dimensions.is_empty() {
            dimensions.push(1);
        }
        Ok(Self { info: TensorInfo { name, dimensions, ggml_type }, n_bytes, data })
    }

    fn write(&self, file: &mut HashingFile, progress: &Progress) -> Result<()> {
        /// Rows packed at a time.
        const ROWS: usize = 1024;
        let say = || format!("`{GGUF_NAME}`: cannot write tensor `{}`", self.info.name);
        match self.data {
            Data::Scale(scale) => file.write_all(&scale.to_le_bytes()).with_context(say)?,
            Data::Kept(bytes) => {
                for part in bytes.chunks(1 << 22) {
                    interrupt::check()?;
                    file.write_all(part).with_context(say)?;
                    progress.advance(part.len() as u64);
                }
            }
            Data::Packed(linear) => {
                let k = linear.k;
                let rows = linear.codes.data.chunks(ROWS * k / 2).zip(linear.block_scales.data.chunks(ROWS * k / 16));
                for (codes, scales) in rows {
                    interrupt::check()?;
                    let packed =
                        ggml::pack(codes, scales, k).with_context(|| format!("tensor `{}`", self.info.name))?;
                    file.write_all(&packed).with_context(say)?;
                    progress.advance((codes.len() + scales.len()) as u64);
                }
            }
        }
        let n_padding = self.n_bytes.next_multiple_of(ALIGNMENT) - self.n_bytes;
        file.write_all(&[0; ALIGNMENT][..n_padding]).with_context(say)
    }
}

/// Everything before the data.
fn header(sidecar: &Sidecar, tensors: &[GgufTensor<'_>]) -> Vec<u8> {
    let texts = [
        ("draftfast.lm_head_tree_sha256", sidecar.manifest.target.head_tree_sha256.as_str()),
        ("draftfast.vocabulary_sha256", &sidecar.manifest.vocabulary.sha256),
        ("general.architecture", "draftfast-drafter"),
    ];
    let numbers = [("draftfast.target_rows", sidecar.vocab.target_rows as u32), ("general.quantization_version", 2)];
    let infos: Vec<TensorInfo> = tensors.iter().map(|tensor| tensor.info.clone()).collect();
    gguf::header(&texts, &numbers, &infos, |i| tensors[i].n_bytes)
}
