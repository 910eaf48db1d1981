//! What a TFLite file holds, read back by a reader of its own that follows the public format and nothing of the
//! writer. That the interpreter computes the right numbers from it is tested in `npuc-run`.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;

use super::*;
use crate::build::weight_types;
use crate::bundle::write::ExtraContent;
use crate::exec::{Executor, to_f32};
use crate::fit::Request;
use crate::front::{self, Checkpoint};
use crate::ir::{GraphBuilder, Op};
use crate::model::{Chunks, StepShape};
use crate::target::{self, Precision, Question, find, host};
use crate::tensor::{DType, Shape};

/// A table of a flatbuffer.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    file: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn root(file: &'a [u8]) -> Reader<'a> {
        assert_eq!(&file[4..8], b"TFL3");
        Reader { file, at: u32_at(file, 0) }
    }

    /// The place of a field; `None` for one that has its default.
    fn field(self, number: usize) -> Option<usize> {
        assert_eq!(self.at % 4, 0);
        let distance = i32::from_le_bytes(self.file[self.at..self.at + 4].try_into().unwrap());
        let list = usize::try_from(self.at as i64 - i64::from(distance)).unwrap();
        let u16_at = |at: usize| usize::from(u16::from_le_bytes(self.file[at..at + 2].try_into().unwrap()));
        (u16_at(list) > 4 + 2 * number).then(|| u16_at(list + 4 + 2 * number)).filter(|&o| o != 0).map(|o| self.at + o)
    }

    pub(super) fn u8(self, number: usize) -> u8 {
        self.field(number).map_or(0, |at| self.file[at])
    }

    pub(super) fn i32(self, number: usize, default: i32) -> i32 {
        self.field(number).map_or(default, |at| {
            assert_eq!(at % 4, 0);
            u32_at(self.file, at) as i32
        })
    }

    /// Where the elements of a vector begin, and how many there are.
    fn vector(self, number: usize) -> Option<(usize, usize)> {
        let at = self.field(number)?;
        let vector = at + u32_at(self.file, at);
        Some((vector + 4, u32_at(self.file, vector)))
    }

    pub(super) fn bytes(self, number: usize) -> &'a [u8] {
        self.vector(number).map_or(&[], |(at, len)| &self.file[at..at + len])
    }

    pub(super) fn ints(self, number: usize) -> Vec<i32> {
        let (at, len) = self.vector(number).unwrap();
        (0..len).map(|i| u32_at(self.file, at + 4 * i) as i32).collect()
    }

    pub(super) fn text(self, number: usize) -> &'a str {
        std::str::from_utf8(self.bytes(number)).unwrap()
    }

    /// A table that a field refers to.
    pub(super) fn table(self, number: usize) -> Option<Reader<'a>> {
        self.field(number).map(|at| Reader { file: self.file, at: at + u32_at(self.file, at) })
    }

    pub(super) fn tables(self, number: usize) -> Vec<Reader<'a>> {
        let (at, len) = self.vector(number).unwrap();
        let place = |i: usize| at + 4 * i;
        (0..len).map(|i| Reader { file: self.file, at: place(i) + u32_at(self.file, place(i)) }).collect()
    }
}

fn u32_at(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize
}

pub(super) fn bytes(file: &TfliteFile) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.write_to(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, file.len_bytes());
    bytes
}

/// The built-in operators that MDLA 5.3 takes, of those that npuc has a use for. Source: ../shared/facts.
const MDLA_5_3: [(i32, &str); 21] = [
    (0, "ADD"),
    (2, "CONCATENATION"),
    (3, "CONV_2D"),
    (6, "DEQUANTIZE"),
    (9, "FULLY_CONNECTED"),
    (14, "LOGISTIC"),
    (18, "MUL"),
    (22, "RESHAPE"),
    (25, "SOFTMAX"),
    (39, "TRANSPOSE"),
    (40, "MEAN"),
    (41, "SUB"),
    (42, "DIV"),
    (47, "EXP"),
    (65, "SLICE"),
    (74, "SUM"),
    (76, "RSQRT"),
    (82, "REDUCE_MAX"),
    (101, "ABS"),
    (114, "QUANTIZE"),
    (126, "BATCH_MATMUL"),
];

