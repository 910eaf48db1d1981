//! A model as the descriptions of its contexts: a graph per step shape and part, all shapes of a part in one context.

use std::collections::{BTreeMap, BTreeSet};

use super::description::Role;
use super::{Description, contract, emit};
use crate::back::chunk::{self, Chunk};
use crate::back::{Emitted, EmittedFile};
use crate::build::weight_types;
use crate::diag::{Code, Diagnostic, Result};
use crate::fit::Request;
use crate::front::{Checkpoint, ModelConfig};
use crate::ir::{Def, Graph, Type};
use crate::model::{Part, StepShape, llama};
use crate::quant::{self, Activation, Cache, Encodings, Method, Ranges, Scheme};
use crate::target;
use crate::tensor::{self, Tensor};

impl Chunk {
    /// The graph's name in the context binary: `model.<context>.s<tokens>`.
    pub fn name(&self) -> String {
        format!("model.{}.s{}", self.number, self.shape.tokens)
    }
}

/// The graph of every shape and part, shapes first, in the operations that the target takes.
///
/// Errors: shapes and parts that the model cannot take.
pub fn chunks(
    config: &ModelConfig,
    weights: &BTreeMap<String, Type>,
    request: &Request,
    parts: &[Part],
) -> Result<Vec<Chunk>> {
    chunk::chunks(config, weights, request, parts, &request.target.passes(&request.mends), contract)
}

/// What activations are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Activations<'a> {
    /// Half precision, which needs no calibration.
    Half,
    /// Whole numbers of that scheme, with the ranges of each part.
    Whole(Scheme, &'a [Ranges]),
}

impl Activations<'_> {
    /// What the numbers of a part's graph mean.
    fn encodings(&self, graph: &Graph, part: usize, weights: &BTreeMap<String, Tensor>) -> Result<Encodings> {
        match self {
            Activations::Half => {
                let (activation, cache, method) = (Activation::F16, Cache::F16, Method::MinMax);
                let scheme = Scheme { activation, cache, method, float_residual: false };
                quant::qualcomm(graph, &Ranges::default(), weights, &scheme)
            }
            Activations::Whole(scheme, ranges) => quant::qualcomm(graph, &ranges[part], weights, scheme),
        }
    }
}

/// What was exported.
#[derive(Debug)]
pub struct Exported<'a> {
    /// The graphs, shapes in the order that was asked for.
    pub graphs: Vec<Emitted>,
    /// The weights of the graphs and the table that tokens are embedded with.
    pub weights: Vec<(&'a str, &'a Tensor)>,
}

/// Describes the graphs of a model; the weights stay as the checkpoint has them.
///
/// Errors: shapes of which one takes no single token or two take as many; what [`chunks`], [`target::check()`] and
/// [`emit`] refuse.
pub fn export<'a>(
    checkpoint: &'a Checkpoint,
    request: &Request,
    parts: &[Part],
    activations: Activations<'_>,
) -> Result<Exported<'a>> {
    if checkpoint.config.reads_tokens() {
        check_shapes(&request.shapes)?;
    }
    let types = weight_types(&checkpoint.tensors);
    let tables =
        [Some(llama::EMBEDDING).filter(|_| checkpoint.config.reads_tokens()), checkpoint.config.positions_table()];
    let mut names: BTreeSet<String> = tables.into_iter().flatten().map(str::to_owned).collect();
    let mut graphs = Vec::new();
    for chunk in chunks(&checkpoint.config, &types, request, parts)? {
        let name = chunk.name();
        let encodings = activations.encodings(&chunk.graph, chunk.number, &checkpoint.tensors)?;
        let checked = target::check(chunk.graph, &request.target, &request.question)?;
        let description = emit(&checked, &checkpoint.tensors, &encodings, &name)?;
        let graph = checked.graph().clone();
        let weights = graph.values.iter().filter(|value| value.def == Def::Weight);
        names.extend(weights.map(|value| whole_name(&value.name).to_owned()));
        let file = Some((description_path(&description), EmittedFile::Qnn(description)));
        graphs.push(Emitted { shape: chunk.shape, graph, file, encodings: Some(encodings) });
    }
    let weights = checkpoint.tensors.iter().filter(|(name, _)| names.contains(*name));
    Ok(Exported { graphs, weights: weights.map(|(name, tensor)| (name.as_str(), tensor)).collect() })
}

