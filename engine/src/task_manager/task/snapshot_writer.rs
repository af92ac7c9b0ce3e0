//! Writes snapshots beside the tasks: a few threads for all tasks of a TaskExecutor, which
//! acknowledge a checkpoint when everything is stored, or decline it.

use std::{
    io::{self, Write},
    sync::OnceLock,
    time::Duration,
};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};
use rand::Rng as _;

use crate::{
    base::{
        clock::Clock,
        ids::ExecutionAttemptId,
        stream_element::{CheckpointBarrier, CheckpointId},
    },
    checkpoint::{
        CheckpointStorage, CheckpointStorageError, KeyGroupSection, KeyedStateHandle, KeyedStatePart, StateData,
        TaskStateSnapshot,
    },
    failpoint,
    protocol::job_master::{AcknowledgeCheckpoint, CheckpointFailureReason, CheckpointMetrics, DeclineCheckpoint},
    task_manager::{
        TaskEvent, TaskEventSink,
        operator::{ChainSnapshot, KeyedPart},
    },
};

/// Threads that write: stores wait, but state has to be encoded, too.
const WRITERS: usize = 2;
/// Snapshots that wait for a writer; there is one for each task and checkpoint.
const SNAPSHOTS_MAX: usize = 100_000;
/// State that is about so large is put together in memory, and becomes a file only if it
/// turns out to be above the threshold.
const GATHERED_BYTES_MAX: u64 = 1 << 20;

/// What a task hands over.
pub(super) struct SnapshotJob {
    pub(super) attempt: ExecutionAttemptId,
    pub(super) barrier: CheckpointBarrier,
    pub(super) snapshot: ChainSnapshot,
    /// But for the time that writing takes.
    pub(super) metrics: CheckpointMetrics,
    /// State up to so many bytes is kept in the metadata.
    pub(super) inline_bytes_max: u64,
    /// When the task went on, on the monotonic clock.
    pub(super) begun: Duration,
    pub(super) clock: Clock,
    pub(super) events: TaskEventSink,
}

/// The writers of one TaskExecutor; the threads start with the first snapshot.
#[derive(Default)]
pub struct SnapshotWriter {
    jobs: OnceLock<Result<Sender<Box<SnapshotJob>>, String>>,
}

impl SnapshotWriter {
    /// Writes a snapshot. Never waits; what becomes of it is sent to the job's events.
    pub(super) fn write(&self, job: SnapshotJob) {
        match self.jobs.get_or_init(start) {
            Ok(jobs) => match jobs.try_send(Box::new(job)) {
                Ok(()) => {}
                Err(TrySendError::Full(job)) => {
                    let why = format!("more than {SNAPSHOTS_MAX} snapshots wait to be written; checkpoint less often");
                    decline(&job, why);
                }
                Err(TrySendError::Disconnected(job)) => decline(&job, "the threads that write have ended".to_owned()),
            },
            Err(error) => decline(&job, error.clone()),
        }
    }
}

fn start() -> Result<Sender<Box<SnapshotJob>>, String> {
    let (sender, jobs) = bounded(SNAPSHOTS_MAX);
    for number in 0..WRITERS {
        let jobs: Receiver<Box<SnapshotJob>> = jobs.clone();
        let thread = std::thread::Builder::new().name(format!("snapshots {number}"));
        let spawned = thread.spawn(move || jobs.into_iter().for_each(|job| run(*job)));
        spawned.map_err(|error| format!("could not start a thread to write snapshots: {error}"))?;
    }
    Ok(sender)
}

fn decline(job: &SnapshotJob, message: String) {
    (job.events)(TaskEvent::DeclineCheckpoint(DeclineCheckpoint {
        attempt: job.attempt,
        checkpoint_id: job.barrier.checkpoint_id,
        reason: CheckpointFailureReason::CheckpointAsyncException,
        message,
    }));
}

