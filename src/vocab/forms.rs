//! The files that runtimes and trainers read a draft vocabulary from, derived from the canonical ids.
//!
//! Every form lists each kept id once: repeated rows belong to the draft head, and only `draft_vocab.safetensors`
//! and `d2t.gguf` remember how many there are (in their metadata). Who reads what: `docs/vocabulary.md`.

use std::{fmt, path::Path, str::FromStr};

use anyhow::{Result, bail, ensure};

use super::{
    DraftVocab, npy, recognise,
    torch_pt::{self, Array},
};
use crate::{
    error::advise,
    gguf::{self, TensorInfo},
};

/// A file form of a draft vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Form {
    /// `mask.pt`: bool\[V\] tensor; the seed recipe.
    MaskPt,
    /// `ids.pt`: int64\[N\] absolute ids, ascending; SGLang `--speculative-token-map`, FR-Spec.
    IdsPt,
    /// `d2t.npy` int64\[N\] offsets and `t2d.npy` bool\[V\]; vllm-project/speculators.
    Npy,
    /// `vocab_mapping.pt`: dict of `d2t` int64\[N\] offsets and `t2d` bool\[V\]; SpecForge, AngelSlim, verl.
    MappingPt,
    /// `d2t.pt`: int64\[N\] offsets; NVIDIA Model-Optimizer.
    D2tPt,
    /// `draft_vocab.safetensors`: `d2t` I64 offsets, `t2d` BOOL, `token_ids` I64; EAGLE-3 checkpoints, vLLM, and ours.
    Safetensors,
    /// `ids.txt`: one id a line, ascending, nothing else; MiaAI-Lab recipes.
    IdsTxt,
    /// `ids.json`: a list of ids; scripts.
    IdsJson,
    /// `d2t.gguf`: `d2t` I64\[N\] absolute ids; llama.cpp.
    Gguf,
}

impl Form {
    /// Every form, in the order of the table in `docs/vocabulary.md`.
    pub const ALL: [Self; 9] = [
        Self::MaskPt,
        Self::IdsPt,
        Self::Npy,
        Self::MappingPt,
        Self::D2tPt,
        Self::Safetensors,
        Self::IdsTxt,
        Self::IdsJson,
        Self::Gguf,
    ];
    /// What is written when nothing is asked for.
    pub const DEFAULT: [Self; 2] = [Self::Safetensors, Self::MaskPt];

    /// The name of its file (of `npy`, the first of two), which is also its name on the command line.
    pub fn file_name(self) -> &'static str {
        match self {
            Self::MaskPt => "mask.pt",
            Self::IdsPt => "ids.pt",
            Self::Npy => "d2t.npy",
            Self::MappingPt => "vocab_mapping.pt",
            Self::D2tPt => "d2t.pt",
            Self::Safetensors => "draft_vocab.safetensors",
            Self::IdsTxt => "ids.txt",
            Self::IdsJson => "ids.json",
            Self::Gguf => "d2t.gguf",
        }
    }

    fn has_offsets(self) -> bool {
        matches!(self, Self::Npy | Self::MappingPt | Self::D2tPt | Self::Safetensors)
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.file_name())
    }
}

impl FromStr for Form {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> Result<Self> {
        let short = match name {
            "mask" => Some(Self::MaskPt),
            "npy" | "t2d.npy" => Some(Self::Npy),
            "safetensors" => Some(Self::Safetensors),
            "txt" => Some(Self::IdsTxt),
            "json" => Some(Self::IdsJson),
            "gguf" => Some(Self::Gguf),
            _ => Self::ALL.into_iter().find(|form| form.file_name() == name),
        };
        match short {
            Some(form) => Ok(form),
            None => {
                let names: Vec<_> = Self::ALL.iter().map(|form| form.file_name()).collect();
                bail!("`{name}` is no form of a draft vocabulary, expected one of {}", names.join(", "))
            }
        }
    }
}

/// What the numbers in a file mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Semantics {
    /// One boolean for each row of `lm_head`.
    Mask,
    /// Target ids.
    Absolute,
    /// Target id minus draft id.
    Offset,
}

impl fmt::Display for Semantics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Mask => "mask",
            Self::Absolute => "absolute ids",
            Self::Offset => "offsets",
        })
    }
}

