//! Operators of two inputs, windows by user code and state that ends, for tests of whole jobs.
//!
//! What each writes follows from the records alone, in whatever order they come.

use std::time::Duration;

use engine_sdk::prelude::*;

/// A number with its key and event time in milliseconds.
#[derive(Record, Clone)]
struct Event {
    key: u32,
    time: i64,
    number: i64,
}

/// Writes lines of numbers, each made by one kind of operator.
///
///   --operator KIND  interval-join: pairs with at most 50 ms between them: KEY,TIME,TIME
///                    co-process: sums of the left up to each time of the right: KEY,TIME,SUM
///                    broadcast: numbers of the left below all of the right: KEY,TIME,NUMBER
///                    window: windows of 100 ms with at least 3 records, their two greatest
///                            numbers: KEY,START,NUMBER,NUMBER
///                    time-to-live: what is left of a value of each of 100 keys after 40 ms:
///                                  KEY,kept or KEY,ended
///                    source: lines SUBTASK,NUMBER of a source of the plugin; subtask 0 has ten numbers,
///                            each other 200, one in 10 ms
///   --left PATH      files of lines KEY,TIME,NUMBER, at most 1 s behind a later one
///   --right PATH     the same
///   --lives MS       how long state lives, for time-to-live; 1000 if not given
///   --output DIR     a new or empty directory
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let output = FileSink::text_lines(args.require("output")?);
    let events = |side: &str| -> Result<DataStream<Event>> {
        let strategy = WatermarkStrategy::for_bounded_out_of_orderness(Duration::from_secs(1));
        let strategy = strategy.with_timestamp_assigner(|event: &Event| event.time);
        let source = FileSource::csv(args.require(side)?).header(false);
        Ok(env.from_source_with_watermarks(source, strategy))
    };
    let operator: String = args.require("operator")?;
    match operator.as_str() {
        "interval-join" => {
            let (left, right) = (events("left")?, events("right")?);
            let pairs = left.key_by(|event| event.key).interval_join(&right.key_by(|event| event.key));
            pairs
                .between(-50, 50)
                .process(|left, right, _, out: &mut Collector<str>| out.csv((left.key, left.time, right.time)))
                .sink_to(output);
        }
        "co-process" => {
            let (left, right) = (events("left")?, events("right")?);
            left.connect(&right)
                .key_by(|event| event.key, |event| event.key)
                .process(|states| SumUpTo { left: states.map("left") })
                .sink_to(output);
        }
        "broadcast" => {
            let (left, right) = (events("left")?, events("right")?);
            left.key_by(|event| event.key)
                .connect_broadcast(&right)
                .process(|states| BelowAll { limits: states.broadcast("limits"), waiting: states.list("waiting") })
                .sink_to(output);
        }
        "window" => {
            events("left")?
                .key_by(|event| event.key)
                .window(TumblingEventTimeWindows::of(Duration::from_millis(100)))
                .trigger(AtLeast(3))
                .evictor(Greatest(2))
                .process(|_| Numbers)
                .sink_to(output);
        }
        "time-to-live" => {
            let lives = Duration::from_millis(args.get_or("lives", 1000)?);
            env.from_source(SequenceSource::new(0, 99).rate(200))
                .key_by(|number| *number)
                .process(move |states| LookLater {
                    value: states.value("value").enable_time_to_live(StateTtlConfig::new(lives)),
                })
                .sink_to(output);
        }
        "source" => {
            env.from_stateful_source("Numbers", |states| Unlike { subtask: 0, next: states.operator_list("next") })
                .uid("numbers")
                .rebalance()
                .sink_to(output)
                .uid("lines");
        }
        _ => return Err(engine_sdk::Error::new(format!("--operator {operator}: there is no such kind"))),
    }
    Ok(())
}

/// Sums the left numbers up to the time of each right record, once event time has reached it.
struct SumUpTo {
    /// Numbers by their time.
    left: MapState<i64, i64>,
}

impl KeyedCoProcessFunction<u32, Event, Event> for SumUpTo {
    type Output = str;

    fn process_element1(&self, left: Event, _: &mut KeyedContext<'_, u32>, _: &mut Collector<str>) -> Result<()> {
        self.left.modify(&left.time, |sum| *sum = Some(sum.unwrap_or(0) + left.number));
        Ok(())
    }

    fn process_element2(
        &self,
        right: Event,
        context: &mut KeyedContext<'_, u32>,
        _: &mut Collector<str>,
    ) -> Result<()> {
        context.timer_service().register_event_time_timer(right.time);
        Ok(())
    }

    fn on_timer(&self, time: i64, context: &mut OnTimerContext<'_, u32>, out: &mut Collector<str>) -> Result<()> {
        let mut sum = 0;
        self.left.for_each(|at, number| sum += if *at <= time { *number } else { 0 });
        out.csv((context.current_key(), time, sum));
        Ok(())
    }
}

