//! Products with stored weights against the f64 product of the dequantised matrix.

use super::*;
use crate::dequant::dequantize_row;
use crate::testing::random;

/// A stored matrix of random blocks whose scales are moderate.
fn stored(dtype: DType, rows: usize, cols: usize, seed: usize) -> Vec<u8> {
    let len = dtype.row_bytes(cols).unwrap() * rows;
    let noise = random(len.max(rows * cols), seed);
    let half = |v: f32| half::f16::from_f32(v * 0.1).to_le_bytes();
    let halves: &[usize] = match dtype {
        DType::F32 => return noise[..rows * cols].iter().flat_map(|v| v.to_le_bytes()).collect(),
        DType::F16 => &[0],
        DType::BF16 => {
            return noise[..rows * cols].iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        }
        DType::Q4_0 | DType::Q5_0 | DType::Q8_0 => &[0],
        DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
        DType::Q2K => &[80, 82],
        DType::Q3K => &[108],
        DType::Q6K => &[208],
        DType::Bw4(_) => &[0, 2],
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) => return with_row_scales(dtype, &noise[..len], len / rows),
    };
    let mut bytes: Vec<u8> = noise[..len].iter().map(|v| (v * 128.0) as i8 as u8).collect();
    for (block, bytes) in bytes.chunks_mut(dtype.block_bytes()).enumerate() {
        for (i, at) in halves.iter().enumerate() {
            bytes[*at..at + 2].copy_from_slice(&half(noise[(block * 2 + i) % noise.len()]));
        }
    }
    bytes
}

/// Rows that begin with a scale; block scales are 1 to 16.
fn with_row_scales(dtype: DType, noise: &[f32], row_bytes: usize) -> Vec<u8> {
    let mut bytes: Vec<u8> = noise.iter().map(|v| (v * 128.0) as i8 as u8).collect();
    for (row, noise) in bytes.chunks_mut(row_bytes).zip(noise.chunks(row_bytes)) {
        let (scale, body) = row.split_at_mut(4);
        scale.copy_from_slice(&(noise[0] * 0.01).to_le_bytes());
        if let DType::Lpbq4(_) = dtype {
            body.chunks_mut(dtype.block_bytes()).for_each(|block| block[0] = 1 + block[0] % 16);
        }
    }
    bytes
}

/// The product in f64, and for each element the sum of magnitudes that its rounding errors scale with.
fn reference(x: &[f32], tokens: usize, weight: Matrix<'_>, bias: Option<&[f32]>) -> Vec<(f64, f64)> {
    let mut rows = vec![0.0; weight.rows * weight.cols];
    let stored = weight.bytes.chunks_exact(weight.dtype.row_bytes(weight.cols).unwrap());
    stored.zip(rows.chunks_exact_mut(weight.cols)).for_each(|(bytes, row)| dequantize_row(weight.dtype, bytes, row));
    let mut out = Vec::new();
    for t in 0..tokens {
        for r in 0..weight.rows {
            let (x, w) = (&x[t * weight.cols..][..weight.cols], &rows[r * weight.cols..][..weight.cols]);
            let products = || x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
            let bias = bias.map_or(0.0, |b| f64::from(b[r]));
            out.push((products().sum::<f64>() + bias, products().map(f64::abs).sum::<f64>() + bias.abs()));
        }
    }
    out
}

/// Fails when an element is off by more than a few roundings of its summands.
#[track_caller]
fn assert_agrees(have: &[f32], want: &[(f64, f64)]) {
    assert_eq!(have.len(), want.len());
    for (i, (h, (w, magnitude))) in have.iter().zip(want).enumerate() {
        assert!((f64::from(*h) - w).abs() <= 1e-6 * magnitude, "element {i}: have {h}, want {w} (of {magnitude})");
    }
}

fn check(dtype: DType, tokens: usize, rows: usize, cols: usize, with_bias: bool) {
    let bytes = stored(dtype, rows, cols, cols + rows);
    let weight = Matrix { dtype, bytes: &bytes, rows, cols };
    let x = random(tokens * cols, tokens);
    let bias = with_bias.then(|| random(rows, 9));
    let want = reference(&x, tokens, weight, bias.as_deref());
    for level in Level::all() {
        let mut out = vec![f32::NAN; tokens * rows];
        linear_at(level, &x, tokens, weight, bias.as_deref(), &mut out);
        assert_agrees(&out, &want);
    }
}

