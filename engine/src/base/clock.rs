//! Event time and processing time.
//!
//! The only place that reads the machine's clocks; every component is given a
//! [`Clock`], so that tests can drive it.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// A point in time: milliseconds since the Unix epoch.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, Ord, PartialEq, PartialOrd, Serialize)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// "No timestamp" on a row, and the watermark before the first.
    pub const MIN: Self = Self(i64::MIN);
    /// The watermark at the end of event time.
    pub const MAX: Self = Self(i64::MAX);

    /// The time that passed since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        let passed = self.0.saturating_sub(earlier.0);
        Duration::from_millis(u64::try_from(passed).unwrap_or(0))
    }

    /// The time `duration` later, or [`Timestamp::MAX`] if there is none.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// Processing time. Cloning gives another handle on the same clock.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock.
    System,
    /// Stands still until a test moves it.
    Virtual(Arc<AtomicI64>),
}

impl Clock {
    /// A clock that shows `start` until it is moved.
    pub fn new_virtual(start: Timestamp) -> Self {
        Self::Virtual(Arc::new(AtomicI64::new(start.0)))
    }

    /// The time now.
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the clock")]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System => {
                let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                Timestamp(i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX))
            }
            Self::Virtual(millis) => Timestamp(millis.load(Ordering::SeqCst)),
        }
    }

    /// Time since an arbitrary start, in nanoseconds where the machine has them;
    /// never goes back. For measuring and for deadlines within one process.
    pub fn monotonic(&self) -> Duration {
        match self {
            Self::System => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
                let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
                Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
            }
            Self::Virtual(millis) => {
                let millis = millis.load(Ordering::SeqCst);
                Duration::from_millis(u64::try_from(millis).unwrap_or(0))
            }
        }
    }

    /// Moves a virtual clock; the machine's clock moves by itself.
    pub fn advance(&self, by: Duration) {
        match self {
            Self::System => {}
            Self::Virtual(millis) => {
                let by = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
                millis.fetch_add(by, Ordering::SeqCst);
            }
        }
    }
}
