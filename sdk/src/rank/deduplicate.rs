//! Deduplication: one record of each key.

use std::{cmp::Reverse, marker::PhantomData, rc::Rc};

use super::{RankFunction, Ranked, Ranking, Results, records, records_state};
use crate::{
    collector::Collector,
    data_stream::DataStream,
    key::{KeySelector, encode_key_of, hash_of},
    keyed_stream::KeyedStream,
    operator::{Element, Function, Identity, SideOutputs},
    record::{Key, Record},
    state::{StateBackend, StateTtlConfig, TimeToLive, ValueCache},
};

const NAME: &str = "Deduplicate";

/// Which record of a key is kept.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Keep {
    /// The first.
    First,
    /// The last.
    Last,
}

impl<T, K, S> KeyedStream<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    /// Keeps the first or the last record of each key, in the order in which they come or,
    /// with [`Deduplicate::in_event_time`], in that of their timestamps.
    ///
    /// ```
    /// # use engine_sdk::{Keep, prelude::*};
    /// # #[derive(Record)] struct Order { id: u64, amount: u64 }
    /// # fn once(orders: DataStream<Order>) -> DataStream<Order> {
    /// orders.key_by(|order| order.id).deduplicate(Keep::First).updates()
    /// # }
    /// ```
    pub fn deduplicate(&self, keep: Keep) -> Deduplicate<T, K, S> {
        Deduplicate { keyed: self.clone(), keep, time_to_live: None }
    }
}

/// Deduplication in the order in which records come.
pub struct Deduplicate<T: ?Sized, K: ?Sized, S> {
    keyed: KeyedStream<T, K, S>,
    keep: Keep,
    time_to_live: Option<TimeToLive>,
}

/// Deduplication in the order of timestamps; see [`Deduplicate::in_event_time`].
pub struct EventTimeDeduplicate<T: ?Sized, K: ?Sized, S, F> {
    keyed: KeyedStream<T, K, S>,
    keep: Keep,
    time_to_live: Option<TimeToLive>,
    tie: Rc<F>,
}

/// What records of one key with the same timestamp are ordered by.
pub trait Tie<T: Record + ?Sized>: 'static {
    /// What is compared.
    type Order: Ord + 'static;

    /// What is compared of a record.
    fn of(&self, record: T::Ref<'_>) -> Self::Order;
}

/// By the order in which they come.
pub struct Arrival;

impl<T: Record + ?Sized> Tie<T> for Arrival {
    type Order = ();

    fn of(&self, _: T::Ref<'_>) {}
}

/// By what a closure returns.
pub struct By<F, O> {
    order: F,
    _order: PhantomData<fn() -> O>,
}

impl<T, F, O> Tie<T> for By<F, O>
where
    T: Record + ?Sized,
    F: for<'a> Fn(T::Ref<'a>) -> O + 'static,
    O: Ord + 'static,
{
    type Order = O;

    #[inline]
    fn of(&self, record: T::Ref<'_>) -> O {
        (self.order)(record)
    }
}

impl<T, K, S> Deduplicate<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    /// Goes by the timestamps of records, of which each needs one.
    pub fn in_event_time(self) -> EventTimeDeduplicate<T, K, S, Arrival> {
        let Self { keyed, keep, time_to_live } = self;
        EventTimeDeduplicate { keyed, keep, time_to_live, tie: Rc::new(Arrival) }
    }

    /// Forgets a key this long after its kept record last changed. What comes then is the first of
    /// the key.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        Self { time_to_live: Some(config.time_to_live()), ..self }
    }

    /// Hands out each record that is kept, at once: with [`Keep::First`] one for each key,
    /// with [`Keep::Last`] every one.
    pub fn updates(&self) -> DataStream<T> {
        match self.keep {
            Keep::First => {
                let time_to_live = self.time_to_live;
                self.keyed.keyed_operator(
                    (NAME, NAME),
                    records_state::<()>(time_to_live, Results::Updates),
                    move |selector, states| FirstFunction::<T, K, S>::new(selector, states, time_to_live),
                )
            }
            Keep::Last => self.keyed.operator(NAME, "Identity", || Identity),
        }
    }

    /// Hands out one record for each key, as soon as it is sure: with [`Keep::First`] at
    /// once, with [`Keep::Last`] when event time ends.
    pub fn final_results(&self) -> DataStream<T> {
        match self.keep {
            Keep::First => self.updates(),
            Keep::Last => rank(&self.keyed, self.time_to_live, Results::AtEnd, |_, _| (), true, false),
        }
    }
}

