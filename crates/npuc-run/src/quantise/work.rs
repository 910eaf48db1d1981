//! The work folder of a quantisation: one file for each stage that is done, so that what was broken off goes on from there.
//!
//! A stage's file is the length of a JSON header in 8 bytes, the header, then the weights, all at multiples of 64 bytes; the
//! header counts their places from the first of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use npuc::bundle::staging::{Lock, stream_file, write_file};
use npuc::quant::stream::{self, Fault, Scales};
use npuc::tensor::{Shape, SourceFile, byte_len};
use npuc::{Code, DType, Diagnostic, Result, Tensor};
use npuc_kernels::quantize::Search;
use serde::{Deserialize, Serialize};

/// Where weights begin in a stage's file.
const ALIGNMENT: u64 = 64;
/// The file that says which work the folder holds.
const KEY: &str = "work.key";

/// A folder of finished stages.
#[derive(Debug)]
pub(super) struct Work {
    dir: PathBuf,
    /// Whether what is done goes when the work ends without an output: it is cheap to do again.
    is_transient: bool,
    /// Released last, so that no other run writes here.
    _lock: Lock,
}

/// A weight of a stage and the format that it gets there.
#[derive(Debug)]
pub(super) struct Piece {
    /// The canonical name.
    pub(super) name: String,
    /// The weight; where it has its format already, its bytes stay.
    pub(super) tensor: Tensor,
    /// The format.
    pub(super) to: DType,
}

#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    offset: u64,
    bytes: u64,
}

impl Work {
    /// Opens the folder `dir` for the work that `key` stands for; stages of other work are thrown away.
    ///
    /// Errors: [`Code::Unwritable`], also while another run works there.
    pub(super) fn open(dir: &Path, key: &str, is_transient: bool) -> Result<Work> {
        let refused = |e: std::io::Error| {
            Diagnostic::error(Code::Unwritable, format!("cannot keep what was done so far: {e}"))
                .file(dir)
                .help("name an output in a folder that can be written")
        };
        fs::create_dir_all(dir).map_err(refused)?;
        let name = dir.file_name().unwrap_or_default().to_string_lossy();
        let lock = Lock::take(dir, dir.with_file_name(format!("{name}.lock")))?;
        let work = Work { dir: dir.to_path_buf(), is_transient, _lock: lock };
        if fs::read_to_string(dir.join(KEY)).is_ok_and(|held| held == key) {
            return Ok(work);
        }
        for entry in fs::read_dir(dir).map_err(refused)? {
            fs::remove_file(entry.map_err(refused)?.path()).map_err(refused)?;
        }
        write_file(&dir.join(KEY), key.as_bytes())?;
        Ok(work)
    }

    fn path(&self, stage: usize) -> PathBuf {
        self.dir.join(format!("stage-{stage:03}.weights"))
    }

    /// The weights of a stage, if it is done.
    ///
    /// Errors: a file that is not what was written.
    pub(super) fn load(&self, stage: usize) -> Result<Option<BTreeMap<String, Tensor>>> {
        let path = self.path(stage);
        if !path.exists() {
            return Ok(None);
        }
        let file = SourceFile::open(&path)?;
        let fault = || {
            Diagnostic::error(Code::BadHeader, "a stage of the work is damaged")
                .file(&path)
                .help("remove the folder; the work then begins anew")
        };
        let length = file.bytes().first_chunk::<8>().map(|length| u64::from_le_bytes(*length));
        let end = length.and_then(|length| 8usize.checked_add(usize::try_from(length).ok()?)).ok_or_else(fault)?;
        let json = file.bytes().get(8..end).ok_or_else(fault)?;
        let records: Vec<Record> = serde_json::from_slice(json).map_err(|_| fault())?;
        let first = end.next_multiple_of(ALIGNMENT as usize);
        let weight = |record: Record| {
            let (offset, len) = (usize::try_from(record.offset).ok()?, usize::try_from(record.bytes).ok()?);
            let start = first.checked_add(offset)?;
            let range = start..start.checked_add(len)?;
            let tensor = Tensor::in_file(DType::from_name(&record.dtype)?, Shape(record.shape), file.clone(), range)?;
            Some((record.name, tensor))
        };
        let weights: Option<BTreeMap<String, Tensor>> = records.into_iter().map(weight).collect();
        Ok(Some(weights.ok_or_else(fault)?))
    }

    /// Writes a stage and opens it: the file is there when all of it is.
    ///
    /// Errors: those of [`stream::write`], a folder that cannot be written.
    pub(super) fn store(
        &self,
        stage: usize,
        pieces: &[Piece],
        search: Search,
        scales: Scales,
    ) -> Result<BTreeMap<String, Tensor>> {
        let bytes = |piece: &Piece| byte_len(piece.to, &piece.tensor.shape).unwrap_or(usize::MAX) as u64;
        let mut offset = 0;
        let record = |piece: &Piece| {
            let begin = offset;
            offset = (offset + bytes(piece)).next_multiple_of(ALIGNMENT);
            let (dtype, shape) = (piece.to.name().into(), piece.tensor.shape.to_vec());
            Record { name: piece.name.clone(), dtype, shape, offset: begin, bytes: bytes(piece) }
        };
        let records: Vec<Record> = pieces.iter().map(record).collect();
        let json = serde_json::to_vec(&records).expect("records have only text keys and plain values");
        let mut head = (json.len() as u64).to_le_bytes().to_vec();
        head.extend(json);
        head.resize(head.len().next_multiple_of(ALIGNMENT as usize), 0);
        let total_bytes = head.len() as u64 + offset;
        stream_file(&self.path(stage), total_bytes, |out| {
            out.write_all(&head).map_err(Fault::Output)?;
            for piece in pieces {
                stream::write(&piece.name, &piece.tensor, piece.to, search, scales, out)?;
                let padding = bytes(piece).next_multiple_of(ALIGNMENT) - bytes(piece);
                out.write_all(&[0; ALIGNMENT as usize][..padding as usize]).map_err(Fault::Output)?;
            }
            Ok(())
        })?;
        self.load(stage)?.ok_or_else(|| {
            Diagnostic::error(Code::Unreadable, "a stage of the work is gone").file(self.path(stage)).into()
        })
    }

    /// Removes the folder: the work is done.
    pub(super) fn finish(mut self) -> Result<()> {
        self.is_transient = false;
        fs::remove_dir_all(&self.dir).map_err(|e| {
            Diagnostic::error(Code::Unwritable, format!("cannot remove the work folder: {e}")).file(&self.dir).into()
        })
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.is_transient {
            // The error that ended the work is already on its way to the user.
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}
