//! What operators that make watermarks are told: which split of their source the rows come
//! from, and what time it is. What they tell is how far each split has come.

use super::{
    Backpressure, GuestSegment, OperatorChain, OperatorError, Outputs,
    operator_chain::{ChainNode, NodeKind},
};
use crate::{
    base::{clock::Timestamp, stream_element::WatermarkStatus},
    connector::SplitChange,
    graph::stream_graph::StreamNode,
    wasm::GuestError,
};

/// What concerns event time in a node of the chain.
#[derive(Debug, Default)]
pub(super) struct EventTime {
    /// One of its operators makes watermarks.
    pub(super) generates_watermarks: bool,
    /// Place of the native source whose splits it is told of.
    source: Option<usize>,
    /// The split that was named last.
    split: u32,
}

impl EventTime {
    pub(super) fn new<'a>(mut operators: impl Iterator<Item = &'a StreamNode>) -> Self {
        Self { generates_watermarks: operators.any(|operator| operator.generates_watermarks), source: None, split: 0 }
    }
}

/// Finds the native sources right before segments that make watermarks.
pub(super) fn connect_sources(nodes: &mut [ChainNode]) {
    for place in 0..nodes.len() {
        if !matches!(nodes[place].kind, NodeKind::Source(_)) {
            continue;
        }
        for target in nodes[place].locals.clone().iter().flat_map(|targets| targets.iter()) {
            let event_time = &mut nodes[target.node].event_time;
            event_time.source = event_time.generates_watermarks.then_some(place);
        }
    }
}

impl OperatorChain {
    /// True if an operator of the chain makes watermarks.
    pub fn generates_watermarks(&self) -> bool {
        self.nodes.iter().any(|node| node.event_time.generates_watermarks)
    }

    /// The watermark that operators right behind a native source make of its records, and its
    /// status; none if there are no such operators.
    pub fn source_watermark(&mut self, source: usize) -> Option<(Timestamp, WatermarkStatus)> {
        let behind = self.nodes.iter_mut().filter(|node| node.event_time.source == Some(source));
        behind.filter_map(|node| node.outputs().map(|outputs| outputs.watermark())).min_by_key(|(time, _)| *time)
    }

    /// Tells operators that make watermarks what time it is, and hands on what they make. Those
    /// right behind a source that is paused are left out, lest it seems idle.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn advance_processing_time(
        &mut self,
        now: Timestamp,
        is_paused: impl Fn(usize) -> bool,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        for place in 0..self.nodes.len() {
            let event_time = &self.nodes[place].event_time;
            let paused = event_time.source.is_some_and(&is_paused);
            if event_time.generates_watermarks && !paused && !self.nodes[place].ended {
                self.call_segment(place, |segment| segment.advance_processing_time(now), backpressure)?;
            }
        }
        Ok(())
    }

    /// Tells operators right behind a source that it is read again after a pause.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn resume_source(&mut self, source: usize, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        for place in 0..self.nodes.len() {
            let EventTime { source: of, split, .. } = self.nodes[place].event_time;
            if of == Some(source) {
                self.call_segment(place, |segment| segment.begin_split(split), backpressure)?;
            }
        }
        Ok(())
    }

    /// Names the splits of a native source to the segments behind it.
    pub(super) fn name_splits(
        &mut self,
        source: usize,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        let NodeKind::Source(native) = &self.nodes[source].kind else { return Ok(()) };
        let changes = native.reader.borrow_mut().take_split_changes();
        for change in changes {
            for place in 0..self.nodes.len() {
                if self.nodes[place].event_time.source != Some(source) {
                    continue;
                }
                match change {
                    SplitChange::Begin(split) => {
                        self.nodes[place].event_time.split = split;
                        self.call_segment(place, |segment| segment.begin_split(split), backpressure)?;
                    }
                    SplitChange::End(split) => {
                        self.call_segment(place, |segment| segment.end_split(split), backpressure)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Hands what a segment reported of its splits to the reader.
    pub(super) fn hand_back_split_times(&mut self, place: usize) {
        let Some(source) = self.nodes[place].event_time.source else { return };
        let times = self.nodes[place].outputs().map(Outputs::take_split_times).unwrap_or_default();
        let NodeKind::Source(native) = &self.nodes[source].kind else { return };
        for (split, time) in times {
            native.reader.borrow_mut().report_split_time(split, time);
        }
    }

    fn call_segment(
        &mut self,
        place: usize,
        call: impl FnOnce(&mut dyn GuestSegment) -> Result<(), GuestError>,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        if let NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) = &mut self.nodes[place].kind {
            call(&mut **segment).map_err(|error| self.guest_failed(error, None))?;
        }
        self.drain(place, backpressure)
    }
}
