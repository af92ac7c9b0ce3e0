//! The TaskExecutors that have slots for one job, and their heartbeats. Pure.

use std::{collections::BTreeMap, time::Duration};

use crate::base::{clock::Timestamp, ids::ResourceId};

/// Whether a TaskExecutor was sent what all tasks of the job share.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum JobInformationState {
    Missing,
    Sent,
}

#[derive(Clone, Debug)]
struct RegisteredTaskExecutor {
    last_heard: Timestamp,
    job_information: JobInformationState,
}

/// The registered TaskExecutors of a job.
#[derive(Clone, Debug)]
pub struct TaskExecutors {
    interval: Duration,
    timeout: Duration,
    registered: BTreeMap<ResourceId, RegisteredTaskExecutor>,
    next_heartbeat: Timestamp,
}

impl TaskExecutors {
    /// Makes an empty registry.
    pub fn new(interval: Duration, timeout: Duration, now: Timestamp) -> Self {
        Self { interval, timeout, registered: BTreeMap::new(), next_heartbeat: now.plus(interval) }
    }

    /// Registers a TaskExecutor, which may have been registered before; it is taken to
    /// know nothing of the job.
    pub fn register(&mut self, id: &ResourceId, now: Timestamp) {
        let registration = RegisteredTaskExecutor { last_heard: now, job_information: JobInformationState::Missing };
        self.registered.insert(id.clone(), registration);
    }

    /// Removes a TaskExecutor; returns false if there was none.
    pub fn remove(&mut self, id: &ResourceId) -> bool {
        self.registered.remove(id).is_some()
    }

    /// True if it is registered.
    pub fn contains(&self, id: &ResourceId) -> bool {
        self.registered.contains_key(id)
    }

    /// All of them.
    pub fn ids(&self) -> impl Iterator<Item = &ResourceId> {
        self.registered.keys()
    }

    /// A message of the TaskExecutor came.
    pub fn heard(&mut self, id: &ResourceId, now: Timestamp) {
        if let Some(registered) = self.registered.get_mut(id) {
            registered.last_heard = now;
        }
    }

    /// True, once, if the job information is still to be sent.
    pub fn take_job_information(&mut self, id: &ResourceId) -> bool {
        match self.registered.get_mut(id) {
            Some(registered) if registered.job_information == JobInformationState::Missing => {
                registered.job_information = JobInformationState::Sent;
                true
            }
            Some(_) | None => false,
        }
    }

    /// True if heartbeats are to be sent to all.
    pub fn take_heartbeat(&mut self, now: Timestamp) -> bool {
        if now < self.next_heartbeat {
            return false;
        }
        self.next_heartbeat = now.plus(self.interval);
        true
    }

    /// Those that were silent for too long.
    pub fn silent(&self, now: Timestamp) -> Vec<ResourceId> {
        let silent = |registered: &RegisteredTaskExecutor| registered.last_heard.plus(self.timeout) <= now;
        self.registered.iter().filter(|(_, registered)| silent(registered)).map(|(id, _)| id.clone()).collect()
    }

    /// When a heartbeat is due or a TaskExecutor counts as lost.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let timeouts = self.registered.values().map(|registered| registered.last_heard.plus(self.timeout));
        timeouts.min().map(|timeout| timeout.min(self.next_heartbeat))
    }
}
