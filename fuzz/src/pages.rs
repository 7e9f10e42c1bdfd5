//! What `report` and `diff` make of the records of a sidecar that came from anywhere.

use std::{fs, sync::LazyLock};

use draftfast::{
    compare::{Side, compare},
    plan::PLAN_NAME,
    report,
    sidecar::{MANIFEST_NAME, Manifest},
    vocab::{DraftVocab, build::RECORD},
};

use crate::{
    scratch::{Scratch, parts},
    weights::tiny_sidecar,
};

/// A plan, the vocabulary's record and a manifest, beside a sound drafter; what is empty is not there.
pub fn report_of(data: &[u8]) {
    static SCRATCH: LazyLock<(Scratch, Vec<u8>)> = LazyLock::new(|| {
        let manifest = fs::read(tiny_sidecar().1.join(MANIFEST_NAME)).expect("the tiny sidecar has a manifest");
        (Scratch::new("report"), manifest)
    });
    let (scratch, sound) = &*SCRATCH;
    let [plan, record, manifest] = parts(data);
    for (name, bytes) in [(PLAN_NAME, plan), (RECORD, record)] {
        let path = scratch.write(name, bytes);
        if bytes.is_empty() {
            fs::remove_file(path).expect("the scratch folder is writable");
        }
    }
    let vocab = DraftVocab::new(100, (0..33).collect()).expect("the ids are valid");
    if let Ok(side) = Side::open(scratch.dir(), vocab) {
        let found = compare(&side, &side, &[]).expect("a side has the rows of itself");
        let _ = report::comparison::lines(&found);
    }
    let manifest = if manifest.is_empty() { sound } else { manifest };
    let Ok(manifest) = serde_json::from_slice::<Manifest>(manifest) else { return };
    for (name, bytes) in report::files(scratch.dir(), &manifest).into_iter().flatten() {
        let text = String::from_utf8(bytes).expect("a report is text");
        assert!(!name.ends_with(".svg") || text.trim_end().ends_with("</svg>"), "{name}");
    }
    if let Ok(page) = report::html(scratch.dir(), &manifest) {
        assert!(!page.contains("<script"), "{page}");
    }
}