/// The size that the context binary of each part will have: weights once, and what operations take. Within 2 % for models of a hundred
/// million weights or more.
pub fn forecast_bytes(graphs: &[Emitted], weights: &BTreeMap<String, Tensor>) -> Vec<u64> {
    let mut parts: Vec<(BTreeSet<&str>, u64)> = Vec::new();
    let mut part = 0;
    for (place, graph) in graphs.iter().enumerate() {
        part = if place > 0 && graphs[place - 1].shape == graph.shape { part + 1 } else { 0 };
        let Some((_, EmittedFile::Qnn(description))) = &graph.file else { continue };
        if parts.len() == part {
            parts.push((BTreeSet::new(), 0));
        }
        let (filters, nodes) = &mut parts[part];
        *nodes += description.nodes.len() as u64;
        filters.extend(description.tensors.iter().filter_map(|tensor| match &tensor.role {
            Role::Filter(name) | Role::FloatFilter(name) => Some(name.as_str()),
            Role::Input | Role::Output | Role::Native => None,
            Role::Numbers(_) | Role::Reals(_) | Role::Weight(_) => None,
        }));
    }
    let bytes = |name: &&str| tensor::weight(weights, name).map_or(0, |tensor| filter_bytes(&tensor));
    parts.iter().map(|(filters, nodes)| filters.iter().map(bytes).sum::<u64>() + nodes * NODE_BYTES).collect()
}

/// What an operation of a model takes in a context binary, what an output of a filter takes besides the filter as npuc stores it, and
/// the weights for which the larger operations take a byte. Source: fitted to the binaries of SmolLM2 (134 M weights, 2368 operations,
/// 83.2 MB) and of the shapes of Llama 3.2 1B (674 MB) and 3B (1743 MB), of which they give all three to 0.1 %. Toy models take less.
const NODE_BYTES: u64 = 3265;
const OUTPUT_BYTES: u64 = 13;
const WEIGHTS_A_BYTE: u64 = 236;

/// What a filter takes in a context binary.
fn filter_bytes(tensor: &Tensor) -> u64 {
    let outputs = tensor.shape.first().copied().unwrap_or(0) as u64;
    let weights = tensor.shape.elements().unwrap_or(0) as u64;
    tensor.byte_len() as u64 + outputs * OUTPUT_BYTES + weights / WEIGHTS_A_BYTE
}

/// Where a graph's description lies in a bundle.
fn description_path(description: &Description) -> String {
    format!("qnn/{}.json", description.name)
}

/// The weight that a name of some of its rows is about.
fn whole_name(name: &str) -> &str {
    name.split_once('[').map_or(name, |(whole, _)| whole)
}

/// The runner feeds prompts in the larger steps and tokens in the one of a single token; names tell them apart by tokens.
fn check_shapes(shapes: &[StepShape]) -> Result<()> {
    let mut tokens: Vec<usize> = shapes.iter().map(|shape| shape.tokens).collect();
    tokens.sort_unstable();
    if tokens.first() == Some(&1) && tokens.windows(2).all(|pair| pair[0] != pair[1]) {
        return Ok(());
    }
    let have: Vec<String> = shapes.iter().map(StepShape::to_string).collect();
    Err(Diagnostic::error(Code::BadShape, "a Qualcomm bundle cannot have these step shapes")
        .need("one shape of a single token, and others of more tokens each, e.g. 32t2048c,1t2048c")
        .have(have.join(","))
        .into())
}
