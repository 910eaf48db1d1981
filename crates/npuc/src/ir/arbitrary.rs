//! Random well-typed graphs for property tests, with data on which every formula is well conditioned.
//!
//! Each value carries a bound of its magnitude; before an operation that could make numbers large, its
//! operand passes through a sigmoid.

use std::collections::HashMap;

use proptest::prelude::*;

use super::{Def, Graph, GraphBuilder, Op, ValueId};
use crate::tensor::{DType, Shape};

/// Numbers by name, row-major.
pub(crate) type Data = HashMap<String, Vec<f64>>;

/// A valid graph and numbers in -1..1 for its inputs and weights.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) graph: Graph,
    pub(crate) inputs: Data,
    pub(crate) weights: Data,
}

/// Random valid graphs of up to `ops` drawn steps.
pub(crate) fn cases(ops: usize) -> impl Strategy<Value = Case> {
    (prop::collection::vec(any::<[u8; 6]>(), 1..=ops), any::<u64>()).prop_map(|(steps, seed)| case(&steps, seed))
}

fn case(steps: &[[u8; 6]], seed: u64) -> Case {
    let mut growing = Growing { builder: GraphBuilder::new("random"), bounds: Vec::new(), last: None };
    for step in steps {
        growing.grow(step);
    }
    let graph = growing.finish(steps);
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    let (mut inputs, mut weights) = (Data::new(), Data::new());
    for value in &graph.values {
        let data = match &value.def {
            Def::Input => &mut inputs,
            Def::Weight => &mut weights,
            Def::Op { .. } => continue,
        };
        let count = value.ty.shape.elements().expect("shapes here are small");
        data.insert(value.name.clone(), (0..count).map(|_| next()).collect());
    }
    Case { graph, inputs, weights }
}

struct Growing {
    builder: GraphBuilder,
    /// An upper bound of the magnitude of each value.
    bounds: Vec<f64>,
    /// The newest value.
    last: Option<ValueId>,
}

/// The largest magnitude that operations whose results grow are given.
const LARGE: f64 = 8.0;

impl Growing {
    fn leaf(&mut self, weight: Option<DType>, shape: &[usize]) -> ValueId {
        let (name, shape) = (format!("leaf {}", self.bounds.len()), Shape(shape.to_vec()));
        self.bounds.push(1.0);
        match weight {
            Some(dtype) => self.builder.weight(name, dtype, shape),
            None => self.builder.input(name, shape),
        }
    }

    fn op(&mut self, op: Op, args: &[ValueId], bound: f64) -> ValueId {
        self.bounds.push(bound);
        let path = if self.bounds.len().is_multiple_of(3) { "" } else { "part" };
        let id = self.builder.op(path, op, args);
        self.last = Some(id);
        id
    }

    /// `x` or, where it may be large, its sigmoid.
    fn tame(&mut self, x: ValueId) -> ValueId {
        if self.bounds[x.index()] <= LARGE { x } else { self.op(Op::Sigmoid {}, &[x], 1.0) }
    }

    /// An earlier f32 value, often the newest, or a new input.
    fn pick(&mut self, byte: u8) -> ValueId {
        let dims = [usize::from(byte / 6 % 2) + 1, usize::from(byte % 3) + 1, usize::from(byte / 3 % 2) * 2 + 2, 3];
        match self.last {
            Some(last) if !byte.is_multiple_of(4) => last,
            Some(last) if byte.is_multiple_of(8) => ValueId(u32::from(byte) % (last.0 + 1)),
            Some(_) | None => self.leaf(None, &dims[usize::from(byte / 8) % 4..]),
        }
    }

    fn grow(&mut self, &[kind, a, b, c, d, e]: &[u8; 6]) {
        let mut x = self.pick(a);
        if self.builder.dtype(x) != DType::F32 {
            x = self.leaf(None, &[2, 2]);
        }
        match usize::from(kind) % 5 {
            0 => self.rows(x, b, c),
            1 => self.elements(x, b, c, d),
            2 | 3 => self.layout(x, b, c, d),
            _ => self.products(x, b, [c, d, e]),
        }
    }

