//! Every operation of the IR as built-in operators of TFLite, all of which MediaTek's MDLA 5 takes.

use super::schema::Builtin;
use super::write::{Form, Writer};
use crate::diag::{Code, Diagnostic, Result};
use crate::ir::{Op, Value};

/// One operation with its operands' tensors and shapes.
pub(super) struct Call<'a> {
    /// The value that is computed, for its path and shape.
    pub(super) value: &'a Value,
    /// The tensors of the operands.
    pub(super) args: &'a [i32],
    /// The ranks of the operands.
    pub(super) ranks: &'a [usize],
    /// How the first operand is held.
    pub(super) form: Form,
    /// The tensor of the result.
    pub(super) result: i32,
}

/// Adds the operators that compute `op`.
///
/// Errors: an operation that has to be decomposed first ([`Code::Misfit`]).
pub(super) fn lower(writer: &mut Writer, op: &Op, call: &Call<'_>) -> Result<()> {
    let shape = super::dims(&call.value.ty.shape)?;
    let rank = shape.len();
    let plain = |writer: &mut Writer, builtin| writer.operator(builtin, call.args.to_vec(), call.result);
    // Operators whose attributes are operands of their own.
    let with = |writer: &mut Writer, builtin, attributes: &[i32]| {
        writer.operator(builtin, [call.args, attributes].concat(), call.result);
    };
    let reduce = |writer: &mut Writer, builtin, axis: usize| {
        let axis = writer.ints(&[axis as i32]);
        with(writer, builtin, &[axis]);
    };
    match op {
        Op::Linear {} => {
            let keep_num_dims = call.ranks.first().is_some_and(|&rank| rank != 2);
            plain(writer, Builtin::FullyConnected { keep_num_dims, bias: call.args.len() == 3 });
        }
        Op::PointwiseConv {} => conv(writer, &shape, call),
        Op::MatMul { transpose_b } => plain(writer, Builtin::BatchMatMul { adj_y: *transpose_b }),
        Op::Softmax {} => plain(writer, Builtin::Softmax),
        Op::Gelu {} => plain(writer, Builtin::Gelu),
        Op::Sigmoid {} => plain(writer, Builtin::Logistic),
        Op::Exp {} => plain(writer, Builtin::Exp),
        Op::Abs {} => plain(writer, Builtin::Abs),
        Op::Rsqrt {} => plain(writer, Builtin::Rsqrt),
        Op::Add {} => plain(writer, Builtin::Add),
        Op::Sub {} => plain(writer, Builtin::Sub),
        Op::Mul {} => plain(writer, Builtin::Mul),
        Op::Div {} => plain(writer, Builtin::Div),
        Op::Concat { axis } => plain(writer, Builtin::Concatenation { axis: *axis as i32 }),
        Op::Sum { axis } => reduce(writer, Builtin::Sum, *axis),
        Op::Mean { axis } => reduce(writer, Builtin::Mean, *axis),
        Op::Max { axis } => reduce(writer, Builtin::ReduceMax, *axis),
        Op::Slice { axis, start, len: _ } => {
            let mut begin = vec![0; rank];
            begin[*axis] = super::dims(&[*start])?[0];
            let (begin, size) = (writer.ints(&begin), writer.ints(&shape));
            with(writer, Builtin::Slice, &[begin, size]);
        }
        Op::Reshape { .. } => {
            let shape = writer.ints(&shape);
            with(writer, Builtin::Reshape, &[shape]);
        }
        Op::Transpose { perm } => {
            let perm: Vec<i32> = perm.iter().map(|&axis| axis as i32).collect();
            let perm = writer.ints(&perm);
            with(writer, Builtin::Transpose, &[perm]);
        }
        Op::Affine { scale, offset } => affine(writer, *scale, *offset, shape, call),
        Op::RmsNorm { .. }
        | Op::LayerNorm { .. }
        | Op::Rope {}
        | Op::Attention { .. }
        | Op::ShortConv {}
        | Op::Silu {} => return Err(no_operator(op, call)),
    }
    Ok(())
}

fn no_operator(op: &Op, call: &Call<'_>) -> crate::Error {
    Diagnostic::error(Code::Misfit, format!("TFLite has no operator for `{}`", op.name()))
        .subject(&call.value.name)
        .need("plain operations")
        .help("run the pass `decompose`, or the one for this operation")
        .into()
}

/// A convolution always has a bias: LiteRT's interpreter goes without one, but delegates and NNAPI, whose form
/// MediaTek's compiler follows, ask for it.
fn conv(writer: &mut Writer, shape: &[i32], call: &Call<'_>) {
    let mut args = call.args.to_vec();
    if args.len() == 2 {
        args.push(writer.zeros(shape[shape.len() - 1]));
    }
    writer.operator(Builtin::Conv2d, args, call.result);
}

/// `scale · x + offset`: a product, a sum or both.
fn affine(writer: &mut Writer, scale: f32, offset: f32, shape: Vec<i32>, call: &Call<'_>) {
    let Some(&x) = call.args.first() else { return };
    let int16 = call.form != Form::Real;
    if offset == 0.0 {
        let scale = writer.scalar(scale, int16);
        return writer.operator(Builtin::Mul, vec![x, scale], call.result);
    }
    let scaled = if scale == 1.0 {
        x
    } else {
        let form = match call.form {
            // Zeros need a scale too.
            Form::Int16 { scale: of } if scale == 0.0 => Form::Int16 { scale: of },
            Form::Int16 { scale: of } => Form::Int16 { scale: of * scale.abs() },
            Form::Real => Form::Real,
        };
        let factor = writer.scalar(scale, int16);
        let scaled = writer.value(format!("{}/affine.{}.scaled", call.value.name, call.result), form, shape);
        writer.operator(Builtin::Mul, vec![x, factor], scaled);
        scaled
    };
    let offset = writer.scalar(offset, int16);
    writer.operator(Builtin::Add, vec![scaled, offset], call.result);
}
