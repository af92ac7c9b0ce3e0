//! Window operators against a model that keeps each window by itself, as Flink does.
//!
//! Each case is a random run of records, watermarks and clock, with caches so small that
//! entries leave them all the time, or so large that none does. Each call must emit
//! what the model emits, in the order of time.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use engine_rows::{
    key_hash::key_hash,
    row::{self, Rows},
};

use super::{
    ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger, CountEvictor, CountTrigger, EventTimeSessionWindows,
    EventTimeTrigger, ProcessWindowFunction, ProcessingTimeSessionWindows, ProcessingTimeTrigger, PurgingTrigger,
    SlidingEventTimeWindows, SlidingProcessingTimeWindows, TimeEvictor, TimeWindow, TumblingEventTimeWindows,
    TumblingProcessingTimeWindows, WindowContext, WindowElements, WindowedStream,
    vectors::{LATENESS, Random},
};
use crate::{
    AggregateFunction, DataStream, DiscardSink, FileSource, OutputTag,
    bindings::{
        engine::plugin::graph::Operator as OperatorKind,
        exports::engine::plugin::operator_chain::{OperatorContext, SegmentOutput, TimeDomain},
    },
    collector::Collector,
    current,
    exports::declare,
    graph::SharedGraph,
    host::{self, Call},
    key::ByValue,
    operator::Batch,
    record::Record,
    segment::Segment,
};

/// Cases for each kind of windows.
const CASES: u64 = 10_000;
/// Cases for each way to evaluate them by a trigger, an evictor or a function.
const TRIGGERED_CASES: u64 = 10_000;

/// Key and number.
type Sale = (u8, i64);

/// A record with its timestamp.
type Timed<T> = (i64, T);

/// Key, start and end of the window, and the numbers in it.
type Gathered = (u8, i64, i64, Vec<i64>);

/// Gathers numbers in the order of their size.
struct Gather;

impl AggregateFunction<Sale> for Gather {
    type Accumulator = Vec<i64>;
    type Output = Vec<i64>;

    fn create_accumulator(&self) -> Vec<i64> {
        Vec::new()
    }

    fn add(&self, record: &Sale, accumulator: &mut Vec<i64>) {
        accumulator.push(record.1);
    }

    fn get_result(&self, accumulator: &Vec<i64>) -> Vec<i64> {
        let mut sorted = accumulator.clone();
        sorted.sort_unstable();
        sorted
    }

    fn merge(&self, accumulator: &mut Vec<i64>, other: Vec<i64>) {
        accumulator.extend(other);
    }
}

/// What a call emitted.
#[derive(Debug, Default, PartialEq)]
struct Emitted {
    results: Vec<Timed<Gathered>>,
    late: Vec<Timed<Sale>>,
}

/// The operator of windows, with the engine's side played by the test.
struct Running {
    graph: SharedGraph,
    context: OperatorContext,
    segment: Segment,
    takes_state: bool,
}

impl Running {
    fn new(cache_bytes: u64, results: impl FnOnce(DataStream<Sale>) -> DataStream<Gathered>) -> Self {
        current::reset();
        host::reset();
        let declared = declare(
            |env, _| {
                let results = results(env.from_source(FileSource::json_lines::<Sale>("input")));
                results.sink_to(DiscardSink);
                results.get_side_output(&OutputTag::<Sale>::new("late")).sink_to(DiscardSink);
                Ok(())
            },
            Vec::new(),
        );
        let (graph, declaration) = declared.map_err(|error| error.to_string()).expect("a sound program");
        let node = declaration
            .nodes
            .iter()
            .find(|node| matches!(&node.operator, OperatorKind::Guest(kind) if kind.starts_with("Window")));
        let node = node.expect("a window");
        host::declare_instance(0, node.states.iter().map(|state| state.kind).collect());
        host::enter_instance(0);
        let edges = declaration.edges.iter().filter(|edge| edge.source == node.id);
        let outputs = edges.map(|edge| SegmentOutput {
            node: node.id,
            side_output: edge.side_output.clone(),
            selector: edge.selector,
            channels: 1,
        });
        let context = OperatorContext {
            job_name: String::new(),
            task_name: String::new(),
            subtask_index: 0,
            parallelism: 1,
            max_parallelism: 128,
            attempt: 0,
            nodes: vec![node.id],
            outputs: outputs.collect(),
            restored: false,
            state_cache_bytes: cache_bytes,
            state_value_bytes_max: 16 << 20,
        };
        let segment = Segment::open(&graph.borrow(), &context).map_err(|error| error.to_string()).expect("opens");
        Self { graph, context, segment, takes_state: node.states[0].taken_at_end }
    }

