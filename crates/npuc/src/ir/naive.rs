//! The meaning of a graph, executed literally in f64: every element of every value by its formula.
//!
//! The oracle of passes and of the executor; it shares no code with either and takes no care of speed.

use std::collections::HashMap;

use super::{Def, Graph, Op, ValueId};

/// Every value of a verified `graph`, row-major, by inputs and weights under their names, all as plain numbers.
pub(crate) fn eval(
    graph: &Graph,
    inputs: &HashMap<String, Vec<f64>>,
    weights: &HashMap<String, Vec<f64>>,
) -> HashMap<ValueId, Vec<f64>> {
    eval_rounded(graph, inputs, weights, |x| x)
}

/// The same with every element of every value rounded before it is used.
pub(crate) fn eval_rounded(
    graph: &Graph,
    inputs: &HashMap<String, Vec<f64>>,
    weights: &HashMap<String, Vec<f64>>,
    round: impl Fn(f64) -> f64,
) -> HashMap<ValueId, Vec<f64>> {
    let mut known: Vec<Array> = Vec::new();
    for value in &graph.values {
        let shape = value.ty.shape.0.clone();
        let mut array = match &value.def {
            Def::Input => Array { shape, data: inputs[&value.name].clone() },
            Def::Weight => Array { shape, data: weights[&value.name].clone() },
            Def::Op { op, args } => {
                let args: Vec<&Array> = args.iter().map(|arg| &known[arg.index()]).collect();
                apply(op, &args, &shape)
            }
        };
        assert_eq!(array.data.len(), array.shape.iter().product::<usize>(), "{}", value.name);
        array.data.iter_mut().for_each(|x| *x = round(*x));
        known.push(array);
    }
    graph.ids().zip(known).map(|(id, array)| (id, array.data)).collect()
}

#[derive(Clone)]
struct Array {
    shape: Vec<usize>,
    data: Vec<f64>,
}

impl Array {
    /// The element at `index`. Leading axes that the array lacks are ignored and extents of 1 stretch.
    fn at(&self, index: &[usize]) -> f64 {
        let index = &index[index.len() - self.shape.len()..];
        let place = |flat: usize, (&extent, &i): (&usize, &usize)| flat * extent + if extent == 1 { 0 } else { i };
        self.data[self.shape.iter().zip(index).fold(0, place)]
    }
}

/// The array of that shape with the element `f(index)` at every index.
fn tabulate(shape: &[usize], f: impl Fn(&[usize]) -> f64) -> Array {
    let count: usize = shape.iter().product();
    let mut index = vec![0; shape.len()];
    let mut data = Vec::with_capacity(count);
    for _ in 0..count {
        data.push(f(&index));
        for axis in (0..shape.len()).rev() {
            index[axis] += 1;
            if index[axis] < shape[axis] {
                break;
            }
            index[axis] = 0;
        }
    }
    Array { shape: shape.to_vec(), data }
}

/// `index` with another place along `axis`.
fn moved(index: &[usize], axis: usize, place: usize) -> Vec<usize> {
    let mut index = index.to_vec();
    index[axis] = place;
    index
}

/// The elements of `x` along `axis` through `index`.
fn line(x: &Array, index: &[usize], axis: usize) -> Vec<f64> {
    (0..x.shape[axis]).map(|i| x.at(&moved(index, axis, i))).collect()
}

