//! A graph in the whole numbers of its encodings, as the target computes it.
//!
//! Buffers hold the real numbers that whole ones mean, which f32 recovers exactly, so that everything which only moves
//! numbers is that of the float executor. Projections over int8, int4, LPBQ or rounded matrices and products of two
//! activations are computed in exact whole numbers and rounded once; every other operation takes the real
//! numbers in f32 and rounds its result once, a projection over another format of weights too.

use npuc_kernels::integer::{self, Grid};

use super::{Operand, Step, ops};
use crate::ir::ValueId;
use crate::tensor::Tensor;

use half::{bf16, f16};
use product::Product;

mod blocks;
mod prepare;
mod product;
mod torq;

#[cfg(test)]
mod tests;

pub(super) use prepare::prepare;

/// What turns the executor's steps into those of whole numbers.
#[derive(Debug)]
pub(super) struct Integer {
    /// What becomes of each input port.
    entries: Vec<Entry>,
    /// What is special about each step.
    rules: Vec<Rule>,
    /// The matrices of exact projections.
    matrices: Vec<product::Matrix>,
    /// For each output port the buffer of its rounded numbers, if it is computed in float.
    outputs: Vec<Option<usize>>,
    /// For each value, how many of its numbers were cut off by more than a step.
    saturated: Vec<u64>,
    /// Values whose numbers saturate by design.
    uncounted: Vec<bool>,
}

/// An input port.
#[derive(Debug)]
struct Entry {
    value: ValueId,
    /// Its numbers as they are read, and their buffer; absent if they are read as given.
    form: Option<(Form, usize)>,
    twins: Vec<Twin>,
}

/// A step.
#[derive(Debug, Default)]
struct Rule {
    /// Absent for copies of what leaves as it entered.
    value: Option<ValueId>,
    form: Option<Form>,
    product: Option<Product>,
    /// The place of a matrix in blocks that bf16 numbers are multiplied with.
    blocks: Option<usize>,
    /// How bf16 numbers are computed, where that is more than one rounding.
    torq: Option<torq::Arithmetic>,
    twins: Vec<Twin>,
}

/// How numbers are rounded.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    Whole(Grid),
    Half,
    /// Half precision that has no infinity: the mask.
    FiniteHalf,
    /// The upper half of a binary32.
    Brain,
}

/// A float value's numbers for those who read it in whole numbers.
#[derive(Clone, Copy, Debug)]
struct Twin {
    grid: Grid,
    buffer: usize,
}

impl Form {
    /// Rounds all numbers; gives how many were cut off.
    fn round(self, numbers: &mut [f32]) -> u64 {
        let to_half = |numbers: &mut [f32], limit: f32| {
            let mut cut = 0;
            for x in numbers {
                let half = f16::from_f32(x.clamp(-limit, limit)).to_f32();
                cut += u64::from(!half.is_finite());
                *x = half;
            }
            cut
        };
        match self {
            Form::Whole(grid) => integer::round(numbers, grid),
            Form::Half => to_half(numbers, f32::INFINITY),
            Form::FiniteHalf => to_half(numbers, f16::MAX.to_f32()),
            Form::Brain => {
                let mut cut = 0;
                for x in numbers {
                    *x = bf16::from_f32(*x).to_f32();
                    cut += u64::from(!x.is_finite());
                }
                cut
            }
        }
    }
}

impl Integer {
    /// Takes in the numbers of an input port and gives, if they are read in another form, their buffer.
    pub(super) fn enter(&mut self, port: usize, given: &[f32], rounded: &mut [Vec<f32>]) -> Option<usize> {
        let Entry { value, form, twins } = &self.entries[port];
        let value = *value;
        let (mut cut, mut buffer) = (0, None);
        if let Some((form, place)) = form {
            rounded[*place].copy_from_slice(given);
            cut = form.round(&mut rounded[*place]);
            buffer = Some(*place);
        }
        for twin in twins {
            let mut numbers = std::mem::take(&mut rounded[twin.buffer]);
            numbers.copy_from_slice(buffer.map_or(given, |buffer| &rounded[buffer]));
            cut += integer::round(&mut numbers, twin.grid);
            rounded[twin.buffer] = numbers;
        }
        self.count(value, cut);
        buffer
    }

    /// Computes a step into `out`.
    pub(super) fn compute<'a>(
        &mut self,
        number: usize,
        step: &'a Step,
        read: impl Fn(&'a Operand) -> &'a [f32],
        stored: &[Tensor],
        out: &mut [f32],
    ) {
        let Rule { value, form, product, blocks, torq, .. } = &self.rules[number];
        let value = *value;
        let cut = match (product, blocks, torq) {
            (Some(product), _, _) => product.compute(step, read, &self.matrices, out),
            (None, Some(stored_at), _) => {
                let bias = step.args.get(2).map(&read);
                blocks::project(read(&step.args[0]), &stored[*stored_at], bias, out)
            }
            (None, None, Some(arithmetic)) => torq::compute(*arithmetic, step, read, out),
            (None, None, None) => {
                ops::compute(step, read, stored, out);
                form.map_or(0, |form| form.round(out))
            }
        };
        if let Some(value) = value {
            self.count(value, cut);
        }
    }

    /// Rounds the result of a step for those who read it in whole numbers.
    pub(super) fn twins(&mut self, number: usize, out: &[f32], rounded: &mut [Vec<f32>]) {
        let Rule { value: Some(value), twins, .. } = &self.rules[number] else { return };
        let (value, mut cut) = (*value, 0);
        for twin in twins {
            rounded[twin.buffer].copy_from_slice(out);
            cut += integer::round(&mut rounded[twin.buffer], twin.grid);
        }
        self.count(value, cut);
    }

    fn count(&mut self, value: ValueId, cut: u64) {
        if !self.uncounted[value.index()] {
            self.saturated[value.index()] += cut;
        }
    }

    /// The buffer of an output port that is not where the step left it.
    pub(super) fn output(&self, port: usize) -> Option<usize> {
        self.outputs[port]
    }

    /// The values of which numbers were cut off, with how many.
    pub(super) fn saturated(&self) -> impl Iterator<Item = (ValueId, u64)> {
        (0u32..).zip(&self.saturated).filter(|(_, cut)| **cut > 0).map(|(value, &cut)| (ValueId(value), cut))
    }
}
