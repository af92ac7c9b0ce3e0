//! Metrics by name: of the JobManager, jobs, vertices, subtasks and TaskExecutors.
//!
//! Without `get` the names are listed; with it, values (texts) or, for the
//! aggregating paths, numbers. Names that are not known are left out.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use serde_json::{Map, Value, json};

use super::{RestState, error::RestError, jobs, request::Params, task_managers, vertices};
use crate::{
    base::clock::Timestamp,
    protocol::{
        job_details::{JobDetails, TaskExecutorDetails, VertexDetails},
        job_master::TaskMetrics,
    },
};

type Answer = Result<Json<Value>, RestError>;

/// Values by name.
pub(crate) type Metrics = BTreeMap<String, f64>;

/// Jobs whose metrics are aggregated or exported at a time.
pub(crate) const JOBS_MAX: usize = 1000;

#[expect(clippy::cast_precision_loss, reason = "Flink's metrics are doubles too once they are aggregated")]
pub(crate) fn of_task(task: &TaskMetrics, operators: &[(u32, String)]) -> Metrics {
    let (back_pressured, idle, busy) = vertices::shares(task);
    let mut metrics: Metrics = [
        ("numRecordsIn", task.records_in as f64),
        ("numRecordsOut", task.records_out as f64),
        ("numBytesIn", task.bytes_in as f64),
        ("numBytesOut", task.bytes_out as f64),
        ("accumulateIdleTimeMs", task.idle_ms as f64),
        ("accumulateBackPressuredTimeMs", task.back_pressured_ms as f64),
        ("accumulateBusyTimeMs", task.busy_ms as f64),
        ("idleTimeMsPerSecond", (idle * 1000.0).round()),
        ("backPressuredTimeMsPerSecond", (back_pressured * 1000.0).round()),
        ("busyTimeMsPerSecond", (busy * 1000.0).round()),
        ("cpuTimeNs", task.cpu_ns as f64),
        ("numRejectedRows", task.rejected_rows as f64),
        ("guestMemoryBytes", task.guest_memory_bytes as f64),
        ("numLogLinesDropped", task.log_lines_dropped as f64),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect();
    if let Some(watermark) = task.input_watermark {
        metrics.insert("currentInputWatermark".to_owned(), watermark as f64);
    }
    for metric in &task.operators {
        let operator = operators.iter().find(|(node, _)| *node == metric.node);
        let operator = operator.map_or_else(|| metric.node.to_string(), |(_, name)| name.replace(' ', "_"));
        metrics.insert(format!("{operator}.{}", metric.name), metric.value);
    }
    metrics
}

/// The metrics of each subtask, by its index.
fn of_subtasks(vertex: &VertexDetails) -> Vec<Metrics> {
    vertex.subtasks.iter().map(|subtask| of_task(&subtask.current.metrics, &vertex.operators)).collect()
}

#[expect(clippy::cast_precision_loss, reason = "restarts and milliseconds stay far below 2^52")]
pub(crate) fn of_job(job: &JobDetails, now: i64) -> Metrics {
    let (start, end) = jobs::start_and_end(job);
    let shortage = job.slot_shortage.into_iter().flat_map(|shortage| {
        let available = shortage.available.map(|available| ("numSlotsAvailable", f64::from(available)));
        std::iter::once(("numSlotsAwaited", f64::from(shortage.needed))).chain(available)
    });
    [
        ("numRestarts", job.restarts as f64),
        ("fullRestarts", job.restarts as f64),
        ("uptime", jobs::duration(start, end, now) as f64),
        ("downtimeTotal", job.downtime.total_ms(Timestamp(now)) as f64),
    ]
    .into_iter()
    .chain(shortage)
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}

#[expect(clippy::cast_precision_loss, reason = "bytes of a machine's memory stay below 2^52")]
fn of_task_executor(task_executor: &TaskExecutorDetails) -> Metrics {
    [
        ("taskSlotsTotal", f64::from(task_executor.slots)),
        ("taskSlotsAvailable", f64::from(task_executor.free_slots)),
        ("Status.CPU.Cores", f64::from(task_executor.cpu_cores)),
        ("Status.Memory.Physical", task_executor.memory_bytes as f64),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// A number as Flink prints it: without a fraction where there is none.
pub(crate) fn format(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e19 { format!("{value:.0}") } else { value.to_string() }
}

/// Names, or the values asked for.
fn answer(metrics: &Metrics, params: &Params) -> Json<Value> {
    let wanted = params.query_list("get");
    let entries: Vec<Value> = if wanted.is_empty() {
        metrics.keys().map(|name| json!({ "id": name })).collect()
    } else {
        wanted
            .into_iter()
            .filter_map(|name| Some(json!({ "id": name, "value": format(*metrics.get(name)?) })))
            .collect()
    };
    Json(Value::Array(entries))
}

/// Names, or aggregates over `members` of the values asked for.
fn aggregate(members: &[Metrics], params: &Params) -> Result<Json<Value>, RestError> {
    const KINDS: [&str; 5] = ["min", "max", "sum", "avg", "skew"];
    let mut kinds = params.query_list("agg");
    if let Some(unknown) = kinds.iter().find(|kind| !KINDS.contains(kind)) {
        return Err(RestError::bad_request(format!(
            "query parameter \"agg\" is \"{unknown}\": expected {}",
            KINDS.join(", ")
        )));
    }
    if kinds.is_empty() {
        kinds = KINDS.to_vec();
    }
    let wanted = params.query_list("get");
    if wanted.is_empty() {
        let names: std::collections::BTreeSet<&String> = members.iter().flat_map(BTreeMap::keys).collect();
        return Ok(Json(names.into_iter().map(|name| json!({ "id": name })).collect()));
    }
    let entries = wanted.into_iter().filter_map(|name| {
        let values: Vec<f64> = members.iter().filter_map(|metrics| metrics.get(name).copied()).collect();
        if values.is_empty() {
            return None;
        }
        let mut entry = Map::new();
        entry.insert("id".to_owned(), json!(name));
        for kind in &kinds {
            entry.insert((*kind).to_owned(), json!(aggregated(kind, &values)));
        }
        Some(Value::Object(entry))
    });
    Ok(Json(entries.collect()))
}

#[expect(clippy::cast_precision_loss, reason = "the number of subtasks is small")]
fn aggregated(kind: &str, values: &[f64]) -> f64 {
    let sum: f64 = values.iter().sum();
    let average = sum / values.len() as f64;
    match kind {
        "min" => values.iter().copied().fold(f64::INFINITY, f64::min),
        "max" => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "sum" => sum,
        "avg" => average,
        // Flink's data skew: mean absolute deviation in percent of the average, at most 100.
        _ if average == 0.0 => 0.0,
        _ => {
            let deviation = values.iter().map(|value| (value - average).abs()).sum::<f64>() / values.len() as f64;
            (deviation / average * 100.0).min(100.0)
        }
    }
}

/// The zero-based indexes that `subtasks=1,3,5-9` chooses; all without it.
fn chosen_subtasks(count: usize, params: &Params) -> Result<Vec<usize>, RestError> {
    let ranges = params.query_list("subtasks");
    if ranges.is_empty() {
        return Ok((0..count).collect());
    }
    let mut chosen = std::collections::BTreeSet::new();
    for range in ranges {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            return Err(RestError::bad_request(format!(
                "query parameter \"subtasks\" is \"{range}\": expected a number or a range such as 5-9"
            )));
        };
        chosen.extend((first..=last.min(count.saturating_sub(1))).filter(|index| *index < count));
    }
    Ok(chosen.into_iter().collect())
}

pub(crate) async fn vertex(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = vertices::fetch(&state, &params).await?;
    let metrics: Metrics = of_subtasks(&vertex)
        .into_iter()
        .enumerate()
        .flat_map(|(index, metrics)| metrics.into_iter().map(move |(name, value)| (format!("{index}.{name}"), value)))
        .collect();
    Ok(answer(&metrics, &params))
}

pub(crate) async fn subtasks(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = vertices::fetch(&state, &params).await?;
    let all = of_subtasks(&vertex);
    let chosen: Vec<Metrics> =
        chosen_subtasks(all.len(), &params)?.into_iter().map(|index| all[index].clone()).collect();
    aggregate(&chosen, &params)
}

pub(crate) async fn subtask(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let vertex = vertices::fetch(&state, &params).await?;
    let index: usize = params.path_as("subtaskindex")?;
    let metrics = of_subtasks(&vertex);
    let metrics = metrics
        .get(index)
        .ok_or_else(|| RestError::not_found(format!("subtask {index} of vertex {} not found", vertex.id)))?;
    Ok(answer(metrics, &params))
}

pub(crate) async fn job(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = jobs::fetch(&state, &params).await?;
    Ok(answer(&of_job(&job, state.now()), &params))
}

pub(crate) async fn jobs_aggregated(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let chosen = params.query_list("jobs");
    let mut members = Vec::new();
    for overview in state.jobs().await?.into_iter().take(JOBS_MAX) {
        if chosen.is_empty() || chosen.contains(&overview.job.to_string().as_str()) {
            members.push(of_job(&state.job(overview.job).await?, state.now()));
        }
    }
    aggregate(&members, &params)
}

pub(crate) async fn task_manager(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let task_executor = task_managers::find(&state, params.path("taskmanagerid")).await?;
    Ok(answer(&of_task_executor(&task_executor), &params))
}

pub(crate) async fn task_managers_aggregated(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let chosen = params.query_list("taskmanagers");
    let members: Vec<Metrics> = state
        .task_executors()
        .await?
        .iter()
        .filter(|task_executor| chosen.is_empty() || chosen.contains(&task_executor.id.0.as_str()))
        .map(of_task_executor)
        .collect();
    aggregate(&members, &params)
}

#[expect(clippy::cast_precision_loss, reason = "jobs and TaskExecutors are few")]
pub(crate) async fn job_manager(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let jobs = state.jobs().await?;
    let task_executors = state.task_executors().await?;
    let slots = |count: fn(&TaskExecutorDetails) -> u32| f64::from(task_executors.iter().map(count).sum::<u32>());
    let metrics: Metrics = [
        ("numRunningJobs", jobs.iter().filter(|job| !job.status.is_globally_terminal()).count() as f64),
        ("numRegisteredTaskManagers", task_executors.len() as f64),
        ("taskSlotsTotal", slots(|task_executor| task_executor.slots)),
        ("taskSlotsAvailable", slots(|task_executor| task_executor.free_slots)),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    Ok(answer(&metrics, &params))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aggregates_are_flinks() {
        let values = [1.0, 3.0];
        for (kind, expected) in [("min", 1.0), ("max", 3.0), ("sum", 4.0), ("avg", 2.0), ("skew", 50.0)] {
            assert!((aggregated(kind, &values) - expected).abs() < 1e-9, "{kind}");
        }
        assert!(aggregated("skew", &[0.0, 0.0]).abs() < 1e-9);
        assert!((aggregated("skew", &[0.0, 0.0, 0.0, 100.0]) - 100.0).abs() < 1e-9);
    }

    #[test]
    #[expect(clippy::cast_precision_loss, reason = "the least integer is a power of two")]
    fn whole_numbers_print_without_a_fraction() {
        assert_eq!(format(3.0), "3");
        assert_eq!(format(0.25), "0.25");
        assert_eq!(format(i64::MIN as f64), "-9223372036854775808");
    }
}
