//! From a checked graph to the text of a module.
//!
//! Every operation becomes one or a few lines; the values of the graph keep their numbers as SSA names, e.g. `%v12`.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::cache::{self, Written};
use super::constant::Constant;
use super::module::{Module, Piece};
use super::{CacheWrites, Dialect, Element, ModulePort, Products, Side, Storage, ops, tensor_type};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Op, Output, Value, ValueId};
use crate::model::Port;
use crate::target::Checked;
use crate::tensor::{self, Tensor};

/// How graphs are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Style {
    /// Whose compiler reads it.
    pub dialect: Dialect,
    /// Where a plain matrix of weights stands in a product.
    pub side: Side,
    /// Where weights are.
    pub storage: Storage,
    /// How Torq multiplies with weights in blocks.
    pub products: Products,
    /// How Torq writes into caches.
    pub cache_writes: CacheWrites,
}

/// The scope of parameters in the runtime.
pub const SCOPE: &str = "model";

/// The graph as a module of that name over the weights.
///
/// Errors: an operation or a format of weights without a form ([`Code::Misfit`]); a weight that is absent.
pub fn emit(graph: &Checked, weights: &BTreeMap<String, Tensor>, name: &str, style: Style) -> Result<Module> {
    Ok(emit_graph(graph.graph(), weights, name, style, false)?.0)
}

/// The graph as a module of that name from which every value leaves that it computes, behind the graph's outputs and in that order.
///
/// Errors: as [`emit`].
pub fn emit_traced(
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    name: &str,
    style: Style,
) -> Result<(Module, Vec<ValueId>)> {
    emit_graph(graph, weights, name, style, true)
}

pub(super) fn emit_graph(
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    name: &str,
    style: Style,
    traced: bool,
) -> Result<(Module, Vec<ValueId>)> {
    let mut emitter = Emitter {
        graph,
        weights,
        style,
        activation: style.dialect.activation(),
        pieces: vec![Piece::Text(String::new())],
        parameters: BTreeMap::new(),
        packed: Vec::new(),
        temporaries: 0,
        plain: HashMap::new(),
        writes: Vec::new(),
    };
    let inputs: Vec<ValueId> = graph.ids().filter(|&id| graph.value(id).def == Def::Input).collect();
    let mut aliases = aliases(graph, &inputs);
    for id in graph.ids() {
        match &graph.value(id).def {
            Def::Input | Def::Weight => {}
            Def::Op { op, args } => ops::emit(&mut emitter, id, op, args)?,
        }
    }
    for (id, written) in std::mem::take(&mut emitter.writes) {
        cache::emit(&mut emitter, id, written)?;
    }
    let port = |name: &str, id: ValueId| ModulePort {
        name: name.to_owned(),
        shape: graph.value(id).ty.shape.to_vec(),
        element: style.dialect.activation(),
    };
    let leaving = if traced { graph.ids().filter(|&id| emitter.computes(id)).collect() } else { Vec::new() };
    let mut outputs = graph.outputs.clone();
    outputs.extend(leaving.iter().map(|&value| Output { name: value.to_string(), value }));
    aliases.resize(outputs.len(), None);
    let head = head(&emitter, &inputs, (&outputs, &aliases), name);
    let tail = tail(&emitter, &outputs);
    let Emitter { parameters, packed, pieces, .. } = emitter;
    let mut whole = vec![Piece::Text(head)];
    whole.extend(pieces);
    whole.push(Piece::Text(tail));
    let module = Module {
        name: name.to_owned(),
        inputs: inputs.iter().map(|&id| port(&graph.value(id).name, id)).collect(),
        outputs: outputs.iter().map(|output| port(&output.name, output.value)).collect(),
        aliases,
        parameters: parameters.into_values().collect(),
        packed,
        pieces: whole,
    };
    Ok((module, leaving))
}

/// For each output the input that it takes the place of: a state after the step, that before it.
fn aliases(graph: &Graph, inputs: &[ValueId]) -> Vec<Option<usize>> {
    let before = |name: &str| {
        let Ok(Port::Next(kind, layer)) = name.parse() else { return None };
        Some(Port::Past(kind, layer).to_string())
    };
    let place = |name: String| inputs.iter().position(|&id| graph.value(id).name == name);
    graph.outputs.iter().map(|output| before(&output.name).and_then(place)).collect()
}

