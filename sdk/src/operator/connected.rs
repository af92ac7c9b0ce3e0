//! Functions of two inputs: closures over both, and those behind a broadcast stream.

use std::{marker::PhantomData, rc::Rc};

use super::{
    Context, Element, RuntimeContext, SideOutputs, TwoInputFunction,
    process::{Keyed, KeyedContext, OnTimerContext, settle},
    stateless::OperatorTime,
};
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    collector::Collector,
    data_stream::OutputTag,
    error::{Outcome, Result},
    key::KeySelector,
    record::{Key, Owned, Record},
    state::{BroadcastState, BroadcastStateWriter, Timer},
};

/// A closure for each of two inputs.
pub(crate) struct CoProcess<F1, F2> {
    functions: (Rc<F1>, Rc<F2>),
    time: OperatorTime,
}

impl<F1, F2> CoProcess<F1, F2> {
    pub(crate) fn new(functions: (Rc<F1>, Rc<F2>)) -> Self {
        Self { functions, time: OperatorTime::default() }
    }
}

impl<A, B, U, F1, F2, R1, R2> TwoInputFunction<A, B, U> for CoProcess<F1, F2>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    U: Record + ?Sized,
    F1: for<'a> Fn(A::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R1 + 'static,
    F2: for<'a> Fn(B::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R2 + 'static,
    R1: Outcome,
    R2: Outcome,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.time.runtime = runtime.clone();
        Ok(())
    }

    fn process1(&mut self, record: A::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let mut context = Context::new(element.timestamp, &self.time, sides);
        settle((self.functions.0)(record, &mut context, out).into_result());
    }

    fn process2(&mut self, record: B::View<'_>, element: Element, out: &mut Collector<U>, sides: &mut SideOutputs) {
        let mut context = Context::new(element.timestamp, &self.time, sides);
        settle((self.functions.1)(record, &mut context, out).into_result());
    }

    fn process_watermark(&mut self, timestamp: i64, _: &mut Collector<U>) {
        self.time.watermark = timestamp;
    }
}

/// What a function is told with a record of a broadcast stream: as [`Context`], and it may
/// write broadcast state.
pub struct BroadcastContext<'c> {
    context: Context<'c>,
}

impl BroadcastContext<'_> {
    /// Event time of the record in milliseconds since the Unix epoch, if it has one.
    pub fn timestamp(&self) -> Option<i64> {
        self.context.timestamp()
    }

    /// The last watermark; `i64::MIN` before the first.
    pub fn current_watermark(&self) -> i64 {
        self.context.current_watermark()
    }

    /// Where the function runs: subtask, parallelism, attempt.
    pub fn runtime(&self) -> &RuntimeContext {
        self.context.runtime()
    }

    /// Hands a record to a side output; as [`Context::output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        self.context.output(tag, record);
    }

    /// Writes broadcast state. What is written must follow from the broadcast records alone, so
    /// that it is the same in each subtask.
    pub fn broadcast_state<'s, M: Key + ?Sized, V: Owned>(
        &self,
        state: &'s BroadcastState<M, V>,
    ) -> BroadcastStateWriter<'s, M, V> {
        state.writer()
    }
}

