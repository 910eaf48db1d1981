//! The memory ledger: what a chunk's weights, state, ports and activations take, from the real placement of its
//! values, and which limit is nearest.

use std::collections::BTreeSet;

use serde::Serialize;

use super::check::Question;
use super::misfit::Place;
use super::number::Precision;
use super::rule::{Cost, Limit, Per, Remedy, Rule};
use super::{Chip, Misfit};
use crate::back::BackEnd;
use crate::exec;
use crate::ir::{Def, Graph, Value};
use crate::model::{Port, StateKind};

/// What one graph of a chunk needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GraphMemory {
    /// Its name.
    pub graph: String,
    /// Its operations.
    pub operations: usize,
    /// Its input and output ports.
    pub ports: usize,
    /// Bytes of its ports, without the caches that enter.
    pub port_bytes: u64,
    /// Bytes of the buffers of its intermediate values, each used again once its value is dead.
    pub activation_bytes: u64,
}

/// What one chunk needs: one graph for each step shape over the same weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ChunkMemory {
    /// Bytes of its weights, stored once.
    pub weights_bytes: u64,
    /// Bytes of its caches, held once between steps.
    pub state_bytes: u64,
    /// Its graphs.
    pub graphs: Vec<GraphMemory>,
}

impl ChunkMemory {
    /// Bytes with every graph loaded.
    pub fn total_bytes(&self) -> u64 {
        let graphs = self.graphs.iter().map(|graph| graph.port_bytes.saturating_add(graph.activation_bytes));
        graphs.fold(self.weights_bytes.saturating_add(self.state_bytes), u64::saturating_add)
    }

    /// Bytes of the largest graph with its weights.
    pub fn graph_bytes(&self) -> u64 {
        let largest = self.graphs.iter().map(|graph| graph.activation_bytes).max().unwrap_or(0);
        self.weights_bytes.saturating_add(largest)
    }

    fn bytes(&self, per: Per) -> Option<u64> {
        match per {
            Per::File => Some(self.weights_bytes),
            Per::Graph => Some(self.graph_bytes()),
            Per::Context => Some(self.total_bytes()),
            Per::Tensor => None,
        }
    }
}

/// Measures one chunk: its graphs for each step shape, all over the same weights and of one capacity.
pub fn measure(graphs: &[Graph], chip: &Chip, precision: &Precision) -> ChunkMemory {
    let (element, port_element) = (precision.activation_bytes(), chip.port_bytes(precision));
    let port = |shape: &[usize]| shape.iter().fold(port_element, |bytes, &extent| bytes.saturating_mul(extent as u64));
    let is_past = |name: &str| matches!(name.parse(), Ok(Port::Past(..) | Port::Heard(..)));
    let largest = |of: &dyn Fn(&Graph) -> u64| graphs.iter().map(of).max().unwrap_or(0);
    let state = |graph: &Graph| {
        let past = graph.values.iter().filter(|value| value.def == Def::Input && is_past(&value.name));
        past.map(|value| port(&value.ty.shape)).fold(0, u64::saturating_add)
    };
    let memory = |graph: &Graph| {
        let ops = graph.values.iter().filter(|value| matches!(value.def, Def::Op { .. }));
        let inputs: Vec<_> = graph.values.iter().filter(|value| value.def == Def::Input).collect();
        let entering = inputs.iter().filter(|value| !is_past(&value.name)).map(|value| port(&value.ty.shape));
        let leaving = graph.outputs.iter().map(|output| port(&graph.value(output.value).ty.shape));
        GraphMemory {
            graph: graph.name.clone(),
            operations: ops.count(),
            ports: inputs.len() + graph.outputs.len(),
            port_bytes: entering.chain(leaving).fold(0, u64::saturating_add),
            activation_bytes: exec::buffer_bytes(graph) / size_of::<f32>() as u64 * element,
        }
    };
    ChunkMemory {
        weights_bytes: largest(&|graph| weights_bytes(graph, precision)),
        state_bytes: largest(&state),
        graphs: graphs.iter().map(memory).collect(),
    }
}

