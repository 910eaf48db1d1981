//! Writing a bundle: everything goes into a staging folder, which becomes the bundle at the end.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::staging::Staging;
use super::{
    CHAT_TEMPLATE, CalibrationRecord, ContextRecord, DIGEST_END, DIGEST_START, EMBEDDING_TABLE, FileRecord,
    GraphRecord, MANIFEST, Manifest, ModuleRecord, RecipeRecord, SCALES, SCHEMA, TOKENIZER, TextRecord, WEIGHTS,
    WeightRecord, digest, hex,
};
use crate::back::stablehlo::Parameters;
use crate::back::tflite::{StoredForm, TfliteFile, write_f32};
use crate::back::{BackEnd, Emitted, EmittedFile};
use crate::diag::Result;
use crate::front::{self, Checkpoint};
use crate::model::llama;
use crate::place;
use crate::quant;
use crate::target::{Mend, Target};
use crate::tensor::{DType, Tensor};

/// Weights begin at multiples of this, enough for every vector unit and for direct mapping.
const ALIGN_BYTES: u64 = 64;

/// What goes into a bundle.
pub struct Contents<'a> {
    /// The target.
    pub target: Target,
    /// What emitted the graphs.
    pub back_end: BackEnd,
    /// The formats of weights and activations, as the command line names them.
    pub precision: String,
    /// What the weights were quantised after.
    pub recipe: Option<RecipeRecord>,
    /// The text that weights were rounded for or ranges were taken from.
    pub calibration: Option<CalibrationRecord>,
    /// What was changed in the model's graphs so that they fit the target.
    pub mends: Vec<Mend>,
    /// The flags that lift limits of the target.
    pub flags: BTreeSet<String>,
    /// The rules of placement.
    pub placement: Vec<place::Rule>,
    /// What masks hold where a position is hidden.
    pub hidden_mask: i32,
    /// The graphs: the shape with most tokens first, those of one shape in the order of their execution.
    pub graphs: Vec<Emitted>,
    /// The weights of the checkpoint that go into [`WEIGHTS`].
    pub weights: Vec<(&'a str, &'a Tensor)>,
    /// Files for the target's runtime and tools.
    pub files: Vec<ExtraFile>,
    /// The tokenizer in the `tokenizer.json` form, if the model has one.
    pub tokenizer_json: Option<Vec<u8>>,
    /// The chat template, if the model has one.
    pub chat_template: Option<String>,
    /// What the runner needs to know about text.
    pub text: TextRecord,
}

impl Contents<'_> {
    fn weights_bytes(&self) -> u64 {
        self.weights.iter().map(|(_, tensor)| tensor.byte_len() as u64).sum()
    }

    fn emitted_bytes(&self) -> u64 {
        self.graphs.iter().filter_map(Emitted::tflite).map(TfliteFile::len_bytes).sum()
    }

    /// Bytes of what is neither weights nor emitted graphs; texts of graphs are not counted.
    fn other_bytes(&self) -> u64 {
        let extra = self.files.iter().map(|file| file.content.len_bytes());
        let texts = [self.tokenizer_json.as_ref().map(Vec::len), self.chat_template.as_ref().map(String::len)];
        extra.chain(texts.into_iter().flatten().map(|len| len as u64)).sum()
    }
}

/// A file for the target's runtime or tools.
#[derive(Debug)]
pub struct ExtraFile {
    /// The path inside the bundle.
    pub path: String,
    /// Its content.
    pub content: ExtraContent,
}

/// What such a file holds.
#[derive(Debug)]
pub enum ExtraContent {
    /// These bytes.
    Bytes(Vec<u8>),
    /// The embedding table of that name as f32, row-major; the runner reads it from there too.
    Table(String, Tensor),
    /// A table as int16 of that scale, row-major, for the target's runtime alone.
    Int16Table(Tensor, f32),
    /// The parameters of modules; plain ones are the weights of their names too.
    Parameters(Parameters),
}

