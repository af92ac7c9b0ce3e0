//! Keyed state and timers as programs use them.

use std::{collections::BTreeMap, time::Duration};

use engine_sdk::{AggregateFunction, Error, Result, TestHarness, prelude::*};

#[track_caller]
fn harness<T, U>(function: impl Fn(DataStream<T>) -> DataStream<U> + 'static, cache_bytes: u64) -> TestHarness
where
    T: engine_sdk::Owned,
    U: engine_sdk::Owned,
{
    let program = move |env: &StreamExecutionEnvironment, _: &Args| {
        function(env.from_source(FileSource::json_lines::<T>("input"))).sink_to(DiscardSink);
        Ok(())
    };
    TestHarness::with_cache_bytes(program, &[], cache_bytes).expect("a sound program")
}

/// Does with timers what its records say, `register E 10`, and tells when they fire.
struct Scripted;

impl Scripted {
    fn script(line: &str, context: &KeyedContext<'_, str>) -> Result<()> {
        let timers = context.timer_service();
        let mut words = line.split(' ');
        let mut next = || words.next().ok_or_else(|| Error::new("a short line"));
        let (verb, domain, timestamp) = (next()?, next()?, next()?.parse()?);
        match (verb, domain) {
            ("register", "E") => timers.register_event_time_timer(timestamp),
            ("register", _) => timers.register_processing_time_timer(timestamp),
            (_, "E") => timers.delete_event_time_timer(timestamp),
            _ => timers.delete_processing_time_timer(timestamp),
        }
        Ok(())
    }
}

/// Key and script, and what is done when a timer of the key fires.
type Line = (String, String, Option<String>);

struct ScriptedTimers {
    in_callback: MapState<i64, String>,
    scripted: Scripted,
}

impl KeyedProcessFunction<str, Line> for ScriptedTimers {
    type Output = String;

    fn process_element(
        &self,
        (_, line, callback): Line,
        context: &mut KeyedContext<'_, str>,
        _: &mut Collector<String>,
    ) -> Result<()> {
        if let (Some(callback), Some(timestamp)) = (callback, line.split(' ').next_back()) {
            self.in_callback.put(&timestamp.parse()?, callback);
        }
        let Scripted = self.scripted;
        Scripted::script(&line, context)
    }

    fn on_timer(
        &self,
        timestamp: i64,
        context: &mut OnTimerContext<'_, str>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        let domain = if context.is_event_time() { "E" } else { "P" };
        let watermark = context.timer_service().current_watermark();
        let key = context.with_current_key(str::to_owned);
        out.collect(format!("{domain} {key} {timestamp} at {watermark}"));
        if let Some(callback) = self.in_callback.get(&timestamp) {
            self.in_callback.remove(&timestamp);
            Scripted::script(&callback, context)?;
        }
        Ok(())
    }
}

fn scripted() -> TestHarness {
    let by_key = |lines: DataStream<Line>| {
        lines
            .key_by_with(|line, key: &mut KeyWriter<str>| key.set(&line.0))
            .process(|states| ScriptedTimers { in_callback: states.map("in callback"), scripted: Scripted })
    };
    harness(by_key, 1 << 20)
}

fn run_script(harness: &mut TestHarness, op: &str) {
    let (op, callback) = match op.split_once(" (callback registers ") {
        Some((op, rest)) => (op, Some(format!("register E {}", rest.trim_end_matches(')')))),
        None => (op, None),
    };
    let words: Vec<_> = op.split(' ').collect();
    match words[..] {
        ["advance", "watermark", to] => {
            harness.process_watermark(to.parse().expect("a line of the script")).expect("a line of the script")
        }
        [verb, domain, key, _namespace, timestamp] => {
            let line = (key.to_owned(), format!("{verb} {domain} {timestamp}"), callback);
            harness.push::<Line>(&line).expect("a line of the script");
        }
        _ => panic!("{op}"),
    }
}

/// "E k1 10 (remark)" or "E k1 10 with currentWatermark()=99" as the function tells it.
fn fired(expected: &str, watermark: i64) -> String {
    let text = expected.split(" (").next().expect("a line of the script");
    let (text, at) = match text.split_once(" with currentWatermark()=") {
        Some((text, at)) => (text, at.parse().expect("a line of the script")),
        None => (text, watermark),
    };
    format!("{text} at {at}")
}

#[test]
fn timers_fire_as_in_the_vectors() {
    let vectors: serde_json::Value = serde_json::from_str(include_str!("../tests-data/timers.json")).unwrap();
    let scenarios = vectors["scenarios"].as_array().unwrap();
    for scenario in scenarios {
        let name = scenario["name"].as_str().unwrap();
        let texts = |field: &str| -> Vec<&str> {
            scenario[field].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
        };
        let mut harness = scripted();
        texts("ops").into_iter().for_each(|op| run_script(&mut harness, op));
        let before = harness.lines().unwrap().len();
        let watermark = match scenario["advance"].as_str().unwrap().strip_prefix("watermark ") {
            Some(watermark) => {
                let watermark = watermark.parse().unwrap();
                harness.process_watermark(watermark).unwrap();
                watermark
            }
            None => {
                harness.finish().unwrap();
                i64::MAX
            }
        };
        let lines = harness.lines().unwrap();
        assert_eq!(before, 0, "{name}");
        let expected: Vec<_> = texts("fired").into_iter().map(|text| fired(text, watermark)).collect();
        assert_eq!(lines, expected, "{name}");
        let waiting = harness.print_state().unwrap();
        for left in texts("left").into_iter().filter(|left| left.len() < 10) {
            let words: Vec<_> = left.split(' ').collect();
            let domain = if words[0] == "E" { "event time" } else { "processing time" };
            assert!(
                waiting.contains(&format!("timer of {:?}: {} in {domain}", words[1], words[2])),
                "{name}: {waiting}"
            );
        }
        let left = texts("left").iter().filter(|left| left.len() < 10).count();
        // What is discarded at the end was never fired; the harness still shows it.
        if watermark != i64::MAX {
            assert_eq!(waiting.matches("timer of").count(), left, "{name}: {waiting}");
        }
    }
    assert_eq!(scenarios.len(), 7);
}

#[test]
fn timers_that_a_callback_registers_or_deletes_keep_their_order() {
    let mut harness = scripted();
    run_script(&mut harness, "register E k 10 10 (callback registers 15)");
    run_script(&mut harness, "register E k ns 20");
    run_script(&mut harness, "register E j ns 12");
    harness.process_watermark(30).unwrap();
    assert_eq!(harness.lines().unwrap(), ["E k 10 at 30", "E j 12 at 30", "E k 15 at 30", "E k 20 at 30"]);

    let mut harness = scripted();
    let delete = ("k".to_owned(), "register E 10".to_owned(), Some("delete E 20".to_owned()));
    harness.push::<Line>(&delete).unwrap();
    let again = ("j".to_owned(), "register E 10".to_owned(), Some("register E 20".to_owned()));
    harness.push::<Line>(&again).unwrap();
    for key in ["k", "j"] {
        run_script(&mut harness, &format!("register E {key} ns 20"));
        run_script(&mut harness, &format!("register E {key} ns 30"));
    }
    harness.process_watermark(30).unwrap();
    let lines = harness.lines().unwrap();
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[2], "E j 20 at 30");
}

