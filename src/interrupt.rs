//! Ctrl-C, SIGTERM, SIGHUP and SIGXCPU (a soft `ulimit -t`): long loops ask [`check`] once a tile or a document batch, so
//! that destructors run and nothing half-written stays behind. A second signal kills at once.
//!
//! SIGBUS: checkpoints are mapped, not read, because a gather touches a quarter of the head's rows and a map costs half
//! the copies. The price is that a file truncated under us raises SIGBUS in the middle of a load, from which no
//! destructor runs; the handler can only say so and leave. What was staged is removed by the next run.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};

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
    // SAFETY: the handler makes two system calls, write and _exit, both async-signal-safe.
    let _ = unsafe { signal_hook::low_level::register(consts::SIGBUS, truncated_under_us) };
}

/// Says what a SIGBUS means and leaves.
fn truncated_under_us() {
    const SENTENCE: &[u8] = b"error: a mapped file was truncated or became unreadable while it was read\n\
        hint: another process changed the model folder, or its disk failed: fetch it again and rerun\n";
    #[expect(unsafe_code, reason = "the descriptor of stderr is not owned")]
    // SAFETY: descriptor 2 is stderr for the whole life of the process.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, SENTENCE);
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
