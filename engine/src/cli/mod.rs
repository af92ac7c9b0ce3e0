//! The command line: parses arguments, builds the configuration, runs one verb and
//! prints the error chain. One file per verb.
//!
//! What a verb is asked for goes to standard output, everything else to standard
//! error. Exit codes: 0 all is well; 1 the job, or what was asked for, failed; 2 what
//! was written on the command line, in the configuration or in the program is wrong
//! and nothing was run.

mod settings;
mod logging;
mod progress;
mod embedded;
mod submit;
mod plan;
mod inspect;
mod new;
mod build;
mod check;
mod upgrade;
mod takeover;
mod doctor;
mod wasm_target;
mod cluster;
mod list;
mod status;
mod cancel;
mod checkpoints;
mod savepoint;
mod state_export;
mod stop;
mod stored_job;
mod logs;
#[cfg(test)]
mod tests;

use std::{ffi::OsString, io::Write, process::ExitCode};

use clap::{
    Args, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{base::failpoint, client::ClientError};

/// Why a verb did not do what it was asked for.
#[derive(Debug)]
pub(crate) enum CliError {
    /// The user's input is wrong; nothing was run.
    Usage(anyhow::Error),
    /// It was tried and failed.
    Failed(anyhow::Error),
    /// Nothing is left to be said, only the code.
    Exit(u8),
}

impl CliError {
    fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::Usage(error.into())
    }

    fn failed(error: impl Into<anyhow::Error>) -> Self {
        Self::Failed(error.into())
    }
}

impl From<ClientError> for CliError {
    fn from(error: ClientError) -> Self {
        if error.is_usage() { Self::Usage(error.into()) } else { Self::Failed(error.into()) }
    }
}

impl From<crate::client::rest_client::RestClientError> for CliError {
    fn from(error: crate::client::rest_client::RestClientError) -> Self {
        ClientError::from(error).into()
    }
}

impl From<std::io::Error> for CliError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.into())
    }
}

type Outcome = Result<(), CliError>;

/// Runs stream jobs whose code is WebAssembly.
#[derive(Debug, Parser)]
#[command(
    name = "engine",
    version,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Examples:\n  \
        engine new words && cd words && engine build\n  \
        engine submit words.wasm --input access.log --output counts\n  \
        engine cluster --allow-read /data --allow-write /tmp/out\n\n\
        `engine VERB --help` has examples for each verb. Configuration: --config FILE, else $ENGINE_CONFIG, \
        else engine.toml here, else engine/engine.toml in $XDG_CONFIG_HOME or ~/.config. \
        -D wins over other options, those over what the program sets, that over the file."
)]
struct Cli {
    #[command(flatten)]
    global: GlobalOptions,
    #[command(subcommand)]
    verb: Verb,
}

/// Options of all verbs.
#[derive(Clone, Debug, Args)]
pub(crate) struct GlobalOptions {
    /// Configuration file (TOML).
    #[arg(long, global = true, value_name = "FILE", env = "ENGINE_CONFIG", help_heading = "Common options")]
    config: Option<std::path::PathBuf>,
    /// Sets a configuration key; may be repeated.
    #[arg(short = 'D', global = true, value_name = "KEY=VALUE", help_heading = "Common options")]
    dynamic: Vec<String>,
    /// Form of what is printed on standard output.
    #[arg(long, global = true, value_name = "FORM", default_value = "text", help_heading = "Common options")]
    output: Output,
    /// Least level of the log on standard error: error, warn, info, debug, trace, or levels by module.
    #[arg(long, global = true, value_name = "LEVEL", env = "ENGINE_LOG", help_heading = "Common options")]
    log_level: Option<String>,
    /// Lets ENGINE_FAILPOINTS make this process fail at named places, for tests of recovery.
    #[arg(long, global = true, hide = true)]
    failpoints: bool,
}

/// Form of what is printed.
#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// For scripts.
    Json,
}

/// Where the JobManager is.
#[derive(Clone, Debug, Args)]
pub(crate) struct JobManagerOption {
    /// Address of a JobManager's REST endpoint, such as http://127.0.0.1:8081 [env: ENGINE_JOBMANAGER]
    #[arg(short = 'm', long, value_name = "URL")]
    jobmanager: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs a plugin as a job.
    Submit(submit::SubmitOptions),
    /// Shows what would be run: stream graph, chains and job graph.
    Plan(plan::PlanOptions),
    /// Shows what a plugin is made of and what it says of itself.
    Inspect(inspect::InspectOptions),
    /// Makes a crate for a plugin.
    New(new::NewOptions),
    /// Compiles a crate to a plugin.
    Build(build::BuildOptions),
    /// Checks a plugin, and whether it can go on from the state of an older version.
    Check(check::CheckOptions),
    /// Puts another version of a plugin in the place of a running job, with its state.
    Upgrade(upgrade::UpgradeOptions),
    /// Checks what is needed to compile plugins, and says what would help.
    Doctor(doctor::DoctorOptions),
    /// Starts a JobManager and TaskExecutors in this process.
    Cluster(cluster::ClusterOptions),
    /// Lists the jobs of a JobManager.
    List(list::ListOptions),
    /// Shows how a job is.
    Status(status::StatusOptions),
    /// Cancels a job.
    Cancel(cancel::CancelOptions),
    /// Takes a savepoint of a job, or shows or deletes one.
    Savepoint(savepoint::SavepointOptions),
    /// Stops a job with a savepoint.
    Stop(stop::StopOptions),
    /// Shows the checkpoints of a job.
    Checkpoints(checkpoints::CheckpointsOptions),
    /// Shows the log of a JobManager, or what concerns a job.
    Logs(logs::LogsOptions),
}

