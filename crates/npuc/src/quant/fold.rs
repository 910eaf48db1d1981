//! What is folded into the weights of a model before they are rounded: gains, rotations, scales. A description, no copies.
//!
//! Folding changes the weights and not the function: what one weight gains, those that read its numbers undo. It makes
//! rows that round better.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;

use super::hadamard::Rotation;
use crate::diag::{Code, Diagnostic, Result};
use crate::exec::to_f32;
use crate::front::ModelConfig;
use crate::model::{self, llama};
use crate::tensor::Tensor;

/// The gain of the norm in front of the head.
const FINAL_NORM: &str = "norm.weight";

/// How a weight follows from what is stored. Matrices are `[out, in]`, vectors are columns `[out, 1]`.
///
/// In this order: the columns are multiplied by the gain of the norm in front, each row is turned, the columns are scaled,
/// each column is turned, the rows are scaled.
#[derive(Clone, Debug)]
pub struct Fold {
    /// The stored weight that it is made from.
    pub source: String,
    /// Whether it is a gain that went elsewhere and left ones.
    pub is_ones: bool,
    /// The stored gain, `[in]`, that the columns are multiplied by.
    pub gain: Option<String>,
    /// Each row `w`, in runs of the rotation's length, becomes `w R`: the inputs are rotated.
    pub input: Option<Arc<Rotation>>,
    /// What the columns are multiplied by, `[in]`.
    pub columns: Option<Vec<f32>>,
    /// Each column, in runs of the rotation's length, becomes `w R`: the outputs are rotated.
    pub output: Option<Arc<Rotation>>,
    /// What the rows are divided by, `[out]`.
    pub rows: Option<Vec<f32>>,
}

impl Fold {
    /// A weight as it is stored.
    fn kept(name: &str) -> Fold {
        Fold {
            source: name.to_owned(),
            is_ones: false,
            gain: None,
            input: None,
            columns: None,
            output: None,
            rows: None,
        }
    }

    /// Whether the weight is the stored one.
    pub fn is_kept(&self) -> bool {
        let Fold { source: _, is_ones, gain, input, columns, output, rows } = self;
        !is_ones && gain.is_none() && input.is_none() && columns.is_none() && output.is_none() && rows.is_none()
    }

    /// Rows of the weight, `[rows, in]`. If outputs are rotated, the stored rows of the whole run are read: for `o_proj` and
    /// `down_proj` of a rotated model that is the whole weight.
    fn compute(&self, tensors: &BTreeMap<String, Tensor>, rows: Range<usize>) -> Result<Vec<f32>> {
        let source = stored(tensors, &self.source)?;
        let cols = if source.shape.len() > 1 { source.shape.last().copied().unwrap_or(1) } else { 1 };
        let run = self.output.as_ref().map_or(1, |rotation| rotation.len());
        let span = rows.start / run * run..rows.end.next_multiple_of(run);
        // Rows after the last would be zeros.
        let part = source.rows(span.clone()).filter(|_| source.shape[0] >= span.end && !rows.is_empty());
        let part = part.ok_or_else(|| no_rows(&self.source, source, &rows))?;
        let mut values = if self.is_ones { vec![1.0; span.len() * cols] } else { to_f32(&part) };
        let gain = self.gain.as_ref().map(|gain| stored(tensors, gain).map(to_f32)).transpose()?;
        values.par_chunks_exact_mut(cols).for_each(|row| {
            if let Some(gain) = &gain {
                row.iter_mut().zip(gain).for_each(|(w, gain)| *w *= gain);
            }
            if let Some(rotation) = &self.input {
                row.chunks_exact_mut(rotation.len()).for_each(|run| rotation.apply(run));
            }
            if let Some(scales) = &self.columns {
                row.iter_mut().zip(scales).for_each(|(w, scale)| *w *= scale);
            }
        });
        if let Some(rotation) = &self.output {
            values.chunks_exact_mut(run * cols).for_each(|run| turn_columns(run, cols, rotation));
        }
        if let Some(scales) = &self.rows {
            let rows = values.chunks_exact_mut(cols).zip(&scales[span.clone()]);
            rows.for_each(|(row, scale)| row.iter_mut().for_each(|w| *w /= scale));
        }
        values.truncate((rows.end - span.start) * cols);
        values.drain(..(rows.start - span.start) * cols);
        Ok(values)
    }
}

fn stored<'a>(tensors: &'a BTreeMap<String, Tensor>, name: &str) -> Result<&'a Tensor> {
    let missing = || Diagnostic::error(Code::MissingTensor, "a weight that others are made from is not there");
    tensors.get(name).ok_or_else(|| missing().subject(name).into())
}

