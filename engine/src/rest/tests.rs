//! The endpoint over real sockets, before a Dispatcher that answers from a script.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::{
    Blobs, PlanRequest, ProgramError, Programs, RestServices, job_submit,
    log_buffer::LogBuffer,
    server::{ConnectionLimits, RestServer},
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::{Configuration, Origin},
        ids::{
            BlobDigest, ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, GraphDigest, JobId, JobVertexId,
            ResourceId,
        },
        status::{ExecutionState, JobStatus},
        stream_element::{SnapshotKind, SnapshotLocation, StopMode},
    },
    checkpoint::StateSizes,
    graph::{
        job_graph::{Artifact, Grants, JobGraph, ProgramSpec},
        job_graph_codec,
        job_graph_generator::{JobSpec, generate},
        stream_graph::{ChainingStrategy, ConnectorSpec, Operator, Partitioner, StreamEdge, StreamGraph, StreamNode},
    },
    protocol::{
        checkpoint_details::{
            CheckpointCounts, CheckpointDetails, CheckpointStatistics, CheckpointStatus, CheckpointSummary,
            RestoredCheckpoint, StatisticsSummary, SubtaskCheckpointDetails, TaskCheckpointDetails,
        },
        dispatcher::{DispatcherError, DispatcherRequest, DispatcherResponse},
        job_details::{
            AttemptDetails, Downtime, FailureEntry, JobDetails, JobOverview, Restart, SlotShortage, SubtaskDetails,
            TaskExecutorDetails, VertexDetails,
        },
        job_master::{
            CheckpointMetrics, FailureCause, HoldingSubtask, OperatorMetric, Recoverability, SnapshotRequest,
            TakenSnapshot, TaskMetrics,
        },
        rpc::{ClientCall, DispatcherGateway},
    },
};

pub(crate) const RUNNING: JobId = JobId::from_bytes([1; 16]);
pub(crate) const FAILED: JobId = JobId::from_bytes([2; 16]);
pub(crate) const FINISHED: JobId = JobId::from_bytes([3; 16]);
/// Its submission is not answered.
const UNANSWERED: JobId = JobId::from_bytes([4; 16]);
const VERTEX: JobVertexId = JobVertexId::from_bytes([7; 16]);
const NOW: i64 = 100_000;

/// A vertex whose subtasks are in the given states.
pub(crate) fn vertex(states: &[ExecutionState]) -> VertexDetails {
    let subtasks = states
        .iter()
        .enumerate()
        .map(|(index, state)| {
            let index = u32::try_from(index).expect("few subtasks");
            let former = attempt(index, 0, ExecutionState::Failed);
            SubtaskDetails { current: attempt(index, 1, *state), former: vec![former] }
        })
        .collect();
    VertexDetails {
        id: VERTEX,
        name: "Source: file -> Flat Map".to_owned(),
        parallelism: u32::try_from(states.len()).expect("few subtasks"),
        max_parallelism: 128,
        slot_sharing_group: "default".to_owned(),
        operators: vec![(1, "Source: file".to_owned()), (2, "Flat Map".to_owned())],
        subtasks,
    }
}

fn attempt(subtask_index: u32, attempt_number: u32, state: ExecutionState) -> AttemptDetails {
    let order = [
        ExecutionState::Created,
        ExecutionState::Scheduled,
        ExecutionState::Deploying,
        ExecutionState::Initializing,
        ExecutionState::Running,
    ];
    let mut timestamps: BTreeMap<ExecutionState, Timestamp> =
        order.into_iter().zip([10, 20, 30, 40, 50]).map(|(state, time)| (state, Timestamp(time))).collect();
    if state.is_terminal() {
        timestamps.insert(state, Timestamp(90));
    }
    AttemptDetails {
        attempt: ExecutionAttemptId {
            graph: ExecutionGraphId::from_bytes([9; 16]),
            execution_vertex: ExecutionVertexId { vertex: VERTEX, subtask_index },
            attempt_number,
        },
        state,
        timestamps,
        task_executor: Some(ResourceId("te-1".to_owned())),
        metrics: TaskMetrics {
            records_in: 100 * u64::from(subtask_index + 1),
            records_out: 200,
            bytes_in: 1000,
            bytes_out: 2000,
            rejected_rows: u64::from(subtask_index + 1),
            log_lines_dropped: 5,
            idle_ms: 25,
            busy_ms: 50,
            back_pressured_ms: 25,
            cpu_ns: 40_000_000,
            input_watermark: Some(i64::MIN),
            held_back_by: Some(HoldingSubtask {
                vertex: "Source".to_owned(),
                subtask_index,
                watermark: Some(4000 - i64::from(subtask_index)),
            }),
            operators: [
                ("words", 7.0),
                ("currentInputWatermark", 5000.0 * f64::from(subtask_index + 1)),
                ("stateBytes", 100.0),
                ("numStateEntries", 10.0),
                ("numEventTimeTimers", 2.0),
                ("numProcessingTimeTimers", 1.0),
                ("stateCacheHits", 9.0),
                ("stateCacheMisses", 1.0),
                ("stateCacheBytes", 50.0),
                ("stateCacheEntries", 4.0),
                ("numLateRecordsDropped", 3.0),
            ]
            .map(|(name, value)| OperatorMetric { node: 2, name: name.to_owned(), value })
            .into(),
            ..TaskMetrics::default()
        },
        failure: None,
    }
}

pub(crate) fn job(id: JobId, status: JobStatus) -> JobDetails {
    let failure = FailureEntry {
        time: Timestamp(80),
        cause: FailureCause {
            code: "guest-panic".to_owned(),
            message: "\"Flat Map\" (1/2) panicked: <b>no</b>".to_owned(),
            detail: "at lib.rs:3".to_owned(),
            recoverability: Recoverability::Recoverable,
        },
        task_name: Some("Source: file -> Flat Map (1/2)".to_owned()),
        task_executor: Some(ResourceId("te-1".to_owned())),
        restart: Restart::Recovered(Timestamp(330)),
    };
    let state = match status {
        JobStatus::Finished => ExecutionState::Finished,
        JobStatus::Failed => ExecutionState::Failed,
        _ => ExecutionState::Running,
    };
    let failed = status == JobStatus::Failed;
    JobDetails {
        job: id,
        name: "<script>alert(1)</script>".to_owned(),
        status,
        timestamps: [(JobStatus::Initializing, 1000), (JobStatus::Created, 1001), (status, 2000)]
            .map(|(status, time)| (status, Timestamp(time)))
            .into(),
        vertices: vec![vertex(&[state, state])],
        json_plan: json!({"jid": id, "name": "words", "type": "STREAMING", "nodes": []}).to_string(),
        configuration: Configuration::default(),
        restart_strategy: "none".to_owned(),
        restarts: 2,
        downtime: Downtime { past_ms: 400, since: None },
        slot_shortage: (status == JobStatus::Running).then_some(SlotShortage { needed: 4, available: Some(1) }),
        root_failure: failed.then(|| failure.clone()),
        failures: if failed {
            vec![FailureEntry { restart: Restart::None, ..failure.clone() }, failure]
        } else {
            Vec::new()
        },
        checkpoints: failed.then(|| Box::new(checkpoints())),
        stopped_with: None,
    }
}

/// One checkpoint that completed, one savepoint that failed, and what the job started from.
fn checkpoints() -> CheckpointStatistics {
    let subtask = |acknowledged| SubtaskCheckpointDetails {
        acknowledged: Timestamp(acknowledged),
        sizes: StateSizes { full: 1000, written: 10 },
        metrics: CheckpointMetrics {
            sync_us: 3000,
            async_us: 5000,
            processed_bytes: 7,
            ..CheckpointMetrics::default()
        },
    };
    let subtasks = BTreeMap::from([(0, subtask(5100)), (1, subtask(5300))]);
    let completed = CheckpointDetails {
        id: 4,
        status: CheckpointStatus::Completed,
        kind: SnapshotKind::Checkpoint,
        triggered: Timestamp(5000),
        tasks: BTreeMap::from([(VERTEX, TaskCheckpointDetails { parallelism: 2, subtasks, finished: 0 })]),
        external_path: Some("/c/chk-4".to_owned()),
        is_discarded: false,
        failure: None,
    };
    let failed = CheckpointDetails {
        id: 5,
        status: CheckpointStatus::Failed,
        kind: SnapshotKind::Savepoint,
        tasks: BTreeMap::from([(VERTEX, TaskCheckpointDetails { parallelism: 2, ..Default::default() })]),
        external_path: None,
        failure: Some((Timestamp(6000), "a task was ending".to_owned())),
        ..completed.clone()
    };
    CheckpointStatistics {
        counts: CheckpointCounts { restored: 1, total: 2, in_progress: 0, completed: 1, failed: 1 },
        summary: CheckpointSummary { full_bytes: StatisticsSummary::of([2000].into_iter()), ..Default::default() },
        latest_completed: Some(completed.clone()),
        latest_savepoint: None,
        latest_failed: Some(failed.clone()),
        latest_restored: Some(RestoredCheckpoint {
            id: 3,
            kind: SnapshotKind::Savepoint,
            restored: Timestamp(1500),
            external_path: "/s/savepoint-1".to_owned(),
        }),
        history: vec![failed, completed],
    }
}

