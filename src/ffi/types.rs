//! The types of the C ABI, as `linker/mzcache.h` shows them.
//!
//! Invariant: every table begins with `struct_bytes`, has no padding and admits every bit pattern;
//! its layout on 64-bit machines is the one asserted in `layout`. Tables grow at their end only: a
//! caller built with an older header hands over a shorter one, and the missing fields read as 0; a
//! caller with a newer header may hand over a longer one if the fields that this version does not
//! know are 0. Fields that enumerate hold plain numbers, because C may put anything there. The
//! comments are written for those who read the header.

use crate::error::Code;
use crate::state::Stop;
use core::ffi::{c_char, c_int, c_void};

/// Success.
pub const MZ_OK: c_int = 0;
/// Alignment of everything that touches storage, and of shared buffers.
pub const MZ_IO_ALIGN: u32 = 4096;
/// Tokens of one KV chunk.
pub const MZ_CHUNK_TOKENS: u32 = 256;
/// mz_worker.core: runs anywhere.
pub const MZ_ANY_CORE: u32 = u32::MAX;

/// Negative results. Groups of ten say who is concerned: the call, memory, storage, data,
/// time, the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzErr {
    /// An argument is outside its documented range: correct the call.
    InvalidArgument = -10,
    /// The call does not fit the present state: something is not open, still running or over. Let
    /// it end, or open it, and call again.
    BadState = -11,
    /// The memory or array given is too small: give as much as the size query or the count says.
    MemoryTooSmall = -12,
    /// A maximum of the library is exceeded: use a smaller model, context or configuration.
    LimitExceeded = -13,
    /// A shared buffer could not be allocated: evict more, then try again.
    OutOfMemory = -20,
    /// The RAM swap has no segment left: give chunks a swap file to go to, or a larger
    /// mz_config.segment_bytes.
    SwapFull = -21,
    /// Leases are out, and the call needs the units: release them first.
    Leased = -22,
    /// A callback failed; mz_error.value is its own number. Nothing is lost by it: look after what
    /// the callback stands for, and try again.
    Io = -30,
    /// A file ended before the bytes that were promised: it was truncated or replaced. Put it back,
    /// and open it again.
    ShortRead = -31,
    /// The storage is full: free space, or evict to RAM only.
    NoSpace = -32,
    /// A sync failed: what was written since the last good one counts as lost, and nothing more is
    /// written. mz_restore what can be read, and open anew with a swap file on sound storage.
    SyncFailed = -33,
    /// An earlier sync failed, so the storage takes no more writes. Reads still work, and what is
    /// in memory or in the RAM swap is not touched: go on without the swap file (evictions pack to
    /// RAM), and close and open anew with one on sound storage when the context may go.
    Poisoned = -34,
    /// Stored bytes are damaged. Of a context, mz_lost names the token from which to compute again;
    /// a file that was given has to be got anew.
    Corrupt = -40,
    /// The data ends before the field that mz_error.what names: get all of it.
    Truncated = -41,
    /// This is not a file of the expected kind: name the right one.
    BadMagic = -42,
    /// A value, flag or field that this version does not know: leave it 0, or use a version, or an
    /// archive with more features, that knows it.
    Unsupported = -43,
    /// The data is sound but belongs to another model or configuration: give what belongs here.
    Mismatch = -44,
    /// An eviction or a cancellation came first: begin the pass again.
    Cancelled = -50,
    /// The deadline passed first: what was done until then holds; give more time for the rest.
    DeadlinePassed = -51,
    /// There is no accelerator library, or no device that fits: use the processor, or name another.
    NoDevice = -60,
    /// The accelerator's driver refused or failed; mz_error.value is its own number. If it lacked
    /// memory, evict and try again; otherwise use the processor.
    DeviceFailed = -61,
    /// The driver's compiler failed: use the processor, or another driver.
    BuildFailed = -62,
    /// The accelerator was lost while it computed: close everything on it and open it again.
    DeviceLost = -63,
}

