//! The transformer as its users see it: real files in, tokens out.

mod compute;
mod corpus;
mod hostile;
mod oracles;
mod smollm2;
mod support;
