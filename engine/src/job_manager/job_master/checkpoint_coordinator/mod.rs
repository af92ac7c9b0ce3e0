//! Decides when checkpoints are taken and what becomes of them.
//!
//! Pure: the JobMaster tells what happened and when, and carries out the [`Effect`]s.
//! One checkpoint's way:
//!
//! ```text
//!   request -> decider -> begin: id, plan, enumerators' state -> acknowledgements of all tasks
//!     -> metadata stored -> COMPLETED, older ones subsumed -> sinks commit -> tasks are told
//! ```
//!
//! Invariants: a checkpoint completes only with the acknowledgements of the attempts that it
//! began with, and only when its metadata is durable; ids strictly increase, over restarts of
//! the process too; what sinks have ready is committed only by a completed checkpoint whose
//! metadata holds it. Source: Flink's `CheckpointCoordinator`.

mod completed;
mod failure_manager;
mod metadata;
pub mod plan;
mod request_decider;
pub mod settings;
mod statistics;
pub mod storage;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use rand::Rng;

pub use completed::CompletedCheckpoint;
use completed::CompletedCheckpoints;
use failure_manager::{Consequence, FailureManager};
use metadata::Parts;
use request_decider::{CheckpointRequest, Decision, Load, Occasion, RequestDecider};
use settings::CheckpointSettings;
use statistics::StatisticsTracker;
use storage::StorageTask;

use super::operator_coordinators::EndStates;
use crate::{
    base::{
        clock::Timestamp,
        config::format_duration,
        ids::{ExecutionAttemptId, ExecutionVertexId, JobId},
        stream_element::{CheckpointId, CheckpointOptions, SnapshotKind, SnapshotLocation},
    },
    checkpoint::{CheckpointMetadata, SharedStateRegistry, TaskStateSnapshot},
    connector::{Committable, SourceSplit},
    failpoint,
    graph::job_graph::JobGraph,
    protocol::{
        checkpoint_details::{
            CheckpointStatistics, RestoredCheckpoint, SubtaskCheckpointDetails, TaskCheckpointDetails,
        },
        job_master::{AcknowledgeCheckpoint, BEING_STOPPED, CheckpointFailureReason, SnapshotRequest, TakenSnapshot},
    },
};

/// Given-up checkpoints whose late acknowledgements are recognised.
const ABORTED_MAX: usize = 128;
/// Pause before the last checkpoint, for which all tasks wait, is tried again.
const END_OF_DATA_PAUSE: Duration = Duration::from_millis(100);
/// Pause before metadata that could not be deleted is deleted again.
const REVOKE_PAUSE: Duration = Duration::from_secs(5);

/// What the JobMaster is to do, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Something of the store.
    Storage(StorageTask),
    /// A checkpoint is complete: the sources' splits are those, the sinks' output becomes visible.
    Completed(CompletedParts),
    /// A savepoint is complete that commits nothing: sinks keep what it holds, then the one who asked is answered.
    SavepointTaken {
        /// Who asked.
        asker: u64,
        /// What is answered.
        savepoint: TakenSnapshot,
        /// By node: what sinks have ready.
        committables: BTreeMap<u32, Vec<Committable>>,
    },
    /// Tasks are told that a checkpoint is complete.
    NotifyComplete(CheckpointId, Vec<ExecutionAttemptId>),
    /// Tasks are told that a checkpoint was given up.
    NotifyAborted(CheckpointId, Vec<ExecutionAttemptId>),
    /// The one who asked is answered.
    Answer(u64, Result<TakenSnapshot, String>),
    /// The job restarts, since checkpoints fail: the message of the last failure.
    FailJob(String),
}

/// What a completed checkpoint means to sources and sinks.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletedParts {
    /// Its number.
    pub id: CheckpointId,
    /// It is a savepoint, which stops the job.
    pub is_savepoint: bool,
    /// By node and subtask: what sources have left of their splits.
    pub splits: BTreeMap<(u32, u32), Vec<SourceSplit>>,
    /// By node: what sinks have ready.
    pub committables: BTreeMap<u32, Vec<Committable>>,
}

/// What the JobMaster needs to tell the tasks.
#[derive(Clone, Debug, PartialEq)]
pub struct Begun {
    /// Drawn for it.
    pub id: CheckpointId,
    /// How it is taken.
    pub options: CheckpointOptions,
}

/// Those who take part.
#[derive(Clone, Debug, Default)]
pub struct Participants {
    /// Attempts whose acknowledgements are awaited.
    pub to_wait: BTreeMap<ExecutionVertexId, ExecutionAttemptId>,
    /// Tasks that have finished.
    pub finished: BTreeSet<ExecutionVertexId>,
    /// What those left behind.
    pub end_states: EndStates,
}

