//! What the tests of this module share: graphs by name, connectors that keep a
//! journal, and a JobMaster on a clock of its own with a scripted other side.
//!
//! Every message, in both directions, goes through the wire codec.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    JobMaster, JobMasterParts,
    checkpoint_coordinator::storage::{CheckpointStore, StorageTask},
    operator_coordinators::Connectors,
};
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, Origin},
        ids::{
            AllocationId, BlobDigest, ExecutionAttemptId, GraphDigest, IntermediateDataSetId, JobId, JobMasterId,
            JobVertexId, OperatorId, ResourceId, ResourceManagerId, SlotId,
        },
        status::{ExecutionState, JobStatus},
        stream_element::{CheckpointId, SnapshotLocation},
    },
    checkpoint::{CheckpointMetadata, SharedStateRegistry},
    connector::{
        Committable, ConnectorError, RestoredOutput, RestoredSource, SinkCommitter, SourceSplit, SplitAssignment,
        SplitEnumerator,
    },
    graph::{
        job_graph::{
            ChainedOperator, DistributionPattern, Grants, IntermediateDataSet, JobEdge, JobGraph, JobVertex,
            ProgramSpec,
        },
        stream_graph::{ChainingStrategy, ConnectorSpec, Operator, Partitioner, StreamEdge, StreamNode},
    },
    protocol::{
        job_details::{JobDetails, Restart},
        job_master::{
            FailureCause, JobMasterMessage, Recoverability, SlotOffer, SlotOffers, StoreProblem,
            TaskExecutionStateUpdate, TaskExecutorHeartbeat, TaskMetrics, TaskState,
        },
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::{TaskDeployment, TaskExecutorMessage},
    },
};

/// Builds the vertices of a JobGraph. A vertex without inputs is a source of the
/// connector "test", one without outputs a sink of it; node ids count from 1.
#[derive(Default)]
pub(super) struct GraphBuilder {
    vertices: Vec<JobVertex>,
    options: BTreeMap<String, String>,
}

impl GraphBuilder {
    pub(super) fn vertex(self, name: &str, parallelism: u32) -> Self {
        self.vertex_in_group(name, parallelism, "default")
    }

    pub(super) fn vertex_in_group(mut self, name: &str, parallelism: u32, group: &str) -> Self {
        let number = u8::try_from(self.vertices.len() + 1).unwrap();
        let node = StreamNode {
            id: u32::from(number),
            name: name.to_owned(),
            operator: Operator::Guest("map".to_owned()),
            uid: None,
            uid_hash: None,
            parallelism: Some(parallelism),
            max_parallelism: None,
            slot_sharing_group: None,
            co_location_group: None,
            chaining: ChainingStrategy::Always,
            buffer_timeout: None,
            input_types: vec!["string".to_owned()],
            output_type: Some("string".to_owned()),
            key_type: None,
            states: Vec::new(),
            generates_watermarks: false,
        };
        self.vertices.push(JobVertex {
            id: JobVertexId::from_bytes([number; 16]),
            name: name.to_owned(),
            parallelism,
            max_parallelism: 128,
            max_parallelism_configured: false,
            operators: vec![ChainedOperator {
                node,
                operator_id: OperatorId::from_bytes([number; 16]),
                user_defined_id: None,
                plugin: None,
                managed_memory_fraction: 0.0,
            }],
            chained_edges: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            slot_sharing_group: group.to_owned(),
            co_location_group: None,
            resources: None,
        });
        self
    }

    pub(super) fn co_locate(mut self, name: &str, group: &str) -> Self {
        self.vertex_mut(name).co_location_group = Some(group.to_owned());
        self
    }

    /// Of all vertices.
    pub(super) fn max_parallelism(mut self, max_parallelism: u32) -> Self {
        self.vertices.iter_mut().for_each(|vertex| vertex.max_parallelism = max_parallelism);
        self
    }

    /// Option of all connectors; see [`Journal::connectors`].
    pub(super) fn option(mut self, key: &str, value: &str) -> Self {
        self.options.insert(key.to_owned(), value.to_owned());
        self
    }

