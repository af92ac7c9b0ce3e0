//! Keyed state and timers on their way to a checkpoint and back.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use engine_rows::key_hash::key_hash;

use super::{
    KeyGroupSnapshot, KeyedState, Scope, StateShape, TimeDomain, TimerSnapshot,
    change_log::{ChangeLog, Increment},
    entries::{elements, write},
    has_ended,
    section::{Operation, Operations, Owner, Timer, VERSION},
};
use crate::base::{clock::Timestamp, key_group::key_group, stream_element::CheckpointId};

/// Bytes that are gathered before they are written.
const BUFFER_BYTES: usize = 256 << 10;

/// Bytes of a snapshot cannot be restored.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct RestoreError(pub String);

/// Is given the place of a state and a value or the elements of a list.
pub type ConvertValue<'a> = dyn FnMut(usize, &[u8]) -> Result<Option<Vec<u8>>, String> + 'a;

/// Rewrites a section: `convert` is given the place of a state and a value or the elements
/// of a list, and returns what they become, or none if they stay.
///
/// # Errors
/// Returns an error if the bytes are not well formed, or `convert` does.
pub fn rewrite_section(content: &[u8], convert: &mut ConvertValue<'_>) -> Result<Vec<u8>, RestoreError> {
    let failed = |problem: String| RestoreError(format!("could not convert state: {problem}"));
    let mut operations = Operations::of(content).map_err(failed)?;
    let mut out = vec![VERSION];
    let mut map = 0;
    while let Some(operation) = operations.next().map_err(failed)? {
        let (state, value) = match operation {
            Operation::Put(Owner { state, .. }, value) | Operation::Append(Owner { state, .. }, value) => {
                (state, value)
            }
            Operation::PutPair(Owner { state, .. }, _, value) => {
                map = state;
                (state, value)
            }
            Operation::NextPair(_, value) => (map, value),
            Operation::Delete(_)
            | Operation::DeletePair(..)
            | Operation::RegisterTimer(_)
            | Operation::DeleteTimer(_)
            | Operation::DropTimers(..) => {
                operation.write(&mut out);
                continue;
            }
        };
        let converted =
            convert(state, value).map_err(|problem| failed(format!("a value of state {state}: {problem}")))?;
        let value = converted.as_deref().unwrap_or(value);
        match operation {
            Operation::Put(owner, _) => Operation::Put(owner, value).write(&mut out),
            Operation::Append(owner, _) => Operation::Append(owner, value).write(&mut out),
            Operation::PutPair(owner, map_key, _) => Operation::PutPair(owner, map_key, value).write(&mut out),
            Operation::NextPair(map_key, _) => Operation::NextPair(map_key, value).write(&mut out),
            _ => unreachable!("others have no value"),
        }
    }
    Ok(out)
}

/// State at one moment, to be written on another thread.
pub struct KeyedStateSnapshot(Content);

enum Content {
    Full(Image),
    Increment(Increment),
}

/// All state.
struct Image {
    key_groups: Vec<(u32, Box<dyn KeyGroupSnapshot>)>,
    states: usize,
    shapes: Vec<Option<StateShape>>,
    timers: [(TimeDomain, TimerSnapshot); 2],
    max_parallelism: u32,
    /// Is told the number of bytes.
    length: Arc<AtomicU64>,
}

impl KeyedStateSnapshot {
    /// True if it holds all state, not only what changed since the last confirmed checkpoint.
    pub fn is_full(&self) -> bool {
        matches!(self.0, Content::Full(_))
    }

    /// Writes key group after key group. Returns key group and length of each that has content.
    ///
    /// # Errors
    /// Returns an error if `out` fails, or state on disk cannot be read.
    pub fn write(self, out: &mut dyn Write) -> io::Result<Vec<(u32, u64)>> {
        match self.0 {
            Content::Full(image) => image.write(out),
            Content::Increment(increment) => increment.write(out),
        }
    }
}

