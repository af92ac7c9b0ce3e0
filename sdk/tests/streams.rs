//! What streams do, run through the test harness: chained into segments and
//! each operator on its own.

use std::collections::BTreeMap;

use engine_sdk::{
    AggregateFunction, Counter, Error, Gauge, Histogram, RecordFormat, Result, RuntimeContext, SourceFunction,
    SourceStatus, TestHarness, Text, prelude::*,
};

#[derive(Record, Clone, Debug, PartialEq)]
struct Sale {
    shop: String,
    amount: i64,
}

fn sale(shop: &str, amount: i64) -> Sale {
    Sale { shop: shop.to_owned(), amount }
}

/// Runs a function from stream to stream over records; chained or not must make no difference.
#[track_caller]
fn run<T, U>(function: impl Fn(DataStream<T>) -> DataStream<U>, records: &[T]) -> Vec<U>
where
    T: engine_sdk::Owned,
    U: engine_sdk::Owned + PartialEq + std::fmt::Debug,
{
    let collect = |mut harness: TestHarness| {
        for record in records {
            harness.push::<T>(record).expect("the job takes the record");
        }
        harness.finish().expect("the job ends");
        harness.records::<U>().expect("the sink takes this type")
    };
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        function(env.from_source(FileSource::json_lines::<T>("input"))).sink_to(DiscardSink);
        Ok(())
    };
    let chained = collect(TestHarness::new(program, &[]).expect("a sound program"));
    assert_eq!(chained, collect(TestHarness::unchained(program, &[]).expect("a sound program")));
    chained
}

#[track_caller]
fn plan_error(program: impl FnOnce(&StreamExecutionEnvironment)) -> String {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        program(env);
        Ok(())
    };
    TestHarness::new(program, &[]).map(|_| ()).expect_err("a mistake").to_string()
}

#[test]
fn records_are_mapped_filtered_and_multiplied() {
    let numbers: Vec<i64> = (0..10).collect();
    let out = run(
        |numbers: DataStream<i64>| {
            numbers
                .map(|n| n * n)
                .filter(|n| n % 2 == 0)
                .flat_map(|n, out: &mut Collector<str>| (0..n / 16).for_each(|i| out.write(format_args!("{n}/{i}"))))
                .map(str::to_owned)
        },
        &numbers,
    );
    assert_eq!(out, ["16/0", "36/0", "36/1", "64/0", "64/1", "64/2", "64/3"]);
}

#[test]
fn keyed_functions_emit_an_update_for_each_record() {
    let sales = [sale("a", 3), sale("b", 5), sale("a", -4), sale("a", 1)];
    let by_shop = |sales: &DataStream<Sale>| sales.key_by_ref(|sale| &sale.shop);
    let owned = |pairs: DataStream<Pair<String, i64>>| pairs.map(|(shop, value)| sale(shop, value));
    let sums = run(|sales: DataStream<Sale>| owned(by_shop(&sales).sum(|sale| sale.amount)), &sales);
    assert_eq!(sums, [sale("a", 3), sale("b", 5), sale("a", -1), sale("a", 0)]);
    let least = run(|sales: DataStream<Sale>| owned(by_shop(&sales).min(|sale| sale.amount)), &sales);
    assert_eq!(least, [sale("a", 3), sale("b", 5), sale("a", -4), sale("a", -4)]);
    let greatest = run(|sales: DataStream<Sale>| owned(by_shop(&sales).max(|sale| sale.amount)), &sales);
    assert_eq!(greatest, [sale("a", 3), sale("b", 5), sale("a", 3), sale("a", 3)]);
    let reduced = run(
        |sales: DataStream<Sale>| by_shop(&sales).reduce(|a, b| Sale { amount: a.amount * 10 + b.amount, ..a }),
        &sales,
    );
    assert_eq!(reduced, [sale("a", 3), sale("b", 5), sale("a", 26), sale("a", 261)]);
    let counts = run(|sales: DataStream<Sale>| by_shop(&sales).count().map(|(shop, n)| (shop.clone(), n)), &sales);
    assert_eq!(counts, [("a", 1), ("b", 1), ("a", 2), ("a", 3)].map(|(shop, n)| (shop.to_owned(), n)));
}

/// Sum and number of the amounts.
struct Average;

impl AggregateFunction<Sale> for Average {
    type Accumulator = (i64, i64);
    type Output = f64;

    fn create_accumulator(&self) -> (i64, i64) {
        (0, 0)
    }

    fn add(&self, sale: &Sale, (sum, count): &mut (i64, i64)) {
        *sum += sale.amount;
        *count += 1;
    }

    fn get_result(&self, (sum, count): &(i64, i64)) -> f64 {
        *sum as f64 / *count as f64
    }

