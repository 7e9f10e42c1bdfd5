//! Tables in large pages: at random places in a few megabytes, the processor looks up pages longer than it reads.

/// Bytes of a large page.
const N_PAGE_BYTES: usize = 1 << 21;

/// A vector of `n` times the same value, in large pages where the system has them.
pub fn filled<T: Clone>(value: T, n: usize) -> Vec<T> {
    let n_bytes = n * size_of::<T>();
    // The first large page starts somewhere behind the first byte.
    let mut filled: Vec<T> = Vec::with_capacity(n + N_PAGE_BYTES / size_of::<T>());
    #[cfg(target_os = "linux")]
    {
        use rustix::mm::{Advice, madvise};
        let start = filled.as_mut_ptr().map_addr(|start| start.next_multiple_of(N_PAGE_BYTES)).cast();
        #[expect(unsafe_code, reason = "a hint to the system")]
        // SAFETY: the pages lie in the vector's memory and stay what they are, whether the system follows or not.
        let _ = unsafe { madvise(start, n_bytes & !(N_PAGE_BYTES - 1), Advice::LinuxHugepage) };
    }
    filled.resize(n, value);
    filled
}
