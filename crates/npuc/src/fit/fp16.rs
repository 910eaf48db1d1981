//! Counts weights that binary16 cannot hold: too large, or so small that they become zero.

use half::f16;
use rayon::prelude::*;

use crate::tensor::{DType, Tensor};

/// Elements that are read at a time.
const CHUNK: usize = 1 << 14;

/// What binary16 makes of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Counts {
    /// Finite elements that become infinite.
    pub(super) over: usize,
    /// Elements other than zero that become zero.
    pub(super) vanishing: usize,
    /// The largest finite magnitude.
    pub(super) largest: f32,
    /// All elements.
    pub(super) of: usize,
}

/// The f32 and bf16 tensors with elements that binary16 cannot hold, in the order of their names.
pub(super) fn outside(tensors: &[(&String, &Tensor)]) -> Vec<(String, Counts)> {
    let wide = |tensor: &Tensor| matches!(tensor.dtype, DType::F32 | DType::BF16);
    let counted =
        tensors.par_iter().filter(|(_, tensor)| wide(tensor)).map(|(name, tensor)| ((*name).clone(), count(tensor)));
    counted.filter(|(_, counts)| counts.over + counts.vanishing > 0).collect()
}

fn count(tensor: &Tensor) -> Counts {
    let none = Counts { over: 0, vanishing: 0, largest: 0.0, of: 0 };
    let merge = |a: Counts, b: Counts| Counts {
        over: a.over + b.over,
        vanishing: a.vanishing + b.vanishing,
        largest: a.largest.max(b.largest),
        of: a.of + b.of,
    };
    let element_bytes = tensor.dtype.block_bytes();
    let of_chunk = |values: &mut Vec<f32>, bytes: &[u8]| {
        let values = &mut values[..bytes.len() / element_bytes];
        npuc_kernels::dequant::dequantize_row(tensor.dtype, bytes, values);
        values.iter().fold(Counts { of: values.len(), ..none }, |counts, &value| {
            let held = f16::from_f32(value);
            Counts {
                over: counts.over + usize::from(value.is_finite() && held.is_infinite()),
                vanishing: counts.vanishing + usize::from(value != 0.0 && held.to_f32() == 0.0),
                largest: if value.is_finite() { counts.largest.max(value.abs()) } else { counts.largest },
                of: counts.of,
            }
        })
    };
    let chunks = tensor.stored_bytes().par_chunks(CHUNK * element_bytes);
    chunks.map_init(|| vec![0.0; CHUNK], |values, bytes| of_chunk(values, bytes)).reduce(|| none, merge)
}