fn no_rows(name: &str, tensor: &Tensor, rows: &Range<usize>) -> crate::Error {
    Diagnostic::error(Code::WrongShape, "a weight lacks rows that another one is made from")
        .subject(name)
        .need(format!("rows {} to {}", rows.start, rows.end))
        .have(&tensor.shape)
        .into()
}

/// Each column of `[rotation.len(), cols]` becomes itself times the rotation.
fn turn_columns(values: &mut [f32], cols: usize, rotation: &Rotation) {
    let len = rotation.len();
    let mut columns = vec![0.0; values.len()];
    columns.par_chunks_exact_mut(len).enumerate().for_each(|(column, out)| {
        out.iter_mut().zip(values.chunks_exact(cols)).for_each(|(o, row)| *o = row[column]);
        rotation.apply(out);
    });
    values.par_chunks_exact_mut(cols).enumerate().for_each(|(place, row)| {
        row.iter_mut().zip(columns.chunks_exact(len)).for_each(|(w, column)| *w = column[place]);
    });
}

/// Where numbers pass that can be scaled: whoever writes them divides, whoever reads them multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// From the norm to the query, key and value projections of a layer, `[hidden]`.
    AttentionInput(usize),
    /// From the value projection to the attention's output projection, `[kv_heads · head_dim]`.
    Values(usize),
    /// From the norm to the gate and up projections, `[hidden]`.
    FeedForwardInput(usize),
    /// From the up projection, through the gated product, to the down projection, `[ffn]`.
    FeedForwardProduct(usize),
}

impl Site {
    /// Every site of a model, in the order of the computation.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Site> {
        let of = [Site::AttentionInput, Site::Values, Site::FeedForwardInput, Site::FeedForwardProduct];
        (0..model::layers(config)).flat_map(move |layer| of.map(|site| site(layer)))
    }

    /// The numbers that pass there for a token.
    pub fn width(self, config: &ModelConfig) -> usize {
        match self {
            Site::AttentionInput(_) | Site::FeedForwardInput(_) => config.hidden(),
            Site::Values(_) => config.kv_heads() * config.head_dim(),
            Site::FeedForwardProduct(_) => config.ffn(),
        }
    }

    /// The projections that read the numbers, by the name of their weights.
    pub fn readers(self) -> Vec<String> {
        let (layer, names): (usize, &[&str]) = match self {
            Site::AttentionInput(layer) => (layer, &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]),
            Site::Values(layer) => (layer, &["self_attn.o_proj"]),
            Site::FeedForwardInput(layer) => (layer, &["mlp.gate_proj", "mlp.up_proj"]),
            Site::FeedForwardProduct(layer) => (layer, &["mlp.down_proj"]),
        };
        names.iter().map(|name| format!("layers.{layer}.{name}.weight")).collect()
    }

    /// The weights whose rows give the numbers. Not all models have the biases.
    fn writers(self) -> Vec<String> {
        let (layer, names): (usize, &[&str]) = match self {
            Site::AttentionInput(layer) => (layer, &["input_layernorm.weight"]),
            Site::Values(layer) => (layer, &["self_attn.v_proj.weight", "self_attn.v_proj.bias"]),
            Site::FeedForwardInput(layer) => (layer, &["post_attention_layernorm.weight"]),
            Site::FeedForwardProduct(layer) => (layer, &["mlp.up_proj.weight", "mlp.up_proj.bias"]),
        };
        names.iter().map(|name| format!("layers.{layer}.{name}")).collect()
    }

    /// The scale of each input of a reader: several query heads read the same key/value head.
    pub fn spread(self, config: &ModelConfig, scales: &[f32]) -> Vec<f32> {
        let (heads, kv_heads, head_dim) = (config.heads(), config.kv_heads(), config.head_dim());
        match self {
            Site::AttentionInput(_) | Site::FeedForwardInput(_) | Site::FeedForwardProduct(_) => scales.to_vec(),
            Site::Values(_) => {
                let shared = heads / kv_heads;
                (0..heads).flat_map(|head| &scales[head / shared * head_dim..][..head_dim]).copied().collect()
            }
        }
    }
}

/// How all weights of a model follow from the stored ones.
#[derive(Clone, Debug)]
pub struct Folds {
    config: ModelConfig,
    folds: BTreeMap<String, Fold>,
}

impl Folds {
    /// Every weight as it is stored.
    pub fn none(config: &ModelConfig) -> Folds {
        let specs = model::weight_specs(config);
        let folds = specs.into_iter().map(|spec| (spec.name.clone(), Fold::kept(&spec.name))).collect();
        Folds { config: config.clone(), folds }
    }

