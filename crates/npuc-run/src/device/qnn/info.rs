//! What a context binary holds, in terms of its own: versions, chip, graphs, ports and the sizes of their parts.

use serde::{Deserialize, Serialize};

/// What a context binary holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContextInfo {
    /// The size of the file.
    pub bytes: u64,
    /// The build of QNN that made it, e.g. `v2.51.0.260929181845`.
    pub build: String,
    /// The core interface of that build, e.g. 2.40.0.
    pub core: [u32; 3],
    /// The back end's interface of that build, e.g. 5.51.0.
    pub back_end: [u32; 3],
    /// The version of the binary's own form, e.g. 4.0.6.
    pub form: [u32; 3],
    /// The number of the chip, e.g. 57 for SM8650.
    pub soc: u32,
    /// The architecture of its DSP, e.g. 75 for v75; absent where the binary does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dsp_arch: Option<u32>,
    /// The bytes behind the metadata, as the metadata tells: graphs and weights.
    pub blob_bytes: u64,
    /// Tensors that belong to no graph.
    pub tensors: Vec<TensorInfo>,
    /// The graphs, in the order of the file.
    pub graphs: Vec<GraphInfo>,
}

/// A graph of a context binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphInfo {
    /// Its name.
    pub name: String,
    /// Its inputs, in the order of the file, which may be another than the one in which they were made.
    pub inputs: Vec<TensorInfo>,
    /// Its outputs, in the order of the file.
    pub outputs: Vec<TensorInfo>,
    /// Tensors that may be given other values without preparing the graph again.
    pub updatable: u32,
    /// What the HTP back end tells of its parts; absent where the binary does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sizes: Option<GraphSizes>,
}

/// What the HTP back end tells of a graph's parts. The fields from `io_bytes` on were named after what changed with graphs of known
/// sizes (QAIRT 2.51).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GraphSizes {
    /// Memory that values take which do not fit next to the arithmetic.
    pub spill_fill_bytes: u64,
    /// The memory next to the arithmetic that the graph was prepared for.
    pub vtcm_bytes: u32,
    /// How much work went into it, 0 to 3.
    pub optimisation: u32,
    /// All ports together.
    pub io_bytes: u64,
    /// The operations.
    pub op_bytes: u64,
    /// Constants of the graph alone.
    pub const_bytes: u64,
    /// Values in the chip's main memory.
    pub ddr_bytes: u64,
    /// Weights that graphs of the context have in common; told with each of them.
    pub shared_weight_bytes: u64,
}

/// A tensor of a context binary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// Its number, by which a caller of the library names it.
    pub id: u32,
    /// The name of its data type, e.g. `u16`; `0x…` for one that npuc has no name for.
    pub dtype: String,
    /// Its extents, outermost first.
    pub shape: Vec<u32>,
    /// What its numbers mean.
    pub encoding: EncodingInfo,
}

impl TensorInfo {
    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|&extent| u64::from(extent)).product()
    }
}

/// What the numbers of a tensor mean. Lists of scales are told by their ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum EncodingInfo {
    /// Themselves.
    None,
    /// `(q + offset) * scale`.
    ScaleOffset {
        /// The size of a step.
        scale: f32,
        /// What is added to a number.
        offset: i32,
        /// How many bits of the type are used, where it is fewer than all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bits: Option<u32>,
    },
    /// The same with a scale and an offset an entry of an axis.
    Axis {
        /// The axis.
        axis: i32,
        /// Its entries.
        count: u32,
        /// The smallest and the largest scale.
        scales: [f32; 2],
        /// The smallest and the largest offset.
        offsets: [i32; 2],
        /// How many bits of the type are used, where it is fewer than all.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bits: Option<u32>,
    },
    /// One that npuc does not read, by QNN's number; ports have none such.
    Other(u32),
}
