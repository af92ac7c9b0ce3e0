//! Who has slots and who needs some: matches the slots of all registered
//! TaskExecutors to what jobs declared. Pure: time comes in, requests go out.
//!
//! ```text
//!            check                 SlotAllocated, report
//!   Free ----------------> Pending ----------------------> Allocated
//!    ^  ^                     |                                |
//!    |  | requirement gone,   | SlotRefused                    |
//!    |  | free in a report    v                                |
//!    |  +------------------ Unknown                            |
//!    +---------------------------------------------------------+ SlotAvailable, report
//! ```
//!
//! What a TaskExecutor reports wins over what is written here; a pending request is
//! repeated until it is answered, so that a lost message delays and does not stop.
//!
//! Two jobs that each hold a part of what they need would wait for each other, and one
//! that needs more than there will ever be would keep what others could run with. So a
//! job gets all that it misses at once, or nothing; who has needed slots for longer is
//! asked first. A large job can be overtaken by smaller ones until its request times out.
//!
//! Invariants: a slot has one state, so it is promised to one job at a time; slots that
//! a job has or was promised never exceed what it declared by this component's doing.
//!
//! Source: Flink's FineGrainedSlotManager; declarative resource management (FLIP-138).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    base::{
        clock::Timestamp,
        ids::{AllocationId, JobId, JobMasterId, ResourceId, SlotId},
    },
    graph::job_graph::ResourceProfile,
    protocol::{resource_manager::SlotReport, task_executor::SlotRequest},
};

/// Pause before a slot request that was not answered is repeated.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);

/// Draws the id of an allocation; never the same twice.
pub type AllocationSource = Box<dyn FnMut() -> AllocationId + Send>;

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Slot {
    Free,
    Pending {
        job: JobId,
        job_master: JobMasterId,
        allocation: AllocationId,
        resend_at: Timestamp,
    },
    Allocated {
        job: JobId,
        allocation: AllocationId,
    },
    /// Refused by its TaskExecutor; the next report tells what it is.
    Unknown,
}

impl Slot {
    fn job(self) -> Option<JobId> {
        match self {
            Self::Pending { job, .. } | Self::Allocated { job, .. } => Some(job),
            Self::Free | Self::Unknown => None,
        }
    }
}

#[derive(Debug)]
struct TaskExecutorSlots {
    /// What one of its slots offers: its machine by the number of its slots.
    profile: ResourceProfile,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Requirements {
    job_master: JobMasterId,
    /// Place in the order in which jobs began to need slots.
    place: u64,
    /// One entry per slot, those with the largest profile first; `None`: any slot.
    slots: Vec<Option<ResourceProfile>>,
}

/// What a check found.
#[derive(Debug, Default, PartialEq)]
pub struct CheckResult {
    /// To be sent to the TaskExecutors of their slots.
    pub requests: Vec<SlotRequest>,
    /// Jobs that cannot have all they need, with the number of slots that they have,
    /// were promised or could have.
    pub short: Vec<(JobId, u32)>,
}

/// The slots of a cluster.
pub struct SlotManager {
    task_executors: BTreeMap<ResourceId, TaskExecutorSlots>,
    requirements: BTreeMap<JobId, Requirements>,
    /// Number of jobs that began to need slots.
    places: u64,
    draw_allocation: AllocationSource,
}

impl SlotManager {
    /// Makes a manager of no slots.
    pub fn new(draw_allocation: AllocationSource) -> Self {
        Self { task_executors: BTreeMap::new(), requirements: BTreeMap::new(), places: 0, draw_allocation }
    }

    /// Enters a TaskExecutor, in place of its former registration. What was pending stays
    /// so: the request may be on its way, and is repeated if it is not.
    pub fn register(&mut self, report: &SlotReport, cpu_cores: u32, memory_bytes: u64) {
        let count = report.slots.len().max(1) as u64;
        let profile = ResourceProfile { cpu_cores: f64::from(cpu_cores) / count as f64, memory: memory_bytes / count };
        let mut slots: Vec<Slot> = report.slots.iter().map(|slot| reported(*slot)).collect();
        let former = self.task_executors.get(&report.task_executor).map_or(&[][..], |former| &former.slots);
        for (slot, former) in slots.iter_mut().zip(former) {
            if let (Slot::Free, Slot::Pending { .. }) = (*slot, former) {
                *slot = *former;
            }
        }
        self.task_executors.insert(report.task_executor.clone(), TaskExecutorSlots { profile, slots });
    }

