//! The pages that people read are true: commands in them are run and their output compared, errors that they explain
//! are errors that the program has, links lead somewhere.
//!
//! `DRAFTFAST_BLESS=1 cargo test --release docs::` writes the outputs anew; lines `...` stand for any lines and stay.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// The pages with commands that are run, each in a folder of its own.
const RUN: [&str; 2] = ["README.md", "docs/commands.md"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// README.md and all pages below docs.
fn pages() -> Vec<PathBuf> {
    let mut pages: Vec<PathBuf> =
        ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"].map(PathBuf::from).into();
    for folder in ["docs", "docs/bench", "docs/performance"] {
        let files = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        let pages_there = files.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        pages.extend(pages_there.map(|path| path.strip_prefix(root()).unwrap().to_owned()));
    }
    pages
}

/// What `command` says on a terminal, in a folder that has `corpora`, with `draftfast` in PATH.
fn said(command: &str, folder: &Path) -> String {
    let program = Path::new(env!("CARGO_BIN_EXE_draftfast"));
    let path = format!("{}:{}", program.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let command = command.replace("cargo run --release -- ", "draftfast ");
    let shell = format!("exec 2>&1\n{command}");
    let output = Command::new("bash").args(["-c", &shell]).current_dir(folder).env("PATH", path).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Whether `found` is `expected`, where a line `...` stands for any lines.
fn matches(expected: &[&str], found: &[&str]) -> bool {
    match expected.split_first() {
        None => found.is_empty(),
        Some((&"...", rest)) => (0..=found.len()).any(|skipped| matches(rest, &found[skipped..])),
        Some((first, rest)) => found.first() == Some(first) && matches(rest, &found[1..]),
    }
}

/// The text with each `$ ` command of its console blocks followed by what it says now; outputs that match stay.
fn replayed(text: &str, folder: &Path) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let mut replayed = Vec::new();
    let mut is_console = false;
    let mut at = 0;
    while at < lines.len() {
        let line = lines[at];
        replayed.push(line.to_owned());
        at += 1;
        if line.starts_with("```") {
            is_console = line == "```console";
        }
        let Some(command) = line.strip_prefix("$ ").filter(|_| is_console) else { continue };
        let n_lines = lines[at..].iter().take_while(|line| !line.starts_with("$ ") && !line.starts_with("```")).count();
        let expected = &lines[at..at + n_lines];
        at += n_lines;
        let found = said(command, folder);
        let found: Vec<&str> = found.lines().collect();
        let shown = if matches(expected, &found) { expected } else { &found };
        replayed.extend(shown.iter().map(|line| (*line).to_owned()));
    }
    replayed.join("\n") + "\n"
}

#[test]
fn commands_in_the_pages_say_what_the_pages_show() {
    for page in RUN {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(root().join("corpora"), folder.path().join("corpora")).unwrap();
        let path = root().join(page);
        let text = fs::read_to_string(&path).unwrap();
        let replayed = replayed(&text, folder.path());
        if std::env::var_os("DRAFTFAST_BLESS").is_some() {
            fs::write(&path, &replayed).unwrap();
            continue;
        }
        for (line, (expected, found)) in text.lines().zip(replayed.lines()).enumerate() {
            assert_eq!(expected, found, "{page}, line {}", line + 1);
        }
        assert_eq!(text.lines().count(), replayed.lines().count(), "{page}");
    }
}

#[test]
fn errors_that_are_explained_are_errors_that_the_program_has() {
    let mut sources = String::new();
    let mut folders = vec![root().join("src"), root().join("python/draftfast_vllm")];
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs" || extension == "py") {
                sources += &fs::read_to_string(path).unwrap();
            }
        }
    }
    // As messages are written: one line, values left out.
    let sources = sources.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    let page = fs::read_to_string(root().join("docs/troubleshooting.md")).unwrap();
    let mut n_explained = 0;
    for line in page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| message")) {
        let message = line.split(" | ").next().unwrap().trim_start_matches("| ");
        for piece in message.split('…').map(str::trim).filter(|piece| !piece.is_empty()) {
            assert!(sources.contains(piece), "no error says `{piece}`");
        }
        n_explained += 1;
    }
    assert!(n_explained > 60, "only {n_explained} messages are explained");
}

#[test]
fn links_between_the_pages_lead_somewhere() {
    for page in pages() {
        let text = fs::read_to_string(root().join(&page)).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") || link.starts_with('#') {
                continue;
            }
            let target = root().join(page.parent().unwrap()).join(link.split('#').next().unwrap());
            assert!(target.exists(), "{}: `{link}` leads nowhere", page.display());
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut is_list = false;
    let mut is_explained = false;
    let mut n_explained = 0;
    for line in manifest.lines() {
        if line.starts_with('[') {
            (is_list, is_explained) = (line.ends_with("dependencies]"), false);
        } else if is_list && line.starts_with('#') {
            is_explained = true;
        } else if is_list && !line.is_empty() {
            // A comment above speaks for the lines below it, up to the next one with a reason of its own.
            assert!(is_explained || line.contains(" # "), "`{line}`: what is it for?");
            is_explained &= !line.contains(" # ");
            n_explained += 1;
        }
    }
    assert!(n_explained > 20, "{n_explained}");
}
