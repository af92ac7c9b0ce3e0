//! A whole cluster as one queue of messages on a virtual clock. From a seed it draws
//! how long each message and task takes, and which messages between TaskExecutors,
//! JobMasters and the ResourceManager are lost, doubled or overtaken, which tasks fail,
//! and when a TaskExecutor dies and comes back with nothing. After a while faults end,
//! and all has to come to rest: every job ended, every slot free, nothing running.
//!
//! Messages between Dispatcher, JobMasters and clients stay in order and arrive: they
//! never leave their process.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    mem,
    sync::{Arc, Mutex},
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};

use super::scripted_job_master::ScriptedJobMaster;
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::Configuration,
        ids::{
            AllocationId, DispatcherId, ExecutionAttemptId, JobId, JobMasterId, ResourceId, ResourceManagerId, SlotId,
        },
        status::JobStatus,
        stream_element::CheckpointId,
    },
    graph::slot_sharing::slots_needed,
    job_manager::{
        blob_store::BlobStore,
        dispatcher::{Dispatcher, DispatcherConfig, DispatcherParts},
        job_graph_store::JobGraphStore,
        job_master_runner::{JobMasterFactory, job_master_closed},
        job_result_store::JobResultStore,
        leader_election::{Contender, LeaderElection},
        resource_manager::{ResourceManager, ResourceManagerConfig},
        storage::StorageDir,
        test_graphs::{PLUGIN, job_graph},
    },
    protocol::{
        dispatcher::{DispatcherMessage, DispatcherRequest, DispatcherResponse},
        job_master::{
            FailureCause, JobMasterMessage, MaxAllowedWatermark, Recoverability, SplitAnswer, TaskExecutionStateUpdate,
            TaskMetrics, TaskState,
        },
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::{JobInformation, TaskDeployment, TaskExecutorMessage, TriggerCheckpoint},
    },
    task_manager::{
        RunningTask, TaskEvent, TaskEventSink, TaskStarter,
        task_executor::{TaskEventQueue, TaskExecutor, TaskExecutorConfig},
    },
};

const FAULTS_END: Timestamp = Timestamp(120_000);
/// Faults have ended by then for as long as any timeout lasts, and more than once.
const END: Timestamp = Timestamp(1_500_000);
/// Steps of one run; the longest take some 6,000.
const STEPS_MAX: u32 = 100_000;
const CLIENT: Address = Address::Client(1);

/// What threads of tasks would do.
#[derive(Default)]
struct Tasks {
    running: BTreeMap<(ResourceId, ExecutionAttemptId), SimulatedTask>,
    /// Messages that TaskExecutors send themselves.
    wakes: Vec<Envelope>,
}

struct SimulatedTask {
    allocation: AllocationId,
    ends_at: Timestamp,
    end: TaskState,
    sink: TaskEventSink,
}

struct TaskHandle {
    tasks: Arc<Mutex<Tasks>>,
    key: (ResourceId, ExecutionAttemptId),
    clock: Clock,
}

impl TaskHandle {
    fn end_as(&self, end: TaskState) {
        if let Some(task) = self.tasks.lock().unwrap().running.get_mut(&self.key) {
            // Sometimes at once, sometimes after two seconds, by the attempt.
            let delay = u64::from(self.key.1.attempt_number % 3) * 1000;
            task.ends_at = task.ends_at.min(self.clock.now().plus(Duration::from_millis(delay)));
            task.end = end;
        }
    }
}

impl RunningTask for TaskHandle {
    fn trigger_checkpoint(&self, _: TriggerCheckpoint) {}

    fn notify_checkpoint_complete(&self, _: CheckpointId) {}

    fn notify_checkpoint_aborted(&self, _: CheckpointId) {}

    fn cancel(&self) {
        self.end_as(TaskState::Canceled);
    }

    fn split_assigned(&self, _answer: SplitAnswer) {}

    fn align_watermark(&self, _max_allowed: MaxAllowedWatermark) {}

    fn metrics(&self) -> TaskMetrics {
        TaskMetrics::default()
    }

    fn fail(&self, _reason: &str) {
        self.end_as(TaskState::Failed);
    }
}

