//! Byte-level BPE spells every byte as one printable character, so that merges can be written as text.
//!
//! The table is GPT-2's: bytes that print in Latin-1 (0x21..0x7e, 0xa1..0xac, 0xae..0xff) stand for themselves, the
//! other 68 take the characters from U+0100 on, in order.

/// Whether a byte stands for itself.
const fn prints(byte: u8) -> bool {
    matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff)
}

const CHARS: [char; 256] = {
    let mut table = ['\0'; 256];
    let (mut byte, mut next) = (0usize, 0x100u32);
    while byte < 256 {
        table[byte] = if prints(byte as u8) {
            byte as u8 as char
        } else {
            next += 1;
            match char::from_u32(next - 1) {
                Some(c) => c,
                None => panic!("U+0100 to U+0143 are characters"),
            }
        };
        byte += 1;
    }
    table
};

/// The character that stands for a byte.
pub(super) fn char_of(byte: u8) -> char {
    CHARS[usize::from(byte)]
}

/// The byte that a character stands for; `None` for a character outside the table.
pub(super) fn byte_of(c: char) -> Option<u8> {
    match u32::from(c) {
        code @ 0..=0xff if prints(code as u8) => Some(code as u8),
        // At most 68 entries, and only for spaces and control bytes.
        code @ 0x100..=0x143 => {
            let nth = (code - 0x100) as usize;
            (0..=255u8).filter(|&b| !prints(b)).nth(nth)
        }
        _ => None,
    }
}

/// Spells `text` in the table's characters, replacing what was in `out`.
pub(super) fn spell(text: &str, out: &mut String) {
    out.clear();
    out.extend(text.bytes().map(char_of));
}

/// The bytes that a spelled token stands for. A character outside the table, which a broken vocabulary may hold, stands
/// for its own UTF-8.
pub(super) fn unspell(token: &str, out: &mut Vec<u8>) {
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_its_own_character() {
        for byte in 0..=255u8 {
            assert_eq!(byte_of(char_of(byte)), Some(byte));
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
        assert_eq!(char_of(b'A'), 'A');
        assert_eq!(char_of(0xad), '\u{143}');
        assert_eq!(byte_of(' '), None);
        assert_eq!(byte_of('\u{144}'), None);
    }

    #[test]
    fn spelling_is_undone() {
        let (mut spelled, mut bytes) = (String::from("old"), Vec::new());
        spell("é \n", &mut spelled);
        assert_eq!(spelled, "Ã©ĠĊ");
        unspell(&spelled, &mut bytes);
        assert_eq!(bytes, "é \n".as_bytes());
    }
}
