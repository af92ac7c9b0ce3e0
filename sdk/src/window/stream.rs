//! Streams in windows: what programs call.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use super::{
    TimeWindow, WindowAssigner,
    assigner::{WindowKind, Windows},
    emit::{Alone, Emit, Then, ThenAlone, WithKey},
    input::{LateRecords, WindowInput, WindowTime},
    panes::Panes,
    session_windows::SessionWindows,
    sessions::Sessions,
    sliding_windows::{PaneOf, SlidingWindows},
    tumbling_windows::{TumblingWindows, WindowOf},
};
use crate::{
    bindings::{
        engine::plugin::graph::{StateDeclaration, StateKind},
        exports::engine::plugin::operator_chain::TimeDomain,
    },
    collector::Collector,
    data_stream::{DataStream, OutputTag},
    error::Outcome,
    graph::state,
    key::KeySelector,
    keyed_stream::KeyedStream,
    operator::{AggregateFold, AggregateFunction, Count, Fold, Function, MaxOf, MinOf, Number, ReduceFold, SumOf},
    record::{Key, Owned, Pair, Record},
    state::StateBackend,
};

/// Name of the state that holds what windows came to.
const CONTENTS: &str = "window-contents";

/// A keyed stream in windows: one result for each key and window.
///
/// Results carry the last millisecond of their window as timestamp. The functions that
/// end in `_then` take a closure that makes records of key, window and result.
pub struct WindowedStream<T: Record + ?Sized, K: ?Sized, S, X = DefaultTrigger> {
    keyed: KeyedStream<T, K, S>,
    /// None if the assigner was refused.
    windows: Option<Windows<T>>,
    allowed_lateness: i64,
    late_output: Option<String>,
    evaluation: X,
}

/// Windows are evaluated when their assigner says.
#[derive(Clone, Copy, Debug)]
pub struct DefaultTrigger;

impl<T: Record + ?Sized, K: ?Sized, S, X: Clone> Clone for WindowedStream<T, K, S, X> {
    fn clone(&self) -> Self {
        Self {
            keyed: self.keyed.clone(),
            windows: self.windows.clone(),
            allowed_lateness: self.allowed_lateness,
            late_output: self.late_output.clone(),
            evaluation: self.evaluation.clone(),
        }
    }
}

/// A function and the states that it declares.
pub(crate) struct Declared<'d> {
    pub(crate) name: &'d str,
    pub(crate) states: Vec<StateDeclaration>,
}

impl<T, K, S> WindowedStream<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    pub(crate) fn new(keyed: &KeyedStream<T, K, S>, assigner: impl WindowAssigner<T>) -> Self {
        let windows = match assigner.windows() {
            Ok(windows) => Some(windows),
            Err(message) => {
                keyed.graph.borrow_mut().error(message);
                None
            }
        };
        Self { keyed: keyed.clone(), windows, allowed_lateness: 0, late_output: None, evaluation: DefaultTrigger }
    }
}

/// How a stream in windows is aggregated.
pub trait Evaluation<T: Record + ?Sized>: Sized {
    /// Adds the operator.
    fn aggregate<K, S, A, E, U>(
        stream: &WindowedStream<T, K, S, Self>,
        name: &str,
        fold: impl Fn() -> A + 'static,
        emit: impl Fn() -> E + 'static,
    ) -> DataStream<U>
    where
        K: Key + ?Sized,
        S: KeySelector<T, K>,
        A: Fold<T>,
        E: Emit<K, A::Output, U>,
        U: Record + ?Sized;
}

