//! The encodings of weight rows that GGUF files hold, and their block sizes.

/// How a row of weights is encoded. A row is a whole number of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// The upper half of an IEEE single.
    Bf16,
    /// 32 values: a half scale, then 4-bit codes less 8.
    Q4_0,
    /// 32 values: a half scale, a half minimum, then 4-bit codes.
    Q4_1,
    /// 32 values: a half scale, then signed 8-bit codes.
    Q8_0,
    /// 256 values in 8 groups: half scale and half minimum, 6-bit scales and minima, 4-bit codes.
    Q4K,
    /// 256 values in 16 groups: 6-bit codes less 32, signed 8-bit scales, a half scale.
    Q6K,
}

impl WeightType {
    /// All of them.
    pub const ALL: [WeightType; 8] = [
        WeightType::F32,
        WeightType::F16,
        WeightType::Bf16,
        WeightType::Q4_0,
        WeightType::Q4_1,
        WeightType::Q8_0,
        WeightType::Q4K,
        WeightType::Q6K,
    ];

    /// Values in one block.
    pub const fn block_values(self) -> usize {
        match self {
            WeightType::F32 | WeightType::F16 | WeightType::Bf16 => 1,
            WeightType::Q4_0 | WeightType::Q4_1 | WeightType::Q8_0 => 32,
            WeightType::Q4K | WeightType::Q6K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            WeightType::F32 => 4,
            WeightType::F16 | WeightType::Bf16 => 2,
            WeightType::Q4_0 => 2 + 16,
            WeightType::Q4_1 => 2 + 2 + 16,
            WeightType::Q8_0 => 2 + 32,
            WeightType::Q4K => 2 + 2 + 12 + 128,
            WeightType::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Bytes of `values` values; `None` when they are no whole number of blocks, or on overflow.
    pub const fn bytes(self, values: usize) -> Option<usize> {
        if !values.is_multiple_of(self.block_values()) {
            return None;
        }
        (values / self.block_values()).checked_mul(self.block_bytes())
    }

    /// As GGUF tools write it.
    pub const fn name(self) -> &'static str {
        match self {
            WeightType::F32 => "F32",
            WeightType::F16 => "F16",
            WeightType::Bf16 => "BF16",
            WeightType::Q4_0 => "Q4_0",
            WeightType::Q4_1 => "Q4_1",
            WeightType::Q8_0 => "Q8_0",
            WeightType::Q4K => "Q4_K",
            WeightType::Q6K => "Q6_K",
        }
    }
}
