//! Atomic writing: under a temporary name, synced, then renamed, so that an output is whole or absent.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, CWD, RenameFlags, access, renameat_with};
use sha2::{Digest, Sha256};

use super::{FileRecord, MANIFEST, digest, hex, is_bundle, read_manifest};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::quant::stream::Fault;

/// A folder that becomes the bundle at `dir` or disappears.
pub(crate) struct Staging {
    dir: PathBuf,
    path: PathBuf,
    need_bytes: u64,
    /// What was free before anything was written, where the system tells.
    free_bytes: Option<u64>,
    finished: bool,
    /// Released last, when nothing of this build is left under a temporary name.
    _lock: Lock,
}

/// The right to write to one place: a locked file beside it. Only who holds the lock of the file that is
/// there removes it, so two builds never hold it at once.
#[derive(Debug)]
pub struct Lock {
    path: PathBuf,
    /// Holds the lock as long as it is open.
    _file: File,
}

impl Lock {
    /// Takes the lock `path` of what is written to `dir`.
    ///
    /// Errors: [`Code::Unwritable`], also while another build holds it.
    pub fn take(dir: &Path, path: PathBuf) -> Result<Lock> {
        let opened = File::options().create(true).truncate(false).write(true).open(&path);
        let file = opened.map_err(|e| refusal(dir, &e))?;
        let same = || -> io::Result<bool> { Ok(file.metadata()?.ino() == fs::metadata(&path)?.ino()) };
        if file.try_lock().is_ok() && same().unwrap_or(false) {
            return Ok(Lock { path, _file: file });
        }
        Err(Diagnostic::error(Code::Unwritable, "another build is writing to this place")
            .file(dir)
            .help("wait for it, or name another folder")
            .into())
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // A file that stays does no harm: its lock ends with this process.
        let _ = fs::remove_file(&self.path);
    }
}

impl Staging {
    /// A staging folder for a bundle of about `need_bytes` at `dir`; clears what a killed build left there.
    ///
    /// Errors: a `dir` that is something else than a bundle or an empty folder, a build that is writing to
    /// it now, too little space.
    pub(crate) fn create(dir: &Path, need_bytes: u64) -> Result<Staging> {
        let dir = resolve_link(dir)?;
        let name = folder_name(&dir)?;
        let beside = |ending: &str| dir.with_file_name(format!(".{}.{ending}-npuc", name.to_string_lossy()));
        let (path, lock) = (beside("tmp"), beside("lock"));
        let refused = |error: io::Error| refusal(&dir, &error);
        dir.parent().map_or(Ok(()), fs::create_dir_all).map_err(refused)?;
        let lock = Lock::take(&dir, lock)?;
        refuse_other_content(&dir)?;
        if path.exists() {
            fs::remove_dir_all(&path).map_err(refused)?;
        }
        fs::create_dir(&path).map_err(refused)?;
        let free_bytes = rustix::fs::statvfs(&path).ok().map(|stat| stat.f_bavail * stat.f_frsize);
        let staging = Staging { dir, path, need_bytes, free_bytes, finished: false, _lock: lock };
        if free_bytes.is_some_and(|free| free < need_bytes) {
            return Err(staging.fault("", &io::ErrorKind::StorageFull.into()).into());
        }
        Ok(staging)
    }

    /// What to say of a write to `name` inside the bundle that failed.
    pub(crate) fn fault(&self, name: &str, error: &io::Error) -> Diagnostic {
        let fault = refusal(&if name.is_empty() { self.dir.clone() } else { self.dir.join(name) }, error);
        match self.free_bytes {
            Some(free) if is_full(error) => {
                fault.need(format!("about {} bytes for the bundle", self.need_bytes)).have(format!("{free} bytes free"))
            }
            Some(_) | None => fault,
        }
    }

    /// A file inside the bundle that `put` writes piece by piece; synced and hashed.
    pub(crate) fn stream(
        &self,
        name: &str,
        put: impl FnOnce(&mut HashingWriter) -> io::Result<()>,
    ) -> Result<FileRecord> {
        let out = BufWriter::with_capacity(1 << 20, self.create_file(name)?);
        let mut out = HashingWriter { out, hash: Sha256::new(), bytes: 0 };
        let written = put(&mut out).and_then(|()| out.flush()).and_then(|()| out.out.get_ref().sync_all());
        written.map_err(|e| self.fault(name, &e))?;
        Ok(FileRecord { path: name.into(), bytes: out.bytes, sha256: hex(&out.hash.finalize()) })
    }

