//! Runs the engine as a user does: the binary and the plugins that `make build` left.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use sha2::{Digest, Sha256};

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}

/// A file that `make build` leaves.
///
/// # Panics
/// Panics if it is not there.
pub fn built(path: &str) -> PathBuf {
    let built = workspace().join("target").join(path);
    assert!(built.exists(), "{} is missing: run `make build` first", built.display());
    built
}

/// The engine's command line, with a configuration of its own and no terminal.
pub fn engine() -> Command {
    let mut command = Command::new(built("release/engine"));
    command.env_remove("ENGINE_JOBMANAGER").env_remove("ENGINE_CONFIG").env_remove("ENGINE_LOG");
    command
}

/// A plugin by name.
pub fn plugin(name: &str) -> PathBuf {
    built(&format!("plugins/{name}.wasm"))
}

/// What a command did, for messages.
pub fn describe(output: &Output) -> String {
    format!(
        "exit code {:?}\n--- standard output\n{}\n--- standard error\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs `engine submit -p PARALLELISM PLUGIN ARGUMENTS`, which must succeed.
///
/// # Panics
/// Panics with the command's output if it fails.
pub fn submit(parallelism: u32, name: &str, arguments: &[&str]) -> Output {
    let output = engine()
        .args(["submit", "-p", &parallelism.to_string()])
        .arg(plugin(name))
        .args(arguments)
        .output()
        .expect("the engine starts");
    assert!(output.status.success(), "{}", describe(&output));
    output
}

/// The rows of all part files of a directory, sorted bytewise.
///
/// # Panics
/// Panics if a file cannot be read or does not end with a whole row.
pub fn sorted_rows(directory: &Path) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(directory).expect("the output directory is readable") {
        let path = entry.expect("the output directory is readable").path();
        let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
        assert!(name.starts_with("part-"), "unexpected file {name} in the output");
        let content = fs::read(&path).expect("part files are readable");
        assert!(content.is_empty() || content.ends_with(b"\n"), "{name} ends within a row");
        rows.extend(content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec));
    }
    rows.sort_unstable();
    rows
}

/// SHA-256 of rows as hexadecimal digits.
pub fn sha256(rows: &[Vec<u8>]) -> String {
    let mut hash = Sha256::new();
    rows.iter().for_each(|row| hash.update(row));
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}
