//! Outputs that are whole or absent: a directory (or a file) is staged under a temporary name beside its final place,
//! synced, and renamed. A crash leaves a `.NAME.partial-*` folder, never a half-written result; the next run removes it.
//!
//! One lock per output name: of two builds into one directory, the second is refused.

mod hashing;
mod scattered;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use rustix::fs::OFlags;
use sha2::{Digest, Sha256};

pub use self::{
    hashing::{Digests, HashingFile},
    scattered::ScatteredFile,
};
use crate::error::{Hint, advise};

/// A directory under construction.
#[derive(Debug)]
pub struct StagedDir {
    target: PathBuf,
    staging: tempfile::TempDir,
    force: bool,
    digests: Digests,
    lock: Lock,
}

/// An exclusive lock on an output name; its file is removed when it is released.
#[derive(Debug)]
struct Lock {
    path: PathBuf,
    _file: File,
}

impl Lock {
    fn take(target: &Path, path: PathBuf) -> Result<Self> {
        use std::os::unix::fs::MetadataExt;
        loop {
            // The name is predictable: never through a link, never waiting for a FIFO's reader, never truncating.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
            let mut options = OpenOptions::new();
            options.write(true).create(true).custom_flags(flags.bits().cast_signed());
            let file = options
                .open(&path)
                .with_context(|| format!("`{}`: cannot lock this output", target.display()))
                .hint("choose another place with `-o DIR`")?;
            if !file.metadata().is_ok_and(|m| m.is_file()) {
                bail!("`{}` is in the way: it is not a regular file", path.display());
            }
            if file.try_lock().is_err() {
                bail!("`{}`: another draftfast is writing this output", target.display());
            }
            // The holder before us may have removed the file between our opening and our locking it.
            let ours = file.metadata().map(|m| m.ino()).ok();
            if ours.is_some() && path.metadata().map(|m| m.ino()).ok() == ours {
                return Ok(Self { path, _file: file });
            }
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removed while still locked, so that nobody else's file is removed.
        let _ = fs::remove_file(&self.path);
    }
}

impl StagedDir {
    /// Prepares a directory that will become `target`.
    ///
    /// # Errors
    /// `target` exists and is not an empty folder (unless `force`), its parent is not writable, or another process is
    /// writing it.
    pub fn create(target: &Path, force: bool) -> Result<Self> {
        refuse_existing(target, force)?;
        // A link to an empty folder: what it leads to is replaced, not the link.
        let resolved = target.canonicalize();
        let target = resolved.as_deref().unwrap_or(target);
        let (parent, name) = split(target)?;
        fs::create_dir_all(&parent).with_context(|| format!("`{}`: cannot create the folder", parent.display()))?;
        let lock = Lock::take(target, parent.join(format!(".{name}.draftfast-lock")))?;
        let prefix = format!(".{name}.partial-");
        remove_stale(&parent, &prefix);
        let staging = tempfile::Builder::new()
            .prefix(&prefix)
            .tempdir_in(&parent)
            .with_context(|| format!("`{}`: the folder is not writable", parent.display()))
            .hint("choose another place with `-o DIR`")?;
        Ok(Self { target: target.to_owned(), staging, force, digests: Digests::default(), lock })
    }

    /// Where the files are while the directory is being written.
    pub fn path(&self) -> &Path {
        self.staging.path()
    }

    /// Creates a file of the directory, mode 0644 as the umask allows.
    ///
    /// # Errors
    /// The file cannot be created.
    pub fn file(&self, name: &str) -> Result<HashingFile> {
        HashingFile::create(&self.path().join(name), name, self.digests.clone())
    }

    /// Creates a file of the directory that has `n_bytes` and is written out of order.
    ///
    /// # Errors
    /// The file cannot be created, or there is no room for it.
    pub fn scattered(&self, name: &str, n_bytes: u64) -> Result<ScatteredFile> {
        ScatteredFile::create(&self.path().join(name), name, n_bytes, self.digests.clone())
    }

