//! Bundles for Qualcomm's chips on a phone, over adb: one list of steps, which [`adb`] carries out and
//! [`Plan::script`] writes down.
//!
//! No phone was ever at hand: the tests run the steps against a stand-in for adb and a folder in place of the phone.
//!
//! On the phone `bundle` holds the bundle, `bin` npuc itself, `lib` Qualcomm's libraries for the CPU and `dsp` the
//! one for the NPU.

use std::path::{Path, PathBuf};

use npuc::back::shell::quoted;
use npuc::bundle::MANIFEST;
use npuc::{Code, Diagnostic, Result};

pub mod adb;
mod answer;
pub mod libraries;
mod script;

#[cfg(test)]
mod tests;

use crate::device::qnn::LIBRARIES_VARIABLE;
pub use answer::Answer;
use libraries::{Binary, HTP, Machine, Version};

/// Where a bundle goes unless the user says otherwise: a folder that adb may write to and programs may start from.
pub const FOLDER: &str = "/data/local/tmp/npuc";

/// What a plan has to know of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pushed {
    /// Every file with its bytes, by its path inside the bundle; the manifest is one of them.
    pub files: Vec<(String, u64)>,
    /// The version of the libraries that made the context binaries.
    pub build_id: Option<String>,
    /// The target's name.
    pub target: String,
    /// Qualcomm's numbers of the chips that load the context binaries, e.g. `SM8650`.
    pub chips: Vec<String>,
    /// The generation of the NPU, e.g. 75.
    pub arch: u32,
}

/// Where the files are on this machine.
#[derive(Clone, Copy, Debug)]
pub struct Sources<'a> {
    /// The bundle's folder.
    pub bundle: &'a Path,
    /// npuc's program for the phone; without it, that of an earlier push stays.
    pub runner: Option<&'a Binary>,
    /// Qualcomm's libraries; without them, those of an earlier push have to be there.
    pub libraries: Option<&'a [Binary]>,
}

/// One call of adb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does, for messages.
    pub what: String,
    /// The arguments, without the phone's serial number.
    pub arguments: Vec<String>,
    /// What the answer has to be.
    pub answer: Answer,
    /// The bytes that go to the phone.
    pub bytes: u64,
}

/// All calls of a push.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The target's name.
    pub target: String,
    /// The phone's serial number.
    pub serial: String,
    /// The calls, in order; the first that fails is the last.
    pub steps: Vec<Step>,
    /// The bytes that go to the phone.
    pub bytes: u64,
    /// A command line for the phone's shell that starts an answer and returns at once.
    pub start: String,
}

impl Plan {
    /// A command line for this machine that gives [`Plan::start`] to the phone.
    pub fn start_here(&self) -> String {
        format!("adb -s {} shell {}", quoted(&self.serial), quoted(&self.start))
    }
}

/// A file that goes to the phone.
struct Transfer {
    from: PathBuf,
    to: String,
    bytes: u64,
    is_program: bool,
}

/// The calls that put a bundle into the folder `to` of the phone, checks first. Each file goes to a temporary name,
/// takes its own when its size was found right, and the manifest is the last of them.
///
/// With `unknown_is_fine`, libraries of unknown version are taken. Libraries of [`Sources`] are not checked here, see
/// [`libraries::check`].
///
/// # Errors
/// [`Code::BadArgument`] for a serial number or a folder that adb cannot take, and for paths that are not UTF-8;
/// [`Code::BadBundle`] for files without a manifest or with names that are no relative paths; [`Code::MissingTool`]
/// if the bundle does not say which libraries the phone needs.
pub fn plan(pushed: &Pushed, sources: &Sources, serial: &str, to: &str, unknown_is_fine: bool) -> Result<Plan> {
    check_serial(serial)?;
    let to = checked_folder(to)?;
    let mut transfers = transfers(pushed, sources, to)?;
    let manifest = transfers.pop_if(|last| last.to.ends_with(MANIFEST));
    let manifest = manifest.ok_or_else(|| Diagnostic::error(Code::BadBundle, "the bundle has no manifest"))?;
    let bytes = transfers.iter().chain([&manifest]).map(|transfer| transfer.bytes).sum();
    let mut steps = vec![ready(), chip(pushed), folders(&transfers, to), space(bytes, to)];
    if sources.libraries.is_none() {
        steps.extend(libraries_there(pushed, to, unknown_is_fine)?);
    }
    steps.push(call("take the old bundle's manifest away", &format!("rm -f {}", quoted(&manifest.to))));
    for transfer in transfers.iter().chain([&manifest]) {
        steps.extend(transferred(transfer)?);
    }
    Ok(Plan { target: pushed.target.clone(), serial: serial.to_owned(), steps, bytes, start: start(to) })
}

