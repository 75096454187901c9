//! Rows of codes back to symbols: whole, damaged, and of any bytes.

use super::*;

/// Rows under different tables, one behind the other, and what they mean.
struct Rows {
    bytes: Vec<u8>,
    rows: Vec<CodedRow>,
    symbols: Vec<Vec<u8>>,
}

impl Rows {
    fn new(random: &mut Random, rows: usize, count: usize) -> Rows {
        let mut all = Rows { bytes: Vec::new(), rows: Vec::new(), symbols: Vec::new() };
        for _ in 0..rows {
            let spread = random.below(13) as usize;
            let residuals = residuals(random, spread, count);
            let table = random.below(13) as usize;
            let mut bytes = [0xA5; ROW_BYTES_MAX];
            let row = Indices::new(&residuals);
            let length = KERNELS.huffman_encode.write(&row, table, &mut bytes);
            let start = all.bytes.len();
            all.bytes.extend(&bytes[..length]);
            all.rows.push(CodedRow { start, end: start + length, table });
            all.symbols.push(symbols_of(table, &residuals));
        }
        all.bytes.resize(all.bytes.len() + BYTES_BEHIND_ROWS, 0xA5);
        all
    }
}

#[test]
fn rows_come_back_under_every_rung_at_every_length_between_guard_pages() {
    let mut random = Random::new(32);
    let rungs = rungs();
    let (mut memory, mut target) = (Guarded::new(1 << 14), Guarded::new(34 * SYMBOLS_STRIDE));
    for count in 1..=256 {
        for rows in [0, 1, 2, 3, 4, 5, 9, 33] {
            let all = Rows::new(&mut random, rows, count);
            for (name, kernels) in &rungs {
                for at_end in [false, true] {
                    let bytes = memory.at::<u8>(at_end, all.bytes.len());
                    bytes.copy_from_slice(&all.bytes);
                    let symbols = target.at::<u8>(at_end, (rows + 1) * SYMBOLS_STRIDE);
                    let is_whole = kernels.huffman_decode.call(bytes, &all.rows, count, symbols);
                    assert!(is_whole, "{name} {count} {rows}");
                    for (place, expected) in all.symbols.iter().enumerate() {
                        let row = &symbols[place * SYMBOLS_STRIDE..][..count];
                        assert_eq!(row, expected, "{name} {count} {place}");
                    }
                }
            }
        }
    }
}

#[test]
fn a_row_that_ends_elsewhere_or_in_other_bits_is_refused() {
    let mut random = Random::new(33);
    let rungs = rungs();
    let mut refused = [0; 3];
    for count in [1, 5, 29, 30, 31, 64, 256] {
        let all = Rows::new(&mut random, 6, count);
        let mut symbols = std::vec![0; 7 * SYMBOLS_STRIDE];
        for (name, kernels) in &rungs {
            let mut decode = |bytes: &[u8], rows: &[CodedRow]| {
                kernels.huffman_decode.call(bytes, rows, count, &mut symbols)
            };
            for at in 0..6 {
                let mut rows = all.rows.clone();
                if rows[at].end < all.bytes.len() - BYTES_BEHIND_ROWS {
                    rows[at].end += 1;
                    assert!(!decode(&all.bytes, &rows), "{name} {count}: a byte too many");
                    refused[0] += 1;
                }
                rows[at].end = all.rows[at].end - 1;
                assert!(!decode(&all.bytes, &rows), "{name} {count}: a byte too few");
                refused[1] += 1;
            }
            // The last bit is set: another code, or no zero bit.
            let mut bytes = all.bytes.clone();
            let row = &all.rows[2];
            bytes[row.end - 1] |= 1;
            let length = |&symbol: &u8| {
                usize::from(LENGTHS[row.table][usize::from(symbol.wrapping_add(20))])
            };
            let bits: usize = all.symbols[2].iter().map(length).sum();
            if !bits.is_multiple_of(8) {
                assert!(!decode(&bytes, &all.rows), "{name} {count}: a bit behind the last code");
                refused[2] += 1;
            }
        }
    }
    assert!(refused.iter().all(|&count| count > 0), "{refused:?}");
}

