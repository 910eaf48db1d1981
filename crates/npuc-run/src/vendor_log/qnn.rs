//! What Qualcomm's QNN libraries say, and the error codes that they and the programs above them give.
//!
//! The wording is that of QNN 2.51 in emulation, where it says so; older libraries word some of it otherwise.

use std::borrow::Cow;
use std::collections::BTreeSet;

use super::{Kind, Operation, Said, Statement};

mod nodes;
mod sets;

#[cfg(test)]
mod tests;

/// An error code.
struct ErrorCode {
    /// The low 16 bits of QNN's error value.
    number: u64,
    kind: Kind,
    message: &'static str,
    /// Kinds that are the reason where the log has one of them in words; the code then only follows.
    reasons: &'static [Kind],
}

const fn code_of(number: u64, kind: Kind, message: &'static str, reasons: &'static [Kind]) -> ErrorCode {
    ErrorCode { number, kind, message, reasons }
}

const CODES: [ErrorCode; 11] = [
    code_of(14001, Kind::QnnDevice, "the device cannot be created (14001)", &[Kind::QnnSkel, Kind::QnnConfig]),
    code_of(
        1002,
        Kind::QnnPrepare,
        "an operation cannot be created (1002, which is named a memory fault)",
        &[Kind::QnnPrepare, Kind::QnnDomain],
    ),
    code_of(1000, Kind::QnnPlatform, "something is not supported on this platform (1000)", &[Kind::QnnShared]),
    code_of(5000, Kind::QnnVersion, "the context binary cannot be read (5000)", &[Kind::QnnVersion]),
    code_of(30001, Kind::QnnBinary, "the file is no context binary, or is damaged (30001)", &[]),
    code_of(30010, Kind::QnnBinary, "the context binary is damaged or cut off (30010)", &[]),
    code_of(
        3110,
        Kind::QnnRule,
        "the validation refuses an operation (3110)",
        &[Kind::QnnRule, Kind::QnnGeneration, Kind::QnnFormats, Kind::QnnFloatBlock],
    ),
    code_of(4005, Kind::QnnUnknownOp, "an operation is not known (4005)", &[]),
    code_of(7003, Kind::QnnDuplicate, "two tensors of a graph have one name (7003)", &[Kind::QnnDuplicate]),
    code_of(7004, Kind::QnnDataType, "the data type of a tensor is not taken (7004)", &[Kind::QnnDataType]),
    code_of(6022, Kind::QnnEmpty, "a graph has no operations (6022)", &[Kind::QnnEmpty]),
];

/// What a line of QNN or a program that uses it says.
pub(super) fn read(line: &str) -> Option<Statement> {
    device(line)
        .or_else(|| binary(line))
        .or_else(|| tensor(line))
        .or_else(|| validation(line))
        .or_else(|| preparation(line))
        .or_else(|| note(line))
        .or_else(|| code(line))
}

/// Fills in what other lines say: the nodes that statements are about, sets of formats, and which codes only follow.
pub(super) fn complete(
    lines: &[Cow<'_, str>],
    statements: &mut [(Statement, Said, Option<usize>)],
    operations: &mut Vec<Operation>,
) {
    nodes::attach(lines, statements, operations);
    sets::attach(lines, statements);
    let in_words: BTreeSet<Kind> = statements.iter().filter(|(s, ..)| s.code.is_none()).map(|(s, ..)| s.kind).collect();
    for (statement, _, of) in statements {
        let known = statement.code.and_then(|number| CODES.iter().find(|code| code.number == number));
        if known.is_some_and(|code| code.reasons.iter().any(|reason| in_words.contains(reason))) {
            (statement.kind, *of) = (Kind::QnnChain, None);
        }
    }
}

/// The text after a phrase.
fn after<'a>(line: &'a str, phrase: &str) -> Option<&'a str> {
    line.split_once(phrase).map(|(_, rest)| rest.trim())
}

/// The first word of a text, without what punctuation may stand around it.
fn first_word(text: &str) -> &str {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.trim_matches(|c: char| "\"'.,;:()".contains(c))
}

