//! Reads result files: every line on its own, and whether each follows the one before.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::Path;

use npuc::{Code, Diagnostic, Result};
use serde::Deserialize;

use crate::chain::{GENESIS, claimed};
use crate::json::reason_in;
use crate::record::{Dropped, End, Header, Kind, Record, SCHEMA};

/// A line of a result file.
#[derive(Clone, Debug)]
pub enum Line {
    /// A segment begins.
    Header(Box<Header>),
    /// A request.
    Request(Box<Record>),
    /// The run is complete.
    End(End),
}

/// What is wrong with a line or its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LineFault {
    /// What it says cannot be taken for a request.
    Malformed(Malformed),
    /// Its bytes are not those that its hash was made of.
    Edited,
    /// It does not follow the line before.
    Displaced {
        /// The hash of the line before.
        need: String,
        /// What it has.
        have: String,
    },
    /// It is another line again.
    Repeated {
        /// The first one.
        first: usize,
    },
}

/// Why a line cannot be taken for what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// It is no line of npuc's.
    Unreadable(String),
    /// It is of another tool and has no field of a request.
    Empty,
    /// It is of another tool and says two things that cannot both be, or one that cannot be at all.
    Contradictory(String),
    /// It is of another tool and does not say whether the request failed; it is taken for complete.
    NoStatus,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Malformed::Unreadable(why) | Malformed::Contradictory(why) => f.write_str(why),
            Malformed::Empty => f.write_str("no field of a request"),
            Malformed::NoStatus => f.write_str("no status"),
        }
    }
}

/// A result file, line by line; lines are counted from 1.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The lines that can be read.
    pub lines: Vec<(usize, Line)>,
    /// What is wrong.
    pub faults: Vec<(usize, LineFault)>,
    /// What is behind the last line that is whole.
    pub torn: Option<Dropped>,
    /// Bytes before that.
    pub whole_bytes: u64,
    /// The hash of the last whole line.
    pub last: String,
}

#[derive(Deserialize)]
struct Probe {
    kind: Kind,
    prev: String,
}

/// Reads a file.
///
/// Errors: it cannot be read.
pub fn scan_file(path: &Path) -> Result<Scan> {
    let bytes = fs::read(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the results: {e}")).file(path))?;
    Ok(scan(&bytes))
}

/// Reads a result file's bytes.
///
/// Bytes without a line end at the end of the file are torn. So is a last line that is no JSON at all, which a machine without power can
/// leave where the file had grown and its bytes had not arrived.
pub fn scan(bytes: &[u8]) -> Scan {
    let mut scan = Scan { last: GENESIS.to_string(), ..Scan::default() };
    let mut pieces: Vec<&[u8]> = bytes.split_inclusive(|&byte| byte == b'\n').collect();
    let is_torn =
        |piece: &&[u8]| !piece.ends_with(b"\n") || serde_json::from_slice::<serde::de::IgnoredAny>(piece).is_err();
    if let Some(torn) = pieces.pop_if(|piece| is_torn(&&**piece)) {
        scan.torn = Some(Dropped { line: pieces.len() + 1, bytes: torn.len() as u64 });
    }
    let mut hashes = BTreeMap::new();
    for (place, piece) in pieces.iter().enumerate() {
        let number = place + 1;
        scan.whole_bytes += piece.len() as u64;
        let text = piece.strip_suffix(b"\n").unwrap_or(piece);
        match std::str::from_utf8(text).map_err(|e| e.to_string()).and_then(parse) {
            Ok((line, prev, hash, is_intact)) => {
                let first = hashes.get(&hash).copied();
                let fault = if !is_intact {
                    Some(LineFault::Edited)
                } else if let Some(first) = first {
                    Some(LineFault::Repeated { first })
                } else if prev != scan.last {
                    Some(LineFault::Displaced { need: scan.last.clone(), have: prev })
                } else {
                    None
                };
                scan.faults.extend(fault.map(|fault| (number, fault)));
                hashes.entry(hash.clone()).or_insert(number);
                scan.last = hash;
                scan.lines.push((number, line));
            }
            Err(message) => {
                scan.faults.push((number, LineFault::Malformed(Malformed::Unreadable(message))));
                // The next line may follow this one all the same.
                if let Some((hash, _)) = std::str::from_utf8(text).ok().and_then(claimed) {
                    scan.last = hash.to_string();
                }
            }
        }
    }
    scan
}

/// A line, the hash it has of the line before, its own hash, and whether that is right.
fn parse(text: &str) -> Result<(Line, String, String, bool), String> {
    let (hash, is_intact) = claimed(text).ok_or("it does not end with a hash")?;
    let Probe { kind, prev } = serde_json::from_str(text).map_err(|e| reason_in(text, &e))?;
    let line = match kind {
        Kind::Header => serde_json::from_str(text).map(|header| Line::Header(Box::new(header))),
        Kind::Request => serde_json::from_str(text).map(|record| Line::Request(Box::new(record))),
        Kind::End => serde_json::from_str(text).map(Line::End),
    };
    let line = line.map_err(|e| other_schema(text).unwrap_or_else(|| reason_in(text, &e)))?;
    match &line {
        Line::Header(header) if header.schema != SCHEMA => return Err(other_schema(text).unwrap_or_default()),
        Line::Request(record) if latest(record) > LATEST => {
            return Err(format!("a time is past {LATEST}, where differences could overflow"));
        }
        Line::Header(_) | Line::Request(_) | Line::End(_) => {}
    }
    Ok((line, prev, hash.to_string(), is_intact))
}

/// The largest number of ns or µs that a line may have: 2^52 µs are 142 years.
const LATEST: u64 = 1 << 52;

/// The latest of a request's times, of whatever unit.
fn latest(record: &Record) -> u64 {
    let Record { start_ns, end_ns, start_unix_us, end_unix_us, prefill, token_trace, samples, .. } = record;
    let own = [*start_ns, *end_ns, *start_unix_us, *end_unix_us].into_iter();
    let steps = prefill.iter().map(|step| step.end_ns);
    let tokens = token_trace.iter().map(|commit| commit.commit_ns);
    own.chain(steps).chain(tokens).chain(samples.iter().map(|sample| sample.at_ns)).max().unwrap_or(0)
}

fn other_schema(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let version = serde_json::from_str::<Version>(text).ok()?.schema;
    (version != SCHEMA).then(|| format!("schema {version}, this npuc reads {SCHEMA}"))
}
