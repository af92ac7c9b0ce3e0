//! Operators of two inputs, through the test harness.

use engine_sdk::{Result, TestHarness, prelude::*};

#[test]
fn both_streams_are_mapped_to_one() {
    let mut harness = TestHarness::of_two_streams(|numbers: DataStream<i64>, lines: DataStream<str>| {
        let connected = numbers.connect(&lines);
        let mapped = connected.map(|n| n * 2, |line| line.len() as i64);
        let multiplied = connected.flat_map(
            |n, out: &mut Collector<i64>| (0..n).for_each(|i| out.collect(100 + i)),
            |line, out: &mut Collector<i64>| -> Result<()> {
                out.collect(line.parse()?);
                Ok(())
            },
        );
        let processed = connected.process(
            |n, context: &mut Context<'_>, out: &mut Collector<i64>| out.collect(n + context.timestamp().unwrap_or(0)),
            |_, context: &mut Context<'_>, out: &mut Collector<i64>| out.collect(context.current_watermark()),
        );
        mapped.union(&multiplied).union(&processed)
    })
    .unwrap();
    harness.push_first::<i64>(&2, Some(1000)).unwrap();
    harness.process_watermark(77).unwrap();
    harness.push_second::<str>("-555", None).unwrap();
    let mut records = harness.records::<i64>().unwrap();
    records.sort_unstable();
    assert_eq!(records, [-555, 4, 4, 77, 100, 101, 1002]);
    let error = harness.push_second::<str>("x", None).unwrap_err();
    assert_eq!(error.to_string(), "\"Co-Flat-Map\": invalid digit found in string");
}

/// Pairs an order with its payment; after 100 ms of event time the one goes without the other.
struct Match {
    order: ValueState<String>,
    payment: ValueState<u64>,
}

type Order = (u32, String);
type Payment = (u32, u64);
type Matched = (u32, Option<String>, Option<u64>);

impl Match {
    fn emit(&self, context: &KeyedContext<'_, u32>, out: &mut Collector<Matched>) {
        out.collect((context.current_key(), self.order.value(), self.payment.value()));
        self.order.clear();
        self.payment.clear();
    }

    fn wait_or_emit(&self, is_matched: bool, context: &KeyedContext<'_, u32>, out: &mut Collector<Matched>) {
        match is_matched {
            true => self.emit(context, out),
            false => context.timer_service().register_event_time_timer(context.timestamp().unwrap_or(0) + 100),
        }
    }
}

impl KeyedCoProcessFunction<u32, Order, Payment> for Match {
    type Output = Matched;

    fn process_element1(
        &self,
        (_, order): Order,
        context: &mut KeyedContext<'_, u32>,
        out: &mut Collector<Matched>,
    ) -> Result<()> {
        self.order.update(order);
        self.wait_or_emit(self.payment.value().is_some(), context, out);
        Ok(())
    }

    fn process_element2(
        &self,
        (_, amount): Payment,
        context: &mut KeyedContext<'_, u32>,
        out: &mut Collector<Matched>,
    ) -> Result<()> {
        self.payment.update(amount);
        self.wait_or_emit(self.order.value().is_some(), context, out);
        Ok(())
    }

    fn on_timer(&self, _: i64, context: &mut OnTimerContext<'_, u32>, out: &mut Collector<Matched>) -> Result<()> {
        if self.order.value().is_some() || self.payment.value().is_some() {
            self.emit(context, out);
        }
        Ok(())
    }
}

#[test]
fn two_keyed_streams_share_state_and_timers() {
    let mut harness = TestHarness::of_two_streams(|orders: DataStream<Order>, payments: DataStream<Payment>| {
        let new = |states: &mut States| Match { order: states.value("order"), payment: states.value("payment") };
        let keyed = orders.key_by(|order| order.0).connect(&payments.key_by(|payment| payment.0));
        let by_connected = orders.connect(&payments).key_by(|order| order.0, |payment| payment.0);
        keyed.process(new).union(&by_connected.process(new))
    })
    .unwrap();
    let order = |key: u32, text: &str| (key, text.to_owned());
    harness.push_first::<Order>(&order(1, "one"), Some(0)).unwrap();
    harness.push_second::<Payment>(&(2, 20), Some(10)).unwrap();
    harness.push_second::<Payment>(&(1, 10), Some(20)).unwrap();
    harness.push_first::<Order>(&order(3, "three"), Some(30)).unwrap();
    let source = |number| ["Source: First", "Source: Second"][number];
    // Event time is that of the stream that is behind.
    harness.process_watermark_of(source(0), 1000).unwrap();
    let matched = |key: u32, text: Option<&str>, amount| (key, text.map(str::to_owned), amount);
    let one = matched(1, Some("one"), Some(10));
    assert_eq!(harness.records::<Matched>().unwrap(), [one.clone(), one.clone()]);
    harness.process_watermark_of(source(1), 120).unwrap();
    let two = matched(2, None, Some(20));
    assert_eq!(harness.records::<Matched>().unwrap()[2..], [two.clone(), two.clone()]);
    harness.finish().unwrap();
    let three = matched(3, Some("three"), None);
    assert_eq!(harness.records::<Matched>().unwrap()[4..], [three.clone(), three]);
}

