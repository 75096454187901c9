//! Reading codes on aarch64: declarations of `asm/aarch64/`; compiled only where that is assembled.

use super::decode::{HuffmanDecode, LANES, Lane};
use crate::kernel::{CpuFlags, Kernels};

/// Replaces the entry if the flags allow something faster.
pub const fn improve(mut table: Kernels, flags: CpuFlags) -> Kernels {
    if flags.contains(CpuFlags::NEON) {
        table.huffman_decode = HuffmanDecode { isa: "asm", run: run_asm };
    }
    table
}

unsafe extern "C" {
    /// cbindgen:ignore
    pub(super) fn mz_huffman_run(bytes: *const u8, last: usize, lanes: *mut Lane, symbols: *mut u8);
}

/// # Safety
///
/// There are eight bytes, and behind each lane's end there is room in `symbols`
/// for what is read past it.
unsafe fn run_asm(bytes: &[u8], lanes: &mut [Lane; LANES], symbols: &mut [u8]) {
    let (lanes, symbols) = (lanes.as_mut_ptr(), symbols.as_mut_ptr());
    // SAFETY: pointers and lengths are of these slices; the caller vouches for the rest.
    unsafe { mz_huffman_run(bytes.as_ptr(), bytes.len() - 8, lanes, symbols) }
}
