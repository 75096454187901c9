mod arguments;
#[cfg(feature = "infer")]
mod built_in;
mod checkpoint;
mod leases;
mod outside;
mod sides;
mod steps;
mod tables;
mod threads;
mod world;
