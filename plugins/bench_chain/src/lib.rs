//! Chains of cheap maps, for the benches: what does the engine add to each?

use engine_sdk::prelude::*;

/// Maps over rows of eight numbers, or passes lines on.
///
///   --maps N    number of maps, default 1
///   --lines     passes lines of standard input through an exchange to standard output
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    if args.flag("lines") {
        env.from_source(StdinSource::text_lines()).rebalance().filter(|line| !line.is_empty()).print();
        return Ok(());
    }
    let mut rows = env.from_source(FileSource::json_lines::<Numbers>("numbers"));
    for _ in 0..args.get_or("maps", 1_u32)? {
        rows = rows.map(mix);
    }
    rows.sink_to(DiscardSink);
    Ok(())
}

/// A record whose encoding has 64 bytes.
#[derive(Record)]
struct Numbers {
    a: u64,
    b: u64,
    c: u64,
    d: u64,
    e: u64,
    f: u64,
    g: u64,
    h: u64,
}

/// A little arithmetic; the assertion stands for the checks of real programs.
fn mix(mut row: Numbers) -> Numbers {
    assert!(row.b != u64::MAX, "b is too big");
    row.a = row.a.wrapping_mul(3) ^ row.h;
    row
}
