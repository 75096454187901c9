//! Per-unit restore times from measured rates and sizes: t_dKV, t_rKV and t_rW of paper 4.3.
//!
//! Times are rounded up and never 0, so that every evicted unit counts. A path that is closed has
//! no time.

use super::profile::Profile;
use crate::error::Result;
use crate::units::{ByteCount, CodecId, Nanos};

const NANOS_PER_S: u128 = 1_000_000_000;

/// What times depend on besides the profile. Sizes are those of one full chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The codec of the RAM swap.
    pub codec: CodecId,
    /// A chunk in its shared buffer.
    pub chunk_bytes: ByteCount,
    /// A chunk in the RAM swap, header included.
    pub packed_bytes: ByteCount,
    /// A chunk in the swap file, as much as is read to restore it.
    pub stored_bytes: ByteCount,
    /// Threads that unpack at the same time; 0 counts as 1, the caller itself.
    pub unpackers: u16,
    /// Whether chunks may go to the RAM swap.
    pub ram_is_open: bool,
    /// Whether chunks may go to the swap file.
    pub flash_is_open: bool,
}

/// How long restoring one unit occupies its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// t_dKV, to unpack one chunk. `None` when the RAM path is closed or the codec saves nothing.
    pub unpack_chunk: Option<Nanos>,
    /// t_rKV, to read one chunk. `None` when the flash path is closed for KV.
    pub read_chunk: Option<Nanos>,
    /// What t_rW follows from. Weights can always be read back: they are in the model file.
    pub read_bytes_per_s: u64,
}

impl Times {
    /// The times of this setup on this device. The error names what the profile lacks when it has
    /// no rates of the codec.
    pub fn new(profile: &Profile, setup: &Setup) -> Result<Times> {
        let unpack_bytes_per_s = profile
            .rates(setup.codec)?
            .unpack_bytes_per_s
            .saturating_mul(u64::from(setup.unpackers.max(1)));
        let saves = setup.packed_bytes < setup.chunk_bytes;
        let unpack_chunk = nanos_at(setup.chunk_bytes, unpack_bytes_per_s);
        let read_chunk = nanos_at(setup.stored_bytes, profile.read_bytes_per_s);
        Ok(Times {
            unpack_chunk: (setup.ram_is_open && saves).then_some(unpack_chunk),
            read_chunk: setup.flash_is_open.then_some(read_chunk),
            read_bytes_per_s: profile.read_bytes_per_s,
        })
    }

    /// t_rW, to read a weight unit of that size.
    pub fn read_weights(&self, bytes: ByteCount) -> Nanos {
        nanos_at(bytes, self.read_bytes_per_s)
    }
}

/// At least 1, at most the largest `u64`. A rate of 0, which no parsed profile has, counts as 1.
fn nanos_at(bytes: ByteCount, bytes_per_s: u64) -> Nanos {
    let nanos = (u128::from(bytes.get()) * NANOS_PER_S).div_ceil(u128::from(bytes_per_s.max(1)));
    Nanos::new(u64::try_from(nanos).unwrap_or(u64::MAX).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Code;

    const SETUP: Setup = Setup {
        codec: CodecId::Q8,
        chunk_bytes: ByteCount::new(1 << 20),
        packed_bytes: ByteCount::new(557_120),
        stored_bytes: ByteCount::new(1 << 20),
        unpackers: 1,
        ram_is_open: true,
        flash_is_open: true,
    };

    #[test]
    fn times_follow_from_sizes_and_rates_rounded_up() {
        let times = Times::new(&Profile::DEFAULT, &SETUP).unwrap();
        // 2^20 bytes at 5 GB/s are 209715.2 ns, at 2 GB/s 524288 ns.
        assert_eq!(times.unpack_chunk, Some(Nanos::new(209_716)));
        assert_eq!(times.read_chunk, Some(Nanos::new(524_288)));
        assert_eq!(times.read_weights(ByteCount::new(31_000_001)), Nanos::new(15_500_001));
        let stored_bytes = SETUP.packed_bytes;
        let times = Times::new(&Profile::DEFAULT, &Setup { stored_bytes, ..SETUP }).unwrap();
        assert_eq!(times.read_chunk, Some(Nanos::new(278_560)));
    }

    #[test]
    fn unpackers_share_the_work() {
        for (unpackers, nanos) in [(0, 209_716), (1, 209_716), (2, 104_858), (u16::MAX, 4)] {
            let times = Times::new(&Profile::DEFAULT, &Setup { unpackers, ..SETUP }).unwrap();
            assert_eq!(times.unpack_chunk, Some(Nanos::new(nanos)));
        }
    }

    #[test]
    fn closed_paths_have_no_time() {
        let times = Times::new(&Profile::DEFAULT, &Setup { ram_is_open: false, ..SETUP }).unwrap();
        assert_eq!((times.unpack_chunk, times.read_chunk.is_some()), (None, true));
        let times =
            Times::new(&Profile::DEFAULT, &Setup { flash_is_open: false, ..SETUP }).unwrap();
        assert_eq!((times.unpack_chunk.is_some(), times.read_chunk), (true, None));
        for packed_bytes in [1 << 20, (1 << 20) + 64] {
            let packed_bytes = ByteCount::new(packed_bytes);
            let times = Times::new(&Profile::DEFAULT, &Setup { packed_bytes, ..SETUP }).unwrap();
            assert_eq!(times.unpack_chunk, None);
        }
    }

    #[test]
    fn a_codec_without_rates_has_no_times() {
        let mut profile = Profile::DEFAULT;
        profile.codecs[CodecId::Q8 as usize] = None;
        let error = Times::new(&profile, &SETUP).unwrap_err();
        assert_eq!((error.code, error.what), (Code::Mismatch, "unpack_bytes_per_s.q8"));
        let setup = Setup { codec: CodecId::Raw, ..SETUP };
        assert!(Times::new(&profile, &setup).is_ok());
    }

    #[test]
    fn extremes_neither_overflow_nor_vanish() {
        assert_eq!(nanos_at(ByteCount::new(0), 5), Nanos::new(1));
        assert_eq!(nanos_at(ByteCount::new(1), u64::MAX), Nanos::new(1));
        assert_eq!(nanos_at(ByteCount::new(u64::MAX), 1), Nanos::new(u64::MAX));
        assert_eq!(nanos_at(ByteCount::new(3), 0), Nanos::new(3_000_000_000));
    }
}
