//! State on disk, so that it may be larger than memory.
//!
//! Entries lie in order: key group and state (two bytes each, highest first), key and
//! namespace, each with its length before it. For a list or a map a byte follows: 0 for a summary; 1 and a
//! number for a piece of a list, as it was appended; 1 and the map key for a pair. So a map
//! is a range in the order of its map keys, and a key group is a range.

use std::{
    collections::BTreeMap,
    io,
    iter::Peekable,
    ops::{Bound, RangeInclusive},
    sync::Arc,
};

use super::{
    DiskState, KeyGroupSize, KeyGroupSnapshot, KeyedStateBackend, Scope, StateDescriptor, StateShape, TakeEntry,
    VisitEntry,
    disk_store::{Entries, Store},
    entries::{self, elements},
    has_ended,
    section::write_number,
};

/// What an entry costs beside its key and value, about.
const ENTRY_BYTES: usize = 24;
/// Entries that ended and are deleted by one write.
const CLEAN_UP_DELETED: usize = 2;
/// Entries and bytes of values that the clean-up looks at, at once, and the writes after
/// which it does so again.
const CLEAN_UP_ENTRIES: usize = 64;
const CLEAN_UP_BYTES: usize = 64 << 10;
const CLEAN_UP_PAUSE: usize = 32;

/// States whose place, and the one above, fits two bytes.
const STATES_MAX: usize = 65_535;

const SUMMARY: u8 = 0;
const PART: u8 = 1;
const BEHIND_PARTS: u8 = 2;

/// What a list or a map is in all.
#[derive(Clone, Copy, Default)]
struct Summary {
    /// Of elements or pairs, with their lengths.
    bytes: u64,
    /// Number of the next piece of a list; number of pairs of a map.
    count: u64,
}

impl Summary {
    const BYTES: usize = 16;

    fn read(value: &[u8]) -> Self {
        let number =
            |at: usize| value.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).map_or(0, u64::from_le_bytes);
        Self { bytes: number(0), count: number(8) }
    }
}

/// How far the clean-up of a state in a key group is.
#[derive(Clone, Default)]
struct CleanUp {
    /// The last entry that was looked at; empty: none.
    after: Vec<u8>,
    ended: Vec<Vec<u8>>,
    pause: usize,
}

/// See the module.
pub struct DiskStateBackend {
    store: Arc<Store>,
    shapes: Vec<StateShape>,
    sizes: Vec<KeyGroupSize>,
    bytes: u64,
    /// Those that began, by place of the key group and by state.
    clean_ups: BTreeMap<(usize, usize), CleanUp>,
    /// The last entry that was taken, by state; empty: none since the first.
    taken: Vec<Vec<u8>>,
}

/// Where a state of a key group begins.
fn state_begin(key_group: u32, state: usize) -> Vec<u8> {
    let ([.., a, b], [.., c, d]) = (key_group.to_be_bytes(), state.to_be_bytes());
    vec![a, b, c, d]
}

/// The key of a value, or what the keys of a list or a map begin with.
fn owner_key(scope: Scope<'_>) -> Vec<u8> {
    let mut key = state_begin(scope.key_group, scope.state);
    key.reserve(scope.key.len() + scope.namespace.len() + 20);
    for part in [scope.key, scope.namespace] {
        write_number(&mut key, entries::length(part.len()));
        key.extend_from_slice(part);
    }
    key
}

fn with(owner: &[u8], kind: u8, part: &[u8]) -> Vec<u8> {
    [owner, &[kind], part].concat()
}

/// An entry's key taken apart.
struct EntryKey<'a> {
    state: usize,
    key: &'a [u8],
    namespace: &'a [u8],
    /// What the keys of a list or a map begin with.
    owner: &'a [u8],
    /// Kind and part of a list or a map.
    part: Option<(u8, &'a [u8])>,
}

impl<'a> EntryKey<'a> {
    /// None: no key that this module made.
    fn read(entry: &'a [u8]) -> Option<Self> {
        fn number(rest: &mut &[u8]) -> Option<usize> {
            let mut number = 0;
            for index in 0..5 {
                let (byte, left) = rest.split_first()?;
                *rest = left;
                number |= usize::from(byte & 0x7f) << (7 * index);
                if *byte < 0x80 {
                    return Some(number);
                }
            }
            None
        }
        fn bytes<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
            let length = number(rest)?;
            let (bytes, left) = rest.split_at_checked(length)?;
            *rest = left;
            Some(bytes)
        }
        let (state, mut rest) = entry.get(2..)?.split_first_chunk()?;
        let state = usize::from(u16::from_be_bytes(*state));
        let (key, namespace) = (bytes(&mut rest)?, bytes(&mut rest)?);
        let owner = &entry[..entry.len() - rest.len()];
        let part = rest.split_first().map(|(kind, part)| (*kind, part));
        Some(Self { state, key, namespace, owner, part })
    }
}

