//! The measured rates of one device, and their text form.
//!
//! ```text
//! mzcache-profile 1
//! # comment, on a line of its own or behind a value
//! read_bytes_per_s = 4200000000
//! write_bytes_per_s = 900000000
//! pack_bytes_per_s.q8 = 6000000000
//! unpack_bytes_per_s.q8 = 11000000000
//! x-anything = is ignored
//! ```
//!
//! Invariant: a parsed profile holds rates above zero only, each key exactly once. A codec has both
//! rates or none: a profile that is older than a codec stays readable, but nothing can be planned
//! with that codec. The text is hostile: an error names the key and the line. Paper section 4.3:
//! two rates are measured once per device, and per-unit times follow from them by size.

use crate::error::{Code, Error, Result};
use crate::units::CodecId;
use core::fmt;

const CODECS: usize = CodecId::ALL.len();
const MAGIC: &str = "mzcache-profile";
const VERSION: &str = "1";
/// Keys that start so belong to other programs.
const FOREIGN: &str = "x-";

/// What one core does with one codec, in bytes of F16 values a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodecRates {
    /// Packing.
    pub pack_bytes_per_s: u64,
    /// Unpacking.
    pub unpack_bytes_per_s: u64,
}

/// The rates of one device. None is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Sequential direct reads from flash, all readers together.
    pub read_bytes_per_s: u64,
    /// Sequential direct writes to flash, all writers together.
    pub write_bytes_per_s: u64,
    /// One entry a codec that was measured, in the order of [`CodecId::ALL`].
    pub codecs: [Option<CodecRates>; CODECS],
}

impl Profile {
    /// Cautious guesses that serve until the device was measured: reads at about half of what UFS
    /// 4.0 gives, q8 at about half of the slowest estimate for a big core.
    pub const DEFAULT: Profile = {
        let mut codecs = [None; CODECS];
        let mut index = 0;
        while index < CODECS {
            let codec = CodecId::ALL[index];
            // A codec's number is its place there, and so in `Profile::codecs`.
            assert!(codec as usize == index);
            codecs[index] = Some(about(codec).guess);
            index += 1;
        }
        Profile { read_bytes_per_s: 2_000_000_000, write_bytes_per_s: 500_000_000, codecs }
    };

    /// The rates of one codec; the error names the key that the profile lacks.
    pub fn rates(&self, codec: CodecId) -> Result<CodecRates> {
        let missing = Error::new(Code::Mismatch, about(codec).unpack_key);
        self.codecs[codec as usize].ok_or(missing)
    }

    /// The rates of one codec, to be set; guesses where there were none.
    pub fn rates_mut(&mut self, codec: CodecId) -> &mut CodecRates {
        self.codecs[codec as usize].get_or_insert(about(codec).guess)
    }

    /// Reads the text form.
    ///
    /// # Errors
    ///
    /// `what` is the key (or `mzcache-profile` for the first line, `profile line` for a line that
    /// has no key, `profile key` for an unknown key), `value` the line. [`Code::BadMagic`]: another
    /// kind of file. [`Code::Unsupported`]: another version, or an unknown key.
    /// [`Code::Truncated`]: a storage rate is missing, or one of the two rates of a codec.
    /// [`Code::LimitExceeded`]: a rate beyond 64 bits. [`Code::Corrupt`]: not UTF-8, no `=`, a key
    /// that comes twice, a rate that is 0 or no number.
    pub fn parse(text: &[u8]) -> Result<Profile> {
        let mut lines = (1u64..).zip(text.split(|byte| *byte == b'\n'));
        let (_, first) = lines.next().unwrap_or_default();
        check_first_line(first)?;
        let mut profile = Profile { codecs: [None; CODECS], ..Profile::DEFAULT };
        let mut seen = [false; KEYS.len()];
        let mut last_number = 1;
        for (number, line) in lines {
            last_number = number;
            let Some((name, value)) = split_line(line).map_err(|error| error.with(number))? else {
                continue;
            };
            let Some(index) = KEYS.iter().position(|key| key.name() == name) else {
                if name.starts_with(FOREIGN) {
                    continue;
                }
                return Err(Error::new(Code::Unsupported, "profile key").with(number));
            };
            let key = KEYS[index];
            if core::mem::replace(&mut seen[index], true) {
                return Err(Error::new(Code::Corrupt, key.name()).with(number));
            }
            let rate = parse_rate(value).map_err(|code| Error::new(code, key.name()).with(number));
            *key.place(&mut profile) = rate?;
        }
        let is_missing = |key: &Key| match key {
            Key::Read | Key::Write => true,
            Key::Pack(codec) | Key::Unpack(codec) => profile.rates(*codec).is_ok(),
        };
        match KEYS.iter().zip(seen).find(|(key, seen)| !seen && is_missing(key)) {
            Some((key, _)) => Err(Error::new(Code::Truncated, key.name()).with(last_number)),
            None => Ok(profile),
        }
    }

