//! Reports and their pictures, and the comparison of two sidecars.

use std::{collections::BTreeMap, fs, path::Path};

use crate::{draftfast, stderr, stdout};

/// A sidecar of the demo with a plan.
fn demo(dir: &Path, name: &str, more: &[&str]) -> String {
    let path = dir.join(name).to_str().unwrap().to_owned();
    let output = draftfast(&[&["build", "--demo", "-o", &path, "--hardware", "gb10"], more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    path
}

fn contents(dir: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files.map(|f| (f.file_name().into_string().unwrap(), fs::read(f.path()).unwrap())).collect()
}

#[test]
fn report_makes_again_what_build_wrote_and_keeps_the_checksums_true() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    let built = contents(&path);
    for name in ["REPORT.md", "ledger.svg", "errors.svg", "plan.svg", "plan.json", "vocabulary.json"] {
        assert!(built.contains_key(name), "{name} of {:?}", built.keys());
    }
    fs::write(Path::new(&path).join("REPORT.md"), "scribble").unwrap();
    fs::remove_file(Path::new(&path).join("ledger.svg")).unwrap();
    assert!(draftfast(&["report", &path]).status.success());
    assert_eq!(contents(&path), built);
    assert!(draftfast(&["verify-sha", &path]).status.success());
}

#[test]
fn report_does_not_bless_a_file_that_was_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    let config = Path::new(&path).join("config.json");
    let mut text = fs::read_to_string(&config).unwrap();
    text.push(' ');
    fs::write(&config, text).unwrap();
    assert!(draftfast(&["report", &path]).status.success());
    let check = draftfast(&["verify-sha", "--quiet", &path]);
    assert_eq!(stdout(&check), "config.json: FAILED\n");
}

#[test]
fn the_page_is_one_file_that_fetches_nothing_and_runs_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    let page = dir.path().join("page.html");
    let args = ["report", &path, "--html", page.to_str().unwrap()];
    assert!(draftfast(&args).status.success());
    let text = fs::read_to_string(&page).unwrap();
    assert!(text.matches("<svg ").count() >= 3 && text.contains("<h2>Plan</h2>"));
    for fetched in ["<script", "src=", "@import", "url(", "<link"] {
        assert!(!text.contains(fetched), "{fetched}");
    }
    assert_eq!(draftfast(&args).status.code(), Some(1), "an existing page is kept without --force");
}

#[test]
fn pictures_are_well_formed_and_without_script() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    for (name, bytes) in contents(&path) {
        if !name.ends_with(".svg") {
            continue;
        }
        let text = String::from_utf8(bytes).unwrap();
        let mut open = Vec::new();
        for tag in text.split('<').skip(1).map(|rest| rest.split('>').next().unwrap()) {
            match tag.strip_prefix('/') {
                Some(closed) => assert_eq!(open.pop(), Some(closed), "{name}"),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split_whitespace().next().unwrap()),
            }
        }
        assert!(open.is_empty() && !text.contains("NaN") && !text.contains("inf"), "{name}: {open:?}");
        assert!(text.contains("prefers-color-scheme:dark") && !text.contains("script"), "{name}");
    }
}

/// Writes other names or figures into a record of a sidecar, as its maker could: the drafter names the manifest's provenance.
fn rewrite(path: &str, name: &str, change: impl FnOnce(&mut serde_json::Value)) {
    let file = Path::new(path).join(name);
    let mut record = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    change(&mut record);
    let bytes = serde_json::to_vec(&record).unwrap();
    if name == "manifest.json" {
        let drafter = Path::new(path).join("drafter.safetensors");
        let mut weights = fs::read(&drafter).unwrap();
        let key = b"draftfast.provenance_sha256\":\"";
        let at = weights.windows(key.len()).position(|window| window == key).unwrap() + key.len();
        let manifest: draftfast::sidecar::Manifest = serde_json::from_slice(&bytes).unwrap();
        let digest = manifest.provenance_sha256().unwrap();
        weights[at..at + 64].copy_from_slice(digest.as_bytes());
        fs::write(drafter, weights).unwrap();
    }
    fs::write(file, bytes).unwrap();
}

