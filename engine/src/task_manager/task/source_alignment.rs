//! When a source reports how far it is, and when it pauses to let others catch up. Pure:
//! times are given.

use std::time::Duration;

use crate::base::clock::Timestamp;

/// A source that waits for those of its group.
#[derive(Clone, Debug)]
pub struct SourceAlignment {
    update_interval: Duration,
    /// When it reports next, on the monotonic clock.
    due: Duration,
    /// It has reported since its first watermark.
    has_watermark: bool,
    /// It pauses while its watermark is above.
    max_allowed: Timestamp,
    paused: bool,
}

impl SourceAlignment {
    /// For a source that starts now and reports at once.
    pub fn new(update_interval: Duration, now: Duration) -> Self {
        Self { update_interval, due: now, has_watermark: false, max_allowed: Timestamp::MAX, paused: false }
    }

    /// True if the watermark is to be reported now: once an interval, and when there is a
    /// first one, for which others wait.
    pub fn take_report(&mut self, watermark: Timestamp, now: Duration) -> bool {
        let is_first = !self.has_watermark && Timestamp::MIN < watermark;
        if now < self.due && !is_first {
            return false;
        }
        self.has_watermark |= is_first;
        self.due = now + self.update_interval;
        true
    }

    /// When the next report is due, on the monotonic clock.
    pub fn due(&self) -> Duration {
        self.due
    }

    /// Takes the answer to a report.
    pub fn allow(&mut self, max_allowed: Timestamp) {
        self.max_allowed = max_allowed;
    }

    /// Looks whether the source may go on. Returns true if it was paused until now.
    pub fn update(&mut self, watermark: Timestamp) -> bool {
        let paused = self.max_allowed < watermark;
        let resumed = self.paused && !paused;
        self.paused = paused;
        resumed
    }

    /// True while the source is too far ahead.
    pub fn is_paused(&self) -> bool {
        self.paused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_pauses_where_flinks_does() {
        for (max_allowed, watermark, paused) in [(1500, 1500, false), (1500, 1501, true), (i64::MAX, 1_000_000, false)]
        {
            let mut source = SourceAlignment::new(Duration::from_secs(1), Duration::ZERO);
            source.allow(Timestamp(max_allowed));
            assert!(!source.update(Timestamp(watermark)), "it was not paused before");
            assert_eq!(source.is_paused(), paused);
            source.allow(Timestamp(watermark));
            assert_eq!(source.update(Timestamp(watermark)), paused, "it goes on if it was paused");
            assert!(!source.is_paused());
        }
    }

    #[test]
    fn reports_come_once_an_interval_and_with_the_first_watermark() {
        let millis = Duration::from_millis;
        let mut source = SourceAlignment::new(millis(1000), millis(5));
        assert!(source.take_report(Timestamp::MIN, millis(5)));
        assert!(!source.take_report(Timestamp::MIN, millis(204)));
        assert!(source.take_report(Timestamp(7), millis(205)), "the first watermark");
        assert_eq!(source.due(), millis(1205));
        assert!(!source.take_report(Timestamp(8), millis(1204)));
        assert!(source.take_report(Timestamp(8), millis(1300)));
        assert_eq!(source.due(), millis(2300));
    }
}
