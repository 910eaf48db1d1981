//! Quantising a checkpoint layer by layer: nearest rounding, or GPTQ with what the layers before make of calibration text.
//!
//! Weights of one layer are in memory at a time. Each stage (table, layers, head) is kept in a file, so that work that was
//! broken off goes on where it stopped.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use npuc::exec::to_f32;
use npuc::front::Checkpoint;
use npuc::ir::ValueId;
use npuc::model::{self, Role};
use npuc::quant::awq::{self, Reader};
use npuc::quant::fold::{Folds, Site};
use npuc::quant::gptq::{self, Rounded};
use npuc::quant::hessian::{Factor, Hessian, Order};
use npuc::quant::plan::{Plan, Planned};
use npuc::{Code, DType, Diagnostic, Result, Tensor};
use npuc_kernels::quantize::Search;
use rayon::ThreadPool;
use serde::Serialize;

use crate::corpus::Corpus;
use crate::device::host::thread_pool;
use layers::{Stage, Stream, part};
use work::{Piece, Work};

pub(crate) mod layers;
mod memory;
mod work;

pub use memory::{need_bytes, refuse_more_than};

/// The share of the mean square of its inputs that is added to a Hessian's diagonal.
const DAMPING: f32 = 0.01;
/// Rows that are rounded at a time: a head of 128256 rows is not in memory as f32 at once.
const ROUNDED_ROWS: usize = 8192;

/// How well weights are rounded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quality {
    /// To the nearest number, with the scale of a block's largest magnitude.
    Fast,
    /// To the nearest number, with the scale that makes the least error.
    Search,
    /// So that the outputs of every projection stay closest on calibration text (GPTQ).
    Best,
}

impl Quality {
    /// The name in flags and manifests.
    pub const fn name(self) -> &'static str {
        match self {
            Quality::Fast => "fast",
            Quality::Search => "search",
            Quality::Best => "best",
        }
    }

    /// How scales are chosen.
    pub const fn search(self) -> Search {
        match self {
            Quality::Fast => Search::Plain,
            Quality::Search | Quality::Best => Search::Error,
        }
    }
}

/// What GPTQ made of a weight: squared errors of its outputs over the calibration text.
#[derive(Clone, Debug, Serialize)]
pub struct Loss {
    /// The weight.
    pub name: String,
    /// Of nearest rounding with the scale of the largest magnitude.
    pub nearest: f64,
    /// Of what was chosen.
    pub chosen: f64,
}

/// A quantised checkpoint and what was found on the way.
#[derive(Debug)]
pub struct Quantised {
    /// The checkpoint with its weights in the planned formats; they lie in the work folder until [`Quantised::finish`].
    pub checkpoint: Checkpoint,
    /// For each weight that GPTQ rounded in this run.
    pub losses: Vec<Loss>,
    work: Work,
}

impl Quantised {
    /// Removes the work folder, once the weights have been written elsewhere.
    ///
    /// Errors: a folder that cannot be removed.
    pub fn finish(self) -> Result<()> {
        drop(self.checkpoint);
        self.work.finish()
    }
}

/// How the work is done.
#[derive(Clone, Debug)]
pub struct Job<'a> {
    /// The format of every weight.
    pub plan: &'a Plan,
    /// What is folded into the weights before they are rounded.
    pub folds: &'a Folds,
    /// Whether the inputs of projections are scaled by what the text makes of them, for [`Quality::Best`].
    pub scale: bool,
    /// How they are rounded.
    pub quality: Quality,
    /// The text, for [`Quality::Best`].
    pub corpus: Option<&'a Corpus>,
    /// Threads.
    pub threads: usize,
}

impl Job<'_> {
    /// A text that is the same for the same work only.
    fn key(&self, checkpoint: &Checkpoint) -> String {
        let formats: Vec<String> =
            self.plan.weights.iter().map(|weight| format!("{} {} {}", weight.name, weight.from, weight.to)).collect();
        let stamp = |tensor: &Tensor| {
            let changed = tensor.file().and_then(|path| std::fs::metadata(path).ok()?.modified().ok());
            format!("{changed:?}")
        };
        let sources: Vec<String> = checkpoint.tensors.values().map(stamp).collect();
        let text = self.corpus.map_or("none", |corpus| corpus.sha256.as_str());
        let (path, quality, scale) = (checkpoint.path.display(), self.quality, self.scale);
        let scales = self.plan.scales;
        let lists = [formats.join("\n"), sources.join("\n"), format!("{:?}", self.folds)].join("\n");
        format!("{} {path} {quality:?} {text} {scale} {scales:?}\n{lists}\n", env!("CARGO_PKG_VERSION"))
    }
}

