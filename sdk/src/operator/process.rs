//! Functions with keyed state and timers, of one and of two inputs, and their contexts.

use std::{marker::PhantomData, ops::Deref, rc::Rc};

use engine_rows::row::{NO_TIMESTAMP, Rows};

use super::{Context, Element, Function, RuntimeContext, SideOutputs, TwoInputFunction, stateless::OperatorTime};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    current,
    data_stream::OutputTag,
    error::{Error, Result},
    key::{KeySelector, encode_key_of, hash_of},
    record::{Key, Owned, Record},
    state::{FunctionStates, Scope, StateBackend, States, Timer, Timers},
};

/// A function over the records of each key, with state and timers; as Flink's
/// `KeyedProcessFunction`. See [`States`] for a whole one.
pub trait KeyedProcessFunction<K: Key + ?Sized, T: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// Called once in each subtask before the first record. There is no key here, and so no
    /// keyed state. What must be done at the end goes into `Drop`.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Processes a record; state is that of its key. The record comes as in `flat_map`: an owned
    /// one by value (`bid: Bid`), text and records with borrowed fields as the borrow that they
    /// are (`line: &str`, `bid: Bid<'_>`).
    ///
    /// # Errors
    /// An error rejects the record: the job's policy says whether the job fails or it is left
    /// out. State that was changed before stays so.
    fn process_element(
        &self,
        record: T::View<'_>,
        context: &mut KeyedContext<'_, K>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// A timer fires; state is that of the key for which it was registered. `timestamp` is the
    /// timer's, in milliseconds since the Unix epoch. What is collected carries it, or, in
    /// processing time, no timestamp.
    ///
    /// # Errors
    /// An error is treated as that of a record.
    fn on_timer(
        &self,
        _timestamp: i64,
        _context: &mut OnTimerContext<'_, K>,
        _out: &mut Collector<Self::Output>,
    ) -> Result<()> {
        Ok(())
    }
}

/// A function over the records of a stream that has no key; as Flink's `ProcessFunction`. Its
/// states belong to the subtask: see [`crate::OperatorListState`].
pub trait ProcessFunction<T: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// Called once in each subtask before the first record.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Processes a record.
    ///
    /// # Errors
    /// As [`KeyedProcessFunction::process_element`].
    fn process_element(
        &self,
        record: T::View<'_>,
        context: &mut Context<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;
}

/// A [`ProcessFunction`] in its place.
pub(crate) struct ProcessWithStates<T: ?Sized, F> {
    function: F,
    time: OperatorTime,
    _record: PhantomData<Rc<T>>,
}

impl<T: ?Sized, F> ProcessWithStates<T, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, time: OperatorTime::default(), _record: PhantomData }
    }
}

impl<T: Record + ?Sized, F: ProcessFunction<T>> Function<T, F::Output> for ProcessWithStates<T, F> {
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.time.runtime = runtime.clone();
        self.function.open(runtime)
    }

    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let mut context = Context::new(element.timestamp, &self.time, side_outputs);
        settle(self.function.process_element(record, &mut context, out));
    }

    fn process_watermark(&mut self, timestamp: i64, _: &mut Collector<F::Output>) {
        self.time.watermark = timestamp;
    }
}

/// A function over the records that two streams have for each key, with state and
/// timers that both share; as Flink's `KeyedCoProcessFunction`. As [`KeyedProcessFunction`].
pub trait KeyedCoProcessFunction<K: Key + ?Sized, A: Record + ?Sized, B: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// As [`KeyedProcessFunction::open`].
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Processes a record of the first stream.
    ///
    /// # Errors
    /// As [`KeyedProcessFunction::process_element`].
    fn process_element1(
        &self,
        record: A::View<'_>,
        context: &mut KeyedContext<'_, K>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// Processes a record of the second stream.
    ///
    /// # Errors
    /// As [`KeyedProcessFunction::process_element`].
    fn process_element2(
        &self,
        record: B::View<'_>,
        context: &mut KeyedContext<'_, K>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// As [`KeyedProcessFunction::on_timer`].
    ///
    /// # Errors
    /// An error is treated as that of a record.
    fn on_timer(
        &self,
        _timestamp: i64,
        _context: &mut OnTimerContext<'_, K>,
        _out: &mut Collector<Self::Output>,
    ) -> Result<()> {
        Ok(())
    }
}

/// What a function over a key's records is told besides the record.
pub struct KeyedContext<'c, K: ?Sized> {
    timestamp: i64,
    keyed: &'c Keyed,
    side_outputs: &'c mut SideOutputs,
    _key: PhantomData<Rc<K>>,
}

