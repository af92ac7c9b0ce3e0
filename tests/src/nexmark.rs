//! The Nexmark queries, answered by one thread from all events at once: what the
//! plugin's answers are compared to. Written for reading; it is no stream program and
//! knows of no order of events.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use nexmark::event::{Auction, Bid, Event, Person};

const DAY: u64 = 86_400_000;
const WINDOW: u64 = 10_000;
const SLIDE: u64 = 2_000;
const SESSION_GAP: u64 = 10_000;
const CATEGORY: usize = 10;

/// Reads events, one JSON object a line.
///
/// # Panics
/// Panics if a line is none.
pub fn parse(lines: &[u8]) -> Vec<Event> {
    lines
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).expect("a line is an event"))
        .collect()
}

/// The rows of a query's answer, sorted bytewise, each ended by a line feed.
///
/// # Panics
/// Panics if there is no such query.
pub fn answer(query: &str, events: &[Event]) -> Vec<Vec<u8>> {
    let events = Events::new(events);
    let mut rows: Vec<Vec<u8>> = match query {
        "q0" => events.bids.iter().map(|bid| bid_row(bid)).collect(),
        "q1" => {
            events.bids.iter().map(|bid| bid_row(&Bid { price: bid.price * 908 / 1000, ..(*bid).clone() })).collect()
        }
        "q2" => selection(&events),
        "q3" => local_items(&events),
        "q4" => average_by_category(&events),
        "q5" => hot_items(&events),
        "q7" => highest_bids(&events),
        "q8" => new_users(&events),
        "q9" => winning_bids(&events).into_iter().map(|(auction, bid)| winning_row(auction, bid)).collect(),
        "q11" => sessions(&events),
        "q15" => days(&events),
        "q17" => auctions_by_day(&events),
        "q18" => last_bids(&events),
        "q19" => top_ten(&events),
        "q20" => expanded_bids(&events),
        "q22" => directories(&events),
        _ => panic!("there is no query {query}"),
    };
    rows.sort_unstable();
    rows
}

/// Events by their kind.
struct Events<'e> {
    people: Vec<&'e Person>,
    auctions: Vec<&'e Auction>,
    bids: Vec<&'e Bid>,
}

impl<'e> Events<'e> {
    fn new(events: &'e [Event]) -> Self {
        let mut sorted = Self { people: Vec::new(), auctions: Vec::new(), bids: Vec::new() };
        for event in events {
            match event {
                Event::Person(person) => sorted.people.push(person),
                Event::Auction(auction) => sorted.auctions.push(auction),
                Event::Bid(bid) => sorted.bids.push(bid),
            }
        }
        sorted
    }

    fn bids_by<K: Ord>(&self, key: impl Fn(&Bid) -> K) -> BTreeMap<K, Vec<&'e Bid>> {
        let mut groups = BTreeMap::<K, Vec<&Bid>>::new();
        for bid in &self.bids {
            groups.entry(key(bid)).or_default().push(bid);
        }
        groups
    }
}

macro_rules! row {
    ($first:expr $(, $field:expr)*) => {{
        let mut row = $first.to_string();
        $(
            row.push(',');
            row.push_str(&$field.to_string());
        )*
        row.push('\n');
        row.into_bytes()
    }};
}

fn bid_row(bid: &Bid) -> Vec<u8> {
    row!(bid.auction, bid.bidder, bid.price, bid.date_time)
}

fn winning_row(auction: &Auction, bid: &Bid) -> Vec<u8> {
    let Auction { id, item_name, category, seller, date_time, expires, .. } = auction;
    row!(id, item_name, category, seller, date_time, expires, bid.bidder, bid.price, bid.date_time)
}

fn selection(events: &Events<'_>) -> Vec<Vec<u8>> {
    events.bids.iter().filter(|bid| bid.auction % 123 == 0).map(|bid| row!(bid.auction, bid.price)).collect()
}

fn local_items(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    let people: Vec<_> =
        events.people.iter().filter(|person| ["or", "id", "ca"].contains(&person.state.as_str())).collect();
    for auction in events.auctions.iter().filter(|auction| auction.category == CATEGORY) {
        for person in people.iter().filter(|person| person.id == auction.seller) {
            rows.push(row!(person.name, person.city, person.state, auction.id));
        }
    }
    rows
}

/// The winning bid of each auction that has one.
fn winning_bids<'e>(events: &Events<'e>) -> Vec<(&'e Auction, &'e Bid)> {
    let bids = events.bids_by(|bid| bid.auction);
    let winner = |auction: &&'e Auction| {
        let all = bids.get(&auction.id)?;
        let valid = all.iter().filter(|bid| (auction.date_time..=auction.expires).contains(&bid.date_time));
        let best = valid.min_by_key(|bid| (Reverse(bid.price), bid.date_time, bid.bidder))?;
        Some((*auction, *best))
    };
    events.auctions.iter().filter_map(winner).collect()
}

