//! Opening a result file: a new one, or the valid part of one that a run left behind.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read};
use std::path::Path;

use npuc::{Code, Diagnostic, Error, Result};
use serde_json::Value;

use crate::chain::{GENESIS, Journal};
use crate::read::{Line, LineFault, Scan, scan};
use crate::record::{Dropped, Plan, Status};

/// A result file that is open for a segment.
pub struct Opened {
    /// Where lines go.
    pub journal: Journal,
    /// Places of the requests that are complete.
    pub done: BTreeSet<usize>,
    /// The place of the segment that begins.
    pub segment: usize,
    /// What was cut off.
    pub dropped: Option<Dropped>,
    /// Whether the file has its last line already.
    pub is_ended: bool,
}

/// A new result file.
///
/// Errors: there is a file already, or it cannot be made.
pub fn create(path: &Path) -> Result<Opened> {
    plain_file(path)?;
    let file = OpenOptions::new().append(true).read(true).create_new(true).open(path).map_err(|e| {
        let fault = Diagnostic::error(Code::Unwritable, format!("cannot make the results: {e}")).file(path);
        if e.kind() == ErrorKind::AlreadyExists {
            return fault.help("go on with it (--resume), or name another file");
        }
        fault
    })?;
    lock(&file, path)?;
    let journal = Journal::open(path, file, 0, GENESIS)?;
    Ok(Opened { journal, done: BTreeSet::new(), segment: 0, dropped: None, is_ended: false })
}

/// Goes on with a result file; one that is not there is made.
///
/// Errors: another process writes to it; a whole line that is damaged or out of place; the run was of another plan, with each
/// difference.
pub fn resume(path: &Path, plan: &Plan) -> Result<Opened> {
    plain_file(path)?;
    let opened = OpenOptions::new().append(true).read(true).create(true).open(path);
    let mut file =
        opened.map_err(|e| Diagnostic::error(Code::Unwritable, format!("cannot open the results: {e}")).file(path))?;
    lock(&file, path)?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the results: {e}")).file(path))?;
    let Scan { lines, faults, torn, whole_bytes, last } = scan(&bytes);
    Error::check(faults.iter().map(|(line, fault)| diagnostic(*line, fault)).collect()).map_err(|e| e.in_file(path))?;
    if lines.is_empty() && !may_be_torn_header(&bytes) {
        let fault = Diagnostic::error(Code::BadRun, "the file is no result file of npuc bench").file(path);
        return Err(fault
            .have(format!("{} bytes that do not begin like one", bytes.len()))
            .help("name another file")
            .into());
    }
    let (mut done, mut segment, mut is_ended) = (BTreeSet::new(), 0, false);
    for (line, content) in &lines {
        match content {
            Line::Header(header) => {
                same_plan(&header.plan, plan, *line).map_err(|e| e.in_file(path))?;
                segment = header.segment.saturating_add(1);
            }
            Line::Request(record) => match record.status {
                Status::Complete => {
                    done.insert(record.index);
                }
                Status::Failed => {}
            },
            Line::End(_) => is_ended = true,
        }
    }
    let journal = Journal::open(path, file, whole_bytes, &last)?;
    Ok(Opened { journal, done, segment, dropped: torn, is_ended })
}

/// Whether a file without a whole line may be what is left of a first line: its beginning, or space that was never written.
fn may_be_torn_header(bytes: &[u8]) -> bool {
    const BEGIN: &[u8] = b"{\"kind\":\"header\"";
    bytes.starts_with(BEGIN) || BEGIN.starts_with(bytes) || bytes.iter().all(|&byte| byte == 0)
}

/// Results are cut and read again, which devices and pipes are not.
fn plain_file(path: &Path) -> Result<()> {
    match std::fs::metadata(path) {
        Ok(data) if !data.is_file() => {
            let fault = Diagnostic::error(Code::Unwritable, "the results have to be a plain file").file(path);
            Err(fault.help("name a new file").into())
        }
        Ok(_) | Err(_) => Ok(()),
    }
}

fn lock(file: &File, path: &Path) -> Result<()> {
    file.try_lock().map_err(|e| match e {
        TryLockError::WouldBlock => {
            let fault = Diagnostic::error(Code::BadRun, "another npuc writes to these results").file(path);
            fault.help("wait until it has ended, or name another file").into()
        }
        TryLockError::Error(e) => {
            Diagnostic::error(Code::Unwritable, format!("cannot lock the results: {e}")).file(path).into()
        }
    })
}

/// A fault of a line in words.
pub(crate) fn diagnostic(line: usize, fault: &LineFault) -> Diagnostic {
    let new = |message: &str| Diagnostic::error(Code::BadRun, message).line(line);
    match fault {
        LineFault::Malformed(what) => new("the line is none of a result file").have(what),
        LineFault::Edited => new("the line was changed after it was written")
            .need("the bytes that its hash was made of")
            .help("take the file as npuc wrote it, or measure anew"),
        LineFault::Displaced { need, have } => {
            new("the line does not follow the one before: lines are lost or out of order")
                .need(format!("prev = {need}"))
                .have(format!("prev = {have}"))
        }
        LineFault::Repeated { first } => new("the line is there twice").have(format!("line {first} again")),
    }
}

/// Refuses to go on with other settings: the segments of a run have one plan.
fn same_plan(old: &Plan, new: &Plan, line: usize) -> Result<()> {
    let [old, new] = [old, new].map(|plan| serde_json::to_value(plan).expect("plans have only text keys"));
    let mut faults = Vec::new();
    differences("plan", &old, &new, &mut |field, old, new| {
        let fault = Diagnostic::error(Code::BadRun, "the results are of another plan").line(line).subject(field);
        faults.push(fault.need(old).have(new).help("give the flags of the first run, or name another file"));
    });
    Error::check(faults)
}

fn differences(path: &str, old: &Value, new: &Value, found: &mut impl FnMut(&str, &Value, &Value)) {
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            for (key, old) in old {
                differences(&format!("{path}.{key}"), old, new.get(key).unwrap_or(&Value::Null), found);
            }
        }
        (old, new) if old != new => found(path, old, new),
        _ => {}
    }
}
