//! Qualcomm's libraries for a phone, which the user gets with Qualcomm's SDK: where they lie in it, whether they are
//! for the phone, and which version they are. npuc itself fetches only those for x86.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Error, Result};

/// A program or library on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// The name on the phone.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// What it is for.
    pub machine: Machine,
}

/// The processors of a phone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Machine {
    /// The CPU.
    Aarch64,
    /// The NPU.
    Hexagon,
}

impl Machine {
    /// The number in the header of ELF files. Source: the registry of the ELF gABI.
    const fn elf(self) -> u16 {
        match self {
            Machine::Aarch64 => 183,
            Machine::Hexagon => 164,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Machine::Aarch64 => "aarch64",
            Machine::Hexagon => "Hexagon",
        }
    }
}

/// The library whose version counts: it reads the context binaries.
pub const HTP: &str = "libQnnHtp.so";

/// The names of the libraries for a generation of the NPU, e.g. 75.
pub fn names(arch: u32) -> [(String, Machine); 4] {
    [
        (HTP.to_owned(), Machine::Aarch64),
        ("libQnnSystem.so".to_owned(), Machine::Aarch64),
        (format!("libQnnHtpV{arch}Stub.so"), Machine::Aarch64),
        (format!("libQnnHtpV{arch}Skel.so"), Machine::Hexagon),
    ]
}

/// The folders below the user's in which libraries are looked for: all in one, the SDK's `lib`, or the SDK.
fn folders(machine: Machine, arch: u32) -> [String; 3] {
    let own = match machine {
        Machine::Aarch64 => "aarch64-android".to_owned(),
        Machine::Hexagon => format!("hexagon-v{arch}/unsigned"),
    };
    [String::new(), own.clone(), format!("lib/{own}")]
}

/// The libraries of [`names`] in a folder.
///
/// # Errors
/// [`Code::MissingTool`] with all that are absent; [`Code::UnknownFormat`] for one that is for another processor.
pub fn find(folder: &Path, arch: u32) -> Result<Vec<Binary>> {
    let mut faults = Vec::new();
    let mut found = Vec::new();
    for (name, machine) in names(arch) {
        let places = folders(machine, arch).map(|place| folder.join(place).join(&name));
        match places.iter().find(|path| path.is_file()) {
            Some(path) => match binary(path, &name, machine) {
                Ok(binary) => found.push(binary),
                Err(error) => faults.extend_from_slice(error.diagnostics()),
            },
            None => {
                let [_, own, _] = folders(machine, arch);
                let fault = Diagnostic::error(Code::MissingTool, "a library for the phone is not there");
                faults.push(
                    fault.file(folder).subject(name).need(format!("the file of lib/{own} of Qualcomm's SDK (QAIRT)")),
                );
            }
        }
    }
    if let Some(last) = faults.last_mut() {
        let help = "get the SDK from Qualcomm and name it with --libraries: npuc fetches only the libraries for x86";
        last.help.push(help.to_owned());
    }
    Error::check(faults)?;
    Ok(found)
}

/// npuc's own program for the phone.
///
/// # Errors
/// A file that cannot be read, or one for another processor ([`Code::UnknownFormat`]).
pub fn runner(path: &Path) -> Result<Binary> {
    binary(path, "npuc", Machine::Aarch64)
}

fn binary(path: &Path, name: &str, machine: Machine) -> Result<Binary> {
    let unreadable =
        |error: io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {error}")).file(path);
    let mut file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut head = Vec::new();
    file.by_ref().take(20).read_to_end(&mut head).map_err(unreadable)?;
    let number = match &head[..] {
        [0x7f, b'E', b'L', b'F', _, 1, .., low, high] if head.len() == 20 => Some(u16::from_le_bytes([*low, *high])),
        _ => None,
    };
    if number != Some(machine.elf()) {
        let fault = Diagnostic::error(Code::UnknownFormat, "the file is none that the phone can load").file(path);
        let have = number.map_or("no ELF file".to_owned(), |number| match number {
            62 => "one for x86-64".to_owned(),
            183 => "one for aarch64".to_owned(),
            164 => "one for Hexagon".to_owned(),
            other => format!("one for machine {other}"),
        });
        return Err(fault.need(format!("an ELF file for {}", machine.name())).have(have).into());
    }
    Ok(Binary { path: path.to_owned(), name: name.to_owned(), bytes, machine })
}

/// A version of Qualcomm's libraries, e.g. `v2.51.0.260929181845`: three numbers and the time of the build.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    numbers: [u32; 3],
    stamp: String,
}