/// The name of a type and the bits of its numbers.
fn type_of(tensor: Reader<'_>) -> (&'static str, usize) {
    match tensor.u8(1) {
        0 => ("f32", 32),
        1 => ("f16", 16),
        2 => ("i32", 32),
        4 => ("i64", 64),
        7 => ("i16", 16),
        9 => ("i8", 8),
        17 => ("i4", 4),
        other => panic!("type {other}"),
    }
}

/// The model as lines: ports, then operators with the shapes of operands and results.
pub(super) fn dump(file: &[u8]) -> String {
    let model = Reader::root(file);
    assert_eq!(model.i32(0, 0), 3);
    let codes: Vec<(i32, i32)> = model.tables(1).iter().map(|code| (code.i32(3, 0), code.i32(2, 1))).collect();
    let [graph] = model.tables(2)[..] else { panic!("one subgraph") };
    let buffers = model.tables(4);
    assert!(buffers[0].bytes(0).is_empty());
    let tensors = graph.tables(0);
    let mut known: Vec<bool> = tensors.iter().map(|tensor| tensor.i32(2, 0) != 0).collect();
    let show = |index: i32| {
        let tensor = tensors[index as usize];
        let (ty, _) = type_of(tensor);
        assert!(tensor.ints(0).len() <= 4);
        format!("{} {ty}{:?}", tensor.text(3), tensor.ints(0))
    };
    let mut lines: Vec<String> = graph.ints(1).iter().map(|&index| format!("in  {}", show(index))).collect();
    graph.ints(1).iter().for_each(|&index| known[index as usize] = true);
    for operator in graph.tables(3) {
        let (code, version) = codes[operator.i32(0, 0) as usize];
        let name = MDLA_5_3.iter().find(|(known, _)| *known == code).unwrap().1;
        let args = operator.ints(1);
        assert!(args.iter().all(|&arg| known[arg as usize]), "{name} uses what is not computed yet");
        let [result] = operator.ints(2)[..] else { panic!("one result") };
        assert!(!std::mem::replace(&mut known[result as usize], true), "{name} computes a value again");
        let args: Vec<String> = args.iter().map(|&arg| show(arg)).collect();
        lines.push(format!("{name}.{version}({}) = {}", args.join(", "), show(result)));
    }
    lines.extend(graph.ints(2).iter().map(|&index| format!("out {}", show(index))));
    for tensor in &tensors {
        check_buffer(file, *tensor, buffers[tensor.i32(2, 0) as usize]);
    }
    lines.join("\n")
}

/// A constant's buffer is aligned and has the size of its shape.
fn check_buffer(file: &[u8], tensor: Reader<'_>, buffer: Reader<'_>) {
    if tensor.i32(2, 0) == 0 {
        return;
    }
    let (at, len) = buffer.vector(0).unwrap();
    assert_eq!(at % 16, 0, "{}", tensor.text(3));
    assert_eq!(len, (tensor.ints(0).iter().product::<i32>() as usize * type_of(tensor).1).div_ceil(8));
    assert!(at + len <= file.len());
}