    pub(super) fn edge(mut self, from: &str, to: &str, pattern: DistributionPattern) -> Self {
        let (producer, source) = (self.vertex_mut(from).id, self.vertex_mut(from).operators[0].node.id);
        let (consumer, target) = (self.vertex_mut(to).id, self.vertex_mut(to).operators[0].node.id);
        let id = IntermediateDataSetId::from_bytes([u8::try_from(source * 16 + target).unwrap(); 16]);
        let partitioner = match pattern {
            DistributionPattern::AllToAll => Partitioner::Rebalance,
            DistributionPattern::Pointwise => Partitioner::Forward,
        };
        let edge = StreamEdge {
            source,
            target,
            input: 0,
            partitioner: Some(partitioner),
            side_output: None,
            selector: None,
            record_type: "string".to_owned(),
        };
        let output = IntermediateDataSet { id, edge, partitioner, pattern, consumer, buffer_timeout: 100 };
        self.vertex_mut(from).outputs.push(output);
        let input = JobEdge { source: id, producer, partitioner, pattern, target_node: target, input: 0 };
        self.vertex_mut(to).inputs.push(input);
        self
    }

    pub(super) fn build(mut self) -> Vec<JobVertex> {
        let connector = ConnectorSpec { name: "test".to_owned(), options: self.options };
        for vertex in &mut self.vertices {
            let node = &mut vertex.operators[0].node;
            if vertex.inputs.is_empty() {
                node.operator = Operator::Source(connector.clone());
            } else if vertex.outputs.is_empty() {
                node.operator = Operator::Sink(connector.clone());
            }
        }
        self.vertices
    }

    fn vertex_mut(&mut self, name: &str) -> &mut JobVertex {
        self.vertices.iter_mut().find(|vertex| vertex.name == name).unwrap()
    }
}

/// Two pipelines side by side: each subtask of the source feeds one of the sink.
pub(super) fn pipelines(parallelism: u32) -> GraphBuilder {
    GraphBuilder::default().vertex("source", parallelism).vertex("sink", parallelism).edge(
        "source",
        "sink",
        DistributionPattern::Pointwise,
    )
}

/// All subtasks in one region.
pub(super) fn exchange(parallelism: u32) -> GraphBuilder {
    GraphBuilder::default().vertex("source", parallelism).vertex("sink", parallelism).edge(
        "source",
        "sink",
        DistributionPattern::AllToAll,
    )
}

/// What connectors were asked, in order.
#[derive(Clone, Default)]
pub(super) struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn note(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    /// Connectors that deal `splits` splits of one byte, and fail where the option `fail` says.
    pub(super) fn connectors(&self) -> Connectors {
        let (of_sources, of_sinks) = (self.clone(), self.clone());
        Connectors {
            enumerators: Arc::new(move |spec, parallelism, record_type, _, restored| {
                of_sources.note(format!("enumerator {} of {parallelism} {record_type}", spec.name));
                fail_if(spec, "enumerator")?;
                let splits = spec.options.get("splits").map_or(0, |splits| splits.parse::<u32>().unwrap());
                let splits = match restored {
                    Some(RestoredSource { enumerator, splits }) => {
                        of_sources.note(format!("restored {enumerator:?} and {splits:?}"));
                        enumerator.into_iter().chain(splits.into_iter().map(|(_, split)| split.0[0])).collect()
                    }
                    None => (0..splits).map(|number| number.to_le_bytes()[0]).collect(),
                };
                Ok(Box::new(JournalEnumerator { journal: of_sources.clone(), spec: spec.clone(), splits }))
            }),
            committers: Arc::new(move |spec, parallelism, record_type, _| {
                of_sinks.note(format!("committer {} of {parallelism} {record_type}", spec.name));
                Ok(Box::new(JournalCommitter { journal: of_sinks.clone(), spec: spec.clone() }))
            }),
        }
    }
}

fn fail_if(spec: &ConnectorSpec, step: &str) -> Result<(), ConnectorError> {
    if spec.options.get("fail").is_some_and(|fail| fail == step) {
        let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "permission denied");
        return Err(ConnectorError::Io { action: "open", path: step.into(), source });
    }
    Ok(())
}

struct JournalEnumerator {
    journal: Journal,
    spec: ConnectorSpec,
    splits: VecDeque<u8>,
}