/// A checkpoint that is not complete.
#[derive(Debug)]
struct PendingCheckpoint {
    request: CheckpointRequest,
    options: CheckpointOptions,
    triggered: Timestamp,
    /// All that take part.
    attempts: BTreeMap<ExecutionVertexId, ExecutionAttemptId>,
    finished: BTreeSet<ExecutionVertexId>,
    end_states: EndStates,
    coordinators: BTreeMap<u32, Vec<u8>>,
    acknowledged: BTreeMap<ExecutionVertexId, TaskStateSnapshot>,
    /// Set when all have acknowledged: being stored.
    metadata: Option<Arc<CheckpointMetadata>>,
}

/// What is left of a checkpoint that was given up.
#[derive(Clone, Debug)]
struct AbortedCheckpoint {
    id: CheckpointId,
    options: CheckpointOptions,
}

/// What a stopped job waits for once its savepoint is complete.
#[derive(Clone, Debug)]
struct Stopped {
    asker: Option<u64>,
    savepoint: TakenSnapshot,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Scheduler {
    /// The job does not run.
    Off,
    /// A checkpoint is due then; none: only what is asked for.
    On(Option<Timestamp>),
}

/// Decides over a job's checkpoints. See the module's documentation.
#[derive(Debug)]
pub struct CheckpointCoordinator {
    job: JobId,
    settings: CheckpointSettings,
    next_id: CheckpointId,
    scheduler: Scheduler,
    decider: RequestDecider,
    pending: BTreeMap<CheckpointId, PendingCheckpoint>,
    /// The oldest first.
    aborted: VecDeque<AbortedCheckpoint>,
    failures: FailureManager,
    completed: CompletedCheckpoints,
    last_completion: Option<Timestamp>,
    /// Deletions under way.
    cleaning: usize,
    /// Set until a checkpoint of this job is complete that needs none of another's files.
    needs_full: bool,
    /// By task and node: output of sinks that no completed checkpoint has made visible, with the
    /// checkpoint that it belongs to.
    uncommitted: BTreeMap<(ExecutionVertexId, u32), Vec<(CheckpointId, Committable)>>,
    stopped: Option<Stopped>,
    stopped_with: Option<SnapshotLocation>,
    verifying: Option<CheckpointId>,
    /// Given up while their metadata was being stored, or since it could not be: it may be there, or come to be,
    /// until the store has answered that it is deleted. With the files that go then.
    revoked: BTreeMap<CheckpointId, Vec<String>>,
    /// When that is tried again.
    revoke_again: Option<Timestamp>,
    /// When the last checkpoint, for which all tasks wait, was last asked for.
    end_of_data_asked: Option<Timestamp>,
    /// That checkpoint is complete, and all tasks are ending.
    is_end_of_data_done: bool,
    statistics: StatisticsTracker,
    was_used: bool,
    effects: Vec<Effect>,
}

impl CheckpointCoordinator {
    /// Makes a coordinator that is off.
    pub fn new(job: JobId, settings: CheckpointSettings) -> Self {
        Self {
            job,
            next_id: 1,
            scheduler: Scheduler::Off,
            decider: RequestDecider::new(settings.max_concurrent, settings.min_pause),
            pending: BTreeMap::new(),
            aborted: VecDeque::new(),
            failures: FailureManager::new(settings.tolerable_failures),
            completed: CompletedCheckpoints::new(settings.retained),
            last_completion: None,
            cleaning: 0,
            needs_full: false,
            uncommitted: BTreeMap::new(),
            stopped: None,
            stopped_with: None,
            verifying: None,
            revoked: BTreeMap::new(),
            revoke_again: None,
            end_of_data_asked: None,
            is_end_of_data_done: false,
            statistics: StatisticsTracker::default(),
            was_used: settings.interval.is_some(),
            effects: Vec::new(),
            settings,
        }
    }

    /// What is to be done, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// The settings.
    pub fn settings(&self) -> &CheckpointSettings {
        &self.settings
    }

    /// True if checkpoints are taken by time, so that tasks wait for a last one before they end.
    pub fn is_periodic(&self) -> bool {
        self.settings.interval.is_some()
    }

    /// The one to go on from.
    pub fn latest(&self) -> Option<&CompletedCheckpoint> {
        self.completed.latest()
    }

    /// The one to go on from, unless that is what the user had the job start from.
    pub fn latest_own(&self) -> Option<&CompletedCheckpoint> {
        self.completed.retained().next_back()
    }

    /// True while a checkpoint is about to be complete, or is looked at.
    pub fn is_about_to_complete(&self) -> bool {
        self.verifying.is_some() || self.pending.values().any(|pending| pending.metadata.is_some())
    }

    /// True while a restart has to wait: it is not known which checkpoint whoever comes next would find. A restart
    /// removes what the checkpoints behind the one that it goes on from would commit.
    pub fn is_undecided(&self) -> bool {
        self.is_about_to_complete() || !self.revoked.is_empty()
    }

    /// All that is told of checkpoints; none: there never was one.
    pub fn statistics(&self) -> Option<CheckpointStatistics> {
        self.was_used.then(|| self.statistics.snapshot())
    }

    // Restoring.

