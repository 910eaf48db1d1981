//! Placement of a graph's values in buffers: a buffer is used again once its value has been read for the last time.

use std::collections::BTreeMap;

use super::{Operand, Place, Step, elements};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::tensor::Shape;

/// Where everything of a graph is. Nothing is read or allocated to find out.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) steps: Vec<Step>,
    /// Elements of each buffer.
    pub(super) slots: Vec<usize>,
    /// Names of the weights that are read as f32.
    pub(super) consts: Vec<String>,
    /// Names of the weights that a kernel reads as stored.
    pub(super) stored: Vec<String>,
    /// Name and element count of each input port.
    pub(super) inputs: Vec<(String, usize)>,
    /// Name, slot and element count of each output port.
    pub(super) outputs: Vec<(String, usize, usize)>,
    /// Slot and element count of each kept value.
    pub(super) kept: BTreeMap<ValueId, (usize, usize)>,
}

struct Placer<'a> {
    graph: &'a Graph,
    places: Vec<Option<Place>>,
    only_matrix: Vec<bool>,
    /// For each value the last one that reads its buffer; `None` for values that are never freed.
    last_use: Vec<Option<usize>>,
    /// For each value the one whose buffer it shares.
    root: Vec<usize>,
    slots: Vec<usize>,
    free: Vec<usize>,
    steps: Vec<Step>,
    consts: Vec<String>,
    stored: Vec<String>,
}

/// Places a verified graph; the values in `keep` and the outputs can be read after a run.
pub(super) fn place(graph: &Graph, keep: &[ValueId]) -> Placement {
    let root = roots(graph);
    let last_use = last_uses(graph, &root, keep);
    let mut placer = Placer {
        graph,
        places: vec![None; graph.values.len()],
        only_matrix: only_matrices(graph),
        last_use,
        root,
        slots: Vec::new(),
        free: Vec::new(),
        steps: Vec::new(),
        consts: Vec::new(),
        stored: Vec::new(),
    };
    let mut inputs = Vec::new();
    for (index, value) in graph.values.iter().enumerate() {
        let place = match &value.def {
            Def::Input => {
                inputs.push((value.name.clone(), elements(&value.ty.shape)));
                Place::Input(inputs.len() - 1)
            }
            Def::Weight => placer.weight(index),
            Def::Op { op, args } => placer.op(index, op, args),
        };
        placer.places[index] = Some(place);
    }
    let mut readable = |value: ValueId| (placer.readable(value), elements(&graph.value(value).ty.shape));
    let kept = keep.iter().map(|&value| (value, readable(value))).collect();
    let outputs = graph.outputs.iter().map(|output| {
        let (slot, len) = readable(output.value);
        (output.name.clone(), slot, len)
    });
    let outputs = outputs.collect();
    let Placer { steps, slots, consts, stored, .. } = placer;
    Placement { steps, slots, consts, stored, inputs, outputs, kept }
}

/// For each value, whether it is a weight that is nothing but the matrix of projections.
fn only_matrices(graph: &Graph) -> Vec<bool> {
    let mut only: Vec<bool> = graph.values.iter().map(|value| value.def == Def::Weight).collect();
    for value in &graph.values {
        if let Def::Op { op, args } = &value.def {
            for (position, arg) in args.iter().enumerate() {
                only[arg.index()] &= op.is_projection() && position == 1;
            }
        }
    }
    only
}

/// A reshape shares the buffer of its operand; every other value has its own.
fn roots(graph: &Graph) -> Vec<usize> {
    let mut root: Vec<usize> = Vec::with_capacity(graph.values.len());
    for (index, value) in graph.values.iter().enumerate() {
        root.push(match &value.def {
            Def::Op { op: Op::Reshape { .. }, args } => root[args[0].index()],
            Def::Op { .. } | Def::Input | Def::Weight => index,
        });
    }
    root
}

