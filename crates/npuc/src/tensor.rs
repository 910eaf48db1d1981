//! Stored tensors: a format, a shape and bytes that stay in the mapped file until they are read.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use npuc_kernels::DType;
use npuc_kernels::map::MappedFile;

use crate::diag::{Code, Diagnostic, Result};

/// The extents of a tensor, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct Shape(pub Vec<usize>);

impl Shape {
    /// The number of elements; `None` when it overflows.
    pub fn elements(&self) -> Option<usize> {
        self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d))
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(dims.to_vec())
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.to_vec())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dims: Vec<String> = self.0.iter().map(usize::to_string).collect();
        write!(f, "[{}]", dims.join(", "))
    }
}

/// A file mapped for reading, with its path for messages.
#[derive(Debug)]
pub struct SourceFile {
    /// Where the file is.
    pub path: PathBuf,
    map: MappedFile,
}

impl SourceFile {
    /// Maps `path` for reading.
    pub fn open(path: &Path) -> Result<Arc<SourceFile>> {
        if std::fs::metadata(path).is_ok_and(|kind| !kind.is_file()) {
            return Err(Diagnostic::error(Code::Unreadable, "the path is not a regular file").file(path).into());
        }
        let map = MappedFile::open(path)
            .map_err(|e| Diagnostic::error(Code::Unreadable, format!("cannot read the file: {e}")).file(path))?;
        Ok(Arc::new(SourceFile { path: path.to_path_buf(), map }))
    }

    /// The whole file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}

#[derive(Clone, Debug)]
enum Storage {
    File { file: Arc<SourceFile>, range: Range<usize> },
    Memory { bytes: Arc<[u8]>, range: Range<usize> },
}

/// A tensor as stored: cheap to clone, nothing is read before [`Tensor::bytes`].
#[derive(Clone, Debug)]
pub struct Tensor {
    /// How the elements are stored.
    pub dtype: DType,
    /// Extents, outermost first; the last one is contiguous and holds whole blocks.
    pub shape: Shape,
    storage: Storage,
    /// Heads whose rotary halves are stored interleaved and are put apart on reading.
    interleaved_heads: Option<usize>,
}

impl Tensor {
    /// A tensor inside a mapped file. `None` unless `range` lies in the file and has exactly the size
    /// that the format and shape need.
    pub fn in_file(dtype: DType, shape: Shape, file: Arc<SourceFile>, range: Range<usize>) -> Option<Tensor> {
        let fits = range.start <= range.end && range.end <= file.bytes().len();
        let sized = byte_len(dtype, &shape) == Some(range.len());
        (fits && sized).then_some(Tensor {
            dtype,
            shape,
            storage: Storage::File { file, range },
            interleaved_heads: None,
        })
    }

    /// A tensor in memory. `None` unless the bytes are exactly what the format and shape need.
    pub fn in_memory(dtype: DType, shape: Shape, bytes: Arc<[u8]>) -> Option<Tensor> {
        let range = 0..bytes.len();
        Tensor::in_memory_at(dtype, shape, bytes, range)
    }

    /// A tensor in a range of memory. `None` unless `range` lies there and has exactly the size that the format and
    /// shape need.
    pub fn in_memory_at(dtype: DType, shape: Shape, bytes: Arc<[u8]>, range: Range<usize>) -> Option<Tensor> {
        let fits = range.start <= range.end && range.end <= bytes.len();
        (fits && byte_len(dtype, &shape) == Some(range.len())).then_some(Tensor {
            dtype,
            shape,
            storage: Storage::Memory { bytes, range },
            interleaved_heads: None,
        })
    }

    /// The same tensor, read with each head's rows (2i, 2i+1) put back to (i, i + rows/2), the order of
    /// the rotate-half rotary embedding. GGUF stores the query and key rows of Llama interleaved.
    /// `None` unless `heads` divides the rows into even parts.
    pub fn with_interleaved_heads(mut self, heads: usize) -> Option<Tensor> {
        let rows = self.shape.first().copied().unwrap_or(0);
        if heads == 0 || rows == 0 || !rows.is_multiple_of(2 * heads) {
            return None;
        }
        self.interleaved_heads = Some(heads);
        Some(self)
    }

    /// The tensor with its rows as GGUF stores them: the same handle if they are interleaved in the file, a copy in memory
    /// otherwise. `None` unless `heads` divides the rows into even parts.
    pub fn to_interleaved_heads(&self, heads: usize) -> Option<Tensor> {
        if self.interleaved_heads == Some(heads) {
            return Some(Tensor { interleaved_heads: None, ..self.clone() });
        }
        let whole = self.materialized();
        let stored = whole.stored_bytes();
        let rows =
            self.shape.first().copied().filter(|rows| heads > 0 && *rows > 0 && rows.is_multiple_of(2 * heads))?;
        let (row_bytes, width) = (stored.len() / rows, rows / heads);
        let mut bytes = Vec::with_capacity(stored.len());
        for row in 0..rows {
            let (head, i) = (row / width, row % width);
            let from = head * width + i % 2 * (width / 2) + i / 2;
            bytes.extend_from_slice(&stored[from * row_bytes..][..row_bytes]);
        }
        Tensor::in_memory(self.dtype, self.shape.clone(), bytes.into())
    }

