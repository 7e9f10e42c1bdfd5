//! A loaded tokenizer.json.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result, anyhow, ensure};
use serde_json::Value;

use super::{
    classes,
    engine::{Engine, EngineChoice},
    fast::{Fast, Tally},
    reference::Reference,
    spec::{AddedToken, Spec},
};
use crate::{
    error::Hint,
    input::{read_at_most, read_file},
    output::sha256_hex,
};

/// The largest published tokenizer.json has 33 MB.
const MAX_TOKENIZER_BYTES: u64 = 512 << 20;

/// Ids from this on are taken for a damaged file: every thread counts in a vector of this length, and the largest
/// published vocabularies have a million tokens.
const MAX_ID: u32 = 1 << 22;

/// Texts that a thread takes at once.
const N_TAKEN: usize = 16;

/// A loaded tokenizer: its tokens, and the engines that count with it.
pub struct Tokenizer {
    path: PathBuf,
    json: Vec<u8>,
    sha256: String,
    tokens: Tokens,
    added: BTreeMap<u32, AddedToken>,
    spelling: Spelling,
    fast: Result<Arc<Fast>, String>,
    reference: OnceLock<Result<Reference, String>>,
}

/// The strings of the base vocabulary by id, end to end.
struct Tokens {
    text: String,
    /// Start and end in `text`; an id without a token has `start > end`.
    spans: Vec<(u32, u32)>,
}

/// How a token string spells its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spelling {
    /// GPT-2's printable character for each byte.
    ByteLevel,
    /// `<0xAB>` for single bytes, `▁` for a space.
    ByteFallback,
    /// As it stands.
    Plain,
}

impl Tokenizer {
    /// Opens a tokenizer.json, a tokenizer.json.gz, or the one in a model folder.
    ///
    /// # Errors
    /// The file is missing, damaged, or no tokenizer.
    pub fn open(path: &Path) -> Result<Self> {
        let path = find(path)?;
        let say = || format!("`{}`", path.display());
        let json = read(&path).with_context(say).hint("give a model folder, or its tokenizer.json")?;
        Self::from_json(path.clone(), json).with_context(say)
    }

