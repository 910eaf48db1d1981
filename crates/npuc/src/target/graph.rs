//! Measuring a graph against the rules of a target, one function per kind of limit.

use super::check::Question;
use super::hazard::{Danger, danger};
use super::number::WeightFormat;
use super::rule::{Cost, Extent, Hazard, Limit, Mend, Per, Remedy, Rule};
use super::{Chip, Grade, Misfit, Place, UnitKind, remedy};
use crate::back::BackEnd;
use crate::diag::{Code, Severity};
use crate::ir::{Def, Graph, Op, ValueId};
use crate::model::Port;
use crate::pass::Pass;
use crate::place::{Assignment, Side};

/// A place where a rule is broken.
struct Found {
    at: ValueId,
    message: String,
    actual: String,
    remedies: Vec<Remedy>,
}

/// A graph and what it is held against.
struct Scene<'a> {
    graph: &'a Graph,
    chip: &'a Chip,
    question: &'a Question,
    placement: &'a Assignment,
}

/// An operation of a graph.
struct At<'a> {
    id: ValueId,
    op: &'a Op,
    args: &'a [ValueId],
}

/// Every misfit of the operations that are placed on the NPU, unfolded.
pub(super) fn misfits(graph: &Graph, chip: &Chip, question: &Question, placement: &Assignment) -> Vec<Misfit> {
    let scene = Scene { graph, chip, question, placement };
    let mut all = scene.unsupported_ops();
    all.extend(scene.unsupported_formats());
    for rule in &chip.rules {
        all.extend(scene.broken(rule).into_iter().map(|found| scene.misfit(rule, found)));
    }
    all
}

/// The operations that are placed on the CPU, unfolded.
pub(super) fn fallbacks(graph: &Graph, chip: &Chip, placement: &Assignment) -> Vec<Misfit> {
    let cpu = chip.units.iter().find(|unit| unit.kind == UnitKind::Cpu);
    let misfit = |id: ValueId| match &graph.value(id).def {
        Def::Op { op, .. } if placement.side(id) == Some(Side::Cpu) => Some(Misfit {
            severity: Severity::Error,
            code: Code::UnsupportedOp,
            rule: "deny-fallback".into(),
            message: format!("`{}` is placed on the CPU", op.name()),
            unit: cpu.map_or_else(|| "CPU".into(), |unit| unit.name.0.clone()),
            limit: "every operation on the NPU (--deny-fallback)".into(),
            actual: format!("`{}`", op.name()),
            why: None,
            source: "--deny-fallback".into(),
            grade: Grade::Tried,
            remedies: vec![
                Remedy::new(Cost::Option, "let it go to the NPU, if that takes it")
                    .option(format!("--place op={}=npu", op.name())),
            ],
            places: vec![Place::value(graph, id)],
        }),
        Def::Op { .. } | Def::Input | Def::Weight => None,
    };
    graph.ids().filter_map(misfit).collect()
}

impl<'a> Scene<'a> {
    fn ops(&self) -> impl Iterator<Item = At<'a>> + use<'a> {
        let (graph, placement) = (self.graph, self.placement);
        graph.ids().filter_map(move |id| match &graph.value(id).def {
            Def::Op { op, args } if placement.side(id) != Some(Side::Cpu) => Some(At { id, op, args }),
            Def::Op { .. } | Def::Input | Def::Weight => None,
        })
    }