    /// Takes over the complete checkpoints of a former JobMaster of the job, the oldest first; all
    /// ids up to `last_id` were drawn.
    pub fn recover(&mut self, checkpoints: Vec<CompletedCheckpoint>, last_id: CheckpointId) {
        self.skip_ids(last_id);
        for checkpoint in checkpoints {
            // None had been let go before.
            drop(self.completed.recover(checkpoint));
        }
        self.was_used = true;
    }

    /// A former JobMaster of the job drew all ids up to this one, of which none is to be drawn again: files of the
    /// same number would pass for those of a savepoint.
    pub fn skip_ids(&mut self, last_id: CheckpointId) {
        self.next_id = self.next_id.max(last_id + 1);
    }

    /// Which files the complete checkpoints refer to.
    pub fn registry(&self) -> &SharedStateRegistry {
        self.completed.registry()
    }

    /// Files of checkpoints that were cut off with a former JobMaster go.
    pub fn discard_leftovers(&mut self, files: Vec<String>) {
        if !files.is_empty() {
            tracing::info!(job = %self.job, files = files.len(), "deleting files of checkpoints that were cut off");
            self.discard(Vec::new(), files);
        }
    }

    /// Damaged checkpoints that were passed over: the next JobMaster must not find them readable, since
    /// what they made visible is taken back.
    pub fn forget_damaged(&mut self, ids: Vec<CheckpointId>) {
        if !ids.is_empty() {
            self.needs_full = true;
            self.discard(ids, Vec::new());
        }
    }

    /// The user has the job start from this checkpoint or savepoint, whose files stay the user's.
    pub fn start_from(&mut self, checkpoint: CompletedCheckpoint) {
        self.next_id = self.next_id.max(checkpoint.id() + 1);
        self.completed.set_start(checkpoint);
        self.needs_full = true;
        self.was_used = true;
    }

    /// The latest checkpoint is restored.
    pub fn restored(&mut self, now: Timestamp) {
        let Some(checkpoint) = self.completed.latest() else { return };
        self.statistics.restored(RestoredCheckpoint {
            id: checkpoint.id(),
            kind: checkpoint.metadata.kind,
            restored: now,
            external_path: checkpoint.external_path(),
        });
    }

    /// Attempts of these tasks are discarded: what their sinks had ready is made again.
    pub fn tasks_reset(&mut self, tasks: &BTreeSet<ExecutionVertexId>) {
        self.uncommitted.retain(|(task, _), _| !tasks.contains(task));
    }

    /// The latest checkpoint could not be restored: has its files looked at.
    pub fn verify_latest(&mut self) {
        if self.verifying.is_some() {
            return;
        }
        if let Some(checkpoint) = self.completed.latest() {
            self.verifying = Some(checkpoint.id());
            let task = StorageTask::Verify(Arc::clone(&checkpoint.metadata), checkpoint.location.clone());
            self.effects.push(Effect::Storage(task));
        }
    }

    /// The files were looked at. Returns true if the checkpoint is damaged and was passed over; one that could not be
    /// read at the moment may be intact.
    pub fn verified(&mut self, id: CheckpointId, may_be_intact: bool) -> bool {
        self.verifying.take_if(|verifying| *verifying == id);
        let is_latest = self.completed.latest().is_some_and(|checkpoint| checkpoint.id() == id);
        if may_be_intact || !is_latest {
            return false;
        }
        let is_own = self.completed.retained().any(|checkpoint| checkpoint.id() == id);
        self.completed.remove_damaged(id, self.next_id - 1);
        if is_own {
            // The restart takes back what it made visible, and waits until nobody can find it readable again.
            self.needs_full = true;
            self.revoked.insert(id, Vec::new());
            self.revoke(id);
            self.statistics.discarded(id);
        }
        true
    }

    // Starting and stopping.

    /// The job runs: the first checkpoint comes after a random time within the interval, so that
    /// jobs which start together do not store their state together.
    pub fn start(&mut self, now: Timestamp) {
        if self.scheduler != Scheduler::Off {
            return;
        }
        self.is_end_of_data_done = false;
        let next = self.settings.interval.map(|interval| {
            let range = self.settings.min_pause.as_millis()..=interval.as_millis();
            let delay = u64::try_from(rand::rng().random_range(range)).unwrap_or(u64::MAX);
            now.plus(Duration::from_millis(delay))
        });
        self.scheduler = Scheduler::On(next);
    }

    /// The job does not run: gives up what is under way, but not what only has to be stored. A savepoint that stops
    /// the job is given up even then: with a job that goes on, what it would commit is taken back.
    pub fn stop(&mut self, reason: CheckpointFailureReason, now: Timestamp) {
        self.scheduler = Scheduler::Off;
        for request in self.decider.clear() {
            self.refuse(&request, reason.text());
        }
        let given_up =
            self.pending.iter().filter(|(_, pending)| pending.metadata.is_none() || pending.request.kind.stops_job());
        for id in given_up.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.abort(id, reason, reason.text(), now);
        }
        if let Some(Stopped { asker: Some(asker), savepoint }) = self.stopped.take() {
            let message = format!(
                "the savepoint {} is complete, but the job did not stop: {}; it goes on from its latest checkpoint, which \
                 takes rows back that the savepoint takes for visible: take another savepoint, and start no job from \
                 this one",
                savepoint.location,
                reason.text()
            );
            self.effects.push(Effect::Answer(asker, Err(message)));
        }
    }

