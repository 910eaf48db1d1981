//! Passes: what each makes of small graphs, and that random graphs keep their meaning.

use proptest::prelude::*;

use super::*;
use crate::ir::arbitrary::{Case, cases};
use crate::ir::naive;
use crate::ir::text::{parse, print};

pub(super) fn read(body: &str) -> Graph {
    parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap_or_else(|e| panic!("{body}: {e}"))
}

/// Runs `pass` on a graph of the lines `before`; the result is printed like the lines `after`.
pub(super) fn check(pass: Pass, before: &str, after: &str) {
    let mut reasons = Vec::new();
    let result = run(read(before), &[pass], |_, _, told| reasons = told.to_vec()).unwrap();
    assert_eq!(print(&result), print(&read(after)), "{before}");
    assert_eq!(reasons.is_empty(), print(&read(before)) == print(&read(after)), "{reasons:?}");
}

#[test]
fn simplify_drops_what_is_not_needed() {
    let x = "%0 = input \"x\" : f32[2, 3]\n";
    let y = "\noutput \"y\" = ";
    for (before, result, after) in [
        ("%1 = reshape(%0) {shape = [2, 3]} : f32[2, 3]", "%1", ""),
        ("%1 = transpose(%0) {perm = [0, 1]} : f32[2, 3]", "%1", ""),
        ("%1 = slice(%0) {axis = 1, start = 0, len = 3} : f32[2, 3]", "%1", ""),
        ("%1 = affine(%0) {scale = 1.0, offset = -0.0} : f32[2, 3]", "%1", ""),
        (
            "%1 = affine(%0) {scale = 1.0, offset = 1.0} : f32[2, 3]",
            "%1",
            "%1 = affine(%0) {scale = 1.0, offset = 1.0} : f32[2, 3]",
        ),
        ("%1 = exp(%0) : f32[2, 3]", "%0", ""),
        (
            "%1 = reshape(%0) {shape = [6]} : f32[6]\n%2 = reshape(%1) {shape = [3, 2]} : f32[3, 2]",
            "%2",
            "%1 = reshape(%0) {shape = [3, 2]} : f32[3, 2]",
        ),
        ("%1 = reshape(%0) {shape = [6]} : f32[6]\n%2 = reshape(%1) {shape = [2, 3]} : f32[2, 3]", "%2", ""),
        ("%1 = transpose(%0) {perm = [1, 0]} : f32[3, 2]\n%2 = transpose(%1) {perm = [1, 0]} : f32[2, 3]", "%2", ""),
        (
            "%1 = sum(%0) {axis = 1} : f32[2, 1]\n%2 = max(%1) {axis = 1} : f32[2, 1]",
            "%2",
            "%1 = sum(%0) {axis = 1} : f32[2, 1]",
        ),
        (
            "%1 = exp(%0) : f32[2, 3] @ \"a\"\n%2 = exp(%0) : f32[2, 3] @ \"b\"\n%3 = silu(%1) : f32[2, 3]\n%4 = silu(%2) : f32[2, 3]\n%5 = sub(%3, %4) : f32[2, 3]",
            "%5",
            "%1 = exp(%0) : f32[2, 3] @ \"a\"\n%2 = silu(%1) : f32[2, 3]\n%3 = sub(%2, %2) : f32[2, 3]",
        ),
        (
            "%1 = affine(%0) {scale = 0.0, offset = 1.0} : f32[2, 3]\n%2 = affine(%0) {scale = -0.0, offset = 1.0} : f32[2, 3]\n%3 = sub(%1, %2) : f32[2, 3]",
            "%3",
            "%1 = affine(%0) {scale = 0.0, offset = 1.0} : f32[2, 3]\n%2 = affine(%0) {scale = -0.0, offset = 1.0} : f32[2, 3]\n%3 = sub(%1, %2) : f32[2, 3]",
        ),
        (
            "%1 = input \"unused\" : f32[1]\n%2 = weight \"w\" : f32[1]\n%3 = exp(%2) : f32[1]\n%4 = exp(%0) : f32[2, 3]",
            "%4",
            "%1 = input \"unused\" : f32[1]\n%2 = exp(%0) : f32[2, 3]",
        ),
    ] {
        let last = after.lines().last().map_or("%0", |line| line.split(' ').next().unwrap());
        check(Pass::Simplify, &format!("{x}{before}{y}{result}"), &format!("{x}{after}{y}{last}"));
    }
}

