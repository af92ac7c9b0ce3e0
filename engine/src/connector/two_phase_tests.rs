//! The protocol of sinks that commit in two phases, played through with a sink that keeps
//! transactions in memory. A sink to an external system with transactions, such as a Kafka
//! topic, is a [`SinkWriter`] and a [`SinkCommitter`] like those here. Its rules:
//!
//! 1. The writer writes into a transaction of its own, which it begins when it is made and after
//!    each [`SinkWriter::prepare_commit`]. Nothing of it can be seen.
//! 2. [`SinkWriter::prepare_commit`] is called before the barrier goes on, and brings the
//!    transaction to where only a commit is missing, which must succeed then, also from another
//!    process. What is returned says all that the commit needs.
//! 3. The task puts it into its snapshot, and into those of later checkpoints until one of them
//!    is complete: an aborted checkpoint and a savepoint commit nothing, the next one commits it too.
//! 4. [`SinkCommitter::commit`] is called when the metadata of the checkpoint is stored. A process
//!    that is killed before that is done commits again: it must be idempotent.
//! 5. Before writers are made, [`SinkCommitter::recover`] commits what the restored checkpoint
//!    holds and aborts every other transaction of the job: the current ones of its former attempts
//!    and those of later checkpoints. [`SinkCommitter::prepare`] aborts all of them. So transactions
//!    must be found by the job's id, and writers of former attempts be fenced off.
//! 6. The last transaction is that of the checkpoint behind the end of the input. A writer that
//!    is dropped aborts its current transaction.
//! 7. A transaction must outlive the longest time between two checkpoints and a restart.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
};

use serde_json::Value;

use super::*;
use crate::base::stream_element::BatchKind;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum State {
    Open,
    PreCommitted,
    Committed,
    Aborted,
}

/// The external system.
#[derive(Debug, Default)]
struct Transactions {
    /// By number, from 1.
    states: BTreeMap<u32, (State, Vec<String>)>,
    /// Records that can be seen, in the order in which they could be.
    visible: Vec<String>,
}

#[derive(Clone, Default)]
struct Broker(Arc<Mutex<Transactions>>);

impl Broker {
    fn lock(&self) -> MutexGuard<'_, Transactions> {
        self.0.lock().expect("nobody panicked")
    }

    fn begin(&self) -> u32 {
        let mut transactions = self.lock();
        let number = u32::try_from(transactions.states.len()).expect("few") + 1;
        transactions.states.insert(number, (State::Open, Vec::new()));
        number
    }

    fn abort(&self, number: u32) {
        let mut transactions = self.lock();
        let (state, _) = transactions.states.get_mut(&number).expect("it was begun");
        assert_ne!(*state, State::Committed, "what is visible stays");
        *state = State::Aborted;
    }

    fn commit(&self, number: u32) -> Result<(), ConnectorError> {
        let mut transactions = self.lock();
        let (state, records) = transactions.states.get_mut(&number).expect("it was begun");
        match state {
            State::PreCommitted => {
                *state = State::Committed;
                let records = std::mem::take(records);
                transactions.visible.extend(records);
                Ok(())
            }
            State::Committed => Ok(()),
            State::Open | State::Aborted => Err(ConnectorError::Damaged("a transaction that was not prepared")),
        }
    }

    fn unfinished(&self) -> Vec<u32> {
        let transactions = self.lock();
        let unfinished = |state: State| matches!(state, State::Open | State::PreCommitted);
        transactions.states.iter().filter(|(_, (state, _))| unfinished(*state)).map(|(number, _)| *number).collect()
    }
}

struct TransactionWriter {
    broker: Broker,
    current: u32,
}

impl SinkWriter for TransactionWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        let text = String::from_utf8(batch.data.to_vec()).expect("text");
        let mut transactions = self.broker.lock();
        let (state, records) = transactions.states.get_mut(&self.current).expect("it was begun");
        assert_eq!(*state, State::Open, "a writer that was fenced off writes no more");
        records.extend(text.lines().map(str::to_owned));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn prepare_commit(&mut self, _checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        let prepared = self.current;
        self.broker.lock().states.get_mut(&prepared).expect("it was begun").0 = State::PreCommitted;
        self.current = self.broker.begin();
        Ok(vec![Committable(prepared.to_le_bytes().to_vec())])
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        self.prepare_commit(0)
    }
}

impl Drop for TransactionWriter {
    fn drop(&mut self) {
        self.broker.abort(self.current);
    }
}

struct TransactionCommitter(Broker);

impl TransactionCommitter {
    fn abort_all_but(&self, kept: &[u32]) {
        self.0.unfinished().into_iter().filter(|number| !kept.contains(number)).for_each(|number| self.0.abort(number));
    }
}

fn number(committable: &Committable) -> u32 {
    u32::from_le_bytes(committable.0[..].try_into().expect("its own"))
}

impl SinkCommitter for TransactionCommitter {
    fn prepare(&mut self) -> Result<(), ConnectorError> {
        self.abort_all_but(&[]);
        Ok(())
    }

