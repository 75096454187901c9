//! Compiled programs in files, so that a start costs no compiler run.
//!
//! A file's name is the hash of everything that its content follows from: device, platform, driver,
//! options and sources. Invariant: a program comes out of a file only if the file is whole, by its
//! checksums, and was made from the same; anything else is as good as no file. Files are replaced
//! in one step, so several processes may share a directory. It must belong to the process's user
//! alone, since what lies there is run on the device.

use super::compiler::{Compiler, compile_in_child};
use super::context::Context;
use super::options::{BuildOptions, CText};
use super::program::{BuildLog, Program};
use super::queue::Queue;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::port::linux::whole::{PageBytes, remove, replace};
use core::ffi::CStr;

/// Largest program that is kept.
const BINARY_BYTES_MAX: usize = 64 << 20;
pub(super) const PATH_BYTES_MAX: usize = 4096;
const WHAT: &str = "program cache";

const MAGIC: [u8; 8] = *b"MZCLPROG";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 64;

/// What a program is made of.
#[derive(Clone, Copy)]
pub struct ProgramSource<'a> {
    /// Pieces, compiled as one text.
    pub sources: &'a [&'a str],
    /// Options; they are part of the program's identity.
    pub options: &'a BuildOptions,
}

/// Where a program came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A file.
    Cache,
    /// Compiled by this process.
    Here,
    /// Compiled by a child process.
    Child,
}

/// A program that is ready to run.
pub struct Ready {
    /// The program.
    pub program: Program,
    /// Where it came from.
    pub origin: Origin,
    /// Whether the next start will find it. An error here costs that start a compiler run.
    pub kept: Result<()>,
}

/// A directory of compiled programs.
#[derive(Clone, Copy, Debug)]
pub struct ProgramCache<'a> {
    directory: &'a CStr,
}

impl<'a> ProgramCache<'a> {
    /// Uses a directory that exists.
    pub const fn new(directory: &'a CStr) -> Self {
        ProgramCache { directory }
    }

    /// A program, out of its file if there is one, compiled otherwise: by `compiler` in a child
    /// process where one is given, so that a crash of the driver's compiler ends the child alone
    /// (see [`Workarounds::BUILD_IN_CHILD`](super::Workarounds::BUILD_IN_CHILD)).
    /// After `BuildFailed` the log says why, or the error's value is the signal that ended the
    /// child.
    pub fn program(
        &self,
        context: &Context,
        queue: &Queue,
        source: &ProgramSource<'_>,
        compiler: Option<&Compiler<'_>>,
        log: &mut BuildLog<'_>,
    ) -> Result<Ready> {
        let key = Key::of(context, source);
        if let Ok(program) = self.load(context, source, key, log) {
            return Ok(Ready { program, origin: Origin::Cache, kept: Ok(()) });
        }
        if let Some(compiler) = compiler {
            compile_in_child(self, context, source, key, compiler, log)?;
            if let Ok(program) = self.load(context, source, key, log) {
                return Ok(Ready { program, origin: Origin::Child, kept: Ok(()) });
            }
            // The driver does not take its own binary back. Its compiler has just proved that it
            // survives this source.
        }
        let (sources, options) = (source.sources, source.options);
        let program = Program::build_patiently(context, queue, sources, options, log)?;
        let kept = self.store(&program, key);
        Ok(Ready { program, origin: Origin::Here, kept })
    }

    fn load(
        &self,
        context: &Context,
        source: &ProgramSource<'_>,
        key: Key,
        log: &mut BuildLog<'_>,
    ) -> Result<Program> {
        let path = self.path(key, "bin")?;
        let file = PageBytes::read(WHAT, path.c_str(), HEADER_BYTES + BINARY_BYTES_MAX)?;
        let loaded = open_file(&file, key)
            .and_then(|binary| Program::load(context, binary, source.options, log));
        // What a device lacked may be there next time; anything else is the file's fault.
        if let Err(error) = &loaded
            && ![Code::OutOfMemory, Code::DeviceLost].contains(&error.code)
        {
            remove(path.c_str());
        }
        loaded
    }

