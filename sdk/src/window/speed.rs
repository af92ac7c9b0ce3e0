//! temporary
use std::time::Duration;

struct Instant(u64);
impl Instant {
    fn now() -> Self {
        let s = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
        Self(s.split(' ').next().unwrap().parse().unwrap())
    }
    fn elapsed(&self) -> Duration {
        Duration::from_nanos(Self::now().0 - self.0)
    }
}

use engine_rows::{key_hash::key_hash, row};

use crate::{
    DataStream, DiscardSink, EventTimeSessionWindows, FileSource, KeyedStream, Pair, SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    bindings::{
        engine::plugin::graph::Operator as OperatorKind,
        exports::engine::plugin::operator_chain::{OperatorContext, SegmentOutput, TimeDomain},
    },
    current,
    exports::declare,
    host,
    key::ByValue,
    operator::Batch,
    record::Record,
    segment::Segment,
};

type Bid = (u64, u64);
type K = KeyedStream<Bid, u64, ByValue<fn(&Bid) -> u64>>;

fn run(
    name: &str,
    keys: u64,
    rows_total: u64,
    ms_per_row_inv: u64,
    cache: u64,
    f: impl Fn(K) -> DataStream<Pair<u64, u64>>,
) {
    current::reset();
    host::reset();
    let (graph, declaration) = declare(
        |env, _| {
            let s = env.from_source(FileSource::json_lines::<Bid>("input"));
            f(s.key_by::<u64, fn(&Bid) -> u64>(|b| b.0)).sink_to(DiscardSink);
            Ok(())
        },
        Vec::new(),
    )
    .map_err(|e| e.to_string())
    .unwrap();
    let node = declaration
        .nodes
        .iter()
        .find(|node| matches!(&node.operator, OperatorKind::Guest(kind) if kind.starts_with("Window")))
        .unwrap();
    host::declare_instance(0, node.states.iter().map(|state| state.kind).collect());
    host::enter_instance(0);
    let outputs = declaration
        .edges
        .iter()
        .filter(|e| e.source == node.id)
        .map(|e| SegmentOutput { node: node.id, side_output: None, selector: e.selector, channels: 1 })
        .collect();
    let context = OperatorContext {
        job_name: String::new(),
        task_name: String::new(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
        nodes: vec![node.id],
        outputs,
        restored: false,
        state_cache_bytes: cache,
    };
    let mut segment = Segment::open(&graph.borrow(), &context).map_err(|e| e.to_string()).unwrap();
    let batch_rows = 1000;
    let mut state = 12345_u64;
    let mut batches = Vec::new();
    let mut n = 0_u64;
    while n < rows_total {
        let mut rows = Vec::new();
        for _ in 0..batch_rows {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let bid = ((state >> 33) % keys, n);
            row::append_with(&mut rows, key_hash(&bid.0.to_le_bytes()), (n / ms_per_row_inv) as i64, |p| {
                Bid::encode(&bid, p)
            });
            n += 1;
        }
        batches.push(rows);
    }
    let (mut t_rows, mut t_fire, mut fired, mut emitted) = (Duration::ZERO, Duration::ZERO, 0_u64, 0_usize);
    let mut n = 0;
    for rows in &batches {
        let start = Instant::now();
        segment.process_batch(0, Batch::Rows(rows)).unwrap();
        t_rows += start.elapsed();
        n += batch_rows;
        let w = (n / ms_per_row_inv) as i64 - 1;
        while let Some((count, timers)) = host::take_due_timers(0, TimeDomain::EventTime, w, 4096) {
            let start = Instant::now();
            segment.fire_timers(TimeDomain::EventTime, w, &timers).unwrap();
            t_fire += start.elapsed();
            fired += u64::from(count);
        }
        segment.process_watermark(w).unwrap();
        emitted += host::take_calls().len();
    }
    println!(
        "{name:40} keys {keys:8}: {:6.1} ns/row, {fired} timers {:6.1} ns each ({emitted})",
        t_rows.as_nanos() as f64 / rows_total as f64,
        t_fire.as_nanos() as f64 / fired.max(1) as f64
    );
}

#[test]
fn speed() {
    let s = Duration::from_millis;
    for keys in [1, 1000] {
        run("tumbling 10 s count", keys, 1_000_000, 10, 1 << 30, |k| {
            k.window(TumblingEventTimeWindows::of(s(10_000))).count()
        });
    }
    for n in [5, 60, 600] {
        for keys in [1, 1000] {
            run(&format!("sliding slide 1 s size {n} s count"), keys, 1_000_000, 10, 1 << 30, |k| {
                k.window(SlidingEventTimeWindows::of(s(n * 1000), s(1000))).count()
            });
        }
    }
    for keys in [1, 1000] {
        run("session 10 s gap count", keys, 1_000_000, 10, 1 << 30, |k| {
            k.window(EventTimeSessionWindows::with_gap(s(10_000))).count()
        });
    }
    //run("tumbling small cache", 100_000, 1_000_000, 10, 1 << 20, |k| k.window(TumblingEventTimeWindows::of(s(10_000))).count());
}
