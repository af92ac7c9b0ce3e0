//! Generators: what a watermark is, given the timestamps seen so far.

use std::time::Duration;

use super::millis;
use crate::record::Record;

/// Makes the watermarks of one split from its records.
pub trait WatermarkGenerator<T: Record + ?Sized>: 'static {
    /// Called for each record; a watermark that it emits goes behind the record.
    fn on_event(&mut self, event: T::Ref<'_>, timestamp: i64, output: &mut WatermarkOutput);

    /// Called every `pipeline.auto-watermark-interval` or 5,000 records, whichever comes first,
    /// and at the end of the input.
    fn on_periodic_emit(&mut self, output: &mut WatermarkOutput);
}

/// Takes the watermarks of a split.
#[derive(Debug)]
pub struct WatermarkOutput {
    /// [`i64::MIN`] before the first.
    pub(super) watermark: i64,
    pub(super) idle: bool,
    /// Something came since the last look.
    pub(super) touched: bool,
}

impl WatermarkOutput {
    pub(super) fn new() -> Self {
        Self { watermark: i64::MIN, idle: false, touched: false }
    }

    /// Tells that no records at or below `timestamp` are expected; a value below an earlier one
    /// changes nothing. The split is active again.
    #[inline]
    pub fn emit_watermark(&mut self, timestamp: i64) {
        self.watermark = self.watermark.max(timestamp);
        self.idle = false;
        self.touched = true;
    }

    /// Leaves the split out of the watermark until it is active again.
    pub fn mark_idle(&mut self) {
        self.idle = true;
        self.touched = true;
    }

    /// Takes the split into the watermark again.
    pub fn mark_active(&mut self) {
        self.idle = false;
        self.touched = true;
    }
}

/// The watermark is a fixed time, and a millisecond, behind the highest timestamp.
#[derive(Clone, Debug)]
pub struct BoundedOutOfOrdernessWatermarks {
    bound: i64,
    max_timestamp: i64,
}

impl BoundedOutOfOrdernessWatermarks {
    /// For records that come at most `bound` behind one with a higher timestamp.
    pub fn new(bound: Duration) -> Self {
        let bound = millis(bound);
        // The first watermark is thus the least.
        Self { bound, max_timestamp: i64::MIN.saturating_add(bound).saturating_add(1) }
    }

    /// The watermark now.
    fn watermark(&self) -> i64 {
        self.max_timestamp.saturating_sub(self.bound).saturating_sub(1)
    }
}

impl<T: Record + ?Sized> WatermarkGenerator<T> for BoundedOutOfOrdernessWatermarks {
    #[inline(always)]
    fn on_event(&mut self, _: T::Ref<'_>, timestamp: i64, _: &mut WatermarkOutput) {
        self.max_timestamp = self.max_timestamp.max(timestamp);
    }

    fn on_periodic_emit(&mut self, output: &mut WatermarkOutput) {
        output.emit_watermark(self.watermark());
    }
}

/// The watermark is a millisecond behind the highest timestamp.
#[derive(Clone, Debug)]
pub struct AscendingTimestampsWatermarks(BoundedOutOfOrdernessWatermarks);

impl AscendingTimestampsWatermarks {
    /// For timestamps that never fall.
    pub fn new() -> Self {
        Self(BoundedOutOfOrdernessWatermarks::new(Duration::ZERO))
    }
}

impl Default for AscendingTimestampsWatermarks {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Record + ?Sized> WatermarkGenerator<T> for AscendingTimestampsWatermarks {
    #[inline(always)]
    fn on_event(&mut self, event: T::Ref<'_>, timestamp: i64, output: &mut WatermarkOutput) {
        WatermarkGenerator::<T>::on_event(&mut self.0, event, timestamp, output);
    }

    fn on_periodic_emit(&mut self, output: &mut WatermarkOutput) {
        WatermarkGenerator::<T>::on_periodic_emit(&mut self.0, output);
    }
}

/// A generator; the common one costs no indirect call.
pub(crate) enum Generator<T: Record + ?Sized> {
    /// Never makes one.
    None,
    Bounded(BoundedOutOfOrdernessWatermarks),
    Custom(Box<dyn WatermarkGenerator<T>>),
}

impl<T: Record + ?Sized> Generator<T> {
    #[inline(always)]
    pub(super) fn on_event(&mut self, event: T::Ref<'_>, timestamp: i64, output: &mut WatermarkOutput) {
        match self {
            Self::None => {}
            Self::Bounded(bounded) => WatermarkGenerator::<T>::on_event(bounded, event, timestamp, output),
            Self::Custom(custom) => custom.on_event(event, timestamp, output),
        }
    }

    pub(super) fn on_periodic_emit(&mut self, output: &mut WatermarkOutput) {
        match self {
            // The split takes part all the same, and holds the watermark back.
            Self::None => output.mark_active(),
            Self::Bounded(bounded) => WatermarkGenerator::<T>::on_periodic_emit(bounded, output),
            Self::Custom(custom) => custom.on_periodic_emit(output),
        }
    }
}

/// Notices that nothing comes any more.
///
/// Time counts from the first look that finds nothing new; with a pause longer than
/// the timeout since then, all is idle.
#[derive(Clone, Debug)]
pub(super) struct IdlenessTimer {
    timeout: i64,
    active: bool,
    inactive_since: Option<i64>,
}

impl IdlenessTimer {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout: millis(timeout), active: true, inactive_since: None }
    }

    /// Something came.
    #[inline(always)]
    pub(super) fn activity(&mut self) {
        self.active = true;
    }

    /// Looks, at `now` milliseconds.
    pub(super) fn is_idle(&mut self, now: i64) -> bool {
        if std::mem::take(&mut self.active) {
            self.inactive_since = None;
            return false;
        }
        let since = *self.inactive_since.get_or_insert(now);
        self.timeout < now.saturating_sub(since)
    }
}
