//! How records come to windows: by their key, by time, and too late.

use std::{marker::PhantomData, rc::Rc};

use engine_rows::row::{NO_TIMESTAMP, Rows};

use super::TimeWindow;
use crate::{
    bindings::exports::engine::plugin::operator_chain::TimeDomain,
    current,
    data_stream::OutputTag,
    error::Error,
    key::{KeySelector, encode_key_of, hash_of},
    metrics::Counter,
    operator::{Element, SideOutputs},
    record::{Key, Owned, Record},
    state::{ListCache, Timer, Timers, ValueCache},
};

/// Name of the metric that counts late records which nobody wanted.
pub(crate) const LATE_RECORDS_DROPPED: &str = "numLateRecordsDropped";
/// Name of the metric that counts late records, wanted or not.
pub(crate) const LATE_RECORDS: &str = "numLateRecords";

/// What all window operators know of the records that come in.
pub(crate) struct WindowInput<T: ?Sized, K: ?Sized, S> {
    selector: Rc<S>,
    pub(crate) time: WindowTime,
    pub(crate) late: LateRecords<T>,
    /// The encoded key of the record that is being processed.
    pub(crate) key: Vec<u8>,
    _key: PhantomData<Rc<K>>,
}

impl<T, K, S> WindowInput<T, K, S>
where
    T: Record + ?Sized,
    K: Key + ?Sized,
    S: KeySelector<T, K>,
{
    pub(crate) fn new(selector: Rc<S>, time: WindowTime, late: LateRecords<T>) -> Self {
        Self { selector, time, late, key: Vec::new(), _key: PhantomData }
    }

    /// Takes the key of a record, and returns its hash.
    #[inline]
    pub(crate) fn take_key(&mut self, record: T::Ref<'_>, element: Element) -> u32 {
        let Self { selector, key: encoded, .. } = self;
        encoded.clear();
        selector.with_key(record, |key| K::encode(key, encoded));
        hash_of(encoded, element.key_hash)
    }

    /// A record that no window took.
    #[cold]
    pub(crate) fn take_late(&self, record: T::View<'_>, element: Element, sides: &mut SideOutputs) {
        self.late.take(record, element, &self.time, sides);
    }

    /// First pass over the rows of a batch for a cache with an entry for each row: what they will
    /// need is read in one go. `namespace` is that of a record's time; none if it has no entry.
    pub(crate) fn prefetch_rows<V: Owned, N: AsRef<[u8]>>(
        &self,
        cache: &mut ValueCache<V>,
        rows: &[u8],
        mut namespace: impl FnMut(i64) -> Option<N>,
    ) {
        cache.begin_batch();
        if cache.wants_prefetch() {
            let namespace = |timestamp| namespace(self.time.of_row(timestamp));
            cache.prefetch_rows(rows, namespace, |payload, out| {
                encode_key_of::<T, K, S>(&self.selector, payload, out);
            });
        }
    }

    /// First pass over the rows of a batch: what they will need of a cache is read in one go.
    /// `namespaces` names those of a record by its time.
    pub(crate) fn prefetch(
        &self,
        cache: &mut impl ReadAhead,
        rows: &[u8],
        mut namespaces: impl FnMut(i64, &mut dyn FnMut(&[u8])),
    ) {
        cache.begin_batch();
        if cache.is_complete() {
            return;
        }
        for (index, row) in (0_u32..).zip(Rows::new(rows).map_while(Result::ok)) {
            let time = self.time.of_row(row.timestamp);
            namespaces(time, &mut |namespace| {
                cache.prefetch(row.key_hash, namespace, |out| {
                    current::enter_row(index);
                    encode_key_of::<T, K, S>(&self.selector, row.payload, out);
                });
            });
        }
        current::enter_row(current::NO_ROW);
        cache.fetch();
    }
}

/// The time of a window operator.
pub(crate) struct WindowTime {
    pub(crate) domain: TimeDomain,
    /// True if a record needs a timestamp.
    pub(crate) needs_timestamp: bool,
    /// Milliseconds; 0 in processing time.
    pub(crate) allowed_lateness: i64,
    pub(crate) timers: Timers,
}

impl WindowTime {
    /// The time by which a record is assigned to windows; none if it was rejected for having none.
    #[inline]
    pub(crate) fn of(&self, element: Element) -> Option<i64> {
        match self.domain {
            TimeDomain::ProcessingTime => Some(self.timers.processing_time()),
            TimeDomain::EventTime if element.timestamp == NO_TIMESTAMP && self.needs_timestamp => no_timestamp(),
            TimeDomain::EventTime => Some(element.timestamp),
        }
    }

    /// The time by which a row with this timestamp is assigned to windows.
    fn of_row(&self, timestamp: i64) -> i64 {
        match self.domain {
            TimeDomain::EventTime => timestamp,
            TimeDomain::ProcessingTime => self.timers.processing_time(),
        }
    }

