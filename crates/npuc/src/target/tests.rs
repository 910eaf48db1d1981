//! Tests of targets: the files brought along, malformed files, and every kind of rule at a place that breaks it
//! and one that does not.

use std::collections::BTreeSet;
use std::path::Path;

use super::check::{Question, check, misfits};
use super::number::Precision;
use super::{Chip, Misfit, Target, all, file, find, host, ledger};
use crate::diag::{Code, Severity};
use crate::ir::text::parse;
use crate::ir::{Graph, Op};
use crate::place::{Assignment, Side};

/// A chip without rules that takes every operation of the tests but `silu`.
pub(super) const PLAIN: &str = r#"
name = "small"
summary = "a chip for tests"
generation = { name = "Small 2", major = 2 }
protocol = "append"
float = "f16"
unit = [
    { name = "NPU", kind = "npu", source = "tests", grade = "tried" },
    { name = "CPU", kind = "cpu", source = "tests", grade = "tried" },
]
[[ops]]
unit = "NPU"
takes = { linear = "FC", matmul = "BMM", softmax = "SM", add = "ADD", mul = "MUL", sigmoid = "SIG", mean = "MEAN", reshape = "RS", affine = "MUL", rms_norm = "NORM", attention = "ATT" }
source = "tests"
grade = "tried"
[[ops]]
unit = "NPU"
activations = ["int16"]
takes = { max = "MAX" }
source = "tests"
grade = "tried"
[[ops]]
unit = "CPU"
takes = { exp = "EXP" }
source = "tests"
grade = "tried"
[[ops]]
unit = "NPU"
refuses = { silu = "SWISH" }
source = "the tests refuse it"
grade = "third-party"
[[format]]
activation = "f16"
weights = ["f16", "f32"]
source = "tests"
grade = "tried"
[[format]]
activation = "int16"
weights = ["int8", "int4"]
channel = true
groups = [4, 8, 32]
source = "tests"
grade = "tried"
"#;

/// The small chip with more text.
fn small(more: &str) -> Target {
    match file::parse(&format!("{PLAIN}\n{more}"), Path::new("small.toml")) {
        Ok(target) => target,
        Err(error) => panic!("{error}"),
    }
}

pub(super) fn rule(name: &str, limit: &str) -> String {
    format!("[[rule]]\nname = {name:?}\n{limit}\nsource = \"tests\"\ngrade = \"tried\"\n")
}

fn linear(rows: usize, inputs: usize, outputs: usize) -> String {
    format!(
        "graph \"g\" {{\n %0 = input \"x\" : f32[{rows}, {inputs}]\n %1 = weight \"w\" : f32[{outputs}, {inputs}]\n \
         %2 = linear(%0, %1) : f32[{rows}, {outputs}] @ \"layers.0.proj\"\n output \"logits\" = %2\n}}\n"
    )
}

fn question(target: &Target, precision: &str, flags: &[&str]) -> Question {
    let precision = Precision::parse(precision, target.float).unwrap();
    let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
    Question::new(target, precision, &flags).unwrap()
}

/// All misfits of a graph as one chunk.
fn found(target: &Target, text: &str, precision: &str, flags: &[&str]) -> Vec<Misfit> {
    let graph = parse(text).unwrap();
    crate::ir::verify::verify(&graph).unwrap();
    let question = question(target, precision, flags);
    let graphs = std::slice::from_ref(&graph);
    let memory = ledger::measure(graphs, target, &question.precision);
    let mut all = misfits(&graph, target, &question, &Assignment::by(&graph, |_| Side::Npu));
    all.extend(ledger::misfits(&memory, graphs, target, &question));
    all
}

/// `code line actual` of a misfit, and its remedies.
fn brief(misfit: &Misfit) -> String {
    let remedies: String = misfit.remedies.iter().map(|remedy| format!("; {remedy}")).collect();
    format!("{} {} {}{remedies}", misfit.code, misfit.places[0].line, misfit.actual)
}

/// Holds what the rule finds in a graph that breaks it and in one that keeps it.
fn check_rule(limit: &str, precision: &str, breaks: &str, expected: &str, keeps: &str) {
    let target = small(&rule("the rule", limit));
    let said: Vec<String> = found(&target, breaks, precision, &[]).iter().map(brief).collect();
    assert_eq!(said, [expected], "{limit}\n{breaks}");
    let said: Vec<String> = found(&target, keeps, precision, &[]).iter().map(brief).collect();
    assert_eq!(said, [""; 0], "{limit}\n{keeps}");
}

