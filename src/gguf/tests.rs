//! Reading good and bad files.

use super::testing::Writer;
use super::*;

fn read(bytes: Vec<u8>) -> Result<Gguf, GgufError> {
    pollster::block_on(Gguf::read(&MemorySource::new("test.gguf", bytes)))
}

#[track_caller]
fn problem(bytes: Vec<u8>) -> Problem {
    read(bytes).expect_err("must be refused").problem().expect("not a source error").clone()
}

fn sample() -> Writer {
    Writer::default()
        .text("general.architecture", "qwen3")
        .entry("qwen3.block_count", Value::U32(2))
        .entry("a.f64", Value::F64(0.25))
        .entry("a.bools", Value::Array(Array::Bool(vec![true, false, true])))
        .texts("tokenizer.ggml.tokens", ["a", "", "Ġthe", "\u{1F600}"])
        .tensor("token_embd.weight", TensorType::Q8_0, &[64, 3], (0..204).map(|i| i as u8).collect())
        .zeros("blk.0.attn_norm.weight", TensorType::F32, &[5])
        .zeros("blk.0.ffn_up.weight", TensorType::Q4_K, &[256, 2, 3])
}

#[test]
fn reads_what_was_written() {
    for version in [2, 3] {
        let writer = Writer { version, ..sample() };
        let bytes = writer.build();
        let len = bytes.len() as u64;
        let gguf = read(bytes.clone()).unwrap();
        assert_eq!((gguf.version, gguf.file_len, gguf.data_offset % 32), (version, len, 0));
        assert!(gguf.metadata.iter().eq(writer.entries.iter().map(|(key, value)| (key.as_str(), value))));
        let names: Vec<_> = gguf.tensors.iter().map(|t| t.name.as_str()).collect();
        assert_eq!(names, ["token_embd.weight", "blk.0.attn_norm.weight", "blk.0.ffn_up.weight"]);
        let embd = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!((embd.cols(), embd.rows(), embd.bytes, embd.offset), (64, 3, 204, gguf.data_offset));
        assert_eq!(bytes[embd.offset as usize..embd.end() as usize], writer.tensors[0].data);
        let up = gguf.tensor("blk.0.ffn_up.weight").unwrap();
        assert_eq!((up.cols(), up.rows(), up.bytes, up.offset), (256, 6, 864, gguf.data_offset + 224 + 32));
        assert_eq!(gguf.tensor("blk.0.attn_norm.weight").unwrap().rows(), 1);
        assert!(gguf.tensor("nothing").is_none());
    }
}

/// A file of one key with these raw bytes as its value, the type id first.
fn raw_value(bytes: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0".to_vec();
    file.extend([0u64, 1, 1].map(u64::to_le_bytes).concat());
    file.push(b'k');
    file.extend(bytes);
    file
}

#[test]
fn wrong_beginnings() {
    let magic = |found: &[u8]| Problem::Magic { found: found.into() };
    assert_eq!(problem(vec![]), magic(b""));
    assert_eq!(problem(b"GGU".to_vec()), magic(b"GGU"));
    assert_eq!(problem(b"<!DOCTYPE html>".to_vec()), magic(b"<!DO"));
    assert!(matches!(problem(b"GGUF".to_vec()), Problem::Truncated { offset: 4, needed: 4, left: 0, .. }));
    assert!(matches!(problem(b"GGUF\x03\0\0\0\0\0".to_vec()), Problem::Truncated { offset: 8, needed: 8, left: 2, .. }));
    for version in [0, 1, 4, 1000] {
        assert_eq!(problem(Writer { version, ..sample() }.build()), Problem::Version { version });
    }
    assert_eq!(problem(Writer { version: 3u32.swap_bytes(), ..sample() }.build()), Problem::BigEndian { version: 0x0300_0000 });
    let error = read(b"PK\x03\x04....".to_vec()).unwrap_err().to_string();
    assert!(error.starts_with("test.gguf: not a GGUF file: it starts with `PK\\x03\\x04`") && error.contains("zip"), "{error}");
}

