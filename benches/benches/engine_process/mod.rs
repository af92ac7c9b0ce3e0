//! The engine as a process: `target/release/engine`, as `make engine` leaves it.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// `engine ARGS`. Built by cargo into the directory above that of the bench.
pub fn command(args: &[&str]) -> Command {
    let bench = std::env::current_exe().expect("Linux names it");
    let engine = bench.ancestors().nth(2).expect("target/release/deps/bench").join("engine");
    assert!(engine.exists(), "there is no {}; `make engine`", engine.display());
    let mut command = Command::new(engine);
    command.args(args);
    command
}

/// A plugin built by `make plugins`.
pub fn plugin_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/plugins").join(name).with_extension("wasm")
}

/// Values in ascending order; `per_mille` of them are not above the result.
#[allow(dead_code, reason = "each bench is compiled with this module and uses a part of it")]
pub fn percentile(sorted: &[f64], per_mille: usize) -> f64 {
    sorted[(sorted.len() * per_mille / 1000).min(sorted.len() - 1)]
}
