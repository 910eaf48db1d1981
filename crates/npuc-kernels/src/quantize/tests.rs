//! Stored rows against ggml's own, and against bounds on how far a decoded element may be from its original.

use proptest::prelude::*;

use super::*;
use crate::dequant::dequantize_row;
use crate::testing::random;

const SEARCHES: [Search; 2] = [Search::Plain, Search::Error];

fn with_grid() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|d| writable(*d) && d.is_block())
}

fn encoded(level: Level, dtype: DType, row: &[f32], importance: Option<&[f32]>, search: Search) -> Vec<u8> {
    let mut out = vec![0xAA; dtype.row_bytes(row.len()).unwrap()];
    quantize_row_at(level, dtype, row, importance, search, &mut out);
    out
}

fn decoded(dtype: DType, stored: &[u8], len: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; len];
    dequantize_row(dtype, stored, &mut out);
    out
}

fn round_trip(dtype: DType, row: &[f32], search: Search) -> Vec<f32> {
    decoded(dtype, &encoded(Level::detect(), dtype, row, None, search), row.len())
}

fn squared_error(row: &[f32], decoded: &[f32], importance: Option<&[f32]>) -> f64 {
    let weight = |i: usize| importance.map_or(1.0, |w| f64::from(w[i]));
    row.iter().zip(decoded).enumerate().map(|(i, (x, y))| weight(i) * (f64::from(*x) - f64::from(*y)).powi(2)).sum()
}

/// Rows of 1024 elements of all kinds that a weight may have.
fn rows() -> Vec<(&'static str, Vec<f32>)> {
    let noise = random(1024, 5);
    let cubed: Vec<f32> = noise.iter().map(|x| x * x * x).collect();
    let mut outlier = cubed.clone();
    outlier[700] = -500.0;
    let mut gaps = cubed.clone();
    gaps[..512].fill(0.0);
    let signed_zeros = noise.iter().enumerate().map(|(i, x)| if i < 512 { 0f32.copysign(*x) } else { x.max(-0.0) });
    let signed_zeros = signed_zeros.collect();
    let scaled = |by: f32| cubed.iter().map(|x| x * by).collect::<Vec<f32>>();
    let negative = noise.iter().map(|x| -x.abs()).collect();
    let narrow = noise.iter().map(|x| 3.0 + x * 1e-3).collect();
    let falling = cubed.iter().enumerate().map(|(i, x)| x * (-(i as f32) / 40.0).exp()).collect();
    vec![
        ("random", noise),
        ("peaked", cubed.clone()),
        ("one outlier", outlier),
        ("half zeros", gaps),
        ("zeros", vec![0.0; 1024]),
        ("signed zeros", signed_zeros),
        ("negative", negative),
        ("constant", vec![0.37; 1024]),
        ("negative constant", vec![-12.5; 1024]),
        ("far from zero", narrow),
        ("falling", falling),
        ("small", scaled(1e-3)),
        ("tiny", scaled(1e-7)),
        ("minute", scaled(1e-20)),
        ("subnormal", scaled(1e-41)),
        ("large", scaled(3e4)),
    ]
}

#[test]
fn plain_rows_are_ggmls_byte_for_byte() {
    for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0] {
        let path = format!("{}/tests/data/quantized_{dtype}.bin", env!("CARGO_MANIFEST_DIR"));
        let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (count, rest) = file.split_at(4);
        let count = u32::from_le_bytes(count.try_into().unwrap()) as usize;
        let (row, stored) = rest.split_at(count * 4);
        let row: Vec<f32> = row.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
        for level in Level::all() {
            let have = encoded(level, dtype, &row, None, Search::Plain);
            for (block, (have, want)) in
                have.chunks(dtype.block_bytes()).zip(stored.chunks(dtype.block_bytes())).enumerate()
            {
                assert_eq!(have, want, "{dtype} {level:?} block {block}: {:?}", &row[block * 32..][..32]);
            }
        }
    }
}

/// How far a plainly stored element may be: half a step (a whole one in Q4_0, which has no 8), and what rounding the
/// stored fields moves it by.
///
/// f16 fields have 11 bits, or steps of 2^-24; up to 127 of these add up.
fn bound(grid: &Grid, col: usize, magnitude: f32) -> f32 {
    let step = grid.step(col).scale.abs();
    match grid.dtype {
        DType::Int8 | DType::Int4 | DType::Lpbq4(_) => step * 0.50001,
        DType::Q8_0 => step * 0.5 + magnitude / 2048.0 + 127.0 / 33_554_432.0,
        DType::Q4_0 => step * 1.01 + magnitude / 2048.0 + 8.0 / 33_554_432.0,
        DType::Q4_1 | DType::Bw4(_) => step * 0.5 + magnitude / 1024.0 + 16.0 / 33_554_432.0,
        DType::F32 | DType::F16 | DType::BF16 | DType::Q5_0 | DType::Q5_1 => unreachable!("no grid"),
        DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => unreachable!("no grid"),
    }
}