    /// The sha256 of each file that has been written.
    pub fn digests(&self) -> &Digests {
        &self.digests
    }

    /// Writes a whole small file; returns its sha256 in hexadecimal.
    ///
    /// # Errors
    /// The disk is full or the file cannot be created.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<String> {
        let mut file = self.file(name)?;
        file.write_all(bytes).with_context(|| format!("`{name}`: cannot write"))?;
        file.finish()
    }

    /// Syncs the directory and moves it to its final place, atomically: readers see the old one or the new one.
    ///
    /// # Errors
    /// The disk is full, or the rename fails; the old output, if any, is untouched.
    pub fn commit(self) -> Result<()> {
        let Self { target, staging, force, lock, .. } = self;
        set_mode(staging.path(), 0o755)?;
        sync_below(staging.path())?;
        let say = || format!("`{}`: cannot move the finished output into place", target.display());
        if target.exists() && force && !is_empty_dir(&target) {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            renameat_with(CWD, staging.path(), CWD, &target, RenameFlags::EXCHANGE).with_context(say)?;
            // The temporary name now holds the old output; dropping `staging` removes it.
            staging.close().with_context(say)?;
        } else {
            fs::rename(staging.path(), &target).with_context(say)?;
            let _ = staging.keep();
        }
        let (parent, _) = split(&target)?;
        File::open(&parent)?.sync_all().with_context(say)?;
        drop(lock);
        Ok(())
    }
}

/// # Errors
/// `target` exists and is not an empty folder, and either `force` is not given or it is nothing that draftfast wrote: a
/// mistyped `-o model/ --force` must not cost a model.
pub fn refuse_existing(target: &Path, force: bool) -> Result<()> {
    split(target)?;
    let Ok(link) = target.symlink_metadata() else { return Ok(()) };
    if link.is_symlink() && !target.exists() {
        bail!("`{}` is a link that leads nowhere", target.display());
    }
    if is_empty_dir(target) {
        return Ok(());
    }
    if !force {
        return Err(exists_already(target));
    }
    if !is_ours(target) {
        return Err(advise(
            anyhow::anyhow!("`{}` is no output of draftfast, and `--force` replaces only those", target.display()),
            "remove it yourself if you mean to, or choose another place with `-o`",
        ));
    }
    Ok(())
}

/// What a long run asks before it begins: a file can be written at `path`, whose folder is made where it is missing.
///
/// # Errors
/// As [`refuse_existing_file`], or the folder cannot be made or written.
pub fn prepare_file(path: &Path, force: bool) -> Result<()> {
    refuse_existing_file(path, force)?;
    let (parent, _) = split(path)?;
    fs::create_dir_all(&parent).with_context(|| format!("`{}`: cannot create the folder", parent.display()))?;
    rustix::fs::access(&parent, rustix::fs::Access::WRITE_OK)
        .with_context(|| format!("`{}`: the folder is not writable", parent.display()))
        .hint("choose another place with `-o FILE`")
}

/// # Errors
/// `path` is a folder, or exists and `force` is not given.
pub fn refuse_existing_file(path: &Path, force: bool) -> Result<()> {
    if path.is_dir() || path.as_os_str().as_encoded_bytes().ends_with(b"/") {
        bail!("`{}` is a folder, not a file", path.display());
    }
    if !force && path.symlink_metadata().is_ok() {
        return Err(exists_already(path));
    }
    Ok(())
}

fn exists_already(path: &Path) -> anyhow::Error {
    advise(
        anyhow::anyhow!("`{}` exists already", path.display()),
        "give `--force` to replace it, or another place with `-o`",
    )
}

