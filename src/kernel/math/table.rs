//! The table of compiled loops and its checked, typed methods.

use super::kind::WeightType;
use super::tile::TileJob;
use super::vector::Lanes8;
use crate::kernel::CpuFlags;

/// Instruction sets for which the loops are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Isa {
    /// Plain code for any CPU.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// NEON, the baseline of aarch64.
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// All that this build knows, best last.
    pub const ALL: &'static [Isa] = &[
        Isa::Portable,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon,
    ];

    /// What the CPU must have for it.
    pub const fn needs(self) -> CpuFlags {
        match self {
            Isa::Portable => CpuFlags::empty(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => CpuFlags::AVX2.union(CpuFlags::FMA).union(CpuFlags::F16C),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Isa::Avx2.needs().union(CpuFlags::AVX512),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => CpuFlags::NEON,
        }
    }

    /// Whether this CPU has it.
    pub fn is_available(self) -> bool {
        CpuFlags::detect().contains(self.needs())
    }
}

type Dequantise = unsafe fn(WeightType, *const u8, *mut f32, usize);
type DecodeDots = unsafe fn(WeightType, *const u8, *const f32, usize, *mut f32, usize);
type Tile = unsafe fn(&TileJob);
type Dots = unsafe fn(*const f32, *const f32, usize, *mut f32, usize);
type DotsF16 = unsafe fn(*const u16, *const f32, usize, *mut f32, usize);
type AddRowsF16 = unsafe fn(*const u16, *const f32, usize, *mut f32, usize);
type SoftmaxColumns = unsafe fn(*mut f32, usize, usize, *mut f32, *mut f32, *mut f32);
type SoftmaxRow = unsafe fn(*mut f32, usize, f32) -> (f32, f32);
type Swiglu = unsafe fn(*mut f32, *const f32, usize);

/// The chosen loops.
#[derive(Clone, Copy, Debug)]
pub struct MathKernels {
    isa: Isa,
    dequantise: Dequantise,
    decode_dots: DecodeDots,
    tile: Tile,
    dots: Dots,
    dots_f16: DotsF16,
    add_rows_f16: AddRowsF16,
    softmax_columns: SoftmaxColumns,
    softmax_row: SoftmaxRow,
    swiglu: Swiglu,
}

/// Compiles every loop for one instruction set, with its block of rows and registers for `tile`.
macro_rules! instance {
    ($name:ident, $isa:expr, $vector:ty, $rows:literal, $registers:literal, #[$feature:meta]) => {
        mod $name {
            use super::super::{dequant, rows, softmax, tile};
            use super::{Isa, MathKernels, TileJob, WeightType};

            pub const TABLE: MathKernels = MathKernels {
                isa: $isa,
                dequantise,
                decode_dots,
                tile,
                dots,
                dots_f16,
                add_rows_f16,
                softmax_columns,
                softmax_row,
                swiglu,
            };

            instance! { @functions #[$feature]
                dequantise(kind: WeightType, from: *const u8, to: *mut f32, blocks: usize) -> ()
                    = dequant::dequantise::<$vector>;
                decode_dots(kind: WeightType, from: *const u8, x: *const f32, blocks: usize,
                    y: *mut f32, rows: usize) -> () = dequant::decode_dots::<$vector>;
                tile(job: &TileJob) -> () = tile::tile::<$vector, $rows, $registers>;
                dots(w: *const f32, x: *const f32, depth: usize, y: *mut f32, rows: usize) -> ()
                    = rows::dots::<$vector>;
                dots_f16(w: *const u16, x: *const f32, depth: usize, y: *mut f32, rows: usize) -> ()
                    = rows::dots_f16::<$vector>;
                add_rows_f16(r: *const u16, f: *const f32, n: usize, y: *mut f32, d: usize) -> ()
                    = rows::add_rows_f16::<$vector>;
                softmax_columns(s: *mut f32, keys: usize, width: usize, m: *mut f32, t: *mut f32,
                    r: *mut f32) -> () = softmax::softmax_columns::<$vector>;
                softmax_row(s: *mut f32, keys: usize, before: f32) -> (f32, f32)
                    = softmax::softmax_row::<$vector>;
                swiglu(gate: *mut f32, up: *const f32, count: usize) -> ()
                    = softmax::swiglu::<$vector>;
            }
        }
    };
    (@functions #[$feature:meta]
        $($name:ident($($arg:ident: $type:ty),*) -> $out:ty = $body:expr;)*) => {
        $(
            /// # Safety
            ///
            /// As for the body it compiles.
            #[$feature]
            unsafe fn $name($($arg: $type),*) -> $out {
                // SAFETY: this function is compiled for the instruction set; the rest is passed on.
                unsafe { $body($($arg),*) }
            }
        )*
    };
}

