//! Functions without state, and the encoders of outputs with a selector.

use std::{marker::PhantomData, rc::Rc};

use engine_rows::{key_hash::key_hash, row::NO_TIMESTAMP};

use super::{Element, Function, RuntimeContext, SideOutputs};
use crate::{
    collector::{Collector, Downstream, Lifecycle, OutputBuffer},
    current,
    data_stream::OutputTag,
    error::{Outcome, Result},
    key::KeySelector,
    record::{Key, Owned, Record},
    text::Format,
};

/// One record for each record.
pub(crate) struct Map<F>(pub(crate) Rc<F>);

impl<T, U, F> Function<T, U> for Map<F>
where
    T: Record + ?Sized,
    U: Owned,
    F: for<'a> Fn(T::View<'a>) -> U + 'static,
{
    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, _: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        out.collect((self.0)(record));
    }
}

/// One record for each record, or an error.
pub(crate) struct TryMap<F>(pub(crate) Rc<F>);

impl<T, U, F> Function<T, U> for TryMap<F>
where
    T: Record + ?Sized,
    U: Owned,
    F: for<'a> Fn(T::View<'a>) -> Result<U> + 'static,
{
    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, _: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        match (self.0)(record) {
            Ok(record) => out.collect(record),
            Err(error) => current::reject(current::node(), &error),
        }
    }
}

/// The records that a predicate holds for.
pub(crate) struct Filter<F>(pub(crate) Rc<F>);

impl<T, F> Function<T, T> for Filter<F>
where
    T: Record + ?Sized,
    F: for<'a> Fn(T::Ref<'a>) -> bool + 'static,
{
    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, _: Element, out: &mut Collector<T>, _: &mut SideOutputs) {
        if (self.0)(T::peek(&record)) {
            out.collect(record);
        }
    }
}

/// The records as they are; stands where an edge needs code of the plugin at its start.
pub(crate) struct Identity;

impl<T: Record + ?Sized> Function<T, T> for Identity {
    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, _: Element, out: &mut Collector<T>, _: &mut SideOutputs) {
        out.collect(record);
    }
}

/// Any number of records for each record.
pub(crate) struct FlatMap<F>(pub(crate) Rc<F>);

impl<T, U, F, R> Function<T, U> for FlatMap<F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: for<'a> Fn(T::View<'a>, &mut Collector<U>) -> R + 'static,
    R: Outcome,
{
    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, _: Element, out: &mut Collector<U>, _: &mut SideOutputs) {
        if let Err(error) = (self.0)(record, out).into_result() {
            current::reject(current::node(), &error);
        }
    }
}

/// Any number of records, on the main output and on side outputs.
pub(crate) struct Process<F> {
    function: Rc<F>,
    time: OperatorTime,
}

/// Where an operator runs, and how far event time has come.
pub(crate) struct OperatorTime {
    pub(crate) watermark: i64,
    pub(crate) runtime: RuntimeContext,
}

impl Default for OperatorTime {
    fn default() -> Self {
        Self { watermark: i64::MIN, runtime: RuntimeContext::default() }
    }
}

impl<F> Process<F> {
    pub(crate) fn new(function: Rc<F>) -> Self {
        Self { function, time: OperatorTime::default() }
    }
}

impl<T, U, F, R> Function<T, U> for Process<F>
where
    T: Record + ?Sized,
    U: Record + ?Sized,
    F: for<'a> Fn(T::View<'a>, &mut Context<'_>, &mut Collector<U>) -> R + 'static,
    R: Outcome,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.time.runtime = runtime.clone();
        Ok(())
    }

    #[inline(always)]
    fn process(
        &mut self,
        record: T::View<'_>,
        element: Element,
        out: &mut Collector<U>,
        side_outputs: &mut SideOutputs,
    ) {
        let mut context = Context { timestamp: element.timestamp, time: &self.time, side_outputs };
        if let Err(error) = (self.function)(record, &mut context, out).into_result() {
            current::reject(current::node(), &error);
        }
    }

    fn process_watermark(&mut self, timestamp: i64, _: &mut Collector<U>) {
        self.time.watermark = timestamp;
    }
}

