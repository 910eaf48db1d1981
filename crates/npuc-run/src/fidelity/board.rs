//! Golden outputs: what a board has to give for inputs that travel with a bundle, and how close what it gave comes.
//!
//! Everything is computed on the host with the numbers of the target, one token a step, and written as safetensors.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};

use npuc::tensor::SourceFile;
use npuc::{Code, Diagnostic, Result};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::Serialize;

use super::figures::{Fidelity, Sums, best_id};
use crate::program::Program;
use crate::session::{Recorded, Session, Steps};
use crate::speech::Encoder;

/// Inputs and outputs of one step with a filled cache: tensors `in.<port>` and `out.<port>`.
const STEP: &str = "golden/step.safetensors";
/// A greedy run: `input_ids` `[1, n]`, `logits` `[1, n, vocab]` after each id, and `prompt_tokens` `[1]`.
const GREEDY: &str = "golden/greedy.safetensors";

/// The ids of the prompt, and those that greedy decoding appends, at most.
const PROMPT_IDS: usize = 4;
const GREEDY_IDS: usize = 12;

/// Computes the golden outputs of a bundle that is being written into `folder`; gives the files.
///
/// Errors: a model that gives no numbers; a folder that cannot be written.
pub fn write_golden(folder: &Path, program: &Program, threads: usize) -> Result<Vec<String>> {
    let fault = |e: std::io::Error| {
        Diagnostic::error(Code::Unwritable, format!("cannot make the folder of the golden outputs: {e}"))
    };
    std::fs::create_dir_all(folder.join("golden")).map_err(|e| fault(e).file(folder))?;
    let steps = Steps::on_host(program, threads, &[])?;
    if !program.config.reads_tokens() {
        let mut encoder = Encoder::of(program, steps)?;
        let mel = spread(encoder.mel_elements());
        write_step(&folder.join(STEP), program, &encoder.recorded(&mel)?)?;
        return Ok(vec![STEP.into()]);
    }
    write_run(folder, program, Session::of(program, steps)?)
}

