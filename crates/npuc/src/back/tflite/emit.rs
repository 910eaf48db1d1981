//! The tensors and operators of a graph. A value is there in f32, in int16, or in both where float
//! arithmetic meets the other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::ops;
use super::schema::Builtin;
use super::write::{Form, TfliteFile, Writer};
use super::{Storage, dims, filters, output_names, weight};
use crate::diag::{Code, Diagnostic, Result};
use crate::exec::to_f32;
use crate::ir::{Def, Graph, Op, Value, ValueId};
use crate::quant::{self, Scales, WeightFormat};
use crate::tensor::Tensor;

/// [`super::emit`] of a graph that was checked.
pub(super) fn emit(
    graph: &Graph,
    weights: &BTreeMap<String, Tensor>,
    storage: Storage<'_>,
    outer_buffers: bool,
) -> Result<TfliteFile> {
    let count = graph.values.len();
    let scales = match storage {
        Storage::F32 | Storage::F16 => None,
        Storage::Integer { weights: _, ranges } => Some(quant::scales(graph, ranges, weights)?),
    };
    let mut emitter = Emitter {
        graph,
        weights,
        storage,
        scales,
        ports: output_names(graph)?,
        writer: Writer::new(),
        real: vec![None; count],
        whole: vec![None; count],
        matrices: BTreeMap::new(),
        filters: filters(graph)?,
    };
    let mut inputs = Vec::new();
    for (id, value) in graph.ids().zip(&graph.values) {
        match &value.def {
            Def::Input => inputs.push(emitter.computed(id, value.name.clone())?),
            // Written where it is used, in the form that is used.
            Def::Weight => {}
            Def::Op { op, args } => emitter.operation(id, op, args)?,
        }
    }
    let outputs = graph.outputs.iter().map(|output| emitter.port(output.value)).collect::<Result<Vec<i32>>>()?;
    emitter.writer.finish(&graph.name, &inputs, &outputs, outer_buffers)
}

struct Emitter<'a> {
    graph: &'a Graph,
    weights: &'a BTreeMap<String, Tensor>,
    storage: Storage<'a>,
    /// `None` if all is in f32.
    scales: Option<Scales>,
    /// The names of the values that leave.
    ports: BTreeMap<ValueId, &'a str>,
    writer: Writer,
    /// The tensors of the values that are there in f32, and in int16.
    real: Vec<Option<i32>>,
    whole: Vec<Option<i32>>,
    /// The tensors and scales of the matrices in whole numbers.
    matrices: BTreeMap<ValueId, (i32, Arc<[f32]>)>,
    /// The matrices that are written as filters of convolutions.
    filters: BTreeSet<ValueId>,
}

