//! Knows the TaskExecutors and the JobMasters, and has the [`SlotManager`] match the
//! slots of the ones to the needs of the others.
//!
//! Receives [`ResourceManagerMessage`]; registers peers, keeps them by heartbeats and
//! forgets the silent ones. All that it knows is reported to it, so a new leader starts
//! with nothing and is told again.
//!
//! Invariants: every message but a registration carries this leadership's id, which is
//! checked in [`ResourceManager::is_fenced_off`] alone; a JobMaster is registered only
//! under the session that the election has published for its job.

pub mod slot_manager;

use std::{collections::BTreeMap, time::Duration};

use slot_manager::{AllocationSource, CheckResult, SlotManager};

use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, options},
        ids::{JobId, JobMasterId, ResourceId, ResourceManagerId},
    },
    job_manager::leader_election::LeaderElection,
    protocol::{
        dispatcher::DispatcherMessage,
        job_details::TaskExecutorDetails,
        job_master::JobMasterMessage,
        resource_manager::{
            JobMasterRegistration, RequiredSlots, ResourceManagerMessage, SlotReport, TaskExecutorRegistration,
        },
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::TaskExecutorMessage,
    },
};

/// Time between two checks of what is needed; the first after a pause is made at once.
const CHECK_INTERVAL: Duration = Duration::from_millis(2);
/// How long a job may be short of slots before it is told, so that TaskExecutors that
/// are starting have time to register; and how often it is told again.
const NOT_ENOUGH_SLOTS_DELAY: Duration = Duration::from_secs(5);

/// What a ResourceManager takes from the configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ResourceManagerConfig {
    /// Time between two heartbeats.
    pub heartbeat_interval: Duration,
    /// Silence after which a peer counts as lost.
    pub heartbeat_timeout: Duration,
    /// Time after which a job without JobMaster is forgotten.
    pub job_timeout: Duration,
}

impl ResourceManagerConfig {
    /// Takes over the settings.
    pub fn from_configuration(configuration: &Configuration) -> Self {
        Self {
            heartbeat_interval: configuration.get(&options::HEARTBEAT_INTERVAL),
            heartbeat_timeout: configuration.get(&options::HEARTBEAT_TIMEOUT),
            job_timeout: configuration.get(&options::RESOURCE_MANAGER_JOB_TIMEOUT),
        }
    }
}

#[derive(Debug)]
struct RegisteredTaskExecutor {
    cpu_cores: u32,
    memory_bytes: u64,
    last_heartbeat: Timestamp,
}

#[derive(Debug)]
struct RegisteredJob {
    job_master: JobMasterId,
    connection: JobMasterConnection,
    /// Since when it has been short of slots, or was last told so.
    short_since: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum JobMasterConnection {
    Connected { last_heartbeat: Timestamp },
    Lost { since: Timestamp },
}

/// The component. See the module's documentation.
pub struct ResourceManager {
    id: ResourceManagerId,
    config: ResourceManagerConfig,
    election: LeaderElection,
    slot_manager: SlotManager,
    task_executors: BTreeMap<ResourceId, RegisteredTaskExecutor>,
    jobs: BTreeMap<JobId, RegisteredJob>,
    next_heartbeat: Timestamp,
    /// When slots were last matched, and whether something has changed since.
    last_check: Timestamp,
    is_check_due: bool,
    stale_messages: u64,
}

impl ResourceManager {
    /// Makes the component for a leadership. `election` tells which JobMasters lead.
    pub fn new(
        id: ResourceManagerId,
        config: ResourceManagerConfig,
        election: LeaderElection,
        draw_allocation: AllocationSource,
    ) -> Self {
        Self {
            id,
            config,
            election,
            slot_manager: SlotManager::new(draw_allocation),
            task_executors: BTreeMap::new(),
            jobs: BTreeMap::new(),
            next_heartbeat: Timestamp::MAX,
            last_check: Timestamp::MIN,
            is_check_due: false,
            stale_messages: 0,
        }
    }

    /// Number of messages that were dropped since they were meant for another leadership.
    pub fn stale_messages(&self) -> u64 {
        self.stale_messages
    }

