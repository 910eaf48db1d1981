//! Finds NaN and infinity in weights. The one thing in the front ends that reads all of them.

use rayon::prelude::*;

use super::{Checkpoint, weights};
use crate::diag::{Code, Diagnostic};
use crate::tensor::Tensor;

/// One warning for each weight that holds NaN or infinity, with how many. Reads every weight, in parallel.
pub fn non_finite(checkpoint: &Checkpoint) -> Vec<Diagnostic> {
    let tensors: Vec<(&String, &Tensor)> = checkpoint.tensors.iter().collect();
    tensors
        .into_par_iter()
        .filter_map(|(name, tensor)| {
            let (nan, infinite) = count(tensor);
            tensor.release(0..tensor.byte_len());
            if nan + infinite == 0 {
                return None;
            }
            let warning = Diagnostic::warning(Code::NonFiniteWeights, "a weight holds values that are not finite");
            let warning = warning
                .subject(weights::stored_name(&checkpoint.config, checkpoint.source, name))
                .need("finite values")
                .have(format!("{nan} NaN and {infinite} infinite of {}", tensor.shape.elements().unwrap_or(0)));
            Some(tensor.file().into_iter().fold(warning, Diagnostic::file))
        })
        .collect()
}

/// How many elements are NaN and how many infinite.
fn count(tensor: &Tensor) -> (usize, usize) {
    let cols = tensor.shape.last().copied().unwrap_or(1);
    let Some(row_bytes) = tensor.dtype.row_bytes(cols).filter(|&bytes| bytes > 0) else { return (0, 0) };
    tensor
        .stored_bytes()
        .par_chunks_exact(row_bytes)
        .map_init(
            || vec![0.0; cols],
            |values, bytes| {
                npuc_kernels::dequant::dequantize_row(tensor.dtype, bytes, values);
                let nan = values.iter().filter(|value| value.is_nan()).count();
                (nan, values.iter().filter(|value| value.is_infinite()).count())
            },
        )
        .reduce(|| (0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
}
