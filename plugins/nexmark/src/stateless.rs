//! Queries that look at each bid alone.

use engine_sdk::prelude::*;

use crate::events::Bid;

/// A bid with its channel and URL.
#[derive(Record)]
pub enum VisitEvent<'a> {
    Bid(Visit<'a>),
    #[record(other)]
    Other,
}

#[derive(Record)]
pub struct Visit<'a> {
    pub auction: u64,
    pub bidder: u64,
    pub price: u64,
    pub channel: &'a str,
    pub url: &'a str,
}

/// q0: every bid.
pub fn pass_through(bids: &DataStream<Bid>) -> DataStream<str> {
    bids.flat_map(|bid, out: &mut Collector<str>| out.csv((bid.auction, bid.bidder, bid.price, bid.date_time)))
}

/// q1: every bid, its price in euros.
pub fn currency_conversion(bids: &DataStream<Bid>) -> DataStream<str> {
    bids.flat_map(|bid, out: &mut Collector<str>| {
        out.csv((bid.auction, bid.bidder, bid.price * 908 / 1000, bid.date_time));
    })
}

/// q2: the bids on some auctions.
pub fn selection(bids: &DataStream<Bid>) -> DataStream<str> {
    bids.flat_map(|bid, out: &mut Collector<str>| {
        if bid.auction % 123 == 0 {
            out.csv((bid.auction, bid.price));
        }
    })
}

/// q22: every bid, with the directories of its URL.
pub fn url_directories(events: &DataStream<VisitEvent<'static>>) -> DataStream<str> {
    events.flat_map(|event, out: &mut Collector<str>| {
        if let VisitEvent::Bid(bid) = event {
            let mut directories = bid.url.split('/').skip(3);
            let mut next = || directories.next().unwrap_or("null");
            out.csv((bid.auction, bid.bidder, bid.price, bid.channel, next(), next(), next()));
        }
    })
}
