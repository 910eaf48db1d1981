//! The op table: name, operands, attributes and one line of meaning per operation.
//!
//! Adding a row makes rustc list every place that has to know the new operation.

/// An attribute's value, as the text form writes it.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// A real number.
    Float(f32),
    /// A count, axis or extent.
    Int(usize),
    /// A switch.
    Bool(bool),
    /// A list of extents or axes.
    List(Vec<usize>),
}

/// The types that attributes have in [`Op`].
pub trait AttrType: Sized {
    /// What the text form holds for this type, for messages.
    const EXPECTED: &'static str;
    /// The value as an attribute.
    fn to_attr(&self) -> Attr;
    /// The value of an attribute, if it is of this type.
    fn from_attr(attr: &Attr) -> Option<Self>;
}

macro_rules! attr_type {
    ($type:ty, $variant:ident, $expected:literal) => {
        impl AttrType for $type {
            const EXPECTED: &'static str = $expected;
            fn to_attr(&self) -> Attr {
                Attr::$variant(self.clone())
            }
            fn from_attr(attr: &Attr) -> Option<Self> {
                if let Attr::$variant(value) = attr { Some(value.clone()) } else { None }
            }
        }
    };
}

attr_type!(f32, Float, "a real number with a point or exponent");
attr_type!(usize, Int, "a whole number");
attr_type!(bool, Bool, "true or false");
attr_type!(Vec<usize>, List, "a list of whole numbers");

