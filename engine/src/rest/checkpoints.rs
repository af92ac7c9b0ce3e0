//! Checkpoints of a job: history, one of them, settings.
//!
//! Taking them is in `snapshots`. The functions that make JSON are pure.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use super::{
    RestState,
    error::RestError,
    jobs::{self, NEVER},
    request::Params,
};
use crate::{
    base::{
        clock::Timestamp,
        config::options,
        ids::JobVertexId,
        stream_element::{CheckpointId, SnapshotKind},
    },
    protocol::{
        checkpoint_details::{
            CheckpointDetails, CheckpointStatistics, CheckpointStatus, CheckpointTotals, RestoredCheckpoint,
            StatisticsSummary, SubtaskCheckpointDetails, TaskCheckpointDetails,
        },
        job_details::JobDetails,
    },
};

type Answer = Result<Json<Value>, RestError>;

fn statistics(job: &JobDetails) -> Result<&CheckpointStatistics, RestError> {
    job.checkpoints.as_deref().ok_or_else(|| {
        let key = options::CHECKPOINTING_INTERVAL.key;
        RestError::not_found(format!(
            "Checkpointing has not been enabled for job {}. Set {key} when it is submitted, for example to 10 s.",
            job.job
        ))
    })
}

pub(crate) async fn list(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = jobs::fetch(&state, &params).await?;
    Ok(Json(list_value(statistics(&job)?, state.now())))
}

fn list_value(statistics: &CheckpointStatistics, now: i64) -> Value {
    let CheckpointStatistics { counts, summary, .. } = statistics;
    let with_tasks = |checkpoint: &Option<CheckpointDetails>| checkpoint.as_ref().map(|it| detail_value(it, now));
    json!({
        "counts": {
            "restored": counts.restored,
            "total": counts.total,
            "in_progress": counts.in_progress,
            "completed": counts.completed,
            "failed": counts.failed,
        },
        "summary": {
            "checkpointed_size": summary_value(&summary.written_bytes),
            "state_size": summary_value(&summary.full_bytes),
            "end_to_end_duration": summary_value(&summary.end_to_end_ms),
            "alignment_buffered": summary_value(&StatisticsSummary::default()),
            "processed_data": summary_value(&summary.processed_bytes),
            "persisted_data": summary_value(&StatisticsSummary::default()),
        },
        "latest": {
            "completed": with_tasks(&statistics.latest_completed),
            "savepoint": with_tasks(&statistics.latest_savepoint),
            "failed": with_tasks(&statistics.latest_failed),
            "restored": statistics.latest_restored.as_ref().map(restored_value),
        },
        "history": statistics.history.iter().map(|it| history_value(it, now)).collect::<Vec<_>>(),
    })
}

fn restored_value(restored: &RestoredCheckpoint) -> Value {
    json!({
        "id": restored.id,
        "restore_timestamp": restored.restored.0,
        "is_savepoint": restored.kind.is_savepoint(),
        "external_path": restored.external_path,
    })
}

fn summary_value(summary: &StatisticsSummary) -> Value {
    let mut value = json!({ "min": summary.min, "max": summary.max, "avg": summary.avg });
    for (index, name) in ["p50", "p90", "p95", "p99", "p999"].into_iter().enumerate() {
        // Flink writes the number that is none as text.
        value[name] = summary.percentiles.map_or_else(|| json!("NaN"), |percentiles| json!(percentiles[index]));
    }
    value
}

fn status_name(status: CheckpointStatus) -> &'static str {
    match status {
        CheckpointStatus::InProgress => "IN_PROGRESS",
        CheckpointStatus::Completed => "COMPLETED",
        CheckpointStatus::Failed => "FAILED",
    }
}

/// Numbers of a checkpoint, or of a vertex' part of it.
fn totals_value(
    id: CheckpointId,
    status: CheckpointStatus,
    totals: &CheckpointTotals,
    triggered: i64,
    now: i64,
) -> Value {
    let duration = match (status, totals.latest_acknowledgement) {
        (CheckpointStatus::InProgress, _) => now.saturating_sub(triggered).max(0),
        (_, None) => NEVER,
        (_, Some(_)) => i64::try_from(totals.end_to_end_ms).unwrap_or(i64::MAX),
    };
    json!({
        "id": id,
        "status": status_name(status),
        "latest_ack_timestamp": totals.latest_acknowledgement.map_or(NEVER, |Timestamp(latest)| latest),
        "checkpointed_size": totals.sizes.written,
        "state_size": totals.sizes.full,
        "end_to_end_duration": duration,
        "alignment_buffered": 0,
        "processed_data": totals.processed_bytes,
        "persisted_data": 0,
        "num_subtasks": totals.subtasks,
        "num_acknowledged_subtasks": totals.acknowledged,
    })
}

