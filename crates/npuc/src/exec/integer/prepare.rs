//! From encodings to what each step of an executor rounds, reads and computes.

use std::collections::{BTreeMap, HashMap};

use half::f16;
use npuc_kernels::integer::has_row_scale;

use super::super::{Executor, Place, elements, has_step, to_f32};
use super::product::{Matrix, Product};
use super::{Entry, Form, Integer, Rule, Twin, blocks, torq};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::quant::{Encoding, Encodings, Real};
use crate::tensor::{DType, Shape, Tensor, weight};

/// Makes an executor of whole numbers of a float one.
///
/// Errors: encodings of another graph; a whole attention ([`Code::Misfit`]); weights that are not finite.
pub(in crate::exec) fn prepare(
    executor: &mut Executor,
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    encodings: &Encodings,
) -> Result<Integer> {
    encodings.check(graph)?;
    refuse_attention(graph, encodings)?;
    let mut maker = Maker {
        executor,
        graph,
        weights,
        encodings,
        roots: roots(graph),
        twins: BTreeMap::new(),
        constants: HashMap::new(),
        matrices: Vec::new(),
        of_weight: HashMap::new(),
        halves: HashMap::new(),
    };
    maker.make_twins();
    let entries = maker.entries();
    let rules = maker.rules(&entries)?;
    let outputs = graph.outputs.iter().map(|output| maker.twin(output.value)).collect();
    Ok(Integer {
        entries,
        rules,
        outputs,
        matrices: maker.matrices,
        saturated: vec![0; graph.values.len()],
        uncounted: graph.ids().map(|id| encodings.masked(id)).collect(),
    })
}

/// Attention in one operation has scores and weights inside that encodings do not know.
fn refuse_attention(graph: &Graph, encodings: &Encodings) -> Result<()> {
    for (id, value) in graph.ids().zip(&graph.values) {
        if let (Def::Op { op: Op::Attention { .. }, .. }, false) = (&value.def, encodings.float(id)) {
            return Err(Diagnostic::error(Code::Misfit, "attention as a whole has no whole numbers")
                .subject(&value.name)
                .need("matrix products and a softmax")
                .help("run the pass `decompose-attention` or `split-attention` first")
                .into());
        }
    }
    Ok(())
}

/// The value whose buffer each value is in: a reshape shares its operand's.
fn roots(graph: &Graph) -> Vec<ValueId> {
    let mut roots: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    for (id, value) in graph.ids().zip(&graph.values) {
        roots.push(match &value.def {
            Def::Op { op: Op::Reshape { .. }, args } => roots[args[0].index()],
            Def::Op { .. } | Def::Input | Def::Weight => id,
        });
    }
    roots
}

struct Maker<'a> {
    executor: &'a mut Executor,
    graph: &'a Graph,
    weights: &'a BTreeMap<String, Tensor>,
    encodings: &'a Encodings,
    roots: Vec<ValueId>,
    /// For each value that is in a float buffer and read in whole numbers, by root and value.
    twins: BTreeMap<ValueId, Vec<(ValueId, Twin)>>,
    /// Rounded constants by their place, and by whether they are for whole numbers.
    constants: HashMap<(usize, bool), usize>,
    matrices: Vec<Matrix>,
    /// The place of a weight's matrix.
    of_weight: HashMap<ValueId, usize>,
    /// Matrices in half precision, by their place among the stored.
    halves: HashMap<usize, usize>,
}

