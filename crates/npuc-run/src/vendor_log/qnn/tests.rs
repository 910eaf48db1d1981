//! What QNN says, line by line and in whole logs, and the way from its nodes back to graphs.

use npuc::ir::text;

use super::super::{Finding, Weight, decode, locate, locate_all};
use super::*;

fn log(name: &str) -> String {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/logs").join(name);
    std::fs::read_to_string(path).unwrap()
}

/// Kind, actual value, limit and number of lines.
type Said4<'a> = (Kind, Option<&'a str>, Option<&'a str>, usize);

fn said(findings: &[Finding]) -> Vec<Said4<'_>> {
    let of = |finding: &'_ Finding| finding.said.len();
    findings.iter().map(|f| (f.kind, f.actual.as_deref(), f.limit.as_deref(), of(f))).collect()
}

/// Every error code in the words that programs put around it, in decimal and as the low bits of a value.
#[test]
fn every_code_is_known() {
    for ErrorCode { number, kind, message, .. } in CODES {
        for line in [
            format!("[ERROR]  <E> QnnBackend_validateOpConfig failed {number}"),
            format!("Failed to create context from binary with qnn err {number}"),
            format!("[ERROR]  <E> Failed to validate op a/b.1 with error {number:#x}"),
            format!("qnn error: {:#x}", 0x1_0000_0000 + number),
            format!("[ERROR]  <E> exits with {number}, tensor parameters not supported"),
            format!("contextCreateFromBinary returned {number} ({number:#x}): SOME_NAME: some words"),
            format!("QNN graphFinalize: prepare failed (err={number}), skipping"),
            format!("     0.0ms [ ERROR ]  <E> Transport layer setup failed: {number}"),
        ] {
            let findings = decode(&line);
            let [finding] = &findings[..] else { panic!("{line}: {findings:#?}") };
            assert_eq!((finding.kind, &*finding.message, finding.weight), (kind, message, Weight::Refusal), "{line}");
        }
        for line in [
            format!("[ERROR]  <E> {number} tensors are too many"),
            format!("QNN error after {number} ms"),
            format!("error: {number}"),
            format!("[INFO] <I> qnn graph {number}: done"),
            format!("[ERROR]  <E> failed at 0x{number}ffff"),
        ] {
            assert_eq!(decode(&line), [], "{line}");
        }
    }
}

