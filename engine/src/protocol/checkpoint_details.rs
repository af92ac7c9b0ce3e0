//! What can be known of a job's checkpoints: the JobMaster makes it, REST and the
//! command line show it. Source: Flink's `CheckpointStatsSnapshot`.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::job_master::CheckpointMetrics;
use crate::{
    base::{
        clock::Timestamp,
        ids::JobVertexId,
        stream_element::{CheckpointId, SnapshotKind},
    },
    checkpoint::StateSizes,
};

/// How far a checkpoint has come.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum CheckpointStatus {
    /// Acknowledgements are awaited, or the metadata is being stored.
    InProgress,
    /// It can be restored.
    Completed,
    /// It was given up.
    Failed,
}

/// One subtask's part of a checkpoint.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct SubtaskCheckpointDetails {
    /// When its acknowledgement came.
    pub acknowledged: Timestamp,
    /// How large its state is.
    pub sizes: StateSizes,
    /// How it went.
    pub metrics: CheckpointMetrics,
}

/// One vertex' part of a checkpoint.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct TaskCheckpointDetails {
    /// Number of subtasks.
    pub parallelism: u32,
    /// Those that have acknowledged, by index.
    pub subtasks: BTreeMap<u32, SubtaskCheckpointDetails>,
    /// Subtasks that had finished and take no part.
    pub finished: u32,
}

/// One checkpoint or savepoint.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointDetails {
    /// Its number.
    pub id: CheckpointId,
    /// How far it has come.
    pub status: CheckpointStatus,
    /// What it is for.
    pub kind: SnapshotKind,
    /// When it was triggered.
    pub triggered: Timestamp,
    /// By vertex.
    pub tasks: BTreeMap<JobVertexId, TaskCheckpointDetails>,
    /// Where it is, once it is complete.
    pub external_path: Option<String>,
    /// True if it is complete and was deleted again.
    pub is_discarded: bool,
    /// When and why it was given up.
    pub failure: Option<(Timestamp, String)>,
}

impl CheckpointDetails {
    /// Acknowledgements of all subtasks.
    pub fn acknowledgements(&self) -> impl Iterator<Item = &SubtaskCheckpointDetails> {
        self.tasks.values().flat_map(|task| task.subtasks.values())
    }

    /// Numbers over all subtasks.
    pub fn totals(&self) -> CheckpointTotals {
        CheckpointTotals::of(self.triggered, self.tasks.values())
    }
}

/// Numbers over subtasks.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointTotals {
    /// When the latest acknowledgement came.
    pub latest_acknowledgement: Option<Timestamp>,
    /// Milliseconds from the trigger to it.
    pub end_to_end_ms: u64,
    /// Bytes of state.
    pub sizes: StateSizes,
    /// Bytes that came in while barriers were awaited.
    pub processed_bytes: u64,
    /// Subtasks that take part.
    pub subtasks: u32,
    /// Those that have acknowledged.
    pub acknowledged: u32,
}

impl CheckpointTotals {
    /// Sums over some vertices.
    pub fn of<'a>(triggered: Timestamp, tasks: impl Iterator<Item = &'a TaskCheckpointDetails>) -> Self {
        let mut totals = Self::default();
        for task in tasks {
            totals.subtasks += task.parallelism - task.finished;
            for subtask in task.subtasks.values() {
                totals.acknowledged += 1;
                totals.latest_acknowledgement = totals.latest_acknowledgement.max(Some(subtask.acknowledged));
                totals.sizes.full += subtask.sizes.full;
                totals.sizes.written += subtask.sizes.written;
                totals.processed_bytes += subtask.metrics.processed_bytes;
            }
        }
        let millis = totals.latest_acknowledgement.map(|latest| latest.since(triggered).as_millis());
        totals.end_to_end_ms = millis.map_or(0, |millis| u64::try_from(millis).unwrap_or(u64::MAX));
        totals
    }
}

/// A checkpoint or savepoint that the job went on from.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct RestoredCheckpoint {
    /// Its number.
    pub id: CheckpointId,
    /// What it was for.
    pub kind: SnapshotKind,
    /// When.
    pub restored: Timestamp,
    /// Where it is.
    pub external_path: String,
}

