//! Weights as the compilers take them: plain numbers, or signed whole numbers of blocks apart from their scales.
//!
//! A constant is written a few rows at a time from the mapped checkpoint, never held.

use std::io::{self, Write};

use half::{bf16, f16};
use npuc_kernels::dequant::dequantize_row;

use super::Element;
use crate::diag::{Code, Diagnostic, Result};
use crate::tensor::{DType, Tensor};

/// What of a weight a constant holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The numbers as they are stored, or as bf16.
    Plain,
    /// A matrix `[out, in]` as `[1, in, out]` in bf16.
    Transposed,
    /// The whole numbers of blocks, `[out, blocks, block]`.
    Quants,
    /// The scale of every block, `[out, blocks]`.
    Scales,
    /// What every block adds, `[out, blocks]`.
    Minima,
    /// The whole numbers of blocks, `[blocks, block, out]`.
    TurnedQuants,
    /// The scale of every block in bf16, `[blocks, 1, out]`.
    TurnedScales,
}

/// A weight, or a part of one, in the form that a compiler takes.
#[derive(Clone, Debug)]
pub struct Constant {
    /// The name of the parameter.
    pub name: String,
    /// The extents.
    pub shape: Vec<usize>,
    /// The elements.
    pub element: Element,
    part: Part,
    tensor: Tensor,
    /// Matrices in the same format whose rows follow, for turned blocks.
    below: Vec<Tensor>,
}

/// How blocks of a stored format are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Blocks {
    /// Elements of a block.
    pub(super) len: usize,
    /// What its whole numbers are.
    pub(super) element: Element,
    /// What its scale is.
    pub(super) scale: Element,
    /// Whether it adds something to every element.
    pub(super) minima: bool,
}

impl Blocks {
    /// The blocks of rows of `cols` elements; `None` for formats that have no form here.
    pub(super) fn of(dtype: DType, cols: usize) -> Option<Blocks> {
        let blocks = |len, element, scale, minima| Some(Blocks { len, element, scale, minima });
        match dtype {
            DType::Q8_0 => blocks(32, Element::I8, Element::F16, false),
            DType::Q4_0 => blocks(32, Element::I4, Element::F16, false),
            DType::Q4_1 => blocks(32, Element::I4, Element::F16, true),
            DType::Int8 => blocks(cols, Element::I8, Element::F32, false),
            DType::Int4 => blocks(cols, Element::I4, Element::F32, false),
            DType::F32 | DType::F16 | DType::BF16 => None,
            DType::Q5_0 | DType::Q5_1 | DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => None,
            DType::Lpbq4(_) | DType::Bw4(_) => None,
        }
    }
}

/// One block: its scale, its summand and its numbers.
struct Block {
    scale: f32,
    minimum: f32,
    quants: [i8; MOST_AT_ONCE],
    count: usize,
}

/// Elements that are read of a row at once.
const MOST_AT_ONCE: usize = 32;

impl Constant {
    /// A plain tensor as it is stored, or as bf16 where `element` is that; `None` for blocks.
    pub(super) fn plain(name: &str, tensor: &Tensor) -> Option<Constant> {
        let element = Element::of(tensor.dtype)?;
        let (shape, tensor) = (tensor.shape.to_vec(), tensor.clone());
        Some(Constant { name: name.to_owned(), shape, element, part: Part::Plain, tensor, below: Vec::new() })
    }

    /// Any tensor as bf16 numbers, `[rows, cols]`.
    pub(super) fn as_bf16(name: &str, tensor: &Tensor) -> Constant {
        let (shape, tensor) = (tensor.shape.to_vec(), tensor.clone());
        Constant { name: name.to_owned(), shape, element: Element::Bf16, part: Part::Plain, tensor, below: Vec::new() }
    }

    /// A matrix `[out, in]` as bf16 numbers `[1, in, out]`.
    pub(super) fn transposed(name: &str, tensor: &Tensor) -> Constant {
        let shape = vec![1, tensor.shape[1], tensor.shape[0]];
        let tensor = tensor.clone();
        Constant {
            name: name.to_owned(),
            shape,
            element: Element::Bf16,
            part: Part::Transposed,
            tensor,
            below: Vec::new(),
        }
    }

