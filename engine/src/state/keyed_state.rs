//! The keyed state and the timers of one operator's subtask, as its plugin asks for
//! them: in lists of entries, which are checked here.

use std::{fmt, ops::RangeInclusive};

use engine_rows::{key_hash::key_hash, shown_key::ShownKey};

use super::{
    DiskState, DiskStateBackend, KeyGroupSize, KeyGroupSnapshot, KeyedStateBackend, MemoryStateBackend, Scope,
    StateDescriptor, StateShape, TimeDomain, TimerQueue, TimerSnapshot,
    change_log::ChangeLog,
    entries::{ABSENT, Cut, Reader, are_elements, elements, length, write},
    has_ended,
    section::{Operation, Owner, Timer},
    snapshot::RestoredTimers,
};
use crate::base::{
    clock::Timestamp,
    key_group::{key_group, key_group_range},
};

/// Entries between two questions whether to go on.
const ENTRIES_PER_CHECK: u32 = 1 << 16;
/// Entries that are made ready together.
const LOOK_AHEAD: u32 = 32;
/// Entries of a call below which that does not pay.
const LOOK_AHEAD_MIN: u32 = 4;
/// Timers and bytes of timers that are fired by one call.
const FIRED_TIMERS_MAX: u32 = 4096;
const FIRED_BYTES_MAX: usize = 1 << 20;
/// Entries and their bytes that are taken by one call.
const TAKEN_ENTRIES_MAX: u32 = if cfg!(test) { 3 } else { 4096 };
const TAKEN_BYTES_MAX: usize = 1 << 20;
/// Bytes of the time at which a value ends.
const ENDS_AT_BYTES: usize = 8;

/// What keyed state is made for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KeyedStateContext {
    /// Name of the operator that has the timers, for messages.
    pub operator: String,
    /// True if that operator declared the type of its key: only then it has timers.
    pub is_keyed: bool,
    /// All states, in the order by which they are called.
    pub states: Vec<StateDescriptor>,
    /// Zero-based.
    pub subtask_index: u32,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Bytes of state and timers (`state.bytes-max`).
    pub bytes_max: u64,
    /// Bytes of a value or a list (`state.value.bytes-max`).
    pub value_bytes_max: usize,
    /// Number of timers (`state.timers.max`).
    pub timers_max: u64,
    /// Bytes that one call may return (`sandbox.memory.max`).
    pub result_bytes_max: usize,
}

impl KeyedStateContext {
    fn key_groups(&self) -> RangeInclusive<u32> {
        key_group_range(self.subtask_index, self.max_parallelism, self.parallelism)
    }
}

/// Why a call was refused.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum StateFailure {
    /// A list is not well formed, there is no such state, or it holds something else.
    BadList,
    /// The operator may not do that.
    NotKeyed,
    /// The key belongs to another subtask.
    WrongKeyGroup,
    /// All state takes too many bytes.
    StateLimit,
    /// A value has too many bytes.
    ValueLimit,
    /// Too many timers.
    TimerLimit,
    /// More was asked for than the plugin's memory can hold.
    ResultLimit,
    /// Files of state on disk cannot be read or written.
    Storage,
    /// Told not to go on.
    Stopped,
}

/// A call was refused: one line that says what, where, and what to do.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct StateError {
    /// Why.
    pub failure: StateFailure,
    /// For people.
    pub message: String,
}

/// How much an operator has in its state.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct StateUsage {
    /// Bytes and entries by key group.
    pub key_groups: Vec<KeyGroupSize>,
    /// Event-time timers that wait.
    pub event_time_timers: u64,
    /// Processing-time timers that wait.
    pub processing_time_timers: u64,
}

/// See the module.
pub struct KeyedState {
    pub(super) context: KeyedStateContext,
    pub(super) key_groups: RangeInclusive<u32>,
    pub(super) backend: Box<dyn KeyedStateBackend>,
    pub(super) event_time: TimerQueue,
    pub(super) processing_time: TimerQueue,
    /// None: changes are not noted.
    pub(super) changes: Option<ChangeLog>,
    pub(super) restored_timers: Option<RestoredTimers>,
    /// State that is taken next, and whether it is from here: the plugin has taken its own.
    taking: (usize, bool),
}

/// What follows key and namespace in a list of entries.
#[derive(Clone, Copy)]
struct Entries {
    has_map_key: bool,
    has_value: bool,
}

