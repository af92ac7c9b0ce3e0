//! Windows as programs use them, run through the test harness.

use std::time::Duration;

use engine_sdk::{
    AggregateFunction, ContinuousEventTimeTrigger, CountEvictor, CountTrigger, DeltaTrigger, PurgingTrigger, Result,
    TestHarness, TimeEvictor, Trigger, TriggerContext, TriggerResult, prelude::*,
};

/// Key and number.
type Sale = (String, i64);

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn text(key: &String, window: TimeWindow, result: impl std::fmt::Debug) -> String {
    format!("{key} {}..{} {result:?}", window.start, window.end)
}

/// What a program is fed, step by step.
enum Step {
    Sale(&'static str, i64, i64),
    Watermark(i64),
    Clock(i64),
}
use Step::{Clock, Sale as At, Watermark};

fn run_steps(harness: &mut TestHarness, steps: &[Step]) {
    for step in steps {
        let done = match step {
            At(key, number, timestamp) => {
                harness.push_with_timestamp::<Sale>(&((*key).to_owned(), *number), *timestamp)
            }
            Watermark(watermark) => harness.process_watermark(*watermark),
            Clock(now) => harness.set_processing_time(*now),
        };
        done.expect("the step is taken");
    }
}

/// Lines that a program makes of the steps, in order; with a cache of any size.
#[track_caller]
fn check(program: fn(DataStream<Sale>) -> DataStream<String>, steps: &[Step], expected: &[&str]) {
    for cache_bytes in [0, 1 << 20] {
        let job = |env: &StreamExecutionEnvironment, _: &Args| {
            program(env.from_source(FileSource::json_lines::<Sale>("sales"))).sink_to(DiscardSink);
            Ok(())
        };
        let mut harness = TestHarness::with_cache_bytes(job, &[], cache_bytes).expect("a sound program");
        run_steps(&mut harness, steps);
        assert_eq!(harness.records::<String>().expect("text"), expected, "with {cache_bytes} bytes");
    }
}

#[track_caller]
fn refused(program: fn(DataStream<Sale>) -> DataStream<String>, message: &str) {
    let error = TestHarness::of_stream(program).map(|_| ()).expect_err("a mistake");
    assert_eq!(error.to_string(), message);
}

#[test]
fn results_come_with_their_window_and_its_last_millisecond() -> Result<()> {
    let mut harness = TestHarness::of_stream(|sales: DataStream<Sale>| {
        sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10))).sum_then(
            |sale| sale.1,
            |key, window, sum, out: &mut Collector<String>| out.collect(text(key, window, sum)),
        )
    })?;
    run_steps(&mut harness, &[At("a", 1, 0), At("b", 2, 9), At("a", 4, -1), At("a", 8, 5), Watermark(8)]);
    assert_eq!(harness.records_with_timestamps::<String>()?, [("a -10..0 4".to_owned(), Some(-1))]);
    run_steps(&mut harness, &[Watermark(9)]);
    let mut results = harness.records_with_timestamps::<String>()?.split_off(1);
    results.sort();
    assert_eq!(results, [("a 0..10 9".to_owned(), Some(9)), ("b 0..10 2".to_owned(), Some(9))]);
    Ok(())
}

#[test]
fn keyed_results_are_pairs_without_a_closure() -> Result<()> {
    let mut harness = TestHarness::of_stream(|sales: DataStream<Sale>| {
        let windowed = sales.key_by(|sale| sale.0.clone()).window(SlidingEventTimeWindows::of(ms(20), ms(10)));
        let counts = windowed.count().map(|(key, count)| format!("{key} {count}"));
        let least = windowed.min(|sale| sale.1).map(|(key, least)| format!("{key} at least {least}"));
        let most = windowed.max(|sale| sale.1).map(|(key, most)| format!("{key} at most {most}"));
        counts
            .union(&least)
            .union(&most)
            .union(&windowed.reduce(|a, b| (a.0, a.1 * b.1)).map(|sale| format!("{sale:?}")))
    })?;
    run_steps(&mut harness, &[At("a", 3, 5), At("a", 5, 15), Watermark(i64::MAX)]);
    let mut results = harness.records::<String>()?;
    results.sort();
    let expected = [
        "(\"a\", 15)",
        "(\"a\", 3)",
        "(\"a\", 5)",
        "a 1",
        "a 1",
        "a 2",
        "a at least 3",
        "a at least 3",
        "a at least 5",
        "a at most 3",
        "a at most 5",
        "a at most 5",
    ];
    assert_eq!(results, expected);
    Ok(())
}

