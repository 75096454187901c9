mod arguments;
mod leases;
mod outside;
mod tables;
mod world;