    /// Forgets a TaskExecutor with its slots.
    pub fn unregister(&mut self, task_executor: &ResourceId) {
        self.task_executors.remove(task_executor);
    }

    /// Takes over what a registered TaskExecutor reports. A pending slot that it calls
    /// free stays pending: the request may be on its way.
    pub fn update(&mut self, report: &SlotReport) {
        let Some(task_executor) = self.task_executors.get_mut(&report.task_executor) else { return };
        for (slot, report) in task_executor.slots.iter_mut().zip(&report.slots) {
            match (*slot, report) {
                (Slot::Pending { .. }, None) => {}
                (Slot::Free | Slot::Pending { .. } | Slot::Allocated { .. } | Slot::Unknown, _) => {
                    *slot = reported(*report);
                }
            }
        }
    }

    /// A TaskExecutor gave the slot to the job as it was asked to.
    pub fn allocated(&mut self, slot_id: &SlotId, allocation: AllocationId) {
        let Some(slot) = self.slot_mut(slot_id) else { return };
        match *slot {
            Slot::Pending { job, allocation: pending, .. } if pending == allocation => {
                *slot = Slot::Allocated { job, allocation };
            }
            // An answer to a request that is no longer waited for: a report will tell.
            Slot::Pending { .. } | Slot::Free | Slot::Allocated { .. } | Slot::Unknown => {}
        }
    }

    /// A TaskExecutor did not give the slot away.
    pub fn refused(&mut self, slot_id: &SlotId, allocation: AllocationId) {
        let Some(slot) = self.slot_mut(slot_id) else { return };
        match *slot {
            Slot::Pending { allocation: pending, .. } if pending == allocation => *slot = Slot::Unknown,
            Slot::Pending { .. } | Slot::Free | Slot::Allocated { .. } | Slot::Unknown => {}
        }
    }

    /// A TaskExecutor took the slot back.
    pub fn available(&mut self, slot_id: &SlotId, allocation: AllocationId) {
        let Some(slot) = self.slot_mut(slot_id) else { return };
        match *slot {
            Slot::Pending { allocation: known, .. } | Slot::Allocated { allocation: known, .. }
                if known == allocation =>
            {
                *slot = Slot::Free;
            }
            Slot::Unknown => *slot = Slot::Free,
            Slot::Pending { .. } | Slot::Free | Slot::Allocated { .. } => {}
        }
    }

    /// Replaces what a job needs.
    pub fn declare(&mut self, job: JobId, job_master: JobMasterId, declared: &[(Option<ResourceProfile>, u32)]) {
        let mut slots: Vec<_> =
            declared.iter().flat_map(|(profile, count)| std::iter::repeat_n(*profile, *count as usize)).collect();
        // Those who take what others cannot come last.
        slots.sort_by(|left, right| size(*right).total_cmp(&size(*left)));
        if slots.is_empty() {
            self.requirements.remove(&job);
        } else {
            let place = self.requirements.get(&job).map_or(self.places + 1, |former| former.place);
            self.places = self.places.max(place);
            self.requirements.insert(job, Requirements { job_master, place, slots });
        }
        self.withdraw_surplus(job);
    }

    /// Forgets what a job needs. Slots that it has stay its until their TaskExecutors
    /// take them back.
    pub fn forget(&mut self, job: JobId) {
        self.requirements.remove(&job);
        self.withdraw_surplus(job);
    }

    /// Gives free slots to the jobs that need some, in the order in which they began to,
    /// and repeats what was not answered.
    pub fn check(&mut self, now: Timestamp) -> CheckResult {
        let mut result = CheckResult { requests: self.repeat_requests(now), short: Vec::new() };
        let mut jobs: Vec<(u64, JobId)> =
            self.requirements.iter().map(|(job, requirements)| (requirements.place, *job)).collect();
        jobs.sort();
        for (_, job) in jobs {
            self.check_job(job, now, &mut result);
        }
        result
    }

