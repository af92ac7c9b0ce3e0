//! Keyed state, timers and the clock outside of a component: in memory, per thread.
//!
//! Each segment of a test is an instance with states and timers of its own.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use crate::{
    bindings::{engine::plugin::graph::StateKind, exports::engine::plugin::operator_chain::TimeDomain},
    record::Reader,
};

/// Number of an instance.
pub(crate) type InstanceId = usize;

const ABSENT: u32 = u32::MAX;

/// Key and namespace.
type Scope = (Vec<u8>, Vec<u8>);

/// What is kept under a key and namespace.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Kept {
    /// A value, or the elements of a list.
    Bytes(Vec<u8>),
    /// The pairs of a map.
    Map(BTreeMap<Vec<u8>, Vec<u8>>),
}

/// A timer that waits.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) struct KeptTimer {
    pub(crate) is_processing_time: bool,
    /// Milliseconds since the Unix epoch.
    pub(crate) timestamp: i64,
    pub(crate) key: Vec<u8>,
    pub(crate) namespace: Vec<u8>,
}

/// What the host keeps for an instance.
#[derive(Default)]
struct Instance {
    kinds: Vec<StateKind>,
    states: BTreeMap<(u32, Scope), Kept>,
    timers: BTreeSet<KeptTimer>,
    /// Elements of operator states, as they were put.
    lists: BTreeMap<u32, Vec<u8>>,
}

/// All that is kept for an instance; what a test takes and gives back.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct KeptInstance {
    /// State, key, namespace and what is there.
    pub(crate) states: Vec<(u32, Vec<u8>, Vec<u8>, Kept)>,
    pub(crate) timers: Vec<KeptTimer>,
    pub(crate) lists: BTreeMap<u32, Vec<u8>>,
}

thread_local! {
    static INSTANCES: RefCell<BTreeMap<InstanceId, Instance>> = const { RefCell::new(BTreeMap::new()) };
    static ENTERED: Cell<InstanceId> = const { Cell::new(0) };
    static NOW: Cell<i64> = const { Cell::new(0) };
    static CALLS: Cell<u64> = const { Cell::new(0) };
}

/// Makes an instance with states of these kinds.
pub(crate) fn declare_instance(instance: InstanceId, kinds: Vec<StateKind>) {
    INSTANCES.with_borrow_mut(|instances| instances.insert(instance, Instance { kinds, ..Instance::default() }));
}

/// Calls from here on come from this instance.
pub(crate) fn enter_instance(instance: InstanceId) {
    ENTERED.set(instance);
}

/// Sets the clock, milliseconds since the Unix epoch.
pub(crate) fn set_processing_time(now: i64) {
    NOW.set(now);
}

/// Number of calls for state on this thread.
#[cfg(test)]
pub(crate) fn state_calls() -> u64 {
    CALLS.get()
}

/// Forgets all instances of this thread.
pub(crate) fn reset_state() {
    INSTANCES.take();
    ENTERED.set(0);
    NOW.set(0);
    CALLS.set(0);
}

/// What the host keeps for a state of an instance: key, namespace and what is there.
pub(crate) fn kept(instance: InstanceId, state: u32) -> Vec<(Vec<u8>, Vec<u8>, Kept)> {
    INSTANCES.with_borrow(|instances| {
        let entries = instances.get(&instance).into_iter().flat_map(|instance| &instance.states);
        entries
            .filter(|((of, _), _)| *of == state)
            .map(|((_, (key, namespace)), kept)| (key.clone(), namespace.clone(), kept.clone()))
            .collect()
    })
}

/// Takes a copy of all that is kept for an instance.
pub(crate) fn kept_instance(instance: InstanceId) -> KeptInstance {
    INSTANCES.with_borrow(|instances| {
        let Some(instance) = instances.get(&instance) else { return KeptInstance::default() };
        let states = instance
            .states
            .iter()
            .map(|((state, (key, namespace)), kept)| (*state, key.clone(), namespace.clone(), kept.clone()));
        KeptInstance {
            states: states.collect(),
            timers: instance.timers.iter().cloned().collect(),
            lists: instance.lists.clone(),
        }
    })
}

/// Gives an instance that was declared what it goes on from.
pub(crate) fn restore_instance(instance: InstanceId, kept: KeptInstance) {
    INSTANCES.with_borrow_mut(|instances| {
        let instance = instances.get_mut(&instance).expect("the instance was declared");
        let states = kept.states.into_iter().map(|(state, key, namespace, kept)| ((state, (key, namespace)), kept));
        instance.states = states.collect();
        instance.timers = kept.timers.into_iter().collect();
        instance.lists = kept.lists;
    });
}

