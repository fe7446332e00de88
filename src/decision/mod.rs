//! The decision domain: rows, prompt wording and payload, answer slots, readout maths and result rows.
//!
//! Pure: it reads no file, opens no device and imports nothing else of this crate, so the command line, the page and
//! the evaluation share one meaning of "a decision".

pub mod baseline;
pub mod json;
pub mod orderings;
pub mod readout;
pub mod result;
pub mod rows;
pub mod wording;

pub use json::{Json, JsonError};
pub use orderings::{Combined, OrderReading, Orderings};
pub use readout::{Readout, ReadoutError, allowed_token_mass, entropy_in_bits, readout};
pub use result::{ModelRef, PROBABILITY_STATUS, ResultRow, ServingConfig, SharedTiming};
pub use rows::{BadRow, Choice, Entry, MAX_OPTIONS, MIN_OPTIONS, Row, RowFile, read_rows};
pub use wording::{Keys, Wording, WordingError};

/// The answer letter of option `index`: `A` for 0, `T` for 19.
///
/// # Panics
/// Never for `index < 26`; rows hold at most [`MAX_OPTIONS`] options.
pub fn letter(index: usize) -> char {
    char::from(b'A' + index as u8)
}

/// SHA-256 over token ids, each as four bytes, lowest first: `prefix_sha256`.
pub fn tokens_sha256(tokens: &[u32]) -> String {
    sha256_hex(&tokens.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
}

/// SHA-256 of some bytes as lowercase hex: `prompt_sha256` is this over the rendered prompt's UTF-8.
pub fn sha256_hex(bytes: &[u8]) -> String {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes).iter().fold(String::with_capacity(64), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    /// The rows that `./run` decides and the page offers: valid, labelled with one of their options, short.
    #[test]
    fn example_rows_are_good() {
        let file = super::read_rows(include_bytes!("../../assets/example-rows.jsonl"));
        assert_eq!(file.bad().count(), 0);
        assert!(file.rows().count() >= 6);
        for row in file.rows() {
            let label = row.extra().iter().find(|(key, _)| key == "label").and_then(|(_, v)| v.as_str());
            assert!(row.options().iter().any(|o| Some(o.id.as_str()) == label), "{}", row.id());
            assert!(super::Wording::default().payload(row).len() < 800, "{}", row.id());
        }
    }

    #[test]
    fn hash_and_letters() {
        assert_eq!(super::sha256_hex(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!((super::letter(0), super::letter(19)), ('A', 'T'));
    }
}
