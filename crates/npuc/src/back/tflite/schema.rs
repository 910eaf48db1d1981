//! The tables of a TFLite file that npuc writes, by the field numbers of the public schema (`schema.fbs`, version 3).
//!
//! Only fields that differ from their defaults are written, as flatbuffers asks for.

use std::sync::Arc;

use flatbuffers::{FlatBufferBuilder, TableFinishedWIPOffset, WIPOffset};

/// A finished table.
pub(super) type Table = WIPOffset<TableFinishedWIPOffset>;

/// The file identifier.
pub(super) const IDENTIFIER: &str = "TFL3";
/// The schema's version.
pub(super) const VERSION: u32 = 3;

/// `TensorType`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum TensorType {
    /// IEEE single.
    Float32,
    /// IEEE half.
    Float16,
    /// 32-bit signed whole numbers: axes, shapes, permutations.
    Int32,
    /// 64-bit signed whole numbers: biases beside int16.
    Int64,
    /// 16-bit signed whole numbers.
    Int16,
    /// 8-bit signed whole numbers.
    Int8,
    /// 4-bit signed whole numbers, two a byte, the first in the low half.
    Int4,
}

impl TensorType {
    const fn code(self) -> i8 {
        match self {
            TensorType::Float32 => 0,
            TensorType::Float16 => 1,
            TensorType::Int32 => 2,
            TensorType::Int64 => 4,
            TensorType::Int16 => 7,
            TensorType::Int8 => 9,
            TensorType::Int4 => 17,
        }
    }
}

/// A built-in operator with its options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Builtin {
    Abs,
    Add,
    BatchMatMul {
        adj_y: bool,
    },
    Concatenation {
        axis: i32,
    },
    /// A window that moves by one pixel, without padding.
    Conv2d,
    Dequantize,
    Div,
    Exp,
    FullyConnected {
        keep_num_dims: bool,
        bias: bool,
    },
    /// By the error function, not by its approximation.
    Gelu,
    Logistic,
    Mean,
    Mul,
    Quantize,
    ReduceMax,
    Reshape,
    Rsqrt,
    Slice,
    Softmax,
    Sub,
    Sum,
    Transpose,
}

impl Builtin {
    /// `BuiltinOperator`.
    pub(super) const fn code(self) -> i32 {
        match self {
            Builtin::Add => 0,
            Builtin::Concatenation { .. } => 2,
            Builtin::Conv2d => 3,
            Builtin::Dequantize => 6,
            Builtin::FullyConnected { .. } => 9,
            Builtin::Logistic => 14,
            Builtin::Mul => 18,
            Builtin::Reshape => 22,
            Builtin::Softmax => 25,
            Builtin::Transpose => 39,
            Builtin::Mean => 40,
            Builtin::Sub => 41,
            Builtin::Div => 42,
            Builtin::Exp => 47,
            Builtin::Slice => 65,
            Builtin::Sum => 74,
            Builtin::Rsqrt => 76,
            Builtin::ReduceMax => 82,
            Builtin::Abs => 101,
            Builtin::Quantize => 114,
            Builtin::BatchMatMul { .. } => 126,
            Builtin::Gelu => 150,
        }
    }

    /// The version of the operator that operands of these types and these options need. Source: the table of versions
    /// by types that comes with the interpreter (`op_version.cc`).
    ///
    /// In float FULLY_CONNECTED keeps ranks from version 5 on and goes without a bias from version 6 on, and DEQUANTIZE
    /// takes halves and int16 from version 3 on. FULLY_CONNECTED of int16 with int8 has no version of its own.
    pub(super) fn version(self, operands: &[TensorType]) -> i32 {
        let int16 = operands.first() == Some(&TensorType::Int16);
        match self {
            Builtin::Dequantize => 3,
            Builtin::Quantize => 2,
            Builtin::FullyConnected { .. } if operands.get(1) == Some(&TensorType::Int4) => 13,
            Builtin::FullyConnected { .. } if operands.get(1) == Some(&TensorType::Int16) => 7,
            Builtin::FullyConnected { bias: false, .. } => 6,
            Builtin::FullyConnected { keep_num_dims: true, bias: true } => 5,
            Builtin::Sub | Builtin::Transpose if int16 => 5,
            Builtin::Conv2d | Builtin::Mul | Builtin::Slice if int16 => 4,
            Builtin::Add
            | Builtin::BatchMatMul { .. }
            | Builtin::Concatenation { .. }
            | Builtin::Logistic
            | Builtin::Mean
            | Builtin::ReduceMax
            | Builtin::Rsqrt
            | Builtin::Softmax
                if int16 =>
            {
                3
            }
            Builtin::Exp if int16 => 2,
            Builtin::Gelu if int16 => 2,
            Builtin::FullyConnected { keep_num_dims: false, bias: true }
            | Builtin::Abs
            | Builtin::Add
            | Builtin::BatchMatMul { .. }
            | Builtin::Concatenation { .. }
            | Builtin::Conv2d
            | Builtin::Div
            | Builtin::Exp
            | Builtin::Gelu
            | Builtin::Logistic
            | Builtin::Mean
            | Builtin::Mul
            | Builtin::ReduceMax
            | Builtin::Reshape
            | Builtin::Rsqrt
            | Builtin::Slice
            | Builtin::Softmax
            | Builtin::Sub
            | Builtin::Sum
            | Builtin::Transpose => 1,
        }
    }

