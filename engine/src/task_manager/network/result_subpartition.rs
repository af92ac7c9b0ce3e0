//! The producer's end of a channel.
//!
//! A channel is two bounded queues, one for elements in order and one for those
//! that may overtake them, and a flag that tells the consumer's notification
//! queue whether the channel is already announced there. Each element has the
//! next sequence number of its channel, over both lanes, from the moment it is
//! handed over; so the consumer knows which elements a priority element overtook.
//!
//! What does not fit into the queues waits in `pending`; the owner of the task's
//! thread waits for room before it produces more.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::{Sender, TrySendError, bounded};

use super::input_channel::InputChannel;
use crate::{base::stream_element::StreamElement, failpoint};

/// Elements of the priority lane of one channel: one per checkpoint that is under way.
const PRIORITY_ELEMENTS_MAX: usize = 16;

/// An element with its zero-based number within its channel.
#[derive(Debug)]
pub(super) struct Numbered {
    pub(super) sequence: u64,
    pub(super) element: StreamElement,
}

/// Where a consumer learns that a channel has something for it.
#[derive(Debug)]
struct Notifier {
    queue: Sender<u32>,
    channel: u32,
}

/// What both ends of a channel share.
#[derive(Debug, Default)]
pub(super) struct Announcement {
    /// True while the channel stands in the consumer's notification queue, or
    /// while there is something in the channel and no consumer yet.
    announced: AtomicBool,
    notifier: OnceLock<Notifier>,
    producer_gone: AtomicBool,
}

impl Announcement {
    /// Announces the channel, if it is not. The queue has room for each channel twice.
    pub(super) fn announce(&self) {
        if self.announced.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(notifier) = self.notifier.get() {
            match notifier.queue.try_send(notifier.channel) {
                // Without a consumer there is nobody to tell.
                Ok(()) | Err(TrySendError::Disconnected(_)) => {}
                Err(TrySendError::Full(_)) => {
                    unreachable!("each channel is announced once, or twice while it is attached")
                }
            }
        }
    }

    /// Takes note that the consumer looks at the channel now: what was sent
    /// before is visible to it, what comes later announces the channel again.
    pub(super) fn take(&self) {
        self.announced.swap(false, Ordering::AcqRel);
    }

    /// Connects the consumer, and announces the channel once so that it looks at
    /// what is already there.
    pub(super) fn attach(&self, queue: Sender<u32>, channel: u32) {
        self.notifier.set(Notifier { queue, channel }).expect("a channel has one consumer");
        self.take();
        self.announce();
    }

    /// True once the producer's end was dropped.
    pub(super) fn producer_is_gone(&self) -> bool {
        self.producer_gone.load(Ordering::Acquire)
    }
}

/// How far an attempt to send came.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Progress {
    /// Everything was sent.
    Drained,
    /// The queue is full.
    Full,
    /// The consumer ended without reading to the end: it failed or was cancelled.
    ConsumerGone,
}

/// The producer's end of a channel.
#[derive(Debug)]
pub struct ResultSubpartition {
    data: Sender<Numbered>,
    priority: Sender<Numbered>,
    announcement: Arc<Announcement>,
    next_sequence: u64,
    pending: VecDeque<Numbered>,
    pending_priority: VecDeque<Numbered>,
}

impl ResultSubpartition {
    /// Makes both ends of a channel that holds up to `elements_max` elements.
    pub fn channel(elements_max: usize) -> (Self, InputChannel) {
        let (data, data_out) = bounded(elements_max);
        let (priority, priority_out) = bounded(PRIORITY_ELEMENTS_MAX);
        let announcement = Arc::new(Announcement::default());
        let input = InputChannel::new(data_out, priority_out, Arc::clone(&announcement));
        let subpartition = Self {
            data,
            priority,
            announcement,
            next_sequence: 0,
            pending: VecDeque::new(),
            pending_priority: VecDeque::new(),
        };
        (subpartition, input)
    }

    /// Hands over an element, which is sent at once if there is room.
    pub fn enqueue(&mut self, element: StreamElement) {
        failpoint!("network.send", infallible);
        if matches!(element, StreamElement::CheckpointBarrier(_)) {
            failpoint!("network.send.barrier", infallible);
        }
        let numbered = self.number(element);
        self.pending.push_back(numbered);
        self.advance();
    }

    /// Hands over an element that overtakes all others that were not yet read.
    pub fn enqueue_priority(&mut self, element: StreamElement) {
        let numbered = self.number(element);
        self.pending_priority.push_back(numbered);
        self.advance();
    }

    fn number(&mut self, element: StreamElement) -> Numbered {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        Numbered { sequence, element }
    }

    /// Sends as much as there is room for.
    pub fn advance(&mut self) -> Progress {
        if !self.has_pending() {
            return Progress::Drained;
        }
        // Data behind a priority element must not arrive before it does, or the
        // consumer would miss a number.
        let mut progress = send_all(&mut self.pending_priority, &self.priority);
        if progress == Progress::Drained {
            progress = send_all(&mut self.pending, &self.data);
        }
        self.announcement.announce();
        progress
    }

    /// True if something waits for room.
    pub fn has_pending(&self) -> bool {
        !(self.pending.is_empty() && self.pending_priority.is_empty())
    }

    /// Bytes of rows that wait for room.
    pub fn pending_bytes(&self) -> usize {
        self.pending.iter().map(|numbered| numbered.element.data_bytes()).sum()
    }

    /// Adds the queue that has no room to what a task waits for.
    pub fn wait_for_room<'a>(&'a self, select: &mut crossbeam_channel::Select<'a>) {
        if self.pending_priority.is_empty() {
            select.send(&self.data);
        } else {
            select.send(&self.priority);
        }
    }
}

fn send_all(pending: &mut VecDeque<Numbered>, queue: &Sender<Numbered>) -> Progress {
    while let Some(numbered) = pending.pop_front() {
        match queue.try_send(numbered) {
            Ok(()) => {}
            Err(TrySendError::Full(numbered)) => {
                pending.push_front(numbered);
                return Progress::Full;
            }
            Err(TrySendError::Disconnected(numbered)) => {
                pending.push_front(numbered);
                return Progress::ConsumerGone;
            }
        }
    }
    Progress::Drained
}

impl Drop for ResultSubpartition {
    fn drop(&mut self) {
        self.announcement.producer_gone.store(true, Ordering::Release);
        self.announcement.announce();
    }
}
