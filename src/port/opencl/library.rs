//! Finding and loading an OpenCL library at run time.
//!
//! Two shapes exist. A loader, or a vendor's whole `libOpenCL`, exports every function. An
//! installable driver exports `clGetExtensionFunctionAddress` alone: its platforms begin with the
//! address of a dispatch table, and functions are called through that. Invariant: a library that
//! gave a table is never unloaded, since drivers leave threads and exit handlers behind.

use super::api::{Api, FIRST_SLOT_OF_1_2, FIRST_SLOT_OF_2_0, GetInfo, Handle, Lookup, SUCCESS};
use super::api::{PLATFORM_VERSION, Status};
use super::info::{self, Version};
use crate::error::{Code, Error, Result};
use core::ffi::{CStr, c_char, c_void};
use core::ptr::{self, NonNull};

/// Where an OpenCL library lies, in the order in which it is looked for. Phones come last: the
/// names before are not found there, or are right.
const CANDIDATES: [&CStr; 11] = [
    c"libOpenCL.so",
    c"libOpenCL.so.1",
    c"/vendor/lib64/libOpenCL.so",
    c"/system/vendor/lib64/libOpenCL.so",
    c"/system/lib64/libOpenCL.so",
    c"/vendor/lib64/egl/libGLES_mali.so",
    c"/system/vendor/lib64/egl/libGLES_mali.so",
    c"libOpenCL-pixel.so",
    c"libOpenCL-car.so",
    c"libPVROCL.so",
    c"/vendor/lib/libOpenCL.so",
];

/// Platforms of one driver that are looked at.
pub(super) const PLATFORMS_MAX: usize = 8;
const PLATFORMS: u32 = 8;

impl Api {
    /// Loads the library at `path` and no other, or the first one that is found and whole.
    /// `NoDevice` where there is none; `Unsupported` names a function that the library lacks, and
    /// counts all that are missing.
    pub fn load(path: Option<&CStr>) -> Result<Api> {
        let mut error = Error::new(Code::NoDevice, "OpenCL library");
        let named = path.as_slice();
        for path in if named.is_empty() { &CANDIDATES } else { named } {
            match Library::open(path).map(|library| Api::of(&library)) {
                Some(Ok(api)) => return Ok(api),
                Some(Err(incomplete)) => error = incomplete,
                None => {}
            }
        }
        Err(error)
    }

    fn of(library: &Library) -> Result<Api> {
        match library.symbol(c"clGetPlatformIDs") {
            Some(_) => Api::fill(library),
            None => Api::fill(&Driver::of(library)?),
        }
    }
}

/// An open library. It stays open.
struct Library(NonNull<c_void>);

impl Library {
    fn open(path: &CStr) -> Option<Library> {
        // SAFETY: `path` is a C string. Constructors of the library run: loading a driver means to
        // trust it as one trusts the kernel.
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        NonNull::new(handle).map(Library)
    }

    fn symbol(&self, name: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the name a C string.
        NonNull::new(unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr()) })
    }
}

impl Lookup for Library {
    fn find(&self, symbol: &'static CStr, _slot: usize) -> Option<NonNull<c_void>> {
        self.symbol(symbol)
    }
}

type GetExtension = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type GetPlatformIds = unsafe extern "C" fn(u32, *mut Handle, *mut u32) -> Status;

/// A driver without a loader.
struct Driver {
    get_platform_ids: NonNull<c_void>,
    /// The dispatch table that all of its objects begin with.
    table: *const *mut c_void,
    slots: usize,
}

impl Driver {
    fn of(library: &Library) -> Result<Driver> {
        const EXTENSION: &CStr = c"clGetExtensionFunctionAddress";
        const PLATFORM_IDS: &str = "clIcdGetPlatformIDsKHR";
        let missing = |name| Error::new(Code::Unsupported, name).with(1);
        let address = library.symbol(EXTENSION).ok_or(missing("clGetExtensionFunctionAddress"))?;
        // SAFETY: every OpenCL driver gives this name to a function of this type.
        let get_extension =
            unsafe { core::mem::transmute::<NonNull<c_void>, GetExtension>(address) };
        // SAFETY: the argument is a C string.
        let found = unsafe { get_extension(c"clIcdGetPlatformIDsKHR".as_ptr()) };
        let get_platform_ids = NonNull::new(found).ok_or(missing(PLATFORM_IDS))?;
        // SAFETY: the extension cl_khr_icd gives this name to a function of this type.
        let call =
            unsafe { core::mem::transmute::<NonNull<c_void>, GetPlatformIds>(get_platform_ids) };
        let mut platforms = [ptr::null_mut(); PLATFORMS_MAX];
        let mut count = 0;
        // SAFETY: `platforms` has room for as many as the first argument says.
        let status = unsafe { call(PLATFORMS, platforms.as_mut_ptr(), &raw mut count) };
        if status != SUCCESS || count == 0 || platforms[0].is_null() {
            return Err(Error::new(Code::NoDevice, "OpenCL platform").with(status));
        }
        let count = usize::try_from(count).unwrap_or(PLATFORMS_MAX).min(PLATFORMS_MAX);
        Self::with_table(get_platform_ids, &platforms[..count])
    }

    /// Checks that one table serves all platforms, and how long it is.
    fn with_table(get_platform_ids: NonNull<c_void>, platforms: &[Handle]) -> Result<Driver> {
        const TABLE: Error = Error::new(Code::Unsupported, "OpenCL dispatch table");
        let mut table: *const *mut c_void = ptr::null();
        for platform in platforms.iter().filter(|platform| !platform.is_null()) {
            // SAFETY: by cl_khr_icd a platform begins with the address of its dispatch table.
            let own = unsafe { platform.cast::<*const *mut c_void>().read() };
            if own.is_null() || (!table.is_null() && table != own) {
                return Err(TABLE);
            }
            table = own;
        }
        let mut driver = Driver { get_platform_ids, table, slots: FIRST_SLOT_OF_1_2 };
        let address = driver.slot(1).ok_or(Error::new(Code::Unsupported, "clGetPlatformInfo"))?;
        // SAFETY: slot 1 of every dispatch table is clGetPlatformInfo, which has this type.
        let get_info = unsafe { core::mem::transmute::<NonNull<c_void>, GetInfo>(address) };
        let text = info::text::<64>(get_info, platforms[0], PLATFORM_VERSION, "platform version")?;
        driver.slots = match Version::of_opencl(&text) {
            Some(version) if version >= Version::new(2, 0) => usize::MAX,
            Some(version) if version >= Version::new(1, 2) => FIRST_SLOT_OF_2_0,
            _ => FIRST_SLOT_OF_1_2,
        };
        Ok(driver)
    }

    fn slot(&self, slot: usize) -> Option<NonNull<c_void>> {
        if slot >= self.slots {
            return None;
        }
        // SAFETY: a table of the driver's OpenCL version has more entries than `slots`, or, for the
        // newest versions, than any slot that is asked for.
        NonNull::new(unsafe { self.table.add(slot).read() })
    }
}

impl Lookup for Driver {
    fn find(&self, _symbol: &'static CStr, slot: usize) -> Option<NonNull<c_void>> {
        match slot {
            // The table's own entry is the loader's to fill, in some drivers.
            0 => Some(self.get_platform_ids),
            _ => self.slot(slot),
        }
    }
}
