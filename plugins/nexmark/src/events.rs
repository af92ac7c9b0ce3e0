//! The events, and where they come from.

use std::time::Duration;

use engine_sdk::prelude::*;

/// How far an event may come behind others in event time.
const DISORDER: Duration = Duration::from_secs(4);

/// An event, of which only bids matter.
#[derive(Record)]
pub enum BidEvent {
    Bid(Bid),
    #[record(other)]
    Other,
}

#[derive(Record, Clone, Copy)]
pub struct Bid {
    pub auction: u64,
    pub bidder: u64,
    pub price: u64,
    /// Milliseconds since the Unix epoch.
    pub date_time: i64,
}

/// The input, with the events and fields that the type `E` names; other events may be among it.
pub fn read<E: Record>(env: &StreamExecutionEnvironment, args: &Args) -> Result<DataStream<E>> {
    let rate = args.get::<u64>("rate")?;
    match (args.get::<String>("input")?, args.get::<u64>("events")?) {
        (Some(path), None) => {
            let source = FileSource::json_lines::<E>(path).skip_other();
            Ok(env
                .from_source(match rate {
                    Some(rate) => source.rate(rate),
                    None => source,
                })
                .uid("events"))
        }
        (None, Some(events)) => {
            let source = NexmarkSource::<E>::events(events);
            Ok(env
                .from_source(match rate {
                    Some(rate) => source.rate(rate),
                    None => source,
                })
                .uid("events"))
        }
        _ => engine_sdk::bail!("give one of --input PATH and --events N"),
    }
}

/// The bids of the input.
pub fn bids(env: &StreamExecutionEnvironment, args: &Args) -> Result<DataStream<Bid>> {
    let events = read::<BidEvent>(env, args)?;
    Ok(events.flat_map(|event, out: &mut Collector<Bid>| {
        if let BidEvent::Bid(bid) = event {
            out.collect(bid);
        }
    }))
}

/// The events with their time, in milliseconds since the Unix epoch, and watermarks.
pub fn timed<E, F>(events: &DataStream<E>, date_time: F) -> DataStream<E>
where
    E: Record,
    F: for<'a> Fn(E::Ref<'a>) -> i64 + 'static,
{
    let strategy = WatermarkStrategy::<E>::for_bounded_out_of_orderness(DISORDER);
    events.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(date_time))
}
