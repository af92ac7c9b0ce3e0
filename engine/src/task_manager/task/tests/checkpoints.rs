//! Whole jobs that take checkpoints, are torn down, and go on from the last one.

use std::collections::{BTreeSet, HashMap};

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

use super::*;
use crate::{
    base::{
        config::Configuration,
        ids::JobVertexId,
        stream_element::{
            CheckpointBarrier, CheckpointId, CheckpointOptions, CheckpointingMode, SnapshotKind, SnapshotLocation,
        },
    },
    checkpoint::{OperatorSubtaskState, TaskRestore, TaskStateSnapshot},
    protocol::{
        job_master::{CheckpointFailureReason, DeclineCheckpoint},
        task_executor::TriggerCheckpoint,
    },
};

const WITH_CHECKPOINTS: &[(&str, &str)] = &[
    ("taskmanager.memory.segment-size", "64"),
    ("taskmanager.network.memory.max-buffers-per-channel", "2"),
    ("execution.checkpointing.interval", "1 h"),
];

/// What a complete checkpoint holds.
#[derive(Clone, Debug, Default)]
struct Completed {
    id: CheckpointId,
    tasks: HashMap<(JobVertexId, u32), TaskStateSnapshot>,
    /// Splits that were not dealt.
    splits: VecDeque<Vec<u8>>,
}

/// Rows by committable.
type Committed = BTreeMap<Vec<u8>, Vec<Vec<u8>>>;

struct PendingCheckpoint {
    id: CheckpointId,
    waits_for: BTreeSet<ExecutionAttemptId>,
    completed: Completed,
}

/// Plays the coordinator of checkpoints.
struct Coordinator<'a> {
    job: &'a TestJob,
    cluster: Cluster,
    next_id: CheckpointId,
    pending: Option<PendingCheckpoint>,
    last: Option<Completed>,
    /// Committed rows, by committable, so that one that is committed again counts once.
    committed: Committed,
    ended: BTreeSet<ExecutionAttemptId>,
    finished: BTreeSet<ExecutionAttemptId>,
    declined: Vec<DeclineCheckpoint>,
    kind: SnapshotKind,
    location: String,
}

fn options(kind: SnapshotKind, location: &str) -> CheckpointOptions {
    CheckpointOptions {
        kind,
        mode: CheckpointingMode::ExactlyOnce,
        location: SnapshotLocation(location.to_owned()),
        is_full: false,
    }
}

impl<'a> Coordinator<'a> {
    fn new(job: &'a TestJob, function: Function, next_id: CheckpointId) -> Self {
        Self {
            job,
            cluster: Cluster::new(job, function),
            next_id,
            pending: None,
            last: None,
            committed: BTreeMap::new(),
            ended: BTreeSet::new(),
            finished: BTreeSet::new(),
            declined: Vec::new(),
            kind: SnapshotKind::Checkpoint,
            location: "nowhere".to_owned(),
        }
    }

    fn running(&self) -> impl Iterator<Item = &TaskDeployment> {
        self.job.deployments.iter().filter(|deployment| !self.finished.contains(&deployment.attempt))
    }

    /// Begins a checkpoint, if none is under way: triggers the tasks that no running task sends a barrier to.
    fn trigger(&mut self) {
        if self.pending.is_some() {
            return;
        }
        let id = self.next_id;
        self.next_id += 1;
        let waits_for = self.running().map(|deployment| deployment.attempt).collect();
        let mut tasks = HashMap::new();
        if let Some(last) = &self.last {
            // Finished tasks stay as they are.
            tasks = last.tasks.clone();
        }
        let splits = self.cluster.splits.clone().unwrap();
        self.pending = Some(PendingCheckpoint { id, waits_for, completed: Completed { id, tasks, splits } });
        for deployment in self.running() {
            let producers = deployment.gates.iter().flat_map(|gate| &gate.channels);
            let mut producers = producers.map(|channel| channel.partition.producer);
            if producers.all(|producer| self.finished.contains(&producer)) {
                let attempt = deployment.attempt;
                let options = options(self.kind, &self.location);
                let trigger = TriggerCheckpoint { attempt, checkpoint_id: id, triggered: Timestamp(0), options };
                self.cluster.tasks[&attempt].trigger_checkpoint(trigger);
            }
        }
    }

    fn abort(&mut self) {
        if let Some(pending) = self.pending.take() {
            for deployment in self.running() {
                self.cluster.tasks[&deployment.attempt].notify_checkpoint_aborted(pending.id);
            }
        }
    }

