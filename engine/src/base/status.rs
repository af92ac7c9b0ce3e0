//! States of jobs and of attempts, with Flink's names, and all edges between them.
//!
//! ```text
//! job      INITIALIZING -> CREATED -> RUNNING <-> RESTARTING, RUNNING -> FINISHED*
//!          CANCELLING -> CANCELED*, FAILING -> FAILED*, any that is not terminal -> SUSPENDED*
//! attempt  CREATED -> SCHEDULED -> DEPLOYING -> INITIALIZING -> RUNNING -> FINISHED*
//!          CANCELING -> CANCELED*, any but CANCELING -> FAILED*
//! ```
//!
//! States with a star are terminal: nothing follows. `successors` holds the whole
//! table, and nobody assigns a state but through `transition_to`.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! named_states {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)*
        }

        impl $name {
            /// All of them, in the order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name as Flink prints it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl $name {
            /// Goes on to `next`.
            ///
            /// # Errors
            /// Returns an error, which names both, if `next` may not follow.
            pub fn transition_to(self, next: Self) -> Result<Self, IllegalTransition<Self>> {
                if self.successors().contains(&next) {
                    Ok(next)
                } else {
                    Err(IllegalTransition { from: self, to: next })
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
}

/// A state was to follow that may not: a bug of the caller.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{to} may not follow {from}")]
pub struct IllegalTransition<S: fmt::Display + fmt::Debug> {
    /// The state before.
    pub from: S,
    /// The state that was to follow.
    pub to: S,
}

named_states! {
    /// State of a job.
    JobStatus {
        /// The JobMaster is being made.
        Initializing = "INITIALIZING",
        /// Scheduling has not begun.
        Created = "CREATED",
        /// Tasks are deployed or run.
        Running = "RUNNING",
        /// Failed for good; tasks are cancelled.
        Failing = "FAILING",
        /// Failed.
        Failed = "FAILED",
        /// Cancelled by a user; tasks are cancelled.
        Canceling = "CANCELLING",
        /// Cancelled.
        Canceled = "CANCELED",
        /// All tasks finished.
        Finished = "FINISHED",
        /// Tasks are cancelled, to be run again.
        Restarting = "RESTARTING",
        /// Leadership was lost; another leader may go on.
        Suspended = "SUSPENDED",
        /// A new leader takes over running tasks.
        Reconciling = "RECONCILING",
    }
}

impl JobStatus {
    /// The states that may follow. Source: `JobStatus` and `DefaultExecutionGraph`.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Initializing => &[Self::Created, Self::Failed, Self::Canceling, Self::Suspended],
            Self::Created => &[Self::Running, Self::Canceling, Self::Failing, Self::Suspended],
            Self::Running => &[Self::Restarting, Self::Canceling, Self::Failing, Self::Finished, Self::Suspended],
            Self::Restarting => &[Self::Running, Self::Canceling, Self::Failing, Self::Suspended],
            Self::Canceling => &[Self::Canceled, Self::Failed, Self::Failing, Self::Suspended],
            Self::Failing => &[Self::Failed, Self::Canceling, Self::Suspended],
            Self::Reconciling => &[Self::Running, Self::Suspended],
            Self::Finished | Self::Canceled | Self::Failed | Self::Suspended => &[],
        }
    }

    /// True for FINISHED, CANCELED and FAILED, which no leader goes on from.
    pub const fn is_globally_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Canceled | Self::Failed)
    }

    /// True for globally terminal states and SUSPENDED.
    pub const fn is_terminal(self) -> bool {
        self.is_globally_terminal() || matches!(self, Self::Suspended)
    }
}

named_states! {
    /// State of one attempt, as the JobMaster sees it.
    ExecutionState {
        /// Not scheduled.
        Created = "CREATED",
        /// Waiting for a slot.
        Scheduled = "SCHEDULED",
        /// On its way to a TaskExecutor.
        Deploying = "DEPLOYING",
        /// Its operators are opened.
        Initializing = "INITIALIZING",
        /// Processing records.
        Running = "RUNNING",
        /// Ended at the end of its input.
        Finished = "FINISHED",
        /// Told to stop.
        Canceling = "CANCELING",
        /// Stopped.
        Canceled = "CANCELED",
        /// Ended by an error.
        Failed = "FAILED",
        /// Reported by a TaskExecutor to a new leader.
        Reconciling = "RECONCILING",
    }
}