fn overview(details: &JobDetails) -> JobOverview {
    JobOverview {
        job: details.job,
        name: details.name.clone(),
        status: details.status,
        started: Timestamp(1000),
        ended: details.status.is_globally_terminal().then_some(Timestamp(2000)),
        last_modified: Timestamp(2000),
        tasks: [(ExecutionState::Running, 2)].into(),
    }
}

/// Answers as a Dispatcher with three jobs would, and remembers what it was asked.
async fn dispatcher(mut calls: mpsc::Receiver<ClientCall>, asked: Arc<Mutex<Vec<DispatcherRequest>>>) {
    let mut unanswered = Vec::new();
    let jobs = [job(RUNNING, JobStatus::Running), job(FAILED, JobStatus::Failed), job(FINISHED, JobStatus::Finished)];
    while let Some(ClientCall { request, reply }) = calls.recv().await {
        let find = |id: &JobId| jobs.iter().find(|job| job.job == *id);
        let unknown = |id: &JobId| DispatcherResponse::Refused(DispatcherError::UnknownJob(*id));
        let answer = match &request {
            DispatcherRequest::SubmitJob(job_graph) if job_graph.job_id == RUNNING => {
                DispatcherResponse::Refused(DispatcherError::DuplicateJob(RUNNING))
            }
            DispatcherRequest::SubmitJob(job_graph) if job_graph.job_id == UNANSWERED => {
                unanswered.push(reply);
                continue;
            }
            DispatcherRequest::SubmitJob(_) | DispatcherRequest::Shutdown => DispatcherResponse::Acknowledged,
            DispatcherRequest::CancelJob(id) | DispatcherRequest::CancelUncommitted(id) => {
                match find(id).map(|job| job.status) {
                    None => unknown(id),
                    Some(status) if status.is_globally_terminal() => {
                        DispatcherResponse::Refused(DispatcherError::AlreadyEnded(*id, status))
                    }
                    Some(_) => DispatcherResponse::Acknowledged,
                }
            }
            DispatcherRequest::TakeSnapshot(_, SnapshotRequest::Savepoint(Some(location))) => {
                DispatcherResponse::Snapshot(TakenSnapshot { checkpoint_id: 7, location: location.clone() })
            }
            DispatcherRequest::TakeSnapshot(_, SnapshotRequest::Checkpoint { .. }) => {
                let location = SnapshotLocation("/checkpoints/chk-8".to_owned());
                DispatcherResponse::Snapshot(TakenSnapshot { checkpoint_id: 8, location })
            }
            DispatcherRequest::TakeSnapshot(..) => {
                DispatcherResponse::Refused(DispatcherError::SnapshotFailed("a task was ending".to_owned()))
            }
            DispatcherRequest::JobGraph(id) => unknown(id),
            DispatcherRequest::ListJobs => DispatcherResponse::Jobs(jobs.iter().map(overview).collect()),
            DispatcherRequest::JobDetails(id) | DispatcherRequest::AwaitTermination(id) => {
                find(id).map_or_else(|| unknown(id), |job| DispatcherResponse::Details(job.clone()))
            }
            DispatcherRequest::ListTaskExecutors => DispatcherResponse::TaskExecutors(vec![TaskExecutorDetails {
                id: ResourceId("te-1".to_owned()),
                slots: 4,
                free_slots: 2,
                allocated: vec![RUNNING, RUNNING],
                last_heartbeat: Timestamp(NOW - 5),
                cpu_cores: 2,
                memory_bytes: 1 << 30,
            }]),
        };
        asked.lock().expect("no panic in a test").push(request);
        reply.send(answer).expect("the caller waits");
    }
}

/// A running endpoint, and what stands behind it.
pub(crate) struct Fixture {
    pub(crate) address: SocketAddr,
    pub(crate) asked: Arc<Mutex<Vec<DispatcherRequest>>>,
    blobs: Arc<Mutex<BTreeMap<BlobDigest, usize>>>,
    admitted: Arc<AtomicUsize>,
    dir: tempfile::TempDir,
    // Dropped last: it carries the endpoint and the Dispatcher.
    _runtime: tokio::runtime::Runtime,
    _server: RestServer,
}

/// Counts how often each blob was put without being discarded.
struct CountedBlobs(Arc<Mutex<BTreeMap<BlobDigest, usize>>>);

impl Blobs for CountedBlobs {
    fn get(&self, digest: BlobDigest) -> Result<Vec<u8>, String> {
        Err(format!("there is no blob {digest}"))
    }

    fn put(&self, bytes: &[u8]) -> Result<BlobDigest, String> {
        let digest = job_submit::digest(bytes);
        *self.0.lock().expect("no panic").entry(digest).or_default() += 1;
        Ok(digest)
    }

    fn discard(&self, digest: BlobDigest) -> Result<(), String> {
        *self.0.lock().expect("no panic").get_mut(&digest).expect("was put") -= 1;
        Ok(())
    }
}

/// Admits what begins as WebAssembly does and plans two vertices.
struct ScriptedPrograms(Arc<AtomicUsize>);

impl Programs for ScriptedPrograms {
    fn admit(&self, plugin: &[u8], name: &str) -> Result<(), ProgramError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        if plugin.starts_with(b"\0asm") {
            return Ok(());
        }
        Err(ProgramError {
            code: Some("not-a-component".to_owned()),
            message: format!("{name} is not a WebAssembly file"),
        })
    }

    fn describe(&self, plugin: &[u8], name: &str) -> Result<String, ProgramError> {
        self.admit(plugin, name).map(|()| "counts words".to_owned())
    }

    fn plan(&self, request: PlanRequest) -> Result<JobGraph, ProgramError> {
        let mut job_graph = configured_job_graph(request.job, &request.plugin, &request.configuration);
        job_graph.program.args = request.args;
        if job_graph.program.args == ["--fail"] {
            let message = "the program refused its arguments: unknown option --fail".to_owned();
            return Err(ProgramError { code: Some("user-error".to_owned()), message });
        }
        Ok(job_graph)
    }
}

impl Fixture {
    pub(crate) fn start(settings: &[(&str, &str)]) -> Self {
        Self::start_with(settings, ConnectionLimits { connections: 64, header_time: Duration::from_secs(60) })
    }

    fn start_with(settings: &[(&str, &str)], limits: ConnectionLimits) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.expect("a runtime");
        let dir = tempfile::tempdir().expect("a directory");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (sender, calls) = mpsc::channel(8);
        runtime.spawn(dispatcher(calls, Arc::clone(&asked)));
        let mut configuration = Configuration::default();
        configuration.set("rest.port", "0", Origin::File).expect("valid");
        for (key, value) in settings {
            configuration.set(key, value, Origin::File).expect("valid");
        }
        let kept = Arc::new(Mutex::new(BTreeMap::new()));
        let admitted = Arc::new(AtomicUsize::new(0));
        let services = RestServices {
            gateway: DispatcherGateway::new(sender),
            blobs: Arc::new(CountedBlobs(Arc::clone(&kept))),
            programs: Arc::new(ScriptedPrograms(Arc::clone(&admitted))),
            configuration,
            jars_dir: dir.path().join("jars"),
            clock: Clock::new_virtual(Timestamp(NOW)),
            log: Arc::new(LogBuffer::default()),
        };
        services.log.append("job a started\njob b started");
        let server = runtime.block_on(RestServer::start_with(services, limits)).expect("started");
        Self { address: server.address(), asked, blobs: kept, admitted, dir, _runtime: runtime, _server: server }
    }

    /// Sends a request and returns status, head and body.
    fn send(&self, method: &str, path: &str, content_type: &str, body: &[u8]) -> (u16, String, String) {
        let mut stream = TcpStream::connect(self.address).expect("listening");
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\
             Connection: close\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("sent");
        // A server that refuses a body early closes the connection while it is being sent.
        let sent = stream.write_all(body);
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        assert!(!answer.is_empty(), "no answer: {sent:?} {read:?}");
        let answer = String::from_utf8(answer).expect("text");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).expect("a status").parse().expect("a number");
        (status, head.to_lowercase(), body.to_owned())
    }

    fn json(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let (status, head, body) = self.send(method, path, "application/json", body.as_bytes());
        assert!(head.contains("content-type: application/json"), "{path}: {head}");
        (status, serde_json::from_str(&body).expect("JSON"))
    }

    fn get(&self, path: &str) -> (u16, Value) {
        self.json("GET", path, "")
    }

    #[track_caller]
    fn check_refused(&self, method: &str, path: &str, status: u16, message: &str) {
        let (actual, body) = self.json(method, path, "");
        assert_eq!(actual, status, "{method} {path}: {body}");
        let messages = body["errors"].as_array().expect("errors");
        assert!(messages[0].as_str().expect("text").contains(message), "{method} {path}: {body}");
    }

    pub(crate) fn submitted(&self) -> Vec<JobId> {
        let asked = self.asked.lock().expect("no panic");
        asked
            .iter()
            .filter_map(|request| match request {
                DispatcherRequest::SubmitJob(job_graph) => Some(job_graph.job_id),
                _ => None,
            })
            .collect()
    }

    /// True if no upload is held and no file was left.
    fn is_clean(&self) -> bool {
        let files = std::fs::read_dir(self.dir.path().join("jars")).expect("there").count();
        files == 0 && self.blobs.lock().expect("no panic").values().all(|count| *count == 0)
    }

    fn multipart(&self, path: &str, parts: &[(&str, Option<&str>, &[u8])]) -> (u16, Value) {
        let (content_type, body) = multipart(parts);
        let (status, _, body) = self.send("POST", path, &content_type, &body);
        (status, serde_json::from_str(&body).expect("JSON"))
    }
}

