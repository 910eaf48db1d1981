//! What there is to say of the machine and of the model's files, for a header.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

use npuc::bundle::{self, MANIFEST};
use npuc::{Code, Diagnostic, Result};
use sha2::{Digest, Sha256};

use crate::chain::hex;
use crate::record::Host;

/// The machine.
pub fn host() -> Host {
    let system = rustix::system::uname();
    let line = |file: &str, keys: &[&str]| {
        let text = fs::read_to_string(file).ok()?;
        let of = |line: &str| {
            let (key, value) = line.split_once(':')?;
            keys.contains(&key.trim()).then(|| value.trim().to_string())
        };
        text.lines().find_map(of)
    };
    let memory = line("/proc/meminfo", &["MemTotal"]);
    Host {
        os: system.sysname().to_string_lossy().into_owned(),
        kernel: system.release().to_string_lossy().into_owned(),
        arch: system.machine().to_string_lossy().into_owned(),
        cpu: line("/proc/cpuinfo", &["model name", "Hardware"]),
        cpus: std::thread::available_parallelism().map_or(1, usize::from),
        memory_bytes: memory.and_then(|kib| kib.strip_suffix(" kB")?.parse::<u64>().ok()).map(|kib| kib * 1024),
    }
}

/// The hash that names a model, and what it is of.
///
/// Errors: a file cannot be read.
pub fn model_hash(path: &Path) -> Result<(String, String)> {
    if bundle::is_bundle(path) {
        return Ok((file_hash(&path.join(MANIFEST))?, MANIFEST.to_string()));
    }
    if path.is_file() {
        return Ok((file_hash(path)?, "the file".to_string()));
    }
    let unreadable = |e| Diagnostic::error(Code::Unreadable, format!("cannot list the folder: {e}")).file(path);
    let mut names = Vec::new();
    for entry in fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        if entry.path().is_file() {
            names.push(entry.file_name());
        }
    }
    names.sort();
    let mut all = Sha256::new();
    for name in names {
        all.update(format!("{}  {}\n", file_hash(&path.join(&name))?, name.to_string_lossy()));
    }
    Ok((hex(&all.finalize()), "the lines `<sha256>  <name>` of all files, by name".to_string()))
}

fn file_hash(path: &Path) -> Result<String> {
    let unreadable = |e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    let mut file = File::open(path).map_err(unreadable)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer).map_err(unreadable)? {
            0 => return Ok(hex(&hash.finalize())),
            read => hash.update(&buffer[..read]),
        }
    }
}
