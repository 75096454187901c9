//! The alphabet of byte-level BPE: every byte as one printable character, so that a vocabulary is
//! text. Bytes that print stand for themselves; the others follow from U+0100 on.

/// The character of each byte, by byte.
const ALPHABET: [char; 256] = alphabet();
/// Characters of the alphabet are below this.
const CHARS: usize = 0x144;
/// The byte of each character; -1 where there is none.
const BYTES: [i16; CHARS] = inverse();

const fn prints(byte: u32) -> bool {
    matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF)
}

const fn alphabet() -> [char; 256] {
    let mut table = ['\0'; 256];
    let mut next = 0x100;
    let mut byte = 0;
    while byte < 256 {
        let mut code = byte;
        if !prints(byte) {
            code = next;
            next += 1;
        }
        if let Some(char) = char::from_u32(code) {
            table[byte as usize] = char;
        }
        byte += 1;
    }
    table
}

const fn inverse() -> [i16; CHARS] {
    let mut table = [-1; CHARS];
    let mut byte: i16 = 0;
    while byte < 256 {
        table[ALPHABET[byte.unsigned_abs() as usize] as usize] = byte;
        byte += 1;
    }
    table
}

/// The character that stands for a byte.
pub const fn to_char(byte: u8) -> char {
    ALPHABET[byte as usize]
}

/// The byte that a character stands for.
pub fn from_char(char: char) -> Option<u8> {
    let byte = BYTES.get(usize::try_from(u32::from(char)).ok()?)?;
    u8::try_from(*byte).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokenizers::pre_tokenizers::byte_level::ByteLevel;

    #[test]
    fn the_alphabet_is_that_of_the_crate_and_round_trips() {
        let known = ByteLevel::alphabet();
        for byte in 0..=255u8 {
            assert!(known.contains(&to_char(byte)), "{byte}");
            assert_eq!(from_char(to_char(byte)), Some(byte));
        }
        assert_eq!(to_char(b' '), 'Ġ');
        assert_eq!(to_char(b'\n'), 'Ċ');
        assert_eq!(to_char(b'a'), 'a');
    }

    #[test]
    fn other_characters_stand_for_no_byte() {
        for char in ['\0', ' ', '\u{AD}', '\u{144}', '中', char::MAX] {
            assert_eq!(from_char(char), None, "{char:?}");
        }
    }
}