fn multipart(parts: &[(&str, Option<&str>, &[u8])]) -> (String, Vec<u8>) {
    let mut body = Vec::new();
    for (name, file_name, content) in parts {
        body.extend(format!("--limit\r\nContent-Disposition: form-data; name=\"{name}\"").bytes());
        if let Some(file_name) = file_name {
            body.extend(format!("; filename=\"{file_name}\"").bytes());
        }
        body.extend(b"\r\n\r\n");
        body.extend(*content);
        body.extend(b"\r\n");
    }
    body.extend(b"--limit--\r\n");
    ("multipart/form-data; boundary=limit".to_owned(), body)
}

pub(crate) const PLUGIN: &[u8] = b"\0asm plugin";

fn node(id: u32, operator: Operator) -> StreamNode {
    StreamNode {
        id,
        name: format!("node {id}"),
        operator,
        uid: None,
        uid_hash: None,
        parallelism: None,
        max_parallelism: None,
        slot_sharing_group: None,
        co_location_group: None,
        chaining: ChainingStrategy::Always,
        buffer_timeout: None,
        input_types: Vec::new(),
        output_type: None,
        key_type: None,
        states: Vec::new(),
        generates_watermarks: false,
    }
}

/// Two vertices, a native source and a guest operator, with an edge between them.
pub(crate) fn job_graph(job_id: JobId, plugin: &[u8]) -> JobGraph {
    configured_job_graph(job_id, plugin, &Configuration::default())
}

fn configured_job_graph(job_id: JobId, plugin: &[u8], configuration: &Configuration) -> JobGraph {
    let lines = ConnectorSpec { name: "nexmark".to_owned(), options: BTreeMap::new() };
    let mut source = node(1, Operator::Source(lines));
    source.output_type = Some("string".to_owned());
    let mut map = node(2, Operator::Guest("Map".to_owned()));
    map.input_types = vec!["string".to_owned()];
    map.chaining = ChainingStrategy::Never;
    let edge = StreamEdge {
        source: 1,
        target: 2,
        input: 0,
        partitioner: Some(Partitioner::Rebalance),
        side_output: None,
        selector: None,
        record_type: "string".to_owned(),
    };
    let stream_graph = StreamGraph { nodes: vec![source, map], edges: vec![edge], ..StreamGraph::default() };
    let spec = JobSpec {
        job_id,
        default_name: "words".to_owned(),
        program: ProgramSpec {
            plugin: job_submit::digest(plugin),
            plugin_name: "words.wasm".to_owned(),
            args: Vec::new(),
            graph_digest: GraphDigest::from_bytes([0; 32]),
        },
        grants: Grants::default(),
        artifacts: Vec::new(),
    };
    generate(&stream_graph, configuration, spec).expect("a sound graph")
}

fn request_part(artifacts: &[(&str, &str)]) -> Vec<u8> {
    let artifacts: Vec<Value> =
        artifacts.iter().map(|(entry, file)| json!({"entryName": entry, "fileName": file})).collect();
    json!({
        "jobGraphFileName": "graph.bin",
        "jobJarFileNames": ["words.wasm"],
        "jobArtifactFileNames": artifacts,
        "aFieldOfALaterVersion": 1,
    })
    .to_string()
    .into_bytes()
}

/// Where an answer differs from the shape of Flink's.
fn differences(place: &str, value: &Value, shape: &Value, found: &mut Vec<String>) {
    let mut expect = |fits: bool| {
        if !fits {
            found.push(format!("{place}: {value} is not {shape}"));
        }
    };
    match shape {
        Value::String(kind) => match kind.as_str() {
            "any" => {}
            // Flink leaves such fields null as well.
            "string" => expect(value.is_string() || value.is_null()),
            "integer" => expect(value.is_i64() || value.is_u64() || value.is_null()),
            "number" => expect(value.is_number()),
            "boolean" => expect(value.is_boolean()),
            "object" => expect(value.is_object()),
            words => expect(value.as_str().is_some_and(|word| words.split('|').any(|known| known == word))),
        },
        Value::Array(shapes) => match value {
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    differences(&format!("{place}[{index}]"), value, &shapes[0], found);
                }
            }
            _ => expect(false),
        },
        Value::Object(shapes) => {
            let Value::Object(values) = value else { return expect(false) };
            if let Some(shape) = shapes.get("<key>") {
                for (key, value) in values {
                    differences(&format!("{place}.{key}"), value, shape, found);
                }
                return;
            }
            for (key, shape) in shapes {
                match values.get(key) {
                    Some(value) => differences(&format!("{place}.{key}"), value, shape, found),
                    None => found.push(format!("{place}.{key} is missing")),
                }
            }
            // The vectors are of Flink 1.20; these came with Flink 2.
            let later = ["jobType", "schedulerType", "pending-operators"];
            let values = values.iter().filter(|(key, _)| !later.contains(&key.as_str()));
            found.extend(
                values
                    .map(|(key, _)| key)
                    .filter(|key| !shapes.contains_key(*key))
                    .map(|key| format!("{place}.{key} is new")),
            );
        }
        _ => expect(false),
    }
}

#[test]
fn answers_have_the_fields_of_flinks() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../tests-data/flink_rest_endpoints.json")).expect("JSON");
    let fixture = Fixture::start(&[]);
    let (_, uploaded) = fixture.multipart("/jars/upload", &[("jarfile", Some("words.wasm"), PLUGIN)]);
    let jar = uploaded["filename"].as_str().expect("a name").to_owned();
    let mut compared = Vec::new();
    for endpoint in vectors["endpoints"].as_array().expect("a list") {
        let (method, path) = (endpoint["method"].as_str().expect("text"), endpoint["path"].as_str().expect("text"));
        let is_ours = |ours: &&super::routes::Route| {
            ours.method == method && ours.path.replace('{', ":").replace('}', "") == path
        };
        let Some(route) = super::routes::ROUTES.iter().find(is_ours) else { continue };
        // Those with a body of several parts, without an answer, or about checkpoints have tests of their own.
        if ["/checkpoints", "/savepoint", "/stop"].iter().any(|part| path.contains(part))
            || matches!((method, path), ("POST", "/jobs" | "/jars/upload") | ("DELETE", "/jars/:jarid"))
        {
            continue;
        }
        for job in [RUNNING, FAILED, FINISHED] {
            if method == "PATCH" && job != RUNNING {
                continue;
            }
            let path = path
                .replace(":jobid", &job.to_string())
                .replace(":vertexid", &VERTEX.to_string())
                .replace(":subtaskindex", "1")
                .replace(":attempt", "0")
                .replace(":taskmanagerid", "te-1")
                .replace(":jarid", &jar);
            for prefix in ["", "/v1"] {
                let (status, answer) = fixture.json(method, &format!("{prefix}{path}"), "");
                assert_eq!(Some(u64::from(status)), endpoint["success_code"].as_u64(), "{path}: {answer}");
                assert_eq!(status, route.success, "{path}");
                let mut found = Vec::new();
                differences(&path, &answer, &endpoint["response"], &mut found);
                // The result stands only in the answer for a job that ended.
                found
                    .retain(|difference| !(job == RUNNING && difference.ends_with(".job-execution-result is missing")));
                assert_eq!(found, Vec::<String>::new());
            }
        }
        compared.push(path);
    }
    assert!(compared.len() >= 36, "only {} paths were compared: {compared:?}", compared.len());
}

