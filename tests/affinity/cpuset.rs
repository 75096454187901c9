//! A cpuset that is narrowed and widened under a runtime, as Android does when an app leaves the
//! screen and comes back. Needs root, two cores and a control group to put a process in.

use crate::manager::{Setup, open};
use crate::pins::{ABSENT, pins, wait_for_pins, workers_on};
use mzcache::port::linux::host_topology;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Tells the process that is confined to which group.
const GROUP: &str = "MZCACHE_TEST_GROUP";

/// A control group of this test's own, removed at the end.
struct Group(PathBuf);

impl Group {
    /// On core 0; by version 1 of control groups, or by version 2.
    fn new() -> std::io::Result<Self> {
        let v1 = Path::new("/sys/fs/cgroup/cpuset");
        let root = if v1.join("cpuset.cpus").exists() { v1 } else { Path::new("/sys/fs/cgroup") };
        if root != v1 {
            fs::write(root.join("cgroup.subtree_control"), "+cpuset")?;
        }
        let group = Group(root.join(format!("mzcache-test-{}", std::process::id())));
        fs::create_dir(&group.0)?;
        let nodes = ["cpuset.effective_mems", "cpuset.mems.effective"];
        let nodes = nodes.iter().find_map(|name| fs::read(root.join(name)).ok());
        fs::write(group.0.join("cpuset.mems"), nodes.unwrap_or_else(|| b"0".to_vec()))?;
        group.set_cores("0")?;
        Ok(group)
    }

    fn set_cores(&self, cores: &str) -> std::io::Result<()> {
        fs::write(self.0.join("cpuset.cpus"), cores)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its process has ended; a failure leaves an empty group.
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn a_narrowed_cpuset_is_reported_and_its_widening_is_used() {
    let topology = host_topology();
    let has = |id| topology.cores().iter().any(|core| core.id == id && core.is_allowed);
    if !has(0) || !has(1) {
        return eprintln!("SKIPPED: cores 0 and 1 are not both this process's to use");
    }
    let group = match Group::new() {
        Ok(group) => group,
        Err(error) => return eprintln!("SKIPPED: no control group with a cpuset: {error}"),
    };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "cpuset::confined", "--ignored", "--nocapture"]);
    let output = command.env(GROUP, &group.0).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text} {}", String::from_utf8_lossy(&output.stderr));
    let said: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("> ")).collect();
    let expected = [
        "narrow: pinned 1, not 2, allowed [0]",
        "wide: pinned 2, not 1, allowed [0, 1]",
        "narrow again: pinned 1, not 2, allowed [0]",
    ];
    assert_eq!(said, expected, "{text}");
}

#[test]
#[ignore = "started by the other test, in a process of its own"]
fn confined() {
    let group = std::mem::ManuallyDrop::new(Group(
        std::env::var_os(GROUP).expect("started by the other test").into(),
    ));
    fs::write(group.0.join("cgroup.procs"), std::process::id().to_string()).unwrap();
    let workers = workers_on([Some(0), Some(1), Some(ABSENT)]);
    let fixture = open("cpuset", &Setup { workers, ..Setup::default() });
    let report = |when: &str| {
        let topology = host_topology();
        let allowed = topology.cores().iter().filter(|core| core.is_allowed);
        let allowed: Vec<u16> = allowed.map(|core| core.id).collect();
        let (pinned, unpinned) = pins(&fixture);
        // The harness's line of this test has no end yet.
        println!("\n> {when}: pinned {pinned}, not {unpinned}, allowed {allowed:?}");
    };
    report("narrow");
    group.set_cores("0-1").unwrap();
    fixture.runtime.repin();
    wait_for_pins(&fixture, (2, 1));
    report("wide");
    group.set_cores("0").unwrap();
    fixture.runtime.repin();
    wait_for_pins(&fixture, (1, 2));
    report("narrow again");
}
