//! Windows that overlap, aggregated: the panes of each key are one entry, with one timer.

use super::{
    TimeWindow,
    assigner::AlignedWindows,
    emit::{Emit, emit_result},
    input::{WindowInput, WindowTime, prefetch_timers},
    panes::Panes,
};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    key::KeySelector,
    operator::{Element, Fold, Function, SideOutputs},
    record::{Key, Record},
    state::{Timer, ValueCache},
};

/// Aggregates sliding windows whose slide is at most their size.
pub(crate) struct SlidingWindows<T: Record + ?Sized, K: ?Sized, S, A: Fold<T>, E> {
    pub(crate) input: WindowInput<T, K, S>,
    pub(crate) windows: PaneOf,
    /// Of the last timer.
    pub(crate) firing: Option<Firing>,
    pub(crate) fold: A,
    pub(crate) emit: E,
    pub(crate) panes: ValueCache<Panes<A::State>>,
}

/// The pane of a record, and when it is due.
pub(crate) struct PaneOf {
    windows: AlignedWindows,
    /// The pane of the last record, since the next one mostly belongs to it, too.
    pane: TimeWindow,
    /// The first and the last window that the pane is part of.
    first_window: TimeWindow,
    last_window: TimeWindow,
}

/// What timers of one time have in common: many keys are due with each window.
#[derive(Clone, Copy)]
pub(crate) struct Firing {
    timestamp: i64,
    /// The window that ends with the timers; none if they only clear up.
    window: Option<TimeWindow>,
    /// Start of the first pane that is still needed.
    kept_from: i64,
    /// Start of the window that is evaluated next.
    next_start: i64,
}

impl Firing {
    fn new(timestamp: i64, windows: &AlignedWindows, allowed_lateness: i64) -> Self {
        let window = windows.window_from(timestamp.saturating_add(1).saturating_sub(windows.size));
        let given_up = timestamp.saturating_add(1).saturating_sub(allowed_lateness);
        Self {
            timestamp,
            window: (windows.last_start(window.start) == window.start).then_some(window),
            kept_from: windows.first_start_ending_after(given_up),
            next_start: windows.first_start_ending_after(timestamp.saturating_add(1)),
        }
    }

    /// When the timer of a key is due next; none if there are no panes left.
    fn next_timer<A: Clone>(&self, panes: &Panes<A>, windows: &AlignedWindows, time: &WindowTime) -> Option<i64> {
        let next = windows.window_from(self.next_start);
        if let Some(pane) = panes.first_at(next.start) {
            // Windows with no panes are left out.
            let is_empty = next.end <= pane;
            let window = if is_empty { windows.window_from(windows.first_start_ending_after(pane)) } else { next };
            return Some(window.max_timestamp());
        }
        panes.last().map(|pane| time.cleanup_time(windows.window_from(windows.last_start(pane))))
    }
}

impl PaneOf {
    pub(crate) fn new(windows: AlignedWindows) -> Self {
        let none = TimeWindow::new(0, 0);
        Self { windows, pane: none, first_window: none, last_window: none }
    }

    #[inline]
    fn turn_to(&mut self, time: i64) {
        if !(self.pane.start <= time && time < self.pane.end) {
            self.pane = self.windows.pane(time);
            self.first_window = self.windows.window_from(self.windows.first_start_ending_after(self.pane.start));
            self.last_window = self.windows.window_from(self.windows.last_start(time));
        }
    }

    /// The first window with the pane that ends behind `passed`, if there is one.
    fn next_window(&self, passed: i64) -> Option<TimeWindow> {
        let behind = passed.saturating_add(1);
        if behind < self.first_window.end {
            return Some(self.first_window);
        }
        let start = self.windows.first_start_ending_after(behind);
        (start <= self.last_window.start).then(|| self.windows.window_from(start))
    }
}

impl<T, K, S, A, E> SlidingWindows<T, K, S, A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
{
    /// Evaluates the windows of a late record that were evaluated before and are still kept.
    #[cold]
    fn fire_late<U>(&mut self, time: i64, hash: u32, out: &mut Collector<U>)
    where
        U: Record + ?Sized,
        E: Emit<K, A::Output, U>,
    {
        let Self { input, windows, fold, emit, panes, .. } = self;
        let slot = panes.slot(hash, &input.key, &[]);
        let Some(panes) = panes.get(slot) else {
            return;
        };
        // The latest come first: those that have not passed, those that have, those given up.
        let passed = windows.windows.assign(time).skip_while(|window| !input.time.has_passed(*window));
        let kept = passed.take_while(|window| !input.time.is_late(*window));
        let merge = |into: &mut Option<A::State>, other| fold.merge(into, other);
        let told = panes.each_result_around(windows.pane.start, kept, &merge, |window, content| {
            emit_result::<K, _, _>(emit, &input.key, window, fold.result(&content), out);
        });
        if let Err(error) = told {
            current::reject(current::node(), &error);
        }
    }
}

impl<T, K, U, S, A, E> Function<T, U> for SlidingWindows<T, K, S, A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
    E: Emit<K, A::Output, U>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.input.prefetch_rows(&mut self.panes, rows, |_| Some([]));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        prefetch_timers(&mut self.panes, timers);
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Self { input, windows, fold, panes, .. } = self;
        let Some(time) = input.time.of(element) else {
            return;
        };
        windows.turn_to(time);
        if input.time.is_late(windows.last_window) {
            return input.take_late(record, element, sides);
        }
        let hash = input.take_key(T::peek(&record), element);
        let slot = panes.slot(hash, &input.key, &[]);
        let entry = panes.value(slot);
        let content = entry.get_or_insert_default();
        let mut is_new = false;
        let added = content.update(windows.pane.start, |pane| {
            is_new = pane.is_none();
            fold.add_view(pane, record)
        });
        if let Err(error) = added {
            if content.is_empty() {
                *entry = None;
            }
            return current::reject(current::node(), &error);
        }
        if is_new {
            let next = windows.next_window(input.time.passed()).map(|window| window.max_timestamp());
            // Panes that wait for their end only are dropped along with others.
            let due =
                next.or_else(|| (content.timer == i64::MAX).then(|| input.time.cleanup_time(windows.last_window)));
            if let Some(due) = due {
                input.time.advance_timer(&mut content.timer, due, hash, &input.key);
            }
        }
        if 0 < input.time.allowed_lateness && time <= input.time.passed() {
            self.fire_late(time, hash, out);
        }
    }

    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { input, windows: PaneOf { windows, .. }, firing, fold, emit, panes } = self;
        let Timer { timestamp, hash, key, .. } = timer;
        let firing = match firing {
            Some(firing) if firing.timestamp == timestamp => firing,
            other => other.insert(Firing::new(timestamp, windows, input.time.allowed_lateness)),
        };
        let merge = |into: &mut Option<A::State>, other| fold.merge(into, other);
        let slot = panes.slot(hash, key, &[]);
        let entry = panes.value(slot);
        let Some(content) = entry.as_mut().filter(|content| content.timer == timestamp) else {
            return;
        };
        content.timer = i64::MAX;
        if let Some(window) = firing.window {
            match content.slide_to(window, &merge) {
                Ok(Some(result)) => emit_result::<K, _, _>(emit, key, window, fold.result(&result), out),
                Ok(None) => {}
                Err(error) => current::reject(current::node(), &error),
            }
        }
        content.expire(firing.kept_from, &merge);
        match firing.next_timer(content, windows, &input.time) {
            Some(next) => input.time.advance_timer(&mut content.timer, next, hash, key),
            None => *entry = None,
        }
    }

    fn flush_state(&mut self) {
        self.panes.flush();
    }
}
