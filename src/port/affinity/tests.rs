//! The rule on machines as they are, and on any.

use super::*;
use crate::limits::CORES_MAX;

/// Cores in the order of their numbers, each capacity and kHz so many times.
fn machine(clusters: &[(usize, u32, u32)]) -> Topology {
    let mut topology = Topology::new();
    for (count, capacity, max_khz) in clusters {
        for _ in 0..*count {
            let id = u16::try_from(topology.cores().len()).unwrap();
            let (capacity, max_khz) = (*capacity, *max_khz);
            topology.push(Core { id, capacity, max_khz, is_online: true, is_allowed: true });
        }
    }
    topology
}

/// The same machine, a part of it changed.
fn with(topology: &Topology, change: impl Fn(&mut Core)) -> Topology {
    let mut changed = Topology::new();
    for core in topology.cores() {
        let mut core = *core;
        change(&mut core);
        changed.push(core);
    }
    changed
}

fn map(allocate: &[u16], read: &[u16], unpack: &[u16]) -> [Vec<u16>; 3] {
    [allocate, read, unpack].map(<[u16]>::to_vec)
}

fn ranked(topology: &Topology) -> [Vec<u16>; 3] {
    let CoreMap { allocate, read, unpack } = CoreMap::rank(topology);
    [allocate, read, unpack].map(|list| list.to_vec())
}

fn sorted(list: &[u16]) -> Vec<u16> {
    let mut list = list.to_vec();
    list.sort_unstable();
    list
}

use std::vec::Vec;

/// Snapdragon 8 Elite. Linux's device tree gives its cores no capacities; a vendor's may.
const SM8750: [(usize, u32, u32); 2] = [(6, 1024, 3_532_800), (2, 1024, 4_320_000)];
const SM8750_RATED: [(usize, u32, u32); 2] = [(6, 792, 3_532_800), (2, 1024, 4_473_600)];
/// Snapdragon 8 Gen 3, with capacities by either of Linux's device trees.
const SM8650: [(usize, u32, u32); 4] =
    [(2, 379, 2_265_600), (3, 923, 3_148_800), (2, 867, 2_956_800), (1, 1024, 3_302_400)];
const SM8650_LATER: [(usize, u32, u32); 4] =
    [(2, 200, 2_265_600), (3, 790, 3_148_800), (2, 742, 2_956_800), (1, 1024, 3_302_400)];

#[test]
fn sm8750_has_two_big_cores_and_no_little_one() {
    let middle: Vec<u16> = (0..6).collect();
    for clusters in [SM8750, SM8750_RATED] {
        assert_eq!(ranked(&machine(&clusters)), map(&middle, &[6, 7], &[6, 7]));
    }
    let preset = CoreMap::SM8750;
    assert_eq!(sorted(&preset.allocate), middle);
    assert_eq!(*preset.unpack, [6, 7]);
    // The exception that its comment explains.
    assert!(preset.read.iter().all(|core| middle.contains(core)));
}

#[test]
fn sm8650_leaves_its_little_cores_alone() {
    for clusters in [SM8650, SM8650_LATER] {
        assert_eq!(ranked(&machine(&clusters)), map(&[5, 6], &[7, 2, 3, 4], &[7, 2, 3, 4]));
    }
    let preset = CoreMap::SM8650;
    let mut busy = [&*preset.read, &*preset.unpack].concat();
    busy.sort_unstable();
    busy.dedup();
    assert_eq!((busy.len(), preset.allocate.len()), (4, 2), "as many as by the rule");
    busy.extend_from_slice(&preset.allocate);
    assert_eq!(sorted(&busy), [2, 3, 4, 5, 6, 7]);
}

#[test]
fn one_cluster_besides_little_ones_does_everything() {
    let four_and_four = machine(&[(4, 400, 1_800_000), (4, 1024, 2_400_000)]);
    let strong = [4, 5, 6, 7];
    assert_eq!(ranked(&four_and_four), map(&strong, &strong, &strong));
    // By frequency alone.
    let unrated = machine(&[(4, 0, 1_100_000), (4, 0, 2_400_000)]);
    assert_eq!(ranked(&unrated), map(&strong, &strong, &strong));
}

