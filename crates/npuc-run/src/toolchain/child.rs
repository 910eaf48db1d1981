//! Programs of others: finding them on the PATH, and calling one with a log, no longer than a time limit.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use npuc::target::Place;
use npuc::{Code, Diagnostic, Result};

use crate::vendor_log::{self, Finding};

/// The longest pause between two looks for the end of a call; the first pauses are shorter.
const POLL: Duration = Duration::from_millis(20);

/// The first program of that name in the folders of a PATH.
pub(crate) fn find_in(path: &OsStr, program: &str) -> Option<PathBuf> {
    // A call may start in another folder, so a relative folder of the PATH is made absolute.
    let candidates = std::env::split_paths(path).map(|folder| folder.join(program));
    candidates.filter_map(|program| std::path::absolute(program).ok()).find(|program| is_executable(program))
}

/// Whether the path is a file that may be executed.
#[cfg(unix)]
pub(crate) fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// Whether the path is a file.
#[cfg(not(unix))]
pub(crate) fn is_executable(path: &Path) -> bool {
    path.is_file()
}

/// How a call ended.
pub(crate) enum Ended {
    Status(ExitStatus),
    TimeLimit,
}

/// Waits for the end of a call, which is killed at the time limit. `look` is called every now and then while it runs, at
/// most [`POLL`] apart.
///
/// Errors: what the system says of the child.
pub(crate) fn wait(child: &mut Child, time_limit: Duration, look: &mut dyn FnMut(&Child)) -> io::Result<Ended> {
    let start = Instant::now();
    let mut pause = Duration::from_millis(1).min(time_limit);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ended::Status(status));
        }
        if start.elapsed() >= time_limit {
            // It may have ended on its own meanwhile.
            let _ = child.kill();
            child.wait()?;
            return Ok(Ended::TimeLimit);
        }
        look(child);
        std::thread::sleep(pause);
        pause = (2 * pause).min(POLL);
    }
}

/// A call of a program of somebody else.
pub(crate) struct Call<'a> {
    /// The program's name in messages.
    pub(crate) name: &'a str,
    /// What it works on, in messages.
    pub(crate) subject: &'a str,
    /// The file that keeps everything it says.
    pub(crate) log: &'a Path,
    /// How long it may take.
    pub(crate) limit: Duration,
}

impl Call<'_> {
    /// Makes the call and waits for its end; see [`wait`] for `look`.
    ///
    /// Errors: [`Code::Unwritable`] for the log, [`Code::ToolFailed`] if the program does not start.
    pub(crate) fn make(&self, mut command: Command, look: &mut dyn FnMut(&Child)) -> Result<Ended> {
        let file = File::create(self.log).map_err(|error| unwritable(self.log, &error))?;
        let both = file.try_clone().map_err(|error| unwritable(self.log, &error))?;
        let program = PathBuf::from(command.get_program());
        let fault = |error: io::Error| {
            Diagnostic::error(Code::ToolFailed, format!("{} does not start: {error}", self.name)).file(&program)
        };
        command.stdin(Stdio::null()).stdout(file).stderr(both);
        let mut child = command.spawn().map_err(fault)?;
        Ok(wait(&mut child, self.limit, look).map_err(fault)?)
    }

    /// The call's whole answer.
    ///
    /// Errors: [`Code::Unwritable`] if the log is gone.
    pub(crate) fn answer(&self) -> Result<String> {
        let bytes = fs::read(self.log).map_err(|error| unwritable(self.log, &error))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Why a call did not succeed, from how it ended and what it answered.
    ///
    /// A refusal whose reasons npuc knows is [`Code::VendorRefusal`] with the reasons; a crash, a hang and an answer that npuc
    /// does not know are [`Code::ToolFailed`] with the end of the log.
    pub(crate) fn failure(
        &self,
        ended: &Ended,
        answer: &str,
        findings: &[Finding],
        places: &[Vec<Place>],
    ) -> Diagnostic {
        let failed = |message: String| -> Diagnostic {
            let fault = Diagnostic::error(Code::ToolFailed, message).file(self.log).subject(self.subject);
            let lines = vendor_log::last_lines(answer);
            lines.into_iter().fold(fault, |fault, line| fault.help(format!("log: {line}")))
        };
        let status = match ended {
            Ended::TimeLimit => {
                let fault = failed(format!("{} did not end in time", self.name));
                return fault.need(format!("an end within {} s", self.limit.as_secs_f32()));
            }
            Ended::Status(status) => status,
        };
        match vendor_log::diagnostic(findings, places, self.log) {
            Some(refusal) => refusal.help(format!("the file was {}", self.subject)),
            None if status.success() => failed(format!("{} said success and wrote nothing", self.name)),
            None => failed(format!("{} ended ({status})", self.name)),
        }
    }
}

/// Removes a file that may be absent.
///
/// Errors: [`Code::Unwritable`].
pub(crate) fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(unwritable(path, &error).into()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The fault of a file that cannot be written.
pub(crate) fn unwritable(path: &Path, error: &io::Error) -> Diagnostic {
    Diagnostic::error(Code::Unwritable, format!("cannot write the file: {error}")).file(path)
}
