//! Checkpoints, failures and commits of a real JobMaster on a virtual clock, from a seed. Sinks
//! number the rows that they write, and keep the number of the next one as their state: what they
//! have committed at the end has to be all numbers, each once. Tasks fail, acknowledgements are lost,
//! late or doubled, checkpoints are declined, the store fails, finds a checkpoint damaged, or cannot
//! read it for a while. Users take savepoints, and stop jobs with some: what such a job has committed
//! is all that its tasks wrote before.
//!
//! Held at any time: metadata is stored only when every task that takes part has acknowledged with
//! its current attempt; nothing is visible whose metadata is not durable; ids strictly increase.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::{
    checkpoint_coordinator::storage::StorageTask,
    execution_graph::VertexIndex,
    testing::{FakeStorage, Harness, exchange, failure, pipelines, update},
};
use crate::{
    base::{
        clock::Timestamp,
        ids::ExecutionAttemptId,
        status::{ExecutionState, JobStatus},
        stream_element::{CheckpointId, SnapshotLocation, StopMode},
    },
    checkpoint::{CheckpointMetadata, OperatorSubtaskState, TaskStateSnapshot},
    connector::Committable,
    protocol::{
        job_master::{
            AcknowledgeCheckpoint, CheckpointFailureReason, CheckpointMetrics, DeclineCheckpoint, JobMasterMessage,
            RESTORE_FAILURE, Recoverability, SnapshotRequest, TaskState,
        },
        rpc::Address,
        task_executor::{TaskDeployment, TaskExecutorMessage},
    },
};

const SINK: u32 = 2;
/// Faults end some time after the start, and the inputs end then.
const FAULTS: Duration = Duration::from_secs(60);
const END: Duration = Duration::from_secs(3600);

/// Rows `from..to` of one sink task, of a checkpoint.
type Rows = (CheckpointId, u32, u64, u64);

fn named((id, subtask, from, to): Rows) -> String {
    format!("{id}|{subtask}|{from}|{to}")
}

fn rows(name: &str) -> Rows {
    let numbers: Vec<u64> = name.split('|').map(|number| number.parse().unwrap()).collect();
    (numbers[0], u32::try_from(numbers[1]).unwrap(), numbers[2], numbers[3])
}

/// A running task.
struct Task {
    attempt: ExecutionAttemptId,
    /// Number of a sink's next row.
    next: u64,
    /// Ready, and in no checkpoint that the task was told is complete.
    ready: Vec<Rows>,
    triggered: BTreeSet<CheckpointId>,
    is_at_end: bool,
    /// The savepoint that is to stop the job, for which it has stopped.
    stopped_for: Option<CheckpointId>,
    /// Its first checkpoint behind the end of its input.
    last: Option<CheckpointId>,
}

enum Event {
    Message(Address, Box<JobMasterMessage>),
    /// An attempt's end, by its own doing.
    Fails(ExecutionAttemptId, &'static str),
    EndOfData(ExecutionAttemptId),
    Storage,
    /// A user asks for a savepoint.
    Ask,
}

struct Simulation {
    seed: u64,
    rng: StdRng,
    harness: Harness,
    started: Timestamp,
    events: BTreeMap<(Timestamp, u64), Event>,
    numbered: u64,
    tasks: BTreeMap<VertexIndex, Task>,
    /// Attempts that have finished, which the JobMaster may not know yet.
    finished: BTreeSet<ExecutionAttemptId>,
    acknowledged: BTreeSet<(CheckpointId, ExecutionAttemptId)>,
    /// Checkpoints whose metadata was about to be stored.
    checked: BTreeSet<CheckpointId>,
    durable: BTreeSet<String>,
    visible: BTreeSet<Rows>,
    last_id: CheckpointId,
    /// By sink subtask that has finished: number of rows.
    written: BTreeMap<u32, u64>,
    /// By checkpoint and sink subtask that came to its end before: number of rows.
    written_before: BTreeMap<(CheckpointId, u32), u64>,
    fault_rate: f64,
    /// A checkpoint was complete, so that the job never begins from scratch.
    is_committed: bool,
    has_damaged: bool,
    /// Tasks were told that the savepoint is complete for which they have stopped.
    has_begun_to_end: bool,
    done: Done,
}

/// How often something happened.
#[derive(Default)]
struct Done {
    completed: u32,
    savepoints: u32,
    /// A job ended with its savepoint.
    stopped: u32,
    /// It went on, though its savepoint was complete.
    went_on: u32,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let parallelism = rng.random_range(1..4);
        let graph = if rng.random_bool(0.5) { exchange(parallelism) } else { pipelines(parallelism) };
        let concurrent = rng.random_range(1..4).to_string();
        let retained = rng.random_range(1..4).to_string();
        let settings = [
            ("execution.checkpointing.interval", "1 s"),
            ("execution.checkpointing.timeout", "8 s"),
            ("execution.checkpointing.tolerable-failed-checkpoints", "3"),
            ("execution.checkpointing.max-concurrent-checkpoints", concurrent.as_str()),
            ("execution.checkpointing.num-retained", retained.as_str()),
            ("restart-strategy.exponential-delay.max-backoff", "2 s"),
            // Nobody sends any.
            ("heartbeat.timeout", "10 h"),
        ];
        let mut harness = Harness::start(graph, &settings);
        harness.register();
        harness.offer("te", parallelism as usize);
        let fault_rate = if rng.random_bool(0.2) { 0.0 } else { rng.random_range(0.0..0.15) };
        Self {
            seed,
            started: harness.now,
            harness,
            events: BTreeMap::new(),
            numbered: 0,
            tasks: BTreeMap::new(),
            finished: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            checked: BTreeSet::new(),
            durable: BTreeSet::new(),
            visible: BTreeSet::new(),
            last_id: 0,
            written: BTreeMap::new(),
            written_before: BTreeMap::new(),
            fault_rate,
            is_committed: false,
            has_damaged: false,
            has_begun_to_end: false,
            done: Done::default(),
            rng,
        }
    }

