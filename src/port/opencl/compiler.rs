//! Compiling in a child process: drivers' compilers crash, and a crash must not take the service
//! down.
//!
//! The parent writes a request next to the cached programs, and runs a program of the caller's
//! (usually itself) which passes the request to [`compile_request`]. The child writes the compiled
//! program where the parent looks for it, and the compiler's log when it failed. Forking instead
//! would be unsound: drivers have threads and locks that the copy would lack and hold.

use super::api::Api;
use super::cache::{Key, PATH_BYTES_MAX, ProgramCache, ProgramSource};
use super::context::Context;
use super::device::{DeviceInfo, Devices};
use super::options::{BuildOptions, CText};
use super::program::{BuildLog, Program, SOURCES_MAX};
use super::queue::Queue;
use crate::error::{Code, Error, Result};
use crate::kernel::Kernels;
use crate::port::linux::child::{ARGUMENTS_MAX, Ending, run};
use crate::port::linux::whole::{PageBytes, remove};
use crate::units::Nanos;
use core::ffi::CStr;
use std::sync::OnceLock;

const WHAT: &str = "compile request";
const MAGIC: [u8; 8] = *b"MZCLREQ1";
const REQUEST_BYTES_MAX: usize = 16 << 20;
const LOG_BYTES_MAX: usize = 64 << 10;

/// A program that compiles on request.
#[derive(Clone, Copy, Debug)]
pub struct Compiler<'a> {
    /// Its file.
    pub program: &'a CStr,
    /// Its arguments; the request's path follows as the last one. The program then calls
    /// [`compile_request`] and exits with zero if that succeeded.
    pub arguments: &'a [&'a CStr],
    /// The OpenCL library, as [`Api::load`] was given it.
    pub library: Option<&'a CStr>,
    /// Longest time it may take; then it is killed.
    pub time_max: Nanos,
}

/// What a request holds, in the order in which it is written.
struct Request<'a> {
    library: &'a str,
    name: &'a str,
    platform: &'a str,
    version: &'a str,
    driver: &'a str,
    options: &'a str,
    sources: [&'a str; SOURCES_MAX],
    count: usize,
}

const FIELDS: usize = 6;

impl<'a> Request<'a> {
    fn new(
        device: &'a DeviceInfo,
        source: &ProgramSource<'a>,
        library: Option<&'a CStr>,
    ) -> Result<Self> {
        let count = source.sources.len();
        if count == 0 || count > SOURCES_MAX {
            return Err(Error::new(Code::InvalidArgument, "program sources").with(count));
        }
        let library = library.unwrap_or_default().to_str();
        let mut sources = [""; SOURCES_MAX];
        sources[..count].copy_from_slice(source.sources);
        Ok(Request {
            library: library.map_err(|_| Error::new(Code::InvalidArgument, "OpenCL library"))?,
            name: &device.name,
            platform: &device.platform_name,
            version: &device.version_text,
            driver: &device.driver_text,
            options: source.options.text(),
            sources,
            count,
        })
    }

    fn texts(&self) -> impl Iterator<Item = &'a str> {
        let fields =
            [self.library, self.name, self.platform, self.version, self.driver, self.options];
        fields.into_iter().chain(self.sources.into_iter().take(self.count))
    }

    /// Magic, checksum of the rest, and each text behind its length.
    fn write(&self) -> Result<PageBytes> {
        let lengths: usize = self.texts().map(|text| text.len() + 4).sum();
        let mut bytes = PageBytes::zeroed(WHAT, 12 + lengths)?;
        let mut at = 12;
        for text in self.texts() {
            let too_long = Error::new(Code::LimitExceeded, WHAT).with(text.len());
            let length = u32::try_from(text.len()).map_err(|_| too_long)?;
            bytes[at..at + 4].copy_from_slice(&length.to_le_bytes());
            bytes[at + 4..at + 4 + text.len()].copy_from_slice(text.as_bytes());
            at += 4 + text.len();
        }
        let crc = Kernels::portable().crc32c.call(0, &bytes[12..]).to_le_bytes();
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&crc);
        Ok(bytes)
    }

    fn read(bytes: &'a [u8]) -> Result<Self> {
        let truncated = Error::new(Code::Truncated, WHAT);
        let (head, mut rest) = bytes.split_at_checked(12).ok_or(truncated)?;
        if head[..8] != MAGIC {
            return Err(Error::new(Code::BadMagic, WHAT));
        }
        if head[8..] != Kernels::portable().crc32c.call(0, rest).to_le_bytes() {
            return Err(Error::new(Code::Corrupt, WHAT));
        }
        let mut texts = [""; FIELDS + SOURCES_MAX];
        let mut count = 0;
        while let Some((length, tail)) = rest.split_first_chunk() {
            let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
            let (text, tail) = tail.split_at_checked(length).ok_or(truncated)?;
            let place = texts.get_mut(count).ok_or(Error::new(Code::LimitExceeded, WHAT))?;
            *place = core::str::from_utf8(text).map_err(|_| Error::new(Code::Corrupt, WHAT))?;
            count += 1;
            rest = tail;
        }
        if !rest.is_empty() || count <= FIELDS {
            return Err(truncated);
        }
        let ([library, name, platform, version, driver, options], sources) =
            split(&texts).ok_or(truncated)?;
        let count = count - FIELDS;
        Ok(Request { library, name, platform, version, driver, options, sources, count })
    }

    fn means(&self, device: &DeviceInfo) -> bool {
        let own = [self.name, self.platform, self.version, self.driver];
        let texts =
            [&*device.name, &*device.platform_name, &*device.version_text, &*device.driver_text];
        own == texts
    }
}

