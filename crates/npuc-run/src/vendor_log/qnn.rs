//! What Qualcomm's QNN libraries say, and the error codes that they and the programs above them give.

use super::{Kind, Statement};

/// Error codes with the kind of fault. They are the low 16 bits of QNN's error values.
const CODES: [(u64, Kind, &str); 8] = [
    (14001, Kind::QnnDevice, "the device cannot be created (14001)"),
    (1002, Kind::QnnPrepare, "an operation cannot be created (1002, which is named a memory fault)"),
    (5000, Kind::QnnVersion, "the context binary cannot be read (5000)"),
    (3110, Kind::QnnRule, "the validation refuses an operation (3110)"),
    (4005, Kind::QnnUnknownOp, "an operation is not known (4005)"),
    (7003, Kind::QnnDuplicate, "two tensors of a graph have one name (7003)"),
    (7004, Kind::QnnDataType, "the data type of a tensor is not taken (7004)"),
    (6022, Kind::QnnEmpty, "a graph has no operations (6022)"),
];

/// What a line of QNN or a program that uses it says.
pub(super) fn read(line: &str) -> Option<Statement> {
    text(line).or_else(|| code(line))
}

fn text(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if says("failed to find available PD") {
        return Some(Statement::new(Kind::QnnDomain, "no process domain of the DSP has room for the context"));
    }
    if says("No registered op") {
        let name = line.split_once("q::").map(|(_, rest)| rest.split_whitespace().next().unwrap_or_default());
        let statement = Statement::new(Kind::QnnPrepare, "there is no kernel for an operation in these formats");
        return Some(match name {
            Some(name) => statement.actual(format!("q::{}", name.trim_end_matches(['"', '\'', '.', ',']))),
            None => statement,
        });
    }
    if says("Shared weights buffer isn't supported on this platform") {
        return Some(Statement::new(
            Kind::QnnShared,
            "a context binary of graphs with shared weights does not load on x86",
        ));
    }
    if let Some((_, rest)) = line.split_once("has incorrect Value ") {
        let (actual, limit) = rest.split_once(", expected ")?;
        let statement = Statement::new(Kind::QnnRule, "the validation refuses a value of an operation (3110)");
        return Some(statement.actual(actual.trim()).limit(limit.trim().trim_end_matches('.')));
    }
    if let Some((_, rest)) = line.split_once("has incorrect Rank ") {
        let statement = Statement::new(Kind::QnnRule, "the validation refuses the rank of a tensor (3110)");
        return Some(statement.actual(rest.trim().trim_end_matches('.')));
    }
    if let Some((_, rest)) = line.split_once("tensor datatype ")
        && let Some((number, _)) = rest.split_once(" not supported")
    {
        let statement = Statement::new(Kind::QnnDataType, "the data type of a tensor is not taken (7004)");
        return Some(statement.actual(number.trim()));
    }
    if says("already exists in the graph") {
        let name = line.split_once("Tensor name ").and_then(|(_, rest)| rest.split_whitespace().next());
        let statement = Statement::new(Kind::QnnDuplicate, "two tensors of a graph have one name (7003)");
        return Some(name.map_or(statement.clone(), |name| statement.actual(name)));
    }
    None
}

/// An error code in a line that is about QNN and about an error; other lines have such numbers too.
fn code(line: &str) -> Option<Statement> {
    let lower = line.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let about =
        ["qnn", "htp", "skel", "devicecreate", "create device", "contextcreate", "graphfinalize", "create context"];
    if !says(&about) || !says(&["err", "fail", "code", "status"]) {
        return None;
    }
    lower.split(|c: char| !c.is_ascii_alphanumeric()).find_map(|word| {
        let number = match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok()? & 0xFFFF,
            None => word.parse::<u64>().ok()?,
        };
        let (_, kind, message) = CODES.iter().find(|(code, ..)| *code == number)?;
        Some(Statement::new(*kind, *message))
    })
}
