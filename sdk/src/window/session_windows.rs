//! Sessions, aggregated: those of each key are one entry, with one timer.
//!
//! A record that makes a session longer leaves the timer where it is: once it fires,
//! it is registered for the end that the session has by then.

use super::{
    assigner::SessionGap,
    emit::{Emit, emit_result},
    input::{WindowInput, prefetch_timers},
    sessions::Sessions,
};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    error::Error,
    key::KeySelector,
    operator::{Element, Fold, Function, SideOutputs},
    record::{Key, Record},
    state::{Timer, ValueCache},
};

/// Aggregates sessions.
pub(crate) struct SessionWindows<T: Record + ?Sized, K: ?Sized, S, A: Fold<T>, E> {
    pub(crate) input: WindowInput<T, K, S>,
    pub(crate) gap: SessionGap<T>,
    pub(crate) fold: A,
    pub(crate) emit: E,
    pub(crate) sessions: ValueCache<Sessions<A::State>>,
}

impl<T, K, U, S, A, E> Function<T, U> for SessionWindows<T, K, S, A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    S: KeySelector<T, K>,
    A: Fold<T>,
    E: Emit<K, A::Output, U>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        self.input.prefetch_rows(&mut self.sessions, rows, |_| Some([]));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        prefetch_timers(&mut self.sessions, timers);
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Self { input, gap, fold, emit, sessions } = self;
        let Some(time) = input.time.of(element) else {
            return;
        };
        let window = match gap.window(T::peek(&record), time) {
            Ok(window) => window,
            Err(message) => return current::reject(current::node(), &Error::new(message)),
        };
        let hash = input.take_key(T::peek(&record), element);
        let slot = sessions.slot(hash, &input.key, &[]);
        let merged = sessions.get(slot).map_or(0..0, |sessions| sessions.merged_by(window));
        // A session that is kept takes records that would be late alone.
        if merged.is_empty() && input.time.is_late(window) {
            return input.take_late(record, element, sides);
        }
        let entry = sessions.value(slot);
        let content = entry.get_or_insert_default();
        let added = content.merge(merged, window, |into, other| fold.merge(into, other)).and_then(|index| {
            let session = &mut content.sessions[index];
            let added = fold.add_view(&mut session.content, record);
            let window = session.window;
            if session.content.is_none() {
                content.sessions.remove(index);
            }
            added.map(|()| (index, window))
        });
        let (index, window) = match added {
            Ok(session) => session,
            Err(error) => {
                if content.sessions.is_empty() {
                    *entry = None;
                }
                return current::reject(current::node(), &error);
            }
        };
        let has_passed = input.time.has_passed(window);
        let due = if has_passed { input.time.cleanup_time(window) } else { window.max_timestamp() };
        input.time.advance_timer(&mut content.timer, due, hash, &input.key);
        if has_passed && let Some(session) = &content.sessions[index].content {
            emit_result::<K, _, _>(emit, &input.key, window, fold.result(session), out);
        }
    }

    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { input, fold, emit, sessions, .. } = self;
        let Timer { timestamp, hash, key, .. } = timer;
        let slot = sessions.slot(hash, key, &[]);
        let entry = sessions.value(slot);
        let Some(content) = entry.as_mut().filter(|content| content.timer == timestamp) else {
            return;
        };
        content.timer = i64::MAX;
        let mut next = i64::MAX;
        content.sessions.retain(|session| {
            let (end, cleanup_time) = (session.window.max_timestamp(), input.time.cleanup_time(session.window));
            if timestamp == end
                && let Some(result) = &session.content
            {
                emit_result::<K, _, _>(emit, key, session.window, fold.result(result), out);
            }
            let is_kept = timestamp != cleanup_time;
            if is_kept {
                next = next.min(if timestamp < end { end } else { cleanup_time });
            }
            is_kept
        });
        if content.sessions.is_empty() {
            *entry = None;
        } else {
            input.time.advance_timer(&mut content.timer, next, hash, key);
        }
    }

    fn flush_state(&mut self) {
        self.sessions.flush();
    }
}