#[test]
fn operators_and_their_operands() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [2, 4]);
    let w = g.weight("w", DType::BF16, [6, 4]);
    let b = g.weight("b", DType::F32, [6]);
    let y = g.op("a", Op::Linear {}, &[x, w, b]);
    let y = g.op("a", Op::Reshape { shape: vec![1, 2, 6] }, &[y]);
    let y = g.op("a", Op::Transpose { perm: vec![0, 2, 1] }, &[y]);
    let y = g.op("a", Op::Slice { axis: 1, start: 2, len: 2 }, &[y]);
    let y = g.op("a", Op::Affine { scale: 2.0, offset: 1.0 }, &[y]);
    let m = g.op("a", Op::Mean { axis: 2 }, &[y]);
    let z = g.op("a", Op::MatMul { transpose_b: true }, &[y, y]);
    let z = g.op("a", Op::Softmax {}, &[z]);
    g.output("z", z);
    g.output("m", m);
    let weights = BTreeMap::from([
        ("w".into(), Tensor::in_memory(DType::BF16, Shape(vec![6, 4]), [0x80, 0x3f].repeat(24).into()).unwrap()),
        ("b".into(), Tensor::in_memory(DType::F32, Shape(vec![6]), vec![0; 24].into()).unwrap()),
    ]);
    let file = bytes(
        &emit(&target::check(g.finish(), &host(), &Question::stored(&host())).unwrap(), &weights, Storage::F32)
            .unwrap(),
    );
    let expected = "\
in  x f32[2, 4]
FULLY_CONNECTED.1(x f32[2, 4], w f32[6, 4], b f32[6]) = a/linear.3 f32[2, 6]
RESHAPE.1(a/linear.3 f32[2, 6], constant.3 i32[3]) = a/reshape.4 f32[1, 2, 6]
TRANSPOSE.1(a/reshape.4 f32[1, 2, 6], constant.4 i32[3]) = a/transpose.5 f32[1, 6, 2]
SLICE.1(a/transpose.5 f32[1, 6, 2], constant.5 i32[3], constant.6 i32[3]) = a/slice.6 f32[1, 2, 2]
MUL.1(a/slice.6 f32[1, 2, 2], constant.7 f32[1]) = a/affine.11.scaled f32[1, 2, 2]
ADD.1(a/affine.11.scaled f32[1, 2, 2], constant.8 f32[1]) = a/affine.7 f32[1, 2, 2]
MEAN.1(a/affine.7 f32[1, 2, 2], constant.9 i32[1]) = m f32[1, 2, 1]
BATCH_MATMUL.1(a/affine.7 f32[1, 2, 2], a/affine.7 f32[1, 2, 2]) = a/matmul.9 f32[1, 2, 2]
SOFTMAX.1(a/matmul.9 f32[1, 2, 2]) = z f32[1, 2, 2]
out z f32[1, 2, 2]
out m f32[1, 2, 1]";
    assert_eq!(dump(&file), expected);
    // The bf16 ones of the weight are f32 ones in the file.
    let ones = 1f32.to_le_bytes().repeat(24);
    let model = Reader::root(&file);
    let w = model.tables(2)[0].tables(0)[1];
    assert_eq!((w.text(3), model.tables(4)[w.i32(2, 0) as usize].bytes(0)), ("w", &ones[..]));
}

/// A filter is `[out, 1, 1, in]`, and a convolution without a bias gets zeros, once for both.
#[test]
fn convolutions_have_filters_and_biases() {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [1, 2, 3, 4]);
    let w = g.weight("w", DType::F32, [4, 4]);
    let b = g.weight("b", DType::F32, [4]);
    let y = g.op("c", Op::PointwiseConv {}, &[x, w]);
    let y = g.op("c", Op::Abs {}, &[y]);
    let y = g.op("c", Op::PointwiseConv {}, &[y, w, b]);
    let y = g.op("c", Op::PointwiseConv {}, &[y, w]);
    g.output("y", y);
    let graph = g.finish();
    let ones = |dims: &[usize]| {
        let bytes = 1f32.to_le_bytes().repeat(dims.iter().product());
        Tensor::in_memory(DType::F32, Shape(dims.to_vec()), bytes.into()).unwrap()
    };
    let weights = BTreeMap::from([("w".into(), ones(&[4, 4])), ("b".into(), ones(&[4]))]);
    let checked = target::check(graph, &host(), &Question::stored(&host())).unwrap();
    let file = bytes(&emit(&checked, &weights, Storage::F32).unwrap());
    let expected = "\
in  x f32[1, 2, 3, 4]
CONV_2D.1(x f32[1, 2, 3, 4], w f32[4, 1, 1, 4], constant.2 f32[4]) = c/pointwise_conv.3 f32[1, 2, 3, 4]
ABS.1(c/pointwise_conv.3 f32[1, 2, 3, 4]) = c/abs.4 f32[1, 2, 3, 4]
CONV_2D.1(c/abs.4 f32[1, 2, 3, 4], w f32[4, 1, 1, 4], b f32[4]) = c/pointwise_conv.5 f32[1, 2, 3, 4]
CONV_2D.1(c/pointwise_conv.5 f32[1, 2, 3, 4], w f32[4, 1, 1, 4], constant.2 f32[4]) = y f32[1, 2, 3, 4]
out y f32[1, 2, 3, 4]";
    assert_eq!(dump(&file), expected);
    let conv = Reader::root(&file).tables(2)[0].tables(3)[0];
    let at = conv.field(4).unwrap();
    let options = Reader { file: &file, at: at + u32_at(&file, at) };
    // Conv2DOptions: valid padding, strides of 1, no activation, no dilation.
    assert_eq!((conv.u8(3), options.u8(0), options.u8(3)), (1, 1, 0));
    assert_eq!([1, 2].map(|field| options.i32(field, 0)), [1, 1]);
    assert_eq!([4, 5].map(|field| options.i32(field, 1)), [1, 1]);
    let half = bytes(&emit(&checked, &weights, Storage::F16).unwrap());
    assert!(dump(&half).contains("DEQUANTIZE.3(w f16[4, 1, 1, 4]) = w/dequantize f32[4, 1, 1, 4]"));
}

