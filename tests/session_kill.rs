//! A process is killed at each write and sync of its swap file; the next one recovers the context
//! and gives the tokens that the first would have given.

#![cfg(feature = "infer")]

mod models;

use models::{Parts, fixture, oracle, parts};
use mzcache::infer::{Session, sample};
use mzcache::port::Storage;
use mzcache::port::linux::File;
use mzcache::units::{ByteCount, CodecId, Tag, TokenCount};
use mzcache::{Code, Result};
use std::ffi::CString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicI64, Ordering};

const FOLDER: &str = "MZ_KILL_FOLDER";
const CALL: &str = "MZ_KILL_CALL";

/// A swap file that kills its process before a call that writes or syncs, and so in the middle of
/// what these belong to.
struct Deadly {
    file: File,
    calls_left: AtomicI64,
}

impl Deadly {
    fn pass(&self) {
        if self.calls_left.fetch_sub(1, Ordering::Relaxed) == 1 {
            // SAFETY: it ends this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
    }
}

impl Storage for Deadly {
    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.file.read_at(offset, into)
    }

    fn write_at(&self, offset: u64, from: &[u8]) -> Result<()> {
        self.pass();
        // Half of it has arrived when the second call comes.
        let half = from.len() / 8192 * 4096;
        self.file.write_at(offset, &from[..half])?;
        self.pass();
        self.file.write_at(offset + half as u64, &from[half..])
    }

    fn sync(&self) -> Result<()> {
        self.pass();
        self.file.sync()
    }

    fn discard(&self, offset: u64, bytes: u64) -> Result<()> {
        self.file.discard(offset, bytes)
    }

    fn length(&self) -> Result<u64> {
        self.file.length()
    }

    fn is_direct(&self) -> bool {
        self.file.is_direct()
    }
}

/// A session on the folder's swap file, whose process dies at that call; 0 is never.
fn session(folder: &Path, call: i64) -> Session {
    let swap = CString::new(folder.join("swap").to_str().unwrap()).unwrap();
    let file = File::open_swap(&swap).unwrap();
    let deadly = Box::leak(Box::new(Deadly { file, calls_left: AtomicI64::new(call) }));
    let Parts { model, config, mut ports } =
        parts("kill", &fixture("qwen3.gguf"), CodecId::Raw, 1 + usize::from(call % 2 == 1));
    ports.runtime.swap = Some(deadly);
    models::open(Parts { model, config, ports })
}

/// The context, in two halves, and the question.
fn texts() -> (Vec<u32>, usize, Vec<u32>) {
    let prompt = oracle("qwen3.json").prompt;
    let (context, question) = prompt.split_at(prompt.len() - 8);
    (context.to_vec(), context.len() / 2, question.to_vec())
}

fn greedy(session: &mut Session, input: &[u32], count: usize) -> Vec<u32> {
    let mut tokens = Vec::new();
    let choose = |logits: &[f32]| {
        let token = u32::try_from(sample::arg_max(logits)?).ok()?;
        tokens.push(token);
        Some(token)
    };
    session.generate(input, count, choose).unwrap();
    tokens
}

fn evict(session: &Session, parts: u64) {
    let total = session.runtime().stats().tally.total_bytes();
    session.runtime().evict(ByteCount::new(total / parts), None).unwrap();
}

/// What the process does that dies; does nothing in any other.
#[test]
fn a_process_that_dies() {
    let (Ok(folder), Ok(call)) = (std::env::var(FOLDER), std::env::var(CALL)) else { return };
    let mut session = session(Path::new(&folder), call.parse().unwrap());
    let (context, half, question) = texts();
    let keep = |session: &Session, tokens: usize| {
        session.checkpoint(Tag::EMPTY.with(&context[..tokens]), None).unwrap();
        println!("durable {tokens}");
    };
    session.append(&context[..half], 0).unwrap();
    keep(&session, half);
    evict(&session, 2);
    session.append(&context[half..], 0).unwrap();
    evict(&session, 1);
    greedy(&mut session, &question, 3);
    evict(&session, 1);
    session.truncate(TokenCount::new(u32::try_from(context.len()).unwrap())).unwrap();
    keep(&session, context.len());
    evict(&session, 1);
    greedy(&mut session, &question, 2);
    evict(&session, 1);
}

struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let name = format!("killed-{}", std::process::id());
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Lets a process die there; whether it did, and how many tokens it knew to be durable.
fn die(folder: &Path, call: i64) -> (bool, usize) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["a_process_that_dies", "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .env(CALL, call.to_string())
        .output()
        .unwrap();
    let killed = output.status.signal() == Some(libc::SIGKILL);
    assert!(killed || output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let durable = said.lines().filter_map(|line| line.split("durable ").nth(1)?.parse().ok());
    (killed, durable.max().unwrap_or(0))
}

#[test]
fn the_next_process_goes_on_with_the_same_tokens() {
    let expected = oracle("qwen3.json").greedy;
    let (context, half, question) = texts();
    let mut recovered = [0; 3];
    for call in 1.. {
        let folder = Folder::new();
        let (killed, durable) = die(&folder.0, call);
        let mut session = session(&folder.0, 0);
        let mut from = 0;
        for (index, tokens) in [(2, context.len()), (1, half)] {
            match session.recover(Tag::EMPTY.with(&context[..tokens])) {
                Ok(found) => {
                    assert_eq!((found.tokens.get() as usize, found.lost), (tokens, None));
                    recovered[index] += 1;
                    from = tokens;
                    break;
                }
                Err(error) => {
                    let codes = [Code::BadMagic, Code::Corrupt, Code::Mismatch];
                    assert!(codes.contains(&error.code), "{error}");
                }
            }
        }
        assert!(from >= durable, "call {call}: {durable} tokens were durable, {from} are found");
        recovered[0] += u32::from(from == 0);
        if from < context.len() {
            session.append(&context[from..], 0).unwrap();
        }
        assert_eq!(greedy(&mut session, &question, expected.len()), expected, "call {call}");
        if !killed {
            println!("killed at {} calls, found none, half, all: {recovered:?}", call - 1);
            break;
        }
    }
    assert!(recovered.iter().all(|count| *count > 1), "{recovered:?}");
}