#[test]
fn long_chains_come_to_an_end() {
    let mut body = String::from("%0 = input \"x\" : f32[1, 2, 3]\n");
    let mut shape = [1, 2, 3];
    for i in 0..999 {
        shape.rotate_left(1);
        body += &format!("%{} = transpose(%{i}) {{perm = [1, 2, 0]}} : f32{shape:?}\n", i + 1);
    }
    check(Pass::Simplify, &format!("{body}output \"y\" = %999"), "%0 = input \"x\" : f32[1, 2, 3]\noutput \"y\" = %0");
}

/// A pass, a graph and what the pass makes of it.
const DECOMPOSITIONS: &[(Pass, &str, &str)] = &[
    (
        Pass::DecomposeAttention,
        r#"%0 = input "q" : f32[6, 4, 5]
%1 = input "past_k" : f32[2, 7, 5]
%2 = input "past_v" : f32[2, 7, 5]
%3 = input "k" : f32[2, 4, 5]
%4 = input "v" : f32[2, 4, 5]
%5 = input "mask" : f32[4, 11]
%6 = attention(%0, %1, %2, %3, %4, %5) {scale = 0.5} : f32[6, 4, 5] @ "a"
output "y" = %6"#,
        r#"%0 = input "q" : f32[6, 4, 5]
%1 = input "past_k" : f32[2, 7, 5]
%2 = input "past_v" : f32[2, 7, 5]
%3 = input "k" : f32[2, 4, 5]
%4 = input "v" : f32[2, 4, 5]
%5 = input "mask" : f32[4, 11]
%6 = affine(%0) {scale = 0.5, offset = 0.0} : f32[6, 4, 5] @ "a"
%7 = reshape(%6) {shape = [2, 12, 5]} : f32[2, 12, 5] @ "a"
%8 = concat(%1, %3) {axis = 1} : f32[2, 11, 5] @ "a"
%9 = matmul(%7, %8) {transpose_b = true} : f32[2, 12, 11] @ "a"
%10 = reshape(%9) {shape = [2, 3, 4, 11]} : f32[2, 3, 4, 11] @ "a"
%11 = add(%10, %5) : f32[2, 3, 4, 11] @ "a"
%12 = softmax(%11) : f32[2, 3, 4, 11] @ "a"
%13 = reshape(%12) {shape = [2, 12, 11]} : f32[2, 12, 11] @ "a"
%14 = concat(%2, %4) {axis = 1} : f32[2, 11, 5] @ "a"
%15 = matmul(%13, %14) {transpose_b = false} : f32[2, 12, 5] @ "a"
%16 = reshape(%15) {shape = [6, 4, 5]} : f32[6, 4, 5] @ "a"
output "y" = %16"#,
    ),
    (
        Pass::DecomposeShortConv,
        "%0 = input \"x\" : f32[3, 8]\n%1 = weight \"w\" : bf16[8, 3]\n%2 = short_conv(%0, %1) : f32[1, 8]\noutput \"y\" = %2",
        r#"%0 = input "x" : f32[3, 8]
%1 = weight "w" : bf16[8, 3]
%2 = transpose(%1) {perm = [1, 0]} : f32[3, 8]
%3 = slice(%0) {axis = 0, start = 0, len = 1} : f32[1, 8]
%4 = slice(%2) {axis = 0, start = 0, len = 1} : f32[1, 8]
%5 = mul(%3, %4) : f32[1, 8]
%6 = slice(%0) {axis = 0, start = 1, len = 1} : f32[1, 8]
%7 = slice(%2) {axis = 0, start = 1, len = 1} : f32[1, 8]
%8 = mul(%6, %7) : f32[1, 8]
%9 = slice(%0) {axis = 0, start = 2, len = 1} : f32[1, 8]
%10 = slice(%2) {axis = 0, start = 2, len = 1} : f32[1, 8]
%11 = mul(%9, %10) : f32[1, 8]
%12 = add(%5, %8) : f32[1, 8]
%13 = add(%12, %11) : f32[1, 8]
output "y" = %13"#,
    ),
    (
        Pass::DecomposeShortConv,
        "%0 = input \"x\" : f32[5, 8]\n%1 = weight \"w\" : f32[8, 2]\n%2 = weight \"b\" : f16[8]\n%3 = short_conv(%0, %1, %2) : f32[4, 8]\noutput \"y\" = %3",
        r#"%0 = input "x" : f32[5, 8]
%1 = weight "w" : f32[8, 2]
%2 = weight "b" : f16[8]
%3 = transpose(%1) {perm = [1, 0]} : f32[2, 8]
%4 = slice(%0) {axis = 0, start = 0, len = 4} : f32[4, 8]
%5 = slice(%3) {axis = 0, start = 0, len = 1} : f32[1, 8]
%6 = mul(%4, %5) : f32[4, 8]
%7 = slice(%0) {axis = 0, start = 1, len = 4} : f32[4, 8]
%8 = slice(%3) {axis = 0, start = 1, len = 1} : f32[1, 8]
%9 = mul(%7, %8) : f32[4, 8]
%10 = add(%6, %9) : f32[4, 8]
%11 = add(%10, %2) : f32[4, 8]
output "y" = %11"#,
    ),
    (
        Pass::DecomposeRmsNorm,
        "%0 = input \"x\" : f32[2, 8]\n%1 = weight \"g\" : bf16[8]\n%2 = rms_norm(%0, %1) {eps = 1e-5} : f32[2, 8]\noutput \"y\" = %2",
        r#"%0 = input "x" : f32[2, 8]
%1 = weight "g" : bf16[8]
%2 = mul(%0, %0) : f32[2, 8]
%3 = mean(%2) {axis = 1} : f32[2, 1]
%4 = affine(%3) {scale = 1.0, offset = 1e-5} : f32[2, 1]
%5 = rsqrt(%4) : f32[2, 1]
%6 = mul(%0, %5) : f32[2, 8]
%7 = mul(%6, %1) : f32[2, 8]
output "y" = %7"#,
    ),
    (
        Pass::DecomposeRope,
        "%0 = input \"x\" : f32[3, 2, 8]\n%1 = input \"c\" : f32[2, 4]\n%2 = input \"s\" : f32[2, 4]\n%3 = rope(%0, %1, %2) : f32[3, 2, 8]\noutput \"y\" = %3",
        r#"%0 = input "x" : f32[3, 2, 8]
%1 = input "c" : f32[2, 4]
%2 = input "s" : f32[2, 4]
%3 = slice(%0) {axis = 2, start = 0, len = 4} : f32[3, 2, 4]
%4 = slice(%0) {axis = 2, start = 4, len = 4} : f32[3, 2, 4]
%5 = mul(%3, %1) : f32[3, 2, 4]
%6 = mul(%4, %2) : f32[3, 2, 4]
%7 = mul(%4, %1) : f32[3, 2, 4]
%8 = mul(%3, %2) : f32[3, 2, 4]
%9 = sub(%5, %6) : f32[3, 2, 4]
%10 = add(%7, %8) : f32[3, 2, 4]
%11 = concat(%9, %10) {axis = 2} : f32[3, 2, 8]
output "y" = %11"#,
    ),
    (
        Pass::DecomposeSoftmax,
        "%0 = input \"x\" : f32[2, 8]\n%1 = softmax(%0) : f32[2, 8]\n%2 = silu(%1) : f32[2, 8]\noutput \"y\" = %2",
        r#"%0 = input "x" : f32[2, 8]
%1 = max(%0) {axis = 1} : f32[2, 1]
%2 = sub(%0, %1) : f32[2, 8]
%3 = exp(%2) : f32[2, 8]
%4 = sum(%3) {axis = 1} : f32[2, 1]
%5 = div(%3, %4) : f32[2, 8]
%6 = silu(%5) : f32[2, 8]
output "y" = %6"#,
    ),
    (
        Pass::DecomposeLayerNorm,
        "%0 = input \"x\" : f32[2, 8]\n%1 = weight \"g\" : f32[8]\n%2 = weight \"b\" : f32[8]\n%3 = layer_norm(%0, %1, %2) {eps = 1e-5} : f32[2, 8] @ \"n\"\noutput \"y\" = %3",
        r#"%0 = input "x" : f32[2, 8]
%1 = weight "g" : f32[8]
%2 = weight "b" : f32[8]
%3 = mean(%0) {axis = 1} : f32[2, 1] @ "n"
%4 = sub(%0, %3) : f32[2, 8] @ "n"
%5 = mul(%4, %4) : f32[2, 8] @ "n"
%6 = mean(%5) {axis = 1} : f32[2, 1] @ "n"
%7 = affine(%6) {scale = 1.0, offset = 1e-5} : f32[2, 1] @ "n"
%8 = rsqrt(%7) : f32[2, 1] @ "n"
%9 = mul(%4, %8) : f32[2, 8] @ "n"
%10 = mul(%9, %1) : f32[2, 8] @ "n"
%11 = add(%10, %2) : f32[2, 8] @ "n"
output "y" = %11"#,
    ),
    (
        Pass::DecomposeSilu,
        "%0 = input \"x\" : f32[2]\n%1 = silu(%0) : f32[2] @ \"s\"\noutput \"y\" = %1",
        "%0 = input \"x\" : f32[2]\n%1 = sigmoid(%0) : f32[2] @ \"s\"\n%2 = mul(%0, %1) : f32[2] @ \"s\"\noutput \"y\" = %2",
    ),
];

