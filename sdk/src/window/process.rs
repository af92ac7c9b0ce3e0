//! Functions over whole windows, with their context and states.

use super::{
    TimeWindow, WindowElements,
    contents::{Evaluate, FiringAt, Place},
};
use crate::{
    bindings::engine::plugin::graph::StateDeclaration,
    collector::Collector,
    data_stream::OutputTag,
    error::Result,
    operator::{RuntimeContext, SideOutputs},
    record::{Key, Owned, Record},
    state::{FunctionStates, StateBackend, States, Timer, Timers},
};

/// Makes records of a key, one of its windows and what is in it; as Flink's `ProcessWindowFunction`.
///
/// `I` is the type of the stream's records or, behind an aggregation, of its result, which is
/// the only element then.
pub trait ProcessWindowFunction<K: Key + ?Sized, I: Record + ?Sized>: 'static {
    /// What is emitted.
    type Output: Record + ?Sized;

    /// Called once in each subtask before the first record.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Evaluates a window.
    ///
    /// # Errors
    /// An error rejects the record that made the window fire; outside of a record, it is treated
    /// as that of one.
    fn process(
        &self,
        key: K::Ref<'_>,
        elements: &WindowElements<I>,
        ctx: &mut WindowContext<'_>,
        out: &mut Collector<Self::Output>,
    ) -> Result<()>;

    /// The window is given up: removes what the function keeps of it in [`WindowStates::window`].
    ///
    /// # Errors
    /// As [`ProcessWindowFunction::process`].
    fn clear(&self, _key: K::Ref<'_>, _ctx: &mut WindowContext<'_>) -> Result<()> {
        Ok(())
    }
}

/// Declares the states of a function over windows; see [`States`].
pub struct WindowStates {
    /// States of each window of each key. Sessions have none, since they merge.
    pub window: States,
    /// States of each key.
    pub global: States,
}

impl WindowStates {
    fn new(backend: &StateBackend) -> Self {
        Self { window: States::new(backend.clone()), global: States::new(backend.clone()) }
    }

    /// The states that a constructor declares: of windows, of keys.
    pub(crate) fn declared_by<P>(make: impl FnOnce(&mut Self) -> P) -> (Vec<StateDeclaration>, Vec<StateDeclaration>) {
        let mut states = Self::new(&StateBackend::declaring());
        make(&mut states);
        (states.window.into_declared(), states.global.into_declared())
    }
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

/// A function over windows with its states.
pub(crate) struct Processing<P> {
    function: P,
    window: FunctionStates,
    global: FunctionStates,
}

impl<P> Processing<P> {
    pub(crate) fn make(backend: &StateBackend, make: impl FnOnce(&mut WindowStates) -> P) -> Self {
        let mut states = WindowStates::new(backend);
        let function = make(&mut states);
        let WindowStates { window, global } = states;
        Self { function, window: window.into_function_states(), global: global.into_function_states() }
    }

    /// Calls the function on a window and its states.
    fn call<K: Key + ?Sized, R>(
        &self,
        place: Place<'_>,
        at: FiringAt<'_>,
        f: impl FnOnce(&P, K::Ref<'_>, &mut WindowContext<'_>) -> R,
    ) -> R {
        let FiringAt { window, timers, sides } = at;
        self.window.scope.set(place.hash, place.key);
        self.window.scope.set_namespace(&window.namespace());
        self.global.scope.set(place.hash, place.key);
        let mut ctx = WindowContext { window, timers, sides };
        K::decode(place.key, |key| f(&self.function, K::peek(&key), &mut ctx))
            .expect("keys are kept as they were encoded")
    }

    /// What the timers of a call will need; none for a batch of rows, few of which make windows fire.
    fn begin_batch(&self, timers: &[Timer<'_>]) {
        self.window.begin_batch(|take| {
            for timer in timers {
                take(timer.hash, timer.namespace, &mut |out| out.extend_from_slice(timer.key));
            }
        });
        self.global.begin_batch(|take| {
            for timer in timers {
                take(timer.hash, &[], &mut |out| out.extend_from_slice(timer.key));
            }
        });
    }

    fn flush(&self) {
        self.window.flush();
        self.global.flush();
    }
}

/// Hands all records of a window to a function.
pub(crate) struct ProcessElements<P>(pub(crate) Processing<P>);

impl<T, K, P> Evaluate<K, &WindowElements<T>, P::Output> for ProcessElements<P>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    P: ProcessWindowFunction<K, T>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.0.function.open(runtime)
    }

    fn evaluate(
        &mut self,
        place: Place<'_>,
        at: FiringAt<'_>,
        elements: &WindowElements<T>,
        out: &mut Collector<P::Output>,
    ) -> Result<()> {
        self.0.call::<K, _>(place, at, |function, key, ctx| function.process(key, elements, ctx, out))
    }

    fn clear(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()> {
        self.0.call::<K, _>(place, at, |function, key, ctx| function.clear(key, ctx))
    }

    fn begin_batch(&mut self, timers: &[Timer<'_>]) {
        self.0.begin_batch(timers);
    }

    fn flush(&mut self) {
        self.0.flush();
    }
}

/// Hands the result of an aggregation to a function.
pub(crate) struct ProcessResult<P>(pub(crate) Processing<P>);

impl<K, R, P> Evaluate<K, R, P::Output> for ProcessResult<P>
where
    K: Key + ?Sized,
    R: Owned,
    P: ProcessWindowFunction<K, R>,
{
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.0.function.open(runtime)
    }

    fn evaluate(
        &mut self,
        place: Place<'_>,
        at: FiringAt<'_>,
        result: R,
        out: &mut Collector<P::Output>,
    ) -> Result<()> {
        let mut elements = WindowElements::new();
        elements.push(&result, at.window.max_timestamp());
        self.0.call::<K, _>(place, at, |function, key, ctx| function.process(key, &elements, ctx, out))
    }

    fn clear(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()> {
        self.0.call::<K, _>(place, at, |function, key, ctx| function.clear(key, ctx))
    }

    fn begin_batch(&mut self, timers: &[Timer<'_>]) {
        self.0.begin_batch(timers);
    }

    fn flush(&mut self) {
        self.0.flush();
    }
}
