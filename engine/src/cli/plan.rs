//! `engine plan`: what would be run, and why each edge is chained or not.

use clap::Args;

use super::{CliError, GlobalOptions, Outcome, Output, logging, settings, submit};
use crate::{
    base::ids::JobId,
    client::{ClientError, grants::Site},
    graph::explain::explain,
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

/// `engine plan`.
#[derive(Debug, Args)]
#[command(
    override_usage = "engine plan [OPTIONS] PLUGIN [PROGRAM ARGUMENTS]...",
    after_help = "Examples:\n  \
        engine plan word_count.wasm --input access.log --output counts\n  \
        engine plan -p 4 --output json word_count.wasm --input access.log --output counts\n  \
        engine plan --json-plan word_count.wasm --input access.log"
)]
pub(crate) struct PlanOptions {
    #[command(flatten)]
    program: submit::ProgramOptions,
    /// Prints only the job graph, in the form of Flink's JSON plan.
    #[arg(long)]
    json_plan: bool,
    /// The plugin, a .wasm file, and the arguments of its program.
    #[arg(trailing_var_arg = true, required = true, value_name = "PLUGIN")]
    plugin_and_args: Vec<String>,
}

pub(crate) fn run(plan: PlanOptions, global: &GlobalOptions) -> Outcome {
    let configuration = settings::load(global, &plan.program.settings())?;
    logging::start(global, "warn", None)?;
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).map_err(ClientError::from)?;
    let prepared = submit::prepare(
        &plan.plugin_and_args,
        &plan.program,
        &configuration,
        &plugins,
        Site::Here,
        JobId::random(),
        &[],
    )?;
    let planned = prepared.planned;
    if plan.json_plan {
        return super::print(&planned.job_graph.json_plan);
    }
    let explanation = explain(&planned.stream_graph, &planned.job_graph).map_err(CliError::usage)?;
    match global.output {
        Output::Text => super::print(explanation.to_string().trim_end()),
        Output::Json => super::print_json(&explanation),
    }
}
