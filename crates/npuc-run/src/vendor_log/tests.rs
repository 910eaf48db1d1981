//! What is read of logs in many spellings, and the way back to graphs.

use npuc::ir::{Graph, text};

use super::*;

/// What is expected of each finding: its kind, actual value and number of lines.
type Expected = &'static [(Kind, Option<&'static str>, usize)];

/// Kind, actual value and number of lines of each finding.
fn said(log: &str) -> Vec<(Kind, Option<String>, usize)> {
    decode(log).into_iter().map(|finding| (finding.kind, finding.actual, finding.said.len())).collect()
}

#[test]
fn a_refusal_is_read_in_any_spelling() {
    const HEADS: [&str; 5] = [
        "ERROR: NIR[7]: FullyConnectedLayer<7>{FULLY_CONNECTED}",
        "OP[7] FULLY_CONNECTED",
        "E/neuron ( 123): op[ 7 ] is FULLY_CONNECTED:",
        "\u{1b}[31mERROR\u{1b}[0m: NIR[7]: {FULLY_CONNECTED}",
        "FULLY_CONNECTED",
    ];
    const OPERANDS: [&str; 6] = [
        " operand 1: {128256, 2048}",
        "   Operand[1] shape=[128256,2048] type=FLOAT32",
        " input #1 (128256x2048)",
        " ├ Input 1: 128256 x 2048",
        "\toperand 1 <128256×2048>",
        " operand 1 : f32[128256, 2048] \"lm_head.weight\"",
    ];
    const REASONS: [&str; 5] = [
        " ├ MDLA: Dimension should be <= 65535.",
        "    MDLA: Dimension should be <= 65535",
        "ERROR: MDLA: dimension should be <=65535 (operand 1)",
        "I/MDLA_5_3: Dimension should be <= 65535.",
        "└─\u{1b}[33mMDLA: Dimension should be <= 65535.\u{1b}[0m",
    ];
    for head in HEADS {
        for operand in OPERANDS {
            for reason in REASONS {
                let log = format!("something first\n{head}\n{operand}\n{reason}\n");
                let findings = decode(&log);
                let [finding] = &findings[..] else { panic!("{log}: {findings:#?}") };
                assert_eq!((finding.kind, finding.max_extent), (Kind::Dimension, Some(65535)), "{log}");
                let operation = &finding.operations[0];
                let expected = ("FULLY_CONNECTED", &vec![vec![128256, 2048]]);
                assert_eq!((operation.builtin.as_str(), &operation.operands), expected, "{log}");
                assert!(operation.index.is_none_or(|index| index == 7), "{log}");
                assert_eq!(finding.actual.as_deref(), Some("128256 in the operand [128256, 2048]"), "{log}");
                assert!(finding.remedies[0].to_string().starts_with("`--flag gno=LTS`"), "{log}");
                assert_eq!(finding.said[0].line, 4);
            }
        }
    }
}

#[test]
fn extents_that_are_none_are_not_read() {
    let read = |line: &str| {
        let mut operation = Operation::default();
        tensors::read(line, &mut operation);
        operation.shapes().cloned().collect::<Vec<_>>()
    };
    let cases: [(&str, &[&[usize]]); 16] = [
        ("[apusys][error]memAlloc: alloc mem(160/0/0/0x5)", &[]),
        ("NIR[2]: ReshapeLayer<2>{RESHAPE}", &[]),
        ("[  917.743889] something", &[]),
        ("[12] something", &[]),
        ("operand [12]", &[&[12]]),
        ("input[12]", &[]),
        ("2026-11-30 version 1.2.3", &[]),
        ("1x", &[]),
        ("x1x2", &[]),
        ("[1, 2", &[]),
        ("[]", &[]),
        ("[1, 0]", &[]),
        ("[99999999999999999999999, 2]", &[]),
        ("[1,2,3,4,5,6,7,8,9]", &[]),
        ("a [2,3] and (4 x 5), 6x7.", &[&[2, 3], &[4, 5]]),
        ("a [2,3] and (4 x 5), 6x7", &[&[2, 3], &[4, 5], &[6, 7]]),
    ];
    for (line, expected) in cases {
        assert_eq!(read(line), expected, "{line}");
    }
}

