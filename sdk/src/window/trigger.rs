//! Triggers: when a window is evaluated.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use super::TimeWindow;
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    record::{Owned, Record},
};

/// What becomes of a window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TriggerResult {
    /// Nothing.
    Continue,
    /// It is evaluated and keeps its content.
    Fire,
    /// Its content is dropped.
    Purge,
    /// It is evaluated, then its content is dropped.
    FireAndPurge,
}

impl TriggerResult {
    /// True if the window is evaluated.
    pub fn is_fire(self) -> bool {
        matches!(self, Self::Fire | Self::FireAndPurge)
    }

    /// True if the content is dropped.
    pub fn is_purge(self) -> bool {
        matches!(self, Self::Purge | Self::FireAndPurge)
    }
}

/// Says when the window of a key is evaluated.
///
/// Called for each record and each window that it belongs to, and for the timers that the
/// trigger registered. What it keeps of a key and window stands in the context.
pub trait Trigger<T: Record + ?Sized>: 'static {
    /// What is kept for each key and window; `()` for nothing.
    type State: Owned;

    /// A record was added to the window. `timestamp` is its event time, or `i64::MIN` if it has none.
    fn on_element(
        &self,
        record: T::Ref<'_>,
        timestamp: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, Self::State>,
    ) -> TriggerResult;

    /// The watermark has passed `time`, for which an event-time timer was registered.
    fn on_event_time(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, Self::State>) -> TriggerResult;

    /// The clock has passed `time`, for which a processing-time timer was registered.
    fn on_processing_time(
        &self,
        time: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, Self::State>,
    ) -> TriggerResult;

    /// True if windows with this trigger may merge, as sessions do.
    fn can_merge(&self) -> bool {
        false
    }

    /// Windows, of which these are the states, became `window`: keeps what they mean for it in the
    /// context, and registers its timers. Only called if [`Trigger::can_merge`] holds.
    fn on_merge(&self, _window: TimeWindow, _merged: Vec<Self::State>, _ctx: &mut TriggerContext<'_, Self::State>) {}

    /// The window is given up: deletes its timers. The state is deleted behind it.
    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, Self::State>);
}

/// What a trigger can see and do.
pub struct TriggerContext<'c, S> {
    state: &'c mut Option<S>,
    watermark: i64,
    processing_time: i64,
    requests: &'c mut Vec<TimerRequest>,
}

/// A timer of a window that its trigger wants or no longer wants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct TimerRequest {
    pub(crate) is_wanted: bool,
    pub(crate) domain: TimeDomain,
    pub(crate) timestamp: i64,
}

impl<'c, S> TriggerContext<'c, S> {
    pub(crate) fn new(
        state: &'c mut Option<S>,
        (watermark, processing_time): (i64, i64),
        requests: &'c mut Vec<TimerRequest>,
    ) -> Self {
        Self { state, watermark, processing_time, requests }
    }

    /// What the trigger keeps for this key and window; none at first.
    pub fn state(&mut self) -> &mut Option<S> {
        self.state
    }

    /// The last watermark; `i64::MIN` before the first.
    pub fn current_watermark(&self) -> i64 {
        self.watermark
    }

    /// The clock in milliseconds since the Unix epoch.
    pub fn current_processing_time(&self) -> i64 {
        self.processing_time
    }

    /// Has [`Trigger::on_event_time`] called once the watermark reaches `time`.
    pub fn register_event_time_timer(&mut self, time: i64) {
        self.request(true, TimeDomain::EventTime, time);
    }

    /// Has [`Trigger::on_processing_time`] called once the clock has passed `time`.
    pub fn register_processing_time_timer(&mut self, time: i64) {
        self.request(true, TimeDomain::ProcessingTime, time);
    }

    /// Takes back [`TriggerContext::register_event_time_timer`].
    pub fn delete_event_time_timer(&mut self, time: i64) {
        self.request(false, TimeDomain::EventTime, time);
    }

    /// Takes back [`TriggerContext::register_processing_time_timer`].
    pub fn delete_processing_time_timer(&mut self, time: i64) {
        self.request(false, TimeDomain::ProcessingTime, time);
    }

