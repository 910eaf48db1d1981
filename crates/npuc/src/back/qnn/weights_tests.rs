//! Filters against the dequantised matrices, and what QNN cannot have.

use npuc_kernels::format::Group;
use npuc_kernels::quantize::{Search, quantize_row};

use super::*;
use crate::tensor::Shape;

/// The numbers that a filter means, as rows of the matrix.
fn meant(filter: &Filter, outputs: usize, inputs: usize) -> Vec<f32> {
    let mut rows = vec![0.0; outputs * inputs];
    for input in 0..inputs {
        for output in 0..outputs {
            let at = input * outputs + output;
            let number = || f32::from(filter.data[at] as i8);
            rows[output * inputs + input] = match &filter.encoding {
                FilterEncoding::Float => f16::from_le_bytes([filter.data[2 * at], filter.data[2 * at + 1]]).to_f32(),
                FilterEncoding::Channels { scales, .. } => number() * scales[output],
                FilterEncoding::Blocks { block, scales, block_scales } => {
                    let of_row = inputs / *block as usize;
                    let block = f32::from(block_scales[output * of_row + input / *block as usize]);
                    number() * (scales[output] * block)
                }
                FilterEncoding::FloatBlocks { block, blocks } => {
                    let of_row = inputs / *block as usize;
                    let [scale, offset] = blocks[output * of_row + input / *block as usize];
                    (number() + offset) * scale
                }
            };
        }
    }
    rows
}

/// A matrix of bytes that look random, made sound where a format has scales.
fn matrix(dtype: DType, outputs: usize, inputs: usize) -> Tensor {
    let numbers: Vec<f32> = (0..outputs * inputs).map(|i| ((i * 7919 % 1009) as f32 - 400.0) / 300.0).collect();
    let row_bytes = dtype.row_bytes(inputs).unwrap();
    let mut bytes = vec![0; outputs * row_bytes];
    for (row, to) in numbers.chunks_exact(inputs).zip(bytes.chunks_exact_mut(row_bytes)) {
        quantize_row(dtype, row, None, Search::Plain, to);
    }
    Tensor::in_memory(dtype, Shape::from([outputs, inputs]), bytes.into()).unwrap()
}

/// Every filter means what its matrix does, whole blocks and a rest of rows, for both kinds of activations.
#[test]
fn filters_mean_their_matrices() {
    let formats = [DType::F16, DType::Int8, DType::Int4, DType::Q4_0, DType::Q4_1];
    let groups = Group::ALL.into_iter().flat_map(|group| [DType::Lpbq4(group), DType::Bw4(group)]);
    for dtype in formats.into_iter().chain(groups) {
        for (outputs, inputs) in [(1, 512), (64, 512), (70, 1024)] {
            let tensor = matrix(dtype, outputs, inputs);
            let expected = to_f32(&tensor);
            for filter in [filter(&tensor).unwrap(), float_filter(&tensor).unwrap()] {
                let found = meant(&filter, outputs, inputs);
                let worst = found.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(worst <= 2e-6, "{dtype} {outputs} x {inputs}: {worst}");
            }
        }
    }
}

/// Rows that no quantiser of npuc's writes, and what becomes of them.
#[test]
fn odd_scales() {
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    let q4 = |d: f32, m: Option<f32>| [&half(d)[..], &m.map_or(Vec::new(), |m| half(m).to_vec()), &[0xF1; 16]].concat();
    let bw4 = |s: f32, o: f32| [&half(s)[..], &half(o), &[0x71; 8]].concat();
    let lpbq = |scale: f32, block: u8, byte: u8| [&scale.to_le_bytes()[..], &[block], &[byte; 16]].concat();
    let bw = DType::Bw4(Group::G16);
    let lp = DType::Lpbq4(Group::G32);
    for (dtype, bytes, expected) in [
        (DType::Q4_0, q4(-0.5, None), "good"),
        (DType::Q4_0, q4(0.0, None), "good"),
        (DType::Q4_1, q4(-0.5, Some(3.0)), "good"),
        (DType::Q4_1, q4(0.0, Some(-3.0)), "good"),
        (DType::Q4_1, q4(0.25, Some(f32::INFINITY)), "the scale or offset of a block is none that QNN takes"),
        (bw, bw4(-0.5, 2.5), "good"),
        (bw, bw4(0.0, 2.5), "good"),
        (bw, bw4(f32::NAN, 0.0), "the scale or offset of a block is none that QNN takes"),
        (lp, lpbq(0.5, 16, 0x7F), "good"),
        (lp, lpbq(0.0, 1, 0), "the scale of a row is none that QNN takes"),
        (lp, lpbq(0.5, 17, 1), "the scale of a block is none that the NPU multiplies with"),
        (lp, lpbq(0.5, 0, 1), "the scale of a block is none that the NPU multiplies with"),
        (lp, lpbq(-0.5, 1, 1), "the scale of a row is none that QNN takes"),
    ] {
        let inputs = dtype.block_len();
        let tensor = Tensor::in_memory(dtype, Shape::from([1, inputs]), bytes.into()).unwrap();
        let said = match filter(&tensor) {
            Ok(filter) => {
                let (found, expected) = (meant(&filter, 1, inputs), to_f32(&tensor));
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() <= 1e-6), "{dtype}: {found:?}");
                "good".to_owned()
            }
            Err(error) => error.diagnostics()[0].message.clone(),
        };
        assert_eq!(said, expected, "{dtype}");
    }
}

/// Constants in every type, and what is none.
#[test]
fn constants() {
    let encoding = Some(ScaleOffset { scale: 0.5, offset: -4 });
    for (numbers, dtype, encoding, expected) in [
        (&[0.0, 1.0][..], DataType::F16, None, Some(vec![0, 0, 0, 0x3C])),
        (&[1e6], DataType::F16, None, None),
        (&[0.0, -2.0, 1.25], DataType::U8, encoding, Some(vec![4, 0, 7])),
        (&[-2.5], DataType::U8, encoding, None),
        (&[1.0], DataType::U16, encoding, Some(vec![6, 0])),
        (&[1.0], DataType::U16, None, None),
    ] {
        assert_eq!(reals(numbers, dtype, encoding).ok(), expected, "{numbers:?} {dtype:?}");
    }
    assert_eq!(numbers(&[-1, 2], DataType::I32).unwrap(), [255, 255, 255, 255, 2, 0, 0, 0]);
    assert!(numbers(&[-1], DataType::U32).is_err());
}

/// What no convolution multiplies with.
#[test]
fn matrices_without_a_filter() {
    for (dtype, inputs, expected) in [
        (
            DType::Lpbq4(Group::G16),
            176,
            "the NPU reads blocks with whole scales wrongly where the inputs are no multiple of 32",
        ),
        (DType::F32, 32, "the format of a matrix has no form in QNN"),
        (DType::Q8_0, 32, "the format of a matrix has no form in QNN"),
    ] {
        let error = filter(&matrix(dtype, 4, inputs)).unwrap_err();
        assert_eq!(error.diagnostics()[0].message, expected, "{dtype}");
    }
    let odd = matrix(DType::Lpbq4(Group::G16), 4, 176);
    assert_eq!(meant(&float_filter(&odd).unwrap(), 4, 176), to_f32(&odd));
}
