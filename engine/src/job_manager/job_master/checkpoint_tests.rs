//! Checkpoints of a JobMaster against scripted TaskExecutors and a store that is told when to answer.

use std::{collections::BTreeMap, time::Duration};

use super::{
    testing::{FakeStore, GraphBuilder, Harness, exchange, failure, pipelines, update},
    *,
};
use crate::{
    base::{
        ids::ExecutionAttemptId,
        stream_element::{CheckpointId, SnapshotKind, SnapshotLocation, StopMode},
    },
    checkpoint::{DistributionMode, OperatorListState, OperatorSubtaskState, TaskStateSnapshot},
    connector::{Committable, SourceSplit},
    graph::stream_graph::{StateDeclaration, StateKind},
    protocol::{
        job_master::{
            AcknowledgeCheckpoint, CheckpointMetrics, DeclineCheckpoint, RESTORE_FAILURE, SnapshotRequest,
            SplitRequest, TakenSnapshot, TaskExecutionStateUpdate, TaskState,
        },
        task_executor::{TaskDeployment, TriggerCheckpoint},
    },
};

const SETTINGS: &[(&str, &str)] = &[
    ("execution.checkpointing.interval", "1 s"),
    ("execution.checkpointing.tolerable-failed-checkpoints", "5"),
    ("execution.checkpointing.num-retained", "2"),
    ("restart-strategy.exponential-delay.jitter-factor", "0"),
];
const SECOND: Duration = Duration::from_secs(1);
const SOURCE: u32 = 1;
const SINK: u32 = 2;

/// What a source has left, or a sink has ready.
fn state(splits: &[u8], committables: &[&str]) -> TaskStateSnapshot {
    let state = OperatorSubtaskState {
        splits: splits.iter().map(|split| SourceSplit(vec![*split])).collect(),
        committables: committables.iter().map(|name| Committable(name.as_bytes().to_vec())).collect(),
        ..OperatorSubtaskState::default()
    };
    let node = if committables.is_empty() { SOURCE } else { SINK };
    TaskStateSnapshot { operators: BTreeMap::from([(node, state)]), is_finished: false }
}

fn finished(attempt: ExecutionAttemptId, left: TaskStateSnapshot) -> TaskExecutionStateUpdate {
    TaskExecutionStateUpdate { end_states: left.operators, ..update(attempt, TaskState::Finished, None) }
}

fn triggered(sent: &[(String, TaskExecutorMessage)]) -> Vec<TriggerCheckpoint> {
    let triggers = sent.iter().filter_map(|(_, message)| match message {
        TaskExecutorMessage::TriggerCheckpoint(trigger) => Some(trigger.clone()),
        _ => None,
    });
    triggers.collect()
}

/// Attempts that were told that the checkpoint is complete.
fn notified(sent: &[(String, TaskExecutorMessage)], id: CheckpointId) -> Vec<ExecutionAttemptId> {
    let told = sent.iter().filter_map(|(_, message)| match message {
        TaskExecutorMessage::NotifyCheckpointComplete(attempt, complete) if *complete == id => Some(*attempt),
        _ => None,
    });
    told.collect()
}

impl Harness {
    /// Lets the interval pass; returns the triggers.
    fn trigger(&mut self) -> Vec<TriggerCheckpoint> {
        self.take_sent();
        self.advance(SECOND);
        triggered(&self.take_to_task_executors())
    }

    fn acknowledge(&mut self, attempt: ExecutionAttemptId, checkpoint_id: CheckpointId, state: TaskStateSnapshot) {
        let metrics = CheckpointMetrics::default();
        let acknowledge = AcknowledgeCheckpoint { attempt, checkpoint_id, state, metrics };
        let from = self.location(attempt);
        self.deliver(from, JobMasterMessage::AcknowledgeCheckpoint(Box::new(acknowledge)));
    }

    fn acknowledge_all(&mut self, deployed: &[TaskDeployment], id: CheckpointId) {
        for deployment in deployed {
            self.acknowledge(deployment.attempt, id, TaskStateSnapshot::default());
        }
    }

    /// Triggers, acknowledges and stores; returns the id.
    fn complete_checkpoint(&mut self, deployed: &[TaskDeployment]) -> CheckpointId {
        let id = self.trigger()[0].checkpoint_id;
        self.acknowledge_all(deployed, id);
        self.perform_storage();
        id
    }

    /// Whoever has the number 9 asks for it; returns the trigger that the first task gets.
    fn stop_with_savepoint(&mut self, mode: StopMode) -> TriggerCheckpoint {
        let request = SnapshotRequest::StopWithSavepoint(Some(SnapshotLocation("/points".to_owned())), mode);
        self.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(9, request));
        triggered(&self.take_to_task_executors()).remove(0)
    }

    fn decline(&mut self, attempt: ExecutionAttemptId, checkpoint_id: CheckpointId, reason: CheckpointFailureReason) {
        let from = self.location(attempt);
        let decline = DeclineCheckpoint { attempt, checkpoint_id, reason, message: "as told".to_owned() };
        self.deliver(from, JobMasterMessage::DeclineCheckpoint(decline));
    }

    fn next_split(&mut self, attempt: ExecutionAttemptId) {
        let from = self.location(attempt);
        self.deliver(from, JobMasterMessage::RequestSplit(SplitRequest { attempt, node: SOURCE }));
    }

    /// The task fails, those that were cancelled end, and the delay passes: returns the fresh attempts.
    fn fail_and_restart(&mut self, attempt: ExecutionAttemptId, code: &str) -> Vec<TaskDeployment> {
        let cause = failure(code, Recoverability::Recoverable);
        self.take_sent();
        self.report_update(update(attempt, TaskState::Failed, Some(cause)));
        self.end_canceled();
        self.perform_storage();
        self.end_canceled();
        // Longer than any delay here, shorter than the heartbeat's time-out.
        self.advance(10 * SECOND);
        self.take_deployed()
    }

    fn end_canceled(&mut self) {
        let canceled: Vec<_> = self
            .take_to_task_executors()
            .into_iter()
            .filter_map(|(_, message)| match message {
                TaskExecutorMessage::CancelTask(attempt) => Some(attempt),
                _ => None,
            })
            .collect();
        canceled.into_iter().for_each(|attempt| self.report(attempt, TaskState::Canceled));
    }

    fn run(&mut self, deployed: &[TaskDeployment]) {
        for deployment in deployed {
            self.report(deployment.attempt, TaskState::Initializing);
            self.report(deployment.attempt, TaskState::Running);
        }
    }

    fn failures(&self) -> Vec<(String, String)> {
        let failures = self.master.details().failures.into_iter();
        failures.map(|failure| (failure.cause.code, failure.cause.message)).collect()
    }

    /// Answers to clients since the last call.
    fn take_answers(&mut self) -> Vec<(u64, Result<TakenSnapshot, String>)> {
        let answers = self.take_sent().into_iter().filter_map(|envelope| match envelope.message {
            Message::Dispatcher(DispatcherMessage::SnapshotTaken(number, result)) => Some((number, result)),
            _ => None,
        });
        answers.collect()
    }
}

