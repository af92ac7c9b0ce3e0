//! What changed in keyed state since the last checkpoint that was confirmed.
//!
//! Changes are noted by key group, as they stand in a section of a snapshot. Each
//! snapshot begins a new log; the logs of those that were not confirmed are kept,
//! and stand in the next increment too. A log that outgrows the state is dropped:
//! the next snapshot is a full one then.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, Write},
    mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    TimeDomain,
    section::{Operation, VERSION},
};
use crate::base::stream_element::CheckpointId;

/// Logs are not dropped below this, however small the state is.
const LOG_BYTES_MIN: u64 = 64 << 10;
/// Snapshots that are not confirmed, above which the next one is full.
const UNCONFIRMED_MAX: usize = 64;
/// Increments with content that follow a full snapshot, at most.
const INCREMENTS_MAX: u32 = 256;

/// Confirmed parts that an increment builds upon: a full one, and increments.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    full_bytes: u64,
    increment_bytes: u64,
    increments: u32,
}

/// What a snapshot is built upon once it is confirmed.
enum Written {
    /// It holds all. Its length is known when it was written.
    Full(Arc<AtomicU64>),
    Increment(Base),
}

/// What changed between two snapshots, by key group.
type Changes = Arc<Vec<(u32, Vec<u8>)>>;

struct Unconfirmed {
    checkpoint_id: CheckpointId,
    /// What changed before it and after the one before; none: that was dropped.
    changes: Option<Changes>,
    written: Written,
}

#[derive(Clone, Default)]
struct GroupLog {
    operations: Vec<u8>,
    /// How many rounds of firing it has noted, by time domain.
    rounds: [u64; 2],
}

/// Timers that have fired, which are noted once for all of them.
#[derive(Clone, Copy, Default)]
struct Fired {
    rounds: u64,
    last: i64,
    /// Up to here some have fired and some wait.
    partly: Option<i64>,
}

/// See the module.
pub(super) struct ChangeLog {
    first_group: u32,
    logs: Vec<GroupLog>,
    bytes: u64,
    /// Bytes of the logs of snapshots that are not confirmed.
    kept_bytes: u64,
    /// Nothing was dropped since the last snapshot.
    is_whole: bool,
    /// Ascending.
    unconfirmed: VecDeque<Unconfirmed>,
    base: Option<Base>,
    fired: [Fired; 2],
}

/// Changes since a confirmed snapshot.
pub(super) struct Increment(Vec<Changes>);

impl Increment {
    /// See [`super::KeyedStateSnapshot::write`].
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<Vec<(u32, u64)>> {
        let mut groups: BTreeMap<u32, Vec<&[u8]>> = BTreeMap::new();
        for (key_group, operations) in self.0.iter().flat_map(|changes| changes.iter()) {
            groups.entry(*key_group).or_default().push(operations);
        }
        let mut sections = Vec::with_capacity(groups.len());
        for (key_group, logs) in groups {
            out.write_all(&[VERSION])?;
            logs.iter().try_for_each(|operations| out.write_all(operations))?;
            sections.push((key_group, 1 + logs.iter().map(|operations| operations.len() as u64).sum::<u64>()));
        }
        Ok(sections)
    }
}

impl ChangeLog {
    /// Of key groups from the first one on.
    pub(super) fn new(first_group: u32, key_groups: usize) -> Self {
        Self {
            first_group,
            logs: vec![GroupLog::default(); key_groups],
            bytes: 0,
            kept_bytes: 0,
            is_whole: false,
            unconfirmed: VecDeque::new(),
            base: None,
            fired: [Fired::default(); 2],
        }
    }

    /// What was restored from parts of these lengths is confirmed.
    pub(super) fn build_upon(&mut self, full_bytes: u64, increments: &[u64]) {
        let count = u32::try_from(increments.len()).unwrap_or(u32::MAX);
        self.base = Some(Base { full_bytes, increment_bytes: increments.iter().sum(), increments: count });
        self.is_whole = true;
    }

    /// Notes a change of state.
    #[inline]
    pub(super) fn note(&mut self, key_group: u32, operation: Operation<'_>) {
        if self.is_whole {
            let log = &mut self.logs[(key_group - self.first_group) as usize].operations;
            let before = log.len();
            operation.write(log);
            self.bytes += (log.len() - before) as u64;
        }
    }

    /// Notes that a timer was registered or deleted.
    pub(super) fn note_timer(&mut self, key_group: u32, operation: Operation<'_>) {
        self.note_fired(key_group);
        self.note(key_group, operation);
    }

    /// Notes which timers fired before what follows.
    fn note_fired(&mut self, key_group: u32) {
        for (domain, place) in [(TimeDomain::EventTime, 0), (TimeDomain::ProcessingTime, 1)] {
            let Fired { rounds, last, .. } = self.fired[place];
            let noted = &mut self.logs[(key_group - self.first_group) as usize].rounds[place];
            if *noted != rounds {
                *noted = rounds;
                self.note(key_group, Operation::DropTimers(domain, last));
            }
        }
    }

    fn note_fired_everywhere(&mut self) {
        (self.first_group..).take(self.logs.len()).for_each(|key_group| self.note_fired(key_group));
    }

