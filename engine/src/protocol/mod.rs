//! The messages of the control plane: one file per receiver.

pub mod rpc;
pub mod wire;
pub mod dispatcher;
pub mod resource_manager;
pub mod job_master;
pub mod task_executor;
pub mod job_details;
pub mod checkpoint_details;
