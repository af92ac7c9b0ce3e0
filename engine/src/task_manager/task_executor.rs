//! Lends slots to JobMasters and runs their tasks.
//!
//! Receives [`TaskExecutorMessage`] from the ResourceManager (which slot goes to which
//! job) and from JobMasters (which task runs in which slot), and [`TaskEvent`]s from the
//! threads of its tasks. Decides only; what runs is behind [`RunningTask`].
//!
//! Invariants
//! - Every message carries the leadership of its sender, which is checked in
//!   [`TaskExecutor::is_fenced_off`] alone, but for a task submission, which is answered.
//! - A task's end is never lost. Its thread leaves it in the [`TaskEventQueue`], which
//!   has room for every event of every attempt; it stays in `tasks`, is reported again
//!   with each heartbeat of the JobMaster, and goes only when the JobMaster says that it
//!   no longer knows the attempt, or is gone itself.
//! - A slot is offered until its JobMaster answers, or until it expires, and again when
//!   it has been unused for long: so none is kept that the JobMaster has forgotten.
//!
//! Source: Flink's TaskExecutor.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{
    RunningTask, TaskEvent, TaskEventSink, TaskStarter,
    task_slot_table::{Allocated, FreedSlot, Released, TaskSlotTable},
};
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, format_duration, options},
        ids::{AllocationId, ExecutionAttemptId, JobId, JobMasterId, ResourceId, ResourceManagerId, SlotId},
        stream_element::CheckpointId,
    },
    protocol::{
        job_master::{
            CheckpointFailureReason, DeclineCheckpoint, FailureCause, JobMasterMessage, SlotOffer, SlotOffers,
            SplitAnswer, TaskExecutionStateUpdate, TaskExecutorHeartbeat, TaskMetrics, TaskState,
        },
        resource_manager::{ResourceManagerMessage, TaskExecutorRegistration},
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::{JobInformation, SlotRequest, TaskDeployment, TaskExecutorMessage},
    },
};

/// Time between two reports of counters, for those who watch a job.
const METRICS_INTERVAL: Duration = Duration::from_secs(1);
/// First wait for the answer to an offer; doubled with each repetition.
const OFFER_INITIAL_WAIT: Duration = Duration::from_millis(500);
/// Longest wait for the answer to an offer.
const OFFER_MAX_WAIT: Duration = Duration::from_secs(5);
/// Time that tasks have to end when the TaskExecutor is stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// What a TaskExecutor is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TaskExecutorConfig {
    /// Unique in the cluster.
    pub id: ResourceId,
    /// Number of slots.
    pub slots: u32,
    /// CPU cores of the machine.
    pub cpu_cores: u32,
    /// Bytes of memory of the machine.
    pub memory_bytes: u64,
    /// Silence after which a peer counts as lost.
    pub heartbeat_timeout: Duration,
    /// First wait for the answer to a registration; doubled with each try.
    pub registration_initial_wait: Duration,
    /// Longest wait for the answer to a registration.
    pub registration_max_wait: Duration,
    /// Pause after a refused registration.
    pub registration_refused_delay: Duration,
    /// Time without a ResourceManager after which the TaskExecutor ends.
    pub registration_timeout: Duration,
    /// Time that a slot stays allocated without being active.
    pub slot_timeout: Duration,
    /// Time after which a task that does not end is reported.
    pub cancellation_timeout: Duration,
}

impl TaskExecutorConfig {
    /// Takes over the settings; the number of cores and the memory are the caller's.
    pub fn from_configuration(id: ResourceId, configuration: &Configuration) -> Self {
        Self {
            id,
            slots: configuration.get(&options::SLOTS),
            cpu_cores: 1,
            memory_bytes: 0,
            heartbeat_timeout: configuration.get(&options::HEARTBEAT_TIMEOUT),
            registration_initial_wait: configuration.get(&options::REGISTRATION_INITIAL_TIMEOUT),
            registration_max_wait: configuration.get(&options::REGISTRATION_MAX_TIMEOUT),
            registration_refused_delay: configuration.get(&options::REGISTRATION_REFUSED_DELAY),
            registration_timeout: configuration.get(&options::TASK_MANAGER_REGISTRATION_TIMEOUT),
            slot_timeout: configuration.get(&options::SLOT_TIMEOUT),
            cancellation_timeout: configuration.get(&options::TASK_CANCELLATION_TIMEOUT),
        }
    }
}

/// What of a task an event is about; a task has one event of each kind at a time.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum EventKind {
    Initializing,
    Running,
    Ended,
    RequestSplit(u32),
    ReportWatermark(u32),
    Checkpoint(CheckpointId),
    EndOfData,
}

