//! What each format of each matrix costs in KL divergence: measured output errors, times what an error of a matrix matters.
//!
//! `docs/fidelity.md` says how; in short the divergence of whole layers and of whole kinds of projections is measured, and
//! an error of a matrix matters by the product of a number of its layer and one of its kind.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use npuc::front::{Checkpoint, ModelConfig};
use npuc::model::{self, llama};
use npuc::quant::hessian::Hessian;
use npuc::quant::solve::Matrix;
use npuc::{Code, DType, Diagnostic, Result, Tensor};
use rayon::ThreadPool;
use rayon::prelude::*;

use super::losses::{Losses, rounded};
use crate::device::host::thread_pool;
use crate::fidelity::{Windows, kl};
use crate::quantise::layers::{Stage, Stream, part};

/// Tokens that the head takes at a time: their scores are in memory together.
const HEAD_TOKENS: usize = 64;
/// The least error of a probe, as a share of the outputs' energy: below, the divergence would drown in rounding.
const LEAST_ERROR: f64 = 1e-3;
/// Rounds of scaling rows and columns; the error of the sums falls geometrically.
const ROUNDS: usize = 100;

/// What the formats cost.
#[derive(Clone, Debug)]
pub struct Sensitivity {
    /// For each matrix the divergence, in nats a token, of each of [`Matrix::formats`]: infinite where a format cannot hold
    /// the numbers.
    pub costs: Vec<Vec<f64>>,
    /// The measured divergence with every matrix in its probe, which the costs of the probes add up to.
    pub probe_kl: f64,
    /// The sum of the divergences with one layer, the table or the head in its probes; were they independent, it would be
    /// [`Sensitivity::probe_kl`].
    pub sum_of_parts_kl: f64,
}

/// How a matrix is used: the table of a tied head is used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    Rows,
    Layer(usize),
    Head,
}

/// Losses of a matrix in one use.
struct Used {
    matrix: usize,
    place: Use,
    losses: Losses,
}

impl Sensitivity {
    /// Measures over the windows of a text. `budget_bits` decides near which formats: a matrix is probed in the best one
    /// within the budget that is off enough to tell. `progress` is told steps that are done and steps there are.
    ///
    /// Errors: weights that are not finite, ids outside the vocabulary, windows longer than the context, a model whose
    /// scores are not numbers.
    pub fn measure(
        checkpoint: &Checkpoint,
        matrices: &[Matrix],
        windows: &Windows,
        budget_bits: f64,
        threads: usize,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Sensitivity> {
        let layers = model::layers(&checkpoint.config);
        let kinds = kinds(matrices);
        let run = Run::new(checkpoint, matrices, windows, threads)?;
        let steps = layers + kinds.len() + 2;
        let mut done = 0;
        let mut step = || {
            progress(done, steps);
            done += 1;
        };
        step();
        let mut stream = run.start(None)?;
        let mut last = stream.clone();
        run.forward(&mut last, 0..layers, |_| None)?;
        let reference = run.scored(&last);
        let mut used = run.outer(&reference)?;
        let (rows, head) = run.outer_kls(&reference, &run.probes(&used, budget_bits))?;
        step();
        let mut of_layers = Vec::new();
        for layer in 0..layers {
            used.extend(run.inner(&stream, layer)?);
            of_layers.push(run.layer_kl(&reference, &stream, layer, &run.probes(&used, budget_bits))?);
            run.forward(&mut stream, layer..layer + 1, |_| None)?;
            step();
        }
        let formats = run.probes(&used, budget_bits);
        let mut of_kinds = Vec::new();
        for kind in &kinds {
            let of_kind = |name: &str| formats.get(name).copied().filter(|_| run.kind(name) == Some(kind));
            of_kinds.push(run.changed_kl(&reference, None, of_kind)?);
            step();
        }
        let table = formats.get(llama::EMBEDDING).copied();
        let all = run.changed_kl(&reference, table, |name| formats.get(name).copied())?;
        step();
        Ok(fit(matrices, &kinds, &used, &formats, &Measured { of_layers, of_kinds, rows, head, all }))
    }
}

/// Divergences in nats a token.
struct Measured {
    of_layers: Vec<f64>,
    of_kinds: Vec<f64>,
    rows: Option<f64>,
    head: Option<f64>,
    all: f64,
}

/// What is the same in every layer, in the order of the computation.
fn kinds(matrices: &[Matrix]) -> Vec<String> {
    let mut kinds: Vec<String> = Vec::new();
    for matrix in matrices {
        if let (Some(_), kind) = matrix.place()
            && !kinds.iter().any(|known| known == kind)
        {
            kinds.push(kind.to_owned());
        }
    }
    kinds
}

/// The probe of each matrix: of the formats that are off by [`LEAST_ERROR`] at least the best one within the budget, else
/// the smallest; of formats that are all less off the worst. None where no format changes a number, and where nothing is
/// known yet.
fn probes<'a>(matrices: &'a [Matrix], used: &[Used], budget_bits: f64) -> BTreeMap<&'a str, DType> {
    let probe = |(index, matrix): (usize, &'a Matrix)| {
        let uses: Vec<&Losses> = used.iter().filter(|used| used.matrix == index).map(|used| &used.losses).collect();
        let share = |format: usize| {
            let of_use = |losses: &&Losses| losses.of_format[format] / losses.energy.max(f64::MIN_POSITIVE);
            uses.iter().map(of_use).fold(0.0, f64::max)
        };
        let lossy = (0..matrix.formats.len()).filter(|format| share(*format).is_finite() && share(*format) > 0.0);
        let tell: Vec<usize> = lossy.clone().filter(|format| share(*format) >= LEAST_ERROR).collect();
        let bytes = |format: &usize| matrix.bytes(matrix.formats[*format]);
        let within = |format: &&usize| 8.0 * bytes(format) as f64 <= budget_bits * matrix.elements() as f64;
        let best = tell.iter().filter(within).min_by(|a, b| share(**a).total_cmp(&share(**b)));
        let smallest = || tell.iter().min_by_key(|format| bytes(format));
        let worst = || lossy.clone().max_by(|a, b| share(*a).total_cmp(&share(*b)));
        let format = best.or_else(smallest).copied().or_else(worst)?;
        Some((matrix.name.as_str(), matrix.formats[format]))
    };
    matrices.iter().enumerate().filter_map(probe).collect()
}

