//! `npuc transcribe`: writes down what is said in a WAV file. The audio is read before the model is opened, so that bad
//! audio fails at once.

use std::path::Path;

use npuc::bundle::staging::{check_file, write_file};
use npuc::{Code, Diagnostic, Result};
use npuc_audio::mel::Extractor;
use npuc_audio::resample::to_16k;
use npuc_audio::wav;
use npuc_run::corpus::read_text;
use npuc_run::fidelity::{word_errors, words};
use npuc_run::memory::peak_rss_bytes;
use npuc_run::speech::{Format, Language, Options, SpeechTokens, Transcript, rendered, transcribe};
use serde::Serialize;

use crate::args::{FormatArg, Threshold, TranscribeArgs, threads};
use crate::output::{Output, bytes, count};
use crate::session;

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    transcript: Transcript,
    /// The length of the audio.
    audio_s: f64,
    /// The time the work took by the length of the audio; absent where there is none.
    real_time_factor: Option<f64>,
    /// How many words are written wrongly, where it is known what is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<WordErrors>,
    /// Where the figures come from.
    measured_on: &'static str,
    threads: usize,
    peak_rss_bytes: Option<u64>,
}

/// How close the text is to what is said.
#[derive(Serialize)]
struct WordErrors {
    said: usize,
    /// Words inserted, dropped or exchanged.
    errors: usize,
}

/// Runs the command.
pub(crate) fn command(args: &TranscribeArgs, output: Output) -> Result<()> {
    let format = format(args)?;
    let options = options(args)?;
    let expected = args.expected.as_deref().map(read_text).transpose()?.map(|text| words(&text));
    args.output.as_deref().map_or(Ok(()), |path| refuse_inputs(args, path).and_then(|()| check_file(path)))?;
    let speech = to_16k(wav::read(&args.audio)?);
    let spinner = output.spinner("opening the model");
    let (mut model, warnings) = session::open_speech(&args.model, &args.device)?;
    drop(spinner);
    output.warnings(&warnings);
    let tokens = SpeechTokens::new(&model.tokenizer, model.kind).map_err(|e| e.in_file(&args.model))?;
    // A request that the model cannot meet is refused before the audio is looked at.
    options.check(&tokens)?;
    let sound = Extractor::new(model.bands).spectrogram(&speech);
    let streams = !output.json && args.output.is_none() && args.format != FormatArg::Json;
    let mut printed = if streams { output.text(format.begin()) } else { Ok(()) };
    let mut index = 0;
    let transcript = transcribe(model.recogniser.as_mut(), &tokens, &sound, &options, &mut |segment| {
        if streams && printed.is_ok() {
            printed = output.text(&format.segment(index, segment));
        }
        index += 1;
    })?;
    printed?;
    let audio_s = speech.duration_s();
    let report = Report {
        real_time_factor: (audio_s > 0.0).then(|| transcript.timing.total_ms / 1e3 / audio_s),
        words: expected
            .map(|said| WordErrors { said: said.len(), errors: word_errors(&said, &words(&transcript.text)) }),
        transcript,
        audio_s,
        measured_on: args.device.on.name(),
        threads: threads(args.device.threads),
        peak_rss_bytes: peak_rss_bytes(),
    };
    finish(args, output, format, streams, &report)
}

/// The transcript may take the place of another file, but not of what it is made of.
fn refuse_inputs(args: &TranscribeArgs, path: &Path) -> Result<()> {
    let Ok(real) = std::fs::canonicalize(path) else { return Ok(()) };
    let is = |input: &Path| std::fs::canonicalize(input).is_ok_and(|input| real == input || real.starts_with(&input));
    let inputs = [Some(args.model.as_path()), Some(args.audio.as_path()), args.expected.as_deref()];
    match inputs.into_iter().flatten().find(|input| is(input)) {
        None => Ok(()),
        Some(input) => {
            let fault = Diagnostic::error(Code::BadArgument, "the transcript would take the place of an input");
            Err(fault.file(path).have(input.display()).help("name another file with -o").into())
        }
    }
}

/// Writes the file, prints what has not been printed, and tells the figures.
fn finish(args: &TranscribeArgs, output: Output, format: Format, streamed: bool, report: &Report) -> Result<()> {
    let text = rendered(&report.transcript, format)?;
    if let Some(path) = &args.output {
        write_file(path, text.as_bytes())?;
        output.note(&format!("wrote {} to {}", count(report.transcript.segments.len(), "segment"), path.display()));
    }
    let shown = if streamed || args.output.is_some() { "" } else { text.as_str() };
    output.result(report, shown)?;
    output.note(&figures(report));
    Ok(())
}

/// The form of the transcript. A flag that would change nothing is a misunderstanding, not a wish.
fn format(args: &TranscribeArgs) -> Result<Format> {
    let format = match args.format {
        FormatArg::Txt => return Ok(Format::Txt { times: args.timestamps }),
        FormatArg::Srt => Format::Srt,
        FormatArg::Vtt => Format::Vtt,
        FormatArg::Json => Format::Json,
    };
    if args.timestamps {
        let fault = Diagnostic::error(Code::BadArgument, "--timestamps does nothing without --format txt");
        return Err(fault.help("leave the flag out: the other formats have times in any case").into());
    }
    Ok(format)
}

fn options(args: &TranscribeArgs) -> Result<Options> {
    let Threshold(no_speech_threshold) = args.no_speech_threshold;
    let Threshold(compression_ratio_threshold) = args.compression_ratio_threshold;
    let Threshold(logprob_threshold) = args.logprob_threshold;
    Ok(Options {
        language: args.language.as_deref().map(Language::parse).transpose()?,
        task: args.task.into(),
        temperatures: Options::temperatures_from(args.temperature),
        compression_ratio_threshold,
        logprob_threshold,
        no_speech_threshold,
        condition_on_previous_text: !args.no_condition,
        initial_prompt: args.prompt.clone(),
        ..Options::default()
    })
}

fn figures(report: &Report) -> String {
    let Report { transcript, audio_s, real_time_factor, words, measured_on, threads, peak_rss_bytes } = report;
    let timing = &transcript.timing;
    let language = match (transcript.language, transcript.language_probability) {
        (Some(language), Some(probability)) => format!("{} ({:.0} %), ", language.name(), probability * 100.0),
        (Some(_) | None, _) => String::new(),
    };
    let factor = real_time_factor.map_or(String::new(), |factor| format!(", {factor:.2} of its length"));
    let wrong =
        words.as_ref().map_or(String::new(), |WordErrors { said, errors }| format!(", {errors} of {said} words wrong"));
    let memory = peak_rss_bytes.map_or(String::new(), |peak| format!(", peak memory {}", bytes(peak)));
    format!(
        "[{measured_on}, {threads} threads: {language}{audio_s:.1} s of sound in {:.1} s{factor}: {} in {:.0} ms, {} in \
         {:.0} ms{memory}{wrong}]",
        timing.total_ms / 1e3,
        count(timing.windows, "window"),
        timing.encode_ms,
        count(timing.sampled_tokens, "token"),
        timing.decode_ms,
    )
}
