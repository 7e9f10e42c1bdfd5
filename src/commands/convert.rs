//! `draftfast convert`: a vocabulary file in another form.

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    cli::convert::{Convert, Reading},
    output::write_file,
    report::Terminal,
    vocab::{
        DraftVocab,
        forms::{self, Detected},
    },
};

/// # Errors
/// The input is no vocabulary or ambiguous, the form cannot hold it, or the output exists.
pub fn run(args: &Convert, terminal: &Terminal) -> Result<()> {
    let (vocab, detected) = read(&args.input, &args.reading, terminal)?;
    std::fs::create_dir_all(&args.output)
        .with_context(|| format!("`{}`: cannot create the folder", args.output.display()))?;
    let mut written = Vec::new();
    for (name, bytes) in forms::encode(args.form, &vocab, detected.tokenizer_sha256.as_deref())? {
        let path = args.output.join(name);
        write_file(&path, &bytes, args.force)?;
        written.push(path);
    }
    if terminal.is_json() {
        return terminal.json(&json!({
            "files": written, "n_kept": vocab.token_ids.len(), "n_repeated": vocab.n_repeated,
            "target_rows": vocab.target_rows, "vocab_sha256": vocab.sha256(), "detected": detected.semantics.to_string(),
        }));
    }
    written.iter().try_for_each(|path| terminal.data(path.display().to_string()))
}

/// Reads a vocabulary and says what it was taken for.
pub(super) fn read(path: &std::path::Path, reading: &Reading, terminal: &Terminal) -> Result<(DraftVocab, Detected)> {
    let (vocab, detected) = forms::read_as(path, reading.target_rows, reading.meaning.map(Into::into))?;
    terminal.say(format!(
        "`{}`: {} ({}), {} of {} rows kept, read as {}",
        path.display(),
        detected.form,
        detected.arrays.join(", "),
        vocab.token_ids.len(),
        vocab.target_rows,
        detected.semantics,
    ));
    detected.notes.iter().for_each(|note| terminal.warn(format!("`{}`: {note}", path.display())));
    Ok((vocab, detected))
}
