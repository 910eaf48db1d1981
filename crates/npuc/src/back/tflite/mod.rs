//! The TFLite back end: one file per graph, in f32, made of built-in operators only.
//!
//! MediaTek's compiler (`ncc-tflite`) and the LiteRT interpreter read these files. [`contract`] first puts a step
//! graph behind the ports that MediaTek's GenAI runtime drives.

use std::collections::{BTreeMap, BTreeSet};

use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::pass::Pass;
use crate::target::Checked;
use crate::tensor::{self, Tensor};

mod export;
pub mod ncc;
mod ops;
mod ports;
mod schema;
mod write;

#[cfg(test)]
mod tests;

pub use export::{Chunk, EMBEDDING_FILE, Export, Exported, chunks, export};
pub use ports::{HIDDEN_MASK, contract};
pub use write::{FILE_LIMIT_BYTES, StoredWeight, TfliteFile, write_f32};

/// The passes that leave only operations with a TFLite form. Softmax stays whole.
pub const PASSES: &[Pass] =
    &[Pass::DecomposeAttention, Pass::DecomposeRmsNorm, Pass::DecomposeRope, Pass::DecomposeSilu, Pass::Simplify];

/// Whether an operation of the IR has a form in TFLite.
pub(super) fn emits(op: &str) -> bool {
    let decomposed = ["attention", "rms_norm", "rope", "silu"];
    crate::ir::Op::NAMES.contains(&op) && !decomposed.contains(&op)
}

/// How matrices are stored; all arithmetic is in f32, and so are gains and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// Four bytes a number.
    F32,
    /// Two bytes a number, widened by a DEQUANTIZE before use.
    F16,
}

/// The graph as a TFLite file over the weights of those names. Ports keep their names and order. A computed
/// tensor is named `<path in the model>/<operation>.<value>`, so that a tool's message leads back to the IR.
///
/// The matrix of a convolution is written as its filter `[out, 1, 1, in]`.
///
/// Errors: an operation without a TFLite form; a matrix that is a filter and something else too; a port that is no result of its own; an extent above 2^31; a
/// weight that is absent, of another shape or beyond the range of `storage`; a file that would reach [`FILE_LIMIT_BYTES`].
pub fn emit(graph: &Checked, weights: &BTreeMap<String, Tensor>, storage: Storage) -> Result<TfliteFile> {
    let graph = graph.graph();
    let mut writer = write::Writer::new();
    let ports = output_names(graph)?;
    let filters = filters(graph)?;
    let mut tensors: Vec<i32> = Vec::with_capacity(graph.values.len());
    let mut inputs = Vec::new();
    for (id, value) in graph.ids().zip(&graph.values) {
        let shape = dims(&value.ty.shape)?;
        tensors.push(match &value.def {
            Def::Input => {
                inputs.push(writer.value(value.name.clone(), shape));
                inputs[inputs.len() - 1]
            }
            Def::Weight => {
                let (name, tensor) = (value.name.clone(), weight(weights, value)?);
                let shape = if filters.contains(&id) { vec![shape[0], 1, 1, shape[1]] } else { shape };
                match storage {
                    Storage::F16 if shape.len() > 1 => writer.half_weight(name, shape, tensor)?,
                    Storage::F16 | Storage::F32 => writer.weight(name, shape, tensor),
                }
            }
            Def::Op { op, args } => {
                let port = ports.get(&id).map(|&port| port.to_owned());
                let name = port.unwrap_or_else(|| format!("{}/{}.{}", value.name, op.name(), id.0));
                let result = writer.value(name, shape);
                let ranks: Vec<usize> = args.iter().map(|&arg| graph.value(arg).ty.shape.len()).collect();
                let args: Vec<i32> = args.iter().map(|arg| tensors[arg.index()]).collect();
                ops::lower(&mut writer, op, &ops::Call { value, args: &args, ranks: &ranks, result })?;
                result
            }
        });
    }
    let outputs: Vec<i32> = graph.outputs.iter().map(|output| tensors[output.value.index()]).collect();
    writer.finish(&graph.name, &inputs, &outputs)
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
