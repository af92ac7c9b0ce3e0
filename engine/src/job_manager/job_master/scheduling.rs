//! Scheduling by pipelined regions: a region is deployed when all its slots are there.
//!
//! Also takes what TaskExecutors say of slots and tasks. An attempt is known by its
//! id; whoever speaks of one that is not current, or from elsewhere than where it was
//! deployed, is told that it is unknown.

use std::time::Duration;

use super::{
    JobMaster,
    execution_graph::{
        VertexIndex,
        execution::{ReportEffect, TaskLocation, report_effect},
    },
};
use crate::{
    base::{
        clock::Timestamp,
        ids::{ExecutionAttemptId, ResourceId},
        status::ExecutionState,
    },
    failpoint,
    protocol::{
        job_master::{
            FailureCause, MaxAllowedWatermark, Recoverability, SlotOffers, SplitAnswer, SplitRequest,
            TaskExecutionStateUpdate, TaskExecutorHeartbeat, WatermarkReport,
        },
        rpc::Address,
        task_executor::{JobInformation, TaskDeployment, TaskExecutorMessage},
    },
};

/// Time after which a deployed attempt must stand in its TaskExecutor's heartbeats.
/// Covers the way of the deployment and of a heartbeat; Flink's `pekko.ask.timeout`.
const DEPLOYMENT_TIMEOUT: Duration = Duration::from_secs(10);

impl JobMaster {
    /// Takes fresh attempts to SCHEDULED; their regions then wait for slots.
    pub(super) fn schedule(&mut self, vertices: Vec<VertexIndex>, now: Timestamp) {
        for vertex in vertices {
            self.enter(vertex, &[ExecutionState::Scheduled], now);
            self.waiting_regions.insert(self.graph.regions().region_of[vertex]);
        }
    }

    pub(super) fn deploy_waiting_regions(&mut self, now: Timestamp) {
        let regions: Vec<usize> = self.waiting_regions.iter().copied().collect();
        for region in regions {
            let vertices = self.graph.regions().vertices[region].clone();
            let has_slot = |vertex: &VertexIndex| self.pool.slot_of(self.sharing.slot_of[*vertex]).is_some();
            if vertices.iter().all(has_slot) {
                self.waiting_regions.remove(&region);
                self.deploy(&vertices, now);
            }
        }
    }

    /// Deploys a region, producers before their consumers.
    fn deploy(&mut self, vertices: &[VertexIndex], now: Timestamp) {
        for vertex in vertices {
            let slot = self.pool.slot_of(self.sharing.slot_of[*vertex]).expect("all slots of the region are there");
            let allocation = slot.allocation;
            let task_executor = slot.slot.task_executor.clone();
            self.enter(*vertex, &[ExecutionState::Deploying], now);
            let location = TaskLocation { task_executor: task_executor.clone(), allocation };
            self.graph.set_location(*vertex, location);
            if self.task_executors.take_job_information(&task_executor) {
                let information = TaskExecutorMessage::JobInformation(Box::new(self.job_information()));
                self.send_to_task_executor(&task_executor, information);
            }
            failpoint!("task.deploy", infallible);
            let (partitions, gates) = self.graph.deployment(*vertex);
            let attempt = self.graph.vertex(*vertex).current().attempt();
            let restore = self.restores.remove(vertex);
            if restore.is_some() {
                self.restoring.insert(*vertex);
            }
            let deployment = TaskDeployment {
                restore,
                job: self.job(),
                attempt,
                vertex: attempt.execution_vertex.vertex,
                allocation,
                partitions,
                gates,
            };
            self.send_to_task_executor(&task_executor, TaskExecutorMessage::SubmitTask(deployment));
        }
    }

    fn job_information(&self) -> JobInformation {
        JobInformation {
            job: self.job(),
            job_name: self.job_graph.name.clone(),
            configuration: self.configuration.clone(),
            program: self.job_graph.program.clone(),
            grants: self.job_graph.grants.clone(),
            artifacts: self.job_graph.artifacts.clone(),
            vertices: self.job_graph.vertices.clone(),
        }
    }

    pub(super) fn register_task_executor(&mut self, id: &ResourceId, now: Timestamp) {
        tracing::info!(job = %self.job(), task_executor = %id, "TaskExecutor registered");
        self.task_executors.register(id, now);
        self.send_to_task_executor(id, TaskExecutorMessage::JobMasterHeartbeat(self.job()));
    }

