//! Queries of the Nexmark benchmark over the events of an auction site.

use engine_sdk::prelude::*;

/// Answers a query of the Nexmark benchmark. Writes rows of comma-separated values.
///
///   --query NAME    q0, q1, q2 or q22
///   --input PATH    reads events, a JSON object a line, from a file, a directory or a pattern
///   --events N      generates the first N events instead
///   --rate R        reads or generates at most R events a second
///   --output DIR    writes into a new or empty directory; without it, prints
///   --discard       writes nothing
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let query = args.one_of("query", &["q0", "q1", "q2", "q22"])?;
    let rows = match query {
        "q0" => pass_through(events(env, args)?),
        "q1" => currency_conversion(events(env, args)?),
        "q2" => selection(events(env, args)?),
        _ => url_directories(events(env, args)?),
    };
    match (args.get::<String>("output")?, args.flag("discard")) {
        (None, true) => rows.sink_to(DiscardSink),
        (Some(directory), false) => rows.sink_to(FileSink::text_lines(directory)),
        (None, false) => rows.print(),
        (Some(_), true) => engine_sdk::bail!("give one of --output and --discard"),
    };
    env.set_job_name(&format!("Nexmark {query}"));
    Ok(())
}

/// An event, of which only bids matter here.
#[derive(Record)]
enum Event {
    Bid(Bid),
    #[record(other)]
    Other,
}

#[derive(Record)]
struct Bid {
    auction: u64,
    bidder: u64,
    price: u64,
    /// Milliseconds since the Unix epoch.
    date_time: i64,
}

/// As [`Event`], with the fields that q22 needs.
#[derive(Record)]
enum VisitEvent<'a> {
    Bid(Visit<'a>),
    #[record(other)]
    Other,
}

#[derive(Record)]
struct Visit<'a> {
    auction: u64,
    bidder: u64,
    price: u64,
    channel: &'a str,
    url: &'a str,
}

/// The input, with the fields that the type `E` names.
fn events<E: Record>(env: &StreamExecutionEnvironment, args: &Args) -> Result<DataStream<E>> {
    let rate = args.get::<u64>("rate")?;
    match (args.get::<String>("input")?, args.get::<u64>("events")?) {
        (Some(path), None) => {
            let source = FileSource::json_lines::<E>(path);
            Ok(env.from_source(match rate {
                Some(rate) => source.rate(rate),
                None => source,
            }))
        }
        (None, Some(events)) => {
            let source = NexmarkSource::<E>::events(events);
            Ok(env.from_source(match rate {
                Some(rate) => source.rate(rate),
                None => source,
            }))
        }
        _ => engine_sdk::bail!("give one of --input PATH and --events N"),
    }
}

/// q0: every bid.
fn pass_through(events: DataStream<Event>) -> DataStream<str> {
    events.flat_map(|event, out: &mut Collector<str>| {
        if let Event::Bid(bid) = event {
            out.csv((bid.auction, bid.bidder, bid.price, bid.date_time));
        }
    })
}

/// q1: every bid, its price in euros.
fn currency_conversion(events: DataStream<Event>) -> DataStream<str> {
    events.flat_map(|event, out: &mut Collector<str>| {
        if let Event::Bid(bid) = event {
            out.csv((bid.auction, bid.bidder, bid.price * 908 / 1000, bid.date_time));
        }
    })
}

/// q2: the bids on some auctions.
fn selection(events: DataStream<Event>) -> DataStream<str> {
    events.flat_map(|event, out: &mut Collector<str>| match event {
        Event::Bid(bid) if bid.auction % 123 == 0 => out.csv((bid.auction, bid.price)),
        _ => {}
    })
}

/// q22: every bid, with the directories of its URL.
fn url_directories(events: DataStream<VisitEvent<'static>>) -> DataStream<str> {
    events.flat_map(|event, out: &mut Collector<str>| {
        if let VisitEvent::Bid(bid) = event {
            let mut directories = bid.url.split('/').skip(3);
            let mut next = || directories.next().unwrap_or("null");
            out.csv((bid.auction, bid.bidder, bid.price, bid.channel, next(), next(), next()));
        }
    })
}

#[cfg(test)]
mod tests {
    use engine_sdk::TestHarness;

    use super::*;

    fn bids() -> Vec<Event> {
        let bid = |auction, price| Event::Bid(Bid { auction, bidder: 7, price, date_time: 1_767_225_600_007 });
        vec![bid(1000, 134_003), Event::Other, bid(1230, 1), bid(246, 999)]
    }

    #[track_caller]
    fn check(query: &str, expected: &[&str]) {
        let mut harness = TestHarness::new(main, &["--query", query, "--input", "events"]).unwrap();
        for event in bids() {
            harness.push::<Event>(&event).unwrap();
        }
        harness.finish().unwrap();
        assert_eq!(harness.lines().unwrap(), expected, "{query}");
    }

    #[test]
    fn bids_are_passed_converted_and_selected() {
        check("q0", &["1000,7,134003,1767225600007", "1230,7,1,1767225600007", "246,7,999,1767225600007"]);
        check("q1", &["1000,7,121674,1767225600007", "1230,7,0,1767225600007", "246,7,907,1767225600007"]);
        check("q2", &["1230,1", "246,999"]);
    }

    #[test]
    fn missing_directories_are_null() {
        let mut harness = TestHarness::new(main, &["--query", "q22", "--events", "9", "--rate", "5"]).unwrap();
        for url in ["https://www.nexmark.com/a/b/c/item.htm?query=1", "https://www.nexmark.com/a/b", ""] {
            let visit = Visit { auction: 1, bidder: 2, price: 3, channel: "Apple", url };
            harness.push::<VisitEvent<'_>>(&VisitEvent::Bid(visit)).unwrap();
        }
        harness.finish().unwrap();
        assert_eq!(
            harness.lines().unwrap(),
            ["1,2,3,Apple,a,b,c", "1,2,3,Apple,a,b,null", "1,2,3,Apple,null,null,null"]
        );
    }

    #[test]
    fn mistakes_in_arguments_are_named() {
        for (args, message) in [
            (
                &["--query", "q11"][..],
                "argument --query: unknown \"q11\"; did you mean \"q1\"? known are q0, q1, q2, q22",
            ),
            (&["--query", "q0"], "give one of --input PATH and --events N"),
            (&["--query", "q0", "--events", "many"], "argument --events: \"many\": invalid digit found in string"),
            (&["--query", "q0", "--events", "1", "--rats", "5"], "unknown argument --rats: did you mean --rate?"),
            (&["--query", "q0", "--events", "1", "--discard", "--output", "o"], "give one of --output and --discard"),
        ] {
            let error = TestHarness::new(main, args).map(|_| ()).unwrap_err();
            assert_eq!(error.to_string(), message);
        }
    }
}
