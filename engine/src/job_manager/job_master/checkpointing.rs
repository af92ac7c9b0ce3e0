//! Joins the checkpoint coordinator to tasks, sources and sinks, and has the job go on from what it kept.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Consequence, JobMaster,
    checkpoint_coordinator::{CompletedCheckpoint, Effect, Participants, plan},
    execution_graph::VertexIndex,
    operator_coordinators::RestoredConnectors,
};
use crate::{
    base::{
        clock::Timestamp,
        config::options,
        ids::{ExecutionAttemptId, JobVertexId},
        status::{ExecutionState, JobStatus},
        stream_element::{CheckpointId, SnapshotLocation},
    },
    checkpoint::{JobRestore, assign_state},
    failpoint,
    protocol::{
        dispatcher::DispatcherMessage,
        job_master::{
            AcknowledgeCheckpoint, CheckpointFailureReason, DeclineCheckpoint, FailureCause, Recoverability,
            StoreProblem,
        },
        rpc::Address,
        task_executor::{TaskExecutorMessage, TriggerCheckpoint},
    },
};

/// A checkpoint, dealt to the parts of the job.
struct DealtCheckpoint {
    tasks: BTreeMap<JobVertexId, Vec<Option<crate::checkpoint::TaskRestore>>>,
    connectors: RestoredConnectors,
}

impl JobMaster {
    /// Begins what is due, and carries out what follows.
    pub(super) fn run_checkpoints(&mut self, now: Timestamp) {
        if self.is_at_end_of_data() {
            self.checkpoints.end_of_data(now);
        }
        // First tasks hear of what was given up: what they do for the next checkpoint depends on it.
        self.carry_out_effects(now);
        while let Some(request) = self.checkpoints.next_request(now) {
            let after_tasks_finish = self.checkpoints.settings().after_tasks_finish;
            let plan = match plan::calculate(&self.graph, after_tasks_finish) {
                Ok(plan) if plan.to_wait.is_empty() => Err("all tasks have finished".to_owned()),
                Ok(plan) => Ok(plan),
                Err(plan::NotRunning(vertex)) => {
                    let state = self.graph.vertex(vertex).current().state();
                    Err(format!("task {} is {state}", self.graph.task_name(vertex)))
                }
            };
            let plan = match plan {
                Ok(plan) => plan,
                Err(message) => {
                    let reason = CheckpointFailureReason::NotAllRequiredTasksRunning;
                    self.checkpoints.not_begun(&request, reason, &message);
                    continue;
                }
            };
            let attempt_of = |vertex: &VertexIndex| self.graph.vertex(*vertex).current().attempt();
            let finished = plan.finished.iter().map(|vertex| self.graph.vertex(*vertex).id()).collect();
            let participants = Participants {
                to_wait: plan.to_wait.iter().map(attempt_of).map(|it| (it.execution_vertex, it)).collect(),
                end_states: self.coordinators.end_states(&finished),
                finished,
            };
            let begun = self.checkpoints.begin(request, &self.job_graph, participants, now);
            // Before the triggers: a split that is dealt from here on comes to its task behind the barrier.
            failpoint!("checkpoint.begun", infallible);
            let coordinators = self.coordinators.snapshot(begun.id);
            self.checkpoints.set_coordinators(begun.id, coordinators);
            for vertex in plan.to_trigger {
                let attempt = self.graph.vertex(vertex).current().attempt();
                let options = begun.options.clone();
                let trigger = TriggerCheckpoint { attempt, checkpoint_id: begun.id, triggered: now, options };
                self.tell_attempt(attempt, TaskExecutorMessage::TriggerCheckpoint(trigger));
            }
            failpoint!("checkpoint.triggered", infallible);
        }
        self.carry_out_effects(now);
    }

    /// All that run wait for a last checkpoint.
    fn is_at_end_of_data(&self) -> bool {
        let counts = self.graph.counts();
        let running = self.graph.count(ExecutionState::Running);
        self.status == JobStatus::Running
            && self.checkpoints.is_periodic()
            && 0 < running
            && counts.keys().all(|state| matches!(state, ExecutionState::Running | ExecutionState::Finished))
            && running == self.at_end_of_data.len()
    }