    /// As after a failure: another instance, whose state is what the host has. It goes on at the
    /// watermark, if there is one.
    fn restore(&mut self, watermark: Option<i64>) {
        self.segment.snapshot().expect("flushes");
        self.context.restored = true;
        let segment = Segment::open(&self.graph.borrow(), &self.context);
        self.segment = segment.map_err(|error| error.to_string()).expect("opens");
        if let Some(watermark) = watermark {
            self.segment.process_watermark(watermark).expect("takes the watermark");
        }
        host::take_calls();
    }

    fn push(&mut self, sales: &[Timed<Sale>]) -> Emitted {
        let mut rows = Vec::new();
        for (timestamp, sale) in sales {
            row::append_with(&mut rows, key_hash(&[sale.0]), *timestamp, |payload| Sale::encode(sale, payload));
        }
        self.segment.process_batch(0, Batch::Rows(&rows)).expect("takes the rows");
        self.emitted()
    }

    fn process_watermark(&mut self, watermark: i64, batch_max: usize) -> Emitted {
        self.fire(TimeDomain::EventTime, (watermark, watermark), batch_max);
        self.segment.process_watermark(watermark).expect("takes the watermark");
        self.emitted()
    }

    fn advance_clock(&mut self, now: i64, batch_max: usize) -> Emitted {
        host::set_processing_time(now);
        self.fire(TimeDomain::ProcessingTime, (now, now - 1), batch_max);
        self.emitted()
    }

    fn fire(&mut self, domain: TimeDomain, (time, due): (i64, i64), batch_max: usize) {
        while let Some((_, timers)) = host::take_due_timers(0, domain, due, batch_max) {
            self.segment.fire_timers(domain, time, &timers).expect("fires");
        }
        if (domain, time) == (TimeDomain::EventTime, i64::MAX) && self.takes_state {
            while self.segment.take_state(&[]).expect("takes") {}
            loop {
                let entries = host::take_entries(0, 0, batch_max);
                if entries.is_empty() {
                    break;
                }
                self.segment.take_state(&entries).expect("takes");
            }
        }
    }