macro_rules! ops {
    ($($(#[doc = $doc:literal])+ $name:ident $text:literal $arity:expr, { $($(#[doc = $adoc:literal])+ $attr:ident : $type:ty),* };)+) => {
        /// An operation; each has one result. Operands are named in the first line of each description.
        #[derive(Clone, Debug, PartialEq)]
        pub enum Op { $($(#[doc = $doc])+ $name { $($(#[doc = $adoc])+ $attr: $type),* },)+ }

        impl Op {
            /// The names of all operations, in the order of the table.
            pub const NAMES: &'static [&'static str] = &[$($text,)+];

            /// The text form's name, e.g. `rms_norm`.
            pub const fn name(&self) -> &'static str {
                match self { $(Op::$name { .. } => $text,)+ }
            }

            /// How many operands the operation takes.
            pub const fn arity(&self) -> std::ops::RangeInclusive<usize> {
                match self { $(Op::$name { .. } => $arity,)+ }
            }

            /// The attributes, in the order of the table.
            pub fn attrs(&self) -> Vec<(&'static str, Attr)> {
                match self { $(Op::$name { $($attr),* } => vec![$((stringify!($attr), $attr.to_attr())),*],)+ }
            }

            /// The operation of that name with those attributes, all of which must be known and present.
            pub fn from_parts(name: &str, attrs: &[(String, Attr)]) -> Result<Op, String> {
                match name {
                    $($text => {
                        const KNOWN: &[&str] = &[$(stringify!($attr)),*];
                        known_attrs(name, KNOWN, attrs)?;
                        Ok(Op::$name { $($attr: take_attr::<$type>(name, stringify!($attr), attrs)?),* })
                    })+
                    _ => Err(format!("unknown operation `{name}`; known are {}", Op::NAMES.join(", "))),
                }
            }
        }
    };
}

ops! {
    /// `(x, gain)`: each row of the last axis divided by its root mean square, times `gain [last]`.
    RmsNorm "rms_norm" 2..=2, {
        /// Added to the mean square.
        eps: f32
    };
    /// `(x, gain [last], bias [last])`: each row of the last axis less its mean, divided by its standard deviation, times `gain`,
    /// plus `bias`.
    LayerNorm "layer_norm" 3..=3, {
        /// Added to the variance.
        eps: f32
    };
    /// `(x [.., in], weight [out, in], bias [out]?)`: `x · weightᵀ + bias`.
    Linear "linear" 2..=3, {};
    /// `(x [1, height, width, in], weight [out, in], bias [out]?)`: the same projection of every pixel, a convolution
    /// with a window of 1 x 1; the result is `[1, height, width, out]`.
    PointwiseConv "pointwise_conv" 2..=3, {};
    /// `(x [l-1+t, d], weight [d, l], bias [d]?)`: a causal convolution of every column by its own row of `weight`,
    /// `y[i, c] = Σ weight[c, j] · x[i + j, c] + bias[c]`, over rows of which the first `l-1` came before; the result is `[t, d]`.
    ShortConv "short_conv" 2..=3, {};
    /// `(x [.., tokens, dim], cos [tokens, dim/2], sin [tokens, dim/2])`: the pair (i, i + dim/2) of every row turned by its angle.
    Rope "rope" 3..=3, {};
    /// `(q [heads, t, d], past_k [kv, c, d], past_v [kv, c, d], new_k [kv, t, d], new_v [kv, t, d], mask [t, c+t])`:
    /// softmax(scale · q · [past_k; new_k]ᵀ + mask) · [past_v; new_v], heads in groups of `heads / kv` sharing a key/value head.
    Attention "attention" 6..=6, {
        /// Factor of the scores.
        scale: f32
    };
    /// `(a [.., m, k], b [.., k, n])`: the matrix product over equal leading axes.
    MatMul "matmul" 2..=2, {
        /// Whether `b` is `[.., n, k]`.
        transpose_b: bool
    };
    /// `(x)`: exp(x) over its sum, along the last axis.
    Softmax "softmax" 1..=1, {};
    /// `(x)`: `x · sigmoid(x)`.
    Silu "silu" 1..=1, {};
    /// `(x)`: `x · Φ(x)`, Φ being the distribution function of the normal distribution: `x · (1 + erf(x / √2)) / 2`.
    Gelu "gelu" 1..=1, {};
    /// `(x)`: `1 / (1 + exp(-x))`.
    Sigmoid "sigmoid" 1..=1, {};
    /// `(x)`: e to the power of x.
    Exp "exp" 1..=1, {};
    /// `(x)`: the magnitude of x.
    Abs "abs" 1..=1, {};
    /// `(x)`: `1 / sqrt(x)`.
    Rsqrt "rsqrt" 1..=1, {};
    /// `(x)`: `scale · x + offset`.
    Affine "affine" 1..=1, {
        /// The factor.
        scale: f32,
        /// The summand.
        offset: f32
    };
    /// `(a, b)`: the sum, broadcast.
    Add "add" 2..=2, {};
    /// `(a, b)`: the difference, broadcast.
    Sub "sub" 2..=2, {};
    /// `(a, b)`: the product, broadcast.
    Mul "mul" 2..=2, {};
    /// `(a, b)`: the quotient, broadcast.
    Div "div" 2..=2, {};
    /// `(x)`: the sum along `axis`, which stays with extent 1.
    Sum "sum" 1..=1, {
        /// The axis.
        axis: usize
    };
    /// `(x)`: the mean along `axis`, which stays with extent 1.
    Mean "mean" 1..=1, {
        /// The axis.
        axis: usize
    };
    /// `(x)`: the largest along `axis`, which stays with extent 1.
    Max "max" 1..=1, {
        /// The axis.
        axis: usize
    };
    /// `(a, b, …)`: the operands one after the other along `axis`.
    Concat "concat" 2..=usize::MAX, {
        /// The axis.
        axis: usize
    };
    /// `(x)`: the `len` elements from `start` along `axis`.
    Slice "slice" 1..=1, {
        /// The axis.
        axis: usize,
        /// The first element.
        start: usize,
        /// How many elements.
        len: usize
    };
    /// `(x)`: the same elements in row-major order under another shape.
    Reshape "reshape" 1..=1, {
        /// The new extents.
        shape: Vec<usize>
    };
    /// `(x)`: axis i of the result is axis `perm[i]` of x.
    Transpose "transpose" 1..=1, {
        /// A permutation of the axes.
        perm: Vec<usize>
    };
}

impl Op {
    /// Whether the second operand is a matrix `[out, in]` that every row of the first is multiplied by.
    pub const fn is_projection(&self) -> bool {
        matches!(self, Op::Linear {} | Op::PointwiseConv {})
    }

    /// Whether the result is the operands' numbers in another order or shape.
    pub const fn only_moves(&self) -> bool {
        matches!(self, Op::Reshape { .. } | Op::Transpose { .. } | Op::Slice { .. } | Op::Concat { .. })
    }
}

fn known_attrs(op: &str, known: &[&str], attrs: &[(String, Attr)]) -> Result<(), String> {
    for (i, (name, _)) in attrs.iter().enumerate() {
        if !known.contains(&name.as_str()) {
            return Err(format!("`{op}` has no attribute `{name}`"));
        }
        if attrs[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(format!("attribute `{name}` is given twice"));
        }
    }
    Ok(())
}

fn take_attr<T: AttrType>(op: &str, name: &str, attrs: &[(String, Attr)]) -> Result<T, String> {
    let (_, attr) =
        attrs.iter().find(|(n, _)| n == name).ok_or_else(|| format!("`{op}` needs the attribute `{name}`"))?;
    T::from_attr(attr).ok_or_else(|| format!("attribute `{name}` of `{op}` needs {}", T::EXPECTED))
}
