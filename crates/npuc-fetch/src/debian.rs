//! Pinned packages of Debian: fetched with apt into a private root and unpacked with dpkg-deb; nothing is installed.
//!
//! Where the archive is follows from the machine's own apt sources, whatever suite they name. The machine's apt configuration
//! (proxies, certificates) holds here too; its lists, caches and status are not touched.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::{Failed, PLAIN, Result, checked, download_folder, fault, moved, place, retried};

/// A package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Package {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// The suite that has that version.
    pub suite: &'static str,
    /// The SHA-256 of its file for x86-64.
    pub sha256: &'static str,
}

impl Package {
    /// A package of Debian 12.
    pub const fn bookworm(name: &'static str, version: &'static str, sha256: &'static str) -> Package {
        Package { name, version, suite: "bookworm", sha256 }
    }
}

/// `libbsd0`, which several tools need, beside the name of its library.
pub const LIBBSD0: (Package, &str) = (
    Package::bookworm("libbsd0", "0.11.7-2", "bb31cc8b40f962a85b2cec970f7f79cc704a1ae4bad24257a822055404b2c60b"),
    "libbsd.so.0",
);
/// `libx11-xcb1`, which several tools need, beside the name of its library.
pub const LIBX11_XCB1: (Package, &str) = (
    Package::bookworm(
        "libx11-xcb1",
        "2:1.8.4-2+deb12u2",
        "f5da45e1d881a793250a96613f28c471a248877f1a0f18a5c90e2a620a76c898",
    ),
    "libX11-xcb.so.1",
);
/// `libxau6`, which several tools need, beside the name of its library.
pub const LIBXAU6: (Package, &str) = (
    Package::bookworm("libxau6", "1:1.0.9-1", "679db1c4579ec7c61079adeaae8528adeb2e4bf5465baa6c56233b995d714750"),
    "libXau.so.6",
);
/// `libxcb1`, which several tools need, beside the name of its library.
pub const LIBXCB1: (Package, &str) = (
    Package::bookworm("libxcb1", "1.15-1", "fdc61332a3892168f3cc9cfa1fe9cf11a91dc3e0acacbc47cbc50ebaa234cc71"),
    "libxcb.so.1",
);
/// `libxdmcp6`, which several tools need, beside the name of its library.
pub const LIBXDMCP6: (Package, &str) = (
    Package::bookworm("libxdmcp6", "1:1.1.2-3", "ecb8536f5fb34543b55bb9dc5f5b14c9dbb4150a7bddb3f2287b7cab6e9d25ef"),
    "libXdmcp.so.6",
);

/// The suites by which a machine's sources show that they lead to Debian's archive.
const SUITES: [&str; 9] =
    ["bullseye", "bookworm", "trixie", "forky", "sid", "oldstable", "stable", "testing", "unstable"];
/// The keys that Debian's archive signs with, on a machine that has them.
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const NEEDS: &str = "apt-get, dpkg-deb and the network";

/// Where machines have their shared libraries.
const SYSTEM: [&str; 4] = ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// Of packages beside the name of a library the packages whose library the machine lacks, and those beside "".
pub fn lacking(packages: &[(Package, &str)]) -> Vec<Package> {
    let lacks =
        |library: &str| library.is_empty() || !SYSTEM.iter().any(|folder| Path::new(folder).join(library).exists());
    packages.iter().filter(|(_, library)| lacks(library)).map(|(package, _)| *package).collect()
}

/// The folder of the unpacked package in `cache`, if it is there.
pub fn unpacked(cache: &Path, package: &Package) -> Option<PathBuf> {
    Some(place(cache, package.sha256).join(PLAIN)).filter(|folder| folder.is_dir())
}

/// The folders of the unpacked packages in `cache`, of which those that are not there are fetched. `say` is told of failed
/// attempts.
///
/// Errors: the machine has no apt, its sources name no archive of Debian, the archive has another version by now, or a file
/// is not the pinned one.
pub fn install(cache: &Path, packages: &[Package], say: &mut dyn FnMut(&str)) -> Result<Vec<PathBuf>> {
    let absent: Vec<&Package> = packages.iter().filter(|package| unpacked(cache, package).is_none()).collect();
    if !absent.is_empty() {
        fs::create_dir_all(cache).map_err(|e| fault(format!("cannot make {}: {e}", cache.display())))?;
        let root = download_folder(cache)?;
        let names: Vec<&str> = absent.iter().map(|package| package.name).collect();
        let what = format!("Debian's {}", names.join(", "));
        let files = retried(&what, NEEDS, say, || download(&absent, root.path()))?;
        for (package, file) in absent.iter().zip(&files) {
            unpack(cache, package, file, root.path())?;
        }
    }
    let folder = |package: &Package| Ok(place(cache, package.sha256).join(PLAIN));
    packages.iter().map(folder).collect()
}