impl Image {
    fn write(self, out: &mut dyn Write) -> io::Result<Vec<(u32, u64)>> {
        let mut timers = self.timers_by_group();
        let mut sections = Vec::new();
        for (key_group, mut snapshot) in self.key_groups {
            let mut section = Section { out: &mut *out, buffer: vec![VERSION], bytes: 0, result: Ok(()) };
            for state in (0..self.states).filter(|state| self.shapes[*state].is_some()) {
                section.state(state, &mut *snapshot)?;
            }
            section.buffer.extend(timers.remove(&key_group).unwrap_or_default());
            let bytes = section.end()?;
            if 1 < bytes {
                sections.push((key_group, bytes));
            }
        }
        self.length.store(sections.iter().map(|(_, bytes)| bytes).sum(), Ordering::Release);
        Ok(sections)
    }

    /// The operations that register the timers of each key group.
    fn timers_by_group(&self) -> BTreeMap<u32, Vec<u8>> {
        let mut groups: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (domain, timers) in &self.timers {
            timers.visit(|timestamp, key, namespace| {
                let key_group = key_group(key_hash(key), self.max_parallelism);
                let timer = Timer { domain: *domain, timestamp, key, namespace };
                Operation::RegisterTimer(timer).write(groups.entry(key_group).or_default());
            });
        }
        groups
    }
}

/// A section that is being written.
struct Section<'a> {
    out: &'a mut dyn Write,
    buffer: Vec<u8>,
    /// Bytes that were written from the buffer.
    bytes: u64,
    result: io::Result<()>,
}

impl Section<'_> {
    fn state(&mut self, state: usize, snapshot: &mut dyn KeyGroupSnapshot) -> io::Result<()> {
        // Pairs of one map come one after the other.
        let mut map: Option<(Vec<u8>, Vec<u8>)> = None;
        snapshot.visit(state, &mut |key, namespace, map_key, value| {
            let owner = Owner { state, key, namespace };
            match map_key {
                None => Operation::Put(owner, value).write(&mut self.buffer),
                Some(map_key)
                    if map.as_ref().is_some_and(|map| (map.0.as_slice(), map.1.as_slice()) == (key, namespace)) =>
                {
                    Operation::NextPair(map_key, value).write(&mut self.buffer);
                }
                Some(map_key) => {
                    map = Some((key.to_vec(), namespace.to_vec()));
                    Operation::PutPair(owner, map_key, value).write(&mut self.buffer);
                }
            }
            if BUFFER_BYTES <= self.buffer.len() {
                self.flush();
            }
        })
    }

    fn flush(&mut self) {
        if self.result.is_ok() {
            self.result = self.out.write_all(&self.buffer);
            self.bytes += self.buffer.len() as u64;
        }
        self.buffer.clear();
    }

    /// Writes what is left, unless there is nothing but the version. Returns the length.
    fn end(mut self) -> io::Result<u64> {
        if 0 < self.bytes || 1 < self.buffer.len() {
            self.flush();
        }
        self.result.map(|()| self.bytes)
    }
}

/// Timers of key groups that are being restored. They wait here, as increments tell which
/// of one key group have fired.
#[derive(Default)]
pub(super) struct RestoredTimers {
    groups: BTreeMap<u32, BTreeSet<RestoredTimer>>,
}

/// Domain, timestamp, key and namespace.
type RestoredTimer = (TimeDomain, i64, Vec<u8>, Vec<u8>);

impl RestoredTimers {
    fn drop_up_to(&mut self, key_group: u32, domain: TimeDomain, timestamp: i64) {
        let Some(timers) = self.groups.get_mut(&key_group) else { return };
        let from = (domain, i64::MIN, Vec::new(), Vec::new());
        let mut later = timers.split_off(&from);
        let left = timestamp.checked_add(1).map(|next| later.split_off(&(domain, next, Vec::new(), Vec::new())));
        match (left, domain) {
            (Some(left), _) => timers.extend(left),
            // Nothing of this domain is later than the end of time.
            (None, TimeDomain::EventTime) => {
                timers.extend(later.split_off(&(TimeDomain::ProcessingTime, i64::MIN, Vec::new(), Vec::new())));
            }
            (None, TimeDomain::ProcessingTime) => {}
        }
    }

