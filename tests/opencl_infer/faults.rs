//! Every OpenCL call of a round fails, once or from then on: the session says so, loses no token
//! that it need not lose, and the next round gives the right tokens.

use crate::device::{MODES, Platform, greedy, open_parts, platform_of};
use crate::models::{self, fixture, oracle, parts};
use crate::planted::{FAULTS, Planted, plant};
use mzcache::infer::Session;
use mzcache::infer::opencl::Accelerator;
use mzcache::port::opencl::{Choice, DeviceKind, MemoryMode};
use mzcache::units::{ByteCount, CodecId, TokenCount};
use mzcache::{Code, Error};
use std::io::Write;
use tempfile::{NamedTempFile, TempPath};

const MODEL: &str = "llama";
/// Layers of the model that are used: all of a layer's calls are the same.
const LAYERS: u8 = 2;
const CONTEXT: usize = 12;
const QUESTION: usize = 3;
const ANSWER: usize = 1;

fn faulty(name: &str) -> Option<(Planted, Platform)> {
    let library = plant(name, FAULTS, true);
    let platform = platform_of(&library.path)?;
    Some((library, platform))
}

fn question() -> (Vec<u32>, Vec<u32>) {
    let prompt = oracle(&format!("{MODEL}.json")).prompt;
    (prompt[..CONTEXT].to_vec(), prompt[CONTEXT..CONTEXT + QUESTION].to_vec())
}

/// The first layers of the model, as a file of their own: its header without the other layers'
/// tensors, and all of its data.
fn model() -> TempPath {
    let whole = std::fs::read(fixture(&format!("{MODEL}.gguf"))).unwrap();
    let find = |text: &str| -> Vec<usize> {
        let windows = whole.windows(text.len()).enumerate();
        windows.filter(|(_, w)| *w == text.as_bytes()).map(|(place, _)| place).collect()
    };
    // A tensor is its name behind the name's length, and then dimensions, type and offset.
    let end = |name_end: usize| name_end + 4 + 8 * usize::from(whole[name_end]) + 12;
    let ends: Vec<usize> =
        find(".weight").into_iter().map(|place| end(place + ".weight".len())).collect();
    let header_end = *ends.iter().max().unwrap();
    let mut header = whole[..header_end].to_vec();
    let count = find("llama.block_count")[0] + "llama.block_count".len() + 4;
    let layers = std::mem::replace(&mut header[count], LAYERS);
    let mut tensors: Vec<usize> =
        (LAYERS..layers).flat_map(|l| find(&format!("blk.{l}."))).collect();
    tensors.sort_unstable();
    header[8] -= u8::try_from(tensors.len()).unwrap();
    for place in tensors.into_iter().rev() {
        header.drain(place - 8..end(place + usize::from(whole[place - 8])));
    }
    header.resize(header.len().next_multiple_of(32), 0);
    let mut file = NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&header).unwrap();
    file.write_all(&whole[header_end.next_multiple_of(32)..]).unwrap();
    file.into_temp_path()
}

/// The processor's answer.
fn expected() -> Vec<u32> {
    let mut session = models::open(models::parts("cl-faults-cpu", &model(), CodecId::Raw, 1));
    let (context, question) = question();
    session.append(&context, 0).unwrap();
    greedy(&mut session, &question, ANSWER).unwrap()
}

fn open(accelerator: &Accelerator) -> Result<Session, Error> {
    open_parts(accelerator, parts("cl-faults", &model(), CodecId::Raw, 1))
}

fn begun(accelerator: &Accelerator) -> Session {
    let mut session = open(accelerator).unwrap();
    session.append(&question().0, 0).unwrap();
    session
}

/// Everything out, and an answer while it comes back.
fn round(session: &mut Session) -> Result<Vec<u32>, Error> {
    session.runtime().evict(ByteCount::new(u64::MAX), None)?;
    greedy(session, &question().1, ANSWER)
}

fn resident(session: &Session) -> u64 {
    session.runtime().stats().tally.total_bytes()
}

/// What a device that is gone answers, one after the other.
const GONE: [i32; 4] = [-5, -2, -34, -36];

/// Calls of one round, in which nothing fails.
fn count(library: &Planted, session: &mut Session, kept: TokenCount, expected: &[u32]) -> i32 {
    let mut calls = 0;
    // The second time nothing of the driver's own is new.
    for _ in 0..2 {
        library.set(c"calls", 0);
        assert_eq!(round(session).unwrap(), expected);
        calls = library.get(c"calls");
        session.truncate(kept).unwrap();
    }
    calls
}

/// The `number`th call from now on fails, and `count` of them in all.
fn arm(library: &Planted, number: i32, count: i32, status: i32) {
    library.set(c"fail_status", status);
    library.set(c"fail_count", count);
    library.set(c"calls", 0);
    library.set(c"fail_from", number);
}

fn disarm(library: &Planted) {
    library.set(c"fail_from", 0);
}

