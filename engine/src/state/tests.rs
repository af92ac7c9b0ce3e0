//! Keyed state and timers against simple models.

use std::collections::{BTreeMap, BTreeSet};

use engine_rows::key_hash::key_hash;
use proptest::prelude::*;
use serde_json::Value;

use super::{
    entries::{ABSENT, elements, write},
    *,
};
use crate::base::{
    clock::Timestamp,
    key_group::{key_group, key_group_range},
};

pub(super) const VALUE: u32 = 0;
pub(super) const LIST: u32 = 1;
pub(super) const MAP: u32 = 2;
/// States with time-to-live stand behind those without.
const SHORT_LIVED: u32 = 3;

pub(super) fn states() -> Vec<StateDescriptor> {
    let mut states = Vec::new();
    for has_time_to_live in [false, true] {
        for (name, shape) in [("value", StateShape::Value), ("list", StateShape::List), ("map", StateShape::Map)] {
            let name = if has_time_to_live { format!("short-lived {name}") } else { name.to_owned() };
            states.push(StateDescriptor {
                operator: "Count".into(),
                name,
                shape: Some(shape),
                has_time_to_live,
                taken_at_end: shape == StateShape::Value,
            });
        }
    }
    states
}

pub(super) fn context() -> KeyedStateContext {
    KeyedStateContext {
        operator: "Count".into(),
        is_keyed: true,
        states: states(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 4,
        bytes_max: 1 << 20,
        value_bytes_max: 10_000,
        timers_max: 1000,
        result_bytes_max: 1 << 20,
    }
}

/// Where the state of a test is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Backend {
    Memory,
    Disk,
}

pub(super) const BACKENDS: [Backend; 2] = [Backend::Memory, Backend::Disk];

impl Backend {
    /// On disk with so little memory that a few dozen entries fill it.
    pub(super) fn state(self, context: KeyedStateContext) -> KeyedState {
        match self {
            Self::Memory => KeyedState::new(context),
            Self::Disk => KeyedState::on_disk(context, &disk(0)).unwrap(),
        }
    }
}

pub(super) fn disk(memory_bytes: u64) -> DiskState {
    DiskState { directory: std::env::temp_dir().join("engine-state-of-tests"), memory_bytes }
}

pub(super) fn entry(key: &[u8], namespace: &[u8]) -> Vec<u8> {
    let mut entry = Vec::new();
    write(&mut entry, key);
    write(&mut entry, namespace);
    entry
}

pub(super) fn with(mut entry: Vec<u8>, part: &[u8]) -> Vec<u8> {
    write(&mut entry, part);
    entry
}

pub(super) fn absent(mut entry: Vec<u8>) -> Vec<u8> {
    entry.extend_from_slice(&ABSENT.to_le_bytes());
    entry
}

pub(super) fn go_on() -> bool {
    true
}

/// State, key, namespace.
pub(super) type ModelScope = (u32, Vec<u8>, Vec<u8>);

/// What a state is, said as simply as can be.
#[derive(Clone, Debug, Default)]
pub(super) struct Model {
    values: BTreeMap<ModelScope, Vec<u8>>,
    lists: BTreeMap<ModelScope, Vec<Vec<u8>>>,
    maps: BTreeMap<ModelScope, BTreeMap<Vec<u8>, Vec<u8>>>,
    pub(super) now: i64,
}

impl Model {
    fn lives(&self, state: u32, value: &[u8]) -> bool {
        state < SHORT_LIVED || self.now < i64::from_le_bytes(value[..8].try_into().unwrap())
    }

    fn value(&self, scope: &ModelScope) -> Option<Vec<u8>> {
        self.values.get(scope).filter(|value| self.lives(scope.0, value)).cloned()
    }

    fn list(&self, scope: &ModelScope) -> Option<Vec<u8>> {
        let list = self.lists.get(scope)?.iter().filter(|element| self.lives(scope.0, element));
        let list = list.fold(Vec::new(), |list, element| with(list, element));
        Some(list).filter(|list| !list.is_empty())
    }

