//! The coordinator by itself: the test plays tasks and store.

use serde_json::Value;

use super::*;
use crate::{
    base::{
        config::{Configuration, Origin},
        ids::ExecutionGraphId,
        stream_element::StopMode,
    },
    checkpoint::{FinishedState, KeyedStateHandle, KeyedStatePart, OperatorSubtaskState, StateData, StateFile},
    graph::job_graph::JobGraph,
    job_manager::job_master::testing::{exchange, job_graph},
    protocol::{checkpoint_details::CheckpointStatus, job_master::CheckpointMetrics},
};

const SECOND: Duration = Duration::from_secs(1);
/// Node ids of source and sink.
const SOURCE: u32 = 1;
const SINK: u32 = 2;

struct Harness {
    coordinator: CheckpointCoordinator,
    job: JobGraph,
    now: Timestamp,
    /// Number of the current attempts.
    attempt_number: u32,
}

impl Harness {
    /// Two sources and two sinks, and an interval of a second unless set otherwise.
    fn new(settings: &[(&str, &str)]) -> Self {
        let mut configuration = Configuration::default();
        configuration.set("execution.checkpointing.interval", "1 s", Origin::File).unwrap();
        for (key, value) in settings {
            configuration.set(&format!("execution.checkpointing.{key}"), value, Origin::Program).unwrap();
        }
        let id = JobId::from_bytes([7; 16]);
        let settings = CheckpointSettings::new(&configuration, id, "/state".as_ref());
        let job = job_graph(id, exchange(2).build(), configuration);
        let mut coordinator = CheckpointCoordinator::new(id, settings);
        coordinator.start(Timestamp(0));
        Self { coordinator, job, now: Timestamp(0), attempt_number: 0 }
    }

    fn attempts(&self) -> Vec<ExecutionAttemptId> {
        let tasks = self.job.vertices.iter().flat_map(|vertex| {
            (0..vertex.parallelism).map(|subtask_index| ExecutionVertexId { vertex: vertex.id, subtask_index })
        });
        let attempt = |execution_vertex| ExecutionAttemptId {
            graph: ExecutionGraphId::from_bytes([1; 16]),
            execution_vertex,
            attempt_number: self.attempt_number,
        };
        tasks.map(attempt).collect()
    }

    /// Begins what is due, if anything.
    fn begin(&mut self) -> Option<Begun> {
        let request = self.coordinator.next_request(self.now)?;
        let to_wait = self.attempts().into_iter().map(|attempt| (attempt.execution_vertex, attempt)).collect();
        let participants = Participants { to_wait, ..Participants::default() };
        let begun = self.coordinator.begin(request, &self.job, participants, self.now);
        self.coordinator.set_coordinators(begun.id, BTreeMap::from([(SOURCE, vec![begun.id as u8])]));
        Some(begun)
    }

    /// Lets the interval pass and begins.
    fn begin_periodic(&mut self) -> CheckpointId {
        self.now = self.now.plus(SECOND);
        self.begin().expect("due after an interval").id
    }

    fn acknowledge(&mut self, id: CheckpointId, task: usize, state: TaskStateSnapshot) {
        let acknowledge = acknowledgement(self.attempts()[task], id, state);
        self.coordinator.acknowledge(acknowledge, &self.job, self.now);
    }

    fn acknowledge_all(&mut self, id: CheckpointId) {
        (0..4).for_each(|task| self.acknowledge(id, task, TaskStateSnapshot::default()));
    }

    /// Acknowledges by all, stores, and returns what follows.
    fn complete(&mut self, id: CheckpointId) -> Vec<Effect> {
        self.acknowledge_all(id);
        self.store(id)
    }

    fn store(&mut self, id: CheckpointId) -> Vec<Effect> {
        let before = self.coordinator.take_effects();
        let stores = |effect: &Effect| matches!(effect, Effect::Storage(StorageTask::Store(metadata, ..)) if metadata.checkpoint_id == id);
        assert!(before.iter().any(stores), "{id} is not being stored: {before:?}");
        self.coordinator.stored(id, Ok(()), self.now);
        self.coordinator.take_effects()
    }

