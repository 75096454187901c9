//! Which codec brings an eviction back soonest.
//!
//! A codec that saves more leaves less for flash to bring back, and takes longer to unpack. Which
//! of the two weighs more depends on the device and on how much is to be freed: below some size of
//! eviction one codec is ahead, above it another. The prediction is that of the hybrid swap when
//! both paths end together (paper 4.3), in bytes instead of whole units; beyond, packed chunks are
//! spilled, and what a codec saves need not be read.

use super::profile::Profile;
use super::times::{Setup, Times};
use crate::error::Result;
use crate::units::{ByteCount, CodecId, Nanos};

/// What could be evicted, and how much of it shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amounts {
    /// Bytes to free.
    pub evict: ByteCount,
    /// Weights.
    pub weights: ByteCount,
    /// Full chunks as they lie in shared buffers.
    pub kv: ByteCount,
}

/// One codec's sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The codec.
    pub codec: CodecId,
    /// A full chunk packed by it.
    pub packed_bytes: ByteCount,
}

/// A codec, and how long restoration takes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The codec.
    pub codec: CodecId,
    /// Until everything is back.
    pub restore: Nanos,
}

/// How long restoring takes when `amounts` was evicted with `setup`'s codec; `None` when that much
/// cannot be freed.
pub fn restore_time(times: &Times, setup: &Setup, amounts: &Amounts) -> Option<Nanos> {
    let paths = Paths { times, setup, amounts };
    // All of it, at either rate.
    let all = ByteCount::new(amounts.weights.get().saturating_add(amounts.kv.get()));
    let longest = times.read_weights(all).get().saturating_add(paths.unpack_time());
    let balance = match times.read_chunk {
        Some(_) => least(longest, |nanos| paths.leave_nothing(nanos))?,
        None => longest,
    };
    let evict = u128::from(amounts.evict.get());
    least(longest, |nanos| paths.freed_in(nanos, balance) >= evict).map(Nanos::new)
}