/// Events on their way from the threads of tasks to the loop of their TaskExecutor.
///
/// Bounded by what there can be: per attempt one event for each state, and one request
/// and one report for each source. So a thread never waits and nothing is ever refused. The loop is
/// woken when the first event comes; if its queue has no room for that, it has messages
/// to read, and looks here with each of them.
pub struct TaskEventQueue {
    /// A lock and no message: held for one insertion, by threads that must not wait.
    waiting: Mutex<WaitingEvents>,
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct WaitingEvents {
    /// Number of events so far, which gives the next one its place.
    count: u64,
    events: BTreeMap<(ExecutionAttemptId, EventKind), (u64, TaskEvent)>,
}

impl TaskEventQueue {
    /// Makes an empty queue. `wake` sends [`TaskExecutorMessage::TaskEventsWaiting`] to
    /// the TaskExecutor, from itself.
    pub fn new(wake: Box<dyn Fn() + Send + Sync>) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), wake })
    }

    /// The end that tasks are given.
    pub fn sink(self: &Arc<Self>) -> TaskEventSink {
        let queue = Arc::clone(self);
        Arc::new(move |event| queue.push(event))
    }

    fn push(&self, event: TaskEvent) {
        let key = match &event {
            TaskEvent::StateChanged(update) => (update.attempt, kind_of(update.state)),
            TaskEvent::RequestSplit(request) => (request.attempt, EventKind::RequestSplit(request.node)),
            // One that was not read yet is replaced.
            TaskEvent::ReportWatermark(report) => (report.attempt, EventKind::ReportWatermark(report.node)),
            // A task answers each checkpoint once.
            TaskEvent::AcknowledgeCheckpoint(acknowledge) => {
                (acknowledge.attempt, EventKind::Checkpoint(acknowledge.checkpoint_id))
            }
            TaskEvent::DeclineCheckpoint(decline) => (decline.attempt, EventKind::Checkpoint(decline.checkpoint_id)),
            TaskEvent::EndOfDataReached(attempt) => (*attempt, EventKind::EndOfData),
        };
        let is_first = {
            let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.count += 1;
            let place = waiting.count;
            waiting.events.insert(key, (place, event));
            waiting.events.len() == 1
        };
        if is_first {
            (self.wake)();
        }
    }

    /// All events in the order in which they came.
    fn drain(&self) -> Vec<TaskEvent> {
        let events = mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner).events);
        let mut events: Vec<_> = events.into_values().collect();
        events.sort_by_key(|(place, _)| *place);
        events.into_iter().map(|(_, event)| event).collect()
    }
}

fn kind_of(state: TaskState) -> EventKind {
    match state {
        TaskState::Initializing => EventKind::Initializing,
        TaskState::Running => EventKind::Running,
        TaskState::Finished | TaskState::Canceled | TaskState::Failed => EventKind::Ended,
    }
}

#[derive(Clone, Copy, Debug)]
enum ResourceManagerConnection {
    Registering { since: Timestamp, next_try: Timestamp, wait: Duration },
    Registered { id: ResourceManagerId, last_heard: Timestamp },
}

/// A JobMaster that has slots here, or may get some.
struct JobConnection {
    job_master: JobMasterId,
    last_heard: Timestamp,
    information: Option<Arc<JobInformation>>,
    offers: OpenOffers,
}

/// Slots that were offered and not answered.
struct OpenOffers {
    allocations: BTreeSet<AllocationId>,
    /// Number of offers sent less the number of answers. While it is above one, an
    /// answer that leaves a slot out may be the answer to an offer without that slot.
    unanswered: u32,
    resend_at: Timestamp,
    wait: Duration,
}

struct TaskEntry {
    job: JobId,
    job_master: JobMasterId,
    phase: TaskPhase,
    /// True if the JobMaster does not want to hear of it again.
    is_disowned: bool,
}

enum TaskPhase {
    Running(Box<dyn RunningTask>),
    Ended(Box<TaskExecutionStateUpdate>),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Running,
    Stopping { deadline: Timestamp },
    Stopped,
}

/// The component. See the module's documentation.
pub struct TaskExecutor {
    config: TaskExecutorConfig,
    resource_manager: ResourceManagerConnection,
    slots: TaskSlotTable,
    jobs: BTreeMap<JobId, JobConnection>,
    tasks: BTreeMap<ExecutionAttemptId, TaskEntry>,
    /// When a task that was told to end is reported as stuck.
    ending: BTreeMap<ExecutionAttemptId, Timestamp>,
    next_metrics: Timestamp,
    events: Arc<TaskEventQueue>,
    starter: TaskStarter,
    phase: Phase,
    stale_messages: u64,
    outbox: Vec<Envelope>,
}

impl TaskExecutor {
    /// Makes the component. Tasks that `starter` starts leave their events in `events`.
    pub fn new(config: TaskExecutorConfig, starter: TaskStarter, events: Arc<TaskEventQueue>) -> Self {
        let slots = TaskSlotTable::new(config.id.clone(), config.slots, config.slot_timeout);
        let wait = config.registration_initial_wait;
        let never = Timestamp::MAX;
        Self {
            config,
            resource_manager: ResourceManagerConnection::Registering { since: never, next_try: never, wait },
            slots,
            jobs: BTreeMap::new(),
            tasks: BTreeMap::new(),
            ending: BTreeMap::new(),
            next_metrics: Timestamp::MIN,
            events,
            starter,
            phase: Phase::Running,
            stale_messages: 0,
            outbox: Vec::new(),
        }
    }

    /// Number of messages that were dropped since they were meant for another leadership.
    pub fn stale_messages(&self) -> u64 {
        self.stale_messages
    }

