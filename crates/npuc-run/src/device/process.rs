//! A vendor's code in a process of its own: requests and answers over pipes, a time limit, a log.
//!
//! A message is its length (u64, little-endian), a byte that says its kind, and the rest. A crash, a hang or a refusal in there is an
//! error here, with the end of the log. Every request has one answer, before which may come notes ([`STAGE`], [`PLACE`]).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use npuc::{Code, Diagnostic, Error, Result};
use tempfile::NamedTempFile;

use crate::vendor_log::last_lines;

/// The kind of an answer that refuses the request.
pub(super) const REFUSED: u8 = b'E';
/// The kind of a note that tells the user what is being done.
pub(super) const STAGE: u8 = b'S';
/// The kind of a note that names what is worked on, for the case that nothing follows.
pub(super) const PLACE: u8 = b'N';

/// The longest message that is believed.
const MAX_MESSAGE_BYTES: u64 = 1 << 32;

/// A running process.
#[derive(Debug)]
pub(super) struct Process {
    name: &'static str,
    child: Child,
    requests: Sender<Vec<u8>>,
    answers: Receiver<io::Result<Vec<u8>>>,
    log: Log,
    /// Where the log stood when the last request was sent.
    log_start: u64,
    limit: Duration,
}

/// Where everything that the process says goes.
#[derive(Debug)]
pub(super) enum Log {
    /// A file that is gone with the process.
    Temporary(NamedTempFile),
    /// A file of the caller's, which stays.
    Kept(PathBuf),
}

/// An answer.
pub(super) enum Answer {
    /// Of the kind that was expected: what follows the kind.
    Good(Vec<u8>),
    /// The process refuses the request and says why.
    Refused(Vec<u8>),
}

impl Log {
    /// A log at `path`, or one that is gone with the process.
    pub(super) fn at(path: Option<&Path>) -> Result<Log> {
        let fault = |e: io::Error| Diagnostic::error(Code::Unwritable, format!("cannot make the file of a log: {e}"));
        match path {
            None => Ok(Log::Temporary(NamedTempFile::new().map_err(fault)?)),
            Some(path) => {
                File::create(path).map_err(|e| fault(e).file(path))?;
                Ok(Log::Kept(path.to_path_buf()))
            }
        }
    }

    /// The file.
    fn path(&self) -> &Path {
        match self {
            Log::Temporary(file) => file.path(),
            Log::Kept(path) => path,
        }
    }

    /// The file to append to.
    fn writer(&self) -> io::Result<File> {
        File::options().append(true).open(self.path())
    }

    fn len_bytes(&self) -> u64 {
        std::fs::metadata(self.path()).map_or(0, |data| data.len())
    }

    /// The text from that byte on. Without a log there is none.
    fn text_from(&self, start: u64) -> String {
        let mut text = Vec::new();
        let read = File::open(self.path()).and_then(|mut file| {
            file.seek(SeekFrom::Start(start))?;
            file.read_to_end(&mut text)
        });
        // What cannot be read leaves the message alone.
        let _ = read;
        String::from_utf8_lossy(&text).into_owned()
    }
}

