//! How messages get from one component to another, in one process or between two.
//!
//! Every message has an [`Address`] it goes to, one it comes from and a [`Fence`].
//! A receiver drops messages whose fence is not its own, in one place, and counts them.

use serde::{Deserialize, Serialize};

use super::{
    dispatcher::{DispatcherError, DispatcherMessage, DispatcherRequest, DispatcherResponse},
    job_master::JobMasterMessage,
    resource_manager::ResourceManagerMessage,
    task_executor::TaskExecutorMessage,
};
use tokio::sync::{mpsc, oneshot};

use crate::base::clock::Timestamp;
use crate::base::ids::{DispatcherId, JobId, JobMasterId, ResourceId, ResourceManagerId};

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
#[expect(clippy::large_enum_variant, reason = "control messages are few")]
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