#[test]
fn checkpoints_are_told_with_flinks_fields() {
    let vectors: Value =
        serde_json::from_str(include_str!("../../tests-data/flink_rest_endpoints.json")).expect("JSON");
    let fixture = Fixture::start(&[]);
    let mut compared = 0;
    for endpoint in vectors["endpoints"].as_array().expect("a list") {
        let path = endpoint["path"].as_str().expect("text");
        if endpoint["method"] != "GET" || !path.contains("/checkpoints") || path.contains(":triggerid") {
            continue;
        }
        let path = path
            .replace(":jobid", &FAILED.to_string())
            .replace(":checkpointid", "4")
            .replace(":vertexid", &VERTEX.to_string());
        let (status, answer) = fixture.get(&path);
        assert_eq!(status, 200, "{path}: {answer}");
        let mut found = Vec::new();
        differences(&path, &answer, &endpoint["response"], &mut found);
        // The kind of an entry decides over its fields; the vectors are of Flink 1.20, without that field.
        let is_expected = |difference: &String| {
            let difference = difference.strip_prefix(&path).expect("the path comes first");
            difference.ends_with("className is new")
                || difference.starts_with(".history")
                || difference.starts_with(".latest")
                || (difference.starts_with(".subtasks[") && difference.ends_with(" is new"))
                || (path.ends_with("/4") && (difference.contains("external_path") || difference.contains("discarded")))
                // Flink has numbers or "NaN".
                || difference.contains(".summary.")
        };
        found.retain(|difference| !is_expected(difference));
        assert_eq!(found, Vec::<String>::new());
        compared += 1;
    }
    assert_eq!(compared, 4);
    let (_, answer) = fixture.get(&format!("/jobs/{FAILED}/checkpoints"));
    let ids: Vec<_> = answer["history"].as_array().expect("a list").iter().map(|it| it["id"].as_u64()).collect();
    assert_eq!(ids, [Some(5), Some(4)]);
    let completed = &answer["latest"]["completed"];
    assert_eq!((&completed["end_to_end_duration"], &completed["state_size"]), (&json!(300), &json!(2000)));
    assert_eq!((&completed["checkpointed_size"], &completed["processed_data"]), (&json!(20), &json!(14)));
    assert_eq!((&completed["className"], &completed["external_path"]), (&json!("completed"), &json!("/c/chk-4")));
    assert_eq!(completed["tasks"][VERTEX.to_string()]["num_acknowledged_subtasks"], 2);
    let failed = &answer["latest"]["failed"];
    assert_eq!(
        (&failed["failure_message"], &failed["checkpoint_type"]),
        (&json!("a task was ending"), &json!("SAVEPOINT"))
    );
    assert_eq!(answer["latest"]["restored"]["external_path"], "/s/savepoint-1");
    assert_eq!(
        (&answer["summary"]["state_size"]["p50"], &answer["summary"]["end_to_end_duration"]["p99"]),
        (&json!(2000.0), &json!("NaN"))
    );
    let (_, answer) = fixture.get(&format!("/jobs/{FAILED}/checkpoints/details/4/subtasks/{VERTEX}"));
    assert_eq!(answer["subtasks"][1]["checkpoint"], json!({ "sync": 3, "async": 5 }));
    assert_eq!(answer["subtasks"][1]["end_to_end_duration"], 300);
    let (status, answer) = fixture.get(&format!("/jobs/{FAILED}/checkpoints/details/9"));
    assert_eq!(
        (status, answer["errors"][0].as_str()),
        (404, Some("Could not find checkpoint with id 9. Known are 4, 5."))
    );
}

/// Asks until the operation is complete, and returns what came of it.
fn polled(fixture: &Fixture, path: &str) -> Value {
    for _ in 0..500 {
        let (status, answer) = fixture.get(path);
        assert_eq!(status, 200, "{path}: {answer}");
        if answer["status"]["id"] == "COMPLETED" {
            return answer["operation"].clone();
        }
        assert_eq!(answer["status"]["id"], "IN_PROGRESS");
        crate::client::rest_client::wait(Duration::from_millis(10));
    }
    panic!("{path} does not complete");
}

