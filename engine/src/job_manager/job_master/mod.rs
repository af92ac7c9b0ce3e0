//! The JobMaster: runs one job, from the checks before its first task to its last state.
//!
//! Talks to the ResourceManager (slots), to TaskExecutors (tasks) and to the
//! Dispatcher (states), by messages only. It decides and does not wait: each message
//! or deadline changes the state and returns what to send. Messages meant for another
//! leadership are dropped in [`JobMaster::on_message`] and counted.
//!
//! | part | owns |
//! |---|---|
//! | `execution_graph` | subtasks, attempts and their states |
//! | `scheduling` | regions that wait for slots, deployment, reports of tasks |
//! | `failover` | failures, restarts, cancelling |
//! | `slot_sharing`, `slot_pool` | which subtasks share a slot, and the slots there are |
//! | `operator_coordinators`, `watermark_alignment` | enumerators and committers, and how far sources are |
//! | `checkpoint_coordinator` | when checkpoints are taken, what becomes of them, which are kept |
//! | `checkpointing` | what joins that one to tasks, sources and sinks; restoring |
//! | `restart_strategy` | whether and when to restart |
//! | `resource_manager_connection`, `task_executors` | registrations and heartbeats |
//!
//! A restart goes on from the latest checkpoint. Without one it begins from scratch: splits
//! are dealt again, and the output of discarded attempts never becomes visible.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

pub mod checkpoint_coordinator;
pub mod execution_graph;
pub mod operator_coordinators;
pub mod restart_strategy;
pub mod slot_pool;
pub mod slot_sharing;
mod checkpointing;
mod failover;
mod resource_manager_connection;
mod scheduling;
mod task_executors;
pub mod watermark_alignment;
#[cfg(test)]
mod checkpoint_simulation;
#[cfg(test)]
mod checkpoint_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use checkpoint_coordinator::{CheckpointCoordinator, settings::CheckpointSettings, storage::CheckpointStore};
use execution_graph::{
    AttachError, ExecutionGraph, VertexIndex,
    execution::{CancelEffect, cancel_effect},
};
use failover::{CancelRetry, FailoverStrategy, PendingRestart};
pub use operator_coordinators::Connectors;
use operator_coordinators::OperatorCoordinators;
use resource_manager_connection::ResourceManagerConnection;
use restart_strategy::{RestartStrategy, RestartStrategyError};
use slot_pool::SlotPool;
use slot_sharing::SlotSharing;
use task_executors::TaskExecutors;

use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, format_duration, options},
        ids::{ExecutionAttemptId, ExecutionGraphId, JobId, JobMasterId, ResourceId},
        status::{ExecutionState, JobStatus},
    },
    checkpoint::TaskRestore,
    connector::Permissions,
    failpoint,
    graph::job_graph::{JobGraph, ResourceProfile},
    protocol::{
        dispatcher::{DispatcherMessage, JobMasterFailed, JobStatusChanged, JobTerminated},
        job_details::{Downtime, FailureEntry, JobDetails, JobOverview, Restart, SlotShortage},
        job_master::{CheckpointFailureReason, FailureCause, JobMasterMessage, Recoverability},
        resource_manager::{JobMasterRegistration, RequiredSlots, ResourceManagerMessage},
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::TaskExecutorMessage,
    },
};

/// What a JobMaster is made of.
pub struct JobMasterParts {
    /// The job.
    pub job_graph: JobGraph,
    /// The leadership.
    pub job_master_id: JobMasterId,
    /// When the job was submitted.
    pub submitted: Timestamp,
    /// Settings of the cluster; those of the job win.
    pub configuration: Configuration,
    /// How sources and sinks are reached.
    pub connectors: Connectors,
    /// Where checkpoints are stored.
    pub checkpoint_store: Box<dyn CheckpointStore>,
    /// Where the engine keeps what it is not told to keep elsewhere.
    pub state_directory: PathBuf,
    /// Whether that outlives the engine's process.
    pub state_is_kept: bool,
    /// Fence of the messages to the Dispatcher.
    pub dispatcher: Fence,
}

