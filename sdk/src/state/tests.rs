//! Caches and timers against models that keep everything in one map.
//!
//! Each case is a random run of batches over few keys, with a cache so small that
//! entries leave in the middle of batches, or so large that none does, from an empty or
//! a restored state. What is read must be what the model says, and after a flush the
//! host must have exactly what the model has.

use std::{collections::BTreeMap, ops::ControlFlow};

use engine_rows::{key_hash::key_hash, row};

use super::*;
use crate::{
    bindings::{
        engine::plugin::graph::{ChainingStrategy, Operator, StateKind},
        exports::engine::plugin::operator_chain::TimeDomain,
    },
    current, graph,
    host::{self, Kept},
};

/// Cases for each kind of cache.
const CASES: u64 = 10_000;
/// Longest value.
const VALUE_BYTES_MAX: u64 = 16 << 10;

/// A generator of random numbers (SplitMix64): cases are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

fn backend(kind: StateKind, cache_bytes: u64, restored: bool) -> StateBackend {
    let mut graph = graph::Graph::default();
    let types = graph::NodeTypes { inputs: Vec::new(), output: None };
    let node = graph.add_node("Keyed", Operator::Guest("Keyed".to_owned()), types);
    let state = graph::state::<u64>("state", kind);
    graph.node_mut(node).states = vec![state];
    assert_eq!(graph.node_mut(node).chaining, ChainingStrategy::Always);
    let context = OperatorContext {
        job_name: String::new(),
        task_name: String::new(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
        nodes: vec![node],
        outputs: Vec::new(),
        restored,
        state_cache_bytes: cache_bytes,
        state_value_bytes_max: VALUE_BYTES_MAX,
    };
    let runtime = RuntimeContext {
        job_name: String::new(),
        task_name: String::new(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
    };
    host::declare_instance(0, vec![kind]);
    host::enter_instance(0);
    StateBackend::new(&context, runtime, graph.node_mut(node))
}

/// Key and namespace: short and long ones.
fn scope(random: &mut Random) -> (Vec<u8>, Vec<u8>) {
    let key = match random.below(3) {
        0 => random.below(4).to_le_bytes().to_vec(),
        1 => format!("k{}", random.below(4)).into_bytes(),
        _ => format!("a key that does not fit into its entry {}", random.below(3)).into_bytes(),
    };
    let namespace = match random.chance(50) {
        true => Vec::new(),
        false => window_namespace(0, random.below(3).cast_signed()).to_vec(),
    };
    (key, namespace)
}

/// Small, smaller than a batch, or large.
fn cache_bytes(random: &mut Random) -> u64 {
    [1, 300, 700, 1 << 20][usize::try_from(random.below(4)).unwrap()]
}

type Model<V> = BTreeMap<(Vec<u8>, Vec<u8>), V>;

#[track_caller]
fn check_host(model: &Model<Kept>, seed: u64) {
    let kept = host::kept(0, 0).into_iter().map(|(key, namespace, kept)| ((key, namespace), kept));
    assert_eq!(kept.collect::<BTreeMap<_, _>>(), *model, "seed {seed}");
}

#[test]
fn values_are_those_of_the_model() {
    let (mut evictions, mut misses) = (0, 0);
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<String> = BTreeMap::new();
        let restored = random.chance(30);
        let states = backend(StateKind::Value, cache_bytes(random), restored);
        if restored {
            let mut before = states.value::<String>("state");
            for _ in 0..random.below(20) {
                let (key, namespace) = scope(random);
                let slot = before.slot(key_hash(&key), &key, &namespace);
                *before.value(slot) = Some("restored".to_owned());
                model.insert((key, namespace), "restored".to_owned());
            }
            before.flush();
        }
        let mut cache = states.value::<String>("state");
        for _ in 0..1 + random.below(6) {
            let batch: Vec<_> = (0..random.below(12)).map(|_| scope(random)).collect();
            cache.begin_batch();
            // Hints for all rows fit those without a namespace alone, and mislead the others.
            if random.chance(30) {
                let mut rows = Vec::new();
                for (key, _) in &batch {
                    row::append_with(&mut rows, key_hash(key), row::NO_TIMESTAMP, |out| out.extend_from_slice(key));
                }
                cache.prefetch_rows(&rows, |_| Some([]), |key, out| out.extend_from_slice(key));
            } else if !cache.is_complete() && random.chance(90) {
                for (key, namespace) in &batch {
                    cache.prefetch(key_hash(key), namespace, |out| out.extend_from_slice(key));
                }
                cache.fetch();
            }
            for (row, (key, namespace)) in (0..).zip(batch) {
                current::enter_row(row);
                let slot = cache.slot(key_hash(&key), &key, &namespace);
                let expected = model.get(&(key.clone(), namespace.clone()));
                assert_eq!(cache.get(slot), expected, "seed {seed}");
                match random.below(4) {
                    0 => {}
                    1 => {
                        *cache.value(slot) = None;
                        model.remove(&(key, namespace));
                    }
                    _ => {
                        let appended = ["x", "yyyyyyyyyyyyyyyyyyyyyyy"][usize::try_from(random.below(2)).unwrap()];
                        cache.value(slot).get_or_insert_default().push_str(appended);
                        model.entry((key, namespace)).or_default().push_str(appended);
                    }
                }
            }
            current::enter_row(current::NO_ROW);
            if random.chance(20) {
                cache.flush();
                let model = model.iter().map(|(scope, value)| (scope.clone(), Kept::Bytes(value.clone().into())));
                check_host(&model.collect(), seed);
            }
        }
        evictions += cache.stats().evictions.get();
        misses += cache.stats().misses.get();
    }
    assert!(10_000 < evictions && 10_000 < misses, "{evictions} evictions, {misses} misses");
}

/// Takes the next values; returns them and whether the cache has more.
fn take(cache: &mut ValueCache<String>, entries: &[u8]) -> (Vec<(Vec<u8>, String)>, bool) {
    let mut taken = Vec::new();
    let has_more = cache.take(entries, |key, value| taken.push((key.to_vec(), value)));
    (taken, has_more)
}

#[test]
fn values_are_taken_once_be_they_in_the_cache_or_with_the_host() {
    let (mut from_cache, mut from_host) = (0, 0);
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<String> = BTreeMap::new();
        let states = backend(StateKind::Value, cache_bytes(random), false);
        let mut cache = states.value::<String>("state");
        for number in 0..random.below(40) {
            if random.chance(30) {
                cache.begin_batch();
            }
            let (key, namespace) = scope(random);
            let slot = cache.slot(key_hash(&key), &key, &namespace);
            let value = random.chance(80).then(|| number.to_string());
            cache.value(slot).clone_from(&value);
            match value {
                Some(value) => model.insert((key, namespace), value),
                None => model.remove(&(key, namespace)),
            };
            if random.chance(5) {
                cache.flush();
            }
        }
        let mut taken = Vec::new();
        loop {
            let (values, has_more) = take(&mut cache, &[]);
            // In tests a piece is three values.
            assert!(values.len() <= 3, "seed {seed}");
            from_cache += values.len();
            taken.extend(values);
            if !has_more {
                break;
            }
        }
        loop {
            let entries = host::take_entries(0, 0, 4);
            if entries.is_empty() {
                break;
            }
            let (values, has_more) = take(&mut cache, &entries);
            assert!(!has_more, "seed {seed}");
            from_host += values.len();
            taken.extend(values);
        }
        taken.sort_unstable();
        let mut expected: Vec<_> = model.into_iter().map(|((key, _), value)| (key, value)).collect();
        expected.sort_unstable();
        assert_eq!(taken, expected, "seed {seed}");
        assert_eq!(take(&mut cache, &[]), (Vec::new(), false), "seed {seed}");
        assert_eq!((cache.stats().entries.get(), cache.stats().bytes.get()), (0, 0), "seed {seed}");
        cache.flush();
        check_host(&BTreeMap::new(), seed);
    }
    assert!(10_000 < from_cache && 10_000 < from_host, "{from_cache} of the cache, {from_host} of the host");
}

