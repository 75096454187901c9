//! Helpers of the kernel tests: buffers between forbidden pages, and a call checker that watches
//! the calling convention. They are compiled into the library's own tests, because they need its
//! raw functions.

pub(crate) mod arithmetic;
pub(crate) mod checked_call;
pub(crate) mod guard;

use crate::kernel::{CpuFlags, Kernels};
use std::vec::Vec;

/// Every rung that this machine can run.
pub(crate) fn rungs() -> Vec<(&'static str, Kernels)> {
    let own = available();
    CpuFlags::LADDER.iter().map(|&(name, mask)| (name, Kernels::select(own & mask))).collect()
}

/// What this machine can do.
pub(crate) fn available() -> CpuFlags {
    #[cfg(all(target_arch = "aarch64", target_os = "linux"))]
    // SAFETY: the call only reads what the system gave the process.
    return CpuFlags::detect() | CpuFlags::from_hwcap(unsafe { libc::getauxval(libc::AT_HWCAP) });
    #[cfg(not(all(target_arch = "aarch64", target_os = "linux")))]
    return CpuFlags::detect();
}

/// A small generator of test values: xorshift with a multiplication (xorshift64*).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed.max(1))
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub(crate) fn byte(&mut self) -> u8 {
        self.next().to_be_bytes()[0]
    }

    pub(crate) fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.byte(), self.byte()])
    }

    pub(crate) fn u32(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}
