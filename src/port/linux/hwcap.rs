//! What the kernel says about the CPU's instruction sets, for the kernel table to interpret. Made
//! for aarch64: on x86-64 the C library puts words of its own there, and `cpuid` tells all.

/// The raw words `AT_HWCAP` and `AT_HWCAP2` of the auxiliary vector; 0 where the kernel gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HardwareCaps {
    /// `AT_HWCAP`.
    pub hwcap: u64,
    /// `AT_HWCAP2`.
    pub hwcap2: u64,
}

/// Reads them; costs no system call.
#[expect(clippy::useless_conversion, reason = "c_ulong is narrower on 32-bit targets")]
pub fn hardware_caps() -> HardwareCaps {
    // SAFETY: getauxval only looks a key up.
    let hwcap = unsafe { libc::getauxval(libc::AT_HWCAP) };
    // SAFETY: as above.
    let hwcap2 = unsafe { libc::getauxval(libc::AT_HWCAP2) };
    HardwareCaps { hwcap: u64::from(hwcap), hwcap2: u64::from(hwcap2) }
}
