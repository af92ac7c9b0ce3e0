//! What a Dispatcher receives, and what it answers to clients.

use serde::{Deserialize, Serialize};

use super::{
    job_details::{JobDetails, JobOverview, TaskExecutorDetails},
    job_master::{FailureCause, SnapshotRequest, TakenSnapshot},
};
use crate::{
    base::{
        ids::{JobId, JobMasterId},
        status::JobStatus,
    },
    graph::job_graph::JobGraph,
};

/// What a Dispatcher receives.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum DispatcherMessage {
    /// A client asks; the answer goes to the sender with the same number.
    Request(u64, DispatcherRequest),
    /// A JobMaster entered a state, or its subtasks did.
    JobStatusChanged(JobStatusChanged),
    /// A JobMaster ended; the details are the last ones.
    JobTerminated(JobTerminated),
    /// A JobMaster answers [`super::job_master::JobMasterMessage::RequestDetails`].
    JobDetails(u64, JobDetails),
    /// The ResourceManager answers `ResourceManagerMessage::RequestTaskExecutors`.
    TaskExecutors(u64, Vec<TaskExecutorDetails>),
    /// A JobMaster answers [`super::job_master::JobMasterMessage::TriggerSnapshot`]: what was taken,
    /// or in one line why not.
    SnapshotTaken(u64, Result<TakenSnapshot, String>),
    /// A JobMaster could not be made, or its loop died.
    JobMasterFailed(JobMasterFailed),
    /// The loop of a JobMaster has ended and its address is free.
    JobMasterClosed(JobId, JobMasterId),
    /// The Dispatcher's process ends or its leadership was revoked: jobs are suspended,
    /// and stay stored for the next leader.
    Stop(String),
}

/// A JobMaster could not be made, or its loop died.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobMasterFailed {
    /// The job.
    pub job: JobId,
    /// The JobMaster's leadership.
    pub job_master: JobMasterId,
    /// Why.
    pub cause: FailureCause,
}

/// The state of a job or of its subtasks changed.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobStatusChanged {
    /// The JobMaster's leadership.
    pub job_master: JobMasterId,
    /// The new overview.
    pub overview: JobOverview,
}

/// A job ended.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct JobTerminated {
    /// The JobMaster's leadership.
    pub job_master: JobMasterId,
    /// All there is to know of the job.
    pub details: JobDetails,
}

/// What a client may ask.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::large_enum_variant, reason = "control messages are few")]
pub enum DispatcherRequest {
    /// Runs a job; its plugin and artifacts are in the blob store.
    SubmitJob(JobGraph),
    /// Cancels a job.
    CancelJob(JobId),
    /// Cancels a job that has not completed a checkpoint of its own; one that has goes on. So either nothing of it was
    /// committed, or it is still there.
    CancelUncommitted(JobId),
    /// Lists running and ended jobs.
    ListJobs,
    /// Tells all about a job.
    JobDetails(JobId),
    /// Takes a checkpoint or savepoint, and answers when it is complete; with stopping, when the job has FINISHED.
    TakeSnapshot(JobId, SnapshotRequest),
    /// Tells what a running job was submitted as.
    JobGraph(JobId),
    /// Answers when the job has ended.
    AwaitTermination(JobId),
    /// Lists TaskExecutors.
    ListTaskExecutors,
    /// Cancels all jobs and ends the cluster.
    Shutdown,
}

/// Answer to a [`DispatcherRequest`].
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[expect(clippy::large_enum_variant, reason = "control messages are few")]
pub enum DispatcherResponse {
    /// The job was persisted and its JobMaster started; or cancelling began; or the cluster ends.
    Acknowledged,
    /// Answer to `ListJobs`.
    Jobs(Vec<JobOverview>),
    /// Answer to `JobDetails` and `AwaitTermination`.
    Details(JobDetails),
    /// Answer to `ListTaskExecutors`.
    TaskExecutors(Vec<TaskExecutorDetails>),
    /// Answer to `TakeSnapshot`.
    Snapshot(TakenSnapshot),
    /// Answer to `JobGraph`.
    JobGraph(Box<JobGraph>),
    /// The request was refused.
    Refused(DispatcherError),
}

/// A Dispatcher refuses a request.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize, thiserror::Error)]
pub enum DispatcherError {
    /// No such job.
    #[error("there is no job {0}")]
    UnknownJob(JobId),
    /// The id is taken by a job that has not ended.
    #[error("job {0} has been submitted already")]
    DuplicateJob(JobId),
    /// The id is taken by a job that has ended.
    #[error("job {0} has been submitted already and has ended as {1}")]
    DuplicateEndedJob(JobId, JobStatus),
    /// Only some vertices have explicit resources.
    #[error("some vertices of the job have resources set and others have not: set them for all or none ({0})")]
    PartialResources(String),
    /// The job cannot be cancelled, since it has ended.
    #[error("job {0} has ended as {1} and cannot be cancelled")]
    AlreadyEnded(JobId, JobStatus),
    /// The job needs more slots than the cluster has, and none can come.
    #[error(
        "the job needs {needed} slots, but the cluster has {total} in all: raise taskmanager.numberOfTaskSlots of the \
         JobManager, or submit with a lower parallelism"
    )]
    TooFewSlots {
        /// Those of the job.
        needed: u64,
        /// Those of the cluster, free or not.
        total: u64,
    },
    /// The graph cannot be run.
    #[error("{0}")]
    InvalidJob(String),
    /// The job could not be stored.
    #[error("the job could not be stored: {0}")]
    Storage(String),
    /// A checkpoint or savepoint was not taken.
    #[error("{0}")]
    SnapshotFailed(String),
    /// There is no leader.
    #[error("there is no leading {0} at the moment; try again")]
    NoLeader(String),
}