/// A JobMaster cannot be made: the job is refused.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum JobMasterError {
    /// The graph contradicts itself.
    #[error("the job graph is not valid: {0}")]
    Graph(#[from] AttachError),
    /// The restart strategy is not valid.
    #[error("{0}")]
    RestartStrategy(#[from] RestartStrategyError),
    /// The failover strategy is unknown.
    #[error("unknown failover strategy \"{0}\": expected region or full")]
    FailoverStrategy(String),
}

/// Target of the log line of a failure that ends its job: whoever waits for the job is told it anyway.
pub const JOB_FAILURE_TARGET: &str = "engine::job_failure";

/// How long a job that fails or is cancelled waits for the store of checkpoints, which may hang. A store that works
/// takes less, and of a job that ends nothing depends on it but which checkpoint is its last.
const STORE_WAIT_MAX: Duration = Duration::from_secs(30);

/// What follows from a failure.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Consequence {
    /// It is the reason for which the job ends as FAILED.
    JobFails,
    /// Tasks restart.
    TasksRestart,
    /// None: what it is about restarts already, or the job has ended or is ending for another reason.
    JobGoesOn,
}

/// Runs one job.
pub struct JobMaster {
    id: JobMasterId,
    /// Its vertices are those of `graph`.
    job_graph: JobGraph,
    /// The cluster's settings, overridden by the job's.
    configuration: Configuration,
    dispatcher: Fence,

    status: JobStatus,
    timestamps: BTreeMap<JobStatus, Timestamp>,
    last_modified: Timestamp,
    /// Numbers of subtasks by state that the Dispatcher was told last.
    reported_tasks: BTreeMap<ExecutionState, u32>,
    graph: ExecutionGraph,
    sharing: SlotSharing,
    pool: SlotPool,
    /// Regions whose subtasks are SCHEDULED and wait for slots.
    waiting_regions: BTreeSet<usize>,
    coordinators: OperatorCoordinators,
    checkpoints: CheckpointCoordinator,
    checkpoint_store: Box<dyn CheckpointStore>,
    /// Whether the checkpoints of a job that failed outlive the process.
    checkpoints_are_kept: bool,
    /// What the user had the job start from is a savepoint that another stopped with.
    start_was_committed: bool,
    /// What fresh attempts go on from, until they are deployed.
    restores: BTreeMap<VertexIndex, TaskRestore>,
    /// Subtasks whose current attempts were deployed with a checkpoint and do not run yet.
    restoring: BTreeSet<VertexIndex>,
    /// Attempts that have processed all their input and wait for a checkpoint.
    at_end_of_data: BTreeSet<ExecutionAttemptId>,

    restart_strategy: RestartStrategy,
    failover_strategy: FailoverStrategy,
    pending_restarts: Vec<PendingRestart>,
    /// Subtasks of pending restarts that none has taken up yet.
    waiting_for_restart: BTreeSet<VertexIndex>,
    cancel_retries: BTreeMap<VertexIndex, CancelRetry>,
    /// To be cancelled unless it has completed a checkpoint.
    gives_way: bool,
    restarts: u64,
    downtime: Downtime,
    root_failure: Option<FailureEntry>,
    /// The newest first; at most `failures_max`.
    failures: VecDeque<FailureEntry>,
    failures_max: usize,

    resource_manager: ResourceManagerConnection,
    /// Version of the pool's requirements that the ResourceManager was told last.
    declared: Option<u64>,
    /// Slots that there are, as the ResourceManager said when they were too few.
    available_slots: Option<u32>,
    slot_request_timeout: Duration,
    task_executors: TaskExecutors,

    stale_messages: u64,
    outbox: Vec<Envelope>,
}

