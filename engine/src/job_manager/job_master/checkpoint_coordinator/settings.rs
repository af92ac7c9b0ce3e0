//! What the configuration says of checkpoints.

use std::{path::Path, time::Duration};

use crate::base::{
    config::{Configuration, options},
    ids::JobId,
    status::JobStatus,
    stream_element::{CheckpointingMode, SnapshotLocation},
};

/// Longest pause, as in Flink: a year.
const PAUSE_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// What becomes of the last checkpoints when the job ends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retention {
    /// They are deleted, unless the job failed.
    NoExternalized,
    /// They are kept if the job failed.
    DeleteOnCancellation,
    /// They are kept if the job failed or was cancelled.
    RetainOnCancellation,
}

impl Retention {
    fn of(configuration: &Configuration) -> Self {
        match configuration.get(&options::CHECKPOINT_RETENTION).as_str() {
            "DELETE_ON_CANCELLATION" => Self::DeleteOnCancellation,
            "RETAIN_ON_CANCELLATION" => Self::RetainOnCancellation,
            _ => Self::NoExternalized,
        }
    }

    /// Whether checkpoints outlive a job that ended so. A suspended job is gone on with, and keeps all.
    /// Those of a failed job are always kept, unlike in Flink, which deletes them by default: the last
    /// good state must still be there to be restored once the cause is mended.
    pub fn keeps(self, status: JobStatus) -> bool {
        match (self, status) {
            (_, JobStatus::Suspended | JobStatus::Failed) => true,
            (Self::NoExternalized | Self::DeleteOnCancellation, _) => false,
            (Self::RetainOnCancellation, status) => status == JobStatus::Canceled,
        }
    }
}

/// Settings of one job.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointSettings {
    /// Time between two triggers, not less than the pause; none: none is triggered by time.
    pub interval: Option<Duration>,
    /// How barriers are waited for.
    pub mode: CheckpointingMode,
    /// From the trigger on.
    pub timeout: Duration,
    /// From the completion of one to the trigger of the next.
    pub min_pause: Duration,
    /// How many may be under way.
    pub max_concurrent: usize,
    /// How many may fail one after the other.
    pub tolerable_failures: u32,
    /// How many complete ones are kept.
    pub retained: usize,
    /// What becomes of those when the job ends.
    pub retention: Retention,
    /// Whether they go on when tasks have finished.
    pub after_tasks_finish: bool,
    /// Whether only what changed is written.
    pub is_incremental: bool,
    /// Directory of the job's checkpoints.
    pub location: SnapshotLocation,
    /// Directory of savepoints for which none is given.
    pub savepoint_directory: Option<String>,
}

impl CheckpointSettings {
    /// Reads the settings of a job whose engine keeps its state in `state_directory`.
    pub fn new(configuration: &Configuration, job: JobId, state_directory: &Path) -> Self {
        let min_pause = configuration.get(&options::CHECKPOINTING_MIN_PAUSE).min(PAUSE_MAX);
        let interval = configuration.get(&options::CHECKPOINTING_INTERVAL);
        Self {
            interval: interval.map(|interval| interval.max(min_pause)),
            mode: match configuration.get(&options::CHECKPOINTING_MODE).as_str() {
                "AT_LEAST_ONCE" => CheckpointingMode::AtLeastOnce,
                _ => CheckpointingMode::ExactlyOnce,
            },
            timeout: configuration.get(&options::CHECKPOINTING_TIMEOUT),
            min_pause,
            max_concurrent: configuration.get(&options::CHECKPOINTING_MAX_CONCURRENT) as usize,
            tolerable_failures: configuration.get(&options::CHECKPOINTING_TOLERABLE_FAILURES),
            retained: configuration.get(&options::CHECKPOINTS_RETAINED) as usize,
            retention: Retention::of(configuration),
            after_tasks_finish: configuration.get(&options::CHECKPOINTS_AFTER_TASKS_FINISH),
            is_incremental: configuration.get(&options::CHECKPOINTING_INCREMENTAL),
            location: checkpoints_location(configuration, job, state_directory),
            savepoint_directory: configuration.get(&options::SAVEPOINT_DIR),
        }
    }
}

/// Directory of a job's checkpoints.
fn checkpoints_location(configuration: &Configuration, job: JobId, state_directory: &Path) -> SnapshotLocation {
    let directory = configuration.get(&options::CHECKPOINTING_DIR);
    let directory = directory.unwrap_or_else(|| state_directory.join("checkpoints").to_string_lossy().into_owned());
    SnapshotLocation(format!("{}/{job}", directory.trim_end_matches('/')))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::config::Origin;

    fn settings(values: &[(&str, &str)]) -> CheckpointSettings {
        let mut configuration = Configuration::default();
        for (key, value) in values {
            configuration.set(&format!("execution.checkpointing.{key}"), value, Origin::Program).unwrap();
        }
        CheckpointSettings::new(&configuration, JobId::from_bytes([7; 16]), Path::new("/state"))
    }

    /// The table of Flink's `CheckpointProperties`, but for what failed under `NO_EXTERNALIZED_CHECKPOINTS`, with
    /// the last good state still restorable.
    #[test]
    fn retention_is_flinks_but_keeps_what_failed() {
        use JobStatus::{Canceled, Failed, Finished, Suspended};
        for (retention, kept) in [
            (Retention::NoExternalized, vec![Failed, Suspended]),
            (Retention::DeleteOnCancellation, vec![Failed, Suspended]),
            (Retention::RetainOnCancellation, vec![Canceled, Failed, Suspended]),
        ] {
            let keeps = [Finished, Canceled, Failed, Suspended].into_iter().filter(|status| retention.keeps(*status));
            assert_eq!(keeps.collect::<Vec<_>>(), kept, "{retention:?}");
        }
    }

    #[test]
    fn checkpoints_are_in_a_directory_of_the_job() {
        let id = "07".repeat(16);
        assert_eq!(settings(&[]).location.0, format!("/state/checkpoints/{id}"));
        assert_eq!(settings(&[("dir", "/data/")]).location.0, format!("/data/{id}"));
    }

    #[test]
    fn times_that_are_too_short_are_refused_when_they_are_read() {
        let set = |key: &str, value: &str| {
            Configuration::default().set(&format!("execution.checkpointing.{key}"), value, Origin::Dynamic)
        };
        let error = set("interval", "9 ms").unwrap_err().to_string();
        assert!(error.contains("execution.checkpointing.interval") && error.contains("from 10 ms to"), "{error}");
        assert!(set("timeout", "1 ms").is_err());
        assert_eq!(settings(&[("interval", "10 ms")]).interval, Some(Duration::from_millis(10)));
    }
}