/// JobMasters that the Dispatcher started.
type Spawned = Arc<Mutex<Vec<(JobId, JobMasterId, Box<dyn Endpoint + Send>)>>>;

struct Job {
    id: JobId,
    cancel_at: Option<Timestamp>,
    end: Option<JobStatus>,
}

struct Simulation {
    seed: u64,
    rng: StdRng,
    clock: Clock,
    election: LeaderElection,
    _leaders: [Contender; 2],
    dispatcher: Dispatcher,
    dispatcher_fence: Fence,
    resource_manager: ResourceManager,
    task_executors: BTreeMap<ResourceId, TaskExecutor>,
    job_masters: BTreeMap<JobId, (JobMasterId, Box<dyn Endpoint + Send>)>,
    spawned: Spawned,
    tasks: Arc<Mutex<Tasks>>,
    /// By time of delivery, then by number.
    queue: BTreeMap<(Timestamp, u64), Envelope>,
    sent: u64,
    /// When the last message between two was delivered, for those that keep their order.
    last_delivery: BTreeMap<(Address, Address), Timestamp>,
    keeps_order: bool,
    loss: f64,
    jobs: Vec<Job>,
    /// When a dead TaskExecutor comes back.
    restarts: VecDeque<(Timestamp, ResourceId)>,
    slots: u32,
    failure_rate: f64,
    /// The job that each slot was offered to, until the slot is free again.
    offered: BTreeMap<SlotId, JobId>,
    _storage: StorageDir,
}