impl JobMaster {
    /// Makes the JobMaster of a job, in the state INITIALIZING.
    ///
    /// # Errors
    /// Returns an error if the graph or a setting is not valid.
    pub fn new(parts: JobMasterParts) -> Result<Self, JobMasterError> {
        let JobMasterParts { job_graph, job_master_id, submitted, configuration, connectors, dispatcher, .. } = parts;
        let configuration = effective_configuration(&configuration, &job_graph.configuration);
        let checkpoints = CheckpointSettings::new(&configuration, job_graph.job_id, &parts.state_directory);
        let checkpoints_are_kept = parts.state_is_kept || configuration.is_set(&options::CHECKPOINTING_DIR);
        let history_max = configuration.get(&options::ATTEMPTS_HISTORY) as usize;
        let graph = ExecutionGraph::attach(&job_graph.vertices, ExecutionGraphId::random(), history_max, submitted)?;
        let sharing = SlotSharing::new(&graph);
        let slot_request_timeout = configuration.get(&options::SLOT_REQUEST_TIMEOUT);
        let pool = SlotPool::new(
            sharing.slots.iter().map(|slot| slot.vertices.len()),
            sharing.fill_order.clone(),
            configuration.get(&options::SLOT_IDLE_TIMEOUT),
            slot_request_timeout,
        );
        let heartbeat_interval = configuration.get(&options::HEARTBEAT_INTERVAL);
        let heartbeat_timeout = configuration.get(&options::HEARTBEAT_TIMEOUT);
        Ok(Self {
            id: job_master_id,
            dispatcher,
            status: JobStatus::Initializing,
            timestamps: BTreeMap::from([(JobStatus::Initializing, submitted)]),
            last_modified: submitted,
            sharing,
            pool,
            waiting_regions: BTreeSet::new(),
            coordinators: OperatorCoordinators::new(connectors, Permissions::from(&job_graph.grants)),
            checkpoints: CheckpointCoordinator::new(job_graph.job_id, checkpoints),
            checkpoint_store: parts.checkpoint_store,
            checkpoints_are_kept,
            start_was_committed: false,
            restores: BTreeMap::new(),
            restoring: BTreeSet::new(),
            at_end_of_data: BTreeSet::new(),
            restart_strategy: RestartStrategy::new(&configuration)?,
            failover_strategy: FailoverStrategy::new(&configuration)?,
            pending_restarts: Vec::new(),
            waiting_for_restart: BTreeSet::new(),
            cancel_retries: BTreeMap::new(),
            gives_way: false,
            restarts: 0,
            downtime: Downtime::default(),
            root_failure: None,
            failures: VecDeque::new(),
            failures_max: configuration.get(&options::EXCEPTION_HISTORY) as usize,
            resource_manager: ResourceManagerConnection::new(&configuration, submitted),
            declared: None,
            available_slots: None,
            slot_request_timeout,
            task_executors: TaskExecutors::new(heartbeat_interval, heartbeat_timeout, submitted),
            stale_messages: 0,
            reported_tasks: BTreeMap::new(),
            outbox: Vec::new(),
            graph,
            job_graph,
            configuration,
        })
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job_graph.job_id
    }

    /// The job's state.
    pub fn status(&self) -> JobStatus {
        self.status
    }

    /// Number of messages that were dropped because they were meant for another
    /// leadership or another component.
    pub fn stale_messages(&self) -> u64 {
        self.stale_messages
    }

    /// The job as a line of a list.
    pub fn overview(&self) -> JobOverview {
        JobOverview {
            job: self.job(),
            name: self.job_graph.name.clone(),
            status: self.status,
            started: self.timestamps[&JobStatus::Initializing],
            ended: self.status.is_terminal().then_some(self.last_modified),
            last_modified: self.last_modified,
            tasks: self.graph.counts().clone(),
        }
    }

    /// All there is to know of the job.
    pub fn details(&self) -> JobDetails {
        let restart_strategy = match self.restart_strategy {
            RestartStrategy::NoRestart => self.restart_strategy.to_string(),
            RestartStrategy::FixedDelay(_) | RestartStrategy::FailureRate(_) | RestartStrategy::ExponentialDelay(_) => {
                let from = if self.checkpoints.is_periodic() {
                    "goes on from the latest checkpoint"
                } else {
                    "begins from scratch, since the job takes no checkpoints"
                };
                format!("{}; each restart {from}", self.restart_strategy)
            }
        };
        JobDetails {
            job: self.job(),
            name: self.job_graph.name.clone(),
            status: self.status,
            timestamps: self.timestamps.clone(),
            vertices: self.graph.details(),
            json_plan: self.job_graph.json_plan.clone(),
            configuration: self.configuration.clone(),
            restart_strategy,
            restarts: self.restarts,
            downtime: self.downtime,
            slot_shortage: self.slot_shortage(),
            root_failure: self.root_failure.clone(),
            failures: self.failures.iter().cloned().collect(),
            checkpoints: self.checkpoints.statistics().map(Box::new),
            stopped_with: self.checkpoints.stopped_with().cloned(),
        }
    }

    fn slot_shortage(&self) -> Option<SlotShortage> {
        let (needed, assigned) = (self.pool.required_count(), self.pool.assigned_count());
        let is_short = !self.waiting_regions.is_empty() && assigned < needed;
        is_short.then(|| SlotShortage {
            needed: u32::try_from(needed).unwrap_or(u32::MAX),
            available: self.available_slots,
        })
    }

