//! The TaskExecutor by its messages, on a clock that stands still.

use super::*;
use crate::{
    base::ids::{BlobDigest, ExecutionGraphId, ExecutionVertexId, GraphDigest, JobVertexId},
    connector::SplitAssignment,
    graph::job_graph::{Grants, ProgramSpec},
    protocol::{
        job_master::{MaxAllowedWatermark, Recoverability, SplitRequest, WatermarkReport},
        task_executor::TriggerCheckpoint,
    },
};

/// What tasks were told, as text.
type Told = Arc<Mutex<Vec<String>>>;

struct Recorder {
    attempt: u32,
    told: Told,
}

impl RunningTask for Recorder {
    fn trigger_checkpoint(&self, trigger: TriggerCheckpoint) {
        self.told.lock().unwrap().push(format!("trigger {} of {}", trigger.checkpoint_id, self.attempt));
    }

    fn notify_checkpoint_complete(&self, checkpoint_id: CheckpointId) {
        self.told.lock().unwrap().push(format!("{checkpoint_id} is complete, {}", self.attempt));
    }

    fn notify_checkpoint_aborted(&self, checkpoint_id: CheckpointId) {
        self.told.lock().unwrap().push(format!("{checkpoint_id} was given up, {}", self.attempt));
    }

    fn cancel(&self) {
        self.told.lock().unwrap().push(format!("cancel {}", self.attempt));
    }

    fn split_assigned(&self, answer: SplitAnswer) {
        self.told.lock().unwrap().push(format!("split {} {:?}", self.attempt, answer.assignment));
    }

    fn align_watermark(&self, max_allowed: MaxAllowedWatermark) {
        self.told.lock().unwrap().push(format!("align {} {}", self.attempt, max_allowed.watermark));
    }

    fn metrics(&self) -> TaskMetrics {
        TaskMetrics { records_in: u64::from(self.attempt), ..TaskMetrics::default() }
    }

    fn fail(&self, reason: &str) {
        self.told.lock().unwrap().push(format!("fail {}: {reason}", self.attempt));
    }
}

struct Executor {
    executor: TaskExecutor,
    sink: TaskEventSink,
    told: Told,
    /// Jobs that the TaskExecutor has left.
    left: Arc<Mutex<Vec<JobId>>>,
    wakes: Arc<Mutex<u32>>,
    now: i64,
}

fn id() -> ResourceId {
    ResourceId("tm".to_owned())
}

fn manager(number: u8) -> ResourceManagerId {
    ResourceManagerId::from_bytes([number; 16])
}

fn leader(number: u8) -> JobMasterId {
    JobMasterId::from_bytes([number; 16])
}

fn job(number: u8) -> JobId {
    JobId::from_bytes([number; 16])
}

fn allocation(number: u8) -> AllocationId {
    AllocationId::from_bytes([number; 16])
}

fn slot(index: u32) -> SlotId {
    SlotId { task_executor: id(), index }
}

fn attempt(number: u32) -> ExecutionAttemptId {
    ExecutionAttemptId {
        graph: ExecutionGraphId::from_bytes([1; 16]),
        execution_vertex: ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: 0 },
        attempt_number: number,
    }
}

fn update(number: u32, state: TaskState) -> TaskExecutionStateUpdate {
    TaskExecutionStateUpdate { state, ..never_started(attempt(number), None) }
}

fn information(number: u8) -> TaskExecutorMessage {
    TaskExecutorMessage::JobInformation(Box::new(JobInformation {
        job: job(number),
        job_name: "words".to_owned(),
        configuration: Configuration::default(),
        program: ProgramSpec {
            plugin: BlobDigest::from_bytes([0; 32]),
            plugin_name: "words.wasm".to_owned(),
            args: Vec::new(),
            graph_digest: GraphDigest::from_bytes([0; 32]),
        },
        grants: Grants::default(),
        artifacts: Vec::new(),
        vertices: Vec::new(),
    }))
}