    /// The job ends and waits for the store no longer. Metadata that is stored late is deleted then; nothing of it is
    /// committed.
    pub fn give_up_undecided(&mut self, now: Timestamp) {
        tracing::warn!(
            job = %self.job,
            "the store of checkpoints has not done what was under way when the job began to end: it ends all the same"
        );
        self.verifying = None;
        let reason = CheckpointFailureReason::CheckpointCoordinatorShutdown;
        for id in self.pending.keys().copied().collect::<Vec<_>>() {
            self.abort(id, reason, reason.text(), now);
        }
        self.revoked.clear();
        self.revoke_again = None;
    }

    /// All tasks have finished: what their sinks had ready for savepoints only, by node.
    pub fn take_uncommitted(&mut self) -> BTreeMap<u32, Vec<Committable>> {
        self.take_committables(CheckpointId::MAX)
    }

    /// All tasks have finished: whoever had the job stopped is told.
    pub fn job_finished(&mut self) {
        let Some(Stopped { asker, savepoint }) = self.stopped.take() else { return };
        self.stopped_with = Some(savepoint.location.clone());
        if let Some(asker) = asker {
            self.effects.push(Effect::Answer(asker, Ok(savepoint)));
        }
    }

    /// The savepoint that the job has stopped with.
    pub fn stopped_with(&self) -> Option<&SnapshotLocation> {
        self.stopped_with.as_ref()
    }

    // Asking.

    /// A user asks for a checkpoint or savepoint.
    pub fn ask(&mut self, asker: u64, request: SnapshotRequest, now: Timestamp) {
        if self.scheduler == Scheduler::Off || self.is_stopping() {
            let message =
                if self.is_stopping() { BEING_STOPPED } else { "the job does not run at the moment; try again" };
            return self.effects.push(Effect::Answer(asker, Err(message.to_owned())));
        }
        let (kind, directory, is_full) = match request {
            SnapshotRequest::Checkpoint { .. } if !self.is_periodic() => {
                let message = "the job takes no checkpoints, since execution.checkpointing.interval is not set: take a \
                               savepoint";
                return self.effects.push(Effect::Answer(asker, Err(message.to_owned())));
            }
            SnapshotRequest::Checkpoint { is_full } => (SnapshotKind::Checkpoint, None, is_full),
            SnapshotRequest::Savepoint(directory) => (SnapshotKind::Savepoint, directory, true),
            SnapshotRequest::StopWithSavepoint(directory, mode) => {
                (SnapshotKind::StopWithSavepoint(mode), directory, true)
            }
        };
        let target = if kind.is_savepoint() {
            match self.savepoint_location(directory) {
                Ok(location) => Some(location),
                Err(message) => return self.effects.push(Effect::Answer(asker, Err(message))),
            }
        } else {
            None
        };
        let occasion = Occasion::User(asker);
        self.submit(CheckpointRequest { occasion, kind, target, is_full, is_forced: kind.is_savepoint() }, now);
    }

    /// "savepoint-<first six digits of the job>-<random>" below the directory.
    fn savepoint_location(&self, directory: Option<SnapshotLocation>) -> Result<SnapshotLocation, String> {
        let configured = || self.settings.savepoint_directory.clone().map(SnapshotLocation);
        let SnapshotLocation(directory) = directory.or_else(configured).ok_or(
            "no directory for the savepoint: name one (`engine savepoint JOB DIR`, or --savepoint DIR where the job is \
             stopped or upgraded), or start the cluster with -D execution.checkpointing.savepoint-dir=DIR",
        )?;
        let job = self.job.to_string();
        let local = SnapshotLocation::local_path(&directory);
        let directory = local.map_err(|problem| format!("{directory} cannot be used: {problem}"))?;
        let directory = directory.trim_end_matches('/');
        let random = rand::rng().random_range(0..1_u64 << 48);
        Ok(SnapshotLocation(format!("{directory}/savepoint-{}-{random:012x}", &job[..6])))
    }

    /// A savepoint that stops the job is complete: tasks end for it.
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    fn is_stopping(&self) -> bool {
        self.is_stopped() || self.pending.values().any(|pending| pending.request.kind.stops_job())
    }

    /// All running tasks have processed their input and wait for a checkpoint to end.
    pub fn end_of_data(&mut self, now: Timestamp) {
        let is_over = self.end_of_data_asked.is_none_or(|asked| asked.plus(END_OF_DATA_PAUSE) <= now);
        if self.scheduler == Scheduler::Off
            || !is_over
            || self.is_end_of_data_done
            || self.is_stopping()
            || self.decider.has_unforced()
        {
            return;
        }
        // One under way may have begun before the last task came to its end: the next waits for it.
        self.end_of_data_asked = Some(now);
        let kind = SnapshotKind::Checkpoint;
        let request =
            CheckpointRequest { occasion: Occasion::EndOfData, kind, target: None, is_full: false, is_forced: false };
        self.submit(request, now);
    }

