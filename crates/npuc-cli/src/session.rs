//! Opening a model for `run`, `verify` and `diff` on the device that the flags name.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use npuc::back::tflite::Storage;
use npuc::fit::Request;
use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint};
use npuc::model::{CacheProtocol, Chunks, StepShape, layers};
use npuc::{Code, Diagnostic, Result, bundle, target};
use npuc_run::contexts;
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::device::module;
use npuc_run::device::qnn::{self, Qnn, Start};
use npuc_run::modules;
use npuc_run::program::{DEFAULT_CAPACITY, Program, shapes_of};
use npuc_run::session::{Session, Steps};
use npuc_run::speech::{self, Speech, Whisper};
use npuc_run::text::Tokenizer;
use npuc_run::toolchain::{Installed, Tool, find};

use crate::args::{DeviceArgs, On, shapes, threads};

/// The program and a session on the device; values in `keep` can be read after a step. `capacity` is how many rows of
/// cache a checkpoint gets where no shapes are given.
pub(crate) fn open(
    model: &Path,
    device: &DeviceArgs,
    capacity: Option<usize>,
    keep: &[String],
) -> Result<(Program, Session)> {
    refuse_speech(model)?;
    let (program, steps) = opened((model, None), device, capacity, keep)?;
    let session = Session::of(&program, steps)?;
    Ok((program, session))
}

/// Whisper is not a model that answers a text.
pub(crate) fn refuse_speech(model: &Path) -> Result<()> {
    let hears = is_pair(model)
        || bundle::is_bundle(model) && bundle::manifest(model).is_ok_and(|manifest| manifest.model.family() == WHISPER);
    if !hears {
        return Ok(());
    }
    let fault = Diagnostic::error(Code::UnsupportedArchitecture, "Whisper hears, and this is for models that read");
    Err(fault
        .file(model)
        .help("use npuc transcribe or npuc verify --audio on the folder with encoder/ and decoder/")
        .into())
}

/// The family's name.
const WHISPER: &str = "Whisper";

/// What is named on the command line, and which of Whisper's models it is about where it is a checkpoint of both.
type Named<'a> = (&'a Path, Option<Stack>);

/// Both models of Whisper on a device.
pub(crate) struct OpenedWhisper {
    pub(crate) whisper: Whisper,
    /// The tokenizer, if the model has one; what is wrong with it if it cannot be used.
    pub(crate) tokenizer: Result<Option<Tokenizer>>,
    /// Whether activations are whole numbers where the target computes.
    pub(crate) whole_numbers: bool,
    /// What is odd but does not stop the work.
    pub(crate) warnings: Vec<Diagnostic>,
}

/// Both models of Whisper on the device: those of a checkpoint, or the two bundles in a folder.
pub(crate) fn open_speech(model: &Path, device: &DeviceArgs) -> Result<(Speech, Vec<Diagnostic>)> {
    let OpenedWhisper { whisper, tokenizer, warnings, .. } = open_whisper(model, device)?;
    let speech = Speech::new(whisper, tokenizer?).map_err(|e| e.in_file(model))?;
    Ok((speech, warnings))
}

/// The same with or without a tokenizer.
pub(crate) fn open_whisper(model: &Path, device: &DeviceArgs) -> Result<OpenedWhisper> {
    let halves = [(speech::ENCODER, Stack::Encoder), (speech::DECODER, Stack::Decoder)];
    refuse_mixed(model)?;
    let [encoder, decoder] = halves.map(|(folder, stack)| {
        let path = if is_pair(model) { model.join(folder) } else { model.to_path_buf() };
        opened((&path, Some(stack)), device, None, &[])
    });
    let (encoder, mut decoder) = (encoder?, decoder?);
    let text = std::mem::replace(&mut decoder.0.text, Ok(None));
    let (whole_numbers, warnings) = (encoder.0.whole_numbers || decoder.0.whole_numbers, decoder.0.warnings.clone());
    let whisper = Whisper::new((&encoder.0, encoder.1), (&decoder.0, decoder.1)).map_err(|e| e.in_file(model))?;
    Ok(OpenedWhisper { whisper, tokenizer: text.map(|text| text.map(|text| text.tokenizer)), whole_numbers, warnings })
}

