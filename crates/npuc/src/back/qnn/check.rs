//! What QNN does not check, or checks only by crashing, in a description: names, places, order, sizes, encodings, formats together.
//!
//! All faults are told at once. What the library's own validation tells (operations, parameters, shapes, types) is left to it.

use std::collections::{BTreeMap, BTreeSet};

use super::description::{DataType, Description, Node, Role, ScaleOffset, Tensor};
use super::weights::{FilterEncoding, LPBQ_INPUTS, numbers, reals};
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::tensor::{Tensor as Stored, weight};

/// The operation that takes filters.
const CONVOLUTION: &str = "Conv2d";
/// The fewest inputs that may share a scale of 4-bit weights; 4 and 8 are taken and give garbage. Source: executed in the emulation of
/// v75.
const SMALLEST_BLOCK: usize = 16;

/// Refuses a description that the library would take and compute wrongly, or crash on. `weights` are those that it may name.
///
/// # Errors
/// One fault for each thing that is wrong: [`Code::BadBundle`] for places and order, [`Code::DuplicateName`],
/// [`Code::MissingTensor`], [`Code::WrongShape`], [`Code::BadRange`] for encodings and constants, [`Code::UnsupportedFormat`] for
/// formats that do not go together, [`Code::GroupSize`], [`Code::ByteLimit`].
pub fn check(description: &Description, weights: &BTreeMap<String, Stored>) -> Result<()> {
    let mut check = Check { description, faults: Vec::new() };
    check.names();
    for tensor in &description.tensors {
        check.tensor(tensor, weights);
    }
    if check.places() {
        check.order();
        check.filters(weights);
    }
    Error::check(check.faults)
}

struct Check<'a> {
    description: &'a Description,
    faults: Vec<Diagnostic>,
}

