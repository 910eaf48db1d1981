//! The proof of a mend: the model before and after it, computed on the host over the same inputs.
//!
//! Without weights at hand the model gets random ones that share one stretch of memory as large as the largest of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use half::f16;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use serde::Serialize;

use super::Applied;
use crate::build::weight_types;
use crate::diag::{Code, Diagnostic, Result};
use crate::exec::Executor;
use crate::fit::{Request, Subject};
use crate::front::ModelConfig;
use crate::ir::{Def, Graph};
use crate::model::{self, Part, Port, Role, StepShape};
use crate::target::Mend;
use crate::tensor::{DType, Tensor, byte_len};

/// The most tokens, cache rows and layers that a proof computes; the rewrites do not depend on their number.
const MOST_TOKENS: usize = 16;
const MOST_ROWS: usize = 64;
const MOST_LAYERS: usize = 4;
/// Random weights of a model without its own take no more memory than this.
const MOST_POOL_BYTES: usize = 4 << 30;
/// How far a rewrite that reorders roundings may lead away, as a share of the largest number.
const TOLERANCE: f32 = 1e-4;

/// What a mend changed in the numbers of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Proof {
    /// The mend.
    pub mend: Mend,
    /// The steps that were computed.
    pub shapes: Vec<String>,
    /// The first layers, before the head, that were computed.
    pub layers: usize,
    /// The largest difference of any output.
    pub max_abs: f32,
    /// The largest magnitude of any output.
    pub largest: f32,
    /// Whether every output is the same to the last bit.
    pub identical: bool,
}

/// Proves each mend of `request` that changes graphs against the form before it, on the host. `weights` are the
/// checkpoint's, where there is one; random ones take their place.
///
/// # Errors
/// [`Code::Unfaithful`] for a split that is not bit-identical, or another rewrite that changes more than rounding;
/// [`Code::OutOfMemory`] for a model whose random weights are too large.
pub fn prove(
    config: &ModelConfig,
    weights: Option<&BTreeMap<String, Tensor>>,
    request: &Request,
    applied: &[Applied],
) -> Result<Vec<Proof>> {
    let rewrites: Vec<&Mend> = applied.iter().map(|applied| &applied.mend).filter(|mend| is_rewrite(mend)).collect();
    if rewrites.is_empty() {
        return Ok(Vec::new());
    }
    let config = &first_layers(config);
    let weights = match weights {
        Some(weights) => weights.iter().map(|(name, tensor)| (name.clone(), tensor.materialized())).collect(),
        None => random_weights(config)?,
    };
    let before: Vec<Mend> = request.mends.iter().filter(|mend| !rewrites.contains(mend)).cloned().collect();
    // An encoder has one shape.
    let shapes = if config.reads_tokens() { proof_shapes(&request.shapes) } else { request.shapes.clone() };
    let mut form = Request { mends: before, shapes, ..request.clone() };
    let mut last = outputs(config, &weights, &form)?;
    let mut proofs = Vec::with_capacity(rewrites.len());
    for mend in rewrites {
        form.mends.push(mend.clone());
        let now = outputs(config, &weights, &form)?;
        let proof = Proof { layers: model::layers(config), ..compare(mend, &form.shapes, &last, &now) };
        refuse_unfaithful(&proof)?;
        proofs.push(proof);
        last = now;
    }
    Ok(proofs)
}

/// The model with its first layers only.
fn first_layers(config: &ModelConfig) -> ModelConfig {
    config.clone().with_layers(config.layers().min(MOST_LAYERS))
}

fn is_rewrite(mend: &Mend) -> bool {
    match mend {
        Mend::Pass(_) | Mend::SplitHead(_) => true,
        // A flag changes no graph, and segments compute what the whole computes, operation by operation.
        Mend::Flag(_) | Mend::Place(_) => false,
    }
}

/// Whether nothing but the bits themselves is good enough.
fn is_exact(mend: &Mend) -> bool {
    matches!(mend, Mend::SplitHead(_))
}

