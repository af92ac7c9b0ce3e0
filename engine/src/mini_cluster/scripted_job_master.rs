//! A JobMaster for tests of the components around it: runs subtask i of every vertex in
//! slot i, restarts all when one fails, and repeats what may have been lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    time::Duration,
};

use crate::{
    base::{
        clock::Timestamp,
        ids::{
            AllocationId, ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, JobMasterId, ResourceId,
            ResourceManagerId, SlotId,
        },
        status::JobStatus,
    },
    connector::SplitAssignment,
    graph::{job_graph::JobGraph, slot_sharing::slots_needed},
    job_manager::dispatcher::{details_of_graph, overview_of},
    protocol::{
        dispatcher::{DispatcherMessage, JobStatusChanged, JobTerminated},
        job_details::JobDetails,
        job_master::{FailureCause, JobMasterMessage, Recoverability, SlotOffers, SplitAnswer, TaskState},
        resource_manager::{JobMasterRegistration, RequiredSlots, ResourceManagerMessage},
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::{JobInformation, TaskDeployment, TaskExecutorMessage},
    },
};

const TICK: Duration = Duration::from_secs(1);
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(10);
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(50);
const DEPLOYMENT_TIMEOUT: Duration = Duration::from_secs(10);
const CANCEL_TIMEOUT: Duration = Duration::from_secs(120);
const RESTARTS_MAX: u32 = 100;

#[derive(Clone, Debug)]
enum Subtask {
    Waiting,
    Deployed { allocation: AllocationId, task_executor: ResourceId, since: Timestamp },
    Ended,
}

pub(super) struct ScriptedJobMaster {
    graph: JobGraph,
    id: JobMasterId,
    execution_graph: ExecutionGraphId,
    status: JobStatus,
    submitted: Timestamp,
    resource_manager: Option<(ResourceManagerId, Timestamp)>,
    /// By slot: its allocation, and which index of subtasks it holds.
    slots: BTreeMap<AllocationId, (SlotId, u32)>,
    task_executors: BTreeMap<ResourceId, Timestamp>,
    subtasks: BTreeMap<ExecutionVertexId, (u32, Subtask)>,
    restarts: u32,
    failure: Option<FailureCause>,
    next_tick: Timestamp,
    next_heartbeat: Timestamp,
    canceled_at: Timestamp,
    outbox: Vec<Envelope>,
}

impl ScriptedJobMaster {
    pub(super) fn new(graph: JobGraph, id: JobMasterId, submitted: Timestamp) -> Self {
        let vertices = graph.vertices.iter();
        let ids = vertices.flat_map(|vertex| {
            (0..vertex.parallelism).map(|subtask_index| ExecutionVertexId { vertex: vertex.id, subtask_index })
        });
        let subtasks = ids.map(|id| (id, (0, Subtask::Waiting))).collect();
        Self {
            execution_graph: ExecutionGraphId::from_bytes(*id.as_bytes()),
            graph,
            id,
            status: JobStatus::Initializing,
            submitted,
            resource_manager: None,
            slots: BTreeMap::new(),
            task_executors: BTreeMap::new(),
            subtasks,
            restarts: 0,
            failure: None,
            next_tick: Timestamp::MAX,
            next_heartbeat: Timestamp::MAX,
            canceled_at: Timestamp::MAX,
            outbox: Vec::new(),
        }
    }

    fn needed(&self) -> usize {
        slots_needed(&self.graph) as usize
    }

    fn attempt(&self, vertex: ExecutionVertexId) -> ExecutionAttemptId {
        let attempt_number = self.subtasks[&vertex].0;
        ExecutionAttemptId { graph: self.execution_graph, execution_vertex: vertex, attempt_number }
    }