    fn complete(&mut self) {
        let Some(pending) = self.pending.take_if(|pending| pending.waits_for.is_empty()) else { return };
        let mut completed = pending.completed;
        for state in completed.tasks.values_mut().flat_map(|task| task.operators.values_mut()) {
            for committable in std::mem::take(&mut state.committables) {
                let (_, _, rows): (u64, u32, Vec<Vec<u8>>) = serde_json::from_slice(&committable.0).unwrap();
                self.committed.insert(committable.0, rows);
            }
        }
        self.last = Some(completed);
        if self.kind == SnapshotKind::Savepoint {
            return;
        }
        for deployment in self.running() {
            self.cluster.tasks[&deployment.attempt].notify_checkpoint_complete(pending.id);
        }
    }

    /// Handles one event.
    fn step(&mut self) {
        let has_data = self.running().any(|deployment| !self.ended.contains(&deployment.attempt));
        if !has_data && self.kind == SnapshotKind::Checkpoint {
            self.trigger();
        }
        match self.cluster.events.recv_timeout(DEADLINE).expect("the tasks go on") {
            TaskEvent::StateChanged(update) => {
                if is_terminal(update.state) {
                    assert_ne!(update.state, TaskState::Failed, "{:?}", update.cause);
                    let left = update.end_states.values().flat_map(|state| &state.committables);
                    assert!(left.into_iter().all(|rows| rows.0.ends_with(b",[]]")), "checkpoints commit all rows");
                    self.finished.insert(update.attempt);
                    if self.pending.as_ref().is_some_and(|pending| pending.waits_for.contains(&update.attempt)) {
                        self.abort();
                    }
                }
            }
            TaskEvent::RequestSplit(request) => self.cluster.assign_split(request),
            TaskEvent::ReportWatermark(_) => {}
            TaskEvent::AcknowledgeCheckpoint(acknowledge) => {
                let of = acknowledge.attempt.execution_vertex;
                if let Some(pending) = self.pending.as_mut().filter(|it| it.id == acknowledge.checkpoint_id) {
                    assert!(pending.waits_for.remove(&acknowledge.attempt), "each task acknowledges once");
                    pending.completed.tasks.insert((of.vertex, of.subtask_index), acknowledge.state);
                    self.complete();
                }
            }
            TaskEvent::DeclineCheckpoint(decline) => {
                if self.pending.as_ref().is_some_and(|pending| pending.id == decline.checkpoint_id) {
                    self.abort();
                }
                self.declined.push(decline);
            }
            TaskEvent::EndOfDataReached(attempt) => {
                self.ended.insert(attempt);
            }
        }
    }

    fn has_running(&self) -> bool {
        self.running().next().is_some()
    }

    /// Runs to the end.
    fn finish(&mut self) {
        while self.has_running() {
            self.step();
        }
    }

    /// Tears all tasks down.
    fn cancel(mut self) -> (Option<Completed>, Committed) {
        for deployment in self.running() {
            self.cluster.tasks[&deployment.attempt].cancel();
        }
        while self.has_running() {
            match self.cluster.events.recv_timeout(DEADLINE).expect("the tasks end") {
                TaskEvent::StateChanged(update) if is_terminal(update.state) => {
                    self.finished.insert(update.attempt);
                }
                _ => {}
            }
        }
        (self.last, self.committed)
    }

    /// Starts all tasks, from a checkpoint if there is one.
    fn start(&mut self, from: Option<Completed>) {
        let mut splits = from.as_ref().map(|from| from.splits.clone());
        for deployment in &self.job.deployments {
            let mut deployment = deployment.clone();
            if let (Some(from), Some(splits)) = (&from, &mut splits) {
                deployment.restore = Some(restore(self.job, from, &deployment, splits, &self.location));
            }
            self.cluster.start(self.job, &deployment);
        }
        self.last = from;
        if let Some(splits) = splits {
            self.cluster.splits = Some(splits);
        }
    }
}

/// What a task goes on from; what its sources had left goes back to be dealt again.
fn restore(
    job: &TestJob,
    from: &Completed,
    deployment: &TaskDeployment,
    splits: &mut VecDeque<Vec<u8>>,
    location: &str,
) -> TaskRestore {
    let vertex = job.info.vertices.iter().find(|vertex| vertex.id == deployment.vertex).unwrap();
    let is_finished =
        (0..vertex.parallelism).all(|index| from.tasks.get(&(vertex.id, index)).is_some_and(|task| task.is_finished));
    let task = &from.tasks[&(deployment.vertex, deployment.attempt.execution_vertex.subtask_index)];
    let mut operators: BTreeMap<u32, Vec<OperatorSubtaskState>> = BTreeMap::new();
    for (node, state) in &task.operators {
        let mut state = state.clone();
        splits.extend(std::mem::take(&mut state.splits).into_iter().map(|split| split.0));
        operators.insert(*node, vec![state]);
    }
    TaskRestore { checkpoint_id: from.id, location: SnapshotLocation(location.to_owned()), operators, is_finished }
}

