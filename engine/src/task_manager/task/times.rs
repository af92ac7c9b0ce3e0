//! How much of its time a task was idle, back-pressured or busy.
//!
//! Written by the task's thread when it begins and ends to wait, read by others
//! at any time. A reader that meets a change may see one wait twice or not at
//! all; the sum never exceeds the time that passed.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Why a task waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waiting {
    /// There is nothing to do.
    Idle,
    /// An output is full.
    BackPressured,
}

/// Time spent, in whole milliseconds that add up to the time that passed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TimeShares {
    /// There was nothing to do.
    pub idle_ms: u64,
    /// An output was full.
    pub back_pressured_ms: u64,
    /// The rest.
    pub busy_ms: u64,
}

/// Splits the time that passed; waits that exceed it count only up to it.
///
/// Source: Flink's `TaskIOMetricGroup`.
pub fn time_shares(elapsed_ms: u64, idle_ms: u64, back_pressured_ms: u64) -> TimeShares {
    let waited = idle_ms.saturating_add(back_pressured_ms).min(elapsed_ms);
    TimeShares { idle_ms, back_pressured_ms, busy_ms: elapsed_ms - waited }
}

/// No wait is under way.
const NOT_WAITING: u64 = u64::MAX;

#[derive(Debug)]
struct Waits {
    nanos: AtomicU64,
    /// Begin of the wait that is under way, or [`NOT_WAITING`].
    since: AtomicU64,
}

impl Waits {
    const fn new() -> Self {
        Self { nanos: AtomicU64::new(0), since: AtomicU64::new(NOT_WAITING) }
    }

    fn total(&self, now: u64) -> u64 {
        let under_way = match self.since.load(Ordering::Relaxed) {
            NOT_WAITING => 0,
            since => now.saturating_sub(since),
        };
        self.nanos.load(Ordering::Relaxed) + under_way
    }
}

/// Accounts for the time of one task. All times are on the monotonic clock.
#[derive(Debug)]
pub struct TaskTimes {
    started: u64,
    ended: AtomicU64,
    idle: Waits,
    back_pressured: Waits,
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

impl TaskTimes {
    /// Of a task that starts now, busy.
    pub fn new(now: Duration) -> Self {
        Self {
            started: nanos(now),
            ended: AtomicU64::new(NOT_WAITING),
            idle: Waits::new(),
            back_pressured: Waits::new(),
        }
    }

    fn waits(&self, waiting: Waiting) -> &Waits {
        match waiting {
            Waiting::Idle => &self.idle,
            Waiting::BackPressured => &self.back_pressured,
        }
    }

    /// A wait begins.
    pub fn begin(&self, waiting: Waiting, now: Duration) {
        self.waits(waiting).since.store(nanos(now), Ordering::Relaxed);
    }

    /// The wait that began last has ended.
    pub fn end(&self, waiting: Waiting, now: Duration) {
        let waits = self.waits(waiting);
        let total = waits.total(nanos(now));
        waits.since.store(NOT_WAITING, Ordering::Relaxed);
        waits.nanos.store(total, Ordering::Relaxed);
    }

    /// The task has ended; no time passes for it any more.
    pub fn finish(&self, now: Duration) {
        self.ended.store(nanos(now), Ordering::Relaxed);
    }

    /// How the time until now was spent.
    pub fn shares(&self, now: Duration) -> TimeShares {
        let now = nanos(now).min(self.ended.load(Ordering::Relaxed));
        let millis = |nanos: u64| nanos / 1_000_000;
        let elapsed = now.saturating_sub(self.started);
        time_shares(millis(elapsed), millis(self.idle.total(now)), millis(self.back_pressured.total(now)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of idle, back-pressured and busy milliseconds in a second, as Flink computes them.
    #[test]
    fn busy_is_what_is_neither_idle_nor_back_pressured() {
        for (idle, back_pressured, busy) in [(0, 0, 1000), (1000, 0, 0), (400, 300, 300), (0, 1000, 0), (700, 400, 0)] {
            assert_eq!(time_shares(1000, idle, back_pressured).busy_ms, busy, "{idle}, {back_pressured}");
        }
    }

    #[test]
    fn waits_are_counted_while_they_last_and_not_after_the_end() {
        let at = |millis: u64| Duration::from_millis(5_000 + millis);
        let times = TaskTimes::new(at(0));
        times.begin(Waiting::Idle, at(100));
        assert_eq!(times.shares(at(150)), TimeShares { idle_ms: 50, back_pressured_ms: 0, busy_ms: 100 });
        times.end(Waiting::Idle, at(200));
        times.begin(Waiting::BackPressured, at(300));
        times.end(Waiting::BackPressured, at(340));
        times.begin(Waiting::Idle, at(340));
        times.end(Waiting::Idle, at(350));
        let expected = TimeShares { idle_ms: 110, back_pressured_ms: 40, busy_ms: 250 };
        assert_eq!(times.shares(at(400)), expected);
        times.finish(at(400));
        assert_eq!(times.shares(at(9_000)), expected);
    }
}