    fn is_current(&self, attempt: ExecutionAttemptId) -> bool {
        match self.subtasks.get(&attempt.execution_vertex) {
            Some((number, Subtask::Deployed { .. })) => {
                *number == attempt.attempt_number && attempt.graph == self.execution_graph
            }
            Some((_, Subtask::Waiting | Subtask::Ended)) | None => false,
        }
    }

    fn handle(&mut self, from: &Address, message: JobMasterMessage, now: Timestamp) {
        if let Address::TaskExecutor(id) = from
            && let Some(last_heard) = self.task_executors.get_mut(id)
        {
            *last_heard = now;
        }
        match message {
            JobMasterMessage::RegisteredAtResourceManager(id) => {
                self.resource_manager = Some((id, now));
                self.declare();
            }
            JobMasterMessage::ResourceManagerRefused(_) => self.resource_manager = None,
            JobMasterMessage::ResourceManagerHeartbeat => {
                if let Some((_, last_heard)) = &mut self.resource_manager {
                    *last_heard = now;
                    let job = self.graph.job_id;
                    self.tell_resource_manager(ResourceManagerMessage::JobMasterHeartbeat(job));
                }
            }
            JobMasterMessage::NotEnoughSlots(_) => {}
            JobMasterMessage::RegisterTaskExecutor(id) => {
                self.task_executors.insert(id, now);
            }
            JobMasterMessage::OfferSlots(offers) => self.offer_slots(offers, now),
            JobMasterMessage::UpdateTaskExecutionState(update) => {
                let attempt = update.attempt;
                if !self.is_current(attempt) {
                    self.reply(from, TaskExecutorMessage::AttemptUnknown(attempt));
                    return;
                }
                let subtask = self.subtasks.get_mut(&attempt.execution_vertex).unwrap();
                match update.state {
                    TaskState::Initializing | TaskState::Running => {}
                    TaskState::Finished => subtask.1 = Subtask::Ended,
                    TaskState::Canceled | TaskState::Failed => {
                        subtask.1 = Subtask::Ended;
                        if self.status == JobStatus::Running {
                            self.failure = update.cause.or(self.failure.take());
                            self.restart(now);
                        }
                    }
                }
            }
            JobMasterMessage::TaskRefused(attempt, reason) => self.refused(attempt, &reason, now),
            JobMasterMessage::RequestSplit(request) => {
                let assignment = SplitAssignment::NoMoreSplits;
                let answer = SplitAnswer { attempt: request.attempt, node: request.node, assignment };
                self.reply(from, TaskExecutorMessage::SplitAssigned(answer));
            }
            JobMasterMessage::ReportWatermark(_) => {}
            JobMasterMessage::AcknowledgeCheckpoint(_)
            | JobMasterMessage::DeclineCheckpoint(_)
            | JobMasterMessage::EndOfDataReached(_)
            | JobMasterMessage::CheckpointStored(..)
            | JobMasterMessage::CheckpointsDiscarded
            | JobMasterMessage::CheckpointRevoked(..)
            | JobMasterMessage::CheckpointVerified(..) => {}
            JobMasterMessage::TriggerSnapshot(number, _) => {
                self.tell_dispatcher(DispatcherMessage::SnapshotTaken(number, Err("as scripted".to_owned())));
            }
            JobMasterMessage::TaskExecutorHeartbeat(heartbeat) => {
                let id = heartbeat.task_executor;
                let reported: BTreeSet<_> = heartbeat.tasks.iter().map(|(attempt, _)| *attempt).collect();
                for attempt in &reported {
                    if !self.is_current(*attempt) {
                        self.reply(from, TaskExecutorMessage::AttemptUnknown(*attempt));
                    }
                }
                let is_missing = self.subtasks.iter().any(|(vertex, (_, subtask))| match subtask {
                    Subtask::Deployed { task_executor, since, .. } => {
                        *task_executor == id
                            && since.plus(DEPLOYMENT_TIMEOUT) <= now
                            && !reported.contains(&self.attempt(*vertex))
                    }
                    Subtask::Waiting | Subtask::Ended => false,
                });
                if is_missing {
                    self.lost(&id, now, |_| false);
                }
            }
            JobMasterMessage::DisconnectTaskExecutor(id, _) => self.lost(&id, now, |_| true),
            JobMasterMessage::Cancel | JobMasterMessage::CancelUncommitted => {
                if self.status == JobStatus::Running {
                    self.set_status(JobStatus::Canceling, now);
                    self.canceled_at = now;
                    self.cancel_all();
                }
            }
            JobMasterMessage::RequestDetails(number) => {
                let details = self.details(now);
                self.tell_dispatcher(DispatcherMessage::JobDetails(number, details));
            }
            JobMasterMessage::Suspend(_) => self.end(JobStatus::Suspended, now),
        }
    }

