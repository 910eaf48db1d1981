//! Places where binary16 runs out, found by the form of the graph; a form that keeps the numbers small is none.

use super::rule::{Cost, Hazard, Mend, Remedy};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::model::Port;
use crate::pass::{Pass, SWIGLU_DIVISOR};

/// A place where numbers can leave binary16.
pub(super) struct Danger {
    pub(super) message: &'static str,
    pub(super) actual: String,
    pub(super) remedies: Vec<Remedy>,
}

/// The largest finite number of binary16.
const LARGEST: f64 = 65504.0;

/// Whether the operation `at` is such a place. `hidden_mask` is what masks hold where a position is hidden.
pub(super) fn danger(graph: &Graph, at: ValueId, hazard: Hazard, hidden_mask: i32) -> Option<Danger> {
    let Def::Op { op, args } = &graph.value(at).def else { return None };
    match hazard {
        Hazard::Mask => mask(graph, op, args, hidden_mask),
        Hazard::HiddenRow => hidden_row(graph, op, args, hidden_mask),
        Hazard::RmsSquare => rms_square(graph, op, args),
        Hazard::Scores => scores(graph, op, args),
        Hazard::Swiglu => swiglu(graph, op, args),
        // Weights are read where they are at hand, see `fit`.
        Hazard::Weights => None,
    }
}

/// Whether a value is the mask, through reshapes.
fn is_mask(graph: &Graph, id: ValueId) -> bool {
    let value = graph.value(id);
    match &value.def {
        Def::Input => value.name == Port::Mask.to_string(),
        Def::Op { op: Op::Reshape { .. }, args } => args.first().is_some_and(|&arg| is_mask(graph, arg)),
        Def::Op { .. } | Def::Weight => false,
    }
}

/// A softmax over minus infinity alone divides 0 by 0, where the mask's constant becomes that.
fn hidden_row(graph: &Graph, op: &Op, args: &[ValueId], hidden_mask: i32) -> Option<Danger> {
    let whole = matches!(op, Op::Attention { .. }) && args.iter().any(|&arg| is_mask(graph, arg));
    let softmax = matches!(op, Op::Softmax {}) && args.first().is_some_and(|&scores| is_masked(graph, scores));
    ((whole || softmax) && f64::from(hidden_mask).abs() > LARGEST).then(|| Danger {
        message: "a row that the mask hides as a whole becomes NaN in fp16",
        actual: format!("{:e} is minus infinity in fp16, and its softmax 0 / 0", f64::from(hidden_mask)),
        remedies: vec![Remedy::new(Cost::Option, "let every padding row see itself, as npuc's own runner does")],
    })
}

/// Whether a value is scores to which a mask was added, through reshapes.
fn is_masked(graph: &Graph, id: ValueId) -> bool {
    match &graph.value(id).def {
        Def::Op { op: Op::Add {}, args } => args.iter().any(|&arg| is_mask(graph, arg)),
        Def::Op { op: Op::Reshape { .. }, args } => args.first().is_some_and(|&arg| is_masked(graph, arg)),
        Def::Op { .. } | Def::Input | Def::Weight => false,
    }
}

fn mask(graph: &Graph, op: &Op, args: &[ValueId], hidden_mask: i32) -> Option<Danger> {
    let leaves = f64::from(hidden_mask).abs() > LARGEST;
    let moves = matches!(op, Op::Reshape { .. });
    (leaves && !moves && args.iter().any(|&arg| is_mask(graph, arg))).then(|| Danger {
        message: "the mask's hidden constant leaves fp16",
        actual: format!("{:e}, the constant of the target's masks", f64::from(hidden_mask)),
        remedies: Vec::new(),
    })
}

