//! Counts checkpoints that failed one after the other. Source: Flink's `CheckpointFailureManager`.

use std::collections::BTreeSet;

use crate::{base::stream_element::CheckpointId, protocol::job_master::CheckpointFailureReason};

/// What a failed checkpoint means to the job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Consequence {
    /// It goes on.
    Tolerated,
    /// Too many have failed.
    JobFails,
}

/// The counter.
#[derive(Clone, Debug)]
pub struct FailureManager {
    tolerable: u32,
    count: u32,
    /// Those that were counted; each counts once.
    counted: BTreeSet<CheckpointId>,
    last_succeeded: CheckpointId,
}

/// Whether a reason says that checkpoints do not work.
fn is_counted(reason: CheckpointFailureReason) -> bool {
    use CheckpointFailureReason as Reason;
    match reason {
        Reason::IoException
        | Reason::CheckpointAsyncException
        | Reason::CheckpointDeclined
        | Reason::CheckpointExpired
        | Reason::FinalizeCheckpointFailure => true,
        Reason::TooManyCheckpointRequests
        | Reason::MinimumTimeBetweenCheckpoints
        | Reason::NotAllRequiredTasksRunning
        | Reason::CheckpointSubsumed
        | Reason::CheckpointDeclinedOnCancellationBarrier
        | Reason::CheckpointDeclinedTaskNotReady
        | Reason::CheckpointDeclinedTaskClosing
        | Reason::CheckpointDeclinedInputEndOfStream
        | Reason::CheckpointCoordinatorShutdown
        | Reason::CheckpointCoordinatorSuspend
        | Reason::JobFailoverRegion
        | Reason::TaskFailure
        | Reason::TriggerCheckpointFailure => false,
    }
}

impl FailureManager {
    /// Tolerates so many in a row.
    pub fn new(tolerable: u32) -> Self {
        Self { tolerable, count: 0, counted: BTreeSet::new(), last_succeeded: 0 }
    }

    /// A checkpoint failed; without an id if none had been drawn.
    pub fn failed(&mut self, id: Option<CheckpointId>, reason: CheckpointFailureReason) -> Consequence {
        let is_outdated = id.is_some_and(|id| id <= self.last_succeeded);
        if is_outdated || !is_counted(reason) || id.is_some_and(|id| !self.counted.insert(id)) {
            return Consequence::Tolerated;
        }
        self.count += 1;
        if self.count <= self.tolerable {
            return Consequence::Tolerated;
        }
        self.clear();
        Consequence::JobFails
    }

    /// A checkpoint completed.
    pub fn succeeded(&mut self, id: CheckpointId) {
        if self.last_succeeded < id {
            self.last_succeeded = id;
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.count = 0;
        self.counted.clear();
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vectors {
        tolerable_failures: Vec<Trace>,
    }

    #[derive(Deserialize)]
    struct Trace {
        tolerable: u32,
        steps: Vec<Step>,
    }

    #[derive(Deserialize)]
    struct Step {
        event: String,
        checkpoint_id: i64,
        job_fails: bool,
        counter_after: u32,
    }

    fn reason(name: &str) -> CheckpointFailureReason {
        match name {
            "CHECKPOINT_EXPIRED" => CheckpointFailureReason::CheckpointExpired,
            "CHECKPOINT_DECLINED" => CheckpointFailureReason::CheckpointDeclined,
            "JOB_FAILOVER_REGION" => CheckpointFailureReason::JobFailoverRegion,
            "CHECKPOINT_DECLINED_TASK_NOT_READY" => CheckpointFailureReason::CheckpointDeclinedTaskNotReady,
            "MINIMUM_TIME_BETWEEN_CHECKPOINTS" => CheckpointFailureReason::MinimumTimeBetweenCheckpoints,
            "IO_EXCEPTION" => CheckpointFailureReason::IoException,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn failures_are_counted_as_flink_does() {
        let text = include_str!("../../../../tests-data/job_master/checkpoint_coordinator.json");
        let traces = serde_json::from_str::<Vectors>(text).unwrap().tolerable_failures;
        assert_eq!(traces.len(), 5);
        for (number, Trace { tolerable, steps }) in traces.into_iter().enumerate() {
            let mut manager = FailureManager::new(tolerable);
            for Step { event, checkpoint_id, job_fails, counter_after } in steps {
                let id = u64::try_from(checkpoint_id).ok();
                let consequence = if event == "ok" {
                    manager.succeeded(id.unwrap());
                    Consequence::Tolerated
                } else {
                    manager.failed(id, reason(&event))
                };
                assert_eq!(consequence == Consequence::JobFails, job_fails, "trace {number}: {event} {checkpoint_id}");
                assert_eq!(manager.count, counter_after, "trace {number}: {event} {checkpoint_id}");
            }
        }
    }
}
