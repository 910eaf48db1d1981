//! Whisper's two models on Qualcomm's emulation and as IREE's modules against the host: what the encoder hears, and the scores of
//! the decoder that listens to it. The tools are fetched on first use.
#![allow(clippy::unwrap_used, clippy::print_stderr, missing_docs)]

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use half::f16;
use npuc::back::BackEnd;
use npuc::back::qnn::{self, Activations};
use npuc::back::stablehlo::{self, CacheWrites, Dialect, Products, Side, Storage, Style};
use npuc::build::weight_types;
use npuc::bundle::write::{Contents, Made, write_prepared};
use npuc::bundle::{self, Manifest};
use npuc::exec::{Executor, to_f32};
use npuc::fit::Request;
use npuc::front::config::Stack;
use npuc::front::{self, Checkpoint, ModelConfig};
use npuc::ir::{Def, Graph, Value};
use npuc::model::{Part, Port, WeightSpec, layers, weight_specs};
use npuc::quant::{Activation, Cache, Method, Ranges, Recorder, Scheme};
use npuc::target;
use npuc::tensor::{DType, Tensor};
use npuc_audio::mel::{Bands, Extractor};
use npuc_audio::resample::to_16k;
use npuc_audio::wav;
use npuc_fetch::espeak::speak;
use npuc_fetch::models;
use npuc_run::contexts;
use npuc_run::device::module::Runner;
use npuc_run::device::qnn::{Qnn, Start};
use npuc_run::modules;
use npuc_run::program::{Program, chip_contents};
use npuc_run::session::Steps;
use npuc_run::speech::{Encoder, Recogniser, Whisper};
use npuc_run::text::BundleText;
use npuc_run::toolchain::{Installed, Tool, install};
use safetensors::SafeTensors;

/// How long a request may take: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(900);
/// Tokens of the prompt, as many as a step of the decoder takes, and single ones after it.
const PROMPT: usize = 8;
const AFTER: usize = 2;
const DECODER: &str = "8t16c,1t16c";
const CAPACITY: usize = 16;
/// Positions of the encoder.
const POSITIONS: usize = 150;

fn tool(tool: Tool) -> Installed {
    let installed = install(tool, &mut |line| eprintln!("{line}"));
    installed.unwrap_or_else(|error| panic!("these tests need {}:\n{error}", tool.name()))
}

/// The fixture's model, a spectrogram and the ids of a text.
struct Fixture {
    checkpoint: Checkpoint,
    mel: Vec<f32>,
    ids: Vec<u32>,
}

/// How matrices are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stored {
    AsGiven,
    F16,
    Int8,
}

fn fixture(stored: Stored) -> Option<Fixture> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/fixtures/whisper-f32");
    if !path.is_dir() {
        eprintln!("NOT RUN: the fixture whisper-f32, because ../shared/fixtures is absent");
        return None;
    }
    let bytes = std::fs::read(path.join("expected.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mel = file.tensor("input_features").unwrap();
    let mel = mel.data().chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
    let ids = file.tensor("decoder_input_ids").unwrap();
    let ids = ids.data().chunks_exact(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap()) as u32);
    let ids: Vec<u32> = ids.collect::<Vec<_>>().into_iter().cycle().take(PROMPT + AFTER).collect();
    let mut checkpoint = front::open(&path).unwrap();
    store(&mut checkpoint, stored);
    Some(Fixture { checkpoint, mel, ids })
}

fn store(checkpoint: &mut Checkpoint, stored: Stored) {
    let is_table = |name: &str| name.ends_with("embed_positions.weight");
    let matrices = checkpoint.tensors.iter_mut().filter(|(name, tensor)| tensor.shape.len() == 2 && !is_table(name));
    matrices.for_each(|(_, tensor)| *tensor = as_stored(tensor, stored));
}

