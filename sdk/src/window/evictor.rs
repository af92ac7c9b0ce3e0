//! Evictors: which records of a window are taken out before or after it is evaluated.

use std::{marker::PhantomData, time::Duration};

use engine_rows::row::NO_TIMESTAMP;

use super::TimeWindow;
use crate::{
    error::Result,
    record::{Owned, Record},
};

/// The records of a window, in the order in which they came.
pub struct WindowElements<T: ?Sized> {
    elements: Vec<Element>,
    /// The encoded records, some of which may be gone from `elements`.
    bytes: Vec<u8>,
    _record: PhantomData<T>,
}

struct Element {
    /// Milliseconds since the Unix epoch, or [`NO_TIMESTAMP`].
    timestamp: i64,
    /// Range of `bytes`.
    start: usize,
    end: usize,
}

impl<T: Record + ?Sized> WindowElements<T> {
    pub(crate) fn new() -> Self {
        Self { elements: Vec::new(), bytes: Vec::new(), _record: PhantomData }
    }

    pub(crate) fn push(&mut self, record: T::Ref<'_>, timestamp: i64) {
        let start = self.bytes.len();
        T::encode(record, &mut self.bytes);
        self.elements.push(Element { timestamp, start, end: self.bytes.len() });
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.elements.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.elements.is_empty()
    }