/// Bytes of a graph's weights: matrices of projections in the precision's format, all else as activations
/// are, in f32 where those are integers.
fn weights_bytes(graph: &Graph, precision: &Precision) -> u64 {
    let matrices: BTreeSet<&str> = matrices(graph).into_iter().collect();
    let other = if precision.activation.is_float() { precision.activation_bytes() } else { 4 };
    let weights = graph.values.iter().filter(|value| value.def == Def::Weight);
    let bytes = weights.map(|value| match matrices.contains(value.name.as_str()) {
        true => precision.weight_format(value.ty.dtype).bytes(&value.ty.shape).unwrap_or(u64::MAX),
        false => (value.ty.shape.elements().unwrap_or(usize::MAX) as u64).saturating_mul(other),
    });
    bytes.fold(0, u64::saturating_add)
}

/// The names of the weights that are matrices of projections.
pub(crate) fn matrices(graph: &Graph) -> Vec<&str> {
    let matrix = |value: &Value| match &value.def {
        Def::Op { op, args } if op.is_projection() => args.get(1).copied(),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    let names = graph.values.iter().filter_map(matrix).map(|weight| graph.value(weight));
    names.filter(|value| value.def == Def::Weight).map(|value| value.name.as_str()).collect()
}

/// The rules that one chunk breaks: counts and bytes. `graphs` are those that were measured.
pub fn misfits(memory: &ChunkMemory, graphs: &[Graph], chip: &Chip, question: &Question) -> Vec<Misfit> {
    let applies = |rule: &&Rule| rule.when.holds(&question.precision, None) && !is_lifted(rule, chip, question);
    chip.rules.iter().filter(applies).flat_map(|rule| broken(rule, memory, graphs, chip)).collect()
}

/// Weights behind the flatbuffer are not what a limit on the flatbuffer counts.
fn is_lifted(rule: &Rule, chip: &Chip, question: &Question) -> bool {
    let of_file = matches!(rule.limit, Limit::Bytes { per: Per::File, .. });
    of_file && question.outer_buffers && chip.back_end == Some(BackEnd::Tflite)
}

fn broken(rule: &Rule, memory: &ChunkMemory, graphs: &[Graph], chip: &Chip) -> Vec<Misfit> {
    let smaller = || match graphs.iter().map(layers).max() {
        Some(1) => Remedy::new(Cost::Option, "weights in fewer bits: a chunk of one layer cannot be cut further"),
        Some(_) | None => Remedy::new(Cost::Option, "cut the model into more chunks").option("--chunks"),
    };
    let count = |what: &str, have: usize, max: usize, graph: &Graph, remedies| {
        let message = format!("a graph has {have} {what}, more than the target takes");
        (have > max).then(|| misfit(rule, chip, graph, message, format!("{have} {what}"), remedies))
    };
    let pairs = memory.graphs.iter().zip(graphs);
    match &rule.limit {
        Limit::OpCount { max } => pairs
            .filter_map(|(m, graph)| count("operations", m.operations, max.get(), graph, vec![smaller()]))
            .collect(),
        Limit::BindingCount { max } => {
            let packed =
                Remedy::new(Cost::Rewrite, "pack the caches of all layers into one port each for keys and values");
            let remedies = vec![smaller(), packed];
            pairs.filter_map(|(m, graph)| count("ports", m.ports, max.get(), graph, remedies.clone())).collect()
        }
        Limit::Bytes { per, max } => {
            let over = memory.bytes(*per).filter(|&bytes| bytes > max.get());
            let misfit = over.zip(graphs.first()).map(|(bytes, graph)| {
                let message = format!("a chunk needs more bytes than {} allows", rule.name);
                let mut remedies = vec![smaller()];
                if *per != Per::File {
                    remedies.push(Remedy::new(Cost::Option, "a shorter context").option("--shapes"));
                }
                let actual = format!("{bytes} bytes: {}", parts(memory));
                misfit(rule, chip, graph, message, actual, remedies)
            });
            misfit.into_iter().collect()
        }
        // These are measured on the graph itself.
        Limit::Dimension { .. }
        | Limit::Rank { .. }
        | Limit::Batch { .. }
        | Limit::HeadDim { .. }
        | Limit::Multiple { .. }
        | Limit::GroupDivides {}
        | Limit::OnChip { .. }
        | Limit::Accumulator { .. }
        | Limit::Fp16Range { .. }
        | Limit::Generation { .. } => Vec::new(),
    }
}

/// The layers whose states a graph has.
fn layers(graph: &Graph) -> usize {
    let past = |value: &&Value| matches!(value.name.parse(), Ok(Port::Past(StateKind::Key | StateKind::Conv, _)));
    graph.values.iter().filter(|value| value.def == Def::Input).filter(past).count()
}

fn parts(memory: &ChunkMemory) -> String {
    let rest = memory.total_bytes() - memory.weights_bytes - memory.state_bytes;
    format!("weights {}, state {}, ports and activations {rest}", memory.weights_bytes, memory.state_bytes)
}

fn misfit(
    rule: &Rule,
    chip: &Chip,
    graph: &Graph,
    message: String,
    actual: String,
    mut remedies: Vec<Remedy>,
) -> Misfit {
    remedies.extend(rule.remedies.iter().cloned());
    let first_line = format!("graph {:?} {{", graph.name);
    Misfit {
        severity: rule.severity,
        code: rule.limit.code(),
        rule: rule.name.0.clone(),
        message,
        unit: chip.main_unit().name.0.clone(),
        limit: rule.limit.to_string(),
        actual,
        why: rule.why.as_ref().map(ToString::to_string),
        source: rule.source.0.clone(),
        grade: rule.grade,
        remedies,
        places: vec![Place { graph: graph.name.clone(), line: 1, path: graph.name.clone(), text: first_line }],
    }
}

/// A limit of bytes or counts and how near a chunk comes to it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Usage {
    /// The rule's name.
    pub rule: String,
    /// What is allowed.
    pub limit: String,
    /// The chunk that comes nearest.
    pub chunk: usize,
    /// What it uses.
    pub used: u64,
    /// What it may use.
    pub max: u64,
}