/// What a reader found out about a file, to be shown to the person who gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Detected {
    /// The form it is, or the nearest one.
    pub form: Form,
    /// What its numbers mean; of a file with several arrays, of the one that was taken (all of them agree).
    pub semantics: Semantics,
    /// The arrays in it, for example "`d2t` int64\[64000\]".
    pub arrays: Vec<String>,
    /// Whether the ids stood in ascending order (they are put into it).
    pub ascending: bool,
    /// sha256 of the tokenizer it was made for, where the file says so.
    pub tokenizer_sha256: Option<String>,
    /// Things to know: reordered ids, a map that looks unset.
    pub notes: Vec<String>,
}

impl Detected {
    /// # Errors
    /// The file says that it was made for another tokenizer.
    pub fn check_tokenizer(&self, file: &Path, tokenizer_sha256: &str) -> Result<()> {
        match &self.tokenizer_sha256 {
            Some(found) if found != tokenizer_sha256 => Err(advise(
                anyhow::anyhow!(
                    "`{}`: made for the tokenizer with sha256 `{found}`, expected `{tokenizer_sha256}`",
                    file.display()
                ),
                "build a vocabulary from this model's own tokenizer with `draftfast build-vocab`",
            )),
            _ => Ok(()),
        }
    }
}

/// Reads a vocabulary in any of the forms, or from a folder that holds `draft_vocab.safetensors`.
///
/// `target_rows` (V) is needed by forms that do not say it (ids and bare offsets) and checked against those that do.
///
/// # Errors
/// Not a known form, semantics that cannot be told apart, ids out of range or repeated, a mask and offsets that
/// disagree, another V.
pub fn read(path: &Path, target_rows: Option<usize>) -> Result<(DraftVocab, Detected)> {
    read_as(path, target_rows, None)
}

/// As [`read`], with the semantics of a bare array of integers said by the caller.
///
/// # Errors
/// As [`read`].
pub fn read_as(
    path: &Path,
    target_rows: Option<usize>,
    semantics: Option<Semantics>,
) -> Result<(DraftVocab, Detected)> {
    recognise::read(path, target_rows, semantics)
}

/// The files of a form: names and bytes, the same bytes every time.
///
/// # Errors
/// The vocabulary is not valid, or keeps every row where the form stores offsets: consumers take an identity map for a
/// reduced vocabulary and slow down.
pub fn encode(form: Form, vocab: &DraftVocab, tokenizer_sha256: Option<&str>) -> Result<Vec<(&'static str, Vec<u8>)>> {
    vocab.validate()?;
    ensure!(
        !form.has_offsets() || vocab.token_ids.len() < vocab.target_rows,
        "`{form}` cannot hold a vocabulary of all {} rows: an identity map is not a reduced vocabulary",
        vocab.target_rows
    );
    let int = |values: Vec<i64>| Array::Int(values, "int64");
    let ids = || vocab.token_ids.iter().map(|&id| i64::from(id)).collect::<Vec<_>>();
    let (offsets, mask) = (|| int(vocab.offsets()), || Array::Bool(vocab.mask()));
    let name = form.file_name();
    Ok(match form {
        Form::MaskPt => vec![(name, torch_pt::encode_tensor(&mask()))],
        Form::IdsPt => vec![(name, torch_pt::encode_tensor(&int(ids())))],
        Form::Npy => vec![(name, npy::encode(&offsets())), ("t2d.npy", npy::encode(&mask()))],
        Form::MappingPt => vec![(name, torch_pt::encode_dict(&[("d2t", offsets()), ("t2d", mask())]))],
        Form::D2tPt => vec![(name, torch_pt::encode_tensor(&offsets()))],
        Form::Safetensors => vec![(name, encode_safetensors(vocab, tokenizer_sha256))],
        Form::IdsTxt => {
            let lines: Vec<_> = vocab.token_ids.iter().map(|id| format!("{id}\n")).collect();
            vec![(name, lines.concat().into_bytes())]
        }
        Form::IdsJson => {
            let items: Vec<_> = vocab.token_ids.iter().map(u32::to_string).collect();
            vec![(name, format!("[{}]\n", items.join(", ")).into_bytes())]
        }
        Form::Gguf => vec![(name, encode_gguf(vocab, tokenizer_sha256))],
    })
}

/// The ids under the name and with the meaning that `export --layout gguf` gives them.
fn encode_gguf(vocab: &DraftVocab, tokenizer_sha256: Option<&str>) -> Vec<u8> {
    let sha256 = vocab.sha256();
    let mut texts =
        vec![("draftfast.vocabulary_sha256", sha256.as_str()), ("general.architecture", "draftfast-vocabulary")];
    texts.extend(tokenizer_sha256.map(|sha256| ("draftfast.tokenizer_sha256", sha256)));
    let numbers =
        [("draftfast.n_repeated", vocab.n_repeated as u32), ("draftfast.target_rows", vocab.target_rows as u32)];
    let n = vocab.token_ids.len();
    let d2t = TensorInfo { name: "d2t".to_owned(), dimensions: vec![n as u64], ggml_type: gguf::I64 };
    let mut bytes = gguf::header(&texts, &numbers, &[d2t], |_| 8 * n);
    bytes.extend(vocab.token_ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(gguf::ALIGNMENT), 0);
    bytes
}