    fn create_file(&self, name: &str) -> Result<File> {
        let path = self.path.join(name);
        let made = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| File::create(&path));
        Ok(made.map_err(|e| self.fault(name, &e))?)
    }

    /// Writes and syncs a whole file inside the bundle.
    pub(crate) fn write(&self, name: &str, bytes: &[u8]) -> Result<FileRecord> {
        self.stream(name, |out| out.write_all(bytes))
    }

    /// The folder that becomes the bundle.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file inside the bundle that another program wrote; synced and hashed.
    pub(crate) fn record(&self, name: &str) -> Result<FileRecord> {
        let path = self.path.join(name);
        File::open(&path).and_then(|file| file.sync_all()).map_err(|e| self.fault(name, &e))?;
        let (bytes, sha256) = digest(&path)?;
        Ok(FileRecord { path: name.into(), bytes, sha256 })
    }

    /// Syncs the folders and puts the bundle in its place.
    pub(crate) fn finish(mut self) -> Result<()> {
        let put = sync_folders(&self.path).and_then(|()| self.replace());
        put.map_err(|e| self.fault("", &e))?;
        self.finished = true;
        Ok(())
    }

    fn replace(&self) -> io::Result<()> {
        if !self.dir.exists() {
            fs::rename(&self.path, &self.dir)?;
        } else if renameat_with(CWD, &self.path, CWD, &self.dir, RenameFlags::EXCHANGE).is_ok() {
            fs::remove_dir_all(&self.path)?;
        } else {
            // A file system that cannot exchange: the old bundle steps aside for a moment.
            let old = self.path.with_extension("old-npuc");
            fs::rename(&self.dir, &old)?;
            if let Err(error) = fs::rename(&self.path, &self.dir) {
                fs::rename(&old, &self.dir)?;
                return Err(error);
            }
            fs::remove_dir_all(&old)?;
        }
        let parent = self.dir.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.finished {
            // The error that ended the build is already on its way to the user.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

/// A file that is hashed on its way to the disk.
pub(crate) struct HashingWriter {
    out: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl HashingWriter {
    /// Writes the bytes at the next multiple of `align`, and gives their offset.
    pub(crate) fn put_aligned(&mut self, bytes: &[u8], align: u64) -> io::Result<u64> {
        let padding = self.bytes.next_multiple_of(align) - self.bytes;
        io::copy(&mut io::repeat(0).take(padding), self)?;
        let offset = self.bytes;
        self.write_all(bytes)?;
        Ok(offset)
    }
}

impl Write for HashingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Refuses a place where no bundle can be put, so that long work does not end in vain.
///
/// Errors: [`Code::Unwritable`] for a place without a name, or something else than a bundle or an empty folder.
pub fn check_folder(dir: &Path) -> Result<()> {
    let dir = resolve_link(dir)?;
    folder_name(&dir)?;
    refuse_other_content(&dir)
}

/// Refuses a place where no file can be written, so that long work does not end in vain.
///
/// Errors: [`Code::Unwritable`] for a folder, and for a file in a folder that is not there or is read-only.
pub fn check_file(path: &Path) -> Result<()> {
    let refused = |error: io::ErrorKind| Error::from(refusal(path, &error.into()));
    let target = if path.is_symlink() { fs::canonicalize(path).map_err(|e| refusal(path, &e))? } else { path.into() };
    if target.is_dir() {
        return Err(refused(io::ErrorKind::IsADirectory));
    }
    let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let is_special = target.exists() && !target.is_file();
    if !is_special {
        let writable = access(parent, Access::WRITE_OK | Access::EXEC_OK);
        writable.map_err(|e| refusal(path, &e.into()))?;
    }
    Ok(())
}

fn folder_name(dir: &Path) -> Result<&OsStr> {
    let fault = || Diagnostic::error(Code::Unwritable, "the output has no folder name").file(dir);
    dir.file_name().ok_or_else(|| fault().help("name a new folder").into())
}

/// The folder that a link points to, so that the link stays what it is.
fn resolve_link(dir: &Path) -> Result<PathBuf> {
    if !dir.is_symlink() {
        return Ok(dir.to_path_buf());
    }
    fs::canonicalize(dir).map_err(|_| {
        let fault = Diagnostic::error(Code::Unwritable, "the output is a link that points to nothing").file(dir);
        fault.help("name the folder itself").into()
    })
}

/// The endings of the files that a compiler of MediaTek's leaves beside each TFLite file.
const COMPILED: [&str; 3] = [".dla", ".dla.log", ".part.dla"];

/// What `npuc push` leaves in a bundle.
pub const PUSH_SCRIPT: &str = "push.sh";

/// Only a new place, an empty folder or a bundle with nothing but its own files is written to.
///
/// Errors: [`Code::Unwritable`] for any other place.
pub fn refuse_other_content(dir: &Path) -> Result<()> {
    let fault = |message: &str| {
        let fault = Diagnostic::error(Code::Unwritable, message).file(dir);
        fault.help("name a new folder, or one that holds nothing but a bundle to replace")
    };
    let empty = || fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_none());
    if !dir.exists() || (dir.is_dir() && empty()) {
        return Ok(());
    }
    if !is_bundle(dir) {
        return Err(fault("the output exists and is not a bundle").into());
    }
    let manifest = read_manifest(&dir.join(MANIFEST))
        .map_err(|_| fault("the output exists and is a bundle that is damaged or of another version"))?;
    // What ncc-tflite made of the bundle's files is the bundle's too, and so is the script of a push.
    let emitted = manifest.graphs.iter().filter_map(|graph| graph.emitted.as_ref()?.strip_suffix(".tflite"));
    let compiled: Vec<String> = emitted.flat_map(|stem| COMPILED.map(|ending| format!("{stem}{ending}"))).collect();
    let own = |name: &str| {
        name == MANIFEST
            || name == PUSH_SCRIPT
            || manifest.files.iter().any(|file| file.path == name)
            || compiled.iter().any(|file| file == name)
    };
    let files = files_below(dir, "").map_err(|e| refusal(dir, &e))?;
    match files.into_iter().find(|name| !own(name)) {
        Some(other) => {
            let fault = fault("the output is a bundle with a file that is not its own");
            Err(fault.have(other).into())
        }
        None => Ok(()),
    }
}

fn files_below(dir: &Path, prefix: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            names.extend(files_below(&entry.path(), &format!("{name}/"))?);
        } else {
            names.push(name);
        }
    }
    Ok(names)
}

