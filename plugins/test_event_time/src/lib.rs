//! Each record with the watermark that it meets, for tests of event time.

use std::time::Duration;

use engine_sdk::{BoundedOutOfOrdernessWatermarks, WatermarkGenerator, WatermarkOutput, prelude::*};

/// Makes a watermark behind each record, not only once an interval.
struct EachRecord(BoundedOutOfOrdernessWatermarks);

impl WatermarkGenerator<str> for EachRecord {
    fn on_event(&mut self, event: &str, timestamp: i64, output: &mut WatermarkOutput) {
        WatermarkGenerator::<str>::on_event(&mut self.0, event, timestamp, output);
        WatermarkGenerator::<str>::on_periodic_emit(&mut self.0, output);
    }

    fn on_periodic_emit(&mut self, _: &mut WatermarkOutput) {}
}

/// Writes lines "TIME,WATERMARK" for lines that are event times, as the next operator sees them.
///
///   --input PATH       files of times in milliseconds, at most 4 s behind a later one
///   --read-order ORDER in-order or side-by-side; the default of the engine if not given
///   --each-record      makes a watermark behind each record
///   --output DIR       a new or empty directory
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let mut source = FileSource::text_lines(args.require("input")?);
    source = match args.get::<String>("read-order")?.as_deref() {
        Some("in-order") => source.read_order(ReadOrder::InOrder),
        Some("side-by-side") => source.read_order(ReadOrder::SideBySide),
        _ => source,
    };
    let bound = Duration::from_secs(4);
    let strategy = match args.flag("each-record") {
        true => WatermarkStrategy::for_generator(move || EachRecord(BoundedOutOfOrdernessWatermarks::new(bound))),
        false => WatermarkStrategy::for_bounded_out_of_orderness(bound),
    };
    // What is no number is no time either.
    let strategy = strategy.with_timestamp_assigner(|line: &str| line.parse().unwrap_or(i64::MIN));
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