impl DiskStateBackend {
    /// Without entries, for states and key groups of one subtask.
    ///
    /// # Errors
    /// Returns in words why there can be no files.
    pub fn open(
        states: &[StateDescriptor],
        key_groups: &RangeInclusive<u32>,
        config: &DiskState,
    ) -> Result<Self, String> {
        if STATES_MAX < states.len() {
            return Err(format!("there are {} states: at most {STATES_MAX} are kept on disk", states.len()));
        }
        let shapes: Vec<_> = states.iter().map(|state| state.shape.unwrap_or(StateShape::Value)).collect();
        let sizes: Vec<_> =
            key_groups.clone().map(|key_group| KeyGroupSize { key_group, ..KeyGroupSize::default() }).collect();
        let taken = vec![Vec::new(); shapes.len()];
        Ok(Self { store: Store::open(config)?, shapes, sizes, bytes: 0, clean_ups: BTreeMap::new(), taken })
    }

    fn place(&self, key_group: u32) -> usize {
        (key_group - self.sizes[0].key_group) as usize
    }

    fn count(&mut self, key_group: u32, bytes_more: usize, bytes_less: usize) {
        let place = self.place(key_group);
        let size = &mut self.sizes[place];
        size.bytes = size.bytes + bytes_more as u64 - bytes_less as u64;
        self.bytes = self.bytes + bytes_more as u64 - bytes_less as u64;
    }

    fn count_entries(&mut self, key_group: u32, more: u64, less: u64) {
        let place = self.place(key_group);
        self.sizes[place].entries = self.sizes[place].entries + more - less;
    }

    /// Sets an entry that had a value of so many bytes, or none.
    fn set(&mut self, key_group: u32, key: &[u8], value: &[u8], old: Option<usize>) {
        let bytes = |value: usize| key.len() + value + ENTRY_BYTES;
        self.store.put(key, value);
        if self.store.failure().is_none() {
            self.count(key_group, bytes(value.len()), old.map_or(0, bytes));
        }
    }

    fn unset(&mut self, key_group: u32, key: &[u8], old: usize) {
        self.store.delete(key);
        if self.store.failure().is_none() {
            self.count(key_group, 0, key.len() + old + ENTRY_BYTES);
        }
    }

    fn summary(&self, owner: &[u8]) -> Option<Summary> {
        self.store.get(&with(owner, SUMMARY, &[])).map(|value| Summary::read(&value))
    }

    /// Changes the summary of a list or a map, which is there afterwards if it has bytes.
    fn set_summary(&mut self, key_group: u32, owner: &[u8], old: Option<Summary>, new: Summary) {
        let key = with(owner, SUMMARY, &[]);
        if 0 < new.bytes {
            let value = [new.bytes.to_le_bytes(), new.count.to_le_bytes()].concat();
            self.set(key_group, &key, &value, old.map(|_| Summary::BYTES));
        } else if old.is_some() {
            self.unset(key_group, &key, Summary::BYTES);
        }
    }

    /// Deletes the pieces of a list or the pairs of a map.
    fn unset_parts(&mut self, key_group: u32, owner: &[u8]) {
        let mut parts = Vec::new();
        let store = Arc::clone(&self.store);
        store.scan(Bound::Included(&with(owner, PART, &[])), &with(owner, BEHIND_PARTS, &[]), &mut |key, value| {
            parts.push((key.to_vec(), value.len()));
            true
        });
        for (key, bytes) in parts {
            self.unset(key_group, &key, bytes);
        }
    }

