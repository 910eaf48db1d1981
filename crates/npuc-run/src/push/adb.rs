//! Carrying out a plan with adb: finding it, one call after the other with time limits, up to the first that goes
//! wrong.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use npuc::{Code, Diagnostic, Result};

use super::{Plan, Step};
use crate::toolchain::child::{Ended, find_in, is_executable, wait};
use crate::vendor_log::last_lines;

#[cfg(test)]
mod tests;

/// The name of the program.
const PROGRAM: &str = "adb";

/// How long calls may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Any call.
    pub call: Duration,
    /// What a push may take beyond that: its bytes at this rate.
    pub bytes_per_s: u64,
}

impl Default for Limits {
    /// A minute, and 1 MiB a second, which is slow for adb over a wireless network.
    fn default() -> Limits {
        Limits { call: Duration::from_secs(60), bytes_per_s: 1 << 20 }
    }
}

impl Limits {
    fn of(self, step: &Step) -> Duration {
        self.call + Duration::from_secs(step.bytes / self.bytes_per_s)
    }
}

/// The program that the variable `ADB` names, or `adb` on the PATH.
///
/// # Errors
/// [`Code::MissingTool`].
pub fn find() -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let missing = |message: &str| Diagnostic::error(Code::MissingTool, message).subject(PROGRAM);
    let Some(named) = std::env::var_os("ADB").filter(|named| !named.is_empty()) else {
        let fault = || missing("adb is not on the PATH").help("install Android's platform-tools, or name adb with ADB");
        return find_in(&path, PROGRAM).ok_or_else(|| fault().into());
    };
    let named = PathBuf::from(named);
    if named.components().count() > 1 && is_executable(&named) {
        return Ok(named);
    }
    let found = named.to_str().filter(|_| named.components().count() == 1).and_then(|name| find_in(&path, name));
    found.ok_or_else(|| missing("the variable ADB names no program").file(named).into())
}

/// Makes the calls one after the other. `say` is told of each before it is made, with its number from 0.
///
/// # Errors
/// The first step that goes wrong, with its number and what adb said: [`Code::Misfit`] for another chip,
/// [`Code::ByteLimit`] for too little space, [`Code::MissingTool`] for libraries, [`Code::ToolFailed`] for the rest.
/// What was pushed before stays, without a manifest.
pub fn run(adb: &Path, plan: &Plan, limits: Limits, say: &mut dyn FnMut(usize, &Step)) -> Result<()> {
    for (index, step) in plan.steps.iter().enumerate() {
        say(index, step);
        let limit = limits.of(step);
        let called = call(adb, &plan.serial, step, limit)
            .map_err(|error| Diagnostic::error(Code::ToolFailed, format!("adb cannot be called: {error}")).file(adb))?;
        if let Some(fault) = fault(step, &called, limit) {
            let place = format!("step {} of {}: {}", index + 1, plan.steps.len(), step.what);
            let place = fault.subject.as_ref().map_or(place.clone(), |subject| format!("{place}: {subject}"));
            return Err(fault.subject(place).into());
        }
    }
    Ok(())
}

/// A call that was made.
struct Called {
    ended: Ended,
    stdout: String,
    stderr: String,
}

fn call(adb: &Path, serial: &str, step: &Step, limit: Duration) -> io::Result<Called> {
    let (stdout, stderr) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    let mut command = Command::new(adb);
    command.arg("-s").arg(serial).args(&step.arguments).stdin(Stdio::null());
    let mut child = command.stdout(stdout.reopen()?).stderr(stderr.reopen()?).spawn()?;
    let ended = wait(&mut child, limit, &mut |_| ())?;
    let text = |path: &Path| fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    Ok(Called { ended, stdout: text(stdout.path())?, stderr: text(stderr.path())? })
}

/// What is wrong with a call, with adb's words.
fn fault(step: &Step, called: &Called, limit: Duration) -> Option<Diagnostic> {
    let failed = |message: String| Diagnostic::error(Code::ToolFailed, message);
    let fault = match called.ended {
        Ended::Status(status) if status.success() => step.answer.fault(&called.stdout)?,
        Ended::Status(status) => failed(format!("adb ended ({status})")),
        Ended::TimeLimit => {
            failed("adb did not end in time".into()).need(format!("an end within {} s", limit.as_secs_f32()))
        }
    };
    let help = step.answer.help().filter(|_| fault.code == Code::ToolFailed);
    let fault = help.into_iter().fold(fault, |fault, help| fault.help(help));
    let lines = [&called.stderr, &called.stdout].into_iter().flat_map(|text| last_lines(text));
    Some(lines.fold(fault, |fault, line| fault.help(format!("adb said: {line}"))))
}
