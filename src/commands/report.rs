//! `draftfast report`: a sidecar's figures to REPORT.md and pictures, or to one HTML page.

use std::collections::BTreeMap;

use anyhow::Result;
use serde_json::json;

use crate::{
    checksum::{self, LIST_NAME},
    cli::report::Report,
    output::{sha256_hex, write_file},
    report::{self, Terminal},
    sidecar::Sidecar,
};

/// # Errors
/// DIR is no sidecar, or a file cannot be written.
pub fn run(args: &Report, terminal: &Terminal) -> Result<()> {
    let sidecar = Sidecar::open(&args.dir)?;
    if let Some(page) = &args.html {
        write_file(page, report::html(&args.dir, &sidecar.manifest)?.as_bytes(), args.force)?;
        return told(terminal, &[page.display().to_string()]);
    }
    let files = report::files(&args.dir, &sidecar.manifest)?;
    let list = args.dir.join(LIST_NAME);
    let mut digests = BTreeMap::new();
    if list.is_file() {
        digests.extend(checksum::read_list(&list)?.into_iter().map(|file| (file.name, file.sha256)));
    } else {
        terminal.warn(format!("`{}` is missing: no checksum is written", list.display()));
    }
    for (name, bytes) in &files {
        write_file(&args.dir.join(name), bytes, true)?;
        digests.insert(name.clone(), sha256_hex(bytes));
    }
    if list.is_file() {
        write_file(&list, checksum::format_list(&digests).as_bytes(), true)?;
    }
    told(terminal, &files.iter().map(|(name, _)| args.dir.join(name).display().to_string()).collect::<Vec<_>>())
}

fn told(terminal: &Terminal, written: &[String]) -> Result<()> {
    if terminal.is_json() {
        return terminal.json(&json!({ "written": written }));
    }
    terminal.data(written.join("\n"))
}