fn run(mut job: SnapshotJob) {
    failpoint!("snapshot.write", infallible);
    let keyed = std::mem::take(&mut job.snapshot.keyed);
    // A panic of the engine must not end the writer of all tasks.
    let written = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write_all(&job, keyed)));
    let handles = match written {
        Ok(Ok(handles)) => handles,
        Ok(Err(error)) => return decline(&job, describe(&error)),
        Err(_) => return decline(&job, "writing a snapshot ended in a panic, which is a bug".to_owned()),
    };
    failpoint!("snapshot.written", infallible);
    for (node, handle) in handles {
        job.snapshot.operators.entry(node).or_default().keyed = handle;
    }
    let mut operators = job.snapshot.operators;
    operators.retain(|_, state| !state.is_empty());
    let took = job.clock.monotonic().saturating_sub(job.begun);
    let async_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    (job.events)(TaskEvent::AcknowledgeCheckpoint(Box::new(AcknowledgeCheckpoint {
        attempt: job.attempt,
        checkpoint_id: job.barrier.checkpoint_id,
        state: TaskStateSnapshot { operators, is_finished: job.snapshot.is_finished },
        metrics: CheckpointMetrics { async_us, ..job.metrics },
    })));
    failpoint!("snapshot.acknowledged", infallible);
}

fn describe(error: &CheckpointStorageError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

type Handles = Vec<(u32, Option<KeyedStateHandle>)>;

fn write_all(job: &SnapshotJob, parts: Vec<KeyedPart>) -> Result<Handles, CheckpointStorageError> {
    let mut handles = Vec::with_capacity(parts.len());
    if parts.is_empty() {
        return Ok(handles);
    }
    let storage = CheckpointStorage::open(job.barrier.options.location.clone())?;
    for part in parts {
        let node = part.node;
        match write_part(job, &storage, part) {
            Ok(handle) => handles.push((node, handle)),
            Err(error) => {
                delete_written(job, &storage, &handles);
                return Err(error);
            }
        }
    }
    Ok(handles)
}

/// Deletes what was written for a checkpoint that is declined: nobody else knows of it.
fn delete_written(job: &SnapshotJob, storage: &CheckpointStorage, handles: &Handles) {
    let parts = handles.iter().flat_map(|(_, handle)| handle).flat_map(|handle| &handle.parts);
    for part in parts.filter(|part| part.checkpoint_id == job.barrier.checkpoint_id) {
        if let StateData::File(file) = &part.data
            && let Err(error) = storage.delete(&file.path)
        {
            tracing::warn!(%error, "a file of a checkpoint that was given up is left");
        }
    }
}

fn write_part(
    job: &SnapshotJob,
    storage: &CheckpointStorage,
    part: KeyedPart,
) -> Result<Option<KeyedStateHandle>, CheckpointStorageError> {
    let checkpoint_id = job.barrier.checkpoint_id;
    let path = path(job, part.node);
    let is_small = part.bytes <= GATHERED_BYTES_MAX.max(job.inline_bytes_max);
    let (snapshot, rest) = part.split();
    let is_full = snapshot.is_full();
    let mut sections = Vec::new();
    let data = if is_small {
        let mut bytes = Vec::new();
        sections = snapshot.write(&mut bytes).expect("memory takes what is written");
        if bytes.len() as u64 <= job.inline_bytes_max {
            StateData::Inline(bytes)
        } else {
            StateData::File(storage.write(&path, &mut |out: &mut dyn Write| out.write_all(&bytes))?)
        }
    } else {
        let mut snapshot = Some(snapshot);
        let mut write = |out: &mut dyn Write| -> io::Result<()> {
            let snapshot = snapshot.take().ok_or_else(|| io::Error::other("a snapshot is written once"))?;
            sections = snapshot.write(out)?;
            Ok(())
        };
        StateData::File(storage.write(&path, &mut write)?)
    };
    if sections.is_empty()
        && let StateData::File(file) = &data
    {
        // Nothing has changed.
        storage.delete(&file.path)?;
    }
    let mut offset = 0;
    let sections = sections.into_iter().map(|(key_group, bytes)| {
        let section = KeyGroupSection { key_group, offset, bytes };
        offset += bytes;
        section
    });
    let part = KeyedStatePart { checkpoint_id, data, sections: sections.collect() };
    Ok(KeyedPart::into_handle(rest, checkpoint_id, part, is_full))
}

/// A name that no other attempt uses.
fn path(job: &SnapshotJob, node: u32) -> String {
    let checkpoint_id: CheckpointId = job.barrier.checkpoint_id;
    let vertex = job.attempt.execution_vertex;
    let random: u64 = rand::rng().random();
    let name = format!("{checkpoint_id}-{}-{}-{node}-{random:016x}", vertex.vertex, vertex.subtask_index);
    // A savepoint is one directory; checkpoints share what they build upon.
    if job.barrier.options.kind.is_savepoint() { name } else { format!("shared/{name}") }
}
