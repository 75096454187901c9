//! Devices to run on, and one kernel call.

use mzcache::kernel::opencl::{HALF, Launch, Macro, POOL, SUBGROUP, Source, TableEntry};
use mzcache::port::opencl::{
    Api, Block, BuildLog, BuildOptions, Choice, Context, Devices, Kernel, MemoryMode, Program,
    Queue, WorkSize,
};
use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// PoCL 3.1 crashes when two threads compile at once, so one test has a device at a time.
static TURN: Mutex<()> = Mutex::new(());

/// How a table names chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// By address, in memory of this mode.
    Addresses(MemoryMode),
    /// By offset into one buffer.
    Offsets,
}

/// An opened device and how to build for it.
pub struct Device {
    context: Context,
    queue: Queue,
    pub table: Table,
    pub has_half: bool,
    pub has_subgroups: bool,
    /// By entry point and options: programs that were built before.
    programs: RefCell<HashMap<(&'static CStr, String), Program>>,
    _turn: MutexGuard<'static, ()>,
}

impl Device {
    fn open(path: &CStr, name: &str) -> Result<Device, mzcache::Error> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // The library stays loaded: drivers leave threads and exit handlers behind.
        let api: &'static Api = Box::leak(Box::new(Api::load(Some(path))?));
        let info = Devices::enumerate(api)?.choose(Choice::Named(name))?;
        let context = Context::new(api, &info)?;
        let queue = Queue::new(&context, false)?;
        let table = match MemoryMode::best(&info) {
            MemoryMode::Buffers => Table::Offsets,
            shared => Table::Addresses(shared),
        };
        Ok(Device {
            context,
            queue,
            table,
            has_half: false,
            has_subgroups: false,
            programs: RefCell::default(),
            _turn: turn,
        })
    }

    /// The device of these tests.
    pub fn any() -> Option<Device> {
        let name = std::env::var("MZ_TEST_OPENCL_DEVICE").unwrap_or("portable computing".into());
        match Device::open(c"libOpenCL.so.1", &name) {
            Ok(device) => Some(device),
            Err(error) => {
                assert!(std::env::var_os("MZ_CI").is_none(), "{name}: {error}");
                eprintln!("NOT CHECKED: no OpenCL device {name}: {error}");
                None
            }
        }
    }

    /// The same with tables of another kind, where the device has the memory for it.
    pub fn with_table(mut self, table: Table) -> Option<Device> {
        if let Table::Addresses(mode) = table
            && !mode.is_offered(self.context.device())
        {
            eprintln!("NOT CHECKED: the device has no memory for {table:?}");
            return None;
        }
        self.table = table;
        Some(self)
    }

    /// Intel's CPU runtime, with the arithmetic and reductions that only it has here.
    pub fn intel(has_half: bool, has_subgroups: bool) -> Option<Device> {
        let path = std::env::var("MZ_INTEL_OPENCL").ok()?;
        let mut device = Device::open(&CString::new(path).unwrap(), "intel").unwrap();
        let info = device.context.device();
        assert!(info.fp16 && info.subgroups);
        (device.has_half, device.has_subgroups) = (has_half, has_subgroups);
        Some(device)
    }

    /// Oclgrind; `None` where it is not installed.
    pub fn oclgrind() -> Option<Device> {
        Device::open(c"/usr/lib/oclgrind/liboclgrind-rt.so", "oclgrind").ok()
    }

    pub fn local_bytes(&self) -> u64 {
        self.context.device().local_bytes
    }

