//! The nodes that lines are about. A reason comes first, the line that names the node after it.

use std::borrow::Cow;
use std::collections::HashMap;

use super::super::{Kind, Operation, Said, Statement};
use super::{after, number};

/// A node that a line names.
struct Node<'a> {
    name: &'a str,
    /// QNN's name of the operation, where the line has it.
    op: Option<&'a str>,
}

/// The node that a line names.
fn node(line: &str) -> Option<Node<'_>> {
    // `validateNativeOps master op validator NAME:qti.aisw:OP failed 3110`; a name may have colons.
    if let Some(rest) = after(line, "op validator ") {
        let mut parts = rest.rsplitn(3, ':');
        let op = parts.next()?.split_whitespace().next();
        let (_package, name) = (parts.next()?, parts.next()?);
        return Some(Node { name, op });
    }
    if let Some(rest) = after(line, "requested for the HTP Op '") {
        let (op, rest) = rest.split_once('\'')?;
        let (name, _) = after(rest, "in the node '")?.split_once("'. ")?;
        return Some(Node { name, op: Some(op) });
    }
    if let Some((rest, _)) = line.split_once("\" generated: ") {
        return Some(Node { name: rest.split_once('"')?.1, op: None });
    }
    let (name, _) = after(line, "Failed to validate op ")?.rsplit_once(" with error ")?;
    Some(Node { name, op: None })
}

/// Whether a kind is said of a node.
fn of_node(kind: Kind) -> bool {
    use Kind::{QnnFloatBlock, QnnFormats, QnnGeneration, QnnPrepare, QnnRule, QnnUnknownOp};
    matches!(kind, QnnRule | QnnGeneration | QnnFormats | QnnFloatBlock | QnnPrepare | QnnUnknownOp)
}

/// How many lines after a node's name its error code may stand.
const NEAR_LINES: usize = 3;

/// Gives every statement about a node its operation, and every operation that could not be created the name of its
/// kernel. A reason is about the node of the next line that names one, a code about that of the lines before if it
/// stands close.
pub(super) fn attach(
    lines: &[Cow<'_, str>],
    statements: &mut [(Statement, Said, Option<usize>)],
    operations: &mut Vec<Operation>,
) {
    name_kernels(statements);
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut waiting: Vec<usize> = Vec::new();
    let mut last: Option<(usize, usize)> = None;
    let mut next = 0;
    for (index, line) in lines.iter().enumerate() {
        if let Some((statement, _, of)) = statements.get_mut(next).filter(|(_, said, _)| said.line == index + 1) {
            let near = last.filter(|(line, _)| statement.code.is_some() && index - line <= NEAR_LINES);
            match near {
                _ if of.is_some() || !of_node(statement.kind) => {}
                Some((_, at)) => *of = Some(at),
                None => waiting.push(next),
            }
            next += 1;
        }
        let Some(Node { name, op }) = node(line) else { continue };
        let at = *known.entry(name.to_owned()).or_insert_with(|| {
            operations.push(Operation { node: Some(name.to_owned()), ..Operation::default() });
            operations.len() - 1
        });
        if let Some(op) = op {
            op.clone_into(&mut operations[at].builtin);
        }
        waiting.drain(..).for_each(|statement| statements[statement].2 = Some(at));
        last = Some((index, at));
    }
}

/// Lines that only number an operation get the kernel's name from the line that misses it.
fn name_kernels(statements: &mut [(Statement, Said, Option<usize>)]) {
    let missing = statements.iter().filter(|(statement, ..)| statement.kind == Kind::QnnNoKernel);
    let missing: HashMap<String, String> =
        missing.filter_map(|(statement, said, _)| Some((number(&said.text)?, statement.actual.clone()?))).collect();
    for (statement, ..) in statements.iter_mut().filter(|(statement, ..)| statement.kind == Kind::QnnPrepare) {
        if let Some(name) = statement.actual.as_ref().and_then(|actual| missing.get(actual)) {
            statement.actual = Some(name.clone());
        }
    }
}