fn rms_square(graph: &Graph, op: &Op, args: &[ValueId]) -> Option<Danger> {
    let whole = matches!(op, Op::RmsNorm { .. } | Op::LayerNorm { .. });
    let square = matches!(op, Op::Mul {}) && args.first() == args.get(1);
    // A row of one number is no row that is normalised.
    let bounded = args.first().is_some_and(|&x| graph.value(x).ty.shape.last() == Some(&1) || is_rescaled(graph, x));
    (whole || (square && !bounded)).then(|| Danger {
        message: "the square of a normalisation can leave fp16",
        actual: "x * x overflows from |x| = 256 on".into(),
        remedies: vec![
            Remedy::new(Cost::Rewrite, "divide by the largest magnitude of the row before squaring")
                .mend(Mend::Pass(Pass::RescaleRmsNorm)),
        ],
    })
}

/// Whether a value is a quotient whose denominator comes from the magnitudes of the numerator.
fn is_rescaled(graph: &Graph, id: ValueId) -> bool {
    let Def::Op { op: Op::Div {}, args } = &graph.value(id).def else { return false };
    let [x, by] = args[..] else { return false };
    let mut at = by;
    while let Def::Op { op, args } = &graph.value(at).def {
        let Some(&of) = args.first() else { return false };
        if matches!(op, Op::Abs {}) {
            return of == x;
        }
        if !matches!(op, Op::Affine { .. } | Op::Max { .. } | Op::Reshape { .. }) {
            return false;
        }
        at = of;
    }
    false
}

/// Queries times keys before they are scaled; queries that were scaled first keep the scores as small as they end.
fn scores(graph: &Graph, op: &Op, args: &[ValueId]) -> Option<Danger> {
    let product = matches!(op, Op::MatMul { transpose_b: true } | Op::Attention { .. });
    let scaled = args.first().is_some_and(|&queries| is_scaled(graph, queries));
    (product && !scaled).then(|| Danger {
        message: "queries times keys can leave fp16",
        actual: "unscaled sums of products over the head's width".into(),
        remedies: vec![
            Remedy::new(Cost::Rewrite, "scale the queries before the product instead of the scores after it")
                .mend(Mend::Pass(Pass::DecomposeAttention)),
        ],
    })
}

/// Whether a value was last multiplied by a factor of magnitude 1 at most, before it was only moved.
fn is_scaled(graph: &Graph, id: ValueId) -> bool {
    let Def::Op { op, args } = &graph.value(id).def else { return false };
    if let Op::Affine { scale, offset: 0.0 } = op {
        return scale.abs() <= 1.0;
    }
    let moves = matches!(op, Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. });
    moves && args.first().is_some_and(|&arg| is_scaled(graph, arg))
}

fn swiglu(graph: &Graph, op: &Op, args: &[ValueId]) -> Option<Danger> {
    let guarded = args.iter().any(|&arg| match &graph.value(arg).def {
        Def::Op { op: Op::Affine { scale, offset: 0.0 }, .. } => scale.abs() <= 1.0 / SWIGLU_DIVISOR,
        Def::Op { .. } | Def::Input | Def::Weight => false,
    });
    (is_gated(graph, op, args) && !guarded).then(|| Danger {
        message: "the SwiGLU product can leave fp16",
        actual: "silu(gate) * up, both unbounded".into(),
        remedies: vec![
            Remedy::new(Cost::Rewrite, "scale one factor by 1/16 and the down projection's result by 16")
                .mend(Mend::Pass(Pass::GuardSwiglu)),
        ],
    })
}

/// Whether the operation multiplies something by the silu of something else, whole or decomposed.
fn is_gated(graph: &Graph, op: &Op, args: &[ValueId]) -> bool {
    let silu = |id: ValueId| match &graph.value(id).def {
        Def::Op { op: Op::Silu {}, .. } => true,
        Def::Op { op: Op::Mul {}, args } => args.iter().any(|&gate| match &graph.value(gate).def {
            Def::Op { op: Op::Sigmoid {}, args: inner } => inner.iter().any(|x| args.contains(x)),
            Def::Op { .. } | Def::Input | Def::Weight => false,
        }),
        Def::Op { .. } | Def::Input | Def::Weight => false,
    };
    matches!(op, Op::Mul {}) && args.iter().any(|&arg| silu(arg))
}