/// Checks from time to time whether to go on with a long list.
struct Progress<'a> {
    count: u32,
    done: u32,
    go_on: &'a dyn Fn() -> bool,
}

impl<'a> Progress<'a> {
    fn new(count: u32, go_on: &'a dyn Fn() -> bool) -> Self {
        Self { count, done: 0, go_on }
    }

    fn next(&mut self) -> Result<bool, StateError> {
        if self.done == self.count {
            return Ok(false);
        }
        self.done += 1;
        if self.done.is_multiple_of(ENTRIES_PER_CHECK) && !(self.go_on)() {
            return Err(StateError { failure: StateFailure::Stopped, message: "the task was canceled".to_owned() });
        }
        Ok(true)
    }
}

impl KeyedState {
    /// Without entries, in memory.
    pub fn new(context: KeyedStateContext) -> Self {
        let key_groups = context.key_groups();
        let backend = Box::new(MemoryStateBackend::new(&context.states, &key_groups));
        Self::with_backend(context, key_groups, backend)
    }

    /// Without entries, on disk. Timers are in memory.
    ///
    /// # Errors
    /// Returns an error if there can be no files.
    pub fn on_disk(context: KeyedStateContext, disk: &DiskState) -> Result<Self, StateError> {
        let key_groups = context.key_groups();
        match DiskStateBackend::open(&context.states, &key_groups, disk) {
            Ok(backend) => Ok(Self::with_backend(context, key_groups, Box::new(backend))),
            Err(problem) => {
                let message = format!("state of operator {:?}: {problem}", context.operator);
                Err(StateError { failure: StateFailure::Storage, message })
            }
        }
    }

    fn with_backend(
        context: KeyedStateContext,
        key_groups: RangeInclusive<u32>,
        backend: Box<dyn KeyedStateBackend>,
    ) -> Self {
        let (event_time, processing_time) = (TimerQueue::default(), TimerQueue::default());
        Self {
            context,
            key_groups,
            backend,
            event_time,
            processing_time,
            changes: None,
            restored_timers: None,
            taking: (0, false),
        }
    }

    fn error(&self, failure: StateFailure, state: usize, key: Option<&[u8]>, what: fmt::Arguments<'_>) -> StateError {
        let StateDescriptor { operator, name, .. } = &self.context.states[state];
        let key = key.map_or_else(String::new, |key| format!(", key {}", ShownKey(key)));
        StateError { failure, message: format!("state {name:?} of operator {operator:?}{key}: {what}") }
    }

    fn cut(&self, state: usize, progress: &Progress<'_>) -> StateError {
        let Progress { done, count, .. } = progress;
        let what = format_args!("the list of {count} entries ends in the middle of the {done}th");
        self.error(StateFailure::BadList, state, None, what)
    }

    /// Place of a state that holds what `is_right` accepts.
    fn state(
        &self,
        state: u32,
        call: &str,
        is_right: fn(StateShape) -> bool,
    ) -> Result<(usize, StateShape), StateError> {
        let index = state as usize;
        let Some(descriptor) = self.context.states.get(index) else {
            let states = self.context.states.len();
            let message = format!("there is no state {state}: the operators declared {states}");
            return Err(StateError { failure: StateFailure::BadList, message });
        };
        match descriptor.shape {
            Some(shape) if is_right(shape) => Ok((index, shape)),
            Some(_) => {
                let what = format_args!("{call} does not fit what the state holds");
                Err(self.error(StateFailure::BadList, index, None, what))
            }
            None => Err(self.error(StateFailure::BadList, index, None, format_args!("the state is not kept by key"))),
        }
    }

    /// The key group of a key, or of what it is if it is not this subtask's.
    fn key_group(&self, key: &[u8]) -> Result<u32, u32> {
        let key_group = key_group(key_hash(key), self.context.max_parallelism);
        if self.key_groups.contains(&key_group) { Ok(key_group) } else { Err(key_group) }
    }

    #[cold]
    fn wrong_key_group(&self, key_group: u32) -> String {
        let other = self.other_key_groups();
        format!("its key group {key_group} {other}: only keys of the rows that the operator got may be used")
    }

    pub(super) fn other_key_groups(&self) -> String {
        let (first, last) = (self.key_groups.start(), self.key_groups.end());
        format!("belongs to another subtask, this one has {first} to {last}")
    }