    /// The configuration of the model with the new weights: a head that was tied may be one of its own.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// How the weight of that canonical name is made; `None` if the model has no such weight.
    pub fn get(&self, name: &str) -> Option<&Fold> {
        self.folds.get(name)
    }

    /// Rows of the weight of that canonical name, `[rows, in]`. `tensors` are the stored weights; rows are found faster in
    /// those that are [`Tensor::materialized`].
    ///
    /// Errors: [`Code::MissingTensor`] for a name that the model does not have or that is not stored,
    /// [`Code::WrongShape`] for rows that are not there.
    pub fn rows(&self, name: &str, tensors: &BTreeMap<String, Tensor>, rows: Range<usize>) -> Result<Vec<f32>> {
        let unknown = || Diagnostic::error(Code::MissingTensor, "the model has no weight of this name").subject(name);
        self.folds.get(name).ok_or_else(unknown)?.compute(tensors, rows)
    }

    /// Folds the residual rotation and that of the values into the stored weights: the
    /// embedding gives `x R`, every projection reads `x R` and adds rotated numbers to it, so that all that is left of the
    /// norms in front of projections is the division, which no rotation changes. Their gains go into the columns of the
    /// projections, the last one's into the head, which therefore becomes a matrix of its own. Each head's values become
    /// `v H`, which the output projection reads.
    ///
    /// # Panics
    /// When a rotation has another length than `hidden` or `head_dim`.
    pub fn rotated(config: &ModelConfig, residual: &Arc<Rotation>, values: &Arc<Rotation>) -> Folds {
        let lengths = (config.hidden(), config.head_dim());
        assert_eq!((residual.len(), values.len()), lengths, "lengths of the rotations");
        let mut folds = Folds::none(&config.clone().with_tied(false));
        let mut change = |name: &str, change: &dyn Fn(&mut Fold)| {
            // A model without biases has no such weights.
            folds.folds.get_mut(name).into_iter().for_each(change);
        };
        change(llama::EMBEDDING, &|fold| fold.input = Some(Arc::clone(residual)));
        let reads = |gain: String| {
            move |fold: &mut Fold| {
                fold.gain = Some(gain.clone());
                fold.input = Some(Arc::clone(residual));
            }
        };
        let gives = |rotation: &Arc<Rotation>| {
            let rotation = Arc::clone(rotation);
            move |fold: &mut Fold| fold.output = Some(Arc::clone(&rotation))
        };
        let ones = |fold: &mut Fold| fold.is_ones = true;
        for layer in 0..config.layers() {
            for site in [Site::AttentionInput(layer), Site::FeedForwardInput(layer)] {
                for gain in site.writers() {
                    site.readers().iter().for_each(|reader| change(reader, &reads(gain.clone())));
                    change(&gain, &ones);
                }
            }
            for kind in ["weight", "bias"] {
                change(&format!("layers.{layer}.self_attn.v_proj.{kind}"), &gives(values));
                change(&format!("layers.{layer}.self_attn.o_proj.{kind}"), &gives(residual));
                change(&format!("layers.{layer}.mlp.down_proj.{kind}"), &gives(residual));
            }
            let turned = |fold: &mut Fold| fold.input = Some(Arc::clone(values));
            change(&format!("layers.{layer}.self_attn.o_proj.weight"), &turned);
        }
        change(llama::HEAD, &reads(FINAL_NORM.to_owned()));
        change(FINAL_NORM, &ones);
        if config.tied() {
            change(llama::HEAD, &|fold| fold.source = llama::EMBEDDING.to_owned());
        }
        folds
    }

    /// Scales the numbers that pass a site: whoever writes number `i` divides by `scales[i]`, whoever reads it multiplies.
    ///
    /// # Panics
    /// When there are not as many scales as numbers, or the model has no such layer.
    pub fn scale(&mut self, site: Site, scales: &[f32]) {
        assert_eq!(scales.len(), site.width(&self.config), "one scale for each number of {site:?}");
        let spread = site.spread(&self.config, scales);
        for name in site.readers() {
            let fold = self.folds.get_mut(&name).unwrap_or_else(|| panic!("the model has no `{name}`"));
            multiply(&mut fold.columns, &spread);
        }
        for name in site.writers() {
            self.folds.get_mut(&name).into_iter().for_each(|fold| multiply(&mut fold.rows, scales));
        }
    }
}

fn multiply(factors: &mut Option<Vec<f32>>, by: &[f32]) {
    match factors {
        Some(factors) => factors.iter_mut().zip(by).for_each(|(factor, by)| *factor *= by),
        None => *factors = Some(by.to_vec()),
    }
}

#[cfg(test)]
pub(super) mod tests;
