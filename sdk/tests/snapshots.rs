//! Jobs that go on from a snapshot, compared with jobs that were never interrupted.

use std::{collections::BTreeMap, time::Duration};

use engine_sdk::{AggregateFunction, Result, TestHarness, TestSnapshot, prelude::*};

/// Notes what it is told in a state of each kind, and says what is in them.
struct AllKinds {
    count: ValueState<u64>,
    words: ListState<String>,
    by_word: MapState<String, u64>,
    longest: ReducingState<String>,
    mean: AggregatingState<String, MeanLength>,
    short_lived: ValueState<u64>,
}

#[derive(Clone)]
struct MeanLength;

impl AggregateFunction<String> for MeanLength {
    type Accumulator = (u64, u64);
    type Output = u64;

    fn create_accumulator(&self) -> (u64, u64) {
        (0, 0)
    }

    fn add(&self, word: &String, (count, length): &mut (u64, u64)) {
        *count += 1;
        *length += word.len() as u64;
    }

    fn get_result(&self, (count, length): &(u64, u64)) -> u64 {
        length / count
    }

    fn merge(&self, accumulator: &mut (u64, u64), other: (u64, u64)) {
        *accumulator = (accumulator.0 + other.0, accumulator.1 + other.1);
    }
}

/// Key and word.
type Word = (u8, String);

impl KeyedProcessFunction<u8, Word> for AllKinds {
    type Output = String;

    fn process_element(
        &self,
        (key, word): Word,
        context: &mut KeyedContext<'_, u8>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        let count = self.count.value().unwrap_or(0) + 1;
        self.count.update(count);
        self.words.add(&word);
        self.by_word.modify(&word, |count| *count = Some(count.unwrap_or(0) + 1));
        self.longest.add(word.clone());
        self.mean.add(&word);
        let seen_lately = self.short_lived.value();
        self.short_lived.update(count);
        let timer = context.timestamp().unwrap_or(0) + 10;
        context.timer_service().register_event_time_timer(timer);
        out.collect(format!(
            "{key} {count} {:?} {:?} {:?} {:?} {seen_lately:?}",
            self.words.get(),
            self.by_word.entries(),
            self.longest.get(),
            self.mean.get(),
        ));
        Ok(())
    }

    fn on_timer(
        &self,
        timestamp: i64,
        context: &mut OnTimerContext<'_, u8>,
        out: &mut Collector<String>,
    ) -> Result<()> {
        let key = context.current_key();
        out.collect(format!("{key} timer {timestamp} of {:?}", self.count.value()));
        if timestamp % 3 == 0 {
            self.words.clear();
            self.by_word.clear();
        }
        Ok(())
    }
}

fn keyed(env: &StreamExecutionEnvironment, _: &Args) -> Result<()> {
    env.from_source(FileSource::json_lines::<Word>("input"))
        .key_by(|word: &Word| word.0)
        .process(|states: &mut States| AllKinds {
            count: states.value("count"),
            words: states.list("words"),
            by_word: states.map("by word"),
            longest: states.reducing("longest", |a: String, b: String| if a.len() < b.len() { b } else { a }),
            mean: states.aggregating("mean", MeanLength),
            short_lived: states
                .value("short lived")
                .enable_time_to_live(StateTtlConfig::new(Duration::from_millis(50))),
        })
        .sink_to(DiscardSink);
    Ok(())
}

/// What happens to a job.
#[derive(Clone, Debug)]
enum Step {
    Push { key: u8, word: String, timestamp: i64 },
    Watermark(i64),
    Clock(i64),
}

fn apply(harness: &mut TestHarness, steps: &[Step]) -> Vec<String> {
    let before = harness.records::<String>().expect("it fits").len();
    for step in steps {
        match step {
            Step::Push { key, word, timestamp } => {
                harness.push_with_timestamp::<Word>(&(*key, word.clone()), *timestamp).expect("it fits");
            }
            Step::Watermark(time) => harness.process_watermark(*time).expect("it fits"),
            Step::Clock(now) => harness.set_processing_time(*now).expect("it fits"),
        }
    }
    harness.records::<String>().expect("it fits").split_off(before)
}