/// The costs that agree with what was measured: errors of a layer and a kind matter by the product of a number for each, so
/// that the sums over the kinds of a layer and over the layers of a kind are the measured ones (iterative proportional
/// fitting), and everything together adds up to the measured whole.
fn fit(
    matrices: &[Matrix],
    kinds: &[String],
    used: &[Used],
    probes: &BTreeMap<&str, DType>,
    measured: &Measured,
) -> Sensitivity {
    let at_probe = |used: &Used| {
        let matrix = &matrices[used.matrix];
        let place = matrix.formats.iter().position(|format| Some(format) == probes.get(matrix.name.as_str()));
        place.map_or(0.0, |place| used.losses.of_format[place])
    };
    let mut cells = vec![vec![0.0; kinds.len()]; measured.of_layers.len()];
    let kind_of = |index: usize| kinds.iter().position(|kind| kind == matrices[index].place().1);
    for used in used {
        if let (Use::Layer(layer), Some(kind)) = (used.place, kind_of(used.matrix)) {
            cells[layer][kind] = at_probe(used);
        }
    }
    let losses = cells.clone();
    let (rows, columns) = (measured.of_layers.iter().sum::<f64>(), measured.of_kinds.iter().sum::<f64>());
    let sum_of_parts_kl = rows + measured.rows.unwrap_or(0.0) + measured.head.unwrap_or(0.0);
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    for _ in 0..ROUNDS {
        for (kind, target) in measured.of_kinds.iter().enumerate() {
            let factor = share(target * share(rows, columns), cells.iter().map(|row| row[kind]).sum());
            cells.iter_mut().for_each(|row| row[kind] *= factor);
        }
        for (row, target) in cells.iter_mut().zip(&measured.of_layers) {
            let factor = share(*target, row.iter().sum());
            row.iter_mut().for_each(|cell| *cell *= factor);
        }
    }
    let whole = share(measured.all, sum_of_parts_kl);
    let weight = |used: &Used| match (used.place, kind_of(used.matrix)) {
        (Use::Layer(layer), Some(kind)) => whole * share(cells[layer][kind], losses[layer][kind]),
        (Use::Layer(_), None) => 0.0,
        (Use::Rows, _) => whole * share(measured.rows.unwrap_or(0.0), at_probe(used)),
        (Use::Head, _) => whole * share(measured.head.unwrap_or(0.0), at_probe(used)),
    };
    let mut costs: Vec<Vec<f64>> = matrices.iter().map(|matrix| vec![0.0; matrix.formats.len()]).collect();
    for used in used {
        let weight = weight(used);
        // A format that cannot hold the numbers stays infinite where errors do not matter.
        let cost = |loss: f64| if loss.is_finite() { weight * loss } else { loss };
        costs[used.matrix].iter_mut().zip(&used.losses.of_format).for_each(|(sum, loss)| *sum += cost(*loss));
    }
    Sensitivity { costs, probe_kl: measured.all, sum_of_parts_kl }
}