/// The first layers, positions and ids of Whisper tiny.en, and the first three seconds of a sentence.
fn tiny_en(stored: Stored) -> Fixture {
    let say = &mut |line: &str| eprintln!("{line}");
    let path = models::whisper_tiny_en(say).unwrap_or_else(|e| panic!("these tests need Whisper tiny.en: {e}"));
    let mut checkpoint = front::open(&path).unwrap();
    let ModelConfig::Whisper(config) = &mut checkpoint.config else { panic!("{}", path.display()) };
    (config.encoder.layers, config.decoder.layers) = (2, 2);
    (config.source_positions, config.vocab) = (POSITIONS, 1024);
    let (bands, frames) = (config.mels, config.frames());
    let cut = |spec: WeightSpec| {
        let tensor = &checkpoint.tensors[&spec.name];
        let rows = tensor.rows(0..spec.shape[0]).filter(|rows| rows.shape == spec.shape);
        (spec.name, rows.unwrap_or_else(|| tensor.clone()))
    };
    checkpoint.tensors = weight_specs(&checkpoint.config).into_iter().map(cut).collect();
    store(&mut checkpoint, stored);
    let folder = tempfile::tempdir().unwrap();
    let wav = folder.path().join("speech.wav");
    let text = "And so my fellow Americans ask not what your country can do for you.";
    speak(text, "en", 175, &wav, say).unwrap_or_else(|e| panic!("these tests need espeak-ng: {e}"));
    let audio = to_16k(wav::read(&wav).unwrap());
    let window = Extractor::new(Bands::from_count(bands).unwrap()).clip(&audio, 0);
    let mel = window.mel.chunks_exact(window.mel.len() / bands).flat_map(|band| band[..frames].to_vec()).collect();
    Fixture { checkpoint, mel, ids: (0..PROMPT + AFTER).map(|place| (place * 97 % 1024) as u32).collect() }
}

fn as_stored(tensor: &Tensor, stored: Stored) -> Tensor {
    let numbers = to_f32(tensor);
    let row = |row: &[f32]| {
        let scale = row.iter().fold(f32::MIN_POSITIVE, |largest, x| largest.max(x.abs())) / 127.0;
        let whole = row.iter().map(|x| (x / scale).round() as i8 as u8);
        scale.to_le_bytes().into_iter().chain(whole).collect::<Vec<u8>>()
    };
    let (dtype, bytes): (DType, Vec<u8>) = match stored {
        Stored::AsGiven => return tensor.clone(),
        Stored::F16 => (DType::F16, numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect()),
        Stored::Int8 => (DType::Int8, numbers.chunks(tensor.shape[1]).flat_map(row).collect()),
    };
    Tensor::in_memory(dtype, tensor.shape.clone(), bytes.into()).unwrap()
}

/// What a device, or the host, makes of the fixture.
struct Told {
    heard: Vec<Vec<f32>>,
    scores: Vec<Vec<f32>>,
}

/// Runs both models; `steps` makes those of a program, which is called for the encoder twice.
fn tell(fixture: &Fixture, [hears, writes]: [&Program; 2], steps: &mut dyn FnMut(&Program) -> Steps) -> Told {
    let mut encoder = Encoder::of(hears, steps(hears)).unwrap();
    let heard = encoder.encode(&fixture.mel).unwrap().map(<[f32]>::to_vec).collect();
    let mut whisper = Whisper::new((hears, steps(hears)), (writes, steps(writes))).unwrap();
    whisper.listen(&fixture.mel).unwrap();
    let mut scores = Vec::new();
    whisper.restart(&fixture.ids[..PROMPT], &mut |row| scores.push(row.to_vec())).unwrap();
    for &id in &fixture.ids[PROMPT..] {
        whisper.feed(id).unwrap();
        scores.push(whisper.scores().to_vec());
    }
    Told { heard, scores }
}

fn on_host(fixture: &Fixture) -> Told {
    let program = |stack, shapes: Option<&str>| {
        let shapes = shapes.map(|shapes| shapes.split(',').map(|shape| shape.parse().unwrap()).collect());
        Program::from_checkpoint(fixture.checkpoint.stack(stack).unwrap(), shapes).unwrap()
    };
    let programs = [program(Stack::Encoder, None), program(Stack::Decoder, Some(DECODER))];
    tell(fixture, programs.each_ref(), &mut |program| Steps::on_host(program, 2, &[]).unwrap())
}