fn deployment(number: u32, allocation_number: u8) -> TaskExecutorMessage {
    TaskExecutorMessage::SubmitTask(TaskDeployment {
        restore: None,
        job: job(1),
        attempt: attempt(number),
        vertex: JobVertexId::from_bytes([1; 16]),
        allocation: allocation(allocation_number),
        partitions: Vec::new(),
        gates: Vec::new(),
    })
}

fn offer(slots: &[(u8, u32)]) -> JobMasterMessage {
    let offers = slots.iter().map(|(number, index)| SlotOffer { allocation: allocation(*number), slot: slot(*index) });
    JobMasterMessage::OfferSlots(SlotOffers { task_executor: id(), offers: offers.collect() })
}

impl Executor {
    /// With two slots, registered at ResourceManager 1. Attempt 99 cannot be started.
    fn registered() -> Self {
        let mut executor = Self::started();
        let sent = executor.manager_says(1, TaskExecutorMessage::RegisteredAtResourceManager(manager(1)));
        assert_eq!(sent, []);
        executor
    }

    fn started() -> Self {
        let (told, wakes) = (Told::default(), Arc::<Mutex<u32>>::default());
        let left = Arc::<Mutex<Vec<JobId>>>::default();
        let events = TaskEventQueue::new(Box::new({
            let wakes = Arc::clone(&wakes);
            move || *wakes.lock().unwrap() += 1
        }));
        let start = {
            let told = Arc::clone(&told);
            move |_: Arc<JobInformation>, deployment: TaskDeployment| -> Result<Box<dyn RunningTask>, FailureCause> {
                match deployment.attempt.attempt_number {
                    99 => Err(FailureCause {
                        code: "test".to_owned(),
                        message: "no thread".to_owned(),
                        detail: String::new(),
                        recoverability: Recoverability::Recoverable,
                    }),
                    attempt => Ok(Box::new(Recorder { attempt, told: Arc::clone(&told) })),
                }
            }
        };
        let job_left = {
            let left = Arc::clone(&left);
            move |job: JobId| left.lock().unwrap().push(job)
        };
        let starter = TaskStarter { start: Box::new(start), job_left: Box::new(job_left) };
        let config =
            TaskExecutorConfig { slots: 2, ..TaskExecutorConfig::from_configuration(id(), &Configuration::default()) };
        let sink = events.sink();
        let mut executor = TaskExecutor::new(config, starter, events);
        let sent = executor.on_start(Timestamp(0));
        assert_eq!(sent.len(), 1);
        Self { executor, sink, told, left, wakes, now: 0 }
    }

    /// Registered, with slot 0 for job 1 under leader 1 and allocation 1, taken.
    fn with_slot() -> Self {
        let mut executor = Self::registered();
        executor.request_slot(0, 1, 1, 1);
        assert_eq!(executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![allocation(1)])), []);
        executor
    }

    /// Also with attempt 0 running there.
    fn with_task() -> Self {
        let mut executor = Self::with_slot();
        assert_eq!(executor.leader_says(1, information(1)), []);
        assert_eq!(executor.leader_says(1, deployment(0, 1)), []);
        executor
    }

    fn send(&mut self, from: Address, fence: Fence, message: TaskExecutorMessage) -> Vec<Message> {
        let to = Address::TaskExecutor(id());
        let envelope = Envelope { from, to, fence, message: Message::TaskExecutor(message) };
        messages(self.executor.on_message(envelope, Timestamp(self.now)))
    }

    fn manager_says(&mut self, number: u8, message: TaskExecutorMessage) -> Vec<Message> {
        self.send(Address::ResourceManager, Fence::ResourceManager(manager(number)), message)
    }

    fn leader_says(&mut self, number: u8, message: TaskExecutorMessage) -> Vec<Message> {
        self.send(Address::JobMaster(job(1)), Fence::JobMaster(leader(number)), message)
    }

    fn says_itself(&mut self, message: TaskExecutorMessage) -> Vec<Message> {
        self.send(Address::TaskExecutor(id()), Fence::None, message)
    }

    fn request_slot(&mut self, index: u32, job_number: u8, allocation_number: u8, leader_number: u8) -> Vec<Message> {
        let request = SlotRequest {
            slot: slot(index),
            job: job(job_number),
            allocation: allocation(allocation_number),
            job_master: leader(leader_number),
        };
        self.manager_says(1, TaskExecutorMessage::RequestSlot(request))
    }

    /// Lets the time pass, deadline by deadline, and returns what was sent.
    fn run_until(&mut self, end: i64) -> Vec<Message> {
        let mut sent = Vec::new();
        while let Some(deadline) = self.executor.next_deadline().filter(|deadline| deadline.0 <= end) {
            assert!(!self.executor.is_terminated());
            self.now = self.now.max(deadline.0);
            sent.extend(messages(self.executor.on_deadline(Timestamp(self.now))));
            if self.executor.is_terminated() {
                break;
            }
        }
        self.now = end;
        sent
    }

    /// A task's thread leaves an event, and the loop is woken.
    fn event(&mut self, event: TaskEvent) -> Vec<Message> {
        (self.sink)(event);
        self.says_itself(TaskExecutorMessage::TaskEventsWaiting)
    }

    fn told(&self) -> Vec<String> {
        mem::take(&mut *self.told.lock().unwrap())
    }

    /// Job of each slot.
    fn owners(&self) -> Vec<Option<JobId>> {
        self.executor.slots().iter().map(|slot| slot.map(|(job, _)| job)).collect()
    }
}

