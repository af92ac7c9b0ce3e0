//! Joins against models that keep everything in one map.
//!
//! Each case is a random run of records of either side and of watermarks, with caches so
//! small that nothing stays in them, or so large that all does.

use std::{collections::BTreeMap, time::Duration};

use proptest::{collection::vec, prelude::*};

use crate::{TestHarness, WindowContext, host, prelude::*};

/// What the job is fed with.
#[derive(Clone, Copy, Debug)]
enum Step {
    Left { key: u8, timestamp: i64 },
    Right { key: u8, timestamp: i64 },
    Watermark(i64),
}

/// A record of either stream; `id` tells apart those with equal keys.
#[derive(Record, Clone, Debug)]
struct Item {
    is_left: bool,
    key: u8,
    id: u32,
}

/// Ids of a left and a right record, and the timestamp of the result.
type Joined = (u32, u32, i64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Watermarks rise slowly, so that some records are late and most are not.
    let step = (0_u8..12, 0_u8..3, -20_i64..20, 0_i64..6);
    vec(step, 0..50).prop_map(|steps| {
        let (mut now, mut watermark) = (0, -12);
        let step = |(kind, key, distance, progress)| {
            now += progress;
            // Some come at the watermark itself.
            let timestamp = if (-3..3).contains(&distance) { watermark } else { now + distance };
            match kind {
                0..5 => Step::Left { key, timestamp },
                5..10 => Step::Right { key, timestamp },
                _ => {
                    watermark = watermark.max(now - 12);
                    Step::Watermark(watermark)
                }
            }
        };
        steps.into_iter().map(step).collect()
    })
}

/// Lower bound and length of an interval: any, or one that begins or ends with the record's own time.
fn interval() -> impl Strategy<Value = (i64, i64)> {
    let (any, length) = ((-15_i64..15, 0_i64..12), 0_i64..6);
    prop_oneof![any, length.clone().prop_map(|length| (0, length)), length.prop_map(|length| (-length, length))]
}

/// Small, smaller than a batch, or large.
fn cache_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(600), Just(1 << 24)]
}

fn side(items: &DataStream<Item>, is_left: bool) -> DataStream<(u8, u32)> {
    items.flat_map(move |item, out: &mut Collector<(u8, u32)>| {
        if item.is_left == is_left {
            out.collect((item.key, item.id));
        }
    })
}

/// Runs a job over the steps; returns what it gave, and what is left in state and timers.
fn run(
    steps: &[Step],
    cache_bytes: u64,
    job: impl FnOnce(&DataStream<Item>) -> DataStream<Joined>,
) -> (Vec<(Joined, Option<i64>)>, Option<f64>) {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        job(&env.from_source(FileSource::json_lines::<Item>("items"))).sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::with_cache_bytes(program, &[], cache_bytes).unwrap();
    for (id, step) in (0_u32..).zip(steps) {
        let mut push = |is_left, key, timestamp| {
            harness.push_with_timestamp::<Item>(&Item { is_left, key, id }, timestamp).unwrap();
        };
        match *step {
            Step::Left { key, timestamp } => push(true, key, timestamp),
            Step::Right { key, timestamp } => push(false, key, timestamp),
            Step::Watermark(time) => harness.process_watermark(time).unwrap(),
        }
    }
    harness.finish().unwrap();
    drop(harness.snapshot().unwrap());
    let mut joined = harness.records_with_timestamps::<Joined>().unwrap();
    joined.sort_unstable();
    (joined, harness.metric("numLateRecordsDropped"))
}

