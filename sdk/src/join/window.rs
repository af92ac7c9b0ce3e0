//! Joins and co-groups of two streams in windows.
//!
//! As in Flink, the records of both streams are tagged, go into one keyed stream in
//! windows, and are told apart when a window is evaluated.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use crate::{
    collector::Collector,
    data_stream::{DataStream, OutputTag},
    error::{Outcome, Result},
    key::{ByValue, KeySelector},
    operator::{Element, Function, SideOutputs},
    record::{Either, Key, Owned, Record, TaggedUnion},
    window::{
        DefaultTrigger, Evaluation, Evictor, ProcessWindowFunction, Trigger, Triggered, WindowAssigner, WindowContext,
        WindowElements, WindowedStream,
    },
};

/// Marks a join: the function gets each pair.
#[derive(Clone, Copy, Debug)]
pub struct Pairs;

/// Marks a co-group: the function gets all records at once.
#[derive(Clone, Copy, Debug)]
pub struct Groups;

impl<L: Record + ?Sized> DataStream<L> {
    /// Joins this stream with another in windows: pairs of records with the same key that
    /// belong to the same window.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use engine_sdk::prelude::*;
    /// # #[derive(Record)] struct Order { id: u64, amount: u64 }
    /// # #[derive(Record)] struct Payment { order: u64, amount: u64 }
    /// # fn paid(orders: DataStream<Order>, payments: DataStream<Payment>) -> DataStream<str> {
    /// orders
    ///     .join(&payments)
    ///     .where_(|order| order.id)
    ///     .equal_to(|payment| payment.order)
    ///     .window(TumblingEventTimeWindows::of(Duration::from_secs(60)))
    ///     .apply(|order, payment, _, out: &mut Collector<str>| out.csv((order.id, order.amount, payment.amount)))
    /// # }
    /// ```
    ///
    /// A window keeps the records of both streams until it is given up: those of one key and window,
    /// together, are bounded by `state.value.bytes-max` (16 MB).
    pub fn join<R: Record + ?Sized>(&self, other: &DataStream<R>) -> JoinedStreams<L, R, Pairs> {
        JoinedStreams { left: self.clone(), right: other.clone(), _mode: PhantomData }
    }

    /// Groups this stream with another in windows: the records of both that have the same key
    /// and belong to the same window, also where there are none of one of the streams. What is kept
    /// is bounded as for [`DataStream::join`].
    pub fn co_group<R: Record + ?Sized>(&self, other: &DataStream<R>) -> JoinedStreams<L, R, Groups> {
        JoinedStreams { left: self.clone(), right: other.clone(), _mode: PhantomData }
    }
}

/// Two streams that are joined or grouped in windows: [`DataStream::join`], [`DataStream::co_group`].
pub struct JoinedStreams<L: ?Sized, R: ?Sized, M> {
    left: DataStream<L>,
    right: DataStream<R>,
    _mode: PhantomData<M>,
}

/// As [`JoinedStreams`], with the key of the first stream.
pub struct JoinWhere<L: ?Sized, R: ?Sized, F, M> {
    streams: JoinedStreams<L, R, M>,
    left_key: F,
}

/// As [`JoinedStreams`], with the keys of both streams.
pub struct JoinEqualTo<L: ?Sized, R: ?Sized, K, F, G, M> {
    streams: JoinedStreams<L, R, M>,
    key: TaggedKey<F, G>,
    _key: PhantomData<fn() -> K>,
}

/// Two streams in windows that lack only what is done with them.
pub struct WindowedJoin<L: Record + ?Sized, R: Record + ?Sized, K, F, G, M, X = DefaultTrigger> {
    windows: WindowedStream<TaggedUnion<L, R>, K, TaggedKey<F, G>, X>,
    _mode: PhantomData<M>,
}