    fn decline(&mut self, id: CheckpointId, reason: CheckpointFailureReason) -> Vec<Effect> {
        let attempt = self.attempts()[0];
        self.coordinator.decline(attempt, id, reason, "as told", self.now);
        self.coordinator.take_effects()
    }

    fn statuses(&self) -> Vec<(CheckpointId, CheckpointStatus)> {
        let statistics = self.coordinator.statistics().unwrap();
        statistics.history.iter().map(|details| (details.id, details.status)).collect()
    }
}

fn acknowledgement(
    attempt: ExecutionAttemptId,
    checkpoint_id: CheckpointId,
    state: TaskStateSnapshot,
) -> AcknowledgeCheckpoint {
    AcknowledgeCheckpoint { attempt, checkpoint_id, state, metrics: CheckpointMetrics::default() }
}

fn with_committable(name: &str) -> TaskStateSnapshot {
    let committables = vec![Committable(name.as_bytes().to_vec())];
    let state = OperatorSubtaskState { committables, ..OperatorSubtaskState::default() };
    TaskStateSnapshot { operators: BTreeMap::from([(SINK, state)]), is_finished: false }
}

fn file(path: &str) -> StateFile {
    StateFile { path: path.to_owned(), bytes: 10, crc32: 0 }
}

/// Keyed state that was written by checkpoints, each with a file of that name.
fn with_files(parts: &[(CheckpointId, &str)]) -> TaskStateSnapshot {
    let part = |(id, path): &(CheckpointId, &str)| KeyedStatePart {
        checkpoint_id: *id,
        data: StateData::File(file(path)),
        sections: Vec::new(),
    };
    let keyed = KeyedStateHandle {
        key_groups: (0, 63),
        key_type: "u64".to_owned(),
        states: Vec::new(),
        parts: parts.iter().map(part).collect(),
    };
    let state = OperatorSubtaskState { keyed: Some(keyed), ..OperatorSubtaskState::default() };
    TaskStateSnapshot { operators: BTreeMap::from([(SINK, state)]), is_finished: false }
}

fn committed(effects: &[Effect]) -> Vec<String> {
    let parts = effects.iter().filter_map(|effect| match effect {
        Effect::Completed(parts) => Some(parts),
        _ => None,
    });
    let committables = parts.flat_map(|parts| parts.committables.values().flatten());
    committables.map(|committable| String::from_utf8(committable.0.clone()).unwrap()).collect()
}

fn deleted(effects: &[Effect]) -> (Vec<CheckpointId>, Vec<String>) {
    let (mut metadata, mut paths) = (Vec::new(), Vec::new());
    for effect in effects {
        match effect {
            Effect::Storage(StorageTask::Discard { checkpoints, files, .. }) => {
                metadata.extend(checkpoints);
                paths.extend(files.iter().cloned());
            }
            Effect::Storage(StorageTask::Revoke { id, files, .. }) => {
                metadata.push(*id);
                paths.extend(files.iter().cloned());
            }
            _ => {}
        }
    }
    (metadata, paths)
}

fn has_aborted(effects: &[Effect], id: CheckpointId) -> bool {
    effects
        .iter()
        .any(|effect| matches!(effect, Effect::NotifyAborted(aborted, tasks) if *aborted == id && tasks.len() == 4))
}