    /// Number of free slots by TaskExecutor.
    #[cfg(test)]
    pub(crate) fn free_slots(&self) -> BTreeMap<ResourceId, u32> {
        let free = |id: &ResourceId| {
            let (slots, allocated) = self.slot_manager.slots_of(id);
            slots - allocated.len() as u32
        };
        self.task_executors.keys().map(|id| (id.clone(), free(id))).collect()
    }

    /// True for a message of another leadership.
    fn is_fenced_off(&self, envelope: &Envelope) -> bool {
        match &envelope.message {
            Message::ResourceManager(
                ResourceManagerMessage::RegisterTaskExecutor(_) | ResourceManagerMessage::RegisterJobMaster(_),
            ) => false,
            Message::ResourceManager(_) => envelope.fence != Fence::ResourceManager(self.id),
            Message::Dispatcher(_) | Message::JobMaster(_) | Message::TaskExecutor(_) | Message::Client(..) => true,
        }
    }

    fn handle(&mut self, from: Address, message: ResourceManagerMessage, now: Timestamp) -> Vec<Envelope> {
        match message {
            ResourceManagerMessage::RegisterTaskExecutor(registration) => {
                self.register_task_executor(registration, now)
            }
            ResourceManagerMessage::RegisterJobMaster(registration) => self.register_job_master(registration, now),
            ResourceManagerMessage::DeclareRequiredSlots(required) => self.declare_required_slots(required),
            ResourceManagerMessage::SlotAllocated(slot, allocation) => {
                self.slot_manager.allocated(&slot, allocation);
                self.sign_of_life(&slot.task_executor, now);
                Vec::new()
            }
            ResourceManagerMessage::SlotRefused(slot, allocation, reason) => {
                tracing::debug!(?slot, %allocation, reason, "a TaskExecutor refused a slot request");
                self.slot_manager.refused(&slot, allocation);
                self.sign_of_life(&slot.task_executor, now);
                Vec::new()
            }
            ResourceManagerMessage::SlotAvailable(slot, allocation) => {
                self.slot_manager.available(&slot, allocation);
                self.sign_of_life(&slot.task_executor, now);
                self.is_check_due = true;
                Vec::new()
            }
            ResourceManagerMessage::TaskExecutorHeartbeat(report) => self.task_executor_heartbeat(report, now),
            ResourceManagerMessage::JobMasterHeartbeat(job) => {
                self.job_master_heartbeat(job, now);
                Vec::new()
            }
            ResourceManagerMessage::DisconnectJobMaster(job, job_master) => {
                self.disconnect_job_master(job, job_master);
                Vec::new()
            }
            ResourceManagerMessage::DisconnectTaskExecutor(id, reason) => {
                self.lose_task_executor(&id, &reason);
                Vec::new()
            }
            ResourceManagerMessage::RequestTaskExecutors(number) => vec![self.task_executor_list(from, number)],
        }
    }

    fn register_task_executor(&mut self, registration: TaskExecutorRegistration, now: Timestamp) -> Vec<Envelope> {
        let TaskExecutorRegistration { report, cpu_cores, memory_bytes } = registration;
        let id = report.task_executor.clone();
        self.slot_manager.register(&report, cpu_cores, memory_bytes);
        self.task_executors
            .insert(id.clone(), RegisteredTaskExecutor { cpu_cores, memory_bytes, last_heartbeat: now });
        self.is_check_due = true;
        vec![self.to_task_executor(id, TaskExecutorMessage::RegisteredAtResourceManager(self.id))]
    }

    fn register_job_master(&mut self, registration: JobMasterRegistration, now: Timestamp) -> Vec<Envelope> {
        let JobMasterRegistration { job, job_master } = registration;
        if self.election.leader(&Address::JobMaster(job)) != Some(Fence::JobMaster(job_master)) {
            let reason = format!("{job_master} does not lead job {job}");
            let message = JobMasterMessage::ResourceManagerRefused(reason);
            return vec![to_job_master(job, job_master, message)];
        }
        let connection = JobMasterConnection::Connected { last_heartbeat: now };
        match self.jobs.get_mut(&job) {
            Some(registered) if registered.job_master == job_master => registered.connection = connection,
            Some(_) | None => {
                // What a former leader declared is not this one's need.
                self.slot_manager.forget(job);
                self.jobs.insert(job, RegisteredJob { job_master, connection, short_since: None });
            }
        }
        vec![to_job_master(job, job_master, JobMasterMessage::RegisteredAtResourceManager(self.id))]
    }