fn restored_ids(deployed: &[TaskDeployment]) -> Vec<Option<CheckpointId>> {
    deployed.iter().map(|deployment| deployment.restore.as_ref().map(|restore| restore.checkpoint_id)).collect()
}

#[test]
fn a_checkpoint_goes_from_the_sources_to_the_commit_and_a_failure_goes_back_to_it() {
    let (mut harness, deployed) = Harness::running(exchange(2).option("splits", "6"), SETTINGS);
    let attempts: Vec<_> = deployed.iter().map(|deployment| deployment.attempt).collect();
    assert_eq!(restored_ids(&deployed), [None; 4]);
    // Split 0 to the first source, 1 to the second.
    attempts[..2].iter().for_each(|attempt| harness.next_split(*attempt));
    let triggers = harness.trigger();
    assert_eq!(triggers.iter().map(|trigger| trigger.attempt).collect::<Vec<_>>(), attempts[..2]);
    assert!(triggers.iter().all(|trigger| trigger.checkpoint_id == 1 && trigger.triggered <= harness.now));
    // Dealt behind the barrier.
    harness.next_split(attempts[0]);
    harness.journal.take();
    harness.acknowledge(attempts[0], 1, state(&[0], &[]));
    harness.acknowledge(attempts[1], 1, state(&[], &[]));
    harness.acknowledge(attempts[2], 1, state(&[], &["a"]));
    harness.acknowledge(attempts[3], 1, state(&[], &["b"]));
    assert_eq!(harness.journal.take(), [] as [&str; 0], "nothing is visible before the metadata is durable");
    harness.perform_storage();
    assert_eq!(harness.journal.take(), ["commit a b"]);
    assert_eq!(notified(&harness.take_to_task_executors(), 1), attempts);

    let deployed = harness.fail_and_restart(attempts[2], "guest-panic");
    assert_eq!(restored_ids(&deployed), [Some(1); 4]);
    let split = SourceSplit(vec![0]);
    let restored = format!("restored {:?} and {:?}", [2, 3, 4, 5], [(0, split)]);
    let journal = harness.journal.take();
    assert_eq!(journal, ["enumerator test of 2 string".to_owned(), restored, "recover 1: a b".to_owned()]);
    let statistics = harness.master.details().checkpoints.unwrap();
    assert_eq!((statistics.counts.completed, statistics.counts.restored), (1, 1));
    harness.run(&deployed);
    assert_eq!(harness.trigger()[0].checkpoint_id, 2, "ids go on");
}

#[test]
fn a_job_gives_way_only_as_long_as_it_has_completed_no_checkpoint() {
    let give_way = |harness: &mut Harness| harness.deliver(Address::Dispatcher, JobMasterMessage::CancelUncommitted);
    // One is awaited.
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    give_way(&mut harness);
    assert_eq!(harness.status(), JobStatus::Canceling);
    harness.acknowledge_all(&deployed, id);
    harness.perform_storage();
    assert_eq!(harness.master.details().checkpoints.unwrap().counts.completed, 0);
    // One is about to be complete: that is waited for.
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    give_way(&mut harness);
    assert_eq!(harness.status(), JobStatus::Running);
    harness.perform_storage();
    assert_eq!(harness.status(), JobStatus::Running);
    assert_eq!(harness.master.details().checkpoints.unwrap().counts.completed, 1);
    // One is complete, and the job restarts.
    harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    give_way(&mut harness);
    assert_eq!(harness.status(), JobStatus::Running);
    // A savepoint that stops it has made its rows visible.
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.stop_with_savepoint(StopMode::NoDrain).checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    give_way(&mut harness);
    harness.perform_storage();
    assert!(harness.journal.take().contains(&"commit a".to_owned()));
    assert_eq!(harness.status(), JobStatus::Running);
    deployed.iter().for_each(|deployment| harness.report(deployment.attempt, TaskState::Finished));
    assert_eq!(harness.status(), JobStatus::Finished);
}

#[test]
fn a_region_gets_back_what_its_readers_had_left_and_what_they_were_dealt_since() {
    let (mut harness, deployed) = Harness::running(pipelines(2).option("splits", "6"), SETTINGS);
    let attempts: Vec<_> = deployed.iter().map(|deployment| deployment.attempt).collect();
    let sources: Vec<_> =
        attempts.iter().copied().filter(|attempt| harness.name(*attempt).starts_with("source")).collect();
    // 0 and 2 to the first, 1 to the second.
    [0, 1, 0].into_iter().for_each(|source| harness.next_split(sources[source]));
    let id = harness.trigger()[0].checkpoint_id;
    // 3 to the first behind the barrier.
    harness.next_split(sources[0]);
    for attempt in &attempts {
        // 0 is read to its end.
        let left: &[u8] = if *attempt == sources[0] { &[2] } else { &[] };
        harness.acknowledge(*attempt, id, state(left, &[]));
    }
    harness.perform_storage();
    harness.journal.take();
    let deployed = harness.fail_and_restart(sources[0], "guest-panic");
    assert_eq!(harness.states().matches("#1").count(), 2, "{}", harness.states());
    assert_eq!(restored_ids(&deployed), [Some(id); 2]);
    let back = [SourceSplit(vec![2]), SourceSplit(vec![3])];
    assert_eq!(harness.journal.take(), [format!("back from 0: {back:?}")]);
    harness.run(&deployed);
    // 4, 5, 2, 3 are dealt to the second: what the first has is none.
    (0..4).for_each(|_| harness.next_split(sources[1]));
    harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    let nothing: [SourceSplit; 0] = [];
    assert_eq!(harness.journal.take(), [format!("back from 0: {nothing:?}")]);
}