impl Check<'_> {
    fn fault(&self, code: Code, message: &str, subject: &str) -> Diagnostic {
        let graph = &self.description.name;
        Diagnostic::error(code, message).subject(format!("{graph}: {subject}"))
    }

    /// Tells a fault.
    fn tell(&mut self, code: Code, message: &str, subject: &str) {
        self.faults.push(self.fault(code, message, subject));
    }

    /// The same with what is needed and what is there.
    fn tell_of(&mut self, code: Code, message: &str, subject: &str, need: impl ToString, have: impl ToString) {
        let fault = self.fault(code, message, subject).need(need.to_string()).have(have.to_string());
        self.faults.push(fault);
    }

    fn names(&mut self) {
        let Description { name, tensors, nodes } = self.description;
        if nodes.is_empty() {
            self.tell(Code::BadBundle, "a graph has no operations", name);
        }
        let mut once = |what: &str, names: Vec<&String>| {
            let mut seen = BTreeSet::new();
            for name in names {
                if name.is_empty() || name.contains('\0') {
                    let message = format!("a {what} has a name that is empty or has a zero byte");
                    self.tell(Code::BadBundle, &message, &format!("{name:?}"));
                }
                if !seen.insert(name) {
                    self.tell(Code::DuplicateName, &format!("two {what}s have one name"), name);
                }
            }
        };
        once("graph", vec![name]);
        once("tensor", tensors.iter().map(|tensor| &tensor.name).collect());
        once("node", nodes.iter().map(|node| &node.name).collect());
    }

    /// A tensor by itself: its size, its encoding, its constant.
    fn tensor(&mut self, tensor: &Tensor, weights: &BTreeMap<String, Stored>) {
        let elements = tensor.shape.iter().try_fold(1u64, |all, &extent| all.checked_mul(extent.into()));
        let bytes = elements.and_then(|elements| elements.checked_mul(tensor.dtype.bytes() as u64));
        let (Some(elements), Some(bytes)) = (elements, bytes) else {
            return self.tell(Code::ByteLimit, "the size of a tensor overflows", &tensor.name);
        };
        if tensor.shape.is_empty() || elements == 0 {
            return self.tell_of(
                Code::WrongShape,
                "a tensor has no elements",
                &tensor.name,
                "extents of at least 1",
                shape(&tensor.shape),
            );
        }
        if bytes > u64::from(u32::MAX) {
            let have = format!("{bytes} bytes");
            self.tell_of(Code::ByteLimit, "a tensor is larger than QNN takes", &tensor.name, "less than 4 GiB", have);
        }
        self.encoding(tensor);
        let have = match &tensor.role {
            Role::Input | Role::Output | Role::Native => return,
            Role::Numbers(of) => of.len() as u64,
            Role::Reals(of) => of.len() as u64,
            Role::Weight(name) | Role::Filter(name) | Role::FloatFilter(name) => match weight(weights, name) {
                Some(stored) => stored.shape.iter().map(|&extent| extent as u64).product(),
                None => return self.tell(Code::MissingTensor, "a weight is not there", &tensor.name),
            },
        };
        if have != elements {
            let message = "a constant has another number of elements than its tensor";
            self.tell_of(Code::WrongShape, message, &tensor.name, elements, have);
        }
        let made = match &tensor.role {
            Role::Numbers(of) => numbers(of, tensor.dtype).map(|_| ()),
            Role::Reals(of) => reals(of, tensor.dtype, tensor.encoding).map(|_| ()),
            Role::Input | Role::Output | Role::Native => Ok(()),
            Role::Weight(_) | Role::Filter(_) | Role::FloatFilter(_) => Ok(()),
        };
        for fault in made.err().iter().flat_map(Error::diagnostics) {
            let subject = format!("{}: {}", self.description.name, tensor.name);
            self.faults.push(fault.clone().subject(subject));
        }
    }

    fn encoding(&mut self, tensor: &Tensor) {
        let offsets = match tensor.dtype {
            DataType::U8 => Some(-255..=0),
            DataType::U16 => Some(-65535..=0),
            DataType::S8 => Some(-127..=128),
            DataType::S32 => Some(0..=0),
            DataType::F16 | DataType::F32 | DataType::I32 | DataType::U32 => None,
        };
        let is_filter = filter(tensor).is_some();
        let (name, dtype) = (&tensor.name, tensor.dtype.name());
        match (tensor.encoding, offsets) {
            (Some(_), _) if is_filter => {
                self.tell(Code::BadRange, "a filter has an encoding of its own beside that of its weight", name);
            }
            (None, _) if is_filter => {}
            (None, None) => {}
            (Some(_), None) => {
                self.tell_of(Code::BadRange, "numbers that mean themselves have an encoding", name, "none", dtype);
            }
            (None, Some(_)) => {
                let need = "a scale and an offset";
                self.tell_of(Code::BadRange, "numbers of a fixed point have no encoding", name, need, dtype);
            }
            (Some(ScaleOffset { scale, offset }), Some(offsets)) => {
                if !(scale.is_finite() && scale > 0.0 && offsets.contains(&offset)) {
                    let need =
                        format!("a finite scale above 0 and an offset of {} to {}", offsets.start(), offsets.end());
                    let have = format!("{scale} and {offset} of {dtype}");
                    self.tell_of(Code::BadRange, "the encoding of a tensor is none", name, need, have);
                }
            }
        }
    }

    /// Whether all places are those of tensors that may stand there; the rest of the check needs that.
    fn places(&mut self) -> bool {
        let tensors = &self.description.tensors;
        let before = self.faults.len();
        for node in &self.description.nodes {
            let params = node.param_tensors().map(|at| (Use::Parameter, at));
            let inputs = node.inputs.iter().map(|at| (Use::Operand, *at));
            let outputs = node.outputs.iter().map(|at| (Use::Result, *at));
            for (of, at) in params.chain(inputs).chain(outputs) {
                let Some(tensor) = tensors.get(at) else {
                    let need = format!("below {}", tensors.len());
                    self.tell_of(Code::BadBundle, "a node names a tensor that is not there", &node.name, need, at);
                    continue;
                };
                if !of.takes(&tensor.role) {
                    let message = format!("the {} of a node is a tensor that cannot be one", of.name());
                    self.tell(Code::BadBundle, &message, &format!("{}: {}", node.name, tensor.name));
                }
            }
            if node.outputs.is_empty() {
                self.tell(Code::BadBundle, "a node has no results", &node.name);
            }
        }
        self.faults.len() == before
    }

    /// Whether every value is made once, before it is used, and every port has a use.
    fn order(&mut self) {
        let Description { name: _, tensors, nodes } = self.description;
        let mut made = vec![false; tensors.len()];
        let mut used = vec![false; tensors.len()];
        for node in nodes {
            for at in node.param_tensors().chain(node.inputs.iter().copied()) {
                used[at] = true;
                let computed = matches!(tensors[at].role, Role::Output | Role::Native);
                if computed && !made[at] {
                    let subject = format!("{}: {}", node.name, tensors[at].name);
                    self.tell(Code::BadBundle, "a node uses a value that is not computed before it", &subject);
                }
            }
            for &at in &node.outputs {
                if std::mem::replace(&mut made[at], true) {
                    self.tell(Code::BadBundle, "a value is computed twice", &tensors[at].name);
                }
            }
        }
        for (at, tensor) in tensors.iter().enumerate() {
            match tensor.role {
                Role::Input if !used[at] => self.tell(Code::BadBundle, "no node uses an input", &tensor.name),
                Role::Output if !made[at] => self.tell(Code::BadBundle, "no node computes an output", &tensor.name),
                Role::Input | Role::Output | Role::Native => {}
                Role::Numbers(_) | Role::Reals(_) | Role::Weight(_) => {}
                Role::Filter(_) | Role::FloatFilter(_) => {}
            }
        }
    }

    /// Whether filters are where filters may be, and go with the activations.
    fn filters(&mut self, weights: &BTreeMap<String, Stored>) {
        let Description { name: _, tensors, nodes } = self.description;
        for tensor in tensors {
            let Some(stored) = filter(tensor).and_then(|name| weight(weights, name)) else { continue };
            let [outputs, inputs] = stored.shape[..] else {
                let have = stored.shape.to_string();
                self.tell_of(Code::WrongShape, "a filter is no matrix", &tensor.name, "[out, in]", have);
                continue;
            };
            let expected = [1, 1, inputs as u64, outputs as u64];
            if !tensor.shape.iter().map(|&extent| u64::from(extent)).eq(expected) {
                let (need, have) = (format!("[1, 1, {inputs}, {outputs}]"), shape(&tensor.shape));
                self.tell_of(Code::WrongShape, "a filter has another shape than its weight", &tensor.name, need, have);
            }
            let Some(encoding) = FilterEncoding::in_role(&tensor.role, stored.dtype) else {
                let need = "f16, int8, int4, lpbq4, bw4, q4_0 or q4_1";
                let message = "the format of a matrix has no form in QNN";
                self.tell_of(Code::UnsupportedFormat, message, &tensor.name, need, stored.dtype);
                continue;
            };
            if encoding.dtype() != tensor.dtype {
                let (need, have) = (encoding.dtype().name(), tensor.dtype.name());
                self.tell_of(Code::BadBundle, "a filter has another type than its weight", &tensor.name, need, have);
            }
            if encoding.reads_pairs_of_blocks() && !inputs.is_multiple_of(LPBQ_INPUTS) {
                let need = format!("inputs in multiples of {LPBQ_INPUTS}");
                let message = "blocks with whole scales are read wrongly";
                self.tell_of(Code::UnsupportedFormat, message, &tensor.name, need, inputs);
            }
            let block = stored.dtype.block_len();
            if encoding.has_blocks() && block < SMALLEST_BLOCK {
                let need = format!("blocks of at least {SMALLEST_BLOCK}");
                self.tell_of(Code::GroupSize, "too few inputs share a scale", &tensor.name, need, block);
            }
        }
        for node in nodes {
            for (port, &at) in node.inputs.iter().enumerate() {
                let Some(stored) = filter(&tensors[at]).and_then(|name| weight(weights, name)) else { continue };
                self.taken(node, port, &tensors[at].role, &stored);
            }
        }
    }

    /// A filter as an operand.
    fn taken(&mut self, node: &Node, port: usize, role: &Role, stored: &Stored) {
        let (subject, dtype) = (format!("{} ({})", node.name, node.op), stored.dtype);
        if node.op != CONVOLUTION || port != 1 {
            let have = format!("operand {port} of {}", node.op);
            let need = format!("operand 1 of {CONVOLUTION}");
            return self.tell_of(Code::UnsupportedFormat, "a filter is where none is taken", &subject, need, have);
        }
        let (Some(encoding), Some(&x)) = (FilterEncoding::in_role(role, dtype), node.inputs.first()) else { return };
        let activations = self.description.tensors[x].dtype;
        if !encoding.goes_with(activations) {
            let need = match encoding {
                FilterEncoding::Float => "f16 activations",
                FilterEncoding::FloatBlocks { .. } => "f16 activations and blocks of at most 128",
                FilterEncoding::Channels { .. } => "u16 or f16 activations",
                FilterEncoding::Blocks { .. } => "u16 activations",
            };
            let have = format!("{} with weights in {dtype}", activations.name());
            let message = "activations and weights do not go together";
            self.tell_of(Code::UnsupportedFormat, message, &subject, need, have);
        }
    }
}

