//! Who may set an option: a program, whoever submits it to a cluster, or only the cluster's owner.
//!
//! Both lists name every key, so that a new option is the owner's until someone decides otherwise.

use super::config::options;

/// The weakest party that may set an option; those after it may, too.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum Scope {
    /// The program itself, which is not trusted: nothing that names a path, says what the job goes on from, or how
    /// much of the machine it gets.
    Program,
    /// Whoever submits the job.
    Submitter,
    /// The owner of the process: of the cluster, or of an `engine submit` that runs the job itself.
    Owner,
}

/// What a program may set.
const PROGRAM: &[&str] = &[
    options::PARALLELISM.key,
    options::MAX_PARALLELISM.key,
    options::JOB_NAME.key,
    options::OPERATOR_CHAINING.key,
    options::CHAIN_DIFFERENT_MAX_PARALLELISM.key,
    options::AUTO_GENERATE_UIDS.key,
    options::AUTO_WATERMARK_INTERVAL.key,
    options::BUFFER_TIMEOUT_ENABLED.key,
    options::BUFFER_TIMEOUT.key,
    options::ROW_ERROR_POLICY.key,
    options::CHECKPOINTING_INTERVAL.key,
    options::CHECKPOINTING_MODE.key,
    options::CHECKPOINTING_TIMEOUT.key,
    options::CHECKPOINTING_MIN_PAUSE.key,
    options::CHECKPOINTING_MAX_CONCURRENT.key,
    options::CHECKPOINTING_TOLERABLE_FAILURES.key,
    options::CHECKPOINT_RETENTION.key,
    options::CHECKPOINTS_AFTER_TASKS_FINISH.key,
    options::CHECKPOINTING_INCREMENTAL.key,
    options::RESTART_STRATEGY.key,
    options::FIXED_DELAY_ATTEMPTS.key,
    options::FIXED_DELAY_DELAY.key,
    options::FAILURE_RATE_MAX.key,
    options::FAILURE_RATE_INTERVAL.key,
    options::FAILURE_RATE_DELAY.key,
    options::EXPONENTIAL_INITIAL.key,
    options::EXPONENTIAL_MAX.key,
    options::EXPONENTIAL_MULTIPLIER.key,
    options::EXPONENTIAL_RESET.key,
    options::EXPONENTIAL_JITTER.key,
    options::EXPONENTIAL_ATTEMPTS.key,
];

/// What a submitter may set beyond that. Paths among them are checked against what the owner grants.
const SUBMITTER: &[&str] = &[
    options::ROW_ERROR_DEAD_LETTER_DIR.key,
    options::CHECKPOINTS_RETAINED.key,
    options::CHECKPOINTING_DIR.key,
    options::SAVEPOINT_DIR.key,
    options::DATA_INLINE_THRESHOLD.key,
    options::RECOVERY_PATH.key,
    options::RECOVERY_IGNORE_UNCLAIMED.key,
    options::STATE_BACKEND.key,
    // Lies in the plugin's memory, which is the owner's to limit.
    options::STATE_CACHE_BYTES.key,
    options::FAILOVER_STRATEGY.key,
];

impl Scope {
    /// The scope of a key; the owner's if it is not known.
    pub fn of(key: &str) -> Self {
        match key {
            key if PROGRAM.contains(&key) => Self::Program,
            key if SUBMITTER.contains(&key) => Self::Submitter,
            _ => Self::Owner,
        }
    }

    /// Its name in the reference.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Submitter => "submitter",
            Self::Owner => "owner",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nothing that names a place, sizes a resource or concerns the process is a program's.
    #[test]
    fn programs_set_neither_paths_nor_sizes() {
        for option in options::ALL {
            let scope = Scope::of(option.key);
            let names_place = ["dir", "path", "address", "allow-"].iter().any(|part| option.key.contains(part));
            let is_size = option.expected().starts_with("a size");
            assert!(scope != Scope::Program || !names_place && !is_size, "{}", option.key);
            let of_process =
                ["sandbox.", "plugin.", "taskmanager.", "heartbeat.", "web.", "rest.", "cluster.", "slot."];
            if of_process.iter().any(|prefix| option.key.starts_with(prefix)) || option.key.ends_with("-max") {
                assert_eq!(scope, Scope::Owner, "{}", option.key);
            }
        }
        assert_eq!(Scope::of("execution.checkpointing.interval"), Scope::Program);
        assert_eq!(Scope::of("execution.checkpointing.dir"), Scope::Submitter);
    }
}
