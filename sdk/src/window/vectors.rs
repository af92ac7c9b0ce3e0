//! Values of Flink for windows, and random numbers of tests.

use std::time::Duration;

use engine_rows::row::NO_TIMESTAMP;

use super::{
    CountEvictor, EventTimeSessionWindows, Evictor, SlidingEventTimeWindows, TimeEvictor, TimeWindow,
    TumblingEventTimeWindows, WindowElements,
    assigner::{AlignedWindows, sealed::Sealed},
    input::WindowTime,
    sessions::Sessions,
};
use crate::{bindings::exports::engine::plugin::operator_chain::TimeDomain, state::StateBackend};

/// Numbers that follow from a seed (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `from` to `to`, both included.
    pub(crate) fn range(&mut self, from: i64, to: i64) -> i64 {
        let width = u64::try_from(to - from).expect("a range") + 1;
        from + i64::try_from(self.next() % width).expect("below the width")
    }
}

/// Timestamp, offset, size, start of the window.
const STARTS: &[(i64, i64, i64, i64)] = &[
    (-15, 0, 7, -21),
    (-14, 0, 7, -14),
    (-8, 0, 7, -14),
    (-7, 0, 7, -7),
    (-6, 0, 7, -7),
    (-1, 0, 7, -7),
    (0, 0, 7, 0),
    (1, 0, 7, 0),
    (6, 0, 7, 0),
    (7, 0, 7, 7),
    (8, 0, 7, 7),
    (-11, 3, 7, -11),
    (-10, 3, 7, -11),
    (-5, 3, 7, -11),
    (-4, 3, 7, -4),
    (-3, 3, 7, -4),
    (-1, 3, 7, -4),
    (0, 3, 7, -4),
    (2, 3, 7, -4),
    (3, 3, 7, 3),
    (9, 3, 7, 3),
    (10, 3, 7, 10),
    (-16, -2, 7, -16),
    (-12, -2, 7, -16),
    (-9, -2, 7, -9),
    (-7, -2, 7, -9),
    (-3, -2, 7, -9),
    (-2, -2, 7, -2),
    (-1, -2, 7, -2),
    (1, -2, 7, -2),
    (4, -2, 7, -2),
    (5, -2, 7, 5),
    (7, -2, 7, 5),
    (12, -2, 7, 12),
    (1_470_902_048_450, -28_800_000, 86_400_000, 1_470_844_800_000),
    (0, 0, 1, 0),
    (-1, 0, 1, -1),
    (999, 0, 1000, 0),
    (1000, 0, 1000, 1000),
    (-1000, 0, 1000, -1000),
    (-1001, 0, 1000, -2000),
    (61_000, 0, 60_000, 60_000),
    (1_700_000_000_123, 0, 3_600_000, 1_699_999_200_000),
    (1_700_000_000_123, 900_000, 3_600_000, 1_699_996_500_000),
    (-1, -1, 1000, -1),
    (5, 9, 10, -1),
    (-5, 9, 10, -11),
];

