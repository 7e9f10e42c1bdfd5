//! Ctrl-C, SIGTERM, SIGHUP and SIGXCPU (a soft `ulimit -t`): long loops ask [`check`] once a tile or a document batch, so
//! that destructors run and nothing half-written stays behind. A second signal kills at once.
//!
//! SIGBUS: checkpoints are mapped, not read, because a gather touches a quarter of the head's rows and a map costs half
//! the copies. The price is that a file truncated under us raises SIGBUS in the middle of a load, from which no
//! destructor runs; the handler can only say so and leave. What was staged is removed by the next run. When it is the
//! system that reads the map, for a write, it answers EFAULT instead: [`explained`] says the same.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};

use crate::error::advise;

static REQUESTED: std::sync::LazyLock<Arc<AtomicBool>> = std::sync::LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// Installs the handlers. Called once, by `main`.
pub fn install() {
    use signal_hook::{consts, flag};
    for signal in [consts::SIGINT, consts::SIGTERM, consts::SIGHUP] {
        // Order matters: the flag is still false at the first signal, so only the second one terminates.
        let _ = flag::register_conditional_default(signal, Arc::clone(&REQUESTED));
        let _ = flag::register(signal, Arc::clone(&REQUESTED));
    }
    // It comes every second, so the second one does not mean more.
    let _ = flag::register(consts::SIGXCPU, Arc::clone(&REQUESTED));
    // A handled SIGXFSZ makes a write past the file-size limit an error like a full disk, instead of killing us.
    let _ = flag::register(consts::SIGXFSZ, Arc::new(AtomicBool::new(false)));
    #[expect(unsafe_code, reason = "SIGBUS has no safe handler")]
    // SAFETY: the handler makes system calls alone, write and _exit, both async-signal-safe.
    let _ = unsafe { signal_hook::low_level::register(consts::SIGBUS, truncated_under_us) };
}

const TRUNCATED: &str = "a mapped file was truncated or became unreadable while it was read";
const TRUNCATED_HINT: &str = "another process changed the model folder, or its disk failed: fetch it again and rerun";

/// An error of a write from a map whose file was truncated, with that said; any other as it is.
pub fn explained(error: anyhow::Error) -> anyhow::Error {
    let is_fault = |cause: &(dyn std::error::Error + 'static)| {
        let code = cause.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
        code == Some(rustix::io::Errno::FAULT.raw_os_error())
    };
    if error.chain().any(is_fault) { advise(error.context(TRUNCATED), TRUNCATED_HINT) } else { error }
}

/// Says what a SIGBUS means and leaves.
fn truncated_under_us() {
    #[expect(unsafe_code, reason = "the descriptor of stderr is not owned")]
    // SAFETY: descriptor 2 is stderr for the whole life of the process.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    for part in ["error: ", TRUNCATED, "\nhint: ", TRUNCATED_HINT, "\n"] {
        let _ = rustix::io::write(stderr, part.as_bytes());
    }
    signal_hook::low_level::exit(1);
}

/// Whether a signal has arrived.
pub fn is_requested() -> bool {
    REQUESTED.load(Ordering::Relaxed)
}

/// # Errors
/// `interrupted`, once a signal has arrived.
pub fn check() -> Result<()> {
    if is_requested() {
        bail!("interrupted: nothing was written");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_write_from_a_truncated_map_is_explained_and_no_other_error_is() {
        let failed = |errno: rustix::io::Errno| {
            let failed: io::Result<()> = Err(errno.into());
            explained(failed.context("`drafter.safetensors`: cannot write").unwrap_err())
        };
        let fault = failed(rustix::io::Errno::FAULT);
        assert!(format!("{fault:#}").starts_with(&format!("{TRUNCATED}: `drafter.safetensors`: cannot write: ")));
        assert_eq!(crate::error::hints(&fault), [TRUNCATED_HINT]);
        assert!(!format!("{:#}", failed(rustix::io::Errno::NOSPC)).contains(TRUNCATED));
    }
}