    fn submit(&mut self, request: CheckpointRequest, now: Timestamp) {
        if let Some(dropped) = self.decider.submit(request, now) {
            self.refuse(&dropped, request_decider::TOO_MANY.text());
        }
    }

    fn refuse(&mut self, request: &CheckpointRequest, message: &str) {
        if let Occasion::User(asker) = request.occasion {
            let what = what(request.kind);
            self.effects.push(Effect::Answer(asker, Err(format!("the {what} was not taken: {message}"))));
        }
    }

    // Beginning.

    /// What is to be begun now: call [`CheckpointCoordinator::begin`] or [`CheckpointCoordinator::not_begun`] with it.
    pub fn next_request(&mut self, now: Timestamp) -> Option<CheckpointRequest> {
        let Scheduler::On(due) = self.scheduler else { return None };
        if due.is_some_and(|due| due <= now) {
            let interval = self.settings.interval.unwrap_or_default();
            self.scheduler = Scheduler::On(Some(now.plus(interval)));
            // Checkpoints before a stop would only be in its way.
            if !self.is_stopping() {
                let is_queued = self.decider.has_unforced();
                let (occasion, kind) = (Occasion::Periodic, SnapshotKind::Checkpoint);
                if !is_queued {
                    self.submit(
                        CheckpointRequest { occasion, kind, target: None, is_full: false, is_forced: false },
                        now,
                    );
                }
            }
        }
        // Behind a savepoint that stops the job sources are at their end: a checkpoint would take that for the end of
        // their input.
        if self.is_stopping() {
            return None;
        }
        let load = Load { pending: self.pending.len(), cleaning: self.cleaning, last_completion: self.last_completion };
        match self.decider.choose(load, now) {
            Decision::Nothing => None,
            Decision::Begin(request) => Some(request),
            Decision::TooEarly(_, wait) => {
                self.scheduler = Scheduler::On(Some(now.plus(wait)));
                None
            }
        }
    }

    /// Begins: the sources' enumerators were asked for their state before this.
    pub fn begin(
        &mut self,
        request: CheckpointRequest,
        job: &JobGraph,
        participants: Participants,
        now: Timestamp,
    ) -> Begun {
        let id = self.next_id;
        self.next_id += 1;
        self.was_used = true;
        let is_full = request.is_full || !self.settings.is_incremental || self.needs_full;
        let location = request.target.clone().unwrap_or_else(|| self.settings.location.clone());
        let options = CheckpointOptions { kind: request.kind, mode: self.settings.mode, location, is_full };
        let Participants { to_wait, finished, end_states } = participants;
        let tasks = job.vertices.iter().map(|vertex| {
            let count = finished.iter().filter(|task| task.vertex == vertex.id).count();
            let details = TaskCheckpointDetails {
                parallelism: vertex.parallelism,
                subtasks: BTreeMap::new(),
                finished: u32::try_from(count).unwrap_or(u32::MAX),
            };
            (vertex.id, details)
        });
        self.statistics.begun(id, request.kind, tasks.collect(), now);
        self.pending.insert(
            id,
            PendingCheckpoint {
                request,
                options: options.clone(),
                triggered: now,
                attempts: to_wait,
                finished,
                end_states,
                coordinators: BTreeMap::new(),
                acknowledged: BTreeMap::new(),
                metadata: None,
            },
        );
        tracing::debug!(job = %self.job, id, "checkpoint triggered");
        Begun { id, options }
    }