fn last_uses(graph: &Graph, root: &[usize], keep: &[ValueId]) -> Vec<Option<usize>> {
    let mut last: Vec<Option<usize>> = (0..graph.values.len()).map(Some).collect();
    for (index, value) in graph.values.iter().enumerate() {
        if let Def::Op { args, .. } = &value.def {
            for arg in args {
                last[root[arg.index()]] = Some(index);
            }
        }
    }
    let outputs = graph.outputs.iter().map(|output| output.value);
    for value in outputs.chain(keep.iter().copied()) {
        last[root[value.index()]] = None;
    }
    last
}

impl Placer<'_> {
    fn op(&mut self, index: usize, op: &Op, args: &[ValueId]) -> Place {
        let operands: Vec<Operand> = args.iter().map(|&arg| self.operand(arg)).collect();
        if let Op::Reshape { .. } = op {
            return operands[0].place;
        }
        let shape = self.graph.values[index].ty.shape.clone();
        let slot = match self.last_use[index] {
            Some(_) => self.take_slot(elements(&shape)),
            // A value that stays would take a larger buffer out of use for good.
            None => self.new_slot(elements(&shape)),
        };
        self.steps.push(Step { op: op.clone(), args: operands, slot, shape });
        self.free_after(index, args);
        if self.last_use[index] == Some(index) {
            self.free.push(slot);
        }
        Place::Slot(slot)
    }

    fn operand(&self, value: ValueId) -> Operand {
        let place = self.places[value.index()].expect("operands are placed before they are used");
        Operand { place, shape: self.graph.value(value).ty.shape.clone() }
    }

    /// Matrices stay as stored unless something other than a projection reads them.
    fn weight(&mut self, index: usize) -> Place {
        let name = self.graph.values[index].name.clone();
        if self.only_matrix[index] {
            self.stored.push(name);
            return Place::Stored(self.stored.len() - 1);
        }
        self.consts.push(name);
        Place::Const(self.consts.len() - 1)
    }

    /// The smallest free buffer that is large enough, else the largest one grown, else a new one.
    fn take_slot(&mut self, len: usize) -> usize {
        let fitting = self.free.iter().copied().filter(|&slot| self.slots[slot] >= len).min_by_key(|&s| self.slots[s]);
        let largest = || self.free.iter().copied().max_by_key(|&slot| self.slots[slot]);
        match fitting.or_else(largest) {
            Some(slot) => {
                self.free.retain(|&other| other != slot);
                self.slots[slot] = self.slots[slot].max(len);
                slot
            }
            None => self.new_slot(len),
        }
    }

    fn new_slot(&mut self, len: usize) -> usize {
        self.slots.push(len);
        self.slots.len() - 1
    }

    fn free_after(&mut self, index: usize, args: &[ValueId]) {
        let mut roots: Vec<usize> = args.iter().map(|arg| self.root[arg.index()]).collect();
        roots.sort_unstable();
        roots.dedup();
        for root in roots {
            if self.last_use[root] == Some(index)
                && let Some(Place::Slot(slot)) = self.places[root]
            {
                self.free.push(slot);
            }
        }
    }

    /// A buffer that holds the value after a run: its own, or a copy of an input or weight.
    fn readable(&mut self, value: ValueId) -> usize {
        let operand = self.operand(value);
        let shape = Shape(operand.shape.to_vec());
        match operand.place {
            Place::Slot(slot) => slot,
            Place::Input(_) | Place::Const(_) | Place::Rounded(_) => {
                let slot = self.new_slot(elements(&shape));
                let op = Op::Reshape { shape: shape.to_vec() };
                self.steps.push(Step { op, args: vec![operand], slot, shape });
                slot
            }
            Place::Stored(index) => {
                self.consts.push(self.stored[index].clone());
                self.places[value.index()] = Some(Place::Const(self.consts.len() - 1));
                self.readable(value)
            }
        }
    }
}
