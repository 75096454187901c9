//! CacheGen's arithmetic on x86-64: the portable loops with wider vectors.

use super::decode::{self, CacheGenDecode, Lanes};
use super::encode::{self, CacheGenEncode, Ends, STREAM_BYTES_MAX};
use super::quantize::{self, CacheGenQuantize, CodeSteps};
use super::{Cdfs, LANES};
use crate::kernel::{CpuFlags, Kernels};

/// Replaces the entries for which the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    if flags.contains(CpuFlags::AVX2) {
        table.cachegen_decode = CacheGenDecode { isa: "avx2", run: decode_avx2 };
        table.cachegen_encode = CacheGenEncode { isa: "avx2", run: encode_avx2 };
        table.cachegen_quantize = CacheGenQuantize { isa: "avx2", run: quantize_avx2 };
    }
    if flags.contains(CpuFlags::AVX512) {
        table.cachegen_decode = CacheGenDecode { isa: "avx512", run: decode_avx512 };
        table.cachegen_encode = CacheGenEncode { isa: "avx512", run: encode_avx512 };
    }
    table
}

/// Needs AVX2.
#[target_feature(enable = "avx2")]
fn decode_avx2(
    bytes: &[u8],
    lanes: &mut Lanes,
    cdfs: &Cdfs,
    symbols: u16,
    codes: &mut [[i16; LANES]],
) {
    decode::run(bytes, lanes, cdfs, symbols, codes);
}

/// Needs AVX-512 F, CD, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512cd,avx512bw,avx512dq,avx512vl")]
fn decode_avx512(
    bytes: &[u8],
    lanes: &mut Lanes,
    cdfs: &Cdfs,
    symbols: u16,
    codes: &mut [[i16; LANES]],
) {
    decode::run(bytes, lanes, cdfs, symbols, codes);
}

/// Needs AVX2.
#[target_feature(enable = "avx2")]
fn encode_avx2(
    symbols: &[[u8; LANES]],
    cdfs: &Cdfs,
    streams: &mut [[u8; STREAM_BYTES_MAX]; LANES],
    ends: &mut Ends,
) {
    encode::run(symbols, cdfs, streams, ends);
}

/// Needs AVX-512 F, CD, BW, DQ and VL.
#[target_feature(enable = "avx512f,avx512cd,avx512bw,avx512dq,avx512vl")]
fn encode_avx512(
    symbols: &[[u8; LANES]],
    cdfs: &Cdfs,
    streams: &mut [[u8; STREAM_BYTES_MAX]; LANES],
    ends: &mut Ends,
) {
    encode::run(symbols, cdfs, streams, ends);
}

/// Needs AVX2, and equal lengths.
#[target_feature(enable = "avx2")]
fn quantize_avx2(values: &[u16], steps: &CodeSteps, symbols: &mut [u8]) {
    quantize::run(values, steps, symbols);
}