    fn recover(&mut self, restored: RestoredOutput) -> Result<(), ConnectorError> {
        self.abort_all_but(&restored.committables.iter().map(number).collect::<Vec<_>>());
        self.commit(restored.committables)
    }

    /// All are tried; the first failure is returned.
    fn commit(&mut self, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        let committed = committables.iter().map(|committable| self.0.commit(number(committable)));
        let outcomes: Vec<_> = committed.collect();
        outcomes.into_iter().collect()
    }

    fn abort(&mut self) -> Result<(), ConnectorError> {
        self.abort_all_but(&[]);
        Ok(())
    }
}

/// What tasks and the JobMaster do with a sink.
struct Job {
    broker: Broker,
    committer: TransactionCommitter,
    /// By subtask index, each with what no complete checkpoint is known to hold.
    tasks: Vec<(TransactionWriter, Vec<(CheckpointId, Committable)>)>,
    /// What each checkpoint holds.
    checkpoints: BTreeMap<CheckpointId, Vec<Committable>>,
}

impl Job {
    fn start(parallelism: usize) -> Self {
        let broker = Broker::default();
        let committer = TransactionCommitter(broker.clone());
        let mut job = Self { broker, committer, tasks: Vec::new(), checkpoints: BTreeMap::new() };
        job.committer.prepare().expect("reachable");
        job.open(parallelism);
        job
    }

    fn open(&mut self, parallelism: usize) {
        let writer = || TransactionWriter { broker: self.broker.clone(), current: self.broker.begin() };
        self.tasks = (0..parallelism).map(|_| (writer(), Vec::new())).collect();
    }

    fn write_to(&mut self, subtask: usize, record: &str) {
        let data = Block::from(format!("{record}\n").into_bytes());
        let batch = RecordBatch { kind: BatchKind::Lines, count: 1, data };
        self.tasks[subtask].0.write(&batch).expect("reachable");
    }

    fn write(&mut self, record: &str) {
        self.write_to(0, record);
    }

    /// Every task takes part in a checkpoint.
    fn snapshot(&mut self, id: CheckpointId) {
        let mut held = Vec::new();
        for (writer, pending) in &mut self.tasks {
            pending.extend(writer.prepare_commit(id).expect("reachable").into_iter().map(|prepared| (id, prepared)));
            held.extend(pending.iter().cloned());
        }
        // In the order of the checkpoints.
        held.sort_by_key(|(id, _)| *id);
        self.checkpoints.insert(id, held.into_iter().map(|(_, committable)| committable).collect());
    }

    /// A checkpoint is complete; the tasks hear of it.
    fn complete(&mut self, id: CheckpointId) {
        self.committer.commit(self.checkpoints[&id].clone()).expect("reachable");
        self.tasks.iter_mut().for_each(|(_, pending)| pending.retain(|(of, _)| id < *of));
    }

    /// The process is killed: nobody aborts a transaction.
    fn crash(&mut self) {
        self.tasks.drain(..).for_each(|(writer, _)| std::mem::forget(writer));
    }

    fn restore(&mut self, id: CheckpointId, parallelism: usize) {
        let committables = self.checkpoints[&id].clone();
        let restored = RestoredOutput { job: JobId::random(), checkpoint_id: id, committables, was_committed: false };
        self.committer.recover(restored).expect("reachable");
        self.open(parallelism);
    }
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("two_phase_commit.json")).expect("JSON")
}

/// Plays the scenario of the name.
fn play(name: &str) -> Job {
    let mut job = Job::start(1);
    match name {
        "normal" => {
            job.write("a");
            job.snapshot(1);
            job.write("b");
            job.complete(1);
        }
        "missed notification is subsumed" | "late duplicate notification" => {
            job.write("a");
            job.snapshot(1);
            job.write("b");
            job.snapshot(2);
            job.complete(2);
            if name == "late duplicate notification" {
                job.complete(1);
            }
        }
        "notification for an older checkpoint while newer pending" => {
            for (id, record) in ["a", "b", "c"].into_iter().enumerate() {
                job.write(record);
                job.snapshot(id as u64);
            }
            job.complete(1);
        }
        "failure after snapshot, before notification" => {
            job.write("a");
            job.snapshot(1);
            job.write("b");
            job.crash();
            job.restore(1, 1);
        }
        "failure before any checkpoint" => {
            job.write("a");
            job.crash();
            job.committer.prepare().expect("reachable");
            job.open(1);
        }
        "end of input" => {
            job.write("a");
            job.snapshot(5);
            job.complete(5);
            job.tasks.clear();
        }
        "restore after finish" => {
            job.write("a");
            job.snapshot(5);
            job.crash();
            job.restore(5, 1);
        }
        "aborted checkpoint" => {
            job.write("a");
            job.snapshot(1);
            job.write("b");
            job.snapshot(2);
            job.complete(2);
        }
        "scale in: a subtask receives several states" => {
            job = Job::start(3);
            for (subtask, record) in ["a", "b", "c"].into_iter().enumerate() {
                job.write_to(subtask, record);
            }
            job.snapshot(1);
            job.write_to(1, "d");
            job.crash();
            job.restore(1, 1);
        }
        other => panic!("no scenario {other}"),
    }
    job
}

