//! Rewriting graphs. A pass only reads a graph and returns patches, each with its reason, and perhaps other ports; [`apply`] is the
//! one place that makes a new graph of them, and [`run`] verifies every graph that a pass leaves.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::diag::{Code, Diagnostic, Result};
use crate::ir::infer::infer;
use crate::ir::verify::verify;
use crate::ir::{Def, Graph, Op, Output, Type, Value, ValueId};
use crate::tensor::Shape;

mod columns;
mod conv;
mod decompose;
mod heads;
mod pieces;
mod range;
mod rank;
mod simplify;

pub(crate) use range::SWIGLU_DIVISOR;

macro_rules! passes {
    ($(#[doc = $doc:literal] $name:ident $text:literal,)+) => {
        /// A rewrite that keeps the meaning of every output.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Pass { $(#[doc = $doc] $name,)+ }

        impl Pass {
            /// Every pass, in the order of the enum.
            pub const ALL: &'static [Pass] = &[$(Pass::$name,)+];

            /// The name used on the command line, e.g. `decompose-rope`.
            pub const fn name(self) -> &'static str {
                match self { $(Pass::$name => $text,)+ }
            }

            /// What it does, in one line.
            pub const fn meaning(self) -> &'static str {
                match self { $(Pass::$name => $doc.trim_ascii(),)+ }
            }
        }
    };
}

passes! {
    /// Drops what changes nothing or is never used, and computes equal things once.
    Simplify "simplify",
    /// Writes attention as two matrix products around a softmax.
    DecomposeAttention "decompose-attention",
    /// Writes attention as two matrix products around a softmax for every head.
    SplitAttention "split-attention",
    /// Writes short convolutions as products of rows and taps and their sum.
    DecomposeShortConv "decompose-short-conv",
    /// Writes rms_norm as a mean of squares, a reciprocal root and two products.
    DecomposeRmsNorm "decompose-rms-norm",
    /// Writes layer_norm as two means, a reciprocal root, products and a sum.
    DecomposeLayerNorm "decompose-layer-norm",
    /// Writes rope as products of the two halves of every row.
    DecomposeRope "decompose-rope",
    /// Writes softmax as an exponential over its sum.
    DecomposeSoftmax "decompose-softmax",
    /// Writes silu as a product with a sigmoid.
    DecomposeSilu "decompose-silu",
    /// Writes gelu as a polynomial times an exponential, within 4e-7 of its operand.
    DecomposeGelu "decompose-gelu",
    /// Writes all of attention, short convolutions, norms, rope, softmax, silu and gelu in plain operations.
    Decompose "decompose",
    /// Writes rms_norm over rows that are divided by their largest magnitude first, so that no square leaves binary16.
    RescaleRmsNorm "rescale-rms-norm",
    /// Divides the SwiGLU product by 16 and multiplies its projection by it, which moves what leaves binary16.
    GuardSwiglu "guard-swiglu",
    /// Writes every projection as a convolution of single pixels.
    LinearToConv "linear-to-conv",
    /// Lets caches of keys that enter and leave whole be `[kv_heads, head_dim, capacity]`, so that scores need no transposition.
    KeysAsColumns "keys-as-columns",
    /// Multiplies with each piece of a joined value where products alone read it, e.g. past and new rows of a cache.
    SplitJoinedProducts "split-joined-products",
    /// Joins two axes around operations of rank 4 that do not tell them apart, so that their rank is 3.
    JoinAxes "join-axes",
}

impl Serialize for Pass {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Pass {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Pass, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Pass::ALL.iter().copied().find(|pass| pass.name() == name);
        known.ok_or_else(|| serde::de::Error::custom(format!("there is no pass `{name}`")))
    }
}

impl Pass {
    /// The pass of that [`Pass::name`].
    ///
    /// # Errors
    /// [`Code::BadArgument`] with the names that there are.
    pub fn parse(name: &str) -> Result<Pass> {
        Pass::ALL.iter().copied().find(|pass| pass.name() == name).ok_or_else(|| {
            let known: Vec<&str> = Pass::ALL.iter().map(|pass| pass.name()).collect();
            Diagnostic::error(Code::BadArgument, format!("there is no pass `{name}`")).need(known.join(", ")).into()
        })
    }

