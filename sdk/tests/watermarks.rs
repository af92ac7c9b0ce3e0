//! Timestamps and watermarks, as programs and the engine meet them.

use std::time::Duration;

use engine_sdk::{TestHarness, WatermarkGenerator, WatermarkOutput, prelude::*};

/// What Flink's generators emit.
const VECTORS: &str = include_str!("watermarks.json");

fn millis(value: &serde_json::Value) -> Duration {
    Duration::from_millis(value.as_u64().expect("a number of milliseconds"))
}

/// A stream of numbers that are their own event time.
fn timed(strategy: WatermarkStrategy<i64>) -> TestHarness {
    TestHarness::of_stream(|numbers: DataStream<i64>| {
        numbers.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(|number| *number))
    })
    .expect("a sound program")
}

#[test]
fn bounded_out_of_orderness_emits_what_flink_does() {
    let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
    for case in vectors["bounded_out_of_orderness"].as_array().unwrap() {
        let bound = millis(&case["out_of_orderness_ms"]);
        let mut harness = timed(WatermarkStrategy::for_bounded_out_of_orderness(bound));
        harness.set_processing_time(0).unwrap();
        assert_eq!(case["initial_emit"], serde_json::Value::Null);
        let mut expected: Vec<i64> = Vec::new();
        assert_eq!(harness.watermarks().unwrap(), expected);
        for step in case["steps"].as_array().unwrap() {
            harness.push::<i64>(&step["event"].as_i64().unwrap()).unwrap();
            assert_eq!(harness.watermarks().unwrap(), expected, "watermarks are made by the periodic call only");
            harness.set_processing_time(0).unwrap();
            expected.extend(step["periodic_emit"].as_i64());
            assert_eq!(harness.watermarks().unwrap(), expected, "{step}");
        }
        harness.finish().unwrap();
        expected.push(i64::MAX);
        assert_eq!(harness.watermarks().unwrap(), expected);
    }
}

#[test]
fn idleness_is_noticed_when_flink_does() {
    let vectors: serde_json::Value = serde_json::from_str(VECTORS).unwrap();
    for case in vectors["idleness"].as_array().unwrap() {
        let strategy = WatermarkStrategy::for_monotonous_timestamps().with_idleness(millis(&case["idle_timeout_ms"]));
        let mut harness = timed(strategy);
        let mut event = 1000;
        for step in case["steps"].as_array().unwrap() {
            let was_idle = harness.is_idle().unwrap();
            let time = step["t"].as_i64().unwrap();
            if step["do"] == "event" {
                event += 1;
                harness.push::<i64>(&event).unwrap();
                assert_eq!(harness.is_idle().unwrap(), was_idle, "{step}");
                continue;
            }
            harness.set_processing_time(time).unwrap();
            let expected = match step["out"].as_str().unwrap() {
                "IDLE" => true,
                text if text.starts_with("nothing") => was_idle,
                text => {
                    assert!(text.starts_with("watermark"), "{text}");
                    assert_eq!(harness.watermarks().unwrap().last(), Some(&(event - 1)), "{step}");
                    false
                }
            };
            assert_eq!(harness.is_idle().unwrap(), expected, "{step}");
        }
        // Active again only with a watermark that is above the last one.
        assert!(harness.is_idle().unwrap());
        harness.set_processing_time(401).unwrap();
        assert!(!harness.is_idle().unwrap());
        assert_eq!(harness.watermarks().unwrap().last(), Some(&(event - 1)));
        harness.set_processing_time(500).unwrap();
        harness.set_processing_time(601).unwrap();
        assert!(harness.is_idle().unwrap());
        harness.push::<i64>(&event).unwrap();
        harness.set_processing_time(602).unwrap();
        assert!(harness.is_idle().unwrap(), "the watermark is not above the last one");
        // The end of event time is seen in any case.
        harness.finish().unwrap();
        assert!(!harness.is_idle().unwrap());
        assert_eq!(harness.watermarks().unwrap().last(), Some(&i64::MAX));
    }
}

