//! The least time that a restore could take: for each resource, the work that is asked of it
//! divided by its rate, as if nothing ever waited for anything else; the largest of these.

use super::rates::Rates;
use std::time::Duration;

/// What a restore and the answer behind it ask for, in bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// From storage.
    pub read: u64,
    /// Packed, in the RAM swap.
    pub packed: u64,
    /// The same unpacked.
    pub unpack: u64,
    /// Of fresh buffers.
    pub allocate: u64,
    /// An answer's time with all in memory.
    pub prefill: Duration,
    /// Time of cores in it, and weights and KV that they read: nothing on an accelerator.
    pub computing: Duration,
    pub touched: u64,
}

/// The bound, and the resource that sets it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bound {
    pub ms: f64,
    pub by: &'static str,
}

impl Bound {
    #[expect(clippy::cast_precision_loss, reason = "sizes for a ratio")]
    pub fn new(rates: &Rates, work: &Work) -> Bound {
        let prefill = work.prefill.as_secs_f64();
        let [read, packed, unpack, allocate, touched] =
            [work.read, work.packed, work.unpack, work.allocate, work.touched]
                .map(|bytes| bytes as f64);
        let core_seconds = allocate / rates.allocate
            + unpack / rates.unpack
            + read * rates.read_core_seconds_per_byte
            + work.computing.as_secs_f64();
        // Fresh pages are zeroed, or what is to go to a device is read; and they are filled.
        let moved = allocate + read + packed + unpack + touched;
        let resources = [
            ("storage", read / rates.read),
            ("cores", core_seconds / (rates.cores as f64 * rates.cores_left)),
            ("compute", prefill),
            ("memory", moved / rates.copy),
            ("link", allocate / rates.link),
        ];
        let largest = resources.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        let (by, seconds) = largest.unwrap_or(("nothing", 0.0));
        Bound { ms: seconds * 1e3, by }
    }

    /// The one in the middle, as of the times beside them.
    pub fn median(mut bounds: Vec<Bound>) -> Option<Bound> {
        bounds.sort_unstable_by(|a, b| a.ms.total_cmp(&b.ms));
        bounds.get(bounds.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATES: Rates = Rates {
        read: 1e9,
        read_core_seconds_per_byte: 1e-10,
        write: 1e9,
        unpack: 4e9,
        pack: 2e9,
        link: 1e10,
        allocate: 5e9,
        copy: 2e10,
        cores: 2,
        cores_left: 1.0,
    };

    fn bound(work: Work) -> Bound {
        by(&RATES, work)
    }

    fn by(rates: &Rates, work: Work) -> Bound {
        let bound = Bound::new(rates, &work);
        Bound { ms: (bound.ms * 1e6).round() / 1e6, ..bound }
    }

    #[test]
    fn the_busiest_resource_sets_the_bound() {
        let read = Work { read: 1_000_000_000, allocate: 1_000_000_000, ..Work::default() };
        assert_eq!(bound(read), Bound { ms: 1000.0, by: "storage" });
        // 2 s of unpacking and 1.6 s of allocation on two cores.
        let unpack = Work { unpack: 8_000_000_000, allocate: 8_000_000_000, ..Work::default() };
        assert_eq!(bound(unpack), Bound { ms: 1800.0, by: "cores" });
        let prefill = Duration::from_millis(1500);
        let answer = Work { prefill, computing: 2 * prefill, ..read };
        // 0.2 s of allocation, 0.1 s of reading and 3 s of computing.
        assert_eq!(bound(answer), Bound { ms: 1650.0, by: "cores" });
        let taken = Rates { cores_left: 0.75, ..RATES };
        assert_eq!(by(&taken, answer), Bound { ms: 2200.0, by: "cores" });
        let answer = Work { prefill, ..read };
        assert_eq!(bound(answer), Bound { ms: 1500.0, by: "compute" });
        let far = Rates { link: 5e8, ..RATES };
        assert_eq!(by(&far, read), Bound { ms: 2000.0, by: "link" });
        let touched = Work { touched: 40_000_000_000, ..Work::default() };
        assert_eq!(bound(touched), Bound { ms: 2000.0, by: "memory" });
    }

    #[test]
    fn the_bound_of_some_rounds_is_the_one_in_the_middle() {
        let of = |ms| Bound { ms, by: "cores" };
        assert_eq!(Bound::median(vec![of(3.0), of(1.0), of(2.0)]), Some(of(2.0)));
        assert_eq!(Bound::median(Vec::new()), None);
    }
}
