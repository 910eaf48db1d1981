//! Joined axes: which operations and axes, and that a step has no rank above 3 and the same bits.

use crate::build::weight_types;
use crate::ir::{Def, Graph, Op};
use crate::model::{self, CacheProtocol};
use crate::pass::host_tests::{checkpoint, keeps_bits, random_weights};
use crate::pass::tests::{check, read};
use crate::pass::{Pass, run};

/// Operands' types, a call with its type, and the call with its type on joined axes; `same` if there is none.
const CALLS: &[(&str, &str, &str)] = &[
    ("f32[2, 3, 4, 5]", "silu(%0) : f32[2, 3, 4, 5]", "silu(%1) : f32[6, 4, 5]"),
    (
        "f32[2, 3, 4, 5]",
        "affine(%0) {scale = 2.0, offset = 1.0} : f32[2, 3, 4, 5]",
        "affine(%1) {scale = 2.0, offset = 1.0} : f32[6, 4, 5]",
    ),
    ("f32[2, 3, 4, 5]", "softmax(%0) : f32[2, 3, 4, 5]", "softmax(%1) : f32[6, 4, 5]"),
    ("f32[2, 3, 4, 5]; f32[4, 5]", "add(%0, %1) : f32[2, 3, 4, 5]", "add(%2, %1) : f32[6, 4, 5]"),
    ("f32[2, 3, 4, 5]; f32[1]", "div(%1, %0) : f32[2, 3, 4, 5]", "div(%1, %2) : f32[6, 4, 5]"),
    ("f32[2, 3, 4, 5]; f32[1, 1, 4, 1]", "mul(%0, %1) : f32[2, 3, 4, 5]", "mul(%2, %3) : f32[6, 4, 5]"),
    // The first two stretch apart, the middle two do not.
    ("f32[2, 3, 4, 5]; f32[3, 4, 1]", "sub(%0, %1) : f32[2, 3, 4, 5]", "sub(%2, %3) : f32[2, 12, 5]"),
    ("f32[2, 3, 4, 5]; f32[3, 1, 5]", "sub(%0, %1) : f32[2, 3, 4, 5]", "same"),
    ("f32[1, 3, 4, 5]; f32[3, 1, 5]", "sub(%0, %1) : f32[1, 3, 4, 5]", "sub(%2, %1) : f32[3, 4, 5]"),
    ("f32[2, 1, 4, 5]; f32[1, 3, 4, 5]", "add(%0, %1) : f32[2, 3, 4, 5]", "add(%2, %3) : f32[2, 3, 20]"),
    (
        "f32[2, 3, 4, 5]; f32[2, 3, 6, 5]",
        "matmul(%0, %1) {transpose_b = true} : f32[2, 3, 4, 6]",
        "matmul(%2, %3) {transpose_b = true} : f32[6, 4, 6]",
    ),
    ("f32[2, 3, 4, 5]", "sum(%0) {axis = 3} : f32[2, 3, 4, 1]", "sum(%1) {axis = 2} : f32[6, 4, 1]"),
    ("f32[2, 3, 4, 5]", "mean(%0) {axis = 0} : f32[1, 3, 4, 5]", "mean(%1) {axis = 0} : f32[1, 12, 5]"),
    ("f32[2, 3, 4, 5]", "max(%0) {axis = 1} : f32[2, 1, 4, 5]", "max(%1) {axis = 1} : f32[2, 1, 20]"),
    (
        "f32[2, 3, 4, 5]; f32[2, 3, 1, 5]",
        "concat(%0, %1) {axis = 2} : f32[2, 3, 5, 5]",
        "concat(%2, %3) {axis = 1} : f32[6, 5, 5]",
    ),
    (
        "f32[2, 3, 4, 5]",
        "slice(%0) {axis = 1, start = 1, len = 2} : f32[2, 2, 4, 5]",
        "slice(%1) {axis = 1, start = 1, len = 2} : f32[2, 2, 20]",
    ),
    (
        "f32[2, 3, 4, 5]",
        "transpose(%0) {perm = [2, 0, 1, 3]} : f32[4, 2, 3, 5]",
        "transpose(%1) {perm = [1, 0, 2]} : f32[4, 6, 5]",
    ),
    ("f32[2, 3, 4, 5]", "transpose(%0) {perm = [3, 2, 1, 0]} : f32[5, 4, 3, 2]", "same"),
    ("f32[2, 3, 4, 6]; f32[4, 3]; f32[4, 3]", "rope(%0, %1, %2) : f32[2, 3, 4, 6]", "rope(%3, %1, %2) : f32[6, 4, 6]"),
    (
        "f32[2, 3, 4, 5]; f32[5]",
        "rms_norm(%0, %1) {eps = 1e-5} : f32[2, 3, 4, 5]",
        "rms_norm(%2, %1) {eps = 1e-5} : f32[6, 4, 5]",
    ),
    ("f32[2, 3, 4, 5]; f32[7, 5]", "linear(%0, %1) : f32[2, 3, 4, 7]", "linear(%2, %1) : f32[6, 4, 7]"),
    ("f32[1, 3, 4, 5]; f32[7, 5]", "pointwise_conv(%0, %1) : f32[1, 3, 4, 7]", "same"),
    ("f32[2, 3, 4]", "softmax(%0) : f32[2, 3, 4]", "same"),
    ("f32[6, 4]", "reshape(%0) {shape = [2, 3, 2, 2]} : f32[2, 3, 2, 2]", "same"),
];