    /// A part of a matrix in blocks.
    pub(super) fn of_blocks(name: &str, tensor: &Tensor, blocks: Blocks, part: Part) -> Constant {
        let (out, cols) = (tensor.shape[0], tensor.shape[1]);
        let count = cols / blocks.len;
        let (ending, shape, element) = match part {
            Part::Quants => ("q", vec![out, count, blocks.len], blocks.element),
            Part::Scales => ("s", vec![out, count], blocks.scale),
            Part::Minima => ("m", vec![out, count], Element::F32),
            Part::TurnedQuants => ("q", vec![count, blocks.len, out], blocks.element),
            Part::TurnedScales => ("s", vec![count, 1, out], Element::Bf16),
            Part::Plain | Part::Transposed => unreachable!("a plain matrix has no blocks"),
        };
        let (name, tensor) = (format!("{name}.{ending}"), tensor.clone());
        Constant { name, shape, element, part, tensor, below: Vec::new() }
    }

    /// The same part of matrices in one format, joined along their rows.
    pub(super) fn of_turned_blocks(name: &str, matrices: &[Tensor], blocks: Blocks, part: Part) -> Constant {
        let mut constant = Constant::of_blocks(name, &matrices[0], blocks, part);
        constant.below = matrices[1..].to_vec();
        constant.shape[2] = matrices.iter().map(|matrix| matrix.shape[0]).sum();
        constant
    }

    /// The stored format that the constant is a whole weight in; `None` for parts and turned matrices.
    pub(crate) fn weight(&self) -> Option<DType> {
        match (self.part, self.element) {
            (Part::Plain, Element::F32) => Some(DType::F32),
            (Part::Plain, Element::F16) => Some(DType::F16),
            (Part::Plain, Element::Bf16) => Some(DType::BF16),
            (Part::Plain, Element::I8 | Element::I4) => None,
            (Part::Transposed | Part::Quants | Part::Scales | Part::Minima, _) => None,
            (Part::TurnedQuants | Part::TurnedScales, _) => None,
        }
    }

    /// Whether it holds the very numbers of the weight.
    pub(super) fn is_exact(&self) -> bool {
        self.weight() == Some(self.tensor.dtype)
    }

    /// Bytes of the constant in a file.
    pub fn len_bytes(&self) -> u64 {
        let elements: u64 = self.shape.iter().map(|&extent| extent as u64).product();
        elements * self.element.bits() as u64 / 8
    }

    /// Refuses numbers that the form cannot hold exactly.
    ///
    /// Errors: [`Code::Misfit`] for scales that are not positive bf16 numbers where the compiler takes these.
    pub(super) fn check(&self) -> Result<()> {
        if self.part != Part::TurnedScales {
            return Ok(());
        }
        let blocks = self.blocks();
        for matrix in self.matrices() {
            let bytes = matrix.bytes();
            let of_row = |row| (0..self.shape[0]).map(move |place| (row, place));
            for (row, place) in (0..matrix.shape[0]).flat_map(of_row) {
                let scale = block(matrix, &bytes, (row, place, 0), blocks).scale;
                if bf16::from_f32(scale).to_f32() != scale || scale.is_sign_negative() {
                    return Err(Diagnostic::error(Code::Misfit, "a scale of a weight is not a positive bf16 number")
                        .subject(&self.name)
                        .need("scales above 0 of 8 significant bits: with others the compiler does not fold the weights into the product")
                        .have(scale)
                        .help("build with a recipe, which rounds weights for such scales, e.g. --recipe q8_0")
                        .into());
                }
            }
        }
        Ok(())
    }

    /// The matrices that the constant is made of.
    fn matrices(&self) -> impl Iterator<Item = &Tensor> {
        [&self.tensor].into_iter().chain(&self.below)
    }

    fn blocks(&self) -> Blocks {
        Blocks::of(self.tensor.dtype, self.tensor.shape[1])
            .expect("constants of blocks are made of formats with blocks")
    }

