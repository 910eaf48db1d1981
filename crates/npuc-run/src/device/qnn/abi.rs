//! The memory layout of QNN's C interface, in npuc's own names.
//!
//! Offsets and numbers are facts of the binary interface: of the core interface 2.40 and the HTP back end 5.51 (QAIRT 2.51), where
//! every one that npuc writes was tried. The assertions below hold them.

use std::ffi::{c_char, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

/// An object of the library.
pub(super) type Handle = *mut c_void;
/// A result: 0 is success, and the low 16 bits tell what went wrong.
pub(super) type Status = u64;
/// A list of pointers to configurations that a null ends.
pub(super) type Configs = *const *const Config;

/// What stands where an enumeration has no value.
pub(super) const UNDEFINED: u32 = 0x7fff_ffff;

/// A provider of an interface, up to its function table, which follows by value.
#[repr(C)]
pub(super) struct Provider {
    pub(super) id: u32,
    pub(super) name: *const c_char,
    pub(super) core: [u32; 3],
    pub(super) back_end: [u32; 3],
}

/// A provider of the interface that reads context binaries, up to its function table, which follows by value.
#[repr(C)]
pub(super) struct SystemProvider {
    pub(super) id: u32,
    pub(super) name: *const c_char,
    pub(super) version: [u32; 3],
}

/// A scale and the number that is added before.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScaleOffset {
    pub(super) scale: f32,
    pub(super) offset: i32,
}

/// What the numbers of a tensor mean.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Quantisation {
    /// 1 if they have another meaning than themselves.
    pub(super) definition: u32,
    /// Which of the meanings.
    pub(super) encoding: u32,
    pub(super) meaning: Meaning,
}

/// The meanings; [`Quantisation::encoding`] tells which one is there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Meaning {
    pub(super) scale_offset: ScaleOffset,
    pub(super) axis: AxisScaleOffset,
    pub(super) few_bits: BitsScaleOffset,
    pub(super) few_bits_axis: BitsAxis,
    pub(super) blocks: *const BlockExpansion,
    pub(super) float_blocks: FloatBlocks,
    pub(super) none: [u64; 4],
}

/// The numbers of [`Quantisation::encoding`].
pub(super) mod encoding {
    /// [`super::ScaleOffset`].
    pub(in super::super) const SCALE_OFFSET: u32 = 0;
    /// [`super::AxisScaleOffset`].
    pub(in super::super) const AXIS: u32 = 1;
    /// [`super::BitsScaleOffset`].
    pub(in super::super) const BITS: u32 = 2;
    /// [`super::BitsAxis`].
    pub(in super::super) const BITS_AXIS: u32 = 3;
    /// A pointer to [`super::BlockExpansion`].
    pub(in super::super) const BLOCK_EXPANSION: u32 = 5;
    /// [`super::FloatBlocks`].
    pub(in super::super) const BITS_FLOAT_BLOCKS: u32 = 11;
}

/// A scale and offset an entry of an axis.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct AxisScaleOffset {
    pub(super) axis: i32,
    pub(super) count: u32,
    pub(super) entries: *const ScaleOffset,
}

/// A scale and offset of numbers with fewer bits than their type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BitsScaleOffset {
    pub(super) bits: u32,
    pub(super) scale: f32,
    pub(super) offset: i32,
}

/// Scales and offsets along an axis, of numbers with fewer bits than their type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct BitsAxis {
    pub(super) bits: u32,
    pub(super) axis: i32,
    pub(super) count: u32,
    pub(super) scales: *const f32,
    pub(super) offsets: *const i32,
}

/// A real scale an entry of an axis, times a whole scale a block.
#[repr(C)]
pub(super) struct BlockExpansion {
    pub(super) axis: i32,
    pub(super) entries: *const ScaleOffset,
    pub(super) blocks_per_entry: u32,
    /// Must be 4.
    pub(super) scale_bits: u32,
    /// 0: a byte a scale.
    pub(super) scale_storage: u32,
    /// `[entry, block]`
    pub(super) block_scales: *const u8,
}

/// A real scale and offset a block, of numbers with fewer bits than their type.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct FloatBlocks {
    pub(super) bits: u32,
    /// The extents of a block, as many as the tensor has.
    pub(super) block: *const u32,
    /// Scale and offset of each.
    pub(super) blocks: *const [f32; 2],
}