    fn map(&self, scope: &ModelScope) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let map = self.maps.get(scope).cloned().unwrap_or_default();
        map.into_iter().filter(|(_, value)| self.lives(scope.0, value)).collect()
    }

    /// All that lives: value, list or map by scope and map key.
    pub(super) fn all(&self) -> BTreeMap<(ModelScope, Option<Vec<u8>>), Vec<u8>> {
        let mut all = BTreeMap::new();
        for scope in self.values.keys() {
            all.extend(self.value(scope).map(|value| ((scope.clone(), None), value)));
        }
        for scope in self.lists.keys() {
            all.extend(self.list(scope).map(|list| ((scope.clone(), None), list)));
        }
        for scope in self.maps.keys() {
            all.extend(self.map(scope).into_iter().map(|(map_key, value)| ((scope.clone(), Some(map_key)), value)));
        }
        all
    }

    fn has_values(&self) -> bool {
        self.values.keys().any(|scope| self.value(scope).is_some())
    }

    fn scopes(&self) -> BTreeSet<ModelScope> {
        self.values.keys().chain(self.lists.keys()).chain(self.maps.keys()).cloned().collect()
    }
}

fn get(state: &KeyedState, scope: &ModelScope, map_key: Option<&[u8]>, now: i64) -> Option<Vec<u8>> {
    let mut entry = entry(&scope.1, &scope.2);
    if let Some(map_key) = map_key {
        write(&mut entry, map_key);
    }
    let value = state.get_many(scope.0, 1, &entry, Timestamp(now), &go_on).unwrap();
    match u32::from_le_bytes(value[..4].try_into().unwrap()) {
        ABSENT => {
            assert_eq!(value.len(), 4);
            None
        }
        length => {
            assert_eq!(value.len(), 4 + length as usize);
            Some(value[4..].to_vec())
        }
    }
}

fn pairs(bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let parts: Vec<_> = elements(bytes).map(<[u8]>::to_vec).collect();
    parts.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
}

#[track_caller]
fn check(state: &KeyedState, model: &Model, scope: &ModelScope) {
    match scope.0 % 3 {
        VALUE => assert_eq!(get(state, scope, None, model.now), model.value(scope)),
        LIST => assert_eq!(get(state, scope, None, model.now), model.list(scope)),
        _ => {
            let expected = model.map(scope);
            let entry = entry(&scope.1, &scope.2);
            let now = Timestamp(model.now);
            let loaded = state.load_maps(scope.0, 1, &entry, u32::MAX, now, &go_on).unwrap();
            assert_eq!(pairs(&loaded[4..]), expected.clone().into_iter().collect::<Vec<_>>());
            // A piece at a time.
            let mut scanned: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            loop {
                let after = scanned.last().map(|(map_key, _)| map_key.clone());
                let piece = state.scan_map(scope.0, &entry, after.as_deref(), 200, now).unwrap();
                let piece = pairs(&piece);
                if piece.is_empty() {
                    break;
                }
                let bytes: usize = piece.iter().map(|(map_key, value)| 8 + map_key.len() + value.len()).sum();
                assert!(bytes <= 200 || piece.len() == 1, "{bytes}");
                scanned.extend(piece);
            }
            assert_eq!(scanned, expected.into_iter().collect::<Vec<_>>());
        }
    }
}

/// What a snapshot of all key groups shows and lives at `now`.
pub(super) fn contents(
    snapshots: Vec<Box<dyn KeyGroupSnapshot>>,
    now: i64,
) -> BTreeMap<(ModelScope, Option<Vec<u8>>), Vec<u8>> {
    let model = Model { now, ..Model::default() };
    let mut all = BTreeMap::new();
    for mut snapshot in snapshots {
        for state in 0..6 {
            let visited = snapshot.visit(state as usize, &mut |key, namespace, map_key, value| {
                let scope = (state, key.to_vec(), namespace.to_vec());
                let value = if state % 3 == LIST {
                    let lives = elements(value).filter(|element| model.lives(state, element));
                    lives.fold(Vec::new(), with)
                } else {
                    value.to_vec()
                };
                let lives = if state % 3 == LIST { !value.is_empty() } else { model.lives(state, &value) };
                if lives {
                    let shown_twice = all.insert((scope, map_key.map(<[u8]>::to_vec)), value);
                    assert_eq!(shown_twice, None);
                }
            });
            visited.unwrap();
        }
    }
    all
}

fn snapshots(state: &KeyedState) -> Vec<Box<dyn KeyGroupSnapshot>> {
    (0..4).map(|key_group| state.key_group_snapshot(key_group)).collect()
}

/// One step: what to do, state, key, namespace, map key, length of a value.
pub(super) type Step = (u8, u32, u8, u8, u8, u16);

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let length = prop_oneof![4 => 0_u16..24, 2 => Just(16_u16), 1 => 200_u16..1500];
    prop::collection::vec((0_u8..13, 0_u32..6, 0_u8..10, 0_u8..2, 0_u8..8, length), 1..120)
}

