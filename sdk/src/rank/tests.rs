//! Deduplication and top-n against models that look at plain vectors.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

use proptest::{collection::vec, prelude::*};

use crate::{Error, Keep, StateTtlConfig, TestHarness, prelude::*};

/// A record; `id` tells apart those that are otherwise equal.
#[derive(Record, Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
struct Bid {
    auction: u8,
    price: u8,
    id: u32,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Bid(Bid, i64),
    Watermark(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0_u8..8, 0_u8..3, 0_u8..4, -8_i64..8, 0_i64..3);
    vec(step, 0..40).prop_map(|steps| {
        let mut now = 0;
        let step = |(id, (kind, auction, price, distance, progress)): (u32, (u8, u8, u8, i64, i64))| {
            now += progress;
            match kind {
                0 => Step::Watermark(now - 5),
                _ => Step::Bid(Bid { auction, price, id }, now + distance),
            }
        };
        (0_u32..).zip(steps).map(step).collect()
    })
}

/// Nothing stays in the cache, something, or all.
fn cache_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(250), Just(1 << 24)]
}

fn bids(steps: &[Step]) -> impl Iterator<Item = (Bid, i64)> {
    steps.iter().filter_map(|step| match step {
        Step::Bid(bid, timestamp) => Some((*bid, *timestamp)),
        Step::Watermark(_) => None,
    })
}

/// What a job gave, in order.
fn run<U>(steps: &[Step], cache_bytes: u64, job: impl Fn(DataStream<Bid>) -> DataStream<U>) -> Vec<(U, i64)>
where
    U: crate::Owned,
{
    let program = |env: &StreamExecutionEnvironment, _: &Args| {
        job(env.from_source(FileSource::json_lines::<Bid>("bids"))).sink_to(DiscardSink);
        Ok(())
    };
    let mut harness = TestHarness::with_cache_bytes(program, &[], cache_bytes).unwrap();
    for step in steps {
        match step {
            Step::Bid(bid, timestamp) => harness.push_with_timestamp::<Bid>(bid, *timestamp).unwrap(),
            Step::Watermark(time) => harness.process_watermark(*time).unwrap(),
        }
    }
    harness.finish().unwrap();
    let records = harness.records_with_timestamps::<U>().unwrap();
    records.into_iter().map(|(record, timestamp)| (record, timestamp.unwrap())).collect()
}

/// The best bid of each auction by `order`, at the end of time.
fn best_at_end<O: Ord>(steps: &[Step], order: impl Fn(&Bid, i64) -> O) -> Vec<(Bid, i64)> {
    let mut best = BTreeMap::<u8, (O, Bid)>::new();
    for (bid, timestamp) in bids(steps) {
        let order = order(&bid, timestamp);
        if best.get(&bid.auction).is_none_or(|(known, _)| order < *known) {
            best.insert(bid.auction, (order, bid));
        }
    }
    best.into_values().map(|(_, bid)| (bid, i64::MAX)).collect()
}

/// Bids that were better than all of their auction before them.
fn improvements<O: Ord>(steps: &[Step], order: impl Fn(&Bid, i64) -> O) -> Vec<(Bid, i64)> {
    let mut best = BTreeMap::<u8, O>::new();
    let mut improvements = Vec::new();
    for (bid, timestamp) in bids(steps) {
        let order = order(&bid, timestamp);
        if best.get(&bid.auction).is_none_or(|known| order < *known) {
            best.insert(bid.auction, order);
            improvements.push((bid, timestamp));
        }
    }
    improvements
}

/// The earliest bid of each auction once the watermark has reached it; later ones are dropped.
fn first_final(steps: &[Step]) -> Vec<(Bid, i64)> {
    let mut waiting = BTreeMap::<u8, (i64, Bid)>::new();
    let mut done = Vec::new();
    let mut results = Vec::new();
    let mut watermark = i64::MIN;
    for step in steps.iter().chain([&Step::Watermark(i64::MAX)]) {
        match *step {
            Step::Bid(bid, _) if done.contains(&bid.auction) => {}
            Step::Bid(bid, timestamp) => {
                let first = waiting.entry(bid.auction).or_insert((timestamp, bid));
                if timestamp < first.0 {
                    *first = (timestamp, bid);
                }
            }
            Step::Watermark(time) if watermark < time => {
                watermark = time;
                let mut due: Vec<_> = waiting.extract_if(.., |_, (timestamp, _)| *timestamp <= time).collect();
                due.sort_by_key(|(_, (timestamp, _))| *timestamp);
                for (auction, (timestamp, bid)) in due {
                    done.push(auction);
                    results.push((bid, timestamp));
                }
            }
            Step::Watermark(_) => {}
        }
    }
    results
}