    #[inline]
    fn scope<'a>(&self, state: usize, reader: &mut Reader<'a>) -> Result<Result<Scope<'a>, StateError>, Cut> {
        let (key, namespace) = (reader.bytes()?, reader.bytes()?);
        Ok(match self.key_group(key) {
            Ok(key_group) => Ok(Scope { state, key_group, key, namespace }),
            Err(key_group) => {
                let what = self.wrong_key_group(key_group);
                Err(self.error(StateFailure::WrongKeyGroup, state, Some(key), format_args!("{what}")))
            }
        })
    }

    /// Has the next entries made ready, if their turn has come. Whether they are well
    /// formed turns out when they are read.
    #[inline]
    fn look_ahead(&self, state: usize, progress: &Progress<'_>, reader: Reader<'_>, entries: Entries) {
        if progress.done % LOOK_AHEAD == 1 && LOOK_AHEAD_MIN <= progress.count {
            self.prefetch(state, reader, entries);
        }
    }

    fn prefetch(&self, state: usize, mut reader: Reader<'_>, entries: Entries) {
        let mut scopes = [Scope { state, key_group: 0, key: &[], namespace: &[] }; LOOK_AHEAD as usize];
        let mut count = 0;
        for scope in &mut scopes {
            let Ok(Ok(next)) = self.scope(state, &mut reader) else { break };
            *scope = next;
            count += 1;
            let skipped = (|| {
                if entries.has_map_key {
                    reader.bytes()?;
                }
                if entries.has_value {
                    reader.optional()?;
                }
                Ok::<_, Cut>(())
            })();
            if skipped.is_err() {
                break;
            }
        }
        self.backend.prefetch(&scopes[..count]);
    }

    /// Nothing may follow the last entry, and the backend must have done what it was told.
    fn check_end(&self, state: usize, progress: &Progress<'_>, reader: Reader<'_>) -> Result<(), StateError> {
        self.check_backend(state)?;
        if reader.0.is_empty() {
            return Ok(());
        }
        let what = format_args!("{} bytes follow the last of {} entries", reader.0.len(), progress.count);
        Err(self.error(StateFailure::BadList, state, None, what))
    }

    #[inline]
    fn check_backend(&self, state: usize) -> Result<(), StateError> {
        match self.backend.failure() {
            None => Ok(()),
            Some(problem) => Err(self.error(StateFailure::Storage, state, None, format_args!("{problem}"))),
        }
    }

    fn check_result(&self, state: usize, out: &[u8]) -> Result<(), StateError> {
        let limit = self.context.result_bytes_max;
        if out.len() <= limit {
            return Ok(());
        }
        let what =
            format_args!("one call asked for more than {limit} bytes (sandbox.memory.max): ask for less at once");
        Err(self.error(StateFailure::ResultLimit, state, None, what))
    }

    fn check_bytes(&self, scope: Scope<'_>) -> Result<(), StateError> {
        let limit = self.context.bytes_max;
        if self.bytes() <= limit {
            return Ok(());
        }
        let what = format_args!(
            "the state of this task takes more than {limit} bytes: raise state.bytes-max or the parallelism, or \
             keep less, for example by a time-to-live"
        );
        Err(self.error(StateFailure::StateLimit, scope.state, Some(scope.key), what))
    }

    fn check_value(&self, scope: Scope<'_>, bytes: usize) -> Result<(), StateError> {
        let limit = self.context.value_bytes_max;
        if bytes <= limit {
            return Ok(());
        }
        let what =
            format_args!("the value has {bytes} bytes, the limit is {limit}: raise state.value.bytes-max or keep less");
        Err(self.error(StateFailure::ValueLimit, scope.state, Some(scope.key), what))
    }

    /// Checks what is to be written: its length, and its layout.
    fn check_layout(&self, scope: Scope<'_>, shape: StateShape, value: &[u8]) -> Result<(), StateError> {
        self.check_value(scope, value.len())?;
        if self.is_layout_right(scope.state, shape, value) {
            return Ok(());
        }
        let what = match (shape, self.context.states[scope.state].has_time_to_live) {
            (StateShape::List, false) => "the elements of a list are not well formed",
            (StateShape::List, _) => {
                "the elements of a list are not well formed, or do not begin with their end of life"
            }
            _ => "a value does not begin with its end of life",
        };
        Err(self.error(StateFailure::BadList, scope.state, Some(scope.key), format_args!("{what}")))
    }

    pub(super) fn is_layout_right(&self, state: usize, shape: StateShape, value: &[u8]) -> bool {
        let least = if self.context.states[state].has_time_to_live { ENDS_AT_BYTES } else { 0 };
        match shape {
            StateShape::List => are_elements(value, least),
            StateShape::Value | StateShape::Map => least <= value.len(),
        }
    }

    /// Notes a change, if changes are noted.
    #[inline]
    fn note<'a>(&mut self, scope: Scope<'a>, operation: impl FnOnce(Owner<'a>) -> Operation<'a>) {
        if let Some(changes) = &mut self.changes {
            let Scope { state, key_group, key, namespace } = scope;
            changes.note(key_group, operation(Owner { state, key, namespace }));
        }
    }

    fn check_changes(&mut self) {
        let bytes = self.bytes();
        if let Some(changes) = &mut self.changes {
            changes.check(bytes);
        }
    }

    /// Bytes of state and timers.
    pub fn bytes(&self) -> u64 {
        self.backend.bytes() + (self.event_time.bytes() + self.processing_time.bytes()) as u64
    }

    /// See `keyed-state.get-many` in `wit/plugin.wit`. `go_on` is asked from time to time.
    ///
    /// # Errors
    /// Returns why the call is refused, as all methods here.
    pub fn get_many(
        &self,
        state: u32,
        count: u32,
        entries: &[u8],
        now: Timestamp,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, StateError> {
        let (state, shape) = self.state(state, "get-many", |_| true)?;
        let has_time_to_live = self.context.states[state].has_time_to_live;
        let layout = Entries { has_map_key: shape == StateShape::Map, has_value: false };
        let mut reader = Reader(entries);
        let mut progress = Progress::new(count, go_on);
        let mut out = Vec::new();
        while progress.next()? {
            self.look_ahead(state, &progress, reader, layout);
            let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
            let at = out.len();
            out.extend_from_slice(&ABSENT.to_le_bytes());
            let begin = out.len();
            let mut found = match shape {
                StateShape::Map => {
                    let map_key = reader.bytes().map_err(|Cut| self.cut(state, &progress))?;
                    self.backend.get_pair(scope, map_key, &mut out)
                }
                StateShape::Value | StateShape::List => self.backend.get(scope, &mut out),
            };
            if found && has_time_to_live {
                if shape == StateShape::List {
                    let list = out.split_off(begin);
                    elements(&list)
                        .filter(|element| !has_ended(element, now.0))
                        .for_each(|element| write(&mut out, element));
                    found = begin < out.len();
                } else if has_ended(&out[begin..], now.0) {
                    out.truncate(begin);
                    found = false;
                }
            }
            if found {
                let bytes = length(out.len() - begin);
                out[at..begin].copy_from_slice(&bytes.to_le_bytes());
            }
            self.check_result(state, &out)?;
        }
        self.check_end(state, &progress, reader)?;
        Ok(out)
    }

    /// See `keyed-state.put-many` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn put_many(
        &mut self,
        state: u32,
        count: u32,
        entries: &[u8],
        now: Timestamp,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), StateError> {
        let (state, shape) = self.state(state, "put-many", |_| true)?;
        let has_time_to_live = self.context.states[state].has_time_to_live;
        let layout = Entries { has_map_key: shape == StateShape::Map, has_value: true };
        let mut reader = Reader(entries);
        let mut progress = Progress::new(count, go_on);
        while progress.next()? {
            self.look_ahead(state, &progress, reader, layout);
            let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
            let map_key = if shape == StateShape::Map { reader.bytes() } else { Ok(&[][..]) };
            let value = map_key.and_then(|map_key| Ok((map_key, reader.optional()?)));
            let (map_key, value) = value.map_err(|Cut| self.cut(state, &progress))?;
            if let Some(value) = value {
                self.check_layout(scope, shape, value)?;
            }
            match (shape, value) {
                (StateShape::Map, Some(value)) => {
                    self.backend.put_pair(scope, map_key, value);
                    self.note(scope, |owner| Operation::PutPair(owner, map_key, value));
                }
                (StateShape::Map, None) => {
                    self.backend.delete_pair(scope, map_key);
                    self.note(scope, |owner| Operation::DeletePair(owner, map_key));
                }
                (StateShape::List, Some([])) | (_, None) => {
                    self.backend.delete(scope);
                    self.note(scope, Operation::Delete);
                }
                (_, Some(value)) => {
                    self.backend.put(scope, value);
                    self.note(scope, |owner| Operation::Put(owner, value));
                }
            }
            if has_time_to_live {
                self.backend.clean_up(state, scope.key_group, now.0);
            }
            self.check_bytes(scope)?;
        }
        self.check_changes();
        self.check_end(state, &progress, reader)
    }

    /// See `keyed-state.append-many` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn append_many(
        &mut self,
        state: u32,
        count: u32,
        entries: &[u8],
        now: Timestamp,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), StateError> {
        let (state, shape) = self.state(state, "append-many", |shape| shape == StateShape::List)?;
        let has_time_to_live = self.context.states[state].has_time_to_live;
        let layout = Entries { has_map_key: false, has_value: true };
        let mut reader = Reader(entries);
        let mut progress = Progress::new(count, go_on);
        while progress.next()? {
            self.look_ahead(state, &progress, reader, layout);
            let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
            let more = reader.bytes().map_err(|Cut| self.cut(state, &progress))?;
            self.check_layout(scope, shape, more)?;
            self.check_value(scope, self.backend.value_bytes(scope) + more.len())?;
            if !more.is_empty() {
                self.backend.append(scope, more);
                self.note(scope, |owner| Operation::Append(owner, more));
            }
            if has_time_to_live {
                self.backend.clean_up(state, scope.key_group, now.0);
            }
            self.check_bytes(scope)?;
        }
        self.check_changes();
        self.check_end(state, &progress, reader)
    }

    /// See `keyed-state.clear-many` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn clear_many(
        &mut self,
        state: u32,
        count: u32,
        entries: &[u8],
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), StateError> {
        let (state, _) = self.state(state, "clear-many", |shape| shape == StateShape::Map)?;
        let layout = Entries { has_map_key: false, has_value: false };
        let mut reader = Reader(entries);
        let mut progress = Progress::new(count, go_on);
        while progress.next()? {
            self.look_ahead(state, &progress, reader, layout);
            let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
            self.backend.delete(scope);
            self.note(scope, Operation::Delete);
        }
        self.check_changes();
        self.check_end(state, &progress, reader)
    }

    /// See `keyed-state.load-maps` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn load_maps(
        &self,
        state: u32,
        count: u32,
        entries: &[u8],
        max_bytes: u32,
        now: Timestamp,
        go_on: &dyn Fn() -> bool,
    ) -> Result<Vec<u8>, StateError> {
        let (state, _) = self.state(state, "load-maps", |shape| shape == StateShape::Map)?;
        let layout = Entries { has_map_key: false, has_value: false };
        let mut reader = Reader(entries);
        let mut progress = Progress::new(count, go_on);
        let mut out = Vec::new();
        while progress.next()? {
            self.look_ahead(state, &progress, reader, layout);
            let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
            let at = out.len();
            out.extend_from_slice(&ABSENT.to_le_bytes());
            let begin = out.len();
            if self.backend.map_bytes(scope) <= max_bytes as usize {
                self.pairs(scope, None, now, &mut |map_key, value| {
                    write(&mut out, map_key);
                    write(&mut out, value);
                    true
                });
                let bytes = length(out.len() - begin);
                out[at..begin].copy_from_slice(&bytes.to_le_bytes());
            }
            self.check_result(state, &out)?;
        }
        self.check_end(state, &progress, reader)?;
        Ok(out)
    }

    /// See `keyed-state.scan-map` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn scan_map(
        &self,
        state: u32,
        entry: &[u8],
        after: Option<&[u8]>,
        max_bytes: u32,
        now: Timestamp,
    ) -> Result<Vec<u8>, StateError> {
        let (state, _) = self.state(state, "scan-map", |shape| shape == StateShape::Map)?;
        let mut reader = Reader(entry);
        let progress = Progress { count: 1, done: 1, go_on: &|| true };
        let scope = self.scope(state, &mut reader).map_err(|Cut| self.cut(state, &progress))??;
        self.check_end(state, &progress, reader)?;
        let mut out: Vec<u8> = Vec::new();
        let bytes_max = (max_bytes as usize).min(self.context.result_bytes_max);
        self.pairs(scope, after, now, &mut |map_key, value| {
            let fits = out.is_empty() || out.len() + 8 + map_key.len() + value.len() <= bytes_max;
            if fits {
                write(&mut out, map_key);
                write(&mut out, value);
            }
            fits
        });
        self.check_backend(state)?;
        Ok(out)
    }

    /// The pairs of a map that have not ended.
    fn pairs(
        &self,
        scope: Scope<'_>,
        after: Option<&[u8]>,
        now: Timestamp,
        show: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) {
        if self.context.states[scope.state].has_time_to_live {
            let mut show = |map_key: &[u8], value: &[u8]| has_ended(value, now.0) || show(map_key, value);
            self.backend.scan_map(scope, after, &mut show);
        } else {
            self.backend.scan_map(scope, after, show);
        }
    }

    fn timer_error(&self, failure: StateFailure, key: Option<&[u8]>, what: fmt::Arguments<'_>) -> StateError {
        let key = key.map_or_else(String::new, |key| format!(", key {}", ShownKey(key)));
        StateError { failure, message: format!("timers of operator {:?}{key}: {what}", self.context.operator) }
    }

    /// Reads a list of timers.
    fn each_timer(
        &mut self,
        count: u32,
        timers: &[u8],
        go_on: &dyn Fn() -> bool,
        mut each: impl FnMut(&mut Self, u32, Timer<'_>) -> Result<(), StateError>,
    ) -> Result<(), StateError> {
        self.end_restore();
        if !self.context.is_keyed {
            let what = format_args!("only an operator behind key_by has timers");
            return Err(self.timer_error(StateFailure::NotKeyed, None, what));
        }
        let mut reader = Reader(timers);
        let mut progress = Progress::new(count, go_on);
        while progress.next()? {
            let timer = (|| {
                let [domain] = reader.array()?;
                Ok((domain, i64::from_le_bytes(reader.array()?), reader.bytes()?, reader.bytes()?))
            })();
            let done = progress.done;
            let (domain, timestamp, key, namespace) = timer.map_err(|Cut| {
                let what = format_args!("the list of {count} timers ends in the middle of the {done}th");
                self.timer_error(StateFailure::BadList, None, what)
            })?;
            let domain = match domain {
                0 => TimeDomain::EventTime,
                1 => TimeDomain::ProcessingTime,
                _ => {
                    let what = format_args!("the {done}th timer has the time domain {domain}, known are 0 and 1");
                    return Err(self.timer_error(StateFailure::BadList, Some(key), what));
                }
            };
            match self.key_group(key) {
                Ok(key_group) => each(self, key_group, Timer { domain, timestamp, key, namespace })?,
                Err(key_group) => {
                    let what = self.wrong_key_group(key_group);
                    return Err(self.timer_error(StateFailure::WrongKeyGroup, Some(key), format_args!("{what}")));
                }
            }
        }
        self.check_changes();
        if reader.0.is_empty() {
            return Ok(());
        }
        let what = format_args!("{} bytes follow the last of {count} timers", reader.0.len());
        Err(self.timer_error(StateFailure::BadList, None, what))
    }

    pub(super) fn queue(&mut self, domain: TimeDomain) -> &mut TimerQueue {
        match domain {
            TimeDomain::EventTime => &mut self.event_time,
            TimeDomain::ProcessingTime => &mut self.processing_time,
        }
    }

    /// See `timers.register-many` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn register_timers(&mut self, count: u32, timers: &[u8], go_on: &dyn Fn() -> bool) -> Result<(), StateError> {
        self.each_timer(count, timers, go_on, |state, key_group, timer| {
            let Timer { domain, timestamp, key, namespace } = timer;
            if !state.queue(domain).register(timestamp, key, namespace) {
                return Ok(());
            }
            if let Some(changes) = &mut state.changes {
                changes.note_timer(key_group, Operation::RegisterTimer(timer));
            }
            let KeyedStateContext { timers_max, bytes_max, .. } = state.context;
            if timers_max < (state.event_time.len() + state.processing_time.len()) as u64 {
                let what = format_args!(
                    "more than {timers_max} timers wait in this task: raise state.timers.max or the parallelism, or \
                     register fewer"
                );
                return Err(state.timer_error(StateFailure::TimerLimit, Some(key), what));
            }
            if bytes_max < state.bytes() {
                let what = format_args!(
                    "state and timers of this task take more than {bytes_max} bytes: raise state.bytes-max or the \
                     parallelism, or keep less"
                );
                return Err(state.timer_error(StateFailure::StateLimit, Some(key), what));
            }
            Ok(())
        })
    }

    /// See `timers.delete-many` in `wit/plugin.wit`.
    ///
    /// # Errors
    /// See [`KeyedState::get_many`].
    pub fn delete_timers(&mut self, count: u32, timers: &[u8], go_on: &dyn Fn() -> bool) -> Result<(), StateError> {
        self.each_timer(count, timers, go_on, |state, key_group, timer| {
            let Timer { domain, timestamp, key, namespace } = timer;
            if state.queue(domain).delete(timestamp, key, namespace)
                && let Some(changes) = &mut state.changes
            {
                changes.note_timer(key_group, Operation::DeleteTimer(timer));
            }
            Ok(())
        })
    }

    /// Takes the next timers that are due, laid out for `operator-chain.fire-timers`, and
    /// their number: event-time timers up to the watermark `time`, processing-time
    /// timers below the time `time`, so that each fires a millisecond after it was due.
    pub fn take_due_timers(&mut self, domain: TimeDomain, time: Timestamp, out: &mut Vec<u8>) -> u32 {
        let last = match domain {
            TimeDomain::EventTime => time.0,
            TimeDomain::ProcessingTime => time.0.saturating_sub(1),
        };
        self.end_restore();
        let queue = self.queue(domain);
        let count = queue.take_due(last, FIRED_TIMERS_MAX, FIRED_BYTES_MAX, out);
        let earliest = queue.earliest();
        if let Some(changes) = &mut self.changes
            && 0 < count
        {
            changes.timers_fired(domain, last, earliest);
        }
        count
    }

    /// Takes the next entries out of the states that the operator takes at the end, laid out
    /// for `operator-chain.take-state`: the state and their number. First there are none of a
    /// state; None: nothing is left.
    ///
    /// # Errors
    /// Returns an error if files of state on disk cannot be read or written.
    pub fn take_entries(&mut self, out: &mut Vec<u8>) -> Result<Option<(u32, u32)>, StateError> {
        while let Some(state) = self.context.states.get(self.taking.0) {
            let (place, is_from_here) = self.taking;
            if !state.taken_at_end {
                self.taking = (place + 1, false);
                continue;
            }
            let mut count = 0;
            if is_from_here {
                let changes = &mut self.changes;
                self.backend.take(place, &mut |scope, value| {
                    let Scope { state, key_group, key, namespace } = scope;
                    if let Some(changes) = changes {
                        changes.note(key_group, Operation::Delete(Owner { state, key, namespace }));
                    }
                    [key, namespace, value].into_iter().for_each(|bytes| write(out, bytes));
                    count += 1;
                    count < TAKEN_ENTRIES_MAX && out.len() < TAKEN_BYTES_MAX
                });
                self.check_changes();
                self.check_backend(place)?;
            }
            if is_from_here && count == 0 {
                self.taking = (place + 1, false);
                continue;
            }
            self.taking.1 = true;
            return Ok(Some((place as u32, count)));
        }
        Ok(None)
    }

    /// The plugin has more in its own memory of the state that it was handed last: there are
    /// none of it in the next call either.
    pub fn plugin_has_more(&mut self) {
        self.taking.1 = false;
    }

    /// When the next processing-time timer is due, a millisecond after its timestamp.
    pub fn next_processing_time(&self) -> Option<Timestamp> {
        let restored = self.restored_timers.as_ref().and_then(|timers| timers.earliest(TimeDomain::ProcessingTime));
        let earliest = self.processing_time.earliest().into_iter().chain(restored).min();
        earliest.map(|timestamp| Timestamp(timestamp.saturating_add(1)))
    }

    #[cfg(test)]
    pub(super) fn queues(&self) -> [(char, &TimerQueue); 2] {
        [('E', &self.event_time), ('P', &self.processing_time)]
    }

    /// The timers that wait now.
    pub fn timers(&self, domain: TimeDomain) -> TimerSnapshot {
        match domain {
            TimeDomain::EventTime => self.event_time.snapshot(),
            TimeDomain::ProcessingTime => self.processing_time.snapshot(),
        }
    }

    /// How much there is.
    pub fn usage(&self) -> StateUsage {
        StateUsage {
            key_groups: self.backend.sizes(),
            event_time_timers: self.event_time.len() as u64,
            processing_time_timers: self.processing_time.len() as u64,
        }
    }

    /// The state of a key group as it is now; see [`KeyedStateBackend::snapshot`].
    pub fn key_group_snapshot(&self, key_group: u32) -> Box<dyn KeyGroupSnapshot> {
        self.backend.snapshot(key_group)
    }
}
