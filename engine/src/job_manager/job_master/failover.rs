//! Failures, restarts and cancelling.
//!
//! A failure is asked about at the restart strategy. The tasks that it touches are
//! cancelled, and start again when the delay has passed **and** all of them have
//! ended; a task that a later failure touched meanwhile is left to that one, which its
//! version tells. Source: Flink's `DefaultScheduler` and `ExecutionFailureHandler`.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Consequence, JobMaster, JobMasterError,
    checkpoint_coordinator::CompletedCheckpoint,
    execution_graph::{
        VertexIndex,
        execution::{CancelEffect, cancel_effect},
    },
    restart_strategy::RestartDecision,
};
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, format_duration, options},
        ids::JobVertexId,
        status::{ExecutionState, JobStatus},
    },
    protocol::{
        job_details::Restart,
        job_master::{FailureCause, RESTORE_FAILURE, Recoverability},
        task_executor::TaskExecutorMessage,
    },
};

/// How often a TaskExecutor is told to cancel a task before only its heartbeats, which
/// show that it still has the task, make it be told again.
const CANCEL_TRIES: u32 = 3;
/// Time between two tries; cancelling takes a task less than a second.
const CANCEL_RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// What a failure makes restart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum FailoverStrategy {
    /// The regions that it touches.
    Region,
    /// All.
    Full,
}

impl FailoverStrategy {
    pub(super) fn new(configuration: &Configuration) -> Result<Self, JobMasterError> {
        let name = configuration.get(&options::FAILOVER_STRATEGY);
        match name.trim() {
            "region" => Ok(Self::Region),
            "full" => Ok(Self::Full),
            _ => Err(JobMasterError::FailoverStrategy(name)),
        }
    }
}

/// Tasks that are to start again.
#[derive(Clone, Debug)]
pub(super) struct PendingRestart {
    /// With the version that the failure gave them, ascending.
    vertices: Vec<(VertexIndex, u64)>,
    /// The first so many of `vertices` have ended.
    ended: usize,
    /// When the delay has passed.
    not_before: Timestamp,
    delay: Delay,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Delay {
    Runs,
    Passed,
}

/// When a TaskExecutor is told again to cancel a task.
#[derive(Clone, Copy, Debug)]
pub(super) struct CancelRetry {
    next: Timestamp,
    tries_left: u32,
}

impl JobMaster {
    /// One task failed.
    pub(super) fn handle_task_failure(&mut self, vertex: VertexIndex, cause: FailureCause, now: Timestamp) {
        let state = self.graph.vertex(vertex).current().state();
        assert!(!state.is_terminal(), "an ended attempt was deregistered");
        if state == ExecutionState::Canceling {
            self.enter(vertex, &[ExecutionState::Canceled], now);
            return;
        }
        self.graph.set_failure(vertex, cause.clone());
        let was_restoring = self.restoring.contains(&vertex);
        self.enter(vertex, &[ExecutionState::Failed], now);
        if was_restoring && matches!(self.status, JobStatus::Running | JobStatus::Restarting) {
            // Perhaps the checkpoint is damaged: no task starts before that is known.
            self.checkpoints.verify_latest();
        }
        let is_global = was_restoring && cause.code == RESTORE_FAILURE;
        self.handle_failure(&[vertex], cause, is_global, now);
    }

    /// Tasks were lost together with what ran them: one failure, however many they are.
    /// Those that are not deployed, or have ended, are not touched.
    pub(super) fn handle_lost_tasks(&mut self, vertices: Vec<VertexIndex>, message: &str, now: Timestamp) {
        let mut failed = Vec::new();
        let cause = FailureCause {
            code: "task-lost".to_owned(),
            message: message.to_owned(),
            detail: String::new(),
            recoverability: Recoverability::Recoverable,
        };
        for vertex in vertices {
            match self.graph.vertex(vertex).current().state() {
                ExecutionState::Deploying | ExecutionState::Initializing | ExecutionState::Running => {
                    self.graph.set_failure(vertex, cause.clone());
                    self.enter(vertex, &[ExecutionState::Failed], now);
                    failed.push(vertex);
                }
                ExecutionState::Canceling => self.enter(vertex, &[ExecutionState::Canceled], now),
                ExecutionState::Created
                | ExecutionState::Scheduled
                | ExecutionState::Finished
                | ExecutionState::Canceled
                | ExecutionState::Failed
                | ExecutionState::Reconciling => {}
            }
        }
        if !failed.is_empty() {
            self.handle_failure(&failed, cause, false, now);
        }
    }

