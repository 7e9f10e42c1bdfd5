//! How one matrix is quantized: which scale rule, weighted by what, rounded how.

use anyhow::{Context, Result, bail};
use half::bf16;

use super::{Activations, Matrix, Measured, SourceMatrix, Tile};
use crate::{
    error::advise,
    nvfp4::{self, ErrorStats, GptqConfig, GptqPlan, NearestPlan, QuantizeConfig, ScaleRule, Weight},
    report::Progress,
};

/// How weights are rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// Each to its nearest code.
    #[default]
    Nearest,
    /// With the error carried on to columns not yet rounded, where the inputs of a linear were captured.
    Gptq,
}

/// What says which columns matter.
#[derive(Debug, Default)]
pub enum Importance {
    /// Nothing: all alike.
    #[default]
    Even,
    /// The energy of the draft head's own columns; linears are all alike.
    Columns,
    /// Measured inputs.
    Measured(Activations),
}

/// How to quantize.
#[derive(Debug, Default)]
pub struct QuantizeOptions {
    /// How the draft head's block scales are chosen; `None`: by importance if there is one, else four-six.
    pub head_scale: Option<ScaleRule>,
    /// How the MTP linears' block scales are chosen; `None`: as the head's.
    pub linear_scale: Option<ScaleRule>,
    /// Which columns matter.
    pub importance: Importance,
    /// How weights are rounded.
    pub rounding: Rounding,
    /// Whether a vector common to all rows of the draft head is taken off before it is quantized. Shifts all logits of a
    /// state alike: only for heads whose logits are not capped.
    pub row_shift: bool,
}

/// How one matrix is quantized, as far as it takes little memory.
#[derive(Debug)]
pub enum Method {
    /// A rule for the block scales, then each weight to its nearest code.
    Nearest {
        /// The rule.
        rule: ScaleRule,
        /// What an error in each column costs, `[k]`.
        importance: Option<Vec<f32>>,
    },
    /// Error feedback.
    Gptq {
        /// E[x_k^2] over the largest, for the error figures.
        importance: Vec<f32>,
    },
}

impl QuantizeOptions {
    /// The method for `matrix`.
    ///
    /// # Errors
    /// The measurements do not fit the matrix.
    pub fn method(&self, matrix: &Matrix, source: &SourceMatrix<'_>, progress: &Progress) -> Result<Method> {
        let asked = if matrix.is_head() { self.head_scale } else { self.linear_scale.or(self.head_scale) };
        let measured = match &self.importance {
            Importance::Even => None,
            Importance::Columns if matrix.is_head() => Some(matrix.column_energy(source, progress)?),
            Importance::Columns => None,
            Importance::Measured(activations) => match activations.measured(matrix)? {
                None => None,
                Some(measured) => {
                    let importance = measured.importance(matrix.k)?;
                    if self.rounding == Rounding::Gptq && !matches!(measured, Measured::Importance(_)) {
                        return Ok(Method::Gptq { importance });
                    }
                    Some(importance)
                }
            },
        };
        let rule = asked.unwrap_or(if measured.is_some() { ScaleRule::Mse } else { ScaleRule::FourSix });
        Ok(Method::Nearest { rule, importance: measured })
    }

    /// What rounds the weights of `matrix`; the plan of error feedback is several times k x k numbers.
    ///
    /// # Errors
    /// As [`Measured::gptq_plan`].
    pub(super) fn rounder<'a>(&self, matrix: &Matrix, method: &'a Method, global_scale: f32) -> Result<Rounder<'a>> {
        let way = match (method, &self.importance) {
            (Method::Nearest { rule, importance }, _) => {
                Way::Nearest(NearestPlan::new(nearest(*rule, importance.as_deref()), global_scale))
            }
            (Method::Gptq { .. }, Importance::Measured(activations)) => {
                let measured = activations.measured(matrix)?;
                let plan = measured.map(|measured| measured.gptq_plan(matrix.k, &GptqConfig::default())).transpose()?;
                Way::Gptq(Box::new(plan.flatten().context("the inputs of a linear are gone")?))
            }
            (Method::Gptq { .. }, _) => bail!("`--rounding gptq` needs the inputs of the linears"),
        };
        Ok(Rounder { global_scale, importance: method.importance(), way })
    }

    /// # Errors
    /// The options contradict each other.
    pub fn validate(&self) -> Result<()> {
        if self.rounding == Rounding::Gptq && !matches!(self.importance, Importance::Measured(_)) {
            return Err(advise(
                anyhow::anyhow!("`--rounding gptq` needs the inputs of the linears"),
                "give a file of captured states or second moments with `--importance FILE`",
            ));
        }
        if self.row_shift && !matches!(self.importance, Importance::Measured(_)) {
            return Err(advise(
                anyhow::anyhow!("`--row-shift` needs hidden states"),
                "give a file of captured states with `--importance FILE`",
            ));
        }
        if self.rounding == Rounding::Gptq && (self.head_scale.is_some() || self.linear_scale.is_some()) {
            bail!("`--rounding gptq` chooses block scales itself: it cannot be combined with `--scale`");
        }
        Ok(())
    }
}

