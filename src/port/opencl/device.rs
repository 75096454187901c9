//! Platforms and devices: what there is, and which one to take.

use super::api::*;
use super::driver::{Driver, DriverFamily, Workarounds};
use super::info::{Text, Version, number, text, with_bytes};
use super::library::PLATFORMS_MAX;
use super::lists;
use super::status::check;
use crate::error::{Code, Error, Result};
use core::ffi::c_void;
use core::ptr;

/// Devices that are looked at.
pub const DEVICES_MAX: usize = 16;
const DEVICES_OF_PLATFORM_MAX: u32 = 16;

/// What a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceKind {
    /// A graphics processor.
    Gpu,
    /// A processor's cores.
    Cpu,
    /// Anything else.
    Other,
}

bitflags::bitflags! {
    /// Kinds of shared virtual memory.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct SvmCaps: u64 {
        /// The host maps a buffer before it touches it, and unmaps it after.
        const COARSE = 1;
        /// The host touches a buffer at any time.
        const FINE = 2;
        /// Any memory of the process is shared.
        const SYSTEM = 4;
        /// Atomics work across host and device.
        const ATOMICS = 8;
    }
}

/// The language version that kernels are compiled as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LanguageVersion {
    /// OpenCL C 1.2.
    C1_2,
    /// OpenCL C 2.0.
    C2_0,
    /// OpenCL C 3.0.
    C3_0,
}

impl LanguageVersion {
    /// The compiler's option.
    pub const fn option(self) -> &'static str {
        match self {
            LanguageVersion::C1_2 => "-cl-std=CL1.2",
            LanguageVersion::C2_0 => "-cl-std=CL2.0",
            LanguageVersion::C3_0 => "-cl-std=CL3.0",
        }
    }
}

/// A device and what its driver says of it.
#[derive(Clone, Copy, Debug)]
pub struct DeviceInfo {
    pub(super) device: Handle,
    pub(super) platform: Handle,
    /// As the driver writes it.
    pub name: Text<96>,
    /// Who made it.
    pub vendor: Text<64>,
    /// The platform that it belongs to.
    pub platform_name: Text<64>,
    /// `OpenCL 3.0 ...`, with whatever the driver adds.
    pub version_text: Text<128>,
    /// The driver's version, as the driver writes it.
    pub driver_text: Text<128>,
    /// The same, read.
    pub driver: Driver,
    /// What is known to be wrong with that driver.
    pub workarounds: Workarounds,
    /// What it is.
    pub kind: DeviceKind,
    /// Of OpenCL.
    pub version: Version,
    /// Of the kernel language.
    pub language: LanguageVersion,
    /// Shared virtual memory.
    pub svm: SvmCaps,
    /// Arithmetic on `half` (cl_khr_fp16).
    pub fp16: bool,
    /// Subgroup functions.
    pub subgroups: bool,
    /// Whether the subgroup size can be fixed by cl_qcom_reqd_sub_group_size.
    pub fixed_subgroup_size: bool,
    /// Whether host and device use the same memory.
    pub unified: bool,
    /// Compute units.
    pub compute_units: u32,
    /// Largest single allocation, in bytes.
    pub alloc_bytes_max: u64,
    /// The device's memory, in bytes.
    pub memory_bytes: u64,
    /// Local memory of a work-group, in bytes.
    pub local_bytes: u64,
    /// Work-items of a work-group.
    pub work_group_max: usize,
    /// Work-group sizes should be a multiple of this; 0 where only a kernel can say.
    pub work_group_multiple: usize,
    /// Alignment of a buffer's start, in bytes.
    pub align_bytes: u32,
}

// SAFETY: platforms and devices may be used from any thread (OpenCL 3.0, appendix A.2).
unsafe impl Send for DeviceInfo {}
// SAFETY: as above; all methods only read.
unsafe impl Sync for DeviceInfo {}

/// Which device to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice<'a> {
    /// A GPU before anything else, then whoever shares memory best.
    #[default]
    Best,
    /// The best one whose name, platform or vendor contains this, in any case.
    Named(&'a str),
}

/// The devices of all platforms, in the driver's order.
pub struct Devices {
    list: [Option<DeviceInfo>; DEVICES_MAX],
    count: usize,
}