/// Keys are sorted and the data lie in the order of the keys' alignment: I64 before BOOL, as the format wants it.
fn encode_safetensors(vocab: &DraftVocab, tokenizer_sha256: Option<&str>) -> Vec<u8> {
    let (n, v) = (vocab.token_ids.len(), vocab.target_rows);
    let mut metadata = std::collections::BTreeMap::from([
        ("draftfast.format", "1".to_owned()),
        ("draftfast.n_repeated", vocab.n_repeated.to_string()),
        ("draftfast.target_rows", v.to_string()),
        ("draftfast.vocab_sha256", vocab.sha256()),
        ("format", "pt".to_owned()),
    ]);
    if let Some(sha256) = tokenizer_sha256 {
        metadata.insert("draftfast.tokenizer_sha256", sha256.to_owned());
    }
    let header = serde_json::json!({
        "__metadata__": metadata,
        "d2t": { "dtype": "I64", "shape": [n], "data_offsets": [0, 8 * n] },
        "t2d": { "dtype": "BOOL", "shape": [v], "data_offsets": [16 * n, 16 * n + v] },
        "token_ids": { "dtype": "I64", "shape": [n], "data_offsets": [8 * n, 16 * n] },
    });
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(&header);
    bytes.extend(vocab.offsets().iter().flat_map(|offset| offset.to_le_bytes()));
    bytes.extend(vocab.token_ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()));
    bytes.extend(vocab.mask().iter().map(|&kept| u8::from(kept)));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_forms_hold_ids_and_nothing_else() {
        let vocab = DraftVocab::new(10, vec![1, 2, 9]).unwrap();
        assert_eq!(encode(Form::IdsTxt, &vocab, None).unwrap(), [("ids.txt", b"1\n2\n9\n".to_vec())]);
        assert_eq!(encode(Form::IdsJson, &vocab, None).unwrap(), [("ids.json", b"[1, 2, 9]\n".to_vec())]);
    }

    #[test]
    fn the_safetensors_bytes_are_pinned() {
        let vocab = DraftVocab::new(4, vec![1, 3]).unwrap();
        let bytes = &encode(Form::Safetensors, &vocab, Some("ab")).unwrap()[0].1;
        let n_header_bytes = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = std::str::from_utf8(&bytes[8..8 + n_header_bytes]).unwrap().trim_end();
        // V, repeated rows, ids, each as a little-endian u64: the definition of the digest.
        let digest_input: Vec<u8> = [4u64, 0, 1, 3].iter().flat_map(|value| value.to_le_bytes()).collect();
        let digest = crate::output::sha256_hex(&digest_input);
        let expected = [
            r#"{"__metadata__":{"draftfast.format":"1","draftfast.n_repeated":"0","draftfast.target_rows":"4","#,
            r#""draftfast.tokenizer_sha256":"ab","draftfast.vocab_sha256":""#,
            digest.as_str(),
            r#"","format":"pt"},"d2t":{"data_offsets":[0,16],"dtype":"I64","shape":[2]},"#,
            r#""t2d":{"data_offsets":[32,36],"dtype":"BOOL","shape":[4]},"#,
            r#""token_ids":{"data_offsets":[16,32],"dtype":"I64","shape":[2]}}"#,
        ]
        .concat();
        assert_eq!(header, expected);
        let data: Vec<u8> = [1i64, 2, 1, 3].iter().flat_map(|value| value.to_le_bytes()).chain([0, 1, 0, 1]).collect();
        assert_eq!(&bytes[8 + n_header_bytes..], data);
    }

    #[test]
    fn a_full_vocabulary_has_no_offset_form() {
        let vocab = DraftVocab::new(3, vec![0, 1, 2]).unwrap();
        assert!(encode(Form::Safetensors, &vocab, None).unwrap_err().to_string().contains("identity map"));
        assert!(encode(Form::MaskPt, &vocab, None).is_ok());
    }

    #[test]
    fn forms_are_named_by_their_files() {
        for form in Form::ALL {
            assert_eq!(form.file_name().parse::<Form>().unwrap(), form);
        }
        assert!("d2t".parse::<Form>().unwrap_err().to_string().contains("vocab_mapping.pt"));
    }
}