    /// Notes the state of the sources' enumerators.
    pub fn set_coordinators(&mut self, id: CheckpointId, coordinators: BTreeMap<u32, Vec<u8>>) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.coordinators = coordinators;
        }
    }

    /// It could not be begun.
    pub fn not_begun(&mut self, request: &CheckpointRequest, reason: CheckpointFailureReason, message: &str) {
        self.refuse(request, message);
        tracing::debug!(job = %self.job, ?reason, "checkpoint not triggered: {message}");
        self.count_failure(None, reason, message);
    }

    // Answers of tasks.

    /// A task's part is stored. The attempt is current.
    pub fn acknowledge(&mut self, acknowledge: AcknowledgeCheckpoint, job: &JobGraph, now: Timestamp) {
        let AcknowledgeCheckpoint { attempt, checkpoint_id: id, state, metrics } = acknowledge;
        let task = attempt.execution_vertex;
        let awaited = self.pending.get(&id).filter(|pending| {
            pending.attempts.get(&task) == Some(&attempt) && !pending.acknowledged.contains_key(&task)
        });
        if awaited.is_none() {
            self.late(&AcknowledgeCheckpoint { attempt, checkpoint_id: id, state, metrics });
            return;
        }
        self.note_committables(id, task, &state);
        let sizes = state.sizes(id);
        self.statistics.acknowledged(id, task, SubtaskCheckpointDetails { acknowledged: now, sizes, metrics });
        let pending = self.pending.get_mut(&id).expect("found above");
        pending.acknowledged.insert(task, state);
        failpoint!("checkpoint.acknowledged", infallible);
        if pending.acknowledged.len() == pending.attempts.len() {
            self.store(id, job);
        }
    }

    /// An acknowledgement that nobody awaits: its checkpoint was given up, or it came twice. What
    /// the sinks of a current attempt have ready belongs to the next checkpoint.
    fn late(&mut self, acknowledge: &AcknowledgeCheckpoint) {
        let AcknowledgeCheckpoint { attempt, checkpoint_id: id, state, .. } = acknowledge;
        let Some(aborted) = self.aborted.iter().find(|aborted| aborted.id == *id).cloned() else { return };
        self.note_committables(*id, attempt.execution_vertex, state);
        self.discard_state(&aborted, std::iter::once(state));
    }

    /// An acknowledgement of an attempt that is not current any more: its files go.
    pub fn acknowledged_by_former_attempt(&mut self, acknowledge: &AcknowledgeCheckpoint) {
        let id = acknowledge.checkpoint_id;
        if let Some(aborted) = self.aborted.iter().find(|aborted| aborted.id == id).cloned() {
            self.discard_state(&aborted, std::iter::once(&acknowledge.state));
        }
    }

    fn note_committables(&mut self, id: CheckpointId, task: ExecutionVertexId, state: &TaskStateSnapshot) {
        for (node, operator) in &state.operators {
            if operator.committables.is_empty() {
                continue;
            }
            let known = self.uncommitted.entry((task, *node)).or_default();
            for committable in &operator.committables {
                // A task may name again what it named for a checkpoint that was given up.
                match known.iter_mut().find(|(_, other)| other == committable) {
                    // Acknowledgements may overtake each other: it belongs to the first that names it.
                    Some((belongs_to, _)) => *belongs_to = id.min(*belongs_to),
                    None => known.push((id, committable.clone())),
                }
            }
        }
    }

    /// All parts are there.
    fn store(&mut self, id: CheckpointId, job: &JobGraph) {
        failpoint!("checkpoint.all-acknowledged", infallible);
        let pending = self.pending.get_mut(&id).expect("the caller found it");
        // Rows before this barrier that an earlier checkpoint would have committed, had it completed.
        for ((task, node), committables) in &self.uncommitted {
            let Some(state) = pending.acknowledged.get_mut(task) else { continue };
            let upto = committables.iter().filter(|(belongs_to, _)| *belongs_to <= id);
            state.operators.entry(*node).or_default().committables = upto.map(|(_, it)| it.clone()).collect();
        }
        let PendingCheckpoint { acknowledged, finished, end_states, coordinators, .. } = &*pending;
        let parts = Parts { tasks: acknowledged, finished, end_states, coordinators };
        let metadata = Arc::new(metadata::assemble(job, id, pending.triggered, pending.request.kind, &parts));
        pending.metadata = Some(Arc::clone(&metadata));
        let location = pending.options.location.clone();
        let beside = pending.request.kind.is_savepoint().then(|| self.settings.location.clone());
        self.effects.push(Effect::Storage(StorageTask::Store(metadata, location, beside)));
    }

    /// A task gives a checkpoint up. The attempt is current.
    pub fn decline(
        &mut self,
        attempt: ExecutionAttemptId,
        id: CheckpointId,
        reason: CheckpointFailureReason,
        message: &str,
        now: Timestamp,
    ) {
        let task = attempt.execution_vertex;
        let is_awaited = self.pending.get(&id).is_some_and(|pending| {
            pending.metadata.is_none()
                && pending.attempts.get(&task) == Some(&attempt)
                && !pending.acknowledged.contains_key(&task)
        });
        if is_awaited {
            self.abort(id, reason, message, now);
        }
    }

    /// A task has ended: what still waits for it waits in vain.
    pub fn task_ended(&mut self, attempt: ExecutionAttemptId, now: Timestamp) {
        let task = attempt.execution_vertex;
        let waiting = self.pending.iter().filter(|(_, pending)| {
            pending.attempts.get(&task) == Some(&attempt) && !pending.acknowledged.contains_key(&task)
        });
        let reason = CheckpointFailureReason::CheckpointDeclinedTaskClosing;
        for id in waiting.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.abort(id, reason, reason.text(), now);
        }
    }

    // Ends.

    /// The metadata was stored, or could not be.
    pub fn stored(&mut self, id: CheckpointId, result: Result<(), String>, now: Timestamp) {
        if self.pending.get(&id).is_none_or(|pending| pending.metadata.is_none()) {
            return;
        }
        match result {
            Ok(()) => self.complete(id, now),
            Err(message) => self.abort(id, CheckpointFailureReason::FinalizeCheckpointFailure, &message, now),
        }
    }

    fn complete(&mut self, id: CheckpointId, now: Timestamp) {
        let pending = self.pending.remove(&id).expect("the caller found it");
        let metadata = pending.metadata.expect("the caller looked");
        let kind = pending.request.kind;
        let checkpoint = CompletedCheckpoint { metadata, location: pending.options.location.clone() };
        let external_path = checkpoint.external_path();
        tracing::info!(job = %self.job, id, path = external_path, "{} complete", what(kind));
        self.statistics.completed(id, external_path.clone());
        self.failures.succeeded(id);
        self.last_completion = Some(now);
        self.is_end_of_data_done |= pending.request.occasion == Occasion::EndOfData;
        let taken = TakenSnapshot { checkpoint_id: id, location: SnapshotLocation(external_path) };
        if !kind.is_savepoint() {
            self.needs_full &= !pending.options.is_full;
            let discarded = self.completed.add(checkpoint, self.next_id - 1);
            // Those too whose metadata is about to be stored, behind this one's.
            let subsumed =
                self.pending.iter().filter(|(other, pending)| **other < id && !pending.request.kind.is_savepoint());
            let reason = CheckpointFailureReason::CheckpointSubsumed;
            for other in subsumed.map(|(other, _)| *other).collect::<Vec<_>>() {
                self.abort(other, reason, reason.text(), now);
            }
            discarded.checkpoints.iter().for_each(|id| self.statistics.discarded(*id));
            if !discarded.checkpoints.is_empty() || !discarded.files.is_empty() {
                self.discard(discarded.checkpoints, discarded.files);
            }
        }
        if kind != SnapshotKind::Savepoint {
            let committables = self.take_committables(id);
            let splits = splits_of(&pending.acknowledged);
            self.effects.push(Effect::Completed(CompletedParts {
                id,
                is_savepoint: kind.is_savepoint(),
                splits,
                committables,
            }));
            let attempts = pending.attempts.into_values().collect();
            self.effects.push(Effect::NotifyComplete(id, attempts));
        }
        let mut committables = committables_of(&pending.acknowledged);
        for ((_, node), state) in pending.end_states {
            committables.entry(node).or_default().extend(state.committables);
        }
        let asker = match pending.request.occasion {
            Occasion::User(asker) => Some(asker),
            Occasion::Periodic | Occasion::EndOfData => None,
        };
        match (kind, asker) {
            (SnapshotKind::StopWithSavepoint(_), asker) => self.stopped = Some(Stopped { asker, savepoint: taken }),
            (SnapshotKind::Savepoint, Some(asker)) => {
                self.effects.push(Effect::SavepointTaken { asker, savepoint: taken, committables });
            }
            (SnapshotKind::Checkpoint, Some(asker)) => self.effects.push(Effect::Answer(asker, Ok(taken))),
            (_, None) => {}
        }
    }

    /// What becomes visible with a completed checkpoint.
    fn take_committables(&mut self, id: CheckpointId) -> BTreeMap<u32, Vec<Committable>> {
        let mut taken: BTreeMap<u32, Vec<Committable>> = BTreeMap::new();
        for ((_, node), committables) in &mut self.uncommitted {
            let upto = committables.extract_if(.., |(belongs_to, _)| *belongs_to <= id);
            taken.entry(*node).or_default().extend(upto.map(|(_, committable)| committable));
        }
        self.uncommitted.retain(|_, committables| !committables.is_empty());
        taken.retain(|_, committables| !committables.is_empty());
        taken
    }

    fn abort(&mut self, id: CheckpointId, reason: CheckpointFailureReason, message: &str, now: Timestamp) {
        let Some(pending) = self.pending.remove(&id) else { return };
        let text = if message == reason.text() { message.to_owned() } else { format!("{}: {message}", reason.text()) };
        tracing::info!(job = %self.job, id, "{} given up: {text}", what(pending.request.kind));
        self.statistics.failed(id, text.clone(), now);
        self.refuse(&pending.request, &text);
        let aborted = AbortedCheckpoint { id, options: pending.options };
        if pending.metadata.is_some() && !aborted.options.kind.is_savepoint() {
            let states = pending.acknowledged.values();
            let files = states.flat_map(|state| self.completed.files_of_aborted(id, state)).collect();
            self.revoked.insert(id, files);
            self.revoke(id);
        } else {
            self.discard_state(&aborted, pending.acknowledged.values());
        }
        self.aborted.push_back(aborted);
        if ABORTED_MAX < self.aborted.len() {
            self.aborted.pop_front();
        }
        let attempts = pending.attempts.into_values().collect();
        self.effects.push(Effect::NotifyAborted(id, attempts));
        // Unlike Flink, which counts what a task reports of a savepoint too: a savepoint is written to where
        // its user says, so that its failure tells nothing of the job. Tasks that had begun to end for one
        // fail by themselves, and go on from the latest checkpoint.
        if !pending.request.kind.is_savepoint() {
            self.count_failure(Some(id), reason, &text);
        }
    }

    fn count_failure(&mut self, id: Option<CheckpointId>, reason: CheckpointFailureReason, message: &str) {
        if self.failures.failed(id, reason) == Consequence::JobFails {
            let which = id.map_or_else(String::new, |id| format!(" {id}"));
            let text = format!(
                "checkpoint{which} failed: {message}; more than {} failed one after the other \
                 (execution.checkpointing.tolerable-failed-checkpoints)",
                self.settings.tolerable_failures
            );
            self.effects.push(Effect::FailJob(text));
        }
    }

    /// Deletes what was written for a checkpoint that was given up.
    fn discard_state<'a>(&mut self, aborted: &AbortedCheckpoint, states: impl Iterator<Item = &'a TaskStateSnapshot>) {
        let files: Vec<String> = states.flat_map(|state| self.completed.files_of_aborted(aborted.id, state)).collect();
        if aborted.options.kind.is_savepoint() {
            self.cleaning += 1;
            let task = StorageTask::DeleteSavepoint(aborted.options.location.clone());
            self.effects.push(Effect::Storage(task));
        } else if !files.is_empty() {
            self.discard(Vec::new(), files);
        }
    }

    fn discard(&mut self, checkpoints: Vec<CheckpointId>, files: Vec<String>) {
        self.cleaning += 1;
        let location = self.settings.location.clone();
        self.effects.push(Effect::Storage(StorageTask::Discard { location, checkpoints, files }));
    }

    /// Behind what may be storing it: tasks of the store are done in order.
    fn revoke(&mut self, id: CheckpointId) {
        let Some(files) = self.revoked.get(&id).cloned() else { return };
        self.cleaning += 1;
        let location = self.settings.location.clone();
        self.effects.push(Effect::Storage(StorageTask::Revoke { location, id, files }));
    }

    /// The metadata of a checkpoint that was given up is not there, or could not be deleted.
    pub fn revoked(&mut self, id: CheckpointId, result: Result<(), String>, now: Timestamp) {
        self.discarded();
        match result {
            Ok(()) => drop(self.revoked.remove(&id)),
            Err(problem) => {
                let pause = format_duration(REVOKE_PAUSE);
                tracing::warn!(
                    job = %self.job,
                    id,
                    "what may be there of a checkpoint that was given up or passed over could not be deleted, which is tried again in \
                     {pause}; no task restarts before: {problem}"
                );
                self.revoke_again = Some(now.plus(REVOKE_PAUSE));
            }
        }
    }

    /// A deletion has ended.
    pub fn discarded(&mut self) {
        self.cleaning = self.cleaning.saturating_sub(1);
    }

    // Time.

    /// Gives up what takes too long, and tries again what failed.
    pub fn expire(&mut self, now: Timestamp) {
        if self.revoke_again.take_if(|time| *time <= now).is_some() {
            self.revoked.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| self.revoke(id));
        }
        let is_late = |pending: &PendingCheckpoint| pending.triggered.plus(self.settings.timeout) <= now;
        let late: Vec<_> = self.pending.iter().filter(|(_, pending)| is_late(pending)).map(|(id, _)| *id).collect();
        for id in late {
            let pending = &self.pending[&id];
            let missing = pending.attempts.len() - pending.acknowledged.len();
            let timeout = format_duration(self.settings.timeout);
            let message = if pending.metadata.is_some() {
                format!("its metadata was not stored within {timeout}")
            } else {
                format!("{missing} of {} tasks had not answered after {timeout}", pending.attempts.len())
            };
            self.abort(id, CheckpointFailureReason::CheckpointExpired, &message, now);
        }
    }

    /// When something is due.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let due = match self.scheduler {
            Scheduler::On(due) => due,
            Scheduler::Off => None,
        };
        let timeouts = self.pending.values().map(|pending| pending.triggered.plus(self.settings.timeout));
        let end_of_data = match (self.scheduler, self.end_of_data_asked) {
            (Scheduler::On(_), Some(asked)) if self.pending.is_empty() => Some(asked.plus(END_OF_DATA_PAUSE)),
            _ => None,
        };
        timeouts.chain(due).chain(end_of_data).chain(self.revoke_again).min()
    }

    /// The pause after a last checkpoint that failed is over.
    pub fn forget_end_of_data(&mut self, now: Timestamp) {
        self.end_of_data_asked.take_if(|asked| asked.plus(END_OF_DATA_PAUSE) <= now);
    }
}

fn what(kind: SnapshotKind) -> &'static str {
    if kind.is_savepoint() { "savepoint" } else { "checkpoint" }
}

fn committables_of(states: &BTreeMap<ExecutionVertexId, TaskStateSnapshot>) -> BTreeMap<u32, Vec<Committable>> {
    let mut committables: BTreeMap<u32, Vec<Committable>> = BTreeMap::new();
    for (node, operator) in states.values().flat_map(|state| &state.operators) {
        committables.entry(*node).or_default().extend(operator.committables.iter().cloned());
    }
    committables.retain(|_, committables| !committables.is_empty());
    committables
}

fn splits_of(states: &BTreeMap<ExecutionVertexId, TaskStateSnapshot>) -> BTreeMap<(u32, u32), Vec<SourceSplit>> {
    let operators = states.iter().flat_map(|(task, state)| {
        state.operators.iter().map(|(node, operator)| ((*node, task.subtask_index), operator.splits.clone()))
    });
    operators.filter(|(_, splits)| !splits.is_empty()).collect()
}
