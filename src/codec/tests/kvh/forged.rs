//! Payloads that packing never writes, under right checksums.

use super::*;
use crate::error::Error;

/// The sample with other bytes in its payload, under right checksums.
struct Forge {
    geometry: Geometry,
    steps: Vec<f32>,
    packed: Vec<u8>,
}

impl Forge {
    fn new() -> Self {
        let (geometry, steps, chunk) = sample();
        let packed = with(&steps).pack(&Kvh, &geometry, &chunk);
        Forge { geometry, steps, packed }
    }

    /// Where a part's headers begin in the packed chunk.
    fn part_at(&self, part: usize) -> usize {
        let place = self.packed[HEADER_BYTES + 4 * part..][..4].try_into().unwrap();
        HEADER_BYTES + u32::from_le_bytes(place) as usize
    }

    /// Where a row of a part begins.
    fn row_at(&self, part: usize, row: usize) -> usize {
        let words = header_words(&self.packed, &self.geometry, part);
        let bytes = |word: &u32| match form_of(*word) {
            0 | 1 => (word & 511) as usize + 2 * (word >> 9 & 63) as usize,
            2 => 100,
            _ => 200,
        };
        let before: usize = words[..row].iter().map(bytes).sum();
        self.part_at(part) + 4 * words.len() + before
    }

    /// What unpacking says after `change`.
    fn verdict(&self, change: impl FnOnce(&mut [u8])) -> Result<Vec<u16>> {
        let mut forged = self.packed.clone();
        change(&mut forged);
        seal(&mut forged);
        let mut chunk = std::vec![UNTOUCHED; 2 * self.geometry.shape.block_values()];
        let result = with(&self.steps).try_unpack(&Kvh, &self.geometry, &forged, &mut chunk);
        for (name, kernels) in &rungs() {
            let mut own = std::vec![UNTOUCHED; chunk.len()];
            let with = With { kernels, ..with(&self.steps) };
            assert_eq!(with.try_unpack(&Kvh, &self.geometry, &forged, &mut own), result, "{name}");
            assert!(result.is_err() || own == chunk, "{name}");
        }
        result.map(|()| chunk)
    }

    fn refused(&self, change: impl FnOnce(&mut [u8])) -> &'static str {
        let Error { code, what, .. } = self.verdict(change).unwrap_err();
        assert_eq!(code, Code::Corrupt);
        what
    }

    /// Changes the header of a row.
    fn with_word(&self, part: usize, row: usize, change: impl FnOnce(u32) -> u32) -> &'static str {
        let at = self.part_at(part) + 4 * row;
        self.refused(|packed| {
            let word = u32::from_le_bytes(packed[at..at + 4].try_into().unwrap());
            packed[at..at + 4].copy_from_slice(&change(word).to_le_bytes());
        })
    }
}

#[test]
fn forged_places_are_refused() {
    let forge = Forge::new();
    for part in 0..=4 {
        for change in [1u32, 4, 64, 1 << 20, u32::MAX, u32::MAX - 200] {
            let at = HEADER_BYTES + 4 * part;
            let what = forge.refused(|packed| {
                let place = u32::from_le_bytes(packed[at..at + 4].try_into().unwrap());
                packed[at..at + 4].copy_from_slice(&place.wrapping_add(change).to_le_bytes());
            });
            // A place that is a little off leaves parts whose rows do not fill them.
            let expected = ["packed part's place", "packed padding", "packed row header"];
            let rows = ["packed rows", "packed row codes", "packed row escapes"];
            assert!(expected.contains(&what) || rows.contains(&what), "{part} {change}: {what}");
        }
    }
    let end = forge.packed.len();
    assert_eq!(forge.refused(|packed| packed[end - 1] = 1), "packed padding");
}

#[test]
fn forged_row_headers_are_refused() {
    let forge = Forge::new();
    let header = "packed row header";
    // Rows 1 to 4 of the first part have forms 1, 2, 3 and escapes.
    assert_eq!(forge.with_word(0, 1, |word| word & !511), header, "no codes at all");
    for table in TABLES as u32..16 {
        assert_eq!(forge.with_word(0, 1, |word| word & !(15 << 15) | table << 15), header);
    }
    for bit in 0..19 {
        assert_eq!(forge.with_word(0, 2, |word| word | 1 << bit), header, "bytes, bit {bit}");
    }
    for bit in (0..19).chain(21..32) {
        assert_eq!(forge.with_word(0, 3, |word| word | 1 << bit), header, "values, bit {bit}");
    }
    assert_eq!(forge.with_word(3, 5, |_| 3 << 19), header, "values in V");
    assert_eq!(forge.with_word(3, 0, |_| 3 << 19), header, "values for V's steps");
    for (row, change) in [(1, 1u32), (1, u32::MAX), (4, 1 << 9), (4, (1u32 << 9).wrapping_neg())] {
        let what = forge.with_word(0, row, |word| word.wrapping_add(change));
        assert!(
            ["packed row codes", "packed rows", "packed row escapes"].contains(&what),
            "{what}"
        );
    }
    assert_eq!(forge.with_word(3, 32, |word| word | 63 << 9), "packed rows", "past the part");
}

#[test]
fn forged_codes_and_escapes_are_refused() {
    let forge = Forge::new();
    let words = header_words(&forge.packed, &forge.geometry, 0);
    let escapes_at = forge.row_at(0, 4) + (words[4] & 511) as usize;
    // A value that has a code is no escape.
    assert_eq!(forge.refused(|packed| packed[escapes_at..][..2].fill(0)), "packed row escapes");
    // Any other value is.
    assert!(forge.verdict(|packed| packed[escapes_at..][..2].fill(0x7F)).is_ok());
    // Longer codes than the row has room for.
    let codes = forge.row_at(0, 1)..forge.row_at(0, 2);
    let what = forge.refused(|packed| packed[codes].fill(0xFF));
    assert_eq!(what, "packed row codes");
    let scales_at = forge.part_at(3);
    let base = |base: i32| {
        forge.verdict(|packed| {
            let word = u32::from_le_bytes(packed[scales_at..][..4].try_into().unwrap());
            let word = word & ((1 << 21) - 1) | (base as u32) << 21;
            packed[scales_at..][..4].copy_from_slice(&word.to_le_bytes());
        })
    };
    assert!(base(46).is_ok());
    for outside in [-1, 79, 200, -1024, 1023] {
        let error = base(outside).unwrap_err();
        assert_eq!((error.code, error.what), (Code::Corrupt, "packed row scale"));
    }
}

#[test]
fn random_payloads_under_right_checksums_never_panic_and_settle() {
    let mut random = Random::new(67);
    let forge = Forge::new();
    let mut results = [0; 2];
    for _ in 0..1500 {
        let length = forge.packed.len() - HEADER_BYTES;
        let changes = random.below(6);
        let spots: Vec<(usize, u8)> = (0..changes)
            .map(|_| (HEADER_BYTES + random.below(length as u64) as usize, random.byte()))
            .collect();
        let verdict =
            forge.verdict(|packed| spots.iter().for_each(|&(at, byte)| packed[at] = byte));
        results[usize::from(verdict.is_ok())] += 1;
        if let Ok(chunk) = verdict {
            cycle(&forge.steps, &forge.geometry, &chunk);
        }
    }
    assert!(results.iter().all(|&count| count > 150), "{results:?}");
}