/// Two bundles in a folder that were not built of one checkpoint would write nonsense, e.g. where a build was killed between them.
fn refuse_mixed(model: &Path) -> Result<()> {
    let missing = [speech::ENCODER, speech::DECODER].map(|half| !bundle::is_bundle(&model.join(half)));
    let absent = match missing {
        [false, false] => None,
        [true, false] => Some(speech::ENCODER),
        [false, true] => Some(speech::DECODER),
        [true, true] => return Ok(()),
    };
    let fault = |message: &str| Diagnostic::error(Code::BadBundle, message).file(model);
    if let Some(half) = absent {
        let fault = fault("one of Whisper's two bundles is not there, or has no manifest").subject(format!("{half}/"));
        return Err(fault.help("build both again").into());
    }
    let [encoder, decoder] = [speech::ENCODER, speech::DECODER].map(|half| bundle::manifest(&model.join(half)));
    let hashes = |manifest: bundle::Manifest| -> Vec<String> {
        manifest.checkpoint.into_iter().map(|file| file.sha256).collect()
    };
    if hashes(encoder?) == hashes(decoder?) {
        return Ok(());
    }
    let fault = fault("the encoder and the decoder were not built of one checkpoint");
    Err(fault.need("the same files in both manifests").help("build both again").into())
}

/// Whether the folder holds the bundles of both models of Whisper.
pub(crate) fn is_pair(model: &Path) -> bool {
    [speech::ENCODER, speech::DECODER].into_iter().all(|folder| bundle::is_bundle(&model.join(folder)))
}

/// A checkpoint, or that one of its models.
pub(crate) fn checkpoint((model, stack): Named<'_>) -> Result<Checkpoint> {
    let checkpoint = front::open(model)?;
    Ok(stack.and_then(|stack| checkpoint.stack(stack)).unwrap_or(checkpoint))
}

/// The program and its steps on the device.
fn opened(named: Named<'_>, device: &DeviceArgs, capacity: Option<usize>, keep: &[String]) -> Result<(Program, Steps)> {
    let refused = |message: &str, help: &str| {
        Err(Diagnostic::error(Code::BadArgument, message).subject("--chunks").help(help).into())
    };
    let (model, _) = named;
    let is_bundle = bundle::is_bundle(model);
    match device.on {
        On::Host | On::Qnn | On::IreeCpu | On::IreeVulkan | On::TorqSim | On::Null if device.chunks.is_some() => {
            refused("only LiteRT takes a model in chunks here", "add --on litert, or leave out --chunks")
        }
        On::Litert if is_bundle && device.chunks.is_some() => {
            refused("a bundle has the chunks it was built with", "leave out --chunks, or name the checkpoint")
        }
        On::Null => {
            let fault = Diagnostic::error(Code::BadArgument, "the null back end computes nothing").subject("--on");
            Err(fault.help("it is for npuc bench and npuc serve-jsonl").into())
        }
        On::Host => {
            let program = for_host(named, device, capacity)?;
            let steps = Steps::on_host(&program, threads(device.threads), keep)?;
            Ok((program, steps))
        }
        On::Qnn => in_emulation(model, device, keep),
        On::IreeCpu | On::IreeVulkan | On::TorqSim => on_modules(model, device, keep),
        On::Litert => {
            let tool = find(Tool::LiteRt)?;
            if !keep.is_empty() {
                return Err(Diagnostic::error(Code::BadArgument, "only the host keeps values (--dump)").into());
            }
            if is_bundle {
                let program = Program::open(model, shapes(device.shapes.as_ref())?)?;
                let steps = Steps::on_litert(&program, &tool, threads(device.threads), TIME_LIMIT)?;
                return Ok((program, steps));
            }
            through_tflite(named, device, capacity, &tool)
        }
    }
}

/// A bundle, or a checkpoint that is built for this machine on the spot.
pub(crate) fn for_host(named: Named<'_>, device: &DeviceArgs, capacity: Option<usize>) -> Result<Program> {
    if bundle::is_bundle(named.0) {
        return Program::open(named.0, shapes(device.shapes.as_ref())?);
    }
    let checkpoint = checkpoint(named)?;
    let shapes = shapes_for(&checkpoint, device, capacity)?;
    Program::from_checkpoint(checkpoint, Some(shapes))
}

/// A bundle of compiled modules in the runtime or simulator that they are for.
fn on_modules(model: &Path, device: &DeviceArgs, keep: &[String]) -> Result<(Program, Steps)> {
    let fault = |message: &str| Diagnostic::error(Code::BadArgument, message);
    if !keep.is_empty() {
        return Err(fault("only the host keeps values (--dump)").into());
    }
    if !bundle::is_bundle(model) {
        let fault = fault("compiled modules are in bundles").file(model);
        return Err(fault.help("build one first, e.g. npuc build MODEL --target iree-cpu -o DIR").into());
    }
    let manifest = bundle::manifest(model)?;
    let program = Program::open(model, shapes(device.shapes.as_ref())?)?;
    let (graphs, runners) = (program.graphs(), device.on.runners());
    let opened = modules::open(model, &manifest, &graphs, runners, &run_log(model), module::TIME_LIMIT)?;
    let steps = Steps::on_modules(&program, opened)?;
    Ok((program, steps))
}

