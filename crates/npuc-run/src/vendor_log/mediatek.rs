//! What MediaTek's compiler and runtime say: refusals of units, plans, the driver's memory.
//!
//! Written after public reports: a heading names an operation, lines below it give one unit's reason each.

use std::collections::BTreeSet;

use super::{Kind, Operation, Said, Statement};

/// The units that give reasons; a version may follow the name.
const UNITS: [&str; 9] = ["MDLA", "EDMA", "EDPA", "MVPU", "VPU", "GPU", "DSP", "CPU", "APS"];

/// TFLite's names of operators that MediaTek's lists speak of.
const BUILTINS: &str = "\
    ABS ADD ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND BROADCAST_TO CAST CEIL \
    CONCATENATION CONV_2D COS CUMSUM DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV DYNAMIC_UPDATE_SLICE ELU \
    EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FULLY_CONNECTED GATHER GELU GREATER GREATER_EQUAL \
    HARD_SWISH L2_NORMALIZATION LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR LOGISTIC \
    LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM MUL NEG NOT_EQUAL PACK PAD POW PRELU QUANTIZE REDUCE_MAX \
    REDUCE_MIN RELU RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR ROUND RSQRT SELECT SELECT_V2 SIN \
    SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE \
    STRIDED_SLICE SUB SUM TANH TILE TOPK_V2 TRANSPOSE TRANSPOSE_CONV UNPACK WHERE";

/// The operation that a line begins to speak of, e.g. `ERROR: NIR[2]: ReshapeLayer<2>{RESHAPE}`.
pub(super) fn heading(line: &str) -> Option<Operation> {
    let words = line.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'));
    let builtin = words.filter(|word| !word.is_empty()).find(|word| BUILTINS.split(' ').any(|known| known == *word))?;
    // An index stands in brackets right after a word, before the operator.
    let start = line.find(builtin).unwrap_or(line.len());
    let index = line[..start].rsplit_once('[').and_then(|(_, rest)| rest.split(']').next()?.trim().parse().ok());
    Some(Operation { builtin: builtin.to_owned(), index, ..Operation::default() })
}

/// What a line of MediaTek's tools says.
pub(super) fn read(line: &str) -> Option<Statement> {
    let lower = line.to_lowercase();
    let says = |text: &str| lower.contains(text);
    if says("cachepattern") && says("quantized") {
        return Some(Statement::new(Kind::QuantizedOnly, "a rewrite of the option set for LLMs takes no float graph"));
    }
    if let Some((_, rest)) = line.split_once("unsupported target:")
        && let Some(unit) = unit_name(rest)
    {
        return Some(Statement::new(Kind::ForeignUnit, format!("the board has no unit {unit}")).actual(unit));
    }
    if let Some((unit, reason)) = unit_reason(line) {
        return refusal(unit, reason);
    }
    if says("execution plan because of") || says("noexecplan") {
        return Some(Statement::new(
            Kind::NoPlan,
            "the compiler has no plan for the file, for units refuse operations",
        ));
    }
    if says("neuron_unmappable") {
        return Some(Statement::new(Kind::Unmappable, "the compiler cannot map the graph"));
    }
    if let Some(unit) = target_line(line) {
        return Some(Statement::new(Kind::Placement, format!("the plan has steps on {unit}")));
    }
    memory(line, &lower).or_else(|| chain(&lower))
}

/// A unit and its reason: `MDLA: Dimension should be <= 65535.`, behind whatever a logger puts before it.
fn unit_reason(line: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(colon) = line[from..].find(':').map(|at| from + at) {
        let head = line[..colon].trim_end();
        let start = head.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.'));
        let unit = &head[start.map_or(0, |at| at + head[at..].chars().next().map_or(1, char::len_utf8))..];
        let name = unit.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_' || c == '.');
        let reason = line[colon + 1..].trim();
        if UNITS.contains(&name) && !reason.is_empty() {
            return Some((unit, reason));
        }
        from = colon + 1;
    }
    None
}

