//! Takes checkpoints and savepoints, stops jobs with one, and deletes savepoints.
//!
//! Each takes its time: a request is answered by an id, under which the outcome is asked for.
//! An outcome is kept for five minutes after it was known.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use axum::{Json, extract::State, http::StatusCode};
use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    RestState,
    error::RestError,
    request::{Params, json_body},
};
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, options},
        ids::JobId,
        stream_element::{SnapshotLocation, StopMode},
    },
    checkpoint::CheckpointStorage,
    client::grants::ExplicitGrants,
    connector::canonical_destination,
    protocol::{
        dispatcher::{DispatcherError, DispatcherRequest, DispatcherResponse},
        job_master::{SnapshotRequest, TakenSnapshot},
    },
};

type Accepted = Result<(StatusCode, Json<Value>), RestError>;
type Answer = Result<Json<Value>, RestError>;

/// Time for which an outcome is kept.
const KEPT_FOR: Duration = Duration::from_secs(300);
/// Operations that are known at once; more are refused.
const OPERATIONS_MAX: usize = 10_000;
/// Digits of an id that a caller gives.
const TRIGGER_ID_DIGITS: usize = 32;

/// What an operation is about: an id of one is no id of the other.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
enum Subject {
    Checkpoint(JobId),
    /// Stopping too.
    Savepoint(JobId),
    Disposal,
}

#[derive(Debug)]
enum Operation {
    InProgress,
    /// With when it was known.
    Completed(Timestamp, Result<Option<TakenSnapshot>, String>),
}

/// Operations by subject and id.
#[derive(Debug, Default)]
pub(crate) struct Operations(Mutex<HashMap<(Subject, String), Operation>>);

impl Operations {
    fn lock(&self) -> MutexGuard<'_, HashMap<(Subject, String), Operation>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new operation; false if it is known already.
    fn begin(&self, subject: Subject, id: &str, now: Timestamp) -> Result<bool, RestError> {
        let mut operations = self.lock();
        operations.retain(|_, operation| match operation {
            Operation::InProgress => true,
            Operation::Completed(at, _) => now <= at.plus(KEPT_FOR),
        });
        let key = (subject, id.to_owned());
        if operations.contains_key(&key) {
            return Ok(false);
        }
        if OPERATIONS_MAX <= operations.len() {
            return Err(RestError::new(StatusCode::TOO_MANY_REQUESTS, "too many operations are under way; try again"));
        }
        operations.insert(key, Operation::InProgress);
        Ok(true)
    }

    fn complete(&self, subject: Subject, id: String, now: Timestamp, result: Result<Option<TakenSnapshot>, String>) {
        self.lock().insert((subject, id), Operation::Completed(now, result));
    }

    /// Flink's answer about an operation.
    fn poll(&self, subject: Subject, id: &str, now: Timestamp) -> Result<Value, RestError> {
        let operations = self.lock();
        let known = operations.get(&(subject, id.to_owned())).filter(|operation| match operation {
            Operation::InProgress => true,
            Operation::Completed(at, _) => now <= at.plus(KEPT_FOR),
        });
        let Some(operation) = known else {
            return Err(RestError::not_found(format!("There is no savepoint operation with triggerId={id}.")));
        };
        Ok(match operation {
            Operation::InProgress => json!({ "status": { "id": "IN_PROGRESS" }, "operation": null }),
            Operation::Completed(_, result) => {
                json!({ "status": { "id": "COMPLETED" }, "operation": outcome(subject, result) })
            }
        })
    }
}

fn outcome(subject: Subject, result: &Result<Option<TakenSnapshot>, String>) -> Value {
    let cause = result
        .as_ref()
        .err()
        .map(|message| json!({ "class": "java.util.concurrent.CompletionException", "stack-trace": message }));
    let taken = result.as_ref().ok().and_then(Option::as_ref);
    match subject {
        Subject::Checkpoint(_) => json!({ "checkpointId": taken.map(|it| it.checkpoint_id), "failureCause": cause }),
        Subject::Savepoint(_) => json!({ "location": taken.map(|it| &it.location), "failure-cause": cause }),
        Subject::Disposal => json!({ "failure-cause": cause }),
    }
}

/// The id that the caller gave, or a fresh one.
fn trigger_id(given: Option<String>) -> Result<String, RestError> {
    match given {
        None => Ok(format!("{:032x}", rand::random::<u128>())),
        Some(id) if id.len() == TRIGGER_ID_DIGITS && id.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            Ok(id.to_lowercase())
        }
        Some(id) => Err(RestError::bad_request(format!(
            "triggerId is \"{id}\": expected {TRIGGER_ID_DIGITS} hexadecimal digits"
        ))),
    }
}