    /// Sends to where an attempt runs, if it is still current.
    fn tell_attempt(&mut self, attempt: ExecutionAttemptId, message: TaskExecutorMessage) {
        let Some(vertex) = self.graph.index_of_attempt(attempt) else { return };
        let current = self.graph.vertex(vertex).current();
        if let (false, Some(location)) = (current.state().is_terminal(), current.location()) {
            let task_executor = location.task_executor.clone();
            self.send_to_task_executor(&task_executor, message);
        }
    }

    /// Does what the coordinator decided, until nothing follows.
    pub(super) fn carry_out_effects(&mut self, now: Timestamp) {
        loop {
            let effects = self.checkpoints.take_effects();
            if effects.is_empty() {
                return;
            }
            for effect in effects {
                self.carry_out(effect, now);
            }
        }
    }

    fn carry_out(&mut self, effect: Effect, now: Timestamp) {
        match effect {
            Effect::Storage(task) => self.checkpoint_store.begin(task),
            Effect::Completed(parts) => {
                failpoint!("checkpoint.complete", infallible);
                if let Err(error) = self.coordinators.checkpoint_completed(parts) {
                    // Restoring the checkpoint commits it again.
                    self.fail_recoverably(error.into_failure(), now);
                }
            }
            Effect::SavepointTaken { asker, savepoint, committables } => {
                let kept = self.coordinators.savepoint_taken(savepoint.checkpoint_id, &committables);
                let result = kept.map(|()| savepoint).map_err(|error| error.into_failure().message);
                self.send_to_dispatcher(DispatcherMessage::SnapshotTaken(asker, result));
            }
            Effect::NotifyComplete(id, attempts) => {
                failpoint!("checkpoint.notify", infallible);
                for attempt in attempts {
                    self.tell_attempt(attempt, TaskExecutorMessage::NotifyCheckpointComplete(attempt, id));
                }
                failpoint!("checkpoint.notified", infallible);
            }
            Effect::NotifyAborted(id, attempts) => {
                for attempt in attempts {
                    self.tell_attempt(attempt, TaskExecutorMessage::NotifyCheckpointAborted(attempt, id));
                }
            }
            Effect::Answer(number, result) => {
                self.send_to_dispatcher(DispatcherMessage::SnapshotTaken(number, result));
            }
            Effect::FailJob(message) => {
                let recoverability = Recoverability::Recoverable;
                self.fail_recoverably(checkpoint_failure("checkpoints", message, recoverability), now);
            }
        }
    }

    /// The job as a whole fails, unless it is ending anyway.
    fn fail_recoverably(&mut self, cause: FailureCause, now: Timestamp) {
        if self.status.is_terminal() {
            self.record_failure(cause, None, Consequence::JobGoesOn, now);
        } else {
            self.handle_global_failure(cause, now);
        }
    }

    pub(super) fn handle_acknowledgement(
        &mut self,
        from: &Address,
        acknowledge: AcknowledgeCheckpoint,
        now: Timestamp,
    ) {
        let vertex = self.vertex_of(from, acknowledge.attempt);
        let is_current =
            vertex.is_some_and(|vertex| self.graph.vertex(vertex).current().state() == ExecutionState::Running);
        if is_current {
            self.checkpoints.acknowledge(acknowledge, &self.job_graph, now);
        } else {
            self.checkpoints.acknowledged_by_former_attempt(&acknowledge);
        }
    }

    pub(super) fn handle_decline(&mut self, from: &Address, decline: &DeclineCheckpoint, now: Timestamp) {
        let DeclineCheckpoint { attempt, checkpoint_id, reason, message } = decline;
        let Some(vertex) = self.vertex_of(from, *attempt) else { return };
        let message = format!("{}: {message}", self.graph.task_name(vertex));
        self.checkpoints.decline(*attempt, *checkpoint_id, *reason, &message, now);
    }

