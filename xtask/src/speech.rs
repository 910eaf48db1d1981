//! Whisper in every format on spoken sentences: word errors, speed and memory, for docs/fidelity.md.
//!
//! espeak-ng speaks the sentences, so what is said is known and the same everywhere; its voices are harder to understand
//! than people.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use npuc_fetch::espeak::{Espeak, espeak};
use npuc_fetch::models;
use serde_json::Value;

use crate::{Result, cargo, root};

/// The formats of the table, and whether ranges of activations are taken from speech.
const FORMS: [(&str, bool); 4] = [("stored", false), ("w8a16", true), ("q8_0", false), ("w4a16", true)];

/// A sentence and how it is said.
struct Sentence {
    voice: String,
    words_per_minute: u32,
    text: String,
}

/// Measures both real models in every format.
pub(crate) fn speech() -> Result<()> {
    cargo("the program", &["build", "--release", "--package", "npuc-cli"])?;
    let say = &mut |line: &str| eprintln!("{line}");
    let espeak = espeak(say).map_err(|e| e.to_string())?;
    let tiny = models::whisper_tiny_en(say).map_err(|e| e.to_string())?;
    let base = models::whisper_base(say).map_err(|e| e.to_string())?;
    let folder = tempfile::tempdir().map_err(|e| format!("cannot make a folder: {e}"))?;
    let long = said(
        &espeak,
        folder.path(),
        "long",
        &Sentence { voice: "en".into(), words_per_minute: 155, text: read("long.txt")? },
    )?;
    let sentences = sentences()?;
    let mut spoken = Vec::new();
    for (number, sentence) in sentences.iter().enumerate() {
        spoken.push(said(&espeak, folder.path(), &number.to_string(), sentence)?);
    }
    println!("| model | format | wrong words | sentences without one, of {} |", sentences.len());
    println!("|---|---|---|---|");
    for (name, model) in [("tiny.en", &tiny), ("base", &base)] {
        for (recipe, calibrated) in FORMS {
            let bundle = folder.path().join(format!("{name}-{recipe}"));
            let mut build = npuc();
            build.args(["build", "--recipe", recipe, "-o"]).arg(&bundle).arg(model);
            if calibrated {
                build.arg("--calibration").arg(&long);
            }
            finished(&mut build)?;
            let (mut errors, mut whole, mut total) = (0, 0, 0);
            for wav in &spoken {
                let text = wav.with_extension("txt");
                let told = transcribed(&bundle, wav, &["--language", "en", "--expected", &text.to_string_lossy()])?;
                let number = |key: &str| told["words"][key].as_u64().ok_or_else(|| format!("no {key} words"));
                errors += number("errors")?;
                total += number("said")?;
                whole += usize::from(number("errors")? == 0);
            }
            let share = 100.0 * errors as f64 / total as f64;
            println!("| {name} | {recipe} | {errors} of {total} ({share:.1} %) | {whole} |");
        }
    }
    speed(&[("tiny.en", &tiny), ("base", &base)], &long)
}

/// Real-time factor and memory on two threads, and those of faster-whisper where a Python has it.
fn speed(models: &[(&str, &PathBuf)], long: &Path) -> Result<()> {
    println!("\n| model | program | of the sound's length | peak memory |\n|---|---|---|---|");
    let peer = std::env::var_os("NPUC_FASTER_WHISPER");
    for (name, model) in models {
        let told = transcribed(model, long, &["--language", "en", "--threads", "2"])?;
        let number = |key: &str| told[key].as_f64().unwrap_or(f64::NAN);
        let mib = number("peak_rss_bytes") / f64::from(1 << 20);
        println!("| {name} | npuc, f16 | {:.3} | {mib:.0} MiB |", number("real_time_factor"));
        let Some(python) = &peer else { continue };
        for form in ["int8", "float32"] {
            let mut command = Command::new(python);
            command.args(["-c", FASTER_WHISPER]).arg(model).arg(form).arg(long);
            println!("| {name} | faster-whisper, {form} | {} |", finished(&mut command)?.trim());
        }
    }
    if peer.is_none() {
        println!("NOT RUN: faster-whisper; NPUC_FASTER_WHISPER names a Python that has it");
    }
    Ok(())
}

/// What is measured of faster-whisper: the work without loading the model, as npuc's factor is.
const FASTER_WHISPER: &str = r#"
import resource, sys, time
from faster_whisper import WhisperModel
model = WhisperModel(sys.argv[1], device="cpu", compute_type=sys.argv[2], cpu_threads=2, local_files_only=True)
start = time.time()
segments, info = model.transcribe(sys.argv[3], beam_size=1, best_of=1, language="en")
list(segments)
factor = (time.time() - start) / info.duration
print(f"{factor:.3f} | {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
"#;

fn read(name: &str) -> Result<String> {
    let path = root().join("tests/data/speech").join(name);
    fs::read_to_string(&path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn sentences() -> Result<Vec<Sentence>> {
    let parse = |line: &str| {
        let [voice, speed, text] = line.split('|').map(str::trim).collect::<Vec<_>>().try_into().ok()?;
        Some(Sentence { voice: voice.to_owned(), words_per_minute: speed.parse().ok()?, text: text.to_owned() })
    };
    let text = read("sentences.txt")?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| parse(line).ok_or_else(|| format!("not a sentence: {line}"))).collect()
}

/// A WAV file of a sentence, with the sentence in a text file beside it.
fn said(espeak: &Espeak, folder: &Path, name: &str, sentence: &Sentence) -> Result<PathBuf> {
    let path = folder.join(format!("{name}.wav"));
    fs::write(path.with_extension("txt"), &sentence.text).map_err(|e| format!("cannot write: {e}"))?;
    let spoken = espeak.speak(sentence.text.trim(), &sentence.voice, sentence.words_per_minute, &path);
    spoken.map(|()| path).map_err(|e| e.to_string())
}

fn npuc() -> Command {
    Command::new(root().join("target/release/npuc"))
}

/// What npuc tells of a file, as JSON.
fn transcribed(model: &Path, wav: &Path, flags: &[&str]) -> Result<Value> {
    let mut command = npuc();
    command.args(["--json", "transcribe"]).arg(model).arg(wav).args(flags);
    serde_json::from_str(&finished(&mut command)?).map_err(|e| format!("not JSON: {e}"))
}

/// What a command prints, which has to succeed.
fn finished(command: &mut Command) -> Result<String> {
    let shown = format!("{command:?}");
    let output = command.stderr(Stdio::piped()).output().map_err(|e| format!("cannot start {shown}: {e}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{shown} failed: {}", String::from_utf8_lossy(&output.stderr))),
    }
}