fn accepted(id: &str) -> Accepted {
    Ok((StatusCode::ACCEPTED, Json(json!({ "request-id": id }))))
}

/// Has the Dispatcher take something, and keeps the outcome.
async fn take(
    state: &Arc<RestState>,
    subject: Subject,
    given: Option<String>,
    job: JobId,
    request: SnapshotRequest,
    then_cancel: bool,
) -> Accepted {
    let id = trigger_id(given)?;
    // 404 at once, not as an outcome.
    let details = state.job(job).await?;
    if state.operations.begin(subject, &id, Timestamp(state.now()))? {
        let (state, id) = (Arc::clone(state), id.clone());
        tokio::spawn(async move {
            let gateway = &state.services.gateway;
            let mut result = match probe_target(&state, &request, &details.configuration).await {
                Err(problem) => Err(problem),
                Ok(()) => match gateway.request(DispatcherRequest::TakeSnapshot(job, request)).await {
                    Ok(DispatcherResponse::Snapshot(taken)) => Ok(Some(taken)),
                    Ok(_) => Err("the Dispatcher answered another question; this is a bug".to_owned()),
                    Err(error) => Err(error.to_string()),
                },
            };
            if then_cancel && result.is_ok() {
                match gateway.request(DispatcherRequest::CancelJob(job)).await {
                    Ok(_) | Err(DispatcherError::AlreadyEnded(..)) => {}
                    Err(error) => result = Err(format!("the savepoint is complete, but {error}")),
                }
            }
            state.operations.complete(subject, id, Timestamp(state.now()), result);
        });
    }
    accepted(&id)
}

