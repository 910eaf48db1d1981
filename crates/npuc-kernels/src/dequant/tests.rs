//! Dequantised blocks against the values of the gguf Python package (`tools/make_dequant_fixtures.py`).

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

#[test]
fn every_format_is_bit_exact_with_the_gguf_package() {
    for dtype in DType::ALL {
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