    /// Looks for a checkpoint to go on from, checks inputs and destinations, then begins to register
    /// and to schedule.
    fn start(&mut self, now: Timestamp) {
        let initialized = match self.restore_at_start(now) {
            Ok(restored) => {
                let vertices = &self.job_graph.vertices;
                let location = &self.checkpoints.settings().location;
                let empty = self.checkpoints.latest_own().is_none().then_some(location);
                let initialized = self.coordinators.initialize_on_master(vertices, restored, empty);
                initialized.map_err(operator_coordinators::CoordinatorError::into_failure)
            }
            Err(cause) => Err(cause),
        };
        if let Err(cause) = initialized {
            if cause.recoverability == Recoverability::Recoverable {
                return self.give_up_start(cause);
            }
            let entry = self.record_failure(cause, None, Consequence::JobFails, now);
            self.root_failure = Some(entry);
            self.set_status(JobStatus::Failed, now);
            self.terminate(now);
            return;
        }
        if self.checkpoints.is_periodic() {
            for source in self.coordinators.not_replayable() {
                tracing::warn!(
                    job = %self.job(),
                    "source \"{source}\" cannot read its rows again: despite checkpoints, a failure loses those that it \
                     read since the latest one; for exactly once, read files or a log that keeps its rows"
                );
            }
        }
        failpoint!("restore.connectors", infallible);
        self.set_status(JobStatus::Created, now);
        self.register_at_resource_manager(now);
        self.set_status(JobStatus::Running, now);
        self.pool.start(now);
        self.schedule((0..self.graph.vertex_count()).collect(), now);
    }

    /// The store of checkpoints, an input or a destination is not there at the moment: a recovered job must neither
    /// begin without it nor end. The Dispatcher has it tried again; a job that was just submitted has failed.
    fn give_up_start(&mut self, cause: FailureCause) {
        tracing::error!(target: JOB_FAILURE_TARGET, job = %self.job(), "{}", cause.message);
        let failed = JobMasterFailed { job: self.job(), job_master: self.id, cause };
        self.send_to_dispatcher(DispatcherMessage::JobMasterFailed(failed));
        // Nobody is told of it: the JobMaster is gone.
        self.status = JobStatus::Suspended;
    }

    fn handle(&mut self, from: &Address, message: JobMasterMessage, now: Timestamp) {
        if let Address::TaskExecutor(id) = from {
            self.task_executors.heard(id, now);
        }
        match message {
            JobMasterMessage::RegisteredAtResourceManager(id) => {
                tracing::info!(job = %self.job(), resource_manager = %id, "registered at the ResourceManager");
                self.resource_manager.accepted(id, now);
                self.declared = None;
            }
            JobMasterMessage::ResourceManagerRefused(reason) => {
                tracing::warn!(job = %self.job(), %reason, "the ResourceManager refused the registration");
                self.resource_manager.refused(now);
            }
            JobMasterMessage::ResourceManagerHeartbeat => self.handle_resource_manager_heartbeat(now),
            JobMasterMessage::NotEnoughSlots(available) => {
                if self.available_slots.replace(available) != Some(available)
                    && let Some(shortage) = self.slot_shortage()
                {
                    tracing::warn!(job = %self.job(), "{shortage}");
                }
            }
            JobMasterMessage::RegisterTaskExecutor(id) => self.register_task_executor(&id, now),
            JobMasterMessage::OfferSlots(offers) => self.handle_slot_offers(offers, now),
            JobMasterMessage::UpdateTaskExecutionState(update) => self.update_task_execution_state(from, update, now),
            JobMasterMessage::TaskRefused(attempt, reason) => self.handle_task_refused(from, attempt, &reason, now),
            JobMasterMessage::RequestSplit(request) => self.handle_split_request(from, request, now),
            JobMasterMessage::ReportWatermark(report) => self.handle_watermark_report(from, report),
            JobMasterMessage::AcknowledgeCheckpoint(acknowledge) => {
                self.handle_acknowledgement(from, *acknowledge, now);
            }
            JobMasterMessage::DeclineCheckpoint(decline) => self.handle_decline(from, &decline, now),
            JobMasterMessage::EndOfDataReached(attempt) => self.handle_end_of_data(from, attempt),
            JobMasterMessage::TriggerSnapshot(number, _) if self.status != JobStatus::Running => {
                let message = self.why_no_snapshot();
                self.send_to_dispatcher(DispatcherMessage::SnapshotTaken(number, Err(message)));
            }
            JobMasterMessage::TriggerSnapshot(number, request) => self.checkpoints.ask(number, request, now),
            JobMasterMessage::CheckpointStored(id, result) => {
                self.checkpoints.stored(id, result, now);
                // A restart would remove the rows that a savepoint holds.
                self.carry_out_effects(now);
            }
            JobMasterMessage::CheckpointsDiscarded => self.checkpoints.discarded(),
            JobMasterMessage::CheckpointRevoked(id, result) => self.checkpoints.revoked(id, result, now),
            JobMasterMessage::CheckpointVerified(id, result) => self.handle_verification(id, result, now),
            JobMasterMessage::TaskExecutorHeartbeat(heartbeat) => self.reconcile_deployments(heartbeat, now),
            JobMasterMessage::DisconnectTaskExecutor(id, reason) => {
                self.task_executor_lost(&id, &format!("TaskExecutor {id} disconnected: {reason}"), now);
            }
            JobMasterMessage::Cancel => self.cancel(now),
            JobMasterMessage::CancelUncommitted => self.gives_way = true,
            JobMasterMessage::RequestDetails(number) => {
                self.send_to_dispatcher(DispatcherMessage::JobDetails(number, self.details()));
            }
            JobMasterMessage::Suspend(reason) => self.suspend(&reason, now),
        }
    }

