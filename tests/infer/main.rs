//! The transformer as its users see it: real files in, tokens out.

mod oracles;
mod smollm2;
mod support;
