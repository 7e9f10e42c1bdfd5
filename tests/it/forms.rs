//! Vocabulary files: every form comes back, is recognised by what is in it, and ambiguity is refused.

use std::path::{Path, PathBuf};

use draftfast::vocab::{
    DraftVocab,
    forms::{self, Form, Semantics},
};

/// A vocabulary with the shape of the seed's: V rows, ids far apart, special ids at the top.
fn seed_like() -> DraftVocab {
    let ids = (0..64_000u32).map(|rank| rank * 3 + rank % 3).chain(248_044..248_070).collect();
    DraftVocab::new(248_320, ids).unwrap()
}

fn write(form: Form, vocab: &DraftVocab, dir: &Path) -> PathBuf {
    for (name, bytes) in forms::encode(form, vocab, Some("aa")).unwrap() {
        std::fs::write(dir.join(name), bytes).unwrap();
    }
    dir.join(form.file_name())
}

fn refused(path: &Path, target_rows: Option<usize>) -> String {
    let error = forms::read(path, target_rows).unwrap_err();
    let said = format!("{error:#} / {}", draftfast::error::hints(&error).join(" / "));
    assert!(said.contains(path.file_name().unwrap().to_str().unwrap()), "names the file: {said}");
    said
}

fn bare_npy(dir: &Path, name: &str, values: &[i64]) -> PathBuf {
    // numpy's format written by hand: magic, version, header length, header, elements.
    let header = format!("{{'descr': '<i8', 'fortran_order': False, 'shape': ({},), }}\n", values.len());
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn every_form_comes_back_with_its_semantics_named() {
    let vocab = seed_like();
    for form in Form::ALL {
        let dir = tempfile::tempdir().unwrap();
        let path = write(form, &vocab, dir.path());
        let (read, detected) = forms::read(&path, Some(248_320)).unwrap();
        assert_eq!(read, vocab, "{form}");
        assert_eq!(detected.form, form);
        let expected = match form {
            Form::MaskPt => Semantics::Mask,
            Form::Npy | Form::MappingPt | Form::D2tPt => Semantics::Offset,
            Form::IdsPt | Form::Safetensors | Form::IdsTxt | Form::IdsJson | Form::Gguf => Semantics::Absolute,
        };
        assert_eq!(detected.semantics, expected, "{form}");
        assert!(detected.ascending && detected.notes.is_empty(), "{form}: {detected:?}");
    }
}

#[test]
fn the_same_vocabulary_gives_the_same_bytes() {
    for form in Form::ALL {
        assert_eq!(forms::encode(form, &seed_like(), None).unwrap(), forms::encode(form, &seed_like(), None).unwrap());
    }
}

#[test]
fn repeated_rows_are_remembered_by_safetensors_and_gguf_and_left_out_of_masks() {
    let mut vocab = seed_like();
    vocab.n_repeated = 38;
    let dir = tempfile::tempdir().unwrap();
    let (read, detected) = forms::read(&write(Form::Safetensors, &vocab, dir.path()), None).unwrap();
    assert_eq!(read, vocab);
    assert_eq!(read.n_rows(), 64_064);
    assert_eq!(detected.tokenizer_sha256.as_deref(), Some("aa"));
    let (read, detected) = forms::read(&write(Form::Gguf, &vocab, dir.path()), None).unwrap();
    assert_eq!((&read, detected.tokenizer_sha256.as_deref()), (&vocab, Some("aa")));
    let (mask, _) = forms::read(&write(Form::MaskPt, &vocab, dir.path()), None).unwrap();
    assert_eq!((mask.token_ids.len(), mask.n_repeated), (64_026, 0));
}

#[test]
fn another_v_and_another_tokenizer_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(Form::Safetensors, &seed_like(), dir.path());
    assert!(refused(&path, Some(151_936)).contains("made for V = 248320 rows of lm_head, expected 151936"));
    let (_, detected) = forms::read(&path, None).unwrap();
    assert!(detected.check_tokenizer(&path, "aa").is_ok());
    let error = detected.check_tokenizer(&path, "bb").unwrap_err().to_string();
    assert!(error.contains("sha256 `aa`, expected `bb`"), "{error}");
}

#[test]
fn ids_need_v() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(&write(Form::IdsTxt, &seed_like(), dir.path()), None).contains("`--target-rows V`"));
}

#[test]
fn a_bare_array_that_may_mean_two_things_is_refused_until_its_meaning_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = bare_npy(dir.path(), "array.npy", &[0, 2, 4]);
    assert!(refused(&path, Some(100)).contains("may be absolute ids or offsets"));
    let read = |semantics| forms::read_as(&path, Some(100), Some(semantics)).unwrap().0.token_ids;
    assert_eq!(read(Semantics::Absolute), [0, 2, 4]);
    assert_eq!(read(Semantics::Offset), [0, 3, 6]);
    // The name decides where the numbers do not, ...
    let d2t = bare_npy(dir.path(), "d2t-3.npy", &[0, 2, 4]);
    assert_eq!(forms::read(&d2t, Some(100)).unwrap().0.token_ids, [0, 3, 6]);
    // ... and the numbers where they can: 99 + 2 leaves the range, 5 twice is no list of ids.
    let ids = bare_npy(dir.path(), "array.npy", &[0, 2, 99]);
    assert_eq!(forms::read(&ids, Some(100)).unwrap().1.semantics, Semantics::Absolute);
    let offsets = bare_npy(dir.path(), "array.npy", &[5, 5, 6]);
    assert_eq!(forms::read(&offsets, Some(100)).unwrap().1.semantics, Semantics::Offset);
}