impl ExecutionState {
    /// The states that may follow, as the JobMaster sees it. Source: `ExecutionState` and `Execution`.
    pub const fn successors(self) -> &'static [Self] {
        match self {
            Self::Created => &[Self::Scheduled, Self::Canceling, Self::Failed, Self::Reconciling],
            Self::Scheduled => &[Self::Deploying, Self::Canceling, Self::Failed],
            Self::Deploying => &[Self::Initializing, Self::Finished, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Initializing => &[Self::Running, Self::Finished, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Running => &[Self::Finished, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Canceling => &[Self::Canceled],
            Self::Reconciling => &[Self::Initializing, Self::Running, Self::Finished, Self::Canceled, Self::Failed],
            Self::Finished | Self::Canceled | Self::Failed => &[],
        }
    }

    /// The states that may follow, as the task's own TaskExecutor sees it, which knows
    /// nothing of slots: it begins with CREATED -> DEPLOYING. Source: `Task`.
    pub const fn task_successors(self) -> &'static [Self] {
        match self {
            Self::Created => &[Self::Deploying, Self::Canceling, Self::Failed],
            Self::Deploying => &[Self::Initializing, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Initializing => &[Self::Running, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Running => &[Self::Finished, Self::Canceling, Self::Canceled, Self::Failed],
            Self::Canceling => &[Self::Canceled],
            Self::Scheduled | Self::Reconciling | Self::Finished | Self::Canceled | Self::Failed => &[],
        }
    }

    /// True for FINISHED, CANCELED and FAILED.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Canceled | Self::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use proptest::prelude::*;

    /// Flink's legal transitions by name; see `tests-data/job_master/state_machines.json`.
    #[derive(Deserialize)]
    struct StateMachines {
        execution: BTreeMap<String, BTreeSet<String>>,
        job: BTreeMap<String, BTreeSet<String>>,
        task: BTreeMap<String, BTreeSet<String>>,
        terminal: BTreeMap<String, BTreeSet<String>>,
    }

    fn state_machines() -> StateMachines {
        serde_json::from_str(include_str!("../../tests-data/job_master/state_machines.json")).unwrap()
    }

    fn names<S: fmt::Display>(states: &[S]) -> BTreeSet<String> {
        states.iter().map(S::to_string).collect()
    }

    #[test]
    fn job_transitions_equal_flinks() {
        let expected = state_machines().job;
        assert_eq!(expected.len(), JobStatus::ALL.len());
        for status in JobStatus::ALL {
            assert_eq!(names(status.successors()), expected[status.name()], "{status}");
        }
    }

    #[test]
    fn execution_transitions_equal_flinks() {
        let expected = state_machines().execution;
        assert_eq!(expected.len(), ExecutionState::ALL.len());
        for state in ExecutionState::ALL {
            assert_eq!(names(state.successors()), expected[state.name()], "{state}");
        }
    }

    #[test]
    fn task_transitions_equal_flinks() {
        let expected = state_machines().task;
        for state in ExecutionState::ALL {
            let expected = expected.get(state.name()).cloned().unwrap_or_default();
            assert_eq!(names(state.task_successors()), expected, "{state}");
        }
    }

    #[test]
    fn terminal_states_equal_flinks() {
        let terminal = state_machines().terminal;
        let of_jobs = |is_terminal: fn(JobStatus) -> bool| -> BTreeSet<String> {
            JobStatus::ALL.iter().filter(|status| is_terminal(**status)).map(JobStatus::to_string).collect()
        };
        let of_attempts = ExecutionState::ALL.iter().filter(|state| state.is_terminal());
        assert_eq!(of_attempts.map(ExecutionState::to_string).collect::<BTreeSet<_>>(), terminal["execution"]);
        assert_eq!(of_jobs(JobStatus::is_globally_terminal), terminal["job_globally"]);
        assert_eq!(of_jobs(|status| status.is_terminal() && !status.is_globally_terminal()), terminal["job_locally"]);
    }

    #[test]
    fn an_illegal_transition_names_both_states() {
        let error = JobStatus::Finished.transition_to(JobStatus::Running).expect_err("FINISHED is terminal");
        assert_eq!(error.to_string(), "RUNNING may not follow FINISHED");
    }

    proptest! {
        #[test]
        fn terminal_job_states_absorb(steps in proptest::collection::vec(0..JobStatus::ALL.len(), 0..50)) {
            let mut status = JobStatus::Initializing;
            for step in steps {
                let before = status;
                status = status.transition_to(JobStatus::ALL[step]).unwrap_or(status);
                prop_assert!(!before.is_terminal() || status == before);
            }
        }

        #[test]
        fn terminal_execution_states_absorb(steps in proptest::collection::vec(0..ExecutionState::ALL.len(), 0..50)) {
            let mut state = ExecutionState::Created;
            for step in steps {
                let before = state;
                state = state.transition_to(ExecutionState::ALL[step]).unwrap_or(state);
                prop_assert!(!before.is_terminal() || state == before);
            }
        }
    }
}