/// Two sources, the second of which brings eight rows for one, and an operator that counts the rows of both.
fn skewed_job() -> TestJob {
    let nodes =
        [source(1, 2, "numbers"), source(2, 1, "numbers"), guest(3, 1), TestNode { ..counts(4, 2) }, sink(5, 2)];
    let edges = [
        edge(1, 4, Partitioner::Hash),
        chained(2, 3),
        TestEdge { input: 1, ..edge(3, 4, Partitioner::Hash) },
        edge(4, 5, Partitioner::Rebalance),
    ];
    TestJob::new(&nodes, &edges, WITH_CHECKPOINTS)
}

/// Node 3 makes eight rows of one.
fn eightfold() -> Function {
    Arc::new(|node, _, payload| Ok(vec![payload.to_vec(); if node == 3 { 8 } else { 1 }]))
}

/// Each number as often as it was counted, once with each count.
fn is_exactly_once(rows: &[Vec<u8>], numbers: u8) -> Result<u64, String> {
    let mut counts: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
    for row in rows {
        let (number, count) = row.split_first().unwrap();
        counts.entry(*number).or_default().push(u64::from_le_bytes(count.try_into().unwrap()));
    }
    if !counts.keys().copied().eq(0..numbers) {
        return Err(format!("{:?} instead of all numbers below {numbers}", counts.keys()));
    }
    let mut total = 0;
    for (number, mut of) in counts {
        of.sort_unstable();
        let count = of.len() as u64;
        // It came by the first source, or eightfold by the second.
        if !of.iter().copied().eq(1..=count) || (count != 1 && count != 8) {
            return Err(format!("number {number} was counted as {of:?}"));
        }
        total += count;
    }
    Ok(total)
}

/// Takes checkpoints at random, kills the job at random, and lets it go on from the last one until it ends.
fn run_with_failures(seed: u64) -> Result<(u32, u32), String> {
    const NUMBERS: u8 = 60;
    let mut random = SmallRng::seed_from_u64(seed);
    let mut from: Option<Completed> = None;
    let mut committed = BTreeMap::new();
    let mut next_id = 1;
    let (mut failures, mut checkpoints) = (0, 0);
    loop {
        let job = skewed_job();
        let mut coordinator = Coordinator::new(&job, eightfold(), next_id);
        coordinator.cluster.splits = Some(numbers(NUMBERS));
        coordinator.start(from.take());
        let steps = if failures < 2 { random.random_range(5..80) } else { u32::MAX };
        for _ in 0..steps {
            if !coordinator.has_running() {
                break;
            }
            if random.random_ratio(1, 6) {
                coordinator.trigger();
            } else if random.random_ratio(1, 20) {
                coordinator.abort();
            }
            coordinator.step();
        }
        checkpoints += coordinator.last.is_some() as u32;
        next_id = coordinator.next_id;
        if coordinator.has_running() {
            let (last, rows) = coordinator.cancel();
            committed.extend(rows);
            from = last;
            failures += 1;
            continue;
        }
        committed.extend(std::mem::take(&mut coordinator.committed));
        let rows: Vec<_> = committed.into_values().flatten().collect();
        is_exactly_once(&rows, NUMBERS).map_err(|error| format!("seed {seed}: {error}"))?;
        return Ok((failures, checkpoints));
    }
}

/// As many cases as fit into so much time, up to 2,000.
const CASES_MAX: u64 = 2_000;
const CASES_TIME: Duration = Duration::from_secs(15);

#[test]
fn state_and_positions_of_a_checkpoint_give_every_row_exactly_once() {
    let begun = Clock::System.monotonic();
    let (mut failures, mut checkpoints) = (0, 0);
    for seed in 0..CASES_MAX {
        let (failed, taken) = run_with_failures(seed).unwrap_or_else(|error| panic!("{error}"));
        failures += failed;
        checkpoints += taken;
        if CASES_TIME < Clock::System.monotonic() - begun {
            break;
        }
    }
    assert!(0 < failures && failures < checkpoints * 3, "{failures} failures, {checkpoints} restores");
}

