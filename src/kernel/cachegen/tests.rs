//! Streams against the plain coder, bit by bit, on every rung.

use super::*;
use crate::kernel::Kernels;
use crate::kernel::portable::{F16_INFINITY, f16_from_f32, f32_from_f16};
use crate::kernel::support::{Random, arithmetic, rungs};
use std::vec::Vec;

/// Symbols below `bound` of one lane, with some distribution.
fn lane(random: &mut Random, bound: u64, tokens: usize) -> Vec<u8> {
    let (kind, favourite) = (random.below(6), random.below(bound));
    let symbol = |random: &mut Random| match kind {
        0 => random.below(bound),
        1 => favourite,
        2 if random.below(40) == 0 => random.below(bound),
        2 => favourite,
        3 => (0..4).map(|_| random.below(bound)).sum::<u64>() / 4,
        4 => random.below(2) * (bound - 1),
        _ => bound / 2 - random.below(2),
    };
    (0..tokens).map(|_| symbol(random) as u8).collect()
}

/// Frequencies of a lane: those of the symbols, or anything that increases.
fn cdf_of(random: &mut Random, symbols: &[u8]) -> Vec<u16> {
    if random.below(4) == 0 {
        let mut cdf: Vec<u16> = Vec::new();
        while cdf.len() < 31 {
            let entry = match random.below(2) {
                0 => 1 + random.below(0xFFFE) as u16,
                _ => 0x7FF0 + random.below(32) as u16,
            };
            if !cdf.contains(&entry) {
                cdf.push(entry);
            }
        }
        cdf.extend([0, u16::MAX]);
        cdf.sort_unstable();
        return cdf;
    }
    let below =
        |symbol: usize| symbols.iter().filter(|&&other| usize::from(other) < symbol).count();
    (0..=32).map(|symbol| (65503 * below(symbol) / symbols.len() + symbol) as u16).collect()
}

struct Case {
    lanes: Vec<Vec<u8>>,
    cdfs: Vec<Vec<u16>>,
    tokens: usize,
}

impl Case {
    fn new(random: &mut Random, bound: u64, tokens: usize, lanes: usize) -> Case {
        let lanes: Vec<Vec<u8>> = (0..lanes).map(|_| lane(random, bound, tokens)).collect();
        let cdfs = lanes.iter().map(|symbols| cdf_of(random, symbols)).collect();
        Case { lanes, cdfs, tokens }
    }

    fn rows(&self) -> Vec<[u8; LANES]> {
        let symbol = |lane: usize, token: usize| self.lanes.get(lane).map_or(0, |lane| lane[token]);
        (0..self.tokens).map(|token| core::array::from_fn(|lane| symbol(lane, token))).collect()
    }

    fn cdfs(&self) -> Cdfs {
        let cdf = |lane: usize| self.cdfs.get(lane).unwrap_or(&self.cdfs[0]);
        core::array::from_fn(|entry| core::array::from_fn(|lane| cdf(lane)[entry]))
    }

    fn plain(&self) -> Vec<Vec<u8>> {
        let both = self.lanes.iter().zip(&self.cdfs);
        both.map(|(symbols, cdf)| arithmetic::encode(symbols, cdf)).collect()
    }
}

/// One behind the other, and what must follow them.
fn joined(streams: &[Vec<u8>]) -> (Vec<u8>, Vec<Stream>) {
    let (mut bytes, mut places) = (std::vec![0xFF; 3], Vec::new());
    for stream in streams {
        places.push(Stream { start: bytes.len(), end: bytes.len() + stream.len() });
        bytes.extend(stream);
    }
    bytes.extend([0xA5; BYTES_BEHIND_STREAMS]);
    (bytes, places)
}

fn decode(
    kernels: &Kernels,
    bytes: &[u8],
    streams: &[Stream],
    case: &Case,
    bound: u64,
) -> Option<Vec<[i16; LANES]>> {
    let mut codes = std::vec![[0; LANES]; case.tokens];
    let cdfs = case.cdfs();
    let sound = kernels.cachegen_decode.call(bytes, streams, &cdfs, bound as u16, &mut codes);
    sound.then_some(codes)
}

#[test]
fn streams_are_those_of_the_plain_coder() {
    let mut random = Random::new(81);
    let rungs = rungs();
    let sizes = (1..=256).chain([256; 40]);
    for (case, tokens) in sizes.enumerate() {
        let bound = if case % 2 == 0 { 31 } else { 15 };
        let lanes = 1 + random.below(LANES as u64) as usize;
        let case = Case::new(&mut random, bound, tokens, lanes);
        let plain = case.plain();
        for ((stream, cdf), symbols) in plain.iter().zip(&case.cdfs).zip(&case.lanes) {
            let mut decoded = std::vec![0; tokens];
            arithmetic::decode(stream, cdf, &mut decoded);
            assert_eq!(&decoded, symbols);
        }
        let (bytes, places) = joined(&plain);
        for (name, kernels) in &rungs {
            let mut streams = [[0x5A; STREAM_BYTES_MAX]; LANES];
            let ends = kernels.cachegen_encode.call(&case.rows(), &case.cdfs(), &mut streams);
            for (lane, expected) in plain.iter().enumerate() {
                assert_eq!(&streams[lane][..ends[lane]], expected, "{name} {tokens} lane {lane}");
            }
            let codes = decode(kernels, &bytes, &places, &case, bound).unwrap();
            for (codes, symbols) in codes.iter().zip(case.rows()) {
                for lane in 0..lanes {
                    let expected = i16::from(symbols[lane]) - bound as i16 / 2;
                    assert_eq!(codes[lane], expected, "{name} {tokens} lane {lane}");
                }
            }
        }
    }
}