fn numbered() -> impl FnMut() -> [u8; 16] + Send {
    let mut number = 0_u64;
    move || {
        number += 1;
        let mut bytes = [0; 16];
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        bytes
    }
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let clock = Clock::new_virtual(Timestamp(0));
        let mut election = LeaderElection::with_sessions(Box::new(numbered()));
        election.grant();
        let leaders = [Address::Dispatcher, Address::ResourceManager].map(|address| {
            let contender = election.contend(address).unwrap();
            assert!(contender.confirm(contender.session().unwrap()));
            contender
        });
        let Some(Fence::Dispatcher(dispatcher_id)) = leaders[0].session() else { panic!("granted above") };
        let Some(Fence::ResourceManager(manager_id)) = leaders[1].session() else { panic!("granted above") };
        let storage = StorageDir::temporary().unwrap();
        let spawned = Arc::new(Mutex::new(Vec::new()));
        let dispatcher = dispatcher(dispatcher_id, &storage, &election, &clock, &spawned);
        let resource_manager = resource_manager(manager_id, &election);
        let mut simulation = Self {
            seed,
            clock,
            election,
            _leaders: leaders,
            dispatcher,
            dispatcher_fence: Fence::Dispatcher(dispatcher_id),
            resource_manager,
            task_executors: BTreeMap::new(),
            job_masters: BTreeMap::new(),
            spawned,
            tasks: Arc::default(),
            queue: BTreeMap::new(),
            sent: 0,
            last_delivery: BTreeMap::new(),
            keeps_order: rng.random_bool(0.5),
            loss: if rng.random_bool(0.2) { 0.0 } else { rng.random_range(0.0..0.2) },
            jobs: Vec::new(),
            restarts: VecDeque::new(),
            slots: rng.random_range(1..4),
            failure_rate: rng.random_range(0.0..0.2),
            offered: BTreeMap::new(),
            _storage: storage,
            rng,
        };
        simulation.start();
        simulation
    }

    fn start(&mut self) {
        let now = self.clock.now();
        let envelopes = self.dispatcher.on_start(now);
        self.post(envelopes);
        let envelopes = self.resource_manager.on_start(now);
        self.post(envelopes);
        let task_executors = self.rng.random_range(2..5);
        for number in 0..task_executors {
            self.start_task_executor(ResourceId(format!("tm-{number}")));
        }
        let slots = task_executors * self.slots;
        for number in 1..=self.rng.random_range(1..5) {
            let parallelism = self.rng.random_range(1..=slots.min(5));
            let vertices = [("a", parallelism), ("b", self.rng.random_range(1..=parallelism))];
            let graph = job_graph(number, &vertices[..self.rng.random_range(1..=2)]);
            assert!(slots_needed(&graph) <= u64::from(slots));
            let cancel_at = self.rng.random_bool(0.2).then(|| Timestamp(self.rng.random_range(0..60_000)));
            self.jobs.push(Job { id: graph.job_id, cancel_at, end: None });
            self.ask(DispatcherRequest::SubmitJob(graph.clone()));
            self.ask(DispatcherRequest::AwaitTermination(graph.job_id));
        }
        for _ in 0..self.rng.random_range(0..3) {
            let number = self.rng.random_range(0..task_executors);
            let dies = Timestamp(self.rng.random_range(1..FAULTS_END.0));
            self.restarts.push_back((dies, ResourceId(format!("tm-{number}"))));
        }
    }

    fn ask(&mut self, request: DispatcherRequest) {
        self.sent += 1;
        let message = Message::Dispatcher(DispatcherMessage::Request(self.sent, request));
        let fence = self.dispatcher_fence;
        self.post(vec![Envelope { from: CLIENT, to: Address::Dispatcher, fence, message }]);
    }

    fn start_task_executor(&mut self, id: ResourceId) {
        let tasks = Arc::clone(&self.tasks);
        let address = Address::TaskExecutor(id.clone());
        let events = TaskEventQueue::new(Box::new(move || {
            tasks.lock().unwrap().wakes.push(Envelope {
                from: address.clone(),
                to: address.clone(),
                fence: Fence::None,
                message: Message::TaskExecutor(TaskExecutorMessage::TaskEventsWaiting),
            });
        }));
        let config = TaskExecutorConfig {
            slots: self.slots,
            ..TaskExecutorConfig::from_configuration(id.clone(), &Configuration::default())
        };
        let starter = self.task_starter(id.clone(), events.sink());
        let mut task_executor = TaskExecutor::new(config, starter, events);
        let envelopes = task_executor.on_start(self.clock.now());
        self.task_executors.insert(id, task_executor);
        self.post(envelopes);
    }

    fn task_starter(&mut self, id: ResourceId, sink: TaskEventSink) -> TaskStarter {
        let (tasks, clock) = (Arc::clone(&self.tasks), self.clock.clone());
        let rng = Mutex::new(StdRng::seed_from_u64(self.rng.random()));
        let failure_rate = self.failure_rate;
        let start = move |information: Arc<JobInformation>, deployment: TaskDeployment| {
            assert_eq!(information.job, deployment.job);
            let attempt = deployment.attempt;
            let mut rng = rng.lock().unwrap();
            let now = clock.now();
            let may_fail = now < FAULTS_END;
            if may_fail && rng.random_bool(failure_rate / 4.0) {
                return Err(failure("no thread"));
            }
            let ends = may_fail && rng.random_bool(failure_rate);
            let end = if ends { TaskState::Failed } else { TaskState::Finished };
            let ends_at = now.plus(Duration::from_millis(rng.random_range(0..20_000)));
            let key = (id.clone(), attempt);
            let task = SimulatedTask { allocation: deployment.allocation, ends_at, end, sink: Arc::clone(&sink) };
            let former = tasks.lock().unwrap().running.insert(key.clone(), task);
            assert!(former.is_none(), "attempt {attempt} runs twice");
            for state in [TaskState::Initializing, TaskState::Running] {
                sink(TaskEvent::StateChanged(update(attempt, state)));
            }
            let handle: Box<dyn RunningTask> =
                Box::new(TaskHandle { tasks: Arc::clone(&tasks), key, clock: clock.clone() });
            Ok(handle)
        };
        TaskStarter { start: Box::new(start), job_left: Box::new(|_| {}) }
    }

    /// Gives messages their times, or loses them.
    fn post(&mut self, envelopes: Vec<Envelope>) {
        for envelope in envelopes {
            self.check_offer(&envelope);
            self.sent += 1;
            let is_remote = is_remote(&envelope);
            let is_faulty = is_remote && self.clock.now() < FAULTS_END;
            if is_faulty && self.rng.random_bool(self.loss) {
                continue;
            }
            let copies = if is_faulty && self.rng.random_bool(self.loss / 2.0) { 2 } else { 1 };
            for _ in 0..copies {
                let delay = match self.rng.random_range(0..10) {
                    0..=7 => self.rng.random_range(0..5),
                    8 => self.rng.random_range(0..100),
                    _ if is_faulty => self.rng.random_range(0..5000),
                    _ => self.rng.random_range(0..300),
                };
                let mut at = self.clock.now().plus(Duration::from_millis(delay));
                if self.keeps_order || !is_remote {
                    let pair = (envelope.from.clone(), envelope.to.clone());
                    let last = self.last_delivery.entry(pair).or_insert(at);
                    at = at.max(*last);
                    *last = at;
                }
                self.sent += 1;
                self.queue.insert((at, self.sent), envelope.clone());
            }
        }
    }

    /// A slot is offered to one job until its TaskExecutor has taken it back.
    fn check_offer(&mut self, envelope: &Envelope) {
        let (Address::JobMaster(job), Message::JobMaster(JobMasterMessage::OfferSlots(offers))) =
            (&envelope.to, &envelope.message)
        else {
            return;
        };
        for offer in &offers.offers {
            let former = self.offered.insert(offer.slot.clone(), *job);
            assert!(
                former.is_none_or(|former| former == *job),
                "seed {}: slot {:?} is offered to {job} while {former:?} has it",
                self.seed,
                offer.slot
            );
        }
    }

    fn run(mut self) -> BTreeMap<JobStatus, usize> {
        let mut steps = 0;
        while let Some(next) = self.next_time().filter(|next| *next <= END) {
            steps += 1;
            assert!(steps < STEPS_MAX, "seed {}: something is due for ever", self.seed);
            let now = self.clock.now();
            self.clock.advance(next.since(now));
            self.step(next.max(now));
            self.check_slots();
        }
        self.check_rest();
        let mut ends = BTreeMap::<JobStatus, usize>::new();
        for job in &self.jobs {
            *ends.entry(job.end.expect("checked")).or_default() += 1;
        }
        ends
    }

    fn next_time(&self) -> Option<Timestamp> {
        let tasks = self.tasks.lock().unwrap();
        let deadlines = [self.dispatcher.next_deadline(), self.resource_manager.next_deadline()];
        let times = deadlines
            .into_iter()
            .chain(self.task_executors.values().map(|task_executor| task_executor.next_deadline()))
            .chain(self.job_masters.values().map(|(_, job_master)| job_master.next_deadline()))
            .chain([self.queue.keys().next().map(|(at, _)| *at)])
            .chain(tasks.running.values().map(|task| Some(task.ends_at)))
            .chain(self.restarts.iter().map(|(at, _)| Some(*at)))
            .chain(self.jobs.iter().map(|job| job.cancel_at));
        times.flatten().min()
    }

    /// Does one thing that is due.
    fn step(&mut self, now: Timestamp) {
        if let Some(index) = self.jobs.iter().position(|job| job.cancel_at.is_some_and(|at| at <= now)) {
            self.jobs[index].cancel_at = None;
            self.ask(DispatcherRequest::CancelJob(self.jobs[index].id));
        } else if let Some(index) = self.restarts.iter().position(|(at, _)| *at <= now) {
            let (_, id) = self.restarts.remove(index).unwrap();
            self.kill_or_start(id, now);
        } else if self.end_due_task(now) {
        } else if let Some(entry) = self.queue.first_entry().filter(|entry| entry.key().0 <= now) {
            let envelope = entry.remove();
            self.deliver(envelope, now);
        } else {
            self.run_deadline(now);
        }
        let wakes = mem::take(&mut self.tasks.lock().unwrap().wakes);
        self.post(wakes);
        self.start_spawned(now);
        self.close_ended_job_masters();
    }

    fn kill_or_start(&mut self, id: ResourceId, now: Timestamp) {
        if self.task_executors.remove(&id).is_some() {
            self.tasks.lock().unwrap().running.retain(|(owner, _), _| *owner != id);
            self.tasks.lock().unwrap().wakes.retain(|wake| wake.to != Address::TaskExecutor(id.clone()));
            self.offered.retain(|slot, _| slot.task_executor != id);
            let back = now.plus(Duration::from_millis(self.rng.random_range(1..90_000)));
            self.restarts.push_back((back, id));
        } else {
            self.start_task_executor(id);
        }
    }

    fn end_due_task(&mut self, now: Timestamp) -> bool {
        let mut tasks = self.tasks.lock().unwrap();
        let due = tasks.running.iter().find(|(_, task)| task.ends_at <= now).map(|(key, _)| key.clone());
        let Some(key) = due else { return false };
        let task = tasks.running.remove(&key).unwrap();
        drop(tasks);
        (task.sink)(TaskEvent::StateChanged(update(key.1, task.end)));
        true
    }

    fn deliver(&mut self, envelope: Envelope, now: Timestamp) {
        let envelopes = match &envelope.to {
            Address::Dispatcher => self.dispatcher.on_message(envelope, now),
            Address::ResourceManager => self.resource_manager.on_message(envelope, now),
            Address::JobMaster(job) => match self.job_masters.get_mut(job) {
                Some((_, job_master)) => job_master.on_message(envelope, now),
                None => Vec::new(),
            },
            Address::TaskExecutor(id) => match self.task_executors.get_mut(id) {
                Some(task_executor) => task_executor.on_message(envelope, now),
                None => Vec::new(),
            },
            Address::Client(_) => {
                self.answered(envelope.message);
                Vec::new()
            }
        };
        self.post(envelopes);
    }

    fn answered(&mut self, message: Message) {
        let Message::Client(_, response) = message else { panic!("{message:?}") };
        match response {
            DispatcherResponse::Details(details) => {
                let job = self.jobs.iter_mut().find(|job| job.id == details.job).unwrap();
                assert_eq!(job.end, None, "seed {}", self.seed);
                job.end = Some(details.status);
            }
            DispatcherResponse::Acknowledged | DispatcherResponse::Refused(_) => {}
            DispatcherResponse::Jobs(_)
            | DispatcherResponse::TaskExecutors(_)
            | DispatcherResponse::Snapshot(_)
            | DispatcherResponse::JobGraph(_) => panic!("not asked"),
        }
    }

    fn run_deadline(&mut self, now: Timestamp) {
        let is_due = |endpoint: &dyn Endpoint| endpoint.next_deadline().is_some_and(|deadline| deadline <= now);
        let envelopes = if is_due(&self.dispatcher) {
            self.dispatcher.on_deadline(now)
        } else if is_due(&self.resource_manager) {
            self.resource_manager.on_deadline(now)
        } else if let Some(due) = self.task_executors.values_mut().find(|endpoint| is_due(*endpoint)) {
            due.on_deadline(now)
        } else if let Some((_, due)) = self.job_masters.values_mut().find(|(_, endpoint)| is_due(endpoint.as_ref())) {
            due.on_deadline(now)
        } else {
            Vec::new()
        };
        self.post(envelopes);
        self.task_executors.retain(|_, task_executor| !task_executor.is_terminated());
    }

    fn start_spawned(&mut self, now: Timestamp) {
        let spawned = mem::take(&mut *self.spawned.lock().unwrap());
        for (job, job_master, mut endpoint) in spawned {
            let envelopes = endpoint.on_start(now);
            let former = self.job_masters.insert(job, (job_master, endpoint));
            assert!(former.is_none(), "seed {}: job {job} has two JobMasters", self.seed);
            self.post(envelopes);
        }
    }

    fn close_ended_job_masters(&mut self) {
        let ended: Vec<_> = self.job_masters.extract_if(.., |_, (_, endpoint)| endpoint.is_terminated()).collect();
        for (job, (job_master, _)) in ended {
            self.post(vec![job_master_closed(job, job_master)]);
        }
    }

    /// What holds at any time: whatever runs has its slot.
    fn check_slots(&mut self) {
        let tasks = self.tasks.lock().unwrap();
        let mut taken = BTreeSet::new();
        for (id, task_executor) in &self.task_executors {
            for (index, slot) in (0..).zip(task_executor.slots()) {
                if let Some((_, allocation)) = slot {
                    assert!(taken.insert((id, allocation)), "seed {}: {allocation} has two slots", self.seed);
                } else {
                    self.offered.remove(&SlotId { task_executor: id.clone(), index });
                }
            }
        }
        for ((id, attempt), task) in &tasks.running {
            let has_slot = taken.contains(&(id, task.allocation));
            assert!(has_slot, "seed {}: attempt {attempt} runs in a slot that was given away", self.seed);
        }
    }

    /// What holds when all has come to rest.
    fn check_rest(&self) {
        let seed = self.seed;
        for job in &self.jobs {
            assert!(job.end.is_some(), "seed {seed}: job {} has not ended", job.id);
        }
        assert!(self.job_masters.is_empty(), "seed {seed}: a JobMaster is left");
        assert_eq!(self.tasks.lock().unwrap().running.len(), 0, "seed {seed}: tasks are left");
        for (id, task_executor) in &self.task_executors {
            assert_eq!(task_executor.task_count(), 0, "seed {seed}: {id} remembers tasks");
            let slots = task_executor.slots();
            assert_eq!(slots, vec![None; slots.len()], "seed {seed}: slots of {id} are left");
        }
        let listed = self.resource_manager.free_slots();
        let free: BTreeMap<_, _> = self.task_executors.keys().map(|id| (id.clone(), self.slots)).collect();
        assert_eq!(listed, free, "seed {seed}: the ResourceManager knows other free slots");
        assert!(self.election.leader(&Address::JobMaster(self.jobs[0].id)).is_none());
    }
}