/// Timestamp, size, slide, offset, windows in their order.
type Sliding = ((i64, i64, i64, i64), &'static [(i64, i64)]);

const SLIDING: &[Sliding] = &[
    ((0, 5000, 1000, 0), &[(0, 5000), (-1000, 4000), (-2000, 3000), (-3000, 2000), (-4000, 1000)]),
    ((4999, 5000, 1000, 0), &[(4000, 9000), (3000, 8000), (2000, 7000), (1000, 6000), (0, 5000)]),
    ((5000, 5000, 1000, 0), &[(5000, 10_000), (4000, 9000), (3000, 8000), (2000, 7000), (1000, 6000)]),
    ((5333, 5000, 1000, 100), &[(5100, 10_100), (4100, 9100), (3100, 8100), (2100, 7100), (1100, 6100)]),
    ((-1, 5000, 1000, 0), &[(-1000, 4000), (-2000, 3000), (-3000, 2000), (-4000, 1000), (-5000, 0)]),
    ((-333, 5000, 1000, 100), &[(-900, 4100), (-1900, 3100), (-2900, 2100), (-3900, 1100), (-4900, 100)]),
    ((7, 10, 5, 0), &[(5, 15), (0, 10)]),
    ((5, 10, 4, 0), &[(4, 14), (0, 10), (-4, 6)]),
    ((12, 10, 4, 1), &[(9, 19), (5, 15)]),
    ((3, 2, 5, 0), &[]),
    ((5, 2, 5, 0), &[(5, 7)]),
];

/// Gap, timestamps, windows of each record, sessions.
type SessionVector = (i64, &'static [i64], &'static [(i64, i64)], &'static [(i64, i64)]);

const SESSIONS: &[SessionVector] = &[
    (10, &[0, 10], &[(0, 10), (10, 20)], &[(0, 20)]),
    (10, &[0, 11], &[(0, 10), (11, 21)], &[(0, 10), (11, 21)]),
    (10, &[0, 9, 18, 40], &[(0, 10), (9, 19), (18, 28), (40, 50)], &[(0, 28), (40, 50)]),
    (5, &[20, 0, 4, 9, 30], &[(20, 25), (0, 5), (4, 9), (9, 14), (30, 35)], &[(0, 14), (20, 25), (30, 35)]),
    (3, &[0, 3, 6, 10], &[(0, 3), (3, 6), (6, 9), (10, 13)], &[(0, 9), (10, 13)]),
    (1000, &[-500, 400, 1500], &[(-500, 500), (400, 1400), (1500, 2500)], &[(-500, 1400), (1500, 2500)]),
    (10, &[5, 5, 5], &[(5, 15), (5, 15), (5, 15)], &[(5, 15)]),
];

/// Size, timestamp, allowed lateness, watermark, window, its last millisecond and clean-up time,
/// whether the window is late, whether the record is (none where it does not matter), what happens.
type Lateness = ((i64, i64, i64, i64), (i64, i64), (i64, i64), bool, Option<bool>, &'static str);

pub(crate) const LATENESS: &[Lateness] = &[
    ((1000, 500, 0, i64::MIN), (0, 1000), (999, 999), false, Some(false), "add"),
    ((1000, 500, 0, 998), (0, 1000), (999, 999), false, Some(true), "add"),
    ((1000, 500, 0, 999), (0, 1000), (999, 999), true, Some(true), "drop_or_side_output"),
    ((1000, 999, 0, 998), (0, 1000), (999, 999), false, Some(false), "add"),
    ((1000, 500, 200, 999), (0, 1000), (999, 1199), false, Some(true), "add_and_fire_now"),
    ((1000, 500, 200, 1198), (0, 1000), (999, 1199), false, Some(true), "add_and_fire_now"),
    ((1000, 500, 200, 1199), (0, 1000), (999, 1199), true, Some(true), "drop_or_side_output"),
    ((1000, 1000, 0, 999), (1000, 2000), (1999, 1999), false, Some(false), "add"),
    ((1000, -1, 0, -2), (-1000, 0), (-1, -1), false, Some(false), "add"),
    ((1000, -1, 0, -1), (-1000, 0), (-1, -1), true, Some(true), "drop_or_side_output"),
    ((1000, 500, i64::MAX, 5000), (0, 1000), (999, i64::MAX), false, None, "add_and_fire_now"),
    ((1000, 999, 0, i64::MAX), (0, 1000), (999, 999), true, Some(true), "drop_or_side_output"),
];

fn windows(bounds: &[(i64, i64)]) -> Vec<TimeWindow> {
    bounds.iter().map(|(start, end)| TimeWindow::new(*start, *end)).collect()
}

#[test]
fn windows_start_where_those_of_flink_start() {
    for (timestamp, offset, size, start) in STARTS {
        let window = TimeWindow::new(*start, start + size);
        let assigned: Vec<_> = AlignedWindows::new(*size, *size, *offset).assign(*timestamp).collect();
        assert_eq!(assigned, [window], "{timestamp} {offset} {size}");
    }
}

#[test]
fn sliding_windows_come_in_the_order_of_flink() {
    for ((timestamp, size, slide, offset), expected) in SLIDING {
        let assigned: Vec<_> = AlignedWindows::new(*size, *slide, *offset).assign(*timestamp).collect();
        assert_eq!(assigned, windows(expected), "{timestamp} {size} {slide} {offset}");
    }
}

#[test]
fn windows_of_a_timestamp_are_all_that_contain_it() {
    for seed in 0..10_000 {
        let random = &mut Random(seed);
        let (size, slide, offset) = (random.range(1, 40), random.range(1, 40), random.range(-50, 50));
        let (aligned, timestamp) = (AlignedWindows::new(size, slide, offset), random.range(-200, 200));
        let starts = (-300..300).rev().filter(|start: &i64| (start - offset).rem_euclid(slide) == 0);
        let all: Vec<_> = starts.map(|start| TimeWindow::new(start, start + size)).collect();
        let containing: Vec<_> =
            all.iter().copied().filter(|window| window.start <= timestamp && timestamp < window.end).collect();
        assert_eq!(aligned.assign(timestamp).collect::<Vec<_>>(), containing, "seed {seed}");
        let first_after = all.iter().rev().find(|window| timestamp < window.end).expect("a window");
        assert_eq!(aligned.first_start_ending_after(timestamp), first_after.start, "seed {seed}");
        if slide <= size {
            let pane = aligned.pane(timestamp);
            let is_cut = |time: i64| all.iter().any(|window| window.start == time || window.end == time);
            assert!(is_cut(pane.start) && is_cut(pane.end), "seed {seed}: {pane:?}");
            assert!((pane.start + 1..pane.end).all(|time| !is_cut(time)), "seed {seed}: {pane:?}");
            assert!(pane.start <= timestamp && timestamp < pane.end, "seed {seed}: {pane:?}");
        }
    }
}

#[test]
fn windows_reach_to_both_ends_of_time() {
    let windows = AlignedWindows::new(1000, 100, 30);
    assert_eq!(windows.assign(i64::MAX - 1).next().map(|window| window.end), Some(i64::MAX));
    assert!(windows.assign(i64::MIN + 1).count() < 11);
}

#[test]
fn sessions_merge_where_they_intersect_or_touch() {
    for (gap, timestamps, initial, merged) in SESSIONS {
        let mut sessions: Sessions<u64> = Sessions::default();
        let add = |into: &mut Option<u64>, other: u64| {
            *into.get_or_insert(0) += other;
            Ok(())
        };
        for (timestamp, window) in timestamps.iter().zip(windows(initial)) {
            assert_eq!(TimeWindow::new(*timestamp, timestamp + gap), window);
            let index = sessions.merge(sessions.merged_by(window), window, add).expect("merges");
            add(&mut sessions.sessions[index].content, 1).expect("adds");
        }
        let got: Vec<_> = sessions.sessions.iter().map(|session| session.window).collect();
        assert_eq!(got, windows(merged), "{gap} {timestamps:?}");
        let count: u64 = sessions.sessions.iter().filter_map(|session| session.content).sum();
        assert_eq!(count, timestamps.len() as u64);
    }
}

#[test]
fn windows_are_late_from_their_clean_up_time_on() {
    for ((size, timestamp, lateness, watermark), bounds, (max_timestamp, cleanup_time), window_late, element_late, _) in
        LATENESS
    {
        let window = AlignedWindows::new(*size, *size, 0).assign(*timestamp).next().expect("a window");
        assert_eq!((window.start, window.end), *bounds);
        assert_eq!(window.max_timestamp(), *max_timestamp);
        assert_eq!(window.cleanup_time(*lateness), *cleanup_time);
        let timers = StateBackend::declaring().timers();
        timers.set_watermark(*watermark);
        let domain = TimeDomain::EventTime;
        let time = WindowTime { domain, needs_timestamp: true, allowed_lateness: *lateness, timers };
        assert_eq!(time.is_late(window), *window_late);
        if let Some(element_late) = element_late {
            assert_eq!(time.is_record_late(*timestamp), *element_late);
        }
    }
}

#[test]
fn evictors_evict_what_those_of_flink_do() {
    let elements = |timestamps: &[i64]| -> WindowElements<i64> {
        let mut elements = WindowElements::new();
        timestamps.iter().for_each(|timestamp| elements.push(timestamp, *timestamp));
        elements
    };
    let window = TimeWindow::new(0, 100);
    for (size, count_max, evicts_first) in [(5, 3, 2), (3, 3, 0)] {
        let mut all = elements(&(0..size).collect::<Vec<_>>());
        CountEvictor::of(count_max).evict_before(&mut all, window);
        assert_eq!(all.iter().collect::<Vec<_>>(), (evicts_first..size).collect::<Vec<_>>());
    }
    let mut all = elements(&[1, 5, 8, 10]);
    TimeEvictor::of(Duration::from_millis(5)).evict_before(&mut all, window);
    assert_eq!(all.iter().collect::<Vec<_>>(), [8, 10]);
}

#[test]
fn windows_that_cannot_be_are_refused_by_the_name_of_their_call() {
    let ms = Duration::from_millis;
    #[track_caller]
    fn refused(assigner: impl Sealed<i64>, message: &str) {
        assert_eq!(assigner.windows().map(|_| ()), Err(message.to_owned()));
    }
    refused(
        TumblingEventTimeWindows::of(ms(10)).with_offset(ms(10)),
        "TumblingEventTimeWindows::of: the offset of 10 ms must be shorter than the size of 10 ms",
    );
    assert!(Sealed::<i64>::windows(TumblingEventTimeWindows::of(ms(10)).with_negative_offset(ms(9))).is_ok());
    refused(
        TumblingEventTimeWindows::of(ms(10)).with_negative_offset(ms(10)),
        "TumblingEventTimeWindows::of: the offset of -10 ms must be shorter than the size of 10 ms",
    );
    refused(
        SlidingEventTimeWindows::of(ms(10), ms(5)).with_offset(ms(5)),
        "SlidingEventTimeWindows::of: the offset of 5 ms must be shorter than the slide of 5 ms",
    );
    refused(SlidingEventTimeWindows::of(ms(0), ms(5)), "SlidingEventTimeWindows::of: the size must be at least 1 ms");
    refused(SlidingEventTimeWindows::of(ms(5), ms(0)), "SlidingEventTimeWindows::of: the slide must be at least 1 ms");
    refused(
        EventTimeSessionWindows::with_gap(Duration::ZERO),
        "EventTimeSessionWindows::with_gap: the gap must be at least 1 ms",
    );
    refused(
        TumblingEventTimeWindows::of(Duration::from_micros(1500)),
        "TumblingEventTimeWindows::of: the size must be whole milliseconds, not 1.5ms",
    );
    refused(
        EventTimeSessionWindows::with_gap(Duration::MAX),
        "EventTimeSessionWindows::with_gap: the gap must be whole milliseconds, not 18446744073709551615.999999999s",
    );
    assert_eq!(NO_TIMESTAMP, i64::MIN);
}