    fn elements(&mut self, x: ValueId, kind: u8, c: u8, d: u8) {
        let tame = self.tame(x);
        let bound = self.bounds[tame.index()];
        let mut shape = self.builder.shape(tame).to_vec();
        if c.is_multiple_of(2) {
            shape[0] = 1;
        }
        let other = match c % 5 {
            0 => tame,
            1 => self.leaf(Some(DType::BF16), &shape),
            _ => self.leaf(None, &shape[usize::from(c) % shape.len()..]),
        };
        let both = bound + self.bounds[other.index()];
        let factors = [1.0, 0.0, -0.5, 2.0];
        let (scale, offset) = (factors[usize::from(c) % 4], factors[usize::from(d) % 4]);
        match kind % 12 {
            0 => self.op(Op::Silu {}, &[tame], bound),
            1 => self.op(Op::Sigmoid {}, &[tame], 1.0),
            2 => self.op(Op::Exp {}, &[tame], bound.exp()),
            3 => {
                let positive = self.op(Op::Exp {}, &[tame], bound.exp());
                self.op(Op::Rsqrt {}, &[positive], bound.exp())
            }
            4 => self.op(Op::Affine { scale, offset }, &[tame], 2.0 * bound + 2.0),
            5 => self.op(Op::Add {}, &[tame, other], both),
            6 => self.op(Op::Sub {}, &[other, tame], both),
            7 => self.op(Op::Mul {}, &[tame, other], both * both),
            8 => {
                let positive = self.op(Op::Exp {}, &[tame], bound.exp());
                self.op(Op::Div {}, &[other, positive], both * bound.exp())
            }
            9 => self.op(Op::Abs {}, &[tame], bound),
            10 => self.op(Op::Gelu {}, &[tame], bound),
            _ => self.op(Op::Affine { scale: 1.0, offset: 0.0 }, &[tame], bound),
        };
    }

    fn rows(&mut self, x: ValueId, kind: u8, c: u8) {
        let x = self.tame(x);
        let (bound, shape) = (self.bounds[x.index()], self.builder.shape(x).to_vec());
        let (axis, last) = (usize::from(c) % shape.len(), shape[shape.len() - 1]);
        match kind % 6 {
            0 => self.op(Op::Softmax {}, &[x], 1.0),
            1 => self.op(Op::Sum { axis }, &[x], bound * shape[axis] as f64),
            2 => self.op(Op::Mean { axis }, &[x], bound),
            3 => self.op(Op::Max { axis }, &[x], bound),
            4 => {
                let (gain, bias) = (self.leaf(Some(DType::F16), &[last]), self.leaf(Some(DType::F32), &[last]));
                self.op(Op::LayerNorm { eps: 1e-1 }, &[x, gain, bias], bound * 4.0 + 1.0)
            }
            _ => {
                let gain = self.leaf(Some([DType::F32, DType::F16][axis % 2]), &[last]);
                self.op(Op::RmsNorm { eps: 1e-2 }, &[x, gain], bound * 10.0)
            }
        };
    }

    fn layout(&mut self, x: ValueId, kind: u8, c: u8, d: u8) {
        let (bound, shape) = (self.bounds[x.index()], self.builder.shape(x).to_vec());
        let axis = usize::from(c) % shape.len();
        match kind % 8 {
            0 if shape.iter().product::<usize>() < 200 => {
                let other = self.leaf(None, &shape);
                self.op(Op::Concat { axis }, &[x, other, x], bound.max(1.0))
            }
            0 | 1 => {
                let start = usize::from(d) % shape[axis];
                self.op(Op::Slice { axis, start, len: shape[axis] - start }, &[x], bound)
            }
            2 | 3 => {
                let mut perm: Vec<usize> = (0..shape.len()).collect();
                perm.rotate_left(axis);
                self.op(Op::Transpose { perm }, &[x], bound)
            }
            4 => self.op(Op::Reshape { shape }, &[x], bound),
            5 => {
                let mut shape = shape;
                shape.swap(0, axis);
                self.op(Op::Reshape { shape }, &[x], bound)
            }
            _ => {
                let count = shape.iter().product();
                self.op(
                    Op::Reshape { shape: if d.is_multiple_of(2) { vec![count] } else { vec![1, count, 1] } },
                    &[x],
                    bound,
                )
            }
        };
    }

