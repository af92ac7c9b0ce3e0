//! What windows with triggers keep, and what they make of it when they are evaluated.

use std::rc::Rc;

use super::{
    Evictor, TimeWindow, WindowElements,
    emit::{Emit, emit_result},
    input::ReadAhead,
};
use crate::{
    collector::Collector,
    error::Result,
    operator::{Fold, RuntimeContext, SideOutputs},
    record::{Key, Pair, Record},
    state::{ListCache, Timer, Timers, ValueCache},
};

/// The content of a window: its key, and the window under which it is kept.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) hash: u32,
    pub(crate) key: &'a [u8],
    /// The window; of sessions that merged, the one of them whose state is kept.
    pub(crate) state_window: TimeWindow,
}

/// Keeps what windows come to.
pub(crate) trait Contents<T: Record + ?Sized, K: Key + ?Sized, U: Record + ?Sized>: 'static {
    type Cache: ReadAhead;

    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, runtime: &RuntimeContext) -> Result<()>;

    /// Begins a batch of rows, or of these timers, for what user code keeps.
    fn begin_function(&mut self, timers: &[Timer<'_>]);

    /// The cache of the contents.
    fn cache(&mut self) -> &mut Self::Cache;

    /// Adds a record.
    ///
    /// # Errors
    /// Returns the error of the aggregation.
    fn add(&mut self, place: Place<'_>, record: T::Ref<'_>, timestamp: i64) -> Result<()>;

    /// Adds what another window of the key came to, and empties that one.
    ///
    /// # Errors
    /// Returns the error of the aggregation.
    fn merge(&mut self, place: Place<'_>, other: TimeWindow) -> Result<()>;

    /// Evaluates a window, unless it is empty.
    ///
    /// # Errors
    /// Returns the error of user code.
    fn fire(&mut self, place: Place<'_>, at: FiringAt<'_>, out: &mut Collector<U>) -> Result<()>;

    /// Drops the content.
    fn clear(&mut self, place: Place<'_>);

    /// The window is given up: drops what user code keeps of it.
    ///
    /// # Errors
    /// Returns the error of user code.
    fn clear_function(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()>;

    fn flush(&mut self);
}

/// Aggregates record by record.
pub(crate) struct Aggregated<T: Record + ?Sized, A: Fold<T>, E> {
    pub(crate) fold: A,
    pub(crate) evaluate: E,
    pub(crate) values: ValueCache<A::State>,
}

impl<T, K, U, A, E> Contents<T, K, U> for Aggregated<T, A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    A: Fold<T>,
    E: Evaluate<K, A::Output, U>,
{
    type Cache = ValueCache<A::State>;

    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.evaluate.open(runtime)
    }

    fn begin_function(&mut self, timers: &[Timer<'_>]) {
        self.evaluate.begin_batch(timers);
    }

    fn cache(&mut self) -> &mut Self::Cache {
        &mut self.values
    }

    fn add(&mut self, place: Place<'_>, record: T::Ref<'_>, _: i64) -> Result<()> {
        let slot = self.values.slot(place.hash, place.key, &place.state_window.namespace());
        self.fold.add(self.values.value(slot), record)
    }

    fn merge(&mut self, place: Place<'_>, other: TimeWindow) -> Result<()> {
        let other = self.values.slot(place.hash, place.key, &other.namespace());
        let Some(content) = self.values.value(other).take() else {
            return Ok(());
        };
        let slot = self.values.slot(place.hash, place.key, &place.state_window.namespace());
        self.fold.merge(self.values.value(slot), content)
    }

    fn fire(&mut self, place: Place<'_>, at: FiringAt<'_>, out: &mut Collector<U>) -> Result<()> {
        let slot = self.values.slot(place.hash, place.key, &place.state_window.namespace());
        match self.values.get(slot) {
            Some(content) => self.evaluate.evaluate(place, at, self.fold.result(content), out),
            None => Ok(()),
        }
    }

    fn clear(&mut self, place: Place<'_>) {
        let slot = self.values.slot(place.hash, place.key, &place.state_window.namespace());
        *self.values.value(slot) = None;
    }

    fn clear_function(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()> {
        self.evaluate.clear(place, at)
    }

    fn flush(&mut self) {
        self.values.flush();
        self.evaluate.flush();
    }
}

/// Keeps all records with their timestamps.
pub(crate) struct Listed<T: Record + ?Sized, E> {
    pub(crate) evictor: Option<Rc<dyn Evictor<T>>>,
    pub(crate) evaluate: E,
    pub(crate) elements: ListCache<Pair<T, i64>>,
}

impl<T, K, U, E> Contents<T, K, U> for Listed<T, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    E: for<'e> Evaluate<K, &'e WindowElements<T>, U>,
{
    type Cache = ListCache<Pair<T, i64>>;

    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.evaluate.open(runtime)
    }

    fn begin_function(&mut self, timers: &[Timer<'_>]) {
        self.evaluate.begin_batch(timers);
    }

    fn cache(&mut self) -> &mut Self::Cache {
        &mut self.elements
    }

    fn add(&mut self, place: Place<'_>, record: T::Ref<'_>, timestamp: i64) -> Result<()> {
        let slot = self.elements.slot(place.hash, place.key, &place.state_window.namespace());
        self.elements.append(slot, (T::shorten(record), &timestamp));
        Ok(())
    }

    fn merge(&mut self, place: Place<'_>, other: TimeWindow) -> Result<()> {
        let from = self.elements.slot(place.hash, place.key, &other.namespace());
        let to = self.elements.slot(place.hash, place.key, &place.state_window.namespace());
        self.elements.move_to(from, to);
        Ok(())
    }

    fn fire(&mut self, place: Place<'_>, at: FiringAt<'_>, out: &mut Collector<U>) -> Result<()> {
        let slot = self.elements.slot(place.hash, place.key, &place.state_window.namespace());
        let mut elements = WindowElements::new();
        self.elements.for_each(slot, |(record, timestamp)| elements.push(record, timestamp));
        if elements.is_empty() {
            return Ok(());
        }
        let Some(evictor) = &self.evictor else {
            return self.evaluate.evaluate(place, at, &elements, out);
        };
        let (count, window) = (elements.len(), at.window);
        evictor.evict_before(&mut elements, window);
        let evaluated = self.evaluate.evaluate(place, at, &elements, out);
        evictor.evict_after(&mut elements, window);
        if elements.len() < count {
            self.elements.clear(slot);
            elements.for_each_with_timestamp(|record, timestamp| {
                self.elements.append(slot, (T::shorten(record), &timestamp));
            });
        }
        evaluated
    }

    fn clear(&mut self, place: Place<'_>) {
        let slot = self.elements.slot(place.hash, place.key, &place.state_window.namespace());
        self.elements.clear(slot);
    }

    fn clear_function(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()> {
        self.evaluate.clear(place, at)
    }

    fn flush(&mut self) {
        self.elements.flush();
        self.evaluate.flush();
    }
}

/// A window that is evaluated, or given up.
pub(crate) struct FiringAt<'f> {
    pub(crate) window: TimeWindow,
    pub(crate) timers: &'f Timers,
    pub(crate) sides: &'f mut SideOutputs,
}

/// Makes records of what a window came to.
pub(crate) trait Evaluate<K: Key + ?Sized, C, U: Record + ?Sized>: 'static {
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _runtime: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// # Errors
    /// Returns the error of user code.
    fn evaluate(&mut self, place: Place<'_>, at: FiringAt<'_>, content: C, out: &mut Collector<U>) -> Result<()>;

    /// The window is given up.
    ///
    /// # Errors
    /// Returns the error of user code.
    fn clear(&mut self, _place: Place<'_>, _at: FiringAt<'_>) -> Result<()> {
        Ok(())
    }

    /// Begins a batch of rows, or of these timers.
    fn begin_batch(&mut self, _timers: &[Timer<'_>]) {}

    fn flush(&mut self) {}
}

/// Hands on the result of an aggregation.
pub(crate) struct EmitResult<E>(pub(crate) E);

impl<K, R, U, E> Evaluate<K, R, U> for EmitResult<E>
where
    K: Key + ?Sized,
    U: Record + ?Sized,
    E: Emit<K, R, U>,
{
    fn evaluate(&mut self, place: Place<'_>, at: FiringAt<'_>, result: R, out: &mut Collector<U>) -> Result<()> {
        emit_result::<K, _, _>(&self.0, place.key, at.window, result, out);
        Ok(())
    }
}

/// Aggregates all records of a window each time that it is evaluated, since an evictor may have
/// taken some; if it took all, the result is that of no records, if there is one.
pub(crate) struct FoldElements<A, E> {
    pub(crate) fold: A,
    pub(crate) evaluate: E,
}

impl<T, K, U, A, E> Evaluate<K, &WindowElements<T>, U> for FoldElements<A, E>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    U: Record + ?Sized,
    A: Fold<T>,
    E: Evaluate<K, A::Output, U>,
{
    fn evaluate(
        &mut self,
        place: Place<'_>,
        at: FiringAt<'_>,
        elements: &WindowElements<T>,
        out: &mut Collector<U>,
    ) -> Result<()> {
        let mut content = None;
        elements.try_for_each(|record| self.fold.add(&mut content, record))?;
        match content.or_else(|| self.fold.of_none()) {
            Some(content) => self.evaluate.evaluate(place, at, self.fold.result(&content), out),
            None => Ok(()),
        }
    }

    fn open(&mut self, runtime: &RuntimeContext) -> Result<()> {
        self.evaluate.open(runtime)
    }

    fn clear(&mut self, place: Place<'_>, at: FiringAt<'_>) -> Result<()> {
        self.evaluate.clear(place, at)
    }

    fn begin_batch(&mut self, timers: &[Timer<'_>]) {
        self.evaluate.begin_batch(timers);
    }

    fn flush(&mut self) {
        self.evaluate.flush();
    }
}