impl<T: Record + ?Sized> Evaluation<T> for DefaultTrigger {
    fn aggregate<K, S, A, E, U>(
        stream: &WindowedStream<T, K, S, Self>,
        name: &str,
        fold: impl Fn() -> A + 'static,
        emit: impl Fn() -> E + 'static,
    ) -> DataStream<U>
    where
        K: Key + ?Sized,
        S: KeySelector<T, K>,
        A: Fold<T>,
        E: Emit<K, A::Output, U>,
        U: Record + ?Sized,
    {
        let windows = match stream.windows.as_ref().map(|windows| windows.kind.clone()) {
            None => None,
            Some(WindowKind::Global(true)) => None,
            Some(WindowKind::Global(false)) => {
                let message = "window(GlobalWindows::create()): such a window never fires; give it a `trigger`, \
                               or use `GlobalWindows::end_of_stream()`";
                stream.keyed.graph.borrow_mut().error(message.to_owned());
                None
            }
            Some(WindowKind::Session(gap)) => {
                let states = vec![state::<Sessions<A::State>>(CONTENTS, StateKind::Value)];
                return stream.operator(Declared { name, states }, move |input, states| SessionWindows {
                    input,
                    gap: gap.clone(),
                    fold: fold(),
                    emit: emit(),
                    sessions: states.value(CONTENTS),
                });
            }
            Some(WindowKind::Aligned(windows)) if windows.slide < windows.size => {
                let states = vec![state::<Panes<A::State>>(CONTENTS, StateKind::Value)];
                return stream.operator(Declared { name, states }, move |input, states| SlidingWindows {
                    input,
                    windows: PaneOf::new(windows),
                    fold: fold(),
                    emit: emit(),
                    panes: states.value(CONTENTS),
                });
            }
            Some(WindowKind::Aligned(windows)) => Some(windows),
        };
        let states = vec![state::<A::State>(CONTENTS, StateKind::Aggregating)];
        stream.operator(Declared { name, states }, move |input, states| TumblingWindows {
            input,
            windows: WindowOf::new(windows),
            fold: fold(),
            emit: emit(),
            contents: states.value(CONTENTS),
        })
    }
}

impl<T, K, S, X> WindowedStream<T, K, S, X>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    /// Keeps each window for this much event time behind its end: late records make it fire
    /// again, each with all of its content. Windows of processing time are not kept.
    #[must_use]
    pub fn allowed_lateness(mut self, lateness: Duration) -> Self {
        self.allowed_lateness = i64::try_from(lateness.as_millis()).unwrap_or(i64::MAX);
        self
    }

    /// Sends records that are too late for all of their windows to a side output, taken from the
    /// results with [`DataStream::get_side_output`]; without one, they are dropped and counted
    /// in `numLateRecordsDropped`.
    #[must_use]
    pub fn side_output_late_data(mut self, tag: &OutputTag<T>) -> Self {
        self.late_output = Some(tag.name().to_owned());
        self
    }

    /// Adds an operator behind the keyed stream.
    fn operator<U, F>(
        &self,
        declared: Declared<'_>,
        make: impl Fn(WindowInput<T, K, S>, &StateBackend) -> F + 'static,
    ) -> DataStream<U>
    where
        U: Record + ?Sized,
        F: Function<T, U>,
    {
        let (domain, needs_timestamp) = match &self.windows {
            None => (TimeDomain::EventTime, false),
            Some(windows) => (windows.domain, !matches!(windows.kind, WindowKind::Global(_))),
        };
        let allowed_lateness = if domain == TimeDomain::EventTime { self.allowed_lateness } else { 0 };
        let late_output = self.late_output.clone();
        let name = format!("Window({})", declared.name);
        self.keyed.stateful_operator((&name, "Window"), declared.states, move |selector, states| {
            let time = WindowTime { domain, needs_timestamp, allowed_lateness, timers: states.timers() };
            make(WindowInput::new(selector, time, LateRecords::new(late_output.clone())), states)
        })
    }
}