impl SplitEnumerator for JournalEnumerator {
    fn is_replayable(&self) -> bool {
        self.spec.options.get("replayable").is_none_or(|replayable| replayable != "no")
    }

    fn snapshot(&self) -> Vec<u8> {
        self.splits.iter().copied().collect()
    }

    fn next_split(&mut self, _: u32) -> Result<SplitAssignment, ConnectorError> {
        fail_if(&self.spec, "next_split")?;
        let split = self.splits.pop_front();
        Ok(split.map_or(SplitAssignment::NoMoreSplits, |split| SplitAssignment::Split(SourceSplit(vec![split]))))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        self.journal.note(format!("back from {subtask_index}: {splits:?}"));
        self.splits.extend(splits.into_iter().map(|split| split.0[0]));
    }
}

struct JournalCommitter {
    journal: Journal,
    spec: ConnectorSpec,
}

impl SinkCommitter for JournalCommitter {
    /// As the option `committed` says, which also has noted what is said of that.
    fn committed(&self) -> Result<Option<CheckpointId>, ConnectorError> {
        Ok(self.spec.options.get("committed").and_then(|committed| committed.parse().ok()))
    }

    fn checkpoint_committed(&mut self, id: CheckpointId) -> Result<(), ConnectorError> {
        if self.spec.options.contains_key("committed") {
            self.journal.note(format!("committed {id}"));
        }
        Ok(())
    }

    fn recover(&mut self, restored: RestoredOutput) -> Result<(), ConnectorError> {
        let RestoredOutput { checkpoint_id, committables, was_committed, .. } = restored;
        let committed = if was_committed { ", which were committed" } else { "" };
        self.journal.note(format!("recover {checkpoint_id}: {}{committed}", names(committables)));
        fail_if(&self.spec, "recover")
    }

    fn keep(&mut self, id: CheckpointId, committables: &[Committable]) -> Result<(), ConnectorError> {
        self.journal.note(format!("keep {id}: {}", names(committables.to_vec())));
        fail_if(&self.spec, "keep")
    }

    fn prepare(&mut self) -> Result<(), ConnectorError> {
        self.journal.note("prepare".to_owned());
        fail_if(&self.spec, "prepare")
    }

    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        self.journal.note(format!("commit {}", names(committables)));
        fail_if(&self.spec, "commit")
    }

    fn abort(&mut self) -> Result<(), ConnectorError> {
        self.journal.note("abort".to_owned());
        fail_if(&self.spec, "abort")
    }
}

fn names(committables: Vec<Committable>) -> String {
    let names = committables.into_iter().map(|committable| String::from_utf8(committable.0).unwrap());
    names.collect::<Vec<_>>().join(" ")
}

/// A store of checkpoints whose tasks are done when the test says so.
#[derive(Clone, Default)]
pub(super) struct FakeStore(pub(super) Arc<Mutex<FakeStorage>>);

#[derive(Default)]
pub(super) struct FakeStorage {
    /// Begun and not done.
    pub(super) tasks: VecDeque<StorageTask>,
    pub(super) stored: BTreeMap<(SnapshotLocation, CheckpointId), CheckpointMetadata>,
    /// Cannot be read or written.
    pub(super) damaged: BTreeSet<CheckpointId>,
    /// Cannot be read or written at the moment.
    pub(super) unreadable: BTreeSet<CheckpointId>,
    /// Their metadata is there, but whoever stores it is told that it could not be.
    pub(super) doubtful: BTreeSet<CheckpointId>,
    /// Nothing can be deleted.
    pub(super) is_undeletable: bool,
    /// Nothing can be listed.
    pub(super) is_unavailable: bool,
    pub(super) last_savepoint: CheckpointId,
    /// Savepoints that their jobs stopped with.
    pub(super) stopped: BTreeSet<SnapshotLocation>,
    /// Files of state that are there.
    pub(super) files: Vec<String>,
    /// In the order in which they went.
    pub(super) deleted: Vec<String>,
    pub(super) deleted_savepoints: Vec<SnapshotLocation>,
}

impl FakeStorage {
    fn available(&self) -> Result<(), StoreProblem> {
        if self.is_unavailable { Err(StoreProblem::Unavailable("as told".to_owned())) } else { Ok(()) }
    }

