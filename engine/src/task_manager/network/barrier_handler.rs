//! When a task takes its snapshot: waits for the barriers of all channels.
//!
//! Exactly once: a channel whose barrier has come is blocked until those of the others
//! have, so that no row behind the barrier gets into the snapshot. At least once: barriers
//! are only counted. Pure: decides, and is told what time it is.
//!
//! Source: Flink's `SingleCheckpointBarrierHandler` and `CheckpointBarrierTracker`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    base::stream_element::{CheckpointBarrier, CheckpointId, CheckpointingMode},
    failpoint,
    protocol::job_master::CheckpointFailureReason,
};

/// Checkpoints whose barriers are counted at once, and those remembered as given up.
const PENDING_MAX: usize = 50;

/// What the task does next, in order.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum BarrierAction {
    /// Do not read the channel.
    Block(usize),
    /// Read the channels again.
    Unblock(Vec<usize>),
    /// Take the snapshot.
    Trigger(AlignedCheckpoint),
    /// The checkpoint is given up: tell the consumers, and, with a reason, the JobMaster.
    Abort(CheckpointId, Option<CheckpointFailureReason>),
}

/// A checkpoint all of whose barriers have come.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct AlignedCheckpoint {
    /// One of the barriers; all are the same.
    pub barrier: CheckpointBarrier,
    /// Time from the first barrier to the last.
    pub alignment: Duration,
    /// Bytes of rows that came in meanwhile.
    pub processed_bytes: u64,
}

#[derive(Debug)]
struct Alignment {
    barrier: CheckpointBarrier,
    arrived: Vec<bool>,
    begun: Duration,
    processed_bytes: u64,
    /// It is only counted to its end.
    is_aborted: bool,
}

/// The barriers of one task, over the channels of all its gates.
///
/// # Invariants
/// What is pending is above `closed`; exactly once, at most one checkpoint is. A checkpoint
/// is triggered or given up, once.
#[derive(Debug)]
pub struct CheckpointBarrierHandler {
    mode: CheckpointingMode,
    /// Whether checkpoints go on when a channel has ended.
    after_tasks_finish: bool,
    ended: Vec<bool>,
    pending: BTreeMap<CheckpointId, Alignment>,
    /// Barriers up to here are ignored.
    closed: CheckpointId,
    /// Given up by the JobMaster before a barrier came.
    aborted: BTreeSet<CheckpointId>,
}

impl CheckpointBarrierHandler {
    /// For a task with so many channels.
    pub fn new(mode: CheckpointingMode, after_tasks_finish: bool, channels: usize) -> Self {
        Self {
            mode,
            after_tasks_finish,
            ended: vec![false; channels],
            pending: BTreeMap::new(),
            closed: 0,
            aborted: BTreeSet::new(),
        }
    }

    /// A barrier came. Times are on the monotonic clock.
    pub fn process_barrier(&mut self, channel: usize, barrier: CheckpointBarrier, now: Duration) -> Vec<BarrierAction> {
        let mut actions = Vec::new();
        let id = barrier.checkpoint_id;
        self.begin(barrier, now, &mut actions);
        if let Some(alignment) = self.pending.get_mut(&id) {
            alignment.arrived[channel] = true;
            if self.mode == CheckpointingMode::ExactlyOnce {
                actions.push(BarrierAction::Block(channel));
            }
        }
        self.trigger_aligned(now, &mut actions);
        actions
    }

    /// The JobMaster triggers the checkpoint: no producer that runs sends a barrier. What
    /// producers that have finished left is read first.
    pub fn process_trigger(&mut self, barrier: CheckpointBarrier, now: Duration) -> Vec<BarrierAction> {
        let mut actions = Vec::new();
        self.begin(barrier, now, &mut actions);
        self.trigger_aligned(now, &mut actions);
        actions
    }

    /// A producer gave the checkpoint up.
    pub fn process_cancellation(&mut self, checkpoint_id: CheckpointId) -> Vec<BarrierAction> {
        let mut actions = Vec::new();
        if checkpoint_id <= self.closed || self.pending.get(&checkpoint_id).is_some_and(|it| it.is_aborted) {
            return actions;
        }
        self.give_up_below(checkpoint_id, &mut actions);
        self.give_up(
            checkpoint_id,
            Some(CheckpointFailureReason::CheckpointDeclinedOnCancellationBarrier),
            &mut actions,
        );
        self.close(checkpoint_id);
        actions
    }