impl<T, K, S, F> EventTimeDeduplicate<T, K, S, F>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    F: Tie<T>,
{
    /// Orders records with the same timestamp by what the closure returns: [`Keep::First`]
    /// keeps the least, [`Keep::Last`] the greatest. Without it, and if that is equal as
    /// well, the order counts in which they come.
    pub fn then_by<O, G>(self, order: G) -> EventTimeDeduplicate<T, K, S, By<G, O>>
    where
        O: Ord + 'static,
        G: for<'a> Fn(T::Ref<'a>) -> O + 'static,
    {
        let Self { keyed, keep, time_to_live, .. } = self;
        EventTimeDeduplicate { keyed, keep, time_to_live, tie: Rc::new(By { order, _order: PhantomData }) }
    }

    /// As [`Deduplicate::enable_time_to_live`].
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        Self { time_to_live: Some(config.time_to_live()), ..self }
    }

    /// Hands out each record that is earlier, or later, than all of its key so far: a stream
    /// of updates, of which the last of each key counts.
    pub fn updates(&self) -> DataStream<T> {
        self.results(Results::Updates)
    }

    /// Hands out one record for each key, as soon as it is sure: with [`Keep::First`] when the
    /// watermark reaches its timestamp, with [`Keep::Last`] when event time ends.
    pub fn final_results(&self) -> DataStream<T> {
        self.results(match self.keep {
            Keep::First => Results::OnceFinal,
            Keep::Last => Results::AtEnd,
        })
    }

    fn results(&self, results: Results) -> DataStream<T> {
        let Self { keyed, keep, time_to_live, tie } = self;
        let tie = Rc::clone(tie);
        match keep {
            Keep::First => {
                let order = move |record: T::Ref<'_>, timestamp| (timestamp, tie.of(record));
                rank(keyed, *time_to_live, results, order, false, true)
            }
            Keep::Last => {
                let order = move |record: T::Ref<'_>, timestamp| Reverse((timestamp, tie.of(record)));
                rank(keyed, *time_to_live, results, order, true, true)
            }
        }
    }
}

/// Keeps the best record of each key.
fn rank<T, K, S, V, O>(
    keyed: &KeyedStream<T, K, S>,
    time_to_live: Option<TimeToLive>,
    results: Results,
    order: O,
    last_wins: bool,
    needs_timestamp: bool,
) -> DataStream<T>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    V: Ord + 'static,
    O: for<'a> Fn(T::Ref<'a>, i64) -> V + 'static,
{
    let emit = |record: T::View<'_>, _: u64, out: &mut Collector<T>| out.collect(record);
    let ranking = Rc::new(Ranking { order, count: 1, last_wins, needs_timestamp, results, emit });
    keyed.keyed_operator((NAME, NAME), records_state::<Ranked<T, V>>(time_to_live, results), move |selector, states| {
        RankFunction::<T, K, S, V, _, _>::new(selector, Rc::clone(&ranking), states, time_to_live)
    })
}

/// Hands on the first record of each key.
struct FirstFunction<T: ?Sized, K: ?Sized, S> {
    selector: Rc<S>,
    seen: ValueCache<()>,
    scratch: Vec<u8>,
    _types: PhantomData<(Rc<T>, Rc<K>)>,
}

impl<T: ?Sized, K: ?Sized, S> FirstFunction<T, K, S> {
    fn new(selector: Rc<S>, states: &StateBackend, time_to_live: Option<TimeToLive>) -> Self {
        Self { selector, seen: records(states, time_to_live), scratch: Vec::new(), _types: PhantomData }
    }
}

impl<T, K, S> Function<T, T> for FirstFunction<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    fn begin_batch(&mut self, rows: &[u8]) {
        let Self { selector, seen, .. } = self;
        seen.begin_batch();
        if seen.wants_prefetch() {
            seen.prefetch_rows(rows, |_| Some([]), |payload, out| encode_key_of::<T, K, S>(selector, payload, out));
        }
    }

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<T>, _: &mut SideOutputs) {
        let Self { selector, seen, scratch, .. } = self;
        let slot = selector.with_key(T::peek(&record), |key| {
            K::with_encoded(key, scratch, |encoded| seen.slot(hash_of(encoded, element.key_hash), encoded, &[]))
        });
        if seen.get(slot).is_none() {
            *seen.value(slot) = Some(());
            out.collect(record);
        }
    }

    fn flush_state(&mut self) {
        self.seen.flush();
    }
}