    /// The job failed as a whole: all tasks are touched.
    pub(super) fn handle_global_failure(&mut self, cause: FailureCause, now: Timestamp) {
        self.handle_failure(&[], cause, true, now);
    }

    /// Records a failure of tasks, which are FAILED, or of none: of the job. Decides what follows.
    fn handle_failure(&mut self, failed: &[VertexIndex], cause: FailureCause, is_global: bool, now: Timestamp) {
        match self.status {
            JobStatus::Running | JobStatus::Restarting => {}
            JobStatus::Failing | JobStatus::Canceling => {
                self.record_failure(cause, failed.first().copied(), Consequence::JobGoesOn, now);
                return;
            }
            JobStatus::Initializing
            | JobStatus::Created
            | JobStatus::Reconciling
            | JobStatus::Finished
            | JobStatus::Canceled
            | JobStatus::Failed
            | JobStatus::Suspended => unreachable!("tasks run while the job runs"),
        }
        if cause.recoverability == Recoverability::Unrecoverable {
            self.fail_job(cause, failed.first().copied(), now);
            return;
        }
        let (delay, consequence) = match self.restart_strategy.on_failure(now) {
            RestartDecision::Fail => {
                self.fail_job(cause, failed.first().copied(), now);
                return;
            }
            RestartDecision::Restart(delay) => {
                self.restarts += 1;
                self.downtime.begin(now);
                (delay, Consequence::TasksRestart)
            }
            RestartDecision::Merge(delay) => (delay, Consequence::JobGoesOn),
        };
        let entry = self.record_failure(cause, failed.first().copied(), consequence, now);
        self.root_failure = Some(entry);
        let vertices = self.to_restart(if is_global { &[] } else { failed });
        let from = self.checkpoints.latest().map_or_else(
            || "from scratch, since there is no checkpoint".to_owned(),
            |checkpoint| format!("from checkpoint {}", checkpoint.id()),
        );
        tracing::info!(job = %self.job(), tasks = vertices.len(), "restarting after {}, {from}", format_duration(delay));
        self.begin_restart(vertices, now.plus(delay), now);
    }

    /// Cancels tasks that are to start again, not before a time.
    pub(super) fn begin_restart(&mut self, vertices: Vec<VertexIndex>, not_before: Timestamp, now: Timestamp) {
        if self.status == JobStatus::Running {
            self.set_status(JobStatus::Restarting, now);
        }
        let vertices: Vec<_> =
            vertices.into_iter().map(|vertex| (vertex, self.graph.record_modification(vertex))).collect();
        for (vertex, _) in &vertices {
            self.waiting_for_restart.insert(*vertex);
            self.cancel_vertex(*vertex, now);
        }
        self.pending_restarts.push(PendingRestart { vertices, ended: 0, not_before, delay: Delay::Runs });
    }

    /// The subtasks that restart, ascending; all if none of them failed by itself, or tasks have begun to end for a
    /// savepoint, whose rows are taken back.
    pub(super) fn to_restart(&self, failed: &[VertexIndex]) -> Vec<VertexIndex> {
        let all = 0..self.graph.vertex_count();
        let is_created = |vertex: &VertexIndex| self.graph.vertex(*vertex).current().state() == ExecutionState::Created;
        let is_whole = failed.is_empty() || self.failover_strategy == FailoverStrategy::Full;
        if is_whole || self.checkpoints.is_stopped() {
            return all.filter(|vertex| !is_created(vertex)).collect();
        }
        // No partition outlives its region, so that no input can be lost by itself.
        let never = |_, _| false;
        let regions = self.graph.regions();
        let mut restarted = regions.to_restart(failed.iter().copied(), never);
        let indivisible: Vec<JobVertexId> = self.coordinators.indivisible_vertices().collect();
        loop {
            let is_touched = |job_vertex: &&JobVertexId| {
                all.clone().any(|vertex| {
                    self.graph.vertex(vertex).id().vertex == **job_vertex
                        && restarted.contains(&regions.region_of[vertex])
                })
            };
            let touched: Vec<_> = indivisible.iter().filter(is_touched).collect();
            let subtasks = all.clone().filter(|vertex| touched.contains(&&self.graph.vertex(*vertex).id().vertex));
            let more = regions.to_restart(subtasks, never);
            if more.is_subset(&restarted) {
                break;
            }
            restarted.extend(more);
        }
        let vertices = restarted.into_iter().flat_map(|region| regions.vertices[region].iter().copied());
        let mut vertices: Vec<_> = vertices.filter(|vertex| !is_created(vertex)).collect();
        vertices.sort_unstable();
        vertices
    }