#[test]
fn a_failure_gives_up_what_is_under_way_and_late_acknowledgements_change_nothing() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let first = harness.complete_checkpoint(&deployed);
    let second = harness.trigger()[0].checkpoint_id;
    harness.acknowledge(deployed[0].attempt, second, TaskStateSnapshot::default());
    let fresh = harness.fail_and_restart(deployed[1].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [Some(first); 2]);
    harness.run(&fresh);
    harness.acknowledge(deployed[1].attempt, second, state(&[], &["zombie"]));
    harness.perform_storage();
    let third = harness.complete_checkpoint(&fresh);
    assert!(second < third);
    assert!(!harness.journal.take().iter().any(|line| line.contains("zombie")));
    let stored: Vec<_> = harness.store.0.lock().unwrap().stored.keys().map(|(_, id)| *id).collect();
    assert_eq!(stored, [first, third]);
}

#[test]
fn a_restart_waits_for_a_checkpoint_that_is_being_stored() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.take_sent();
    harness.report(deployed[1].attempt, TaskState::Failed);
    harness.end_canceled();
    harness.advance(10 * SECOND);
    assert_eq!(harness.take_deployed(), []);
    harness.perform_storage();
    assert_eq!(restored_ids(&harness.take_deployed()), [Some(id); 2]);
}

/// It is neither complete nor gone: what its tasks wrote must be there for whoever finds it.
#[test]
fn a_restart_waits_until_a_checkpoint_that_could_not_be_stored_is_surely_not_there() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let before = harness.complete_checkpoint(&deployed);
    let doubtful = before + 1;
    harness.store.0.lock().unwrap().doubtful.insert(doubtful);
    harness.store.0.lock().unwrap().is_undeletable = true;
    assert_eq!(harness.complete_checkpoint(&deployed), doubtful);
    let stored = |harness: &Harness| -> Vec<CheckpointId> {
        harness.store.0.lock().unwrap().stored.keys().map(|(_, id)| *id).collect()
    };
    assert_eq!(stored(&harness), [before, doubtful]);
    harness.journal.take();
    assert_eq!(harness.fail_and_restart(deployed[0].attempt, "guest-panic"), []);
    harness.perform_storage();
    assert_eq!((harness.take_deployed(), harness.journal.take()), (vec![], vec![]), "nothing of it is taken back");
    harness.store.0.lock().unwrap().is_undeletable = false;
    harness.advance(10 * SECOND);
    harness.perform_storage();
    assert_eq!(stored(&harness), [before]);
    assert_eq!(restored_ids(&harness.take_deployed()), [Some(before); 2]);
    assert_eq!(harness.journal.take().last().unwrap(), &format!("recover {before}: "));
}

/// The store does not answer any more.
#[test]
fn a_job_ends_although_the_store_hangs() {
    let is_deleted_afterwards = |harness: &mut Harness, id| {
        harness.perform_storage();
        assert!(harness.store.0.lock().unwrap().stored.keys().all(|(_, stored)| *stored != id));
    };
    // While metadata is being stored.
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    harness.end_canceled();
    harness.advance(29 * SECOND);
    assert_eq!(harness.status(), JobStatus::Canceling, "it may answer");
    harness.advance(SECOND);
    assert_eq!(harness.status(), JobStatus::Canceled);
    is_deleted_afterwards(&mut harness, id);
    // The same, and the job fails.
    let settings = [SETTINGS, &[("restart-strategy.type", "none")]].concat();
    let (mut harness, deployed) = Harness::running(exchange(1), &settings);
    let first = harness.complete_checkpoint(&deployed);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.report(deployed[1].attempt, TaskState::Failed);
    harness.end_canceled();
    assert_eq!(harness.status(), JobStatus::Failing);
    harness.advance(30 * SECOND);
    assert_eq!(harness.status(), JobStatus::Failed);
    let message = harness.master.details().root_failure.unwrap().cause.message;
    assert!(message.ends_with(&format!("/chk-{first}")), "{message}");
    is_deleted_afterwards(&mut harness, id);
    // While a checkpoint is looked at.
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    harness.complete_checkpoint(&deployed);
    let fresh = harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    harness.report(fresh[0].attempt, TaskState::Initializing);
    let cause = failure(RESTORE_FAILURE, Recoverability::Recoverable);
    harness.report_update(update(fresh[0].attempt, TaskState::Failed, Some(cause)));
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    harness.end_canceled();
    assert_eq!(harness.status(), JobStatus::Canceling);
    harness.advance(30 * SECOND);
    assert_eq!(harness.status(), JobStatus::Canceled);
}

/// A running job tells of it, and an upgrade that waits is decided.
#[test]
fn metadata_that_is_not_stored_in_time_is_given_up() {
    let settings = [SETTINGS, &[("execution.checkpointing.timeout", "8 s")]].concat();
    let (mut harness, deployed) = Harness::running(exchange(1), &settings);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.deliver(Address::Dispatcher, JobMasterMessage::CancelUncommitted);
    harness.advance(7 * SECOND);
    assert_eq!(harness.status(), JobStatus::Running);
    harness.advance(SECOND);
    let statistics = harness.master.details().checkpoints.unwrap();
    let failed = statistics.history.iter().find(|checkpoint| checkpoint.id == id).unwrap().failure.clone().unwrap();
    assert_eq!(failed.1, "it expired before it was complete: its metadata was not stored within 8 s");
    assert_eq!(harness.status(), JobStatus::Canceling);
    harness.end_canceled();
    // It is stored after all, and nothing of it becomes visible.
    harness.journal.take();
    harness.perform_storage();
    assert_eq!(harness.status(), JobStatus::Canceled);
    assert_eq!(harness.journal.take(), ["abort"]);
    assert!(harness.store.0.lock().unwrap().stored.is_empty());
}

#[test]
fn sources_that_cannot_read_again_are_named() {
    let named = |graph: GraphBuilder| {
        let (harness, _) = Harness::running(graph, SETTINGS);
        harness.master.coordinators.not_replayable().into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(named(exchange(1)).is_empty());
    assert_eq!(named(exchange(1).option("replayable", "no")), ["source"]);
}

#[test]
fn before_the_first_checkpoint_a_restart_begins_from_scratch() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    harness.journal.take();
    let fresh = harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [None; 2]);
    assert_eq!(harness.journal.take(), ["enumerator test of 1 string", "prepare"]);
    let strategy = harness.master.details().restart_strategy;
    assert!(strategy.starts_with("exponential delay") && strategy.ends_with("goes on from the latest checkpoint"));
}

