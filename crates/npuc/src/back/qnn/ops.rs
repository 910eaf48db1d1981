//! One function per kind of operation: its name, parameters and operands in QNN.
//!
//! Names and parameters are those of the operations that were executed in the vendor's emulation.

use super::description::{DataType, Param, Role};
use super::emit::{Emitter, Numbers, RANK};
use super::weights::FilterEncoding;
use crate::diag::{Code, Diagnostic, Result};
use crate::exec::to_f32;
use crate::ir::{Def, Op, ValueId};
use crate::tensor::DType;

/// Whether an operation of the IR has a form here.
pub(crate) fn emits(op: &str) -> bool {
    let others = ["attention", "short_conv", "silu", "exp", "abs", "rsqrt", "div", "sum", "mean", "max"];
    Op::NAMES.contains(&op) && !others.contains(&op)
}

/// Adds the nodes that compute a value.
pub(super) fn emit(e: &mut Emitter<'_>, id: ValueId, op: &Op, args: &[ValueId]) -> Result<()> {
    match op {
        Op::RmsNorm { eps } => norm(e, id, args, "RmsNorm", *eps),
        Op::LayerNorm { eps } => norm(e, id, args, "LayerNorm", *eps),
        Op::Gelu {} => plain(e, id, args, "Gelu", Vec::new()),
        Op::Linear {} | Op::PointwiseConv {} => projection(e, id, args),
        Op::Rope {} => rope(e, id, args),
        Op::MatMul { transpose_b } => {
            let params = vec![("transpose_in0", Param::Bool(false)), ("transpose_in1", Param::Bool(*transpose_b))];
            plain(e, id, args, "MatMul", params)
        }
        Op::Softmax {} => plain(e, id, args, "Softmax", vec![("axis", Param::U32(RANK as u32 - 1))]),
        Op::Sigmoid {} => plain(e, id, args, "Sigmoid", Vec::new()),
        Op::Affine { scale, offset } => affine(e, id, args[0], *scale, *offset),
        Op::Add {} => plain(e, id, args, "ElementWiseAdd", Vec::new()),
        Op::Sub {} => plain(e, id, args, "ElementWiseSubtract", Vec::new()),
        Op::Mul {} => plain(e, id, args, "ElementWiseMultiply", Vec::new()),
        Op::Concat { axis } => {
            let axis = Param::U32(axis_of(e, id, *axis));
            plain(e, id, args, "Concat", vec![("axis", axis)])
        }
        Op::Slice { axis, start, len } => slice(e, id, args, *axis, *start, *len),
        Op::Reshape { .. } => reshape(e, id, args[0]),
        Op::Transpose { perm } => {
            let front = RANK - perm.len();
            let perm = (0..front).chain(perm.iter().map(|axis| axis + front)).map(|axis| axis as i64).collect();
            let perm = e.list("perm", DataType::U32, vec![RANK as u32], perm);
            plain(e, id, args, "Transpose", vec![("perm", perm)])
        }
        Op::Attention { .. }
        | Op::ShortConv {}
        | Op::Silu {}
        | Op::Exp {}
        | Op::Abs {}
        | Op::Rsqrt {}
        | Op::Div {}
        | Op::Sum { .. }
        | Op::Mean { .. }
        | Op::Max { .. } => Err(no_form(e, id, op)),
    }
}

fn no_form(e: &Emitter<'_>, id: ValueId, op: &Op) -> crate::Error {
    Diagnostic::error(Code::UnsupportedOp, format!("`{}` has no form in npuc's QNN graphs", op.name()))
        .subject(e.path(id))
        .need("operations that were executed in the vendor's emulation")
        .help("see `npuc targets sm8650` for the operations")
        .into()
}

/// An axis of a value among those of rank 4.
fn axis_of(e: &Emitter<'_>, id: ValueId, axis: usize) -> u32 {
    (axis + RANK - e.value(id).ty.shape.len()) as u32
}

/// An operand in the numbers of the result: a computed value, or a weight with as many extents.
fn operand(e: &mut Emitter<'_>, arg: ValueId, half: bool) -> Result<usize> {
    let value = e.value(arg);
    if value.def != Def::Weight {
        return e.read(arg, half);
    }
    let (name, shape) = (value.name.clone(), e.extents(arg)?);
    static_weight(e, arg, &name, half, shape)
}

fn static_weight(e: &mut Emitter<'_>, arg: ValueId, name: &str, half: bool, shape: Vec<u32>) -> Result<usize> {
    e.weight(arg)?;
    let numbers = if half { Numbers::HALF } else { e.whole_numbers(arg)? };
    Ok(e.constant(name, Role::Weight(name.to_owned()), numbers, shape))
}