    fn offer_slots(&mut self, offers: SlotOffers, now: Timestamp) {
        let id = offers.task_executor;
        self.task_executors.insert(id.clone(), now);
        let mut accepted = Vec::new();
        for offer in offers.offers {
            let outdated: Vec<_> = self
                .slots
                .iter()
                .filter(|(allocation, (slot, _))| *slot == offer.slot && **allocation != offer.allocation)
                .map(|(allocation, _)| *allocation)
                .collect();
            for allocation in outdated {
                self.drop_slot(allocation, now);
            }
            let is_known = self.slots.contains_key(&offer.allocation);
            if is_known || (self.slots.len() < self.needed() && self.status == JobStatus::Running) {
                accepted.push(offer.allocation);
                let used: BTreeSet<u32> = self.slots.values().map(|(_, index)| *index).collect();
                let index = (0..).find(|index| !used.contains(index)).unwrap();
                self.slots.entry(offer.allocation).or_insert((offer.slot, index));
            }
        }
        let job = self.graph.job_id;
        self.reply(&Address::TaskExecutor(id), TaskExecutorMessage::AcceptSlots(job, accepted));
    }

    fn refused(&mut self, attempt: ExecutionAttemptId, reason: &str, now: Timestamp) {
        if !self.is_current(attempt) {
            return;
        }
        let Subtask::Deployed { allocation, .. } = self.subtasks[&attempt.execution_vertex].1 else { return };
        self.free(allocation, reason);
        self.drop_slot(allocation, now);
        if self.status == JobStatus::Running {
            self.restart(now);
        }
    }

    fn free(&mut self, allocation: AllocationId, reason: &str) {
        if let Some((slot, _)) = self.slots.get(&allocation) {
            let to = Address::TaskExecutor(slot.task_executor.clone());
            self.reply(&to, TaskExecutorMessage::FreeSlot(allocation, reason.to_owned()));
        }
    }

    /// A slot is gone with what ran in it.
    fn drop_slot(&mut self, gone: AllocationId, now: Timestamp) {
        self.slots.remove(&gone);
        let mut is_lost = false;
        for (_, subtask) in self.subtasks.values_mut() {
            if matches!(subtask, Subtask::Deployed { allocation, .. } if *allocation == gone) {
                *subtask = Subtask::Ended;
                is_lost = true;
            }
        }
        if is_lost && self.status == JobStatus::Running {
            self.restart(now);
        }
    }