#[test]
fn a_job_ends_with_a_checkpoint_behind_its_data() {
    let job = skewed_job();
    let mut coordinator = Coordinator::new(&job, eightfold(), 1);
    coordinator.cluster.splits = Some(numbers(20));
    coordinator.start(None);
    coordinator.finish();
    let last = coordinator.last.clone().unwrap();
    assert!(last.tasks.values().all(|task| task.is_finished));
    assert_eq!(last.tasks.len(), 7);
    let rows: Vec<_> = coordinator.committed.values().flatten().cloned().collect();
    is_exactly_once(&rows, 20).unwrap();
    assert_eq!(coordinator.cluster.services.partitions.waiting_count(), 0);

    // Restored, it ends again at once and does nothing.
    let mut again = Coordinator::new(&job, eightfold(), 10);
    again.start(Some(last));
    again.finish();
    assert!(again.cluster.calls.lock().unwrap().is_empty(), "no operator is opened");
    assert!(again.committed.values().all(Vec::is_empty));
    assert!(again.last.unwrap().tasks.values().all(|task| task.is_finished));
}

/// A task whose input a test plays, and whose output it reads.
struct OneTask {
    job: TestJob,
    cluster: Cluster,
    inputs: Vec<ResultPartition>,
    output: crate::task_manager::network::InputGates,
}

impl OneTask {
    /// Runs the operator that counts, with one channel in each of its two gates.
    fn new(settings: &[(&str, &str)]) -> Self {
        let nodes = [source(1, 1, "numbers"), source(2, 1, "numbers"), counts(3, 1), sink(4, 1)];
        let edges = [
            edge(1, 3, Partitioner::Hash),
            TestEdge { input: 1, ..edge(2, 3, Partitioner::Hash) },
            TestEdge { buffer_timeout: 0, ..edge(3, 4, Partitioner::Rebalance) },
        ];
        let job = TestJob::new(&nodes, &edges, settings);
        let mut cluster = Cluster::new(&job, identity());
        let network = NetworkConfig::new(&Configuration::default());
        let partition = |index: usize| {
            let deployed = &job.deployments[index].partitions[0];
            ResultPartition::new(
                &cluster.services.partitions,
                &ResultPartitionSettings {
                    id: deployed.partition,
                    partitioner: Partitioner::Rebalance,
                    subpartitions: 1,
                    consumer_max_parallelism: 1,
                    flush: FlushPolicy::EachBatch,
                    network,
                },
            )
        };
        let inputs = vec![partition(0), partition(1)];
        let gates = [vec![(job.deployments[2].partitions[0].partition, 0)]];
        let output = crate::task_manager::network::InputGates::new(&cluster.services.partitions, &gates, 100);
        cluster.start(&job, &job.deployments[2].clone());
        cluster.until_running(job.deployments[2].attempt);
        Self { job, cluster, inputs, output }
    }

    fn attempt(&self) -> ExecutionAttemptId {
        self.job.deployments[2].attempt
    }

    fn task(&self) -> &dyn RunningTask {
        &*self.cluster.tasks[&self.attempt()]
    }

    fn send(&mut self, input: usize, element: StreamElement) {
        match element {
            StreamElement::Records(batch) => {
                self.inputs[input].emit_batch(&batch).unwrap();
                self.inputs[input].flush();
            }
            element => self.inputs[input].broadcast(&element),
        }
    }

    /// The next thing that the task sends to its consumer, a row as its bytes.
    #[track_caller]
    fn receive(&mut self) -> Result<Vec<u8>, StreamElement> {
        let clock = Clock::System;
        let deadline = clock.monotonic() + DEADLINE;
        loop {
            assert!(clock.monotonic() < deadline, "nothing came in time");
            match self.output.poll().unwrap() {
                Some(of) => match of.element {
                    StreamElement::Records(batch) => return Ok(batch.data.to_vec()),
                    element => return Err(element),
                },
                None => std::thread::yield_now(),
            }
        }
    }

    /// The next event that is about a checkpoint.
    #[track_caller]
    fn checkpoint_event(&self) -> TaskEvent {
        loop {
            match self.cluster.events.recv_timeout(DEADLINE).expect("the task says something") {
                TaskEvent::StateChanged(update) => assert!(!is_terminal(update.state), "{:?}", update.cause),
                event => return event,
            }
        }
    }
}

fn row(payload: &[u8]) -> StreamElement {
    let mut data = Vec::new();
    let row = engine_rows::row::Row { key_hash: 0, timestamp: engine_rows::row::NO_TIMESTAMP, payload };
    engine_rows::row::append(&mut data, row);
    StreamElement::Records(crate::base::stream_element::RecordBatch {
        kind: crate::base::stream_element::BatchKind::Rows,
        count: 1,
        data: bytes::Bytes::from(data),
    })
}