#[test]
fn the_watermark_is_the_least_of_the_splits_that_have_not_ended() {
    let mut harness = timed(WatermarkStrategy::for_bounded_out_of_orderness(Duration::from_millis(10)));
    for split in [7, 3, 5] {
        harness.begin_split(split).unwrap();
    }
    let mut read = |split: u32, number: i64| {
        harness.begin_split(split).unwrap();
        harness.push::<i64>(&number).unwrap();
        harness.set_processing_time(0).unwrap();
        harness.watermarks().unwrap()
    };
    assert_eq!(read(5, 200), [0_i64; 0], "two splits were not read yet");
    assert_eq!(read(7, 100), [0_i64; 0]);
    assert_eq!(read(3, 300), [89]);
    assert_eq!(read(5, 400), [89]);
    assert_eq!(read(7, 500), [89, 289]);
    assert_eq!(read(7, 50), [89, 289], "late within its split");
    harness.end_split(3).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [89, 289]);
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [89, 289, 389]);
    // With no split left the watermark stays where it was, and does not fall with a new one.
    harness.end_split(5).unwrap();
    harness.end_split(7).unwrap();
    harness.set_processing_time(0).unwrap();
    harness.begin_split(9).unwrap();
    harness.push::<i64>(&395).unwrap();
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [89, 289, 389]);
    harness.push::<i64>(&600).unwrap();
    harness.finish().unwrap();
    assert_eq!(harness.watermarks().unwrap(), [89, 289, 389, 589, i64::MAX]);
}

#[test]
fn splits_that_wait_for_their_turn_are_not_idle() {
    let strategy = WatermarkStrategy::for_monotonous_timestamps().with_idleness(Duration::from_millis(100));
    let mut harness = timed(strategy);
    harness.begin_split(1).unwrap();
    harness.begin_split(0).unwrap();
    harness.push::<i64>(&10).unwrap();
    for now in [0, 200, 400, 600] {
        harness.push::<i64>(&(10 + now)).unwrap();
        harness.set_processing_time(now).unwrap();
    }
    assert_eq!(harness.watermarks().unwrap(), [0_i64; 0], "split 1 holds it back, however long");
    harness.end_split(0).unwrap();
    harness.begin_split(1).unwrap();
    harness.set_processing_time(800).unwrap();
    assert!(!harness.is_idle().unwrap());
    harness.push::<i64>(&20).unwrap();
    harness.set_processing_time(900).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [19]);
    // Without any split, the stream is idle in the end.
    harness.end_split(1).unwrap();
    for now in [1000, 1100, 1200] {
        harness.set_processing_time(now).unwrap();
    }
    assert!(!harness.is_idle().unwrap());
    harness.set_processing_time(1201).unwrap();
    assert!(harness.is_idle().unwrap());
}

/// Emits a watermark behind each negative number, and is idle behind a zero.
struct Punctuated;

impl WatermarkGenerator<i64> for Punctuated {
    fn on_event(&mut self, event: &i64, timestamp: i64, output: &mut WatermarkOutput) {
        match event {
            0 => output.mark_idle(),
            ..0 => output.emit_watermark(timestamp),
            _ => {}
        }
    }

    fn on_periodic_emit(&mut self, _: &mut WatermarkOutput) {}
}

#[test]
fn a_generator_of_the_plugin_emits_behind_its_record() {
    let strategy = WatermarkStrategy::for_generator(|| Punctuated).with_timestamp_assigner(|number: &i64| number.abs());
    let mut harness = TestHarness::of_stream(|numbers: DataStream<i64>| {
        let timed = numbers.assign_timestamps_and_watermarks(strategy);
        timed.process(|number, context, out: &mut Collector<i64>| {
            out.collect(context.current_watermark().max(-1));
            out.collect(number);
        })
    })
    .unwrap();
    for number in [5, -7, -6, 8, 0] {
        assert!(!harness.is_idle().unwrap());
        harness.push::<i64>(&number).unwrap();
    }
    assert_eq!(harness.records::<i64>().unwrap(), [-1, 5, -1, -7, 7, -6, 7, 8, 7, 0]);
    assert_eq!(harness.watermarks().unwrap(), [7]);
    assert!(harness.is_idle().unwrap());
}

#[test]
fn timestamps_outside_of_the_calendar_reject_their_record() {
    let mut harness = timed(WatermarkStrategy::for_monotonous_timestamps());
    harness.skip_rejected();
    // 0001-01-01T00:00:00.000Z and 9999-12-31T23:59:59.999Z.
    let (first, last) = (-62_135_596_800_000, 253_402_300_799_999);
    for timestamp in [first, 0, first - 1, last + 1, i64::MIN, i64::MAX, i64::from(i32::MAX)] {
        harness.push::<i64>(&timestamp).unwrap();
    }
    harness.set_processing_time(0).unwrap();
    let kept = [first, 0, i64::from(i32::MAX)].map(|timestamp| (timestamp, Some(timestamp)));
    assert_eq!(harness.records_with_timestamps::<i64>().unwrap(), kept);
    assert_eq!(harness.watermarks().unwrap(), [i64::from(i32::MAX) - 1]);
    assert_eq!(harness.rejected().len(), 4);
    assert!(harness.rejected()[3].starts_with("timestamp 9223372036854775807 is not within the years 1 to 9999"));
    harness.push::<i64>(&last).unwrap();
    assert_eq!(harness.records::<i64>().unwrap().len(), 4);
}

