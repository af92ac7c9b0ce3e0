//! [`TimeWindow`]: a span of time, with what Flink computes of it.

use engine_sdk_macros::Record;

use crate::state::{window_namespace, window_of};

/// A span of time: `start` belongs to it, `end` does not. Both in milliseconds since the
/// Unix epoch.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd, Record)]
pub struct TimeWindow {
    /// The first millisecond of the window.
    pub start: i64,
    /// The first millisecond behind the window.
    pub end: i64,
}

impl TimeWindow {
    /// The only window of `GlobalWindows`: all time.
    pub const GLOBAL: Self = Self { start: i64::MIN, end: i64::MAX };

    pub(crate) fn new(start: i64, end: i64) -> Self {
        Self { start, end }
    }

    /// The last millisecond of the window: the timestamp of its results.
    #[inline]
    pub fn max_timestamp(&self) -> i64 {
        if self.end == i64::MAX { i64::MAX } else { self.end - 1 }
    }

    /// The watermark at which the window is given up; `i64::MAX` is never reached.
    #[inline]
    pub(crate) fn cleanup_time(&self, allowed_lateness: i64) -> i64 {
        self.max_timestamp().saturating_add(allowed_lateness)
    }

    /// True if both are one session: they intersect, or one begins where the other ends.
    #[inline]
    pub(crate) fn touches(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// The least window that covers both.
    #[inline]
    pub(crate) fn cover(&self, other: &Self) -> Self {
        Self { start: self.start.min(other.start), end: self.end.max(other.end) }
    }

    /// The window as the namespace of state and timers: sorts as the window does.
    #[inline]
    pub(crate) fn namespace(&self) -> [u8; 16] {
        window_namespace(self.start, self.end)
    }

    /// The window that a namespace stands for; none if it is none.
    #[inline]
    pub(crate) fn of_namespace(namespace: &[u8]) -> Option<Self> {
        window_of(namespace).map(|(start, end)| Self { start, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn namespaces_sort_as_windows_and_lead_back_to_them() {
        let times = [i64::MIN, -1000, -1, 0, 1, 255, 256, i64::MAX];
        let windows: Vec<_> =
            times.iter().flat_map(|start| times.iter().map(|end| TimeWindow::new(*start, *end))).collect();
        for window in &windows {
            assert_eq!(TimeWindow::of_namespace(&window.namespace()), Some(*window));
        }
        assert!(windows.is_sorted_by_key(TimeWindow::namespace));
        assert_eq!(TimeWindow::of_namespace(b""), None);
        assert_eq!(TimeWindow::of_namespace(&[0; 17]), None);
    }

    #[test]
    fn all_time_ends_with_event_time_and_is_never_given_up() {
        assert_eq!(TimeWindow::GLOBAL.max_timestamp(), i64::MAX);
        assert_eq!(TimeWindow::GLOBAL.cleanup_time(1), i64::MAX);
    }
}
