//! Watches and cancels one job, in this process or over REST.

use std::time::Duration;

use super::{
    ClientError,
    job_snapshot::JobSnapshot,
    rest_client::{RestClient, RestClientError},
};
use crate::{
    base::{clock::Clock, ids::JobId},
    protocol::{
        dispatcher::{DispatcherRequest, DispatcherResponse},
        job_details::JobDetails,
        rpc::DispatcherGateway,
    },
};

/// First pause between two questions over REST; doubled up to [`POLL_PAUSE_MAX`].
const POLL_PAUSE_MIN: Duration = Duration::from_millis(50);
/// Longest pause between two questions over REST.
const POLL_PAUSE_MAX: Duration = Duration::from_secs(1);

/// How a job's JobManager is reached.
#[derive(Clone, Debug)]
pub enum JobClient {
    /// It runs in this process.
    Embedded {
        /// Its Dispatcher.
        gateway: DispatcherGateway,
        /// Processing time.
        clock: Clock,
    },
    /// It is reached over HTTP.
    Remote {
        /// Its REST endpoint.
        rest: RestClient,
        /// How often a question without answer is repeated while waiting.
        retries_max: u32,
        /// Pause before that.
        retry_delay: Duration,
    },
}

fn details(response: DispatcherResponse) -> Result<JobDetails, ClientError> {
    match response {
        DispatcherResponse::Details(details) => Ok(details),
        DispatcherResponse::Acknowledged
        | DispatcherResponse::Jobs(_)
        | DispatcherResponse::TaskExecutors(_)
        | DispatcherResponse::Refused(_) => Err(ClientError::UnexpectedAnswer),
    }
}

impl JobClient {
    /// How the job is now.
    ///
    /// # Errors
    /// Returns an error if the job is not known or nobody answers.
    pub async fn snapshot(&self, job: JobId) -> Result<JobSnapshot, ClientError> {
        match self {
            Self::Embedded { gateway, clock } => {
                let response = gateway.request(DispatcherRequest::JobDetails(job)).await?;
                Ok(JobSnapshot::of(&details(response)?, clock.now().0))
            }
            Self::Remote { rest, .. } => Ok(blocking(rest, move |rest| rest.snapshot(job)).await?),
        }
    }

    /// Waits until the job has ended and tells how.
    ///
    /// # Errors
    /// Returns an error if the job is not known, or nobody answers for too long.
    pub async fn await_termination(&self, job: JobId) -> Result<JobSnapshot, ClientError> {
        match self {
            Self::Embedded { gateway, clock } => {
                let response = gateway.request(DispatcherRequest::AwaitTermination(job)).await?;
                Ok(JobSnapshot::of(&details(response)?, clock.now().0))
            }
            Self::Remote { rest, retries_max, retry_delay } => {
                let mut pause = POLL_PAUSE_MIN;
                let mut failures = 0;
                loop {
                    match blocking(rest, move |rest| rest.snapshot(job)).await {
                        Ok(snapshot) if snapshot.status.is_globally_terminal() => return Ok(snapshot),
                        Ok(_) => failures = 0,
                        Err(error) if error.is_transient() && failures < *retries_max => {
                            failures += 1;
                            pause = *retry_delay;
                            tracing::warn!("{error}; asking again ({failures} of {retries_max})");
                        }
                        Err(error) => return Err(error.into()),
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(POLL_PAUSE_MAX);
                }
            }
        }
    }

    /// Asks for the job to be cancelled.
    ///
    /// # Errors
    /// Returns an error if the job is not known or has ended.
    pub async fn cancel(&self, job: JobId) -> Result<(), ClientError> {
        match self {
            Self::Embedded { gateway, .. } => {
                gateway.request(DispatcherRequest::CancelJob(job)).await?;
                Ok(())
            }
            Self::Remote { rest, .. } => Ok(blocking(rest, move |rest| rest.cancel(job)).await?),
        }
    }
}

async fn blocking<T: Send + 'static>(
    rest: &RestClient,
    call: impl FnOnce(&RestClient) -> Result<T, RestClientError> + Send + 'static,
) -> Result<T, RestClientError> {
    let rest = rest.clone();
    match tokio::task::spawn_blocking(move || call(&rest)).await {
        Ok(outcome) => outcome,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