instance!(portable, Isa::Portable, super::Lanes8, 4, 2, #[inline(never)]);
#[cfg(target_arch = "x86_64")]
instance!(
    avx2,
    Isa::Avx2,
    super::super::x86::Avx2,
    6,
    2,
    #[target_feature(enable = "avx2,fma,f16c")]
);
#[cfg(target_arch = "x86_64")]
instance!(
    avx512,
    Isa::Avx512,
    super::super::x86::Avx512,
    12,
    2,
    #[target_feature(enable = "avx2,fma,f16c,avx512f")]
);
#[cfg(target_arch = "aarch64")]
instance!(neon, Isa::Neon, super::super::neon::Neon, 6, 4, #[target_feature(enable = "neon")]);

/// A matrix of single-precision values addressed by two strides.
#[derive(Clone, Copy, Debug)]
pub struct Strided<'a> {
    /// Where the values lie.
    pub values: &'a [f32],
    /// Rows of the product.
    pub rows: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// Distance between rows.
    pub row_stride: usize,
    /// Distance between terms.
    pub depth_stride: usize,
}

impl<'a> Strided<'a> {
    /// Rows of `depth` values, one after the other.
    pub fn rows(values: &'a [f32], depth: usize) -> Self {
        let rows = values.len().checked_div(depth).unwrap_or(0);
        Strided { values, rows, depth, row_stride: depth, depth_stride: 1 }
    }

    /// The transpose of rows of `width` values: its rows are their columns.
    pub fn columns(values: &'a [f32], width: usize) -> Self {
        let depth = values.len().checked_div(width).unwrap_or(0);
        Strided { values, rows: width, depth, row_stride: 1, depth_stride: width }
    }

    fn is_in_bounds(&self) -> bool {
        if self.rows == 0 || self.depth == 0 {
            return true;
        }
        let last_row = (self.rows - 1).checked_mul(self.row_stride);
        let last_term = (self.depth - 1).checked_mul(self.depth_stride);
        match (last_row, last_term) {
            (Some(row), Some(term)) => {
                row.checked_add(term).is_some_and(|last| last < self.values.len())
            }
            _ => false,
        }
    }
}

/// Panel widths are multiples of this (or 1, which the row loops take).
pub const WIDTH_STEP: usize = 16;

impl MathKernels {
    /// The table of an instruction set; `None` when this CPU lacks it.
    pub fn new(isa: Isa) -> Option<Self> {
        if !isa.is_available() {
            return None;
        }
        Some(match isa {
            Isa::Portable => portable::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => avx2::TABLE,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => avx512::TABLE,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => neon::TABLE,
        })
    }

    /// The best table that the flags allow and this CPU has.
    pub fn select(flags: CpuFlags) -> Self {
        let allowed = |isa: &&Isa| flags.contains(isa.needs());
        let mut tables = Isa::ALL.iter().filter(allowed).filter_map(|isa| Self::new(*isa));
        tables.next_back().unwrap_or(portable::TABLE)
    }

    /// Which instruction set it uses.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Decodes whole blocks: `bytes` holds exactly the blocks of `values.len()` values.
    pub fn dequantise(&self, kind: WeightType, bytes: &[u8], values: &mut [f32]) {
        assert_eq!(kind.bytes(values.len()), Some(bytes.len()));
        let blocks = values.len() / kind.block_values();
        // SAFETY: both lengths are exactly `blocks` blocks (asserted); borrows exclude overlap; the
        // table was made for an instruction set that the CPU has (`new`).
        unsafe { (self.dequantise)(kind, bytes.as_ptr(), values.as_mut_ptr(), blocks) }
    }

    /// `y[row] = decoded row . x`: `bytes` holds exactly `y.len()` rows of `x.len()` values.
    pub fn decode_dots(&self, kind: WeightType, bytes: &[u8], x: &[f32], y: &mut [f32]) {
        let row_bytes = kind.bytes(x.len());
        assert_eq!(row_bytes.and_then(|row| row.checked_mul(y.len())), Some(bytes.len()));
        let blocks = x.len() / kind.block_values();
        let (from, x, rows) = (bytes.as_ptr(), x.as_ptr(), y.len());
        // SAFETY: lengths are exactly `rows` rows of `blocks` blocks (asserted); borrows exclude
        // overlap; the CPU has the instruction set (`new`).
        unsafe { (self.decode_dots)(kind, from, x, blocks, y.as_mut_ptr(), rows) }
    }

    /// `y[row][lane] (+)= sum of weight(row, d) * x[d][lane]` over panels of `width` lanes.
    pub fn tile(
        &self,
        weights: Strided<'_>,
        x: &[f32],
        y: &mut [f32],
        width: usize,
        accumulate: bool,
    ) {
        assert!(weights.is_in_bounds());
        assert!(width.is_multiple_of(WIDTH_STEP));
        assert_eq!(weights.depth.checked_mul(width), Some(x.len()));
        assert_eq!(weights.rows.checked_mul(width), Some(y.len()));
        let job = TileJob {
            weights: weights.values.as_ptr(),
            row_stride: weights.row_stride,
            depth_stride: weights.depth_stride,
            rows: weights.rows,
            depth: weights.depth,
            x: x.as_ptr(),
            y: y.as_mut_ptr(),
            width,
            accumulate,
        };
        // SAFETY: operands are in bounds and `width` a multiple of 16, hence of any LANES
        // (asserted); borrows exclude overlap; the CPU has the instruction set (`new`).
        unsafe { (self.tile)(&job) }
    }

    /// `y[row] = weights[row] . x`, with rows of `x.len()` values.
    pub fn dots(&self, weights: &[f32], x: &[f32], y: &mut [f32]) {
        assert_eq!(y.len().checked_mul(x.len()), Some(weights.len()));
        // SAFETY: lengths asserted; borrows exclude overlap; the CPU has the instruction set.
        unsafe { (self.dots)(weights.as_ptr(), x.as_ptr(), x.len(), y.as_mut_ptr(), y.len()) }
    }

    /// The same for half-precision rows.
    pub fn dots_f16(&self, rows: &[u16], x: &[f32], y: &mut [f32]) {
        assert_eq!(y.len().checked_mul(x.len()), Some(rows.len()));
        // SAFETY: lengths asserted; borrows exclude overlap; the CPU has the instruction set.
        unsafe { (self.dots_f16)(rows.as_ptr(), x.as_ptr(), x.len(), y.as_mut_ptr(), y.len()) }
    }

    /// `y += sum of factors[row] * rows[row]`, with half-precision rows of `y.len()` values.
    pub fn add_rows_f16(&self, rows: &[u16], factors: &[f32], y: &mut [f32]) {
        assert_eq!(y.len().checked_mul(factors.len()), Some(rows.len()));
        let (r, f, count) = (rows.as_ptr(), factors.as_ptr(), factors.len());
        // SAFETY: lengths asserted; borrows exclude overlap; the CPU has the instruction set.
        unsafe { (self.add_rows_f16)(r, f, count, y.as_mut_ptr(), y.len()) }
    }

    /// One step of the online softmax down the lanes of a panel of scores, which become factors.
    /// `rescale` receives what to multiply earlier sums by.
    pub fn softmax_columns(
        &self,
        scores: &mut [f32],
        largest: &mut [f32],
        total: &mut [f32],
        rescale: &mut [f32],
    ) {
        let width = largest.len();
        assert!(width > 0);
        assert!(width.is_multiple_of(WIDTH_STEP));
        assert!(scores.len().is_multiple_of(width));
        assert_eq!(total.len(), width);
        assert_eq!(rescale.len(), width);
        let keys = scores.len() / width;
        let (m, t, r) = (largest.as_mut_ptr(), total.as_mut_ptr(), rescale.as_mut_ptr());
        // SAFETY: lengths asserted, `width` a multiple of 16, hence of any LANES; borrows exclude
        // overlap; the CPU has the instruction set.
        unsafe { (self.softmax_columns)(scores.as_mut_ptr(), keys, width, m, t, r) }
    }

    /// The same for one query whose scores lie side by side. Returns the new largest score and the
    /// sum of the factors.
    pub fn softmax_row(&self, scores: &mut [f32], largest: f32) -> (f32, f32) {
        // SAFETY: the slice is valid for its length; the CPU has the instruction set.
        unsafe { (self.softmax_row)(scores.as_mut_ptr(), scores.len(), largest) }
    }

    /// `gate = silu(gate) * up`.
    pub fn swiglu(&self, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len());
        // SAFETY: lengths asserted; borrows exclude overlap; the CPU has the instruction set.
        unsafe { (self.swiglu)(gate.as_mut_ptr(), up.as_ptr(), gate.len()) }
    }
}
