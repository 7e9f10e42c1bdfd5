//! Decides what the numbers of a vocabulary file mean, refuses what cannot be told apart, and checks range, uniqueness
//! and agreement of its parts.
//!
//! Absolute ids and offsets are both plain integers. One reading is often impossible (offsets repeat values; absolute ids
//! near V leave the range when a row number is added); where both are possible the file's own name or key decides, and
//! where those are silent too the file is refused.

use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::{
    DraftVocab,
    containers::{Container, Parts, take_apart},
    forms::{Detected, Form, Semantics},
};
use crate::error::{Hint, advise};

const SAY_WHICH: &str = "say which with `--as absolute` or `--as offset`";

pub(super) fn read(path: &Path, target_rows: Option<usize>, said: Option<Semantics>) -> Result<(DraftVocab, Detected)> {
    let inner = path.join(Form::Safetensors.file_name());
    let path = if path.is_dir() { inner.as_path() } else { path };
    let named = || format!("`{}`", path.display());
    let (container, mut parts) = take_apart(path).with_context(named)?;
    if let Some(bare) = parts.bare.take() {
        match said.or_else(|| claim_of_name(path)) {
            Some(Semantics::Absolute) => parts.ids = Some(bare),
            Some(Semantics::Offset) => parts.d2t = Some(bare),
            Some(Semantics::Mask) => bail!("`{}`: holds integers, which are no mask", path.display()),
            None => parts.bare = Some(bare),
        }
    }
    // A key is believed unless it is the only one and the caller knows better.
    match (said, &parts) {
        (Some(Semantics::Absolute), Parts { ids: None, t2d: None, .. }) => parts.ids = parts.d2t.take(),
        (Some(Semantics::Offset), Parts { d2t: None, t2d: None, .. }) => parts.d2t = parts.ids.take(),
        _ => {}
    }
    resolve(container, parts, target_rows).with_context(named)
}

/// `d2t*` promises offsets; `*ids*`, `*token_map*` and `freq*` promise absolute ids.
fn claim_of_name(path: &Path) -> Option<Semantics> {
    let name = path.file_name()?.to_str()?.to_ascii_lowercase();
    if name.starts_with("d2t") {
        Some(Semantics::Offset)
    } else if name.contains("ids") || name.contains("token_map") || name.starts_with("freq") {
        Some(Semantics::Absolute)
    } else {
        None
    }
}

fn resolve(container: Container, parts: Parts, asked: Option<usize>) -> Result<(DraftVocab, Detected)> {
    refuse_masks_in_disguise(&parts)?;
    let said_rows = parts.t2d.as_ref().map(Vec::len).or(parts.target_rows);
    if let (Some(found), Some(expected)) = (said_rows, asked)
        && found != expected
    {
        return Err(advise(
            anyhow::anyhow!("made for V = {found} rows of lm_head, expected {expected}"),
            "build a vocabulary for this model with `draftfast build-vocab`",
        ));
    }
    let target_rows = said_rows
        .or(asked)
        .context("holds ids but not V, the rows of lm_head")
        .hint("say it with `--target-rows V` (248320 for Qwen3.5 to 3.8)")?;
    let (semantics, ids) = ids_of(&parts, target_rows)?;
    let mut token_ids = ids.clone();
    token_ids.sort_unstable();
    let mut notes = Vec::new();
    if !ids.is_sorted() {
        notes
            .push("the ids were not ascending and were put in order: rows stored in the old order misalign".to_owned());
    }
    for (name, other) in others(&parts, target_rows)? {
        if other != ids && !(name == "t2d" && token_ids == other) {
            same_set(name, &other, &token_ids)?;
            notes.push(format!("`{name}` holds the same ids in another order"));
        }
    }
    if parts.d2t.as_ref().is_some_and(|d2t| d2t.len() > 1 && d2t.iter().all(|&offset| offset == 0)) {
        notes.push(format!("the offsets are all zero: the first {} ids, usually a map that was never set", ids.len()));
    }
    let vocab = DraftVocab { target_rows, token_ids, n_repeated: parts.n_repeated };
    vocab.validate()?;
    vocab.validate()?;
    let Parts { arrays, tokenizer_sha256, .. } = parts;
    let form = container.form(semantics);
    Ok((vocab, Detected { form, semantics, arrays, ascending: ids.is_sorted(), tokenizer_sha256, notes }))
}