/// A function over a stream and a broadcast one; as Flink's `BroadcastProcessFunction`.
pub trait BroadcastProcessFunction<A: Record + ?Sized, B: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// As [`crate::KeyedProcessFunction::open`].
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Processes a record of the stream.
    ///
    /// # Errors
    /// An error rejects the record.
    fn process_element(
        &self,
        record: A::View<'_>,
        context: &mut Context<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// Processes a record of the broadcast stream, in each subtask.
    ///
    /// # Errors
    /// An error rejects the record.
    fn process_broadcast_element(
        &self,
        record: B::View<'_>,
        context: &mut BroadcastContext<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;
}

/// A function over a keyed stream and a broadcast one; as Flink's
/// `KeyedBroadcastProcessFunction`. Keyed state can be used where there is a key: not for
/// records of the broadcast stream.
pub trait KeyedBroadcastProcessFunction<K: Key + ?Sized, A: Record + ?Sized, B: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// As [`crate::KeyedProcessFunction::open`].
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Processes a record of the keyed stream; state is that of its key.
    ///
    /// # Errors
    /// An error rejects the record.
    fn process_element(
        &self,
        record: A::View<'_>,
        context: &mut KeyedContext<'_, K>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// Processes a record of the broadcast stream, in each subtask.
    ///
    /// # Errors
    /// An error rejects the record.
    fn process_broadcast_element(
        &self,
        record: B::View<'_>,
        context: &mut BroadcastContext<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// As [`crate::KeyedProcessFunction::on_timer`].
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

/// A [`BroadcastProcessFunction`] in its place.
pub(crate) struct BroadcastProcess<A: ?Sized, B: ?Sized, F> {
    function: F,
    time: OperatorTime,
    _types: PhantomData<(Rc<A>, Rc<B>)>,
}

impl<A: ?Sized, B: ?Sized, F> BroadcastProcess<A, B, F> {
    pub(crate) fn new(function: F) -> Self {
        Self { function, time: OperatorTime::default(), _types: PhantomData }
    }
}

impl<A, B, F> TwoInputFunction<A, B, F::Output> for BroadcastProcess<A, B, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    F: BroadcastProcessFunction<A, B>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.time.runtime = runtime.clone();
        self.function.open(runtime)
    }

    fn process1(
        &mut self,
        record: A::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        sides: &mut SideOutputs,
    ) {
        let mut context = Context::new(element.timestamp, &self.time, sides);
        settle(self.function.process_element(record, &mut context, out));
    }

    fn process2(
        &mut self,
        record: B::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        sides: &mut SideOutputs,
    ) {
        let mut context = BroadcastContext { context: Context::new(element.timestamp, &self.time, sides) };
        settle(self.function.process_broadcast_element(record, &mut context, out));
    }

    fn process_watermark(&mut self, timestamp: i64, _: &mut Collector<F::Output>) {
        self.time.watermark = timestamp;
    }
}

/// A [`KeyedBroadcastProcessFunction`] in its place.
pub(crate) struct KeyedBroadcastProcess<A: ?Sized, B: ?Sized, K: ?Sized, S, F> {
    selector: Rc<S>,
    function: F,
    keyed: Keyed,
    time: OperatorTime,
    scratch: Vec<u8>,
    _types: PhantomData<(Rc<A>, Rc<B>, Rc<K>)>,
}

impl<A: ?Sized, B: ?Sized, K: ?Sized, S, F> KeyedBroadcastProcess<A, B, K, S, F> {
    pub(crate) fn new(selector: Rc<S>, (function, keyed): (F, Keyed)) -> Self {
        Self { selector, function, keyed, time: OperatorTime::default(), scratch: Vec::new(), _types: PhantomData }
    }
}

impl<A, B, K, S, F> TwoInputFunction<A, B, F::Output> for KeyedBroadcastProcess<A, B, K, S, F>
where
    A: Record + ?Sized,
    B: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<A, K>,
    F: KeyedBroadcastProcessFunction<K, A, B>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.time.runtime = runtime.clone();
        self.function.open(runtime)
    }

    fn begin_batch(&mut self, input: u32, rows: &[u8]) {
        if input == 0 {
            self.keyed.begin_batch::<A, K, S>(&self.selector, rows);
        }
    }

    fn process1(
        &mut self,
        record: A::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        sides: &mut SideOutputs,
    ) {
        let Self { selector, function, keyed, scratch, .. } = self;
        keyed.enter::<A, K, S>(selector, A::peek(&record), element, scratch);
        settle(function.process_element(record, &mut KeyedContext::new(element.timestamp, keyed, sides), out));
    }

    fn process2(
        &mut self,
        record: B::View<'_>,
        element: Element,
        out: &mut Collector<F::Output>,
        sides: &mut SideOutputs,
    ) {
        self.keyed.states.scope.leave();
        let mut context = BroadcastContext { context: Context::new(element.timestamp, &self.time, sides) };
        settle(self.function.process_broadcast_element(record, &mut context, out));
    }

    fn begin_timers(&mut self, timers: &[Timer<'_>]) {
        self.keyed.begin_timers(timers);
    }

    fn on_timer(
        &mut self,
        domain: TimeDomain,
        timer: Timer<'_>,
        out: &mut Collector<F::Output>,
        sides: &mut SideOutputs,
    ) {
        let Self { function, keyed, .. } = self;
        settle(function.on_timer(timer.timestamp, &mut keyed.on_timer(domain, timer, sides), out));
    }

    fn process_watermark(&mut self, timestamp: i64, _: &mut Collector<F::Output>) {
        self.time.watermark = timestamp;
    }

    fn flush_state(&mut self) {
        self.keyed.states.flush();
    }
}
