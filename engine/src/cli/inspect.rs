//! `engine inspect`: what a plugin is made of and what it says of itself.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{GlobalOptions, Outcome, Output, logging, progress, settings};
use crate::{
    client::{
        ClientError,
        program::{Program, read_plugin},
    },
    wasm::{PluginForm, PluginListing, PluginRuntime, PluginRuntimeConfig},
};

/// `engine inspect`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  engine inspect word_count.wasm\n  engine inspect --output json word_count.wasm")]
pub(crate) struct InspectOptions {
    /// The plugin, a .wasm file.
    plugin: PathBuf,
}

pub(crate) fn run(inspect: &InspectOptions, global: &GlobalOptions) -> Outcome {
    let configuration = settings::load(global, &settings::ExplicitSettings::default())?;
    logging::start(global, "warn", None)?;
    let content = read_plugin(&inspect.plugin, &configuration)?;
    let name = inspect.plugin.file_name().unwrap_or(inspect.plugin.as_os_str()).to_string_lossy();
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
    let program = Program::load(&plugins, content, &name)?;
    let description = program.describe(&configuration)?;
    let admitted = plugins.admit(&program.content, &name).map_err(ClientError::from)?;
    let listing = admitted.listing();
    match global.output {
        Output::Text => super::print(&text(&program.name, listing, &description)),
        Output::Json => super::print_json(&value(&program.name, listing, &description)),
    }
}

fn form(listing: &PluginListing) -> &'static str {
    match listing.form {
        PluginForm::CoreModule => "core module",
        PluginForm::Component => "component",
    }
}

fn text(name: &str, listing: &PluginListing, description: &str) -> String {
    let list = |entries: &[String]| if entries.is_empty() { "none".to_owned() } else { entries.join("\n            ") };
    let indented: Vec<String> = description.trim().lines().map(|line| format!("  {line}")).collect();
    format!(
        "{name}\n{}\n\n\
         sha256      {}\n\
         form        {}, {}\n\
         contract    {}\n\
         sdk         {}\n\
         functions   {}, {} of code, {} of data\n\
         memory      {} in a fresh instance\n\
         imports     {}\n\
         exports     {}\n\
         made with   {}",
        indented.join("\n"),
        listing.digest,
        form(listing),
        progress::bytes_text(listing.bytes as u64),
        listing.contract_version,
        listing.sdk_version.as_deref().unwrap_or("unknown"),
        listing.functions,
        progress::bytes_text(listing.code_bytes),
        progress::bytes_text(listing.data_bytes),
        progress::bytes_text(listing.memory_bytes),
        list(&listing.imports),
        list(&listing.exports),
        list(&listing.producers),
    )
}

fn value(name: &str, listing: &PluginListing, description: &str) -> serde_json::Value {
    json!({
        "name": name,
        "description": description,
        "sha256": listing.digest,
        "form": form(listing),
        "bytes": listing.bytes,
        "component-bytes": listing.component_bytes,
        "contract-version": listing.contract_version,
        "sdk-version": listing.sdk_version,
        "functions": listing.functions,
        "code-bytes": listing.code_bytes,
        "data-bytes": listing.data_bytes,
        "memory-bytes": listing.memory_bytes,
        "imports": listing.imports,
        "exports": listing.exports,
        "producers": listing.producers,
    })
}
