//! Nexmark's q5 in several versions, of which one takes the state of another over:
//!
//! | `--version` | what is different |
//! |---|---|
//! | `1` | |
//! | `2` | rows have one more column |
//! | `wide` | what is kept of each auction has one more field, and a wider number |
//! | `narrow` | that number is narrower, so that not each value fits |
//! | `trap` | the operator that reads the events traps at once |
//! | `other-key` | the second window has another key: it cannot go on from the state of `1` |
//! | `no-window` | the first window is gone, and its state would be lost |
//! | `new-ids` | the source and the sink have no uid, and so are other operators |

use std::time::Duration;

use engine_sdk::prelude::*;

const WINDOW: Duration = Duration::from_secs(10);
const SLIDE: Duration = Duration::from_secs(2);

#[derive(Record)]
enum Event {
    Bid(Bid),
    #[record(other)]
    Other,
}

#[derive(Record, Clone, Copy)]
struct Bid {
    auction: u64,
    date_time: i64,
}

/// Number of bids on an auction in a window.
#[derive(Record, Clone, Copy)]
struct Popularity {
    auction: u64,
    bids: u64,
    window_end: i64,
}

/// The counts that are greatest, all of them.
struct Most;

impl AggregateFunction<Popularity> for Most {
    type Accumulator = Vec<Popularity>;
    type Output = Vec<Popularity>;

    fn create_accumulator(&self) -> Vec<Popularity> {
        Vec::new()
    }

    fn add(&self, count: &Popularity, most: &mut Vec<Popularity>) {
        match most.first() {
            Some(known) if count.bids < known.bids => {}
            Some(known) if count.bids == known.bids => most.push(*count),
            Some(_) | None => *most = vec![*count],
        }
    }

    fn get_result(&self, most: &Vec<Popularity>) -> Vec<Popularity> {
        most.clone()
    }

    fn merge(&self, most: &mut Vec<Popularity>, others: Vec<Popularity>) {
        others.iter().for_each(|count| self.add(count, most));
    }
}

/// What is kept of the bids on an auction.
#[derive(Record, Clone, Copy)]
struct Seen {
    bids: u32,
    first: i64,
}

mod wide {
    use engine_sdk::prelude::*;

    /// As the version `wide` keeps it: with one more field, and a wider number.
    #[derive(Record, Clone)]
    pub struct Seen {
        pub note: Option<String>,
        pub first: i64,
        pub bids: u64,
    }
}

mod narrow {
    use engine_sdk::prelude::*;

    /// As the version `narrow` would keep it.
    #[derive(Record, Clone)]
    pub struct Seen {
        pub bids: u16,
        pub first: i64,
    }
}

fn see_narrow(bid: Bid, seen: &mut Option<narrow::Seen>) -> Bid {
    let seen = seen.get_or_insert(narrow::Seen { bids: 0, first: bid.date_time });
    seen.bids += 1;
    bid
}

fn see(bid: Bid, seen: &mut Option<Seen>) -> Bid {
    let seen = seen.get_or_insert(Seen { bids: 0, first: bid.date_time });
    seen.bids += 1;
    bid
}

fn see_wide(bid: Bid, seen: &mut Option<wide::Seen>) -> Bid {
    let seen = seen.get_or_insert(wide::Seen { note: Some("new".to_owned()), first: bid.date_time, bids: 0 });
    // Subtasks read at their own pace, but all events are of a few minutes.
    assert!(seen.first.abs_diff(bid.date_time) < 3_600_000 && seen.bids < 1_000_000, "what was kept is another");
    seen.bids += 1;
    bid
}

#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let version =
        args.one_of("version", &["1", "2", "wide", "narrow", "trap", "other-key", "no-window", "new-ids"])?.to_owned();
    let source = FileSource::json_lines::<Event>(args.require("input")?);
    let source = match args.get::<u64>("rate")? {
        Some(rate) => source.rate(rate),
        None => source,
    };
    let strategy = WatermarkStrategy::<Bid>::for_monotonous_timestamps();
    let traps = version == "trap";
    let has_uids = version != "new-ids";
    let events = env.from_source(source);
    let bids = if has_uids { events.uid("events") } else { events }
        .flat_map(move |event, out: &mut Collector<Bid>| {
            assert!(!traps, "this version is broken");
            if let Event::Bid(bid) = event {
                out.collect(bid);
            }
        })
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(|bid| bid.date_time));
    let by_auction = bids.key_by(|bid| bid.auction);
    let bids = match version.as_str() {
        "wide" => by_auction.map_with_state(see_wide),
        "narrow" => by_auction.map_with_state(see_narrow),
        _ => by_auction.map_with_state(see),
    };
    let bids = bids.uid("seen");
    let counts = if version == "no-window" {
        bids.map(|bid| Popularity { auction: bid.auction, bids: 1, window_end: bid.date_time })
    } else {
        bids.key_by(|bid| bid.auction)
            .window(SlidingEventTimeWindows::of(WINDOW, SLIDE))
            .count_then(|auction, window, bids, out: &mut Collector<Popularity>| {
                out.collect(Popularity { auction: *auction, bids, window_end: window.end });
            })
            .uid("counts")
    };
    let windows = TumblingEventTimeWindows::of(SLIDE);
    let greatest = if version == "other-key" {
        counts
            .key_by(|count| count.window_end.to_string())
            .window(windows)
            .aggregate_then(Most, |_, _, most, out: &mut Collector<Popularity>| {
                most.into_iter().for_each(|it| out.collect(it))
            })
    } else {
        counts
            .key_by(|count| count.window_end)
            .window(windows)
            .aggregate_then(Most, |_, _, most, out: &mut Collector<Popularity>| {
                most.into_iter().for_each(|it| out.collect(it))
            })
    };
    let rows = greatest
        .uid("greatest")
        .flat_map(move |count, out: &mut Collector<str>| match version.as_str() {
            "2" => out.csv((count.window_end, count.auction, count.bids, "hot")),
            _ => out.csv((count.window_end, count.auction, count.bids)),
        })
        .sink_to(FileSink::text_lines(args.require("output")?));
    if has_uids {
        rows.uid("rows");
    }
    Ok(())
}