    /// By slot index: the job and allocation that have it.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> Vec<Option<(JobId, AllocationId)>> {
        self.slots.report().slots
    }

    /// Number of attempts that run or whose end the JobMaster may not know.
    #[cfg(test)]
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    /// True for a message of another leadership than the one that it speaks for.
    fn is_fenced_off(&self, envelope: &Envelope) -> bool {
        let Message::TaskExecutor(message) = &envelope.message else { return true };
        let is_own = envelope.from == self.address();
        let resource_manager = match (self.resource_manager, envelope.fence) {
            (ResourceManagerConnection::Registered { id, .. }, Fence::ResourceManager(sender)) => id == sender,
            (ResourceManagerConnection::Registering { .. } | ResourceManagerConnection::Registered { .. }, _) => false,
        };
        let leads = |job: &JobId| match (self.jobs.get(job), envelope.fence) {
            (Some(connection), Fence::JobMaster(sender)) => connection.job_master == sender,
            (Some(_) | None, _) => false,
        };
        let leads_any = || match envelope.fence {
            Fence::JobMaster(sender) => self.jobs.values().any(|connection| connection.job_master == sender),
            Fence::Dispatcher(_) | Fence::ResourceManager(_) | Fence::None => false,
        };
        match message {
            TaskExecutorMessage::ResourceManagerLeader(_)
            | TaskExecutorMessage::TaskEventsWaiting
            | TaskExecutorMessage::Stop(_) => !is_own,
            TaskExecutorMessage::RegisteredAtResourceManager(_) => false,
            TaskExecutorMessage::ResourceManagerRefused(_) => match self.resource_manager {
                ResourceManagerConnection::Registering { .. } => false,
                ResourceManagerConnection::Registered { .. } => !resource_manager,
            },
            TaskExecutorMessage::ResourceManagerHeartbeat | TaskExecutorMessage::RequestSlot(_) => !resource_manager,
            // Answered in any case: with a refusal, if the leadership differs.
            TaskExecutorMessage::SubmitTask(_) => false,
            TaskExecutorMessage::JobMasterHeartbeat(job) => self.jobs.contains_key(job) && !leads(job),
            TaskExecutorMessage::AcceptSlots(job, _) | TaskExecutorMessage::DisconnectJobMaster(job, _) => !leads(job),
            TaskExecutorMessage::JobInformation(information) => !leads(&information.job),
            TaskExecutorMessage::FreeSlot(..)
            | TaskExecutorMessage::CancelTask(_)
            | TaskExecutorMessage::AttemptUnknown(_)
            | TaskExecutorMessage::SplitAssigned(_)
            | TaskExecutorMessage::AlignWatermark(_)
            | TaskExecutorMessage::TriggerCheckpoint(_)
            | TaskExecutorMessage::NotifyCheckpointComplete(..)
            | TaskExecutorMessage::NotifyCheckpointAborted(..) => !leads_any(),
        }
    }

    fn handle(&mut self, from: &Address, fence: Fence, message: TaskExecutorMessage, now: Timestamp) {
        self.heard(fence, now);
        match message {
            TaskExecutorMessage::RegisteredAtResourceManager(id) => self.registered(id, now),
            TaskExecutorMessage::ResourceManagerRefused(reason) => self.registration_refused(&reason, now),
            TaskExecutorMessage::ResourceManagerHeartbeat => {
                let report = self.slots.report();
                self.send_to_resource_manager(ResourceManagerMessage::TaskExecutorHeartbeat(report));
            }
            TaskExecutorMessage::RequestSlot(request) => self.request_slot(request, now),
            TaskExecutorMessage::AcceptSlots(job, accepted) => self.accept_slots(job, &accepted, now),
            TaskExecutorMessage::FreeSlot(allocation, reason) => self.free_slot(allocation, &reason, now),
            TaskExecutorMessage::JobInformation(information) => {
                if let Some(connection) = self.jobs.get_mut(&information.job) {
                    connection.information = Some(Arc::new(*information));
                }
            }
            TaskExecutorMessage::SubmitTask(deployment) => self.submit_task(from, fence, deployment, now),
            TaskExecutorMessage::CancelTask(attempt) => self.cancel_task(from, fence, attempt, now),
            TaskExecutorMessage::AttemptUnknown(attempt) => self.disown(attempt, now),
            TaskExecutorMessage::SplitAssigned(answer) => self.split_assigned(answer),
            TaskExecutorMessage::AlignWatermark(max_allowed) => {
                if let Some(task) = self.running_task(max_allowed.attempt) {
                    task.align_watermark(max_allowed);
                }
            }
            TaskExecutorMessage::TriggerCheckpoint(trigger) => {
                let (attempt, checkpoint_id) = (trigger.attempt, trigger.checkpoint_id);
                match self.running_task(attempt) {
                    Some(task) => task.trigger_checkpoint(trigger),
                    None => self.answer(
                        from,
                        fence,
                        JobMasterMessage::DeclineCheckpoint(DeclineCheckpoint {
                            attempt,
                            checkpoint_id,
                            reason: CheckpointFailureReason::CheckpointDeclinedTaskNotReady,
                            message: format!("checkpoint {checkpoint_id} was not taken: task {attempt} does not run"),
                        }),
                    ),
                }
            }
            TaskExecutorMessage::NotifyCheckpointComplete(attempt, checkpoint_id) => {
                if let Some(task) = self.running_task(attempt) {
                    task.notify_checkpoint_complete(checkpoint_id);
                }
            }
            TaskExecutorMessage::NotifyCheckpointAborted(attempt, checkpoint_id) => {
                if let Some(task) = self.running_task(attempt) {
                    task.notify_checkpoint_aborted(checkpoint_id);
                }
            }
            TaskExecutorMessage::JobMasterHeartbeat(job) => self.job_master_heartbeat(from, fence, job),
            TaskExecutorMessage::DisconnectJobMaster(job, reason) => self.lose_job_master(job, &reason, now),
            TaskExecutorMessage::ResourceManagerLeader(id) => self.resource_manager_leads(id, now),
            TaskExecutorMessage::TaskEventsWaiting => {}
            TaskExecutorMessage::Stop(reason) => self.stop(&reason, now),
        }
    }

    /// Notes that the sender of a message lives.
    fn heard(&mut self, fence: Fence, now: Timestamp) {
        match fence {
            Fence::ResourceManager(sender) => match &mut self.resource_manager {
                ResourceManagerConnection::Registered { id, last_heard } if *id == sender => *last_heard = now,
                ResourceManagerConnection::Registered { .. } | ResourceManagerConnection::Registering { .. } => {}
            },
            Fence::JobMaster(sender) => {
                let connection = self.jobs.values_mut().find(|connection| connection.job_master == sender);
                if let Some(connection) = connection {
                    connection.last_heard = now;
                }
            }
            Fence::Dispatcher(_) | Fence::None => {}
        }
    }

    // The ResourceManager.

    fn registered(&mut self, id: ResourceManagerId, now: Timestamp) {
        if let ResourceManagerConnection::Registering { .. } = self.resource_manager {
            tracing::debug!(task_executor = %self.config.id, resource_manager = %id, "registered");
            self.resource_manager = ResourceManagerConnection::Registered { id, last_heard: now };
        }
    }

    /// Registers at a new leader at once, instead of when the former has been silent for
    /// long. Tasks go on.
    fn resource_manager_leads(&mut self, leader: ResourceManagerId, now: Timestamp) {
        match self.resource_manager {
            ResourceManagerConnection::Registered { id, .. } if id == leader => {}
            ResourceManagerConnection::Registered { .. } | ResourceManagerConnection::Registering { .. }
                if self.phase == Phase::Running =>
            {
                self.begin_registration(now);
            }
            ResourceManagerConnection::Registered { .. } | ResourceManagerConnection::Registering { .. } => {}
        }
    }

    fn registration_refused(&mut self, reason: &str, now: Timestamp) {
        tracing::warn!(task_executor = %self.config.id, reason, "the ResourceManager refused");
        match &mut self.resource_manager {
            ResourceManagerConnection::Registering { next_try, .. } => {
                *next_try = now.plus(self.config.registration_refused_delay);
            }
            // It has forgotten this TaskExecutor.
            ResourceManagerConnection::Registered { .. } => self.begin_registration(now),
        }
    }

    fn begin_registration(&mut self, now: Timestamp) {
        let wait = self.config.registration_initial_wait;
        self.resource_manager = ResourceManagerConnection::Registering { since: now, next_try: now, wait };
        self.register_when_due(now);
    }

    fn register_when_due(&mut self, now: Timestamp) {
        let ResourceManagerConnection::Registering { since, next_try, wait } = self.resource_manager else { return };
        if since.plus(self.config.registration_timeout) <= now {
            let waited = format_duration(self.config.registration_timeout);
            self.stop(&format!("no ResourceManager took its registration for {waited}"), now);
        } else if next_try <= now {
            let next_wait = (wait * 2).min(self.config.registration_max_wait);
            let next_try = now.plus(wait);
            self.resource_manager = ResourceManagerConnection::Registering { since, next_try, wait: next_wait };
            let registration = TaskExecutorRegistration {
                report: self.slots.report(),
                cpu_cores: self.config.cpu_cores,
                memory_bytes: self.config.memory_bytes,
            };
            let message = ResourceManagerMessage::RegisterTaskExecutor(registration);
            self.send(Address::ResourceManager, Fence::None, Message::ResourceManager(message));
        }
    }

    fn check_resource_manager(&mut self, now: Timestamp) {
        if let ResourceManagerConnection::Registered { last_heard, .. } = self.resource_manager
            && last_heard.plus(self.config.heartbeat_timeout) <= now
        {
            tracing::warn!(task_executor = %self.config.id, "the ResourceManager is silent, registering anew");
            self.begin_registration(now);
        }
        self.register_when_due(now);
    }

    // Slots.

    fn request_slot(&mut self, request: SlotRequest, now: Timestamp) {
        let SlotRequest { slot, job, allocation, job_master } = request;
        if self.jobs.get(&job).is_some_and(|connection| connection.job_master != job_master) {
            self.lose_job_master(job, "the job has another JobMaster", now);
        }
        let allocated = match self.phase {
            Phase::Running if slot.task_executor == self.config.id => {
                self.slots.allocate(slot.index, job, allocation, now).map_err(|error| error.to_string())
            }
            Phase::Running => Err(format!("this is TaskExecutor {}", self.config.id)),
            Phase::Stopping { .. } | Phase::Stopped => Err("the TaskExecutor ends".to_owned()),
        };
        match allocated {
            Ok(Allocated::Now | Allocated::Before) => {
                self.send_to_resource_manager(ResourceManagerMessage::SlotAllocated(slot.clone(), allocation));
                self.connect_to_job_master(job, job_master, now);
                self.offer_slot(job, allocation, slot, now);
            }
            Err(reason) => {
                self.send_to_resource_manager(ResourceManagerMessage::SlotRefused(slot, allocation, reason));
            }
        }
    }

    fn connect_to_job_master(&mut self, job: JobId, job_master: JobMasterId, now: Timestamp) {
        if self.jobs.contains_key(&job) {
            return;
        }
        let offers = OpenOffers {
            allocations: BTreeSet::new(),
            unanswered: 0,
            resend_at: Timestamp::MAX,
            wait: OFFER_INITIAL_WAIT,
        };
        self.jobs.insert(job, JobConnection { job_master, last_heard: now, information: None, offers });
        let id = self.config.id.clone();
        self.send_to_job_master(job, JobMasterMessage::RegisterTaskExecutor(id));
    }

    fn offer_slot(&mut self, job: JobId, allocation: AllocationId, slot: SlotId, now: Timestamp) {
        let is_waiting = self.slots.allocated_slots(job).iter().any(|(waiting, _)| *waiting == allocation);
        let Some(connection) = self.jobs.get_mut(&job) else { return };
        // One that is active, or offered already, needs no offer; repetition is by time.
        if !is_waiting || !connection.offers.allocations.insert(allocation) {
            return;
        }
        self.send_offers(job, vec![SlotOffer { allocation, slot }], now);
    }

    fn send_offers(&mut self, job: JobId, offers: Vec<SlotOffer>, now: Timestamp) {
        let Some(connection) = self.jobs.get_mut(&job) else { return };
        connection.offers.unanswered += 1;
        connection.offers.resend_at = now.plus(connection.offers.wait);
        let task_executor = self.config.id.clone();
        self.send_to_job_master(job, JobMasterMessage::OfferSlots(SlotOffers { task_executor, offers }));
    }

    /// Repeats what no answer has come to, the registration as well.
    fn resend_offers(&mut self, now: Timestamp) {
        let is_due = |connection: &JobConnection| {
            !connection.offers.allocations.is_empty() && connection.offers.resend_at <= now
        };
        let due: Vec<JobId> = self.jobs.iter().filter(|(_, known)| is_due(known)).map(|(job, _)| *job).collect();
        for job in due {
            let offers: Vec<SlotOffer> = self
                .slots
                .allocated_slots(job)
                .into_iter()
                .map(|(allocation, slot)| SlotOffer { allocation, slot })
                .collect();
            let connection = self.jobs.get_mut(&job).expect("listed above");
            connection.offers.allocations = offers.iter().map(|offer| offer.allocation).collect();
            connection.offers.wait = (connection.offers.wait * 2).min(OFFER_MAX_WAIT);
            if !offers.is_empty() {
                let id = self.config.id.clone();
                self.send_to_job_master(job, JobMasterMessage::RegisterTaskExecutor(id));
                self.send_offers(job, offers, now);
            }
        }
    }

    fn accept_slots(&mut self, job: JobId, accepted: &[AllocationId], now: Timestamp) {
        let Some(connection) = self.jobs.get_mut(&job) else { return };
        let offers = &mut connection.offers;
        let is_answer_to_all = offers.unanswered == 1;
        offers.unanswered = offers.unanswered.saturating_sub(1);
        offers.wait = OFFER_INITIAL_WAIT;
        for allocation in accepted {
            offers.allocations.remove(allocation);
            if !self.slots.activate(job, *allocation, now) {
                // It expired before the answer came: a task for it will be refused.
                tracing::debug!(%job, %allocation, "a slot was accepted that is no longer the job's");
            }
        }
        if is_answer_to_all {
            for allocation in mem::take(&mut offers.allocations) {
                self.release_slot(allocation, "the JobMaster did not take the slot");
            }
        }
    }

    /// The JobMaster gives a slot back: it has drawn its conclusions from what ran there.
    fn free_slot(&mut self, allocation: AllocationId, reason: &str, now: Timestamp) {
        let attempts = self.release_slot(allocation, reason);
        self.fail_tasks(attempts, reason, now);
    }

    /// Takes a slot back; returns the attempts that have to end first.
    fn release_slot(&mut self, allocation: AllocationId, reason: &str) -> Vec<ExecutionAttemptId> {
        for connection in self.jobs.values_mut() {
            connection.offers.allocations.remove(&allocation);
        }
        match self.slots.release(allocation) {
            Released::Free(freed) => {
                tracing::debug!(?freed, reason, "a slot is free");
                self.report_free(freed);
                Vec::new()
            }
            Released::Ending(attempts) => attempts,
            Released::Unknown => Vec::new(),
        }
    }

    fn report_free(&mut self, freed: FreedSlot) {
        self.send_to_resource_manager(ResourceManagerMessage::SlotAvailable(freed.slot, freed.allocation));
    }

    fn expire_slots(&mut self, now: Timestamp) {
        for (job, allocation) in self.slots.expired(now) {
            let waited = format_duration(self.config.slot_timeout);
            let reason = format!("job {job} did not use the slot for {waited}");
            let attempts = self.release_slot(allocation, &reason);
            self.fail_tasks(attempts, &reason, now);
        }
    }

    /// Asks again about slots that are active and unused: the JobMaster may have given
    /// them back by a message that was lost.
    fn offer_idle_slots(&mut self, now: Timestamp) {
        for (job, allocation, slot) in self.slots.deactivate_idle(now) {
            self.offer_slot(job, allocation, slot, now);
        }
    }

    // Tasks.

    fn submit_task(&mut self, from: &Address, fence: Fence, deployment: TaskDeployment, now: Timestamp) {
        let attempt = deployment.attempt;
        match self.start(fence, deployment, now) {
            Ok(()) => {}
            Err(SubmitError::Refused(reason)) => {
                self.answer(from, fence, JobMasterMessage::TaskRefused(attempt, reason));
            }
            Err(SubmitError::Failed(cause)) => self.task_ended(never_started(attempt, Some(cause)), now),
        }
    }

    fn start(&mut self, fence: Fence, deployment: TaskDeployment, now: Timestamp) -> Result<(), SubmitError> {
        let refused = |reason: String| Err(SubmitError::Refused(reason));
        let TaskDeployment { job, attempt, allocation, .. } = deployment;
        if self.phase != Phase::Running {
            return refused("the TaskExecutor ends".to_owned());
        }
        let Some(connection) = self.jobs.get(&job) else {
            return refused(format!("it has no connection to a JobMaster of job {job}"));
        };
        let job_master = connection.job_master;
        if fence != Fence::JobMaster(job_master) {
            return refused(format!("job {job} is led by {job_master}"));
        }
        if self.tasks.contains_key(&attempt) {
            return refused("it has this attempt already".to_owned());
        }
        let Some(information) = connection.information.clone() else {
            return refused(format!("it was not told what the tasks of job {job} share"));
        };
        self.slots
            .add_attempt(job, allocation, attempt, now)
            .map_err(|error| SubmitError::Refused(error.to_string()))?;
        if let Some(connection) = self.jobs.get_mut(&job) {
            // Whoever submits a task has taken the slot.
            connection.offers.allocations.remove(&allocation);
        }
        let (phase, result) = match (self.starter.start)(information, deployment) {
            Ok(task) => (TaskPhase::Running(task), Ok(())),
            Err(cause) => {
                // Replaced by the update that the caller makes of the cause.
                (TaskPhase::Ended(Box::new(never_started(attempt, None))), Err(SubmitError::Failed(cause)))
            }
        };
        self.tasks.insert(attempt, TaskEntry { job, job_master, phase, is_disowned: false });
        result
    }

    fn cancel_task(&mut self, from: &Address, fence: Fence, attempt: ExecutionAttemptId, now: Timestamp) {
        match self.tasks.get(&attempt).map(|entry| &entry.phase) {
            Some(TaskPhase::Running(task)) => {
                task.cancel();
                self.expect_end(attempt, now);
            }
            // The report of its end is on its way, or was lost.
            Some(TaskPhase::Ended(update)) => {
                let update = update.as_ref().clone();
                self.answer(from, fence, JobMasterMessage::UpdateTaskExecutionState(update));
            }
            None => {
                let reason = "it has no such attempt".to_owned();
                self.answer(from, fence, JobMasterMessage::TaskRefused(attempt, reason));
            }
        }
    }

    /// The JobMaster has finished with an attempt.
    fn disown(&mut self, attempt: ExecutionAttemptId, now: Timestamp) {
        let Some(entry) = self.tasks.get_mut(&attempt) else { return };
        match entry.phase {
            TaskPhase::Running(_) => {
                entry.is_disowned = true;
                self.fail_tasks(vec![attempt], "the JobMaster does not know the attempt", now);
            }
            TaskPhase::Ended(_) => {
                self.tasks.remove(&attempt);
            }
        }
    }

    fn split_assigned(&mut self, answer: SplitAnswer) {
        match self.tasks.get(&answer.attempt).map(|entry| &entry.phase) {
            Some(TaskPhase::Running(task)) => task.split_assigned(answer),
            Some(TaskPhase::Ended(_)) | None => {
                tracing::debug!(attempt = %answer.attempt, "a split came for a task that has ended");
            }
        }
    }

    /// Tells attempts to end as failed; those that have ended are forgotten.
    fn fail_tasks(&mut self, attempts: Vec<ExecutionAttemptId>, reason: &str, now: Timestamp) {
        for attempt in attempts {
            if let Some(TaskPhase::Running(task)) = self.tasks.get(&attempt).map(|entry| &entry.phase) {
                task.fail(reason);
                self.expect_end(attempt, now);
            }
        }
    }

    fn expect_end(&mut self, attempt: ExecutionAttemptId, now: Timestamp) {
        self.ending.entry(attempt).or_insert(now.plus(self.config.cancellation_timeout));
    }

    fn report_stuck_tasks(&mut self, now: Timestamp) {
        for (attempt, deadline) in &mut self.ending {
            if *deadline <= now {
                let waited = format_duration(self.config.cancellation_timeout);
                tracing::error!(%attempt, "a task was told to end {waited} ago and still runs");
                *deadline = now.plus(self.config.cancellation_timeout);
            }
        }
    }

    fn take_task_events(&mut self, now: Timestamp) {
        for event in self.events.drain() {
            match event {
                TaskEvent::StateChanged(update) => match update.state {
                    TaskState::Initializing | TaskState::Running => self.report_state(update),
                    TaskState::Finished | TaskState::Canceled | TaskState::Failed => self.task_ended(update, now),
                },
                TaskEvent::RequestSplit(request) => {
                    self.pass_on(request.attempt, JobMasterMessage::RequestSplit(request));
                }
                TaskEvent::ReportWatermark(report) => {
                    self.pass_on(report.attempt, JobMasterMessage::ReportWatermark(report));
                }
                TaskEvent::AcknowledgeCheckpoint(acknowledge) => {
                    self.pass_on(acknowledge.attempt, JobMasterMessage::AcknowledgeCheckpoint(acknowledge));
                }
                TaskEvent::DeclineCheckpoint(decline) => {
                    self.pass_on(decline.attempt, JobMasterMessage::DeclineCheckpoint(decline));
                }
                TaskEvent::EndOfDataReached(attempt) => {
                    self.pass_on(attempt, JobMasterMessage::EndOfDataReached(attempt));
                }
            }
        }
    }

    /// A task whose thread runs.
    fn running_task(&self, attempt: ExecutionAttemptId) -> Option<&dyn RunningTask> {
        match self.tasks.get(&attempt).map(|entry| &entry.phase) {
            Some(TaskPhase::Running(task)) => Some(&**task),
            Some(_) | None => None,
        }
    }

    /// Sends what a task has to say to the JobMaster that submitted it.
    fn pass_on(&mut self, attempt: ExecutionAttemptId, message: JobMasterMessage) {
        let Some(entry) = self.tasks.get(&attempt) else { return };
        if self.is_wanted(entry) {
            self.send_to_job_master(entry.job, message);
        }
    }

    /// True if the JobMaster that submitted a task is still connected and knows it.
    fn is_wanted(&self, entry: &TaskEntry) -> bool {
        let is_connected = |connection: &JobConnection| connection.job_master == entry.job_master;
        !entry.is_disowned && self.jobs.get(&entry.job).is_some_and(is_connected)
    }

    fn report_state(&mut self, update: TaskExecutionStateUpdate) {
        let Some(entry) = self.tasks.get(&update.attempt) else { return };
        if self.is_wanted(entry) {
            self.send_to_job_master(entry.job, JobMasterMessage::UpdateTaskExecutionState(update));
        }
    }

    /// The thread of a task has ended, or never began.
    fn task_ended(&mut self, update: TaskExecutionStateUpdate, now: Timestamp) {
        let attempt = update.attempt;
        self.ending.remove(&attempt);
        if let Some(freed) = self.slots.remove_attempt(attempt, now) {
            self.report_free(freed);
        }
        let Some(mut entry) = self.tasks.remove(&attempt) else { return };
        if self.is_wanted(&entry) {
            entry.phase = TaskPhase::Ended(Box::new(update.clone()));
            self.send_to_job_master(entry.job, JobMasterMessage::UpdateTaskExecutionState(update));
            self.tasks.insert(attempt, entry);
        } else {
            self.leave_job_if_done(entry.job);
        }
    }

    /// Lets go of what the tasks of a job left, when none runs and nobody can submit another.
    fn leave_job_if_done(&self, job: JobId) {
        if !self.jobs.contains_key(&job) && self.tasks.values().all(|entry| entry.job != job) {
            (self.starter.job_left)(job);
        }
    }

    // JobMasters.

    fn job_master_heartbeat(&mut self, from: &Address, fence: Fence, job: JobId) {
        if !self.jobs.contains_key(&job) {
            let reason = "it has no slots of the job".to_owned();
            let id = self.config.id.clone();
            self.answer(from, fence, JobMasterMessage::DisconnectTaskExecutor(id, reason));
            return;
        }
        let of_job = self.tasks.values().filter(|entry| entry.job == job && self.is_wanted(entry));
        let ended: Vec<_> = of_job
            .filter_map(|entry| match &entry.phase {
                TaskPhase::Ended(update) => Some(update.as_ref().clone()),
                TaskPhase::Running(_) => None,
            })
            .collect();
        for update in ended {
            self.send_to_job_master(job, JobMasterMessage::UpdateTaskExecutionState(update));
        }
        let tasks = self.task_reports().remove(&job).unwrap_or_default();
        self.send_heartbeat(job, tasks);
    }

    /// All attempts that their JobMasters should know, with their counters, by job.
    fn task_reports(&self) -> BTreeMap<JobId, Vec<(ExecutionAttemptId, TaskMetrics)>> {
        let mut reports = BTreeMap::<JobId, Vec<_>>::new();
        for (attempt, entry) in self.tasks.iter().filter(|(_, entry)| self.is_wanted(entry)) {
            let metrics = match &entry.phase {
                TaskPhase::Running(task) => task.metrics(),
                TaskPhase::Ended(update) => update.metrics.clone(),
            };
            reports.entry(entry.job).or_default().push((*attempt, metrics));
        }
        reports
    }

    fn send_heartbeat(&mut self, job: JobId, tasks: Vec<(ExecutionAttemptId, TaskMetrics)>) {
        let task_executor = self.config.id.clone();
        let heartbeat = TaskExecutorHeartbeat { task_executor, tasks };
        self.send_to_job_master(job, JobMasterMessage::TaskExecutorHeartbeat(heartbeat));
    }

    fn report_metrics_when_due(&mut self, now: Timestamp) {
        if self.tasks.is_empty() || now < self.next_metrics {
            return;
        }
        self.next_metrics = now.plus(METRICS_INTERVAL);
        for (job, tasks) in self.task_reports() {
            self.send_heartbeat(job, tasks);
        }
    }

    fn lose_silent_job_masters(&mut self, now: Timestamp) {
        let timeout = self.config.heartbeat_timeout;
        let silent: Vec<JobId> = self
            .jobs
            .iter()
            .filter(|(_, connection)| connection.last_heard.plus(timeout) <= now)
            .map(|(job, _)| *job)
            .collect();
        for job in silent {
            let reason = format!("the JobMaster was silent for {}", format_duration(timeout));
            let id = self.config.id.clone();
            self.send_to_job_master(job, JobMasterMessage::DisconnectTaskExecutor(id, reason.clone()));
            self.lose_job_master(job, &reason, now);
        }
    }

    /// Without JobMaster the tasks of a job end. Slots that it had taken wait for a next
    /// leader until they expire; those that it had not taken are free at once.
    fn lose_job_master(&mut self, job: JobId, reason: &str, now: Timestamp) {
        if self.jobs.remove(&job).is_none() {
            return;
        }
        tracing::info!(%job, reason, "the connection to a JobMaster is gone");
        for (allocation, _) in self.slots.allocated_slots(job) {
            let attempts = self.release_slot(allocation, reason);
            self.fail_tasks(attempts, reason, now);
        }
        self.slots.deactivate_job(job, now);
        let of_job = self.tasks.iter().filter(|(_, entry)| entry.job == job);
        let attempts: Vec<_> = of_job.map(|(attempt, _)| *attempt).collect();
        // Nobody is left to be told how these ended.
        self.tasks.retain(|_, entry| entry.job != job || matches!(entry.phase, TaskPhase::Running(_)));
        self.fail_tasks(attempts, reason, now);
        self.leave_job_if_done(job);
    }

    // The end.

    fn stop(&mut self, reason: &str, now: Timestamp) {
        if self.phase != Phase::Running {
            return;
        }
        tracing::info!(task_executor = %self.config.id, reason, "the TaskExecutor ends");
        self.phase = Phase::Stopping { deadline: now.plus(STOP_TIMEOUT) };
        let id = self.config.id.clone();
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            let message = JobMasterMessage::DisconnectTaskExecutor(id.clone(), reason.to_owned());
            self.send_to_job_master(job, message);
        }
        self.jobs.clear();
        self.send_to_resource_manager(ResourceManagerMessage::DisconnectTaskExecutor(id, reason.to_owned()));
        self.tasks.retain(|_, entry| match &entry.phase {
            TaskPhase::Running(task) => {
                task.cancel();
                true
            }
            TaskPhase::Ended(_) => false,
        });
    }

    fn stop_when_due(&mut self, now: Timestamp) {
        let Phase::Stopping { deadline } = self.phase else { return };
        if self.tasks.is_empty() {
            self.phase = Phase::Stopped;
        } else if deadline <= now {
            let count = self.tasks.len();
            tracing::error!(task_executor = %self.config.id, count, "tasks did not end in time and are left behind");
            self.phase = Phase::Stopped;
        }
    }

    // Sending.

    fn address(&self) -> Address {
        Address::TaskExecutor(self.config.id.clone())
    }

    fn send(&mut self, to: Address, fence: Fence, message: Message) {
        self.outbox.push(Envelope { from: self.address(), to, fence, message });
    }

    /// Nothing is sent without a registration: the next one reports all that there is.
    fn send_to_resource_manager(&mut self, message: ResourceManagerMessage) {
        if let ResourceManagerConnection::Registered { id, .. } = self.resource_manager {
            self.send(Address::ResourceManager, Fence::ResourceManager(id), Message::ResourceManager(message));
        }
    }

    fn send_to_job_master(&mut self, job: JobId, message: JobMasterMessage) {
        if let Some(connection) = self.jobs.get(&job) {
            let fence = Fence::JobMaster(connection.job_master);
            self.send(Address::JobMaster(job), fence, Message::JobMaster(message));
        }
    }

    /// Answers a JobMaster that need not be connected, under its own leadership.
    fn answer(&mut self, to: &Address, fence: Fence, message: JobMasterMessage) {
        if let Address::JobMaster(_) = to {
            self.send(to.clone(), fence, Message::JobMaster(message));
        }
    }

    /// What every step ends with.
    fn settle(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.take_task_events(now);
        self.stop_when_due(now);
        mem::take(&mut self.outbox)
    }
}