    fn merge(&self, accumulator: &mut (i64, i64), other: (i64, i64)) {
        accumulator.0 += other.0;
        accumulator.1 += other.1;
    }
}

#[test]
fn windows_over_the_whole_stream_emit_once_for_each_key() {
    let sales = [sale("a", 3), sale("b", 5), sale("a", -4), sale("a", 4)];
    let end = GlobalWindows::end_of_stream;
    let by_shop = |sales: &DataStream<Sale>| sales.key_by_ref(|sale| &sale.shop).window(end());
    let averages = run(
        |sales: DataStream<Sale>| by_shop(&sales).aggregate(Average).map(|(shop, average)| (shop.clone(), average)),
        &sales,
    );
    assert_eq!(averages, [("a".to_owned(), 1.0), ("b".to_owned(), 5.0)]);
    let reduced =
        run(|sales: DataStream<Sale>| by_shop(&sales).reduce(|a, b| if a.amount < b.amount { b } else { a }), &sales);
    assert_eq!(reduced, [sale("a", 4), sale("b", 5)]);
    let sums = run(
        |sales: DataStream<Sale>| {
            let sums = sales.key_by(|sale| sale.amount % 2 == 0).window(end()).sum(|sale| sale.amount);
            sums.map(|(even, sum)| (*even, sum))
        },
        &sales,
    );
    assert_eq!(sums, [(false, 8), (true, 0)]);
}

#[test]
fn results_of_the_end_stand_at_the_end_of_time() {
    let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
        lines.key_by_ref(|line| line).window(GlobalWindows::end_of_stream()).count()
    })
    .unwrap();
    harness.push_with_timestamp::<str>("a", 5).unwrap();
    harness.process_watermark(7).unwrap();
    assert_eq!(harness.records::<(String, u64)>().unwrap(), []);
    harness.finish().unwrap();
    assert_eq!(harness.records_with_timestamps::<(String, u64)>().unwrap(), [(("a".to_owned(), 1), Some(i64::MAX))]);
}

#[derive(Record)]
struct Visit<'a> {
    page: &'a str,
    user: u32,
}

#[test]
fn borrowed_records_are_keyed_by_what_they_borrow() {
    let mut harness = TestHarness::of_stream(|visits: DataStream<Visit<'static>>| {
        visits
            .filter(|visit| visit.user != 0)
            .flat_map(|visit, out: &mut Collector<Visit<'_>>| {
                out.collect(Visit { page: visit.page.trim_matches('/'), ..visit })
            })
            .key_by_with(|visit, key: &mut KeyWriter<str>| key.set(visit.page))
            .max(|visit| visit.user)
    })
    .unwrap();
    for (page, user) in [("/a", 1), ("b/", 9), ("a", 0), ("/a/", 3)] {
        harness.push::<Visit<'_>>(&Visit { page, user }).unwrap();
    }
    let expected = [("a", 1), ("b", 9), ("a", 3)].map(|(page, user)| (page.to_owned(), user));
    assert_eq!(harness.records::<(String, u32)>().unwrap(), expected);
}

#[test]
fn one_stream_feeds_several_and_several_join() {
    let out = run(
        |numbers: DataStream<i64>| {
            let doubled = numbers.map(|n| n * 2).name("Double");
            let small = doubled.filter(|n| *n < 10).map(|n| n + 1000);
            let text =
                doubled.map(|n| n.to_string()).filter(|text| text.len() == 2).try_map(|text| Ok(text.parse::<i64>()?));
            small.union(&text).union(&doubled)
        },
        &[1, 5, 60],
    );
    let mut sorted = out.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, [2, 10, 10, 120, 1002]);
}

#[test]
fn side_outputs_carry_other_types() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let long = OutputTag::<str>::new("long");
        let lengths = OutputTag::<u64>::new("lengths");
        let nobody = OutputTag::<u8>::new("nobody");
        let (to_long, to_lengths) = (long.clone(), lengths.clone());
        let words = env.from_source(FileSource::text_lines("words")).process(
            move |word: &str, context: &mut Context<'_>, out: &mut Collector<str>| {
                context.output(&nobody, 1);
                context.output(&to_lengths, word.len() as u64);
                if word.len() < 4 { out.collect(word) } else { context.output(&to_long, word) }
            },
        );
        words.sink_to(FileSink::text_lines("short")).name("short");
        words.get_side_output(&long).map(str::to_uppercase).sink_to(FileSink::text_lines("long")).name("long");
        words.get_side_output(&lengths).sink_to(DiscardSink).name("lengths");
        Ok(())
    };
    for harness in [TestHarness::new(program, &[]), TestHarness::unchained(program, &[])] {
        let mut harness = harness.unwrap();
        for word in ["to", "remember", "me"] {
            harness.push::<str>(word).unwrap();
        }
        assert_eq!(harness.records_of::<String>("short").unwrap(), ["to", "me"]);
        assert_eq!(harness.records_of::<String>("long").unwrap(), ["REMEMBER"]);
        assert_eq!(harness.records_of::<u64>("lengths").unwrap(), [2, 8, 2]);
    }
}

