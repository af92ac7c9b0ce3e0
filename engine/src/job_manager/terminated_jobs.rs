//! Jobs that have ended, kept for those who ask: at most as many bytes as
//! `jobstore.cache-size`, each for at most `jobstore.expiration-time`. The oldest go
//! first. Pure.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use crate::{
    base::{clock::Timestamp, ids::JobId},
    protocol::job_details::{JobDetails, JobOverview},
};

/// The ended jobs of one Dispatcher.
#[derive(Debug)]
pub struct TerminatedJobs {
    bytes_max: u64,
    expiration: Duration,
    bytes: u64,
    jobs: BTreeMap<JobId, TerminatedJob>,
    /// In the order in which they ended.
    order: VecDeque<JobId>,
}

#[derive(Debug)]
struct TerminatedJob {
    details: JobDetails,
    overview: JobOverview,
    bytes: u64,
    expires: Timestamp,
}

impl TerminatedJobs {
    /// Makes an empty store.
    pub fn new(bytes_max: u64, expiration: Duration) -> Self {
        Self { bytes_max, expiration, bytes: 0, jobs: BTreeMap::new(), order: VecDeque::new() }
    }

    /// Keeps a job. The newest is kept even if it alone is longer than allowed.
    pub fn insert(&mut self, details: JobDetails, overview: JobOverview, now: Timestamp) {
        let job = details.job;
        self.remove(job);
        let bytes = encoded_bytes(&details);
        self.bytes += bytes;
        let expires = now.plus(self.expiration);
        self.jobs.insert(job, TerminatedJob { details, overview, bytes, expires });
        self.order.push_back(job);
        while self.bytes_max < self.bytes && 1 < self.order.len() {
            self.remove_oldest();
        }
    }

    /// All there is to know of a job that is still kept.
    pub fn details(&self, job: JobId) -> Option<&JobDetails> {
        self.jobs.get(&job).map(|job| &job.details)
    }

    /// All kept jobs, in the order in which they ended.
    pub fn overviews(&self) -> impl Iterator<Item = &JobOverview> {
        self.order.iter().map(|job| &self.jobs[job].overview)
    }

    /// When the next job expires.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.order.front().map(|job| self.jobs[job].expires)
    }

    /// Forgets the jobs that have expired.
    pub fn expire(&mut self, now: Timestamp) {
        while self.next_deadline().is_some_and(|deadline| deadline <= now) {
            self.remove_oldest();
        }
    }

    fn remove_oldest(&mut self) {
        if let Some(job) = self.order.front().copied() {
            self.remove(job);
        }
    }

    /// Forgets a job.
    pub fn remove(&mut self, job: JobId) {
        if let Some(removed) = self.jobs.remove(&job) {
            self.bytes -= removed.bytes;
            self.order.retain(|kept| *kept != job);
        }
    }
}

/// Encoded length, as a measure of what details take.
fn encoded_bytes(details: &JobDetails) -> u64 {
    let bytes = postcard::to_stdvec(details).expect("postcard writes every type of the details");
    bytes.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::status::JobStatus,
        job_manager::{
            dispatcher::{details_of_graph, overview_of},
            test_graphs::job_graph,
        },
    };

    fn insert(jobs: &mut TerminatedJobs, number: u8, now: i64) -> JobId {
        let graph = job_graph(number, &[("a", 1)]);
        let details = details_of_graph(&graph, JobStatus::Finished, Timestamp(0), Timestamp(now), None);
        let overview = overview_of(&details);
        jobs.insert(details, overview, Timestamp(now));
        graph.job_id
    }

    fn kept(jobs: &TerminatedJobs) -> Vec<JobId> {
        jobs.overviews().map(|overview| overview.job).collect()
    }

    #[test]
    fn the_oldest_make_room_and_the_newest_always_stays() {
        let mut jobs = TerminatedJobs::new(u64::MAX, Duration::from_secs(3600));
        insert(&mut jobs, 1, 0);
        let bytes = jobs.bytes;
        let mut jobs = TerminatedJobs::new(2 * bytes, Duration::from_secs(3600));
        let ids: Vec<_> = (1..=4).map(|number| insert(&mut jobs, number, 0)).collect();
        assert_eq!(kept(&jobs), ids[2..]);
        assert_eq!(jobs.bytes, 2 * bytes);
        let mut jobs = TerminatedJobs::new(1, Duration::from_secs(3600));
        insert(&mut jobs, 1, 0);
        let newest = insert(&mut jobs, 2, 0);
        assert_eq!(kept(&jobs), [newest]);
        assert!(jobs.details(newest).is_some());
    }

    #[test]
    fn a_job_expires() {
        let mut jobs = TerminatedJobs::new(u64::MAX, Duration::from_millis(100));
        let first = insert(&mut jobs, 1, 0);
        let second = insert(&mut jobs, 2, 50);
        assert_eq!(jobs.next_deadline(), Some(Timestamp(100)));
        jobs.expire(Timestamp(99));
        assert_eq!(kept(&jobs), [first, second]);
        jobs.expire(Timestamp(100));
        assert_eq!(kept(&jobs), [second]);
        jobs.expire(Timestamp(150));
        assert_eq!((jobs.next_deadline(), jobs.bytes), (None, 0));
    }
}
