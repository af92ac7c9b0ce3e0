//! The slots that TaskExecutors lent to one job, and which of them hold which shared slot.
//!
//! Pure; the JobMaster declares its needs to the ResourceManager and passes offers in.
//! A shared slot is needed while one of its subtasks has not finished. A slot that
//! holds no needed shared slot is idle, and given back after a time.

use std::{collections::BTreeMap, time::Duration};

use super::slot_sharing::SharedSlotIndex;
use crate::{
    base::{
        clock::Timestamp,
        ids::{AllocationId, ResourceId, SlotId},
    },
    protocol::job_master::SlotOffer,
};

/// A slot of the pool.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PooledSlot {
    /// Its allocation.
    pub allocation: AllocationId,
    /// The slot.
    pub slot: SlotId,
    use_: SlotUse,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum SlotUse {
    Holds(SharedSlotIndex),
    IdleSince(Timestamp),
}

#[derive(Clone, Debug, Eq, PartialEq)]
struct SharedSlotState {
    /// Subtasks that have not finished.
    unfinished: usize,
    allocation: Option<AllocationId>,
}

/// What became of offers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct OfferOutcome {
    /// Taken, or taken before.
    pub accepted: Vec<AllocationId>,
    /// Shared slots that lost theirs, because it was offered under another allocation.
    pub lost: Vec<SharedSlotIndex>,
}

/// The slots of one job.
#[derive(Clone, Debug)]
pub struct SlotPool {
    idle_timeout: Duration,
    request_timeout: Duration,
    slots: BTreeMap<AllocationId, PooledSlot>,
    shared: Vec<SharedSlotState>,
    fill_order: Vec<SharedSlotIndex>,
    /// Number of shared slots that are needed.
    required: usize,
    /// Number of shared slots that hold a slot.
    assigned: usize,
    requirements_version: u64,
    /// Since when a needed slot has been missing and none has come.
    missing_since: Option<Timestamp>,
}

impl SlotPool {
    /// Makes an empty pool.
    ///
    /// `subtasks` holds the number of subtasks by shared slot, of which there is at
    /// least one; `fill_order` says which shared slots get the first slots.
    pub fn new(
        subtasks: impl IntoIterator<Item = usize>,
        fill_order: Vec<SharedSlotIndex>,
        idle_timeout: Duration,
        request_timeout: Duration,
    ) -> Self {
        let shared: Vec<_> =
            subtasks.into_iter().map(|unfinished| SharedSlotState { unfinished, allocation: None }).collect();
        assert_eq!(shared.len(), fill_order.len());
        Self {
            idle_timeout,
            request_timeout,
            slots: BTreeMap::new(),
            required: shared.len(),
            assigned: 0,
            shared,
            fill_order,
            requirements_version: 0,
            missing_since: None,
        }
    }

    /// Begins to wait for slots.
    pub fn start(&mut self, now: Timestamp) {
        self.missing_since = Some(now);
    }

    /// Changes whenever other shared slots are needed than before.
    pub fn requirements_version(&self) -> u64 {
        self.requirements_version
    }

    /// The shared slots that are needed.
    pub fn required(&self) -> impl Iterator<Item = SharedSlotIndex> {
        self.shared.iter().enumerate().filter(|(_, state)| 0 < state.unfinished).map(|(index, _)| index)
    }

    /// Number of shared slots that are needed.
    pub fn required_count(&self) -> usize {
        self.required
    }

    /// Number of needed shared slots that hold a slot.
    pub fn assigned_count(&self) -> usize {
        self.assigned
    }

    /// Number of slots in the pool.
    pub fn slot_count(&self) -> usize {
        self.slots.len()
    }

    /// The slot that holds a shared slot.
    pub fn slot_of(&self, shared: SharedSlotIndex) -> Option<&PooledSlot> {
        self.shared[shared].allocation.as_ref().map(|allocation| &self.slots[allocation])
    }