impl<L, R, M> JoinedStreams<L, R, M>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
{
    /// The key of the first stream's records.
    pub fn where_<K, F>(self, key: F) -> JoinWhere<L, R, F, M>
    where
        K: Key + Owned,
        F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    {
        JoinWhere { streams: self, left_key: key }
    }
}

impl<L, R, F, M> JoinWhere<L, R, F, M>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
{
    /// The key of the second stream's records.
    pub fn equal_to<K, G>(self, key: G) -> JoinEqualTo<L, R, K, F, G, M>
    where
        K: Key + Owned,
        F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
        G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
    {
        let key = TaggedKey { left: ByValue(self.left_key), right: ByValue(key) };
        JoinEqualTo { streams: self.streams, key, _key: PhantomData }
    }
}

impl<L, R, K, F, G, M> JoinEqualTo<L, R, K, F, G, M>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
{
    /// Assigns the records of both streams to windows.
    pub fn window(self, assigner: impl WindowAssigner<TaggedUnion<L, R>>) -> WindowedJoin<L, R, K, F, G, M> {
        let JoinedStreams { left, right, .. } = self.streams;
        let left: DataStream<TaggedUnion<L, R>> = left.operator("Tag", "Tag", || TagOne);
        let right = right.operator("Tag", "Tag", || TagTwo);
        let windows = left.union(&right).keyed(self.key).window(assigner);
        WindowedJoin { windows, _mode: PhantomData }
    }
}

/// Tags the records of the first of two streams.
struct TagOne;

impl<L: Record + ?Sized, R: Record + ?Sized> Function<L, TaggedUnion<L, R>> for TagOne {
    #[inline(always)]
    fn process(
        &mut self,
        record: L::View<'_>,
        _: Element,
        out: &mut Collector<TaggedUnion<L, R>>,
        _: &mut SideOutputs,
    ) {
        out.collect(Either::One(record));
    }
}

/// Tags the records of the second of two streams.
struct TagTwo;

impl<L: Record + ?Sized, R: Record + ?Sized> Function<R, TaggedUnion<L, R>> for TagTwo {
    #[inline(always)]
    fn process(
        &mut self,
        record: R::View<'_>,
        _: Element,
        out: &mut Collector<TaggedUnion<L, R>>,
        _: &mut SideOutputs,
    ) {
        out.collect(Either::Two(record));
    }
}

/// Keys records of either of two streams.
pub struct TaggedKey<F, G> {
    left: ByValue<F>,
    right: ByValue<G>,
}

impl<L, R, K, F, G> KeySelector<TaggedUnion<L, R>, K> for TaggedKey<F, G>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
{
    #[inline]
    fn with_key<T>(&self, record: Either<L::Ref<'_>, R::Ref<'_>>, f: impl FnOnce(&K) -> T) -> T {
        match record {
            Either::One(record) => KeySelector::<L, K>::with_key(&self.left, record, f),
            Either::Two(record) => KeySelector::<R, K>::with_key(&self.right, record, f),
        }
    }
}

