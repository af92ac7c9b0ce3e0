//! How messages get from one component to another, in one process or between two.
//!
//! Every message has an [`Address`] it goes to, one it comes from and a [`Fence`].
//! A receiver drops messages whose fence is not its own, in one place, and counts them.
//!
//! [`RpcService`] is the bus of one process: a bounded queue per address, in which
//! messages of one sender keep their order. [`run_endpoint`] is the one loop that all
//! components run in. A component never waits for another: what a full queue does not
//! take stays in the sender's [`Outbox`] and is tried again.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt,
    sync::{
        Arc, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use serde::{Deserialize, Serialize};
use tokio::{
    runtime::{Handle, RuntimeFlavor},
    sync::{mpsc, oneshot, watch},
    time::timeout,
};

use super::{
    dispatcher::{DispatcherError, DispatcherMessage, DispatcherRequest, DispatcherResponse},
    job_master::JobMasterMessage,
    resource_manager::ResourceManagerMessage,
    task_executor::TaskExecutorMessage,
    wire,
};
use crate::base::{
    clock::{Clock, Timestamp},
    ids::{DispatcherId, JobId, JobMasterId, ResourceId, ResourceManagerId},
};

/// Messages that wait for one component. A JobMaster with a thousand tasks gets at
/// most a few per task at once; more stay with their senders.
pub const QUEUE_CAPACITY: usize = 4096;
/// Messages that one component keeps for receivers whose queues are full; beyond
/// them the oldest is given up and counted, as if the connection had broken.
pub const OUTBOX_CAPACITY: usize = 65_536;
/// Requests of clients that wait for an answer; a further one waits to be asked.
pub const CLIENT_CALLS_MAX: usize = 10_000;

/// Pause before a full queue is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);
/// How often a loop looks at a clock that only tests move.
const VIRTUAL_CLOCK_INTERVAL: Duration = Duration::from_millis(1);

/// A component.
#[derive(Clone, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub enum Address {
    /// The leading Dispatcher.
    Dispatcher,
    /// The leading ResourceManager.
    ResourceManager,
    /// The leading JobMaster of a job.
    JobMaster(JobId),
    /// A TaskExecutor.
    TaskExecutor(ResourceId),
    /// A client of the Dispatcher, numbered by its process.
    Client(u64),
}

/// The leadership that a message is meant for.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Fence {
    /// The receiver's leadership as a Dispatcher.
    Dispatcher(DispatcherId),
    /// The ResourceManager's leadership: the receiver's, or the sender's if a TaskExecutor receives.
    ResourceManager(ResourceManagerId),
    /// The JobMaster's leadership: the receiver's, or the sender's if a TaskExecutor receives.
    JobMaster(JobMasterId),
    /// For registrations and answers to clients, which no leadership binds.
    None,
}

/// A message to any component.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub enum Message {
    /// To the Dispatcher.
    Dispatcher(DispatcherMessage),
    /// To the ResourceManager.
    ResourceManager(ResourceManagerMessage),
    /// To a JobMaster.
    JobMaster(JobMasterMessage),
    /// To a TaskExecutor.
    TaskExecutor(TaskExecutorMessage),
    /// To a client: the answer to its request of that number.
    Client(u64, DispatcherResponse),
}

/// A message on its way.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Envelope {
    /// Who sent it.
    pub from: Address,
    /// Who receives it.
    pub to: Address,
    /// The leadership that it is meant for.
    pub fence: Fence,
    /// The message.
    pub message: Message,
}

impl fmt::Display for Address {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dispatcher => formatter.write_str("Dispatcher"),
            Self::ResourceManager => formatter.write_str("ResourceManager"),
            Self::JobMaster(job) => write!(formatter, "JobMaster of job {job}"),
            Self::TaskExecutor(id) => write!(formatter, "TaskExecutor {id}"),
            Self::Client(number) => write!(formatter, "client {number}"),
        }
    }
}