impl Emitter<'_> {
    /// How a value enters or is computed.
    fn form(&self, id: ValueId) -> Result<Form> {
        match &self.scales {
            Some(scales) if !scales.float(id) => Ok(Form::Int16 { scale: self.scale(id)? }),
            Some(_) | None => Ok(Form::Real),
        }
    }

    /// The extents of a value's tensor.
    fn shape(&self, id: ValueId) -> Result<Vec<i32>> {
        let shape = dims(&self.graph.value(id).ty.shape)?;
        Ok(if self.filters.contains(&id) { vec![shape[0], 1, 1, shape[1]] } else { shape })
    }

    /// The scale of a value in int16.
    fn scale(&self, id: ValueId) -> Result<f32> {
        self.scales.as_ref().and_then(|scales| scales.scale(id)).ok_or_else(|| {
            let fault = Diagnostic::error(Code::BadRange, "a value has no scale");
            fault.subject(&self.graph.value(id).name).need(format!("a scale of {id}")).into()
        })
    }

    /// The tensor of a value that enters or is computed.
    fn computed(&mut self, id: ValueId, name: String) -> Result<i32> {
        let form = self.form(id)?;
        let tensor = self.writer.value(name, form, dims(&self.graph.value(id).ty.shape)?);
        match form {
            Form::Real => self.real[id.index()] = Some(tensor),
            Form::Int16 { .. } => self.whole[id.index()] = Some(tensor),
        }
        Ok(tensor)
    }

    /// The name of a computed value: that of the port if it leaves as it is computed.
    fn name(&self, id: ValueId, op: &Op) -> String {
        let quantised = self.scales.as_ref().is_some_and(|scales| scales.float(id));
        match self.ports.get(&id) {
            Some(&port) if !quantised => port.to_owned(),
            Some(_) | None => format!("{}/{}.{}", self.graph.value(id).name, op.name(), id.0),
        }
    }

    fn operation(&mut self, id: ValueId, op: &Op, args: &[ValueId]) -> Result<()> {
        let form = self.form(id)?;
        let operands = match (op, form) {
            (op, Form::Int16 { .. }) if op.is_projection() => self.projection(args)?,
            (_, Form::Int16 { .. }) => args.iter().map(|&arg| self.in_int16(arg)).collect::<Result<_>>()?,
            (_, Form::Real) => args.iter().map(|&arg| self.in_real(arg)).collect::<Result<_>>()?,
        };
        let first = match (args.first(), form) {
            (Some(&arg), Form::Int16 { .. }) => Form::Int16 { scale: self.scale(arg)? },
            (Some(_) | None, form) => form,
        };
        let result = self.computed(id, self.name(id, op))?;
        let ranks: Vec<usize> = args.iter().map(|&arg| self.graph.value(arg).ty.shape.len()).collect();
        let call = ops::Call { value: self.graph.value(id), args: &operands, ranks: &ranks, form: first, result };
        ops::lower(&mut self.writer, op, &call)
    }

    /// The tensor that leaves.
    fn port(&mut self, id: ValueId) -> Result<i32> {
        if self.scales.is_some() { self.in_int16(id) } else { self.in_real(id) }
    }

    /// A value as an operand of float arithmetic.
    fn in_real(&mut self, id: ValueId) -> Result<i32> {
        if let Some(tensor) = self.real[id.index()] {
            return Ok(tensor);
        }
        let value = self.graph.value(id);
        let shape = self.shape(id)?;
        let tensor = match (self.whole[id.index()], self.storage) {
            (Some(whole), _) => {
                let name = format!("{}/dequantize.{}", value.name, id.0);
                let tensor = self.writer.value(name, Form::Real, shape);
                self.writer.operator(Builtin::Dequantize, vec![whole], tensor);
                tensor
            }
            (None, Storage::F16 | Storage::Integer { .. }) if shape.len() > 1 => {
                self.writer.half_weight(value.name.clone(), shape, weight(self.weights, value)?)?
            }
            (None, Storage::F32 | Storage::F16 | Storage::Integer { .. }) => {
                self.writer.weight(value.name.clone(), shape, weight(self.weights, value)?)
            }
        };
        self.real[id.index()] = Some(tensor);
        Ok(tensor)
    }

    /// A value as an operand of arithmetic in int16.
    fn in_int16(&mut self, id: ValueId) -> Result<i32> {
        if let Some(tensor) = self.whole[id.index()] {
            return Ok(tensor);
        }
        let value = self.graph.value(id);
        let (scale, shape) = (self.scale(id)?, dims(&value.ty.shape)?);
        let tensor = match (self.real[id.index()], &value.def) {
            (_, Def::Weight) => {
                let tensor = weight(self.weights, value)?;
                self.writer.whole_weight(value.name.clone(), shape, tensor, WeightFormat::Int16, [scale].into())
            }
            (Some(real), Def::Input | Def::Op { .. }) => {
                let port = self.ports.get(&id).map(|&port| port.to_owned());
                let name = port.unwrap_or_else(|| format!("{}/quantize.{}", value.name, id.0));
                let tensor = self.writer.value(name, Form::Int16 { scale }, shape);
                self.writer.operator(Builtin::Quantize, vec![real], tensor);
                tensor
            }
            (None, Def::Input | Def::Op { .. }) => return Err(not_a_weight(value)),
        };
        self.whole[id.index()] = Some(tensor);
        Ok(tensor)
    }

    /// The operands of a projection in int16. There always is a bias: without one the interpreter sums int8 weights in 32
    /// bits, which 516 columns can leave.
    fn projection(&mut self, args: &[ValueId]) -> Result<Vec<i32>> {
        let &[x, matrix, ref bias @ ..] = args else {
            return Err(Diagnostic::error(Code::IrInvalid, "a projection has two operands or three")
                .have(args.len())
                .into());
        };
        let (input, scale) = (self.in_int16(x)?, self.scale(x)?);
        let (tensor, scales) = self.matrix(matrix)?;
        let products: Arc<[f32]> = scales.iter().map(|of_row| of_row * scale).collect();
        let (name, numbers) = match bias.first() {
            Some(&bias) => {
                let value = self.graph.value(bias);
                if value.def != Def::Weight {
                    return Err(not_a_weight(value));
                }
                (value.name.clone(), bias_numbers(&value.name, &weight(self.weights, value)?, &scales, scale)?)
            }
            None => (format!("{}/bias", self.graph.value(matrix).name), vec![0; scales.len()]),
        };
        Ok(vec![input, tensor, self.writer.bias(name, &numbers, products)])
    }

    /// A matrix `[out, in]` with a scale for each output channel.
    fn matrix(&mut self, id: ValueId) -> Result<(i32, Arc<[f32]>)> {
        if let Some((tensor, scales)) = self.matrices.get(&id) {
            return Ok((*tensor, Arc::clone(scales)));
        }
        let value = self.graph.value(id);
        let (Def::Weight, Storage::Integer { weights: format, ranges: _ }) = (&value.def, self.storage) else {
            return Err(not_a_weight(value));
        };
        let stored = weight(self.weights, value)?;
        let format = WeightFormat::of_stored(stored.dtype).unwrap_or(format);
        let scales: Arc<[f32]> = quant::row_scales(&value.name, &stored, format)?.into();
        let shape = self.shape(id)?;
        let tensor = self.writer.whole_weight(value.name.clone(), shape, stored, format, Arc::clone(&scales));
        self.matrices.insert(id, (tensor, Arc::clone(&scales)));
        Ok((tensor, scales))
    }
}

/// A bias in steps of the products that it is added to.
///
/// Errors: [`Code::BadRange`] for steps beyond 2^46: the interpreter multiplies sums of less than 2^47.
fn bias_numbers(name: &str, bias: &Tensor, scales: &[f32], input_scale: f32) -> Result<Vec<i64>> {
    const LIMIT: f64 = (1u64 << 46) as f64;
    let steps = to_f32(bias).into_iter().zip(scales).map(|(b, &scale)| {
        // The scale that the file states, in f32.
        let steps = (f64::from(b) / f64::from(scale * input_scale)).round();
        (steps.abs() <= LIMIT).then_some(steps as i64).ok_or_else(|| {
            let fault = Diagnostic::error(Code::BadRange, "a bias is too large beside its row of weights");
            fault
                .subject(name)
                .need("at most 2^46 steps of input and weight")
                .have(format!("{b}, {steps:e} steps"))
                .into()
        })
    });
    steps.collect()
}

fn not_a_weight(value: &Value) -> crate::Error {
    Diagnostic::error(Code::Misfit, "matrices and biases of projections in whole numbers are weights")
        .subject(&value.name)
        .need("a weight")
        .have(&value.ty)
        .into()
}