    fn has_faults(&self) -> bool {
        self.harness.now < self.started.plus(FAULTS)
    }

    fn is_fault(&mut self) -> bool {
        self.has_faults() && self.rng.random_bool(self.fault_rate)
    }

    fn after(&mut self, millis: std::ops::Range<u64>, event: Event) {
        let at = self.harness.now.plus(Duration::from_millis(self.rng.random_range(millis)));
        self.numbered += 1;
        self.events.insert((at, self.numbered), event);
    }

    fn say(&mut self, millis: std::ops::Range<u64>, message: JobMasterMessage) {
        let from = self.harness.location_of_te();
        self.after(millis, Event::Message(from, Box::new(message)));
    }

    fn run(mut self) -> Done {
        if self.rng.random_bool(0.6) {
            self.after(1..20_000, Event::Ask);
        }
        self.react();
        while self.harness.status() != JobStatus::Finished {
            let now = self.harness.now;
            assert!(
                now < self.started.plus(END),
                "seed {}: the job does not end: {}",
                self.seed,
                self.harness.states()
            );
            let next = self.events.keys().next().map(|(at, _)| *at);
            let deadline = self.harness.next_deadline();
            let at = next.into_iter().chain(deadline).min().expect("something is always due").max(now);
            self.harness.advance(at.since(now));
            if let Some(entry) = self.events.first_entry().filter(|entry| entry.key().0 <= at) {
                let event = entry.remove();
                self.take(event);
            }
            self.react();
            if self.harness.status() == JobStatus::Failed {
                // All that it had were damaged, one after the other.
                let is_left = self.harness.master.checkpoints.latest().is_some();
                assert!(!is_left && self.has_damaged, "seed {}: {:?}", self.seed, self.harness.failures_text());
                return self.done;
            }
        }
        let has_stopped = self.harness.master.details().stopped_with.is_some();
        self.done.stopped = u32::from(has_stopped);
        assert!(has_stopped || !self.has_faults(), "seed {}: it ends before its input does", self.seed);
        self.check_end();
        self.done
    }