/// What a node has a tensor for.
#[derive(Clone, Copy)]
enum Use {
    Parameter,
    Operand,
    Result,
}

impl Use {
    const fn name(self) -> &'static str {
        match self {
            Use::Parameter => "parameter",
            Use::Operand => "operand",
            Use::Result => "result",
        }
    }

    /// Whether a tensor of that role may be it.
    const fn takes(self, role: &Role) -> bool {
        let (is_constant, is_computed) = match role {
            Role::Input | Role::Filter(_) | Role::FloatFilter(_) => (false, false),
            Role::Output | Role::Native => (false, true),
            Role::Numbers(_) | Role::Reals(_) | Role::Weight(_) => (true, false),
        };
        match self {
            Use::Parameter => is_constant,
            Use::Operand => true,
            Use::Result => is_computed,
        }
    }
}

/// The name of the matrix that a filter is made of.
fn filter(tensor: &Tensor) -> Option<&str> {
    match &tensor.role {
        Role::Filter(name) | Role::FloatFilter(name) => Some(name),
        Role::Input | Role::Output | Role::Native | Role::Numbers(_) | Role::Reals(_) | Role::Weight(_) => None,
    }
}

fn shape(of: &[u32]) -> String {
    let extents: Vec<String> = of.iter().map(u32::to_string).collect();
    format!("[{}]", extents.join(", "))
}

#[cfg(test)]
mod tests;
