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