fn checkpoint_value(checkpoint: &CheckpointDetails, now: i64) -> Value {
    let mut value = totals_value(checkpoint.id, checkpoint.status, &checkpoint.totals(), checkpoint.triggered.0, now);
    value["className"] = json!(status_name(checkpoint.status).to_lowercase());
    value["is_savepoint"] = json!(checkpoint.kind.is_savepoint());
    value["savepointFormat"] = if checkpoint.kind.is_savepoint() { json!("CANONICAL") } else { Value::Null };
    value["trigger_timestamp"] = json!(checkpoint.triggered.0);
    value["checkpoint_type"] = json!(match checkpoint.kind {
        SnapshotKind::Checkpoint => "CHECKPOINT",
        SnapshotKind::Savepoint => "SAVEPOINT",
        SnapshotKind::StopWithSavepoint(_) => "SYNC_SAVEPOINT",
    });
    value["tasks"] = json!({});
    match checkpoint.status {
        CheckpointStatus::InProgress => {}
        CheckpointStatus::Completed => {
            value["external_path"] = json!(checkpoint.external_path);
            value["discarded"] = json!(checkpoint.is_discarded);
        }
        CheckpointStatus::Failed => {
            let failure = checkpoint.failure.as_ref();
            value["failure_timestamp"] = json!(failure.map_or(NEVER, |(Timestamp(time), _)| *time));
            value["failure_message"] = json!(failure.map(|(_, message)| message));
        }
    }
    value
}

/// With a field that Flink's answers lack: the longest wait of a subtask for its barriers, in milliseconds.
fn history_value(checkpoint: &CheckpointDetails, now: i64) -> Value {
    let mut value = checkpoint_value(checkpoint, now);
    let subtasks = checkpoint.tasks.values().flat_map(|task| task.subtasks.values());
    value["alignment_duration_max"] = json!(subtasks.map(|subtask| subtask.metrics.alignment_us / 1000).max());
    value
}

/// With each vertex' part.
fn detail_value(checkpoint: &CheckpointDetails, now: i64) -> Value {
    let mut value = checkpoint_value(checkpoint, now);
    let tasks: Map<String, Value> =
        checkpoint.tasks.iter().map(|(vertex, task)| (vertex.to_string(), task_value(checkpoint, task, now))).collect();
    value["tasks"] = Value::Object(tasks);
    value
}

fn task_value(checkpoint: &CheckpointDetails, task: &TaskCheckpointDetails, now: i64) -> Value {
    let totals = CheckpointTotals::of(checkpoint.triggered, std::iter::once(task));
    let status = if checkpoint.status == CheckpointStatus::InProgress && totals.acknowledged == totals.subtasks {
        CheckpointStatus::Completed
    } else {
        checkpoint.status
    };
    totals_value(checkpoint.id, status, &totals, checkpoint.triggered.0, now)
}

fn find<'a>(job: &'a JobDetails, params: &Params) -> Result<&'a CheckpointDetails, RestError> {
    let id: CheckpointId = params.path_as("checkpointid")?;
    let statistics = statistics(job)?;
    let found = statistics.find(id);
    found.ok_or_else(|| {
        let known = statistics.ids().map(|id| id.to_string()).collect::<Vec<_>>().join(", ");
        let known = if known.is_empty() { "None is known.".to_owned() } else { format!("Known are {known}.") };
        RestError::not_found(format!("Could not find checkpoint with id {id}. {known}"))
    })
}

pub(crate) async fn detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = jobs::fetch(&state, &params).await?;
    Ok(Json(detail_value(find(&job, &params)?, state.now())))
}

pub(crate) async fn subtasks(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = jobs::fetch(&state, &params).await?;
    let checkpoint = find(&job, &params)?;
    let vertex: JobVertexId = params.path_as("vertexid")?;
    let Some(task) = checkpoint.tasks.get(&vertex) else {
        return Err(RestError::not_found(format!("There is no vertex {vertex} in checkpoint {}.", checkpoint.id)));
    };
    Ok(Json(subtasks_value(checkpoint, task, state.now())))
}

