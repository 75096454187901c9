//! Nothing allocates and no thread is started between open and the last token of an answer,
//! evictions and restores included.

#![cfg(feature = "infer")]

mod models;
mod refusing;

use models::{fixture, oracle};
use mzcache::infer::{Session, sample};
use mzcache::units::{ByteCount, CodecId};
use refusing::{THREADS, armed, sees_one_call};

/// One test, since the allocator is the whole process's.
#[test]
fn a_context_evictions_and_answers_allocate_nothing_and_start_no_thread() {
    sees_one_call();
    for threads in [1, 2] {
        let name = format!("no-alloc-{threads}");
        check(open(&name, threads));
    }
    #[cfg(feature = "opencl")]
    if let Some(session) = open_on_accelerator() {
        check(session);
    }
}

fn open(name: &str, threads: usize) -> Session {
    let mut parts = models::parts(name, &fixture("qwen3.gguf"), CodecId::Raw, threads);
    parts.ports.runtime.threads = Some(&THREADS);
    models::open(parts)
}

fn check(mut session: Session) {
    let oracle = oracle("qwen3.json");
    let (context, question) = oracle.prompt.split_at(oracle.prompt.len() - 8);
    let mut tokens = [0u32; 12];
    let calls = armed(|| {
        session.append(context, 0).unwrap();
        let kept = session.tokens();
        let total = session.runtime().stats().tally.total_bytes();
        for quarter in [1, 4] {
            session.runtime().evict(ByteCount::new(total / 4 * quarter), None).unwrap();
            session.truncate(kept).unwrap();
            let mut places = tokens.iter_mut();
            session
                .generate(question, 12, |logits| {
                    let token = u32::try_from(sample::arg_max(logits)?).ok()?;
                    *places.next()? = token;
                    Some(token)
                })
                .unwrap();
        }
    });
    assert_eq!(calls, 0);
    assert_eq!(tokens[..], oracle.greedy);
}

/// The driver's own memory is the C library's, which is not watched.
#[cfg(feature = "opencl")]
fn open_on_accelerator() -> Option<Session> {
    use mzcache::infer::opencl::{Accelerator, ClOptions};
    use mzcache::port::linux::map_arena;
    use mzcache::port::opencl::{Api, BuildLog, Choice};

    let loaded = Api::load(Some(c"libOpenCL.so.1"));
    if let Err(error) = &loaded {
        assert!(std::env::var_os("MZ_CI").is_none(), "{error}");
        println!("NOT CHECKED: {error}");
        return None;
    }
    let api = Box::leak(Box::new(loaded.unwrap()));
    let accelerator = Accelerator::open(api, Choice::Named("portable computing"), None).unwrap();
    let parts = models::parts("no-alloc-cl", &fixture("qwen3.gguf"), CodecId::Raw, 2);
    let models::Parts { model, config, mut ports } = parts;
    ports.runtime.threads = Some(&THREADS);
    let memory = map_arena(Session::required_bytes_on(&model, &config).unwrap()).unwrap();
    let mut bytes = vec![0; 1 << 16];
    let mut log = BuildLog::new(&mut bytes);
    let options = ClOptions::default();
    let session = Session::open_on(&accelerator, model, &config, &options, &mut log, memory, ports);
    Some(session.unwrap())
}
