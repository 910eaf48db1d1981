//! Exact products against sums in i128 over numbers decoded by hand, at the extremes and at random, for every level.

use super::*;
use crate::format::Group;

/// Whole numbers that look random, with both extremes of int16 among them.
fn numbers(len: usize, seed: u64) -> Vec<i16> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 48) as u16 as i16
    };
    (0..len).map(|i| if i % 97 == 5 { [i16::MIN, i16::MAX][i / 97 % 2] } else { next() }).collect()
}

/// A stored row and its numbers, written out from the definition of the format.
fn stored(dtype: DType, source: &[i16]) -> (Vec<u8>, Vec<i64>) {
    let mut bytes = 0.25f32.to_le_bytes().to_vec();
    let mut held = Vec::new();
    let nibble = |x: i16| i64::from(x).rem_euclid(16) - 8;
    let pack = |pair: &[i64]| (pair[0].rem_euclid(16) | pair[1].rem_euclid(16) << 4) as u8;
    if let DType::Lpbq4(group) = dtype {
        for (number, block) in source.chunks(group.elements()).enumerate() {
            let scale = if number % 2 == 0 { 16 } else { 1 + i64::from(block[0]).rem_euclid(16) };
            let q: Vec<i64> = block.iter().map(|&x| nibble(x)).collect();
            bytes.push(scale as u8);
            bytes.extend(q.chunks(2).map(pack));
            held.extend(q.iter().map(|q| q * scale));
        }
    } else if dtype == DType::Int8 {
        held.extend(source.iter().map(|x| i64::from(*x as i8)));
        bytes.extend(held.iter().map(|&q| q as u8));
    } else {
        assert_eq!(dtype, DType::Int4);
        held.extend(source.iter().map(|&x| nibble(x)));
        bytes.extend(held.chunks(2).map(pack));
    }
    (bytes, held)
}

fn check_linear(dtype: Option<DType>, x: &[i16], tokens: usize, source: &[i16], rows: usize) {
    let cols = source.len() / rows;
    let (mut bytes, mut held) = (Vec::new(), Vec::new());
    for row in source.chunks(cols) {
        let (row_bytes, row_held) = match dtype {
            Some(dtype) => stored(dtype, row),
            None => (Vec::new(), row.iter().map(|&w| i64::from(w)).collect()),
        };
        bytes.extend(row_bytes);
        held.extend(row_held);
    }
    let numbers = dtype.map_or(Numbers::Int16(source), |dtype| Numbers::Stored(dtype, &bytes));
    let weight = Matrix { numbers, rows, cols };
    let mut want = Vec::new();
    for row in held.chunks(cols) {
        for x in x.chunks(cols) {
            let total: i128 = x.iter().zip(row).map(|(&x, &w)| i128::from(x) * i128::from(w)).sum();
            want.push(i64::try_from(total).unwrap());
        }
    }
    for level in Level::all() {
        for threads in [1, 3] {
            let mut totals = vec![-1; rows * tokens];
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| linear_at(level, x, tokens, weight, &mut totals));
            assert!(totals == want, "{dtype:?} [{rows}, {cols}] by {tokens}, {level:?}, {threads} threads");
        }
    }
    let sums: Vec<i64> = held.chunks(cols).map(|row| row.iter().sum()).collect();
    assert_eq!(row_sums(weight), sums);
    if let Some(dtype) = dtype {
        assert_eq!(row_scales(dtype, &bytes, cols), vec![0.25; rows]);
    }
}

#[test]
fn projections_are_exact() {
    let formats = [
        Some(DType::Int8),
        Some(DType::Int4),
        Some(DType::Lpbq4(Group::G16)),
        Some(DType::Lpbq4(Group::G32)),
        Some(DType::Lpbq4(Group::G512)),
        None,
    ];
    for (case, dtype) in formats.into_iter().enumerate() {
        let block = dtype.map_or(1, DType::block_len);
        for (tokens, rows, cols) in [(1, 1, 2), (3, 5, 34), (1, 40, 257), (7, 33, 700), (32, 17, 1024)] {
            let cols = usize::next_multiple_of(cols, block);
            check_linear(dtype, &numbers(tokens * cols, 1 + case as u64), tokens, &numbers(rows * cols, 9), rows);
        }
    }
}

/// The largest products of one sign, of which 65,536 leave 32 bits by far: -128 in int8, -8 times 16 in blocks.
#[test]
fn extremes_do_not_overflow() {
    let cols = 1 << 16;
    for x in [i16::MIN, i16::MAX] {
        for dtype in [Some(DType::Int8), Some(DType::Int4), Some(DType::Lpbq4(Group::G256)), None] {
            for w in [i16::MIN, i16::MAX, -128] {
                check_linear(dtype, &vec![x; 2 * cols], 2, &vec![w; cols], 1);
            }
        }
    }
}

