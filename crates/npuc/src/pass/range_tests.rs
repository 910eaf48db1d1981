//! What keeps numbers inside binary16: the same results in exact arithmetic, and finite ones with every
//! intermediate value rounded to binary16.

use std::collections::HashMap;

use half::f16;

use crate::ir::naive::{eval, eval_rounded};
use crate::ir::{Def, Graph};
use crate::pass::host_tests::{keeps_bits, noise, outputs, random_weights};
use crate::pass::tests::{check, read};
use crate::pass::{Pass, run};

const NORM: &str = r#"%0 = input "x" : f32[3, 64]
%1 = input "gain" : f32[64]
%2 = rms_norm(%0, %1) {eps = 1e-5} : f32[3, 64] @ "norm"
output "y" = %2"#;

#[test]
fn a_rescaled_norm_reads_as_documented() {
    let after = r#"%0 = input "x" : f32[3, 64]
%1 = input "gain" : f32[64]
%2 = abs(%0) : f32[3, 64] @ "norm"
%3 = max(%2) {axis = 1} : f32[3, 1] @ "norm"
%4 = affine(%3) {scale = 1.0, offset = 1.0} : f32[3, 1] @ "norm"
%5 = div(%0, %4) : f32[3, 64] @ "norm"
%6 = rsqrt(%4) : f32[3, 1] @ "norm"
%7 = mul(%6, %6) : f32[3, 1] @ "norm"
%8 = mul(%7, %7) : f32[3, 1] @ "norm"
%9 = affine(%8) {scale = 1e-5, offset = 0.0} : f32[3, 1] @ "norm"
%10 = mul(%5, %5) : f32[3, 64] @ "norm"
%11 = mean(%10) {axis = 1} : f32[3, 1] @ "norm"
%12 = add(%11, %9) : f32[3, 1] @ "norm"
%13 = rsqrt(%12) : f32[3, 1] @ "norm"
%14 = mul(%5, %13) : f32[3, 64] @ "norm"
%15 = mul(%14, %1) : f32[3, 64] @ "norm"
output "y" = %15"#;
    check(Pass::RescaleRmsNorm, NORM, after);
    // Without a norm nothing happens, not even to one that is written out.
    let plain = run(read(NORM), &[Pass::DecomposeRmsNorm], |_, _, _| {}).unwrap();
    assert_eq!(run(plain.clone(), &[Pass::RescaleRmsNorm], |_, _, _| {}).unwrap(), plain);
}

/// The largest difference relative to the largest number.
fn off(have: &[f64], need: &[f64]) -> f64 {
    let largest = need.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
    have.iter().zip(need).fold(0.0, |worst: f64, (a, b)| worst.max((a - b).abs() / largest))
}

/// `y` and whether every value on the way is finite.
fn in_binary16(graph: &Graph, inputs: &HashMap<String, Vec<f64>>) -> (Vec<f64>, bool) {
    let values = eval_rounded(graph, inputs, &HashMap::new(), |x| f16::from_f64(x).to_f64());
    let finite = values.values().flatten().all(|x| x.is_finite());
    (values[&graph.outputs[0].value].clone(), finite)
}

/// Rows of magnitudes up to `size`; the plain form stays finite in binary16 if `plain_fits`.
fn check_norm(size: f64, plain_fits: bool) {
    let whole = read(NORM);
    let plain = run(whole.clone(), &[Pass::DecomposeRmsNorm], |_, _, _| {}).unwrap();
    let rescaled = run(whole.clone(), &[Pass::RescaleRmsNorm], |_, _, _| {}).unwrap();
    for (row_of, x) in [
        ("noise", noise("x", 192, size)),
        ("one large number", (0..192).map(|i| if i % 64 == 7 { -size } else { size / 1e3 }).collect()),
        ("equal numbers", vec![size; 192]),
    ] {
        let half = |x: &f64| f16::from_f64(*x).to_f64();
        let inputs = HashMap::from([
            ("x".to_owned(), x.iter().map(half).collect::<Vec<f64>>()),
            ("gain".to_owned(), noise("gain", 64, 2.0).iter().map(half).collect()),
        ]);
        let need = &eval(&whole, &inputs, &HashMap::new())[&whole.outputs[0].value];
        let exact = &eval(&rescaled, &inputs, &HashMap::new())[&rescaled.outputs[0].value];
        assert!(off(exact, need) < 1e-12, "{row_of} of {size}");
        let (have, finite) = in_binary16(&rescaled, &inputs);
        // Some ten roundings of 2^-11 each.
        assert!(finite && off(&have, need) < 5e-3, "{row_of} of {size}: {}", off(&have, need));
        assert_eq!(in_binary16(&plain, &inputs).1, plain_fits, "{row_of} of {size}");
    }
}

#[test]
fn a_rescaled_norm_stays_in_binary16() {
    for (size, plain_fits) in [(0.1, true), (1.0, true), (30.0, true), (1e3, false), (1e4, false), (6e4, false)] {
        check_norm(size, plain_fits);
    }
}

#[test]
fn a_rescaled_norm_is_near_in_f32() {
    let whole = read(NORM);
    let rescaled = run(whole.clone(), &[Pass::RescaleRmsNorm], |_, _, _| {}).unwrap();
    let weights = random_weights(&whole);
    for size in [1e-3, 1.0, 255.0, 6e4, 1e12] {
        let wide =
            |graph: &Graph| -> Vec<f64> { outputs(graph, &weights, size)["y"].iter().map(|&x| x.into()).collect() };
        assert!(off(&wide(&rescaled), &wide(&whole)) < 1e-6, "{size}");
    }
}

