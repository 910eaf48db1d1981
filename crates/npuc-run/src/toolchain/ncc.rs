//! MediaTek's `ncc-tflite`, which npuc neither contains nor fetches: finding it on the PATH and running it.
//!
//! Each call is a process of its own with a time limit. Its whole answer is kept; its output is there whole or not at all.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use npuc::back::tflite::ncc::{Line, PROGRAM};
use npuc::ir::Graph;
use npuc::{Code, Diagnostic, Result};

use super::child::{Ended, find_in, wait};
use crate::vendor_log;

#[cfg(test)]
mod tests;

/// How long the compilation of one file may take unless the caller says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A file that was compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The `.dla` file.
    pub dla: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// The file that keeps the compiler's answer.
    pub log: PathBuf,
    /// What the compiler's answer says that npuc knows, e.g. which units the plan uses.
    pub findings: Vec<vendor_log::Finding>,
}

/// The compiler, if it is on the PATH.
pub fn find() -> Option<PathBuf> {
    find_in(&std::env::var_os("PATH")?, PROGRAM)
}

/// Makes the calls in `folder`, one after the other, up to the first that fails. `graphs` are the graphs of the
/// lines, in their order, for messages; it may be empty. `say` is told what is being compiled.
///
/// # Errors
/// A refusal whose reasons npuc knows is [`Code::VendorRefusal`] with the reasons; a crash, a hang and an answer that npuc
/// does not know are [`Code::ToolFailed`] with the end of the log; a folder that cannot be written is
/// [`Code::Unwritable`]. What was compiled before stays.
pub fn compile(
    ncc: &Path,
    lines: &[Line],
    graphs: &[Graph],
    folder: &Path,
    time_limit: Duration,
    say: &mut dyn FnMut(&str),
) -> Result<Vec<Compiled>> {
    let mut compiled = Vec::with_capacity(lines.len());
    for (index, line) in lines.iter().enumerate() {
        let role = line.file.role.name();
        say(&format!("{PROGRAM} {} of {}: the {role} graph {}", index + 1, lines.len(), line.file.tflite));
        compiled.push(compile_one(ncc, line, graphs.get(index), folder, time_limit)?);
    }
    Ok(compiled)
}

fn compile_one(
    ncc: &Path,
    line: &Line,
    graph: Option<&Graph>,
    folder: &Path,
    time_limit: Duration,
) -> Result<Compiled> {
    let [dla, partial, log] = [&line.file.dla, &line.partial(), &line.log()].map(|name| folder.join(name));
    for old in [&dla, &partial] {
        remove(old)?;
    }
    let ended = run(ncc, line, folder, &log, time_limit)?;
    let bytes = fs::metadata(&partial).map_or(0, |data| data.len());
    let answer = fs::read(&log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let answer = answer.map_err(|error| unwritable(&log, &error))?;
    let findings = vendor_log::decode(&answer);
    match ended {
        Ended::Status(status) if status.success() && bytes > 0 => {
            fs::rename(&partial, &dla).map_err(|error| unwritable(&dla, &error))?;
            return Ok(Compiled { dla, bytes, log, findings });
        }
        Ended::Status(_) | Ended::TimeLimit => remove(&partial)?,
    }
    let what = &line.file.tflite;
    let failed = |message: String| -> Diagnostic {
        let fault = Diagnostic::error(Code::ToolFailed, message).file(&log).subject(what);
        vendor_log::last_lines(&answer).into_iter().fold(fault, |fault, line| fault.help(format!("log: {line}")))
    };
    let status = match ended {
        Ended::TimeLimit => {
            let fault = failed(format!("{PROGRAM} did not end in time"));
            return Err(fault.need(format!("an end within {} s", time_limit.as_secs_f32())).into());
        }
        Ended::Status(status) => status,
    };
    let places = vendor_log::locate_all(&findings, graph.map_or(&[], std::slice::from_ref));
    match (status.code(), vendor_log::diagnostic(&findings, &places, &log)) {
        (Some(0), None) => Err(failed(format!("{PROGRAM} said success and wrote nothing")).into()),
        (Some(_), Some(refusal)) => Err(refusal.help(format!("the file was {what}")).into()),
        (Some(_) | None, _) => Err(failed(format!("{PROGRAM} ended ({status})")).into()),
    }
}

/// Makes one call and waits for its end; everything it says goes into the log.
fn run(ncc: &Path, line: &Line, folder: &Path, log: &Path, time_limit: Duration) -> Result<Ended> {
    let file = File::create(log).map_err(|error| unwritable(log, &error))?;
    let both = file.try_clone().map_err(|error| unwritable(log, &error))?;
    let fault =
        |error: io::Error| Diagnostic::error(Code::ToolFailed, format!("{PROGRAM} does not start: {error}")).file(ncc);
    let mut command = Command::new(ncc);
    command.args(line.arguments()).current_dir(folder).stdin(Stdio::null()).stdout(file).stderr(both);
    let mut child = command.spawn().map_err(fault)?;
    Ok(wait(&mut child, time_limit).map_err(fault)?)
}

/// Removes a file that may be absent.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(path, &error).into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

fn unwritable(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::error(Code::Unwritable, format!("cannot write the file: {error}")).file(path)
}
