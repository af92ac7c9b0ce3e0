//! One attempt to run a subtask, as the JobMaster sees it.
//!
//! [`report_effect`] and [`cancel_effect`] say, for every state, what a report of a
//! TaskExecutor or the wish to cancel brings about; they change nothing themselves.

use std::collections::BTreeMap;

use crate::{
    base::{
        clock::Timestamp,
        ids::{AllocationId, ExecutionAttemptId, ResourceId},
        status::{ExecutionState, IllegalTransition},
    },
    protocol::{
        job_details::AttemptDetails,
        job_master::{FailureCause, TaskMetrics, TaskState},
    },
};

/// Where an attempt runs or ran.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskLocation {
    /// The TaskExecutor.
    pub task_executor: ResourceId,
    /// The slot.
    pub allocation: AllocationId,
}

/// One attempt.
#[derive(Clone, Debug)]
pub struct Execution {
    attempt: ExecutionAttemptId,
    state: ExecutionState,
    timestamps: BTreeMap<ExecutionState, Timestamp>,
    /// Set when the attempt is deployed.
    pub(super) location: Option<TaskLocation>,
    /// Its counters as last reported.
    pub(super) metrics: TaskMetrics,
    /// Why it failed.
    pub(super) failure: Option<FailureCause>,
}

impl Execution {
    /// Makes an attempt in the state CREATED.
    pub fn new(attempt: ExecutionAttemptId, now: Timestamp) -> Self {
        Self {
            attempt,
            state: ExecutionState::Created,
            timestamps: BTreeMap::from([(ExecutionState::Created, now)]),
            location: None,
            metrics: TaskMetrics::default(),
            failure: None,
        }
    }

    /// Its id.
    pub fn attempt(&self) -> ExecutionAttemptId {
        self.attempt
    }

    /// Its state.
    pub fn state(&self) -> ExecutionState {
        self.state
    }

    /// When it entered a state.
    pub fn entered(&self, state: ExecutionState) -> Option<Timestamp> {
        self.timestamps.get(&state).copied()
    }

    /// Where it was deployed to.
    pub fn location(&self) -> Option<&TaskLocation> {
        self.location.as_ref()
    }

    /// Enters a state and notes the time.
    pub(super) fn transition_to(
        &mut self,
        next: ExecutionState,
        now: Timestamp,
    ) -> Result<(), IllegalTransition<ExecutionState>> {
        self.state = self.state.transition_to(next)?;
        self.timestamps.insert(next, now);
        Ok(())
    }

    /// What is shown of it.
    pub fn details(&self) -> AttemptDetails {
        AttemptDetails {
            attempt: self.attempt,
            state: self.state,
            timestamps: self.timestamps.clone(),
            task_executor: self.location.as_ref().map(|location| location.task_executor.clone()),
            metrics: self.metrics.clone(),
            failure: self.failure.clone(),
        }
    }
}

/// What a report of a TaskExecutor brings about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ReportEffect {
    /// The attempt goes through these states.
    Advance(&'static [ExecutionState]),
    /// The task failed: failover decides, and the attempt becomes FAILED by it.
    TaskFailed,
    /// Known already, or overtaken by a later report: nothing changes.
    Outdated,
    /// The attempt has ended and was deregistered: the TaskExecutor is to fail its task.
    NotFound,
    /// No task can be where none was deployed: cancel it and fail the attempt.
    Illegal,
}

/// What a report means to an attempt in the state `current`.
/// Source: `DefaultExecutionGraph.updateState` and `Execution`.
pub const fn report_effect(current: ExecutionState, report: TaskState) -> ReportEffect {
    use ExecutionState as State;
    use ReportEffect::{Advance, Illegal, NotFound, Outdated, TaskFailed};
    match (current, report) {
        (State::Created | State::Scheduled, _) => Illegal,
        (State::Finished | State::Canceled | State::Failed, _) => NotFound,

        (State::Deploying | State::Reconciling, TaskState::Initializing) => Advance(&[State::Initializing]),
        (State::Initializing | State::Running, TaskState::Initializing) => Outdated,

        // The report INITIALIZING was lost or overtaken.
        (State::Deploying, TaskState::Running) => Advance(&[State::Initializing, State::Running]),
        (State::Initializing | State::Reconciling, TaskState::Running) => Advance(&[State::Running]),
        (State::Running, TaskState::Running) => Outdated,

        (State::Deploying | State::Initializing | State::Running | State::Reconciling, TaskState::Finished) => {
            Advance(&[State::Finished])
        }
        (State::Deploying | State::Initializing | State::Running | State::Reconciling, TaskState::Canceled) => {
            Advance(&[State::Canceled])
        }
        (State::Deploying | State::Initializing | State::Running | State::Reconciling, TaskState::Failed) => TaskFailed,

        (State::Canceling, TaskState::Initializing | TaskState::Running) => Outdated,
        (State::Canceling, TaskState::Finished | TaskState::Canceled | TaskState::Failed) => {
            Advance(&[State::Canceled])
        }
    }
}