    fn shape(&self, id: ValueId) -> &'a [usize] {
        &self.graph.value(id).ty.shape
    }

    /// The operations that a rule is about.
    fn ruled(&self, rule: &'a Rule) -> impl Iterator<Item = At<'a>> + use<'a, '_> {
        let named = |at: &At<'_>| rule.ops.is_empty() || rule.ops.iter().any(|op| op.0 == at.op.name());
        self.ops().filter(move |at| named(at) && rule.when.holds(&self.question.precision, self.format(at)))
    }

    /// The format of a projection's weights.
    fn format(&self, at: &At<'_>) -> Option<WeightFormat> {
        let weight = *matrix(at)?;
        let value = self.graph.value(weight);
        (value.def == Def::Weight).then(|| self.question.precision.weight_format(value.ty.dtype))
    }

    /// The unit and the vendor's name of an operation, for messages.
    fn unit(&self, op: &str) -> String {
        match self.chip.taker(op, self.question.precision.activation) {
            Some((unit, name)) => format!("{} ({name})", unit.name),
            None => self.chip.main_unit().name.to_string(),
        }
    }

    fn misfit(&self, rule: &Rule, found: Found) -> Misfit {
        let unit = match &self.graph.value(found.at).def {
            Def::Op { op, .. } => self.unit(op.name()),
            Def::Input | Def::Weight => self.chip.main_unit().name.to_string(),
        };
        let mut remedies = found.remedies;
        remedies.extend(rule.remedies.iter().cloned());
        Misfit {
            severity: rule.severity,
            code: rule.limit.code(),
            rule: rule.name.0.clone(),
            message: found.message,
            unit,
            limit: rule.limit.to_string(),
            actual: found.actual,
            why: rule.why.as_ref().map(ToString::to_string),
            source: rule.source.0.clone(),
            grade: rule.grade,
            remedies,
            places: vec![Place::value(self.graph, found.at)],
        }
    }

    fn broken(&self, rule: &'a Rule) -> Vec<Found> {
        match &rule.limit {
            Limit::Dimension { max } => {
                self.ruled(rule).filter_map(|at| self.dimension(rule, &at, max.get())).collect()
            }
            Limit::Rank { max } => self.ruled(rule).filter_map(|at| self.rank(&at, max.get())).collect(),
            Limit::Batch { allowed } => {
                let allowed: Vec<usize> = allowed.iter().map(|rows| rows.get()).collect();
                self.ruled(rule).filter_map(|at| self.batch(&at, &allowed)).collect()
            }
            Limit::HeadDim { allowed } => {
                let allowed: Vec<usize> = allowed.iter().map(|dim| dim.get()).collect();
                self.ruled(rule).filter_map(|at| self.head_dim(&at, &allowed)).collect()
            }
            Limit::Multiple { extent, of } => {
                self.ruled(rule).filter_map(|at| self.multiple(&at, *extent, of.get())).collect()
            }
            Limit::GroupDivides {} => self.ruled(rule).filter_map(|at| self.group(&at)).collect(),
            Limit::Bytes { per: Per::Tensor, max } => self.tensor_bytes(rule, max.get()),
            Limit::OnChip { max } => self.ruled(rule).filter_map(|at| self.on_chip(&at, max.get())).collect(),
            Limit::Accumulator { bits } => {
                self.ruled(rule).filter_map(|at| self.accumulator(&at, bits.get())).collect()
            }
            Limit::Fp16Range { hazard } => self.ruled(rule).filter_map(|at| self.hazard(&at, *hazard)).collect(),
            Limit::Generation { min } => self.generation(rule, *min).into_iter().collect(),
            // The ledger measures these over chunks.
            Limit::OpCount { .. }
            | Limit::BindingCount { .. }
            | Limit::Bytes { per: Per::File | Per::Graph | Per::Context, .. } => Vec::new(),
        }
    }

    fn dimension(&self, rule: &Rule, at: &At<'_>, max: usize) -> Option<Found> {
        let operands = at.args.iter().enumerate().map(|(i, &arg)| (format!("operand {i}"), self.shape(arg)));
        let result = [("result".to_owned(), self.shape(at.id))];
        let over: Vec<String> = operands
            .chain(result)
            .filter(|(_, shape)| shape.iter().any(|&extent| extent > max))
            .map(|(name, shape)| format!("{name} {shape:?}"))
            .collect();
        if over.is_empty() {
            return None;
        }
        let mut remedies = Vec::new();
        if let Some(outputs) = self.outputs_alone_over(at, max) {
            for unless in &rule.unless {
                let concerns = unless.ops.is_empty() || unless.ops.iter().any(|op| op.0 == at.op.name());
                let multiple = unless.output_multiple_of.is_none_or(|of| outputs.is_multiple_of(of.get()));
                if concerns && multiple && self.question.flags.contains(&unless.flag.0) {
                    return None;
                }
                remedies.extend(concerns.then(|| remedy::flag(unless, outputs, self.is_logits(at.id))));
            }
            remedies.push(remedy::outputs(outputs, max, self.head_unit(at, outputs)));
        } else if self.is_cache_wide(at, max) {
            remedies.push(Remedy::new(Cost::Option, "a shorter context").option("--shapes"));
        }
        let widest = self.widest(at);
        let message = format!("an extent of `{}` is {widest}, more than the unit takes", at.op.name());
        Some(Found { at: at.id, message, actual: over.join(", "), remedies })
    }

    /// The outputs of a projection, if nothing else of it is over `max`.
    fn outputs_alone_over(&self, at: &At<'_>, max: usize) -> Option<usize> {
        matrix(at)?;
        let (&outputs, rows) = self.shape(at.id).split_last()?;
        let fits = |shape: &[usize]| shape.iter().all(|&extent| extent <= max);
        let input_fits = fits(self.shape(*at.args.first()?));
        (outputs > max && fits(rows) && input_fits).then_some(outputs)
    }

    /// Whether what is over `max` is the row of past and new positions.
    fn is_cache_wide(&self, at: &At<'_>, max: usize) -> bool {
        let mask =
            self.graph.values.iter().find(|value| value.def == Def::Input && value.name == Port::Mask.to_string());
        let positions = mask.and_then(|mask| mask.ty.shape.last().copied());
        positions.is_some_and(|positions| positions > max && self.widest(at) <= positions)
    }

    fn widest(&self, at: &At<'_>) -> usize {
        at.args.iter().chain([&at.id]).flat_map(|&id| self.shape(id)).copied().max().unwrap_or(0)
    }

    fn rank(&self, at: &At<'_>, max: usize) -> Option<Found> {
        let rank = at.args.iter().chain([&at.id]).map(|&id| self.shape(id).len()).max()?;
        (rank > max).then(|| Found {
            at: at.id,
            message: format!("`{}` has rank {rank}, more than the unit takes", at.op.name()),
            actual: format!("rank {rank}: {:?}", self.shape(at.id)),
            remedies: vec![
                Remedy::new(Cost::Rewrite, "join neighbouring axes with a reshape around the operation")
                    .mend(Mend::Pass(Pass::JoinAxes)),
            ],
        })
    }

    fn batch(&self, at: &At<'_>, allowed: &[usize]) -> Option<Found> {
        matrix(at)?;
        let rows: usize = self.shape(at.id).split_last()?.1.iter().product();
        let largest = allowed.iter().copied().filter(|&of| rows.is_multiple_of(of)).max();
        let steps = |of| Remedy::new(Cost::Option, format!("steps of {of} tokens")).option("--shapes");
        let conv = Remedy::new(Cost::Rewrite, "compute it as a convolution of 1 x 1, which has no such limit")
            .mend(Mend::Pass(Pass::LinearToConv));
        let takes_conv = self.chip.taker("pointwise_conv", self.question.precision.activation).is_some();
        (!allowed.contains(&rows)).then(|| Found {
            at: at.id,
            message: format!("`{}` computes {rows} rows at once", at.op.name()),
            actual: format!("{rows} rows"),
            remedies: largest.map(steps).into_iter().chain(takes_conv.then_some(conv)).collect(),
        })
    }

    fn head_dim(&self, at: &At<'_>, allowed: &[usize]) -> Option<Found> {
        let scores = matches!(at.op, Op::Attention { .. } | Op::MatMul { transpose_b: true });
        let dim = *self.shape(*at.args.first()?).last()?;
        (scores && !allowed.contains(&dim)).then(|| {
            let wider = allowed.iter().copied().filter(|&of| of > dim).min();
            Found {
                at: at.id,
                message: format!("attention has heads of width {dim}"),
                actual: format!("width {dim}"),
                remedies: wider
                    .map(|of| Remedy::new(Cost::Rewrite, format!("pad every head with zeros to {of}")))
                    .into_iter()
                    .collect(),
            }
        })
    }

    fn multiple(&self, at: &At<'_>, extent: Extent, of: usize) -> Option<Found> {
        matrix(at)?;
        let outputs = *self.shape(at.id).last()?;
        let (name, len) = match extent {
            Extent::Vocabulary if !self.is_logits(at.id) => return None,
            Extent::Vocabulary => ("vocabulary", outputs),
            Extent::Outputs => ("outputs", outputs),
            Extent::Inputs => ("inputs", *self.shape(*at.args.first()?).last()?),
        };
        let padded = len.div_ceil(of) * of;
        let mut pad = Remedy::new(
            Cost::Rewrite,
            match extent {
                Extent::Vocabulary => format!(
                    "pad the {len} outputs to {padded}; the runner never samples the {} added ones",
                    padded - len
                ),
                Extent::Outputs => format!("pad the {len} outputs to {padded} and cut the result"),
                Extent::Inputs => format!("pad the {len} inputs with zeros to {padded}"),
            },
        );
        if extent != Extent::Inputs
            && let Some(unit) = self.head_unit(at, len)
        {
            pad = pad.mend(Mend::SplitHead(remedy::split(len, self.largest_extent(), unit)));
        }
        let mut remedies = vec![pad];
        if extent != Extent::Inputs && len > of {
            let (whole, rest) = (len / of * of, len % of);
            remedies.push(Remedy::new(
                Cost::Rewrite,
                format!("split unevenly into {whole} and {rest} outputs, the rest on the CPU"),
            ));
        }
        (!len.is_multiple_of(of)).then(|| Found {
            at: at.id,
            message: format!("the {name} of `{}` is not a multiple of {of}", at.op.name()),
            actual: format!("{len}, that is {of} x {} + {}", len / of, len % of),
            remedies,
        })
    }

    fn is_logits(&self, id: ValueId) -> bool {
        self.score_port(id).is_some()
    }

    /// The port of scores that a value leaves by, through reshapes.
    fn score_port(&self, id: ValueId) -> Option<Port> {
        let source = |mut value: ValueId| {
            while let Def::Op { op: Op::Reshape { .. }, args } = &self.graph.value(value).def {
                value = args[0];
            }
            value
        };
        let ports = self.graph.outputs.iter().filter(|output| output.value == id || source(output.value) == id);
        let mut ports = ports.filter_map(|output| output.name.parse().ok());
        ports.find(|port| matches!(port, Port::Logits | Port::LogitsPart(_)))
    }

    /// The largest extent that all rules on extents allow.
    fn largest_extent(&self) -> usize {
        let max = |rule: &Rule| {
            let Limit::Dimension { max } = &rule.limit else { return None };
            rule.when.holds(&self.question.precision, None).then_some(max.get())
        };
        self.chip.rules.iter().filter_map(max).min().unwrap_or(usize::MAX)
    }

    /// What the parts of a head must be multiples of, where the operation is a head that is still whole: what the
    /// target's rules ask for, or 16 if that divides the outputs already.
    fn head_unit(&self, at: &At<'_>, outputs: usize) -> Option<usize> {
        self.score_port(at.id).filter(|port| *port == Port::Logits)?;
        let unit = |rule: &Rule| {
            let Limit::Multiple { extent, of } = rule.limit else { return None };
            let concerns = extent != Extent::Inputs && rule.when.holds(&self.question.precision, self.format(at));
            concerns.then_some(of.get())
        };
        let units = self.chip.rules.iter().filter_map(unit);
        Some(units.max().unwrap_or(if outputs.is_multiple_of(16) { 16 } else { 1 }))
    }

    fn group(&self, at: &At<'_>) -> Option<Found> {
        let format = self.format(at)?;
        let super::Granularity::Group(len) = format.granularity else { return None };
        let inputs = *self.shape(*at.args.first()?).last()?;
        (len > 0 && !inputs.is_multiple_of(len)).then(|| Found {
            at: at.id,
            message: format!("groups of {len} do not divide the {inputs} inputs of `{}`", at.op.name()),
            actual: format!("{inputs}, that is {len} x {} + {}", inputs / len, inputs % len),
            remedies: remedy::groups(self.chip, &self.question.precision, format, inputs),
        })
    }

    /// Weights of more than `max` bytes, whatever reads them.
    fn tensor_bytes(&self, rule: &Rule, max: u64) -> Vec<Found> {
        let precision = &self.question.precision;
        let matrices = self.ops().filter_map(|at| Some((at.id, *matrix(&at)?)));
        let over = matrices.filter_map(|(at, weight)| {
            let ty = &self.graph.value(weight).ty;
            let format = precision.weight_format(ty.dtype);
            let bytes = format.bytes(&ty.shape).unwrap_or(u64::MAX);
            (bytes > max && rule.when.holds(precision, Some(format))).then(|| Found {
                at,
                message: format!("the weight `{}` is larger than the target takes", self.graph.value(weight).name),
                actual: format!("{bytes} bytes ({format}, {})", ty.shape),
                remedies: vec![remedy::outputs(
                    ty.shape.first().copied().unwrap_or(1),
                    remedy::rows_within(max, bytes, ty.shape.first().copied().unwrap_or(1)),
                    None,
                )],
            })
        });
        over.collect()
    }

    fn on_chip(&self, at: &At<'_>, max: u64) -> Option<Found> {
        let row = match at.op {
            Op::Linear {}
            | Op::PointwiseConv {}
            | Op::MatMul { .. }
            | Op::Softmax {}
            | Op::RmsNorm { .. }
            | Op::LayerNorm { .. } => self.shape(*at.args.first()?).last(),
            Op::Sum { axis } | Op::Mean { axis } | Op::Max { axis } => self.shape(*at.args.first()?).get(*axis),
            Op::Rope {}
            | Op::ShortConv {}
            | Op::Attention { .. }
            | Op::Silu {}
            | Op::Gelu {}
            | Op::Sigmoid {}
            | Op::Exp {}
            | Op::Abs {}
            | Op::Rsqrt {}
            | Op::Affine { .. }
            | Op::Add {}
            | Op::Sub {}
            | Op::Mul {}
            | Op::Div {}
            | Op::Concat { .. }
            | Op::Slice { .. }
            | Op::Reshape { .. }
            | Op::Transpose { .. } => None,
        };
        let bytes = (*row? as u64).saturating_mul(self.question.precision.activation_bytes());
        let op = at.op.name();
        (bytes > max).then(|| Found {
            at: at.id,
            message: format!("a row of the operand of `{op}` does not fit the memory next to the arithmetic"),
            actual: format!("{bytes} bytes ({} elements)", row.copied().unwrap_or(0)),
            remedies: vec![Remedy::new(Cost::Option, "a shorter context or narrower activations").option("--shapes")],
        })
    }

    /// The largest magnitude that a sum of products can reach against the accumulator's.
    fn accumulator(&self, at: &At<'_>, bits: u32) -> Option<Found> {
        let format = self.format(at)?;
        let activation = self.question.precision.activation;
        if activation.is_float() || format.number.is_float() {
            return None;
        }
        let inputs = *self.shape(*at.args.first()?).last()? as u128;
        let product_bits = activation.bits() + format.number.bits() - 2;
        let worst = inputs.checked_mul(1u128.checked_shl(product_bits)?)?;
        let largest = 1u128.checked_shl(bits - 1).map_or(u128::MAX, |limit| limit - 1);
        (worst > largest).then(|| Found {
            at: at.id,
            message: format!("sums of {inputs} products can leave an accumulator of {bits} bits"),
            actual: format!("up to 2^{} ({inputs} x 2^{product_bits})", worst.next_power_of_two().trailing_zeros()),
            remedies: Vec::new(),
        })
    }

    fn hazard(&self, at: &At<'_>, hazard: Hazard) -> Option<Found> {
        let Danger { message, actual, remedies } = danger(self.graph, at.id, hazard, self.chip.hidden_mask)?;
        Some(Found { at: at.id, message: message.into(), actual, remedies })
    }

    fn generation(&self, rule: &'a Rule, min: u32) -> Option<Found> {
        let generation = self.chip.generation.as_ref().filter(|generation| generation.major < min)?;
        if !rule.when.holds(&self.question.precision, None) {
            return None;
        }
        // The statement is about the model, wherever its operations are placed.
        let is_attention = |id: &ValueId| match &self.graph.value(*id).def {
            Def::Op { op, .. } => matches!(op, Op::Attention { .. } | Op::Softmax {} | Op::MatMul { .. }),
            Def::Input | Def::Weight => false,
        };
        let at = self.graph.ids().find(is_attention)?;
        Some(Found {
            at,
            message: format!("the vendor does not promise transformers on {}", generation.name),
            actual: format!("{}, generation {}", generation.name, generation.major),
            remedies: vec![Remedy::new(Cost::Other, format!("choose a chip of generation {min} or later"))],
        })
    }

    fn unsupported_ops(&self) -> Vec<Misfit> {
        let activation = self.question.precision.activation;
        let has_npu = self.chip.units.iter().any(|unit| unit.kind == UnitKind::Npu);
        let misfit = |at: At<'a>| {
            let name = if self.is_reshape(&at) { "reshape" } else { at.op.name() };
            match self.chip.taker(name, activation) {
                None => Some(self.refused(&at, name)),
                Some((unit, _)) if unit.kind == UnitKind::Cpu && has_npu => Some(self.beside_npu(&at, name)),
                Some(_) => None,
            }
        };
        self.ops().filter_map(misfit).collect()
    }

    /// Whether a transposition moves only axes of extent 1, or turns a weight that modules for Torq hold turned.
    fn is_reshape(&self, at: &At<'_>) -> bool {
        let (Op::Transpose { perm }, Some(&arg)) = (at.op, at.args.first()) else { return false };
        if self.chip.back_end == Some(BackEnd::Torq) && self.graph.value(arg).def == Def::Weight {
            return true;
        }
        let wide = |axis: &usize| self.shape(arg).get(*axis).is_some_and(|&len| len > 1);
        perm.iter().copied().filter(wide).is_sorted()
    }

    fn refused(&self, at: &At<'_>, name: &str) -> Misfit {
        let chip = self.chip;
        let activation = self.question.precision.activation;
        let refusal = chip.ops.iter().find(|ops| ops.refuses.keys().any(|op| op.0 == name));
        let taken_otherwise = chip.ops.iter().find(|ops| ops.takes.keys().any(|op| op.0 == name));
        let statement = refusal.or(taken_otherwise).unwrap_or(&chip.ops[0]);
        let known_as = refusal.and_then(|ops| ops.refuses.iter().find(|(op, _)| op.0 == name)).map(|(_, text)| text);
        let (actual, mut remedies) = match taken_otherwise {
            Some(ops) => {
                let list: Vec<&str> = ops.activations.iter().map(|number| number.name()).collect();
                let actual = format!("`{name}` in {}, which is taken in {}", activation.name(), list.join(", "));
                (actual, remedy::precisions(chip, &self.question.precision))
            }
            None => (format!("`{name}`"), vec![remedy::other_chip()]),
        };
        if chip.has_cpu_beside_npu() && chip.builds_cpu_segments(&self.question.precision) {
            let rule = format!("op={name}=cpu");
            let text = "compute it on the CPU, between files of the NPU";
            remedies.push(Remedy::new(Cost::Cpu, text).option(format!("--place {rule}")).mend(Mend::Place(rule)));
        }
        let by = known_as.map_or_else(String::new, |text| format!(" ({text})"));
        let unit = statement.unit.clone();
        self.op_misfit(
            at,
            Severity::Error,
            format!("no unit takes `{name}`{by}"),
            unit,
            actual,
            chip.why_whole(),
            statement,
            remedies,
        )
    }

    fn beside_npu(&self, at: &At<'_>, name: &str) -> Misfit {
        let chip = self.chip;
        let taken = chip.taker(name, self.question.precision.activation);
        let (unit, vendor) = taken.map_or(("", ""), |(unit, vendor)| (unit.name.0.as_str(), vendor));
        let statement = chip.ops.iter().find(|ops| ops.unit == unit).unwrap_or(&chip.ops[0]);
        let severity = if chip.fallback { Severity::Warning } else { Severity::Error };
        let remedies = if chip.fallback { Vec::new() } else { vec![remedy::other_chip()] };
        let message = format!("`{name}` is computed by the {unit}, not the NPU");
        let actual = format!("`{name}` ({vendor})");
        self.op_misfit(at, severity, message, unit.to_owned(), actual, chip.why_whole(), statement, remedies)
    }

    #[expect(clippy::too_many_arguments, reason = "each is one line of the misfit")]
    fn op_misfit(
        &self,
        at: &At<'_>,
        severity: Severity,
        message: String,
        unit: String,
        actual: String,
        why: Option<String>,
        statement: &super::OpSupport,
        remedies: Vec<Remedy>,
    ) -> Misfit {
        Misfit {
            severity,
            code: Code::UnsupportedOp,
            rule: "operations".into(),
            message,
            unit,
            limit: format!("operations of {}", statement.unit),
            actual,
            why,
            source: statement.source.0.clone(),
            grade: statement.grade,
            remedies,
            places: vec![Place::value(self.graph, at.id)],
        }
    }

    /// Projections whose weights and activations the chip does not take together.
    fn unsupported_formats(&self) -> Vec<Misfit> {
        let precision = &self.question.precision;
        let misfit = |at: At<'a>| {
            let format = self.format(&at)?;
            let of_activation = || self.chip.formats.iter().filter(|row| row.activation == precision.activation);
            let inputs = matrix(&at).and_then(|&id| self.graph.value(id).ty.shape.last().copied()).unwrap_or(1);
            if of_activation().any(|row| row.takes_inputs(format, inputs)) {
                return None;
            }
            let near = of_activation().find(|row| row.weights.contains(&format.number));
            let (source, grade) = match near.or_else(|| of_activation().next()).or(self.chip.formats.first()) {
                Some(row) => (row.source.0.clone(), row.grade),
                None => ("the target's file lists no format".to_owned(), Grade::Inferred),
            };
            let multiple = near.filter(|row| row.takes(format)).and_then(|row| row.inputs_multiple_of);
            let inputs = |text: String| multiple.map_or(text.clone(), |_| format!("{text}, {inputs} inputs"));
            Some(Misfit {
                severity: Severity::Error,
                code: Code::UnsupportedFormat,
                rule: "formats".into(),
                message: format!("weights in {format} are not taken with {} activations", precision.activation.name()),
                unit: self.unit(at.op.name()),
                limit: match multiple {
                    None => "a row of the target's table of formats".into(),
                    Some(of) => format!("inputs in multiples of {of} for this format"),
                },
                actual: inputs(format!("{} activations, {format} weights", precision.activation.name())),
                why: None,
                source,
                grade,
                remedies: remedy::precisions(self.chip, precision),
                places: vec![Place::value(self.graph, at.id)],
            })
        };
        self.ops().filter_map(misfit).collect()
    }
}

/// The matrix of a projection.
fn matrix<'a>(at: &At<'a>) -> Option<&'a ValueId> {
    at.op.is_projection().then(|| at.args.get(1)).flatten()
}
