//! Metrics that a guest registers and updates, within limits.
//!
//! Counters add up, gauges keep the last value, histograms the last
//! [`HISTOGRAM_VALUES_MAX`] values and the totals.

use std::collections::HashMap;

/// Bytes of a metric's name.
const NAME_BYTES_MAX: usize = 80;
/// Values over which the quantiles of a histogram are taken.
const HISTOGRAM_VALUES_MAX: usize = 256;
/// Handle of a metric that was dropped: updates of it are ignored.
const DROPPED: u32 = u32::MAX;

/// What a metric is.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum MetricKind {
    /// Only rises.
    Counter,
    /// Last value set.
    Gauge,
    /// Distribution.
    Histogram,
}

/// Value of a metric at one moment.
#[derive(Clone, Debug, PartialEq)]
pub enum MetricValue {
    /// Sum of all that was added.
    Counter(u64),
    /// Last value set; 0 before the first.
    Gauge(f64),
    /// Distribution.
    Histogram(HistogramStatistics),
}

/// Distribution of a histogram's values; all zero before the first.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HistogramStatistics {
    /// Values since the start.
    pub count: u64,
    /// Least of the last values.
    pub min: f64,
    /// Greatest of the last values.
    pub max: f64,
    /// Mean of the last values.
    pub mean: f64,
    /// Half of the last values are at or below.
    pub p50: f64,
    /// 95 of 100 are at or below.
    pub p95: f64,
    /// 99 of 100 are at or below.
    pub p99: f64,
}

/// One metric of a segment at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSnapshot {
    /// Node of the stream graph that the metric belongs to.
    pub node: u32,
    /// Name as registered: `[A-Za-z0-9_.-]`.
    pub name: String,
    /// Value.
    pub value: MetricValue,
}

#[derive(Debug)]
enum Value {
    Counter(u64),
    Gauge(f64),
    Histogram { count: u64, last: Vec<f64> },
}

/// A handle that was never given out, or of a metric of another kind.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct NoSuchMetric;

/// Metrics of one segment.
#[derive(Debug)]
pub(crate) struct MetricRegistry {
    metrics_max: usize,
    handles: HashMap<(u32, MetricKind, String), u32>,
    metrics: Vec<(u32, String, Value)>,
    dropped: u64,
}

impl MetricRegistry {
    pub(crate) fn new(metrics_max: usize) -> Self {
        Self { metrics_max, handles: HashMap::new(), metrics: Vec::new(), dropped: 0 }
    }

    /// Gives the handle of a metric, or of none if the name is not allowed or there are too many.
    pub(crate) fn register(&mut self, node: u32, kind: MetricKind, name: &str) -> u32 {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
        if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_allowed) {
            self.dropped += 1;
            return DROPPED;
        }
        let key = (node, kind, name.to_owned());
        if let Some(handle) = self.handles.get(&key) {
            return *handle;
        }
        let handle = match u32::try_from(self.metrics.len()) {
            Ok(handle) if handle != DROPPED && self.metrics.len() < self.metrics_max => handle,
            _ => {
                self.dropped += 1;
                return DROPPED;
            }
        };
        let value = match kind {
            MetricKind::Counter => Value::Counter(0),
            MetricKind::Gauge => Value::Gauge(0.0),
            MetricKind::Histogram => Value::Histogram { count: 0, last: Vec::new() },
        };
        self.metrics.push((node, name.to_owned(), value));
        self.handles.insert(key, handle);
        handle
    }

    pub(crate) fn add(&mut self, handle: u32, delta: u64) -> Result<(), NoSuchMetric> {
        match self.value(handle)? {
            None => Ok(()),
            Some(Value::Counter(sum)) => {
                *sum = sum.saturating_add(delta);
                Ok(())
            }
            Some(Value::Gauge(_) | Value::Histogram { .. }) => Err(NoSuchMetric),
        }
    }

    pub(crate) fn set(&mut self, handle: u32, new: f64) -> Result<(), NoSuchMetric> {
        match self.value(handle)? {
            Some(Value::Gauge(value)) if new.is_finite() => *value = new,
            Some(Value::Counter(_) | Value::Histogram { .. }) => return Err(NoSuchMetric),
            Some(Value::Gauge(_)) => self.dropped += 1,
            None => {}
        }
        Ok(())
    }

    pub(crate) fn record(&mut self, handle: u32, new: f64) -> Result<(), NoSuchMetric> {
        match self.value(handle)? {
            Some(Value::Histogram { count, last }) if new.is_finite() => {
                let position = usize::try_from(*count % HISTOGRAM_VALUES_MAX as u64).unwrap_or(0);
                match last.get_mut(position) {
                    Some(oldest) => *oldest = new,
                    None => last.push(new),
                }
                *count += 1;
            }
            Some(Value::Counter(_) | Value::Gauge(_)) => return Err(NoSuchMetric),
            Some(Value::Histogram { .. }) => self.dropped += 1,
            None => {}
        }
        Ok(())
    }

    /// Metrics and values that were above a limit or not numbers.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn snapshot(&self) -> Vec<MetricSnapshot> {
        self.metrics
            .iter()
            .map(|(node, name, value)| MetricSnapshot {
                node: *node,
                name: name.clone(),
                value: match value {
                    Value::Counter(sum) => MetricValue::Counter(*sum),
                    Value::Gauge(value) => MetricValue::Gauge(*value),
                    Value::Histogram { count, last } => MetricValue::Histogram(statistics(*count, last)),
                },
            })
            .collect()
    }

    /// None for the handle of a dropped metric.
    fn value(&mut self, handle: u32) -> Result<Option<&mut Value>, NoSuchMetric> {
        if handle == DROPPED {
            return Ok(None);
        }
        let index = usize::try_from(handle).map_err(|_| NoSuchMetric)?;
        self.metrics.get_mut(index).map(|(_, _, value)| Some(value)).ok_or(NoSuchMetric)
    }
}

