//! The data types that an operation was asked to take together, and the sets of them that it does take: blocks of lines
//! such as `in[0]:QNN_DATATYPE_UFIXED_POINT_16` under a heading.

use std::borrow::Cow;

use super::super::{Kind, Said, Statement};
use super::after;

/// How many sets a finding tells.
const SHOWN: usize = 6;
/// How far the lists reach at most. Source: the longest that was seen, of an addition, has some hundred lines.
const MAX_LINES: usize = 2000;

/// A set of data types, operands and results.
#[derive(Clone, Debug, Default, PartialEq)]
struct Set {
    inputs: Vec<String>,
    outputs: Vec<String>,
}

impl Set {
    fn is_empty(&self) -> bool {
        self.inputs.is_empty() && self.outputs.is_empty()
    }
}

impl std::fmt::Display for Set {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} to {}", self.inputs.join(" x "), self.outputs.join(", "))
    }
}

/// What a block of lines lists.
#[derive(Clone, Copy, PartialEq)]
enum Block {
    Requested,
    Supported,
}

/// Gives each statement about data types that do not go together what was asked for and what is taken.
pub(super) fn attach(lines: &[Cow<'_, str>], statements: &mut [(Statement, Said, Option<usize>)]) {
    let wanted: Vec<usize> = (0..statements.len()).filter(|at| statements[*at].0.kind == Kind::QnnFormats).collect();
    for at in wanted {
        let from = statements[at].1.line;
        let (requested, supported) = sets(lines.iter().skip(from).take(MAX_LINES));
        let statement = &mut statements[at].0;
        statement.actual = (!requested.is_empty()).then(|| requested.to_string());
        statement.limit = limit(&requested, &supported);
    }
}

/// The set that was asked for and those that are taken, from the lines after the statement.
fn sets<'a>(lines: impl Iterator<Item = &'a Cow<'a, str>>) -> (Set, Vec<Set>) {
    let (mut requested, mut supported): (Set, Vec<Set>) = (Set::default(), Vec::new());
    let mut block = None;
    for line in lines.map(|line| line.trim()).filter(|line| !line.is_empty()) {
        let of_next =
            line.contains("datatypes requested") || (line.contains("Requested I/O datatype") && block.is_some());
        if of_next {
            break;
        } else if line.contains("Requested I/O datatype set") {
            block = Some(Block::Requested);
        } else if line.contains("Supported I/O datatype sets") {
            block = Some(Block::Supported);
        } else if line.strip_suffix(':').is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())) {
            supported.push(Set::default());
        } else if let Some((is_input, name)) = member(line) {
            let set = match (block, supported.last_mut()) {
                (Some(Block::Requested), _) => &mut requested,
                (Some(Block::Supported), Some(last)) => last,
                (Some(Block::Supported) | None, _) => continue,
            };
            if is_input { &mut set.inputs } else { &mut set.outputs }.extend(name);
        } else if block.is_some() {
            break;
        }
    }
    supported.retain(|set| !set.is_empty());
    (requested, supported)
}

/// Whether a line is an operand or a result, with npuc's name of its data type; an operand that was left out has none.
fn member(line: &str) -> Option<(bool, Option<String>)> {
    let (place, name) = line.split_once("]:")?;
    let is_input = place.starts_with("in[");
    if !is_input && !place.starts_with("out[") {
        return None;
    }
    let name = name.trim();
    let name = after(name, "QNN_DATATYPE_").map(|name| {
        let number = |kind: &str, rest: &str| format!("{kind}{}", rest.split('_').next().unwrap_or_default());
        for (prefix, kind) in [
            ("UFIXED_POINT_", "u"),
            ("SFIXED_POINT_", "s"),
            ("BFLOAT_", "bf"),
            ("FLOAT_", "f"),
            ("UINT_", "uint"),
            ("INT_", "int"),
        ] {
            if let Some(rest) = name.strip_prefix(prefix) {
                return number(kind, rest);
            }
        }
        name.to_lowercase()
    });
    Some((is_input, name))
}

/// The sets that agree with the first operand that was asked for, or else all, each once.
fn limit(requested: &Set, supported: &[Set]) -> Option<String> {
    let mut told: Vec<String> = Vec::new();
    let first = requested.inputs.first();
    let agree = supported.iter().any(|set| set.inputs.first() == first);
    for set in supported.iter().filter(|set| !agree || set.inputs.first() == first) {
        let set = set.to_string();
        if !told.contains(&set) {
            told.push(set);
        }
    }
    let more = told.len().saturating_sub(SHOWN);
    told.truncate(SHOWN);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!told.is_empty()).then(|| format!("{}{more}", told.join(", ")))
}