#[test]
fn timers_in_processing_time_go_by_the_clock() {
    let mut harness = scripted();
    run_script(&mut harness, "register P k ns 100");
    run_script(&mut harness, "register P k ns 300");
    run_script(&mut harness, "register P k ns 200");
    run_script(&mut harness, "delete P k ns 200");
    harness.set_processing_time(99).unwrap();
    assert_eq!(harness.lines().unwrap(), [""; 0]);
    harness.set_processing_time(250).unwrap();
    harness.finish().unwrap();
    assert_eq!(harness.records_with_timestamps::<String>().unwrap(), [(format!("P k 100 at {}", i64::MIN), None)]);
}

#[test]
fn a_timer_needs_a_time() {
    let mut harness = scripted();
    let line = ("k".to_owned(), format!("register E {}", i64::MIN), None);
    let error = harness.push::<Line>(&line).unwrap_err();
    assert_eq!(error.to_string(), "\"Keyed Process\": a timer was registered for i64::MIN, which stands for no time");
}

/// Sum and number.
#[derive(Clone)]
struct Mean;

impl AggregateFunction<i64> for Mean {
    type Accumulator = (i64, i64);
    type Output = i64;

    fn create_accumulator(&self) -> (i64, i64) {
        (0, 0)
    }

    fn add(&self, number: &i64, (sum, count): &mut (i64, i64)) {
        *sum += number;
        *count += 1;
    }

