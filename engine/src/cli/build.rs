//! `engine build`: compiles a crate to a plugin and lays it beside the crate.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use clap::Args;
use serde_json::Value;

use super::{CliError, GlobalOptions, Outcome, Output, progress, settings, wasm_target};
use crate::{
    base::config::Configuration,
    client::{ClientError, program::read_plugin},
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

const TARGET: &str = "wasm32-unknown-unknown";
/// Features that the engine's runtime has and that make text and JSON faster; `RUSTFLAGS` overrides them.
const DEFAULT_RUSTFLAGS: &str = "-Ctarget-feature=+simd128";

/// `engine build`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  engine build\n  engine build plugins/words")]
pub(crate) struct BuildOptions {
    /// Directory of the crate.
    #[arg(default_value = ".")]
    dir: PathBuf,
}

pub(crate) fn run(build: &BuildOptions, global: &GlobalOptions) -> Outcome {
    let configuration = settings::load(global, &settings::ExplicitSettings::default())?;
    let manifest = build.dir.join("Cargo.toml");
    if !manifest.is_file() {
        return Err(CliError::usage(anyhow::anyhow!(
            "there is no crate in {}: it has no Cargo.toml; `engine new NAME` makes one",
            build.dir.display()
        )));
    }
    let manifest = manifest.canonicalize()?;
    let plugin = plugin_target(&metadata(&manifest)?, &manifest).map_err(CliError::usage)?;
    let variables = wasm_target::find(wasm_target::Mode::Check)?;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["build", "--release", "--target", TARGET, "--manifest-path"])
        .arg(&manifest)
        .args(["--package", &plugin.package])
        .envs(variables);
    if std::env::var_os("RUSTFLAGS").is_none() {
        cargo.env("RUSTFLAGS", DEFAULT_RUSTFLAGS);
    }
    let status = cargo.status().map_err(|error| CliError::failed(anyhow::anyhow!("could not run cargo: {error}")))?;
    if !status.success() {
        return Err(CliError::failed(anyhow::anyhow!("the crate did not compile; cargo's messages say why")));
    }
    let file_name = format!("{}.wasm", plugin.library);
    let built = plugin.target_directory.join(TARGET).join("release").join(&file_name);
    let laid = build.dir.join(&file_name);
    std::fs::copy(&built, &laid).map_err(|error| {
        CliError::failed(anyhow::anyhow!("could not copy {} to {}: {error}", built.display(), laid.display()))
    })?;
    admit(&laid, &file_name, &configuration)?;
    let size = std::fs::metadata(&laid)?.len();
    match global.output {
        Output::Json => super::print_json(&serde_json::json!({ "plugin": laid, "bytes": size })),
        Output::Text => super::print(&format!("{} ({})", laid.display(), progress::bytes_text(size))),
    }
}

/// Tells at once if what was built is no plugin.
fn admit(path: &Path, name: &str, configuration: &Configuration) -> Result<(), CliError> {
    let content = read_plugin(path, configuration)?;
    let runtime =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(configuration)).map_err(ClientError::from)?;
    runtime.admit(&content, name).map_err(ClientError::from)?;
    Ok(())
}

/// What cargo builds.
#[derive(Debug, Eq, PartialEq)]
struct PluginTarget {
    package: String,
    /// Name of the library, as the file is named.
    library: String,
    target_directory: PathBuf,
}

fn metadata(manifest: &Path) -> Result<Value, CliError> {
    let output = Command::new("cargo")
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(manifest)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| CliError::failed(anyhow::anyhow!("could not run cargo: {error}")))?;
    if !output.status.success() {
        return Err(CliError::usage(anyhow::anyhow!("cargo cannot read {}", manifest.display())));
    }
    serde_json::from_slice(&output.stdout).map_err(CliError::failed)
}

/// The library of the manifest's own package, which must be one that makes a file of its own.
fn plugin_target(metadata: &Value, manifest: &Path) -> anyhow::Result<PluginTarget> {
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let package = packages
        .iter()
        .find(|package| package["manifest_path"].as_str().map(Path::new) == Some(manifest))
        .ok_or_else(|| anyhow::anyhow!("{} describes no package", manifest.display()))?;
    let package_name = package["name"].as_str().unwrap_or_default();
    let targets = package["targets"].as_array().map_or(&[][..], Vec::as_slice);
    let makes_file = |target: &&Value| {
        target["crate_types"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "cdylib"))
    };
    let library = targets.iter().find(makes_file).and_then(|target| target["name"].as_str()).ok_or_else(|| {
        anyhow::anyhow!(
            "package \"{package_name}\" makes no plugin: add [lib] with crate-type = [\"cdylib\"] to {}",
            manifest.display()
        )
    })?;
    Ok(PluginTarget {
        package: package_name.to_owned(),
        library: library.replace('-', "_"),
        target_directory: PathBuf::from(metadata["target_directory"].as_str().unwrap_or("target")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_plugin_of_the_package_is_found() {
        let package = |crate_type: &str| {
            json!({
                "target_directory": "/w/target",
                "packages": [
                    { "name": "other", "manifest_path": "/w/other/Cargo.toml", "targets": [] },
                    { "name": "my-words", "manifest_path": "/w/words/Cargo.toml",
                      "targets": [{ "name": "my-words", "crate_types": [crate_type] }] },
                ],
            })
        };
        let manifest = Path::new("/w/words/Cargo.toml");
        let found = plugin_target(&package("cdylib"), manifest).expect("a plugin");
        let expected = PluginTarget {
            package: "my-words".to_owned(),
            library: "my_words".to_owned(),
            target_directory: "/w/target".into(),
        };
        assert_eq!(found, expected);
        let error = plugin_target(&package("lib"), manifest).expect_err("no plugin");
        assert!(error.to_string().contains("crate-type = [\"cdylib\"]"), "{error}");
    }
}
