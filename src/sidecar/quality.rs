//! What a sidecar's head drafts on real hidden states: against the same rows in BF16 (what quantization costs), and
//! against the full head (what quantization and truncation cost together).

use std::borrow::Cow;

use anyhow::{Context, Result, bail, ensure};
use half::bf16;
use serde::Serialize;

use super::Sidecar;
use crate::{
    checkpoint::{Checkpoint, Dtype},
    gpu::Device,
    interrupt,
    nvfp4::quality::{self, Head, STATES_AT_A_TIME},
    quantize::{DRAFT_HEAD, Sources},
    report::Progress,
};

/// Rows of the full head whose logits are computed at a time.
const ROWS_AT_A_TIME: usize = 4096;

/// Figures on hidden states.
#[derive(Debug, Clone, Serialize)]
pub struct DraftQuality {
    /// Hidden states judged on.
    pub n_states: usize,
    /// Centred logit error of the NVFP4 head, over the spread of the BF16 logits of the same rows.
    pub centred_error: f64,
    /// Mean divergence from the BF16 head with the same rows, in nats.
    pub kl: f64,
    /// Share of states in which both draft the same token.
    pub top1_agreement: f64,
    /// Share of states in which the BF16 rows' token is among the NVFP4 head's four largest.
    pub top4_agreement: f64,
    /// Median of the BF16 rows' largest logit less the second.
    pub median_margin: f64,
    /// The same among the states in which the two disagree.
    pub median_margin_lost: Option<f64>,
    /// Share of states whose token by the full BF16 head is kept at all.
    pub full_token_is_kept: f64,
    /// Share of states in which the NVFP4 head drafts the token of the full BF16 head.
    pub full_top1_agreement: f64,
}

/// Judges `sidecar` on the states in `states`: the only two-dimensional BF16 tensor of the file, `[n, H]`.
///
/// # Errors
/// The file has no such tensor or several, its width is not the head's, or the head is not BF16.
pub fn draft_quality(
    sidecar: &Sidecar,
    sources: Sources<'_>,
    states: &Checkpoint,
    device: &Device,
    progress: &Progress,
) -> Result<DraftQuality> {
    let k = sidecar.manifest.target.hidden_size;
    let states = read_states(states, k)?;
    let full = sources.target.tensor(&sidecar.manifest.target.head_tensor)?;
    ensure!(
        full.shape == [sidecar.manifest.target.target_rows, k],
        "`{}`: tensor `{}` has shape {:?}, but the sidecar was made from [{}, {k}]",
        full.file,
        full.name,
        full.shape,
        sidecar.manifest.target.target_rows
    );
    let mut rows = Vec::with_capacity(sidecar.vocab.n_rows() * k);
    for id in sidecar.vocab.row_ids() {
        rows.extend_from_slice(&full.bf16(id as usize * k..(id as usize + 1) * k)?);
    }
    let part = |name: &str| Ok::<_, anyhow::Error>(sidecar.drafter.tensor(&format!("{DRAFT_HEAD}.{name}"))?.data);
    let global_scale = part("weight_scale_2")?.try_into().context("the global scale is not one F32")?;
    let head = Head::Nvfp4 {
        codes: part("weight")?,
        block_scales: part("weight_scale")?,
        global_scale: f32::from_le_bytes(global_scale),
    };
    let logits = |head: Head, k: usize, states: &[bf16]| logits(device, head, k, states);
    let same_rows = quality::compare(Head::Bf16(&rows), head, k, &states, logits)?;

    let drafted = top_tokens(device, head, k, &states)?;
    let drafted: Vec<u32> = drafted.into_iter().map(|(row, _)| row_id(sidecar, row)).collect();
    let expected = full_top_tokens(device, &full, k, &states, progress)?;
    let share = |n: usize| n as f64 / expected.len() as f64;
    let kept = expected.iter().filter(|id| sidecar.vocab.token_ids.binary_search(id).is_ok()).count();
    let agreed = expected.iter().zip(&drafted).filter(|(a, b)| a == b).count();
    Ok(DraftQuality {
        n_states: same_rows.n_states,
        centred_error: same_rows.centred_error,
        kl: same_rows.kl,
        top1_agreement: same_rows.top1_agreement,
        top4_agreement: same_rows.top4_agreement,
        median_margin: same_rows.median_margin,
        median_margin_lost: same_rows.median_margin_lost,
        full_token_is_kept: share(kept),
        full_top1_agreement: share(agreed),
    })
}

/// The same digits on every device.
fn logits(device: &Device, head: Head, k: usize, states: &[bf16]) -> Result<Vec<f32>> {
    interrupt::check()?;
    match device {
        Device::Cpu => Ok(quality::logits(head, k, states)),
        Device::Cuda(gpu) => gpu.head_logits(head, k, states),
    }
}

fn row_id(sidecar: &Sidecar, row: usize) -> u32 {
    // Repeated rows stand last and are the first id again.
    sidecar.vocab.token_ids.get(row).copied().unwrap_or(sidecar.vocab.token_ids[0])
}

fn read_states(file: &Checkpoint, k: usize) -> Result<Cow<'_, [bf16]>> {
    let mut found = file.entries().iter().filter(|(_, e)| e.dtype == Dtype::BF16 && e.shape.len() == 2);
    let Some((name, entry)) = found.next() else {
        bail!("the file of hidden states has no two-dimensional BF16 tensor");
    };
    if let Some((other, _)) = found.next() {
        bail!("the file of hidden states has several candidates, `{name}` and `{other}`: expected one");
    }
    ensure!(
        entry.shape[1] == k && entry.shape[0] > 0,
        "hidden states `{name}` have shape {:?}, expected [states, {k}]",
        entry.shape
    );
    file.tensor(name)?.bf16(0..entry.shape[0] * k)
}

/// The row with the largest logit of each state, the first of equals, and the logit. The logits of a few states are in
/// memory at a time, however many there are.
fn top_tokens(device: &Device, head: Head, k: usize, states: &[bf16]) -> Result<Vec<(usize, f32)>> {
    let first = (0, f32::NEG_INFINITY);
    let larger = |best: (usize, f32), (row, &x): (usize, &f32)| if x > best.1 { (row, x) } else { best };
    let mut top = Vec::with_capacity(states.len() / k);
    for states in states.chunks(STATES_AT_A_TIME * k) {
        let logits = logits(device, head, k, states)?;
        top.extend(logits.chunks_exact(head.n_rows(k)).map(|row| row.iter().enumerate().fold(first, larger)));
    }
    Ok(top)
}

/// The token that the full head chooses in each state.
fn full_top_tokens(
    device: &Device,
    full: &crate::checkpoint::Tensor<'_>,
    k: usize,
    states: &[bf16],
    progress: &Progress,
) -> Result<Vec<u32>> {
    let (n_rows, n_states) = (full.shape[0], states.len() / k);
    let mut best = vec![(0u32, f32::NEG_INFINITY); n_states];
    for first in (0..n_rows).step_by(ROWS_AT_A_TIME) {
        let end = (first + ROWS_AT_A_TIME).min(n_rows);
        let rows = full.bf16(first * k..end * k)?;
        for (best, (row, logit)) in best.iter_mut().zip(top_tokens(device, Head::Bf16(&rows), k, states)?) {
            if logit > best.1 {
                *best = (u32::try_from(first + row)?, logit);
            }
        }
        progress.advance((end - first) as u64);
    }
    Ok(best.into_iter().map(|(id, _)| id).collect())
}