#[test]
fn every_kind_is_read_and_other_text_is_not() {
    let cases: [(&str, Expected); 17] = [
        ("", &[]),
        ("nothing of any tool\n14001 apples and 1002 pears, error!", &[]),
        ("Q28 loaded 1002 tensors", &[]),
        ("the compiler is done: 0 errors", &[]),
        ("Target: the moon", &[]),
        ("FULLY_CO28ECTED operand [128256, 2048] is fine", &[]),
        ("NOTE: all is well", &[]),
        ("EDMA: unsupported operation", &[(Kind::UnsupportedOperation, None, 1)]),
        ("MDLA: kernel size should be less than 16", &[(Kind::OtherReason, None, 1)]),
        ("MDLA: 12 ms\nCPU: 4 cores\nMDLA: version 5.3", &[]),
        ("error: unsupported target: x86_64-unknown-linux-gnu", &[]),
        ("Target: x86_64-unknown-linux-gnu\nSubTarget: MDLA_5_3", &[]),
        (
            "step 3, Target: MDLA_5_3, 12 us\nTarget: TFLITE_CPU",
            &[(Kind::Placement, Some("1 step"), 1), (Kind::Placement, Some("1 step"), 1)],
        ),
        ("NeuronCompilation_finish: NEURON_UNMAPPABLE @ line 1514", &[(Kind::Unmappable, None, 1)]),
        ("Found an unsupported target: MDLA_3_0", &[(Kind::ForeignUnit, Some("MDLA_3_0"), 1)]),
        ("qnn error 14001\nQnn error: 0x36b1", &[(Kind::QnnDevice, None, 2)]),
        (
            "has incorrect Value 9, expected >= 81.\nhas incorrect Value 8, expected equal to 4.",
            &[(Kind::QnnRule, Some("9"), 1), (Kind::QnnRule, Some("8"), 1)],
        ),
    ];
    check_texts(&cases);
}

#[test]
fn texts_of_torq_and_iree() {
    let cases: [(&str, Expected); 13] = [
        ("Compressed iType not supported here", &[(Kind::TorqForm, None, 1)]),
        ("data-dependent memory offset", &[(Kind::TorqOffset, None, 1)]),
        ("unable to create memcpy", &[(Kind::TorqCopy, None, 1)]),
        ("LRAM plan infeasible", &[(Kind::TorqFragments, None, 1)]),
        ("error: 'flow.dispatch' op unhandled operation", &[(Kind::TorqCall, None, 1)]),
        (
            "torq-compile: Kernel.cpp:1: int f(): Assertion `a != b' failed.",
            &[(Kind::TorqAssertion, Some("a != b"), 1)],
        ),
        ("bash: /lib/libm.so.6: version `GLIBC_2.38' not found (required by ./a.out)", &[]),
        (
            "error: failed to legalize operation 'vector.bitcast' that was explicitly marked illegal: %5 = \"vector.bitcast\"(%4) : \
             (vector<2xf32>) -> vector<4xbf16>",
            &[(Kind::IreeBitcast, None, 1)],
        ),
        (
            "error: failed to legalize operation 'arith.constant' that was explicitly marked illegal: dense<0.0> : vector<1024xf32>",
            &[(Kind::IreeConstant, Some("a vector of 1024xf32"), 1)],
        ),
        (
            "ValueError: NOT_FOUND; required module 'io_parameters' not registered on the context",
            &[(Kind::IreeScope, None, 1)],
        ),
        (
            "parameter_index.c:248: NOT_FOUND; no parameter found in index with key 'layers.0.w'; while invoking",
            &[(Kind::IreeParameter, Some("layers.0.w"), 1)],
        ),
        (
            "buffer_diagnostics.c:225: INVALID_ARGUMENT; input0 shape dimension 0 mismatch; expected 256 but have 255; expected \
             shape `256`, actual shape `255`; while invoking native function hal.buffer_view.assert",
            &[(Kind::IreeArguments, Some("input0 shape dimension 0 mismatch, expected 256 but have 255"), 1)],
        ),
        (
            "invocation.c:103: INVALID_ARGUMENT; input list and function mismatch; expected 2 arguments but passed 1; invoking",
            &[(Kind::IreeArguments, Some("input list and function mismatch, expected 2 arguments but passed 1"), 1)],
        ),
    ];
    check_texts(&cases);
}

fn check_texts(cases: &[(&str, Expected)]) {
    for (log, expected) in cases {
        let found = said(log);
        let found: Vec<_> = found.iter().map(|(kind, actual, n)| (*kind, actual.as_deref(), *n)).collect();
        assert_eq!(&found, expected, "{log}");
    }
}

