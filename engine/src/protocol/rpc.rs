//! How messages get from one component to another, in one process or between two.
//!
//! Every message has an [`Address`] it goes to, one it comes from and a [`Fence`].
//! A receiver drops messages whose fence is not its own, in one place, and counts them.

use serde::{Deserialize, Serialize};

use super::{
    dispatcher::{DispatcherMessage, DispatcherResponse},
    job_master::JobMasterMessage,
    resource_manager::ResourceManagerMessage,
    task_executor::TaskExecutorMessage,
};
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