/// The file beside a bundle that keeps what the tools say when it is run; in TMPDIR where nothing can be written beside it.
pub(crate) fn run_log(bundle: &Path) -> PathBuf {
    let mut name = bundle.file_name().unwrap_or_default().to_owned();
    name.push(".run.log");
    let log = bundle.with_file_name(&name);
    match std::fs::OpenOptions::new().create(true).append(true).open(&log) {
        Ok(_) => log,
        Err(_) => std::env::temp_dir().join(name),
    }
}

/// A bundle of Qualcomm's contexts, prepared anew for this machine's emulation.
fn in_emulation(model: &Path, device: &DeviceArgs, keep: &[String]) -> Result<(Program, Steps)> {
    let fault = |message: &str| Diagnostic::error(Code::BadArgument, message);
    if !keep.is_empty() {
        return Err(fault("only the host keeps values (--dump)").into());
    }
    if !bundle::is_bundle(model) {
        let fault = fault("the emulation runs bundles").file(model);
        return Err(fault.help("build one first, e.g. npuc build MODEL --target sm8650 -o DIR").into());
    }
    let manifest = bundle::manifest(model)?;
    let soc = contexts::soc_model(&target::find(&manifest.target)?)?;
    let program = Program::open(model, shapes(device.shapes.as_ref())?)?;
    let mut qnn = start_qnn(None)?;
    let contexts = contexts::emulated(model, &manifest, soc, &mut qnn)?;
    let steps = Steps::on_qnn(&program, contexts, qnn)?;
    Ok((program, steps))
}

/// A worker with Qualcomm's libraries, which is this program again. `log` keeps what they say.
pub(crate) fn start_qnn(log: Option<&Path>) -> Result<Qnn> {
    start(log, qnn::TIME_LIMIT, Qnn::start)
}

/// A worker that only reads context binaries, each within `limit`.
pub(crate) fn start_qnn_reader(limit: Duration) -> Result<Qnn> {
    start(None, limit, Qnn::start_reader)
}

fn start(log: Option<&Path>, limit: Duration, how: fn(&Start<'_>) -> Result<Qnn>) -> Result<Qnn> {
    let libraries = match std::env::var_os(qnn::LIBRARIES_VARIABLE) {
        Some(folder) => PathBuf::from(folder),
        None => find(Tool::Qnn)?.libraries(),
    };
    let fault = |e| Diagnostic::error(Code::ToolFailed, format!("npuc cannot find its own program: {e}"));
    let program = std::env::current_exe().map_err(fault)?;
    let args = [OsString::from("qnn-worker")];
    how(&Start { program: &program, args: &args, libraries: &libraries, limit, log })
}

/// A model beside another one, for this machine: a checkpoint gets the shapes of the other, a bundle has its own.
pub(crate) fn open_beside(model: &Path, other: &Program) -> Result<Program> {
    let shapes = other.steps.iter().map(|step| step.shape).collect();
    Program::open(model, (!bundle::is_bundle(model)).then_some(shapes))
}

fn shapes_for(checkpoint: &Checkpoint, device: &DeviceArgs, capacity: Option<usize>) -> Result<Vec<StepShape>> {
    let capacity = capacity.unwrap_or(DEFAULT_CAPACITY);
    let given = shapes(device.shapes.as_ref())?.filter(|_| checkpoint.config.reads_tokens());
    Ok(given.unwrap_or_else(|| shapes_of(&checkpoint.config, capacity)))
}

/// A checkpoint on the spot. The interpreter maps the files, which live on until it ends.
fn through_tflite(
    named: Named<'_>,
    device: &DeviceArgs,
    capacity: Option<usize>,
    tool: &Installed,
) -> Result<(Program, Steps)> {
    let checkpoint = checkpoint(named)?;
    let shapes = shapes_for(&checkpoint, device, capacity)?;
    let request = Request::plain(target::host().with_protocol(CacheProtocol::Shift), shapes);
    let chunks = device.chunks.as_deref().map_or(Ok(Chunks::Equal(1)), str::parse)?;
    let parts = chunks.parts(layers(&checkpoint.config))?;
    let folder = tempfile::tempdir().map_err(|e| {
        Diagnostic::error(Code::Unwritable, format!("cannot make a folder for the TFLite files: {e}"))
            .help("set TMPDIR to a folder with free space")
    })?;
    let files = folder.path().join("files");
    let program = Program::through_tflite(&checkpoint, &request, &parts, Storage::F32, &files)?;
    let steps = Steps::on_litert(&program, tool, threads(device.threads), TIME_LIMIT)?;
    Ok((program, steps))
}
