//! The callback tables through which C brings the outside world, as `linker/mzcache.h` shows them.
//!
//! Everything said in `types` holds here too. What the callbacks promise is what the traits of
//! [`crate::port`] ask for; `ports` turns one into the other.

use super::types::{MzConfig, MzDeviceSpan, MzError};
use core::ffi::{c_char, c_int, c_void};

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
/// arrives in mz_error.value. MZ_ERR_SYNC_FAILED from any of a swap file's is what it is from sync:
/// nothing that the file holds is believed any more.
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
    /// Returns 1 while transfers bypass the page cache, else 0; for mz_stats alone. May be NULL.
    pub direct: Option<unsafe extern "C" fn(context: *mut c_void) -> i64>,
}

/// A shared buffer on its way between the library and the memory port.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzRegion {
    /// sizeof(struct mz_region), set by the library.
    pub struct_bytes: u32,
    /// One of mz_use, set by the library in allocate and release; 0 elsewhere.
    pub purpose: u32,
    /// First byte, a multiple of 4096; set by the port. Where mz_memory.begin_host says where the
    /// host finds it, any such number but NULL.
    pub start: *mut c_void,
    /// Bytes: as asked for by the library; a port that gave more says how many.
    pub bytes: usize,
    /// The port's own name for it (a raw pointer, a buffer id, a file descriptor).
    pub token: u64,
}

/// Shared buffers, as callbacks: memory that the CPU and the accelerator both address. Rules and
/// results as for mz_storage. Where both see all regions at all times, allocate and release are
/// enough; the callbacks behind them are for accelerators that take turns with the host.
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
    /// Makes a fresh region hold zeros and returns 0. NULL: they do when they come.
    pub zero: Option<unsafe extern "C" fn(context: *mut c_void, region: *const MzRegion) -> i64>,
    /// The host will read and write the region until end: sets *start to the address where it finds
    /// it until then, a multiple of 4096, and returns 0. MZ_ERR_LEASED while the accelerator uses
    /// it. NULL: always at region->start. Any number of users of one side may be in at a time, and
    /// the port hands the region over when the other side's first one begins.
    pub begin_host: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            region: *const MzRegion,
            start: *mut *mut c_void,
        ) -> i64,
    >,
    /// The host will write all of a range of a fresh region, which nobody else has, and reads
    /// nothing that it did not write: sets *start to where, a multiple of 4096, and *token to the
    /// port's own name for it, and returns 0. Here or not at all with end_fill. NULL: begin_host
    /// and end serve.
    pub begin_fill: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            region: *const MzRegion,
            offset: usize,
            bytes: usize,
            start: *mut *mut c_void,
            token: *mut u64,
        ) -> i64,
    >,
    /// That range is filled, or, where is_filled is 0, given up with anything in it. Returns 0;
    /// whatever it answers, the use is over.
    pub end_fill: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            region: *const MzRegion,
            offset: usize,
            bytes: usize,
            start: *mut c_void,
            token: u64,
            is_filled: u32,
        ) -> i64,
    >,
    /// The accelerator's commands will use the region until end: fills in address, or buffer and
    /// offset, and returns 0. MZ_ERR_LEASED while the host uses it. NULL: the accelerator finds it
    /// at region->start at all times.
    pub begin_device: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            region: *const MzRegion,
            device: *mut MzDeviceSpan,
        ) -> i64,
    >,
    /// One user of begin_host or begin_device is done. NULL: there is nothing to do.
    pub end: Option<unsafe extern "C" fn(context: *mut c_void, region: *const MzRegion)>,
    /// Gives back to the system what the port keeps of released regions for the next ones. May be
    /// NULL.
    pub trim: Option<unsafe extern "C" fn(context: *mut c_void)>,
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

/// Threads, as callbacks: mz_open starts one for each of mz_config.workers, mz_close ends them.
/// Rules and results as for mz_storage.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzThreads {
    /// sizeof(struct mz_threads).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to every callback.
    pub context: *mut c_void,
    /// Starts a thread on a stack of at least stack_bytes that calls run(argument) once, sets
    /// *thread to a number of the port's own, and returns 0. name has at most 15 bytes and lives
    /// during the call.
    pub spawn: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            name: *const c_char,
            stack_bytes: usize,
            run: Option<unsafe extern "C" fn(argument: *mut c_void)>,
            argument: *mut c_void,
            thread: *mut u64,
        ) -> i64,
    >,
    /// Returns when the thread's run has returned. Each thread is joined once.
    pub join: Option<unsafe extern "C" fn(context: *mut c_void, thread: u64)>,
    /// Keeps the calling thread on that core and returns 0; after a failure it runs anywhere. May
    /// be NULL: no core can be had.
    pub pin: Option<unsafe extern "C" fn(context: *mut c_void, core: u32) -> i64>,
}

