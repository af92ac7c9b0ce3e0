//! The slots of a TaskExecutor and the attempts that run in them. Pure.
//!
//! ```text
//!           allocate              activate
//!   Free ------------> Allocated <---------> Active
//!    ^                  |          deactivate  |
//!    |   release, expire|                      | release
//!    |  (no attempt     v                      v
//!    +-- is left) <-- Releasing (attempts are ending)
//! ```
//!
//! A slot that is active and has had no attempt for the timeout is in doubt: the message
//! that gave it back may have been lost. It is deactivated and offered again.
//!
//! Invariants: a slot belongs to at most one job; a slot with attempts is never free;
//! an allocation has at most one slot.
//!
//! Source: Flink's TaskSlotTableImpl.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    base::{
        clock::Timestamp,
        ids::{AllocationId, ExecutionAttemptId, JobId, ResourceId, SlotId},
    },
    protocol::resource_manager::SlotReport,
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// Promised, and given up at the deadline unless the JobMaster takes it.
    Allocated { until: Timestamp },
    /// In use by its job.
    Active { since: Timestamp },
    /// Free as soon as its attempts have ended.
    Releasing,
}

#[derive(Debug)]
struct TaskSlot {
    job: JobId,
    allocation: AllocationId,
    phase: Phase,
    attempts: BTreeSet<ExecutionAttemptId>,
}

impl TaskSlot {
    /// Since when it has been active without an attempt.
    fn idle_since(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Active { since } if self.attempts.is_empty() => Some(since),
            Phase::Active { .. } | Phase::Allocated { .. } | Phase::Releasing => None,
        }
    }
}

/// Whether an allocation is new.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Allocated {
    /// The slot was free.
    Now,
    /// The slot has this allocation already.
    Before,
}

/// A slot cannot be given away, or an attempt cannot run in it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum SlotError {
    /// There are fewer slots.
    #[error("there is no slot {0}")]
    NoSuchSlot(u32),
    /// The slot has another allocation.
    #[error("slot {0} is allocated to job {1}")]
    Occupied(u32, JobId),
    /// The allocation has another slot.
    #[error("allocation {0} has slot {1}")]
    Elsewhere(AllocationId, u32),
    /// The allocation is none of the job's, or is being released.
    #[error("allocation {0} is no slot of job {1}")]
    NotAllocated(AllocationId, JobId),
}

/// A slot that became free.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct FreedSlot {
    /// The slot.
    pub slot: SlotId,
    /// The allocation that it had.
    pub allocation: AllocationId,
}

/// What releasing a slot takes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Released {
    /// Nothing ran in it.
    Free(FreedSlot),
    /// These have to end first.
    Ending(Vec<ExecutionAttemptId>),
    /// There is no such allocation.
    Unknown,
}

/// The slots of one TaskExecutor.
#[derive(Debug)]
pub struct TaskSlotTable {
    task_executor: ResourceId,
    /// Time that a slot stays allocated without being active.
    timeout: Duration,
    /// By slot index; none: free.
    slots: Vec<Option<TaskSlot>>,
    /// Slot index by attempt.
    attempts: BTreeMap<ExecutionAttemptId, usize>,
}

impl TaskSlotTable {
    /// Makes `count` free slots.
    pub fn new(task_executor: ResourceId, count: u32, timeout: Duration) -> Self {
        let slots = (0..count).map(|_| None).collect();
        Self { task_executor, timeout, slots, attempts: BTreeMap::new() }
    }

    /// Gives a free slot to a job.
    ///
    /// # Errors
    /// Returns an error if the slot is not free, unless it has this allocation.
    pub fn allocate(
        &mut self,
        index: u32,
        job: JobId,
        allocation: AllocationId,
        now: Timestamp,
    ) -> Result<Allocated, SlotError> {
        let elsewhere = self.index_of(allocation).filter(|found| *found != index as usize);
        if let Some(found) = elsewhere {
            return Err(SlotError::Elsewhere(allocation, found as u32));
        }
        let slot = self.slots.get_mut(index as usize).ok_or(SlotError::NoSuchSlot(index))?;
        match slot {
            Some(slot) if slot.job == job && slot.allocation == allocation && slot.phase != Phase::Releasing => {
                Ok(Allocated::Before)
            }
            Some(slot) => Err(SlotError::Occupied(index, slot.job)),
            None => {
                let phase = Phase::Allocated { until: now.plus(self.timeout) };
                *slot = Some(TaskSlot { job, allocation, phase, attempts: BTreeSet::new() });
                Ok(Allocated::Now)
            }
        }
    }