#[test]
fn savepoints_are_taken_where_the_owner_lets_them_be() {
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path().to_str().expect("UTF-8");
    let fixture = Fixture::start(&[("sandbox.allow-write", root)]);
    let job = format!("/jobs/{RUNNING}");
    let body = json!({ "target-directory": format!("{root}/points"), "cancel-job": true, "formatType": "CANONICAL" });
    let (status, answer) = fixture.json("POST", &format!("{job}/savepoints"), &body.to_string());
    assert_eq!(status, 202, "{answer}");
    let id = answer["request-id"].as_str().expect("an id").to_owned();
    let operation = polled(&fixture, &format!("{job}/savepoints/{id}"));
    assert_eq!(operation, json!({ "location": format!("{root}/points"), "failure-cause": null }));
    let asked = fixture.asked.lock().expect("no panic").clone();
    assert!(matches!(asked.as_slice(), [.., DispatcherRequest::CancelJob(RUNNING)]), "{asked:?}");

    let trigger = "AB".repeat(16);
    let body = json!({ "targetDirectory": root, "drain": true, "triggerId": trigger }).to_string();
    let stop = || fixture.json("POST", &format!("{job}/stop"), &body);
    assert_eq!((stop(), stop()), ((202, json!({ "request-id": "ab".repeat(16) })), stop()), "asked again, it is one");
    let operation = polled(&fixture, &format!("{job}/savepoints/{}", "ab".repeat(16)));
    assert_eq!(operation["failure-cause"]["stack-trace"], "a task was ending");
    let wanted = SnapshotRequest::StopWithSavepoint(Some(SnapshotLocation(root.to_owned())), StopMode::Drain);
    let asked = fixture.asked.lock().expect("no panic").clone();
    let stops = asked.iter().filter(|request| **request == DispatcherRequest::TakeSnapshot(RUNNING, wanted.clone()));
    assert_eq!(stops.count(), 1);

    let (status, answer) = fixture.json("POST", &format!("{job}/checkpoints"), r#"{"checkpointType":"FULL"}"#);
    assert_eq!(status, 202, "{answer}");
    let id = answer["request-id"].as_str().expect("an id").to_owned();
    assert_eq!(polled(&fixture, &format!("{job}/checkpoints/{id}"))["checkpointId"], 8);

    for (path, body, status, message) in [
        (format!("{job}/savepoints"), json!({ "target-directory": "/etc" }), 400, "may not be written to /etc here"),
        (format!("{job}/savepoints"), json!({ "formatType": "AVRO" }), 400, "\"AVRO\""),
        (format!("{job}/stop"), json!({ "targetDirectory": format!("{root}/../x") }), 400, "may not be written"),
        (format!("{job}/checkpoints"), json!({ "checkpointType": "HALF" }), 400, "\"HALF\""),
        (format!("/jobs/{}/stop", "f".repeat(32)), json!({}), 404, "there is no job"),
        ("/savepoint-disposal".to_owned(), json!({}), 400, "savepoint-path"),
        ("/savepoint-disposal".to_owned(), json!({ "savepoint-path": "/var/lib" }), 400, "may not be written"),
        (
            "/savepoint-disposal".to_owned(),
            json!({ "savepoint-path": format!("{root}/chk-3") }),
            400,
            "is a checkpoint",
        ),
    ] {
        let (answered, answer) = fixture.json("POST", &path, &body.to_string());
        assert_eq!(answered, status, "{path}: {answer}");
        assert!(answer["errors"][0].as_str().is_some_and(|error| error.contains(message)), "{path}: {answer}");
    }
    let (status, _) = fixture.get(&format!("{job}/savepoints/{}", "0".repeat(32)));
    assert_eq!(status, 404);
}

#[test]
fn a_job_is_told_with_its_numbers() {
    let fixture = Fixture::start(&[]);
    let (_, answer) = fixture.get(&format!("/jobs/{RUNNING}"));
    assert_eq!(answer["start-time"], 1000);
    assert_eq!(answer["end-time"], -1);
    assert_eq!(answer["duration"], NOW - 1000);
    assert_eq!(answer["timestamps"]["RUNNING"], 2000);
    assert_eq!(answer["status-counts"]["RUNNING"], 1);
    let vertex = &answer["vertices"][0];
    assert_eq!(vertex["status"], "RUNNING");
    assert_eq!(vertex["tasks"]["RUNNING"], 2);
    assert_eq!(vertex["metrics"]["read-records"], 300);
    assert_eq!(vertex["start-time"], 30);
    let (_, answer) = fixture.get(&format!("/jobs/{FINISHED}/execution-result"));
    assert_eq!(answer["job-execution-result"]["application-status"], "SUCCEEDED");
    assert_eq!(answer["job-execution-result"]["net-runtime"], 1000);
    let (_, answer) = fixture.get("/jobs/overview");
    assert_eq!(answer["jobs"][0]["tasks"]["total"], 2);
    assert_eq!(answer["jobs"][0]["tasks"]["running"], 2);
    assert_eq!(answer["jobs"][0]["tasks"]["created"], 0);
    assert_eq!(answer["jobs"][1]["duration"], 1000);
    assert_eq!(
        (&answer["jobs"][0]["jobType"], &answer["jobs"][0]["schedulerType"]),
        (&json!("STREAMING"), &json!("Default"))
    );
    let (_, answer) = fixture.get("/overview");
    assert_eq!((&answer["jobs-running"], &answer["jobs-failed"]), (&json!(1), &json!(1)));
    assert_eq!((&answer["slots-total"], &answer["slots-available"]), (&json!(4), &json!(2)));
    let (_, answer) = fixture.get(&format!("/jobs/{RUNNING}/vertices/{VERTEX}/backpressure"));
    assert_eq!((&answer["subtasks"][0]["ratio"], &answer["backpressureLevel"]), (&json!(0.25), &json!("low")));
}

#[test]
fn failures_are_told_newest_first_and_filtered() {
    let fixture = Fixture::start(&[]);
    let path = format!("/jobs/{FAILED}/exceptions");
    let (_, answer) = fixture.get(&path);
    assert_eq!(answer["root-exception"], "\"Flat Map\" (1/2) panicked: <b>no</b>\nat lib.rs:3");
    assert_eq!(answer["exceptionHistory"]["entries"].as_array().map(Vec::len), Some(2));
    assert_eq!(answer["exceptionHistory"]["truncated"], false);
    let labels = |index: usize| answer["exceptionHistory"]["entries"][index]["failureLabels"].clone();
    assert_eq!(labels(0), json!({ "code": "guest-panic" }));
    assert_eq!(labels(1), json!({ "code": "guest-panic", "recovered-timestamp": "330", "downtime-ms": "250" }));
    let (_, answer) = fixture.get(&format!("{path}?maxExceptions=1"));
    assert_eq!(answer["exceptionHistory"]["entries"].as_array().map(Vec::len), Some(1));
    assert_eq!(answer["exceptionHistory"]["truncated"], true);
    let (_, answer) = fixture.get(&format!("{path}?failureLabelFilter=code:other"));
    assert_eq!(answer["exceptionHistory"]["entries"], json!([]));
    fixture.check_refused("GET", &format!("{path}?maxExceptions=many"), 400, "\"maxExceptions\" is \"many\"");
    fixture.check_refused("GET", &format!("{path}?failureLabelFilter=x"), 400, "is not key:value");
}

#[test]
fn metrics_are_listed_read_and_aggregated() {
    let fixture = Fixture::start(&[]);
    let vertex = format!("/jobs/{RUNNING}/vertices/{VERTEX}");
    let (_, names) = fixture.get(&format!("{vertex}/metrics"));
    let names: Vec<&str> = names.as_array().expect("a list").iter().filter_map(|entry| entry["id"].as_str()).collect();
    assert!(names.contains(&"0.numRecordsIn") && names.contains(&"1.Flat_Map.words"), "{names:?}");
    let (_, values) = fixture.get(&format!("{vertex}/metrics?get=1.numRecordsIn,nonsense,0.Flat_Map.words"));
    assert_eq!(values, json!([{"id": "1.numRecordsIn", "value": "200"}, {"id": "0.Flat_Map.words", "value": "7"}]));
    let (_, values) = fixture.get(&format!("{vertex}/subtasks/metrics?get=numRecordsIn&agg=min,sum"));
    assert_eq!(values, json!([{"id": "numRecordsIn", "min": 100.0, "sum": 300.0}]));
    let (_, values) = fixture.get(&format!("{vertex}/subtasks/metrics?get=numRecordsIn&subtasks=1-9"));
    assert_eq!(values[0]["avg"], 200.0);
    let (_, values) = fixture.get(&format!("{vertex}/subtasks/1/metrics?get=numRecordsIn"));
    assert_eq!(values, json!([{"id": "numRecordsIn", "value": "200"}]));
    let (_, values) = fixture.get(&format!("{vertex}/watermarks"));
    assert_eq!(values[0], json!({"id": "0.currentInputWatermark", "value": "-9223372036854775808"}));
    let (_, values) = fixture.get("/jobs/metrics?get=numRestarts&agg=sum");
    assert_eq!(values, json!([{"id": "numRestarts", "sum": 6.0}]));
    let (_, values) = fixture.get(&format!("/jobs/{FAILED}/metrics?get=downtimeTotal"));
    assert_eq!(values, json!([{"id": "downtimeTotal", "value": "400"}]));
    fixture.check_refused("GET", &format!("{vertex}/subtasks/metrics?agg=median"), 400, "\"agg\" is \"median\"");
    fixture.check_refused("GET", &format!("{vertex}/subtasks/metrics?subtasks=a"), 400, "\"subtasks\" is \"a\"");
    let (status, _, text) = fixture.send("GET", "/metrics", "text/plain", b"");
    assert_eq!(status, 200);
    let sample = format!(
        "flink_taskmanager_job_task_numRecordsIn{{job_id=\"{RUNNING}\",job_name=\"<script>alert(1)</script>\",\
         task_id=\"{VERTEX}\",task_name=\"Source: file -> Flat Map\",subtask_index=\"1\"}} 200\n"
    );
    assert!(text.contains(&sample), "{text}");
    assert!(text.contains("flink_taskmanager_job_task_operator_words{"), "{text}");
}

#[test]
fn what_is_not_there_is_refused_with_flinks_codes() {
    let fixture = Fixture::start(&[]);
    let unknown = "f".repeat(32);
    for (method, path, status, message) in [
        ("GET", "/nonsense".to_owned(), 404, "nothing at /nonsense"),
        ("POST", "/overview".to_owned(), 405, "does not take POST"),
        ("GET", "/jobs/xyz".to_owned(), 400, "\"xyz\" is not a job id"),
        ("GET", format!("/jobs/{unknown}"), 404, "there is no job"),
        ("GET", format!("/jobs/{RUNNING}/vertices/{unknown}"), 404, "vertex"),
        ("GET", format!("/jobs/{RUNNING}/vertices/1"), 400, "\"1\" is not a job vertex id"),
        ("GET", format!("/jobs/{RUNNING}/vertices/{VERTEX}/subtasks/2"), 404, "subtask 2"),
        ("GET", format!("/jobs/{RUNNING}/vertices/{VERTEX}/subtasks/x"), 400, "\"x\""),
        ("GET", format!("/jobs/{RUNNING}/vertices/{VERTEX}/subtasks/0/attempts/9"), 404, "attempt 9"),
        ("GET", "/taskmanagers/te-9".to_owned(), 404, "te-9"),
        (
            "GET",
            format!("/jobs/{RUNNING}/checkpoints"),
            404,
            "Set execution.checkpointing.interval when it is submitted",
        ),
        ("GET", format!("/jobs/{RUNNING}/checkpoints/config"), 404, "Checkpointing has not been enabled"),
        ("GET", format!("/jobs/{RUNNING}/checkpoints/details/1"), 404, "Checkpointing has not been enabled"),
        ("PATCH", format!("/jobs/{unknown}?mode=cancel"), 404, "there is no job"),
        ("PATCH", format!("/jobs/{FINISHED}?mode=cancel"), 409, "has ended as FINISHED"),
        ("PATCH", format!("/jobs/{RUNNING}?mode=stop"), 308, "has been removed"),
        ("PATCH", format!("/jobs/{RUNNING}?mode=kill"), 400, "\"kill\""),
        ("DELETE", format!("/jars/{unknown}_a.wasm"), 400, "no uploaded plugin"),
        ("GET", "/jobmanager/logs/..%2f..%2fpasswd".to_owned(), 404, "no log"),
    ] {
        fixture.check_refused(method, &path, status, message);
    }
}

#[test]
fn a_page_of_another_site_cancels_no_job_by_an_image() {
    let fixture = Fixture::start(&[]);
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("same-origin", 202), ("none", 202)] {
        let mut stream = TcpStream::connect(fixture.address).expect("listening");
        let head = format!(
            "GET /v1/jobs/{RUNNING}/yarn-cancel HTTP/1.1\r\nHost: {}\r\nSec-Fetch-Site: {site}\r\nConnection: \
             close\r\n\r\n",
            fixture.address
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answered");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{site}: {answer}");
    }
    let asked = fixture.asked.lock().expect("no panic").clone();
    assert_eq!(asked, [DispatcherRequest::CancelJob(RUNNING), DispatcherRequest::CancelJob(RUNNING)]);
}