/// Lines of each key.
fn by_key(lines: Vec<String>) -> BTreeMap<String, Vec<String>> {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in lines {
        let key = line.split(' ').next().expect("it fits").to_owned();
        keys.entry(key).or_default().push(line);
    }
    keys
}

/// Numbers of a linear congruence, high bits only.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }

    fn steps(&mut self, count: u64, time: &mut i64, clock: &mut i64) -> Vec<Step> {
        let mut step = || match self.below(10) {
            0 => {
                *time += 7;
                Step::Watermark(*time)
            }
            1 => {
                *clock += 20;
                Step::Clock(*clock)
            }
            _ => Step::Push {
                key: u8::try_from(self.below(9)).expect("it fits"),
                word: ["a", "bb", "ccc", "dddd"][usize::try_from(self.below(4)).expect("it fits")].to_owned(),
                timestamp: *time + i64::try_from(self.below(20)).expect("it fits"),
            },
        };
        (0..count).map(|_| step()).collect()
    }
}

#[test]
fn keyed_state_and_timers_go_on_with_any_parallelism() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let (mut time, mut clock) = (0, 0);
        let count = random.below(80);
        let before = random.steps(count, &mut time, &mut clock);
        let count = random.below(80);
        let mut after = random.steps(count, &mut time, &mut clock);
        after.push(Step::Watermark(i64::MAX));

        // A snapshot leaves the job as it is, and so do later ones.
        let mut whole = TestHarness::new(keyed, &[]).unwrap();
        apply(&mut whole, &before);
        let snapshot = whole.snapshot().unwrap();
        assert_eq!(whole.snapshot().unwrap(), snapshot, "seed {seed}");
        let expected = by_key(apply(&mut whole, &after));
        let mut uninterrupted = TestHarness::new(keyed, &[]).unwrap();
        apply(&mut uninterrupted, &before);
        assert_eq!(by_key(apply(&mut uninterrupted, &after)), expected, "seed {seed}");

        let clock_at_snapshot = before.iter().rev().find_map(|step| match step {
            Step::Clock(now) => Some(*now),
            Step::Push { .. } | Step::Watermark(_) => None,
        });
        let resume = |harness: &mut TestHarness| {
            harness.set_processing_time(clock_at_snapshot.unwrap_or(0)).unwrap();
            by_key(apply(harness, &after))
        };
        let mut restored = TestHarness::restore(keyed, &[], &snapshot).unwrap();
        assert_eq!(resume(&mut restored), expected, "seed {seed}");

        // Each key goes on in one of three subtasks; in the others it is new.
        let mut owners: BTreeMap<String, u32> = BTreeMap::new();
        let mut parts = Vec::new();
        for subtask in 0..3 {
            let mut part = TestHarness::restore_subtask(keyed, &[], &snapshot, subtask, 3).unwrap();
            parts.push(part.snapshot().unwrap());
            for (key, lines) in resume(&mut part) {
                if expected[&key] == lines {
                    *owners.entry(key).or_default() += 1;
                }
            }
        }
        assert!(expected.keys().all(|key| owners.contains_key(key)), "seed {seed}: {owners:?}");
        // Together the parts are the whole again.
        let together = TestSnapshot::of_subtasks(parts);
        let mut restored = TestHarness::restore(keyed, &[], &together).unwrap();
        assert_eq!(resume(&mut restored), expected, "seed {seed}");
    }
}

/// Numbers the records; behind another operator of its segment.
struct Numbering {
    own: OperatorListState<u64>,
    all: OperatorListState<String>,
}

impl ProcessFunction<Word> for Numbering {
    type Output = String;

    fn process_element(&self, (_, word): Word, _: &mut Context<'_>, out: &mut Collector<String>) -> Result<()> {
        let number = self.own.get().iter().max().copied().unwrap_or(0) + 1;
        self.own.add(number);
        self.all.add(word.clone());
        out.collect(format!("{number} {word} {:?}", self.all.get()));
        Ok(())
    }
}

