//! A byte-level BPE tokenizer of the shape of Qwen3.5's: NFC, the same split pattern, the same added tokens, as many ids
//! as asked for.
//!
//! Merges are first learned from a few paragraphs, then enumerated: letter strings and common Chinese characters, so
//! that any text is tokenized sensibly and any size can be reached.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

/// Qwen3.5's pre-tokenizer.
const SPLIT_PATTERN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Added tokens in id order, and whether each is special.
const ADDED: &[(&str, bool)] = &[
    ("<|endoftext|>", true),
    ("<|im_start|>", true),
    ("<|im_end|>", true),
    ("<|object_ref_start|>", true),
    ("<|object_ref_end|>", true),
    ("<|box_start|>", true),
    ("<|box_end|>", true),
    ("<|quad_start|>", true),
    ("<|quad_end|>", true),
    ("<|vision_start|>", true),
    ("<|vision_end|>", true),
    ("<|vision_pad|>", true),
    ("<|image_pad|>", true),
    ("<|video_pad|>", true),
    ("<tool_call>", false),
    ("</tool_call>", false),
    ("<|fim_prefix|>", false),
    ("<|fim_middle|>", false),
    ("<|fim_suffix|>", false),
    ("<|fim_pad|>", false),
    ("<|repo_name|>", false),
    ("<|file_sep|>", false),
    ("<tool_response>", false),
    ("</tool_response>", false),
    ("<think>", false),
    ("</think>", false),
    ("<|audio_start|>", true),
    ("<|audio_end|>", true),
    ("<tts_pad>", true),
    ("<tts_text_bos>", true),
    ("<tts_text_eod>", true),
    ("<tts_text_bos_single>", true),
    ("<|audio_pad|>", true),
];

/// What merges are learned from: the four domains in a few lines each.
const SAMPLE: &str = include_str!("synth_sample.txt");

/// A chat template with the literals that real ones have.
const CHAT_TEMPLATE: &str = "{%- if tools %}{{ '<|im_start|>system\\nAnswer a call with <tool_call>\\n{\"name\": ...}\\n\
</tool_call>\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}{%- for message in messages %}\
{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}";

/// The files of a tokenizer.
pub(super) struct SynthTokenizer {
    pub tokenizer: Value,
    pub tokenizer_config: Value,
    pub generation_config: Value,
    /// Id of `<|endoftext|>`.
    pub end_of_text: usize,
}

/// Makes a tokenizer with exactly `n_ids` ids, added tokens included.
pub(super) fn make(n_ids: usize) -> SynthTokenizer {
    let n_base = n_ids - ADDED.len();
    let mut bpe = Bpe::new(n_base);
    bpe.learn(SAMPLE);
    bpe.enumerate();
    let id_of = |token: &str| n_base + ADDED.iter().position(|(text, _)| *text == token).unwrap_or(0);
    let describe = |text: &str, special: bool| {
        json!({"content": text, "lstrip": false, "normalized": false, "rstrip": false, "single_word": false,
            "special": special})
    };
    let mut added = Vec::new();
    let mut decoder = Map::new();
    for (text, special) in ADDED {
        decoder.insert(id_of(text).to_string(), describe(text, *special));
        let mut token = describe(text, *special);
        token["id"] = json!(id_of(text));
        added.push(token);
    }
    SynthTokenizer {
        tokenizer: bpe.into_json(&added),
        tokenizer_config: json!({
            "add_prefix_space": false, "added_tokens_decoder": decoder, "bos_token": null,
            "chat_template": CHAT_TEMPLATE, "clean_up_tokenization_spaces": false, "eos_token": "<|im_end|>",
            "model_max_length": 262_144, "pad_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"
        }),
        generation_config: json!({
            "do_sample": true, "eos_token_id": [id_of("<|im_end|>"), id_of("<|endoftext|>")],
            "pad_token_id": id_of("<|endoftext|>"), "temperature": 0.6, "top_k": 20, "top_p": 0.95
        }),
        end_of_text: id_of("<|endoftext|>"),
    }
}

/// A vocabulary under construction, in the alphabet of byte-level BPE.
struct Bpe {
    size: usize,
    tokens: Vec<String>,
    known: BTreeSet<String>,
    merges: Vec<String>,
}