/// An operation whose operands are read as they are.
fn plain(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId], op: &str, params: Vec<(&str, Param)>) -> Result<()> {
    let half = e.is_half(id);
    let inputs = args.iter().map(|&arg| operand(e, arg, half)).collect::<Result<_>>()?;
    let result = e.result(id)?;
    e.node(e.path(id), op, params, inputs, result);
    e.finish(id, result)
}

/// The library normalises rows in half precision wrongly, without a word, where several extents before them are above 1
/// (`[1, 4, 32, 64]`, tried on v75 and v79), so all rows are put into one extent first.
fn norm(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId], op: &str, eps: f32) -> Result<()> {
    let half = e.is_half(id);
    let x = operand(e, args[0], half)?;
    let extents = e.extents(id)?;
    let rows = vec![1, 1, extents[..RANK - 1].iter().product(), extents[RANK - 1]];
    let is_flat = rows == extents;
    let x = if is_flat { x } else { e.reshaped(x, &format!("{}.rows", e.path(id)), rows.clone()) };
    let mut inputs = vec![x];
    for &arg in &args[1..] {
        let (name, shape) = (e.value(arg).name.clone(), e.value(arg).ty.shape.to_vec());
        let shape = shape.iter().map(|&extent| extent as u32).collect();
        inputs.push(static_weight(e, arg, &name, half, shape)?);
    }
    let axes = e.list("axes", DataType::U32, vec![1], vec![RANK as i64 - 1]);
    let result = e.result(id)?;
    let params = vec![("axes", axes), ("epsilon", Param::F32(eps))];
    if is_flat {
        e.node(e.path(id), op, params, inputs, result);
        return e.finish(id, result);
    }
    let name = format!("{}.flat", e.path(id));
    let flat = e.tensor(name.clone(), Role::Native, e.held(result), rows);
    e.node(name, op, params, inputs, flat);
    e.node(e.path(id), "Reshape", Vec::new(), vec![flat], result);
    e.finish(id, result)
}

/// A convolution with a window of 1 x 1: for FullyConnected the library gives garbage with weights in blocks.
fn projection(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId]) -> Result<()> {
    let half = e.is_half(id);
    let x = operand(e, args[0], half)?;
    let matrix = e.weight(args[1])?;
    let name = e.value(args[1]).name.clone();
    let role = if half { Role::FloatFilter(name.clone()) } else { Role::Filter(name.clone()) };
    let dtype = check_format(e, id, &role, matrix.dtype, half)?.dtype();
    let &[outputs, inputs] = &*matrix.shape else { return Err(not_a_matrix(&name)) };
    let shape = vec![1, 1, inputs as u32, outputs as u32];
    let filter = e.constant(&name, role, Numbers { dtype, encoding: None }, shape);
    let params = convolution(e);
    let result = e.result(id)?;
    let Some(&bias) = args.get(2) else {
        e.node(e.path(id), "Conv2d", params, vec![x, filter], result);
        return e.finish(id, result);
    };
    // The bias is added after the convolution, whose own numbers reach as much further as the bias does.
    let numbers = to_f32(&e.weight(bias)?);
    let low = numbers.iter().copied().fold(0.0, f32::min);
    let high = numbers.iter().copied().fold(0.0, f32::max);
    let before = match e.encodings.get(id).filter(|_| !half) {
        None => Numbers::HALF,
        Some(own) => Numbers::reaching(own.real(own.low) - high, own.real(own.high) - low),
    };
    let bias_name = e.value(bias).name.clone();
    let added = if half { Numbers::HALF } else { Numbers::reaching(low, high) };
    let bias = e.constant(&bias_name, Role::Weight(bias_name.clone()), added, vec![1, 1, 1, outputs as u32]);
    let shape = e.extents(id)?;
    let product = e.tensor(format!("{}.product", e.path(id)), Role::Native, before, shape);
    e.node(format!("{}.product", e.path(id)), "Conv2d", params, vec![x, filter], product);
    e.node(e.path(id), "ElementWiseAdd", Vec::new(), vec![product, bias], result);
    e.finish(id, result)
}

fn convolution(e: &mut Emitter<'_>) -> Vec<(&'static str, Param)> {
    let ones = e.list("ones", DataType::U32, vec![2], vec![1, 1]);
    let pads = e.list("zeros", DataType::U32, vec![2, 2], vec![0, 0, 0, 0]);
    vec![("stride", ones.clone()), ("pad_amount", pads), ("group", Param::U32(1)), ("dilation", ones)]
}

