//! Rate limit of a guest's log: a bucket of bytes that fills with the time. Pure.

use std::time::Duration;

use crate::base::clock::Timestamp;

/// The bucket holds what this many seconds bring.
const BURST_SECONDS: u64 = 4;

/// Bytes that may still be logged.
#[derive(Debug)]
pub(crate) struct LogRate {
    bytes_per_second: u64,
    /// Thousandths of a byte, so that short pauses count.
    available_millibytes: u64,
    filled: Timestamp,
}

impl LogRate {
    pub(crate) fn new(bytes_per_second: u64, now: Timestamp) -> Self {
        let rate = Self { bytes_per_second, available_millibytes: 0, filled: now };
        Self { available_millibytes: rate.capacity(), ..rate }
    }

    /// Takes a line out of the bucket, or returns false if there is no room for it.
    pub(crate) fn admit(&mut self, bytes: usize, now: Timestamp) -> bool {
        let passed: Duration = now.since(self.filled);
        let millis = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        let filled = millis.saturating_mul(self.bytes_per_second);
        self.available_millibytes = self.available_millibytes.saturating_add(filled).min(self.capacity());
        self.filled = now;
        // An empty line costs a byte: it, too, takes a line of somebody's file.
        let wanted = u64::try_from(bytes.max(1)).unwrap_or(u64::MAX).saturating_mul(1000);
        match self.available_millibytes.checked_sub(wanted) {
            Some(rest) => {
                self.available_millibytes = rest;
                true
            }
            None => false,
        }
    }

    fn capacity(&self) -> u64 {
        self.bytes_per_second.saturating_mul(1000 * BURST_SECONDS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_passes_then_the_rate_holds() {
        let mut rate = LogRate::new(100, Timestamp(0));
        for _ in 0..4 {
            assert!(rate.admit(100, Timestamp(0)));
        }
        assert!(!rate.admit(1, Timestamp(0)));
        assert!(!rate.admit(100, Timestamp(999)));
        assert!(rate.admit(99, Timestamp(1000)));
        assert!(rate.admit(1, Timestamp(1000)));
        assert!(!rate.admit(1, Timestamp(1000)));
    }

    #[test]
    fn a_long_pause_brings_no_more_than_a_burst_and_time_may_go_back() {
        let mut rate = LogRate::new(10, Timestamp(0));
        assert!(rate.admit(40, Timestamp(0)));
        assert!(!rate.admit(41, Timestamp(i64::MAX)));
        assert!(rate.admit(40, Timestamp(i64::MAX)));
        assert!(!rate.admit(1, Timestamp(0)));
    }
}