fn barrier(checkpoint_id: CheckpointId) -> StreamElement {
    let options = options(SnapshotKind::Checkpoint, "nowhere");
    StreamElement::CheckpointBarrier(CheckpointBarrier { checkpoint_id, triggered: Timestamp(0), options })
}

#[test]
fn rows_behind_a_barrier_wait_until_all_barriers_have_come() {
    let mut task = OneTask::new(&[]);
    task.send(0, row(b"a"));
    task.send(0, barrier(1));
    task.send(0, row(b"behind"));
    task.send(1, row(b"before"));
    let a = task.receive().unwrap();
    assert!(a.windows(1).any(|byte| byte == b"a"));
    assert!(task.receive().unwrap().windows(6).any(|bytes| bytes == b"before"));
    task.send(1, barrier(1));
    assert_eq!(task.receive().unwrap_err(), barrier(1));
    assert!(task.receive().unwrap().windows(6).any(|bytes| bytes == b"behind"));
    let TaskEvent::AcknowledgeCheckpoint(acknowledge) = task.checkpoint_event() else { panic!("no answer") };
    let lists = &acknowledge.state.operators[&3].lists;
    let counted: BTreeSet<_> = lists[0].elements.iter().map(|element| element[8..].to_vec()).collect();
    assert_eq!(counted, BTreeSet::from([b"a".to_vec(), b"before".to_vec()]));
    assert_eq!(lists[0].declaration.name, COUNTS);
    task.task().notify_checkpoint_complete(1);
    // It is told once, and of a checkpoint that it did not take not at all.
    task.task().notify_checkpoint_complete(1);
    task.send(0, barrier(2));
    task.send(1, StreamElement::CancelCheckpoint(2));
    assert_eq!(task.receive().unwrap_err(), StreamElement::CancelCheckpoint(2));
    let TaskEvent::DeclineCheckpoint(decline) = task.checkpoint_event() else { panic!("no answer") };
    assert_eq!(decline.reason, CheckpointFailureReason::CheckpointDeclinedOnCancellationBarrier);
    let calls = task.cluster.calls.lock().unwrap()[&(3, 0)].clone();
    assert_eq!(calls, [Call::Open, Call::Snapshot(1), Call::Complete(1)]);
    let attempt = task.attempt();
    task.cluster.cancel(attempt);
}

#[test]
fn at_least_once_rows_behind_a_barrier_wait_for_no_other_channel() {
    let mut task = OneTask::new(&[("execution.checkpointing.mode", "AT_LEAST_ONCE")]);
    task.send(0, row(b"a"));
    task.send(0, barrier(1));
    task.send(0, row(b"behind"));
    assert!(task.receive().unwrap().windows(1).any(|byte| byte == b"a"));
    // The other channel is silent: exactly once, this would never come.
    assert!(task.receive().unwrap().windows(6).any(|bytes| bytes == b"behind"));
    task.send(1, row(b"before"));
    assert!(task.receive().unwrap().windows(6).any(|bytes| bytes == b"before"));
    task.send(1, barrier(1));
    assert_eq!(task.receive().unwrap_err(), barrier(1));
    let TaskEvent::AcknowledgeCheckpoint(acknowledge) = task.checkpoint_event() else { panic!("no answer") };
    let lists = &acknowledge.state.operators[&3].lists;
    let counted: BTreeSet<_> = lists[0].elements.iter().map(|element| element[8..].to_vec()).collect();
    // It is in the state, and is sent again after a failure: twice, but not lost.
    assert_eq!(counted, BTreeSet::from([b"a".to_vec(), b"before".to_vec(), b"behind".to_vec()]));
    let attempt = task.attempt();
    task.cluster.cancel(attempt);
}

#[test]
fn a_checkpoint_that_was_given_up_before_its_barrier_is_passed_on_as_given_up() {
    let mut task = OneTask::new(&[]);
    task.task().notify_checkpoint_aborted(4);
    task.send(0, barrier(4));
    assert_eq!(task.receive().unwrap_err(), StreamElement::CancelCheckpoint(4));
    task.send(1, barrier(4));
    // While others are waited for, the channels that waited are read again.
    task.send(1, barrier(5));
    task.send(1, row(b"later"));
    task.task().notify_checkpoint_aborted(5);
    let later = [task.receive(), task.receive()];
    assert!(later.contains(&Err(StreamElement::CancelCheckpoint(5))), "{later:?}");
    let attempt = task.attempt();
    task.cluster.cancel(attempt);
}