#[test]
fn too_many_failed_checkpoints_restart_the_job() {
    let settings =
        [&[("execution.checkpointing.tolerable-failed-checkpoints", "0")][..], &SETTINGS[..1], &SETTINGS[2..]];
    let (mut harness, deployed) = Harness::running(exchange(1), &settings.concat());
    let id = harness.trigger()[0].checkpoint_id;
    harness.decline(deployed[1].attempt, id, CheckpointFailureReason::CheckpointDeclinedTaskNotReady);
    assert_eq!(harness.status(), JobStatus::Running, "that does not count");
    let id = harness.trigger()[0].checkpoint_id;
    harness.decline(deployed[1].attempt, id, CheckpointFailureReason::CheckpointAsyncException);
    assert_eq!(harness.status(), JobStatus::Restarting);
    let (code, message) = harness.failures().remove(0);
    assert_eq!(code, "checkpoints");
    assert!(
        message.starts_with("checkpoint 2 failed: a task could not store its state: sink (1/1): as told"),
        "{message}"
    );
}

#[test]
fn the_checkpoint_before_a_damaged_one_is_gone_on_from() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let (older, newest) = (harness.complete_checkpoint(&deployed), harness.complete_checkpoint(&deployed));
    let fresh = harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [Some(newest); 2]);
    harness.store.0.lock().unwrap().damaged.insert(newest);
    harness.report(fresh[0].attempt, TaskState::Initializing);
    harness.journal.take();
    let fresher = harness.fail_and_restart(fresh[0].attempt, RESTORE_FAILURE);
    assert_eq!(restored_ids(&fresher), [Some(older); 2]);
    assert!(harness.journal.take().contains(&format!("recover {older}: ")));
    let said = harness.failures();
    let (code, message) = &said[0];
    assert_eq!(code, "checkpoint-damaged");
    assert!(message.ends_with(&format!("/chk-{newest} cannot be restored and is passed over: as told")), "{message}");
    let stored: Vec<_> = harness.store.0.lock().unwrap().stored.keys().map(|(_, id)| *id).collect();
    assert_eq!(stored, [older], "the next JobMaster does not find it");
    // The other one too: there is nothing to go on from.
    harness.store.0.lock().unwrap().damaged.insert(older);
    harness.report(fresher[1].attempt, TaskState::Initializing);
    harness.fail_and_restart(fresher[1].attempt, RESTORE_FAILURE);
    assert_eq!(harness.status(), JobStatus::Failed);
    assert!(harness.failures()[0].1.starts_with("there is no other checkpoint than"), "{:?}", harness.failures());
}

#[test]
fn a_checkpoint_that_cannot_be_read_at_the_moment_is_neither_passed_over_nor_deleted() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let (older, newest) = (harness.complete_checkpoint(&deployed), harness.complete_checkpoint(&deployed));
    let mut fresh = harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    harness.store.0.lock().unwrap().unreadable.insert(newest);
    for _ in 0..2 {
        harness.report(fresh[0].attempt, TaskState::Initializing);
        fresh = harness.fail_and_restart(fresh[0].attempt, RESTORE_FAILURE);
        assert_eq!(restored_ids(&fresh), [Some(newest); 2]);
        let (code, message) = harness.failures().remove(0);
        assert_eq!(code, "checkpoint-unavailable");
        let expected = format!("/chk-{newest} cannot be read at the moment, and is tried again: as told");
        assert!(message.ends_with(&expected), "{message}");
    }
    let stored: Vec<_> = harness.store.0.lock().unwrap().stored.keys().map(|(_, id)| *id).collect();
    assert_eq!(stored, [older, newest]);
    harness.store.0.lock().unwrap().unreadable.clear();
    harness.run(&fresh);
    assert!(newest < harness.complete_checkpoint(&fresh));
}

#[test]
fn user_code_that_fails_to_open_does_not_cost_a_checkpoint() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.complete_checkpoint(&deployed);
    let fresh = harness.fail_and_restart(deployed[0].attempt, "guest-panic");
    harness.report(fresh[0].attempt, TaskState::Initializing);
    let fresher = harness.fail_and_restart(fresh[0].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresher), [Some(id); 2]);
}

#[test]
fn the_next_job_master_goes_on_from_the_newest_readable_checkpoint() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let ids: Vec<_> = (0..2).map(|_| harness.complete_checkpoint(&deployed)).collect();
    let store = harness.store.clone();
    let (mut next, deployed) = Harness::running_with(exchange(1), SETTINGS, store.clone());
    assert_eq!(restored_ids(&deployed), [Some(ids[1]); 2]);
    assert_eq!(next.journal.take().last().unwrap(), &format!("recover {}: ", ids[1]));
    let third = next.complete_checkpoint(&deployed);
    assert!(ids[1] < third);
    assert_eq!(store.0.lock().unwrap().stored.len(), 2, "the oldest one went");

    store.0.lock().unwrap().damaged.insert(third);
    let (mut next, deployed) = Harness::running_with(exchange(1), SETTINGS, store.clone());
    assert_eq!(restored_ids(&deployed), [Some(ids[1]); 2]);
    assert_eq!(next.failures()[0].0, "checkpoint-damaged");
    assert!(third < next.complete_checkpoint(&deployed), "ids of damaged ones are not used again");

    store.0.lock().unwrap().is_unavailable = true;
    let mut next = Harness::start_with(exchange(1), SETTINGS, store.clone());
    assert_eq!(next.status(), JobStatus::Suspended, "it stays stored");
    let sent = next.take_sent();
    let [Message::Dispatcher(DispatcherMessage::JobMasterFailed(failed))] =
        sent.iter().map(|envelope| &envelope.message).collect::<Vec<_>>()[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!(failed.cause.message, "the checkpoints of the job cannot be listed: as told");
    store.0.lock().unwrap().is_unavailable = false;

    let all: Vec<_> = store.0.lock().unwrap().stored.keys().map(|(_, id)| *id).collect();
    store.0.lock().unwrap().damaged.extend(all);
    let next = Harness::start_with(exchange(1), SETTINGS, store);
    assert_eq!(next.status(), JobStatus::Failed);
    assert!(next.failures()[0].1.starts_with("none of the checkpoints in /state/checkpoints/"));
}

