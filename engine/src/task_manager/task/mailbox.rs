//! How a task is reached from outside its thread, and how its thread waits.
//!
//! A note that tells the task to stop is kept beside the queue, so that it
//! arrives even if the queue is full; what comes by the queue is, beside wake-ups,
//! at most one answer for each request that the task made, and a few messages for each
//! checkpoint. Wherever the task waits, it waits for the queue too; what comes meanwhile is
//! put aside, and handled in the order in which it came when the task is back in its loop.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use crossbeam_channel::{Receiver, Select, Sender, TrySendError, bounded};

use super::times::{TaskTimes, Waiting};
use crate::{
    base::{clock::Clock, stream_element::CheckpointId},
    checkpoint::CheckpointStorageError,
    protocol::{
        job_master::{FailureCause, MaxAllowedWatermark, SplitAnswer},
        task_executor::TriggerCheckpoint,
    },
    task_manager::{
        network::{InputGates, Progress, ResultPartition},
        operator::{Backpressure, Interrupted, RestoredOperators, SharedPlugin},
    },
    wasm::CancelFlag,
};

/// Messages queued for one task: far more than it has sources.
const MAILBOX_MESSAGES_MAX: usize = 256;
/// Messages put aside while a task waits: for room in an output it may wait for hours, and
/// of each checkpoint that is given up meanwhile there are two.
const MESSAGES_PUT_ASIDE_MAX: usize = 100_000;
/// How long a task whose peer is gone waits to be told to stop, as it will be
/// when the JobMaster learns of the peer's end, before it fails by itself.
pub(super) const PEER_GONE_GRACE: Duration = Duration::from_secs(30);

/// Why a task was told to stop.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum StopReason {
    /// Cancelled.
    Canceled,
    /// Failed for a reason outside of it.
    Failed { code: &'static str, message: String },
}

/// What comes to a task, beside the order to stop.
#[derive(Debug)]
pub(super) enum TaskMessage {
    /// Look at the reason to stop.
    Stop,
    /// The answer to a request for a split.
    SplitAssigned(SplitAnswer),
    /// The answer to a report of a watermark.
    AlignWatermark(MaxAllowedWatermark),
    /// A checkpoint begins.
    TriggerCheckpoint(TriggerCheckpoint),
    /// A checkpoint is complete.
    CheckpointComplete(CheckpointId),
    /// A checkpoint was given up.
    CheckpointAborted(CheckpointId),
}

/// Reaches a task from any thread; never waits.
#[derive(Debug)]
pub(super) struct MailboxSender {
    messages: Sender<TaskMessage>,
    stop: Mutex<Option<StopReason>>,
    cancel: CancelFlag,
}

impl MailboxSender {
    /// Tells the task to stop, and a guest that is running. The first reason counts.
    pub(super) fn stop(&self, reason: StopReason) {
        let mut stop = self.stop.lock().expect("no code panics while it holds the lock");
        stop.get_or_insert(reason);
        drop(stop);
        self.cancel.cancel();
        match self.messages.try_send(TaskMessage::Stop) {
            // A full queue wakes the task as well, and an ended task needs no waking.
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }

    /// Hands over a message that must not be lost.
    pub(super) fn send(&self, message: TaskMessage) {
        match self.messages.try_send(message) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            Err(TrySendError::Full(_)) => self.stop_overrun(MAILBOX_MESSAGES_MAX),
        }
    }

    fn stop_overrun(&self, limit: usize) {
        let message = format!("more than {limit} messages came while the task was busy");
        self.stop(StopReason::Failed { code: "internal", message });
    }

    /// Hands over how far a source's watermark may rise. If there is no room, the answer to its
    /// next report will do.
    pub(super) fn align_watermark(&self, max_allowed: MaxAllowedWatermark) {
        drop(self.messages.try_send(TaskMessage::AlignWatermark(max_allowed)));
    }

    /// Why the task was told to stop, if it was.
    pub(super) fn stop_reason(&self) -> Option<StopReason> {
        self.stop.lock().expect("no code panics while it holds the lock").clone()
    }

    /// Set once the task was told to stop.
    pub(super) fn cancel_flag(&self) -> &CancelFlag {
        &self.cancel
    }
}

