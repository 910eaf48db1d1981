//! The stored number formats and their exact sizes on disk: the one table everything else asks.

/// How the elements of a tensor are stored.
///
/// Block formats store runs of [`DType::block_len`] consecutive elements of a row in
/// [`DType::block_bytes`] bytes, laid out as in GGUF (source: the GGML block definitions) unless said
/// otherwise. Where all blocks of a row share one more scale, the row begins with it ([`DType::row_header_bytes`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// IEEE 754 binary32, little endian.
    F32,
    /// IEEE 754 binary16, little endian.
    F16,
    /// The upper half of a binary32, little endian.
    BF16,
    /// 32 elements: f16 scale, 16 bytes of nibbles; `d * (q - 8)`.
    Q4_0,
    /// 32 elements: f16 scale, f16 minimum, 16 bytes of nibbles; `d * q + m`.
    Q4_1,
    /// 32 elements: f16 scale, 32 high bits, 16 bytes of nibbles; `d * (q - 16)`.
    Q5_0,
    /// 32 elements: f16 scale, f16 minimum, 32 high bits, 16 bytes of nibbles; `d * q + m`.
    Q5_1,
    /// 32 elements: f16 scale, 32 signed bytes; `d * q`.
    Q8_0,
    /// 256 elements at 2.625 bits: 16 sub-blocks of 16 with 4-bit scales and minima.
    Q2K,
    /// 256 elements at 3.4375 bits: 16 sub-blocks of 16 with 6-bit scales.
    Q3K,
    /// 256 elements at 4.5 bits: 8 sub-blocks of 32 with 6-bit scales and minima.
    Q4K,
    /// 256 elements at 5.5 bits: 8 sub-blocks of 32 with 6-bit scales and minima.
    Q5K,
    /// 256 elements at 6.5625 bits: 16 sub-blocks of 16 with 8-bit scales.
    Q6K,
    /// A row: f32 scale, then a signed byte an element; `scale * q`.
    Int8,
    /// A row: f32 scale, then two elements a byte, the first in the low half, each -8 to 7; `scale * q`.
    Int4,
    /// A row: f32 scale, then blocks of a whole scale 1 to 16 in a byte and nibbles as in [`DType::Int4`];
    /// `scale * block scale * q`. Qualcomm's low-power block quantisation.
    Lpbq4(Group),
    /// Blocks of f16 scale, f16 offset and nibbles as in [`DType::Int4`]; `(q + offset) * scale`.
    Bw4(Group),
}

/// How many consecutive elements of a row share a block's scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Group {
    /// 16 elements.
    G16,
    /// 32 elements.
    G32,
    /// 64 elements.
    G64,
    /// 128 elements.
    G128,
    /// 256 elements.
    G256,
    /// 512 elements.
    G512,
}

impl Group {
    /// Every length, ascending.
    pub const ALL: [Group; 6] = [Group::G16, Group::G32, Group::G64, Group::G128, Group::G256, Group::G512];

    /// The number of elements.
    pub const fn elements(self) -> usize {
        16 << self as usize
    }
}

impl DType {
    /// Every format, in the order of the enum.
    pub const ALL: [DType; 27] = [
        DType::F32,
        DType::F16,
        DType::BF16,
        DType::Q4_0,
        DType::Q4_1,
        DType::Q5_0,
        DType::Q5_1,
        DType::Q8_0,
        DType::Q2K,
        DType::Q3K,
        DType::Q4K,
        DType::Q5K,
        DType::Q6K,
        DType::Int8,
        DType::Int4,
        DType::Lpbq4(Group::G16),
        DType::Lpbq4(Group::G32),
        DType::Lpbq4(Group::G64),
        DType::Lpbq4(Group::G128),
        DType::Lpbq4(Group::G256),
        DType::Lpbq4(Group::G512),
        DType::Bw4(Group::G16),
        DType::Bw4(Group::G32),
        DType::Bw4(Group::G64),
        DType::Bw4(Group::G128),
        DType::Bw4(Group::G256),
        DType::Bw4(Group::G512),
    ];

