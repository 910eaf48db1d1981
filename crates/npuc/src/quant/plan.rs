//! What a recipe means for a checkpoint: the format of every weight, whether it may have it, and how many bytes that makes.

use crate::back::BackEnd;
use crate::diag::{Code, Diagnostic, Error, Result, Severity};
use crate::front::{Checkpoint, ModelConfig};
use crate::model::{self, Role, WeightSpec, llama};
use crate::target::{Number, Target, WeightFormat};
use crate::tensor::{DType, Shape, byte_len};

use super::fold::{Fold, Folds};
use super::recipe::{Activation, Kv, Recipe, Residual};
use super::stream::Scales;

/// Where quantised weights go, which decides what formats there may be.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A chip, or the host.
    Target(Target),
    /// A GGUF file.
    Gguf,
}

/// What the scales of blocks are there.
fn scales(destination: &Destination) -> Scales {
    match destination {
        Destination::Target(target) if target.back_end == Some(BackEnd::Torq) => Scales::PositiveBf16,
        Destination::Target(_) | Destination::Gguf => Scales::F16,
    }
}

/// A change that the user did not ask for: a fault if none is wanted, else a note.
fn tell(change: Option<Diagnostic>, strict: bool, faults: &mut Vec<Diagnostic>, notes: &mut Vec<Diagnostic>) {
    if strict {
        faults.extend(change);
    } else {
        notes.extend(change.map(warning));
    }
}

/// Weights that keep their format but not their numbers, where the compiler takes no other scales than positive bf16 ones.
fn rounded_anew(plan: &Plan) -> Option<Diagnostic> {
    let is_anew = |weight: &&Planned| weight.from == weight.to && matches!(weight.to, DType::Q4_0 | DType::Q8_0);
    let count = plan.weights.iter().filter(is_anew).count();
    (plan.scales == Scales::PositiveBf16 && count > 0).then(|| {
        Diagnostic::error(Code::UnsupportedFormat, "stored blocks are rounded anew")
            .need("scales that are positive bf16 numbers: others keep the compiler from folding weights into their product")
            .have(format!("{count} weights in q4_0 or q8_0 with scales in f16"))
            .help("build from the unquantised model, or compare with `npuc verify DIR --against MODEL`")
    })
}

/// The weights of a quantised model.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The model; a tied head that gets a format of its own is no longer tied.
    pub config: ModelConfig,
    /// Every weight, in the order of the computation.
    pub weights: Vec<Planned>,
    /// What was replaced, and the bytes that a copy of the head costs.
    pub notes: Vec<Diagnostic>,
    /// What the scales of blocks are.
    pub scales: Scales,
}

/// A weight and what becomes of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The canonical name.
    pub name: String,
    /// The canonical name of the weight that it is made of: its own but for the copy of a tied head.
    pub source: String,
    /// What it is for.
    pub role: Role,
    /// The extents; projections are `[out, in]`.
    pub shape: Shape,
    /// How it is stored.
    pub from: DType,
    /// How it will be stored.
    pub to: DType,
}

impl Planned {
    /// The bytes of the quantised weight.
    pub fn bytes(&self) -> u64 {
        byte_len(self.to, &self.shape).unwrap_or(usize::MAX) as u64
    }
}