fn average_by_category(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut prices = BTreeMap::<usize, Vec<usize>>::new();
    for (auction, bid) in winning_bids(events) {
        prices.entry(auction.category).or_default().push(bid.price);
    }
    prices.iter().map(|(category, prices)| row!(category, prices.iter().sum::<usize>() / prices.len())).collect()
}

fn hot_items(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut counts = BTreeMap::<u64, BTreeMap<usize, u64>>::new();
    for bid in &events.bids {
        // Ends of windows are multiples of the slide: the first above the bid, and four more.
        let first = (bid.date_time / SLIDE + 1) * SLIDE;
        for end in (first..first + WINDOW).step_by(usize::try_from(SLIDE).expect("it is small")) {
            *counts.entry(end).or_default().entry(bid.auction).or_default() += 1;
        }
    }
    let mut rows = Vec::new();
    for (end, counts) in &counts {
        let most = counts.values().max();
        let hot = counts.iter().filter(|(_, count)| Some(*count) == most);
        rows.extend(hot.map(|(auction, count)| row!(end, auction, count)));
    }
    rows
}

fn highest_bids(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for bids in events.bids_by(|bid| bid.date_time / WINDOW).values() {
        let highest = bids.iter().map(|bid| bid.price).max();
        rows.extend(bids.iter().filter(|bid| Some(bid.price) == highest).map(|bid| bid_row(bid)));
    }
    rows
}

fn new_users(events: &Events<'_>) -> Vec<Vec<u8>> {
    let sellers: BTreeSet<_> =
        events.auctions.iter().map(|auction| (auction.seller, auction.date_time / WINDOW)).collect();
    let users: BTreeSet<_> = events
        .people
        .iter()
        .filter(|person| sellers.contains(&(person.id, person.date_time / WINDOW)))
        .map(|person| row!(person.id, person.name, person.date_time / WINDOW * WINDOW))
        .collect();
    users.into_iter().collect()
}

fn sessions(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for (bidder, bids) in events.bids_by(|bid| bid.bidder) {
        let mut times: Vec<_> = bids.iter().map(|bid| bid.date_time).collect();
        times.sort_unstable();
        for session in times.chunk_by(|earlier, later| later - earlier <= SESSION_GAP) {
            let (first, last) = (session[0], session[session.len() - 1]);
            rows.push(row!(bidder, session.len(), first, last + SESSION_GAP));
        }
    }
    rows
}

fn days(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for (day, bids) in events.bids_by(|bid| bid.date_time / DAY) {
        let count = |prices: std::ops::Range<usize>| bids.iter().filter(|bid| prices.contains(&bid.price)).count();
        let bidders: BTreeSet<_> = bids.iter().map(|bid| bid.bidder).collect();
        let auctions: BTreeSet<_> = bids.iter().map(|bid| bid.auction).collect();
        let (low, middle, high) = (count(0..10_000), count(10_000..1_000_000), count(1_000_000..usize::MAX));
        rows.push(row!(day, bids.len(), low, middle, high, bidders.len(), auctions.len()));
    }
    rows
}

fn auctions_by_day(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for ((auction, day), bids) in events.bids_by(|bid| (bid.auction, bid.date_time / DAY)) {
        let mut prices: Vec<_> = bids.iter().map(|bid| bid.price).collect();
        prices.sort_unstable();
        let (count, sum) = (prices.len(), prices.iter().sum::<usize>());
        let low = prices.iter().filter(|price| **price < 10_000).count();
        rows.push(row!(auction, day, count, low, prices[0], prices[count - 1], sum / count, sum));
    }
    rows
}

fn last_bids(events: &Events<'_>) -> Vec<Vec<u8>> {
    let groups = events.bids_by(|bid| (bid.bidder, bid.auction));
    let last = groups.values().filter_map(|bids| bids.iter().max_by_key(|bid| (bid.date_time, bid.price)));
    last.map(|bid| bid_row(bid)).collect()
}

fn top_ten(events: &Events<'_>) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for mut bids in events.bids_by(|bid| bid.auction).into_values() {
        bids.sort_by_key(|bid| (Reverse(bid.price), bid.date_time, bid.bidder));
        for (rank, bid) in (1..=10).zip(bids) {
            rows.push(row!(bid.auction, bid.bidder, bid.price, bid.date_time, rank));
        }
    }
    rows
}

fn expanded_bids(events: &Events<'_>) -> Vec<Vec<u8>> {
    let bids = events.bids_by(|bid| bid.auction);
    let mut rows = Vec::new();
    for auction in events.auctions.iter().filter(|auction| auction.category == CATEGORY) {
        for bid in bids.get(&auction.id).into_iter().flatten() {
            rows.push(row!(bid.auction, bid.bidder, bid.price, bid.date_time, auction.seller, auction.expires));
        }
    }
    rows
}

fn directories(events: &Events<'_>) -> Vec<Vec<u8>> {
    let row = |bid: &&Bid| {
        let parts: Vec<_> = bid.url.split('/').collect();
        let part = |index: usize| parts.get(index).copied().unwrap_or("null");
        row!(bid.auction, bid.bidder, bid.price, bid.channel, part(3), part(4), part(5))
    };
    events.bids.iter().map(row).collect()
}