impl Bpe {
    /// The 256 bytes.
    fn new(size: usize) -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        tokens.sort_unstable();
        Self { size, known: tokens.iter().cloned().collect(), tokens, merges: Vec::new() }
    }

    fn is_full(&self) -> bool {
        self.tokens.len() >= self.size
    }

    /// Adds the merge of two tokens, unless it is there or the vocabulary is full; returns the merged token.
    fn merge(&mut self, left: &str, right: &str) -> String {
        let merged = format!("{left}{right}");
        if !self.is_full() && self.known.insert(merged.clone()) {
            self.merges.push(format!("{left} {right}"));
            self.tokens.push(merged.clone());
        }
        merged
    }

    /// Ordinary BPE on the words of `text`; pairs that occur once are not learned, ties go to the smaller pair.
    fn learn(&mut self, text: &str) {
        let mut words: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        for word in split_words(text) {
            let symbols = word.bytes().map(|byte| byte_char(byte).to_string()).collect();
            *words.entry(symbols).or_default() += 1;
        }
        let mut words: Vec<(Vec<String>, usize)> = words.into_iter().collect();
        while !self.is_full() {
            let mut pairs: BTreeMap<(&str, &str), usize> = BTreeMap::new();
            for (symbols, count) in &words {
                for pair in symbols.windows(2) {
                    *pairs.entry((&pair[0], &pair[1])).or_default() += count;
                }
            }
            let best = pairs.into_iter().rev().max_by_key(|(_, count)| *count).filter(|(_, count)| *count > 1);
            let Some(((left, right), _)) = best else { return };
            let (left, right) = (left.to_owned(), right.to_owned());
            let merged = self.merge(&left, &right);
            for (symbols, _) in &mut words {
                join(symbols, &left, &right, &merged);
            }
        }
    }

    /// Fills the rest: two letters, Chinese characters, three letters, four letters, each also after a space.
    fn enumerate(&mut self) {
        let letters: Vec<String> = ('a'..='z').map(String::from).collect();
        let mut words = letters.clone();
        words.push(byte_char(b' ').to_string());
        words = self.append_letters(&words, &letters);
        for character in '\u{4e00}'..='\u{9fa5}' {
            let mut bytes = [0; 4];
            let symbols = character.encode_utf8(&mut bytes).bytes().map(|byte| byte_char(byte).to_string());
            symbols.reduce(|left, right| self.merge(&left, &right));
        }
        while !self.is_full() {
            words = self.append_letters(&words, &letters);
        }
    }

    fn append_letters(&mut self, words: &[String], letters: &[String]) -> Vec<String> {
        let mut longer = Vec::new();
        for word in words {
            if self.is_full() {
                break;
            }
            longer.extend(letters.iter().map(|letter| self.merge(word, letter)));
        }
        longer
    }

    fn into_json(self, added: &[Value]) -> Value {
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false});
        let split = json!({"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated",
            "invert": false});
        let vocab: Map<String, Value> =
            self.tokens.into_iter().enumerate().map(|(id, token)| (token, json!(id))).collect();
        json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": {"type": "NFC"},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
            "post_processor": byte_level, "decoder": byte_level,
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
                "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": self.merges}
        })
    }
}

/// Letter runs with the space before them, and single other characters: no merge learned from these crosses a border
/// of the real split pattern.
fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let space = usize::from(first == ' ');
        let n_letters = rest[space..].find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len() - space);
        let n_bytes = if n_letters == 0 { first.len_utf8() } else { space + n_letters };
        words.push(&rest[..n_bytes]);
        rest = &rest[n_bytes..];
    }
    words
}

fn join(symbols: &mut Vec<String>, left: &str, right: &str, merged: &str) {
    let mut i = 0;
    while i + 1 < symbols.len() {
        if symbols[i] == left && symbols[i + 1] == right {
            symbols[i] = merged.to_owned();
            symbols.remove(i + 1);
        }
        i += 1;
    }
}

/// The printable character that stands for a byte in byte-level BPE (GPT-2): Latin-1's printable ones for themselves,
/// the others from U+0100 on, in order.
fn byte_char(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    if is_printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&other| !is_printable(other)).count() as u32;
    char::from_u32(0x100 + rank).unwrap_or('\u{fffd}')
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    fn load(n_ids: usize) -> Tokenizer {
        Tokenizer::from_bytes(serde_json::to_vec(&make(n_ids).tokenizer).unwrap()).unwrap()
    }

    #[test]
    fn the_tokenizers_crate_reads_it_and_text_survives_a_round_trip() {
        let tokenizer = load(2_293);
        assert_eq!(tokenizer.get_vocab_size(true), 2_293);
        let text = "The 27 drafts aren't kept, 草稿不变。\n\tfn main() { x += 1; }  \u{1f980}";
        let encoding = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(encoding.get_ids(), false).unwrap(), text);
        let words = tokenizer.encode("the tokens of the target", false).unwrap();
        assert!(words.len() <= 8, "learned merges apply: {:?}", words.get_tokens());
    }

    #[test]
    fn the_full_size_is_reached_exactly() {
        let tokenizer = load(248_077);
        assert_eq!(tokenizer.get_vocab_size(true), 248_077);
        assert_eq!(tokenizer.token_to_id("<|audio_pad|>"), Some(248_076));
        let text = "词元 tokens";
        let ids = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), text);
    }

    #[test]
    fn added_tokens_stand_at_the_end() {
        let tokenizer = load(2_293);
        assert_eq!(tokenizer.token_to_id("<|endoftext|>"), Some(2_260));
        assert_eq!(tokenizer.encode("a<|im_end|>", false).unwrap().get_ids().last(), Some(&2_262));
    }

    #[test]
    fn bytes_map_to_the_characters_of_gpt_2() {
        assert_eq!([b' ', b'\n', b'a', 0xad, 0xff].map(byte_char), ['\u{120}', '\u{10a}', 'a', '\u{143}', '\u{ff}']);
    }
}
