//! Which subtasks share a slot: at most one of each vertex, all of one sharing group.
//!
//! Decided once for a job, since its topology never changes; there are as many
//! shared slots as the greatest parallelism of each group, summed over the groups.
//! Source: Flink's `LocalInputPreferredSlotSharingStrategy`.

use std::collections::{BTreeSet, HashMap, HashSet};

use super::execution_graph::{ExecutionGraph, VertexIndex};
use crate::graph::job_graph::ResourceProfile;

/// Number of a shared slot, zero-based.
pub type SharedSlotIndex = usize;

/// Subtasks that run in one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedSlot {
    /// The slot sharing group of all of them.
    pub group: String,
    /// The subtasks, ascending.
    pub vertices: Vec<VertexIndex>,
    /// What they need together; none: unknown.
    pub resources: Option<ResourceProfile>,
}

/// The shared slots of a job.
#[derive(Clone, Debug, PartialEq)]
pub struct SlotSharing {
    /// The slots.
    pub slots: Vec<SharedSlot>,
    /// `[vertex]`: its slot.
    pub slot_of: Vec<SharedSlotIndex>,
    /// All slots, in the order in which they are filled: what the first region needs first.
    pub fill_order: Vec<SharedSlotIndex>,
}

impl SlotSharing {
    /// Assigns every subtask: to the slot of its co-location constraint, else to that
    /// of a producer, else to the first of its group without a subtask of its vertex,
    /// else to another slot.
    pub fn new(graph: &ExecutionGraph) -> Self {
        let mut assignment = Assignment::default();
        for job_vertex in graph.job_vertices() {
            assignment.assign(graph, job_vertex.first, job_vertex.job_vertex.parallelism);
        }
        let slot_of: Vec<_> = (0..graph.vertex_count()).map(|vertex| assignment.slot_of[&vertex]).collect();
        let mut slots = assignment.slots;
        for slot in &mut slots {
            slot.vertices.sort_unstable();
            slot.resources = total_resources(graph, &slot.vertices);
        }
        let mut fill_order = Vec::with_capacity(slots.len());
        let mut seen = HashSet::new();
        for vertex in graph.regions().vertices.iter().flatten() {
            if seen.insert(slot_of[*vertex]) {
                fill_order.push(slot_of[*vertex]);
            }
        }
        assert_eq!(fill_order.len(), slots.len(), "every slot has a subtask and every subtask a region");
        Self { slots, slot_of, fill_order }
    }
}

#[derive(Default)]
struct Assignment {
    slots: Vec<SharedSlot>,
    slot_of: HashMap<VertexIndex, SharedSlotIndex>,
    by_group: HashMap<String, Vec<SharedSlotIndex>>,
    /// Slots by sharing group, co-location group and subtask index.
    co_located: HashMap<(String, String, u32), SharedSlotIndex>,
}

impl Assignment {
    fn assign(&mut self, graph: &ExecutionGraph, first: VertexIndex, parallelism: u32) {
        let job_vertex = &graph.job_vertex_of(first).job_vertex;
        let group = &job_vertex.slot_sharing_group;
        let constraint = |subtask_index: u32| {
            let co_location = job_vertex.co_location_group.clone()?;
            Some((group.clone(), co_location, subtask_index))
        };
        let mut taken = BTreeSet::new();
        let mut open = Vec::new();
        for subtask_index in 0..parallelism {
            let slot = constraint(subtask_index).and_then(|key| self.co_located.get(&key).copied());
            match slot {
                Some(slot) if taken.insert(slot) => self.place(first + subtask_index as usize, slot),
                Some(_) | None => open.push(subtask_index),
            }
        }
        open.retain(|subtask_index| {
            let vertex = first + *subtask_index as usize;
            let slot = graph
                .producers_of(vertex)
                .map(|producer| self.slot_of[&producer])
                .find(|slot| self.slots[*slot].group == *group && !taken.contains(slot));
            match slot {
                Some(slot) => {
                    taken.insert(slot);
                    self.place(vertex, slot);
                    false
                }
                None => true,
            }
        });
        let mut free = self.by_group.get(group).cloned().unwrap_or_default();
        free.retain(|slot| !taken.contains(slot));
        let mut free = free.into_iter();
        for subtask_index in open {
            let slot = free.next().unwrap_or_else(|| self.add_slot(group));
            self.place(first + subtask_index as usize, slot);
        }
        for subtask_index in 0..parallelism {
            if let Some(key) = constraint(subtask_index) {
                self.co_located.entry(key).or_insert(self.slot_of[&(first + subtask_index as usize)]);
            }
        }
    }

