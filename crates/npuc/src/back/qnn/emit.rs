//! From a checked graph and the encodings of its values to the calls that build it in QNN.
//!
//! Every value has rank 4 there, with extents of 1 in front. A value that is read in another form than it is computed in has
//! a tensor of each: half precision, and whole numbers behind a Quantize or in front of a Dequantize.

use std::collections::{BTreeMap, HashMap};

use super::OUT;
use super::description::{DataType, Description, Node, Param, Role, ScaleOffset, Tensor};
use super::ops;
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Value, ValueId};
use crate::quant::{Encoding, Encodings, Real};
use crate::target::Checked;
use crate::tensor;

/// The rank of every value.
pub(super) const RANK: usize = 4;

/// The graph as a description of that name over the weights.
///
/// Errors: an operation without a form in QNN, numbers that it does not have, or weights in a format that the NPU does not
/// multiply with those activations ([`Code::Misfit`]); a port that is no result of its own; a weight that is absent.
pub fn emit(
    graph: &Checked,
    weights: &BTreeMap<String, tensor::Tensor>,
    encodings: &Encodings,
    name: &str,
) -> Result<Description> {
    emit_graph(graph.graph(), weights, encodings, name)
}

pub(super) fn emit_graph(
    graph: &Graph,
    weights: &BTreeMap<String, tensor::Tensor>,
    encodings: &Encodings,
    name: &str,
) -> Result<Description> {
    encodings.check(graph)?;
    if encodings.real() == Real::F32 {
        let fault = Diagnostic::error(Code::Misfit, "the NPU computes floats in half precision");
        return Err(fault.need("act = \"f16\" in the recipe").have("f32").into());
    }
    let ports = output_ports(graph)?;
    let mut emitter = Emitter {
        graph,
        weights,
        encodings,
        ports,
        description: Description { name: name.to_owned(), tensors: Vec::new(), nodes: Vec::new() },
        whole: HashMap::new(),
        half: HashMap::new(),
        tables: HashMap::new(),
        constants: HashMap::new(),
    };
    for id in graph.ids() {
        match &graph.value(id).def {
            Def::Input => emitter.input(id)?,
            Def::Weight => {}
            Def::Op { op, args } => ops::emit(&mut emitter, id, op, args)?,
        }
    }
    for output in &graph.outputs {
        // A float value leaves in whole numbers where something reads it so.
        emitter.leave(output.value)?;
    }
    Ok(emitter.description)
}

/// The name of the tensor of every value that leaves.
fn output_ports(graph: &Graph) -> Result<BTreeMap<ValueId, String>> {
    let mut ports = BTreeMap::new();
    for output in &graph.outputs {
        let computed = matches!(graph.value(output.value).def, Def::Op { .. });
        let enters = graph.values.iter().any(|value| value.def == Def::Input && value.name == output.name);
        let name = if enters { format!("{}{OUT}", output.name) } else { output.name.clone() };
        if !computed || ports.insert(output.value, name).is_some() {
            return Err(Diagnostic::error(Code::Misfit, "an output of a QNN graph is a result of its own")
                .subject(&output.name)
                .need("an operation whose result leaves under one name")
                .have(format!("{}, which enters or leaves under another name too", output.value))
                .into());
        }
    }
    Ok(ports)
}

/// What the numbers of a tensor are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Numbers {
    pub(super) dtype: DataType,
    pub(super) encoding: Option<ScaleOffset>,
}

impl Numbers {
    pub(super) const HALF: Numbers = Numbers { dtype: DataType::F16, encoding: None };

    /// 16-bit numbers that reach from `low` to `high` and have zero among them.
    pub(super) fn reaching(low: f32, high: f32) -> Numbers {
        let (low, high) = (low.min(0.0), high.max(0.0));
        // A range of nothing but zero has any step.
        let scale = if low < high { (high - low) / 65535.0 } else { 1.0 };
        let offset = (low / scale).round() as i32;
        Numbers { dtype: DataType::U16, encoding: Some(ScaleOffset { scale, offset }) }
    }

    /// The numbers of an encoding.
    fn of(encoding: Encoding, subject: &str) -> Result<Numbers> {
        let dtype = match (encoding.low, encoding.high) {
            (0, 255) => DataType::U8,
            (0, 65535) => DataType::U16,
            (low, high) => {
                let fault = Diagnostic::error(Code::Misfit, "npuc gives Qualcomm's NPUs no such whole numbers");
                let fault = fault.subject(subject).need("u8 or u16").have(format!("numbers from {low} to {high}"));
                return Err(fault.help("take a recipe with act = \"u16\"").into());
            }
        };
        let Encoding { scale, offset, .. } = encoding;
        Ok(Numbers { dtype, encoding: Some(ScaleOffset { scale, offset }) })
    }

    /// 16-bit numbers of the same range as 8-bit ones: 255 times 257 is 65535.
    fn widened(self) -> Numbers {
        match self {
            Numbers { dtype: DataType::U8, encoding: Some(ScaleOffset { scale, offset }) } => Numbers {
                dtype: DataType::U16,
                encoding: Some(ScaleOffset { scale: scale / 257.0, offset: offset * 257 }),
            },
            other => other,
        }
    }
}

