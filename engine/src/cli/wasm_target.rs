//! Finds a way to compile for `wasm32-unknown-unknown`, by `scripts/wasm-target.sh`,
//! which is part of this program: make, `engine build` and `engine doctor` agree.

use std::process::{Command, Stdio};

use super::CliError;

/// Finds the target, or makes it possible; see its first lines.
const SCRIPT: &str = include_str!("../../../scripts/wasm-target.sh");

/// Whether something may be installed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Mode {
    /// Only looks.
    Check,
    /// Installs or builds what is missing.
    Fix,
}

/// Environment variables that cargo needs to compile for the target. The script
/// tells on standard error what it finds and does.
pub(crate) fn find(mode: Mode) -> Result<Vec<(String, String)>, CliError> {
    let mut command = Command::new("bash");
    command.args(["-c", SCRIPT, "wasm-target.sh"]).stdin(Stdio::null()).stderr(Stdio::inherit());
    if mode == Mode::Check {
        command.arg("--check");
    }
    let output = command.output().map_err(|error| CliError::failed(anyhow::anyhow!("could not run bash: {error}")))?;
    if !output.status.success() {
        return Err(CliError::failed(anyhow::anyhow!(
            "plugins cannot be compiled on this machine yet; the lines above say what would help"
        )));
    }
    String::from_utf8_lossy(&output.stdout).lines().map(variable).collect()
}

/// Reads `export NAME='value'`.
fn variable(line: &str) -> Result<(String, String), CliError> {
    line.strip_prefix("export ")
        .and_then(|assignment| assignment.split_once("='"))
        .and_then(|(name, value)| Some((name.to_owned(), value.strip_suffix('\'')?.replace("'\\''", "'"))))
        .ok_or_else(|| CliError::failed(anyhow::anyhow!("the search for the wasm target printed \"{line}\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exports_of_the_script_are_read() {
        let read = |line| variable(line).expect("an export");
        assert_eq!(read("export RUSTC='/usr/bin/rustc'"), ("RUSTC".to_owned(), "/usr/bin/rustc".to_owned()));
        assert_eq!(read("export A='it'\\''s'"), ("A".to_owned(), "it's".to_owned()));
        assert!(variable("warning: nothing").is_err());
    }
}