#[test]
fn a_filter_is_nothing_else() {
    type Build = fn(&mut GraphBuilder, ValueId);
    let cases: [Build; 3] = [
        |g, x| {
            let w = g.weight("w", DType::F32, [4, 4]);
            let y = g.op("conv", Op::PointwiseConv {}, &[x, w]);
            let z = g.op("fc", Op::Linear {}, &[y, w]);
            g.output("z", z);
        },
        |g, x| {
            let w = g.weight("w", DType::F32, [4, 4]);
            let y = g.op("conv", Op::PointwiseConv {}, &[x, w]);
            let z = g.op("sum", Op::Add {}, &[y, w]);
            g.output("z", z);
        },
        |g, x| {
            let w = g.input("w", [4, 4]);
            let y = g.op("conv", Op::PointwiseConv {}, &[x, w]);
            g.output("y", y);
        },
    ];
    for build in cases {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", [1, 1, 4, 4]);
        build(&mut g, x);
        let error = emit(
            &target::check(g.finish(), &host(), &Question::stored(&host())).unwrap(),
            &BTreeMap::new(),
            Storage::F32,
        )
        .unwrap_err();
        let fault = &error.diagnostics()[0];
        let message = "a matrix is the filter of a convolution and something else too";
        assert_eq!((fault.message.as_str(), fault.subject.as_deref()), (message, Some("w")));
    }
}

pub(super) fn checkpoint(name: &str) -> Checkpoint {
    front::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/checkpoints").join(name)).unwrap()
}

pub(super) fn shapes(text: &str) -> Vec<StepShape> {
    text.split(',').map(|shape| shape.parse().unwrap()).collect()
}