const TOKENS: [usize; 13] = [1, 2, 3, 4, 5, 8, 9, 12, 16, 17, 24, 31, 33];

#[test]
fn every_format_and_token_count_agrees_with_f64() {
    for dtype in DType::ALL {
        for (i, tokens) in TOKENS.into_iter().enumerate() {
            for (j, blocks) in [1, 2, 3, 9].into_iter().enumerate() {
                let cols = blocks * dtype.block_len().max(32);
                check(dtype, tokens, [1, 5, 12, 14, 25][(i + j) % 5], cols, (i + j) % 2 == 0);
            }
        }
    }
}

#[test]
fn formats_without_blocks_take_any_number_of_columns() {
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::Int8, DType::Int4] {
        let whole = |cols: &usize| dtype.row_bytes(*cols).is_some();
        for cols in [1, 2, 7, 8, 9, 14, 31, 33, 62, 63, 65, 66, 769, 770, 1000].into_iter().filter(whole) {
            for tokens in [1, 2, 3, 4, 6, 17] {
                check(dtype, tokens, 7, cols, true);
            }
        }
    }
}

#[test]
fn long_rows_are_cut_into_panels() {
    for dtype in DType::ALL {
        let whole = |&(_, cols): &(usize, usize)| dtype.row_bytes(cols).is_some();
        for (tokens, cols) in [(1, 1536), (6, 1536), (20, 1536), (18, 2048), (16, 2304)].into_iter().filter(whole) {
            check(dtype, tokens, 13, cols, true);
        }
    }
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    for (dtype, tokens) in [(DType::Q4_1, 1), (DType::F32, 3), (DType::Q6K, 4), (DType::Q4_0, 37), (DType::F16, 128)] {
        let (rows, cols) = (997, 512);
        let bytes = stored(dtype, rows, cols, 1);
        let (x, weight) = (random(tokens * cols, 2), Matrix { dtype, bytes: &bytes, rows, cols });
        for level in Level::all() {
            let results: Vec<Vec<f32>> = [1, 2, 3, 7]
                .map(|threads| {
                    let mut out = vec![f32::NAN; tokens * rows];
                    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
                    pool.install(|| linear_at(level, &x, tokens, weight, None, &mut out));
                    out
                })
                .into();
            assert!(results.iter().all(|r| *r == results[0]), "{dtype} {tokens} {level:?}");
            assert_agrees(&results[0], &reference(&x, tokens, weight, None));
        }
    }
}

#[test]
fn a_weight_may_start_at_any_address() {
    for dtype in DType::ALL {
        let cols = dtype.block_len().max(256);
        let bytes = stored(dtype, 5, cols, 3);
        let x = random(2 * cols, 4);
        for offset in 1..4 {
            let mut moved = vec![0; offset];
            moved.extend_from_slice(&bytes);
            let weight = Matrix { dtype, bytes: &moved[offset..], rows: 5, cols };
            let mut out = [f32::NAN; 10];
            linear(&x, 2, weight, None, &mut out);
            assert_agrees(&out, &reference(&x, 2, weight, None));
        }
    }
}

#[test]
fn empty_operands_give_empty_results_or_the_bias() {
    let none = Matrix { dtype: DType::F32, bytes: &[], rows: 0, cols: 4 };
    linear(&[0.0; 4], 1, none, None, &mut []);
    linear(&[], 0, Matrix { dtype: DType::F32, bytes: &[0; 16], rows: 1, cols: 4 }, None, &mut []);
    for tokens in [1, 6] {
        let mut out = vec![f32::NAN; 2 * tokens];
        linear(&[], tokens, Matrix { rows: 2, cols: 0, ..none }, Some(&[1.0, 2.0]), &mut out);
        assert_eq!(out, [1.0, 2.0].repeat(tokens));
    }
}

#[test]
#[should_panic(expected = "linear: x is not [2, 4]")]
fn a_short_input_is_refused() {
    linear(&[0.0; 7], 2, Matrix { dtype: DType::F32, bytes: &[0; 16], rows: 1, cols: 4 }, None, &mut [0.0; 2]);
}

#[test]
#[should_panic(expected = "q4_0 weight [2, 32]")]
fn a_short_weight_is_refused() {
    linear(&[0.0; 32], 1, Matrix { dtype: DType::Q4_0, bytes: &[0; 35], rows: 2, cols: 32 }, None, &mut [0.0; 2]);
}