impl<'c, K: Key + ?Sized> KeyedContext<'c, K> {
    pub(crate) fn new(timestamp: i64, keyed: &'c Keyed, side_outputs: &'c mut SideOutputs) -> Self {
        Self { timestamp, keyed, side_outputs, _key: PhantomData }
    }

    /// Event time of the record, or of the timer that fires, in milliseconds since the Unix
    /// epoch, if it has one.
    pub fn timestamp(&self) -> Option<i64> {
        (self.timestamp != NO_TIMESTAMP).then_some(self.timestamp)
    }

    /// A copy of the current key; keys that are borrows are lent by [`KeyedContext::with_current_key`].
    pub fn current_key(&self) -> K
    where
        K: Owned + Clone,
    {
        self.with_current_key(|key| key.clone())
    }

    /// Lends the current key.
    pub fn with_current_key<R>(&self, f: impl FnOnce(K::Ref<'_>) -> R) -> R {
        self.keyed
            .states
            .scope
            .with(|_, key, _| K::decode(key, |key| f(K::peek(&key))).expect("the current key was encoded here"))
    }

    /// Timers of the current key, and the time.
    pub fn timer_service(&self) -> TimerService<'_> {
        TimerService { keyed: self.keyed }
    }

    /// Hands a record to a side output; as [`crate::Context::output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        self.side_outputs.output(tag, self.timestamp, record);
    }

    /// Where the function runs: subtask, parallelism, attempt.
    pub fn runtime(&self) -> &RuntimeContext {
        &self.keyed.runtime
    }
}

/// What a function is told when a timer fires; besides, all that [`KeyedContext`] tells.
pub struct OnTimerContext<'c, K: ?Sized> {
    context: KeyedContext<'c, K>,
    domain: TimeDomain,
}

impl<K: Key + ?Sized> OnTimerContext<'_, K> {
    /// True if the timer goes by event time, false if by processing time.
    pub fn is_event_time(&self) -> bool {
        self.domain == TimeDomain::EventTime
    }

    /// As [`KeyedContext::output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        self.context.output(tag, record);
    }
}

impl<'c, K: ?Sized> Deref for OnTimerContext<'c, K> {
    type Target = KeyedContext<'c, K>;

    fn deref(&self) -> &KeyedContext<'c, K> {
        &self.context
    }
}

/// Timers of the current key, and the time; as Flink's `TimerService`. All times are in
/// milliseconds since the Unix epoch.
///
/// A timer belongs to its key; registered twice for one time it is one. It is kept until it
/// fires or is deleted: one that lies far ahead in event time until the end of the input,
/// when event time rises to `i64::MAX`. Timers in processing time that wait at the end of
/// the input are dropped.
///
/// Only keyed streams have timers:
///
/// ```compile_fail,E0599
/// # use engine_sdk::prelude::*;
/// fn later(numbers: DataStream<i64>) {
///     numbers.process(|n, context: &mut Context<'_>, out: &mut Collector<i64>| {
///         context.timer_service().register_event_time_timer(n);
///         out.collect(n);
///     });
/// }
/// ```
pub struct TimerService<'c> {
    keyed: &'c Keyed,
}

