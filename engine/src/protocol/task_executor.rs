//! What a TaskExecutor receives.

use serde::{Deserialize, Serialize};

use crate::{
    base::{
        clock::Timestamp,
        config::Configuration,
        ids::{
            AllocationId, ExecutionAttemptId, IntermediateDataSetId, JobId, JobMasterId, JobVertexId,
            ResourceManagerId, ResultPartitionId, SlotId,
        },
        stream_element::{CheckpointId, CheckpointOptions},
    },
    checkpoint::TaskRestore,
    graph::job_graph::{Artifact, Grants, JobVertex, ProgramSpec},
    protocol::job_master::{MaxAllowedWatermark, SplitAnswer},
};

/// What all tasks of a job share; sent once per TaskExecutor.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct JobInformation {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub job_name: String,
    /// All settings of the job.
    pub configuration: Configuration,
    /// How to make the operators.
    pub program: ProgramSpec,
    /// What may be opened.
    pub grants: Grants,
    /// Files for the subtasks.
    pub artifacts: Vec<Artifact>,
    /// All vertices.
    pub vertices: Vec<JobVertex>,
}

/// One partition that a task produces.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ResultPartitionDeployment {
    /// The partition.
    pub partition: ResultPartitionId,
    /// Number of its subpartitions.
    pub subpartitions: u32,
    /// Number of key groups of the consuming vertex, for the hash partitioner.
    pub consumer_max_parallelism: u32,
}

/// One channel of an input gate.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct InputChannelDeployment {
    /// The partition that is read.
    pub partition: ResultPartitionId,
    /// The subpartition that is read.
    pub subpartition: u32,
}

/// One input gate of a task.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct InputGateDeployment {
    /// The data set that is consumed.
    pub data_set: IntermediateDataSetId,
    /// Its channels, in the order of the partitions.
    pub channels: Vec<InputChannelDeployment>,
}

/// Everything to run one attempt, beside [`JobInformation`].
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskDeployment {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// Its vertex; the subtask index is in `attempt`.
    pub vertex: JobVertexId,
    /// The slot that it runs in.
    pub allocation: AllocationId,
    /// In the order of `JobVertex::outputs`.
    pub partitions: Vec<ResultPartitionDeployment>,
    /// In the order of `JobVertex::inputs`.
    pub gates: Vec<InputGateDeployment>,
    /// What it goes on from; none: it begins from scratch.
    pub restore: Option<TaskRestore>,
}

/// A checkpoint begins; only for tasks that no running task sends a barrier to.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TriggerCheckpoint {
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// When it was triggered.
    pub triggered: Timestamp,
    /// How it is taken.
    pub options: CheckpointOptions,
}

/// What a TaskExecutor receives.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum TaskExecutorMessage {
    /// The ResourceManager accepted the registration.
    RegisteredAtResourceManager(ResourceManagerId),
    /// The ResourceManager refused the registration.
    ResourceManagerRefused(String),
    /// The ResourceManager lives; answered by `ResourceManagerMessage::TaskExecutorHeartbeat`.
    ResourceManagerHeartbeat,
    /// The ResourceManager gives a slot to a job; the fence is the `ResourceManagerId`.
    RequestSlot(SlotRequest),
    /// The JobMaster took these of the offered slots; the others are freed.
    AcceptSlots(JobId, Vec<AllocationId>),
    /// The JobMaster no longer needs a slot.
    FreeSlot(AllocationId, String),
    /// What all tasks of a job share; comes before its first task.
    JobInformation(Box<JobInformation>),
    /// Runs a task; the fence is the `JobMasterId`.
    SubmitTask(TaskDeployment),
    /// Cancels a task.
    CancelTask(ExecutionAttemptId),
    /// The JobMaster does not know the attempt, or it has ended there: fail it.
    AttemptUnknown(ExecutionAttemptId),
    /// Answer to `JobMasterMessage::RequestSplit`.
    SplitAssigned(SplitAnswer),
    /// Answer to `JobMasterMessage::ReportWatermark`.
    AlignWatermark(MaxAllowedWatermark),
    /// Takes part in a checkpoint; answered by `JobMasterMessage::AcknowledgeCheckpoint` or
    /// `JobMasterMessage::DeclineCheckpoint`.
    TriggerCheckpoint(TriggerCheckpoint),
    /// A checkpoint is complete and stored.
    NotifyCheckpointComplete(ExecutionAttemptId, CheckpointId),
    /// A checkpoint was given up.
    NotifyCheckpointAborted(ExecutionAttemptId, CheckpointId),
    /// A JobMaster lives; answered by `JobMasterMessage::TaskExecutorHeartbeat`.
    JobMasterHeartbeat(JobId),
    /// A JobMaster ended or lost its leadership.
    DisconnectJobMaster(JobId, String),
    /// Another ResourceManager leads, says the retrieval service; from itself.
    ResourceManagerLeader(ResourceManagerId),
    /// A task of this TaskExecutor left an event; from itself.
    TaskEventsWaiting,
    /// The process ends: cancel all tasks, then end; from itself.
    Stop(String),
}

/// The ResourceManager gives a slot to a job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotRequest {
    /// The slot.
    pub slot: SlotId,
    /// The job.
    pub job: JobId,
    /// The promise.
    pub allocation: AllocationId,
    /// The job's leader, to whom the slot is offered.
    pub job_master: JobMasterId,
}