/// A mask given where ids are expected becomes ids 0 and 1 without a word elsewhere; not here.
fn refuse_masks_in_disguise(parts: &Parts) -> Result<()> {
    for values in [&parts.ids, &parts.bare].into_iter().flatten() {
        let disguised = values.len() > 2 && values.iter().all(|&value| value == 0 || value == 1);
        ensure!(!disguised, "holds {} integers that are all 0 or 1: a mask must be stored as booleans", values.len());
    }
    Ok(())
}

/// The ids in the order of the file, by the part that says them most directly.
fn ids_of(parts: &Parts, target_rows: usize) -> Result<(Semantics, Vec<u32>)> {
    if let Some(ids) = &parts.ids {
        let found = as_absolute(ids, target_rows).map_err(|error| {
            let other = as_offsets(ids, target_rows).is_ok();
            if other { advise(error, "the values would be valid offsets: read them with `--as offset`") } else { error }
        });
        return Ok((Semantics::Absolute, found?));
    }
    if let Some(d2t) = &parts.d2t {
        let found = as_offsets(d2t, target_rows).map_err(|error| {
            let other = as_absolute(d2t, target_rows).is_ok();
            if other { advise(error, "the values would be valid ids: read them with `--as absolute`") } else { error }
        });
        return Ok((Semantics::Offset, found?));
    }
    if let Some(mask) = &parts.t2d {
        return Ok((Semantics::Mask, kept(mask)));
    }
    let bare = parts.bare.as_deref().context("holds no vocabulary")?;
    match (as_absolute(bare, target_rows), as_offsets(bare, target_rows)) {
        (Ok(ids), Err(_)) => Ok((Semantics::Absolute, ids)),
        (Err(_), Ok(ids)) => Ok((Semantics::Offset, ids)),
        (Ok(_), Ok(_)) => {
            Err(advise(anyhow::anyhow!("holds {} integers that may be absolute ids or offsets", bare.len()), SAY_WHICH))
        }
        (Err(absolute), Err(offsets)) => bail!("holds no ids ({absolute}) and no offsets ({offsets})"),
    }
}

/// The ids that the parts say, each in its own order: `nonzero(t2d)`, `d2t + arange`.
fn others(parts: &Parts, target_rows: usize) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let mut others = Vec::new();
    if let Some(d2t) = &parts.d2t {
        others.push(("d2t", as_offsets(d2t, target_rows).context("`d2t`")?));
    }
    if let Some(mask) = &parts.t2d {
        others.push(("t2d", kept(mask)));
    }
    Ok(others)
}

/// # Errors
/// The part `name` keeps other ids.
fn same_set(name: &str, ids: &[u32], sorted: &[u32]) -> Result<()> {
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    if let Some((found, expected)) = ids.iter().zip(sorted).find(|(found, expected)| found != expected) {
        bail!("its parts disagree: `{name}` keeps id {found} where another part keeps {expected}");
    }
    ensure!(ids.len() == sorted.len(), "its parts disagree: `{name}` keeps {} ids, not {}", ids.len(), sorted.len());
    Ok(())
}

fn kept(mask: &[bool]) -> Vec<u32> {
    (0u32..).zip(mask).filter(|(_, kept)| **kept).map(|(id, _)| id).collect()
}

fn as_absolute(ids: &[i64], target_rows: usize) -> Result<Vec<u32>> {
    distinct_ids(ids.iter().copied(), target_rows)
}

fn as_offsets(offsets: &[i64], target_rows: usize) -> Result<Vec<u32>> {
    distinct_ids(offsets.iter().zip(0i64..).map(|(offset, row)| offset.saturating_add(row)), target_rows)
}

/// # Errors
/// An id is out of range or stands twice.
fn distinct_ids(ids: impl Iterator<Item = i64>, target_rows: usize) -> Result<Vec<u32>> {
    let mut seen = vec![false; super::check_target_rows(target_rows)?];
    let mut distinct = Vec::new();
    for (row, id) in ids.enumerate() {
        let index = usize::try_from(id).ok().filter(|&id| id < target_rows);
        let index = index.with_context(|| format!("row {row} means id {id}, expected 0 to {}", target_rows - 1))?;
        ensure!(!std::mem::replace(&mut seen[index], true), "row {row} means id {id}, which stands there already");
        distinct.push(u32::try_from(id)?);
    }
    Ok(distinct)
}