    pub(super) fn handle_end_of_data(&mut self, from: &Address, attempt: ExecutionAttemptId) {
        let vertex = self.vertex_of(from, attempt);
        if vertex.is_some_and(|vertex| !self.graph.vertex(vertex).current().state().is_terminal()) {
            self.at_end_of_data.insert(attempt);
        }
    }

    /// A checkpoint that could not be restored was looked at.
    pub(super) fn handle_verification(&mut self, id: CheckpointId, result: Result<(), StoreProblem>, now: Timestamp) {
        let path = self.checkpoints.latest().map(CompletedCheckpoint::external_path).unwrap_or_default();
        let damage = match result {
            Ok(()) => None,
            Err(StoreProblem::Unusable(problem)) => Some(problem),
            // It may be whole: the restart that is under way goes on from it, and fails again if it still cannot be read.
            Err(StoreProblem::Unavailable(problem) | StoreProblem::OtherVersion(problem)) => {
                let message = format!("checkpoint {path} cannot be read at the moment, and is tried again: {problem}");
                let cause = checkpoint_failure("checkpoint-unavailable", message, Recoverability::Recoverable);
                self.record_failure(cause, None, Consequence::JobGoesOn, now);
                None
            }
        };
        let is_passed_over = self.checkpoints.verified(id, damage.is_none());
        let Some(problem) = damage.filter(|_| is_passed_over) else { return };
        self.record_damage(&path, &problem, now);
        match (self.status, self.checkpoints.latest()) {
            (JobStatus::Running | JobStatus::Restarting, Some(_)) => {
                // Those that run have gone on from the one that is passed over.
                let not_before = self.pending_restarts_end().unwrap_or(now);
                let vertices = self.to_restart(&[]);
                self.begin_restart(vertices, not_before, now);
            }
            (JobStatus::Running | JobStatus::Restarting, None) => {
                let message = format!("there is no other checkpoint than {path} to go on from");
                let recoverability = Recoverability::Unrecoverable;
                self.handle_global_failure(checkpoint_failure("checkpoint-damaged", message, recoverability), now);
            }
            _ => {}
        }
    }

    /// Says in the log and in the history of failures that a checkpoint is passed over.
    fn record_damage(&mut self, path: &str, problem: &str, now: Timestamp) {
        let message = format!("checkpoint {path} cannot be restored and is passed over: {problem}");
        let cause = checkpoint_failure("checkpoint-damaged", message, Recoverability::Recoverable);
        self.record_failure(cause, None, Consequence::JobGoesOn, now);
    }

    // Restoring.

    /// Finds what the job goes on from: the latest readable checkpoint of a former JobMaster, else what
    /// the user named, else nothing. Source: `DefaultExecutionGraphFactory.tryRestoreExecutionGraphFromSavepoint`.
    /// A failure is recoverable if the store could not be read.
    pub(super) fn restore_at_start(&mut self, now: Timestamp) -> Result<Option<RestoredConnectors>, FailureCause> {
        if self.checkpoints.is_periodic() {
            self.recover_checkpoints(now)?;
        }
        self.skip_ids_of_savepoints()?;
        if self.checkpoints.is_periodic() {
            self.delete_leftovers();
        }
        if let (None, Some(path)) = (self.checkpoints.latest(), self.configuration.get(&options::RECOVERY_PATH)) {
            let (location, id) = SnapshotLocation::resolve(&path);
            let loaded = self.checkpoint_store.load(&location, id);
            let loaded = loaded.and_then(|metadata| Ok((metadata, self.checkpoint_store.is_stopped(&location)?)));
            let (metadata, is_stopped) = loaded.map_err(|problem| {
                let message = format!(
                    "the job cannot start from {path}: {problem}; name a checkpoint (…/chk-N) or a savepoint \
                     that is whole"
                );
                checkpoint_failure("restore", message, recoverability_of(&problem))
            })?;
            self.start_was_committed = metadata.kind.is_savepoint() && is_stopped;
            self.checkpoints.start_from(CompletedCheckpoint { metadata: metadata.into(), location });
        }
        let allow = self.configuration.get(&options::RECOVERY_IGNORE_UNCLAIMED);
        let Some((dealt, max_parallelisms)) = self.deal_latest(allow)? else { return Ok(None) };
        for (vertex, max_parallelism) in max_parallelisms {
            self.graph.set_max_parallelism(vertex, max_parallelism);
            let of_graph = self.job_graph.vertices.iter_mut().find(|known| known.id == vertex);
            of_graph.expect("the checkpoint was dealt to these").max_parallelism = max_parallelism;
        }
        let DealtCheckpoint { tasks, connectors } = dealt;
        self.note_restores(&(0..self.graph.vertex_count()).collect::<Vec<_>>(), tasks);
        self.checkpoints.restored(now);
        if let Some(checkpoint) = self.checkpoints.latest() {
            tracing::info!(job = %self.job(), path = checkpoint.external_path(), "going on from a checkpoint");
        }
        Ok(Some(connectors))
    }