impl Plan {
    /// What `recipe` makes of a checkpoint.
    ///
    /// What a destination cannot take is replaced by its nearest format with at least as many bits, which is told in
    /// [`Plan::notes`]; with `strict` it is an error.
    ///
    /// Errors: [`Code::BadRecipe`] for lines about no matrix; [`Code::MissingTensor`]; [`Code::GroupSize`] and [`Code::UnsupportedFormat`] for
    /// formats that cannot be and have no nearest one, all at once.
    pub fn new(
        checkpoint: &Checkpoint,
        folds: &Folds,
        recipe: &Recipe,
        destination: &Destination,
        strict: bool,
    ) -> Result<Plan> {
        recipe.check_names(&checkpoint.config)?;
        let activation = activation(recipe, destination)?;
        let mut specs = model::weight_specs(folds.config());
        let (config, scales) = (folds.config().clone(), scales(destination));
        let mut plan = Plan { config, weights: Vec::new(), notes: Vec::new(), scales };
        if let Some(head) = untied_head(recipe, &specs, checkpoint).filter(|_| folds.config().tied()) {
            plan.config = plan.config.with_tied(false);
            specs.push(head);
        }
        let mut faults = idle_settings(recipe, destination);
        if !strict {
            plan.notes.extend(faults.drain(..).map(warning));
        }
        for spec in specs {
            let is_copy = spec.role == Role::Head && checkpoint.config.tied();
            let source = if is_copy { llama::EMBEDDING } else { &spec.name };
            let Some(tensor) = checkpoint.tensors.get(source) else {
                faults
                    .push(Diagnostic::error(Code::MissingTensor, "a weight of the model is not there").subject(source));
                continue;
            };
            let is_kept = folds.get(&spec.name).is_none_or(Fold::is_kept);
            let from = if is_kept { tensor.dtype } else { DType::F32 };
            let legal = |dtype| is_legal(dtype, from, &spec, plan.config.tied(), destination, activation);
            let kept = kept_format(&spec, tensor.dtype, is_kept);
            let of_stem = (spec.role == Role::Stem && legal(kept).is_err()).then(|| stem_format(activation)).flatten();
            let wanted = recipe.format(&spec).or(of_stem).unwrap_or(kept);
            let to =
                match legal(wanted) {
                    Ok(()) => wanted,
                    Err(fault) => match nearest(&spec, wanted, legal) {
                        Some(dtype) if !strict => {
                            plan.notes.push(warning(*fault).help(format!(
                                "it becomes {dtype}; name a format in the recipe, or refuse with --strict"
                            )));
                            dtype
                        }
                        Some(dtype) => {
                            faults.push(fault.help(format!("the nearest that can be is {dtype}")));
                            wanted
                        }
                        None => {
                            faults.push(fault.help(instead(legal)));
                            wanted
                        }
                    },
                };
            let unkept =
                (!is_kept && recipe.format(&spec).is_none()).then(|| unkept(&spec, tensor.dtype, to)).flatten();
            tell(unkept, strict, &mut faults, &mut plan.notes);
            let source = source.to_owned();
            let planned = Planned { name: spec.name, source, role: spec.role, shape: spec.shape, from, to };
            plan.notes.extend(head_note(&planned));
            plan.weights.push(planned);
        }
        tell(rounded_anew(&plan), strict, &mut faults, &mut plan.notes);
        Error::check(faults)?;
        Ok(plan)
    }

    /// The bytes of all weights.
    pub fn bytes(&self) -> u64 {
        self.weights.iter().map(Planned::bytes).sum()
    }

    /// Bits of a weight, over all matrices: projections, head and table.
    pub fn bits_per_weight(&self) -> f64 {
        let matrices = || self.weights.iter().filter(|weight| weight.role.is_matrix());
        let elements: f64 = matrices().map(|weight| weight.shape.elements().unwrap_or(0) as f64).sum();
        8.0 * matrices().map(|weight| weight.bytes() as f64).sum::<f64>() / elements.max(1.0)
    }

    /// The weight of that name.
    pub fn find(&self, name: &str) -> Option<&Planned> {
        self.weights.iter().find(|weight| weight.name == name)
    }
}

/// What a head costs that is no longer the table.
fn head_note(planned: &Planned) -> Option<Diagnostic> {
    let message = "the tied head gets a format of its own, as a copy of the table";
    let bytes = || format!("{} more bytes in {}", planned.bytes(), planned.to);
    let note = || Diagnostic::warning(Code::TiedHead, message).subject(&planned.name).have(bytes());
    (planned.name != planned.source).then(note)
}

/// Told of a matrix that something is folded into and that was to stay as it is stored.
fn unkept(spec: &WeightSpec, stored: DType, to: DType) -> Option<Diagnostic> {
    let message = "a weight that something is folded into cannot stay as it is stored";
    let fault = || Diagnostic::error(Code::UnsupportedFormat, message).subject(&spec.name);
    let told = || fault().need("a format in the recipe").have(format!("{stored}, which becomes {to}"));
    (to != stored && spec.role.is_matrix()).then(told)
}