#[test]
fn lists_are_those_of_the_model() {
    let mut evictions = 0;
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<Vec<String>> = BTreeMap::new();
        let states = backend(StateKind::List, cache_bytes(random), false);
        let mut cache = states.list::<str>("state");
        let mut number = 0;
        for _ in 0..1 + random.below(8) {
            let batch: Vec<_> = (0..random.below(12)).map(|_| scope(random)).collect();
            cache.begin_batch();
            if !cache.is_complete() && random.chance(50) {
                for (key, namespace) in &batch {
                    cache.prefetch(key_hash(key), namespace, |out| out.extend_from_slice(key));
                }
                cache.fetch();
            }
            for (key, namespace) in batch {
                let slot = cache.slot(key_hash(&key), &key, &namespace);
                let expected = model.entry((key, namespace)).or_default();
                match random.below(8) {
                    0 => {
                        cache.clear(slot);
                        expected.clear();
                    }
                    1 => {
                        cache.replace(slot, ["one", "two"]);
                        *expected = vec!["one".to_owned(), "two".to_owned()];
                    }
                    2 => assert_eq!(cache.is_empty(slot), expected.is_empty(), "seed {seed}"),
                    3 => {
                        let mut elements = Vec::new();
                        cache.for_each(slot, |element| elements.push(element.to_owned()));
                        assert_eq!(elements, *expected, "seed {seed}");
                    }
                    4 => {
                        let (key, namespace) = scope(random);
                        let to = cache.slot(key_hash(&key), &key, &namespace);
                        if to != slot {
                            cache.move_to(slot, to);
                            let moved = std::mem::take(expected);
                            model.entry((key, namespace)).or_default().extend(moved);
                        }
                    }
                    _ => {
                        number += 1;
                        let element = format!("element {number}");
                        cache.append(slot, &element);
                        expected.push(element);
                    }
                }
            }
            model.retain(|_, list| !list.is_empty());
            if random.chance(20) {
                cache.flush();
                let encoded = |list: &Vec<String>| {
                    let mut bytes = Vec::new();
                    list.iter().for_each(|element| wire::write_counted(element.as_bytes(), &mut bytes));
                    Kept::Bytes(bytes)
                };
                check_host(&model.iter().map(|(scope, list)| (scope.clone(), encoded(list))).collect(), seed);
            }
        }
        evictions += cache.stats().evictions.get();
    }
    assert!(10_000 < evictions, "{evictions} evictions");
}

