//! `engine status`: how a job is.

use clap::Args;

use super::{GlobalOptions, JobManagerOption, Outcome, Output, list, progress};

/// `engine status`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  engine status 1f0c\n  engine status --output json 1f0c6b7a0d5e4c0f9a3b2c1d0e9f8a7b"
)]
pub(crate) struct StatusOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Id of the job, or how it begins.
    job: String,
}

pub(crate) fn run(status: &StatusOptions, global: &GlobalOptions) -> Outcome {
    let client = list::client(&status.job_manager, global)?;
    let job = client.find_job(&status.job)?;
    let snapshot = client.snapshot(job)?;
    match global.output {
        Output::Json => super::print_json(&progress::summary_json(&snapshot)),
        Output::Text => {
            let mut text = progress::summary(&snapshot);
            text.push_str(&progress::restarts(&snapshot));
            if let Some(failure) = &snapshot.failure {
                text.push_str(&format!("\n  {}", failure.text()));
            }
            super::print(&text)
        }
    }
}
