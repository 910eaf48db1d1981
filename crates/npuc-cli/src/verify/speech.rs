//! `npuc verify` for Whisper: over speech against another form of it, or against outputs that something else recorded.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use npuc::{Code, Diagnostic, Result, bundle};
use npuc_audio::mel::Extractor;
use npuc_audio::resample::to_16k;
use npuc_audio::{Mono16k, wav};
use npuc_run::fidelity::{
    Gate, HeardFidelity, MOST_IDS, SpeechFidelity, SpeechReference, Texts, compare_speech, compare_speech_reference,
};
use npuc_run::speech::{self, Kind, SpeechTokens};

use super::{Judged, finish, reference_model};
use crate::args::{DeviceArgs, On, VerifyArgs};
use crate::output::{Output, count};
use crate::recipe::is_whisper;
use crate::session::{self, OpenedWhisper};

/// What a path names, as far as measuring is concerned.
pub(super) enum Subject {
    /// A model that reads; or what is no model at all, which opening it tells.
    Text,
    /// Both of Whisper's models.
    Speech,
    /// A bundle of one of them.
    Half,
}

/// What a path names.
pub(super) fn subject(model: &Path) -> Subject {
    if session::is_pair(model) {
        return Subject::Speech;
    }
    if bundle::is_bundle(model) {
        let is_half = bundle::manifest(model).is_ok_and(|manifest| is_whisper(&manifest.model));
        return if is_half { Subject::Half } else { Subject::Text };
    }
    let hears = npuc::front::open(model).is_ok_and(|checkpoint| is_whisper(&checkpoint.config));
    if hears { Subject::Speech } else { Subject::Text }
}

/// A bundle of one model is nothing to measure by itself.
pub(super) fn refuse_half(model: &Path) -> npuc::Error {
    let fault =
        Diagnostic::error(Code::BadArgument, "this is one of Whisper's two models, which are measured together");
    let folders = format!("the folder that holds {}/ and {}/", speech::ENCODER, speech::DECODER);
    let path = std::path::absolute(model).unwrap_or_else(|_| model.to_path_buf());
    let pair = path.parent().filter(|parent| session::is_pair(parent));
    let help = pair.map_or_else(
        || "build both: npuc build CHECKPOINT -o DIR".to_owned(),
        |pair| format!("npuc verify {} --audio speech.wav", pair.display()),
    );
    fault.file(model).need(folders).have("one of them").help(help).into()
}

/// Sound means nothing to a model that reads.
///
/// Errors: `--audio`; a path that is no model.
pub(super) fn refuse_audio(args: &VerifyArgs) -> Result<()> {
    let Some(audio) = &args.audio else { return Ok(()) };
    if !bundle::is_bundle(&args.model) {
        npuc::front::open(&args.model)?;
    }
    let fault = Diagnostic::error(Code::BadArgument, "sound is for Whisper, and this model reads").subject("--audio");
    Err(fault.file(&args.model).have(audio.display()).help("use --text FILE or --ids FILE").into())
}

/// What is measured against.
enum Against {
    /// A file.
    Recorded(SpeechReference, PathBuf),
    /// Another model or the same on this machine, over sound.
    Model(PathBuf, Mono16k),
}

/// Measures both models of Whisper; gives the exit status.
pub(super) fn command(args: &VerifyArgs, gate: Option<Gate>, output: Output) -> Result<u8> {
    refuse_text(args)?;
    // What is wrong with files of sound and outputs is told before any model is opened.
    let against = against(args)?;
    let spinner = output.spinner("measuring");
    let mut model = session::open_whisper(&args.model, &args.device)?;
    output.warnings(&model.warnings);
    let (mut figures, exact) = match &against {
        Against::Recorded(reference, path) => {
            (compare_speech_reference(&mut model.whisper, reference).map_err(|e| e.in_file(path))?, false)
        }
        Against::Model(other, sound) => over_sound(args, &mut model, other, sound)?,
    };
    drop(spinner);
    if model.whole_numbers && args.device.on == On::Host {
        figures.fidelity = figures.fidelity.with_saturation(model.whisper.saturated());
    }
    let text = render(&figures, args.device.on.name());
    let judged = Judged { figures: figures.fidelity.clone(), whole_numbers: model.whole_numbers || exact };
    finish(figures, judged, text, gate, args.device.on, model.warnings, output)
}

