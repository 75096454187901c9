//! `mzcache profile`: measures this machine and writes the profile that eviction is planned by.

use super::Console;
use crate::amount::{Size, rate};
use crate::cli::{Common, Profile as Arguments};
use crate::failure::{Failure, Outcome};
use crate::measure::{self, CodecRate};
use crate::paths::{self, CacheDir};
use crate::place;
use mzcache::codec::codec;
use mzcache::kernel::Kernels;
use mzcache::policy::{CodecRates, Profile};
use mzcache::port::Storage;
use mzcache::port::linux::{File, host_cpu};
use mzcache::units::{CodecId, KvShape};
use serde::Serialize;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Chunks of 1 MiB, as Qwen3-0.6B has them.
const SHAPE: KvShape = KvShape { layers: 28, kv_heads: 8, head_dim: 128 };
const CODEC_TIME: Duration = Duration::from_millis(300);

#[derive(Serialize)]
struct Report {
    profile: PathBuf,
    is_direct: bool,
    read_bytes_per_s: u64,
    write_bytes_per_s: u64,
    codecs: Vec<CodecReport>,
}

#[derive(Serialize)]
struct CodecReport {
    codec: &'static str,
    pack_bytes_per_s: u64,
    unpack_bytes_per_s: u64,
    chunk_bytes: u64,
    packed_bytes: u64,
}

/// Measures, writes the file, prints what was found.
pub fn profile(common: &Common, arguments: &Arguments, console: &mut Console<'_>) -> Outcome<()> {
    let cache = CacheDir::find(common.cache_dir.clone())?;
    cache.create()?;
    let target = arguments.output.clone().unwrap_or_else(|| cache.profile());
    let bytes = arguments.read_bytes.0;
    console.note(&format!("measuring storage with {} in {}", Size(bytes), cache.root().display()));
    let (write, read, is_direct) = storage(&cache, bytes, console)?;
    if !is_direct {
        console.note("this file system refuses direct I/O; the rates are those of buffered I/O");
    }
    let kernels = Kernels::select(host_cpu());
    let mut profile =
        Profile { read_bytes_per_s: read, write_bytes_per_s: write, ..Profile::DEFAULT };
    let mut codecs = Vec::new();
    for id in CodecId::ALL {
        let found = measure::codec_rate(codec(id), &kernels, SHAPE, CODEC_TIME)?;
        *profile.rates_mut(id) = CodecRates {
            pack_bytes_per_s: found.pack_bytes_per_second,
            unpack_bytes_per_s: found.unpack_bytes_per_second,
        };
        codecs.push(report(found));
    }
    write_profile(&target, &profile)?;
    let report = Report {
        profile: target,
        is_direct,
        read_bytes_per_s: read,
        write_bytes_per_s: write,
        codecs,
    };
    match arguments.json {
        true => console.print_json(&report),
        false => console.print(&report.text()),
    }
}

/// Write rate, read rate, and whether transfers were direct, of a file that has no name any more
/// once it is open: whatever ends this process, nothing is left behind.
fn storage(cache: &CacheDir, bytes: u64, console: &Console<'_>) -> Outcome<(u64, u64, bool)> {
    place::require_space(cache.root(), bytes)?;
    let path = cache.root().join(format!("measure-{}.tmp", std::process::id()));
    let file = File::create_swap(&paths::c_path(&path)?)
        .map_err(|error| Failure::from(error).about(path.display()))?;
    fs::remove_file(&path).map_err(|error| Failure::file("remove", &path, &error))?;
    let bar = console.bars().bytes("measuring", 2 * bytes);
    let write = measure::write_rate(&file, bytes, &bar)?;
    let read = measure::read_rate(&file, bytes, &bar)?;
    bar.finish_and_clear();
    Ok((write, read, file.is_direct()))
}

