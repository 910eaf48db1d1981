//! Tensors of a description in the library's own form, with the memory that they point to.

use std::ffi::{CString, c_void};

use npuc::back::qnn::description::{self, DataType, Role, ScaleOffset};
use npuc::back::qnn::weights::{self, FilterEncoding};
use npuc::tensor::weight;
use npuc::{Code, Diagnostic, Result};

use super::Weights;
use super::abi::{
    self, AxisScaleOffset, BitsAxis, BlockExpansion, FloatBlocks, Meaning, Quantisation, encoding as encodings, role,
};
use super::info::{EncodingInfo, TensorInfo};
use super::protocol::Port;

/// The axis of a filter's outputs.
const OUTPUTS: i32 = 3;

/// A tensor and what its pointers lead to. What is moved keeps its place on the heap.
pub(super) struct Built {
    pub(super) raw: abi::Tensor,
    _name: CString,
    shape: Vec<u32>,
    element_bytes: usize,
    /// What a static tensor holds, until [`Built::forget_data`].
    data: Vec<u8>,
    _scales: Scales,
}

/// The memory of a meaning.
#[derive(Default)]
struct Scales {
    entries: Vec<abi::ScaleOffset>,
    scales: Vec<f32>,
    offsets: Vec<i32>,
    block_scales: Vec<u8>,
    block: Vec<u32>,
    blocks: Vec<[f32; 2]>,
    expansion: Option<Box<BlockExpansion>>,
}

/// The library's number of a data type.
pub(super) const fn dtype(dtype: DataType) -> u32 {
    match dtype {
        DataType::S8 => 0x308,
        DataType::U8 => 0x408,
        DataType::U16 => 0x416,
        DataType::S32 => 0x332,
        DataType::F16 => 0x216,
        DataType::F32 => 0x232,
        DataType::I32 => 0x32,
        DataType::U32 => 0x132,
    }
}

impl Built {
    /// The tensor with its data. A filter is turned here, so it should be built when it is needed.
    ///
    /// Errors: a weight that is absent or has no form in QNN; a name with a zero byte.
    pub(super) fn new(tensor: &description::Tensor, stored: &Weights) -> Result<Built> {
        let name = c_text(&tensor.name)?;
        let (role, data, quantisation, scales) = match &tensor.role {
            Role::Input => (role::INPUT, Vec::new(), plain(tensor.encoding), Scales::default()),
            Role::Output => (role::OUTPUT, Vec::new(), plain(tensor.encoding), Scales::default()),
            Role::Native => (role::NATIVE, Vec::new(), plain(tensor.encoding), Scales::default()),
            Role::Numbers(numbers) => {
                let data = weights::numbers(numbers, tensor.dtype)?;
                (role::STATIC, data, plain(tensor.encoding), Scales::default())
            }
            Role::Reals(reals) => {
                let data = weights::reals(reals, tensor.dtype, tensor.encoding)?;
                (role::STATIC, data, plain(tensor.encoding), Scales::default())
            }
            Role::Weight(of) => {
                let data = weights::weight(&find(stored, of)?, tensor.dtype, tensor.encoding)?;
                (role::STATIC, data, plain(tensor.encoding), Scales::default())
            }
            Role::Filter(of) | Role::FloatFilter(of) => {
                let matrix = find(stored, of)?;
                let filter = match tensor.role == Role::FloatFilter(of.clone()) {
                    true => weights::float_filter(&matrix)?,
                    false => weights::filter(&matrix)?,
                };
                matrix.release(0..matrix.byte_len());
                let mut scales = Scales::default();
                let quantisation = scales.take(filter.encoding, matrix.shape[1] as u32);
                (role::STATIC, filter.data, quantisation, scales)
            }
        };
        let mut built = Built {
            raw: abi::Tensor { role, dtype: dtype(tensor.dtype), quantisation, ..abi::Tensor::EMPTY },
            _name: name,
            shape: tensor.shape.clone(),
            element_bytes: tensor.dtype.bytes(),
            data,
            _scales: scales,
        };
        built.raw.name = built._name.as_ptr();
        built.raw.rank = built.shape.len() as u32;
        built.raw.shape = built.shape.as_ptr();
        built.point_to_data()?;
        Ok(built)
    }