    /// The same elements under another shape, which has the same last extent if the format is one of blocks.
    ///
    /// # Panics
    /// If the shape has other elements.
    pub(crate) fn with_shape(mut self, shape: Shape) -> Tensor {
        assert_eq!(self.shape.elements(), shape.elements(), "elements of a tensor");
        assert!(!self.dtype.is_block() || self.shape.last() == shape.last(), "rows of blocks");
        self.shape = shape;
        self
    }

    /// Bytes of the whole tensor.
    pub fn byte_len(&self) -> usize {
        self.stored_bytes().len()
    }

    /// The file that the tensor lies in, if any.
    pub fn file(&self) -> Option<&Path> {
        match &self.storage {
            Storage::File { file, .. } => Some(&file.path),
            Storage::Memory { .. } => None,
        }
    }

    /// The elements in row-major order; borrowed from the file unless rows have to be reordered.
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        let stored = self.stored_bytes();
        let Some(heads) = self.interleaved_heads else {
            return Cow::Borrowed(stored);
        };
        let rows = self.shape[0];
        let row_bytes = stored.len() / rows;
        let half = rows / heads / 2;
        let mut bytes = Vec::with_capacity(stored.len());
        for head in 0..heads {
            for part in 0..2 {
                for i in 0..half {
                    let row = head * 2 * half + 2 * i + part;
                    bytes.extend_from_slice(&stored[row * row_bytes..][..row_bytes]);
                }
            }
        }
        Cow::Owned(bytes)
    }

    /// Rows along the first axis: a handle into the same bytes, or a copy in memory if rows after the last are meant,
    /// which are zeros in every format. `None` for no row, or none of the tensor's.
    pub fn rows(&self, rows: Range<usize>) -> Option<Tensor> {
        let whole = self.materialized();
        let (&count, row) = whole.shape.split_first()?;
        if rows.start >= rows.end || rows.start >= count {
            return None;
        }
        let row_bytes = byte_len(whole.dtype, &Shape(row.to_vec()))?;
        let shape = Shape([&[rows.len()], row].concat());
        let (start, end) = (rows.start * row_bytes, rows.end.min(count) * row_bytes);
        let within = |range: &Range<usize>| range.start + start..range.start + end;
        let storage = match &whole.storage {
            Storage::File { file, range } if rows.end <= count => {
                Storage::File { file: Arc::clone(file), range: within(range) }
            }
            Storage::Memory { bytes, range } if rows.end <= count => {
                Storage::Memory { bytes: Arc::clone(bytes), range: within(range) }
            }
            Storage::File { .. } | Storage::Memory { .. } => {
                let mut copy = whole.stored_bytes()[start..end].to_vec();
                copy.resize(byte_len(whole.dtype, &shape)?, 0);
                Storage::Memory { range: 0..copy.len(), bytes: copy.into() }
            }
        };
        Some(Tensor { dtype: whole.dtype, shape, storage, interleaved_heads: None })
    }

    /// The same tensor with its rows in reading order, so that [`Tensor::bytes`] always borrows: a copy in
    /// memory if rows have to be reordered, the same handle otherwise.
    pub fn materialized(&self) -> Tensor {
        match self.bytes() {
            Cow::Borrowed(_) => self.clone(),
            Cow::Owned(bytes) => {
                let storage = Storage::Memory { range: 0..bytes.len(), bytes: bytes.into() };
                Tensor { dtype: self.dtype, shape: self.shape.clone(), storage, interleaved_heads: None }
            }
        }
    }

    /// Gives the memory of bytes of a mapped file that were read back to the system; they are numbered within the tensor.
    /// Rows that are in memory stay there.
    pub fn release(&self, bytes: Range<usize>) {
        if let Storage::File { file, range } = &self.storage {
            // Whole pages only, so that a neighbour's are not dropped while it is read.
            const PAGE: usize = 1 << 12;
            let start = (range.start + bytes.start).next_multiple_of(PAGE);
            let end = (range.start + bytes.end).min(range.end) / PAGE * PAGE;
            file.map.release(start..end.max(start));
        }
    }

    /// The elements in the order of the file, whose rows may be interleaved; for work that no order changes.
    pub fn stored_bytes(&self) -> &[u8] {
        match &self.storage {
            Storage::File { file, range } => &file.bytes()[range.clone()],
            Storage::Memory { bytes, range } => &bytes[range.clone()],
        }
    }
}

/// The name of rows of a weight, e.g. `lm_head.weight[0..64128]`.
pub fn rows_name(name: &str, rows: &Range<usize>) -> String {
    format!("{name}[{}..{}]", rows.start, rows.end)
}

/// The weight of that name: one of `weights`, or rows of one where the name is a [`rows_name`]. Rows after its last
/// are zeros. `None` if there is no such weight or no row of it is meant.
pub fn weight(weights: &BTreeMap<String, Tensor>, name: &str) -> Option<Tensor> {
    if let Some(tensor) = weights.get(name) {
        return Some(tensor.clone());
    }
    let (base, rows) = name.strip_suffix(']')?.rsplit_once('[')?;
    let (start, end) = rows.split_once("..")?;
    weights.get(base)?.rows(start.parse().ok()?..end.parse().ok()?)
}

/// Bytes of a tensor; `None` when blocks do not divide the rows or the size overflows.
/// A tensor of rank 0 has one element.
pub fn byte_len(dtype: DType, shape: &Shape) -> Option<usize> {
    let (cols, outer) = shape.split_last().map_or((1, &[][..]), |(c, outer)| (*c, outer));
    outer.iter().try_fold(dtype.row_bytes(cols)?, |n, &d| n.checked_mul(d))
}
