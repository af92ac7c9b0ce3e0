//! Vertices of a job, their subtasks and attempts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use axum::{Json, extract::State};
use serde_json::{Value, json};

use super::{
    RestState,
    error::RestError,
    jobs::{self, NEVER, duration},
    request::Params,
};
use crate::{
    base::{ids::JobVertexId, status::ExecutionState},
    client::job_snapshot::{OperatorSnapshot, held_back_by},
    protocol::{
        job_details::{AttemptDetails, SubtaskDetails, VertexDetails},
        job_master::TaskMetrics,
    },
};

type Answer = Result<Json<Value>, RestError>;

/// Where a task ran that never ran.
const UNASSIGNED: &str = "(unassigned)";

pub(crate) async fn fetch(state: &RestState, params: &Params) -> Result<VertexDetails, RestError> {
    let id: JobVertexId = params.path_as("vertexid")?;
    let job = jobs::fetch(state, params).await?;
    let job_id = job.job;
    job.vertices
        .into_iter()
        .find(|vertex| vertex.id == id)
        .ok_or_else(|| RestError::not_found(format!("vertex {id} of job {job_id} not found")))
}

fn subtask<'a>(vertex: &'a VertexDetails, params: &Params) -> Result<(usize, &'a SubtaskDetails), RestError> {
    let index: usize = params.path_as("subtaskindex")?;
    let found = vertex.subtasks.get(index).map(|subtask| (index, subtask));
    found.ok_or_else(|| RestError::not_found(format!("subtask {index} of vertex {} not found", vertex.id)))
}

/// State of a vertex, from its subtasks: the first of Flink's rules that fits.
pub(crate) fn status(vertex: &VertexDetails) -> ExecutionState {
    let states = || vertex.subtasks.iter().map(|subtask| subtask.current.state);
    let any = |wanted| states().any(|state| state == wanted);
    for decisive in [
        ExecutionState::Failed,
        ExecutionState::Canceling,
        ExecutionState::Canceled,
        ExecutionState::Initializing,
        ExecutionState::Running,
    ] {
        if any(decisive) {
            return decisive;
        }
    }
    if vertex.subtasks.is_empty() || !any(ExecutionState::Finished) {
        return ExecutionState::Created;
    }
    if states().all(|state| state == ExecutionState::Finished) {
        ExecutionState::Finished
    } else {
        ExecutionState::Running
    }
}

/// When an attempt was deployed and when it ended.
fn start_and_end(attempt: &AttemptDetails) -> (i64, i64) {
    let at = |state| attempt.timestamps.get(&state).map_or(NEVER, |time| time.0);
    (at(ExecutionState::Deploying), if attempt.state.is_terminal() { at(attempt.state) } else { NEVER })
}

/// When the first of the attempts was deployed, and when the last ended if all have.
fn span<'a>(attempts: impl Iterator<Item = &'a AttemptDetails> + Clone) -> (i64, i64) {
    let start = attempts.clone().map(|attempt| start_and_end(attempt).0).filter(|start| *start != NEVER).min();
    let all_ended = attempts.clone().all(|attempt| attempt.state.is_terminal());
    let end = attempts.map(|attempt| start_and_end(attempt).1).max().filter(|_| all_ended);
    (start.unwrap_or(NEVER), end.unwrap_or(NEVER))
}

fn current(vertex: &VertexDetails) -> impl Iterator<Item = &AttemptDetails> + Clone {
    vertex.subtasks.iter().map(|subtask| &subtask.current)
}

fn count_states<'a>(attempts: impl Iterator<Item = &'a AttemptDetails>) -> BTreeMap<&'static str, u32> {
    let mut counts: BTreeMap<&str, u32> = ExecutionState::ALL.iter().map(|state| (state.name(), 0)).collect();
    for attempt in attempts {
        *counts.entry(attempt.state.name()).or_default() += 1;
    }
    counts
}

/// The numbers of Flink's I/O metrics; sums over the attempts.
fn io_metrics<'a>(attempts: impl Iterator<Item = &'a AttemptDetails>) -> Value {
    let mut sum = TaskMetrics::default();
    for attempt in attempts {
        sum.bytes_in += attempt.metrics.bytes_in;
        sum.bytes_out += attempt.metrics.bytes_out;
        sum.records_in += attempt.metrics.records_in;
        sum.records_out += attempt.metrics.records_out;
        sum.idle_ms += attempt.metrics.idle_ms;
        sum.busy_ms += attempt.metrics.busy_ms;
        sum.back_pressured_ms += attempt.metrics.back_pressured_ms;
    }
    json!({
        "read-bytes": sum.bytes_in,
        "read-bytes-complete": true,
        "write-bytes": sum.bytes_out,
        "write-bytes-complete": true,
        "read-records": sum.records_in,
        "read-records-complete": true,
        "write-records": sum.records_out,
        "write-records-complete": true,
        "accumulated-backpressured-time": sum.back_pressured_ms,
        "accumulated-idle-time": sum.idle_ms,
        "accumulated-busy-time": sum.busy_ms,
    })
}

