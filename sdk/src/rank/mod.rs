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
    graph::state,
    record::Owned,
    state::{StateBackend, TimeToLive, ValueCache},
};

/// Name of the only state.
const RECORDS: &str = "records";

/// Declares the state, with values of type `V`.
fn records_state<V: Owned>(time_to_live: Option<TimeToLive>, results: Results) -> Vec<StateDeclaration> {
    let time_to_live = time_to_live.map(|ttl| ttl.duration_ms.cast_unsigned());
    let taken_at_end = results == Results::AtEnd;
    vec![StateDeclaration { time_to_live, taken_at_end, ..state::<V>(RECORDS, StateKind::Value) }]
}

/// The state at work.
fn records<V: Owned>(states: &StateBackend, time_to_live: Option<TimeToLive>) -> ValueCache<V> {
    let mut records = states.value(RECORDS);
    if let Some(time_to_live) = time_to_live {
        records.set_time_to_live(time_to_live);
    }
    records
}
