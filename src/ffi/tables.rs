//! The callback tables through which C brings the outside world, as `linker/mzcache.h` shows them.
//!
//! Everything said in `types` holds here too. What the callbacks promise is what the traits of
//! [`crate::port`] ask for; `ports` turns one into the other.

use core::ffi::c_void;

/// What a shared buffer will hold; a port may place the kinds differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzUse {
    /// A weight layer, or the output head.
    Weights = 0,
    /// A KV chunk.
    Kv = 1,
    /// A segment of the RAM swap.
    Swap = 2,
}

/// One file, as callbacks. They may be called from any thread that calls the library, also at the
/// same time, must not call it themselves, and answer 0 or more for success. A failure is one of
/// MZ_ERR_*, or MZ_PORT_ERROR(n) with a number of the caller's own, such as an errno, which then
/// arrives in mz_error.value.
///
/// Offsets, addresses and lengths are multiples of 4096, which direct I/O needs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzStorage {
    /// sizeof(struct mz_storage).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to every callback.
    pub context: *mut c_void,
    /// Reads until the buffer is full or the file ends. Returns the bytes read; fewer than asked
    /// means end of file, nothing else, so interruptions and short reads are repeated inside.
    pub read: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            into: *mut c_void,
            bytes: usize,
        ) -> i64,
    >,
    /// Writes all of it, extending the file where needed, and returns 0. Unused in a model file.
    pub write: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            from: *const c_void,
            bytes: usize,
        ) -> i64,
    >,
    /// Makes what was written durable and returns 0. Unused in a model file. It is never called
    /// again after a failure.
    pub sync: Option<unsafe extern "C" fn(context: *mut c_void) -> i64>,
    /// Gives a range back to the file system and returns 0; its content is then lost. May be NULL.
    pub discard: Option<unsafe extern "C" fn(context: *mut c_void, offset: u64, bytes: u64) -> i64>,
    /// Returns the file's length in bytes.
    pub length: Option<unsafe extern "C" fn(context: *mut c_void) -> i64>,
}

/// A shared buffer on its way between the library and the memory port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzRegion {
    /// sizeof(struct mz_region), set by the library.
    pub struct_bytes: u32,
    /// One of mz_use, set by the library.
    pub purpose: u32,
    /// First byte, a multiple of 4096; set by the port.
    pub start: *mut c_void,
    /// Bytes: as asked for by the library; a port that gave more says how many.
    pub bytes: usize,
    /// The port's own name for it (a raw pointer, a buffer id, a file descriptor).
    pub token: u64,
}

/// Shared buffers, as callbacks: memory that the CPU and the accelerator both address. Rules and
/// results as for mz_storage.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzMemory {
    /// sizeof(struct mz_memory).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to every callback.
    pub context: *mut c_void,
    /// Fills in start, bytes and token of a region of at least region->bytes zeroed bytes that
    /// nothing else uses until it is released, and returns 0. Pages should be real at once.
    pub allocate: Option<unsafe extern "C" fn(context: *mut c_void, region: *mut MzRegion) -> i64>,
    /// Gives the region's pages back to the system. Each region is released once.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void, region: *const MzRegion)>,
}

/// Time, as a callback.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzClock {
    /// sizeof(struct mz_clock).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to the callback.
    pub context: *mut c_void,
    /// Nanoseconds since some fixed point; never goes back.
    pub now: Option<unsafe extern "C" fn(context: *mut c_void) -> u64>,
}

/// Waiting for a word to change, like a futex.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzPark {
    /// sizeof(struct mz_park).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to both callbacks.
    pub context: *mut c_void,
    /// Returns when woken, after timeout_ns nanoseconds (UINT64_MAX: no limit), at once if the word
    /// does not hold expected (it is atomic), or for no reason at all.
    pub wait: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            word: *const u32,
            expected: u32,
            timeout_ns: u64,
        ),
    >,
    /// Wakes everybody who waits on the word.
    pub wake: Option<unsafe extern "C" fn(context: *mut c_void, word: *const u32)>,
}

/// The outside world of a handle. mz_open copies these tables; the contexts are used until
/// mz_close has returned.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzPorts {
    /// sizeof(struct mz_ports).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// The model file.
    pub model: *const MzStorage,
    /// The swap file; NULL if mz_config.swap_file is 0. What it holds is not read but written over.
    pub swap: *const MzStorage,
    /// Shared buffers.
    pub memory: *const MzMemory,
    /// Time.
    pub clock: *const MzClock,
    /// Waiting. NULL: a call that has to wait for another thread's call spins.
    pub park: *const MzPark,
}