#[test]
fn bytes_are_accepted_only_as_encoding_writes_them() {
    let mut random = Random::new(82);
    let rungs = rungs();
    let mut verdicts = [0; 2];
    for round in 0..600 {
        let bound = if round % 2 == 0 { 31 } else { 15 };
        let tokens = 1 + random.below(60) as usize;
        let case = Case::new(&mut random, bound, tokens, 2);
        let mut streams = case.plain();
        let stream = &mut streams[1];
        let at = random.below(stream.len() as u64) as usize;
        match random.below(5) {
            0 => stream[at] ^= 1 << random.below(8),
            1 => stream[at] = random.byte(),
            2 => stream.push(0),
            3 => drop(stream.pop()),
            _ => stream.fill_with(|| random.byte()),
        }
        let (bytes, places) = joined(&streams);
        let expected = decode(&rungs[0].1, &bytes, &places, &case, bound);
        for (name, kernels) in &rungs {
            assert_eq!(decode(kernels, &bytes, &places, &case, bound), expected, "{name}");
        }
        verdicts[usize::from(expected.is_some())] += 1;
        if let Some(codes) = expected {
            let symbols = codes.iter().map(|codes| (codes[1] + bound as i16 / 2) as u8);
            let symbols: Vec<u8> = symbols.collect();
            assert_eq!(arithmetic::encode(&symbols, &case.cdfs[1]), streams[1]);
        }
    }
    assert!(verdicts.iter().all(|&count| count > 20), "{verdicts:?}");
}

#[test]
fn numbers_behind_all_shares_are_refused() {
    let mut random = Random::new(84);
    for round in 0..60 {
        let bound = if round % 2 == 0 { 31 } else { 15 };
        let case = Case::new(&mut random, bound, 1 + 4 * round, LANES);
        let mut streams = case.plain();
        // Frequency 2^16 - 1, which is in no symbol's share, sooner or later.
        for stream in &mut streams {
            let at = random.below(stream.len() as u64) as usize;
            stream[at / 2 * (round % 3)..].fill(0xFF);
        }
        let (bytes, places) = joined(&streams);
        for (name, kernels) in &rungs() {
            assert_eq!(decode(kernels, &bytes, &places, &case, bound), None, "{name}");
        }
    }
}

#[test]
fn every_greatest_magnitude_and_code_comes_back() {
    for code_max in [7u8, 15] {
        for absmax in 0..F16_INFINITY {
            let steps = CodeSteps::new(absmax, code_max);
            let max = i16::from(code_max);
            let value = |code: i16| f16_from_f32(f32::from(code) * steps.step);
            // Below 2^-24 times the greatest code, not all codes occur.
            let greatest = if absmax < u16::from(code_max) { absmax.cast_signed() } else { max };
            let values: Vec<u16> = (-greatest..=greatest).map(value).collect();
            assert_eq!(values[2 * greatest as usize], absmax);
            let mut symbols = std::vec![0; values.len()];
            Kernels::portable().cachegen_quantize.call(&values, &steps, &mut symbols);
            for (symbol, code) in symbols.iter().zip(-greatest..=greatest) {
                assert_eq!(i16::from(*symbol), code + max, "{absmax:#06x} of {code_max}");
            }
        }
    }
}

#[test]
fn every_rung_quantizes_as_it_is_written_down() {
    let mut random = Random::new(83);
    for round in 0..2000 {
        let length = 1 + random.below(70) as usize;
        let magnitude_end = 1 + random.below(u64::from(F16_INFINITY)) as u16;
        let mut half = || (random.u16() % magnitude_end) | random.u16() & 0x8000;
        let values: Vec<u16> = (0..length).map(|_| half()).collect();
        let absmax = values.iter().map(|half| half & 0x7FFF).max().unwrap();
        let code_max = if round % 2 == 0 { 15 } else { 7 };
        let steps = CodeSteps::new(absmax, code_max);
        let expected = values.iter().map(|&half| {
            let max = f32::from(code_max);
            match absmax {
                0 => code_max,
                _ if absmax < u16::from(code_max) => {
                    (max + f32_from_f16(half) * 2f32.powi(24)) as u8
                }
                _ => (f32_from_f16(half) * (max / f32_from_f16(absmax)) + max).round_ties_even()
                    as u8,
            }
        });
        let expected: Vec<u8> = expected.collect();
        for (name, kernels) in rungs() {
            let mut symbols = std::vec![0xEE; length];
            kernels.cachegen_quantize.call(&values, &steps, &mut symbols);
            assert_eq!(symbols, expected, "{name}");
        }
    }
}
