//! Event time: how records get their timestamps, and how watermarks are made of them.

mod assigner;
mod generators;

use std::{rc::Rc, time::Duration};

pub use self::generators::{
    AscendingTimestampsWatermarks, BoundedOutOfOrdernessWatermarks, WatermarkGenerator, WatermarkOutput,
};
pub(crate) use self::{assigner::TimestampsAndWatermarks, generators::Generator};
use crate::record::Record;

/// Reads the event time of a record.
type TimestampAssigner<T> = Rc<dyn for<'a> Fn(<T as Record>::Ref<'a>) -> i64>;

/// Makes a generator for each split.
type GeneratorFactory<T> = Rc<dyn Fn() -> Box<dyn WatermarkGenerator<T>>>;

/// Where records get their event time from, and how watermarks follow it; as Flink's.
///
/// ```
/// # use std::time::Duration;
/// # use engine_sdk::prelude::*;
/// # #[derive(Clone, Record)]
/// # struct Order { placed_at: i64 }
/// fn timed(orders: DataStream<Order>) -> DataStream<Order> {
///     let strategy = WatermarkStrategy::<Order>::for_bounded_out_of_orderness(Duration::from_secs(4))
///         .with_timestamp_assigner(|order| order.placed_at)
///         .with_idleness(Duration::from_secs(60));
///     orders.assign_timestamps_and_watermarks(strategy)
/// }
/// ```
///
/// # Timestamps
/// Timestamps are milliseconds since the Unix epoch, UTC, and lie in the years 1 to 9999. A record
/// for which the assigner returns any other is rejected, as one that user code refuses: the job's
/// policy (`execution.row-errors.policy`) says whether the job fails or goes on without it. A
/// record that is off by an hour or a year is not: it raises the watermark, and what comes behind
/// it is late, so check timestamps of doubtful origin with [`crate::DataStream::try_map`] or `filter`.
///
/// Without an assigner, records keep the timestamp that they have. Records of native sources have
/// none; a record without timestamp goes on as it is and moves no watermark, and windows over
/// event time reject it.
///
/// # Watermarks
/// There is a generator for each split of the source that stands in the same chain, for example for
/// each of the files that are read side by side, and the watermark is the least of the splits that
/// are neither idle nor at their end. Watermarks are sent every `pipeline.auto-watermark-interval`
/// or 5,000 records, whichever comes first, and one at the end of the input that ends event time.
/// Watermarks from before the strategy are dropped.
pub struct WatermarkStrategy<T: Record + ?Sized> {
    kind: Kind<T>,
    assigner: Option<TimestampAssigner<T>>,
    pub(crate) idleness: Option<Duration>,
    pub(crate) alignment: Option<Alignment>,
}

enum Kind<T: Record + ?Sized> {
    None,
    BoundedOutOfOrderness(Duration),
    Custom(GeneratorFactory<T>),
}

/// How sources wait for each other.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Alignment {
    pub(crate) group: String,
    pub(crate) max_drift: Duration,
    pub(crate) update_interval: Duration,
}

impl<T: Record + ?Sized> WatermarkStrategy<T> {
    fn of(kind: Kind<T>) -> Self {
        Self { kind, assigner: None, idleness: None, alignment: None }
    }

    /// For timestamps that never fall within a split.
    pub fn for_monotonous_timestamps() -> Self {
        Self::for_bounded_out_of_orderness(Duration::ZERO)
    }

    /// For records that come at most `bound` of event time behind one with a higher timestamp.
    pub fn for_bounded_out_of_orderness(bound: Duration) -> Self {
        Self::of(Kind::BoundedOutOfOrderness(bound))
    }

    /// Assigns timestamps only: event time ends with the input.
    pub fn no_watermarks() -> Self {
        Self::of(Kind::None)
    }

    /// Watermarks by a generator of the plugin; `make` is called for each split.
    pub fn for_generator<G: WatermarkGenerator<T>>(make: impl Fn() -> G + 'static) -> Self {
        Self::of(Kind::Custom(Rc::new(move || Box::new(make()))))
    }

    /// Reads the timestamp of a record, in milliseconds since the Unix epoch.
    #[must_use]
    pub fn with_timestamp_assigner<F>(mut self, assigner: F) -> Self
    where
        F: for<'a> Fn(T::Ref<'a>) -> i64 + 'static,
    {
        self.assigner = Some(Rc::new(assigner));
        self
    }

    /// Leaves a split out of the watermark while no record came from it for longer than
    /// `timeout` of processing time, and marks the stream idle if that holds for all splits.
    ///
    /// A file that waits because others are behind it in event time is not idle.
    #[must_use]
    pub fn with_idleness(mut self, timeout: Duration) -> Self {
        self.idleness = Some(timeout);
        self
    }

    /// Lets the source pause while its watermark is more than `max_drift` of event time above
    /// the least of all sources of the group, of the job. The sources report their
    /// watermarks every `update_interval` (Flink's default is a second).
    ///
    /// For sources of the engine whose strategy stands in the same chain.
    #[must_use]
    pub fn with_watermark_alignment(
        mut self,
        group: impl Into<String>,
        max_drift: Duration,
        update_interval: Duration,
    ) -> Self {
        self.alignment = Some(Alignment { group: group.into(), max_drift, update_interval });
        self
    }

    /// What is wrong with the strategy.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        if self.idleness == Some(Duration::ZERO) {
            return Some("with_idleness needs a time above 0");
        }
        match &self.alignment {
            Some(alignment) if alignment.update_interval.is_zero() => {
                Some("with_watermark_alignment needs an update interval above 0")
            }
            _ => None,
        }
    }

    fn generator(&self) -> Generator<T> {
        match &self.kind {
            Kind::None => Generator::None,
            Kind::BoundedOutOfOrderness(bound) => Generator::Bounded(BoundedOutOfOrdernessWatermarks::new(*bound)),
            Kind::Custom(make) => Generator::Custom(make()),
        }
    }
}

/// Milliseconds of a duration; one that is too long is as long as can be.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
