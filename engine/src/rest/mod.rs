//! The HTTP endpoint: reads requests, asks the Dispatcher, writes Flink's JSON.
//!
//! Clients are Flink's own command line, this engine's, dashboards and scrapers.
//! [`routes::ROUTES`] is the one table of what is served, from which the router
//! and `/openapi.json` are made; every path is also there under `/v1`.
//!
//! # Invariants
//! - Nothing a request says is trusted: sizes, times and the number of
//!   connections have named limits, names never become paths, and a job opens
//!   only what the owner of this server configured.
//! - A refused request leaves nothing behind.

pub mod error;
pub mod log_buffer;
pub mod routes;
pub mod server;
mod request;
mod checkpoints;
mod cluster;
mod jars;
mod job_check;
mod job_submit;
mod jobs;
mod metrics;
mod program;
mod prometheus;
mod snapshots;
mod task_managers;
mod vertices;
#[cfg(test)]
pub(crate) mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio::sync::Semaphore;

use self::{error::RestError, jars::JarStore, log_buffer::LogBuffer};
use crate::{
    base::{
        clock::Clock,
        config::{Configuration, options},
        ids::{BlobDigest, JobId},
    },
    checkpoint::check_start,
    graph::job_graph::{Artifact, JobGraph},
    protocol::{
        dispatcher::{DispatcherRequest, DispatcherResponse},
        job_details::{JobDetails, JobOverview, TaskExecutorDetails},
        rpc::DispatcherGateway,
    },
};

/// Longest wait for the Dispatcher's answer; after it a client reads 503.
const DISPATCHER_TIME_MAX: Duration = Duration::from_secs(30);
/// Uploads that are read, checked or planned at the same time; more wait.
const UPLOADS_MAX: usize = 4;
/// Longest wait of an upload for its turn; after it a client reads 429. How many
/// wait is limited by the number of connections.
const UPLOAD_WAIT_MAX: Duration = Duration::from_secs(10);

/// Where plugins and artifacts of submitted jobs are put. Errors are whole messages, one line.
pub trait Blobs: Send + Sync {
    /// Stores bytes under their digest and keeps them until [`Blobs::discard`] was called for them.
    ///
    /// # Errors
    /// Returns an error if they cannot be stored; nothing is left then.
    fn put(&self, bytes: &[u8]) -> Result<BlobDigest, String>;

    /// The bytes under a digest.
    ///
    /// # Errors
    /// Returns an error if they are not there or are damaged.
    fn get(&self, digest: BlobDigest) -> Result<Vec<u8>, String>;

    /// Takes back one [`Blobs::put`]: the bytes go unless a job or another upload refers to them.
    ///
    /// # Errors
    /// Returns an error if they cannot be removed.
    fn discard(&self, digest: BlobDigest) -> Result<(), String>;
}

/// A program to be planned.
#[derive(Clone, Debug)]
pub struct PlanRequest {
    /// The plugin's content.
    pub plugin: Bytes,
    /// File name of the plugin, for messages.
    pub plugin_name: String,
    /// Arguments of `plan`.
    pub args: Vec<String>,
    /// Settings that the request made.
    pub configuration: Configuration,
    /// Id of the job.
    pub job: JobId,
    /// Files for the subtasks.
    pub artifacts: Vec<Artifact>,
}

/// Checks and plans plugins. All of it takes CPU time, so that it is called from
/// threads that may block.
pub trait Programs: Send + Sync {
    /// Admits a plugin without running it.
    ///
    /// # Errors
    /// Says why the plugin is refused.
    fn admit(&self, plugin: &[u8], name: &str) -> Result<(), ProgramError>;

    /// Admits a plugin and returns what it says of itself.
    ///
    /// # Errors
    /// Says why the plugin is refused, or how its description failed.
    fn describe(&self, plugin: &[u8], name: &str) -> Result<String, ProgramError>;

    /// Runs `plan` in the sandbox and makes the JobGraph.
    ///
    /// # Errors
    /// Says why the plugin is refused, how `plan` failed or what is wrong with its graph.
    fn plan(&self, request: PlanRequest) -> Result<JobGraph, ProgramError>;
}

/// A plugin is refused, or its program failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ProgramError {
    /// Stable, for scripts; none for what has no name.
    pub code: Option<String>,
    /// The whole message, one line.
    pub message: String,
}

/// What the endpoint needs of the cluster.
#[derive(Clone)]
pub struct RestServices {
    /// Answers all questions about jobs.
    pub gateway: DispatcherGateway,
    /// Takes plugins and artifacts.
    pub blobs: Arc<dyn Blobs>,
    /// Plans plugins that are run by `POST /jars/:jarid/run`.
    pub programs: Arc<dyn Programs>,
    /// Settings of the cluster, its grants among them.
    pub configuration: Configuration,
    /// Directory of uploaded plugins; made when missing.
    pub jars_dir: PathBuf,
    /// Processing time.
    pub clock: Clock,
    /// The log of this process.
    pub log: Arc<LogBuffer>,
}

/// What all handlers share.
pub(crate) struct RestState {
    services: RestServices,
    jars: JarStore,
    uploads: Semaphore,
    operations: snapshots::Operations,
    /// Where this endpoint is reached, as "http://127.0.0.1:8081".
    url: String,
}