    pub(super) fn handle_slot_offers(&mut self, offers: SlotOffers, now: Timestamp) {
        let SlotOffers { task_executor, mut offers } = offers;
        offers.retain(|offer| offer.slot.task_executor == task_executor);
        if !self.task_executors.contains(&task_executor) {
            self.register_task_executor(&task_executor, now);
        }
        let outcome = self.pool.offer_slots(&offers, now);
        let accepted = TaskExecutorMessage::AcceptSlots(self.job(), outcome.accepted);
        self.send_to_task_executor(&task_executor, accepted);
        let lost = outcome.lost.iter().flat_map(|shared| self.sharing.slots[*shared].vertices.clone()).collect();
        let message = format!("TaskExecutor {task_executor} gave the task's slot away");
        self.handle_lost_tasks(lost, &message, now);
    }

    pub(super) fn update_task_execution_state(
        &mut self,
        from: &Address,
        update: TaskExecutionStateUpdate,
        now: Timestamp,
    ) {
        let TaskExecutionStateUpdate { attempt, state: report, cause, metrics, end_states } = update;
        let Some(vertex) = self.vertex_of(from, attempt) else {
            self.send_attempt_unknown(from, attempt);
            return;
        };
        match report_effect(self.graph.vertex(vertex).current().state(), report) {
            ReportEffect::Advance(states) => {
                self.graph.set_metrics(vertex, metrics);
                if states == [ExecutionState::Finished].as_slice()
                    && let Err(error) = self.coordinators.task_finished(attempt.execution_vertex, end_states)
                {
                    self.handle_task_failure(vertex, error.into_failure(), now);
                    return;
                }
                self.enter(vertex, states, now);
            }
            ReportEffect::TaskFailed => {
                self.graph.set_metrics(vertex, metrics);
                let cause = cause.unwrap_or_else(|| FailureCause {
                    code: "unknown".to_owned(),
                    message: "the task failed and gave no cause".to_owned(),
                    detail: String::new(),
                    recoverability: Recoverability::Recoverable,
                });
                self.handle_task_failure(vertex, cause, now);
            }
            ReportEffect::Outdated => {}
            ReportEffect::NotFound => self.send_attempt_unknown(from, attempt),
            ReportEffect::Illegal => {
                if let Address::TaskExecutor(id) = from {
                    self.send_to_task_executor(id, TaskExecutorMessage::CancelTask(attempt));
                }
                let message = format!("{from:?} reported {report:?} of a task that was not deployed");
                self.handle_task_failure(vertex, internal_failure(message), now);
            }
        }
    }

    /// The TaskExecutor did not take a task: its slot cannot be relied on.
    pub(super) fn handle_task_refused(
        &mut self,
        from: &Address,
        attempt: ExecutionAttemptId,
        reason: &str,
        now: Timestamp,
    ) {
        let Some(vertex) = self.vertex_of(from, attempt) else { return };
        let current = self.graph.vertex(vertex).current();
        if current.state().is_terminal() {
            return;
        }
        let Some(TaskLocation { task_executor, allocation }) = current.location().cloned() else { return };
        let message = format!("TaskExecutor {task_executor} refused the task: {reason}");
        self.send_to_task_executor(&task_executor, TaskExecutorMessage::FreeSlot(allocation, message.clone()));
        let lost = self.pool.release(allocation, now);
        let in_slot = lost.map(|shared| self.sharing.slots[shared].vertices.clone()).unwrap_or_default();
        let mut lost: Vec<_> = in_slot.into_iter().filter(|other| *other != vertex).collect();
        lost.insert(0, vertex);
        self.handle_lost_tasks(lost, &message, now);
    }

    pub(super) fn handle_split_request(&mut self, from: &Address, request: SplitRequest, now: Timestamp) {
        let SplitRequest { attempt, node } = request;
        let Some(vertex) = self.vertex_of(from, attempt) else {
            self.send_attempt_unknown(from, attempt);
            return;
        };
        match self.graph.vertex(vertex).current().state() {
            ExecutionState::Deploying | ExecutionState::Initializing | ExecutionState::Running => {}
            ExecutionState::Created
            | ExecutionState::Scheduled
            | ExecutionState::Canceling
            | ExecutionState::Reconciling => return,
            ExecutionState::Finished | ExecutionState::Canceled | ExecutionState::Failed => {
                self.send_attempt_unknown(from, attempt);
                return;
            }
        }
        match self.coordinators.next_split(attempt.execution_vertex, node) {
            Ok(assignment) => {
                if let Address::TaskExecutor(id) = from {
                    let answer = SplitAnswer { attempt, node, assignment };
                    self.send_to_task_executor(id, TaskExecutorMessage::SplitAssigned(answer));
                }
            }
            Err(error) => self.handle_global_failure(error.into_failure(), now),
        }
    }

