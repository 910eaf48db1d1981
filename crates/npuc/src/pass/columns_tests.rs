//! Caches of keys by columns: how they read, and which caches stay as they are.

use crate::build::weight_types;
use crate::ir::{Def, Graph, Op};
use crate::model::{self, CacheProtocol, Port, StateKind};
use crate::pass::host_tests::checkpoint;
use crate::pass::tests::check;
use crate::pass::{Pass, run};

/// One token against three rows of one head of width 2, its queries already scaled.
const BEFORE: &str = r#"%0 = input "q" : f32[1, 1, 2]
%1 = input "write_mask" : f32[1, 3, 1]
%2 = input "past_k.0" : f32[1, 3, 2]
%3 = input "k" : f32[1, 1, 2]
%4 = concat(%2, %3) {axis = 1} : f32[1, 4, 2]
%5 = matmul(%0, %4) {transpose_b = true} : f32[1, 1, 4]
%6 = affine(%1) {scale = -1.0, offset = 1.0} : f32[1, 3, 1]
%7 = mul(%2, %6) : f32[1, 3, 2]
%8 = mul(%1, %3) : f32[1, 3, 2]
%9 = add(%7, %8) : f32[1, 3, 2]
output "scores" = %5
output "next_k.0" = %9"#;

#[test]
fn a_cache_by_columns_reads_as_documented() {
    let after = r#"%0 = input "q" : f32[1, 1, 2]
%1 = input "write_mask" : f32[1, 3, 1]
%2 = input "past_k.0" : f32[1, 2, 3]
%3 = input "k" : f32[1, 1, 2]
%4 = matmul(%0, %2) {transpose_b = false} : f32[1, 1, 3]
%5 = reshape(%3) {shape = [1, 2, 1]} : f32[1, 2, 1]
%6 = matmul(%0, %5) {transpose_b = false} : f32[1, 1, 1]
%7 = concat(%4, %6) {axis = 2} : f32[1, 1, 4]
%8 = affine(%1) {scale = -1.0, offset = 1.0} : f32[1, 3, 1]
%9 = reshape(%8) {shape = [1, 1, 3]} : f32[1, 1, 3]
%10 = mul(%2, %9) : f32[1, 2, 3]
%11 = reshape(%3) {shape = [1, 2, 1]} : f32[1, 2, 1]
%12 = reshape(%1) {shape = [1, 1, 3]} : f32[1, 1, 3]
%13 = mul(%11, %12) : f32[1, 2, 3]
%14 = add(%10, %13) : f32[1, 2, 3]
output "scores" = %7
output "next_k.0" = %14"#;
    check(Pass::KeysAsColumns, BEFORE, after);
}

/// A cache that something else reads, or that leaves otherwise, stays.
#[test]
fn other_caches_stay() {
    for (from, to) in [
        (r#"output "scores" = %5"#, "output \"scores\" = %5\noutput \"joined\" = %4"),
        (r#"output "next_k.0" = %9"#, r#"output "next_k.1" = %9"#),
        (r#"output "next_k.0" = %9"#, r#"output "kept" = %9"#),
        (r#"input "past_k.0""#, r#"input "past_v.0""#),
        ("transpose_b = true} : f32[1, 1, 4]", "transpose_b = true} : f32[1, 1, 4]\n%999 = exp(%2) : f32[1, 3, 2]"),
    ] {
        let text = BEFORE.replace(from, to);
        assert_ne!(text, BEFORE);
        let text = if text.contains("%999") { renumbered(&text) } else { text };
        check(Pass::KeysAsColumns, &text, &text);
    }
}

/// The graph with `%999` in the place of `%6`, which it is an output of, and later values one further.
fn renumbered(text: &str) -> String {
    let shift = |text: String, n: usize| text.replace(&format!("%{n} "), &format!("%{} ", n + 1));
    let mut text = format!("{text} ").replace('\n', " \n");
    for n in (6..10).rev() {
        text = shift(text, n);
        text = text
            .replace(&format!("%{n})"), &format!("%{})", n + 1))
            .replace(&format!("%{n},"), &format!("%{},", n + 1));
    }
    format!("{}\noutput \"also\" = %6", text.replace("%999", "%6").replace(" \n", "\n").trim_end())
}

fn key_ports(graph: &Graph) -> Vec<Vec<usize>> {
    let key = |name: &str| matches!(name.parse(), Ok(Port::Past(StateKind::Key, _) | Port::Next(StateKind::Key, _)));
    let inputs = graph.values.iter().filter(|value| value.def == Def::Input && key(&value.name));
    let outputs = graph.outputs.iter().filter(|output| key(&output.name)).map(|output| graph.value(output.value));
    inputs.chain(outputs).map(|value| value.ty.shape.to_vec()).collect()
}

/// In steps of whole models the caches of all layers change where they go round as a whole, and nowhere else; then no product
/// with a past key transposes it.
#[test]
fn whole_models_change_where_caches_go_round() {
    for name in ["qwen3-bf16", "lfm2-old-bf16", "mistral-bf16"] {
        let checkpoint = checkpoint(name);
        let types = weight_types(&checkpoint.tensors);
        let config = &checkpoint.config;
        let (kv, dim) = (config.kv_heads(), config.head_dim());
        for (shape, tokens) in [("1t12c", 1), ("4t12c", 4)] {
            for attention in [Pass::DecomposeAttention, Pass::SplitAttention] {
                for protocol in CacheProtocol::ALL {
                    let graph = model::build_step(config, &types, shape.parse().unwrap(), protocol).unwrap();
                    let passes = [attention, Pass::Simplify, Pass::KeysAsColumns, Pass::Simplify];
                    let columns = run(graph, &passes, |_, _, _| {}).unwrap();
                    let is_one_hot = protocol == CacheProtocol::OneHot;
                    let need = if is_one_hot { vec![kv, dim, 12] } else { vec![kv, 12, dim] };
                    let ports = key_ports(&columns);
                    let whole = |extents: &&Vec<usize>| **extents == need;
                    assert_eq!(ports.iter().filter(whole).count(), ports.len(), "{name} {shape} {protocol:?}");
                    let transposing = columns
                        .values
                        .iter()
                        .filter(|v| matches!(v.def, Def::Op { op: Op::MatMul { transpose_b: true }, .. }));
                    let longest = transposing.map(|value| *value.ty.shape.last().unwrap()).max();
                    let left = if is_one_hot { (tokens > 1).then_some(tokens) } else { Some(12 + tokens) };
                    assert_eq!(longest, left, "{name} {shape} {protocol:?}");
                }
            }
        }
    }
}