/// How chunks are packed into the RAM swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzCodec {
    /// The library's choice, at present q8.
    Default = 0,
    /// A copy: lossless, saves nothing.
    Raw = 1,
    /// 8-bit codes with one scale a group; half the size.
    Q8 = 2,
    /// 4-bit codes, of K by channel with up to 6 bits; less than a third of the size.
    Kv4 = 3,
    /// Multiples of steps in prefix codes; a sixth of the size.
    Kvh = 4,
    /// CacheGen as it was released, for comparison; less than a third of the size.
    CacheGen = 5,
}

/// Which units leave first. They come back in the order in which compute needs them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzOrder {
    /// Last layer first, so that compute can start on the first layers at once.
    BackwardOut = 0,
    /// First layer first. For comparison only, like those that follow.
    ForwardOut = 1,
    /// A permutation picked by order_seed.
    Random = 2,
    /// Least recently used layer first.
    Lru = 3,
}

/// How evicted units are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzScheme {
    /// Chunks are packed or written, weights dropped, so that both ways back take as long.
    Hybrid = 0,
    /// Whole layers go to storage, nothing is packed. For comparison only.
    PartialOffload = 1,
}

/// Ways out of memory for chunks, for mz_config.paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzPath {
    /// Packed into the RAM swap.
    Ram = 1,
    /// Written to the swap file.
    Flash = 2,
}

/// Kinds of actions, for mz_restore_poll_roles and mz_worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzRole {
    /// Takes shared buffers from the memory port and gives them back.
    Allocate = 1,
    /// Reads from storage and writes to the swap file.
    Read = 2,
    /// Unpacks chunks and packs them.
    Unpack = 4,
}

/// Why an eviction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub enum MzStop {
    /// What was asked for is free.
    Reached = 0,
    /// Nothing evictable is left.
    Exhausted = 1,
    /// The deadline passed.
    Deadline = 2,
    /// Another call stopped it.
    Cancelled = 3,
}

/// An open memory manager. It lies in the memory given to mz_open. Calls may come from any thread.
pub struct MzHandle {
    _private: (),
}

/// A window of the model file. An element of an array, so its size never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct MzExtent {
    /// First byte in the file, a multiple of 4096.
    pub file_offset: u64,
    /// Bytes, a multiple of 4096. The last window of the file may pass its end.
    pub bytes: u64,
    /// First byte in the unit's buffer: the sum of the unit's earlier windows.
    pub buffer_offset: u64,
}

/// One worker thread. An element of an array, so its size never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct MzWorker {
    /// What it is there for: a sum of MZ_ROLE_*. All workers together must have all roles.
    pub roles: u32,
    /// The core it is kept on, or MZ_ANY_CORE. Where that core cannot be had it runs anywhere, and
    /// mz_stats.workers_unpinned says so.
    pub core: u32,
    /// What it does while there is none of that: a sum of MZ_ROLE_*, or 0.
    pub helps: u32,
}

