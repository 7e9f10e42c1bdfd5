//! verify-sha: coreutils' format both ways, hostile lists, git-lfs pointers.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command};

use crate::{draftfast, stderr, stdout};

const HELLO: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"; // printf 'hello\n' | sha256sum

fn folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("sub")).unwrap();
    fs::write(dir.path().join("a.txt"), "hello\n").unwrap();
    fs::write(dir.path().join("sub/b.bin"), vec![0u8; 3_000_000]).unwrap();
    dir
}

fn list(dir: &Path, text: &str) {
    fs::write(dir.join("sha256sums.txt"), text).unwrap();
}

#[test]
fn a_list_we_write_is_checked_by_sha256sum_and_by_us() {
    let dir = folder();
    let path = dir.path().to_str().unwrap();
    assert!(draftfast(&["verify-sha", "--write", path]).status.success());
    let theirs = Command::new("sha256sum").args(["-c", "sha256sums.txt"]).current_dir(path).output().unwrap();
    assert_eq!(String::from_utf8(theirs.stdout).unwrap(), "a.txt: OK\nsub/b.bin: OK\n");
    let ours = draftfast(&["verify-sha", path]);
    assert_eq!((ours.status.code(), stdout(&ours).as_str()), (Some(0), "a.txt: OK\nsub/b.bin: OK\n"));
    assert!(!draftfast(&["verify-sha", "--write", path]).status.success(), "an existing list is kept without --force");
}

#[test]
fn a_changed_file_fails_the_run_and_the_others_are_still_checked() {
    let dir = folder();
    list(dir.path(), &format!("{HELLO}  sub/b.bin\n{HELLO}  a.txt\n{HELLO}  gone\n"));
    let path = dir.path().to_str().unwrap();
    let output = draftfast(&["verify-sha", path]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output), "sub/b.bin: FAILED\na.txt: OK\ngone: FAILED open or read\n");
    let output = draftfast(&["verify-sha", "--ignore-missing", "--quiet", path]);
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), "sub/b.bin: FAILED\n"));
}

#[test]
fn a_list_may_not_lead_outside_its_folder() {
    let dir = folder();
    symlink("/etc/hostname", dir.path().join("link")).unwrap();
    for (name, word) in [("/etc/hostname", "absolute"), ("../x", "`..`"), ("link", "leads outside")] {
        list(dir.path(), &format!("{HELLO}  {name}\n"));
        let output = draftfast(&["verify-sha", dir.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{name}");
        assert!(stderr(&output).contains(word) && stderr(&output).contains("line 1"), "{}", stderr(&output));
    }
}

#[test]
fn git_lfs_pointers_are_checked_against_the_real_files() {
    let dir = folder();
    let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{HELLO}\nsize 6\n");
    fs::create_dir(dir.path().join("pointers")).unwrap();
    fs::write(dir.path().join("pointers/a.txt"), &pointer).unwrap();
    let (pointers, real) = (dir.path().join("pointers"), dir.path().to_str().unwrap().to_owned());
    let check = || draftfast(&["verify-sha", pointers.to_str().unwrap(), "--against", &real]);
    assert_eq!(stdout(&check()), "a.txt: OK\n");
    fs::write(dir.path().join("a.txt"), "hellO\n").unwrap();
    let output = check();
    assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(1), "a.txt: FAILED\n"));

    let beside = tempfile::tempdir().unwrap();
    fs::write(beside.path().join("m.bin"), "hello\n").unwrap();
    fs::write(beside.path().join("m.bin.pointer"), &pointer).unwrap();
    assert_eq!(stdout(&draftfast(&["verify-sha", beside.path().to_str().unwrap()])), "m.bin: OK\n");
    fs::write(beside.path().join("m.bin"), &pointer).unwrap();
    let output = draftfast(&["verify-sha", beside.path().to_str().unwrap()]);
    assert!(stderr(&output).contains("git-lfs pointer, not the file itself"), "{}", stderr(&output));
}