    fn get_result(&self, (sum, count): &(i64, i64)) -> i64 {
        sum / count
    }

    fn merge(&self, accumulator: &mut (i64, i64), other: (i64, i64)) {
        accumulator.0 += other.0;
        accumulator.1 += other.1;
    }
}

/// Uses states of all kinds.
struct AllKinds {
    last: ValueState<String>,
    numbers: ListState<i64>,
    counts: MapState<String, u64>,
    greatest: ReducingState<i64>,
    mean: AggregatingState<i64, Mean>,
}

impl AllKinds {
    fn new(states: &mut States) -> Self {
        Self {
            last: states.value("last"),
            numbers: states.list("numbers"),
            counts: states.map("counts"),
            greatest: states.reducing("greatest", i64::max),
            mean: states.aggregating("mean", Mean),
        }
    }
}

impl KeyedProcessFunction<u8, (u8, i64)> for AllKinds {
    type Output = String;

    fn process_element(
        &self,
        (key, number): (u8, i64),
        context: &mut KeyedContext<'_, u8>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        assert_eq!(context.current_key(), key);
        let before = self.last.value();
        self.last.update(number.to_string());
        self.numbers.add(&number);
        self.counts.modify(&(number % 3).to_string(), |count| *count.get_or_insert(0) += 1);
        self.greatest.add(number);
        self.mean.add(&number);
        if number % 7 == 0 {
            let (numbers, counts) = (self.numbers.get(), self.counts.entries());
            let (greatest, mean) = (self.greatest.get(), self.mean.get());
            out.collect(format!("{key}: {before:?} {numbers:?} {counts:?} {greatest:?} {mean:?}"));
        }
        if number % 11 == 0 {
            self.last.clear();
            self.numbers.clear();
            self.counts.clear();
            self.greatest.clear();
            self.mean.clear();
            context.timer_service().register_event_time_timer(number + 50);
        }
        Ok(())
    }

    fn on_timer(&self, at: i64, context: &mut OnTimerContext<'_, u8>, out: &mut Collector<String>) -> Result<()> {
        let key = context.current_key();
        out.collect(format!("{key} at {at}: {:?} {:?}", self.last.value(), self.numbers.get()));
        Ok(())
    }
}

/// What [`AllKinds`] keeps for a key.
#[derive(Default)]
struct Model {
    last: Option<String>,
    numbers: Vec<i64>,
    counts: BTreeMap<String, u64>,
}

#[test]
fn states_of_all_kinds_are_those_of_a_model_whatever_the_cache() {
    let numbers: Vec<(u8, i64)> = (0..5000_i64).map(|n| ((n * n % 61) as u8, n * 17 % 1009)).collect();
    let mut expected = Vec::new();
    let mut model: BTreeMap<u8, Model> = BTreeMap::new();
    let mut timers: BTreeMap<(i64, u8), ()> = BTreeMap::new();
    for (index, (key, number)) in numbers.iter().copied().enumerate() {
        let state = model.entry(key).or_default();
        let before = state.last.replace(number.to_string());
        state.numbers.push(number);
        *state.counts.entry((number % 3).to_string()).or_default() += 1;
        if number % 7 == 0 {
            let counts: Vec<_> = state.counts.iter().collect();
            let greatest = state.numbers.iter().max();
            let mean = Some(state.numbers.iter().sum::<i64>() / state.numbers.len() as i64);
            expected.push(format!("{key}: {before:?} {:?} {counts:?} {greatest:?} {mean:?}", state.numbers));
        }
        if number % 11 == 0 {
            *state = Model::default();
            timers.insert((number + 50, key), ());
        }
        if index % 500 == 499 {
            let watermark = index as i64 / 5;
            let later = timers.split_off(&(watermark + 1, 0));
            for ((at, key), ()) in std::mem::replace(&mut timers, later) {
                let state = &model[&key];
                expected.push(format!("{key} at {at}: {:?} {:?}", state.last, state.numbers));
            }
        }
    }
    for cache_bytes in [1, 5_000, 1 << 20] {
        let mut harness = harness(
            |numbers: DataStream<(u8, i64)>| numbers.key_by(|number| number.0).process(AllKinds::new),
            cache_bytes,
        );
        for (index, number) in numbers.iter().enumerate() {
            harness.push::<(u8, i64)>(number).unwrap();
            if index % 500 == 499 {
                harness.process_watermark(index as i64 / 5).unwrap();
            }
        }
        let lines = harness.lines().unwrap();
        assert_eq!(lines.len(), expected.len());
        if let Some((line, expected)) = lines.iter().zip(&expected).find(|(line, expected)| line != expected) {
            panic!("with {cache_bytes} bytes: got {line}, expected {expected}");
        }
    }
}

