//! Watches the log of an SSH server: counts failed logins, and raises alerts.

use std::time::Duration;

use engine_sdk::{Counter, prelude::*};
use time::{Date, Month, PrimitiveDateTime, Time};

/// Windows are ten minutes long, in milliseconds.
const WINDOW: i64 = 10 * 60 * 1000;

/// Counts failed logins by address in windows of ten minutes. Writes rows
/// `window start in ms,address,count`.
///
///   --input PATH    reads lines of sshd's log from a file, a directory or a pattern
///   --output DIR    writes into a new or empty directory; without it, prints
///   --alerts DIR    writes an alert, `time in ms,address`, as soon as an address has more
///                   failed logins in a window than the threshold
///   --threshold N   is the number of failed logins that raise no alert yet; 5 if not given
///   --year YEAR     is the year of the log, whose lines name none; 2023 if not given
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let year = args.get_or("year", 2023)?;
    let alerts = OutputTag::<str>::new("alerts");
    let threshold = args.get_or("threshold", 5)?;
    let event_time = WatermarkStrategy::<Failure<'static>>::for_bounded_out_of_orderness(Duration::from_secs(5))
        .with_timestamp_assigner(|failure| failure.time);
    let rows = env
        .from_source(FileSource::text_lines(args.require("input")?))
        .uid("lines")
        .flat_map(move |line, out: &mut Collector<Failure<'static>>| failed_login(line, year, out))
        .assign_timestamps_and_watermarks(event_time)
        .key_by_with(|failure: &Failure<'_>, key: &mut KeyWriter<str>| key.set(failure.address))
        .process({
            let alerts = alerts.clone();
            move |states: &mut States| Guard {
                threshold,
                alerts: alerts.clone(),
                counts: states.map("counts"),
                late: Counter::new("numLateFailures"),
            }
        })
        .uid("guard");
    if let Some(directory) = args.get::<String>("alerts")? {
        rows.get_side_output(&alerts).sink_to(FileSink::text_lines(directory)).name("Alerts").uid("alerts");
    }
    let counts = match args.get::<String>("output")? {
        Some(directory) => rows.sink_to(FileSink::text_lines(directory)),
        None => rows.print(),
    };
    counts.name("Counts").uid("counts");
    env.set_job_name("sshd guard");
    Ok(())
}

/// A failed login.
#[derive(Record)]
struct Failure<'a> {
    /// Milliseconds since the Unix epoch.
    time: i64,
    address: &'a str,
}

/// Finds the failed login in a line such as
/// `Dec 10 06:55:48 host sshd[24200]: Failed password for root from 198.51.100.1 port 38926 ssh2`.
fn failed_login(line: &str, year: i32, out: &mut Collector<Failure<'static>>) -> Result<()> {
    let Some((head, message)) = line.split_once("]: ") else { return Ok(()) };
    if !head.contains(" sshd[") || !message.starts_with("Failed password") {
        return Ok(());
    }
    let Some(time) = milliseconds(head, year) else {
        engine_sdk::bail!("the line does not begin with a time such as \"Dec 10 06:55:48\"");
    };
    if let Some(address) = address(message) {
        out.collect(Failure { time, address });
    }
    Ok(())
}

/// The address in `Failed password for NAME from ADDRESS port PORT ssh2`. The name is the
/// stranger's own text: one with blanks in it could pretend to be anything that follows, so
/// that such a line says nothing for sure, and counts for nobody.
fn address(message: &str) -> Option<&str> {
    let login = message.strip_prefix("Failed password for ")?;
    let login = login.strip_prefix("invalid user ").unwrap_or(login);
    let mut words = login.split(' ');
    let words: [Option<&str>; 7] = std::array::from_fn(|_| words.next());
    match words {
        [Some(name), Some("from"), Some(address), Some("port"), Some(_), Some("ssh2"), None] if !name.is_empty() => {
            Some(address)
        }
        _ => None,
    }
}

/// The time at the head of a line, in milliseconds since the Unix epoch.
fn milliseconds(head: &str, year: i32) -> Option<i64> {
    let mut words = head.split_whitespace();
    let month = match words.next()? {
        "Jan" => Month::January,
        "Feb" => Month::February,
        "Mar" => Month::March,
        "Apr" => Month::April,
        "May" => Month::May,
        "Jun" => Month::June,
        "Jul" => Month::July,
        "Aug" => Month::August,
        "Sep" => Month::September,
        "Oct" => Month::October,
        "Nov" => Month::November,
        "Dec" => Month::December,
        _ => return None,
    };
    let date = Date::from_calendar_date(year, month, words.next()?.parse().ok()?).ok()?;
    let mut time = words.next()?.splitn(3, ':').map(|number| number.parse::<u8>().ok());
    let time = Time::from_hms(time.next()??, time.next()??, time.next()??).ok()?;
    Some(PrimitiveDateTime::new(date, time).assume_utc().unix_timestamp() * 1000)
}

/// Counts the failed logins of each address in windows of its own, to see at once when
/// there are too many.
struct Guard {
    threshold: u64,
    alerts: OutputTag<str>,
    /// Failed logins of the address by start of the window.
    counts: MapState<i64, u64>,
    /// Failed logins that came after the row of their window was written, and count nowhere else.
    late: Counter,
}