    fn declare_required_slots(&mut self, required: RequiredSlots) -> Vec<Envelope> {
        let RequiredSlots { job, job_master, slots } = required;
        match self.jobs.get(&job) {
            Some(registered) if registered.job_master == job_master => {
                self.slot_manager.declare(job, job_master, &slots);
                self.is_check_due = true;
                Vec::new()
            }
            Some(_) | None => {
                let reason = format!("{job_master} is not registered for job {job}: register first");
                vec![to_job_master(job, job_master, JobMasterMessage::ResourceManagerRefused(reason))]
            }
        }
    }

    fn task_executor_heartbeat(&mut self, report: SlotReport, now: Timestamp) -> Vec<Envelope> {
        if !self.sign_of_life(&report.task_executor, now) {
            let reason = "this TaskExecutor is not registered: register again".to_owned();
            let message = TaskExecutorMessage::ResourceManagerRefused(reason);
            return vec![self.to_task_executor(report.task_executor, message)];
        }
        self.slot_manager.update(&report);
        self.is_check_due = true;
        Vec::new()
    }

    /// Notes that a TaskExecutor lives, and says whether it is registered.
    fn sign_of_life(&mut self, id: &ResourceId, now: Timestamp) -> bool {
        let registered = self.task_executors.get_mut(id);
        registered.map(|registered| registered.last_heartbeat = now).is_some()
    }

    fn job_master_heartbeat(&mut self, job: JobId, now: Timestamp) {
        if let Some(registered) = self.jobs.get_mut(&job) {
            registered.connection = JobMasterConnection::Connected { last_heartbeat: now };
        }
    }

    fn disconnect_job_master(&mut self, job: JobId, job_master: JobMasterId) {
        if self.jobs.get(&job).is_some_and(|registered| registered.job_master == job_master) {
            self.forget_job(job);
        }
    }

    fn forget_job(&mut self, job: JobId) {
        self.jobs.remove(&job);
        self.slot_manager.forget(job);
        self.is_check_due = true;
    }

    fn lose_task_executor(&mut self, id: &ResourceId, reason: &str) {
        if self.task_executors.remove(id).is_some() {
            tracing::info!(%id, reason, "a TaskExecutor is gone");
            self.slot_manager.unregister(id);
            self.is_check_due = true;
        }
    }

    fn task_executor_list(&self, to: Address, number: u64) -> Envelope {
        let list = self.task_executors.iter().map(|(id, registered)| {
            let (slots, allocated) = self.slot_manager.slots_of(id);
            TaskExecutorDetails {
                id: id.clone(),
                slots,
                free_slots: slots - allocated.len() as u32,
                allocated,
                last_heartbeat: registered.last_heartbeat,
                cpu_cores: registered.cpu_cores,
                memory_bytes: registered.memory_bytes,
            }
        });
        let message = Message::Dispatcher(DispatcherMessage::TaskExecutors(number, list.collect()));
        Envelope { from: Address::ResourceManager, to, fence: Fence::None, message }
    }

    fn next_check(&self) -> Option<Timestamp> {
        let changed = self.is_check_due.then(|| self.last_check.plus(CHECK_INTERVAL));
        let told_again = self.jobs.values().filter_map(|job| job.short_since?.plus(NOT_ENOUGH_SLOTS_DELAY).into());
        changed.into_iter().chain(self.slot_manager.next_deadline()).chain(told_again).min()
    }

    fn check_slots_when_due(&mut self, now: Timestamp) -> Vec<Envelope> {
        if self.next_check().is_none_or(|due| now < due) {
            return Vec::new();
        }
        self.last_check = now;
        self.is_check_due = false;
        let CheckResult { requests, short } = self.slot_manager.check(now);
        let mut envelopes: Vec<_> = requests
            .into_iter()
            .map(|request| {
                let id = request.slot.task_executor.clone();
                self.to_task_executor(id, TaskExecutorMessage::RequestSlot(request))
            })
            .collect();
        let short: BTreeMap<JobId, u32> = short.into_iter().collect();
        for (job, registered) in &mut self.jobs {
            let Some(available) = short.get(job) else {
                registered.short_since = None;
                continue;
            };
            let since = *registered.short_since.get_or_insert(now);
            if since.plus(NOT_ENOUGH_SLOTS_DELAY) <= now {
                registered.short_since = Some(now);
                let message = JobMasterMessage::NotEnoughSlots(*available);
                envelopes.push(to_job_master(*job, registered.job_master, message));
            }
        }
        envelopes
    }

