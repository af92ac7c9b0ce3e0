//! Jobs: lists, details, plan, settings, failures, result; and cancelling.
//!
//! The functions that make JSON are pure; handlers only fetch what they need.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode},
};
use serde_json::{Map, Value, json};

use super::{RestState, error::RestError, request::Params, vertices};
use crate::{
    base::{
        clock::Timestamp,
        config::options,
        ids::JobId,
        status::{ExecutionState, JobStatus},
    },
    protocol::{
        dispatcher::{DispatcherError, DispatcherRequest},
        job_details::{FailureEntry, JobDetails, JobOverview, Restart},
        job_master::FailureCause,
    },
};

type Answer = Result<Json<Value>, RestError>;

/// "Not reached", for times.
pub(crate) const NEVER: i64 = -1;

pub(crate) async fn fetch(state: &RestState, params: &Params) -> Result<JobDetails, RestError> {
    let job: JobId = params.path_as("jobid")?;
    state.job(job).await
}

pub(crate) async fn list(State(state): State<Arc<RestState>>) -> Answer {
    let jobs: Vec<Value> =
        state.jobs().await?.iter().map(|job| json!({ "id": job.job, "status": job.status })).collect();
    Ok(Json(json!({ "jobs": jobs })))
}

pub(crate) async fn overview(State(state): State<Arc<RestState>>) -> Answer {
    let now = state.now();
    let jobs: Vec<Value> = state.jobs().await?.iter().map(|job| overview_entry(job, now)).collect();
    Ok(Json(json!({ "jobs": jobs })))
}

fn overview_entry(job: &JobOverview, now: i64) -> Value {
    let mut tasks: Map<String, Value> = ExecutionState::ALL
        .iter()
        .map(|state| (state.name().to_lowercase(), json!(job.tasks.get(state).copied().unwrap_or(0))))
        .collect();
    tasks.insert("total".to_owned(), json!(job.tasks.values().sum::<u32>()));
    let end = job.ended.map_or(NEVER, |ended| ended.0);
    json!({
        "jid": job.job,
        "name": job.name,
        "state": job.status,
        "start-time": job.started.0,
        "end-time": end,
        "duration": duration(job.started.0, end, now),
        "last-modification": job.last_modified.0,
        "tasks": tasks,
        // Flink 2's clients do not read a list without these.
        "jobType": "STREAMING",
        "schedulerType": "Default",
        "pending-operators": 0,
    })
}

/// From start to end, or to now while there is no end; -1 before the start.
pub(crate) fn duration(start: i64, end: i64, now: i64) -> i64 {
    match (start, end) {
        (NEVER, _) => NEVER,
        (start, NEVER) => now.saturating_sub(start).max(0),
        (start, end) => end.saturating_sub(start).max(0),
    }
}

pub(crate) async fn detail(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    Ok(Json(detail_value(&fetch(&state, &params).await?, state.now())))
}

/// When the job was submitted and when it ended.
pub(crate) fn start_and_end(job: &JobDetails) -> (i64, i64) {
    let at = |status| job.timestamps.get(&status).map_or(NEVER, |time: &Timestamp| time.0);
    let start = match at(JobStatus::Initializing) {
        NEVER => at(JobStatus::Created),
        start => start,
    };
    (start, if job.status.is_globally_terminal() { at(job.status) } else { NEVER })
}

fn detail_value(job: &JobDetails, now: i64) -> Value {
    let (start, end) = start_and_end(job);
    let timestamps: BTreeMap<&str, i64> = JobStatus::ALL
        .iter()
        .map(|status| (status.name(), job.timestamps.get(status).map_or(0, |time| time.0)))
        .collect();
    let mut status_counts: BTreeMap<&str, u32> = ExecutionState::ALL.iter().map(|state| (state.name(), 0)).collect();
    for vertex in &job.vertices {
        *status_counts.entry(vertices::status(vertex).name()).or_default() += 1;
    }
    let job_vertices: Vec<Value> = job.vertices.iter().map(|vertex| vertices::in_job(vertex, now)).collect();
    json!({
        "jid": job.job,
        "name": job.name,
        "isStoppable": false,
        "state": job.status,
        "job-type": "STREAMING",
        "schedulerType": "Default",
        "pending-operators": 0,
        "start-time": start,
        "end-time": end,
        "duration": duration(start, end, now),
        "maxParallelism": job.configuration.get(&options::MAX_PARALLELISM).map_or(-1, i64::from),
        "now": now,
        "timestamps": timestamps,
        "vertices": job_vertices,
        "status-counts": status_counts,
        "plan": plan_value(&job.json_plan),
    })
}

