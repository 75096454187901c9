//! Programs: built from source or from a binary that the same driver made before.

use super::api::*;
use super::context::{Context, Object};
use super::info::number;
use super::kernel::Kernel;
use super::options::BuildOptions;
use super::queue::Queue;
use super::status::check;
use crate::error::{Code, Error, Result};
use core::ffi::{CStr, c_char};
use core::ptr;

/// Pieces of source that make up one program.
pub const SOURCES_MAX: usize = 16;

const BUILD_TRIES: u32 = 3;

/// Whether a failed build may succeed when it is repeated.
fn may_pass(code: Code, log: &str) -> bool {
    let failed = [Code::BuildFailed, Code::DeviceFailed, Code::OutOfMemory].contains(&code);
    failed && !log.contains("error:")
}

/// What the compiler had to say, in the caller's memory.
pub struct BuildLog<'a> {
    bytes: &'a mut [u8],
    length: usize,
}

impl<'a> BuildLog<'a> {
    /// Empty; what does not fit in `bytes` is left out.
    pub fn new(bytes: &'a mut [u8]) -> Self {
        BuildLog { bytes, length: 0 }
    }

    /// As far as it is text.
    pub fn text(&self) -> &str {
        let bytes = &self.bytes[..self.length];
        match core::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => core::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        }
    }

    fn read(&mut self, context: &Context, program: &Object) {
        self.length = 0;
        let get = context.api.get_build_info;
        let (program, device) = (program.handle(), context.device().device);
        let mut needed = 0;
        // SAFETY: program and device are alive; a null place only asks for the size.
        let status =
            unsafe { get(program, device, PROGRAM_BUILD_LOG, 0, ptr::null_mut(), &raw mut needed) };
        // Drivers refuse a place that is too small for all of it.
        if status != SUCCESS || needed > self.bytes.len() {
            self.set("the compiler's log is longer than the memory for it");
            return;
        }
        let place = self.bytes.as_mut_ptr().cast();
        // SAFETY: as above, and `bytes` is writable for `needed`.
        let status =
            unsafe { get(program, device, PROGRAM_BUILD_LOG, needed, place, ptr::null_mut()) };
        if status == SUCCESS {
            let text = &self.bytes[..needed];
            self.length = text.iter().position(|byte| *byte == 0).unwrap_or(needed);
        }
    }

    pub(super) fn set(&mut self, text: &str) {
        self.length = text.len().min(self.bytes.len());
        self.bytes[..self.length].copy_from_slice(&text.as_bytes()[..self.length]);
    }
}

/// A program that was built.
pub struct Program {
    api: &'static Api,
    object: Object,
    device: Handle,
}

impl Program {
    /// Compiles the sources, one after another as one text. After `BuildFailed` the log says why;
    /// otherwise it may hold warnings.
    pub fn build(
        context: &Context,
        sources: &[&str],
        options: &BuildOptions,
        log: &mut BuildLog<'_>,
    ) -> Result<Program> {
        let mut texts = [ptr::null::<c_char>(); SOURCES_MAX];
        let mut lengths = [0; SOURCES_MAX];
        let count = u32::try_from(sources.len()).unwrap_or(u32::MAX);
        if sources.is_empty() || sources.len() > SOURCES_MAX {
            return Err(Error::new(Code::InvalidArgument, "program sources").with(count));
        }
        for ((text, length), source) in texts.iter_mut().zip(&mut lengths).zip(sources) {
            (*text, *length) = (source.as_ptr().cast(), source.len());
        }
        let api = context.api;
        let mut status = SUCCESS;
        // SAFETY: the context is alive; texts and lengths have `count` entries of live strings.
        let handle = unsafe {
            (api.create_program)(
                context.object.handle(),
                count,
                texts.as_ptr(),
                lengths.as_ptr(),
                &raw mut status,
            )
        };
        Self::finish(context, handle, status, options, log)
    }