#[test]
fn maps_are_those_of_the_model() {
    let mut evictions = 0;
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<BTreeMap<Vec<u8>, String>> = BTreeMap::new();
        let states = backend(StateKind::Map, cache_bytes(random), false);
        let mut cache = states.map::<String>("state");
        // Maps of a case with large values are larger than what is read at once.
        let length = if random.chance(20) { 20_000 } else { 3 };
        for _ in 0..1 + random.below(8) {
            let batch: Vec<_> = (0..random.below(12)).map(|_| scope(random)).collect();
            cache.begin_batch();
            if !cache.is_complete() && random.chance(50) {
                for (key, namespace) in &batch {
                    cache.prefetch(key_hash(key), namespace, |out| out.extend_from_slice(key));
                }
                cache.fetch();
            }
            for (key, namespace) in batch {
                let slot = cache.slot(key_hash(&key), &key, &namespace);
                let expected = model.entry((key, namespace)).or_default();
                let map_key = random.below(5).to_string().into_bytes();
                match random.below(12) {
                    0 => {
                        cache.clear(slot);
                        expected.clear();
                    }
                    1 => assert_eq!(cache.is_empty(slot), expected.is_empty(), "seed {seed}"),
                    2 => {
                        let from = if random.chance(50) { Vec::new() } else { map_key };
                        let mut pairs = Vec::new();
                        let limit = random.below(6);
                        cache.scan(slot, &from, |map_key, value| {
                            pairs.push((map_key.to_owned(), value.clone()));
                            if (pairs.len() as u64) < limit {
                                ControlFlow::Continue(())
                            } else {
                                ControlFlow::Break(())
                            }
                        });
                        let expected = expected.range(from..).take(usize::try_from(limit.max(1)).unwrap());
                        assert!(pairs.iter().map(|(key, value)| (key, value)).eq(expected), "seed {seed}: {pairs:?}");
                    }
                    3 | 4 => assert_eq!(cache.get(slot, &map_key), expected.get(&map_key), "seed {seed}"),
                    5 | 6 => {
                        cache.remove(slot, &map_key);
                        expected.remove(&map_key);
                    }
                    7 | 8 => {
                        cache.modify(slot, &map_key, |value| match value {
                            Some(_) if length == 3 => *value = None,
                            value => value.get_or_insert_default().push('m'),
                        });
                        match expected.get_mut(&map_key) {
                            Some(_) if length == 3 => _ = expected.remove(&map_key),
                            Some(value) => value.push('m'),
                            None => _ = expected.insert(map_key, "m".to_owned()),
                        }
                    }
                    _ => {
                        let value = "v".repeat(length);
                        cache.put(slot, &map_key, value.clone());
                        expected.insert(map_key, value);
                    }
                }
            }
            model.retain(|_, map| !map.is_empty());
            if random.chance(20) {
                cache.flush();
                let bytes = |map: &BTreeMap<Vec<u8>, String>| {
                    Kept::Map(map.iter().map(|(key, value)| (key.clone(), value.clone().into())).collect())
                };
                check_host(&model.iter().map(|(scope, map)| (scope.clone(), bytes(map))).collect(), seed);
            }
        }
        evictions += cache.stats().evictions.get();
    }
    assert!(5_000 < evictions, "{evictions} evictions");
}

#[test]
fn entries_of_a_batch_stay_while_it_lasts() {
    host::reset();
    let mut cache = backend(StateKind::Value, 1, false).value::<u64>("state");
    let slots: Vec<_> = (0..1000_u64)
        .map(|key| {
            let slot = cache.slot(key_hash(&key.to_le_bytes()), &key.to_le_bytes(), b"");
            *cache.value(slot) = Some(key);
            slot
        })
        .collect();
    assert!(slots.iter().zip(0..).all(|(slot, key)| cache.get(*slot) == Some(&key)));
    assert_eq!(cache.stats().evictions.get(), 0);
    cache.begin_batch();
    assert_eq!((cache.stats().entries.get(), cache.stats().evictions.get()), (0, 1000));
    assert_eq!(host::kept(0, 0).len(), 1000);
}

#[test]
fn what_the_host_never_got_is_forgotten_without_a_call() {
    host::reset();
    let mut cache = backend(StateKind::Value, 1 << 20, false).value::<u64>("state");
    for key in 0..1000_u64 {
        cache.begin_batch();
        let slot = cache.slot(key_hash(&key.to_le_bytes()), &key.to_le_bytes(), b"");
        *cache.value(slot) = Some(key);
        *cache.value(slot) = None;
    }
    cache.begin_batch();
    cache.flush();
    assert!(cache.is_complete());
    assert_eq!((cache.stats().entries.get(), cache.stats().bytes.get(), host::state_calls()), (0, 0, 0));
}

#[test]
fn a_batch_is_read_and_written_by_one_call_each() {
    host::reset();
    let mut cache = backend(StateKind::Value, 60_000, true).value::<u64>("state");
    for first in [0_u64, 1000, 0] {
        let keys: Vec<_> = (first..first + 1000).map(u64::to_le_bytes).collect();
        let calls = host::state_calls();
        cache.begin_batch();
        keys.iter().for_each(|key| cache.prefetch(key_hash(key), b"", |out| out.extend_from_slice(key)));
        cache.fetch();
        for key in &keys {
            let slot = cache.slot(key_hash(key), key, b"");
            *cache.value(slot).get_or_insert(0) += 1;
        }
        // The first batch is all there is: nothing can leave.
        let writes = u64::from(calls != 0);
        assert_eq!(host::state_calls() - calls, 1 + writes);
    }
    cache.flush();
    let ones = host::kept(0, 0).into_iter().filter(|(.., kept)| *kept == Kept::Bytes(1_u64.to_le_bytes().to_vec()));
    assert_eq!((host::kept(0, 0).len(), ones.count()), (2000, 1000));
}