impl TimerService<'_> {
    /// Calls `on_timer` when the watermark reaches `timestamp`: with the next watermark, if it
    /// has done so already. `i64::MIN`, which stands for no time, rejects the record.
    pub fn register_event_time_timer(&self, timestamp: i64) {
        self.register(TimeDomain::EventTime, timestamp);
    }

    /// Calls `on_timer` when the clock has passed `timestamp`. `i64::MIN`, which stands for
    /// no time, rejects the record.
    pub fn register_processing_time_timer(&self, timestamp: i64) {
        self.register(TimeDomain::ProcessingTime, timestamp);
    }

    /// Deletes a timer, if there is one.
    pub fn delete_event_time_timer(&self, timestamp: i64) {
        self.delete(TimeDomain::EventTime, timestamp);
    }

    /// Deletes a timer, if there is one.
    pub fn delete_processing_time_timer(&self, timestamp: i64) {
        self.delete(TimeDomain::ProcessingTime, timestamp);
    }

    /// The last watermark; `i64::MIN` before the first. While a timer fires, the one that fires it.
    pub fn current_watermark(&self) -> i64 {
        self.keyed.timers.watermark()
    }

    /// The clock, as it was when the current batch of records or timers was handed over.
    pub fn current_processing_time(&self) -> i64 {
        self.keyed.timers.processing_time()
    }

    fn register(&self, domain: TimeDomain, timestamp: i64) {
        if timestamp == NO_TIMESTAMP {
            let error = Error::new("a timer was registered for i64::MIN, which stands for no time");
            return current::reject(current::node(), &error);
        }
        let Keyed { timers, states, .. } = self.keyed;
        states.scope.with(|hash, key, _| timers.register(domain, timestamp, hash, key, &[]));
    }

    fn delete(&self, domain: TimeDomain, timestamp: i64) {
        let Keyed { timers, states, .. } = self.keyed;
        states.scope.with(|hash, key, _| timers.delete(domain, timestamp, hash, key, &[]));
    }
}

/// What functions with keyed state have in common.
pub(crate) struct Keyed {
    pub(crate) states: FunctionStates,
    timers: Timers,
    runtime: RuntimeContext,
}

impl Keyed {
    /// Makes a function with its states.
    pub(crate) fn make<F>(backend: &StateBackend, make: impl FnOnce(&mut States) -> F) -> (F, Self) {
        let (function, states) = States::make(backend, make);
        (function, Self { states, timers: backend.timers(), runtime: backend.runtime().clone() })
    }

    /// Begins a batch of rows whose keys the selector finds.
    pub(crate) fn begin_batch<T, K, S>(&self, selector: &S, rows: &[u8])
    where
        T: Record + ?Sized,
        K: Key + ?Sized,
        S: KeySelector<T, K>,
    {
        self.states.begin_batch(|prefetch| {
            for row in Rows::new(rows).map_while(Result::ok) {
                prefetch(row.key_hash, &[], &mut |out| encode_key_of::<T, K, S>(selector, row.payload, out));
            }
        });
    }

    pub(crate) fn begin_timers(&self, timers: &[Timer<'_>]) {
        self.states.begin_batch(|prefetch| {
            for timer in timers {
                prefetch(timer.hash, &[], &mut |out| out.extend_from_slice(timer.key));
            }
        });
    }

    /// Makes the key of a record the current one.
    #[inline(always)]
    pub(crate) fn enter<T, K, S>(&self, selector: &S, record: T::Ref<'_>, element: Element, scratch: &mut Vec<u8>)
    where
        T: Record + ?Sized,
        K: Key + ?Sized,
        S: KeySelector<T, K>,
    {
        let scope: &Scope = &self.states.scope;
        selector.with_key(record, |key| {
            K::with_encoded(key, scratch, |encoded| scope.set(hash_of(encoded, element.key_hash), encoded));
        });
    }

    /// Makes the key of a timer the current one, and the context of its firing.
    pub(super) fn on_timer<'c, K: Key + ?Sized>(
        &'c self,
        domain: TimeDomain,
        timer: Timer<'_>,
        side_outputs: &'c mut SideOutputs,
    ) -> OnTimerContext<'c, K> {
        self.states.scope.set(timer.hash, timer.key);
        let timestamp = match domain {
            TimeDomain::EventTime => timer.timestamp,
            TimeDomain::ProcessingTime => NO_TIMESTAMP,
        };
        OnTimerContext { context: KeyedContext::new(timestamp, self, side_outputs), domain }
    }
}

/// The outcome of user code that was called for a record or a timer.
#[inline(always)]
pub(super) fn settle(outcome: Result<()>) {
    if let Err(error) = outcome {
        current::reject(current::node(), &error);
    }
}

