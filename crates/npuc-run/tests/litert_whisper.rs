//! Whisper's two models as TFLite files in the LiteRT interpreter against the host: what the encoder hears, and the scores of a
//! decoder that listens to that. `cargo xtask litert` installs the interpreter and sets `NPUC_LITERT`; without that nothing is run
//! here, and the test says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::collections::BTreeMap;
use std::path::Path;

use half::f16;
use npuc::back::tflite::{self, Storage};
use npuc::build::weight_types;
use npuc::exec::{Executor, to_f32};
use npuc::fit::Request;
use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint};
use npuc::ir::{Def, Graph};
use npuc::model::{CacheProtocol, Part, Port, layers};
use npuc::quant::{Recorder, WeightFormat};
use npuc::target::host;
use npuc::tensor::{DType, Tensor};
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::program::Program;
use npuc_run::session::Steps;
use npuc_run::speech::{Encoder, Recogniser, Whisper};
use npuc_run::toolchain::Installed;
use safetensors::SafeTensors;

mod data;
mod integer;

use data::{fixtures, litert_tool, shapes};
use integer::{litert, load};

/// The fixture's model, a spectrogram and the ids of a text.
struct Fixture {
    checkpoint: Checkpoint,
    mel: Vec<f32>,
    ids: Vec<u32>,
}