fn is_remote(envelope: &Envelope) -> bool {
    let is_local = |address: &Address| match address {
        Address::Dispatcher | Address::Client(_) => true,
        Address::ResourceManager | Address::JobMaster(_) | Address::TaskExecutor(_) => false,
    };
    !is_local(&envelope.from) && !is_local(&envelope.to) && envelope.from != envelope.to
}

fn dispatcher(
    id: DispatcherId,
    storage: &StorageDir,
    election: &LeaderElection,
    clock: &Clock,
    spawned: &Spawned,
) -> Dispatcher {
    let blobs = Arc::new(BlobStore::open(storage).unwrap());
    blobs.put(PLUGIN).unwrap();
    let spawned = Arc::clone(spawned);
    let clock = clock.clone();
    let job_master_factory: JobMasterFactory =
        Arc::new(move |graph, job_master| Ok(Box::new(ScriptedJobMaster::new(graph, job_master, clock.now()))));
    Dispatcher::recover(DispatcherParts {
        id,
        config: DispatcherConfig::from_configuration(&Configuration::default()),
        election: election.clone(),
        graphs: JobGraphStore::open(storage).unwrap(),
        results: JobResultStore::open(storage).unwrap(),
        blobs,
        job_master_factory,
        clean_up: Arc::new(|_, _| Ok(())),
        spawn: Box::new(move |job, job_master, endpoint| spawned.lock().unwrap().push((job, job_master, endpoint))),
        on_fatal_error: Arc::new(|problem| panic!("{problem}")),
    })
    .unwrap()
}