    fn send_heartbeats(&self) -> Vec<Envelope> {
        let to_task_executors = self
            .task_executors
            .keys()
            .map(|id| self.to_task_executor(id.clone(), TaskExecutorMessage::ResourceManagerHeartbeat));
        let to_job_masters = self.jobs.iter().map(|(job, registered)| {
            to_job_master(*job, registered.job_master, JobMasterMessage::ResourceManagerHeartbeat)
        });
        to_task_executors.chain(to_job_masters).collect()
    }

    fn expire(&mut self, now: Timestamp) {
        let timeout = self.config.heartbeat_timeout;
        let silent = self.task_executors.iter().filter(|(_, known)| known.last_heartbeat.plus(timeout) <= now);
        for id in silent.map(|(id, _)| id.clone()).collect::<Vec<_>>() {
            self.lose_task_executor(&id, "it sent no heartbeat");
        }
        let job_timeout = self.config.job_timeout;
        let mut forgotten = Vec::new();
        for (job, registered) in &mut self.jobs {
            match registered.connection {
                JobMasterConnection::Connected { last_heartbeat } if last_heartbeat.plus(timeout) <= now => {
                    tracing::info!(%job, "the JobMaster sent no heartbeat");
                    registered.connection = JobMasterConnection::Lost { since: now };
                }
                JobMasterConnection::Lost { since } if since.plus(job_timeout) <= now => forgotten.push(*job),
                JobMasterConnection::Connected { .. } | JobMasterConnection::Lost { .. } => {}
            }
        }
        for job in forgotten {
            self.forget_job(job);
        }
    }

    fn next_expiry(&self) -> Option<Timestamp> {
        let timeout = self.config.heartbeat_timeout;
        let task_executors = self.task_executors.values().map(|known| known.last_heartbeat.plus(timeout));
        let jobs = self.jobs.values().map(|registered| match registered.connection {
            JobMasterConnection::Connected { last_heartbeat } => last_heartbeat.plus(timeout),
            JobMasterConnection::Lost { since } => since.plus(self.config.job_timeout),
        });
        task_executors.chain(jobs).min()
    }

    fn to_task_executor(&self, id: ResourceId, message: TaskExecutorMessage) -> Envelope {
        Envelope {
            from: Address::ResourceManager,
            to: Address::TaskExecutor(id),
            fence: Fence::ResourceManager(self.id),
            message: Message::TaskExecutor(message),
        }
    }
}

fn to_job_master(job: JobId, job_master: JobMasterId, message: JobMasterMessage) -> Envelope {
    Envelope {
        from: Address::ResourceManager,
        to: Address::JobMaster(job),
        fence: Fence::JobMaster(job_master),
        message: Message::JobMaster(message),
    }
}

impl Endpoint for ResourceManager {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.next_heartbeat = now.plus(self.config.heartbeat_interval);
        Vec::new()
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        if self.is_fenced_off(&envelope) {
            self.stale_messages += 1;
            tracing::debug!(from = %envelope.from, "a message of another leadership was dropped");
            return Vec::new();
        }
        let Message::ResourceManager(message) = envelope.message else { return Vec::new() };
        let mut envelopes = self.handle(envelope.from, message, now);
        envelopes.extend(self.check_slots_when_due(now));
        envelopes
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.expire(now);
        let mut envelopes = Vec::new();
        if self.next_heartbeat <= now {
            self.next_heartbeat = now.plus(self.config.heartbeat_interval);
            envelopes = self.send_heartbeats();
        }
        envelopes.extend(self.check_slots_when_due(now));
        envelopes
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.next_check().into_iter().chain(self.next_expiry()).chain([self.next_heartbeat]).min()
    }

    fn is_terminated(&self) -> bool {
        // It ends with its queue: nothing is left to do by then.
        false
    }
}

#[cfg(test)]
mod tests;
