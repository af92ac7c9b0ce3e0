//! Whole numbers from one to another, both included; each record is an `i64`.
//!
//! The numbers are dealt in ranges. Within a subtask they ascend.

use std::{collections::VecDeque, mem};

use engine_rows::row::{self, HEADER_BYTES, NO_TIMESTAMP};
use serde::{Deserialize, Serialize};

use super::{
    ConnectorError, ReaderContext, ReaderOutput, RestoredSource, Role, SourceReader, SourceSplit, SplitAssignment,
    SplitEnumerator, encoding,
    options::{Options, record_type_error},
    rate_limiter::RateLimiter,
};
use crate::{
    base::stream_element::{BatchKind, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// Most numbers of a range: some milliseconds of work.
const RANGE_MAX: i128 = 1 << 20;
const ROW_BYTES: usize = HEADER_BYTES + 8;

/// Validated options of the source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SequenceOptions {
    from: i64,
    /// Inclusive.
    to: i64,
    rate: Option<u64>,
}

impl SequenceOptions {
    pub(super) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let options = Options::new(spec, Role::Source, &["from", "to", "rate"])?;
        let bound = |option| {
            options.required(option)?;
            Ok(options.value::<i64>(option)?.unwrap_or_default())
        };
        let (from, to) = (bound("from")?, bound("to")?);
        if to < from {
            return Err(options.error("to", format!("must not be below from, which is {from}, found {to}")));
        }
        Ok(Self { from, to, rate: options.positive("rate")? })
    }
}

pub(super) fn check_record_type(spec: &ConnectorSpec, record_type: &str) -> Result<(), ConnectorError> {
    if record_type == "i64" {
        return Ok(());
    }
    Err(record_type_error(spec, Role::Source, format!("it gives i64, but the records are {record_type}")))
}

/// Numbers from `from` to `to`, both included.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
struct Range {
    from: i64,
    to: i64,
}

impl Range {
    fn encode(self) -> SourceSplit {
        SourceSplit(encoding::encode(&self))
    }

    fn decode(split: &SourceSplit) -> Result<Self, ConnectorError> {
        encoding::decode(&split.0, "a split of a sequence source")
    }
}

/// Deals ranges in ascending order.
pub(super) struct SequenceEnumerator {
    /// The first number that was not dealt; may lie behind the last `i64`.
    next: i128,
    to: i64,
    range: i128,
    parallelism: u32,
    /// Dealt before, with the subtask that alone is dealt it again, if one is.
    returned: VecDeque<(Option<u32>, SourceSplit)>,
}

/// What an enumerator writes into a checkpoint.
#[derive(Debug, Deserialize, Serialize)]
struct EnumeratorState {
    parallelism: u32,
    next: i128,
    returned: Vec<(Option<u32>, SourceSplit)>,
}

impl SequenceEnumerator {
    pub(super) fn new(options: &SequenceOptions, parallelism: u32) -> Self {
        let numbers = i128::from(options.to) - i128::from(options.from) + 1;
        let subtasks = i128::from(parallelism.max(1));
        // A rate is shared, so that each subtask should have its part of the numbers.
        let range = ((numbers + subtasks - 1) / subtasks).clamp(1, RANGE_MAX);
        Self { next: options.from.into(), to: options.to, range, parallelism, returned: VecDeque::new() }
    }

    /// Goes on from where another one stood.
    ///
    /// # Errors
    /// Returns an error if what is restored is damaged.
    pub(super) fn restore(&mut self, restored: RestoredSource) -> Result<(), ConnectorError> {
        let state: EnumeratorState = encoding::decode(&restored.enumerator, "the state of a sequence source")?;
        self.next = state.next;
        // What a reader held was dealt before what still waits for it.
        let held = restored.splits.into_iter().map(|(subtask, split)| (Some(subtask), split));
        let mut returned: Vec<_> = held.chain(state.returned).collect();
        if state.parallelism != self.parallelism {
            let mut ranges = Vec::with_capacity(returned.len());
            for (_, split) in returned {
                ranges.push((Range::decode(&split)?.from, split));
            }
            ranges.sort_by_key(|(from, _)| *from);
            returned = ranges.into_iter().map(|(_, split)| (None, split)).collect();
        }
        self.returned = returned.into();
        Ok(())
    }
}