    /// What is told to whoever wants a checkpoint or savepoint of a job that does not run.
    fn why_no_snapshot(&self) -> String {
        let last = self.failures.front().filter(|_| matches!(self.status, JobStatus::Restarting | JobStatus::Failing));
        let why = last.map_or_else(String::new, |failure| format!(", after: {}", failure.cause.message));
        format!("nothing was taken, since the job is {}{why}; try again when it is RUNNING", self.status)
    }

    fn handle_deadlines(&mut self, now: Timestamp) {
        self.register_at_resource_manager(now);
        for id in self.task_executors.silent(now) {
            let timeout = format_duration(self.configuration.get(&options::HEARTBEAT_TIMEOUT));
            self.send_disconnect(&id, "no heartbeat");
            self.task_executor_lost(&id, &format!("TaskExecutor {id} was silent for {timeout}"), now);
        }
        if self.task_executors.take_heartbeat(now) {
            let ids: Vec<_> = self.task_executors.ids().cloned().collect();
            for id in ids {
                self.send_to_task_executor(&id, TaskExecutorMessage::JobMasterHeartbeat(self.job()));
            }
        }
        self.free_idle_slots(now);
        if self.pool.take_request_timeout(now) && !self.waiting_regions.is_empty() {
            self.fail_slot_request(now);
        }
        self.retry_cancels(now);
        self.checkpoints.expire(now);
        self.checkpoints.forget_end_of_data(now);
    }

    /// Draws all conclusions from what has changed: restarts, deploys, ends the job,
    /// and tells the ResourceManager what is needed.
    fn settle(&mut self, now: Timestamp) {
        self.continue_restarts(now);
        self.deploy_waiting_regions(now);
        self.run_checkpoints(now);
        self.note_recovery(now);
        self.give_way(now);
        let waits_for_store = self.waits_for_store(now);
        match self.status {
            // What is about to be stored must not outlive the decision what becomes of it.
            JobStatus::Running if self.checkpoints.is_about_to_complete() => self.declare_required_slots(),
            JobStatus::Failing | JobStatus::Canceling if waits_for_store => self.declare_required_slots(),
            JobStatus::Running if self.graph.count(ExecutionState::Finished) == self.graph.vertex_count() => {
                self.finish(now);
            }
            JobStatus::Failing if self.graph.all_terminal() => self.end_unsuccessfully(JobStatus::Failed, now),
            JobStatus::Canceling if self.graph.all_terminal() => self.end_unsuccessfully(JobStatus::Canceled, now),
            JobStatus::Initializing
            | JobStatus::Created
            | JobStatus::Running
            | JobStatus::Restarting
            | JobStatus::Failing
            | JobStatus::Canceling
            | JobStatus::Reconciling => self.declare_required_slots(),
            JobStatus::Finished | JobStatus::Canceled | JobStatus::Failed | JobStatus::Suspended => {}
        }
        if !self.is_terminated() && self.reported_tasks != *self.graph.counts() {
            self.report_overview();
        }
    }

    /// True if the job ends and the store of checkpoints may still answer. If it has not answered for long, what it
    /// was to do is given up.
    fn waits_for_store(&mut self, now: Timestamp) -> bool {
        let is_over = self.store_deadline().is_some_and(|deadline| deadline <= now);
        if is_over {
            self.checkpoints.give_up_undecided(now);
            self.carry_out_effects(now);
        }
        self.store_deadline().is_some()
    }