/// Ports of every part: of grouped heads, norms and biases, tied and own heads.
#[test]
fn ports_of_parts() {
    for (name, apart) in [("qwen3-bf16", true), ("llama-gqa3-q4_1.gguf", true), ("qwen2-bf16", false)] {
        let checkpoint = checkpoint(name);
        let config = &checkpoint.config;
        let count = if apart { config.layers() } else { 1 };
        let parts = Chunks::Equal(count).parts(config.layers()).unwrap();
        let types = weight_types(&checkpoint.tensors);
        let shift = host().with_protocol(crate::model::CacheProtocol::Shift);
        let request = Request::plain(shift, shapes("8t32c,1t32c"));
        for chunk in chunks(&checkpoint.config, &types, &request, &parts).unwrap() {
            let (t, c, kv, d) = (chunk.shape.tokens, 32, config.kv_heads(), config.head_dim());
            let entry = if chunk.part.layers.start == 0 { "embeds" } else { "hidden" };
            let (exit, width) =
                if chunk.part.head.is_present() { ("logits", config.vocab()) } else { ("hidden", config.hidden()) };
            let mut ports = vec![
                format!("in  {entry} f32[1, {t}, {}]", config.hidden()),
                format!("in  mask f32[1, 1, {t}, {}]", c + t),
                format!("in  rotary f32[1, 2, {t}, {d}]"),
            ];
            let states = |from: &str| -> Vec<String> {
                let kind = |kind| chunk.part.layers.clone().map(move |layer| (kind, layer));
                let all = kind("k").chain(kind("v"));
                all.map(|(kind, layer)| format!("{from}_{kind}.{layer} f32[1, {kv}, {c}, {d}]")).collect()
            };
            ports.extend(states("past").iter().map(|port| format!("in  {port}")));
            ports.push(format!("out {exit} f32[1, {t}, {width}]"));
            ports.extend(states("next").iter().map(|port| format!("out {port}")));
            let checked = target::check(chunk.graph, &host(), &Question::stored(&host())).unwrap();
            let file = bytes(&emit(&checked, &checkpoint.tensors, Storage::F32).unwrap());
            let dump = dump(&file);
            let have: Vec<&str> = dump.lines().filter(|l| l.starts_with("in ") || l.starts_with("out ")).collect();
            assert_eq!(have, ports, "{name}");
            check_weights(&file, &checkpoint);
        }
    }
}

/// Every weight in the file has the numbers of the checkpoint.
fn check_weights(file: &[u8], checkpoint: &Checkpoint) {
    let model = Reader::root(file);
    let (graph, buffers) = (model.tables(2)[0], model.tables(4));
    let mut checked = 0;
    for tensor in graph.tables(0) {
        if let Some(weight) = checkpoint.tensors.get(tensor.text(3)) {
            let expected: Vec<u8> = to_f32(weight).iter().flat_map(|x| x.to_le_bytes()).collect();
            assert!(buffers[tensor.i32(2, 0) as usize].bytes(0) == expected, "{}", tensor.text(3));
            checked += 1;
        }
    }
    assert!(checked > 8);
}

/// The same numbers leave a graph and its form behind the runtime's ports, bit for bit.
#[test]
fn the_contract_changes_no_number() {
    for name in ["qwen3-bf16", "mistral-bf16", "llama-gqa3-f16.gguf"] {
        let checkpoint = checkpoint(name);
        let weights: BTreeMap<String, Tensor> =
            checkpoint.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.materialized())).collect();
        let types = weight_types(&checkpoint.tensors);
        for shape in shapes("4t12c,1t12c,12t12c") {
            let protocol = crate::model::CacheProtocol::Shift;
            let plain = crate::model::build_step(&checkpoint.config, &types, shape, protocol).unwrap();
            let behind = contract(&plain).unwrap();
            let mut plain = Executor::new(&plain, &weights, &[]).unwrap();
            let mut behind = Executor::new(&behind, &weights, &[]).unwrap();
            let fill = |name: &str, len: usize| -> Vec<f32> {
                let seed = name.bytes().map(usize::from).sum::<usize>();
                (0..len).map(|i| ((i * 37 + seed) % 101) as f32 / 50.0 - 1.0).collect()
            };
            let given: BTreeMap<String, Vec<f32>> =
                plain.inputs().map(|(name, len)| (name.to_owned(), fill(name, len))).collect();
            let rotary = ["rope_cos", "rope_sin"].map(|table| {
                let rows = given[table].chunks(given[table].len() / shape.tokens);
                rows.flat_map(|row| [row, row].concat()).collect::<Vec<f32>>()
            });
            let inputs = |executor: &Executor| -> Vec<Vec<f32>> {
                let names = executor.inputs().map(|(name, _)| name.to_owned());
                names.map(|name| given.get(&name).cloned().unwrap_or_else(|| rotary.concat())).collect()
            };
            let (plain_inputs, behind_inputs) = (inputs(&plain), inputs(&behind));
            plain.run(&[&plain_inputs]);
            behind.run(&[&behind_inputs]);
            for (i, port) in plain.outputs().enumerate() {
                let j = behind.outputs().position(|name| name == port).unwrap();
                assert!(plain.output(i) == behind.output(j), "{name} {shape} {}", port.0);
            }
        }
    }
}