impl Fixture {
    fn open() -> Option<Fixture> {
        let path = fixtures()?.join("whisper-f32");
        let bytes = std::fs::read(path.join("expected.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mel = file.tensor("input_features").unwrap();
        let mel = mel.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        let ids = file.tensor("decoder_input_ids").unwrap();
        let ids =
            ids.data().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as u32).collect();
        Some(Fixture { checkpoint: front::open(&path).unwrap(), mel, ids })
    }

    /// The same model with matrices and tables in f16.
    fn in_f16(mut self) -> Fixture {
        for tensor in self.checkpoint.tensors.values_mut().filter(|tensor| tensor.shape.len() == 2) {
            let halves = to_f32(tensor).iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect::<Vec<u8>>();
            *tensor = Tensor::in_memory(DType::F16, tensor.shape.clone(), halves.into()).unwrap();
        }
        self
    }
}

/// What was asked of the files of one stack.
fn request(checkpoint: &Checkpoint, steps: &str) -> (Request, Vec<Part>) {
    let request = Request::plain(host().with_protocol(CacheProtocol::Shift), shapes(steps));
    (request, vec![Part::whole(layers(&checkpoint.config))])
}

fn emitted(checkpoint: &Checkpoint, steps: &str, storage: Storage<'_>, folder: &Path) -> Program {
    let (request, parts) = request(checkpoint, steps);
    Program::through_tflite(checkpoint, &request, &parts, storage, folder).unwrap()
}

/// What two encoders hear.
fn heard(program: &Program, steps: Steps, mel: &[f32]) -> Vec<Vec<f32>> {
    let mut encoder = Encoder::of(program, steps).unwrap();
    encoder.encode(mel).unwrap().map(<[f32]>::to_vec).collect()
}

fn largest_difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    assert_eq!(a.iter().map(Vec::len).collect::<Vec<_>>(), b.iter().map(Vec::len).collect::<Vec<_>>());
    a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// The scores of a prompt and of single tokens after it.
fn scores(mut whisper: Whisper, fixture: &Fixture, prompt: usize) -> Vec<Vec<f32>> {
    whisper.listen(&fixture.mel).unwrap();
    let mut rows = Vec::new();
    let ids: Vec<u32> = fixture.ids.iter().copied().cycle().take(prompt + 2).collect();
    whisper.restart(&ids[..prompt], &mut |row| rows.push(row.to_vec())).unwrap();
    for &id in &ids[prompt..] {
        whisper.feed(id).unwrap();
        rows.push(whisper.scores().to_vec());
    }
    rows
}

fn check(fixture: &Fixture, storage: Storage<'_>, tool: &Installed, name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let [encoder, decoder] = [Stack::Encoder, Stack::Decoder].map(|stack| fixture.checkpoint.stack(stack).unwrap());
    let on_host = |program: &Program| Steps::on_host(program, 2, &[]).unwrap();
    let on_litert = |program: &Program| Steps::on_litert(program, tool, 2, TIME_LIMIT).unwrap();
    let hears = emitted(&encoder, "150t150c", storage, &folder.path().join("encoder"));
    let plain_hears = Program::from_checkpoint(encoder, None).unwrap();
    let expected = heard(&plain_hears, on_host(&plain_hears), &fixture.mel);
    let off = largest_difference(&heard(&hears, on_litert(&hears), &fixture.mel), &expected);
    eprintln!("{name}: the encoder is off by {off:e} at most");
    assert!(off <= 1e-4, "{name}: {off}");
    let plain = Program::from_checkpoint(decoder.clone(), Some(shapes("16t16c,1t16c"))).unwrap();
    for (steps, prompt) in [("8t16c,1t16c", 8), ("8t16c,1t16c", 5), ("1t16c", 3)] {
        let writes = emitted(&decoder, steps, storage, &folder.path().join(format!("decoder {steps} {prompt}")));
        let host = Whisper::new((&plain_hears, on_host(&plain_hears)), (&plain, on_host(&plain))).unwrap();
        let litert = Whisper::new((&hears, on_litert(&hears)), (&writes, on_litert(&writes))).unwrap();
        let off = largest_difference(&scores(litert, fixture, prompt), &scores(host, fixture, prompt));
        eprintln!("{name}, {steps} after {prompt}: scores are off by {off:e} at most");
        assert!(off <= 2e-4, "{name} {steps}: {off}");
    }
}

#[test]
fn both_models_in_float() {
    let (Some(tool), Some(fixture)) = (litert_tool(), Fixture::open()) else { return };
    check(&fixture, Storage::F32, &tool, "f32");
    check(&fixture.in_f16(), Storage::F16, &tool, "f16");
}

/// What enters a graph: a spectrogram, or the fixture's ids without a past and with what was heard.
fn inputs(graph: &Graph, fixture: &Fixture, heard: &BTreeMap<String, Vec<f32>>) -> Vec<Vec<f32>> {
    let tensors = &fixture.checkpoint.tensors;
    let input = |value: &npuc::ir::Value| {
        let len = value.ty.shape.elements().unwrap();
        match value.name.parse().unwrap() {
            Port::Mel => fixture.mel.clone(),
            Port::Embeds => {
                let row = |name: &str, at: u32| to_f32(&tensors[name].rows(at as usize..at as usize + 1).unwrap());
                let of = |(at, &id): (usize, &u32)| {
                    let (token, place) = (row("embed_tokens.weight", id), row("embed_positions.weight", at as u32));
                    token.into_iter().zip(place).map(|(a, b)| a + b).collect::<Vec<_>>()
                };
                fixture.ids.iter().cycle().enumerate().take(8).flat_map(of).collect()
            }
            Port::Mask => {
                let visible = |row: usize, column: usize| (16..=16 + row).contains(&column);
                (0..len).map(|i| if visible(i / 24, i % 24) { 0.0 } else { -1e9 }).collect()
            }
            Port::Heard(..) => heard[&value.name].clone(),
            Port::Past(..) => vec![0.0; len],
            port @ (Port::RopeCos | Port::RopeSin | Port::WriteMask | Port::History | Port::Hidden) => {
                panic!("{port} enters no step of Whisper")
            }
            port @ (Port::Logits | Port::LogitsPart(_) | Port::New(..) | Port::Next(..) | Port::Cross(_)) => {
                panic!("{port} enters no step of Whisper")
            }
        }
    };
    graph.values.iter().filter(|value| value.def == Def::Input).map(input).collect()
}

/// The signal over the noise of all results, in dB.
fn sqnr_db(have: &[Vec<f32>], need: &[Vec<f32>]) -> f64 {
    let pairs = || have.iter().flatten().zip(need.iter().flatten()).map(|(a, b)| (f64::from(*a), f64::from(*b)));
    10.0 * (pairs().map(|(_, b)| b * b).sum::<f64>() / pairs().map(|(a, b)| (a - b).powi(2)).sum::<f64>()).log10()
}

/// Both models with int16 activations against the host in float: norms stay in float, and tables are rounded once.
#[test]
fn both_models_in_int16() {
    let (Some(mut litert), Some(fixture)) = (litert(), Fixture::open()) else { return };
    let mut known = BTreeMap::new();
    for (stack, steps, least_db) in [(Stack::Encoder, "150t150c", 40.0), (Stack::Decoder, "8t16c", 40.0)] {
        let checkpoint = fixture.checkpoint.stack(stack).unwrap();
        let (request, parts) = request(&checkpoint, steps);
        let types = weight_types(&checkpoint.tensors);
        let graph = tflite::chunks(&checkpoint.config, &types, &request, &parts).unwrap().remove(0).graph;
        let given = inputs(&graph, &fixture, &known);
        let mut executor = Executor::new(&graph, &checkpoint.tensors, &[]).unwrap();
        let mut recorder = Recorder::new(&graph);
        executor.run_observed(&[&given], &mut |value, elements| recorder.see(value, elements));
        let ranges = recorder.ranges().unwrap();
        let names: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
        let need: Vec<Vec<f32>> = (0..names.len()).map(|port| executor.output(port).to_vec()).collect();
        known.extend(names.into_iter().zip(need.iter().cloned()));
        for (format, least_db) in [(WeightFormat::Int16, least_db), (WeightFormat::Int8, 25.0)] {
            let storage = Storage::Integer { weights: format, ranges: &ranges };
            let model = load(&mut litert, &graph, &checkpoint.tensors, storage);
            let inputs: Vec<&[f32]> = given.iter().map(Vec::as_slice).collect();
            let have = litert.run(&model, &inputs).unwrap();
            let db = sqnr_db(&have[..1], &need[..1]).min(sqnr_db(&have, &need));
            eprintln!("{stack:?} with weights in {format:?}: {db:.1} dB");
            assert!(db >= least_db, "{stack:?} {format:?}: {db}");
        }
    }
}
