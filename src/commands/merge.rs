//! `draftfast merge`: the counts of shards to one counts file.

use std::path::Path;

use anyhow::{Context, Result};

use super::count;
use crate::{
    cli::merge::Merge,
    counts::{Counts, DomainCounts, FileRecord, Tokenizer, read_tsv},
    error::Hint,
    output::{refuse_existing_file, sha256_hex},
    report::Terminal,
};

/// # Errors
/// Counts of different tokenizers, damaged files, or an output that cannot be written.
pub fn run(args: &Merge, terminal: &Terminal) -> Result<()> {
    refuse_existing_file(&args.output, args.force)?;
    let tokenizer = args.tokenizer.as_deref().map(Tokenizer::open).transpose()?;
    let mut sum: Option<Counts> = None;
    for path in &args.inputs {
        let counts = read(path, tokenizer.as_ref(), &args.domain)?;
        let Some(sum) = &mut sum else {
            sum = Some(counts);
            continue;
        };
        let repeated = sum.merge(counts).with_context(|| format!("`{}`", path.display()))?;
        for name in repeated {
            terminal.warn(format!("`{}`: its file `{name}` was counted before, and now counts twice", path.display()));
        }
    }
    let sum = sum.context("no counts were given")?;
    sum.write(&args.output, args.force)?;
    for domain in &sum.domains {
        terminal.say(format!("{}: {} tokens, {} files", domain.domain, domain.n_tokens()?, domain.files.len()));
    }
    if terminal.is_json() {
        return terminal.json(&count::summary(Some(&args.output), &sum)?);
    }
    terminal.data(args.output.display().to_string())
}

fn read(path: &Path, tokenizer: Option<&Tokenizer>, domain: &str) -> Result<Counts> {
    let say = || format!("`{}`", path.display());
    let bytes = crate::input::read_file(path, 4 << 30).with_context(say)?;
    if !is_tsv(&bytes) {
        return match tokenizer {
            Some(tokenizer) => Counts::read_for(path, tokenizer),
            None => Counts::read(path),
        };
    }
    let tokenizer = tokenizer.with_context(|| format!("`{}` holds lines of counts", path.display()));
    let tokenizer = tokenizer.hint("say which tokenizer counted them, with `--tokenizer`")?;
    let text = std::str::from_utf8(&bytes).context("not UTF-8").with_context(say)?;
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let n_bytes = bytes.len() as u64;
    let file = FileRecord { name, sha256: sha256_hex(&bytes), n_bytes, n_documents: 0, n_skipped: 0 };
    let domain = DomainCounts {
        domain: domain.to_owned(),
        counts: read_tsv(text, tokenizer.n_ids()).with_context(say)?,
        texts: "lines of counts".to_owned(),
        files: vec![file],
        ..DomainCounts::default()
    };
    Ok(Counts {
        tokenizer_sha256: tokenizer.sha256().to_owned(),
        n_ids: tokenizer.n_ids(),
        engines: vec!["lines of counts".to_owned()],
        domains: vec![domain],
        warnings: Vec::new(),
    })
}

/// Whether these are lines of `ID<TAB>COUNT`. A counts file begins with the length of its header, whose lowest byte may
/// well be a digit, and then a brace.
fn is_tsv(bytes: &[u8]) -> bool {
    let is_safetensors = bytes.get(8) == Some(&b'{');
    let has_digits = bytes.first().is_some_and(u8::is_ascii_digit) && bytes.contains(&b'\t');
    bytes.is_empty() || bytes.starts_with(b"id\t") || (has_digits && !is_safetensors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counts_file_whose_first_byte_is_a_digit_is_no_tsv() {
        assert!(!is_tsv(b"8\0\0\0\0\0\0\0{\"a\": 1} \t"));
        for text in ["", "id\tcount\n1\t2\n", "7\t1\n", "123456789\t1\n"] {
            assert!(is_tsv(text.as_bytes()), "{text:?}");
        }
        assert!(!is_tsv(b"\x28\xb5\x2f\xfd\t"));
    }
}
