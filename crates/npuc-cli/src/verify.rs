//! `npuc verify`: how close a model is to reference outputs or another model, and its perplexity on a text.

use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Result, bundle};
use npuc_run::fidelity::{
    BoardFigures, DEFAULT_CONTEXT, Fidelity, Gate, Reference, Windows, check_context, compare, compare_board,
    compare_text, layers, perplexity,
};
use npuc_run::program::Program;
use npuc_run::session::Session;
use serde::Serialize;

use crate::args::{On, VerifyArgs, threads};
use crate::output::Output;
use crate::{corpus, session};

mod render;
mod speech;

use render::render;
use speech::Subject;

#[derive(Serialize)]
struct Report<F: Serialize> {
    #[serde(flatten)]
    figures: F,
    measured_on: &'static str,
    faithful: bool,
    warnings: Vec<Diagnostic>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broken: Vec<Diagnostic>,
}

/// Runs the command; gives the exit status.
pub(crate) fn command(args: &VerifyArgs, output: Output) -> Result<u8> {
    let gate: Option<Gate> = args.gate.as_ref().map(|gate| gate.parse()).transpose()?;
    if let Some(outputs) = &args.device_outputs {
        return of_board(args, outputs, gate, output);
    }
    match speech::subject(&args.model) {
        Subject::Text => speech::refuse_audio(args)?,
        Subject::Half => return Err(speech::refuse_half(&args.model)),
        Subject::Speech => return speech::command(args, gate, output),
    }
    let read = args.reference.as_ref().map(|path| Reference::read(path)).transpose()?;
    let on_text = args.corpus.text.is_some() || args.corpus.ids.is_some();
    let context = args.context.unwrap_or(DEFAULT_CONTEXT);
    if on_text {
        check_context(context)?;
    }
    let against = args.against.as_ref().map(|against| reference_model(against, &args.model)).transpose()?;
    let spinner = output.spinner("measuring");
    let (program, mut session) = session::open(&args.model, &args.device, on_text.then_some(context), &[])?;
    output.warnings(&program.warnings);
    let fidelity = match (read, &args.reference) {
        (Some(reference), Some(path)) => compare(&mut session, &reference).map_err(|e| e.in_file(path))?,
        _ => measured(args, (&program, session), against.as_deref(), context)?,
    };
    drop(spinner);
    let text = render(&fidelity, args.device.on.name());
    let judged = Judged { figures: fidelity.clone(), whole_numbers: program.whole_numbers };
    finish(fidelity, judged, text, gate, args.device.on, program.warnings.clone(), output)
}

/// What a gate is held against.
struct Judged {
    figures: Fidelity,
    /// Whether the default gate is that of whole numbers.
    whole_numbers: bool,
}

