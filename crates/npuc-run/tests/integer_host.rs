//! Small models in the whole numbers of Qualcomm's and TFLite's arithmetic on the host, against the host in f32 over the same
//! stored weights: what is left is the rounding of activations. Weights are stored by an encoder of the test's own.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::sync::Arc;

use npuc::back::tflite::{self, Export, Storage};
use npuc::build::weight_types;
use npuc::exec::to_f32;
use npuc::fit::Request;
use npuc::front::{self, Checkpoint};
use npuc::model::{CacheProtocol, Chunks, Part, layers};
use npuc::quant::{self, Activation, Cache, Method, Scheme, WeightFormat};
use npuc::target::host;
use npuc::tensor::{DType, Tensor};
use npuc_kernels::format::Group;
use npuc_run::calibrate::calibrate;
use npuc_run::integer::{self, Arithmetic};
use npuc_run::program::{Program, exported_contents};
use npuc_run::session::Session;
use npuc_run::text::BundleText;

mod data;

use data::{checkpoints, shapes};

/// A row in whole numbers: its scale, then bytes or nibbles, in LPBQ in blocks with a scale of 1 to 16 each.
fn row(numbers: &[f32], dtype: DType) -> Vec<u8> {
    let largest = |numbers: &[f32]| numbers.iter().fold(1e-6f32, |m, x| m.max(x.abs()));
    let most = if dtype == DType::Int8 { 127.0 } else { 7.0 };
    let (block, steps) = if let DType::Lpbq4(group) = dtype { (group.elements(), 16.0) } else { (numbers.len(), 1.0) };
    let scale = largest(numbers) / (most * steps);
    let mut bytes = scale.to_le_bytes().to_vec();
    for block in numbers.chunks(block) {
        let factor = (largest(block) / (most * scale)).ceil().clamp(1.0, steps);
        let q = |x: &f32| (x / (scale * factor)).round().clamp(-most, most) as i8 as u8;
        let q: Vec<u8> = block.iter().map(q).collect();
        if let DType::Lpbq4(_) = dtype {
            bytes.push(factor as u8);
        }
        match dtype == DType::Int8 {
            true => bytes.extend(q),
            false => bytes.extend(q.chunks(2).map(|pair| pair[0] & 15 | pair[1] << 4)),
        }
    }
    bytes
}

/// The model with all its matrices but the embedding table stored in that format, where its blocks divide the rows.
fn stored(path: &Path, dtype: DType) -> Checkpoint {
    let mut checkpoint = front::open(path).unwrap();
    for (name, tensor) in &mut checkpoint.tensors {
        let cols = tensor.shape[tensor.shape.len() - 1];
        if tensor.shape.len() == 2 && !name.starts_with("embed") && dtype.row_bytes(cols).is_some() {
            let bytes: Vec<u8> = to_f32(tensor).chunks(cols).flat_map(|numbers| row(numbers, dtype)).collect();
            *tensor = Tensor::in_memory(dtype, tensor.shape.clone(), Arc::from(bytes)).unwrap();
        }
    }
    checkpoint
}

/// The same numbers in f32.
fn real(checkpoint: &Checkpoint) -> Checkpoint {
    let mut real = checkpoint.clone();
    for tensor in real.tensors.values_mut() {
        let bytes: Vec<u8> = to_f32(tensor).iter().flat_map(|x| x.to_le_bytes()).collect();
        *tensor = Tensor::in_memory(DType::F32, tensor.shape.clone(), Arc::from(bytes)).unwrap();
    }
    real
}

fn sequences(vocab: usize) -> Vec<Vec<u32>> {
    (1..6).map(|seed| (0..20).map(|i| ((i * 7919 + seed * 31 + 13) % vocab) as u32).collect()).collect()
}

/// Scores of a prompt and single tokens after it.
fn scores(session: &mut Session) -> Vec<f32> {
    let vocab = session.vocab();
    let ids: Vec<u32> = (0..14).map(|i| ((i * 7919 + 9 * 31 + 13) % vocab) as u32).collect();
    let mut scores = Vec::new();
    session.feed(&ids[..11], |row| scores.extend_from_slice(row)).unwrap();
    for &id in &ids[11..] {
        session.decode(id).unwrap();
        scores.extend_from_slice(session.logits().unwrap());
    }
    scores
}