/// Largest difference, least cosine of a row, and the signal over the noise in dB.
fn figures(have: &[Vec<f32>], need: &[Vec<f32>]) -> (f64, f64, f64) {
    assert_eq!(have.iter().map(Vec::len).collect::<Vec<_>>(), need.iter().map(Vec::len).collect::<Vec<_>>());
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    let least = have.iter().zip(need).map(cosine).fold(1.0, f64::min);
    let off = || have.iter().flatten().zip(need.iter().flatten()).map(|(a, b)| f64::from(a - b).abs());
    let signal: f64 = need.iter().map(|row| dot(row, row)).sum();
    let noise: f64 = off().map(|x| x * x).sum();
    (off().fold(0.0, f64::max), least, 10.0 * (signal / noise).log10())
}

/// Says how far apart both are, and refuses less than `least_db`.
fn compare(name: &str, have: &Told, need: &Told, [heard_db, scores_db]: [f64; 2]) {
    for (what, have, need, least_db) in
        [("heard", &have.heard, &need.heard, heard_db), ("scores", &have.scores, &need.scores, scores_db)]
    {
        let (off, cosine, db) = figures(have, need);
        eprintln!("{name}, {what}: off by {off:e} at most, least cosine {cosine:.7}, {db:.1} dB");
        assert!(db >= least_db, "{name}, {what}: {db}");
    }
}

fn request(target: &str, stack: Stack) -> Request {
    let shapes = if stack == Stack::Encoder { "150t150c" } else { DECODER };
    let shapes = shapes.split(',').map(|shape| shape.parse().unwrap()).collect();
    Request::plain(target::find(target).unwrap(), shapes)
}

fn whole(checkpoint: &Checkpoint) -> Vec<Part> {
    vec![Part::whole(layers(&checkpoint.config))]
}