    /// Starts what has waited for long enough and has ended.
    pub(super) fn continue_restarts(&mut self, now: Timestamp) {
        let mut ready = Vec::new();
        let graph = &self.graph;
        for restart in &mut self.pending_restarts {
            if restart.not_before <= now {
                restart.delay = Delay::Passed;
            }
            let is_over = |(vertex, version): &(VertexIndex, u64)| {
                let vertex = graph.vertex(*vertex);
                vertex.version() != *version || vertex.current().state().is_terminal()
            };
            restart.ended += restart.vertices[restart.ended..].iter().take_while(|entry| is_over(entry)).count();
        }
        if self.checkpoints.is_undecided() {
            return;
        }
        self.pending_restarts.retain_mut(|restart| {
            let is_ready = restart.delay == Delay::Passed && restart.ended == restart.vertices.len();
            if is_ready {
                ready.push(std::mem::take(&mut restart.vertices));
            }
            !is_ready
        });
        for vertices in ready {
            self.restart(vertices, now);
        }
    }

    fn restart(&mut self, vertices: Vec<(VertexIndex, u64)>, now: Timestamp) {
        let is_unmodified = |(vertex, version): &(VertexIndex, u64)| self.graph.vertex(*vertex).version() == *version;
        let vertices: Vec<_> = vertices.into_iter().filter(is_unmodified).map(|(vertex, _)| vertex).collect();
        for vertex in &vertices {
            self.waiting_for_restart.remove(vertex);
        }
        let mut subtasks: BTreeMap<JobVertexId, Vec<u32>> = BTreeMap::new();
        for vertex in &vertices {
            let id = self.graph.vertex(*vertex).id();
            subtasks.entry(id.vertex).or_default().push(id.subtask_index);
        }
        if self.waiting_for_restart.is_empty() && self.status == JobStatus::Restarting {
            self.set_status(JobStatus::Running, now);
        }
        for vertex in &vertices {
            if self.graph.vertex(*vertex).current().state() == ExecutionState::Finished {
                self.pool.task_reset(self.sharing.slot_of[*vertex], now);
            }
            self.graph.reset_for_new_execution(*vertex, now);
        }
        match self.restore_subtasks(&vertices, &subtasks, now) {
            Ok(()) => self.schedule(vertices, now),
            Err(cause) => {
                // Fresh attempts wait as SCHEDULED, so that the next restart takes them too.
                self.schedule(vertices, now);
                self.handle_global_failure(cause, now);
            }
        }
    }

    /// Notes when all tasks run again.
    pub(super) fn note_recovery(&mut self, now: Timestamp) {
        let running = self.graph.count(ExecutionState::Running) + self.graph.count(ExecutionState::Finished);
        if self.downtime.since.is_none() || self.status != JobStatus::Running || running != self.graph.vertex_count() {
            return;
        }
        self.downtime.end(now);
        for failure in self.failures.iter_mut().chain(&mut self.root_failure) {
            if failure.restart == Restart::UnderWay {
                failure.restart = Restart::Recovered(now);
            }
        }
    }

    /// When the last of the restarts under way may begin.
    pub(super) fn pending_restarts_end(&self) -> Option<Timestamp> {
        self.pending_restarts.iter().map(|restart| restart.not_before).max()
    }

    /// When the delay of a restart passes.
    pub(super) fn next_restart(&self) -> Option<Timestamp> {
        let runs = self.pending_restarts.iter().filter(|restart| restart.delay == Delay::Runs);
        runs.map(|restart| restart.not_before).min()
    }