    fn from_json(path: PathBuf, json: Vec<u8>) -> Result<Self> {
        let spec: Spec<'_> = serde_json::from_slice(&json).context("not a tokenizer.json")?;
        // Three things of about the same length that do not need each other.
        let ((tokens, sha256), fast) = rayon::join(
            || {
                rayon::join(
                    || base_tokens(&spec, &json),
                    || {
                        classes::prepare();
                        sha256_hex(&json)
                    },
                )
            },
            || Fast::new(&spec).map(Arc::new),
        );
        let (tokens, loaded) = tokens?;
        let reference = loaded.map_or_else(OnceLock::new, |loaded| OnceLock::from(Ok(loaded)));
        let spelling = Spelling::of(&spec);
        let added = spec.added_tokens.into_iter().map(|token| (token.id, token)).collect::<BTreeMap<_, _>>();
        ensure!(added.keys().all(|id| *id < MAX_ID), "an added token has an id of {MAX_ID} or more");
        Ok(Self { path, sha256, tokens, added, spelling, fast, reference, json })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The sha256 of the uncompressed file, in hexadecimal.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// One more than the largest id, added tokens included. The model may have more rows.
    pub fn n_ids(&self) -> usize {
        self.tokens.spans.len().max(self.added.last_key_value().map_or(0, |(id, _)| *id as usize + 1))
    }

    /// The added tokens in the order of their ids.
    pub fn added(&self) -> impl Iterator<Item = (u32, &AddedToken)> {
        self.added.iter().map(|(id, token)| (*id, token))
    }

    /// The token as the file spells it.
    pub fn token(&self, id: u32) -> Option<&str> {
        self.added.get(&id).map(|token| token.content.as_str()).or_else(|| self.tokens.get(id))
    }

    /// The bytes that the token stands for in the text; not always whole UTF-8. `None` for an id without a token.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        if let Some(added) = self.added.get(&id) {
            return Some(added.content.clone().into_bytes());
        }
        Some(self.spelling.bytes(self.tokens.get(id)?))
    }

    /// The ids of a text, added tokens found in it, nothing put around it.
    ///
    /// # Errors
    /// The tokenizer is left to the `tokenizers` crate, and that refuses the file or the text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self.fast() {
            Ok(fast) => Ok(fast.encode(text)),
            Err(_) => self.reference()?.encode(text),
        }
    }

    /// Counts texts that are in memory, each by itself, on one thread.
    ///
    /// # Errors
    /// The reference is asked for or needed, and refuses the tokenizer or a text.
    pub fn count_texts(&self, texts: &[&str], choice: EngineChoice) -> Result<Vec<u64>> {
        let engine = Engine::of(self, choice)?;
        let mut tally = Tally::new(self.n_ids());
        texts.iter().try_for_each(|text| engine.count(text, &mut tally))?;
        engine.fold(&mut tally);
        Ok(tally.into_counts())
    }

    /// As [`Tokenizer::count_texts`], on several threads.
    ///
    /// # Errors
    /// As [`Tokenizer::count_texts`].
    pub fn count_texts_on(&self, texts: &[&str], choice: EngineChoice, n_threads: usize) -> Result<Vec<u64>> {
        // Threads take the next few texts as they come, so that none waits for a long one of another.
        let next = AtomicUsize::new(0);
        let engine = Engine::of(self, choice)?;
        let work = || -> Result<Tally> {
            let mut tally = Tally::new(self.n_ids());
            while let Some(texts) = texts.get(next.fetch_add(N_TAKEN, Ordering::Relaxed)..) {
                let texts = &texts[..texts.len().min(N_TAKEN)];
                if texts.is_empty() {
                    break;
                }
                texts.iter().try_for_each(|text| engine.count(text, &mut tally))?;
            }
            Ok(tally)
        };
        // The calling thread is one of them: its memory has been in use.
        let tallies = std::thread::scope(|scope| {
            let workers: Vec<_> = (1..n_threads).map(|_| scope.spawn(work)).collect();
            let others = workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))));
            std::iter::once(work()).chain(others).collect::<Result<Vec<_>>>()
        })?;
        Ok(engine.fold_all(tallies))
    }

    /// The name of the split that the fast engine knows this tokenizer by, or why it is left to the reference.
    ///
    /// # Errors
    /// The reason.
    pub fn fast_name(&self) -> Result<&'static str, &str> {
        self.fast().map(|fast| fast.name())
    }

    /// The fast engine, or why this tokenizer is left to the reference.
    pub(super) fn fast(&self) -> Result<&Arc<Fast>, &str> {
        self.fast.as_ref().map_err(String::as_str)
    }

    /// The `tokenizers` crate's own view of the file, loaded on first use.
    ///
    /// # Errors
    /// The crate refuses the file.
    pub(super) fn reference(&self) -> Result<&Reference> {
        let load = || Reference::new(&self.json).map_err(|error| format!("{error:#}"));
        self.reference
            .get_or_init(load)
            .as_ref()
            .map_err(|error| anyhow!("`{}`: the tokenizers crate refuses the file: {error}", self.path.display()))
    }
}

/// The base vocabulary; for models other than BPE as the reference sees it, which is loaded then.
fn base_tokens(spec: &Spec<'_>, json: &[u8]) -> Result<(Tokens, Option<Reference>)> {
    if spec.model.kind.as_deref() == Some("BPE") && !spec.model.vocab.0.is_empty() {
        return Ok((Tokens::new(spec.model.vocab.0.iter().map(|(token, id)| (token.as_ref(), *id)))?, None));
    }
    let loaded = Reference::new(json).context("the tokenizers crate refuses the file")?;
    let vocab: Vec<(String, u32)> = loaded.vocab().collect();
    Ok((Tokens::new(vocab.iter().map(|(token, id)| (token.as_str(), *id)))?, Some(loaded)))
}

