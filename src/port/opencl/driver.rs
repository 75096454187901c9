//! Drivers by version, and what is known to be wrong with some of them.

use core::fmt;

/// Who wrote the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverFamily {
    /// Qualcomm's for Adreno on Android; versions as `E031.41.00.00`.
    Adreno,
    /// Qualcomm's for Adreno on Windows; versions as `DX.17.38.00`.
    AdrenoWindows,
    /// Arm's.
    Mali,
    /// NVIDIA's.
    Nvidia,
    /// The portable library on CPUs.
    Pocl,
    /// Intel's.
    Intel,
    /// Any other.
    Other,
}

/// A driver's version: up to four numbers, the missing ones zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Driver {
    /// Who wrote it.
    pub family: DriverFamily,
    /// Its numbers, the weightiest first.
    pub numbers: [u32; 4],
}

bitflags::bitflags! {
    /// What must be done differently on a device.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Workarounds: u32 {
        /// Reductions over a subgroup do not compile, or crash the compiler: reduce in local
        /// memory.
        const NO_SUBGROUP_REDUCE = 1;
        /// Attention with operands of different types crashes the compiler: convert the queries
        /// to half in a kernel of their own first.
        const UNIFORM_ATTENTION_TYPES = 2;
        /// Kernels that read flat q6_K blocks are miscompiled.
        const NO_FLAT_Q6_K = 4;
        /// Broadcasting a vector over a subgroup does not work; scalars do.
        const NO_VECTOR_BROADCAST = 8;
        /// Kernels that read K through an image compute wrong numbers.
        const NO_IMAGES = 16;
        /// `clSetKernelExecInfo` with a list refuses an empty one. The call is never made.
        const NO_EMPTY_POINTER_LIST = 32;
        /// The compiler may crash: build in a child process.
        const BUILD_IN_CHILD = 64;
    }
}

/// A range of versions and what is wrong there.
struct Fault {
    family: DriverFamily,
    from: [u32; 4],
    /// First version without the fault.
    until: [u32; 4],
    workarounds: Workarounds,
}

const ALL: [u32; 4] = [u32::MAX; 4];

const FAULTS: [Fault; 8] = [
    // Reduce and scan fail to build, or the compiler crashes (Adreno 660).
    Fault {
        family: DriverFamily::Adreno,
        from: [0; 4],
        until: [31, 38, 11, 0],
        workarounds: Workarounds::NO_SUBGROUP_REDUCE.union(Workarounds::BUILD_IN_CHILD),
    },
    // The compiler crashes on attention with f32 queries over f16 keys (Adreno 740).
    Fault {
        family: DriverFamily::Adreno,
        from: [31, 41, 0, 0],
        until: [31, 42, 0, 0],
        workarounds: Workarounds::UNIFORM_ATTENTION_TYPES.union(Workarounds::BUILD_IN_CHILD),
    },
    // Seen wrong with 38 and 41, right with 45.
    Fault {
        family: DriverFamily::Adreno,
        from: [31, 38, 0, 0],
        until: [31, 45, 0, 0],
        workarounds: Workarounds::NO_FLAT_Q6_K,
    },
    // Wrong results of a K*Q kernel on images (Adreno 730).
    Fault {
        family: DriverFamily::Adreno,
        from: [31, 38, 0, 0],
        until: [31, 39, 0, 0],
        workarounds: Workarounds::NO_IMAGES,
    },
    Fault {
        family: DriverFamily::Adreno,
        from: [0; 4],
        until: [31, 47, 0, 0],
        workarounds: Workarounds::NO_VECTOR_BROADCAST,
    },
    // What is not known to be sound is not risked in the service's own process.
    Fault {
        family: DriverFamily::Adreno,
        from: [0; 4],
        until: ALL,
        workarounds: Workarounds::BUILD_IN_CHILD,
    },
    Fault {
        family: DriverFamily::AdrenoWindows,
        from: [0; 4],
        until: ALL,
        workarounds: Workarounds::BUILD_IN_CHILD,
    },
    // Driver g24p0.
    Fault {
        family: DriverFamily::Mali,
        from: [0; 4],
        until: ALL,
        workarounds: Workarounds::NO_EMPTY_POINTER_LIST,
    },
];

impl Driver {
    /// Reads the version out of what the driver says of itself. Adreno's compiler version stands in
    /// the driver's text or in the device's.
    pub fn read(vendor: &str, driver_text: &str, version_text: &str) -> Driver {
        let texts = [driver_text, version_text];
        let adreno = texts.iter().find_map(|text| {
            let at = text.match_indices('E').find(|(at, _)| is_start(text, *at, &text[at + 1..]));
            at.map(|(at, _)| numbers(&text[at + 1..]))
        });
        let has = |part: &str| texts.iter().chain([&vendor]).any(|text| text.contains(part));
        if has("QUALCOMM") || has("Qualcomm") || has("Adreno") {
            if let Some(numbers) = adreno {
                return Driver { family: DriverFamily::Adreno, numbers };
            }
            let windows = texts.iter().find_map(|text| text.split_once("DX.")).map(|(_, n)| n);
            return Driver {
                family: match windows {
                    Some(_) => DriverFamily::AdrenoWindows,
                    None => DriverFamily::Adreno,
                },
                numbers: numbers(windows.unwrap_or(driver_text)),
            };
        }
        let family = match () {
            () if has("NVIDIA") => DriverFamily::Nvidia,
            () if has("PoCL") || has("pocl") => DriverFamily::Pocl,
            () if has("ARM") || has("Arm") => DriverFamily::Mali,
            () if has("Intel") => DriverFamily::Intel,
            () => DriverFamily::Other,
        };
        Driver { family, numbers: numbers(driver_text) }
    }