#[test]
fn a_checkpoint_is_complete_when_all_have_acknowledged_and_its_metadata_is_stored() {
    let mut harness = Harness::new(&[]);
    let id = harness.begin_periodic();
    assert_eq!(id, 1);
    for task in 0..3 {
        harness.acknowledge(id, task, TaskStateSnapshot::default());
        harness.acknowledge(id, task, TaskStateSnapshot::default());
    }
    assert_eq!(harness.coordinator.take_effects(), [], "twice the same is once");
    assert!(!harness.coordinator.is_undecided());
    harness.acknowledge(id, 3, TaskStateSnapshot { is_finished: true, ..TaskStateSnapshot::default() });
    let effects = harness.coordinator.take_effects();
    let [Effect::Storage(StorageTask::Store(metadata, location, _))] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!(location.0, format!("/state/checkpoints/{}", harness.job.job_id));
    let operators: Vec<_> = metadata.operators.values().collect();
    assert_eq!(operators.iter().map(|operator| operator.name.as_str()).collect::<Vec<_>>(), ["source", "sink"]);
    assert_eq!(operators[0].coordinator, Some(vec![1]));
    assert_eq!((operators[0].finished, operators[1].finished), (FinishedState::None, FinishedState::Partly));
    assert_eq!((operators[1].parallelism, operators[1].max_parallelism), (2, 128));
    assert!(harness.coordinator.is_undecided() && harness.coordinator.latest().is_none());
    harness.coordinator.stored(id, Ok(()), harness.now);
    let effects = harness.coordinator.take_effects();
    let [Effect::Completed(parts), Effect::NotifyComplete(1, told)] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!((parts.id, told.len()), (1, 4));
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(1));
    assert_eq!(harness.statuses(), [(1, CheckpointStatus::Completed)]);
    harness.coordinator.stored(id, Ok(()), harness.now);
    assert_eq!(harness.coordinator.take_effects(), [], "said twice");
}

#[test]
fn intervals_are_flinks() {
    let text = include_str!("../../../../tests-data/job_master/checkpoint_coordinator.json");
    let vectors: Value = serde_json::from_str(text).unwrap();
    let cases = vectors["interval"].as_array().unwrap();
    assert_eq!(cases.len(), 4);
    for case in cases {
        let interval = format!("{} ms", case["interval_ms"]);
        let pause = format!("{} ms", case["min_pause_ms"].as_u64().unwrap_or(0));
        if case["invalid"] == true {
            let mut configuration = Configuration::default();
            assert!(
                configuration.set("execution.checkpointing.interval", &interval, Origin::Program).is_err(),
                "{case}"
            );
            continue;
        }
        let range = case["first_delay_range_ms"].as_array().unwrap();
        let (least, greatest) = (range[0].as_i64().unwrap(), range[1].as_i64().unwrap());
        let mut met = BTreeSet::new();
        for _ in 0..50 {
            let harness = Harness::new(&[("interval", &interval), ("min-pause", &pause)]);
            let effective = harness.coordinator.settings().interval.unwrap().as_millis();
            assert_eq!(effective, u128::from(case["effective_interval_ms"].as_u64().unwrap()), "{case}");
            let Timestamp(first) = harness.coordinator.next_deadline().unwrap();
            assert!(least <= first && first <= greatest, "{first} {case}");
            met.insert(first);
        }
        assert!(least == greatest || 1 < met.len(), "the delay is random");
    }
}

#[test]
fn a_pause_is_counted_from_the_end_of_the_last_one() {
    let mut harness = Harness::new(&[("min-pause", "800 ms")]);
    let id = harness.begin_periodic();
    harness.now = harness.now.plus(Duration::from_millis(500));
    harness.complete(id);
    harness.now = harness.now.plus(Duration::from_millis(500));
    assert_eq!(harness.begin(), None, "due by the interval, but 500 ms after the end");
    assert_eq!(harness.coordinator.next_deadline(), Some(harness.now.plus(Duration::from_millis(300))));
    harness.now = harness.now.plus(Duration::from_millis(300));
    assert_eq!(harness.begin().map(|begun| begun.id), Some(2));
}