    /// Whether the pass rewrites what decompositions leave, and so has to run after them.
    pub const fn follows_decomposition(self) -> bool {
        match self {
            Pass::JoinAxes | Pass::LinearToConv | Pass::KeysAsColumns | Pass::SplitJoinedProducts => true,
            Pass::Simplify
            | Pass::RescaleRmsNorm
            | Pass::GuardSwiglu
            | Pass::DecomposeAttention
            | Pass::SplitAttention
            | Pass::DecomposeShortConv
            | Pass::DecomposeRmsNorm
            | Pass::DecomposeLayerNorm
            | Pass::DecomposeGelu
            | Pass::DecomposeRope
            | Pass::DecomposeSoftmax
            | Pass::DecomposeSilu
            | Pass::Decompose => false,
        }
    }

    /// What the pass would change in a verified graph.
    fn changes(self, graph: &Graph) -> Changes {
        let patches = match self {
            Pass::Simplify => simplify::patches(graph),
            Pass::DecomposeAttention => decompose::patches(graph, Some("attention")),
            Pass::SplitAttention => heads::split_attention(graph),
            Pass::DecomposeShortConv => decompose::patches(graph, Some("short_conv")),
            Pass::DecomposeLayerNorm => decompose::patches(graph, Some("layer_norm")),
            Pass::DecomposeGelu => decompose::patches(graph, Some("gelu")),
            Pass::DecomposeRmsNorm => decompose::patches(graph, Some("rms_norm")),
            Pass::DecomposeRope => decompose::patches(graph, Some("rope")),
            Pass::DecomposeSoftmax => decompose::patches(graph, Some("softmax")),
            Pass::DecomposeSilu => decompose::patches(graph, Some("silu")),
            Pass::Decompose => decompose::patches(graph, None),
            Pass::RescaleRmsNorm => range::rescale_rms_norm(graph),
            Pass::GuardSwiglu => range::guard_swiglu(graph),
            Pass::LinearToConv => conv::linear_to_conv(graph),
            Pass::JoinAxes => rank::join_axes(graph),
            Pass::SplitJoinedProducts => pieces::split_joined_products(graph),
            Pass::KeysAsColumns => return columns::keys_as_columns(graph),
        };
        Changes { patches, ports: Vec::new() }
    }
}

/// An operand inside a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A value of the graph, defined before the patch's target.
    Old(ValueId),
    /// The result of the patch's operation of that index.
    New(usize),
}

/// The operations that a patch adds, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewOps(Vec<(Op, Vec<Source>)>);

impl NewOps {
    /// Adds an operation and gives its result.
    pub fn op(&mut self, op: Op, args: &[Source]) -> Source {
        self.0.push((op, args.to_vec()));
        Source::New(self.0.len() - 1)
    }
}

/// One change: an operation's result is taken from somewhere else.
#[derive(Clone, Debug, PartialEq)]
pub struct Patch {
    /// Why, for reports.
    pub reason: String,
    /// The operation that is replaced.
    pub target: ValueId,
    /// New operations, which take the place and the path of the target.
    pub ops: NewOps,
    /// What takes the target's place in its users; of the same type.
    pub result: Source,
}

impl Patch {
    /// Lets the users of `target` use the earlier value `to`.
    pub fn redirect(target: ValueId, to: ValueId, reason: String) -> Patch {
        Patch { reason, target, ops: NewOps::default(), result: Source::Old(to) }
    }

    /// Computes `target` by the operations that `build` adds; `build` returns the result.
    pub fn compute(target: ValueId, reason: String, build: impl FnOnce(&mut NewOps) -> Source) -> Patch {
        let mut ops = NewOps::default();
        let result = build(&mut ops);
        Patch { reason, target, ops, result }
    }
}

/// An input port that gets other extents of as many elements: whoever fills it lays the numbers out that way.
#[derive(Clone, Debug, PartialEq)]
pub struct PortChange {
    /// The input.
    pub port: ValueId,
    /// Its extents.
    pub shape: Shape,
}

/// What a pass changes at once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Operations that are replaced, each once.
    pub patches: Vec<Patch>,
    /// Input ports that change with them. Where there are any, an output that no operation reads may change its extents too.
    pub ports: Vec<PortChange>,
}

/// Rounds after which a pass that still finds something to do is stopped. Patches of one round apply to the
/// whole graph, so that chains shrink by half or more in each.
const MAX_ROUNDS: usize = 64;