fn apply(op: &Op, args: &[&Array], shape: &[usize]) -> Array {
    let x = args[0];
    let last = x.shape.len() - 1;
    let map = |f: &dyn Fn(f64) -> f64| tabulate(shape, |i| f(x.at(i)));
    let pair = |f: &dyn Fn(f64, f64) -> f64| tabulate(shape, |i| f(x.at(i), args[1].at(i)));
    match op {
        Op::RmsNorm { eps } => tabulate(shape, |i| {
            let row = line(x, i, last);
            let mean_square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
            x.at(i) / (mean_square + f64::from(*eps)).sqrt() * args[1].at(&[i[last]])
        }),
        Op::LayerNorm { eps } => layer_norm(args, f64::from(*eps)),
        Op::Linear {} | Op::PointwiseConv {} => tabulate(shape, |i| {
            let bias = args.get(2).map_or(0.0, |bias| bias.at(&[i[last]]));
            (0..x.shape[last]).map(|k| x.at(&moved(i, last, k)) * args[1].at(&[i[last], k])).sum::<f64>() + bias
        }),
        Op::ShortConv {} => tabulate(shape, |i| {
            let bias = args.get(2).map_or(0.0, |bias| bias.at(&[i[1]]));
            (0..args[1].shape[1]).map(|j| args[1].at(&[i[1], j]) * x.at(&[i[0] + j, i[1]])).sum::<f64>() + bias
        }),
        Op::Rope {} => rope(args),
        Op::Attention { scale } => attention(args, f64::from(*scale)),
        Op::MatMul { transpose_b } => tabulate(shape, |i| {
            let (row, col) = (last - 1, i[last]);
            let b = |k: usize| {
                let b_index = if *transpose_b { [col, k] } else { [k, col] };
                args[1].at(&[&i[..row], &b_index[..]].concat())
            };
            (0..x.shape[last]).map(|k| x.at(&moved(i, last, k)) * b(k)).sum()
        }),
        Op::Softmax {} => tabulate(shape, |i| softmax(&line(x, i, last))[i[last]]),
        Op::Silu {} => map(&|x| x / (1.0 + (-x).exp())),
        Op::Gelu {} => map(&|x| x * (1.0 + erf(x / std::f64::consts::SQRT_2)) / 2.0),
        Op::Sigmoid {} => map(&|x| 1.0 / (1.0 + (-x).exp())),
        Op::Exp {} => map(&f64::exp),
        Op::Abs {} => map(&f64::abs),
        Op::Rsqrt {} => map(&|x| 1.0 / x.sqrt()),
        Op::Affine { scale, offset } => map(&|x| f64::from(*scale) * x + f64::from(*offset)),
        Op::Add {} => pair(&|a, b| a + b),
        Op::Sub {} => pair(&|a, b| a - b),
        Op::Mul {} => pair(&|a, b| a * b),
        Op::Div {} => pair(&|a, b| a / b),
        Op::Sum { axis } => tabulate(shape, |i| line(x, i, *axis).iter().sum()),
        Op::Mean { axis } => tabulate(shape, |i| line(x, i, *axis).iter().sum::<f64>() / x.shape[*axis] as f64),
        Op::Max { axis } => tabulate(shape, |i| line(x, i, *axis).into_iter().fold(f64::NEG_INFINITY, f64::max)),
        Op::Concat { axis } => concat(args, *axis, shape),
        Op::Slice { axis, start, len: _ } => tabulate(shape, |i| x.at(&moved(i, *axis, i[*axis] + start))),
        Op::Reshape { .. } => Array { shape: shape.to_vec(), data: x.data.clone() },
        Op::Transpose { perm } => tabulate(shape, |i| {
            let mut from = vec![0; i.len()];
            for (axis, &source) in perm.iter().enumerate() {
                from[source] = i[axis];
            }
            x.at(&from)
        }),
    }
}

fn layer_norm(args: &[&Array], eps: f64) -> Array {
    let (x, last) = (args[0], args[0].shape.len() - 1);
    tabulate(&x.shape, |i| {
        let row = line(x, i, last);
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
        (x.at(i) - mean) / (variance + eps).sqrt() * args[1].at(&[i[last]]) + args[2].at(&[i[last]])
    })
}

fn rope(args: &[&Array]) -> Array {
    let (x, last) = (args[0], args[0].shape.len() - 1);
    let half = x.shape[last] / 2;
    tabulate(&x.shape, |i| {
        let (token, k) = (i[last - 1], i[last] % half);
        let (a, b) = (x.at(&moved(i, last, k)), x.at(&moved(i, last, k + half)));
        let (cos, sin) = (args[1].at(&[token, k]), args[2].at(&[token, k]));
        if i[last] < half { a * cos - b * sin } else { b * cos + a * sin }
    })
}