/// Everything before the first operation: globals of parameters and the function's ports.
fn head(
    emitter: &Emitter<'_>,
    inputs: &[ValueId],
    (outputs, aliases): (&[Output], &[Option<usize>]),
    name: &str,
) -> String {
    let mut text = format!("module @{name} {{\n");
    for Constant { name, shape, element, .. } in emitter.parameters.values() {
        let ty = tensor_type(shape, *element);
        line(
            &mut text,
            format_args!("  util.global private @\"{name}\" = #flow.parameter.named<\"{SCOPE}\"::\"{name}\"> : {ty}"),
        );
    }
    let ports: Vec<String> = inputs
        .iter()
        .enumerate()
        .map(|(place, &id)| {
            let alias = aliases.iter().position(|alias| *alias == Some(place));
            let alias = alias.filter(|_| emitter.style.dialect == Dialect::Iree);
            let alias = alias.map_or(String::new(), |output| format!(" {{iree.abi.output = {output} : index}}"));
            format!("%v{}: {}{alias}", id.0, emitter.type_of(id))
        })
        .collect();
    let results = outputs.iter().zip(aliases).map(|(output, alias)| {
        let alias = alias.filter(|_| emitter.style.dialect == Dialect::Torq);
        let alias = alias.map_or(String::new(), |input| format!(" {{iree.abi.tied = {input} : i64}}"));
        format!("{}{alias}", emitter.type_of(output.value))
    });
    let results: Vec<String> = results.collect();
    line(&mut text, format_args!("  func.func public @{name}({}) -> ({}) {{", ports.join(", "), results.join(", ")));
    text
}

/// Everything after the last operation.
fn tail(emitter: &Emitter<'_>, outputs: &[Output]) -> String {
    let values: Vec<String> = outputs.iter().map(|output| format!("%v{}", output.value.0)).collect();
    let types: Vec<String> = outputs.iter().map(|output| emitter.type_of(output.value)).collect();
    format!("    return {} : {}\n  }}\n}}\n", values.join(", "), types.join(", "))
}

fn line(text: &mut String, line: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{line}");
}

/// A value in the text, with what it is.
#[derive(Clone, Debug)]
pub(super) struct Term {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    pub(super) element: Element,
}

impl Term {
    pub(super) fn ty(&self) -> String {
        tensor_type(&self.shape, self.element)
    }
}

pub(super) struct Emitter<'a> {
    pub(super) graph: &'a Graph,
    weights: &'a BTreeMap<String, Tensor>,
    pub(super) style: Style,
    /// The elements of values.
    pub(super) activation: Element,
    pieces: Vec<Piece>,
    parameters: BTreeMap<String, Constant>,
    /// The weights of products in blocks.
    pub(super) packed: Vec<String>,
    temporaries: usize,
    /// Plain weights that were brought in already, as activations.
    plain: HashMap<ValueId, Term>,
    /// Caches that are written when all else is computed, so that their temporaries are in nothing's way.
    pub(super) writes: Vec<(ValueId, Written)>,
}