#[test]
fn a_plainly_stored_element_is_off_by_half_a_step_at_most() {
    for dtype in with_grid() {
        for (name, row) in rows() {
            assert!(!saturates(dtype, &row), "{dtype} {name}");
            let grid = Grid::fit(dtype, &row, None, Search::Plain).unwrap();
            let have = round_trip(dtype, &row, Search::Plain);
            for (block, x) in row.chunks(grid.run()).enumerate() {
                let magnitude = x.iter().fold(0.0f32, |a, x| a.max(x.abs()));
                for (i, x) in x.iter().enumerate() {
                    let col = block * grid.run() + i;
                    let limit = bound(&grid, col, magnitude);
                    assert!((x - have[col]).abs() <= limit, "{dtype} {name} {col}: {x} {} {limit}", have[col]);
                }
            }
        }
    }
}

#[test]
fn a_search_is_never_worse_than_the_plain_step() {
    for dtype in with_grid() {
        for (name, row) in rows() {
            let weights: Vec<f32> = random(row.len(), 3).iter().map(|w| (w + 1.0) * (w + 1.0)).collect();
            for importance in [None, Some(&weights[..])] {
                for level in Level::all() {
                    let error = |search| {
                        let stored = encoded(level, dtype, &row, importance, search);
                        squared_error(&row, &decoded(dtype, &stored, row.len()), importance)
                    };
                    let (plain, best) = (error(Search::Plain), error(Search::Error));
                    assert!(best <= plain * 1.00001, "{dtype} {name} {level:?}: {best} {plain}");
                }
            }
        }
    }
}

#[test]
fn what_is_stored_does_not_depend_on_the_processor() {
    let weights: Vec<f32> = random(1024, 4).iter().map(|w| w + 1.0).collect();
    for dtype in DType::ALL.into_iter().filter(|d| writable(*d)) {
        for (name, row) in rows() {
            for (search, importance) in
                [(Search::Plain, None), (Search::Error, None), (Search::Error, Some(&weights[..]))]
            {
                let stored = Level::all().into_iter().map(|level| encoded(level, dtype, &row, importance, search));
                let stored: Vec<Vec<u8>> = stored.collect();
                assert!(stored.iter().all(|s| *s == stored[0]), "{dtype} {name} {search:?}");
            }
        }
    }
}

#[test]
fn a_search_gains_what_it_is_for() {
    for (dtype, row, at_most) in [
        (DType::Q4_0, "peaked", 0.95),
        (DType::Q4_1, "peaked", 0.97),
        (DType::Q8_0, "random", 0.999),
        (DType::Int4, "one outlier", 1.0),
        (DType::Int4, "peaked", 0.9),
        (DType::Lpbq4(crate::format::Group::G32), "peaked", 0.9),
        (DType::Bw4(crate::format::Group::G128), "peaked", 0.95),
    ] {
        let (_, row) = rows().into_iter().find(|(name, _)| *name == row).unwrap();
        let error = |search| squared_error(&row, &round_trip(dtype, &row, search), None);
        let (plain, best) = (error(Search::Plain), error(Search::Error));
        assert!(best <= plain * at_most, "{dtype}: {best} of {plain}");
    }
}

#[test]
fn importance_moves_the_error_to_where_it_does_not_matter() {
    let row = random(256, 8);
    let weights: Vec<f32> = (0..256).map(|i| if i % 4 == 0 { 100.0 } else { 0.01 }).collect();
    // A row of int8 has so many numbers that luck decides.
    for dtype in with_grid().filter(|d| d.row_bytes(256).is_some() && *d != DType::Int8) {
        let error = |importance| {
            let stored = encoded(Level::detect(), dtype, &row, importance, Search::Error);
            squared_error(&row, &decoded(dtype, &stored, 256), Some(&weights))
        };
        assert!(error(Some(&weights)) < error(None), "{dtype}");
    }
}

