//! What a context binary holds in words and numbers for people, and what follows from it.

use super::info::{EncodingInfo, GraphSizes, TensorInfo};

impl TensorInfo {
    /// The size of its numbers; `None` for a type of fewer than 8 bits, whose layout in a buffer npuc does not know, for an unknown
    /// one, and beyond 64 bits.
    pub fn bytes(&self) -> Option<u64> {
        let element: u64 = match self.dtype.as_str() {
            "i8" | "u8-plain" | "s8" | "u8" | "bool" => 1,
            "i16" | "u16-plain" | "s16" | "u16" | "f16" | "bf16" => 2,
            "i32" | "u32" | "s32" | "u32-fixed" | "f32" => 4,
            "i64" | "u64" => 8,
            _ => return None,
        };
        self.shape.iter().try_fold(element, |bytes, &extent| bytes.checked_mul(extent.into()))
    }
}

impl GraphSizes {
    /// Every number with what it is; in bytes but for `optimisation`.
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("spill and fill", self.spill_fill_bytes),
            ("VTCM", self.vtcm_bytes.into()),
            ("optimisation", self.optimisation.into()),
            ("ports", self.io_bytes),
            ("operations", self.op_bytes),
            ("constants", self.const_bytes),
            ("values in DDR", self.ddr_bytes),
            ("shared weights", self.shared_weight_bytes),
        ]
    }
}

impl EncodingInfo {
    /// What a number `q` means; different texts for different meanings, as far as the meaning is told.
    pub fn to_text(&self) -> String {
        let in_bits = |bits: &Option<u32>| bits.map_or_else(String::new, |bits| format!(" in {bits} bits"));
        match self {
            EncodingInfo::None => "none".into(),
            EncodingInfo::ScaleOffset { scale, offset, bits } => {
                let number = match offset {
                    0 => "q".into(),
                    1.. => format!("(q + {offset})"),
                    ..0 => format!("(q - {})", offset.unsigned_abs()),
                };
                format!("{number} * {scale}{}", in_bits(bits))
            }
            EncodingInfo::Axis { axis, count, scales: [low, high], offsets: [least, most], bits } => {
                let scales = format!("scales from {low} to {high}, offsets from {least} to {most}");
                format!("(q + offset) * scale, {count} along axis {axis}: {scales}{}", in_bits(bits))
            }
            EncodingInfo::Other(number) => format!("encoding {number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_tensors() {
        for (dtype, shape, expected) in [
            ("u16", &[1, 1, 32, 64][..], Some(4096)),
            ("f32", &[], Some(4)),
            ("i64", &[0, 5], Some(0)),
            ("bool", &[3], Some(3)),
            ("s4", &[8], None),
            ("0x99", &[8], None),
            ("u8", &[u32::MAX, u32::MAX], Some(18_446_744_065_119_617_025)),
            ("u16", &[u32::MAX, u32::MAX], None),
        ] {
            let tensor = TensorInfo {
                name: "x".into(),
                id: 1,
                dtype: dtype.into(),
                shape: shape.into(),
                encoding: EncodingInfo::None,
            };
            assert_eq!(tensor.bytes(), expected, "{dtype}{shape:?}");
        }
    }

    #[test]
    fn encodings_read_as_formulas() {
        let plain = |scale, offset, bits| EncodingInfo::ScaleOffset { scale, offset, bits };
        for (encoding, expected) in [
            (EncodingInfo::None, "none"),
            (plain(0.5, 0, None), "q * 0.5"),
            (plain(1.0 / 65536.0, -32768, None), "(q - 32768) * 0.000015258789"),
            (plain(2.0, 3, Some(4)), "(q + 3) * 2 in 4 bits"),
            (plain(1.0, i32::MIN, None), "(q - 2147483648) * 1"),
            (
                EncodingInfo::Axis { axis: 3, count: 64, scales: [0.5, 2.0], offsets: [0, 0], bits: Some(4) },
                "(q + offset) * scale, 64 along axis 3: scales from 0.5 to 2, offsets from 0 to 0 in 4 bits",
            ),
            (EncodingInfo::Other(5), "encoding 5"),
        ] {
            assert_eq!(encoding.to_text(), expected);
        }
    }
}