fn warning(fault: Diagnostic) -> Diagnostic {
    Diagnostic { severity: Severity::Warning, ..fault }
}

/// What a recipe says of activations, caches and the residual stream and a destination does not do.
fn idle_settings(recipe: &Recipe, destination: &Destination) -> Vec<Diagnostic> {
    let is_float = !recipe.activation.is_whole();
    let target = match destination {
        Destination::Target(target) => Some(target),
        Destination::Gguf => None,
    };
    let is_tflite = target.is_some_and(|target| target.back_end == Some(BackEnd::Tflite));
    let computes_f32 = target.is_none_or(|target| target.is_host());
    let idle = [
        (
            "act",
            recipe.activation.name(),
            recipe.activation == Activation::F16 && computes_f32,
            "f32 is computed there",
        ),
        ("kv", recipe.kv.name(), recipe.kv != Kv::Same && (is_float || is_tflite), "caches are as activations are"),
        (
            "residual",
            recipe.residual.name(),
            recipe.residual == Residual::Same && (is_float || is_tflite),
            "the residual stream is float there",
        ),
    ];
    let fault = |(key, value, _, why): (&str, &str, bool, &str)| {
        let message = format!("a line of the recipe has no effect: {why}");
        Diagnostic::error(Code::UnsupportedFormat, message).subject(key).have(value).help("leave the line out")
    };
    idle.into_iter().filter(|(_, _, idle, _)| *idle).map(fault).collect()
}

/// The format of a weight that the recipe leaves as it is: the stored one, but floats where something is folded in, and
/// f32 for what is folded into a gain or bias.
fn kept_format(spec: &WeightSpec, stored: DType, is_kept: bool) -> DType {
    if is_kept {
        stored
    } else if !spec.role.is_matrix() {
        DType::F32
    } else if stored.is_block() {
        DType::F16
    } else {
        stored
    }
}

/// The format that the convolutions of a stem get where a target does not take what is stored: no rule of a recipe names them,
/// so it follows the activations.
const fn stem_format(activation: Number) -> Option<DType> {
    match activation {
        Number::F32 => Some(DType::F32),
        Number::F16 => Some(DType::F16),
        Number::Bf16 => Some(DType::BF16),
        Number::Int16 | Number::Int8 => Some(DType::Int8),
        Number::Int4 | Number::Block(_) => None,
    }
}

/// The head of a tied model as a weight of its own, if the recipe gives it another format than the table.
fn untied_head(recipe: &Recipe, specs: &[WeightSpec], checkpoint: &Checkpoint) -> Option<WeightSpec> {
    let table = specs.iter().find(|spec| spec.role == Role::Embedding).filter(|_| checkpoint.config.tied())?;
    let stored = checkpoint.tensors.get(&table.name)?.dtype;
    let (head, of_table) = (recipe.head_format().unwrap_or(stored), recipe.format(table).unwrap_or(stored));
    (head != of_table).then(|| WeightSpec { name: llama::HEAD.into(), shape: table.shape.clone(), role: Role::Head })
}

/// The activations at the destination.
///
/// Errors: [`Code::UnsupportedFormat`] for those that it does not have.
pub fn activation(recipe: &Recipe, destination: &Destination) -> Result<Number> {
    let fault = |message: &str| Diagnostic::error(Code::UnsupportedFormat, message).have(recipe.activation.name());
    match destination {
        Destination::Gguf => match recipe.activation {
            Activation::Float | Activation::F32 | Activation::F16 => Ok(Number::F32),
            Activation::Int16 | Activation::U16 | Activation::S16 | Activation::U8 => {
                let fault = fault("a GGUF file says nothing of activations");
                Err(fault.need("act = \"float\"").help("write a bundle instead: name a folder with -o").into())
            }
        },
        Destination::Target(target) => {
            let number = recipe.activation.number(target.float);
            let of_host = target.is_host();
            if recipe.activation == Activation::U16 && target.back_end == Some(BackEnd::Tflite) {
                return Err(fault("TFLite's 16-bit activations have no zero point").need("act = \"s16\"").into());
            }
            if !of_host && target.formats.iter().all(|row| row.activation != number) {
                let mut known: Vec<&str> = Vec::new();
                for name in target.formats.iter().map(|row| row.activation.name()) {
                    if !known.contains(&name) {
                        known.push(name);
                    }
                }
                let fault = fault("the target does not compute with these activations").subject(&target.name);
                return Err(fault.need(format!("one of {}", known.join(", "))).into());
            }
            Ok(if of_host { Number::F32 } else { number })
        }
    }
}

