//! Which tokenizers the fast engine knows. A tokenizer is recognised by its exact components; whatever differs in the
//! least goes to the reference, with the reason.

use serde_json::Value;

use super::spec::Spec;

/// How a segment is split into pre-tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// The cl100k family: Qwen, Llama 3, GLM-4.
    Cl100k {
        /// Whether `\p{M}` counts as a letter (Qwen3.5 and later).
        marks_are_letters: bool,
        /// Digits in one pre-token: 1 (Qwen) or 3.
        n_digits: usize,
    },
    /// GPT-4o, gpt-oss, Llama 4.
    O200k,
    /// DeepSeek-V3's three splits, one after the other.
    DeepSeek,
}

/// What the fast engine has to do for a tokenizer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Its name in provenance.
    pub name: &'static str,
    /// The split.
    pub pattern: Pattern,
    /// Whether text is brought to NFC first.
    pub nfc: bool,
    /// Whether a pre-token that is in the vocabulary is a token without merging.
    pub ignore_merges: bool,
}

const P35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const P2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
);
const DEEPSEEK: [&str; 3] = [
    r"\p{N}{1,3}",
    "[一-龥\u{3040}-ゟ゠-ヿ]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        "[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"
    ),
];

/// How the fast engine would count with this tokenizer, or why it cannot.
pub fn recognise(spec: &Spec<'_>) -> Result<Plan, String> {
    let model = &spec.model;
    if model.kind.as_deref() != Some("BPE") {
        return Err(format!("the model is {}, not BPE", model.kind.as_deref().unwrap_or("of no stated type")));
    }
    if model.dropout.is_some_and(|p| p != 0.0) {
        return Err("the model drops merges at random".to_owned());
    }
    let affix = |affix: &Option<String>| affix.as_deref().is_some_and(|a| !a.is_empty());
    if affix(&model.continuing_subword_prefix) || affix(&model.end_of_word_suffix) {
        return Err("the model marks the inside or the end of words".to_owned());
    }
    let nfc = nfc(&spec.normalizer)?;
    let splits = splits(&spec.pre_tokenizer)?;
    let (name, pattern) = match splits.as_slice() {
        [P35] => ("qwen3.5", Pattern::Cl100k { marks_are_letters: true, n_digits: 1 }),
        [P2] => ("qwen2", Pattern::Cl100k { marks_are_letters: false, n_digits: 1 }),
        [CL100K] => ("cl100k", Pattern::Cl100k { marks_are_letters: false, n_digits: 3 }),
        [O200K] => ("o200k", Pattern::O200k),
        splits if *splits == DEEPSEEK => ("deepseek-v3", Pattern::DeepSeek),
        splits => return Err(format!("the split pattern is unknown: `{}`", splits.join("`, `"))),
    };
    Ok(Plan { name, pattern, nfc, ignore_merges: model.ignore_merges })
}

fn nfc(normalizer: &Value) -> Result<bool, String> {
    let kind = normalizer.get("type").and_then(Value::as_str);
    let steps = normalizer.get("normalizers").and_then(Value::as_array);
    match (kind, steps.map(Vec::as_slice)) {
        (None, _) if normalizer.is_null() => Ok(false),
        (Some("NFC"), _) => Ok(true),
        (Some("Sequence"), Some([])) => Ok(false),
        (Some("Sequence"), Some([only])) => nfc(only),
        _ => Err(format!("the normalizer is {}, not NFC", kind.unwrap_or("of no stated type"))),
    }
}

/// The regexes of the splits in order; the last component has to be a ByteLevel that adds nothing of its own.
fn splits(pre_tokenizer: &Value) -> Result<Vec<&str>, String> {
    let unknown = || "the pre-tokenizer is not a sequence of splits and ByteLevel".to_owned();
    let flag = |node: &Value, name: &str| node.get(name).and_then(Value::as_bool);
    let kind = |node: &Value| node.get("type").and_then(Value::as_str).map(str::to_owned);
    let steps = pre_tokenizer.get("pretokenizers").and_then(Value::as_array).ok_or_else(unknown)?;
    let (last, splits) = steps.split_last().ok_or_else(unknown)?;
    let is_plain = flag(last, "add_prefix_space") == Some(false) && flag(last, "use_regex") == Some(false);
    if kind(last).as_deref() != Some("ByteLevel") || !is_plain {
        return Err(unknown());
    }
    let regex = |split: &'_ Value| {
        let behavior = split.get("behavior").and_then(Value::as_str);
        // `Removed` with `invert` keeps the matches alone, which is the same where everything matches.
        let keeps = matches!((behavior, flag(split, "invert")), (Some("Isolated"), Some(false)))
            || (matches!((behavior, flag(split, "invert")), (Some("Removed"), Some(true))) && splits.len() == 1);
        kind(split).as_deref() == Some("Split") && keeps
    };
    if !splits.iter().all(regex) {
        return Err(unknown());
    }
    splits.iter().map(|split| split.pointer("/pattern/Regex").and_then(Value::as_str).ok_or_else(unknown)).collect()
}
