//! Attention head by head: how it reads, and that the host computes what it computes of the whole.

use crate::build::weight_types;
use crate::ir::{Def, Graph, GraphBuilder, Op};
use crate::model::{self, CacheProtocol};
use crate::pass::host_tests::{checkpoint, outputs, random_weights};
use crate::pass::tests::check;
use crate::pass::{Pass, run};

#[test]
fn a_split_attention_reads_as_documented() {
    let ports = r#"%1 = input "past_k" : f32[2, 7, 5]
%2 = input "past_v" : f32[2, 7, 5]
%3 = input "k" : f32[2, 4, 5]
%4 = input "v" : f32[2, 4, 5]
%5 = input "mask" : f32[4, 11]"#;
    let before = format!(
        "%0 = input \"q\" : f32[4, 4, 5]\n{ports}\n%6 = attention(%0, %1, %2, %3, %4, %5) {{scale = 0.5}} : f32[4, 4, 5] @ \"a\"\noutput \"y\" = %6"
    );
    let joined = r#"%6 = affine(%0) {scale = 0.5, offset = 0.0} : f32[4, 4, 5] @ "a"
%7 = concat(%1, %3) {axis = 1} : f32[2, 11, 5] @ "a"
%8 = concat(%2, %4) {axis = 1} : f32[2, 11, 5] @ "a""#;
    let cut = |id: usize, from: usize, index: usize, rows: usize| {
        format!(r#"%{id} = slice(%{from}) {{axis = 0, start = {index}, len = 1}} : f32[1, {rows}, 5] @ "a""#)
    };
    let head = |id: usize, query: usize, k: usize| {
        let lines = [
            cut(id, 6, query, 4),
            format!(r#"%{} = matmul(%{id}, %{k}) {{transpose_b = true}} : f32[1, 4, 11] @ "a""#, id + 1),
            format!(r#"%{} = add(%{}, %5) : f32[1, 4, 11] @ "a""#, id + 2, id + 1),
            format!(r#"%{} = softmax(%{}) : f32[1, 4, 11] @ "a""#, id + 3, id + 2),
            format!(r#"%{} = matmul(%{}, %{}) {{transpose_b = false}} : f32[1, 4, 5] @ "a""#, id + 4, id + 3, k + 1),
        ];
        lines.join("\n")
    };
    let after = [
        "%0 = input \"q\" : f32[4, 4, 5]".to_owned(),
        ports.to_owned(),
        joined.to_owned(),
        cut(9, 7, 0, 11),
        cut(10, 8, 0, 11),
        head(11, 0, 9),
        head(16, 1, 9),
        cut(21, 7, 1, 11),
        cut(22, 8, 1, 11),
        head(23, 2, 21),
        head(28, 3, 21),
        "%33 = concat(%15, %20, %27, %32) {axis = 0} : f32[4, 4, 5] @ \"a\"\noutput \"y\" = %33".to_owned(),
    ];
    check(Pass::SplitAttention, &before, &after.join("\n"));
}

fn attention(heads: usize, kv: usize, tokens: usize, capacity: usize, dim: usize) -> Graph {
    let mut g = GraphBuilder::new("g");
    let q = g.input("q", [heads, tokens, dim]);
    let past = ["past_k", "past_v"].map(|name| g.input(name, [kv, capacity, dim]));
    let new = ["k", "v"].map(|name| g.input(name, [kv, tokens, dim]));
    let mask = g.input("mask", [tokens, capacity + tokens]);
    let scale = 1.0 / (dim as f32).sqrt();
    let y = g.op("a", Op::Attention { scale }, &[q, past[0], past[1], new[0], new[1], mask]);
    g.output("y", y);
    g.finish()
}

/// The largest difference, as a share of the largest magnitude.
fn relative(have: &[f32], need: &[f32]) -> f32 {
    let largest = |numbers: &mut dyn Iterator<Item = f32>| numbers.fold(0.0f32, |m, x| m.max(x.abs()));
    let off = largest(&mut have.iter().zip(need).map(|(a, b)| a - b));
    off / largest(&mut need.iter().copied())
}

#[test]
fn heads_together_are_the_whole() {
    for (heads, kv) in [(1, 1), (4, 1), (4, 4), (6, 2), (9, 3), (14, 2)] {
        for (tokens, capacity, dim) in [(1, 5, 8), (4, 12, 16), (7, 1, 64), (1, 200, 64)] {
            for size in [0.1, 1.0] {
                let whole = attention(heads, kv, tokens, capacity, dim);
                let split = run(whole.clone(), &[Pass::SplitAttention, Pass::Simplify], |_, _, _| {}).unwrap();
                let [need, have] =
                    [&whole, &split].map(|graph| outputs(graph, &random_weights(graph), size).remove("y").unwrap());
                let off = relative(&have, &need);
                assert!(off <= 1e-6, "{heads} {kv} {tokens} {capacity} {dim} {size}: {off:e}\n{split}");
                let products = split.values.iter().filter(|v| matches!(v.def, Def::Op { op: Op::MatMul { .. }, .. }));
                assert_eq!(products.count(), 2 * heads);
            }
        }
    }
}

/// Steps of whole models: no attention is left, no rank is above 3, and the scores are those of the whole.
#[test]
fn a_step_in_heads_is_the_step() {
    for name in ["llama-gqa3-q4_1.gguf", "qwen3-bf16", "llama-biases-f32"] {
        let checkpoint = checkpoint(name);
        let types = weight_types(&checkpoint.tensors);
        for (shape, protocol) in
            ["8t12c", "1t12c", "12t12c"].into_iter().flat_map(|shape| CacheProtocol::ALL.map(|p| (shape, p)))
        {
            let graph = model::build_step(&checkpoint.config, &types, shape.parse().unwrap(), protocol).unwrap();
            let split = run(graph.clone(), &[Pass::SplitAttention, Pass::Simplify], |_, _, _| {}).unwrap();
            let is_whole = |value: &crate::ir::Value| matches!(value.def, Def::Op { op: Op::Attention { .. }, .. });
            assert!(!split.values.iter().any(is_whole));
            assert!(split.values.iter().all(|value| value.ty.shape.len() <= 3), "{name}");
            let [need, have] = [&graph, &split].map(|graph| outputs(graph, &checkpoint.tensors, 1.0));
            for (port, need) in &need {
                let off = relative(&have[port], need);
                assert!(off <= 1e-5, "{name} {shape} {protocol:?} {port}: {off:e}");
            }
        }
    }
}
