//! Windows by any trigger: it is asked for each record and each window of it.
//!
//! Source: Flink's `WindowOperator`, `EvictingWindowOperator` and `MergingWindowSet`.

use std::rc::Rc;

use super::{
    TimeWindow, Trigger, TriggerContext, TriggerResult,
    assigner::WindowKind,
    contents::{Contents, FiringAt, Place},
    input::{WindowInput, prefetch_timers},
    sessions::merged_by,
    trigger::TimerRequest,
};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    error::{Error, Result},
    key::KeySelector,
    operator::{Element, Function, RuntimeContext, SideOutputs},
    record::{Key, Record},
    state::{Timer, Timers, ValueCache},
};

/// A session and the one among those it was merged of under which its state is kept: start and
/// end each.
pub(crate) type MergedWindow = ((i64, i64), (i64, i64));

/// Evaluates windows when a trigger says.
pub(crate) struct TriggeredWindows<T: Record + ?Sized, K: ?Sized, S, R: Trigger<T>, C> {
    pub(crate) input: WindowInput<T, K, S>,
    pub(crate) kind: WindowKind<T>,
    pub(crate) trigger: TriggerStates<T, R>,
    /// The sessions of each key, in the order of time; none for windows that do not merge.
    pub(crate) sessions: Option<ValueCache<Vec<MergedWindow>>>,
    pub(crate) contents: C,
}

/// A trigger with what it keeps for each key and window.
pub(crate) struct TriggerStates<T: Record + ?Sized, R: Trigger<T>> {
    pub(crate) trigger: Rc<R>,
    /// None if the trigger keeps nothing.
    pub(crate) states: Option<ValueCache<R::State>>,
    pub(crate) timers: Timers,
    pub(crate) requests: Vec<TimerRequest>,
    /// The last timer that the last call registered.
    pub(crate) registered: Option<(TimeDomain, i64)>,
}