/// Numbers from all over -1 to 1, the same for every build.
fn spread(count: usize) -> Vec<f32> {
    (0..count).map(|place| (place * 7919 % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// The golden outputs of a model that reads tokens, which listens to [`spread`] numbers if it listens.
fn write_run(folder: &Path, program: &Program, mut session: Session) -> Result<Vec<String>> {
    let heard: Vec<Vec<f32>> = session.heard().iter().map(|port| spread(port.len())).collect();
    if !heard.is_empty() {
        session.listen(heard.iter().map(Vec::as_slice));
    }
    let capacity = session.capacity();
    let prompt_len = PROMPT_IDS.min(capacity.div_ceil(2));
    let vocab = session.vocab();
    // Ids from all over the vocabulary, the same for every build.
    let mut ids: Vec<u32> = (0..prompt_len).map(|place| ((place * 7919 + 17) % vocab) as u32).collect();
    let total = capacity.min(prompt_len + GREEDY_IDS);
    let (mut logits, mut step) = (Vec::new(), None);
    for place in 0..total {
        let id = ids[place];
        if place + 1 == prompt_len {
            step = Some(session.recorded(id)?);
        } else {
            session.decode(id)?;
        }
        let scores = session.logits().unwrap_or_default();
        logits.extend_from_slice(scores);
        if place + 1 == ids.len() && ids.len() < total {
            let best = best_id(scores).ok_or_else(|| {
                Diagnostic::error(Code::NonFiniteWeights, "the model gives scores that are not numbers")
            })?;
            ids.push(best);
        }
    }
    if let Some(step) = step {
        write_step(&folder.join(STEP), program, &step)?;
    }
    write_greedy(&folder.join(GREEDY), &ids, &logits, prompt_len)?;
    Ok(vec![STEP.into(), GREEDY.into()])
}

fn write_step(path: &Path, program: &Program, step: &Recorded) -> Result<()> {
    let shapes = port_shapes(program);
    let ports = |direction: &'static str, ports: &[(String, Vec<f32>)]| {
        let tensor = |(name, elements): &(String, Vec<f32>)| {
            let shape = shapes.get(name).cloned().unwrap_or_else(|| vec![elements.len()]);
            (format!("{direction}.{name}"), shape, bytes(elements))
        };
        ports.iter().map(tensor).collect::<Vec<_>>()
    };
    let tensors = [ports("in", &step.inputs), ports("out", &step.outputs)].concat();
    write(path, tensors.iter().map(|(name, shape, bytes)| (name.as_str(), Dtype::F32, shape.clone(), bytes.as_slice())))
}

fn write_greedy(path: &Path, ids: &[u32], logits: &[f32], prompt_len: usize) -> Result<()> {
    let id_bytes: Vec<u8> = ids.iter().flat_map(|&id| i64::from(id).to_le_bytes()).collect();
    let prompt_bytes = (prompt_len as i64).to_le_bytes();
    let logit_bytes = bytes(logits);
    let tensors = [
        ("input_ids", Dtype::I64, vec![1, ids.len()], id_bytes.as_slice()),
        ("logits", Dtype::F32, vec![1, ids.len(), logits.len() / ids.len().max(1)], logit_bytes.as_slice()),
        ("prompt_tokens", Dtype::I64, vec![1], prompt_bytes.as_slice()),
    ];
    write(path, tensors.into_iter())
}

fn bytes(elements: &[f32]) -> Vec<u8> {
    elements.iter().flat_map(|x| x.to_le_bytes()).collect()
}

type Named<'a> = (&'a str, Dtype, Vec<usize>, &'a [u8]);

fn write<'a>(path: &Path, tensors: impl Iterator<Item = Named<'a>>) -> Result<()> {
    let fault = |message: String| {
        Diagnostic::error(Code::Unwritable, format!("cannot write the golden outputs: {message}")).file(path)
    };
    let views = tensors.map(|(name, dtype, shape, bytes)| Ok((name, TensorView::new(dtype, shape, bytes)?)));
    let views = views.collect::<Result<Vec<_>, safetensors::SafeTensorError>>().map_err(|e| fault(e.to_string()))?;
    let bytes = safetensors::serialize(views, None).map_err(|e| fault(e.to_string()))?;
    Ok(std::fs::write(path, bytes).map_err(|e| fault(e.to_string()))?)
}

/// The extents of the ports of the step of one token.
fn port_shapes(program: &Program) -> BTreeMap<String, Vec<usize>> {
    let graphs = program.steps.last().into_iter().flat_map(|step| &step.segments).map(|segment| &segment.graph);
    let mut shapes = BTreeMap::new();
    for graph in graphs {
        let inputs = graph.values.iter().filter(|value| value.def == npuc::ir::Def::Input);
        shapes.extend(inputs.map(|value| (value.name.clone(), value.ty.shape.to_vec())));
        let outputs = graph.outputs.iter().map(|output| (output.name.clone(), graph.value(output.value)));
        shapes.extend(outputs.map(|(name, value)| (name, value.ty.shape.to_vec())));
    }
    shapes
}

/// How close what a board gave comes.
#[derive(Clone, Debug, Serialize)]
pub struct BoardFigures {
    /// Of the scores.
    #[serde(flatten)]
    pub fidelity: Fidelity,
    /// The cosine of every other output of the golden step that the file has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub step: Vec<(String, f64)>,
    /// Golden positions whose scores the file could have had.
    pub golden_positions: usize,
    /// Outputs of the golden step that the file lacks, where it has any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<String>,
}

impl BoardFigures {
    /// The figures that a gate judges: the least cosine is that of all scores and outputs.
    pub fn judged(&self) -> Fidelity {
        let least = self.step.iter().map(|(_, cosine)| *cosine).reduce(f64::min);
        let cosine_min = match (self.fidelity.cosine_min, least) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        Fidelity { cosine_min, ..self.fidelity.clone() }
    }
}

/// Compares the outputs of a board with the golden ones of the bundle. The file is safetensors with `logits` `[n, vocab]` or
/// `[1, n, vocab]` in f32, f16 or bf16, the scores after each of the first n golden `input_ids`, fed one by one whatever the
/// board itself would choose; or `out.<port>` of the golden step; or both.
///
/// # Errors
/// [`Code::BadReference`] for a file that is none, scores of another vocabulary or more than there are ids, ports that the step does not
/// have or of another shape, and numbers that are not finite; [`Code::BadBundle`] for a bundle that is damaged or without golden outputs.
pub fn compare_board(bundle: &Path, outputs: &Path) -> Result<BoardFigures> {
    let absent = |path: &Path| {
        Diagnostic::error(Code::BadBundle, "the bundle has no golden outputs")
            .file(path)
            .help("build it again for a target of IREE's or Torq's")
    };
    let (step_path, greedy_path) = (bundle.join(STEP), bundle.join(GREEDY));
    let reads = npuc::bundle::is_bundle(bundle) && npuc::bundle::manifest(bundle)?.model.reads_tokens();
    if !step_path.is_file() || (reads && !greedy_path.is_file()) {
        return Err(absent(&bundle.join("golden")).into());
    }
    npuc::bundle::Bundle::open(bundle)?;
    let (step_file, given_file) = (SourceFile::open(&step_path)?, SourceFile::open(outputs)?);
    let (golden, given) = (tensors(&step_file)?, tensors(&given_file)?);
    let greedy_file = reads.then(|| SourceFile::open(&greedy_path)).transpose()?;
    let greedy = greedy_file.as_ref().map(|file| tensors(file)).transpose()?;
    let fidelity = match &greedy {
        Some(greedy) => scores(&given, greedy).map_err(|e| e.in_file(outputs))?,
        // An encoder has no scores.
        None => Fidelity::default(),
    };
    let step = step_cosines(&given, &golden).map_err(|e| e.in_file(outputs))?;
    if fidelity.positions == 0 && step.is_empty() {
        let fault = Diagnostic::error(Code::BadReference, "the file has nothing to compare").file(outputs);
        let have: Vec<&str> = given.names().into_iter().collect();
        return Err(fault.need("logits [n, vocab], or out.<port> of the golden step").have(have.join(", ")).into());
    }
    let expected = golden.names().into_iter().filter(|name| name.starts_with("out."));
    let lacks = |name: &&str| !step.is_empty() && !step.iter().any(|(known, _)| known == name);
    let mut absent: Vec<String> = expected.filter(lacks).map(str::to_owned).collect();
    absent.sort_unstable();
    let ids = greedy.as_ref().and_then(|greedy| greedy.tensor("input_ids").ok());
    let golden_positions = ids.map_or(0, |ids| ids.shape().iter().product());
    Ok(BoardFigures { fidelity, step, golden_positions, absent })
}

fn tensors(file: &SourceFile) -> Result<SafeTensors<'_>> {
    let fault = |e| Diagnostic::error(Code::BadReference, format!("the file is not a safetensors file: {e}"));
    Ok(SafeTensors::deserialize(file.bytes()).map_err(|e| fault(e).file(&file.path))?)
}