    /// Until when a job that ends waits for the store of checkpoints; none: it does not end, or nothing is undecided.
    fn store_deadline(&self) -> Option<Timestamp> {
        let is_ending = matches!(self.status, JobStatus::Failing | JobStatus::Canceling);
        let waits = is_ending && self.checkpoints.is_undecided();
        waits.then(|| self.timestamps[&self.status].plus(STORE_WAIT_MAX))
    }

    fn report_overview(&mut self) {
        self.reported_tasks = self.graph.counts().clone();
        self.send_to_dispatcher(DispatcherMessage::JobStatusChanged(JobStatusChanged {
            job_master: self.id,
            overview: self.overview(),
        }));
    }

    /// All tasks finished: makes their output visible.
    fn finish(&mut self, now: Timestamp) {
        let uncommitted = self.checkpoints.take_uncommitted();
        match self.coordinators.commit(uncommitted) {
            Ok(()) => {
                self.checkpoints.job_finished();
                self.set_status(JobStatus::Finished, now);
                self.terminate(now);
            }
            Err(error) => {
                self.fail_job(error.into_failure(), None, now);
                self.end_unsuccessfully(JobStatus::Failed, now);
            }
        }
    }

    fn end_unsuccessfully(&mut self, status: JobStatus, now: Timestamp) {
        let outlives = self.checkpoints_are_kept && self.checkpoints.settings().retention.keeps(status);
        let kept = self.checkpoints.latest_own().filter(|_| outlives).map(|kept| Arc::clone(&kept.metadata));
        for error in self.coordinators.abort(kept.as_deref(), &self.job_graph.vertices) {
            self.record_failure(error.into_failure(), None, Consequence::JobGoesOn, now);
        }
        if status == JobStatus::Failed {
            self.name_last_checkpoint();
        }
        self.set_status(status, now);
        self.terminate(now);
    }

    /// Says in the job's failure what a corrected job can go on from.
    fn name_last_checkpoint(&mut self) {
        let Some(checkpoint) = self.checkpoints.latest() else { return };
        let is_savepoint = checkpoint.metadata.kind.is_savepoint();
        if !is_savepoint && !self.checkpoints_are_kept {
            return;
        }
        let option = if is_savepoint { "--from-savepoint" } else { "--from-checkpoint" };
        let path = checkpoint.external_path();
        let hint = format!("; to go on from the last good state, submit a job with {option} {path}");
        if let Some(failure) = &mut self.root_failure {
            failure.cause.message.push_str(&hint);
        }
    }

    /// Leadership was lost: leaves everything to the next leader.
    fn suspend(&mut self, reason: &str, now: Timestamp) {
        tracing::info!(job = %self.job(), %reason, "suspended");
        for vertex in 0..self.graph.vertex_count() {
            let state = self.graph.vertex(vertex).current().state();
            match cancel_effect(state) {
                CancelEffect::AtOnce | CancelEffect::TellTaskExecutor => {
                    self.enter(vertex, &[ExecutionState::Canceling, ExecutionState::Canceled], now);
                }
                CancelEffect::Nothing if state == ExecutionState::Canceling => {
                    self.enter(vertex, &[ExecutionState::Canceled], now);
                }
                CancelEffect::Nothing => {}
            }
        }
        self.set_status(JobStatus::Suspended, now);
        self.terminate(now);
    }

    /// The last messages: gives slots back, unless another leader may use them.
    fn terminate(&mut self, now: Timestamp) {
        assert!(self.status.is_terminal(), "only an ended job terminates");
        self.downtime.end(now);
        self.carry_out_effects(now);
        let reason = format!("job {} is {}", self.job(), self.status);
        if self.status.is_globally_terminal() {
            let slots: Vec<_> =
                self.pool.slots().map(|slot| (slot.slot.task_executor.clone(), slot.allocation)).collect();
            for (id, allocation) in slots {
                self.send_to_task_executor(&id, TaskExecutorMessage::FreeSlot(allocation, reason.clone()));
            }
        }
        let ids: Vec<_> = self.task_executors.ids().cloned().collect();
        for id in ids {
            self.send_disconnect(&id, &reason);
        }
        self.send_to_resource_manager(ResourceManagerMessage::DisconnectJobMaster(self.job(), self.id));
        self.send_to_dispatcher(DispatcherMessage::JobTerminated(JobTerminated {
            job_master: self.id,
            details: self.details(),
        }));
    }

