//! Texts of small graphs, and constants whose parts mean the numbers of the weights that they are made of.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use half::{bf16, f16};
use npuc_kernels::dequant::dequantize_row;
use npuc_kernels::quantize::{Search, positive_bf16_scales, quantize_row};

use super::constant::{Blocks, Part};
use super::emit::{Style, emit_graph};
use super::{CacheWrites, Constant, Dialect, Element, Parameters, Products, Side, Storage};
use crate::ir::text::parse;
use crate::tensor::{DType, Shape, Tensor};

const IREE: Style = Style {
    dialect: Dialect::Iree,
    side: Side::Left,
    storage: Storage::External,
    products: Products::Apart,
    cache_writes: CacheWrites::Added,
};
const TORQ: Style = Style {
    dialect: Dialect::Torq,
    side: Side::Left,
    storage: Storage::Inline,
    products: Products::Joined,
    cache_writes: CacheWrites::Chosen,
};

/// A matrix of numbers that differ, in a format.
fn matrix(dtype: DType, rows: usize, cols: usize) -> Tensor {
    let mut bytes = Vec::new();
    for row in 0..rows {
        let values: Vec<f32> = (0..cols).map(|col| ((row * 31 + col * 17) % 64) as f32 / 16.0 - 1.9).collect();
        if dtype == DType::F32 {
            bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        } else if dtype == DType::BF16 {
            bytes.extend(values.iter().flat_map(|x| bf16::from_f32(*x).to_le_bytes()));
        } else {
            let mut stored = vec![0; dtype.row_bytes(cols).unwrap()];
            quantize_row(dtype, &values, None, Search::Error, &mut stored);
            positive_bf16_scales(dtype, &values, &mut stored);
            bytes.extend(stored);
        }
    }
    Tensor::in_memory(dtype, Shape(vec![rows, cols]), bytes.into()).unwrap()
}

fn text(graph: &str, weights: &[(&str, Tensor)], style: Style) -> crate::Result<String> {
    let weights: BTreeMap<String, Tensor> = weights.iter().map(|(name, t)| ((*name).to_owned(), t.clone())).collect();
    let module = emit_graph(&parse(graph).unwrap(), &weights, "step", style, false)?.0;
    let mut bytes = Vec::new();
    module.write(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, module.len_bytes());
    Ok(String::from_utf8(bytes).unwrap())
}

fn written(constant: &Constant) -> Vec<u8> {
    let mut bytes = Vec::new();
    constant.write(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, constant.len_bytes(), "{}", constant.name);
    bytes
}

/// The elements of a constant, in f32.
fn numbers(constant: &Constant) -> Vec<f32> {
    let bytes = written(constant);
    match constant.element {
        Element::F32 => bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Element::F16 => bytes.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        Element::Bf16 => bytes.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Element::I8 => bytes.iter().map(|b| f32::from(*b as i8)).collect(),
        Element::I4 => bytes.iter().flat_map(|b| [b << 4, b & 0xF0].map(|half| f32::from(half as i8 >> 4))).collect(),
    }
}

/// Scales times whole numbers plus minima are the numbers of the weight, in both orders.
#[test]
fn parts_of_blocks() {
    let (rows, cols) = (6, 96);
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Int8, DType::Int4] {
        let tensor = matrix(dtype, rows, cols);
        let blocks = Blocks::of(dtype, cols).unwrap();
        let part = |part| numbers(&Constant::of_blocks("w", &tensor, blocks, part));
        let (quants, scales) = (part(Part::Quants), part(Part::Scales));
        let minima = if blocks.minima { part(Part::Minima) } else { vec![0.0; scales.len()] };
        let row_bytes = dtype.row_bytes(cols).unwrap();
        let bytes = tensor.bytes();
        for row in 0..rows {
            let mut expected = vec![0.0; cols];
            dequantize_row(dtype, &bytes[row * row_bytes..][..row_bytes], &mut expected);
            for (col, expected) in expected.into_iter().enumerate() {
                let block = (row * cols + col) / blocks.len;
                let have = quants[row * cols + col] * scales[block] + minima[block];
                assert!(
                    (have - expected).abs() <= 1e-6 * expected.abs().max(1.0),
                    "{dtype} {row} {col}: {have} {expected}"
                );
            }
        }
        if dtype == DType::Q8_0 || dtype == DType::Q4_0 {
            let (turned, turned_scales) = (part(Part::TurnedQuants), part(Part::TurnedScales));
            for row in 0..rows {
                for col in 0..cols {
                    assert_eq!(turned[col * rows + row], quants[row * cols + col], "{dtype} {row} {col}");
                    let (block, count) = (col / 32, cols / 32);
                    assert_eq!(turned_scales[block * rows + row], scales[row * count + block], "{dtype} {row} {block}");
                }
            }
        }
    }
}