fn unary(op: &str, shape: &str) -> String {
    format!(
        "graph \"g\" {{\n %0 = input \"x\" : f32{shape}\n %1 = {op}(%0) : f32{shape} @ \"layers.0.x\"\n output \"y\" = %1\n}}\n"
    )
}

#[test]
fn limits_of_extents() {
    let split = "split the 128 outputs into 2 parts of 64 and join the results";
    check_rule(
        "limit.dimension.max = 100",
        "FP",
        &linear(2, 8, 128),
        &format!("dimension-limit 4 operand 1 [128, 8], result [2, 128]; {split}"),
        &linear(2, 8, 100),
    );
    check_rule(
        "limit.dimension.max = 100\nops = [\"linear\"]",
        "FP",
        &linear(2, 101, 8),
        "dimension-limit 4 operand 0 [2, 101], operand 1 [8, 101]",
        &unary("sigmoid", "[2, 101]"),
    );
    check_rule(
        "limit.rank.max = 2",
        "FP",
        &unary("sigmoid", "[1, 2, 3]"),
        "rank-limit 3 rank 3: [1, 2, 3]; join neighbouring axes with a reshape around the operation",
        &unary("sigmoid", "[2, 3]"),
    );
    check_rule(
        "limit.batch.allowed = [1, 4]",
        "FP",
        &linear(12, 8, 8),
        "batch-limit 4 12 rows; `--shapes`: steps of 4 tokens",
        &linear(4, 8, 8),
    );
    check_rule(
        "limit.multiple = { extent = \"vocabulary\", of = 16 }",
        "FP",
        &linear(1, 8, 37),
        "extent-multiple 4 37, that is 16 x 2 + 5; pad the 37 outputs to 48; the runner never samples the 11 added \
         ones; split unevenly into 32 and 5 outputs, the rest on the CPU",
        &linear(1, 8, 48),
    );
    check_rule(
        "limit.multiple = { extent = \"inputs\", of = 32 }",
        "FP",
        &linear(1, 48, 8),
        "extent-multiple 4 48, that is 32 x 1 + 16; pad the 48 inputs with zeros to 64",
        &linear(1, 64, 8),
    );
    check_rule(
        "limit.multiple = { extent = \"outputs\", of = 2 }\nwhen.weight = [\"int8\"]",
        "8W16A",
        &linear(1, 8, 3),
        "extent-multiple 4 3, that is 2 x 1 + 1; pad the 3 outputs to 4 and cut the result; split unevenly into 2 \
         and 1 outputs, the rest on the CPU",
        &linear(1, 8, 4),
    );
}

#[test]
fn limits_of_attention() {
    let scores = |dim: usize| {
        format!(
            "graph \"g\" {{\n %0 = input \"q\" : f32[2, 1, {dim}]\n %1 = input \"k\" : f32[2, 4, {dim}]\n %2 = matmul(%0, %1) \
             {{transpose_b = true}} : f32[2, 1, 4]\n output \"y\" = %2\n}}\n"
        )
    };
    check_rule(
        "limit.head-dim.allowed = [64, 128]",
        "FP",
        &scores(80),
        "head-dim 4 width 80; pad every head with zeros to 128",
        &scores(64),
    );
    check_rule(
        "limit.generation.min = 3",
        "FP",
        &scores(64),
        "chip-generation 4 Small 2, generation 2; choose a chip of generation 3 or later",
        &unary("sigmoid", "[2]"),
    );
    check_rule(
        "limit.generation.min = 2",
        "FP",
        // Another rule of the same chip that fires shows that the graph was looked at.
        &unary("exp", "[2]"),
        "unsupported-op 3 `exp` (EXP); choose a chip that takes the operation",
        &scores(64),
    );
}

