//! Chains of cheap maps, a keyed sum and windows, for the benches: what does the engine add to each?

use std::time::Duration;

use engine_sdk::prelude::*;

/// Maps over rows of eight numbers, or passes lines on.
///
///   --maps N    number of maps, default 1
///   --lines     passes lines of standard input through an exchange to standard output
///   --sum KEY   sums by a number or by text ("number", "text"), an update for each row
///   --no-sum KEY  emits the same without state
///   --keep BYTES  adds each number to a value of its key, of 8 or 64 bytes, and emits nothing
///   --timers    registers a timer of event time for each row, 10 s ahead, and emits the key when it fires
///   --window KIND  counts by a number in windows: "tumbling" (10 s), "session" (gap of 10 s), or
///               "sliding" by 1 s, of --size N seconds
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    if args.flag("lines") {
        env.from_source(StdinSource::text_lines()).rebalance().filter(|line| !line.is_empty()).print();
        return Ok(());
    }
    if let Some(kind) = args.get::<String>("window")? {
        let size = Duration::from_secs(args.get_or("size", 10)?);
        window(env, &kind, size);
        return Ok(());
    }
    if let Some(bytes) = args.get::<u32>("keep")? {
        keep(env, bytes);
        return Ok(());
    }
    if args.flag("timers") {
        let rows = env.from_source(FileSource::json_lines::<ByNumber>("numbers")).key_by(|row| row.key);
        rows.process(|_| Alarm).sink_to(DiscardSink);
        return Ok(());
    }
    for (name, has_state) in [("sum", true), ("no-sum", false)] {
        match args.get::<String>(name)?.as_deref() {
            Some("number") => number(env, has_state),
            Some(_) => text(env, has_state),
            None => continue,
        }
        return Ok(());
    }
    let mut rows = env.from_source(FileSource::json_lines::<Numbers>("numbers"));
    for _ in 0..args.get_or("maps", 1_u32)? {
        rows = rows.map(mix);
    }
    rows.sink_to(DiscardSink);
    Ok(())
}

fn number(env: &StreamExecutionEnvironment, has_state: bool) {
    let rows = env.from_source(FileSource::json_lines::<ByNumber>("numbers")).key_by(|row| row.key);
    match has_state {
        true => rows.sum(|row| row.value),
        false => rows.flat_map(|row, out: &mut Collector<Pair<u64, u64>>| out.collect((&row.key, row.value))),
    }
    .sink_to(DiscardSink);
}

fn keep(env: &StreamExecutionEnvironment, bytes: u32) {
    let rows = env.from_source(FileSource::json_lines::<ByNumber>("numbers")).key_by(|row| row.key);
    match bytes {
        8 => rows.process(|states| Keep8 { value: states.value("value") }),
        _ => rows.process(|states| Keep64 { value: states.value("value") }),
    }
    .sink_to(DiscardSink);
}

/// Keeps a value of 8 bytes for each key.
struct Keep8 {
    value: ValueState<u64>,
}

impl KeyedProcessFunction<u64, ByNumber> for Keep8 {
    type Output = u64;

    fn process_element(&self, row: ByNumber, _: &mut KeyedContext<'_, u64>, _: &mut Collector<u64>) -> Result<()> {
        self.value.modify(|value| *value.get_or_insert(0) += row.value);
        Ok(())
    }
}

/// Keeps a value of 64 bytes for each key.
struct Keep64 {
    value: ValueState<Numbers>,
}

impl KeyedProcessFunction<u64, ByNumber> for Keep64 {
    type Output = u64;

    fn process_element(&self, row: ByNumber, _: &mut KeyedContext<'_, u64>, _: &mut Collector<u64>) -> Result<()> {
        self.value.modify(|value| value.get_or_insert_default().h += row.value);
        Ok(())
    }
}

/// Sets a timer for each row.
struct Alarm;

impl KeyedProcessFunction<u64, ByNumber> for Alarm {
    type Output = u64;

    fn process_element(&self, _: ByNumber, ctx: &mut KeyedContext<'_, u64>, _: &mut Collector<u64>) -> Result<()> {
        let timestamp = ctx.timestamp().unwrap_or(0);
        ctx.timer_service().register_event_time_timer(timestamp + 10_000);
        Ok(())
    }

    fn on_timer(&self, _: i64, ctx: &mut OnTimerContext<'_, u64>, out: &mut Collector<u64>) -> Result<()> {
        out.collect(ctx.current_key());
        Ok(())
    }
}

fn window(env: &StreamExecutionEnvironment, kind: &str, size: Duration) {
    let rows = env.from_source(FileSource::json_lines::<ByNumber>("numbers")).key_by(|row| row.key);
    let counts = match kind {
        "tumbling" => rows.window(TumblingEventTimeWindows::of(size)).count(),
        "sliding" => rows.window(SlidingEventTimeWindows::of(size, Duration::from_secs(1))).count(),
        _ => rows.window(EventTimeSessionWindows::with_gap(size)).count(),
    };
    counts.sink_to(DiscardSink);
}

fn text(env: &StreamExecutionEnvironment, has_state: bool) {
    let rows = env.from_source(FileSource::json_lines::<ByText<'static>>("texts"));
    let rows = rows.key_by_with(|row, key: &mut KeyWriter<str>| key.set(row.key));
    match has_state {
        true => rows.sum(|row| row.value),
        false => rows.flat_map(|row, out: &mut Collector<Pair<str, u64>>| out.collect((row.key, row.value))),
    }
    .sink_to(DiscardSink);
}

/// A number to sum by a number.
#[derive(Record)]
struct ByNumber {
    key: u64,
    value: u64,
}

/// A number to sum by text.
#[derive(Record)]
struct ByText<'a> {
    key: &'a str,
    value: u64,
}

/// A record whose encoding has 64 bytes.
#[derive(Default, Record)]
struct Numbers {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
}

/// A little arithmetic; the assertion stands for the checks of real programs.
fn mix(mut row: Numbers) -> Numbers {
    assert!(row.b != u64::MAX, "b is too big");
    row.a = row.a.wrapping_mul(3) ^ row.h;
    row
}
