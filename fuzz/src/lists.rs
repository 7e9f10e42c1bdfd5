//! Text and small binary files about other files: checksum lists, git-lfs pointers, counts, what `plan` reads.

use std::{fs, sync::LazyLock};

use draftfast::{
    checksum,
    counts::{Counts, read_tsv, write_tsv},
    plan::{self, Hardware},
    quantize::Activations,
    vocab::mixture,
};

use crate::scratch::Scratch;

static LISTS: LazyLock<Scratch> = LazyLock::new(|| {
    let scratch = Scratch::new("lists");
    scratch.write("a.txt", b"a");
    scratch.write("b", b"b");
    scratch
});

/// A sha256sums.txt: no name may lead out of its folder, and what is listed is written as it was read.
pub fn checksums(data: &[u8]) {
    let list = LISTS.write(checksum::LIST_NAME, data);
    let Ok(expected) = checksum::read_list(&list) else { return };
    let root = LISTS.dir();
    for file in &expected {
        assert!(file.path.starts_with(root) && !file.name.split('/').any(|part| part == ".."), "{}", file.name);
        assert!(file.sha256.len() == 64);
    }
    let digests = expected.into_iter().map(|file| (file.name, file.sha256)).collect();
    let again = LISTS.write("again.txt", checksum::format_list(&digests).as_bytes());
    let read = checksum::read_list(&again).expect("a list that was written is read");
    assert_eq!(
        read.into_iter().map(|file| (file.name, file.sha256)).collect::<std::collections::BTreeMap<_, _>>(),
        digests
    );
}

/// A git-lfs pointer and its real file.
pub fn pointers(data: &[u8]) {
    static DIR: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("pointers"));
    DIR.write("m.bin", b"weights");
    DIR.write("m.bin.pointer", data);
    if let Ok(expected) = checksum::read_pointers(DIR.dir(), None) {
        assert!(expected.iter().all(|file| file.n_bytes.is_some() && file.sha256.len() == 64));
    }
}

/// A counts file, or lines of `id<TAB>count`; merging it with itself doubles it or overflows with an error.
pub fn counts(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(counts) = read_tsv(text, 64)
    {
        assert_eq!(read_tsv(&write_tsv(&counts), 64).expect("lines that were written are read"), counts);
    }
    let Ok(counts) = Counts::from_slice(data) else { return };
    let mut twice = counts.clone();
    if twice.merge(counts.clone()).is_ok() {
        for (one, two) in counts.domains.iter().zip(&twice.domains) {
            assert!(one.counts.iter().zip(&two.counts).all(|(a, b)| 2 * a == *b));
        }
    }
    let path = LISTS.dir().join("counts.safetensors");
    counts.write(&path, true).expect("counts that were read can be written");
    assert_eq!(Counts::read(&path).expect("counts that were written are read"), counts);
}

/// What `plan` and `build-vocab` read: logs, curves, bench reports, hardware and mixture files, activations.
pub fn plan(data: &[u8]) {
    let text = LISTS.write("log.txt", data);
    let mut curves = vec![plan::logs::read_curve(&text), plan::logs::read_vllm_metrics(&text)];
    curves.extend([None, Some(3)].map(|n_drafted| plan::logs::read_sglang_log(&text, n_drafted)));
    for curve in curves.into_iter().flatten() {
        assert!(curve.rates().iter().all(|rate| (0.0..=1.0).contains(rate)));
        assert!(curve.tau(5, 0.9).is_finite());
    }
    if let Ok(curve) = plan::coverage_file::read(&text) {
        assert!((0.0..=1.0).contains(&curve.at(64, 100)));
    }
    let hardware = LISTS.write("machine.toml", data);
    if let Ok(machine) = Hardware::named(hardware.to_str().expect("the scratch path is UTF-8")) {
        assert!(machine.read_us(1e9, machine.nvfp4_efficiency).is_finite());
    }
    if let Ok(gb10) = Hardware::named("gb10") {
        let _ = plan::bench_file::measured(&gb10, &text, 1);
    }
    let _ = mixture::read(&hardware);
    let _ = Activations::open(&text);
    let _ = fs::remove_file(hardware);
}
