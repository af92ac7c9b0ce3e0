//! The one table of what is served: the router and `/openapi.json` are made of it.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json, Router,
    extract::{DefaultBodyLimit, Request},
    http::{HeaderName, HeaderValue, Method, StatusCode, header},
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::{MethodFilter, MethodRouter, on},
};
use serde_json::{Value, json};

use super::{
    RestState, checkpoints, cluster, error::RestError, jars, job_submit, jobs, metrics, program, prometheus, server,
    snapshots, task_managers, vertices,
};
use crate::base::config::{MemorySize, options};

/// Bytes of a body that is no upload.
const BODY_BYTES_MAX: usize = 1 << 20;

/// What a request may carry.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Body {
    /// At most 1 MiB, usually nothing.
    Small,
    /// Files, at most `rest.server.max-content-length`.
    Upload,
}

/// Something that is served.
pub struct Route {
    /// In capital letters.
    pub method: &'static str,
    /// Parameters stand in braces.
    pub path: &'static str,
    /// Code of a good answer.
    pub success: u16,
    /// What a request may carry.
    pub body: Body,
    /// Names of query parameters.
    pub query: &'static [&'static str],
    /// One sentence.
    pub summary: &'static str,
    handler: fn() -> MethodRouter<Arc<RestState>>,
}

macro_rules! routes {
    ($($method:ident $path:literal $success:literal $body:ident [$($query:literal),*] $handler:path, $summary:literal;)*) => {
        /// Everything that is served; each path is also there under `/v1`.
        pub static ROUTES: &[Route] = &[$(Route {
            method: stringify!($method),
            path: $path,
            success: $success,
            body: Body::$body,
            query: &[$($query),*],
            summary: $summary,
            handler: || on(MethodFilter::$method, $handler),
        },)*];
    };
}

