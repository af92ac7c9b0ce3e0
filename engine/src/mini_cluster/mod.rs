//! Dispatcher, ResourceManager, TaskExecutors and JobMasters in one process: what
//! `engine submit` runs a job in and `engine cluster` serves. The only module that sees
//! both sides; it starts loops, connects them by messages and ends them in order.
//!
//! | loop | runs | why |
//! |---|---|---|
//! | Dispatcher, each JobMaster | may block its thread, which hands its other loops on | they write files, list inputs, commit sinks |
//! | ResourceManager, each TaskExecutor | computes only | what they start runs on threads of its own |
//! | gateway | asynchronous | turns calls of clients into messages |
//!
//! Every loop is held by its owner and ends by a message or by its address being
//! closed. [`MiniCluster::shutdown`] joins them all.

pub mod components;

use std::{
    fs,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot, watch},
    task::{JoinError, JoinHandle},
    time::timeout,
};
use tracing::Instrument;

use crate::{
    base::{
        clock::Clock,
        config::Configuration,
        ids::{AllocationId, JobId, JobMasterId, ResourceId},
    },
    job_manager::{
        blob_store::{BlobError, BlobStore},
        dispatcher::{
            Dispatcher, DispatcherConfig, DispatcherParts, FatalErrorHandler, JobMasterSpawner, Recovery, RecoveryError,
        },
        job_graph_store::{JobGraphStore, JobGraphStoreError},
        job_master_runner::{JobMasterFactory, job_master_closed, job_master_failed},
        job_result_store::{JobResultStore, JobResultStoreError},
        leader_election::{Contender, ElectionError, LeaderElection},
        resource_manager::{ResourceManager, ResourceManagerConfig},
        storage::{StorageDir, StorageError},
    },
    protocol::{
        dispatcher::{DispatcherMessage, JobMasterFailed},
        job_master::{FailureCause, Recoverability},
        rpc::{
            Address, AddressTaken, Delivery, DispatcherGateway, Endpoint, Envelope, Fence, Handlers, Mailbox, Message,
            RpcService, Transport, run_endpoint, run_gateway,
        },
        task_executor::TaskExecutorMessage,
    },
    task_manager::{
        TaskEventSink, TaskStarter,
        task_executor::{TaskEventQueue, TaskExecutor, TaskExecutorConfig},
    },
};

/// Calls of clients that wait to be read; further ones wait with their callers.
const CALLS_MAX: usize = 64;
/// Holds the files of state on disk, in the cluster's directory.
const STATE_DIRECTORY: &str = "keyed-state";
/// Time that one loop has to end when the cluster is shut down: above what Dispatcher
/// and TaskExecutor give their jobs and tasks.
const JOIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Pause of a thread before it tries a full queue again.
const FULL_QUEUE_PAUSE: Duration = Duration::from_millis(5);
/// The one client address of a process: its gateway.
const GATEWAY: Address = Address::Client(0);

/// Where a cluster keeps blobs, graphs and results.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Storage {
    /// In a directory that goes with the cluster.
    Temporary,
    /// In a directory that the next cluster takes over.
    Directory(PathBuf),
    /// In a directory of which only this job is taken over.
    OfJob(PathBuf, JobId),
}

/// What a TaskExecutor's tasks are given.
pub struct TaskExecutorContext {
    /// The TaskExecutor.
    pub id: ResourceId,
    /// Plugins and artifacts.
    pub blobs: Arc<BlobStore>,
    /// Holds the files of state on disk.
    pub state_directory: PathBuf,
    /// Where tasks leave their events.
    pub events: TaskEventSink,
    /// Processing time.
    pub clock: Clock,
}

/// Makes the [`TaskStarter`] of each TaskExecutor.
pub type TaskStarterFactory = Arc<dyn Fn(TaskExecutorContext) -> TaskStarter + Send + Sync>;

/// What JobMasters are given.
pub struct JobMasterContext {
    /// Plugins and artifacts.
    pub blobs: Arc<BlobStore>,
    /// Where the cluster keeps its state.
    pub state_directory: PathBuf,
    /// Whether that directory outlives the cluster.
    pub state_is_kept: bool,
    /// Puts a message into its receiver's queue, from a thread that may wait for room in it.
    pub send: Arc<dyn Fn(Envelope) + Send + Sync>,
}