impl Tokens {
    fn new<'t>(vocab: impl Iterator<Item = (&'t str, u32)>) -> Result<Self> {
        let mut tokens = Self { text: String::with_capacity(1 << 21), spans: Vec::with_capacity(1 << 18) };
        for (token, id) in vocab {
            ensure!(id < MAX_ID, "token `{token}` has id {id}, expected less than {MAX_ID}");
            let id = id as usize;
            if id >= tokens.spans.len() {
                tokens.spans.resize(id + 1, (1, 0));
            }
            let start = u32::try_from(tokens.text.len()).context("the tokens are longer than 4 GiB together")?;
            tokens.text.push_str(token);
            tokens.spans[id] = (start, start + token.len() as u32);
        }
        Ok(tokens)
    }

    fn get(&self, id: u32) -> Option<&str> {
        let (start, end) = *self.spans.get(id as usize)?;
        self.text.get(start as usize..end as usize)
    }
}

impl Spelling {
    fn of(spec: &Spec<'_>) -> Self {
        if mentions(&spec.pre_tokenizer, "ByteLevel") || mentions(&spec.decoder, "ByteLevel") {
            Self::ByteLevel
        } else if spec.model.byte_fallback || mentions(&spec.decoder, "Metaspace") {
            Self::ByteFallback
        } else {
            Self::Plain
        }
    }

    fn bytes(self, token: &str) -> Vec<u8> {
        match self {
            Self::Plain => token.as_bytes().to_vec(),
            Self::ByteLevel => token.chars().map(byte_of_char).collect::<Option<_>>().unwrap_or_else(|| token.into()),
            Self::ByteFallback => {
                let byte = token.strip_prefix("<0x").and_then(|t| t.strip_suffix('>'));
                match byte.filter(|hex| hex.len() == 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
                    Some(byte) => vec![byte],
                    None => token.replace('▁', " ").into_bytes(),
                }
            }
        }
    }
}

/// The byte that GPT-2's byte-level alphabet writes as `c`: printable Latin-1 stands for itself, the other 68 bytes
/// are the characters from U+0100 on.
pub(super) fn byte_of_char(c: char) -> Option<u8> {
    const SHIFTED: [(u32, u32, u32); 3] = [(0x100, 0x121, 0x00), (0x121, 0x143, 0x7f), (0x143, 0x144, 0xad)];
    let code = c as u32;
    if matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) {
        return u8::try_from(code).ok();
    }
    let (first, _, byte) = SHIFTED.into_iter().find(|(first, end, _)| (*first..*end).contains(&code))?;
    u8::try_from(code - first + byte).ok()
}

/// Whether a component of this type stands anywhere in a tokenizer.json section.
fn mentions(section: &Value, kind: &str) -> bool {
    match section {
        Value::Object(members) => {
            members.get("type").and_then(Value::as_str) == Some(kind) || members.values().any(|v| mentions(v, kind))
        }
        Value::Array(items) => items.iter().any(|item| mentions(item, kind)),
        _ => false,
    }
}

fn find(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let candidates = ["tokenizer.json", "tokenizer.json.gz"].map(|name| path.join(name));
    let found = candidates.into_iter().find(|file| file.is_file());
    found.with_context(|| format!("`{}`: the folder has no tokenizer.json", path.display())).hint(
        "give a folder with a tokenizer.json, or the file itself; vocab.json and merges.txt alone do not say how text is split",
    )
}

fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = read_file(path, MAX_TOKENIZER_BYTES)?;
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let decoder = flate2::read::MultiGzDecoder::new(bytes.as_slice());
    read_at_most(decoder, MAX_TOKENIZER_BYTES).context("truncated or damaged gzip")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_byte_alphabet_is_a_bijection() {
        let bytes: std::collections::BTreeSet<u8> =
            (0..0x200).filter_map(char::from_u32).filter_map(byte_of_char).collect();
        assert_eq!(bytes.len(), 256);
        assert_eq!(byte_of_char('Ġ'), Some(b' '));
        assert_eq!(byte_of_char('Ċ'), Some(b'\n'));
        assert_eq!(byte_of_char('ġ'), Some(0x7f));
        assert_eq!(byte_of_char('Ń'), Some(0xad));
    }
}