#[test]
fn limits_of_formats() {
    let pad = |inputs, padded| format!("; pad the {inputs} inputs with zeros to {padded}");
    check_rule(
        "limit.group-divides = {}",
        "4W16A-g32",
        &linear(1, 48, 8),
        &format!(
            "group-size 4 48, that is 32 x 1 + 16; `--precision 4W16A-g8`: groups of 8 divide 48; `--precision 4W16A`: \
             one scale a channel needs no groups{}",
            pad(48, 64)
        ),
        &linear(1, 64, 8),
    );
    check_rule(
        "limit.accumulator.bits = 32",
        "8W16A",
        &linear(1, 512, 8),
        "accumulator-range 4 up to 2^31 (512 x 2^22)",
        &linear(1, 511, 8),
    );
    check_rule(
        "limit.on-chip.max = 64",
        "FP",
        &linear(1, 33, 8),
        "on-chip-limit 4 66 bytes (33 elements); `--shapes`: a shorter context or narrower activations",
        &linear(1, 32, 8),
    );
    for inputs in [896usize, 8640, 14464] {
        let text = linear(1, inputs, 8);
        let target = small(&format!(
            "{}[[format]]\nactivation = \"int8\"\nweights = [\"int4\"]\ngroups = [256]\nsource = \"tests\"\ngrade = \"tried\"\n",
            rule("groups", "limit.group-divides = {}")
        ));
        let said = found(&target, &text, "4W8A-g256", &[]);
        assert_eq!(said.iter().map(|misfit| misfit.code).collect::<Vec<_>>(), [Code::GroupSize], "{inputs}");
    }
}

#[test]
fn limits_of_graphs() {
    check_rule(
        "limit.op-count.max = 1",
        "FP",
        "graph \"g\" {\n %0 = input \"x\" : f32[2]\n %1 = sigmoid(%0) : f32[2]\n %2 = sigmoid(%1) : f32[2]\n output \"y\" = %2\n}\n",
        "op-count 1 2 operations; `--chunks`: cut the model into more chunks",
        &unary("sigmoid", "[2]"),
    );
    check_rule(
        "limit.binding-count.max = 2",
        "FP",
        "graph \"g\" {\n %0 = input \"x\" : f32[2]\n %1 = input \"z\" : f32[2]\n %2 = add(%0, %1) : f32[2]\n output \"y\" = %2\n}\n",
        "binding-count 1 3 ports; `--chunks`: cut the model into more chunks; pack the caches of all layers into one \
         port each for keys and values",
        &unary("sigmoid", "[2]"),
    );
    // 8 x 8 weights in f16 are 128 bytes; two ports of 8 and one buffer of 8 are 48 more.
    let whole = |bytes: u64, rest: u64| format!("{bytes} bytes: weights 128, state 0, ports and activations {rest}");
    let (chunks, shapes) = ("; `--chunks`: cut the model into more chunks", "; `--shapes`: a shorter context");
    check_rule(
        "limit.bytes = { per = \"file\", max = 127 }",
        "FP",
        &linear(1, 8, 8),
        &format!("byte-limit 1 {}{chunks}", whole(128, 48)),
        &linear(1, 7, 9),
    );
    check_rule(
        "limit.bytes = { per = \"graph\", max = 143 }",
        "FP",
        &linear(1, 8, 8),
        &format!("byte-limit 1 {}{chunks}{shapes}", whole(144, 48)),
        &linear(1, 7, 8),
    );
    check_rule(
        "limit.bytes = { per = \"context\", max = 175 }",
        "FP",
        &linear(1, 8, 8),
        &format!("byte-limit 1 {}{chunks}{shapes}", whole(176, 48)),
        &linear(1, 7, 8),
    );
    check_rule(
        "limit.bytes = { per = \"tensor\", max = 127 }",
        "FP",
        &linear(1, 8, 8),
        "byte-limit 4 128 bytes (f16, [8, 8]); split the 8 outputs into 2 parts of 4 and join the results",
        &linear(1, 7, 9),
    );
}

