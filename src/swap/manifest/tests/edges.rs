//! What few checkpoints have: steps, no tokens, the last number there is; and which of two refusals
//! is told.

use super::*;
use crate::codec::Steps;

#[test]
fn steps_come_back_with_their_checkpoint() {
    let disk = leaked();
    let mut memory = vec![0.0; Steps::values(&SHAPE)];
    let steps = Steps::uniform(&Kernels::portable(), SHAPE, &[1.0, 2.0, 3.0], &mut memory).unwrap();
    let mut bytes = vec![0; Steps::serialised_bytes(&SHAPE)];
    steps.write(&mut bytes).unwrap();
    let (file, mut manifest) = open_for(disk, bytes.len());
    manifest.prepare(&file, &OWN).unwrap();
    manifest.collect(&SLOTS, TOKENS, |id| stored(id, 1));
    manifest.seal(&file, &OWN, TAG, TOKENS, Some(steps)).unwrap();
    let (file, mut manifest) = open_for(disk, bytes.len());
    let found = manifest.find(&file, &OWN, TAG).unwrap();
    assert_eq!((found.steps_id, manifest.steps(&OWN, &found)), (steps.id(), &bytes[..]));
    for id in (0..91 * 3).map(|index| id_at(index, 3)) {
        assert_eq!(manifest.stored(&OWN, &found, id).unwrap(), stored(id, 1));
    }
}

#[test]
fn an_empty_context_has_no_table() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    manifest.prepare(&file, &OWN).unwrap();
    manifest.collect(&SLOTS, TokenCount::new(0), |_| None);
    disk.take_log();
    manifest.seal(&file, &OWN, TAG, TokenCount::new(0), None).unwrap();
    assert_eq!(disk.take_log(), [("sync", 0), ("write", 4096), ("sync", 0)]);
    let (file, mut manifest) = open(disk);
    assert_eq!(manifest.find(&file, &OWN, TAG).unwrap().tokens.get(), 0);
    assert_eq!(disk.take_log(), [("read", 0), ("read", 4096)]);
}

#[test]
fn the_reason_of_a_refusal_is_the_newest_checkpoint_s() {
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    seal(&file, &mut manifest, Tag::new(1), 1).unwrap();
    seal(&file, &mut manifest, Tag::new(2), 2).unwrap();
    disk.change(table_at(&SLOTS, 2) as usize, |byte| byte ^ 1);
    assert_eq!(code(find(disk, Tag::new(2))), (Code::Corrupt, "checkpoint table"));
    assert_eq!(code(find(disk, TAG)), (Code::Mismatch, "checkpoint tag"));
    disk.change(table_at(&SLOTS, 1) as usize, |byte| byte ^ 1);
    assert_eq!(code(find(disk, Tag::new(1))), (Code::Mismatch, "checkpoint tag"));
    // One that is not there is no reason.
    disk.change(0, |byte| byte ^ 1);
    disk.change(PAGE + 100, |byte| byte ^ 1);
    assert_eq!(code(find(disk, TAG)), (Code::Corrupt, "checkpoint"));
    disk.change(0, |byte| byte ^ 1);
    disk.change(100, |byte| byte ^ 1);
    disk.change(PAGE, |byte| byte ^ 1);
    assert_eq!(code(find(disk, TAG)), (Code::Corrupt, "checkpoint"));
}

#[test]
fn generations_end() {
    const LAST: u64 = 0x7FFF_FFFF_FFFF_FFFF;
    let disk = leaked();
    let (file, mut manifest) = open(disk);
    (1..3).for_each(|salt| seal(&file, &mut manifest, TAG, salt).unwrap());
    let renumber = |page: usize, generation: u64| {
        for (at, new) in generation.to_le_bytes().into_iter().enumerate() {
            disk.change(page + 32 + at, |_| new);
        }
        sum_anew(disk, page);
    };
    renumber(0, LAST - 1);
    let (file, mut manifest) = open(disk);
    assert_eq!(manifest.find(&file, &OWN, TAG).unwrap().generation, LAST - 1);
    seal(&file, &mut manifest, TAG, 3).unwrap();
    let beyond = seal(&file, &mut manifest, TAG, 4);
    assert_eq!(code(beyond), (Code::LimitExceeded, "checkpoint generation"));
    assert_eq!(find(disk, TAG), Ok(3));
    renumber(PAGE, LAST + 1);
    assert_eq!(find(disk, TAG), Ok(2), "no checkpoint has such a number");
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