/// Flink's `IntervalJoinOperator`: the pairs, and the ids of late records.
fn interval_model(steps: &[Step], lower: i64, upper: i64) -> (Vec<Joined>, Vec<u32>) {
    let mut watermark = i64::MIN;
    let (mut lefts, mut rights) = (BTreeMap::<(u8, i64), Vec<u32>>::new(), BTreeMap::<(u8, i64), Vec<u32>>::new());
    let (mut joined, mut late) = (Vec::new(), Vec::new());
    for (id, step) in (0_u32..).zip(steps) {
        match *step {
            Step::Left { timestamp, .. } | Step::Right { timestamp, .. } if timestamp < watermark => late.push(id),
            Step::Left { key, timestamp } => {
                lefts.entry((key, timestamp)).or_default().push(id);
                let partners = rights
                    .iter()
                    .filter(|((of, other), _)| *of == key && (timestamp + lower..=timestamp + upper).contains(other));
                for ((_, other), ids) in partners {
                    joined.extend(ids.iter().map(|right| (id, *right, timestamp.max(*other))));
                }
            }
            Step::Right { key, timestamp } => {
                rights.entry((key, timestamp)).or_default().push(id);
                let partners = lefts
                    .iter()
                    .filter(|((of, other), _)| *of == key && (timestamp - upper..=timestamp - lower).contains(other));
                for ((_, other), ids) in partners {
                    joined.extend(ids.iter().map(|left| (*left, id, timestamp.max(*other))));
                }
            }
            Step::Watermark(time) if watermark < time => {
                watermark = time;
                // Each record has a timer at its timestamp and the time that the other side has to come;
                // one for a time that has passed already fires with the next watermark.
                lefts.retain(|(_, timestamp), _| time < timestamp + upper.max(0));
                rights.retain(|(_, timestamp), _| time < timestamp + (-lower).max(0));
            }
            Step::Watermark(_) => {}
        }
    }
    (joined, late)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn interval_joins_give_the_pairs_of_the_model(
        steps in steps(),
        (lower, length) in interval(),
        exclusive: (bool, bool),
        cache_bytes in cache_bytes(),
    ) {
        let upper = lower + length;
        let (lower_inclusive, upper_inclusive) = (lower + i64::from(exclusive.0), upper - i64::from(exclusive.1));
        let (mut expected, late) = interval_model(&steps, lower_inclusive, upper_inclusive);
        expected.sort_unstable();
        let (joined, dropped) = run(&steps, cache_bytes, |items| {
            let (lefts, rights) = (side(items, true), side(items, false));
            let mut join = lefts.key_by(|left| left.0).interval_join(&rights.key_by(|right| right.0)).between(lower, upper);
            if exclusive.0 {
                join = join.lower_bound_exclusive();
            }
            if exclusive.1 {
                join = join.upper_bound_exclusive();
            }
            join.process(|left, right, context, out: &mut Collector<Joined>| {
                assert_eq!(left.0, right.0);
                assert_eq!(context.timestamp(), context.left_timestamp().max(context.right_timestamp()));
                out.collect((left.1, right.1, context.timestamp()));
            })
        });
        let expected: Vec<_> = expected.into_iter().map(|joined| (joined, Some(joined.2))).collect();
        prop_assert_eq!(joined, expected);
        #[expect(clippy::cast_precision_loss, reason = "tests have few records")]
        let expected_dropped = (!late.is_empty()).then_some(late.len() as f64);
        prop_assert_eq!(dropped, expected_dropped);
        prop_assert_eq!(host::kept_anything(), false);
    }

    #[test]
    fn windows_join_the_records_of_a_key(
        steps in steps(),
        (size, slide) in prop_oneof![Just((7, 7)), Just((9, 3)), Just((8, 3))],
        cache_bytes in cache_bytes(),
    ) {
        let mut expected = Vec::new();
        for ((start, _), (lefts, rights)) in window_model(&steps, size, slide) {
            let pairs = lefts.iter().flat_map(|left| rights.iter().map(move |right| (*left, *right)));
            expected.extend(pairs.map(|(left, right)| ((left, right, start), Some(start + size - 1))));
        }
        expected.sort_unstable();
        let millis = |millis: i64| Duration::from_millis(millis.unsigned_abs());
        let (joined, _) = run(&steps, cache_bytes, |items| {
            let (lefts, rights) = (side(items, true), side(items, false));
            let join = lefts.join(&rights).where_(|left| left.0).equal_to(|right| right.0);
            let emit = |left: &(u8, u32), right: &(u8, u32), ctx: &mut WindowContext<'_>, out: &mut Collector<Joined>| {
                assert_eq!(left.0, right.0);
                out.collect((left.1, right.1, ctx.window().start));
            };
            match size == slide {
                true => join.window(TumblingEventTimeWindows::of(millis(size))).apply(emit),
                false => join.window(SlidingEventTimeWindows::of(millis(size), millis(slide))).apply(emit),
            }
        });
        prop_assert_eq!(joined, expected);
        prop_assert_eq!(host::kept_anything(), false);
    }

    #[test]
    fn windows_group_the_records_of_a_key(steps in steps(), cache_bytes in cache_bytes()) {
        let number = |count: usize| u32::try_from(count).unwrap();
        let content = window_model(&steps, 10, 10).into_iter();
        let mut expected: Vec<_> = content.map(|((start, key), (lefts, rights))| {
            let last = lefts.last().or(rights.last()).unwrap() * 10 + u32::from(key);
            ((number(lefts.len()) * 1000 + number(rights.len()), last, start), Some(start + 9))
        }).collect();
        expected.sort_unstable();
        let (grouped, _) = run(&steps, cache_bytes, |items| {
            let (lefts, rights) = (side(items, true), side(items, false));
            let groups = lefts.co_group(&rights).where_(|left| left.0).equal_to(|right| right.0);
            let windows = groups.window(TumblingEventTimeWindows::of(Duration::from_millis(10)));
            windows.apply(move |lefts, rights, ctx, out: &mut Collector<Joined>| {
                let (key, last) = lefts.iter().last().or(rights.iter().last()).unwrap();
                let counts = number(lefts.len()) * 1000 + number(rights.len());
                out.collect((counts, last * 10 + u32::from(key), ctx.window().start));
            })
        });
        prop_assert_eq!(grouped, expected);
    }

    #[test]
    fn regular_joins_give_all_pairs(steps in steps(), cache_bytes in cache_bytes()) {
        let of = |is_left| (0_u32..).zip(&steps).filter_map(move |(id, step)| match *step {
            Step::Left { key, timestamp } if is_left => Some((key, timestamp, id)),
            Step::Right { key, timestamp } if !is_left => Some((key, timestamp, id)),
            _ => None,
        });
        let pairs = of(true).flat_map(|left| of(false).map(move |right| (left, right)));
        let same_key = pairs.filter(|(left, right)| left.0 == right.0);
        let mut expected: Vec<_> = same_key.map(|(left, right)| {
            let timestamp = left.1.max(right.1);
            ((left.2, right.2, timestamp), Some(timestamp))
        }).collect();
        expected.sort_unstable();
        let (joined, _) = run(&steps, cache_bytes, |items| {
            let (lefts, rights) = (side(items, true), side(items, false));
            let joined = lefts.key_by(|left| left.0).regular_join(&rights.key_by(|right| right.0));
            joined.process(|left, right, out: &mut Collector<(u32, u32)>| out.collect((left.1, right.1))).process(
                |(left, right), context, out: &mut Collector<Joined>| {
                    out.collect((left, right, context.timestamp().unwrap()));
                },
            )
        });
        prop_assert_eq!(joined, expected);
    }
}

