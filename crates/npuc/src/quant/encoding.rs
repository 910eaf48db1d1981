//! What the whole numbers of every value of a graph mean, whatever the target: what the host needs to compute as it does.

use serde::{Deserialize, Serialize};

use npuc_kernels::integer::Grid;

use super::groups::masked;
use super::{Scales, WeightFormat};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Graph, ValueId};

mod qualcomm;

pub use qualcomm::{Activation, Cache, Scheme, qualcomm};

/// The whole numbers of a value: `q` means `(q + offset) * scale` and lies between `low` and `high`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encoding {
    /// The size of a step.
    pub scale: f32,
    /// What is added to a number; zero is `-offset`.
    pub offset: i32,
    /// The smallest number.
    pub low: i32,
    /// The largest number.
    pub high: i32,
}

impl Encoding {
    /// Int16 of that scale, without an offset.
    pub const fn int16(scale: f32) -> Encoding {
        Encoding { scale, offset: 0, low: -32768, high: 32767 }
    }

    /// What a number means.
    pub fn real(&self, q: i32) -> f32 {
        (q + self.offset) as f32 * self.scale
    }

    /// The nearest number, halves away from zero, cut off at the ends.
    pub fn quantise(&self, x: f32) -> i32 {
        // Whole numbers of at most 17 bits: exact in f32.
        (x / self.scale).round().clamp(self.steps(self.low), self.steps(self.high)) as i32 - self.offset
    }

    /// The steps that the numbers stand for.
    pub fn grid(&self) -> Grid {
        Grid { scale: self.scale, low: self.steps(self.low), high: self.steps(self.high) }
    }

    /// What is taken from the steps so that they fit an int16.
    pub const fn centre(&self) -> i32 {
        let middle = if self.high > i16::MAX as i32 { 1 << 15 } else { 0 };
        middle + self.offset
    }

    fn steps(&self, q: i32) -> f32 {
        (q + self.offset) as f32
    }

    /// Whether a grid of this kind is one: steps above 0 and numbers that are 16 bits at most and reach zero.
    fn is_sound(&self) -> bool {
        let numbers = (0..=255 * 257).contains(&(i64::from(self.high) - i64::from(self.low)));
        let zero = self.offset.checked_neg().is_some_and(|zero| (self.low..=self.high).contains(&zero));
        let within = self.low >= i32::from(i16::MIN) && self.high <= i32::from(u16::MAX);
        numbers && zero && within && self.scale.is_finite() && self.scale > 0.0
    }
}

/// The numbers of values that are not whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Real {
    /// Results of operations stay in f32.
    F32,
    /// Results of operations are rounded to f16.
    F16,
    /// Results of operations are rounded to bf16.
    Bf16,
}

/// How every value of one graph is computed and stored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Encodings {
    /// By value; absent where it is never there in whole numbers.
    pub(super) encodings: Vec<Option<Encoding>>,
    /// By value, whether it is computed in [`Encodings::real`] numbers. One that has an encoding too is rounded for those
    /// who read it in whole numbers.
    pub(super) float: Vec<bool>,
    /// By value, whether it is the mask or a sum with it, which saturate by design.
    pub(super) masked: Vec<bool>,
    /// What float values are.
    pub(super) real: Real,
    /// How matrices of projections in whole numbers are rounded, whatever the format that they are stored in; absent
    /// where they are used as stored.
    pub(super) matrices: Option<WeightFormat>,
}

impl Encodings {
    /// Those of a graph whose every value is a real number of that kind.
    pub fn reals(graph: &Graph, real: Real) -> Encodings {
        let count = graph.values.len();
        Encodings {
            encodings: vec![None; count],
            float: vec![true; count],
            masked: masked(graph),
            real,
            matrices: None,
        }
    }

    /// The encoding of a value that is there in whole numbers.
    pub fn get(&self, value: ValueId) -> Option<Encoding> {
        self.encodings.get(value.index()).copied().flatten()
    }

    /// Whether any value is there in whole numbers.
    pub fn has_whole(&self) -> bool {
        self.encodings.iter().any(Option::is_some)
    }

    /// Whether a value is computed in real numbers.
    pub fn float(&self, value: ValueId) -> bool {
        self.float[value.index()]
    }

    /// Whether a value is the mask or a sum with it.
    pub fn masked(&self, value: ValueId) -> bool {
        self.masked[value.index()]
    }

    /// What float values are.
    pub fn real(&self) -> Real {
        self.real
    }

    /// How matrices of projections in whole numbers are rounded while they are read.
    pub fn matrices(&self) -> Option<WeightFormat> {
        self.matrices
    }

    /// The same with matrices that are rounded to that format while they are read, or used as stored.
    pub fn with_matrices(self, matrices: Option<WeightFormat>) -> Encodings {
        Encodings { matrices, ..self }
    }

    /// Refuses encodings that are not those of the graph.
    ///
    /// Errors: [`Code::BadRange`].
    pub fn check(&self, graph: &Graph) -> Result<()> {
        let fault = |message: &str| Diagnostic::error(Code::BadRange, message).subject(&graph.name);
        let count = graph.values.len();
        if [self.encodings.len(), self.float.len(), self.masked.len()] != [count; 3] {
            let fault = fault("the encodings are those of another graph");
            return Err(fault.need(format!("{count} values")).have(self.encodings.len()).into());
        }
        for (value, encoding) in graph.values.iter().zip(&self.encodings) {
            if let Some(encoding) = encoding.filter(|encoding| !encoding.is_sound()) {
                let fault = fault("the numbers of a value have no meaning").subject(&value.name);
                let need = "a scale above 0 and at most 65536 numbers of int16 or u16, zero among them";
                return Err(fault.need(need).have(format!("{encoding:?}")).into());
            }
        }
        Ok(())
    }
}

/// The encodings of a TFLite file with these scales: int16 without offsets, matrices rounded by rows to `matrices`, and
/// float arithmetic in f32.
pub fn tflite(graph: &Graph, scales: &Scales, matrices: WeightFormat) -> Encodings {
    Encodings {
        encodings: graph.ids().map(|id| scales.scale(id).map(Encoding::int16)).collect(),
        float: graph.ids().map(|id| scales.float(id)).collect(),
        masked: masked(graph),
        real: Real::F32,
        matrices: Some(matrices),
    }
}

#[cfg(test)]
mod tests;