fn sorted(mut results: Vec<(Bid, i64)>) -> Vec<(Bid, i64)> {
    results.sort_unstable_by_key(|(bid, timestamp)| (*timestamp, *bid));
    results
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 10_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn deduplication_in_processing_order_keeps_the_first_or_the_last(steps in steps(), cache_bytes in cache_bytes()) {
        let first = improvements(&steps, |_, _| ());
        let run = |job: fn(DataStream<Bid>) -> DataStream<Bid>| run(&steps, cache_bytes, job);
        prop_assert_eq!(run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::First).updates()), first.clone());
        prop_assert_eq!(run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::First).final_results()), first);
        let last = run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::Last).final_results());
        prop_assert_eq!(sorted(last), best_at_end(&steps, |bid, _| Reverse(bid.id)));
        let all = run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::Last).updates());
        prop_assert_eq!(all, bids(&steps).collect::<Vec<_>>());
    }

    #[test]
    fn deduplication_in_event_time_keeps_the_earliest_or_the_latest(steps in steps(), cache_bytes in cache_bytes()) {
        let run = |job: fn(DataStream<Bid>) -> DataStream<Bid>| run(&steps, cache_bytes, job);
        let first = run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::First).in_event_time().updates());
        prop_assert_eq!(first, improvements(&steps, |_, timestamp| timestamp));
        let last = run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::Last).in_event_time().updates());
        prop_assert_eq!(last, improvements(&steps, |bid, timestamp| Reverse((timestamp, bid.id))));
        let first = run(|bids| bids.key_by(|bid| bid.auction).deduplicate(Keep::First).in_event_time().final_results());
        prop_assert_eq!(sorted(first), sorted(first_final(&steps)));
        let last = run(|bids| {
            let last = bids.key_by(|bid| bid.auction).deduplicate(Keep::Last).in_event_time();
            last.then_by(|bid| bid.price).final_results()
        });
        prop_assert_eq!(sorted(last), best_at_end(&steps, |bid, timestamp| Reverse((timestamp, bid.price, bid.id))));
        let first = run(|bids| {
            let first = bids.key_by(|bid| bid.auction).deduplicate(Keep::First).in_event_time();
            first.then_by(|bid| bid.price).updates()
        });
        prop_assert_eq!(first, improvements(&steps, |bid, timestamp| (timestamp, bid.price)));
    }

    #[test]
    fn top_n_keeps_the_best(steps in steps(), count in 1_usize..5, cache_bytes in cache_bytes()) {
        let mut best = BTreeMap::<u8, Vec<Bid>>::new();
        let mut updates = Vec::new();
        for (bid, timestamp) in bids(&steps) {
            let best = best.entry(bid.auction).or_default();
            let place = best.iter().filter(|known| bid.price <= known.price).count();
            best.insert(place, bid);
            best.truncate(count);
            updates.extend((1_u64..).zip(&*best).skip(place).map(|(rank, bid)| ((bid.auction, rank, bid.id), timestamp)));
        }
        let ranked = best.values().flat_map(|best| (1_u64..).zip(best));
        let expected: Vec<_> = ranked.map(|(rank, bid)| ((bid.auction, rank, bid.id), i64::MAX)).collect();
        let emit = |bid: Bid, rank: u64, out: &mut Collector<(u8, u64, u32)>| out.collect((bid.auction, rank, bid.id));
        let count = u32::try_from(count).unwrap();
        let results = run(&steps, cache_bytes, |bids| {
            bids.key_by(|bid| bid.auction).top_n(count, |bid| Reverse(bid.price)).updates(emit)
        });
        prop_assert_eq!(results, updates);
        let mut results = run(&steps, cache_bytes, |bids| {
            bids.key_by(|bid| bid.auction).top_n(count, |bid| Reverse(bid.price)).final_results(emit)
        });
        // Keys come in any order, the ranks of a key in theirs.
        results.sort_by_key(|((auction, ..), _)| *auction);
        prop_assert_eq!(results, expected);
    }
}