#[test]
fn turned_matrices() {
    let tensor = matrix(DType::BF16, 5, 130);
    let (plain, turned) =
        (numbers(&Constant::plain("w", &tensor).unwrap()), numbers(&Constant::transposed("w", &tensor)));
    for row in 0..5 {
        for col in 0..130 {
            assert_eq!(turned[col * 5 + row], plain[row * 130 + col]);
        }
    }
}

/// Another reader finds every tensor where the file says, and each begins at a multiple of 64 bytes.
#[test]
fn files_of_parameters() {
    let tensors = [("a", matrix(DType::F32, 3, 5)), ("b", matrix(DType::BF16, 7, 3)), ("c", matrix(DType::F32, 1, 16))];
    let mut constants: Vec<Constant> =
        tensors.iter().map(|(name, tensor)| Constant::plain(name, tensor).unwrap()).collect();
    let packed = matrix(DType::Q4_0, 2, 64);
    constants.push(Constant::of_blocks("d", &packed, Blocks::of(DType::Q4_0, 64).unwrap(), Part::Quants));
    let parameters = Parameters::new(constants.clone());
    let mut bytes = Vec::new();
    parameters.write(&mut bytes, &mut |_| {}).unwrap();
    assert_eq!(bytes.len() as u64, parameters.len_bytes());
    let read = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    for constant in &constants {
        assert_eq!(read.tensor(&constant.name).unwrap().data(), written(constant), "{}", constant.name);
    }
    for entry in &parameters.entries {
        assert_eq!(entry.offset % 64, 0, "{}", entry.constant.name);
        let range = entry.offset as usize..(entry.offset + entry.constant.len_bytes()) as usize;
        assert_eq!(bytes[range], written(&entry.constant), "{}", entry.constant.name);
    }
}