impl<L, R, K, F, G, M, X> WindowedJoin<L, R, K, F, G, M, X>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
    X: Evaluation<TaggedUnion<L, R>>,
{
    /// As [`WindowedStream::allowed_lateness`].
    #[must_use]
    pub fn allowed_lateness(self, lateness: Duration) -> Self {
        Self { windows: self.windows.allowed_lateness(lateness), ..self }
    }

    /// As [`WindowedStream::side_output_late_data`], for the records of both streams.
    #[must_use]
    pub fn side_output_late_data(self, tag: &OutputTag<TaggedUnion<L, R>>) -> Self {
        Self { windows: self.windows.side_output_late_data(tag), ..self }
    }

    /// As [`WindowedStream::trigger`].
    #[must_use]
    #[expect(clippy::type_complexity, reason = "the type of the windows is that of their trigger")]
    pub fn trigger<T>(self, trigger: T) -> WindowedJoin<L, R, K, F, G, M, Triggered<TaggedUnion<L, R>, T>>
    where
        T: Trigger<TaggedUnion<L, R>>,
    {
        WindowedJoin { windows: self.windows.trigger(trigger), _mode: PhantomData }
    }

    /// As [`WindowedStream::evictor`].
    #[must_use]
    #[expect(clippy::type_complexity, reason = "the type of the windows is that of their trigger")]
    pub fn evictor(
        self,
        evictor: impl Evictor<TaggedUnion<L, R>>,
    ) -> WindowedJoin<L, R, K, F, G, M, Triggered<TaggedUnion<L, R>, X::Trigger>> {
        WindowedJoin { windows: self.windows.evictor(evictor), _mode: PhantomData }
    }

    fn process<U, C>(&self, function: C) -> DataStream<U>
    where
        U: Record + ?Sized,
        C: Fn(&WindowElements<L>, &WindowElements<R>, &mut WindowContext<'_>, &mut Collector<U>) -> Result<()>
            + 'static,
    {
        let function = Rc::new(function);
        self.windows.process(move |_| CoGroup { function: Rc::clone(&function), _types: PhantomData })
    }
}

impl<L, R, K, F, G, X> WindowedJoin<L, R, K, F, G, Groups, X>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
    X: Evaluation<TaggedUnion<L, R>>,
{
    /// Hands all records of a key and window to the closure, those of each stream in the order
    /// in which they came. An error fails the call of the timer that made the window fire.
    pub fn apply<U, C, O>(&self, function: C) -> DataStream<U>
    where
        U: Record + ?Sized,
        C: Fn(&WindowElements<L>, &WindowElements<R>, &mut WindowContext<'_>, &mut Collector<U>) -> O + 'static,
        O: Outcome + 'static,
    {
        self.process(move |lefts, rights, ctx, out| function(lefts, rights, ctx, out).into_result())
    }
}

impl<L, R, K, F, G, X> WindowedJoin<L, R, K, F, G, Pairs, X>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    F: for<'a> Fn(L::Ref<'a>) -> K + 'static,
    G: for<'a> Fn(R::Ref<'a>) -> K + 'static,
    X: Evaluation<TaggedUnion<L, R>>,
{
    /// Hands each pair of a key and window to the closure. An error fails the call of the timer
    /// that made the window fire.
    pub fn apply<U, C, O>(&self, function: C) -> DataStream<U>
    where
        U: Record + ?Sized,
        C: for<'l, 'r, 'c> Fn(L::Ref<'l>, R::Ref<'r>, &mut WindowContext<'c>, &mut Collector<U>) -> O + 'static,
        O: Outcome + 'static,
    {
        self.process(move |lefts, rights, ctx, out| {
            lefts.try_for_each(|left| rights.try_for_each(|right| function(left, right, ctx, out).into_result()))
        })
    }
}

/// Tells the records of two streams apart when a window is evaluated.
struct CoGroup<L: ?Sized, R: ?Sized, U: ?Sized, C> {
    function: Rc<C>,
    _types: PhantomData<(Rc<L>, Rc<R>, Rc<U>)>,
}

impl<L, R, K, U, C> ProcessWindowFunction<K, TaggedUnion<L, R>> for CoGroup<L, R, U, C>
where
    L: Record + ?Sized,
    R: Record + ?Sized,
    K: Key + Owned,
    U: Record + ?Sized,
    C: Fn(&WindowElements<L>, &WindowElements<R>, &mut WindowContext<'_>, &mut Collector<U>) -> Result<()> + 'static,
{
    type Output = U;

    fn process(
        &self,
        _: &K,
        elements: &WindowElements<TaggedUnion<L, R>>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<U>,
    ) -> Result<()> {
        let (mut lefts, mut rights) = (WindowElements::new(), WindowElements::new());
        elements.for_each_with_timestamp(|record, timestamp| match record {
            Either::One(record) => lefts.push(record, timestamp),
            Either::Two(record) => rights.push(record, timestamp),
        });
        (self.function)(&lefts, &rights, ctx, out)
    }
}