#[test]
fn a_job_is_cancelled_by_both_paths() {
    let fixture = Fixture::start(&[]);
    assert_eq!(fixture.json("PATCH", &format!("/v1/jobs/{RUNNING}?mode=cancel"), ""), (202, json!({})));
    assert_eq!(fixture.json("PATCH", &format!("/jobs/{RUNNING}"), ""), (202, json!({})));
    assert_eq!(fixture.get(&format!("/jobs/{RUNNING}/yarn-cancel")), (202, json!({})));
    let uncommitted = format!("/jobs/{RUNNING}?mode=cancel-uncommitted");
    assert_eq!(fixture.json("PATCH", &uncommitted, ""), (202, json!({})));
    let mut expected = vec![DispatcherRequest::CancelJob(RUNNING); 3];
    expected.push(DispatcherRequest::CancelUncommitted(RUNNING));
    let asked = fixture.asked.lock().expect("no panic").clone();
    assert_eq!(asked, expected);
}

#[test]
fn a_submission_reaches_the_dispatcher_with_the_owners_limits() {
    let fixture = Fixture::start(&[("sandbox.memory.max", "32 mb")]);
    let job = JobId::random();
    let mut graph = job_graph(job, PLUGIN);
    graph.configuration.set("sandbox.memory.max", "4 gb", Origin::Dynamic).expect("valid");
    graph.configuration.set("sandbox.call.cpu-time", "1 h", Origin::Dynamic).expect("valid");
    graph.configuration.set("pipeline.name", "mine", Origin::Dynamic).expect("valid");
    graph.artifacts.push(Artifact { name: "model.bin".to_owned(), digest: job_submit::digest(b"weights") });
    let encoded = job_graph_codec::encode(&graph).expect("encodes");
    let (status, answer) = fixture.multipart(
        "/v1/jobs",
        &[
            ("request", None, &request_part(&[("model.bin", "../../m")])),
            ("file_0", Some("graph.bin"), &encoded),
            ("file_1", Some("words.wasm"), PLUGIN),
            ("file_2", Some("../../m"), b"weights"),
        ],
    );
    assert_eq!((status, answer), (202, json!({"jobUrl": format!("/jobs/{job}")})));
    let asked = fixture.asked.lock().expect("no panic");
    let [DispatcherRequest::SubmitJob(submitted)] = asked.as_slice() else { panic!("{asked:?}") };
    let settings: Vec<(&str, &str)> = submitted.configuration.iter().map(|(key, value, _)| (key, value)).collect();
    // The JobMaster takes the server's for what is not there.
    assert_eq!(settings, [("pipeline.name", "mine")]);
    assert_eq!(submitted.artifacts, graph.artifacts);
    let kept = fixture.blobs.lock().expect("no panic");
    assert_eq!(kept.len(), 2);
    assert!(kept.values().all(|uploads| *uploads == 0), "the job itself refers to its blobs");
}

/// Settings of a job, as they reach the Dispatcher by both ways over REST.
fn settings_that_arrive(given: &[(&str, &str)]) -> [BTreeMap<String, String>; 2] {
    let fixture = Fixture::start(&[]);
    let mut graph = job_graph(JobId::random(), PLUGIN);
    for (key, value) in given {
        graph.configuration.set(key, value, Origin::Dynamic).expect("valid");
    }
    let encoded = job_graph_codec::encode(&graph).expect("encodes");
    let parts = [
        ("request", None, &request_part(&[])[..]),
        ("file_0", Some("graph.bin"), &encoded),
        ("file_1", Some("words.wasm"), PLUGIN),
    ];
    let (status, answer) = fixture.multipart("/v1/jobs", &parts);
    assert_eq!(status, 202, "{answer}");
    let (_, uploaded) = fixture.multipart("/jars/upload", &[("jarfile", Some("words.wasm"), PLUGIN)]);
    let file = uploaded["filename"].as_str().expect("text");
    let id = file.rsplit('/').next().expect("a name");
    let body = json!({ "flinkConfiguration": given.iter().copied().collect::<BTreeMap<_, _>>() });
    let (status, answer) = fixture.json("POST", &format!("/jars/{id}/run"), &body.to_string());
    assert_eq!(status, 200, "{answer}");
    let asked = fixture.asked.lock().expect("no panic");
    let [DispatcherRequest::SubmitJob(by_graph), DispatcherRequest::SubmitJob(by_plugin)] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    let settings = |graph: &JobGraph| {
        graph.configuration.iter().map(|(key, value, _)| (key.to_owned(), value.to_owned())).collect()
    };
    [settings(by_graph), settings(by_plugin)]
}

#[test]
fn a_submitter_changes_its_job_and_nothing_of_the_process() {
    let owners = [
        ("taskmanager.memory.segment-size", "16 mb"),
        ("taskmanager.network.memory.max-buffers-per-channel", "1000"),
        ("taskmanager.numberOfTaskSlots", "100"),
        ("taskmanager.slot.timeout", "1 h"),
        ("task.cancellation.timeout", "1 h"),
        ("state.bytes-max", "1 tb"),
        ("state.value.bytes-max", "1 tb"),
        ("state.timers.max", "1000000000000"),
        ("state.backend.disk.memory", "1 tb"),
        ("heartbeat.interval", "10 ms"),
        ("heartbeat.timeout", "10 ms"),
        ("cluster.registration.initial-timeout", "10 ms"),
        ("cluster.storage-dir", "/"),
        ("jobmanager.execution.attempts-history-size", "1000"),
        ("web.exception-history-size", "1000"),
        ("web.cancel.enable", "false"),
        ("slot.request.timeout", "30 d"),
        ("slot.idle.timeout", "30 d"),
        ("jobstore.expiration-time", "30 d"),
        ("sandbox.memory.max", "4 gb"),
        ("sandbox.allow-write", "/"),
        ("plugin.cache-dir", "/"),
    ];
    let jobs = [
        ("execution.checkpointing.interval", "1 s"),
        ("execution.checkpointing.data-inline-threshold", "1 mb"),
        ("restart-strategy.type", "fixed-delay"),
        ("state.backend.type", "disk"),
        ("state.cache.bytes", "1 mb"),
    ];
    let expected: BTreeMap<String, String> =
        jobs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    for settings in settings_that_arrive(&[&owners[..], &jobs[..]].concat()) {
        assert_eq!(settings, expected);
    }
}

#[test]
fn a_client_that_goes_before_the_answer_leaves_nothing() {
    let fixture = Fixture::start(&[]);
    let encoded = job_graph_codec::encode(&job_graph(UNANSWERED, PLUGIN)).expect("encodes");
    let (content_type, body) = multipart(&[
        ("request", None, &request_part(&[])),
        ("file_0", Some("graph.bin"), &encoded),
        ("file_1", Some("words.wasm"), PLUGIN),
    ]);
    let mut stream = TcpStream::connect(fixture.address).expect("listening");
    let head = format!(
        "POST /v1/jobs HTTP/1.1\r\nHost: {}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n\r\n",
        fixture.address,
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body].concat()).expect("sent");
    let await_uploads = |count: usize| {
        let begun = Instant::now();
        while fixture.blobs.lock().expect("no panic").values().sum::<usize>() != count {
            assert!(begun.elapsed() < Duration::from_secs(10), "there are never {count} uploads");
            std::thread::yield_now();
        }
    };
    await_uploads(1);
    drop(stream);
    await_uploads(0);
}

/// A body whose length nobody told, and which has no end, is given up at the limit.
#[test]
fn a_body_without_an_end_is_refused_at_the_limit() {
    let fixture = Fixture::start(&[("rest.server.max-content-length", "64 kb")]);
    for path in ["/jobs", "/jars/upload"] {
        let mut stream = TcpStream::connect(fixture.address).expect("listening");
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: {}\r\nContent-Type: multipart/form-data; boundary=b\r\n\
             Transfer-Encoding: chunked\r\n\r\n",
            fixture.address
        );
        stream.write_all(head.as_bytes()).expect("sent");
        let part = b"--b\r\nContent-Disposition: form-data; name=\"jarfile\"; filename=\"a.wasm\"\r\n\r\n";
        let chunk = |data: &[u8]| [format!("{:x}\r\n", data.len()).as_bytes(), data, b"\r\n"].concat();
        let mut sent = stream.write_all(&chunk(part));
        let mut chunks = 0;
        while sent.is_ok() && chunks < 10_000 {
            sent = stream.write_all(&chunk(&[b'x'; 4096]));
            chunks += 1;
        }
        assert!(sent.is_err(), "{path}: the server took 40 MB");
        assert!(fixture.is_clean(), "{path}");
    }
}