fn statistics(count: u64, last: &[f64]) -> HistogramStatistics {
    let mut sorted = last.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let (Some(min), Some(max)) = (sorted.first(), sorted.last()) else {
        return HistogramStatistics::default();
    };
    // Nearest rank: the least value with at least the wanted share at or below it.
    let quantile = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100) - 1];
    HistogramStatistics {
        count,
        min: *min,
        max: *max,
        mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        p50: quantile(50),
        p95: quantile(95),
        p99: quantile(99),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back_by_node_and_name() {
        let mut registry = MetricRegistry::new(10);
        let counter = registry.register(1, MetricKind::Counter, "words");
        let gauge = registry.register(1, MetricKind::Gauge, "words");
        let histogram = registry.register(2, MetricKind::Histogram, "length");
        assert_eq!(registry.register(1, MetricKind::Counter, "words"), counter);
        registry.add(counter, 3).unwrap();
        registry.add(counter, 4).unwrap();
        registry.set(gauge, 2.5).unwrap();
        for value in 1..=100 {
            registry.record(histogram, f64::from(value)).unwrap();
        }
        let values: Vec<_> = registry.snapshot().into_iter().map(|metric| metric.value).collect();
        let statistics =
            HistogramStatistics { count: 100, min: 1.0, max: 100.0, mean: 50.5, p50: 50.0, p95: 95.0, p99: 99.0 };
        assert_eq!(values, [MetricValue::Counter(7), MetricValue::Gauge(2.5), MetricValue::Histogram(statistics)]);
    }

    #[test]
    fn a_histogram_forgets_old_values_but_not_their_number() {
        let mut registry = MetricRegistry::new(1);
        let histogram = registry.register(1, MetricKind::Histogram, "x");
        for _ in 0..HISTOGRAM_VALUES_MAX {
            registry.record(histogram, 1000.0).unwrap();
        }
        for _ in 0..HISTOGRAM_VALUES_MAX {
            registry.record(histogram, 1.0).unwrap();
        }
        let MetricValue::Histogram(statistics) = registry.snapshot()[0].value.clone() else { unreachable!() };
        assert_eq!((statistics.count, statistics.max), (512, 1.0));
    }

    #[test]
    fn what_is_above_a_limit_is_dropped_and_counted() {
        let mut registry = MetricRegistry::new(2);
        for name in ["", "a b", "{x=\"1\"}", "é", &"a".repeat(81)] {
            assert_eq!(registry.register(0, MetricKind::Counter, name), DROPPED);
        }
        assert_eq!(registry.dropped(), 5);
        registry.register(0, MetricKind::Counter, &"a".repeat(80));
        let gauge = registry.register(0, MetricKind::Gauge, "g");
        assert_eq!(registry.register(0, MetricKind::Gauge, "h"), DROPPED);
        registry.set(DROPPED, 1.0).unwrap();
        registry.set(gauge, f64::NAN).unwrap();
        assert_eq!(registry.dropped(), 7);
        assert_eq!(registry.snapshot().len(), 2);
    }

    #[test]
    fn handles_of_another_kind_or_of_none_are_refused() {
        let mut registry = MetricRegistry::new(2);
        let counter = registry.register(0, MetricKind::Counter, "c");
        assert_eq!(registry.set(counter, 1.0), Err(NoSuchMetric));
        assert_eq!(registry.record(counter, 1.0), Err(NoSuchMetric));
        assert_eq!(registry.add(7, 1), Err(NoSuchMetric));
    }
}
