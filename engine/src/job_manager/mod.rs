//! The JobManager: what decides over jobs. It meets TaskExecutors in [`crate::protocol`] only.

pub mod job_master;
