//! Sessions on the small models of the fixtures, and what those models should answer.

use mzcache::arena::{Arena, Sizer};
use mzcache::infer::cpu::ComputeConfig;
use mzcache::infer::gguf::Gguf;
use mzcache::infer::{Model, Session, SessionConfig, SessionPorts};
use mzcache::port::linux::{FutexPark, HostPorts, MappedFile, ThreadTeam, host_cpu, map_arena};
use mzcache::runtime::{Options, Worker};
use mzcache::state::Roles;
use mzcache::units::{CodecId, TokenCount};
use std::ffi::CString;
use std::path::{Path, PathBuf};

fn leak<T>(value: T) -> &'static T {
    Box::leak(Box::new(value))
}

fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

pub fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/oracles").join(name)
}

fn open_model(path: &Path) -> Model {
    let file = MappedFile::open(&c_path(path)).unwrap();
    let gguf = Gguf::parse(&file).unwrap();
    let mut sizer = Sizer::new();
    Model::size(&gguf, &mut sizer).unwrap();
    let mut arena = Arena::new(map_arena(sizer.required().unwrap()).unwrap()).unwrap();
    Model::open(&gguf, &mut arena).unwrap()
}

/// What a session is opened with.
pub struct Parts {
    pub model: Model,
    pub config: SessionConfig<'static>,
    pub ports: SessionPorts,
}

pub fn open(parts: Parts) -> Session {
    let Parts { model, config, ports } = parts;
    let memory = map_arena(Session::required_bytes(&model, &config).unwrap()).unwrap();
    Session::open(model, &config, memory, ports).unwrap()
}

pub fn parts(name: &str, path: &Path, codec: CodecId, threads: usize) -> Parts {
    const WORKERS: [Worker; 2] =
        [Worker::new(Roles::READ), Worker::new(Roles::UNPACK.union(Roles::ALLOCATE))];
    let swap = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join(format!("session-{name}-{}", std::process::id()));
    let host = leak(HostPorts::open(&c_path(path), Some(&c_path(&swap))).unwrap());
    // The open descriptor keeps it; nothing is left behind.
    std::fs::remove_file(&swap).unwrap();
    let model = open_model(path);
    let config = SessionConfig {
        options: Options {
            context_tokens_max: TokenCount::new(1024),
            codec,
            workers: if threads > 1 { &WORKERS } else { &[] },
            cpu: host_cpu(),
            ..Options::default()
        },
        compute: ComputeConfig { batch_tokens_max: 256, logit_rows_max: 1, workers_max: threads },
    };
    let team = leak(ThreadTeam::new(host.threads(), &FutexPark));
    team.open(threads).unwrap();
    let ports = SessionPorts { runtime: host.ports(), rows: host.rows(), team };
    Parts { model, config, ports }
}

pub struct Oracle {
    pub prompt: Vec<u32>,
    pub greedy: Vec<u32>,
}

pub fn oracle(name: &str) -> Oracle {
    let text = std::fs::read_to_string(fixture(name)).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |key: &str| {
        let values = json[key].as_array().unwrap().iter();
        values.map(|id| u32::try_from(id.as_u64().unwrap()).unwrap()).collect()
    };
    Oracle { prompt: ids("prompt"), greedy: ids("greedy") }
}
