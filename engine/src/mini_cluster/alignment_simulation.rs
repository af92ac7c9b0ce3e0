//! Sources that wait for each other, with what decides on both sides, on a virtual clock:
//! messages take their time and get lost, and sources are of different speed.

use std::{collections::VecDeque, time::Duration};

use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::{
    base::clock::Timestamp, connector::AlignmentOptions,
    job_manager::job_master::watermark_alignment::WatermarkAlignment,
    task_manager::task::source_alignment::SourceAlignment,
};

const STEP: i64 = 10;
/// Time between two watermarks of a source.
const WATERMARK_INTERVAL: i64 = 200;
const UPDATE_INTERVAL: i64 = 1000;
const DELAY_MAX: i64 = 300;
const DRIFT: i64 = 5000;
/// Event time from the first record to the last.
const EVENT_TIME: i64 = 600_000;
/// Event time that passes in a millisecond, at most.
const SPEED_MAX: i64 = 100;
/// The slowest of all, and a source that waits for it, end by then.
const STEPS_MAX: i64 = 1_000_000;

struct Source {
    alignment: SourceAlignment,
    speed: i64,
    event_time: i64,
    watermark: i64,
    /// No records come in this time.
    silent: (i64, i64),
    /// Answers on their way: when they arrive, and what they say.
    answers: VecDeque<(i64, Timestamp)>,
}

impl Source {
    fn ended(&self) -> bool {
        EVENT_TIME <= self.event_time
    }
}

/// Runs sources to their ends; returns how far apart those were that had a watermark and were
/// at work, and how long it took.
fn run(seed: u64, loss: f64, aligned: bool) -> (i64, i64) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut master = WatermarkAlignment::default();
    let mut sources = Vec::new();
    for node in 0..random.random_range(2..5) {
        let options = AlignmentOptions {
            group: "group".to_owned(),
            max_drift: Duration::from_millis(DRIFT.unsigned_abs()),
            update_interval: Duration::from_millis(UPDATE_INTERVAL.unsigned_abs()),
        };
        let alignment = SourceAlignment::new(options.update_interval, Duration::ZERO);
        master.add_source(node, options);
        let silent = random.random_range(0..5000);
        sources.push(Source {
            alignment,
            speed: random.random_range(1..=SPEED_MAX),
            event_time: random.random_range(0..DRIFT / 2),
            watermark: i64::MIN,
            silent: (silent, silent + random.random_range(0..10_000)),
            answers: VecDeque::new(),
        });
    }
    let mut reports: Vec<(i64, u32, Timestamp)> = Vec::new();
    let mut spread = 0;
    for step in 0..STEPS_MAX {
        let now = step * STEP;
        let monotonic = Duration::from_millis(now.unsigned_abs());
        for (node, source) in (0_u32..).zip(&mut sources) {
            while let Some((_, allowed)) = source.answers.pop_front_if(|(at, _)| *at <= now) {
                source.alignment.allow(if aligned { allowed } else { Timestamp::MAX });
            }
            let watermark = Timestamp(if source.ended() { i64::MAX } else { source.watermark });
            if source.alignment.take_report(watermark, monotonic) && !random.random_bool(loss) {
                reports.push((now + random.random_range(0..DELAY_MAX), node, watermark));
            }
            source.alignment.update(watermark);
            let is_silent = (source.silent.0..source.silent.1).contains(&now);
            if !source.alignment.is_paused() && !source.ended() && !is_silent {
                source.event_time += source.speed * STEP;
            }
            if now % WATERMARK_INTERVAL == 0 && !is_silent {
                source.watermark = source.event_time;
            }
        }
        reports.retain(|(at, node, watermark)| {
            if *at <= now {
                let allowed = master.report(*node, 0, *watermark).unwrap();
                if !random.random_bool(loss) {
                    let arrives = now + random.random_range(0..DELAY_MAX);
                    sources[*node as usize].answers.push_back((arrives, allowed));
                }
            }
            now < *at
        });
        if sources.iter().all(Source::ended) {
            return (spread, now);
        }
        let at_work = || sources.iter().filter(|source| i64::MIN < source.watermark && !source.ended());
        let (least, most) = (at_work().map(|source| source.watermark).min(), at_work().map(|s| s.watermark).max());
        spread = spread.max(most.unwrap_or(0) - least.unwrap_or(0));
    }
    panic!("seed {seed}: the sources wait for each other for ever");
}

#[test]
fn sources_stay_together_and_never_wait_for_each_other_for_ever() {
    // From the last look of a fast source at its watermark to the answer that makes it pause.
    let overshoot = SPEED_MAX * (WATERMARK_INTERVAL + UPDATE_INTERVAL + 2 * DELAY_MAX + 2 * STEP);
    for seed in 0..200 {
        let (spread, _) = run(seed, 0.0, true);
        assert!(spread <= DRIFT + overshoot, "seed {seed}: {spread} ms apart");
        run(seed, 0.2, true);
    }
}

#[test]
fn without_alignment_the_same_sources_drift_apart() {
    let overshoot = SPEED_MAX * (WATERMARK_INTERVAL + UPDATE_INTERVAL + 2 * DELAY_MAX + 2 * STEP);
    let apart = (0..200).filter(|seed| DRIFT + overshoot < run(*seed, 0.0, false).0).count();
    assert!(100 < apart, "{apart} of 200");
}