impl<T: Record + ?Sized, R: Trigger<T>> TriggerStates<T, R> {
    /// Lets the trigger look at a window, and does what it wants of timers.
    fn call<X>(
        &mut self,
        (hash, key): (u32, &[u8]),
        window: TimeWindow,
        f: impl FnOnce(&R, &mut TriggerContext<'_, R::State>) -> X,
    ) -> X {
        let Self { trigger, states, timers, requests, registered } = self;
        let namespace = window.namespace();
        let mut nothing = None;
        let state = match states {
            Some(states) => {
                let slot = states.slot(hash, key, &namespace);
                states.value(slot)
            }
            None => &mut nothing,
        };
        let times = (timers.watermark(), timers.processing_time());
        let result = f(trigger, &mut TriggerContext::new(state, times, requests));
        *registered = None;
        for request in requests.drain(..) {
            let TimerRequest { is_wanted, domain, timestamp } = request;
            if is_wanted {
                *registered = Some((domain, timestamp));
                timers.register(domain, timestamp, hash, key, &namespace);
            } else {
                *registered = registered.filter(|registered| *registered != (domain, timestamp));
                timers.delete(domain, timestamp, hash, key, &namespace);
            }
        }
        result
    }

    /// Takes what is kept for a window.
    fn take(&mut self, (hash, key): (u32, &[u8]), window: TimeWindow) -> Option<R::State> {
        let states = self.states.as_mut()?;
        let slot = states.slot(hash, key, &window.namespace());
        states.value(slot).take()
    }

    /// The window is no more.
    fn clear(&mut self, at: (u32, &[u8]), window: TimeWindow) {
        self.call(at, window, |trigger, ctx| {
            trigger.clear(window, ctx);
            *ctx.state() = None;
        });
    }
}

fn window_of((start, end): (i64, i64)) -> TimeWindow {
    TimeWindow::new(start, end)
}

fn bounds(window: TimeWindow) -> (i64, i64) {
    (window.start, window.end)
}

impl<T, K, S, R, C> TriggeredWindows<T, K, S, R, C>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    R: Trigger<T>,
{
    /// Adds a record to one of its windows. `state_window` is that under which its state is kept.
    fn add<U>(
        &mut self,
        (record, element, hash): (T::Ref<'_>, Element, u32),
        (window, state_window): (TimeWindow, TimeWindow),
        out: &mut Collector<U>,
        sides: &mut SideOutputs,
    ) -> Result<()>
    where
        U: Record + ?Sized,
        C: Contents<T, K, U>,
    {
        let Self { input, trigger, contents, .. } = self;
        let at = (hash, input.key.as_slice());
        let place = Place { hash, key: &input.key, state_window };
        // If the record is refused, the trigger is not called.
        trigger.registered = None;
        let added = contents.add(place, record, element.timestamp).and_then(|()| {
            let result =
                trigger.call(at, window, |trigger, ctx| trigger.on_element(record, element.timestamp, window, ctx));
            evaluate(contents, place, (window, result), &input.time.timers, out, sides)
        });
        let cleanup_time = input.time.cleanup_time(window);
        // Where nothing is allowed to be late, it is the time that the trigger waits for, too.
        if cleanup_time != i64::MAX && trigger.registered != Some((input.time.domain, cleanup_time)) {
            input.time.register(cleanup_time, hash, &input.key, &window.namespace());
        }
        added
    }

    /// Adds a record to its windows.
    fn process_at<U>(
        &mut self,
        time: i64,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        sides: &mut SideOutputs,
    ) -> Result<()>
    where
        U: Record + ?Sized,
        C: Contents<T, K, U>,
    {
        let looked_at = T::peek(&record);
        let hash = self.input.take_key(looked_at, element);
        let mut is_skipped = true;
        match &self.kind {
            WindowKind::Session(gap) => {
                let window = gap.window(looked_at, time).map_err(Error::new)?;
                if let Some(merged) = self.merge(window, hash)? {
                    is_skipped = false;
                    self.add((looked_at, element, hash), merged, out, sides)?;
                }
            }
            WindowKind::Aligned(windows) => {
                for window in windows.assign(time) {
                    if !self.input.time.is_late(window) {
                        is_skipped = false;
                        self.add((looked_at, element, hash), (window, window), out, sides)?;
                    }
                }
            }
            WindowKind::Global(_) => {
                is_skipped = false;
                let window = TimeWindow::GLOBAL;
                self.add((looked_at, element, hash), (window, window), out, sides)?;
            }
        }
        if is_skipped {
            self.input.take_late(record, element, sides);
        }
        Ok(())
    }

    /// Asks the trigger, then gives up the window if it is time.
    fn fire<U>(
        &mut self,
        domain: TimeDomain,
        timer: Timer<'_>,
        out: &mut Collector<U>,
        sides: &mut SideOutputs,
    ) -> Result<()>
    where
        U: Record + ?Sized,
        C: Contents<T, K, U>,
    {
        let Timer { timestamp, hash, key, namespace } = timer;
        let window = TimeWindow::of_namespace(namespace).expect("the namespace of a window's timer is a window");
        let Some(state_window) = self.state_window(hash, key, window) else {
            return Ok(());
        };
        let Self { input, trigger, contents, .. } = self;
        let place = Place { hash, key, state_window };
        let result = trigger.call((hash, key), window, |trigger, ctx| match domain {
            TimeDomain::EventTime => trigger.on_event_time(timestamp, window, ctx),
            TimeDomain::ProcessingTime => trigger.on_processing_time(timestamp, window, ctx),
        });
        let evaluated = evaluate(contents, place, (window, result), &input.time.timers, out, sides);
        if domain == input.time.domain && timestamp == input.time.cleanup_time(window) {
            self.give_up(place, window, sides)?;
        }
        evaluated
    }

    /// Merges the session of a record with those that it touches; none if it is late.
    fn merge<U>(&mut self, window: TimeWindow, hash: u32) -> Result<Option<(TimeWindow, TimeWindow)>>
    where
        U: Record + ?Sized,
        C: Contents<T, K, U>,
    {
        let Self { input, trigger, sessions, contents, .. } = self;
        let sessions = sessions.as_mut().expect("sessions merge");
        let slot = sessions.slot(hash, &input.key, &[]);
        let known = sessions.get(slot).map_or(&[][..], Vec::as_slice);
        let merged = merged_by(known, window, |(session, _)| window_of(*session));
        if merged.is_empty() && input.time.is_late(window) {
            return Ok(None);
        }
        let sessions = sessions.value(slot).get_or_insert_default();
        let Some(&(first, state_window)) = sessions.get(merged.start).filter(|_| !merged.is_empty()) else {
            sessions.insert(merged.start, (bounds(window), bounds(window)));
            return Ok(Some((window, window)));
        };
        let old: Vec<_> = sessions[merged.clone()].to_vec();
        let whole = old.iter().fold(window, |whole, (session, _)| whole.cover(&window_of(*session)));
        let state_window = window_of(state_window);
        if window_of(first) == whole {
            return Ok(Some((whole, state_window)));
        }
        sessions.splice(merged, [(bounds(whole), bounds(state_window))]);
        let at = (hash, input.key.as_slice());
        let states = old.iter().filter_map(|(session, _)| trigger.take(at, window_of(*session))).collect();
        trigger.call(at, whole, |trigger, ctx| trigger.on_merge(whole, states, ctx));
        for (session, _) in &old {
            let session = window_of(*session);
            trigger.clear(at, session);
            input.time.delete(input.time.cleanup_time(session), hash, &input.key, &session.namespace());
        }
        let place = Place { hash, key: &input.key, state_window };
        for (_, other) in old.iter().skip(1) {
            contents.merge(place, window_of(*other))?;
        }
        Ok(Some((whole, state_window)))
    }

    /// The window under which the state of a window is kept; none if there is no such session.
    fn state_window(&mut self, hash: u32, key: &[u8], window: TimeWindow) -> Option<TimeWindow> {
        let Some(sessions) = &mut self.sessions else {
            return Some(window);
        };
        let slot = sessions.slot(hash, key, &[]);
        let known = sessions.get(slot)?.iter().find(|(session, _)| window_of(*session) == window);
        known.map(|(_, state_window)| window_of(*state_window))
    }

    /// Forgets a window.
    fn give_up<U>(&mut self, place: Place<'_>, window: TimeWindow, sides: &mut SideOutputs) -> Result<()>
    where
        U: Record + ?Sized,
        C: Contents<T, K, U>,
    {
        let Self { input, trigger, sessions, contents, .. } = self;
        contents.clear(place);
        trigger.clear((place.hash, place.key), window);
        if let Some(sessions) = sessions {
            let slot = sessions.slot(place.hash, place.key, &[]);
            let known = sessions.value(slot);
            if let Some(sessions) = known {
                sessions.retain(|(session, _)| window_of(*session) != window);
                if sessions.is_empty() {
                    *known = None;
                }
            }
        }
        contents.clear_function(place, FiringAt { window, timers: &input.time.timers, sides })
    }
}

/// Does with a window what its trigger says.
fn evaluate<T, K, U, C>(
    contents: &mut C,
    place: Place<'_>,
    (window, result): (TimeWindow, TriggerResult),
    timers: &Timers,
    out: &mut Collector<U>,
    sides: &mut SideOutputs,
) -> Result<()>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    C: Contents<T, K, U>,
{
    if result.is_fire() {
        out.set_timestamp(window.max_timestamp());
        contents.fire(place, FiringAt { window, timers, sides }, out)?;
    }
    if result.is_purge() {
        contents.clear(place);
    }
    Ok(())
}

impl<T, K, U, S, R, C> Function<T, U> for TriggeredWindows<T, K, S, R, C>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    S: KeySelector<T, K>,
    R: Trigger<T>,
    C: Contents<T, K, U>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.contents.open(runtime)
    }

