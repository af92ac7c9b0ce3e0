//! Queries that are answered at the end of the input.

use std::cmp::Reverse;

use engine_sdk::prelude::*;

use crate::events::{Bid, timed};

const DAY: i64 = 86_400_000;
const LOW_BELOW: u64 = 10_000;
const HIGH_FROM: u64 = 1_000_000;

/// What q15 counts on a day.
#[derive(Record, Clone, Copy, Default)]
struct DayCounts {
    day: i64,
    bids: u64,
    low: u64,
    middle: u64,
    high: u64,
    bidders: u64,
    auctions: u64,
}

impl DayCounts {
    fn of_bid(bid: &Bid) -> Self {
        let [low, middle, high] = match bid.price {
            ..LOW_BELOW => [1, 0, 0],
            LOW_BELOW..HIGH_FROM => [0, 1, 0],
            HIGH_FROM.. => [0, 0, 1],
        };
        Self { day: bid.date_time / DAY, bids: 1, low, middle, high, bidders: 0, auctions: 0 }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            day: self.day,
            bids: self.bids + other.bids,
            low: self.low + other.low,
            middle: self.middle + other.middle,
            high: self.high + other.high,
            bidders: self.bidders + other.bidders,
            auctions: self.auctions + other.auctions,
        }
    }
}

/// q15: bids by day and price, and the number of bidders and auctions.
///
/// Each bidder's bids are counted first, then the bidders; so the work is spread over subtasks.
pub fn bidding_statistics(bids: &DataStream<Bid>) -> DataStream<str> {
    let of_bidders = bids
        .map(|bid| (bid.bidder, DayCounts::of_bid(&bid)))
        .key_by(|(bidder, counts)| (counts.day, *bidder))
        .window(GlobalWindows::end_of_stream())
        .reduce(|(bidder, counts), (_, other)| (bidder, counts.plus(other)))
        .uid("bids-of-bidders")
        .map(|(_, counts)| DayCounts { bidders: 1, ..counts });
    let of_auctions = bids
        .key_by(|bid| (bid.date_time / DAY, bid.auction))
        .deduplicate(Keep::First)
        .updates()
        .uid("first-bids-on-auctions")
        .map(|bid| DayCounts { day: bid.date_time / DAY, auctions: 1, ..DayCounts::default() });
    of_bidders
        .union(&of_auctions)
        .key_by(|counts| counts.day)
        .window(GlobalWindows::end_of_stream())
        .reduce(DayCounts::plus)
        .uid("days")
        .flat_map(|all, out: &mut Collector<str>| {
            out.csv((all.day, all.bids, all.low, all.middle, all.high, all.bidders, all.auctions));
        })
}

/// What q17 says of the bids on an auction on a day.
struct Prices;

#[derive(Record, Clone, Copy)]
struct PriceTotals {
    bids: u64,
    low: u64,
    least: u64,
    greatest: u64,
    sum: u64,
}

impl AggregateFunction<Bid> for Prices {
    type Accumulator = PriceTotals;
    type Output = PriceTotals;

    fn create_accumulator(&self) -> PriceTotals {
        PriceTotals { bids: 0, low: 0, least: u64::MAX, greatest: 0, sum: 0 }
    }

    fn add(&self, bid: &Bid, totals: &mut PriceTotals) {
        totals.bids += 1;
        totals.low += u64::from(bid.price < LOW_BELOW);
        totals.least = totals.least.min(bid.price);
        totals.greatest = totals.greatest.max(bid.price);
        totals.sum += bid.price;
    }

    fn get_result(&self, totals: &PriceTotals) -> PriceTotals {
        *totals
    }

    fn merge(&self, totals: &mut PriceTotals, other: PriceTotals) {
        totals.bids += other.bids;
        totals.low += other.low;
        totals.least = totals.least.min(other.least);
        totals.greatest = totals.greatest.max(other.greatest);
        totals.sum += other.sum;
    }
}

/// q17: for each auction and day, number and prices of the bids.
pub fn auction_statistics(bids: &DataStream<Bid>) -> DataStream<str> {
    bids.key_by(|bid| (bid.auction, bid.date_time / DAY))
        .window(GlobalWindows::end_of_stream())
        .aggregate_then(Prices, |(auction, day), _, totals, out: &mut Collector<str>| {
            let PriceTotals { bids, low, least, greatest, sum } = totals;
            out.csv((*auction, *day, bids, low, least, greatest, sum / bids, sum));
        })
        .uid("auction-statistics")
}

/// q18: each bidder's last bid on each auction; of those at one time, the highest.
pub fn last_bids(bids: &DataStream<Bid>) -> DataStream<str> {
    timed(bids, |bid| bid.date_time)
        .key_by(|bid| (bid.bidder, bid.auction))
        .deduplicate(Keep::Last)
        .in_event_time()
        .then_by(|bid| bid.price)
        .final_results()
        .uid("last-bids")
        .flat_map(|bid, out: &mut Collector<str>| out.csv((bid.auction, bid.bidder, bid.price, bid.date_time)))
}

/// q19: the ten highest bids on each auction; of equals the earlier, then that of the smaller bidder.
pub fn top_ten_bids(bids: &DataStream<Bid>) -> DataStream<str> {
    bids.key_by(|bid| bid.auction)
        .top_n(10, |bid| (Reverse(bid.price), bid.date_time, bid.bidder))
        .final_results(|bid, rank, out: &mut Collector<str>| {
            out.csv((bid.auction, bid.bidder, bid.price, bid.date_time, rank));
        })
        .uid("top-ten-bids")
}