#[test]
fn what_cannot_be_emitted_says_why() {
    type Build = fn(&mut GraphBuilder);
    let cases: [(Build, &str); 5] = [
        (
            |g| {
                let x = g.input("x", [2, 4]);
                let y = g.op("act", Op::Silu {}, &[x]);
                g.output("y", y);
            },
            "TFLite has no operator for `silu`",
        ),
        (
            |g| {
                let x = g.input("x", [2, 4]);
                g.output("y", x);
            },
            "an output of a TFLite file is a result of its own",
        ),
        (
            |g| {
                let x = g.input("x", [2, 4]);
                let y = g.op("e", Op::Exp {}, &[x]);
                g.output("y", y);
                g.output("z", y);
            },
            "an output of a TFLite file is a result of its own",
        ),
        (
            |g| {
                let x = g.input("x", [1, 4]);
                let w = g.weight("absent", DType::F32, [4, 4]);
                let y = g.op("fc", Op::Linear {}, &[x, w]);
                g.output("y", y);
            },
            "the graph uses a weight that is not there",
        ),
        (
            |g| {
                let x = g.input("x", [1 << 31, 1]);
                let y = g.op("e", Op::Exp {}, &[x]);
                g.output("y", y);
            },
            "an extent is too large for TFLite",
        ),
    ];
    for (build, expected) in cases {
        let mut g = GraphBuilder::new("g");
        build(&mut g);
        let error = emit(
            &target::check(g.finish(), &host(), &Question::stored(&host())).unwrap(),
            &BTreeMap::new(),
            Storage::F32,
        )
        .unwrap_err();
        assert_eq!(error.diagnostics()[0].message, expected);
    }
}

/// Files just below and at the limit; the weights are a sparse file, so that no memory is taken.
#[test]
fn a_file_of_2_gib_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("weights");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(1 << 31).unwrap();
    let source = crate::tensor::SourceFile::open(&path).unwrap();
    for (rows, fits) in [((1 << 19) - 1, true), (1 << 19, false)] {
        let mut g = GraphBuilder::new("8t64c");
        let x = g.input("x", [1, 1024]);
        let w = g.weight("w", DType::F32, [rows, 1024]);
        let y = g.op("fc", Op::Linear {}, &[x, w]);
        g.output("y", y);
        let tensor = Tensor::in_file(DType::F32, Shape(vec![rows, 1024]), source.clone(), 0..rows * 4096).unwrap();
        let emitted = emit(
            &target::check(g.finish(), &host(), &Question::stored(&host())).unwrap(),
            &BTreeMap::from([("w".into(), tensor)]),
            Storage::F32,
        );
        match emitted {
            Ok(file) => assert!(fits && file.len_bytes() < FILE_LIMIT_BYTES),
            Err(error) => {
                let fault = &error.diagnostics()[0];
                assert!(!fits);
                assert_eq!(fault.code, Code::Misfit);
                assert_eq!(fault.message, "the TFLite file would be too large");
                assert!(fault.have.as_deref().unwrap().starts_with("21474"), "{fault}");
            }
        }
    }
}

