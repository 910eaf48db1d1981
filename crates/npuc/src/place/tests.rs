//! Placements: sides, segments and their cost by hand, and that segments compute what the whole computes.

use std::collections::BTreeMap;
use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::build::weight_types;
use crate::exec::Executor;
use crate::front;
use crate::ir::arbitrary::cases;
use crate::ir::naive;
use crate::ir::text::{parse, print};
use crate::model::{self, CacheProtocol};
use crate::pass::{self, Pass};
use crate::target::number::Number;
use crate::tensor::Tensor;

fn read(body: &str) -> Graph {
    parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap_or_else(|e| panic!("{body}: {e}"))
}

fn rules(text: &str) -> Vec<Rule> {
    text.split_whitespace().map(|rule| rule.parse().unwrap()).collect()
}

fn f32s() -> Precision {
    Precision::stored(Number::F32)
}

/// `letters` has n, c or - for the operations in order; `idle` the rules that hold for none.
fn check_sides(body: &str, text: &str, letters: &str, idle: &[usize]) {
    let graph = read(body);
    let assignment = assign(&graph, &rules(text), &f32s());
    let letter = |id| match assignment.side(id) {
        Some(Side::Npu) => 'n',
        Some(Side::Cpu) => 'c',
        None => '-',
    };
    assert_eq!(graph.ids().map(letter).collect::<String>(), letters, "{text} on {body}");
    assert_eq!(assignment.idle, idle, "{text}");
    assert_eq!(assignment.count(Side::Cpu), letters.matches('c').count());
}

#[test]
fn the_last_rule_wins() {
    let body = r#"%0 = input "x" : f32[2, 4]
%1 = weight "w" : f32[4, 4]
%2 = linear(%0, %1) : f32[2, 4] @ "layers.0.q"
%3 = linear(%2, %1) : f32[2, 4] @ "layers.1.q"
%4 = exp(%3) : f32[2, 4]
output "y" = %4"#;
    for (text, letters, idle) in [
        ("", "--nnn", vec![]),
        ("op=linear=cpu", "--ccn", vec![]),
        ("op=linear=cpu layers=1=npu", "--cnn", vec![]),
        ("layers=1=npu op=linear=cpu", "--ccn", vec![]),
        ("op=softmax=cpu name=*=cpu layers=2..9=npu", "--ccc", vec![0, 2]),
        ("name=*=cpu name=*=npu", "--nnn", vec![]),
        ("weights>63=cpu weights>64=npu", "--ccn", vec![1]),
    ] {
        check_sides(body, text, letters, &idle);
    }
}

#[test]
fn what_only_moves_follows() {
    let chain = r#"%0 = input "x" : f32[2, 4]
%1 = reshape(%0) {shape = [8]} : f32[8]
%2 = reshape(%1) {shape = [4, 2]} : f32[4, 2]
%3 = exp(%2) : f32[4, 2]
%4 = reshape(%3) {shape = [2, 4]} : f32[2, 4]
%5 = silu(%4) : f32[2, 4]
output "y" = %5"#;
    check_sides(chain, "", "-nnnnn", &[]);
    check_sides(chain, "op=exp=cpu", "-ccccn", &[]);
    check_sides(chain, "op=silu=cpu", "-nnncc", &[]);
    check_sides(chain, "op=reshape=npu op=exp=cpu", "-nncnn", &[]);
    let shared = r#"%0 = input "x" : f32[2, 4]
%1 = reshape(%0) {shape = [8]} : f32[8]
%2 = exp(%1) : f32[8]
%3 = silu(%1) : f32[8]
%4 = reshape(%0) {shape = [4, 2]} : f32[4, 2]
output "y" = %2
output "z" = %3
output "w" = %4"#;
    check_sides(shared, "op=exp=cpu", "-ncnn", &[]);
    check_sides(shared, "op=exp=cpu op=silu=cpu op=gather=cpu", "-cccn", &[]);
    // A cache that the CPU alone reads is joined there; what leaves as well is not.
    let cache = r#"%0 = input "past" : f32[2, 4]
%1 = input "x" : f32[1, 4]
%2 = exp(%1) : f32[1, 4]
%3 = slice(%0) {axis = 0, start = 1, len = 1} : f32[1, 4]
%4 = concat(%3, %2) {axis = 0} : f32[2, 4]
%5 = concat(%0, %2) {axis = 0} : f32[3, 4]
%6 = silu(%5) : f32[3, 4]
output "next" = %4
output "y" = %6"#;
    check_sides(cache, "op=silu=cpu", "--nnncc", &[]);
}

