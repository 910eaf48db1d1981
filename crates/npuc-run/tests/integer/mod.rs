//! Graphs in whole numbers in the LiteRT interpreter, and their weights as the host has to see them.
#![allow(dead_code, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs::File;

use npuc::back::tflite::{Storage, emit};
use npuc::exec::to_f32;
use npuc::ir::Graph;
use npuc::quant::{self, WeightFormat};
use npuc::target::{self, Question, host};
use npuc::tensor::{DType, Shape, Tensor};
use npuc_run::device::litert::{LiteRt, Model, TIME_LIMIT};

use crate::data::litert_tool;

/// The interpreter, where it is to be used.
pub(crate) fn litert() -> Option<LiteRt> {
    litert_tool().map(|tool| LiteRt::start(&tool, TIME_LIMIT).unwrap())
}

/// Emits a graph and loads the file.
pub(crate) fn load(
    litert: &mut LiteRt,
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    storage: Storage<'_>,
) -> Model {
    let file =
        emit(&target::check(graph.clone(), &host(), &Question::stored(&host())).unwrap(), weights, storage).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("g.tflite");
    file.write_to(&mut File::create(&path).unwrap()).unwrap();
    litert.load(&path, 2).unwrap()
}

/// A weight in f32.
pub(crate) fn tensor(shape: Shape, numbers: &[f32]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::in_memory(DType::F32, shape, bytes.into()).unwrap()
}

/// The numbers that a weight has after rounding, by rows for a matrix.
pub(crate) fn rounded(name: &str, tensor_of: &Tensor, format: WeightFormat) -> Tensor {
    let scales = quant::row_scales(name, tensor_of, format).unwrap();
    let cols = *tensor_of.shape.last().unwrap();
    let rows = to_f32(tensor_of);
    let rows = rows.chunks(cols).zip(scales).flat_map(|(row, s)| row.iter().map(move |x| (x / s).round() * s));
    tensor(tensor_of.shape.clone(), &rows.collect::<Vec<f32>>())
}