#[test]
fn zeros_decode_to_zeros_and_stored_scales_are_legal() {
    for dtype in with_grid() {
        for (name, row) in rows() {
            for search in SEARCHES {
                let stored = encoded(Level::detect(), dtype, &row, None, search);
                let values = decoded(dtype, &stored, row.len());
                for (run, (x, y)) in row.chunks(16).zip(values.chunks(16)).enumerate() {
                    assert!(y.iter().all(|y| y.is_finite()), "{dtype} {name} {search:?}: {y:?}");
                    let zeros = row[run * 16 / 512 * 512..][..512].iter().all(|x| *x == 0.0);
                    assert!(!zeros || y.iter().all(|y| *y == 0.0), "{dtype} {name} {search:?}: {x:?} {y:?}");
                }
                if dtype.row_header_bytes() > 0 {
                    let scale = f32::from_le_bytes(stored[..4].try_into().unwrap());
                    assert!(scale.is_normal() && scale > 0.0, "{dtype} {name}: {scale}");
                }
                if let DType::Lpbq4(_) = dtype {
                    let mut blocks = stored[4..].chunks(dtype.block_bytes());
                    assert!(blocks.all(|block| (1..=16).contains(&block[0])), "{dtype} {name}");
                }
            }
        }
    }
}

#[test]
fn a_grids_numbers_are_the_decoders_bit_for_bit() {
    for dtype in with_grid() {
        for (name, row) in rows() {
            for search in SEARCHES {
                let grid = Grid::fit(dtype, &row, None, search).unwrap();
                let span = i32::from(grid.high()) - i32::from(grid.low()) + 1;
                let q: Vec<i8> = (0..row.len() as i32).map(|i| (i32::from(grid.low()) + i % span) as i8).collect();
                let mut stored = vec![0; dtype.row_bytes(row.len()).unwrap()];
                grid.pack(&q, &mut stored);
                for (col, y) in decoded(dtype, &stored, row.len()).into_iter().enumerate() {
                    let have = grid.value(col, q[col]);
                    assert_eq!(have.to_bits(), y.to_bits(), "{dtype} {name} {col}: {have} {y}");
                    let Step { scale, min } = grid.step(col);
                    let near = f32::from(q[col]) * scale + min;
                    let magnitude = min.abs() + 128.0 * scale.abs();
                    assert!((near - y).abs() <= magnitude * 1e-6, "{dtype} {name} {col}: {near} {y}");
                }
            }
        }
    }
}

#[test]
fn a_row_is_its_grids_nearest_numbers() {
    for dtype in with_grid() {
        let has_reference = matches!(dtype, DType::Q4_0 | DType::Q4_1 | DType::Q8_0);
        for (name, row) in rows() {
            for search in SEARCHES.into_iter().filter(|s| *s == Search::Error || !has_reference) {
                let mut grid = Grid::fit(dtype, &random(1024, 1), None, Search::Plain).unwrap();
                grid.refit(&row, None, search);
                assert_eq!(Some(&grid), Grid::fit(dtype, &row, None, search).as_ref());
                let q: Vec<i8> = row.iter().enumerate().map(|(col, x)| grid.nearest(col, *x)).collect();
                let mut stored = vec![0; dtype.row_bytes(row.len()).unwrap()];
                grid.pack(&q, &mut stored);
                assert_eq!(stored, encoded(Level::detect(), dtype, &row, None, search), "{dtype} {name} {search:?}");
                for (col, x) in row.iter().enumerate() {
                    let off = |q: i8| (x - grid.value(col, q)).abs();
                    let least = (grid.low()..=grid.high()).map(off).fold(f32::INFINITY, f32::min);
                    let slack = grid.step(col).scale.abs() * 1e-4 + x.abs() * 1e-6;
                    assert!(off(q[col]) <= least + slack, "{dtype} {name} {col}: {x} {}", q[col]);
                }
            }
        }
    }
}

/// Holds for the formats whose plain scale is given by an element that it decodes to exactly.
#[test]
fn what_was_decoded_is_stored_as_the_same_values() {
    for dtype in [DType::Q8_0, DType::Q4_0, DType::Q4_1, DType::Int8, DType::Int4, DType::F32, DType::F16, DType::BF16]
    {
        for (name, row) in rows() {
            let once = round_trip(dtype, &row, Search::Plain);
            let twice = round_trip(dtype, &once, Search::Plain);
            let largest = once.iter().fold(0.0f32, |a, x| a.max(x.abs()));
            let close = once.iter().zip(&twice).all(|(a, b)| (a - b).abs() <= largest * 2e-7);
            assert!(close, "{dtype} {name}");
        }
    }
}