    /// The same, once more and again after failures that may pass: a compiler that lacked memory,
    /// or a driver that was busy. What the compiler says of the source itself is final.
    pub fn build_patiently(
        context: &Context,
        queue: &Queue,
        sources: &[&str],
        options: &BuildOptions,
        log: &mut BuildLog<'_>,
    ) -> Result<Program> {
        let mut tries = BUILD_TRIES;
        loop {
            let error = match Self::build(context, sources, options, log) {
                Ok(program) => return Ok(program),
                Err(error) => error,
            };
            tries -= 1;
            if tries == 0 || !may_pass(error.code, log.text()) {
                return Err(error);
            }
            // Frees what the driver keeps for commands that have run.
            queue.finish()?;
        }
    }

    /// Loads what [`Program::binary`] of the same device and driver wrote. `Mismatch` or
    /// `BuildFailed` where the driver does not take it: build from source then.
    pub fn load(
        context: &Context,
        binary: &[u8],
        options: &BuildOptions,
        log: &mut BuildLog<'_>,
    ) -> Result<Program> {
        if binary.is_empty() {
            return Err(Error::new(Code::Truncated, "program binary"));
        }
        let api = context.api;
        let (device, length, bytes) = (context.device().device, binary.len(), binary.as_ptr());
        let mut binary_status = SUCCESS;
        let mut status = SUCCESS;
        // SAFETY: context and device are alive; one device, one length and one binary are given.
        let handle = unsafe {
            (api.create_program_from_binary)(
                context.object.handle(),
                1,
                &raw const device,
                &raw const length,
                &raw const bytes,
                &raw mut binary_status,
                &raw mut status,
            )
        };
        check("program binary", if status == SUCCESS { binary_status } else { status })?;
        Self::finish(context, handle, status, options, log)
    }

    fn finish(
        context: &Context,
        handle: Handle,
        status: Status,
        options: &BuildOptions,
        log: &mut BuildLog<'_>,
    ) -> Result<Program> {
        let api = context.api;
        let object = Object::new("OpenCL program", handle, status, api.release_program)?;
        let device = context.device().device;
        // SAFETY: program and device are alive, the options are a C string; nobody is notified, so
        // the call returns when the build is done.
        let status = unsafe {
            (api.build_program)(
                object.handle(),
                1,
                &raw const device,
                options.c_str().as_ptr(),
                None,
                ptr::null_mut(),
            )
        };
        log.read(context, &object);
        check("clBuildProgram", status)?;
        Ok(Program { api, object, device })
    }

    /// One of its kernels. `InvalidArgument` where it has none of that name.
    pub fn kernel(&self, name: &'static CStr) -> Result<Kernel> {
        Kernel::new(self.api, self.object.handle(), self.device, name)
    }

    /// Bytes of the compiled program; 0 where the driver gives none.
    pub fn binary_bytes(&self) -> Result<usize> {
        number(
            self.api.get_program_info,
            self.object.handle(),
            PROGRAM_BINARY_SIZES,
            "program binary",
        )
    }

    /// Writes the compiled program, and says how many bytes it has.
    pub fn binary(&self, into: &mut [u8]) -> Result<usize> {
        let bytes = self.binary_bytes()?;
        if bytes > into.len() {
            return Err(Error::new(Code::MemoryTooSmall, "program binary").with(bytes));
        }
        let place = into.as_mut_ptr();
        let what = "program binary";
        let get = self.api.get_program_info;
        let mut written = 0;
        // SAFETY: the program is alive; the property is one address a device, and the program has
        // one device, for which `place` is writable for the binary's size.
        let status = unsafe {
            get(
                self.object.handle(),
                PROGRAM_BINARIES,
                size_of::<*mut u8>(),
                (&raw const place).cast_mut().cast(),
                &raw mut written,
            )
        };
        check(what, status)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_may_pass_are_repeated() {
        assert!(may_pass(Code::BuildFailed, ""));
        assert!(may_pass(Code::OutOfMemory, "out of memory"));
        assert!(!may_pass(Code::BuildFailed, "a.cl:1:2: error: unknown type"));
        assert!(!may_pass(Code::InvalidArgument, ""));
        assert!(!may_pass(Code::DeviceLost, ""));
    }

    #[test]
    fn a_log_is_cut_to_its_memory() {
        let mut bytes = [0; 4];
        let mut log = BuildLog::new(&mut bytes);
        assert_eq!(log.text(), "");
        log.set("abcdef");
        assert_eq!(log.text(), "abcd");
        log.set("abc\u{e9}");
        assert_eq!(log.text(), "abc");
    }
}
