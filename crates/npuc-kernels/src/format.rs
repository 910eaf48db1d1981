//! The stored number formats and their exact sizes on disk: the one table everything else asks.

/// How the elements of a tensor are stored.
///
/// Block formats store runs of [`DType::block_len`] consecutive elements of a row in
/// [`DType::block_bytes`] bytes, laid out as in GGUF (source: the GGML block definitions).
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
}

impl DType {
    /// Every format, in the order of the enum.
    pub const ALL: [DType; 13] = [
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
        }
    }

    /// The format of that [`DType::name`], if there is one.
    pub fn from_name(name: &str) -> Option<DType> {
        DType::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Elements in one block; 1 for plain formats.
    pub const fn block_len(self) -> usize {
        match self {
            DType::F32 | DType::F16 | DType::BF16 => 1,
            DType::Q4_0 | DType::Q4_1 | DType::Q5_0 | DType::Q5_1 | DType::Q8_0 => 32,
            DType::Q2K | DType::Q3K | DType::Q4K | DType::Q5K | DType::Q6K => 256,
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
        }
    }

    /// Whether rows are made of blocks that share a scale.
    pub const fn is_block(self) -> bool {
        self.block_len() > 1
    }

    /// Bytes of a row of `cols` elements; `None` when blocks do not divide it or the size overflows.
    pub const fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