fn refuse_unfaithful(proof: &Proof) -> Result<()> {
    let Proof { mend, max_abs, largest, identical, .. } = proof;
    let (good, need) = match is_exact(mend) {
        true => (*identical, "the same numbers to the last bit".to_owned()),
        // A difference that is no number is none that is allowed.
        false => {
            (*max_abs <= TOLERANCE * largest.max(1.0), format!("a difference of at most {TOLERANCE} of the largest"))
        }
    };
    if good {
        return Ok(());
    }
    Err(Diagnostic::error(Code::Unfaithful, "a mended graph does not compute what it computed before")
        .subject(mend.to_string())
        .need(need)
        .have(format!("a difference of {max_abs:e}, the largest number being {largest:e}"))
        .help("use --no-fix, and tell npuc's makers")
        .into())
}

/// The largest and the smallest step, no larger than a proof needs.
fn proof_shapes(shapes: &[StepShape]) -> Vec<StepShape> {
    let tokens = shapes.iter().map(|shape| shape.tokens);
    let most = tokens.clone().max().unwrap_or(1).min(MOST_TOKENS);
    let least = tokens.min().unwrap_or(1).min(MOST_TOKENS);
    let capacity = shapes.iter().map(|shape| shape.capacity).min().unwrap_or(1).min(MOST_ROWS).max(most);
    let mut shapes = vec![StepShape { tokens: most, capacity }, StepShape { tokens: least, capacity }];
    shapes.dedup();
    shapes
}

/// The outputs of every shape by port, with the parts of a head joined.
type Outputs = Vec<BTreeMap<String, Vec<f32>>>;

fn outputs(config: &ModelConfig, weights: &BTreeMap<String, Tensor>, request: &Request) -> Result<Outputs> {
    let subject = Subject::over(config, weight_types(weights), request).plain();
    let graphs = subject.lowered(&Part::whole(model::layers(config)), &request.shapes)?;
    let run = |(graph, shape): (&Graph, &StepShape)| {
        let inputs: Vec<Vec<f32>> = graph
            .values
            .iter()
            .filter(|value| value.def == Def::Input)
            .map(|value| port_content(&value.name, &value.ty.shape, request.target.hidden_mask as f32))
            .collect();
        let mut executor = Executor::new(graph, weights, &[])?;
        executor.run(&[&inputs]);
        let ports: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
        let results = ports.into_iter().enumerate().map(|(port, name)| (name, executor.output(port).to_vec()));
        Ok(joined_head(results.collect(), shape.tokens, config.vocab()))
    };
    graphs.iter().zip(&request.shapes).map(run).collect()
}

/// The parts of the logits as one, without their padding.
fn joined_head(results: Vec<(String, Vec<f32>)>, tokens: usize, vocab: usize) -> BTreeMap<String, Vec<f32>> {
    let is_part = |name: &str| matches!(name.parse(), Ok(Port::LogitsPart(_)));
    let (parts, mut others): (Vec<_>, BTreeMap<_, _>) = {
        let (parts, others): (Vec<_>, Vec<_>) = results.into_iter().partition(|(name, _)| is_part(name));
        (parts, others.into_iter().collect())
    };
    if !parts.is_empty() {
        let row = |token: usize| {
            let of = move |(_, scores): &(String, Vec<f32>)| {
                let rows = scores.len() / tokens;
                scores[token * rows..][..rows].to_vec()
            };
            parts.iter().flat_map(of).take(vocab).collect::<Vec<f32>>()
        };
        others.insert(Port::Logits.to_string(), (0..tokens).flat_map(row).collect());
    }
    others
}

/// What enters a port, the same for the same name and shape: a causal mask over a full cache, cosines and sines of
/// random angles, random numbers else.
fn port_content(name: &str, shape: &[usize], hidden: f32) -> Vec<f32> {
    let count: usize = shape.iter().product();
    let mut random = ChaCha8Rng::seed_from_u64(name.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte)));
    let mut unit = move || (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
    match name.parse() {
        Ok(Port::Mask) => {
            let (tokens, width) = (shape[0], shape[1]);
            let is_visible = |i: usize| i % width <= width - tokens + i / width;
            (0..count).map(|i| if is_visible(i) { 0.0 } else { hidden }).collect()
        }
        Ok(Port::RopeCos | Port::RopeSin) => {
            // The same angles for both, whatever the name.
            let angle = |i: usize| (i as f32 * 0.37).sin() * 3.0;
            let of = if name == Port::RopeCos.to_string() { f32::cos } else { f32::sin };
            (0..count).map(|i| of(angle(i))).collect()
        }
        Ok(_) | Err(_) => (0..count).map(|_| unit()).collect(),
    }
}