#[test]
fn a_test_sees_what_is_kept() {
    let by_key = |numbers: DataStream<(u8, i64)>| numbers.key_by(|number| number.0).process(AllKinds::new);
    let mut harness = harness(by_key, 1 << 20);
    for number in [(1, 4), (2, 22), (1, 5)] {
        harness.push::<(u8, i64)>(&number).unwrap();
    }
    let operator = "Keyed Process";
    assert_eq!(harness.value_state::<u8, String>(operator, "last", &1).unwrap(), Some("5".to_owned()));
    assert_eq!(harness.value_state::<u8, String>(operator, "last", &2).unwrap(), None);
    assert_eq!(harness.list_state::<u8, i64>(operator, "numbers", &1).unwrap(), [4, 5]);
    let counts = harness.map_state::<u8, String, u64>(operator, "counts", &1).unwrap();
    assert_eq!(counts, [("1".to_owned(), 1), ("2".to_owned(), 1)]);
    let expected = "Keyed Process
  last of 1: \"5\"
  numbers of 1: [4, 5]
  counts of 1: {\"1\": 1, \"2\": 1}
  greatest of 1: 5
  mean of 1: (9, 2)
  timer of 2: 72 in event time
";
    assert_eq!(harness.print_state().unwrap(), expected);
    let error = |result: Result<Option<u64>>| result.unwrap_err().to_string();
    assert_eq!(
        error(harness.value_state::<u8, u64>(operator, "last", &1)),
        "values of state \"last\" are of type string, not u64"
    );
    assert_eq!(error(harness.value_state::<u8, u64>(operator, "lost", &1)), "\"Keyed Process\" has no state \"lost\"");
    assert_eq!(error(harness.value_state::<u8, u64>("Map", "last", &1)), "no operator \"Map\" keeps keyed state");
}

/// Counts records of a key that come within a second of each other.
struct Visits {
    count: ValueState<u64>,
}

impl KeyedProcessFunction<u8, u8> for Visits {
    type Output = (u8, u64);

    fn process_element(&self, key: u8, _: &mut KeyedContext<'_, u8>, out: &mut Collector<(u8, u64)>) -> Result<()> {
        let count = self.count.value().unwrap_or(0) + 1;
        self.count.update(count);
        out.collect((key, count));
        Ok(())
    }
}

#[test]
fn state_with_a_time_to_live_ends() {
    let by_key = |keys: DataStream<u8>| {
        keys.key_by(|key| *key).process(|states| Visits {
            count: states.value("count").enable_time_to_live(StateTtlConfig::new(Duration::from_secs(1))),
        })
    };
    for cache_bytes in [1, 1 << 20] {
        let mut harness = harness(by_key, cache_bytes);
        for (now, key) in [(0, 1), (999, 1), (1500, 2), (1998, 1), (2998, 1), (2998, 2)] {
            harness.set_processing_time(now).unwrap();
            harness.push::<u8>(&key).unwrap();
        }
        let expected = [(1, 1), (1, 2), (2, 1), (1, 3), (1, 1), (2, 1)];
        assert_eq!(harness.records::<(u8, u64)>().unwrap(), expected);
        let printed = harness.print_state().unwrap();
        assert_eq!(printed, "Keyed Process\n  count of 1: 1 until 3998\n  count of 2: 1 until 3998\n");
    }
}

#[test]
fn closures_with_state() {
    let mut harness = harness(
        |numbers: DataStream<i64>| {
            let by_sign = |numbers: &DataStream<i64>| numbers.key_by(|n| *n < 0);
            let differences =
                by_sign(&numbers).map_with_state(|n, last: &mut Option<i64>| n - last.replace(n).unwrap_or(0));
            let rising = by_sign(&differences)
                .filter_with_state(|n, greatest: &mut Option<i64>| greatest.replace(*n).is_none_or(|last| last < *n));
            by_sign(&rising).flat_map_with_state(|n, count: &mut Option<u64>, out: &mut Collector<(i64, u64)>| {
                let count = count.get_or_insert(0);
                *count += 1;
                out.collect((n, *count));
            })
        },
        1,
    );
    for n in [5, 7, -1, 30, 31, -8, 33] {
        harness.push::<i64>(&n).unwrap();
    }
    // Differences 5 2 -1 23 1 -7 2; 1 is below 23 and -7 below -1.
    assert_eq!(harness.records::<(i64, u64)>().unwrap(), [(5, 1), (-1, 1), (23, 2), (2, 3)]);
}

struct Twice {
    first: ValueState<u8>,
    second: ListState<u8>,
}

impl KeyedProcessFunction<u8, u8> for Twice {
    type Output = u8;

    fn process_element(&self, key: u8, context: &mut KeyedContext<'_, u8>, out: &mut Collector<u8>) -> Result<()> {
        assert_eq!(context.runtime().subtask_index, 0);
        self.second.add(&key);
        self.first.update(key);
        out.collect(key);
        Ok(())
    }
}

#[test]
fn a_name_of_a_state_is_used_once() {
    let program = |second: &'static str| {
        move |keys: DataStream<u8>| {
            keys.key_by(|key| *key)
                .process(move |states| Twice { first: states.value("first"), second: states.list(second) })
                .name("Twice")
        }
    };
    let error = TestHarness::of_stream(program("first")).map(|_| ()).unwrap_err();
    // The name is set after the operator was made.
    assert_eq!(error.to_string(), "\"Keyed Process\" has two states \"first\": give each a name of its own");
    TestHarness::of_stream(program("second")).unwrap();
}