#[test]
fn the_logs_of_the_repository() {
    const DIMENSION: &str = "128256 in the operand [128256, 2048], 128256 in the result [1, 128, 128256]";
    let cases: [(&str, Expected); 8] = [
        (
            "ncc-dimension.log",
            &[(Kind::Dimension, Some(DIMENSION), 2), (Kind::NoPlan, None, 2), (Kind::OtherUnit, None, 1)],
        ),
        (
            "ncc-batch-matmul.log",
            &[(Kind::UnsupportedOperation, None, 2), (Kind::OtherUnit, None, 2), (Kind::NoPlan, None, 1)],
        ),
        (
            "ncc-int32.log",
            &[
                (Kind::UnsupportedNumber, Some("Cannot support Int32 input; Cannot support Int32 output"), 2),
                (Kind::NoPlan, None, 1),
                (Kind::DriverChain, None, 1),
            ],
        ),
        ("ncc-float-rewrite.log", &[(Kind::QuantizedOnly, None, 1)]),
        ("ncc-plan.log", &[(Kind::Placement, Some("2 steps"), 2), (Kind::Placement, Some("1 step"), 1)]),
        (
            "apusys-memory.log",
            &[(Kind::DriverMemory, Some("a request of 160 bytes failed"), 1), (Kind::DriverChain, None, 8)],
        ),
        (
            "apusys-import.log",
            &[(Kind::DriverImport, Some("a buffer of 45045600 bytes"), 2), (Kind::DriverChain, None, 1)],
        ),
        (
            "torq-lram.log",
            &[
                (Kind::TorqFragments, Some("323072 bytes in use and a buffer of 196608 bytes"), 1),
                (Kind::TorqLram, None, 1),
            ],
        ),
    ];
    check_logs(&cases);
}

#[test]
fn the_logs_of_torq_and_iree() {
    let cases: [(&str, Expected); 11] = [
        ("torq-odd-outputs.log", &[(Kind::TorqCopy, None, 2)]),
        ("torq-offset.log", &[(Kind::TorqOffset, None, 1)]),
        (
            "torq-rank2.log",
            &[(
                Kind::TorqAffine,
                Some(
                    "isDim ? !map->isFunctionOfDim(en.index()) : !map->isFunctionOfSymbol(en.index()) && \"map is function of \
                     unexpected expr@pos\"",
                ),
                1,
            )],
        ),
        ("torq-form.log", &[(Kind::TorqForm, None, 1), (Kind::TorqCssStack, Some("4096 bytes"), 1)]),
        ("torq-off-slices.log", &[(Kind::TorqOffSlices, Some("linalg.generic"), 1)]),
        ("torq-host.log", &[(Kind::TorqHost, None, 2)]),
        ("torq-glibc.log", &[(Kind::TorqLibc, Some("GLIBC_2.38; GLIBCXX_3.4.32"), 3)]),
        ("iree-bitcast.log", &[(Kind::IreeBitcast, None, 1)]),
        ("iree-scope.log", &[(Kind::IreeScope, Some("no file for the scope model"), 1)]),
        ("iree-vulkan-loader.log", &[(Kind::IreeVulkan, None, 1)]),
        ("iree-vulkan-driver.log", &[(Kind::IreeVulkan, None, 1)]),
    ];
    check_logs(&cases);
}

fn check_logs(cases: &[(&str, Expected)]) {
    for (name, expected) in cases {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/logs").join(name);
        let found = said(&std::fs::read_to_string(path).unwrap());
        let found: Vec<_> = found.iter().map(|(kind, actual, n)| (*kind, actual.as_deref(), *n)).collect();
        assert_eq!(&found, expected, "{name}");
    }
}

fn two_layers() -> Graph {
    text::parse(
        r#"graph "8t12c" {
  %0 = input "hidden" : f32[8, 16]
  %1 = weight "layers.0.up.weight" : f32[32, 16]
  %2 = weight "layers.1.up.weight" : f32[32, 16]
  %3 = weight "lm_head.weight" : f32[70000, 16]
  %4 = linear(%0, %1) : f32[8, 32] @ "layers.0.up"
  %5 = linear(%0, %2) : f32[8, 32] @ "layers.1.up"
  %6 = mul(%4, %5) : f32[8, 32] @ "layers.1.act"
  %7 = affine(%6) {scale = 0.5, offset = 0.0} : f32[8, 32] @ "layers.1.act"
  %8 = linear(%0, %3) : f32[8, 70000] @ "lm_head"
  output "act" = %7
  output "logits" = %8
}"#,
    )
    .unwrap()
}