#[test]
fn an_export_is_what_the_runtime_is_fed_with() {
    let checkpoint = checkpoint("qwen2-bf16");
    let parts = Chunks::Equal(2).parts(crate::model::layers(&checkpoint.config)).unwrap();
    let request = |steps: &str| {
        let target = find("genio-720").unwrap();
        let question = Question::new(&target, Precision::parse("FP", target.float).unwrap(), &[]).unwrap();
        Request { question, ..Request::plain(target, shapes(steps)) }
    };
    let stored = |request: &Request, model: &str| {
        let plan = Export { model, request, parts: &parts, storage: &[Storage::F32; 2] };
        export(&checkpoint, &plan).map(|exported| (exported.graphs, exported.files))
    };
    let (graphs, files) = stored(&request("8t32c,1t32c"), "Tiny").unwrap();
    let names: Vec<&str> = graphs.iter().map(|graph| graph.file.as_ref().unwrap().0.as_str()).collect();
    let layers = parts[0].layers.len();
    let file = |shape: &str, number: usize| format!("Tiny_FP_{layers}layer_{shape}_{number}.tflite");
    assert_eq!(names, [file("8t32c", 0), file("8t32c", 1), file("1t32c", 0), file("1t32c", 1)]);
    let [table, yaml, script] = &files[..] else { panic!("{files:?}") };
    let paths = [table, yaml, script].map(|file| file.path.as_str());
    assert_eq!(paths, ["embedding_fp32.bin", "Tiny.yaml", "compile.sh"]);
    assert!(matches!(&table.content, ExtraContent::Table(name, _) if name == "embed_tokens.weight"));
    let ExtraContent::Bytes(yaml) = &yaml.content else { panic!("{yaml:?}") };
    let yaml = String::from_utf8(yaml.clone()).unwrap();
    for line in [
        "  promptTokenBatchSize: 8",
        "  genTokenBatchSize: 1",
        "  cacheSize: 32",
        "  tokenEmbPath: embedding_fp32.bin",
        &format!("    - \"Tiny_FP_{layers}layer_8t32c_1.dla\""),
    ] {
        assert!(yaml.lines().any(|have| have == line), "{line} in\n{yaml}");
    }
    for wrong in ["8t32c", "8t32c,1t16c", "8t32c,4t32c", "8t32c,4t32c,1t32c"] {
        let error = stored(&request(wrong), "Tiny").unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::BadShape, "{wrong}");
    }
    for model in ["", "../up", "a\\b"] {
        let error = stored(&request("8t32c,1t32c"), model).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, Code::BadArgument, "{model}");
    }
}

#[test]
fn halves_are_widened_and_what_they_cannot_hold_is_refused() {
    for (value, expected) in [
        (1.5f32, Ok(0x3e00u16)),
        (65504.0, Ok(0x7bff)),
        (65519.0, Ok(0x7bff)),
        (1e-9, Ok(0)),
        (f32::INFINITY, Ok(0x7c00)),
        (65520.0, Err("1 larger ones, up to 65520")),
        (-1e9, Err("1 larger ones, up to 1000000000")),
    ] {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", [1, 2]);
        let w = g.weight("w", DType::F32, [3, 2]);
        let b = g.weight("b", DType::F32, [3]);
        let y = g.op("fc", Op::Linear {}, &[x, w, b]);
        g.output("y", y);
        let bytes_of = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
        let matrix = [0.0, 0.0, 0.0, 0.0, 0.0, value];
        let weights = BTreeMap::from([
            ("w".into(), Tensor::in_memory(DType::F32, Shape(vec![3, 2]), bytes_of(&matrix).into()).unwrap()),
            ("b".into(), Tensor::in_memory(DType::F32, Shape(vec![3]), bytes_of(&[1e9; 3]).into()).unwrap()),
        ]);
        match (
            emit(&target::check(g.finish(), &host(), &Question::stored(&host())).unwrap(), &weights, Storage::F16),
            expected,
        ) {
            (Ok(file), Ok(half)) => {
                let file = bytes(&file);
                let lines = "\
in  x f32[1, 2]
DEQUANTIZE.3(w f16[3, 2]) = w/dequantize f32[3, 2]
FULLY_CONNECTED.1(x f32[1, 2], w/dequantize f32[3, 2], b f32[3]) = y f32[1, 3]
out y f32[1, 3]";
                assert_eq!(dump(&file), lines);
                let model = Reader::root(&file);
                let stored = model.tables(4)[model.tables(2)[0].tables(0)[1].i32(2, 0) as usize].bytes(0);
                assert_eq!(stored, [&[0; 10][..], &half.to_le_bytes()].concat(), "{value}");
            }
            (Err(error), Err(have)) => assert_eq!(error.diagnostics()[0].have.as_deref(), Some(have)),
            (have, expected) => panic!("{value}: {have:?}, and {expected:?} is expected"),
        }
    }
}