#[test]
fn float_formats_store_the_nearest_and_their_largest_beyond_it() {
    let row =
        [1.0, -1.5, 65504.0, 65519.9, 65520.0, -1e9, 1e-9, f32::MAX, -f32::MAX, 0.1, 257.0 / 256.0, 259.0 / 256.0];
    let largest = half::bf16::MAX.to_f32();
    let cases = [
        (DType::F32, row),
        (DType::F16, row.map(|x| f16::from_f32(x).to_f32().clamp(-65504.0, 65504.0))),
        (DType::BF16, row.map(|x| half::bf16::from_f32(x).to_f32().clamp(-largest, largest))),
    ];
    for (dtype, want) in cases {
        for level in Level::all() {
            let have = decoded(dtype, &encoded(level, dtype, &row, None, Search::Error), row.len());
            assert_eq!(have, want, "{dtype} {level:?}");
        }
        assert!(Grid::fit(dtype, &row, None, Search::Plain).is_none());
        assert_eq!(saturates(dtype, &row), dtype != DType::F32);
    }
}

#[test]
fn what_is_too_large_becomes_the_largest_number() {
    for dtype in with_grid() {
        for huge in [6e5f32, 1e7, 1e30, f32::MAX] {
            let row: Vec<f32> = random(512, 2).iter().map(|x| if *x > 0.9 { huge } else { x * huge }).collect();
            for (level, search) in Level::all().into_iter().flat_map(|l| SEARCHES.map(|s| (l, s))) {
                let have = decoded(dtype, &encoded(level, dtype, &row, None, search), row.len());
                assert!(have.iter().all(|y| y.is_finite()), "{dtype} {huge} {search:?}");
                assert!(saturates(dtype, &row) || have.iter().any(|y| *y > huge * 0.8), "{dtype} {huge} {search:?}");
            }
        }
    }
}

#[test]
fn formats_that_are_not_written_have_no_grid() {
    for dtype in DType::ALL.into_iter().filter(|d| !writable(*d)) {
        assert_eq!(Grid::fit(dtype, &[0.0; 256], None, Search::Plain), None, "{dtype}");
    }
    assert_eq!(DType::ALL.into_iter().filter(|d| !writable(*d)).count(), 7);
}

#[test]
fn rows_may_be_of_any_length_where_a_row_has_one_scale() {
    for (dtype, lengths) in [(DType::Int8, [0, 1, 7, 511, 513, 1000]), (DType::Int4, [0, 2, 6, 510, 514, 1000])] {
        for len in lengths {
            let row = random(len, len);
            for search in SEARCHES {
                let have = round_trip(dtype, &row, search);
                let step = if dtype == DType::Int8 { 1.0 / 127.0 } else { 1.0 / 7.0 };
                let limit = if search == Search::Plain { 0.501 } else { 2.0 } * step;
                assert!(row.iter().zip(&have).all(|(x, y)| (x - y).abs() <= limit), "{dtype} {len} {search:?}");
            }
        }
    }
}

proptest! {
    #[test]
    fn any_bits_that_are_finite_decode_to_finite_ones(bits in prop::collection::vec(any::<u32>(), 512), error: bool) {
        let row: Vec<f32> = bits.into_iter().map(f32::from_bits).map(|x| if x.is_finite() { x } else { 0.0 }).collect();
        let search = if error { Search::Error } else { Search::Plain };
        for dtype in DType::ALL.into_iter().filter(|d| writable(*d)) {
            let stored: Vec<Vec<u8>> = Level::all().iter().map(|l| encoded(*l, dtype, &row, None, search)).collect();
            let values = decoded(dtype, &stored[0], row.len());
            prop_assert!(values.iter().all(|y| y.is_finite()), "{} {:?}", dtype, search);
        }
    }
}

#[test]
#[should_panic(expected = "blocks of q4_0 do not divide 33 elements")]
fn a_row_that_blocks_do_not_divide_is_refused() {
    Grid::fit(DType::Q4_0, &[0.0; 33], None, Search::Plain);
}

#[test]
#[should_panic(expected = "npuc does not write q6_k")]
fn a_format_that_is_not_written_is_refused() {
    quantize_row(DType::Q6K, &[0.0; 256], None, Search::Plain, &mut [0; 210]);
}

#[test]
fn the_largest_magnitude_and_what_is_not_finite() {
    let mut row: Vec<f32> = (0..77).map(|i| (i as f32 - 40.0) * 0.25).collect();
    assert_eq!(largest_magnitude(&row), Some(10.0));
    assert_eq!(largest_magnitude(&[]), Some(0.0));
    assert_eq!(largest_magnitude(&[-0.0, 1e-45]), Some(1e-45));
    for place in [0, 31, 32, 63, 64, 76] {
        for odd in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let held = std::mem::replace(&mut row[place], odd);
            for level in Level::all() {
                assert!(!f32::from_bits(largest_bits(level, &row)).is_finite(), "{odd} at {place}, {level:?}");
            }
            row[place] = held;
        }
    }
}