#[test]
fn every_text_is_known() {
    use Kind::*;
    let cases: [(&str, Said4<'_>); 33] = [
        // The two causes of 14001.
        ("     0.0ms [ ERROR ]  <E> Failed to load skel, error: 4000", (QnnSkel, None, None, 1)),
        ("<E> Unable to load Remote symbols 4000", (QnnSkel, None, None, 1)),
        ("<E> Failed to create transport for device, error: 4000", (QnnSkel, None, None, 1)),
        (
            "<E> Failed to set scatter gather parameters: unknown custom config socModel 0",
            (QnnConfig, Some("socModel 0"), None, 1),
        ),
        ("[ERROR]  <E> Unknown config socModel 9999", (QnnConfig, Some("socModel 9999"), None, 1)),
        ("[ERROR]  <E> Shared weights buffer isn't supported on this platform", (QnnShared, None, None, 1)),
        ("<E> \"a/linear.1\" generated: could not create op", (QnnPrepare, None, None, 1)),
        ("ERROR:could not create op: q::QNN_X_w_blk", (QnnPrepare, Some("q::QNN_X_w_blk"), None, 1)),
        ("ERROR:Oops: Could not prepare op with id 0x408300000014", (QnnPrepare, Some("0x408300000014"), None, 1)),
        (
            "WARNING:No registered op found for 0x401200000016 'q::QNN_CastInt4ToInt8_cp' (registries searched: core)",
            (QnnNoKernel, Some("q::QNN_CastInt4ToInt8_cp"), None, 1),
        ),
        ("No registered op found for 0x4 ''", (QnnNoKernel, None, None, 1)),
        ("[4294967295] has incorrect Value 8, expected equal to 4.", (QnnRule, Some("8"), Some("equal to 4"), 1)),
        ("x[2] has incorrect Value 8, expected > 1 & < 4.", (QnnRule, Some("8"), Some("> 1 & < 4"), 1)),
        ("x[2] has incorrect Value 8.", (QnnRule, Some("8"), None, 1)),
        ("[4294967295] has incorrect Value 75, expected >= 81.", (QnnGeneration, Some("v75"), Some("v81 or later"), 1)),
        ("[4294967295] has incorrect Value 75, expected >= 2.", (QnnRule, Some("75"), Some(">= 2"), 1)),
        ("[4294967295] has incorrect Value 3, expected >= 81.", (QnnRule, Some("3"), Some(">= 81"), 1)),
        ("Output[0] has incorrect Rank 5.", (QnnRule, Some("5"), None, 1)),
        ("in[0] has incorrect Datatype 0x416.", (QnnRule, Some("0x416"), None, 1)),
        ("[ERROR] Wrong number of Inputs 1.", (QnnRule, Some("Inputs 1"), None, 1)),
        ("<E> MatMul BW_FLOAT_BLOCK weight tensor must be rank 4.", (QnnFloatBlock, None, Some("rank 4"), 1)),
        ("<E> FullyConnected BW_FLOAT_BLOCK weight tensor must be rank 2.", (QnnFloatBlock, None, Some("rank 2"), 1)),
        ("tensor datatype 772 not supported", (QnnDataType, Some("772"), None, 1)),
        ("Tensor name x already exists in the graph.", (QnnDuplicate, Some("x"), None, 1)),
        ("[ERROR]  <E> Graph has zero node. Unable to finalize", (QnnEmpty, None, None, 1)),
        ("[ERROR]  <E> Using newer context binary on old SDK", (QnnVersion, None, None, 1)),
        (
            "<E> Can't read future blob. Newest blob version supported: 3.3.x. Current blob version: 4.0.x.",
            (QnnVersion, Some("blob version 4.0.x"), Some("blob version 3.3.x"), 1),
        ),
        (
            "<E> Failed to find available PD for contextId 1 on deviceId 0 coreId 0with context size estimate 3758096384",
            (QnnDomain, Some("an estimate of 3758096384"), None, 1),
        ),
        ("failed to find available PD for context", (QnnDomain, None, None, 1)),
        ("[WARN]  <W> Performance Estimates unsupported on soc SM8650", (QnnEstimates, Some("SM8650"), None, 1)),
        ("<W> HTP arch will be deprecated, please set SoC id instead.", (QnnArch, None, None, 1)),
        ("[ERROR]  <E> unexpected GraphHtpSettings option 66", (QnnHarmless, None, None, 1)),
        (
            "<W> Arch 68 set by custom config is different from arch associated with SoC 57, will overwrite it to 75",
            (QnnHarmless, None, None, 1),
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(said(&decode(line)), [expected], "{line}");
    }
}

/// A code is a reason of its own only where no line says the same in words.
#[test]
fn codes_follow_from_words() {
    let config = "unknown custom config socModel 0\n<E> Failed to parse platform config: 14001";
    let skel = "<E> Failed to load skel, error: 4000\nqnn deviceCreate returned error 14001";
    for (text, kinds) in [
        (config, &[Kind::QnnConfig, Kind::QnnChain][..]),
        (skel, &[Kind::QnnSkel, Kind::QnnChain]),
        ("qnn deviceCreate returned error 14001", &[Kind::QnnDevice]),
        (
            "has incorrect Rank 5.\nqnn failed 3110\nqnn failed 4005",
            &[Kind::QnnRule, Kind::QnnUnknownOp, Kind::QnnChain],
        ),
        ("qnn failed 3110\nqnn failed 1002", &[Kind::QnnRule, Kind::QnnPrepare]),
        ("find available PD\nqnn failed 1002", &[Kind::QnnDomain, Kind::QnnChain]),
    ] {
        let kinds_of: Vec<Kind> = decode(text).iter().map(|finding| finding.kind).collect();
        assert_eq!(kinds_of, kinds, "{text}");
    }
}

const Q_PROJ: &str = "layers.0.self_attn.q_proj (128t1024c.ir:4)";

/// The logs of the repository: each refusal with its values, the lines in all, and the operation in the graph.
#[test]
fn the_logs_of_the_repository() {
    use Kind::*;
    const SETS: &str = "u16 x u8 x u8 to u16, u16 x u8 x s32 to u16, u16 x s8 x u8 to u16, u16 x s8 x s32 to u16, \
                        u16 x u16 x u8 to u16, u16 x u16 x s32 to u16, and 2 more";
    let notes = [QnnEstimates, QnnHarmless];
    let kernels = [QnnEstimates, QnnHarmless, QnnNoKernel];
    type Case<'a> = (&'a str, Option<Said4<'a>>, Option<&'a str>, &'a [Kind], &'a [Kind]);
    let cases: [Case<'_>; 12] = [
        ("qnn-device.log", Some((QnnSkel, None, None, 1)), None, &[QnnChain], &[]),
        ("qnn-config.log", Some((QnnConfig, Some("socModel 0"), None, 1)), None, &[QnnChain], &[]),
        ("qnn-validation.log", Some((QnnRule, Some("8"), Some("equal to 4"), 2)), Some(Q_PROJ), &[QnnChain], &notes),
        (
            "qnn-generation.log",
            Some((QnnGeneration, Some("v75"), Some("v81 or later"), 2)),
            Some(Q_PROJ),
            &[QnnChain],
            &notes,
        ),
        ("qnn-rank.log", Some((QnnRule, Some("5"), None, 2)), Some(Q_PROJ), &[QnnChain], &notes),
        (
            "qnn-formats.log",
            Some((QnnFormats, Some("u16 x f16 to u16"), Some(SETS), 1)),
            Some(Q_PROJ),
            &[QnnChain],
            &notes,
        ),
        ("qnn-float-block.log", Some((QnnFloatBlock, None, Some("rank 4"), 2)), Some(Q_PROJ), &[QnnChain], &notes),
        ("qnn-unknown-op.log", Some((QnnUnknownOp, None, None, 5)), Some(Q_PROJ), &[], &notes),
        (
            "qnn-prepare.log",
            Some((QnnPrepare, Some("q::QNN_FullyConnected_w_blk_scale_offset"), None, 4)),
            Some(Q_PROJ),
            &[QnnChain],
            &kernels,
        ),
        ("qnn-prepare-pad.log", Some((QnnPrepare, Some("q::GenPad"), None, 4)), Some(Q_PROJ), &[QnnChain], &kernels),
        ("qnn-shared.log", Some((QnnShared, None, None, 1)), None, &[QnnChain], &notes),
        ("qnn-prepared.log", None, None, &[], &kernels),
    ];
    let graph = text::parse(&log("qnn.ir")).unwrap();
    for (name, refusal, place, chain, notes) in cases {
        let findings = decode(&log(name));
        let of = |weight| findings.iter().filter(|f| f.weight == weight).cloned().collect::<Vec<_>>();
        assert_eq!(said(&of(Weight::Refusal)), refusal.into_iter().collect::<Vec<_>>(), "{name}");
        let kinds = |weight| of(weight).iter().map(|finding| finding.kind).collect::<Vec<_>>();
        assert_eq!((kinds(Weight::Consequence), kinds(Weight::Note)), (chain.to_vec(), notes.to_vec()), "{name}");
        let places = locate_all(&findings, std::slice::from_ref(&graph));
        let told = places.iter().flatten().map(|place| format!("{} ({}.ir:{})", place.path, place.graph, place.line));
        assert_eq!(told.collect::<Vec<_>>(), place.into_iter().collect::<Vec<_>>(), "{name}");
    }
}

/// The names of nodes that npuc emits, in every line that names one; also those of nodes around an operation, of
/// ports in another form, and in another cut of the model.
#[test]
fn nodes_lead_back_to_lines_of_graphs() {
    let graph = text::parse(
        r#"graph "8t12c" {
  %0 = input "embeds" : f32[8, 16]
  %1 = weight "layers.0.up.weight" : f32[32, 16]
  %2 = linear(%0, %1) : f32[8, 32] @ "layers.0.up"
  %3 = affine(%2) {scale = 0.5, offset = 0.0} : f32[8, 32] @ "layers.0.a:b"
  %4 = affine(%3) {scale = 0.5, offset = 0.0} : f32[8, 32] @ "layers.0.a:b"
  output "act" = %4
}"#,
    )
    .unwrap();
    let expected: [(&str, &[usize]); 11] = [
        ("layers.0.up/linear.2", &[2]),
        ("layers.0.up/linear.2.u16", &[2]),
        ("layers.0.up/linear.2.dequantize", &[2]),
        ("layers.0.up/linear.77", &[2]),
        ("layers.0.a:b/affine.4", &[4]),
        ("layers.0.a:b/affine.9.convert", &[3, 4]),
        ("embeds/port.0.quantize", &[0]),
        ("embeds/port.9.quantize", &[0]),
        ("act", &[4]),
        // Nothing else is guessed from the operation alone.
        ("layers.1.up/linear.2", &[]),
        ("Conv_17", &[]),
    ];
    for (node, values) in expected {
        for line in [
            format!("x has incorrect Rank 5.\n<E> Failed to validate op {node} with error 0xc26"),
            format!(
                "x has incorrect Rank 5.\n<E> validateNativeOps master op validator {node}:qti.aisw:FullyConnected failed 3110"
            ),
            format!(
                "<E> Unsupported input/output datatypes requested for the HTP Op 'Add' in the node '{node}'. There is a mismatch"
            ),
            format!("[ERROR]  <E> \"{node}\" generated: could not create op"),
        ] {
            let findings = decode(&line);
            assert_eq!(findings[0].operations.len(), 1, "{line}");
            assert_eq!(findings[0].operations[0].node.as_deref(), Some(node), "{line}");
            let places = locate(&findings[0], std::slice::from_ref(&graph));
            let lines: Vec<usize> = places.iter().map(|place| place.line - 2).collect();
            assert_eq!(lines, values, "{line}");
        }
    }
}