#[test]
fn records_without_timestamp_go_on_and_move_no_watermark() {
    let mut harness = TestHarness::of_stream(|numbers: DataStream<i64>| {
        numbers.assign_timestamps_and_watermarks(WatermarkStrategy::for_monotonous_timestamps())
    })
    .unwrap();
    harness.push::<i64>(&1).unwrap();
    harness.push_with_timestamp::<i64>(&2, 20).unwrap();
    harness.push::<i64>(&3).unwrap();
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.records_with_timestamps::<i64>().unwrap(), [(1, None), (2, Some(20)), (3, None)]);
    assert_eq!(harness.watermarks().unwrap(), [19]);
}

#[test]
fn watermarks_from_before_are_dropped_wherever_the_strategy_stands() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let source = env.from_sequence(0, 1).map(|number| number + 1).filter(|number| *number != 5);
        let strategy = WatermarkStrategy::<i64>::for_monotonous_timestamps().with_timestamp_assigner(|n| *n);
        source.assign_timestamps_and_watermarks(strategy).map(|number| number * 2).sink_to(DiscardSink);
        Ok(())
    };
    for mut harness in [TestHarness::new(program, &[]).unwrap(), TestHarness::unchained(program, &[]).unwrap()] {
        harness.push::<i64>(&9).unwrap();
        harness.process_watermark(50).unwrap();
        harness.set_processing_time(0).unwrap();
        assert_eq!(harness.watermarks().unwrap(), [9]);
        harness.finish().unwrap();
        assert_eq!(harness.watermarks().unwrap(), [9, i64::MAX]);
        assert_eq!(harness.records_with_timestamps::<i64>().unwrap(), [(20, Some(10))]);
    }
}

#[test]
fn streams_that_are_united_have_the_least_watermark() {
    let mut harness = TestHarness::new(
        |env, _| {
            let strategy = || WatermarkStrategy::<i64>::for_monotonous_timestamps().with_timestamp_assigner(|n| *n);
            let timed = |name| {
                let source = env.from_sequence(0, 1).name(name);
                source.assign_timestamps_and_watermarks(strategy())
            };
            timed("one").union(&timed("other")).map(|number| number).sink_to(DiscardSink);
            Ok(())
        },
        &[],
    )
    .unwrap();
    harness.push_to::<i64>("one", &10).unwrap();
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [0_i64; 0]);
    harness.push_to::<i64>("other", &5).unwrap();
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [4]);
    harness.push_to::<i64>("other", &20).unwrap();
    harness.set_processing_time(0).unwrap();
    assert_eq!(harness.watermarks().unwrap(), [4, 9]);
}

#[test]
fn mistakes_in_a_strategy_fail_the_program() {
    let error = |strategy: WatermarkStrategy<i64>| {
        let opened =
            TestHarness::of_stream(|numbers: DataStream<i64>| numbers.assign_timestamps_and_watermarks(strategy));
        opened.err().unwrap().to_string()
    };
    let strategy = WatermarkStrategy::for_monotonous_timestamps().with_idleness(Duration::ZERO);
    assert_eq!(error(strategy), "with_idleness needs a time above 0");
    let strategy = WatermarkStrategy::no_watermarks();
    let strategy = strategy.with_watermark_alignment("group", Duration::from_secs(1), Duration::ZERO);
    assert_eq!(error(strategy), "with_watermark_alignment needs an update interval above 0");
    let opened = TestHarness::new(
        |env, _| {
            let strategy = WatermarkStrategy::no_watermarks();
            let second = Duration::from_secs(1);
            let strategy = strategy.with_watermark_alignment("group", second, second);
            env.from_elements(vec![1_i64]).assign_timestamps_and_watermarks(strategy).sink_to(DiscardSink);
            Ok(())
        },
        &[],
    );
    let expected = "with_watermark_alignment is for sources of the engine, not for those of the plugin";
    assert_eq!(opened.err().unwrap().to_string(), expected);
}