fn never_started(attempt: ExecutionAttemptId, cause: Option<FailureCause>) -> TaskExecutionStateUpdate {
    let (metrics, end_states) = (TaskMetrics::default(), BTreeMap::new());
    TaskExecutionStateUpdate { attempt, state: TaskState::Failed, cause, metrics, end_states }
}

/// Why a task was not started.
enum SubmitError {
    /// It may not run here.
    Refused(String),
    /// It may, and could not be started.
    Failed(FailureCause),
}

impl Endpoint for TaskExecutor {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.begin_registration(now);
        self.settle(now)
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        // First, so that a task's end is known before anything is said about its slot.
        self.take_task_events(now);
        if self.is_fenced_off(&envelope) {
            self.stale_messages += 1;
            tracing::debug!(from = %envelope.from, "a message of another leadership was dropped");
            return self.settle(now);
        }
        if let Message::TaskExecutor(message) = envelope.message {
            self.handle(&envelope.from, envelope.fence, message, now);
        }
        self.settle(now)
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        if self.phase == Phase::Running {
            self.check_resource_manager(now);
            self.lose_silent_job_masters(now);
            self.resend_offers(now);
            self.expire_slots(now);
            self.offer_idle_slots(now);
            self.report_metrics_when_due(now);
        }
        self.report_stuck_tasks(now);
        self.settle(now)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        if let Phase::Stopping { deadline } = self.phase {
            return Some(deadline);
        }
        let resource_manager = match self.resource_manager {
            ResourceManagerConnection::Registering { since, next_try, .. } => {
                next_try.min(since.plus(self.config.registration_timeout))
            }
            ResourceManagerConnection::Registered { last_heard, .. } => last_heard.plus(self.config.heartbeat_timeout),
        };
        let job_masters =
            self.jobs.values().map(|connection| connection.last_heard.plus(self.config.heartbeat_timeout));
        let offers = self.jobs.values().filter(|connection| !connection.offers.allocations.is_empty());
        let offers = offers.map(|connection| connection.offers.resend_at);
        let metrics = (!self.tasks.is_empty()).then_some(self.next_metrics);
        let stuck = self.ending.values().copied();
        job_masters
            .chain(offers)
            .chain(metrics)
            .chain(stuck)
            .chain(self.slots.next_deadline())
            .chain([resource_manager])
            .min()
    }

    fn is_terminated(&self) -> bool {
        self.phase == Phase::Stopped
    }
}

#[cfg(test)]
#[path = "task_executor_tests.rs"]
mod tests;
