//! Each vocabulary form is loaded by the library its consumer uses (torch, numpy, safetensors), and what those write is
//! read back. Needs a Python with torch, numpy and safetensors: `python3`, or the one `DRAFTFAST_TEST_PYTHON` names.

#![expect(clippy::print_stdout, reason = "a skipped test says why")]

use std::{path::Path, process::Command};

use draftfast::vocab::{
    DraftVocab,
    forms::{self, Form, Semantics},
};

fn python() -> Option<String> {
    let python = std::env::var("DRAFTFAST_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_torch = Command::new(&python).args(["-c", "import torch, numpy, safetensors.torch"]).output();
    match has_torch {
        Ok(output) if output.status.success() => Some(python),
        _ => {
            println!(
                "skipped: `{python}` has no torch, numpy and safetensors (name another with DRAFTFAST_TEST_PYTHON)"
            );
            None
        }
    }
}

fn vocab() -> DraftVocab {
    DraftVocab::new(248_320, (0..4_000u32).map(|rank| rank * 7 + rank % 5).chain([248_076]).collect()).unwrap()
}

#[test]
fn consumers_load_every_form_and_we_read_what_they_save() {
    let Some(python) = python() else { return };
    let (dir, vocab) = (tempfile::tempdir().unwrap(), vocab());
    for form in Form::ALL {
        for (name, bytes) in forms::encode(form, &vocab, None).unwrap() {
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
    }
    let expected = serde_json::json!({ "target_rows": vocab.target_rows, "token_ids": vocab.token_ids });
    std::fs::write(dir.path().join("expected.json"), expected.to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/load_forms.py");
    let output = Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(said.lines().count(), 9, "{said}");
    read_back(&dir.path().join("saved"), &vocab);
}

fn read_back(saved: &Path, vocab: &DraftVocab) {
    let files = [
        ("freq_list.pt", Semantics::Absolute),
        ("token_map.pt", Semantics::Absolute),
        ("ids_int32.pt", Semantics::Absolute),
        ("d2t.pt", Semantics::Offset),
        ("cache.pt", Semantics::Offset),
        ("automodel.pt", Semantics::Absolute),
        ("mask.pt", Semantics::Mask),
        ("mask_view.pt", Semantics::Mask),
        ("ids.npy", Semantics::Absolute),
        ("d2t-9.npy", Semantics::Offset),
        ("t2d-9.npy", Semantics::Offset),
        ("eagle3.safetensors", Semantics::Offset),
    ];
    for (name, semantics) in files {
        let (read, detected) = forms::read(&saved.join(name), Some(vocab.target_rows)).unwrap();
        assert_eq!(&read, vocab, "{name}");
        assert_eq!(detected.semantics, semantics, "{name}");
    }
    for (name, said) in [
        ("refused_float.pt", "FloatStorage"),
        ("refused_uint8.pt", "uint8"),
        ("refused_2d.pt", "one-dimensional"),
        ("refused_legacy.pt", "bare pickle"),
        ("refused_object.pt", "refused"),
        ("refused_token_freq.pt", "no string"),
    ] {
        let error = format!("{:#}", forms::read(&saved.join(name), Some(vocab.target_rows)).unwrap_err());
        assert!(error.contains(said), "{name}: {error}");
    }
}

/// llama.cpp's own Python package, where `DRAFTFAST_TEST_PYTHON` (or `python3`) has it.
#[test]
fn llama_cpps_reader_finds_the_ids() {
    let python = std::env::var("DRAFTFAST_TEST_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    if !Command::new(&python).args(["-c", "import gguf"]).output().is_ok_and(|output| output.status.success()) {
        println!("skipped: `{python}` has no gguf (name another with DRAFTFAST_TEST_PYTHON)");
        return;
    }
    let (dir, vocab) = (tempfile::tempdir().unwrap(), vocab());
    let path = dir.path().join("d2t.gguf");
    std::fs::write(&path, &forms::encode(Form::Gguf, &vocab, Some("aa")).unwrap()[0].1).unwrap();
    let saved = dir.path().join("saved.gguf");
    let script = "import sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
[d2t] = reader.tensors
assert d2t.tensor_type == gguf.GGMLQuantizationType.I64 and d2t.name == 'd2t', d2t
assert reader.get_field('draftfast.target_rows').contents() == 248320
writer = gguf.GGUFWriter(sys.argv[2], 'llama')
writer.add_array('tokens', ['a', 'b'])
writer.add_float32('scale', 1.5)
writer.add_tensor('other', d2t.data[:3].astype('float32'))
writer.add_tensor('d2t', d2t.data)
for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
    step()
print(d2t.data.tolist())
";
    let output = Command::new(python).args(["-c", script]).args([&path, &saved]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let ids: Vec<u32> = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(ids, vocab.token_ids);
    let (read, detected) = forms::read(&saved, Some(vocab.target_rows)).unwrap();
    assert_eq!((read, detected.semantics), (vocab, Semantics::Absolute));
}
