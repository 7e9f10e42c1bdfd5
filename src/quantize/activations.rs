//! What was measured at the inputs of linears: a safetensors file with one tensor a linear, named after the linear's
//! tensor in the checkpoint.
//!
//! The shape says what it is: `[k]` the mean of x_k^2; `[k, k]` in F32 or F64 the mean of x x^T (the number of states in
//! the metadata, `n_states.NAME`); `[n, k]` raw inputs. `draftfast_vllm.collect` writes all three.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};

use super::{DRAFT_HEAD, Matrix};
use crate::{
    checkpoint::{Checkpoint, Dtype, Tensor},
    checksum::sha256_file,
    error::Hint,
    input::open_file,
    nvfp4::{Hessian, importance_of_states},
    report::Progress,
};

/// A file of measurements.
#[derive(Debug)]
pub struct Activations {
    path: PathBuf,
    file: Checkpoint,
    /// sha256 of the file.
    pub sha256: String,
}

/// What the file has for one linear.
#[derive(Debug)]
pub enum Measured {
    /// E[x_k^2], `[k]`.
    Importance(Vec<f32>),
    /// E[x x^T], `[k, k]`.
    SecondMoments(Hessian),
    /// Raw inputs, `[n, k]`.
    States(Vec<f32>),
}

impl Activations {
    /// Opens a safetensors file of measurements.
    ///
    /// # Errors
    /// It is no safetensors file.
    pub fn open(path: &Path) -> Result<Self> {
        open_file(path)
            .with_context(|| format!("importance `{}`", path.display()))
            .hint("it is the file that the vLLM plugin collects: see `Serve, collect, rebuild` in docs/serving.md")?;
        let file = Checkpoint::open_file(path)?;
        Ok(Self { path: path.to_owned(), file, sha256: sha256_file(path, &Progress::silent())? })
    }

    /// What was measured at the input of `matrix`; `None` when the file has nothing for it.
    ///
    /// # Errors
    /// The tensor does not have the matrix's number of columns, or has values that are not finite or negative moments.
    pub fn measured(&self, matrix: &Matrix) -> Result<Option<Measured>> {
        let Some(tensor) = self.tensor(matrix)? else { return Ok(None) };
        let at = || format!("`{}`: tensor `{}`", self.path.display(), tensor.name);
        let values = floats(&tensor)?;
        if let Some(bad) = values.iter().position(|x| !x.is_finite()) {
            bail!("{} has {} at element {bad}", at(), values[bad]);
        }
        let k = matrix.k;
        let measured = match *tensor.shape {
            [columns] if columns == k => {
                ensure!(values.iter().all(|&x| x >= 0.0), "{} has a negative second moment", at());
                Measured::Importance(importance(&values))
            }
            [rows, columns] if rows == k && columns == k && is_moment_dtype(tensor.dtype) => {
                let n_states = self.file.metadata().get(&format!("n_states.{}", tensor.name));
                let n_states = n_states.and_then(|n| n.parse().ok()).unwrap_or(k);
                let matrix = values.into_iter().map(f64::from).collect();
                Measured::SecondMoments(Hessian::from_matrix(matrix, k, n_states)?)
            }
            [n_states, columns] if n_states > 0 && columns == k => Measured::States(values),
            _ => bail!("{} has shape {:?}, expected [{k}], [{k}, {k}] or [states, {k}]", at(), tensor.shape),
        };
        Ok(Some(measured))
    }

    fn tensor(&self, matrix: &Matrix) -> Result<Option<Tensor<'_>>> {
        let module = matrix.source.strip_suffix(".weight").unwrap_or(&matrix.source);
        let of_head: &[&str] = if matrix.is_head() { &["lm_head.weight", DRAFT_HEAD, "hidden_states"] } else { &[] };
        let names = [matrix.source.as_str(), module].into_iter().chain(of_head.iter().copied());
        let found = names.into_iter().find(|name| self.file.entries().contains_key(*name));
        found.map(|name| self.file.tensor(name)).transpose()
    }
}

impl Measured {
    /// E[x_k^2] over the largest.
    pub fn importance(&self, k: usize) -> Vec<f32> {
        match self {
            Self::Importance(importance) => importance.clone(),
            Self::SecondMoments(hessian) => hessian.importance(),
            Self::States(states) => importance_of_states(states, k),
        }
    }

    /// E[x x^T]; `None` when only its diagonal was measured.
    ///
    /// # Errors
    /// As [`Hessian::from_states`].
    pub fn hessian(self, k: usize) -> Result<Option<Hessian>> {
        match self {
            Self::Importance(_) => Ok(None),
            Self::SecondMoments(hessian) => Ok(Some(hessian)),
            Self::States(states) => Hessian::from_states(&states, k).map(Some),
        }
    }
}

/// Over the largest, so that products with weights stay in range; all alike when nothing was seen.
fn importance(moments: &[f32]) -> Vec<f32> {
    let largest = moments.iter().copied().fold(0.0, f32::max);
    moments.iter().map(|&x| if largest > 0.0 { x / largest } else { 1.0 }).collect()
}

/// Raw states come in the model's own dtype, moments in a wider one.
fn is_moment_dtype(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F64)
}

fn floats(tensor: &Tensor<'_>) -> Result<Vec<f32>> {
    fn read<const BYTES: usize>(bytes: &[u8], one: impl Fn([u8; BYTES]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<BYTES>().0.iter().map(|&element| one(element)).collect()
    }
    Ok(match tensor.dtype {
        Dtype::BF16 => read(tensor.data, |b| bf16::from_le_bytes(b).to_f32()),
        Dtype::F16 => read(tensor.data, |b| f16::from_le_bytes(b).to_f32()),
        Dtype::F32 => read(tensor.data, f32::from_le_bytes),
        Dtype::F64 => read(tensor.data, |b| f64::from_le_bytes(b) as f32),
        other => bail!("`{}`: tensor `{}` has dtype {other}, expected a float", tensor.file, tensor.name),
    })
}