/// The segments as text, each after its side.
fn check_segments(graph: &Graph, assignment: &Assignment, expected: &str) {
    let made = segments(graph, assignment).unwrap();
    let text: String = made.iter().map(|segment| format!("{} {}", segment.side, print(&segment.graph))).collect();
    assert_eq!(text.trim(), expected);
}

/// A cache behind a reshape that both sides read reaches each as the port itself: nothing of it crosses.
#[test]
fn a_port_reaches_both_sides_by_itself() {
    let graph = read(
        r#"%0 = input "past" : f32[1, 2, 4]
%1 = reshape(%0) {shape = [2, 4]} : f32[2, 4]
%2 = exp(%1) : f32[2, 4]
%3 = silu(%1) : f32[2, 4]
%4 = add(%2, %3) : f32[2, 4]
output "y" = %4"#,
    );
    let made = segments(&graph, &assign(&graph, &rules("op=exp=cpu"), &f32s())).unwrap();
    let crossing: Vec<&str> = made
        .iter()
        .flat_map(|s| &s.graph.outputs)
        .map(|output| output.name.as_str())
        .filter(|name| *name != "y")
        .collect();
    assert_eq!((made.len(), crossing.len()), (2, 1), "{crossing:?}");
    assert!(made.iter().all(|segment| segment.graph.values[0].name == "past"), "{made:?}");
    assert_eq!(bill(&made, 4).bytes_per_step, 2 * 4 * 4);
}

#[test]
fn segments_read_as_documented() {
    let graph = read(
        r#"%0 = input "x" : f32[2, 4]
%1 = input "unused" : f32[1]
%2 = weight "w" : f32[4, 4]
%3 = linear(%0, %2) : f32[2, 4] @ "a"
%4 = exp(%3) : f32[2, 4] @ "b"
%5 = silu(%0) : f32[2, 4] @ "c"
%6 = add(%4, %5) : f32[2, 4] @ "d"
%7 = linear(%6, %2) : f32[2, 4] @ "e"
%8 = exp(%7) : f32[2, 4] @ "dead"
output "y" = %7
output "b" = %4
output "again" = %7"#,
    );
    check_segments(
        &graph,
        &assign(&graph, &rules("op=exp=cpu"), &f32s()),
        r#"npu graph "g.s0" {
  %0 = input "x" : f32[2, 4]
  %1 = weight "w" : f32[4, 4]
  %2 = linear(%0, %1) : f32[2, 4] @ "a"
  %3 = silu(%0) : f32[2, 4] @ "c"
  output "cross.3" = %2
  output "cross.5" = %3
}
cpu graph "g.s1" {
  %0 = input "cross.3" : f32[2, 4]
  %1 = exp(%0) : f32[2, 4] @ "b"
  %2 = reshape(%1) {shape = [2, 4]} : f32[2, 4] @ "b"
  output "b" = %1
  output "cross.4" = %2
}
npu graph "g.s2" {
  %0 = weight "w" : f32[4, 4]
  %1 = input "cross.4" : f32[2, 4]
  %2 = input "cross.5" : f32[2, 4]
  %3 = add(%1, %2) : f32[2, 4] @ "d"
  %4 = linear(%3, %0) : f32[2, 4] @ "e"
  %5 = reshape(%4) {shape = [2, 4]} : f32[2, 4] @ "e"
  output "y" = %4
  output "again" = %5
}"#,
    );
}

#[test]
fn the_side_that_begins_makes_fewer_segments() {
    // The NPU waits for the CPU although one of its operations could come first.
    let waiting = read(
        r#"%0 = input "x" : f32[2]
%1 = silu(%0) : f32[2]
%2 = exp(%0) : f32[2]
%3 = add(%1, %2) : f32[2]
output "y" = %3"#,
    );
    check_segments(
        &waiting,
        &assign(&waiting, &rules("op=exp=cpu"), &f32s()),
        r#"cpu graph "g.s0" {
  %0 = input "x" : f32[2]
  %1 = exp(%0) : f32[2]
  output "cross.2" = %1
}
npu graph "g.s1" {
  %0 = input "x" : f32[2]
  %1 = input "cross.2" : f32[2]
  %2 = silu(%0) : f32[2]
  %3 = add(%2, %1) : f32[2]
  output "y" = %3
}"#,
    );
    let alone = read("%0 = input \"x\" : f32[2]\n%1 = exp(%0) : f32[2]\noutput \"y\" = %1");
    check_segments(
        &alone,
        &assign(&alone, &rules("op=exp=cpu"), &f32s()),
        "cpu graph \"g.s0\" {\n  %0 = input \"x\" : f32[2]\n  %1 = exp(%0) : f32[2]\n  output \"y\" = %1\n}",
    );
}