fn compare(mend: &Mend, shapes: &[StepShape], before: &Outputs, after: &Outputs) -> Proof {
    let (mut max_abs, mut largest, mut identical) = (0f32, 0f32, before.len() == after.len());
    for (before, after) in before.iter().zip(after) {
        identical &= before.len() == after.len();
        for (name, expected) in before {
            let have = after.get(name).map_or(&[][..], Vec::as_slice);
            identical &= have.len() == expected.len();
            for (a, b) in expected.iter().zip(have) {
                identical &= a.to_bits() == b.to_bits();
                largest = largest.max(a.abs());
                let difference = (a - b).abs();
                max_abs = if difference.is_nan() { f32::NAN } else { max_abs.max(difference) };
            }
        }
    }
    let shapes = shapes.iter().map(ToString::to_string).collect();
    Proof { mend: mend.clone(), shapes, layers: 0, max_abs, largest, identical }
}

/// Random weights for a model. Matrices are in 4-bit blocks where these divide the rows, and all lie in one stretch of
/// memory; gains are near 1, biases near 0.
fn random_weights(config: &ModelConfig) -> Result<BTreeMap<String, Tensor>> {
    let specs = model::weight_specs(config);
    let matrices = || specs.iter().filter(|spec| spec.role.is_matrix());
    let blocks = matrices().all(|spec| spec.shape.last().is_some_and(|cols| cols.is_multiple_of(32)));
    let dtype = if blocks { DType::Q4_0 } else { DType::F32 };
    let largest = matrices().filter_map(|spec| byte_len(dtype, &spec.shape)).max().unwrap_or(0);
    if largest > MOST_POOL_BYTES {
        return Err(Diagnostic::error(
            Code::OutOfMemory,
            "the mends of a model this large are not proved without its weights",
        )
        .need(format!("{largest} bytes of random weights"))
        .have(format!("at most {MOST_POOL_BYTES} bytes"))
        .help("name the checkpoint instead of its config.json")
        .into());
    }
    let fan_in = matrices().filter_map(|spec| spec.shape.last().copied()).min().unwrap_or(1);
    // Tensors begin at different blocks, so that no two layers are the same.
    let (unit_bytes, slack) = (dtype.block_bytes(), 4096);
    let pool: Arc<[u8]> = pool(dtype, largest / unit_bytes + slack, 1.0 / (fan_in as f32).sqrt()).into();
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut tensor = |number: usize, spec: &model::WeightSpec| {
        if spec.role.is_matrix() {
            let start = number * 97 % slack * unit_bytes;
            let len = byte_len(dtype, &spec.shape)?;
            return Tensor::in_memory_at(dtype, spec.shape.clone(), Arc::clone(&pool), start..start + len);
        }
        let centre = if spec.role == Role::Norm { 1.0 } else { 0.0 };
        let mut unit = || (random.next_u32() >> 8) as f32 / (1 << 23) as f32 - 1.0;
        let values = (0..spec.shape.elements()?).flat_map(|_| (centre + 0.1 * unit()).to_le_bytes());
        Tensor::in_memory(DType::F32, spec.shape.clone(), values.collect())
    };
    let named = specs.iter().enumerate().map(|(number, spec)| {
        let tensor = tensor(number, spec).expect("a configuration that was checked has weights that can be counted");
        (spec.name.clone(), tensor)
    });
    Ok(named.collect())
}

/// Random blocks of numbers with the standard deviation `spread`.
fn pool(dtype: DType, units: usize, spread: f32) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(2);
    let mut bytes = vec![0; units * dtype.block_bytes()];
    random.fill_bytes(&mut bytes);
    if dtype == DType::F32 {
        for number in bytes.chunks_exact_mut(4) {
            let unit = f32::from(i16::from_le_bytes([number[0], number[1]])) / 32768.0;
            number.copy_from_slice(&(unit * spread * 3f32.sqrt()).to_le_bytes());
        }
    } else {
        // A block of Q4_0 is a scale in f16 and 16 bytes of numbers from -8 to 7, whose deviation is 4.6.
        for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
            block[..2].copy_from_slice(&f16::from_f32(spread / 4.6).to_le_bytes());
        }
    }
    bytes
}