routes! {
    GET "/config" 200 Small [] cluster::config, "What a page that shows the cluster needs to know.";
    GET "/overview" 200 Small [] cluster::overview, "Numbers of TaskExecutors, slots and jobs.";
    DELETE "/cluster" 200 Small [] cluster::shutdown, "Cancels all jobs and ends the cluster.";
    GET "/jars" 200 Small [] jars::list, "Lists uploaded plugins.";
    POST "/jars/upload" 200 Upload [] jars::upload, "Uploads a plugin as the one file of a multipart body.";
    DELETE "/jars/{jarid}" 200 Small [] jars::delete, "Deletes an uploaded plugin.";
    POST "/jars/{jarid}/plan" 200 Small ["program-args", "programArg", "parallelism"] jars::plan, "Plans an uploaded plugin without running it.";
    POST "/jars/{jarid}/run" 200 Small ["program-args", "programArg", "parallelism", "savepointPath", "allowNonRestoredState"] jars::run, "Runs an uploaded plugin.";
    GET "/jobs" 200 Small [] jobs::list, "Lists ids and states of jobs.";
    POST "/jobs" 202 Upload [] job_submit::submit, "Submits a job: part `request`, a job graph, its plugin and artifacts.";
    GET "/jobs/metrics" 200 Small ["get", "agg", "jobs"] metrics::jobs_aggregated, "Metrics aggregated over jobs.";
    GET "/jobs/overview" 200 Small [] jobs::overview, "Lists jobs with times and states of their tasks.";
    GET "/jobs/{jobid}" 200 Small [] jobs::detail, "Tells about a job and its vertices.";
    PATCH "/jobs/{jobid}" 202 Small ["mode"] jobs::terminate, "Cancels a job; with the mode cancel-uncommitted only if it has completed no checkpoint.";
    GET "/jobs/{jobid}/yarn-cancel" 202 Small [] jobs::cancel_by_get, "Cancels a job, for proxies that know no PATCH.";
    GET "/jobs/{jobid}/job-graph" 200 Small [] program::job_graph, "The job graph of a running job, as it was submitted.";
    GET "/jobs/{jobid}/plugin" 200 Small [] program::plugin, "The plugin of a running job.";
    GET "/jobs/{jobid}/artifacts/{name}" 200 Small [] program::artifact, "An artifact of a running job.";
    GET "/jobs/{jobid}/plan" 200 Small [] jobs::plan, "The job graph of a job.";
    GET "/jobs/{jobid}/config" 200 Small [] jobs::config, "Settings of a job.";
    GET "/jobs/{jobid}/exceptions" 200 Small ["maxExceptions", "failureLabelFilter"] jobs::exceptions, "Failures of a job, the newest first; labels of those that made tasks restart tell until when, and the milliseconds.";
    GET "/jobs/{jobid}/execution-result" 200 Small [] jobs::execution_result, "How a job ended.";
    GET "/jobs/{jobid}/accumulators" 200 Small ["includeSerializedValue"] jobs::accumulators, "Accumulators of a job; there are none.";
    GET "/jobs/{jobid}/operators" 200 Small [] jobs::operators, "Watermarks, keyed state and timers of the operators of a job.";
    GET "/jobs/{jobid}/status" 200 Small [] jobs::status, "State of a job.";
    GET "/jobs/{jobid}/metrics" 200 Small ["get"] metrics::job, "Metrics of a job.";
    GET "/jobs/{jobid}/checkpoints" 200 Small [] checkpoints::list, "Checkpoints of a job: numbers, the latest ones, history.";
    POST "/jobs/{jobid}/checkpoints" 202 Small [] snapshots::checkpoint, "Takes a checkpoint.";
    GET "/jobs/{jobid}/checkpoints/config" 200 Small [] checkpoints::config, "Checkpoint settings of a job.";
    GET "/jobs/{jobid}/checkpoints/details/{checkpointid}" 200 Small [] checkpoints::detail, "A checkpoint with its vertices.";
    GET "/jobs/{jobid}/checkpoints/details/{checkpointid}/subtasks/{vertexid}" 200 Small [] checkpoints::subtasks, "A vertex's part of a checkpoint.";
    GET "/jobs/{jobid}/checkpoints/{triggerid}" 200 Small [] snapshots::checkpoint_status, "How far a checkpoint is that was asked for.";
    POST "/jobs/{jobid}/savepoints" 202 Small [] snapshots::savepoint, "Takes a savepoint.";
    GET "/jobs/{jobid}/savepoints/{triggerid}" 200 Small [] snapshots::savepoint_status, "How far a savepoint is that was asked for.";
    POST "/jobs/{jobid}/stop" 202 Small [] snapshots::stop, "Stops a job with a savepoint; polled as a savepoint.";
    POST "/savepoint-disposal" 200 Small [] snapshots::dispose, "Deletes a savepoint.";
    GET "/savepoint-disposal/{triggerid}" 200 Small [] snapshots::disposal_status, "How far a deletion is.";
    GET "/jobs/{jobid}/vertices/{vertexid}" 200 Small [] vertices::detail, "A vertex with its subtasks.";
    GET "/jobs/{jobid}/vertices/{vertexid}/accumulators" 200 Small [] vertices::accumulators, "Accumulators of a vertex; there are none.";
    GET "/jobs/{jobid}/vertices/{vertexid}/backpressure" 200 Small [] vertices::back_pressure, "Shares of back-pressured, idle and busy time since the start of each subtask.";
    GET "/jobs/{jobid}/vertices/{vertexid}/metrics" 200 Small ["get"] metrics::vertex, "Metrics of a vertex, each name behind the index of its subtask.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasktimes" 200 Small [] vertices::subtask_times, "When the subtasks entered their states.";
    GET "/jobs/{jobid}/vertices/{vertexid}/taskmanagers" 200 Small [] vertices::task_managers, "A vertex by TaskExecutor.";
    GET "/jobs/{jobid}/vertices/{vertexid}/watermarks" 200 Small [] vertices::watermarks, "Watermarks of the subtasks.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/accumulators" 200 Small [] vertices::subtask_accumulators, "Accumulators of the subtasks; there are none.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/metrics" 200 Small ["get", "agg", "subtasks"] metrics::subtasks, "Metrics aggregated over subtasks.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtaskindex}" 200 Small [] vertices::subtask_detail, "The current attempt of a subtask.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtaskindex}/metrics" 200 Small ["get"] metrics::subtask, "Metrics of a subtask.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtaskindex}/attempts/{attempt}" 200 Small [] vertices::attempt_detail, "An attempt of a subtask.";
    GET "/jobs/{jobid}/vertices/{vertexid}/subtasks/{subtaskindex}/attempts/{attempt}/accumulators" 200 Small [] vertices::attempt_accumulators, "Accumulators of an attempt; there are none.";
    GET "/taskmanagers" 200 Small [] task_managers::list, "Lists TaskExecutors.";
    GET "/taskmanagers/metrics" 200 Small ["get", "agg", "taskmanagers"] metrics::task_managers_aggregated, "Metrics aggregated over TaskExecutors.";
    GET "/taskmanagers/{taskmanagerid}" 200 Small [] task_managers::detail, "Tells about a TaskExecutor.";
    GET "/taskmanagers/{taskmanagerid}/metrics" 200 Small ["get"] metrics::task_manager, "Metrics of a TaskExecutor.";
    GET "/jobmanager/config" 200 Small [] cluster::job_manager_config, "Settings of the cluster.";
    GET "/jobmanager/metrics" 200 Small ["get"] metrics::job_manager, "Metrics of the cluster.";
    GET "/jobmanager/log" 200 Small ["contains"] cluster::log, "The latest log lines, as text.";
    GET "/jobmanager/logs" 200 Small [] cluster::logs, "Lists log files.";
    GET "/jobmanager/logs/{filename}" 200 Small ["contains"] cluster::log_file, "A log file, as text.";
    GET "/metrics" 200 Small [] prometheus::export, "All metrics in Prometheus' text format.";
    GET "/openapi.json" 200 Small [] openapi, "This description.";
}

