//! What does a row's access to keyed state cost when not all of it fits into the cache of
//! the guest, by hit rate and size of value; and what does a timer cost?
//!
//! Keys are drawn uniformly from 100,000, so the hit rate is the part of the keys that has
//! room in the cache: its bytes are chosen by what an entry takes, which a first run without
//! limit tells. Printed is the hit rate that the operator's metrics tell of the rows measured.

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
    wasm::{EmitTarget, MetricValue, Segment},
};
use engine_rows::{key_hash::key_hash, row};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const ROWS: u32 = 1024;
const KEYS: u64 = 100_000;
/// Batches until all keys were met and the cache is full, and batches measured.
const BATCHES: (u32, u32) = (2_000, 2_000);

fn batch(random: &mut SmallRng, timestamp: i64) -> RecordBatch {
    let mut data = Vec::new();
    for _ in 0..ROWS {
        let key = random.random_range(0..KEYS).to_le_bytes();
        row::append_with(&mut data, key_hash(&key), timestamp, |payload| {
            payload.extend_from_slice(&key);
            payload.extend_from_slice(&1_u64.to_le_bytes());
        });
    }
    RecordBatch { kind: BatchKind::Rows, count: ROWS, data: Bytes::from(data) }
}

/// The value of a metric, 0 if there is none.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn metric<T: EmitTarget + 'static>(segment: &Segment<T>, name: &str) -> f64 {
    let metric = segment.metrics().into_iter().find(|metric| metric.name == name);
    match metric.map(|metric| metric.value) {
        Some(MetricValue::Counter(count)) => count as f64,
        Some(MetricValue::Gauge(value)) => value,
        _ => 0.0,
    }
}

/// Runs a cache of so many bytes; returns the bytes that an entry takes.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn access(value_bytes: &str, cache_bytes: u64, wanted: &str) -> f64 {
    let mut segment = guest::open_cached("bench_chain", &["--keep", value_bytes], cache_bytes, |count, rows| {
        black_box((count, rows));
    });
    let random = &mut SmallRng::seed_from_u64(1);
    let (mut hits, mut misses, mut nanos) = (0.0, 0.0, 0);
    for number in 0..BATCHES.0 + BATCHES.1 {
        if number == BATCHES.0 {
            (hits, misses) = (metric(&segment, "stateCacheHits"), metric(&segment, "stateCacheMisses"));
        }
        let batch = batch(random, 0);
        let start = ThreadCpuTime.start();
        segment.process_batch(0, &batch).expect("the guest is sound");
        if BATCHES.0 <= number {
            nanos += ThreadCpuTime.start() - start;
        }
    }
    hits = metric(&segment, "stateCacheHits") - hits;
    misses = metric(&segment, "stateCacheMisses") - misses;
    println!(
        "value of {value_bytes:2} bytes, {wanted:>5} hits: {:6.1} ns a row, {:5.1} % hits",
        nanos as f64 / f64::from(BATCHES.1 * ROWS),
        100.0 * hits / (hits + misses),
    );
    metric(&segment, "stateCacheBytes") / metric(&segment, "stateCacheEntries")
}

/// A timer for each row, and as many that fire.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn timers(rows_of_a_timestamp: &str, batches_of_a_timestamp: u32) {
    let fired = Rc::new(Cell::new(0_u64));
    let emitted = Rc::clone(&fired);
    let mut segment = guest::open_keyed("bench_chain", &["--timers"], move |count, rows| {
        black_box(rows);
        emitted.set(emitted.get() + u64::from(count));
    });
    let random = &mut SmallRng::seed_from_u64(1);
    let (mut on_rows, mut on_firing) = (0, 0);
    for number in 0..BATCHES.1 {
        let time = i64::from(number / batches_of_a_timestamp) * 1_000;
        let batch = batch(random, time);
        let start = ThreadCpuTime.start();
        segment.process_batch(0, &batch).expect("the guest is sound");
        let processed = ThreadCpuTime.start();
        let watermark = Timestamp(time - 1);
        while segment.fire_timers(TimeDomain::EventTime, watermark).expect("the guest is sound") {}
        segment.process_watermark(watermark).expect("the guest is sound");
        on_rows += processed - start;
        on_firing += ThreadCpuTime.start() - processed;
    }
    println!(
        "timers, {rows_of_a_timestamp} rows of a timestamp: {:6.1} ns to register, {:6.1} ns to fire each of {}",
        on_rows as f64 / f64::from(BATCHES.1 * ROWS),
        on_firing as f64 / fired.get().max(1) as f64,
        fired.get(),
    );
}

#[expect(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss, reason = "bytes")]
fn main() {
    for value_bytes in ["8", "64"] {
        let entry_bytes = access(value_bytes, 1 << 30, "all");
        for (wanted, rate) in [("99 %", 0.99), ("90 %", 0.9), ("50 %", 0.5)] {
            access(value_bytes, (entry_bytes * KEYS as f64 * rate) as u64, wanted);
        }
    }
    timers("1,024", 1);
    timers("16,384", 16);
}
