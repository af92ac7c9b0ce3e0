//! States of jobs and of attempts, with Flink's names.

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

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }
    };
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
    /// True for FINISHED, CANCELED and FAILED.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Finished | Self::Canceled | Self::Failed)
    }
}