#[test]
fn late_records_are_counted_or_go_to_a_side_output() -> Result<()> {
    let steps = [At("a", 1, 5), Watermark(9), At("a", 2, 9), At("a", 4, 10), At("b", 8, -3)];
    let mut harness = TestHarness::of_stream(|sales: DataStream<Sale>| {
        sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10))).sum(|sale| sale.1)
    })?;
    run_steps(&mut harness, &steps);
    assert_eq!(harness.records::<Sale>()?, [("a".to_owned(), 1)]);
    assert_eq!((harness.metric("numLateRecordsDropped"), harness.metric("numLateRecords")), (Some(2.0), Some(2.0)));

    let job = |env: &StreamExecutionEnvironment, _: &Args| {
        let late = OutputTag::new("late");
        let sales = env.from_source(FileSource::json_lines::<Sale>("sales"));
        let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
        let sums = windowed.side_output_late_data(&late).sum(|sale| sale.1);
        sums.get_side_output(&late).sink_to(DiscardSink).name("late");
        sums.sink_to(DiscardSink).name("sums");
        Ok(())
    };
    let mut harness = TestHarness::new(job, &[])?;
    run_steps(&mut harness, &steps);
    assert_eq!(harness.records_of::<Sale>("sums")?, [("a".to_owned(), 1)]);
    assert_eq!(harness.records_of::<Sale>("late")?, [("a".to_owned(), 2), ("b".to_owned(), 8)]);
    assert_eq!((harness.metric("numLateRecordsDropped"), harness.metric("numLateRecords")), (None, Some(2.0)));
    Ok(())
}

#[test]
fn late_records_within_the_allowed_lateness_make_their_window_fire_again() {
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
            windowed.allowed_lateness(ms(5)).sum_then(
                |sale| sale.1,
                |key, window, sum, out: &mut Collector<String>| out.collect(text(key, window, sum)),
            )
        },
        &[
            At("a", 1, 5),
            Watermark(9),
            At("a", 2, 9),
            At("a", 4, 3),
            At("b", 7, 3),
            Watermark(13),
            At("a", 8, 0),
            Watermark(14),
            At("a", 16, 0),
            Watermark(99),
        ],
        &["a 0..10 1", "a 0..10 3", "a 0..10 7", "b 0..10 7", "a 0..10 15"],
    );
}

#[test]
fn records_without_timestamp_are_refused_by_event_time_windows() -> Result<()> {
    let mut harness = TestHarness::of_stream(|sales: DataStream<Sale>| {
        sales.key_by(|sale| sale.0.clone()).window(EventTimeSessionWindows::with_gap(ms(10))).count()
    })?;
    let error = harness.push::<Sale>(&("a".to_owned(), 1)).expect_err("no timestamp");
    assert_eq!(
        error.to_string(),
        "\"Window(Count)\": the record has no timestamp, which event-time windows need: \
         use `assign_timestamps_and_watermarks` before `key_by`"
    );
    Ok(())
}

#[test]
fn windows_that_cannot_be_are_refused() {
    refused(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(Duration::ZERO));
            windowed.count().map(|_| String::new())
        },
        "TumblingEventTimeWindows::of: the size must be at least 1 ms",
    );
    refused(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(EventTimeSessionWindows::with_gap(ms(10)));
            let delta = DeltaTrigger::of(1.0, |_: &Sale, _: &Sale| 0.0);
            windowed.trigger(delta).count().map(|_| String::new())
        },
        "trigger: sessions merge, which this trigger does not support (see Trigger::can_merge)",
    );
    refused(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(EventTimeSessionWindows::with_gap(ms(10)));
            windowed.process(|states| Visits {
                firings: states.window.value("firings"),
                total: states.global.value("total"),
            })
        },
        "state \"firings\" of each window: sessions merge, so they have none; declare it in `WindowStates::global`",
    );
}