    fn begin_batch(&mut self, rows: &[u8]) {
        let Self { input, kind, trigger, sessions, contents, .. } = self;
        let kind = &*kind;
        let namespaces = |time: i64, visit: &mut dyn FnMut(&[u8])| match kind {
            WindowKind::Aligned(windows) => windows.assign(time).for_each(|window| visit(&window.namespace())),
            WindowKind::Global(_) => visit(&TimeWindow::GLOBAL.namespace()),
            // Which session it will be is known only once it was merged.
            WindowKind::Session(_) => {}
        };
        input.prefetch(contents.cache(), rows, &namespaces);
        if let Some(states) = &mut trigger.states {
            input.prefetch(states, rows, &namespaces);
        }
        if let Some(sessions) = sessions {
            input.prefetch_rows(sessions, rows, |_| Some([]));
        }
        contents.begin_function(&[]);
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        let Self { trigger, sessions, contents, .. } = self;
        prefetch_timers(contents.cache(), timers);
        if let Some(states) = &mut trigger.states {
            prefetch_timers(states, timers);
        }
        if let Some(sessions) = sessions {
            let by_key: Vec<_> = timers.iter().map(|timer| Timer { namespace: &[], ..*timer }).collect();
            prefetch_timers(sessions, &by_key);
        }
        contents.begin_function(timers);
    }

    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let Some(time) = self.input.time.of(element) else {
            return;
        };
        if let Err(error) = self.process_at(time, record, element, out, sides) {
            current::reject(current::node(), &error);
        }
    }

    fn on_timer(&mut self, domain: TimeDomain, timer: Timer<'_>, out: &mut Collector<U>, sides: &mut SideOutputs) {
        if let Err(error) = self.fire(domain, timer, out, sides) {
            current::reject(current::node(), &error);
        }
    }

    fn flush_state(&mut self) {
        self.contents.flush();
        if let Some(states) = &mut self.trigger.states {
            states.flush();
        }
        if let Some(sessions) = &mut self.sessions {
            sessions.flush();
        }
    }
}