#[test]
fn every_truncation_is_refused() {
    let bytes = sample().build();
    for len in 0..bytes.len() {
        let error = read(bytes[..len].to_vec()).unwrap_err();
        let shown = error.to_string();
        let said = ["truncated", "not a GGUF"].iter().any(|word| shown.contains(word));
        assert!(said, "{len}: {shown}");
    }
}

#[test]
fn absurd_counts_and_lengths() {
    for (at, what, most) in [(8, "tensors", 1 << 16), (16, "metadata keys", 1 << 14)] {
        for count in [most + 1, u64::MAX] {
            let mut bytes = sample().build();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            assert_eq!(problem(bytes), Problem::TooMany { what, count, most });
        }
        // Allowed, but not there: the reader runs into what follows, or into the end.
        let mut bytes = sample().header();
        bytes[at..at + 8].copy_from_slice(&1000u64.to_le_bytes());
        read(bytes).unwrap_err();
    }
    let long = [u64::MAX, 1 << 60, 1 << 32, 100].map(u64::to_le_bytes);
    for len in long {
        let string = [&8u32.to_le_bytes()[..], &len, b"abc"].concat();
        assert!(matches!(problem(raw_value(&string)), Problem::Truncated { left: 3, .. }));
        for element in (0..13u32).filter(|&id| id != 9) {
            let array = [&9u32.to_le_bytes()[..], &element.to_le_bytes(), &len, b"abc"].concat();
            let problem = problem(raw_value(&array));
            assert!(matches!(problem, Problem::Truncated { left: 3, .. }), "{problem}");
        }
        let strings = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes(), &1u64.to_le_bytes(), &len, b"abc"].concat();
        let problem = problem(raw_value(&strings));
        assert!(problem.to_string().starts_with("the file ends inside string 0 of 1 of metadata key \"k\""), "{problem}");
    }
}

#[test]
fn limits_of_text_and_header() {
    // A vocabulary entry of a megabyte is absurd, a string of its own (a template) may be larger.
    let long = "x".repeat((1 << 20) + 1);
    let said = problem(Writer::default().texts("k", ["a", &long]).build()).to_string();
    assert!(said.starts_with("string 1 of 2 of metadata key \"k\" at offset"), "{said}");
    read(Writer::default().texts("k", ["a", &long[1..]]).text("j", &long).build()).unwrap();

    /// Declares a string of almost its own length, without having the bytes in memory.
    struct Sparse(Vec<u8>);
    impl ByteSource for Sparse {
        fn len(&self) -> u64 {
            1 << 40
        }

        fn describe(&self) -> String {
            "sparse".into()
        }

        async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
            buf.fill(0);
            if offset == 0 {
                let len = self.0.len().min(buf.len());
                buf[..len].copy_from_slice(&self.0[..len]);
            }
            Ok(())
        }
    }
    let string = [&8u32.to_le_bytes()[..], &(1u64 << 39).to_le_bytes()].concat();
    let array = [&9u32.to_le_bytes()[..], &12u32.to_le_bytes(), &(1u64 << 36).to_le_bytes()].concat();
    let strings = [&9u32.to_le_bytes()[..], &8u32.to_le_bytes(), &(1u64 << 36).to_le_bytes()].concat();
    for value in [string, array, strings] {
        let error = pollster::block_on(Gguf::read(&Sparse(raw_value(&value)))).unwrap_err();
        assert!(matches!(error.problem(), Some(Problem::HeaderTooLarge { .. })), "{error}");
    }
}