/// A block scale that no writer makes, but that a file may hold, takes weights to -2040.
#[test]
fn damaged_block_scales_are_still_exact() {
    let dtype = DType::Lpbq4(Group::G256);
    let mut bytes = 1.0f32.to_le_bytes().to_vec();
    for _ in 0..2 {
        bytes.push(255);
        bytes.extend([0x88; 128]);
    }
    let weight = Matrix { numbers: Numbers::Stored(dtype, &bytes), rows: 1, cols: 512 };
    let mut totals = [0];
    linear(&[i16::MIN; 512], 1, weight, &mut totals);
    assert_eq!(totals, [32768 * 2040 * 512]);
}

#[test]
fn products_of_activations_are_exact() {
    for (batch, m, k, n) in [(1, 1, 1, 1), (2, 3, 5, 7), (3, 20, 64, 65), (1, 2, 5000, 3), (1, 2, 0, 3)] {
        for (a_shift, b_shift) in [(0, 0), (32768, 0), (0, -32767), (32768, 32768), (-32768, 117)] {
            for (a, b) in [
                (numbers(batch * m * k, 3), numbers(batch * k * n, 4)),
                (vec![i16::MAX; batch * m * k], vec![i16::MAX; batch * k * n]),
                (vec![i16::MIN; batch * m * k], vec![i16::MIN; batch * k * n]),
            ] {
                for transpose_b in [false, true] {
                    let at = |matrix: usize, i: usize, j: usize| match transpose_b {
                        false => matrix * k * n + i * n + j,
                        true => matrix * k * n + j * k + i,
                    };
                    let mut want = Vec::new();
                    for (matrix, row, column) in
                        (0..batch * m * n).map(|place| (place / (m * n), place / n % m, place % n))
                    {
                        let term = |i: usize| {
                            let a = i128::from(a[(matrix * m + row) * k + i]) + i128::from(a_shift);
                            a * (i128::from(b[at(matrix, i, column)]) + i128::from(b_shift))
                        };
                        want.push(i64::try_from((0..k).map(term).sum::<i128>()).unwrap());
                    }
                    let mut totals = vec![-1; want.len()];
                    let (a, b) = (Shifted { numbers: &a, shift: a_shift }, Shifted { numbers: &b, shift: b_shift });
                    matmul(a, b, Extents { batch, m, k, n }, transpose_b, &mut totals);
                    assert!(totals == want, "{batch} {m} {k} {n} {a_shift} {b_shift} {transpose_b}");
                }
            }
        }
    }
}

#[test]
fn numbers_are_rounded_to_steps() {
    for level in Level::all() {
        for (value, scale, low, high, expected, cut) in [
            (0.5f32, 1.0f32, -8.0f32, 7.0f32, 1.0f32, 0),
            (-0.5, 1.0, -8.0, 7.0, -1.0, 0),
            (0.49999997, 1.0, -8.0, 7.0, 0.0, 0),
            (1.26, 0.5, -8.0, 7.0, 1.5, 0),
            (7.4, 1.0, -8.0, 7.0, 7.0, 0),
            (8.4, 1.0, -8.0, 7.0, 7.0, 0),
            (8.6, 1.0, -8.0, 7.0, 7.0, 1),
            (-9.6, 1.0, -8.0, 7.0, -8.0, 1),
            (1.0, 1.0 / 65536.0, 0.0, 65535.0, 65535.0 / 65536.0, 0),
            (f32::INFINITY, 1.0, -8.0, 7.0, 7.0, 1),
            (-1e9, 0.001, -65535.0, 0.0, -65.535, 1),
        ] {
            let mut values = [value; 19];
            let have = round_at(level, &mut values, Grid { scale, low, high });
            assert_eq!((values, have), ([expected; 19], 19 * cut), "{value} {level:?}");
        }
        let mut nan = [f32::NAN, 1.0];
        assert_eq!(round_at(level, &mut nan, Grid { scale: 1.0, low: -8.0, high: 7.0 }), 1);
        assert!(nan[0].is_nan());
        // Every step of every scale comes back as the same whole number.
        for scale in [1e-6f32, 0.000_731, 1.0 / 32767.0, 0.1, 3.3, 1e6] {
            let all: Vec<i32> = (-32768..=65535).collect();
            for (shift, part) in [(0, &all[..65536]), (32768, &all[32768..98304])] {
                let mut values: Vec<f32> = part.iter().map(|&q| q as f32 * scale).collect();
                let before = values.clone();
                let grid = Grid { scale, low: -32768.0, high: 65535.0 };
                assert_eq!(round_at(level, &mut values, grid), 0);
                assert_eq!(values, before, "{scale}");
                let mut steps = vec![0; part.len()];
                steps_at(level, &values, scale, shift, &mut steps);
                assert!(steps.iter().zip(part).all(|(&have, &q)| i32::from(have) == q - shift), "{scale} {shift}");
            }
        }
    }
}
