//! Checkpoints at the edges: of nothing, with step profiles, and with no generation left.

use super::*;
use crate::codec::Steps;

/// A process that has room for a step profile.
fn open_with_steps(disk: &'static Disk) -> (SwapFile, Manifest) {
    let steps_bytes = Steps::serialised_bytes(&SHAPE);
    let mut sizer = Sizer::new();
    SwapFile::size(&mut sizer, &SLOTS).unwrap();
    Manifest::size(&mut sizer, &SLOTS, steps_bytes).unwrap();
    let memory = vec![core::mem::MaybeUninit::uninit(); sizer.required().unwrap()];
    let mut arena = Arena::new(Box::leak(memory.into_boxed_slice())).unwrap();
    let file = SwapFile::new(&mut arena, disk, &SLOTS, CRC).unwrap();
    (file, Manifest::new(&mut arena, &SLOTS, steps_bytes).unwrap())
}

#[test]
fn a_step_profile_is_found_with_its_checkpoint() {
    let kernels = Kernels::portable();
    let disk = leaked();
    let (file, mut manifest) = open_with_steps(disk);
    manifest.prepare(&file, &OWN).unwrap();
    manifest.collect(&SLOTS, TOKENS, |id| stored(id, 1));
    let mut memory = vec![0.0; Steps::values(&SHAPE)];
    let steps = Steps::uniform(&kernels, SHAPE, &[1.0, 2.0, 3.0], &mut memory).unwrap();
    let id = steps.id();
    manifest.seal(&file, &OWN, TAG, TOKENS, Some(steps)).unwrap();
    let (file, mut manifest) = open_with_steps(disk);
    let found = manifest.find(&file, &OWN, TAG).unwrap();
    assert_eq!(found.steps_id, id);
    let mut again = vec![0.0; memory.len()];
    let bytes = manifest.steps(&OWN, &found);
    assert_eq!(Steps::parse(&kernels, SHAPE, bytes, &mut again).unwrap().id(), id);
    assert_eq!(again, memory);
    assert_eq!(manifest.stored(&OWN, &found, id_at(0, 3)), Ok(stored(id_at(0, 3), 1)));
}

#[test]
fn a_step_profile_without_room_in_memory_is_refused() {
    let (file, mut manifest) = open(leaked());
    manifest.prepare(&file, &OWN).unwrap();
    let shape = KvShape { kv_heads: 64, head_dim: 256, ..SHAPE };
    let own = Fingerprint { shape, ..OWN };
    let mut memory = vec![0.0; Steps::values(&shape)];
    let steps = Steps::uniform(&Kernels::portable(), shape, &[1.0; 3], &mut memory).unwrap();
    let id = steps.id();
    let sealed = manifest.seal(&file, &own, TAG, TOKENS, Some(steps));
    assert_eq!(code(sealed), (Code::LimitExceeded, "checkpoint table"));
    // Nor is there room on flash for the steps of chunks that slots do not hold.
    let superblock =
        Superblock { generation: 1, tag: TAG, tokens: TOKENS, steps_id: id, table_crc: 0 };
    let mut page = [0; SUPERBLOCK_BYTES];
    superblock.write(&own, CRC, &mut page);
    let parsed = Superblock::parse(&own, CRC, &page);
    assert_eq!(code(parsed), (Code::Corrupt, "checkpoint reserved bytes"));
}

#[test]
fn a_checkpoint_of_no_tokens_has_no_table() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    manifest.prepare(&file, &OWN).unwrap();
    manifest.collect(&SLOTS, TokenCount::default(), |id| panic!("no record of {id:?}"));
    disk.take_log();
    manifest.seal(&file, &OWN, TAG, TokenCount::default(), None).unwrap();
    assert_eq!(disk.take_log(), [("sync", 0), ("write", PAGE as u64), ("sync", 0)]);
    let (file, mut manifest) = open(disk);
    let found = manifest.find(&file, &OWN, TAG).unwrap();
    assert_eq!((found.generation, found.tokens), (1, TokenCount::default()));
    assert_eq!(manifest.stored(&OWN, &found, id_at(0, 3)), Ok(None));
}

#[test]
fn behind_the_last_generation_there_is_none() {
    // The generation is the last one that a superblock may have.
    let disk = forged(32, |_| 0xFF);
    let mut bytes = disk.bytes.lock().unwrap();
    bytes[PAGE + 33..PAGE + 39].fill(0xFF);
    bytes[PAGE + 39] = 0x7F;
    let sum = CRC.call(0, &bytes[PAGE..2 * PAGE - 4]);
    bytes[2 * PAGE - 4..2 * PAGE].copy_from_slice(&sum.to_le_bytes());
    drop(bytes);
    let (file, mut manifest) = open(disk);
    let sealed = seal(&file, &mut manifest, TAG, 2);
    assert_eq!(code(sealed), (Code::LimitExceeded, "checkpoint generation"));
    assert_eq!(find(disk, TAG), Ok(1));
}

#[test]
fn a_head_that_cannot_be_read_is_no_head_that_is_not_there() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, TAG, 1).unwrap();
    for call in 1..=3 {
        disk.take_log();
        *disk.failure.lock().unwrap() = Some((call, Error::new(Code::Io, "test")));
        assert_eq!(code(find(disk, TAG)), (Code::Io, "test"));
    }
    *disk.failure.lock().unwrap() = None;
    assert_eq!(find(disk, TAG), Ok(1));
}

#[test]
fn a_checkpoint_of_another_chunk_layout_is_refused() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, TAG, 1).unwrap();
    let own = Fingerprint { layout: ChunkLayout::ChannelMajor, ..OWN };
    let found = manifest.find(&file, &own, TAG);
    assert_eq!(code(found), (Code::Mismatch, "checkpoint chunk layout"));
}
