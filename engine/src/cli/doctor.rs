//! `engine doctor`: checks what is needed to compile plugins, and with `--fix` makes it.

use std::process::Command;

use clap::Args;

use super::{CliError, Outcome, wasm_target};

/// `engine doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Without --fix nothing is changed.\n\nExamples:\n  engine doctor\n  engine doctor --fix")]
pub(crate) struct DoctorOptions {
    /// Installs or builds what is missing.
    #[arg(long)]
    fix: bool,
}

pub(crate) fn run(doctor: &DoctorOptions) -> Outcome {
    let cargo = version_of("cargo");
    match &cargo {
        Some(version) => super::print(&format!("ok       cargo: {version}"))?,
        None => super::print("missing  cargo: install Rust with rustup, see https://rustup.rs")?,
    }
    let mode = if doctor.fix { wasm_target::Mode::Fix } else { wasm_target::Mode::Check };
    match wasm_target::find(mode) {
        Ok(variables) => {
            super::print("ok       wasm32-unknown-unknown: `engine build` can compile plugins")?;
            for (name, value) in variables {
                super::print(&format!("         {name}={value}"))?;
            }
        }
        Err(CliError::Failed(error)) => {
            super::print(&format!("missing  wasm32-unknown-unknown: {error}"))?;
            return Err(CliError::Exit(1));
        }
        Err(error) => return Err(error),
    }
    if cargo.is_some() { Ok(()) } else { Err(CliError::Exit(1)) }
}

fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