fn refusal(path: &Path, error: &io::Error) -> Diagnostic {
    let fault = Diagnostic::error(Code::Unwritable, format!("cannot write: {error}")).file(path);
    if is_full(error) {
        fault.help("free some space or name a place on another disk")
    } else if error.kind() == io::ErrorKind::FileTooLarge {
        fault.help("raise the limit on file sizes (ulimit -f)")
    } else {
        fault.help("name a place that can be written")
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn sync_folders(path: &Path) -> io::Result<()> {
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    File::open(path)?.sync_all()
}

/// Writes one file outside a bundle: to a temporary name beside it, synced, then renamed. Links are
/// followed, and what is no regular file (a pipe, a device) is written to as it is.
///
/// Errors: a file that cannot be written; nothing is left then.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    stream_file(path, bytes.len() as u64, |out| out.write_all(bytes).map_err(Fault::Output))
}

/// [`write_file`] for `need_bytes` that `put` writes piece by piece.
///
/// Errors: those of `put`; a place that cannot be written or has too little space, the latter before anything is written.
pub fn stream_file(path: &Path, need_bytes: u64, put: impl FnOnce(&mut dyn Write) -> Result<(), Fault>) -> Result<()> {
    let refused = |error: &io::Error| Error::from(refusal(path, error).need(format!("{need_bytes} bytes")));
    let told = |fault: Fault| match fault {
        Fault::Weight(error) => error,
        Fault::Output(error) => refused(&error),
    };
    let target = if path.is_symlink() { fs::canonicalize(path).map_err(|e| refused(&e))? } else { path.to_path_buf() };
    if target.exists() && !target.is_file() {
        let mut out = File::options().write(true).open(&target).map_err(|e| refused(&e))?;
        return put(&mut out).map_err(told);
    }
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let temporary = target.with_file_name(format!(".{name}.{}.tmp-npuc", std::process::id()));
    let written = || -> Result<(), Fault> {
        let file = File::create(&temporary).map_err(Fault::Output)?;
        let free = rustix::fs::fstatvfs(&file).ok().map(|stat| stat.f_bavail * stat.f_frsize);
        if free.is_some_and(|free| free < need_bytes) {
            return Err(Fault::Output(io::ErrorKind::StorageFull.into()));
        }
        let mut out = BufWriter::with_capacity(1 << 20, file);
        put(&mut out)?;
        let finished = out.flush().and_then(|()| out.get_ref().sync_all());
        finished.and_then(|()| fs::rename(&temporary, &target)).map_err(Fault::Output)
    };
    written().map_err(|fault| {
        // The error that matters is the first one.
        let _ = fs::remove_file(&temporary);
        told(fault)
    })
}
