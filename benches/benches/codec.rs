//! What does it cost to make a row of a JSON line? One iteration reads 1,000
//! Nexmark events into rows of the five fields of a bid that q1 uses.

use std::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use engine_rows::{
    descriptor::TypeDescriptor,
    json::JsonReader,
    row::{self, NO_TIMESTAMP},
};
use serde::Deserialize;

const EVENTS: u64 = 1000;
const RECORD: &str = "Event[Bid(Bid{auction:u64,bidder:u64,price:u64,channel:string,date_time:u64})|*Other]";

/// What a program that leaves decoding to serde_json would read.
#[derive(Deserialize)]
enum Event<'a> {
    #[serde(borrow)]
    Bid(Bid<'a>),
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Bid<'a> {
    auction: u64,
    bidder: u64,
    price: u64,
    channel: &'a str,
    date_time: u64,
}

fn codec(criterion: &mut Criterion) {
    let mut text = Vec::new();
    engine_benches::write_nexmark(0..EVENTS, &mut text).expect("writing to memory does not fail");
    let text = String::from_utf8(text).expect("JSON is UTF-8");
    let mut group = criterion.benchmark_group("JSON line to row");
    group.throughput(Throughput::Elements(EVENTS));

    let record = TypeDescriptor::parse(RECORD).expect("a descriptor");
    let mut reader = JsonReader::new(&record).expect("a record type that JSON can hold");
    let mut batch = Vec::new();
    group.bench_function("projecting reader", |bencher| {
        bencher.iter(|| {
            batch.clear();
            let mut rest = black_box(text.as_str());
            while !rest.is_empty() {
                row::append_with(&mut batch, 0, NO_TIMESTAMP, |batch| {
                    rest = &rest[reader.read_first_line(rest, batch).expect("fits") + 1..];
                });
            }
            batch.len()
        });
    });
    group.bench_function("serde_json, without writing a row", |bencher| {
        bencher.iter(|| {
            let mut sum = 0;
            for line in black_box(text.as_str()).lines() {
                // serde_json has no catch-all for variants with content: tell bids apart first.
                if line.starts_with("{\"Bid\"")
                    && let Event::Bid(bid) = serde_json::from_str(line).expect("fits")
                {
                    sum += bid.auction + bid.bidder + bid.price + bid.date_time + bid.channel.len() as u64;
                }
            }
            sum
        });
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