    fn check(&self, id: CheckpointId) -> Result<(), StoreProblem> {
        if self.unreadable.contains(&id) {
            return Err(StoreProblem::Unavailable("as told".to_owned()));
        }
        if self.damaged.contains(&id) { Err(StoreProblem::Unusable("as told".to_owned())) } else { Ok(()) }
    }

    /// Does the next task.
    pub(super) fn perform(&mut self) -> Option<JobMasterMessage> {
        Some(match self.tasks.pop_front()? {
            StorageTask::Store(metadata, location, beside) => {
                let id = metadata.checkpoint_id;
                let mut result = self.check(id).map_err(|problem| problem.to_string());
                self.last_savepoint = if beside.is_some() { id } else { self.last_savepoint };
                if result.is_ok() {
                    let former = self.stored.insert((location, id), (*metadata).clone());
                    assert!(former.is_none(), "checkpoint {id} is stored twice");
                }
                if self.doubtful.contains(&id) {
                    result = Err("as told".to_owned());
                }
                JobMasterMessage::CheckpointStored(id, result)
            }
            StorageTask::Discard { location, checkpoints, files } => {
                for id in checkpoints.into_iter().filter(|_| !self.is_undeletable) {
                    self.stored.remove(&(location.clone(), id));
                }
                self.deleted.extend(files);
                JobMasterMessage::CheckpointsDiscarded
            }
            StorageTask::Revoke { location, id, files } => {
                let result = if self.is_undeletable { Err("as told".to_owned()) } else { Ok(()) };
                if result.is_ok() {
                    self.stored.remove(&(location, id));
                    self.deleted.extend(files);
                }
                JobMasterMessage::CheckpointRevoked(id, result)
            }
            StorageTask::DeleteSavepoint(location) => {
                self.deleted_savepoints.push(location);
                JobMasterMessage::CheckpointsDiscarded
            }
            StorageTask::Verify(metadata, _) => {
                JobMasterMessage::CheckpointVerified(metadata.checkpoint_id, self.check(metadata.checkpoint_id))
            }
        })
    }
}

impl CheckpointStore for FakeStore {
    fn begin(&mut self, task: StorageTask) {
        self.0.lock().unwrap().tasks.push_back(task);
    }

    fn list(&self, location: &SnapshotLocation) -> Result<Vec<CheckpointId>, StoreProblem> {
        let storage = self.0.lock().unwrap();
        storage.available()?;
        Ok(storage.stored.keys().filter(|(known, _)| known == location).map(|(_, id)| *id).collect())
    }

    fn load(&self, location: &SnapshotLocation, id: Option<CheckpointId>) -> Result<CheckpointMetadata, StoreProblem> {
        let storage = self.0.lock().unwrap();
        let is_it =
            |(known, other): &&(SnapshotLocation, CheckpointId)| known == location && id.is_none_or(|id| id == *other);
        let missing = || StoreProblem::Unusable("there is no _metadata".to_owned());
        let key = storage.stored.keys().find(is_it).ok_or_else(missing)?;
        storage.check(key.1)?;
        Ok(storage.stored[key].clone())
    }

    fn last_savepoint(&self, _: &SnapshotLocation) -> Result<CheckpointId, StoreProblem> {
        let storage = self.0.lock().unwrap();
        storage.available()?;
        Ok(storage.last_savepoint)
    }

    fn is_stopped(&self, location: &SnapshotLocation) -> Result<bool, StoreProblem> {
        Ok(self.0.lock().unwrap().stopped.contains(location))
    }

    fn unreferenced(&self, _: &SnapshotLocation, registry: &SharedStateRegistry) -> Result<Vec<String>, StoreProblem> {
        let storage = self.0.lock().unwrap();
        Ok(storage.files.iter().filter(|file| !registry.is_referenced(file)).cloned().collect())
    }
}

/// A JobMaster on a clock of its own; the test plays all others.
pub(super) struct Harness {
    pub(super) master: JobMaster,
    pub(super) now: Timestamp,
    pub(super) job: JobId,
    pub(super) id: JobMasterId,
    pub(super) resource_manager: ResourceManagerId,
    pub(super) journal: Journal,
    pub(super) store: FakeStore,
    sent: Vec<Envelope>,
    allocations: u8,
}