impl Process {
    /// Starts the command, which messages call `name`; a request that takes longer than `limit` fails and ends it.
    ///
    /// Errors: [`Code::ToolFailed`] if it does not start.
    pub(super) fn spawn(name: &'static str, mut command: Command, log: Log, limit: Duration) -> Result<Process> {
        let program = PathBuf::from(command.get_program());
        let fault =
            |e: io::Error| Diagnostic::error(Code::ToolFailed, format!("{name} does not start: {e}")).file(&program);
        let stderr = log.writer().map_err(fault)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr);
        let mut child = command.spawn().map_err(fault)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(fault(io::Error::other("no pipes to it")).into());
        };
        let (requests, to_send) = channel();
        let (received, answers) = channel();
        std::thread::spawn(move || converse(stdin, stdout, &to_send, &received));
        Ok(Process { name, child, requests, answers, log, log_start: 0, limit })
    }

    /// The process's number.
    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The file of the log, if it stays.
    pub(super) fn kept_log(&self) -> Option<&Path> {
        match &self.log {
            Log::Temporary(_) => None,
            Log::Kept(path) => Some(path),
        }
    }

    /// What the process has said since the last request.
    pub(super) fn said(&self) -> String {
        self.log.text_from(self.log_start)
    }

    /// Sends a request and waits for the answer, which must be of the kind `expected`. `say` is told of stages.
    ///
    /// Errors: [`Code::ToolFailed`] if the process ends, takes too long or answers what cannot be read.
    pub(super) fn ask(
        &mut self,
        request: Vec<u8>,
        expected: u8,
        doing: &str,
        say: &mut dyn FnMut(&str),
    ) -> Result<Answer> {
        self.log_start = self.log.len_bytes();
        // If the thread has ended, the answer says so.
        let _ = self.requests.send(request);
        let start = Instant::now();
        let mut place = String::new();
        loop {
            let message = match self.answers.recv_timeout(self.limit.saturating_sub(start.elapsed())) {
                Ok(Ok(message)) => message,
                Ok(Err(_)) | Err(RecvTimeoutError::Disconnected) => {
                    let how = self.end();
                    return Err(self.failure(&format!("{} ended ({how}) while {doing}{place}", self.name)).into());
                }
                Err(RecvTimeoutError::Timeout) => {
                    // It may have ended on its own meanwhile.
                    let _ = self.child.kill();
                    let fault = self.failure(&format!("{} did not answer in time while {doing}{place}", self.name));
                    return Err(fault.need(format!("an answer within {} s", self.limit.as_secs_f32())).into());
                }
            };
            match message.split_first() {
                Some((&kind, rest)) if kind == expected => return Ok(Answer::Good(rest.to_vec())),
                Some((&REFUSED, rest)) => return Ok(Answer::Refused(rest.to_vec())),
                Some((&STAGE, rest)) => say(&String::from_utf8_lossy(rest)),
                Some((&PLACE, rest)) => place = format!(", at {}", String::from_utf8_lossy(rest)),
                Some(_) | None => return Err(self.bad_answer()),
            }
        }
    }

    /// How the process ended; one that still runs after an answer that could not be read is ended.
    fn end(&mut self) -> String {
        for _ in 0..50 {
            if let Ok(Some(status)) = self.child.try_wait() {
                return status.to_string();
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // It may have ended on its own meanwhile.
        let _ = self.child.kill();
        "by npuc, after an answer that cannot be read".into()
    }

    /// The fault of an answer that is none to the request.
    pub(super) fn bad_answer(&self) -> Error {
        self.failure(&format!("{} gave an answer of another size or kind than its ports say", self.name)).into()
    }

    /// The fault, with the end of the log.
    pub(super) fn failure(&self, message: &str) -> Diagnostic {
        let text = self.log.text_from(0);
        let fault = Diagnostic::error(Code::ToolFailed, message);
        last_lines(&text).into_iter().fold(fault, |fault, line| fault.help(format!("log: {line}")))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended already; there is nobody left to tell.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends each request and reads what comes up to its answer, until either side ends.
fn converse(
    mut stdin: ChildStdin,
    mut stdout: ChildStdout,
    requests: &Receiver<Vec<u8>>,
    answers: &Sender<io::Result<Vec<u8>>>,
) {
    for request in requests {
        if let Err(error) = write_message(&mut stdin, &request) {
            // A process that ended is told of by its status.
            let _ = answers.send(Err(error));
            return;
        }
        loop {
            let message = read_message(&mut stdout);
            let ended = message.is_err();
            let note = message.as_ref().is_ok_and(|message| matches!(message.first(), Some(&(STAGE | PLACE))));
            if answers.send(message).is_err() || ended {
                return;
            }
            if !note {
                break;
            }
        }
    }
}

/// Writes a message, of which the first byte is its kind.
pub(super) fn write_message(to: &mut impl Write, message: &[u8]) -> io::Result<()> {
    to.write_all(&(message.len() as u64).to_le_bytes())?;
    to.write_all(message)?;
    to.flush()
}

/// Reads a message.
pub(super) fn read_message(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut size = [0; 8];
    from.read_exact(&mut size)?;
    let size = u64::from_le_bytes(size);
    if size > MAX_MESSAGE_BYTES {
        return Err(io::Error::other("the message is too long"));
    }
    let mut message = Vec::new();
    from.by_ref().take(size).read_to_end(&mut message)?;
    if message.len() as u64 == size { Ok(message) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Stand-ins for a process that goes wrong in every way.
    #[test]
    fn what_goes_wrong_is_told() {
        let eight = "\\0\\0\\0\\0\\0\\0\\0";
        for (script, limit_ms, message, log) in [
            ("echo boom >&2; exit 3".into(), 10_000, "the tool ended (exit status: 3) while working", "log: boom"),
            ("kill -SEGV $$".into(), 10_000, "the tool ended (signal: 11 (SIGSEGV)", ""),
            ("echo slow >&2; exec sleep 30".into(), 300, "the tool did not answer in time while working", "log: slow"),
            (
                format!("head -c 9 >/dev/null; printf '\\002{eight}Nx'; kill -9 $$"),
                10_000,
                "(signal: 9 (SIGKILL)) while working, at x",
                "",
            ),
            (
                format!("head -c 9 >/dev/null; printf '\\002{eight}Nx'; exec sleep 30"),
                2_000,
                "in time while working, at x",
                "",
            ),
            (format!("printf '\\001{eight}Q'; exec sleep 30"), 10_000, "gave an answer of another size or kind", ""),
            ("printf '\\377\\377\\377\\377\\377\\377\\377\\377'; exec sleep 30".into(), 10_000, "ended (by npuc", ""),
        ] {
            let error = ask(&script, limit_ms, &mut |_| ()).err().expect(&script);
            let fault = &error.diagnostics()[0];
            assert_eq!((fault.code, error.exit_status()), (Code::ToolFailed, 4), "{script}");
            assert!(fault.message.contains(message), "{script}: {fault}");
            assert!(log.is_empty() || fault.help.iter().any(|line| line == log), "{script}: {fault}");
        }
        let absent = Process::spawn(
            "the tool",
            Command::new("/no/such/program"),
            Log::at(None).expect("a log"),
            Duration::from_secs(1),
        );
        let fault = absent.expect_err("there is none");
        assert_eq!(fault.diagnostics()[0].code, Code::ToolFailed);
        assert!(fault.to_string().contains("the tool does not start"), "{fault}");
    }

    #[test]
    fn notes_come_before_the_answer() {
        let eight = "\\0\\0\\0\\0\\0\\0\\0";
        for (last, expected) in [("Ayes", Some("yes")), ("Eno!", None)] {
            let notes = format!("printf '\\003{eight}Sabc'; printf '\\002{eight}Nx'; printf '\\003{eight}Sde'");
            let script = format!("head -c 9 >/dev/null; {}; printf '\\004{eight}{last}'", notes.replace("Sabc", "Sab"));
            let mut said = Vec::new();
            match ask(&script, 10_000, &mut |text| said.push(text.to_owned())).expect("an answer") {
                Answer::Good(rest) => assert_eq!(Some(String::from_utf8_lossy(&rest).as_ref()), expected),
                Answer::Refused(rest) => assert_eq!((rest.as_slice(), expected), (&b"no!"[..], None)),
            }
            assert_eq!(said, ["ab", "de"]);
        }
    }

    fn ask(script: &str, limit_ms: u64, say: &mut dyn FnMut(&str)) -> Result<Answer> {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let log = Log::at(None)?;
        let mut process = Process::spawn("the tool", command, log, Duration::from_millis(limit_ms))?;
        process.ask(b"R".to_vec(), b'A', "working", say)
    }
}