/// Runs the passes in order, each until it finds nothing more to do, and verifies the graph before the
/// first and after each. `observer` is then told the pass, the graph it left and the reasons of its changes.
///
/// # Errors
/// What [`verify`] finds, and [`Code::IrInvalid`] for a rewrite that cannot be typed (a new value would be
/// too large to address) or a pass that does not come to an end.
pub fn run(graph: Graph, passes: &[Pass], mut observer: impl FnMut(Pass, &Graph, &[String])) -> Result<Graph> {
    verify(&graph)?;
    let mut graph = graph;
    for &pass in passes {
        let mut reasons = Vec::new();
        graph = to_fixpoint(graph, pass, &mut reasons)?;
        verify(&graph)?;
        observer(pass, &graph, &reasons);
    }
    Ok(graph)
}

fn to_fixpoint(mut graph: Graph, pass: Pass, reasons: &mut Vec<String>) -> Result<Graph> {
    for _ in 0..MAX_ROUNDS {
        let changes = pass.changes(&graph);
        let next = apply(&graph, &changes)?;
        reasons.extend(changes.patches.iter().map(|patch| patch.reason.clone()));
        if changes.patches.is_empty() {
            let unused = graph.values.len() - next.values.len();
            reasons.extend((unused > 0).then(|| format!("{unused} values were never used")));
            return Ok(next);
        }
        graph = next;
    }
    Err(fault(format!("the pass `{}` finds no end after {MAX_ROUNDS} rounds", pass.name())))
}

/// The verified `graph` with all `changes`, whose patches must replace different operations. Values that no output
/// needs are left out, but inputs stay: they are the interface.
///
/// # Errors
/// [`Code::IrInvalid`] if a patch replaces no operation, uses a value that is not defined before its
/// target, or gives a result of another type; if a port that changes is no input or gets other elements.
pub fn apply(graph: &Graph, changes: &Changes) -> Result<Graph> {
    let ports = changed_ports(graph, &changes.ports)?;
    let leaves_only = if ports.is_empty() { Vec::new() } else { leaving(graph) };
    let mut by_target: Vec<Option<&Patch>> = vec![None; graph.values.len()];
    for patch in &changes.patches {
        let place = by_target.get_mut(patch.target.index());
        let place = place.ok_or_else(|| fault(format!("a patch replaces {}, which is not defined", patch.target)))?;
        if place.replace(patch).is_some() {
            return Err(fault(format!("two patches replace {}", patch.target)));
        }
    }
    let mut values: Vec<Value> = Vec::with_capacity(graph.values.len());
    // Where each value of the old graph is in the new one.
    let mut moved: Vec<ValueId> = Vec::with_capacity(graph.values.len());
    for ((id, value), patch) in graph.ids().zip(&graph.values).zip(by_target) {
        moved.push(match (&value.def, patch) {
            (Def::Op { .. }, Some(patch)) => {
                let may_change = leaves_only.get(id.index()).is_some_and(|&leaves| leaves);
                splice(&mut values, &moved, value, patch, may_change)?
            }
            (Def::Input, None) if ports.contains_key(&id) => {
                let ty = Type { dtype: value.ty.dtype, shape: (*ports[&id]).clone() };
                push(&mut values, Value { ty, ..value.clone() })?
            }
            (Def::Input | Def::Weight, Some(patch)) => {
                return Err(fault(format!("a patch replaces {}, which is no operation", patch.target)));
            }
            (Def::Input | Def::Weight, None) => push(&mut values, value.clone())?,
            (Def::Op { op, args }, None) => {
                let args = args.iter().map(|&arg| lookup(&moved, arg)).collect::<Result<_>>()?;
                push(&mut values, Value { def: Def::Op { op: op.clone(), args }, ..value.clone() })?
            }
        });
    }
    let outputs = graph.outputs.iter().map(|output| {
        let value = lookup(&moved, output.value)?;
        Ok(Output { name: output.name.clone(), value })
    });
    let outputs = outputs.collect::<Result<_>>()?;
    Ok(without_unused(Graph { name: graph.name.clone(), values, outputs }))
}

/// The new extents of the ports that change.
fn changed_ports<'a>(graph: &Graph, ports: &'a [PortChange]) -> Result<BTreeMap<ValueId, &'a Shape>> {
    for PortChange { port, shape } in ports {
        let value = graph.values.get(port.index()).filter(|value| value.def == Def::Input);
        let value = value.ok_or_else(|| fault(format!("{port} is no input that could change")))?;
        if value.ty.shape.elements() != shape.elements() {
            return Err(fault(format!("{port} of type {} cannot become {shape}", value.ty)));
        }
    }
    Ok(ports.iter().map(|change| (change.port, &change.shape)).collect())
}

