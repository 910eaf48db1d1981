//! `npuc diff`: the first operation where two forms of a model part.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use npuc::bundle::{Manifest, is_bundle};
use npuc::ir::ValueId;
use npuc::ir::text::value_text;
use npuc::{Code, Diagnostic, Error, Result};
use npuc_run::contexts::soc_model;
use npuc_run::fidelity::{Difference, Distance, OfStep, Tracer, Unpaired, Where, compare_modules, emulated};
use npuc_run::program::Program;
use serde::Serialize;

use crate::args::{CorpusArgs, On, threads};
use crate::output::{Output, count};
use crate::{corpus, session};

#[derive(Args)]
pub(crate) struct DiffArgs {
    /// The form that counts as right: a bundle, a Hugging Face folder or a .gguf file
    pub(crate) reference: PathBuf,
    /// The other form
    pub(crate) model: PathBuf,
    /// A value parts where the ratio of signal to noise is below this
    #[arg(long, default_value_t = 40.0, value_name = "DB", allow_negative_numbers = true)]
    pub(crate) threshold_db: f64,
    /// Decode steps after the prefill step
    #[arg(long, default_value_t = 4, value_name = "N")]
    pub(crate) steps: usize,
    #[command(flatten)]
    pub(crate) corpus: CorpusArgs,
    /// What computes MODEL: this machine, Qualcomm's emulation of the chip that the bundle was built for, or what executes its
    /// compiled modules, where every value is held against this machine's; REFERENCE is then the same bundle
    #[arg(long, value_enum, default_value_t = On::Host)]
    pub(crate) on: On,
    /// Threads to compute with; without it, as many as the machine has
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
}

/// Tokens of the prefill step, at most.
const PREFILL_TOKENS: usize = 128;
/// Values shown before the one that parts.
const BEFORE: usize = 3;

#[derive(Serialize)]
struct Report {
    threshold_db: f64,
    steps: Vec<Step>,
    /// The first value below the threshold.
    parting: Option<Parting>,
    warnings: Vec<Diagnostic>,
}

/// A step that was compared.
#[derive(Serialize)]
struct Step {
    /// 0 for the prefill step, then the decode steps.
    step: usize,
    first_position: usize,
    tokens: usize,
    /// Values compared.
    values: usize,
    /// The lowest ratio of these; absent where it is not finite.
    least_sqnr_db: Option<f64>,
    unpaired: Unpaired,
    /// Where a device computes single operations otherwise than this machine from the same operands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    own: Vec<Own>,
}

/// The results of one kind of operation on a device, against this machine's from the operands that the device had.
#[derive(Serialize)]
struct Own {
    op: &'static str,
    values: usize,
    /// Those that are the same in every element.
    equal: usize,
    /// The lowest ratio; absent in JSON where it is not finite.
    least_sqnr_db: f64,
    /// The value that has it.
    path: String,
}

#[derive(Serialize)]
struct Parting {
    step: usize,
    first_position: usize,
    tokens: usize,
    #[serde(flatten)]
    value: Value,
    /// The values before it in the same step that had not parted, the nearest last.
    before: Vec<Value>,
}

