//! A program: everything a session needs, from a bundle or, built on the spot, from a checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use npuc::back::tflite::{Export, Exported, Storage, export};
use npuc::back::{BackEnd, Emitted};
use npuc::build::{self, Plan};
use npuc::bundle::write::Contents;
use npuc::bundle::{self, Bundle, TOKENIZER, is_bundle};
use npuc::fit::Request;
use npuc::front::{self, Checkpoint, ModelConfig};
use npuc::ir::Graph;
use npuc::model::{CacheProtocol, Part, StepShape};
use npuc::quant::Encodings;
use npuc::target::{Checked, Number, Precision, Target};
use npuc::{Diagnostic, Result, Tensor, target};

use crate::text::{BundleText, TextModel, bundle_text};

/// The capacity of a program that is built on the spot, unless the model's own is smaller.
pub const DEFAULT_CAPACITY: usize = 2048;
/// The capacity of a build for a chip, unless the model's own is smaller.
const RUNTIME_CAPACITY: usize = 1024;
/// The capacity of a build for Torq: that of a published export.
const TORQ_CAPACITY: usize = 64;
/// The tokens of the prefill step of a context binary. Source: a published one of Llama 3.2 3B.
const CONTEXT_PREFILL_TOKENS: usize = 32;
/// The tokens of the prefill steps of a program that is built on the spot: one for long prompts, one for
/// short ones and what is left.
pub const DEFAULT_PREFILL_TOKENS: [usize; 2] = [128, 16];

/// A model ready for sessions.
#[derive(Debug)]
pub struct Program {
    /// The model's shape.
    pub config: ModelConfig,
    /// How caches travel between steps.
    pub protocol: CacheProtocol,
    /// What masks hold where a position is hidden.
    pub hidden_mask: f32,
    /// Whether activations are whole numbers where the target computes.
    pub whole_numbers: bool,
    /// The steps, the one with most tokens first.
    pub steps: Vec<Step>,
    /// The weights by canonical name, rows in reading order.
    pub weights: BTreeMap<String, Tensor>,
    /// Tokenizer and chat template, if the model has a tokenizer; what is wrong with it if it cannot be used.
    /// Token ids run without.
    pub text: Result<Option<TextModel>>,
    /// Every id that ends an answer.
    pub eos: BTreeSet<u32>,
    /// What is odd but does not stop the work.
    pub warnings: Vec<Diagnostic>,
}

/// One step of the model.
#[derive(Clone, Debug)]
pub struct Step {
    /// Its shape.
    pub shape: StepShape,
    /// What computes it, in the order of execution.
    pub segments: Vec<Segment>,
}

/// A step or a part of it.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What the host executes.
    pub graph: Graph,
    /// The same graph in the form of the target's tools, where the target computes it.
    pub emitted: Option<PathBuf>,
    /// What the whole numbers of its values mean, where the host computes in them.
    pub encodings: Option<Arc<Encodings>>,
}

impl Program {
    /// Opens a bundle, or opens a checkpoint and builds it for the host with `shapes`.
    ///
    /// Errors: those of the bundle or checkpoint; `shapes` for a bundle, which has its own.
    pub fn open(path: &Path, shapes: Option<Vec<StepShape>>) -> Result<Program> {
        if !is_bundle(path) {
            return Program::from_checkpoint(front::open(path)?, shapes);
        }
        if shapes.is_some() {
            let fault = Diagnostic::error(npuc::Code::BadArgument, "a bundle has the shapes it was built with");
            return Err(fault.file(path).help("leave out --shapes, or name the checkpoint").into());
        }
        let bundle = Bundle::open(path)?;
        let Bundle { manifest, graphs, encodings, weights, tokenizer_json, chat_template, .. } = bundle;
        let whole_numbers = encodings.iter().flatten().any(Encodings::has_whole);
        let mut steps: Vec<Step> = Vec::new();
        for ((record, graph), encodings) in manifest.graphs.iter().zip(graphs).zip(encodings) {
            let emitted = record.emitted.as_ref().map(|name| path.join(name));
            let segment = Segment { graph, emitted, encodings: encodings.map(Arc::new) };
            match steps.last_mut().filter(|step| step.shape == record.shape) {
                Some(step) => step.segments.push(segment),
                None => steps.push(Step { shape: record.shape, segments: vec![segment] }),
            }
        }
        let text = tokenizer_json.map(|json| TextModel::from_bundle(&json, chat_template, &manifest.text)).transpose();
        let text = text.map_err(|e| e.in_file(&path.join(TOKENIZER)));
        Ok(Program {
            config: manifest.model,
            protocol: manifest.protocol,
            hidden_mask: manifest.hidden_mask as f32,
            whole_numbers: whole_numbers
                || Precision::parse(&manifest.precision, Number::F32).is_ok_and(|p| !p.activation.is_float()),
            steps,
            weights,
            text,
            eos: manifest.text.eos,
            warnings: Vec::new(),
        })
    }

    /// The graphs of all steps and segments, in order.
    pub fn graphs(&self) -> Vec<&Graph> {
        self.steps.iter().flat_map(|step| &step.segments).map(|segment| &segment.graph).collect()
    }

