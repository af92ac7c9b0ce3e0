//! Makes the JobMaster of one leadership and stands before it.
//!
//! The JobMaster is made in its own loop, since that may take long: messages that come
//! meanwhile, a cancel among them, wait in the queue. It is published as the leader
//! only when it was made, and only if its session is still the granted one.

use std::{mem, sync::Arc};

use super::leader_election::Contender;
use crate::{
    base::{
        clock::Timestamp,
        ids::{JobId, JobMasterId},
    },
    graph::job_graph::JobGraph,
    protocol::{
        dispatcher::{DispatcherMessage, JobMasterFailed},
        job_master::FailureCause,
        rpc::{Address, Endpoint, Envelope, Fence, Message},
    },
};

/// Makes the JobMaster of a job for a leadership.
///
/// # Errors
/// Returns why the job cannot be run: it fails, and no task was started.
pub type JobMasterFactory =
    Arc<dyn Fn(JobGraph, JobMasterId) -> Result<Box<dyn Endpoint + Send>, FailureCause> + Send + Sync>;

enum Phase {
    Created(Box<JobGraph>),
    Running(Box<dyn Endpoint + Send>),
    Ended,
}

/// The component. See the module's documentation.
pub struct JobMasterRunner {
    job: JobId,
    job_master: JobMasterId,
    contender: Contender,
    factory: JobMasterFactory,
    phase: Phase,
}

impl JobMasterRunner {
    /// Stands for a JobMaster that is not made yet. `job_master` is the session that
    /// `contender` was granted.
    pub fn new(graph: JobGraph, job_master: JobMasterId, contender: Contender, factory: JobMasterFactory) -> Self {
        let job = graph.job_id;
        Self { job, job_master, contender, factory, phase: Phase::Created(Box::new(graph)) }
    }

    fn failed(&mut self, cause: FailureCause) -> Vec<Envelope> {
        self.phase = Phase::Ended;
        let failed = JobMasterFailed { job: self.job, job_master: self.job_master, cause };
        vec![job_master_failed(failed)]
    }
}

/// Tells the Dispatcher that a JobMaster is not there.
pub fn job_master_failed(failed: JobMasterFailed) -> Envelope {
    Envelope {
        from: Address::JobMaster(failed.job),
        to: Address::Dispatcher,
        fence: Fence::JobMaster(failed.job_master),
        message: Message::Dispatcher(DispatcherMessage::JobMasterFailed(failed)),
    }
}

/// Tells the Dispatcher that the loop of a JobMaster has ended and its address is free.
pub fn job_master_closed(job: JobId, job_master: JobMasterId) -> Envelope {
    Envelope {
        from: Address::JobMaster(job),
        to: Address::Dispatcher,
        fence: Fence::JobMaster(job_master),
        message: Message::Dispatcher(DispatcherMessage::JobMasterClosed(job, job_master)),
    }
}

impl Endpoint for JobMasterRunner {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        let Phase::Created(graph) = mem::replace(&mut self.phase, Phase::Ended) else { return Vec::new() };
        let mut job_master = match (self.factory)(*graph, self.job_master) {
            Ok(job_master) => job_master,
            Err(cause) => return self.failed(cause),
        };
        if !self.contender.confirm(Fence::JobMaster(self.job_master)) {
            // Whoever leads by now makes its own; this one has done nothing yet.
            tracing::info!(job = %self.job, "leadership was lost while the JobMaster was made");
            return Vec::new();
        }
        let envelopes = job_master.on_start(now);
        self.phase = Phase::Running(job_master);
        envelopes
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        match &mut self.phase {
            Phase::Running(job_master) => job_master.on_message(envelope, now),
            Phase::Created(_) | Phase::Ended => Vec::new(),
        }
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        match &mut self.phase {
            Phase::Running(job_master) => job_master.on_deadline(now),
            Phase::Created(_) | Phase::Ended => Vec::new(),
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        match &self.phase {
            Phase::Running(job_master) => job_master.next_deadline(),
            Phase::Created(_) | Phase::Ended => None,
        }
    }

    fn is_terminated(&self) -> bool {
        match &self.phase {
            Phase::Running(job_master) => job_master.is_terminated(),
            Phase::Created(_) => false,
            Phase::Ended => true,
        }
    }
}
