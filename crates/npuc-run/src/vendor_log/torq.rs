//! What Synaptics' Torq compiler says of memory and of forms that it does not take.

use super::{Kind, Statement};

/// What a line of the Torq compiler says.
pub(super) fn read(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if let Some((_, rest)) = line.split_once("LRAM plan infeasible") {
        let statement = Statement::new(Kind::TorqFragments, "a buffer finds no room in one piece in the LRAM");
        let numbers: Vec<u64> =
            rest.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect();
        return Some(match numbers[..] {
            [_, _, buffer, resident, all] => statement
                .limit(format!("{all} bytes of LRAM"))
                .actual(format!("{resident} bytes in use and a buffer of {buffer} bytes")),
            _ => statement,
        });
    }
    if says("failed to allocate LRAM addresses") {
        return Some(Statement::new(Kind::TorqLram, "the buffers of the step do not fit the LRAM"));
    }
    if says("Compressed iType not supported here") {
        return Some(Statement::new(Kind::TorqForm, "4-bit weights stand in a form that is not fused"));
    }
    if says("data-dependent") && says("memory offset") {
        return Some(Statement::new(Kind::TorqOffset, "a slice begins at a place that is known only at run time"));
    }
    if says("unable to create memcpy") {
        return Some(Statement::new(Kind::TorqCopy, "rows of 4-bit weights are not whole bytes"));
    }
    stops(line).or_else(|| library(line))
}

/// Why the compiler stops over an operation.
fn stops(line: &str) -> Option<Statement> {
    let says = |text: &str| line.contains(text);
    if says("torq-compile:") && says("Assertion `") {
        let (kind, message) = if says("AffineOps.cpp") {
            (Kind::TorqAffine, "a matrix product is of a form that the compiler does not index")
        } else {
            (Kind::TorqAssertion, "the compiler stopped itself")
        };
        let assertion = line.split_once("Assertion `").and_then(|(_, rest)| rest.split_once("' failed"));
        let statement = Statement::new(kind, message);
        return Some(match assertion {
            Some((assertion, _)) => statement.actual(assertion),
            None => statement,
        });
    }
    if let Some((before, _)) = line.split_once("op unsupported in function body") {
        let statement = Statement::new(Kind::TorqOffSlices, "an operation is off the slices");
        let name = before.trim_end().rsplit('\'').nth(1).filter(|name| !name.is_empty());
        return Some(match name {
            Some(name) => statement.actual(name),
            None => statement,
        });
    }
    if says("failed to link executable and generate target dylib") {
        return Some(Statement::new(Kind::TorqHost, "code for the board's CPU cannot be linked"));
    }
    if says("flow.dispatch") && says("unhandled") {
        return Some(Statement::new(Kind::TorqCall, "a call of another function is not taken"));
    }
    let (_, rest) = line.split_once("CSS program allocations of ")?;
    let bytes = rest.split(' ').next().unwrap_or_default();
    let statement = Statement::new(Kind::TorqCssStack, "a program of the control processor needs too large a stack");
    Some(statement.actual(format!("{bytes} bytes")))
}

/// A library of the machine that lacks what Torq's programs need.
fn library(line: &str) -> Option<Statement> {
    let (_, rest) = line.split_once("version `")?;
    let (version, rest) = rest.split_once('\'')?;
    let known = ["GLIBC_", "GLIBCXX_", "CXXABI_"].iter().any(|start| version.starts_with(start));
    let statement = || Statement::new(Kind::TorqLibc, "this machine's C or C++ library is too old").actual(version);
    // Another tool may miss another library; Torq's programs miss these.
    let torq = line.contains("torq") || line.contains("libIREECompiler");
    (known && torq && rest.starts_with(" not found")).then(statement)
}
