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

/// Finds the winning bid of each auction, when no more bids can come: the highest of those
/// within the auction's time; of equals the earlier, then that of the smaller bidder.
struct WinningBid {
    auction: ValueState<Auction>,
    best: ValueState<Bid>,
    /// Bids that came before their auction. One for which there is still none when the
    /// watermark reaches it is too late: the auction has ended, or never was.
    early: ListState<Bid>,
}

impl WinningBid {
    fn new(states: &mut States) -> Self {
        Self { auction: states.value("auction"), best: states.value("best"), early: states.list("early") }
    }

    fn offer(&self, auction: &Auction, bid: Bid) {
        if bid.date_time < auction.date_time || auction.expires < bid.date_time {
            return;
        }
        let rank = |bid: &Bid| (std::cmp::Reverse(bid.price), bid.date_time, bid.bidder);
        if self.best.with(|best| best.is_none_or(|best| rank(&bid) < rank(best))) {
            self.best.update(bid);
        }
    }
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
                for bid in self.early.get() {
                    self.offer(&auction, bid);
                }
                self.early.clear();
                ctx.timer_service().register_event_time_timer(auction.expires);
                self.auction.update(auction);
            }
            AuctionEvent::Bid(bid) => {
                let has_auction =
                    self.auction.with(|auction| auction.inspect(|auction| self.offer(auction, bid)).is_some());
                if !has_auction {
                    self.early.add(&bid);
                    ctx.timer_service().register_event_time_timer(bid.date_time);
                }
            }
            AuctionEvent::Other => {}
        }
        Ok(())
    }

    fn on_timer(&self, timestamp: i64, _: &mut OnTimerContext<'_, u64>, out: &mut Collector<Winner>) -> Result<()> {
        match self.auction.value() {
            Some(auction) if auction.expires == timestamp => {
                if let Some(bid) = self.best.value() {
                    out.collect(Winner { auction, bid });
                }
                self.auction.clear();
                self.best.clear();
            }
            // A bid that came early was offered when its auction came.
            Some(_) => {}
            None => {
                let early: Vec<_> = self.early.get().into_iter().filter(|bid| timestamp < bid.date_time).collect();
                self.early.update(&early);
            }
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
    by_auction.process(WinningBid::new).uid("winning-bids")
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