/// # Errors
/// `target` is one of the inputs, or holds one: replacing it would take the input away.
pub fn refuse_inputs<'a>(target: &Path, inputs: impl IntoIterator<Item = &'a Path>) -> Result<()> {
    let Ok(target) = target.canonicalize() else { return Ok(()) };
    for input in inputs {
        if input.canonicalize().is_ok_and(|input| input.starts_with(&target)) {
            bail!("`{}` is an input of this run (or holds one) and cannot be its output", input.display());
        }
    }
    Ok(())
}

/// Whether a folder holds what draftfast wrote: one of the files with provenance says so.
fn is_ours(dir: &Path) -> bool {
    const MAX_BYTES: u64 = 64 << 20;
    let says_so = |name: &str| {
        let text = crate::input::read_file(&dir.join(name), MAX_BYTES).unwrap_or_default();
        text.windows(b"draftfast".len()).any(|window| window == b"draftfast")
    };
    dir.is_dir() && PROVENANCE.iter().any(|name| says_so(name))
}

/// Files in which an output says who wrote it.
const PROVENANCE: [&str; 4] =
    ["manifest.json", "vocabulary.json", "draft_vocab.safetensors", "model.safetensors.index.json"];

/// Writes one file atomically: temporary name beside it, synced, renamed.
///
/// # Errors
/// `path` exists (unless `force`), or cannot be written.
pub fn write_file(path: &Path, bytes: &[u8], force: bool) -> Result<()> {
    prepare_file(path, force)?;
    let (parent, name) = split(path)?;
    let mut file = tempfile::Builder::new()
        .prefix(&format!(".{name}.partial-"))
        .permissions(mode(0o666))
        .tempfile_in(&parent)
        .with_context(|| format!("`{}`: the folder is not writable", parent.display()))?;
    let say = || format!("`{}`: cannot write", path.display());
    file.write_all(bytes).with_context(say)?;
    file.as_file().sync_all().with_context(say)?;
    file.persist(path).with_context(say)?;
    File::open(&parent)?.sync_all().with_context(say)
}

/// Brings a folder and everything below it to the disk. All files are given to it before the first is waited for: the
/// journal, written for that one, then has the others as well. One thread does it, as starting more would wait for whoever
/// is giving back memory.
///
/// # Errors
/// The disk is full or fails.
fn sync_below(root: &Path) -> Result<()> {
    let (mut paths, mut n_listed) = (vec![root.to_owned()], 0);
    while let Some(path) = paths.get(n_listed) {
        if path.is_dir() {
            let entries = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>>>()?;
            paths.extend(entries);
        }
        n_listed += 1;
    }
    // Whose bytes take longest.
    paths.sort_by_cached_key(|path| std::cmp::Reverse(path.metadata().map_or(0, |metadata| metadata.len())));
    let with_each = |work: &dyn Fn(&File) -> io::Result<()>| {
        paths.iter().try_for_each(|path| {
            let say = || format!("`{}`: cannot write", path.file_name().unwrap_or_default().to_string_lossy());
            File::open(path).and_then(|file| work(&file)).with_context(say)
        })
    };
    with_each(&|file| {
        scattered::begin_writing(file);
        Ok(())
    })?;
    with_each(&File::sync_all)
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The sha256 of a slice in lower-case hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// Removes what runs that were killed have left. Only the holder of the lock calls this, so nobody is writing there.
fn remove_stale(parent: &Path, prefix: &str) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix)) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

fn split(path: &Path) -> Result<(PathBuf, String)> {
    let name = path.file_name().with_context(|| format!("`{}` does not name an output", path.display()))?;
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
        _ => PathBuf::from("."),
    };
    Ok((parent, name.to_string_lossy().into_owned()))
}

fn is_empty_dir(path: &Path) -> bool {
    fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none())
}

fn mode(bits: u32) -> fs::Permissions {
    use std::os::unix::fs::PermissionsExt;
    fs::Permissions::from_mode(bits)
}

fn set_mode(path: &Path, bits: u32) -> Result<()> {
    fs::set_permissions(path, mode(bits)).with_context(|| format!("`{}`: cannot set the mode", path.display()))
}
