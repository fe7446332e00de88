//! Mutated files: never a panic, always an error or a consistent index.

use proptest::prelude::*;

use super::testing::Writer;
use super::*;

fn sample() -> Vec<u8> {
    Writer::default()
        .text("general.architecture", "qwen3")
        .entry("general.alignment", Value::U32(32))
        .entry("a.u8", Value::U8(3))
        .entry("a.flag", Value::Bool(true))
        .entry("a.big", Value::I64(-5))
        .entry("a.bools", Value::Array(Array::Bool(vec![true, false])))
        .entry("a.heads", Value::Array(Array::U16(vec![1, 2, 3])))
        .entry("a.floats", Value::Array(Array::F64(vec![0.5; 4])))
        .texts("tokenizer.ggml.tokens", ["a", "", "Ġthe", "\u{1F600}"])
        .zeros("token_embd.weight", TensorType::Q8_0, &[64, 3])
        .zeros("blk.0.attn_norm.weight", TensorType::F32, &[5])
        .zeros("blk.0.ffn_up.weight", TensorType::Q4_K, &[256, 2, 3, 1])
        .zeros("blk.0.ffn_down.weight", TensorType::BF16, &[32, 2])
        .build()
}

/// One change to a file. Positions are taken modulo the length, so that every one hits.
#[derive(Clone, Debug)]
enum Change {
    Bit(usize, u8),
    Byte(usize, u8),
    /// Numbers that lengths, counts, dims and offsets go wrong at, in 4 or 8 bytes.
    Word(usize, u64, bool),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
}

fn change() -> impl Strategy<Value = Change> {
    let at = 0usize..2000;
    let edge = prop_oneof![
        prop::sample::select(vec![0, 1, 3, 4, 7, 8, 9, 31, 32, 33, 255, 256, 65_535, 65_536, 1 << 31, 1 << 32, 1 << 56, 1 << 63]),
        (0u64..80).prop_map(|n| u64::MAX - n),
        any::<u64>(),
        0u64..3000,
    ];
    prop_oneof![
        (at.clone(), 0u8..8).prop_map(|(at, bit)| Change::Bit(at, bit)),
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Change::Byte(at, byte)),
        (at.clone(), edge, any::<bool>()).prop_map(|(at, word, wide)| Change::Word(at, word, wide)),
        at.clone().prop_map(Change::Cut),
        (at.clone(), 1usize..40).prop_map(|(at, len)| Change::Remove(at, len)),
        (at.clone(), 1usize..100).prop_map(|(at, len)| Change::Repeat(at, len)),
        (at, prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, bytes)| Change::Insert(at, bytes)),
    ]
}

fn apply(bytes: &mut Vec<u8>, change: &Change) {
    if bytes.is_empty() {
        return;
    }
    let len = bytes.len();
    let range = |at: usize, count: usize| at % len..(at % len + count).min(len);
    match change {
        Change::Bit(at, bit) => bytes[at % len] ^= 1 << bit,
        Change::Byte(at, byte) => bytes[at % len] = *byte,
        Change::Word(at, word, wide) => {
            let range = range(*at, if *wide { 8 } else { 4 });
            let count = range.len();
            bytes[range].copy_from_slice(&word.to_le_bytes()[..count]);
        }
        Change::Cut(at) => bytes.truncate(at % len),
        Change::Remove(at, count) => drop(bytes.drain(range(*at, *count))),
        Change::Repeat(at, count) => {
            let piece = bytes[range(*at, *count)].to_vec();
            bytes.splice(at % len..at % len, piece);
        }
        Change::Insert(at, piece) => drop(bytes.splice(at % len..at % len, piece.iter().copied())),
    }
}

/// Bytes that an array holds in memory.
fn array_bytes(array: &Array) -> usize {
    match array {
        // The texts, and where each ends.
        Array::String(strings) => strings.iter().map(|text| text.len() + 4).sum(),
        other => other.len() * other.value_type().least_bytes() as usize,
    }
}