#[test]
fn what_takes_too_long_is_given_up_and_what_comes_late_is_deleted() {
    let mut harness = Harness::new(&[("timeout", "10 s"), ("tolerable-failed-checkpoints", "1")]);
    let id = harness.begin_periodic();
    harness.acknowledge(id, 2, with_files(&[(7, "kept"), (id, "early")]));
    harness.now = harness.now.plus(10 * SECOND);
    harness.coordinator.expire(harness.now);
    let effects = harness.coordinator.take_effects();
    assert_eq!(deleted(&effects), (vec![], vec!["early".to_owned()]));
    assert!(has_aborted(&effects, id), "{effects:?}");
    harness.acknowledge(id, 3, with_files(&[(7, "kept"), (id, "late")]));
    assert_eq!(deleted(&harness.coordinator.take_effects()), (vec![], vec!["late".to_owned()]));
    let former = acknowledgement(harness.attempts()[1], id, with_files(&[(id, "former")]));
    harness.coordinator.acknowledged_by_former_attempt(&former);
    assert_eq!(deleted(&harness.coordinator.take_effects()), (vec![], vec!["former".to_owned()]));
    let statistics = harness.coordinator.statistics().unwrap();
    let (_, message) = statistics.latest_failed.unwrap().failure.unwrap();
    assert_eq!(message, "it expired before it was complete: 3 of 4 tasks had not answered after 10 s");
    // One more than is tolerated.
    harness.coordinator.discarded();
    harness.coordinator.discarded();
    let second = harness.begin_periodic();
    assert_eq!(second, 2, "ids are not used again");
    let effects = harness.decline(second, CheckpointFailureReason::CheckpointDeclined);
    let [Effect::NotifyAborted(2, _), Effect::FailJob(message)] = effects.as_slice() else { panic!("{effects:?}") };
    assert!(message.starts_with("checkpoint 2 failed: a task failed to take its snapshot: as told;"), "{message}");
}

#[test]
fn a_completed_checkpoint_takes_the_place_of_those_before_it() {
    let mut harness = Harness::new(&[("max-concurrent-checkpoints", "2")]);
    let (first, second) = (harness.begin_periodic(), harness.begin_periodic());
    harness.now = harness.now.plus(SECOND);
    assert_eq!(harness.begin(), None, "two are under way");
    harness.acknowledge(first, 0, TaskStateSnapshot::default());
    let effects = harness.complete(second);
    assert!(has_aborted(&effects, first), "{effects:?}");
    assert_eq!(harness.statuses(), [(2, CheckpointStatus::Completed), (1, CheckpointStatus::Failed)]);
    assert_eq!(harness.begin().map(|begun| begun.id), Some(3), "what waited is begun");
}

#[test]
fn a_checkpoint_that_is_stored_behind_a_later_one_is_deleted_again() {
    let mut harness = Harness::new(&[("max-concurrent-checkpoints", "2")]);
    let (first, second) = (harness.begin_periodic(), harness.begin_periodic());
    harness.acknowledge_all(second);
    harness.acknowledge(first, 0, with_files(&[(first, "of-the-first")]));
    harness.acknowledge_all(first);
    let effects = harness.store(second);
    let of_store: Vec<_> = effects.iter().filter(|effect| matches!(effect, Effect::Storage(_))).collect();
    let [Effect::Storage(StorageTask::Revoke { id, files, .. })] = of_store[..] else { panic!("{effects:?}") };
    // After it was stored: tasks of the store are done in order.
    assert_eq!((*id, &files[..]), (first, &["of-the-first".to_owned()][..]));
    harness.coordinator.stored(first, Ok(()), harness.now);
    assert_eq!(harness.coordinator.take_effects(), []);
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(second));
    assert!(harness.coordinator.is_undecided() && !harness.coordinator.is_about_to_complete());
    harness.coordinator.revoked(first, Err("as told".to_owned()), harness.now);
    assert_eq!(harness.coordinator.next_deadline(), Some(harness.now.plus(SECOND)), "the next checkpoint");
    harness.coordinator.expire(harness.now.plus(4 * SECOND));
    assert_eq!(harness.coordinator.take_effects(), []);
    harness.now = harness.now.plus(5 * SECOND);
    harness.coordinator.expire(harness.now);
    assert_eq!(deleted(&harness.coordinator.take_effects()), (vec![first], vec!["of-the-first".to_owned()]));
    harness.coordinator.revoked(first, Ok(()), harness.now);
    assert!(!harness.coordinator.is_undecided());
}