/// Measures the process's memory, as a callback.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzMeter {
    /// sizeof(struct mz_meter).
    pub struct_bytes: u32,
    /// Must be 0.
    pub flags: u32,
    /// Given to the callback.
    pub context: *mut c_void,
    /// Bytes of anonymous and shared memory that are resident or swapped out now, or a failure.
    pub resident: Option<unsafe extern "C" fn(context: *mut c_void) -> i64>,
}

/// How much an entry of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzLevel {
    /// A call failed.
    Error = 1,
    /// Something works, but not as it was asked for.
    Warning = 2,
    /// What was done.
    Info = 3,
}

/// Who hears what happens.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzLog {
    /// sizeof(struct mz_log).
    pub struct_bytes: u32,
    /// The highest mz_level to be told, or 0 for errors alone.
    pub level: u32,
    /// Given to the callback.
    pub context: *mut c_void,
    /// Told of one thing, on the thread that did it; several may call at once. text is a constant;
    /// details has the code of a failure, and what and value name what the text is about. It must
    /// not call the library.
    pub entry: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            level: u32,
            text: *const c_char,
            details: *const MzError,
        ),
    >,
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
    /// The swap file; NULL if mz_config.swap_file is 0. What it holds is written
    /// over, but for what mz_recover takes over first.
    pub swap: *const MzStorage,
    /// Shared buffers.
    pub memory: *const MzMemory,
    /// Time.
    pub clock: *const MzClock,
    /// Waiting. NULL: a call that has to wait for another thread's call spins.
    pub park: *const MzPark,
    /// Threads; NULL if mz_config.workers is.
    pub threads: *const MzThreads,
    /// Measured memory for reports; may be NULL.
    pub meter: *const MzMeter,
    /// Who hears what happens; may be NULL.
    pub log: *const MzLog,
    /// Set by mz_ports_linux and mz_ports_opencl, for mz_ports_close. NULL in tables of the
    /// caller's own.
    pub owner: *mut MzOwner,
}

/// The library's own ports, where the tables come from it.
pub struct MzOwner {
    _private: (),
}

/// What the library's own ports for Linux and Android are made for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzLinuxConfig {
    /// sizeof(struct mz_linux_config).
    pub struct_bytes: u32,
    /// 0, or MZ_KEEP_SWAP.
    pub flags: u32,
    /// The model file; ends with a 0 byte.
    pub model_path: *const c_char,
    /// The swap file, which is made, or emptied if it is there, unless MZ_KEEP_SWAP; NULL: none. It
    /// may be unlinked once it is open. It holds what was said in prompts: keep it where nobody
    /// else reads.
    pub swap_path: *const c_char,
    /// Where shared buffers come from: one of MZ_MEMORY_*. MZ_ERR_NO_DEVICE where the machine has
    /// none of it, or none for this process.
    pub memory: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// mz_linux_config.memory: private memory of the process.
pub const MZ_MEMORY_ANONYMOUS: u32 = 0;
/// mz_linux_config.memory: objects of KGSL, the driver of Adreno GPUs, each at one address for both
/// processors. The lower half of mz_region.token is the object's number, 0 for segments of the RAM
/// swap, which are private memory. Leases of the device hand caches over where that is needed.
pub const MZ_MEMORY_KGSL: u32 = 1;
/// mz_linux_config.memory: dma-bufs from the system's dma-heap, or from ION. The lower half of
/// mz_region.token is the file descriptor, and mz_device_span.buffer too; all of the token is
/// UINT64_MAX for segments of the RAM swap. Each keeps a file open. Leases end the processor's
/// window of access for a device and open it again. Direct transfers do not reach dma-bufs, which
/// the library's own files know how to go round; callbacks of a caller's own must, too.
pub const MZ_MEMORY_DMA_HEAP: u32 = 2;

/// How host and accelerator come to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzSharing {
    /// The closest that suits the device: one of those below.
    Best = 0,
    /// Fine-grain shared virtual memory: both touch it at any time.
    Fine = 1,
    /// Coarse-grain shared virtual memory: they take turns.
    Coarse = 2,
    /// Buffers of the device: bytes are copied, and kernels find chunks by offset.
    Buffers = 3,
}

