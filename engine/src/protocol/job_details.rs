//! What can be known of a job, running or ended: the JobMaster makes it, REST and
//! the command line show it.

use std::{collections::BTreeMap, fmt, time::Duration};

use serde::{Deserialize, Serialize};

use super::{
    checkpoint_details::CheckpointStatistics,
    job_master::{FailureCause, TaskMetrics},
};
use crate::base::{
    clock::Timestamp,
    config::Configuration,
    ids::{ExecutionAttemptId, JobId, JobVertexId, ResourceId},
    status::{ExecutionState, JobStatus},
    stream_element::SnapshotLocation,
};

/// A line of the list of jobs.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobOverview {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: JobStatus,
    /// When it was submitted.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// When its state last changed.
    pub last_modified: Timestamp,
    /// Number of subtasks by state.
    pub tasks: BTreeMap<ExecutionState, u32>,
}

/// A job with its history.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct JobDetails {
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: JobStatus,
    /// When each state was last entered.
    pub timestamps: BTreeMap<JobStatus, Timestamp>,
    /// In topological order.
    pub vertices: Vec<VertexDetails>,
    /// Flink's JSON plan.
    pub json_plan: String,
    /// All settings.
    pub configuration: Configuration,
    /// The strategy that decides over restarts, as a sentence.
    pub restart_strategy: String,
    /// Restarts so far.
    pub restarts: u64,
    /// Time that they cost.
    pub downtime: Downtime,
    /// Slots that the job waits for.
    pub slot_shortage: Option<SlotShortage>,
    /// Why the job failed or was last restarted.
    pub root_failure: Option<FailureEntry>,
    /// Failures, the newest first.
    pub failures: Vec<FailureEntry>,
    /// Its checkpoints; none: it takes none by itself, and none was asked for.
    pub checkpoints: Option<Box<CheckpointStatistics>>,
    /// The savepoint that it has stopped with.
    pub stopped_with: Option<SnapshotLocation>,
}

/// For how long not all tasks of a job ran, because of failures: from each failure after which tasks restarted until
/// all ran again, or had finished, or the job ended.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Downtime {
    /// What is over, in milliseconds.
    pub past_ms: u64,
    /// The failure since which not all tasks run.
    pub since: Option<Timestamp>,
}

impl Downtime {
    /// All of it, in milliseconds, with what goes on at `now`.
    pub fn total_ms(&self, now: Timestamp) -> u64 {
        self.past_ms + self.since.map_or(0, |since| milliseconds(now.since(since)))
    }

    /// Tasks failed and will restart.
    pub fn begin(&mut self, now: Timestamp) {
        self.since.get_or_insert(now);
    }

    /// All tasks run again, or the job ended.
    pub fn end(&mut self, now: Timestamp) {
        *self = Self { past_ms: self.total_ms(now), since: None };
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A job waits for slots.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SlotShortage {
    /// Slots that it needs.
    pub needed: u32,
    /// Those that it has or could have; none: the ResourceManager has not said so yet.
    pub available: Option<u32>,
}

/// "waiting for 4 slots, 1 is available", and what helps.
impl fmt::Display for SlotShortage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slots = if self.needed == 1 { "slot" } else { "slots" };
        write!(formatter, "waiting for {} {slots}", self.needed)?;
        match self.available {
            Some(1) => write!(formatter, ", 1 is available: {}", Self::HINT),
            Some(available) => write!(formatter, ", {available} are available: {}", Self::HINT),
            None => Ok(()),
        }
    }
}

impl SlotShortage {
    /// What the user can do.
    pub const HINT: &str = "raise taskmanager.numberOfTaskSlots, start more TaskExecutors, wait until other jobs end, \
        or submit with a lower parallelism";
}

/// One failure of a job.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct FailureEntry {
    /// When.
    pub time: Timestamp,
    /// Why.
    pub cause: FailureCause,
    /// Name of the task with its subtask, as "Map (3/8)"; none: the job as a whole.
    pub task_name: Option<String>,
    /// Where the task ran.
    pub task_executor: Option<ResourceId>,
    /// Whether tasks restarted because of it.
    pub restart: Restart,
}

/// What a failure made restart.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub enum Restart {
    /// Nothing: the job failed or was ending, or the failure counts as part of the one before.
    #[default]
    None,
    /// Tasks, and not all tasks of the job have run since.
    UnderWay,
    /// Tasks, and at this time all tasks ran again, or had finished.
    Recovered(Timestamp),
}

impl FailureEntry {
    /// Milliseconds from the failure until all tasks ran again, or to `now`; none: nothing restarted.
    pub fn downtime_ms(&self, now: Timestamp) -> Option<u64> {
        match self.restart {
            Restart::None => None,
            Restart::UnderWay => Some(milliseconds(now.since(self.time))),
            Restart::Recovered(recovered) => Some(milliseconds(recovered.since(self.time))),
        }
    }
}

/// A vertex.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct VertexDetails {
    /// The vertex.
    pub id: JobVertexId,
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Its slot sharing group.
    pub slot_sharing_group: String,
    /// Names of its operators by node id.
    pub operators: Vec<(u32, String)>,
    /// By subtask index.
    pub subtasks: Vec<SubtaskDetails>,
}

/// A subtask with its attempts.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct SubtaskDetails {
    /// The current attempt.
    pub current: AttemptDetails,
    /// Former attempts that are kept, the oldest first.
    pub former: Vec<AttemptDetails>,
}

/// An attempt.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct AttemptDetails {
    /// The attempt.
    pub attempt: ExecutionAttemptId,
    /// Its state.
    pub state: ExecutionState,
    /// When each state was entered.
    pub timestamps: BTreeMap<ExecutionState, Timestamp>,
    /// Where it runs or ran.
    pub task_executor: Option<ResourceId>,
    /// Its counters as last reported.
    pub metrics: TaskMetrics,
    /// Why it failed.
    pub failure: Option<FailureCause>,
}

/// A TaskExecutor.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskExecutorDetails {
    /// Its id.
    pub id: ResourceId,
    /// Number of its slots.
    pub slots: u32,
    /// Those without a job.
    pub free_slots: u32,
    /// Jobs of the slots that have one.
    pub allocated: Vec<JobId>,
    /// When it last gave a sign of life.
    pub last_heartbeat: Timestamp,
    /// CPU cores of its machine.
    pub cpu_cores: u32,
    /// Bytes of memory of its machine.
    pub memory_bytes: u64,
}