    /// The JobMaster took the slot. False if the job has no such slot.
    pub fn activate(&mut self, job: JobId, allocation: AllocationId, now: Timestamp) -> bool {
        let slot = self.slot_mut(allocation).filter(|slot| slot.job == job && slot.phase != Phase::Releasing);
        slot.map(|slot| slot.phase = Phase::Active { since: now }).is_some()
    }

    /// The JobMaster is gone: its active slots wait for a next one until the timeout.
    pub fn deactivate_job(&mut self, job: JobId, now: Timestamp) {
        let until = now.plus(self.timeout);
        for slot in self.slots.iter_mut().flatten().filter(|slot| slot.job == job) {
            if let Phase::Active { .. } = slot.phase {
                slot.phase = Phase::Allocated { until };
            }
        }
    }

    /// Deactivates the slots that are in doubt and returns them with their jobs.
    pub fn deactivate_idle(&mut self, now: Timestamp) -> Vec<(JobId, AllocationId, SlotId)> {
        let timeout = self.timeout;
        let is_idle = |slot: &TaskSlot| slot.idle_since().is_some_and(|since| since.plus(timeout) <= now);
        let idle: Vec<_> = self
            .occupied()
            .filter(|(_, slot)| is_idle(slot))
            .map(|(index, slot)| (slot.job, slot.allocation, self.slot_id(index)))
            .collect();
        for slot in self.slots.iter_mut().flatten().filter(|slot| is_idle(slot)) {
            slot.phase = Phase::Allocated { until: now.plus(timeout) };
        }
        idle
    }

    /// Takes a slot back as soon as nothing runs in it.
    pub fn release(&mut self, allocation: AllocationId) -> Released {
        let Some(index) = self.index_of(allocation) else { return Released::Unknown };
        let slot = self.slots[index].as_mut().expect("it has an allocation");
        if slot.attempts.is_empty() {
            self.slots[index] = None;
            return Released::Free(FreedSlot { slot: self.slot_id(index), allocation });
        }
        slot.phase = Phase::Releasing;
        Released::Ending(slot.attempts.iter().copied().collect())
    }

    /// Enters an attempt into a slot of its job, which becomes active.
    ///
    /// # Errors
    /// Returns an error if the job has no such slot.
    pub fn add_attempt(
        &mut self,
        job: JobId,
        allocation: AllocationId,
        attempt: ExecutionAttemptId,
        now: Timestamp,
    ) -> Result<(), SlotError> {
        if !self.activate(job, allocation, now) {
            return Err(SlotError::NotAllocated(allocation, job));
        }
        let index = self.index_of(allocation).expect("it was activated");
        self.slots[index].as_mut().expect("it was activated").attempts.insert(attempt);
        self.attempts.insert(attempt, index);
        Ok(())
    }

    /// Removes an attempt that has ended, and returns its slot if that became free.
    pub fn remove_attempt(&mut self, attempt: ExecutionAttemptId, now: Timestamp) -> Option<FreedSlot> {
        let index = self.attempts.remove(&attempt)?;
        let slot = self.slots[index].as_mut().expect("a slot with attempts is not free");
        slot.attempts.remove(&attempt);
        let allocation = slot.allocation;
        if let Phase::Active { since } = &mut slot.phase {
            *since = now;
        }
        if slot.phase != Phase::Releasing || !slot.attempts.is_empty() {
            return None;
        }
        self.slots[index] = None;
        Some(FreedSlot { slot: self.slot_id(index), allocation })
    }

    /// Slots of a job that its JobMaster has not taken.
    pub fn allocated_slots(&self, job: JobId) -> Vec<(AllocationId, SlotId)> {
        let is_offered = |slot: &&TaskSlot| slot.job == job && matches!(slot.phase, Phase::Allocated { .. });
        let slots = self.occupied().filter(|(_, slot)| is_offered(slot));
        slots.map(|(index, slot)| (slot.allocation, self.slot_id(index))).collect()
    }

    /// All allocations of a job that are not being released.
    pub fn allocations(&self, job: JobId) -> Vec<AllocationId> {
        let slots = self.occupied().filter(|(_, slot)| slot.job == job && slot.phase != Phase::Releasing);
        slots.map(|(_, slot)| slot.allocation).collect()
    }

    /// Allocations that were not taken in time, with their jobs.
    pub fn expired(&self, now: Timestamp) -> Vec<(JobId, AllocationId)> {
        let is_expired = |slot: &TaskSlot| match slot.phase {
            Phase::Allocated { until } => until <= now,
            Phase::Active { .. } | Phase::Releasing => false,
        };
        let slots = self.occupied().filter(|(_, slot)| is_expired(slot));
        slots.map(|(_, slot)| (slot.job, slot.allocation)).collect()
    }

