//! Memory that the caller gives once.
//!
//! Holds everything whose size follows from the configuration: tables, queues, worker scratch,
//! compute tiles. Invariant: a [`Sizer`] driven by the same configuration answers exactly what an
//! [`Arena`] then uses. It never frees, never grows, and hands nothing out after [`Arena::seal`].
//!
//! ```text
//! memory  |pad|  slice A  |pad|  slice B  | ...  |  unused  |
//!             ^ aligned to ARENA_ALIGN             ^ used
//! ```
//!
//! `view` holds the checked casts between byte slices and number slices.

mod place;
pub mod view;

pub use place::{Arena, Sizer};

/// Alignment of the arena's start; every placement inside may ask for up to this much.
pub const ARENA_ALIGN: usize = crate::limits::IO_ALIGN;