/// The vertex as it stands in a job's details.
pub(crate) fn in_job(vertex: &VertexDetails, now: i64) -> Value {
    let (start, end) = span(current(vertex));
    json!({
        "id": vertex.id,
        "slotSharingGroupId": group_id(&vertex.slot_sharing_group),
        "name": vertex.name,
        "maxParallelism": vertex.max_parallelism,
        "parallelism": vertex.parallelism,
        "status": status(vertex),
        "start-time": start,
        "end-time": end,
        "duration": duration(start, end, now),
        "tasks": count_states(current(vertex)),
        "metrics": io_metrics(current(vertex)),
    })
}

/// Time and state of a vertex's operators.
pub(crate) fn operators(vertex: &VertexDetails) -> Value {
    json!({
        "id": vertex.id,
        "name": vertex.name,
        "held-back-by": held_back_by(vertex),
        "operators": OperatorSnapshot::of_vertex(vertex),
    })
}

/// A slot sharing group as an id: Flink's clients read 32 hexadecimal digits here.
fn group_id(name: &str) -> String {
    super::job_submit::digest(name.as_bytes()).to_string()[..32].to_owned()
}

/// How long an attempt was in each of the states that lead to and include running.
fn status_durations(attempt: &AttemptDetails, now: i64) -> BTreeMap<&'static str, i64> {
    const WAY: [ExecutionState; 5] = [
        ExecutionState::Created,
        ExecutionState::Scheduled,
        ExecutionState::Deploying,
        ExecutionState::Initializing,
        ExecutionState::Running,
    ];
    let entered = |state: ExecutionState| attempt.timestamps.get(&state).map(|time| time.0);
    let mut durations = BTreeMap::new();
    for state in WAY {
        let lasted = entered(state).map_or(NEVER, |from| {
            let left = attempt.timestamps.iter().filter(|(other, _)| **other != state).map(|(_, time)| time.0);
            let until = left.filter(|time| from <= *time && entered(state) != Some(*time)).min();
            until.unwrap_or(if attempt.state == state { now } else { from }).saturating_sub(from)
        });
        durations.insert(state.name(), lasted);
    }
    durations
}

fn place(attempt: &AttemptDetails) -> &str {
    attempt.task_executor.as_ref().map_or(UNASSIGNED, |id| id.0.as_str())
}

fn attempt_value(index: usize, attempt: &AttemptDetails, now: i64) -> Value {
    let (start, end) = start_and_end(attempt);
    json!({
        "subtask": index,
        "status": attempt.state,
        "attempt": attempt.attempt.attempt_number,
        "host": place(attempt),
        "endpoint": place(attempt),
        "start-time": start,
        "end-time": end,
        "duration": duration(start, end, now),
        "metrics": io_metrics(std::iter::once(attempt)),
        "taskmanager-id": place(attempt),
        "status-duration": status_durations(attempt, now),
        "other-concurrent-attempts": [],
        "start_time": start,
    })
}

/// Least, greatest, average and sum by name over the attempts.
fn aggregated<'a>(attempts: impl Iterator<Item = &'a AttemptDetails> + Clone, now: i64) -> Value {
    let by_metric = |name: &str| -> Vec<i64> {
        attempts.clone().filter_map(|attempt| io_metrics(std::iter::once(attempt))[name].as_i64()).collect()
    };
    let metrics: BTreeMap<&str, Value> = [
        "read-bytes",
        "write-bytes",
        "read-records",
        "write-records",
        "accumulated-backpressured-time",
        "accumulated-idle-time",
        "accumulated-busy-time",
    ]
    .into_iter()
    .map(|name| (name, summary(by_metric(name))))
    .collect();
    let mut by_state: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for attempt in attempts.clone() {
        for (state, lasted) in status_durations(attempt, now) {
            by_state.entry(state).or_default().push(lasted);
        }
    }
    let durations: BTreeMap<&str, Value> = by_state.into_iter().map(|(state, all)| (state, summary(all))).collect();
    json!({ "metrics": metrics, "status-duration": durations })
}