fn numbered(env: &StreamExecutionEnvironment, _: &Args) -> Result<()> {
    env.from_source(FileSource::json_lines::<Word>("input"))
        .filter(|word| !word.1.is_empty())
        .process_function(|states: &mut States| Numbering {
            own: states.operator_list("own"),
            all: states.operator_union_list("all"),
        })
        .map(|line: String| line)
        .sink_to(DiscardSink);
    Ok(())
}

#[test]
fn operator_lists_are_dealt_and_union_lists_go_to_all() {
    let mut harness = TestHarness::new(numbered, &[]).unwrap();
    for word in ["a", "b", "", "c"] {
        harness.push::<Word>(&(0, word.to_owned())).unwrap();
    }
    let snapshot = harness.snapshot().unwrap();
    let next = |subtask, parallelism| {
        let mut harness = TestHarness::restore_subtask(numbered, &[], &snapshot, subtask, parallelism).unwrap();
        harness.push::<Word>(&(0, "x".to_owned())).unwrap();
        harness.records::<String>().unwrap().concat()
    };
    let all = r#"["a", "b", "c", "x"]"#;
    assert_eq!(next(0, 1), format!("4 x {all}"));
    // Of 1, 2, 3 the first subtask has 1 and 2, and the last of four none.
    assert_eq!(next(0, 2), format!("3 x {all}"));
    assert_eq!(next(1, 2), format!("4 x {all}"));
    assert_eq!(next(3, 4), format!("1 x {all}"));
}

/// Passes on the words for which there is a rule.
struct Rules {
    rules: BroadcastState<u8, String>,
}

impl BroadcastProcessFunction<Word, Word> for Rules {
    type Output = String;

    fn process_element(&self, (key, word): Word, _: &mut Context<'_>, out: &mut Collector<String>) -> Result<()> {
        self.rules.with(&key, |rule| rule.map(|rule| out.collect(format!("{word} {rule}"))));
        Ok(())
    }

    fn process_broadcast_element(
        &self,
        (key, rule): Word,
        context: &mut BroadcastContext<'_>,
        _: &mut Collector<String>,
    ) -> Result<()> {
        match rule.as_str() {
            "none" => context.broadcast_state(&self.rules).remove(&key),
            _ => context.broadcast_state(&self.rules).put(&key, rule),
        }
        Ok(())
    }
}

fn ruled(env: &StreamExecutionEnvironment, _: &Args) -> Result<()> {
    let words = env.from_source(FileSource::json_lines::<Word>("words")).name("Words");
    let rules = env.from_source(FileSource::json_lines::<Word>("rules")).name("Rules");
    words
        .connect_broadcast(&rules)
        .process(|states: &mut States| Rules { rules: states.broadcast("rules") })
        .sink_to(DiscardSink);
    Ok(())
}

#[test]
fn broadcast_state_is_the_same_in_each_subtask() {
    let mut harness = TestHarness::new(ruled, &[]).unwrap();
    for (key, rule) in [(1, "one"), (2, "two"), (3, "three"), (2, "none")] {
        harness.push_to::<Word>("Rules", &(key, rule.to_owned())).unwrap();
    }
    let snapshot = harness.snapshot().unwrap();
    for (subtask, parallelism) in [(0, 1), (0, 2), (1, 2)] {
        let mut restored = TestHarness::restore_subtask(ruled, &[], &snapshot, subtask, parallelism).unwrap();
        restored.push_to::<Word>("Rules", &(3, "changed".to_owned())).unwrap();
        for key in 1..4 {
            restored.push_to::<Word>("Words", &(key, "word".to_owned())).unwrap();
        }
        assert_eq!(restored.records::<String>().unwrap(), ["word one", "word changed"]);
    }
}

#[test]
fn elements_of_a_list_are_read_once() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        env.from_elements(vec![1_i64, 2, 3]).sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    let before = harness.snapshot().unwrap();
    harness.finish().unwrap();
    assert_eq!(harness.records::<i64>().unwrap(), [1, 2, 3]);
    let behind = harness.snapshot().unwrap();
    for (snapshot, expected) in [(before, vec![1, 2, 3]), (behind, vec![])] {
        let mut restored = TestHarness::restore(program, &[], &snapshot).unwrap();
        restored.finish().unwrap();
        assert_eq!(restored.records::<i64>().unwrap(), expected);
    }
}
