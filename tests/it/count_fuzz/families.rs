//! The splits that the fast engine knows, as published. The fuzz targets read this file too.

const CONTRACTIONS: &str = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

/// Name, split regexes, NFC, ignore_merges: the published components, put together here.
pub fn families() -> Vec<(&'static str, Vec<String>, bool, bool)> {
    let cl100k = |letter: &str, mark: &str, digits: &str| {
        format!(
            r"{CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?{letter}+|\p{{N}}{digits}| ?[^\s\p{{L}}{mark}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )
    };
    let (upper, lower) = (r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]");
    let prefix = r"[^\r\n\p{L}\p{N}]?";
    let o200k = format!(
        r"{prefix}{upper}*{lower}+{CONTRACTIONS}?|{prefix}{upper}+{lower}*{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    );
    let deepseek = [
        r"\p{N}{1,3}".to_owned(),
        "[一-龥\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+".to_owned(),
        "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+".to_owned(),
    ];
    vec![
        ("qwen3.5", vec![cl100k(r"[\p{L}\p{M}]", r"\p{M}", "")], true, false),
        ("qwen2", vec![cl100k(r"\p{L}", "", "")], true, false),
        ("cl100k", vec![cl100k(r"\p{L}", "", "{1,3}")], false, true),
        ("o200k", vec![o200k], false, false),
        ("deepseek-v3", deepseek.to_vec(), false, false),
    ]
}
