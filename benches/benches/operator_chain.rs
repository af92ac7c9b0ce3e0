//! What does one more operator cost? Chains of one to five maps over rows of 64
//! bytes, 1,024 a batch: fused in one guest, cut into two guests, and native.

mod cpu_time;
mod guest;

use std::{cell::RefCell, hint::black_box, rc::Rc};

use bytes::Bytes;
use cpu_time::ThreadCpuTime;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::base::stream_element::{BatchKind, RecordBatch};
use engine_rows::row::{self, NO_TIMESTAMP, Row, Rows};

const ROWS: u32 = 1024;
const FIELDS: usize = 8;

type Numbers = [u64; FIELDS];

fn batch() -> RecordBatch {
    let mut data = Vec::new();
    for index in 0..ROWS {
        let payload: Vec<u8> = (0..FIELDS as u64).flat_map(|field| (u64::from(index) + field).to_le_bytes()).collect();
        row::append(&mut data, Row { key_hash: 0, timestamp: NO_TIMESTAMP, payload: &payload });
    }
    RecordBatch { kind: BatchKind::Rows, count: ROWS, data: Bytes::from(data) }
}

/// What a native operator sends a record to.
type Downstream = Box<dyn FnMut(Numbers, i64)>;

/// The map of the plugin `bench_chain`.
fn mix(mut row: Numbers) -> Numbers {
    assert!(row[1] != u64::MAX, "b is too big");
    row[0] = row[0].wrapping_mul(3) ^ row[7];
    row
}

fn write(row: Numbers, timestamp: i64, out: &RefCell<Vec<u8>>) {
    row::append_with(&mut out.borrow_mut(), 0, timestamp, |payload| {
        row.iter().for_each(|field| payload.extend_from_slice(&field.to_le_bytes()));
    });
}

/// As the SDK builds a chain: boxed operators, each compiled with its function, and the
/// last one with the encoder. The first is compiled into the loop over the rows, and
/// with the encoder if there is no other.
fn native_chain(maps: u32, out: &Rc<RefCell<Vec<u8>>>) -> Option<Downstream> {
    if maps == 1 {
        return None;
    }
    let out = Rc::clone(out);
    let mut chain: Downstream = Box::new(move |row, timestamp| write(mix(row), timestamp, &out));
    for _ in 2..maps {
        let mut next = chain;
        chain = Box::new(move |row, timestamp| next(mix(row), timestamp));
    }
    Some(chain)
}

fn read(payload: &[u8]) -> Numbers {
    let mut row = [0; FIELDS];
    for (field, bytes) in row.iter_mut().zip(payload.as_chunks::<8>().0) {
        *field = u64::from_le_bytes(*bytes);
    }
    row
}

fn operator_chain(criterion: &mut Criterion<ThreadCpuTime>) {
    let batch = batch();
    let mut group = criterion.benchmark_group("operator chain");
    group.throughput(Throughput::Elements(u64::from(ROWS)));
    for maps in 1..=5 {
        let args = ["--maps", &maps.to_string()];
        let mut fused = guest::open("bench_chain", &args, |count, rows| {
            black_box((count, rows));
        });
        group.bench_function(BenchmarkId::new("fused", maps), |bencher| {
            bencher.iter(|| fused.process_batch(0, &batch).expect("the guest is sound"));
        });
        let out = Rc::new(RefCell::new(Vec::new()));
        let mut chain = native_chain(maps, &out);
        group.bench_function(BenchmarkId::new("native", maps), |bencher| {
            bencher.iter(|| {
                out.borrow_mut().clear();
                for row in Rows::new(black_box(&batch.data)) {
                    let row = row.expect("whole rows");
                    let mixed = mix(read(row.payload));
                    match &mut chain {
                        None => write(mixed, row.timestamp, &out),
                        Some(next) => next(mixed, row.timestamp),
                    }
                }
            });
        });
    }
    // As the engine hands rows from one plugin to the next: checked, and copied once.
    let emitted = Rc::new(RefCell::new((0, Vec::new())));
    let into = Rc::clone(&emitted);
    let mut first = guest::open("bench_chain", &["--maps", "1"], move |count, rows| {
        assert_eq!(Rows::new(rows).filter(Result::is_ok).count(), count as usize);
        let (emitted, data) = &mut *into.borrow_mut();
        *emitted += count;
        data.extend_from_slice(rows);
    });
    let mut second = guest::open("bench_chain", &["--maps", "1"], |count, rows| {
        black_box((count, rows));
    });
    group.bench_function("two guests of one map each", |bencher| {
        bencher.iter(|| {
            first.process_batch(0, &batch).expect("the guest is sound");
            let (count, data) = std::mem::take(&mut *emitted.borrow_mut());
            let batch = RecordBatch { kind: BatchKind::Rows, count, data: Bytes::from(data) };
            second.process_batch(0, &batch).expect("the guest is sound");
        });
    });
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().with_measurement(ThreadCpuTime);
    targets = operator_chain
}
criterion_main!(benches);
