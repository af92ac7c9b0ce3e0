//! Interval joins against a model that follows Flink's operator to the letter.

use std::collections::BTreeMap;

use engine_sdk::{TestHarness, prelude::*};
use proptest::{collection::vec, prelude::*};

/// What the job is fed with.
#[derive(Clone, Debug)]
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

/// Inclusive bounds, and whether late records are asked for.
#[derive(Clone, Copy, Debug)]
struct Interval {
    lower: i64,
    upper: i64,
}

/// Ids of a left and a right record, and the timestamp of the result.
type Joined = (u32, u32, i64);

/// Flink's `IntervalJoinOperator`, with the ids of late records of either side.
fn model(steps: &[Step], interval: Interval) -> (Vec<Joined>, Vec<u32>) {
    let Interval { lower, upper } = interval;
    let mut watermark = i64::MIN;
    let (mut lefts, mut rights) = (BTreeMap::new(), BTreeMap::new());
    let (mut joined, mut late) = (Vec::new(), Vec::new());
    for (id, step) in (0_u32..).zip(steps) {
        match *step {
            Step::Left { timestamp, .. } | Step::Right { timestamp, .. } if timestamp < watermark => late.push(id),
            Step::Left { key, timestamp } => {
                lefts.entry((key, timestamp)).or_insert_with(Vec::new).push(id);
                for ((_, other), ids) in rights.range((key, timestamp + lower)..=(key, timestamp + upper)) {
                    joined.extend(ids.iter().map(|right| (id, *right, timestamp.max(*other))));
                }
            }
            Step::Right { key, timestamp } => {
                rights.entry((key, timestamp)).or_insert_with(Vec::new).push(id);
                for ((_, other), ids) in lefts.range((key, timestamp - upper)..=(key, timestamp - lower)) {
                    joined.extend(ids.iter().map(|left| (*left, id, timestamp.max(*other))));
                }
            }
            Step::Watermark(time) if watermark < time => {
                watermark = time;
                // A record is removed by a timer at its timestamp and the time that the other side has to come.
                lefts.retain(|(_, timestamp): &(u8, i64), _: &mut Vec<u32>| time < timestamp + upper.max(0));
                rights.retain(|(_, timestamp): &(u8, i64), _: &mut Vec<u32>| time < timestamp + (-lower).max(0));
            }
            Step::Watermark(_) => {}
        }
    }
    (joined, late)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Watermarks rise slowly, so that some records are late and most are not.
    let step = (0_u8..12, 0_u8..3, -30_i64..30, 0_i64..8);
    vec(step, 0..60).prop_map(|steps| {
        let mut now = 0;
        steps
            .into_iter()
            .map(|(kind, key, distance, progress)| {
                now += progress;
                let timestamp = now + distance;
                match kind {
                    0..5 => Step::Left { key, timestamp },
                    5..10 => Step::Right { key, timestamp },
                    _ => Step::Watermark(now - 12),
                }
            })
            .collect()
    })
}
