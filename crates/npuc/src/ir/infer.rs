//! Type inference: the result type of every operation, or why it has none.
//!
//! Results are f32, and so are operands, with two exceptions for weights: `linear` and `pointwise_conv` take
//! their weight in any format, and their bias, the gain of `rms_norm`, weight and bias of `short_conv`, the operand of
//! `transpose` and both operands of `add`, `sub`, `mul` and `div` may be f32, f16 or bf16.

use super::{Op, Type};
use crate::tensor::{DType, Shape, byte_len};

/// The largest rank of a value.
pub const MAX_RANK: usize = 4;

/// Extents of a result, or what the operation needs and what it has.
type Extents = Result<Vec<usize>, String>;

/// The result type of `op` on operands of the types `args`.
///
/// # Errors
/// One sentence that names the operation, what it needs and what it has. Attributes are checked as far as
/// they decide the type; whether real numbers are finite is the verifier's question.
pub fn infer(op: &Op, args: &[&Type]) -> Result<Type, String> {
    check_operands(op, args)?;
    let shapes: Vec<&[usize]> = args.iter().map(|ty| &*ty.shape).collect();
    let shape = extents(op, &shapes).map_err(|why| format!("`{}` needs {why}", op.name()))?;
    let ty = Type { dtype: DType::F32, shape: Shape(shape) };
    check_type(&ty).map_err(|why| format!("the result of `{}` is impossible: {why}", op.name()))?;
    Ok(ty)
}

/// Whether a value can have the type `ty`: rank 1 to 4, no zero extent, rows of whole blocks, a size that
/// can be addressed.
///
/// # Errors
/// One sentence that names the type and the rule.
pub fn check_type(ty: &Type) -> Result<(), String> {
    let rank = ty.shape.len();
    if rank == 0 || rank > MAX_RANK {
        return Err(format!("{ty} has rank {rank}, and ranks go from 1 to {MAX_RANK}"));
    }
    if ty.shape.contains(&0) {
        return Err(format!("{ty} has an extent of zero"));
    }
    let (cols, block) = (ty.shape[rank - 1], ty.dtype.block_len());
    if !cols.is_multiple_of(block) {
        return Err(format!("rows of {} hold whole blocks of {block} elements, and {ty} has rows of {cols}", ty.dtype));
    }
    // Memory is addressed by isize at most.
    match byte_len(ty.dtype, &ty.shape) {
        Some(bytes) if isize::try_from(bytes).is_ok() => Ok(()),
        Some(_) | None => Err(format!("{ty} is too large to address")),
    }
}

/// The number formats that an operand may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Formats {
    F32,
    Plain,
    Any,
}

fn formats(op: &Op, operand: usize) -> Formats {
    match (op, operand) {
        (Op::Linear {} | Op::PointwiseConv {}, 1) => Formats::Any,
        (Op::Linear {} | Op::PointwiseConv {}, 2) | (Op::RmsNorm { .. } | Op::LayerNorm { .. }, 1) => Formats::Plain,
        (Op::LayerNorm { .. }, 2) => Formats::Plain,
        (Op::ShortConv {}, 1 | 2) => Formats::Plain,
        (Op::Transpose { .. } | Op::Add {} | Op::Sub {} | Op::Mul {} | Op::Div {}, _) => Formats::Plain,
        (
            Op::RmsNorm { .. }
            | Op::LayerNorm { .. }
            | Op::Linear {}
            | Op::PointwiseConv {}
            | Op::ShortConv {}
            | Op::Rope {}
            | Op::Attention { .. }
            | Op::MatMul { .. }
            | Op::Softmax {}
            | Op::Silu {}
            | Op::Gelu {}
            | Op::Sigmoid {}
            | Op::Exp {}
            | Op::Abs {}
            | Op::Rsqrt {}
            | Op::Affine { .. }
            | Op::Sum { .. }
            | Op::Mean { .. }
            | Op::Max { .. }
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. },
            _,
        ) => Formats::F32,
    }
}

fn check_operands(op: &Op, args: &[&Type]) -> Result<(), String> {
    check_arity(op, args.len())?;
    for (i, ty) in args.iter().enumerate() {
        check_type(ty).map_err(|why| format!("operand {i} of `{}` is impossible: {why}", op.name()))?;
        let (legal, allowed) = match formats(op, i) {
            Formats::F32 => (ty.dtype == DType::F32, "f32"),
            Formats::Plain => (!ty.dtype.is_block(), "f32, f16 or bf16"),
            Formats::Any => (true, "any format"),
        };
        if !legal {
            return Err(format!("operand {i} of `{}` must be {allowed}, and it is {}", op.name(), ty.dtype));
        }
    }
    Ok(())
}