impl Maker<'_> {
    fn buffer(&mut self, numbers: Vec<f32>) -> usize {
        self.executor.rounded.push(numbers);
        self.executor.rounded.len() - 1
    }

    fn make_twins(&mut self) {
        for id in self.graph.ids() {
            let root = self.roots[id.index()];
            let Some(encoding) = self.encodings.get(id) else { continue };
            if !self.encodings.float(root) {
                continue;
            }
            let grid = encoding.grid();
            let known = self.twins.get(&root).and_then(|twins| twins.iter().find(|(_, twin)| twin.grid == grid));
            let twin = match known {
                Some((_, twin)) => *twin,
                None => {
                    let len = elements(&self.graph.value(root).ty.shape);
                    Twin { grid, buffer: self.buffer(vec![0.0; len]) }
                }
            };
            self.twins.entry(root).or_default().push((id, twin));
        }
    }

    /// The twins that are made of a value, each once.
    fn twins_of(&self, root: ValueId) -> Vec<Twin> {
        let made: BTreeMap<usize, Twin> =
            self.twins.get(&root).into_iter().flatten().map(|(_, twin)| (twin.buffer, *twin)).collect();
        made.into_values().collect()
    }

    /// The buffer of a float value's numbers for those who read it in whole numbers.
    fn twin(&self, id: ValueId) -> Option<usize> {
        let twins = self.twins.get(&self.roots[id.index()])?;
        twins.iter().find(|(value, _)| *value == id).map(|(_, twin)| twin.buffer)
    }

    /// How the result of an operation, or what enters, is rounded.
    fn form(&self, id: ValueId) -> Option<Form> {
        match (self.encodings.float(id), self.encodings.get(id), self.encodings.real()) {
            (false, encoding, _) => encoding.map(|encoding| Form::Whole(encoding.grid())),
            (true, _, Real::F16) if self.encodings.masked(id) => Some(Form::FiniteHalf),
            (true, _, Real::F16) => Some(Form::Half),
            (true, _, Real::Bf16) => Some(Form::Brain),
            (true, _, Real::F32) => None,
        }
    }

    fn entries(&mut self) -> Vec<Entry> {
        let inputs: Vec<ValueId> = self.graph.ids().filter(|&id| self.graph.value(id).def == Def::Input).collect();
        let mut entries = Vec::new();
        for value in inputs {
            let len = elements(&self.graph.value(value).ty.shape);
            let form = self.form(value).map(|form| (form, self.buffer(vec![0.0; len])));
            entries.push(Entry { value, form, twins: self.twins_of(value) });
        }
        entries
    }

    /// The rules of all steps, whose operands are then read from where their numbers are.
    fn rules(&mut self, entries: &[Entry]) -> Result<Vec<Rule>> {
        let computed: Vec<ValueId> = self.graph.ids().filter(|&id| has_step(&self.graph.value(id).def)).collect();
        let mut rules = Vec::new();
        for step in 0..self.executor.steps.len() {
            let value = computed.get(step).copied();
            let rule = match value {
                Some(value) => self.rule(step, value)?,
                None => Rule::default(),
            };
            for arg in &mut self.executor.steps[step].args {
                let Place::Input(port) = arg.place else { continue };
                if let Some((_, buffer)) = entries[port].form {
                    arg.place = Place::Rounded(buffer);
                }
            }
            rules.push(rule);
        }
        Ok(rules)
    }

    fn rule(&mut self, step: usize, value: ValueId) -> Result<Rule> {
        let Def::Op { op, args } = &self.graph.value(value).def else { return Ok(Rule::default()) };
        let whole = !self.encodings.float(value);
        for (place, &arg) in args.iter().enumerate() {
            let matrix_or_bias = op.is_projection() && place > 0;
            let from = self.executor.steps[step].args[place].place;
            let twin = self.twin(arg).filter(|_| whole || !self.encodings.float(arg));
            let moved = match (from, twin) {
                (_, Some(buffer)) => Place::Rounded(buffer),
                (Place::Const(constant), None) if !matrix_or_bias => self.constant(constant, arg, whole),
                (Place::Stored(index), None) if !whole && self.encodings.matrices().is_some() => {
                    Place::Stored(self.half(index))
                }
                (place, None) => place,
            };
            self.executor.steps[step].args[place].place = moved;
        }
        let product = if whole { self.product(op, args, value)? } else { None };
        let form = self.form(value);
        let blocks = self.blocks(op, step);
        let torq = torq::arithmetic(op).filter(|_| form == Some(Form::Brain));
        Ok(Rule { value: Some(value), form, product, blocks, torq, twins: self.twins_of(value) })
    }

    /// A gain or another operand of plain arithmetic in the numbers that the step reads.
    fn constant(&mut self, constant: usize, id: ValueId, whole: bool) -> Place {
        let form = match (whole, self.encodings.get(id), self.encodings.real()) {
            (true, Some(encoding), _) => Form::Whole(encoding.grid()),
            (false, _, Real::F16) => Form::Half,
            (false, _, Real::Bf16) => Form::Brain,
            (true, None, _) | (false, _, Real::F32) => return Place::Const(constant),
        };
        if let Some(&buffer) = self.constants.get(&(constant, whole)) {
            return Place::Rounded(buffer);
        }
        let mut numbers = self.executor.consts[constant].clone();
        form.round(&mut numbers);
        let buffer = self.buffer(numbers);
        self.constants.insert((constant, whole), buffer);
        Place::Rounded(buffer)
    }

    /// A matrix in half precision: TFLite files hold those of float projections so.
    fn half(&mut self, index: usize) -> usize {
        if let Some(&half) = self.halves.get(&index) {
            return half;
        }
        let tensor = &self.executor.stored[index];
        let bytes: Vec<u8> = to_f32(tensor).iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        let half = Tensor::in_memory(DType::F16, Shape(tensor.shape.to_vec()), bytes.into());
        self.executor.stored.push(half.expect("two bytes an element"));
        let place = self.executor.stored.len() - 1;
        self.halves.insert(index, place);
        place
    }

    /// The matrix in blocks of a projection of bf16 numbers, by its place among the stored.
    fn blocks(&self, op: &Op, step: usize) -> Option<usize> {
        match self.executor.steps[step].args.get(1).map(|arg| arg.place) {
            Some(Place::Stored(at)) if op.is_projection() && self.encodings.real() == Real::Bf16 => {
                Some(at).filter(|&at| blocks::has_form(self.executor.stored[at].dtype))
            }
            Some(_) | None => None,
        }
    }

    /// The exact form of a projection or product of whole numbers; `None` where the weights are none.
    fn product(&mut self, op: &Op, args: &[ValueId], value: ValueId) -> Result<Option<Product>> {
        let encoding = |id: ValueId| self.encodings.get(id);
        let Some(result) = encoding(value) else { return Ok(None) };
        let first = args.first().and_then(|&arg| encoding(arg));
        if let (Op::MatMul { .. }, Some(a), &[_, b]) = (op, first, args) {
            let product = |b: Encoding| Product::MatMul { a, b, result };
            let is_weight = self.graph.value(b).def == Def::Weight;
            return Ok(encoding(b).filter(|_| !is_weight).map(product));
        }
        let (true, Some(x), Some(&matrix)) = (op.is_projection(), first, args.get(1)) else { return Ok(None) };
        let matrix = self.matrix(matrix)?;
        Ok(matrix.map(|matrix| Product::Projection { x, matrix, result }))
    }

    fn matrix(&mut self, id: ValueId) -> Result<Option<usize>> {
        if let Some(&place) = self.of_weight.get(&id) {
            return Ok(Some(place));
        }
        let value = self.graph.value(id);
        let tensor = match value.def {
            Def::Weight => weight(self.weights, &value.name),
            Def::Input | Def::Op { .. } => None,
        };
        let matrix = match (tensor, self.encodings.matrices()) {
            (None, _) => return Ok(None),
            (Some(tensor), Some(format)) => Matrix::rounded(&value.name, &tensor, format)?,
            (Some(tensor), None) if has_row_scale(tensor.dtype) => Matrix::stored(tensor.materialized()),
            (Some(_), None) => return Ok(None),
        };
        self.matrices.push(matrix);
        self.of_weight.insert(id, self.matrices.len() - 1);
        Ok(Some(self.matrices.len() - 1))
    }
}