#[test]
fn acknowledgements_of_other_attempts_do_not_count() {
    let mut harness = Harness::new(&[]);
    let id = harness.begin_periodic();
    harness.attempt_number = 1;
    harness.acknowledge_all(id);
    harness.attempt_number = 0;
    harness.acknowledge_all(id + 1);
    assert_eq!(harness.coordinator.take_effects(), []);
    harness.complete(id);
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(id));
}

#[test]
fn files_go_when_no_retained_checkpoint_refers_to_them_and_one_more_is_complete() {
    let mut harness = Harness::new(&[("incremental", "true")]);
    let run = |harness: &mut Harness, parts: &[(CheckpointId, &str)]| {
        let id = harness.begin_periodic();
        harness.acknowledge(id, 2, with_files(parts));
        [0, 1, 3].into_iter().for_each(|task| harness.acknowledge(id, task, TaskStateSnapshot::default()));
        let gone = deleted(&harness.store(id));
        harness.coordinator.discarded();
        gone
    };
    let none = || (Vec::<CheckpointId>::new(), Vec::<String>::new());
    assert_eq!(run(&mut harness, &[(1, "full-1")]), none());
    assert_eq!(run(&mut harness, &[(1, "full-1"), (2, "inc-2")]), (vec![1], vec![]));
    assert_eq!(run(&mut harness, &[(3, "full-3")]), (vec![2], vec![]), "a task may still build on them");
    let both = vec!["full-1".to_owned(), "inc-2".to_owned()];
    assert_eq!(run(&mut harness, &[(3, "full-3"), (4, "inc-4")]), (vec![3], both));
}

#[test]
fn only_incremental_checkpoints_after_a_full_one_write_less_than_all() {
    let mut harness = Harness::new(&[]);
    harness.now = harness.now.plus(SECOND);
    assert!(harness.begin().unwrap().options.is_full);
    let mut harness = Harness::new(&[("incremental", "true")]);
    harness.now = harness.now.plus(SECOND);
    assert!(!harness.begin().unwrap().options.is_full);
    let metadata = {
        harness.acknowledge_all(1);
        let Some(Effect::Storage(StorageTask::Store(metadata, ..))) = harness.coordinator.take_effects().pop() else {
            panic!("all have acknowledged")
        };
        metadata
    };
    // Another job starts from it: its files are not its own.
    let mut harness = Harness::new(&[("incremental", "true")]);
    let location = SnapshotLocation("/elsewhere".to_owned());
    harness.coordinator.start_from(CompletedCheckpoint { metadata, location });
    harness.now = harness.now.plus(SECOND);
    let begun = harness.begin().unwrap();
    assert_eq!((begun.id, begun.options.is_full), (2, true), "ids go on");
    harness.complete(2);
    harness.now = harness.now.plus(SECOND);
    assert!(!harness.begin().unwrap().options.is_full);
}

#[test]
fn output_of_checkpoints_that_were_given_up_is_committed_by_the_next() {
    let mut harness = Harness::new(&[("tolerable-failed-checkpoints", "9")]);
    let first = harness.begin_periodic();
    harness.acknowledge(first, 2, with_committable("a"));
    harness.decline(first, CheckpointFailureReason::CheckpointDeclined);
    harness.acknowledge(first, 3, with_committable("late"));
    let second = harness.begin_periodic();
    // Named again, which must not commit it twice.
    harness.acknowledge(second, 2, with_committable("a"));
    harness.acknowledge(second, 3, with_committable("b"));
    harness.acknowledge(second, 0, TaskStateSnapshot::default());
    harness.acknowledge(second, 1, TaskStateSnapshot::default());
    let effects = harness.store(second);
    assert_eq!(committed(&effects), ["a", "late", "b"]);
    let metadata = &harness.coordinator.latest().unwrap().metadata;
    let states = metadata.operators.values().flat_map(|operator| operator.subtasks.values());
    let stored: Vec<_> = states.flat_map(|state| &state.committables).map(|it| it.0.as_slice()).collect();
    assert_eq!(stored, [b"a".as_slice(), b"late", b"b"], "a restore commits the same");
    let third = harness.begin_periodic();
    assert_eq!(committed(&harness.complete(third)), [] as [&str; 0]);
    // What discarded attempts had ready is never committed.
    let fourth = harness.begin_periodic();
    harness.acknowledge(fourth, 2, with_committable("c"));
    harness.coordinator.stop(CheckpointFailureReason::CheckpointCoordinatorSuspend, harness.now);
    harness.coordinator.tasks_reset(&harness.attempts().into_iter().map(|attempt| attempt.execution_vertex).collect());
    harness.coordinator.start(harness.now);
    harness.attempt_number = 1;
    let fifth = harness.begin_periodic();
    assert_eq!(committed(&harness.complete(fifth)), [] as [&str; 0]);
}

