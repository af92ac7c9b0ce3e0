//! Queries over the winning bids of auctions.

use engine_sdk::prelude::*;

use crate::events::{Bid, timed};

/// An auction or a bid on one.
#[derive(Record)]
pub enum AuctionEvent {
    Auction(Auction),
    Bid(Bid),
    #[record(other)]
    Other,
}

#[derive(Record, Clone)]
pub struct Auction {
    pub id: u64,
    pub item_name: String,
    pub category: u64,
    pub seller: u64,
    /// Milliseconds since the Unix epoch, as are all times.
    pub date_time: i64,
    pub expires: i64,
}

/// An auction with its winning bid.
#[derive(Record)]
struct Winner {
    auction: Auction,
    bid: Bid,
}

/// What is known of an auction and the bids on it.
#[derive(Record, Default)]
struct Bidding {
    auction: Option<Auction>,
    best: Option<Bid>,
    /// Bids that came before their auction. One for which there is still none when the
    /// watermark reaches it is too late: the auction has ended, or never was.
    early: Vec<Bid>,
}

impl Bidding {
    /// True if a bid changes anything.
    fn takes(&self, bid: &Bid) -> bool {
        let rank = |bid: &Bid| (std::cmp::Reverse(bid.price), bid.date_time, bid.bidder);
        self.auction.as_ref().is_none_or(|auction| {
            (auction.date_time..=auction.expires).contains(&bid.date_time)
                && self.best.as_ref().is_none_or(|best| rank(bid) < rank(best))
        })
    }

    fn add(&mut self, bid: Bid) {
        if self.auction.is_none() {
            self.early.push(bid);
        } else if self.takes(&bid) {
            self.best = Some(bid);
        }
    }
}

/// Finds the winning bid of each auction, when no more bids can come: the highest of those
/// within the auction's time; of equals the earlier, then that of the smaller bidder.
struct WinningBid {
    bidding: ValueState<Bidding>,
}

impl KeyedProcessFunction<u64, AuctionEvent> for WinningBid {
    type Output = Winner;

    fn process_element(
        &self,
        event: AuctionEvent,
        ctx: &mut KeyedContext<'_, u64>,
        _: &mut Collector<Winner>,
    ) -> Result<()> {
        match event {
            AuctionEvent::Auction(auction) => {
                ctx.timer_service().register_event_time_timer(auction.expires);
                self.bidding.modify(|bidding| {
                    let bidding = bidding.get_or_insert_default();
                    bidding.auction = Some(auction);
                    std::mem::take(&mut bidding.early).into_iter().for_each(|bid| bidding.add(bid));
                });
            }
            AuctionEvent::Bid(bid)
                if self.bidding.with(|bidding| bidding.is_none_or(|bidding| bidding.takes(&bid))) =>
            {
                let waits = self.bidding.modify(|bidding| {
                    let bidding = bidding.get_or_insert_default();
                    bidding.add(bid);
                    bidding.early.len() == 1
                });
                if waits {
                    ctx.timer_service().register_event_time_timer(bid.date_time);
                }
            }
            AuctionEvent::Bid(_) | AuctionEvent::Other => {}
        }
        Ok(())
    }

    fn on_timer(&self, timestamp: i64, ctx: &mut OnTimerContext<'_, u64>, out: &mut Collector<Winner>) -> Result<()> {
        let next = self.bidding.modify(|state| {
            let bidding = state.as_mut()?;
            match &bidding.auction {
                Some(auction) if timestamp < auction.expires => None,
                Some(_) => {
                    if let Some(Bidding { auction: Some(auction), best: Some(bid), .. }) = state.take() {
                        out.collect(Winner { auction, bid });
                    }
                    None
                }
                None => {
                    bidding.early.retain(|bid| timestamp < bid.date_time);
                    let next = bidding.early.iter().map(|bid| bid.date_time).max();
                    if next.is_none() {
                        *state = None;
                    }
                    next
                }
            }
        });
        if let Some(next) = next {
            ctx.timer_service().register_event_time_timer(next);
        }
        Ok(())
    }
}

fn winners(events: &DataStream<AuctionEvent>) -> DataStream<Winner> {
    let events = timed(&events.filter(|event| !matches!(event, AuctionEvent::Other)), |event| match event {
        AuctionEvent::Auction(auction) => auction.date_time,
        AuctionEvent::Bid(bid) => bid.date_time,
        AuctionEvent::Other => 0,
    });
    let by_auction = events.key_by(|event| match event {
        AuctionEvent::Auction(auction) => auction.id,
        AuctionEvent::Bid(bid) => bid.auction,
        AuctionEvent::Other => 0,
    });
    by_auction.process(|states| WinningBid { bidding: states.value("bidding") }).uid("winning-bids")
}

/// Average price, rounded down.
struct AveragePrice;

impl AggregateFunction<Winner> for AveragePrice {
    /// Sum and count.
    type Accumulator = (u64, u64);
    type Output = u64;

    fn create_accumulator(&self) -> (u64, u64) {
        (0, 0)
    }

    fn add(&self, winner: &Winner, (sum, count): &mut (u64, u64)) {
        *sum += winner.bid.price;
        *count += 1;
    }

    fn get_result(&self, (sum, count): &(u64, u64)) -> u64 {
        sum / count
    }

    fn merge(&self, (sum, count): &mut (u64, u64), other: (u64, u64)) {
        *sum += other.0;
        *count += other.1;
    }
}

/// q4: for each category, the average of the winning prices, at the end.
pub fn average_price_for_category(events: &DataStream<AuctionEvent>) -> DataStream<str> {
    winners(events)
        .key_by(|winner| winner.auction.category)
        .window(GlobalWindows::end_of_stream())
        .aggregate_then(AveragePrice, |category, _, price, out: &mut Collector<str>| out.csv((*category, price)))
        .uid("averages")
}

/// q9: each auction with its winning bid, once it has expired.
pub fn winning_bids_of_auctions(events: &DataStream<AuctionEvent>) -> DataStream<str> {
    winners(events).flat_map(|winner, out: &mut Collector<str>| {
        let Winner { auction, bid } = winner;
        out.csv((
            auction.id,
            &*auction.item_name,
            auction.category,
            auction.seller,
            auction.date_time,
            auction.expires,
            bid.bidder,
            bid.price,
            bid.date_time,
        ));
    })
}
