//! Keyed state and timers of an operator: kept by key group, in memory or on disk.
//!
//! [`KeyedState`] takes lists of entries as a plugin lays them out, checks them
//! against declarations, key groups and quotas, and asks a [`KeyedStateBackend`].
//! Beside it stand the [`TimerQueue`]s. Knows neither plugins nor tasks.

mod entries;
mod keyed_state;
mod map_table;
mod memory;
mod disk_store;
mod disk;
mod pair_map;
mod timers;
mod value_table;
mod section;
mod change_log;
mod snapshot;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod snapshot_tests;
#[cfg(test)]
mod disk_tests;

use std::io;

pub use self::{
    disk::DiskStateBackend,
    disk_store::DiskState,
    keyed_state::{KeyedState, KeyedStateContext, StateError, StateFailure, StateUsage},
    memory::{MemorySnapshot, MemoryStateBackend},
    snapshot::{KeyedStateSnapshot, RestoreError, rewrite_section},
    timers::{TimerQueue, TimerSnapshot},
};

/// What a keyed state holds for a key and a namespace.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateShape {
    /// One value.
    Value,
    /// Elements, each with its length as u32 before it.
    List,
    /// Pairs in the order of their map keys.
    Map,
}

/// A declared state.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct StateDescriptor {
    /// Name of the operator, for messages.
    pub operator: String,
    /// Its name.
    pub name: String,
    /// What it holds; none: it is not kept by key.
    pub shape: Option<StateShape>,
    /// True if each value begins with the time at which it ends (s64, milliseconds
    /// since the Unix epoch): that of a list's element, or of a pair, too.
    pub has_time_to_live: bool,
    /// True if the operator takes all entries when event time ends; they are values then.
    pub taken_at_end: bool,
}

/// What a timer goes by.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum TimeDomain {
    /// The watermark.
    EventTime,
    /// The clock.
    ProcessingTime,
}

/// Whose state: what a value, a list or a map belongs to.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'a> {
    /// Place of the state among those declared.
    pub state: usize,
    /// Key group of the key.
    pub key_group: u32,
    /// Encoded key.
    pub key: &'a [u8],
    /// Encoded namespace; empty, or a window.
    pub namespace: &'a [u8],
}

/// Keeps the state of the key groups of one subtask. What is too much is refused before
/// it gets here. Nothing in here returns an error: a backend that fails finds nothing and
/// changes nothing from then on, and tells so when it is asked.
pub trait KeyedStateBackend {
    /// Tells which entries will be asked for next, so that they are at hand.
    fn prefetch(&self, scopes: &[Scope<'_>]);

    /// Appends the value, or the list's elements, to `out`. Returns false if there is none.
    fn get(&self, scope: Scope<'_>, out: &mut Vec<u8>) -> bool;

    /// Bytes of the value or of the list's elements; 0 if there is none.
    fn value_bytes(&self, scope: Scope<'_>) -> usize;

    /// Sets a value or a list.
    fn put(&mut self, scope: Scope<'_>, value: &[u8]);

    /// Adds elements to a list.
    fn append(&mut self, scope: Scope<'_>, elements: &[u8]);

    /// Deletes a value, a list, or a map whole.
    fn delete(&mut self, scope: Scope<'_>);

    /// Appends the value of a pair to `out`. Returns false if there is none.
    fn get_pair(&self, scope: Scope<'_>, map_key: &[u8], out: &mut Vec<u8>) -> bool;

    /// Sets a pair of a map.
    fn put_pair(&mut self, scope: Scope<'_>, map_key: &[u8], value: &[u8]);

    /// Deletes a pair of a map.
    fn delete_pair(&mut self, scope: Scope<'_>, map_key: &[u8]);

    /// Shows map key and value of the pairs above `after`, in order, until `show` returns false.
    fn scan_map(&self, scope: Scope<'_>, after: Option<&[u8]>, show: &mut dyn FnMut(&[u8], &[u8]) -> bool);

    /// Bytes of a map's pairs with their lengths.
    fn map_bytes(&self, scope: Scope<'_>) -> usize;

    /// Takes values out of a state, in no order, until `take` returns false: key group, key,
    /// namespace and value.
    fn take(&mut self, state: usize, take: &mut TakeEntry<'_>);

    /// Looks at the next few entries of a state with time-to-live and deletes what ended
    /// by `now` (milliseconds since the Unix epoch).
    fn clean_up(&mut self, state: usize, key_group: u32, now: i64);

    /// Bytes of all state with what it takes to find it, without garbage.
    fn bytes(&self) -> u64;

    /// Bytes and entries (values, lists, pairs) of each key group.
    fn sizes(&self) -> Vec<KeyGroupSize>;

    /// What went wrong first, in words; none: all calls have done what they should.
    fn failure(&self) -> Option<String>;

    /// The state of a key group as it is now, which may be read on another thread
    /// while this goes on.
    fn snapshot(&self, key_group: u32) -> Box<dyn KeyGroupSnapshot>;
}

/// How much state a key group has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct KeyGroupSize {
    /// The key group.
    pub key_group: u32,
    /// Bytes with what it takes to find them.
    pub bytes: u64,
    /// Values, lists and pairs of maps.
    pub entries: u64,
}

/// Takes an entry that leaves the state: its scope and value. Returns whether to go on.
pub type TakeEntry<'a> = dyn FnMut(Scope<'_>, &[u8]) -> bool + 'a;

/// Takes an entry of a snapshot: key, namespace, map key (of a pair) and value.
pub type VisitEntry<'a> = dyn FnMut(&[u8], &[u8], Option<&[u8]>, &[u8]) + 'a;

/// The state of a key group at one moment.
pub trait KeyGroupSnapshot: Send {
    /// Shows all entries of a state, in no order. Each state is asked for once, those of
    /// lower places first.
    ///
    /// # Errors
    /// Returns an error if they cannot be read.
    fn visit(&mut self, state: usize, visit: &mut VisitEntry<'_>) -> io::Result<()>;
}

/// True if a value of a state with time-to-live ended by `now`.
fn has_ended(value: &[u8], now: i64) -> bool {
    value.first_chunk().is_some_and(|ends_at| i64::from_le_bytes(*ends_at) <= now)
}