    /// The port of a graph that was loaded, under its number there.
    ///
    /// Errors: [`Code::ToolFailed`] for a port of a kind that npuc does not fill.
    pub(super) fn port(info: &TensorInfo, role: Role) -> Result<(Built, Port)> {
        let fault = |have: String| {
            let fault = Diagnostic::error(Code::ToolFailed, "a port of the graph is of a kind npuc does not fill");
            fault.subject(&info.name).have(have)
        };
        let dtype = DataType::ALL.into_iter().find(|dtype| dtype.name() == info.dtype);
        let dtype = dtype.ok_or_else(|| fault(info.dtype.clone()))?;
        let encoding = match info.encoding {
            EncodingInfo::None => None,
            EncodingInfo::ScaleOffset { scale, offset, bits: None } => Some(ScaleOffset { scale, offset }),
            EncodingInfo::ScaleOffset { .. } | EncodingInfo::Axis { .. } | EncodingInfo::Other(_) => {
                return Err(fault(format!("{:?}", info.encoding)).into());
            }
        };
        let (name, shape) = (info.name.clone(), info.shape.clone());
        let tensor = description::Tensor { name: name.clone(), role, dtype, shape: shape.clone(), encoding };
        let mut built = Built::new(&tensor, &Weights::new())?;
        built.raw.id = info.id;
        Ok((built, Port { name, dtype, shape, encoding }))
    }

    /// Points to the data, if the tensor has some.
    fn point_to_data(&mut self) -> Result<()> {
        if self.raw.role == role::STATIC {
            let len_bytes = u32::try_from(self.data.len()).map_err(|_| {
                let fault = Diagnostic::error(Code::ByteLimit, "a constant is larger than QNN takes");
                fault.need("less than 4 GiB").have(format!("{} bytes", self.data.len()))
            })?;
            self.raw.data = abi::Data { start: self.data.as_mut_ptr().cast::<c_void>(), len_bytes };
        }
        Ok(())
    }

    /// The size of a port's numbers.
    pub(super) fn len_bytes(&self) -> usize {
        self.shape.iter().map(|&extent| extent as usize).product::<usize>() * self.element_bytes
    }

    /// Frees the data of a static tensor, which the library has copied when it made the tensor.
    pub(super) fn forget_data(&mut self) {
        self.data = Vec::new();
        self.raw.data = abi::Tensor::EMPTY.data;
    }
}

/// A text for the library.
pub(super) fn c_text(text: &str) -> Result<CString> {
    let fault = |_| Diagnostic::error(Code::BadBundle, "a name of a QNN graph has a zero byte").subject(text);
    Ok(CString::new(text).map_err(fault)?)
}

fn find(stored: &Weights, name: &str) -> Result<npuc::Tensor> {
    let fault = || Diagnostic::error(Code::MissingTensor, "a QNN graph needs a weight that is not there").subject(name);
    Ok(weight(stored, name).ok_or_else(fault)?)
}

fn plain(encoding: Option<ScaleOffset>) -> Quantisation {
    encoding.map_or(Quantisation::NONE, |ScaleOffset { scale, offset }| {
        let scale_offset = abi::ScaleOffset { scale, offset };
        Quantisation::new(encodings::SCALE_OFFSET, Meaning { scale_offset })
    })
}

impl Scales {
    /// Keeps the scales of a filter with that many inputs and gives the meaning that points to them.
    fn take(&mut self, encoding: FilterEncoding, inputs: u32) -> Quantisation {
        match encoding {
            FilterEncoding::Float => Quantisation::NONE,
            FilterEncoding::Channels { bits: 8, scales } => {
                self.entries = entries(&scales);
                let (count, entries) = (self.entries.len() as u32, self.entries.as_ptr());
                Quantisation::new(encodings::AXIS, Meaning { axis: AxisScaleOffset { axis: OUTPUTS, count, entries } })
            }
            FilterEncoding::Channels { bits, scales } => {
                self.offsets = vec![0; scales.len()];
                self.scales = scales;
                let few_bits_axis = BitsAxis {
                    bits,
                    axis: OUTPUTS,
                    count: self.scales.len() as u32,
                    scales: self.scales.as_ptr(),
                    offsets: self.offsets.as_ptr(),
                };
                Quantisation::new(encodings::BITS_AXIS, Meaning { few_bits_axis })
            }
            FilterEncoding::Blocks { block, scales, block_scales } => {
                self.entries = entries(&scales);
                self.block_scales = block_scales;
                let expansion = self.expansion.insert(Box::new(BlockExpansion {
                    axis: OUTPUTS,
                    entries: self.entries.as_ptr(),
                    blocks_per_entry: inputs / block,
                    scale_bits: 4,
                    scale_storage: 0,
                    block_scales: self.block_scales.as_ptr(),
                }));
                Quantisation::new(encodings::BLOCK_EXPANSION, Meaning { blocks: &raw const **expansion })
            }
            FilterEncoding::FloatBlocks { block, blocks } => {
                self.block = vec![1, 1, block, 1];
                self.blocks = blocks;
                let float_blocks = FloatBlocks { bits: 4, block: self.block.as_ptr(), blocks: self.blocks.as_ptr() };
                Quantisation::new(encodings::BITS_FLOAT_BLOCKS, Meaning { float_blocks })
            }
        }
    }
}

fn entries(scales: &[f32]) -> Vec<abi::ScaleOffset> {
    scales.iter().map(|&scale| abi::ScaleOffset { scale, offset: 0 }).collect()
}