#[test]
fn every_scenario_of_the_protocol_ends_as_it_should() {
    let vectors = vectors();
    let scenarios = vectors["scenarios"].as_array().expect("a list");
    assert_eq!(scenarios.len(), 10);
    for scenario in scenarios {
        let name = scenario["name"].as_str().expect("text");
        let job = play(name);
        // The current one, and those of checkpoints that are not complete.
        let mut open: Vec<String> = job.broker.unfinished().iter().map(|number| format!("T{number}")).collect();
        let visible = match name {
            "aborted checkpoint" => scenario["visible_after_complete_2"].clone(),
            _ => scenario["visible"].clone(),
        };
        let expected: Vec<String> = match &visible {
            // "a", "..." is what later checkpoints commit.
            Value::Array(records) => records
                .iter()
                .map(|record| match record.as_str().expect("text") {
                    "..." => "b".to_owned(),
                    record => record.to_owned(),
                })
                .collect(),
            // "all pending".
            _ => ["a", "b", "c"].map(str::to_owned).to_vec(),
        };
        assert_eq!(job.broker.lock().visible, expected, "{name}");
        let mut expected: Vec<String> = match &scenario["open_transactions"] {
            Value::Array(open) => open.iter().map(|name| name.as_str().expect("text").to_owned()).collect(),
            _ => Vec::new(),
        };
        match name {
            "notification for an older checkpoint while newer pending" => {
                assert_eq!(expected, ["pending 2", "current"]);
                expected = vec!["T3".to_owned(), "T4".to_owned()];
            }
            // Restored, or after two checkpoints, the current one is the last that was begun.
            "failure after snapshot, before notification" => {
                // The vector numbers those that are left; T2 was aborted here too.
                assert_eq!(expected, ["T3"]);
            }
            "restore after finish" => {
                // Here a transaction was begun after the last checkpoint, and aborted.
                assert_eq!(expected, ["T2"]);
                open = open.into_iter().map(|open| open.replace("T3", "T2")).collect();
            }
            "aborted checkpoint" => {
                assert_eq!(expected, ["T2..."]);
                expected = vec!["T3".to_owned()];
            }
            "scale in: a subtask receives several states" => {
                expected = vec!["T7".to_owned()];
            }
            _ => {}
        }
        assert_eq!(open, expected, "{name}");
    }
}

#[test]
fn commits_are_all_tried_and_the_first_failure_is_told() {
    let mut job = Job::start(2);
    job.write_to(0, "a");
    job.write_to(1, "b");
    job.snapshot(1);
    // Somebody aborted one of them: it expired.
    let first = number(&job.checkpoints[&1][0]);
    job.broker.abort(first);
    let error = job.committer.commit(job.checkpoints[&1].clone()).expect_err("expired").to_string();
    assert!(error.starts_with("a transaction that was not prepared is damaged, or "), "{error}");
    assert_eq!(job.broker.lock().visible, ["b"]);
}

#[test]
fn a_checkpoint_that_is_restored_twice_commits_once() {
    let mut job = Job::start(1);
    job.write("a");
    job.snapshot(1);
    job.crash();
    for _ in 0..2 {
        job.restore(1, 1);
        job.write("b");
        job.crash();
    }
    assert_eq!(job.broker.lock().visible, ["a"]);
}

#[test]
fn each_component_has_the_part_that_the_protocol_gives_it() {
    let vectors = vectors();
    let rules = vectors["sink_v2"].as_array().expect("a list");
    let rule = |component: &str, on: &str| {
        let found = rules.iter().find(|rule| rule["component"] == component && rule["on"] == on);
        found.unwrap_or_else(|| panic!("no rule of {component} on {on}"))["does"].as_str().expect("text").to_owned()
    };
    let committables = |job: &Job, id| job.checkpoints[&id].iter().map(number).collect::<Vec<_>>();
    let mut job = Job::start(1);
    assert!(rule("SinkWriter", "prepareSnapshotPreBarrier(n)").contains("prepareCommit"));
    job.write("a");
    job.snapshot(1);
    assert!(rule("Committer", "snapshotState").contains("all uncommitted"));
    job.snapshot(2);
    assert_eq!(committables(&job, 2), [1, 2]);
    assert!(rule("Committer", "notifyCheckpointComplete(n)").contains("commit all committables of checkpoints <= n"));
    job.complete(1);
    assert_eq!(job.broker.unfinished(), [2, 3]);
    job.snapshot(3);
    assert_eq!(committables(&job, 3), [2, 3]);
    assert!(rule("Committer", "restore(n)").contains("commit everything restored immediately"));
    job.crash();
    job.restore(3, 1);
    assert_eq!(job.broker.unfinished(), [5]);
    assert!(rule("Committer", "endInput without checkpointing or in batch").contains("commit everything immediately"));
    job.write("b");
    let last = job.tasks[0].0.finish().expect("reachable");
    job.committer.commit(last).expect("reachable");
    job.tasks.clear();
    assert_eq!(job.broker.lock().visible, ["a", "b"]);
    assert_eq!(job.broker.unfinished(), [0; 0]);
}
