//! What the CPU can do, as flags that [`Kernels::select`](super::Kernels::select) reads.
//!
//! On x86-64 [`CpuFlags::detect`] asks the CPU itself. On aarch64 NEON is the baseline; what goes
//! beyond it only the system knows, so the port passes its HWCAP word to [`CpuFlags::from_hwcap`].
//! A caller lowers the rung by intersecting with a mask of [`CpuFlags::LADDER`].

bitflags::bitflags! {
    /// Instruction sets that kernels use. A flag is set only where the system saves the registers
    /// that go with it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct CpuFlags: u32 {
        /// x86-64: SSE4.2, with the CRC-32C instruction.
        const SSE42 = 1 << 0;
        /// x86-64: carry-less multiplication.
        const PCLMUL = 1 << 1;
        /// x86-64: AVX and conversions between F16 and F32.
        const F16C = 1 << 2;
        /// x86-64: AVX2.
        const AVX2 = 1 << 3;
        /// x86-64: fused multiply-add.
        const FMA = 1 << 4;
        /// x86-64: AVX-512 F, CD, BW, DQ and VL.
        const AVX512 = 1 << 5;
        /// x86-64: BMI2, with shifts that leave the flags alone.
        const BMI2 = 1 << 6;
        /// x86-64: AVX-512 VBMI, with look-ups of bytes.
        const AVX512_VBMI = 1 << 7;
        /// x86-64: carry-less multiplication of whole AVX-512 registers.
        const VPCLMUL = 1 << 8;
        /// aarch64: NEON.
        const NEON = 1 << 16;
        /// aarch64: the CRC-32C instruction.
        const CRC32 = 1 << 17;
        /// aarch64: 64-bit carry-less multiplication.
        const PMULL = 1 << 18;
        /// aarch64: half-precision arithmetic in NEON.
        const FP16 = 1 << 19;
        /// aarch64: 8-bit dot products.
        const DOTPROD = 1 << 20;
    }
}

/// What the first processors with AVX-512 do not have.
#[cfg(target_arch = "x86_64")]
const BEYOND_AVX512: CpuFlags = CpuFlags::AVX512_VBMI.union(CpuFlags::VPCLMUL);

impl CpuFlags {
    /// The rungs of this architecture from the lowest to the highest, each with the flags it may
    /// use; the last one is everything.
    #[cfg(target_arch = "x86_64")]
    pub const LADDER: &'static [(&'static str, CpuFlags)] = &[
        ("portable", CpuFlags::empty()),
        ("sse42", CpuFlags::SSE42.union(CpuFlags::PCLMUL)),
        ("f16c", CpuFlags::SSE42.union(CpuFlags::PCLMUL).union(CpuFlags::F16C)),
        ("avx2", CpuFlags::all().difference(CpuFlags::AVX512.union(BEYOND_AVX512))),
        ("avx512", CpuFlags::all().difference(BEYOND_AVX512)),
        ("vbmi", CpuFlags::all()),
    ];

    /// The rungs of this architecture from the lowest to the highest, each with the flags it may
    /// use; the last one is everything.
    #[cfg(target_arch = "aarch64")]
    pub const LADDER: &'static [(&'static str, CpuFlags)] = &[
        ("portable", CpuFlags::empty()),
        ("neon", CpuFlags::NEON),
        ("crc32", CpuFlags::NEON.union(CpuFlags::CRC32).union(CpuFlags::PMULL)),
        ("fp16", CpuFlags::all().difference(CpuFlags::DOTPROD)),
        ("dotprod", CpuFlags::all()),
    ];

    /// The only rung of an architecture without kernels of its own.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    pub const LADDER: &'static [(&'static str, CpuFlags)] = &[("portable", CpuFlags::all())];

    /// What can be found out without the system's help: all of it on x86-64, what the program was
    /// compiled for on aarch64.
    pub fn detect() -> CpuFlags {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        return x86_64::detect();
        #[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
        return compiled_for();
    }

    /// aarch64 flags from `getauxval(AT_HWCAP)` of Linux; the word must be this machine's.
    pub const fn from_hwcap(word: u64) -> CpuFlags {
        const BITS: [(u32, CpuFlags); 5] = [
            (1, CpuFlags::NEON),
            (4, CpuFlags::PMULL),
            (7, CpuFlags::CRC32),
            (10, CpuFlags::FP16),
            (20, CpuFlags::DOTPROD),
        ];
        let mut flags = CpuFlags::empty();
        let mut index = 0;
        while index < BITS.len() {
            let (bit, flag) = BITS[index];
            if word >> bit & 1 == 1 {
                flags = flags.union(flag);
            }
            index += 1;
        }
        flags
    }
}