#[derive(Serialize)]
struct Value {
    #[serde(flatten)]
    at: Where,
    /// Absent where it is not finite: elements all equal, none but zeros in the reference, or not finite themselves.
    sqnr_db: Option<f64>,
    equal: bool,
    non_finite: usize,
    max_abs: f64,
    /// The element with that difference.
    max_index: Vec<usize>,
    reference_line: String,
    model_line: String,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &DiffArgs, output: Output) -> Result<u8> {
    if args.threshold_db.is_nan() {
        let fault = Diagnostic::error(Code::BadArgument, "the threshold is not a number").subject("--threshold-db");
        return Err(fault.need("a ratio in dB, e.g. 40").have(args.threshold_db).into());
    }
    let spinner = output.spinner("comparing");
    let (reference, model) = open(&args.reference, &args.model)?;
    let warnings: Vec<Diagnostic> = reference.warnings.iter().chain(&model.warnings).cloned().collect();
    output.warnings(&warnings);
    let ids = match corpus::given(&args.corpus, &reference, &args.reference)? {
        Some(ids) => ids,
        None => corpus::prompts(&reference)?.concat(),
    };
    let (steps, parting) = match args.on {
        On::Host => compare(args, (&reference, &model), &ids)?,
        On::Qnn => compare_on_device(args, &model, &ids, |bundle, fed| {
            let soc = soc_model(&npuc::target::find(&bundle.1.target)?)?;
            emulated(&model, bundle, soc, &mut session::start_qnn(None)?, fed, threads(args.threads))
        })?,
        On::IreeCpu | On::IreeVulkan | On::TorqSim => compare_on_device(args, &model, &ids, |bundle, fed| {
            let log = session::run_log(&args.model);
            compare_modules(&model, bundle, args.on.runners(), fed, threads(args.threads), &log)
        })?,
        On::Litert | On::Null => {
            let fault = Diagnostic::error(Code::BadArgument, "this device does not show its values").subject("--on");
            return Err(fault.help("compare on this machine, or whole models with `npuc verify --on …`").into());
        }
    };
    drop(spinner);
    let report = Report { threshold_db: args.threshold_db, steps, parting, warnings };
    output.result(&report, &render(&report))?;
    let Some(parting) = &report.parting else { return Ok(0) };
    let error = Error::from(fault(parting, args.threshold_db));
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// Both forms; a checkpoint is built with the shapes of the bundle beside it.
fn open(reference: &Path, model: &Path) -> Result<(Program, Program)> {
    if is_bundle(model) && !is_bundle(reference) {
        let model = Program::open(model, None)?;
        return Ok((session::open_beside(reference, &model)?, model));
    }
    let reference = Program::open(reference, None)?;
    let model = session::open_beside(model, &reference)?;
    Ok((reference, model))
}

/// Runs both forms over a prefill step and the decode steps, up to the step in which they part.
fn compare(
    args: &DiffArgs,
    (reference, model): (&Program, &Program),
    ids: &[u32],
) -> Result<(Vec<Step>, Option<Parting>)> {
    let mut tracer = Tracer::new(reference, model, threads(args.threads))?;
    if ids.len() <= args.steps {
        let fault = Diagnostic::error(Code::BadArgument, "there are too few ids for the steps");
        let fault = fault.need(format!("one to prefill and {} to decode", args.steps)).have(ids.len());
        return Err(fault.help("give a longer text, or fewer --steps").into());
    }
    let prefill = tracer.largest_step((ids.len() - args.steps).min(PREFILL_TOKENS));
    let (first, rest) = ids.split_at(prefill);
    let mut steps = Vec::new();
    let mut first_position = 0;
    for (step, ids) in [first].into_iter().chain(rest[..args.steps].chunks(1)).enumerate() {
        let differences = tracer.step(ids)?;
        let unpaired = tracer.unpaired(ids.len()).unwrap_or(Unpaired { reference: 0, model: 0 });
        let step = Step::of(step, first_position, ids.len(), unpaired);
        let (step, parting) = judged(args, step, &differences, (reference, model));
        steps.push(step);
        if parting.is_some() {
            return Ok((steps, parting));
        }
        first_position += ids.len();
    }
    Ok((steps, None))
}

/// Holds the values of a bundle on a device against this machine's: the prefill step, and the last of the decode steps. `device` compares
/// what every step shape did last after the ids were fed in groups.
fn compare_on_device(
    args: &DiffArgs,
    program: &Program,
    ids: &[u32],
    device: impl FnOnce((&Path, &Manifest), &[&[u32]]) -> Result<Vec<OfStep>>,
) -> Result<(Vec<Step>, Option<Parting>)> {
    one_bundle(args)?;
    let manifest = npuc::bundle::manifest(&args.model)?;
    let most = program.steps.iter().map(|step| step.shape.tokens).filter(|&tokens| tokens <= ids.len()).max();
    let (first, rest) = ids.split_at(most.unwrap_or(1).min(ids.len()));
    let decodes = if program.steps.iter().any(|step| step.shape.tokens == 1) { args.steps } else { 0 };
    if rest.len() < decodes {
        let fault = Diagnostic::error(Code::BadArgument, "there are too few ids for the steps").have(ids.len());
        let fault = fault.need(format!("{} to prefill and {decodes} to decode", first.len()));
        return Err(fault.help("give a longer text, or fewer --steps").into());
    }
    let rest = &rest[..decodes];
    let fed: Vec<&[u32]> = [first].into_iter().chain(rest.chunks(1)).collect();
    let (mut steps, mut parting) = (Vec::new(), None);
    for OfStep { step, differences, own, alone } in device((&args.model, &manifest), &fed)? {
        let tokens = program.steps[step].shape.tokens;
        let (step, first) = if tokens == 1 { (rest.len(), first.len() + rest.len() - 1) } else { (0, 0) };
        let step = Step::of(step, first, tokens, Unpaired { reference: alone, model: 0 });
        let (step, parted) = judged(args, step, &differences, (program, program));
        steps.push(Step { own: by_operation(&differences, &own), ..step });
        parting = parting.or(parted);
    }
    Ok((steps, parting))
}

/// For each kind of operation the result that is farthest from this machine's over the same operands.
fn by_operation(differences: &[Difference], own: &[Distance]) -> Vec<Own> {
    let mut farthest: BTreeMap<&'static str, Own> = BTreeMap::new();
    for (Difference { at, .. }, distance) in differences.iter().zip(own) {
        let new = || Own { op: at.op, values: 0, equal: 0, least_sqnr_db: f64::INFINITY, path: String::new() };
        let entry = farthest.entry(at.op).or_insert_with(new);
        entry.values += 1;
        entry.equal += usize::from(distance.sqnr_db() == f64::INFINITY);
        if distance.sqnr_db() < entry.least_sqnr_db {
            entry.least_sqnr_db = distance.sqnr_db();
            entry.path = format!("%{} {}", at.model, at.path);
        }
    }
    farthest.into_values().collect()
}

/// Refuses two different things where one bundle is held against itself.
fn one_bundle(args: &DiffArgs) -> Result<()> {
    let same = std::fs::canonicalize(&args.reference).ok() == std::fs::canonicalize(&args.model).ok();
    if same && is_bundle(&args.model) {
        return Ok(());
    }
    let fault = Diagnostic::error(Code::BadArgument, "a device is compared with the same bundle on this machine");
    Err(fault.subject("--on").help("name one bundle twice: npuc diff DIR DIR --on …").into())
}

impl Step {
    /// A step whose values are not compared yet.
    fn of(step: usize, first_position: usize, tokens: usize, unpaired: Unpaired) -> Step {
        Step { step, first_position, tokens, values: 0, least_sqnr_db: None, unpaired, own: Vec::new() }
    }
}

/// A step with what its differences come to: the lowest ratio, and the first value below the threshold.
fn judged(
    args: &DiffArgs,
    step: Step,
    differences: &[Difference],
    (reference, model): (&Program, &Program),
) -> (Step, Option<Parting>) {
    let least = differences.iter().map(|d| d.distance.sqnr_db()).fold(f64::INFINITY, f64::min);
    let least_sqnr_db = Some(least).filter(|db| db.is_finite());
    let value = |difference: &Difference| Value::new(difference, reference, model);
    let parting = differences.iter().position(|d| d.distance.sqnr_db() < args.threshold_db).map(|at| {
        let before = differences[at.saturating_sub(BEFORE)..at].iter().map(value).collect();
        let Step { step, first_position, tokens, .. } = step;
        Parting { step, first_position, tokens, value: value(&differences[at]), before }
    });
    (Step { values: differences.len(), least_sqnr_db, ..step }, parting)
}

impl Value {
    fn new(Difference { at, distance }: &Difference, reference: &Program, model: &Program) -> Value {
        Value {
            sqnr_db: Some(distance.sqnr_db()).filter(|db| db.is_finite()),
            equal: distance.sqnr_db() == f64::INFINITY,
            non_finite: distance.non_finite,
            max_abs: distance.max_abs,
            max_index: index(&at.shape, distance.max_at),
            reference_line: line(reference, &at.reference_graph, at.reference),
            model_line: line(model, &at.model_graph, at.model),
            at: at.clone(),
        }
    }
}

/// The index of an element along every axis.
fn index(shape: &[usize], mut element: usize) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        (*place, element) = (element % extent, element / extent);
    }
    index
}

