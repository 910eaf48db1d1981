//! Bundles: what a build leaves and a runner opens. `docs/bundle.md` describes the folder.
//!
//! Every byte is covered by a hash: the manifest hashes the files and, in its first line, itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::back::BackEnd;
use crate::diag::{Code, Diagnostic, Error, Result};
use crate::front::config::ModelConfig;
use crate::ir::{Graph, text, verify};
use crate::model::{self, CacheProtocol, Role, StepShape};
use crate::place;
use crate::quant::Encodings;
use crate::target::Mend;
use crate::tensor::{DType, Shape, SourceFile, Tensor};

pub mod staging;
mod whole;
pub mod write;

pub use whole::{SCALES, held_as};

/// The version of the manifest this program reads and writes.
pub const SCHEMA: u32 = 5;
/// The manifest's file name.
pub const MANIFEST: &str = "manifest.json";
/// The weights' file name.
pub const WEIGHTS: &str = "weights.bin";
/// The tokenizer's file name.
pub const TOKENIZER: &str = "tokenizer.json";
/// The chat template's file name.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// The name of the table that the runner embeds tokens with, where it is another than the model's weight, e.g. because
/// a tied head is stored in fewer bits.
pub const EMBEDDING_TABLE: &str = "embedding_table";

/// What a bundle holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The version of this structure, [`SCHEMA`].
    pub schema: u32,
    /// The version of npuc that built it.
    pub npuc: String,
    /// The target it was built for.
    pub target: String,
    /// What emitted it.
    pub back_end: BackEnd,
    /// The formats of weights and activations, as the command line names them.
    pub precision: String,
    /// What the weights were quantised after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<RecipeRecord>,
    /// The text that weights were rounded for or ranges were taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationRecord>,
    /// What was changed in the model's graphs so that they fit the target.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mends: Vec<Mend>,
    /// The flags that lift limits of the target, which the vendor's compiler gets.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub flags: BTreeSet<String>,
    /// The rules of placement, the target's own first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placement: Vec<place::Rule>,
    /// How caches travel between steps.
    pub protocol: CacheProtocol,
    /// What masks hold where a position is hidden.
    pub hidden_mask: i32,
    /// The model's shape.
    pub model: ModelConfig,
    /// The files it was built from.
    pub checkpoint: Vec<FileRecord>,
    /// The graphs: the shape with most tokens first, those of one shape in the order of their execution.
    pub graphs: Vec<GraphRecord>,
    /// The weights and where they lie.
    pub weights: Vec<WeightRecord>,
    /// What the runner needs to know about text.
    pub text: TextRecord,
    /// The context binaries of Qualcomm's chips, in the order of the execution.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contexts: Vec<ContextRecord>,
    /// What IREE's or Torq's compiler made of the graphs, in their order; empty if it was not called.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleRecord>,
    /// Every other file of the bundle.
    pub files: Vec<FileRecord>,
}

/// What weights were quantised after, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecipeRecord {
    /// The recipe's name.
    pub name: String,
    /// The recipe as a TOML file.
    pub toml: String,
    /// How weights were rounded: `fast`, `search` or `best`.
    pub quality: String,
    /// The seed of the rotation that was folded in, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rotated: Option<u64>,
    /// Whether inputs were scaled by their size.
    #[serde(default)]
    pub scaled: bool,
}

/// Calibration text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CalibrationRecord {
    /// The file, or that the model wrote it.
    pub source: String,
    /// Sequences.
    pub sequences: usize,
    /// Tokens of all sequences.
    pub tokens: usize,
    /// The SHA-256 of the token ids in hexadecimal.
    pub sha256: String,
}

/// A file and its hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// The path inside the bundle or checkpoint, with `/` between folders.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256 in hexadecimal.
    pub sha256: String,
}

/// A graph of the bundle: the whole step of its shape, or the part of it that one unit computes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphRecord {
    /// Its step shape.
    pub shape: StepShape,
    /// Its text as IR, which the host executes.
    pub ir: String,
    /// The same graph in the form that the target's tools read; absent where the host computes it on the target too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emitted: Option<String>,
    /// What the whole numbers of its values mean, as JSON; absent where they are real.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encodings: Option<String>,
}

/// A context binary: the graphs of all step shapes of one part of the model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextRecord {
    /// Its path inside the bundle.
    pub file: String,
    /// The names of its graphs.
    pub graphs: Vec<String>,
    /// Whether its graphs share their weights, which a device loads and the x86 emulation does not. One without is the twin
    /// of another, for the emulation.
    pub shared: bool,
    /// Its size.
    pub bytes: u64,
    /// The size that was forecast before it was made; absent for twins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast_bytes: Option<u64>,
    /// Qualcomm's number of the chip.
    pub soc_model: u32,
    /// The version of the libraries that made it, of which a device needs these or later ones.
    pub build_id: String,
    /// The version of QNN's interface.
    pub core_api: String,
    /// The version of the HTP back end.
    pub backend_api: String,
    /// What the libraries say of each graph, in the order of the names; empty where they say nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory: Vec<GraphMemory>,
}