    /// Lends each record.
    pub fn for_each(&self, mut f: impl FnMut(T::View<'_>)) {
        self.elements.iter().for_each(|element| decode::<T, _>(&self.bytes, element, &mut f));
    }

    /// Lends each record, until the closure returns an error.
    ///
    /// # Errors
    /// Returns the error of the closure.
    pub fn try_for_each(&self, mut f: impl FnMut(T::Ref<'_>) -> Result<()>) -> Result<()> {
        self.elements.iter().try_for_each(|element| decode::<T, _>(&self.bytes, element, |record| f(T::peek(&record))))
    }

    pub(crate) fn for_each_with_timestamp(&self, mut f: impl FnMut(T::Ref<'_>, i64)) {
        for element in &self.elements {
            decode::<T, _>(&self.bytes, element, |record| f(T::peek(&record), element.timestamp));
        }
    }

    /// Timestamps of the records in milliseconds since the Unix epoch.
    pub fn timestamps(&self) -> impl Iterator<Item = Option<i64>> {
        self.elements.iter().map(Element::timestamp)
    }

    /// Keeps the records that the closure holds for, given each with its timestamp.
    pub fn retain(&mut self, mut f: impl FnMut(T::Ref<'_>, Option<i64>) -> bool) {
        let Self { elements, bytes, .. } = self;
        elements.retain(|element| decode::<T, _>(bytes, element, |record| f(T::peek(&record), element.timestamp())));
    }

    /// Takes out the first records.
    pub fn remove_first(&mut self, count: usize) {
        self.elements.drain(..count.min(self.elements.len()));
    }
}

impl<T: Owned> WindowElements<T> {
    /// The records.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        self.elements.iter().map(|element| decode::<T, _>(&self.bytes, element, |record| record))
    }
}

impl Element {
    fn timestamp(&self) -> Option<i64> {
        (self.timestamp != NO_TIMESTAMP).then_some(self.timestamp)
    }
}

fn decode<T: Record + ?Sized, R>(bytes: &[u8], element: &Element, f: impl FnOnce(T::View<'_>) -> R) -> R {
    T::decode(&bytes[element.start..element.end], f).expect("windows keep records as they were encoded")
}

/// Takes records out of a window. With one, a window keeps all its records, and they are
/// aggregated each time that it is evaluated.
pub trait Evictor<T: Record + ?Sized>: 'static {
    /// Called before the window is evaluated.
    fn evict_before(&self, _elements: &mut WindowElements<T>, _window: TimeWindow) {}

    /// Called after the window was evaluated.
    fn evict_after(&self, _elements: &mut WindowElements<T>, _window: TimeWindow) {}
}

/// When an evictor does its work.
#[derive(Clone, Copy, Debug)]
enum Evict {
    Before,
    After,
}

macro_rules! evicts {
    ([$($generics:tt)*] $type:ty, $record:ty) => {
        impl<$($generics)*> Evictor<$record> for $type {
            fn evict_before(&self, elements: &mut WindowElements<$record>, _: TimeWindow) {
                if let Evict::Before = self.evict {
                    self.evict(elements);
                }
            }

            fn evict_after(&self, elements: &mut WindowElements<$record>, _: TimeWindow) {
                if let Evict::After = self.evict {
                    self.evict(elements);
                }
            }
        }
    };
}

/// Keeps the last records up to a number.
#[derive(Clone, Copy, Debug)]
pub struct CountEvictor {
    count_max: usize,
    evict: Evict,
}

impl CountEvictor {
    /// Keeps at most this many records, and evicts the others before the window is evaluated.
    pub fn of(count_max: usize) -> Self {
        Self { count_max, evict: Evict::Before }
    }

    /// Evicts after the window was evaluated.
    #[must_use]
    pub fn after(self) -> Self {
        Self { evict: Evict::After, ..self }
    }

    fn evict<T: Record + ?Sized>(&self, elements: &mut WindowElements<T>) {
        elements.remove_first(elements.len().saturating_sub(self.count_max));
    }
}

evicts!([T: Record + ?Sized] CountEvictor, T);

/// Keeps the records that are newer than the newest less a time.
#[derive(Clone, Copy, Debug)]
pub struct TimeEvictor {
    window_size: i64,
    evict: Evict,
}

impl TimeEvictor {
    /// Evicts records with a timestamp at or below the highest less this time, before the window
    /// is evaluated. Records without timestamp stay.
    pub fn of(window_size: Duration) -> Self {
        let window_size = i64::try_from(window_size.as_millis()).unwrap_or(i64::MAX);
        Self { window_size, evict: Evict::Before }
    }

    /// Evicts after the window was evaluated.
    #[must_use]
    pub fn after(self) -> Self {
        Self { evict: Evict::After, ..self }
    }

    fn evict<T: Record + ?Sized>(&self, elements: &mut WindowElements<T>) {
        let Some(newest) = elements.timestamps().flatten().max() else {
            return;
        };
        let cutoff = newest.saturating_sub(self.window_size);
        elements.elements.retain(|element| element.timestamp().is_none_or(|timestamp| cutoff < timestamp));
    }
}

evicts!([T: Record + ?Sized] TimeEvictor, T);

/// Keeps the records that are closer to the last one than a threshold.
#[derive(Clone, Copy, Debug)]
pub struct DeltaEvictor<F> {
    threshold: f64,
    delta: F,
    evict: Evict,
}

impl<F> DeltaEvictor<F> {
    /// Evicts records for which `delta(record, last record)` is at or above the threshold, before
    /// the window is evaluated.
    pub fn of<T: Owned>(threshold: f64, delta: F) -> Self
    where
        F: Fn(&T, &T) -> f64 + 'static,
    {
        Self { threshold, delta, evict: Evict::Before }
    }

    /// Evicts after the window was evaluated.
    #[must_use]
    pub fn after(self) -> Self {
        Self { evict: Evict::After, ..self }
    }

    fn evict<T: Owned>(&self, elements: &mut WindowElements<T>)
    where
        F: Fn(&T, &T) -> f64 + 'static,
    {
        let Some(last) = elements.elements.last() else {
            return;
        };
        let last = decode::<T, _>(&elements.bytes, last, |record| record);
        elements.retain(|record, _| (self.delta)(record, &last) < self.threshold);
    }
}

evicts!([T: Owned, F: Fn(&T, &T) -> f64 + 'static] DeltaEvictor<F>, T);

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: TimeWindow = TimeWindow { start: 0, end: 100 };

    fn elements(records: &[(i64, i64)]) -> WindowElements<i64> {
        let mut elements = WindowElements::new();
        records.iter().for_each(|(timestamp, record)| elements.push(record, *timestamp));
        elements
    }

    #[test]
    fn delta_evicts_at_the_threshold() {
        #[expect(clippy::cast_precision_loss, reason = "small numbers")]
        let evictor = DeltaEvictor::of(5.0, |record: &i64, last: &i64| (last - record) as f64);
        let mut window = elements(&[(0, 1), (1, 5), (2, 6), (3, 10)]);
        evictor.evict_after(&mut window, WINDOW);
        assert_eq!(window.len(), 4);
        evictor.evict_before(&mut window, WINDOW);
        assert_eq!(window.iter().collect::<Vec<_>>(), [6, 10]);
        evictor.evict_before(&mut elements(&[]), WINDOW);
    }

    #[test]
    fn evictors_work_after_the_evaluation_if_told_so() {
        let mut window = elements(&[(0, 1), (10, 2), (20, 3)]);
        let evictor = CountEvictor::of(2).after();
        evictor.evict_before(&mut window, WINDOW);
        assert_eq!(window.len(), 3);
        evictor.evict_after(&mut window, WINDOW);
        assert_eq!(window.iter().collect::<Vec<_>>(), [2, 3]);
        let evictor = TimeEvictor::of(Duration::from_millis(10)).after();
        evictor.evict_before(&mut window, WINDOW);
        evictor.evict_after(&mut window, WINDOW);
        assert_eq!(window.iter().collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn time_leaves_records_without_timestamp() {
        let mut window = elements(&[(NO_TIMESTAMP, 1), (NO_TIMESTAMP, 2)]);
        TimeEvictor::of(Duration::ZERO).evict_before(&mut window, WINDOW);
        assert_eq!(window.len(), 2);
    }
}
