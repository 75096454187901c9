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
fn a_part_that_has_no_room_for_its_headers_is_not_even_opened() {
    let forge = Forge::new();
    let (kernels, steps) = (&KERNELS, with(&forge.steps).steps);
    for part in 0..4 {
        let rows = header_words(&forge.packed, &forge.geometry, part).len();
        let start = forge.part_at(part) - HEADER_BYTES;
        for end in
            [0, start - 1, start, start + 4 * rows - 1, forge.packed.len() - HEADER_BYTES + 1]
        {
            let mut forged = forge.packed.clone();
            forged[HEADER_BYTES + 4 * (part + 1)..][..4]
                .copy_from_slice(&(end as u32).to_le_bytes());
            seal(&mut forged);
            let error = Kvh.open(kernels, &forge.geometry, steps, &forged).unwrap_err();
            assert_eq!((error.code, error.what), (Code::Corrupt, "packed part's place"));
            assert_eq!(error.value, end as i64, "part {part}");
        }
    }
}

#[test]
fn sizes_that_a_header_claims_are_bounded() {
    // The places take 60 bytes here, and 8 zeros follow: more than one plane.
    let geometry = geometry(7, 32, 100);
    let steps = even_steps(&geometry, 1.0);
    let chunk = model_chunk(&mut Random::new(68), &geometry, 1.0);
    let packed = with(&steps).pack(&Kvh, &geometry, &chunk);
    assert_eq!(packed[7], 0);
    let claim = |bytes: usize| {
        let mut forged = packed.clone();
        forged[20..24].copy_from_slice(&(bytes as u32).to_le_bytes());
        seal(&mut forged);
        let error = Kvh.open(&KERNELS, &geometry, with(&steps).steps, &forged).unwrap_err();
        (error.code, error.what)
    };
    let raw = Kvh.packed_bytes_max(&geometry) - HEADER_BYTES;
    for bytes in [0, 64, 127, 129, raw - 63, raw, raw + 64] {
        assert_eq!(claim(bytes), (Code::Corrupt, "packed payload bytes"), "{bytes}");
    }
    assert_eq!(claim(128), (Code::Corrupt, "packed payload checksum"));
    assert_eq!(claim(raw - 64), (Code::Truncated, "packed payload"));
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
    // Values for escapes that there are not: two bytes behind a row whose codes have none.
    let row = (0..32).find(|row| form_of(words[*row]) < 2 && words[*row] >> 9 & 63 == 0).unwrap();
    let (at, behind) = (forge.row_at(0, row + 1), forge.packed.len() - 10);
    let what = forge.refused(|packed| {
        packed.copy_within(at..behind, at + 2);
        let header_at = forge.part_at(0) + 4 * row;
        packed[header_at + 1] += 2;
        for place in packed[HEADER_BYTES + 4..][..4 * 4].as_chunks_mut::<4>().0 {
            *place = (u32::from_le_bytes(*place) + 2).to_le_bytes();
        }
    });
    assert_eq!(what, "packed row escapes");
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