impl Harness {
    /// Starts the JobMaster of a graph with the given settings.
    pub(super) fn start(graph: GraphBuilder, settings: &[(&str, &str)]) -> Self {
        Self::start_with(graph, settings, FakeStore::default())
    }

    /// Starts the JobMaster of a graph where others stored checkpoints before.
    pub(super) fn start_with(graph: GraphBuilder, settings: &[(&str, &str)], store: FakeStore) -> Self {
        let mut configuration = Configuration::default();
        for (key, value) in settings {
            configuration.set(key, value, Origin::Program).unwrap();
        }
        let job = JobId::from_bytes([7; 16]);
        let id = JobMasterId::from_bytes([8; 16]);
        let now = Timestamp(1_000_000);
        let journal = Journal::default();
        let master = JobMaster::new(JobMasterParts {
            job_graph: job_graph(job, graph.build(), configuration),
            job_master_id: id,
            submitted: now,
            configuration: Configuration::default(),
            connectors: journal.connectors(),
            checkpoint_store: Box::new(store.clone()),
            state_directory: "/state".into(),
            state_is_kept: true,
            dispatcher: Fence::None,
        })
        .unwrap();
        let mut harness = Self {
            master,
            now,
            job,
            id,
            resource_manager: ResourceManagerId::from_bytes([9; 16]),
            journal,
            store,
            sent: Vec::new(),
            allocations: 0,
        };
        let sent = harness.master.on_start(now);
        harness.push(sent);
        harness
    }

    /// Starts, registers, and offers as many slots of one TaskExecutor as needed.
    pub(super) fn running(graph: GraphBuilder, settings: &[(&str, &str)]) -> (Self, Vec<TaskDeployment>) {
        Self::running_with(graph, settings, FakeStore::default())
    }

    /// As [`Harness::running`], where others stored checkpoints before.
    pub(super) fn running_with(
        graph: GraphBuilder,
        settings: &[(&str, &str)],
        store: FakeStore,
    ) -> (Self, Vec<TaskDeployment>) {
        let mut harness = Self::start_with(graph, settings, store);
        harness.register();
        let needed = harness.master.pool.required_count();
        harness.offer("te", needed);
        let deployed = harness.take_deployed();
        for deployment in &deployed {
            harness.report(deployment.attempt, TaskState::Initializing);
            harness.report(deployment.attempt, TaskState::Running);
        }
        harness.take_sent();
        (harness, deployed)
    }

    /// The store does all that was begun, and says so.
    pub(super) fn perform_storage(&mut self) {
        loop {
            let answer = self.store.0.lock().unwrap().perform();
            let Some(answer) = answer else { return };
            self.deliver(Address::JobMaster(self.job), answer);
        }
    }

