//! The consumer's end of a channel: puts its two lanes back together and checks
//! that no element was lost or repeated.

use std::{collections::VecDeque, sync::Arc};

use crossbeam_channel::{Receiver, Sender};

use super::result_subpartition::{Announcement, Numbered};
use crate::{base::stream_element::StreamElement, failpoint};

/// A channel cannot be read further.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ChannelError {
    /// The producer ended without having sent its last element.
    #[error("the producer ended before its output was complete")]
    ProducerGone,
    /// An element was lost or repeated: a bug.
    #[error("element {found} of the channel arrived where element {expected} was expected")]
    Gap {
        /// The number that was expected.
        expected: u64,
        /// The number that came.
        found: u64,
    },
}

/// The consumer's end of a channel.
#[derive(Debug)]
pub struct InputChannel {
    data: Receiver<Numbered>,
    priority: Receiver<Numbered>,
    announcement: Arc<Announcement>,
    next_sequence: u64,
    /// Ascending numbers of the elements that came before their turn.
    overtaking: VecDeque<u64>,
    /// An element that was read before a priority element sent ahead of it.
    held: Option<Numbered>,
    ended: bool,
}

impl InputChannel {
    pub(super) fn new(data: Receiver<Numbered>, priority: Receiver<Numbered>, announcement: Arc<Announcement>) -> Self {
        Self { data, priority, announcement, next_sequence: 0, overtaking: VecDeque::new(), held: None, ended: false }
    }

    /// Has the channel announced in a notification queue under an index. Called once.
    pub(super) fn attach(&self, notifications: Sender<u32>, channel: u32) {
        self.announcement.attach(notifications, channel);
    }

    /// The next element; none if there is none for the moment, or no more.
    ///
    /// # Errors
    /// Returns an error if the producer is gone or an element is missing.
    pub fn poll(&mut self) -> Result<Option<StreamElement>, ChannelError> {
        self.announcement.take();
        let element = self.next()?;
        if let Some(element) = &element {
            failpoint!("network.receive", infallible);
            if matches!(element, StreamElement::CheckpointBarrier(_)) {
                failpoint!("network.receive.barrier", infallible);
            }
        }
        if element == Some(StreamElement::EndOfPartition) {
            self.ended = true;
        }
        Ok(element)
    }

    fn next(&mut self) -> Result<Option<StreamElement>, ChannelError> {
        if let Ok(numbered) = self.priority.try_recv() {
            return self.overtake(numbered).map(Some);
        }
        let next = match self.held.take() {
            Some(held) => Some(held),
            None => self.receive()?,
        };
        let Some(next) = next else { return Ok(None) };
        while self.overtaking.front() == Some(&self.next_sequence) {
            self.overtaking.pop_front();
            self.next_sequence += 1;
        }
        if next.sequence == self.next_sequence {
            self.next_sequence += 1;
            return Ok(Some(next.element));
        }
        let gap = ChannelError::Gap { expected: self.next_sequence, found: next.sequence };
        // A priority element that was sent before this one came after the look at its lane.
        let numbered = self.priority.try_recv().map_err(|_| gap)?;
        self.held = Some(next);
        self.overtake(numbered).map(Some)
    }

    fn receive(&mut self) -> Result<Option<Numbered>, ChannelError> {
        match self.data.try_recv() {
            Ok(numbered) => Ok(Some(numbered)),
            Err(_) if self.ended || !self.announcement.producer_is_gone() => Ok(None),
            // What the producer sent before it went is visible by now.
            Err(_) => self.data.try_recv().map(Some).map_err(|_| ChannelError::ProducerGone),
        }
    }

    fn overtake(&mut self, numbered: Numbered) -> Result<StreamElement, ChannelError> {
        let expected = self.overtaking.back().map_or(self.next_sequence, |last| last + 1);
        if numbered.sequence < expected {
            return Err(ChannelError::Gap { expected, found: numbered.sequence });
        }
        self.overtaking.push_back(numbered.sequence);
        Ok(numbered.element)
    }

    /// Announces the channel again if there is more to read.
    pub(super) fn announce_rest(&self) {
        let rest = self.held.is_some() || !self.data.is_empty() || !self.priority.is_empty();
        if rest || (!self.ended && self.announcement.producer_is_gone()) {
            self.announcement.announce();
        }
    }

    /// True once the last element was read.
    pub fn is_ended(&self) -> bool {
        self.ended
    }
}