fn messages(envelopes: Vec<Envelope>) -> Vec<Message> {
    envelopes.into_iter().map(|envelope| envelope.message).collect()
}

fn to_manager(message: ResourceManagerMessage) -> Message {
    Message::ResourceManager(message)
}

fn to_leader(message: JobMasterMessage) -> Message {
    Message::JobMaster(message)
}

fn available(index: u32, number: u8) -> Message {
    to_manager(ResourceManagerMessage::SlotAvailable(slot(index), allocation(number)))
}

fn registrations(sent: &[Message]) -> usize {
    let is_registration = |message: &&Message| {
        matches!(message, Message::ResourceManager(ResourceManagerMessage::RegisterTaskExecutor(_)))
    };
    sent.iter().filter(is_registration).count()
}

#[test]
fn a_registration_is_repeated_ever_more_rarely_and_given_up_in_time() {
    let mut executor = Executor::started();
    // After 0.1, 0.3, 0.7, 1.5, 3.1, 6.3, 12.7, 25.5 and 51.1 s, then every 30 s.
    assert_eq!(registrations(&executor.run_until(51_100)), 9);
    assert_eq!(registrations(&executor.run_until(81_099)), 0);
    assert_eq!(registrations(&executor.run_until(81_100)), 1);
    executor.run_until(299_999);
    assert!(!executor.executor.is_terminated());
    executor.run_until(300_000);
    assert!(executor.executor.is_terminated());
}

#[test]
fn a_refused_registration_pauses() {
    let mut executor = Executor::started();
    executor.manager_says(1, TaskExecutorMessage::ResourceManagerRefused("no".to_owned()));
    assert_eq!(executor.executor.next_deadline(), Some(Timestamp(30_000)));
}

#[test]
fn a_silent_or_new_resource_manager_is_registered_at_and_tasks_go_on() {
    let mut executor = Executor::with_task();
    executor.run_until(49_000);
    executor.leader_says(1, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
    assert_eq!(registrations(&executor.run_until(49_999)), 0);
    assert_eq!(registrations(&executor.run_until(50_000)), 1);
    executor.manager_says(2, TaskExecutorMessage::RegisteredAtResourceManager(manager(2)));
    assert_eq!(executor.says_itself(TaskExecutorMessage::ResourceManagerLeader(manager(2))), []);
    let sent = executor.says_itself(TaskExecutorMessage::ResourceManagerLeader(manager(3)));
    assert_eq!(registrations(&sent), 1);
    assert_eq!(executor.told(), [""; 0]);
    assert_eq!(executor.owners(), [Some(job(1)), None]);
}

#[test]
fn a_requested_slot_is_offered_until_it_is_answered() {
    let mut executor = Executor::registered();
    let allocated = to_manager(ResourceManagerMessage::SlotAllocated(slot(0), allocation(1)));
    let register = to_leader(JobMasterMessage::RegisterTaskExecutor(id()));
    let sent = executor.request_slot(0, 1, 1, 1);
    assert_eq!(sent, [allocated.clone(), register.clone(), to_leader(offer(&[(1, 0)]))]);
    // The same request again is answered and not offered again.
    assert_eq!(executor.request_slot(0, 1, 1, 1), [allocated]);
    let again = [register, to_leader(offer(&[(1, 0)]))];
    assert_eq!(executor.run_until(499), []);
    assert_eq!(executor.run_until(500), again);
    assert_eq!(executor.run_until(1500), again);
    executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![allocation(1)]));
    assert_eq!(executor.run_until(9000), []);
}