#[test]
fn bad_metadata() {
    let nested = [&9u32.to_le_bytes()[..], &9u32.to_le_bytes(), &1u64.to_le_bytes(), &[0; 64]].concat();
    assert_eq!(problem(raw_value(&nested)), Problem::NestedArray { key: "\"k\"".into(), offset: 37 });
    assert_eq!(problem(raw_value(&13u32.to_le_bytes())), Problem::ValueType { key: "\"k\"".into(), id: 13, offset: 33 });
    assert_eq!(problem(raw_value(&[7, 0, 0, 0, 2])), Problem::Bool { key: "\"k\"".into(), value: 2, offset: 37 });
    let bools = [&9u32.to_le_bytes()[..], &7u32.to_le_bytes(), &3u64.to_le_bytes(), &[1, 0, 255]].concat();
    assert_eq!(problem(raw_value(&bools)), Problem::Bool { key: "\"k\"".into(), value: 255, offset: 51 });
    let text = [&8u32.to_le_bytes()[..], &2u64.to_le_bytes(), b"a\xff"].concat();
    let said = problem(raw_value(&text)).to_string();
    assert_eq!(said, "the value of metadata key \"k\" at offset 45 is not valid UTF-8");
    let said = problem(sample().text("a.f64", "again").build()).to_string();
    assert_eq!(said, "metadata: metadata key \"a.f64\" is there twice");
    assert!(matches!(problem(Writer::default().text("", "x").build()), Problem::NameLength { len: 0, offset: 24, .. }));
    assert!(matches!(problem(Writer::default().text(&"x".repeat(65_536), "x").build()), Problem::NameLength { len: 65_536, .. }));
    read(Writer::default().text(&"x".repeat(65_535), "x").build()).unwrap();
}

#[test]
fn alignment_is_honoured() {
    for alignment in [8, 64, 4096] {
        let writer = Writer { alignment, ..sample() }.entry("general.alignment", Value::U32(alignment as u32));
        let gguf = read(writer.build()).unwrap();
        assert!(gguf.tensors.iter().all(|tensor| tensor.offset % alignment == 0));
    }
    for value in
        [Value::U32(0), Value::U32(4), Value::U32(24), Value::I32(-32), Value::U64(1 << 40), Value::U64(u64::MAX), Value::F32(32.0)]
    {
        let problem = problem(sample().entry("general.alignment", value).build());
        assert!(matches!(problem, Problem::Alignment { .. }), "{problem}");
    }
    // Written with the usual alignment, declared with another.
    let said = problem(sample().entry("general.alignment", Value::U32(128)).build()).to_string();
    assert!(said.contains("is not a multiple of the alignment 128"), "{said}");
}

#[test]
fn bad_tensors() {
    let one = |change: &dyn Fn(&mut testing::Tensor)| {
        let mut writer = sample();
        change(&mut writer.tensors[1]);
        problem(writer.build())
    };
    let tensor = || "\"blk.0.attn_norm.weight\"".to_string();
    assert_eq!(one(&|t| t.dims = vec![]), Problem::Dimensions { tensor: tensor(), count: 0 });
    assert_eq!(one(&|t| t.dims = vec![1; 5]), Problem::Dimensions { tensor: tensor(), count: 5 });
    assert_eq!(one(&|t| t.dims = vec![5, 0]), Problem::EmptyDimension { tensor: tensor(), dims: vec![5, 0] });
    for dims in [vec![u64::MAX], vec![1 << 32, 1 << 32], vec![1 << 62, 1], vec![1, u64::MAX, 2, 2]] {
        assert_eq!(one(&|t| t.dims = dims.clone()), Problem::Overflow { tensor: tensor(), dims: dims.clone() });
    }
    // Few bytes for a value, so that only the number of values overflows.
    let rows = Problem::Overflow { tensor: tensor(), dims: vec![256, 1 << 56] };
    assert_eq!(one(&|t| (t.type_id, t.dims) = (12, vec![256, 1 << 56])), rows);
    assert!(matches!(one(&|t| t.dims = vec![1 << 40]), Problem::TensorOutOfRange { .. }));
    for id in [4, 5, 9, 15, 20, 31, 40, 41, u32::MAX] {
        assert_eq!(one(&|t| t.type_id = id), Problem::TensorType { tensor: tensor(), id });
    }
    assert_eq!(one(&|t| t.type_id = 8), Problem::RowLength { tensor: tensor(), ty: TensorType::Q8_0, cols: 5 });
    assert_eq!(one(&|t| t.offset = Some(33)), Problem::Misaligned { tensor: tensor(), offset: 33, alignment: 32 });
    assert!(matches!(one(&|t| t.offset = Some(u64::MAX - 31)), Problem::TensorOutOfRange { end: u64::MAX, .. }));
    assert!(matches!(one(&|t| t.offset = Some(1 << 40)), Problem::TensorOutOfRange { .. }));
    let overlap = one(&|t| t.offset = Some(192));
    let said = overlap.to_string();
    assert!(said.starts_with("tensors \"token_embd.weight\" and \"blk.0.attn_norm.weight\" overlap"), "{said}");
    assert_eq!(one(&|t| t.name = "token_embd.weight".into()), Problem::DuplicateTensor { tensor: "\"token_embd.weight\"".into() });
    assert!(matches!(one(&|t| t.name = String::new()), Problem::NameLength { len: 0, .. }));
    assert!(matches!(one(&|t| t.name = "x".repeat(256)), Problem::NameLength { len: 256, .. }));
}

