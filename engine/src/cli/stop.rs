//! `engine stop`: stops a job with a savepoint, from which it can go on.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::{GlobalOptions, JobManagerOption, Outcome, list, savepoint};

/// `engine stop`.
#[derive(Debug, Args)]
#[command(after_help = "Prints where the savepoint is; `engine submit --from-savepoint PATH` goes on from it.\n\n\
    Examples:\n  engine stop 1f0c --savepoint /data/savepoints\n  engine stop 1f0c --drain")]
pub(crate) struct StopOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Directory below which the savepoint is written, as the JobManager sees it; without it:
    /// execution.checkpointing.savepoint-dir.
    #[arg(short = 'p', long = "savepoint", value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Ends event time before: all windows fire, and nothing can go on from the savepoint as if it had not ended.
    #[arg(short, long)]
    drain: bool,
    /// Id of the job, or how it begins.
    job: String,
}

pub(crate) fn run(stop: &StopOptions, global: &GlobalOptions) -> Outcome {
    let rest = list::client(&stop.job_manager, global)?;
    let job = rest.find_job(&stop.job)?;
    let directory = stop.directory.as_deref().map(savepoint::as_text).transpose()?;
    let body = json!({ "targetDirectory": directory, "drain": stop.drain });
    let taken = rest.operate(&format!("/jobs/{job}/stop"), &body, |id| format!("/jobs/{job}/savepoints/{id}"))?;
    savepoint::print_location(&taken, global.output)
}