impl Devices {
    /// Asks the library. A platform or a device that does not answer is left out; `NoDevice` where
    /// nothing is left.
    pub fn enumerate(api: &Api) -> Result<Devices> {
        let mut platforms = [ptr::null_mut(); PLATFORMS_MAX];
        let mut count = 0;
        let room = u32::try_from(PLATFORMS_MAX).unwrap_or(0);
        let status = lists::kept(|| {
            // SAFETY: `platforms` has room for as many as the first argument says.
            unsafe { (api.get_platform_ids)(room, platforms.as_mut_ptr(), &raw mut count) }
        });
        check("OpenCL platform", status)?;
        let mut devices = Devices { list: [const { None }; DEVICES_MAX], count: 0 };
        let mut first_error = None;
        for platform in platforms.iter().take(usize::try_from(count).unwrap_or(0)) {
            if let Err(error) = devices.add_platform(api, *platform) {
                first_error = first_error.or(Some(error));
            }
        }
        match devices.count {
            0 => Err(first_error.unwrap_or(Error::new(Code::NoDevice, "OpenCL device"))),
            _ => Ok(devices),
        }
    }

    fn add_platform(&mut self, api: &Api, platform: Handle) -> Result<()> {
        const { assert!(DEVICES_MAX >= DEVICES_OF_PLATFORM_MAX as usize) };
        let mut handles = [ptr::null_mut(); DEVICES_MAX];
        let mut count = 0;
        // SAFETY: the platform is the library's; `handles` has room for as many as are asked for.
        check("OpenCL device", unsafe {
            (api.get_device_ids)(
                platform,
                DEVICE_TYPE_ALL,
                DEVICES_OF_PLATFORM_MAX,
                handles.as_mut_ptr(),
                &raw mut count,
            )
        })?;
        let mut result = Ok(());
        for device in handles.iter().take(usize::try_from(count).unwrap_or(0)) {
            match DeviceInfo::of(api, platform, *device) {
                Ok(info) if self.count < DEVICES_MAX => {
                    self.list[self.count] = Some(info);
                    self.count += 1;
                }
                Ok(_) => break,
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.list.iter().flatten()
    }

    /// The device that a choice means. `NoDevice` where none has such a name.
    pub fn choose(&self, choice: Choice<'_>) -> Result<DeviceInfo> {
        let fits = |device: &&DeviceInfo| match choice {
            Choice::Best => true,
            Choice::Named(part) => device.is_named(part),
        };
        // Of equals the first one; `max_by_key` would take the last.
        let best = self
            .iter()
            .filter(fits)
            .reduce(|best, device| if device.rank() > best.rank() { device } else { best });
        best.copied().ok_or(Error::new(Code::NoDevice, "OpenCL device of that name"))
    }
}

impl DeviceInfo {
    /// OpenCL's own names, a `cl_platform_id` and a `cl_device_id`, for those who call OpenCL
    /// themselves.
    pub fn raw(&self) -> (*mut c_void, *mut c_void) {
        (self.platform, self.device)
    }

    fn of(api: &Api, platform: Handle, device: Handle) -> Result<DeviceInfo> {
        let get = api.get_device_info;
        let version_text: Text<128> = text(get, device, DEVICE_VERSION, "device version")?;
        let version = Version::of_opencl(&version_text)
            .ok_or(Error::new(Code::Unsupported, "device version"))?;
        let driver_text: Text<128> = text(get, device, DRIVER_VERSION, "driver version")?;
        let name: Text<96> = text(get, device, DEVICE_NAME, "device name")?;
        let vendor: Text<64> = text(get, device, DEVICE_VENDOR, "device vendor")?;
        let driver = Driver::read(&vendor, &driver_text, &version_text);
        // Devices before 2.0 do not know the question.
        let svm = number(get, device, DEVICE_SVM_CAPABILITIES, "SVM").unwrap_or(0);
        let svm = if api.svm_alloc.is_some() { svm } else { 0 };
        let kind: u64 = number(get, device, DEVICE_TYPE, "device type")?;
        let extension = |name: &str| {
            with_bytes(get, device, DEVICE_EXTENSIONS, "device extensions", |bytes| {
                bytes.split(|byte| matches!(byte, b' ' | 0)).any(|word| word == name.as_bytes())
            })
        };
        let sub_groups: u32 =
            number(get, device, DEVICE_MAX_NUM_SUB_GROUPS, "subgroups").unwrap_or(0);
        let since_3 = version >= Version::new(3, 0);
        let multiple = DEVICE_PREFERRED_WORK_GROUP_SIZE_MULTIPLE;
        Ok(DeviceInfo {
            device,
            platform,
            name,
            vendor,
            platform_name: text(api.get_platform_info, platform, PLATFORM_NAME, "platform name")?,
            version_text,
            driver_text,
            driver,
            workarounds: driver.workarounds(),
            kind: DeviceKind::of(kind),
            version,
            language: language(api, device, version)?,
            svm: SvmCaps::from_bits_truncate(svm),
            fp16: extension("cl_khr_fp16")?,
            subgroups: extension("cl_khr_subgroups")? || (since_3 && sub_groups > 0),
            fixed_subgroup_size: extension("cl_qcom_reqd_sub_group_size")?,
            unified: is_unified(get, device, driver),
            compute_units: number(get, device, DEVICE_MAX_COMPUTE_UNITS, "compute units")?,
            alloc_bytes_max: number(get, device, DEVICE_MAX_MEM_ALLOC_SIZE, "max allocation")?,
            memory_bytes: number(get, device, DEVICE_GLOBAL_MEM_SIZE, "device memory")?,
            local_bytes: number(get, device, DEVICE_LOCAL_MEM_SIZE, "local memory")?,
            work_group_max: number(get, device, DEVICE_MAX_WORK_GROUP_SIZE, "work-group size")?,
            work_group_multiple: number(get, device, multiple, "work-group multiple").unwrap_or(0),
            // The driver says bits.
            align_bytes: number::<u32>(get, device, DEVICE_MEM_BASE_ADDR_ALIGN, "alignment")? / 8,
        })
    }

    fn is_named(&self, part: &str) -> bool {
        let contains = |text: &str| {
            let (text, part) = (text.as_bytes(), part.as_bytes());
            part.is_empty() || text.windows(part.len()).any(|w| w.eq_ignore_ascii_case(part))
        };
        contains(&self.name) || contains(&self.platform_name) || contains(&self.vendor)
    }

    /// Higher is better.
    fn rank(&self) -> (u8, bool, bool, u32) {
        let kind = match self.kind {
            DeviceKind::Gpu => 2,
            DeviceKind::Other => 1,
            DeviceKind::Cpu => 0,
        };
        let (fine, coarse) = (self.svm.contains(SvmCaps::FINE), self.svm.contains(SvmCaps::COARSE));
        (kind, fine, coarse, self.compute_units)
    }
}

impl DeviceKind {
    fn of(bits: u64) -> DeviceKind {
        match bits {
            bits if bits & 4 != 0 => DeviceKind::Gpu,
            bits if bits & 2 != 0 => DeviceKind::Cpu,
            _ => DeviceKind::Other,
        }
    }
}

/// Drivers may have dropped the question, which is older than 2.0; where they have, only those of
/// cards with memory of their own are known to mean no.
fn is_unified(get: GetInfo, device: Handle, driver: Driver) -> bool {
    match number::<u32>(get, device, DEVICE_HOST_UNIFIED_MEMORY, "unified memory") {
        Ok(unified) => unified != 0,
        Err(_) => driver.family != DriverFamily::Nvidia,
    }
}

/// The newest language version that the compiler takes. A device of OpenCL 3.0 names 1.2 as *the*
/// version of its language, or 2.0 without having it; its list of versions is what counts.
fn language(api: &Api, device: Handle, version: Version) -> Result<LanguageVersion> {
    let get = api.get_device_info;
    if version < Version::new(3, 0) {
        let text: Text<64> = text(get, device, DEVICE_OPENCL_C_VERSION, "language version")?;
        return Ok(match Version::of_opencl(&text) {
            Some(version) if version >= Version::new(2, 0) => LanguageVersion::C2_0,
            _ => LanguageVersion::C1_2,
        });
    }
    let listed =
        with_bytes(get, device, DEVICE_OPENCL_C_ALL_VERSIONS, "language versions", |list| {
            // Each entry is a version, the major number in its upper ten bits, and a name.
            list.chunks_exact(68).any(|entry| {
                entry.first_chunk().is_some_and(|number| u32::from_ne_bytes(*number) >> 22 == 3)
            })
        });
    Ok(if listed == Ok(true) { LanguageVersion::C3_0 } else { LanguageVersion::C1_2 })
}