    fn take(&mut self, event: Event) {
        match event {
            Event::Message(from, message) => {
                if let JobMasterMessage::AcknowledgeCheckpoint(acknowledge) = message.as_ref() {
                    self.acknowledged.insert((acknowledge.checkpoint_id, acknowledge.attempt));
                }
                self.harness.deliver(from, *message);
            }
            Event::Fails(attempt, code) => {
                if self.remove_task(attempt) {
                    let cause = failure(code, Recoverability::Recoverable);
                    self.harness.report_update(update(attempt, TaskState::Failed, Some(cause)));
                }
            }
            Event::Ask if self.has_faults() => {
                let directory = Some(SnapshotLocation("/points".to_owned()));
                let request = if self.rng.random_bool(0.3) {
                    SnapshotRequest::StopWithSavepoint(directory, StopMode::NoDrain)
                } else {
                    SnapshotRequest::Savepoint(directory)
                };
                self.harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(self.numbered, request));
                self.after(1..20_000, Event::Ask);
            }
            Event::Ask => {}
            Event::EndOfData(attempt) => self.end_of_data(self.harness.vertex_index(attempt), attempt),
            Event::Storage => {
                let mut storage = self.harness.store.0.lock().unwrap();
                let stores = match storage.tasks.front() {
                    Some(StorageTask::Store(metadata, ..)) => Some((**metadata).clone()),
                    _ => None,
                };
                let answer = storage.perform();
                match answer {
                    // Whoever looks at it next can read it, or delete it.
                    Some(JobMasterMessage::CheckpointVerified(..)) => storage.unreadable.clear(),
                    Some(JobMasterMessage::CheckpointRevoked(..)) => storage.is_undeletable = false,
                    _ => {}
                }
                drop(storage);
                if let (Some(metadata), Some(JobMasterMessage::CheckpointStored(_, Ok(())))) = (stores, &answer) {
                    if metadata.kind.is_savepoint() {
                        self.done.savepoints += 1;
                    } else {
                        self.done.completed += 1;
                    }
                    self.durable.extend(names(&metadata));
                }
                if let Some(answer) = answer {
                    self.harness.deliver(Address::JobMaster(self.harness.job), answer);
                }
            }
        }
    }

    /// A task has processed its input, and so may have those behind it.
    fn end_of_data(&mut self, vertex: VertexIndex, attempt: ExecutionAttemptId) {
        let Some(task) = self.tasks.get_mut(&vertex).filter(|task| task.attempt == attempt) else { return };
        if std::mem::replace(&mut task.is_at_end, true) {
            return;
        }
        self.say(50..60, JobMasterMessage::EndOfDataReached(attempt));
        let consumers: Vec<_> = self.tasks.iter().map(|(vertex, task)| (*vertex, task.attempt)).collect();
        for (consumer, attempt) in consumers {
            if self.harness.producers(consumer).contains(&vertex) && self.has_input_ended(consumer) {
                self.end_of_data(consumer, attempt);
            }
        }
    }

    /// Complete checkpoints of the job, whole or damaged, ascending.
    fn checkpoints(&self, storage: &FakeStorage) -> Vec<CheckpointId> {
        let location = &self.harness.master.checkpoints.settings().location;
        storage.stored.keys().filter(|(of, _)| of == location).map(|(_, id)| *id).collect()
    }

    fn has_input_ended(&self, vertex: VertexIndex) -> bool {
        let has_ended = |producer: &VertexIndex| match self.tasks.get(producer) {
            Some(task) => task.is_at_end,
            None => self.finished.contains(&self.harness.current_attempt(*producer)),
        };
        self.harness.producers(vertex).iter().all(has_ended)
    }

    fn remove_task(&mut self, attempt: ExecutionAttemptId) -> bool {
        let before = self.tasks.len();
        self.tasks.retain(|_, task| task.attempt != attempt);
        self.tasks.len() < before
    }

    /// Sees what the JobMaster did, and does what was asked for.
    fn react(&mut self) {
        self.check_stores();
        self.check_journal();
        for (_, message) in self.harness.take_to_task_executors() {
            match message {
                TaskExecutorMessage::SubmitTask(deployment) => {
                    self.done.went_on += u32::from(std::mem::take(&mut self.has_begun_to_end));
                    self.start(&deployment);
                }
                TaskExecutorMessage::CancelTask(attempt) if self.remove_task(attempt) => {
                    let canceled = update(attempt, TaskState::Canceled, None);
                    self.say(1..800, JobMasterMessage::UpdateTaskExecutionState(canceled));
                }
                TaskExecutorMessage::TriggerCheckpoint(trigger) => {
                    let id = trigger.checkpoint_id;
                    assert!(self.last_id <= id, "seed {}: {id} is begun after {}", self.seed, self.last_id);
                    self.last_id = id;
                    self.barrier(trigger.attempt, id, trigger.options.kind.stops_job());
                }
                TaskExecutorMessage::NotifyCheckpointComplete(attempt, id) => self.complete(attempt, id),
                TaskExecutorMessage::NotifyCheckpointAborted(attempt, id) => {
                    let has_stopped = |task: &Task| task.attempt == attempt && task.stopped_for == Some(id);
                    if self.tasks.values().any(has_stopped) {
                        self.after(1..50, Event::Fails(attempt, "stop-given-up"));
                    }
                }
                _ => {}
            }
        }
        let tasks = self.harness.store.0.lock().unwrap().tasks.len();
        let scheduled = self.events.values().filter(|event| matches!(event, Event::Storage)).count();
        for _ in scheduled..tasks {
            if self.is_fault() {
                self.damage_something();
            }
            self.after(1..400, Event::Storage);
        }
    }

    /// The next checkpoint cannot be stored, or the newest one is damaged, if another one is left.
    fn damage_something(&mut self) {
        let mut storage = self.harness.store.0.lock().unwrap();
        let is_going = |id: &CheckpointId| {
            let mut tasks = storage.tasks.iter();
            tasks.any(|task| matches!(task, StorageTask::Discard { checkpoints, .. } if checkpoints.contains(id)))
        };
        let ids = self.checkpoints(&storage).into_iter();
        // Of those whose answer was lost nobody knows.
        let is_lost = |id: &CheckpointId| storage.damaged.contains(id) || storage.doubtful.contains(id);
        let intact: Vec<_> = ids.filter(|id| !is_lost(id) && !is_going(id)).collect();
        let target = if self.rng.random_bool(0.5) { Some(self.last_id) } else { intact.last().copied() };
        let is_only_one = intact.len() < 2 && target.is_some_and(|target| intact.contains(&target));
        if self.rng.random_bool(0.3) {
            storage.doubtful.insert(self.last_id);
            storage.is_undeletable = true;
        } else if let Some(target) = target.filter(|_| !is_only_one) {
            storage.damaged.insert(target);
            self.has_damaged = true;
        }
    }

    fn start(&mut self, deployment: &TaskDeployment) {
        let attempt = deployment.attempt;
        let vertex = self.harness.vertex_index(attempt);
        let restored = deployment.restore.as_ref();
        let position = restored.and_then(|restore| restore.operators.get(&SINK)?.first()?.watermark);
        let subtask = attempt.execution_vertex.subtask_index;
        let next = match (restored, position) {
            (_, Some(position)) => u64::try_from(position).unwrap(),
            (None, None) => 0,
            // It had finished: nothing is left of its input.
            (Some(restore), None) => self.written_before.get(&(restore.checkpoint_id, subtask)).copied().unwrap_or(0),
        };
        let (ready, triggered) = (Vec::new(), BTreeSet::new());
        let task = Task { attempt, next, ready, triggered, is_at_end: false, stopped_for: None, last: None };
        if let Some(restore) = restored {
            let storage = self.harness.store.0.lock().unwrap();
            let id = restore.checkpoint_id;
            let is_newer = |other: CheckpointId| id < other && !storage.damaged.contains(&other);
            let has_newer = self.checkpoints(&storage).into_iter().any(is_newer);
            assert!(!has_newer, "seed {}: {id} is restored, which is not the newest", self.seed);
        }
        let is_damaged = restored
            .is_some_and(|restore| self.harness.store.0.lock().unwrap().damaged.contains(&restore.checkpoint_id));
        let is_unreadable = restored.is_some() && self.is_fault();
        if let Some(restore) = restored.filter(|_| is_unreadable) {
            self.harness.store.0.lock().unwrap().unreadable.insert(restore.checkpoint_id);
        }
        self.tasks.insert(vertex, task);
        self.say(1..20, JobMasterMessage::UpdateTaskExecutionState(update(attempt, TaskState::Initializing, None)));
        if is_damaged || is_unreadable {
            self.after(20..30, Event::Fails(attempt, RESTORE_FAILURE));
            return;
        }
        self.say(30..40, JobMasterMessage::UpdateTaskExecutionState(update(attempt, TaskState::Running, None)));
        if self.is_fault() {
            self.after(40..20_000, Event::Fails(attempt, "guest-panic"));
        }
        let input_ends = self.started.plus(FAULTS).since(self.harness.now);
        let millis = u64::try_from(input_ends.as_millis()).unwrap().max(50);
        if self.harness.producers(vertex).is_empty() {
            self.after(millis..millis + 5000, Event::EndOfData(attempt));
        } else if self.has_input_ended(vertex) {
            self.end_of_data(vertex, attempt);
        }
    }

    /// A barrier came to a task: it takes part, and then those whose inputs have all brought it.
    fn barrier(&mut self, attempt: ExecutionAttemptId, id: CheckpointId, stops: bool) {
        let vertex = self.harness.vertex_index(attempt);
        let Some(task) = self.tasks.get_mut(&vertex).filter(|task| task.attempt == attempt) else { return };
        if !task.triggered.insert(id) {
            return;
        }
        self.snapshot(vertex, id);
        if stops && let Some(task) = self.tasks.get_mut(&vertex) {
            task.stopped_for = Some(id);
        }
        let consumers: Vec<VertexIndex> = self.tasks.keys().copied().collect();
        for consumer in consumers {
            let producers = self.harness.producers(consumer);
            let has_brought = |producer: &VertexIndex| {
                let ended = self.harness.state_of(*producer) == ExecutionState::Finished;
                ended || self.tasks.get(producer).is_some_and(|task| task.triggered.contains(&id))
            };
            if producers.contains(&vertex) && producers.iter().all(has_brought) {
                let attempt = self.tasks[&consumer].attempt;
                self.barrier(attempt, id, stops);
            }
        }
    }

    fn snapshot(&mut self, vertex: VertexIndex, id: CheckpointId) {
        let is_sink = !self.harness.producers(vertex).is_empty();
        let count = self.rng.random_range(0..3);
        let task = self.tasks.get_mut(&vertex).expect("the caller found it");
        let attempt = task.attempt;
        // A source that has stopped is at its end.
        if task.is_at_end || task.stopped_for.is_some() {
            task.last.get_or_insert(id);
        }
        let is_finished = task.is_at_end;
        let mut state = OperatorSubtaskState::default();
        if is_sink {
            if 0 < count && !is_finished && task.stopped_for.is_none() {
                task.ready.push((id, attempt.execution_vertex.subtask_index, task.next, task.next + count));
                task.next += count;
            }
            if is_finished {
                self.written_before.insert((id, attempt.execution_vertex.subtask_index), task.next);
            }
            state.watermark = Some(i64::try_from(task.next).unwrap());
            state.committables = task.ready.iter().map(|rows| Committable(named(*rows).into_bytes())).collect();
        }
        let operators = if is_sink { BTreeMap::from([(SINK, state)]) } else { BTreeMap::new() };
        if self.is_fault() {
            let reason = if self.rng.random_bool(0.5) {
                CheckpointFailureReason::CheckpointDeclined
            } else {
                CheckpointFailureReason::CheckpointDeclinedTaskNotReady
            };
            let decline = DeclineCheckpoint { attempt, checkpoint_id: id, reason, message: "as told".to_owned() };
            self.say(1..300, JobMasterMessage::DeclineCheckpoint(decline));
            return;
        }
        let metrics = CheckpointMetrics::default();
        let state = TaskStateSnapshot { operators, is_finished };
        let acknowledge = AcknowledgeCheckpoint { attempt, checkpoint_id: id, state, metrics };
        let message = || JobMasterMessage::AcknowledgeCheckpoint(Box::new(acknowledge.clone()));
        if self.is_fault() {
            match self.rng.random_range(0..3) {
                // Lost.
                0 => {}
                1 => self.say(1..12_000, message()),
                _ => {
                    self.say(1..300, message());
                    self.say(1..6000, message());
                }
            }
            return;
        }
        self.say(1..300, message());
    }

    fn complete(&mut self, attempt: ExecutionAttemptId, id: CheckpointId) {
        let vertex = self.harness.vertex_index(attempt);
        let Some(task) = self.tasks.get_mut(&vertex).filter(|task| task.attempt == attempt) else { return };
        task.ready.retain(|(belongs_to, ..)| id < *belongs_to);
        let stops = task.stopped_for == Some(id);
        self.is_committed |= !stops;
        self.has_begun_to_end |= stops;
        if stops && self.has_faults() && self.rng.random_bool(0.2) {
            self.after(1..600, Event::Fails(attempt, "guest-panic"));
            return;
        }
        let task = &self.tasks[&vertex];
        if task.last.is_some_and(|last| last <= id) || stops {
            if !self.harness.producers(vertex).is_empty() {
                let task = &self.tasks[&vertex];
                self.written.insert(task.attempt.execution_vertex.subtask_index, task.next);
            }
            self.tasks.remove(&vertex);
            self.finished.insert(attempt);
            let finished = update(attempt, TaskState::Finished, None);
            self.say(1..500, JobMasterMessage::UpdateTaskExecutionState(finished));
        }
    }

    /// Whatever is about to be stored has been acknowledged by all current attempts.
    fn check_stores(&mut self) {
        let storage = self.harness.store.0.lock().unwrap();
        let stores = storage.tasks.iter().filter_map(|task| match task {
            StorageTask::Store(metadata, ..) => Some(metadata.checkpoint_id),
            _ => None,
        });
        let ids: Vec<_> = stores.filter(|id| !self.checked.contains(id)).collect();
        drop(storage);
        for id in ids {
            self.checked.insert(id);
            for vertex in 0..self.harness.vertex_count() {
                let attempt = self.harness.current_attempt(vertex);
                let has_acknowledged = self.acknowledged.contains(&(id, attempt));
                let is_finished = self.harness.state_of(vertex) == ExecutionState::Finished;
                assert!(has_acknowledged || is_finished, "seed {}: {id} is stored without {attempt}", self.seed);
            }
        }
    }

    /// Follows what becomes visible.
    fn check_journal(&mut self) {
        for line in self.harness.journal.take() {
            if let Some(names) = line.strip_prefix("commit ") {
                self.make_visible(names);
            } else if let Some((id, names)) = line.strip_prefix("recover ").and_then(|rest| rest.split_once(": ")) {
                let id: CheckpointId = id.parse().unwrap();
                self.visible.retain(|(belongs_to, ..)| *belongs_to <= id);
                self.make_visible(names);
            } else if line == "prepare" {
                assert!(!self.is_committed, "seed {}: begins from scratch behind a checkpoint", self.seed);
                self.visible.clear();
            }
        }
    }

    fn make_visible(&mut self, names: &str) {
        for name in names.split_whitespace() {
            assert!(self.durable.contains(name), "seed {}: {name} is visible before it is durable", self.seed);
            self.visible.insert(rows(name));
        }
    }

    /// All rows that the last states tell of are visible, each once.
    fn check_end(&self) {
        let mut by_task: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for (_, subtask, from, to) in &self.visible {
            by_task.entry(*subtask).or_default().push((*from, *to));
        }
        for (subtask, written) in &self.written {
            let mut intervals = by_task.remove(subtask).unwrap_or_default();
            intervals.sort_unstable();
            let mut next = 0;
            for (from, to) in intervals {
                assert_eq!(from, next, "seed {}: rows of sink {subtask} are lost or doubled", self.seed);
                next = to;
            }
            assert_eq!(next, *written, "seed {}: the last rows of sink {subtask} are not visible", self.seed);
        }
        assert!(by_task.is_empty(), "seed {}: rows of sinks that never finished", self.seed);
    }
}