    /// The TaskExecutor is gone, or has lost tasks: its slots are given up.
    fn lost(&mut self, id: &ResourceId, now: Timestamp, is_gone: impl Fn(&ResourceId) -> bool) {
        let slots: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, (slot, _))| slot.task_executor == *id)
            .map(|(allocation, _)| *allocation)
            .collect();
        for allocation in slots {
            self.free(allocation, "lost");
            self.drop_slot(allocation, now);
        }
        if is_gone(id) {
            self.task_executors.remove(id);
        }
    }

    fn restart(&mut self, now: Timestamp) {
        self.cancel_all();
        self.restarts += 1;
        if RESTARTS_MAX < self.restarts {
            self.end(JobStatus::Failed, now);
            return;
        }
        for (number, subtask) in self.subtasks.values_mut() {
            *number += 1;
            *subtask = Subtask::Waiting;
        }
    }

    fn cancel_all(&mut self) {
        let deployed: Vec<_> = self
            .subtasks
            .iter()
            .filter_map(|(vertex, (_, subtask))| match subtask {
                Subtask::Deployed { task_executor, .. } => Some((*vertex, task_executor.clone())),
                Subtask::Waiting | Subtask::Ended => None,
            })
            .collect();
        for (vertex, id) in deployed {
            let attempt = self.attempt(vertex);
            self.reply(&Address::TaskExecutor(id), TaskExecutorMessage::CancelTask(attempt));
        }
    }

    fn deploy_when_ready(&mut self, now: Timestamp) {
        if self.status != JobStatus::Running || self.slots.len() < self.needed() {
            return;
        }
        let by_index: BTreeMap<u32, _> =
            self.slots.iter().map(|(allocation, (slot, index))| (*index, (*allocation, slot.clone()))).collect();
        let waiting: Vec<_> = self
            .subtasks
            .iter()
            .filter(|(_, (_, subtask))| matches!(subtask, Subtask::Waiting))
            .map(|(vertex, _)| *vertex)
            .collect();
        for vertex in waiting {
            let (allocation, slot) = by_index[&vertex.subtask_index].clone();
            let to = Address::TaskExecutor(slot.task_executor.clone());
            let information = JobInformation {
                job: self.graph.job_id,
                job_name: self.graph.name.clone(),
                configuration: self.graph.configuration.clone(),
                program: self.graph.program.clone(),
                grants: self.graph.grants.clone(),
                artifacts: self.graph.artifacts.clone(),
                vertices: self.graph.vertices.clone(),
            };
            self.reply(&to, TaskExecutorMessage::JobInformation(Box::new(information)));
            let deployment = TaskDeployment {
                restore: None,
                job: self.graph.job_id,
                attempt: self.attempt(vertex),
                vertex: vertex.vertex,
                allocation,
                partitions: Vec::new(),
                gates: Vec::new(),
            };
            self.reply(&to, TaskExecutorMessage::SubmitTask(deployment));
            let deployed = Subtask::Deployed { allocation, task_executor: slot.task_executor, since: now };
            self.subtasks.get_mut(&vertex).unwrap().1 = deployed;
        }
    }

    fn settle(&mut self, now: Timestamp) -> Vec<Envelope> {
        let all_ended = self.subtasks.values().all(|(_, subtask)| matches!(subtask, Subtask::Ended));
        let none_runs = !self.subtasks.values().any(|(_, subtask)| matches!(subtask, Subtask::Deployed { .. }));
        match self.status {
            JobStatus::Running if all_ended => self.end(JobStatus::Finished, now),
            JobStatus::Canceling if none_runs || self.canceled_at.plus(CANCEL_TIMEOUT) <= now => {
                self.end(JobStatus::Canceled, now);
            }
            _unchanged => self.deploy_when_ready(now),
        }
        mem::take(&mut self.outbox)
    }

    fn tick(&mut self, now: Timestamp) {
        if self.resource_manager.is_some_and(|(_, last_heard)| last_heard.plus(HEARTBEAT_TIMEOUT) <= now) {
            self.resource_manager = None;
        }
        match self.resource_manager {
            None => {
                let registration = JobMasterRegistration { job: self.graph.job_id, job_master: self.id };
                let message = Message::ResourceManager(ResourceManagerMessage::RegisterJobMaster(registration));
                self.send(Address::ResourceManager, Fence::None, message);
            }
            Some(_) => self.declare(),
        }
        if self.status == JobStatus::Canceling {
            self.cancel_all();
        }
        let silent: Vec<_> = self
            .task_executors
            .iter()
            .filter(|(_, last_heard)| last_heard.plus(HEARTBEAT_TIMEOUT) <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in silent {
            self.lost(&id, now, |_| true);
        }
        if self.next_heartbeat <= now {
            self.next_heartbeat = now.plus(HEARTBEAT_INTERVAL);
            let job = self.graph.job_id;
            for id in self.task_executors.keys().cloned().collect::<Vec<_>>() {
                self.reply(&Address::TaskExecutor(id), TaskExecutorMessage::JobMasterHeartbeat(job));
            }
        }
    }

    fn declare(&mut self) {
        let (job, job_master) = (self.graph.job_id, self.id);
        let slots = vec![(None, self.needed() as u32)];
        let required = RequiredSlots { job, job_master, slots };
        self.tell_resource_manager(ResourceManagerMessage::DeclareRequiredSlots(required));
    }

    fn set_status(&mut self, status: JobStatus, now: Timestamp) {
        self.status = status;
        let overview = overview_of(&self.details(now));
        self.tell_dispatcher(DispatcherMessage::JobStatusChanged(JobStatusChanged { job_master: self.id, overview }));
    }

    fn end(&mut self, status: JobStatus, now: Timestamp) {
        self.set_status(status, now);
        let reason = format!("the job is {status}");
        for allocation in self.slots.keys().copied().collect::<Vec<_>>() {
            self.free(allocation, &reason);
        }
        let job = self.graph.job_id;
        for id in self.task_executors.keys().cloned().collect::<Vec<_>>() {
            let message = TaskExecutorMessage::DisconnectJobMaster(job, reason.clone());
            self.reply(&Address::TaskExecutor(id), message);
        }
        self.tell_resource_manager(ResourceManagerMessage::DisconnectJobMaster(job, self.id));
        let terminated = JobTerminated { job_master: self.id, details: self.details(now) };
        self.tell_dispatcher(DispatcherMessage::JobTerminated(terminated));
    }

    fn details(&self, now: Timestamp) -> JobDetails {
        let failure = (self.status == JobStatus::Failed).then(|| FailureCause {
            code: "test".to_owned(),
            message: "too many restarts".to_owned(),
            detail: String::new(),
            recoverability: Recoverability::Unrecoverable,
        });
        let failure = failure.map(|cause| self.failure.clone().unwrap_or(cause));
        details_of_graph(&self.graph, self.status, self.submitted, now, failure)
    }

    fn send(&mut self, to: Address, fence: Fence, message: Message) {
        self.outbox.push(Envelope { from: Address::JobMaster(self.graph.job_id), to, fence, message });
    }

    fn reply(&mut self, to: &Address, message: TaskExecutorMessage) {
        self.send(to.clone(), Fence::JobMaster(self.id), Message::TaskExecutor(message));
    }

    fn tell_dispatcher(&mut self, message: DispatcherMessage) {
        self.send(Address::Dispatcher, Fence::None, Message::Dispatcher(message));
    }

    fn tell_resource_manager(&mut self, message: ResourceManagerMessage) {
        if let Some((id, _)) = self.resource_manager {
            self.send(Address::ResourceManager, Fence::ResourceManager(id), Message::ResourceManager(message));
        }
    }
}

impl Endpoint for ScriptedJobMaster {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.next_tick = now.plus(TICK);
        self.next_heartbeat = now;
        self.set_status(JobStatus::Running, now);
        self.tick(now);
        self.settle(now)
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        if self.is_terminated() || envelope.fence != Fence::JobMaster(self.id) {
            return Vec::new();
        }
        let Message::JobMaster(message) = envelope.message else { return Vec::new() };
        self.handle(&envelope.from, message, now);
        self.settle(now)
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.next_tick = now.plus(TICK);
        self.tick(now);
        self.settle(now)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        Some(self.next_tick)
    }

    fn is_terminated(&self) -> bool {
        self.status.is_terminal()
    }
}
