//! The machine's cores as sysfs describes them, and this thread on one of them.
//!
//! Every file may be absent, hidden or nonsense: x86 kernels before 6.12 know no capacities,
//! virtual machines no frequencies, containers hide either. What cannot be read is "not known", and
//! [`CoreMap::rank`](crate::port::affinity::CoreMap::rank) then goes by what is.

use super::errno;
use super::number::read_number;
use crate::error::{Code, Error, Result};
use crate::limits::CORES_MAX;
use crate::port::affinity::{Core, Topology};
use core::ffi::CStr;
use core::mem::MaybeUninit;

/// Where Linux describes cores.
const CPU_ROOT: &CStr = c"/sys/devices/system/cpu";

/// The cores of this machine, and which of them the calling thread may use at this moment. An app
/// in the background may use few: read it in the foreground.
pub fn host_topology() -> Topology {
    let allowed = Allowed::now();
    read_topology(CPU_ROOT, |core| allowed.contains(core))
}

/// The cores described below `root`, as Linux does it below `/sys/devices/system/cpu`.
pub fn read_topology(root: &CStr, is_allowed: impl Fn(u16) -> bool) -> Topology {
    let mut topology = Topology::new();
    for id in (0..CORES_MAX).filter_map(|id| u16::try_from(id).ok()) {
        let capacity = number_of(root, id, "cpu_capacity");
        let max_khz = number_of(root, id, "cpufreq/cpuinfo_max_freq");
        let is_allowed = is_allowed(id);
        if !is_allowed && capacity.is_none() && max_khz.is_none() {
            // There is no such core.
            continue;
        }
        topology.push(Core {
            id,
            capacity: capacity.unwrap_or(0),
            max_khz: max_khz.unwrap_or(0),
            // Cores that cannot be taken offline have no such file.
            is_online: number_of(root, id, "online") != Some(0),
            is_allowed,
        });
    }
    topology
}

/// The number in a file of one core; none where there is no such file or no such number.
fn number_of(root: &CStr, core: u16, name: &str) -> Option<u32> {
    read_number(root, format_args!("/cpu{core}/{name}"), "core description")
}

/// The cores that the calling thread may use; none when the kernel does not say.
struct Allowed(libc::cpu_set_t);

impl Allowed {
    fn now() -> Self {
        let mut set = MaybeUninit::<libc::cpu_set_t>::zeroed();
        // SAFETY: `set` is writable for its size, and zero stands for this thread. A failure leaves
        // it as it is.
        unsafe { libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), set.as_mut_ptr()) };
        // SAFETY: an all-zero set is valid, whether the call filled it or not.
        Allowed(unsafe { set.assume_init() })
    }

    fn contains(&self, core: u16) -> bool {
        // SAFETY: the core is within the set, so the look is within its bounds.
        is_nameable(core) && unsafe { libc::CPU_ISSET(usize::from(core), &self.0) }
    }
}

/// Whether a set of cores can name it.
fn is_nameable(core: u16) -> bool {
    // A number of another type in Android's C library.
    usize::try_from(libc::CPU_SETSIZE).is_ok_and(|end| usize::from(core) < end)
}

/// Keeps the calling thread on that core. The kernel refuses (`EINVAL`) one that is offline or
/// outside the cpuset, and leaves the thread where it may run.
pub(super) fn pin_current(core: u16) -> Result<()> {
    if !is_nameable(core) {
        return Err(Error::new(Code::InvalidArgument, "core").with(core));
    }
    match core_affinity::set_for_current(core_affinity::CoreId { id: usize::from(core) }) {
        true => Ok(()),
        false => Err(errno::error("core", errno::last())),
    }
}
