//! Emitted TFLite files in the LiteRT interpreter against the host executor: chunks chained, prefill and decode,
//! caches fed back. `cargo xtask litert` installs the interpreter and sets `NPUC_LITERT`; without that nothing is
//! run here, and the test says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;

use half::f16;
use npuc::back::tflite::Storage;
use npuc::build::Plan;
use npuc::exec::to_f32;
use npuc::fit::Request;
use npuc::front::{self, Checkpoint, ModelConfig};
use npuc::mend::{Preference, mend};
use npuc::model::{CacheProtocol, Chunks, Head, Part, layers};
use npuc::synth;
use npuc::target::{Precision, Question, find, host};
use npuc::tensor::{DType, Tensor};
use npuc_run::device::litert::TIME_LIMIT;
use npuc_run::fidelity::best_id;
use npuc_run::program::Program;
use npuc_run::session::Session;
use npuc_run::toolchain::Installed;

mod data;

use data::{checkpoints, litert_tool, shapes, sixteen_layers};

/// Both sides compute in f32, in other orders of summation.
const TOLERANCE: f32 = 1e-4;

/// A session in the interpreter over TFLite files of those parts, and one of the whole model on the host.
fn sessions(model: &Checkpoint, steps: &str, parts: &[Part], storage: Storage, tool: &Installed) -> (Session, Session) {
    let target = host().with_protocol(CacheProtocol::Shift);
    let folder = tempfile::tempdir().unwrap();
    let request = Request::plain(target.clone(), shapes(steps));
    let emitted = Program::through_tflite(model, &request, parts, storage, &folder.path().join("files")).unwrap();
    let litert = Session::on_litert(&emitted, tool, 2, TIME_LIMIT).unwrap();
    let whole = Program::build(model.clone(), &Plan::new(target, &model.config, shapes(steps)).unwrap()).unwrap();
    (litert, Session::new(&whole, 2, &[]).unwrap())
}

/// The largest difference of any score over a prompt in parts and single tokens; the best ids must be equal.
fn difference((mut litert, mut host): (Session, Session), feeds: &[usize]) -> f32 {
    let ids: Vec<u32> = (0..feeds.iter().sum()).map(|i| ((i * 7919 + 13) % host.vocab()) as u32).collect();
    let mut rest = &ids[..];
    let mut largest = 0f32;
    for &count in feeds {
        let (now, later) = rest.split_at(count);
        let (mut expected, mut have) = (Vec::new(), Vec::new());
        host.feed(now, |logits| expected.push(logits.to_vec())).unwrap();
        litert.feed(now, |logits| have.push(logits.to_vec())).unwrap();
        assert_eq!(have.len(), count);
        for (have, expected) in have.iter().zip(&expected) {
            assert!(have.iter().all(|x| x.is_finite()));
            assert_eq!(best_id(have), best_id(expected));
            largest = have.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(largest, f32::max);
        }
        rest = later;
    }
    largest
}

/// Every way to cut: whole, a layer each, the head alone, the head in parts of which the last has padding.
fn cuts(config: &ModelConfig) -> Vec<Vec<Part>> {
    let layers = layers(config);
    let whole = vec![Part::whole(layers)];
    let each = Chunks::Equal(layers).parts(layers).unwrap();
    let mut apart = each.clone();
    apart[layers - 1].head = Head::Absent;
    apart.push(Part { layers: layers..layers, head: Head::Whole });
    let rows = config.vocab() / 3;
    let split = Part { head: Head::Rows(vec![rows, rows, config.vocab() - 2 * rows + 5]), ..Part::whole(layers) };
    vec![whole, each, apart, vec![split]]
}

#[test]
fn small_models_cut_in_every_way() {
    let Some(tool) = litert_tool() else { return };
    for name in ["qwen3-bf16", "qwen2-bf16", "mistral-bf16", "llama-biases-f32", "llama-gqa3-q4_1.gguf"] {
        for (steps, feeds) in [
            ("8t32c,1t32c", &[8, 1, 1, 9, 1][..]),
            ("8t32c,1t32c", &[5, 1, 1]),
            ("1t32c", &[3, 1]),
            ("32t32c,1t32c", &[31, 1]),
        ] {
            let model = front::open(&checkpoints().join(name)).unwrap();
            for parts in cuts(&model.config) {
                let off = difference(sessions(&model, steps, &parts, Storage::F32, &tool), feeds);
                eprintln!("{name} {steps} in {} parts: largest difference {off:e}", parts.len());
                assert!(off <= TOLERANCE, "{name} {steps} {parts:?}: {off}");
            }
        }
    }
}

/// Weights behind the flatbuffer are read like those inside.
#[test]
fn outer_buffers() {
    let Some(tool) = litert_tool() else { return };
    let model = front::open(&checkpoints().join("qwen3-bf16")).unwrap();
    let target = host().with_protocol(CacheProtocol::Shift);
    let mut request = Request::plain(target.clone(), shapes("8t32c,1t32c"));
    request.question.outer_buffers = true;
    let folder = tempfile::tempdir().unwrap();
    let parts = [Part::whole(layers(&model.config))];
    let files = folder.path().join("files");
    let emitted = Program::through_tflite(&model, &request, &parts, Storage::F32, &files).unwrap();
    let litert = Session::on_litert(&emitted, &tool, 2, TIME_LIMIT).unwrap();
    // The host reads the weights from the same places.
    let host = Session::new(&emitted, 2, &[]).unwrap();
    let off = difference((litert, host), &[8, 1, 1]);
    assert!(off <= TOLERANCE, "{off}");
}

