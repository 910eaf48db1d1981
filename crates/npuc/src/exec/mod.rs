//! Host execution of any graph, in f32 over weights as they are stored: the reference of everything else. With encodings
//! it computes in whole numbers as a target does.
//!
//! All buffers are made when an [`Executor`] is; a run in f32 allocates nothing. Threads are those of the
//! caller's rayon pool, and their number does not change a result.

use std::collections::BTreeMap;

use npuc_kernels::dequant::dequantize_row;

use crate::diag::{Code, Diagnostic, Error, Result};
use crate::ir::{Def, Graph, Op, Type, ValueId, verify};
use crate::quant::Encodings;
use crate::tensor::{DType, Shape, Tensor, weight};

use integer::Integer;
use place::{Placement, place};

mod integer;
mod ops;
mod place;

/// Where the elements of an operand are.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// An input port's buffer, by port order.
    Input(usize),
    /// A buffer of the executor.
    Slot(usize),
    /// A weight that is read as f32 (gains and biases).
    Const(usize),
    /// A weight that a kernel reads as stored.
    Stored(usize),
    /// Numbers that were rounded for this operand.
    Rounded(usize),
}

/// An operand of a step.
#[derive(Clone, Debug)]
struct Operand {
    place: Place,
    shape: Shape,
}

/// One operation with all its operands placed.
#[derive(Debug)]
struct Step {
    op: Op,
    args: Vec<Operand>,
    slot: usize,
    shape: Shape,
}

/// A graph made ready to run on the host.
#[derive(Debug)]
pub struct Executor {
    steps: Vec<Step>,
    slots: Vec<Vec<f32>>,
    consts: Vec<Vec<f32>>,
    stored: Vec<Tensor>,
    /// Name and element count of each input port.
    inputs: Vec<(String, usize)>,
    /// Name, slot and element count of each output port.
    outputs: Vec<(String, usize, usize)>,
    kept: BTreeMap<ValueId, (usize, usize)>,
    /// The values of the input ports, and of the first steps; later steps copy what leaves.
    entering: Vec<ValueId>,
    computed: Vec<ValueId>,
    /// What makes whole numbers of it, and the buffers that this needs.
    integer: Option<Box<Integer>>,
    rounded: Vec<Vec<f32>>,
    /// Whether pages of mapped weights are given back after each use.
    sparing: bool,
}

impl Executor {
    /// Prepares `graph` over `weights`, by name. The values in `keep` can be read after a run.
    ///
    /// Errors: a graph that breaks a rule of the IR; a weight that is absent or of another type.
    pub fn new(graph: &Graph, weights: &BTreeMap<String, Tensor>, keep: &[ValueId]) -> Result<Executor> {
        verify::verify(graph)?;
        check_weights(graph, weights)?;
        let Placement { steps, slots, consts, stored, inputs, outputs, kept } = place(graph, keep);
        let found = |name: &String| weight(weights, name).expect("every weight was found before");
        Ok(Executor {
            steps,
            slots: slots.into_iter().map(|len| vec![0.0; len]).collect(),
            consts: consts.iter().map(|name| to_f32(&found(name))).collect(),
            stored: stored.iter().map(|name| found(name).materialized()).collect(),
            inputs,
            outputs,
            kept,
            entering: graph.ids().filter(|&id| graph.value(id).def == Def::Input).collect(),
            computed: graph.ids().filter(|&id| has_step(&graph.value(id).def)).collect(),
            integer: None,
            rounded: Vec::new(),
            sparing: false,
        })
    }

    /// Prepares `graph` to be computed in the whole numbers of its encodings: projections and matrix products exactly and
    /// rounded once, everything else in f32 over the numbers that whole ones mean, and rounded. Ports are in f32 outside.
    /// A run allocates.
    ///
    /// Errors: as [`Executor::new`]; encodings of another graph; attention as a whole; weights that are not finite.
    pub fn with_encodings(
        graph: &Graph,
        weights: &BTreeMap<String, Tensor>,
        encodings: &Encodings,
        keep: &[ValueId],
    ) -> Result<Executor> {
        let mut executor = Executor::new(graph, weights, keep)?;
        executor.integer = Some(Box::new(integer::prepare(&mut executor, graph, weights, encodings)?));
        Ok(executor)
    }

    /// From now on gives the pages of a mapped weight back to the system whenever an operation has read it, so that a large model takes
    /// little memory. Reading them again maps them again.
    pub fn spare_memory(&mut self) {
        self.sparing = true;
    }

    /// How many numbers of each value were beyond its encoding by more than a step in all runs so far, where any were. The mask and
    /// its sums are not counted.
    pub fn saturated(&self) -> Vec<(ValueId, u64)> {
        self.integer.iter().flat_map(|integer| integer.saturated()).collect()
    }

