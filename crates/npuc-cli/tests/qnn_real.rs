//! The real model in Qualcomm's emulation against the host in the same numbers and in float: one prefill step of held text and
//! sixteen greedy ids. `cargo xtask qnn-full` builds the bundle and names it in `NPUC_QNN_BUNDLE`, the checkpoint in `NPUC_QNN_MODEL` and
//! the text in `NPUC_QNN_TEXT`; without them nothing is measured, and that is said.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use npuc::bundle;
use npuc_run::contexts;
use npuc_run::device::qnn::{Qnn, Start};
use npuc_run::fidelity::best_id;
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::toolchain::{Tool, install};

/// Greedy ids after the prompt.
const GREEDY: usize = 16;
/// The least cosine of any position to the host in the same numbers.
const LEAST_COSINE: f64 = 0.999;

/// What a session gives: the scores of the prompt's positions, and greedy ids.
struct Told {
    scores: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

/// The scores of a prompt and the greedy ids after it; with `forced` these are fed instead of the session's own.
fn tell(session: &mut Session, prompt: &[u32], forced: Option<&[u32]>) -> Told {
    let mut scores = Vec::new();
    session.feed(prompt, |row| scores.push(row.to_vec())).unwrap();
    let mut greedy = vec![best_id(scores.last().unwrap()).unwrap()];
    while greedy.len() < GREEDY {
        let at = greedy.len() - 1;
        session.decode(forced.map_or(greedy[at], |forced| forced[at])).unwrap();
        greedy.push(best_id(session.logits().unwrap()).unwrap());
    }
    Told { scores, greedy }
}

fn perplexity(scores: &[Vec<f32>], ids: &[u32]) -> f64 {
    let surprise = |(row, &id): (&Vec<f32>, &u32)| {
        let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = row.iter().map(|x| f64::from(x - most).exp()).sum();
        sum.ln() - f64::from(row[id as usize] - most)
    };
    let all: Vec<f64> = scores.iter().zip(&ids[1..]).map(surprise).collect();
    (all.iter().sum::<f64>() / all.len() as f64).exp()
}

/// Mean and least cosine of the positions, and the ratio of signal to noise over all of them in dB.
fn figures(reference: &[Vec<f32>], model: &[Vec<f32>]) -> (f64, f64, f64) {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let cosines: Vec<f64> = reference.iter().zip(model).map(cosine).collect();
    let signal: f64 = reference.iter().map(|row| dot(row, row)).sum();
    let off = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    let noise: f64 = reference.iter().zip(model).map(off).sum();
    let mean = cosines.iter().sum::<f64>() / cosines.len() as f64;
    (mean, cosines.iter().copied().fold(1.0, f64::min), 10.0 * (signal / noise).log10())
}

#[test]
fn the_real_model_in_emulation() {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let (Some(path), Some(model), Some(text)) =
        (variable("NPUC_QNN_BUNDLE"), variable("NPUC_QNN_MODEL"), variable("NPUC_QNN_TEXT"))
    else {
        eprintln!("NOT RUN: `cargo xtask qnn-full` runs the real model in emulation");
        return;
    };
    let program = Program::open(&path, None).unwrap();
    let tokens = program.steps[0].shape.tokens;
    let text = std::fs::read_to_string(text).unwrap();
    let tokenizer = program.text.as_ref().unwrap().as_ref().unwrap();
    let ids: Vec<u32> = tokenizer.tokenizer.encode(&text[..text.len().min(4096)], true).unwrap()[..tokens].to_vec();
    let mut same = Session::new(&program, 1, &[]).unwrap();
    let shapes = program.steps.iter().map(|step| step.shape).collect();
    let float = Program::open(&model, Some(shapes)).unwrap();
    let mut float = Session::new(&float, 1, &[]).unwrap();
    let libraries = install(Tool::Qnn, &mut |line| eprintln!("{line}")).unwrap().libraries();
    let (binary, args) = (Path::new(env!("CARGO_BIN_EXE_npuc")), [OsString::from("qnn-worker")]);
    let limit = Duration::from_secs(3600);
    let mut qnn = Qnn::start(&Start { program: binary, args: &args, libraries: &libraries, limit, log: None }).unwrap();
    let manifest = bundle::manifest(&path).unwrap();
    let soc = npuc::target::find(&manifest.target).unwrap().soc_model.unwrap();
    let start = Instant::now();
    let contexts = contexts::emulated(&path, &manifest, soc, &mut qnn).unwrap();
    eprintln!("{}: prepared in {:.0} s", manifest.target, start.elapsed().as_secs_f64());
    let mut emulated = Session::on_qnn(&program, contexts, qnn).unwrap();
    let start = Instant::now();
    let emulation = tell(&mut emulated, &ids, None);
    let seconds = start.elapsed().as_secs_f64();
    let same = tell(&mut same, &ids, Some(&emulation.greedy));
    let float = tell(&mut float, &ids, Some(&emulation.greedy));
    for (name, reference) in [("the host in the same numbers", &same), ("the checkpoint in float", &float)] {
        let (mean, least, db) = figures(&reference.scores, &emulation.scores);
        let agreed = reference.greedy.iter().zip(&emulation.greedy).filter(|(a, b)| a == b).count();
        eprintln!(
            "{} {} against {name}: cosine {mean:.6} (least {least:.6}), SQNR {db:.1} dB, greedy {agreed} of {GREEDY}",
            manifest.target, manifest.precision
        );
    }
    let of = |told: &Told| perplexity(&told.scores, &ids);
    eprintln!(
        "{} {}: perplexity of {} ids by the prefill graph: emulation {:.4}, host {:.4}, float {:.4}; {seconds:.0} s of emulation",
        manifest.target,
        manifest.precision,
        ids.len() - 1,
        of(&emulation),
        of(&same),
        of(&float)
    );
    let (_, least, _) = figures(&same.scores, &emulation.scores);
    assert!(least >= LEAST_COSINE, "{least}");
}