impl Emitter<'_> {
    pub(super) fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    pub(super) fn shape(&self, id: ValueId) -> &[usize] {
        &self.graph.value(id).ty.shape
    }

    fn type_of(&self, id: ValueId) -> String {
        tensor_type(self.shape(id), self.activation)
    }

    /// A line of the function.
    pub(super) fn line(&mut self, text: std::fmt::Arguments<'_>) {
        if let Some(Piece::Text(piece)) = self.pieces.last_mut() {
            line(piece, format_args!("    {text}"));
        }
    }

    /// A new temporary of that shape; the caller writes the line that defines it.
    pub(super) fn term(&mut self, shape: &[usize], element: Element) -> Term {
        self.temporaries += 1;
        Term { name: format!("%t{}", self.temporaries), shape: shape.to_vec(), element }
    }

    /// The result of a value of the graph; the caller writes the line that defines it.
    pub(super) fn result(&self, id: ValueId) -> Term {
        Term { name: format!("%v{}", id.0), shape: self.shape(id).to_vec(), element: self.activation }
    }

    /// An operand as an activation: a port or result by its name, a weight brought in and converted.
    pub(super) fn operand(&mut self, id: ValueId) -> Result<Term> {
        match self.value(id).def {
            Def::Input | Def::Op { .. } => Ok(self.result(id)),
            Def::Weight => {
                if let Some(term) = self.plain.get(&id) {
                    return Ok(term.clone());
                }
                let name = self.value(id).name.clone();
                let tensor = self.weight(id)?;
                let constant = match (self.activation, Constant::plain(&name, &tensor)) {
                    (Element::Bf16, _) => Constant::as_bf16(&name, &tensor),
                    (_, Some(constant)) => constant,
                    (_, None) => return Err(no_form(&name, &tensor)),
                };
                let term = self.constant(constant)?;
                let term = self.convert(term, self.activation);
                self.plain.insert(id, term.clone());
                Ok(term)
            }
        }
    }

    /// The stored weight of a value.
    pub(super) fn weight(&self, id: ValueId) -> Result<Tensor> {
        let name = &self.value(id).name;
        tensor::weight(self.weights, name).ok_or_else(|| {
            Diagnostic::error(Code::MissingTensor, "a weight of the graph is absent").subject(name).into()
        })
    }

    /// A constant in the text or from the file of parameters.
    pub(super) fn constant(&mut self, mut constant: Constant) -> Result<Term> {
        constant.check()?;
        // iree-compile 3.13.0 computes products over half bytes in the text wrong without a word, over bytes right.
        if (self.style.dialect, self.style.storage, constant.element) == (Dialect::Iree, Storage::Inline, Element::I4) {
            constant.element = Element::I8;
        }
        let term = self.term(&constant.shape, constant.element);
        let (name, ty) = (&term.name, term.ty());
        match self.style.storage {
            Storage::External => {
                self.line(format_args!("{name} = util.global.load @\"{}\" : {ty}", constant.name));
                self.parameters.insert(constant.name.clone(), constant);
            }
            Storage::Inline => {
                self.open(&format!("    {name} = arith.constant dense<\"0x"));
                self.pieces.push(Piece::Digits(constant));
                self.pieces.push(Piece::Text(format!("\"> : {ty}\n")));
            }
        }
        Ok(term)
    }

    fn open(&mut self, text: &str) {
        if let Some(Piece::Text(piece)) = self.pieces.last_mut() {
            piece.push_str(text);
        }
    }

    /// The same numbers in another format.
    pub(super) fn convert(&mut self, term: Term, element: Element) -> Term {
        if term.element == element {
            return term;
        }
        let to = self.term(&term.shape, element);
        self.line(format_args!("{} = stablehlo.convert {} : ({}) -> {}", to.name, term.name, term.ty(), to.ty()));
        to
    }

    /// The same numbers under another shape.
    pub(super) fn reshape(&mut self, term: Term, shape: &[usize]) -> Term {
        if term.shape == shape {
            return term;
        }
        let to = self.term(shape, term.element);
        self.line(format_args!("{} = stablehlo.reshape {} : ({}) -> {}", to.name, term.name, term.ty(), to.ty()));
        to
    }

    /// Gives the result of a value of the graph another name's numbers, which only a reshape does without work.
    pub(super) fn define(&mut self, id: ValueId, term: &Term) {
        let to = self.result(id);
        self.line(format_args!("{} = stablehlo.reshape {} : ({}) -> {}", to.name, term.name, term.ty(), to.ty()));
    }

    /// A tensor with the same number everywhere.
    pub(super) fn splat(&mut self, x: f32, shape: &[usize]) -> Term {
        let term = self.term(shape, self.activation);
        self.line(format_args!("{} = stablehlo.constant dense<{}> : {}", term.name, literal(x), term.ty()));
        term
    }

    /// Whether a value has elements of its own in the module: a reshape has those of its operand.
    fn computes(&self, id: ValueId) -> bool {
        match &self.value(id).def {
            Def::Input | Def::Weight | Def::Op { op: Op::Reshape { .. }, .. } => false,
            Def::Op { .. } => true,
        }
    }

    /// Whether a value leaves the graph and is read by nothing in it.
    pub(super) fn leaves(&self, id: ValueId) -> bool {
        let reads = |value: &Value| match &value.def {
            Def::Op { args, .. } => args.contains(&id),
            Def::Input | Def::Weight => false,
        };
        self.graph.outputs.iter().any(|output| output.value == id) && !self.graph.values.iter().any(reads)
    }

    /// Whether a value is the port that says where new rows enter the caches, or the same under another shape.
    pub(super) fn is_write_mask(&self, id: ValueId) -> bool {
        match &self.value(id).def {
            Def::Input => self.value(id).name == Port::WriteMask.to_string(),
            Def::Op { op: Op::Reshape { .. }, args } => args.iter().any(|&arg| self.is_write_mask(arg)),
            Def::Op { .. } | Def::Weight => false,
        }
    }
}

/// The number as MLIR reads it: with a point, in as many digits as f32 needs.
fn literal(x: f32) -> String {
    let text = format!("{x:e}");
    match text.split_once('e') {
        Some((digits, exponent)) if !digits.contains('.') => format!("{digits}.0e{exponent}"),
        Some(_) | None => text,
    }
}

pub(super) fn no_form(name: &str, tensor: &Tensor) -> crate::diag::Error {
    Diagnostic::error(Code::Misfit, "the compiler has no form for the format of a weight")
        .subject(name)
        .need("f32, f16, bf16, or blocks of q8_0, q4_0, q4_1, int8 or int4 in a projection")
        .have(tensor.dtype)
        .help("build with a recipe, e.g. --recipe q8_0")
        .into()
}
