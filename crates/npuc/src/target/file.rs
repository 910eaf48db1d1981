//! Reading target files. What is wrong is told with the line and column it stands at.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{Chip, Target};
use crate::back::BackEnd;
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::model::CacheProtocol;

/// The largest constant that hides a position.
const LEAST_HIDDEN: i32 = -30;

/// A target file is written by hand; anything larger is another file.
const MAX_BYTES: u64 = 1 << 20;

/// Reads a target file.
pub(super) fn open(path: &Path) -> Result<Target> {
    let unreadable = |why: String| Diagnostic::error(Code::Unreadable, why).file(path);
    let failed = |error: std::io::Error| unreadable(format!("cannot read the target file: {error}"));
    let bytes = fs::metadata(path).map_err(failed)?.len();
    if bytes > MAX_BYTES {
        let fault = unreadable("the file is too large for a target file".into());
        return Err(fault.need(format!("at most {MAX_BYTES} bytes")).have(bytes).into());
    }
    parse(&fs::read_to_string(path).map_err(failed)?, path)
}

/// The target that `text` describes; `path` is named in messages.
///
/// # Errors
/// [`Code::BadTarget`] with line and column, for what breaks the form or contradicts itself.
pub(super) fn parse(text: &str, path: &Path) -> Result<Target> {
    let chip: Chip = toml::from_str(text).map_err(|error| {
        let why = error.message().lines().collect::<Vec<_>>().join("; ");
        fault(text, path, error.span(), why)
    })?;
    let faults = contradictions(&chip).into_iter().map(|(needle, why, need)| {
        let fault = fault(text, path, needle.and_then(|needle| place(text, &needle)), why);
        need.into_iter().fold(fault, Diagnostic::need)
    });
    Error::check(faults.collect())?;
    Ok(Target(Arc::new(chip)))
}

fn fault(text: &str, path: &Path, span: Option<Range<usize>>, why: String) -> Diagnostic {
    let (line, column) = position(text, span.map_or(0, |span| span.start));
    let message = format!("the target file is malformed at line {line}, column {column}: {why}");
    Diagnostic::error(Code::BadTarget, message).file(path).line(line)
}

/// The 1-based line and column, in characters, of a byte offset.
fn position(text: &str, offset: usize) -> (usize, usize) {
    let before = text.get(..offset).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

/// Where a quoted text first stands.
fn place(text: &str, quoted: &str) -> Option<Range<usize>> {
    text.find(quoted).map(|start| start..start + quoted.len())
}

type Contradiction = (Option<String>, String, Option<String>);

/// What no single value shows, each with the text that it stands at and what was needed.
fn contradictions(chip: &Chip) -> Vec<Contradiction> {
    let mut faults: Vec<Contradiction> = Vec::new();
    let names: Vec<&str> = chip.units.iter().map(|unit| unit.name.0.as_str()).collect();
    if chip.name.is_empty() || !chip.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-') {
        let need = "lower-case letters, digits and dashes".to_string();
        faults.push((Some(format!("{:?}", chip.name)), format!("`{}` is no target's name", chip.name), Some(need)));
    }
    if names.is_empty() {
        faults.push((Some("unit".into()), "the target has no unit".into(), Some("at least one [[unit]]".into())));
    }
    if chip.ops.is_empty() {
        faults.push((Some("ops".into()), "the target takes no operation".into(), Some("at least one [[ops]]".into())));
    }
    for ops in &chip.ops {
        if !names.contains(&ops.unit.as_str()) {
            let why = format!("`{}` is no unit of the target", ops.unit);
            faults.push((Some(format!("unit = {:?}", ops.unit)), why, Some(format!("one of: {}", names.join(", ")))));
        }
    }
    if !chip.float.is_float() {
        let why = format!("`{}` is no float format", chip.float.name());
        faults.push((Some(format!("float = \"{}\"", chip.float.name())), why, Some("f32, f16 or bf16".into())));
    }
    faults.extend(unbuildable(chip));
    for rule in &chip.rules {
        if rule.unless.iter().any(|unless| unless.flag.0.starts_with('-')) {
            let why = format!("the flag of rule `{}` is written with its dashes", rule.name);
            faults.push((Some(format!("{:?}", rule.name.0)), why, Some("as in flag = \"gno=LTS\"".into())));
        }
    }
    faults
}

/// What keeps a back end from building, or its files from meaning what the model means.
fn unbuildable(chip: &Chip) -> Vec<Contradiction> {
    let mut faults: Vec<Contradiction> = Vec::new();
    if chip.hidden_mask > LEAST_HIDDEN {
        let why = format!("a mask of {} hides nothing", chip.hidden_mask);
        let need = format!("at most {LEAST_HIDDEN}: e to the power of it has to vanish beside 1");
        faults.push((Some("hidden-mask".into()), why, Some(need)));
    }
    if chip.back_end == Some(BackEnd::Tflite) && chip.protocol != CacheProtocol::Shift {
        let need = "protocol = \"shift\", as MediaTek's runtime has it".to_string();
        faults.push((
            Some("protocol".into()),
            "the back end `tflite` has no other caches than shifted ones".into(),
            Some(need),
        ));
    }
    if chip.back_end == Some(BackEnd::Qnn) {
        if chip.protocol != CacheProtocol::Append {
            let need = Some("protocol = \"append\"".to_string());
            faults.push((Some("protocol".into()), "the back end `qnn` appends rows to caches".into(), need));
        }
        if chip.soc_model.is_none() {
            let need = Some("soc-model, Qualcomm's number of the chip, e.g. 57 for SM8650".to_string());
            faults.push((Some("back-end".into()), "the back end `qnn` builds for one chip".into(), need));
        }
    }
    if let Some(back_end) = chip.back_end {
        for op in chip.buildable().into_iter().filter(|op| !back_end.emits(op)) {
            let why = format!("the target takes `{op}`, which the back end `{}` cannot emit", back_end.name());
            faults.push((Some(format!("{op} = ")), why, Some("operations that the back end emits".into())));
        }
    }
    faults
}

#[cfg(test)]
#[path = "file_tests.rs"]
mod tests;
