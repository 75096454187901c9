//! What the commands do, one module each, and the console that they share.

mod console;
mod profile;

pub use console::Console;
pub use profile::profile;
