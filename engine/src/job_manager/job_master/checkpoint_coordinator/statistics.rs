//! History and numbers of a job's checkpoints. Source: Flink's `CheckpointStatsTracker`.

use std::collections::{BTreeMap, VecDeque};

use crate::{
    base::{
        clock::Timestamp,
        ids::{ExecutionVertexId, JobVertexId},
        stream_element::{CheckpointId, SnapshotKind},
    },
    protocol::checkpoint_details::{
        CheckpointCounts, CheckpointDetails, CheckpointStatistics, CheckpointStatus, CheckpointSummary,
        CheckpointTotals, RestoredCheckpoint, StatisticsSummary, SubtaskCheckpointDetails, TaskCheckpointDetails,
    },
};

/// Ended checkpoints that are shown; Flink's `web.checkpoints.history`.
const HISTORY_MAX: usize = 10;
/// Completed checkpoints over which numbers are distributed.
const SUMMARY_MAX: usize = 10_000;

/// All that is told of the checkpoints.
#[derive(Clone, Debug, Default)]
pub struct StatisticsTracker {
    counts: CheckpointCounts,
    in_progress: BTreeMap<CheckpointId, CheckpointDetails>,
    /// The newest first.
    ended: VecDeque<CheckpointDetails>,
    latest_completed: Option<CheckpointDetails>,
    latest_savepoint: Option<CheckpointDetails>,
    latest_failed: Option<CheckpointDetails>,
    latest_restored: Option<RestoredCheckpoint>,
    /// Of completed ones, the oldest first.
    totals: VecDeque<CheckpointTotals>,
}

impl StatisticsTracker {
    /// A checkpoint begins; `tasks` has the parallelism and the number of finished subtasks of each vertex.
    pub fn begun(
        &mut self,
        id: CheckpointId,
        kind: SnapshotKind,
        tasks: BTreeMap<JobVertexId, TaskCheckpointDetails>,
        now: Timestamp,
    ) {
        self.counts.total += 1;
        let details = CheckpointDetails {
            id,
            status: CheckpointStatus::InProgress,
            kind,
            triggered: now,
            tasks,
            external_path: None,
            is_discarded: false,
            failure: None,
        };
        self.in_progress.insert(id, details);
    }

    /// A subtask acknowledged.
    pub fn acknowledged(&mut self, id: CheckpointId, task: ExecutionVertexId, subtask: SubtaskCheckpointDetails) {
        let details = self.in_progress.get_mut(&id);
        if let Some(vertex) = details.and_then(|details| details.tasks.get_mut(&task.vertex)) {
            vertex.subtasks.insert(task.subtask_index, subtask);
        }
    }

    /// A checkpoint is complete.
    pub fn completed(&mut self, id: CheckpointId, external_path: String) {
        let Some(mut details) = self.in_progress.remove(&id) else { return };
        self.counts.completed += 1;
        details.status = CheckpointStatus::Completed;
        details.external_path = Some(external_path);
        self.totals.push_back(details.totals());
        if SUMMARY_MAX < self.totals.len() {
            self.totals.pop_front();
        }
        let latest = if details.kind.is_savepoint() { &mut self.latest_savepoint } else { &mut self.latest_completed };
        *latest = Some(details.clone());
        self.add_to_history(details);
    }

    /// A checkpoint was given up.
    pub fn failed(&mut self, id: CheckpointId, message: String, now: Timestamp) {
        let Some(mut details) = self.in_progress.remove(&id) else { return };
        self.counts.failed += 1;
        details.status = CheckpointStatus::Failed;
        details.failure = Some((now, message));
        self.latest_failed = Some(details.clone());
        self.add_to_history(details);
    }

    /// A complete checkpoint was deleted.
    pub fn discarded(&mut self, id: CheckpointId) {
        let latest = self.latest_completed.iter_mut().filter(|details| details.id == id);
        self.ended.iter_mut().filter(|details| details.id == id).chain(latest).for_each(|details| {
            details.is_discarded = true;
        });
    }

    /// The job goes on from a checkpoint.
    pub fn restored(&mut self, restored: RestoredCheckpoint) {
        self.counts.restored += 1;
        self.latest_restored = Some(restored);
    }

    fn add_to_history(&mut self, details: CheckpointDetails) {
        self.ended.push_front(details);
        self.ended.truncate(HISTORY_MAX);
    }

    /// As it stands.
    pub fn snapshot(&self) -> CheckpointStatistics {
        let mut history: Vec<CheckpointDetails> = self.in_progress.values().chain(&self.ended).cloned().collect();
        history.sort_by_key(|details| std::cmp::Reverse(details.id));
        let summary = |value: fn(&CheckpointTotals) -> u64| StatisticsSummary::of(self.totals.iter().map(value));
        CheckpointStatistics {
            counts: CheckpointCounts { in_progress: self.in_progress.len() as u64, ..self.counts },
            summary: CheckpointSummary {
                end_to_end_ms: summary(|totals| totals.end_to_end_ms),
                full_bytes: summary(|totals| totals.sizes.full),
                written_bytes: summary(|totals| totals.sizes.written),
                processed_bytes: summary(|totals| totals.processed_bytes),
            },
            latest_completed: self.latest_completed.clone(),
            latest_savepoint: self.latest_savepoint.clone(),
            latest_failed: self.latest_failed.clone(),
            latest_restored: self.latest_restored.clone(),
            history,
        }
    }
}
