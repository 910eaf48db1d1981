//! What a file of whole numbers holds: types, scales, packed weights, biases, versions, and the float arithmetic of norms.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::tests::{Reader, bytes, checkpoint, dump, shapes};
use super::*;
use crate::bundle::write::{ExtraContent, ExtraFile};
use crate::fit::Request;
use crate::ir::{GraphBuilder, Op};
use crate::model::Chunks;
use crate::quant::{self, INT16_MAX};
use crate::target::{self, Precision, Question, host};
use crate::tensor::{DType, Shape};

fn tensor(shape: &[usize], numbers: &[f32]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::in_memory(DType::F32, Shape::from(shape), bytes.into()).unwrap()
}

fn ranges(pairs: &[(&str, f32)]) -> Ranges {
    let mut ranges = Ranges::default();
    pairs.iter().for_each(|(key, magnitude)| ranges.widen(key, *magnitude));
    ranges
}

/// A tensor by its name.
fn find<'a>(file: &'a [u8], name: &str) -> Reader<'a> {
    let tensors = Reader::root(file).tables(2)[0].tables(0);
    *tensors.iter().find(|tensor| tensor.text(3) == name).unwrap_or_else(|| panic!("{name}"))
}

fn content<'a>(file: &'a [u8], tensor: Reader<'a>) -> &'a [u8] {
    Reader::root(file).tables(4)[tensor.i32(2, 0) as usize].bytes(0)
}

/// The scales of a tensor; all zero points are 0 and as many, and the axis is the first.
fn scales(tensor: Reader<'_>) -> Vec<f32> {
    let Some(quantization) = tensor.table(4) else { return Vec::new() };
    let scales: Vec<f32> = quantization.ints(2).into_iter().map(|bits| f32::from_bits(bits as u32)).collect();
    // Zero points are 64-bit.
    let zero_points = quantization.ints(3);
    assert!(zero_points.len() == scales.len() && zero_points.iter().all(|&point| point == 0));
    assert_eq!(quantization.i32(6, 0), 0);
    scales
}

/// About a thousandth.
const X_SCALE: f32 = 32767e-3 / INT16_MAX;

/// A projection with and without bias, a norm by hand with its gain, and a sum.
fn small() -> (crate::ir::Graph, BTreeMap<String, Tensor>, Ranges) {
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", [2, 4]);
    let w = g.weight("w", DType::F32, [3, 4]);
    let b = g.weight("b", DType::F32, [3]);
    let v = g.weight("v", DType::F32, [4, 3]);
    let gain = g.weight("gain", DType::F32, [4]);
    let y = g.op("fc", Op::Linear {}, &[x, w, b]);
    let y = g.op("fc", Op::Linear {}, &[y, v]);
    let squares = g.op("norm", Op::Mul {}, &[y, y]);
    let mean = g.op("norm", Op::Mean { axis: 1 }, &[squares]);
    let mean = g.op("norm", Op::Affine { scale: 1.0, offset: 0.5 }, &[mean]);
    let factor = g.op("norm", Op::Rsqrt {}, &[mean]);
    let normed = g.op("norm", Op::Mul {}, &[y, factor]);
    let normed = g.op("norm", Op::Mul {}, &[normed, gain]);
    let sum = g.op("out", Op::Add {}, &[normed, gain]);
    let sum = g.op("out", Op::Affine { scale: -2.0, offset: 1.0 }, &[sum]);
    g.output("z", sum);
    let weights = BTreeMap::from([
        ("w".into(), tensor(&[3, 4], &[0.7, 0.0, -0.35, 0.1, 0.0, 0.0, 0.0, 0.0, -1.6, 0.2, 0.4, 1.4])),
        ("b".into(), tensor(&[3], &[1.0, -2.0, 0.0])),
        ("v".into(), tensor(&[4, 3], &[0.5; 12])),
        ("gain".into(), tensor(&[4], &[1.0, -0.5, 0.25, 0.0])),
    ]);
    let seen = [("x", 32767e-3), ("fc/linear.0", 10.0), ("fc/linear.1", 20.0), ("norm/mul.2", 4.0)];
    let seen = [&seen[..], &[("out/add.0", 5.0), ("out/affine.0", 11.0)]].concat();
    (g.finish(), weights, ranges(&seen))
}

