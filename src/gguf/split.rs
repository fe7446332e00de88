//! Split models: `NAME-00001-of-00003.gguf` and so on, one GGUF file each, read as one model.

use std::ops::Range;

use super::source::{ByteSource, SourceError};

/// The parts of a split model, one after the other as one source. [`super::Gguf::read`] merges their tensors and checks
/// from the metadata that all parts are there, in order and of one model.
#[derive(Clone, Debug)]
pub struct SplitSource<S> {
    parts: Vec<S>,
    /// Where each part ends in the whole.
    ends: Vec<u64>,
}

impl<S: ByteSource> SplitSource<S> {
    /// Joins parts, given in order.
    pub fn new(parts: Vec<S>) -> Self {
        let ends = parts
            .iter()
            .scan(0u64, |end, part| {
                *end = end.saturating_add(part.len());
                Some(*end)
            })
            .collect();
        Self { parts, ends }
    }

    fn start(&self, part: usize) -> u64 {
        if part == 0 { 0 } else { self.ends[part - 1] }
    }
}

impl<S: ByteSource> ByteSource for SplitSource<S> {
    fn len(&self) -> u64 {
        self.ends.last().copied().unwrap_or(0)
    }

    fn describe(&self) -> String {
        match self.parts.as_slice() {
            [] => "a split model without parts".into(),
            [only] => only.describe(),
            [first, others @ ..] => format!("{} (and {} more parts)", first.describe(), others.len()),
        }
    }

    /// Reads across the ends of parts where it must.
    async fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), SourceError> {
        self.check_range(offset, buf.len())?;
        let (mut offset, mut buf) = (offset, buf);
        let mut part = self.ends.partition_point(|&end| end <= offset);
        while !buf.is_empty() {
            let here = usize::try_from(self.ends[part] - offset).unwrap_or(usize::MAX).min(buf.len());
            let (now, rest) = buf.split_at_mut(here);
            self.parts[part].read_at(offset - self.start(part), now).await?;
            offset += here as u64;
            buf = rest;
            part += 1;
        }
        Ok(())
    }

    fn parts(&self) -> Vec<Range<u64>> {
        (0..self.parts.len()).map(|part| self.start(part)..self.ends[part]).collect()
    }
}

/// A file name of a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitName<'a> {
    /// What the parts have in common.
    pub stem: &'a str,
    /// Which part this is, from 1.
    pub part: u32,
    /// How many there are.
    pub count: u32,
}