/// Ids of the records of either stream in a window, by window and key.
type Content = BTreeMap<(i64, u8), (Vec<u32>, Vec<u32>)>;

/// What windows of `size` that begin every `slide` hold when they are evaluated.
fn window_model(steps: &[Step], size: i64, slide: i64) -> Content {
    let mut watermark = i64::MIN;
    let mut content = Content::new();
    for (id, step) in (0_u32..).zip(steps) {
        let (key, timestamp, is_left) = match *step {
            Step::Left { key, timestamp } => (key, timestamp, true),
            Step::Right { key, timestamp } => (key, timestamp, false),
            Step::Watermark(time) => {
                watermark = watermark.max(time);
                continue;
            }
        };
        let starts = timestamp - size + 1..=timestamp;
        for start in starts.filter(|start| start.rem_euclid(slide) == 0 && watermark < start + size - 1) {
            let (lefts, rights) = content.entry((start, key)).or_default();
            if is_left { lefts.push(id) } else { rights.push(id) }
        }
    }
    content
}

#[test]
fn late_records_go_to_side_outputs() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let items = env.from_source(FileSource::json_lines::<Item>("items"));
        let (lefts, rights) = (side(&items, true), side(&items, false));
        let (late_left, late_right) = (OutputTag::new("late-left"), OutputTag::new("late-right"));
        let joined = lefts
            .key_by(|left| left.0)
            .interval_join(&rights.key_by(|right| right.0))
            .between(-5, 5)
            .side_output_left_late_data(&late_left)
            .side_output_right_late_data(&late_right)
            .process(|left, right, context, out: &mut Collector<(u32, u32)>| {
                context.output(
                    &OutputTag::<i64>::new("times"),
                    context.left_timestamp() * 1000 + context.right_timestamp(),
                );
                out.collect((left.1, right.1));
            });
        joined.sink_to(DiscardSink).name("joined");
        joined.get_side_output(&late_left).sink_to(DiscardSink).name("late left");
        joined.get_side_output(&late_right).sink_to(DiscardSink).name("late right");
        joined.get_side_output(&OutputTag::<i64>::new("times")).sink_to(DiscardSink).name("times");
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    let push = |harness: &mut TestHarness, is_left, id, timestamp| {
        harness.push_with_timestamp::<Item>(&Item { is_left, key: 0, id }, timestamp).unwrap();
    };
    push(&mut harness, true, 1, 10);
    harness.process_watermark(12).unwrap();
    // At the watermark is not late, as in Flink.
    for (id, timestamp) in [(2, 11), (3, 12), (4, 13)] {
        push(&mut harness, false, id, timestamp);
        push(&mut harness, true, 10 + id, timestamp);
    }
    harness.finish().unwrap();
    assert_eq!(
        harness.records_of::<(u32, u32)>("joined").unwrap(),
        [(1, 3), (13, 3), (1, 4), (13, 4), (14, 3), (14, 4)]
    );
    assert_eq!(harness.records_of::<(u8, u32)>("late left").unwrap(), [(0, 12)]);
    assert_eq!(harness.records_of::<(u8, u32)>("late right").unwrap(), [(0, 2)]);
    let times = harness.records_of::<i64>("times").unwrap();
    assert_eq!(times, [10_012, 12_012, 10_013, 12_013, 13_012, 13_013]);
    assert_eq!((harness.metric("numLateRecordsDropped"), harness.metric("numLateRecords")), (None, Some(2.0)));
}