#[test]
fn a_job_that_does_not_run_gives_up_all_but_what_is_being_stored() {
    let mut harness = Harness::new(&[("max-concurrent-checkpoints", "2")]);
    let (first, second) = (harness.begin_periodic(), harness.begin_periodic());
    harness.acknowledge_all(first);
    harness.coordinator.take_effects();
    harness.coordinator.ask(5, SnapshotRequest::Checkpoint { is_full: false }, harness.now);
    harness.coordinator.stop(CheckpointFailureReason::CheckpointCoordinatorSuspend, harness.now);
    let effects = harness.coordinator.take_effects();
    let [Effect::Answer(5, Err(message)), Effect::NotifyAborted(aborted, _)] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert_eq!((*aborted, message.as_str()), (second, "the checkpoint was not taken: the job does not run"));
    assert!(harness.coordinator.is_undecided(), "the restart waits");
    harness.now = harness.now.plus(10 * SECOND);
    assert_eq!(harness.begin(), None);
    harness.coordinator.stored(first, Ok(()), harness.now);
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(first));
    assert!(!harness.coordinator.is_undecided());
    harness.coordinator.start(harness.now);
    assert_eq!(harness.begin_periodic(), 3, "ids go on");
}

#[test]
fn metadata_that_cannot_be_stored_fails_the_checkpoint() {
    let mut harness = Harness::new(&[]);
    let id = harness.begin_periodic();
    harness.acknowledge(id, 0, with_files(&[(id, "f")]));
    (1..4).for_each(|task| harness.acknowledge(id, task, TaskStateSnapshot::default()));
    harness.coordinator.take_effects();
    harness.coordinator.stored(id, Err("no space left on device".to_owned()), harness.now);
    let effects = harness.coordinator.take_effects();
    assert_eq!(deleted(&effects).1, ["f"]);
    let Some(Effect::FailJob(message)) = effects.last() else { panic!("{effects:?}") };
    assert!(message.contains("its metadata could not be stored: no space left on device"), "{message}");
    assert!(harness.coordinator.latest().is_none());
}

#[test]
fn a_savepoint_commits_nothing_and_is_not_gone_on_from() {
    let mut harness = Harness::new(&[("savepoint-dir", "file:///my%20points/")]);
    let checkpoint = harness.begin_periodic();
    harness.complete(checkpoint);
    harness.coordinator.ask(1, SnapshotRequest::Savepoint(None), harness.now);
    let begun = harness.begin().expect("at once");
    assert!(begun.options.is_full && begun.options.location.0.starts_with("/my points/savepoint-070707-"));
    harness.acknowledge(begun.id, 2, with_committable("a"));
    [0, 1, 3].into_iter().for_each(|task| harness.acknowledge(begun.id, task, TaskStateSnapshot::default()));
    let effects = harness.store(begun.id);
    let location = begun.options.location.clone();
    let savepoint = TakenSnapshot { checkpoint_id: begun.id, location };
    let committables = BTreeMap::from([(2, vec![Committable(b"a".to_vec())])]);
    assert_eq!(effects, [Effect::SavepointTaken { asker: 1, savepoint, committables }]);
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(checkpoint));
    let next = harness.begin_periodic();
    assert_eq!(committed(&harness.complete(next)), ["a"], "its rows are before the next checkpoint");
    // One that fails leaves nothing.
    harness.coordinator.ask(2, SnapshotRequest::Savepoint(None), harness.now);
    let begun = harness.begin().unwrap();
    let effects = harness.decline(begun.id, CheckpointFailureReason::CheckpointDeclinedTaskNotReady);
    let answer = Err("the savepoint was not taken: a task was not ready: as told".to_owned());
    assert_eq!(effects[0], Effect::Answer(2, answer));
    assert_eq!(effects[1], Effect::Storage(StorageTask::DeleteSavepoint(begun.options.location)));
}

