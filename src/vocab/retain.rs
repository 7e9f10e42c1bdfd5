//! The ids that are kept whatever the counts say, each with its reasons: losing one of these silently breaks drafting
//! where a corpus never looked (tool calls, the end of a turn, rare characters).

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::Value;

use super::template;
use crate::{counts::Tokenizer, input::read_text};

/// Why an id is always kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A special token: control tokens, ends of turns.
    Special,
    /// An added token that is not special: `<think>`, `<tool_call>`.
    Added,
    /// It appears in the chat template: role names, tool instructions.
    ChatTemplate,
    /// It ends a generation: `eos_token_id`.
    Eos,
    /// It decodes to a single byte: with all 256 of them any text can be written.
    Byte,
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Special => "special",
            Self::Added => "added",
            Self::ChatTemplate => "chat template",
            Self::Eos => "eos",
            Self::Byte => "byte",
        })
    }
}

/// The always-kept ids and why.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retained {
    reasons: BTreeMap<u32, BTreeSet<Reason>>,
}

impl Retained {
    /// Keeps an id for one more reason.
    pub fn add(&mut self, id: u32, reason: Reason) {
        self.reasons.entry(id).or_default().insert(reason);
    }

    /// The ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.reasons.keys().copied()
    }

    /// Whether the id is always kept.
    pub fn contains(&self, id: u32) -> bool {
        self.reasons.contains_key(&id)
    }

    /// The ids with their reasons.
    pub fn reasons(&self) -> impl Iterator<Item = (u32, &BTreeSet<Reason>)> {
        self.reasons.iter().map(|(id, reasons)| (*id, reasons))
    }

    /// How many ids there are for each reason (an id may have several).
    pub fn tally(&self) -> BTreeMap<Reason, usize> {
        let mut tally = BTreeMap::new();
        for reason in self.reasons.values().flatten() {
            *tally.entry(*reason).or_default() += 1;
        }
        tally
    }
}

/// Collects the always-kept ids of a tokenizer, and of the model folder it lies in: tokenizer_config.json, chat
/// templates, generation_config.json, config.json, each where it is present.
///
/// # Errors
/// One of these files is there and broken.
pub fn retain(tokenizer: &Tokenizer) -> Result<Retained> {
    let mut retained = Retained::default();
    for (id, token) in tokenizer.added() {
        retained.add(id, if token.special { Reason::Special } else { Reason::Added });
    }
    for id in 0..tokenizer.n_ids() as u32 {
        // By decoding, not by id range: where the byte tokens stand differs between tokenizers.
        if tokenizer.token_bytes(id).is_some_and(|bytes| bytes.len() == 1) {
            retained.add(id, Reason::Byte);
        }
    }
    if let Some(folder) = tokenizer.path().parent() {
        let config = read_json(folder, "tokenizer_config.json")?;
        add_configured(&config, &mut retained)?;
        for template in templates(folder, &config)? {
            for literal in template::literals(&template) {
                let ids = tokenizer.encode(&literal).context("the chat template cannot be encoded")?;
                ids.into_iter().for_each(|id| retained.add(id, Reason::ChatTemplate));
            }
        }
        add_eos(folder, &mut retained)?;
    }
    Ok(retained)
}

/// Added tokens that stand only in tokenizer_config.json (Qwen3.5 has seven).
fn add_configured(config: &Value, retained: &mut Retained) -> Result<()> {
    let Some(tokens) = config.get("added_tokens_decoder").and_then(Value::as_object) else { return Ok(()) };
    for (id, token) in tokens {
        let id = id.parse().with_context(|| format!("`tokenizer_config.json`: added token id `{id}` is no number"))?;
        let special = token.get("special").and_then(Value::as_bool).unwrap_or(false);
        retained.add(id, if special { Reason::Special } else { Reason::Added });
    }
    Ok(())
}

/// The chat templates of a model folder: one text, a list of named ones, or files of their own.
fn templates(folder: &Path, config: &Value) -> Result<Vec<String>> {
    let mut templates = Vec::new();
    match config.get("chat_template") {
        Some(Value::String(template)) => templates.push(template.clone()),
        Some(Value::Array(named)) => {
            templates.extend(named.iter().filter_map(|one| one.get("template")?.as_str()).map(str::to_owned));
        }
        _ => {}
    }
    let json = read_json(folder, "chat_template.json")?;
    templates.extend(json.get("chat_template").and_then(Value::as_str).map(str::to_owned));
    let jinja = folder.join("chat_template.jinja");
    if jinja.is_file() {
        templates.push(read_text(&jinja).with_context(|| format!("`{}`", jinja.display()))?);
    }
    Ok(templates)
}

/// `eos_token_id` of generation_config.json and config.json: a number or a list of them.
fn add_eos(folder: &Path, retained: &mut Retained) -> Result<()> {
    for name in ["generation_config.json", "config.json"] {
        let config = read_json(folder, name)?;
        for found in [config.get("eos_token_id"), config.pointer("/text_config/eos_token_id")].into_iter().flatten() {
            let ids = match found {
                Value::Array(ids) => ids.clone(),
                Value::Null => continue,
                id => vec![id.clone()],
            };
            for id in ids {
                match id.as_u64().and_then(|id| u32::try_from(id).ok()) {
                    Some(id) => retained.add(id, Reason::Eos),
                    None => bail!("`{}`: eos_token_id holds `{id}`, expected a token id", folder.join(name).display()),
                }
            }
        }
    }
    Ok(())
}

/// The file as JSON; `null` when there is none.
fn read_json(folder: &Path, name: &str) -> Result<Value> {
    let path = folder.join(name);
    if !path.is_file() {
        return Ok(Value::Null);
    }
    let text = read_text(&path).with_context(|| format!("`{}`", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("`{}`: not JSON", path.display()))
}