/// A [`KeyedProcessFunction`] in its place.
pub(crate) struct KeyedProcess<T: ?Sized, K: ?Sized, S, F> {
    selector: Rc<S>,
    function: F,
    keyed: Keyed,
    scratch: Vec<u8>,
    _types: PhantomData<(Rc<T>, Rc<K>)>,
}

impl<T: ?Sized, K: ?Sized, S, F> KeyedProcess<T, K, S, F> {
    pub(crate) fn new(selector: Rc<S>, (function, keyed): (F, Keyed)) -> Self {
        Self { selector, function, keyed, scratch: Vec::new(), _types: PhantomData }
    }
}

impl<T, K, S, F> Function<T, F::Output> for KeyedProcess<T, K, S, F>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    F: KeyedProcessFunction<K, T>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.function.open(runtime)
    }

    fn begin_batch(&mut self, rows: &[u8]) {
        self.keyed.begin_batch::<T, K, S>(&self.selector, rows);
    }

    #[inline(always)]
    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let Self { selector, function, keyed, scratch, .. } = self;
        keyed.enter::<T, K, S>(selector, T::peek(&record), element, scratch);
        settle(function.process_element(record, &mut KeyedContext::new(element.timestamp, keyed, side_outputs), out));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.keyed.begin_timers(timers);
    }

    fn on_timer(
        &mut self,
        domain: TimeDomain,
        timer: Timer<'_>,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let Self { function, keyed, .. } = self;
        settle(function.on_timer(timer.timestamp, &mut keyed.on_timer(domain, timer, side_outputs), out));
    }

    fn flush_state(&mut self) {
        self.keyed.states.flush();
    }
}

/// A [`KeyedCoProcessFunction`] in its place.
pub(crate) struct KeyedCoProcess<A: ?Sized, B: ?Sized, K: ?Sized, S1, S2, F> {
    selectors: (Rc<S1>, Rc<S2>),
    function: F,
    keyed: Keyed,
    scratch: Vec<u8>,
    _types: PhantomData<(Rc<A>, Rc<B>, Rc<K>)>,
}

impl<A: ?Sized, B: ?Sized, K: ?Sized, S1, S2, F> KeyedCoProcess<A, B, K, S1, S2, F> {
    pub(crate) fn new(selectors: (Rc<S1>, Rc<S2>), (function, keyed): (F, Keyed)) -> Self {
        Self { selectors, function, keyed, scratch: Vec::new(), _types: PhantomData }
    }
}

impl<A, B, K, S1, S2, F> TwoInputFunction<A, B, F::Output> for KeyedCoProcess<A, B, K, S1, S2, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    K: Key + ?Sized,
    S1: KeySelector<A, K>,
    S2: KeySelector<B, K>,
    F: KeyedCoProcessFunction<K, A, B>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.function.open(runtime)
    }

    fn begin_batch(&mut self, input: u32, rows: &[u8]) {
        match input {
            0 => self.keyed.begin_batch::<A, K, S1>(&self.selectors.0, rows),
            _ => self.keyed.begin_batch::<B, K, S2>(&self.selectors.1, rows),
        }
    }

    fn process1(
        &mut self,
        record: A::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let Self { selectors, function, keyed, scratch, .. } = self;
        keyed.enter::<A, K, S1>(&selectors.0, A::peek(&record), element, scratch);
        settle(function.process_element1(record, &mut KeyedContext::new(element.timestamp, keyed, side_outputs), out));
    }

    fn process2(
        &mut self,
        record: B::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let Self { selectors, function, keyed, scratch, .. } = self;
        keyed.enter::<B, K, S2>(&selectors.1, B::peek(&record), element, scratch);
        settle(function.process_element2(record, &mut KeyedContext::new(element.timestamp, keyed, side_outputs), out));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.keyed.begin_timers(timers);
    }

    fn on_timer(
        &mut self,
        domain: TimeDomain,
        timer: Timer<'_>,
        out: &mut Collector<F::Output>,
        side_outputs: &mut SideOutputs,
    ) {
        let Self { function, keyed, .. } = self;
        settle(function.on_timer(timer.timestamp, &mut keyed.on_timer(domain, timer, side_outputs), out));
    }

    fn flush_state(&mut self) {
        self.keyed.states.flush();
    }
}