/// For each value, whether no operation reads it.
fn leaving(graph: &Graph) -> Vec<bool> {
    let mut leaves = vec![true; graph.values.len()];
    for value in &graph.values {
        if let Def::Op { op: _, args } = &value.def {
            args.iter().for_each(|arg| leaves[arg.index()] = false);
        }
    }
    leaves
}

/// Appends the operations of `patch` and gives the value that takes the target's place; of another shape if it `may_change`.
fn splice(
    values: &mut Vec<Value>,
    moved: &[ValueId],
    target: &Value,
    patch: &Patch,
    may_change: bool,
) -> Result<ValueId> {
    let mut new: Vec<ValueId> = Vec::with_capacity(patch.ops.0.len());
    let find = |new: &[ValueId], source: Source| match source {
        Source::Old(id) => lookup(moved, id),
        Source::New(i) => new.get(i).copied().ok_or_else(|| fault(format!("a patch uses its operation {i} too early"))),
    };
    for (op, args) in &patch.ops.0 {
        let args = args.iter().map(|&arg| find(&new, arg)).collect::<Result<Vec<ValueId>>>()?;
        let types: Vec<&Type> = args.iter().map(|arg| &values[arg.index()].ty).collect();
        let ty = infer(op, &types).map_err(|why| {
            Diagnostic::error(Code::IrInvalid, why)
                .subject(&target.name)
                .help(format!("this came from: {}", patch.reason))
        })?;
        let def = Def::Op { op: op.clone(), args };
        new.push(push(values, Value { name: target.name.clone(), ty, def })?);
    }
    let result = find(&new, patch.result)?;
    let ty = &values[result.index()].ty;
    let reshaped = may_change && ty.dtype == target.ty.dtype && ty.shape.elements() == target.ty.shape.elements();
    if *ty != target.ty && !reshaped {
        return Err(fault(format!("a patch replaces {} of type {} by {ty}", patch.target, target.ty)));
    }
    Ok(result)
}

fn lookup(moved: &[ValueId], id: ValueId) -> Result<ValueId> {
    moved.get(id.index()).copied().ok_or_else(|| fault(format!("{id} is used before it is defined")))
}

fn push(values: &mut Vec<Value>, value: Value) -> Result<ValueId> {
    let id = u32::try_from(values.len()).map_err(|_| fault("a graph holds fewer than 2^32 values".into()))?;
    values.push(value);
    Ok(ValueId(id))
}

fn without_unused(graph: Graph) -> Graph {
    let mut used: Vec<bool> = graph.values.iter().map(|value| value.def == Def::Input).collect();
    for output in &graph.outputs {
        used[output.value.index()] = true;
    }
    for (i, value) in graph.values.iter().enumerate().rev() {
        if let (true, Def::Op { op: _, args }) = (used[i], &value.def) {
            args.iter().for_each(|arg| used[arg.index()] = true);
        }
    }
    let mut count = 0;
    let moved: Vec<ValueId> = used
        .iter()
        .map(|&used| {
            count += u32::from(used);
            ValueId(count.saturating_sub(1))
        })
        .collect();
    let values = graph.values.into_iter().zip(used).filter_map(|(mut value, used)| {
        if let Def::Op { op: _, args } = &mut value.def {
            args.iter_mut().for_each(|arg| *arg = moved[arg.index()]);
        }
        used.then_some(value)
    });
    let values = values.collect();
    let outputs = graph.outputs.into_iter().map(|output| Output { value: moved[output.value.index()], ..output });
    Graph { name: graph.name, values, outputs: outputs.collect() }
}

/// The operation and its place in the model, for reasons.
fn describe(graph: &Graph, id: ValueId) -> String {
    let value = graph.value(id);
    let Def::Op { op, .. } = &value.def else { return value.name.clone() };
    if value.name.is_empty() {
        format!("`{}` {id}", op.name())
    } else {
        format!("`{}` {id} of {}", op.name(), value.name)
    }
}

fn fault(message: String) -> crate::diag::Error {
    Diagnostic::error(Code::IrInvalid, message).into()
}

#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod tests;
