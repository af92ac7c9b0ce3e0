//! Snapshots: taken, aborted, confirmed, and restored at another parallelism, against a model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::{
    tests::{
        BACKENDS, Backend, LIST, MAP, Model, ModelScope, Step, VALUE, apply, contents, context, entry, fired, go_on,
        steps, timer, with,
    },
    *,
};
use crate::base::{clock::Timestamp, stream_element::CheckpointId};

/// Domain, timestamp, key, namespace.
type Timers = BTreeSet<(u8, i64, Vec<u8>, Vec<u8>)>;
/// The parts of a checkpoint: what each wrote, by key group.
type Parts = Vec<BTreeMap<u32, Vec<u8>>>;
type Contents = BTreeMap<(ModelScope, Option<Vec<u8>>), Vec<u8>>;

const PLACES: [Option<usize>; 6] = [Some(0), Some(1), Some(2), Some(3), Some(4), Some(5)];

fn written(snapshot: KeyedStateSnapshot) -> BTreeMap<u32, Vec<u8>> {
    let mut bytes = Vec::new();
    let sections = snapshot.write(&mut bytes).unwrap();
    let mut rest = bytes.as_slice();
    let mut parts = BTreeMap::new();
    for (key_group, length) in sections {
        let (section, after) = rest.split_at(usize::try_from(length).unwrap());
        assert!(parts.insert(key_group, section.to_vec()).is_none());
        rest = after;
    }
    assert!(rest.is_empty());
    parts
}

/// What a task does beside its state: it knows the parts of the last confirmed checkpoint.
#[derive(Default)]
struct Task {
    confirmed: Parts,
    unconfirmed: BTreeMap<CheckpointId, (Parts, Model, Timers)>,
}

impl Task {
    fn snapshot(&mut self, state: &mut KeyedState, id: CheckpointId, is_full: bool, model: &Model, timers: &Timers) {
        let snapshot = state.snapshot(id, is_full);
        let mut parts = if snapshot.is_full() { Parts::new() } else { self.confirmed.clone() };
        assert!(!is_full || snapshot.is_full());
        parts.push(written(snapshot));
        self.unconfirmed.insert(id, (parts, model.clone(), timers.clone()));
    }

    fn confirm(&mut self, state: &mut KeyedState, id: CheckpointId) {
        let later = self.unconfirmed.split_off(&(id + 1));
        self.confirmed = self.unconfirmed.remove(&id).unwrap().0;
        self.unconfirmed = later;
        state.checkpoint_completed(id);
    }
}

fn restored(parts: &Parts, parallelism: u32, backend: Backend) -> Vec<KeyedState> {
    let subtasks = (0..parallelism).map(|subtask_index| {
        let mut state = backend.state(KeyedStateContext { subtask_index, parallelism, ..context() });
        for part in parts {
            for key_group in state.key_groups.clone() {
                if let Some(section) = part.get(&key_group) {
                    state.restore(key_group, section, &PLACES, Timestamp::MIN).unwrap();
                }
            }
        }
        state
    });
    subtasks.collect()
}

fn all(state: &mut KeyedState, now: i64) -> (Contents, Timers) {
    state.end_restore();
    let snapshots: Vec<_> = state.key_groups.clone().map(|key_group| state.key_group_snapshot(key_group)).collect();
    let mut timers = Timers::new();
    for (domain, queue) in [(0, &state.event_time), (1, &state.processing_time)] {
        queue.snapshot().visit(|timestamp, key, namespace| {
            assert!(timers.insert((domain, timestamp, key.to_vec(), namespace.to_vec())));
        });
    }
    (contents(snapshots, now), timers)
}

#[track_caller]
fn check_restored(parts: &Parts, backend: Backend, model: &Model, timers: &Timers) {
    for parallelism in if backend == Backend::Memory { 1..=4 } else { 2..=2 } {
        let (mut entries, mut waiting) = (Contents::new(), Timers::new());
        for mut state in restored(parts, parallelism, backend) {
            let (some, others) = all(&mut state, model.now);
            entries.extend(some);
            waiting.extend(others);
        }
        assert_eq!(entries, model.all(), "at parallelism {parallelism}");
        assert_eq!(&waiting, timers, "at parallelism {parallelism}");
    }
}

/// What happens beside steps: its kind, a time domain, a timestamp, a key.
type Event = (u8, u8, i64, u8);