/// The least number up to `longest` of which something holds that holds of all larger ones.
fn least(longest: u64, holds: impl Fn(u64) -> bool) -> Option<u64> {
    if !holds(longest) {
        return None;
    }
    let (mut low, mut high) = (0, longest);
    while low < high {
        let middle = low + (high - low) / 2;
        match holds(middle) {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    Some(low)
}

/// The candidate with the shortest restoration; of several within a twentieth of it the first.
/// Candidates stand in order of quality, as [`CodecId::ALL`] does. `None` when none frees enough.
pub fn choose(
    profile: &Profile,
    setup: &Setup,
    candidates: &[Candidate],
    amounts: &Amounts,
) -> Result<Option<Choice>> {
    let predict = |candidate: &Candidate| {
        let setup =
            Setup { codec: candidate.codec, packed_bytes: candidate.packed_bytes, ..*setup };
        let restore = restore_time(&Times::new(profile, &setup)?, &setup, amounts);
        Ok(restore.map(|restore| Choice { codec: candidate.codec, restore }))
    };
    let mut best: Option<Choice> = None;
    for candidate in candidates {
        let choice = predict(candidate)?;
        let is_better = |best: Choice| {
            choice.is_some_and(|choice| choice.restore.get() < best.restore.get() / 20 * 19)
        };
        if best.is_none_or(is_better) {
            best = choice.or(best);
        }
    }
    Ok(best)
}

/// Both ways back, and what they may have to bring.
struct Paths<'a> {
    times: &'a Times,
    setup: &'a Setup,
    amounts: &'a Amounts,
}

impl Paths<'_> {
    /// Bytes of weights, and of KV.
    fn amounts(&self) -> (u128, u128) {
        (self.amounts.weights.get().into(), self.amounts.kv.get().into())
    }

    fn chunk(&self) -> u128 {
        u128::from(self.setup.chunk_bytes.get()).max(1)
    }

    /// Nanoseconds that unpacking all KV takes; 0 where nothing is packed.
    fn unpack_time(&self) -> u64 {
        let chunks = self.amounts.kv.get().div_ceil(self.setup.chunk_bytes.get().max(1));
        self.times.unpack_chunk.map_or(0, |unpack| unpack.get().saturating_mul(chunks))
    }

    fn read_in(&self, nanos: u64) -> u128 {
        u128::from(nanos) * u128::from(self.times.read_bytes_per_s) / 1_000_000_000
    }

    /// As they are in shared buffers.
    fn unpacked_in(&self, nanos: u64) -> u128 {
        let Some(unpack) = self.times.unpack_chunk else {
            return 0;
        };
        (u128::from(nanos) * self.chunk() / u128::from(unpack.get().max(1)))
            .min(self.amounts.kv.get().into())
    }

    /// Whether as much as both paths bring back in that time is all there is.
    fn leave_nothing(&self, nanos: u64) -> bool {
        let (weights, kv) = self.amounts();
        self.unpacked_in(nanos) + self.read_in(nanos) >= weights + kv
    }

    /// What packing some chunks frees.
    fn saved_of(&self, packed: u128) -> u128 {
        let saved = self.setup.chunk_bytes.get().saturating_sub(self.setup.packed_bytes.get());
        packed * u128::from(saved) / self.chunk()
    }

    /// Most bytes that can be evicted so that both paths bring them back in `nanos`. Once nothing
    /// is left to evict, in `balance`, packed chunks go to flash as they are.
    fn freed_in(&self, nanos: u64, balance: u64) -> u128 {
        let (weights, kv) = self.amounts();
        let packed = self.unpacked_in(nanos.min(balance));
        let saved = self.saved_of(packed);
        if self.times.read_chunk.is_none() {
            return saved + self.read_in(nanos).min(weights);
        }
        let read = self.read_in(nanos.min(balance)).min(weights + kv - packed);
        let spilled = self.read_in(nanos).saturating_sub(self.read_in(balance));
        saved + read + spilled.min(packed - saved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::CodecRates;

    const SETUP: Setup = Setup {
        codec: CodecId::Q8,
        chunk_bytes: ByteCount::new(1000),
        packed_bytes: ByteCount::new(500),
        stored_bytes: ByteCount::new(1000),
        unpackers: 1,
        ram_is_open: true,
        flash_is_open: true,
    };

    /// Flash 1 byte a nanosecond, q8 at `q8` bytes a nanosecond, kv4 at `kv4`.
    fn profile(q8: u64, kv4: u64) -> Profile {
        let mut profile = Profile { read_bytes_per_s: 1_000_000_000, ..Profile::DEFAULT };
        for (codec, rate) in [(CodecId::Q8, q8), (CodecId::Kv4, kv4)] {
            let rate = rate * 1_000_000_000;
            *profile.rates_mut(codec) =
                CodecRates { pack_bytes_per_s: rate, unpack_bytes_per_s: rate };
        }
        profile
    }

    fn time(setup: &Setup, amounts: &Amounts) -> Option<u64> {
        let times = Times::new(&profile(2, 1), setup).unwrap();
        restore_time(&times, setup, amounts).map(Nanos::get)
    }

    fn amounts(evict: u64, weights: u64, kv: u64) -> Amounts {
        let [evict, weights, kv] = [evict, weights, kv].map(ByteCount::new);
        Amounts { evict, weights, kv }
    }

    #[test]
    fn both_paths_work_until_the_end() {
        // In a nanosecond 1 byte is read, and 2 are unpacked that freed 1.
        assert_eq!(time(&SETUP, &amounts(10_000, 50_000, 50_000)), Some(5_000));
        // No KV is left to pack: 10,000 bytes free 5,000.
        assert_eq!(time(&SETUP, &amounts(25_000, 50_000, 10_000)), Some(20_000));
        assert_eq!(time(&SETUP, &amounts(0, 50_000, 10_000)), Some(0));
    }

    #[test]
    fn a_closed_path_does_nothing() {
        let flash = Setup { ram_is_open: false, ..SETUP };
        assert_eq!(time(&flash, &amounts(10_000, 50_000, 50_000)), Some(10_000));
        let ram = Setup { flash_is_open: false, ..SETUP };
        assert_eq!(time(&ram, &amounts(10_000, 0, 50_000)), Some(10_000));
        assert_eq!(time(&ram, &amounts(10_000, 50_000, 50_000)), Some(5_000));
        assert_eq!(time(&ram, &amounts(25_001, 0, 50_000)), None);
        assert_eq!(time(&SETUP, &amounts(100_001, 50_000, 50_000)), None);
        assert_eq!(time(&flash, &amounts(100_000, 50_000, 50_000)), Some(100_000));
    }

    #[test]
    fn what_is_packed_goes_to_flash_as_it_is() {
        // In 50,000 ns the weights are read and all KV is unpacked, which freed half of itself.
        assert_eq!(time(&SETUP, &amounts(75_000, 50_000, 50_000)), Some(50_000));
        assert_eq!(time(&SETUP, &amounts(75_001, 50_000, 50_000)), Some(50_001));
        assert_eq!(time(&SETUP, &amounts(100_000, 50_000, 50_000)), Some(75_000));
        // In 20,000 ns a third of the KV was read raw, and stays so.
        assert_eq!(time(&SETUP, &amounts(40_000, 0, 60_000)), Some(20_000));
        assert_eq!(time(&SETUP, &amounts(60_000, 0, 60_000)), Some(40_000));
        let ram = Setup { flash_is_open: false, ..SETUP };
        assert_eq!(time(&ram, &amounts(75_001, 50_000, 50_000)), None);
    }

    #[test]
    fn a_codec_that_is_slower_than_flash_is_waited_for() {
        let mut profile = profile(1, 1);
        profile.rates_mut(CodecId::Q8).unpack_bytes_per_s = 100_000_000;
        let setup = Setup { flash_is_open: false, ..SETUP };
        let times = Times::new(&profile, &setup).unwrap();
        // A tenth of a byte a nanosecond, half of which was freed; weights are read meanwhile.
        let time = |amounts| restore_time(&times, &setup, &amounts).map(Nanos::get);
        assert_eq!(time(amounts(500, 0, 1000)), Some(10_000));
        assert_eq!(time(amounts(25_000, 20_000, 50_000)), Some(100_000));
    }

    #[test]
    fn a_twentieth_is_not_soon_enough_and_any_more_is() {
        let setup = Setup { flash_is_open: false, ..SETUP };
        let choice = |saved| {
            let candidates = [(CodecId::Q8, 475), (CodecId::Kv4, saved)].map(|(codec, saved)| {
                Candidate { codec, packed_bytes: ByteCount::new(1000 - saved) }
            });
            // 9500 bytes, out of 475 saved in each 1000 ns or out of `saved`.
            choose(&profile(1, 1), &setup, &candidates, &amounts(9500, 0, 50_000)).unwrap().unwrap()
        };
        assert_eq!(choice(500), Choice { codec: CodecId::Q8, restore: Nanos::new(20_000) });
        assert_eq!(choice(501), Choice { codec: CodecId::Kv4, restore: Nanos::new(18_963) });
    }

    #[test]
    fn more_takes_longer_and_never_less_than_flash_and_memory_allow() {
        for kv in [0, 999, 40_000] {
            let mut before = 0;
            for evict in (0..=30_000 + kv).step_by(331) {
                let now = time(&SETUP, &amounts(evict, 30_000, kv)).unwrap();
                assert!(now >= before && now <= evict, "{evict} of {kv}: {now}");
                assert!(2 * now + 2 >= evict, "{evict} of {kv}: {now}");
                before = now;
            }
        }
    }

    #[test]
    fn a_slow_codec_pays_once_fast_ones_have_packed_everything() {
        let profile = profile(4, 3);
        let candidates = [(CodecId::Q8, 500), (CodecId::Kv4, 250)]
            .map(|(codec, bytes)| Candidate { codec, packed_bytes: ByteCount::new(bytes) });
        let choice = |evict| {
            let amounts = amounts(evict, 50_000, 50_000);
            choose(&profile, &SETUP, &candidates, &amounts).unwrap()
        };
        // 1 + 4/2 bytes a nanosecond against 1 + 3 * 3/4.
        assert_eq!(choice(30_000).unwrap().codec, CodecId::Kv4);
        // Within a twentieth, the better one.
        assert_eq!(choice(10).unwrap().codec, CodecId::Q8);
        assert_eq!(choice(70_000).unwrap().codec, CodecId::Kv4);
        // All of it: a quarter of the KV is read instead of half.
        let all = Choice { codec: CodecId::Kv4, restore: Nanos::new(62_500) };
        assert_eq!(choice(100_000), Some(all));
        assert_eq!(choice(100_001), None);
        let mut old = profile;
        old.codecs[CodecId::Kv4 as usize] = None;
        let error = choose(&old, &SETUP, &candidates, &amounts(10, 50, 50)).unwrap_err();
        assert_eq!(error.code, crate::error::Code::Mismatch);
    }
}