    pub(super) fn earliest(&self, domain: TimeDomain) -> Option<i64> {
        let timers = self.groups.values().flatten().filter(|timer| timer.0 == domain);
        timers.map(|timer| timer.1).min()
    }
}

impl KeyedState {
    /// From here on notes what changes, so that snapshots may hold only that. Until the first
    /// snapshot nothing is noted, unless [`KeyedState::build_upon`] is called too.
    pub fn track_changes(&mut self) {
        self.end_restore();
        self.changes = Some(ChangeLog::new(*self.key_groups.start(), self.key_groups.clone().count()));
    }

    /// What was restored is what the next snapshot may build upon: parts of these lengths,
    /// the full one first. To be called after [`KeyedState::track_changes`], before anything
    /// changes, and only if the parts were restored whole, for the same states.
    pub fn build_upon(&mut self, part_bytes: &[u64]) {
        if let (Some(changes), Some((full, increments))) = (&mut self.changes, part_bytes.split_first()) {
            changes.build_upon(*full, increments);
        }
    }

    /// The state as it is now. All of it if `is_full`, at the first time, and where less than
    /// all would not be less to write; else what changed since the last confirmed checkpoint.
    ///
    /// The parts of an increment's checkpoint are those of the checkpoint that was confirmed
    /// last when it was taken, and the increment, unless that has no content.
    pub fn snapshot(&mut self, checkpoint_id: CheckpointId, is_full: bool) -> KeyedStateSnapshot {
        self.end_restore();
        let bytes = self.bytes();
        let length = match &mut self.changes {
            None => Arc::default(),
            Some(changes) => match changes.snapshot(checkpoint_id, is_full, bytes) {
                Ok(increment) => return KeyedStateSnapshot(Content::Increment(increment)),
                Err(length) => length,
            },
        };
        let key_groups = self.key_groups.clone().map(|key_group| (key_group, self.backend.snapshot(key_group)));
        KeyedStateSnapshot(Content::Full(Image {
            key_groups: key_groups.collect(),
            states: self.context.states.len(),
            shapes: self.context.states.iter().map(|state| state.shape).collect(),
            timers: [
                (TimeDomain::EventTime, self.event_time.snapshot()),
                (TimeDomain::ProcessingTime, self.processing_time.snapshot()),
            ],
            max_parallelism: self.context.max_parallelism,
            length,
        }))
    }

    /// What was written for this checkpoint can be built upon. Not to be called for
    /// savepoints: those belong to the user.
    pub fn checkpoint_completed(&mut self, checkpoint_id: CheckpointId) {
        if let Some(changes) = &mut self.changes {
            changes.confirm(checkpoint_id);
        }
    }

    /// Takes the part of one key group of a snapshot, the full one first. Key groups of other
    /// subtasks are refused. `states` maps the places of states in the snapshot to places here;
    /// none: dropped. What has ended by `now` is left out: increments hold all that was written, also
    /// what was cleaned up since, and would make more of the state than its quotas allow.
    ///
    /// # Errors
    /// Returns an error if the bytes are not well formed.
    pub fn restore(
        &mut self,
        key_group: u32,
        content: &[u8],
        states: &[Option<usize>],
        now: Timestamp,
    ) -> Result<(), RestoreError> {
        if !self.key_groups.contains(&key_group) {
            return Err(self.restore_error(key_group, format_args!("it {}", self.other_key_groups())));
        }
        let damaged = |problem: String| self.restore_error(key_group, format_args!("its bytes are damaged: {problem}"));
        let mut operations = Operations::of(content).map_err(damaged)?;
        let mut map = None;
        loop {
            let damaged =
                |problem: String| self.restore_error(key_group, format_args!("its bytes are damaged: {problem}"));
            let Some(operation) = operations.next().map_err(damaged)? else { break };
            map = self.redo(key_group, operation, map, states, now)?;
        }
        match self.backend.failure() {
            Some(problem) => Err(self.restore_error(key_group, format_args!("{problem}"))),
            None => Ok(()),
        }
    }

