//! `--codec auto`: which codec, by the rates of this device and the eviction that is expected.

use crate::amount::{Amount, Size, time};
use crate::failure::Outcome;
use mzcache::codec::{ChunkLayout, Geometry, codec};
use mzcache::infer::Model;
use mzcache::limits::CHUNK_TOKENS;
use mzcache::policy::{self, Amounts, Candidate, Profile, Setup};
use mzcache::units::{ByteCount, ChunkId, CodecId, TokenCount};
use std::time::Duration;

/// What is going to be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Tokens of context.
    pub tokens: u32,
    /// `None` when nothing is.
    pub evict: Option<Amount>,
}

impl Expected {
    /// No eviction.
    pub const NOTHING: Expected = Expected { tokens: 0, evict: None };
}

/// The codec for a model, and why.
pub fn choose(
    model: &Model,
    profile: &Profile,
    unpackers: u16,
    expected: Expected,
) -> Outcome<(CodecId, String)> {
    let shape = model.shape.kv();
    let chunk_bytes = ByteCount::new(shape.chunk_bytes() as u64);
    let chunks = u64::from(TokenCount::new(expected.tokens).chunks()) * u64::from(shape.layers);
    let weights: u64 = model.units.iter().map(|unit| unit.bytes()).sum();
    let kv = chunks * chunk_bytes.get();
    let evict = expected.evict.map_or(0, |amount| amount.bytes(weights + kv)).min(weights + kv);
    if evict == 0 {
        return Ok((CodecId::Q8, "codec q8: nothing is to be evicted".into()));
    }
    let setup = Setup {
        codec: CodecId::Q8,
        chunk_bytes,
        packed_bytes: chunk_bytes,
        stored_bytes: chunk_bytes,
        unpackers,
        ram_is_open: true,
        flash_is_open: true,
    };
    let geometry = Geometry {
        shape,
        id: ChunkId::default(),
        tokens: CHUNK_TOKENS,
        layout: ChunkLayout::TokenMajor,
    };
    let known = CodecId::ALL.into_iter().filter(|id| profile.rates(*id).is_ok());
    let candidates: Vec<Candidate> = known
        .map(|id| Candidate {
            codec: id,
            packed_bytes: ByteCount::new(codec(id).packed_bytes_usual(&geometry) as u64),
        })
        .collect();
    let [evict, weights, kv] = [evict, weights, kv].map(ByteCount::new);
    let amounts = Amounts { evict, weights, kv };
    let Some(best) = policy::choose(profile, &setup, &candidates, &amounts)? else {
        return Ok((CodecId::Q8, "codec q8: no codec frees that much".into()));
    };
    let mut reason = format!(
        "codec {}: bringing {} back is predicted to take {}",
        best.codec.name(),
        Size(evict.get()),
        time(Duration::from_nanos(best.restore.get()))
    );
    for other in candidates.iter().filter(|other| other.codec != best.codec) {
        let alone = policy::choose(profile, &setup, std::slice::from_ref(other), &amounts)?;
        if let Some(other) = alone {
            let restore = time(Duration::from_nanos(other.restore.get()));
            reason.push_str(&format!(", with {} {restore}", other.codec.name()));
        }
    }
    Ok((best.codec, reason))
}