/// A SwiGLU layer of `rows` rows; `{product}` and `{tail}` are given.
fn swiglu(rows: usize, product: &str, bias: &str, tail: &str) -> Graph {
    read(&format!(
        r#"%0 = input "gate" : f32[{rows}, 40]
%1 = input "up" : f32[{rows}, 40]
%2 = weight "down" : bf16[24, 40]
%3 = weight "bias" : bf16[24]
%4 = silu(%0) : f32[{rows}, 40] @ "mlp"
%5 = {product} : f32[{rows}, 40] @ "mlp"
%6 = linear(%5, %2{bias}) : f32[{rows}, 24] @ "mlp.down_proj"
output "y" = %6{tail}"#
    ))
}

#[test]
fn a_guarded_swiglu_reads_as_documented() {
    let before = crate::ir::text::print(&swiglu(2, "mul(%4, %1)", ", %3", ""));
    let lines: Vec<&str> = before.lines().collect();
    let after = r#"%0 = input "gate" : f32[2, 40]
%1 = input "up" : f32[2, 40]
%2 = weight "down" : bf16[24, 40]
%3 = weight "bias" : bf16[24]
%4 = silu(%0) : f32[2, 40] @ "mlp"
%5 = affine(%1) {scale = 0.0625, offset = 0.0} : f32[2, 40] @ "mlp"
%6 = mul(%4, %5) : f32[2, 40] @ "mlp"
%7 = linear(%6, %2) : f32[2, 24] @ "mlp.down_proj"
%8 = affine(%7) {scale = 16.0, offset = 0.0} : f32[2, 24] @ "mlp.down_proj"
%9 = add(%8, %3) : f32[2, 24] @ "mlp.down_proj"
output "y" = %9"#;
    check(Pass::GuardSwiglu, &lines[1..lines.len() - 1].join("\n"), after);
}

#[test]
fn a_guarded_swiglu_gives_the_same_bits() {
    for (rows, product, bias) in [
        (1, "mul(%4, %1)", ""),
        (1, "mul(%1, %4)", ""),
        (1, "mul(%4, %4)", ""),
        (1, "mul(%4, %1)", ", %3"),
        (33, "mul(%4, %1)", ""),
        (100, "mul(%1, %4)", ""),
    ] {
        let graph = swiglu(rows, product, bias, "");
        let after = keeps_bits(&graph, &random_weights(&graph), &[Pass::GuardSwiglu]);
        assert!(after != graph, "{product}");
    }
    // Over many rows the kernel begins a sum with the bias, so that adding it last rounds differently.
    let graph = swiglu(33, "mul(%4, %1)", ", %3", "");
    let after = run(graph.clone(), &[Pass::GuardSwiglu], |_, _, _| {}).unwrap();
    let weights = random_weights(&graph);
    let wide = |graph: &Graph| -> Vec<f64> { outputs(graph, &weights, 1.0)["y"].iter().map(|&x| x.into()).collect() };
    assert!(off(&wide(&after), &wide(&graph)) < 1e-6);
}

/// In binary16 the product of two numbers of 500 is only finite when it is divided.
#[test]
fn a_guarded_swiglu_stays_in_binary16() {
    let graph = run(swiglu(1, "mul(%4, %1)", "", ""), &[Pass::Simplify], |_, _, _| {}).unwrap();
    let after = run(graph.clone(), &[Pass::GuardSwiglu], |_, _, _| {}).unwrap();
    let given = |name: &str| (name.to_owned(), vec![500.0; 40]);
    let inputs = HashMap::from([given("gate"), given("up")]);
    let weights = HashMap::from([("down".to_owned(), vec![1.0 / 256.0; 24 * 40])]);
    let finite = |graph: &Graph| {
        let values = eval_rounded(graph, &inputs, &weights, |x| f16::from_f64(x).to_f64());
        values.values().flatten().all(|x| x.is_finite())
    };
    assert!(!finite(&graph));
    assert!(finite(&after));
}

#[test]
fn other_products_are_left_alone() {
    for graph in [
        // Read twice, or leaving.
        swiglu(2, "mul(%4, %1)", "", "\noutput \"product\" = %5"),
        // No product of a silu.
        swiglu(2, "mul(%0, %1)", "", ""),
        swiglu(2, "add(%4, %1)", "", ""),
        swiglu(2, "affine(%4) {scale = 2.0, offset = 0.0}", "", ""),
    ] {
        assert_eq!(run(graph.clone(), &[Pass::GuardSwiglu], |_, _, _| {}).unwrap(), {
            // Unused weights go with any pass.
            run(graph, &[Pass::DecomposeRope], |_, _, _| {}).unwrap()
        });
    }
    let guarded = run(swiglu(2, "mul(%1, %4)", "", ""), &[Pass::GuardSwiglu], |_, _, _| {}).unwrap();
    assert_eq!(run(guarded.clone(), &[Pass::GuardSwiglu, Pass::Simplify], |_, _, _| {}).unwrap(), guarded);
    let ops = guarded.values.iter().filter(|value| matches!(value.def, Def::Op { .. })).count();
    assert_eq!(ops, 5);
}
