//! Number formats as chips take them: what activations and weights are computed in, and the precision of a whole model.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{DType, Shape};

/// A number format of a chip. Whether integers are signed or centred is the back end's business.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Number {
    /// IEEE 754 binary32.
    F32,
    /// IEEE 754 binary16.
    F16,
    /// The upper half of a binary32.
    Bf16,
    /// 16-bit fixed point.
    Int16,
    /// 8-bit fixed point.
    Int8,
    /// 4-bit fixed point.
    Int4,
    /// Blocks as GGUF stores them.
    Block(DType),
}

impl Number {
    const PLAIN: [Number; 6] = [Number::F32, Number::F16, Number::Bf16, Number::Int16, Number::Int8, Number::Int4];

    /// The name in target files and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Number::F32 => "f32",
            Number::F16 => "f16",
            Number::Bf16 => "bf16",
            Number::Int16 => "int16",
            Number::Int8 => "int8",
            Number::Int4 => "int4",
            Number::Block(dtype) => dtype.name(),
        }
    }

    /// The format of that [`Number::name`].
    pub fn from_name(name: &str) -> Option<Number> {
        let plain = Number::PLAIN.into_iter().find(|number| number.name() == name);
        plain.or_else(|| DType::from_name(name).map(Number::stored))
    }

    /// How a stored format is called here.
    pub const fn stored(dtype: DType) -> Number {
        match dtype {
            DType::F32 => Number::F32,
            DType::F16 => Number::F16,
            DType::BF16 => Number::Bf16,
            DType::Int8 => Number::Int8,
            DType::Int4 => Number::Int4,
            DType::Q4_0
            | DType::Q4_1
            | DType::Q5_0
            | DType::Q5_1
            | DType::Q8_0
            | DType::Q2K
            | DType::Q3K
            | DType::Q4K
            | DType::Q5K
            | DType::Q6K
            | DType::Lpbq4(_)
            | DType::Bw4(_) => Number::Block(dtype),
        }
    }

    /// Bits of an element; of a whole block over its elements for blocks, rounded up.
    pub const fn bits(self) -> u32 {
        match self {
            Number::F32 => 32,
            Number::F16 | Number::Bf16 | Number::Int16 => 16,
            Number::Int8 => 8,
            Number::Int4 => 4,
            Number::Block(dtype) => (8 * dtype.block_bytes()).div_ceil(dtype.block_len()) as u32,
        }
    }

    /// Whether elements carry an exponent of their own.
    pub const fn is_float(self) -> bool {
        match self {
            Number::F32 | Number::F16 | Number::Bf16 => true,
            Number::Int16 | Number::Int8 | Number::Int4 | Number::Block(_) => false,
        }
    }

    /// The stored format that the float graph has its weights in before they are quantised.
    pub const fn graph_dtype(self) -> DType {
        match self {
            Number::F16 => DType::F16,
            Number::Bf16 => DType::BF16,
            Number::F32 | Number::Int16 | Number::Int8 | Number::Int4 => DType::F32,
            Number::Block(dtype) => dtype,
        }
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Number, D::Error> {
        let name = String::deserialize(deserializer)?;
        Number::from_name(&name).ok_or_else(|| {
            let plain: Vec<&str> = Number::PLAIN.iter().map(|number| number.name()).collect();
            serde::de::Error::custom(format!("`{name}` is no number format; {} or a GGUF format", plain.join(", ")))
        })
    }
}

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// How many weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Granularity {
    /// All of a tensor, or none for floats.
    Tensor,
    /// Those of one output.
    Channel,
    /// That many along the inputs of one output.
    Group(usize),
}

impl std::fmt::Display for Granularity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Granularity::Tensor => f.write_str("per tensor"),
            Granularity::Channel => f.write_str("per channel"),
            Granularity::Group(len) => write!(f, "in groups of {len}"),
        }
    }
}

/// Number and granularity of a projection's weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightFormat {
    /// The number format.
    pub number: Number,
    /// How many share a scale.
    pub granularity: Granularity,
}

impl WeightFormat {
    /// The format of a weight that stays as it is stored.
    pub const fn stored(dtype: DType) -> WeightFormat {
        let number = Number::stored(dtype);
        let granularity = match number {
            Number::F32 | Number::F16 | Number::Bf16 | Number::Int16 => Granularity::Tensor,
            Number::Int8 | Number::Int4 => Granularity::Channel,
            Number::Block(dtype) => Granularity::Group(dtype.block_len()),
        };
        WeightFormat { number, granularity }
    }

    /// Bytes of a projection's weights `[out, in]`, with one 16-bit scale a group and one f32 scale a
    /// channel or tensor. `None` when the size overflows.
    pub fn bytes(self, shape: &Shape) -> Option<u64> {
        let elements = shape.elements()? as u64;
        let cols = shape.last().copied().unwrap_or(1) as u64;
        let rows = elements / cols.max(1);
        if let Number::Block(dtype) = self.number {
            let blocks = cols.div_ceil(dtype.block_len() as u64).checked_mul(dtype.block_bytes() as u64)?;
            return rows.checked_mul(blocks.checked_add(dtype.row_header_bytes() as u64)?);
        }
        let weights = elements.checked_mul(u64::from(self.number.bits()))?.div_ceil(8);
        if self.number.is_float() {
            return Some(weights);
        }
        let scales = match self.granularity {
            Granularity::Tensor => 4,
            Granularity::Channel => rows.checked_mul(4)?,
            Granularity::Group(len) => rows.checked_mul(cols.div_ceil(len.max(1) as u64))?.checked_mul(2)?,
        };
        weights.checked_add(scales)
    }
}