    /// Enters a status and reports it.
    fn set_status(&mut self, next: JobStatus, now: Timestamp) {
        let before = self.status;
        self.status = before.transition_to(next).expect("callers take edges of the table only");
        self.timestamps.insert(next, now);
        self.last_modified = now;
        tracing::info!(job = %self.job(), name = self.job_graph.name, "job switched from {before} to {next}");
        match next {
            JobStatus::Running => self.checkpoints.start(now),
            status if status.is_terminal() => {
                self.checkpoints.stop(CheckpointFailureReason::CheckpointCoordinatorShutdown, now);
            }
            _ => self.checkpoints.stop(CheckpointFailureReason::CheckpointCoordinatorSuspend, now),
        }
        self.report_overview();
    }

    /// Notes a failure, of a task or of the job as a whole.
    fn record_failure(
        &mut self,
        cause: FailureCause,
        vertex: Option<VertexIndex>,
        consequence: Consequence,
        now: Timestamp,
    ) -> FailureEntry {
        let location = vertex.and_then(|vertex| self.graph.vertex(vertex).current().location());
        let entry = FailureEntry {
            time: now,
            task_executor: location.map(|location| location.task_executor.clone()),
            task_name: vertex.map(|vertex| self.graph.task_name(vertex)),
            cause,
            restart: if consequence == Consequence::TasksRestart { Restart::UnderWay } else { Restart::None },
        };
        let task = entry.task_name.as_deref().unwrap_or("job");
        let FailureCause { code, message, detail, .. } = &entry.cause;
        match consequence {
            Consequence::JobFails => {
                tracing::warn!(target: JOB_FAILURE_TARGET, job = %self.job(), task, code, "{message}");
            }
            Consequence::TasksRestart | Consequence::JobGoesOn => {
                tracing::warn!(job = %self.job(), task, code, "{message}")
            }
        }
        if !detail.is_empty() {
            tracing::debug!(job = %self.job(), task, "the plugin's backtrace:\n{detail}");
        }
        self.failures.push_front(entry.clone());
        self.failures.truncate(self.failures_max);
        entry
    }

    fn register_at_resource_manager(&mut self, now: Timestamp) {
        if self.resource_manager.take_try(now) {
            let registration = JobMasterRegistration { job: self.job(), job_master: self.id };
            self.send(
                Address::ResourceManager,
                Fence::None,
                Message::ResourceManager(ResourceManagerMessage::RegisterJobMaster(registration)),
            );
        }
    }

    fn handle_resource_manager_heartbeat(&mut self, now: Timestamp) {
        self.resource_manager.heard(now);
        self.send_to_resource_manager(ResourceManagerMessage::JobMasterHeartbeat(self.job()));
        if self.pool.assigned_count() < self.pool.required_count() {
            // Said again, in case that the last declaration was lost.
            self.declared = None;
        }
    }

    fn declare_required_slots(&mut self) {
        let version = self.pool.requirements_version();
        if self.resource_manager.registered().is_none() || self.declared == Some(version) {
            return;
        }
        let mut slots: Vec<(Option<ResourceProfile>, u32)> = Vec::new();
        for shared in self.pool.required() {
            let resources = self.sharing.slots[shared].resources;
            match slots.iter_mut().find(|(profile, _)| *profile == resources) {
                Some((_, count)) => *count += 1,
                None => slots.push((resources, 1)),
            }
        }
        let required = RequiredSlots { job: self.job(), job_master: self.id, slots };
        self.send_to_resource_manager(ResourceManagerMessage::DeclareRequiredSlots(required));
        self.declared = Some(version);
    }

    fn fail_slot_request(&mut self, now: Timestamp) {
        let (needed, assigned) = (self.pool.required_count(), self.pool.assigned_count());
        let waited = format_duration(self.slot_request_timeout);
        let available = self.available_slots.map_or(assigned, |available| assigned.max(available as usize));
        let message = format!(
            "the job needs {needed} slots, but only {available} are available after {waited}: {}",
            SlotShortage::HINT
        );
        self.handle_global_failure(
            FailureCause {
                code: "no-slots".to_owned(),
                message,
                detail: String::new(),
                recoverability: Recoverability::Recoverable,
            },
            now,
        );
    }

    fn free_idle_slots(&mut self, now: Timestamp) {
        for slot in self.pool.expire_idle(now) {
            let id = slot.slot.task_executor;
            self.send_to_task_executor(&id, TaskExecutorMessage::FreeSlot(slot.allocation, "idle".to_owned()));
            if !self.pool.has_slots_of(&id) {
                self.send_disconnect(&id, "the job uses none of its slots");
                self.task_executors.remove(&id);
            }
        }
    }

