//! The ResourceManager by its messages, on a clock that stands still.

use super::*;
use crate::{
    base::ids::{AllocationId, SlotId},
    job_manager::leader_election::Contender,
    protocol::task_executor::SlotRequest,
};

struct Cluster {
    manager: ResourceManager,
    _job_master: Contender,
}

fn job() -> JobId {
    JobId::from_bytes([1; 16])
}

fn task_executor(number: u8) -> ResourceId {
    ResourceId(format!("tm-{number}"))
}

impl Cluster {
    /// A ResourceManager under session 1 and a JobMaster of job 1 under session 2.
    fn new() -> Self {
        let mut session = 0;
        let mut election = LeaderElection::with_sessions(Box::new(move || {
            session += 1;
            [session; 16]
        }));
        election.grant();
        drop(election.contend(Address::ResourceManager).unwrap());
        let contender = election.contend(Address::JobMaster(job())).unwrap();
        assert!(contender.confirm(Fence::JobMaster(job_master(2))));
        let config = ResourceManagerConfig {
            heartbeat_interval: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(50),
            job_timeout: Duration::from_secs(300),
        };
        let mut allocation = 0;
        let draw_allocation = Box::new(move || {
            allocation += 1;
            AllocationId::from_bytes([allocation; 16])
        });
        let mut manager = ResourceManager::new(manager_id(1), config, election, draw_allocation);
        assert_eq!(manager.on_start(Timestamp(0)), []);
        Self { manager, _job_master: contender }
    }

    fn send_as(&mut self, fence: Fence, message: ResourceManagerMessage, now: i64) -> Vec<Message> {
        let from = Address::TaskExecutor(task_executor(1));
        let message = Message::ResourceManager(message);
        let envelope = Envelope { from, to: Address::ResourceManager, fence, message };
        messages(self.manager.on_message(envelope, Timestamp(now)))
    }

    fn send(&mut self, message: ResourceManagerMessage, now: i64) -> Vec<Message> {
        self.send_as(Fence::ResourceManager(manager_id(1)), message, now)
    }

    fn register_task_executor(&mut self, number: u8, slots: usize, now: i64) -> Vec<Message> {
        let report = report(number, slots);
        let registration = TaskExecutorRegistration { report, cpu_cores: 2, memory_bytes: 1 << 30 };
        self.send_as(Fence::None, ResourceManagerMessage::RegisterTaskExecutor(registration), now)
    }

    fn register_job_master(&mut self, session: u8, now: i64) -> Vec<Message> {
        let registration = JobMasterRegistration { job: job(), job_master: job_master(session) };
        self.send_as(Fence::None, ResourceManagerMessage::RegisterJobMaster(registration), now)
    }

    fn declare(&mut self, count: u32, now: i64) -> Vec<Message> {
        let slots = vec![(None, count)];
        let required = RequiredSlots { job: job(), job_master: job_master(2), slots };
        self.send(ResourceManagerMessage::DeclareRequiredSlots(required), now)
    }

    /// Lets the time pass, deadline by deadline.
    fn run_until(&mut self, end: i64) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(deadline) = self.manager.next_deadline().filter(|deadline| deadline.0 <= end) {
            sent.extend(messages(self.manager.on_deadline(deadline)));
        }
        sent
    }

    fn list(&mut self, now: i64) -> Vec<(String, u32, u32)> {
        let sent = self.send(ResourceManagerMessage::RequestTaskExecutors(7), now);
        let Some(Message::Dispatcher(DispatcherMessage::TaskExecutors(7, list))) = sent.last() else {
            panic!("{sent:?}")
        };
        list.iter().map(|details| (details.id.0.clone(), details.slots, details.free_slots)).collect()
    }
}

fn manager_id(number: u8) -> ResourceManagerId {
    ResourceManagerId::from_bytes([number; 16])
}

fn job_master(number: u8) -> JobMasterId {
    JobMasterId::from_bytes([number; 16])
}

fn report(number: u8, slots: usize) -> SlotReport {
    SlotReport { task_executor: task_executor(number), slots: vec![None; slots] }
}

fn messages(envelopes: Vec<Envelope>) -> Vec<Message> {
    envelopes.into_iter().map(|envelope| envelope.message).collect()
}

fn to_job(message: JobMasterMessage) -> Message {
    Message::JobMaster(message)
}

fn slot_request(slot: u32, allocation: u8) -> Message {
    Message::TaskExecutor(TaskExecutorMessage::RequestSlot(SlotRequest {
        slot: SlotId { task_executor: task_executor(1), index: slot },
        job: job(),
        allocation: AllocationId::from_bytes([allocation; 16]),
        job_master: job_master(2),
    }))
}