/// How far the work is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Stages that are done.
    pub done: usize,
    /// Stages there are.
    pub total: usize,
}

/// Quantises a checkpoint as `job` says, with its stages kept in the folder `work`.
///
/// Errors: weights that are not finite or that a format cannot hold; text that the model cannot take; a folder that cannot
/// be written.
pub fn quantise(
    checkpoint: &Checkpoint,
    job: &Job<'_>,
    work: &Path,
    progress: &mut dyn FnMut(Progress),
) -> Result<Quantised> {
    let work = Work::open(work, &job.key(checkpoint), job.quality != Quality::Best)?;
    let pool = thread_pool(job.threads)?;
    let layers = model::layers(&checkpoint.config);
    let total = layers + 2;
    let folds = job.folds.clone();
    let mut run = Run { checkpoint, job, folds, work: &work, pool, stream: None, losses: Vec::new() };
    let mut tensors = BTreeMap::new();
    for number in 0..total {
        progress(Progress { done: number, total });
        tensors.extend(run.stage(number, layers)?);
    }
    progress(Progress { done: total, total });
    let losses = std::mem::take(&mut run.losses);
    let checkpoint = Checkpoint { tensors, config: job.plan.config.clone(), ..checkpoint.clone() };
    Ok(Quantised { checkpoint, losses, work })
}

struct Run<'a> {
    checkpoint: &'a Checkpoint,
    job: &'a Job<'a>,
    /// Those of the job, with the scales that were found.
    folds: Folds,
    work: &'a Work,
    pool: Arc<ThreadPool>,
    /// The residual stream before the next stage, where text is used.
    stream: Option<Stream>,
    losses: Vec<Loss>,
}