/// Matrices in f16 in the files, and the same rounded numbers on the host.
#[test]
fn matrices_in_f16() {
    let Some(tool) = litert_tool() else { return };
    for name in ["qwen3-bf16", "llama-biases-f32", "llama-gqa3-q4_1.gguf"] {
        let mut checkpoint = front::open(&checkpoints().join(name)).unwrap();
        for tensor in checkpoint.tensors.values_mut().filter(|tensor| tensor.shape.len() == 2) {
            let halves: Vec<u8> = to_f32(tensor).iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
            *tensor = Tensor::in_memory(DType::F16, tensor.shape.clone(), halves.into()).unwrap();
        }
        let parts = [Part::whole(layers(&checkpoint.config))];
        let off = difference(sessions(&checkpoint, "8t32c,1t32c", &parts, Storage::F16, &tool), &[8, 1, 1]);
        eprintln!("{name} with matrices in f16: largest difference {off:e}");
        assert!(off <= TOLERANCE, "{name}: {off}");
    }
}

/// Sixteen layers of seeded weights in five chunks: the same greedy ids from prefill on.
#[test]
fn sixteen_layers_in_five_chunks() {
    let Some(tool) = litert_tool() else { return };
    let (_folder, model, parts) = sixteen_layers();
    let (mut litert, mut host) = sessions(&model, "128t256c,1t256c", &parts, Storage::F32, &tool);
    let prompt: Vec<u32> = (0..150).map(|i| (i * 7919 + 13) % 4096).collect();
    let mut largest = 0f32;
    let greedy = |session: &mut Session| {
        session.feed(&prompt, |_| {}).unwrap();
        let step = |_| {
            let logits = session.logits().unwrap().to_vec();
            let id = best_id(&logits).unwrap();
            session.decode(id).unwrap();
            (id, logits)
        };
        (0..64).map(step).collect::<Vec<_>>()
    };
    for ((have, scores), (expected, reference)) in greedy(&mut litert).into_iter().zip(greedy(&mut host)) {
        assert_eq!(have, expected);
        largest = scores.iter().zip(&reference).map(|(a, b)| (a - b).abs()).fold(largest, f32::max);
    }
    eprintln!("sixteen layers in five chunks: 64 greedy ids are equal, largest difference {largest:e}");
    assert!(largest <= TOLERANCE, "{largest}");
}

/// The head of Llama 3.2 1B at its real size behind one layer, as it is mended for MDLA 5.3: no tensor has an extent that
/// the chip refuses, and the scores are those of the unsplit model on the host.
#[test]
fn a_head_of_128256_outputs_as_the_chip_takes_it() {
    let Some(tool) = litert_tool() else { return };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/configs/llama-3.2-1b.json");
    let config = std::fs::read_to_string(&path).unwrap();
    let config = config.replace("\"num_hidden_layers\": 16", "\"num_hidden_layers\": 1");
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    synth::write(&model, config.as_bytes(), &path, synth::Format::Bf16, 3).unwrap();
    let model = front::open(&model).unwrap();
    assert_eq!(layers(&model.config), 1);
    let chip = find("genio-720").unwrap();
    let question = Question::new(&chip, Precision::parse("FP", chip.float).unwrap(), &[]).unwrap();
    let asked = Request::new(chip, question, shapes("8t32c,1t32c"));
    let mended = mend(&model.config, Some(&model.tensors), &asked, Preference::Rewrites).unwrap();
    assert!(mended.fit.fits());
    let files = folder.path().join("files");
    let emitted = Program::through_tflite(&model, &mended.request, &mended.fit.parts, Storage::F16, &files).unwrap();
    let extents = emitted.steps.iter().flat_map(|step| &step.segments).flat_map(|segment| &segment.graph.values);
    let largest = extents.flat_map(|value| value.ty.shape.iter().copied()).max().unwrap();
    assert!(largest <= 65535, "{largest}");
    let litert = Session::on_litert(&emitted, &tool, 2, TIME_LIMIT).unwrap();
    let plan = Plan::new(host().with_protocol(CacheProtocol::Shift), &model.config, shapes("8t32c,1t32c")).unwrap();
    let host = Session::new(&Program::build(model, &plan).unwrap(), 2, &[]).unwrap();
    let off = difference((litert, host), &[11, 1, 1]);
    eprintln!("a head of 128256 outputs in parts of at most {largest}: largest difference {off:e}");
    assert!(off <= TOLERANCE, "{off}");
}

/// Thirty layers with larger activations; the bound is the one that `real_model.rs` has against f64.
#[test]
fn a_real_model() {
    let (Some(tool), Some(model)) = (litert_tool(), std::env::var_os("NPUC_REAL_MODEL")) else { return };
    let model = front::open(Path::new(&model)).unwrap();
    let parts = "10,10,10".parse::<Chunks>().unwrap().parts(layers(&model.config)).unwrap();
    let sessions = sessions(&model, "128t256c,1t256c", &parts, Storage::F32, &tool);
    let off = difference(sessions, &[128, 1, 1, 1, 1, 1, 1, 1, 1]);
    eprintln!("SmolLM2-135M in {} parts: largest difference {off:e}", parts.len());
    assert!(off <= 1e-3, "{off}");
}