fn subtasks_value(checkpoint: &CheckpointDetails, task: &TaskCheckpointDetails, now: i64) -> Value {
    let mut value = task_value(checkpoint, task, now);
    let end_to_end = |subtask: &SubtaskCheckpointDetails| {
        u64::try_from(subtask.acknowledged.since(checkpoint.triggered).as_millis()).unwrap_or(u64::MAX)
    };
    let summary = |value: &dyn Fn(&SubtaskCheckpointDetails) -> u64| {
        summary_value(&StatisticsSummary::of(task.subtasks.values().map(value)))
    };
    value["summary"] = json!({
        "checkpointed_size": summary(&|subtask| subtask.sizes.written),
        "state_size": summary(&|subtask| subtask.sizes.full),
        "end_to_end_duration": summary(&end_to_end),
        "checkpoint_duration": {
            "sync": summary(&|subtask| subtask.metrics.sync_us / 1000),
            "async": summary(&|subtask| subtask.metrics.async_us / 1000),
        },
        "alignment": {
            "buffered": summary(&|_| 0),
            "processed": summary(&|subtask| subtask.metrics.processed_bytes),
            "persisted": summary(&|_| 0),
            "duration": summary(&|subtask| subtask.metrics.alignment_us / 1000),
        },
        "start_delay": summary(&|subtask| subtask.metrics.start_delay_us / 1000),
    });
    let subtasks = (0..task.parallelism).map(|index| match task.subtasks.get(&index) {
        None => json!({ "index": index, "status": "pending_or_failed" }),
        Some(subtask) => json!({
            "index": index,
            "status": "completed",
            "ack_timestamp": subtask.acknowledged.0,
            "end_to_end_duration": end_to_end(subtask),
            "checkpointed_size": subtask.sizes.written,
            "state_size": subtask.sizes.full,
            "checkpoint": { "sync": subtask.metrics.sync_us / 1000, "async": subtask.metrics.async_us / 1000 },
            "alignment": {
                "buffered": 0,
                "processed": subtask.metrics.processed_bytes,
                "persisted": 0,
                "duration": subtask.metrics.alignment_us / 1000,
            },
            "start_delay": subtask.metrics.start_delay_us / 1000,
            "unaligned_checkpoint": false,
            "aborted": false,
        }),
    });
    value["subtasks"] = subtasks.collect();
    value
}

pub(crate) async fn config(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = jobs::fetch(&state, &params).await?;
    statistics(&job)?;
    Ok(Json(config_value(&job)))
}

fn config_value(job: &JobDetails) -> Value {
    let configuration = &job.configuration;
    let millis = |duration: std::time::Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let retention = configuration.get(&options::CHECKPOINT_RETENTION);
    let in_memory = configuration.get(&options::STATE_BACKEND) == "hashmap";
    json!({
        "mode": configuration.get(&options::CHECKPOINTING_MODE).to_lowercase(),
        // Flink's number for "none by time".
        "interval": configuration.get(&options::CHECKPOINTING_INTERVAL).map_or(i64::MAX as u64, millis),
        "timeout": millis(configuration.get(&options::CHECKPOINTING_TIMEOUT)),
        "min_pause": millis(configuration.get(&options::CHECKPOINTING_MIN_PAUSE)),
        "max_concurrent": configuration.get(&options::CHECKPOINTING_MAX_CONCURRENT),
        "externalization": {
            "enabled": retention != "NO_EXTERNALIZED_CHECKPOINTS",
            "delete_on_cancellation": retention != "RETAIN_ON_CANCELLATION",
        },
        "state_backend": if in_memory { "HashMapStateBackend" } else { "DiskStateBackend" },
        "checkpoint_storage": "FileSystemCheckpointStorage",
        "unaligned_checkpoints": false,
        "tolerable_failed_checkpoints": configuration.get(&options::CHECKPOINTING_TOLERABLE_FAILURES),
        "aligned_checkpoint_timeout": 0,
        "checkpoints_after_tasks_finish": configuration.get(&options::CHECKPOINTS_AFTER_TASKS_FINISH),
        "state_changelog_enabled": false,
        "changelog_storage": "",
        "changelog_periodic_materialization_interval": 0,
    })
}
