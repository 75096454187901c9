//! Where evicted KV chunks live: the RAM swap and the flash swap (paper 4.3, 4.4).
//!
//! Holds the RAM swap's book ([`stack`], numbers only, stepped under the handle's lock), copying in
//! and out of its segments ([`record`], done outside the lock), the flash swap ([`mod@file`]), and
//! what of it outlives the process ([`manifest`]). Invariant: what comes back is what was stored,
//! or a typed error says that it is gone; a record never moves. It decides nothing and keeps no map
//! from chunks to records while the process lives: that is the residency table's part.

pub mod file;
pub mod manifest;
pub mod record;
pub mod stack;
