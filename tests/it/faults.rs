//! Runs that are interrupted, killed, or meet a full disk: the output is whole or absent.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{draftfast, stderr};

struct Job {
    dir: tempfile::TempDir,
}

impl Job {
    fn new() -> Self {
        let job = Self { dir: tempfile::tempdir().unwrap() };
        let model = job.at("model");
        let output = draftfast(&["synth", "qwen3.5-dense", "--scale", "tiny", "-o", model.to_str().unwrap()]);
        assert!(output.status.success(), "{}", stderr(&output));
        fs::write(job.at("ids.txt"), (0..1024).map(|id| format!("{id}\n")).collect::<String>()).unwrap();
        fs::create_dir(job.at("outputs")).unwrap();
        job
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn args(&self, output: &Path) -> Vec<String> {
        let words = ["quantize", "-j1", "--force", "--scale", "mse", "--vocab"];
        let mut args: Vec<String> = words.map(str::to_owned).to_vec();
        for path in [&self.at("ids.txt"), &self.at("model")] {
            args.push(path.to_str().unwrap().to_owned());
        }
        args.extend(["-o".to_owned(), output.to_str().unwrap().to_owned()]);
        args
    }

    fn start(&self, output: &Path) -> Child {
        let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
        command.args(self.args(output)).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.at("outputs")).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    // The process may have ended already: that is one of the moments to test.
    let _ = Command::new("kill").args([name, &pid]).stderr(Stdio::null()).status();
}

fn is_whole(sidecar: &Path) -> bool {
    draftfast(&["verify-sha", "--quiet", sidecar.to_str().unwrap()]).status.success()
}

/// Signals `n` runs at moments spread over the time that a run takes; returns how many were stopped by it.
fn stop_at_many_moments(job: &Job, name: &str, n: u32, mut check: impl FnMut(&Path, bool)) -> usize {
    let output = job.at("outputs/out");
    let begin = Instant::now();
    assert!(job.start(&output).wait().unwrap().success());
    let whole_run = begin.elapsed();
    fs::remove_dir_all(&output).unwrap();
    let mut n_stopped = 0;
    for moment in 0..n {
        let mut child = job.start(&output);
        std::thread::sleep(whole_run.mul_f64(f64::from(moment) / f64::from(n)).max(Duration::from_millis(1)));
        signal(&child, name);
        let succeeded = child.wait().unwrap().success();
        n_stopped += usize::from(!succeeded);
        check(&output, succeeded);
        if output.exists() {
            fs::remove_dir_all(&output).unwrap();
        }
    }
    n_stopped
}

#[test]
fn an_interrupted_run_leaves_nothing_at_whatever_moment() {
    let job = Job::new();
    let n_stopped = stop_at_many_moments(&job, "-INT", 25, |output, succeeded| {
        assert_eq!(output.exists(), succeeded);
        assert!(!succeeded || is_whole(output));
        let left = job.left();
        assert!(left.iter().all(|name| name == "out"), "{left:?}");
    });
    assert!(n_stopped > 0, "no run was interrupted: the test proves nothing");
}

#[test]
fn a_killed_run_leaves_no_output_that_passes_for_one_and_the_next_run_cleans_up() {
    let job = Job::new();
    let n_stopped = stop_at_many_moments(&job, "-KILL", 50, |output, _| {
        assert!(!output.exists() || is_whole(output));
    });
    assert!(n_stopped > 0, "no run was killed: the test proves nothing");
    let output = job.at("outputs/out");
    assert!(job.start(&output).wait().unwrap().success());
    assert_eq!(job.left(), ["out"]);
}

#[test]
fn a_forced_run_that_is_killed_keeps_the_old_output() {
    let job = Job::new();
    let output = job.at("outputs/out");
    assert!(job.start(&output).wait().unwrap().success());
    let before = fs::read_to_string(output.join("sha256sums.txt")).unwrap();
    for delay_ms in [1, 5, 10, 20, 40, 80] {
        let mut child = job.start(&output);
        std::thread::sleep(Duration::from_millis(delay_ms));
        signal(&child, "-KILL");
        child.wait().unwrap();
        assert!(is_whole(&output));
        assert_eq!(fs::read_to_string(output.join("sha256sums.txt")).unwrap(), before);
    }
}

#[test]
fn of_two_runs_into_one_directory_one_wins_and_one_is_refused() {
    let job = Job::new();
    let output = job.at("outputs/out");
    let children = [job.start(&output), job.start(&output)];
    let outputs = children.map(|child| child.wait_with_output().unwrap());
    let refused: Vec<_> = outputs.iter().filter(|o| !o.status.success()).map(stderr).collect();
    assert!(is_whole(&output));
    // Both succeed when one ended before the other began.
    assert!(refused.iter().all(|text| text.contains("another draftfast is writing this output")), "{refused:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let job = Job::new();
    fs::write(job.at("file"), "").unwrap();
    let args = job.args(&job.at("file/out"));
    let output = draftfast(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("file`: cannot create the folder"), "{}", stderr(&output));
}

/// A small file system that unmounts itself.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount(n_kilobytes: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let size = format!("size={n_kilobytes}k");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(dir.path()).output();
        mount.is_ok_and(|output| output.status.success()).then_some(Self(dir))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_is_said_and_leaves_nothing() {
    let job = Job::new();
    // Too small for the drafter, which is seen before it is written; and with room for it but not for all the rest.
    let needed = fs::metadata(job.at("model/config.json")).unwrap().len() / 1024;
    let probe = job.at("outputs/probe");
    assert!(job.start(&probe).wait().unwrap().success());
    let drafter = fs::metadata(probe.join("drafter.safetensors")).unwrap().len().div_ceil(1024);
    for (n_kilobytes, said) in [(64, "bytes, and the disk has"), (drafter + needed + 12, "No space left on device")] {
        let Some(disk) = SmallDisk::mount(usize::try_from(n_kilobytes).unwrap()) else {
            println!("skipped: mounting a small file system needs root");
            return;
        };
        let output = disk.0.path().join("out");
        let args = job.args(&output);
        let run = draftfast(&args.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(run.status.code(), Some(1));
        assert!(stderr(&run).contains(said), "{n_kilobytes} kB: {}", stderr(&run));
        assert_eq!(fs::read_dir(disk.0.path()).unwrap().count(), 0, "nothing is left");
    }
}

#[test]
fn force_replaces_only_what_draftfast_wrote_and_never_an_input() {
    let job = Job::new();
    let run = |output: &Path| {
        let args = job.args(output);
        draftfast(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    // The model itself, a folder that holds it, a folder of somebody's files, a file.
    fs::create_dir(job.at("notes")).unwrap();
    fs::write(job.at("notes/a.txt"), "mine").unwrap();
    for (output, said) in [
        ("model", "is an input of this run"),
        ("notes", "is no output of draftfast"),
        ("ids.txt", "is no output of draftfast"),
    ] {
        let refused = run(&job.at(output));
        assert_eq!(refused.status.code(), Some(1), "{output}");
        assert!(stderr(&refused).contains(said), "{output}: {}", stderr(&refused));
    }
    assert!(job.at("model/config.json").exists() && job.at("notes/a.txt").exists());
    assert!(run(job.dir.path()).status.code() == Some(1), "a folder that holds the model");
    assert!(job.at("model/config.json").exists());
    assert!(run(&job.at("outputs/out")).status.success() && run(&job.at("outputs/out")).status.success());
}

#[test]
fn a_lock_file_that_is_a_link_is_not_followed() {
    let job = Job::new();
    fs::write(job.at("precious"), "data").unwrap();
    std::os::unix::fs::symlink(job.at("precious"), job.at("outputs/.out.draftfast-lock")).unwrap();
    assert!(!job.start(&job.at("outputs/out")).wait().unwrap().success());
    assert_eq!(fs::read_to_string(job.at("precious")).unwrap(), "data");
}

#[test]
fn a_closed_stderr_does_not_stop_the_job() {
    let job = Job::new();
    let output = job.at("outputs/out");
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_draftfast"));
    let status = command.args(job.args(&output)).stdout(Stdio::null()).stderr(full).status().unwrap();
    assert!(status.success() && is_whole(&output));
}

#[test]
fn devices_fifos_and_absurd_numbers_are_refused_at_once() {
    let job = Job::new();
    let at = |name: &str| job.at(name).to_str().unwrap().to_owned();
    assert!(Command::new("mkfifo").arg(at("fifo")).status().unwrap().success());
    for (args, said) in [
        (vec!["inspect", "/dev/zero"], "not a regular file"),
        (vec!["convert", &at("fifo"), "mask.pt", "--target-rows", "9"], "not a regular file"),
        (vec!["convert", &at("ids.txt"), "mask.pt", "--target-rows", "99999999999999"], "expected 1 to 16777216"),
        (vec!["convert", &at("ids.txt"), "mask.pt", "--target-rows", "0"], "expected 1 to 16777216"),
    ] {
        let output = draftfast(&args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(stderr(&output).contains(said), "{args:?}: {}", stderr(&output));
    }
    let padded = ["quantize", "m", "--vocab", "v", "-o", "o", "--pad-to", "18446744073709551615"];
    assert_eq!(draftfast(&padded).status.code(), Some(2));
}
