//! The operator that assigns timestamps and makes watermarks.
//!
//! One generator per split; the watermark is the least over the splits that have not
//! ended and are not idle, so that a split that was named but not yet read holds it
//! back. Incoming watermarks are dropped but for the one that ends event time.

use super::{
    TimestampAssigner, WatermarkStrategy,
    generators::{Generator, IdlenessTimer, WatermarkOutput},
};
use crate::{
    collector::{Collector, Lifecycle, Signal},
    current,
    error::Error,
    host,
    operator::{Element, Function, SideOutputs},
    record::Record,
};
use engine_rows::row::NO_TIMESTAMP;

/// Start of the year 1, in milliseconds since the Unix epoch.
const TIMESTAMP_MIN: i64 = -62_135_596_800_000;
/// End of the year 9999, in milliseconds since the Unix epoch.
const TIMESTAMP_MAX: i64 = 253_402_300_799_999;
/// The split of the rows if none was named.
const ONLY_SPLIT: u32 = 0;

/// What is known of one split.
struct Split<T: Record + ?Sized> {
    number: u32,
    generator: Generator<T>,
    output: WatermarkOutput,
    timer: Option<IdlenessTimer>,
    timed_out: bool,
    max_timestamp: i64,
    /// The highest timestamp that the engine knows of.
    reported: i64,
}

/// See the [module](self).
pub(crate) struct TimestampsAndWatermarks<T: Record + ?Sized> {
    strategy: std::rc::Rc<WatermarkStrategy<T>>,
    assigner: Option<TimestampAssigner<T>>,
    splits: Vec<Split<T>>,
    /// Place of the split whose rows come; beyond the end if there is none.
    current: usize,
    /// Runs while there is no split.
    without_split: Option<IdlenessTimer>,
    /// Splits were named: the engine may want to know how far they are.
    named: bool,
    /// What went out last.
    watermark: i64,
    idle: bool,
}

impl<T: Record + ?Sized> TimestampsAndWatermarks<T> {
    pub(crate) fn new(strategy: std::rc::Rc<WatermarkStrategy<T>>) -> Self {
        Self {
            assigner: strategy.assigner.clone(),
            splits: Vec::new(),
            current: 0,
            without_split: strategy.idleness.map(IdlenessTimer::new),
            named: false,
            watermark: i64::MIN,
            idle: false,
            strategy,
        }
    }

    #[cold]
    fn begin_split(&mut self, number: u32) {
        self.current = self.splits.iter().position(|split| split.number == number).unwrap_or(self.splits.len());
        if self.current == self.splits.len() {
            self.splits.push(Split {
                number,
                generator: self.strategy.generator(),
                output: WatermarkOutput::new(),
                timer: self.strategy.idleness.map(IdlenessTimer::new),
                timed_out: false,
                max_timestamp: i64::MIN,
                reported: i64::MIN,
            });
        }
        // It is read from here on; before, it could not give anything.
        let split = &mut self.splits[self.current];
        split.timed_out = false;
        if let Some(timer) = &mut split.timer {
            timer.activity();
        }
    }

    fn end_split(&mut self, number: u32) {
        self.splits.retain(|split| split.number != number);
        self.current = self.splits.len();
        if let Some(timer) = &mut self.without_split {
            timer.activity();
        }
    }

    /// Polls the generators and sends what follows.
    fn advance(&mut self, now: i64, out: &mut Collector<T>) {
        for (place, split) in self.splits.iter_mut().enumerate() {
            // Only the split that is being read can become idle: the others wait for their turn.
            let is_read = place == self.current && (!self.named || i64::MIN < split.max_timestamp);
            if let Some(timer) = split.timer.as_mut().filter(|_| is_read) {
                split.timed_out = timer.is_idle(now);
            }
            if split.timed_out {
                split.output.mark_idle();
            } else {
                split.generator.on_periodic_emit(&mut split.output);
            }
        }
        if self.splits.is_empty()
            && let Some(timer) = &mut self.without_split
            && timer.is_idle(now)
        {
            self.send_idle(out);
        }
        self.send(out);
    }

    /// Sends the least watermark of the splits if it rose, or that all are idle.
    fn send(&mut self, out: &mut Collector<T>) {
        let mut minimum = None;
        for split in &mut self.splits {
            split.output.touched = false;
            if !split.output.idle {
                let watermark = split.output.watermark;
                minimum = Some(minimum.map_or(watermark, |minimum: i64| minimum.min(watermark)));
            }
        }
        match minimum {
            Some(minimum) => self.send_watermark(minimum, out),
            None if self.splits.is_empty() => {}
            None => self.send_idle(out),
        }
    }

    fn send_watermark(&mut self, watermark: i64, out: &mut Collector<T>) {
        if watermark <= self.watermark {
            return;
        }
        self.watermark = watermark;
        // Who comes behind learns only now that the stream is active again.
        if std::mem::take(&mut self.idle) {
            out.process_watermark_status(false);
        }
        out.process_watermark(watermark);
    }

    fn send_idle(&mut self, out: &mut Collector<T>) {
        if !std::mem::replace(&mut self.idle, true) {
            out.process_watermark_status(true);
        }
    }
}

impl<T: Record + ?Sized> Function<T, T> for TimestampsAndWatermarks<T> {
    const GENERATES_WATERMARKS: bool = true;

    #[inline(always)]
    fn process(&mut self, record: T::View<'_>, element: Element, out: &mut Collector<T>, _: &mut SideOutputs) {
        let timestamp = match &self.assigner {
            Some(assigner) => assigner(T::peek(&record)),
            None if element.timestamp == NO_TIMESTAMP => return out.collect(record),
            None => element.timestamp,
        };
        if !(TIMESTAMP_MIN..=TIMESTAMP_MAX).contains(&timestamp) {
            return current::reject(current::node(), &not_a_timestamp(timestamp));
        }
        if self.splits.len() <= self.current {
            self.begin_split(ONLY_SPLIT);
        }
        let split = &mut self.splits[self.current];
        split.max_timestamp = split.max_timestamp.max(timestamp);
        if let Some(timer) = &mut split.timer {
            timer.activity();
        }
        split.generator.on_event(T::peek(&record), timestamp, &mut split.output);
        let touched = split.output.touched;
        out.set_timestamp(timestamp);
        out.collect(record);
        if touched {
            self.send(out);
        }
    }

    fn process_watermark(&mut self, timestamp: i64, out: &mut Collector<T>) {
        if timestamp == i64::MAX {
            self.splits.iter_mut().for_each(|split| split.generator.on_periodic_emit(&mut split.output));
            self.send(out);
            self.send_watermark(i64::MAX, out);
        }
    }

    fn notify(&mut self, signal: Signal, out: &mut Collector<T>) {
        match signal {
            Signal::BeginSplit(split) => {
                self.named = true;
                self.begin_split(split);
            }
            Signal::EndSplit(split) => self.end_split(split),
            Signal::ProcessingTime(now) => self.advance(now, out),
        }
    }

    fn flush(&mut self) {
        let Some(split) = self.splits.get_mut(self.current) else { return };
        if self.named && split.reported < split.max_timestamp {
            split.reported = split.max_timestamp;
            host::report_split_time(split.number, split.max_timestamp);
        }
    }
}

#[cold]
fn not_a_timestamp(timestamp: i64) -> Error {
    Error::new(format!(
        "timestamp {timestamp} is not within the years 1 to 9999: event time is in milliseconds since the Unix epoch"
    ))
}