#[test]
fn what_comes_at_the_watermark_is_joined_until_the_next() {
    for ((lower, upper), cache_bytes) in [(0, 0), (-3, 0), (0, 3)].into_iter().zip([1, 600, 1 << 24]) {
        let steps = [
            Step::Left { key: 0, timestamp: 10 },
            Step::Right { key: 0, timestamp: 10 },
            Step::Watermark(10),
            Step::Left { key: 0, timestamp: 10 },
            Step::Right { key: 0, timestamp: 10 },
            Step::Watermark(10),
            Step::Left { key: 0, timestamp: 10 },
            Step::Right { key: 1, timestamp: 10 },
            Step::Watermark(11),
            Step::Left { key: 0, timestamp: 11 },
            Step::Right { key: 0, timestamp: 11 },
        ];
        // Those of before the watermark are gone where they have no time left.
        let mut expected = vec![(0, 1, 10), (3, 4, 10), (6, 4, 10), (9, 10, 11)];
        match (lower, upper) {
            (-3, 0) => expected.extend([(3, 1, 10), (6, 1, 10), (9, 1, 11), (9, 4, 11)]),
            (0, 3) => expected.extend([(0, 4, 10), (0, 10, 11), (3, 10, 11), (6, 10, 11)]),
            _ => {}
        }
        expected.sort_unstable();
        let (mut modelled, late) = interval_model(&steps, lower, upper);
        modelled.sort_unstable();
        assert_eq!((modelled, late), (expected.clone(), vec![]));
        let (joined, dropped) = run(&steps, cache_bytes, |items| {
            let (lefts, rights) = (side(items, true), side(items, false));
            let join = lefts.key_by(|left| left.0).interval_join(&rights.key_by(|right| right.0)).between(lower, upper);
            join.process(|left, right, context, out: &mut Collector<Joined>| {
                out.collect((left.1, right.1, context.timestamp()));
            })
        });
        assert_eq!(joined.into_iter().map(|(joined, _)| joined).collect::<Vec<_>>(), expected);
        assert_eq!(dropped, None);
        assert!(!host::kept_anything());
    }
}