/// Whether `op` takes `count` operands.
///
/// # Errors
/// One sentence that names the operation, how many operands it takes and how many it has.
pub fn check_arity(op: &Op, count: usize) -> Result<(), String> {
    let arity = op.arity();
    if arity.contains(&count) {
        return Ok(());
    }
    let (least, most) = arity.into_inner();
    let takes = match most {
        usize::MAX => format!("{least} or more operands"),
        most if most == least => format!("{least} operand{}", if least == 1 { "" } else { "s" }),
        most => format!("{least} to {most} operands"),
    };
    Err(format!("`{}` takes {takes}, and it has {count}", op.name()))
}

fn extents(op: &Op, args: &[&[usize]]) -> Extents {
    match op {
        Op::RmsNorm { eps: _ } => norm(args[0], args[1]),
        Op::LayerNorm { eps: _ } => norm(args[0], args[1]).and_then(|_| norm(args[0], args[2])),
        Op::Linear {} => linear(args[0], args[1], args.get(2).copied()),
        Op::PointwiseConv {} => pointwise_conv(args[0], args[1], args.get(2).copied()),
        Op::ShortConv {} => short_conv(args[0], args[1], args.get(2).copied()),
        Op::Rope {} => rope(args[0], args[1], args[2]),
        Op::Attention { scale: _ } => attention(args),
        Op::MatMul { transpose_b } => matmul(args[0], args[1], *transpose_b),
        Op::Softmax {}
        | Op::Silu {}
        | Op::Gelu {}
        | Op::Sigmoid {}
        | Op::Exp {}
        | Op::Abs {}
        | Op::Rsqrt {}
        | Op::Affine { scale: _, offset: _ } => Ok(args[0].to_vec()),
        Op::Add {} | Op::Sub {} | Op::Mul {} | Op::Div {} => broadcast(args[0], args[1]),
        Op::Sum { axis } | Op::Mean { axis } | Op::Max { axis } => with_extent(args[0], *axis, 1),
        Op::Concat { axis } => concat(args, *axis),
        Op::Slice { axis, start, len } => slice(args[0], *axis, *start, *len),
        Op::Reshape { shape } => reshape(args[0], shape),
        Op::Transpose { perm } => transpose(args[0], perm),
    }
}

fn norm(x: &[usize], gain: &[usize]) -> Extents {
    let last = x[x.len() - 1];
    if gain != [last] {
        return Err(format!("a gain of x's last extent: [{last}] and {}", show(gain)));
    }
    Ok(x.to_vec())
}

fn linear(x: &[usize], weight: &[usize], bias: Option<&[usize]>) -> Extents {
    let &[out, input] = weight else {
        return Err(format!("a weight [out, in], and it has {}", show(weight)));
    };
    let last = x[x.len() - 1];
    if last != input {
        return Err(format!("x's last extent to equal the weight's second: {last} and {input}"));
    }
    if let Some(bias) = bias.filter(|bias| *bias != [out]) {
        return Err(format!("a bias of the weight's first extent: [{out}] and {}", show(bias)));
    }
    with_extent(x, x.len() - 1, out)
}

fn pointwise_conv(x: &[usize], weight: &[usize], bias: Option<&[usize]>) -> Extents {
    if !matches!(x, [1, _, _, _]) {
        return Err(format!("x [1, height, width, in], and it has {}", show(x)));
    }
    linear(x, weight, bias)
}

fn short_conv(x: &[usize], weight: &[usize], bias: Option<&[usize]>) -> Extents {
    let (&[rows, width], &[channels, taps]) = (x, weight) else {
        return Err(format!("x [l-1+t, d] and a weight [d, l]: {} and {}", show(x), show(weight)));
    };
    if width != channels {
        return Err(format!("x's last extent to equal the weight's first: {width} and {channels}"));
    }
    if rows < taps {
        return Err(format!("at least as many rows as the weight's second extent: {rows} and {taps}"));
    }
    if let Some(bias) = bias.filter(|bias| *bias != [width]) {
        return Err(format!("a bias of x's last extent: [{width}] and {}", show(bias)));
    }
    Ok(vec![rows - taps + 1, width])
}

fn rope(x: &[usize], cos: &[usize], sin: &[usize]) -> Extents {
    let &[.., tokens, dim] = x else {
        return Err(format!("x [.., tokens, dim], and it has {}", show(x)));
    };
    if dim % 2 != 0 {
        return Err(format!("x's last extent to be even, and it is {dim}"));
    }
    let table = [tokens, dim / 2];
    for (name, have) in [("cos", cos), ("sin", sin)] {
        if have != table {
            return Err(format!("{name} [tokens, dim/2]: {} and {}", show(&table), show(have)));
        }
    }
    Ok(x.to_vec())
}

