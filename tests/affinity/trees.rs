//! Machines as sysfs describes them, and as it should not.

use mzcache::limits::CORES_MAX;
use mzcache::port::affinity::{Core, CoreMap, Topology};
use mzcache::port::linux::{PosixThreads, host_topology, read_topology};
use mzcache::port::{Threads, affinity::CoreList};
use std::ffi::CString;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// A machine's directory.
struct Tree(TempDir);

impl Tree {
    fn new() -> Self {
        Tree(tempfile::tempdir().unwrap())
    }

    /// Cores from the next number on, that many of each capacity and kHz.
    fn with(clusters: &[(usize, &str, &str)]) -> Self {
        let tree = Self::new();
        let cores = clusters.iter().flat_map(|cluster| std::iter::repeat_n(cluster, cluster.0));
        for (core, (_, capacity, max_khz)) in cores.enumerate() {
            tree.set(core, "cpu_capacity", capacity);
            tree.set(core, "cpufreq/cpuinfo_max_freq", max_khz);
            tree.set(core, "online", "1\n");
        }
        tree
    }

    fn set(&self, core: usize, name: &str, text: impl AsRef<[u8]>) {
        let path = self.0.path().join(format!("cpu{core}")).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn remove(&self, core: usize, name: &str) {
        fs::remove_file(self.0.path().join(format!("cpu{core}")).join(name)).unwrap();
    }

    fn read(&self, is_allowed: impl Fn(u16) -> bool) -> Topology {
        read_topology(&c_path(self.0.path()), is_allowed)
    }

    fn map(&self, is_allowed: impl Fn(u16) -> bool) -> CoreMap {
        CoreMap::rank(&self.read(is_allowed))
    }
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_encoded_bytes()).unwrap()
}

fn list(ids: &[u16]) -> CoreList {
    let mut list = CoreList::EMPTY;
    assert!(ids.iter().all(|id| list.push(*id)));
    list
}

fn map(allocate: &[u16], big: &[u16]) -> CoreMap {
    CoreMap { allocate: list(allocate), read: list(big), unpack: list(big) }
}

const SM8650: [(usize, &str, &str); 4] = [
    (2, "379\n", "2265600\n"),
    (3, "923\n", "3148800\n"),
    (2, "867\n", "2956800\n"),
    (1, "1024\n", "3302400\n"),
];

#[test]
fn phones_are_read_and_ranked() {
    let sm8750 = Tree::with(&[(6, "1024\n", "3532800\n"), (2, "1024\n", "4320000\n")]);
    assert_eq!(sm8750.map(|core| core < 8), map(&[0, 1, 2, 3, 4, 5], &[6, 7]));
    let sm8650 = Tree::with(&SM8650);
    assert_eq!(sm8650.map(|core| core < 8), map(&[5, 6], &[7, 2, 3, 4]));
    assert_eq!(sm8650.map(|core| core < 4), map(&[2, 3], &[2, 3]), "in the background");
    sm8650.set(7, "online", "0\n");
    assert_eq!(sm8650.map(|core| core < 8), map(&[5, 6], &[2, 3, 4]));
    let two = Tree::with(&[(6, "420", "1800000"), (2, "1024", "2300000")]);
    assert_eq!(two.map(|core| core < 8), map(&[6, 7], &[6, 7]));
}

#[test]
fn a_core_is_described_as_it_is() {
    let tree = Tree::with(&[(1, "512\n", "1900000\n"), (1, " 1024 \n", "2000000")]);
    tree.set(0, "online", "0\n");
    tree.remove(1, "online");
    let cores = [
        Core { id: 0, capacity: 512, max_khz: 1_900_000, is_online: false, is_allowed: true },
        Core { id: 1, capacity: 1024, max_khz: 2_000_000, is_online: true, is_allowed: false },
    ];
    assert_eq!(tree.read(|core| core == 0).cores(), cores);
}