fn device(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if says("find available PD") {
        let statement = Statement::new(Kind::QnnDomain, "no process domain of the DSP has room for the context");
        let bytes = after(line, "size estimate ").map(first_word).filter(|bytes| !bytes.is_empty());
        return Some(match bytes {
            Some(bytes) => statement.actual(format!("an estimate of {bytes}")),
            None => statement,
        });
    }
    if says("Failed to load skel")
        || says("Unable to load Remote symbols")
        || says("Failed to create transport for device")
    {
        return Some(Statement::new(Kind::QnnSkel, "the NPU's library (Skel) is not found on the device"));
    }
    let soc = after(line, "unknown custom config socModel ").or_else(|| after(line, "Unknown config socModel "))?;
    let message = "the device configuration names a chip that the libraries do not know";
    Some(Statement::new(Kind::QnnConfig, message).actual(format!("socModel {}", first_word(soc))))
}

/// What is said of context binaries.
fn binary(line: &str) -> Option<Statement> {
    if line.contains("Shared weights buffer isn't supported on this platform") {
        let message = "a context binary of graphs with shared weights does not load on x86";
        return Some(Statement::new(Kind::QnnShared, message));
    }
    let newer = "the context binary is newer than the libraries that load it";
    if let Some(rest) = after(line, "Can't read future blob. Newest blob version supported: ") {
        let (limit, actual) = rest.split_once(" Current blob version: ")?;
        let version = |text: &str| format!("blob version {}", text.trim().trim_end_matches('.'));
        return Some(Statement::new(Kind::QnnVersion, newer).limit(version(limit)).actual(version(actual)));
    }
    line.contains("Using newer context binary on old SDK").then(|| Statement::new(Kind::QnnVersion, newer))
}

/// What is said of a tensor or a graph while it is made.
fn tensor(line: &str) -> Option<Statement> {
    if let Some((number, _)) = after(line, "tensor datatype ").and_then(|rest| rest.split_once(" not supported")) {
        let statement = Statement::new(Kind::QnnDataType, "the data type of a tensor is not taken (7004)");
        return Some(statement.actual(number.trim()));
    }
    if line.contains("already exists in the graph") {
        let statement = Statement::new(Kind::QnnDuplicate, "two tensors of a graph have one name (7003)");
        let name = after(line, "Tensor name ").and_then(|rest| rest.split_whitespace().next());
        return Some(name.map_or(statement.clone(), |name| statement.actual(name)));
    }
    let empty = line.contains("Graph has zero node");
    empty.then(|| Statement::new(Kind::QnnEmpty, "a graph has no operations (6022)"))
}

/// What the validation of an operation says.
fn validation(line: &str) -> Option<Statement> {
    let rule = |message: &str| Statement::new(Kind::QnnRule, format!("{message} (3110)"));
    if let Some(rest) = after(line, "has incorrect Value ") {
        let (actual, limit) = rest.split_once(", expected ").unwrap_or((rest, ""));
        let [actual, limit] = [actual, limit].map(|text| text.trim().trim_end_matches('.'));
        if let Some(generation) = generation(actual, limit) {
            let message = "an operation needs a later generation of the NPU (3110)";
            let statement = Statement::new(Kind::QnnGeneration, message);
            return Some(statement.actual(format!("v{actual}")).limit(format!("v{generation} or later")));
        }
        let statement = rule("the validation refuses a value of an operation").actual(actual);
        return Some(if limit.is_empty() { statement } else { statement.limit(limit) });
    }
    for (phrase, message) in [
        ("has incorrect Rank ", "the validation refuses the rank of a tensor"),
        ("has incorrect Datatype ", "the validation refuses the data type of a tensor"),
        ("Wrong number of ", "the validation refuses the number of operands, results or parameters"),
    ] {
        if let Some(rest) = after(line, phrase) {
            return Some(rule(message).actual(rest.trim_end_matches('.')));
        }
    }
    if let Some(rest) = after(line, "BW_FLOAT_BLOCK weight tensor must be rank ") {
        let message = "a matrix of float blocks has another rank than the operation takes (3110)";
        return Some(Statement::new(Kind::QnnFloatBlock, message).limit(format!("rank {}", first_word(rest))));
    }
    let formats = line.contains("Unsupported input/output datatypes requested");
    let message = "the data types of an operation do not go together (3110)";
    formats.then(|| Statement::new(Kind::QnnFormats, message))
}

/// The generations of the NPU. Source: the architectures that QNN's libraries are named after.
const GENERATIONS: [u32; 8] = [66, 68, 69, 73, 75, 79, 81, 85];