#[test]
fn a_savepoint_that_drains_holds_what_operators_flush_and_ends_the_job() {
    for mode in [StopMode::Drain, StopMode::NoDrain] {
        for settings in [WITH_CHECKPOINTS, SMALL] {
            let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
            let edges = [edge(1, 2, Partitioner::Hash), edge(2, 3, Partitioner::Rebalance)];
            let job = TestJob::new(&nodes, &edges, settings);
            let mut coordinator = Coordinator::new(&job, identity(), 1);
            // The source waits for a split that does not come.
            coordinator.cluster.splits = None;
            coordinator.cluster.start_all(&job);
            coordinator.cluster.until_split_request();
            coordinator.cluster.splits = Some(VecDeque::new());
            coordinator.kind = SnapshotKind::StopWithSavepoint(mode);
            coordinator.trigger();
            coordinator.finish();
            let last = coordinator.last.unwrap();
            assert_eq!(last.id, 1, "{mode:?}");
            assert!(last.tasks.values().all(|task| task.is_finished == (mode == StopMode::Drain)), "{mode:?}");
            let calls = coordinator.cluster.calls.lock().unwrap()[&(2, 0)].clone();
            let expected: &[Call] = match mode {
                StopMode::Drain => &[
                    Call::Open,
                    Call::Watermark(Timestamp::MAX),
                    Call::EndInput(0),
                    Call::Snapshot(1),
                    Call::Complete(1),
                    Call::Close,
                ],
                StopMode::NoDrain => &[Call::Open, Call::Snapshot(1), Call::Complete(1), Call::Close],
            };
            assert_eq!(calls, expected, "{mode:?}");
        }
    }
}

#[test]
fn a_savepoint_that_is_given_up_fails_the_tasks_that_have_stopped_for_it() {
    let nodes = [source(1, 1, "numbers"), sink(2, 1)];
    let job = TestJob::new(&nodes, &[chained(1, 2)], WITH_CHECKPOINTS);
    let mut coordinator = Coordinator::new(&job, identity(), 1);
    coordinator.cluster.splits = None;
    coordinator.cluster.start_all(&job);
    coordinator.cluster.until_split_request();
    coordinator.cluster.splits = Some(VecDeque::new());
    coordinator.kind = SnapshotKind::StopWithSavepoint(StopMode::NoDrain);
    coordinator.trigger();
    coordinator.abort();
    let update = coordinator.cluster.until_update(|update| is_terminal(update.state));
    let cause = update.cause.unwrap();
    assert_eq!((update.state, cause.code.as_str()), (TaskState::Failed, "savepoint-failed"), "{}", cause.message);
}

#[test]
fn what_a_savepoint_completed_is_committed_by_the_next_checkpoint() {
    let nodes = [source(1, 1, "numbers"), sink(2, 1)];
    let job = TestJob::new(&nodes, &[chained(1, 2)], WITH_CHECKPOINTS);
    let mut coordinator = Coordinator::new(&job, identity(), 1);
    coordinator.cluster.splits = None;
    coordinator.cluster.start_all(&job);
    coordinator.cluster.until_split_request();
    coordinator.cluster.splits = Some(VecDeque::new());
    let attempt = only(&job);
    coordinator.cluster.answer_split(attempt, 1, SplitAssignment::Split(SourceSplit(vec![7, 8])));
    coordinator.cluster.until_split_request();
    coordinator.kind = SnapshotKind::Savepoint;
    coordinator.trigger();
    while coordinator.pending.is_some() {
        coordinator.step();
    }
    let of_savepoint = std::mem::take(&mut coordinator.committed);
    assert_eq!(of_savepoint.values().flatten().count(), 2);
    coordinator.kind = SnapshotKind::Checkpoint;
    coordinator.cluster.answer_split(attempt, 1, SplitAssignment::NoMoreSplits);
    coordinator.finish();
    assert!(of_savepoint.keys().all(|committable| coordinator.committed.contains_key(committable)));
}

/// A job whose operator keeps a timer for each row that came, and passes rows on.
fn timers_job(settings: &[(&str, &str)]) -> TestJob {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    TestJob::new(&nodes, &[edge(1, 2, Partitioner::Hash), edge(2, 3, Partitioner::Rebalance)], settings)
}