#[test]
fn decompositions_read_as_documented() {
    for &(pass, before, after) in DECOMPOSITIONS {
        check(pass, before, after);
    }
}

#[test]
fn a_rewrite_that_is_too_large_is_an_error() {
    // Each operand can be addressed, the scores cannot.
    let body = r#"%0 = input "q" : f32[1, 2147483648, 1]
%1 = input "past_k" : f32[1, 1, 1]
%2 = input "past_v" : f32[1, 1, 1]
%3 = input "k" : f32[1, 2147483648, 1]
%4 = input "v" : f32[1, 2147483648, 1]
%5 = input "mask" : f32[2147483648, 2147483649]
%6 = attention(%0, %1, %2, %3, %4, %5) {scale = 1.0} : f32[1, 2147483648, 1]
output "y" = %6"#;
    assert!(verify(&read(body)).is_err(), "the mask is as large as the scores of one head");
    let body = body
        .replace("f32[2147483648, 2147483649]", "f32[1073741824, 1073741825]")
        .replace("2147483648", "1073741824")
        .replace("f32[1, 1073741824, 1]\n%1", "f32[4, 1073741824, 1]\n%1")
        .replace("{scale = 1.0} : f32[1,", "{scale = 1.0} : f32[4,");
    let error = run(read(&body), &[Pass::Decompose], |_, _, _| {}).unwrap_err();
    let message = "the result of `matmul` is impossible: f32[1, 4294967296, 1073741825] is too large to address";
    assert_eq!(error.diagnostics()[0].message, message);
    assert_eq!(error.diagnostics()[0].help, ["this came from: `attention` %6 has a plain form"]);
}