/// Unpacks a file and moves what is in it to the package's place.
fn unpack(cache: &Path, package: &Package, file: &Path, root: &Path) -> Result<()> {
    let made = root.join(package.sha256);
    let output = Command::new("dpkg-deb").arg("-x").arg(file).arg(&made).output();
    let output = output.map_err(|e| e.to_string()).and_then(|output| succeeded("dpkg-deb", output));
    output.map_err(|e| fault(format!("cannot unpack {}: {e}", file.display())))?;
    let place = place(cache, package.sha256);
    fs::create_dir_all(&place).map_err(|e| fault(format!("cannot make {}: {e}", place.display())))?;
    moved(&made, &place.join(PLAIN))
}

type Attempt<T> = std::result::Result<T, Failed>;

/// Downloads the packages into a folder of `root`, checked; gives their files in order.
fn download(packages: &[&Package], root: &Path) -> Attempt<Vec<PathBuf>> {
    let again = |e: String| Failed::Again(e);
    let archives = archives().map_err(again)?;
    if archives.is_empty() {
        let why = "apt's sources on this machine name no archive of Debian; add Debian's `main` to them";
        return Err(Failed::ForGood(why.to_owned()));
    }
    let suites: BTreeSet<&str> = packages.iter().map(|package| package.suite).collect();
    let files = root.join("files");
    let prepare = || {
        let folders = ["etc/preferences.d", "state/lists/partial", "cache/archives/partial", "files"];
        folders.iter().try_for_each(|folder| fs::create_dir_all(root.join(folder)))?;
        fs::write(root.join("state/status"), "")?;
        fs::write(root.join("etc/sources.list"), sources(&archives, &suites))
    };
    prepare().map_err(|e| again(format!("cannot prepare a root for apt: {e}")))?;
    // An archive without one of the suites fails here; what counts is whether the packages are found.
    let update = apt(root).arg("update").output().map_err(|e| again(e.to_string()))?;
    let wanted = packages.iter().map(|package| format!("{}={}", package.name, package.version));
    let output = apt(root).arg("download").args(wanted).current_dir(&files).output();
    let output = output.map_err(|e| again(e.to_string()))?;
    if !output.status.success() {
        return Err(refusal(packages, &update, &output));
    }
    packages.iter().map(|package| file_of(package, &files)).collect::<std::result::Result<_, _>>().map_err(again)
}

/// Why apt did not download: a version that is gone is gone for good.
fn refusal(packages: &[&Package], update: &Output, download: &Output) -> Failed {
    let text = String::from_utf8_lossy(&download.stderr).into_owned();
    let gone = |package: &&&Package| {
        let (version, name) = (format!("Version '{}'", package.version), format!("'{}'", package.name));
        text.lines().any(|line| line.contains("was not found") && line.contains(&version) && line.contains(&name))
    };
    let updated = update.status.success();
    match packages.iter().find(gone) {
        Some(Package { name, version, suite, sha256: _ }) if updated => Failed::ForGood(format!(
            "the archive's {suite} has another version of {name} by now, and {version} is pinned: a newer npuc may pin the new one"
        )),
        Some(_) | None => {
            let last = |output: &Output| last_line(&String::from_utf8_lossy(&output.stderr));
            Failed::Again(if updated { last(download) } else { format!("{}; {}", last(update), last(download)) })
        }
    }
}

/// The downloaded file of a package, held against its hash.
fn file_of(package: &Package, files: &Path) -> std::result::Result<PathBuf, String> {
    let listed = fs::read_dir(files).map_err(|e| format!("cannot list {}: {e}", files.display()))?;
    let start = format!("{}_", package.name);
    let mut paths = listed.filter_map(std::result::Result::ok).map(|entry| entry.path());
    let of_package = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&start));
    let file = paths.find(of_package).ok_or_else(|| format!("apt left no file of {}", package.name))?;
    checked(&file, package.sha256)?;
    Ok(file)
}

/// The addresses of Debian's archive in the machine's sources.
fn archives() -> std::result::Result<BTreeSet<String>, String> {
    let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", format, "Created-By: Packages"]).env("LC_ALL", "C");
    let output = command.output().map_err(|e| format!("cannot start apt-get: {e}"))?;
    Ok(of_debian(&succeeded("apt-get", output)?))
}

/// Of lines `ADDRESS SUITE COMPONENT` the addresses of Debian's archive.
fn of_debian(lines: &str) -> BTreeSet<String> {
    let address = |line: &str| {
        let mut words = line.split_whitespace();
        let (address, suite, component) = (words.next()?, words.next()?, words.next()?);
        (component == "main" && SUITES.contains(&suite)).then(|| address.to_owned())
    };
    lines.lines().filter_map(address).collect()
}