/// True if any instance has state or timers.
#[cfg(test)]
pub(crate) fn kept_anything() -> bool {
    INSTANCES.with_borrow(|instances| {
        instances.values().any(|instance| !instance.states.is_empty() || !instance.timers.is_empty())
    })
}

/// The timers of an instance that wait.
pub(crate) fn kept_timers(instance: InstanceId) -> Vec<KeptTimer> {
    INSTANCES.with_borrow(|instances| {
        instances.get(&instance).map_or(Vec::new(), |instance| instance.timers.iter().cloned().collect())
    })
}

/// Takes up to `count_max` timers of an instance that are due, as `fire-timers` gets them: their
/// number and their bytes.
pub(crate) fn take_due_timers(
    instance: InstanceId,
    domain: TimeDomain,
    time: i64,
    count_max: usize,
) -> Option<(u32, Vec<u8>)> {
    INSTANCES.with_borrow_mut(|instances| {
        let timers = &mut instances.get_mut(&instance)?.timers;
        let is_processing_time = domain == TimeDomain::ProcessingTime;
        let due: Vec<_> = timers
            .iter()
            .filter(|timer| timer.is_processing_time == is_processing_time && timer.timestamp <= time)
            .take(count_max)
            .cloned()
            .collect();
        let mut bytes = Vec::new();
        for timer in &due {
            timers.remove(timer);
            bytes.extend_from_slice(&timer.timestamp.to_le_bytes());
            write_counted(&timer.key, &mut bytes);
            write_counted(&timer.namespace, &mut bytes);
        }
        (!due.is_empty()).then(|| (length(due.len()), bytes))
    })
}

/// Takes up to `count_max` values of a state of an instance, as `take-state` gets them.
pub(crate) fn take_entries(instance: InstanceId, state: u32, count_max: usize) -> Vec<u8> {
    INSTANCES.with_borrow_mut(|instances| {
        let Some(instance) = instances.get_mut(&instance) else { return Vec::new() };
        let taken = instance.states.extract_if(.., |(of, _), _| *of == state).take(count_max);
        let mut bytes = Vec::new();
        for ((_, (key, namespace)), kept) in taken {
            let Kept::Bytes(value) = kept else { panic!("state {state} is no value") };
            [key, namespace, value].iter().for_each(|part| write_counted(part, &mut bytes));
        }
        bytes
    })
}

fn length(length: usize) -> u32 {
    u32::try_from(length).expect("state of a test is small")
}

fn write_counted(bytes: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&length(bytes.len()).to_le_bytes());
    out.extend_from_slice(bytes);
}

/// Takes u32 length and bytes; none for "absent".
fn read_counted<'a>(reader: &mut Reader<'a>) -> Option<&'a [u8]> {
    let length = u32::from_le_bytes(reader.array().expect("a whole request"));
    (length != ABSENT).then(|| reader.bytes(length as usize).expect("a whole request"))
}

fn read_scope(reader: &mut Reader<'_>) -> Scope {
    let mut part = || read_counted(reader).expect("a key or namespace").to_owned();
    (part(), part())
}