/// What a `process` function is told besides the record.
pub struct Context<'c> {
    timestamp: i64,
    time: &'c OperatorTime,
    side_outputs: &'c mut SideOutputs,
}

impl<'c> Context<'c> {
    pub(crate) fn new(timestamp: i64, time: &'c OperatorTime, side_outputs: &'c mut SideOutputs) -> Self {
        Self { timestamp, time, side_outputs }
    }

    /// Event time of the record in milliseconds since the Unix epoch, if it has one.
    pub fn timestamp(&self) -> Option<i64> {
        (self.timestamp != NO_TIMESTAMP).then_some(self.timestamp)
    }

    /// The last watermark; `i64::MIN` before the first.
    pub fn current_watermark(&self) -> i64 {
        self.time.watermark
    }

    /// Where the function runs: subtask, parallelism, attempt.
    pub fn runtime(&self) -> &RuntimeContext {
        &self.time.runtime
    }

    /// Hands a record to a side output. It is dropped if nobody took the side output
    /// with [`crate::DataStream::get_side_output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        self.side_outputs.output(tag, self.timestamp, record);
    }
}

macro_rules! output_lifecycle {
    ($([$($generics:tt)*] $type:ty),*) => { $(
        impl<$($generics)*> Lifecycle for $type {
            fn process_watermark(&mut self, timestamp: i64) {
                self.buffer.process_watermark(timestamp);
            }

            fn process_watermark_status(&mut self, idle: bool) {
                self.buffer.process_watermark_status(idle);
            }

            fn end_input(&mut self) {
                self.buffer.end_input();
            }

            fn flush(&mut self) {
                self.buffer.flush();
            }
        }
    )* };
}

output_lifecycle!([K: ?Sized, S] HashOutput<K, S>, [F] PartitionOutput<F>, [F] FormatOutput<F>);

/// Encodes rows with the hash of their key.
pub(crate) struct HashOutput<K: ?Sized, S> {
    buffer: OutputBuffer,
    selector: Rc<S>,
    scratch: Vec<u8>,
    _key: PhantomData<K>,
}

impl<K: ?Sized, S> HashOutput<K, S> {
    pub(crate) fn new(output: u32, selector: Rc<S>) -> Self {
        Self { buffer: OutputBuffer::new(output), selector, scratch: Vec::new(), _key: PhantomData }
    }
}

impl<T, K, S> Downstream<T> for HashOutput<K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        let Self { buffer, selector, scratch, .. } = self;
        let record = T::peek(&record);
        let hash = selector.with_key(record, |key| K::with_encoded(key, scratch, key_hash));
        buffer.append(hash, timestamp, |payload| T::encode(record, payload));
    }
}

/// Encodes rows with the channel that the user's partitioner chooses.
pub(crate) struct PartitionOutput<F> {
    buffer: OutputBuffer,
    partitioner: Rc<F>,
    channels: u32,
}

impl<F> PartitionOutput<F> {
    pub(crate) fn new(output: u32, channels: u32, partitioner: Rc<F>) -> Self {
        Self { buffer: OutputBuffer::new(output), partitioner, channels }
    }
}

impl<T, F> Downstream<T> for PartitionOutput<F>
where
    T: Record + ?Sized,
    F: for<'a> Fn(T::Ref<'a>, u32) -> u32 + 'static,
{
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        let record = T::peek(&record);
        let channel = (self.partitioner)(record, self.channels);
        if self.channels <= channel {
            let message = format!("the partitioner chose channel {channel} of {}", self.channels);
            return current::fail(current::node(), &message);
        }
        self.buffer.append(channel, timestamp, |payload| T::encode(record, payload));
    }
}

/// Encodes records as their text.
pub(crate) struct FormatOutput<F> {
    buffer: OutputBuffer,
    _format: PhantomData<F>,
}

impl<F> FormatOutput<F> {
    pub(crate) fn new(output: u32) -> Self {
        Self { buffer: OutputBuffer::new(output), _format: PhantomData }
    }
}

impl<T: Record + ?Sized, F: Format<T>> Downstream<T> for FormatOutput<F> {
    fn process(&mut self, record: T::View<'_>, timestamp: i64) {
        self.buffer.append(0, timestamp, |payload| F::append(T::peek(&record), payload));
    }
}