#[test]
fn patches_that_do_not_fit_are_refused() {
    let graph =
        read("%0 = input \"x\" : f32[2]\n%1 = exp(%0) : f32[2]\n%2 = sum(%1) {axis = 0} : f32[1]\noutput \"y\" = %2");
    let redirect = |target, to| Patch::redirect(ValueId(target), ValueId(to), String::new());
    let too_early = Patch { result: Source::New(0), ..redirect(1, 0) };
    let ill_typed = Patch::compute(ValueId(1), "why".into(), |ops| ops.op(Op::Add {}, &[Source::Old(ValueId(0))]));
    for (patches, expected) in [
        (vec![redirect(9, 0)], "a patch replaces %9, which is not defined"),
        (vec![redirect(1, 0), redirect(1, 0)], "two patches replace %1"),
        (vec![redirect(0, 0)], "a patch replaces %0, which is no operation"),
        (vec![redirect(1, 1)], "%1 is used before it is defined"),
        (vec![redirect(2, 1)], "a patch replaces %2 of type f32[1] by f32[2]"),
        (vec![too_early], "a patch uses its operation 0 too early"),
        (vec![ill_typed], "`add` takes 2 operands, and it has 1"),
    ] {
        let changes = Changes { patches, ports: Vec::new() };
        assert_eq!(apply(&graph, &changes).unwrap_err().diagnostics()[0].message, expected);
    }
}

#[test]
fn ports_that_cannot_change_are_refused() {
    let graph = read(
        "%0 = input \"x\" : f32[2, 3]\n%1 = exp(%0) : f32[2, 3]\n%2 = abs(%1) : f32[2, 3]\noutput \"y\" = %2\noutput \"z\" = %1",
    );
    let exp = |of: u32| move |ops: &mut NewOps| ops.op(Op::Exp {}, &[Source::Old(ValueId(of))]);
    let transposed =
        |of: u32| move |ops: &mut NewOps| ops.op(Op::Transpose { perm: vec![1, 0] }, &[Source::Old(ValueId(of))]);
    let port = |port, shape: &[usize]| PortChange { port: ValueId(port), shape: shape.into() };
    let changed = |patches: Vec<Patch>, ports: Vec<PortChange>| {
        let changed = apply(&graph, &Changes { patches, ports });
        changed
            .map_or_else(|error| error.diagnostics()[0].message.clone(), |graph| graph.value(ValueId(2)).ty.to_string())
    };
    let patch = |target, build: &dyn Fn(&mut NewOps) -> Source| Patch::compute(ValueId(target), "why".into(), build);
    for (patches, ports, expected) in [
        (vec![patch(2, &transposed(1))], vec![], "a patch replaces %2 of type f32[2, 3] by f32[3, 2]"),
        (vec![patch(1, &exp(0))], vec![port(0, &[3, 2])], "a patch replaces %1 of type f32[2, 3] by f32[3, 2]"),
        (vec![patch(2, &exp(0))], vec![port(0, &[3, 2])], "f32[3, 2]"),
        (vec![], vec![port(0, &[3, 3])], "%0 of type f32[2, 3] cannot become [3, 3]"),
        (vec![], vec![port(1, &[3, 2])], "%1 is no input that could change"),
        (vec![], vec![port(7, &[3, 2])], "%7 is no input that could change"),
    ] {
        assert_eq!(changed(patches, ports), expected);
    }
}

