//! Writing a bundle: everything goes into a staging folder, which becomes the bundle at the end.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::staging::Staging;
use super::{
    CHAT_TEMPLATE, DIGEST_END, DIGEST_START, FileRecord, GraphRecord, MANIFEST, Manifest, SCHEMA, TOKENIZER,
    TextRecord, WEIGHTS, WeightRecord, hex,
};
use crate::back::{self, Emitted};
use crate::diag::Result;
use crate::front::Checkpoint;
use crate::model::StepShape;
use crate::target::{Checked, Target};
use crate::tensor::{SourceFile, Tensor};

/// Weights begin at multiples of this, enough for every vector unit and for direct mapping.
const ALIGN_BYTES: u64 = 64;

/// What goes into a bundle besides the checkpoint's weights.
pub struct Contents<'a> {
    /// The target.
    pub target: Target,
    /// The graphs, the one with most tokens first.
    pub graphs: &'a [(StepShape, Checked)],
    /// The tokenizer in the `tokenizer.json` form, if the model has one.
    pub tokenizer_json: Option<Vec<u8>>,
    /// The chat template, if the model has one.
    pub chat_template: Option<String>,
    /// What the runner needs to know about text.
    pub text: TextRecord,
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
    let weights_bytes: u64 = checkpoint.tensors.values().map(|tensor| tensor.byte_len() as u64).sum();
    let emitted: Vec<(StepShape, Emitted)> =
        contents.graphs.iter().map(|(shape, graph)| (*shape, back::host::emit(graph))).collect();
    let template = contents.chat_template.as_ref().map(String::as_bytes);
    let texts = [(TOKENIZER, contents.tokenizer_json.as_deref()), (CHAT_TEMPLATE, template)];
    let text_bytes: usize = texts.iter().filter_map(|(_, bytes)| *bytes).map(<[u8]>::len).sum();
    let graph_bytes: usize = emitted.iter().map(|(_, file)| file.bytes.len()).sum();
    let staging = Staging::create(dir, weights_bytes + (text_bytes + graph_bytes) as u64)?;

    let mut files = Vec::new();
    let mut graphs = Vec::new();
    for (shape, Emitted { path, bytes }) in emitted {
        files.push(staging.write(&path, &bytes)?);
        graphs.push(GraphRecord { shape, file: path });
    }
    let mut done = 0;
    let mut tell = |bytes| {
        done += bytes;
        progress(done, weights_bytes);
    };
    let (weights, weights_file) = write_weights(&staging, &checkpoint.tensors, &mut tell)?;
    let stored_bytes = weights_file.bytes;
    files.push(weights_file);
    for (name, bytes) in texts {
        files.extend(bytes.map(|bytes| staging.write(name, bytes)).transpose()?);
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    let manifest = Manifest {
        schema: SCHEMA,
        npuc: env!("CARGO_PKG_VERSION").into(),
        target: contents.target.name.clone(),
        protocol: contents.target.protocol,
        model: checkpoint.config.clone(),
        checkpoint: source_records(checkpoint)?,
        graphs,
        weights,
        text: contents.text,
        files,
    };
    let manifest_file = staging.write(MANIFEST, &manifest_text(&manifest))?;
    staging.finish()?;
    let bundle_bytes = manifest.files.iter().map(|file| file.bytes).sum::<u64>() + manifest_file.bytes;
    Ok(Written { weights_bytes, stored_bytes, bundle_bytes, files: manifest.files.len() + 1 })
}

/// The manifest with its own digest in the first line.
fn manifest_text(manifest: &Manifest) -> Vec<u8> {
    let json = serde_json::to_vec_pretty(manifest).expect("a manifest has only text keys and plain values");
    let body = [json.strip_prefix(b"{\n").expect("pretty JSON opens its object on a line"), b"\n"].concat();
    [DIGEST_START, hex(&Sha256::digest(&body)).as_bytes(), DIGEST_END, &body].concat()
}

/// The files that hold the checkpoint's weights.
fn source_records(checkpoint: &Checkpoint) -> Result<Vec<FileRecord>> {
    let mut paths: Vec<&Path> = checkpoint.tensors.values().filter_map(Tensor::file).collect();
    paths.sort_unstable();
    paths.dedup();
    let record = |path: &&Path| {
        let file = SourceFile::open(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(FileRecord { path: name, bytes: file.bytes().len() as u64, sha256: hex(&Sha256::digest(file.bytes())) })
    };
    paths.iter().map(record).collect()
}

/// Writes the weights, equal ones once.
fn write_weights(
    staging: &Staging,
    tensors: &BTreeMap<String, Tensor>,
    progress: &mut dyn FnMut(u64),
) -> Result<(Vec<WeightRecord>, FileRecord)> {
    let mut stored: HashMap<String, u64> = HashMap::new();
    let mut records = Vec::with_capacity(tensors.len());
    let file = staging.stream(WEIGHTS, |out| {
        for (name, tensor) in tensors {
            let bytes = tensor.bytes();
            let sha256 = hex(&Sha256::digest(&bytes));
            let offset = match stored.get(&sha256) {
                Some(&offset) => offset,
                None => out.put_aligned(&bytes, ALIGN_BYTES)?,
            };
            stored.insert(sha256.clone(), offset);
            let (dtype, shape) = (tensor.dtype.name().into(), tensor.shape.to_vec());
            let bytes = bytes.len() as u64;
            records.push(WeightRecord { name: name.clone(), dtype, shape, offset, bytes, sha256 });
            progress(bytes);
        }
        Ok(())
    })?;
    Ok((records, file))
}