#[test]
fn a_key_is_forgotten_when_its_time_is_over() {
    let mut harness = TestHarness::of_stream(|bids: DataStream<Bid>| {
        bids.key_by(|bid| bid.auction)
            .deduplicate(Keep::First)
            .enable_time_to_live(StateTtlConfig::new(Duration::from_millis(10)))
            .updates()
    })
    .unwrap();
    for (id, now) in [(1, 5), (2, 14), (3, 15), (4, 24), (5, 25)] {
        harness.set_processing_time(now).unwrap();
        harness.push::<Bid>(&Bid { auction: 1, price: 0, id }).unwrap();
    }
    harness.finish().unwrap();
    let ids: Vec<_> = harness.records::<Bid>().unwrap().iter().map(|bid| bid.id).collect();
    assert_eq!(ids, [1, 3, 5]);
}

#[test]
fn borrowed_records_are_kept_as_well() {
    #[derive(Record)]
    struct Visit<'a> {
        page: &'a str,
        user: &'a str,
    }
    let mut harness = TestHarness::of_stream(|visits: DataStream<Visit<'static>>| {
        let pages = visits.key_by_with(|visit, page: &mut KeyWriter<str>| page.set(visit.page));
        pages.top_n(2, |visit| visit.user.len()).final_results(|visit, rank, out: &mut Collector<str>| {
            out.csv((visit.page, rank, visit.user));
        })
    })
    .unwrap();
    for (page, user) in [("/", "anna"), ("/about", "eve"), ("/", "jo"), ("/", "tom"), ("/", "al")] {
        harness.push::<Visit<'_>>(&Visit { page, user }).unwrap();
    }
    harness.finish().unwrap();
    let mut lines = harness.lines().unwrap();
    lines.sort_unstable();
    assert_eq!(lines, ["/,1,jo", "/,2,al", "/about,1,eve"]);
}

#[test]
fn mistakes_are_named() {
    let error =
        |job: fn(DataStream<Bid>) -> DataStream<Bid>| TestHarness::of_stream(job).map(|_| ()).unwrap_err().to_string();
    assert_eq!(
        error(|bids| bids.key_by(|bid| bid.auction).top_n(0, |bid| bid.price).updates(|bid, _, out| out.collect(bid))),
        "top_n: the number of records must be at least 1"
    );
    let mut harness = TestHarness::of_stream(|bids: DataStream<Bid>| {
        bids.key_by(|bid| bid.auction).deduplicate(Keep::First).in_event_time().updates()
    })
    .unwrap();
    let refused = harness.push::<Bid>(&Bid { auction: 0, price: 0, id: 0 }).unwrap_err();
    let expected = "\"Deduplicate\": deduplication in event time got a record without timestamp; use \
                    `assign_timestamps_and_watermarks` before `key_by`";
    assert_eq!(refused.to_string(), expected);
}

#[test]
fn each_result_of_the_end_that_is_rejected_is_told() {
    for cache_bytes in [1, 1 << 24] {
        let program = |env: &StreamExecutionEnvironment, _: &Args| {
            let bids = env.from_source(FileSource::json_lines::<Bid>("bids"));
            let last = bids.key_by(|bid: &Bid| bid.auction).deduplicate(Keep::Last).final_results();
            let even = last.try_map(|bid| match bid.auction % 2 {
                0 => Ok(bid.auction),
                _ => Err(Error::new(format!("auction {} is odd", bid.auction))),
            });
            even.sink_to(DiscardSink);
            Ok(())
        };
        let mut harness = TestHarness::with_cache_bytes(program, &[], cache_bytes).unwrap();
        harness.skip_rejected();
        for auction in 0..10 {
            harness.push::<Bid>(&Bid { auction, price: 0, id: 0 }).unwrap();
        }
        harness.finish().unwrap();
        let mut auctions = harness.records::<u8>().unwrap();
        auctions.sort_unstable();
        assert_eq!(auctions, [0, 2, 4, 6, 8], "{cache_bytes}");
        let mut rejected = harness.rejected().to_vec();
        rejected.sort_unstable();
        assert_eq!(rejected, [1, 3, 5, 7, 9].map(|auction| format!("auction {auction} is odd")), "{cache_bytes}");
    }
}