#[test]
fn hazards_of_binary16() {
    let binary = |op: &str, a: &str, b: &str| {
        format!(
            "graph \"g\" {{\n %0 = input \"a\" : f32[2, 2]\n %1 = input \"{b}\" : f32[2, 2]\n %2 = {op}({a}) : f32[2, 2]\n \
             output \"y\" = %2\n}}\n"
        )
    };
    let hazard = |hazard: &str| format!("limit.fp16-range.hazard = \"{hazard}\"");
    check_rule(
        &hazard("mask"),
        "FP",
        &binary("add", "%0, %1", "mask"),
        "fp16-range 4 -1e9, the constant of the target's masks",
        &binary("add", "%0, %1", "other"),
    );
    let softmax = |mask: &str| {
        format!(
            "graph \"g\" {{\n %0 = input \"a\" : f32[2, 2]\n %1 = input \"{mask}\" : f32[2, 2]\n %2 = add(%0, %1) : f32[2, 2]\n \
             %3 = reshape(%2) {{shape = [1, 4]}} : f32[1, 4]\n %4 = softmax(%3) : f32[1, 4]\n output \"y\" = %4\n}}\n"
        )
    };
    check_rule(
        &hazard("hidden-row"),
        "FP",
        &softmax("mask"),
        "fp16-range 6 -1e9 is minus infinity in fp16, and its softmax 0 / 0; let every padding row see itself, as npuc's own runner does",
        &softmax("other"),
    );
    check_rule(
        &hazard("rms-square"),
        "FP",
        &binary("mul", "%0, %0", "b"),
        "fp16-range 4 x * x overflows from |x| = 256 on; divide by the largest magnitude of the row before squaring",
        &binary("mul", "%0, %1", "b"),
    );
    let gated = |gate: &str| {
        format!(
            "graph \"g\" {{\n %0 = input \"gate\" : f32[2]\n %1 = input \"up\" : f32[2]\n %2 = sigmoid(%0) : f32[2]\n \
             %3 = mul({gate}, %2) : f32[2]\n %4 = mul(%3, %1) : f32[2]\n output \"y\" = %4\n}}\n"
        )
    };
    check_rule(
        &hazard("swiglu"),
        "FP",
        &gated("%0"),
        "fp16-range 6 silu(gate) * up, both unbounded; scale one factor by 1/16 and the down projection's result by 16",
        &gated("%1"),
    );
    let scores = "graph \"g\" {\n %0 = input \"q\" : f32[1, 1, 4]\n %1 = input \"k\" : f32[1, 4, 4]\n \
                  %2 = affine(%0) {scale = 0.5, offset = 0.0} : f32[1, 1, 4]\n %3 = matmul(Q, %1) {transpose_b = T} : f32[1, 1, 4]\n \
                  output \"y\" = %3\n output \"z\" = %2\n}\n";
    let scores = |q: &str, transposed: &str| scores.replace('Q', q).replace('T', transposed);
    // Scaled queries keep the scores small.
    check_rule(
        &hazard("scores"),
        "FP",
        &scores("%0", "true"),
        "fp16-range 5 unscaled sums of products over the head's width; scale the queries before the product instead of the scores after it",
        &scores("%2", "true"),
    );
    // Integer activations have ranges of their own.
    let target = small(&rule("mask", &format!("{}\nwhen.activation = [\"f16\"]", hazard("mask"))));
    assert!(found(&target, &binary("add", "%0, %1", "mask"), "8W16A", &[]).is_empty());
}

#[test]
fn operations_and_formats() {
    let cases: [(&str, String, &str, Severity); 7] = [
        (
            "FP",
            unary("exp", "[2]"),
            "unsupported-op 3 `exp` (EXP); choose a chip that takes the operation",
            Severity::Error,
        ),
        (
            "FP",
            unary("rsqrt", "[2]"),
            "unsupported-op 3 `rsqrt`; `--place op=rsqrt=cpu`: compute it on the CPU, between files of the NPU; choose a chip that takes the operation",
            Severity::Error,
        ),
        (
            "FP",
            unary("silu", "[2]"),
            "unsupported-op 3 `silu`; `--place op=silu=cpu`: compute it on the CPU, between files of the NPU; choose a chip",
            Severity::Error,
        ),
        (
            "FP",
            unary("max", "[1]").replace("(%0)", "(%0) {axis = 0}"),
            "unsupported-op 3 `max` in f16, which is taken in int16; `--precision FP32`: is a precision",
            Severity::Error,
        ),
        ("8W8A", linear(1, 8, 8), "unsupported-format 4 int8 activations, int8 per channel weights", Severity::Error),
        ("4WFP", linear(1, 8, 8), "unsupported-format 4 f16 activations, int4 per channel weights", Severity::Error),
        (
            "4W16A-g16",
            linear(1, 16, 8),
            "unsupported-format 4 int16 activations, int4 in groups of 16",
            Severity::Error,
        ),
    ];
    let target = small("");
    for (precision, text, expected, severity) in cases {
        let said = found(&target, &text, precision, &[]);
        let [misfit] = &said[..] else { panic!("{precision} {text}: {said:?}") };
        assert!(brief(misfit).starts_with(expected.split("; `--precision FP32`").next().unwrap()), "{}", brief(misfit));
        assert_eq!(misfit.severity, severity);
    }
    for (precision, text) in [
        ("FP", unary("sigmoid", "[2]")),
        ("8W16A", unary("max", "[1]").replace("(%0)", "(%0) {axis = 0}")),
        ("4W16A-g8", linear(1, 16, 8)),
        ("stored", linear(1, 16, 8)),
    ] {
        assert!(found(&target, &text, precision, &[]).is_empty(), "{precision} {text}");
    }
    let refused = &found(&target, &unary("silu", "[2]"), "FP", &[])[0];
    assert_eq!(
        (refused.source.as_str(), refused.message.as_str()),
        ("the tests refuse it", "no unit takes `silu` (SWISH)")
    );
    // Where the tools fall back, an operation beside the NPU is a warning.
    let falls = PLAIN.replace("float = \"f16\"", "float = \"f16\"\nfallback = true");
    let falls = file::parse(&falls, Path::new("small.toml")).unwrap();
    assert_eq!(found(&falls, &unary("exp", "[2]"), "FP", &[])[0].severity, Severity::Warning);
}

