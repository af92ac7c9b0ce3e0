//! Queries over windows of time.

use std::{cmp::Ordering, time::Duration};

use engine_sdk::prelude::*;

use crate::events::{Bid, timed};

const WINDOW: Duration = Duration::from_secs(10);
const SLIDE: Duration = Duration::from_secs(2);
/// Parts that bids are dealt into, to be spread over subtasks however many there are of a kind.
const PARTS: u64 = 64;

/// Number of bids on an auction in a window.
#[derive(Record, Clone, Copy)]
struct Popularity {
    auction: u64,
    bids: u64,
    /// Milliseconds since the Unix epoch.
    window_end: i64,
}

/// The records with the greatest value, all of them.
struct Greatest<F>(F);

impl<T, F> AggregateFunction<T> for Greatest<F>
where
    T: engine_sdk::Owned + Clone,
    F: Fn(&T) -> u64 + 'static,
    Vec<T>: engine_sdk::Owned,
{
    type Accumulator = Vec<T>;
    type Output = Vec<T>;

    fn create_accumulator(&self) -> Vec<T> {
        Vec::new()
    }

    fn add(&self, record: &T, greatest: &mut Vec<T>) {
        let value = &self.0;
        match greatest.first().map_or(Ordering::Greater, |known| value(record).cmp(&value(known))) {
            Ordering::Less => {}
            Ordering::Equal => greatest.push(record.clone()),
            Ordering::Greater => *greatest = vec![record.clone()],
        }
    }

    fn get_result(&self, greatest: &Vec<T>) -> Vec<T> {
        greatest.clone()
    }

    fn merge(&self, greatest: &mut Vec<T>, others: Vec<T>) {
        others.iter().for_each(|record| self.add(record, greatest));
    }
}

/// q5: for each window, the auctions with most bids.
pub fn hot_items(bids: &DataStream<Bid>) -> DataStream<str> {
    let counts = timed(bids, |bid| bid.date_time)
        .key_by(|bid| bid.auction)
        .window(SlidingEventTimeWindows::of(WINDOW, SLIDE))
        .count_then(|auction, window, bids, out: &mut Collector<Popularity>| {
            out.collect(Popularity { auction: *auction, bids, window_end: window.end });
        })
        .uid("bids-of-auctions");
    // The counts of a window carry its last millisecond, and windows end every slide.
    counts
        .key_by(|count| count.window_end)
        .window(TumblingEventTimeWindows::of(SLIDE))
        .aggregate_then(Greatest(|count: &Popularity| count.bids), |end, _, most, out: &mut Collector<str>| {
            most.iter().for_each(|count| out.csv((*end, count.auction, count.bids)));
        })
        .uid("hot-items")
}

/// q7: for each window, the highest bids: of each part first, then of all.
pub fn highest_bid(bids: &DataStream<Bid>) -> DataStream<str> {
    let of_parts = timed(bids, |bid| bid.date_time)
        .key_by(|bid| bid.price % PARTS)
        .window(TumblingEventTimeWindows::of(WINDOW))
        .aggregate_then(Greatest(|bid: &Bid| bid.price), |_, _, highest, out: &mut Collector<Bid>| {
            highest.into_iter().for_each(|bid| out.collect(bid));
        })
        .uid("highest-of-parts");
    of_parts
        .window_all(TumblingEventTimeWindows::of(WINDOW))
        .aggregate_then(Greatest(|bid: &Bid| bid.price), |_, highest, out: &mut Collector<str>| {
            highest.iter().for_each(|bid| out.csv((bid.auction, bid.bidder, bid.price, bid.date_time)));
        })
        .uid("highest")
}

/// q11: sessions of bidders, with the number of their bids.
pub fn user_sessions(bids: &DataStream<Bid>) -> DataStream<str> {
    timed(bids, |bid| bid.date_time)
        .key_by(|bid| bid.bidder)
        .window(EventTimeSessionWindows::with_gap(WINDOW))
        .count_then(|bidder, window, bids, out: &mut Collector<str>| {
            out.csv((*bidder, bids, window.start, window.end));
        })
        .uid("sessions")
}