    /// `BuiltinOptions` and the table, for operators that have one.
    fn options(self, fbb: &mut FlatBufferBuilder<'_>, operands: &[TensorType], shape: &[i32]) -> Option<(u8, Table)> {
        let plain = |fbb: &mut FlatBufferBuilder<'_>| table(fbb, |_| {});
        let int16 = operands.first() == Some(&TensorType::Int16);
        // Scales need not be powers of two.
        let any_scale = |fbb: &mut FlatBufferBuilder<'_>| table(fbb, |fbb| fbb.push_slot(slot(1), !int16, true));
        Some(match self {
            Builtin::Abs | Builtin::Logistic | Builtin::Rsqrt => return None,
            Builtin::Conv2d => {
                let valid_padding = 1i8;
                let fields = |fbb: &mut FlatBufferBuilder<'_>| {
                    fbb.push_slot(slot(0), valid_padding, 0);
                    [1, 2].into_iter().for_each(|stride| fbb.push_slot(slot(stride), 1i32, 0));
                };
                (1, table(fbb, fields))
            }
            Builtin::FullyConnected { keep_num_dims, .. } => {
                // Beside int16 weights the interpreter takes a bias for int32 unless it is told.
                let told = operands.get(1) == Some(&TensorType::Int16);
                let bias = if told { TensorType::Int64 } else { TensorType::Float32 };
                let fields = |fbb: &mut FlatBufferBuilder<'_>| {
                    fbb.push_slot(slot(2), keep_num_dims, false);
                    fbb.push_slot(slot(4), bias.code(), 0);
                };
                (8, table(fbb, fields))
            }
            Builtin::Softmax => (9, table(fbb, |fbb| fbb.push_slot(slot(0), 1.0f32, 0.0))),
            Builtin::Concatenation { axis } => (10, table(fbb, |fbb| fbb.push_slot(slot(0), axis, 0))),
            Builtin::Add => (11, any_scale(fbb)),
            Builtin::Reshape => {
                let shape = fbb.create_vector(shape);
                (17, table(fbb, |fbb| fbb.push_slot_always(slot(0), shape)))
            }
            Builtin::Mul => (21, plain(fbb)),
            Builtin::Transpose => (26, plain(fbb)),
            Builtin::Mean | Builtin::Sum | Builtin::ReduceMax => {
                (27, table(fbb, |fbb| fbb.push_slot(slot(0), true, false)))
            }
            Builtin::Sub => (28, any_scale(fbb)),
            Builtin::Div => (29, plain(fbb)),
            Builtin::Exp => (33, plain(fbb)),
            Builtin::Dequantize => (38, plain(fbb)),
            Builtin::Slice => (48, plain(fbb)),
            Builtin::Quantize => (89, plain(fbb)),
            Builtin::Gelu => (116, plain(fbb)),
            Builtin::BatchMatMul { adj_y } => (101, table(fbb, |fbb| fbb.push_slot(slot(1), adj_y, false))),
        })
    }
}

/// `OperatorCode`. Codes up to 126 stand in the old one-byte field as well, which older readers know; for the others that holds 127.
pub(super) fn operator_code(fbb: &mut FlatBufferBuilder<'_>, builtin: Builtin, version: i32) -> Table {
    table(fbb, |fbb| {
        fbb.push_slot(slot(0), builtin.code().min(i32::from(i8::MAX)) as i8, 0);
        fbb.push_slot(slot(2), version, 1);
        fbb.push_slot(slot(3), builtin.code(), 0);
    })
}

/// A tensor of a model.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    pub(super) name: String,
    pub(super) ty: TensorType,
    pub(super) shape: Vec<i32>,
    /// 0 for values that are computed or enter.
    pub(super) buffer: u32,
    /// None for what is not quantised, one for the whole, or one for each extent of the first axis.
    pub(super) scales: Arc<[f32]>,
}

/// `Tensor`, with `QuantizationParameters` if it has scales. All zero points are 0, and the axis of several scales is
/// the first, which is the default.
pub(super) fn tensor(fbb: &mut FlatBufferBuilder<'_>, info: &TensorInfo) -> Table {
    let quantization = (!info.scales.is_empty()).then(|| {
        let scales = fbb.create_vector(&info.scales);
        let zero_points = fbb.create_vector(&vec![0i64; info.scales.len()]);
        table(fbb, |fbb| {
            fbb.push_slot_always(slot(2), scales);
            fbb.push_slot_always(slot(3), zero_points);
        })
    });
    let shape = fbb.create_vector(&info.shape);
    let name = fbb.create_string(&info.name);
    table(fbb, |fbb| {
        fbb.push_slot_always(slot(0), shape);
        fbb.push_slot(slot(1), info.ty.code(), 0);
        fbb.push_slot(slot(2), info.buffer, 0);
        fbb.push_slot_always(slot(3), name);
        if let Some(quantization) = quantization {
            fbb.push_slot_always(slot(4), quantization);
        }
    })
}

