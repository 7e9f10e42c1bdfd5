//! Ctrl-C and SIGTERM: long loops ask [`check`] once a tile or a document batch, so that destructors run and nothing
//! half-written stays behind. A second signal kills at once.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use anyhow::{Result, bail};

static REQUESTED: std::sync::LazyLock<Arc<AtomicBool>> = std::sync::LazyLock::new(|| Arc::new(AtomicBool::new(false)));

/// Installs the handlers. Called once, by `main`.
pub fn install() {
    use signal_hook::{consts, flag};
    for signal in [consts::SIGINT, consts::SIGTERM] {
        // Order matters: the flag is still false at the first signal, so only the second one terminates.
        let _ = flag::register_conditional_default(signal, Arc::clone(&REQUESTED));
        let _ = flag::register(signal, Arc::clone(&REQUESTED));
    }
}

/// # Errors
/// `interrupted`, once a signal has arrived.
pub fn check() -> Result<()> {
    if REQUESTED.load(Ordering::Relaxed) {
        bail!("interrupted: nothing was written");
    }
    Ok(())
}