/// Prints the figures and the gate's verdict; gives the exit status.
fn finish(
    figures: impl Serialize,
    judged: Judged,
    text: String,
    gate: Option<Gate>,
    on: On,
    warnings: Vec<Diagnostic>,
    output: Output,
) -> Result<u8> {
    let Judged { figures: of, whole_numbers } = judged;
    let verdict = gate.unwrap_or_else(|| Gate::default_for(&of, whole_numbers)).check(&of);
    let broken = verdict.as_ref().err().map(|e| e.diagnostics().to_vec()).unwrap_or_default();
    let report = Report { figures, measured_on: on.name(), faithful: broken.is_empty(), warnings, broken };
    output.result(&report, &text)?;
    let Err(error) = verdict else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// What a board gave against the golden outputs of the bundle.
fn of_board(args: &VerifyArgs, outputs: &Path, gate: Option<Gate>, output: Output) -> Result<u8> {
    if args.device.on != On::Host || args.device.shapes.is_some() || args.device.chunks.is_some() {
        let fault =
            Diagnostic::error(Code::BadArgument, "what a board gave is compared with golden outputs, nothing is run");
        return Err(fault.subject("--device-outputs").help("leave out --on, --shapes and --chunks").into());
    }
    let figures = compare_board(&args.model, outputs)?;
    let judged = figures.judged();
    let verdict = gate.unwrap_or_else(|| Gate::default_for(&judged, false)).check(&judged);
    let broken = verdict.as_ref().err().map(|e| e.diagnostics().to_vec()).unwrap_or_default();
    let mut text = render(&figures.fidelity, BOARD);
    if figures.fidelity.positions > 0 {
        text.push_str(&format!(
            "scores of          {} of {} golden positions\n",
            figures.fidelity.positions, figures.golden_positions
        ));
    }
    for (name, cosine) in &figures.step {
        text.push_str(&format!("{name:<18} cosine {cosine:.9}\n"));
    }
    for name in &figures.absent {
        text.push_str(&format!("{name:<18} not given\n"));
    }
    let report = BoardReport { figures, measured_on: BOARD, faithful: broken.is_empty(), broken };
    output.result(&report, &text)?;
    let Err(error) = verdict else { return Ok(0) };
    output.note(&error.to_string());
    Ok(error.exit_status())
}

/// What figures of a board's own outputs are labelled with.
const BOARD: &str = "device";

#[derive(Serialize)]
struct BoardReport {
    #[serde(flatten)]
    figures: BoardFigures,
    measured_on: &'static str,
    faithful: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    broken: Vec<Diagnostic>,
}

/// The word for a model's own checkpoint, computed in float.
const FLOAT: &str = "float";
/// Greedy ids after each prompt.
const GREEDY_IDS: usize = 24;

/// Where the model to compare with is.
fn reference_model(against: &Path, model: &Path) -> Result<PathBuf> {
    if against != Path::new(FLOAT) {
        return Ok(against.to_path_buf());
    }
    if !bundle::is_bundle(model) && !session::is_pair(model) {
        return Ok(model.to_path_buf());
    }
    Err(Diagnostic::error(Code::BadArgument, "a bundle does not say where its checkpoint is")
        .file(model)
        .subject("--against float")
        .need("the path of the checkpoint: a Hugging Face folder or a .gguf file")
        .have("names and hashes of its files in the manifest")
        .help("give the path instead of the word: --against PATH")
        .into())
}

/// What is measured where there is no file of reference outputs: over the given text or prompts of npuc's own, against
/// another model or this machine. The values inside are compared where this machine computes both.
fn measured(
    args: &VerifyArgs,
    (program, mut session): (&Program, Session),
    against: Option<&Path>,
    context: usize,
) -> Result<Fidelity> {
    let on_host = args.device.on == On::Host;
    let given = corpus::given(&args.corpus, program, &args.model)?;
    let windows = given.as_ref().map(|ids| windows(args, program, ids.clone(), context)).transpose()?;
    if let (Some(windows), None, true) = (&windows, against, on_host) {
        let figures = Fidelity { text: Some(perplexity(&mut session, windows)?), ..Fidelity::default() };
        return Ok(saturation(figures, program, &session));
    }
    if against.is_none() && on_host {
        return Err(Diagnostic::error(Code::BadArgument, "this machine would be compared with itself")
            .need("--reference FILE, --against MODEL, --text FILE, or --on another device")
            .into());
    }
    let threads = threads(args.device.threads);
    let other = against.map(|model| session::open_beside(model, program)).transpose()?;
    let mut reference = Session::new(other.as_ref().unwrap_or(program), threads, &[])?;
    let (fidelity, ids) = match (windows, given) {
        (Some(windows), Some(ids)) => (compare_text(&mut session, &mut reference, &windows)?, ids),
        _ => {
            let prompts = corpus::prompts(program)?;
            let all = prompts.concat();
            (on_prompts(&mut session, &mut reference, prompts)?, all)
        }
    };
    let fidelity = if on_host { saturation(fidelity, program, &session) } else { fidelity };
    // Their buffers are not needed any more, and the next sessions have as many.
    drop((session, reference));
    let layers = other.filter(|_| on_host).map(|other| layers(&other, program, &ids, threads)).transpose()?;
    Ok(Fidelity { layers, ..fidelity })
}

/// The figures with what was cut off, where this machine computed in whole numbers.
fn saturation(fidelity: Fidelity, program: &Program, session: &Session) -> Fidelity {
    if program.whole_numbers { fidelity.with_saturation(session.saturated()) } else { fidelity }
}

fn windows(args: &VerifyArgs, program: &Program, ids: Vec<u32>, context: usize) -> Result<Windows> {
    let text = program.text.as_ref().ok().and_then(Option::as_ref);
    let bos = text.map_or(Ok(None), |text| text.tokenizer.first_id())?;
    let windows = Windows::new(ids, context, bos, args.windows);
    let file = args.corpus.text.as_ref().or(args.corpus.ids.as_ref());
    windows.map_err(|e| file.map_or(e.clone(), |file| e.in_file(file)))
}

fn on_prompts(session: &mut Session, reference: &mut Session, mut prompts: Vec<Vec<u32>>) -> Result<Fidelity> {
    let most = session.capacity().min(reference.capacity());
    prompts.iter_mut().for_each(|prompt| prompt.truncate(most / 2));
    prompts.retain(|prompt| !prompt.is_empty());
    let reference = Reference::of_session(reference, prompts, GREEDY_IDS.min(most / 2))?;
    compare(session, &reference)
}