    /// Writes the text form, which [`Profile::parse`] reads back to an equal profile.
    ///
    /// # Errors
    ///
    /// Only those of `out`.
    pub fn write(&self, out: &mut impl fmt::Write) -> fmt::Result {
        writeln!(out, "{MAGIC} {VERSION}")?;
        for (key, rate) in KEYS.iter().filter_map(|key| Some((key, key.rate(self)?))) {
            writeln!(out, "{} = {rate}", key.name())?;
        }
        Ok(())
    }
}

/// What a profile knows of a codec before it was measured.
struct About {
    pack_key: &'static str,
    unpack_key: &'static str,
    guess: CodecRates,
}

macro_rules! about {
    ($name:literal, $pack_bytes_per_s:literal, $unpack_bytes_per_s:literal) => {
        About {
            pack_key: concat!("pack_bytes_per_s.", $name),
            unpack_key: concat!("unpack_bytes_per_s.", $name),
            guess: CodecRates {
                pack_bytes_per_s: $pack_bytes_per_s,
                unpack_bytes_per_s: $unpack_bytes_per_s,
            },
        }
    };
}

const fn about(codec: CodecId) -> About {
    match codec {
        CodecId::Raw => about!("raw", 6_000_000_000, 6_000_000_000),
        CodecId::Q8 => about!("q8", 2_000_000_000, 5_000_000_000),
        CodecId::Kv4 => about!("kv4", 1_000_000_000, 5_000_000_000),
        CodecId::Kvh => about!("kvh", 300_000_000, 2_000_000_000),
        CodecId::CacheGen => about!("cachegen", 200_000_000, 300_000_000),
    }
}

/// What a line may set.
#[derive(Clone, Copy)]
enum Key {
    Read,
    Write,
    Pack(CodecId),
    Unpack(CodecId),
}

const KEYS: [Key; 2 + 2 * CODECS] = {
    let mut keys = [Key::Read; 2 + 2 * CODECS];
    keys[1] = Key::Write;
    let mut index = 0;
    while index < CODECS {
        keys[2 + 2 * index] = Key::Pack(CodecId::ALL[index]);
        keys[3 + 2 * index] = Key::Unpack(CodecId::ALL[index]);
        index += 1;
    }
    keys
};

impl Key {
    const fn name(self) -> &'static str {
        match self {
            Key::Read => "read_bytes_per_s",
            Key::Write => "write_bytes_per_s",
            Key::Pack(codec) => about(codec).pack_key,
            Key::Unpack(codec) => about(codec).unpack_key,
        }
    }

    fn rate(self, profile: &Profile) -> Option<u64> {
        match self {
            Key::Read => Some(profile.read_bytes_per_s),
            Key::Write => Some(profile.write_bytes_per_s),
            Key::Pack(codec) => Some(profile.codecs[codec as usize]?.pack_bytes_per_s),
            Key::Unpack(codec) => Some(profile.codecs[codec as usize]?.unpack_bytes_per_s),
        }
    }

    fn place(self, profile: &mut Profile) -> &mut u64 {
        match self {
            Key::Read => &mut profile.read_bytes_per_s,
            Key::Write => &mut profile.write_bytes_per_s,
            Key::Pack(codec) => &mut profile.rates_mut(codec).pack_bytes_per_s,
            Key::Unpack(codec) => &mut profile.rates_mut(codec).unpack_bytes_per_s,
        }
    }
}

fn check_first_line(line: &[u8]) -> Result<()> {
    let bad_magic = Error::new(Code::BadMagic, MAGIC).with(1);
    let line = core::str::from_utf8(line).map_err(|_| bad_magic)?;
    let version = line.trim().strip_prefix(MAGIC).ok_or(bad_magic)?;
    if !version.starts_with(' ') {
        return Err(bad_magic);
    }
    if version.trim() != VERSION {
        return Err(Error::new(Code::Unsupported, MAGIC).with(1));
    }
    Ok(())
}