    /// The name used in IR text, manifests and messages, e.g. `q4_1`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::Q4_0 => "q4_0",
            DType::Q4_1 => "q4_1",
            DType::Q5_0 => "q5_0",
            DType::Q5_1 => "q5_1",
            DType::Q8_0 => "q8_0",
            DType::Q2K => "q2_k",
            DType::Q3K => "q3_k",
            DType::Q4K => "q4_k",
            DType::Q5K => "q5_k",
            DType::Q6K => "q6_k",
            DType::Int8 => "int8",
            DType::Int4 => "int4",
            DType::Lpbq4(Group::G16) => "lpbq4-g16",
            DType::Lpbq4(Group::G32) => "lpbq4-g32",
            DType::Lpbq4(Group::G64) => "lpbq4-g64",
            DType::Lpbq4(Group::G128) => "lpbq4-g128",
            DType::Lpbq4(Group::G256) => "lpbq4-g256",
            DType::Lpbq4(Group::G512) => "lpbq4-g512",
            DType::Bw4(Group::G16) => "bw4-g16",
            DType::Bw4(Group::G32) => "bw4-g32",
            DType::Bw4(Group::G64) => "bw4-g64",
            DType::Bw4(Group::G128) => "bw4-g128",
            DType::Bw4(Group::G256) => "bw4-g256",
            DType::Bw4(Group::G512) => "bw4-g512",
        }
    }

    /// The format of that [`DType::name`], if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Elements in one block; 1 where a row may have any length.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 | DType::Int8 => 1,
            DType::Int4 => 2,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 256,
            DType::Lpbq4(group) | DType::Bw4(group) => group.elements(),
        }
    }

    /// Bytes at the start of a row that belong to no block: the scale of the row.
    pub const fn row_header_bytes(self) -> usize {
        match self {
            DType::Int8 | DType::Int4 | DType::Lpbq4(_) => 4,
            DType::F32 | DType::F16 | DType::BF16 | DType::Bw4(_) => 0,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 0,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 0,
        }
    }

    /// Bytes of one block; of one element for plain formats.
    pub const fn block_bytes(self) -> usize {
        match self {
            DType::F32 => 4,
            DType::F16 | DType::BF16 => 2,
            DType::Q4_0 => 18,
            DType::Q4_1 => 20,
            DType::Q5_0 => 22,
            DType::Q5_1 => 24,
            DType::Q8_0 => 34,
            DType::Q2K => 84,
            DType::Q3K => 110,
            DType::Q4K => 144,
            DType::Q5K => 176,
            DType::Q6K => 210,
            DType::Int8 | DType::Int4 => 1,
            DType::Lpbq4(group) => 1 + group.elements() / 2,
            DType::Bw4(group) => 4 + group.elements() / 2,
        }
    }

    /// Bits of an element's own number, without its share of scales and offsets.
    pub const fn number_bits(self) -> usize {
        match self {
            DType::F32 => 32,
            DType::F16 | DType::BF16 => 16,
            DType::Q8_0 | DType::Int8 => 8,
            DType::Q6K => 6,
            DType::Q5_0 | DType::Q5_1 | DType::Q5K => 5,
            DType::Q4_0 | DType::Q4_1 | DType::Q4K | DType::Int4 | DType::Lpbq4(_) | DType::Bw4(_) => 4,
            DType::Q3K => 3,
            DType::Q2K => 2,
        }
    }

    /// Whether elements are whole numbers that share scales.
    pub const fn is_block(self) -> bool {
        self.block_len() > 1 || self.row_header_bytes() > 0
    }

    /// Bytes of a row of `cols` elements; `None` when blocks do not divide it or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        match (cols / self.block_len()).checked_mul(self.block_bytes()) {
            Some(bytes) => bytes.checked_add(self.row_header_bytes()),
            None => None,
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