#[test]
fn text_of_a_stream_is_read_as_json_and_csv_of_records() {
    let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
        let json = JsonReader::<Pair<String, Vec<u64>>>::new().unwrap();
        let csv = CsvReader::<Pair<u64, String>>::new(b',').unwrap();
        lines.try_map(move |line| {
            json.read(line, |outer| {
                // By the same reader, while the outer record is lent.
                let ones = json.read("[\"\",[1,1]]", |inner| inner.1)?;
                csv.read(outer.0, |row| format!("{} {} {:?} {ones:?}", row.0, row.1, outer.1))
            })?
        })
    })
    .unwrap();
    harness.skip_rejected();
    for line in ["[\"7,seven\",[2,3]]", "[\"seven,7\",[]]", "[\"8,\\\"a,b\\\"\",[]]", "{}"] {
        harness.push::<str>(line).unwrap();
    }
    assert_eq!(harness.records::<String>().unwrap(), ["7 seven [2, 3] [1, 1]", "8 a,b [] [1, 1]"]);
    let rejected = harness.rejected();
    assert_eq!(rejected.len(), 2, "{rejected:?}");
    assert!(rejected[0].contains("\"seven\""), "{rejected:?}");
    assert_eq!(rejected[1], "column 1: expected an array, found an object");
}

#[test]
fn an_error_rejects_its_row() {
    let parse = |lines: DataStream<str>| lines.try_map(|line| Ok(line.parse::<i64>()?)).name("Parse");
    let mut harness = TestHarness::of_stream(parse).unwrap();
    harness.push::<str>("1").unwrap();
    assert_eq!(harness.push::<str>("x").unwrap_err().to_string(), "\"Parse\": invalid digit found in string");

    let mut harness = TestHarness::of_stream(parse).unwrap();
    harness.skip_rejected();
    for line in ["1", "x", "2"] {
        harness.push::<str>(line).unwrap();
    }
    assert_eq!(harness.records::<i64>().unwrap(), [1, 2]);
    assert_eq!(harness.rejected(), ["invalid digit found in string"]);
}

#[test]
fn a_row_is_rejected_once_with_its_first_error() {
    let mut harness = TestHarness::of_stream(|lines: DataStream<str>| {
        lines.flat_map(|line, out: &mut Collector<str>| line.split(',').for_each(|part| out.collect(part))).flat_map(
            |part: &str, out: &mut Collector<i64>| -> Result<()> {
                out.collect(part.parse().map_err(|_| Error::new(format!("\"{part}\" is no number")))?);
                Ok(())
            },
        )
    })
    .unwrap();
    harness.skip_rejected();
    harness.push::<str>("1,a,2,b").unwrap();
    assert_eq!(harness.rejected(), ["\"a\" is no number"]);
    assert_eq!(harness.records::<i64>().unwrap(), [1, 2]);
}

#[test]
fn a_sum_that_does_not_fit_is_rejected() {
    let mut harness = TestHarness::of_stream(|numbers: DataStream<i64>| numbers.key_by(|_| 0_u8).sum(|n| *n)).unwrap();
    harness.skip_rejected();
    for n in [i64::MAX, 1, -1] {
        harness.push::<i64>(&n).unwrap();
    }
    assert_eq!(harness.records::<(u8, i64)>().unwrap(), [(0, i64::MAX), (0, i64::MAX - 1)]);
    assert_eq!(harness.rejected(), ["the sum does not fit into i64"]);
}

