//! Logs of vendors' tools: mutants of them, and the names in emitted TFLite files as the way back to graphs.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use npuc::back::tflite::{Storage, chunks, emit};
use npuc::build::weight_types;
use npuc::fit::Request;
use npuc::front;
use npuc::ir::{Def, Graph, text};
use npuc::model::{CacheProtocol, Chunks};
use npuc::target::{check, host};
use npuc_run::vendor_log::{decode, diagnostic, locate, locate_all};

mod data;
#[path = "../../npuc/tests/mutants/mod.rs"]
mod mutants;

use data::{checkpoints, shapes};

/// The names that a computed tensor has in the file: `<path>/<operation>.<value>`, read from its bytes.
fn computed_names(file: &[u8], graph: &Graph) -> BTreeSet<String> {
    let strings = file.split(|byte| !(0x20..0x7F).contains(byte)).filter_map(|bytes| std::str::from_utf8(bytes).ok());
    let ops: BTreeSet<&str> = graph.values.iter().filter_map(|value| op_name(&value.def)).collect();
    let name = |text: &&str| {
        let last = text.rsplit_once('/').map(|(_, last)| last);
        last.and_then(|last| last.split_once('.'))
            .is_some_and(|(op, id)| ops.contains(op) && id.bytes().all(|byte| byte.is_ascii_digit()))
    };
    strings.filter(name).map(str::to_owned).collect()
}

fn op_name(def: &Def) -> Option<&'static str> {
    match def {
        Def::Op { op, .. } => Some(op.name()),
        Def::Input | Def::Weight => None,
    }
}

#[test]
fn names_in_emitted_files_lead_back() {
    let checkpoint = front::open(&checkpoints().join("qwen3-bf16")).unwrap();
    let config = &checkpoint.config;
    let parts = Chunks::Equal(config.layers()).parts(config.layers()).unwrap();
    let types = weight_types(&checkpoint.tensors);
    let mut found = 0;
    let target = host().with_protocol(CacheProtocol::Shift);
    let request = Request::plain(target.clone(), shapes("4t16c,1t16c"));
    for chunk in chunks(&checkpoint.config, &types, &request, &parts).unwrap() {
        let checked = check(chunk.graph.clone(), &target, &request.question).unwrap();
        let mut file = Vec::new();
        emit(&checked, &checkpoint.tensors, Storage::F32).unwrap().write_to(&mut file).unwrap();
        for name in computed_names(&file, &chunk.graph) {
            let (path, rest) = name.rsplit_once('/').unwrap();
            let id: usize = rest.split_once('.').unwrap().1.parse().unwrap();
            let value = &chunk.graph.values[id];
            assert_eq!(value.name, path);
            let builtin = match op_name(&value.def).unwrap() {
                "linear" => "FULLY_CONNECTED",
                "matmul" => "BATCH_MATMUL",
                "softmax" => "SOFTMAX",
                "reshape" => "RESHAPE",
                "transpose" => "TRANSPOSE",
                "concat" => "CONCATENATION",
                _ => continue,
            };
            let log = format!("ERROR: NIR[3]: {{{builtin}}}\n  output 0: {name}\n ├ MDLA: unsupported operation");
            let places = locate(&decode(&log)[0], std::slice::from_ref(&chunk.graph));
            let lines: Vec<usize> = places.iter().map(|place| place.line).collect();
            // An operation that reads the result is of another kind here, or it is meant as well.
            assert!(lines.contains(&(id + 2)), "{name}: {lines:?}");
            found += 1;
        }
    }
    assert!(found > 100, "{found}");
}

#[test]
fn mutants_of_logs() {
    const LOG: &str = "ERROR: NIR[7]: FullyConnectedLayer<7>{FULLY_CONNECTED}\n │ operand 1: {70000, 16} \"lm_head.weight\"\n \
                       ├ MDLA: Dimension should be <= 65535.\n";
    const GRAPH: &str = r#"graph "g" {
  %0 = input "hidden" : f32[8, 16]
  %1 = weight "lm_head.weight" : f32[70000, 16]
  %2 = linear(%0, %1) : f32[8, 70000] @ "lm_head"
  output "logits" = %2
}"#;
    let graphs = [text::parse(GRAPH).unwrap()];
    let logs = [
        LOG,
        "[apusys][error]memImport: import mem(0x0/45045600) fail(Cannot allocate memory)",
        "LRAM plan infeasible (fragmentation) at op 6510: cannot place buffer 1457 (196608 bytes), resident 323072 of 523008 bytes",
        "torq-compile: AffineOps.cpp:1383: void f(): Assertion `isDim' failed.\nm.mlir:2:8: error: 'linalg.generic' op unsupported in \
         function body\n./torq-compile: libm.so.6: version `GLIBC_2.38' not found",
        "error: failed to legalize operation 'arith.constant': dense<0.0> : vector<1024xf32>\nno provider registered that handles scopes \
         like 'model'; while\nINVALID_ARGUMENT; input0 shape mismatch; expected 2; while",
        "\u{1b}[31m[4294967295] has incorrect Value 8, expected equal to 4.\nqnn error 0x36b1",
        "[ERROR] Output[0] has incorrect Rank 5.\n<E> validateNativeOps master op validator lm_head/linear.2:qti.aisw:Conv2d failed 3110\n\
         WARNING:No registered op found for 0x40 'q::GenPad'\nCould not prepare op with id 0x40\n<E> \"lm_head/linear.2\" generated: could not create op",
        "Unsupported input/output datatypes requested for the HTP Op 'Add' in the node 'lm_head/linear.2'. There is\n\
         Requested I/O datatype set:\n in[0]:QNN_DATATYPE_FLOAT_16\nSupported I/O datatype sets\n 1:\n in[0]:QNN_DATATYPE_INT_32\n out[0]:QNN_DATATYPE_INT_8",
    ];
    for log in logs {
        mutants::run("vendor log", log.as_bytes(), |bytes| {
            let log = String::from_utf8_lossy(bytes);
            let findings = decode(&log);
            let places = locate_all(&findings, &graphs);
            let _ = diagnostic(&findings, &places, "a.log".as_ref());
            let lines = log.lines().count();
            for finding in &findings {
                assert!(!finding.said.is_empty());
                assert!(finding.said.iter().all(|said| (1..=lines).contains(&said.line)));
            }
            findings.iter().any(|finding| finding.actual.is_some())
        });
    }
}

/// A log of 80,000 lines under one heading is read in a moment: nothing grows with its square.
#[test]
fn long_logs() {
    let lines: String = (0..40_000).map(|i| format!("operand a.b{i}/c [2, {}]\n", i + 2)).collect();
    let log = format!("MUL\n{lines}MDLA: unsupported operation\n{}", "MDLA: unsupported operation\n".repeat(40_000));
    let start = std::time::Instant::now();
    let findings = decode(&log);
    assert_eq!((findings.len(), findings[0].said.len()), (1, 40_001));
    let refused = |i: usize| {
        format!(
            "datatypes requested for the HTP Op 'Add' in the node 'a/b.{i}'. \nUnsupported input/output datatypes requested\n<E> Failed to validate op a/c.{i} with error 0xc26\n"
        )
    };
    let findings = decode(&(0..20_000).map(refused).collect::<String>());
    assert_eq!(findings.iter().map(|finding| finding.said.len()).collect::<Vec<_>>(), [20_000, 20_000]);
    assert!(start.elapsed() < std::time::Duration::from_secs(20), "{:?}", start.elapsed());
}