#[test]
fn operators_types_and_scales() {
    let (graph, weights, ranges) = small();
    for (format, name, version) in
        [(WeightFormat::Int8, "i8", 1), (WeightFormat::Int16, "i16", 7), (WeightFormat::Int4, "i4", 13)]
    {
        let storage = Storage::Integer { weights: format, ranges: &ranges };
        let emitted =
            emit(&target::check(graph.clone(), &host(), &Question::stored(&host())).unwrap(), &weights, storage)
                .unwrap();
        let file = bytes(&emitted);
        let expected = format!(
            "\
in  x i16[2, 4]
FULLY_CONNECTED.{version}(x i16[2, 4], w {name}[3, 4], b i64[3]) = fc/linear.5 i16[2, 3]
FULLY_CONNECTED.{version}(fc/linear.5 i16[2, 3], v {name}[4, 3], v/bias i64[4]) = fc/linear.6 i16[2, 4]
DEQUANTIZE.3(fc/linear.6 i16[2, 4]) = fc/dequantize.6 f32[2, 4]
MUL.1(fc/dequantize.6 f32[2, 4], fc/dequantize.6 f32[2, 4]) = norm/mul.7 f32[2, 4]
MEAN.1(norm/mul.7 f32[2, 4], constant.5 i32[1]) = norm/mean.8 f32[2, 1]
ADD.1(norm/mean.8 f32[2, 1], constant.6 f32[1]) = norm/affine.9 f32[2, 1]
RSQRT.1(norm/affine.9 f32[2, 1]) = norm/rsqrt.10 f32[2, 1]
MUL.1(fc/dequantize.6 f32[2, 4], norm/rsqrt.10 f32[2, 1]) = norm/mul.11 f32[2, 4]
MUL.1(norm/mul.11 f32[2, 4], gain f32[4]) = norm/mul.12 f32[2, 4]
QUANTIZE.2(norm/mul.12 f32[2, 4]) = norm/quantize.12 i16[2, 4]
ADD.3(norm/quantize.12 i16[2, 4], gain i16[4]) = out/add.13 i16[2, 4]
MUL.4(out/add.13 i16[2, 4], constant.9 i16[1]) = out/affine.20.scaled i16[2, 4]
ADD.3(out/affine.20.scaled i16[2, 4], constant.10 i16[1]) = z i16[2, 4]
out z i16[2, 4]"
        );
        assert_eq!(dump(&file), expected);
        for (name, range) in [("x", 32767e-3), ("fc/linear.5", 10.0), ("norm/quantize.12", 4.0), ("z", 11.0)] {
            assert_eq!(scales(find(&file, name)), [range / INT16_MAX], "{name}");
        }
        assert_eq!(scales(find(&file, "out/affine.20.scaled")), [2.0 * (5.0 / INT16_MAX)]);
        assert!(scales(find(&file, "norm/mul.7")).is_empty());
        assert_eq!(
            (scales(find(&file, "constant.9")), scales(find(&file, "constant.10"))),
            (vec![2.0 / INT16_MAX], vec![1.0 / INT16_MAX])
        );
        assert_eq!(content(&file, find(&file, "constant.9")), (-32767i16).to_le_bytes());
        assert_eq!((emitted.inputs()[0].scale, emitted.outputs()[0].scale), (Some(X_SCALE), Some(11.0 / INT16_MAX)));
        let of_rows = scales(find(&file, "w"));
        let products: Vec<f32> = of_rows.iter().map(|scale| scale * X_SCALE).collect();
        assert_eq!((of_rows.len(), scales(find(&file, "b"))), (3, products));
        assert_eq!(of_rows[1], 1.0);
        let steps = |b: f64, scale: f32| (b / f64::from(scale * X_SCALE)).round() as i64;
        let expected: Vec<u8> = [steps(1.0, of_rows[0]), -2000, 0].iter().flat_map(|q| q.to_le_bytes()).collect();
        assert_eq!(content(&file, find(&file, "b")), expected);
        if format == WeightFormat::Int4 {
            assert_eq!(content(&file, find(&file, "w")), [0x07, 0x1c, 0x00, 0x00, 0x18, 0x72]);
            assert_eq!((of_rows[0], of_rows[2]), (0.1, 0.2));
        }
    }
}