/// The figures of the scores; none where the file has no scores.
fn scores(given: &SafeTensors<'_>, greedy: &SafeTensors<'_>) -> Result<Fidelity> {
    let Some(have) = floats(given, "logits")? else { return Ok(Fidelity::default()) };
    let expected = floats(greedy, "logits")?.unwrap_or_default();
    let count = greedy.tensor("input_ids").map_or(0, |ids| ids.shape().iter().product::<usize>());
    let vocab = greedy.tensor("logits").ok().and_then(|tensor| tensor.shape().last().copied()).unwrap_or(0);
    if count == 0 || vocab == 0 || expected.len() != count * vocab {
        let fault = Diagnostic::error(Code::BadBundle, "the golden outputs do not go together").file(GREEDY);
        return Err(fault.need("scores for every id").help("build the bundle again").into());
    }
    let rows = have.len() / vocab.max(1);
    let shape = given.tensor("logits").map(|tensor| tensor.shape().to_vec()).unwrap_or_default();
    if shape.last() != Some(&vocab) || rows == 0 || rows > count {
        let fault =
            Diagnostic::error(Code::BadReference, "the scores are not those of the golden ids").subject("logits");
        return Err(fault.need(format!("[n, {vocab}] with n of 1 to {count}")).have(format!("{shape:?}")).into());
    }
    let prompt = greedy.tensor("prompt_tokens").ok().and_then(|tensor| {
        usize::try_from(i64::from_le_bytes(*tensor.data().first_chunk::<8>()?))
            .ok()
            .filter(|tokens| (1..=count).contains(tokens))
    });
    let prompt = prompt.ok_or_else(|| {
        let fault = Diagnostic::error(Code::BadBundle, "the golden outputs do not say how long their prompt is");
        fault
            .file(GREEDY)
            .subject("prompt_tokens")
            .need(format!("one i64 of 1 to {count}"))
            .help("build the bundle again")
    })?;
    let mut sums = Sums::default();
    let (mut agreed, mut parted) = (0, false);
    for (place, (have, expected)) in have.chunks_exact(vocab).zip(expected.chunks_exact(vocab)).enumerate() {
        sums.add(have, expected);
        if place + 1 >= prompt {
            parted |= best_id(have) != best_id(expected);
            agreed += usize::from(!parted);
        }
    }
    let greedy_ids = (rows + 1).saturating_sub(prompt);
    Ok(Fidelity { greedy_ids, ..sums.figures() }.with_greedy(agreed, 1))
}