/// What is measured against, read and not yet opened.
///
/// Errors: nothing to measure against, or the model itself; files that are not what they should be.
fn against(args: &VerifyArgs) -> Result<Against> {
    if let Some(path) = &args.reference {
        return Ok(Against::Recorded(SpeechReference::read(path)?, path.clone()));
    }
    let Some(audio) = &args.audio else {
        let fault = Diagnostic::error(Code::BadArgument, "there is nothing to measure Whisper on").file(&args.model);
        return Err(fault
            .need("--audio FILE.wav with --against MODEL or --on another device, or --reference FILE")
            .help("any recording of speech will do, of half a minute or more")
            .into());
    };
    if args.windows == Some(0) {
        let fault = Diagnostic::error(Code::BadArgument, "there is no window to measure").subject("--windows");
        return Err(fault.need("at least 1").have(0).into());
    }
    let sound = to_16k(wav::read(audio)?);
    let other = args.against.as_ref().map(|against| reference_model(against, &args.model)).transpose()?;
    match other {
        Some(other) => match subject(&other) {
            Subject::Half => Err(refuse_half(&other)),
            Subject::Speech | Subject::Text => Ok(Against::Model(other, sound)),
        },
        None if args.device.on == On::Host => {
            Err(Diagnostic::error(Code::BadArgument, "this machine would be compared with itself")
                .need("--against MODEL, --reference FILE, or --on another device")
                .into())
        }
        None => Ok(Against::Model(args.model.clone(), sound)),
    }
}

/// The figures of a model over the windows of a recording, and whether the reference computes in whole numbers.
fn over_sound(
    args: &VerifyArgs,
    model: &mut OpenedWhisper,
    other: &Path,
    sound: &Mono16k,
) -> Result<(SpeechFidelity, bool)> {
    let config = model.whisper.config();
    let kind = Kind::of_vocab_size(config.vocab);
    let spectrogram = Extractor::new(speech::bands(config)?).spectrogram(sound);
    let windows = spectrogram.windows().take(args.windows.unwrap_or(usize::MAX));
    let windows: Vec<Vec<f32>> = windows.map(|window| window.mel).collect();
    if windows.is_empty() {
        let fault = Diagnostic::error(Code::BadArgument, "there is no sound to measure on").need("10 ms at least");
        return Err(args.audio.as_ref().map_or(fault.clone(), |audio| fault.clone().file(audio)).into());
    }
    let tokenizer = std::mem::replace(&mut model.tokenizer, Ok(None))?.ok_or_else(|| {
        let fault = Diagnostic::error(Code::NoTokenizer, "the model has no tokenizer, so it cannot write about sound");
        fault.file(&args.model).help("put the model's tokenizer.json into its folder, or give --reference FILE")
    })?;
    let tokens = SpeechTokens::new(&tokenizer, kind).map_err(|e| e.in_file(&args.model))?;
    let host = DeviceArgs { on: On::Host, chunks: None, shapes: None, threads: args.device.threads };
    let mut reference = session::open_whisper(other, &host)?;
    let figures = compare_speech(&mut model.whisper, &mut reference.whisper, &tokens, &windows)?;
    Ok((figures, reference.whole_numbers))
}

/// Flags about text mean nothing to a model that hears.
fn refuse_text(args: &VerifyArgs) -> Result<()> {
    let given = [
        ("--text", args.corpus.text.is_some()),
        ("--ids", args.corpus.ids.is_some()),
        ("--context", args.context.is_some()),
    ];
    let faults = given.into_iter().filter(|(_, given)| *given).map(|(flag, _)| {
        let fault =
            Diagnostic::error(Code::BadArgument, format!("{flag} is about text, and Whisper is measured on sound"));
        fault.file(&args.model).help("use --audio FILE.wav")
    });
    npuc::Error::check(faults.collect())
}

/// The figures, one a line, and the texts after them.
fn render(figures: &SpeechFidelity, measured_on: &str) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name:<18}{value}");
    };
    line("windows", figures.windows.to_string());
    if let Some(HeardFidelity { cosine_min, cosine_min_port, sqnr_db }) = &figures.heard {
        line("heard, cosine", format!("{cosine_min:.9} at {cosine_min_port}, the least"));
        if let Some(db) = sqnr_db {
            line("heard, SQNR", format!("{db:.1} dB"));
        }
    }
    if let Some(Texts { words, word_error_rate, .. }) = &figures.texts {
        let rate = |rate: f64| format!("{:.2} % of {}", 100.0 * rate, count(*words, "word"));
        line("word errors", word_error_rate.map_or_else(|| "the reference writes no word".to_owned(), rate));
    }
    text.push_str(&super::render::render(&figures.fidelity, measured_on));
    if let Some(Texts { model, reference, .. }) = &figures.texts {
        let _ = writeln!(text, "\nat most {} of each window", count(MOST_IDS, "id"));
        let _ = writeln!(text, "  the model      {model}\n  the reference  {reference}");
    }
    text
}
