//! Dequantised blocks against the values of the gguf Python package (`tools/make_dequant_fixtures.py`), or a formula.

use super::*;

fn fixture(dtype: DType) -> (Vec<u8>, Vec<u32>) {
    let path = format!("{}/tests/data/{}.bin", env!("CARGO_MANIFEST_DIR"), dtype.name());
    let file = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let (count, rest) = file.split_at(4);
    let count = u32::from_le_bytes(count.try_into().unwrap()) as usize;
    let (stored, values) = rest.split_at(dtype.row_bytes(count).unwrap());
    assert_eq!(values.len(), count * 4);
    let values = values.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
    (stored.to_vec(), values)
}

fn is_gguf(dtype: DType) -> bool {
    !matches!(dtype, DType::Int8 | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_))
}

#[test]
fn every_other_format_follows_its_formula() {
    let scale = |x: f32| x.to_le_bytes().to_vec();
    let halves = |d: f32, m: f32| [f16::from_f32(d).to_le_bytes(), f16::from_f32(m).to_le_bytes()].concat();
    // 16 numbers from -8 to 7 in order, the first of each pair in the low half.
    let nibbles = vec![0x98u8, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76];
    let counted: Vec<f32> = (-8..8).map(|q| q as f32).collect();
    let times = |by: &[f32]| by.iter().flat_map(|by| counted.iter().map(move |q| q * by)).collect::<Vec<f32>>();
    let cases = [
        (DType::Int8, [scale(0.5), vec![0x80, 0xff, 0, 1, 0x7f]].concat(), vec![-64.0, -0.5, 0.0, 0.5, 63.5]),
        (DType::Int4, [scale(2.0), nibbles.clone()].concat(), times(&[2.0])),
        (
            DType::Lpbq4(crate::format::Group::G16),
            [scale(0.25), vec![1], nibbles.clone(), vec![16], nibbles.clone()].concat(),
            times(&[0.25, 4.0]),
        ),
        (
            DType::Bw4(crate::format::Group::G16),
            [halves(0.5, 8.0), nibbles.clone(), halves(-2.0, 0.0), nibbles].concat(),
            [counted.iter().map(|q| 0.5 * (q + 8.0)).collect(), times(&[-2.0])].concat(),
        ),
    ];
    for (dtype, stored, expected) in cases {
        for level in Level::all() {
            let mut out = vec![f32::NAN; expected.len()];
            dequantize(level, dtype, &stored, &mut out);
            assert_eq!(out, expected, "{dtype} {level:?}");
            let start = expected.len() / 2 / dtype.block_len() * dtype.block_len();
            let mut part = vec![f32::NAN; expected.len() - start];
            dequantize_part(level, dtype, &stored, start, &mut part);
            assert_eq!(part, expected[start..], "{dtype} {level:?} from {start}");
        }
    }
}

#[test]
fn every_level_gives_the_portable_bits() {
    for dtype in DType::ALL.into_iter().filter(|dtype| !is_gguf(*dtype)) {
        for cols in [2, 14, 16, 18, 48, 96, 130, 512, 1536] {
            let Some(len) = dtype.row_bytes(cols) else { continue };
            let mut stored: Vec<u8> = (0..len).map(|i| (i * 89 % 251) as u8).collect();
            stored[3] = 0x3d;
            let rows = Level::all().into_iter().map(|level| {
                let mut out = vec![f32::NAN; cols];
                dequantize(level, dtype, &stored, &mut out);
                out.into_iter().map(f32::to_bits).collect()
            });
            let rows: Vec<Vec<u32>> = rows.collect();
            assert!(rows.iter().all(|row| *row == rows[0]), "{dtype} {cols}");
        }
    }
}

#[test]
fn every_format_of_gguf_is_bit_exact_with_the_gguf_package() {
    for dtype in DType::ALL.into_iter().filter(|dtype| is_gguf(*dtype)) {
        let (stored, expected) = fixture(dtype);
        for level in Level::all() {
            let mut out = vec![f32::NAN; expected.len()];
            dequantize(level, dtype, &stored, &mut out);
            for (i, (have, want)) in out.iter().zip(&expected).enumerate() {
                assert_eq!(have.to_bits(), *want, "{dtype} {level:?} element {i}: {have} {}", f32::from_bits(*want));
            }
        }
    }
}

#[test]
fn every_half_converts_as_the_half_crate_does() {
    for bits in 0..=u16::MAX {
        let (have, want) = (f16_to_f32(bits.to_le_bytes()), f16::from_bits(bits).to_f32_const());
        assert!(have.to_bits() == want.to_bits() || have.is_nan() && want.is_nan(), "{bits:04x}: {have} {want}");
    }
}

#[test]
#[should_panic(expected = "q4_1 bytes hold 33 elements")]
fn a_row_that_blocks_do_not_divide_is_refused() {
    dequantize_row(DType::Q4_1, &[0; 20], &mut [0.0; 33]);
}

#[test]
#[should_panic(expected = "q8_0 bytes hold 32 elements")]
fn a_row_of_the_wrong_size_is_refused() {
    dequantize_row(DType::Q8_0, &[0; 33], &mut [0.0; 32]);
}
