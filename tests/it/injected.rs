//! A build that meets a failing disk, or is killed, at each call that changes something: the output is whole or absent,
//! the error is said, and the next run gives the same bytes. The calls are seen by a shim that stands before the C library.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use rayon::prelude::*;

use crate::{draftfast, stderr};

const KILLED: i32 = 0;
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// A tiny model, its counts, the shim, and the bytes of a build without faults.
struct Bench {
    dir: tempfile::TempDir,
    expected: String,
}

impl Bench {
    /// `None` where there is no C compiler.
    fn new() -> Option<Self> {
        let dir = crate::memory_dir();
        let shim = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/fault_shim.c");
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(dir.path().join("shim.so")).arg(shim).arg("-ldl");
        if !compiler.status().is_ok_and(|status| status.success()) {
            println!("skipped: the shim needs a C compiler");
            return None;
        }
        let mut bench = Self { dir, expected: String::new() };
        let text = |name: &str| bench.at(name).to_str().unwrap().to_owned();
        let run = |args: &[&str]| assert!(draftfast(args).status.success(), "{args:?}");
        run(&["synth", "qwen3.5-dense", "--scale", "tiny", "-o", &text("model")]);
        fs::write(bench.at("a.txt"), "A few words to count, and 12 more: één, 二, три.\n".repeat(50)).unwrap();
        run(&["count", &text("model"), "--corpus", &text("a.txt"), "-o", &text("a.counts")]);
        assert!(bench.build("plain", "out", &[]).status.success());
        bench.expected = fs::read_to_string(bench.at("plain/out/sha256sums.txt")).unwrap();
        Some(bench)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Builds into `folder`/`out` under the shim.
    fn build(&self, folder: &str, out: &str, environment: &[(&str, &str)]) -> Output {
        let folder = self.at(folder);
        fs::create_dir_all(&folder).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
        command.arg("build").arg(self.at("model")).arg("--counts").arg(self.at("a.counts"));
        command.args(["--size", "500", "-j1", "--force", "-o"]).arg(folder.join(out));
        command.env("LD_PRELOAD", self.at("shim.so")).env("FAULT_DIR", &folder);
        command.env("FAULT_LOG", self.at("log").with_extension(folder.file_name().unwrap()));
        command.envs(environment.iter().copied()).output().unwrap()
    }

    fn log(&self, folder: &str) -> Vec<String> {
        let log = fs::read_to_string(self.at("log").with_extension(folder)).unwrap();
        log.lines().map(str::to_owned).collect()
    }

    /// The build's `n`-th call fails with `errno`, or the build is killed there.
    fn strike(&self, errno: i32, n: usize) {
        let folder = format!("at-{errno}-{n}");
        let (at, error) = (n.to_string(), errno.to_string());
        let run = self.build(&folder, "out", &[("FAULT_AT", &at), ("FAULT_ERRNO", &error)]);
        let sums = || fs::read_to_string(self.at(&folder).join("out/sha256sums.txt"));
        let said = format!("call {n} `{}`, error {errno}: {}", self.log(&folder)[n - 1], stderr(&run));
        // The rename comes last but for the sync of the parent: what is there is whole.
        assert!(!self.at(&folder).join("out").exists() || sums().unwrap() == self.expected, "{said}");
        if errno == KILLED {
            assert_eq!(run.status.code(), None, "{said}");
        } else {
            assert_eq!(run.status.code(), Some(1), "{said}");
            let name = if errno == EIO { "Input/output error" } else { "No space left on device" };
            assert!(stderr(&run).contains(name) && !stderr(&run).contains("panicked"), "{said}");
            let left: BTreeSet<_> = names(&self.at(&folder));
            assert!(left.iter().all(|name| name == "out"), "{said}: left {left:?}");
        }
        // What a killed run has left does not stand in the next one's way.
        if errno == KILLED {
            assert!(self.build(&folder, "out", &[]).status.success(), "{said}: and again");
            assert_eq!(sums().unwrap(), self.expected, "{said}: and again");
            assert_eq!(names(&self.at(&folder)), BTreeSet::from(["out".to_owned()]), "{said}: and again");
        }
        fs::remove_dir_all(self.at(&folder)).unwrap();
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_failing_or_killing_call_at_every_place_leaves_the_output_whole_or_absent() {
    let Some(bench) = Bench::new() else { return };
    let n_calls = bench.log("plain").len();
    assert!(n_calls >= 50, "only {n_calls} calls were seen");
    let places = (1..=n_calls).flat_map(|n| [KILLED, EIO, ENOSPC].map(|errno| (errno, n)));
    places.collect::<Vec<_>>().into_par_iter().for_each(|(errno, n)| bench.strike(errno, n));
    println!("{n_calls} calls, each killed at, failed with EIO, and failed with ENOSPC");
}

#[test]
fn every_file_and_both_folders_are_synced_in_the_order_that_survives_a_crash() {
    let Some(bench) = Bench::new() else { return };
    let log = bench.log("plain");
    let renamed = log.iter().position(|line| line.starts_with("rename") && line.ends_with("/out")).unwrap();
    let last = |call: &str, name: &str| {
        let found = log.iter().rposition(|line| line.starts_with(call) && line.ends_with(name));
        found.unwrap_or_else(|| panic!("no {call} of {name}: {log:#?}"))
    };
    for name in names(&bench.at("plain/out")) {
        // A list is written under a temporary name.
        let name = if name == "sha256sums.txt" { "" } else { name.as_str() };
        if !name.is_empty() {
            assert!(last("write", name) < last("fsync", name), "`{name}` is written after it was synced");
            assert!(last("fsync", name) < renamed, "`{name}` is synced before the output has its name");
        }
    }
    let is_sync_of_staging = |line: &String| line.starts_with("fsync") && line.contains(".out.partial-");
    let of_folder =
        |line: &String| is_sync_of_staging(line) && line.matches('/').count() == log[renamed].matches('/').count();
    assert!(log[..renamed].iter().any(of_folder), "the staged folder is synced before the rename");
    assert!(
        log[renamed..].iter().any(|line| line.starts_with("fsync") && line.ends_with("/plain")),
        "its parent after it"
    );
}