#[test]
fn a_refused_submission_leaves_nothing() {
    let fixture = Fixture::start(&[("rest.server.max-content-length", "64 kb")]);
    let encode = |graph: &JobGraph| job_graph_codec::encode(graph).expect("encodes");
    let good = encode(&job_graph(JobId::random(), PLUGIN));
    let duplicate = encode(&job_graph(RUNNING, PLUGIN));
    let foreign = encode(&job_graph(JobId::random(), b"\0asm another"));
    let mut greedy = job_graph(JobId::random(), PLUGIN);
    greedy.grants.read.push("/etc/passwd".into());
    greedy.grants.write.push("/tmp/out".into());
    greedy.grants.net.push("169.254.169.254:80".to_owned());
    let greedy = encode(&greedy);
    let bad_plugin = encode(&job_graph(JobId::random(), b"#!/bin/sh"));
    let request = request_part(&[]);
    let artifact = request_part(&[("model.bin", "m")]);
    let long = vec![b'x'; 100_000];
    type Parts<'a> = Vec<(&'a str, Option<&'a str>, &'a [u8])>;
    let cases: Vec<(Parts<'_>, u16, &str)> = vec![
        (vec![], 400, "part \"request\" is missing"),
        (vec![("request", None, b"{")], 400, "part \"request\" cannot be read"),
        (vec![("request", None, b"{}")], 400, "no field jobGraphFileName"),
        (vec![("request", None, &request)], 400, "no file \"graph.bin\" was uploaded"),
        (
            vec![("request", None, &request), ("f", Some("graph.bin"), &good), ("g", Some("graph.bin"), &good)],
            400,
            "uploaded twice",
        ),
        (vec![("request", None, &request), ("f", Some("graph.bin"), b"nonsense")], 400, "not a job graph"),
        (vec![("request", None, &request), ("f", Some("graph.bin"), &good)], 400, "no file \"words.wasm\""),
        (
            vec![("request", None, &request), ("f", Some("graph.bin"), &foreign), ("p", Some("words.wasm"), PLUGIN)],
            400,
            "needs the plugin \"words.wasm\" with SHA-256",
        ),
        (
            vec![
                ("request", None, &artifact),
                ("f", Some("graph.bin"), &good),
                ("p", Some("words.wasm"), PLUGIN),
                ("m", Some("m"), b"x"),
            ],
            400,
            "knows no artifact \"model.bin\"",
        ),
        (
            vec![("request", None, &request), ("f", Some("graph.bin"), &greedy), ("p", Some("words.wasm"), PLUGIN)],
            400,
            "the job may not read /etc/passwd on this server; its owner can allow it with `engine cluster --allow-read",
        ),
        (
            vec![
                ("request", None, &request),
                ("f", Some("graph.bin"), &bad_plugin),
                ("p", Some("words.wasm"), b"#!/bin/sh"),
            ],
            400,
            "words.wasm is not a WebAssembly file",
        ),
        (
            vec![("request", None, &request), ("f", Some("graph.bin"), &duplicate), ("p", Some("words.wasm"), PLUGIN)],
            409,
            "has been submitted already",
        ),
        (vec![("request", None, &request), ("f", Some("graph.bin"), &long)], 413, ""),
    ];
    for (parts, status, message) in cases {
        let (actual, answer) = fixture.multipart("/jobs", &parts);
        assert_eq!(actual, status, "{message}: {answer}");
        assert!(answer["errors"][0].as_str().expect("text").contains(message), "{message}: {answer}");
        let code = (message == "words.wasm is not a WebAssembly file").then_some("not-a-component");
        assert_eq!(answer["code"].as_str(), code, "{answer}");
        assert!(fixture.is_clean(), "{message}");
    }
    let submitted = fixture.submitted();
    assert_eq!(submitted, [RUNNING], "only the duplicate got as far as the Dispatcher");
    let (status, _, body) = fixture.send("POST", "/jobs", "application/json", b"{}");
    assert_eq!(status, 400, "{body}");
}

#[test]
fn all_problems_of_a_job_graph_are_told() {
    let fixture = Fixture::start(&[]);
    let refusal = |graph: &JobGraph| {
        let encoded = job_graph_codec::encode(graph).expect("encodes");
        let parts: [(&str, Option<&str>, &[u8]); 3] = [
            ("request", None, &request_part(&[("model", "m")])),
            ("f", Some("graph.bin"), &encoded),
            ("p", Some("words.wasm"), PLUGIN),
        ];
        let with_artifact: Vec<(&str, Option<&str>, &[u8])> =
            parts.into_iter().chain([("m", Some("m"), PLUGIN)]).collect();
        let (status, answer) = fixture.multipart("/jobs", &with_artifact);
        assert_eq!(status, 400, "{answer}");
        assert!(fixture.is_clean());
        answer["errors"].to_string()
    };
    let mut graph = job_graph(JobId::random(), PLUGIN);
    graph.artifacts = vec![Artifact { name: "model".to_owned(), digest: job_submit::digest(PLUGIN) }];
    let mut deaf = graph.clone();
    let lines = ConnectorSpec { name: "stdin".to_owned(), options: BTreeMap::new() };
    deaf.vertices[0].operators[0].node.operator = Operator::Source(lines);
    let told = refusal(&deaf);
    assert!(told.contains("standard input can only be read by a job that `engine submit` runs without"), "{told}");
    let mut damaged = graph.clone();
    damaged.vertices[0].parallelism = 1 << 31;
    damaged.vertices[1].max_parallelism = 1;
    let told = refusal(&damaged);
    assert!(told.contains("parallelism") && told.contains("max parallelism"), "{told}");
    let mut cyclic = graph.clone();
    cyclic.vertices[0].outputs[0].edge.source = 2;
    cyclic.vertices[0].outputs[0].edge.target = 1;
    let told = refusal(&cyclic);
    assert!(told.contains("edge"), "{told}");
    let mut empty = graph.clone();
    empty.vertices.clear();
    refusal(&empty);
    graph.artifacts.push(Artifact { name: "../x".to_owned(), digest: job_submit::digest(PLUGIN) });
    graph.artifacts.push(graph.artifacts[0].clone());
    graph.configuration.set("execution.row-errors.dead-letter.dir", "/tmp/letters", Origin::Dynamic).expect("valid");
    let told = refusal(&graph);
    for problem in [
        "artifact \\\"model\\\" occurs twice",
        "its name is not a plain file name",
        "the job may not write /tmp/letters",
    ] {
        assert!(told.contains(problem), "{problem}: {told}");
    }
}

#[test]
fn an_owner_grants_roots_and_nothing_around_them() {
    let root = tempfile::tempdir().expect("a directory");
    let inside = root.path().join("in.txt");
    std::fs::write(&inside, "x").expect("written");
    std::os::unix::fs::symlink("/etc", root.path().join("link")).expect("linked");
    let shown = root.path().to_str().expect("text").to_owned();
    let fixture = Fixture::start(&[("sandbox.allow-read", &shown), ("sandbox.allow-net", "localhost:9, db:5432")]);
    let submit = |read: &Path, net: &str| {
        let mut graph = job_graph(JobId::random(), PLUGIN);
        graph.grants.read.push(read.to_owned());
        graph.grants.net.push(net.to_owned());
        let encoded = job_graph_codec::encode(&graph).expect("encodes");
        let parts: [(&str, Option<&str>, &[u8]); 3] = [
            ("request", None, &request_part(&[])),
            ("f", Some("graph.bin"), &encoded),
            ("p", Some("words.wasm"), PLUGIN),
        ];
        fixture.multipart("/jobs", &parts).0
    };
    assert_eq!(submit(&inside, "db:5432"), 202);
    assert_eq!(submit(&root.path().join("*.txt"), "localhost:9"), 202);
    assert_eq!(submit(&inside, "db:5433"), 400);
    assert_eq!(submit(&root.path().join("link/passwd"), "db:5432"), 400);
    assert_eq!(submit(&root.path().join("*/../../etc/*"), "db:5432"), 400);
    assert_eq!(submit(&root.path().join("../other"), "db:5432"), 400);
}

