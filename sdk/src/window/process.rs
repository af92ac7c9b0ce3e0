//! Functions over whole windows, with their context.

use super::{
    TimeWindow, WindowElements,
    contents::{Evaluate, FiringAt, Place},
};
use crate::{
    collector::Collector,
    data_stream::OutputTag,
    error::Result,
    operator::SideOutputs,
    record::{Key, Owned, Record},
    state::Timers,
};

/// Makes records of a key, one of its windows and what is in it; as Flink's `ProcessWindowFunction`.
///
/// `I` is the type of the stream's records or, behind an aggregation, of its result, which is
/// the only element then.
pub trait ProcessWindowFunction<K: Key + ?Sized, I: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// Evaluates a window.
    ///
    /// # Errors
    /// An error rejects the record that made the window fire, or fails the call of a timer.
    fn process(
        &self,
        key: K::Ref<'_>,
        elements: &WindowElements<I>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;
}

/// What a [`ProcessWindowFunction`] is told besides the content of the window.
pub struct WindowContext<'c> {
    window: TimeWindow,
    timers: &'c Timers,
    sides: &'c mut SideOutputs,
}

impl WindowContext<'_> {
    /// The window that is evaluated.
    pub fn window(&self) -> TimeWindow {
        self.window
    }

    /// The last watermark; `i64::MIN` before the first.
    pub fn current_watermark(&self) -> i64 {
        self.timers.watermark()
    }

    /// The clock in milliseconds since the Unix epoch.
    pub fn current_processing_time(&self) -> i64 {
        self.timers.processing_time()
    }

    /// Hands a record to a side output, with the timestamp of the window's results. It is dropped
    /// if nobody took the side output with [`crate::DataStream::get_side_output`].
    ///
    /// # Panics
    /// Panics if the side output was taken with a tag of another type.
    pub fn output<X: Record + ?Sized>(&mut self, tag: &OutputTag<X>, record: X::View<'_>) {
        self.sides.output(tag, self.window.max_timestamp(), record);
    }
}

/// Hands all records of a window to a function.
pub(crate) struct ProcessElements<P> {
    pub(crate) function: P,
}

impl<P> ProcessElements<P> {
    fn process<K, I>(
        &self,
        place: Place<'_>,
        at: FiringAt<'_>,
        elements: &WindowElements<I>,
        out: &mut Collector<P::Output>,
    ) -> Result<()>
    where
        K: Key + ?Sized,
        I: Record + ?Sized,
        P: ProcessWindowFunction<K, I>,
    {
        let FiringAt { window, timers, sides } = at;
        let mut ctx = WindowContext { window, timers, sides };
        K::decode(place.key, |key| self.function.process(K::peek(&key), elements, &mut ctx, out))
            .expect("keys are kept as they were encoded")
    }
}

impl<T, K, P> Evaluate<K, &WindowElements<T>, P::Output> for ProcessElements<P>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    P: ProcessWindowFunction<K, T>,
{
    fn evaluate(
        &mut self,
        place: Place<'_>,
        at: FiringAt<'_>,
        elements: &WindowElements<T>,
        out: &mut Collector<P::Output>,
    ) -> Result<()> {
        self.process(place, at, elements, out)
    }
}

/// Hands the result of an aggregation to a function.
pub(crate) struct ProcessResult<P>(pub(crate) ProcessElements<P>);

impl<K, R, P> Evaluate<K, R, P::Output> for ProcessResult<P>
where
    K: Key + ?Sized,
    R: Owned,
    P: ProcessWindowFunction<K, R>,
{
    fn evaluate(
        &mut self,
        place: Place<'_>,
        at: FiringAt<'_>,
        result: R,
        out: &mut Collector<P::Output>,
    ) -> Result<()> {
        let mut elements = WindowElements::new();
        elements.push(&result, at.window.max_timestamp());
        self.0.process(place, at, &elements, out)
    }
}