/// Whether a weight may have a format.
pub(super) fn is_legal(
    dtype: DType,
    stored: DType,
    spec: &WeightSpec,
    tied: bool,
    destination: &Destination,
    activation: Number,
) -> Result<(), Box<Diagnostic>> {
    let fault = |code, message: &str| Diagnostic::error(code, message).subject(&spec.name).have(dtype);
    let cols = spec.shape.last().copied().unwrap_or(1);
    if dtype != stored && !npuc_kernels::quantize::writable(dtype) {
        return Err(Box::new(fault(Code::UnsupportedFormat, "npuc reads this format and does not write it")));
    }
    if byte_len(dtype, &spec.shape).is_none() {
        let fault = fault(Code::GroupSize, "the groups of a format do not divide the rows of a weight");
        return Err(Box::new(
            fault.need(format!("a divisor of {cols} columns")).have(format!("groups of {}", dtype.block_len())),
        ));
    }
    let projection = match spec.role {
        Role::Attention | Role::FeedForward | Role::Convolution | Role::Head | Role::Stem => true,
        Role::Embedding => tied,
        Role::Norm | Role::Filter | Role::Bias | Role::Position => false,
    };
    match destination {
        Destination::Gguf if crate::front::gguf::type_id(dtype).is_none() => {
            Err(Box::new(fault(Code::UnsupportedFormat, "GGUF files have no such format")))
        }
        Destination::Target(target) if projection => {
            let format = WeightFormat::stored(dtype);
            let taken = target.formats.iter().any(|row| row.activation == activation && row.takes_inputs(format, cols));
            let fault = || {
                let fault = fault(Code::UnsupportedFormat, "the target does not take this format of weights");
                fault.need(format!("what `npuc targets {}` lists for {} activations", target.name, activation.name()))
            };
            if taken { Ok(()) } else { Err(Box::new(fault())) }
        }
        Destination::Gguf | Destination::Target(_) => Ok(()),
    }
}

/// What to ask for where nothing that can be has the bits of what is stored.
fn instead(legal: impl Fn(DType) -> Result<(), Box<Diagnostic>>) -> String {
    let floats = [DType::F16, DType::BF16].into_iter().find(|dtype| legal(*dtype).is_ok());
    floats.map_or_else(
        || "name another format or target".into(),
        |dtype| format!("`--recipe {dtype}` stores it as the target takes it"),
    )
}

/// The legal format with the fewest bits that has at least those of `wanted`, in its numbers as in all: scales make no levels.
fn nearest(spec: &WeightSpec, wanted: DType, legal: impl Fn(DType) -> Result<(), Box<Diagnostic>>) -> Option<DType> {
    let cols = spec.shape.last().copied().unwrap_or(1);
    // By the blocks alone, since they need not divide the columns.
    let bits = |dtype: DType| {
        8.0 * (dtype.block_bytes() as f64 / dtype.block_len() as f64 + dtype.row_header_bytes() as f64 / cols as f64)
    };
    let writable = DType::ALL.into_iter().filter(|dtype| npuc_kernels::quantize::writable(*dtype));
    let is_fine = |dtype: &DType| bits(*dtype) >= bits(wanted) && dtype.number_bits() >= wanted.number_bits();
    let candidates = writable.filter(|dtype| is_fine(dtype) && legal(*dtype).is_ok());
    candidates.min_by(|a, b| bits(*a).total_cmp(&bits(*b)))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
pub(super) mod tests;
