//! What the caches of an operator do, as metrics of its node.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use super::table::CacheStats;
use crate::{
    current,
    metrics::{Counter, Gauge},
};

/// Metrics are handed over at the end of each of the first calls up to this number, then of every one that it divides.
const CALLS: u64 = 16;

/// Sums over the caches of one operator.
pub(super) struct CacheMetrics {
    caches: RefCell<Vec<Rc<CacheStats>>>,
    hits: Counter,
    misses: Counter,
    bytes: Gauge,
    entries: Gauge,
    /// Hits and misses that were handed over.
    shown: Cell<(u64, u64)>,
    calls: Cell<u64>,
    is_due: Cell<bool>,
}

impl CacheMetrics {
    pub(super) fn new() -> Self {
        Self {
            caches: RefCell::default(),
            hits: Counter::new("stateCacheHits"),
            misses: Counter::new("stateCacheMisses"),
            bytes: Gauge::new("stateCacheBytes"),
            entries: Gauge::new("stateCacheEntries"),
            shown: Cell::default(),
            calls: Cell::new(0),
            is_due: Cell::new(false),
        }
    }

    /// Where a new cache counts.
    pub(super) fn of_cache(&self) -> Rc<CacheStats> {
        let stats = Rc::<CacheStats>::default();
        self.caches.borrow_mut().push(Rc::clone(&stats));
        stats
    }

    /// Has the metrics handed over at the end of this call.
    pub(super) fn set_due(&self) {
        self.is_due.set(true);
    }

    /// Ends a call of the host.
    pub(super) fn end_call(&self, node: u32) {
        let calls = self.calls.get() + 1;
        self.calls.set(calls);
        let is_due = self.is_due.take() || calls <= CALLS || calls.is_multiple_of(CALLS);
        let caches = self.caches.borrow();
        if !is_due || caches.is_empty() {
            return;
        }
        let sum = |count: fn(&CacheStats) -> u64| caches.iter().map(|cache| count(cache)).sum::<u64>();
        let misses = sum(|cache| cache.misses.get());
        // What the first pass read may not have been asked for if its row was rejected.
        let hits = sum(|cache| cache.lookups.get()).saturating_sub(misses);
        let (hits_shown, misses_shown) = self.shown.get();
        let hits = hits.max(hits_shown);
        self.shown.set((hits, misses));
        current::enter(node);
        self.hits.add(hits - hits_shown);
        self.misses.add(misses - misses_shown);
        #[expect(clippy::cast_precision_loss, reason = "they are far below 2^53")]
        let gauge = |count: fn(&CacheStats) -> usize| caches.iter().map(|cache| count(cache)).sum::<usize>() as f64;
        self.bytes.set(gauge(|cache| cache.bytes.get()));
        self.entries.set(gauge(|cache| cache.entries.get()));
        current::leave();
    }
}
