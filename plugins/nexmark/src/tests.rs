//! The queries over a few events.

use engine_sdk::TestHarness;

use super::{
    events::{Bid, BidEvent},
    main,
    stateless::{Visit, VisitEvent},
    winning_bids::{Auction, AuctionEvent},
};

/// What a query makes of events.
#[track_caller]
fn answer<E: engine_sdk::Owned>(query: &str, events: &[E]) -> Vec<String> {
    let mut harness = TestHarness::new(main, &["--query", query, "--input", "events"]).unwrap();
    for event in events {
        harness.push::<E>(event).unwrap();
    }
    harness.finish().unwrap();
    let mut lines = harness.lines().unwrap();
    lines.sort_unstable();
    lines
}

fn bid(auction: u64, bidder: u64, price: u64, date_time: i64) -> Bid {
    Bid { auction, bidder, price, date_time }
}

#[test]
fn bids_are_passed_converted_and_selected() {
    let bid = |auction, price| BidEvent::Bid(bid(auction, 7, price, 1_767_225_600_007));
    let events = [bid(1000, 134_003), BidEvent::Other, bid(1230, 1), bid(246, 999)];
    let expected = ["1000,7,134003,1767225600007", "1230,7,1,1767225600007", "246,7,999,1767225600007"];
    assert_eq!(answer("q0", &events), expected);
    let expected = ["1000,7,121674,1767225600007", "1230,7,0,1767225600007", "246,7,907,1767225600007"];
    assert_eq!(answer("q1", &events), expected);
    assert_eq!(answer("q2", &events), ["1230,1", "246,999"]);
}

#[test]
fn missing_directories_are_null() {
    let mut harness = TestHarness::new(main, &["--query", "q22", "--events", "9", "--rate", "5"]).unwrap();
    for url in ["https://www.nexmark.com/a/b/c/item.htm?query=1", "https://www.nexmark.com/a/b", ""] {
        let visit = Visit { auction: 1, bidder: 2, price: 3, channel: "Apple", url };
        harness.push::<VisitEvent<'_>>(&VisitEvent::Bid(visit)).unwrap();
    }
    harness.finish().unwrap();
    assert_eq!(harness.lines().unwrap(), ["1,2,3,Apple,a,b,c", "1,2,3,Apple,a,b,null", "1,2,3,Apple,null,null,null"]);
}

/// The highest of the bids in time wins; bids may come before their auction and on none.
#[test]
fn an_auction_is_won_by_the_highest_bid_in_its_time() {
    let start = 1_767_225_600_000;
    let auction = |id, date_time, expires| {
        let item_name = format!("item {id}");
        AuctionEvent::Auction(Auction { id, item_name, category: id % 2, seller: 9, date_time, expires })
    };
    let bid = |auction, bidder, price, date_time| AuctionEvent::Bid(bid(auction, bidder, price, date_time));
    let events = [
        bid(1, 5, 999, start - 1),
        bid(1, 6, 50, start),
        auction(1, start, start + 100),
        AuctionEvent::Other,
        auction(2, start, start + 10),
        bid(1, 8, 70, start + 100),
        bid(1, 7, 70, start + 100),
        bid(1, 4, 70, start + 101),
        bid(3, 4, 1, start),
        auction(4, start + 5, start + 6),
        auction(5, start + 5, start + 6),
        bid(5, 1, 31, start + 5),
    ];
    let row = |id, category, date_time, expires, bidder, price, time| {
        format!("{id},item {id},{category},9,{date_time},{expires},{bidder},{price},{time}")
    };
    let expected =
        [row(1, 1, start, start + 100, 7, 70, start + 100), row(5, 1, start + 5, start + 6, 1, 31, start + 5)];
    assert_eq!(answer("q9", &events), expected);
    assert_eq!(answer("q4", &events), ["1,50"]);
}

#[test]
fn windows_with_equal_bids_name_all_of_them() {
    let start = 1_767_225_600_000_i64;
    let bid = |auction, bidder, price, after: i64| BidEvent::Bid(bid(auction, bidder, price, start + after));
    let events = [bid(1, 1, 10, 0), bid(2, 2, 10, 1), bid(1, 1, 9, 9_999), bid(3, 1, 8, 10_000), bid(3, 2, 7, 19_999)];
    let row = |auction, bidder, price, after| format!("{auction},{bidder},{price},{}", start + after);
    assert_eq!(answer("q7", &events), [row(1, 1, 10, 0), row(2, 2, 10, 1), row(3, 1, 8, 10_000)]);
    // Sessions of bidder 1: gaps of 9,999 and 1 ms; of bidder 2: 19,998 ms.
    let session = |bidder, bids, first, last| format!("{bidder},{bids},{},{}", start + first, start + last + 10_000);
    assert_eq!(answer("q11", &events), [session(1, 3, 0, 10_000), session(2, 1, 1, 1), session(2, 1, 19_999, 19_999)]);
}

#[test]
fn mistakes_in_arguments_are_named() {
    for (args, message) in [
        (
            &["--query", "q12"][..],
            "argument --query: unknown \"q12\"; did you mean \"q1\"? known are q0, q1, q2, q3, q4, q5, q7, q8, q9, q11, \
             q15, q17, q18, q19, q20, q22",
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