impl<T, K, S, X> WindowedStream<T, K, S, X>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
    X: Evaluation<T>,
{
    fn aggregated<A, E, U>(
        &self,
        name: &str,
        fold: impl Fn() -> A + 'static,
        emit: impl Fn() -> E + 'static,
    ) -> DataStream<U>
    where
        A: Fold<T>,
        E: Emit<K, A::Output, U>,
        U: Record + ?Sized,
    {
        X::aggregate(self, name, fold, emit)
    }

    /// Counts the records of each key and window.
    pub fn count(&self) -> DataStream<Pair<K, u64>> {
        self.aggregated("Count", || Count, || WithKey)
    }

    /// As [`WindowedStream::count`], with a closure that makes records of key, window and result.
    pub fn count_then<U, E, O>(&self, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, u64, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let emit = Rc::new(emit);
        self.aggregated("Count", || Count, move || Then(Rc::clone(&emit)))
    }

    /// Sums a number of the records of each key and window; see [`KeyedStream::sum`].
    pub fn sum<N, F>(&self, number: F) -> DataStream<Pair<K, N>>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        let number = Rc::new(number);
        self.aggregated("Sum", move || SumOf { number: Rc::clone(&number), _sum: PhantomData }, || WithKey)
    }

    /// As [`WindowedStream::sum`], with a closure that makes records of key, window and result.
    pub fn sum_then<N, F, U, E, O>(&self, number: F, emit: E) -> DataStream<U>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, N, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let number = Rc::new(number);
        let emit = Rc::new(emit);
        self.aggregated(
            "Sum",
            move || SumOf { number: Rc::clone(&number), _sum: PhantomData },
            move || Then(Rc::clone(&emit)),
        )
    }

    /// Finds the least value of the records of each key and window.
    pub fn min<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.aggregated("Min", move || MinOf { value: Rc::clone(&value), _value: PhantomData }, || WithKey)
    }

    /// As [`WindowedStream::min`], with a closure that makes records of key, window and result.
    pub fn min_then<V, F, U, E, O>(&self, value: F, emit: E) -> DataStream<U>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, V, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let value = Rc::new(value);
        let emit = Rc::new(emit);
        self.aggregated(
            "Min",
            move || MinOf { value: Rc::clone(&value), _value: PhantomData },
            move || Then(Rc::clone(&emit)),
        )
    }

    /// Finds the greatest value of the records of each key and window.
    pub fn max<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.aggregated("Max", move || MaxOf { value: Rc::clone(&value), _value: PhantomData }, || WithKey)
    }

    /// As [`WindowedStream::max`], with a closure that makes records of key, window and result.
    pub fn max_then<V, F, U, E, O>(&self, value: F, emit: E) -> DataStream<U>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, V, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let value = Rc::new(value);
        let emit = Rc::new(emit);
        self.aggregated(
            "Max",
            move || MaxOf { value: Rc::clone(&value), _value: PhantomData },
            move || Then(Rc::clone(&emit)),
        )
    }

    /// Reduces the records of each key and window to one.
    pub fn reduce<F>(&self, function: F) -> DataStream<T>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
    {
        let function = Rc::new(function);
        self.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), || Alone)
    }

    /// As [`WindowedStream::reduce`], with a closure that makes records of key, window and result.
    pub fn reduce_then<F, U, E, O>(&self, function: F, emit: E) -> DataStream<U>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, T, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let function = Rc::new(function);
        let emit = Rc::new(emit);
        self.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), move || Then(Rc::clone(&emit)))
    }

    /// Aggregates the records of each key and window.
    pub fn aggregate<A>(&self, function: A) -> DataStream<Pair<K, A::Output>>
    where
        A: AggregateFunction<T>,
    {
        let function = Rc::new(function);
        self.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), || WithKey)
    }

    /// As [`WindowedStream::aggregate`], with a closure that makes records of key, window and result.
    pub fn aggregate_then<A, U, E, O>(&self, function: A, emit: E) -> DataStream<U>
    where
        A: AggregateFunction<T>,
        U: Record + ?Sized,
        E: for<'a> Fn(K::Ref<'a>, TimeWindow, A::Output, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let function = Rc::new(function);
        let emit = Rc::new(emit);
        self.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), move || Then(Rc::clone(&emit)))
    }
}

/// A whole stream in windows: one result for each window. Runs in one subtask.
///
/// As [`WindowedStream`], without a key.
pub struct AllWindowedStream<T: Record + ?Sized, X = DefaultTrigger> {
    windowed: WindowedStream<T, (), NoKey, X>,
}

/// Gives all records the same key.
#[derive(Clone, Copy, Debug)]
pub struct NoKey;

impl<T: Record + ?Sized> KeySelector<T, ()> for NoKey {
    #[inline]
    fn with_key<R>(&self, _: T::Ref<'_>, f: impl FnOnce(&()) -> R) -> R {
        f(&())
    }
}

impl<T: Record + ?Sized> AllWindowedStream<T> {
    pub(crate) fn new(keyed: &KeyedStream<T, (), NoKey>, assigner: impl WindowAssigner<T>) -> Self {
        Self { windowed: WindowedStream::new(keyed, assigner) }
    }
}

impl<T: Record + ?Sized, X> AllWindowedStream<T, X> {
    /// As [`WindowedStream::allowed_lateness`].
    #[must_use]
    pub fn allowed_lateness(self, lateness: Duration) -> Self {
        Self { windowed: self.windowed.allowed_lateness(lateness) }
    }

    /// As [`WindowedStream::side_output_late_data`].
    #[must_use]
    pub fn side_output_late_data(self, tag: &OutputTag<T>) -> Self {
        Self { windowed: self.windowed.side_output_late_data(tag) }
    }
}