#[test]
fn a_slot_that_is_taken_is_refused_to_others() {
    let mut executor = Executor::with_slot();
    let sent = executor.request_slot(0, 2, 2, 2);
    let reason = format!("slot 0 is allocated to job {}", job(1));
    assert_eq!(sent, [to_manager(ResourceManagerMessage::SlotRefused(slot(0), allocation(2), reason))]);
}

#[test]
fn offers_that_the_only_answer_leaves_out_are_free() {
    let mut executor = Executor::registered();
    executor.request_slot(0, 1, 1, 1);
    executor.request_slot(1, 1, 2, 1);
    // The first of two answers says nothing about the second slot.
    assert_eq!(executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![allocation(1)])), []);
    assert_eq!(executor.owners(), [Some(job(1)), Some(job(1))]);
    let sent = executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![]));
    assert_eq!(sent, [available(1, 2)]);
    assert_eq!(executor.owners(), [Some(job(1)), None]);
}

#[test]
fn a_slot_that_nobody_takes_expires() {
    let mut executor = Executor::registered();
    executor.request_slot(0, 1, 1, 1);
    assert!(!executor.run_until(9_999).contains(&available(0, 1)));
    assert_eq!(executor.run_until(10_000), [available(0, 1)]);
}

#[test]
fn an_unused_slot_is_offered_again_and_given_up_if_nobody_knows_it() {
    let mut executor = Executor::with_slot();
    assert_eq!(executor.run_until(9_999), []);
    assert_eq!(executor.run_until(10_000), [to_leader(offer(&[(1, 0)]))]);
    executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![allocation(1)]));
    assert_eq!(executor.run_until(20_000), [to_leader(offer(&[(1, 0)]))]);
    let sent = executor.leader_says(1, TaskExecutorMessage::AcceptSlots(job(1), vec![]));
    assert_eq!(sent, [available(0, 1)]);
}

#[track_caller]
fn check_refusal(executor: &mut Executor, leader_number: u8, message: TaskExecutorMessage, reason: &str) {
    let TaskExecutorMessage::SubmitTask(deployment) = &message else { panic!("{message:?}") };
    let attempt = deployment.attempt;
    let sent = executor.leader_says(leader_number, message);
    assert_eq!(sent, [to_leader(JobMasterMessage::TaskRefused(attempt, reason.to_owned()))]);
}

#[test]
fn a_task_is_refused_where_it_may_not_run() {
    let mut executor = Executor::registered();
    let job_1 = job(1);
    let reason = format!("it has no connection to a JobMaster of job {job_1}");
    check_refusal(&mut executor, 1, deployment(0, 1), &reason);

    let mut executor = Executor::with_slot();
    check_refusal(&mut executor, 2, deployment(0, 1), &format!("job {job_1} is led by {}", leader(1)));
    let reason = format!("it was not told what the tasks of job {job_1} share");
    check_refusal(&mut executor, 1, deployment(0, 1), &reason);
    executor.leader_says(1, information(1));
    let reason = format!("allocation {} is no slot of job {job_1}", allocation(2));
    check_refusal(&mut executor, 1, deployment(0, 2), &reason);
    assert_eq!(executor.leader_says(1, deployment(0, 1)), []);
    check_refusal(&mut executor, 1, deployment(0, 1), "it has this attempt already");
}