fn names(metadata: &CheckpointMetadata) -> Vec<String> {
    let states = metadata.operators.values().flat_map(|operator| operator.subtasks.values());
    let committables = states.flat_map(|state| &state.committables);
    committables.map(|committable| String::from_utf8(committable.0.clone()).unwrap()).collect()
}

impl Harness {
    fn location_of_te(&self) -> Address {
        Address::TaskExecutor(crate::base::ids::ResourceId("te".to_owned()))
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        crate::protocol::rpc::Endpoint::next_deadline(&self.master)
    }

    fn vertex_index(&self, attempt: ExecutionAttemptId) -> VertexIndex {
        self.master.graph.index_of(attempt.execution_vertex).unwrap()
    }

    fn vertex_count(&self) -> usize {
        self.master.graph.vertex_count()
    }

    fn current_attempt(&self, vertex: VertexIndex) -> ExecutionAttemptId {
        self.master.graph.vertex(vertex).current().attempt()
    }

    fn state_of(&self, vertex: VertexIndex) -> ExecutionState {
        self.master.graph.vertex(vertex).current().state()
    }

    fn producers(&self, vertex: VertexIndex) -> Vec<VertexIndex> {
        self.master.graph.producers_of(vertex).collect()
    }

    fn failures_text(&self) -> Vec<String> {
        self.master.details().failures.into_iter().map(|failure| failure.cause.message).collect()
    }
}

fn run_seeds(seeds: std::ops::Range<u64>) {
    let done: Vec<Done> = seeds.map(|seed| Simulation::new(seed).run()).collect();
    let sum = |count: fn(&Done) -> u32| done.iter().map(count).sum::<u32>();
    let sums =
        [sum(|done| done.completed), sum(|done| done.savepoints), sum(|done| done.stopped), sum(|done| done.went_on)];
    let least = [1000, 40, 5, 1];
    assert!(sums.iter().zip(least).all(|(sum, least)| least <= *sum), "too little was done: {sums:?}");
}

#[test]
fn output_is_exactly_once_whatever_fails_1() {
    run_seeds(0..60);
}

#[test]
fn output_is_exactly_once_whatever_fails_2() {
    run_seeds(60..120);
}