/// Runs a task with one backend, and restores what it wrote into another.
fn run(backend: Backend, into: Backend, steps: Vec<(Step, Event)>) {
    let mut state = backend.state(context());
    state.track_changes();
    let (mut model, mut timers, mut task) = (Model::default(), Timers::new(), Task::default());
    let mut next_id = 1;
    for (index, (step, (kind, domain, timestamp, key))) in steps.into_iter().enumerate() {
        if step.0 < 10 {
            apply(&mut state, &mut model, index, step);
        }
        let key = vec![b'k'; usize::from(key)];
        let text = std::str::from_utf8(&key).unwrap();
        match kind {
            0..5 => {
                state.register_timers(1, &timer(domain, text, "ns", timestamp), &go_on).unwrap();
                timers.insert((domain, timestamp, key, b"ns".to_vec()));
            }
            5 => {
                state.delete_timers(1, &timer(domain, text, "ns", timestamp), &go_on).unwrap();
                timers.remove(&(domain, timestamp, key, b"ns".to_vec()));
            }
            6 => {
                // The clock of processing time may be set back.
                let time_domain = [TimeDomain::EventTime, TimeDomain::ProcessingTime][usize::from(domain)];
                let mut out = Vec::new();
                state.take_due_timers(time_domain, Timestamp(timestamp + i64::from(domain)), &mut out);
                for (timestamp, key, namespace) in fired(&out) {
                    assert!(timers.remove(&(domain, timestamp, key, namespace)));
                }
                assert!(!timers.iter().any(|timer| timer.0 == domain && timer.1 <= timestamp));
            }
            7 | 8 => {
                task.snapshot(&mut state, next_id, key.is_empty(), &model, &timers);
                next_id += 1;
            }
            9 => {
                // Any one of those in flight: those before it are given up.
                let ids: Vec<_> = task.unconfirmed.keys().copied().collect();
                if let Some(id) = ids.get(key.len() % ids.len().max(1)) {
                    let (parts, model, timers) = &task.unconfirmed[id];
                    check_restored(parts, into, model, timers);
                    task.confirm(&mut state, *id);
                }
            }
            _ => {}
        }
    }
    task.snapshot(&mut state, next_id, false, &model, &timers);
    for (parts, model, timers) in task.unconfirmed.values() {
        check_restored(parts, into, model, timers);
    }

    // A subtask of the same key groups goes on with the parts.
    let parts = &task.unconfirmed[&next_id].0;
    let lengths: Vec<_> = parts.iter().map(|part| part.values().map(|section| section.len() as u64).sum()).collect();
    let mut state = restored(parts, 1, into).remove(0);
    state.track_changes();
    state.build_upon(&lengths);
    let mut task = Task { confirmed: parts.clone(), unconfirmed: BTreeMap::new() };
    apply(&mut state, &mut model, 0, (0, VALUE, 3, 0, 0, 7));
    task.snapshot(&mut state, next_id + 1, false, &model, &timers);
    let (parts, model, timers) = &task.unconfirmed[&(next_id + 1)];
    check_restored(parts, into, model, timers);
}

fn cases() -> impl Strategy<Value = Vec<(Step, Event)>> {
    steps().prop_flat_map(|steps| {
        let count = steps.len();
        let events = prop::collection::vec((0_u8..14, 0_u8..2, 0_i64..6, 0_u8..10), count);
        events.prop_map(move |events| steps.clone().into_iter().zip(events).collect())
    })
}

