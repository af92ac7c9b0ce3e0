//! Which of the checkpoints that were asked for is begun next. Source: Flink's `CheckpointRequestDecider`.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    base::{
        clock::Timestamp,
        stream_element::{SnapshotKind, SnapshotLocation},
    },
    protocol::job_master::CheckpointFailureReason,
};

/// Requests that wait; see [`RequestDecider::submit`].
const QUEUED_MAX: usize = 1000;

/// Why a checkpoint is asked for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Occasion {
    /// Its time has come.
    Periodic,
    /// All tasks have processed their input and wait for it.
    EndOfData,
    /// A user asked, by the message of that number.
    User(u64),
}

/// A checkpoint that is asked for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CheckpointRequest {
    /// Why.
    pub occasion: Occasion,
    /// What for.
    pub kind: SnapshotKind,
    /// Where to; none: among the job's checkpoints.
    pub target: Option<SnapshotLocation>,
    /// All state is to be written.
    pub is_full: bool,
    /// Passes those that are under way.
    pub is_forced: bool,
}

/// Savepoints first, then forced ones, then those that somebody waits for, then by time and number.
type Rank = (bool, bool, bool, Timestamp, u64);

/// What may be begun.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Decision {
    /// Nothing now.
    Nothing,
    /// This one.
    Begin(CheckpointRequest),
    /// This one is dropped; the next periodic one may come after the pause.
    TooEarly(CheckpointRequest, Duration),
}

/// How things stand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    /// Checkpoints under way.
    pub pending: usize,
    /// Deletions under way.
    pub cleaning: usize,
    /// When the last one completed.
    pub last_completion: Option<Timestamp>,
}

/// The queue.
#[derive(Clone, Debug)]
pub struct RequestDecider {
    max_concurrent: usize,
    min_pause: Duration,
    queued: BTreeMap<Rank, CheckpointRequest>,
    submitted: u64,
}

impl RequestDecider {
    /// Makes an empty queue.
    pub fn new(max_concurrent: usize, min_pause: Duration) -> Self {
        Self { max_concurrent, min_pause, queued: BTreeMap::new(), submitted: 0 }
    }

    /// Queues a request. If there are too many, the last one is dropped, which is returned: a
    /// periodic one if there is any, else the new one.
    pub fn submit(&mut self, request: CheckpointRequest, now: Timestamp) -> Option<CheckpointRequest> {
        self.submitted += 1;
        let is_periodic = request.occasion == Occasion::Periodic;
        let rank = (!request.kind.is_savepoint(), !request.is_forced, is_periodic, now, self.submitted);
        if QUEUED_MAX <= self.queued.len() {
            let last = self.queued.last_entry().filter(|last| last.get().occasion == Occasion::Periodic);
            let Some(last) = last else { return Some(request) };
            let dropped = last.remove();
            self.queued.insert(rank, request);
            return Some(dropped);
        }
        self.queued.insert(rank, request);
        None
    }

    /// Takes the request that may be begun now.
    pub fn choose(&mut self, load: Load, now: Timestamp) -> Decision {
        if self.max_concurrent < load.cleaning {
            return Decision::Nothing;
        }
        let Some(first) = self.queued.first_entry() else { return Decision::Nothing };
        let request = first.get();
        if self.max_concurrent <= load.pending && !request.is_forced {
            return Decision::Nothing;
        }
        if !request.is_forced && request.occasion == Occasion::Periodic {
            let earliest = load.last_completion.map_or(Timestamp::MIN, |last| last.plus(self.min_pause));
            if now < earliest {
                return Decision::TooEarly(first.remove(), earliest.since(now));
            }
        }
        Decision::Begin(first.remove())
    }

    /// True if something waits for which time alone is not the reason.
    pub fn has_unforced(&self) -> bool {
        self.queued.values().any(|request| !request.kind.is_savepoint())
    }

    /// Drops all requests.
    pub fn clear(&mut self) -> Vec<CheckpointRequest> {
        std::mem::take(&mut self.queued).into_values().collect()
    }
}

