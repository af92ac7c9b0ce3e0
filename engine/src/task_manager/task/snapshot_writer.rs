//! Writes snapshots beside the tasks: a few threads for the tasks of a job in a TaskExecutor, which
//! acknowledge a checkpoint when everything is stored, or decline it.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::Rng as _;

use crate::{
    base::{
        clock::Clock,
        ids::{ExecutionAttemptId, JobId},
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

/// Threads that write for one job: stores wait, but state has to be encoded, too.
const WRITERS_MAX: usize = 2;
/// Snapshots of one job that wait for a writer; there is one for each task and checkpoint.
const SNAPSHOTS_MAX: usize = 100_000;
/// State that is about so large is put together in memory, and becomes a file only if it
/// turns out to be above the threshold.
const GATHERED_BYTES_MAX: u64 = 1 << 20;

/// What a task hands over.
pub(super) struct SnapshotJob {
    pub(super) job: JobId,
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

/// The writers of one TaskExecutor, by job: one whose store hangs holds up no other. A thread ends when nothing of
/// its job waits.
#[derive(Default)]
pub struct SnapshotWriter {
    queues: Arc<Mutex<BTreeMap<JobId, Queue>>>,
}

/// Of one job.
#[derive(Default)]
struct Queue {
    waiting: VecDeque<Box<SnapshotJob>>,
    /// Threads that run.
    writers: usize,
}

impl SnapshotWriter {
    /// Writes a snapshot. Never waits; what becomes of it is sent to the job's events.
    pub(super) fn write(&self, job: SnapshotJob) {
        let id = job.job;
        let mut queues = lock(&self.queues);
        let queue = queues.entry(id).or_default();
        if SNAPSHOTS_MAX <= queue.waiting.len() {
            drop(queues);
            let why = format!("more than {SNAPSHOTS_MAX} snapshots wait to be written; checkpoint less often");
            return decline(&job, why);
        }
        queue.waiting.push_back(Box::new(job));
        if WRITERS_MAX <= queue.writers {
            return;
        }
        let (number, shared) = (queue.writers, Arc::clone(&self.queues));
        let thread = std::thread::Builder::new().name(format!("snapshots {number}"));
        match thread.spawn(move || write_waiting(&shared, id)) {
            Ok(_) => queue.writers += 1,
            Err(error) if queue.writers == 0 => {
                let unwritten = queues.remove(&id).unwrap_or_default();
                drop(queues);
                let why = format!("could not start a thread to write snapshots: {error}");
                unwritten.waiting.iter().for_each(|job| decline(job, why.clone()));
            }
            // Those that run write it, too.
            Err(_) => {}
        }
    }

    /// Forgets the snapshot of a checkpoint that was given up, or all of an attempt that ends, unless it is being
    /// written. Nobody waits for an answer: the next snapshot names again what it held.
    pub(super) fn give_up(&self, job: JobId, attempt: ExecutionAttemptId, checkpoint: Option<CheckpointId>) {
        if let Some(queue) = lock(&self.queues).get_mut(&job) {
            queue.waiting.retain(|waiting| {
                waiting.attempt != attempt || checkpoint.is_some_and(|id| waiting.barrier.checkpoint_id != id)
            });
        }
    }
}

fn lock(queues: &Mutex<BTreeMap<JobId, Queue>>) -> MutexGuard<'_, BTreeMap<JobId, Queue>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes what waits of a job; the body of a thread.
fn write_waiting(queues: &Mutex<BTreeMap<JobId, Queue>>, id: JobId) {
    loop {
        let next = {
            let mut queues = lock(queues);
            let queue = queues.get_mut(&id).expect("a queue stays as long as it has writers");
            let next = queue.waiting.pop_front();
            if next.is_none() {
                queue.writers -= 1;
                if queue.writers == 0 {
                    queues.remove(&id);
                }
            }
            next
        };
        let Some(job) = next else { return };
        run(*job);
    }
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
    // A panic of the engine must not end the writer of other tasks.
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
        // State on disk may not be readable.
        let unreadable = |source| CheckpointStorageError::Io { action: "read state for", path: path.clone(), source };
        sections = snapshot.write(&mut bytes).map_err(unreadable)?;
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

#[cfg(test)]
mod tests {
    use crossbeam_channel::bounded;

    use super::*;
    use crate::{
        base::{
            clock::Timestamp,
            ids::{ExecutionGraphId, ExecutionVertexId, JobVertexId},
            stream_element::{CheckpointOptions, CheckpointingMode, SnapshotKind, SnapshotLocation},
        },
        task_manager::operator::ChainSnapshot,
    };

    const HANGS: CheckpointId = 1;

    fn attempt(subtask_index: u32) -> ExecutionAttemptId {
        let execution_vertex = ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index };
        ExecutionAttemptId { graph: ExecutionGraphId::from_bytes([1; 16]), execution_vertex, attempt_number: 0 }
    }

    fn job(number: u8, subtask: u32, checkpoint_id: CheckpointId, events: &TaskEventSink) -> SnapshotJob {
        let options = CheckpointOptions {
            kind: SnapshotKind::Checkpoint,
            mode: CheckpointingMode::ExactlyOnce,
            location: SnapshotLocation("nowhere".to_owned()),
            is_full: false,
        };
        SnapshotJob {
            job: JobId::from_bytes([number; 16]),
            attempt: attempt(subtask),
            barrier: CheckpointBarrier { checkpoint_id, triggered: Timestamp(0), options },
            snapshot: ChainSnapshot { operators: BTreeMap::new(), keyed: Vec::new(), is_finished: false },
            metrics: CheckpointMetrics::default(),
            inline_bytes_max: 0,
            begun: Duration::ZERO,
            clock: Clock::new_virtual(Timestamp(0)),
            events: Arc::clone(events),
        }
    }

    #[test]
    fn a_job_whose_writes_hang_holds_up_no_other_and_what_was_given_up_is_not_written() {
        let (begun, begins) = bounded(10);
        let (go_on, goes_on) = bounded::<()>(0);
        // Stands for a store that hangs.
        let events: TaskEventSink = Arc::new(move |event| {
            let TaskEvent::AcknowledgeCheckpoint(acknowledge) = event else { panic!("nothing else is sent") };
            let id = acknowledge.checkpoint_id;
            begun.send((acknowledge.attempt.execution_vertex.subtask_index, id)).unwrap();
            if id == HANGS {
                let _hung = goes_on.recv();
            }
        });
        let writer = SnapshotWriter::default();
        let next = || begins.recv_timeout(Duration::from_secs(20)).expect("it is written");
        for subtask in 0..4 {
            writer.write(job(1, subtask, HANGS, &events));
        }
        let mut hanging = [next(), next()];
        hanging.sort_unstable();
        assert_eq!(hanging, [(0, HANGS), (1, HANGS)], "two at a time");
        writer.write(job(2, 9, 5, &events));
        assert_eq!(next(), (9, 5), "another job's");
        // The checkpoint is given up, and the next one comes; the last task is cancelled.
        let id = JobId::from_bytes([1; 16]);
        (0..4).for_each(|subtask| writer.give_up(id, attempt(subtask), Some(HANGS)));
        writer.write(job(1, 0, 2, &events));
        writer.write(job(1, 3, 2, &events));
        writer.give_up(id, attempt(3), None);
        writer.write(job(1, 1, 3, &events));
        drop(go_on);
        let mut written = [next(), next()];
        written.sort_unstable();
        assert_eq!(written, [(0, 2), (1, 3)]);
        drop(events);
        assert_eq!(begins.recv_timeout(Duration::from_secs(20)).ok(), None, "and nothing else, when all writers ended");
    }
}
