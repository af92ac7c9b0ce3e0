//! Nexmark's q5 in several versions, of which one takes the state of another over:
//!
//! | `--version` | what is different |
//! |---|---|
//! | `1` | |
//! | `2` | rows have one more column |
//! | `wide` | the state of the second window has one more field |
//! | `trap` | the operator that reads the events traps at once |
//! | `other-key` | the second window has another key: it cannot go on from the state of `1` |
//! | `no-window` | the first window is gone, and its state would be lost |

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

mod wide {
    use engine_sdk::prelude::*;

    /// As the version `wide` keeps it.
    #[derive(Record, Clone, Copy)]
    pub struct Popularity {
        pub note: Option<i64>,
        pub auction: u64,
        pub bids: u64,
        pub window_end: i64,
    }
}

/// [`Most`] with another state.
struct WideMost;

impl AggregateFunction<Popularity> for WideMost {
    type Accumulator = Vec<wide::Popularity>;
    type Output = Vec<Popularity>;

    fn create_accumulator(&self) -> Vec<wide::Popularity> {
        Vec::new()
    }

    fn add(&self, count: &Popularity, most: &mut Vec<wide::Popularity>) {
        let Popularity { auction, bids, window_end } = *count;
        let count = wide::Popularity { note: None, auction, bids, window_end };
        match most.first() {
            Some(known) if bids < known.bids => {}
            Some(known) if bids == known.bids => most.push(count),
            Some(_) | None => *most = vec![count],
        }
    }

    fn get_result(&self, most: &Vec<wide::Popularity>) -> Vec<Popularity> {
        let narrow = |it: &wide::Popularity| {
            assert_eq!(it.note, None, "what was added is absent");
            Popularity { auction: it.auction, bids: it.bids, window_end: it.window_end }
        };
        most.iter().map(narrow).collect()
    }

    fn merge(&self, most: &mut Vec<wide::Popularity>, others: Vec<wide::Popularity>) {
        self.get_result(&others).iter().for_each(|count| self.add(count, most));
    }
}

#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let version = args.one_of("version", &["1", "2", "wide", "trap", "other-key", "no-window"])?.to_owned();
    let source = FileSource::json_lines::<Event>(args.require("input")?);
    let source = match args.get::<u64>("rate")? {
        Some(rate) => source.rate(rate),
        None => source,
    };
    let strategy = WatermarkStrategy::<Bid>::for_monotonous_timestamps();
    let traps = version == "trap";
    let bids = env
        .from_source(source)
        .uid("events")
        .flat_map(move |event, out: &mut Collector<Bid>| {
            assert!(!traps, "this version is broken");
            if let Event::Bid(bid) = event {
                out.collect(bid);
            }
        })
        .assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(|bid| bid.date_time));
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
    } else if version == "wide" {
        counts
            .key_by(|count| count.window_end)
            .window(windows)
            .aggregate_then(WideMost, |_, _, most, out: &mut Collector<Popularity>| {
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
    greatest
        .uid("greatest")
        .flat_map(move |count, out: &mut Collector<str>| match version.as_str() {
            "2" => out.csv((count.window_end, count.auction, count.bids, "hot")),
            _ => out.csv((count.window_end, count.auction, count.bids)),
        })
        .sink_to(FileSink::text_lines(args.require("output")?))
        .uid("rows");
    Ok(())
}
