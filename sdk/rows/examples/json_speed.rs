//! How long the JSON reader takes an event: `cargo run --release --example json_speed`.
//!
//! Reads 200,000 generated Nexmark events, again and again, and prints the best
//! and the median round for q1's five fields, for whole bids, and for what q3 needs of the others.

use std::{hint::black_box, time::Instant};

use engine_rows::{descriptor::TypeDescriptor, json::JsonReader, row};
use nexmark::{EventGenerator, config::NexmarkConfig};

const EVENTS: usize = 200_000;
const ROUNDS: usize = 31;

fn main() {
    let config = NexmarkConfig {
        base_time: 1_767_225_600_000,
        first_rate: 1000,
        next_rate: 1000,
        out_of_order_group_size: 1,
        ..NexmarkConfig::default()
    };
    let mut text = String::new();
    for event in EventGenerator::new(config).take(EVENTS) {
        text.push_str(&serde_json::to_string(&event).expect("events are JSON"));
        text.push('\n');
    }
    println!("{} bytes an event", text.len() / EVENTS);
    for (name, variants) in [
        ("5 fields", "Bid(B{auction:u64,bidder:u64,price:u64,channel:string,date_time:u64})"),
        ("5 fields, other order", "Bid(B{date_time:u64,channel:string,price:u64,bidder:u64,auction:u64})"),
        ("all", "Bid(B{auction:u64,bidder:u64,price:u64,channel:string,url:string,date_time:u64,extra:string})"),
        (
            "no bids",
            "Person(P{id:u64,name:string,city:string,state:string})|Auction(A{id:u64,seller:u64,category:u64})",
        ),
    ] {
        let descriptor = TypeDescriptor::parse(&format!("Event[{variants}|*Other]")).expect("a descriptor");
        let mut reader = JsonReader::new(&descriptor).expect("a type for JSON");
        let mut rows = Vec::new();
        let mut nanos: Vec<u128> = (0..ROUNDS).map(|_| round(&mut reader, &text, &mut rows)).collect();
        nanos.sort_unstable();
        let event = |nanos: u128| nanos as f64 / EVENTS as f64;
        println!("{name}: best {:.0} ns, median {:.0} ns an event", event(nanos[0]), event(nanos[ROUNDS / 2]));
    }
}

/// Reads all of the text in blocks; returns nanoseconds.
fn round(reader: &mut JsonReader, text: &str, rows: &mut Vec<u8>) -> u128 {
    let start = Instant::now();
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let limit = rest.len().min(64 << 10);
        let end = memchr::memrchr(b'\n', &rest[..limit]).expect("lines are short") + 1;
        let block = std::str::from_utf8(&rest[..end]).expect("JSON is UTF-8");
        rows.clear();
        let mut line_start = 0;
        while line_start < block.len() {
            row::append_with(rows, 0, row::NO_TIMESTAMP, |rows| {
                let length = reader.read_first_line(&block[line_start..], rows).expect("events fit");
                line_start += length + 1;
            });
        }
        black_box(&rows);
        rest = &rest[end..];
    }
    start.elapsed().as_nanos()
}
