//! The TFLite back end: one file per graph, in f32 or int16, made of built-in operators only.
//!
//! MediaTek's compiler (`ncc-tflite`) and the LiteRT interpreter read these files. [`contract`] first puts a step
//! graph behind the ports that MediaTek's GenAI runtime drives.

use std::collections::{BTreeMap, BTreeSet};

use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::pass::Pass;
use crate::quant::{Ranges, WeightFormat};
use crate::target::Checked;
use crate::tensor::{self, Tensor};

mod emit;
mod export;
pub mod ncc;
mod ops;
mod ports;
mod schema;
mod write;

#[cfg(test)]
mod integer_tests;
#[cfg(test)]
mod tests;

pub use export::{EMBEDDING_FILE, EMBEDDING_FILE_INT16, Export, Exported, chunks, export, runtime_shapes};
pub use ports::{HIDDEN_MASK, contract};
pub use write::{FILE_LIMIT_BYTES, PortScale, StoredForm, StoredWeight, TfliteFile, write_f32};

/// The passes that leave only operations with a TFLite form. Softmax stays whole.
pub const PASSES: &[Pass] = &[
    Pass::DecomposeAttention,
    Pass::DecomposeShortConv,
    Pass::DecomposeRmsNorm,
    Pass::DecomposeLayerNorm,
    Pass::DecomposeRope,
    Pass::DecomposeSilu,
    Pass::Simplify,
];

/// Whether an operation of the IR has a form in TFLite.
pub(super) fn emits(op: &str) -> bool {
    let decomposed = ["attention", "short_conv", "rms_norm", "layer_norm", "rope", "silu"];
    crate::ir::Op::NAMES.contains(&op) && !decomposed.contains(&op)
}

/// How matrices are stored, and with that what is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Storage<'a> {
    /// Four bytes a number; arithmetic is in f32.
    F32,
    /// Two bytes a number, widened by a DEQUANTIZE before use; arithmetic, gains and biases are in f32.
    F16,
    /// Whole numbers with a scale for each output channel, int64 biases, and int16 activations with a scale for each
    /// tensor, see [`scales`](crate::quant::scales()). RMS normalisations, the residual stream and values with a few far
    /// larger elements are computed in f32.
    Integer {
        /// How matrices are stored that are not in int8 or int4 already.
        weights: WeightFormat,
        /// The ranges of the part of the model that the graph computes.
        ranges: &'a Ranges,
    },
}

impl Storage<'_> {
    /// MediaTek's name of the precision, which is part of file names.
    pub const fn precision(self) -> &'static str {
        match self {
            Storage::F32 | Storage::F16 => "FP",
            Storage::Integer { weights: WeightFormat::Int16, .. } => "16W16A",
            Storage::Integer { weights: WeightFormat::Int8, .. } => "8W16A",
            Storage::Integer { weights: WeightFormat::Int4, .. } => "4W16A",
        }
    }
}

/// The graph as a TFLite file over the weights of those names. Ports keep their names and order. A computed
/// tensor is named `<path in the model>/<operation>.<value>`, so that a tool's message leads back to the IR.
///
/// The matrix of a convolution is written as its filter `[out, 1, 1, in]`.
///
/// With [`Storage::Integer`] every port is int16.
///
/// Errors: an operation without a TFLite form; a matrix that is a filter and something else too; a port that is no result of its own; an extent above 2^31; a
/// weight that is absent, of another shape or beyond the range of `storage`; a range that is not known or has no
/// scale ([`Code::BadRange`]); a file that would reach [`FILE_LIMIT_BYTES`].
pub fn emit(graph: &Checked, weights: &BTreeMap<String, Tensor>, storage: Storage<'_>) -> Result<TfliteFile> {
    emit::emit(graph.graph(), weights, storage, graph.question().outer_buffers)
}

/// The weights that are matrices of convolutions and nothing else.
fn filters(graph: &Graph) -> Result<BTreeSet<ValueId>> {
    let mut filters = BTreeSet::new();
    let mut others = BTreeSet::new();
    for value in &graph.values {
        let Def::Op { op, args } = &value.def else { continue };
        for (position, &arg) in args.iter().enumerate() {
            let is_filter = matches!(op, Op::PointwiseConv {}) && position == 1;
            if is_filter { &mut filters } else { &mut others }.insert(arg);
        }
    }
    for &filter in &filters {
        let value = graph.value(filter);
        if value.def != Def::Weight || others.contains(&filter) {
            return Err(Diagnostic::error(
                Code::Misfit,
                "a matrix is the filter of a convolution and something else too",
            )
            .subject(&value.name)
            .need("a weight that only `pointwise_conv` reads, as its matrix")
            .have(format!("{filter} : {}", value.ty))
            .help("run the pass `linear-to-conv`, which makes a convolution of every projection")
            .into());
        }
    }
    Ok(filters)
}

/// The port name of every value that leaves.
fn output_names(graph: &Graph) -> Result<BTreeMap<ValueId, &str>> {
    let mut names = BTreeMap::new();
    for output in &graph.outputs {
        let computed = matches!(graph.value(output.value).def, Def::Op { .. });
        if !computed || names.insert(output.value, output.name.as_str()).is_some() {
            return Err(Diagnostic::error(Code::Misfit, "an output of a TFLite file is a result of its own")
                .subject(&output.name)
                .need("an operation whose result leaves under one name")
                .have(format!("{}, which enters or leaves under another name too", output.value))
                .into());
        }
    }
    Ok(names)
}

fn weight(weights: &BTreeMap<String, Tensor>, value: &crate::ir::Value) -> Result<Tensor> {
    let fault = |code, message: &str| Diagnostic::error(code, message).subject(&value.name).need(&value.ty);
    match tensor::weight(weights, &value.name) {
        None => Err(fault(Code::MissingTensor, "the graph uses a weight that is not there").into()),
        Some(tensor) if tensor.dtype != value.ty.dtype || tensor.shape != value.ty.shape => {
            let fault = fault(Code::WrongShape, "a weight has another type than the graph says");
            Err(fault.have(format!("{}{}", tensor.dtype, tensor.shape)).into())
        }
        Some(tensor) => Ok(tensor),
    }
}

/// Extents as TFLite stores them.
fn dims(shape: &[usize]) -> Result<Vec<i32>> {
    let dim = |&extent: &usize| {
        i32::try_from(extent).map_err(|_| {
            Diagnostic::error(Code::Misfit, "an extent is too large for TFLite")
                .need(format!("at most {}", i32::MAX))
                .have(extent)
                .into()
        })
    };
    shape.iter().map(dim).collect()
}