fn attention(args: &[&[usize]]) -> Extents {
    let (q, past_k) = (args[0], args[1]);
    let &[heads, tokens, dim] = q else {
        return Err(format!("q [heads, t, d], and it has {}", show(q)));
    };
    let &[kv, capacity, _] = past_k else {
        return Err(format!("past_k [kv, c, d], and it has {}", show(past_k)));
    };
    if heads % kv != 0 {
        return Err(format!("the heads to be a multiple of the key/value heads: {heads} and {kv}"));
    }
    let total = capacity
        .checked_add(tokens)
        .ok_or_else(|| format!("c + t to be addressable, and they are {capacity} and {tokens}"))?;
    let past = [kv, capacity, dim];
    let new = [kv, tokens, dim];
    let rules: [(&str, &[usize]); 5] = [
        ("past_k [kv, c, d]", &past),
        ("past_v [kv, c, d]", &past),
        ("new_k [kv, t, d]", &new),
        ("new_v [kv, t, d]", &new),
        ("mask [t, c+t]", &[tokens, total]),
    ];
    for ((name, need), have) in rules.into_iter().zip(&args[1..]) {
        if need != *have {
            return Err(format!("{name}: {} and {}", show(need), show(have)));
        }
    }
    Ok(q.to_vec())
}

fn matmul(a: &[usize], b: &[usize], transpose_b: bool) -> Extents {
    let (&[ref a_outer @ .., m, a_inner], &[ref b_outer @ .., b_row, b_col]) = (a, b) else {
        return Err(format!("operands of rank 2 or more: {} and {}", show(a), show(b)));
    };
    if a_outer != b_outer {
        return Err(format!("equal leading extents: {} and {}", show(a_outer), show(b_outer)));
    }
    let (b_inner, n) = if transpose_b { (b_col, b_row) } else { (b_row, b_col) };
    if a_inner != b_inner {
        let which = if transpose_b { "last" } else { "second to last" };
        return Err(format!("a's last extent to equal b's {which}: {a_inner} and {b_inner}"));
    }
    Ok([a_outer, &[m, n]].concat())
}

fn broadcast(a: &[usize], b: &[usize]) -> Extents {
    let rank = a.len().max(b.len());
    let aligned = |x: &[usize]| [&[1; MAX_RANK][..rank - x.len()], x].concat();
    let pairs = aligned(a).into_iter().zip(aligned(b));
    pairs
        .map(|(x, y)| match (x, y) {
            (x, y) if x == y => Ok(x),
            (1, n) | (n, 1) => Ok(n),
            _ => Err(format!("shapes that broadcast: {} and {}", show(a), show(b))),
        })
        .collect()
}

fn concat(args: &[&[usize]], axis: usize) -> Extents {
    let first = args[0];
    let mut total = 0usize;
    for arg in args {
        if with_extent(first, axis, 1)? != with_extent(arg, axis, 1)? {
            return Err(format!("operands that agree off axis {axis}: {} and {}", show(first), show(arg)));
        }
        total = total
            .checked_add(arg[axis])
            .ok_or_else(|| format!("the extents along axis {axis} to have an addressable sum"))?;
    }
    with_extent(first, axis, total)
}

fn slice(x: &[usize], axis: usize, start: usize, len: usize) -> Extents {
    let shape = with_extent(x, axis, len)?;
    if len == 0 {
        return Err("a len of 1 or more, and it is 0".into());
    }
    if start.checked_add(len).is_none_or(|end| end > x[axis]) {
        return Err(format!("start + len within axis {axis} of {}: {start} + {len} and {}", show(x), x[axis]));
    }
    Ok(shape)
}

fn reshape(x: &[usize], shape: &[usize]) -> Extents {
    let (have, want) = (Shape(x.to_vec()).elements(), Shape(shape.to_vec()).elements());
    if have.is_none() || have != want {
        return Err(format!("a shape of as many elements: {} and {}", show(x), show(shape)));
    }
    Ok(shape.to_vec())
}

fn transpose(x: &[usize], perm: &[usize]) -> Extents {
    let valid = perm.len() == x.len() && (0..x.len()).all(|axis| perm.contains(&axis));
    if !valid {
        return Err(format!("perm to hold each axis of {} once, and it is {}", show(x), show(perm)));
    }
    Ok(perm.iter().map(|&axis| x[axis]).collect())
}

/// `shape` with another extent along `axis`.
fn with_extent(shape: &[usize], axis: usize, extent: usize) -> Extents {
    let mut shape = shape.to_vec();
    let rank = shape.len();
    let place = shape.get_mut(axis).ok_or_else(|| format!("an axis below the rank {rank}, and it is {axis}"))?;
    *place = extent;
    Ok(shape)
}

fn show(shape: &[usize]) -> Shape {
    Shape(shape.to_vec())
}

#[cfg(test)]
#[path = "infer_tests.rs"]
mod tests;