/// The shift of the draft head, `[k]`.
///
/// # Errors
/// No states of the head were captured, or the head is not BF16.
pub(super) fn head_shift(
    options: &QuantizeOptions,
    head: &Matrix,
    source: &SourceMatrix<'_>,
) -> Result<Option<Vec<f32>>> {
    let (true, Importance::Measured(activations)) = (options.row_shift, &options.importance) else { return Ok(None) };
    let Some(Measured::States(states)) = activations.measured(head)? else {
        bail!(
            "`--row-shift` needs raw hidden states of `{}`, [states, {}], in the importance file",
            head.source,
            head.k
        );
    };
    let states: Vec<bf16> = states.into_iter().map(bf16::from_f32).collect();
    let Tile::Bf16(rows) = head.read(source, 0..head.n)? else {
        bail!("`--row-shift` needs a BF16 head, `{}` is {}", head.source, source.tensor.dtype);
    };
    Ok(Some(nvfp4::row_shift(&rows, head.k, &states)))
}

impl Method {
    /// Its name in the manifest.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gptq { .. } => "gptq",
            Self::Nearest { rule, .. } => match rule {
                ScaleRule::Max => "max",
                ScaleRule::FourSix => "four-six",
                ScaleRule::FourSix1536 => "four-six-1536",
                ScaleRule::Mse => "mse",
            },
        }
    }

    /// What an error in each column costs.
    pub fn importance(&self) -> Option<&[f32]> {
        match self {
            Self::Nearest { importance, .. } => importance.as_deref(),
            Self::Gptq { importance } => Some(importance),
        }
    }

    /// The global scale for a largest magnitude.
    pub fn global_scale(&self, amax: f32) -> f32 {
        match self {
            Self::Nearest { rule, .. } => rule.global_scale(amax),
            Self::Gptq { .. } => nvfp4::global_scale(amax),
        }
    }
}

/// What rounds the weights of a matrix.
#[derive(Debug)]
pub(super) struct Rounder<'a> {
    pub(super) global_scale: f32,
    /// What an error in each column costs.
    pub(super) importance: Option<&'a [f32]>,
    pub(super) way: Way<'a>,
}

/// How a weight gets its code.
#[derive(Debug)]
pub(super) enum Way<'a> {
    /// The nearest at its block's scale.
    Nearest(NearestPlan<'a>),
    /// With the errors of the columns before it carried on.
    Gptq(Box<GptqPlan>),
}

impl Rounder<'_> {
    /// Whether a single BF16 row costs no more than one of many.
    pub(super) fn begins_at_once(&self) -> bool {
        matches!(&self.way, Way::Nearest(plan) if plan.begins_at_once())
    }

    /// Quantizes a tile of rows into `codes` and `block_scales`; returns its error figures.
    pub(super) fn quantize<W: Weight>(
        &self,
        tile: &[W],
        k: usize,
        codes: &mut [u8],
        block_scales: &mut [u8],
    ) -> ErrorStats {
        match &self.way {
            Way::Nearest(plan) => plan.quantize(tile, k, codes, block_scales),
            Way::Gptq(plan) => {
                nvfp4::gptq_rows(tile, k, self.global_scale, plan, codes, block_scales);
                self.figures(tile, k, codes, block_scales)
            }
        }
    }

    /// The error figures of a tile.
    pub(super) fn figures<W: Weight>(&self, tile: &[W], k: usize, codes: &[u8], block_scales: &[u8]) -> ErrorStats {
        nvfp4::error_stats(tile, codes, block_scales, k, self.global_scale, self.importance)
    }
}

fn nearest(rule: ScaleRule, importance: Option<&[f32]>) -> QuantizeConfig<'_> {
    // Byte for byte ModelOpt's rule, `max` alone may give block scales that kernels flush to zero.
    QuantizeConfig { rule, importance, kernel_safe: rule != ScaleRule::Max }
}