    /// Writes the elements, little endian, two half bytes in one.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut packer = Packer { out, held: None, packs: self.element == Element::I4 };
        self.each(&mut |bytes| packer.put(bytes))
    }

    /// Writes the elements as hexadecimal digits, an element of half a byte as a whole one, as MLIR reads them.
    pub(super) fn write_hex(&self, out: &mut dyn Write) -> io::Result<()> {
        const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
        let mut text = Vec::new();
        self.each(&mut |bytes| {
            text.clear();
            for byte in bytes {
                text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
            }
            out.write_all(&text)
        })
    }

    /// Shows the elements run by run, each half byte as a signed byte.
    fn each(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self.part {
            Part::Plain => self.each_plain(put),
            Part::Transposed => self.each_transposed(put),
            Part::Quants | Part::Scales | Part::Minima => self.each_row(put),
            Part::TurnedQuants | Part::TurnedScales => self.each_turned(put),
        }
    }

    fn each_plain(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let bytes = self.tensor.bytes();
        let cols = self.tensor.shape.last().copied().unwrap_or(1);
        let row_bytes = self.tensor.dtype.row_bytes(cols).unwrap_or(bytes.len());
        let same = Element::of(self.tensor.dtype) == Some(self.element);
        let (mut row, mut halves) = (vec![0.0; cols], Vec::with_capacity(2 * cols));
        for (place, stored) in bytes.chunks_exact(row_bytes.max(1)).enumerate() {
            if same {
                put(stored)?;
            } else {
                dequantize_row(self.tensor.dtype, stored, &mut row);
                halves.clear();
                halves.extend(row.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()));
                put(&halves)?;
            }
            self.tensor.release(place * row_bytes..(place + 1) * row_bytes);
        }
        Ok(())
    }

    /// A run of columns at a time, so that a matrix is neither held in memory nor read once for each column.
    fn each_transposed(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let (rows, cols) = (self.tensor.shape[0], self.tensor.shape[1]);
        let bytes = self.tensor.bytes();
        let row_bytes = bytes.len() / rows;
        let mut row = vec![0.0f32; cols];
        for start in (0..cols).step_by(COLUMNS_AT_ONCE) {
            let count = COLUMNS_AT_ONCE.min(cols - start);
            let mut turned = vec![0u8; 2 * rows * count];
            for (place, stored) in bytes.chunks_exact(row_bytes).enumerate() {
                dequantize_row(self.tensor.dtype, stored, &mut row);
                for (column, &x) in row[start..start + count].iter().enumerate() {
                    let at = 2 * (column * rows + place);
                    turned[at..at + 2].copy_from_slice(&bf16::from_f32(x).to_le_bytes());
                }
            }
            put(&turned)?;
        }
        Ok(())
    }

    fn each_row(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let blocks = self.blocks();
        let bytes = self.tensor.bytes();
        let row_bytes = bytes.len() / self.tensor.shape[0];
        let mut run = Vec::new();
        for row in 0..self.tensor.shape[0] {
            run.clear();
            for place in 0..self.shape[1] {
                for start in (0..blocks.len).step_by(MOST_AT_ONCE) {
                    let block = block(&self.tensor, &bytes, (row, place, start), blocks);
                    match self.part {
                        Part::Quants => run.extend(block.quants[..block.count].iter().map(|&q| q as u8)),
                        Part::Scales if start == 0 => extend(&mut run, block.scale, blocks.scale),
                        Part::Minima if start == 0 => extend(&mut run, block.minimum, Element::F32),
                        Part::Scales | Part::Minima => {}
                        Part::Plain | Part::Transposed | Part::TurnedQuants | Part::TurnedScales => {}
                    }
                }
            }
            put(&run)?;
            self.tensor.release(row * row_bytes..(row + 1) * row_bytes);
        }
        Ok(())
    }

    fn each_turned(&self, put: &mut dyn FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let blocks = self.blocks();
        let matrices: Vec<_> = self.matrices().map(|matrix| (matrix, matrix.bytes())).collect();
        let rows: Vec<_> = matrices
            .iter()
            .flat_map(|(matrix, bytes)| (0..matrix.shape[0]).map(move |row| (*matrix, bytes, row)))
            .collect();
        let out = rows.len();
        let mut run = Vec::new();
        for place in 0..self.shape[0] {
            for start in (0..blocks.len).step_by(MOST_AT_ONCE) {
                let count = MOST_AT_ONCE.min(blocks.len - start);
                match self.part {
                    Part::TurnedQuants => {
                        run.resize(count * out, 0);
                        for (column, &(matrix, bytes, row)) in rows.iter().enumerate() {
                            let block = block(matrix, bytes, (row, place, start), blocks);
                            for (at, &q) in block.quants[..count].iter().enumerate() {
                                run[at * out + column] = q as u8;
                            }
                        }
                        put(&run)?;
                    }
                    Part::TurnedScales if start == 0 => {
                        run.clear();
                        for &(matrix, bytes, row) in &rows {
                            extend(&mut run, block(matrix, bytes, (row, place, 0), blocks).scale, Element::Bf16);
                        }
                        put(&run)?;
                    }
                    Part::TurnedScales => {}
                    Part::Plain | Part::Transposed | Part::Quants | Part::Scales | Part::Minima => {}
                }
            }
        }
        Ok(())
    }
}