    /// All slots.
    pub fn slots(&self) -> impl Iterator<Item = &PooledSlot> {
        self.slots.values()
    }

    /// True if the pool has a slot of the TaskExecutor.
    pub fn has_slots_of(&self, task_executor: &ResourceId) -> bool {
        self.slots.values().any(|slot| slot.slot.task_executor == *task_executor)
    }

    /// A subtask finished: its shared slot may be needed no longer.
    pub fn task_finished(&mut self, shared: SharedSlotIndex, now: Timestamp) {
        let state = &mut self.shared[shared];
        state.unfinished = state.unfinished.checked_sub(1).expect("no more subtasks finish than there are");
        if state.unfinished == 0 {
            self.required -= 1;
            self.requirements_version += 1;
            self.unassign(shared, now);
            self.assign_idle(now);
        }
    }

    /// A finished subtask is to run again: its shared slot is needed.
    pub fn task_reset(&mut self, shared: SharedSlotIndex, now: Timestamp) {
        let state = &mut self.shared[shared];
        state.unfinished += 1;
        if state.unfinished == 1 {
            self.required += 1;
            self.requirements_version += 1;
            self.assign_idle(now);
        }
    }

    /// Takes offered slots as far as they are needed.
    pub fn offer_slots(&mut self, offers: &[SlotOffer], now: Timestamp) -> OfferOutcome {
        let mut outcome = OfferOutcome::default();
        for SlotOffer { allocation, slot } in offers {
            let same_slot: Vec<AllocationId> =
                self.slots.values().filter(|pooled| pooled.slot == *slot).map(|pooled| pooled.allocation).collect();
            for outdated in same_slot.into_iter().filter(|pooled| pooled != allocation) {
                outcome.lost.extend(self.release(outdated, now));
            }
            match self.slots.get(allocation) {
                Some(pooled) if pooled.slot == *slot => outcome.accepted.push(*allocation),
                Some(_) => {}
                None if self.slots.len() < self.required => {
                    let use_ = SlotUse::IdleSince(now);
                    let pooled = PooledSlot { allocation: *allocation, slot: slot.clone(), use_ };
                    self.slots.insert(*allocation, pooled);
                    outcome.accepted.push(*allocation);
                }
                None => {}
            }
        }
        self.assign_idle(now);
        outcome
    }

    /// Removes a slot; returns the shared slot that it held.
    pub fn release(&mut self, allocation: AllocationId, now: Timestamp) -> Option<SharedSlotIndex> {
        let slot = self.slots.remove(&allocation)?;
        let SlotUse::Holds(shared) = slot.use_ else { return None };
        self.shared[shared].allocation = None;
        self.assigned -= 1;
        self.assign_idle(now);
        Some(shared)
    }

    /// Removes all slots of a TaskExecutor; returns the shared slots that they held.
    pub fn release_task_executor(&mut self, task_executor: &ResourceId, now: Timestamp) -> Vec<SharedSlotIndex> {
        let of_task_executor = |slot: &&PooledSlot| slot.slot.task_executor == *task_executor;
        let lost: Vec<_> = self.slots.values().filter(of_task_executor).map(|slot| slot.allocation).collect();
        lost.into_iter().filter_map(|allocation| self.release(allocation, now)).collect()
    }

    /// Removes and returns the slots that have been idle for too long.
    pub fn expire_idle(&mut self, now: Timestamp) -> Vec<PooledSlot> {
        let idle_timeout = self.idle_timeout;
        self.slots
            .extract_if(.., |_, slot| match slot.use_ {
                SlotUse::IdleSince(since) => since.plus(idle_timeout) <= now,
                SlotUse::Holds(_) => false,
            })
            .map(|(_, slot)| slot)
            .collect()
    }