/// A number that follows from others, as if by chance.
fn mixed(seed: u64, key: u8, time: i64) -> u64 {
    let mixed = (seed ^ (u64::from(key) << 56) ^ time.cast_unsigned()).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8
}

/// What is done for a key at a time: times for which timers are registered, and deleted.
fn timer_actions(seed: u64, key: u8, time: i64) -> (Vec<i64>, Vec<i64>) {
    let chance = mixed(seed, key, time);
    let at = |shift: u32| time + (chance >> shift & 15) as i64;
    let registered = (0..chance % 3).map(|number| at(8 * number as u32 + 4) + 1).collect();
    let deleted = if chance & 64 == 0 { vec![at(40), at(44)] } else { Vec::new() };
    (registered, deleted)
}

/// Registers and deletes timers as if by chance; timers stop to register others at time 200.
struct Chance {
    seed: u64,
}

impl Chance {
    fn act(&self, time: i64, context: &KeyedContext<'_, u8>) {
        let (registered, deleted) = timer_actions(self.seed, context.current_key(), time);
        let timers = context.timer_service();
        deleted.into_iter().for_each(|time| timers.delete_event_time_timer(time));
        registered.into_iter().filter(|time| *time < 200).for_each(|time| timers.register_event_time_timer(time));
    }
}

impl KeyedProcessFunction<u8, (u8, i64)> for Chance {
    type Output = (u8, i64);

    fn process_element(
        &self,
        (_, time): (u8, i64),
        context: &mut KeyedContext<'_, u8>,
        _: &mut Collector<(u8, i64)>,
    ) -> Result<()> {
        self.act(time, context);
        Ok(())
    }

    fn on_timer(&self, time: i64, context: &mut OnTimerContext<'_, u8>, out: &mut Collector<(u8, i64)>) -> Result<()> {
        out.collect((context.current_key(), time));
        self.act(time, context);
        Ok(())
    }
}