#[test]
fn names_in_a_downloaded_sidecar_write_neither_markup_nor_over_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    let names =
        ["<script>alert(1)</script>", "领域领域领域领域领域领域", "a&b\"'|\n# c\u{0}\u{202e}d", &"long-".repeat(99)];
    rewrite(&path, "vocabulary.json", |record| {
        let shares = record["coverage"]["curve"]["mean"].clone();
        record["coverage"]["curve"]["domains"] =
            names.iter().map(|name| ((*name).to_owned(), shares.clone())).collect();
        let share = |name| serde_json::json!({"domain": name, "n_tokens": 9, "share": 0.5});
        record["coverage"]["coverage"] = names.iter().map(share).collect();
    });
    rewrite(&path, "manifest.json", |manifest| {
        let item = manifest["ledger"]["items"][0].clone();
        let named = |name: &&str| {
            let mut item = item.clone();
            item["name"] = (*name).into();
            item["note"] = (*name).into();
            item
        };
        manifest["ledger"]["items"] = names.iter().map(named).collect();
    });
    let page = dir.path().join("page.html");
    let output = draftfast(&["report", &path, "--html", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = fs::read_to_string(&page).unwrap();
    assert!(!text.contains("<script"));
    let drawn: Vec<&str> = text.split("<svg").skip(1).map(|rest| rest.split("</svg>").next().unwrap()).collect();
    for drawn in drawn {
        assert!(!drawn.contains(['\0', '\u{202e}']) && !drawn.contains(&"long-".repeat(20)));
    }
}

#[test]
fn figures_that_no_axis_holds_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "demo", &[]);
    rewrite(&path, "manifest.json", |manifest| {
        manifest["tensors"]["mtp.fc"]["error"]["relative_error"] = 1e300.into();
    });
    let output = draftfast(&["report", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("which no picture can show"), "{}", stderr(&output));
}

#[test]
fn a_sidecar_differs_from_itself_in_nothing_and_from_another_in_its_rows() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (demo(dir.path(), "a", &["--size", "512"]), demo(dir.path(), "b", &["--size", "768"]));
    let json = |a: &str, b: &str| {
        let output = draftfast(&["diff", a, b, "--json"]);
        assert!(output.status.success(), "{}", stderr(&output));
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let same = json(&a, &a);
    assert_eq!(same["vocabulary"]["jaccard"], 1.0);
    assert_eq!(same["draft_step_bytes"]["a"], same["draft_step_bytes"]["b"]);
    let other = json(&a, &b);
    assert!(other["n_rows"]["a"].as_u64() < other["n_rows"]["b"].as_u64());
    assert!(other["draft_step_bytes"]["a"].as_u64() < other["draft_step_bytes"]["b"].as_u64());
    assert!(other["errors"]["mtp.fc"]["a"].is_f64() && other["planned"]["b"]["tokens_per_second"].is_f64());
    let text = stdout(&draftfast(&["diff", &a, &b]));
    assert!(text.contains("bytes a draft step") && text.contains("error of mtp.fc"), "{text}");
}

#[test]
fn what_is_no_sidecar_has_no_report() {
    let dir = tempfile::tempdir().unwrap();
    let output = draftfast(&["report", dir.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("manifest.json"), "{}", stderr(&output));
}

#[test]
fn size_auto_takes_the_size_of_the_plan_and_needs_a_machine() {
    let dir = tempfile::tempdir().unwrap();
    let path = demo(dir.path(), "auto", &["--size", "auto"]);
    let plan: serde_json::Value = serde_json::from_slice(&contents(&path)["plan.json"]).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&contents(&path)["manifest.json"]).unwrap();
    let planned = plan["plan"]["best"]["design"]["n_rows"].as_u64().unwrap();
    let n_ids = manifest["vocabulary"]["selection"]["tokenizer"]["n_ids"].as_u64().unwrap();
    assert_eq!(manifest["vocabulary"]["selection"]["selection"]["size"].as_u64(), Some(planned.min(n_ids)));
    let without = draftfast(&["build", "--demo", "-o", dir.path().join("x").to_str().unwrap(), "--size", "auto"]);
    assert_eq!(without.status.code(), Some(1));
    assert!(stderr(&without).contains("--hardware"), "{}", stderr(&without));
}