/// A call of the phone's shell that only has to end well.
fn call(what: impl Into<String>, command: &str) -> Step {
    let arguments = vec!["shell".to_owned(), command.to_owned()];
    Step { what: what.into(), arguments, answer: Answer::Any, bytes: 0 }
}

fn ready() -> Step {
    let arguments = vec!["get-state".to_owned()];
    Step { what: "ask whether the phone is there".into(), arguments, answer: Answer::Word("device".into()), bytes: 0 }
}

fn chip(pushed: &Pushed) -> Step {
    let answer = Answer::Chip { target: pushed.target.clone(), chips: pushed.chips.clone() };
    Step { answer, ..call("ask for the phone's chip", "getprop ro.soc.model") }
}

fn folders(transfers: &[Transfer], to: &str) -> Step {
    let mut folders = vec![to];
    folders.extend(transfers.iter().filter_map(|transfer| Some(transfer.to.rsplit_once('/')?.0)));
    folders.sort_unstable();
    folders.dedup();
    let folders: Vec<String> = folders.into_iter().map(quoted).collect();
    call("make the folders", &format!("mkdir -p {}", folders.join(" ")))
}

fn space(bytes: u64, to: &str) -> Step {
    let answer = Answer::FreeBytes { bytes, folder: to.to_owned() };
    Step { answer, ..call("ask for the free space", &format!("df -Pk {to}")) }
}

/// Libraries of an earlier push: that they are there, and their version.
fn libraries_there(pushed: &Pushed, to: &str, unknown_is_fine: bool) -> Result<Vec<Step>> {
    let files: Vec<String> =
        libraries::names(pushed.arch).into_iter().map(|(name, machine)| place(to, machine, &name)).collect();
    let there = call("look for Qualcomm's libraries of an earlier push", &format!("ls {}", files.join(" ")));
    let mut steps = vec![Step { answer: Answer::Libraries, ..there }];
    match pushed.build_id.as_deref().and_then(Version::parse) {
        None => libraries::refuse_unknown_need(unknown_is_fine)?,
        Some(need) => {
            let pattern = r"v[0-9]+\.[0-9]+\.[0-9]+\.[0-9]{6,}";
            let command = format!("grep -aoE '{pattern}' {} | sort -u", place(to, Machine::Aarch64, HTP));
            let answer = Answer::Version { need, unknown_is_fine };
            steps.push(Step { answer, ..call("ask for the libraries' version", &command) });
        }
    }
    Ok(steps)
}

/// Where a binary goes on the phone. The NPU's library has a folder of its own, which is all that the NPU's loader
/// searches.
fn place(to: &str, machine: Machine, name: &str) -> String {
    match machine {
        Machine::Aarch64 if name.ends_with(".so") => format!("{to}/lib/{name}"),
        Machine::Aarch64 => format!("{to}/bin/{name}"),
        Machine::Hexagon => format!("{to}/dsp/{name}"),
    }
}