/// What is written for graphs of one operation: lines that have to be there, or the end of a refusal.
#[test]
fn lines_of_operations() {
    let graph = |inputs: &str, op: &str| format!("graph \"g\" {{\n{inputs}  %9 = {op}\n  output \"y\" = %9\n}}\n");
    let x = |shape: &str| format!("  %0 = input \"x\" : f32{shape}\n");
    let two = |a: &str, b: &str| format!("  %0 = input \"x\" : f32{a}\n  %1 = input \"z\" : f32{b}\n");
    let mask = two("[2, 4, 8]", "[1, 4, 1]").replace("\"z\"", "\"write_mask\"");
    let weight = |dtype: &str| format!("  %0 = input \"x\" : f32[1, 64]\n  %1 = weight \"w\" : {dtype}[6, 64]\n");
    let cases: Vec<(Style, String, &str)> = vec![
        (IREE, graph(&x("[2, 3]"), "exp(%0) : f32[2, 3]"), "stablehlo.exponential %v0 : tensor<2x3xf32>"),
        (TORQ, graph(&x("[2, 3]"), "sigmoid(%0) : f32[2, 3]"), "stablehlo.logistic %v0 : tensor<2x3xbf16>"),
        // A splat has a point, and the lowest number is finite.
        (IREE, graph(&x("[4]"), "affine(%0) {scale = 2.0, offset = 0.0} : f32[4]"), "dense<2.0e0> : tensor<4xf32>"),
        (IREE, graph(&x("[2, 4]"), "max(%0) {axis = 1} : f32[2, 1]"), "dense<-3.4028235e38> : tensor<f32>"),
        // Axes of one element are dropped before an operand is stretched.
        (
            TORQ,
            graph(&two("[2, 4]", "[2, 1]"), "mul(%0, %1) : f32[2, 4]"),
            "dims = [0] : (tensor<2xbf16>) -> tensor<2x4xbf16>",
        ),
        // What meets the write mask stays apart from the projection before it.
        (IREE, graph(&mask, "mul(%0, %1) : f32[2, 4, 8]"), "stablehlo.optimization_barrier %v0"),
        // A transposition that moves nothing is none.
        (TORQ, graph(&x("[1, 4, 8]"), "transpose(%0) {perm = [1, 0, 2]} : f32[4, 1, 8]"), "stablehlo.reshape %v0"),
        (
            TORQ,
            graph(&x("[2, 4]"), "softmax(%0) : f32[2, 4]"),
            "linalg.softmax dimension(1) ins(%v0 : tensor<2x4xbf16>)",
        ),
        (TORQ, graph(&x("[4]"), "rsqrt(%0) : f32[4]"), "stablehlo.add %t1, %t8 : tensor<4xbf16>"),
        (
            IREE,
            graph(&weight("f32"), "linear(%0, %1) : f32[1, 6]"),
            "contracting_dims = [1] x [0] : (tensor<6x64xf32>, tensor<64xf32>)",
        ),
        (IREE, graph(&weight("q4_0"), "linear(%0, %1) : f32[1, 6]"), "arith.sitofp %a : i4 to f32"),
        (
            TORQ,
            graph(&weight("q8_0"), "linear(%0, %1) : f32[1, 6]"),
            "outs(%t10 : tensor<1x1x6xbf16>) -> tensor<1x1x6xbf16>",
        ),
        (
            TORQ,
            graph(&weight("q4_1"), "linear(%0, %1) : f32[1, 6]"),
            "refused: the compiler has no form for the format of a weight",
        ),
        (
            TORQ,
            graph(&two("[2, 4, 8]", "[2, 8, 8]"), "matmul(%0, %1) {transpose_b = true} : f32[2, 4, 8]"),
            "refused: the NPU's compiler computes a product with a turned square matrix wrong",
        ),
        (TORQ, graph(&two("[2, 4, 8]", "[2, 3, 8]"), "matmul(%0, %1) {transpose_b = true} : f32[2, 4, 3]"), "x [2]"),
        (IREE, graph(&x("[2, 4]"), "silu(%0) : f32[2, 4]"), "refused: the operation has no form in StableHLO"),
    ];
    for (style, graph, expected) in cases {
        let dtype = ["q4_0", "q8_0", "q4_1"].into_iter().find(|name| graph.contains(&format!(": {name}[")));
        let dtype = dtype.and_then(DType::from_name).unwrap_or(DType::F32);
        // Numbers of values follow each other.
        let graph = graph.replace("%9", if graph.contains("%1 =") { "%2" } else { "%1" });
        let have = match text(&graph, &[("w", matrix(dtype, 6, 64))], style) {
            Ok(text) => text,
            Err(error) => format!("refused: {}", error.diagnostics()[0].message),
        };
        assert!(have.contains(expected), "{graph}\n{have}\nneeds {expected}");
        assert!(!have.contains("inf"), "{have}");
    }
}

/// Scales that Torq would not fold are refused by name.
#[test]
fn scales_of_another_sign() {
    let negative: Vec<f32> = (0..64).map(|i| if i == 0 { 2.0 } else { -0.1 }).collect();
    let mut bytes = vec![0; DType::Q4_0.row_bytes(64).unwrap()];
    quantize_row(DType::Q4_0, &negative, None, Search::Plain, &mut bytes);
    let weight = Tensor::in_memory(DType::Q4_0, Shape(vec![1, 64]), bytes.into()).unwrap();
    let graph = "graph \"g\" {\n  %0 = input \"x\" : f32[1, 64]\n  %1 = weight \"w\" : q4_0[1, 64]\n  \
                 %2 = linear(%0, %1) : f32[1, 1]\n  output \"y\" = %2\n}\n";
    let error = text(graph, &[("w", weight)], TORQ).unwrap_err();
    assert!(error.to_string().contains("a scale of a weight is not a positive bf16 number"), "{error}");
}