/// By its positive series (Abramowitz and Stegun, 7.1.6), which converges everywhere; beyond 6 it is 1 in f64.
fn erf(x: f64) -> f64 {
    if x.abs() > 6.0 {
        return x.signum();
    }
    let (mut term, mut total) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        total += term;
    }
    2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * total
}

fn concat(args: &[&Array], axis: usize, shape: &[usize]) -> Array {
    tabulate(shape, |i| {
        let mut place = i[axis];
        let mut parts = args.iter();
        loop {
            let x = parts.next().expect("the extents add up");
            if place < x.shape[axis] {
                break x.at(&moved(i, axis, place));
            }
            place -= x.shape[axis];
        }
    })
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|x| x / sum).collect()
}

fn attention(args: &[&Array], scale: f64) -> Array {
    let &[q, past_k, past_v, new_k, new_v, mask] = args else { panic!("attention takes six operands") };
    let (heads, kv) = (q.shape[0], past_k.shape[0]);
    let (capacity, tokens) = (past_k.shape[1], q.shape[1]);
    let row = |past: &Array, new: &Array, kv: usize, j: usize, d: usize| {
        if j < capacity { past.at(&[kv, j, d]) } else { new.at(&[kv, j - capacity, d]) }
    };
    tabulate(&q.shape, |i| {
        let (head, token, d) = (i[0], i[1], i[2]);
        let group = head / (heads / kv);
        let score = |j: usize| {
            let dot: f64 = (0..q.shape[2]).map(|d| q.at(&[head, token, d]) * row(past_k, new_k, group, j, d)).sum();
            scale * dot + mask.at(&[token, j])
        };
        let scores: Vec<f64> = (0..capacity + tokens).map(score).collect();
        softmax(&scores).iter().enumerate().map(|(j, p)| p * row(past_v, new_v, group, j, d)).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ir::text::parse;

    /// Evaluates one call over inputs of the given types and numbers.
    fn check(args: &[(&str, &[f64])], call: &str, expected: &[f64]) {
        let leaves: String =
            args.iter().enumerate().map(|(i, (ty, _))| format!("%{i} = input \"{i}\" : {ty}\n")).collect();
        let types: Vec<_> = parse(&format!("graph \"\" {{\n{leaves}}}")).unwrap().values;
        let operands: Vec<String> = (0..args.len()).map(|i| format!("%{i}")).collect();
        let call = call.replacen("()", &format!("({})", operands.join(", ")), 1);
        let text = format!("graph \"\" {{\n{leaves}%{} = {call} : f32[1]\n}}", args.len());
        let mut graph = parse(&text).unwrap();
        let Def::Op { op, .. } = &graph.values[args.len()].def else { panic!("{text}") };
        let types: Vec<_> = types.iter().map(|value| &value.ty).collect();
        graph.values[args.len()].ty = crate::ir::infer::infer(op, &types).unwrap();
        let inputs = args.iter().enumerate().map(|(i, (_, data))| (i.to_string(), data.to_vec())).collect();
        let values = eval(&graph, &inputs, &HashMap::new());
        let result = &values[&ValueId(args.len() as u32)];
        let close = |(a, b): (&f64, &f64)| (a - b).abs() < 1e-9;
        assert!(result.len() == expected.len() && result.iter().zip(expected).all(close), "{call}: {result:?}");
    }

    /// Values computed by hand or with numpy.
    #[test]
    fn operations_give_known_numbers() {
        let six = ("f32[2, 3]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]);
        let two = ("f32[2]", &[3.0, 4.0][..]);
        let column = ("f32[2, 1]", &[10.0, 20.0][..]);
        check(&[two, ("f32[2]", &[1.0, 2.0])], "rms_norm() {eps = 0.0}", &[0.848_528_137_424, 2.262_741_699_797]);
        check(&[("f32[3]", &[1.0, 0.5, -1.0]), six, two], "linear()", &[2.0, 4.5]);
        let pixels = ("f32[1, 2, 1, 3]", &[1.0, 0.5, -1.0, 0.0, 0.0, 1.0][..]);
        check(&[pixels, six, two], "pointwise_conv()", &[2.0, 4.5, 6.0, 10.0]);
        let windows = ("f32[3, 2]", &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0][..]);
        let taps = ("f32[2, 2]", &[10.0, 1.0, -1.0, 2.0][..]);
        check(&[windows, taps, two], "short_conv()", &[16.0, 10.0, 38.0, 12.0]);
        let quarter = ("f32[1, 1]", &[0.0][..]);
        check(&[("f32[1, 2]", &[1.0, 2.0]), quarter, ("f32[1, 1]", &[1.0])], "rope()", &[-2.0, 1.0]);
        check(&[six, six], "matmul() {transpose_b = true}", &[14.0, 32.0, 32.0, 77.0]);
        check(&[("f32[1, 2]", two.1), six], "matmul() {transpose_b = false}", &[19.0, 26.0, 33.0]);
        check(&[two], "softmax()", &[0.268_941_421_370, 0.731_058_578_630]);
        check(&[two], "silu()", &[2.857_722_380_440, 3.928_055_160_152]);
        check(&[two], "gelu()", &[2.995_950_305_91, 3.999_873_315_0]);
        check(&[two, ("f32[2]", &[1.0, 2.0]), ("f32[2]", &[10.0, 20.0])], "layer_norm() {eps = 0.0}", &[9.0, 22.0]);
        check(&[two], "sigmoid()", &[0.952_574_126_823, 0.982_013_790_038]);
        check(&[two], "exp()", &[20.085_536_923_188, 54.598_150_033_144]);
        check(&[("f32[2]", &[-3.0, 4.0])], "abs()", &[3.0, 4.0]);
        check(&[two], "rsqrt()", &[0.577_350_269_190, 0.5]);
        check(&[two], "affine() {scale = 2.0, offset = 1.0}", &[7.0, 9.0]);
        check(&[six, column], "add()", &[11.0, 12.0, 13.0, 24.0, 25.0, 26.0]);
        check(&[column, two], "sub()", &[7.0, 6.0, 17.0, 16.0]);
        check(&[two, two], "mul()", &[9.0, 16.0]);
        check(&[column, two], "div()", &[10.0 / 3.0, 2.5, 20.0 / 3.0, 5.0]);
        check(&[six], "sum() {axis = 0}", &[5.0, 7.0, 9.0]);
        check(&[six], "mean() {axis = 1}", &[2.0, 5.0]);
        check(&[six], "max() {axis = 1}", &[3.0, 6.0]);
        check(&[six, column], "concat() {axis = 1}", &[1.0, 2.0, 3.0, 10.0, 4.0, 5.0, 6.0, 20.0]);
        check(&[six], "slice() {axis = 1, start = 1, len = 2}", &[2.0, 3.0, 5.0, 6.0]);
        check(&[six], "reshape() {shape = [3, 2]}", six.1);
        check(&[six], "transpose() {perm = [1, 0]}", &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }

    /// Two heads share one key/value head; the mask hides the new row from nobody and the old one from all.
    #[test]
    fn attention_reads_past_and_new_rows() {
        let q = ("f32[2, 1, 1]", &[1.0, 2.0][..]);
        let (k, v) = (("f32[1, 1, 1]", &[1.0][..]), ("f32[1, 1, 1]", &[10.0][..]));
        let (new_k, new_v) = (("f32[1, 1, 1]", &[2.0][..]), ("f32[1, 1, 1]", &[20.0][..]));
        let seen = ("f32[1, 2]", &[0.0, 0.0][..]);
        let hidden = ("f32[1, 2]", &[-1e4, 0.0][..]);
        // Scores 0.5 · (1, 2) and 0.5 · (2, 4): differences 0.5 and 1.
        let expected = [10.0 + 10.0 * 0.622_459_331_202, 10.0 + 10.0 * 0.731_058_578_630];
        check(&[q, k, v, new_k, new_v, seen], "attention() {scale = 0.5}", &expected);
        check(&[q, k, v, new_k, new_v, hidden], "attention() {scale = 0.5}", &[20.0, 20.0]);
    }
}
