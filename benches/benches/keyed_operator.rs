//! What does keyed state cost a record? A sum with an update for each row, by numbers
//! and by short text, 1,024 rows a batch, beside the same job without state; with few
//! hot keys and with many. And for how long does a snapshot hold the task up?

mod cpu_time;
mod guest;

use std::{cell::RefCell, hint::black_box};

use bytes::Bytes;
use cpu_time::ThreadCpuTime;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::base::stream_element::{BatchKind, RecordBatch};
use engine_rows::{
    key_hash::key_hash,
    row::{self, NO_TIMESTAMP},
};
use rand::{Rng as _, SeedableRng as _, rngs::SmallRng};

const ROWS: u32 = 1024;
/// Batches that are fed in turn: enough that each key is met.
const BATCHES: usize = 512;

fn batches(hot_keys: u64, is_text: bool) -> Vec<RecordBatch> {
    let mut random = SmallRng::seed_from_u64(1);
    let batch = |_| {
        let mut data = Vec::new();
        for _ in 0..ROWS {
            let key = random.random_range(0..hot_keys);
            let mut payload = Vec::new();
            let hash = if is_text {
                let key = format!("key-{key}");
                payload.extend_from_slice(&u32::try_from(key.len()).expect("short").to_le_bytes());
                payload.extend_from_slice(key.as_bytes());
                key_hash(key.as_bytes())
            } else {
                payload.extend_from_slice(&key.to_le_bytes());
                key_hash(&key.to_le_bytes())
            };
            payload.extend_from_slice(&1_u64.to_le_bytes());
            row::append_with(&mut data, hash, NO_TIMESTAMP, |out| out.extend_from_slice(&payload));
        }
        RecordBatch { kind: BatchKind::Rows, count: ROWS, data: Bytes::from(data) }
    };
    (0..BATCHES).map(batch).collect()
}

fn keyed_operator(criterion: &mut Criterion<ThreadCpuTime>) {
    let mut group = criterion.benchmark_group("keyed operator");
    group.throughput(Throughput::Elements(u64::from(ROWS)));
    for (key, is_text) in [("number", false), ("text", true)] {
        for hot_keys in [1_000, 50_000] {
            let batches = batches(hot_keys, is_text);
            for job in ["--no-sum", "--sum"] {
                let mut segment = guest::open_keyed("bench_chain", &[job, key], |count, rows| {
                    black_box((count, rows));
                });
                batches.iter().for_each(|batch| segment.process_batch(0, batch).expect("the guest is sound"));
                let mut next = batches.iter().cycle();
                let name = format!("{job} {key}");
                group.bench_function(BenchmarkId::new(name, hot_keys), |bencher| {
                    bencher.iter(|| {
                        let batch = next.next().expect("they go round");
                        segment.process_batch(0, batch).expect("the guest is sound");
                    });
                });
            }
        }
    }
    group.finish();
}

/// For how long does a snapshot hold a task up, when each of so many keys has changed since
/// the last one? What is written beside the task is not in it.
fn snapshot(criterion: &mut Criterion<ThreadCpuTime>) {
    const KEYS: u64 = 100_000;
    let mut group = criterion.benchmark_group("snapshot");
    group.sample_size(20);
    let batches = batches(KEYS, false);
    let segment = guest::open_keyed("bench_chain", &["--sum", "number"], |count, rows| {
        black_box((count, rows));
    });
    let segment = RefCell::new(segment);
    let mut checkpoint_id = 0;
    group.bench_function(BenchmarkId::new("changed keys", KEYS), |bencher| {
        bencher.iter_batched(
            || batches.iter().for_each(|batch| segment.borrow_mut().process_batch(0, batch).expect("a sound guest")),
            |()| {
                checkpoint_id += 1;
                segment.borrow_mut().snapshot(checkpoint_id, true).expect("a sound guest")
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadCpuTime);
    targets = keyed_operator, snapshot
}
criterion_main!(benches);
