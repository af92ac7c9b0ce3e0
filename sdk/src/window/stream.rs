//! Streams in windows: what programs call.

use std::{rc::Rc, time::Duration};

use super::{
    Evictor, ProcessWindowFunction, TimeWindow, Trigger, WindowAssigner,
    assigner::{WindowKind, Windows},
    contents::{Aggregated, Contents, EmitResult, Evaluate, FoldElements, Listed},
    emit::{Alone, Emit, Then, ThenAlone, WithKey},
    input::{LateRecords, WindowInput, WindowTime},
    panes::Panes,
    process::{ProcessElements, ProcessResult, Processing, WindowStates},
    session_windows::SessionWindows,
    sessions::Sessions,
    sliding_windows::{PaneOf, SlidingWindows},
    trigger::AssignerTrigger,
    triggered_windows::{MergedWindow, TriggerStates, TriggeredWindows},
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
/// Name of the state that holds what triggers keep.
const TRIGGER: &str = "window-trigger";
/// Name of the state that holds the sessions of a key, where they have triggers.
const SESSIONS: &str = "window-sessions";
/// Kind of the operators that aggregate.
const KIND: &str = "WindowAggregate";

/// A keyed stream in windows: one result for each key and window.
///
/// Results carry the last millisecond of their window as timestamp. The functions that
/// end in `_then` take a closure that makes records of key, window and result.
pub struct WindowedStream<T: Record + ?Sized, K: ?Sized, S, X = DefaultTrigger> {
    keyed: KeyedStream<T, K, S>,
    /// None if the assigner was refused.
    windows: Option<Windows<T>>,
    allowed_lateness: i64,
    late_output: Option<OutputTag<T>>,
    evaluation: X,
}

/// Windows are evaluated when their assigner says.
#[derive(Clone, Copy, Debug)]
pub struct DefaultTrigger;

/// Windows are evaluated when a trigger says, and may be rid of records by an evictor.
pub struct Triggered<T: Record + ?Sized, R> {
    trigger: Rc<R>,
    evictor: Option<Rc<dyn Evictor<T>>>,
    /// True if the trigger is that of an assigner whose windows never fire.
    lacks_trigger: bool,
}

impl<T: Record + ?Sized, R> Clone for Triggered<T, R> {
    fn clone(&self) -> Self {
        Self { trigger: Rc::clone(&self.trigger), evictor: self.evictor.clone(), lacks_trigger: self.lacks_trigger }
    }
}

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

/// True if there is something to keep for a trigger.
fn keeps_state<T: Record + ?Sized, R: Trigger<T>>() -> bool {
    size_of::<R::State>() != 0
}

fn elements_state<T: Record + ?Sized>() -> StateDeclaration {
    state::<Pair<T, i64>>(CONTENTS, StateKind::List)
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

/// How windows are evaluated.
pub trait Evaluation<T: Record + ?Sized>: Sized {
    /// The trigger.
    type Trigger: Trigger<T>;

    /// The trigger and the evictor, for windows of an assigner.
    fn triggered(&self, windows: Option<&Windows<T>>) -> Triggered<T, Self::Trigger>;

    /// Adds an operator that aggregates.
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

impl<T: Record + ?Sized, R: Trigger<T>> Evaluation<T> for Triggered<T, R> {
    type Trigger = R;

    fn triggered(&self, _: Option<&Windows<T>>) -> Self {
        self.clone()
    }

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
        stream.folded(name, fold, Vec::new(), move |_| EmitResult(emit()))
    }
}

impl<T: Record + ?Sized> Evaluation<T> for DefaultTrigger {
    type Trigger = AssignerTrigger;

    fn triggered(&self, windows: Option<&Windows<T>>) -> Triggered<T, AssignerTrigger> {
        let trigger = match windows {
            Some(Windows { kind: WindowKind::Global(false), .. }) | None => AssignerTrigger::Never,
            Some(Windows { domain: TimeDomain::EventTime, .. }) => AssignerTrigger::EventTime,
            Some(Windows { domain: TimeDomain::ProcessingTime, .. }) => AssignerTrigger::ProcessingTime,
        };
        let lacks_trigger = matches!(windows, Some(Windows { kind: WindowKind::Global(false), .. }));
        Triggered { trigger: Rc::new(trigger), evictor: None, lacks_trigger }
    }

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
                stream.never_fires();
                None
            }
            Some(WindowKind::Session(gap)) => {
                let states = vec![state::<Sessions<A::State>>(CONTENTS, StateKind::Value)];
                return stream.operator((name, KIND), states, move |input, states| SessionWindows {
                    input,
                    gap: gap.clone(),
                    fold: fold(),
                    emit: emit(),
                    sessions: states.value(CONTENTS),
                });
            }
            Some(WindowKind::Aligned(windows)) if windows.slide < windows.size => {
                let states = vec![state::<Panes<A::State>>(CONTENTS, StateKind::Value)];
                return stream.operator((name, KIND), states, move |input, states| SlidingWindows {
                    input,
                    windows: PaneOf::new(windows),
                    firing: None,
                    fold: fold(),
                    emit: emit(),
                    panes: states.value(CONTENTS),
                });
            }
            Some(WindowKind::Aligned(windows)) => Some(windows),
        };
        let taken_at_end = windows.is_none();
        let contents = StateDeclaration { taken_at_end, ..state::<A::State>(CONTENTS, StateKind::Aggregating) };
        let states = vec![contents];
        stream.operator((name, KIND), states, move |input, states| TumblingWindows {
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
    /// again, each with all of its content. Where windows overlap, a late record has a result for
    /// each of its windows that has passed, at the cost of a few merges each. Windows of processing
    /// time are not kept.
    #[must_use]
    pub fn allowed_lateness(mut self, lateness: Duration) -> Self {
        self.allowed_lateness = i64::try_from(lateness.as_millis()).unwrap_or(i64::MAX);
        self
    }

    /// Sends records that are too late for all of their windows to a side output, taken from the
    /// results with [`DataStream::get_side_output`]; without one, they are dropped and counted
    /// in `numLateRecordsDropped`. `numLateRecords` counts them in both cases. Watermarks are made every `pipeline.auto-watermark-interval`
    /// (200 ms), so that a small file has no late records: to see some in a test, call
    /// `TestHarness::set_processing_time` between two records.
    #[must_use]
    pub fn side_output_late_data(mut self, tag: &OutputTag<T>) -> Self {
        self.late_output = Some(tag.clone());
        self
    }

    /// Adds an operator behind the keyed stream.
    fn operator<U, F>(
        &self,
        (name, kind): (&str, &str),
        states: Vec<StateDeclaration>,
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
        let name = format!("Window({name})");
        self.keyed.keyed_operator((&name, kind), states, move |selector, states| {
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
    /// Has windows evaluated when the trigger says, instead of when their assigner does. Records
    /// are added to each window one by one then, also where windows overlap.
    #[must_use]
    pub fn trigger<R: Trigger<T>>(self, trigger: R) -> WindowedStream<T, K, S, Triggered<T, R>> {
        let evictor = self.evaluation.triggered(self.windows.as_ref()).evictor;
        self.evaluated(Triggered { trigger: Rc::new(trigger), evictor, lacks_trigger: false })
    }

    /// Has records taken out of windows before or after they are evaluated. Windows keep all
    /// their records then. What one key and window keep together is bounded by `state.value.bytes-max`.
    ///
    /// As in Flink, a window that the evictor leaves no record has a result all the same: what
    /// `aggregate` makes of an empty accumulator, a count of 0, no elements for `process`. Only `reduce`,
    /// `sum`, `min` and `max` have none.
    #[must_use]
    pub fn evictor(self, evictor: impl Evictor<T>) -> WindowedStream<T, K, S, Triggered<T, X::Trigger>> {
        let triggered = self.evaluation.triggered(self.windows.as_ref());
        self.evaluated(Triggered { evictor: Some(Rc::new(evictor)), ..triggered })
    }

    fn evaluated<Y>(self, evaluation: Y) -> WindowedStream<T, K, S, Y> {
        let Self { keyed, windows, allowed_lateness, late_output, .. } = self;
        WindowedStream { keyed, windows, allowed_lateness, late_output, evaluation }
    }

    /// Hands all records of each key and window to a function; windows keep them until then. The
    /// closure makes the function and its states; see [`crate::States`]. The records of one key
    /// and window are bounded by `state.value.bytes-max`.
    pub fn process<P, M>(&self, make: M) -> DataStream<P::Output>
    where
        P: ProcessWindowFunction<K, T>,
        M: Fn(&mut WindowStates) -> P + 'static,
    {
        let evictor = self.evaluation.triggered(self.windows.as_ref()).evictor;
        let declared = self.declared_by(&make);
        self.triggered(("Process", "WindowProcess"), elements_state::<T>(), declared, move |states| Listed {
            evictor: evictor.clone(),
            evaluate: ProcessElements(Processing::make(states, &make)),
            elements: states.list(CONTENTS),
        })
    }

    /// Aggregates the records of each key and window as they come, and hands the result to a
    /// function. The closure makes the function and its states; see [`crate::States`].
    ///
    /// Where windows overlap, each record is added to each of its windows; with
    /// [`WindowedStream::aggregate_then`] to one only.
    pub fn aggregate_with<A, P, M>(&self, aggregate: A, make: M) -> DataStream<P::Output>
    where
        A: AggregateFunction<T>,
        P: ProcessWindowFunction<K, A::Output>,
        M: Fn(&mut WindowStates) -> P + 'static,
    {
        let aggregate = Rc::new(aggregate);
        let declared = self.declared_by(&make);
        let fold = move || AggregateFold(Rc::clone(&aggregate));
        self.folded("Aggregate", fold, declared, move |states| ProcessResult(Processing::make(states, &make)))
    }

    /// The states of a function over windows.
    fn declared_by<P>(&self, make: impl FnOnce(&mut WindowStates) -> P) -> Vec<StateDeclaration> {
        let (mut declared, global) = WindowStates::declared_by(make);
        let is_session = matches!(&self.windows, Some(Windows { kind: WindowKind::Session(_), .. }));
        if let Some(state) = declared.first().filter(|_| is_session) {
            let message = format!(
                "state \"{}\" of each window: sessions merge, so they have none; declare it in `WindowStates::global`",
                state.name
            );
            self.keyed.graph.borrow_mut().error(message);
        }
        declared.extend(global);
        declared
    }

    /// Adds an operator that aggregates for a trigger: record by record, or all at once behind an evictor.
    fn folded<A, E, U>(
        &self,
        name: &str,
        fold: impl Fn() -> A + 'static,
        function_states: Vec<StateDeclaration>,
        evaluate: impl Fn(&StateBackend) -> E + 'static,
    ) -> DataStream<U>
    where
        A: Fold<T>,
        E: Evaluate<K, A::Output, U>,
        U: Record + ?Sized,
    {
        match self.evaluation.triggered(self.windows.as_ref()).evictor {
            None => {
                let contents = state::<A::State>(CONTENTS, StateKind::Aggregating);
                self.triggered((name, KIND), contents, function_states, move |states| Aggregated {
                    fold: fold(),
                    evaluate: evaluate(states),
                    values: states.value(CONTENTS),
                })
            }
            Some(evictor) => {
                self.triggered((name, KIND), elements_state::<T>(), function_states, move |states| Listed {
                    evictor: Some(Rc::clone(&evictor)),
                    evaluate: FoldElements { fold: fold(), evaluate: evaluate(states) },
                    elements: states.list(CONTENTS),
                })
            }
        }
    }

    /// Adds an operator that asks the trigger for each record.
    fn triggered<C, U>(
        &self,
        of: (&str, &str),
        contents_state: StateDeclaration,
        function_states: Vec<StateDeclaration>,
        contents: impl Fn(&StateBackend) -> C + 'static,
    ) -> DataStream<U>
    where
        C: Contents<T, K, U>,
        U: Record + ?Sized,
    {
        let Triggered { trigger, lacks_trigger, .. } = self.evaluation.triggered(self.windows.as_ref());
        if lacks_trigger {
            self.never_fires();
        }
        let kind = self.windows.as_ref().map_or(WindowKind::Global(true), |windows| windows.kind.clone());
        let is_session = matches!(kind, WindowKind::Session(_));
        if is_session && !trigger.can_merge() {
            let message = "trigger: sessions merge, which this trigger does not support (see Trigger::can_merge)";
            self.keyed.graph.borrow_mut().error(message.to_owned());
        }
        let mut states = vec![contents_state];
        if keeps_state::<T, X::Trigger>() {
            states.push(state::<<X::Trigger as Trigger<T>>::State>(TRIGGER, StateKind::Value));
        }
        if is_session {
            states.push(state::<Vec<MergedWindow>>(SESSIONS, StateKind::Value));
        }
        states.extend(function_states);
        self.operator(of, states, move |input, states| {
            let trigger = TriggerStates {
                trigger: Rc::clone(&trigger),
                states: keeps_state::<T, X::Trigger>().then(|| states.value(TRIGGER)),
                timers: states.timers(),
                requests: Vec::new(),
                registered: None,
            };
            let sessions = is_session.then(|| states.value(SESSIONS));
            TriggeredWindows { input, kind: kind.clone(), trigger, sessions, contents: contents(states) }
        })
    }

    fn never_fires(&self) {
        let message = "window(GlobalWindows::create()): such a window never fires; give it a `trigger`, \
                       or use `GlobalWindows::end_of_stream()`";
        self.keyed.graph.borrow_mut().error(message.to_owned());
    }

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
        self.aggregated("Count", || Count, Then::of(emit))
    }

    /// Sums a number of the records of each key and window; see [`KeyedStream::sum`].
    pub fn sum<N, F>(&self, number: F) -> DataStream<Pair<K, N>>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        self.aggregated("Sum", SumOf::of(number), || WithKey)
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
        self.aggregated("Sum", SumOf::of(number), Then::of(emit))
    }

    /// Finds the least value of the records of each key and window.
    pub fn min<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.aggregated("Min", MinOf::of(value), || WithKey)
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
        self.aggregated("Min", MinOf::of(value), Then::of(emit))
    }

    /// Finds the greatest value of the records of each key and window.
    pub fn max<V, F>(&self, value: F) -> DataStream<Pair<K, V>>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.aggregated("Max", MaxOf::of(value), || WithKey)
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
        self.aggregated("Max", MaxOf::of(value), Then::of(emit))
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
        self.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), Then::of(emit))
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
        self.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), Then::of(emit))
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
    /// As [`WindowedStream::trigger`].
    #[must_use]
    pub fn trigger<R: Trigger<T>>(self, trigger: R) -> AllWindowedStream<T, Triggered<T, R>> {
        AllWindowedStream { windowed: self.windowed.trigger(trigger) }
    }

    /// As [`WindowedStream::evictor`].
    #[must_use]
    pub fn evictor(self, evictor: impl Evictor<T>) -> AllWindowedStream<T, Triggered<T, X::Trigger>> {
        AllWindowedStream { windowed: self.windowed.evictor(evictor) }
    }

    /// As [`WindowedStream::process`], with `()` as the key.
    pub fn process<P, M>(&self, make: M) -> DataStream<P::Output>
    where
        P: ProcessWindowFunction<(), T>,
        M: Fn(&mut WindowStates) -> P + 'static,
    {
        self.windowed.process(make).set_parallelism(1)
    }

    /// As [`WindowedStream::aggregate_with`], with `()` as the key.
    pub fn aggregate_with<A, P, M>(&self, aggregate: A, make: M) -> DataStream<P::Output>
    where
        A: AggregateFunction<T>,
        P: ProcessWindowFunction<(), A::Output>,
        M: Fn(&mut WindowStates) -> P + 'static,
    {
        self.windowed.aggregate_with(aggregate, make).set_parallelism(1)
    }

    fn aggregated<A, E, U>(
        &self,
        name: &str,
        fold: impl Fn() -> A + 'static,
        emit: impl Fn() -> E + 'static,
    ) -> DataStream<U>
    where
        A: Fold<T>,
        E: Emit<(), A::Output, U>,
        U: Record + ?Sized,
    {
        self.windowed.aggregated(name, fold, emit).set_parallelism(1)
    }

    /// Counts the records of each window.
    pub fn count(&self) -> DataStream<u64> {
        self.aggregated("Count", || Count, || Alone)
    }

    /// As [`AllWindowedStream::count`], with a closure that makes records of window and result.
    pub fn count_then<U, E, O>(&self, emit: E) -> DataStream<U>
    where
        U: Record + ?Sized,
        E: Fn(TimeWindow, u64, &mut Collector<U>) -> O + 'static,
        O: Outcome,
    {
        self.aggregated("Count", || Count, ThenAlone::of(emit))
    }

    /// Sums a number of the records of each window; see [`KeyedStream::sum`].
    pub fn sum<N, F>(&self, number: F) -> DataStream<N>
    where
        N: Number,
        F: for<'a> Fn(T::Ref<'a>) -> N + 'static,
    {
        self.aggregated("Sum", SumOf::of(number), || Alone)
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
        self.aggregated("Sum", SumOf::of(number), ThenAlone::of(emit))
    }

    /// Finds the least value of the records of each window.
    pub fn min<V, F>(&self, value: F) -> DataStream<V>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.aggregated("Min", MinOf::of(value), || Alone)
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
        self.aggregated("Min", MinOf::of(value), ThenAlone::of(emit))
    }

    /// Finds the greatest value of the records of each window.
    pub fn max<V, F>(&self, value: F) -> DataStream<V>
    where
        V: Owned + PartialOrd + Clone,
        F: for<'a> Fn(T::Ref<'a>) -> V + 'static,
    {
        self.aggregated("Max", MaxOf::of(value), || Alone)
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
        self.aggregated("Max", MaxOf::of(value), ThenAlone::of(emit))
    }

    /// Reduces the records of each window to one.
    pub fn reduce<F>(&self, function: F) -> DataStream<T>
    where
        T: Owned + Clone,
        F: Fn(T, T) -> T + 'static,
    {
        let function = Rc::new(function);
        self.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), || Alone)
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
        self.aggregated("Reduce", move || ReduceFold(Rc::clone(&function)), ThenAlone::of(emit))
    }

    /// Aggregates the records of each window.
    pub fn aggregate<A>(&self, function: A) -> DataStream<A::Output>
    where
        A: AggregateFunction<T>,
    {
        let function = Rc::new(function);
        self.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), || Alone)
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
        self.aggregated("Aggregate", move || AggregateFold(Rc::clone(&function)), ThenAlone::of(emit))
    }
}