/// The directory of checkpoints is not there yet, or is empty, as before it is mounted.
#[test]
fn a_job_whose_checkpoints_are_away_touches_no_destination_and_is_tried_again() {
    let committed = |id: &str| exchange(1).option("committed", id);
    let waits = |graph: GraphBuilder, settings: &[(&str, &str)], store: FakeStore| {
        let mut harness = Harness::start_with(graph, settings, store);
        assert_eq!(harness.status(), JobStatus::Suspended, "it stays stored");
        let journal = harness.journal.take();
        let is_touched = |line: &String| ["prepare", "recover", "abort"].iter().any(|begin| line.starts_with(begin));
        assert!(!journal.iter().any(is_touched), "{journal:?}");
        let sent = harness.take_sent();
        let [Message::Dispatcher(DispatcherMessage::JobMasterFailed(failed))] =
            sent.iter().map(|envelope| &envelope.message).collect::<Vec<_>>()[..]
        else {
            panic!("{sent:?}")
        };
        assert_eq!(failed.cause.recoverability, Recoverability::Recoverable);
        failed.cause.message.clone()
    };
    let message = waits(committed("5"), SETTINGS, FakeStore::default());
    let expected = "the output of sink \"sink\" holds rows of the job up to checkpoint 5, but none of its checkpoints is in \
                    /state/checkpoints/";
    assert!(message.starts_with(expected), "{message}");

    // The savepoint that the job started from is there, but is not what it last committed.
    let (mut harness, deployed) = Harness::running(committed("0"), SETTINGS);
    let trigger = harness.stop_with_savepoint(StopMode::NoDrain);
    let id = trigger.checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.journal.take();
    harness.perform_storage();
    assert_eq!(harness.journal.take(), ["commit a"], "the job does not come back to it");
    let store = harness.store.clone();
    let settings = [SETTINGS, &[("execution.state-recovery.path", trigger.options.location.0.as_str())]].concat();
    waits(committed(&(id + 1).to_string()), &settings, store.clone());
    let (mut other, deployed) = Harness::running_with(committed(&id.to_string()), &settings, store.clone());
    assert_eq!(restored_ids(&deployed), [Some(id); 2]);
    let own = other.trigger()[0].checkpoint_id;
    other.acknowledge(deployed[0].attempt, own, state(&[], &[]));
    other.acknowledge(deployed[1].attempt, own, state(&[], &["b"]));
    other.journal.take();
    other.perform_storage();
    assert_eq!(other.journal.take(), ["commit b".to_owned(), format!("committed {own}")]);
    // The newest one is damaged or was deleted: there are others.
    let (_, deployed) = Harness::running_with(committed(&(own + 1).to_string()), &settings, store);
    assert_eq!(restored_ids(&deployed), [Some(own); 2]);
}

#[test]
fn a_job_starts_from_the_savepoint_of_another() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let directory = Some(SnapshotLocation("/points".to_owned()));
    harness.take_sent();
    harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, SnapshotRequest::Savepoint(directory)));
    let sent = harness.take_to_task_executors();
    let trigger = &triggered(&sent)[0];
    assert_eq!((trigger.options.kind, trigger.options.is_full), (SnapshotKind::Savepoint, true));
    let id = trigger.checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.journal.take();
    harness.perform_storage();
    // Its rows are not committed, but kept for those who start from it.
    assert_eq!(harness.journal.take(), [format!("keep {id}: a")]);
    let answers = harness.take_answers();
    let [(3, Ok(TakenSnapshot { location, .. }))] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!(notified(&harness.take_to_task_executors(), id), []);

    let store = harness.store.clone();
    let path = format!("file://{location}/_metadata");
    let settings = [SETTINGS, &[("execution.state-recovery.path", path.as_str())]].concat();
    let (mut other, deployed) = Harness::running_with(exchange(1), &settings, store.clone());
    assert!(other.journal.take().contains(&format!("recover {id}: a")));
    assert_eq!(restored_ids(&deployed), [Some(id); 2]);
    assert_eq!(deployed[0].restore.as_ref().unwrap().location, *location);
    // Before it has a checkpoint of its own, a failure goes back there too.
    let fresh = other.fail_and_restart(deployed[0].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [Some(id); 2]);
    other.run(&fresh);
    let own = other.complete_checkpoint(&fresh);
    assert_eq!(own, id + 1);
    let fresh = other.fail_and_restart(fresh[0].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [Some(own); 2]);

    let settings = [SETTINGS, &[("execution.state-recovery.path", "/nowhere")]].concat();
    let other = Harness::start_with(exchange(1), &settings, FakeStore::default());
    assert_eq!(other.status(), JobStatus::Failed);
    assert!(other.failures()[0].1.starts_with("the job cannot start from /nowhere: "), "{:?}", other.failures());
}

#[test]
fn tasks_at_the_end_of_their_data_get_a_last_checkpoint_at_once() {
    let settings = [&[("execution.checkpointing.interval", "1 h")][..], &SETTINGS[1..]].concat();
    let (mut harness, deployed) = Harness::running(exchange(1), &settings);
    let from = |harness: &Harness, index: usize| harness.location(deployed[index].attempt);
    let end = |harness: &mut Harness, index: usize| {
        let from = from(harness, index);
        harness.deliver(from, JobMasterMessage::EndOfDataReached(deployed[index].attempt));
        triggered(&harness.take_to_task_executors())
    };
    assert_eq!(end(&mut harness, 0), []);
    let triggers = end(&mut harness, 1);
    let id = triggers[0].checkpoint_id;
    let at_end = |mut state: TaskStateSnapshot| {
        state.is_finished = true;
        state
    };
    harness.acknowledge(deployed[0].attempt, id, at_end(state(&[], &[])));
    harness.acknowledge(deployed[1].attempt, id, at_end(state(&[], &["last"])));
    harness.journal.take();
    harness.perform_storage();
    assert_eq!(harness.journal.take(), ["commit last"]);
    assert_eq!(notified(&harness.take_to_task_executors(), id).len(), 2);
    deployed.iter().for_each(|deployment| harness.report(deployment.attempt, TaskState::Finished));
    assert_eq!(harness.status(), JobStatus::Finished);
    let stored = harness.store.0.lock().unwrap();
    let metadata = stored.stored.values().next().unwrap();
    assert!(metadata.operators.values().all(|operator| operator.finished == crate::checkpoint::FinishedState::Fully));
}

#[test]
fn orphans_of_finished_producers_are_triggered() {
    let (mut harness, deployed) = Harness::running(pipelines(2), SETTINGS);
    let find = |name: &str| deployed.iter().find(|it| harness.name(it.attempt) == name).unwrap().attempt;
    let [source0, sink0, source1, sink1] = ["source0#0", "sink0#0", "source1#0", "sink1#0"].map(find);
    harness.report(source0, TaskState::Finished);
    let triggers = harness.trigger();
    assert_eq!(triggers.iter().map(|trigger| trigger.attempt).collect::<Vec<_>>(), [source1, sink0]);
    let id = triggers[0].checkpoint_id;
    [source1, sink0, sink1].into_iter().for_each(|it| harness.acknowledge(it, id, TaskStateSnapshot::default()));
    harness.perform_storage();
    assert_eq!(notified(&harness.take_to_task_executors(), id).len(), 3);
}