#[test]
fn any_bytes_are_safe_and_every_rung_says_the_same() {
    let mut random = Random::new(34);
    let rungs = rungs();
    let (mut memory, mut target) = (Guarded::new(4096), Guarded::new(10 * SYMBOLS_STRIDE));
    let mut verdicts = [0; 2];
    for _ in 0..20_000 {
        let length = 8 + random.below(300) as usize;
        let end_max = length - BYTES_BEHIND_ROWS;
        let count_max = if random.below(2) == 0 { 8 } else { 256 };
        let count = 1 + random.below(count_max) as usize;
        let rows: Vec<CodedRow> = (0..random.below(10))
            .map(|_| {
                let end = random.below(end_max as u64 + 1) as usize;
                let start = random.below(end as u64 + 1) as usize;
                CodedRow { start, end, table: random.below(13) as usize }
            })
            .collect();
        let is_plain = random.below(2) == 0;
        let bytes: Vec<u8> =
            (0..length).map(|_| if is_plain { 0 } else { random.byte() }).collect();
        let mut expected = None;
        for (name, kernels) in &rungs {
            let source = memory.last::<u8>(length);
            source.copy_from_slice(&bytes);
            let symbols = target.last::<u8>((rows.len() + 1) * SYMBOLS_STRIDE);
            let is_whole = kernels.huffman_decode.call(source, &rows, count, symbols);
            let meant = is_whole.then(|| {
                let row = |place: usize| symbols[place * SYMBOLS_STRIDE..][..count].to_vec();
                (0..rows.len()).map(row).collect::<Vec<_>>()
            });
            assert_eq!(*expected.get_or_insert_with(|| meant.clone()), meant, "{name}");
        }
        verdicts[usize::from(expected.flatten().is_some())] += 1;
    }
    assert!(verdicts.iter().all(|&count| count > 500), "{verdicts:?}");
}

#[test]
#[should_panic]
fn missing_room_is_a_programmer_error() {
    let row = CodedRow { start: 0, end: 8, table: 0 };
    KERNELS.huffman_decode.call(&[0; 16], &[row], 1, &mut [0; SYMBOLS_STRIDE]);
}

#[test]
#[should_panic]
fn a_row_without_bytes_behind_it_is_a_programmer_error() {
    let row = CodedRow { start: 0, end: 8, table: 0 };
    KERNELS.huffman_decode.call(&[0; 15], &[row], 1, &mut [0; 2 * SYMBOLS_STRIDE]);
}

#[test]
#[cfg(mz_asm)]
fn the_hand_written_loop_keeps_the_calling_convention() {
    use crate::kernel::huffman::decode::{self, Lane};
    use crate::kernel::support::available;
    use crate::kernel::support::checked_call::{Outcome, checked_call};
    #[cfg(target_arch = "x86_64")]
    let (function, needed) =
        (crate::kernel::huffman::arch::mz_huffman_run_bmi2 as *const (), CpuFlags::BMI2);
    #[cfg(target_arch = "aarch64")]
    let (function, needed) =
        (crate::kernel::huffman::arch::mz_huffman_run as *const (), CpuFlags::NEON);
    if !available().contains(needed) {
        return;
    }
    let mut random = Random::new(35);
    for count in [1, 29, 30, 200, 256] {
        let all = Rows::new(&mut random, 4, count);
        let lane = |at: usize| Lane::new(&all.rows[at], at, count);
        let mut lanes: [Lane; 4] = core::array::from_fn(lane);
        let mut symbols = [0u8; 4 * SYMBOLS_STRIDE];
        let mut expected = (lanes, symbols);
        decode::run(&all.bytes, &mut expected.0, &mut expected.1);
        let pointers = [all.bytes.as_ptr() as u64, all.bytes.len() as u64 - 8];
        let targets = [lanes.as_mut_ptr() as u64, symbols.as_mut_ptr() as u64];
        let arguments = [pointers[0], pointers[1], targets[0], targets[1], 0, 0];
        // SAFETY: the arguments are of these arrays, which have room for four rows; the CPU has
        // what the function needs.
        let Outcome { trashed, .. } = unsafe { checked_call(function, arguments) };
        assert_eq!(trashed, 0, "{count} symbols");
        assert_eq!((lanes, symbols), expected, "{count} symbols");
    }
}
