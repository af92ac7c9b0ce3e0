//! Metrics of user code, shown beside the engine's own.
//!
//! A metric belongs to the node in which it is first used. Counters and gauges
//! are handed to the engine at the end of each call, histograms value by value.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use crate::{
    current,
    host::{self, Kind},
};

thread_local! {
    /// Counters and gauges in use.
    static IN_USE: RefCell<Vec<Rc<Handle>>> = const { RefCell::new(Vec::new()) };
}

struct Handle {
    kind: Kind,
    name: String,
    registered: Cell<Option<u32>>,
    /// Of a counter, not handed over yet.
    delta: Cell<u64>,
    /// Of a gauge, not handed over yet.
    value: Cell<Option<f64>>,
}

impl Handle {
    fn new(kind: Kind, name: &str) -> Rc<Self> {
        Rc::new(Self {
            kind,
            name: name.to_owned(),
            registered: Cell::new(None),
            delta: Cell::new(0),
            value: Cell::new(None),
        })
    }

    fn register(self: &Rc<Self>) -> u32 {
        self.registered.get().unwrap_or_else(|| {
            let handle = host::register(current::node(), self.kind, &self.name);
            self.registered.set(Some(handle));
            IN_USE.with_borrow_mut(|in_use| in_use.push(Rc::clone(self)));
            handle
        })
    }
}

/// A number that only grows, for example of records of some kind.
#[derive(Clone)]
pub struct Counter(Rc<Handle>);

impl Counter {
    /// A counter of this name: `[A-Za-z0-9_.-]`, at most 80 bytes.
    pub fn new(name: &str) -> Self {
        Self(Handle::new(Kind::Counter, name))
    }

    /// Adds one.
    #[inline]
    pub fn inc(&self) {
        self.add(1);
    }

    /// Adds to the counter.
    #[inline]
    pub fn add(&self, delta: u64) {
        self.0.register();
        self.0.delta.set(self.0.delta.get().saturating_add(delta));
    }
}

/// A value that goes up and down.
#[derive(Clone)]
pub struct Gauge(Rc<Handle>);

impl Gauge {
    /// A gauge of this name: `[A-Za-z0-9_.-]`, at most 80 bytes.
    pub fn new(name: &str) -> Self {
        Self(Handle::new(Kind::Gauge, name))
    }

    /// Sets the value.
    #[inline]
    pub fn set(&self, value: f64) {
        self.0.register();
        self.0.value.set(Some(value));
    }
}

/// The distribution of a value.
#[derive(Clone)]
pub struct Histogram(Rc<Handle>);

impl Histogram {
    /// A histogram of this name: `[A-Za-z0-9_.-]`, at most 80 bytes.
    pub fn new(name: &str) -> Self {
        Self(Handle::new(Kind::Histogram, name))
    }

    /// Adds a value. Each is a call into the engine, about 0.1 µs.
    pub fn record(&self, value: f64) {
        host::record(self.0.register(), value);
    }
}

/// Hands over what counters and gauges gathered in this call. Those that nobody else holds
/// any more are forgotten.
pub(crate) fn flush() {
    IN_USE.with_borrow_mut(|in_use| {
        in_use.retain(|metric| {
            if let Some(handle) = metric.registered.get() {
                let delta = metric.delta.take();
                if 0 < delta {
                    host::add(handle, delta);
                }
                if let Some(value) = metric.value.take() {
                    host::set(handle, value);
                }
            }
            1 < Rc::strong_count(metric)
        });
    });
}

#[cfg(test)]
mod tests {
    use super::{Counter, IN_USE, flush};
    use crate::host;

    #[test]
    fn metrics_that_nobody_holds_are_handed_over_once_more_and_forgotten() {
        host::reset();
        let held = Counter::new("held");
        held.inc();
        for _ in 0..3 {
            Counter::new("dropped").add(2);
        }
        flush();
        assert_eq!(IN_USE.with_borrow(Vec::len), 1);
        held.inc();
        flush();
        let totals: Vec<_> = host::metrics().iter().map(|metric| (metric.name.clone(), metric.total())).collect();
        assert_eq!(totals, [("held".to_owned(), 2.0), ("dropped".to_owned(), 6.0)]);
    }
}