    fn products(&mut self, x: ValueId, kind: u8, [c, d, e]: [u8; 3]) {
        let x = self.tame(x);
        let (bound, shape) = (self.bounds[x.index()], self.builder.shape(x).to_vec());
        let (rank, last) = (shape.len(), shape[shape.len() - 1]);
        let out = usize::from(c % 4) + 1;
        match kind % 5 {
            0 if rank >= 2 => {
                let transpose_b = d % 2 == 0;
                let inner = if transpose_b { [out, last] } else { [last, out] };
                let b = self.leaf(None, &[&shape[..rank - 2], &inner].concat());
                self.op(Op::MatMul { transpose_b }, &[x, b], bound * last as f64);
            }
            1 if rank >= 2 && last % 2 == 0 => {
                let table = [shape[rank - 2], last / 2];
                let (cos, sin) = (self.leaf(None, &table), self.leaf(None, &table));
                self.op(Op::Rope {}, &[x, cos, sin], 2.0 * bound);
            }
            2 => self.attention(c, d, e),
            3 => self.short_conv(x, c, d),
            _ => {
                let dtype = [DType::F32, DType::BF16, DType::Q8_0][usize::from(d) % 3];
                let (x, inner) = if dtype.is_block() { (self.leaf(None, &[2, 32]), 32) } else { (x, last) };
                let mut args = vec![x, self.leaf(Some(dtype), &[out, inner])];
                if e.is_multiple_of(2) {
                    args.push(self.leaf(Some(DType::F16), &[out]));
                }
                let pixels = matches!(self.builder.shape(x), [1, _, _, _]);
                let op = if pixels { Op::PointwiseConv {} } else { Op::Linear {} };
                self.op(op, &args, LARGE * inner as f64);
            }
        }
    }

    /// Over `x` where its rank and rows allow it.
    fn short_conv(&mut self, x: ValueId, c: u8, d: u8) {
        let taps = usize::from(c) % 4 + 1;
        let x = match *self.builder.shape(x) {
            [rows, _] if rows >= taps => x,
            [..] => self.leaf(None, &[taps + usize::from(c / 4) % 3, 3]),
        };
        let (width, dtype) = (self.builder.shape(x)[1], [DType::F32, DType::BF16, DType::F16][usize::from(d) % 3]);
        let bound = self.bounds[x.index()];
        let mut args = vec![x, self.leaf(Some(dtype), &[width, taps])];
        if d.is_multiple_of(2) {
            args.push(self.leaf(Some(DType::F16), &[width]));
        }
        self.op(Op::ShortConv {}, &args, bound * taps as f64 + 1.0);
    }

    fn attention(&mut self, c: u8, d: u8, e: u8) {
        let (kv, group, dim) = (usize::from(c) % 3 + 1, usize::from(c / 3) % 3 + 1, usize::from(c / 9) % 4 + 1);
        let (tokens, capacity) = (usize::from(d) % 4 + 1, usize::from(e) % 4 + 1);
        let shapes = [
            vec![kv * group, tokens, dim],
            vec![kv, capacity, dim],
            vec![kv, capacity, dim],
            vec![kv, tokens, dim],
            vec![kv, tokens, dim],
            vec![tokens, capacity + tokens],
        ];
        let args: Vec<ValueId> = shapes.iter().map(|shape| self.leaf(None, shape)).collect();
        self.op(Op::Attention { scale: 0.75 }, &args, 1.0);
    }

    /// Lets the newest value and a few others leave.
    fn finish(mut self, steps: &[[u8; 6]]) -> Graph {
        let last = self.last.unwrap_or_else(|| self.leaf(None, &[1]));
        self.builder.output("last", last);
        for (i, step) in steps.iter().enumerate().filter(|(_, step)| step[5] % 4 == 0) {
            let id = ValueId(u32::from(step[4]) % (last.0 + 1));
            if self.builder.dtype(id) == DType::F32 {
                self.builder.output(format!("extra {i}"), id);
            }
        }
        self.builder.finish()
    }
}

mod tests {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;

    use super::*;

    #[test]
    fn every_operation_is_drawn() {
        let mut runner = TestRunner::deterministic();
        let mut drawn = std::collections::BTreeSet::new();
        for _ in 0..256 {
            let case = cases(12).new_tree(&mut runner).unwrap().current();
            drawn.extend(case.graph.values.iter().filter_map(|value| match &value.def {
                Def::Op { op, .. } => Some(op.name()),
                Def::Input | Def::Weight => None,
            }));
        }
        assert_eq!(drawn, Op::NAMES.iter().copied().collect());
    }
}