/// Percentiles are of the nearest rank.
fn summary(mut values: Vec<i64>) -> Value {
    values.sort_unstable();
    let sum: i64 = values.iter().sum();
    let count = i64::try_from(values.len()).unwrap_or(i64::MAX).max(1);
    let rank = |percent: usize| {
        let index = (values.len() * percent).div_ceil(100).max(1) - 1;
        values.get(index).copied().unwrap_or(0)
    };
    json!({
        "min": values.first().copied().unwrap_or(0),
        "max": values.last().copied().unwrap_or(0),
        "avg": sum / count,
        "sum": sum,
        "median": rank(50),
        "p25": rank(25),
        "p75": rank(75),
        "p95": rank(95),
    })
}

pub(crate) async fn detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let now = state.now();
    let subtasks: Vec<Value> =
        current(&vertex).enumerate().map(|(index, attempt)| attempt_value(index, attempt, now)).collect();
    Ok(Json(json!({
        "id": vertex.id,
        "name": vertex.name,
        "parallelism": vertex.parallelism,
        "maxParallelism": vertex.max_parallelism,
        "now": now,
        "subtasks": subtasks,
        "aggregated": aggregated(current(&vertex), now),
    })))
}

pub(crate) async fn subtask_times(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let now = state.now();
    let subtasks: Vec<Value> = current(&vertex)
        .enumerate()
        .map(|(index, attempt)| {
            let at = |state: &ExecutionState| attempt.timestamps.get(state).map_or(0, |time| time.0);
            let timestamps: BTreeMap<&str, i64> =
                ExecutionState::ALL.iter().map(|state| (state.name(), at(state))).collect();
            let scheduled = attempt.timestamps.get(&ExecutionState::Scheduled).map_or(NEVER, |time| time.0);
            let end = start_and_end(attempt).1;
            json!({
                "subtask": index,
                "host": place(attempt),
                "endpoint": place(attempt),
                "duration": duration(scheduled, end, now),
                "timestamps": timestamps,
            })
        })
        .collect();
    Ok(Json(json!({ "id": vertex.id, "name": vertex.name, "now": now, "subtasks": subtasks })))
}

pub(crate) async fn task_managers(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let now = state.now();
    let places: BTreeSet<&str> = current(&vertex).map(place).collect();
    let entries: Vec<Value> = places
        .into_iter()
        .map(|name| {
            let here = current(&vertex).filter(move |attempt| place(attempt) == name);
            let (start, end) = span(here.clone());
            let alone = VertexDetails {
                subtasks: vertex.subtasks.iter().filter(|subtask| place(&subtask.current) == name).cloned().collect(),
                ..vertex.clone()
            };
            json!({
                "host": name,
                "endpoint": name,
                "status": status(&alone),
                "start-time": start,
                "end-time": end,
                "duration": duration(start, end, now),
                "metrics": io_metrics(here.clone()),
                "status-counts": count_states(here.clone()),
                "taskmanager-id": name,
                "aggregated": aggregated(here, now),
            })
        })
        .collect();
    Ok(Json(json!({ "id": vertex.id, "name": vertex.name, "now": now, "taskmanagers": entries })))
}

pub(crate) async fn subtask_detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let (index, subtask) = subtask(&vertex, &params)?;
    Ok(Json(attempt_value(index, &subtask.current, state.now())))
}

fn attempt<'a>(subtask: &'a SubtaskDetails, params: &Params) -> Result<&'a AttemptDetails, RestError> {
    let number: u32 = params.path_as("attempt")?;
    std::iter::once(&subtask.current)
        .chain(&subtask.former)
        .find(|attempt| attempt.attempt.attempt_number == number)
        .ok_or_else(|| RestError::not_found(format!("attempt {number} is not known, or is kept no more")))
}

pub(crate) async fn attempt_detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let (index, subtask) = subtask(&vertex, &params)?;
    Ok(Json(attempt_value(index, attempt(subtask, &params)?, state.now())))
}

pub(crate) async fn accumulators(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    Ok(Json(json!({ "id": vertex.id, "user-accumulators": [] })))
}

pub(crate) async fn subtask_accumulators(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let subtasks: Vec<Value> = current(&vertex)
        .enumerate()
        .map(|(index, attempt)| {
            json!({
                "subtask": index,
                "attempt": attempt.attempt.attempt_number,
                "host": place(attempt),
                "endpoint": place(attempt),
                "user-accumulators": [],
            })
        })
        .collect();
    Ok(Json(json!({ "id": vertex.id, "parallelism": vertex.parallelism, "subtasks": subtasks })))
}