/// Fails each call of a round, `count` calls from there on.
fn every_call(mode: MemoryMode, count_of_failures: i32) {
    let name = format!("faults-{mode:?}-{count_of_failures}");
    let Some((library, platform)) = faulty(&name) else { return };
    let Some(accelerator) = platform.accelerator(Some(mode)) else { return };
    let expected = expected();
    let mut session = begun(&accelerator);
    let kept = session.tokens();
    let calls = count(&library, &mut session, kept, &expected);
    let mut failed = 0;
    for number in 1..=calls {
        let status = GONE[number as usize % GONE.len()];
        arm(&library, number, count_of_failures, status);
        match round(&mut session) {
            // What gives something back may fail; nobody needs to know.
            Ok(tokens) => assert_eq!(tokens, expected, "{mode:?} {number}"),
            Err(error) => {
                failed += 1;
                is_the_driver_s(error, status);
            }
        }
        session.runtime().check().unwrap();
        session.truncate(kept).unwrap();
        if count_of_failures > 1 {
            what_can_go_goes(&session, mode);
        }
        disarm(&library);
        // The same session again, as if nothing had been.
        assert_eq!(round(&mut session).unwrap(), expected, "{mode:?} after {number}");
        session.truncate(kept).unwrap();
        session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
        assert_eq!(resident(&session), 0, "{mode:?} after {number}: something is leased");
    }
    println!("{mode:?}: {failed} of {calls} calls ended a round");
    assert!(failed > calls / 2);
}

/// The error names the call or the kernel, and carries the driver's own number.
fn is_the_driver_s(error: Error, status: i32) {
    let codes = [Code::DeviceFailed, Code::DeviceLost, Code::NoDevice, Code::OutOfMemory];
    assert!(codes.contains(&error.code), "{error}");
    // Shared memory is refused without a number.
    let number = i64::from(status);
    assert!(error.value == number || error.what == "clSVMAlloc", "{error}");
}

/// While nothing works: the weights go, and so do all chunks that the host can see.
fn what_can_go_goes(session: &Session, mode: MemoryMode) {
    session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
    session.runtime().check().unwrap();
    assert_eq!((session.runtime().lost(), session.tokens().get() as usize), (None, CONTEXT));
    let tally = session.runtime().stats().tally;
    assert_eq!(tally.weight_bytes, 0, "{mode:?}");
    assert!(mode != MemoryMode::Fine || tally.kv_bytes == 0, "{tally:?}");
    assert_eq!(tally.kv_left + tally.on_flash + tally.on_ram, u32::from(LAYERS), "{tally:?}");
}

#[test]
fn a_call_that_fails_once_costs_one_round_in_fine_grain_memory() {
    every_call(MemoryMode::Fine, 1);
}

#[test]
fn a_call_that_fails_once_costs_one_round_in_coarse_grain_memory() {
    every_call(MemoryMode::Coarse, 1);
}

#[test]
fn a_call_that_fails_once_costs_one_round_in_device_buffers() {
    every_call(MemoryMode::Buffers, 1);
}

#[test]
fn a_device_that_is_gone_costs_one_round_in_fine_grain_memory() {
    every_call(MemoryMode::Fine, i32::MAX);
}

#[test]
fn a_device_that_is_gone_costs_one_round_in_coarse_grain_memory() {
    every_call(MemoryMode::Coarse, i32::MAX);
}

#[test]
fn a_device_that_is_gone_costs_one_round_in_device_buffers() {
    every_call(MemoryMode::Buffers, i32::MAX);
}

/// Workers take part, so that who makes which call is chance.
#[test]
fn calls_that_fail_on_any_thread_cost_one_round() {
    let Some((library, platform)) = faulty("faults-threads") else { return };
    let expected = expected();
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let parts = parts("cl-faults-threads", &model(), CodecId::Q8, 2);
        let mut session = open_parts(&accelerator, parts).unwrap();
        session.append(&question().0, 0).unwrap();
        let kept = session.tokens();
        for number in (1..300).step_by(7) {
            arm(&library, number, 1 + number % 2 * 1000, -5);
            let _any = round(&mut session);
            session.runtime().check().unwrap();
            disarm(&library);
            session.truncate(kept).unwrap();
            assert_eq!(round(&mut session).unwrap(), expected, "{mode:?} after {number}");
            session.truncate(kept).unwrap();
        }
        session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
        assert_eq!(resident(&session), 0, "{mode:?}: something is leased");
    }
}

#[test]
fn a_session_that_cannot_be_opened_can_be_opened_later() {
    let Some((library, platform)) = faulty("faults-open") else { return };
    let expected = expected();
    let both = |mode| {
        let choice = Choice::Named(&platform.name);
        let accelerator = Accelerator::open(platform.api, choice, Some(mode))?;
        open(&accelerator)
    };
    for mode in MODES.into_iter().filter(|mode| platform.accelerator(Some(*mode)).is_some()) {
        both(mode).unwrap();
        library.set(c"calls", 0);
        both(mode).unwrap();
        let calls = library.get(c"calls");
        let mut refused = 0;
        // Each session keeps its context for good, and that of a graphics card takes a gigabyte.
        let accelerator = platform.accelerator(Some(mode)).unwrap();
        let is_card = accelerator.device().kind != DeviceKind::Cpu;
        let tries = if is_card { 8 } else { calls / 5 };
        for number in (1..calls).step_by((calls / tries) as usize) {
            arm(&library, number, i32::MAX, GONE[number as usize % GONE.len()]);
            refused += u32::from(both(mode).is_err());
            disarm(&library);
        }
        println!("{mode:?}: {refused} of {calls} calls refused a session");
        assert!(refused * 2 > tries as u32);
        let mut session = both(mode).unwrap();
        session.append(&question().0, 0).unwrap();
        assert_eq!(round(&mut session).unwrap(), expected);
    }
}