    /// The JobMaster gave the checkpoint up.
    pub fn process_abort(&mut self, checkpoint_id: CheckpointId) -> Vec<BarrierAction> {
        let mut actions = Vec::new();
        if checkpoint_id <= self.closed {
            return actions;
        }
        match (self.pending.get_mut(&checkpoint_id), self.mode) {
            (None, _) => {
                self.aborted.insert(checkpoint_id);
                if PENDING_MAX < self.aborted.len() {
                    self.aborted.pop_first();
                }
            }
            (Some(_), CheckpointingMode::ExactlyOnce) => {
                self.give_up(checkpoint_id, None, &mut actions);
                self.close(checkpoint_id);
            }
            (Some(alignment), CheckpointingMode::AtLeastOnce) => {
                if !std::mem::replace(&mut alignment.is_aborted, true) {
                    actions.push(BarrierAction::Abort(checkpoint_id, None));
                }
            }
        }
        actions
    }

    /// A channel was read to its end.
    pub fn process_end_of_partition(&mut self, channel: usize, now: Duration) -> Vec<BarrierAction> {
        let mut actions = Vec::new();
        self.ended[channel] = true;
        if self.after_tasks_finish {
            self.trigger_aligned(now, &mut actions);
        } else if let Some(last) = self.pending.keys().next_back().copied() {
            let reason = CheckpointFailureReason::CheckpointDeclinedInputEndOfStream;
            for id in self.pending.keys().copied().collect::<Vec<_>>() {
                self.give_up(id, Some(reason), &mut actions);
            }
            self.close(last);
        }
        actions
    }

    /// Rows came in.
    pub fn process_bytes(&mut self, bytes: usize) {
        for alignment in self.pending.values_mut() {
            alignment.processed_bytes += bytes as u64;
        }
    }

    /// True if nothing more of the checkpoint is waited for.
    fn is_aligned(&self, alignment: &Alignment) -> bool {
        alignment.arrived.iter().zip(&self.ended).all(|(arrived, ended)| *arrived || *ended)
    }

    fn begin(&mut self, barrier: CheckpointBarrier, now: Duration, actions: &mut Vec<BarrierAction>) {
        let id = barrier.checkpoint_id;
        if id <= self.closed || self.pending.contains_key(&id) {
            return;
        }
        if self.mode == CheckpointingMode::ExactlyOnce {
            self.give_up_below(id, actions);
            self.close(id - 1);
        }
        let is_aborted = self.aborted.remove(&id);
        if is_aborted {
            actions.push(BarrierAction::Abort(id, None));
            if self.mode == CheckpointingMode::ExactlyOnce {
                self.close(id);
                return;
            }
        }
        failpoint!("barrier.first", infallible);
        let arrived = vec![false; self.ended.len()];
        self.pending.insert(id, Alignment { barrier, arrived, begun: now, processed_bytes: 0, is_aborted });
        if PENDING_MAX < self.pending.len() {
            self.pending.pop_first();
        }
    }

    /// Triggers what is complete; what is older can no longer be.
    fn trigger_aligned(&mut self, now: Duration, actions: &mut Vec<BarrierAction>) {
        let aligned = self.pending.iter().filter(|(_, alignment)| self.is_aligned(alignment));
        for id in aligned.map(|(id, _)| *id).collect::<Vec<_>>() {
            let alignment = self.pending.remove(&id).expect("it was found there");
            self.close(id);
            if alignment.is_aborted {
                continue;
            }
            failpoint!("barrier.aligned", infallible);
            let blocked = self.blocked(&alignment);
            let Alignment { barrier, begun, processed_bytes, .. } = alignment;
            let alignment = now.saturating_sub(begun);
            actions.push(BarrierAction::Trigger(AlignedCheckpoint { barrier, alignment, processed_bytes }));
            actions.extend(blocked.map(BarrierAction::Unblock));
        }
    }

    /// Channels that are blocked for a checkpoint; none if there are none.
    fn blocked(&self, alignment: &Alignment) -> Option<Vec<usize>> {
        let arrived = alignment.arrived.iter().zip(&self.ended).enumerate();
        let blocked: Vec<_> = arrived.filter(|(_, (arrived, ended))| **arrived && !**ended).map(|of| of.0).collect();
        (self.mode == CheckpointingMode::ExactlyOnce && !blocked.is_empty()).then_some(blocked)
    }

    fn give_up(&mut self, id: CheckpointId, reason: Option<CheckpointFailureReason>, actions: &mut Vec<BarrierAction>) {
        let pending = self.pending.remove(&id);
        if pending.as_ref().is_some_and(|alignment| alignment.is_aborted) {
            return;
        }
        actions.extend(pending.and_then(|alignment| self.blocked(&alignment)).map(BarrierAction::Unblock));
        actions.push(BarrierAction::Abort(id, reason));
    }