/// What cancelling an attempt brings about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CancelEffect {
    /// It was not deployed: CANCELED at once, without a message.
    AtOnce,
    /// CANCELING, and the TaskExecutor is told.
    TellTaskExecutor,
    /// It is being cancelled, or has ended.
    Nothing,
}

/// What cancelling means to an attempt in the state `current`. Source: `Execution.cancel`.
pub const fn cancel_effect(current: ExecutionState) -> CancelEffect {
    use ExecutionState as State;
    match current {
        State::Created | State::Scheduled => CancelEffect::AtOnce,
        State::Deploying | State::Initializing | State::Running => CancelEffect::TellTaskExecutor,
        State::Canceling | State::Finished | State::Canceled | State::Failed => CancelEffect::Nothing,
        // No attempt is taken over from another leader, so there is nobody to tell.
        State::Reconciling => CancelEffect::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    const REPORTS: [(&str, TaskState); 5] = [
        ("INITIALIZING", TaskState::Initializing),
        ("RUNNING", TaskState::Running),
        ("FINISHED", TaskState::Finished),
        ("CANCELED", TaskState::Canceled),
        ("FAILED", TaskState::Failed),
    ];

    /// Flink's effects; see `tests-data/job_master/state_machines.json`.
    #[derive(Deserialize)]
    struct Effects {
        reports: Vec<Report>,
        cancel: Vec<Cancel>,
    }

    #[derive(Deserialize)]
    struct Report {
        current: String,
        report: String,
        effect: String,
    }

    #[derive(Deserialize)]
    struct Cancel {
        current: String,
        effect: String,
    }

    fn effects() -> Effects {
        let text = include_str!("../../../../tests-data/job_master/state_machines.json");
        serde_json::from_str(text).unwrap()
    }

    fn state(name: &str) -> Option<ExecutionState> {
        ExecutionState::ALL.iter().copied().find(|state| state.name() == name)
    }

    #[test]
    fn reports_have_flinks_effects() {
        let mut checked = 0;
        for Report { current, report, effect } in effects().reports {
            let (Some(current), Some((_, report))) =
                (state(&current), REPORTS.iter().find(|(name, _)| *name == report))
            else {
                // Reports of CREATED, SCHEDULED, DEPLOYING and CANCELING cannot be written;
                // unknown attempts have no state.
                assert!(["any", "unknown attempt id"].contains(&current.as_str()), "{current}");
                continue;
            };
            let expected = match effect.split([' ', ':', '(']).next().unwrap() {
                "illegal" => ReportEffect::Illegal,
                "rejected" => ReportEffect::NotFound,
                name => match state(name).unwrap() {
                    ExecutionState::Finished => ReportEffect::Advance(&[ExecutionState::Finished]),
                    ExecutionState::Canceled => ReportEffect::Advance(&[ExecutionState::Canceled]),
                    other => panic!("{other}"),
                },
            };
            assert_eq!(report_effect(current, *report), expected, "{current} {report:?}");
            checked += 1;
        }
        assert_eq!(checked, 9);
    }

    #[test]
    fn cancelling_has_flinks_effects() {
        let cancel = effects().cancel;
        assert_eq!(cancel.len(), 9);
        for Cancel { current, effect } in cancel {
            let expected = match effect.split([' ', ',']).next().unwrap() {
                "CANCELED" => CancelEffect::AtOnce,
                "CANCELING" => CancelEffect::TellTaskExecutor,
                "no-op" | "stays" => CancelEffect::Nothing,
                other => panic!("{other}"),
            };
            assert_eq!(cancel_effect(state(&current).unwrap()), expected, "{current}");
        }
    }

    #[test]
    fn every_effect_takes_legal_edges_only() {
        for current in ExecutionState::ALL {
            for (_, report) in REPORTS {
                let states = match report_effect(*current, report) {
                    ReportEffect::Advance(states) => states,
                    ReportEffect::TaskFailed | ReportEffect::Illegal => &[ExecutionState::Failed],
                    ReportEffect::Outdated => &[],
                    ReportEffect::NotFound => {
                        assert!(current.is_terminal());
                        &[]
                    }
                };
                let mut state = *current;
                for next in states {
                    state = state.transition_to(*next).unwrap();
                }
                assert!(!current.is_terminal() || state == *current);
            }
            let states: &[ExecutionState] = match cancel_effect(*current) {
                CancelEffect::AtOnce => &[ExecutionState::Canceling, ExecutionState::Canceled],
                CancelEffect::TellTaskExecutor => &[ExecutionState::Canceling],
                CancelEffect::Nothing => &[],
            };
            states.iter().fold(*current, |state, next| state.transition_to(*next).unwrap());
        }
    }
}