    /// True if a message is meant for another leadership or another component.
    fn is_stale(&self, envelope: &Envelope) -> bool {
        let Message::JobMaster(message) = &envelope.message else { return true };
        match envelope.fence {
            Fence::JobMaster(id) => id != self.id,
            Fence::None | Fence::ResourceManager(_) | Fence::Dispatcher(_) => match message {
                JobMasterMessage::RegisteredAtResourceManager(_) | JobMasterMessage::ResourceManagerRefused(_) => false,
                JobMasterMessage::ResourceManagerHeartbeat
                | JobMasterMessage::NotEnoughSlots(_)
                | JobMasterMessage::RegisterTaskExecutor(_)
                | JobMasterMessage::OfferSlots(_)
                | JobMasterMessage::UpdateTaskExecutionState(_)
                | JobMasterMessage::TaskRefused(..)
                | JobMasterMessage::RequestSplit(_)
                | JobMasterMessage::ReportWatermark(_)
                | JobMasterMessage::AcknowledgeCheckpoint(_)
                | JobMasterMessage::DeclineCheckpoint(_)
                | JobMasterMessage::EndOfDataReached(_)
                | JobMasterMessage::TriggerSnapshot(..)
                | JobMasterMessage::CheckpointStored(..)
                | JobMasterMessage::CheckpointsDiscarded
                | JobMasterMessage::CheckpointRevoked(..)
                | JobMasterMessage::CheckpointVerified(..)
                | JobMasterMessage::TaskExecutorHeartbeat(_)
                | JobMasterMessage::DisconnectTaskExecutor(..)
                | JobMasterMessage::Cancel
                | JobMasterMessage::CancelUncommitted
                | JobMasterMessage::RequestDetails(_)
                | JobMasterMessage::Suspend(_) => true,
            },
        }
    }

    fn send(&mut self, to: Address, fence: Fence, message: Message) {
        self.outbox.push(Envelope { from: Address::JobMaster(self.job()), to, fence, message });
    }

    fn send_to_dispatcher(&mut self, message: DispatcherMessage) {
        self.send(Address::Dispatcher, self.dispatcher, Message::Dispatcher(message));
    }

    /// Does nothing while there is no ResourceManager: it learns all when it is there.
    fn send_to_resource_manager(&mut self, message: ResourceManagerMessage) {
        if let Some(id) = self.resource_manager.registered() {
            self.send(Address::ResourceManager, Fence::ResourceManager(id), Message::ResourceManager(message));
        }
    }

    fn send_to_task_executor(&mut self, id: &ResourceId, message: TaskExecutorMessage) {
        self.send(Address::TaskExecutor(id.clone()), Fence::JobMaster(self.id), Message::TaskExecutor(message));
    }

    fn send_disconnect(&mut self, id: &ResourceId, reason: &str) {
        self.send_to_task_executor(id, TaskExecutorMessage::DisconnectJobMaster(self.job(), reason.to_owned()));
    }
}

impl Endpoint for JobMaster {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.start(now);
        self.settle(now);
        std::mem::take(&mut self.outbox)
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        if self.is_stale(&envelope) {
            self.stale_messages += 1;
            tracing::debug!(job = %self.job(), from = ?envelope.from, fence = ?envelope.fence, "dropped a stale message");
            return Vec::new();
        }
        if let Message::JobMaster(message) = envelope.message
            && !self.is_terminated()
        {
            self.handle(&envelope.from, message, now);
            self.settle(now);
        }
        std::mem::take(&mut self.outbox)
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        if !self.is_terminated() {
            self.handle_deadlines(now);
            self.settle(now);
        }
        std::mem::take(&mut self.outbox)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        if self.is_terminated() {
            return None;
        }
        [
            Some(self.resource_manager.next_deadline()),
            self.task_executors.next_deadline(),
            self.pool.next_deadline(),
            self.next_restart(),
            self.next_cancel_retry(),
            self.checkpoints.next_deadline(),
            self.store_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn is_terminated(&self) -> bool {
        self.status.is_terminal()
    }
}

/// The job's settings, and the cluster's where the job has none.
pub fn effective_configuration(cluster: &Configuration, job: &Configuration) -> Configuration {
    let mut effective = job.clone();
    let set_by_job: BTreeSet<&str> = job.iter().map(|(key, _, _)| key).collect();
    for (key, value, origin) in cluster.iter().filter(|(key, _, _)| !set_by_job.contains(key)) {
        effective.set(key, value, origin).expect("a configuration holds valid values only");
    }
    effective
}