/// Makes the [`JobMasterFactory`] of a cluster.
pub type JobMasterFactoryMaker = Arc<dyn Fn(JobMasterContext) -> JobMasterFactory + Send + Sync>;

/// What a cluster is made of.
#[derive(Clone)]
pub struct MiniClusterConfig {
    /// Settings of the cluster.
    pub configuration: Configuration,
    /// Number of TaskExecutors.
    pub task_executors: u32,
    /// Slots of each; see [`slots_needed`](crate::graph::slot_sharing::slots_needed) for a cluster that runs one job.
    pub slots_per_task_executor: u32,
    /// Processing time.
    pub clock: Clock,
    /// What outlives the cluster.
    pub storage: Storage,
    /// Whether messages go through the codec.
    pub transport: Transport,
    /// Makes JobMasters.
    pub job_master_factory: JobMasterFactoryMaker,
    /// Starts tasks.
    pub task_starter_factory: TaskStarterFactory,
}

/// A cluster could not be started, or could not go on.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The storage directory cannot be used.
    #[error("could not open the cluster's storage")]
    Storage(#[from] StorageError),
    /// The blobs cannot be used.
    #[error("could not open the cluster's blobs")]
    Blobs(#[from] BlobError),
    /// The graphs cannot be used.
    #[error("could not open the cluster's job graphs")]
    Graphs(#[from] JobGraphStoreError),
    /// The results cannot be used.
    #[error("could not open the cluster's job results")]
    Results(#[from] JobResultStoreError),
    /// Something stored cannot be taken over.
    #[error("could not take over what is stored")]
    Recovery(#[from] RecoveryError),
    /// Two components want one address: a bug.
    #[error("could not start a component")]
    Address(#[from] AddressTaken),
    /// Two components contend for one leadership: a bug.
    #[error("could not start a component")]
    Election(#[from] ElectionError),
    /// A component cannot go on.
    #[error("the cluster ended: {0}")]
    Fatal(String),
    /// Components did not end.
    #[error("did not end in time: {0}")]
    LeftBehind(String),
}

/// Whether a cluster goes on.
#[derive(Clone, Debug, Eq, PartialEq)]
enum ClusterState {
    Running,
    /// A client shut it down, or its owner did.
    Ended,
    Failed(String),
}

/// A loop with its name.
struct Loop {
    name: String,
    handle: JoinHandle<()>,
}

/// A running cluster. Dropping it without [`MiniCluster::shutdown`] leaves its loops to
/// the runtime, which ends them with itself.
pub struct MiniCluster {
    gateway: DispatcherGateway,
    services: Services,
    dispatcher: Loop,
    resource_manager: Loop,
    task_executors: Vec<(ResourceId, Loop)>,
    gateway_loop: Loop,
    /// Yields nothing; closed when the last JobMaster's loop has ended.
    job_masters: mpsc::Receiver<()>,
}

/// What all components of a cluster are made with.
#[derive(Clone)]
struct Services {
    config: MiniClusterConfig,
    /// Keeps the directory and its lock.
    storage: Arc<StorageDir>,
    blobs: Arc<BlobStore>,
    rpc: RpcService,
    election: LeaderElection,
    state: Arc<watch::Sender<ClusterState>>,
}

impl MiniCluster {
    /// Starts all components. When it returns, the Dispatcher leads and has taken over
    /// what is stored; TaskExecutors may still be registering.
    ///
    /// # Errors
    /// Returns an error if the storage is in use or damaged. No loop is left then.
    pub async fn start(config: MiniClusterConfig) -> Result<Self, ClusterError> {
        let storage = Arc::new(match &config.storage {
            Storage::Temporary => StorageDir::temporary()?,
            Storage::Directory(path) | Storage::OfJob(path, _) => StorageDir::open(path)?,
        });
        // What a killed process left is of no use: tasks go on from checkpoints.
        remove_state(&storage.path().join(STATE_DIRECTORY))?;
        let services = Services {
            blobs: Arc::new(BlobStore::open(&storage)?),
            rpc: RpcService::new(config.transport),
            election: LeaderElection::new(),
            state: Arc::new(watch::Sender::new(ClusterState::Running)),
            config,
            storage,
        };
        let resource_manager = services.start_resource_manager()?;
        let mut leader = services.election.listen(Address::ResourceManager);
        if leader.wait_for(Option::is_some).await.is_err() {
            return Err(ClusterError::Fatal("the ResourceManager's loop died".to_owned()));
        }
        let (calls_sender, calls) = mpsc::channel(CALLS_MAX);
        let gateway_loop = services.start_gateway(calls)?;
        let (alive, job_masters) = mpsc::channel(1);
        let dispatcher = services.start_dispatcher(alive).await?;
        let task_executors = (1..=services.config.task_executors)
            .map(|number| services.start_task_executor(number))
            .collect::<Result<_, _>>()?;
        let gateway = DispatcherGateway::new(calls_sender);
        Ok(Self { gateway, services, dispatcher, resource_manager, task_executors, gateway_loop, job_masters })
    }

    /// A handle on the Dispatcher.
    pub fn gateway(&self) -> DispatcherGateway {
        self.gateway.clone()
    }

    /// Plugins and artifacts: a job's are put here before it is submitted.
    pub fn blobs(&self) -> Arc<BlobStore> {
        Arc::clone(&self.services.blobs)
    }

    /// The message bus, for its counts.
    pub fn rpc(&self) -> &RpcService {
        &self.services.rpc
    }

    /// Who leads.
    pub fn election(&self) -> &LeaderElection {
        &self.services.election
    }

    /// Waits until a client has shut the cluster down.
    ///
    /// # Errors
    /// Returns [`ClusterError::Fatal`] if it cannot go on.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn terminated(&self) -> Result<(), ClusterError> {
        let mut state = self.services.state.subscribe();
        let ended = state.wait_for(|state| *state != ClusterState::Running).await;
        match ended.map(|state| state.clone()) {
            Ok(ClusterState::Failed(problem)) => Err(ClusterError::Fatal(problem)),
            Ok(ClusterState::Running | ClusterState::Ended) | Err(_) => Ok(()),
        }
    }

    /// Ends the cluster: suspends the jobs that run, which stay stored, then ends
    /// TaskExecutors, ResourceManager and gateway, and joins all loops.
    ///
    /// # Errors
    /// Returns an error if the cluster had failed, or if loops had to be left behind.
    pub async fn shutdown(self) -> Result<(), ClusterError> {
        let Self { services, dispatcher, resource_manager, task_executors, gateway_loop, mut job_masters, .. } = self;
        let Services { rpc, election, state, .. } = &services;
        let before = state.send_replace(ClusterState::Ended);
        let mut left_behind = Vec::new();

        if let Some(fence) = election.leader(&Address::Dispatcher) {
            let stop = DispatcherMessage::Stop("the cluster is shut down".to_owned());
            rpc.send_waiting(to_itself(Address::Dispatcher, fence, Message::Dispatcher(stop))).await;
        }
        dispatcher.join(&mut left_behind).await;
        // Those that did not end by themselves end with their addresses.
        let addresses = rpc.addresses().into_iter();
        for address in addresses.filter(|address| matches!(address, Address::JobMaster(_))) {
            rpc.unregister(&address);
        }
        if timeout(JOIN_TIMEOUT, job_masters.recv()).await.is_err() {
            left_behind.push("JobMasters".to_owned());
        }

        for (id, _) in &task_executors {
            let stop = TaskExecutorMessage::Stop("the cluster is shut down".to_owned());
            let address = Address::TaskExecutor(id.clone());
            rpc.send_waiting(to_itself(address, Fence::None, Message::TaskExecutor(stop))).await;
        }
        for (_, task_executor) in task_executors {
            task_executor.join(&mut left_behind).await;
        }

        rpc.unregister(&Address::ResourceManager);
        resource_manager.join(&mut left_behind).await;
        rpc.unregister(&GATEWAY);
        gateway_loop.join(&mut left_behind).await;

        match before {
            ClusterState::Failed(problem) => Err(ClusterError::Fatal(problem)),
            ClusterState::Running | ClusterState::Ended if left_behind.is_empty() => Ok(()),
            ClusterState::Running | ClusterState::Ended => Err(ClusterError::LeftBehind(left_behind.join(", "))),
        }
    }
}

impl Loop {
    async fn join(mut self, left_behind: &mut Vec<String>) {
        if timeout(JOIN_TIMEOUT, &mut self.handle).await.is_err() {
            self.handle.abort();
            left_behind.push(self.name);
        }
    }
}

impl Services {
    /// Runs a loop that the cluster cannot do without.
    fn spawn_loop(&self, name: String, run: impl Future<Output = ()> + Send + 'static) -> Loop {
        let span = tracing::info_span!("loop", name);
        let state = Arc::clone(&self.state);
        let loop_name = name.clone();
        let inner = tokio::spawn(run.instrument(span));
        let handle = tokio::spawn(async move {
            if let Err(error) = inner.await {
                fail(&state, format!("the loop of {loop_name} died: {}", panic_message(error)));
            }
        });
        Loop { name, handle }
    }

    fn start_resource_manager(&self) -> Result<Loop, ClusterError> {
        let contender = self.election.contend(Address::ResourceManager)?;
        // Registered here, so that whoever is started next finds it.
        let mailbox = self.rpc.register(Address::ResourceManager)?;
        Ok(self.spawn_loop("ResourceManager".to_owned(), lead_resource_manager(self.clone(), contender, mailbox)))
    }

    fn start_gateway(&self, calls: mpsc::Receiver<crate::protocol::rpc::ClientCall>) -> Result<Loop, ClusterError> {
        let mailbox = self.rpc.register(GATEWAY)?;
        let leader = self.election.listen(Address::Dispatcher);
        Ok(self.spawn_loop("gateway".to_owned(), run_gateway(calls, mailbox, leader)))
    }

    async fn start_dispatcher(&self, alive: mpsc::Sender<()>) -> Result<Loop, ClusterError> {
        let contender = self.election.contend(Address::Dispatcher)?;
        let (ready, is_ready) = oneshot::channel();
        let run = lead_dispatcher(self.clone(), contender, alive, ready);
        let dispatcher = self.spawn_loop("Dispatcher".to_owned(), run);
        match is_ready.await {
            Ok(Ok(())) => Ok(dispatcher),
            Ok(Err(error)) => {
                self.rpc.unregister(&Address::ResourceManager);
                self.rpc.unregister(&GATEWAY);
                Err(error)
            }
            Err(_) => Err(ClusterError::Fatal("the Dispatcher's loop died".to_owned())),
        }
    }

    fn start_task_executor(&self, number: u32) -> Result<(ResourceId, Loop), ClusterError> {
        let id = ResourceId(format!("taskmanager-{number}"));
        let address = Address::TaskExecutor(id.clone());
        let mailbox = self.rpc.register(address.clone())?;
        let rpc = self.rpc.clone();
        let events = TaskEventQueue::new(Box::new(move || {
            let waiting = Message::TaskExecutor(TaskExecutorMessage::TaskEventsWaiting);
            // A full queue does not matter: the TaskExecutor looks with every message.
            let delivery = rpc.send(to_itself(address.clone(), Fence::None, waiting));
            tracing::trace!(?delivery, "a task left an event");
        }));
        let start_task = (self.config.task_starter_factory)(TaskExecutorContext {
            id: id.clone(),
            blobs: Arc::clone(&self.blobs),
            state_directory: self.storage.path().join(STATE_DIRECTORY),
            events: events.sink(),
            clock: self.config.clock.clone(),
        });
        let config = TaskExecutorConfig {
            slots: self.config.slots_per_task_executor,
            cpu_cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            memory_bytes: memory_bytes().unwrap_or(0),
            ..TaskExecutorConfig::from_configuration(id.clone(), &self.config.configuration)
        };
        let endpoint = Box::new(TaskExecutor::new(config, start_task, events));
        let run = run_endpoint(endpoint, mailbox, self.config.clock.clone(), Handlers::Compute);
        let address = Address::TaskExecutor(id.clone());
        let leader = self.election.listen(Address::ResourceManager);
        let forward = forward_leader(self.rpc.clone(), address, leader);
        let run_both = async move {
            tokio::select! {
                () = run => {}
                () = forward => {}
            }
        };
        Ok((id.clone(), self.spawn_loop(format!("TaskExecutor {id}"), run_both)))
    }

    fn dispatcher_parts(&self, fence: Fence, alive: mpsc::Sender<()>) -> Result<DispatcherParts, ClusterError> {
        let Fence::Dispatcher(id) = fence else {
            return Err(ElectionError::NotElected(Address::Dispatcher).into());
        };
        let state = Arc::clone(&self.state);
        let on_fatal_error: FatalErrorHandler = Arc::new(move |problem| fail(&state, problem));
        Ok(DispatcherParts {
            id,
            config: DispatcherConfig {
                recovery: match self.config.storage {
                    Storage::OfJob(_, job) => Recovery::Only(job),
                    Storage::Temporary | Storage::Directory(_) => Recovery::All,
                },
                slots_total: Some(
                    u64::from(self.config.task_executors) * u64::from(self.config.slots_per_task_executor),
                ),
                ..DispatcherConfig::from_configuration(&self.config.configuration)
            },
            election: self.election.clone(),
            graphs: JobGraphStore::open(&self.storage)?,
            results: JobResultStore::open(&self.storage)?,
            blobs: Arc::clone(&self.blobs),
            job_master_factory: (self.config.job_master_factory)(self.job_master_context()),
            clean_up: components::job_cleaner(self.config.configuration.clone(), self.storage.path().to_owned()),
            spawn: self.job_master_spawner(alive),
            on_fatal_error,
        })
    }

    #[expect(clippy::disallowed_methods, reason = "the thread of a store waits for its JobMaster alone")]
    fn job_master_context(&self) -> JobMasterContext {
        let rpc = self.rpc.clone();
        let send = move |envelope: Envelope| {
            while rpc.send(envelope.clone()) == Delivery::QueueFull {
                std::thread::sleep(FULL_QUEUE_PAUSE);
            }
        };
        let state_is_kept = !matches!(self.config.storage, Storage::Temporary);
        let (blobs, state_directory) = (Arc::clone(&self.blobs), self.storage.path().to_owned());
        JobMasterContext { blobs, state_directory, state_is_kept, send: Arc::new(send) }
    }

    /// Each loop holds a clone of `alive` until it has ended.
    fn job_master_spawner(&self, alive: mpsc::Sender<()>) -> JobMasterSpawner {
        let rpc = self.rpc.clone();
        let clock = self.config.clock.clone();
        Box::new(move |job, job_master, endpoint| {
            let (rpc, clock, alive) = (rpc.clone(), clock.clone(), alive.clone());
            let mailbox = rpc.register(Address::JobMaster(job));
            tokio::spawn(async move {
                if let Err(problem) = run_job_master(job, endpoint, mailbox, clock).await {
                    rpc.send_waiting(job_master_failed(died(job, job_master, problem))).await;
                }
                rpc.send_waiting(job_master_closed(job, job_master)).await;
                drop(alive);
            });
        })
    }
}

async fn run_job_master(
    job: JobId,
    endpoint: Box<dyn Endpoint + Send>,
    mailbox: Result<Mailbox, AddressTaken>,
    clock: Clock,
) -> Result<(), String> {
    let mailbox = mailbox.map_err(|error| error.to_string())?;
    let span = tracing::info_span!("loop", name = %mailbox.address());
    let run = run_endpoint(endpoint, mailbox, clock, Handlers::MayBlock).instrument(span);
    tokio::spawn(run).await.map_err(|error| format!("the JobMaster of job {job} died: {}", panic_message(error)))
}

fn died(job: JobId, job_master: JobMasterId, message: String) -> JobMasterFailed {
    let detail = "this is a bug of the engine: please report it".to_owned();
    let cause =
        FailureCause { code: "internal".to_owned(), message, detail, recoverability: Recoverability::Unrecoverable };
    JobMasterFailed { job, job_master, cause }
}

/// Tells a TaskExecutor whenever another ResourceManager leads. Never ends.
async fn forward_leader(rpc: RpcService, to: Address, mut leader: watch::Receiver<Option<Fence>>) {
    while leader.changed().await.is_ok() {
        let fence = *leader.borrow_and_update();
        if let Some(Fence::ResourceManager(id)) = fence {
            let message = Message::TaskExecutor(TaskExecutorMessage::ResourceManagerLeader(id));
            rpc.send_waiting(to_itself(to.clone(), Fence::None, message)).await;
        }
    }
    std::future::pending::<()>().await;
}

/// Runs a ResourceManager for each leadership, the next when the former has ended.
async fn lead_resource_manager(services: Services, mut contender: Contender, first: Mailbox) {
    let mut mailbox = Some(first);
    loop {
        let Some(fence) = services.next_session(&mut contender).await else { return };
        let Fence::ResourceManager(id) = fence else { return };
        let config = ResourceManagerConfig::from_configuration(&services.config.configuration);
        let draw_allocation = Box::new(AllocationId::random);
        let endpoint = ResourceManager::new(id, config, services.election.clone(), draw_allocation);
        let mailbox = match mailbox.take().map_or_else(|| services.rpc.register(Address::ResourceManager), Ok) {
            Ok(mailbox) => mailbox,
            Err(error) => return fail(&services.state, error.to_string()),
        };
        if !contender.confirm(fence) {
            continue;
        }
        let clock = services.config.clock.clone();
        let run = run_endpoint(Box::new(endpoint), mailbox, clock, Handlers::Compute);
        tokio::pin!(run);
        tokio::select! {
            () = &mut run => return,
            _ = contender.changed() => {
                services.rpc.unregister(&Address::ResourceManager);
                run.await;
            }
        }
    }
}

/// Runs a Dispatcher for each leadership, the next when the former has ended. Says once
/// through `ready` whether the first could take over what is stored.
async fn lead_dispatcher(
    services: Services,
    mut contender: Contender,
    alive: mpsc::Sender<()>,
    ready: oneshot::Sender<Result<(), ClusterError>>,
) {
    let mut ready = Some(ready);
    let mut report = move |outcome: Result<(), ClusterError>, services: &Services| match (ready.take(), outcome) {
        (Some(ready), outcome) => {
            if ready.send(outcome).is_err() {
                tracing::debug!("whoever started the cluster did not wait for it");
            }
        }
        (None, Err(error)) => fail(&services.state, format!("{:#}", anyhow::Error::from(error))),
        (None, Ok(())) => {}
    };
    loop {
        let Some(fence) = services.next_session(&mut contender).await else { return };
        let recovered = services
            .dispatcher_parts(fence, alive.clone())
            .and_then(|parts| Ok(Dispatcher::recover(parts)?))
            .and_then(|dispatcher| Ok((dispatcher, services.rpc.register(Address::Dispatcher)?)));
        let (dispatcher, mailbox) = match recovered {
            Ok(recovered) => recovered,
            Err(error) => return report(Err(error), &services),
        };
        if !contender.confirm(fence) {
            continue;
        }
        report(Ok(()), &services);
        let clock = services.config.clock.clone();
        let run = run_endpoint(Box::new(dispatcher), mailbox, clock, Handlers::MayBlock);
        tokio::pin!(run);
        tokio::select! {
            () = &mut run => {
                services.state.send_if_modified(|state| {
                    let is_first = *state == ClusterState::Running;
                    if is_first {
                        *state = ClusterState::Ended;
                    }
                    is_first
                });
                return;
            }
            _ = contender.changed() => {
                let stop = DispatcherMessage::Stop("the leadership was revoked".to_owned());
                let message = Message::Dispatcher(stop);
                services.rpc.send_waiting(to_itself(Address::Dispatcher, fence, message)).await;
                run.await;
            }
        }
    }
}

impl Services {
    /// The session of a contender, as soon as it has one; none: the cluster ends.
    async fn next_session(&self, contender: &mut Contender) -> Option<Fence> {
        let mut state = self.state.subscribe();
        loop {
            if *state.borrow_and_update() != ClusterState::Running {
                return None;
            }
            if let Some(fence) = contender.session() {
                return Some(fence);
            }
            tokio::select! {
                _ = contender.changed() => {}
                changed = state.changed() => changed.ok()?,
            }
        }
    }
}

/// Removes the files of state on disk.
fn remove_state(path: &Path) -> Result<(), StorageError> {
    match fs::remove_dir_all(path) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StorageError::Io { action: "remove", path: path.to_owned(), source })
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Notes why the cluster cannot go on; the first reason counts.
fn fail(state: &watch::Sender<ClusterState>, problem: String) {
    tracing::error!(problem, "the cluster cannot go on");
    state.send_if_modified(|state| {
        let is_first = *state == ClusterState::Running;
        if is_first {
            *state = ClusterState::Failed(problem);
        }
        is_first
    });
}

fn to_itself(address: Address, fence: Fence, message: Message) -> Envelope {
    Envelope { from: address.clone(), to: address, fence, message }
}

fn panic_message(error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(payload) => match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload.downcast_ref::<&str>().map_or("it panicked", |text| text).to_owned(),
        },
        Err(error) => error.to_string(),
    }
}

/// Memory of the machine, where the system tells.
fn memory_bytes() -> Option<u64> {
    let info = fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod alignment_simulation;
#[cfg(test)]
mod scripted_job_master;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