#[test]
fn the_host_is_asked_for_what_has_left_and_hardly_for_what_never_was() {
    host::reset();
    let mut cache = backend(StateKind::Value, 600_000, false).value::<u64>("state");
    let batch = |cache: &mut ValueCache<u64>, keys: std::ops::Range<u64>, expected: u64| {
        cache.begin_batch();
        let keys: Vec<_> = keys.map(u64::to_le_bytes).collect();
        // Half of them are met without the first pass.
        let prefetched = keys.iter().filter(|key| key[0] & 1 == 0);
        prefetched.for_each(|key| cache.prefetch(key_hash(key), b"", |out| out.extend_from_slice(key)));
        cache.fetch();
        for key in &keys {
            let slot = cache.slot(key_hash(key), key, b"");
            let value = cache.value(slot).get_or_insert(0);
            assert_eq!(*value, expected);
            *value += 1;
        }
    };
    for first in (0..20_000).step_by(1000) {
        batch(&mut cache, first..first + 1000, 0);
    }
    let (evictions, misses) = (cache.stats().evictions.get(), cache.stats().misses.get());
    assert!(10_000 < evictions && misses < 500, "{misses} misses, {evictions} evictions");
    for round in 1..4 {
        for first in (0..20_000).step_by(1000) {
            batch(&mut cache, first..first + 1000, round);
        }
    }
    assert!(20_000 < cache.stats().misses.get());
}

#[test]
fn values_end_when_their_time_is_over() {
    for on_read in [false, true] {
        host::reset();
        let states = backend(StateKind::Value, 1 << 20, false);
        let mut cache = states.value::<u64>("state");
        cache.set_time_to_live(TimeToLive { duration_ms: 10, on_read });
        let mut at = |now: i64, write: Option<u64>| {
            states.begin_call();
            host::set_processing_time(now);
            cache.begin_batch();
            let slot = cache.slot(0, b"key", b"");
            if let Some(value) = write {
                *cache.value(slot) = Some(value);
            }
            cache.get(slot).copied()
        };
        assert_eq!(at(100, Some(7)), Some(7));
        assert_eq!(at(109, None), Some(7));
        // Ends at 110, or, since it was read at 109, at 119.
        assert_eq!(at(110, None), on_read.then_some(7));
        assert_eq!(at(119, None), on_read.then_some(7));
        assert_eq!(at(129, None), None);
        assert_eq!(at(200, Some(8)), Some(8));
        cache.flush();
        let expected = [210_i64.to_le_bytes(), 8_u64.to_le_bytes()].concat();
        assert_eq!(host::kept(0, 0), [(b"key".to_vec(), Vec::new(), Kept::Bytes(expected))]);
        let mut restored = states.value::<u64>("state");
        restored.set_time_to_live(TimeToLive { duration_ms: 10, on_read });
        restored.begin_batch();
        let slot = restored.slot(0, b"key", b"");
        assert_eq!(restored.get(slot), None, "the cache is new and complete");
    }
}

#[test]
fn elements_and_pairs_end_one_by_one() {
    host::reset();
    let ttl = TimeToLive { duration_ms: 10, on_read: false };
    let states = backend(StateKind::List, 1, false);
    let mut list = states.list::<str>("state");
    list.set_time_to_live(ttl);
    for (now, expected) in [(0, vec!["0"]), (5, vec!["0", "5"]), (10, vec!["5", "10"]), (15, vec!["10", "15"])] {
        states.begin_call();
        host::set_processing_time(now);
        list.begin_batch();
        let slot = list.slot(1, b"key", b"");
        list.append(slot, &now.to_string());
        let mut elements = Vec::new();
        list.for_each(slot, |element| elements.push(element.to_owned()));
        assert_eq!(elements, expected);
    }
    host::reset();
    let states = backend(StateKind::Map, 1, false);
    let mut map = states.map::<u64>("state");
    map.set_time_to_live(ttl);
    for (now, expected) in [(0, vec![0]), (5, vec![0, 5]), (10, vec![5, 10]), (15, vec![10, 15])] {
        states.begin_call();
        host::set_processing_time(now);
        map.begin_batch();
        let slot = map.slot(1, b"key", b"");
        map.put(slot, &now.to_be_bytes(), now.cast_unsigned());
        let mut values = Vec::new();
        map.scan(slot, &[], |_, value| {
            values.push(*value);
            ControlFlow::Continue(())
        });
        assert_eq!(values, expected);
        assert_eq!(map.get(slot, &(now - 10).to_be_bytes()), None);
    }
}

#[test]
fn a_value_of_another_type_fails_the_call() {
    host::reset();
    current::reset();
    let states = backend(StateKind::Value, 1, true);
    let mut texts = states.value::<String>("state");
    let slot = texts.slot(1, b"key", b"");
    *texts.value(slot) = Some("text".to_owned());
    texts.flush();
    let mut numbers = states.value::<u64>("state");
    let slot = numbers.slot(1, b"key", b"");
    assert_eq!(numbers.get(slot), None);
    assert!(current::failed());
    let message = "state \"state\", key \"key\": the value is not of type u64: the bytes end within the record; it was written under another type: give the state another name";
    assert_eq!(host::take_calls(), [host::Call::Fail { node: 1, message: message.to_owned() }]);
    current::reset();
}