    /// When the next allocation expires, or the next slot is in doubt.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let deadlines = self.occupied().filter_map(|(_, slot)| match slot.phase {
            Phase::Allocated { until } => Some(until),
            Phase::Active { .. } => slot.idle_since().map(|since| since.plus(self.timeout)),
            Phase::Releasing => None,
        });
        deadlines.min()
    }

    /// What the ResourceManager is told: a slot that is being released is not free.
    pub fn report(&self) -> SlotReport {
        let slots = self.slots.iter().map(|slot| slot.as_ref().map(|slot| (slot.job, slot.allocation)));
        SlotReport { task_executor: self.task_executor.clone(), slots: slots.collect() }
    }

    fn occupied(&self) -> impl Iterator<Item = (usize, &TaskSlot)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| Some((index, slot.as_ref()?)))
    }

    fn index_of(&self, allocation: AllocationId) -> Option<usize> {
        self.occupied().find(|(_, slot)| slot.allocation == allocation).map(|(index, _)| index)
    }

    fn slot_mut(&mut self, allocation: AllocationId) -> Option<&mut TaskSlot> {
        self.slots.iter_mut().flatten().find(|slot| slot.allocation == allocation)
    }

    fn slot_id(&self, index: usize) -> SlotId {
        SlotId { task_executor: self.task_executor.clone(), index: index as u32 }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::ids::{ExecutionGraphId, ExecutionVertexId, JobVertexId};

    const TIMEOUT: Duration = Duration::from_secs(10);

    fn job(number: u8) -> JobId {
        JobId::from_bytes([number; 16])
    }

    fn allocation(number: u8) -> AllocationId {
        AllocationId::from_bytes([number; 16])
    }

    fn attempt(number: u32) -> ExecutionAttemptId {
        ExecutionAttemptId {
            graph: ExecutionGraphId::from_bytes([1; 16]),
            execution_vertex: ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: number },
            attempt_number: 0,
        }
    }

    fn table(count: u32) -> TaskSlotTable {
        TaskSlotTable::new(ResourceId("tm".to_owned()), count, TIMEOUT)
    }

    fn freed(index: u32, number: u8) -> FreedSlot {
        let slot = SlotId { task_executor: ResourceId("tm".to_owned()), index };
        FreedSlot { slot, allocation: allocation(number) }
    }

    #[test]
    fn a_slot_is_given_to_one_job() {
        let mut table = table(2);
        assert_eq!(table.allocate(0, job(1), allocation(1), Timestamp(0)), Ok(Allocated::Now));
        assert_eq!(table.allocate(0, job(1), allocation(1), Timestamp(5)), Ok(Allocated::Before));
        let occupied = Err(SlotError::Occupied(0, job(1)));
        assert_eq!(table.allocate(0, job(2), allocation(2), Timestamp(0)), occupied);
        assert_eq!(table.allocate(0, job(1), allocation(3), Timestamp(0)), occupied);
        let elsewhere = Err(SlotError::Elsewhere(allocation(1), 0));
        assert_eq!(table.allocate(1, job(1), allocation(1), Timestamp(0)), elsewhere);
        assert_eq!(table.allocate(2, job(1), allocation(9), Timestamp(0)), Err(SlotError::NoSuchSlot(2)));
        assert_eq!(table.report().slots, [Some((job(1), allocation(1))), None]);
    }

    #[test]
    fn only_a_slot_that_is_not_active_expires() {
        let mut table = table(2);
        table.allocate(0, job(1), allocation(1), Timestamp(0)).unwrap();
        table.allocate(1, job(1), allocation(2), Timestamp(3)).unwrap();
        assert!(table.activate(job(1), allocation(1), Timestamp(0)));
        table.add_attempt(job(1), allocation(1), attempt(0), Timestamp(0)).unwrap();
        assert_eq!(table.next_deadline(), Some(Timestamp(10_003)));
        assert_eq!(table.expired(Timestamp(10_002)), []);
        assert_eq!(table.expired(Timestamp(10_003)), [(job(1), allocation(2))]);
        table.deactivate_job(job(1), Timestamp(20_000));
        assert_eq!(table.expired(Timestamp(30_000)), [(job(1), allocation(1)), (job(1), allocation(2))]);
    }

    #[test]
    fn an_active_slot_without_attempts_is_in_doubt_after_the_timeout() {
        let mut table = table(1);
        let in_doubt = (job(1), allocation(1), freed(0, 1).slot);
        table.allocate(0, job(1), allocation(1), Timestamp(0)).unwrap();
        table.add_attempt(job(1), allocation(1), attempt(0), Timestamp(1)).unwrap();
        assert_eq!(table.next_deadline(), None);
        assert_eq!(table.deactivate_idle(Timestamp(20_000)), []);
        assert_eq!(table.remove_attempt(attempt(0), Timestamp(20_000)), None);
        assert_eq!(table.next_deadline(), Some(Timestamp(30_000)));
        assert_eq!(table.deactivate_idle(Timestamp(29_999)), []);
        assert_eq!(table.deactivate_idle(Timestamp(30_000)), [in_doubt]);
        assert_eq!(table.expired(Timestamp(39_999)), []);
        assert!(table.activate(job(1), allocation(1), Timestamp(31_000)));
        assert_eq!(table.next_deadline(), Some(Timestamp(41_000)));
    }

    #[test]
    fn an_attempt_needs_a_slot_of_its_job() {
        let mut table = table(1);
        let refused = Err(SlotError::NotAllocated(allocation(1), job(2)));
        assert_eq!(table.add_attempt(job(2), allocation(1), attempt(0), Timestamp(0)), refused);
        table.allocate(0, job(1), allocation(1), Timestamp(0)).unwrap();
        assert_eq!(table.add_attempt(job(2), allocation(1), attempt(0), Timestamp(0)), refused);
        assert_eq!(table.add_attempt(job(1), allocation(1), attempt(0), Timestamp(0)), Ok(()));
        assert_eq!(table.next_deadline(), None);
    }

    #[test]
    fn a_slot_is_free_when_its_last_attempt_has_ended() {
        let mut table = table(1);
        table.allocate(0, job(1), allocation(1), Timestamp(0)).unwrap();
        table.add_attempt(job(1), allocation(1), attempt(0), Timestamp(0)).unwrap();
        table.add_attempt(job(1), allocation(1), attempt(1), Timestamp(0)).unwrap();
        assert_eq!(table.release(allocation(1)), Released::Ending(vec![attempt(0), attempt(1)]));
        assert!(!table.activate(job(1), allocation(1), Timestamp(0)));
        let refused = Err(SlotError::NotAllocated(allocation(1), job(1)));
        assert_eq!(table.add_attempt(job(1), allocation(1), attempt(2), Timestamp(0)), refused);
        assert_eq!(table.remove_attempt(attempt(0), Timestamp(0)), None);
        assert_eq!(table.report().slots, [Some((job(1), allocation(1)))]);
        assert_eq!(table.remove_attempt(attempt(1), Timestamp(0)), Some(freed(0, 1)));
        assert_eq!(table.report().slots, [None]);
        assert_eq!(table.release(allocation(1)), Released::Unknown);
    }

    #[test]
    fn an_empty_slot_is_free_at_once() {
        let mut table = table(1);
        table.allocate(0, job(1), allocation(1), Timestamp(0)).unwrap();
        table.add_attempt(job(1), allocation(1), attempt(0), Timestamp(0)).unwrap();
        assert_eq!(table.remove_attempt(attempt(0), Timestamp(0)), None);
        assert_eq!(table.release(allocation(1)), Released::Free(freed(0, 1)));
    }

    proptest! {
        #[test]
        fn a_slot_with_attempts_is_never_free(
            steps in proptest::collection::vec((0_u8..6, 0_u32..3, 0_u8..2, 0_u8..4, 0_u32..4), 0..80)
        ) {
            let mut table = table(3);
            let mut running = BTreeMap::new();
            for (action, index, job_number, allocation_number, attempt_number) in steps {
                let (job, allocation) = (job(job_number), allocation(allocation_number));
                match action {
                    0 => drop(table.allocate(index, job, allocation, Timestamp(0))),
                    1 => drop(table.release(allocation)),
                    2 => {
                        if !running.contains_key(&attempt_number)
                            && table.add_attempt(job, allocation, attempt(attempt_number), Timestamp(0)).is_ok()
                        {
                            running.insert(attempt_number, (job, allocation));
                        }
                    }
                    3 => {
                        running.remove(&attempt_number);
                        table.remove_attempt(attempt(attempt_number), Timestamp(0));
                    }
                    4 => table.deactivate_job(job, Timestamp(0)),
                    _ => drop(table.activate(job, allocation, Timestamp(0))),
                }
                let report = table.report().slots;
                for owner in running.values() {
                    prop_assert!(report.contains(&Some(*owner)));
                }
                let mut allocations: Vec<_> = report.iter().flatten().map(|(_, allocation)| *allocation).collect();
                allocations.sort();
                let count = allocations.len();
                allocations.dedup();
                prop_assert_eq!(allocations.len(), count);
            }
        }
    }
}