fn write_profile(target: &Path, profile: &Profile) -> Outcome<()> {
    let mut text = String::new();
    profile.write(&mut text).map_err(|error| Failure::new(format!("profile: {error}")))?;
    let fill = |out: &mut dyn Write| out.write_all(text.as_bytes());
    place::place(target, text.len() as u64, || false, fill)?;
    Ok(())
}

fn report(rate: CodecRate) -> CodecReport {
    CodecReport {
        codec: rate.codec.name(),
        pack_bytes_per_s: rate.pack_bytes_per_second,
        unpack_bytes_per_s: rate.unpack_bytes_per_second,
        chunk_bytes: rate.chunk_bytes,
        packed_bytes: rate.packed_bytes,
    }
}

impl Report {
    fn text(&self) -> String {
        let io = if self.is_direct { "direct" } else { "buffered" };
        let mut text = format!(
            "storage: {io} reads {}, writes {}\n",
            rate(self.read_bytes_per_s),
            rate(self.write_bytes_per_s)
        );
        for codec in &self.codecs {
            text.push_str(&format!(
                "{}: packs {} and unpacks {} a core, {} of a chunk become {}\n",
                codec.codec,
                rate(codec.pack_bytes_per_s),
                rate(codec.unpack_bytes_per_s),
                Size(codec.chunk_bytes),
                Size(codec.packed_bytes),
            ));
        }
        text.push_str(&format!("written: {}\n", self.profile.display()));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(cache: &Path, read_bytes: u64, json: bool) -> (Outcome<()>, String) {
        let common = Common { cache_dir: Some(cache.to_owned()), quiet: true };
        let arguments = Arguments { read_bytes: Size(read_bytes), output: None, json };
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut console = Console::new(&common, &mut out, &mut notes);
        let outcome = profile(&common, &arguments, &mut console);
        (outcome, String::from_utf8(out).unwrap())
    }

    #[test]
    fn the_file_holds_what_was_printed_and_nothing_else_is_left() {
        let cache = tempfile::tempdir().unwrap();
        let (outcome, text) = run(cache.path(), measure::READ_BYTES_MIN, true);
        outcome.unwrap();
        let printed: serde_json::Value = serde_json::from_str(&text).unwrap();
        let file = cache.path().join("profile.txt");
        let profile = Profile::parse(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(printed["read_bytes_per_s"], profile.read_bytes_per_s);
        assert_eq!(printed["write_bytes_per_s"], profile.write_bytes_per_s);
        let q8 = profile.rates(CodecId::Q8).unwrap();
        assert_eq!(printed["codecs"][1]["codec"], "q8");
        assert_eq!(printed["codecs"][1]["unpack_bytes_per_s"], q8.unpack_bytes_per_s);
        assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 1);
    }

    #[test]
    fn too_little_or_too_much_to_measure_writes_no_profile() {
        let cache = tempfile::tempdir().unwrap();
        for bytes in [1, u64::MAX / 4] {
            let (outcome, text) = run(cache.path(), bytes, false);
            assert!(outcome.is_err());
            assert_eq!(text, "");
            assert_eq!(fs::read_dir(cache.path()).unwrap().count(), 0);
        }
    }

    #[test]
    fn people_read_rates_and_where_the_file_is() {
        let rate = CodecRate {
            codec: CodecId::Q8,
            pack_bytes_per_second: 6_000_000_000,
            unpack_bytes_per_second: 11_000_000_000,
            chunk_bytes: 1 << 20,
            packed_bytes: 557_120,
        };
        let text = Report {
            profile: PathBuf::from("/x/profile.txt"),
            is_direct: true,
            read_bytes_per_s: 900_000_000,
            write_bytes_per_s: 1_200_000_000,
            codecs: vec![report(rate)],
        }
        .text();
        assert_eq!(
            text,
            "storage: direct reads 900 MB/s, writes 1.20 GB/s\n\
             q8: packs 6.00 GB/s and unpacks 11.00 GB/s a core, 1.0 MiB of a chunk become \
             544.1 KiB\nwritten: /x/profile.txt\n"
        );
    }
}