/// How many checkpoints there were.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct CheckpointCounts {
    /// Restores.
    pub restored: u64,
    /// Checkpoints that were begun.
    pub total: u64,
    /// Those under way.
    pub in_progress: u64,
    /// Those that completed.
    pub completed: u64,
    /// Those that were given up.
    pub failed: u64,
}

/// Distribution of one number over completed checkpoints.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct StatisticsSummary {
    /// Least.
    pub min: u64,
    /// Greatest.
    pub max: u64,
    /// Mean.
    pub avg: u64,
    /// Half, nine tenths, 95, 99 and 99.9 hundredths are below; none without values.
    pub percentiles: Option<[f64; 5]>,
}

impl StatisticsSummary {
    /// Of values in any order.
    pub fn of(values: impl Iterator<Item = u64>) -> Self {
        let mut values: Vec<u64> = values.collect();
        values.sort_unstable();
        let (Some(min), Some(max)) = (values.first(), values.last()) else { return Self::default() };
        let sum: u128 = values.iter().map(|value| u128::from(*value)).sum();
        Self {
            min: *min,
            max: *max,
            avg: u64::try_from(sum / values.len() as u128).unwrap_or(u64::MAX),
            percentiles: Some([0.5, 0.9, 0.95, 0.99, 0.999].map(|share| quantile(&values, share))),
        }
    }
}

/// Between the two nearest of ascending values. Source: commons-math's `Percentile`, which Flink uses.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "positions are small"
)]
fn quantile(ascending: &[u64], share: f64) -> f64 {
    let position = share * (ascending.len() + 1) as f64;
    let below = position.floor();
    if below < 1.0 {
        return ascending[0] as f64;
    }
    let index = below as usize;
    if ascending.len() <= index {
        return ascending[ascending.len() - 1] as f64;
    }
    let (low, high) = (ascending[index - 1] as f64, ascending[index] as f64);
    low + (position - below) * (high - low)
}

/// Distributions over completed checkpoints.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CheckpointSummary {
    /// Milliseconds from trigger to the last acknowledgement.
    pub end_to_end_ms: StatisticsSummary,
    /// Bytes of state.
    pub full_bytes: StatisticsSummary,
    /// Bytes that were written.
    pub written_bytes: StatisticsSummary,
    /// Bytes that came in while barriers were awaited.
    pub processed_bytes: StatisticsSummary,
}

/// All that is known of a job's checkpoints.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct CheckpointStatistics {
    /// How many there were.
    pub counts: CheckpointCounts,
    /// Over completed ones.
    pub summary: CheckpointSummary,
    /// The last that completed and is no savepoint.
    pub latest_completed: Option<CheckpointDetails>,
    /// The last savepoint that completed.
    pub latest_savepoint: Option<CheckpointDetails>,
    /// The last that was given up.
    pub latest_failed: Option<CheckpointDetails>,
    /// What the job last went on from.
    pub latest_restored: Option<RestoredCheckpoint>,
    /// Those under way, and the last that are not; the newest first.
    pub history: Vec<CheckpointDetails>,
}

impl CheckpointStatistics {
    /// A checkpoint that is still known.
    pub fn find(&self, id: CheckpointId) -> Option<&CheckpointDetails> {
        self.known().find(|checkpoint| checkpoint.id == id)
    }

    /// Those that are still known, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = CheckpointId> {
        self.known().map(|checkpoint| checkpoint.id).collect::<BTreeSet<_>>().into_iter()
    }

    fn known(&self) -> impl Iterator<Item = &CheckpointDetails> {
        let latest = [&self.latest_completed, &self.latest_savepoint, &self.latest_failed];
        self.history.iter().chain(latest.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of commons-math 3's `DescriptiveStatistics.getPercentile`.
    #[test]
    fn percentiles_are_those_of_flink() {
        let summary = StatisticsSummary::of([5, 1, 4, 2, 3].into_iter());
        assert_eq!((summary.min, summary.max, summary.avg), (1, 5, 3));
        assert_eq!(summary.percentiles, Some([3.0, 5.0, 5.0, 5.0, 5.0]));
        let tens = StatisticsSummary::of((1..=20).map(|number| number * 10));
        let [p50, p90, ..] = tens.percentiles.expect("there are values");
        assert!((p50 - 105.0).abs() < 1e-9 && (p90 - 189.0).abs() < 1e-9, "{p50} {p90}");
        assert_eq!(StatisticsSummary::of([].into_iter()), StatisticsSummary::default());
    }
}
