//! V, the rows of `lm_head`, for a tokenizer: from the config.json of its model folder.

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::check_target_rows;
use crate::{error::Hint, input::read_file};

/// A config is a few kilobytes.
const MAX_CONFIG_BYTES: u64 = 64 << 20;

/// V: what was said, or `vocab_size` of the config.json beside the tokenizer.
///
/// # Errors
/// Neither is there, or config.json is broken.
pub fn target_rows(tokenizer: &Path, said: Option<usize>) -> Result<usize> {
    if let Some(said) = said {
        return check_target_rows(said);
    }
    let config = tokenizer.with_file_name("config.json");
    let missing =
        || format!("`{}`: V, the rows of lm_head, is not known (no config.json beside it)", tokenizer.display());
    let bytes = match read_file(&config, MAX_CONFIG_BYTES) {
        Ok(bytes) => bytes,
        Err(_) => {
            return Err(anyhow::anyhow!(missing())).hint("say it with `--target-rows V` (248320 for Qwen3.5 to 3.8)");
        }
    };
    let say = || format!("`{}`", config.display());
    let config: Value = serde_json::from_slice(&bytes).context("not JSON").with_context(say)?;
    let found = config.pointer("/text_config/vocab_size").or_else(|| config.get("vocab_size"));
    found
        .and_then(Value::as_u64)
        .and_then(|rows| usize::try_from(rows).ok())
        .context("has no `vocab_size`")
        .and_then(check_target_rows)
        .with_context(say)
        .hint("say it with `--target-rows V`")
}