    pub(super) fn store(&self, program: &Program, key: Key) -> Result<()> {
        let bytes = program.binary_bytes()?;
        if bytes == 0 {
            return Err(Error::new(Code::Unsupported, "program binary"));
        }
        if bytes > BINARY_BYTES_MAX {
            return Err(Error::new(Code::LimitExceeded, "program binary").with(bytes));
        }
        let mut binary = PageBytes::zeroed(WHAT, bytes)?;
        let written = program.binary(&mut binary)?;
        let binary = &binary[..written];
        let header = header(binary, key);
        self.replace(&self.path(key, "bin")?, &[&header, binary])
    }

    /// The file of a program, by what it holds.
    pub(super) fn path(&self, key: Key, kind: &str) -> Result<CText<PATH_BYTES_MAX>> {
        let directory = self.directory.to_str();
        let directory = directory.map_err(|_| Error::new(Code::InvalidArgument, WHAT))?;
        CText::new().add(WHAT, format_args!("{directory}/{:032x}.{kind}", key.0))
    }

    pub(super) fn replace(&self, path: &CText<PATH_BYTES_MAX>, parts: &[&[u8]]) -> Result<()> {
        // SAFETY: both calls only answer a question.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let temporary = path.add(WHAT, format_args!(".{process}.{thread}"))?;
        replace(WHAT, path.c_str(), temporary.c_str(), parts)
    }
}

/// The hash of what a program follows from: 128 bits of FNV-1a, each part behind its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key(u128);

impl Key {
    pub(super) fn of(context: &Context, source: &ProgramSource<'_>) -> Key {
        let device = context.device();
        let texts = [
            &*device.name,
            &*device.vendor,
            &*device.platform_name,
            &*device.version_text,
            &*device.driver_text,
            source.options.text(),
        ];
        Self::of_texts(&texts, source.sources)
    }

    fn of_texts(texts: &[&str], sources: &[&str]) -> Key {
        let texts = texts.iter().fold(Key(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d), Key::with);
        sources.iter().fold(texts, Key::with)
    }

    fn with(self, text: &&str) -> Key {
        const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
        let length = u64::try_from(text.len()).unwrap_or(u64::MAX).to_le_bytes();
        let step = |hash: u128, byte: &u8| (hash ^ u128::from(*byte)).wrapping_mul(PRIME);
        Key(length.iter().chain(text.as_bytes()).fold(self.0, step))
    }
}

fn crc(bytes: &[u8]) -> [u8; 4] {
    Kernels::portable().crc32c.call(0, bytes).to_le_bytes()
}

fn header(binary: &[u8], key: Key) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    let length = u64::try_from(binary.len()).unwrap_or(u64::MAX);
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&FORMAT.to_le_bytes());
    header[12..16].copy_from_slice(&crc(binary));
    header[16..32].copy_from_slice(&key.0.to_le_bytes());
    header[32..40].copy_from_slice(&length.to_le_bytes());
    let sum = crc(&header[..60]);
    header[60..].copy_from_slice(&sum);
    header
}

/// The binary in a file's bytes.
fn open_file(file: &[u8], key: Key) -> Result<&[u8]> {
    let (found, binary) =
        file.split_at_checked(HEADER_BYTES).ok_or(Error::new(Code::Truncated, WHAT))?;
    if found[..8] != MAGIC {
        return Err(Error::new(Code::BadMagic, WHAT));
    }
    if found[60..] != crc(&found[..60]) {
        return Err(Error::new(Code::Corrupt, WHAT));
    }
    if found[8..12] != FORMAT.to_le_bytes() || found[16..32] != key.0.to_le_bytes() {
        return Err(Error::new(Code::Mismatch, WHAT));
    }
    // Length and checksum of the binary are the only fields left.
    match found == header(binary, key) {
        true => Ok(binary),
        false => Err(Error::new(Code::Corrupt, WHAT)),
    }
}
