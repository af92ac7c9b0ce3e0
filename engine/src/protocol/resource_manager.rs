//! What a ResourceManager receives.

use serde::{Deserialize, Serialize};

use crate::{
    base::ids::{AllocationId, JobId, JobMasterId, ResourceId, SlotId},
    graph::job_graph::ResourceProfile,
};

/// What a ResourceManager receives. Every message but the registrations carries
/// the `ResourceManagerId` as the fence of its envelope.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum ResourceManagerMessage {
    /// A TaskExecutor registers; it replaces its former registration.
    RegisterTaskExecutor(TaskExecutorRegistration),
    /// A JobMaster registers.
    RegisterJobMaster(JobMasterRegistration),
    /// The total of slots that a job needs; replaces what it declared before.
    DeclareRequiredSlots(RequiredSlots),
    /// A TaskExecutor did what `RequestSlot` asked.
    SlotAllocated(SlotId, AllocationId),
    /// A TaskExecutor refused `RequestSlot`.
    SlotRefused(SlotId, AllocationId, String),
    /// A slot became free.
    SlotAvailable(SlotId, AllocationId),
    /// A TaskExecutor lives.
    TaskExecutorHeartbeat(SlotReport),
    /// A JobMaster lives.
    JobMasterHeartbeat(JobId),
    /// A job ended.
    DisconnectJobMaster(JobId, JobMasterId),
    /// A TaskExecutor ends.
    DisconnectTaskExecutor(ResourceId, String),
    /// The Dispatcher asks for all TaskExecutors; answered with the same number.
    RequestTaskExecutors(u64),
}

/// A TaskExecutor registers.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct TaskExecutorRegistration {
    /// Its slots.
    pub report: SlotReport,
    /// CPU cores of its machine.
    pub cpu_cores: u32,
    /// Bytes of memory of its machine.
    pub memory_bytes: u64,
}

/// State of all slots of a TaskExecutor.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotReport {
    /// The TaskExecutor.
    pub task_executor: ResourceId,
    /// By slot index: the job and allocation that have it.
    pub slots: Vec<Option<(JobId, AllocationId)>>,
}

/// A JobMaster registers.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobMasterRegistration {
    /// The job.
    pub job: JobId,
    /// The leadership.
    pub job_master: JobMasterId,
}

/// The total of slots that a job needs.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RequiredSlots {
    /// The job.
    pub job: JobId,
    /// The leadership.
    pub job_master: JobMasterId,
    /// Numbers of slots by profile; `None`: any slot.
    pub slots: Vec<(Option<ResourceProfile>, u32)>,
}