#[test]
fn a_task_that_cannot_be_started_has_failed() {
    let mut executor = Executor::with_slot();
    executor.leader_says(1, information(1));
    let sent = executor.leader_says(1, deployment(99, 1));
    let [Message::JobMaster(JobMasterMessage::UpdateTaskExecutionState(update))] = &sent[..] else {
        panic!("{sent:?}")
    };
    assert_eq!((update.attempt, update.state), (attempt(99), TaskState::Failed));
    assert_eq!(update.cause.as_ref().unwrap().message, "no thread");
    let sent = executor.leader_says(1, TaskExecutorMessage::FreeSlot(allocation(1), "failed".to_owned()));
    assert_eq!(sent, [available(0, 1)]);
}

#[test]
fn events_reach_the_job_master_in_their_order_and_wake_the_loop_once() {
    let mut executor = Executor::with_task();
    let request = SplitRequest { attempt: attempt(0), node: 3 };
    (executor.sink)(TaskEvent::StateChanged(update(0, TaskState::Initializing)));
    (executor.sink)(TaskEvent::StateChanged(update(0, TaskState::Running)));
    (executor.sink)(TaskEvent::RequestSplit(request));
    assert_eq!(*executor.wakes.lock().unwrap(), 1);
    // Any message makes the loop look.
    let sent = executor.leader_says(9, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
    assert_eq!(
        sent,
        [
            to_leader(JobMasterMessage::UpdateTaskExecutionState(update(0, TaskState::Initializing))),
            to_leader(JobMasterMessage::UpdateTaskExecutionState(update(0, TaskState::Running))),
            to_leader(JobMasterMessage::RequestSplit(request)),
        ]
    );
    let answer = SplitAnswer { attempt: attempt(0), node: 3, assignment: SplitAssignment::NoMoreSplits };
    executor.leader_says(1, TaskExecutorMessage::SplitAssigned(answer));
    assert_eq!(executor.told(), ["split 0 NoMoreSplits"]);
    executor.event(TaskEvent::RequestSplit(request));
    assert_eq!(*executor.wakes.lock().unwrap(), 2);
}

#[test]
fn watermarks_are_reported_and_answered_and_only_the_last_one_counts() {
    let mut executor = Executor::with_task();
    let report = |watermark| WatermarkReport { attempt: attempt(0), node: 3, watermark: Timestamp(watermark) };
    (executor.sink)(TaskEvent::ReportWatermark(report(1)));
    (executor.sink)(TaskEvent::ReportWatermark(report(2)));
    let sent = executor.leader_says(9, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
    assert_eq!(sent, [to_leader(JobMasterMessage::ReportWatermark(report(2)))]);
    let answer = MaxAllowedWatermark { attempt: attempt(0), node: 3, watermark: Timestamp(7) };
    executor.leader_says(9, TaskExecutorMessage::AlignWatermark(answer));
    assert_eq!(executor.told(), [""; 0], "a message of another leader");
    executor.leader_says(1, TaskExecutorMessage::AlignWatermark(answer));
    assert_eq!(executor.told(), ["align 0 7"]);
}

#[test]
fn the_end_of_a_task_is_reported_until_the_job_master_is_done_with_it() {
    let mut executor = Executor::with_task();
    let finished = to_leader(JobMasterMessage::UpdateTaskExecutionState(update(0, TaskState::Finished)));
    let sent = executor.event(TaskEvent::StateChanged(update(0, TaskState::Finished)));
    assert_eq!(sent, std::slice::from_ref(&finished));
    let heartbeat = TaskExecutorHeartbeat { task_executor: id(), tasks: vec![(attempt(0), TaskMetrics::default())] };
    let heartbeat = to_leader(JobMasterMessage::TaskExecutorHeartbeat(heartbeat));
    for _ in 0..2 {
        let sent = executor.leader_says(1, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
        assert_eq!(sent, [finished.clone(), heartbeat.clone()]);
    }
    assert_eq!(executor.leader_says(1, TaskExecutorMessage::CancelTask(attempt(0))), [finished]);
    assert_eq!(executor.leader_says(1, TaskExecutorMessage::AttemptUnknown(attempt(0))), []);
    assert_eq!(executor.executor.task_count(), 0);
    let sent = executor.leader_says(1, TaskExecutorMessage::CancelTask(attempt(0)));
    let reason = "it has no such attempt".to_owned();
    assert_eq!(sent, [to_leader(JobMasterMessage::TaskRefused(attempt(0), reason))]);
}

#[test]
fn an_attempt_that_the_job_master_does_not_know_is_ended_silently() {
    let mut executor = Executor::with_task();
    executor.leader_says(1, TaskExecutorMessage::AttemptUnknown(attempt(0)));
    assert_eq!(executor.told(), ["fail 0: the JobMaster does not know the attempt"]);
    assert_eq!(executor.event(TaskEvent::StateChanged(update(0, TaskState::Failed))), []);
    assert_eq!(executor.executor.task_count(), 0);
    assert_eq!(executor.owners(), [Some(job(1)), None]);
}

#[test]
fn a_freed_slot_is_free_when_its_task_has_ended() {
    let mut executor = Executor::with_task();
    let sent = executor.leader_says(1, TaskExecutorMessage::FreeSlot(allocation(1), "not needed".to_owned()));
    assert_eq!(sent, []);
    assert_eq!(executor.told(), ["fail 0: not needed"]);
    assert_eq!(executor.owners(), [Some(job(1)), None]);
    let sent = executor.event(TaskEvent::StateChanged(update(0, TaskState::Failed)));
    assert_eq!(sent[0], available(0, 1));
    assert_eq!(executor.owners(), [None, None]);
}

#[test]
fn counters_are_reported_every_second_while_there_are_tasks() {
    let mut executor = Executor::with_slot();
    executor.run_until(3000);
    executor.leader_says(1, information(1));
    executor.leader_says(1, deployment(7, 1));
    let sent = executor.run_until(5000);
    let metrics = TaskMetrics { records_in: 7, ..TaskMetrics::default() };
    let heartbeat = TaskExecutorHeartbeat { task_executor: id(), tasks: vec![(attempt(7), metrics)] };
    assert_eq!(sent, vec![to_leader(JobMasterMessage::TaskExecutorHeartbeat(heartbeat)); 3]);
}

#[test]
fn a_lost_job_master_ends_the_tasks_and_the_slots_wait_for_the_next() {
    let mut executor = Executor::with_task();
    executor.request_slot(1, 1, 2, 1);
    executor.manager_says(1, TaskExecutorMessage::ResourceManagerHeartbeat);
    executor.run_until(9_999);
    executor.leader_says(1, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
    executor.now = 40_000;
    executor.manager_says(1, TaskExecutorMessage::ResourceManagerHeartbeat);
    executor.run_until(59_998);
    assert_eq!(executor.told(), [""; 0]);
    let sent = executor.run_until(59_999);
    let reason = "the JobMaster was silent for 50 s".to_owned();
    assert!(sent.contains(&to_leader(JobMasterMessage::DisconnectTaskExecutor(id(), reason.clone()))), "{sent:?}");
    assert_eq!(executor.told(), [format!("fail 0: {reason}")]);
    assert_eq!(executor.event(TaskEvent::StateChanged(update(0, TaskState::Failed))), []);
    assert_eq!(executor.owners(), [Some(job(1)), None]);
    assert_eq!(executor.run_until(69_998), []);
    assert_eq!(executor.run_until(69_999), [available(0, 1)]);
}

#[test]
fn a_job_master_that_is_not_connected_is_told_so() {
    let mut executor = Executor::registered();
    let sent = executor.leader_says(1, TaskExecutorMessage::JobMasterHeartbeat(job(1)));
    let reason = "it has no slots of the job".to_owned();
    assert_eq!(sent, [to_leader(JobMasterMessage::DisconnectTaskExecutor(id(), reason))]);
}

#[test]
fn a_new_job_master_takes_the_place_of_the_former() {
    let mut executor = Executor::with_task();
    let sent = executor.request_slot(1, 1, 2, 2);
    assert_eq!(executor.told(), ["fail 0: the job has another JobMaster"]);
    assert_eq!(sent[1..], [to_leader(JobMasterMessage::RegisterTaskExecutor(id())), to_leader(offer(&[(2, 1)])),]);
    assert_eq!(executor.leader_says(1, TaskExecutorMessage::CancelTask(attempt(0))), []);
    assert_eq!(executor.executor.stale_messages(), 1);
}

#[test]
fn messages_of_others_are_dropped_and_counted() {
    let mut executor = Executor::with_task();
    let dropped = [
        executor.manager_says(2, TaskExecutorMessage::ResourceManagerHeartbeat),
        executor.leader_says(2, TaskExecutorMessage::FreeSlot(allocation(1), String::new())),
        executor.leader_says(2, TaskExecutorMessage::AttemptUnknown(attempt(0))),
        executor.leader_says(2, TaskExecutorMessage::DisconnectJobMaster(job(1), String::new())),
        executor.leader_says(2, TaskExecutorMessage::AcceptSlots(job(1), vec![])),
        executor.leader_says(2, TaskExecutorMessage::JobMasterHeartbeat(job(1))),
        executor.leader_says(1, TaskExecutorMessage::Stop("bye".to_owned())),
        executor.send(Address::ResourceManager, Fence::None, TaskExecutorMessage::ResourceManagerHeartbeat),
    ];
    assert_eq!(dropped.concat(), []);
    assert_eq!(executor.executor.stale_messages(), 8);
    assert_eq!(executor.told(), [""; 0]);
}

#[test]
fn a_stopped_task_executor_ends_with_its_tasks() {
    let mut executor = Executor::with_task();
    let sent = executor.says_itself(TaskExecutorMessage::Stop("bye".to_owned()));
    assert_eq!(
        sent,
        [
            to_leader(JobMasterMessage::DisconnectTaskExecutor(id(), "bye".to_owned())),
            to_manager(ResourceManagerMessage::DisconnectTaskExecutor(id(), "bye".to_owned())),
        ]
    );
    assert_eq!(executor.told(), ["cancel 0"]);
    assert!(!executor.executor.is_terminated());
    let refused = executor.request_slot(1, 1, 2, 1);
    let reason = "the TaskExecutor ends".to_owned();
    assert_eq!(refused, [to_manager(ResourceManagerMessage::SlotRefused(slot(1), allocation(2), reason))]);
    executor.event(TaskEvent::StateChanged(update(0, TaskState::Canceled)));
    assert!(executor.executor.is_terminated());
}

#[test]
fn a_stopped_task_executor_does_not_wait_for_ever() {
    let mut executor = Executor::with_task();
    executor.says_itself(TaskExecutorMessage::Stop("bye".to_owned()));
    executor.run_until(9_999);
    assert!(!executor.executor.is_terminated());
    executor.run_until(10_000);
    assert!(executor.executor.is_terminated());
}

#[test]
fn a_job_is_left_when_its_last_task_has_ended_and_its_job_master_is_gone() {
    let mut executor = Executor::with_task();
    executor.event(TaskEvent::StateChanged(update(0, TaskState::Finished)));
    // A consumer of what it produced may follow as long as there is a JobMaster.
    assert_eq!(*executor.left.lock().unwrap(), []);
    executor.leader_says(1, TaskExecutorMessage::DisconnectJobMaster(job(1), String::new()));
    assert_eq!(*executor.left.lock().unwrap(), [job(1)]);

    let mut executor = Executor::with_task();
    executor.leader_says(1, TaskExecutorMessage::DisconnectJobMaster(job(1), String::new()));
    assert_eq!(*executor.left.lock().unwrap(), []);
    executor.event(TaskEvent::StateChanged(update(0, TaskState::Failed)));
    assert_eq!(*executor.left.lock().unwrap(), [job(1)]);
}