/// A component of the control plane: decides, and leaves acting to its loop. The
/// loop hands it one message at a time and wakes it at its next deadline; tests
/// call it directly, on a clock of their own.
pub trait Endpoint {
    /// Called once, before any message; returns what to send.
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope>;

    /// Takes one message; returns what to send.
    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope>;

    /// Called when [`Endpoint::next_deadline`] has come; returns what to send.
    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope>;

    /// When to call [`Endpoint::on_deadline`]; asked after each call.
    fn next_deadline(&self) -> Option<Timestamp>;

    /// True when the loop is to end; asked after each call.
    fn is_terminated(&self) -> bool;
}

/// How messages travel.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Transport {
    /// As they are.
    Direct,
    /// Encoded and decoded again, as between two processes.
    Wire,
}

/// What became of a message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Delivery {
    /// It lies in the receiver's queue.
    Delivered,
    /// Nobody has the address.
    Unreachable,
    /// The receiver has [`QUEUE_CAPACITY`] messages to read first.
    QueueFull,
    /// The codec refused it.
    Unencodable,
}

/// A message that was not delivered, and why.
#[derive(Debug)]
struct Undelivered {
    envelope: Box<Envelope>,
    delivery: Delivery,
}

/// An address is taken.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("the address of {0} is taken: its former owner has not ended")]
pub struct AddressTaken(Address);

/// Numbers of messages by what became of them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct DeliveryCounts {
    /// Taken by a queue.
    pub delivered: u64,
    /// Without receiver.
    pub unreachable: u64,
    /// Refused by a full queue, the same message once per try.
    pub queue_full: u64,
    /// Refused by the codec.
    pub unencodable: u64,
    /// Given up, since an [`Outbox`] was full too.
    pub given_up: u64,
}

/// The message bus of a process. Cloning gives another handle.
#[derive(Clone, Debug)]
pub struct RpcService {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// A lock and no message: it is held for one look-up, and a bus that had to be
    /// asked by message would be a queue before each queue.
    queues: RwLock<HashMap<Address, mpsc::Sender<Envelope>>>,
    transport: Transport,
    delivered: AtomicU64,
    unreachable: AtomicU64,
    queue_full: AtomicU64,
    unencodable: AtomicU64,
    given_up: AtomicU64,
}