/// The signal-to-noise ratio in dB.
fn db(have: &[f32], need: &[f32]) -> f64 {
    let noise: f64 = have.iter().zip(need).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    let signal: f64 = need.iter().map(|x| f64::from(*x).powi(2)).sum();
    10.0 * (signal / noise).log10()
}

const STEPS: &str = "8t32c,1t32c";
const U16: Scheme =
    Scheme { activation: Activation::U16, cache: Cache::U16, method: Method::MinMax, float_residual: false };

/// The ratio of whole numbers to f32, which does not depend on the number of threads.
fn compared(checkpoint: &Checkpoint, text: &str, arithmetic: Arithmetic) -> f64 {
    let float = Program::from_checkpoint(real(checkpoint), Some(shapes(STEPS))).unwrap();
    let mut float = Session::new(&float, 2, &[]).unwrap();
    let need = scores(&mut float);
    let ranges = integer::ranges(checkpoint, arithmetic, &sequences(float.vocab()), 2).unwrap();
    let program = integer::program(checkpoint, shapes(STEPS), &ranges, arithmetic).unwrap();
    let mut sessions = [1, 3].map(|threads| Session::new(&program, threads, &[]).unwrap());
    let [one, three] = sessions.each_mut().map(scores);
    assert!(one == three, "{text} {arithmetic:?}: the number of threads changes the result");
    let (of, cut) = (db(&one, &need), sessions[0].saturated());
    eprintln!(
        "{text} {arithmetic:?}: {of:.1} dB, {} numbers cut off in {} values",
        cut.values().sum::<u64>(),
        cut.len()
    );
    of
}

fn check(name: &str, dtype: DType, arithmetic: Arithmetic, floor_db: f64) -> Option<String> {
    let checkpoint = stored(&checkpoints().join(name), dtype);
    let of = compared(&checkpoint, &format!("{name} {dtype}"), arithmetic);
    (of.is_nan() || of < floor_db).then(|| format!("{name} {dtype} {arithmetic:?}: {of} dB"))
}

