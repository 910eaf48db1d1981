//! Graphs before and after a pass on the host, over numbers that depend on nothing but the names of ports and weights.

use std::collections::BTreeMap;
use std::path::Path;

use half::bf16;

use super::{Pass, run};
use crate::exec::Executor;
use crate::front::{self, Checkpoint};
use crate::ir::{Def, Graph};
use crate::tensor::{DType, Tensor};

/// Numbers within `-size..size`.
pub(super) fn noise(name: &str, len: usize, size: f64) -> Vec<f64> {
    let mut state =
        name.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0) * size
    };
    (0..len).map(|_| next()).collect()
}

/// The graph's weights, all bf16 or f32 and within -1..1.
pub(super) fn random_weights(graph: &Graph) -> BTreeMap<String, Tensor> {
    let weights = graph.values.iter().filter(|value| value.def == Def::Weight);
    let tensor = |value: &crate::ir::Value| {
        let numbers = noise(&value.name, value.ty.shape.iter().product(), 1.0);
        let bytes: Vec<u8> = if value.ty.dtype == DType::BF16 {
            numbers.iter().flat_map(|&x| bf16::from_f64(x).to_le_bytes()).collect()
        } else {
            numbers.iter().flat_map(|&x| (x as f32).to_le_bytes()).collect()
        };
        let tensor = Tensor::in_memory(value.ty.dtype, value.ty.shape.clone(), bytes.into()).unwrap();
        (value.name.clone(), tensor)
    };
    weights.map(tensor).collect()
}

/// The outputs by name, over inputs within `-size..size`.
pub(super) fn outputs(graph: &Graph, weights: &BTreeMap<String, Tensor>, size: f64) -> BTreeMap<String, Vec<f32>> {
    let mut executor = Executor::new(graph, weights, &[]).unwrap();
    let input = |(name, len): (&str, usize)| noise(name, len, size).iter().map(|&x| x as f32).collect();
    let inputs: Vec<Vec<f32>> = executor.inputs().map(input).collect();
    executor.run(&[&inputs]);
    let names: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
    names.into_iter().enumerate().map(|(i, name)| (name, executor.output(i).to_vec())).collect()
}

/// Runs the passes and finds the outputs unchanged, bit for bit but for the sign of zeros; gives the new graph.
pub(super) fn keeps_bits(graph: &Graph, weights: &BTreeMap<String, Tensor>, passes: &[Pass]) -> Graph {
    let after = run(graph.clone(), passes, |_, _, _| {}).unwrap();
    assert!(outputs(graph, weights, 1.0) == outputs(&after, weights, 1.0), "{passes:?}\n{graph}\n{after}");
    after
}

pub(super) fn checkpoint(name: &str) -> Checkpoint {
    front::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name)).unwrap()
}