/// What the library's own ports for an engine on an accelerator are made for.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzOpenClConfig {
    /// sizeof(struct mz_opencl_config).
    pub struct_bytes: u32,
    /// 0, or MZ_KEEP_SWAP.
    pub flags: u32,
    /// As mz_linux_config.model_path.
    pub model_path: *const c_char,
    /// As mz_linux_config.swap_path.
    pub swap_path: *const c_char,
    /// What mz_open will be called with: it says how many units there are. Handles on the same
    /// ports share this room. Read during the call only.
    pub manager: *const MzConfig,
    /// The OpenCL library; NULL: looked for where systems have it.
    pub library: *const c_char,
    /// Part of a device's name, platform or vendor; NULL: the best one.
    pub device: *const c_char,
    /// One of mz_sharing; MZ_ERR_UNSUPPORTED where the device has not got it.
    pub sharing: u32,
    /// Must be 0.
    pub reserved: u32,
    /// Released shared memory that is kept for the next buffer of its size, for drivers that
    /// allocate slowly; it counts as given back. Default 0.
    pub spare_bytes: u64,
    /// Pinned memory of the host through which buffers of the device are filled. Default: for a
    /// dozen workers, 96 MiB. MZ_SHARING_BUFFERS alone needs it.
    pub staging_bytes: u64,
}

/// The opened device in OpenCL's own names, for kernels of the caller's own. They are good until
/// mz_ports_close; retain what is needed longer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzOpenClInfo {
    /// sizeof(struct mz_opencl_info).
    pub struct_bytes: u32,
    /// The mz_sharing that was taken, never MZ_SHARING_BEST.
    pub sharing: u32,
    /// The cl_platform_id.
    pub platform: *mut c_void,
    /// The cl_device_id.
    pub device: *mut c_void,
    /// The cl_context.
    pub context: *mut c_void,
    /// The cl_command_queue, in order, by which buffers are handed over. Kernels go here; those on
    /// another queue must wait for what was enqueued here before them.
    pub queue: *mut c_void,
}

/// Where a model computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzBackend {
    /// On the processor.
    Cpu = 0,
    /// On an accelerator through OpenCL, in archives with the feature opencl.
    OpenCl = 1,
    /// On an accelerator if there is one that fits, otherwise on the processor.
    Auto = 2,
}

/// What a model is opened for. Set all to 0 first; 0 means the default where one is named.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzModelConfig {
    /// sizeof(struct mz_model_config).
    pub struct_bytes: u32,
    /// 0, or MZ_KEEP_SWAP.
    pub flags: u32,
    /// A GGUF file; ends with a 0 byte.
    pub model_path: *const c_char,
    /// As mz_linux_config.swap_path.
    pub swap_path: *const c_char,
    /// How memory is managed. Fields that describe the model (those from kv_layers to extent_count
    /// but context_tokens_max) must be 0, since the file says it; context_tokens_max 0 means the
    /// model's own; swap_file is 1 if there is a swap_path. NULL: all defaults.
    pub options: *const MzConfig,
    /// Who hears what happens; may be NULL.
    pub log: *const MzLog,
    /// Threads that compute, the caller of mz_restore_generate included, at most 32. Default 1.
    pub compute_threads: u32,
    /// Tokens computed at once in a long prompt, at most 1024. Default 256.
    pub batch_tokens_max: u32,
    /// One of mz_backend.
    pub backend: u32,
    /// Must be 0.
    pub reserved: u32,
    /// The OpenCL library; NULL: looked for where systems have it.
    pub opencl_library: *const c_char,
    /// Part of a device's name, platform or vendor; NULL: the best one.
    pub opencl_device: *const c_char,
    /// A folder for compiled kernels, which must exist; NULL: compiled at every open.
    pub opencl_cache: *const c_char,
}

/// A model under memory management, and its context. It lies in the memory given to mz_model_open.
pub struct MzModel {
    _private: (),
}

/// What a model is.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzModelInfo {
    /// sizeof(struct mz_model_info).
    pub struct_bytes: u32,
    /// Transformer layers.
    pub layers: u32,
    /// Tokens are below this.
    pub vocabulary: u32,
    /// Longest context of this open model.
    pub context_tokens_max: u32,
    /// Tokens computed at once.
    pub batch_tokens_max: u32,
    /// 1 if an accelerator computes.
    pub is_accelerated: u32,
}

/// Told each token as it is generated. Returns 0 to go on; anything else ends the generation, and
/// the token is then not taken into the context. It may call functions of the model's handle; a
/// checkpoint then has the tokens before this one.
pub type MzHeard = Option<unsafe extern "C" fn(context: *mut c_void, token: u32) -> c_int>;

/// Chooses a token from the logits over the vocabulary, or ends the generation with a number below
/// 0. It may call functions of the model's handle.
pub type MzChoose =
    Option<unsafe extern "C" fn(context: *mut c_void, logits: *const f32, vocabulary: u32) -> i64>;