fn refusal(unit: &str, reason: &str) -> Option<Statement> {
    const NUMBERS: [&str; 10] =
        ["int32", "int64", "int8", "int16", "int4", "fp32", "float32", "bool", "data type", "datatype"];
    // Units are named in other lines too; a reason has one of these words.
    const REFUSES: [&str; 11] =
        ["support", "cannot", "can't", "not ", "should", "must", "exceed", "fail", "invalid", "only", "too "];
    let lower = reason.to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let bound = reason.split_once("<=").map(|(_, rest)| rest.trim_start());
    let bound = bound.map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>());
    let statement = if lower.contains("dimension")
        && let Some(max) = bound.and_then(|digits| digits.parse::<usize>().ok())
    {
        let statement = Statement::new(Kind::Dimension, format!("the {unit} takes no extent above {max}"));
        Statement { max_extent: Some(max), ..statement }.limit(format!("every extent at most {max}"))
    } else if lower.starts_with("unsupported operation") || lower.starts_with("unsupported layer") {
        Statement::new(Kind::UnsupportedOperation, format!("the {unit} does not take the operation"))
    } else if lower.contains("support") && says(&NUMBERS) {
        Statement::new(Kind::UnsupportedNumber, format!("the {unit} does not take the number format")).actual(reason)
    } else if says(&REFUSES) {
        Statement::new(Kind::OtherReason, format!("the {unit} refuses: {}", reason.trim_end_matches('.')))
    } else {
        return None;
    };
    Some(Statement { main_unit: unit.starts_with("MDLA"), ..statement })
}

/// The unit of a line of `--show-exec-plan`, e.g. `Target: MDLA_5_3`.
fn target_line(line: &str) -> Option<&str> {
    let (before, rest) = line.split_once("Target:")?;
    unit_name(rest).filter(|_| !before.ends_with(char::is_alphanumeric))
}

/// The unit's name at the start of a text, with its version.
fn unit_name(text: &str) -> Option<&str> {
    let name = text.trim_start().split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).next()?;
    name.split('_').any(|part| UNITS.contains(&part)).then_some(name)
}

/// What the driver says of memory: `[apusys][error]memAlloc: alloc mem(160/0/0/0x5) fail(Cannot allocate memory)`.
fn memory(line: &str, lower: &str) -> Option<Statement> {
    if !lower.contains("apusys") || !lower.contains("fail") {
        return None;
    }
    let numbers = |from: &str| -> Option<Vec<u64>> {
        let inside = line.split_once(from)?.1.split(')').next()?;
        Some(inside.split('/').filter_map(|part| part.trim().parse().ok()).collect())
    };
    if lower.contains("memalloc") || lower.contains("mem alloc") {
        let statement = Statement::new(Kind::DriverMemory, "the NPU's driver has no memory left");
        let bytes = numbers("alloc mem(").and_then(|numbers| numbers.first().copied());
        return Some(match bytes {
            Some(bytes) => statement.actual(format!("a request of {bytes} bytes failed")),
            None => statement,
        });
    }
    if lower.contains("memimport") {
        let statement = Statement::new(Kind::DriverImport, "the NPU's driver cannot take a buffer of the caller");
        // `import mem(HANDLE)` has one number, the forms with a size have it last.
        let sized = numbers("mem(").or_else(|| numbers("memory(")).filter(|_| line.contains('/'));
        return Some(match sized.and_then(|numbers| numbers.last().copied()) {
            Some(bytes) => statement.actual(format!("a buffer of {bytes} bytes")),
            None => statement,
        });
    }
    lower.contains("alloc").then(|| Statement::new(Kind::DriverChain, "it stops after an earlier failure"))
}

/// What the layers above say after the driver or the compiler has failed.
fn chain(lower: &str) -> Option<Statement> {
    const CHAIN: [&str; 9] = [
        "apusysengine::",
        "apusys command",
        "apusys imports",
        "fail to rewrite dla",
        "apusysrewritepass",
        "fail to run runtime compiledgraph",
        "cannot prepare execution",
        "hintfrontendbuffer() failed",
        "neuroncompilation_finish failed",
    ];
    let neuron = lower.contains("neuron returned error");
    (neuron || CHAIN.iter().any(|text| lower.contains(text)))
        .then(|| Statement::new(Kind::DriverChain, "it stops after an earlier failure"))
}

/// Where the MDLA gives a reason for an operation, other units' "unsupported operation" only follows: they move data
/// or do little else.
pub(super) fn weigh_units(statements: &mut [(Statement, Said, Option<usize>)]) {
    let refusal = |kind| {
        matches!(kind, Kind::Dimension | Kind::UnsupportedNumber | Kind::UnsupportedOperation | Kind::OtherReason)
    };
    let main = |statement: &Statement| refusal(statement.kind) && statement.main_unit;
    let explained: BTreeSet<Option<usize>> =
        statements.iter().filter(|(statement, ..)| main(statement)).map(|(_, _, of)| *of).collect();
    for (statement, _, of) in statements {
        if refusal(statement.kind) && !main(statement) && explained.contains(of) {
            statement.kind = Kind::OtherUnit;
        }
    }
}