/// An operator of a model, with the types of its operands and the shape of its result.
pub(super) struct Call<'a> {
    pub(super) builtin: Builtin,
    pub(super) inputs: &'a [i32],
    pub(super) output: i32,
    pub(super) types: &'a [TensorType],
    pub(super) shape: &'a [i32],
}

/// `Operator`; `code` is its place among the operator codes.
pub(super) fn operator(fbb: &mut FlatBufferBuilder<'_>, code: u32, call: &Call<'_>) -> Table {
    let inputs = fbb.create_vector(call.inputs);
    let outputs = fbb.create_vector(&[call.output]);
    let options = call.builtin.options(fbb, call.types, call.shape);
    table(fbb, |fbb| {
        fbb.push_slot(slot(0), code, 0);
        fbb.push_slot_always(slot(1), inputs);
        fbb.push_slot_always(slot(2), outputs);
        if let Some((kind, options)) = options {
            fbb.push_slot(slot(3), kind, 0);
            fbb.push_slot_always(slot(4), options);
        }
    })
}

/// `SubGraph`.
pub(super) fn subgraph(
    fbb: &mut FlatBufferBuilder<'_>,
    name: &str,
    tensors: &[Table],
    inputs: &[i32],
    outputs: &[i32],
    operators: &[Table],
) -> Table {
    let tensors = fbb.create_vector(tensors);
    let inputs = fbb.create_vector(inputs);
    let outputs = fbb.create_vector(outputs);
    let operators = fbb.create_vector(operators);
    let name = fbb.create_string(name);
    table(fbb, |fbb| {
        fbb.push_slot_always(slot(0), tensors);
        fbb.push_slot_always(slot(1), inputs);
        fbb.push_slot_always(slot(2), outputs);
        fbb.push_slot_always(slot(3), operators);
        fbb.push_slot_always(slot(4), name);
    })
}

/// `Buffer` without data.
pub(super) fn empty_buffer(fbb: &mut FlatBufferBuilder<'_>) -> Table {
    table(fbb, |_| {})
}

/// `Buffer` whose data comes later: the field holds `mark` where the offset to the data belongs, see [`field_place`].
pub(super) fn open_buffer(fbb: &mut FlatBufferBuilder<'_>, mark: u32) -> Table {
    table(fbb, |fbb| fbb.push_slot_always(slot(0), mark))
}

/// `Buffer` whose data lies outside the flatbuffer: `mark` stands for the offset from the file's start, which is filled in
/// once the flatbuffer's own size is known.
pub(super) fn outer_buffer(fbb: &mut FlatBufferBuilder<'_>, mark: u64, bytes: u64) -> Table {
    table(fbb, |fbb| {
        fbb.push_slot_always(slot(1), mark);
        fbb.push_slot_always(slot(2), bytes);
    })
}

/// Where the field `number` of the table at `table` is in a finished flatbuffer: a table begins with the distance back to
/// its list of fields, which holds the distance from the table to each.
pub(super) fn field_place(head: &[u8], table: usize, number: u16) -> Option<usize> {
    let number_at = |at: usize| Some(i32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let list = usize::try_from(i64::try_from(table).ok()? - i64::from(number_at(table)?)).ok()?;
    let entry = list + slot(number) as usize;
    let distance = u16::from_le_bytes(head.get(entry..entry + 2)?.try_into().ok()?);
    (distance > 0).then_some(table + distance as usize)
}

/// `Model`.
pub(super) fn model(
    fbb: &mut FlatBufferBuilder<'_>,
    codes: &[Table],
    subgraph: Table,
    description: &str,
    buffers: &[Table],
) -> Table {
    let codes = fbb.create_vector(codes);
    let subgraphs = fbb.create_vector(&[subgraph]);
    let description = fbb.create_string(description);
    let buffers = fbb.create_vector(buffers);
    table(fbb, |fbb| {
        fbb.push_slot(slot(0), VERSION, 0);
        fbb.push_slot_always(slot(1), codes);
        fbb.push_slot_always(slot(2), subgraphs);
        fbb.push_slot_always(slot(3), description);
        fbb.push_slot_always(slot(4), buffers);
    })
}

/// The place of a field in the list of fields that every table refers to.
const fn slot(field: u16) -> u16 {
    4 + 2 * field
}

fn table<'a>(fbb: &mut FlatBufferBuilder<'a>, fields: impl FnOnce(&mut FlatBufferBuilder<'a>)) -> Table {
    let start = fbb.start_table();
    fields(fbb);
    fbb.end_table(start)
}