impl Version {
    /// Reads `v2.51.0.260929181845`, with or without the `v` and what may follow a `_`.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let mut parts = text.split('_').next()?.split('.');
        let mut number = || parts.next().filter(|part| is_digits(part))?.parse().ok();
        let numbers = [number()?, number()?, number()?];
        let stamp = parts.next().filter(|stamp| is_digits(stamp) && stamp.len() >= STAMP_DIGITS)?.to_owned();
        parts.next().is_none().then_some(Version { numbers, stamp })
    }

    /// Whether libraries of this version may lack what those of the other know. Stamps of builds are compared as far as
    /// both go, for some have the day alone.
    pub fn is_older_than(&self, other: &Version) -> bool {
        let common = self.stamp.len().min(other.stamp.len());
        (self.numbers, &self.stamp[..common]) < (other.numbers, &other.stamp[..common])
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "v{major}.{minor}.{patch}.{}", self.stamp)
    }
}

/// The digits of a stamp at least: year, month and day.
const STAMP_DIGITS: usize = 6;

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The version that a library's bytes name, if they name exactly one.
///
/// # Errors
/// A file that cannot be read.
pub fn version_of(path: &Path) -> Result<Option<Version>> {
    let versions = File::open(path).and_then(versions_in).map_err(|error| {
        Error::from(Diagnostic::error(Code::Unreadable, format!("cannot read the file: {error}")).file(path))
    })?;
    let mut versions = versions.into_iter();
    Ok(versions.next().filter(|_| versions.next().is_none()))
}

/// A text of a version is shorter than this.
const LONGEST: usize = 64;

fn versions_in(mut file: impl Read) -> io::Result<BTreeSet<Version>> {
    let mut found = BTreeSet::new();
    let mut window = Vec::new();
    let mut first = 0;
    loop {
        let before = window.len();
        file.by_ref().take(1 << 20).read_to_end(&mut window)?;
        let at_end = window.len() == before;
        // What begins in the last bytes is looked at again with those that follow.
        let last = if at_end { window.len() } else { window.len().saturating_sub(LONGEST) };
        let begins =
            |at: &usize| window[*at] == b'v' && !at.checked_sub(1).is_some_and(|b| window[b].is_ascii_alphanumeric());
        for at in (first..last).filter(begins) {
            let text = &window[at..window.len().min(at + LONGEST)];
            let len = 1 + text[1..].iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
            let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
            found.extend(Version::parse(text.trim_end_matches('.')));
        }
        if at_end {
            return Ok(found);
        }
        // The byte before is kept, since a letter there makes a `v` the end of a word.
        first = last.min(1);
        window.drain(..last - first);
    }
}

/// Refuses libraries that cannot read context binaries which those of `need` made. With `unknown_is_fine`, a version
/// that is not known on either side is no fault.
///
/// # Errors
/// [`Code::MissingTool`] for older libraries, ones of different versions, and versions that are not known.
pub fn check(libraries: &[Binary], need: Option<&Version>, unknown_is_fine: bool) -> Result<()> {
    let mut known = Vec::new();
    for library in libraries {
        if let Some(version) = version_of(&library.path)? {
            known.push((library, version));
        }
    }
    let htp = known.iter().find(|(library, _)| library.name == HTP);
    let Some((_, have)) = htp else {
        let path = libraries.iter().find(|library| library.name == HTP).map(|library| &library.path);
        return if unknown_is_fine { Ok(()) } else { Err(unknown("the libraries' version is not known", path)) };
    };
    if let Some((other, version)) = known.iter().find(|(_, version)| version != have) {
        let fault = Diagnostic::error(Code::MissingTool, "the libraries are of different versions").file(&other.path);
        return Err(fault.need(format!("{have}, as {HTP}")).have(version).help("take all of one SDK").into());
    }
    match need {
        Some(need) if have.is_older_than(need) => Err(older(need, have).into()),
        Some(_) => Ok(()),
        None => refuse_unknown_need(unknown_is_fine),
    }
}

/// Refuses a bundle that does not say what made its context binaries, unless that is fine.
///
/// # Errors
/// [`Code::MissingTool`].
pub(super) fn refuse_unknown_need(unknown_is_fine: bool) -> Result<()> {
    match unknown_is_fine {
        true => Ok(()),
        false => Err(unknown("the bundle does not say which libraries made its context binaries", None)),
    }
}

fn unknown(message: &str, path: Option<&PathBuf>) -> Error {
    let fault = Diagnostic::error(Code::MissingTool, message).need("a version such as v2.51.0.260929181845");
    let fault = path.into_iter().fold(fault, |fault, path| fault.file(path));
    fault.help("--force pushes all the same: older libraries refuse the context binaries with error 5000").into()
}

/// The fault of libraries that are too old.
pub(super) fn older(need: &Version, have: &Version) -> Diagnostic {
    Diagnostic::error(Code::MissingTool, "the libraries are older than those that made the context binaries")
        .need(format!("{need} or later"))
        .have(have)
        .help("get a later SDK from Qualcomm, and name it with --libraries")
        .help("or build the bundle with libraries as old as the phone's")
}