    /// A kernel of a program that must build.
    pub fn call(&self, source: Source, macros: &[Macro]) -> Call<'_> {
        let kernel = self.build(source, macros);
        Call { device: self, kernel, next: 0 }
    }

    fn build(&self, source: Source, macros: &[Macro]) -> Kernel {
        let mut options = BuildOptions::for_device(self.context.device()).unwrap();
        options = options.with("-cl-mad-enable").unwrap();
        for (name, value) in macros {
            options = options.define(name, value).unwrap();
        }
        let flags = [
            (HALF, self.has_half),
            (SUBGROUP, self.has_subgroups),
            (POOL, self.table == Table::Offsets),
        ];
        for (name, _) in flags.iter().filter(|(_, is_set)| *is_set) {
            options = options.define(name, 1).unwrap();
        }
        let mut programs = self.programs.borrow_mut();
        let key = (source.name, options.text().to_owned());
        if let Some(program) = programs.get(&key) {
            return program.kernel(source.name).unwrap();
        }
        let mut memory = vec![0; 1 << 16];
        let mut log = BuildLog::new(&mut memory);
        let built = Program::build(&self.context, source.pieces, &options, &mut log);
        let program = built.unwrap_or_else(|error| panic!("{:?}: {error}\n{}", key, log.text()));
        programs.entry(key).or_insert(program).kernel(source.name).unwrap()
    }

    fn mode(&self) -> MemoryMode {
        match self.table {
            Table::Addresses(mode) => mode,
            Table::Offsets => MemoryMode::Buffers,
        }
    }

    pub fn block(&self, bytes: &[u8]) -> Block {
        let mut block = Block::new(&self.context, &self.queue, self.mode(), bytes.len()).unwrap();
        block.write(0, bytes).unwrap();
        block
    }

    pub fn floats(&self, values: &[f32]) -> Block {
        self.block(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    pub fn halves(&self, values: &[u16]) -> Block {
        self.block(&values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<_>>())
    }

    /// Chunks in device memory and their table; a chunk that is `None` was freed, and its entry
    /// points nowhere.
    pub fn chunks(&self, chunks: &[Option<Vec<u16>>]) -> Chunks {
        const FREED: u64 = 0xdead_0000_dead_0000;
        let mut blocks = vec![];
        let mut entries = vec![TableEntry::f16(FREED, 256); chunks.len()];
        match self.table {
            Table::Addresses(_) => {
                // In descending order, so that neighbours in the table are not so in memory.
                for (entry, chunk) in entries.iter_mut().zip(chunks).rev() {
                    let Some(chunk) = chunk else { continue };
                    let block = self.halves(chunk);
                    *entry = TableEntry::f16(block.region().address, 256);
                    blocks.push(block);
                }
            }
            Table::Offsets => {
                let mut pool = vec![];
                for (entry, chunk) in entries.iter_mut().zip(chunks).rev() {
                    let Some(chunk) = chunk else { continue };
                    *entry = TableEntry::f16(2 * pool.len() as u64, 256);
                    pool.extend_from_slice(chunk);
                }
                blocks.push(self.halves(&pool));
            }
        }
        let bytes: Vec<u8> = entries.iter().flat_map(|entry| entry.to_bytes()).collect();
        Chunks { blocks, table: self.block(&bytes) }
    }
}

/// Chunks in device memory. By address each is a block of its own, the last chunk first; by offset
/// one block holds all.
pub struct Chunks {
    pub blocks: Vec<Block>,
    table: Block,
}

/// A kernel whose arguments are set one after the other.
pub struct Call<'a> {
    device: &'a Device,
    kernel: Kernel,
    next: u32,
}

impl Call<'_> {
    fn index(&mut self) -> u32 {
        self.next += 1;
        self.next - 1
    }

    pub fn memory(mut self, block: &Block) -> Self {
        let index = self.index();
        self.kernel.set_memory(index, block.region()).unwrap();
        self
    }

    pub fn table(mut self, chunks: &Chunks) -> Self {
        if let Table::Addresses(_) = self.device.table {
            let addresses: Vec<u64> =
                chunks.blocks.iter().map(|block| block.region().address).collect();
            self.kernel.list_memory(&addresses).unwrap();
        }
        self.memory(&chunks.table)
    }

    /// The pool, last, where tables hold offsets.
    pub fn pool(self, chunks: &Chunks) -> Self {
        match self.device.table {
            Table::Addresses(_) => self,
            Table::Offsets => self.memory(&chunks.blocks[0]),
        }
    }

    pub fn u32(mut self, value: impl TryInto<u32>) -> Self {
        let index = self.index();
        let value = value.try_into().unwrap_or_else(|_| panic!("argument {index}"));
        self.kernel.set_value::<u32>(index, value).unwrap();
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        let index = self.index();
        self.kernel.set_value(index, value).unwrap();
        self
    }

    pub fn f32(mut self, value: f32) -> Self {
        let index = self.index();
        self.kernel.set_value(index, value).unwrap();
        self
    }

    pub fn launch(self, launch: Launch) {
        self.run(WorkSize::groups(launch.groups, launch.local));
    }

    /// Work-items in up to three dimensions, in groups of the driver's choice.
    pub fn items(self, global: [usize; 3]) {
        self.run(WorkSize { global, local: None });
    }

    fn run(self, size: WorkSize) {
        self.device.queue.run(&self.kernel, size).unwrap();
        self.device.queue.finish().unwrap();
    }
}

pub fn read_floats(block: &Block) -> Vec<f32> {
    let mut bytes = vec![0; block.bytes()];
    block.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|four| f32::from_ne_bytes(four.try_into().unwrap())).collect()
}

pub fn read_halves(block: &Block) -> Vec<u16> {
    let mut bytes = vec![0; block.bytes()];
    block.read(0, &mut bytes).unwrap();
    bytes.chunks_exact(2).map(|two| u16::from_ne_bytes(two.try_into().unwrap())).collect()
}