#[test]
fn what_whole_numbers_cannot_do_says_why() {
    let (graph, weights, known) = small();
    let lacks = |key: &str| {
        let mut ranges = Ranges::default();
        known.keys().filter(|known| *known != key).for_each(|key| ranges.widen(key, 1.0));
        ranges
    };
    let with = |name: &str, tensor: Tensor| {
        let mut weights = weights.clone();
        weights.insert(name.to_owned(), tensor);
        weights
    };
    for (ranges, weights, code, message) in [
        (lacks("norm/mul.2"), weights.clone(), Code::BadRange, "the range of a value is not known"),
        (
            known.clone(),
            with("b", tensor(&[3], &[1e12, 0.0, 0.0])),
            Code::BadRange,
            "a bias is too large beside its row of weights",
        ),
        (
            known.clone(),
            with("w", tensor(&[3, 4], &[f32::NAN; 12])),
            Code::NonFiniteWeights,
            "a weight holds values that are not finite",
        ),
        (known.clone(), with("gain", tensor(&[4], &[0.0; 4])), Code::BadRange, "nothing but zeros was seen of a value"),
    ] {
        let storage = Storage::Integer { weights: WeightFormat::Int8, ranges: &ranges };
        let error =
            emit(&target::check(graph.clone(), &host(), &Question::stored(&host())).unwrap(), &weights, storage)
                .unwrap_err();
        assert_eq!((error.diagnostics()[0].code, error.diagnostics()[0].message.as_str()), (code, message));
    }
}

/// What MediaTek's chips get in whole numbers.
fn request(steps: &str) -> Request {
    let target = target::find("genio-720").unwrap();
    let question = Question::new(&target, Precision::parse("4W16A", target.float).unwrap(), &[]).unwrap();
    Request::new(target, question, shapes(steps))
}

/// Ranges of every part with what is seen of steps over patterned inputs, joined where the parts meet.
fn calibrated(checkpoint: &crate::front::Checkpoint, parts: &[crate::model::Part]) -> Vec<Ranges> {
    let types = crate::build::weight_types(&checkpoint.tensors);
    let chunks = chunks(&checkpoint.config, &types, &request("8t32c"), parts).unwrap();
    let mut all: Vec<Ranges> = Vec::new();
    for chunk in &chunks {
        let mut executor = crate::exec::Executor::new(&chunk.graph, &checkpoint.tensors, &[]).unwrap();
        let inputs: Vec<Vec<f32>> =
            executor.inputs().map(|(_, len)| (0..len).map(|i| ((i * 37) % 11) as f32 / 10.0).collect()).collect();
        let mut recorder = quant::Recorder::new(&chunk.graph);
        executor.run_observed(&[&inputs], &mut |value, elements| recorder.see(value, elements));
        all.push(recorder.ranges().unwrap());
    }
    all[0].widen("embeds", quant::largest(&checkpoint.tensors["embed_tokens.weight"]));
    all
}

/// What is stored of a value of which nothing but a magnitude to hold is known.
fn held(magnitude: f32) -> String {
    let ranges = serde_json::to_string(&ranges(&[("x", magnitude)])).unwrap();
    ranges.strip_prefix("{\"x\":").and_then(|seen| seen.strip_suffix('}')).unwrap().to_owned()
}