    fn request(&mut self, is_wanted: bool, domain: TimeDomain, timestamp: i64) {
        self.requests.push(TimerRequest { is_wanted, domain, timestamp });
    }
}

/// Fires once the watermark has passed the window, and again for each late record.
#[derive(Clone, Copy, Debug)]
pub struct EventTimeTrigger(());

impl EventTimeTrigger {
    /// The trigger of event-time windows.
    pub fn create() -> Self {
        Self(())
    }
}

impl<T: Record + ?Sized> Trigger<T> for EventTimeTrigger {
    type State = ();

    fn on_element(&self, _: T::Ref<'_>, _: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) -> TriggerResult {
        if window.max_timestamp() <= ctx.current_watermark() {
            return TriggerResult::Fire;
        }
        ctx.register_event_time_timer(window.max_timestamp());
        TriggerResult::Continue
    }

    fn on_event_time(&self, time: i64, window: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        if time == window.max_timestamp() { TriggerResult::Fire } else { TriggerResult::Continue }
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, window: TimeWindow, _: Vec<()>, ctx: &mut TriggerContext<'_, ()>) {
        // A window that the watermark has passed fires for the record that made it merge.
        if ctx.current_watermark() < window.max_timestamp() {
            ctx.register_event_time_timer(window.max_timestamp());
        }
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) {
        ctx.delete_event_time_timer(window.max_timestamp());
    }
}

/// Fires once the clock has passed the window.
#[derive(Clone, Copy, Debug)]
pub struct ProcessingTimeTrigger(());

impl ProcessingTimeTrigger {
    /// The trigger of processing-time windows.
    pub fn create() -> Self {
        Self(())
    }
}

impl<T: Record + ?Sized> Trigger<T> for ProcessingTimeTrigger {
    type State = ();

    fn on_element(&self, _: T::Ref<'_>, _: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) -> TriggerResult {
        ctx.register_processing_time_timer(window.max_timestamp());
        TriggerResult::Continue
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Fire
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, window: TimeWindow, _: Vec<()>, ctx: &mut TriggerContext<'_, ()>) {
        if ctx.current_processing_time() < window.max_timestamp() {
            ctx.register_processing_time_timer(window.max_timestamp());
        }
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) {
        ctx.delete_processing_time_timer(window.max_timestamp());
    }
}

/// Never fires.
#[derive(Clone, Copy, Debug)]
pub struct NeverTrigger(());

impl NeverTrigger {
    /// The trigger of [`super::GlobalWindows::create`].
    pub fn create() -> Self {
        Self(())
    }
}

impl<T: Record + ?Sized> Trigger<T> for NeverTrigger {
    type State = ();

    fn on_element(&self, _: T::Ref<'_>, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn clear(&self, _: TimeWindow, _: &mut TriggerContext<'_, ()>) {}
}

/// Fires once the window got as many records, then counts anew.
#[derive(Clone, Copy, Debug)]
pub struct CountTrigger {
    count_max: u64,
}

impl CountTrigger {
    /// Fires for each `count_max` records of a window.
    pub fn of(count_max: u64) -> Self {
        Self { count_max }
    }
}

impl<T: Record + ?Sized> Trigger<T> for CountTrigger {
    /// Records since the window fired.
    type State = u64;

    fn on_element(&self, _: T::Ref<'_>, _: i64, _: TimeWindow, ctx: &mut TriggerContext<'_, u64>) -> TriggerResult {
        let count = ctx.state.unwrap_or(0) + 1;
        if count < self.count_max {
            *ctx.state = Some(count);
            return TriggerResult::Continue;
        }
        *ctx.state = None;
        TriggerResult::Fire
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, u64>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, u64>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, _: TimeWindow, merged: Vec<u64>, ctx: &mut TriggerContext<'_, u64>) {
        *ctx.state = (!merged.is_empty()).then(|| merged.iter().sum());
    }