    /// Savepoints that a former JobMaster of this job took keep their numbers.
    fn skip_ids_of_savepoints(&mut self) -> Result<(), FailureCause> {
        match self.checkpoint_store.last_savepoint(&self.checkpoints.settings().location) {
            Ok(id) => self.checkpoints.skip_ids(id),
            // A job that takes no checkpoints needs no store to run.
            Err(StoreProblem::Unavailable(problem)) if self.checkpoints.is_periodic() => {
                let message = format!("the number of the last savepoint of the job cannot be read: {problem}");
                return Err(checkpoint_failure("restore", message, Recoverability::Recoverable));
            }
            Err(problem) => {
                tracing::warn!(job = %self.job(), "the number of the last savepoint is not known: {problem}");
            }
        }
        Ok(())
    }

    /// Takes over what a former JobMaster of this job stored.
    fn recover_checkpoints(&mut self, now: Timestamp) -> Result<(), FailureCause> {
        let location = self.checkpoints.settings().location.clone();
        let ids = self.checkpoint_store.list(&location).map_err(|problem| {
            let message = format!("the checkpoints of the job cannot be listed: {problem}");
            checkpoint_failure("restore", message, recoverability_of(&problem))
        })?;
        let Some(last_id) = ids.last().copied() else { return Ok(()) };
        let (mut readable, mut damaged) = (Vec::new(), Vec::new());
        for id in ids {
            match self.checkpoint_store.load(&location, Some(id)) {
                Ok(metadata) => {
                    readable.push(CompletedCheckpoint { metadata: metadata.into(), location: location.clone() });
                }
                Err(StoreProblem::Unusable(problem)) => damaged.push((id, problem)),
                // It may be whole: to pass it over would take back what it made visible.
                Err(StoreProblem::Unavailable(problem) | StoreProblem::OtherVersion(problem)) => {
                    let path = location.path_of(Some(id));
                    let message = format!("checkpoint {path} cannot be read at the moment: {problem}");
                    return Err(checkpoint_failure("restore", message, Recoverability::Recoverable));
                }
            }
        }
        for (id, problem) in &damaged {
            self.record_damage(&location.path_of(Some(*id)), problem, now);
        }
        if readable.is_empty() {
            let message = format!(
                "none of the checkpoints in {location} can be read; to give up what they hold and begin anew, submit \
                 the job under another id"
            );
            return Err(checkpoint_failure("checkpoint-damaged", message, Recoverability::Unrecoverable));
        }
        failpoint!("restore.loaded", infallible);
        self.checkpoints.recover(readable, last_id);
        self.checkpoints.forget_damaged(damaged.into_iter().map(|(id, _)| id).collect());
        Ok(())
    }