    fn push(&mut self, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            assert_eq!(envelope.from, Address::JobMaster(self.job));
            self.sent.push(through_the_wire(&envelope));
        }
    }

    /// Delivers an envelope.
    pub(super) fn deliver_envelope(&mut self, envelope: Envelope) {
        let sent = self.master.on_message(through_the_wire(&envelope), self.now);
        self.push(sent);
    }

    /// Delivers a message with the right fence.
    pub(super) fn deliver(&mut self, from: Address, message: JobMasterMessage) {
        let fence = Fence::JobMaster(self.id);
        let to = Address::JobMaster(self.job);
        self.deliver_envelope(Envelope { from, to, fence, message: Message::JobMaster(message) });
    }

    /// Lets time pass, and calls at each deadline on the way.
    pub(super) fn advance(&mut self, duration: Duration) {
        let end = self.now.plus(duration);
        let mut calls = 0;
        while let Some(deadline) = self.master.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            let sent = self.master.on_deadline(self.now);
            self.push(sent);
            calls += 1;
            assert!(calls < 100_000, "the deadline {deadline} never passes");
        }
        self.now = end;
    }

    /// The ResourceManager accepts the registration.
    pub(super) fn register(&mut self) {
        let message = JobMasterMessage::RegisteredAtResourceManager(self.resource_manager);
        let (from, to) = (Address::ResourceManager, Address::JobMaster(self.job));
        self.deliver_envelope(Envelope { from, to, fence: Fence::None, message: Message::JobMaster(message) });
    }

    /// A TaskExecutor registers and offers slots, each under a fresh allocation.
    pub(super) fn offer(&mut self, task_executor: &str, slots: usize) {
        let id = ResourceId(task_executor.to_owned());
        self.deliver(Address::TaskExecutor(id.clone()), JobMasterMessage::RegisterTaskExecutor(id.clone()));
        let offers = (0..slots)
            .map(|_| {
                self.allocations += 1;
                let slot = SlotId { task_executor: id.clone(), index: u32::from(self.allocations) };
                SlotOffer { allocation: AllocationId::from_bytes([self.allocations; 16]), slot }
            })
            .collect();
        let offers = SlotOffers { task_executor: id.clone(), offers };
        self.deliver(Address::TaskExecutor(id), JobMasterMessage::OfferSlots(offers));
    }

    /// Where the attempt was deployed to, or "te".
    pub(super) fn location(&self, attempt: ExecutionAttemptId) -> Address {
        let index = self.master.graph.index_of(attempt.execution_vertex).unwrap();
        let vertex = self.master.graph.vertex(index);
        let execution = std::iter::once(vertex.current()).chain(vertex.former());
        let location = execution.filter(|execution| execution.attempt() == attempt).find_map(|it| it.location());
        Address::TaskExecutor(location.map_or(ResourceId("te".to_owned()), |it| it.task_executor.clone()))
    }

    /// The attempt's TaskExecutor reports a state.
    pub(super) fn report(&mut self, attempt: ExecutionAttemptId, state: TaskState) {
        let cause = (state == TaskState::Failed).then(|| failure("guest-panic", Recoverability::Recoverable));
        self.report_update(update(attempt, state, cause));
    }

    /// The attempt's TaskExecutor reports.
    pub(super) fn report_update(&mut self, update: TaskExecutionStateUpdate) {
        let from = self.location(update.attempt);
        self.deliver(from, JobMasterMessage::UpdateTaskExecutionState(update));
    }

    /// A TaskExecutor's heartbeat with these tasks.
    pub(super) fn heartbeat(&mut self, task_executor: &str, attempts: &[ExecutionAttemptId]) {
        let task_executor = ResourceId(task_executor.to_owned());
        let tasks = attempts.iter().map(|attempt| (*attempt, metrics(17))).collect();
        let heartbeat = TaskExecutorHeartbeat { task_executor: task_executor.clone(), tasks };
        self.deliver(Address::TaskExecutor(task_executor), JobMasterMessage::TaskExecutorHeartbeat(heartbeat));
    }

    /// All that was sent since the last call.
    pub(super) fn take_sent(&mut self) -> Vec<Envelope> {
        std::mem::take(&mut self.sent)
    }

    /// The messages to TaskExecutors since the last call; everything else is forgotten.
    pub(super) fn take_to_task_executors(&mut self) -> Vec<(String, TaskExecutorMessage)> {
        let sent = self.take_sent().into_iter().filter_map(|envelope| match (envelope.to, envelope.message) {
            (Address::TaskExecutor(id), Message::TaskExecutor(message)) => Some((id.0, message)),
            _ => None,
        });
        sent.collect()
    }

    /// The tasks that were deployed since the last call; everything else is forgotten.
    pub(super) fn take_deployed(&mut self) -> Vec<TaskDeployment> {
        let sent = self.take_to_task_executors().into_iter().filter_map(|(_, message)| match message {
            TaskExecutorMessage::SubmitTask(deployment) => Some(deployment),
            _ => None,
        });
        sent.collect()
    }

    /// The attempts that were told to cancel since the last call; everything else is forgotten.
    pub(super) fn take_canceled(&mut self) -> Vec<String> {
        let sent = self.take_to_task_executors().into_iter().filter_map(|(_, message)| match message {
            TaskExecutorMessage::CancelTask(attempt) => Some(self.name(attempt)),
            _ => None,
        });
        sent.collect()
    }

    /// "source0#1": vertex, subtask and attempt number.
    pub(super) fn name(&self, attempt: ExecutionAttemptId) -> String {
        let index = self.master.graph.index_of(attempt.execution_vertex).unwrap();
        let name = &self.master.graph.job_vertex_of(index).job_vertex.name;
        format!("{name}{}#{}", attempt.execution_vertex.subtask_index, attempt.attempt_number)
    }

    /// All current attempts with their states: "source0#0 RUNNING, …".
    pub(super) fn states(&self) -> String {
        let states = (0..self.master.graph.vertex_count()).map(|vertex| {
            let current = self.master.graph.vertex(vertex).current();
            format!("{} {}", self.name(current.attempt()), current.state())
        });
        states.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn status(&self) -> JobStatus {
        self.master.status()
    }

    /// Checks what must hold of any job's details, and returns them.
    #[track_caller]
    pub(super) fn consistent_details(&self) -> JobDetails {
        let details = self.master.details();
        let overview = self.master.overview();
        assert_eq!(details.status, overview.status);
        let mut counts: BTreeMap<ExecutionState, u32> = BTreeMap::new();
        for subtask in details.vertices.iter().flat_map(|vertex| &vertex.subtasks) {
            let current = &subtask.current;
            *counts.entry(current.state).or_default() += 1;
            assert_eq!(
                current.timestamps.keys().filter(|state| state.is_terminal()).count(),
                usize::from(current.state.is_terminal())
            );
            for (older, newer) in subtask.former.iter().zip(subtask.former.iter().skip(1).chain([current])) {
                assert!(older.state.is_terminal());
                assert_eq!(older.attempt.attempt_number + 1, newer.attempt.attempt_number);
            }
            match details.status {
                JobStatus::Finished => assert_eq!(current.state, ExecutionState::Finished),
                status if status.is_terminal() => assert!(current.state.is_terminal()),
                _ => {}
            }
        }
        assert_eq!(counts, overview.tasks);
        assert!(details.timestamps.contains_key(&details.status));
        assert_eq!(details.status.is_terminal(), overview.ended.is_some());
        assert!(details.status != JobStatus::Failed || details.root_failure.is_some());
        let running =
            counts.get(&ExecutionState::Running).unwrap_or(&0) + counts.get(&ExecutionState::Finished).unwrap_or(&0);
        let is_whole = details.status == JobStatus::Running && running == counts.values().sum::<u32>();
        if is_whole || details.status.is_terminal() {
            assert_eq!(details.downtime.since, None);
        }
        let is_under_way = details.failures.iter().any(|failure| failure.restart == Restart::UnderWay);
        assert!(!(is_whole && is_under_way), "all tasks run, and a restart is under way");
        details
    }
}