struct Run<'a> {
    checkpoint: &'a Checkpoint,
    matrices: &'a [Matrix],
    sequences: Vec<Vec<u32>>,
    /// The positions of a sequence that are scored.
    positions: Range<usize>,
    pool: Arc<ThreadPool>,
}

impl<'a> Run<'a> {
    fn new(checkpoint: &'a Checkpoint, matrices: &'a [Matrix], windows: &Windows, threads: usize) -> Result<Run<'a>> {
        let (sequences, positions) = (windows.iter().collect(), windows.scored());
        Ok(Run { checkpoint, matrices, sequences, positions, pool: thread_pool(threads)? })
    }

    /// The weight of the head.
    fn head(&self) -> &'static str {
        if self.checkpoint.config.tied() { llama::EMBEDDING } else { llama::HEAD }
    }

    fn kind(&self, name: &str) -> Option<&str> {
        let matrix = self.matrices.iter().find(|matrix| matrix.name == name);
        matrix.map(Matrix::place).and_then(|(layer, kind)| layer.map(|_| kind))
    }

    fn probes(&self, used: &[Used], budget_bits: f64) -> BTreeMap<&'a str, DType> {
        probes(self.matrices, used, budget_bits)
    }

    fn tensor(&self, name: &str) -> Result<Tensor> {
        let missing = || Diagnostic::error(Code::MissingTensor, "a weight of the model is not there").subject(name);
        Ok(self.checkpoint.tensors.get(name).ok_or_else(missing)?.materialized())
    }

    /// The weights of a layer or, without one, of norm and head, those of `formats` rounded.
    fn weights(
        &self,
        layer: Option<usize>,
        formats: impl Fn(&str) -> Option<DType>,
    ) -> Result<BTreeMap<String, Tensor>> {
        let prefix = layer.map(|layer| format!("layers.{layer}."));
        let norm = format!("{}.weight", model::final_norm(&self.checkpoint.config));
        let is_here = |name: &&String| match &prefix {
            Some(prefix) => name.starts_with(prefix),
            None => *name == self.head() || **name == norm,
        };
        let weight = |name: &String| {
            let tensor = self.tensor(name)?;
            let tensor = match formats(name) {
                Some(format) => self.pool.install(|| rounded(name, &tensor, format))?,
                None => tensor,
            };
            Ok((name.clone(), tensor))
        };
        self.checkpoint.tensors.keys().filter(is_here).map(weight).collect()
    }

    /// Takes a stream through layers whose weights are rounded as `formats` says.
    fn forward(
        &self,
        stream: &mut Stream,
        layers: Range<usize>,
        formats: impl Fn(&str) -> Option<DType>,
    ) -> Result<()> {
        let config = &self.checkpoint.config;
        for layer in layers {
            let weights = self.weights(Some(layer), &formats)?;
            Stage::new(config, &weights, &part(config, Some(layer)), stream, &self.pool)?.advance(stream)?;
        }
        Ok(())
    }

    /// The embedded text, with the table rounded to a format if there is one.
    fn start(&self, table: Option<DType>) -> Result<Stream> {
        let tensor = self.tensor(llama::EMBEDDING)?;
        let tensor = match table {
            Some(format) => self.pool.install(|| rounded(llama::EMBEDDING, &tensor, format))?,
            None => tensor,
        };
        Stream::embed(&self.checkpoint.config, &tensor, &self.sequences)
    }

    fn scored(&self, stream: &Stream) -> Stream {
        stream.cut(&self.positions, HEAD_TOKENS)
    }

    /// The divergences of the table's rows alone in their probe, and of the head alone.
    fn outer_kls(&self, reference: &Stream, formats: &BTreeMap<&str, DType>) -> Result<(Option<f64>, Option<f64>)> {
        let rows = formats.get(llama::EMBEDDING).map(|format| self.changed_kl(reference, Some(*format), |_| None));
        let head = formats.get(self.head()).copied();
        let of_head = |format| self.kl(reference, reference, |name| (name == self.head()).then_some(format));
        Ok((rows.transpose()?, head.map(of_head).transpose()?))
    }

    /// The divergence of a layer alone in its probes; `stream` is what enters it.
    fn layer_kl(
        &self,
        reference: &Stream,
        stream: &Stream,
        layer: usize,
        formats: &BTreeMap<&str, DType>,
    ) -> Result<f64> {
        let mut changed = stream.clone();
        self.forward(&mut changed, layer..layer + 1, |name| formats.get(name).copied())?;
        self.forward(&mut changed, layer + 1..model::layers(&self.checkpoint.config), |_| None)?;
        self.kl(reference, &self.scored(&changed), |_| None)
    }

    /// The divergence of a model whose table's rows, layers and head are rounded.
    fn changed_kl(
        &self,
        reference: &Stream,
        table: Option<DType>,
        formats: impl Fn(&str) -> Option<DType>,
    ) -> Result<f64> {
        let mut changed = self.start(table)?;
        self.forward(&mut changed, 0..model::layers(&self.checkpoint.config), &formats)?;
        self.kl(reference, &self.scored(&changed), formats)
    }

    /// The mean divergence of what a stream of scored tokens says from what the reference's does.
    fn kl(&self, reference: &Stream, stream: &Stream, formats: impl Fn(&str) -> Option<DType>) -> Result<f64> {
        let config = &self.checkpoint.config;
        let (stored, rounded) = (self.weights(None, |_| None)?, self.weights(None, formats)?);
        let mut expected = Stage::new(config, &stored, &part(config, None), reference, &self.pool)?;
        let mut model = Stage::new(config, &rounded, &part(config, None), stream, &self.pool)?;
        let vocab = config.vocab();
        let (mut sum, mut count) = (0.0, 0);
        for sequence in 0..reference.sequences() {
            let expected = expected.scores(reference, sequence);
            let rows = expected.par_chunks_exact(vocab).zip(model.scores(stream, sequence).par_chunks_exact(vocab));
            let kls: Vec<f64> = self.pool.install(|| rows.map(|(p, q)| kl(p, q)).collect());
            sum += kls.iter().sum::<f64>();
            count += kls.len();
        }
        let mean = sum / count.max(1) as f64;
        if mean.is_finite() {
            // Rounding may leave a little less than nothing.
            return Ok(if mean > 0.0 { mean } else { 0.0 });
        }
        let fault = Diagnostic::error(Code::Unfaithful, "a model gives scores that are not numbers");
        Err(fault.have(format!("a divergence of {mean}")).into())
    }

    /// The losses of the head and of the table's rows. `reference` is what enters the last norm.
    fn outer(&self, reference: &Stream) -> Result<Vec<Used>> {
        let mut used = Vec::new();
        if let Some(matrix) = self.find(llama::EMBEDDING) {
            let table = self.tensor(llama::EMBEDDING)?;
            let mut counts = BTreeMap::new();
            self.sequences.iter().flatten().for_each(|id| *counts.entry(*id).or_default() += 1);
            let losses = self.pool.install(|| Losses::of_rows(&self.matrices[matrix], &table, &counts))?;
            used.push(Used { matrix, place: Use::Rows, losses });
        }
        let of_head = self.outputs(reference, None)?.into_iter();
        used.extend(of_head.map(|(matrix, losses)| Used { matrix, place: Use::Head, losses }));
        Ok(used)
    }

    /// The losses of a layer's projections.
    fn inner(&self, stream: &Stream, layer: usize) -> Result<Vec<Used>> {
        let outputs = self.outputs(stream, Some(layer))?.into_iter();
        Ok(outputs.map(|(matrix, losses)| Used { matrix, place: Use::Layer(layer), losses }).collect())
    }

    fn outputs(&self, stream: &Stream, layer: Option<usize>) -> Result<Vec<(usize, Losses)>> {
        let config: &ModelConfig = &self.checkpoint.config;
        let weights = self.weights(layer, |_| None)?;
        let mut stage = Stage::new(config, &weights, &part(config, layer), stream, &self.pool)?;
        let projections = stage.projections();
        let mut hessians: Vec<Hessian> =
            projections.iter().map(|(value, _)| Hessian::new(stage.cols(*value))).collect();
        stage.observe(stream, |id, elements, valid| {
            if let Some(place) = projections.iter().position(|(value, _)| *value == id) {
                let hessian = &mut hessians[place];
                hessian.add(&elements[..valid * hessian.width()]);
            }
        });
        let mut losses = Vec::new();
        for ((_, names), hessian) in projections.iter().zip(&hessians) {
            for (name, matrix) in names.iter().filter_map(|name| Some((name, self.find(name)?))) {
                let tensor = weights.get(name).map_or_else(|| self.tensor(name), |tensor| Ok(tensor.clone()))?;
                let of = || Losses::of_outputs(&self.matrices[matrix], &tensor, hessian);
                losses.push((matrix, self.pool.install(of)?));
            }
        }
        Ok(losses)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.matrices.iter().position(|matrix| matrix.name == name)
    }
}