type Split<'a> = ([&'a str; FIELDS], [&'a str; SOURCES_MAX]);

fn split<'a>(texts: &[&'a str; FIELDS + SOURCES_MAX]) -> Option<Split<'a>> {
    let (fields, sources) = texts.split_first_chunk()?;
    Some((*fields, *sources.first_chunk()?))
}

/// The parent's side: the compiled program is in the cache, or the error and the log say why not.
pub(super) fn compile_in_child(
    cache: &ProgramCache<'_>,
    context: &Context,
    source: &ProgramSource<'_>,
    key: Key,
    compiler: &Compiler<'_>,
    log: &mut BuildLog<'_>,
) -> Result<()> {
    let mut arguments = [c""; ARGUMENTS_MAX];
    let count = compiler.arguments.len();
    if count >= ARGUMENTS_MAX {
        return Err(Error::new(Code::LimitExceeded, "compiler's arguments").with(count));
    }
    // Threads of several processes may ask for the same program at a time.
    // SAFETY: the call only answers a question.
    let thread = unsafe { libc::gettid() };
    let path = cache.path(key, "request")?.add(WHAT, format_args!("{thread}"))?;
    let log_path = path.add(WHAT, format_args!(".log"))?;
    cache.replace(&path, &[&Request::new(context.device(), source, compiler.library)?.write()?])?;
    arguments[..count].copy_from_slice(compiler.arguments);
    arguments[count] = path.c_str();
    let ending = run("compiler", compiler.program, &arguments[..=count], compiler.time_max);
    remove(path.c_str());
    let said = PageBytes::read("compiler's log", log_path.c_str(), LOG_BYTES_MAX);
    remove(log_path.c_str());
    log.set(match &said {
        Ok(said) => core::str::from_utf8(said).unwrap_or_default(),
        Err(_) => "",
    });
    match ending? {
        // Then the file is there, or it is not.
        Ending::Exited(0) | Ending::Unknown => Ok(()),
        Ending::Exited(status) => Err(Error::new(Code::BuildFailed, "compiler").with(status)),
        Ending::Signalled(signal) => {
            log.set("the compiler crashed");
            Err(Error::new(Code::BuildFailed, "compiler crashed").with(signal))
        }
        Ending::TimedOut => Err(Error::new(Code::DeadlinePassed, "compiler")),
    }
}

/// The child's side: compiles what the request at `path` says, and leaves the program or the log
/// where the parent looks for it. Once in a process, which then ends.
pub fn compile_request(path: &CStr) -> Result<()> {
    let bytes = PageBytes::read(WHAT, path, REQUEST_BYTES_MAX)?;
    let request = Request::read(&bytes)?;
    let mut memory = PageBytes::zeroed(WHAT, LOG_BYTES_MAX)?;
    let mut log = BuildLog::new(&mut memory);
    let result = compile(path, &request, &mut log);
    if result.is_err() {
        let invalid = Error::new(Code::InvalidArgument, WHAT);
        let text = path.to_str().map_err(|_| invalid)?;
        let log_path = CText::<PATH_BYTES_MAX>::new().add(WHAT, format_args!("{text}.log"))?;
        ProgramCache::new(c"").replace(&log_path, &[log.text().as_bytes()])?;
    }
    result
}

fn compile(path: &CStr, request: &Request<'_>, log: &mut BuildLog<'_>) -> Result<()> {
    let text = path.to_str().map_err(|_| Error::new(Code::InvalidArgument, WHAT))?;
    let directory = text.rsplit_once('/').map_or(".", |(directory, _)| directory);
    let directory = CText::<PATH_BYTES_MAX>::new().add(WHAT, format_args!("{directory}"))?;
    let library = CText::<PATH_BYTES_MAX>::new().add(WHAT, format_args!("{}", request.library))?;
    let api = Api::load((!request.library.is_empty()).then(|| library.c_str()))?;
    static LOADED: OnceLock<Api> = OnceLock::new();
    LOADED.set(api).map_err(|_| Error::new(Code::BadState, "a process compiles one request"))?;
    let api = LOADED.get().ok_or(Error::new(Code::BadState, WHAT))?;
    let devices = Devices::enumerate(api)?;
    let device = devices.iter().find(|device| request.means(device));
    let device = device.ok_or(Error::new(Code::NoDevice, "OpenCL device of the request"))?;
    let context = Context::new(api, device)?;
    let queue = Queue::new(&context, false)?;
    let options = BuildOptions::of_text(request.options)?;
    let sources = &request.sources[..request.count];
    let program = Program::build_patiently(&context, &queue, sources, &options, log)?;
    let source = ProgramSource { sources, options: &options };
    ProgramCache::new(directory.c_str()).store(&program, Key::of(&context, &source))
}