/// What a handle is made for. Set all to 0 first; 0 means the default where one is named.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzConfig {
    /// sizeof(struct mz_config).
    pub struct_bytes: u32,
    /// Transformer layers that hold KV, 1 to 256.
    pub kv_layers: u32,
    /// KV heads of a layer, 1 to 64.
    pub kv_heads: u32,
    /// Values of one head, a multiple of 8 from 32 to 256.
    pub head_dim: u32,
    /// Longest context, in tokens, 1 to 262144.
    pub context_tokens_max: u32,
    /// Weight units: the layers in order, then the output head if it is to be evicted; at least
    /// kv_layers, at most 256.
    pub weight_units: u32,
    /// The windows of unit 0, then those of unit 1, and so on. Read during the call only.
    pub extents: *const MzExtent,
    /// Windows of each unit, weight_units numbers from 1 to 64. NULL: one each.
    pub extents_per_unit: *const u32,
    /// Elements of extents, at most 16384.
    pub extent_count: u32,
    /// 1: chunks may go to the swap file, and the ports have one. 0: to the RAM swap only.
    pub swap_file: u32,
    /// One of mz_codec.
    pub codec: u32,
    /// One of mz_order.
    pub order: u32,
    /// One of mz_scheme.
    pub scheme: u32,
    /// Bytes of one segment of the RAM swap, at least one packed chunk. Default 4 MiB.
    pub segment_bytes: u32,
    /// Seed of MZ_ORDER_RANDOM.
    pub order_seed: u64,
    /// AArch64: getauxval(AT_HWCAP) of this machine. 0, or wherever it is unknown: only what the
    /// library was compiled for. Other machines are asked directly.
    pub hwcap: u64,
    /// Measured: sequential direct reads, bytes a second. Default 2 GB/s.
    pub read_bytes_per_s: u64,
    /// Measured: sequential direct writes, bytes a second. Default 500 MB/s.
    pub write_bytes_per_s: u64,
    /// Measured: packing by the codec on one core, bytes of F16 values a second. Default: a
    /// cautious guess for the codec.
    pub pack_bytes_per_s: u64,
    /// Measured: unpacking, likewise.
    pub unpack_bytes_per_s: u64,
    /// The model's step profile as mz_steps wrote it, for MZ_CODEC_KV4 and MZ_CODEC_KVH; others
    /// ignore it. NULL: one is made at the first eviction. Read during the call only.
    pub steps: *const u8,
    /// Bytes of steps, at most 16 MiB.
    pub steps_bytes: u64,
    /// Worker threads, which mz_ports.threads starts. NULL: none, and callers execute every action
    /// themselves, in mz_restore_poll and in calls that wait. Read during the call only.
    pub workers: *const MzWorker,
    /// Elements of workers, at most 32.
    pub worker_count: u32,
    /// Stack of each worker in bytes. Default 256 KiB.
    pub worker_stack_bytes: u32,
    /// Which ways out of memory are open for chunks: a sum of MZ_PATH_*. 0: all.
    pub paths: u32,
    /// Must be 0.
    pub reserved: u32,
}

/// A leased unit: memory that stays where it is until the lease ends.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzSpan {
    /// sizeof(struct mz_span). In an array: set in the first element, and the elements lie that
    /// many bytes apart.
    pub struct_bytes: u32,
    /// The layer of weights, or the chunk's place in the context.
    pub index: u32,
    /// First byte, a multiple of 4096. Write to it only when it came from mz_kv_tail.
    pub data: *mut c_void,
    /// Bytes.
    pub bytes: usize,
    /// The memory port's own name for the buffer (mz_region.token).
    pub token: u64,
}

/// A unit leased for an accelerator: as kernels name it until the lease ends.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzDeviceSpan {
    /// sizeof(struct mz_device_span). In an array as in mz_span.
    pub struct_bytes: u32,
    /// The layer of weights, or the chunk's place in the context.
    pub index: u32,
    /// The address that host and accelerator share; 0 where they share none.
    pub address: u64,
    /// First byte in the buffer; 0 where there is none.
    pub offset: u64,
    /// The accelerator's own buffer where there is no shared address, such as a cl_mem; else NULL.
    /// All KV chunks lie in one.
    pub buffer: *mut c_void,
    /// Bytes.
    pub bytes: usize,
}

/// What an eviction did.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzReport {
    /// sizeof(struct mz_report).
    pub struct_bytes: u32,
    /// One of mz_stop.
    pub stop: u32,
    /// Bytes asked for.
    pub asked_bytes: u64,
    /// Bytes of shared buffers given back, less what the RAM swap grew by.
    pub freed_bytes: u64,
    /// How long it took, in nanoseconds.
    pub elapsed_ns: u64,
    /// Units that stayed because they are leased.
    pub leased: u32,
    /// 0, or the MZ_ERR_* of the first failure, after which one way out of memory was closed.
    /// mz_last_error has its details.
    pub error: i32,
    /// By how much the process's memory fell as mz_ports.meter measured it; other threads'
    /// allocations count too, so it may be negative. INT64_MIN where there is no meter.
    pub measured_bytes: i64,
}

