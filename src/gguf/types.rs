//! Tensor types: their ids in a file, names and block sizes.

/// The type of a tensor's values, one of those this engine reads. Sizes are those of ggml's block formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types)] // the field's own names
pub enum TensorType {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4_K,
    Q5_K,
    Q6_K,
}

use TensorType::*;

/// Names of the type ids that exist in ggml, for messages about those we do not read. Ids 4, 5, 31 to 33 and 36 to 38
/// were withdrawn by ggml.
const KNOWN: [&str; 41] = [
    "F32",
    "F16",
    "Q4_0",
    "Q4_1",
    "Q4_2",
    "Q4_3",
    "Q5_0",
    "Q5_1",
    "Q8_0",
    "Q8_1",
    "Q2_K",
    "Q3_K",
    "Q4_K",
    "Q5_K",
    "Q6_K",
    "Q8_K",
    "IQ2_XXS",
    "IQ2_XS",
    "IQ3_XXS",
    "IQ1_S",
    "IQ4_NL",
    "IQ3_S",
    "IQ2_S",
    "IQ4_XS",
    "I8",
    "I16",
    "I32",
    "I64",
    "F64",
    "IQ1_M",
    "BF16",
    "Q4_0_4_4",
    "Q4_0_4_8",
    "Q4_0_8_8",
    "TQ1_0",
    "TQ2_0",
    "IQ4_NL_4_4",
    "IQ4_NL_4_8",
    "IQ4_NL_8_8",
    "MXFP4",
    "NVFP4",
];

impl TensorType {
    /// Every supported type, in the order of their names in messages.
    pub const ALL: [TensorType; 11] = [F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K];

    /// The type with this id in a GGUF file, or `None` when it is not supported (see [`TensorType::name_of_id`]).
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.id() == id)
    }

    /// The id in a GGUF file.
    pub fn id(self) -> u32 {
        match self {
            F32 => 0,
            F16 => 1,
            Q4_0 => 2,
            Q4_1 => 3,
            Q5_0 => 6,
            Q5_1 => 7,
            Q8_0 => 8,
            Q4_K => 12,
            Q5_K => 13,
            Q6_K => 14,
            BF16 => 30,
        }
    }

    /// ggml's name of any type id, supported or not; `None` for ids that ggml does not know either.
    pub fn name_of_id(id: u32) -> Option<&'static str> {
        KNOWN.get(usize::try_from(id).ok()?).copied()
    }

    /// The name as it is written everywhere, for example `Q4_K`.
    pub fn name(self) -> &'static str {
        match self {
            F32 => "F32",
            F16 => "F16",
            BF16 => "BF16",
            Q4_0 => "Q4_0",
            Q4_1 => "Q4_1",
            Q5_0 => "Q5_0",
            Q5_1 => "Q5_1",
            Q8_0 => "Q8_0",
            Q4_K => "Q4_K",
            Q5_K => "Q5_K",
            Q6_K => "Q6_K",
        }
    }

    /// Values in one block: 1, 32 or 256. A row holds whole blocks.
    pub const fn block_len(self) -> usize {
        match self {
            F32 | F16 | BF16 => 1,
            Q4_0 | Q4_1 | Q5_0 | Q5_1 | Q8_0 => 32,
            Q4_K | Q5_K | Q6_K => 256,
        }
    }

    /// Bytes of one block.
    pub const fn block_bytes(self) -> usize {
        match self {
            F32 => 4,
            F16 | BF16 => 2,
            Q4_0 => 18,
            Q4_1 => 20,
            Q5_0 => 22,
            Q5_1 => 24,
            Q8_0 => 34,
            Q4_K => 144,
            Q5_K => 176,
            Q6_K => 210,
        }
    }

    /// Bytes of a row of `cols` values; `None` when that is not a whole number of blocks, or overflows.
    pub fn row_bytes(self, cols: u64) -> Option<u64> {
        let len = self.block_len() as u64;
        if !cols.is_multiple_of(len) {
            return None;
        }
        (cols / len).checked_mul(self.block_bytes() as u64)
    }

    /// All supported names, for messages.
    pub fn supported() -> String {
        Self::ALL.map(Self::name).join(", ")
    }
}

impl std::fmt::Display for TensorType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_agree_with_the_table() {
        for ty in TensorType::ALL {
            assert_eq!(TensorType::from_id(ty.id()), Some(ty));
            assert_eq!(TensorType::name_of_id(ty.id()), Some(ty.name()));
        }
        assert_eq!(TensorType::from_id(20), None);
        assert_eq!(TensorType::name_of_id(20), Some("IQ4_NL"));
        assert_eq!(TensorType::name_of_id(39), Some("MXFP4"));
        assert_eq!(TensorType::name_of_id(u32::MAX), None);
    }

    #[test]
    fn row_sizes() {
        assert_eq!(Q8_0.row_bytes(64), Some(68));
        assert_eq!(Q6_K.row_bytes(512), Some(420));
        assert_eq!(F32.row_bytes(4), Some(16));
        assert_eq!(Q4_K.row_bytes(128), None);
        assert_eq!(F32.row_bytes(u64::MAX), None);
    }
}