    /// What to do differently with this driver.
    pub fn workarounds(&self) -> Workarounds {
        FAULTS
            .iter()
            .filter(|fault| fault.family == self.family)
            .filter(|fault| (fault.from..fault.until).contains(&self.numbers))
            .fold(Workarounds::empty(), |all, fault| all | fault.workarounds)
    }
}

/// Whether `E` at that place begins a version: no letter before, two digits or more and a
/// dot behind.
fn is_start(text: &str, at: usize, behind: &str) -> bool {
    let free = !text[..at].ends_with(|c: char| c.is_ascii_alphanumeric());
    let digits = behind.bytes().take_while(u8::is_ascii_digit).count();
    free && digits >= 2 && behind[digits..].starts_with('.')
}

/// The first up to four numbers with dots between, from the first digit on.
fn numbers(text: &str) -> [u32; 4] {
    let mut numbers = [0; 4];
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(digits.len());
    for (number, part) in numbers.iter_mut().zip(digits[..end].split('.')) {
        *number = part.parse().unwrap_or(0);
    }
    numbers
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.numbers;
        write!(f, "{:?} {a}.{b}.{c}.{d}", self.family)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(vendor: &str, driver: &str, version: &str) -> (DriverFamily, [u32; 4]) {
        let driver = Driver::read(vendor, driver, version);
        (driver.family, driver.numbers)
    }

    #[test]
    fn versions_are_read_as_drivers_write_them() {
        let adreno = "OpenCL 3.0 QUALCOMM build: commit unknown Compiler E031.41.00.00";
        let driver = "OpenCL 3.0 Adreno(TM) 740";
        let cases = [
            ("QUALCOMM", adreno, driver, DriverFamily::Adreno, [31, 41, 0, 0]),
            ("QUALCOMM", driver, adreno, DriverFamily::Adreno, [31, 41, 0, 0]),
            ("QUALCOMM", "E031.38.11.07", "", DriverFamily::Adreno, [31, 38, 11, 7]),
            ("QUALCOMM", "Compiler E17.01.02", "", DriverFamily::Adreno, [17, 1, 2, 0]),
            ("QUALCOMM", "ENGINE E031.1", "", DriverFamily::Adreno, [31, 1, 0, 0]),
            ("QUALCOMM", "DX.17.38.00", "", DriverFamily::AdrenoWindows, [17, 38, 0, 0]),
            ("QUALCOMM", "nothing", "", DriverFamily::Adreno, [0; 4]),
            ("NVIDIA Corporation", "580.159.04", "", DriverFamily::Nvidia, [580, 159, 4, 0]),
            ("GenuineIntel", "3.1", "OpenCL 3.0 PoCL HSTR", DriverFamily::Pocl, [3, 1, 0, 0]),
            ("ARM", "3.0", "OpenCL 3.0 v1.g24p0-00", DriverFamily::Mali, [3, 0, 0, 0]),
            ("Intel(R)", "2026.2.1.0.1", "", DriverFamily::Intel, [2026, 2, 1, 0]),
            ("", "", "", DriverFamily::Other, [0; 4]),
            ("x", "99999999999.1", "", DriverFamily::Other, [0, 1, 0, 0]),
        ];
        for (vendor, driver, version, family, numbers) in cases {
            assert_eq!(read(vendor, driver, version), (family, numbers), "{driver} {version}");
        }
    }

    #[test]
    fn faults_end_where_they_were_fixed() {
        let of = |numbers| Driver { family: DriverFamily::Adreno, numbers }.workarounds();
        let reduce = Workarounds::NO_SUBGROUP_REDUCE;
        assert!(of([31, 37, 99, 0]).contains(reduce));
        assert!(of([31, 38, 10, 99]).contains(reduce));
        assert!(!of([31, 38, 11, 0]).contains(reduce));
        let uniform = Workarounds::UNIFORM_ATTENTION_TYPES;
        assert!(!of([31, 40, 0, 0]).contains(uniform));
        assert!(of([31, 41, 0, 0]).contains(uniform | Workarounds::NO_FLAT_Q6_K));
        assert!(!of([31, 45, 0, 0]).intersects(uniform | Workarounds::NO_FLAT_Q6_K));
        assert!(of([31, 38, 20, 0]).contains(Workarounds::NO_IMAGES));
        assert!(of([31, 46, 9, 9]).contains(Workarounds::NO_VECTOR_BROADCAST));
        assert_eq!(of([31, 47, 0, 0]), Workarounds::BUILD_IN_CHILD);
        let nvidia = Driver { family: DriverFamily::Nvidia, numbers: [31, 38, 0, 0] };
        assert_eq!(nvidia.workarounds(), Workarounds::empty());
    }

    #[test]
    fn every_fault_has_a_range() {
        assert!(FAULTS.iter().all(|fault| fault.from < fault.until));
    }
}