    /// Names and element counts of the input ports, in order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.inputs.iter().map(|(name, len)| (name.as_str(), *len))
    }

    /// Names and element counts of the output ports, in order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = (&str, usize)> {
        self.outputs.iter().map(|(name, _, len)| (name.as_str(), *len))
    }

    /// Computes the graph. `inputs` are the buffers of the ports in order, in as many groups as the
    /// caller keeps them in.
    ///
    /// # Panics
    /// If a port's buffer is absent or has another length than the port.
    pub fn run<B: AsRef<[f32]>>(&mut self, inputs: &[&[B]]) {
        self.run_observed(inputs, &mut |_, _| {});
    }

    /// [`Executor::run`], which lets `observe` see the elements of every input and then of every value right after it
    /// is computed. A reshape has the elements of its operand and is not told.
    ///
    /// # Panics
    /// As [`Executor::run`].
    pub fn run_observed<B: AsRef<[f32]>>(&mut self, inputs: &[&[B]], observe: &mut dyn FnMut(ValueId, &[f32])) {
        for ((port, (name, len)), &value) in self.inputs.iter().enumerate().zip(&self.entering) {
            let given = input(inputs, port);
            assert_eq!(given.len(), *len, "elements of the port `{name}`");
            let read = self.integer.as_mut().and_then(|integer| integer.enter(port, given, &mut self.rounded));
            observe(value, read.map_or(given, |buffer| &self.rounded[buffer]));
        }
        let mut computed = self.computed.iter();
        for (number, step) in self.steps.iter().enumerate() {
            let mut slot = std::mem::take(&mut self.slots[step.slot]);
            let out = &mut slot[..elements(&step.shape)];
            let read = |operand: &'_ Operand| match &operand.place {
                Place::Input(port) => input(inputs, *port),
                Place::Slot(slot) => &self.slots[*slot][..elements(&operand.shape)],
                Place::Const(index) => &self.consts[*index],
                Place::Rounded(index) => &self.rounded[*index],
                Place::Stored(_) => unreachable!("only projections take stored weights, and read them as such"),
            };
            match &mut self.integer {
                None => ops::compute(step, read, &self.stored, out),
                Some(integer) => {
                    integer.compute(number, step, read, &self.stored, out);
                    integer.twins(number, out, &mut self.rounded);
                }
            }
            if let Some(&value) = computed.next() {
                observe(value, out);
            }
            self.slots[step.slot] = slot;
            if self.sparing {
                release(step, &self.stored);
            }
        }
    }

    /// The elements of an output port after a run, by port order.
    pub fn output(&self, port: usize) -> &[f32] {
        let (_, slot, len) = self.outputs[port];
        match self.integer.as_ref().and_then(|integer| integer.output(port)) {
            Some(buffer) => &self.rounded[buffer],
            None => &self.slots[slot][..len],
        }
    }

    /// The elements of a kept value after a run, as they are computed; `None` if it was not kept.
    pub fn kept(&self, value: ValueId) -> Option<&[f32]> {
        self.kept.get(&value).map(|&(slot, len)| &self.slots[slot][..len])
    }
}

/// Gives the pages of the weights that a step has read back to the system.
fn release(step: &Step, stored: &[Tensor]) {
    for operand in &step.args {
        if let Place::Stored(index) = operand.place {
            stored[index].release(0..stored[index].byte_len());
        }
    }
}

/// Bytes of the buffers that hold the intermediate values of a graph that keeps the rules of the IR.
pub fn buffer_bytes(graph: &Graph) -> u64 {
    place(graph, &[]).slots.iter().map(|&len| (len * size_of::<f32>()) as u64).sum()
}

/// Whether a value is computed by a step of its own, in the order of the graph.
const fn has_step(def: &Def) -> bool {
    match def {
        Def::Input | Def::Weight | Def::Op { op: Op::Reshape { .. }, .. } => false,
        Def::Op { .. } => true,
    }
}

fn input<'a, B: AsRef<[f32]>>(groups: &[&'a [B]], port: usize) -> &'a [f32] {
    let mut rest = port;
    for group in groups {
        match group.get(rest) {
            Some(buffer) => return buffer.as_ref(),
            None => rest -= group.len(),
        }
    }
    panic!("the caller gives a buffer for port {port}")
}

fn elements(shape: &Shape) -> usize {
    shape.iter().product()
}

/// Every weight present, with the graph's format and shape.
fn check_weights(graph: &Graph, weights: &BTreeMap<String, Tensor>) -> Result<()> {
    let mut faults = Vec::new();
    for value in graph.values.iter().filter(|value| value.def == Def::Weight) {
        let Type { dtype, shape } = &value.ty;
        match weight(weights, &value.name) {
            None => faults.push(
                Diagnostic::error(Code::MissingTensor, "the graph uses a weight that is not there")
                    .subject(&value.name)
                    .need(format!("{dtype}{shape}")),
            ),
            Some(tensor) if tensor.dtype != *dtype || tensor.shape != *shape => faults.push(
                Diagnostic::error(Code::WrongShape, "a weight has another type than the graph says")
                    .subject(&value.name)
                    .need(format!("{dtype}{shape}"))
                    .have(format!("{}{}", tensor.dtype, tensor.shape)),
            ),
            Some(_) => {}
        }
    }
    Error::check(faults)
}

/// All elements of a weight as f32.
pub fn to_f32(tensor: &Tensor) -> Vec<f32> {
    let mut out = vec![0.0; elements(&tensor.shape)];
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let bytes = tensor.bytes();
    let row_bytes = row_bytes(tensor.dtype, cols);
    for (row, out) in bytes.chunks_exact(row_bytes).zip(out.chunks_exact_mut(cols)) {
        dequantize_row(tensor.dtype, row, out);
    }
    out
}

fn row_bytes(dtype: DType, cols: usize) -> usize {
    dtype.row_bytes(cols).expect("a tensor's rows hold whole blocks")
}

#[cfg(test)]
mod tests;
