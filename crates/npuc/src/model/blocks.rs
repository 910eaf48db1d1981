//! The blocks that transformer families share, written against a [`StepBuilder`].
//!
//! A weight's format comes with its type from the caller: blocks name weights and never ask how they are stored.

use std::collections::BTreeMap;
use std::ops::Range;

use super::step::{CacheProtocol, Port, StateKind, StepShape};
use crate::ir::build::GraphBuilder;
use crate::ir::{Graph, Op, Type, ValueId};
use crate::tensor::rows_name;

/// Builds the graph of one step.
pub struct StepBuilder<'a> {
    graph: GraphBuilder,
    weights: &'a BTreeMap<String, Type>,
    /// The step's shape.
    pub shape: StepShape,
    protocol: CacheProtocol,
    write_mask: Option<ValueId>,
    history: Option<ValueId>,
}

/// What a family calls the parts of its attention.
pub struct AttentionNames {
    /// The output projection.
    pub output: &'static str,
    /// The norm of the queries, where the model has one.
    pub q_norm: &'static str,
    /// The norm of the keys, where the model has one.
    pub k_norm: &'static str,
}

/// The attention of one layer: its sizes and the step's rotary tables and mask.
pub struct AttentionBlock {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// The epsilon of the per-head norms of queries and keys, where the model has them.
    pub qk_norm_eps: Option<f32>,
    /// Cosines and sines of the rotary angles, `[tokens, head_dim / 2]`, where the model turns queries and keys.
    pub rope: Option<[ValueId; 2]>,
    /// `[tokens, capacity + tokens]`.
    pub mask: ValueId,
}