/// Encodes and decodes an envelope, which must come out as it went in.
pub(super) fn through_the_wire(envelope: &Envelope) -> Envelope {
    let bytes = postcard::to_stdvec(envelope).unwrap();
    let decoded = postcard::from_bytes(&bytes).unwrap();
    assert_eq!(*envelope, decoded);
    decoded
}

pub(super) fn failure(code: &str, recoverability: Recoverability) -> FailureCause {
    FailureCause {
        code: code.to_owned(),
        message: "index out of bounds".to_owned(),
        detail: String::new(),
        recoverability,
    }
}

pub(super) fn metrics(records_in: u64) -> TaskMetrics {
    TaskMetrics { records_in, ..TaskMetrics::default() }
}

pub(super) fn update(
    attempt: ExecutionAttemptId,
    state: TaskState,
    cause: Option<FailureCause>,
) -> TaskExecutionStateUpdate {
    TaskExecutionStateUpdate { attempt, state, cause, metrics: metrics(1), end_states: BTreeMap::new() }
}

pub(super) fn job_graph(job_id: JobId, vertices: Vec<JobVertex>, configuration: Configuration) -> JobGraph {
    JobGraph {
        job_id,
        name: "test".to_owned(),
        vertices,
        configuration,
        program: ProgramSpec {
            plugin: BlobDigest::from_bytes([1; 32]),
            plugin_name: "test.wasm".to_owned(),
            args: Vec::new(),
            graph_digest: GraphDigest::from_bytes([2; 32]),
        },
        grants: Grants::default(),
        artifacts: Vec::new(),
        json_plan: "{}".to_owned(),
    }
}