    /// True if a needed slot has been missing for too long; begins to wait anew.
    pub fn take_request_timeout(&mut self, now: Timestamp) -> bool {
        match self.missing_since {
            Some(since) if since.plus(self.request_timeout) <= now => {
                self.missing_since = Some(now);
                true
            }
            Some(_) | None => false,
        }
    }

    /// When [`SlotPool::expire_idle`] or [`SlotPool::take_request_timeout`] has something to do.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let idle = self.slots.values().filter_map(|slot| match slot.use_ {
            SlotUse::IdleSince(since) => Some(since.plus(self.idle_timeout)),
            SlotUse::Holds(_) => None,
        });
        idle.chain(self.missing_since.map(|since| since.plus(self.request_timeout))).min()
    }

    fn unassign(&mut self, shared: SharedSlotIndex, now: Timestamp) {
        let Some(allocation) = self.shared[shared].allocation.take() else { return };
        self.assigned -= 1;
        let slot = self.slots.get_mut(&allocation).expect("a shared slot holds a slot of the pool");
        slot.use_ = SlotUse::IdleSince(now);
    }

    /// Gives idle slots to shared slots that need one, in the fill order.
    fn assign_idle(&mut self, now: Timestamp) {
        let before = self.assigned;
        if self.assigned < self.required {
            let mut idle = self.slots.values_mut().filter(|slot| matches!(slot.use_, SlotUse::IdleSince(_)));
            for shared in &self.fill_order {
                let state = &mut self.shared[*shared];
                if state.unfinished == 0 || state.allocation.is_some() {
                    continue;
                }
                let Some(slot) = idle.next() else { break };
                slot.use_ = SlotUse::Holds(*shared);
                state.allocation = Some(slot.allocation);
                self.assigned += 1;
            }
        }
        self.missing_since = match self.missing_since {
            _ if self.assigned == self.required => None,
            Some(since) if self.assigned == before => Some(since),
            Some(_) | None => Some(now),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const IDLE: Duration = Duration::from_secs(50);
    const REQUEST: Duration = Duration::from_secs(300);

    fn pool(subtasks: &[usize]) -> SlotPool {
        let mut pool = SlotPool::new(subtasks.iter().copied(), (0..subtasks.len()).collect(), IDLE, REQUEST);
        pool.start(Timestamp(0));
        pool
    }

    fn allocation(number: u8) -> AllocationId {
        AllocationId::from_bytes([number; 16])
    }

    fn offer(number: u8) -> SlotOffer {
        let task_executor = ResourceId(format!("task-executor-{}", number / 4));
        SlotOffer { allocation: allocation(number), slot: SlotId { task_executor, index: u32::from(number % 4) } }
    }

    fn after(duration: Duration) -> Timestamp {
        Timestamp(0).plus(duration)
    }

    #[test]
    fn takes_what_it_needs_and_no_more() {
        let mut pool = pool(&[1, 1]);
        let outcome = pool.offer_slots(&[offer(0), offer(1), offer(2)], Timestamp(0));
        assert_eq!(outcome.accepted, [allocation(0), allocation(1)]);
        assert_eq!(pool.slot_of(1).map(|slot| slot.allocation), Some(allocation(1)));
        // Offered again, because the answer was lost.
        assert_eq!(pool.offer_slots(&[offer(1), offer(2)], Timestamp(0)).accepted, [allocation(1)]);
        assert_eq!(pool.next_deadline(), None);
    }

    #[test]
    fn an_idle_slot_goes_to_who_waits_and_is_given_back_after_its_time() {
        let mut pool = pool(&[1, 2]);
        assert_eq!(pool.offer_slots(&[offer(0)], Timestamp(0)).accepted.len(), 1);
        assert_eq!(pool.slot_of(1), None);
        pool.task_finished(0, Timestamp(5));
        assert_eq!(pool.slot_of(1).map(|slot| slot.allocation), Some(allocation(0)));
        pool.task_finished(1, Timestamp(6));
        assert_eq!(pool.slot_of(1).map(|slot| slot.allocation), Some(allocation(0)));
        pool.task_finished(1, Timestamp(7));
        assert_eq!(pool.slot_of(1), None);
        assert_eq!(pool.next_deadline(), Some(Timestamp(7).plus(IDLE)));
        assert_eq!(pool.expire_idle(Timestamp(6).plus(IDLE)), []);
        assert_eq!(pool.expire_idle(Timestamp(7).plus(IDLE)).len(), 1);
        assert_eq!(pool.slot_count(), 0);
    }

    #[test]
    fn a_missing_slot_times_out_unless_slots_keep_coming() {
        let mut pool = pool(&[1, 1, 1]);
        assert!(!pool.take_request_timeout(after(REQUEST - Duration::from_millis(1))));
        pool.offer_slots(&[offer(0)], after(REQUEST - Duration::from_millis(1)));
        assert!(!pool.take_request_timeout(after(REQUEST)));
        assert!(pool.take_request_timeout(after(REQUEST * 2)));
        assert!(!pool.take_request_timeout(after(REQUEST * 2)));
        pool.offer_slots(&[offer(1), offer(2)], after(REQUEST * 2));
        assert!(!pool.take_request_timeout(after(REQUEST * 9)));
    }

    #[test]
    fn a_lost_task_executor_leaves_its_shared_slots_without_slot() {
        let mut pool = pool(&[1, 1]);
        pool.offer_slots(&[offer(0), offer(4)], Timestamp(0));
        assert_eq!(pool.release_task_executor(&ResourceId("task-executor-0".to_owned()), Timestamp(9)), [0]);
        assert_eq!(pool.slot_of(0), None);
        assert_eq!(pool.next_deadline(), Some(Timestamp(9).plus(REQUEST)));
    }

    #[test]
    fn a_slot_that_comes_under_another_allocation_replaces_itself() {
        let mut pool = pool(&[1]);
        pool.offer_slots(&[offer(0)], Timestamp(0));
        let again = SlotOffer { allocation: allocation(9), ..offer(0) };
        let outcome = pool.offer_slots(&[again], Timestamp(0));
        assert_eq!(outcome, OfferOutcome { accepted: vec![allocation(9)], lost: vec![0] });
        assert_eq!(pool.slot_of(0).map(|slot| slot.allocation), Some(allocation(9)));
    }

    proptest! {
        #[test]
        fn no_slot_holds_two_shared_slots(steps in proptest::collection::vec((0..5_u8, 0..12_u8), 0..80)) {
            let subtasks = [1, 2, 1, 3];
            let mut pool = pool(&subtasks);
            let mut unfinished = subtasks;
            for (time, (action, number)) in steps.into_iter().enumerate() {
                let now = Timestamp(time as i64 * 10_000);
                let shared = usize::from(number) % subtasks.len();
                match action {
                    0 | 1 => drop(pool.offer_slots(&[offer(number)], now)),
                    2 if 0 < unfinished[shared] => {
                        unfinished[shared] -= 1;
                        pool.task_finished(shared, now);
                    }
                    3 if unfinished[shared] < subtasks[shared] => {
                        unfinished[shared] += 1;
                        pool.task_reset(shared, now);
                    }
                    4 => drop(pool.release(allocation(number), now)),
                    _ => drop(pool.expire_idle(now)),
                }
                let held: Vec<_> = (0..4).filter_map(|shared| pool.slot_of(shared)).map(|slot| slot.allocation).collect();
                let distinct: std::collections::BTreeSet<_> = held.iter().collect();
                prop_assert_eq!(distinct.len(), held.len());
                prop_assert_eq!(pool.assigned_count(), held.len());
                prop_assert_eq!(pool.required_count(), unfinished.iter().filter(|count| 0 < **count).count());
                prop_assert!(pool.assigned_count() == pool.required_count().min(pool.slot_count()));
                prop_assert_eq!(pool.required().count(), pool.required_count());
            }
        }
    }
}