/// What every index that [`Gguf::read`] gives must fulfil.
fn check(gguf: &Gguf, file_len: usize) {
    assert!(gguf.version == 2 || gguf.version == 3);
    assert_eq!(gguf.file_len, file_len as u64);
    let mut held = 0;
    for (key, value) in gguf.metadata.iter() {
        assert_eq!(gguf.metadata.get(key).map(Value::kind), Some(value.kind()), "keys are unique and found");
        held += key.len();
        held += match value {
            Value::String(text) => text.len(),
            Value::Array(array) => array_bytes(array),
            _ => 1,
        };
    }
    assert!(held <= file_len, "{held} bytes from a file of {file_len}");
    let mut ranges = Vec::new();
    for tensor in &gguf.tensors {
        assert_eq!(gguf.tensor(&tensor.name), Some(tensor), "names are unique and found");
        assert!((1..=4).contains(&tensor.dims.len()) && tensor.cols() > 0 && tensor.rows() > 0);
        assert_eq!(tensor.ty.row_bytes(tensor.cols()).and_then(|row| row.checked_mul(tensor.rows())), Some(tensor.bytes));
        assert!(tensor.cols().checked_mul(tensor.rows()).is_some());
        assert!(tensor.offset >= gguf.data_offset && tensor.end() <= file_len as u64);
        ranges.push((tensor.offset, tensor.end()));
    }
    ranges.sort_unstable();
    assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0), "tensors overlap");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_files(changes in prop::collection::vec(change(), 1..5)) {
        let mut bytes = sample();
        for change in &changes {
            apply(&mut bytes, change);
        }
        let len = bytes.len();
        let source = MemorySource::new("fuzz", bytes);
        let outline = pollster::block_on(Outline::read(&source));
        match pollster::block_on(Gguf::read(&source)) {
            Ok(gguf) => {
                check(&gguf, len);
                prop_assert_eq!(Outline::from(&gguf).tensors, outline.expect("a sound file is listed").tensors);
            }
            Err(error) => {
                prop_assert!(!error.to_string().is_empty() && error.problem().is_some());
                // Only types that there are no kernels for are taken beyond.
                prop_assert!(error.problem().is_some_and(Problem::is_unsupported_type) || outline.is_err());
                let end = |t: &ListedTensor| t.offset.checked_add(t.bytes);
                prop_assert!(outline.is_err() || outline.is_ok_and(|o| o.tensors.iter().all(|t| end(t) <= Some(len as u64))));
            }
        }
    }

    #[test]
    fn noise_after_a_magic(version in 2u32..4, tensors in 0u64..4, keys in 0u64..4, noise in prop::collection::vec(0u8..14, 0..300)) {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(version.to_le_bytes());
        bytes.extend([tensors, keys].map(u64::to_le_bytes).concat());
        bytes.extend(noise);
        let len = bytes.len();
        if let Ok(gguf) = pollster::block_on(Gguf::read(&MemorySource::new("fuzz", bytes))) {
            check(&gguf, len);
        }
    }
}

/// Every single bit of the header, so that nothing depends on luck.
#[test]
fn every_flipped_bit() {
    let sample = sample();
    let mut accepted = 0;
    for bit in 0..sample.len() * 8 {
        let mut bytes = sample.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(gguf) = pollster::block_on(Gguf::read(&MemorySource::new("fuzz", bytes))) {
            check(&gguf, sample.len());
            accepted += 1;
        }
    }
    // Tensor data and many values may be anything; everything else is noticed.
    assert!(accepted < sample.len() * 8 && accepted > 0);
}

/// Every 32-bit and 64-bit field replaced by numbers that arithmetic overflows at.
#[test]
fn every_extreme_word() {
    let sample = sample();
    for at in 0..sample.len() {
        for word in [0, 1, u64::MAX, u64::MAX - 31, 1 << 63, (1 << 63) - 1, 1 << 32, u64::from(u32::MAX), 1 << 60, 1 << 58, 1 << 40] {
            for wide in [false, true] {
                let mut bytes = sample.clone();
                apply(&mut bytes, &Change::Word(at, word, wide));
                if let Ok(gguf) = pollster::block_on(Gguf::read(&MemorySource::new("fuzz", bytes))) {
                    check(&gguf, sample.len());
                }
            }
        }
    }
}