impl<T, X> AllWindowedStream<T, X>
where
    T: Record + ?Sized,
    X: Evaluation<T>,
{
    /// Counts the records of each window.
    pub fn count(&self) -> DataStream<u64> {
        self.windowed.aggregated("Count", || Count, || Alone)
    }

    /// As [`AllWindowedStream::count`], with a closure that makes records of window and result.
    pub fn count_then<U, E, O>(&self, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        E: Fn(TimeWindow, u64, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let emit = Rc::new(emit);
        self.windowed.aggregated("Count", || Count, move || ThenAlone(Rc::clone(&emit)))
    }

    /// Sums a number of the records of each window; see [`KeyedStream::sum`].
    pub fn sum<N, F>(&self, number: F) -> DataStream<N>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        let number = Rc::new(number);
        self.windowed.aggregated("Sum", move || SumOf { number: Rc::clone(&number), _sum: PhantomData }, || Alone)
    }

    /// As [`AllWindowedStream::sum`], with a closure that makes records of window and result.
    pub fn sum_then<N, F, U, E, O>(&self, number: F, emit: E) -> DataStream<U>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
        U: Record + ?Sized,
        E: Fn(TimeWindow, N, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let number = Rc::new(number);
        let emit = Rc::new(emit);
        self.windowed.aggregated(
            "Sum",
            move || SumOf { number: Rc::clone(&number), _sum: PhantomData },
            move || ThenAlone(Rc::clone(&emit)),
        )
    }

    /// Finds the least value of the records of each window.
    pub fn min<V, F>(&self, value: F) -> DataStream<V>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.windowed.aggregated("Min", move || MinOf { value: Rc::clone(&value), _value: PhantomData }, || Alone)
    }

    /// As [`AllWindowedStream::min`], with a closure that makes records of window and result.
    pub fn min_then<V, F, U, E, O>(&self, value: F, emit: E) -> DataStream<U>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
        U: Record + ?Sized,
        E: Fn(TimeWindow, V, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let value = Rc::new(value);
        let emit = Rc::new(emit);
        self.windowed.aggregated(
            "Min",
            move || MinOf { value: Rc::clone(&value), _value: PhantomData },
            move || ThenAlone(Rc::clone(&emit)),
        )
    }

    /// Finds the greatest value of the records of each window.
    pub fn max<V, F>(&self, value: F) -> DataStream<V>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        let value = Rc::new(value);
        self.windowed.aggregated("Max", move || MaxOf { value: Rc::clone(&value), _value: PhantomData }, || Alone)
    }

    /// As [`AllWindowedStream::max`], with a closure that makes records of window and result.
    pub fn max_then<V, F, U, E, O>(&self, value: F, emit: E) -> DataStream<U>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
        U: Record + ?Sized,
        E: Fn(TimeWindow, V, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let value = Rc::new(value);
        let emit = Rc::new(emit);
        self.windowed.aggregated(
            "Max",
            move || MaxOf { value: Rc::clone(&value), _value: PhantomData },
            move || ThenAlone(Rc::clone(&emit)),
        )
    }

    /// Reduces the records of each window to one.
    pub fn reduce<F>(&self, function: F) -> DataStream<T>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
    {
        let function = Rc::new(function);
        self.windowed.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), || Alone)
    }

    /// As [`AllWindowedStream::reduce`], with a closure that makes records of window and result.
    pub fn reduce_then<F, U, E, O>(&self, function: F, emit: E) -> DataStream<U>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
        U: Record + ?Sized,
        E: Fn(TimeWindow, T, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let function = Rc::new(function);
        let emit = Rc::new(emit);
        self.windowed.aggregated(
            "Reduce",
            move || ReduceFold(Rc::clone(&function)),
            move || ThenAlone(Rc::clone(&emit)),
        )
    }

    /// Aggregates the records of each window.
    pub fn aggregate<A>(&self, function: A) -> DataStream<A::Output>
    where
        A: AggregateFunction<T>,
    {
        let function = Rc::new(function);
        self.windowed.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), || Alone)
    }

    /// As [`AllWindowedStream::aggregate`], with a closure that makes records of window and result.
    pub fn aggregate_then<A, U, E, O>(&self, function: A, emit: E) -> DataStream<U>
    where
        A: AggregateFunction<T>,
        U: Record + ?Sized,
        E: Fn(TimeWindow, A::Output, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        let function = Rc::new(function);
        let emit = Rc::new(emit);
        self.windowed.aggregated(
            "Aggregate",
            move || AggregateFold(Rc::clone(&function)),
            move || ThenAlone(Rc::clone(&emit)),
        )
    }
}