impl Usage {
    /// The share of the limit that is used.
    pub fn share(&self) -> f64 {
        self.used as f64 / self.max as f64
    }
}

/// The limit on bytes or counts that binds: the one of which some chunk uses the largest share.
pub fn binding(chunks: &[ChunkMemory], chip: &Chip, precision: &Precision) -> Option<Usage> {
    let usage = |rule: &Rule, chunk: usize, memory: &ChunkMemory| {
        let largest = |of: fn(&GraphMemory) -> usize| memory.graphs.iter().map(of).max().map(|count| count as u64);
        let (used, max) = match &rule.limit {
            Limit::Bytes { per, max } => (memory.bytes(*per)?, max.get()),
            Limit::OpCount { max } => (largest(|graph| graph.operations)?, max.get() as u64),
            Limit::BindingCount { max } => (largest(|graph| graph.ports)?, max.get() as u64),
            Limit::Dimension { .. }
            | Limit::Rank { .. }
            | Limit::Batch { .. }
            | Limit::HeadDim { .. }
            | Limit::Multiple { .. }
            | Limit::GroupDivides {}
            | Limit::OnChip { .. }
            | Limit::Accumulator { .. }
            | Limit::Fp16Range { .. }
            | Limit::Generation { .. } => return None,
        };
        Some(Usage { rule: rule.name.0.clone(), limit: rule.limit.to_string(), chunk, used, max })
    };
    let rules = chip.rules.iter().filter(|rule| rule.when.holds(precision, None));
    let all =
        rules.flat_map(|rule| chunks.iter().enumerate().filter_map(move |(chunk, memory)| usage(rule, chunk, memory)));
    all.max_by(|a, b| a.share().total_cmp(&b.share()))
}