    fn place(&mut self, vertex: VertexIndex, slot: SharedSlotIndex) {
        self.slots[slot].vertices.push(vertex);
        self.slot_of.insert(vertex, slot);
    }

    fn add_slot(&mut self, group: &str) -> SharedSlotIndex {
        let slot = self.slots.len();
        self.slots.push(SharedSlot { group: group.to_owned(), vertices: Vec::new(), resources: None });
        self.by_group.entry(group.to_owned()).or_default().push(slot);
        slot
    }
}

/// The sum over all subtasks; none if any of them is unknown.
fn total_resources(graph: &ExecutionGraph, vertices: &[VertexIndex]) -> Option<ResourceProfile> {
    let mut total = ResourceProfile { cpu_cores: 0.0, memory: 0 };
    for vertex in vertices {
        let resources = graph.job_vertex_of(*vertex).job_vertex.resources?;
        total.cpu_cores += resources.cpu_cores;
        total.memory = total.memory.saturating_add(resources.memory);
    }
    Some(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        base::{clock::Timestamp, ids::ExecutionGraphId},
        graph::job_graph::{DistributionPattern, JobVertex},
        job_manager::job_master::testing::GraphBuilder,
    };

    fn slots(builder: GraphBuilder) -> Vec<String> {
        let vertices = builder.build();
        let id = ExecutionGraphId::from_bytes([1; 16]);
        let graph = ExecutionGraph::attach(&vertices, id, 16, Timestamp(0)).unwrap();
        let sharing = SlotSharing::new(&graph);
        for (vertex, slot) in sharing.slot_of.iter().enumerate() {
            assert!(sharing.slots[*slot].vertices.contains(&vertex));
        }
        let name = |vertex: &usize| {
            let JobVertex { name, .. } = &graph.job_vertex_of(*vertex).job_vertex;
            format!("{name}{}", graph.vertex(*vertex).id().subtask_index)
        };
        sharing.slots.iter().map(|slot| slot.vertices.iter().map(name).collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn a_job_needs_as_many_slots_as_its_greatest_parallelism() {
        let builder = GraphBuilder::default()
            .vertex("a", 1)
            .vertex("b", 3)
            .vertex("c", 2)
            .edge("a", "b", DistributionPattern::AllToAll)
            .edge("b", "c", DistributionPattern::AllToAll);
        assert_eq!(slots(builder), ["a0 b0 c0", "b1 c1", "b2"]);
    }

    #[test]
    fn a_subtask_prefers_the_slot_of_its_producer() {
        let builder =
            GraphBuilder::default().vertex("a", 4).vertex("b", 2).edge("a", "b", DistributionPattern::Pointwise);
        // b1 reads a2 and a3.
        assert_eq!(slots(builder), ["a0 b0", "a1", "a2 b1", "a3"]);
    }

    #[test]
    fn groups_do_not_share() {
        let builder = GraphBuilder::default()
            .vertex("a", 2)
            .vertex_in_group("b", 2, "other")
            .vertex("c", 1)
            .edge("a", "b", DistributionPattern::Pointwise)
            .edge("b", "c", DistributionPattern::AllToAll);
        assert_eq!(slots(builder), ["a0 c0", "a1", "b0", "b1"]);
    }

    #[test]
    fn co_located_subtasks_of_one_index_share_although_a_producer_is_elsewhere() {
        let builder = || {
            GraphBuilder::default().vertex("a", 4).vertex("b", 2).vertex("c", 2).edge(
                "a",
                "c",
                DistributionPattern::Pointwise,
            )
        };
        // c1 reads a2 and a3.
        assert_eq!(slots(builder()), ["a0 b0 c0", "a1 b1", "a2 c1", "a3"]);
        assert_eq!(slots(builder().co_locate("b", "x").co_locate("c", "x")), ["a0 b0 c0", "a1 b1 c1", "a2", "a3"]);
    }

    #[test]
    fn the_slots_of_the_first_region_are_filled_first() {
        let vertices = GraphBuilder::default()
            .vertex("a", 2)
            .vertex_in_group("b", 2, "other")
            .edge("a", "b", DistributionPattern::Pointwise)
            .build();
        let id = ExecutionGraphId::from_bytes([1; 16]);
        let graph = ExecutionGraph::attach(&vertices, id, 16, Timestamp(0)).unwrap();
        // Slots 0 and 1 are for a, 2 and 3 for b; each region needs one of both.
        assert_eq!(SlotSharing::new(&graph).fill_order, [0, 2, 1, 3]);
    }
}