/// Numbers for people and logs.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzStats {
    /// sizeof(struct mz_stats).
    pub struct_bytes: u32,
    /// Tokens in the context.
    pub tokens: u32,
    /// Bytes in shared buffers of weight units.
    pub weight_bytes: u64,
    /// Bytes in shared buffers of chunks.
    pub kv_bytes: u64,
    /// Packed bytes in the RAM swap.
    pub ram_bytes: u64,
    /// Bytes that the memory port gave and has not got back, segments of the RAM swap included.
    pub allocated_bytes: u64,
    /// Bytes written to the swap file since mz_open. They wear the flash.
    pub swap_written_bytes: u64,
    /// Bytes read from the swap file since mz_open.
    pub swap_read_bytes: u64,
    /// Units that compute would have to wait for.
    pub units_missing: u32,
    /// Units that some thread is working on.
    pub units_busy: u32,
    /// Chunks whose last copy the storage lost.
    pub chunks_lost: u32,
    /// Chunks with a good copy in the swap file.
    pub chunks_on_flash: u32,
    /// Chunks of one layer.
    pub chunks_per_layer: u32,
    /// Segments of the RAM swap in memory.
    pub segments: u32,
    /// Worker threads on the core that mz_worker.core named.
    pub workers_pinned: u32,
    /// Those that wanted a core and did not get it.
    pub workers_unpinned: u32,
    /// 1 if the model file is read past the page cache, as far as its port says.
    pub model_is_direct: u32,
    /// 1 if the swap file is written and read past the page cache, likewise.
    pub swap_is_direct: u32,
}

/// Details of a failure.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct MzError {
    /// sizeof(struct mz_error).
    pub struct_bytes: u32,
    /// 0, or one of MZ_ERR_*.
    pub code: i32,
    /// An offset, an index, a count or a callback's own number; 0 where there is none.
    pub value: i64,
    /// The field, file or operation concerned; ends with a 0 byte.
    pub what: [c_char; 64],
}

impl MzErr {
    /// What C sees of a code.
    pub(super) const fn of(code: Code) -> MzErr {
        match code {
            Code::InvalidArgument => MzErr::InvalidArgument,
            Code::BadState => MzErr::BadState,
            Code::MemoryTooSmall => MzErr::MemoryTooSmall,
            Code::LimitExceeded => MzErr::LimitExceeded,
            Code::OutOfMemory => MzErr::OutOfMemory,
            Code::SwapFull => MzErr::SwapFull,
            Code::Leased => MzErr::Leased,
            Code::Io => MzErr::Io,
            Code::ShortRead => MzErr::ShortRead,
            Code::NoSpace => MzErr::NoSpace,
            Code::SyncFailed => MzErr::SyncFailed,
            Code::Poisoned => MzErr::Poisoned,
            Code::Corrupt => MzErr::Corrupt,
            Code::Truncated => MzErr::Truncated,
            Code::BadMagic => MzErr::BadMagic,
            Code::Unsupported => MzErr::Unsupported,
            Code::Mismatch => MzErr::Mismatch,
            Code::Cancelled => MzErr::Cancelled,
            Code::DeadlinePassed => MzErr::DeadlinePassed,
            Code::NoDevice => MzErr::NoDevice,
            Code::DeviceFailed => MzErr::DeviceFailed,
            Code::BuildFailed => MzErr::BuildFailed,
            Code::DeviceLost => MzErr::DeviceLost,
        }
    }
}

impl MzStop {
    /// What C sees of an eviction's end.
    pub(super) const fn of(stop: Stop) -> MzStop {
        match stop {
            Stop::Reached => MzStop::Reached,
            Stop::Exhausted => MzStop::Exhausted,
            Stop::Deadline => MzStop::Deadline,
            Stop::Cancelled => MzStop::Cancelled,
        }
    }
}