#[test]
fn errors_name_keys_that_are_no_text_by_their_bytes() {
    let long = "k".repeat(41);
    let message = |key: &[u8]| {
        host::reset();
        current::reset();
        let states = backend(StateKind::List, 1, true);
        let mut texts = states.list::<str>("state");
        let slot = texts.slot(1, key, b"");
        texts.append(slot, "text");
        texts.flush();
        let mut numbers = states.list::<u64>("state");
        let slot = numbers.slot(1, key, b"");
        numbers.for_each(slot, |_| panic!("no number"));
        let calls = host::take_calls();
        current::reset();
        let [host::Call::Fail { message, .. }] = &calls[..] else { panic!("{calls:?}") };
        message.clone()
    };
    for (key, shown) in [
        (&7_u64.to_le_bytes()[..], r#""\x07\x00\x00\x00\x00\x00\x00\x00""#),
        (&(-2_i32).to_le_bytes()[..], r#""\xfe\xff\xff\xff""#),
        ("Zoë".as_bytes(), r#""Zoë""#),
        (long.as_bytes(), &format!("\"{}\"… of 41 bytes", &long[..40])),
    ] {
        let expected = format!("state \"state\", key {shown}: the value is not of type u64: ");
        assert!(message(key).starts_with(&expected), "{}", message(key));
    }
}

/// What ends, and when.
type Ending<T> = (T, i64);

/// Begins a call, some time later; returns the time.
fn begin_call_later(states: &StateBackend, random: &mut Random, now: &mut i64) -> i64 {
    states.begin_call();
    *now += random.below(6).cast_signed();
    host::set_processing_time(*now);
    *now
}

#[test]
fn lists_with_a_time_to_live_are_those_of_the_model() {
    let (mut ended, mut evictions) = (0, 0);
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<Vec<Ending<u64>>> = BTreeMap::new();
        let states = backend(StateKind::List, cache_bytes(random), false);
        let mut cache = states.list::<u64>("state");
        let on_read = random.chance(50);
        cache.set_time_to_live(TimeToLive { duration_ms: 10, on_read });
        let mut time = 0;
        for _ in 0..1 + random.below(24) {
            let now = begin_call_later(&states, random, &mut time);
            let batch: Vec<_> = (0..random.below(8)).map(|_| scope(random)).collect();
            cache.begin_batch();
            if !cache.is_complete() && random.chance(50) {
                for (key, namespace) in &batch {
                    cache.prefetch(key_hash(key), namespace, |out| out.extend_from_slice(key));
                }
                cache.fetch();
            }
            for (key, namespace) in batch {
                let slot = cache.slot(key_hash(&key), &key, &namespace);
                let expected = model.entry((key, namespace)).or_default();
                match random.below(10) {
                    0 => {
                        cache.clear(slot);
                        expected.clear();
                    }
                    1 => {
                        cache.replace(slot, [&1, &2]);
                        *expected = vec![(1, now + 10), (2, now + 10)];
                    }
                    kind @ 2..6 => {
                        let before = expected.len();
                        expected.retain(|(_, end)| now < *end);
                        ended += before - expected.len();
                        if on_read {
                            expected.iter_mut().for_each(|(_, end)| *end = now + 10);
                        }
                        if kind == 2 {
                            assert_eq!(cache.is_empty(slot), expected.is_empty(), "seed {seed}");
                        } else {
                            let mut elements = Vec::new();
                            cache.for_each(slot, |element| elements.push(element));
                            assert!(elements.iter().eq(expected.iter().map(|(element, _)| element)), "seed {seed}");
                        }
                    }
                    _ => {
                        let element = random.next();
                        cache.append(slot, &element);
                        expected.push((element, now + 10));
                    }
                }
            }
            if random.chance(20) {
                cache.flush();
            }
        }
        evictions += cache.stats().evictions.get();
    }
    assert!(10_000 < ended && 10_000 < evictions, "{ended} elements ended, {evictions} evictions");
}

#[test]
fn maps_with_a_time_to_live_are_those_of_the_model() {
    let (mut ended, mut evictions) = (0, 0);
    for seed in 0..CASES {
        host::reset();
        let random = &mut Random(seed);
        let mut model: Model<BTreeMap<Vec<u8>, Ending<String>>> = BTreeMap::new();
        let states = backend(StateKind::Map, cache_bytes(random), false);
        let mut cache = states.map::<String>("state");
        let on_read = random.chance(50);
        cache.set_time_to_live(TimeToLive { duration_ms: 10, on_read });
        // Maps of a case with large values are larger than what is read at once.
        let length = if random.chance(20) { 20_000 } else { 3 };
        let mut time = 0;
        for _ in 0..1 + random.below(24) {
            let now = begin_call_later(&states, random, &mut time);
            cache.begin_batch();
            for (key, namespace) in (0..random.below(8)).map(|_| scope(random)).collect::<Vec<_>>() {
                let slot = cache.slot(key_hash(&key), &key, &namespace);
                let expected = model.entry((key, namespace)).or_default();
                let before = expected.len();
                expected.retain(|_, (_, end)| now < *end);
                ended += before - expected.len();
                let map_key = random.below(5).to_string().into_bytes();
                match random.below(12) {
                    0 => {
                        cache.clear(slot);
                        expected.clear();
                    }
                    1 => assert_eq!(cache.is_empty(slot), expected.is_empty(), "seed {seed}"),
                    2..5 => {
                        let from = if random.chance(50) { Vec::new() } else { map_key };
                        let limit = usize::try_from(1 + random.below(6)).unwrap();
                        let mut pairs = Vec::new();
                        cache.scan(slot, &from, |map_key, value| {
                            pairs.push((map_key.to_owned(), value.clone()));
                            if pairs.len() < limit { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
                        });
                        let expected: Vec<_> = expected.range_mut(from..).take(limit).collect();
                        assert!(
                            pairs
                                .iter()
                                .map(|(key, value)| (key, value))
                                .eq(expected.iter().map(|(key, value)| (*key, &value.0))),
                            "seed {seed}: {pairs:?}"
                        );
                        for (_, (_, end)) in expected.into_iter().filter(|_| on_read) {
                            *end = now + 10;
                        }
                    }
                    5 | 6 => {
                        let expected = expected.get_mut(&map_key);
                        assert_eq!(
                            cache.get(slot, &map_key),
                            expected.as_deref().map(|(value, _)| value),
                            "seed {seed}"
                        );
                        if let Some((_, end)) = expected.filter(|_| on_read) {
                            *end = now + 10;
                        }
                    }
                    7 => {
                        cache.remove(slot, &map_key);
                        expected.remove(&map_key);
                    }
                    8 => {
                        cache.modify(slot, &map_key, |value| value.get_or_insert_default().push('m'));
                        let (value, end) = expected.entry(map_key).or_default();
                        value.push('m');
                        *end = now + 10;
                    }
                    _ => {
                        let value = "v".repeat(length);
                        cache.put(slot, &map_key, value.clone());
                        expected.insert(map_key, (value, now + 10));
                    }
                }
            }
            if random.chance(20) {
                cache.flush();
            }
        }
        evictions += cache.stats().evictions.get();
    }
    assert!(10_000 < ended && 5_000 < evictions, "{ended} pairs ended, {evictions} evictions");
}

/// A map whose pairs live for ten milliseconds since they were written or read.
fn short_lived_map(cache_bytes: u64) -> (StateBackend, MapCache<String>) {
    host::reset();
    let states = backend(StateKind::Map, cache_bytes, false);
    let mut map = states.map::<String>("state");
    map.set_time_to_live(TimeToLive { duration_ms: 10, on_read: true });
    (states, map)
}

#[test]
fn pairs_that_a_walk_hands_out_live_on() {
    // In the cache, and large: read from the host page by page.
    for (cache_bytes, length) in [(1 << 20, 10), (1, 10), (1, 15_000)] {
        let (states, mut map) = short_lived_map(cache_bytes);
        let mut at = |now: i64, act: &mut dyn FnMut(&mut MapCache<String>, Slot)| {
            states.begin_call();
            host::set_processing_time(now);
            map.begin_batch();
            let slot = map.slot(1, b"key", b"");
            act(&mut map, slot);
        };
        let walk = |map: &mut MapCache<String>, slot: Slot, from: &[u8], most: usize| {
            let mut keys = String::new();
            map.scan(slot, from, |key, value| {
                assert_eq!(value.len(), length);
                keys.push(char::from(key[0]));
                if keys.len() < most { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
            keys
        };
        at(0, &mut |map, slot| (b'a'..=b'e').for_each(|key| map.put(slot, &[key], "x".repeat(length))));
        at(5, &mut |map, slot| {
            // One that is known by itself lives on, too.
            assert!(map.get(slot, b"c").is_some());
            assert_eq!(walk(map, slot, b"b", 3), "bcd");
        });
        at(9, &mut |map, slot| assert!(!map.is_empty(slot)));
        at(12, &mut |map, slot| {
            assert_eq!(map.get(slot, b"a"), None);
            assert_eq!(walk(map, slot, b"", 9), "bcd");
            assert!(map.get(slot, b"c").is_some());
        });
        at(20, &mut |map, slot| assert!(!map.is_empty(slot)));
        at(22, &mut |map, slot| {
            assert!(map.is_empty(slot));
            assert_eq!(walk(map, slot, b"", 9), "");
        });
    }
}

#[test]
fn a_hot_list_keeps_few_of_the_elements_that_have_ended() {
    for (on_read, is_read) in [(false, true), (true, true), (false, false)] {
        host::reset();
        let states = backend(StateKind::List, 1 << 20, false);
        let mut list = states.list::<u64>("state");
        list.set_time_to_live(TimeToLive { duration_ms: 10, on_read });
        let element_bytes = 4 + 8 + 8;
        for now in 0..10_000 {
            states.begin_call();
            host::set_processing_time(now);
            list.begin_batch();
            assert!(list.stats().bytes.get() < 30 * element_bytes + 200, "{:?} at {now}", list.stats());
            let slot = list.slot(1, b"key", b"");
            if is_read && on_read && now % 30 != 0 {
                continue;
            }
            list.append(slot, &now.cast_unsigned());
            if is_read {
                let mut elements = Vec::new();
                list.for_each(slot, |element| elements.push(element));
                let expected = if on_read { now..=now } else { 0.max(now - 9)..=now };
                assert!(elements.into_iter().eq(expected.map(i64::cast_unsigned)), "{now}");
            } else {
                list.flush();
            }
        }
        // What has ended whole is nowhere in the cache.
        states.begin_call();
        host::set_processing_time(20_000);
        let slot = list.slot(1, b"key", b"");
        assert!(list.is_empty(slot));
        list.begin_batch();
        assert_eq!((list.stats().bytes.get(), list.stats().entries.get()), (0, 0));
    }
}

#[test]
fn namespaces_of_windows_sort_as_their_times() {
    let windows = [(i64::MIN, i64::MAX), (-5, 0), (-5, 5), (0, 1), (7, 8), (7, i64::MAX)];
    let namespaces = windows.map(|(start, end)| window_namespace(start, end));
    assert!(namespaces.is_sorted());
    assert_eq!(namespaces.map(|namespace| window_of(&namespace)), windows.map(Some));
    assert_eq!(window_of(b"short"), None);
}

/// Fails the call for what a cache holds under the key "key".
#[track_caller]
fn check_too_long(bytes: usize) {
    let message = format!(
        "state \"state\", key \"key\": the value has {bytes} bytes, the limit is {VALUE_BYTES_MAX}: raise state.value.bytes-max or keep less"
    );
    assert_eq!(host::take_calls(), [host::Call::Fail { node: 1, message }]);
    current::reset();
}

#[test]
fn a_value_that_never_leaves_the_cache_is_held_against_the_limit() {
    host::reset();
    current::reset();
    let states = backend(StateKind::Value, 1 << 30, false);
    let limit = usize::try_from(VALUE_BYTES_MAX).unwrap();
    let mut texts = states.value::<String>("state");
    // The length of a text takes two bytes, or four.
    let bytes_of = |text: &String| <String as Record>::weigh(text, &mut Vec::new());
    let mut text = "x".repeat(limit - 8);
    while bytes_of(&text) < limit {
        text.push('x');
    }
    for length in [text.len(), text.len() + 1] {
        texts.begin_batch();
        let slot = texts.slot(1, b"key", b"");
        *texts.value(slot) = Some("x".repeat(length));
        texts.begin_batch();
        assert_eq!(current::failed(), text.len() < length);
    }
    check_too_long(limit + 1);
}

#[test]
fn many_timers_of_a_call_are_sent_before_it_ends() {
    host::reset();
    let states = backend(StateKind::Value, 1, false);
    let timers = states.timers();
    for timestamp in 0..100_000 {
        timers.register(TimeDomain::EventTime, timestamp, 1, b"key", b"");
    }
    // What is kept back has 20 bytes for each timer.
    assert!(100_000 - (64 << 10) / 20 <= host::kept_timers(0).len());
    timers.delete(TimeDomain::EventTime, 7, 1, b"key", b"");
    states.end_call();
    let kept: Vec<_> = host::kept_timers(0).into_iter().map(|timer| timer.timestamp).collect();
    assert_eq!(kept, (0..100_000).filter(|timestamp| *timestamp != 7).collect::<Vec<_>>());
}

/// Timers of the key "key", as the host hands them over.
fn due_timers(timestamps: &[i64]) -> Vec<u8> {
    let mut due = Vec::new();
    for timestamp in timestamps {
        due.extend_from_slice(&timestamp.to_le_bytes());
        wire::write_counted(b"key", &mut due);
        wire::write_counted(b"", &mut due);
    }
    due
}

#[test]
fn timers_that_a_call_registers_while_it_fires_others_are_given_back_if_they_are_many() {
    host::reset();
    let states = backend(StateKind::Value, 1, false);
    let timers = states.timers();
    timers.begin_firing(TimeDomain::EventTime, &due_timers(&[0, 50_000, 100_000])).unwrap();
    assert!(timers.claim(0));
    for timestamp in 1..100_000 {
        timers.register(TimeDomain::EventTime, timestamp, key_hash(b"key"), b"key", b"");
    }
    // What is kept back has 20 bytes for each timer.
    assert!(100_000 - (64 << 10) / 20 <= host::kept_timers(0).len());
    timers.delete(TimeDomain::EventTime, 7, key_hash(b"key"), b"key", b"");
    timers.delete(TimeDomain::EventTime, 50_000, key_hash(b"key"), b"key", b"");
    assert_eq!(timers.take_early(i64::MAX, &mut Vec::new()), None);
    assert!(!timers.claim(1) && !timers.claim(2));
    timers.end_firing();
    states.end_call();
    let kept: Vec<_> = host::kept_timers(0).into_iter().map(|timer| timer.timestamp).collect();
    assert_eq!(kept, (1..=100_000).filter(|timestamp| ![7, 50_000].contains(timestamp)).collect::<Vec<_>>());
}

#[test]
fn timers_that_a_call_registers_before_its_last_fire_in_it_once_each_time_they_are_registered() {
    host::reset();
    let states = backend(StateKind::Value, 1, false);
    let timers = states.timers();
    timers.begin_firing(TimeDomain::EventTime, &due_timers(&[0, 100])).unwrap();
    assert!(timers.claim(0));
    let register = |time, key: &str| timers.register(TimeDomain::EventTime, time, 1, key.as_bytes(), b"ns");
    let register_new = |time, key: &str| timers.register_new(TimeDomain::EventTime, time, 1, key.as_bytes(), b"ns");
    let delete = |time, key: &str| timers.delete(TimeDomain::EventTime, time, 1, key.as_bytes(), b"ns");
    let fired = |until| {
        let mut bytes = Vec::new();
        let mut fired = Vec::new();
        while let Some(timer) = timers.take_early(until, &mut bytes) {
            assert_eq!((timer.hash, timer.namespace), (1, &b"ns"[..]));
            fired.push((timer.timestamp, String::from_utf8_lossy(timer.key).into_owned()));
        }
        fired
    };
    let expected =
        |timers: &[(i64, &str)]| -> Vec<_> { timers.iter().map(|(time, key)| (*time, (*key).to_owned())).collect() };
    for (time, key) in [(50, "a"), (40, "b"), (50, "a"), (60, "late")] {
        register(time, key);
    }
    assert_eq!(fired(50), expected(&[(40, "b"), (50, "a")]));
    register(50, "a");
    delete(60, "late");
    register(60, "c");
    delete(60, "c");
    register(60, "c");
    assert_eq!(fired(60), expected(&[(50, "a"), (60, "c")]));
    // Without an index until one is needed.
    ["d", "e", "f"].into_iter().for_each(|key| register_new(80, key));
    delete(80, "e");
    register(80, "f");
    register_new(80, "g");
    assert_eq!(fired(99), expected(&[(80, "d"), (80, "f"), (80, "g")]));
    // At the time of the last, the host may have some of those that are registered, but none that are new.
    register(100, "host's");
    register_new(100, "h");
    register_new(100, "i");
    register(100, "h");
    delete(100, "i");
    assert_eq!(fired(100), expected(&[(100, "h")]));
    timers.end_firing();
    states.end_call();
    let kept: Vec<_> = host::kept_timers(0).into_iter().map(|timer| (timer.timestamp, timer.key)).collect();
    assert_eq!(kept, [(100, b"host's".to_vec())]);
}

#[test]
fn new_timers_of_a_call_can_be_deleted_in_it() {
    host::reset();
    let states = backend(StateKind::Value, 1, false);
    let timers = states.timers();
    for time in 0..10 {
        timers.register_new(TimeDomain::EventTime, time, 1, b"key", b"");
    }
    timers.delete(TimeDomain::EventTime, 3, 1, b"key", b"");
    timers.register(TimeDomain::EventTime, 4, 1, b"key", b"");
    timers.register_new(TimeDomain::EventTime, 10, 1, b"key", b"");
    timers.delete(TimeDomain::EventTime, 10, 1, b"key", b"");
    states.end_call();
    let kept: Vec<_> = host::kept_timers(0).into_iter().map(|timer| timer.timestamp).collect();
    assert_eq!(kept, [0, 1, 2, 4, 5, 6, 7, 8, 9]);
}

#[test]
fn what_one_batch_adds_to_a_list_or_a_map_leaves_before_it_ends() {
    host::reset();
    let states = backend(StateKind::List, 100_000, false);
    let mut list = states.list::<u64>("state");
    list.begin_batch();
    let slot = list.slot(1, b"key", b"");
    for number in 0..100_000 {
        list.append(slot, &number);
    }
    assert!(list.stats().bytes.get() < 110_000, "{:?}", list.stats());
    let kept = host::kept(0, 0);
    let [(_, _, Kept::Bytes(bytes))] = &kept[..] else { panic!("{kept:?}") };
    // An element has 12 bytes.
    assert!(1_100_000 <= bytes.len());
    let mut numbers = Vec::new();
    list.for_each(slot, |number| numbers.push(number));
    assert!(numbers.into_iter().eq(0..100_000));

    host::reset();
    let states = backend(StateKind::Map, 100_000, false);
    let mut map = states.map::<u64>("state");
    map.begin_batch();
    let slot = map.slot(1, b"key", b"");
    for number in 0..10_000_u64 {
        map.put(slot, &number.to_be_bytes(), number);
    }
    let kept = host::kept(0, 0);
    let [(_, _, Kept::Map(pairs))] = &kept[..] else { panic!("{kept:?}") };
    assert!(8_000 <= pairs.len());
    assert_eq!(map.get(slot, &7_u64.to_be_bytes()), Some(&7));
    let mut numbers = Vec::new();
    map.scan(slot, &[], |_, number| {
        numbers.push(*number);
        ControlFlow::Continue(())
    });
    assert!(numbers.into_iter().eq(0..10_000));
}

#[test]
fn what_a_batch_changes_leaves_before_it_ends_if_it_is_more_than_the_cache_takes() {
    host::reset();
    current::reset();
    let states = backend(StateKind::Value, 100_000, false);
    let mut texts = states.value::<String>("state");
    for round in 0..3_u32 {
        texts.begin_batch();
        for row in 0..999_u32 {
            current::enter_row(row);
            // Every third row has the key of the last but one.
            let (key, expected) = match row % 3 {
                0 => (row, 2 * round),
                1 => (row, round),
                _ => (row - 2, 2 * round + 1),
            };
            let key = key.to_le_bytes();
            let slot = texts.slot(key_hash(&key), &key, b"");
            let visits = texts.get(slot).map_or(0, |text| text.trim_end().len());
            assert_eq!(visits, expected as usize, "round {round}, row {row}");
            *texts.value(slot) = Some(format!("{:5000}", "x".repeat(visits + 1)));
            assert!(texts.stats().bytes.get() < 220_000, "{:?}", texts.stats());
        }
        current::enter_row(current::NO_ROW);
    }
    assert!(!current::failed());
}

#[test]
fn a_batch_that_needs_more_than_the_cache_takes_is_read_in_pieces() {
    host::reset();
    current::reset();
    let states = backend(StateKind::Value, 100_000, false);
    let mut texts = states.value::<String>("state");
    let keys: Vec<_> = (0..1000_u32).map(u32::to_le_bytes).collect();
    for round in 0..3_u32 {
        texts.begin_batch();
        for key in &keys {
            if !texts.is_complete() {
                texts.prefetch(key_hash(key), b"", |out| out.extend_from_slice(key));
            }
        }
        texts.fetch();
        for (row, key) in (0..).zip(&keys) {
            current::enter_row(row);
            let slot = texts.slot(key_hash(key), key, b"");
            let expected = (round != 0).then(|| format!("{:5000}", round - 1));
            assert_eq!(texts.get(slot), expected.as_ref(), "round {round}, row {row}");
            *texts.value(slot) = Some(format!("{round:5000}"));
            if round != 0 {
                assert!(texts.stats().bytes.get() < 120_000, "{:?}", texts.stats());
            }
        }
        current::enter_row(current::NO_ROW);
    }
}

#[test]
fn a_time_to_live_of_nothing_is_a_mistake_of_the_program() {
    let mut graph = graph::Graph::default();
    let types = graph::NodeTypes { inputs: Vec::new(), output: None };
    let node = graph.add_node("Keyed", Operator::Guest("Keyed".to_owned()), types);
    let time_to_live = StateTtlConfig::new(std::time::Duration::from_micros(999)).time_to_live();
    let state = graph::state::<u64>("count", StateKind::Value);
    let time_to_live = Some(time_to_live.duration_ms.unsigned_abs());
    graph.node_mut(node).states =
        vec![crate::bindings::engine::plugin::graph::StateDeclaration { time_to_live, ..state }];
    let message = "state \"count\" of operator \"Keyed\": a time to live must be at least 1 ms";
    assert_eq!(graph.declaration().unwrap_err().to_string(), message);
}