#[test]
fn partitioners_choose_among_the_subtasks_of_the_next_operator() {
    let program = |env: &StreamExecutionEnvironment, args: &Args| {
        let limit = args.get_or("limit", 4_u32)?;
        env.from_sequence(0, 9)
            .partition_custom(move |n, channels| u32::try_from(*n).unwrap() % channels.min(limit))
            .map(|n| n + 1)
            .set_parallelism(4)
            .sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    harness.push::<i64>(&7).unwrap();
    assert_eq!(harness.records::<i64>().unwrap(), [8]);

    let mut harness =
        TestHarness::of_stream(|numbers: DataStream<i64>| numbers.partition_custom(|_, _| 9).map(|n| n)).unwrap();
    assert_eq!(harness.push::<i64>(&7).unwrap_err().to_string(), "\"Partition\": the partitioner chose channel 9 of 1");
}

/// Counts down to zero; the record at 3 is late.
struct Countdown(i64);

impl SourceFunction<i64> for Countdown {
    fn open(&mut self, context: &RuntimeContext) -> Result<()> {
        self.0 += i64::from(context.subtask_index);
        Ok(())
    }

    fn poll(&mut self, out: &mut Collector<i64>) -> Result<SourceStatus> {
        match self.0 {
            0 => return Ok(SourceStatus::End),
            3 => out.collect_with_timestamp(3, -3),
            n => out.collect(n),
        }
        self.0 -= 1;
        Ok(SourceStatus::More)
    }
}

#[test]
fn a_plugin_has_its_own_sources() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let numbers = env.from_source_function("Countdown", || Countdown(4));
        let elements = env.from_elements(vec![10, 20]);
        numbers.union(&elements).map(|n| n * 2).sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    harness.finish().unwrap();
    let expected = [(8, None), (6, Some(-3)), (4, None), (2, None), (20, None), (40, None)];
    assert_eq!(harness.records_with_timestamps::<i64>().unwrap(), expected);
}

#[test]
fn records_become_text_on_their_way_to_a_text_sink() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let numbers = env.from_sequence(1, 2);
        numbers.print().name("print");
        numbers.map(|n| (n, "a,b".to_owned())).sink_to(FileSink::csv("out")).name("csv");
        env.from_source(FileSource::text_lines("in")).print().name("plain");
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    harness.push_to::<i64>("Source: Sequence", &-7).unwrap();
    harness.push_to::<str>("Source: File", "as it is").unwrap();
    assert_eq!(harness.records_of::<String>("print").unwrap(), ["-7"]);
    assert_eq!(harness.records_of::<String>("csv").unwrap(), ["-7,\"a,b\""]);
    assert_eq!(harness.records_of::<String>("plain").unwrap(), ["as it is"]);
    assert!(RecordFormat::<str>::of::<Text>().is_none());
}

#[test]
fn metrics_and_log_lines_of_user_code_are_kept() {
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        let (words, longest, lengths) = (Counter::new("words"), Gauge::new("longest"), Histogram::new("lengths"));
        env.from_source(FileSource::text_lines("in"))
            .filter(move |word: &str| {
                words.inc();
                longest.set(word.len() as f64);
                lengths.record(word.len() as f64);
                engine_sdk::info!("saw {word}");
                true
            })
            .sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::new(program, &[]).unwrap();
    for word in ["to", "remember"] {
        harness.push::<str>(word).unwrap();
    }
    assert_eq!(harness.metric("words"), Some(2.0));
    assert_eq!(harness.metric("longest"), Some(8.0));
    assert_eq!(harness.metric("lengths"), Some(2.0));
    assert_eq!(harness.metric("absent"), None);
    assert_eq!(harness.log(), ["saw to", "saw remember"]);
}

#[test]
fn mistakes_in_the_use_of_streams_are_named() {
    assert_eq!(plan_error(|_| ()), "the program declares no stream");
    assert_eq!(
        plan_error(|env| _ = env.from_sequence(0, 1).rebalance().name("late")),
        "a setting such as `name` or `set_parallelism` must directly follow the operator that it is for"
    );
    assert_eq!(
        plan_error(|env| _ = env.from_source(StdinSource::text_lines()).set_parallelism(2)),
        "\"Source: Standard input\" can be read by one subtask only, not by 2"
    );
    assert_eq!(plan_error(|env| _ = env.set_parallelism(0)), "the parallelism must be at least 1");
    assert_eq!(
        plan_error(|env| {
            let numbers = env.from_sequence(0, 1).map(|n| n);
            numbers.get_side_output(&OutputTag::<u8>::new("late")).sink_to(DiscardSink);
            numbers.get_side_output(&OutputTag::<u16>::new("late")).sink_to(DiscardSink);
        }),
        "side output \"late\" is taken as u8 and as u16"
    );
    assert_eq!(
        plan_error(|env| _ = env.from_sequence(0, 1).shuffle().get_side_output(&OutputTag::<u8>::new("late"))),
        "side output \"late\" must be taken directly from its operator"
    );
}

#[test]
fn maps_within_records_keep_their_order() {
    let merged = run(
        |words: DataStream<String>| {
            let counts = words.map(|word| (word.len() as u64, BTreeMap::from([(word, 1_u32)])));
            counts.key_by(|_| ()).reduce(|(a, mut counts), (b, more)| {
                for (word, count) in more {
                    *counts.entry(word).or_insert(0) += count;
                }
                (a + b, counts)
            })
        },
        &["b", "a", "b"].map(str::to_owned),
    );
    assert_eq!(merged[2], (3, BTreeMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)])));
}