    /// Deletes what ended of an entry that the clean-up saw some time ago.
    fn delete_ended(&mut self, shape: StateShape, key_group: u32, entry: &[u8], now: i64) {
        let Some(value) = self.store.get(entry) else { return };
        let Some(EntryKey { owner, .. }) = EntryKey::read(entry) else { return };
        match shape {
            StateShape::Value => {
                if has_ended(&value, now) {
                    self.unset(key_group, entry, value.len());
                    self.count_entries(key_group, 0, 1);
                }
            }
            StateShape::Map => {
                if has_ended(&value, now) {
                    self.unset_pair(key_group, owner, entry, value.len());
                }
            }
            StateShape::List => {
                let Some(old) = self.summary(owner) else { return };
                let mut left = Vec::new();
                for element in elements(&value).filter(|element| !has_ended(element, now)) {
                    entries::write(&mut left, element);
                }
                if left.is_empty() {
                    self.unset(key_group, entry, value.len());
                } else {
                    self.set(key_group, entry, &left, Some(value.len()));
                }
                let bytes = old.bytes - (value.len() - left.len()) as u64;
                self.set_summary(key_group, owner, Some(old), Summary { bytes, ..old });
                if bytes == 0 {
                    self.count_entries(key_group, 0, 1);
                }
            }
        }
    }

    /// Deletes a pair that is there, with a value of so many bytes.
    fn unset_pair(&mut self, key_group: u32, owner: &[u8], pair: &[u8], value_bytes: usize) {
        self.unset(key_group, pair, value_bytes);
        if let Some(old) = self.summary(owner) {
            let bytes = old.bytes - pair_bytes(pair.len() - owner.len() - 1, value_bytes);
            self.set_summary(key_group, owner, Some(old), Summary { bytes, count: old.count - 1 });
            self.count_entries(key_group, 0, 1);
        }
    }
}

fn pair_bytes(map_key: usize, value: usize) -> u64 {
    (8 + map_key + value) as u64
}

impl Drop for DiskStateBackend {
    fn drop(&mut self) {
        self.store.close();
    }
}