/// What somebody who asked for too much reads.
pub const TOO_MANY: CheckpointFailureReason = CheckpointFailureReason::TooManyCheckpointRequests;

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request(name: &str) -> CheckpointRequest {
        let (occasion, kind, is_forced) = match name {
            "periodic" | "periodic checkpoint" => (Occasion::Periodic, SnapshotKind::Checkpoint, false),
            "user checkpoint" => (Occasion::User(1), SnapshotKind::Checkpoint, false),
            "savepoint" | "unforced savepoint" | "savepoint(not forced)" => {
                (Occasion::User(2), SnapshotKind::Savepoint, false)
            }
            "forced savepoint" | "savepoint(forced)" => (Occasion::User(3), SnapshotKind::Savepoint, true),
            other => panic!("{other}"),
        };
        CheckpointRequest { occasion, kind, target: None, is_full: false, is_forced }
    }

    fn case(name: &str) -> Value {
        let text = include_str!("../../../../tests-data/job_master/checkpoint_coordinator.json");
        let vectors: Value = serde_json::from_str(text).unwrap();
        let cases = vectors["decider"].as_array().unwrap();
        // The sixth, "another trigger in progress", cannot come: triggering is one step here.
        assert_eq!(cases.len(), 6);
        cases.iter().find(|case| case["name"].as_str().unwrap().starts_with(name)).unwrap().clone()
    }

    /// Name and time of "savepoint(forced) t=4".
    fn timed(text: &Value) -> (String, Timestamp) {
        let (name, time) = text.as_str().unwrap().rsplit_once(" t=").unwrap();
        (name.to_owned(), Timestamp(time.parse().unwrap()))
    }

    #[test]
    fn the_order_of_the_queue_is_flinks() {
        let case = case("queue order");
        let mut decider = RequestDecider::new(1, Duration::ZERO);
        for queued in case["queued"].as_array().unwrap() {
            let (name, time) = timed(queued);
            assert_eq!(decider.submit(request(&name), time), None);
        }
        for executed in case["executed_in_order"].as_array().unwrap() {
            let expected = request(&timed(executed).0);
            assert_eq!(decider.choose(Load::default(), Timestamp(5)), Decision::Begin(expected));
        }
        assert_eq!(decider.choose(Load::default(), Timestamp(5)), Decision::Nothing);
    }

    #[test]
    fn only_a_forced_request_passes_those_under_way() {
        let case = case("max concurrent");
        let load = Load { pending: case["pending"].as_u64().unwrap() as usize, ..Load::default() };
        let max_concurrent = case["max_concurrent"].as_u64().unwrap() as usize;
        for (name, outcome) in case["requests"].as_object().unwrap() {
            let mut decider = RequestDecider::new(max_concurrent, Duration::ZERO);
            decider.submit(request(name), Timestamp(0));
            let runs = decider.choose(load, Timestamp(0)) == Decision::Begin(request(name));
            assert_eq!(runs, outcome == "runs", "{name}");
        }
    }

    #[test]
    fn a_pause_holds_periodic_checkpoints_only() {
        let case = case("min pause");
        let now = Timestamp(1000);
        let since = case["since_last_completion_ms"].as_i64().unwrap();
        let load = Load { last_completion: Some(Timestamp(now.0 - since)), ..Load::default() };
        let pause = Duration::from_millis(case["min_pause_ms"].as_u64().unwrap());
        for (name, outcome) in case["requests"].as_object().unwrap() {
            let mut decider = RequestDecider::new(1, pause);
            decider.submit(request(name), now);
            let expected = match outcome.as_str().unwrap() {
                "runs" => Decision::Begin(request(name)),
                text => {
                    assert!(text.ends_with("re-armed for the 5 ms left"), "{text}");
                    Decision::TooEarly(request(name), Duration::from_millis(5))
                }
            };
            assert_eq!(decider.choose(load, now), expected, "{name}");
        }
    }

    #[test]
    fn a_full_queue_drops_a_periodic_request_or_refuses() {
        let outcomes = case("queue full (1000)")["requests"].clone();
        assert_eq!(outcomes.as_object().unwrap().len(), 2);
        let full = |with_periodic: bool| {
            let mut decider = RequestDecider::new(1, Duration::ZERO);
            for _ in 0..QUEUED_MAX - usize::from(with_periodic) {
                assert_eq!(decider.submit(request("user checkpoint"), Timestamp(0)), None);
            }
            if with_periodic {
                assert_eq!(decider.submit(request("periodic"), Timestamp(0)), None);
            }
            decider.submit(request("savepoint"), Timestamp(1))
        };
        assert_eq!(full(true), Some(request("periodic")));
        assert_eq!(full(false), Some(request("savepoint")));
    }

    #[test]
    fn nothing_runs_while_too_many_are_cleaned() {
        let case = case("too many checkpoints");
        let mut decider = RequestDecider::new(case["max_concurrent"].as_u64().unwrap() as usize, Duration::ZERO);
        decider.submit(request("forced savepoint"), Timestamp(0));
        let cleaning = case["cleaning"].as_u64().unwrap() as usize;
        assert_eq!(decider.choose(Load { cleaning, ..Load::default() }, Timestamp(0)), Decision::Nothing);
        let load = Load { cleaning: cleaning - 1, ..Load::default() };
        assert_eq!(decider.choose(load, Timestamp(0)), Decision::Begin(request("forced savepoint")));
    }
}