/// The stored plan; a text that is no JSON is shown as text.
pub(crate) fn plan_value(json_plan: &str) -> Value {
    serde_json::from_str(json_plan).unwrap_or_else(|_| Value::String(json_plan.to_owned()))
}

pub(crate) async fn plan(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    Ok(Json(json!({ "plan": plan_value(&fetch(&state, &params).await?.json_plan) })))
}

pub(crate) async fn status(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    Ok(Json(json!({ "status": fetch(&state, &params).await?.status })))
}

pub(crate) async fn config(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = fetch(&state, &params).await?;
    let settings: BTreeMap<&str, &str> = job.configuration.iter().map(|(key, value, _)| (key, value)).collect();
    Ok(Json(json!({
        "jid": job.job,
        "name": job.name,
        "execution-config": {
            "execution-mode": "PIPELINED",
            "restart-strategy": job.restart_strategy,
            "job-parallelism": job.configuration.get(&options::PARALLELISM),
            "object-reuse-mode": false,
            "user-config": settings,
        },
    })))
}

/// Failures that are told unless the request says otherwise.
const EXCEPTIONS_DEFAULT: usize = 20;

pub(crate) async fn exceptions(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let most = params.query_as::<usize>("maxExceptions")?.unwrap_or(EXCEPTIONS_DEFAULT);
    let mut labels = Vec::new();
    for filter in params.query_list("failureLabelFilter") {
        let label = filter.split_once(':').ok_or_else(|| {
            RestError::bad_request(format!("query parameter \"failureLabelFilter\": \"{filter}\" is not key:value"))
        })?;
        labels.push(label);
    }
    Ok(Json(exceptions_value(&fetch(&state, &params).await?, most, &labels, state.now())))
}

/// Message and detail of a failure, as Flink's stack trace.
pub(crate) fn stack_trace(cause: &FailureCause) -> String {
    match cause.detail.as_str() {
        "" => cause.message.clone(),
        detail => format!("{}\n{detail}", cause.message),
    }
}

fn exceptions_value(job: &JobDetails, most: usize, labels: &[(&str, &str)], now: i64) -> Value {
    let (_, end) = start_and_end(job);
    let now = if end == NEVER { now } else { end };
    // The one label that failures have in common is their code.
    let wanted =
        |failure: &&FailureEntry| labels.iter().all(|(key, value)| *key == "code" && *value == failure.cause.code);
    let matching: Vec<&FailureEntry> = job.failures.iter().filter(wanted).collect();
    let shown = &matching[..most.min(matching.len())];
    let truncated = shown.len() < matching.len();
    let place = |failure: &FailureEntry| failure.task_executor.as_ref().map(|id| id.0.clone());
    let task = |failure: &FailureEntry| failure.task_name.clone();
    let entries: Vec<Value> = shown
        .iter()
        .map(|failure| {
            json!({
                "exceptionName": failure.cause.code,
                "stacktrace": stack_trace(&failure.cause),
                "timestamp": failure.time.0,
                "failureLabels": labels_value(failure, now),
                "taskName": task(failure),
                "location": place(failure),
                "endpoint": place(failure),
                "taskManagerId": place(failure),
                "concurrentExceptions": [],
            })
        })
        .collect();
    let all: Vec<Value> = shown
        .iter()
        .map(|failure| {
            json!({
                "exception": stack_trace(&failure.cause),
                "task": task(failure),
                "location": place(failure),
                "endpoint": place(failure),
                "taskManagerId": place(failure),
                "timestamp": failure.time.0,
            })
        })
        .collect();
    json!({
        "root-exception": job.root_failure.as_ref().map(|failure| stack_trace(&failure.cause)),
        "timestamp": job.root_failure.as_ref().map(|failure| failure.time.0),
        "all-exceptions": all,
        "truncated": truncated,
        "exceptionHistory": { "entries": entries, "truncated": truncated },
    })
}

/// What is known of a failure beside Flink's fields. If tasks restarted because of it: milliseconds until all tasks
/// ran again, or so far, and when they did.
fn labels_value(failure: &FailureEntry, now: i64) -> Value {
    let mut labels = json!({ "code": failure.cause.code });
    if let Some(downtime) = failure.downtime_ms(Timestamp(now)) {
        labels["downtime-ms"] = json!(downtime.to_string());
    }
    if let Restart::Recovered(recovered) = failure.restart {
        labels["recovered-timestamp"] = json!(recovered.0.to_string());
    }
    labels
}