#[test]
fn what_cannot_be_cut_is_refused() {
    let op = "%2 = exp(%0) : f32[2]\noutput \"y\" = %2";
    let leaves = "%0 = input \"x\" : f32[2]\n%1 = weight \"w\" : f32[2]\n";
    let no_result = "an output of a placed graph is the result of an operation";
    let segment = "the graph has a port between segments and is cut already";
    for (body, code, message, subject) in [
        (format!("{leaves}{op}\noutput \"o\" = %0"), Code::Misfit, no_result, "o"),
        (format!("{leaves}{op}\noutput \"o\" = %1"), Code::Misfit, no_result, "o"),
        (format!("{leaves}{op}\noutput \"cross.1\" = %2"), Code::IrInvalid, segment, "cross.1"),
        (format!("{leaves}{op}").replace("\"x\"", "\"cross.9\""), Code::IrInvalid, segment, "cross.9"),
    ] {
        let graph = read(&body);
        let error = segments(&graph, &assign(&graph, &[], &f32s())).unwrap_err();
        let [fault] = error.diagnostics() else { panic!("{error}") };
        assert_eq!((fault.code, fault.message.as_str(), fault.subject.as_deref()), (code, message, Some(subject)));
    }
    let (graph, other) = (read(&format!("{leaves}{op}")), read("%0 = input \"x\" : f32[2]\noutput \"y\" = %0"));
    let foreign = assign(&other, &[], &f32s());
    assert_eq!(segments(&graph, &foreign).unwrap_err().diagnostics()[0].message, "the placement has no side for %2");
}

#[test]
fn bills() {
    let graph = read(
        r#"%0 = input "embeds" : f32[3, 4]
%1 = exp(%0) : f32[3, 4]
%2 = silu(%1) : f32[3, 4]
%3 = sum(%1) {axis = 1} : f32[3, 1]
%4 = add(%2, %3) : f32[3, 4]
%5 = mul(%4, %1) : f32[3, 4]
%6 = silu(%5) : f32[3, 4]
output "logits" = %6"#,
    );
    let of = |text: &str, precision: &Precision| {
        let made = segments(&graph, &assign(&graph, &rules(text), precision)).unwrap();
        let Bill { segments, npu_segments, hops, bytes_per_step, bytes_per_token } =
            bill(&made, precision.activation_bytes());
        (segments, npu_segments, hops, bytes_per_step, bytes_per_token)
    };
    let half = Precision::stored(Number::F16);
    assert_eq!(of("", &f32s()), (1, 1, 0, 0, Some(0)));
    assert_eq!(of("name=*=cpu", &f32s()), (1, 0, 0, 0, Some(0)), "paths that are empty match *");
    // %1 goes to the CPU once, %2 comes back, %5 goes: 12 numbers each; %1 stays where it was for %5.
    assert_eq!(of("op=silu=cpu", &f32s()), (4, 2, 3, 4 * 36, Some(48)));
    assert_eq!(of("op=silu=cpu", &half), (4, 2, 3, 2 * 36, Some(24)));
    // %1 goes once for both of its readers there, and 3 sums and the product come back.
    assert_eq!(of("op=silu=cpu op=sum=cpu", &f32s()), (4, 2, 3, 4 * 39, Some(52)));
    let plain = read("%0 = input \"x\" : f32[2]\n%1 = exp(%0) : f32[2]\n%2 = silu(%1) : f32[2]\noutput \"y\" = %2");
    let made = segments(&plain, &assign(&plain, &rules("op=silu=cpu"), &f32s())).unwrap();
    assert_eq!((bill(&made, 4).bytes_per_step, bill(&made, 4).bytes_per_token), (8, None));
}

type Values = BTreeMap<String, Vec<f32>>;

/// Runs a graph over ports by name; its outputs.
fn run(graph: &Graph, weights: &BTreeMap<String, Tensor>, given: &Values) -> Values {
    let mut executor = Executor::new(graph, weights, &[]).unwrap();
    let inputs: Vec<Vec<f32>> = executor.inputs().map(|(name, _)| given[name].clone()).collect();
    executor.run(&[&inputs]);
    let names: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
    names.into_iter().enumerate().map(|(i, name)| (name, executor.output(i).to_vec())).collect()
}