/// A state of every shape with timers, and what a full snapshot and an increment wrote.
fn some_parts() -> Parts {
    let mut state = KeyedState::new(context());
    state.track_changes();
    let now = Timestamp(0);
    let mut task = Task::default();
    let (model, timers) = (Model::default(), Timers::new());
    for round in 0..2_u8 {
        for number in 0..200 - 190 * round {
            let at = entry(&[number], b"n");
            state.put_many(VALUE, 1, &with(at.clone(), &[round; 30]), now, &go_on).unwrap();
            state.append_many(LIST, 1, &with(at.clone(), &with(vec![], &[number; 3])), now, &go_on).unwrap();
            for map_key in 0..3 {
                let pair = with(with(at.clone(), &[map_key]), &[round]);
                state.put_many(MAP, 1, &pair, now, &go_on).unwrap();
            }
            let timer = [&[round][..], &i64::from(number).to_le_bytes(), &at].concat();
            state.register_timers(1, &timer, &go_on).unwrap();
        }
        task.snapshot(&mut state, u64::from(round) + 1, false, &model, &timers);
        task.confirm(&mut state, u64::from(round) + 1);
    }
    assert_eq!(task.confirmed.len(), 2, "the second is an increment");
    task.confirmed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn what_was_written_from_disk_is_restored_into_memory(cases in cases()) {
        run(Backend::Disk, Backend::Memory, cases);
    }

    #[test]
    fn what_was_written_from_memory_is_restored_onto_disk(cases in cases()) {
        run(Backend::Memory, Backend::Disk, cases);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn what_is_restored_equals_the_model(cases in cases()) {
        run(Backend::Memory, Backend::Memory, cases);
    }

    #[test]
    fn damaged_bytes_are_refused_or_restored_but_never_a_panic(
        key_group in 0_u32..4, at in any::<prop::sample::Index>(), bit in 0_u32..8, is_cut in any::<bool>(),
    ) {
        thread_local! {
            static PARTS: Parts = some_parts();
        }
        let mut section = PARTS.with(|parts| parts[1][&key_group].clone());
        let at = at.index(section.len());
        if is_cut {
            section.truncate(at);
        } else {
            section[at] ^= 1 << bit;
        }
        let mut state = KeyedState::new(context());
        if let Err(RestoreError(message)) = state.restore(key_group, &section, &PLACES, Timestamp::MIN) {
            let names = format!("key group {key_group} of operator \"Count\": ");
            prop_assert!(message.contains(&names) && !message.contains('\n'), "{}", message);
        }
        state.end_restore();
    }
}

#[test]
fn a_key_group_of_another_subtask_a_state_that_is_not_there_and_another_shape_are_refused() {
    let section = &some_parts()[0][&3];
    let refused = |context: KeyedStateContext, places: &[Option<usize>]| {
        KeyedState::new(context).restore(3, section, places, Timestamp::MIN).unwrap_err().to_string()
    };
    let other = KeyedStateContext { parallelism: 4, ..context() };
    assert!(refused(other, &PLACES).ends_with("it belongs to another subtask, this one has 0 to 0"));
    assert!(refused(context(), &PLACES[..2]).ends_with("it has a state 2, there are 2"));
    assert!(refused(context(), &[Some(1), Some(0), Some(2)]).contains("state \"list\""));
    assert!(refused(context(), &[Some(2), Some(1), Some(0)]).contains("state \"map\": a value does not fit"));
    let more_groups = KeyedStateContext { max_parallelism: 128, ..context() };
    assert!(refused(more_groups, &PLACES).contains("a key belongs to key group"));
    let not_keyed = KeyedStateContext { is_keyed: false, ..context() };
    assert!(refused(not_keyed, &PLACES).contains("the operator is not behind key_by any more"));
    let newer = KeyedState::new(context()).restore(3, &[9, 1, 2], &PLACES, Timestamp::MIN).unwrap_err().to_string();
    assert!(newer.contains("it has version 9, this engine reads version 1"), "{newer}");
}

#[test]
fn states_that_are_gone_are_passed_over_and_others_found_at_their_new_place() {
    let parts = some_parts();
    let mut state = KeyedState::new(context());
    for part in &parts {
        for (key_group, section) in part {
            state
                .restore(*key_group, section, &[Some(3), None, None], Timestamp::MIN)
                .unwrap_or_else(|error| panic!("{error}"));
        }
    }
    let entries: u64 = state.usage().key_groups.iter().map(|group| group.entries).sum();
    assert_eq!(entries, 200);
    let value = state.get_many(3, 1, &entry(&[199], b"n"), Timestamp(i64::MIN), &go_on).unwrap();
    assert_eq!(value, with(vec![], &[0; 30]));
}

/// Increments hold what was cleaned up since: it must not count, or the restored state is refused its next write.
#[test]
fn what_ended_does_not_count_against_quotas_when_it_is_restored() {
    const LIST_WITH_TIME_TO_LIVE: u32 = 4;
    const ELEMENT_BYTES: usize = 100;
    for backend in BACKENDS {
        let mut state = backend.state(context());
        state.track_changes();
        for number in 0..40_u32 {
            let entry = with(entry(&number.to_le_bytes(), b""), &[1; 1000]);
            state.put_many(VALUE, 1, &entry, Timestamp(0), &go_on).unwrap();
        }
        let (mut task, model, timers) = (Task::default(), Model::default(), Timers::new());
        task.snapshot(&mut state, 1, false, &model, &timers);
        task.confirm(&mut state, 1);
        let append = |state: &mut KeyedState, now: i64| {
            let element = [&(now + 10).to_le_bytes()[..], &[2; ELEMENT_BYTES]].concat();
            let list = with(entry(b"hot", b""), &with(Vec::new(), &element));
            state.append_many(LIST_WITH_TIME_TO_LIVE, 1, &list, Timestamp(now), &go_on)
        };
        // Three times what a value may have, of which a part lives at a time.
        for round in 0..300 {
            append(&mut state, round).unwrap();
        }
        task.snapshot(&mut state, 2, false, &model, &timers);
        task.confirm(&mut state, 2);
        assert_eq!(task.confirmed.len(), 2, "the second is an increment");
        let now = Timestamp(295);
        let mut restored = backend.state(context());
        for part in &task.confirmed {
            for (key_group, section) in part {
                restored.restore(*key_group, section, &PLACES, now).unwrap();
            }
        }
        restored.end_restore();
        append(&mut restored, 300).unwrap();
        let list = restored.get_many(LIST_WITH_TIME_TO_LIVE, 1, &entry(b"hot", b""), Timestamp(300), &go_on).unwrap();
        let lives = 300 - 291 + 1;
        assert_eq!(list.len(), 4 + lives * (4 + 8 + ELEMENT_BYTES), "{backend:?}");
    }
}

/// State of 10,000 keys, tracked.
fn large() -> KeyedState {
    let mut state = KeyedState::new(KeyedStateContext { bytes_max: u64::MAX, ..context() });
    state.track_changes();
    put(&mut state, 0..10_000, 0);
    state
}

fn put(state: &mut KeyedState, keys: std::ops::Range<u32>, value: u64) {
    for number in keys {
        let entry = with(entry(&number.to_le_bytes(), b""), &value.to_le_bytes());
        state.put_many(VALUE, 1, &entry, Timestamp(0), &go_on).unwrap();
    }
}

fn bytes(parts: &BTreeMap<u32, Vec<u8>>) -> usize {
    parts.values().map(Vec::len).sum()
}

/// Without the version of each section.
fn operation_bytes(parts: &BTreeMap<u32, Vec<u8>>) -> usize {
    bytes(parts) - parts.len()
}

#[test]
fn checkpoints_write_what_changed_and_all_again_when_that_has_become_as_much() {
    let mut state = large();
    let mut lengths = Vec::new();
    for checkpoint in 1..=200 {
        put(&mut state, 0..100, checkpoint);
        let snapshot = state.snapshot(checkpoint, false);
        lengths.push((snapshot.is_full(), bytes(&written(snapshot))));
        state.checkpoint_completed(checkpoint);
    }
    let full: Vec<_> = (0..200).filter(|index| lengths[*index].0).collect();
    assert_eq!(full, [0, 101], "a hundred increments of one in a hundred keys are as much as all");
    let (sum, all) = (lengths.iter().map(|(_, bytes)| bytes).sum::<usize>(), lengths[0].1);
    assert!(sum < 200 * all * 3 / 100, "{sum} bytes in 200 checkpoints of {all}");
}

#[test]
fn nothing_is_written_while_nothing_changes_and_many_small_increments_end_in_a_full_one() {
    let mut state = large();
    let mut full = Vec::new();
    for checkpoint in 1..=600 {
        if 300 < checkpoint {
            put(&mut state, 0..1, checkpoint);
        }
        let snapshot = state.snapshot(checkpoint, false);
        if snapshot.is_full() {
            full.push(checkpoint);
        }
        let bytes = bytes(&written(snapshot));
        assert_eq!(bytes == 0, (2..=300).contains(&checkpoint), "{bytes} bytes in checkpoint {checkpoint}");
        state.checkpoint_completed(checkpoint);
    }
    assert_eq!(full, [1, 300 + 256 + 1]);
}

#[test]
fn what_aborted_checkpoints_held_stands_in_the_next_one() {
    let mut state = large();
    written(state.snapshot(1, false));
    state.checkpoint_completed(1);
    for checkpoint in 2..20 {
        let from = u32::try_from(checkpoint).unwrap() * 10;
        put(&mut state, from..from + 10, checkpoint);
        let snapshot = state.snapshot(checkpoint, false);
        assert!(!snapshot.is_full());
        let changed = usize::try_from(checkpoint - 1).unwrap() * 10;
        assert_eq!(operation_bytes(&written(snapshot)), changed * 17, "checkpoint {checkpoint}");
    }
    state.checkpoint_completed(18);
    let snapshot = state.snapshot(20, false);
    assert_eq!(operation_bytes(&written(snapshot)), 10 * 17, "only what changed since the 18th");
}

#[test]
fn logs_are_dropped_when_they_outgrow_the_state() {
    let mut state = large();
    written(state.snapshot(1, false));
    state.checkpoint_completed(1);
    for round in 0..100 {
        put(&mut state, 0..1000, round);
    }
    let log = state.changes.as_ref().unwrap().noted_bytes();
    assert!(log <= state.bytes(), "{log} bytes of log for {} bytes of state", state.bytes());
    assert!(state.snapshot(2, false).is_full());
    // The full one was not confirmed: there is nothing to build upon.
    assert!(state.snapshot(3, false).is_full());
    written(state.snapshot(4, false));
    state.checkpoint_completed(4);
    assert!(!state.snapshot(5, false).is_full());
    // Of a checkpoint that nobody knows it cannot be said what changed since.
    state.checkpoint_completed(77);
    assert!(state.snapshot(78, false).is_full());
}

#[test]
fn a_snapshot_amid_firing_timers_is_full_and_the_next_ones_go_on_from_it() {
    let mut state = KeyedState::new(KeyedStateContext { bytes_max: u64::MAX, timers_max: u64::MAX, ..context() });
    state.track_changes();
    let (model, mut timers, mut task) = (Model::default(), Timers::new(), Task::default());
    for number in 0..10_000 {
        let key = format!("key {number}");
        state.register_timers(1, &timer(0, &key, "", 5), &go_on).unwrap();
        timers.insert((0, 5, key.into_bytes(), Vec::new()));
    }
    task.snapshot(&mut state, 1, false, &model, &timers);
    task.confirm(&mut state, 1);
    let mut out = Vec::new();
    state.take_due_timers(TimeDomain::EventTime, Timestamp(5), &mut out);
    for (timestamp, key, namespace) in fired(&out) {
        assert!(timers.remove(&(0, timestamp, key, namespace)));
    }
    assert!(!timers.is_empty(), "one call does not fire all");
    task.snapshot(&mut state, 2, false, &model, &timers);
    let parts = task.unconfirmed[&2].0.clone();
    assert_eq!(parts.len(), 1, "what fired was noted nowhere");
    check_restored(&parts, Backend::Memory, &model, &timers);
    task.confirm(&mut state, 2);

    // One that fired is registered again, and all others fire.
    state.register_timers(1, &timer(0, "key 0", "", 6), &go_on).unwrap();
    while 0 < state.take_due_timers(TimeDomain::EventTime, Timestamp(5), &mut Vec::new()) {}
    let timers = Timers::from([(0, 6, b"key 0".to_vec(), Vec::new())]);
    task.snapshot(&mut state, 3, false, &model, &timers);
    let parts = task.unconfirmed[&3].0.clone();
    assert_eq!(parts.len(), 2, "an increment");
    check_restored(&parts, Backend::Memory, &model, &timers);
}

/// A snapshot of timers at every step, each as it was then.
#[test]
fn snapshots_of_timers_do_not_change() {
    let mut queue = TimerQueue::default();
    let mut model = BTreeSet::new();
    let mut taken = Vec::new();
    for number in 0..3000_i64 {
        // A bucket of many, some of few, far apart and near.
        let timestamp = [7, number % 5 - 2, number * 300, -number][usize::try_from(number % 4).unwrap()];
        let key = number.to_le_bytes();
        assert_eq!(queue.register(timestamp, &key, b""), model.insert((timestamp, key.to_vec())));
        if number % 3 == 0 {
            let (timestamp, key) = model.iter().nth(model.len() / 2).unwrap().clone();
            assert!(queue.delete(timestamp, &key, b"") && model.remove(&(timestamp, key)));
        }
        if number % 500 == 250 {
            let mut out = Vec::new();
            queue.take_due(-100, u32::MAX, usize::MAX, &mut out);
            model.retain(|(timestamp, _)| -100 < *timestamp);
        }
        if number % 100 == 0 {
            taken.push((queue.snapshot(), model.clone()));
        }
    }
    for (snapshot, model) in taken {
        let mut seen = BTreeSet::new();
        snapshot.visit(|timestamp, key, _| assert!(seen.insert((timestamp, key.to_vec()))));
        assert_eq!(seen, model);
    }
}