#[test]
fn a_transposition_of_axes_of_one_is_a_reshape() {
    let target = small("");
    let transpose = |from: &str, to: &str| {
        format!(
            "graph \"g\" {{\n %0 = input \"x\" : f32{from}\n %1 = transpose(%0) {{perm = [1, 0, 2]}} : f32{to}\n output \"y\" = %1\n}}\n"
        )
    };
    assert!(found(&target, &transpose("[1, 2, 3]", "[2, 1, 3]"), "FP", &[]).is_empty());
    assert_eq!(found(&target, &transpose("[2, 2, 3]", "[2, 2, 3]"), "FP", &[])[0].code, Code::UnsupportedOp);
}

#[test]
fn flags_lift_limits() {
    let unless = "[[rule.unless]]\nflag = \"wide\"\nops = [\"linear\"]\noutput-multiple-of = 16\nsource = \"tests\"\ngrade = \"tried\"\n";
    let target = small(&format!("{}{unless}", rule("dimension", "limit.dimension.max = 100")));
    let cases: [(&[&str], String, &[&str]); 6] = [
        (
            &[],
            linear(1, 8, 128),
            &[
                "`--wide`: lifts the limit, for 128 is divisible by 16 (tried: tests)",
                "split the 128 outputs into 2 parts of 64 and join the results",
            ],
        ),
        (&["wide"], linear(1, 8, 128), &[]),
        (&["--wide"], linear(1, 8, 128), &[]),
        (
            &["wide"],
            linear(1, 8, 127),
            &[
                "`--wide`: lifts the limit once the 127 outputs are padded to 128, a multiple of 16 (tried: tests)",
                "split the 127 outputs into 2 parts of 64, 63 and join the results",
            ],
        ),
        // The flag is about outputs: wide inputs stay a misfit, without a remedy of that kind.
        (&["wide"], linear(1, 128, 128), &[]),
        (&["wide"], linear(1, 8, 96), &[]),
    ];
    for (i, (flags, text, remedies)) in cases.into_iter().enumerate() {
        let said = found(&target, &text, "FP", flags);
        let texts: Vec<String> = said.iter().flat_map(|misfit| &misfit.remedies).map(ToString::to_string).collect();
        assert_eq!(texts, remedies, "{i}");
        assert_eq!(said.len(), usize::from([0, 3, 4].contains(&i)), "{i}");
    }
    let unknown = Question::new(&target, Precision::stored(target.float), &["wider".to_owned()]).unwrap_err();
    assert_eq!(unknown.diagnostics()[0].need.as_deref(), Some("one of: wide"));
}

#[test]
fn outputs_are_split_into_the_fewest_parts() {
    let cases: [(usize, usize, usize, &[usize]); 10] = [
        (128_256, 65_535, 16, &[64_128, 64_128]),
        (151_936, 65_535, 16, &[50_656, 50_640, 50_640]),
        (151_851, 65_535, 1, &[50_617, 50_617, 50_617]),
        (262_144, 65_535, 16, &[52_432, 52_432, 52_432, 52_432, 52_416]),
        (131_071, 65_535, 1, &[43_691, 43_690, 43_690]),
        (10, 100, 1, &[10]),
        (32, 15, 16, &[11, 11, 10]),
        // Padding to whole units.
        (51_865, 65_535, 16, &[51_872]),
        (51_865, 32_768, 32, &[25_952, 25_920]),
        (131_071, 65_535, 16, &[43_696, 43_696, 43_680]),
    ];
    for (len, max, unit, parts) in cases {
        let split = super::remedy::split(len, max, unit);
        assert_eq!(split, parts, "{len} by {max} in units of {unit}");
        assert!((len..len + unit).contains(&split.iter().sum()) && split.iter().all(|&part| part <= max));
    }
}