    fn clear(&self, _: TimeWindow, _: &mut TriggerContext<'_, u64>) {}
}

/// Has the content dropped whenever another trigger fires.
#[derive(Clone, Copy, Debug)]
pub struct PurgingTrigger<R>(R);

impl<R> PurgingTrigger<R> {
    /// Turns each `Fire` of the trigger into `FireAndPurge`.
    pub fn of(trigger: R) -> Self {
        Self(trigger)
    }
}

fn purging(result: TriggerResult) -> TriggerResult {
    if result.is_fire() { TriggerResult::FireAndPurge } else { result }
}

impl<T: Record + ?Sized, R: Trigger<T>> Trigger<T> for PurgingTrigger<R> {
    type State = R::State;

    fn on_element(
        &self,
        record: T::Ref<'_>,
        timestamp: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, R::State>,
    ) -> TriggerResult {
        purging(self.0.on_element(record, timestamp, window, ctx))
    }

    fn on_event_time(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, R::State>) -> TriggerResult {
        purging(self.0.on_event_time(time, window, ctx))
    }

    fn on_processing_time(
        &self,
        time: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, R::State>,
    ) -> TriggerResult {
        purging(self.0.on_processing_time(time, window, ctx))
    }

    fn can_merge(&self) -> bool {
        self.0.can_merge()
    }

    fn on_merge(&self, window: TimeWindow, merged: Vec<R::State>, ctx: &mut TriggerContext<'_, R::State>) {
        self.0.on_merge(window, merged, ctx);
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, R::State>) {
        self.0.clear(window, ctx);
    }
}

/// Milliseconds of an interval between firings, at least 1.
fn interval_of(interval: Duration) -> i64 {
    i64::try_from(interval.as_millis()).unwrap_or(i64::MAX).max(1)
}

/// The next time to fire at behind `time`, at the latest the window's end.
fn next_fire(time: i64, interval: i64, window: TimeWindow) -> i64 {
    time.saturating_add(interval).min(window.max_timestamp())
}

/// The start of the interval that `time` lies in.
fn aligned(time: i64, interval: i64) -> i64 {
    // As Flink's Java remainder, which is negative before the Unix epoch.
    time.saturating_sub(time % interval)
}

/// Fires whenever the watermark has risen by an interval, and at the end of the window.
#[derive(Clone, Copy, Debug)]
pub struct ContinuousEventTimeTrigger {
    interval: i64,
}

impl ContinuousEventTimeTrigger {
    /// Fires at each multiple of the interval of event time, in whole milliseconds, at least one.
    pub fn of(interval: Duration) -> Self {
        Self { interval: interval_of(interval) }
    }

    fn register_next(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, i64>) {
        let next = next_fire(time, self.interval, window);
        *ctx.state = Some(next);
        ctx.register_event_time_timer(next);
    }
}

impl<T: Record + ?Sized> Trigger<T> for ContinuousEventTimeTrigger {
    /// Time of the next firing.
    type State = i64;

    fn on_element(
        &self,
        _: T::Ref<'_>,
        timestamp: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, i64>,
    ) -> TriggerResult {
        if window.max_timestamp() <= ctx.current_watermark() {
            return TriggerResult::Fire;
        }
        ctx.register_event_time_timer(window.max_timestamp());
        if ctx.state.is_none() {
            self.register_next(aligned(timestamp, self.interval), window, ctx);
        }
        TriggerResult::Continue
    }

    fn on_event_time(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, i64>) -> TriggerResult {
        if time == window.max_timestamp() {
            return TriggerResult::Fire;
        }
        if *ctx.state != Some(time) {
            return TriggerResult::Continue;
        }
        self.register_next(time, window, ctx);
        TriggerResult::Fire
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, i64>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, _: TimeWindow, merged: Vec<i64>, ctx: &mut TriggerContext<'_, i64>) {
        *ctx.state = merged.into_iter().min();
        if let Some(next) = *ctx.state {
            ctx.register_event_time_timer(next);
        }
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, i64>) {
        ctx.delete_event_time_timer(window.max_timestamp());
        if let Some(next) = *ctx.state {
            ctx.delete_event_time_timer(next);
        }
    }
}

/// Fires whenever the clock has advanced by an interval.
#[derive(Clone, Copy, Debug)]
pub struct ContinuousProcessingTimeTrigger {
    interval: i64,
}

impl ContinuousProcessingTimeTrigger {
    /// Fires at each multiple of the interval of the clock, in whole milliseconds, at least one.
    pub fn of(interval: Duration) -> Self {
        Self { interval: interval_of(interval) }
    }