/// What a task waits for beside its mailbox.
pub(super) enum WaitFor<'a> {
    /// Nothing.
    Message,
    /// An element at any gate.
    Element(&'a InputGates),
    /// Room in a channel of a partition.
    Room(&'a ResultPartition, usize),
    /// Something that is being made ready.
    Prepared(&'a Receiver<Prepared>),
}

/// What another thread made ready for the task, or why there is none.
pub(super) enum Prepared {
    /// A plugin.
    Plugin(Result<SharedPlugin, FailureCause>),
    /// State that was kept.
    State(Result<RestoredOperators, CheckpointStorageError>),
}

/// The thread's end.
pub(super) struct Mailbox {
    messages: Receiver<TaskMessage>,
    sender: Arc<MailboxSender>,
    /// What has come and was not handled, in order.
    arrived: VecDeque<TaskMessage>,
    clock: Clock,
    times: Arc<TaskTimes>,
    peer_gone_grace: Duration,
}

impl Mailbox {
    pub(super) fn new(clock: Clock, times: Arc<TaskTimes>, peer_gone_grace: Duration) -> (Self, Arc<MailboxSender>) {
        let (sender, messages) = bounded(MAILBOX_MESSAGES_MAX);
        let sender = MailboxSender { messages: sender, stop: Mutex::new(None), cancel: CancelFlag::default() };
        let sender = Arc::new(sender);
        let to_task = Arc::clone(&sender);
        (Self { messages, sender, arrived: VecDeque::new(), clock, times, peer_gone_grace }, to_task)
    }

    /// Takes what has come.
    pub(super) fn take_messages(&mut self) -> Result<(), Interrupted> {
        while let Ok(message) = self.messages.try_recv() {
            match message {
                TaskMessage::Stop => {}
                message => self.arrived.push_back(message),
            }
            if MESSAGES_PUT_ASIDE_MAX < self.arrived.len() {
                self.sender.stop_overrun(MESSAGES_PUT_ASIDE_MAX);
            }
        }
        if self.sender.cancel_flag().is_canceled() { Err(Interrupted) } else { Ok(()) }
    }

    /// The next message, in the order in which they came.
    pub(super) fn next_message(&mut self) -> Option<TaskMessage> {
        self.arrived.pop_front()
    }

    /// True if a message has come that was not handled.
    pub(super) fn has_messages(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Waits for a message, for what `wait_for` names, or until so much time has passed.
    pub(super) fn wait(
        &mut self,
        waiting: Waiting,
        timeout: Option<Duration>,
        wait_for: WaitFor<'_>,
    ) -> Result<(), Interrupted> {
        self.times.begin(waiting, self.clock.monotonic());
        {
            let mut select = Select::new();
            select.recv(&self.messages);
            match wait_for {
                WaitFor::Message => {}
                WaitFor::Element(gates) => gates.wait_for_element(&mut select),
                WaitFor::Room(partition, channel) => partition.wait_for_room(channel, &mut select),
                WaitFor::Prepared(prepared) => {
                    select.recv(prepared);
                }
            }
            match timeout {
                // Whether it was the time or something else that came: the caller looks at all.
                Some(timeout) => drop(select.ready_timeout(timeout)),
                None => {
                    select.ready();
                }
            }
        }
        self.times.end(waiting, self.clock.monotonic());
        self.take_messages()
    }

    /// Waits to be told to stop, because a peer is gone; fails the task if nobody does.
    pub(super) fn wait_for_stop(&mut self, code: &'static str, message: &str) -> Interrupted {
        let deadline = self.clock.monotonic() + self.peer_gone_grace;
        loop {
            let left = deadline.saturating_sub(self.clock.monotonic());
            if left.is_zero() {
                self.sender.stop(StopReason::Failed { code, message: message.to_owned() });
            }
            if let Err(interrupted) = self.wait(Waiting::Idle, Some(left), WaitFor::Message) {
                return interrupted;
            }
        }
    }
}

impl Backpressure for Mailbox {
    fn wait_for_room(
        &mut self,
        partition: &ResultPartition,
        channel: usize,
        progress: Progress,
    ) -> Result<(), Interrupted> {
        match progress {
            Progress::Drained => Ok(()),
            Progress::Full => self.wait(Waiting::BackPressured, None, WaitFor::Room(partition, channel)),
            Progress::ConsumerGone => {
                let message = format!("the task that reads channel {channel} of an output has ended");
                Err(self.wait_for_stop("consumer-gone", &message))
            }
        }
    }
}
