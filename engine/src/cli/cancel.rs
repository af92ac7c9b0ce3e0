//! `engine cancel`: cancels a job and waits for its end.

use clap::Args;

use serde_json::json;

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, list, settings};
use crate::{
    base::{config::options, status::JobStatus},
    client::job_client::JobClient,
};

/// `engine cancel`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  engine cancel 1f0c\n  engine cancel --no-wait 1f0c6b7a0d5e4c0f9a3b2c1d0e9f8a7b")]
pub(crate) struct CancelOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Returns when cancelling has begun.
    #[arg(long)]
    no_wait: bool,
    /// Id of the job, or how it begins.
    job: String,
}

pub(crate) fn run(cancel: &CancelOptions, global: &GlobalOptions) -> Outcome {
    let rest = list::client(&cancel.job_manager, global)?;
    let job = rest.find_job(&cancel.job)?;
    rest.cancel(job)?;
    if cancel.no_wait {
        return match global.output {
            Output::Json => super::print_json(&json!({ "job-id": job, "status": JobStatus::Canceling.to_string() })),
            Output::Text => super::print(&format!("job {job} is being cancelled")),
        };
    }
    let configuration = settings::load(global, &settings::ExplicitSettings::default())?;
    let client = JobClient::Remote {
        rest,
        retries_max: configuration.get(&options::REST_RETRY_ATTEMPTS),
        retry_delay: configuration.get(&options::REST_RETRY_DELAY),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let snapshot = runtime.block_on(client.await_termination(job))?;
    match snapshot.status {
        JobStatus::Canceled if global.output == Output::Json => {
            super::print_json(&json!({ "job-id": job, "status": snapshot.status.to_string() }))
        }
        JobStatus::Canceled => super::print(&format!("job {job} is {}", snapshot.status)),
        status => Err(CliError::failed(anyhow::anyhow!("job {job} ended as {status} before it could be cancelled"))),
    }
}