/// A tensor.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Tensor {
    /// 2; [`Tensor::is_produced`] and what stands before it are absent in 1.
    pub(super) version: u32,
    pub(super) padding: u32,
    /// Filled in by the call that makes the tensor.
    pub(super) id: u32,
    pub(super) name: *const c_char,
    /// One of [`role`].
    pub(super) role: u32,
    pub(super) format: u32,
    pub(super) dtype: u32,
    pub(super) quantisation: Quantisation,
    pub(super) rank: u32,
    pub(super) shape: *const u32,
    /// 0: memory of the caller.
    pub(super) memory: u32,
    pub(super) data: Data,
    pub(super) dynamic: *const u8,
    pub(super) sparse: [u32; 3],
    pub(super) is_produced: u8,
}

/// Memory of the caller.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Data {
    pub(super) start: *mut c_void,
    pub(super) len_bytes: u32,
}

/// The numbers of [`Tensor::role`].
pub(super) mod role {
    /// The caller fills it.
    pub(in super::super) const INPUT: u32 = 0;
    /// The caller reads it.
    pub(in super::super) const OUTPUT: u32 = 1;
    /// A node makes it for others.
    pub(in super::super) const NATIVE: u32 = 3;
    /// It has data of its own.
    pub(in super::super) const STATIC: u32 = 4;
}

/// A number.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Scalar {
    pub(super) dtype: u32,
    pub(super) value: ScalarValue,
}

/// The bytes of a number; [`Scalar::dtype`] tells which one is there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ScalarValue {
    pub(super) float: f32,
    pub(super) signed: i32,
    pub(super) unsigned: u32,
    pub(super) switch: u8,
    pub(super) bits: u64,
}

/// A parameter of a node.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Param {
    /// 0: a scalar, 1: a tensor.
    pub(super) kind: u32,
    pub(super) name: *const c_char,
    pub(super) value: ParamValue,
}

/// A parameter's value; [`Param::kind`] tells which one is there.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union ParamValue {
    pub(super) scalar: Scalar,
    pub(super) tensor: Tensor,
}

/// An operation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Operation {
    /// 1.
    pub(super) version: u32,
    pub(super) name: *const c_char,
    pub(super) package: *const c_char,
    pub(super) op: *const c_char,
    pub(super) param_count: u32,
    pub(super) params: *const Param,
    pub(super) input_count: u32,
    pub(super) inputs: *const Tensor,
    pub(super) output_count: u32,
    pub(super) outputs: *const Tensor,
}

/// A configuration; every option that npuc uses is 0, the back end's own.
#[repr(C)]
pub(super) struct Config {
    pub(super) option: u32,
    pub(super) custom: *const c_void,
}

/// What an event of a profile says.
#[repr(C)]
pub(super) struct Event {
    /// What was counted.
    pub(super) kind: u32,
    pub(super) unit: u32,
    pub(super) value: u64,
    pub(super) name: *const c_char,
}

/// A configuration of a device: the number of its chip.
#[repr(C)]
pub(super) struct DeviceOption {
    /// 0: the chip.
    pub(super) option: u32,
    pub(super) padding: u32,
    pub(super) chip: u32,
    architecture: u32,
}

/// A configuration of a context.
#[repr(C)]
pub(super) struct ContextOption {
    /// 1: whether graphs share weights.
    pub(super) option: u32,
    pub(super) padding: u32,
    pub(super) on: u8,
    rest: [u64; 1],
}

/// A configuration of a graph.
#[repr(C)]
pub(super) struct GraphOption {
    /// One of [`graph_option`].
    pub(super) option: u32,
    pub(super) padding: u32,
    pub(super) number: u32,
    pub(super) level: f32,
    rest: [u64; 5],
}

/// The numbers of [`GraphOption::option`].
pub(super) mod graph_option {
    /// How much work goes into the graph: the number is 3, the level 0 to 3.
    pub(in super::super) const OPTIMISATION: u32 = 1;
    /// The number 1: floats are halves.
    pub(in super::super) const PRECISION: u32 = 2;
}

impl DeviceOption {
    /// The chip of that number.
    pub(super) const fn chip(chip: u32) -> DeviceOption {
        DeviceOption { option: 0, padding: 0, chip, architecture: 0 }
    }
}

impl ContextOption {
    /// Whether graphs of equal weights keep them once.
    pub(super) const fn share_weights(on: bool) -> ContextOption {
        ContextOption { option: 1, padding: 0, on: on as u8, rest: [0] }
    }
}