#[test]
fn a_job_stops_with_a_savepoint() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let trigger = harness.stop_with_savepoint(StopMode::NoDrain);
    assert_eq!(trigger.options.kind, SnapshotKind::StopWithSavepoint(StopMode::NoDrain));
    let id = trigger.checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.journal.take();
    harness.perform_storage();
    assert_eq!(harness.journal.take(), ["commit a"]);
    let sent = harness.take_to_task_executors();
    assert_eq!(notified(&sent, id).len(), 2);
    deployed.iter().for_each(|deployment| harness.report(deployment.attempt, TaskState::Finished));
    assert_eq!(harness.status(), JobStatus::Finished);
    let answers = harness.take_answers();
    let [(9, Ok(taken))] = answers.as_slice() else { panic!("{answers:?}") };
    assert_eq!((taken.checkpoint_id, &taken.location), (id, &trigger.options.location));
    assert_eq!(harness.master.details().stopped_with.as_ref(), Some(&taken.location));
    // Its output was committed, and stays so once that end of the job is durable.
    let settings = [SETTINGS, &[("execution.state-recovery.path", taken.location.0.as_str())]].concat();
    let (other, _) = Harness::running_with(exchange(1), &settings, harness.store.clone());
    assert!(other.journal.take().contains(&format!("recover {id}: a")));
    harness.store.0.lock().unwrap().stopped.insert(taken.location.clone());
    let (mut other, deployed) = Harness::running_with(exchange(1), &settings, harness.store.clone());
    assert!(other.journal.take().contains(&format!("recover {id}: a, which were committed")));
    other.fail_and_restart(deployed[0].attempt, "guest-panic");
    assert!(other.journal.take().contains(&format!("recover {id}: a, which were committed")));
}

/// Its files would pass for those of the savepoint.
#[test]
fn the_number_of_a_savepoint_is_not_drawn_again_by_the_next_job_master() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let before = harness.complete_checkpoint(&deployed);
    let directory = Some(SnapshotLocation("/points".to_owned()));
    harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, SnapshotRequest::Savepoint(directory)));
    let savepoint = before + 1;
    harness.acknowledge_all(&deployed, savepoint);
    harness.perform_storage();
    assert!(matches!(harness.take_answers().as_slice(), [(3, Ok(_))]));
    let (mut next, deployed) = Harness::running_with(exchange(1), SETTINGS, harness.store.clone());
    assert_eq!(restored_ids(&deployed), [Some(before); 2]);
    assert_eq!(next.trigger()[0].checkpoint_id, savepoint + 1);
}

/// Nor do those of a job that takes no checkpoints.
#[test]
fn numbers_of_savepoints_are_kept_where_there_are_no_checkpoints() {
    let savepoint = |harness: &mut Harness, deployed: &[TaskDeployment]| {
        let request = SnapshotRequest::Savepoint(Some(SnapshotLocation("/points".to_owned())));
        harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, request));
        let id = triggered(&harness.take_to_task_executors())[0].checkpoint_id;
        harness.acknowledge_all(deployed, id);
        harness.perform_storage();
        assert!(matches!(harness.take_answers().as_slice(), [(3, Ok(_))]));
        id
    };
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    assert_eq!(savepoint(&mut harness, &deployed), 1);
    let (mut next, deployed) = Harness::running_with(exchange(1), &[], harness.store.clone());
    assert_eq!(restored_ids(&deployed), [None; 2]);
    assert_eq!(savepoint(&mut next, &deployed), 2);
    // It needs no store to run.
    next.store.0.lock().unwrap().is_unavailable = true;
    let (last, _) = Harness::running_with(exchange(1), &[], next.store.clone());
    assert_eq!(last.status(), JobStatus::Running);
}

/// Were it complete, it would commit what the restart takes back, and the job would wait for its end for ever.
#[test]
fn a_savepoint_that_stops_the_job_is_given_up_when_a_task_fails_while_it_is_stored() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let before = harness.complete_checkpoint(&deployed);
    let trigger = harness.stop_with_savepoint(StopMode::NoDrain);
    harness.acknowledge(deployed[0].attempt, trigger.checkpoint_id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, trigger.checkpoint_id, state(&[], &["a"]));
    harness.journal.take();
    let cause = failure("guest-panic", Recoverability::Recoverable);
    harness.report_update(update(deployed[1].attempt, TaskState::Failed, Some(cause)));
    assert!(matches!(harness.take_answers().as_slice(), [(9, Err(message))] if message.contains("was not taken")));
    harness.report(deployed[0].attempt, TaskState::Canceled);
    harness.perform_storage();
    harness.advance(10 * SECOND);
    let fresh = harness.take_deployed();
    harness.run(&fresh);
    let journal = harness.journal.take();
    assert!(!journal.iter().any(|entry| entry.starts_with("commit")), "{journal:?}");
    assert_eq!(harness.store.0.lock().unwrap().deleted_savepoints, [trigger.options.location]);
    assert_eq!(restored_ids(&fresh), [Some(before); 2]);
    // It takes checkpoints, and can be stopped.
    assert_eq!(harness.complete_checkpoint(&fresh), before + 2);
    fresh.iter().for_each(|deployment| harness.report(deployment.attempt, TaskState::Finished));
    assert_eq!((harness.status(), harness.master.details().stopped_with), (JobStatus::Finished, None));
}

/// They become visible at the end of the job, which may never come.
#[test]
fn rows_of_tasks_that_finished_before_are_in_a_savepoint() {
    let (mut harness, deployed) = Harness::running(pipelines(2), &[]);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.report_update(finished(deployed[1].attempt, state(&[], &["kept"])));
    let request = SnapshotRequest::Savepoint(Some(SnapshotLocation("/points".to_owned())));
    harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, request));
    harness.acknowledge(deployed[2].attempt, 1, state(&[], &[]));
    harness.acknowledge(deployed[3].attempt, 1, state(&[], &["a"]));
    harness.journal.take();
    harness.perform_storage();
    assert_eq!(harness.journal.take(), ["keep 1: a kept"]);
    let answers = harness.take_answers();
    let [(3, Ok(taken))] = answers.as_slice() else { panic!("{answers:?}") };
    let settings = [("execution.state-recovery.path", taken.location.0.as_str())];
    let (next, _) = Harness::running_with(pipelines(2), &settings, harness.store.clone());
    assert!(next.journal.take().contains(&"recover 1: kept a".to_owned()));
}