#[test]
fn findings_lead_back_to_lines_of_graphs() {
    // The heading and the lines below it; the values that are meant.
    let cases: [(&str, &str, &[u32]); 17] = [
        ("FULLY_CONNECTED", "operand \"layers.1.up.weight\"", &[5]),
        ("FULLY_CONNECTED", "result layers.0.up/linear.4", &[4]),
        // Another cut of the model has other numbers.
        ("FULLY_CONNECTED", "result layers.0.up/linear.77", &[4]),
        ("FULLY_CONNECTED", "result 'logits'", &[8]),
        // What has more of the named tensors is meant.
        ("FULLY_CONNECTED", "input 'hidden' output layers.1.up/linear.5", &[5]),
        ("FULLY_CONNECTED", "input 'hidden'", &[4, 5, 8]),
        ("DEQUANTIZE", "input 'layers.0.up.weight'", &[4]),
        ("MUL", "input layers.0.up/linear.4 output layers.1.act/mul.6", &[6]),
        ("MUL", "output layers.1.act/affine.7.scaled", &[7]),
        ("FULLY_CONNECTED", "operand 0 [1, 8, 16], operand 1 [32, 16]", &[4, 5]),
        ("FULLY_CONNECTED", "result 0 [1, 8, 70000]", &[8]),
        ("FULLY_CONNECTED", "result 0 [1, 8, 70001]", &[]),
        ("FULLY_CONNECTED", "shape [70000, 16]", &[8]),
        // Without extents the limit of 65535 keeps what exceeds it.
        ("FULLY_CONNECTED", "no tensors here", &[8]),
        ("MUL", "operand 1 [1]\nresult [8, 32]", &[6, 7]),
        ("BATCH_MATMUL", "no tensors here", &[]),
        ("SOFTMAX", "result 0 [8, 32]", &[]),
    ];
    let graph = two_layers();
    for (head, tensors, expected) in cases {
        let log = format!("NIR[1]: {{{head}}}\n{tensors}\nMDLA: Dimension should be <= 65535.");
        let findings = decode(&log);
        let places = locate(&findings[0], std::slice::from_ref(&graph));
        let lines: Vec<u32> = places.iter().map(|place| place.line as u32 - 2).collect();
        assert_eq!(lines, expected, "{log}");
        for place in places {
            let printed = graph.to_string();
            assert_eq!(printed.lines().nth(place.line - 1).unwrap().trim(), place.text);
        }
    }
}

#[test]
fn remedies_follow_the_numbers() {
    let remedies = |log: &str| decode(log)[0].remedies.iter().map(ToString::to_string).collect::<Vec<_>>().join(" | ");
    let dimension = |outputs: usize| {
        remedies(&format!("FULLY_CONNECTED\n result [1, {outputs}]\n MDLA: Dimension should be <= 65535."))
    };
    let cases = [
        (dimension(128256), "and 128256 is (", "at least 2 parts"),
        (dimension(151851), "151851 is not: pad to 151856 first", "at least 3 parts"),
        (dimension(262144), "and 262144 is (", "at least 5 parts"),
        (remedies("SOFTMAX\n result [1, 70000]\n MDLA: Dimension should be <= 65535."), "--shapes", "shorter context"),
        (remedies("BATCH_MATMUL\nMDLA: unsupported operation"), "npuc check --target", "MDLA 3.5 or later"),
        (remedies("unsupported target: EDPA_1_2"), "--suppress-input", "--disallow-bridge"),
        (remedies("unsupported target: MDLA_3_0"), "board's own --arch", "npuc targets"),
    ];
    for (remedies, one, other) in cases {
        assert!(remedies.contains(one) && remedies.contains(other), "{remedies}");
    }
    assert!(!remedies("SOFTMAX\nMDLA: Dimension should be <= 65535.").contains("gno"));
}

#[test]
fn a_message_has_all_reasons() {
    let log = "FULLY_CONNECTED\n result [8, 70000]\n MDLA: Dimension should be <= 65535.\n\nMUL\n MDLA: unsupported operation";
    let findings = decode(log);
    let places = locate_all(&findings, &[two_layers()]);
    let message = diagnostic(&findings, &places, "a.log".as_ref()).unwrap().to_string();
    let expected = "error[vendor-refusal]: ncc-tflite: the MDLA takes no extent above 65535\n  \
                    --> a.log:3: lm_head (8t12c.ir:10)\n  \
                    = need: every extent at most 65535 (vendor: MediaTek, on a FULLY_CONNECTED of 128256 x 2048)\n  \
                    = have: 70000 in the result [8, 70000]\n  \
                    = help: also: the MDLA does not take the operation, at layers.1.act (8t12c.ir:8), layers.1.act (8t12c.ir:9)\n";
    assert!(message.starts_with(expected), "{message}");
    assert!(message.ends_with("`npuc explain a.log` tells the whole answer"), "{message}");
    assert_eq!(diagnostic(&decode("Target: MDLA_5_3"), &[], "a.log".as_ref()), None);
    assert_eq!(diagnostic(&[], &[], "a.log".as_ref()), None);
}