    fn register_next(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, i64>) {
        let next = next_fire(time, self.interval, window);
        *ctx.state = Some(next);
        ctx.register_processing_time_timer(next);
    }
}

impl<T: Record + ?Sized> Trigger<T> for ContinuousProcessingTimeTrigger {
    /// Time of the next firing.
    type State = i64;

    fn on_element(
        &self,
        _: T::Ref<'_>,
        _: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, i64>,
    ) -> TriggerResult {
        if ctx.state.is_none() {
            self.register_next(aligned(ctx.current_processing_time(), self.interval), window, ctx);
        }
        TriggerResult::Continue
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, i64>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, i64>) -> TriggerResult {
        if *ctx.state != Some(time) {
            return TriggerResult::Continue;
        }
        self.register_next(time, window, ctx);
        TriggerResult::Fire
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, _: TimeWindow, merged: Vec<i64>, ctx: &mut TriggerContext<'_, i64>) {
        *ctx.state = merged.into_iter().min();
        if let Some(next) = *ctx.state {
            ctx.register_processing_time_timer(next);
        }
    }

    fn clear(&self, _: TimeWindow, ctx: &mut TriggerContext<'_, i64>) {
        if let Some(next) = *ctx.state {
            ctx.delete_processing_time_timer(next);
        }
    }
}

/// Fires once a record is further than a threshold from the one for which the window fired
/// last, or from its first.
pub struct DeltaTrigger<T, F> {
    threshold: f64,
    delta: Rc<F>,
    _record: PhantomData<T>,
}

impl<T: Owned + Clone, F: Fn(&T, &T) -> f64 + 'static> DeltaTrigger<T, F> {
    /// Fires once `delta(record of the last firing, record)` is above the threshold.
    pub fn of(threshold: f64, delta: F) -> Self {
        Self { threshold, delta: Rc::new(delta), _record: PhantomData }
    }
}

impl<T: Owned + Clone, F: Fn(&T, &T) -> f64 + 'static> Trigger<T> for DeltaTrigger<T, F> {
    /// The record that others are compared with.
    type State = T;

    fn on_element(&self, record: &T, _: i64, _: TimeWindow, ctx: &mut TriggerContext<'_, T>) -> TriggerResult {
        let result = match ctx.state {
            None => TriggerResult::Continue,
            Some(last) if self.threshold < (self.delta)(last, record) => TriggerResult::Fire,
            Some(_) => return TriggerResult::Continue,
        };
        *ctx.state = Some(record.clone());
        result
    }

    fn on_event_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, T>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, T>) -> TriggerResult {
        TriggerResult::Continue
    }

    fn clear(&self, _: TimeWindow, _: &mut TriggerContext<'_, T>) {}
}

/// The trigger of a window assigner.
#[derive(Clone, Copy, Debug)]
pub enum AssignerTrigger {
    /// [`EventTimeTrigger`].
    EventTime,
    /// [`ProcessingTimeTrigger`].
    ProcessingTime,
    /// [`NeverTrigger`].
    Never,
}

impl<T: Record + ?Sized> Trigger<T> for AssignerTrigger {
    type State = ();

    fn on_element(
        &self,
        record: T::Ref<'_>,
        timestamp: i64,
        window: TimeWindow,
        ctx: &mut TriggerContext<'_, ()>,
    ) -> TriggerResult {
        match self {
            Self::EventTime => Trigger::<T>::on_element(&EventTimeTrigger(()), record, timestamp, window, ctx),
            Self::ProcessingTime => {
                Trigger::<T>::on_element(&ProcessingTimeTrigger(()), record, timestamp, window, ctx)
            }
            Self::Never => TriggerResult::Continue,
        }
    }

