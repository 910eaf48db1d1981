//! Whole numbers instead of real ones: what ranges the values of a model have, which scales follow, how weights are rounded.
//!
//! A [`Scales`] is symmetric: the number `q` of a value with the scale `s` means `q · s`. An [`Encoding`] has an offset too.

use std::collections::HashMap;

use crate::back::ROTARY;
use crate::ir::{Def, Graph, Op, Value};
use crate::model::Port;

pub mod awq;
mod encoding;
pub mod fold;
pub mod gptq;
mod groups;
pub mod hadamard;
pub mod hessian;
mod histogram;
pub mod plan;
mod ranges;
pub mod recipe;
mod scales;
pub mod solve;
pub mod stream;
mod weights;

#[cfg(test)]
mod tests;

pub use encoding::{Activation, Cache, Encoding, Encodings, Real, Scheme, qualcomm, tflite};
pub use histogram::{Histogram, Method, Steps};
pub use ranges::{Ranges, Recorder};
pub use scales::{MASK_MARGIN, Scales, scales, share_boundary};
pub use weights::{SMALLEST_ROW, WeightFormat, largest, quantised_bytes, row_scales, saturated, write_rows};

/// The largest whole number of an activation; -32768 is left to the mask.
pub const INT16_MAX: f32 = 32767.0;

/// The scale of everything that SOFTMAX and LOGISTIC compute in int16. Source: the quantisation specification of TFLite.
pub const UNIT_SCALE: f32 = 1.0 / 32768.0;

/// The largest magnitude; infinity in place of NaN, which must not vanish in a maximum.
fn largest_magnitude(elements: &[f32]) -> f32 {
    let magnitude = |x: &f32| if x.is_nan() { f32::INFINITY } else { x.abs() };
    elements.iter().map(magnitude).fold(0.0, f32::max)
}

/// The key of every value that has one.
fn keys(graph: &Graph) -> Vec<Option<String>> {
    let masked = groups::masked(graph);
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    let key = |(index, value): (usize, &Value)| match &value.def {
        Def::Input => (!masked[index] && !rotary(value)).then(|| value.name.clone()),
        Def::Weight => None,
        Def::Op { op, .. } if moves(op) || unit(op) || masked[index] => None,
        Def::Op { op, .. } => Some(format!("{}/{}", value.name, op.name())),
    };
    let keys: Vec<Option<String>> = graph.values.iter().enumerate().map(key).collect();
    let numbered = graph.values.iter().zip(keys).map(|(value, key)| match &value.def {
        Def::Input | Def::Weight => key,
        Def::Op { op, .. } => key.map(|key| {
            let count = counts.entry((&value.name, op.name())).or_default();
            *count += 1;
            format!("{key}.{}", *count - 1)
        }),
    });
    numbered.collect()
}

/// Whether an operation gives numbers of its operands, unchanged.
const fn moves(op: &Op) -> bool {
    op.only_moves() || matches!(op, Op::Max { .. })
}

/// Whether a value is a port of cosines and sines. A runtime that fills it has to know its scale beforehand.
fn rotary(value: &Value) -> bool {
    let table = || matches!(value.name.parse(), Ok(Port::RopeCos | Port::RopeSin));
    value.def == Def::Input && (value.name == ROTARY || table())
}

/// Whether an operation's results have [`UNIT_SCALE`].
const fn unit(op: &Op) -> bool {
    matches!(op, Op::Softmax {} | Op::Sigmoid {})
}