/// A head that became a convolution leaves through a reshape and is a head all the same, also in parts.
#[test]
fn a_head_behind_a_reshape_is_a_head() {
    let target = small(&rule("vocabulary", "limit.multiple = { extent = \"vocabulary\", of = 16 }"));
    for port in ["logits", "logits.1", "hidden"] {
        let reshape = format!("%3 = reshape(%2) {{shape = [1, 1, 37]}} : f32[1, 1, 37]\n output {port:?} = %3");
        let text = linear(1, 8, 37).replace("output \"logits\" = %2", &reshape);
        let said = found(&target, &text, "FP", &[]);
        let mends: Vec<bool> = said.iter().map(|misfit| misfit.remedies.iter().any(|r| r.mend.is_some())).collect();
        // What is split already is not split again.
        let expected: &[bool] = match port {
            "logits" => &[true],
            "logits.1" => &[false],
            _ => &[],
        };
        assert_eq!(mends, expected, "{port}");
    }
}

#[test]
fn equal_misfits_are_folded() {
    let text = "graph \"g\" {\n %0 = input \"x\" : f32[2, 9]\n %1 = sigmoid(%0) : f32[2, 9] @ \"layers.0.a\"\n \
                %2 = sigmoid(%1) : f32[2, 9] @ \"layers.1.b\"\n %3 = mean(%2) {axis = 1} : f32[2, 1]\n output \"y\" = %3\n}\n";
    let said = found(&small(&rule("dimension", "limit.dimension.max = 8")), text, "FP", &[]);
    let places: Vec<Vec<usize>> = said.iter().map(|m| m.places.iter().map(|place| place.line).collect()).collect();
    assert_eq!(places, [vec![3, 4], vec![5]]);
    assert_eq!(said[0].places[1].text, "%2 = sigmoid(%1) : f32[2, 9] @ \"layers.1.b\"");
    // Lines are those of the printed graph.
    let printed = parse(text).unwrap().to_string();
    assert_eq!(printed.lines().nth(3).unwrap().trim(), said[0].places[1].text);
}

#[test]
fn checked_is_what_fits() {
    let graph = |text: &str| -> Graph { parse(text).unwrap() };
    let target = small(&rule("dimension", "limit.dimension.max = 8"));
    assert!(check(graph(&unary("sigmoid", "[8]")), &target, &Question::stored(&target)).is_ok());
    let error = check(graph(&unary("sigmoid", "[9]")), &target, &Question::stored(&target)).unwrap_err();
    assert_eq!((error.diagnostics()[0].code, error.exit_status()), (Code::DimensionLimit, 1));
    // Warnings do not stop.
    let warns = small(&rule("dimension", "limit.dimension.max = 8\nseverity = \"warning\""));
    assert!(check(graph(&unary("sigmoid", "[9]")), &warns, &Question::stored(&warns)).is_ok());
    assert!(check(graph(&unary("sigmoid", "[9]")), &host(), &Question::stored(&host())).is_ok());
}

/// What is promised is emitted. Without a back end nothing is promised.
fn keeps_promises(chip: &Chip) -> bool {
    match chip.back_end {
        Some(back_end) => chip.buildable().iter().all(|op| back_end.emits(op)),
        None => chip.buildable().is_empty(),
    }
}

#[test]
fn the_targets_brought_along() {
    let names: BTreeSet<&str> = all().iter().map(|target| target.name.as_str()).collect();
    assert_eq!(names.len(), 14);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../targets");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> = files.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(files, names.iter().map(|name| (*name).to_owned()).collect());
    for target in all() {
        assert!(keeps_promises(target), "{}", target.name);
        assert_eq!(find(&target.name).unwrap(), *target);
        let fp = Precision::parse("FP", target.float).unwrap();
        let weight = fp.weight.unwrap();
        assert!(
            target.formats.iter().any(|row| row.activation == fp.activation && row.takes(weight)),
            "{}",
            target.name
        );
        // Written out and read again it is the same.
        let json = serde_json::to_value(&**target).unwrap();
        assert_eq!(serde_json::from_value::<Chip>(json).unwrap(), **target, "{}", target.name);
    }
    assert_eq!(host().buildable().len(), Op::NAMES.len());
    let mut checked = find("sl2610").unwrap();
    std::sync::Arc::make_mut(&mut checked.0).back_end = None;
    assert_eq!(checked.back_end().unwrap_err().diagnostics()[0].code, Code::NoBackEnd);
}