#[test]
fn three_clusters_are_big_middle_and_little() {
    let phone = machine(&[(4, 324, 1_780_000), (3, 830, 2_500_000), (1, 1024, 3_000_000)]);
    assert_eq!(ranked(&phone), map(&[4, 5, 6], &[7], &[7]));
    // The strongest first, wherever they stand.
    let desktop = machine(&[(4, 1024, 5_200_000), (4, 620, 4_000_000)]);
    assert_eq!(ranked(&desktop), map(&[4, 5, 6, 7], &[0, 1, 2, 3], &[0, 1, 2, 3]));
}

#[test]
fn nothing_is_pinned_where_there_is_nothing_to_choose() {
    for clusters in [
        &[(16, 0, 0)][..],
        &[(2, 1024, 0)],
        &[(8, 1024, 3_000_000)],
        &[(1, 300, 100)],
        // Cores of one kind, graded.
        &[(6, 1024, 5_000_000), (2, 1024, 5_200_000)],
        &[(6, 0, 4_700_000), (2, 0, 5_200_000)],
        &[],
        // More than is looked at.
        &[(CORES_MAX + 9, 1024, 1)],
    ] {
        assert_eq!(CoreMap::rank(&machine(clusters)), CoreMap::ANYWHERE, "{clusters:?}");
    }
}

#[test]
fn what_is_not_known_of_all_counts_for_none() {
    let whole = machine(&SM8650);
    let no_capacity = with(&whole, |core| core.capacity *= u32::from(core.id != 7));
    // By frequency: 3,302 and 3,149 and 2,957 MHz are within an eighth, 2,266 is not.
    let strong = [7, 2, 3, 4, 5, 6];
    assert_eq!(ranked(&no_capacity), map(&[0, 1], &strong, &strong));
    let nothing = with(&no_capacity, |core| core.max_khz *= u32::from(core.id != 0));
    assert_eq!(CoreMap::rank(&nothing), CoreMap::ANYWHERE);
}

#[test]
fn cores_that_cannot_be_used_do_not_count() {
    let whole = machine(&SM8650);
    let background = with(&whole, |core| core.is_allowed = core.id < 4);
    assert_eq!(ranked(&background), map(&[2, 3], &[2, 3], &[2, 3]));
    let little_only = with(&whole, |core| core.is_allowed = core.id < 2);
    assert_eq!(CoreMap::rank(&little_only), CoreMap::ANYWHERE);
    let hot = with(&whole, |core| core.is_online = core.id != 7);
    assert_eq!(ranked(&hot), map(&[5, 6], &[2, 3, 4], &[2, 3, 4]));
    let none = with(&whole, |core| core.is_allowed = false);
    assert_eq!(CoreMap::rank(&none), CoreMap::ANYWHERE);
}

/// Small numbers, so that every kind of equality occurs.
#[test]
fn on_any_machine_roles_get_usable_cores_and_all_or_none_of_them() {
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut below = |bound: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % bound
    };
    let extremes = [0, 1, 500, 511, 512, 1024, u32::MAX - 1, u32::MAX];
    let mut pinned = 0;
    for _ in 0..20_000 {
        let mut topology = Topology::new();
        for _ in 0..below(12) {
            topology.push(Core {
                id: u16::try_from(topology.cores().len()).unwrap() * 3,
                capacity: extremes[usize::try_from(below(8)).unwrap()],
                max_khz: extremes[usize::try_from(below(8)).unwrap()],
                is_online: below(8) != 0,
                is_allowed: below(8) != 0,
            });
        }
        let usable = |id: &u16| {
            let mut cores = topology.cores().iter();
            cores.any(|core| core.id == *id && core.is_online && core.is_allowed)
        };
        let [allocate, read, unpack] = ranked(&topology);
        assert_eq!(read, unpack);
        assert_eq!(allocate.is_empty(), read.is_empty(), "{topology:?}");
        assert!(allocate.iter().chain(&read).all(usable), "{topology:?}");
        let disjoint = allocate.iter().all(|core| !read.contains(core));
        assert!(disjoint || allocate == read, "{topology:?}");
        pinned += usize::from(!read.is_empty());
    }
    assert!(pinned > 1000, "{pinned}");
}

#[test]
fn a_list_has_each_core_once_and_ends() {
    let mut list = CoreList::EMPTY;
    assert!(list.push(7) && list.push(u16::MAX) && !list.push(7));
    for id in 100..100 + u16::try_from(CORES_MAX).unwrap() - 2 {
        assert!(list.push(id));
    }
    assert!(!list.push(99));
    assert_eq!((list[0], list[1], list.len()), (7, u16::MAX, CORES_MAX));
}
