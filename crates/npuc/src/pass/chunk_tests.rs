//! Chunks computed one after the other give exactly what the whole graph gives.

use std::collections::BTreeMap;

use super::*;
use crate::exec::Executor;
use crate::front::ModelConfig;
use crate::front::config::{LlamaArchitecture, LlamaConfig, Rope, RopeScaling};
use crate::ir::verify::verify;
use crate::model::{CacheProtocol, StepShape, build_step, weight_specs};
use crate::pass::{Pass, run};
use crate::tensor::{DType, Tensor};

fn config(tied: bool) -> ModelConfig {
    ModelConfig::Llama(LlamaConfig {
        architecture: LlamaArchitecture::Qwen2,
        hidden: 8,
        ffn: 12,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        vocab: 11,
        max_positions: 16,
        rms_eps: 1e-5,
        rope: Rope { theta: 10000.0, scaling: RopeScaling::None },
        qkv_bias: true,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied,
    })
}

/// Numbers between -1 and 1 that differ from call to call.
fn numbers(seed: &mut u32, len: usize) -> Vec<f32> {
    let mut next = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (*seed >> 8) as f32 / (1u32 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// The outputs of a graph, by name.
fn outputs(
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    known: &BTreeMap<String, Vec<f32>>,
) -> BTreeMap<String, Vec<f32>> {
    let mut executor = Executor::new(graph, weights, &[]).unwrap();
    let inputs: Vec<Vec<f32>> = executor.inputs().map(|(name, _)| known[name].clone()).collect();
    executor.run(&[&inputs]);
    let names: Vec<String> = executor.outputs().map(str::to_owned).collect();
    names.into_iter().enumerate().map(|(port, name)| (name, executor.output(port).to_vec())).collect()
}

#[test]
fn chunks_compute_what_the_whole_computes() {
    let mut seed = 1;
    for tied in [false, true] {
        let config = config(tied);
        let mut weights = BTreeMap::new();
        for spec in weight_specs(&config) {
            let values = numbers(&mut seed, spec.shape.elements().unwrap());
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            weights.insert(spec.name, Tensor::in_memory(DType::F32, spec.shape, bytes.into()).unwrap());
        }
        let types = crate::build::weight_types(&weights);
        for protocol in CacheProtocol::ALL {
            let shape = StepShape { tokens: 3, capacity: 5 };
            let graph = build_step(&config, &types, shape, protocol).unwrap();
            for passes in [vec![], vec![Pass::Decompose, Pass::Simplify]] {
                let graph = run(graph.clone(), &passes, |_, _, _| {}).unwrap();
                let inputs: BTreeMap<String, Vec<f32>> = graph
                    .values
                    .iter()
                    .filter(|value| value.def == Def::Input)
                    .map(|value| (value.name.clone(), numbers(&mut seed, value.ty.shape.elements().unwrap())))
                    .collect();
                let whole = outputs(&graph, &weights, &inputs);
                for sizes in [vec![4], vec![1, 3], vec![2, 1, 1], vec![1, 1, 1, 1]] {
                    let mut known = inputs.clone();
                    let mut all = BTreeMap::new();
                    for chunk in chunks(&graph, &sizes).unwrap() {
                        verify(&chunk).unwrap();
                        let new = outputs(&chunk, &weights, &known);
                        known.extend(new.clone());
                        all.extend(new);
                    }
                    all.retain(|name, _| !name.starts_with("carry."));
                    assert_eq!(all, whole, "{sizes:?} {protocol:?} {passes:?}");
                }
            }
        }
    }
}

#[test]
fn one_value_is_carried_between_layers() {
    let config = config(false);
    let types =
        weight_specs(&config).into_iter().map(|spec| (spec.name, Type { dtype: DType::F32, shape: spec.shape }));
    let types = types.collect();
    let shape = StepShape { tokens: 1, capacity: 4 };
    let graph = build_step(&config, &types, shape, CacheProtocol::Append).unwrap();
    let carried = |graph: &Graph| graph.outputs.iter().filter(|output| output.name.starts_with("carry.")).count();
    let counts: Vec<usize> = chunks(&graph, &[2, 1, 1]).unwrap().iter().map(carried).collect();
    assert_eq!(counts, [1, 1, 0]);
}

#[test]
fn chunks_make_up_the_layers() {
    let config = config(true);
    let types =
        weight_specs(&config).into_iter().map(|spec| (spec.name, Type { dtype: DType::F32, shape: spec.shape }));
    let graph =
        build_step(&config, &types.collect(), StepShape { tokens: 1, capacity: 4 }, CacheProtocol::Append).unwrap();
    assert_eq!(layers(&graph), 4);
    for sizes in [vec![], vec![3], vec![5], vec![4, 0], vec![usize::MAX, 5]] {
        let error = chunks(&graph, &sizes).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::BadArgument, "{sizes:?}");
    }
}
