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
    pub(crate) fold: A,
    pub(crate) emit: E,
    pub(crate) panes: ValueCache<Panes<A::State>>,
}

/// The pane of a record, and when it is due.
pub(crate) struct PaneOf {
    windows: AlignedWindows,
    /// The pane of the last record, since the next one mostly belongs to it, too.
    pane: TimeWindow,
    /// The last window that the pane is part of.
    last_window: TimeWindow,
}

impl PaneOf {
    pub(crate) fn new(windows: AlignedWindows) -> Self {
        Self { windows, pane: TimeWindow::new(0, 0), last_window: TimeWindow::new(0, 0) }
    }

    #[inline]
    fn turn_to(&mut self, time: i64) {
        if !(self.pane.start <= time && time < self.pane.end) {
            self.pane = self.windows.pane(time);
            self.last_window = self.windows.window_from(self.windows.last_start(time));
        }
    }

    /// The first window with the pane that ends behind `passed`, if there is one.
    fn next_window(&self, passed: i64) -> Option<TimeWindow> {
        let first = self.windows.first_start_ending_after(self.pane.start);
        let start = first.max(self.windows.first_start_ending_after(passed.saturating_add(1)));
        (start <= self.last_window.start).then(|| self.windows.window_from(start))
    }
}

/// When the timer of a key is due next, behind `passed`; none if there are no panes left.
fn next_timer<A: Clone>(panes: &Panes<A>, windows: &AlignedWindows, time: &WindowTime, passed: i64) -> Option<i64> {
    let start = windows.first_start_ending_after(passed.saturating_add(1));
    if let Some(pane) = panes.first_at(start) {
        // Windows with no panes are left out.
        let start = start.max(windows.first_start_ending_after(pane));
        return Some(windows.window_from(start).max_timestamp());
    }
    panes.last().map(|pane| time.cleanup_time(windows.window_from(windows.last_start(pane))))
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
        let Self { input, windows, fold, emit, panes } = self;
        let slot = panes.slot(hash, &input.key, &[]);
        let Some(panes) = panes.get(slot) else {
            return;
        };
        let kept = windows.windows.assign(time).take_while(|window| !input.time.is_late(*window));
        for window in kept.filter(|window| input.time.has_passed(*window)) {
            match panes.result_of(window, &|into: &mut Option<A::State>, other| fold.merge(into, other)) {
                Ok(Some(content)) => emit_result::<K, _, _>(emit, &input.key, window, fold.result(&content), out),
                Ok(None) => {}
                Err(error) => return current::reject(current::node(), &error),
            }
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
        let Self { input, windows: PaneOf { windows, .. }, fold, emit, panes } = self;
        let Timer { timestamp, hash, key, .. } = timer;
        let merge = |into: &mut Option<A::State>, other| fold.merge(into, other);
        let slot = panes.slot(hash, key, &[]);
        let entry = panes.value(slot);
        let Some(content) = entry.as_mut().filter(|content| content.timer == timestamp) else {
            return;
        };
        content.timer = i64::MAX;
        let window = windows.window_from(timestamp.saturating_add(1).saturating_sub(windows.size));
        if windows.last_start(window.start) == window.start {
            match content.slide_to(window, &merge) {
                Ok(Some(result)) => emit_result::<K, _, _>(emit, key, window, fold.result(&result), out),
                Ok(None) => {}
                Err(error) => current::reject(current::node(), &error),
            }
        }
        let given_up = timestamp.saturating_add(1).saturating_sub(input.time.allowed_lateness);
        content.expire(windows.first_start_ending_after(given_up), &merge);
        match next_timer(content, windows, &input.time, timestamp) {
            Some(next) => input.time.advance_timer(&mut content.timer, next, hash, key),
            None => *entry = None,
        }
    }

    fn flush_state(&mut self) {
        self.panes.flush();
    }
}
