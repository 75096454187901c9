//! The entries of the table: each checks its lengths, then makes one unsafe call.
//!
//! The functions behind them take their lengths from these checks alone. `isa` names the rung, for
//! reports.

/// CRC-32C (Castagnoli), as iSCSI and ext4 use it.
#[derive(Clone, Copy, Debug)]
pub struct Crc32c {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(u32, &[u8]) -> u32,
}

impl Crc32c {
    /// Continues the checksum `state` over `bytes`; 0 starts one.
    pub fn call(&self, state: u32, bytes: &[u8]) -> u32 {
        // SAFETY: any length is allowed; the flags given to `Kernels::select` promise the CPU.
        unsafe { (self.run)(state, bytes) }
    }
}

/// F16 bit patterns to F32; exact, signalling NaNs become quiet.
#[derive(Clone, Copy, Debug)]
pub struct F16ToF32 {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &mut [f32]),
}

impl F16ToF32 {
    /// Converts all of `from` into `to`, which has the same length.
    pub fn call(&self, from: &[u16], to: &mut [f32]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.run)(from, to) }
    }
}

/// F32 to F16 bit patterns, rounded to nearest, ties to even; NaNs become quiet and keep the top of
/// their payload.
#[derive(Clone, Copy, Debug)]
pub struct F32ToF16 {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[f32], &mut [u16]),
}

impl F32ToF16 {
    /// Converts all of `from` into `to`, which has the same length.
    pub fn call(&self, from: &[f32], to: &mut [u16]) {
        assert_eq!(from.len(), to.len());
        // SAFETY: equal lengths, just checked; the flags given to `Kernels::select` promise the
        // CPU.
        unsafe { (self.run)(from, to) }
    }
}

/// Values that share one scale in the 8-bit format. A row that is longer is split into groups of
/// this many, the last one possibly shorter.
pub const Q8_GROUP: usize = 64;

/// F16 rows to 8-bit codes and one scale word a group; `codec::q8` defines the format.
#[derive(Clone, Copy, Debug)]
pub struct Q8Pack {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], usize, &mut [u16], &mut [i8]) -> bool,
}

impl Q8Pack {
    /// Packs rows of `row_values` values each. `codes` has one entry a value, `scales` one a group.
    /// False when a value is not finite; the outputs then hold nothing useful.
    pub fn call(
        &self,
        values: &[u16],
        row_values: usize,
        scales: &mut [u16],
        codes: &mut [i8],
    ) -> bool {
        check_rows(values.len(), row_values, scales.len(), codes.len());
        // SAFETY: whole rows and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(values, row_values, scales, codes) }
    }
}

/// 8-bit codes and scale words back to F16 rows.
#[derive(Clone, Copy, Debug)]
pub struct Q8Unpack {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&[u16], &[i8], usize, &mut [u16]),
}

impl Q8Unpack {
    /// Unpacks rows of `row_values` values each; lengths as for [`Q8Pack::call`]. Any scale word
    /// and any code is safe; words that [`Q8Pack`] never writes give values without meaning.
    pub fn call(&self, scales: &[u16], codes: &[i8], row_values: usize, values: &mut [u16]) {
        check_rows(values.len(), row_values, scales.len(), codes.len());
        // SAFETY: whole rows and matching lengths, just checked; the flags given to
        // `Kernels::select` promise the CPU.
        unsafe { (self.run)(scales, codes, row_values, values) }
    }
}

fn check_rows(values: usize, row_values: usize, scales: usize, codes: usize) {
    assert!(row_values > 0);
    assert!(values.is_multiple_of(row_values));
    assert_eq!(codes, values);
    assert_eq!(scales, values / row_values * row_values.div_ceil(Q8_GROUP));
}

/// A matrix that is to lie by columns afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Matrix {
    /// Rows before, columns after.
    pub rows: usize,
    /// Columns before, rows after.
    pub columns: usize,
    /// Values from the beginning of one row to that of the next, before.
    pub from_stride: usize,
    /// The same, after.
    pub to_stride: usize,
}

/// Moves a matrix of 16-bit values to where it lies by columns.
#[derive(Clone, Copy, Debug)]
pub struct Transpose {
    /// The rung this entry comes from.
    pub isa: &'static str,
    pub(super) run: unsafe fn(&Matrix, &[u16], &mut [u16]),
}

impl Transpose {
    /// Value `column` of row `row` goes to place `row` of row `column`. What lies between the rows
    /// of `to` stays as it was.
    pub fn call(&self, matrix: &Matrix, from: &[u16], to: &mut [u16]) {
        let &Matrix { rows, columns, from_stride, to_stride } = matrix;
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(columns <= from_stride);
        assert!(rows <= to_stride);
        assert!((rows - 1).saturating_mul(from_stride).saturating_add(columns) <= from.len());
        assert!((columns - 1).saturating_mul(to_stride).saturating_add(rows) <= to.len());
        // SAFETY: neither is empty and every row of both ends inside its slice, just checked; the
        // flags given to `Kernels::select` promise the CPU.
        unsafe { (self.run)(matrix, from, to) }
    }
}