impl<'a> StepBuilder<'a> {
    /// An empty graph named after its shape.
    pub fn new(weights: &'a BTreeMap<String, Type>, shape: StepShape, protocol: CacheProtocol) -> StepBuilder<'a> {
        let graph = GraphBuilder::new(shape.to_string());
        StepBuilder { graph, weights, shape, protocol, write_mask: None, history: None }
    }

    /// An input port.
    pub fn input(&mut self, port: Port, dims: &[usize]) -> ValueId {
        self.graph.input(port.to_string(), dims)
    }

    /// The port that tells where new rows enter the caches, where the protocol has one.
    pub fn write_mask(&mut self) {
        match self.protocol {
            CacheProtocol::Append | CacheProtocol::Shift => {}
            CacheProtocol::OneHot => {
                let dims = [1, self.shape.capacity, self.shape.tokens];
                self.write_mask = Some(self.input(Port::WriteMask, &dims));
            }
        }
    }

    /// The port that tells which rows are the last `rows` tokens after the step, where the protocol has one: with one token
    /// they are known.
    pub fn history(&mut self, rows: usize) {
        match self.protocol {
            CacheProtocol::Append | CacheProtocol::Shift => {}
            CacheProtocol::OneHot if self.shape.tokens == 1 => {}
            CacheProtocol::OneHot => {
                self.history = Some(self.input(Port::History, &[rows, rows + self.shape.tokens]));
            }
        }
    }

    /// An output port.
    pub fn output(&mut self, port: Port, value: ValueId) {
        self.graph.output(port.to_string(), value);
    }

    /// The finished graph.
    pub fn finish(self) -> Graph {
        self.graph.finish()
    }

    /// A weight by its canonical name.
    ///
    /// # Panics
    /// If the weights lack the name: callers bind every [`super::WeightSpec`] first.
    pub fn weight(&mut self, name: &str) -> ValueId {
        let ty = self.weights.get(name).unwrap_or_else(|| panic!("the weight `{name}` is bound before building"));
        self.graph.weight(name, ty.dtype, ty.shape.clone())
    }

    /// Rows of a matrix by its canonical name; rows after its last are zeros. See [`crate::tensor::weight`].
    ///
    /// # Panics
    /// As [`StepBuilder::weight`].
    pub fn weight_rows(&mut self, name: &str, rows: Range<usize>) -> ValueId {
        let ty = self.weights.get(name).unwrap_or_else(|| panic!("the weight `{name}` is bound before building"));
        let mut shape = ty.shape.clone();
        shape.0[0] = rows.len();
        self.graph.weight(rows_name(name, &rows), ty.dtype, shape)
    }

    /// The extents of a value.
    pub fn shape_of(&self, value: ValueId) -> &[usize] {
        self.graph.shape(value)
    }

    /// One operation, named by its place in the model.
    pub fn op(&mut self, path: &str, op: Op, args: &[ValueId]) -> ValueId {
        self.graph.op(path, op, args)
    }

    /// `x · Wᵀ (+ b)` with the weights `<path>.weight` and, if the model has it, `<path>.bias`.
    pub fn linear(&mut self, path: &str, x: ValueId) -> ValueId {
        let mut args = vec![x, self.weight(&format!("{path}.weight"))];
        let bias = format!("{path}.bias");
        if self.weights.contains_key(&bias) {
            args.push(self.weight(&bias));
        }
        self.op(path, Op::Linear {}, &args)
    }

    /// RMS normalisation of the last axis with the gain `<path>.weight`.
    pub fn rms_norm(&mut self, path: &str, x: ValueId, eps: f32) -> ValueId {
        let gain = self.weight(&format!("{path}.weight"));
        self.op(path, Op::RmsNorm { eps }, &[x, gain])
    }

    /// Normalisation of the last axis to mean 0 and variance 1, with the gain `<path>.weight` and the bias `<path>.bias`.
    pub fn layer_norm(&mut self, path: &str, x: ValueId, eps: f32) -> ValueId {
        let (gain, bias) = (self.weight(&format!("{path}.weight")), self.weight(&format!("{path}.bias")));
        self.op(path, Op::LayerNorm { eps }, &[x, gain, bias])
    }

    /// Attention of queries `[heads, tokens, head_dim]` to all keys and values `[heads, rows, head_dim]` alike; the result is
    /// `[tokens, heads · head_dim]`. The scale is applied to the queries, so that no score leaves the range of f16.
    pub fn attend(&mut self, path: &str, q: ValueId, k: ValueId, v: ValueId) -> ValueId {
        let &[heads, tokens, head_dim] = self.graph.shape(q) else { unreachable!("queries are split into heads") };
        let scale = 1.0 / (head_dim as f32).sqrt();
        let q = self.op(path, Op::Affine { scale, offset: 0.0 }, &[q]);
        let scores = self.op(path, Op::MatMul { transpose_b: true }, &[q, k]);
        let weights = self.op(path, Op::Softmax {}, &[scores]);
        let mixed = self.op(path, Op::MatMul { transpose_b: false }, &[weights, v]);
        let rows = self.op(path, Op::Transpose { perm: vec![1, 0, 2] }, &[mixed]);
        self.op(path, Op::Reshape { shape: vec![tokens, heads * head_dim] }, &[rows])
    }

    /// `down(silu(gate(x)) · up(x))` with the projections of these names below `path`; `[tokens, hidden]` in and out.
    pub fn swiglu(&mut self, path: &str, x: ValueId, [gate, up, down]: [&str; 3]) -> ValueId {
        let gate = self.linear(&format!("{path}.{gate}"), x);
        let gate = self.op(path, Op::Silu {}, &[gate]);
        let up = self.linear(&format!("{path}.{up}"), x);
        let product = self.op(path, Op::Mul {}, &[gate, up]);
        self.linear(&format!("{path}.{down}"), product)
    }

    /// A gated short convolution with the weights below `path`, `[tokens, hidden]` in and out: of three parts that the input
    /// projection gives, the product of the first and the third is convolved over the last `history + 1` tokens and gated by the
    /// second.
    pub fn gated_conv(&mut self, path: &str, layer: usize, x: ValueId, hidden: usize, history: usize) -> ValueId {
        let past = self.input(Port::Past(StateKind::Conv, layer), &[history, hidden]);
        let projected = self.linear(&format!("{path}.in_proj"), x);
        let part = |n: usize| Op::Slice { axis: 1, start: n * hidden, len: hidden };
        let before = self.op(path, part(0), &[projected]);
        let after = self.op(path, part(1), &[projected]);
        let value = self.op(path, part(2), &[projected]);
        let new = self.op(path, Op::Mul {}, &[before, value]);
        let rows = self.op(path, Op::Concat { axis: 0 }, &[past, new]);

        let filter = format!("{path}.conv");
        let mut args = vec![rows, self.weight(&format!("{filter}.weight"))];
        let bias = format!("{filter}.bias");
        if self.weights.contains_key(&bias) {
            args.push(self.weight(&bias));
        }
        let mixed = self.op(&filter, Op::ShortConv {}, &args);
        self.store_history(path, layer, new, rows, history);
        let gated = self.op(path, Op::Mul {}, &[after, mixed]);
        self.linear(&format!("{path}.out_proj"), gated)
    }

    /// Lets a convolution's new rows `[tokens, hidden]` leave as the protocol says; `rows` are the past ones and they.
    fn store_history(&mut self, path: &str, layer: usize, new: ValueId, rows: ValueId, history: usize) {
        let next = Port::Next(StateKind::Conv, layer);
        let last = Op::Slice { axis: 0, start: self.shape.tokens, len: history };
        match (self.protocol, self.history) {
            (CacheProtocol::Append, _) => self.output(Port::New(StateKind::Conv, layer), new),
            // Padding comes first with `Shift`, and with one token there is none.
            (CacheProtocol::Shift, _) | (CacheProtocol::OneHot, None) => {
                let kept = self.op(path, last, &[rows]);
                self.output(next, kept);
            }
            (CacheProtocol::OneHot, Some(history)) => {
                let kept = self.op(path, Op::MatMul { transpose_b: false }, &[history, rows]);
                self.output(next, kept);
            }
        }
    }

    /// Attention over the layer's cache with the projections below `path`; `[tokens, hidden]` in and out.
    pub fn attention(
        &mut self,
        path: &str,
        layer: usize,
        x: ValueId,
        block: &AttentionBlock,
        names: &AttentionNames,
    ) -> ValueId {
        let cache = [block.kv_heads, self.shape.capacity, block.head_dim];
        let past_k = self.input(Port::Past(StateKind::Key, layer), &cache);
        let past_v = self.input(Port::Past(StateKind::Value, layer), &cache);
        let q = self.projected_heads(path, ["q_proj", names.q_norm], x, block.heads, block);
        let k = self.projected_heads(path, ["k_proj", names.k_norm], x, block.kv_heads, block);
        let v = self.linear(&format!("{path}.v_proj"), x);
        let v = self.split_heads(&format!("{path}.v_proj"), v, block.kv_heads, block.head_dim);

        let scale = 1.0 / (block.head_dim as f32).sqrt();
        let attended = self.op(path, Op::Attention { scale }, &[q, past_k, past_v, k, v, block.mask]);
        self.store(path, StateKind::Key, layer, past_k, k, block);
        self.store(path, StateKind::Value, layer, past_v, v, block);

        let rows = self.op(path, Op::Transpose { perm: vec![1, 0, 2] }, &[attended]);
        let width = block.heads * block.head_dim;
        let rows = self.op(path, Op::Reshape { shape: vec![self.shape.tokens, width] }, &[rows]);
        self.linear(&format!("{path}.{}", names.output), rows)
    }

    /// Queries or keys `[heads, tokens, head_dim]`: projected, normalised where the model does, turned.
    fn projected_heads(
        &mut self,
        path: &str,
        [projection, norm]: [&str; 2],
        x: ValueId,
        heads: usize,
        block: &AttentionBlock,
    ) -> ValueId {
        let name = format!("{path}.{projection}");
        let rows = self.linear(&name, x);
        let mut rows = self.split_heads(&name, rows, heads, block.head_dim);
        if let Some(eps) = block.qk_norm_eps {
            rows = self.rms_norm(&format!("{path}.{norm}"), rows, eps);
        }
        match block.rope {
            Some([cos, sin]) => self.op(&name, Op::Rope {}, &[rows, cos, sin]),
            None => rows,
        }
    }

    /// `[tokens, heads · head_dim]` to `[heads, tokens, head_dim]`.
    pub fn split_heads(&mut self, path: &str, x: ValueId, heads: usize, head_dim: usize) -> ValueId {
        let shape = vec![self.shape.tokens, heads, head_dim];
        let x = self.op(path, Op::Reshape { shape }, &[x]);
        self.op(path, Op::Transpose { perm: vec![1, 0, 2] }, &[x])
    }

    /// Lets the step's new rows `[kv_heads, tokens, head_dim]` leave as the protocol says.
    fn store(
        &mut self,
        path: &str,
        kind: StateKind,
        layer: usize,
        past: ValueId,
        new: ValueId,
        block: &AttentionBlock,
    ) {
        let StepShape { tokens, capacity } = self.shape;
        match self.protocol {
            CacheProtocol::Append => self.output(Port::New(kind, layer), new),
            CacheProtocol::Shift if tokens == capacity => self.output(Port::Next(kind, layer), new),
            CacheProtocol::Shift => {
                let slice = Op::Slice { axis: 1, start: tokens, len: capacity - tokens };
                let kept = self.op(path, slice, &[past]);
                let next = self.op(path, Op::Concat { axis: 1 }, &[kept, new]);
                self.output(Port::Next(kind, layer), next);
            }
            CacheProtocol::OneHot => {
                let mask = self.write_mask.expect("the family declares the write mask before its layers");
                let written = self.op(path, Op::Sum { axis: 2 }, &[mask]);
                let keep = self.op(path, Op::Affine { scale: -1.0, offset: 1.0 }, &[written]);
                let kept = self.op(path, Op::Mul {}, &[past, keep]);
                let placed = self.placed_rows(path, mask, new, block);
                let next = self.op(path, Op::Add {}, &[kept, placed]);
                self.output(Port::Next(kind, layer), next);
            }
        }
    }

    /// New rows at their places in a cache of zeros, `[kv_heads, capacity, head_dim]`.
    fn placed_rows(&mut self, path: &str, mask: ValueId, new: ValueId, block: &AttentionBlock) -> ValueId {
        let StepShape { tokens, capacity } = self.shape;
        if tokens == 1 {
            return self.op(path, Op::Mul {}, &[mask, new]);
        }
        let width = block.kv_heads * block.head_dim;
        let mask = self.op(path, Op::Reshape { shape: vec![capacity, tokens] }, &[mask]);
        let rows = self.op(path, Op::Transpose { perm: vec![1, 0, 2] }, &[new]);
        let rows = self.op(path, Op::Reshape { shape: vec![tokens, width] }, &[rows]);
        let placed = self.op(path, Op::MatMul { transpose_b: false }, &[mask, rows]);
        let placed = self.op(path, Op::Reshape { shape: vec![capacity, block.kv_heads, block.head_dim] }, &[placed]);
        self.op(path, Op::Transpose { perm: vec![1, 0, 2] }, &[placed])
    }
}
