//! What does a call into a guest cost, by the size of the batch? A map over rows
//! of 64 bytes: the call, the copy in, the map, the emit.

mod cpu_time;
mod guest;

use std::hint::black_box;

use bytes::Bytes;
use cpu_time::ThreadCpuTime;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::base::stream_element::{BatchKind, RecordBatch};
use engine_rows::row::{self, NO_TIMESTAMP, Row};

fn batch(count: u32) -> RecordBatch {
    let mut data = Vec::new();
    for index in 0..count {
        let payload: Vec<u8> = (0..8).flat_map(|field| (u64::from(index) + field).to_le_bytes()).collect();
        row::append(&mut data, Row { key_hash: 0, timestamp: NO_TIMESTAMP, payload: &payload });
    }
    RecordBatch { kind: BatchKind::Rows, count, data: Bytes::from(data) }
}

fn guest_call(criterion: &mut Criterion<ThreadCpuTime>) {
    let mut segment = guest::open("bench_chain", &["--maps", "1"], |count, rows| {
        black_box((count, rows));
    });
    let mut group = criterion.benchmark_group("guest call");
    for count in [1, 8, 64, 256, 1024, 8192] {
        let batch = batch(count);
        group.throughput(Throughput::Elements(u64::from(count)));
        group.bench_function(BenchmarkId::from_parameter(format!("{count} rows")), |bencher| {
            bencher.iter(|| segment.process_batch(0, &batch).expect("the guest is sound"));
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadCpuTime);
    targets = guest_call
}
criterion_main!(benches);
