//! Ports of graphs that another process computes: their numbers on this side are f32, over there what the port says.

use half::f16;
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
            PortFormat::F32 => 4,
            PortFormat::F16 | PortFormat::Int16(_) | PortFormat::U16(_) => 2,
            PortFormat::U8(_) => 1,
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

    /// Appends the port's bytes: the nearest numbers, halves of whole ones away from zero, and beyond the range the last one (for
    /// f16 65504). NaN is not for whole numbers; it becomes 0.
    pub(super) fn put(&self, values: &[f32], to: &mut Vec<u8>) {
        match self.format {
            PortFormat::F32 => to.extend_from_slice(bytemuck::cast_slice(values)),
            PortFormat::F16 => {
                let largest = f16::MAX.to_f32();
                to.extend(values.iter().flat_map(|x| f16::from_f32(x.clamp(-largest, largest)).to_le_bytes()));
            }
            PortFormat::Int16(of) => to.extend(values.iter().flat_map(|x| (of.quantise(*x) as i16).to_le_bytes())),
            PortFormat::U16(of) => to.extend(values.iter().flat_map(|x| (of.quantise(*x) as u16).to_le_bytes())),
            PortFormat::U8(of) => to.extend(values.iter().map(|x| of.quantise(*x) as u8)),
        }
    }

    /// The numbers that the port's bytes mean.
    pub(super) fn take(&self, bytes: &[u8]) -> Vec<f32> {
        let pairs = || bytes.chunks_exact(2).map(|pair| [pair[0], pair[1]]);
        match self.format {
            PortFormat::F32 => bytes.chunks_exact(4).map(|x| f32::from_le_bytes([x[0], x[1], x[2], x[3]])).collect(),
            PortFormat::F16 => pairs().map(|pair| f16::from_le_bytes(pair).to_f32()).collect(),
            PortFormat::Int16(of) => pairs().map(|pair| of.real(i16::from_le_bytes(pair).into())).collect(),
            PortFormat::U16(of) => pairs().map(|pair| of.real(u16::from_le_bytes(pair).into())).collect(),
            PortFormat::U8(of) => bytes.iter().map(|&q| of.real(q.into())).collect(),
        }
    }
}