/// Elements from `start` on of the block at a place of a row; see [`DType`] for the layouts.
fn block(matrix: &Tensor, bytes: &[u8], (row, place, start): (usize, usize, usize), blocks: Blocks) -> Block {
    let row_bytes = bytes.len() / matrix.shape[0];
    let stored = &bytes[row * row_bytes..][..row_bytes];
    let count = MOST_AT_ONCE.min(blocks.len - start);
    let mut block = Block { scale: 0.0, minimum: 0.0, quants: [0; MOST_AT_ONCE], count };
    let half = |at: usize| f16::from_le_bytes([stored[at], stored[at + 1]]).to_f32();
    let nibble = |byte: u8, element: usize| ((byte >> (4 * element) << 4) as i8) >> 4;
    let dtype = matrix.dtype;
    let at = dtype.row_header_bytes() + place * dtype.block_bytes();
    if dtype.row_header_bytes() > 0 {
        block.scale = f32::from_le_bytes([stored[0], stored[1], stored[2], stored[3]]);
        for (i, q) in block.quants[..count].iter_mut().enumerate() {
            let element = start + i;
            *q = match blocks.element {
                Element::I4 => nibble(stored[4 + element / 2], element % 2),
                Element::I8 | Element::F32 | Element::F16 | Element::Bf16 => stored[4 + element] as i8,
            };
        }
        return block;
    }
    block.scale = half(at);
    let header = if blocks.minima { 4 } else { 2 };
    for (i, q) in block.quants[..count].iter_mut().enumerate() {
        *q = match blocks.element {
            Element::I4 => (stored[at + header + i % 16] >> (4 * (i / 16)) & 15) as i8 - 8,
            Element::I8 | Element::F32 | Element::F16 | Element::Bf16 => stored[at + header + i] as i8,
        };
    }
    if blocks.minima {
        // The nibbles are taken as signed, 8 lower than they are stored.
        block.minimum = half(at + 2) + 8.0 * block.scale;
    }
    block
}

const COLUMNS_AT_ONCE: usize = 64;

/// A number in an element's bytes.
fn extend(run: &mut Vec<u8>, x: f32, element: Element) {
    match element {
        Element::F32 => run.extend(x.to_le_bytes()),
        Element::F16 => run.extend(f16::from_f32(x).to_le_bytes()),
        Element::Bf16 => run.extend(bf16::from_f32(x).to_le_bytes()),
        Element::I8 | Element::I4 => unreachable!("scales are real numbers"),
    }
}

/// Puts pairs of half bytes together.
struct Packer<'a> {
    out: &'a mut dyn Write,
    held: Option<u8>,
    packs: bool,
}

impl Packer<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.packs {
            return self.out.write_all(bytes);
        }
        let mut packed = Vec::with_capacity(bytes.len() / 2 + 1);
        for &byte in bytes {
            match self.held.take() {
                None => self.held = Some(byte & 15),
                Some(low) => packed.push(low | byte << 4),
            }
        }
        self.out.write_all(&packed)
    }
}