/// One reason of many nodes is one finding with all of them; another value is another finding.
#[test]
fn equal_reasons_of_many_nodes_are_told_once() {
    let refused = |value: u32, node: &str| {
        format!(
            "[4294967295] has incorrect Value {value}, expected equal to 4.\n<E> Failed to validate op {node} with error 0xc26\n"
        )
    };
    let log = [refused(8, "a/linear.1"), refused(8, "b/linear.2"), refused(2, "c/linear.3"), refused(8, "a/linear.1")];
    let findings = decode(&log.concat());
    let nodes = |finding: &Finding| finding.operations.iter().filter_map(|o| o.node.clone()).collect::<Vec<_>>();
    assert_eq!(findings.len(), 3, "{findings:#?}");
    assert_eq!((findings[0].actual.as_deref(), findings[1].actual.as_deref()), (Some("8"), Some("2")));
    assert_eq!(
        (nodes(&findings[0])[..2].to_vec(), nodes(&findings[1])),
        (vec!["a/linear.1".into(), "b/linear.2".into()], vec!["c/linear.3".to_owned()])
    );
    assert_eq!((findings[0].said.len(), findings[2].kind, findings[2].said.len()), (3, Kind::QnnChain, 4));
}

/// Lists of formats that are cut, odd or of another statement.
#[test]
fn lists_of_formats_are_read_as_far_as_they_go() {
    let head = "Unsupported input/output datatypes requested for the HTP Op 'Add' in the node 'n'. There is\n";
    let asked = "Requested I/O datatype set:\n\n in[0]:QNN_DATATYPE_FLOAT_16\n in[1]: (optional)\n out[0]:QNN_DATATYPE_BOOL_8\n";
    let taken = "Supported I/O datatype sets for the configuration: OTHERS\n 1:\n in[0]:QNN_DATATYPE_INT_32\n out[0]:QNN_DATATYPE_UINT_32\n 2:\n";
    for (text, actual, limit) in [
        (head.to_owned(), None, None),
        (format!("{head}{asked}"), Some("f16 to bool_8"), None),
        (format!("{head}{asked}{taken}"), Some("f16 to bool_8"), Some("int32 to uint32")),
        (format!("{head}{taken}"), None, Some("int32 to uint32")),
        (format!("{head}{asked}end\n{taken}"), Some("f16 to bool_8"), None),
        (format!("{head} in[0]:QNN_DATATYPE_FLOAT_16\n1:\n"), None, None),
        (
            format!("{head}{asked}Requested I/O datatype set:\n in[0]:QNN_DATATYPE_FLOAT_32\n"),
            Some("f16 to bool_8"),
            None,
        ),
    ] {
        let findings = decode(&text);
        assert_eq!(said(&findings), [(Kind::QnnFormats, actual, limit, 1)], "{text}");
    }
}