fn not_a_matrix(name: &str) -> crate::Error {
    Diagnostic::error(Code::WrongShape, "the weight of a projection is no matrix").subject(name).into()
}

/// Refuses a filter that the convolution does not multiply with such activations.
fn check_format(e: &Emitter<'_>, id: ValueId, role: &Role, stored: DType, half: bool) -> Result<FilterEncoding> {
    let activations = if half { DataType::F16 } else { DataType::U16 };
    let encoding = FilterEncoding::in_role(role, stored).filter(|encoding| encoding.goes_with(activations));
    Ok(encoding.ok_or_else(|| {
        let (activations, need) = match half {
            true => ("f16", "f16, int8, int4, q4_0, q4_1, bw4 or lpbq4 in groups of at most 128"),
            false => ("whole-number", "int8, int4 or lpbq4"),
        };
        let message = format!("the NPU does not multiply {activations} activations with weights in this format");
        let fault = Diagnostic::error(Code::UnsupportedFormat, message).subject(e.path(id)).need(need).have(stored);
        fault.help("build with a recipe, e.g. --recipe w4a16-lpbq-g32 or f16-bw4-g32")
    })?)
}

/// The tables have rank 3 in QNN.
fn rope(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId]) -> Result<()> {
    let half = e.is_half(id);
    let x = operand(e, args[0], half)?;
    let cos = e.rank_3(args[1], half)?;
    let sin = e.rank_3(args[2], half)?;
    let dim = *e.value(id).ty.shape.last().expect("shapes have an extent") as u32;
    let params = vec![("interleaved", Param::Bool(false)), ("rotary_embedding_dim", Param::U32(dim))];
    let result = e.result(id)?;
    e.node(e.path(id), "RotaryEmbedding", params, vec![x, cos, sin], result);
    e.finish(id, result)
}

fn affine(e: &mut Emitter<'_>, id: ValueId, x: ValueId, scale: f32, offset: f32) -> Result<()> {
    let half = e.is_half(id);
    let mut value = e.read(x, half)?;
    let result = e.result(id)?;
    if offset == 0.0 {
        let factor = scalar(e, scale, half);
        e.node(e.path(id), "ElementWiseMultiply", Vec::new(), vec![value, factor], result);
        return e.finish(id, result);
    }
    if scale != 1.0 {
        let numbers = match e.encodings.get(id).filter(|_| !half) {
            None => Numbers::HALF,
            Some(own) => Numbers::reaching(own.real(own.low) - offset, own.real(own.high) - offset),
        };
        let shape = e.extents(id)?;
        let product = e.tensor(format!("{}.product", e.path(id)), Role::Native, numbers, shape);
        let factor = scalar(e, scale, half);
        e.node(format!("{}.product", e.path(id)), "ElementWiseMultiply", Vec::new(), vec![value, factor], product);
        value = product;
    }
    let summand = scalar(e, offset, half);
    e.node(e.path(id), "ElementWiseAdd", Vec::new(), vec![value, summand], result);
    e.finish(id, result)
}

/// One number that is multiplied with or added to all of a value.
fn scalar(e: &mut Emitter<'_>, number: f32, half: bool) -> usize {
    let numbers = if half { Numbers::HALF } else { Numbers::reaching(number, number) };
    e.constant("scalar", Role::Reals(vec![number]), numbers, vec![1; RANK])
}

fn slice(e: &mut Emitter<'_>, id: ValueId, args: &[ValueId], axis: usize, start: usize, len: usize) -> Result<()> {
    let cut = axis_of(e, id, axis) as usize;
    let extents = e.extents(args[0])?;
    let range = |(place, &extent): (usize, &u32)| match place == cut {
        true => [start as i64, (start + len) as i64, 1],
        false => [0, i64::from(extent), 1],
    };
    let ranges: Vec<i64> = extents.iter().enumerate().flat_map(range).collect();
    let ranges = e.list("ranges", DataType::I32, vec![RANK as u32, 3], ranges);
    plain(e, id, args, "StridedSlice", vec![("ranges", ranges)])
}

/// Extents that only differ by ones in front are the same in QNN; then the operand's tensor is the result's.
fn reshape(e: &mut Emitter<'_>, id: ValueId, x: ValueId) -> Result<()> {
    let half = e.is_half(id);
    let from = operand(e, x, half)?;
    if e.value(x).def != Def::Weight
        && e.extents(x)? == e.extents(id)?
        && !e.leaves(id)
        && e.numbers(id)? == e.held(from)
    {
        e.know(id, from);
        return Ok(());
    }
    let result = e.result(id)?;
    e.node(e.path(id), "Reshape", Vec::new(), vec![from], result);
    e.finish(id, result)
}