#[test]
fn metadata_alone_can_be_read_from_files_of_other_types() {
    let mut writer = sample();
    writer.tensors[0].type_id = 20;
    let source = MemorySource::new("m", writer.build());
    let metadata = pollster::block_on(Gguf::read_metadata(&source)).unwrap();
    assert_eq!(metadata.str_array("tokenizer.ggml.tokens").unwrap().len(), 4);
}

/// Counts reads, and refuses to go past `until`.
struct Counting {
    inner: MemorySource,
    reads: std::cell::RefCell<Vec<(u64, usize)>>,
}

impl ByteSource for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.reads.borrow_mut().push((offset, buf.len()));
        self.inner.read_at(offset, buf).await
    }
}

#[test]
fn a_large_vocabulary_takes_few_reads_and_no_tensor_data() {
    let tokens: Vec<String> = (0..250_000).map(|i| format!("token{i}")).collect();
    let long = "x".repeat(3 << 20);
    let scores: Vec<f32> = (0..250_000).map(|i| i as f32).collect();
    let writer = Writer::default()
        .texts("tokenizer.ggml.tokens", &tokens)
        .text("tokenizer.chat_template", &long)
        .entry("tokenizer.ggml.scores", Value::Array(Array::F32(scores.clone())))
        .zeros("token_embd.weight", TensorType::F32, &[4096, 2000]);
    let header = writer.header().len() as u64;
    let source = Counting { inner: MemorySource::new("m", writer.build()), reads: Default::default() };
    let gguf = pollster::block_on(Gguf::read(&source)).unwrap();
    assert!(gguf.metadata.str_array("tokenizer.ggml.tokens").unwrap().iter().eq(tokens.iter().map(String::as_str)));
    assert_eq!(gguf.metadata.str("tokenizer.chat_template"), Ok(long.as_str()));
    assert_eq!(gguf.metadata.f32_array("tokenizer.ggml.scores"), Ok(&scores[..]));
    let reads = source.reads.take();
    assert!(reads.len() as u64 <= header / (1 << 20) + 3, "{} reads for {header} bytes", reads.len());
    assert!(reads.iter().all(|&(_, len)| len <= 1 << 20));
    let last = reads.iter().map(|&(offset, len)| offset + len as u64).max().unwrap();
    assert!(last <= header + (1 << 20), "read to {last}, the header has {header} bytes");
}

#[test]
fn a_source_that_fails_says_so() {
    struct Broken;
    impl ByteSource for Broken {
        fn len(&self) -> u64 {
            1 << 30
        }

        fn describe(&self) -> String {
            "broken".into()
        }

        async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
            let wanted = buf.len() as u64;
            Err(SourceError::Failed { place: self.describe(), offset, wanted, reason: "connection reset".into() })
        }
    }
    let error = pollster::block_on(Gguf::read(&Broken)).unwrap_err();
    assert!(error.problem().is_none());
    assert_eq!(error.to_string(), "broken: reading 65536 bytes at offset 0 failed: connection reset");
}