/// A source of a plugin would begin anew without its position, and others would miss their part of a union list.
#[test]
fn lists_that_finished_tasks_left_behind_are_in_later_checkpoints() {
    let list = |element: u8| {
        let declaration = StateDeclaration {
            name: "next".to_owned(),
            kind: StateKind::OperatorList,
            value_type: "u8".to_owned(),
            map_key_type: None,
            time_to_live: None,
            taken_at_end: false,
        };
        OperatorListState { declaration, mode: DistributionMode::Split, elements: vec![vec![element]] }
    };
    let holds = |element| {
        let state = OperatorSubtaskState { lists: vec![list(element)], ..OperatorSubtaskState::default() };
        TaskStateSnapshot { operators: BTreeMap::from([(SOURCE, state)]), is_finished: false }
    };
    let (mut harness, deployed) = Harness::running(pipelines(2), SETTINGS);
    harness.report_update(finished(deployed[0].attempt, holds(7)));
    harness.report(deployed[1].attempt, TaskState::Finished);
    let lists_of = |harness: &Harness, id| {
        let store = harness.store.0.lock().unwrap();
        let (_, metadata) = store.stored.iter().find(|((_, stored), _)| *stored == id).unwrap();
        let subtasks = metadata.operators.values().flat_map(|operator| &operator.subtasks);
        let with_lists = subtasks.filter(|(_, state)| !state.lists.is_empty());
        with_lists.map(|(subtask, state)| (*subtask, state.lists.clone())).collect::<Vec<_>>()
    };
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge(deployed[2].attempt, id, holds(3));
    harness.acknowledge(deployed[3].attempt, id, state(&[], &[]));
    harness.perform_storage();
    assert_eq!(lists_of(&harness, id), [(0, vec![list(7)]), (1, vec![list(3)])]);
}

/// One that is begun before tasks hear that the savepoint was given up would take them for finished.
#[test]
fn tasks_hear_first_of_the_savepoint_that_was_given_up_and_then_of_the_next_checkpoint() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.stop_with_savepoint(StopMode::Drain).checkpoint_id;
    // A checkpoint is due by now.
    harness.advance(2 * SECOND);
    harness.take_sent();
    harness.decline(deployed[0].attempt, id, CheckpointFailureReason::CheckpointDeclined);
    harness.advance(2 * SECOND);
    let sent = harness.take_to_task_executors();
    let place = |is_it: fn(&TaskExecutorMessage) -> bool| sent.iter().position(|(_, message)| is_it(message));
    let aborted = place(|message| matches!(message, TaskExecutorMessage::NotifyCheckpointAborted(..)));
    let next = place(|message| matches!(message, TaskExecutorMessage::TriggerCheckpoint(_)));
    assert!(aborted.is_some() && next.is_some() && aborted < next, "{sent:?}");
}

/// Tasks of other regions have ended with the savepoint, whose rows the restart takes back.
#[test]
fn all_regions_restart_if_a_task_fails_behind_the_savepoint_that_stops_the_job() {
    let (mut harness, deployed) = Harness::running(pipelines(2), SETTINGS);
    let before = harness.complete_checkpoint(&deployed);
    let id = harness.stop_with_savepoint(StopMode::NoDrain).checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.perform_storage();
    deployed[..2].iter().for_each(|ended| harness.report(ended.attempt, TaskState::Finished));
    let fresh = harness.fail_and_restart(deployed[3].attempt, "guest-panic");
    assert_eq!(restored_ids(&fresh), [Some(before); 4]);
}

#[test]
fn a_job_that_goes_on_after_its_savepoint_has_not_stopped_with_it() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let id = harness.stop_with_savepoint(StopMode::NoDrain).checkpoint_id;
    harness.acknowledge_all(&deployed, id);
    harness.perform_storage();
    let fresh = harness.fail_and_restart(deployed[1].attempt, "guest-panic");
    harness.run(&fresh);
    fresh.iter().for_each(|deployment| harness.report(deployment.attempt, TaskState::Finished));
    assert_eq!(harness.status(), JobStatus::Finished);
    assert_eq!(harness.master.details().stopped_with, None);
}

#[test]
fn what_a_killed_process_wrote_for_a_checkpoint_that_it_did_not_complete_goes_with_the_next_start() {
    let store = FakeStore::default();
    let left_behind = || store.0.lock().unwrap().files = vec!["shared/cut-off".to_owned(), "shared/1#1".to_owned()];
    left_behind();
    let (mut harness, deployed) = Harness::running_with(exchange(1), SETTINGS, store.clone());
    // Its deletion comes before anything that the attempts may have stored.
    assert_eq!(store.0.lock().unwrap().tasks.len(), 1);
    store.0.lock().unwrap().files.push("shared/of-an-attempt-that-runs".to_owned());
    harness.perform_storage();
    assert_eq!(store.0.lock().unwrap().deleted, ["shared/cut-off", "shared/1#1"]);
    harness.complete_checkpoint(&deployed);
    // Also where there are checkpoints, and where the job starts from another's savepoint.
    store.0.lock().unwrap().deleted.clear();
    left_behind();
    let (mut next, _) = Harness::running_with(exchange(1), SETTINGS, store.clone());
    next.perform_storage();
    assert_eq!(store.0.lock().unwrap().deleted, ["shared/cut-off", "shared/1#1"]);
    // A job that takes none looks for none.
    store.0.lock().unwrap().deleted.clear();
    let (mut without, _) = Harness::running_with(exchange(1), &[], store.clone());
    without.perform_storage();
    assert_eq!(store.0.lock().unwrap().deleted, [""; 0]);
}

/// The restart removes what no checkpoint names.
#[test]
fn rows_of_a_savepoint_are_kept_before_a_restart_goes_on() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    let before = harness.complete_checkpoint(&deployed);
    let directory = Some(SnapshotLocation("/points".to_owned()));
    harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, SnapshotRequest::Savepoint(directory)));
    let id = before + 1;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.journal.take();
    // A task fails while the metadata is being stored, which takes longer than the pause before the restart.
    let cause = failure("guest-panic", Recoverability::Recoverable);
    harness.report_update(update(deployed[0].attempt, TaskState::Failed, Some(cause)));
    harness.end_canceled();
    harness.advance(10 * SECOND);
    harness.perform_storage();
    let journal = harness.journal.take();
    let place = |entry: &str| journal.iter().position(|other| other == entry).expect("noted");
    assert!(place(&format!("keep {id}: a")) < place(&format!("recover {before}: ")), "{journal:?}");
    assert!(matches!(harness.take_answers().as_slice(), [(3, Ok(_))]));
}