/// The flags that the compiler was told about.
#[cfg(not(all(target_arch = "x86_64", target_feature = "sse2")))]
const fn compiled_for() -> CpuFlags {
    const FLAGS: [(bool, CpuFlags); 5] = [
        (cfg!(target_feature = "neon"), CpuFlags::NEON),
        (cfg!(target_feature = "crc"), CpuFlags::CRC32),
        (cfg!(target_feature = "aes"), CpuFlags::PMULL),
        (cfg!(target_feature = "fp16"), CpuFlags::FP16),
        (cfg!(target_feature = "dotprod"), CpuFlags::DOTPROD),
    ];
    let mut flags = CpuFlags::empty();
    let mut index = 0;
    while index < FLAGS.len() {
        let (has, flag) = FLAGS[index];
        if has {
            flags = flags.union(flag);
        }
        index += 1;
    }
    flags
}

#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86_64 {
    use super::CpuFlags;
    use core::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};

    /// State components of XCR0: SSE and AVX registers; those and the three of AVX-512.
    const AVX_STATE: u64 = 0x06;
    const AVX512_STATE: u64 = 0xE6;

    pub(super) fn detect() -> CpuFlags {
        let mut flags = CpuFlags::empty();
        let leaf_max = __cpuid(0).eax;
        if leaf_max < 1 {
            return flags;
        }
        let basic = __cpuid(1).ecx;
        let has = |bit: u32| basic >> bit & 1 == 1;
        flags.set(CpuFlags::SSE42, has(20));
        flags.set(CpuFlags::PCLMUL, has(1));

        let (has_xsave, has_avx) = (has(27), has(28));
        // SAFETY: OSXSAVE (bit 27) was checked: the system enabled this instruction.
        let state = if has_xsave { unsafe { extended_state() } } else { 0 };
        if !has_avx || state & AVX_STATE != AVX_STATE {
            return flags;
        }
        flags.set(CpuFlags::F16C, has(29));
        flags.set(CpuFlags::FMA, has(12));
        if leaf_max < 7 {
            return flags;
        }
        let extended = __cpuid_count(7, 0);
        let has = |bit: u32| extended.ebx >> bit & 1 == 1;
        flags.set(CpuFlags::AVX2, has(5));
        flags.set(CpuFlags::BMI2, has(8));
        let has_avx512 = [16, 17, 28, 30, 31].into_iter().all(has);
        if has_avx512 && state & AVX512_STATE == AVX512_STATE {
            let has = |bit: u32| extended.ecx >> bit & 1 == 1;
            flags |= CpuFlags::AVX512;
            flags.set(CpuFlags::AVX512_VBMI, has(1));
            flags.set(CpuFlags::VPCLMUL, has(10));
        }
        flags
    }

    /// XCR0: the register sets that the system saves.
    ///
    /// # Safety
    ///
    /// The CPU reports OSXSAVE.
    #[target_feature(enable = "xsave")]
    unsafe fn extended_state() -> u64 {
        // SAFETY: the caller checked OSXSAVE; register 0 exists wherever the instruction does.
        unsafe { _xgetbv(0) }
    }
}