/// The key and the value of a line; `None` when there is nothing but a comment.
fn split_line(line: &[u8]) -> Result<Option<(&str, &str)>> {
    let bad_line = Error::new(Code::Corrupt, "profile line");
    let line = core::str::from_utf8(line).map_err(|_| bad_line)?;
    let line = line.split('#').next().unwrap_or_default().trim();
    if line.is_empty() {
        return Ok(None);
    }
    let (key, value) = line.split_once('=').ok_or(bad_line)?;
    Ok(Some((key.trim_end(), value.trim_start())))
}

fn parse_rate(value: &str) -> core::result::Result<u64, Code> {
    // The standard parser would also take a sign.
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Code::Corrupt);
    }
    match value.parse::<u64>() {
        Ok(0) => Err(Code::Corrupt),
        Ok(rate) => Ok(rate),
        Err(_) => Err(Code::LimitExceeded),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    fn text_of(profile: &Profile) -> String {
        let mut text = String::new();
        profile.write(&mut text).unwrap();
        text
    }

    fn error_of(text: &str) -> (Code, &'static str, i64) {
        let error = Profile::parse(text.as_bytes()).unwrap_err();
        (error.code, error.what, error.value)
    }

    /// The default text, with one line (counted from 1) replaced.
    fn with_line(number: usize, line: &str) -> String {
        let text = text_of(&Profile::DEFAULT);
        let lines = text.lines().enumerate();
        lines.map(|(i, l)| format!("{}\n", if i + 1 == number { line } else { l })).collect()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut profile = Profile::DEFAULT;
        assert_eq!(Profile::parse(text_of(&profile).as_bytes()), Ok(profile));
        // Every rate different, at both ends of the range.
        for base in [1, u64::MAX - 100] {
            for (key, rate) in KEYS.iter().zip(base..) {
                *key.place(&mut profile) = rate;
            }
            assert_eq!(Profile::parse(text_of(&profile).as_bytes()), Ok(profile));
        }
    }

    #[test]
    fn the_text_is_as_documented() {
        let text = text_of(&Profile::DEFAULT);
        assert!(text.starts_with("mzcache-profile 1\nread_bytes_per_s = 2000000000\n"));
        assert!(text.contains("\nunpack_bytes_per_s.q8 = 5000000000\n"));
        for key in KEYS {
            let codec = match key {
                Key::Pack(codec) | Key::Unpack(codec) => codec,
                Key::Read | Key::Write => continue,
            };
            assert_eq!(key.name().rsplit('.').next(), Some(codec.name()));
        }
    }

    #[test]
    fn order_comments_blanks_and_foreign_keys_do_not_matter() {
        let text = text_of(&Profile::DEFAULT);
        let mut lines: Vec<&str> = text.lines().skip(1).collect();
        lines.reverse();
        let body = lines.join("  # measured\r\n\r\n\t");
        let text = format!(
            " mzcache-profile 1 \r\n# a = b\nx-phone = S25+ = fast\nx- =\n{body}\nx-phone=2"
        );
        assert_eq!(Profile::parse(text.as_bytes()), Ok(Profile::DEFAULT));
        let tight = text_of(&Profile::DEFAULT).replace(" = ", "=");
        assert_eq!(Profile::parse(tight.as_bytes()), Ok(Profile::DEFAULT));
    }

    #[test]
    fn a_bad_first_line_is_named() {
        for text in ["", "\n", "mzcache-profile1", "mzcache-profile", "# c\nmzcache-profile 1"] {
            assert_eq!(error_of(text), (Code::BadMagic, "mzcache-profile", 1), "{text:?}");
        }
        let binary = Profile::parse(b"\x7fELF\xff\xfe").unwrap_err();
        assert_eq!(binary, Error::new(Code::BadMagic, "mzcache-profile").with(1));
        for text in ["mzcache-profile 2", "mzcache-profile  ", "mzcache-profile 1 2"] {
            let expected =
                if text.trim().len() == MAGIC.len() { Code::BadMagic } else { Code::Unsupported };
            assert_eq!(error_of(text), (expected, "mzcache-profile", 1), "{text:?}");
        }
    }

    #[test]
    fn bad_lines_are_named_with_their_number() {
        use Code::{Corrupt, LimitExceeded, Unsupported};
        let cases = [
            ("read_bytes_per_s", Corrupt, "profile line"),
            ("reads = 5", Unsupported, "profile key"),
            ("= 5", Unsupported, "profile key"),
            ("X-phone = 5", Unsupported, "profile key"),
            ("unpack_bytes_per_s.zip = 5", Unsupported, "profile key"),
            ("read_bytes_per_s = 0", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = 000", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s =", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = # 5", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = +5", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = -5", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = 5 6", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = 4.2e9", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = 0x10", Corrupt, "read_bytes_per_s"),
            ("read_bytes_per_s = 18446744073709551616", LimitExceeded, "read_bytes_per_s"),
        ];
        for (line, code, what) in cases {
            assert_eq!(error_of(&with_line(2, line)), (code, what, 2), "{line:?}");
        }
        let largest = with_line(2, "read_bytes_per_s = 18446744073709551615");
        assert_eq!(Profile::parse(largest.as_bytes()).unwrap().read_bytes_per_s, u64::MAX);
    }

    #[test]
    fn text_that_is_not_utf_8_is_refused() {
        let mut text = text_of(&Profile::DEFAULT).into_bytes();
        let third_line = text.iter().enumerate().filter(|(_, b)| **b == b'\n').nth(1).unwrap().0;
        text.insert(third_line + 1, 0xFF);
        let expected = Error::new(Code::Corrupt, "profile line").with(3);
        assert_eq!(Profile::parse(&text), Err(expected));
    }

    #[test]
    fn every_key_comes_once_and_none_lacks_its_twin() {
        let end = i64::try_from(KEYS.len()).unwrap() + 2;
        for (index, key) in KEYS.iter().enumerate() {
            let missing = with_line(index + 2, "");
            assert_eq!(error_of(&missing), (Code::Truncated, key.name(), end));
            let twice = format!("{}{} = 7\n", text_of(&Profile::DEFAULT), key.name());
            assert_eq!(error_of(&twice), (Code::Corrupt, key.name(), end));
        }
    }

    #[test]
    fn a_profile_without_a_codec_is_one_that_cannot_plan_with_it() {
        for codec in CodecId::ALL {
            let mut profile = Profile::DEFAULT;
            profile.codecs[codec as usize] = None;
            let text = text_of(&profile);
            assert!(!text.contains(&format!(".{} ", codec.name())));
            assert_eq!(Profile::parse(text.as_bytes()), Ok(profile));
            let error = profile.rates(codec).unwrap_err();
            assert_eq!((error.code, error.what), (Code::Mismatch, about(codec).unpack_key));
            assert_eq!(Profile::DEFAULT.rates(codec), Ok(about(codec).guess));
        }
    }

    #[test]
    fn mutated_text_never_panics_and_never_gives_a_rate_of_zero() {
        let original = text_of(&Profile::DEFAULT).into_bytes();
        let mut state = 0x9E37_79B9_7F4A_7C15u64;
        let mut random = move |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(state >> 33).unwrap() % below
        };
        let (mut refused, mut accepted) = (0, 0);
        for _ in 0..50_000 {
            let mut text = original.clone();
            for _ in 0..=random(3) {
                let at = random(text.len());
                match random(4) {
                    0 => text[at] = u8::try_from(random(256)).unwrap(),
                    1 => text.insert(at, b"=#\n x0-.+9\xC3"[random(11)]),
                    2 => drop(text.remove(at)),
                    _ => text.truncate(at.max(4)),
                }
            }
            match Profile::parse(&text) {
                Ok(profile) => {
                    accepted += 1;
                    assert!(KEYS.iter().all(|key| key.rate(&profile) != Some(0)));
                    assert_eq!(Profile::parse(text_of(&profile).as_bytes()), Ok(profile));
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.value >= 1 && !error.what.is_empty());
                }
            }
        }
        assert!(refused > 1000 && accepted > 1000);
    }

    #[test]
    fn a_writer_that_fails_ends_the_writing() {
        struct Full;
        impl fmt::Write for Full {
            fn write_str(&mut self, _: &str) -> fmt::Result {
                Err(fmt::Error)
            }
        }
        assert!(Profile::DEFAULT.write(&mut Full).is_err());
    }
}