    /// Has files deleted that a killed process left behind. They are listed before any attempt of this JobMaster
    /// runs, so that none of them is one that an attempt is writing; what takes time is done by a thread.
    fn delete_leftovers(&mut self) {
        let location = self.checkpoints.settings().location.clone();
        match self.checkpoint_store.unreferenced(&location, self.checkpoints.registry()) {
            Ok(files) => self.checkpoints.discard_leftovers(files),
            Err(problem) => {
                tracing::warn!(job = %self.job(), "files of checkpoints that were cut off are left behind: {problem}");
            }
        }
    }

    /// Makes sources, sinks and fresh attempts ready to go on from the latest checkpoint, or to begin from scratch.
    pub(super) fn restore_subtasks(
        &mut self,
        vertices: &[VertexIndex],
        subtasks: &BTreeMap<JobVertexId, Vec<u32>>,
        now: Timestamp,
    ) -> Result<(), FailureCause> {
        let tasks: BTreeSet<_> = vertices.iter().map(|vertex| self.graph.vertex(*vertex).id()).collect();
        self.checkpoints.tasks_reset(&tasks);
        vertices.iter().for_each(|vertex| drop(self.restores.remove(vertex)));
        let connectors = match self.deal_latest(true)? {
            Some((DealtCheckpoint { tasks, connectors }, _)) => {
                self.note_restores(vertices, tasks);
                self.checkpoints.restored(now);
                Some(connectors)
            }
            None => None,
        };
        let reset = self.coordinators.subtasks_reset(subtasks, connectors);
        reset.map_err(super::operator_coordinators::CoordinatorError::into_failure)
    }

    /// Deals the latest checkpoint; none: there is none.
    #[expect(clippy::type_complexity, reason = "used twice, here")]
    fn deal_latest(
        &self,
        allow_non_restored_state: bool,
    ) -> Result<Option<(DealtCheckpoint, BTreeMap<JobVertexId, u32>)>, FailureCause> {
        let Some(checkpoint) = self.checkpoints.latest() else { return Ok(None) };
        let CompletedCheckpoint { metadata, location } = checkpoint;
        let dealt = assign_state(metadata, location, &self.job_graph.vertices, allow_non_restored_state);
        let JobRestore { tasks, sources, committables, max_parallelisms } = dealt.map_err(|error| {
            let message = format!("checkpoint {} does not fit the job: {error}", checkpoint.external_path());
            checkpoint_failure("restore", message, Recoverability::Unrecoverable)
        })?;
        let operators = self.job_graph.vertices.iter().flat_map(|vertex| &vertex.operators);
        let is_known = |id| metadata.operators.contains_key(&id);
        let nodes = operators
            .filter(|operator| is_known(operator.operator_id) || operator.user_defined_id.is_some_and(is_known))
            .map(|operator| operator.node.id)
            .collect();
        let connectors = RestoredConnectors {
            job: metadata.job,
            checkpoint_id: metadata.checkpoint_id,
            was_committed: metadata.kind.is_savepoint() && self.start_was_committed,
            sources,
            committables,
            nodes,
        };
        Ok(Some((DealtCheckpoint { tasks, connectors }, max_parallelisms)))
    }

    fn note_restores(
        &mut self,
        vertices: &[VertexIndex],
        mut tasks: BTreeMap<JobVertexId, Vec<Option<crate::checkpoint::TaskRestore>>>,
    ) {
        for vertex in vertices {
            let id = self.graph.vertex(*vertex).id();
            let of_vertex = tasks.get_mut(&id.vertex).and_then(|tasks| tasks.get_mut(id.subtask_index as usize));
            if let Some(restore) = of_vertex.and_then(Option::take) {
                self.restores.insert(*vertex, restore);
            }
        }
    }
}

/// Whether a start that failed so may succeed at another time.
fn recoverability_of(problem: &StoreProblem) -> Recoverability {
    match problem {
        StoreProblem::Unavailable(_) => Recoverability::Recoverable,
        StoreProblem::Unusable(_) | StoreProblem::OtherVersion(_) => Recoverability::Unrecoverable,
    }
}

fn checkpoint_failure(code: &str, message: String, recoverability: Recoverability) -> FailureCause {
    FailureCause { code: code.to_owned(), message, detail: String::new(), recoverability }
}
