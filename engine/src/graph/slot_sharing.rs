//! How many slots a job needs.

use std::collections::BTreeMap;

use super::job_graph::JobGraph;

/// Slots by slot sharing group: subtasks of one index of all its vertices share
/// one, so that a group needs as many as its largest parallelism.
pub fn slots_by_group(job_graph: &JobGraph) -> BTreeMap<&str, u32> {
    let mut slots = BTreeMap::new();
    for vertex in &job_graph.vertices {
        let needed = slots.entry(vertex.slot_sharing_group.as_str()).or_insert(0);
        *needed = vertex.parallelism.max(*needed);
    }
    slots
}

/// Slots of the whole job.
pub fn slots_needed(job_graph: &JobGraph) -> u64 {
    slots_by_group(job_graph).values().map(|slots| u64::from(*slots)).sum()
}