    /// Emits a checkpoint as TFLite files into the new folder `dir` and opens them, for the LiteRT interpreter.
    ///
    /// Errors: what cannot be emitted or written.
    pub fn through_tflite(
        checkpoint: &Checkpoint,
        request: &Request,
        parts: &[Part],
        storage: Storage<'_>,
        dir: &Path,
    ) -> Result<Program> {
        let storage = vec![storage; parts.len()];
        let exported = export(checkpoint, &Export { model: "model", request, parts, storage: &storage })?;
        let text = bundle_text(checkpoint).unwrap_or_default();
        let contents = exported_contents(request, exported, text);
        bundle::write::write(dir, checkpoint, contents, &mut |_, _| {})?;
        let mut program = Program::open(dir, None)?;
        // What is wrong with a tokenizer is told when text is asked for, not before.
        program.text = TextModel::of_checkpoint(checkpoint);
        program.warnings = checkpoint.warnings.clone();
        Ok(program)
    }

    /// Builds a checkpoint for the host.
    pub fn from_checkpoint(checkpoint: Checkpoint, shapes: Option<Vec<StepShape>>) -> Result<Program> {
        let shapes = shapes.unwrap_or_else(|| default_shapes(&checkpoint.config));
        let plan = Plan::new(target::host(), &checkpoint.config, shapes)?;
        Program::build(checkpoint, &plan)
    }

    /// Builds a checkpoint as planned, for execution on the host.
    pub fn build(checkpoint: Checkpoint, plan: &Plan) -> Result<Program> {
        let graphs = build::lower(&checkpoint, plan, |_, _, _| {})?;
        let step = |(shape, graph): (StepShape, Checked)| {
            let segment = Segment { graph: graph.graph().clone(), emitted: None, encodings: None };
            Step { shape, segments: vec![segment] }
        };
        let steps = graphs.into_iter().map(step).collect();
        Ok(Program::of_steps(checkpoint, &plan.target, steps))
    }

    /// A checkpoint with the steps that were made of it for a target.
    pub(crate) fn of_steps(checkpoint: Checkpoint, target: &Target, steps: Vec<Step>) -> Program {
        Program {
            protocol: target.protocol,
            hidden_mask: target.hidden_mask as f32,
            whole_numbers: false,
            steps,
            text: TextModel::of_checkpoint(&checkpoint),
            weights: checkpoint.tensors.iter().map(|(name, t)| (name.clone(), t.materialized())).collect(),
            eos: checkpoint.special.eos,
            warnings: checkpoint.warnings,
            config: checkpoint.config,
        }
    }
}

/// What a bundle of exported files holds.
pub fn exported_contents<'a>(request: &Request, exported: Exported<'a>, text: BundleText) -> Contents<'a> {
    let Exported { graphs, weights, files, .. } = exported;
    Contents { files, ..chip_contents(request, BackEnd::Tflite, graphs, weights, text) }
}

/// What a bundle for a chip holds besides the files of its tools.
pub fn chip_contents<'a>(
    request: &Request,
    back_end: BackEnd,
    graphs: Vec<Emitted>,
    weights: Vec<(&'a str, &'a Tensor)>,
    text: BundleText,
) -> Contents<'a> {
    Contents {
        target: request.target.clone(),
        back_end,
        precision: request.question.precision.name.clone(),
        recipe: None,
        calibration: None,
        mends: request.mends.clone(),
        flags: request.question.flags.clone(),
        placement: request.placement.clone(),
        hidden_mask: hidden_mask(request),
        graphs,
        weights,
        files: Vec::new(),
        tokenizer_json: text.tokenizer_json,
        chat_template: text.chat_template,
        text: text.record,
    }
}

/// What masks hold where a position is hidden: the target's constant, or in int16 so much that it saturates.
pub(crate) fn hidden_mask(request: &Request) -> i32 {
    if request.question.precision.activation == Number::Int16 { i32::MIN } else { request.target.hidden_mask }
}

/// The step shapes of a build for `target`: what MediaTek's runtime takes for its chips, a prefill and a decode step in one
/// context binary for Qualcomm's, [`default_shapes`] otherwise.
pub fn default_shapes_for(target: &Target, config: &ModelConfig) -> Vec<StepShape> {
    if !config.reads_tokens() {
        return default_shapes(config);
    }
    let (prefill, capacity) = match target.back_end {
        Some(BackEnd::Tflite) => (DEFAULT_PREFILL_TOKENS[0], RUNTIME_CAPACITY),
        Some(BackEnd::Qnn) => (CONTEXT_PREFILL_TOKENS, DEFAULT_CAPACITY),
        Some(BackEnd::Iree) => (DEFAULT_PREFILL_TOKENS[1], RUNTIME_CAPACITY),
        Some(BackEnd::Torq) => (1, TORQ_CAPACITY),
        Some(BackEnd::Host) | None => return default_shapes(config),
    };
    let capacity = config.max_positions().min(capacity);
    let mut tokens = vec![prefill.min(capacity), 1];
    tokens.dedup();
    tokens.into_iter().map(|tokens| StepShape { tokens, capacity }).collect()
}

/// Prefill steps and a decode step against the model's context or [`DEFAULT_CAPACITY`] rows, whichever is smaller.
pub fn default_shapes(config: &ModelConfig) -> Vec<StepShape> {
    shapes_of(config, DEFAULT_CAPACITY)
}

/// The same against `capacity` rows where the model's context is not smaller. An encoder has one step, of all its positions.
pub fn shapes_of(config: &ModelConfig, capacity: usize) -> Vec<StepShape> {
    let all = config.max_positions();
    if !config.reads_tokens() {
        return vec![StepShape { tokens: all, capacity: all }];
    }
    let capacity = all.min(capacity);
    let tokens = DEFAULT_PREFILL_TOKENS.into_iter().chain([1]).filter(|&tokens| tokens <= capacity);
    tokens.map(|tokens| StepShape { tokens, capacity }).collect()
}
