//! Workers on cores: how a machine is read, what is refused, what a cpuset does to it.
#![cfg(feature = "host")]

#[path = "../manager/mod.rs"]
mod manager;

mod cpuset;
mod pins;
mod trees;
