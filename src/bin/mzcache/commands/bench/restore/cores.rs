//! What a hypervisor leaves of the cores' time: the host of a guest reads for it, and serves other
//! guests, on the same cores. proc(5) counts what it took as stolen.

/// Counters of `/proc/stat` since the system began, of all cores, in ticks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoreTime {
    all: u64,
    stolen: u64,
}

impl CoreTime {
    /// All zeros where the system does not tell.
    pub fn now() -> CoreTime {
        CoreTime::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    fn of(stat: &str) -> CoreTime {
        let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu "));
        // user, nice, system, idle, iowait, irq, softirq, steal; what guests of this guest took is
        // part of the first two.
        let counts = line.unwrap_or_default().split_whitespace().take(8);
        let counts: Vec<u64> = counts.map_while(|count| count.parse().ok()).collect();
        CoreTime { all: counts.iter().sum(), stolen: counts.get(7).copied().unwrap_or_default() }
    }

    /// Which share of the time since an earlier moment was left to this system.
    #[expect(clippy::cast_precision_loss, reason = "counts for a ratio")]
    pub fn left_since(self, earlier: CoreTime) -> f64 {
        let all = self.all.saturating_sub(earlier.all).max(1);
        1.0 - self.stolen.saturating_sub(earlier.stolen).min(all) as f64 / all as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_stolen_is_not_left() {
        let of = |stat| CoreTime::of(stat);
        let earlier = of("cpu  10 0 10 70 5 1 2 2 50 0\ncpu0 9 9 9\n");
        assert_eq!(earlier, CoreTime { all: 100, stolen: 2 });
        let later = of("cpu  90 0 30 140 5 1 2 32 50 0\n");
        assert!((later.left_since(earlier) - 0.85).abs() < 1e-9);
        assert!((earlier.left_since(later) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_system_that_does_not_tell_stole_nothing() {
        for stat in ["", "intr 5", "cpu  1 2 3"] {
            assert_eq!(CoreTime::of(stat).stolen, 0);
        }
        let nothing = CoreTime::default();
        assert!((nothing.left_since(nothing) - 1.0).abs() < 1e-9);
        assert!((0.0..=1.0).contains(&CoreTime::now().left_since(nothing)));
    }
}