#[test]
fn a_name_that_lies_is_refused_with_what_would_fit() {
    let dir = tempfile::tempdir().unwrap();
    let said = refused(&bare_npy(dir.path(), "d2t.npy", &[0, 2, 99]), Some(100));
    assert!(said.contains("row 2 means id 101") && said.contains("`--as absolute`"), "{said}");
    let said = refused(&bare_npy(dir.path(), "ids.npy", &[5, 5, 6]), Some(100));
    assert!(said.contains("row 1 means id 5, which stands there already") && said.contains("`--as offset`"), "{said}");
}

#[test]
fn what_is_said_outweighs_a_name_that_lies() {
    let dir = tempfile::tempdir().unwrap();
    let read = |path: PathBuf, said| forms::read_as(&path, Some(100), Some(said)).unwrap().0.token_ids;
    assert_eq!(read(bare_npy(dir.path(), "d2t.npy", &[0, 2, 99]), Semantics::Absolute), [0, 2, 99]);
    assert_eq!(read(bare_npy(dir.path(), "ids.npy", &[5, 5, 6]), Semantics::Offset), [5, 6, 8]);
    let gguf = write(Form::Gguf, &DraftVocab::new(100, vec![5, 6, 7]).unwrap(), dir.path());
    assert_eq!(forms::read(&gguf, None).unwrap().0.token_ids, [5, 6, 7]);
    assert_eq!(read(gguf, Semantics::Offset), [5, 7, 9]);
    // Of a file that says it twice nothing is taken back.
    let both = write(Form::Safetensors, &DraftVocab::new(100, vec![5, 7, 9]).unwrap(), dir.path());
    assert_eq!(read(both, Semantics::Offset), [5, 7, 9]);
}

#[test]
fn a_gguf_file_of_something_else_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = write(Form::Gguf, &DraftVocab::new(50, vec![1, 4, 9]).unwrap(), dir.path());
    let bytes = std::fs::read(&path).unwrap();
    let swap = |from: &[u8], to: &[u8]| {
        let at = bytes.windows(from.len()).position(|window| window == from).unwrap();
        std::fs::write(&path, [&bytes[..at], to, &bytes[at + to.len()..]].concat()).unwrap();
        refused(&path, Some(50))
    };
    assert!(swap(b"d2t", b"xyz").contains("holds no tensor `d2t`"));
    // The tensor's dimension, 3, and its type, I64.
    let place = [3_u64.to_le_bytes().as_slice(), &27_u32.to_le_bytes()].concat();
    assert!(swap(&place, &[3, 0, 0, 0, 0, 0, 0, 0, 30]).contains("ggml type 30, expected I64"));
    assert!(swap(&place, &[99]).contains("the file ends before the 99 numbers"));
    std::fs::write(&path, &bytes).unwrap();
    assert!(refused(&path, Some(51)).contains("made for V = 50 rows of lm_head, expected 51"));
}

#[test]
fn a_mask_stored_as_integers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(&bare_npy(dir.path(), "mask.npy", &[0, 1, 1, 0]), Some(4)).contains("must be stored as booleans"));
}

#[test]
fn ids_in_frequency_order_are_put_in_order_and_it_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("freq_4.json");
    std::fs::write(&path, "[7, 3, 99, 0]").unwrap();
    let (vocab, detected) = forms::read(&path, Some(100)).unwrap();
    assert_eq!(vocab.token_ids, [0, 3, 7, 99]);
    assert!(!detected.ascending && detected.notes[0].contains("not ascending"));
}

#[test]
fn a_mask_and_offsets_that_disagree_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    write(Form::Npy, &DraftVocab::new(10, vec![1, 4, 9]).unwrap(), dir.path());
    let path = bare_npy(dir.path(), "d2t.npy", &[1, 4, 7]);
    assert!(refused(&path, None).contains("`t2d` keeps id 4 where another part keeps 5"));
    let path = bare_npy(dir.path(), "d2t.npy", &[1, 3]);
    assert!(refused(&path, None).contains("`t2d` keeps 3 ids, not 2"));
}

#[test]
fn an_unset_map_is_pointed_out() {
    let dir = tempfile::tempdir().unwrap();
    let (vocab, detected) = forms::read(&bare_npy(dir.path(), "d2t.npy", &[0; 4]), Some(10)).unwrap();
    assert_eq!(vocab.token_ids, [0, 1, 2, 3]);
    assert!(detected.notes[0].contains("never set"));
}

#[test]
fn broken_text_names_the_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ids.txt");
    std::fs::write(&path, "1\n# header\n").unwrap();
    assert!(refused(&path, Some(10)).contains("line 2 is no id: `# header`"));
    std::fs::write(&path, "").unwrap();
    assert!(refused(&path, Some(10)).contains("empty"));
    std::fs::write(&path, "1\n-3\n").unwrap();
    assert!(refused(&path, Some(10)).contains("row 1 means id -3"));
    assert!(refused(&dir.path().join("absent.pt"), None).contains("cannot open"));
}

#[test]
fn every_truncation_of_every_binary_form_is_an_error() {
    let vocab = DraftVocab::new(50, vec![1, 4, 9, 49]).unwrap();
    let is_text = |form: &Form| matches!(form, Form::IdsTxt | Form::IdsJson);
    for form in Form::ALL.into_iter().filter(|form| !is_text(form)) {
        let dir = tempfile::tempdir().unwrap();
        let path = write(form, &vocab, dir.path());
        let bytes = std::fs::read(&path).unwrap();
        for n in 0..bytes.len() {
            std::fs::write(&path, &bytes[..n]).unwrap();
            assert!(forms::read(&path, Some(50)).is_err(), "{form} cut at {n}");
        }
    }
}