#[test]
fn keyed_state_is_written_to_files_and_read_again_in_full_or_by_what_changed() {
    let directory = tempfile::tempdir().unwrap();
    let location = directory.path().canonicalize().unwrap().to_str().unwrap().to_owned();
    for is_incremental in ["false", "true"] {
        let settings = [
            ("execution.checkpointing.interval", "1 h"),
            ("execution.checkpointing.incremental", is_incremental),
            ("execution.checkpointing.data-inline-threshold", "0 kb"),
        ];
        let job = timers_job(&settings);
        let registers: Registers = Arc::new(|cause| match cause {
            Cause::Row(row) => vec![(TimeDomain::EventTime, i64::from(row[0]))],
            Cause::Timer(_) => Vec::new(),
        });
        let mut coordinator = Coordinator::new(&job, identity(), 1);
        coordinator.location.clone_from(&location);
        coordinator.cluster = Cluster::with_timers(&job, identity(), Arc::clone(&registers));
        coordinator.cluster.splits = None;
        coordinator.start(None);
        coordinator.cluster.until_split_request();
        coordinator.cluster.splits = Some(VecDeque::new());
        let source = job.deployments[0].attempt;
        let mut parts = Vec::new();
        for numbers in [vec![1, 2, 3], vec![4], vec![5]] {
            let split = SplitAssignment::Split(SourceSplit(numbers));
            coordinator.cluster.answer_split(source, 1, split);
            coordinator.cluster.until_split_request();
            coordinator.trigger();
            while coordinator.pending.is_some() {
                coordinator.step();
            }
            let last = coordinator.last.as_ref().unwrap();
            let task = &last.tasks[&(job.deployments[1].vertex, 0)];
            let keyed = task.operators[&2].keyed.as_ref().unwrap();
            assert_eq!(keyed.key_groups, (0, 127));
            parts.push(keyed.parts.iter().map(|part| part.checkpoint_id).collect::<Vec<_>>());
        }
        let expected: &[Vec<u64>] = match is_incremental {
            "true" => &[vec![1], vec![1, 2], vec![1, 2, 3]],
            _ => &[vec![1], vec![2], vec![3]],
        };
        // A log is written only where it is shorter than the state itself.
        assert!(parts == expected || is_incremental == "true" && parts[0] == [1], "{parts:?}");
        let (last, _) = coordinator.cancel();

        let mut again = Coordinator::new(&job, identity(), 10);
        again.location.clone_from(&location);
        again.cluster = Cluster::with_timers(&job, identity(), registers);
        again.start(last);
        again.finish();
        let calls = again.cluster.calls.lock().unwrap()[&(2, 0)].clone();
        assert!(calls.contains(&Call::FireTimers(TimeDomain::EventTime, Timestamp::MAX, 5)), "{calls:?}");
    }
}

/// Deals a split and waits until the operators have its rows in a checkpoint.
fn checkpoint_behind(coordinator: &mut Coordinator<'_>, split: Vec<u8>) {
    let source = coordinator.job.deployments[0].attempt;
    coordinator.cluster.answer_split(source, 1, SplitAssignment::Split(SourceSplit(split)));
    coordinator.cluster.until_split_request();
    coordinator.trigger();
    while coordinator.pending.is_some() {
        coordinator.step();
    }
}