#[test]
fn a_window_that_never_fires_is_refused_whatever_is_done_with_it() {
    macro_rules! by_name {
        ($sales:expr) => {
            $sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create())
        };
    }
    let programs: [fn(DataStream<Sale>) -> DataStream<String>; 8] = [
        |sales| sales.window_all(GlobalWindows::create()).count().map(|_| String::new()),
        |sales| by_name!(sales).aggregate(Sums).map(|_| String::new()),
        |sales| by_name!(sales).reduce(|sale, _| sale).map(|_| String::new()),
        |sales| by_name!(sales).process(|_| Joined),
        |sales| by_name!(sales).aggregate_with(Sums, |_| Total),
        |sales| by_name!(sales).evictor(CountEvictor::of(1)).sum(|sale| sale.1).map(|_| String::new()),
        |sales| {
            let join = sales.join(&sales).where_(|sale| sale.0.clone()).equal_to(|sale| sale.0.clone());
            join.window(GlobalWindows::create())
                .apply(|_, _, _, out: &mut Collector<String>| out.collect(String::new()))
        },
        |sales| {
            let groups = sales.co_group(&sales).where_(|sale| sale.0.clone()).equal_to(|sale| sale.0.clone());
            let windows = groups.window(GlobalWindows::create());
            windows.apply(|_, _, _, out: &mut Collector<String>| out.collect(String::new()))
        },
    ];
    for program in programs {
        refused(
            program,
            "window(GlobalWindows::create()): such a window never fires; give it a `trigger`, \
             or use `GlobalWindows::end_of_stream()`",
        );
    }
    let triggered: [fn(DataStream<Sale>) -> DataStream<String>; 2] = [
        |sales| by_name!(sales).evictor(CountEvictor::of(1)).trigger(CountTrigger::of(1)).process(|_| Joined),
        |sales| by_name!(sales).trigger(CountTrigger::of(1)).evictor(CountEvictor::of(1)).process(|_| Joined),
    ];
    triggered.into_iter().for_each(|program| drop(TestHarness::of_stream(program).expect("it has a trigger")));
}

#[test]
fn a_whole_stream_has_windows_in_one_subtask() -> Result<()> {
    let job = |env: &StreamExecutionEnvironment, _: &Args| {
        env.set_parallelism(4);
        let all =
            env.from_source(FileSource::json_lines::<Sale>("sales")).window_all(TumblingEventTimeWindows::of(ms(10)));
        let sums = all.sum_then(
            |sale| sale.1,
            |window, sum, out: &mut Collector<String>| {
                out.collect(format!("{}..{} {sum}", window.start, window.end));
            },
        );
        sums.union(&all.count().map(|count| count.to_string())).sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::new(job, &[])?;
    run_steps(&mut harness, &[At("a", 1, 5), At("b", 2, 6), At("c", 4, 10), Watermark(i64::MAX)]);
    let mut results = harness.records::<String>()?;
    results.sort();
    assert_eq!(results, ["0..10 3", "1", "10..20 4", "2"]);
    Ok(())
}

#[test]
fn sessions_may_have_a_gap_by_record() {
    check(
        |sales| {
            let gap = EventTimeSessionWindows::with_dynamic_gap(|sale: &Sale| ms(sale.1.unsigned_abs()));
            sales
                .key_by(|sale| sale.0.clone())
                .window(gap)
                .count_then(|key, window, count, out: &mut Collector<String>| out.collect(text(key, window, count)))
        },
        &[At("a", 10, 0), At("a", 3, 10), At("a", 5, 14), Watermark(12), At("a", 2, 17), Watermark(i64::MAX)],
        &["a 0..13 2", "a 14..19 2"],
    );
}

#[test]
fn count_triggers_fire_by_number_and_purging_ones_begin_anew() {
    let steps = [At("a", 1, 0), At("a", 2, 0), At("b", 9, 0), At("a", 4, 0), At("a", 8, 0), Watermark(i64::MAX)];
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create());
            windowed.trigger(CountTrigger::of(2)).sum(|sale| sale.1).map(|(key, sum)| format!("{key} {sum}"))
        },
        &steps,
        &["a 3", "a 15"],
    );
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create());
            let purging = PurgingTrigger::of(CountTrigger::of(2));
            windowed.trigger(purging).sum(|sale| sale.1).map(|(key, sum)| format!("{key} {sum}"))
        },
        &steps,
        &["a 3", "a 12"],
    );
}

