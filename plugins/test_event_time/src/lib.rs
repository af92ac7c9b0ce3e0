//! Each record with the watermark that it meets, for tests of event time.

use std::time::Duration;

use engine_sdk::prelude::*;

/// Writes lines "TIME,WATERMARK" for lines that are event times, as the next operator sees them.
///
///   --input PATH       files of times in milliseconds, at most 4 s behind a later one
///   --read-order ORDER in-order or side-by-side; the default of the engine if not given
///   --output DIR       a new or empty directory
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let mut source = FileSource::text_lines(args.require("input")?);
    source = match args.get::<String>("read-order")?.as_deref() {
        Some("in-order") => source.read_order(ReadOrder::InOrder),
        Some("side-by-side") => source.read_order(ReadOrder::SideBySide),
        _ => source,
    };
    // What is no number is no time either.
    let strategy = WatermarkStrategy::<str>::for_bounded_out_of_orderness(Duration::from_secs(4))
        .with_timestamp_assigner(|line| line.parse().unwrap_or(i64::MIN));
    env.from_source_with_watermarks(source, strategy)
        .rebalance()
        .process(|_, context, out: &mut Collector<str>| {
            if let Some(time) = context.timestamp() {
                out.csv((time, context.current_watermark()));
            }
        })
        .sink_to(FileSink::text_lines(args.require("output")?));
    Ok(())
}
