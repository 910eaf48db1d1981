//! Scales of inputs that are found from their size: columns that large inputs meet are made larger before rounding.
//!
//! Source: Lin et al., AWQ, 2023. The scales fold into the weights, see [`Folds::scale`](super::fold::Folds::scale).

use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::quantize::{Search, quantize_row, saturates};
use rayon::prelude::*;

use super::fold::Site;
use super::gptq;
use super::hessian::Hessian;
use crate::diag::Result;
use crate::front::ModelConfig;
use crate::tensor::DType;

/// The exponents that are tried, in tenths: 0 leaves all as it is.
const TENTHS: std::ops::RangeInclusive<u8> = 0..=10;
/// Rows of a weight that choose the exponent; whether it is better than none is decided over all rows.
const CHOOSING_ROWS: usize = 256;
/// What is added to the mean square of an input, as a share of the mean over all, so that one that was never seen does not
/// have the scale 0.
const FLOOR: f64 = 1e-4;

/// A projection that reads the inputs.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a> {
    /// Its name, for messages.
    pub name: &'a str,
    /// `[rows, width]` for the width of the inputs.
    pub weights: &'a [f32],
    /// What it will be stored in.
    pub dtype: DType,
}

/// The scales of a site.
#[derive(Clone, Debug, PartialEq)]
pub struct Scaling {
    /// The exponent; 0 where no other was better.
    pub alpha: f32,
    /// For [`Folds::scale`](super::fold::Folds::scale), with the geometric mean 1: ones for the exponent 0.
    pub scales: Vec<f32>,
    /// The squared error of all outputs of the readers, as the mean over the calibration tokens, when their scaled weights
    /// are rounded to the nearest.
    pub loss: f64,
    /// The same without scales.
    pub unscaled_loss: f64,
}

/// Finds scales `a^alpha` of a site, with `a` the root mean square of each number that passes it, such that its readers
/// lose least. `hessian` is that of the readers' inputs.
///
/// Errors: those of [`gptq::quantise_matrix`] for weights that cannot be rounded.
pub fn scaling(
    config: &ModelConfig,
    site: Site,
    readers: &[Reader<'_>],
    hessian: &Hessian,
    search: Search,
) -> Result<Scaling> {
    let width = hessian.width();
    for reader in readers {
        gptq::check(reader.name, reader.weights, reader.dtype, width)?;
    }
    let sizes = sizes(config, site, hessian);
    let loss = |alpha: f32, most_rows: usize| -> f64 {
        let scales = site.spread(config, &powers(&sizes, alpha));
        readers.iter().map(|reader| rounding_loss(reader, &scales, hessian, search, most_rows)).sum()
    };
    let tried = TENTHS.map(|tenths| f32::from(tenths) / 10.0).map(|alpha| (alpha, loss(alpha, CHOOSING_ROWS)));
    let best = tried.min_by(|a, b| a.1.total_cmp(&b.1)).map_or(0.0, |(alpha, _)| alpha);
    let unscaled_loss = loss(0.0, usize::MAX);
    let scaled_loss = if best > 0.0 { loss(best, usize::MAX) } else { unscaled_loss };
    let (alpha, loss) = if scaled_loss < unscaled_loss { (best, scaled_loss) } else { (0.0, unscaled_loss) };
    Ok(Scaling { alpha, scales: powers(&sizes, alpha), loss, unscaled_loss })
}

/// The root mean square of each number of a site, in units of that of all: numbers that several query heads read count as
/// the mean of what these heads make of them.
fn sizes(config: &ModelConfig, site: Site, hessian: &Hessian) -> Vec<f64> {
    let diagonal: Vec<f64> = hessian.diagonal().into_iter().map(f64::from).collect();
    let (heads, kv_heads, head_dim) = (config.heads(), config.kv_heads(), config.head_dim());
    let squares: Vec<f64> = match site {
        Site::AttentionInput(_) | Site::FeedForwardInput(_) | Site::FeedForwardProduct(_) => diagonal,
        Site::Values(_) => {
            let shared = heads / kv_heads;
            let mean = |i: usize| {
                let (head, place) = (i / head_dim * shared, i % head_dim);
                (0..shared).map(|h| diagonal[(head + h) * head_dim + place]).sum::<f64>() / shared as f64
            };
            (0..kv_heads * head_dim).map(mean).collect()
        }
    };
    let mean = squares.iter().sum::<f64>() / squares.len().max(1) as f64;
    let unit = if mean > 0.0 { mean } else { 1.0 };
    squares.iter().map(|square| (square / unit + FLOOR).sqrt()).collect()
}

/// `sizes^alpha` over its geometric mean.
fn powers(sizes: &[f64], alpha: f32) -> Vec<f32> {
    let mean = sizes.iter().map(|size| size.ln()).sum::<f64>() / sizes.len().max(1) as f64;
    sizes.iter().map(|size| (f64::from(alpha) * (size.ln() - mean)).exp() as f32).collect()
}

/// What a reader loses when its columns times `scales` are rounded and its inputs divided by them; over at most so many rows,
/// spread over the whole. Infinite if scaled numbers are too large for the format.
fn rounding_loss(reader: &Reader<'_>, scales: &[f32], hessian: &Hessian, search: Search, most_rows: usize) -> f64 {
    let width = hessian.width();
    // An error of a scaled column reaches the outputs by that much less.
    let importance: Vec<f32> =
        hessian.importance().iter().zip(scales).map(|(square, scale)| square / (scale * scale)).collect();
    let stride = (reader.weights.len() / width).div_ceil(most_rows).max(1);
    let sampled: Vec<&[f32]> = reader.weights.chunks_exact(width).step_by(stride).collect();
    let lost = |rows: &[&[f32]]| -> f64 {
        let mut differences = vec![0.0; rows.len() * width];
        let round = |(out, row): (&mut [f32], &&[f32])| difference(row, reader.dtype, scales, &importance, search, out);
        match differences.par_chunks_exact_mut(width).zip(rows).all(round) {
            true => hessian.losses(&differences).into_iter().sum(),
            false => f64::INFINITY,
        }
    };
    sampled.chunks(CHOOSING_ROWS).map(lost).sum()
}

/// What a row is off by when it is scaled, rounded and scaled back. False if it is too large for the format when scaled.
fn difference(row: &[f32], dtype: DType, scales: &[f32], importance: &[f32], search: Search, out: &mut [f32]) -> bool {
    let scaled: Vec<f32> = row.iter().zip(scales).map(|(w, scale)| w * scale).collect();
    if saturates(dtype, &scaled) || scaled.iter().any(|x| !x.is_finite()) {
        return false;
    }
    let mut stored = vec![0; dtype.row_bytes(row.len()).expect("checked at entry")];
    quantize_row(dtype, &scaled, Some(importance), search, &mut stored);
    dequantize_row(dtype, &stored, out);
    out.iter_mut().zip(scales).zip(row).for_each(|((o, scale), w)| *o = w - *o / scale);
    true
}

#[cfg(test)]
mod tests;