/// Hands on the numbers below all limits when both inputs have ended.
struct BelowAll {
    /// Limits by their number: a set.
    limits: BroadcastState<i64, bool>,
    waiting: ListState<Event>,
}

impl KeyedBroadcastProcessFunction<u32, Event, Event> for BelowAll {
    type Output = str;

    fn process_element(&self, event: Event, context: &mut KeyedContext<'_, u32>, _: &mut Collector<str>) -> Result<()> {
        self.waiting.add(&event);
        context.timer_service().register_event_time_timer(i64::MAX);
        Ok(())
    }

    fn process_broadcast_element(
        &self,
        limit: Event,
        context: &mut BroadcastContext<'_>,
        _: &mut Collector<str>,
    ) -> Result<()> {
        context.broadcast_state(&self.limits).put(&limit.number, true);
        Ok(())
    }

    fn on_timer(&self, _: i64, _: &mut OnTimerContext<'_, u32>, out: &mut Collector<str>) -> Result<()> {
        let mut least = i64::MAX;
        self.limits.for_each(|limit, _| least = least.min(*limit));
        self.waiting.for_each(|event| {
            if event.number < least {
                out.csv((event.key, event.time, event.number));
            }
        });
        self.waiting.clear();
        Ok(())
    }
}

/// Fires at the end of a window that has so many records; lets others go.
struct AtLeast(u64);

impl Trigger<Event> for AtLeast {
    /// Records so far.
    type State = u64;

    fn on_element(&self, _: &Event, _: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, u64>) -> TriggerResult {
        *ctx.state() = Some(ctx.state().unwrap_or(0) + 1);
        ctx.register_event_time_timer(window.max_timestamp());
        TriggerResult::Continue
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, ctx: &mut TriggerContext<'_, u64>) -> TriggerResult {
        match *ctx.state() {
            Some(count) if self.0 <= count => TriggerResult::FireAndPurge,
            _ => TriggerResult::Purge,
        }
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, u64>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, u64>) {
        ctx.delete_event_time_timer(window.max_timestamp());
    }
}

/// Leaves a window so many of its greatest numbers.
struct Greatest(usize);

impl Evictor<Event> for Greatest {
    fn evict_before(&self, elements: &mut WindowElements<Event>, _: TimeWindow) {
        let mut numbers: Vec<_> = elements.iter().map(|event| event.number).collect();
        numbers.sort_unstable_by(|a, b| b.cmp(a));
        numbers.truncate(self.0);
        elements.retain(|event, _| match numbers.iter().position(|number| *number == event.number) {
            Some(place) => {
                numbers.swap_remove(place);
                true
            }
            None => false,
        });
    }
}

/// Writes the two numbers of a window, the greater one first.
struct Numbers;

impl ProcessWindowFunction<u32, Event> for Numbers {
    type Output = str;

    fn process(
        &self,
        key: &u32,
        elements: &WindowElements<Event>,
        context: &mut WindowContext<'_>,
        out: &mut Collector<str>,
    ) -> Result<()> {
        let mut numbers: Vec<_> = elements.iter().map(|event| event.number).collect();
        numbers.sort_unstable();
        if let [less, greater] = numbers[..] {
            out.csv((key, context.window().start, greater, less));
        }
        Ok(())
    }
}

/// Numbers from 0 on, of which the first subtask has few.
struct Unlike {
    subtask: u32,
    next: OperatorListState<u32>,
}

impl SourceFunction<str> for Unlike {
    fn open(&mut self, context: &RuntimeContext) -> Result<()> {
        self.subtask = context.subtask_index;
        Ok(())
    }

    fn poll(&mut self, out: &mut Collector<str>) -> Result<SourceStatus> {
        let next = self.next.get().first().copied().unwrap_or(0);
        let (end, status) = if self.subtask == 0 { (10, SourceStatus::More) } else { (200, SourceStatus::Idle) };
        if end <= next {
            return Ok(SourceStatus::End);
        }
        out.csv((self.subtask, next));
        self.next.update([next + 1]);
        Ok(status)
    }
}

/// Keeps a value, and looks 40 ms later whether it is still there.
struct LookLater {
    value: ValueState<i64>,
}

impl KeyedProcessFunction<i64, i64> for LookLater {
    type Output = str;

    fn process_element(&self, number: i64, context: &mut KeyedContext<'_, i64>, _: &mut Collector<str>) -> Result<()> {
        self.value.update(number);
        let timers = context.timer_service();
        timers.register_processing_time_timer(timers.current_processing_time() + 40);
        Ok(())
    }

    fn on_timer(&self, _: i64, context: &mut OnTimerContext<'_, i64>, out: &mut Collector<str>) -> Result<()> {
        let key = context.current_key();
        match self.value.value() {
            Some(value) if value == key => out.csv((key, "kept")),
            Some(_) => out.csv((key, "another")),
            None => out.csv((key, "ended")),
        }
        Ok(())
    }
}