const ARGUMENTS_BEHIND: &str = "arguments of the program stand behind the plugin, options of the engine before it: \
    engine VERB [OPTIONS] PLUGIN [PROGRAM ARGUMENTS]";

/// Parses a command line; where an option may have been meant for the program, the error says where those stand.
fn parse_line(arguments: impl IntoIterator<Item = OsString>) -> Result<Cli, clap::Error> {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let mut parsed = Cli::try_parse_from(&arguments);
    if let Err(error) = &mut parsed {
        let runs_program = arguments
            .iter()
            .skip(1)
            .any(|argument| argument == "submit" || argument == "plan" || argument == "check" || argument == "upgrade");
        let is_mistaken = match error.kind() {
            ErrorKind::InvalidValue => matches!(
                error.get(ContextKind::InvalidArg),
                Some(ContextValue::String(option)) if option.starts_with("--output")
            ),
            ErrorKind::UnknownArgument => error.get(ContextKind::SuggestedArg).is_none(),
            _ => false,
        };
        if runs_program && is_mistaken {
            let tip = ContextValue::StyledStrs(vec![ARGUMENTS_BEHIND.into()]);
            error.insert(ContextKind::Suggested, tip);
        }
    }
    parsed
}

/// Runs the command line of this process.
pub fn run() -> ExitCode {
    ExitCode::from(run_with(std::env::args_os()))
}

/// Runs a command line, the program's name first, and returns the exit code.
pub fn run_with(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match parse_line(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let code = u8::try_from(error.exit_code()).unwrap_or(2);
            // A closed pipe is no reason to say more.
            return if error.print().is_ok() { code } else { 1 };
        }
    };
    let global = &cli.global;
    if global.failpoints
        && let Err(problem) = failpoint::turn_on(&std::env::var(failpoint::VARIABLE).unwrap_or_default())
    {
        return report(&anyhow::anyhow!(problem), 2, Output::Text);
    }
    let outcome = match cli.verb {
        Verb::Submit(options) => submit::run(options, global),
        Verb::Plan(options) => plan::run(options, global),
        Verb::Inspect(options) => inspect::run(&options, global),
        Verb::New(options) => new::run(&options, global),
        Verb::Build(options) => build::run(&options, global),
        Verb::Check(options) => check::run(options, global),
        Verb::Upgrade(options) => upgrade::run(&options, global),
        Verb::Doctor(options) => doctor::run(&options, global),
        Verb::Cluster(options) => cluster::run(options, global),
        Verb::List(options) => list::run(&options, global),
        Verb::Status(options) => status::run(&options, global),
        Verb::Cancel(options) => cancel::run(&options, global),
        Verb::Savepoint(options) => savepoint::run(&options, global),
        Verb::Stop(options) => stop::run(&options, global),
        Verb::Checkpoints(options) => checkpoints::run(&options, global),
        Verb::Logs(options) => logs::run(&options, global),
    };
    match outcome {
        Ok(()) => 0,
        Err(CliError::Usage(error)) => report(&error, 2, global.output),
        Err(CliError::Failed(error)) => report(&error, 1, global.output),
        Err(CliError::Exit(code)) => code,
    }
}

/// Prints an error with its causes, once, in a line. Who asked for JSON gets what was refused
/// as an object, too: nothing else was printed then.
fn report(error: &anyhow::Error, exit_code: u8, output: Output) -> u8 {
    let code = error.downcast_ref().and_then(ClientError::code);
    let is_refused = exit_code == 2 || code.is_some();
    if output == Output::Json && is_refused {
        // The code says already that it failed.
        if print_json(&serde_json::json!({ "error": format!("{error:#}"), "code": code })).is_err() {}
    }
    let closed_pipe =
        error.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == std::io::ErrorKind::BrokenPipe);
    if !closed_pipe {
        say(&format!("error: {error:#}"));
    }
    exit_code
}

/// Tells the user something beside the result.
fn say(text: &str) {
    // Without standard error there is nobody to tell.
    if writeln!(std::io::stderr(), "{text}").is_err() {}
}

/// Prints a result.
fn print(text: &str) -> Outcome {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{text}")?;
    stdout.flush()?;
    Ok(())
}

/// Prints a result as JSON.
fn print_json(value: &impl serde::Serialize) -> Outcome {
    print(&serde_json::to_string_pretty(value).map_err(CliError::failed)?)
}