/// The generation that a rule asks for, if its value is one and the limit another: `75`, `>= 81`.
fn generation(actual: &str, limit: &str) -> Option<u32> {
    let limit: u32 = limit.strip_prefix(">= ")?.parse().ok()?;
    let actual: u32 = actual.parse().ok()?;
    (GENERATIONS.contains(&actual) && GENERATIONS.contains(&limit)).then_some(limit)
}

/// What the preparation of a graph says.
fn preparation(line: &str) -> Option<Statement> {
    if line.contains("No registered op") {
        let statement = Statement::new(Kind::QnnNoKernel, "a kernel of that name is not there");
        return Some(kernel(line).map_or(statement.clone(), |name| statement.actual(name)));
    }
    let fails = ["could not create op", "Could not prepare op", "Op creation failure"];
    let statement = Statement::new(Kind::QnnPrepare, "an operation cannot be created");
    fails.iter().any(|phrase| line.contains(phrase)).then(|| match kernel(line).or_else(|| number(line)) {
        Some(name) => statement.actual(name),
        None => statement,
    })
}

/// The name of a kernel in a line, e.g. `q::GenPad`.
fn kernel(line: &str) -> Option<String> {
    let name: String = after(line, "q::")?.chars().take_while(|c| c.is_alphanumeric() || "_.".contains(*c)).collect();
    let name = name.trim_end_matches('.');
    (!name.is_empty()).then(|| format!("q::{name}"))
}

/// The library's own number of an operation in a line, e.g. `0x408300000014`.
fn number(line: &str) -> Option<String> {
    let digits: String = after(line, "0x")?.chars().take_while(char::is_ascii_hexdigit).collect();
    (!digits.is_empty()).then(|| format!("0x{digits}"))
}

/// What stops nothing.
fn note(line: &str) -> Option<Statement> {
    if let Some(soc) = after(line, "Performance Estimates unsupported on soc ") {
        let message = "the libraries make no estimates of time for this chip";
        return Some(Statement::new(Kind::QnnEstimates, message).actual(first_word(soc)));
    }
    if line.contains("HTP arch will be deprecated") {
        let message = "the device was asked for by its generation and not by its chip";
        return Some(Statement::new(Kind::QnnArch, message));
    }
    let harmless = ["unexpected GraphHtpSettings option", "set by custom config is different from arch associated"];
    let harmless = harmless.iter().any(|phrase| line.contains(phrase));
    harmless.then(|| Statement::new(Kind::QnnHarmless, "the libraries complain of what they chose themselves"))
}

/// An error code in a line that is about QNN and about an error; other lines have such numbers too.
fn code(line: &str) -> Option<Statement> {
    let lower = line.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let about = [
        "qnn",
        "htp",
        "skel",
        "<e>",
        "devicecreate",
        "create device",
        "contextcreate",
        "graphfinalize",
        "create context",
        "device creation",
        "finalize",
        "validateopconfig",
        "backend validation",
    ];
    if !says(&about) || !says(&["err", "fail", "code", "status", "exits with", "returned"]) {
        return None;
    }
    let is_word = |c: char| c.is_ascii_alphanumeric();
    let mut from = 0;
    while let Some(start) = lower[from..].find(is_word).map(|at| from + at) {
        let len = lower[start..].find(|c: char| !is_word(c)).unwrap_or(lower.len() - start);
        let word = &lower[start..start + len];
        from = start + len;
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok().map(|value| value & 0xFFFF),
            None => word.parse::<u64>().ok(),
        };
        let known = number.and_then(|number| CODES.iter().find(|code| code.number == number));
        if let Some(known) = known.filter(|_| names_error(&lower[..start], &lower[from..])) {
            return Some(Statement { code: Some(known.number), ..Statement::new(known.kind, known.message) });
        }
    }
    None
}

/// Whether a number is an error's by what stands around it: such a word before it, or a colon or sign of equality
/// before and nothing more after it.
fn names_error(before: &str, after: &str) -> bool {
    let before = before.trim_end();
    let word = before.rsplit(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    let ends = after.trim_start().chars().next().is_none_or(|c| ").,;]".contains(c));
    (ends && before.ends_with([':', '=']))
        || ["error", "err", "failed", "code", "status", "with", "returned"].contains(&word)
}