/// The private root's sources.
fn sources(archives: &BTreeSet<String>, suites: &BTreeSet<&str>) -> String {
    let keys = if Path::new(KEYS).is_file() { format!(" signed-by={KEYS}") } else { String::new() };
    let line =
        |archive: &String, suite: &&str| format!("deb [arch=amd64 target=Packages{keys}] {archive} {suite} main\n");
    archives.iter().flat_map(|archive| suites.iter().map(move |suite| line(archive, suite))).collect()
}

/// A call of apt-get that reads and writes below `root` alone.
fn apt(root: &Path) -> Command {
    let mut apt = Command::new("apt-get");
    let set = |name: &str, value: &str| format!("{name}={value}");
    let below = |name: &str, path: &str| format!("{name}={}", root.join(path).display());
    for option in [
        below("Dir::Etc", "etc"),
        set("Dir::Etc::sourcelist", "sources.list"),
        set("Dir::Etc::sourceparts", "-"),
        set("Dir::Etc::trustedparts", "/etc/apt/trusted.gpg.d"),
        below("Dir::State", "state"),
        below("Dir::State::status", "state/status"),
        below("Dir::Cache", "cache"),
        set("APT::Default-Release", ""),
        set("APT::Architecture", "amd64"),
        set("APT::Architectures", "amd64"),
        set("APT::Sandbox::User", ""),
        set("Acquire::Languages", "none"),
        set("Acquire::Retries", "2"),
    ] {
        apt.args(["-o", &option]);
    }
    apt.arg("--quiet").env("LC_ALL", "C");
    apt
}

/// What a call said on its standard output, if it succeeded.
fn succeeded(program: &str, output: Output) -> std::result::Result<String, String> {
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{program} failed ({}): {}", output.status, last_line(&String::from_utf8_lossy(&output.stderr))))
}

fn last_line(text: &str) -> String {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it says nothing").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKAGE: Package = Package {
        name: "libc6",
        version: "2.41-12+deb13u5",
        suite: "trixie",
        sha256: "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
    };

    #[test]
    fn what_is_there_is_not_fetched() {
        let cache = tempfile::tempdir().expect("a folder");
        assert_eq!(unpacked(cache.path(), &PACKAGE), None);
        let folder = cache.path().join("0123456789abcdef/all");
        fs::create_dir_all(&folder).expect("a folder");
        let installed = install(cache.path(), &[PACKAGE], &mut |line| panic!("{line}"));
        assert_eq!(installed, Ok(vec![folder]));
    }

    #[test]
    #[cfg(all(target_os = "linux", target_arch = "x86_64", target_env = "gnu"))]
    fn only_what_the_machine_lacks_is_needed() {
        let other = Package { name: "other", ..PACKAGE };
        let packages = [(PACKAGE, "libc.so.6"), (other, "libno-such-library.so.1"), (PACKAGE, "")];
        assert_eq!(lacking(&packages), [other, PACKAGE]);
    }

    #[test]
    fn sources_come_from_the_machine() {
        let lines = "http://a/debian/ bookworm main\nhttp://a/debian/ bookworm-updates main\nhttp://b/ nodistro main\n\
                     http://c/debian-security/ bookworm-security main\nhttp://d/ bookworm stable\n\nhttp://e/\n";
        let archives = of_debian(lines);
        assert_eq!(archives, BTreeSet::from(["http://a/debian/".to_owned()]));
        let sources = sources(&archives, &BTreeSet::from(["trixie"]));
        assert!(sources.starts_with("deb [arch=amd64 target=Packages"), "{sources}");
        assert!(sources.ends_with("] http://a/debian/ trixie main\n"), "{sources}");
    }

    /// A real answer of apt to a version that is not there, and one of a machine without a network.
    #[test]
    #[cfg(unix)]
    fn a_version_that_is_gone_is_told() {
        use std::os::unix::process::ExitStatusExt;
        let answer = |code: i32, text: &str| Output {
            status: std::process::ExitStatus::from_raw(code << 8),
            stdout: Vec::new(),
            stderr: text.as_bytes().to_vec(),
        };
        let gone = answer(100, "E: Version '2.41-12+deb13u5' for 'libc6' was not found\n");
        let offline = answer(100, "E: Failed to fetch the index\n");
        for (update, download, expected) in [
            (
                answer(0, ""),
                &gone,
                "for good: the archive's trixie has another version of libc6 by now, and 2.41-12+deb13u5",
            ),
            (offline, &gone, "again: E: Failed to fetch the index; E: Version"),
            (answer(0, ""), &answer(100, "E: Unable to fetch some archives\n\n"), "again: E: Unable to fetch"),
        ] {
            let told = match refusal(&[&PACKAGE], &update, download) {
                Failed::Again(why) => format!("again: {why}"),
                Failed::ForGood(why) => format!("for good: {why}"),
            };
            assert!(told.starts_with(expected), "{told}");
        }
    }
}