#[test]
fn what_came_at_the_watermark_is_joined_in_a_job_that_goes_on() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let items = env.from_source(FileSource::json_lines::<Item>("items"));
        let (lefts, rights) = (side(&items, true), side(&items, false));
        let join = lefts.key_by(|left| left.0).interval_join(&rights.key_by(|right| right.0)).between(0, 0);
        join.process(|left, right, _, out: &mut Collector<(u32, u32)>| out.collect((left.1, right.1)))
            .sink_to(DiscardSink);
        Ok(())
    };
    let push = |harness: &mut TestHarness, is_left, id| {
        harness.push_with_timestamp::<Item>(&Item { is_left, key: 0, id }, 10).unwrap();
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    push(&mut harness, true, 1);
    harness.process_watermark(10).unwrap();
    push(&mut harness, true, 2);
    let snapshot = harness.snapshot().unwrap();
    let mut harness = TestHarness::restore(program, &[], &snapshot).unwrap();
    push(&mut harness, false, 3);
    assert_eq!(harness.records::<(u32, u32)>().unwrap(), [(2, 3)]);
    harness.process_watermark(11).unwrap();
    drop(harness.snapshot().unwrap());
    assert!(!host::kept_anything());
}

#[test]
fn a_record_is_forgotten_when_its_time_is_over() {
    let mut harness = TestHarness::of_stream(|items: DataStream<Item>| {
        let (lefts, rights) = (side(&items, true), side(&items, false));
        let joined = lefts.key_by(|left| left.0).regular_join(&rights.key_by(|right| right.0));
        joined
            .enable_time_to_live(StateTtlConfig::new(Duration::from_millis(10)))
            .process(|left, right, out: &mut Collector<(u32, u32)>| out.collect((left.1, right.1)))
    })
    .unwrap();
    for (id, is_left, now) in [(1, true, 5), (2, true, 8), (3, false, 14), (4, false, 15), (5, true, 24), (6, true, 25)]
    {
        harness.set_processing_time(now).unwrap();
        harness.push::<Item>(&Item { is_left, key: 0, id }).unwrap();
    }
    harness.finish().unwrap();
    assert_eq!(harness.records::<(u32, u32)>().unwrap(), [(1, 3), (2, 3), (2, 4), (5, 4)]);
}

#[test]
fn mistakes_are_named() {
    type Pairs = DataStream<(u32, u32)>;
    let error = |job: fn(DataStream<Item>) -> Pairs| TestHarness::of_stream(job).map(|_| ()).unwrap_err().to_string();
    let message = error(|items| {
        let keyed = items.key_by(|item| item.key);
        let join = keyed.interval_join(&keyed).between(3, 2);
        join.process(|left, right, _, out: &mut Collector<(u32, u32)>| out.collect((left.id, right.id)))
    });
    assert_eq!(message, "between: the lower bound of 3 ms is above the upper bound of 2 ms");
}

#[test]
fn records_that_cannot_be_joined_are_rejected() {
    let mut harness = TestHarness::of_stream(|items: DataStream<Item>| {
        let (lefts, rights) = (side(&items, true), side(&items, false));
        let join = lefts.key_by(|left| left.0).interval_join(&rights.key_by(|right| right.0)).between(0, 10);
        join.process(|left, right, _, out: &mut Collector<(u32, u32)>| {
            if right.1 == 3 {
                engine_sdk::bail!("three is too much");
            }
            out.collect((left.1, right.1));
            Ok(())
        })
    })
    .unwrap();
    harness.skip_rejected();
    harness.push::<Item>(&Item { is_left: true, key: 0, id: 1 }).unwrap();
    harness.push_with_timestamp::<Item>(&Item { is_left: true, key: 0, id: 2 }, 5).unwrap();
    for id in [3, 4] {
        harness.push_with_timestamp::<Item>(&Item { is_left: false, key: 0, id }, 6).unwrap();
    }
    harness.finish().unwrap();
    assert_eq!(harness.records::<(u32, u32)>().unwrap(), [(2, 4)]);
    let no_timestamp = "an interval join got a record without timestamp; use `assign_timestamps_and_watermarks` before \
                        `key_by`";
    assert_eq!(harness.rejected(), [no_timestamp, "three is too much"]);
}