    /// Timers up to `time` were taken; `earliest` is the first one left.
    pub(super) fn timers_fired(&mut self, domain: TimeDomain, time: i64, earliest: Option<i64>) {
        let place = match domain {
            TimeDomain::EventTime => 0,
            TimeDomain::ProcessingTime => 1,
        };
        let time = self.fired[place].partly.map_or(time, |partly| partly.max(time));
        if earliest.is_some_and(|earliest| earliest <= time) {
            self.fired[place].partly = Some(time);
            return;
        }
        if time < self.fired[place].last && 0 < self.fired[place].rounds {
            // The clock was set back: what fired before is noted by itself.
            self.note_fired_everywhere();
        }
        let rounds = self.fired[place].rounds + 1;
        self.fired[place] = Fired { rounds, last: time, partly: None };
    }

    /// Drops what was noted if it is more than all state.
    pub(super) fn check(&mut self, state_bytes: u64) {
        if state_bytes.max(LOG_BYTES_MIN) < self.bytes + self.kept_bytes {
            self.drop_changes();
        }
    }

    #[cfg(test)]
    pub(super) fn noted_bytes(&self) -> u64 {
        self.bytes + self.kept_bytes
    }

    fn drop_changes(&mut self) {
        self.logs.iter_mut().for_each(|log| log.operations = Vec::new());
        (self.bytes, self.kept_bytes) = (0, 0);
        self.is_whole = false;
        self.unconfirmed.iter_mut().for_each(|one| one.changes = None);
    }

    /// Begins a new log. Returns what changed since the last snapshot, if it is known.
    fn take(&mut self) -> Option<Changes> {
        if self.fired.iter().any(|fired| fired.partly.is_some()) {
            self.drop_changes();
        }
        self.note_fired_everywhere();
        self.fired.iter_mut().for_each(|fired| fired.partly = None);
        self.bytes = 0;
        let groups = (self.first_group..).zip(&mut self.logs);
        let changes = groups.map(|(key_group, log)| (key_group, mem::take(&mut log.operations)));
        let changes: Vec<_> = changes.filter(|(_, operations)| !operations.is_empty()).collect();
        mem::replace(&mut self.is_whole, true).then(|| Arc::new(changes))
    }

    /// A snapshot is taken. Returns what changed since the last confirmed one, if that is
    /// known, less than all state, and not to be written in full for another reason;
    /// else where to tell the length of the full one.
    pub(super) fn snapshot(
        &mut self,
        checkpoint_id: CheckpointId,
        is_full: bool,
        state_bytes: u64,
    ) -> Result<Increment, Arc<AtomicU64>> {
        let changes = self.take();
        let unconfirmed = self.unconfirmed.iter().map(|one| &one.changes).chain([&changes]);
        let all: Option<Vec<Changes>> = unconfirmed.cloned().collect();
        let increment = all.zip(self.base).filter(|(all, base)| {
            let changed = all.iter().map(|changes| bytes(changes)).sum::<u64>();
            !is_full
                && self.unconfirmed.len() < UNCONFIRMED_MAX
                && base.increments < INCREMENTS_MAX
                && changed < state_bytes.max(1)
                && base.increment_bytes + changed <= base.full_bytes
        });
        let (written, result) = match increment {
            Some((all, base)) => {
                let changed = all.iter().map(|changes| bytes(changes)).sum::<u64>();
                let increment_bytes = base.increment_bytes + changed;
                let increments = base.increments + u32::from(0 < changed);
                let base = Base { increment_bytes, increments, ..base };
                (Written::Increment(base), Ok(Increment(all)))
            }
            None => {
                let length = Arc::<AtomicU64>::default();
                (Written::Full(Arc::clone(&length)), Err(length))
            }
        };
        if self.unconfirmed.len() == UNCONFIRMED_MAX {
            // What led to the oldest is lost for those that follow.
            self.unconfirmed.pop_front();
            self.base = None;
        }
        self.unconfirmed.push_back(Unconfirmed { checkpoint_id, changes, written });
        self.count_kept();
        result
    }

    fn count_kept(&mut self) {
        let kept = self.unconfirmed.iter().filter_map(|one| one.changes.as_ref());
        self.kept_bytes = kept.map(|changes| bytes(changes)).sum();
    }

    /// See [`super::KeyedState::checkpoint_completed`].
    pub(super) fn confirm(&mut self, checkpoint_id: CheckpointId) {
        // Of one that is not known it cannot be said what changed since.
        self.base = None;
        while let Some(one) = self.unconfirmed.pop_front_if(|one| one.checkpoint_id <= checkpoint_id) {
            if one.checkpoint_id == checkpoint_id {
                self.base = Some(match one.written {
                    Written::Full(length) => Base { full_bytes: length.load(Ordering::Acquire), ..Base::default() },
                    Written::Increment(base) => base,
                });
            }
        }
        self.count_kept();
    }
}

fn bytes(changes: &[(u32, Vec<u8>)]) -> u64 {
    changes.iter().map(|(_, operations)| operations.len() as u64).sum()
}
