//! [`RankFunction`]: keeps the best records of each key.

use std::{marker::PhantomData, rc::Rc};

use engine_rows::row::NO_TIMESTAMP;

use super::{Ranked, records};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    error::Error,
    key::{KeySelector, encode_key_of, hash_of},
    operator::{Element, Function, SideOutputs},
    record::{Key, Pair, Record},
    state::{StateBackend, TimeToLive, Timer, Timers, ValueCache},
};

/// When records are handed out.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(super) enum Results {
    /// Each record that comes among the best, and those that move down for it, at once.
    Updates,
    /// What is left when event time ends.
    AtEnd,
    /// The best record once no earlier one can come; those that come later are dropped.
    /// Records are ordered by their timestamps.
    OnceFinal,
}

/// Which records are kept, and what becomes of them.
pub(super) struct Ranking<O, E> {
    /// Says what a record with its timestamp is ordered by: the least is the best.
    pub(super) order: O,
    /// Most records that are kept of a key.
    pub(super) count: usize,
    /// True if a record is better than those of the same order that came before it.
    pub(super) last_wins: bool,
    pub(super) needs_timestamp: bool,
    pub(super) results: Results,
    /// Hands out a record with its one-based rank.
    pub(super) emit: E,
}

pub(super) struct RankFunction<T: ?Sized, K: ?Sized, S, V, O, E> {
    selector: Rc<S>,
    ranking: Rc<Ranking<O, E>>,
    records: ValueCache<Ranked<T, V>>,
    timers: Timers,
    /// The encoded key of the record that is being processed.
    key: Vec<u8>,
    /// The record, encoded.
    encoded: Vec<u8>,
    _key: PhantomData<Rc<K>>,
}

impl<T, K, S, V, O, E> RankFunction<T, K, S, V, O, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Ord + 'static,
    O: for<'a> Fn(T::Ref<'a>, i64) -> V + 'static,
{
    pub(super) fn new(
        selector: Rc<S>,
        ranking: Rc<Ranking<O, E>>,
        states: &StateBackend,
        time_to_live: Option<TimeToLive>,
    ) -> Self {
        let (records, timers) = (records(states, time_to_live), states.timers());
        Self { selector, ranking, records, timers, key: Vec::new(), encoded: Vec::new(), _key: PhantomData }
    }

    /// Keeps a record if it is among the best; returns the best, and the place of the new one.
    #[inline]
    fn insert(&mut self, record: T::Ref<'_>, element: Element) -> Option<(&Ranked<T, V>, usize)> {
        let Self { selector, ranking, records, timers, key, encoded, .. } = self;
        let Ranking { order, count, last_wins, results, .. } = &**ranking;
        key.clear();
        selector.with_key(record, |of_record| K::encode(of_record, key));
        let hash = hash_of(key, element.key_hash);
        let new = order(record, element.timestamp);
        let slot = records.slot(hash, key, &[]);
        let known = records.get(slot);
        let place = known.map_or(0, |best| best.place(&new, *last_wins, order));
        if *count <= place || known.is_some_and(|best| best.len() == 0) {
            return None;
        }
        match results {
            Results::Updates | Results::AtEnd => {}
            Results::OnceFinal => {
                if let Some(best) = known {
                    let timestamp = best.with_record(0, |_, timestamp| timestamp);
                    timers.delete(TimeDomain::EventTime, timestamp, hash, key, &[]);
                }
                timers.register(TimeDomain::EventTime, element.timestamp, hash, key, &[]);
            }
        }
        let best = records.value(slot).get_or_insert_default();
        encoded.clear();
        Pair::<T, i64>::encode((T::shorten(record), &element.timestamp), encoded);
        best.insert(place, new, encoded, *count);
        Some((best, place))
    }
}

impl<T, K, S, V, O, E, U> Function<T, U> for RankFunction<T, K, S, V, O, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Ord + 'static,
    O: for<'a> Fn(T::Ref<'a>, i64) -> V + 'static,
    U: Record + ?Sized,
    E: for<'a> Fn(T::View<'a>, u64, &mut Collector<U>) + 'static,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        let Self { selector, records, .. } = self;
        records.begin_batch();
        if records.wants_prefetch() {
            records.prefetch_rows(rows, |_| Some([]), |payload, out| encode_key_of::<T, K, S>(selector, payload, out));
        }
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        let records = &mut self.records;
        records.begin_batch();
        if records.is_complete() {
            return;
        }
        timers.iter().for_each(|timer| records.prefetch(timer.hash, &[], |out| out.extend_from_slice(timer.key)));
        records.fetch();
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        if element.timestamp == NO_TIMESTAMP && self.ranking.needs_timestamp {
            return no_timestamp();
        }
        let ranking = Rc::clone(&self.ranking);
        let inserted = self.insert(T::peek(&record), element);
        if let (Some((best, place)), Results::Updates) = (inserted, ranking.results) {
            emit_from::<T, U, _, _, _>(&ranking, best, place, out);
        }
    }

    /// The records of the key are final.
    fn on_timer(&mut self, _: TimeDomain, timer: Timer<'_>, out: &mut Collector<U>, _: &mut SideOutputs) {
        let Self { ranking, records, .. } = self;
        let slot = records.slot(timer.hash, timer.key, &[]);
        let Some(best) = records.get(slot) else {
            return;
        };
        emit_from::<T, U, _, _, _>(ranking, best, 0, out);
        // Nothing comes behind the end; otherwise what is empty stands for "was handed out".
        *records.value(slot) = (timer.timestamp < i64::MAX).then(Ranked::default);
    }

    /// The records of all keys are final.
    fn take_state(&mut self, entries: &[u8], out: &mut Collector<U>) -> bool {
        let Self { ranking, records, .. } = self;
        records.take(entries, |_, best| emit_from::<T, U, _, _, _>(ranking, &best, 0, out))
    }

    fn flush_state(&mut self) {
        self.records.flush();
    }
}

/// Hands out the records of a key from a zero-based place on, with their ranks.
#[inline]
fn emit_from<T, U, V, O, E>(ranking: &Ranking<O, E>, best: &Ranked<T, V>, place: usize, out: &mut Collector<U>)
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    V: Ord,
    E: for<'a> Fn(T::View<'a>, u64, &mut Collector<U>),
{
    for (rank, place) in (1_u64..).zip(0..best.len()).skip(place) {
        best.with_record(place, |record, _| (ranking.emit)(record, rank, out));
    }
}

#[cold]
fn no_timestamp() {
    let message = "deduplication in event time got a record without timestamp; use \
                   `assign_timestamps_and_watermarks` before `key_by`";
    current::reject(current::node(), &Error::new(message));
}