/// Runs `f` on what is entered; checks that exactly the requests were read.
fn with_requests(count: u32, requests: &[u8], mut f: impl FnMut(&mut Instance, Scope, &mut Reader<'_>)) {
    CALLS.set(CALLS.get() + 1);
    INSTANCES.with_borrow_mut(|instances| {
        let instance = instances.get_mut(&ENTERED.get()).expect("the instance was declared");
        let mut reader = Reader::new(requests);
        for _ in 0..count {
            let scope = read_scope(&mut reader);
            f(instance, scope, &mut reader);
        }
        assert_eq!(reader.remaining(), 0, "requests that were not counted");
    });
}

impl Instance {
    fn is_map(&self, state: u32) -> bool {
        self.kinds[state as usize] == StateKind::Map
    }

    fn map_mut(&mut self, state: u32, scope: Scope) -> &mut BTreeMap<Vec<u8>, Vec<u8>> {
        match self.states.entry((state, scope)).or_insert_with(|| Kept::Map(BTreeMap::new())) {
            Kept::Map(map) => map,
            Kept::Bytes(_) => panic!("state {state} is no map"),
        }
    }
}

pub(crate) fn get_operator_state(state: u32) -> Vec<u8> {
    INSTANCES.with_borrow(|instances| {
        let instance = instances.get(&ENTERED.get()).expect("the instance was declared");
        instance.lists.get(&state).cloned().unwrap_or_default()
    })
}

pub(crate) fn put_operator_state(state: u32, elements: &[u8]) {
    INSTANCES.with_borrow_mut(|instances| {
        let instance = instances.get_mut(&ENTERED.get()).expect("the instance was declared");
        instance.lists.insert(state, elements.to_owned());
    });
}

pub(crate) fn get_many(state: u32, count: u32, entries: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    with_requests(count, entries, |instance, scope, reader| {
        let is_map = instance.is_map(state);
        let value = match instance.states.get(&(state, scope)) {
            Some(Kept::Map(map)) => map.get(read_counted(reader).expect("a map key")),
            kept => {
                if is_map {
                    read_counted(reader);
                }
                match kept {
                    Some(Kept::Bytes(bytes)) => Some(bytes),
                    _ => None,
                }
            }
        };
        match value {
            Some(value) => write_counted(value, &mut out),
            None => out.extend_from_slice(&ABSENT.to_le_bytes()),
        }
    });
    out
}

pub(crate) fn put_many(state: u32, count: u32, entries: &[u8]) {
    with_requests(count, entries, |instance, scope, reader| {
        if instance.is_map(state) {
            let map_key = read_counted(reader).expect("a map key").to_owned();
            let map = instance.map_mut(state, scope.clone());
            match read_counted(reader) {
                Some(value) => _ = map.insert(map_key, value.to_owned()),
                None => _ = map.remove(&map_key),
            }
            if map.is_empty() {
                instance.states.remove(&(state, scope));
            }
            return;
        }
        match read_counted(reader) {
            Some(value) => _ = instance.states.insert((state, scope), Kept::Bytes(value.to_owned())),
            None => _ = instance.states.remove(&(state, scope)),
        }
    });
}

pub(crate) fn append_many(state: u32, count: u32, entries: &[u8]) {
    with_requests(count, entries, |instance, scope, reader| {
        let elements = read_counted(reader).expect("elements");
        match instance.states.entry((state, scope)).or_insert_with(|| Kept::Bytes(Vec::new())) {
            Kept::Bytes(list) => list.extend_from_slice(elements),
            Kept::Map(_) => panic!("state {state} is no list"),
        }
    });
}

pub(crate) fn clear_many(state: u32, count: u32, entries: &[u8]) {
    with_requests(count, entries, |instance, scope, _| _ = instance.states.remove(&(state, scope)));
}

pub(crate) fn load_maps(state: u32, count: u32, entries: &[u8], max_bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    with_requests(count, entries, |instance, scope, _| {
        let mut pairs = Vec::new();
        if let Some(Kept::Map(map)) = instance.states.get(&(state, scope)) {
            for (map_key, value) in map {
                write_counted(map_key, &mut pairs);
                write_counted(value, &mut pairs);
            }
        }
        match pairs.len() <= max_bytes as usize {
            true => write_counted(&pairs, &mut out),
            false => out.extend_from_slice(&ABSENT.to_le_bytes()),
        }
    });
    out
}

pub(crate) fn scan_map(state: u32, entry: &[u8], after: Option<&[u8]>, max_bytes: u32) -> Vec<u8> {
    let mut out = Vec::new();
    with_requests(1, entry, |instance, scope, _| {
        let Some(Kept::Map(map)) = instance.states.get(&(state, scope)) else {
            return;
        };
        for (map_key, value) in map.iter().filter(|(map_key, _)| after.is_none_or(|after| after < map_key.as_slice())) {
            let pair = 8 + map_key.len() + value.len();
            if !out.is_empty() && (max_bytes as usize) < out.len() + pair {
                break;
            }
            write_counted(map_key, &mut out);
            write_counted(value, &mut out);
        }
    });
    out
}

fn each_timer(count: u32, timers: &[u8], f: impl Fn(&mut BTreeSet<KeptTimer>, KeptTimer)) {
    INSTANCES.with_borrow_mut(|instances| {
        let instance = instances.get_mut(&ENTERED.get()).expect("the instance was declared");
        let mut reader = Reader::new(timers);
        for _ in 0..count {
            let [domain] = reader.array().expect("a whole timer");
            let timestamp = i64::from_le_bytes(reader.array().expect("a whole timer"));
            let (key, namespace) = read_scope(&mut reader);
            f(&mut instance.timers, KeptTimer { is_processing_time: domain == 1, timestamp, key, namespace });
        }
        assert_eq!(reader.remaining(), 0, "timers that were not counted");
    });
}

pub(crate) fn register_timers(count: u32, timers: &[u8]) {
    each_timer(count, timers, |kept, timer| _ = kept.insert(timer));
}

pub(crate) fn delete_timers(count: u32, timers: &[u8]) {
    each_timer(count, timers, |kept, timer| _ = kept.remove(&timer));
}

pub(crate) fn processing_time() -> i64 {
    NOW.get()
}
