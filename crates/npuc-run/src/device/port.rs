//! Ports of graphs that another process computes: their numbers on this side are f32, over there what the port says.

use half::{bf16, f16};
use npuc::quant::Encoding;

/// A port of a graph.
#[derive(Clone, Debug, PartialEq)]
pub struct PortInfo {
    /// The tensor's name.
    pub name: String,
    /// Its extents.
    pub shape: Vec<usize>,
    /// What its numbers are.
    pub format: PortFormat,
}

/// What the numbers of a port are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PortFormat {
    /// f32.
    F32,
    /// f16.
    F16,
    /// bf16.
    Bf16,
    /// The signed 8-bit number itself.
    I8,
    /// The signed 32-bit number itself.
    I32,
    /// Signed 16 bits.
    Int16(Encoding),
    /// 16 bits.
    U16(Encoding),
    /// 8 bits.
    U8(Encoding),
}

impl PortFormat {
    /// The size of a number.
    const fn bytes(self) -> usize {
        match self {
            PortFormat::F32 | PortFormat::I32 => 4,
            PortFormat::F16 | PortFormat::Bf16 | PortFormat::Int16(_) | PortFormat::U16(_) => 2,
            PortFormat::I8 | PortFormat::U8(_) => 1,
        }
    }
}

impl PortInfo {
    /// The number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The size of its numbers.
    pub(super) fn len_bytes(&self) -> usize {
        self.format.bytes() * self.elements()
    }

    /// Appends the port's bytes: the nearest numbers, halves of whole ones away from zero, halves between floats to the even one,
    /// and beyond the range the last one (for f16 65504). NaN is not for whole numbers; it becomes 0.
    pub(super) fn put(&self, values: &[f32], to: &mut Vec<u8>) {
        match self.format {
            PortFormat::F32 => to.extend_from_slice(bytemuck::cast_slice(values)),
            PortFormat::F16 => {
                let largest = f16::MAX.to_f32();
                to.extend(values.iter().flat_map(|x| f16::from_f32(x.clamp(-largest, largest)).to_le_bytes()));
            }
            PortFormat::Bf16 => {
                let largest = bf16::MAX.to_f32();
                to.extend(values.iter().flat_map(|x| bf16::from_f32(x.clamp(-largest, largest)).to_le_bytes()));
            }
            // Conversions saturate.
            PortFormat::I8 => to.extend(values.iter().map(|x| x.round() as i8 as u8)),
            PortFormat::I32 => to.extend(values.iter().flat_map(|x| (x.round() as i32).to_le_bytes())),
            PortFormat::Int16(of) => to.extend(values.iter().flat_map(|x| (of.quantise(*x) as i16).to_le_bytes())),
            PortFormat::U16(of) => to.extend(values.iter().flat_map(|x| (of.quantise(*x) as u16).to_le_bytes())),
            PortFormat::U8(of) => to.extend(values.iter().map(|x| of.quantise(*x) as u8)),
        }
    }

    /// The numbers that the port's bytes mean; of I32, beyond 2^24 the nearest f32.
    pub(super) fn take(&self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        let fours = || bytes.chunks_exact(4).map(|x| [x[0], x[1], x[2], x[3]]);
        match self.format {
            PortFormat::F32 => fours().map(f32::from_le_bytes).collect(),
            PortFormat::I32 => fours().map(|four| i32::from_le_bytes(four) as f32).collect(),
            PortFormat::Bf16 => pairs().map(|pair| bf16::from_le_bytes(pair).to_f32()).collect(),
            PortFormat::I8 => bytes.iter().map(|&x| f32::from(x as i8)).collect(),
            PortFormat::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
            PortFormat::Int16(of) => pairs().map(|pair| of.real(i16::from_le_bytes(pair).into())).collect(),
            PortFormat::U16(of) => pairs().map(|pair| of.real(u16::from_le_bytes(pair).into())).collect(),
            PortFormat::U8(of) => bytes.iter().map(|&q| of.real(q.into())).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What enters a port, and what it then means.
    #[test]
    fn numbers_become_the_nearest() {
        let bf16_max = bf16::MAX.to_f32();
        // 1 + 2^-8 and 1 + 3 * 2^-8 lie between two numbers of bf16 each, of which 1 and 1 + 2^-6 are the even ones.
        let between = [1.0 + 2f32.powi(-8), 1.0 + 3.0 * 2f32.powi(-8), -3e38, f32::MAX, 0.3];
        let cases: [(PortFormat, &[f32], &[f32]); 5] = [
            (PortFormat::F32, &[0.3, -1e9], &[0.3, -1e9]),
            (PortFormat::F16, &[1e9, -1e9, 0.5], &[65504.0, -65504.0, 0.5]),
            (PortFormat::Bf16, &between, &[1.0, 1.0 + 2f32.powi(-6), -3.004_055_3e38, bf16_max, 0.300_781_25]),
            (PortFormat::I8, &[1.4, -1.5, 300.0, -300.0, f32::NAN], &[1.0, -2.0, 127.0, -128.0, 0.0]),
            (PortFormat::I32, &[7.0, -3.6, 1e20], &[7.0, -4.0, 2_147_483_647.0]),
        ];
        for (format, values, expected) in cases {
            let port = PortInfo { name: "p".into(), shape: vec![values.len()], format };
            let mut bytes = Vec::new();
            port.put(values, &mut bytes);
            assert_eq!(bytes.len(), port.len_bytes());
            let taken = port.take(&bytes);
            let close = |(have, expected): (&f32, &f32)| (have - expected).abs() <= expected.abs() * 1e-6;
            assert!(taken.iter().zip(expected).all(close), "{format:?}: {taken:?}");
        }
    }
}