#[test]
fn continuous_triggers_fire_within_the_window() {
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
            windowed.trigger(ContinuousEventTimeTrigger::of(ms(4))).sum_then(
                |sale| sale.1,
                |key, window, sum, out: &mut Collector<String>| out.collect(text(key, window, sum)),
            )
        },
        &[At("a", 1, 1), Watermark(4), At("a", 2, 5), Watermark(7), Watermark(8), At("a", 4, 8), Watermark(99)],
        &["a 0..10 1", "a 0..10 3", "a 0..10 7"],
    );
}

#[test]
fn delta_triggers_fire_when_records_differ() {
    #[expect(clippy::cast_precision_loss, reason = "small numbers")]
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create());
            let delta = DeltaTrigger::of(5.0, |last: &Sale, sale: &Sale| (sale.1 - last.1) as f64);
            windowed.trigger(delta).count().map(|(key, count)| format!("{key} {count}"))
        },
        &[At("a", 0, 0), At("a", 5, 0), At("a", 6, 0), At("a", 11, 0), At("a", 12, 0)],
        &["a 3", "a 5"],
    );
}

/// Fires for each record of a number above 10, and never else.
struct LargeSale;

impl Trigger<Sale> for LargeSale {
    type State = ();

    fn on_element(&self, sale: &Sale, _: i64, _: TimeWindow, ctx: &mut TriggerContext<'_, ()>) -> TriggerResult {
        ctx.register_processing_time_timer(ctx.current_processing_time() + 5);
        if 10 < sale.1 { TriggerResult::FireAndPurge } else { TriggerResult::Continue }
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::FireAndPurge
    }

    fn clear(&self, _: TimeWindow, _: &mut TriggerContext<'_, ()>) {}
}

#[test]
fn programs_may_have_triggers_of_their_own() {
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(100)));
            windowed.trigger(LargeSale).sum(|sale| sale.1).map(|(key, sum)| format!("{key} {sum}"))
        },
        &[At("a", 1, 0), At("a", 11, 1), At("a", 2, 2), Clock(20), Clock(30), At("a", 3, 3), Watermark(99), Clock(99)],
        &["a 12", "a 2"],
    );
}

/// Joins the numbers of a window.
struct Joined;

impl ProcessWindowFunction<String, Sale> for Joined {
    type Output = String;

    fn process(
        &self,
        key: &String,
        elements: &WindowElements<Sale>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        let numbers: Vec<_> = elements.iter().map(|sale| sale.1).collect();
        out.collect(text(key, ctx.window(), numbers));
        Ok(())
    }
}

#[test]
fn evictors_take_records_out_of_windows() {
    let steps =
        [At("a", 1, 1), At("a", 2, 2), At("a", 3, 6), At("a", 4, 4), At("a", 5, 9), At("a", 6, 7), Watermark(i64::MAX)];
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create());
            windowed.trigger(CountTrigger::of(3)).evictor(CountEvictor::of(2)).process(|_| Joined)
        },
        &steps,
        &["a -9223372036854775808..9223372036854775807 [2, 3]", "a -9223372036854775808..9223372036854775807 [5, 6]"],
    );
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
            windowed.evictor(TimeEvictor::of(ms(3))).process(|_| Joined)
        },
        &steps,
        &["a 0..10 [5, 6]"],
    );
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(GlobalWindows::create());
            let evicted = windowed.trigger(CountTrigger::of(3)).evictor(CountEvictor::of(1).after());
            evicted.sum(|sale| sale.1).map(|(key, sum)| format!("{key} {sum}"))
        },
        &steps,
        &["a 6", "a 18"],
    );
}

