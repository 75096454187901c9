//! Sizes, shares and times as people write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

const UNITS: [(&str, u64); 9] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("kB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("K", 1 << 10),
    ("M", 1 << 20),
    ("G", 1 << 30),
];

/// A number of bytes: `512MiB`, `1.5GB`, `4096`, `2G`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || format!("`{text}` is not a size; write for example 512MiB, 1.5GB or 4096");
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let unit = unit.trim();
        let scale = match unit {
            "" | "B" => 1,
            _ => find_unit(unit).ok_or_else(wrong)?,
        };
        let bytes = match number.parse::<u64>() {
            Ok(whole) => whole.checked_mul(scale),
            Err(_) => scaled(number, scale),
        };
        bytes.map(Size).ok_or_else(wrong)
    }
}

fn find_unit(unit: &str) -> Option<u64> {
    UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).map(|(_, scale)| *scale)
}

/// A decimal fraction times a unit, in integers so that nothing is rounded up past the limit.
fn scaled(number: &str, scale: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 {
        return None;
    }
    let whole = if whole.is_empty() { 0 } else { whole.parse::<u64>().ok()? };
    let divisor = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) / divisor;
    whole.checked_mul(scale)?.checked_add(u64::try_from(part).ok()?)
}

impl fmt::Display for Size {
    #[expect(clippy::cast_precision_loss, reason = "for display only")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", value / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", value / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", value / 1_073_741_824.0),
        }
    }
}

/// A share from 0 % to 100 %; the sign may be left out.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Percent(f64);

impl Percent {
    pub const HALF: Percent = Percent(50.0);
    /// The levels that the paper measures.
    pub const LEVELS: [Percent; 4] = [Percent(75.0), Percent(50.0), Percent(25.0), Percent(0.0)];

    /// The share nearest to that many hundredths.
    pub fn nearest(hundredths: f64) -> Percent {
        Percent(if hundredths.is_nan() { 0.0 } else { hundredths.clamp(0.0, 100.0) })
    }

    pub const fn get(self) -> f64 {
        self.0
    }

    /// What is missing from the whole.
    pub const fn rest(self) -> Percent {
        Percent(100.0 - self.0)
    }

    /// That share of a number of bytes, rounded down.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share between 0 and 1 of a u64 fits a u64; the cast saturates"
    )]
    pub fn of(self, bytes: u64) -> u64 {
        ((bytes as f64 * self.0 / 100.0) as u64).min(bytes)
    }
}

impl FromStr for Percent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches('%').trim_end();
        match number.parse::<f64>() {
            Ok(value) if (0.0..=100.0).contains(&value) => Ok(Percent(value)),
            Ok(_) => Err(format!("`{text}` is outside 0 % to 100 %")),
            Err(_) => Err(format!("`{text}` is not a share; write for example 75%")),
        }
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} %", self.0)
    }
}

/// How much to evict: a share of what is resident, or bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    Share(Percent),
    Bytes(Size),
}

impl Amount {
    /// In bytes, where `resident` bytes could be evicted.
    pub fn bytes(self, resident: u64) -> u64 {
        match self {
            Amount::Share(share) => share.of(resident),
            Amount::Bytes(size) => size.0,
        }
    }
}

impl FromStr for Amount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim_end().ends_with('%') {
            true => text.parse().map(Amount::Share),
            false => text.parse().map(Amount::Bytes).map_err(|error: String| error + ", or 75%"),
        }
    }
}

/// A time for people: `812 ms`, `1.52 s`.
pub fn time(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        0.0..0.01 => format!("{:.2} ms", seconds * 1e3),
        0.01..0.1 => format!("{:.1} ms", seconds * 1e3),
        0.1..1.0 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// A rate for people, in the decimal units that storage is sold in.
#[expect(clippy::cast_precision_loss, reason = "for display only")]
pub fn rate(bytes_per_second: u64) -> String {
    match bytes_per_second {
        0..1_000_000_000 => format!("{:.0} MB/s", bytes_per_second as f64 / 1e6),
        _ => format!("{:.2} GB/s", bytes_per_second as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("512MiB", 512 << 20),
            ("512 mib", 512 << 20),
            ("2G", 2 << 30),
            ("1.5GB", 1_500_000_000),
            (".5KiB", 512),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, bytes) in cases {
            assert_eq!(text.parse::<Size>(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn what_is_no_size_is_refused_with_an_example() {
        let cases = [
            "",
            "MiB",
            "-1",
            "1e9",
            "1.MiB",
            "1.2.3MB",
            "12 parsec",
            "17179869184GiB",
            "18446744073709551616",
            "0.12345678901GB",
            "٣MB",
            "99999999999999999999.5K",
        ];
        for text in cases {
            let error = text.parse::<Size>().unwrap_err();
            assert!(error.contains("512MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn shares_parse_from_0_to_100() {
        assert_eq!("75%".parse::<Percent>().unwrap().get(), 75.0);
        assert_eq!(" 12.5 % ".parse::<Percent>().unwrap().get(), 12.5);
        assert_eq!("100".parse::<Percent>().unwrap().get(), 100.0);
        for text in ["101%", "-1%", "nan", "inf", "NaN%", "100.0001"] {
            let error = text.parse::<Percent>().unwrap_err();
            assert!(error.contains("outside 0 %"), "{text}: {error}");
        }
        assert!("half".parse::<Percent>().is_err());
        let nearest = [40.5, 101.0, -1.0, f64::NAN].map(|number| Percent::nearest(number).get());
        assert_eq!(nearest, [40.5, 100.0, 0.0, 0.0]);
    }

    #[test]
    fn a_share_never_exceeds_the_whole() {
        let all = "100%".parse::<Percent>().unwrap();
        assert_eq!(all.of(u64::MAX), u64::MAX);
        assert_eq!(all.of(1001), 1001);
        assert_eq!("50".parse::<Percent>().unwrap().of(1001), 500);
        assert_eq!("0".parse::<Percent>().unwrap().of(1001), 0);
    }

    #[test]
    fn amounts_are_shares_or_sizes() {
        assert_eq!("75%".parse::<Amount>().unwrap().bytes(1000), 750);
        assert_eq!("1K".parse::<Amount>().unwrap().bytes(10), 1024);
        assert!("lots".parse::<Amount>().unwrap_err().contains("75%"));
    }

    #[test]
    fn people_read_sizes_times_and_rates() {
        assert_eq!(Size(1023).to_string(), "1023 B");
        assert_eq!(Size(1536).to_string(), "1.5 KiB");
        assert_eq!(Size(270 << 20).to_string(), "270.0 MiB");
        assert_eq!(Size(3 << 30).to_string(), "3.00 GiB");
        assert_eq!(time(Duration::from_micros(1500)), "1.50 ms");
        assert_eq!(time(Duration::from_micros(71_400)), "71.4 ms");
        assert_eq!(time(Duration::from_millis(812)), "812 ms");
        assert_eq!(time(Duration::from_millis(1520)), "1.52 s");
        assert_eq!(rate(350_000_000), "350 MB/s");
        assert_eq!(rate(4_200_000_000), "4.20 GB/s");
    }
}