/// Keeps the numbers that a rule allows; counts them by key.
struct Rules {
    limits: BroadcastState<str, u64>,
    count: ValueState<u64>,
}

impl KeyedBroadcastProcessFunction<u8, u64, (String, Option<u64>)> for Rules {
    type Output = (u8, u64, u64);

    fn process_element(
        &self,
        number: u64,
        context: &mut KeyedContext<'_, u8>,
        out: &mut Collector<(u8, u64, u64)>,
    ) -> Result<()> {
        let mut is_allowed = true;
        self.limits.for_each(|_, limit| is_allowed &= number <= *limit);
        if is_allowed {
            let count = self.count.modify(|count| {
                *count = Some(count.unwrap_or(0) + 1);
                count.unwrap_or(0)
            });
            out.collect((context.current_key(), number, count));
        }
        Ok(())
    }

    fn process_broadcast_element(
        &self,
        (name, limit): (String, Option<u64>),
        context: &mut BroadcastContext<'_>,
        _: &mut Collector<(u8, u64, u64)>,
    ) -> Result<()> {
        let limits = context.broadcast_state(&self.limits);
        match limit {
            Some(limit) => limits.put(&name, limit),
            None => limits.remove(&name),
        }
        Ok(())
    }
}

#[test]
fn broadcast_records_rule_a_keyed_stream() {
    let mut harness =
        TestHarness::of_two_streams(|numbers: DataStream<u64>, rules: DataStream<(String, Option<u64>)>| {
            let keyed = numbers.key_by(|n| u8::from(n % 2 == 0));
            keyed
                .connect_broadcast(&rules)
                .process(|states| Rules { limits: states.broadcast("limits"), count: states.value("count") })
        })
        .unwrap();
    let rule = |name: &str, limit| (name.to_owned(), limit);
    harness.push_first::<u64>(&50, None).unwrap();
    harness.push_second::<(String, Option<u64>)>(&rule("a", Some(10)), None).unwrap();
    harness.push_first::<u64>(&52, None).unwrap();
    harness.push_first::<u64>(&8, None).unwrap();
    harness.push_second::<(String, Option<u64>)>(&rule("b", Some(7)), None).unwrap();
    harness.push_first::<u64>(&8, None).unwrap();
    harness.push_second::<(String, Option<u64>)>(&rule("b", None), None).unwrap();
    harness.push_first::<u64>(&9, None).unwrap();
    assert_eq!(harness.records::<(u8, u64, u64)>().unwrap(), [(1, 50, 1), (1, 8, 2), (0, 9, 1)]);
}

/// Marks words that were broadcast before.
struct Mark {
    known: BroadcastState<str, bool>,
}

impl BroadcastProcessFunction<str, str> for Mark {
    type Output = str;

    fn process_element(&self, word: &str, _: &mut Context<'_>, out: &mut Collector<str>) -> Result<()> {
        match self.known.contains(word) {
            true => out.write(format_args!("<{word}>")),
            false => out.collect(word),
        }
        Ok(())
    }

    fn process_broadcast_element(
        &self,
        word: &str,
        context: &mut BroadcastContext<'_>,
        _: &mut Collector<str>,
    ) -> Result<()> {
        context.broadcast_state(&self.known).put(word, true);
        Ok(())
    }
}

#[test]
fn broadcast_records_rule_a_stream_without_key() {
    let mut harness = TestHarness::of_two_streams(|words: DataStream<str>, known: DataStream<str>| {
        words.connect_broadcast(&known).process(|states| Mark { known: states.broadcast("known") })
    })
    .unwrap();
    harness.push_second::<str>("a", None).unwrap();
    harness.push_first::<str>("a", None).unwrap();
    harness.push_first::<str>("b", None).unwrap();
    harness.finish().unwrap();
    assert_eq!(harness.lines().unwrap(), ["<a>", "b"]);
}

struct Keyless {
    known: BroadcastState<str, bool>,
    _count: ValueState<u64>,
}

impl BroadcastProcessFunction<str, str> for Keyless {
    type Output = str;

    fn process_element(&self, word: &str, _: &mut Context<'_>, out: &mut Collector<str>) -> Result<()> {
        self.known.with(word, |_| out.collect(word));
        Ok(())
    }

    fn process_broadcast_element(&self, _: &str, _: &mut BroadcastContext<'_>, _: &mut Collector<str>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn keyed_state_needs_a_key() {
    let harness = TestHarness::of_two_streams(|words: DataStream<str>, known: DataStream<str>| {
        words
            .connect_broadcast(&known)
            .process(|states| Keyless { known: states.broadcast("known"), _count: states.value("count") })
    });
    let error = harness.map(|_| ()).unwrap_err().to_string();
    assert_eq!(error, "\"Broadcast Process\" has the keyed state \"count\", but its stream has no key");
}