#[test]
fn timers_of_each_key_fire_as_those_of_a_model() {
    let mut fired = 0;
    for seed in 0..10_000 {
        let by_key =
            move |numbers: DataStream<(u8, i64)>| numbers.key_by(|number| number.0).process(move |_| Chance { seed });
        let mut harness = TestHarness::of_stream(by_key).unwrap();
        let mut waiting: BTreeMap<u8, BTreeMap<i64, ()>> = BTreeMap::new();
        let mut expected: BTreeMap<u8, Vec<i64>> = BTreeMap::new();
        let act = |waiting: &mut BTreeMap<u8, BTreeMap<i64, ()>>, key: u8, time: i64| {
            let timers = waiting.entry(key).or_default();
            let (registered, deleted) = timer_actions(seed, key, time);
            deleted.iter().for_each(|time| _ = timers.remove(time));
            timers.extend(registered.into_iter().filter(|time| *time < 200).map(|time| (time, ())));
        };
        for round in 0..4 {
            for row in 0..mixed(seed, 77, round) % 4 {
                let (key, time) = ((row % 2) as u8, (mixed(seed, 78, round * 9 + row as i64) % 60) as i64);
                harness.push::<(u8, i64)>(&(key, time)).unwrap();
                act(&mut waiting, key, time);
            }
            let watermark = round * 25 + 10;
            let before = harness.records::<(u8, i64)>().unwrap().len();
            harness.process_watermark(watermark).unwrap();
            // Those of all keys go by one clock.
            let fired = &harness.records::<(u8, i64)>().unwrap()[before..];
            assert!(fired.is_sorted_by_key(|(_, time)| *time), "seed {seed}: {fired:?}");
            for key in [0, 1] {
                while let Some((time, ())) = waiting.entry(key).or_default().first_key_value().map(|(t, ())| (*t, ()))
                    && time <= watermark
                {
                    waiting.entry(key).or_default().remove(&time);
                    expected.entry(key).or_default().push(time);
                    act(&mut waiting, key, time);
                }
            }
        }
        let mut actual: BTreeMap<u8, Vec<i64>> = BTreeMap::new();
        harness
            .records::<(u8, i64)>()
            .unwrap()
            .into_iter()
            .for_each(|(key, time)| actual.entry(key).or_default().push(time));
        assert_eq!(actual, expected, "seed {seed}");
        fired += actual.values().map(Vec::len).sum::<usize>();
    }
    assert!(20_000 < fired, "{fired} timers fired");
}

/// Registers a timer for each of the next times, until time 20,000: so many for each that fires.
struct EachTime {
    ahead: i64,
}

impl KeyedProcessFunction<u8, (u8, i64)> for EachTime {
    type Output = (u8, i64);

    fn process_element(
        &self,
        (_, time): (u8, i64),
        context: &mut KeyedContext<'_, u8>,
        _: &mut Collector<(u8, i64)>,
    ) -> Result<()> {
        context.timer_service().register_event_time_timer(time);
        Ok(())
    }

    fn on_timer(&self, time: i64, context: &mut OnTimerContext<'_, u8>, out: &mut Collector<(u8, i64)>) -> Result<()> {
        out.collect((context.current_key(), time));
        if time % self.ahead == 0 {
            let next = (time + 1..=time + self.ahead).take_while(|time| *time <= 20_000);
            next.for_each(|time| context.timer_service().register_event_time_timer(time));
        }
        Ok(())
    }
}

#[test]
fn timers_fire_in_their_order_however_many_a_callback_registers() {
    for ahead in [1, 100, 20_000] {
        let by_key = move |numbers: DataStream<(u8, i64)>| {
            numbers.key_by(|number| number.0).process(move |_| EachTime { ahead })
        };
        let mut harness = TestHarness::of_stream(by_key).unwrap();
        for (key, time) in [(1, 0), (2, 1), (2, 9_999), (2, 15_001), (2, 30_001)] {
            harness.push::<(u8, i64)>(&(key, time)).unwrap();
        }
        harness.process_watermark(40_000).unwrap();
        let fired = harness.records::<(u8, i64)>().unwrap();
        assert!(fired.is_sorted_by_key(|(_, time)| *time), "{ahead} ahead");
        let times = |key| fired.iter().filter(move |timer| timer.0 == key).map(|timer| timer.1);
        assert!(times(1).eq(0..=20_000), "{ahead} ahead");
        match ahead {
            1 => assert!(times(2).eq((1..=20_000).chain([30_001]))),
            _ => assert!(times(2).eq([1, 9_999, 15_001, 30_001]), "{ahead} ahead"),
        }
    }
}