impl ExtraContent {
    fn len_bytes(&self) -> u64 {
        match self {
            ExtraContent::Bytes(bytes) => bytes.len() as u64,
            ExtraContent::Table(_, tensor) => (tensor.shape.elements().unwrap_or(0) as u64).saturating_mul(4),
            ExtraContent::Int16Table(tensor, _) => (tensor.shape.elements().unwrap_or(0) as u64).saturating_mul(2),
            ExtraContent::Parameters(parameters) => parameters.len_bytes(),
        }
    }
}

/// What was made of a written bundle; every file lies in its folder.
#[derive(Debug, Default)]
pub struct Made {
    /// Context binaries.
    pub contexts: Vec<ContextRecord>,
    /// Compiled modules.
    pub modules: Vec<ModuleRecord>,
    /// The paths of other files inside the bundle.
    pub files: Vec<String>,
}

impl Made {
    fn is_empty(&self) -> bool {
        self.contexts.is_empty() && self.modules.is_empty() && self.files.is_empty()
    }
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// Bytes of all weights by name, before equal ones were stored once.
    pub weights_bytes: u64,
    /// Bytes of the weights' file.
    pub stored_bytes: u64,
    /// Bytes of the whole bundle.
    pub bundle_bytes: u64,
    /// Files in the bundle.
    pub files: usize,
}

/// Writes a bundle to `dir`, replacing one that is there. `progress` is told the bytes done and to do.
///
/// Errors: a `dir` that exists and is not a bundle, too little space, any failed write. Nothing is left at
/// `dir` then, nor under the temporary name, and an earlier bundle stays as it was.
pub fn write(
    dir: &Path,
    checkpoint: &Checkpoint,
    contents: Contents<'_>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Written> {
    write_prepared(dir, checkpoint, contents, progress, |_, _| Ok(Made::default()))
}