    fn emitted(&self) -> Emitted {
        let mut emitted = Emitted::default();
        for call in host::take_calls() {
            match call {
                Call::Emit { output, rows, .. } => {
                    for row in Rows::new(&rows) {
                        let row = row.expect("whole rows");
                        if self.context.outputs[output as usize].side_output.is_some() {
                            let sale = Sale::decode(row.payload, |sale| sale).expect("a sale");
                            emitted.late.push((row.timestamp, sale));
                        } else {
                            let result = Gathered::decode(row.payload, |result| result).expect("a result");
                            emitted.results.push((row.timestamp, result));
                        }
                    }
                }
                Call::EmitWatermark { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        emitted
    }

    /// Bytes of keys with timers and number of states that the host has, after a flush.
    fn left(&mut self) -> (usize, usize) {
        self.segment.snapshot().expect("flushes");
        (host::kept_timers(0).len(), (0..3).map(|state| host::kept(0, state).len()).sum())
    }
}

/// Kinds of windows, in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Aligned { size: i64, slide: i64, offset: i64 },
    Session { gap: i64 },
}

/// When windows fire, and what they let go. By default at their end, and nothing.
#[derive(Clone, Copy, Debug, Default)]
struct Rule {
    /// Fires for each so many records instead.
    count: Option<u64>,
    /// Fires at each multiple of this too.
    interval: Option<i64>,
    purges: bool,
    evicts: Option<(Evicts, When)>,
}

#[derive(Clone, Copy, Debug)]
enum Evicts {
    /// All but the last ones.
    Count(usize),
    /// What is this much older than the newest.
    Time(i64),
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum When {
    Before,
    After,
}

/// A window of one key.
#[derive(Default)]
struct Content {
    /// Timestamp and number of each record, as they came.
    elements: Vec<(i64, i64)>,
    /// Records since it fired, with [`Rule::count`].
    count: u64,
    /// When it fires next, with [`Rule::interval`].
    next: Option<i64>,
}

impl Content {
    fn evict(&mut self, rule: Rule, now: When) {
        match rule.evicts {
            Some((Evicts::Count(most), when)) if when == now => {
                while most < self.elements.len() {
                    self.elements.remove(0);
                }
            }
            Some((Evicts::Time(age), when)) if when == now => {
                let newest = self.elements.iter().map(|(timestamp, _)| *timestamp).max();
                self.elements.retain(|(timestamp, _)| newest.is_none_or(|newest| newest - timestamp < age));
            }
            _ => {}
        }
    }
}

/// Keeps the records of each key and window, and the timers of each window, one by one.
struct Model {
    kind: Kind,
    rule: Rule,
    domain: TimeDomain,
    allowed_lateness: i64,
    /// The watermark or the clock.
    time: i64,
    windows: BTreeMap<(u8, TimeWindow), Content>,
    timers: BTreeSet<(i64, u8, TimeWindow)>,
    /// The timers that gave the results of the last rise of time, one for each.
    fired: Vec<i64>,
}

impl Model {
    fn cleanup_time(&self, window: TimeWindow) -> i64 {
        match self.domain {
            TimeDomain::EventTime => window.max_timestamp().saturating_add(self.allowed_lateness),
            TimeDomain::ProcessingTime => window.max_timestamp(),
        }
    }

    fn is_late(&self, window: TimeWindow) -> bool {
        self.domain == TimeDomain::EventTime && self.cleanup_time(window) <= self.time
    }

    /// Evaluates a window, if there is anything in it.
    fn fire(&mut self, key: u8, window: TimeWindow, emitted: &mut Emitted) {
        let content = self.windows.get_mut(&(key, window)).expect("a window that is kept");
        if content.elements.is_empty() {
            return;
        }
        content.evict(self.rule, When::Before);
        let mut numbers: Vec<_> = content.elements.iter().map(|(_, number)| *number).collect();
        numbers.sort_unstable();
        emitted.results.push((window.max_timestamp(), (key, window.start, window.end, numbers)));
        content.evict(self.rule, When::After);
        if self.rule.purges {
            content.elements.clear();
        }
    }

    fn push(&mut self, (timestamp, (key, number)): Timed<Sale>, emitted: &mut Emitted) {
        let time = if self.domain == TimeDomain::EventTime { timestamp } else { self.time };
        let windows: Vec<_> = match self.kind {
            Kind::Aligned { size, slide, offset } => (time - size + 1..=time)
                .rev()
                .filter(|start| (start - offset).rem_euclid(slide) == 0)
                .map(|start| TimeWindow::new(start, start + size))
                .collect(),
            Kind::Session { gap } => vec![TimeWindow::new(time, time + gap)],
        };
        let mut is_skipped = true;
        for mut window in windows {
            let mut content = Content::default();
            if let Kind::Session { .. } = self.kind {
                let touching: Vec<_> =
                    self.windows.keys().copied().filter(|(of, other)| *of == key && window.touches(other)).collect();
                window = touching.iter().fold(window, |whole, (_, other)| whole.cover(other));
                // A session that stays as it is keeps its timers.
                for (key, other) in touching.into_iter().filter(|(_, other)| *other != window) {
                    let merged = self.windows.remove(&(key, other)).unwrap_or_default();
                    content.elements.extend(merged.elements);
                    content.count += merged.count;
                    content.next = content.next.into_iter().chain(merged.next).min();
                    self.timers.retain(|(_, of, timer)| (*of, *timer) != (key, other));
                }
                self.timers.extend(content.next.map(|next| (next, key, window)));
            }
            if self.is_late(window) {
                assert!(content.elements.is_empty(), "a session that is kept is not late");
                continue;
            }
            is_skipped = false;
            let Rule { count, interval, .. } = self.rule;
            let kept = self.windows.entry((key, window)).or_insert(content);
            kept.elements.push((timestamp, number));
            if let Some(count) = count {
                kept.count += 1;
                if count <= kept.count {
                    kept.count = 0;
                    self.fire(key, window, emitted);
                }
            } else if self.domain == TimeDomain::EventTime && window.max_timestamp() <= self.time {
                self.fire(key, window, emitted);
            } else {
                self.timers.insert((window.max_timestamp(), key, window));
                if let Some(interval) = interval
                    && kept.next.is_none()
                {
                    // The interval that begins at 0 reaches to both sides, as in Flink.
                    let next = (time / interval * interval + interval).min(window.max_timestamp());
                    kept.next = Some(next);
                    self.timers.insert((next, key, window));
                }
            }
            if self.cleanup_time(window) != i64::MAX {
                self.timers.insert((self.cleanup_time(window), key, window));
            }
        }
        let is_late =
            self.domain == TimeDomain::EventTime && timestamp.saturating_add(self.allowed_lateness) <= self.time;
        if is_skipped && is_late {
            emitted.late.push((timestamp, (key, number)));
        }
    }

    /// Lets event time or the clock rise.
    fn advance(&mut self, time: i64) -> Emitted {
        self.time = time;
        self.fired.clear();
        let mut emitted = Emitted::default();
        let due = if self.domain == TimeDomain::EventTime { time } else { time - 1 };
        while let Some((timestamp, key, window)) = self.timers.first().copied().filter(|timer| timer.0 <= due) {
            self.timers.pop_first();
            let before = emitted.results.len();
            let kept = self.windows.get_mut(&(key, window)).expect("timers go with their window");
            if self.rule.count.is_none() && timestamp == window.max_timestamp() {
                self.fire(key, window, &mut emitted);
            } else if let Some(interval) = self.rule.interval
                && kept.next == Some(timestamp)
            {
                let next = (timestamp + interval).min(window.max_timestamp());
                kept.next = Some(next);
                self.timers.insert((next, key, window));
                self.fire(key, window, &mut emitted);
            }
            self.fired.extend(emitted.results[before..].iter().map(|_| timestamp));
            if timestamp == self.cleanup_time(window) {
                self.windows.remove(&(key, window));
                self.timers.retain(|(_, of, timer)| (*of, *timer) != (key, window));
            }
        }
        emitted
    }

    /// True if results came in the order of the timers that gave them; `expected` are those of the
    /// last rise of time, `got` the same in any order.
    fn is_in_order(&self, got: &[Timed<Gathered>], expected: &[Timed<Gathered>]) -> bool {
        let mut left: Vec<_> = expected.iter().zip(&self.fired).collect();
        let times = got.iter().map(|result| {
            let place = left.iter().position(|(other, _)| *other == result)?;
            Some(*left.remove(place).1)
        });
        times.is_sorted()
    }
}

type Keyed = WindowedStream<Sale, u8, ByValue<fn(&Sale) -> u8>>;

fn key_of(sale: &Sale) -> u8 {
    sale.0
}

fn millis(time: i64) -> Duration {
    Duration::from_millis(time.unsigned_abs())
}

/// The windows of a case, in the words of programs.
fn windowed(sales: &DataStream<Sale>, kind: Kind, domain: TimeDomain) -> Keyed {
    let keyed = sales.key_by::<u8, fn(&Sale) -> u8>(key_of);
    macro_rules! aligned {
        ($windows:expr, $offset:expr) => {
            match $offset {
                offset if offset < 0 => keyed.window($windows.with_negative_offset(millis(offset))),
                offset => keyed.window($windows.with_offset(millis(offset))),
            }
        };
    }
    let is_event_time = domain == TimeDomain::EventTime;
    match kind {
        Kind::Aligned { size, slide, offset } if size == slide && is_event_time => {
            aligned!(TumblingEventTimeWindows::of(millis(size)), offset)
        }
        Kind::Aligned { size, slide, offset } if size == slide => {
            aligned!(TumblingProcessingTimeWindows::of(millis(size)), offset)
        }
        Kind::Aligned { size, slide, offset } if is_event_time => {
            aligned!(SlidingEventTimeWindows::of(millis(size), millis(slide)), offset)
        }
        Kind::Aligned { size, slide, offset } => {
            aligned!(SlidingProcessingTimeWindows::of(millis(size), millis(slide)), offset)
        }
        Kind::Session { gap } if is_event_time => keyed.window(EventTimeSessionWindows::with_gap(millis(gap))),
        Kind::Session { gap } => keyed.window(ProcessingTimeSessionWindows::with_gap(millis(gap))),
    }
}

fn gathered(key: &u8, window: TimeWindow, numbers: Vec<i64>, out: &mut Collector<Gathered>) {
    out.collect((*key, window.start, window.end, numbers));
}

/// Runs random cases of one kind of windows that fire at their end.
fn check(
    cases: u64,
    kind: impl Fn(&mut Random) -> Kind,
    domain: TimeDomain,
    timers_by_key: Option<usize>,
    results: impl Fn(Keyed) -> DataStream<Gathered>,
) {
    check_rule(cases, kind, domain, timers_by_key, |_| Rule::default(), |windowed, _| results(windowed));
}

/// Runs random cases of one kind of windows that fire by rules.
fn check_rule(
    cases: u64,
    kind: impl Fn(&mut Random) -> Kind,
    domain: TimeDomain,
    timers_by_key: Option<usize>,
    rule: impl Fn(&mut Random) -> Rule,
    results: impl Fn(Keyed, Rule) -> DataStream<Gathered>,
) {
    for seed in 0..cases {
        let random = &mut Random(seed);
        let kind = kind(random);
        let rule = rule(random);
        let allowed_lateness = [0, 0, random.range(1, 60), i64::MAX][random.range(0, 3) as usize];
        let cache_bytes = [0, 300, 1 << 20][random.range(0, 2) as usize];
        let keys = random.range(1, 5);
        let mut running = Running::new(cache_bytes, |sales| {
            let windowed = windowed(&sales, kind, domain).allowed_lateness(millis(allowed_lateness));
            results(windowed.side_output_late_data(&OutputTag::new("late")), rule)
        });
        let time = if domain == TimeDomain::EventTime { i64::MIN } else { 0 };
        let mut model = Model {
            kind,
            rule,
            domain,
            allowed_lateness,
            time,
            windows: BTreeMap::new(),
            timers: BTreeSet::new(),
            fired: Vec::new(),
        };
        let mut now = random.range(-100, 100);
        if domain == TimeDomain::ProcessingTime {
            model.time = now;
            running.advance_clock(now, 1);
        }
        for step in 0..random.range(1, 25) {
            let case = || format!("seed {seed}, step {step}, {kind:?}, {rule:?}, lateness {allowed_lateness}");
            let batch_max = random.range(1, 8) as usize;
            let (mut got, mut expected) = if random.range(0, 1) == 0 {
                let spread = random.range(0, 70);
                let sales: Vec<_> = (0..random.range(0, 8))
                    .map(|_| {
                        let key = random.range(0, keys - 1) as u8;
                        (now + random.range(-spread, spread), (key, random.range(0, 999)))
                    })
                    .collect();
                let mut expected = Emitted::default();
                sales.iter().for_each(|sale| model.push(*sale, &mut expected));
                (running.push(&sales), expected)
            } else {
                now += random.range(0, 40);
                let got = match domain {
                    TimeDomain::EventTime => running.process_watermark(now, batch_max),
                    TimeDomain::ProcessingTime => running.advance_clock(now, batch_max),
                };
                let expected = model.advance(now);
                let is_in_order = model.is_in_order(&got.results, &expected.results);
                assert!(is_in_order, "{}: {got:?} instead of {expected:?}", case());
                (got, expected)
            };
            got.results.sort();
            expected.results.sort();
            assert_eq!(got, expected, "{}", case());
            if random.range(0, 9) == 0 {
                running.restore((domain == TimeDomain::EventTime).then_some(model.time));
            }
            if let Some(most) = timers_by_key {
                running.segment.snapshot().expect("flushes");
                let mut timers: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
                host::kept_timers(0).into_iter().for_each(|timer| *timers.entry(timer.key).or_default() += 1);
                assert!(timers.values().all(|count| *count <= most), "{}: {timers:?}", case());
            }
        }
        let end = if domain == TimeDomain::EventTime { i64::MAX } else { now + 1000 };
        let mut got = match domain {
            TimeDomain::EventTime => running.process_watermark(end, 3),
            TimeDomain::ProcessingTime => running.advance_clock(end, 3),
        };
        let mut expected = model.advance(end);
        assert!(model.is_in_order(&got.results, &expected.results), "seed {seed}, end, {kind:?}, {rule:?}");
        got.results.sort();
        expected.results.sort();
        assert_eq!(got, expected, "seed {seed}, end, {kind:?}");
        if allowed_lateness != i64::MAX || domain == TimeDomain::ProcessingTime {
            assert_eq!(running.left(), (0, 0), "seed {seed}, {kind:?}");
        }
    }
}

fn aggregated(windowed: Keyed) -> DataStream<Gathered> {
    windowed.aggregate_then(Gather, gathered)
}

fn tumbling(random: &mut Random) -> Kind {
    let size = random.range(1, 40);
    Kind::Aligned { size, slide: size, offset: random.range(1 - size, size - 1) }
}

fn sliding(random: &mut Random) -> Kind {
    let (size, slide) = (random.range(1, 40), random.range(1, 40));
    Kind::Aligned { size, slide, offset: random.range(1 - slide, slide - 1) }
}

fn overlapping(random: &mut Random) -> Kind {
    let slide = random.range(1, 10);
    Kind::Aligned { size: random.range(slide + 1, 60), slide, offset: random.range(1 - slide, slide - 1) }
}

fn session(random: &mut Random) -> Kind {
    Kind::Session { gap: random.range(1, 30) }
}

#[test]
fn tumbling_windows_of_event_time() {
    check(CASES, tumbling, TimeDomain::EventTime, None, aggregated);
}

#[test]
fn sliding_windows_of_event_time() {
    check(CASES, sliding, TimeDomain::EventTime, None, aggregated);
}

#[test]
fn overlapping_windows_of_event_time() {
    check(CASES, overlapping, TimeDomain::EventTime, Some(1), aggregated);
}

#[test]
fn sessions_of_event_time() {
    check(CASES, session, TimeDomain::EventTime, Some(1), aggregated);
}

#[test]
fn tumbling_windows_of_processing_time() {
    check(CASES, tumbling, TimeDomain::ProcessingTime, None, aggregated);
}

#[test]
fn overlapping_windows_of_processing_time() {
    check(CASES, overlapping, TimeDomain::ProcessingTime, Some(1), aggregated);
}

#[test]
fn sessions_of_processing_time() {
    check(CASES, session, TimeDomain::ProcessingTime, Some(1), aggregated);
}

/// As [`gathered`], of all records.
struct GatherAll;

impl ProcessWindowFunction<u8, Sale> for GatherAll {
    type Output = Gathered;

    fn process(
        &self,
        key: &u8,
        elements: &WindowElements<Sale>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<Gathered>,
    ) -> crate::Result<()> {
        let mut numbers: Vec<_> = elements.iter().map(|(_, number)| number).collect();
        numbers.sort_unstable();
        gathered(key, ctx.window(), numbers, out);
        Ok(())
    }
}

impl ProcessWindowFunction<u8, Vec<i64>> for GatherAll {
    type Output = Gathered;

    fn process(
        &self,
        key: &u8,
        elements: &WindowElements<Vec<i64>>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<Gathered>,
    ) -> crate::Result<()> {
        elements.iter().for_each(|numbers| gathered(key, ctx.window(), numbers, out));
        Ok(())
    }
}

#[test]
fn windows_with_triggers_are_those_without() {
    let event_time = |windowed: Keyed| windowed.trigger(EventTimeTrigger::create()).aggregate_then(Gather, gathered);
    check(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, event_time);
    check(TRIGGERED_CASES, session, TimeDomain::EventTime, None, event_time);
    let processing_time =
        |windowed: Keyed| windowed.trigger(ProcessingTimeTrigger::create()).aggregate_then(Gather, gathered);
    check(TRIGGERED_CASES, sliding, TimeDomain::ProcessingTime, None, processing_time);
    check(TRIGGERED_CASES, session, TimeDomain::ProcessingTime, None, processing_time);
}

#[test]
fn functions_get_what_is_in_each_window() {
    let all = |windowed: Keyed| windowed.process(|_| GatherAll);
    check(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, all);
    check(TRIGGERED_CASES, session, TimeDomain::EventTime, None, all);
    check(TRIGGERED_CASES, session, TimeDomain::ProcessingTime, None, all);
    let aggregated = |windowed: Keyed| windowed.aggregate_with(Gather, |_| GatherAll);
    check(TRIGGERED_CASES, session, TimeDomain::EventTime, None, aggregated);
    check(TRIGGERED_CASES, tumbling, TimeDomain::EventTime, None, aggregated);
}

#[test]
fn evictors_that_evict_nothing_change_nothing() {
    let all = |windowed: Keyed| windowed.evictor(CountEvictor::of(usize::MAX)).aggregate_then(Gather, gathered);
    check(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, all);
    check(TRIGGERED_CASES, session, TimeDomain::EventTime, None, all);
}

/// Windows that fire and let go by a rule, in the words of programs.
fn ruled(windowed: Keyed, rule: Rule) -> DataStream<Gathered> {
    macro_rules! evicted {
        ($evictor:expr, $when:expr, $windowed:expr) => {{
            let evictor = $evictor;
            let evictor = if $when == When::After { evictor.after() } else { evictor };
            $windowed.evictor(evictor).aggregate_then(Gather, gathered)
        }};
    }
    macro_rules! results {
        ($windowed:expr) => {
            match rule.evicts {
                None => $windowed.aggregate_then(Gather, gathered),
                Some((Evicts::Count(most), when)) => evicted!(CountEvictor::of(most), when, $windowed),
                Some((Evicts::Time(age), when)) => evicted!(TimeEvictor::of(millis(age)), when, $windowed),
            }
        };
    }
    match (rule.count, rule.interval, rule.purges) {
        (Some(count), _, false) => results!(windowed.trigger(CountTrigger::of(count))),
        (Some(count), _, true) => results!(windowed.trigger(PurgingTrigger::of(CountTrigger::of(count)))),
        (None, Some(interval), false) => results!(windowed.trigger(ContinuousEventTimeTrigger::of(millis(interval)))),
        (None, Some(interval), true) => {
            results!(windowed.trigger(PurgingTrigger::of(ContinuousEventTimeTrigger::of(millis(interval)))))
        }
        (None, None, true) => results!(windowed.trigger(PurgingTrigger::of(EventTimeTrigger::create()))),
        (None, None, false) => results!(windowed),
    }
}

fn counting(random: &mut Random) -> Rule {
    Rule { count: Some(random.range(1, 5).unsigned_abs()), purges: random.range(0, 1) == 0, ..Rule::default() }
}

#[test]
fn windows_fire_for_each_so_many_records() {
    check_rule(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, counting, ruled);
    check_rule(TRIGGERED_CASES, session, TimeDomain::EventTime, None, counting, ruled);
}

#[test]
fn windows_that_fired_are_purged() {
    let purging = |_: &mut Random| Rule { purges: true, ..Rule::default() };
    check_rule(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, purging, ruled);
    check_rule(TRIGGERED_CASES, session, TimeDomain::EventTime, None, purging, ruled);
}

#[test]
fn windows_fire_at_each_interval() {
    let continuous = |random: &mut Random| {
        let (interval, purges) = (Some(random.range(1, 30)), random.range(0, 1) == 0);
        Rule { interval, purges, ..Rule::default() }
    };
    for kind in [sliding, tumbling, session] {
        check_rule(TRIGGERED_CASES, kind, TimeDomain::EventTime, None, continuous, ruled);
        check_rule(TRIGGERED_CASES, kind, TimeDomain::ProcessingTime, None, continuous, |windowed, rule| {
            let trigger = ContinuousProcessingTimeTrigger::of(millis(rule.interval.unwrap_or(1)));
            match rule.purges {
                false => windowed.trigger(trigger).aggregate_then(Gather, gathered),
                true => windowed.trigger(PurgingTrigger::of(trigger)).aggregate_then(Gather, gathered),
            }
        });
    }
}

#[test]
fn windows_let_go_what_their_evictor_says() {
    let evicting = |random: &mut Random| {
        let rule = if random.range(0, 1) == 0 { counting(random) } else { Rule::default() };
        let evicts = match random.range(0, 1) {
            0 => Evicts::Count(random.range(0, 5) as usize),
            _ => Evicts::Time(random.range(0, 30)),
        };
        let when = if random.range(0, 1) == 0 { When::Before } else { When::After };
        Rule { evicts: Some((evicts, when)), ..rule }
    };
    check_rule(TRIGGERED_CASES, sliding, TimeDomain::EventTime, None, evicting, ruled);
    check_rule(TRIGGERED_CASES, session, TimeDomain::EventTime, None, evicting, ruled);
}

#[test]
fn late_records_fare_as_in_flink() {
    for (inputs, (start, end), (max_timestamp, _), _, _, action) in LATENESS {
        let (size, timestamp, lateness, watermark) = *inputs;
        let kind = Kind::Aligned { size, slide: size, offset: 0 };
        let results = |sales: DataStream<Sale>| {
            let windowed = windowed(&sales, kind, TimeDomain::EventTime).allowed_lateness(millis(lateness));
            aggregated(windowed.side_output_late_data(&OutputTag::new("late")))
        };
        let result = Emitted { results: vec![(*max_timestamp, (1, *start, *end, vec![7]))], late: Vec::new() };
        let mut running = Running::new(1 << 20, results);
        assert_eq!(running.process_watermark(watermark, 1), Emitted::default());
        let got = running.push(&[(timestamp, (1, 7))]);
        match *action {
            "add" => {
                assert_eq!(got, Emitted::default(), "{inputs:?}");
                assert_eq!(running.process_watermark(max_timestamp - 1, 1), Emitted::default(), "{inputs:?}");
                assert_eq!(running.process_watermark(*max_timestamp, 1), result, "{inputs:?}");
            }
            "add_and_fire_now" => assert_eq!(got, result, "{inputs:?}"),
            "drop_or_side_output" => {
                let late = Emitted { results: Vec::new(), late: vec![(timestamp, (1, 7))] };
                assert_eq!(got, late, "{inputs:?}");
                assert_eq!(running.left(), (0, 0), "{inputs:?}");
            }
            other => panic!("{other}"),
        }
    }
}