impl<'a> SplitName<'a> {
    /// Takes a file name apart; `None` when it is not that of a part.
    pub fn parse(file_name: &'a str) -> Option<Self> {
        let number = |text: &str| if text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None };
        let (rest, count) = file_name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-')?;
        let (part, count): (u32, u32) = (number(part)?, number(count)?);
        (1..=count).contains(&part).then_some(Self { stem, part, count })
    }

    /// The file name of another part.
    pub fn name_of(&self, part: u32) -> String {
        format!("{}-{part:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::testing::Writer;
    use crate::gguf::{Gguf, GgufError, MemorySource, Problem, TensorType, Value};

    fn part(no: u16, count: u16, total: i32) -> Writer {
        Writer::default()
            .entry("split.no", Value::U16(no))
            .entry("split.count", Value::U16(count))
            .entry("split.tensors.count", Value::I32(total))
    }

    /// Three parts; the first holds metadata alone, as the usual tool can write it.
    fn writers() -> Vec<Writer> {
        let data = |seed: u8| (0..128).map(|i| seed ^ i).collect::<Vec<u8>>();
        vec![
            part(0, 3, 3).text("general.architecture", "qwen3"),
            part(1, 3, 3).tensor("a", TensorType::F32, &[32], data(1)).tensor("b", TensorType::F16, &[64], data(2)),
            part(2, 3, 3).tensor("c", TensorType::F32, &[4, 8], data(3)),
        ]
    }

    fn source(writers: &[Writer]) -> SplitSource<MemorySource> {
        let part = |(i, writer): (usize, &Writer)| MemorySource::new(format!("part{i}"), writer.build());
        SplitSource::new(writers.iter().enumerate().map(part).collect())
    }

    fn read(writers: &[Writer]) -> Result<Gguf, GgufError> {
        pollster::block_on(Gguf::read(&source(writers)))
    }

    #[track_caller]
    fn problem(writers: &[Writer]) -> Problem {
        read(writers).unwrap_err().problem().unwrap().clone()
    }

    #[test]
    fn parts_are_one_model() {
        let writers = writers();
        let source = source(&writers);
        let gguf = pollster::block_on(Gguf::read(&source)).unwrap();
        assert_eq!(gguf.metadata.str("general.architecture"), Ok("qwen3"));
        assert_eq!(gguf.file_len, source.len());
        for (writer, name) in [(1, "a"), (1, "b"), (2, "c")] {
            let tensor = gguf.tensor(name).unwrap();
            let mut bytes = vec![0; tensor.bytes as usize];
            pollster::block_on(source.read_at(tensor.offset, &mut bytes)).unwrap();
            assert_eq!(bytes, writers[writer].tensors.iter().find(|t| t.name == name).unwrap().data, "{name}");
        }
        let metadata = pollster::block_on(Gguf::read_metadata(&source)).unwrap();
        assert_eq!(metadata, gguf.metadata);
    }

    #[test]
    fn reads_cross_part_ends() {
        let parts = [&b"abc"[..], b"", b"d", b"efgh"].map(|bytes| MemorySource::new("p", bytes.into()));
        let source = SplitSource::new(parts.to_vec());
        assert_eq!(source.describe(), "p (and 3 more parts)");
        for start in 0..=8 {
            for end in start..=8 {
                let mut buf = vec![0; end - start];
                pollster::block_on(source.read_at(start as u64, &mut buf)).unwrap();
                assert_eq!(buf, b"abcdefgh"[start..end]);
            }
        }
        assert!(pollster::block_on(source.read_at(8, &mut [0])).is_err());
        assert!(pollster::block_on(source.read_at(u64::MAX, &mut [0])).is_err());
    }

    #[test]
    fn missing_and_mixed_parts_are_refused() {
        let all = writers();
        assert_eq!(problem(&all[..1]), Problem::SplitAlone { part: 1, count: 3 });
        assert_eq!(problem(&all[2..]), Problem::SplitAlone { part: 3, count: 3 });
        assert_eq!(problem(&all[..2]), Problem::SplitCount { found: 2, count: 3 });
        assert!(problem(&all[..2]).to_string().ends_with("a part is missing"));
        let order = |order: [usize; 3]| order.map(|i| all[i].clone());
        assert_eq!(problem(&order([0, 2, 1])), Problem::SplitOrder { place_no: 2, says_no: 3, says_count: 3, count: 3 });
        assert_eq!(problem(&order([1, 0, 2])), Problem::SplitOrder { place_no: 1, says_no: 2, says_count: 3, count: 3 });
        let mut other = all.clone();
        other[1] = part(1, 4, 3);
        assert_eq!(problem(&other), Problem::SplitOrder { place_no: 2, says_no: 2, says_count: 4, count: 3 });
        let mut fewer = all.clone();
        fewer[1].tensors.pop();
        assert_eq!(problem(&fewer), Problem::SplitTensors { found: 2, count: 3 });
        let mut twice = all.clone();
        twice[2].tensors[0].name = "b".into();
        assert_eq!(problem(&twice), Problem::DuplicateTensor { tensor: "\"b\"".into() });
        let mut unsplit = all.clone();
        unsplit[2].entries.clear();
        assert_eq!(problem(&unsplit), Problem::SplitOrder { place_no: 3, says_no: 1, says_count: 1, count: 3 });
        assert!(read(&[]).is_err());
    }

    #[test]
    fn a_fault_names_its_part() {
        let mut writers = writers();
        writers[2].tensors[0].type_id = 20;
        let error = read(&writers).unwrap_err().to_string();
        assert!(error.starts_with("part0 (and 2 more parts): part 3: tensor \"c\" has the type IQ4_NL"), "{error}");
        // A tensor may not reach from one part into the next.
        writers[1].tensors[1].data.truncate(64);
        let error = read(&writers).unwrap_err().to_string();
        assert!(error.contains("part 2: tensor \"b\" needs bytes"), "{error}");
    }

    #[test]
    fn names() {
        let name = SplitName::parse("m-Q4_K_M-00002-of-00012.gguf").unwrap();
        assert_eq!(name, SplitName { stem: "m-Q4_K_M", part: 2, count: 12 });
        assert_eq!(name.name_of(11), "m-Q4_K_M-00011-of-00012.gguf");
        for other in [
            "m.gguf",
            "m-00000-of-00002.gguf",
            "m-00003-of-00002.gguf",
            "m-1-of-2.gguf",
            "m-0000+-of-00002.gguf",
            "m-00001-of-00002",
            "-of-.gguf",
        ] {
            assert_eq!(SplitName::parse(other), None, "{other}");
        }
    }
}