    fn on_event_time(&self, time: i64, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) -> TriggerResult {
        match self {
            Self::EventTime => Trigger::<T>::on_event_time(&EventTimeTrigger(()), time, window, ctx),
            Self::ProcessingTime | Self::Never => TriggerResult::Continue,
        }
    }

    fn on_processing_time(&self, _: i64, _: TimeWindow, _: &mut TriggerContext<'_, ()>) -> TriggerResult {
        match self {
            // Its only timer is that of its end; others are of the window's clean-up.
            Self::ProcessingTime => TriggerResult::Fire,
            Self::EventTime | Self::Never => TriggerResult::Continue,
        }
    }

    fn can_merge(&self) -> bool {
        true
    }

    fn on_merge(&self, window: TimeWindow, merged: Vec<()>, ctx: &mut TriggerContext<'_, ()>) {
        match self {
            Self::EventTime => Trigger::<T>::on_merge(&EventTimeTrigger(()), window, merged, ctx),
            Self::ProcessingTime => Trigger::<T>::on_merge(&ProcessingTimeTrigger(()), window, merged, ctx),
            Self::Never => {}
        }
    }

    fn clear(&self, window: TimeWindow, ctx: &mut TriggerContext<'_, ()>) {
        match self {
            Self::EventTime => Trigger::<T>::clear(&EventTimeTrigger(()), window, ctx),
            Self::ProcessingTime => Trigger::<T>::clear(&ProcessingTimeTrigger(()), window, ctx),
            Self::Never => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use TriggerResult::{Continue, Fire, FireAndPurge};

    use super::*;

    /// A trigger with its state, for windows of records of type `i64`.
    struct Running<R: Trigger<i64>> {
        trigger: R,
        state: Option<R::State>,
        watermark: i64,
        clock: i64,
    }

    impl<R: Trigger<i64>> Running<R> {
        fn new(trigger: R) -> Self {
            Self { trigger, state: None, watermark: i64::MIN, clock: 0 }
        }

        fn call<X>(&mut self, f: impl FnOnce(&R, &mut TriggerContext<'_, R::State>) -> X) -> (X, Vec<(bool, i64)>) {
            let mut requests = Vec::new();
            let mut ctx = TriggerContext::new(&mut self.state, (self.watermark, self.clock), &mut requests);
            let result = f(&self.trigger, &mut ctx);
            (result, requests.iter().map(|request| (request.is_wanted, request.timestamp)).collect())
        }

        fn element(&mut self, record: i64, timestamp: i64, window: TimeWindow) -> (TriggerResult, Vec<(bool, i64)>) {
            self.call(|trigger, ctx| trigger.on_element(&record, timestamp, window, ctx))
        }

        fn event_time(&mut self, time: i64, window: TimeWindow) -> (TriggerResult, Vec<(bool, i64)>) {
            self.call(|trigger, ctx| trigger.on_event_time(time, window, ctx))
        }

        fn processing_time(&mut self, time: i64, window: TimeWindow) -> (TriggerResult, Vec<(bool, i64)>) {
            self.call(|trigger, ctx| trigger.on_processing_time(time, window, ctx))
        }
    }

    const WINDOW: TimeWindow = TimeWindow { start: 0, end: 1000 };

    #[test]
    fn event_time_fires_at_the_end_and_at_once_behind_it() {
        let mut running = Running::new(EventTimeTrigger::create());
        running.watermark = 998;
        assert_eq!(running.element(1, 500, WINDOW), (Continue, vec![(true, 999)]));
        running.watermark = 999;
        assert_eq!(running.element(1, 500, WINDOW), (Fire, vec![]));
        assert_eq!(running.event_time(998, WINDOW), (Continue, vec![]));
        assert_eq!(running.event_time(999, WINDOW), (Fire, vec![]));
        assert_eq!(running.call(|trigger, ctx| Trigger::<i64>::clear(trigger, WINDOW, ctx)).1, [(false, 999)]);
        let merged =
            running.call(|trigger, ctx| Trigger::<i64>::on_merge(trigger, TimeWindow::new(0, 1001), vec![], ctx));
        assert_eq!(merged.1, [(true, 1000)]);
        let merged = running.call(|trigger, ctx| Trigger::<i64>::on_merge(trigger, WINDOW, vec![], ctx));
        assert_eq!(merged.1, []);
    }

    #[test]
    fn processing_time_fires_by_the_clock() {
        let mut running = Running::new(ProcessingTimeTrigger::create());
        running.watermark = i64::MAX;
        assert_eq!(running.element(1, 500, WINDOW), (Continue, vec![(true, 999)]));
        assert_eq!(running.event_time(999, WINDOW), (Continue, vec![]));
        assert_eq!(running.processing_time(999, WINDOW), (Fire, vec![]));
    }

    #[test]
    fn count_fires_each_n_records_and_counts_anew() {
        let mut running = Running::new(CountTrigger::of(3));
        let results: Vec<_> = (0..7).map(|_| running.element(1, 1, WINDOW).0).collect();
        assert_eq!(results, [Continue, Continue, Fire, Continue, Continue, Fire, Continue]);
        running.call(|trigger, ctx| Trigger::<i64>::on_merge(trigger, WINDOW, vec![1, 1], ctx));
        assert_eq!(running.element(1, 1, WINDOW).0, Fire);
    }

    #[test]
    fn purging_turns_fire_into_fire_and_purge() {
        let mut running = Running::new(PurgingTrigger::of(CountTrigger::of(2)));
        assert_eq!(running.element(1, 1, WINDOW).0, Continue);
        assert_eq!(running.element(1, 1, WINDOW).0, FireAndPurge);
    }

    #[test]
    fn continuous_event_time_fires_each_interval_and_at_the_end() {
        let mut running = Running::new(ContinuousEventTimeTrigger::of(Duration::from_millis(400)));
        assert_eq!(running.element(1, 450, WINDOW), (Continue, vec![(true, 999), (true, 800)]));
        assert_eq!(running.element(1, 100, WINDOW), (Continue, vec![(true, 999)]));
        assert_eq!(running.event_time(800, WINDOW), (Fire, vec![(true, 999)]));
        assert_eq!(running.event_time(900, WINDOW), (Continue, vec![]));
        assert_eq!(running.event_time(999, WINDOW), (Fire, vec![]));
        running.watermark = 999;
        assert_eq!(running.element(1, 100, WINDOW), (Fire, vec![]));
        let mut running = Running::new(ContinuousEventTimeTrigger::of(Duration::from_millis(400)));
        running.call(|trigger, ctx| Trigger::<i64>::on_merge(trigger, WINDOW, vec![800, 400], ctx));
        assert_eq!(running.event_time(400, WINDOW), (Fire, vec![(true, 800)]));
    }

    #[test]
    fn continuous_processing_time_fires_each_interval_of_the_clock() {
        let mut running = Running::new(ContinuousProcessingTimeTrigger::of(Duration::from_millis(400)));
        running.clock = 450;
        assert_eq!(running.element(1, 7, WINDOW), (Continue, vec![(true, 800)]));
        assert_eq!(running.element(1, 7, WINDOW), (Continue, vec![]));
        assert_eq!(running.processing_time(800, WINDOW), (Fire, vec![(true, 999)]));
        assert_eq!(running.processing_time(801, WINDOW), (Continue, vec![]));
    }

    #[test]
    fn delta_fires_above_the_threshold_only() {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let mut running = Running::new(DeltaTrigger::of(5.0, |last: &i64, record: &i64| (record - last) as f64));
        let results: Vec<_> = [1, 6, 7, 12, 13].map(|record| running.element(record, 0, WINDOW).0).into();
        assert_eq!(results, [Continue, Continue, Fire, Continue, Fire]);
    }

    #[test]
    fn never_does_nothing() {
        let mut running = Running::new(NeverTrigger::create());
        running.watermark = i64::MAX;
        assert_eq!(running.element(1, 0, TimeWindow::GLOBAL), (Continue, vec![]));
        assert_eq!(running.event_time(i64::MAX, TimeWindow::GLOBAL), (Continue, vec![]));
    }
}