pub(super) struct Emitter<'a> {
    pub(super) graph: &'a Graph,
    pub(super) weights: &'a BTreeMap<String, tensor::Tensor>,
    pub(super) encodings: &'a Encodings,
    ports: BTreeMap<ValueId, String>,
    description: Description,
    /// The tensors of values in whole numbers.
    whole: HashMap<ValueId, usize>,
    /// The tensors of values in half precision.
    half: HashMap<ValueId, usize>,
    /// Rotary tables of rank 3, by value and by whether they are in half precision.
    tables: HashMap<(ValueId, bool), usize>,
    /// Static tensors by what they hold.
    constants: HashMap<String, usize>,
}

impl Emitter<'_> {
    pub(super) fn value(&self, id: ValueId) -> &Value {
        self.graph.value(id)
    }

    /// The extents of a value in QNN.
    pub(super) fn extents(&self, id: ValueId) -> Result<Vec<u32>> {
        extents(&self.value(id).ty.shape)
    }

    pub(super) fn is_half(&self, id: ValueId) -> bool {
        self.encodings.float(id)
    }

    /// The numbers of a value in whole numbers.
    pub(super) fn whole_numbers(&self, id: ValueId) -> Result<Numbers> {
        let value = self.value(id);
        let encoding = self.encodings.get(id).ok_or_else(|| {
            Diagnostic::error(Code::BadRange, "a value that is read in whole numbers has no encoding")
                .subject(&value.name)
        })?;
        Numbers::of(encoding, &value.name)
    }

    /// The numbers in which a value is computed.
    pub(super) fn numbers(&self, id: ValueId) -> Result<Numbers> {
        if self.is_half(id) { Ok(Numbers::HALF) } else { self.whole_numbers(id) }
    }

    pub(super) fn tensor(&mut self, name: String, role: Role, numbers: Numbers, shape: Vec<u32>) -> usize {
        let Numbers { dtype, encoding } = numbers;
        self.description.tensors.push(Tensor { name, role, dtype, shape, encoding });
        self.description.tensors.len() - 1
    }

    /// A static tensor, made once.
    pub(super) fn constant(&mut self, name: &str, role: Role, numbers: Numbers, shape: Vec<u32>) -> usize {
        let key = format!("{role:?} {numbers:?} {shape:?}");
        if let Some(&known) = self.constants.get(&key) {
            return known;
        }
        // Equal names of different constants: two forms of a gain, or parameters of one operation.
        let name = format!("{name}.{}", self.description.tensors.len());
        let place = self.tensor(name, role, numbers, shape);
        self.constants.insert(key, place);
        place
    }

    /// A static tensor of whole numbers as they are: axes, extents, permutations.
    pub(super) fn list(&mut self, name: &str, dtype: DataType, shape: Vec<u32>, numbers: Vec<i64>) -> Param {
        Param::Tensor(self.constant(name, Role::Numbers(numbers), Numbers { dtype, encoding: None }, shape))
    }

    pub(super) fn node(
        &mut self,
        name: String,
        op: &str,
        params: Vec<(&str, Param)>,
        inputs: Vec<usize>,
        output: usize,
    ) {
        let params = params.into_iter().map(|(name, param)| (name.to_owned(), param)).collect();
        self.description.nodes.push(Node { name, op: op.to_owned(), params, inputs, outputs: vec![output] });
    }

    /// `<path>/<operation>.<value>`, which leads back to the line of the IR.
    pub(super) fn path(&self, id: ValueId) -> String {
        let value = self.value(id);
        let op = match &value.def {
            Def::Op { op, .. } => op.name(),
            Def::Input | Def::Weight => "port",
        };
        format!("{}/{op}.{}", value.name, id.index())
    }

    fn input(&mut self, id: ValueId) -> Result<()> {
        let (numbers, shape, name) = (self.numbers(id)?, self.extents(id)?, self.value(id).name.clone());
        let tensor = self.tensor(name, Role::Input, numbers, shape);
        self.know(id, tensor);
        Ok(())
    }

    /// Lets `tensor` hold a value in the numbers that it is computed in.
    pub(super) fn know(&mut self, id: ValueId, tensor: usize) {
        if self.is_half(id) { &mut self.half } else { &mut self.whole }.insert(id, tensor);
    }

    /// Name and role of the tensor that a value is computed into: a port's where that is the form that leaves.
    fn named(&self, id: ValueId, whole: bool) -> (String, Role) {
        let leaves_whole = self.encodings.get(id).is_some();
        match self.ports.get(&id) {
            Some(port) if whole == leaves_whole => (port.clone(), Role::Output),
            Some(_) | None if whole != self.is_half(id) => (self.path(id), Role::Native),
            Some(_) | None => (format!("{}.{}", self.path(id), if whole { "whole" } else { "half" }), Role::Native),
        }
    }

    /// The tensor that an operation writes a value to. Whole numbers of 8 bits are computed in 16 over the same range and then
    /// converted, because few operations give 8 bits from 16.
    pub(super) fn result(&mut self, id: ValueId) -> Result<usize> {
        let (numbers, shape) = (self.numbers(id)?, self.extents(id)?);
        let (name, role) = self.named(id, !self.is_half(id));
        let moves = matches!(&self.value(id).def, Def::Op { op, .. } if op.only_moves());
        if numbers.dtype != DataType::U8 || moves {
            let tensor = self.tensor(name, role, numbers, shape);
            self.know(id, tensor);
            return Ok(tensor);
        }
        let path = self.path(id);
        Ok(self.tensor(format!("{path}.u16"), Role::Native, numbers.widened(), shape))
    }

    /// After the operation that gave `computed`: the value in its own numbers.
    pub(super) fn finish(&mut self, id: ValueId, computed: usize) -> Result<()> {
        if self.half.get(&id) == Some(&computed) || self.whole.get(&id) == Some(&computed) {
            return Ok(());
        }
        let (numbers, shape) = (self.numbers(id)?, self.extents(id)?);
        let (name, role) = self.named(id, true);
        let tensor = self.tensor(name, role, numbers, shape);
        let node = format!("{}.convert", self.path(id));
        self.node(node, "Convert", Vec::new(), vec![computed], tensor);
        self.know(id, tensor);
        Ok(())
    }

    /// The tensor of a computed value or port in half precision or in whole numbers.
    pub(super) fn read(&mut self, id: ValueId, half: bool) -> Result<usize> {
        let forms = if half { &self.half } else { &self.whole };
        if let Some(&tensor) = forms.get(&id) {
            return Ok(tensor);
        }
        let other = if half { &self.whole } else { &self.half }.get(&id).copied();
        let other = other.expect("operands are computed before they are read");
        let numbers = if half { Numbers::HALF } else { self.whole_numbers(id)? };
        let ((name, role), shape) = (self.named(id, !half), self.extents(id)?);
        let tensor = self.tensor(name, role, numbers, shape);
        let op = if half { "Dequantize" } else { "Quantize" };
        let node = format!("{}.{}", self.path(id), op.to_lowercase());
        self.node(node, op, Vec::new(), vec![other], tensor);
        if half { &mut self.half } else { &mut self.whole }.insert(id, tensor);
        Ok(tensor)
    }

    /// Sees to it that a value that leaves has its port.
    fn leave(&mut self, id: ValueId) -> Result<()> {
        let half = self.encodings.get(id).is_none();
        self.read(id, half).map(|_| ())
    }

    /// Whether a value is an output port.
    pub(super) fn leaves(&self, id: ValueId) -> bool {
        self.ports.contains_key(&id)
    }

    /// The numbers that a tensor holds.
    pub(super) fn held(&self, tensor: usize) -> Numbers {
        let Tensor { dtype, encoding, .. } = self.description.tensors[tensor];
        Numbers { dtype, encoding }
    }

    /// A rotary table with its first extent of 1 left out, made once.
    pub(super) fn rank_3(&mut self, id: ValueId, half: bool) -> Result<usize> {
        if let Some(&known) = self.tables.get(&(id, half)) {
            return Ok(known);
        }
        let from = self.read(id, half)?;
        let shape = self.extents(id)?[1..].to_vec();
        let table = self.reshaped(from, &format!("{}.rank-3", self.path(id)), shape);
        self.tables.insert((id, half), table);
        Ok(table)
    }

    /// The same numbers under another shape.
    pub(super) fn reshaped(&mut self, from: usize, name: &str, shape: Vec<u32>) -> usize {
        let tensor = self.tensor(name.to_owned(), Role::Native, self.held(from), shape);
        self.node(name.to_owned(), "Reshape", Vec::new(), vec![from], tensor);
        tensor
    }

    pub(super) fn weight(&self, id: ValueId) -> Result<tensor::Tensor> {
        let value = self.value(id);
        let fault = |code, message: &str| Diagnostic::error(code, message).subject(&value.name).need(&value.ty);
        match tensor::weight(self.weights, &value.name) {
            None => Err(fault(Code::MissingTensor, "the graph uses a weight that is not there").into()),
            Some(tensor) if tensor.dtype != value.ty.dtype || tensor.shape != value.ty.shape => {
                let fault = fault(Code::WrongShape, "a weight has another type than the graph says");
                Err(fault.have(format!("{}{}", tensor.dtype, tensor.shape)).into())
            }
            Some(tensor) => Ok(tensor),
        }
    }
}

/// The extents of a shape in QNN, of rank [`RANK`].
pub(super) fn extents(shape: &[usize]) -> Result<Vec<u32>> {
    let mut extents = vec![1; RANK.saturating_sub(shape.len())];
    for &extent in shape {
        extents.push(u32::try_from(extent).map_err(|_| {
            Diagnostic::error(Code::Misfit, "an extent is too large for QNN")
                .need(format!("at most {}", u32::MAX))
                .have(extent)
        })?);
    }
    Ok(extents)
}