fn graph(types: &str, call: &str) -> Graph {
    let types: Vec<&str> = types.split("; ").collect();
    let inputs: String = types.iter().enumerate().map(|(i, ty)| format!("%{i} = input \"{i}\" : {ty}\n")).collect();
    read(&format!("{inputs}%{} = {call}\noutput \"y\" = %{0}", types.len()))
}

#[test]
fn axes_that_are_not_told_apart_are_joined() {
    for &(types, call, expected) in CALLS {
        let before = graph(types, call);
        let after = keeps_bits(&before, &random_weights(&before), &[Pass::JoinAxes]);
        if expected == "same" {
            assert_eq!(after, before, "{call}");
        } else {
            let text = after.to_string();
            assert!(
                text.lines().any(|line| line.trim_start().split_once(" = ").is_some_and(|(_, c)| c == expected)),
                "{text}"
            );
            let wide = after.values.iter().filter(|value| value.ty.shape.len() > 3);
            let moves = |def: &Def| matches!(def, Def::Input | Def::Op { op: Op::Reshape { .. }, .. });
            assert!(wide.into_iter().all(|value| moves(&value.def)), "{text}");
        }
    }
}

#[test]
fn a_weight_that_is_no_f32_is_not_reshaped() {
    let body = |ty: &str| {
        format!(
            "%0 = input \"x\" : f32[2, 3, 4, 5]\n%1 = weight \"w\" : {ty}\n%2 = mul(%0, %1) : f32[2, 3, 4, 5]\noutput \"y\" = %2"
        )
    };
    check(Pass::JoinAxes, &body("bf16[2, 3, 4, 5]"), &body("bf16[2, 3, 4, 5]"));
    let after = r#"%0 = input "x" : f32[2, 3, 4, 5]
%1 = weight "w" : bf16[4, 1]
%2 = reshape(%0) {shape = [6, 4, 5]} : f32[6, 4, 5]
%3 = mul(%2, %1) : f32[6, 4, 5]
%4 = reshape(%3) {shape = [2, 3, 4, 5]} : f32[2, 3, 4, 5]
output "y" = %4"#;
    check(Pass::JoinAxes, &body("bf16[4, 1]"), after);
}

fn largest_rank(graph: &Graph) -> usize {
    graph.values.iter().map(|value| value.ty.shape.len()).max().unwrap()
}

#[test]
fn a_step_has_no_rank_above_three() {
    for name in ["llama-gqa3-q4_1.gguf", "qwen3-bf16", "llama-biases-f32"] {
        let checkpoint = checkpoint(name);
        let types = weight_types(&checkpoint.tensors);
        for (shape, protocol) in
            ["8t12c", "1t12c", "12t12c"].into_iter().flat_map(|shape| CacheProtocol::ALL.map(|p| (shape, p)))
        {
            let graph = model::build_step(&checkpoint.config, &types, shape.parse().unwrap(), protocol).unwrap();
            let all = [Pass::DecomposeAttention, Pass::DecomposeRmsNorm, Pass::DecomposeRope];
            for plain in [&all[..1], &all] {
                let plain = run(graph.clone(), plain, |_, _, _| {}).unwrap();
                assert_eq!(largest_rank(&plain), 4);
                let after = keeps_bits(&plain, &checkpoint.tensors, &[Pass::JoinAxes, Pass::Simplify]);
                assert_eq!(largest_rank(&after), 3, "{name} {shape} {protocol:?}");
            }
        }
    }
}