#[test]
fn a_savepoint_that_a_task_cannot_write_does_not_fail_the_job() {
    let directory = || Some(SnapshotLocation("/points".to_owned()));
    for request in
        [SnapshotRequest::Savepoint(directory()), SnapshotRequest::StopWithSavepoint(directory(), StopMode::NoDrain)]
    {
        let mut harness = Harness::new(&[("tolerable-failed-checkpoints", "0")]);
        harness.coordinator.ask(1, request, harness.now);
        let begun = harness.begin().unwrap();
        let effects = harness.decline(begun.id, CheckpointFailureReason::CheckpointAsyncException);
        assert!(matches!(effects[0], Effect::Answer(1, Err(_))), "{effects:?}");
        assert!(!effects.iter().any(|effect| matches!(effect, Effect::FailJob(_))), "{effects:?}");
    }
}

#[test]
fn without_a_directory_no_savepoint_is_taken() {
    let mut harness = Harness::new(&[]);
    harness.coordinator.ask(1, SnapshotRequest::Savepoint(None), harness.now);
    let message = "no directory for the savepoint: name one (`engine savepoint JOB DIR`, or --savepoint DIR where the job is stopped or upgraded), or start the cluster with -D execution.checkpointing.savepoint-dir=DIR";
    assert_eq!(harness.coordinator.take_effects(), [Effect::Answer(1, Err(message.to_owned()))]);
}

#[test]
fn whoever_stops_a_job_is_answered_when_it_has_finished() {
    let stop = SnapshotRequest::StopWithSavepoint(Some(SnapshotLocation("/points".to_owned())), StopMode::Drain);
    let stopping = || {
        let mut harness = Harness::new(&[]);
        let waiting = SnapshotRequest::Savepoint(Some(SnapshotLocation("/points".to_owned())));
        harness.coordinator.ask(1, stop.clone(), harness.now);
        harness.coordinator.ask(3, waiting.clone(), harness.now);
        let begun = harness.begin().unwrap();
        assert_eq!(begun.options.kind, SnapshotKind::StopWithSavepoint(StopMode::Drain));
        // Behind it tasks are at their end: another would take that for the end of their input.
        harness.now = harness.now.plus(3 * SECOND);
        assert_eq!(harness.begin(), None, "no checkpoint and no savepoint while it stops");
        harness.acknowledge(begun.id, 2, with_committable("a"));
        [0, 1, 3].into_iter().for_each(|task| harness.acknowledge(begun.id, task, TaskStateSnapshot::default()));
        let effects = harness.store(begun.id);
        assert_eq!(committed(&effects), ["a"]);
        assert!(matches!(effects.as_slice(), [_, Effect::NotifyComplete(1, _)]), "{effects:?}");
        harness.now = harness.now.plus(3 * SECOND);
        assert_eq!(harness.begin(), None, "nor while tasks end for it");
        harness.coordinator.ask(4, waiting, harness.now);
        let refused = Effect::Answer(4, Err("the job is being stopped already".to_owned()));
        assert_eq!(harness.coordinator.take_effects(), [refused]);
        (harness, begun.options.location)
    };
    let (mut harness, location) = stopping();
    harness.coordinator.ask(2, stop.clone(), harness.now);
    let again = Effect::Answer(2, Err("the job is being stopped already".to_owned()));
    assert_eq!(harness.coordinator.take_effects(), [again]);
    harness.coordinator.job_finished();
    let taken = TakenSnapshot { checkpoint_id: 1, location };
    assert_eq!(harness.coordinator.take_effects(), [Effect::Answer(1, Ok(taken))]);

    let (mut harness, location) = stopping();
    harness.coordinator.stop(CheckpointFailureReason::CheckpointCoordinatorSuspend, harness.now);
    let effects = harness.coordinator.take_effects();
    let [Effect::Answer(3, Err(_)), Effect::Answer(1, Err(message))] = effects.as_slice() else {
        panic!("{effects:?}")
    };
    assert!(message.starts_with(&format!("the savepoint {location} is complete, but the job did not stop")));
}

