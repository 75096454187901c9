//! Kernels at any length and alignment: every rung that this machine has gives the portable one's
//! bits, and writes nothing beside its output.
//!
//! ```text
//! 0 kernel    1, 2 length    3 alignment of the input (4 bits), of the output (4 bits)
//! 4 operands, over and over
//! ```

use super::reader::Reader;
use mzcache::kernel::lattice::RowSteps;
use mzcache::kernel::{CpuFlags, Kernels, Matrix, Q8_GROUP};
use std::fmt::Debug;

/// Numbers before and behind an output, of which none may change.
const MARGIN: usize = 32;
const LENGTH_MAX: usize = 1500;

/// Runs one kernel on every rung; whether there were operands.
pub fn kernels(data: &[u8]) -> bool {
    let mut reader = Reader(data);
    let kernel = reader.byte() % 9;
    let length = usize::from(u16::from_le_bytes([reader.byte(), reader.byte()])) % LENGTH_MAX;
    let [from_shift, to_shift] = split(reader.byte());
    let run = Run { length, from_shift, to_shift, operands: reader.0 };
    match kernel {
        0 => run.crc32c(),
        1 => run.f16_to_f32(),
        2 => run.f32_to_f16(),
        3 => run.q8_pack(),
        4 => run.q8_unpack(),
        5 => run.transpose(),
        6 => run.lattice_pack(),
        7 => run.lattice_unpack(),
        _ => run.sums(),
    }
    !reader.0.is_empty()
}

fn split(byte: u8) -> [usize; 2] {
    [usize::from(byte & 15), usize::from(byte >> 4)]
}

struct Run<'a> {
    length: usize,
    from_shift: usize,
    to_shift: usize,
    operands: &'a [u8],
}

/// All rungs, the portable one first.
fn rungs() -> impl Iterator<Item = Kernels> {
    let here = CpuFlags::detect();
    let better = CpuFlags::LADDER.iter().map(move |(_, mask)| Kernels::select(here & *mask));
    std::iter::once(Kernels::portable()).chain(better)
}