#[test]
fn plugins_are_uploaded_planned_run_and_deleted() {
    let fixture = Fixture::start(&[]);
    let (status, answer) = fixture.multipart("/jars/upload", &[("jarfile", Some("../../x/wörd.wasm"), PLUGIN)]);
    assert_eq!(status, 200, "{answer}");
    let id = answer["filename"].as_str().expect("a name").to_owned();
    assert_eq!(id.split_once('_').expect("uuid_name").1, "w_rd.wasm");
    let (_, list) = fixture.get("/jars");
    assert_eq!(list["files"][0]["id"], json!(id));
    assert_eq!(list["files"][0]["entry"][0]["description"], "counts words");
    assert_eq!(list["address"], json!(format!("http://{}", fixture.address)));
    let (status, plan) = fixture.json("POST", &format!("/jars/{id}/plan"), "");
    assert_eq!((status, plan["plan"]["nodes"].as_array().map(Vec::len)), (200, Some(2)));
    let job = JobId::random();
    let body = json!({"jobId": job, "programArgsList": ["--a", "b c"], "parallelism": 3, "entryClass": "ignored"});
    let (status, answer) = fixture.json("POST", &format!("/v1/jars/{id}/run"), &body.to_string());
    assert_eq!((status, answer), (200, json!({"jobid": job})));
    {
        let asked = fixture.asked.lock().expect("no panic");
        let Some(DispatcherRequest::SubmitJob(submitted)) = asked.last() else { panic!("{asked:?}") };
        assert_eq!(submitted.program.args, ["--a", "b c"]);
        let settings: Vec<(&str, &str, Origin)> = submitted.configuration.iter().collect();
        assert_eq!(settings, [("parallelism.default", "3", Origin::CommandLine)]);
    }
    let run = format!("/jars/{id}/run");
    for (body, message) in [
        (json!({"programArgs": "--fail"}), "unknown option --fail"),
        (json!({"flinkConfiguration": {"paralelism.default": "3"}}), "did you mean \"parallelism.default\"?"),
        (json!({"parallelism": 0}), "invalid value \"0\""),
        (json!({"savepointPath": "/s"}), "savepoint"),
        (json!(7), "the body cannot be read"),
    ] {
        let (status, answer) = fixture.json("POST", &run, &body.to_string());
        assert_eq!(status, 400, "{body}");
        assert!(answer["errors"][0].as_str().expect("text").contains(message), "{answer}");
    }
    assert_eq!(fixture.json("DELETE", &format!("/jars/{id}"), ""), (200, json!({})));
    assert!(fixture.is_clean());
    assert_eq!(fixture.get("/jars").1["files"], json!([]));
}

#[test]
fn a_refused_upload_leaves_nothing() {
    let fixture = Fixture::start(&[]);
    type Parts<'a> = Vec<(&'a str, Option<&'a str>, &'a [u8])>;
    let cases: Vec<(Parts<'_>, &str)> = vec![
        (vec![], "exactly one file"),
        (vec![("a", Some("a.wasm"), PLUGIN), ("b", Some("b.wasm"), PLUGIN)], "exactly one file"),
        (vec![("a", Some("a.jar"), PLUGIN)], "end in .wasm"),
        (vec![("a", None, PLUGIN)], "end in .wasm"),
        (vec![("a", Some("a.wasm"), b"PK")], "a.wasm is not a WebAssembly file"),
    ];
    for (parts, message) in cases {
        let (status, answer) = fixture.multipart("/jars/upload", &parts);
        assert_eq!(status, 400, "{answer}");
        assert!(answer["errors"][0].as_str().expect("text").contains(message), "{answer}");
        assert!(fixture.is_clean());
    }
    let off = Fixture::start(&[("web.submit.enable", "false")]);
    let (status, _) = off.multipart("/jars/upload", &[("a", Some("a.wasm"), PLUGIN)]);
    assert_eq!(status, 403);
    assert_eq!(off.multipart("/jobs", &[]).0, 403);
    assert_eq!(off.admitted.load(Ordering::SeqCst), 0);
    assert_eq!(off.get("/config").1["features"]["web-submit"], false);
}

#[test]
fn answers_carry_guarding_headers_and_foreign_pages_are_refused() {
    let fixture = Fixture::start(&[]);
    for path in ["/overview", "/nonsense", "/jobmanager/log"] {
        let (_, head, _) = fixture.send("GET", path, "text/plain", b"");
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(head.contains("content-security-policy: default-src 'none'"), "{head}");
    }
    let mut stream = TcpStream::connect(fixture.address).expect("listening");
    let head = format!(
        "POST /jars/upload HTTP/1.1\r\nHost: {}\r\nOrigin: https://evil.example\r\nContent-Length: 0\r\n\
         Connection: close\r\n\r\n",
        fixture.address
    );
    stream.write_all(head.as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
}

#[test]
fn the_log_is_served_and_filtered() {
    let fixture = Fixture::start(&[]);
    assert_eq!(fixture.send("GET", "/jobmanager/log", "", b"").2, "job a started\njob b started\n");
    assert_eq!(fixture.send("GET", "/jobmanager/log?contains=job%20b", "", b"").2, "job b started\n");
    let (_, list) = fixture.get("/jobmanager/logs");
    let name = list["logs"][0]["name"].as_str().expect("a name");
    assert_eq!(fixture.send("GET", &format!("/jobmanager/logs/{name}"), "", b"").0, 200);
}

#[test]
fn heads_that_are_too_long_are_cut_off() {
    let fixture = Fixture::start(&[]);
    let (status, _, _) = fixture.send("GET", &format!("/jobs?x={}", "y".repeat(70_000)), "", b"");
    assert!(status == 414 || status == 431, "{status}");
    // The server goes on.
    assert_eq!(fixture.get("/config").0, 200);
}

#[test]
fn a_head_that_does_not_end_is_given_up_and_frees_its_place() {
    let fixture =
        Fixture::start_with(&[], ConnectionLimits { connections: 1, header_time: Duration::from_millis(200) });
    let mut slow = TcpStream::connect(fixture.address).expect("listening");
    slow.write_all(b"GET /config HTTP/1.1\r\nHost: localhost\r\nX-Slow: ").expect("sent");
    // The only place is taken, so that this waits until the server gives the other up.
    assert_eq!(fixture.get("/config").0, 200);
    let mut rest = Vec::new();
    slow.read_to_end(&mut rest).expect("closed by the server");
    assert!(!String::from_utf8_lossy(&rest).contains(" 200 "), "{rest:?}");
}

#[test]
fn time_and_state_of_operators_are_told() {
    let fixture = Fixture::start(&[]);
    let (_, answer) = fixture.get(&format!("/jobs/{RUNNING}/operators"));
    let vertex = &answer["vertices"][0];
    assert_eq!(vertex["held-back-by"], json!({"vertex": "Source", "subtask-index": 1, "watermark": 3999}));
    let operator =
        vertex["operators"].as_array().expect("a list").iter().find(|operator| operator["name"] == "Flat Map");
    let expected = json!({
        "name": "Flat Map",
        "watermark-in": 5000,
        "watermark-out": null,
        "late-records": 6,
        "state": {"bytes": 200, "entries": 20, "timers": 6, "cache-bytes": 100, "cache-entries": 8,
            "cache-hits": 18, "cache-misses": 2},
    });
    assert_eq!(operator, Some(&expected));
    let (_, _, text) = fixture.send("GET", "/metrics", "text/plain", b"");
    assert!(text.contains("flink_taskmanager_job_task_operator_stateBytes{"), "{text}");
}

#[test]
fn the_description_holds_every_route() {
    let fixture = Fixture::start(&[]);
    let (_, description) = fixture.get("/openapi.json");
    let mut ids = std::collections::BTreeSet::new();
    for route in super::routes::ROUTES {
        let operation = &description["paths"][route.path][route.method.to_lowercase()];
        assert_eq!(operation["summary"], route.summary, "{}", route.path);
        assert!(ids.insert(operation["operationId"].to_string()), "{} has no id of its own", route.path);
        let in_path = operation["parameters"].as_array().expect("a list").iter().filter(|p| p["in"] == "path").count();
        assert_eq!(in_path, route.path.matches('{').count(), "{}", route.path);
    }
}

#[test]
fn a_taken_port_has_its_own_message() {
    let fixture = Fixture::start(&[]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut configuration = Configuration::default();
    configuration.set("rest.port", &fixture.address.port().to_string(), Origin::File).expect("valid");
    let (sender, _calls) = mpsc::channel(1);
    let services = RestServices {
        gateway: DispatcherGateway::new(sender),
        blobs: Arc::new(CountedBlobs(Arc::default())),
        programs: Arc::new(ScriptedPrograms(Arc::default())),
        configuration,
        jars_dir: fixture.dir.path().join("jars"),
        clock: Clock::System,
        log: Arc::default(),
    };
    let error = runtime.block_on(RestServer::start(services)).expect_err("taken");
    assert_eq!(
        error.to_string(),
        format!(
            "port {} of 127.0.0.1 is taken by another program: choose another one with --port or rest.port",
            fixture.address.port()
        )
    );
}
