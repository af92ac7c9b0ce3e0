//! Submits, watches and cancels one job, in this process or over REST.

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
        | DispatcherResponse::Snapshot(_)
        | DispatcherResponse::JobGraph(_)
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

/// Submits again, after a pause, for as long as a JobManager that answers has no place or no leader. `is_id_drawn`:
/// no other job has this id.
///
/// # Errors
/// Returns the last refusal, and at once if nobody answers or the job is refused for good.
pub async fn submit_with_retries(
    rest: &RestClient,
    retries_max: u32,
    retry_delay: Duration,
    is_id_drawn: bool,
    submit: impl Fn(&RestClient) -> Result<(), RestClientError> + Clone + Send + 'static,
) -> Result<(), RestClientError> {
    let mut is_doubtful = false;
    let mut refusals = 0;
    loop {
        let Err(error) = blocking(rest, submit.clone()).await else { return Ok(()) };
        match error.status() {
            // The answer 503 can come late for a job that was taken.
            Some(409) if is_doubtful && is_id_drawn => return Ok(()),
            Some(status @ (429 | 503)) if refusals < retries_max => {
                is_doubtful |= status == 503;
                refusals += 1;
                tracing::warn!("{error}; submitting again ({refusals} of {retries_max})");
            }
            _ => return Err(error),
        }
        tokio::time::sleep(retry_delay).await;
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

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::base::config::Configuration;

    /// Submits to a JobManager that answers with these statuses; returns the last one and how many were not asked for.
    async fn submit(answers: &[u16], retries_max: u32, is_id_drawn: bool) -> (Option<u16>, usize) {
        let rest = RestClient::new(&Configuration::default()).expect("an address");
        let left = Arc::new(Mutex::new(answers.iter().rev().copied().collect::<Vec<_>>()));
        let script = Arc::clone(&left);
        let outcome = submit_with_retries(&rest, retries_max, Duration::ZERO, is_id_drawn, move |_| {
            match script.lock().expect("no panic").pop().expect("an answer") {
                202 => Ok(()),
                status => Err(RestClientError::Refused { status, messages: Vec::new(), code: None }),
            }
        });
        let status = outcome.await.err().and_then(|error| error.status());
        let left = left.lock().expect("no panic").len();
        (status, left)
    }

    #[tokio::test]
    async fn a_submission_is_repeated_while_there_is_no_place_or_no_leader() {
        assert_eq!(submit(&[429, 503, 202], 2, true).await, (None, 0));
        assert_eq!(submit(&[429, 503, 429, 202], 2, true).await, (Some(429), 1));
        assert_eq!(submit(&[429, 202], 0, true).await, (Some(429), 1));
        assert_eq!(submit(&[400, 202], 9, true).await, (Some(400), 1));
        // Only after 503 may the job have been taken without the client knowing.
        assert_eq!(submit(&[503, 429, 409, 202], 9, true).await, (None, 1));
        assert_eq!(submit(&[429, 409, 202], 9, true).await, (Some(409), 1));
        // An id that the user chose may be that of another job.
        assert_eq!(submit(&[503, 429, 409, 202], 9, false).await, (Some(409), 1));
    }
}