fn step_cosines(given: &SafeTensors<'_>, golden: &SafeTensors<'_>) -> Result<Vec<(String, f64)>> {
    let mut names: Vec<&str> = golden.names().into_iter().filter(|name| name.starts_with("out.")).collect();
    names.sort_unstable();
    if let Some(odd) = given.names().into_iter().find(|name| name.starts_with("out.") && !names.contains(name)) {
        let fault = Diagnostic::error(Code::BadReference, "the golden step has no such output").subject(odd);
        return Err(fault.need(names.join(", ")).into());
    }
    let mut cosines = Vec::new();
    for name in names {
        let (Some(have), Some(expected)) = (floats(given, name)?, floats(golden, name)?) else { continue };
        let shape = |tensors: &SafeTensors<'_>| tensors.tensor(name).map_or(Vec::new(), |t| t.shape().to_vec());
        if shape(given) != shape(golden) {
            let fault = Diagnostic::error(Code::BadReference, "an output of the step has another shape").subject(name);
            return Err(fault.need(format!("{:?}", shape(golden))).have(format!("{:?}", shape(given))).into());
        }
        cosines.push((name.to_owned(), Sums::default().add(&have, &expected)));
    }
    Ok(cosines)
}

/// The elements of a tensor of floats; `None` where there is no such tensor.
fn floats(tensors: &SafeTensors<'_>, name: &str) -> Result<Option<Vec<f32>>> {
    let Ok(tensor) = tensors.tensor(name) else { return Ok(None) };
    let (data, dtype) = (tensor.data(), tensor.dtype());
    let pairs = || data.as_chunks::<2>().0.iter().copied();
    let elements: Vec<f32> = if dtype == Dtype::F32 {
        data.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
    } else if dtype == Dtype::F16 {
        pairs().map(|b| f16::from_le_bytes(b).to_f32()).collect()
    } else if dtype == Dtype::BF16 {
        pairs().map(|b| bf16::from_le_bytes(b).to_f32()).collect()
    } else {
        let fault = Diagnostic::error(Code::BadReference, "the numbers of a tensor are no floats").subject(name);
        return Err(fault.need("f32, f16 or bf16").have(format!("{dtype:?}")).into());
    };
    let odd = elements.iter().filter(|x| !x.is_finite()).count();
    if odd > 0 {
        let fault = Diagnostic::error(Code::BadReference, "numbers of a tensor are not finite").subject(name);
        return Err(fault.have(format!("{odd} of {}", elements.len())).into());
    }
    Ok(Some(elements))
}