#[test]
fn names_parse_back() {
    for &pass in Pass::ALL {
        assert_eq!(Pass::parse(pass.name()).unwrap(), pass);
        assert!(pass.meaning().ends_with('.'), "{}", pass.meaning());
    }
    let error = Pass::parse("fuse").unwrap_err();
    let fault = &error.diagnostics()[0];
    assert_eq!(fault.message, "there is no pass `fuse`");
    assert!(fault.need.as_ref().unwrap().starts_with("simplify, decompose-attention, "));
}

/// The outputs by name, and the inputs as ports.
type Seen = (Vec<(String, Vec<f64>)>, Vec<(String, Type)>);

fn observe(graph: &Graph, case: &Case) -> Seen {
    let values = naive::eval(graph, &case.inputs, &case.weights);
    let outputs = graph.outputs.iter().map(|output| (output.name.clone(), values[&output.value].clone()));
    let inputs = graph.values.iter().filter(|value| value.def == Def::Input);
    (outputs.collect(), inputs.map(|value| (value.name.clone(), value.ty.clone())).collect())
}

/// GELU's plain form is 1.5e-7 of the operand off at most, beside rounded factors.
#[test]
fn gelu_in_plain_operations() {
    let whole = read("%0 = input \"x\" : f32[4001]\n%1 = gelu(%0) : f32[4001]\noutput \"y\" = %1");
    let plain = run(whole.clone(), &[Pass::DecomposeGelu], |_, _, _| {}).unwrap();
    assert!(!has_gelu(&plain));
    let x: Vec<f32> = (-2000..=2000).map(|i| i as f32 / 100.0).collect();
    let inputs = [("x".to_owned(), x.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>())].into();
    let [exact, have] = [&whole, &plain].map(|graph| {
        let values = naive::eval(graph, &inputs, &[].into());
        values[&graph.outputs[0].value].clone()
    });
    for ((exact, have), x) in exact.iter().zip(&have).zip(&x) {
        assert!((exact - have).abs() <= 2e-7 * f64::from(x.abs()), "gelu({x}): {have} and {exact}");
        assert!((exact - have).abs() <= 1e-5 * exact.abs().max(0.1), "gelu({x}): {have} and {exact}");
    }
}

fn has_gelu(graph: &Graph) -> bool {
    graph.values.iter().any(|value| matches!(value.def, Def::Op { op: Op::Gelu {}, .. }))
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

    #[test]
    fn passes_keep_the_meaning(case in cases(12), order in Just(Pass::ALL.to_vec()).prop_shuffle()) {
        let (exact, ports) = observe(&case.graph, &case);
        // The plain form of GELU is none of the same numbers, so what follows it is held against that form.
        let (of_plain, _) = observe(&run(case.graph.clone(), &[Pass::DecomposeGelu], |_, _, _| {}).unwrap(), &case);
        let check = |graph: &Graph| {
            let (outputs, inputs) = observe(graph, &case);
            let expected = if has_gelu(graph) { &exact } else { &of_plain };
            assert_eq!(inputs, ports);
            assert_eq!(outputs.len(), expected.len());
            for ((name, have), (wanted_name, wanted)) in outputs.iter().zip(expected) {
                assert_eq!((name, have.len()), (wanted_name, wanted.len()));
                let close = |(a, b): (&f64, &f64)| b.is_finite() && (a - b).abs() <= 1e-9 * b.abs().max(1.0);
                assert!(have.iter().zip(wanted).all(close), "{name}: {have:?} and {wanted:?}\n{}\n{graph}", case.graph);
            }
        };
        for &pass in Pass::ALL {
            check(&run(case.graph.clone(), &[pass], |_, _, _| {}).unwrap());
        }
        let done = run(case.graph.clone(), &order, |_, graph, _| check(graph)).unwrap();
        // Nothing is left to do for a pass that has run; `simplify` may find more after others.
        let again = run(done.clone(), &[Pass::Decompose], |_, _, reasons| assert!(reasons.is_empty())).unwrap();
        prop_assert_eq!(again, done);
    }
}