/// The memory of a graph on the device, as the libraries say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphMemory {
    /// What does not fit the on-chip memory and goes through DRAM.
    pub spill_fill_bytes: u64,
    /// On-chip memory.
    pub vtcm_bytes: u64,
    /// Operations.
    pub op_bytes: u64,
    /// Weights that are shared with other graphs.
    pub shared_weight_bytes: u64,
    /// The graph's own constants.
    pub const_bytes: u64,
    /// Ports.
    pub io_bytes: u64,
}

/// A compiled module: one graph of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleRecord {
    /// Its path inside the bundle.
    pub file: String,
    /// The text that it was compiled from.
    pub source: String,
    /// The function that computes a step.
    pub function: String,
    /// The compiler and its version.
    pub compiler: String,
    /// The compiler's flags.
    pub flags: Vec<String>,
    /// Its size.
    pub bytes: u64,
}

/// A weight. Weights of equal content share their bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WeightRecord {
    /// The canonical name, or that of rows of one (see [`crate::tensor::rows_name`]).
    pub name: String,
    /// The format's name. With `scales` it is one of whole numbers, row after row.
    pub dtype: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The file that it lies in.
    pub file: String,
    /// Where the bytes begin; a multiple of 64 in [`WEIGHTS`].
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Where the scales of the rows begin in [`SCALES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scales: Option<u64>,
}

/// What the runner needs to know about text besides the tokenizer and template files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TextRecord {
    /// The id that begins a text, if the model has one.
    pub bos: Option<u32>,
    /// Every id that ends an answer.
    pub eos: BTreeSet<u32>,
    /// The texts of special tokens that the chat template may write, by its names for them (`bos_token`, …).
    pub special_tokens: BTreeMap<String, String>,
}

/// An opened bundle: verified, with its weights still in the mapped file.
#[derive(Debug)]
pub struct Bundle {
    /// The folder.
    pub path: PathBuf,
    /// Its manifest.
    pub manifest: Manifest,
    /// Its graphs, in the order of their records.
    pub graphs: Vec<Graph>,
    /// What the whole numbers of each graph mean, in the order of the graphs.
    pub encodings: Vec<Option<Encodings>>,
    /// Its weights by canonical name.
    pub weights: BTreeMap<String, Tensor>,
    /// The content of [`TOKENIZER`], if the model has one.
    pub tokenizer_json: Option<Vec<u8>>,
    /// The content of [`CHAT_TEMPLATE`], if the model has one.
    pub chat_template: Option<String>,
}

/// Whether the folder has a manifest that begins as those of bundles do.
pub fn is_bundle(path: &Path) -> bool {
    let mut start = Vec::new();
    let read = |file: File| file.take(DIGEST_START.len() as u64).read_to_end(&mut start);
    File::open(path.join(MANIFEST)).and_then(read).is_ok() && start == DIGEST_START
}

/// The manifest of a bundle, whose own hash is checked and no other.
///
/// Errors: a manifest that is malformed or of another schema.
pub fn manifest(path: &Path) -> Result<Manifest> {
    read_manifest(&path.join(MANIFEST))
}

impl Bundle {
    /// Opens a bundle and checks every hash.
    ///
    /// Errors: a manifest that is malformed or of another schema, a file that is absent, of another size
    /// or of another hash, a graph that does not parse, a weight that does not lie in its file.
    pub fn open(path: &Path) -> Result<Bundle> {
        let manifest = read_manifest(&path.join(MANIFEST))?;
        let in_manifest = |e: Error| e.in_file(&path.join(MANIFEST));
        manifest.model.check().map_err(in_manifest)?;
        let faults: Vec<Error> = manifest.files.par_iter().filter_map(|file| check_file(path, file).err()).collect();
        Error::check(faults.iter().flat_map(Error::diagnostics).cloned().collect())?;
        let listed = |name: &str| manifest.files.iter().any(|record| record.path == name);
        let read = |name: &str| listed(name).then(|| read_file(&path.join(name))).transpose();
        let chat_template = read(CHAT_TEMPLATE)?.map(|bytes| utf8(&path.join(CHAT_TEMPLATE), bytes)).transpose()?;
        let weights = map_weights(path, &manifest)?;
        check_weights(&manifest, &weights).map_err(in_manifest)?;
        let graphs = read_graphs(path, &manifest)?;
        Ok(Bundle {
            path: path.to_path_buf(),
            encodings: read_encodings(path, &manifest, &graphs)?,
            graphs,
            weights,
            tokenizer_json: read(TOKENIZER)?,
            chat_template,
            manifest,
        })
    }
}

const DIGEST_START: &[u8] = b"{\n  \"digest\": \"";
const DIGEST_END: &[u8] = b"\",\n";
const DIGEST_HEX: usize = 64;

#[derive(Deserialize)]
struct SchemaOnly {
    schema: u32,
}

fn read_manifest(path: &Path) -> Result<Manifest> {
    let bytes = read_file(path)?;
    let fault = |message: String| Diagnostic::error(Code::BadBundle, message).file(path);
    let head = DIGEST_START.len() + DIGEST_HEX + DIGEST_END.len();
    let digest = bytes
        .get(..head)
        .and_then(|b| b.strip_prefix(DIGEST_START)?.strip_suffix(DIGEST_END))
        .ok_or_else(|| fault("the manifest does not begin with its digest".into()))?;
    let body = &bytes[head..];
    let actual = hex(&Sha256::digest(body));
    if digest != actual.as_bytes() {
        return Err(mismatch(path, &String::from_utf8_lossy(digest), &actual).into());
    }
    let json = [b"{".as_slice(), body].concat();
    let parse_fault = |e: serde_json::Error| fault(format!("the manifest does not parse: {e}"));
    let SchemaOnly { schema } = serde_json::from_slice(&json).map_err(parse_fault)?;
    if schema != SCHEMA {
        let fault = fault("the bundle was built by another version of npuc".into());
        let fault = fault.need(format!("schema {SCHEMA}")).have(format!("schema {schema}"));
        return Err(fault.help("build the bundle again with this version").into());
    }
    Ok(serde_json::from_slice(&json).map_err(parse_fault)?)
}

fn check_file(dir: &Path, record: &FileRecord) -> Result<()> {
    let path = dir.join(&record.path);
    if !is_inside(&record.path) {
        return Err(Diagnostic::error(Code::BadBundle, "the manifest names a file outside the bundle")
            .file(path)
            .into());
    }
    let have = std::fs::metadata(&path).map_or(record.bytes, |data| data.len());
    if have != record.bytes {
        return Err(Diagnostic::error(Code::HashMismatch, "a file of the bundle has another size than was written")
            .file(path)
            .need(format!("{} bytes", record.bytes))
            .have(format!("{have} bytes"))
            .help("build the bundle again, or copy it again from where it was whole")
            .into());
    }
    let (_, actual) = digest(&path)?;
    if actual == record.sha256 { Ok(()) } else { Err(mismatch(&path, &record.sha256, &actual).into()) }
}

/// Size and SHA-256 of a file, which is read and not mapped: a file that is only hashed should not count as memory in use.
fn digest(path: &Path) -> Result<(u64, String)> {
    let unreadable =
        |e: std::io::Error| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path);
    let mut file = File::open(path).map_err(unreadable)?;
    let (mut hash, mut bytes, mut buffer) = (Sha256::new(), 0, vec![0; DIGEST_BUFFER_BYTES]);
    loop {
        match file.read(&mut buffer).map_err(unreadable)? {
            0 => return Ok((bytes, hex(&hash.finalize()))),
            count => {
                hash.update(&buffer[..count]);
                bytes += count as u64;
            }
        }
    }
}

const DIGEST_BUFFER_BYTES: usize = 1 << 20;

fn mismatch(path: &Path, need: &str, have: &str) -> Diagnostic {
    Diagnostic::error(Code::HashMismatch, "a file of the bundle is not the file that was written")
        .file(path)
        .need(format!("sha256 {need}"))
        .have(format!("sha256 {have}"))
        .help("build the bundle again, or copy it again from where it was whole")
}

fn is_inside(path: &str) -> bool {
    Path::new(path).components().all(|part| matches!(part, std::path::Component::Normal(_)))
}

/// Refuses a file that the manifest names without a hash.
fn check_listed(dir: &Path, manifest: &Manifest, name: &str) -> Result<()> {
    if manifest.files.iter().any(|file| file.path == name) {
        return Ok(());
    }
    Err(Diagnostic::error(Code::BadBundle, "the manifest has no hash of a file").file(dir.join(name)).into())
}

fn read_graphs(dir: &Path, manifest: &Manifest) -> Result<Vec<Graph>> {
    let read = |record: &GraphRecord| {
        let path = dir.join(&record.ir);
        check_listed(dir, manifest, &record.ir)?;
        record.emitted.iter().try_for_each(|name| check_listed(dir, manifest, name))?;
        let source = utf8(&path, read_file(&path)?)?;
        let graph = text::parse(&source).map_err(|e| e.in_file(&path))?;
        verify::verify(&graph).map_err(|e| e.in_file(&path))?;
        if graph.name.split('.').next() != Some(&*record.shape.to_string()) {
            let fault = Diagnostic::error(Code::BadBundle, "a graph is of another shape than its record").file(path);
            return Err(fault.need(record.shape).have(graph.name).into());
        }
        Ok(graph)
    };
    manifest.graphs.iter().map(read).collect()
}

fn read_encodings(dir: &Path, manifest: &Manifest, graphs: &[Graph]) -> Result<Vec<Option<Encodings>>> {
    let read = |(record, graph): (&GraphRecord, &Graph)| {
        let Some(name) = &record.encodings else { return Ok(None) };
        let path = dir.join(name);
        check_listed(dir, manifest, name)?;
        let encodings: Encodings = serde_json::from_slice(&read_file(&path)?)
            .map_err(|e| Diagnostic::error(Code::BadBundle, format!("the encodings do not parse: {e}")).file(&path))?;
        encodings.check(graph).map_err(|e| e.in_file(&path))?;
        Ok(Some(encodings))
    };
    manifest.graphs.iter().zip(graphs).map(read).collect()
}

fn map_weights(dir: &Path, manifest: &Manifest) -> Result<BTreeMap<String, Tensor>> {
    let scales = match manifest.weights.iter().any(|record| record.scales.is_some()) {
        true => {
            check_listed(dir, manifest, SCALES)?;
            read_file(&dir.join(SCALES))?
        }
        false => Vec::new(),
    };
    let mut files: BTreeMap<&str, Arc<SourceFile>> = BTreeMap::new();
    for record in &manifest.weights {
        if !files.contains_key(record.file.as_str()) {
            check_listed(dir, manifest, &record.file)?;
            files.insert(&record.file, SourceFile::open(&dir.join(&record.file))?);
        }
    }
    let weight = |record: &WeightRecord| {
        let file = &files[record.file.as_str()];
        let fault = |message: &str| Diagnostic::error(Code::BadBundle, message).file(&file.path).subject(&record.name);
        if record.scales.is_some() {
            let tensor = whole::read(record, file.bytes(), &scales).map_err(|e| e.in_file(&file.path))?;
            return Ok((record.name.clone(), tensor));
        }
        let dtype =
            DType::from_name(&record.dtype).ok_or_else(|| fault("unknown number format").have(&record.dtype))?;
        let range = usize::try_from(record.offset).ok().zip(usize::try_from(record.bytes).ok());
        let range = range.and_then(|(start, len)| Some(start..start.checked_add(len)?));
        let tensor =
            range.and_then(|range| Tensor::in_file(dtype, Shape(record.shape.clone()), Arc::clone(file), range));
        let tensor = tensor.ok_or_else(|| fault("the weight does not lie in its file with the size of its shape"))?;
        Ok((record.name.clone(), tensor))
    };
    manifest.weights.par_iter().map(weight).collect()
}

/// The weights that the model calls for, in the shapes it calls for: the tables of tokens and positions, and all where the host
/// computes every graph on the target too.
fn check_weights(manifest: &Manifest, weights: &BTreeMap<String, Tensor>) -> Result<()> {
    let all = manifest.graphs.iter().all(|graph| graph.emitted.is_none());
    let specs = model::weight_specs(&manifest.model).into_iter();
    let table = |spec: &model::WeightSpec| weights.get(EMBEDDING_TABLE).filter(|_| spec.role == Role::Embedding);
    let lacking = |spec: model::WeightSpec| match table(&spec).or_else(|| weights.get(&spec.name)) {
        Some(tensor) if tensor.shape == spec.shape => None,
        found => {
            let fault = Diagnostic::error(Code::BadBundle, "a weight of the model is absent or of another shape");
            let have = found.map_or("no such weight".into(), |tensor| tensor.shape.to_string());
            Some(fault.subject(spec.name).need(spec.shape).have(have))
        }
    };
    let positions = manifest.model.positions_table();
    let of_runner = |spec: &model::WeightSpec| spec.role == Role::Embedding || Some(spec.name.as_str()) == positions;
    Error::check(specs.filter(|spec| all || of_runner(spec)).filter_map(lacking).collect())
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path)
        .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path).into())
}

fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes)
        .map_err(|e| Diagnostic::error(Code::BadBundle, format!("the file is not UTF-8: {e}")).file(path).into())
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