#[test]
fn a_declared_need_is_met_at_once_and_later_ones_after_the_interval() {
    let mut cluster = Cluster::new();
    let registered = TaskExecutorMessage::RegisteredAtResourceManager(manager_id(1));
    assert_eq!(cluster.register_task_executor(1, 3, 0), [Message::TaskExecutor(registered)]);
    let registered = JobMasterMessage::RegisteredAtResourceManager(manager_id(1));
    assert_eq!(cluster.register_job_master(2, 60), [to_job(registered)]);
    assert_eq!(cluster.declare(1, 60), [slot_request(0, 1)]);
    assert_eq!(cluster.declare(2, 61), []);
    assert_eq!(cluster.run_until(110), [slot_request(1, 2)]);
}

#[test]
fn only_the_published_leader_of_a_job_is_registered() {
    let mut cluster = Cluster::new();
    let reason = format!("{} does not lead job {}", job_master(9), job());
    assert_eq!(cluster.register_job_master(9, 0), [to_job(JobMasterMessage::ResourceManagerRefused(reason))]);
    let reason = format!("{} is not registered for job {}: register first", job_master(2), job());
    assert_eq!(cluster.declare(1, 0), [to_job(JobMasterMessage::ResourceManagerRefused(reason))]);
}

#[test]
fn a_message_for_another_leadership_is_dropped_and_counted() {
    let mut cluster = Cluster::new();
    cluster.register_task_executor(1, 1, 0);
    let heartbeat = ResourceManagerMessage::TaskExecutorHeartbeat(report(1, 1));
    for fence in [Fence::None, Fence::ResourceManager(manager_id(2)), Fence::JobMaster(job_master(1))] {
        assert_eq!(cluster.send_as(fence, heartbeat.clone(), 0), []);
    }
    assert_eq!(cluster.manager.stale_messages(), 3);
}

#[test]
fn a_silent_task_executor_is_forgotten_after_the_timeout() {
    let mut cluster = Cluster::new();
    cluster.register_task_executor(1, 1, 0);
    cluster.register_task_executor(2, 1, 0);
    let heartbeat = Message::TaskExecutor(TaskExecutorMessage::ResourceManagerHeartbeat);
    assert_eq!(cluster.run_until(10_000), [heartbeat.clone(), heartbeat.clone()]);
    assert_eq!(cluster.send(ResourceManagerMessage::TaskExecutorHeartbeat(report(1, 1)), 10_001), []);
    cluster.run_until(49_999);
    assert_eq!(cluster.list(49_999), [("tm-1".to_owned(), 1, 1), ("tm-2".to_owned(), 1, 1)]);
    cluster.run_until(50_000);
    assert_eq!(cluster.list(50_000), [("tm-1".to_owned(), 1, 1)]);
    let refused = cluster.send(ResourceManagerMessage::TaskExecutorHeartbeat(report(2, 1)), 50_001);
    let reason = "this TaskExecutor is not registered: register again".to_owned();
    assert_eq!(refused, [Message::TaskExecutor(TaskExecutorMessage::ResourceManagerRefused(reason))]);
    cluster.run_until(60_001);
    assert_eq!(cluster.list(60_001), []);
}

#[test]
fn a_job_that_is_short_is_told_after_a_while_and_again() {
    let mut cluster = Cluster::new();
    cluster.register_task_executor(1, 1, 0);
    cluster.register_job_master(2, 100);
    assert_eq!(cluster.declare(3, 100), []);
    assert_eq!(cluster.run_until(5099), []);
    let told = to_job(JobMasterMessage::NotEnoughSlots(1));
    assert_eq!(cluster.run_until(5100), std::slice::from_ref(&told));
    let again: Vec<_> = cluster.run_until(10_100).into_iter().filter(|message| *message == told).collect();
    assert_eq!(again.len(), 1);
    let sent = cluster.register_task_executor(2, 2, 10_200);
    let is_request = |message: &&Message| matches!(message, Message::TaskExecutor(TaskExecutorMessage::RequestSlot(_)));
    assert_eq!(sent.iter().filter(is_request).count(), 3, "{sent:?}");
    let sent = cluster.run_until(40_000);
    assert!(!sent.contains(&told), "{sent:?}");
}

#[test]
fn a_job_without_job_master_is_forgotten_after_its_timeout() {
    let mut cluster = Cluster::new();
    cluster.register_job_master(2, 0);
    cluster.declare(1, 0);
    cluster.run_until(349_999);
    assert!(cluster.manager.jobs.contains_key(&job()));
    cluster.run_until(350_000);
    assert!(!cluster.manager.jobs.contains_key(&job()));
    cluster.register_task_executor(1, 1, 350_001);
    let sent = cluster.run_until(355_000);
    assert!(!sent.contains(&slot_request(0, 1)), "{sent:?}");
}

#[test]
fn a_job_that_ended_needs_nothing() {
    let mut cluster = Cluster::new();
    cluster.register_job_master(2, 0);
    cluster.declare(1, 0);
    cluster.send(ResourceManagerMessage::DisconnectJobMaster(job(), job_master(3)), 100);
    assert!(cluster.manager.jobs.contains_key(&job()));
    cluster.send(ResourceManagerMessage::DisconnectJobMaster(job(), job_master(2)), 100);
    cluster.register_task_executor(1, 1, 200);
    assert_eq!(cluster.run_until(9_000), []);
}
