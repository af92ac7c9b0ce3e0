//! A stream engine whose user code is WebAssembly. The modules in reading order:

pub mod base;
pub mod graph;
pub mod state;
pub mod checkpoint;
pub mod protocol;
pub mod wasm;
pub mod connector;
pub mod client;
pub mod rest;
pub mod job_manager;
pub mod task_manager;
pub mod mini_cluster;
pub mod cli;
