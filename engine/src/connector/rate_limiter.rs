//! Limits the rows that a source emits in a second: a token bucket.
//!
//! Pure but for the clock. Each subtask has its own, with its share of the rate.

use std::time::Duration;

use crate::base::clock::{Clock, Timestamp};

/// Rows saved up while the task could not emit are at most those of this time,
/// so that the rate after a pause is the one asked for.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket that is filled by the clock; one token is one row.
#[derive(Debug)]
pub(super) struct RateLimiter {
    bucket: Option<Bucket>,
}

#[derive(Debug)]
struct Bucket {
    clock: Clock,
    rows_per_milli: f64,
    tokens: f64,
    tokens_max: f64,
    filled: Timestamp,
}

impl RateLimiter {
    /// A limiter of one of `parallelism` subtasks that emit `rate` rows a second
    /// together; none: without limit.
    pub(super) fn new(rate: Option<u64>, parallelism: u32, clock: Clock) -> Self {
        let bucket = rate.map(|rate| {
            // Rates beyond 2^53 cannot be reached anyway.
            let rows_per_milli = rate as f64 / 1000.0 / f64::from(parallelism.max(1));
            let tokens_max = (rows_per_milli * BURST.as_secs_f64() * 1000.0).max(1.0);
            let filled = clock.now();
            Bucket { clock, rows_per_milli, tokens: 0.0, tokens_max, filled }
        });
        Self { bucket }
    }

    /// Rows that may be emitted now, at least one, or the pause until there is one.
    pub(super) fn available(&mut self) -> Result<u64, Duration> {
        let Some(bucket) = &mut self.bucket else { return Ok(u64::MAX) };
        let now = bucket.clock.now();
        // A clock that was set back starts the measurement anew.
        let passed = now.since(bucket.filled).as_secs_f64() * 1000.0;
        bucket.filled = now;
        bucket.tokens = (bucket.tokens + passed * bucket.rows_per_milli).min(bucket.tokens_max);
        if bucket.tokens < 1.0 {
            let millis = ((1.0 - bucket.tokens) / bucket.rows_per_milli).ceil().max(1.0);
            return Err(Duration::from_millis(millis as u64));
        }
        Ok(bucket.tokens as u64)
    }

    /// Takes the tokens of rows that were emitted.
    pub(super) fn take(&mut self, rows: u32) {
        if let Some(bucket) = &mut self.bucket {
            bucket.tokens -= f64::from(rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_subtasks_add_up_to_the_rate() {
        for (rate, parallelism) in [(1000, 1), (1000, 4), (3, 2), (7, 3), (1_000_000, 2)] {
            let clock = Clock::new_virtual(Timestamp(0));
            let mut limiters: Vec<_> =
                (0..parallelism).map(|_| RateLimiter::new(Some(rate), parallelism, clock.clone())).collect();
            let mut emitted = 0_u64;
            for _ in 0..60_000 {
                clock.advance(Duration::from_millis(1));
                for limiter in &mut limiters {
                    if let Ok(rows) = limiter.available() {
                        emitted += rows;
                        limiter.take(u32::try_from(rows).expect("few"));
                    }
                }
            }
            let expected = rate * 60;
            assert!(emitted.abs_diff(expected) <= u64::from(parallelism), "{emitted} of {expected}");
        }
    }

    #[test]
    fn rows_come_one_by_one_and_the_pause_is_exact() {
        let clock = Clock::new_virtual(Timestamp(1000));
        let mut limiter = RateLimiter::new(Some(10), 2, clock.clone());
        assert_eq!(limiter.available(), Err(Duration::from_millis(200)));
        clock.advance(Duration::from_millis(150));
        assert_eq!(limiter.available(), Err(Duration::from_millis(50)));
        clock.advance(Duration::from_millis(50));
        assert_eq!(limiter.available(), Ok(1));
        limiter.take(1);
        assert_eq!(limiter.available(), Err(Duration::from_millis(200)));
    }

    #[test]
    fn a_long_pause_saves_up_a_tenth_of_a_second() {
        let clock = Clock::new_virtual(Timestamp(0));
        let mut limiter = RateLimiter::new(Some(1000), 1, clock.clone());
        clock.advance(Duration::from_secs(60));
        assert_eq!(limiter.available(), Ok(100));
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let mut limiter = RateLimiter::new(None, 4, Clock::new_virtual(Timestamp(0)));
        assert_eq!(limiter.available(), Ok(u64::MAX));
        limiter.take(u32::MAX);
        assert_eq!(limiter.available(), Ok(u64::MAX));
    }
}