impl Run<'_> {
    /// That many bytes of the operands, over and over; zeros where there are none.
    fn bytes(&self, count: usize) -> Vec<u8> {
        let all = self.operands.iter().copied().cycle().chain(std::iter::repeat(0));
        all.take(count).collect()
    }

    fn halves(&self, count: usize) -> Vec<u16> {
        self.bytes(2 * count).as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b)).collect()
    }

    fn floats(&self, count: usize) -> Vec<f32> {
        self.bytes(4 * count).as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }

    /// Steps are positive and finite by contract.
    fn step(&self) -> f32 {
        2f32.powi(i32::from(self.operands.first().copied().unwrap_or(0) % 30) - 20)
    }

    /// The same numbers, further behind in memory.
    fn shifted<T: Copy + Default>(&self, numbers: &[T]) -> Vec<T> {
        let mut all = vec![T::default(); self.from_shift];
        all.extend_from_slice(numbers);
        all
    }

    /// Calls `run` on every rung with an output of that many numbers; all must agree on the bits,
    /// which `bits` shows, unless `run` says that they mean nothing.
    fn compare<T: Copy, B: PartialEq + Debug>(
        &self,
        count: usize,
        filler: T,
        bits: impl Fn(T) -> B,
        run: impl Fn(&Kernels, &mut [T]) -> bool,
    ) {
        let mut first: Option<(bool, Vec<B>)> = None;
        for kernels in rungs() {
            let start = MARGIN + self.to_shift;
            let mut memory = vec![filler; start + count + MARGIN];
            let is_good = run(&kernels, &mut memory[start..start + count]);
            let beside = memory[..start].iter().chain(&memory[start + count..]);
            assert!(beside.copied().all(|number| bits(number) == bits(filler)), "wrote beside");
            let found: Vec<B> = memory[start..start + count].iter().map(|n| bits(*n)).collect();
            match &first {
                None => first = Some((is_good, found)),
                Some((is_first_good, expected)) => {
                    assert_eq!(is_good, *is_first_good);
                    assert!(!is_good || found == *expected, "{found:?} is not {expected:?}");
                }
            }
        }
    }

    fn crc32c(&self) {
        let bytes = self.shifted(&self.bytes(self.length));
        let bytes = &bytes[self.from_shift..];
        let middle = self.length * self.to_shift / 16;
        let whole = Kernels::portable().crc32c.call(0, bytes);
        for kernels in rungs() {
            let crc = kernels.crc32c;
            assert_eq!(crc.call(0, bytes), whole);
            assert_eq!(crc.call(crc.call(0, &bytes[..middle]), &bytes[middle..]), whole);
        }
    }

    fn f16_to_f32(&self) {
        let from = self.shifted(&self.halves(self.length));
        let from = &from[self.from_shift..];
        self.compare(self.length, 7.5, f32::to_bits, |kernels, to| {
            kernels.f16_to_f32.call(from, to);
            true
        });
    }

    fn f32_to_f16(&self) {
        let from = self.shifted(&self.floats(self.length));
        let from = &from[self.from_shift..];
        self.compare(
            self.length,
            0xDEAD,
            |half: u16| half,
            |kernels, to| {
                kernels.f32_to_f16.call(from, to);
                true
            },
        );
    }

    /// Values in a row, rows, scales of all.
    fn rows(&self) -> (usize, usize, usize) {
        let row = 1 + (self.length % 300);
        let rows = self.length / 300 + 1;
        (row, rows, rows * row.div_ceil(Q8_GROUP))
    }

    fn q8_pack(&self) {
        let (row, rows, scales) = self.rows();
        let from = self.shifted(&self.halves(row * rows));
        let from = &from[self.from_shift..];
        self.compare(
            row * rows,
            0x5A,
            |code: i8| code,
            |kernels, codes| kernels.q8_pack.call(from, row, &mut vec![0; scales], codes),
        );
        self.compare(
            scales,
            0xDEAD,
            |half: u16| half,
            |kernels, scales| kernels.q8_pack.call(from, row, scales, &mut vec![0; row * rows]),
        );
    }

    fn q8_unpack(&self) {
        let (row, rows, scales) = self.rows();
        let scales = self.halves(scales);
        let codes: Vec<i8> = self.bytes(row * rows).iter().map(|byte| byte.cast_signed()).collect();
        let codes = self.shifted(&codes);
        let codes = &codes[self.from_shift..];
        self.compare(
            row * rows,
            0xDEAD,
            |half: u16| half,
            |kernels, values| {
                kernels.q8_unpack.call(&scales, codes, row, values);
                true
            },
        );
    }

    fn transpose(&self) {
        let (rows, columns) = (1 + self.length % 40, 1 + self.length / 40);
        let (from_stride, to_stride) = (columns + self.from_shift, rows + self.to_shift);
        let matrix = Matrix { rows, columns, from_stride, to_stride };
        let from = self.shifted(&self.halves((rows - 1) * from_stride + columns));
        let from = &from[self.from_shift..];
        let count = (columns - 1) * to_stride + rows;
        self.compare(
            count,
            0xDEAD,
            |half: u16| half,
            |kernels, to| {
                kernels.transpose.call(&matrix, from, to);
                true
            },
        );
    }

    fn lattice_pack(&self) {
        let from = self.shifted(&self.halves(self.length));
        let from = &from[self.from_shift..];
        let steps = RowSteps::Even(self.step());
        self.compare(
            self.length,
            0x5A5A,
            |code: i16| code,
            |kernels, codes| kernels.lattice_pack.call(from, steps, codes),
        );
    }

    fn lattice_unpack(&self) {
        let codes: Vec<i16> = self.halves(self.length).iter().map(|h| h.cast_signed()).collect();
        let codes = self.shifted(&codes);
        let codes = &codes[self.from_shift..];
        let steps = RowSteps::Even(self.step());
        self.compare(
            self.length,
            0xDEAD,
            |half: u16| half,
            |kernels, values| {
                kernels.lattice_unpack.call(codes, steps, values);
                true
            },
        );
    }

    fn sums(&self) {
        let residuals = self.shifted(&self.bytes(self.length));
        let residuals = &residuals[self.from_shift..];
        let base = self.halves(1)[0].cast_signed();
        self.compare(
            self.length,
            0x5A5A,
            |code: i16| code,
            |kernels, codes| {
                kernels.sums.offsets(residuals, base, codes);
                true
            },
        );
        self.compare(
            self.length,
            0x5A5A,
            |code: i16| code,
            |kernels, codes| {
                kernels.sums.running(residuals, base, codes);
                true
            },
        );
    }
}