/// What enters a graph: the spectrogram, or the prompt without a past and with what was heard.
fn inputs(graph: &Graph, fixture: &Fixture, heard: &BTreeMap<String, Vec<f32>>) -> Vec<Vec<f32>> {
    let rows = |name: &str, at: usize| to_f32(&fixture.checkpoint.tensors[name].rows(at..at + 1).unwrap());
    let embedded = |(at, id): (usize, &u32)| {
        let (token, place) = (rows("embed_tokens.weight", *id as usize), rows("embed_positions.weight", at));
        token.into_iter().zip(place).map(|(a, b)| a + b).collect::<Vec<f32>>()
    };
    let width = CAPACITY + PROMPT;
    let visible = |at: usize| (CAPACITY..=CAPACITY + at / width).contains(&(at % width));
    let input = |value: &Value| {
        let len = value.ty.shape.elements().unwrap();
        match value.name.parse().unwrap() {
            Port::Mel => fixture.mel.clone(),
            Port::Embeds => fixture.ids[..PROMPT].iter().enumerate().flat_map(embedded).collect(),
            Port::Mask => (0..len).map(|at| if visible(at) { 0.0 } else { -1e9 }).collect(),
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

/// The ranges of both models over the fixture.
fn ranges(fixture: &Fixture, target: &str) -> [Ranges; 2] {
    let mut heard = BTreeMap::new();
    [Stack::Encoder, Stack::Decoder].map(|stack| {
        let checkpoint = fixture.checkpoint.stack(stack).unwrap();
        let types = weight_types(&checkpoint.tensors);
        let chunks = qnn::chunks(&checkpoint.config, &types, &request(target, stack), &whole(&checkpoint)).unwrap();
        let graph = &chunks[0].graph;
        let mut executor = Executor::new(graph, &checkpoint.tensors, &[]).unwrap();
        let mut recorder = Recorder::new(graph);
        let given = inputs(graph, fixture, &heard);
        executor.run_observed(&[&given], &mut |value, elements| recorder.see(value, elements));
        let names: Vec<String> = executor.outputs().map(|(name, _)| name.to_owned()).collect();
        heard.extend(names.into_iter().enumerate().map(|(port, name)| (name, executor.output(port).to_vec())));
        recorder.ranges().unwrap().with_headroom(1.1).unwrap()
    })
}

fn worker(libraries: &Path) -> Qnn {
    let (program, args) = (Path::new(env!("CARGO_BIN_EXE_npuc")), [OsString::from("qnn-worker")]);
    Qnn::start(&Start { program, args: &args, libraries, limit: LIMIT, log: None }).unwrap()
}

/// Both models described for one of Qualcomm's chips, in its emulation and on the host in the same numbers.
fn in_emulation(fixture: &Fixture, target: &str, scheme: Option<Scheme>) -> [Told; 2] {
    let libraries = tool(Tool::Qnn).libraries();
    let folder = tempfile::tempdir().unwrap();
    let ranges = scheme.map(|_| ranges(fixture, target));
    let mut programs = Vec::new();
    for (place, stack) in [Stack::Encoder, Stack::Decoder].into_iter().enumerate() {
        let checkpoint = fixture.checkpoint.stack(stack).unwrap();
        let request = request(target, stack);
        let activations = match (scheme, &ranges) {
            (Some(scheme), Some(ranges)) => Activations::Whole(scheme, &ranges[place..=place]),
            (None, _) | (_, None) => Activations::Half,
        };
        let exported = qnn::export(&checkpoint, &request, &whole(&checkpoint), activations).unwrap();
        let text = BundleText::default();
        let contents = chip_contents(&request, BackEnd::Qnn, exported.graphs, exported.weights, text);
        let path = folder.path().join(place.to_string());
        bundle::write::write(&path, &checkpoint, contents, &mut |_, _| {}).unwrap();
        programs.push((Program::open(&path, None).unwrap(), path));
    }
    let soc = target::find(target).unwrap().soc_model.unwrap();
    let programs: [(Program, PathBuf); 2] = programs.try_into().ok().unwrap();
    let mut steps = |program: &Program| {
        let path = &programs.iter().find(|(other, _)| other.config == program.config).unwrap().1;
        let mut qnn = worker(&libraries);
        let requests = contexts::requests(path, &bundle::manifest(path).unwrap(), soc, true).unwrap();
        let made = requests.iter().map(|request| qnn.prepare(request, &mut |_| ()).unwrap()).collect();
        Steps::on_qnn(program, made, qnn).unwrap()
    };
    let both = [&programs[0].0, &programs[1].0];
    let host = tell(fixture, both, &mut |program| Steps::on_host(program, 2, &[]).unwrap());
    [tell(fixture, both, &mut steps), host]
}

/// In f16 the library's `Gelu` is off by up to 4e-3 wherever it is near 0, which nearly all of it is in a trained decoder: the scores
/// of tiny.en lose to it what random weights do not.
#[test]
fn in_half_precision_in_qualcomms_emulation() {
    for (name, fixture, least_db) in
        [("fixture", fixture(Stored::F16), [50.0, 50.0]), ("tiny.en", Some(tiny_en(Stored::F16)), [50.0, 36.0])]
    {
        let Some(fixture) = fixture else { continue };
        let need = on_host(&fixture);
        for target in ["sm8650", "sm8750"] {
            let [have, host] = in_emulation(&fixture, target, None);
            compare(&format!("{name} {target} f16"), &have, &need, least_db);
            compare(&format!("{name} {target} f16 beside the host in the same"), &have, &host, least_db);
        }
    }
}

/// Real weights against the float of the same in int8.
#[test]
fn real_weights_in_whole_numbers_in_qualcomms_emulation() {
    let fixture = tiny_en(Stored::Int8);
    let need = on_host(&fixture);
    let scheme =
        Scheme { activation: Activation::U16, cache: Cache::U16, method: Method::MinMax, float_residual: true };
    for target in ["sm8650", "sm8750"] {
        let [have, host] = in_emulation(&fixture, target, Some(scheme));
        compare(&format!("tiny.en {target} u16"), &have, &need, [35.0, 30.0]);
        compare(&format!("tiny.en {target} u16 beside the host in the same"), &have, &host, [35.0, 30.0]);
    }
}

/// Against the float of the same weights in int8.
#[test]
fn in_whole_numbers_in_qualcomms_emulation() {
    let Some(fixture) = fixture(Stored::Int8) else { return };
    let need = on_host(&fixture);
    for (target, cache, least_db) in [
        ("sm8650", Cache::U16, [50.0, 40.0]),
        ("sm8650", Cache::U8, [38.0, 38.0]),
        ("sm8650", Cache::F16, [50.0, 40.0]),
        ("sm8750", Cache::U16, [50.0, 40.0]),
    ] {
        let scheme = Scheme { activation: Activation::U16, cache, method: Method::MinMax, float_residual: true };
        let [have, host] = in_emulation(&fixture, target, Some(scheme));
        let name = format!("{target} u16 with caches in {cache:?}");
        compare(&name, &have, &need, least_db);
        compare(&format!("{name} beside the host in the same"), &have, &host, [40.0, 40.0]);
    }
}

#[test]
fn as_modules_of_iree() {
    let Some(fixture) = fixture(Stored::AsGiven) else { return };
    let need = on_host(&fixture);
    let [iree, _] = [Tool::Iree, Tool::Vulkan].map(tool);
    let folder = tempfile::tempdir().unwrap();
    for (target, runner, side) in [
        ("iree-cpu", Runner::IreeCpu, Side::Left),
        ("iree-cpu", Runner::IreeCpu, Side::Right),
        ("iree-vulkan", Runner::IreeVulkan, Side::Left),
    ] {
        let style = Style {
            dialect: Dialect::Iree,
            side,
            storage: Storage::External,
            products: Products::default(),
            cache_writes: CacheWrites::default(),
        };
        let programs = [Stack::Encoder, Stack::Decoder].map(|stack| {
            let path = folder.path().join(format!("{target} {side:?} {stack:?}"));
            compile(&fixture.checkpoint.stack(stack).unwrap(), &request(target, stack), style, &iree, &path);
            (Program::open(&path, None).unwrap(), path)
        });
        let mut steps = |program: &Program| {
            let path = &programs.iter().find(|(other, _)| other.config == program.config).unwrap().1;
            let (manifest, log) = (bundle::manifest(path).unwrap(), folder.path().join("run.log"));
            let opened = modules::open(path, &manifest, &program.graphs(), &[runner], &log, LIMIT).unwrap();
            Steps::on_modules(program, opened).unwrap()
        };
        let have = tell(&fixture, [&programs[0].0, &programs[1].0], &mut steps);
        compare(&format!("{target} {side:?}"), &have, &need, [100.0, 100.0]);
        let (off, _, _) = figures(&have.heard, &need.heard);
        let (scores_off, _, _) = figures(&have.scores, &need.scores);
        assert!(off <= 1e-5 && scores_off <= 1e-5, "{target} {side:?}: {off} {scores_off}");
    }
}

/// Writes a bundle of compiled modules.
fn compile(checkpoint: &Checkpoint, request: &Request, style: Style, tool: &Installed, path: &Path) {
    let exported = stablehlo::export(checkpoint, request, &whole(checkpoint), style, &[]).unwrap();
    let stablehlo::Exported { graphs, weights, files } = exported;
    let text = BundleText::default();
    let contents = Contents { files, ..chip_contents(request, BackEnd::Iree, graphs, weights, text) };
    let log = path.with_extension("log");
    let made = |folder: &Path, manifest: &Manifest| {
        let program = Program::open(folder, None)?;
        let (target, limit) = (&request.target, LIMIT);
        let mut say = |_: &str| ();
        let mut making =
            modules::Making { tool, target, changes: &[], profile: false, log: &log, limit, say: &mut say };
        let compiled = modules::make(folder, manifest, &program.graphs(), &mut making)?;
        Ok(Made { modules: compiled.into_iter().map(|made| made.record).collect(), ..Made::default() })
    };
    write_prepared(path, checkpoint, contents, &mut |_, _| {}, made).unwrap();
}