#[test]
fn state_that_is_taken_at_the_end_is_in_checkpoints_until_then_and_never_after() {
    let nodes = [source(1, 1, "numbers"), taken(2, 1), sink(3, 1)];
    let edges = [edge(1, 2, Partitioner::Hash), edge(2, 3, Partitioner::Rebalance)];
    for settings in [&[][..], &[("execution.checkpointing.incremental", "true")]] {
        let job = TestJob::new(&nodes, &edges, &[WITH_CHECKPOINTS, settings].concat());
        let keyed = |of: &Completed| of.tasks[&(job.deployments[1].vertex, 0)].operators[&2].keyed.clone();
        let taken = |coordinator: &Coordinator<'_>| {
            let calls = coordinator.cluster.calls.lock().unwrap()[&(2, 0)].clone();
            let counts = calls.iter().map(|call| if let Call::TakeState(count) = call { *count } else { 0 });
            counts.sum::<u32>()
        };
        let mut coordinator = Coordinator::new(&job, identity(), 1);
        coordinator.cluster.splits = None;
        coordinator.start(None);
        coordinator.cluster.until_split_request();
        coordinator.cluster.splits = Some(VecDeque::new());
        checkpoint_behind(&mut coordinator, vec![1, 2, 3]);
        checkpoint_behind(&mut coordinator, vec![3, 4]);
        assert_eq!(taken(&coordinator), 0);
        assert!(coordinator.committed.values().all(Vec::is_empty));
        let (last, _) = coordinator.cancel();

        // What was there is taken once, with what comes; the checkpoint behind it has nothing.
        let mut again = Coordinator::new(&job, identity(), 10);
        again.cluster.splits = None;
        again.start(last.clone());
        again.cluster.splits = Some(VecDeque::from([vec![5]]));
        again.finish();
        assert_eq!(taken(&again), 5);
        let mut rows: Vec<_> = again.committed.values().flatten().cloned().collect();
        rows.sort_unstable();
        assert_eq!(rows, [1, 2, 3, 4, 5].map(|number| vec![number]));
        let end = again.last.unwrap();
        assert!(keyed(last.as_ref().unwrap()).is_some() && end.tasks.values().all(|task| task.is_finished));

        // A subtask that goes on from there, since others of its vertex had not ended, takes nothing again.
        let mut state = end.tasks[&(job.deployments[1].vertex, 0)].operators[&2].clone();
        assert_eq!(state.watermark, Some(i64::MAX));
        state.committables.clear();
        let mut cluster = Cluster::new(&job, identity());
        let mut deployment = job.deployments[1].clone();
        deployment.restore = Some(TaskRestore {
            checkpoint_id: end.id,
            location: SnapshotLocation("nowhere".to_owned()),
            operators: BTreeMap::from([(2, vec![state])]),
            is_finished: false,
        });
        cluster.start(&job, &deployment);
        let source = &job.deployments[0];
        let mut finished = source.clone();
        finished.restore = Some(TaskRestore {
            checkpoint_id: end.id,
            location: SnapshotLocation("nowhere".to_owned()),
            operators: BTreeMap::new(),
            is_finished: true,
        });
        cluster.start(&job, &finished);
        cluster.start(&job, &job.deployments[2]);
        cluster.until(|cluster| {
            let calls = cluster.calls.lock().unwrap();
            calls.get(&(2, 0)).is_some_and(|calls| calls.contains(&Call::EndInput(0)))
        });
        let calls = cluster.calls.lock().unwrap()[&(2, 0)].clone();
        assert_eq!(calls[..3], [Call::Open, Call::Watermark(Timestamp::MAX), Call::EndInput(0)], "{calls:?}");
        for deployment in &job.deployments {
            cluster.cancel(deployment.attempt);
        }
    }
}

#[test]
fn a_file_that_is_missing_fails_the_task_that_needs_it() {
    let job = timers_job(WITH_CHECKPOINTS);
    let mut cluster = Cluster::new(&job, identity());
    let file = crate::checkpoint::StateFile { path: "shared/gone".to_owned(), bytes: 3, crc32: 0 };
    let part = crate::checkpoint::KeyedStatePart {
        checkpoint_id: 7,
        data: crate::checkpoint::StateData::File(file),
        sections: Vec::new(),
    };
    let keyed = crate::checkpoint::KeyedStateHandle {
        key_groups: (0, 127),
        key_type: "bytes".to_owned(),
        states: Vec::new(),
        parts: vec![part],
    };
    let state = OperatorSubtaskState { keyed: Some(keyed), ..OperatorSubtaskState::default() };
    let directory = tempfile::tempdir().unwrap();
    let mut deployment = job.deployments[1].clone();
    deployment.restore = Some(TaskRestore {
        checkpoint_id: 7,
        location: SnapshotLocation(directory.path().canonicalize().unwrap().to_str().unwrap().to_owned()),
        operators: BTreeMap::from([(2, vec![state])]),
        is_finished: false,
    });
    cluster.start(&job, &deployment);
    let update = cluster.until_update(|update| is_terminal(update.state));
    let cause = update.cause.unwrap();
    assert_eq!(cause.code, "restore-failed", "{}", cause.message);
    assert!(cause.message.contains("could not restore checkpoint 7: "), "{}", cause.message);
    assert!(cause.message.contains("shared/gone"), "{}", cause.message);
}

#[test]
fn an_operator_goes_on_at_the_watermark_that_it_had() {
    let job = timers_job(WITH_CHECKPOINTS);
    let mut cluster = Cluster::new(&job, identity());
    let state = |watermark| OperatorSubtaskState { watermark, ..OperatorSubtaskState::default() };
    let mut deployment = job.deployments[1].clone();
    deployment.restore = Some(TaskRestore {
        checkpoint_id: 7,
        location: SnapshotLocation("nowhere".to_owned()),
        operators: BTreeMap::from([(2, vec![state(Some(30)), state(Some(20))])]),
        is_finished: false,
    });
    cluster.start(&job, &deployment);
    cluster.until(|cluster| cluster.calls.lock().unwrap().get(&(2, 0)).is_some_and(|calls| calls.len() == 2));
    let calls = cluster.calls.lock().unwrap()[&(2, 0)].clone();
    assert_eq!(calls, [Call::Open, Call::Watermark(Timestamp(20))]);
    cluster.cancel(deployment.attempt);
}