impl RpcService {
    /// Makes a bus without receivers.
    pub fn new(transport: Transport) -> Self {
        let shared = Shared {
            queues: RwLock::default(),
            transport,
            delivered: AtomicU64::new(0),
            unreachable: AtomicU64::new(0),
            queue_full: AtomicU64::new(0),
            unencodable: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Opens a queue under an address; dropping the mailbox closes it.
    ///
    /// # Errors
    /// Returns an error if the address is in use.
    pub fn register(&self, address: Address) -> Result<Mailbox, AddressTaken> {
        let mut queues = self.shared.queues.write().unwrap_or_else(PoisonError::into_inner);
        if queues.contains_key(&address) {
            return Err(AddressTaken(address));
        }
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        queues.insert(address.clone(), sender);
        Ok(Mailbox { address, receiver, rpc: self.clone() })
    }

    /// Closes the queue of an address: its owner reads what is there, and then
    /// learns that nothing will follow.
    pub fn unregister(&self, address: &Address) {
        self.shared.queues.write().unwrap_or_else(PoisonError::into_inner).remove(address);
    }

    /// Puts a message into its receiver's queue, or says why not. Never waits.
    pub fn send(&self, envelope: Envelope) -> Delivery {
        self.try_send(envelope).map_or_else(|undelivered| undelivered.delivery, |()| Delivery::Delivered)
    }

    /// Puts a message into its receiver's queue, waiting for room if there is none.
    /// For senders that end and so cannot try again.
    pub async fn send_waiting(&self, envelope: Envelope) -> Delivery {
        let mut next = envelope;
        loop {
            match self.try_send(next) {
                Ok(()) => return Delivery::Delivered,
                Err(Undelivered { envelope, delivery: Delivery::QueueFull }) => next = *envelope,
                Err(undelivered) => return undelivered.delivery,
            }
            tokio::time::sleep(RETRY_INTERVAL).await;
        }
    }

    /// All addresses that have a queue.
    pub fn addresses(&self) -> Vec<Address> {
        let queues = self.shared.queues.read().unwrap_or_else(PoisonError::into_inner);
        queues.keys().cloned().collect()
    }

    /// Numbers of messages since the start.
    pub fn counts(&self) -> DeliveryCounts {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DeliveryCounts {
            delivered: load(&self.shared.delivered),
            unreachable: load(&self.shared.unreachable),
            queue_full: load(&self.shared.queue_full),
            unencodable: load(&self.shared.unencodable),
            given_up: load(&self.shared.given_up),
        }
    }

    fn try_send(&self, envelope: Envelope) -> Result<(), Undelivered> {
        let result = self.enqueue(envelope);
        let counter = match &result {
            Ok(()) => &self.shared.delivered,
            Err(undelivered) => match undelivered.delivery {
                Delivery::Delivered => &self.shared.delivered,
                Delivery::Unreachable => &self.shared.unreachable,
                Delivery::QueueFull => &self.shared.queue_full,
                Delivery::Unencodable => &self.shared.unencodable,
            },
        };
        counter.fetch_add(1, Ordering::Relaxed);
        result
    }

    fn enqueue(&self, envelope: Envelope) -> Result<(), Undelivered> {
        let undelivered = |envelope, delivery| Err(Undelivered { envelope: Box::new(envelope), delivery });
        let queue = {
            let queues = self.shared.queues.read().unwrap_or_else(PoisonError::into_inner);
            queues.get(&envelope.to).cloned()
        };
        let Some(queue) = queue else {
            return undelivered(envelope, Delivery::Unreachable);
        };
        let permit = match queue.try_reserve() {
            Ok(permit) => permit,
            Err(mpsc::error::TrySendError::Full(())) => return undelivered(envelope, Delivery::QueueFull),
            Err(mpsc::error::TrySendError::Closed(())) => return undelivered(envelope, Delivery::Unreachable),
        };
        let received = match self.shared.transport {
            Transport::Direct => envelope,
            Transport::Wire => match wire::encode(&envelope).and_then(|bytes| wire::decode(&bytes)) {
                Ok(received) => received,
                Err(error) => {
                    tracing::error!(from = %envelope.from, to = %envelope.to, %error, "a message cannot be sent");
                    return undelivered(envelope, Delivery::Unencodable);
                }
            },
        };
        permit.send(received);
        Ok(())
    }
}

/// The receiving end of an address. Dropping it frees the address.
#[derive(Debug)]
pub struct Mailbox {
    address: Address,
    receiver: mpsc::Receiver<Envelope>,
    rpc: RpcService,
}

impl Mailbox {
    /// Who receives.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// The next message, or none when the queue is closed and empty.
    ///
    /// # Cancel safety
    /// No message is lost if the future is dropped.
    pub async fn receive(&mut self) -> Option<Envelope> {
        self.receiver.recv().await
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        // While this mailbox lives nobody else can have the address, but its queue
        // may have been closed and opened again under the same address since.
        let mut queues = self.rpc.shared.queues.write().unwrap_or_else(PoisonError::into_inner);
        self.receiver.close();
        if queues.get(&self.address).is_some_and(mpsc::Sender::is_closed) {
            queues.remove(&self.address);
        }
    }
}

/// Messages of one sender that wait for room, in order for each receiver.
#[derive(Debug)]
struct Outbox {
    rpc: RpcService,
    waiting: VecDeque<Envelope>,
}

impl Outbox {
    fn send(&mut self, envelopes: Vec<Envelope>) {
        self.waiting.extend(envelopes);
        self.flush();
    }

    fn flush(&mut self) {
        let mut full = HashSet::new();
        for _ in 0..self.waiting.len() {
            let envelope = self.waiting.pop_front().expect("counted above");
            if full.contains(&envelope.to) {
                self.waiting.push_back(envelope);
                continue;
            }
            let Err(undelivered) = self.rpc.try_send(envelope) else { continue };
            let Undelivered { envelope, delivery } = undelivered;
            match delivery {
                Delivery::Delivered | Delivery::Unencodable => {}
                Delivery::Unreachable => {
                    tracing::debug!(from = %envelope.from, to = %envelope.to, "the receiver is not there");
                }
                Delivery::QueueFull => {
                    full.insert(envelope.to.clone());
                    self.waiting.push_back(*envelope);
                }
            }
        }
        while OUTBOX_CAPACITY < self.waiting.len() {
            let envelope = self.waiting.pop_front().expect("longer than the capacity");
            self.rpc.shared.given_up.fetch_add(1, Ordering::Relaxed);
            tracing::warn!(from = %envelope.from, to = %envelope.to, "a message was given up: its receiver is stuck");
        }
    }
}

/// How the handlers of an endpoint are run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Handlers {
    /// They only compute.
    Compute,
    /// They may block: a JobMaster lists files and commits sinks, a Dispatcher writes
    /// graphs and results. They run by `block_in_place`, which hands the other loops
    /// of the thread to another one first. A thread of its own for each JobMaster
    /// would do too, but costs a thread per job that mostly waits.
    MayBlock,
}

impl Handlers {
    fn run<T>(self, handler: impl FnOnce() -> T) -> T {
        match (self, Handle::current().runtime_flavor()) {
            (Self::MayBlock, RuntimeFlavor::MultiThread) => tokio::task::block_in_place(handler),
            // A runtime with one thread has nobody to hand the others to.
            (Self::MayBlock | Self::Compute, _) => handler(),
        }
    }
}

/// Runs a component until it has terminated or its queue is closed: one message at a
/// time, deadlines in between, so that neither starves the other. Its last messages
/// are delivered even to full queues, after its address was freed.
pub async fn run_endpoint(
    mut endpoint: Box<dyn Endpoint + Send>,
    mut mailbox: Mailbox,
    clock: Clock,
    handlers: Handlers,
) {
    let rpc = mailbox.rpc.clone();
    let mut outbox = Outbox { rpc: rpc.clone(), waiting: VecDeque::new() };
    outbox.send(handlers.run(|| endpoint.on_start(clock.now())));
    while !endpoint.is_terminated() {
        let now = clock.now();
        if endpoint.next_deadline().is_some_and(|deadline| deadline <= now) {
            outbox.send(handlers.run(|| endpoint.on_deadline(now)));
            if endpoint.is_terminated() {
                break;
            }
        }
        outbox.flush();
        let received = match pause(endpoint.next_deadline(), &clock, &outbox) {
            None => mailbox.receive().await,
            Some(pause) => match timeout(pause, mailbox.receive()).await {
                Ok(received) => received,
                Err(_) => continue,
            },
        };
        let Some(envelope) = received else { break };
        outbox.send(handlers.run(|| endpoint.on_message(envelope, clock.now())));
    }
    drop(mailbox);
    for envelope in outbox.waiting {
        rpc.send_waiting(envelope).await;
    }
}

/// How long a loop may wait for a message; none: until one comes.
fn pause(deadline: Option<Timestamp>, clock: &Clock, outbox: &Outbox) -> Option<Duration> {
    let until_deadline = deadline.map(|deadline| match clock {
        Clock::System => deadline.since(clock.now()),
        Clock::Virtual(_) => VIRTUAL_CLOCK_INTERVAL,
    });
    let until_retry = (!outbox.waiting.is_empty()).then_some(RETRY_INTERVAL);
    until_deadline.into_iter().chain(until_retry).min()
}

/// A request of a client in this process, with where its answer goes.
#[derive(Debug)]
pub struct ClientCall {
    /// The request.
    pub request: DispatcherRequest,
    /// Takes the answer.
    pub reply: oneshot::Sender<DispatcherResponse>,
}

/// Asks the leading Dispatcher.
#[derive(Clone, Debug)]
pub struct DispatcherGateway {
    calls: mpsc::Sender<ClientCall>,
}

impl DispatcherGateway {
    /// Makes a gateway whose calls arrive at the other end of `calls`.
    pub fn new(calls: mpsc::Sender<ClientCall>) -> Self {
        Self { calls }
    }

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// Returns the Dispatcher's refusal, or that there is no Dispatcher.
    pub async fn request(&self, request: DispatcherRequest) -> Result<DispatcherResponse, DispatcherError> {
        let no_leader = || DispatcherError::NoLeader("Dispatcher".to_owned());
        let (reply, answer) = oneshot::channel();
        self.calls.send(ClientCall { request, reply }).await.map_err(|_| no_leader())?;
        match answer.await.map_err(|_| no_leader())? {
            DispatcherResponse::Refused(error) => Err(error),
            response => Ok(response),
        }
    }
}

/// Turns calls of gateways into messages to the leading Dispatcher, and its answers
/// into answers to the calls. Ends when its address is unregistered. A call that no
/// leader takes, or whose leader is no more, is answered by [`DispatcherError::NoLeader`].
pub async fn run_gateway(
    mut calls: mpsc::Receiver<ClientCall>,
    mut mailbox: Mailbox,
    mut leader: watch::Receiver<Option<Fence>>,
) {
    let mut pending = BTreeMap::<u64, (Fence, oneshot::Sender<DispatcherResponse>)>::new();
    let mut next_number = 0;
    loop {
        if CLIENT_CALLS_MAX <= pending.len() {
            pending.retain(|_, (_, reply)| !reply.is_closed());
        }
        tokio::select! {
            // In this order: what a leader answered before it went is not taken for lost.
            biased;
            envelope = mailbox.receive() => {
                let Some(envelope) = envelope else { return };
                let Message::Client(number, response) = envelope.message else {
                    tracing::warn!(from = %envelope.from, "a client received a message that is no answer");
                    continue;
                };
                if let Some((_, reply)) = pending.remove(&number) {
                    answer(reply, response);
                }
            }
            changed = leader.changed() => {
                // The election is gone with its process; what waits is told so below.
                if changed.is_err() { return }
                let current = *leader.borrow_and_update();
                for (_, (_, reply)) in pending.extract_if(.., |_, (fence, _)| Some(*fence) != current) {
                    answer(reply, no_leader());
                }
            }
            call = calls.recv(), if pending.len() < CLIENT_CALLS_MAX && !calls.is_closed() => {
                let Some(ClientCall { request, reply }) = call else { continue };
                let Some(fence) = *leader.borrow() else {
                    answer(reply, no_leader());
                    continue;
                };
                next_number += 1;
                let delivery = mailbox.rpc.send_waiting(Envelope {
                    from: mailbox.address.clone(),
                    to: Address::Dispatcher,
                    fence,
                    message: Message::Dispatcher(DispatcherMessage::Request(next_number, request)),
                }).await;
                match delivery {
                    Delivery::Delivered => {
                        pending.insert(next_number, (fence, reply));
                    }
                    Delivery::Unreachable | Delivery::QueueFull => answer(reply, no_leader()),
                    Delivery::Unencodable => {
                        let problem = format!("the request is longer than {} bytes", wire::MESSAGE_BYTES_MAX);
                        answer(reply, DispatcherResponse::Refused(DispatcherError::InvalidJob(problem)));
                    }
                }
            }
        }
    }
}

fn no_leader() -> DispatcherResponse {
    DispatcherResponse::Refused(DispatcherError::NoLeader("Dispatcher".to_owned()))
}

fn answer(reply: oneshot::Sender<DispatcherResponse>, response: DispatcherResponse) {
    if reply.send(response).is_err() {
        tracing::debug!("a client did not wait for its answer");
    }
}

#[cfg(test)]
#[path = "rpc_tests.rs"]
mod tests;