/// The same with files that `prepare` makes out of the written bundle: it is given the folder, which opens as a bundle, and its
/// manifest, writes each file into the folder and tells what it is.
///
/// Errors: as [`write()`], and those of `prepare`.
pub fn write_prepared(
    dir: &Path,
    checkpoint: &Checkpoint,
    contents: Contents<'_>,
    progress: &mut dyn FnMut(u64, u64),
    prepare: impl FnOnce(&Path, &Manifest) -> Result<Made>,
) -> Result<Written> {
    let (weights_bytes, emitted_bytes) = (contents.weights_bytes(), contents.emitted_bytes());
    let total = weights_bytes + emitted_bytes;
    let staging = Staging::create(dir, total + contents.other_bytes())?;
    let texts = [(TOKENIZER, contents.tokenizer_json), (CHAT_TEMPLATE, contents.chat_template.map(String::into_bytes))];
    let target = contents.target;

    let mut done = 0;
    let mut tell = |bytes| {
        done += bytes;
        progress(done, total);
    };
    let mut files = Vec::new();
    let mut stored: BTreeMap<String, WeightRecord> = BTreeMap::new();
    let records = write_graphs(&staging, contents.graphs, &mut files, &mut stored, &mut tell)?;
    for ExtraFile { path, content } in contents.files {
        files.push(write_extra(&staging, path, content, &mut stored, &mut tell)?);
    }
    let stored_bytes = emitted_bytes + write_stored(&staging, &contents.weights, &mut files, &mut stored, &mut tell)?;
    for (name, bytes) in texts {
        files.extend(bytes.map(|bytes| staging.write(name, &bytes)).transpose()?);
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let mut manifest = Manifest {
        schema: SCHEMA,
        npuc: env!("CARGO_PKG_VERSION").into(),
        target: target.name.clone(),
        back_end: contents.back_end,
        precision: contents.precision,
        recipe: contents.recipe,
        calibration: contents.calibration,
        mends: contents.mends,
        flags: contents.flags,
        placement: contents.placement,
        protocol: target.protocol,
        hidden_mask: contents.hidden_mask,
        model: checkpoint.config.clone(),
        checkpoint: source_records(checkpoint)?,
        graphs: records,
        weights: stored.into_values().collect(),
        text: contents.text,
        contexts: Vec::new(),
        modules: Vec::new(),
        files,
    };
    let mut manifest_file = staging.write(MANIFEST, &manifest_text(&manifest))?;
    let made = prepare(staging.path(), &manifest)?;
    if !made.is_empty() {
        let contexts = made.contexts.iter().map(|context| &context.file);
        let paths = contexts.chain(made.modules.iter().map(|module| &module.file)).chain(&made.files);
        manifest.files.extend(paths.map(|path| staging.record(path)).collect::<Result<Vec<_>>>()?);
        (manifest.contexts, manifest.modules) = (made.contexts, made.modules);
        manifest.files.sort_by(|a, b| a.path.cmp(&b.path));
        manifest_file = staging.write(MANIFEST, &manifest_text(&manifest))?;
    }
    staging.finish()?;
    let bundle_bytes = manifest.files.iter().map(|file| file.bytes).sum::<u64>() + manifest_file.bytes;
    Ok(Written { weights_bytes, stored_bytes, bundle_bytes, files: manifest.files.len() + 1 })
}

/// Writes the graphs, each as IR text and in the form of the target's tools, whose weights are then known.
fn write_graphs(
    staging: &Staging,
    graphs: Vec<Emitted>,
    files: &mut Vec<FileRecord>,
    stored: &mut BTreeMap<String, WeightRecord>,
    progress: &mut dyn FnMut(u64),
) -> Result<Vec<GraphRecord>> {
    let mut records = Vec::with_capacity(graphs.len());
    let mut scales: Vec<u8> = Vec::new();
    for Emitted { shape, graph, file, encodings } in graphs {
        let ir = format!("graphs/{}.ir", graph.name);
        files.push(staging.write(&ir, graph.to_string().as_bytes())?);
        let mut encodings_path = None;
        if let Some(encodings) = encodings {
            let path = format!("graphs/{}.encodings.json", graph.name);
            let json = serde_json::to_vec(&encodings).expect("encodings have only text keys and plain values");
            files.push(staging.write(&path, &json)?);
            encodings_path = Some(path);
        }
        let mut emitted = None;
        if let Some((path, file)) = file {
            match file {
                EmittedFile::Tflite(file) => {
                    files.push(staging.stream(&path, |out| file.write_to(out))?);
                    record_weights(&file, &path, stored, &mut scales);
                    progress(file.len_bytes());
                }
                EmittedFile::Qnn(description) => files.push(staging.write(&path, description.to_text().as_bytes())?),
                EmittedFile::Module(module) => files.push(staging.stream(&path, |out| module.write(out))?),
            }
            emitted = Some(path);
        }
        records.push(GraphRecord { shape, ir, emitted, encodings: encodings_path });
    }
    if !scales.is_empty() {
        files.push(staging.write(SCALES, &scales)?);
    }
    Ok(records)
}

/// Where the weights of a TFLite file lie, unless an earlier file has them; the scales of whole numbers go to `scales`.
fn record_weights(file: &TfliteFile, path: &str, stored: &mut BTreeMap<String, WeightRecord>, scales: &mut Vec<u8>) {
    for weight in file.weights() {
        stored.entry(weight.name.clone()).or_insert_with(|| {
            let record = weight.record(path, scales.len() as u64);
            if let StoredForm::Whole(_, of_rows) = &weight.form {
                scales.extend(of_rows.iter().flat_map(|scale| scale.to_le_bytes()));
            }
            record
        });
    }
}

/// Writes a file for the target. The embedding table is what the runner embeds with, and the weight of its name unless a
/// file of the target holds that for a tied head.
fn write_extra(
    staging: &Staging,
    path: String,
    content: ExtraContent,
    stored: &mut BTreeMap<String, WeightRecord>,
    progress: &mut dyn FnMut(u64),
) -> Result<FileRecord> {
    match content {
        ExtraContent::Bytes(bytes) => staging.write(&path, &bytes),
        ExtraContent::Int16Table(tensor, scale) => {
            staging.stream(&path, |out| quant::write_rows(&tensor, quant::WeightFormat::Int16, &[scale], out))
        }
        ExtraContent::Parameters(parameters) => {
            let file = staging.stream(&path, |out| parameters.write(out, progress))?;
            for entry in &parameters.entries {
                let constant = &entry.constant;
                let Some(tensor) = constant.weight() else { continue };
                let (dtype, shape) = (tensor.name().into(), constant.shape.clone());
                let (name, file, bytes) = (constant.name.clone(), path.clone(), constant.len_bytes());
                stored.insert(
                    name.clone(),
                    WeightRecord { name, dtype, shape, file, offset: entry.offset, bytes, scales: None },
                );
            }
            Ok(file)
        }
        ExtraContent::Table(name, tensor) => {
            let file = staging.stream(&path, |out| write_f32(&tensor, out))?;
            let (dtype, shape) = (DType::F32.name().into(), tensor.shape.to_vec());
            let record = WeightRecord { name, dtype, shape, file: path, offset: 0, bytes: file.bytes, scales: None };
            let table = WeightRecord { name: EMBEDDING_TABLE.into(), ..record.clone() };
            stored.entry(record.name.clone()).or_insert(record);
            stored.insert(table.name.clone(), table);
            Ok(file)
        }
    }
}

/// The manifest with its own digest in the first line.
fn manifest_text(manifest: &Manifest) -> Vec<u8> {
    let json = serde_json::to_vec_pretty(manifest).expect("a manifest has only text keys and plain values");
    let body = [json.strip_prefix(b"{\n").expect("pretty JSON opens its object on a line"), b"\n"].concat();
    [DIGEST_START, hex(&Sha256::digest(&body)).as_bytes(), DIGEST_END, &body].concat()
}

/// The files that hold the checkpoint's weights: those that it was opened from, also where the weights were quantised on the way or are
/// those of one of several models.
fn source_records(checkpoint: &Checkpoint) -> Result<Vec<FileRecord>> {
    let source = front::open(&checkpoint.path).ok();
    let tensors = source.as_ref().map_or(&checkpoint.tensors, |source| &source.tensors);
    let mut paths: Vec<&Path> = tensors.values().filter_map(Tensor::file).collect();
    paths.sort_unstable();
    paths.dedup();
    let record = |path: &&Path| {
        let (bytes, sha256) = digest(path)?;
        Ok(FileRecord { path: path.file_name().unwrap_or_default().to_string_lossy().into_owned(), bytes, sha256 })
    };
    paths.iter().map(record).collect()
}

/// Writes the weights that no file of the target holds, and records them; gives the bytes of their file.
fn write_stored(
    staging: &Staging,
    weights: &[(&str, &Tensor)],
    files: &mut Vec<FileRecord>,
    stored: &mut BTreeMap<String, WeightRecord>,
    progress: &mut dyn FnMut(u64),
) -> Result<u64> {
    if weights.is_empty() {
        return Ok(0);
    }
    let (records, file) = write_weights(staging, weights, progress)?;
    for mut record in records {
        // A tied head is in a file of the target in fewer bits; the table beside it is what the runner embeds with.
        if record.name == llama::EMBEDDING && stored.contains_key(&record.name) {
            record.name = EMBEDDING_TABLE.into();
        }
        stored.insert(record.name.clone(), record);
    }
    let bytes = file.bytes;
    files.push(file);
    Ok(bytes)
}

/// Writes the weights, equal ones once.
fn write_weights(
    staging: &Staging,
    tensors: &[(&str, &Tensor)],
    progress: &mut dyn FnMut(u64),
) -> Result<(Vec<WeightRecord>, FileRecord)> {
    let mut stored: HashMap<[u8; 32], u64> = HashMap::new();
    let mut records = Vec::with_capacity(tensors.len());
    let file = staging.stream(WEIGHTS, |out| {
        for (name, tensor) in tensors {
            let bytes = tensor.bytes();
            let digest = Sha256::digest(&bytes).into();
            let offset = match stored.get(&digest) {
                Some(&offset) => offset,
                None => out.put_aligned(&bytes, ALIGN_BYTES)?,
            };
            stored.insert(digest, offset);
            let (dtype, shape) = (tensor.dtype.name().into(), tensor.shape.to_vec());
            let bytes = bytes.len() as u64;
            let (name, file) = ((*name).into(), WEIGHTS.into());
            records.push(WeightRecord { name, dtype, shape, file, offset, bytes, scales: None });
            progress(bytes);
            tensor.release(0..tensor.byte_len());
        }
        Ok(())
    })?;
    Ok((records, file))
}
