//! The cluster as a whole: overview, settings, log, shutdown.

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};

use super::{RestState, error::RestError, request::Params};
use crate::{
    base::{config::options, status::JobStatus},
    protocol::dispatcher::DispatcherRequest,
};

type Answer = Result<Json<Value>, RestError>;

/// Name of the one log file that is listed.
const LOG_NAME: &str = "engine.log";

pub(crate) async fn config(State(state): State<Arc<RestState>>) -> Answer {
    let configuration = &state.services.configuration;
    let refresh = configuration.get(&options::WEB_REFRESH).as_millis();
    Ok(Json(json!({
        "refresh-interval": u64::try_from(refresh).unwrap_or(u64::MAX),
        "timezone-name": "Coordinated Universal Time",
        "timezone-offset": 0,
        "flink-version": env!("CARGO_PKG_VERSION"),
        "flink-revision": "unknown",
        "features": {
            "web-submit": configuration.get(&options::WEB_SUBMIT),
            "web-cancel": configuration.get(&options::WEB_CANCEL),
            "web-rescale": false,
            "web-history": false,
        },
    })))
}

pub(crate) async fn overview(State(state): State<Arc<RestState>>) -> Answer {
    let jobs = state.jobs().await?;
    let task_executors = state.task_executors().await?;
    let count = |which: fn(JobStatus) -> bool| jobs.iter().filter(|job| which(job.status)).count();
    Ok(Json(json!({
        "taskmanagers": task_executors.len(),
        "taskmanagers-blocked": 0,
        "slots-total": task_executors.iter().map(|task_executor| task_executor.slots).sum::<u32>(),
        "slots-available": task_executors.iter().map(|task_executor| task_executor.free_slots).sum::<u32>(),
        "slots-free-and-blocked": 0,
        "jobs-running": count(|status| !status.is_globally_terminal()),
        "jobs-finished": count(|status| status == JobStatus::Finished),
        "jobs-cancelled": count(|status| status == JobStatus::Canceled),
        "jobs-failed": count(|status| status == JobStatus::Failed),
        "flink-version": env!("CARGO_PKG_VERSION"),
        "flink-commit": "unknown",
    })))
}

pub(crate) async fn job_manager_config(State(state): State<Arc<RestState>>) -> Answer {
    let entries: Vec<Value> =
        state.services.configuration.effective().map(|(key, value, _)| json!({ "key": key, "value": value })).collect();
    Ok(Json(Value::Array(entries)))
}

pub(crate) async fn logs(State(state): State<Arc<RestState>>) -> Answer {
    Ok(Json(json!({
        "logs": [{ "name": LOG_NAME, "size": state.services.log.size(), "mtime": state.now() }],
    })))
}

pub(crate) async fn log(State(state): State<Arc<RestState>>, params: Params) -> Response {
    let text = state.services.log.text(params.query("contains").unwrap_or_default());
    ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response()
}

pub(crate) async fn log_file(state: State<Arc<RestState>>, params: Params) -> Result<Response, RestError> {
    match params.path("filename") {
        LOG_NAME => Ok(log(state, params).await),
        other => Err(RestError::not_found(format!("there is no log \"{other}\", only \"{LOG_NAME}\""))),
    }
}

pub(crate) async fn shutdown(State(state): State<Arc<RestState>>) -> Answer {
    state.request(DispatcherRequest::Shutdown).await?;
    Ok(Json(json!({})))
}