impl std::fmt::Display for WeightFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.number.is_float() || matches!(self.number, Number::Block(_)) {
            return f.write_str(self.number.name());
        }
        write!(f, "{} {}", self.number.name(), self.granularity)
    }
}

/// The formats of a whole model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Precision {
    /// The name on the command line.
    pub name: String,
    /// What activations are.
    pub activation: Number,
    /// What the weights of projections become; `None` keeps them as they are stored.
    pub weight: Option<WeightFormat>,
}

/// What a precision may look like, for messages.
const FORMS: &str =
    "FP, FP32, FP16, BF16, <4|8|16>W<8|16>A, <4|8|16>WFP, each integer form with -g<N> for groups of N, or stored";

impl Precision {
    /// Weights as they are stored, activations in `float`.
    pub fn stored(float: Number) -> Precision {
        Precision { name: "stored".into(), activation: float, weight: None }
    }

    /// Reads a precision. `FP` is the target's own `float` format; `8W16A` has 8-bit weights per channel and
    /// 16-bit activations, `4WFP-g32` 4-bit weights in groups of 32 and float activations.
    ///
    /// # Errors
    /// [`Code::BadArgument`] with the forms there are.
    pub fn parse(text: &str, float: Number) -> Result<Precision> {
        let upper = text.to_ascii_uppercase();
        if upper == "STORED" {
            return Ok(Precision::stored(float));
        }
        let floats = |number| (number, WeightFormat { number, granularity: Granularity::Tensor });
        let parsed = match upper.as_str() {
            "FP" => Some(floats(float)),
            "FP32" => Some(floats(Number::F32)),
            "FP16" => Some(floats(Number::F16)),
            "BF16" => Some(floats(Number::Bf16)),
            _ => integers(&upper, float),
        };
        let (activation, weight) = parsed.ok_or_else(|| {
            Diagnostic::error(Code::BadArgument, "npuc does not know this precision").need(FORMS).have(text)
        })?;
        Ok(Precision { name: upper.replace("-G", "-g"), activation, weight: Some(weight) })
    }

    /// The format of a projection's weights that are stored as `dtype`.
    pub fn weight_format(&self, dtype: DType) -> WeightFormat {
        self.weight.unwrap_or_else(|| WeightFormat::stored(dtype))
    }

    /// Bytes of an activation element.
    pub fn activation_bytes(&self) -> u64 {
        u64::from(self.activation.bits()) / 8
    }
}

fn integers(text: &str, float: Number) -> Option<(Number, WeightFormat)> {
    let (text, granularity) = match text.split_once("-G") {
        Some((text, len)) => (text, Granularity::Group(len.parse().ok().filter(|&len| len > 0)?)),
        None => (text, Granularity::Channel),
    };
    let (weight, activation) = text.split_once('W')?;
    let number = match weight {
        "4" => Number::Int4,
        "8" => Number::Int8,
        "16" => Number::Int16,
        _ => return None,
    };
    let activation = match activation {
        "8A" => Number::Int8,
        "16A" => Number::Int16,
        "FP" => float,
        _ => return None,
    };
    Some((activation, WeightFormat { number, granularity }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precisions() {
        let cases = [
            ("FP", "f16 f16"),
            ("fp32", "f32 f32"),
            ("BF16", "bf16 bf16"),
            ("8W16A", "int16 int8 per channel"),
            ("4w16a-g32", "int16 int4 in groups of 32"),
            ("16W16A", "int16 int16 per channel"),
            ("8W8A", "int8 int8 per channel"),
            ("4WFP-g128", "f16 int4 in groups of 128"),
            ("stored", "f16 stored"),
            ("4W16A-g0", "refused"),
            ("4W16A-g", "refused"),
            ("3W16A", "refused"),
            ("8W", "refused"),
            ("", "refused"),
            ("W", "refused"),
        ];
        for (text, expected) in cases {
            let said = match Precision::parse(text, Number::F16) {
                Ok(Precision { activation, weight: Some(weight), .. }) => format!("{} {weight}", activation.name()),
                Ok(Precision { activation, weight: None, .. }) => format!("{} stored", activation.name()),
                Err(_) => "refused".into(),
            };
            assert_eq!(said, expected, "{text}");
        }
    }

    #[test]
    fn bytes_of_weights() {
        let format = |number, granularity| WeightFormat { number, granularity };
        let cases = [
            (format(Number::F16, Granularity::Tensor), 2 * 64 * 96),
            (format(Number::Int8, Granularity::Tensor), 64 * 96 + 4),
            (format(Number::Int8, Granularity::Channel), 64 * 96 + 4 * 64),
            (format(Number::Int4, Granularity::Group(32)), 64 * 96 / 2 + 2 * 64 * 3),
            // A Q8_0 block is 34 bytes for 32 elements.
            (WeightFormat::stored(DType::Q8_0), 64 * 3 * 34),
        ];
        for (format, bytes) in cases {
            assert_eq!(format.bytes(&[64, 96].into()), Some(bytes), "{format}");
        }
        assert_eq!(format(Number::F32, Granularity::Tensor).bytes(&[usize::MAX, 2].into()), None);
    }
}