#[test]
fn a_window_that_the_evictor_leaves_nothing_has_the_result_of_no_records() {
    let steps = [At("a", 1, 1), At("a", 2, 2), Watermark(i64::MAX)];
    macro_rules! emptied {
        ($sales:expr) => {
            $sales
                .key_by(|sale: &Sale| sale.0.clone())
                .window(TumblingEventTimeWindows::of(ms(10)))
                .evictor(CountEvictor::of(0))
        };
    }
    check(|sales| emptied!(sales).count().map(|(key, count)| format!("{key} {count}")), &steps, &["a 0"]);
    check(|sales| emptied!(sales).aggregate(Sums).map(|(key, sum)| format!("{key} {sum}")), &steps, &["a 0"]);
    check(|sales| emptied!(sales).aggregate_with(Sums, |_| Total), &steps, &["a 0..10 [0]"]);
    check(|sales| emptied!(sales).process(|_| Joined), &steps, &["a 0..10 []"]);
    // Reductions, which those of a single field are in Flink, too, have no result without records.
    check(|sales| emptied!(sales).reduce(|sale, _| sale).map(|sale| sale.0), &steps, &[]);
    check(|sales| emptied!(sales).sum(|sale| sale.1).map(|(key, sum)| format!("{key} {sum}")), &steps, &[]);
    check(|sales| emptied!(sales).min(|sale| sale.1).map(|(key, min)| format!("{key} {min}")), &steps, &[]);
}

/// Sum of the numbers.
struct Sums;

impl AggregateFunction<Sale> for Sums {
    type Accumulator = i64;
    type Output = i64;

    fn create_accumulator(&self) -> i64 {
        0
    }

    fn add(&self, sale: &Sale, accumulator: &mut i64) {
        *accumulator += sale.1;
    }

    fn get_result(&self, accumulator: &i64) -> i64 {
        *accumulator
    }

    fn merge(&self, accumulator: &mut i64, other: i64) {
        *accumulator += other;
    }
}

/// As [`Joined`], of results.
struct Total;

impl ProcessWindowFunction<String, i64> for Total {
    type Output = String;

    fn process(
        &self,
        key: &String,
        results: &WindowElements<i64>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        out.collect(text(key, ctx.window(), results.iter().collect::<Vec<_>>()));
        Ok(())
    }
}

/// How often a window fired, and what the key came to in all windows.
struct Visits {
    firings: ValueState<u32>,
    total: ValueState<i64>,
}

impl ProcessWindowFunction<String, Sale> for Visits {
    type Output = String;

    fn process(
        &self,
        key: &String,
        elements: &WindowElements<Sale>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        self.firings.modify(|firings| *firings.get_or_insert(0) += 1);
        let sum: i64 = elements.iter().map(|sale| sale.1).sum();
        self.total.modify(|total| *total.get_or_insert(0) += sum);
        let (firings, total) = (self.firings.value(), self.total.value());
        out.collect(text(key, ctx.window(), (firings.unwrap_or(0), total.unwrap_or(0), ctx.current_watermark())));
        Ok(())
    }

    fn clear(&self, _: &String, _: &mut WindowContext<'_>) -> Result<()> {
        self.firings.clear();
        Ok(())
    }
}

fn visits(sales: DataStream<Sale>) -> DataStream<String> {
    let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
    windowed
        .allowed_lateness(ms(5))
        .process(|states| Visits { firings: states.window.value("firings"), total: states.global.value("total") })
}