/// Takes the next entries. Returns false if there were none.
fn take(state: &mut KeyedState, model: &mut Model) -> bool {
    let mut out = Vec::new();
    let Some((of, count)) = state.take_entries(&mut out).unwrap() else { return false };
    let parts: Vec<_> = elements(&out).map(<[u8]>::to_vec).collect();
    assert_eq!(parts.len(), 3 * count as usize);
    for entry in parts.chunks(3) {
        let [key, namespace, value] = entry else { unreachable!("of three") };
        assert_eq!(model.values.remove(&(of, key.clone(), namespace.clone())).as_ref(), Some(value));
    }
    true
}

/// Takes all values by and by, while steps write and delete until one comes to its end.
fn run_to_the_end(backend: Backend, steps: Vec<Step>) {
    let mut state = backend.state(context());
    let mut model = Model::default();
    let (before, meanwhile) = steps.split_at(steps.len() / 2);
    for (index, step) in before.iter().filter(|step| step.0 != 12).enumerate() {
        apply(&mut state, &mut model, index, *step);
    }
    let snapshot = (meanwhile.len().is_multiple_of(2)).then(|| (snapshots(&state), model.clone()));
    assert!(take(&mut state, &mut model), "the first call has no entries");
    for (index, step) in meanwhile.iter().enumerate() {
        // The second value is taken behind the first.
        let at_first = model.values.keys().any(|scope| scope.0 == VALUE);
        let step = if at_first { *step } else { (step.0, SHORT_LIVED, step.2, step.3, step.4, step.5) };
        apply(&mut state, &mut model, index, step);
        if !model.has_values() {
            break;
        }
    }
    while take(&mut state, &mut model) {}
    assert!(!model.has_values(), "{model:?}");
    assert_eq!(contents(snapshots(&state), model.now), model.all());
    if let Some((snapshots, model)) = snapshot {
        assert_eq!(contents(snapshots, model.now), model.all());
    }
}

/// Does a step to state and model. Returns whose state it was about.
pub(super) fn apply(state: &mut KeyedState, model: &mut Model, index: usize, step: Step) -> ModelScope {
    let (act, number, key, namespace, map_key, length) = step;
    let key = vec![b'k'; key as usize + 1];
    let scope: ModelScope = (number, key.clone(), vec![b'n'; namespace as usize]);
    let now = Timestamp(model.now);
    let mut value = Vec::new();
    if SHORT_LIVED <= number {
        value.extend_from_slice(&(model.now + 1 + i64::from(map_key)).to_le_bytes());
    }
    value.extend((0..length).map(|at| u8::try_from((at as usize + index) % 251).unwrap()));
    let at = entry(&key, &scope.2);
    let map_key = vec![b'm', map_key];
    match (act, number % 3) {
        (0..5, VALUE) => {
            state.put_many(number, 1, &with(at, &value), now, &go_on).unwrap();
            model.values.insert(scope.clone(), value);
        }
        (0..4, LIST) => {
            state.append_many(number, 1, &with(at, &with(Vec::new(), &value)), now, &go_on).unwrap();
            model.lists.entry(scope.clone()).or_default().push(value);
            if 9_000 < model.lists[&scope].iter().map(|element| element.len() + 4).sum::<usize>() {
                state.put_many(number, 1, &absent(entry(&key, &scope.2)), now, &go_on).unwrap();
                model.lists.remove(&scope);
            }
        }
        (4, LIST) => {
            state.put_many(number, 1, &with(at, &with(Vec::new(), &value)), now, &go_on).unwrap();
            model.lists.insert(scope.clone(), vec![value]);
        }
        (0..5, _) => {
            state.put_many(number, 1, &with(with(at, &map_key), &value), now, &go_on).unwrap();
            model.maps.entry(scope.clone()).or_default().insert(map_key, value);
        }
        (5 | 6, MAP) => {
            state.put_many(number, 1, &absent(with(at, &map_key)), now, &go_on).unwrap();
            model.maps.entry(scope.clone()).or_default().remove(&map_key);
        }
        (5 | 6, _) => {
            state.put_many(number, 1, &absent(at), now, &go_on).unwrap();
            model.values.remove(&scope);
            model.lists.remove(&scope);
        }
        (7, MAP) => {
            state.clear_many(number, 1, &at, &go_on).unwrap();
            model.maps.remove(&scope);
        }
        (8, MAP) => {
            let expected = model.map(&scope).get(&map_key).cloned();
            assert_eq!(get(state, &scope, Some(&map_key), model.now), expected);
        }
        (9, _) => model.now += 1,
        (12, _) => _ = take(state, model),
        _ => {}
    }
    scope
}