impl RestState {
    pub(crate) fn new(services: RestServices, url: String) -> std::io::Result<Self> {
        let jars = JarStore::open(&services.jars_dir)?;
        let (uploads, operations) = (Semaphore::new(UPLOADS_MAX), snapshots::Operations::default());
        Ok(Self { services, jars, uploads, operations, url })
    }

    fn now(&self) -> i64 {
        self.services.clock.now().0
    }

    async fn request(&self, request: DispatcherRequest) -> Result<DispatcherResponse, RestError> {
        match tokio::time::timeout(DISPATCHER_TIME_MAX, self.services.gateway.request(request)).await {
            Ok(answer) => Ok(answer?),
            Err(_) => Err(RestError::new(
                axum::http::StatusCode::SERVICE_UNAVAILABLE,
                "the Dispatcher has not answered in time; try again",
            )),
        }
    }

    async fn jobs(&self) -> Result<Vec<JobOverview>, RestError> {
        match self.request(DispatcherRequest::ListJobs).await? {
            DispatcherResponse::Jobs(jobs) => Ok(jobs),
            other => Err(unexpected(&other)),
        }
    }

    async fn job(&self, job: JobId) -> Result<JobDetails, RestError> {
        match self.request(DispatcherRequest::JobDetails(job)).await? {
            DispatcherResponse::Details(details) => Ok(details),
            other => Err(unexpected(&other)),
        }
    }

    async fn task_executors(&self) -> Result<Vec<TaskExecutorDetails>, RestError> {
        match self.request(DispatcherRequest::ListTaskExecutors).await? {
            DispatcherResponse::TaskExecutors(task_executors) => Ok(task_executors),
            other => Err(unexpected(&other)),
        }
    }

    /// Refuses when the owner has switched uploads off.
    fn check_submission_enabled(&self) -> Result<(), RestError> {
        if self.services.configuration.get(&options::WEB_SUBMIT) {
            return Ok(());
        }
        Err(RestError::new(
            axum::http::StatusCode::FORBIDDEN,
            "this server takes no plugins (its web.submit.enable is false)",
        ))
    }

    /// Checks what a job starts from, stores its blobs and hands it to the Dispatcher. The uploads are
    /// taken back in any case: a job that was accepted refers to its blobs itself.
    async fn submit(&self, job_graph: JobGraph, contents: Vec<Bytes>) -> Result<(), RestError> {
        let checked = job_graph.clone();
        self.blocking(move || check_start(&checked)).await?;
        let blobs = Arc::clone(&self.services.blobs);
        let stored = tokio::task::spawn_blocking(move || Uploads::store(blobs, &contents)).await;
        let stored = stored.map_err(|error| RestError::internal(format!("the upload ended in a panic: {error}")))?;
        let uploads = stored
            .map_err(|error| RestError::internal(format!("the plugin or an artifact could not be stored: {error}")))?;
        // Dropped when the client goes or the time is over, too.
        let outcome = self.request(DispatcherRequest::SubmitJob(job_graph)).await.map(drop);
        // Before the answer is sent.
        drop(tokio::task::spawn_blocking(move || drop(uploads)).await);
        outcome
    }

    /// Runs work that takes CPU time on a thread that may block.
    async fn blocking<T, E>(&self, work: impl FnOnce() -> Result<T, E> + Send + 'static) -> Result<T, RestError>
    where
        T: Send + 'static,
        E: Into<RestError> + Send + 'static,
    {
        match tokio::task::spawn_blocking(work).await {
            Ok(outcome) => outcome.map_err(Into::into),
            Err(error) => Err(RestError::internal(format!("the request could not be worked on: {error}"))),
        }
    }
}

/// What a request has stored; taken back when it is dropped, however the request ends.
struct Uploads {
    blobs: Arc<dyn Blobs>,
    stored: Vec<BlobDigest>,
}

impl Uploads {
    fn store(blobs: Arc<dyn Blobs>, contents: &[Bytes]) -> Result<Self, String> {
        let mut uploads = Self { blobs, stored: Vec::new() };
        for content in contents {
            uploads.stored.push(uploads.blobs.put(content)?);
        }
        Ok(uploads)
    }
}

impl Drop for Uploads {
    fn drop(&mut self) {
        for digest in &self.stored {
            if let Err(error) = self.blobs.discard(*digest) {
                tracing::warn!("the upload {digest} could not be taken back: {error}");
            }
        }
    }
}

fn unexpected(response: &DispatcherResponse) -> RestError {
    let kind = match response {
        DispatcherResponse::Acknowledged => "an acknowledgement",
        DispatcherResponse::Jobs(_) => "a list of jobs",
        DispatcherResponse::Details(_) => "a job",
        DispatcherResponse::TaskExecutors(_) => "a list of TaskExecutors",
        DispatcherResponse::Snapshot(_) => "a checkpoint",
        DispatcherResponse::JobGraph(_) => "a job graph",
        DispatcherResponse::Refused(_) => "a refusal",
    };
    RestError::internal(format!("the Dispatcher answered another question, with {kind}; this is a bug"))
}