#[test]
fn functions_keep_state_of_each_window_and_of_each_key() {
    check(
        visits,
        &[
            At("a", 1, 5),
            At("b", 2, 5),
            Watermark(5),
            At("a", 4, 15),
            Watermark(10),
            At("a", 8, 5),
            Watermark(15),
            Watermark(i64::MAX),
        ],
        &["a 0..10 (1, 1, 10)", "b 0..10 (1, 2, 10)", "a 0..10 (2, 10, 10)", "a 10..20 (1, 14, 9223372036854775807)"],
    );
}

#[test]
fn nothing_is_left_of_a_window_that_was_given_up() -> Result<()> {
    let mut harness = TestHarness::of_stream(visits)?;
    run_steps(&mut harness, &[At("a", 1, 5), Watermark(9)]);
    let state = harness.print_state()?;
    assert!(state.contains("window-contents") && state.contains("firings") && state.contains("timer"), "{state}");
    run_steps(&mut harness, &[Watermark(14)]);
    let state = harness.print_state()?;
    assert!(!state.contains("window-contents") && !state.contains("firings") && !state.contains("timer"), "{state}");
    assert!(state.contains("total"), "{state}");
    Ok(())
}

/// Average of the numbers.
struct Average;

impl AggregateFunction<Sale> for Average {
    type Accumulator = (i64, i64);
    type Output = i64;

    fn create_accumulator(&self) -> (i64, i64) {
        (0, 0)
    }

    fn add(&self, sale: &Sale, accumulator: &mut (i64, i64)) {
        *accumulator = (accumulator.0 + sale.1, accumulator.1 + 1);
    }

    fn get_result(&self, accumulator: &(i64, i64)) -> i64 {
        accumulator.0 / accumulator.1
    }

    fn merge(&self, accumulator: &mut (i64, i64), other: (i64, i64)) {
        *accumulator = (accumulator.0 + other.0, accumulator.1 + other.1);
    }
}

struct Named;

impl ProcessWindowFunction<String, i64> for Named {
    type Output = String;

    fn process(
        &self,
        key: &String,
        averages: &WindowElements<i64>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        averages.for_each(|average| out.collect(text(key, ctx.window(), average)));
        Ok(())
    }
}

#[test]
fn functions_get_the_result_of_an_aggregation() {
    let steps = [At("a", 1, 5), At("a", 3, 6), At("a", 100, 10), Watermark(i64::MAX)];
    let expected = ["a 0..10 2", "a 10..20 100"];
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
            windowed.aggregate_with(Average, |_| Named)
        },
        &steps,
        &expected,
    );
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingEventTimeWindows::of(ms(10)));
            windowed.aggregate_then(Average, |key, window, average, out: &mut Collector<String>| {
                out.collect(text(key, window, average));
            })
        },
        &steps,
        &expected,
    );
}

#[test]
fn processing_time_windows_go_by_the_clock() {
    check(
        |sales| {
            let windowed = sales.key_by(|sale| sale.0.clone()).window(TumblingProcessingTimeWindows::of(ms(10)));
            windowed.count_then(|key, window, count, out: &mut Collector<String>| {
                out.collect(text(key, window, count));
            })
        },
        &[
            Clock(3),
            At("a", 0, 777),
            Clock(8),
            At("a", 0, -5),
            Watermark(i64::MAX),
            Clock(10),
            At("a", 0, 0),
            Clock(30),
        ],
        &["a 0..10 2", "a 10..20 1"],
    );
}

#[test]
fn a_sum_that_does_not_fit_is_told_when_the_window_is_evaluated() -> Result<()> {
    let mut harness = TestHarness::of_stream(|sales: DataStream<Sale>| {
        sales.key_by(|sale| sale.0.clone()).window(SlidingEventTimeWindows::of(ms(20), ms(10))).sum(|sale| sale.1)
    })?;
    run_steps(&mut harness, &[At("a", i64::MAX, 5), At("a", 1, 15), Watermark(9)]);
    let error = harness.process_watermark(19).expect_err("too large");
    assert_eq!(error.to_string(), "\"Window(Sum)\": the sum does not fit into i64");
    Ok(())
}