impl KeyedProcessFunction<str, Failure<'static>> for Guard {
    type Output = str;

    fn process_element(
        &self,
        failure: Failure<'_>,
        ctx: &mut KeyedContext<'_, str>,
        _out: &mut Collector<str>,
    ) -> Result<()> {
        let start = failure.time - failure.time.rem_euclid(WINDOW);
        let last = start + WINDOW - 1;
        if last <= ctx.timer_service().current_watermark() {
            // Too late: the window's row was written.
            self.late.inc();
            return Ok(());
        }
        let count = self.counts.get(&start).unwrap_or(0) + 1;
        self.counts.put(&start, count);
        if count == 1 {
            ctx.timer_service().register_event_time_timer(last);
        }
        if count == self.threshold + 1 {
            ctx.output(&self.alerts, &format!("{},{}", failure.time, failure.address));
        }
        Ok(())
    }

    /// Event time has passed the end of a window.
    fn on_timer(&self, timestamp: i64, ctx: &mut OnTimerContext<'_, str>, out: &mut Collector<str>) -> Result<()> {
        let start = timestamp + 1 - WINDOW;
        if let Some(count) = self.counts.get(&start) {
            ctx.with_current_key(|address| out.csv((start, address, count)));
            self.counts.remove(&start);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use engine_sdk::TestHarness;

    use super::{address, main, milliseconds};

    /// The job over a log, its rows printed.
    fn harness(args: &[&str]) -> TestHarness {
        TestHarness::new(main, &[&["--input", "auth.log"], args].concat()).unwrap()
    }

    fn push_failure(harness: &mut TestHarness, time: &str, address: &str) {
        let line = format!("{time} gate sshd[311]: Failed password for root from {address} port 40011 ssh2");
        harness.push::<str>(&line).unwrap();
    }

    #[test]
    fn failed_logins_are_counted_by_window_and_address() {
        let mut harness = harness(&[]);
        for (time, address) in [
            ("Dec 10 06:55:48", "192.0.2.7"),
            ("Dec 10 06:55:50", "192.0.2.8"),
            ("Dec 10 06:59:59", "192.0.2.7"),
            ("Dec 10 07:00:00", "192.0.2.7"),
        ] {
            push_failure(&mut harness, time, address);
        }
        harness.push::<str>("Dec 10 07:00:01 gate sshd[312]: Accepted password for alice from 192.0.2.9").unwrap();
        harness.push::<str>("Dec 10 07:00:01 gate cron[7]: Failed password").unwrap();
        harness.set_processing_time(1).unwrap();
        assert!(harness.lines().unwrap().is_empty(), "the first window may still get failed logins");
        push_failure(&mut harness, "Dec 10 07:00:05", "192.0.2.8");
        harness.set_processing_time(2).unwrap();
        let mut first = harness.lines().unwrap();
        first.sort();
        assert_eq!(first, ["1702191000000,192.0.2.7,2", "1702191000000,192.0.2.8,1"]);
        assert_eq!(harness.metric("numLateFailures"), None);
        // Too late: not a second row for the window.
        push_failure(&mut harness, "Dec 10 06:59:59", "192.0.2.7");
        assert_eq!(harness.metric("numLateFailures"), Some(1.0));
        harness.finish().unwrap();
        let mut second = harness.lines().unwrap().split_off(2);
        second.sort();
        assert_eq!(second, ["1702191600000,192.0.2.7,1", "1702191600000,192.0.2.8,1"]);
    }

    #[test]
    fn an_alert_is_raised_at_once_and_once() {
        let mut harness = harness(&["--threshold", "2", "--alerts", "alerts", "--output", "counts"]);
        harness.set_processing_time(0).unwrap();
        for second in 10..15 {
            push_failure(&mut harness, &format!("Dec 10 06:55:{second}"), "192.0.2.7");
        }
        push_failure(&mut harness, "Dec 10 06:55:15", "192.0.2.8");
        assert_eq!(harness.records_of::<String>("Alerts").unwrap(), ["1702191312000,192.0.2.7"]);
        assert!(harness.records_of::<String>("Counts").unwrap().is_empty());
    }

    #[test]
    fn a_name_with_blanks_makes_a_line_that_counts_for_nobody() {
        let at = |login: &str| address(&format!("Failed password for {login} port 1 ssh2")).map(str::to_owned);
        assert_eq!(at("root from 192.0.2.7").as_deref(), Some("192.0.2.7"));
        assert_eq!(at("invalid user root from 192.0.2.7").as_deref(), Some("192.0.2.7"));
        assert_eq!(at("invalid user x from 198.51.100.1 from 192.0.2.8"), None);
        assert_eq!(at("invalid user  0101 from 192.0.2.7"), None);
        assert_eq!(at("invalid user  from 192.0.2.7"), None);
        assert_eq!(address("Failed password for root"), None);
    }

    #[test]
    fn a_line_without_time_is_refused() {
        for (line, message) in [
            ("Foo 10 06:55:48 gate sshd[311]: Failed password for root from 192.0.2.7 port 1 ssh2", "does not begin"),
            ("Feb 29 06:55:48 gate sshd[311]: Failed password for root from 192.0.2.7 port 1 ssh2", "does not begin"),
        ] {
            let error = harness(&[]).push::<str>(line).unwrap_err();
            assert!(error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn the_year_is_an_argument() {
        assert_eq!(milliseconds("Feb 29 00:00:01 gate", 2024), Some(1_709_164_801_000));
        assert_eq!(milliseconds("Dec  1 23:59:59 gate", 2023), Some(1_701_475_199_000));
    }
}