#[test]
fn an_export_in_whole_numbers() {
    let checkpoint = checkpoint("qwen2-bf16");
    let parts = Chunks::Equal(2).parts(crate::model::layers(&checkpoint.config)).unwrap();
    let mut ranges = calibrated(&checkpoint, &parts);
    let asked = request("8t32c,1t32c");
    let run = |ranges: &[Ranges], weights: [WeightFormat; 2]| {
        let storage: Vec<Storage<'_>> =
            ranges.iter().zip(weights).map(|(ranges, weights)| Storage::Integer { weights, ranges }).collect();
        let plan = Export { model: "Tiny", request: &asked, parts: &parts, storage: &storage };
        export(&checkpoint, &plan).map(|exported| (exported.graphs, exported.files))
    };
    let refused = |ranges: &[Ranges], weights: [WeightFormat; 2]| {
        run(ranges, weights).unwrap_err().diagnostics()[0].message.clone()
    };
    assert_eq!(refused(&ranges, [WeightFormat::Int8; 2]), "two neighbouring parts have other scales where they meet");
    let graphs =
        chunks(&checkpoint.config, &crate::build::weight_types(&checkpoint.tensors), &request("1t32c"), &parts)
            .unwrap();
    let (first, second) = ranges.split_at_mut(1);
    quant::share_boundary((&graphs[0].graph, &mut first[0]), (&graphs[1].graph, &mut second[0])).unwrap();
    assert_eq!(refused(&ranges, [WeightFormat::Int8, WeightFormat::Int4]), "the parts are not stored in one way");
    let (graphs, files) = run(&ranges, [WeightFormat::Int4; 2]).unwrap();
    let scale = ranges[0].get("embeds").unwrap() / INT16_MAX;
    let [ExtraFile { path, content: ExtraContent::Int16Table(tensor, of) }, yaml, _] = &files[..] else {
        panic!("{files:?}")
    };
    assert_eq!((path.as_str(), *of), ("embedding_int16.bin", scale));
    let mut table = Vec::new();
    quant::write_rows(tensor, WeightFormat::Int16, &[scale], &mut table).unwrap();
    let numbers = crate::exec::to_f32(&checkpoint.tensors["embed_tokens.weight"]);
    for (bytes, x) in table.chunks(2).zip(&numbers) {
        assert!((f32::from(i16::from_le_bytes([bytes[0], bytes[1]])) * scale - x).abs() <= 0.5001 * scale);
    }
    assert_eq!(table.len(), 2 * numbers.len());
    let ExtraContent::Bytes(yaml) = &yaml.content else { panic!("{yaml:?}") };
    let yaml = String::from_utf8(yaml.clone()).unwrap();
    let layers = parts[0].layers.len();
    for line in [
        "  maskType: INT16",
        &format!("  embOutputQuantScale: {scale}"),
        "  tokenEmbPath: embedding_int16.bin",
        &format!("    - \"Tiny_4W16A_{layers}layer_8t32c_1.dla\""),
    ] {
        assert!(yaml.lines().any(|have| have == line), "{line} in\n{yaml}");
    }
    // The scale of the logits is in the file of the last chunk too.
    let last = bytes(graphs.last().unwrap().tflite().unwrap());
    assert!(yaml.contains(&format!("modelOutputQuantScale: {}\n", scales(find(&last, "logits"))[0])));
    // A table beyond the range of its port.
    let mut narrow = ranges.clone();
    let narrower = serde_json::to_string(&ranges[0])
        .unwrap()
        .replace("\"embeds\":", &format!("\"embeds\":{},\"was\":", held(0.001)));
    narrow[0] = serde_json::from_str(&narrower).unwrap();
    assert_eq!(
        refused(&narrow, [WeightFormat::Int4; 2]),
        "numbers of a table are beyond the range of the port that they fill"
    );
}
