//! Windows that do not overlap, aggregated: one entry for each key and window, and one
//! timer at a time for it. All of time as one window has no timers: at its end the host
//! hands over the state.

use super::{
    TimeWindow,
    assigner::AlignedWindows,
    emit::{Emit, emit_result},
    input::{WindowInput, prefetch_timers},
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

/// Aggregates tumbling windows, sliding ones with gaps between them, and all of time.
pub(crate) struct TumblingWindows<T: Record + ?Sized, K: ?Sized, S, A: Fold<T>, E> {
    pub(crate) input: WindowInput<T, K, S>,
    pub(crate) windows: WindowOf,
    pub(crate) fold: A,
    pub(crate) emit: E,
    pub(crate) contents: ValueCache<A::State>,
}

/// The window of a record, of which there is at most one.
#[derive(Clone, Copy)]
pub(crate) struct WindowOf {
    /// None: all of time is one window.
    windows: Option<AlignedWindows>,
    /// The window of the last record, since the next one mostly belongs to it, too.
    last: TimeWindow,
}

impl WindowOf {
    pub(crate) fn new(windows: Option<AlignedWindows>) -> Self {
        let last = if windows.is_some() { TimeWindow::new(0, 0) } else { TimeWindow::GLOBAL };
        Self { windows, last }
    }

    /// The window of a time; none between windows.
    #[inline]
    fn get(&mut self, time: i64) -> Option<TimeWindow> {
        if let Some(windows) = &self.windows
            && !(self.last.start <= time && time < self.last.end)
        {
            let window = windows.window_from(windows.last_start(time));
            if window.end <= time {
                return None;
            }
            self.last = window;
        }
        Some(self.last)
    }
}

impl<T, K, U, S, A, E> Function<T, U> for TumblingWindows<T, K, S, A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
    E: Emit<K, A::Output, U>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        let mut windows = self.windows;
        self.input.prefetch_rows(&mut self.contents, rows, |time| windows.get(time).map(|window| window.namespace()));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        prefetch_timers(&mut self.contents, timers);
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Self { input, windows, fold, emit, contents } = self;
        let Some(time) = input.time.of(element) else {
            return;
        };
        let window = match windows.get(time) {
            Some(window) if !input.time.is_late(window) => window,
            _ => return input.take_late(record, element, sides),
        };
        let hash = input.take_key(T::peek(&record), element);
        let namespace = window.namespace();
        let slot = contents.slot(hash, &input.key, &namespace);
        let content = contents.value(slot);
        let is_new = content.is_none();
        if let Err(error) = fold.add_view(content, record) {
            return current::reject(current::node(), &error);
        }
        let has_passed = input.time.has_passed(window);
        if is_new && window != TimeWindow::GLOBAL {
            let (end, cleanup_time) = (window.max_timestamp(), input.time.cleanup_time(window));
            if !has_passed {
                input.time.register_new(end, hash, &input.key, &namespace);
            } else if cleanup_time != i64::MAX {
                input.time.register_new(cleanup_time, hash, &input.key, &namespace);
            }
        }
        if has_passed && let Some(content) = content {
            emit_result::<K, _, _>(emit, &input.key, window, fold.result(content), out);
        }
    }

    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { input, fold, emit, contents, .. } = self;
        let window = TimeWindow::of_namespace(timer.namespace).expect("the namespace of a window's timer is a window");
        let Timer { timestamp, hash, key, namespace } = timer;
        let slot = contents.slot(hash, key, namespace);
        let cleanup_time = input.time.cleanup_time(window);
        if timestamp == window.max_timestamp() {
            let Some(content) = contents.get(slot) else {
                return;
            };
            emit_result::<K, _, _>(emit, key, window, fold.result(content), out);
            if timestamp < cleanup_time && cleanup_time != i64::MAX {
                input.time.register_new(cleanup_time, hash, key, namespace);
            }
        }
        if timestamp == cleanup_time {
            *contents.value(slot) = None;
        }
    }

    fn take_state(&mut self, entries: &[u8], out: &mut Collector<U>) -> bool {
        let Self { fold, emit, contents, .. } = self;
        contents.take(entries, |key, content| {
            emit_result::<K, _, _>(emit, key, TimeWindow::GLOBAL, fold.result(&content), out);
        })
    }

    fn flush_state(&mut self) {
        self.contents.flush();
    }
}