/// What goes to the phone, the manifest last.
fn transfers(pushed: &Pushed, sources: &Sources, to: &str) -> Result<Vec<Transfer>> {
    let binary = |binary: &Binary| Transfer {
        from: binary.path.clone(),
        to: place(to, binary.machine, &binary.name),
        bytes: binary.bytes,
        is_program: !binary.name.ends_with(".so"),
    };
    let binaries = sources.runner.into_iter().chain(sources.libraries.unwrap_or_default()).map(binary);
    let mut transfers: Vec<Transfer> = binaries.collect();
    let (manifest, others): (Vec<_>, Vec<_>) = pushed.files.iter().partition(|(name, _)| name == MANIFEST);
    for (name, bytes) in others.into_iter().chain(manifest) {
        let plain = Path::new(name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
        if !plain || name.is_empty() || name.contains(char::is_control) {
            let fault =
                Diagnostic::error(Code::BadBundle, "a file of the bundle has a name that the phone cannot have");
            return Err(fault.subject(name).need("a path inside the bundle").into());
        }
        let from = sources.bundle.join(name);
        transfers.push(Transfer { from, to: format!("{to}/bundle/{name}"), bytes: *bytes, is_program: false });
    }
    Ok(transfers)
}

/// A file goes to a temporary name, is measured, and takes its own.
fn transferred(transfer: &Transfer) -> Result<[Step; 3]> {
    let Transfer { from, to, bytes, is_program } = transfer;
    let local = from.to_str().filter(|path| !path.contains(char::is_control)).ok_or_else(|| {
        Diagnostic::error(Code::BadArgument, "adb cannot be given this path").file(from).need("a path in plain UTF-8")
    })?;
    let partial = format!("{to}.part");
    let name = to.rsplit_once('/').map_or(to.as_str(), |(_, name)| name);
    let (part, whole) = (quoted(&partial), quoted(to));
    let start = if *is_program { format!("chmod 755 {part} && ") } else { String::new() };
    let push = vec!["push".to_owned(), local.to_owned(), partial];
    Ok([
        Step { what: format!("push {name}"), arguments: push, answer: Answer::Any, bytes: *bytes },
        Step {
            answer: Answer::Bytes { bytes: *bytes, name: name.to_owned() },
            ..call(format!("measure {name}"), &format!("stat -c %s {part}"))
        },
        call(format!("give {name} its name"), &format!("{start}mv -f {part} {whole}")),
    ])
}

/// Where the NPU's own libraries are on phones. Source: scripts in public repositories that run QNN over adb.
const VENDOR_DSP: &str = "/vendor/dsp/cdsp;/vendor/lib/rfsa/adsp;/system/lib/rfsa/adsp;/dsp";

/// The command that starts an answer on the phone. It outlives the shell that starts it.
///
/// `ADSP_LIBRARY_PATH` is split at semicolons and never at colons (source: github.com/qualcomm/fastrpc, issue 379), and
/// the folder with the pushed library for the NPU comes first: where another one is found before, or none, the device
/// fails with error 14001.
fn start(to: &str) -> String {
    format!(
        "cd {to} && {LIBRARIES_VARIABLE}={to}/lib LD_LIBRARY_PATH={to}/lib:/vendor/lib64 ADSP_LIBRARY_PATH=\"{to}/dsp;{VENDOR_DSP}\" \
         setsid nohup ./bin/npuc run bundle --on qnn -p Hello -n 64 > log 2>&1 < /dev/null &"
    )
}

/// A serial number as `adb devices` lists it; those of wireless phones may have spaces.
fn check_serial(serial: &str) -> Result<()> {
    if !serial.is_empty() && !serial.starts_with('-') && !serial.contains(char::is_control) {
        return Ok(());
    }
    let fault = Diagnostic::error(Code::BadArgument, "this is no serial number of a phone").have(serial);
    Err(fault.need("a name that `adb devices` lists").into())
}

/// The phone's folder, in characters that no shell reads as anything else.
fn checked_folder(to: &str) -> Result<&str> {
    let folder = to.trim_end_matches('/');
    let plain = |c: char| c.is_ascii_alphanumeric() || "/_.-".contains(c);
    let parts = || folder.split('/').skip(1).all(|part| !part.is_empty() && part != "." && part != "..");
    if folder.starts_with('/') && folder.chars().all(plain) && parts() {
        return Ok(folder);
    }
    let fault = Diagnostic::error(Code::BadArgument, "the phone's folder cannot be this").have(to);
    Err(fault
        .need("an absolute path of letters, digits, `_`, `.` and `-`")
        .help(format!("for example {FOLDER}"))
        .into())
}