    fn give_up_below(&mut self, id: CheckpointId, actions: &mut Vec<BarrierAction>) {
        for older in self.pending.range(..id).map(|(id, _)| *id).collect::<Vec<_>>() {
            self.give_up(older, Some(CheckpointFailureReason::CheckpointSubsumed), actions);
        }
    }

    /// Ignores what comes of checkpoints up to this one.
    fn close(&mut self, id: CheckpointId) {
        self.closed = self.closed.max(id);
        self.pending = self.pending.split_off(&(self.closed + 1));
        self.aborted = self.aborted.split_off(&(self.closed + 1));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::base::{
        clock::Timestamp,
        stream_element::{CheckpointOptions, SnapshotKind, SnapshotLocation},
    };

    const VECTORS: &str = include_str!("barrier_handler.json");

    fn barrier(checkpoint_id: CheckpointId) -> CheckpointBarrier {
        let options = CheckpointOptions {
            kind: SnapshotKind::Checkpoint,
            mode: CheckpointingMode::ExactlyOnce,
            location: SnapshotLocation("somewhere".to_owned()),
            is_full: false,
        };
        CheckpointBarrier { checkpoint_id, triggered: Timestamp(0), options }
    }

    fn handler(mode: CheckpointingMode, channels: usize) -> CheckpointBarrierHandler {
        CheckpointBarrierHandler::new(mode, true, channels)
    }

    fn words(actions: &[BarrierAction]) -> Value {
        let word = |action: &BarrierAction| match action {
            BarrierAction::Block(channel) => serde_json::json!(["BLOCK", channel]),
            BarrierAction::Unblock(channels) => serde_json::json!(["UNBLOCK", channels]),
            BarrierAction::Trigger(aligned) => serde_json::json!(["TRIGGER", aligned.barrier.checkpoint_id]),
            BarrierAction::Abort(id, reason) => {
                let reason = match reason {
                    Some(CheckpointFailureReason::CheckpointSubsumed) => "SUBSUMED",
                    Some(CheckpointFailureReason::CheckpointDeclinedOnCancellationBarrier) => "CANCELLED",
                    other => panic!("{other:?}"),
                };
                serde_json::json!(["ABORT", id, reason])
            }
        };
        actions.iter().map(word).collect()
    }

    /// A barrier that is dropped makes nothing: its channel is not blocked.
    fn expected(step: &Value) -> Value {
        if step["out"] == serde_json::json!([["IGNORE"]]) { serde_json::json!([]) } else { step["out"].clone() }
    }

    #[test]
    fn the_cases_of_flink_come_out_alike() {
        let vectors: Value = serde_json::from_str(VECTORS).unwrap();
        let mut cases = 0;
        for (kind, mode) in [("aligned", CheckpointingMode::ExactlyOnce), ("tracker", CheckpointingMode::AtLeastOnce)] {
            for case in vectors[kind].as_array().unwrap() {
                let channels = usize::try_from(case["channels"].as_u64().unwrap()).unwrap();
                let mut handler = handler(mode, channels);
                for (index, step) in case["steps"].as_array().unwrap().iter().enumerate() {
                    let channel = usize::try_from(step["channel"].as_u64().unwrap()).unwrap();
                    let checkpoint = step["checkpoint"].as_u64();
                    let actions = match step["event"].as_str().unwrap_or("barrier") {
                        "barrier" => handler.process_barrier(channel, barrier(checkpoint.unwrap()), Duration::ZERO),
                        "cancel_marker" => handler.process_cancellation(checkpoint.unwrap()),
                        "end_of_partition" => handler.process_end_of_partition(channel, Duration::ZERO),
                        other => panic!("{other}"),
                    };
                    assert_eq!(words(&actions), expected(step), "{}, step {index}", case["name"]);
                }
                cases += 1;
            }
        }
        assert_eq!(cases, 14);
    }

    #[test]
    fn a_trigger_waits_for_what_finished_producers_left() {
        let mut handler = handler(CheckpointingMode::ExactlyOnce, 2);
        assert_eq!(words(&handler.process_end_of_partition(1, Duration::ZERO)), serde_json::json!([]));
        assert_eq!(words(&handler.process_trigger(barrier(4), Duration::ZERO)), serde_json::json!([]));
        let actions = handler.process_end_of_partition(0, Duration::from_millis(3));
        assert_eq!(words(&actions), serde_json::json!([["TRIGGER", 4]]));
        assert!(matches!(&actions[0], BarrierAction::Trigger(of) if of.alignment == Duration::from_millis(3)));
        assert_eq!(words(&handler.process_trigger(barrier(4), Duration::ZERO)), serde_json::json!([]));
        assert_eq!(words(&handler.process_trigger(barrier(5), Duration::ZERO)), serde_json::json!([["TRIGGER", 5]]));
    }

    #[test]
    fn what_the_job_master_gave_up_is_passed_on_once_and_not_declined() {
        use BarrierAction::{Abort, Block, Unblock};
        let now = Duration::ZERO;
        let mut exactly = handler(CheckpointingMode::ExactlyOnce, 2);
        assert_eq!(exactly.process_abort(1), []);
        assert_eq!(exactly.process_barrier(0, barrier(1), now), [Abort(1, None)]);
        assert_eq!(exactly.process_barrier(1, barrier(1), now), []);
        assert_eq!(exactly.process_barrier(1, barrier(2), now), [Block(1)]);
        assert_eq!(exactly.process_abort(2), [Unblock(vec![1]), Abort(2, None)]);
        assert_eq!(exactly.process_abort(2), []);
        assert_eq!(exactly.process_cancellation(2), []);
        assert_eq!(exactly.process_barrier(0, barrier(2), now), []);

        let mut at_least = handler(CheckpointingMode::AtLeastOnce, 2);
        assert_eq!(at_least.process_barrier(0, barrier(1), now), []);
        assert_eq!(at_least.process_abort(2), []);
        assert_eq!(at_least.process_barrier(0, barrier(2), now), [Abort(2, None)]);
        assert_eq!(at_least.process_barrier(1, barrier(1), now).len(), 1, "1 is not given up");
        assert_eq!(at_least.process_barrier(1, barrier(2), now), []);
    }

    #[test]
    fn without_checkpoints_after_tasks_finish_an_end_gives_the_checkpoint_up() {
        let mut handler = CheckpointBarrierHandler::new(CheckpointingMode::ExactlyOnce, false, 2);
        handler.process_barrier(0, barrier(1), Duration::ZERO);
        let reason = CheckpointFailureReason::CheckpointDeclinedInputEndOfStream;
        let expected = [BarrierAction::Unblock(vec![0]), BarrierAction::Abort(1, Some(reason))];
        assert_eq!(handler.process_end_of_partition(1, Duration::ZERO), expected);
    }

    #[test]
    fn bytes_and_time_of_the_alignment_are_measured() {
        let mut handler = handler(CheckpointingMode::ExactlyOnce, 2);
        handler.process_bytes(5);
        handler.process_barrier(0, barrier(1), Duration::from_millis(10));
        handler.process_bytes(7);
        handler.process_bytes(8);
        let actions = handler.process_barrier(1, barrier(1), Duration::from_millis(25));
        let Some(BarrierAction::Trigger(aligned)) = actions.get(1) else { panic!("{actions:?}") };
        assert_eq!((aligned.alignment, aligned.processed_bytes), (Duration::from_millis(15), 15));
    }

    proptest! {
        /// Channels send barriers, cancellations in their place, and an end. What is triggered ascends,
        /// and every channel is open again in the end.
        #[test]
        fn channels_are_blocked_in_pairs_and_snapshots_ascend(
            cuts in prop::collection::vec((0_usize..3, 0_u8..6), 1..60),
        ) {
            let mut handler = handler(CheckpointingMode::ExactlyOnce, 3);
            let mut next = [1_u64; 3];
            let mut blocked = [false; 3];
            let mut last = 0;
            let mut settle = |actions: Vec<BarrierAction>, blocked: &mut [bool; 3]| {
                for action in actions {
                    match action {
                        BarrierAction::Block(channel) => assert!(!std::mem::replace(&mut blocked[channel], true)),
                        BarrierAction::Unblock(channels) => {
                            channels.iter().for_each(|channel| {
                                assert!(std::mem::replace(&mut blocked[*channel], false));
                            });
                        }
                        BarrierAction::Trigger(aligned) => {
                            assert!(last < aligned.barrier.checkpoint_id);
                            last = aligned.barrier.checkpoint_id;
                        }
                        BarrierAction::Abort(..) => {}
                    }
                }
            };
            for (channel, what) in cuts {
                if blocked[channel] {
                    continue;
                }
                let id = next[channel];
                next[channel] += 1;
                let actions = match what {
                    0 => handler.process_cancellation(id),
                    1 => handler.process_abort(id),
                    _ => handler.process_barrier(channel, barrier(id), Duration::ZERO),
                };
                settle(actions, &mut blocked);
            }
            for channel in 0..3 {
                let actions = handler.process_end_of_partition(channel, Duration::ZERO);
                blocked[channel] = false;
                settle(actions, &mut blocked);
            }
            prop_assert_eq!(blocked, [false; 3]);
        }
    }
}
