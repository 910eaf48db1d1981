//! Rows of every format with their scales, by hand, and records that name what is not there.

use super::*;
use crate::exec::to_f32;

fn record(dtype: &str, shape: &[usize], offset: u64, bytes: u64, scales: u64) -> WeightRecord {
    let (name, file, shape) = ("w".into(), "f".into(), shape.to_vec());
    WeightRecord { name, dtype: dtype.into(), shape, file, offset, bytes, scales: Some(scales) }
}

fn scales() -> Vec<u8> {
    [9.0f32, 0.5, 2.0].iter().flat_map(|scale| scale.to_le_bytes()).collect()
}

#[test]
fn rows_have_their_scales() {
    for (dtype, cols, file, held, expected) in [
        ("int8", 2, &[7u8, 1, 255, 128, 127][..], DType::Int8, &[0.5f32, -0.5, -256.0, 254.0][..]),
        ("int4", 2, &[7, 0xf1, 0x78], DType::Int4, &[0.5, -0.5, -16.0, 14.0]),
        // The second row begins in the middle of a byte.
        ("int4", 3, &[7, 0xf1, 0x78, 0x35], DType::Int8, &[0.5, -0.5, -4.0, 14.0, 10.0, 6.0]),
        ("int16", 1, &[7, 0xff, 0x7f, 0x01, 0x80], DType::F32, &[16383.5, -65534.0]),
    ] {
        let tensor = read(&record(dtype, &[2, cols], 1, file.len() as u64 - 1, 4), file, &scales()).unwrap();
        assert_eq!((tensor.dtype, &to_f32(&tensor)[..]), (held, expected), "{dtype} {cols}");
    }
}

#[test]
fn what_is_not_there_is_told() {
    let file = [0u8; 8];
    for (record, expected) in [
        (record("int7", &[2, 2], 0, 4, 0), "unknown format of whole numbers"),
        (record("int8", &[4], 0, 4, 0), "a weight in whole numbers is no matrix"),
        (record("int8", &[2, 2], 0, 5, 0), "the weight does not lie in its file with the size of its shape"),
        (record("int8", &[2, 2], 5, 4, 0), "the weight does not lie in its file with the size of its shape"),
        (record("int8", &[2, 2], u64::MAX, 4, 0), "the weight does not lie in its file with the size of its shape"),
        (record("int8", &[usize::MAX, 2], 0, 4, 0), "the weight does not lie in its file with the size of its shape"),
        (record("int8", &[2, 2], 0, 4, 8), "the scales of a weight are not in their file"),
        (record("int8", &[2, 2], 0, 4, u64::MAX), "the scales of a weight are not in their file"),
    ] {
        let error = read(&record, &file, &scales()).unwrap_err();
        assert_eq!((error.diagnostics()[0].code, &*error.diagnostics()[0].message), (Code::BadBundle, expected));
    }
}