    pub(super) fn handle_watermark_report(&mut self, from: &Address, report: WatermarkReport) {
        let WatermarkReport { attempt, node, watermark } = report;
        let vertex = self.vertex_of(from, attempt);
        // What another attempt says, or one that ends, holds nobody back.
        if vertex.is_none_or(|vertex| self.graph.vertex(vertex).current().state() != ExecutionState::Running) {
            return;
        }
        let allowed = self.coordinators.report_watermark(attempt.execution_vertex, node, watermark);
        if let (Address::TaskExecutor(id), Some(watermark)) = (from, allowed) {
            let answer = MaxAllowedWatermark { attempt, node, watermark };
            self.send_to_task_executor(id, TaskExecutorMessage::AlignWatermark(answer));
        }
    }

    /// Compares what a TaskExecutor has with what was deployed to it: what is missing
    /// there has failed, what is unknown here is ended.
    pub(super) fn reconcile_deployments(&mut self, heartbeat: TaskExecutorHeartbeat, now: Timestamp) {
        let TaskExecutorHeartbeat { task_executor, tasks } = heartbeat;
        if !self.task_executors.contains(&task_executor) {
            self.send_disconnect(&task_executor, "the TaskExecutor is not registered");
            return;
        }
        let from = Address::TaskExecutor(task_executor.clone());
        let mut reported = vec![false; self.graph.vertex_count()];
        for (attempt, metrics) in tasks {
            match self.vertex_of(&from, attempt) {
                Some(vertex) if !self.graph.vertex(vertex).current().state().is_terminal() => {
                    reported[vertex] = true;
                    self.graph.set_metrics(vertex, metrics);
                    self.cancel_again(vertex, now);
                }
                Some(_) | None => self.send_attempt_unknown(&from, attempt),
            }
        }
        let is_missing = |vertex: &VertexIndex| {
            let current = self.graph.vertex(*vertex).current();
            let deployed = current.entered(ExecutionState::Deploying);
            !reported[*vertex]
                && !current.state().is_terminal()
                && current.location().is_some_and(|location| location.task_executor == task_executor)
                && deployed.is_some_and(|deployed| deployed.plus(DEPLOYMENT_TIMEOUT) <= now)
        };
        let missing = (0..self.graph.vertex_count()).filter(is_missing).collect();
        self.handle_lost_tasks(missing, &format!("TaskExecutor {task_executor} does not have the task"), now);
    }

    /// A TaskExecutor is gone with its slots and tasks.
    pub(super) fn task_executor_lost(&mut self, id: &ResourceId, message: &str, now: Timestamp) {
        if !self.task_executors.remove(id) {
            return;
        }
        self.pool.release_task_executor(id, now);
        let is_there = |vertex: &VertexIndex| {
            let location = self.graph.vertex(*vertex).current().location();
            location.is_some_and(|location| location.task_executor == *id)
        };
        let lost = (0..self.graph.vertex_count()).filter(is_there).collect();
        self.handle_lost_tasks(lost, message, now);
    }

    /// Takes an attempt through states that follow each other, and notes what ended.
    pub(super) fn enter(&mut self, vertex: VertexIndex, states: &[ExecutionState], now: Timestamp) {
        for state in states {
            self.graph.transition_to(vertex, *state, now).expect("callers take edges of the table only");
            tracing::debug!(job = %self.job(), task = self.graph.task_name(vertex), "task switched to {state}");
        }
        let state = self.graph.vertex(vertex).current().state();
        if state == ExecutionState::Running {
            self.restoring.remove(&vertex);
        }
        if state.is_terminal() {
            let attempt = self.graph.vertex(vertex).current().attempt();
            self.restoring.remove(&vertex);
            self.at_end_of_data.remove(&attempt);
            self.checkpoints.task_ended(attempt, now);
            self.cancel_retries.remove(&vertex);
            self.waiting_regions.remove(&self.graph.regions().region_of[vertex]);
            self.coordinators.task_ended(self.graph.vertex(vertex).id());
        }
        if state == ExecutionState::Finished {
            self.pool.task_finished(self.sharing.slot_of[vertex], now);
        }
    }

    /// The subtask of an attempt that is current, if the speaker may speak of it.
    pub(super) fn vertex_of(&self, from: &Address, attempt: ExecutionAttemptId) -> Option<VertexIndex> {
        let vertex = self.graph.index_of_attempt(attempt)?;
        let Address::TaskExecutor(id) = from else { return None };
        match self.graph.vertex(vertex).current().location() {
            Some(location) if location.task_executor != *id => None,
            Some(_) | None => Some(vertex),
        }
    }

    fn send_attempt_unknown(&mut self, to: &Address, attempt: ExecutionAttemptId) {
        if let Address::TaskExecutor(id) = to {
            self.send_to_task_executor(id, TaskExecutorMessage::AttemptUnknown(attempt));
        }
    }
}

/// A failure that a restart may get over, but nobody outside caused.
fn internal_failure(message: String) -> FailureCause {
    FailureCause {
        code: "internal".to_owned(),
        message,
        detail: String::new(),
        recoverability: Recoverability::Recoverable,
    }
}
