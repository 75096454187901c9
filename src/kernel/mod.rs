//! The one SIMD seam: a table of typed functions, chosen once at open and owned by the handle.
//!
//! `portable` is the oracle of all others: each entry gives its result to the bit, so that a chunk
//! packed on one machine unpacks alike on every other. `typed` holds the entries, which check
//! lengths; only then is anything unsafe called. `cpu` says what the machine can do. `x86_64` and
//! `aarch64` declare the hand-written code of `asm/` and hold intrinsics. `huffman` and `lattice`
//! hold the same for codecs that code multiples of steps, `cachegen` for the codec of that name.
//! `opencl` holds what runs on accelerators. There is no global state: two handles may use
//! different tables.
//!
//! Rounding is to nearest with ties to even, and subnormals are not flushed: the floating-point
//! control word must be as the system sets it up.

pub mod cachegen;
pub mod cpu;
pub mod huffman;
pub mod kv4;
pub mod lattice;
pub mod portable;
mod typed;

#[cfg_attr(all(target_arch = "x86_64", target_feature = "sse2"), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", target_feature = "neon"), path = "aarch64.rs")]
#[cfg_attr(
    not(any(
        all(target_arch = "x86_64", target_feature = "sse2"),
        all(target_arch = "aarch64", target_feature = "neon")
    )),
    path = "no_arch.rs"
)]
mod arch;

#[cfg(test)]
#[path = "../../tests/kernel_support/mod.rs"]
pub(crate) mod support;
#[cfg(test)]
mod tests;

pub use cachegen::{CacheGenDecode, CacheGenEncode, CacheGenQuantize};
pub use cpu::CpuFlags;
pub use huffman::{HuffmanDecode, HuffmanEncode};
pub use kv4::{Kv4Channels, Kv4Decode, Kv4Encode, Kv4Row, Kv4Span, Kv4Spread};
pub use kv4::{Kv4VDecode, Kv4VEncode};
pub use lattice::{LatticePack, LatticeUnpack, Sums};
pub use typed::{Crc32c, F16ToF32, F32ToF16, Matrix, Q8_GROUP, Q8Pack, Q8Unpack, Transpose};

#[cfg(feature = "infer")]
pub mod math;
#[cfg(feature = "opencl")]
pub mod opencl;

/// The chosen functions.
#[derive(Clone, Copy, Debug)]
pub struct Kernels {
    /// CacheGen's streams to symbols.
    pub cachegen_decode: CacheGenDecode,
    /// Symbols to CacheGen's streams.
    pub cachegen_encode: CacheGenEncode,
    /// F16 values to CacheGen's symbols.
    pub cachegen_quantize: CacheGenQuantize,
    /// Checksum of everything that leaves memory.
    pub crc32c: Crc32c,
    /// F16 bit patterns to F32.
    pub f16_to_f32: F16ToF32,
    /// F32 to F16 bit patterns.
    pub f32_to_f16: F32ToF16,
    /// Prefix codes to rows.
    pub huffman_decode: HuffmanDecode,
    /// Rows to prefix codes.
    pub huffman_encode: HuffmanEncode,
    /// F16 values to multiples of steps.
    pub lattice_pack: LatticePack,
    /// Multiples of steps to F16 values.
    pub lattice_unpack: LatticeUnpack,
    /// F16 rows to 8-bit codes.
    pub q8_pack: Q8Pack,
    /// 8-bit codes to F16 rows.
    pub q8_unpack: Q8Unpack,
    /// Residuals to what they are differences of.
    pub sums: Sums,
    /// Rows to columns.
    pub transpose: Transpose,
    /// Ends of K's channels.
    pub kv4_spread: Kv4Spread,
    /// K to 4 to 6-bit codes.
    pub kv4_encode: Kv4Encode,
    /// 4 to 6-bit codes to K.
    pub kv4_decode: Kv4Decode,
    /// V rows to 4-bit codes.
    pub kv4_v_encode: Kv4VEncode,
    /// 4-bit codes to V rows.
    pub kv4_v_decode: Kv4VDecode,
}

impl Kernels {
    /// Plain Rust only.
    pub const fn portable() -> Kernels {
        const ISA: &str = "portable";
        Kernels {
            cachegen_decode: CacheGenDecode::PORTABLE,
            cachegen_encode: CacheGenEncode::PORTABLE,
            cachegen_quantize: CacheGenQuantize::PORTABLE,
            crc32c: Crc32c { isa: ISA, run: portable::crc32c },
            f16_to_f32: F16ToF32 { isa: ISA, run: portable::f16_to_f32 },
            f32_to_f16: F32ToF16 { isa: ISA, run: portable::f32_to_f16 },
            huffman_decode: HuffmanDecode::PORTABLE,
            huffman_encode: HuffmanEncode::PORTABLE,
            lattice_pack: LatticePack::PORTABLE,
            lattice_unpack: LatticeUnpack::PORTABLE,
            q8_pack: Q8Pack { isa: ISA, run: portable::q8_pack },
            q8_unpack: Q8Unpack { isa: ISA, run: portable::q8_unpack },
            sums: Sums::PORTABLE,
            transpose: Transpose { isa: ISA, run: portable::transpose },
            kv4_spread: Kv4Spread { isa: ISA, run: kv4::spread },
            kv4_encode: Kv4Encode { isa: ISA, run: kv4::encode },
            kv4_decode: Kv4Decode { isa: ISA, run: kv4::decode },
            kv4_v_encode: Kv4VEncode { isa: ISA, run: kv4::v_encode },
            kv4_v_decode: Kv4VDecode { isa: ISA, run: kv4::v_decode },
        }
    }

    /// The fastest functions that the flags allow. The flags are a promise: they come from
    /// [`CpuFlags::detect`] or [`CpuFlags::from_hwcap`] on this very machine, possibly masked. With
    /// others a call may end in an illegal instruction.
    pub const fn select(flags: CpuFlags) -> Kernels {
        let table = arch::improve(Kernels::portable(), flags);
        let table = cachegen::improve(table, flags);
        lattice::improve(huffman::improve(table, flags), flags)
    }
}
