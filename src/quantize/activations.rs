//! What was measured at the inputs of linears: a safetensors file with one tensor a linear, named after the linear's
//! tensor in the checkpoint.
//!
//! The shape says what it is: `[k]` the mean of x_k^2; `[k, k]` in F32 or F64 the mean of x x^T (the number of states in
//! the metadata, `n_states.NAME`); `[n, k]` raw inputs. `draftfast_vllm.collect` writes all three.

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail, ensure};
use half::{bf16, f16};

use super::{DRAFT_HEAD, Matrix};
use crate::{
    checkpoint::{Checkpoint, Dtype, Tensor},
    checksum::sha256_file,
    error::Hint,
    input::open_file,
    nvfp4::{GptqConfig, GptqPlan, Hessian, importance_of_states},
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
pub enum Measured<'a> {
    /// E[x_k^2], `[k]`.
    Importance(Vec<f32>),
    /// E[x x^T], `[k, k]`, left in the file: for the widest linears it is larger than memory should be.
    SecondMoments {
        /// F32 or F64.
        matrix: Tensor<'a>,
        /// The number of states behind it.
        n_states: usize,
    },
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
    pub fn measured(&self, matrix: &Matrix) -> Result<Option<Measured<'_>>> {
        let Some(tensor) = self.tensor(matrix)? else { return Ok(None) };
        let at = || format!("`{}`: tensor `{}`", self.path.display(), tensor.name);
        let k = matrix.k;
        let measured = match *tensor.shape {
            [columns] if columns == k => {
                let values = self.finite(&tensor)?;
                ensure!(values.iter().all(|&x| x >= 0.0), "{} has a negative second moment", at());
                Measured::Importance(importance(&values))
            }
            [rows, columns] if rows == k && columns == k && is_moment_dtype(tensor.dtype) => {
                let n_states = self.file.metadata().get(&format!("n_states.{}", tensor.name));
                let n_states = n_states.and_then(|n| n.parse().ok()).unwrap_or(k);
                Measured::SecondMoments { matrix: tensor, n_states }
            }
            [n_states, columns] if n_states > 0 && columns == k => Measured::States(self.finite(&tensor)?),
            _ => bail!("{} has shape {:?}, expected [{k}], [{k}, {k}] or [states, {k}]", at(), tensor.shape),
        };
        Ok(Some(measured))
    }

    fn finite(&self, tensor: &Tensor<'_>) -> Result<Vec<f32>> {
        let values = floats(tensor)?;
        if let Some(bad) = values.iter().position(|x| !x.is_finite()) {
            bail!("`{}`: tensor `{}` has {} at element {bad}", self.path.display(), tensor.name, values[bad]);
        }
        Ok(values)
    }

    fn tensor(&self, matrix: &Matrix) -> Result<Option<Tensor<'_>>> {
        let module = matrix.source.strip_suffix(".weight").unwrap_or(&matrix.source);
        let of_head: &[&str] = if matrix.is_head() { &["lm_head.weight", DRAFT_HEAD, "hidden_states"] } else { &[] };
        let names = [matrix.source.as_str(), module].into_iter().chain(of_head.iter().copied());
        let found = names.into_iter().find(|name| self.file.entries().contains_key(*name));
        found.map(|name| self.file.tensor(name)).transpose()
    }
}

impl Measured<'_> {
    /// E[x_k^2] over the largest.
    ///
    /// # Errors
    /// A second moment is negative or not finite.
    pub fn importance(&self, k: usize) -> Result<Vec<f32>> {
        Ok(match self {
            Self::Importance(importance) => importance.clone(),
            Self::States(states) => importance_of_states(states, k),
            Self::SecondMoments { matrix, .. } => {
                let diagonal: Vec<f32> = (0..k).map(|i| element(matrix, i * (k + 1)) as f32).collect();
                if let Some(column) = diagonal.iter().position(|x| !x.is_finite() || *x < 0.0) {
                    bail!(
                        "`{}`: tensor `{}` has the second moment {} of column {column}",
                        matrix.file,
                        matrix.name,
                        diagonal[column]
                    );
                }
                importance(&diagonal)
            }
        })
    }

    /// The plan of error feedback; `None` when only E[x_k^2] was measured. Hessians are made a panel of columns at a time.
    ///
    /// # Errors
    /// As [`GptqPlan::by_panels`].
    pub fn gptq_plan(&self, k: usize, config: &GptqConfig) -> Result<Option<GptqPlan>> {
        let hessian_of = |columns: Range<usize>| match self {
            Self::SecondMoments { matrix, n_states } => {
                let rows = columns.clone().flat_map(|i| columns.clone().map(move |j| element(matrix, i * k + j)));
                Hessian::from_matrix(rows.collect(), columns.len(), *n_states)
                    .with_context(|| format!("`{}`: tensor `{}`", matrix.file, matrix.name))
            }
            Self::States(states) if columns.len() == k => Hessian::from_states(states, k),
            Self::States(states) => {
                let part: Vec<f32> =
                    states.chunks_exact(k).flat_map(|state| &state[columns.clone()]).copied().collect();
                Hessian::from_states(&part, columns.len())
            }
            Self::Importance(_) => bail!("means of squares are no second-moment matrix"),
        };
        match self {
            Self::Importance(_) => Ok(None),
            _ => GptqPlan::by_panels(k, config, hessian_of, &Progress::silent()).map(Some),
        }
    }
}

/// Element `at` of an F32 or F64 tensor.
fn element(tensor: &Tensor<'_>, at: usize) -> f64 {
    match tensor.dtype {
        Dtype::F64 => tensor.data.as_chunks().0.get(at).map_or(f64::NAN, |&bytes| f64::from_le_bytes(bytes)),
        _ => tensor.data.as_chunks().0.get(at).map_or(f64::NAN, |&bytes| f64::from(f32::from_le_bytes(bytes))),
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
