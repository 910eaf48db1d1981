//! Lines that prove their order: each ends with its own SHA-256, which covers that of the line before.
//!
//! The hash of a line is over its bytes up to the last comma, i.e. without `,"hash":"<64 digits>"}`.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Result};
use serde::Serialize;
use sha2::{Digest, Sha256};

/// What the first line has for the hash of the line before.
pub const GENESIS: &str = "0000000000000000000000000000000000000000000000000000000000000000";
const HASH_KEY: &str = ",\"hash\":\"";
const HASH_END: &str = "\"}";
const HASH_DIGITS: usize = 64;

/// The SHA-256 of bytes in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(2 * digest.len()), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The line of an object that has its own `prev`, with its hash and the line end; and the hash.
pub(crate) fn sealed(object: &impl Serialize) -> (String, String) {
    let mut text = serde_json::to_string(object).expect("lines have only text keys");
    text.pop();
    let hash = sha256(text.as_bytes());
    text.push_str(&format!("{HASH_KEY}{hash}{HASH_END}\n"));
    (text, hash)
}

/// The hash that a line has, if it ends as a line of a chain does, and whether that is its hash.
pub fn claimed(line: &str) -> Option<(&str, bool)> {
    let body = line.len().checked_sub(HASH_KEY.len() + HASH_DIGITS + HASH_END.len())?;
    let (body, end) = line.split_at_checked(body)?;
    let hash = end.strip_prefix(HASH_KEY)?.strip_suffix(HASH_END)?;
    Some((hash, sha256(body.as_bytes()) == hash))
}

/// A file that lines are appended to, each on the disk before the next begins. While it is open, no other npuc writes to it.
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    bytes: u64,
    last: String,
}

impl Journal {
    /// Goes on behind the first `bytes` of a file, the last line of which has the hash `last`; what is behind them is
    /// cut off.
    ///
    /// Errors: the file cannot be opened or another process writes to it.
    pub fn open(path: &Path, file: File, bytes: u64, last: &str) -> Result<Journal> {
        let fault = |e: std::io::Error| unwritable(path, &e);
        file.set_len(bytes).map_err(fault)?;
        file.sync_all().map_err(fault)?;
        sync_folder(path)?;
        Ok(Journal { path: path.to_path_buf(), file, bytes, last: last.to_string() })
    }

    /// The hash of the last line.
    pub fn last(&self) -> &str {
        &self.last
    }

    /// Appends an object whose `prev` is [`Journal::last`] and returns when it is on the disk.
    ///
    /// Errors: it could not be written; the file then ends with the line before, as far as the system lets it.
    pub fn append(&mut self, object: &impl Serialize) -> Result<()> {
        let (line, hash) = sealed(object);
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Where this fails too, resuming drops the torn line.
            let _ = self.file.set_len(self.bytes).and_then(|()| self.file.sync_data());
            return Err(unwritable(&self.path, &error)
                .help("all lines before it are whole: free space, then go on with --resume")
                .into());
        }
        self.bytes += line.len() as u64;
        self.last = hash;
        Ok(())
    }
}

/// A new name is on the disk when its folder is.
fn sync_folder(path: &Path) -> Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|e| unwritable(folder, &e).into())
}

fn unwritable(path: &Path, error: &std::io::Error) -> Diagnostic {
    Diagnostic::error(Code::Unwritable, format!("cannot write the results: {error}")).file(path)
}
