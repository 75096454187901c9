//! A device that is lost or has no memory left: what is gone with it, and what is not.

use crate::device::{MODES, Platform, greedy, open, platform_of};
use crate::models::oracle;
use crate::planted::{FAULTS, Planted, plant};
use mzcache::infer::Session;
use mzcache::port::opencl::{MemoryMode, status_name};
use mzcache::units::{ByteCount, ChunkId, ChunkIndex, CodecId, LayerIndex};
use mzcache::{Code, Error};

const LAYERS: u16 = 6;
const CHUNKS: u16 = 2;
const CONTEXT: usize = 300;

fn faulty(name: &str) -> Option<(Planted, Platform)> {
    let library = plant(name, FAULTS, true);
    let platform = platform_of(&library.path)?;
    Some((library, platform))
}

fn ids() -> impl Iterator<Item = ChunkId> {
    (0..LAYERS).flat_map(|layer| {
        let layer = LayerIndex::new(layer);
        (0..CHUNKS).map(move |chunk| ChunkId { layer, chunk: ChunkIndex::new(chunk) })
    })
}

/// All chunks as the host reads them: bytes, or why not.
fn chunks(session: &Session) -> Vec<Result<Vec<u8>, Error>> {
    ids().map(|id| session.runtime().kv(id).map(|chunk| chunk.to_vec())).collect()
}

/// From now on every call fails, as after a reset of the device.
fn lose(library: &Planted) {
    library.set(c"fail_status", -36);
    library.set(c"fail_count", i32::MAX);
    library.set(c"calls", 0);
    library.set(c"fail_from", 1);
}

#[test]
fn a_lost_device_takes_what_only_it_held_and_a_new_session_works() {
    let Some((library, platform)) = faulty("lost-device") else { return };
    for mode in MODES {
        let oracle = oracle("llama.json");
        let prompt = &oracle.prompt[..CONTEXT];
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let mut session = open(&accelerator, "llama", CodecId::Raw, 1);
        session.append(prompt, 0).unwrap();
        let held: Vec<Vec<u8>> = chunks(&session).into_iter().map(Result::unwrap).collect();
        let kept = session.tokens();
        let expected = greedy(&mut session, &[7], 1).unwrap();
        session.truncate(kept).unwrap();
        lose(&library);
        let error = session.append(&[7], 1).map(|_| ()).unwrap_err();
        assert_eq!((error.code, error.value), (Code::DeviceLost, -36), "{mode:?} {error}");
        assert_eq!(status_name(error.value), "CL_INVALID_COMMAND_QUEUE");
        session.runtime().check().unwrap();
        assert_eq!((session.tokens(), session.runtime().lost()), (kept, None));
        // The device held all chunks; what both see is there, all else is gone with it.
        let reads = chunks(&session);
        let call = match mode {
            MemoryMode::Fine => "",
            MemoryMode::Coarse => "clEnqueueSVMMap",
            MemoryMode::Buffers => "clEnqueueReadBuffer",
        };
        for (id, (read, held)) in ids().zip(reads.into_iter().zip(held)) {
            match read {
                // The last chunk has rows that do not count.
                Ok(bytes) => {
                    assert!(mode == MemoryMode::Fine && (id.chunk.get() > 0 || bytes == held))
                }
                Err(error) => {
                    assert_eq!(error, Error::new(Code::DeviceLost, call).with(-36), "{mode:?}");
                }
            }
        }
        // Closing ends, and the process opens the device anew once it is there again.
        drop(session);
        drop(accelerator);
        library.set(c"fail_from", 0);
        let Some(accelerator) = platform.accelerator(Some(mode)) else { panic!("{mode:?}") };
        let mut session = open(&accelerator, "llama", CodecId::Raw, 1);
        session.append(prompt, 0).unwrap();
        assert_eq!(greedy(&mut session, &[7], 1).unwrap(), expected, "{mode:?}");
    }
}

#[test]
fn what_was_evicted_before_the_device_was_lost_is_not_lost() {
    let Some((library, platform)) = faulty("lost-evicted") else { return };
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let oracle = oracle("llama.json");
        let mut session = open(&accelerator, "llama", CodecId::Raw, 1);
        session.append(&oracle.prompt[..CONTEXT], 0).unwrap();
        let kv_bytes = session.runtime().stats().tally.kv_bytes;
        session.runtime().evict(ByteCount::new(kv_bytes / 2), None).unwrap();
        let evicted = session.runtime().stats().tally;
        assert!(evicted.on_ram + evicted.on_flash > 0 && evicted.kv_bytes > 0, "{evicted:?}");
        lose(&library);
        // Weights go all the same, and no record is given up.
        session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
        let after = session.runtime().stats().tally;
        assert_eq!(after.weight_bytes, 0);
        assert!(after.on_ram + after.on_flash >= evicted.on_ram + evicted.on_flash, "{after:?}");
        assert_eq!(after.kv_bytes == 0, mode == MemoryMode::Fine, "{mode:?} {after:?}");
        assert_eq!((after.lost, session.runtime().check()), (0, Ok(())));
        drop(session);
        library.set(c"fail_from", 0);
    }
}

#[test]
fn a_device_without_memory_left_in_the_middle_of_a_restore_says_so_and_loses_nothing() {
    let Some((library, platform)) = faulty("lost-memory") else { return };
    for mode in MODES {
        let Some(accelerator) = platform.accelerator(Some(mode)) else { continue };
        let oracle = oracle("llama.json");
        for threads in [1, 2] {
            let mut session = open(&accelerator, "llama", CodecId::Raw, threads);
            session.append(&oracle.prompt[..CONTEXT], 0).unwrap();
            let kept = session.tokens();
            let expected = greedy(&mut session, &[7], 2).unwrap();
            session.truncate(kept).unwrap();
            session.runtime().evict(ByteCount::new(u64::MAX), None).unwrap();
            let (spared, function, call) = match mode {
                MemoryMode::Buffers => {
                    (c"clCreateBuffer_spared", c"clCreateBuffer_fails", "clCreateBuffer")
                }
                _ => (c"clSVMAlloc_spared", c"clSVMAlloc_fails", "clSVMAlloc"),
            };
            library.set(c"fail_status", -4);
            library.set(spared, 3);
            library.set(function, i32::MAX);
            let error = session.append(&[7], 1).map(|_| ()).unwrap_err();
            assert_eq!((error.code, error.what), (Code::OutOfMemory, call), "{mode:?}");
            session.runtime().check().unwrap();
            assert_eq!((session.tokens(), session.runtime().lost()), (kept, None));
            library.set(function, 0);
            assert_eq!(greedy(&mut session, &[7], 2).unwrap(), expected, "{mode:?}");
        }
    }
}