/// The line of the IR that defines a value.
fn line(program: &Program, graph: &str, value: u32) -> String {
    let graphs = program.steps.iter().flat_map(|step| &step.segments).map(|segment| &segment.graph);
    let found = graphs.into_iter().find(|g| g.name == graph && (value as usize) < g.values.len());
    found.map_or_else(String::new, |graph| value_text(graph, ValueId(value)))
}

fn fault(parting: &Parting, threshold_db: f64) -> Diagnostic {
    Diagnostic::error(Code::Unfaithful, "the two forms part")
        .subject(format!("{} {}", parting.value.at.path, parting.value.at.op))
        .need(format!("a ratio of signal to noise of at least {threshold_db} dB"))
        .have(ratio(&parting.value))
        .help("look at what its line reads: those values were still good; --threshold-db sets what counts as parting")
}

fn ratio(value: &Value) -> String {
    match value.sqnr_db {
        Some(db) => format!("{db:.2} dB"),
        None if value.equal => "equal".into(),
        None if value.non_finite > 0 => format!("{} not finite in one form alone", count(value.non_finite, "element")),
        None => "differences where the reference has only zeros".into(),
    }
}

fn place(step: usize, first: usize, tokens: usize) -> String {
    let last = first + tokens - 1;
    let positions = if tokens == 1 { format!("position {first}") } else { format!("positions {first}-{last}") };
    if step == 0 { format!("prefill, {positions}") } else { format!("decode step {step}, {positions}") }
}