/// Whole numbers of every kind of weights and activations are close to f32 over the same weights; how close is what their
/// bits allow, and a coarser cache costs most. Attention head by head is held to the same.
#[test]
fn small_models_in_whole_numbers() {
    let mut faults = Vec::new();
    for name in ["qwen3-bf16", "qwen2-bf16", "llama-biases-f32", "llama-gqa3-q4_1.gguf"] {
        for dtype in [DType::Int8, DType::Int4, DType::Lpbq4(Group::G16)] {
            let float_residual = Scheme { float_residual: true, ..U16 };
            let schemes = [
                (U16, 44.0),
                (float_residual, 50.0),
                (Scheme { activation: Activation::S16, ..U16 }, 54.0),
                (Scheme { cache: Cache::U8, ..U16 }, 27.0),
                (Scheme { activation: Activation::U8, cache: Cache::U8, ..U16 }, 15.0),
                (Scheme { activation: Activation::U8, cache: Cache::U8, ..float_residual }, 15.0),
                (Scheme { cache: Cache::F16, ..float_residual }, 49.0),
                (Scheme { method: Method::Mse, ..U16 }, 44.0),
                (Scheme { method: Method::Percentile(0.9999), ..U16 }, 38.0),
                (Scheme { activation: Activation::F16, cache: Cache::F16, ..U16 }, 49.0),
                (Scheme { activation: Activation::F16, cache: Cache::U8, ..U16 }, 27.0),
                (Scheme { activation: Activation::F32, cache: Cache::F16, ..U16 }, 110.0),
            ];
            for (scheme, floor_db) in schemes {
                faults.extend(check(name, dtype, Arithmetic::Qualcomm(scheme), floor_db));
                if scheme.method == Method::MinMax {
                    faults.extend(check(name, dtype, Arithmetic::QualcommSplit(scheme), floor_db));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// TFLite's arithmetic rounds the matrices itself; over weights that are int8 already nothing but activations is rounded.
#[test]
fn small_models_in_the_arithmetic_of_files() {
    let mut faults = Vec::new();
    for name in ["qwen3-bf16", "llama-biases-f32"] {
        faults.extend(check(name, DType::Int8, Arithmetic::Tflite(WeightFormat::Int16), 50.0));
        faults.extend(check(name, DType::Int8, Arithmetic::Tflite(WeightFormat::Int8), 36.0));
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// A bundle of files in whole numbers computes on the host, to the bit, what the checkpoint does with matrices rounded the same way:
/// whole and in parts, with heads that are tied and not, in all three formats.
#[test]
fn a_bundle_in_whole_numbers_runs_on_the_host() {
    for name in ["qwen3-bf16", "qwen2-bf16", "llama-biases-f32"] {
        let checkpoint = front::open(&checkpoints().join(name)).unwrap();
        let layers = layers(&checkpoint.config);
        let request = Request::plain(host().with_protocol(CacheProtocol::Shift), shapes(STEPS));
        let vocab =
            Program::from_checkpoint(checkpoint.clone(), None).map(|p| Session::new(&p, 1, &[]).unwrap().vocab());
        let text = sequences(vocab.unwrap());
        for parts in [vec![Part::whole(layers)], Chunks::Equal(layers).parts(layers).unwrap()] {
            let ranges = calibrate(&checkpoint, &request, &parts, &text, 2).unwrap();
            for format in WeightFormat::ALL {
                let storage: Vec<Storage<'_>> =
                    ranges.iter().map(|ranges| Storage::Integer { weights: format, ranges }).collect();
                let export = Export { model: "m", request: &request, parts: &parts, storage: &storage };
                let contents =
                    exported_contents(&request, tflite::export(&checkpoint, &export).unwrap(), BundleText::default());
                let folder = tempfile::tempdir().unwrap();
                let bundle = folder.path().join("bundle");
                npuc::bundle::write::write(&bundle, &checkpoint, contents, &mut |_, _| {}).unwrap();
                let opened = Program::open(&bundle, None).unwrap();
                let have = scores(&mut Session::new(&opened, 2, &[]).unwrap());

                let chunks = tflite::chunks(&checkpoint.config, &weight_types(&checkpoint.tensors), &request, &parts);
                let chunks = chunks.unwrap();
                let mut chunks = chunks.iter();
                let mut need = Program { weights: checkpoint.tensors.clone(), ..opened };
                for segment in need.steps.iter_mut().flat_map(|step| &mut step.segments) {
                    let chunk = chunks.next().unwrap();
                    let scales = quant::scales(&chunk.graph, &ranges[chunk.number], &checkpoint.tensors).unwrap();
                    let encodings = Some(Arc::new(quant::tflite(&chunk.graph, &scales, format)));
                    (segment.graph, segment.encodings) = (chunk.graph.clone(), encodings);
                }
                let need = scores(&mut Session::new(&need, 2, &[]).unwrap());
                assert!(have == need, "{name} {format:?} in {} parts: {} dB", parts.len(), db(&have, &need));
            }
        }
    }
}

#[test]
fn text_of_no_tokens_has_no_ranges() {
    let checkpoint = stored(&checkpoints().join("qwen3-bf16"), DType::Int8);
    for sequences in [&[][..], &[vec![]]] {
        let error = integer::ranges(&checkpoint, Arithmetic::Qualcomm(U16), sequences, 1).unwrap_err();
        assert_eq!(error.diagnostics()[0].code, npuc::Code::BadArgument);
    }
}

/// Thirty layers with the activations of a real model, where `NPUC_REAL_MODEL` names it: figures, and that the residual stream
/// in f16 is what makes them good.
#[test]
fn a_real_model() {
    let Some(model) = std::env::var_os("NPUC_REAL_MODEL") else { return };
    for dtype in [DType::Int8, DType::Lpbq4(Group::G32)] {
        let checkpoint = stored(Path::new(&model), dtype);
        let float_residual = Scheme { float_residual: true, ..U16 };
        let of = |scheme| compared(&checkpoint, &format!("SmolLM2-135M {dtype}"), Arithmetic::Qualcomm(scheme));
        let (coarse, fine) = (of(U16), of(float_residual));
        of(Scheme { cache: Cache::U8, ..float_residual });
        of(Scheme { method: Method::Mse, ..float_residual });
        assert!(fine >= 25.0 && fine > coarse, "{dtype}: {coarse} and {fine} dB");
    }
}