pub(crate) async fn attempt_accumulators(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let (index, subtask) = subtask(&vertex, &params)?;
    let attempt = attempt(subtask, &params)?;
    Ok(Json(json!({
        "subtask": index,
        "attempt": attempt.attempt.attempt_number,
        "id": attempt.attempt.to_string(),
        "user-accumulators": [],
    })))
}

/// Shares of an attempt's time so far: back-pressured, idle, busy.
pub(crate) fn shares(metrics: &TaskMetrics) -> (f64, f64, f64) {
    let total = metrics.back_pressured_ms + metrics.idle_ms + metrics.busy_ms;
    if total == 0 {
        return (0.0, 0.0, 0.0);
    }
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more than 52 bits of milliseconds")]
    let share = |part: u64| part as f64 / total as f64;
    (share(metrics.back_pressured_ms), share(metrics.idle_ms), share(metrics.busy_ms))
}

/// Flink's word for a share of back-pressured time.
pub(crate) fn back_pressure_level(ratio: f64) -> &'static str {
    if ratio <= 0.1 {
        "ok"
    } else if ratio <= 0.5 {
        "low"
    } else {
        "high"
    }
}

pub(crate) async fn back_pressure(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let mut highest: f64 = 0.0;
    let subtasks: Vec<Value> = current(&vertex)
        .enumerate()
        .map(|(index, attempt)| {
            let (ratio, idle, busy) = shares(&attempt.metrics);
            highest = highest.max(ratio);
            let level = back_pressure_level(ratio);
            json!({
                "subtask": index,
                "attempt-number": attempt.attempt.attempt_number,
                "backpressureLevel": level,
                "backpressure-level": level,
                "ratio": ratio,
                "idleRatio": idle,
                "busyRatio": busy,
                "other-concurrent-attempts": [],
            })
        })
        .collect();
    let level = back_pressure_level(highest);
    Ok(Json(json!({
        "status": "ok",
        "backpressureLevel": level,
        "backpressure-level": level,
        "end-timestamp": state.now(),
        "subtasks": subtasks,
    })))
}

pub(crate) async fn watermarks(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = fetch(&state, &params).await?;
    let watermarks: Vec<Value> = current(&vertex)
        .enumerate()
        .filter_map(|(index, attempt)| {
            let watermark = attempt.metrics.input_watermark?;
            Some(json!({ "id": format!("{index}.currentInputWatermark"), "value": watermark.to_string() }))
        })
        .collect();
    Ok(Json(Value::Array(watermarks)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rest::tests::vertex;

    #[test]
    fn a_vertex_has_the_state_of_flinks_first_rule_that_fits() {
        use ExecutionState::{
            Canceled, Canceling, Created, Deploying, Failed, Finished, Initializing, Running, Scheduled,
        };
        for (states, expected) in [
            (vec![], Created),
            (vec![Created, Scheduled], Created),
            (vec![Scheduled, Deploying], Created),
            (vec![Finished, Scheduled], Running),
            (vec![Finished, Finished], Finished),
            (vec![Finished, Running], Running),
            (vec![Running, Initializing], Initializing),
            (vec![Running, Canceled, Canceling], Canceling),
            (vec![Finished, Canceled], Canceled),
            (vec![Canceling, Failed], Failed),
        ] {
            assert_eq!(status(&vertex(&states)), expected, "{states:?}");
        }
    }

    #[test]
    fn durations_of_states_end_where_the_next_begins() {
        let mut attempt = vertex(&[ExecutionState::Running]).subtasks[0].current.clone();
        attempt.timestamps = [
            (ExecutionState::Created, 10),
            (ExecutionState::Scheduled, 12),
            (ExecutionState::Deploying, 20),
            (ExecutionState::Initializing, 21),
            (ExecutionState::Running, 30),
        ]
        .map(|(state, time)| (state, crate::base::clock::Timestamp(time)))
        .into();
        let durations = status_durations(&attempt, 100);
        let expected = [("CREATED", 2), ("SCHEDULED", 8), ("DEPLOYING", 1), ("INITIALIZING", 9), ("RUNNING", 70)];
        assert_eq!(durations, expected.into());
        attempt.timestamps.remove(&ExecutionState::Running);
        assert_eq!(status_durations(&attempt, 100)["RUNNING"], -1);
    }

    #[test]
    fn percentiles_are_of_the_nearest_rank() {
        let summary = summary(vec![4, 1, 3, 2]);
        assert_eq!(
            summary,
            json!({"min": 1, "max": 4, "avg": 2, "sum": 10, "median": 2, "p25": 1, "p75": 3, "p95": 4})
        );
    }
}
