//! Convolutions in place of projections: how they read, and that they give the same bits.

use crate::build::weight_types;
use crate::ir::{Def, Op};
use crate::model::{self, CacheProtocol};
use crate::pass::host_tests::{checkpoint, keeps_bits, random_weights};
use crate::pass::tests::{check, read};
use crate::pass::{Pass, run};
use crate::place::{Assignment, Side};
use crate::target::{self, Precision, Question, ledger};

#[test]
fn a_convolution_reads_as_documented() {
    check(
        Pass::LinearToConv,
        r#"%0 = input "x" : f32[2, 3, 8]
%1 = weight "w" : bf16[7, 8]
%2 = weight "b" : f32[7]
%3 = linear(%0, %1, %2) : f32[2, 3, 7] @ "p"
output "y" = %3"#,
        r#"%0 = input "x" : f32[2, 3, 8]
%1 = weight "w" : bf16[7, 8]
%2 = weight "b" : f32[7]
%3 = reshape(%0) {shape = [1, 1, 6, 8]} : f32[1, 1, 6, 8] @ "p"
%4 = pointwise_conv(%3, %1, %2) : f32[1, 1, 6, 7] @ "p"
%5 = reshape(%4) {shape = [2, 3, 7]} : f32[2, 3, 7] @ "p"
output "y" = %5"#,
    );
    let other = "%0 = input \"x\" : f32[2, 8]\n%1 = input \"w\" : f32[7, 8]\n%2 = matmul(%0, %1) {transpose_b = true} : f32[2, 7]\noutput \"y\" = %2";
    check(Pass::LinearToConv, other, other);
}

#[test]
fn convolutions_give_the_same_bits() {
    for (x, y, bias) in [
        ("[40]", "[24]", ""),
        ("[1, 40]", "[1, 24]", ", %2"),
        ("[3, 40]", "[3, 24]", ""),
        ("[2, 33, 40]", "[2, 33, 24]", ", %2"),
        ("[2, 1, 3, 40]", "[2, 1, 3, 24]", ", %2"),
    ] {
        let graph = read(&format!(
            "%0 = input \"x\" : f32{x}\n%1 = weight \"w\" : bf16[24, 40]\n%2 = weight \"b\" : f32[24]\n\
             %3 = linear(%0, %1{bias}) : f32{y}\noutput \"y\" = %3"
        ));
        keeps_bits(&graph, &random_weights(&graph), &[Pass::LinearToConv]);
    }
}

#[test]
fn whole_steps_give_the_same_bits() {
    for name in ["llama-biases-f32", "qwen2-q8_0.gguf"] {
        let checkpoint = checkpoint(name);
        let types = weight_types(&checkpoint.tensors);
        for shape in ["8t12c", "1t12c"] {
            let shape = shape.parse().unwrap();
            let graph = model::build_step(&checkpoint.config, &types, shape, CacheProtocol::Shift).unwrap();
            let after = keeps_bits(&graph, &checkpoint.tensors, &[Pass::LinearToConv, Pass::Simplify]);
            let linear = |def: &Def| matches!(def, Def::Op { op: Op::Linear {}, .. });
            assert!(graph.values.iter().any(|value| linear(&value.def)));
            assert!(!after.values.iter().any(|value| linear(&value.def)));
        }
    }
}

/// A convolution's matrix is a projection's to targets: the same bytes, formats and limits.
#[test]
fn a_convolution_is_a_projection() {
    let graph = read(
        "%0 = input \"x\" : f32[1, 64]\n%1 = weight \"w\" : f32[70000, 64]\n%2 = linear(%0, %1) : f32[1, 70000]\n\
         output \"logits\" = %2",
    );
    let conv = run(graph.clone(), &[Pass::LinearToConv], |_, _, _| {}).unwrap();
    let target = target::find("genio-720").unwrap();
    for (precision, bytes) in [("FP", 2 * 70000 * 64), ("8W16A", 70000 * (64 + 4)), ("4W16A-g32", 70000 * (32 + 4))] {
        let precision = Precision::parse(precision, target.float).unwrap();
        let question = Question::new(&target, precision.clone(), &[]).unwrap();
        let codes = |graph: &crate::ir::Graph| -> Vec<_> {
            let found = target::misfits(graph, &target, &question, &Assignment::by(graph, |_| Side::Npu));
            let of = |name: &str| found.iter().filter(|m| m.message.contains(name)).map(|m| m.code).collect::<Vec<_>>();
            [of("linear"), of("pointwise_conv"), of("weights in")].concat()
        };
        for graph in [&graph, &conv] {
            assert_eq!(ledger::matrices(graph), ["w"]);
            let measured = ledger::measure(std::slice::from_ref(graph), &target, &precision);
            assert_eq!(measured.weights_bytes, bytes, "{}", precision.name);
        }
        assert!(!codes(&graph).is_empty());
        assert_eq!(codes(&conv), codes(&graph), "{}", precision.name);
    }
}
