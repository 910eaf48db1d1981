//! The rules of the IR: every fault of a graph at once, each at its line of the printed text.
//!
//! A value with a fault of its own type is not held against its users: they are checked in everything that
//! does not depend on it, so that one mistake is told once.

use std::collections::HashMap;

use super::infer::{check_arity, check_type, infer};
use super::op::Attr;
use super::text::{Quoted, output_line, print, value_line};
use super::{Def, Graph, Op, Type, ValueId};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::DType;

/// Checks `graph` against every rule of the IR: operands are defined before their use, operations have the
/// operands they take and the type that inference gives them, types are possible and of a legal format,
/// attributes are finite, inputs and weights have unique names and so have outputs, of which there is one
/// at least.
///
/// # Errors
/// One [`Code::IrInvalid`] per fault, in the order of the text; the line is that of [`print()`], the subject
/// the value's name.
pub fn verify(graph: &Graph) -> Result<()> {
    let mut faults = Vec::new();
    let mut names = HashMap::new();
    let mut types: Vec<Option<&Type>> = Vec::with_capacity(graph.values.len());
    for (id, value) in graph.ids().zip(&graph.values) {
        let mut fault = |message: String| {
            let diagnostic = Diagnostic::error(Code::IrInvalid, message).line(value_line(id));
            faults.push(if value.name.is_empty() { diagnostic } else { diagnostic.subject(&value.name) });
        };
        let typed = match &value.def {
            Def::Input | Def::Weight => {
                if let Err(why) = check_name(&mut names, &value.name, value_line(id)) {
                    fault(why);
                }
                check_leaf(&value.def, &value.ty)
            }
            Def::Op { op, args } => {
                check_attributes(op).for_each(&mut fault);
                check_operands(op, args, id).for_each(&mut fault);
                check_result(op, args, &value.ty, &types)
            }
        };
        types.push(typed.is_ok().then_some(&value.ty));
        if let Err(why) = typed {
            fault(why);
        }
    }
    check_outputs(graph, &types, &mut faults);
    Error::check(faults)
}

/// The printed graph with each fault of `error` in a comment under its line; faults without a line of the
/// text come last. It still parses as the same graph.
pub fn annotate(graph: &Graph, error: &Error) -> String {
    let text = print(graph);
    let last = text.lines().count();
    let mut annotated = String::new();
    for (i, line) in text.lines().enumerate() {
        annotated.push_str(line);
        annotated.push('\n');
        for fault in error.diagnostics() {
            // A fault that names no line of the text is told under the last one.
            let place = fault.line.filter(|line| (1..=last).contains(line)).unwrap_or(last);
            if place == i + 1 {
                annotated.push_str(&comment(fault));
            }
        }
    }
    annotated
}

fn comment(fault: &Diagnostic) -> String {
    let mut text = format!("error: {}", fault.message);
    for (label, part) in [("need", &fault.need), ("have", &fault.have)] {
        if let Some(part) = part {
            text.push_str(&format!("; {label} {part}"));
        }
    }
    format!("  # ^ {}\n", text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn check_name<'g>(names: &mut HashMap<&'g str, usize>, name: &'g str, line: usize) -> Result<(), String> {
    if name.is_empty() {
        return Err("the name is empty".into());
    }
    match names.insert(name, line) {
        None => Ok(()),
        Some(earlier) => Err(format!("the name {} is already taken at line {earlier}", Quoted(name))),
    }
}

fn check_leaf(def: &Def, ty: &Type) -> Result<(), String> {
    check_type(ty)?;
    match def {
        Def::Input if ty.dtype != DType::F32 => Err(format!("an input must be f32, and it is {}", ty.dtype)),
        Def::Input | Def::Weight | Def::Op { .. } => Ok(()),
    }
}

fn check_attributes(op: &Op) -> impl Iterator<Item = String> {
    op.attrs().into_iter().filter_map(|(name, attr)| match attr {
        Attr::Float(x) if !x.is_finite() => Some(format!("attribute `{name}` must be finite, and it is {x}")),
        Attr::Float(_) | Attr::Int(_) | Attr::Bool(_) | Attr::List(_) => None,
    })
}

fn check_operands(op: &Op, args: &[ValueId], id: ValueId) -> impl Iterator<Item = String> {
    let arity = check_arity(op, args.len()).err();
    let late = args.iter().enumerate().filter(move |&(i, &arg)| arg >= id && !args[..i].contains(&arg));
    arity.into_iter().chain(late.map(move |(_, arg)| format!("operand {arg} is not defined before {id}")))
}

/// Whether the type is possible and, if the operands are known, the one that inference gives.
fn check_result(op: &Op, args: &[ValueId], ty: &Type, types: &[Option<&Type>]) -> Result<(), String> {
    check_type(ty)?;
    let args: Option<Vec<&Type>> = args.iter().map(|arg| types.get(arg.index()).copied().flatten()).collect();
    let Some(args) = args.filter(|args| check_arity(op, args.len()).is_ok()) else {
        // Told already, here or at the operand.
        return if ty.dtype == DType::F32 { Ok(()) } else { Err(format!("a result is f32, and this is {}", ty.dtype)) };
    };
    let inferred = infer(op, &args)?;
    if inferred == *ty { Ok(()) } else { Err(format!("`{}` gives {inferred} here, and the type is {ty}", op.name())) }
}

fn check_outputs(graph: &Graph, types: &[Option<&Type>], faults: &mut Vec<Diagnostic>) {
    let mut names = HashMap::new();
    for (i, output) in graph.outputs.iter().enumerate() {
        let line = output_line(graph, i);
        let mut fault = |message: String| {
            faults.push(Diagnostic::error(Code::IrInvalid, message).line(line).subject(&output.name));
        };
        if let Err(why) = check_name(&mut names, &output.name, line) {
            fault(why);
        }
        match types.get(output.value.index()) {
            None => fault(format!("output {} is not defined", output.value)),
            Some(Some(ty)) if ty.dtype != DType::F32 => fault(format!("an output must be f32, and it is {}", ty.dtype)),
            Some(_) => {}
        }
    }
    if graph.outputs.is_empty() {
        let line = output_line(graph, 0);
        faults.push(Diagnostic::error(Code::IrInvalid, "the graph has no output").line(line));
    }
}

#[cfg(test)]
#[path = "verify_tests.rs"]
mod tests;