/// The router over [`ROUTES`], with limits, time-outs and headers around it.
pub(crate) fn router(state: Arc<RestState>) -> Router {
    let upload_bytes_max = {
        let MemorySize(bytes) = state.services.configuration.get(&options::UPLOAD_MAX);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    };
    let mut by_path: BTreeMap<&str, MethodRouter<Arc<RestState>>> = BTreeMap::new();
    for route in ROUTES {
        let bytes_max = match route.body {
            Body::Small => BODY_BYTES_MAX,
            Body::Upload => upload_bytes_max,
        };
        let handler = (route.handler)().layer(DefaultBodyLimit::max(bytes_max));
        let merged = by_path.remove(route.path).unwrap_or_default().merge(handler);
        by_path.insert(route.path, merged);
    }
    let mut router = Router::new();
    for (path, handlers) in by_path {
        router = router.route(path, handlers.clone()).route(&format!("/v1{path}"), handlers);
    }
    router
        .fallback(not_found)
        .method_not_allowed_fallback(method_not_allowed)
        .layer(middleware::from_fn_with_state(Arc::clone(&state), server::guard))
        .layer(middleware::map_response(add_headers))
        .with_state(state)
}

async fn not_found(request: Request) -> RestError {
    RestError::not_found(format!("there is nothing at {}; /openapi.json names what is served", request.uri().path()))
}

async fn method_not_allowed(method: Method, request: Request) -> RestError {
    RestError::new(StatusCode::METHOD_NOT_ALLOWED, format!("{} does not take {method}", request.uri().path()))
}

/// Bounds the time of a request and turns plain refusals of the framework into our form.
pub(crate) async fn finish(next: Next, request: Request) -> Response {
    let response = match tokio::time::timeout(server::REQUEST_TIME_MAX, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            return RestError::new(StatusCode::REQUEST_TIMEOUT, "the request was not served in time").into_response();
        }
    };
    let is_ours = response
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let status = response.status();
    if is_ours || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let reason = status.canonical_reason().unwrap_or("refused");
    RestError::new(status, reason).into_response()
}

async fn add_headers(mut response: Response) -> Response {
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

async fn openapi() -> Json<Value> {
    Json(openapi_value())
}

/// OpenAPI 3 description of [`ROUTES`].
fn openapi_value() -> Value {
    let mut paths: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    for route in ROUTES {
        let in_path = route.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
        let mut parameters: Vec<Value> = in_path
            .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
            .collect();
        parameters.extend(
            route
                .query
                .iter()
                .map(|name| json!({ "name": name, "in": "query", "required": false, "schema": { "type": "string" } })),
        );
        let mut operation = json!({
            "summary": route.summary,
            "operationId": operation_id(route),
            "parameters": parameters,
            "responses": {
                route.success.to_string(): { "description": "As asked for." },
                "default": {
                    "description": "What went wrong.",
                    "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Errors" } } },
                },
            },
        });
        if route.body == Body::Upload {
            operation["requestBody"] = json!({
                "required": true,
                "content": { "multipart/form-data": { "schema": { "type": "object" } } },
            });
        } else if route.method == "POST" {
            operation["requestBody"] = json!({
                "required": false,
                "content": { "application/json": { "schema": { "type": "object" } } },
            });
        }
        paths.entry(route.path).or_default().insert(route.method.to_lowercase(), operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Stream engine",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Paths and fields are those of Apache Flink's REST API. Times are milliseconds since \
                            the Unix epoch, -1 where they were not reached.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/v1" }],
        "paths": paths,
        "components": {
            "schemas": {
                "Errors": {
                    "type": "object",
                    "required": ["errors"],
                    "properties": {
                        "errors": { "type": "array", "items": { "type": "string" } },
                        "code": { "type": "string", "description": "Why a plugin is refused, for scripts." },
                    },
                },
            },
        },
    })
}

/// For example "getJobsJobid".
fn operation_id(route: &Route) -> String {
    let mut id = route.method.to_lowercase();
    for word in route.path.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
        let (first, rest) = word.split_at(1);
        id.push_str(&first.to_uppercase());
        id.push_str(rest);
    }
    id
}
