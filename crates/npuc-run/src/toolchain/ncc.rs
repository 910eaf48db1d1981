//! MediaTek's `ncc-tflite`, which npuc neither contains nor fetches: finding it on the PATH and running it.
//!
//! Each call is a process of its own with a time limit. Its whole answer is kept; its output is there whole or not at all.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use npuc::Result;
use npuc::back::tflite::ncc::{Line, PROGRAM};
use npuc::ir::Graph;

use super::child::{Call, Ended, find_in, remove, unwritable};
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
/// A refusal whose reasons npuc knows is [`npuc::Code::VendorRefusal`] with the reasons; a crash, a hang and an answer that npuc
/// does not know are [`npuc::Code::ToolFailed`] with the end of the log; a folder that cannot be written is
/// [`npuc::Code::Unwritable`]. What was compiled before stays.
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
    let call = Call { name: PROGRAM, subject: &line.file.tflite, log: &log, limit: time_limit };
    let mut command = Command::new(ncc);
    command.args(line.arguments()).current_dir(folder);
    let ended = call.make(command, &mut |_| ())?;
    let bytes = fs::metadata(&partial).map_or(0, |data| data.len());
    let answer = call.answer()?;
    let findings = vendor_log::decode(&answer);
    match ended {
        Ended::Status(status) if status.success() && bytes > 0 => {
            fs::rename(&partial, &dla).map_err(|error| unwritable(&dla, &error))?;
            return Ok(Compiled { dla, bytes, log, findings });
        }
        Ended::Status(_) | Ended::TimeLimit => remove(&partial)?,
    }
    let places = vendor_log::locate_all(&findings, graph.map_or(&[], std::slice::from_ref));
    Err(call.failure(&ended, &answer, &findings, &places).into())
}
