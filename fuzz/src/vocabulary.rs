//! Draft vocabularies in every form: `.pt` (zip and pickle), `.npy`, safetensors, JSON, text.

use std::sync::LazyLock;

use draftfast::vocab::forms::{self, Form, Semantics};

use crate::scratch::Scratch;

static SCRATCH: LazyLock<Scratch> = LazyLock::new(|| Scratch::new("vocabulary"));

/// Target rows of the vocabularies of the seeds.
pub const TARGET_ROWS: usize = 100;

/// A whole `.pt` file.
pub fn pt(data: &[u8]) {
    read("mask.pt", data);
}

/// The pickle of a `.pt` file, in a zip that is sound.
pub fn pickle(data: &[u8]) {
    let numbers: Vec<u8> = (0..33_i64).flat_map(|n| (3 * n).to_le_bytes()).collect();
    let members = [("archive/data.pkl", data), ("archive/byteorder", b"little"), ("archive/data/0", &numbers)];
    read("ids.pt", &zip(&members));
}

/// An `.npy` file.
pub fn npy(data: &[u8]) {
    read("d2t.npy", data);
}

/// Any vocabulary: the first byte picks its name.
pub fn any(data: &[u8]) {
    let names = ["ids.txt", "ids.json", "draft_vocab.safetensors", "x", "d2t.pt"];
    if let Some((first, rest)) = data.split_first() {
        read(names[usize::from(*first) % names.len()], rest);
    }
}

/// What is accepted is valid, and each form that can hold it gives it back.
fn read(name: &str, bytes: &[u8]) {
    let path = SCRATCH.write(name, bytes);
    for rows in [None, Some(TARGET_ROWS)] {
        for semantics in [None, Some(Semantics::Absolute), Some(Semantics::Offset)] {
            let Ok((vocab, _)) = forms::read_as(&path, rows, semantics) else { continue };
            vocab.validate().expect("a vocabulary that was read is valid");
            assert!(rows.is_none_or(|rows| rows == vocab.target_rows));
            if vocab.target_rows > 10 * TARGET_ROWS {
                continue;
            }
            for form in Form::ALL {
                let Ok(files) = forms::encode(form, &vocab, None) else { continue };
                let again = Scratch::new("again");
                files.iter().for_each(|(name, bytes)| drop(again.write(name, bytes)));
                let read = forms::read(&again.dir().join(form.file_name()), Some(vocab.target_rows));
                let read = read.unwrap_or_else(|error| panic!("{form} is not read back: {error:#}")).0;
                assert_eq!(read.token_ids, vocab.token_ids, "{form}");
            }
        }
    }
}

/// A zip of stored members, as torch writes it.
pub fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut directory = Vec::new();
    for (name, content) in members {
        let offset = bytes.len() as u32;
        let sizes = [crc32fast::hash(content), content.len() as u32, content.len() as u32].map(u32::to_le_bytes);
        let fields = [&[20, 0, 0, 0, 0, 0, 0, 0, 0, 0], sizes.as_flattened()].concat();
        let lengths = [(name.len() as u16).to_le_bytes(), [0, 0]].concat();
        bytes.extend([b"PK\x03\x04", &fields[..], &lengths, name.as_bytes(), content].concat());
        let tail = [&[0; 2][..], &[0; 2], &[0; 2], &[0; 4], &offset.to_le_bytes()].concat();
        directory.extend([b"PK\x01\x02\x14\x00", &fields[..], &lengths, &tail, name.as_bytes()].concat());
    }
    let n = (members.len() as u16).to_le_bytes();
    let place = [(directory.len() as u32).to_le_bytes(), (bytes.len() as u32).to_le_bytes()].concat();
    let end = [b"PK\x05\x06\0\0\0\0", &n[..], &n, &place, &[0, 0]].concat();
    [bytes, directory, end].concat()
}