#[test]
fn a_savepoint_whose_rows_cannot_be_kept_is_refused() {
    let (mut harness, deployed) = Harness::running(exchange(1).option("fail", "keep"), SETTINGS);
    let directory = Some(SnapshotLocation("/points".to_owned()));
    harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(3, SnapshotRequest::Savepoint(directory)));
    let id = triggered(&harness.take_to_task_executors())[0].checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.perform_storage();
    let answers = harness.take_answers();
    let [(3, Err(message))] = answers.as_slice() else { panic!("{answers:?}") };
    let expected = format!("could not keep the rows that savepoint or checkpoint {id} holds of sink \"sink\"");
    assert!(message.starts_with(&expected), "{message}");
    assert_eq!(harness.status(), JobStatus::Running);
}

#[test]
fn a_job_that_fails_names_its_last_checkpoint() {
    let settings = [SETTINGS, &[("restart-strategy.type", "none")]].concat();
    let (mut harness, deployed) = Harness::running(exchange(1), &settings);
    let id = harness.complete_checkpoint(&deployed);
    let cause = failure("guest-panic", Recoverability::Recoverable);
    harness.report_update(update(deployed[0].attempt, TaskState::Failed, Some(cause)));
    harness.end_canceled();
    assert_eq!(harness.status(), JobStatus::Failed);
    let message = harness.master.details().root_failure.unwrap().cause.message;
    let path = format!("/state/checkpoints/{}/chk-{id}", harness.job);
    assert!(message.ends_with(&format!(", submit a job with --from-checkpoint {path}")), "{message}");
}

#[test]
fn a_commit_that_fails_is_made_good_by_a_restart() {
    let (mut harness, deployed) = Harness::running(exchange(1).option("fail", "commit"), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.perform_storage();
    assert_eq!(harness.status(), JobStatus::Restarting);
    assert!(harness.failures()[0].1.starts_with(&format!("could not commit checkpoint {id} in sink \"sink\"")));
    harness.journal.take();
    harness.end_canceled();
    harness.advance(10 * SECOND);
    assert!(harness.journal.take().contains(&format!("recover {id}: a")));
}

/// What is not committed of a checkpoint that another job can go on from.
#[test]
fn a_job_that_ends_keeps_what_its_last_checkpoint_holds_if_that_outlives_it() {
    let failed = |settings: &[(&str, &str)]| {
        let settings = [SETTINGS, settings].concat();
        let (mut harness, deployed) = Harness::running(exchange(1).option("fail", "commit"), &settings);
        let id = harness.trigger()[0].checkpoint_id;
        harness.acknowledge(deployed[0].attempt, id, state(&[], &[]));
        harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
        harness.journal.take();
        harness.perform_storage();
        (harness, id)
    };
    let (mut harness, id) = failed(&[("restart-strategy.type", "none")]);
    harness.end_canceled();
    assert_eq!(harness.status(), JobStatus::Failed);
    assert_eq!(harness.journal.take(), ["commit a".to_owned(), format!("keep {id}: a"), "abort".to_owned()]);
    for (retention, kept) in [("RETAIN_ON_CANCELLATION", true), ("DELETE_ON_CANCELLATION", false)] {
        let (mut harness, id) = failed(&[("execution.checkpointing.externalized-checkpoint-retention", retention)]);
        assert_eq!(harness.status(), JobStatus::Restarting);
        harness.journal.take();
        harness.end_canceled();
        harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
        assert_eq!(harness.status(), JobStatus::Canceled);
        let expected = kept.then(|| format!("keep {id}: a")).into_iter().chain(["abort".to_owned()]);
        assert_eq!(harness.journal.take(), expected.collect::<Vec<_>>(), "{retention}");
    }
}

#[test]
fn without_an_interval_there_are_savepoints_only() {
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    assert_eq!(harness.trigger(), []);
    assert_eq!(harness.master.details().checkpoints, None);
    let ask = |harness: &mut Harness, number, request| {
        harness.deliver(Address::Dispatcher, JobMasterMessage::TriggerSnapshot(number, request));
    };
    ask(&mut harness, 1, SnapshotRequest::Checkpoint { is_full: false });
    let answers = harness.take_answers();
    assert!(
        matches!(answers.as_slice(), [(1, Err(message))] if message.contains("interval is not set")),
        "{answers:?}"
    );
    ask(&mut harness, 2, SnapshotRequest::Savepoint(Some(SnapshotLocation("/points".to_owned()))));
    harness.acknowledge_all(&deployed, 1);
    harness.perform_storage();
    assert!(matches!(harness.take_answers().as_slice(), [(2, Ok(_))]));
    assert_eq!(harness.master.details().checkpoints.unwrap().counts.completed, 1);
}

#[test]
fn a_derived_number_of_key_groups_becomes_that_of_the_checkpoint() {
    let with_state = |max_parallelism: u32| exchange(1).max_parallelism(max_parallelism);
    let (mut harness, deployed) = Harness::running(with_state(256), SETTINGS);
    let id = harness.trigger()[0].checkpoint_id;
    harness.acknowledge(deployed[0].attempt, id, state(&[4], &[]));
    harness.acknowledge(deployed[1].attempt, id, state(&[], &["a"]));
    harness.perform_storage();
    let (next, deployed) = Harness::running_with(with_state(128), SETTINGS, harness.store.clone());
    assert_eq!(restored_ids(&deployed), [Some(id); 2]);
    let vertices = next.master.details().vertices;
    assert!(vertices.iter().all(|vertex| vertex.max_parallelism == 256), "{vertices:?}");
    assert_eq!(deployed[0].partitions[0].consumer_max_parallelism, 256);
}

/// Ends as a task of a job without checkpoints does.
#[test]
fn what_finished_tasks_deliver_is_committed_at_the_end() {
    let (mut harness, deployed) = Harness::running(exchange(1), SETTINGS);
    harness.journal.take();
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.report_update(finished(deployed[1].attempt, state(&[], &["rest"])));
    assert_eq!(harness.status(), JobStatus::Finished);
    assert_eq!(harness.journal.take(), ["commit rest"]);
}
