//! Sessions that compute through OpenCL: opening the device, keeping compiled kernels, and having
//! them compiled in a process of their own.

use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::paths::{self, CacheDir};
use mzcache::infer::opencl::{Accelerator, ClOptions, ClReport};
use mzcache::infer::{Model, Session, SessionConfig, SessionPorts};
use mzcache::port::linux::map_arena;
use mzcache::port::opencl::{Api, BuildLog, Choice, Compiler, ProgramCache, compile_request};
use mzcache::units::Nanos;
use std::path::Path;

/// Longest time that compiling one program may take: some drivers need seconds for each.
const COMPILE_TIME_MAX: Nanos = Nanos::new(120_000_000_000);

/// Opens a session on the device that the options name; also says which one that is, and what
/// became of its kernels.
pub fn open(
    model: Model,
    config: &SessionConfig<'_>,
    ports: SessionPorts,
    options: &cli::Accelerator,
    cache: &CacheDir,
) -> Outcome<(Session, String)> {
    let library = options.library.as_deref().map(paths::c_path).transpose()?;
    // Drivers leave threads and exit handlers behind, so the library stays for good.
    let api: &'static Api = Box::leak(Box::new(Api::load(library.as_deref())?));
    let choice = options.device.as_deref().map_or(Choice::Best, Choice::Named);
    let memory = options.mode()?;
    let mut accelerator = Accelerator::open(api, choice, memory)?;
    if options.is_measured {
        accelerator = accelerator.measuring()?;
    }
    let directory = cache.root().join("opencl");
    paths::create(&directory)?;
    let directory = paths::c_path(&directory)?;
    let program = std::env::current_exe()
        .map_err(|error| Failure::new(format!("cannot find this program's own file: {error}")))?;
    let program = paths::c_path(&program)?;
    let compiler = Compiler {
        program: &program,
        arguments: &[c"compile-opencl"],
        library: library.as_deref(),
        time_max: COMPILE_TIME_MAX,
    };
    let cache = Some(ProgramCache::new(&directory));
    let compiler = Some(&compiler);
    let options = ClOptions { cache, compiler, ..ClOptions::default() };
    let memory = map_arena(Session::required_bytes_on(&model, config)?)?;
    let mut bytes = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut bytes);
    let session = Session::open_on(&accelerator, model, config, &options, &mut log, memory, ports);
    let mut session = session.map_err(|error| match log.text().trim() {
        "" => Failure::from(error),
        text => Failure::from(error).about(text),
    })?;
    let device = accelerator.device();
    let kernels = session.opencl().map(|transformer| kernels(transformer.report()));
    let kernels = kernels.unwrap_or_default();
    Ok((session, format!("{}, {}; {kernels}", device.name, accelerator.mode().name())))
}

/// Where the kernels came from, and what is wrong with them.
fn kernels(report: &ClReport) -> String {
    let ClReport { programs, cached, in_child, not_kept, .. } = *report;
    let here = programs - cached - in_child;
    let mut text = format!("{programs} kernels");
    for (count, from) in [
        (cached, "from the cache"),
        (in_child, "compiled in a child process"),
        (here, "compiled here"),
        (not_kept, "not kept for the next start"),
        (report.spilling, "in need of more registers than the device has"),
    ] {
        if count > 0 {
            text.push_str(&format!(", {count} {from}"));
        }
    }
    if let Some(name) = report.spilling_kernel {
        text.push_str(&format!(" ({name} is one)"));
    }
    text
}

/// The child's side of compiling.
pub fn compile(request: &Path) -> Outcome<()> {
    Ok(compile_request(&paths::c_path(request)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_counted_by_where_they_came_from() {
        let mut report = ClReport { programs: 14, cached: 14, ..ClReport::default() };
        assert_eq!(kernels(&report), "14 kernels, 14 from the cache");
        report.cached = 2;
        report.in_child = 11;
        report.not_kept = 1;
        report.spilling = 3;
        report.spilling_kernel = Some("matmul_many");
        assert_eq!(
            kernels(&report),
            "14 kernels, 2 from the cache, 11 compiled in a child process, 1 compiled here, \
             1 not kept for the next start, 3 in need of more registers than the device has \
             (matmul_many is one)"
        );
    }
}
