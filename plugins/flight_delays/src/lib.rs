//! Delays of flights by day and airport, from JSON lines.

use std::time::Duration;

use engine_sdk::prelude::*;
use time::{Date, Month, OffsetDateTime, PrimitiveDateTime, Time};

/// Sums up the delays of flights by day (UTC) and airport of departure. Writes rows
/// `yyyy-MM-dd,origin,flights,sum of delay,largest delay`.
///
///   --input PATH   reads flights, a JSON object a line, from a file, a directory or a pattern:
///                  {"date":"2001/01/01 00:47","delay":66,"origin":"DTW"}; other fields do not matter
///   --output DIR   writes into a new or empty directory; without it, prints
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    // Event time: a flight may stand up to an hour behind a later one. A date that is
    // none has no place in time, and its line is refused.
    let event_time = WatermarkStrategy::<Flight<'_>>::for_bounded_out_of_orderness(Duration::from_hours(1))
        .with_timestamp_assigner(|flight| milliseconds(flight.date).unwrap_or(i64::MIN));
    let rows = env
        .from_source(FileSource::json_lines(args.require("input")?))
        .uid("flights")
        .assign_timestamps_and_watermarks(event_time)
        .key_by_with(|flight: &Flight<'_>, key: &mut KeyWriter<str>| key.set(flight.origin))
        .window(TumblingEventTimeWindows::of(Duration::from_hours(24)))
        .aggregate_then(SumUp, |origin, window, delays, out: &mut Collector<str>| {
            let Delays { flights, sum, largest } = delays;
            let day = OffsetDateTime::from_unix_timestamp(window.start / 1000)?.date();
            out.csv((day.to_string(), origin, flights, sum, largest));
            Ok(())
        })
        .uid("delays-of-days");
    match args.get::<String>("output")? {
        Some(directory) => rows.sink_to(FileSink::text_lines(directory)).uid("rows"),
        None => rows.print(),
    };
    env.set_job_name("Flight delays");
    Ok(())
}

/// A line of the input: the fields that matter.
#[derive(Record)]
struct Flight<'a> {
    /// `yyyy/MM/dd HH:mm`, UTC.
    date: &'a str,
    /// Minutes; below 0 if it was early.
    delay: i64,
    origin: &'a str,
}

/// What is kept, and known in the end, of an airport's day.
#[derive(Clone, Record)]
struct Delays {
    flights: u64,
    sum: i64,
    largest: i64,
}

struct SumUp;

impl AggregateFunction<Flight<'static>> for SumUp {
    type Accumulator = Delays;
    type Output = Delays;

    fn create_accumulator(&self) -> Delays {
        Delays { flights: 0, sum: 0, largest: i64::MIN }
    }

    fn add(&self, flight: &Flight<'_>, delays: &mut Delays) {
        delays.flights += 1;
        delays.sum += flight.delay;
        delays.largest = delays.largest.max(flight.delay);
    }

    fn get_result(&self, delays: &Delays) -> Delays {
        delays.clone()
    }

    fn merge(&self, delays: &mut Delays, other: Delays) {
        delays.flights += other.flights;
        delays.sum += other.sum;
        delays.largest = delays.largest.max(other.largest);
    }
}

/// `yyyy/MM/dd HH:mm` as milliseconds since the Unix epoch.
fn milliseconds(text: &str) -> Option<i64> {
    let (date, time) = text.split_once(' ')?;
    let mut date = date.splitn(3, '/');
    let year = date.next()?.parse().ok()?;
    let month = Month::try_from(date.next()?.parse::<u8>().ok()?).ok()?;
    let date = Date::from_calendar_date(year, month, date.next()?.parse().ok()?).ok()?;
    let (hour, minute) = time.split_once(':')?;
    let time = Time::from_hms(hour.parse().ok()?, minute.parse().ok()?, 0).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp() * 1000)
}

#[cfg(test)]
mod tests {
    use engine_sdk::TestHarness;

    use super::{Flight, main, milliseconds};

    fn push(harness: &mut TestHarness, date: &str, origin: &str, delay: i64) {
        harness.push::<Flight<'_>>(&Flight { date, delay, origin }).unwrap();
    }

    #[test]
    fn days_are_summed_up_by_airport() {
        let mut harness = TestHarness::new(main, &["--input", "flights"]).unwrap();
        push(&mut harness, "2001/01/01 00:47", "DTW", 66);
        push(&mut harness, "2001/01/01 23:59", "DTW", -5);
        push(&mut harness, "2001/01/02 00:00", "DTW", -3);
        // Out of order, by less than an hour.
        push(&mut harness, "2001/01/01 23:30", "ABQ", 6);
        harness.set_processing_time(0).unwrap();
        assert!(harness.lines().unwrap().is_empty(), "the first day may still get flights");
        push(&mut harness, "2001/01/02 01:01", "DTW", 0);
        harness.set_processing_time(1).unwrap();
        let mut first = harness.lines().unwrap();
        first.sort();
        assert_eq!(first, ["2001-01-01,ABQ,1,6,6", "2001-01-01,DTW,2,61,66"]);
        harness.finish().unwrap();
        assert_eq!(harness.lines().unwrap()[2..], ["2001-01-02,DTW,2,-3,0"]);
    }

    #[test]
    fn a_date_that_is_none_is_refused() {
        let mut harness = TestHarness::new(main, &["--input", "flights"]).unwrap();
        let flight = Flight { date: "2001/02/29 10:00", delay: 1, origin: "DTW" };
        assert!(harness.push::<Flight<'_>>(&flight).is_err());
    }

    #[test]
    fn dates_are_read_as_utc() {
        assert_eq!(milliseconds("1970/01/02 00:01"), Some(86_460_000));
        assert_eq!(milliseconds("2001/01/01 00:47"), Some(978_310_020_000));
        for text in ["", "2001/13/01 00:00", "2001/01/01", "2001/01/01 24:00", "2001-01-01 00:00"] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }
}