fn render(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    for step in &report.steps {
        let least = step.least_sqnr_db.map_or(String::new(), |db| format!(", the lowest at {db:.2} dB"));
        let (values, Unpaired { reference, model }) = (count(step.values, "value"), step.unpaired);
        let alone = if reference + model > 0 {
            format!("; not in both: {reference} of A, {model} of B")
        } else {
            String::new()
        };
        let place = place(step.step, step.first_position, step.tokens);
        let _ = writeln!(text, "{place}: {values} compared{least}{alone}");
        if !step.own.is_empty() {
            text.push_str("  every operation from the device's own operands:\n");
        }
        for Own { op, values, equal, least_sqnr_db, path } in &step.own {
            let least = match values == equal {
                true => String::new(),
                false => format!(", the lowest at {least_sqnr_db:.2} dB: {path}"),
            };
            let _ = writeln!(text, "    {op:<10} {equal} of {values} the same{least}");
        }
    }
    let Some(parting) = &report.parting else {
        let _ = writeln!(text, "no value is below {} dB", report.threshold_db);
        return text;
    };
    if !parting.before.is_empty() {
        text.push_str("\nstill good before it\n");
    }
    for value in &parting.before {
        let _ = writeln!(text, "  {:<14}{} {}", ratio(value), value.at.path, value.at.op);
    }
    let Parting { step, first_position, tokens, value, .. } = parting;
    let _ = writeln!(text, "\nfirst to part: {} {}", value.at.path, value.at.op);
    let _ = writeln!(text, "  where         {}", place(*step, *first_position, *tokens));
    let _ = writeln!(text, "  ratio         {}", ratio(value));
    let _ = writeln!(text, "  max |a - b|   {:.3e} at {:?} of {:?}", value.max_abs, value.max_index, value.at.shape);
    let _ = writeln!(text, "  in A          {}: {}", value.at.reference_graph, value.reference_line.trim());
    let _ = writeln!(text, "  in B          {}: {}", value.at.model_graph, value.model_line.trim());
    text
}