#[test]
fn ports_between_segments_have_names() {
    assert_eq!(model::Port::Cross(7).to_string().parse::<model::Port>().unwrap(), model::Port::Cross(7));
    for name in ["cross", "cross.", "cross.07", "cross.-1", "cross.1.2", "cross.1234567890"] {
        assert!(!is_cross(name), "{name}");
    }
}

fn is_cross(name: &str) -> bool {
    matches!(name.parse(), Ok(model::Port::Cross(_)))
}

/// Runs segment after segment; the outputs of the whole graph.
fn run_all(made: &[Segment], weights: &BTreeMap<String, Tensor>, given: &Values) -> Values {
    let (mut given, mut outputs) = (given.clone(), Values::new());
    for segment in made {
        for (name, data) in run(&segment.graph, weights, &given) {
            let earlier = if is_cross(&name) { &mut given } else { &mut outputs }.insert(name, data);
            assert_eq!(earlier, None);
        }
    }
    outputs
}

const RULE_SETS: [&str; 8] = [
    "",
    "name=*=cpu",
    "op=matmul=cpu",
    "op=linear=cpu op=softmax=cpu",
    "op=attention=cpu op=rms_norm=cpu op=mul=cpu",
    "layers=0=cpu name=*.q_proj=npu",
    "name=lm_head*=cpu bytes>20KiB=cpu workspace<1KiB=npu",
    "weights>0=cpu activations>2KB=npu",
];

#[test]
fn segments_of_steps_give_the_same_bits() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints");
    for name in ["llama-biases-f32", "qwen3-bf16", "llama-gqa3-q4_1.gguf"] {
        let checkpoint = front::open(&folder.join(name)).unwrap();
        let types = weight_types(&checkpoint.tensors);
        for (shape, protocol) in ["8t12c", "1t12c"].into_iter().flat_map(|shape| CacheProtocol::ALL.map(|p| (shape, p)))
        {
            let graph = model::build_step(&checkpoint.config, &types, shape.parse().unwrap(), protocol).unwrap();
            let plain =
                pass::run(graph.clone(), &[Pass::Decompose, Pass::JoinAxes, Pass::Simplify], |_, _, _| {}).unwrap();
            for graph in [graph, plain] {
                let noise = |name: &str, len: usize| -> Vec<f32> {
                    let seed = name.bytes().map(usize::from).sum::<usize>();
                    (0..len).map(|i| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0).collect()
                };
                let inputs = graph.values.iter().filter(|value| value.def == Def::Input);
                let given = inputs.map(|v| (v.name.clone(), noise(&v.name, v.ty.shape.iter().product()))).collect();
                let expected = run(&graph, &checkpoint.tensors, &given);
                let mut most = 0;
                for text in RULE_SETS {
                    let made = segments(&graph, &assign(&graph, &rules(text), &f32s())).unwrap();
                    assert!(
                        run_all(&made, &checkpoint.tensors, &given) == expected,
                        "{name} {shape} {protocol:?} {text}"
                    );
                    let bill = bill(&made, 4);
                    assert_eq!(bill.hops + 1, made.len());
                    assert_eq!(bill.hops == 0, bill.bytes_per_step == 0);
                    most = most.max(made.len());
                }
                assert!(most > 4);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn segments_keep_the_meaning(case in cases(12), bits in any::<u64>()) {
        let mut graph = case.graph;
        let computed = |graph: &Graph, id: ValueId| matches!(graph.value(id).def, Def::Op { .. });
        let outputs = std::mem::take(&mut graph.outputs);
        graph.outputs = outputs.into_iter().filter(|output| computed(&graph, output.value)).collect();
        prop_assume!(!graph.outputs.is_empty());
        let cpu = |id: ValueId| bits.rotate_right(id.0) & 1 == 1;
        let assignment = Assignment::by(&graph, |id| if cpu(id) { Side::Cpu } else { Side::Npu });
        let made = segments(&graph, &assignment).unwrap();
        let (mut given, mut have) = (case.inputs.clone(), BTreeMap::new());
        for segment in &made {
            let values = naive::eval(&segment.graph, &given, &case.weights);
            for output in &segment.graph.outputs {
                let data = values[&output.value].clone();
                if is_cross(&output.name) {
                    given.insert(output.name.clone(), data);
                } else {
                    have.insert(output.name.clone(), data);
                }
            }
        }
        let values = naive::eval(&graph, &case.inputs, &case.weights);
        let need: BTreeMap<_, _> = graph.outputs.iter().map(|o| (o.name.clone(), values[&o.value].clone())).collect();
        prop_assert_eq!(have, need);
        prop_assert!(made.windows(2).all(|pair| pair[0].side != pair[1].side));
    }
}