    /// When a request is to be repeated.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let slots = self.task_executors.values().flat_map(|task_executor| &task_executor.slots);
        slots
            .filter_map(|slot| match slot {
                Slot::Pending { resend_at, .. } => Some(*resend_at),
                Slot::Free | Slot::Allocated { .. } | Slot::Unknown => None,
            })
            .min()
    }

    /// Number of slots of a TaskExecutor, and the jobs of those that have one.
    pub fn slots_of(&self, task_executor: &ResourceId) -> (u32, Vec<JobId>) {
        let slots = self.task_executors.get(task_executor).map_or(&[][..], |known| &known.slots);
        (slots.len() as u32, slots.iter().filter_map(|slot| slot.job()).collect())
    }

    /// Number of slots that a job has or was promised.
    #[cfg(test)]
    pub(crate) fn slots_of_job(&self, job: JobId) -> usize {
        self.slots().filter(|(_, _, slot)| slot.job() == Some(job)).count()
    }

    fn check_job(&mut self, job: JobId, now: Timestamp, result: &mut CheckResult) {
        let requirements = &self.requirements[&job];
        let job_master = requirements.job_master;
        let held: Vec<ResourceProfile> =
            self.slots().filter(|(_, _, slot)| slot.job() == Some(job)).map(|(_, profile, _)| profile).collect();
        let missing = missing(&requirements.slots, held);
        let (wanted, missing_count) = (requirements.slots.len(), missing.len());
        let mut requests = Vec::new();
        for profile in missing {
            let Some(slot_id) = self.best_free_slot(job, profile) else { continue };
            let allocation = (self.draw_allocation)();
            let slot = self.slot_mut(&slot_id).expect("found above");
            *slot = Slot::Pending { job, job_master, allocation, resend_at: now.plus(REQUEST_INTERVAL) };
            requests.push(SlotRequest { slot: slot_id, job, allocation, job_master });
        }
        let unmet = missing_count - requests.len();
        if unmet == 0 {
            result.requests.extend(requests);
            return;
        }
        result.short.push((job, (wanted - unmet) as u32));
        for request in requests {
            *self.slot_mut(&request.slot).expect("promised above") = Slot::Free;
        }
    }

    /// A free slot for the job: with a TaskExecutor that works for it already, if one
    /// has room, since its tasks then meet in one process.
    fn best_free_slot(&self, job: JobId, profile: Option<ResourceProfile>) -> Option<SlotId> {
        let candidates = self.task_executors.iter().filter(|(_, known)| fits(profile, known.profile));
        let free = candidates.filter_map(|(id, known)| {
            let index = known.slots.iter().position(|slot| *slot == Slot::Free)?;
            let is_known = known.slots.iter().any(|slot| slot.job() == Some(job));
            Some((is_known, SlotId { task_executor: id.clone(), index: index as u32 }))
        });
        let mut best: Option<(bool, SlotId)> = None;
        for candidate in free {
            match &best {
                Some((is_known, _)) if candidate.0 <= *is_known => {}
                Some(_) | None => best = Some(candidate),
            }
        }
        best.map(|(_, slot_id)| slot_id)
    }

    fn repeat_requests(&mut self, now: Timestamp) -> Vec<SlotRequest> {
        let mut requests = Vec::new();
        for (id, known) in &mut self.task_executors {
            for (index, slot) in (0..).zip(&mut known.slots) {
                if let Slot::Pending { job, job_master, allocation, resend_at } = slot
                    && *resend_at <= now
                {
                    *resend_at = now.plus(REQUEST_INTERVAL);
                    let slot = SlotId { task_executor: id.clone(), index };
                    requests.push(SlotRequest { slot, job: *job, allocation: *allocation, job_master: *job_master });
                }
            }
        }
        requests
    }

    /// Takes back promises that are no longer needed. One that was kept already is
    /// offered to the JobMaster, which declines it.
    fn withdraw_surplus(&mut self, job: JobId) {
        let needed = self.requirements.get(&job).map_or(0, |requirements| requirements.slots.len());
        let leader = self.requirements.get(&job).map(|requirements| requirements.job_master);
        let held = self.slots().filter(|(_, _, slot)| slot.job() == Some(job)).count();
        let mut surplus = held.saturating_sub(needed);
        for slot in self.task_executors.values_mut().flat_map(|known| &mut known.slots) {
            if let Slot::Pending { job: promised, job_master, .. } = *slot
                && promised == job
                && (0 < surplus || leader != Some(job_master))
            {
                *slot = Slot::Free;
                surplus = surplus.saturating_sub(1);
            }
        }
    }