impl Run<'_> {
    /// One stage: the embedding table, a layer, or the last norm with the head.
    fn stage(&mut self, number: usize, layers: usize) -> Result<BTreeMap<String, Tensor>> {
        let layer = (1..=layers).contains(&number).then(|| number - 1);
        let planned: Vec<&Planned> =
            self.job.plan.weights.iter().filter(|weight| stage_of(weight, layers) == number).collect();
        let corpus = self.job.corpus.filter(|_| self.job.quality == Quality::Best);
        let done = match self.work.load(number)? {
            Some(done) => done,
            None => self.rounded_stage(number, &planned, layer)?,
        };
        match (corpus, number, layer) {
            (Some(corpus), 0, _) => {
                let table = done.values().next().ok_or_else(|| missing("embed_tokens.weight"))?;
                self.stream = Some(Stream::embed(&self.checkpoint.config, table, &corpus.sequences)?);
            }
            (Some(_), _, Some(layer)) if layer + 1 < layers || self.head_needs_text() => self.forward(&done, layer)?,
            (Some(_) | None, _, _) => {}
        }
        done.values().for_each(|tensor| tensor.release(0..tensor.byte_len()));
        Ok(done)
    }

    /// Rounds the weights of a stage and keeps them.
    fn rounded_stage(
        &mut self,
        number: usize,
        planned: &[&Planned],
        layer: Option<usize>,
    ) -> Result<BTreeMap<String, Tensor>> {
        let sources = self.sources(planned);
        if let (Some(layer), Some(_), true) = (layer, &self.stream, self.job.scale) {
            self.scale(&sources, planned, layer)?;
        }
        let float = self.float(&sources, planned)?;
        let rounded = if self.stream.is_some() { self.gptq(planned, &float, layer)? } else { BTreeMap::new() };
        let piece = |planned: &&Planned| {
            let tensor = rounded.get(&planned.name).or_else(|| float.get(&planned.name)).cloned();
            tensor.map(|tensor| Piece { name: planned.name.clone(), tensor, to: planned.to })
        };
        let pieces: Vec<Piece> = planned.iter().filter_map(piece).collect();
        let stored =
            self.pool.install(|| self.work.store(number, &pieces, self.job.quality.search(), self.job.plan.scales))?;
        sources.values().for_each(|tensor| tensor.release(0..tensor.byte_len()));
        Ok(stored)
    }

    /// Whether the head is a weight of its own that GPTQ rounds.
    fn head_needs_text(&self) -> bool {
        self.job.plan.weights.iter().any(|weight| weight.role == Role::Head && is_rounded(weight))
    }

    /// The stored weights that those of a stage are made of, in reading order: their own, and the gains in front of them.
    fn sources(&self, planned: &[&Planned]) -> BTreeMap<String, Tensor> {
        let folds = planned.iter().filter_map(|planned| self.folds.get(&planned.name));
        let gains = folds.clone().filter_map(|fold| fold.gain.clone());
        let names = planned.iter().map(|planned| planned.source.clone()).chain(gains);
        let names = names.chain(folds.map(|fold| fold.source.clone()));
        names.filter_map(|name| Some((name.clone(), self.checkpoint.tensors.get(&name)?.materialized()))).collect()
    }

    /// The weights of a stage before they are rounded: as they are stored, or in f32 where something is folded in.
    fn float(&self, sources: &BTreeMap<String, Tensor>, planned: &[&Planned]) -> Result<BTreeMap<String, Tensor>> {
        let weight = |planned: &&Planned| {
            let fold = self.folds.get(&planned.name).filter(|fold| !fold.is_kept());
            let tensor = match fold {
                None => sources.get(&planned.source).cloned(),
                Some(_) => {
                    let rows = planned.shape.first().copied().unwrap_or(1);
                    let values = self.pool.install(|| self.folds.rows(&planned.name, sources, 0..rows))?;
                    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                    Tensor::in_memory(DType::F32, planned.shape.clone(), bytes.into())
                }
            };
            Ok((planned.name.clone(), tensor.ok_or_else(|| missing(&planned.source))?))
        };
        planned.iter().map(weight).collect()
    }

    /// Finds the scales of a layer's inputs and folds them in.
    fn scale(&mut self, sources: &BTreeMap<String, Tensor>, planned: &[&Planned], layer: usize) -> Result<()> {
        let float = self.float(sources, planned)?;
        let (hessians, projections) = self.hessians(&float, Some(layer), |_| true)?;
        let sites = [
            Site::AttentionInput(layer),
            Site::Values(layer),
            Site::FeedForwardInput(layer),
            Site::FeedForwardProduct(layer),
        ];
        for site in sites {
            let readers = site.readers();
            let reads = |names: &Vec<String>| names.iter().any(|name| readers.contains(name));
            let value = projections.iter().find(|(_, names)| reads(names)).map(|(value, _)| *value);
            let Some((_, hessian)) = hessians.iter().find(|(id, _)| Some(*id) == value) else { continue };
            let rounded = planned.iter().filter(|planned| readers.contains(&planned.name) && is_rounded(planned));
            let weights: Vec<(&str, DType, Vec<f32>)> = rounded
                .map(|planned| {
                    let tensor = float.get(&planned.name).ok_or_else(|| missing(&planned.name))?;
                    Ok((planned.name.as_str(), planned.to, to_f32(tensor)))
                })
                .collect::<Result<_>>()?;
            let readers: Vec<Reader<'_>> =
                weights.iter().map(|(name, dtype, weights)| Reader { name, weights, dtype: *dtype }).collect();
            let (config, search) = (&self.job.plan.config, self.job.quality.search());
            let found = self.pool.install(|| awq::scaling(config, site, &readers, hessian, search))?;
            self.folds.scale(site, &found.scales);
        }
        Ok(())
    }

    /// Runs the quantised layer, so that the next one is rounded for what really enters it.
    fn forward(&mut self, weights: &BTreeMap<String, Tensor>, layer: usize) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let config = &self.job.plan.config;
        Stage::new(config, weights, &part(config, Some(layer)), stream, &self.pool)?.advance(stream)
    }

    /// The weights of a stage that GPTQ rounds, in their formats.
    fn gptq(
        &mut self,
        planned: &[&Planned],
        float: &BTreeMap<String, Tensor>,
        layer: Option<usize>,
    ) -> Result<BTreeMap<String, Tensor>> {
        let wanted = |name: &str| planned.iter().find(|planned| planned.name == *name && is_rounded(planned)).copied();
        let mut rounded = BTreeMap::new();
        if !planned.iter().any(|planned| is_rounded(planned)) {
            return Ok(rounded);
        }
        let (hessians, projections) = self.hessians(float, layer, |name| wanted(name).is_some())?;
        for (value, hessian) in hessians {
            let factor = self.pool.install(|| Factor::of(&hessian, DAMPING, Order::Descending))?;
            let names = projections.iter().filter(|(id, _)| *id == value).flat_map(|(_, names)| names);
            for planned in names.filter_map(|name| wanted(name)) {
                let tensor = float.get(&planned.name).ok_or_else(|| missing(&planned.name))?;
                let (tensor, loss) = self.pool.install(|| round(planned, tensor, &hessian, &factor))?;
                self.losses.push(loss);
                rounded.insert(planned.name.clone(), tensor);
            }
        }
        Ok(rounded)
    }

    /// What enters the projections of a stage over the text, for those that `wanted` says; the stream is as before.
    #[expect(clippy::type_complexity, reason = "the two halves are used once, side by side")]
    fn hessians(
        &mut self,
        float: &BTreeMap<String, Tensor>,
        layer: Option<usize>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(Vec<(ValueId, Hessian)>, Vec<(ValueId, Vec<String>)>)> {
        let Some(stream) = &self.stream else { return Ok((Vec::new(), Vec::new())) };
        let config = &self.job.plan.config;
        let mut stage = Stage::new(config, float, &part(config, layer), stream, &self.pool)?;
        let projections = stage.projections();
        let read = projections.iter().filter(|(_, names)| names.iter().any(|name| wanted(name)));
        let mut hessians: Vec<(ValueId, Hessian)> =
            read.map(|(value, _)| (*value, Hessian::new(stage.cols(*value)))).collect();
        stage.observe(stream, |id, elements, valid| {
            if let Some((_, hessian)) = hessians.iter_mut().find(|(value, _)| *value == id) {
                hessian.add(&elements[..valid * hessian.width()]);
            }
        });
        Ok((hessians, projections))
    }
}

