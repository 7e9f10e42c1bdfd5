//! `build` killed at random moments, with and without an output that it is to replace.

use std::{
    collections::BTreeMap,
    fs,
    hash::{BuildHasher, RandomState},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use crate::{draftfast, stderr};

/// Builds that must have been killed before they ended, half of them over an older output; and how often it may be tried.
const N_KILLS: usize = 50;
const MAX_TRIES: u64 = 400;

type Contents = BTreeMap<String, Vec<u8>>;

/// A tiny model, its counts, and what a build of each size writes.
struct Bench {
    dir: tempfile::TempDir,
    old: Contents,
    new: Contents,
    whole_run: Duration,
}

impl Bench {
    fn new() -> Self {
        let mut bench =
            Self { dir: crate::memory_dir(), old: Contents::new(), new: Contents::new(), whole_run: Duration::ZERO };
        let text = |name: &str| bench.at(name).to_str().unwrap().to_owned();
        let run = |args: &[&str]| assert!(draftfast(args).status.success(), "{args:?}");
        run(&["synth", "qwen3.5-dense", "--scale", "tiny", "-o", &text("model")]);
        fs::write(bench.at("a.txt"), "A few words to count, and 12 more: één, 二, три.\n".repeat(50)).unwrap();
        run(&["count", &text("model"), "--corpus", &text("a.txt"), "-o", &text("a.counts")]);
        assert!(bench.build("old", "400").status().unwrap().success());
        let begin = Instant::now();
        assert!(bench.build("new", "500").status().unwrap().success());
        bench.whole_run = begin.elapsed();
        (bench.old, bench.new) = (contents(&bench.at("old")), contents(&bench.at("new")));
        assert_ne!(bench.old["drafter.safetensors"], bench.new["drafter.safetensors"]);
        for name in ["old", "new"] {
            fs::remove_dir_all(bench.at(name)).unwrap();
        }
        bench
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn build(&self, out: &str, size: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
        command.arg("build").arg(self.at("model")).arg("--counts").arg(self.at("a.counts"));
        command.args(["--size", size, "--hardware", "gb10", "-j1", "--force", "-o"]).arg(self.at(out));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// What lies beside the inputs: the output, and what a killed run has left.
    fn outputs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.dir.path()).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir() && path.file_name().unwrap() != "model").collect()
    }

    /// Kills a build after `delay`; whether it was still running.
    fn kill_after(&self, delay: Duration) -> bool {
        let mut child = self.build("out", "500").spawn().unwrap();
        std::thread::sleep(delay);
        child.kill().unwrap();
        !child.wait().unwrap().success()
    }

    /// Nothing that `verify` or `verify-sha` accepts is anything but one of the two outputs.
    fn check(&self, has_old: bool, said: &str) {
        let out = self.at("out");
        assert!(out.exists() || !has_old, "{said}: the old output is gone");
        for path in self.outputs() {
            let found = contents(&path);
            let is_whole = found == self.new || (has_old && found == self.old);
            assert!(is_whole || path != out, "{said}: the output is neither the old nor the new one");
            let (path, model) = (path.to_str().unwrap(), self.at("model"));
            let verify = draftfast(&["verify", path, "--model", model.to_str().unwrap()]);
            let checksums = draftfast(&["verify-sha", "--quiet", path]);
            for output in [verify, checksums] {
                assert!(is_whole || !output.status.success(), "{said}: `{path}` is accepted");
                assert!(path != out.to_str().unwrap() || output.status.success(), "{said}: {}", stderr(&output));
            }
        }
    }
}

fn contents(dir: &Path) -> Contents {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

#[test]
fn a_build_killed_at_any_moment_leaves_the_old_output_or_none_and_runs_again() {
    let bench = Bench::new();
    let (mut n_killed, mut tries, mut whole_run) = (0, 0, bench.whole_run);
    while n_killed < N_KILLS {
        assert!(tries < MAX_TRIES, "only {n_killed} of {MAX_TRIES} builds were killed before they ended");
        tries += 1;
        let has_old = n_killed % 2 == 1;
        if has_old {
            assert!(bench.build("out", "400").status().unwrap().success());
        }
        let share = RandomState::new().hash_one(tries) as f64 / u64::MAX as f64;
        let delay = whole_run.mul_f64(1.05 * share);
        n_killed += usize::from(bench.kill_after(delay));
        bench.check(has_old, &format!("killed after {delay:?} of {whole_run:?}, old: {has_old}"));
        let begin = Instant::now();
        assert!(bench.build("out", "500").status().unwrap().success(), "killed after {delay:?}, and again");
        // Other tests run beside this one: the length of a run changes.
        whole_run = begin.elapsed();
        assert!(contents(&bench.at("out")) == bench.new, "killed after {delay:?}, and again: other bytes");
        assert_eq!(bench.outputs(), [bench.at("out")], "what the killed run left is cleaned up");
        fs::remove_dir_all(bench.at("out")).unwrap();
    }
}
