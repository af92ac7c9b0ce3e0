//! Top-n: the best records of each key.

use std::rc::Rc;

use super::{RankFunction, Ranked, Ranking, Results, records_state};
use crate::{
    collector::Collector,
    data_stream::DataStream,
    key::KeySelector,
    keyed_stream::KeyedStream,
    record::{Key, Record},
    state::{StateTtlConfig, TimeToLive},
};

const NAME: &str = "Top N";
const KIND: &str = "TopN";

impl<T, K, S> KeyedStream<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    /// Keeps the best `count` records of each key, at least one: those for which the closure
    /// returns the least. Of equals, the one that came first is better.
    ///
    /// ```
    /// # use std::cmp::Reverse;
    /// # use engine_sdk::prelude::*;
    /// # #[derive(Record)] struct Bid { auction: u64, bidder: u64, price: u64, time: u64 }
    /// # fn highest(bids: DataStream<Bid>) -> DataStream<str> {
    /// // The three highest bids on each auction; of equal ones the earlier.
    /// bids.key_by(|bid| bid.auction)
    ///     .top_n(3, |bid| (Reverse(bid.price), bid.time))
    ///     .final_results(|bid, rank, out: &mut Collector<str>| out.csv((bid.auction, rank, bid.bidder, bid.price)))
    /// # }
    /// ```
    pub fn top_n<O, F>(&self, count: u32, order: F) -> TopN<T, K, S, F>
    where
        O: Ord + 'static,
        F: for<'a> Fn(T::Ref<'a>) -> O + 'static,
    {
        if count == 0 {
            self.graph.borrow_mut().error("top_n: the number of records must be at least 1".to_owned());
        }
        TopN { keyed: self.clone(), count, order: Rc::new(order), time_to_live: None }
    }
}

/// The best records of each key; see [`KeyedStream::top_n`].
pub struct TopN<T: ?Sized, K: ?Sized, S, F> {
    keyed: KeyedStream<T, K, S>,
    count: u32,
    order: Rc<F>,
    time_to_live: Option<TimeToLive>,
}

impl<T, K, S, F> TopN<T, K, S, F>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    /// Forgets a key this long after its best records last changed.
    #[must_use]
    pub fn enable_time_to_live(self, config: StateTtlConfig) -> Self {
        Self { time_to_live: Some(config.time_to_live()), ..self }
    }

    /// Hands each record that comes among the best to the closure, with its rank from 1 on,
    /// and then those that move down for it, with theirs: a stream of updates, in which the
    /// last record for a key and rank counts.
    pub fn updates<U, O, E>(&self, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        O: Ord + 'static,
        F: for<'a> Fn(T::Ref<'a>) -> O + 'static,
        E: for<'a> Fn(T::View<'a>, u64, &mut Collector<U>) + 'static,
    {
        self.results(Results::Updates, emit)
    }

    /// Hands the best records of each key to the closure when event time ends, each with its
    /// rank from 1 on, the best first.
    pub fn final_results<U, O, E>(&self, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        O: Ord + 'static,
        F: for<'a> Fn(T::Ref<'a>) -> O + 'static,
        E: for<'a> Fn(T::View<'a>, u64, &mut Collector<U>) + 'static,
    {
        self.results(Results::AtEnd, emit)
    }

    fn results<U, O, E>(&self, results: Results, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        O: Ord + 'static,
        F: for<'a> Fn(T::Ref<'a>) -> O + 'static,
        E: for<'a> Fn(T::View<'a>, u64, &mut Collector<U>) + 'static,
    {
        let (order, time_to_live) = (Rc::clone(&self.order), self.time_to_live);
        let order = move |record: T::Ref<'_>, _: i64| order(record);
        let count = self.count as usize;
        let ranking = Rc::new(Ranking { order, count, last_wins: false, needs_timestamp: false, results, emit });
        let states = records_state::<Ranked<T, O>>(time_to_live, results);
        self.keyed.keyed_operator((NAME, KIND), states, move |selector, states| {
            RankFunction::<T, K, S, O, _, _>::new(selector, Rc::clone(&ranking), states, time_to_live)
        })
    }
}