#[test]
fn the_last_checkpoint_comes_at_once_and_again_until_it_is_complete() {
    let mut harness = Harness::new(&[("interval", "1 h"), ("tolerable-failed-checkpoints", "9")]);
    harness.now = Timestamp(1);
    let asked = |harness: &mut Harness| {
        harness.coordinator.forget_end_of_data(harness.now);
        harness.coordinator.end_of_data(harness.now);
        harness.begin().map(|begun| begun.id)
    };
    assert_eq!(asked(&mut harness), Some(1));
    assert_eq!(asked(&mut harness), None, "it is under way");
    harness.decline(1, CheckpointFailureReason::CheckpointDeclined);
    assert_eq!(asked(&mut harness), None, "after a pause");
    harness.now = harness.coordinator.next_deadline().unwrap();
    assert_eq!(harness.now, Timestamp(101));
    assert_eq!(asked(&mut harness), Some(2));
    harness.complete(2);
    harness.now = harness.now.plus(SECOND);
    assert_eq!(asked(&mut harness), None, "the tasks are ending");
}

#[test]
fn a_task_that_ends_is_not_waited_for() {
    let mut harness = Harness::new(&[]);
    let id = harness.begin_periodic();
    harness.acknowledge(id, 0, TaskStateSnapshot::default());
    harness.coordinator.task_ended(harness.attempts()[0], harness.now);
    assert_eq!(harness.coordinator.take_effects(), [], "it has acknowledged");
    harness.coordinator.task_ended(harness.attempts()[1], harness.now);
    assert!(has_aborted(&harness.coordinator.take_effects(), id));
}

#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let mut harness = Harness::new(&[("num-retained", "2")]);
    for expected in [1, 2] {
        let id = harness.begin_periodic();
        assert_eq!(id, expected);
        harness.complete(id);
    }
    harness.coordinator.verify_latest();
    let effects = harness.coordinator.take_effects();
    let [Effect::Storage(StorageTask::Verify(metadata, _))] = effects.as_slice() else { panic!("{effects:?}") };
    assert_eq!(metadata.checkpoint_id, 2);
    assert!(harness.coordinator.is_undecided());
    assert!(harness.coordinator.verified(2, false));
    let effects = harness.coordinator.take_effects();
    assert!(
        matches!(effects.as_slice(), [Effect::Storage(StorageTask::Revoke { id: 2, files, .. })] if files.is_empty()),
        "nobody finds it again: {effects:?}"
    );
    assert!(harness.coordinator.is_undecided(), "the restart waits for that");
    harness.coordinator.revoked(2, Ok(()), harness.now);
    assert_eq!(harness.coordinator.latest().map(CompletedCheckpoint::id), Some(1));
    harness.coordinator.verify_latest();
    assert!(!harness.coordinator.verified(1, true) && !harness.coordinator.is_undecided());
    assert_eq!(harness.begin_periodic(), 3);
}

#[test]
fn too_many_requests_are_told_so() {
    let mut harness = Harness::new(&[]);
    harness.begin_periodic();
    for asker in 0..1001 {
        harness.coordinator.ask(asker, SnapshotRequest::Checkpoint { is_full: true }, harness.now);
    }
    let message = "the checkpoint was not taken: too many checkpoints were asked for";
    assert_eq!(harness.coordinator.take_effects(), [Effect::Answer(1000, Err(message.to_owned()))]);
}