/// A weight rounded by GPTQ, and what that costs.
fn round(planned: &Planned, tensor: &Tensor, hessian: &Hessian, factor: &Factor) -> Result<(Tensor, Loss)> {
    let mut loss = Loss { name: planned.name.clone(), nearest: 0.0, chosen: 0.0 };
    let mut bytes = Vec::with_capacity(usize::try_from(planned.bytes()).unwrap_or(0));
    let rows = planned.shape.first().copied().unwrap_or(0);
    for start in (0..rows).step_by(ROUNDED_ROWS) {
        let part = tensor.rows(start..rows.min(start + ROUNDED_ROWS)).ok_or_else(|| missing(&planned.name))?;
        let rounded: Rounded = gptq::quantise_matrix(&planned.name, &to_f32(&part), planned.to, hessian, factor)?;
        loss.nearest += rounded.nearest.iter().sum::<f64>();
        loss.chosen += rounded.losses.iter().sum::<f64>();
        bytes.extend(rounded.bytes);
    }
    let rounded = Tensor::in_memory(planned.to, planned.shape.clone(), bytes.into());
    Ok((rounded.ok_or_else(|| missing(&planned.name))?, loss))
}

/// The stage that a weight belongs to.
fn stage_of(weight: &Planned, layers: usize) -> usize {
    let name = weight.name.strip_prefix("encoder.").unwrap_or(&weight.name);
    let layer = name.strip_prefix("layers.").and_then(|rest| rest.split_once('.')?.0.parse::<usize>().ok());
    match (layer, weight.role) {
        // What an encoder computes for the layers of its decoder may be of more layers than it has itself.
        (Some(layer), _) => layer.min(layers) + 1,
        (None, Role::Embedding) => 0,
        (
            None,
            Role::Norm
            | Role::Stem
            | Role::Position
            | Role::Filter
            | Role::Bias
            | Role::Convolution
            | Role::Attention
            | Role::FeedForward
            | Role::Head,
        ) => layers + 1,
    }
}

/// Whether a weight becomes whole numbers that it is not yet.
fn is_rounded(weight: &Planned) -> bool {
    weight.to != weight.from && !matches!(weight.to, DType::F32 | DType::F16 | DType::BF16)
}

fn missing(name: &str) -> npuc::Error {
    Diagnostic::error(Code::MissingTensor, "a weight of the plan is not there").subject(name).into()
}
