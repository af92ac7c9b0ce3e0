//! `engine doctor`: checks what is needed to compile plugins, and with `--fix` makes it.

use std::process::Command;

use clap::Args;

use serde_json::json;

use super::{CliError, GlobalOptions, Outcome, Output, settings, wasm_target};

/// `engine doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Without --fix nothing is changed.\n\nExamples:\n  engine doctor\n  engine doctor --fix")]
pub(crate) struct DoctorOptions {
    /// Installs or builds what is missing.
    #[arg(long)]
    fix: bool,
}

pub(crate) fn run(doctor: &DoctorOptions, global: &GlobalOptions) -> Outcome {
    settings::load(global, &settings::ExplicitSettings::default())?;
    let cargo = version_of("cargo");
    let mode = if doctor.fix { wasm_target::Mode::Fix } else { wasm_target::Mode::Check };
    let (target, problem) = match wasm_target::find(mode) {
        Ok(variables) => (Some(variables), None),
        Err(CliError::Failed(error)) => (None, Some(error.to_string())),
        Err(error) => return Err(error),
    };
    if global.output == Output::Json {
        let environment: Option<serde_json::Map<_, _>> = target
            .as_ref()
            .map(|variables| variables.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect());
        super::print_json(&json!({ "cargo": cargo, "wasm-target": {
            "is-there": target.is_some(), "environment": environment, "problem": problem,
        } }))?;
    } else {
        match &cargo {
            Some(version) => super::print(&format!("ok       cargo: {version}"))?,
            None => super::print("missing  cargo: install Rust with rustup, see https://rustup.rs")?,
        }
        if target.is_some() {
            super::print("ok       wasm32-unknown-unknown: `engine build` can compile plugins")?;
        }
        for (name, value) in target.iter().flatten() {
            super::print(&format!("         {name}={value}"))?;
        }
        if let Some(problem) = problem {
            super::print(&format!("missing  wasm32-unknown-unknown: {problem}"))?;
        }
    }
    if cargo.is_some() && target.is_some() { Ok(()) } else { Err(CliError::Exit(1)) }
}

fn version_of(program: &str) -> Option<String> {
    let output = Command::new(program).arg("--version").output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
