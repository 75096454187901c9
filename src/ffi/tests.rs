mod arguments;
mod leases;
mod outside;
mod steps;
mod tables;
mod world;