#[test]
fn a_server_without_capacities_is_symmetric() {
    let server = Tree::new();
    for core in 0..16 {
        server.set(core, "online", "1\n");
    }
    server.remove(0, "online");
    let topology = server.read(|core| core < 16);
    assert_eq!(topology.cores().len(), 16);
    assert_eq!(CoreMap::rank(&topology), CoreMap::ANYWHERE);
    // More cores than are looked at.
    let large = server.read(|_| true);
    assert_eq!(large.cores().len(), CORES_MAX);
    assert_eq!(CoreMap::rank(&large), CoreMap::ANYWHERE);
}

#[test]
fn hidden_files_leave_what_is_known_of_all() {
    let tree = Tree::with(&SM8650);
    tree.remove(3, "cpu_capacity");
    assert_eq!(tree.map(|core| core < 8), map(&[0, 1], &[7, 2, 3, 4, 5, 6]), "by frequency");
    tree.remove(7, "cpufreq/cpuinfo_max_freq");
    assert_eq!(tree.map(|core| core < 8), CoreMap::ANYWHERE);
    assert_eq!(Tree::new().read(|_| false).cores(), []);
    assert_eq!(read_topology(c"/nowhere", |_| false).cores(), []);
    assert_eq!(read_topology(c"", |core| core < 3).cores().len(), 3);
    let long = CString::new("/x".repeat(5000)).unwrap();
    assert_eq!(read_topology(&long, |core| core < 3).cores().len(), 3);
}

#[test]
fn nonsense_is_not_known() {
    let nonsense: [&[u8]; 13] = [
        b"",
        b"\n",
        b"many\n",
        b"-1\n",
        b"+1\n",
        b"1 024\n",
        b"0x400\n",
        b"10.5\n",
        b"4294967296\n",
        b"99999999999999999999999\n",
        b"000000000000000001024\n",
        b"\xFF\xFE\x00\x01",
        b"1024\x00",
    ];
    for text in nonsense {
        let tree = Tree::with(&SM8650);
        for core in 0..8 {
            tree.set(core, "cpu_capacity", text);
            tree.set(core, "cpufreq/cpuinfo_max_freq", text);
            tree.set(core, "online", text);
        }
        let topology = tree.read(|core| core < 8);
        let unknown = |core: &Core| (core.capacity, core.max_khz, core.is_online) == (0, 0, true);
        assert!(topology.cores().iter().all(unknown), "{text:?}: {topology:?}");
        assert_eq!(topology.cores().len(), 8);
        assert_eq!(CoreMap::rank(&topology), CoreMap::ANYWHERE);
    }
    // The greatest number that fits.
    let tree = Tree::with(&[(1, "4294967295", "4294967295"), (1, "1", "1")]);
    assert_eq!(tree.map(|core| core < 2), map(&[0], &[0]));
    // Neither a directory nor a pipe is read, nor waited for.
    let tree = Tree::with(&SM8650);
    tree.remove(7, "cpu_capacity");
    fs::create_dir(tree.0.path().join("cpu7/cpu_capacity")).unwrap();
    tree.remove(6, "cpu_capacity");
    let pipe = c_path(&tree.0.path().join("cpu6/cpu_capacity"));
    // SAFETY: a C string that outlives the call.
    assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
    let topology = tree.read(|core| core < 8);
    assert_eq!((topology.cores()[7].capacity, topology.cores()[6].capacity), (0, 0));
}

/// Numbers and ranges, as the kernel writes sets.
fn set_of(text: &str) -> Vec<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<u16>().unwrap()..=last.parse().unwrap()
    };
    text.trim().split(',').flat_map(range).collect()
}

#[test]
fn this_machine_is_as_the_kernel_says() {
    let allowed = || -> Vec<u16> {
        let topology = host_topology();
        topology.cores().iter().filter(|core| core.is_allowed).map(|core| core.id).collect()
    };
    let says = || {
        let status = fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let mut set = set_of(line.unwrap());
        set.retain(|core| usize::from(*core) < CORES_MAX);
        set
    };
    assert!(!says().is_empty());
    assert_eq!(allowed(), says());
    // What one thread may use is its own.
    let last = *says().last().unwrap();
    std::thread::spawn(move || {
        PosixThreads::new().pin(last).unwrap();
        assert_eq!(says(), [last]);
        assert_eq!(allowed(), [last]);
    })
    .join()
    .unwrap();
}