fn resource_manager(id: ResourceManagerId, election: &LeaderElection) -> ResourceManager {
    let config = ResourceManagerConfig::from_configuration(&Configuration::default());
    let mut draw = numbered();
    let draw_allocation = Box::new(move || AllocationId::from_bytes(draw()));
    ResourceManager::new(id, config, election.clone(), draw_allocation)
}

fn update(attempt: ExecutionAttemptId, state: TaskState) -> TaskExecutionStateUpdate {
    let cause = (state == TaskState::Failed).then(|| failure("the task failed"));
    TaskExecutionStateUpdate { attempt, state, cause, metrics: TaskMetrics::default(), end_states: BTreeMap::new() }
}

fn failure(message: &str) -> FailureCause {
    FailureCause {
        code: "test".to_owned(),
        message: message.to_owned(),
        detail: String::new(),
        recoverability: Recoverability::Recoverable,
    }
}

/// Runs seeds and checks that between them all ends were met.
fn run_seeds(seeds: std::ops::Range<u64>) {
    let mut ends = BTreeMap::<JobStatus, usize>::new();
    for seed in seeds {
        for (status, count) in Simulation::new(seed).run() {
            *ends.entry(status).or_default() += count;
        }
    }
    let ended: Vec<_> = ends.keys().copied().collect();
    assert!(ended.contains(&JobStatus::Finished) && ended.contains(&JobStatus::Canceled), "{ends:?}");
}

#[test]
fn every_cluster_comes_to_rest_1() {
    run_seeds(0..150);
}

#[test]
fn every_cluster_comes_to_rest_2() {
    run_seeds(150..300);
}