impl SplitEnumerator for SequenceEnumerator {
    fn next_split(&mut self, subtask_index: u32) -> Result<SplitAssignment, ConnectorError> {
        let place = |owner| self.returned.iter().position(|(subtask, _)| *subtask == owner);
        let returned = place(Some(subtask_index)).or_else(|| place(None));
        if let Some((_, split)) = returned.and_then(|place| self.returned.remove(place)) {
            return Ok(SplitAssignment::Split(split));
        }
        let Ok(from) = i64::try_from(self.next) else { return Ok(SplitAssignment::NoMoreSplits) };
        if self.to < from {
            return Ok(SplitAssignment::NoMoreSplits);
        }
        let to = i64::try_from(self.next + self.range - 1).map_or(self.to, |to| to.min(self.to));
        self.next = i128::from(to) + 1;
        Ok(SplitAssignment::Split(Range { from, to }.encode()))
    }

    fn add_splits_back(&mut self, subtask_index: u32, splits: Vec<SourceSplit>) {
        // They were dealt before what still waits for the subtask.
        splits.into_iter().rev().for_each(|split| self.returned.push_front((Some(subtask_index), split)));
    }

    fn snapshot(&self) -> Vec<u8> {
        encoding::encode(&EnumeratorState {
            parallelism: self.parallelism,
            next: self.next,
            returned: self.returned.iter().cloned().collect(),
        })
    }
}

/// Emits the numbers of its ranges.
pub(super) struct SequenceReader {
    limiter: RateLimiter,
    /// What is left of the range.
    range: Option<Range>,
    /// The numbers of the last batch.
    batch: Option<Range>,
}

impl SequenceReader {
    pub(super) fn new(
        options: &SequenceOptions,
        spec: &ConnectorSpec,
        context: &ReaderContext,
    ) -> Result<Self, ConnectorError> {
        check_record_type(spec, &context.record_type)?;
        let limiter = RateLimiter::new(options.rate, context.parallelism, context.clock.clone());
        Ok(Self { limiter, range: None, batch: None })
    }
}

impl SourceReader for SequenceReader {
    fn add_split(&mut self, split: SourceSplit) -> Result<(), ConnectorError> {
        let range = Range::decode(&split)?;
        self.range = (range.from <= range.to).then_some(range);
        Ok(())
    }

    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        let Some(range) = self.range else { return Ok(ReaderOutput::NeedSplit) };
        let rows_max = match self.limiter.available() {
            Ok(rows_max) => rows_max,
            Err(pause) => return Ok(ReaderOutput::Idle(pause)),
        };
        let left = range.to.abs_diff(range.from).saturating_add(1);
        let count = left.min(rows_max).min((max_bytes / ROW_BYTES).max(1) as u64);
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let last = range.from + (i64::from(count) - 1);
        let mut data = Vec::with_capacity(count as usize * ROW_BYTES);
        for number in range.from..=last {
            row::append_with(&mut data, 0, NO_TIMESTAMP, |data| data.extend_from_slice(&number.to_le_bytes()));
        }
        self.range = (last < range.to).then(|| Range { from: last + 1, to: range.to });
        self.batch = Some(Range { from: range.from, to: last });
        self.limiter.take(count);
        let data = mem::take(&mut data).into();
        Ok(ReaderOutput::Records(RecordBatch { kind: BatchKind::Rows, count, data }))
    }

    fn snapshot(&mut self) -> Vec<SourceSplit> {
        self.range.iter().map(|range| range.encode()).collect()
    }

    fn position(&self) -> String {
        match (self.range, self.batch) {
            (Some(range), _) => format!("sequence at {}", range.from),
            (None, Some(batch)) => format!("sequence behind {}", batch.to),
            (None, None) => "sequence before its first number".to_owned(),
        }
    }

    fn row_position(&mut self, row: u32) -> String {
        match self.batch {
            Some(batch) => format!("sequence at {}", batch.from.saturating_add(row.into())),
            None => self.position(),
        }
    }
}
