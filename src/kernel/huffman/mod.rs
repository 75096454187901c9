//! Prefix codes of small integers: thirteen constant Huffman codes, from narrow to wide.
//!
//! A row is a sequence of up to 256 residuals, coded with one of the tables and then filled up with
//! zero bits to a whole byte, most significant bit first. Residuals that a table has no code of
//! their own for become its escape code; their values stand elsewhere, 16 bits each.
//!
//! `tables` owns the code lengths and what follows from them. `encode` says what a row costs under
//! each table and writes it; `vectors` has what that shares where vectors look codes up and join
//! them. `decode` reads several rows at once, because one row alone waits for its own table
//! look-ups; the loop over four of them is the kernel. Invariant: whatever the bytes are, a look-up
//! consumes at least one bit and gives at least one symbol, so that decoding ends, and it succeeds
//! only when a row's codes fill the row's bytes exactly.

mod decode;
mod encode;
pub(super) mod tables;
#[cfg(test)]
mod tests;
#[cfg(any(
    all(target_arch = "x86_64", target_feature = "sse2"),
    all(target_arch = "aarch64", target_feature = "neon")
))]
mod vectors;

#[cfg_attr(all(target_arch = "x86_64", target_feature = "sse2"), path = "x86_64.rs")]
#[cfg_attr(all(target_arch = "aarch64", target_feature = "neon"), path = "aarch64.rs")]
#[cfg_attr(
    not(any(
        all(target_arch = "x86_64", target_feature = "sse2"),
        all(target_arch = "aarch64", target_feature = "neon")
    )),
    path = "../no_arch.rs"
)]
mod arch;

pub(super) use arch::improve;
pub(super) use decode::window;
pub use decode::{BYTES_BEHIND_ROWS, CodedRow, HuffmanDecode, SYMBOLS_STRIDE};
pub use encode::{HuffmanEncode, Indices, ROW_BYTES_MAX, cheapest};
pub use tables::{Costs, ESCAPE, RESIDUAL_MAX, TABLES, has_code, residual_bound};
