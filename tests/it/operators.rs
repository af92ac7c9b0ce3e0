//! Operators of two inputs, windows by user code and state that ends, against models that
//! look at all records at once.

use std::{collections::BTreeMap, fs, path::Path};

use engine_tests::{sorted_rows, submit, text};

const EVENTS: usize = 4000;

/// Key, event time in milliseconds, number.
type Event = (u32, i64, i64);

/// Events that look random and are the same each time: of 7 keys, at most 900 ms behind a later
/// one, with numbers from `least` on.
fn events(seed: u64, least: i64) -> Vec<Event> {
    let mut state = seed;
    let mut random = move |below: i64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).cast_signed() % below
    };
    let event = |index| {
        let time = i64::try_from(index).expect("small") * 5 + 10_000 - random(900);
        (u32::try_from(random(7)).expect("small"), time, least + random(1000))
    };
    (0..EVENTS).map(event).collect()
}

fn line(values: &[i64]) -> Vec<u8> {
    let text: Vec<_> = values.iter().map(i64::to_string).collect();
    format!("{}\n", text.join(",")).into_bytes()
}

/// Runs an operator over its inputs, one or two; it must write the lines of the model.
fn check(operator: &str, inputs: usize, model: impl Fn(&[Event], &[Event]) -> Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let (left, right) = (events(1, 0), events(2, 400));
    for (name, events) in [("left", &left), ("right", &right)] {
        let lines: Vec<_> = events.iter().map(|(key, time, number)| format!("{key},{time},{number}\n")).collect();
        fs::write(path(name), lines.concat()).expect("writable");
    }
    let mut expected = model(&left, &right);
    expected.sort();
    assert!(100 < expected.len(), "{operator}: {} lines", expected.len());
    for parallelism in [1, 3] {
        let output = path(&format!("out-{parallelism}"));
        let (left, right) = (path("left"), path("right"));
        let both = ["--left", text(&left), "--right", text(&right)];
        let arguments = ["--operator", operator, "--output", text(&output)];
        submit(parallelism, "test_operators", &[&arguments[..], &both[..2 * inputs]].concat());
        let rows = sorted_rows(&output);
        assert_eq!(rows.len(), expected.len(), "{operator} at parallelism {parallelism}");
        assert!(rows == expected, "{operator} at parallelism {parallelism}");
    }
}

#[test]
fn interval_joins_pair_what_is_close() {
    check("interval-join", 2, |left, right| {
        let pairs = left.iter().flat_map(|left| right.iter().map(move |right| (left, right)));
        let close = pairs.filter(|(left, right)| left.0 == right.0 && (left.1 - right.1).abs() <= 50);
        close.map(|(left, right)| line(&[left.0.into(), left.1, right.1])).collect()
    });
}

#[test]
fn connected_streams_share_state_and_timers() {
    check("co-process", 2, |left, right| {
        let mut asked: Vec<_> = right.iter().map(|(key, time, _)| (*key, *time)).collect();
        asked.sort_unstable();
        asked.dedup();
        let sum = |key, time| left.iter().filter(|left| left.0 == key && left.1 <= time).map(|left| left.2).sum();
        asked.into_iter().map(|(key, time)| line(&[key.into(), time, sum(key, time)])).collect()
    });
}

#[test]
fn each_subtask_knows_all_that_was_broadcast() {
    check("broadcast", 2, |left, right| {
        let least = right.iter().map(|right| right.2).min().expect("not empty");
        let below = left.iter().filter(|left| left.2 < least);
        below.map(|(key, time, number)| line(&[(*key).into(), *time, *number])).collect()
    });
}

#[test]
fn triggers_and_evictors_of_a_program_rule_its_windows() {
    check("window", 1, |left, _| {
        let mut windows = BTreeMap::<(u32, i64), Vec<i64>>::new();
        for (key, time, number) in left {
            windows.entry((*key, time - time % 100)).or_default().push(*number);
        }
        let full = windows.into_iter().filter(|(_, numbers)| 3 <= numbers.len());
        full.map(|((key, start), mut numbers)| {
            numbers.sort_unstable_by(|a, b| b.cmp(a));
            line(&[key.into(), start, numbers[0], numbers[1]])
        })
        .collect()
    });
}

/// What is left of values after 40 ms.
fn left_of_values(output: &Path, lives: &str) -> Vec<String> {
    let arguments = ["--operator", "time-to-live", "--lives", lives, "--output", text(output)];
    submit(2, "test_operators", &arguments);
    let rows = sorted_rows(output).into_iter().map(|row| String::from_utf8(row).expect("text"));
    // Timers that wait when the input ends are dropped.
    let left: Vec<_> = rows.map(|row| row.trim_end().split_once(',').expect("two values").1.to_owned()).collect();
    assert!(!left.is_empty(), "no timer has fired");
    left
}

#[test]
fn state_ends_when_its_time_is_over() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ended = left_of_values(&directory.path().join("short"), "20");
    assert!(ended.iter().all(|left| left == "ended"), "{ended:?}");
    let kept = left_of_values(&directory.path().join("long"), "3600000");
    assert!(kept.iter().all(|left| left == "kept"), "{kept:?}");
}