fn run(backend: Backend, steps: Vec<Step>) {
    let mut state = backend.state(context());
    let mut model = Model::default();
    let mut taken = Vec::new();
    for (index, step) in steps.into_iter().enumerate() {
        match step.0 {
            10 => taken.push((snapshots(&state), model.clone())),
            11 => drop(taken.pop()),
            _ => {}
        }
        let scope = apply(&mut state, &mut model, index, step);
        check(&state, &model, &scope);
    }
    for scope in model.scopes() {
        check(&state, &model, &scope);
    }
    assert_eq!(contents(snapshots(&state), model.now), model.all());
    for (snapshots, model) in taken {
        assert_eq!(contents(snapshots, model.now), model.all());
    }
    let usage = state.usage();
    let bytes: u64 = usage.key_groups.iter().map(|group| group.bytes).sum();
    assert_eq!(bytes, state.bytes());
    let payload: usize = model.all().values().map(Vec::len).sum();
    assert!(payload as u64 <= bytes);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn state_on_disk_equals_its_model_and_snapshots_do_not_change(steps in steps()) {
        run(Backend::Disk, steps);
    }

    #[test]
    fn all_values_on_disk_are_taken_once(steps in steps()) {
        run_to_the_end(Backend::Disk, steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn state_equals_its_model_and_snapshots_do_not_change(steps in steps()) {
        run(Backend::Memory, steps);
    }

    #[test]
    fn all_values_are_taken_once(steps in steps()) {
        run_to_the_end(Backend::Memory, steps);
    }

    #[test]
    fn timers_equal_a_sorted_set(
        steps in prop::collection::vec((0_u8..8, 0_i64..4, 0_u8..6, 0_u8..4, 1_u32..30), 1..150),
    ) {
        let mut queue = TimerQueue::default();
        let mut model = BTreeSet::new();
        for (act, timestamp, key, namespace, count) in steps {
            let (key, namespace) = (vec![key; 3], vec![namespace; namespace as usize]);
            let timer = (timestamp, key.clone(), namespace.clone());
            match act {
                0..5 => prop_assert_eq!(queue.register(timestamp, &key, &namespace), model.insert(timer)),
                5 | 6 => prop_assert_eq!(queue.delete(timestamp, &key, &namespace), model.remove(&timer)),
                _ => {
                    let mut out = Vec::new();
                    let taken = queue.take_due(timestamp, count, usize::MAX, &mut out);
                    let fired = fired(&out);
                    prop_assert_eq!(fired.len(), taken as usize);
                    prop_assert!(fired.is_sorted_by_key(|timer| timer.0));
                    let due = model.iter().filter(|timer| timer.0 <= timestamp).count();
                    prop_assert_eq!(fired.len(), due.min(count as usize));
                    for timer in &fired {
                        prop_assert!(model.remove(timer), "{:?} was not there", timer);
                    }
                    if let (Some(last), Some(first)) = (fired.last(), model.first()) {
                        prop_assert!(last.0 <= first.0);
                    }
                }
            }
            prop_assert_eq!(queue.len(), model.len());
            prop_assert_eq!(queue.is_empty(), queue.bytes() == 0);
            prop_assert_eq!(queue.earliest(), model.first().map(|timer| timer.0));
        }
        let mut left = BTreeSet::new();
        queue.snapshot().visit(|timestamp, key, namespace| assert!(left.insert((timestamp, key.to_vec(), namespace.to_vec()))));
        prop_assert_eq!(left, model);
    }
}

/// Timers as they are fired: timestamp, key, namespace.
pub(super) fn fired(mut bytes: &[u8]) -> Vec<(i64, Vec<u8>, Vec<u8>)> {
    let mut timers = Vec::new();
    while !bytes.is_empty() {
        let timestamp = i64::from_le_bytes(bytes[..8].try_into().unwrap());
        let parts: Vec<_> = elements(&bytes[8..]).take(2).map(<[u8]>::to_vec).collect();
        bytes = &bytes[16 + parts[0].len() + parts[1].len()..];
        timers.push((timestamp, parts[0].clone(), parts[1].clone()));
    }
    timers
}

pub(super) fn timer(domain: u8, key: &str, namespace: &str, timestamp: i64) -> Vec<u8> {
    let mut timer = vec![domain];
    timer.extend_from_slice(&timestamp.to_le_bytes());
    write(&mut timer, key.as_bytes());
    write(&mut timer, namespace.as_bytes());
    timer
}

/// Fires event-time timers as a task does; a timer in `callbacks` registers another.
fn advance(state: &mut KeyedState, watermark: i64, callbacks: &BTreeMap<i64, i64>) -> Vec<String> {
    let mut texts = Vec::new();
    loop {
        let mut out = Vec::new();
        let count = state.take_due_timers(TimeDomain::EventTime, Timestamp(watermark), &mut out);
        if count == 0 {
            return texts;
        }
        for (timestamp, key, _) in fired(&out) {
            let key = String::from_utf8(key).unwrap();
            if let Some(next) = callbacks.get(&timestamp) {
                state.register_timers(1, &timer(0, &key, "ns0", *next), &go_on).unwrap();
            }
            texts.push(format!("E {key} {timestamp}"));
        }
    }
}

#[test]
fn timers_fire_as_flinks() {
    let vectors: Value = serde_json::from_str(include_str!("../../tests-data/timers.json")).unwrap();
    let scenarios = vectors["scenarios"].as_array().unwrap();
    assert_eq!(scenarios.len(), 7);
    for scenario in scenarios {
        let texts = |field: &str| {
            let texts = scenario[field].as_array().unwrap().iter();
            texts.map(|text| text.as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let mut state = KeyedState::new(context());
        let mut callbacks = BTreeMap::new();
        for op in texts("ops") {
            let words: Vec<_> = op.split([' ', '(', ')']).collect();
            let number = |word: &str| word.parse::<i64>().unwrap();
            match words[0] {
                "advance" => drop(advance(&mut state, number(words[2]), &callbacks)),
                word => {
                    let domain = u8::from(words[1] == "P");
                    let timer = timer(domain, words[2], words[3], number(words[4]));
                    if word == "register" {
                        state.register_timers(1, &timer, &go_on).unwrap();
                    } else {
                        state.delete_timers(1, &timer, &go_on).unwrap();
                    }
                    if let Some(at) = words.iter().position(|word| *word == "registers") {
                        callbacks.insert(number(words[4]), number(words[at + 1]));
                    }
                }
            }
        }
        let watermark = scenario["advance"].as_str().unwrap().strip_prefix("watermark ");
        let watermark = watermark.map_or(i64::MAX, |watermark| watermark.parse().unwrap());
        let mut fired = advance(&mut state, watermark, &callbacks);
        // Those of equal timestamps come in no order.
        fired.sort();
        let three_words = |text: &String| text.split(' ').take(3).collect::<Vec<_>>().join(" ");
        assert_eq!(fired, texts("fired").iter().map(three_words).collect::<Vec<_>>(), "{scenario}");

        let mut left = Vec::new();
        for (domain, queue) in state.queues() {
            queue
                .snapshot()
                .visit(|timestamp, key, _| left.push(format!("{domain} {} {timestamp}", String::from_utf8_lossy(key))));
        }
        let expected: Vec<_> = texts("left").iter().map(three_words).collect();
        if expected.iter().any(|text| text.starts_with("processing timer discarded")) {
            assert_eq!(left, ["P k1 1000000"], "a task that ends discards it");
        } else {
            assert_eq!(left, expected, "{scenario}");
        }
    }
    let delays = vectors["processing_delay"].as_array().unwrap();
    assert_eq!(delays.len(), 4);
    for delay in delays {
        let mut state = KeyedState::new(context());
        state.register_timers(1, &timer(1, "k", "", delay["registered_for"].as_i64().unwrap()), &go_on).unwrap();
        let now = Timestamp(delay["now"].as_i64().unwrap());
        let wait = state.next_processing_time().unwrap().since(now);
        assert_eq!(wait.as_millis(), u128::from(delay["delay_ms"].as_u64().unwrap()), "{delay}");
        let due = state.take_due_timers(TimeDomain::ProcessingTime, now, &mut Vec::new());
        assert_eq!(due, u32::from(wait.is_zero()), "{delay}");
    }
}

/// A key for each key group that is the subtask's, and one that is not.
#[test]
fn a_key_of_another_subtask_is_refused_by_every_call() {
    for backend in BACKENDS {
        let context = KeyedStateContext { subtask_index: 1, parallelism: 3, max_parallelism: 128, ..context() };
        let mut state = backend.state(context);
        let own = key_group_range(1, 128, 3);
        let (mut accepted, mut refused) = (0, 0);
        for number in 0_u32..500 {
            let key = number.to_le_bytes();
            let group = key_group(key_hash(&key), 128);
            let at = entry(&key, b"");
            let map_entry = with(at.clone(), b"m");
            let timers = [&[0][..], &[0; 8], &at].concat();
            let now = Timestamp(0);
            let results = [
                state.get_many(VALUE, 1, &at, now, &go_on).map(drop),
                state.put_many(VALUE, 1, &with(at.clone(), b"v"), now, &go_on),
                state.append_many(LIST, 1, &with(at.clone(), &with(vec![], b"e")), now, &go_on),
                state.get_many(MAP, 1, &map_entry, now, &go_on).map(drop),
                state.put_many(MAP, 1, &with(map_entry, b"v"), now, &go_on),
                state.clear_many(MAP, 1, &at, &go_on),
                state.load_maps(MAP, 1, &at, 100, now, &go_on).map(drop),
                state.scan_map(MAP, &at, None, 100, now).map(drop),
                state.register_timers(1, &timers, &go_on),
                state.delete_timers(1, &timers, &go_on),
            ];
            for result in results {
                if own.contains(&group) {
                    assert_eq!(result, Ok(()));
                    accepted += 1;
                } else {
                    let error = result.unwrap_err();
                    assert_eq!(error.failure, StateFailure::WrongKeyGroup);
                    assert!(error.message.contains("this one has 43 to 85"), "{error}");
                    refused += 1;
                }
            }
        }
        assert!(1000 < accepted && 1000 < refused, "{accepted}, {refused}");
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, StateError>, failure: StateFailure, parts: &[&str]) {
    let error = result.unwrap_err();
    assert_eq!(error.failure, failure, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "{error} does not say {part}");
    }
    assert!(!error.message.contains('\n'), "{error}");
}

#[test]
fn quotas_are_kept_and_their_messages_say_where_and_what_to_do() {
    for backend in BACKENDS {
        let mut state = backend.state(context());
        let now = Timestamp(0);
        let too_long = with(entry(b"key\n1", b""), &[0; 10_001]);
        let parts =
            ["state \"value\" of operator \"Count\"", "key \"key\\n1\"", "10001 bytes", "state.value.bytes-max"];
        refused(state.put_many(VALUE, 1, &too_long, now, &go_on), StateFailure::ValueLimit, &parts);

        let elements = (0..90).fold(Vec::new(), |list, _| with(list, &[0; 100]));
        let more = with(entry("schlüssel".as_bytes(), b""), &elements);
        state.append_many(LIST, 1, &more, now, &go_on).unwrap();
        let parts = ["state \"list\"", "key \"schlüssel\"", "18720 bytes", "state.value.bytes-max"];
        refused(state.append_many(LIST, 1, &more, now, &go_on), StateFailure::ValueLimit, &parts);

        let result = (0_u32..).find_map(|number| {
            let long = with(entry(&[&[b'x'; 60][..], &number.to_be_bytes()].concat(), b""), &[0; 5000]);
            state.put_many(VALUE, 1, &long, now, &go_on).err()
        });
        let shown = format!("key \"{}\"… of 64 bytes", "x".repeat(40));
        let parts = ["state \"value\" of operator \"Count\"", &shown, "1048576 bytes", "raise state.bytes-max"];
        refused(Err::<(), _>(result.unwrap()), StateFailure::StateLimit, &parts);
        let (bytes, limit) = (state.bytes(), 1 << 20);
        assert!(limit < bytes && bytes < limit + 6000, "{bytes}");

        let mut state = backend.state(context());
        let result = (0..).find_map(|number| state.register_timers(1, &timer(0, "key", "", number), &go_on).err());
        let parts = ["timers of operator \"Count\"", "key \"key\"", "more than 1000 timers", "raise state.timers.max"];
        refused(Err::<(), _>(result.unwrap()), StateFailure::TimerLimit, &parts);
        assert_eq!(state.usage().event_time_timers, 1001);

        let mut state = backend.state(context());
        let result =
            (0..).find_map(|number| state.register_timers(1, &timer(1, &"k".repeat(9000), "", number), &go_on).err());
        refused(Err::<(), _>(result.unwrap()), StateFailure::StateLimit, &["timers of operator", "state.bytes-max"]);

        let not_keyed = KeyedStateContext { is_keyed: false, ..context() };
        let registered = backend.state(not_keyed).register_timers(1, &timer(0, "key", "", 1), &go_on);
        refused(registered, StateFailure::NotKeyed, &["timers of operator \"Count\"", "key_by"]);
    }
}

#[test]
fn what_timers_far_apart_and_many_states_take_beside_their_bytes_counts() {
    let limit: u64 = 1 << 20;
    let mut state = KeyedState::new(KeyedStateContext { timers_max: u64::MAX, bytes_max: limit, ..context() });
    let kept = (0..).find(|number| state.register_timers(1, &timer(0, "key", "", number * 10_000), &go_on).is_err());
    // A node of a tree for each second with timers.
    assert!(kept.unwrap() < limit.cast_signed() / 400, "{kept:?}");

    let descriptor = states().swap_remove(VALUE as usize);
    let many = vec![descriptor; 256];
    let mut backend = MemoryStateBackend::new(&many, &(0..=32_767));
    assert_eq!(backend.bytes(), 0);
    for key_group in 0..100 {
        let scope = Scope { state: 7, key_group, key: b"k", namespace: b"" };
        assert!(!backend.get(scope, &mut Vec::new()));
        backend.put(scope, b"v");
    }
    // A table for each state.
    assert!(100 * 256 * 100 < backend.bytes(), "{}", backend.bytes());
    assert_eq!(backend.sizes().iter().map(|group| group.entries).sum::<u64>(), 100);
}

#[test]
fn a_call_that_is_told_to_stop_does_so() {
    let mut state = KeyedState::new(context());
    let count = 100_000;
    let entries = with(entry(b"k", b""), b"v").repeat(count as usize);
    let stopped = state.put_many(VALUE, count, &entries, Timestamp(0), &|| false);
    refused(stopped, StateFailure::Stopped, &["canceled"]);
}

#[test]
fn what_one_call_returns_is_limited() {
    for backend in BACKENDS {
        let mut state = backend.state(context());
        let now = Timestamp(0);
        state.put_many(VALUE, 1, &with(entry(b"k", b""), &[7; 9000]), now, &go_on).unwrap();
        state.put_many(MAP, 1, &with(with(entry(b"k", b""), b"m"), &[7; 9000]), now, &go_on).unwrap();
        let entries = entry(b"k", b"").repeat(200);
        let parts = ["1048576 bytes", "sandbox.memory.max"];
        refused(state.get_many(VALUE, 200, &entries, now, &go_on), StateFailure::ResultLimit, &parts);
        refused(state.load_maps(MAP, 200, &entries, u32::MAX, now, &go_on), StateFailure::ResultLimit, &parts);
        // A map above the limit of the call is left out.
        let left_out = state.load_maps(MAP, 1, &entry(b"k", b""), 1000, now, &go_on).unwrap();
        assert_eq!(left_out, ABSENT.to_le_bytes());
    }
}

#[test]
fn lists_that_are_not_well_formed_are_refused() {
    let mut state = KeyedState::new(context());
    let now = Timestamp(0);
    let bad = StateFailure::BadList;
    let whole = with(entry(b"key", b"ns"), b"value");
    for length in 0..whole.len() {
        let cut = &whole[..length];
        refused(state.put_many(VALUE, 1, cut, now, &go_on), bad, &["state \"value\"", "ends in the middle of the 1th"]);
        let lists = [&whole[..], cut].concat();
        refused(state.put_many(VALUE, 2, &lists, now, &go_on), bad, &["middle of the 2th"]);
    }
    let parts = ["20 bytes follow the last of 1 entries"];
    refused(state.put_many(VALUE, 1, &whole.repeat(2)[..whole.len() + 20], now, &go_on), bad, &parts);
    refused(state.get_many(VALUE, 0, b"x", now, &go_on), bad, &["1 bytes follow the last of 0"]);
    let huge = [&u32::MAX.to_le_bytes()[..], &[0; 20]].concat();
    refused(state.get_many(VALUE, 1, &huge, now, &go_on), bad, &["in the middle"]);

    let no_elements = with(entry(b"key", b""), b"abc");
    refused(state.put_many(LIST, 1, &no_elements, now, &go_on), bad, &["elements", "state \"list\""]);
    refused(state.append_many(LIST, 1, &no_elements, now, &go_on), bad, &["elements", "key \"key\""]);
    let no_end = with(entry(b"key", b""), b"1234567");
    refused(state.put_many(SHORT_LIVED, 1, &no_end, now, &go_on), bad, &["end of life"]);
    let no_end = with(entry(b"key", b""), &with(vec![], b"1234567"));
    refused(state.append_many(SHORT_LIVED + LIST, 1, &no_end, now, &go_on), bad, &["end of life"]);

    refused(state.get_many(6, 0, b"", now, &go_on), bad, &["there is no state 6: the operators declared 6"]);
    refused(state.append_many(VALUE, 0, b"", now, &go_on), bad, &["append-many does not fit"]);
    refused(state.clear_many(LIST, 0, b"", &go_on), bad, &["clear-many does not fit"]);
    refused(state.load_maps(VALUE, 0, b"", 1, now, &go_on), bad, &["load-maps does not fit"]);
    refused(state.scan_map(VALUE, &entry(b"", b""), None, 1, now), bad, &["scan-map does not fit"]);
    refused(state.scan_map(MAP, b"\0\0\0\0", None, 1, now), bad, &["in the middle"]);

    let whole = timer(1, "key", "ns", 7);
    for length in 0..whole.len() {
        refused(state.register_timers(1, &whole[..length], &go_on), bad, &["timers of operator", "in the middle"]);
        refused(state.delete_timers(1, &whole[..length], &go_on), bad, &["in the middle"]);
    }
    refused(state.register_timers(1, &timer(2, "key", "ns", 7), &go_on), bad, &["time domain 2", "key \"key\""]);
    refused(state.register_timers(1, &whole.repeat(2), &go_on), bad, &["follow the last of 1 timers"]);

    let mut not_by_key = context();
    not_by_key.states[0].shape = None;
    let state = KeyedState::new(not_by_key);
    refused(state.get_many(0, 0, b"", now, &go_on), bad, &["not kept by key"]);
}

#[test]
fn what_ended_is_cleaned_up_little_by_little() {
    for backend in BACKENDS {
        let mut state = backend.state(context());
        let value = |ends_at: i64| ends_at.to_le_bytes();
        let put = |state: &mut KeyedState, number: u32, ends_at: i64, now: i64| {
            let at = entry(&number.to_le_bytes(), b"");
            let now = Timestamp(now);
            state.put_many(SHORT_LIVED, 1, &with(at.clone(), &value(ends_at)), now, &go_on).unwrap();
            let list = with(at.clone(), &with(vec![], &value(ends_at)));
            state.append_many(SHORT_LIVED + LIST, 1, &list, now, &go_on).unwrap();
            let pair = with(with(at, b"m"), &value(ends_at));
            state.put_many(SHORT_LIVED + MAP, 1, &pair, now, &go_on).unwrap();
        };
        let entries = |state: &KeyedState| state.usage().key_groups.iter().map(|group| group.entries).sum::<u64>();
        (0..1000).for_each(|number| put(&mut state, number, 10, 0));
        assert_eq!(entries(&state), 3000);
        // Nobody touches what ended; one write does not take it all away.
        put(&mut state, 5000, i64::MAX, 10);
        assert!(2980 < entries(&state));
        for _ in 0..20_000 {
            put(&mut state, 5000, i64::MAX, 10);
            for number in 5001..5010 {
                put(&mut state, number, i64::MAX, 10);
            }
            let list = absent(entry(&5000_u32.to_le_bytes(), b""));
            state.put_many(SHORT_LIVED + LIST, 1, &list, Timestamp(10), &go_on).unwrap();
            if entries(&state) <= 30 {
                break;
            }
        }
        assert!(entries(&state) <= 30, "{backend:?}: {} entries are left", entries(&state));
    }
}

#[test]
fn a_snapshot_is_read_on_another_thread_while_the_task_goes_on() {
    for backend in BACKENDS {
        let mut state = backend.state(KeyedStateContext { bytes_max: u64::MAX, max_parallelism: 1, ..context() });
        let put = |state: &mut KeyedState, round: u32| {
            for number in 0_u32..2000 {
                let entry =
                    with(entry(&number.to_le_bytes(), b""), &round.to_le_bytes().repeat(1 + round as usize % 3));
                state.put_many(VALUE, 1, &entry, Timestamp(0), &go_on).unwrap();
            }
        };
        put(&mut state, 0);
        let snapshots: Vec<_> = (0..20).map(|_| state.key_group_snapshot(0)).collect();
        let reader = std::thread::spawn(move || {
            let mut seen = 0;
            for mut snapshot in snapshots {
                let visited = snapshot.visit(0, &mut |_, _, _, value| {
                    assert_eq!(value, 0_u32.to_le_bytes());
                    seen += 1;
                });
                visited.unwrap();
            }
            seen
        });
        (1..20).for_each(|round| put(&mut state, round));
        assert_eq!(reader.join().unwrap(), 20 * 2000);
        let visited = state.key_group_snapshot(0).visit(0, &mut |_, _, _, value| {
            assert_eq!(value, 19_u32.to_le_bytes().repeat(2));
        });
        visited.unwrap();
    }
}