impl KeyedStateBackend for DiskStateBackend {
    fn prefetch(&self, _: &[Scope<'_>]) {
        // A block at a time is read, by the call that needs it.
    }

    fn get(&self, scope: Scope<'_>, out: &mut Vec<u8>) -> bool {
        let owner = owner_key(scope);
        if self.shapes[scope.state] != StateShape::List {
            let value = self.store.get(&owner);
            out.extend_from_slice(value.as_deref().unwrap_or_default());
            return value.is_some();
        }
        let mut found = false;
        self.store.scan(
            Bound::Included(&with(&owner, PART, &[])),
            &with(&owner, BEHIND_PARTS, &[]),
            &mut |_, piece| {
                out.extend_from_slice(piece);
                found = true;
                true
            },
        );
        found
    }

    fn value_bytes(&self, scope: Scope<'_>) -> usize {
        let owner = owner_key(scope);
        match self.shapes[scope.state] {
            StateShape::List => self.summary(&owner).unwrap_or_default().bytes as usize,
            StateShape::Value | StateShape::Map => self.store.value_bytes(&owner).unwrap_or(0),
        }
    }

    fn put(&mut self, scope: Scope<'_>, value: &[u8]) {
        let (owner, key_group) = (owner_key(scope), scope.key_group);
        if self.shapes[scope.state] == StateShape::List && value.is_empty() {
            return self.delete(scope);
        }
        let is_new = if self.shapes[scope.state] == StateShape::List {
            let old = self.summary(&owner);
            if old.is_some() {
                self.unset_parts(key_group, &owner);
            }
            self.set(key_group, &with(&owner, PART, &0_u64.to_be_bytes()), value, None);
            self.set_summary(key_group, &owner, old, Summary { bytes: value.len() as u64, count: 1 });
            old.is_none()
        } else {
            let old = self.store.value_bytes(&owner);
            self.set(key_group, &owner, value, old);
            old.is_none()
        };
        self.count_entries(key_group, u64::from(is_new), 0);
    }

    fn append(&mut self, scope: Scope<'_>, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        let (owner, key_group) = (owner_key(scope), scope.key_group);
        let old = self.summary(&owner);
        let Summary { bytes, count } = old.unwrap_or_default();
        self.set(key_group, &with(&owner, PART, &count.to_be_bytes()), more, None);
        let new = Summary { bytes: bytes + more.len() as u64, count: count + 1 };
        self.set_summary(key_group, &owner, old, new);
        self.count_entries(key_group, u64::from(old.is_none()), 0);
    }

    fn delete(&mut self, scope: Scope<'_>) {
        let (owner, key_group) = (owner_key(scope), scope.key_group);
        if self.shapes[scope.state] == StateShape::Value {
            if let Some(old) = self.store.value_bytes(&owner) {
                self.unset(key_group, &owner, old);
                self.count_entries(key_group, 0, 1);
            }
        } else if let Some(old) = self.summary(&owner) {
            self.unset_parts(key_group, &owner);
            self.set_summary(key_group, &owner, Some(old), Summary::default());
            let entries = if self.shapes[scope.state] == StateShape::Map { old.count } else { 1 };
            self.count_entries(key_group, 0, entries);
        }
    }

    fn get_pair(&self, scope: Scope<'_>, map_key: &[u8], out: &mut Vec<u8>) -> bool {
        let value = self.store.get(&with(&owner_key(scope), PART, map_key));
        out.extend_from_slice(value.as_deref().unwrap_or_default());
        value.is_some()
    }

    fn put_pair(&mut self, scope: Scope<'_>, map_key: &[u8], value: &[u8]) {
        let (owner, key_group) = (owner_key(scope), scope.key_group);
        let pair = with(&owner, PART, map_key);
        let old_value = self.store.value_bytes(&pair);
        self.set(key_group, &pair, value, old_value);
        if old_value == Some(value.len()) {
            return;
        }
        let old = self.summary(&owner);
        let Summary { bytes, count } = old.unwrap_or_default();
        let less = old_value.map_or(0, |old| pair_bytes(map_key.len(), old));
        let new = Summary {
            bytes: bytes + pair_bytes(map_key.len(), value.len()) - less,
            count: count + u64::from(old_value.is_none()),
        };
        self.set_summary(key_group, &owner, old, new);
        self.count_entries(key_group, new.count - count, 0);
    }

    fn delete_pair(&mut self, scope: Scope<'_>, map_key: &[u8]) {
        let owner = owner_key(scope);
        let pair = with(&owner, PART, map_key);
        if let Some(old) = self.store.value_bytes(&pair) {
            self.unset_pair(scope.key_group, &owner, &pair, old);
        }
    }

    fn scan_map(&self, scope: Scope<'_>, after: Option<&[u8]>, show: &mut dyn FnMut(&[u8], &[u8]) -> bool) {
        let owner = owner_key(scope);
        let begin = with(&owner, PART, after.unwrap_or_default());
        let from = if after.is_some() { Bound::Excluded(&*begin) } else { Bound::Included(&*begin) };
        self.store.scan(from, &with(&owner, BEHIND_PARTS, &[]), &mut |key, value| show(&key[owner.len() + 1..], value));
    }

    fn map_bytes(&self, scope: Scope<'_>) -> usize {
        self.summary(&owner_key(scope)).unwrap_or_default().bytes as usize
    }

    fn take(&mut self, state: usize, take: &mut TakeEntry<'_>) {
        let mut goes_on = true;
        while goes_on {
            // Before that everything was deleted, which it would cost time to walk over.
            let after = std::mem::take(&mut self.taken[state]);
            let mut taken = Vec::new();
            for KeyGroupSize { key_group, .. } in &self.sizes {
                let (begin, end) = (state_begin(*key_group, state), state_begin(*key_group, state + 1));
                if !goes_on || end <= after {
                    continue;
                }
                let from = if after < begin { Bound::Included(&*begin) } else { Bound::Excluded(&*after) };
                self.store.scan(from, &end, &mut |entry, value| {
                    if let Some(EntryKey { key, namespace, .. }) = EntryKey::read(entry) {
                        goes_on = take(Scope { state, key_group: *key_group, key, namespace }, value);
                        taken.push((*key_group, entry.to_vec(), value.len()));
                    }
                    goes_on
                });
            }
            for (key_group, entry, bytes) in &taken {
                self.unset(*key_group, entry, *bytes);
                self.count_entries(*key_group, 0, 1);
            }
            match taken.pop() {
                Some((_, last, _)) => self.taken[state] = last,
                // What was written meanwhile may lie before what was taken last.
                None if after.is_empty() => return,
                None => {}
            }
        }
    }

    fn clean_up(&mut self, state: usize, key_group: u32, now: i64) {
        let (shape, place) = (self.shapes[state], self.place(key_group));
        let clean_up = self.clean_ups.entry((place, state)).or_default();
        if clean_up.ended.is_empty() {
            if 0 < clean_up.pause {
                clean_up.pause -= 1;
                return;
            }
            clean_up.look(&self.store, shape, key_group, state, now);
        }
        let ended = &mut clean_up.ended;
        for entry in ended.split_off(ended.len().saturating_sub(CLEAN_UP_DELETED)) {
            self.delete_ended(shape, key_group, &entry, now);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }

    fn sizes(&self) -> Vec<KeyGroupSize> {
        self.sizes.clone()
    }

    fn failure(&self) -> Option<String> {
        self.store.failure()
    }

    fn snapshot(&self, key_group: u32) -> Box<dyn KeyGroupSnapshot> {
        let from = state_begin(key_group, 0);
        let end = state_begin(key_group + 1, 0);
        let entries = self.store.entries(Bound::Included(&from[..2]), &end[..2]);
        Box::new(DiskSnapshot {
            entries: entries.peekable(),
            shapes: self.shapes.clone(),
            _store: Arc::clone(&self.store),
        })
    }
}

impl CleanUp {
    /// Looks at the next entries and notes those that have ended.
    fn look(&mut self, store: &Store, shape: StateShape, key_group: u32, state: usize, now: i64) {
        let (begin, end) = (state_begin(key_group, state), state_begin(key_group, state + 1));
        let after = std::mem::take(&mut self.after);
        let from = if after.is_empty() { Bound::Included(&*begin) } else { Bound::Excluded(&*after) };
        let (mut left, mut bytes_left) = (CLEAN_UP_ENTRIES, CLEAN_UP_BYTES);
        store.scan(from, &end, &mut |key, value| {
            let is_part = || EntryKey::read(key).is_some_and(|key| key.part.is_some_and(|(kind, _)| kind == PART));
            let ended = match shape {
                StateShape::Value => has_ended(value, now),
                StateShape::Map => has_ended(value, now) && is_part(),
                StateShape::List => elements(value).next().is_some_and(|first| has_ended(first, now)) && is_part(),
            };
            if ended {
                self.ended.push(key.to_vec());
            }
            (left, bytes_left) = (left - 1, bytes_left.saturating_sub(value.len()));
            if left == 0 || bytes_left == 0 {
                self.after = key.to_vec();
                return false;
            }
            true
        });
        self.pause = CLEAN_UP_PAUSE;
    }
}

/// A key group of a [`DiskStateBackend`] at one moment.
struct DiskSnapshot {
    entries: Peekable<Entries>,
    shapes: Vec<StateShape>,
    /// Keeps the files.
    _store: Arc<Store>,
}

impl DiskSnapshot {
    /// Shows a list, if there is one.
    fn show_list(list: &mut Option<(Vec<u8>, Vec<u8>)>, visit: &mut VisitEntry<'_>) {
        if let Some((owner, elements)) = list.take()
            && let Some(EntryKey { key, namespace, .. }) = EntryKey::read(&owner)
        {
            visit(key, namespace, None, &elements);
        }
    }
}

impl KeyGroupSnapshot for DiskSnapshot {
    fn visit(&mut self, state: usize, visit: &mut VisitEntry<'_>) -> io::Result<()> {
        let shape = self.shapes[state];
        // Owner and elements of the list whose pieces are being read.
        let mut list: Option<(Vec<u8>, Vec<u8>)> = None;
        let is_shown = |entry: &<Entries as Iterator>::Item| match entry {
            Ok((entry, _)) => EntryKey::read(entry).is_none_or(|entry| entry.state <= state),
            Err(_) => true,
        };
        while let Some(entry) = self.entries.next_if(is_shown) {
            let (entry, value) = entry.map_err(io::Error::other)?;
            let Some(EntryKey { state: of, key, namespace, owner, part }) = EntryKey::read(&entry) else { continue };
            if of < state {
                continue;
            }
            match (shape, part) {
                (StateShape::Value, _) => visit(key, namespace, None, &value),
                (StateShape::Map, Some((PART, map_key))) => visit(key, namespace, Some(map_key), &value),
                (StateShape::List, Some((PART, _))) => match &mut list {
                    Some((of, elements)) if *of == owner => elements.extend_from_slice(&value),
                    _ => {
                        Self::show_list(&mut list, visit);
                        list = Some((owner.to_vec(), value.to_vec()));
                    }
                },
                (StateShape::Map | StateShape::List, _) => {}
            }
        }
        Self::show_list(&mut list, visit);
        Ok(())
    }
}