pub(crate) async fn execution_result(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    Ok(Json(execution_result_value(&fetch(&state, &params).await?)))
}

fn execution_result_value(job: &JobDetails) -> Value {
    let application_status = match job.status {
        JobStatus::Finished => "SUCCEEDED",
        JobStatus::Failed => "FAILED",
        JobStatus::Canceled => "CANCELED",
        JobStatus::Initializing
        | JobStatus::Created
        | JobStatus::Running
        | JobStatus::Failing
        | JobStatus::Canceling
        | JobStatus::Restarting
        | JobStatus::Suspended
        | JobStatus::Reconciling => return json!({ "status": { "id": "IN_PROGRESS" } }),
    };
    let (start, end) = start_and_end(job);
    let mut result = json!({
        "id": job.job,
        "application-status": application_status,
        "accumulator-results": {},
        "net-runtime": duration(start, end, end),
    });
    if let (JobStatus::Failed, Some(failure)) = (job.status, &job.root_failure) {
        result["failure-cause"] = json!({ "class": failure.cause.code, "stack-trace": stack_trace(&failure.cause) });
    }
    json!({ "status": { "id": "COMPLETED" }, "job-execution-result": result })
}

pub(crate) async fn accumulators(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    if let Some(value) = params.query("includeSerializedValue")
        && value.parse::<bool>().is_err()
    {
        return Err(RestError::bad_request(format!(
            "\"includeSerializedValue\" is \"{value}\": expected true or false"
        )));
    }
    fetch(&state, &params).await?;
    Ok(Json(json!({
        "job-accumulators": [],
        "user-task-accumulators": [],
        "serialized-user-task-accumulators": {},
    })))
}

/// Not one of Flink's.
pub(crate) async fn operators(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let job = fetch(&state, &params).await?;
    Ok(Json(json!({ "vertices": job.vertices.iter().map(vertices::operators).collect::<Vec<_>>() })))
}

pub(crate) async fn terminate(
    State(state): State<Arc<RestState>>,
    params: Params,
) -> Result<(StatusCode, Json<Value>), RestError> {
    match params.query("mode").unwrap_or("cancel") {
        "cancel" => cancel(&state, &params, DispatcherRequest::CancelJob).await,
        // Not one of Flink's.
        "cancel-uncommitted" => cancel(&state, &params, DispatcherRequest::CancelUncommitted).await,
        "stop" => Err(RestError::new(
            StatusCode::PERMANENT_REDIRECT,
            "The termination mode \"stop\" has been removed. For an ungraceful shutdown, please use \"cancel\" \
             instead. For a graceful shutdown, please use \"jobs/:jobId/stop\" instead.",
        )),
        other => Err(RestError::bad_request(format!("query parameter \"mode\" is \"{other}\": expected \"cancel\""))),
    }
}

/// Cancels by GET, for which a page of another site need not say where it is from: what a browser says of it decides.
pub(crate) async fn cancel_by_get(
    State(state): State<Arc<RestState>>,
    headers: HeaderMap,
    params: Params,
) -> Result<(StatusCode, Json<Value>), RestError> {
    // Clients that are no browsers do not send it; "none" is an address that was typed in.
    let site = headers.get("sec-fetch-site").map(HeaderValue::as_bytes);
    if site.is_some_and(|site| site != b"same-origin" && site != b"none") {
        return Err(RestError::new(
            StatusCode::FORBIDDEN,
            "pages of other sites cancel no jobs: use PATCH /jobs/:jobid?mode=cancel",
        ));
    }
    cancel(&state, &params, DispatcherRequest::CancelJob).await
}

async fn cancel(
    state: &RestState,
    params: &Params,
    request: fn(JobId) -> DispatcherRequest,
) -> Result<(StatusCode, Json<Value>), RestError> {
    if !state.services.configuration.get(&options::WEB_CANCEL) {
        return Err(RestError::new(
            StatusCode::FORBIDDEN,
            "this server cancels no jobs (its web.cancel.enable is false)",
        ));
    }
    let job: JobId = params.path_as("jobid")?;
    let accepted = (StatusCode::ACCEPTED, Json(json!({})));
    match state.services.gateway.request(request(job)).await {
        Ok(_) | Err(DispatcherError::AlreadyEnded(_, JobStatus::Canceled)) => Ok(accepted),
        Err(error) => Err(error.into()),
    }
}
