//! Ready-made operators that keep the best records of each key: deduplication and top-n.
//!
//! Both are a [`RankFunction`], which keeps up to some number of records in an order
//! ([`Ranked`]) and hands out either each change of it or, at the end, what is left.

mod ranked;
mod rank_function;
mod deduplicate;
mod top_n;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use self::{
    deduplicate::{Deduplicate, EventTimeDeduplicate, Keep},
    top_n::TopN,
};
use self::{
    rank_function::{RankFunction, Ranking, Results},
    ranked::Ranked,
};
use crate::{
    bindings::engine::plugin::graph::{StateDeclaration, StateKind},
    graph::{Graph, state},
    record::Owned,
    state::TimeToLive,
};

/// Name of the only state.
const RECORDS: &str = "records";

/// Declares the state, with values of type `V`.
fn records_state<V: Owned>(time_to_live: Option<TimeToLive>) -> Vec<StateDeclaration> {
    let time_to_live = time_to_live.map(|ttl| ttl.duration_ms.cast_unsigned());
    vec![StateDeclaration { time_to_live, ..state::<V>(RECORDS, StateKind::Value) }]
}

/// Time-to-live of this duration from each change on.
fn since_change(duration: Duration, graph: &mut Graph) -> Option<TimeToLive> {
    let duration_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    if duration_ms == 0 {
        graph.error(format!("state_ttl: the time must be at least 1 ms, not {duration:?}"));
    }
    Some(TimeToLive { duration_ms, on_read: false })
}
