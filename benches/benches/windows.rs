//! What do windows cost? A count by a number, 1,024 rows a batch, in tumbling windows
//! and sessions with few and many keys, and in sliding windows that overlap 5, 60 and
//! 600 times: with the state in the host, the timers, the watermarks and the results.
//!
//! `cargo bench --bench windows [KEYS]`, 10 million keys at most if none are given.

mod cpu_time;
mod guest;

use std::{cell::Cell, hint::black_box, rc::Rc};

use bytes::Bytes;
use cpu_time::ThreadCpuTime;
use criterion::measurement::Measurement as _;
use engine::{
    base::{
        clock::Timestamp,
        stream_element::{BatchKind, RecordBatch},
    },
    state::TimeDomain,
};
use engine_rows::{key_hash::key_hash, row};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const ROWS: u32 = 1024;

/// Rows of one case: keys at random, timestamps that rise evenly.
struct Feed {
    random: SmallRng,
    keys: u64,
    rows_per_second: u64,
    rows: u64,
}

impl Feed {
    fn batch(&mut self) -> RecordBatch {
        let mut data = Vec::new();
        for _ in 0..ROWS {
            let key = self.random.random_range(0..self.keys).to_le_bytes();
            let timestamp = i64::try_from(self.rows * 1000 / self.rows_per_second).expect("a small number");
            row::append_with(&mut data, key_hash(&key), timestamp, |payload| {
                payload.extend_from_slice(&key);
                payload.extend_from_slice(&1_u64.to_le_bytes());
            });
            self.rows += 1;
        }
        RecordBatch { kind: BatchKind::Rows, count: ROWS, data: Bytes::from(data) }
    }

    /// No row that follows has a timestamp at or below it.
    fn watermark(&self) -> Timestamp {
        Timestamp(i64::try_from(self.rows * 1000 / self.rows_per_second).expect("a small number") - 1)
    }
}

/// Runs a case until `seconds` of event time have passed; the first `warm_up` do not count.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn case(args: &[&str], keys: u64, rows_per_second: u64, (warm_up, seconds): (i64, i64)) {
    let results = Rc::new(Cell::new(0_u64));
    let emitted = Rc::clone(&results);
    let mut segment = guest::open_keyed("bench_chain", args, move |count, rows| {
        black_box(rows);
        emitted.set(emitted.get() + u64::from(count));
    });
    let mut feed = Feed { random: SmallRng::seed_from_u64(1), keys, rows_per_second, rows: 0 };
    let (mut rows, mut on_rows, mut on_firing, mut firings) = (0_u64, 0_i128, 0_i128, 0_u64);
    while feed.watermark().0 < seconds * 1000 {
        let batch = feed.batch();
        let watermark = feed.watermark();
        let before = results.get();
        let start = ThreadCpuTime.start();
        segment.process_batch(0, &batch).expect("the guest is sound");
        let processed = ThreadCpuTime.start();
        while segment.fire_timers(TimeDomain::EventTime, watermark).expect("the guest is sound") {}
        segment.process_watermark(watermark).expect("the guest is sound");
        let end = ThreadCpuTime.start();
        if warm_up * 1000 <= watermark.0 {
            rows += u64::from(ROWS);
            on_rows += processed - start;
            on_firing += end - processed;
            firings += results.get() - before;
        }
    }
    let each = |nanos: i128, count: u64| nanos as f64 / count.max(1) as f64;
    println!(
        "{:32} {keys:9} keys  {:7.1} ns a row, {:7.1} ns a result of {firings}; {:7.1} ns a row in all",
        args[1..].join(" "),
        each(on_rows, rows),
        each(on_firing, firings),
        each(on_rows + on_firing, rows),
    );
}

fn main() {
    let keys_max = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(10_000_000);
    for keys in [1, 1_000, 10_000_000_u64] {
        let keys = keys.min(keys_max);
        // Twice as many rows in each window as there are keys, but a million at least.
        let rows_per_second = (keys / 5).max(100_000);
        case(&["--window", "tumbling"], keys, rows_per_second, (0, 21));
        case(&["--window", "session"], keys, rows_per_second, (0, 21));
    }
    for size in ["5", "60", "600"] {
        case(&["--window", "sliding", "--size", size], 1_000, 5_000, (600, 1_000));
    }
}