impl GraphOption {
    /// An option with a number and a level.
    pub(super) const fn new(option: u32, number: u32, level: f32) -> GraphOption {
        GraphOption { option, padding: 0, number, level, rest: [0; 5] }
    }
}

impl Config {
    /// An option that is a switch.
    pub(super) const fn switch(option: u32, on: bool) -> Config {
        Config { option, custom: ptr::without_provenance(on as usize) }
    }

    /// An option of the back end's own; what it points to must outlive the call.
    pub(super) const fn custom<T>(option: &T) -> Config {
        Config { option: 0, custom: ptr::from_ref(option).cast() }
    }
}

impl Quantisation {
    /// Numbers that mean themselves.
    pub(super) const NONE: Quantisation =
        Quantisation { definition: UNDEFINED, encoding: UNDEFINED, meaning: Meaning { none: [0; 4] } };

    /// Numbers of that meaning.
    pub(super) const fn new(encoding: u32, meaning: Meaning) -> Quantisation {
        Quantisation { definition: 1, encoding, meaning }
    }
}

impl Tensor {
    /// A tensor without name, extents and data.
    pub(super) const EMPTY: Tensor = Tensor {
        version: 2,
        padding: 0,
        id: 0,
        name: ptr::null(),
        role: role::NATIVE,
        format: 0,
        dtype: UNDEFINED,
        quantisation: Quantisation::NONE,
        rank: 0,
        shape: ptr::null(),
        memory: 0,
        data: Data { start: ptr::null_mut(), len_bytes: 0 },
        dynamic: ptr::null(),
        sparse: [UNDEFINED, 0, 0],
        is_produced: 0,
    };
}

const _: () = {
    assert!(size_of::<Provider>() == 40);
    assert!(offset_of!(Provider, core) == 16 && offset_of!(Provider, back_end) == 28);
    assert!(size_of::<SystemProvider>() == 32 && offset_of!(SystemProvider, version) == 16);
    assert!(size_of::<ScaleOffset>() == 8 && size_of::<BitsScaleOffset>() == 12);
    assert!(size_of::<AxisScaleOffset>() == 16 && offset_of!(AxisScaleOffset, entries) == 8);
    assert!(size_of::<BitsAxis>() == 32 && offset_of!(BitsAxis, scales) == 16);
    assert!(size_of::<BlockExpansion>() == 40 && offset_of!(BlockExpansion, entries) == 8);
    assert!(offset_of!(BlockExpansion, scale_storage) == 24 && offset_of!(BlockExpansion, block_scales) == 32);
    assert!(size_of::<FloatBlocks>() == 24 && offset_of!(FloatBlocks, blocks) == 16);
    assert!(size_of::<Quantisation>() == 40 && offset_of!(Quantisation, meaning) == 8);
    assert!(size_of::<Tensor>() == 144);
    // The body begins at 8.
    assert!(offset_of!(Tensor, id) == 8 && offset_of!(Tensor, name) == 16 && offset_of!(Tensor, role) == 24);
    assert!(offset_of!(Tensor, dtype) == 32 && offset_of!(Tensor, quantisation) == 40);
    assert!(offset_of!(Tensor, rank) == 80 && offset_of!(Tensor, shape) == 88 && offset_of!(Tensor, memory) == 96);
    assert!(offset_of!(Tensor, data) == 104 && offset_of!(Tensor, dynamic) == 120);
    assert!(offset_of!(Tensor, sparse) == 128 && offset_of!(Tensor, is_produced) == 140);
    assert!(size_of::<Scalar>() == 16 && size_of::<Param>() == 160 && offset_of!(Param, value) == 16);
    assert!(size_of::<Operation>() == 80 && offset_of!(Operation, param_count) == 32);
    assert!(offset_of!(Operation, inputs) == 56 && offset_of!(Operation, outputs) == 72);
    assert!(size_of::<Config>() == 16 && offset_of!(Config, custom) == 8);
    assert!(size_of::<Event>() == 24 && offset_of!(Event, value) == 8 && offset_of!(Event, name) == 16);
    assert!(size_of::<DeviceOption>() == 16 && offset_of!(DeviceOption, chip) == 8);
    assert!(size_of::<ContextOption>() == 24 && offset_of!(ContextOption, on) == 8);
    assert!(size_of::<GraphOption>() == 56 && offset_of!(GraphOption, level) == 12);
};
