//! The step profile through C: gathered, frozen, saved, given again.

use super::super::types::*;
use super::super::*;
use super::world::*;
use core::ptr;
use std::vec;
use std::vec::Vec;

const CHANNELS: usize = 32;

fn kvh() -> World {
    let mut world = World::new();
    world.config.codec = MzCodec::Kvh as u32;
    world
}

fn open(world: &mut World) {
    let ports = world.ports();
    let (result, error) = world.try_open(&ports);
    assert_eq!(result, MZ_OK, "{}", what(&error));
    world.fill();
}

fn add_energy(world: &World, layer: u32, halves: u32, energies: &[f32]) -> c_int {
    let (first, count) = (energies.as_ptr(), energies.len());
    // SAFETY: the handle is open and the array lives.
    unsafe { mz_add_query_energy(world.handle, layer, halves, 64, first, count) }
}

/// What mz_steps answers for that much room, and what it wrote.
fn steps(world: &World, room: usize) -> (c_int, Vec<u8>) {
    let (mut bytes, mut written) = (vec![0xA5; room], 0);
    // SAFETY: the handle is open and the memory lives.
    let result = unsafe { mz_steps(world.handle, bytes.as_mut_ptr().cast(), room, &mut written) };
    bytes.truncate(written);
    (result, bytes)
}

/// The profile after an eviction.
fn frozen(world: &World) -> Vec<u8> {
    world.evict();
    let (result, nothing) = steps(world, 1);
    assert_eq!((result, nothing.len()), (err(MzErr::MemoryTooSmall), 0));
    let needed = usize::try_from(world.last().value).unwrap();
    let (result, bytes) = steps(world, needed + 5);
    assert_eq!((result, bytes.len()), (MZ_OK, needed));
    bytes
}

#[test]
fn steps_follow_the_queries_that_were_reported_before_the_first_eviction() {
    let mut profiles = Vec::new();
    for loud in [None, Some(0), Some(16)] {
        let mut world = kvh();
        open(&mut world);
        assert_eq!(steps(&world, 4096).0, err(MzErr::BadState), "nothing was evicted yet");
        for layer in 0..world.config.kv_layers {
            let mut energies = [1.0; CHANNELS];
            let Some(loud) = loud else { continue };
            energies[loud] = 400.0;
            assert_eq!(add_energy(&world, layer, 0, &energies), MZ_OK);
        }
        let bytes = frozen(&world);
        // Too late to matter, and no error.
        assert_eq!(add_energy(&world, 0, 0, &[9.0; CHANNELS]), MZ_OK);
        assert_eq!(frozen(&world), bytes);
        profiles.push(bytes);
    }
    assert!(profiles[0] != profiles[1] && profiles[1] != profiles[2]);
}

#[test]
fn a_saved_profile_is_used_again_and_a_damaged_one_refused() {
    let mut first = kvh();
    open(&mut first);
    let bytes = frozen(&first);
    let mut second = kvh();
    (second.config.steps, second.config.steps_bytes) = (bytes.as_ptr(), bytes.len() as u64);
    open(&mut second);
    assert_eq!(frozen(&second), bytes);
    let mut damaged = bytes.clone();
    *damaged.last_mut().unwrap() ^= 1;
    let short = &bytes[..bytes.len() - 1];
    for wrong in [damaged.as_slice(), short] {
        let mut world = kvh();
        (world.config.steps, world.config.steps_bytes) = (wrong.as_ptr(), wrong.len() as u64);
        let ports = world.ports();
        let (result, error) = world.try_open(&ports);
        assert!(result < 0 && world.handle.is_null(), "{}", what(&error));
        assert_eq!(world.live_regions(), 0);
    }
    for (pointer, count) in [(ptr::null(), 8), (bytes.as_ptr(), 1 << 40)] {
        let mut world = kvh();
        (world.config.steps, world.config.steps_bytes) = (pointer, count);
        let ports = world.ports();
        let (result, error) = world.try_open(&ports);
        assert!(result < 0, "{}", what(&error));
        assert!(what(&error).starts_with("mz_config.steps"), "{}", what(&error));
    }
}

#[test]
fn energies_of_another_shape_are_refused() {
    let mut world = kvh();
    open(&mut world);
    let invalid = err(MzErr::InvalidArgument);
    assert_eq!(add_energy(&world, 0, 0, &[1.0; CHANNELS - 1]), invalid);
    assert_eq!(add_energy(&world, 0, 0, &[]), invalid);
    assert_eq!(add_energy(&world, world.config.kv_layers, 0, &[1.0; CHANNELS]), invalid);
    assert_eq!(add_energy(&world, 0, 2, &[1.0; CHANNELS]), err(MzErr::Unsupported));
    world.check_all();
}