/// Writes into the directory of a savepoint before any task does: tasks that cannot write would fail, and those of a
/// job that stops would have ended their sources for nothing.
async fn probe_target(state: &RestState, request: &SnapshotRequest, job: &Configuration) -> Result<(), String> {
    let directory = match request {
        SnapshotRequest::Checkpoint { .. } => None,
        SnapshotRequest::Savepoint(directory) | SnapshotRequest::StopWithSavepoint(directory, _) => {
            directory.clone().or_else(|| job.get(&options::SAVEPOINT_DIR).map(SnapshotLocation))
        }
    };
    // Without one the JobMaster says what is missing.
    let Some(directory) = directory else { return Ok(()) };
    let probe = move || {
        let probed = CheckpointStorage::open(directory).and_then(|storage| storage.probe());
        probed.map_err(|error| format!("the savepoint was not taken: {:#}", anyhow::Error::from(error)))
    };
    state.blocking(probe).await.map_err(|error| error.messages.join("; "))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CheckpointBody {
    checkpoint_type: Option<String>,
    trigger_id: Option<String>,
}

pub(crate) async fn checkpoint(State(state): State<Arc<RestState>>, params: Params, body: Bytes) -> Accepted {
    let job: JobId = params.path_as("jobid")?;
    let body: CheckpointBody = json_body(&body)?;
    let is_full = match body.checkpoint_type.as_deref() {
        None | Some("CONFIGURED" | "INCREMENTAL") => false,
        Some("FULL") => true,
        Some(other) => {
            let message = format!("checkpointType is \"{other}\": expected CONFIGURED, FULL or INCREMENTAL");
            return Err(RestError::bad_request(message));
        }
    };
    let request = SnapshotRequest::Checkpoint { is_full };
    take(&state, Subject::Checkpoint(job), body.trigger_id, job, request, false).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct SavepointBody {
    target_directory: Option<String>,
    cancel_job: Option<bool>,
    #[serde(rename = "formatType")]
    format_type: Option<String>,
    #[serde(rename = "triggerId")]
    trigger_id: Option<String>,
}

pub(crate) async fn savepoint(State(state): State<Arc<RestState>>, params: Params, body: Bytes) -> Accepted {
    let job: JobId = params.path_as("jobid")?;
    let body: SavepointBody = json_body(&body)?;
    check_format(body.format_type.as_deref())?;
    let target = target(&state, body.target_directory)?;
    let then_cancel = body.cancel_job.unwrap_or(false);
    take(&state, Subject::Savepoint(job), body.trigger_id, job, SnapshotRequest::Savepoint(target), then_cancel).await
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct StopBody {
    target_directory: Option<String>,
    drain: Option<bool>,
    format_type: Option<String>,
    trigger_id: Option<String>,
}

pub(crate) async fn stop(State(state): State<Arc<RestState>>, params: Params, body: Bytes) -> Accepted {
    let job: JobId = params.path_as("jobid")?;
    let body: StopBody = json_body(&body)?;
    check_format(body.format_type.as_deref())?;
    let target = target(&state, body.target_directory)?;
    let mode = if body.drain.unwrap_or(false) { StopMode::Drain } else { StopMode::NoDrain };
    let request = SnapshotRequest::StopWithSavepoint(target, mode);
    take(&state, Subject::Savepoint(job), body.trigger_id, job, request, false).await
}

/// There is one format, which is both.
fn check_format(format: Option<&str>) -> Result<(), RestError> {
    match format {
        None | Some("CANONICAL" | "NATIVE") => Ok(()),
        Some(other) => Err(RestError::bad_request(format!("formatType is \"{other}\": expected CANONICAL or NATIVE"))),
    }
}

pub(crate) async fn checkpoint_status(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let subject = Subject::Checkpoint(params.path_as("jobid")?);
    Ok(Json(state.operations.poll(subject, params.path("triggerid"), Timestamp(state.now()))?))
}

pub(crate) async fn savepoint_status(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    let subject = Subject::Savepoint(params.path_as("jobid")?);
    Ok(Json(state.operations.poll(subject, params.path("triggerid"), Timestamp(state.now()))?))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct DisposalBody {
    savepoint_path: Option<String>,
    #[serde(rename = "triggerId")]
    trigger_id: Option<String>,
}

pub(crate) async fn dispose(State(state): State<Arc<RestState>>, body: Bytes) -> Answer {
    let body: DisposalBody = json_body(&body)?;
    let path = body.savepoint_path.filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| RestError::bad_request("the body has no field savepoint-path"))?;
    let (location, id) = SnapshotLocation::resolve(&path);
    if id.is_some() {
        let message = format!("{path} is a checkpoint, which its job deletes: only savepoints can be disposed of");
        return Err(RestError::bad_request(message));
    }
    check_writable(&state.services.configuration, &location.0).map_err(RestError::bad_request)?;
    let trigger = trigger_id(body.trigger_id)?;
    if state.operations.begin(Subject::Disposal, &trigger, Timestamp(state.now()))? {
        let (state, trigger) = (Arc::clone(&state), trigger.clone());
        tokio::spawn(async move {
            let deleted = state.blocking(move || delete_savepoint(location)).await;
            let result = deleted.map(|()| None).map_err(|error| error.messages.join("; "));
            state.operations.complete(Subject::Disposal, trigger, Timestamp(state.now()), result);
        });
    }
    Ok(Json(json!({ "request-id": trigger })))
}

fn delete_savepoint(location: SnapshotLocation) -> Result<(), String> {
    let deleted = CheckpointStorage::open(location).and_then(|storage| storage.delete_savepoint());
    deleted.map_err(|error| format!("{:#}", anyhow::Error::from(error)))
}

pub(crate) async fn disposal_status(State(state): State<Arc<RestState>>, params: Params) -> Answer {
    Ok(Json(state.operations.poll(Subject::Disposal, params.path("triggerid"), Timestamp(state.now()))?))
}

/// The directory that a request names, if the server lets savepoints be written there.
fn target(state: &RestState, directory: Option<String>) -> Result<Option<SnapshotLocation>, RestError> {
    let Some(directory) = directory.filter(|directory| !directory.is_empty()) else { return Ok(None) };
    check_writable(&state.services.configuration, &directory).map_err(RestError::bad_request)?;
    absolute(directory).map(Some).map_err(RestError::bad_request)
}

/// A relative path is one in the server's working directory; TaskManagers may have others.
fn absolute(directory: String) -> Result<SnapshotLocation, String> {
    let path = SnapshotLocation::local_path(&directory)
        .and_then(|path| std::path::absolute(path).map_err(|error| error.to_string()))
        .map_err(|problem| format!("{directory} cannot be used: {problem}"))?;
    Ok(SnapshotLocation(path.to_string_lossy().into_owned()))
}

/// Checks that the owner of the server lets clients write checkpoints and savepoints there.
///
/// # Errors
/// Says in one line that not, and what would.
pub(crate) fn check_writable(server: &Configuration, path: &str) -> Result<(), String> {
    let mut roots = ExplicitGrants::from_configuration(server).write;
    roots.extend(server.get(&options::SAVEPOINT_DIR));
    roots.extend(server.get(&options::CHECKPOINTING_DIR));
    if is_below(path, &roots) {
        return Ok(());
    }
    Err(format!(
        "checkpoints and savepoints may not be written to {path} here: choose a directory below one that the server \
         was started with as --allow-write or execution.checkpointing.savepoint-dir"
    ))
}

/// Checks that the owner of the server lets clients read checkpoints and savepoints there.
///
/// # Errors
/// Says in one line that not, and what would.
pub(crate) fn check_readable(server: &Configuration, path: &str) -> Result<(), String> {
    let grants = ExplicitGrants::from_configuration(server);
    let mut roots = [grants.read, grants.write].concat();
    roots.extend(server.get(&options::SAVEPOINT_DIR));
    roots.extend(server.get(&options::CHECKPOINTING_DIR));
    roots.extend(server.get(&options::STORAGE_DIR).map(|directory| format!("{directory}/checkpoints")));
    if is_below(path, &roots) {
        return Ok(());
    }
    Err(format!(
        "the job may not start from {path} here: choose a checkpoint or savepoint below a directory that the server \
         was started with as --allow-read or execution.checkpointing.savepoint-dir"
    ))
}

fn is_below(path: &str, roots: &[String]) -> bool {
    // The very path that is opened; URLs of other kinds are not opened at all.
    let canonical = |text: &str| {
        let path = SnapshotLocation::local_path(text).ok()?;
        canonical_destination(Path::new(&path)).ok()
    };
    let Some(path) = canonical(path) else { return false };
    roots.iter().any(|root| canonical(root).is_some_and(|root| path.starts_with(root)))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::base::config::Origin;

    #[test]
    fn a_relative_target_is_in_the_servers_working_directory() {
        let here = std::env::current_dir().expect("there is one").join("points");
        assert_eq!(absolute("points".to_owned()).map(|it| PathBuf::from(it.0)), Ok(here));
        for (given, path) in [("/points", "/points"), ("file:///my%20points", "/my points")] {
            assert_eq!(absolute(given.to_owned()).map(|it| it.0), Ok(path.to_owned()));
        }
        assert!(absolute("s3://bucket/points".to_owned()).is_err());
    }

    #[test]
    fn clients_write_only_where_the_owner_lets_them() {
        let root = tempfile::tempdir().expect("a directory");
        let root = root.path().to_str().expect("UTF-8");
        let mut server = Configuration::default();
        server.set("sandbox.allow-write", &format!("{root}/out"), Origin::File).expect("valid");
        server.set("execution.checkpointing.savepoint-dir", "s3://bucket/points", Origin::File).expect("valid");
        for good in [format!("{root}/out"), format!("file://{root}/out/a/b"), format!("file://{root}/%6fut/a%20b")] {
            assert_eq!(check_writable(&server, &good), Ok(()));
        }
        for bad in [
            root.to_owned(),
            format!("{root}/out/../in"),
            format!("file://{root}/out/%2e%2e/in"),
            format!("{root}/%6fut"),
            "s3://bucket/points/x".to_owned(),
            format!("{root}/output"),
            "/etc".to_owned(),
            "s3://bucket/pointsx".to_owned(),
            "s3://bucket/points/../x".to_owned(),
            "s3://other/points".to_owned(),
        ] {
            assert!(check_writable(&server, &bad).is_err(), "{bad}");
        }
        assert!(check_readable(&server, &format!("{root}/out/savepoint-1")).is_ok());
        assert!(check_readable(&server, "/etc/passwd").is_err());
    }

    #[test]
    fn outcomes_are_kept_for_five_minutes() {
        let operations = Operations::default();
        let subject = Subject::Disposal;
        let id = trigger_id(None).expect("drawn");
        assert_eq!(operations.begin(subject, &id, Timestamp(0)), Ok(true));
        assert_eq!(operations.begin(subject, &id, Timestamp(0)), Ok(false), "asked again");
        let poll = |now| operations.poll(subject, &id, Timestamp(now));
        assert_eq!(poll(1).expect("known")["status"]["id"], "IN_PROGRESS");
        operations.complete(subject, id.clone(), Timestamp(1000), Err("it is not there".to_owned()));
        assert_eq!(poll(301_000).expect("known")["operation"]["failure-cause"]["stack-trace"], "it is not there");
        assert_eq!(poll(301_001).expect_err("gone").status, StatusCode::NOT_FOUND);
        assert!(operations.poll(Subject::Savepoint(JobId::random()), &id, Timestamp(2)).is_err());
        assert!(trigger_id(Some("x".to_owned())).is_err());
    }
}