    /// The time at which a window is given up; `i64::MAX` is never reached.
    #[inline]
    pub(crate) fn cleanup_time(&self, window: TimeWindow) -> i64 {
        window.cleanup_time(self.allowed_lateness)
    }

    /// True if the window was given up.
    #[inline]
    pub(crate) fn is_late(&self, window: TimeWindow) -> bool {
        match self.domain {
            TimeDomain::EventTime => self.cleanup_time(window) <= self.timers.watermark(),
            TimeDomain::ProcessingTime => false,
        }
    }

    /// True if a record that no window took counts as late.
    pub(crate) fn is_record_late(&self, timestamp: i64) -> bool {
        self.domain == TimeDomain::EventTime
            && timestamp.saturating_add(self.allowed_lateness) <= self.timers.watermark()
    }

    /// True if the watermark has passed the window: records that it still takes make it fire at once.
    #[inline]
    pub(crate) fn has_passed(&self, window: TimeWindow) -> bool {
        match self.domain {
            TimeDomain::EventTime => window.max_timestamp() <= self.timers.watermark(),
            TimeDomain::ProcessingTime => false,
        }
    }

    /// The last time whose timers have surely fired.
    #[inline]
    pub(crate) fn passed(&self) -> i64 {
        match self.domain {
            TimeDomain::EventTime => self.timers.watermark(),
            TimeDomain::ProcessingTime => self.timers.processing_time() - 1,
        }
    }

    pub(crate) fn register(&self, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        self.timers.register(self.domain, timestamp, hash, key, namespace);
    }

    /// Registers a timer that is not registered yet.
    pub(crate) fn register_new(&self, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        self.timers.register_new(self.domain, timestamp, hash, key, namespace);
    }

    pub(crate) fn delete(&self, timestamp: i64, hash: u32, key: &[u8], namespace: &[u8]) {
        self.timers.delete(self.domain, timestamp, hash, key, namespace);
    }

    /// Lets the only timer of a key fire at `timestamp` instead of `timer`, if that is later.
    #[inline]
    pub(crate) fn advance_timer(&self, timer: &mut i64, timestamp: i64, hash: u32, key: &[u8]) {
        if timestamp < *timer {
            if *timer != i64::MAX {
                self.delete(*timer, hash, key, &[]);
            }
            self.register_new(timestamp, hash, key, &[]);
            *timer = timestamp;
        }
    }
}

#[cold]
fn no_timestamp() -> Option<i64> {
    let message = "the record has no timestamp, which event-time windows need: \
                   use `assign_timestamps_and_watermarks` before `key_by`";
    current::reject(current::node(), &Error::new(message));
    None
}

/// Where records go that no window takes.
pub(crate) struct LateRecords<T: ?Sized> {
    side_output: Option<OutputTag<T>>,
    all: Counter,
    dropped: Counter,
}

impl<T: Record + ?Sized> LateRecords<T> {
    pub(crate) fn new(side_output: Option<OutputTag<T>>) -> Self {
        Self { side_output, all: Counter::new(LATE_RECORDS), dropped: Counter::new(LATE_RECORDS_DROPPED) }
    }

    /// Takes a record that no window took; one that is not late itself is dropped in silence.
    #[cold]
    pub(crate) fn take(&self, record: T::View<'_>, element: Element, time: &WindowTime, sides: &mut SideOutputs) {
        if !time.is_record_late(element.timestamp) {
            return;
        }
        self.all.inc();
        match &self.side_output {
            Some(tag) => sides.output(tag, element.timestamp, record),
            None => self.dropped.inc(),
        }
    }
}

/// A cache that can read what a call will need in one go.
pub(crate) trait ReadAhead {
    fn begin_batch(&mut self);
    fn is_complete(&self) -> bool;
    fn prefetch(&mut self, hash: u32, namespace: &[u8], key: impl FnOnce(&mut Vec<u8>));
    fn fetch(&mut self);
}

macro_rules! read_ahead {
    ([$($generics:tt)*] $cache:ty) => {
        impl<$($generics)*> ReadAhead for $cache {
            fn begin_batch(&mut self) {
                self.begin_batch();
            }

            fn is_complete(&self) -> bool {
                self.is_complete()
            }

            fn prefetch(&mut self, hash: u32, namespace: &[u8], key: impl FnOnce(&mut Vec<u8>)) {
                self.prefetch(hash, namespace, key);
            }

            fn fetch(&mut self) {
                self.fetch();
            }
        }
    };
}

read_ahead!([V: Owned] ValueCache<V>);
read_ahead!([T: Record + ?Sized] ListCache<T>);

/// First pass over the timers of a call.
pub(crate) fn prefetch_timers(cache: &mut impl ReadAhead, timers: &[Timer<'_>]) {
    cache.begin_batch();
    if cache.is_complete() {
        return;
    }
    for timer in timers {
        cache.prefetch(timer.hash, timer.namespace, |out| out.extend_from_slice(timer.key));
    }
    cache.fetch();
}