    /// Does one operation of a snapshot. Takes and returns the map that the last one changed.
    fn redo<'a>(
        &mut self,
        key_group: u32,
        operation: Operation<'a>,
        map: Option<Owner<'a>>,
        states: &[Option<usize>],
        now: Timestamp,
    ) -> Result<Option<Owner<'a>>, RestoreError> {
        match operation {
            Operation::Put(owner, value) => {
                if let Some((scope, shape)) = self.restored(key_group, owner, states)? {
                    self.check_restored(scope, shape != StateShape::Map, "a value")?;
                    self.check_restored_layout(scope, shape, value)?;
                    match self.not_ended(scope.state, shape, value, now) {
                        Some(value) => self.backend.put(scope, &value),
                        // An earlier part may have another one.
                        None => self.backend.delete(scope),
                    }
                }
            }
            Operation::Append(owner, elements) => {
                if let Some((scope, shape)) = self.restored(key_group, owner, states)? {
                    self.check_restored(scope, shape == StateShape::List, "elements of a list")?;
                    self.check_restored_layout(scope, shape, elements)?;
                    if let Some(elements) = self.not_ended(scope.state, shape, elements, now) {
                        self.backend.append(scope, &elements);
                    }
                }
            }
            Operation::Delete(owner) => {
                if let Some((scope, _)) = self.restored(key_group, owner, states)? {
                    self.backend.delete(scope);
                }
            }
            Operation::PutPair(owner, map_key, value) => {
                self.restore_pair(key_group, owner, map_key, value, states, now)?;
                return Ok(Some(owner));
            }
            Operation::NextPair(map_key, value) => {
                let Some(owner) = map else {
                    return Err(self.restore_error(key_group, format_args!("its bytes are damaged: a pair has no map")));
                };
                self.restore_pair(key_group, owner, map_key, value, states, now)?;
                return Ok(Some(owner));
            }
            Operation::DeletePair(owner, map_key) => {
                if let Some((scope, shape)) = self.restored(key_group, owner, states)? {
                    self.check_restored(scope, shape == StateShape::Map, "a pair of a map")?;
                    self.backend.delete_pair(scope, map_key);
                }
            }
            Operation::RegisterTimer(timer) => {
                let timer = self.restored_timer(key_group, timer)?;
                self.restored_timers().groups.entry(key_group).or_default().insert(timer);
            }
            Operation::DeleteTimer(timer) => {
                let timer = self.restored_timer(key_group, timer)?;
                self.restored_timers().groups.entry(key_group).or_default().remove(&timer);
            }
            Operation::DropTimers(domain, timestamp) => {
                self.restored_timers().drop_up_to(key_group, domain, timestamp);
            }
        }
        Ok(None)
    }

    /// Where an entry of a snapshot belongs, and what its state holds; none: its state is dropped.
    fn restored<'a>(
        &self,
        key_group: u32,
        owner: Owner<'a>,
        states: &[Option<usize>],
    ) -> Result<Option<(Scope<'a>, StateShape)>, RestoreError> {
        let Owner { state, key, namespace } = owner;
        let Some(place) = states.get(state) else {
            let what = format_args!("its bytes are damaged: it has a state {state}, there are {}", states.len());
            return Err(self.restore_error(key_group, what));
        };
        self.check_restored_key(key_group, key)?;
        let Some(state) = *place else { return Ok(None) };
        let shape = self.context.states.get(state).and_then(|descriptor| descriptor.shape);
        let Some(shape) = shape else {
            let what = format_args!("there is no state {state} that is kept by key");
            return Err(self.restore_error(key_group, what));
        };
        Ok(Some((Scope { state, key_group, key, namespace }, shape)))
    }

    fn restore_pair(
        &mut self,
        key_group: u32,
        owner: Owner<'_>,
        map_key: &[u8],
        value: &[u8],
        states: &[Option<usize>],
        now: Timestamp,
    ) -> Result<(), RestoreError> {
        if let Some((scope, shape)) = self.restored(key_group, owner, states)? {
            self.check_restored(scope, shape == StateShape::Map, "a pair of a map")?;
            self.check_restored_layout(scope, shape, value)?;
            match self.not_ended(scope.state, shape, value, now) {
                Some(value) => self.backend.put_pair(scope, map_key, &value),
                None => self.backend.delete_pair(scope, map_key),
            }
        }
        Ok(())
    }

    /// A value, or the elements of a list, without what has ended by `now`; none: nothing is left.
    fn not_ended<'v>(&self, state: usize, shape: StateShape, value: &'v [u8], now: Timestamp) -> Option<Cow<'v, [u8]>> {
        if !self.context.states[state].has_time_to_live {
            return Some(Cow::Borrowed(value));
        }
        if shape != StateShape::List {
            return (!has_ended(value, now.0)).then_some(Cow::Borrowed(value));
        }
        if !elements(value).any(|element| has_ended(element, now.0)) {
            return Some(Cow::Borrowed(value));
        }
        let mut left = Vec::new();
        elements(value).filter(|element| !has_ended(element, now.0)).for_each(|element| write(&mut left, element));
        (!left.is_empty()).then_some(Cow::Owned(left))
    }

    fn restored_timers(&mut self) -> &mut RestoredTimers {
        self.restored_timers.get_or_insert_default()
    }

    fn restored_timer(&self, key_group: u32, timer: Timer<'_>) -> Result<RestoredTimer, RestoreError> {
        let Timer { domain, timestamp, key, namespace } = timer;
        self.check_restored_key(key_group, key)?;
        if !self.context.is_keyed {
            let what = format_args!("it has timers, but the operator is not behind key_by any more");
            return Err(self.restore_error(key_group, what));
        }
        Ok((domain, timestamp, key.to_vec(), namespace.to_vec()))
    }

    fn check_restored_key(&self, expected: u32, key: &[u8]) -> Result<(), RestoreError> {
        let key_group = key_group(key_hash(key), self.context.max_parallelism);
        if key_group == expected {
            return Ok(());
        }
        Err(self.restore_error(expected, format_args!("its bytes are damaged: a key belongs to key group {key_group}")))
    }

    fn check_restored(&self, scope: Scope<'_>, fits: bool, what: &str) -> Result<(), RestoreError> {
        if fits {
            return Ok(());
        }
        let name = &self.context.states[scope.state].name;
        let what = format_args!("state {name:?}: {what} does not fit what the state holds");
        Err(self.restore_error(scope.key_group, what))
    }

    fn check_restored_layout(&self, scope: Scope<'_>, shape: StateShape, value: &[u8]) -> Result<(), RestoreError> {
        if self.is_layout_right(scope.state, shape, value) {
            return Ok(());
        }
        let name = &self.context.states[scope.state].name;
        let what =
            format_args!("state {name:?}: its bytes are damaged: a value of {} bytes is not well formed", value.len());
        Err(self.restore_error(scope.key_group, what))
    }

    fn restore_error(&self, key_group: u32, what: fmt::Arguments<'_>) -> RestoreError {
        RestoreError(format!("could not restore key group {key_group} of operator {:?}: {what}", self.context.operator))
    }

    /// Lets the timers wait that were restored. What uses timers does so too.
    pub fn end_restore(&mut self) {
        if let Some(timers) = self.restored_timers.take() {
            for (domain, timestamp, key, namespace) in timers.groups.into_values().flatten() {
                self.queue(domain).register(timestamp, &key, &namespace);
            }
        }
    }
}