    fn slots(&self) -> impl Iterator<Item = (&ResourceId, ResourceProfile, Slot)> {
        self.task_executors
            .iter()
            .flat_map(|(id, known)| known.slots.iter().map(move |slot| (id, known.profile, *slot)))
    }

    fn slot_mut(&mut self, slot: &SlotId) -> Option<&mut Slot> {
        self.task_executors.get_mut(&slot.task_executor)?.slots.get_mut(slot.index as usize)
    }
}

fn reported(report: Option<(JobId, AllocationId)>) -> Slot {
    report.map_or(Slot::Free, |(job, allocation)| Slot::Allocated { job, allocation })
}

fn size(profile: Option<ResourceProfile>) -> f64 {
    profile.map_or(0.0, |profile| profile.memory as f64 + profile.cpu_cores)
}

fn fits(wanted: Option<ResourceProfile>, offered: ResourceProfile) -> bool {
    wanted.is_none_or(|wanted| wanted.cpu_cores <= offered.cpu_cores && wanted.memory <= offered.memory)
}

/// The required slots that none of the held ones fulfils; each fulfils one.
fn missing(required: &[Option<ResourceProfile>], mut held: Vec<ResourceProfile>) -> Vec<Option<ResourceProfile>> {
    let is_missing = |wanted: &&Option<ResourceProfile>| {
        let fulfilled_by = held.iter().position(|held| fits(**wanted, *held));
        fulfilled_by.map(|index| held.swap_remove(index)).is_none()
    };
    required.iter().filter(is_missing).copied().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(number: u8) -> ResourceId {
        ResourceId(format!("tm-{number}"))
    }

    fn job(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    fn leader(number: u8) -> JobMasterId {
        JobMasterId::from_bytes([number; 16])
    }

    fn slot_manager() -> SlotManager {
        let mut number = 0_u64;
        SlotManager::new(Box::new(move || {
            number += 1;
            let mut bytes = [0; 16];
            bytes[8..].copy_from_slice(&number.to_be_bytes());
            AllocationId::from_bytes(bytes)
        }))
    }

    fn report(number: u8, slots: &[Option<(JobId, AllocationId)>]) -> SlotReport {
        SlotReport { task_executor: id(number), slots: slots.to_vec() }
    }

    fn register(manager: &mut SlotManager, number: u8, slots: usize) {
        manager.register(&report(number, &vec![None; slots]), 4, 4 << 30);
    }

    fn any(count: u32) -> Vec<(Option<ResourceProfile>, u32)> {
        vec![(None, count)]
    }

    fn places(result: &CheckResult) -> Vec<(String, u32)> {
        result.requests.iter().map(|request| (request.slot.task_executor.0.clone(), request.slot.index)).collect()
    }

    #[test]
    fn a_job_is_promised_what_it_declared_and_no_more() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 2);
        register(&mut manager, 2, 2);
        manager.declare(job(1), leader(1), &any(3));
        let result = manager.check(Timestamp(0));
        assert_eq!(places(&result), [("tm-1".to_owned(), 0), ("tm-1".to_owned(), 1), ("tm-2".to_owned(), 0)]);
        assert_eq!(result.short, []);
        assert_eq!(manager.check(Timestamp(1)), CheckResult::default());
    }

    #[test]
    fn a_job_stays_with_the_task_executors_it_has() {
        let mut manager = slot_manager();
        register(&mut manager, 2, 2);
        manager.declare(job(1), leader(1), &any(1));
        assert_eq!(places(&manager.check(Timestamp(0))), [("tm-2".to_owned(), 0)]);
        register(&mut manager, 1, 2);
        manager.declare(job(1), leader(1), &any(2));
        assert_eq!(places(&manager.check(Timestamp(0))), [("tm-2".to_owned(), 1)]);
    }

    #[test]
    fn a_job_that_is_short_is_told_how_many_it_can_have() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 2);
        manager.declare(job(1), leader(1), &any(3));
        assert_eq!(manager.check(Timestamp(0)), CheckResult { requests: Vec::new(), short: vec![(job(1), 2)] });
        register(&mut manager, 2, 1);
        assert_eq!(manager.check(Timestamp(0)).short, []);
    }

    #[test]
    fn jobs_do_not_wait_for_each_other() {
        let mut manager = slot_manager();
        // The order is that of the declarations, not of the ids.
        manager.declare(job(2), leader(2), &any(3));
        manager.declare(job(1), leader(1), &any(3));
        register(&mut manager, 1, 2);
        assert_eq!(manager.check(Timestamp(0)).short, [(job(2), 2), (job(1), 2)]);
        assert_eq!((manager.slots_of_job(job(2)), manager.slots_of_job(job(1))), (0, 0));
        register(&mut manager, 2, 3);
        let result = manager.check(Timestamp(0));
        assert_eq!((manager.slots_of_job(job(2)), manager.slots_of_job(job(1))), (3, 0));
        assert_eq!(result.short, [(job(1), 2)]);
        register(&mut manager, 3, 1);
        assert_eq!(manager.check(Timestamp(0)).requests.len(), 3);
    }

    #[test]
    fn a_job_that_needs_too_much_leaves_the_slots_to_others() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 8);
        manager.declare(job(1), leader(1), &any(9));
        manager.check(Timestamp(0));
        manager.declare(job(2), leader(2), &any(7));
        let result = manager.check(Timestamp(0));
        assert_eq!((manager.slots_of_job(job(1)), manager.slots_of_job(job(2))), (0, 7));
        assert_eq!((result.requests.len(), result.short), (7, vec![(job(1), 8)]));
        assert_eq!(manager.check(Timestamp(0)).short, [(job(1), 1)]);
    }

    #[test]
    fn an_unanswered_request_is_repeated_as_it_was() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 1);
        manager.declare(job(1), leader(1), &any(1));
        let first = manager.check(Timestamp(0)).requests;
        assert_eq!(manager.next_deadline(), Some(Timestamp(1000)));
        assert_eq!(manager.check(Timestamp(999)).requests, []);
        assert_eq!(manager.check(Timestamp(1000)).requests, first);
        manager.allocated(&first[0].slot, first[0].allocation);
        assert_eq!(manager.next_deadline(), None);
    }

    #[test]
    fn a_second_registration_keeps_what_is_pending() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 2);
        manager.declare(job(1), leader(1), &any(1));
        let request = manager.check(Timestamp(0)).requests.remove(0);
        register(&mut manager, 1, 2);
        assert_eq!(manager.check(Timestamp(0)), CheckResult::default());
        manager.allocated(&request.slot, request.allocation);
        register(&mut manager, 1, 2);
        assert_eq!(manager.slots_of_job(job(1)), 0);
    }

    #[test]
    fn a_refused_slot_waits_for_the_next_report() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 1);
        manager.declare(job(1), leader(1), &any(1));
        let request = manager.check(Timestamp(0)).requests.remove(0);
        manager.refused(&request.slot, request.allocation);
        assert_eq!(manager.check(Timestamp(0)).short, [(job(1), 0)]);
        manager.update(&report(1, &[None]));
        assert_eq!(manager.check(Timestamp(0)).requests.len(), 1);
    }

    #[test]
    fn a_report_wins_but_for_a_request_on_its_way() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 2);
        manager.declare(job(1), leader(1), &any(1));
        let request = manager.check(Timestamp(0)).requests.remove(0);
        manager.update(&report(1, &[None, Some((job(2), AllocationId::from_bytes([9; 16])))]));
        assert_eq!((manager.slots_of_job(job(1)), manager.slots_of_job(job(2))), (1, 1));
        manager.allocated(&request.slot, request.allocation);
        manager.update(&report(1, &[None, None]));
        assert_eq!((manager.slots_of_job(job(1)), manager.slots_of_job(job(2))), (0, 0));
    }

    #[test]
    fn a_slot_that_was_given_back_is_given_away_again() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 1);
        manager.declare(job(1), leader(1), &any(1));
        let request = manager.check(Timestamp(0)).requests.remove(0);
        manager.allocated(&request.slot, request.allocation);
        manager.declare(job(1), leader(1), &[]);
        manager.declare(job(2), leader(2), &any(1));
        assert_eq!(manager.check(Timestamp(0)).requests, []);
        manager.available(&request.slot, AllocationId::from_bytes([7; 16]));
        assert_eq!(manager.check(Timestamp(0)).requests, []);
        manager.available(&request.slot, request.allocation);
        assert_eq!(manager.check(Timestamp(0)).requests.len(), 1);
    }

    #[test]
    fn a_promise_that_is_not_needed_is_withdrawn() {
        let mut manager = slot_manager();
        register(&mut manager, 1, 2);
        manager.declare(job(1), leader(1), &any(2));
        manager.check(Timestamp(0));
        manager.declare(job(1), leader(1), &any(1));
        assert_eq!(manager.slots_of_job(job(1)), 1);
        manager.forget(job(1));
        assert_eq!(manager.slots_of_job(job(1)), 0);
    }

    #[test]
    fn a_profile_needs_a_slot_that_is_large_enough() {
        let mut manager = slot_manager();
        // Slots of 1 core and 1 GiB, and of 4 cores and 4 GiB.
        register(&mut manager, 1, 4);
        register(&mut manager, 2, 1);
        let large = ResourceProfile { cpu_cores: 2.0, memory: 1 << 30 };
        manager.declare(job(1), leader(1), &[(None, 1), (Some(large), 2)]);
        assert_eq!(manager.check(Timestamp(0)), CheckResult { requests: Vec::new(), short: vec![(job(1), 2)] });
        manager.declare(job(1), leader(1), &[(None, 1), (Some(large), 1)]);
        let result = manager.check(Timestamp(0));
        assert_eq!(places(&result), [("tm-2".to_owned(), 0), ("tm-1".to_owned(), 0)]);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Register(u8, usize),
        Unregister(u8),
        Declare(u8, u32),
        Answer(bool),
        Check,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0_u8..3, 1_usize..4).prop_map(|(number, slots)| Step::Register(number, slots)),
            (0_u8..3).prop_map(Step::Unregister),
            (0_u8..3, 0_u32..5).prop_map(|(number, count)| Step::Declare(number, count)),
            proptest::bool::ANY.prop_map(Step::Answer),
            Just(Step::Check),
        ]
    }

    proptest! {
        #[test]
        fn no_job_gets_more_than_it_needs_and_no_slot_two_jobs(steps in proptest::collection::vec(step(), 0..60)) {
            let mut manager = slot_manager();
            let mut needed = BTreeMap::<u8, u32>::new();
            let mut requests = Vec::<SlotRequest>::new();
            for step in steps {
                match step {
                    Step::Register(number, slots) => register(&mut manager, number, slots),
                    Step::Unregister(number) => manager.unregister(&id(number)),
                    Step::Declare(number, count) => {
                        // Allocated slots are given back by the JobMaster alone.
                        let count = count.max(manager.slots_of_job(job(number)) as u32);
                        needed.insert(number, count);
                        manager.declare(job(number), leader(number), &any(count));
                    }
                    Step::Answer(is_allocated) => {
                        if let Some(request) = requests.pop() {
                            if is_allocated {
                                manager.allocated(&request.slot, request.allocation);
                            } else {
                                manager.refused(&request.slot, request.allocation);
                            }
                        }
                    }
                    Step::Check => {
                        let result = manager.check(Timestamp(0));
                        let mut places: Vec<_> = result.requests.iter().map(|request| &request.slot).collect();
                        places.sort();
                        places.dedup();
                        prop_assert_eq!(places.len(), result.requests.len());
                        // Who was promised something has all that it needs.
                        for request in &result.requests {
                            let number = (0..3).find(|number| job(*number) == request.job).expect("one of three");
                            prop_assert_eq!(manager.slots_of_job(request.job), needed[&number] as usize);
                        }
                        requests.extend(result.requests);
                    }
                }
                for (number, count) in &needed {
                    prop_assert!(manager.slots_of_job(job(*number)) <= *count as usize);
                }
            }
        }
    }
}