    /// The job fails for good.
    pub(super) fn fail_job(&mut self, cause: FailureCause, vertex: Option<VertexIndex>, now: Timestamp) {
        let entry = self.record_failure(cause, vertex, Consequence::JobFails, now);
        self.root_failure = Some(entry);
        self.set_status(JobStatus::Failing, now);
        self.cancel_all(now);
    }

    /// A user cancels the job.
    pub(super) fn cancel(&mut self, now: Timestamp) {
        match self.status {
            JobStatus::Initializing
            | JobStatus::Created
            | JobStatus::Running
            | JobStatus::Restarting
            | JobStatus::Failing => {
                self.set_status(JobStatus::Canceling, now);
                self.cancel_all(now);
            }
            JobStatus::Canceling
            | JobStatus::Reconciling
            | JobStatus::Finished
            | JobStatus::Canceled
            | JobStatus::Failed
            | JobStatus::Suspended => {}
        }
    }

    /// Cancels the job if that was asked for in case that it has completed no checkpoint, once no checkpoint is about
    /// to be complete.
    pub(super) fn give_way(&mut self, now: Timestamp) {
        // Behind a savepoint that stops it, the job ends with what that has made visible, or restarts and takes it back.
        if !self.gives_way || self.checkpoints.is_about_to_complete() || self.checkpoints.is_stopped() {
            return;
        }
        self.gives_way = false;
        let has_completed = |latest: &CompletedCheckpoint| !latest.metadata.kind.is_savepoint();
        if !self.checkpoints.latest().is_some_and(has_completed) {
            self.cancel(now);
        }
    }

    fn cancel_all(&mut self, now: Timestamp) {
        self.pending_restarts.clear();
        self.waiting_for_restart.clear();
        for vertex in 0..self.graph.vertex_count() {
            self.cancel_vertex(vertex, now);
        }
    }

    fn cancel_vertex(&mut self, vertex: VertexIndex, now: Timestamp) {
        match cancel_effect(self.graph.vertex(vertex).current().state()) {
            CancelEffect::AtOnce => {
                self.enter(vertex, &[ExecutionState::Canceling, ExecutionState::Canceled], now);
            }
            CancelEffect::TellTaskExecutor => {
                self.enter(vertex, &[ExecutionState::Canceling], now);
                let retry = CancelRetry { next: now.plus(CANCEL_RETRY_INTERVAL), tries_left: CANCEL_TRIES - 1 };
                self.cancel_retries.insert(vertex, retry);
                self.send_cancel(vertex);
            }
            CancelEffect::Nothing => {}
        }
    }

    /// A TaskExecutor still has a task: if it was told to cancel it as often as it
    /// should, it is told once more.
    pub(super) fn cancel_again(&mut self, vertex: VertexIndex, now: Timestamp) {
        let current = self.graph.vertex(vertex).current();
        let since = current.entered(ExecutionState::Canceling).map(|since| now.since(since));
        if current.state() == ExecutionState::Canceling
            && !self.cancel_retries.contains_key(&vertex)
            && since.is_some_and(|since| CANCEL_RETRY_INTERVAL <= since)
        {
            self.send_cancel(vertex);
        }
    }

    pub(super) fn retry_cancels(&mut self, now: Timestamp) {
        let due: Vec<VertexIndex> =
            self.cancel_retries.iter().filter(|(_, retry)| retry.next <= now).map(|(vertex, _)| *vertex).collect();
        for vertex in due {
            self.send_cancel(vertex);
            let retry = self.cancel_retries.get_mut(&vertex).expect("found above");
            retry.next = now.plus(CANCEL_RETRY_INTERVAL);
            retry.tries_left -= 1;
            if retry.tries_left == 0 {
                self.cancel_retries.remove(&vertex);
            }
        }
    }

    /// When a TaskExecutor is told again to cancel a task.
    pub(super) fn next_cancel_retry(&self) -> Option<Timestamp> {
        self.cancel_retries.values().map(|retry| retry.next).min()
    }

    fn send_cancel(&mut self, vertex: VertexIndex) {
        let current = self.graph.vertex(vertex).current();
        let attempt = current.attempt();
        let location = current.location().expect("a task that is cancelled by message was deployed");
        let task_executor = location.task_executor.clone();
        self.send_to_task_executor(&task_executor, TaskExecutorMessage::CancelTask(attempt));
    }
}
