//! Deals the state of a checkpoint to the subtasks of a job, whose parallelism may be another.
//! Source: Flink's `StateAssignmentOperation`, `RoundRobinOperatorStateRepartitioner` and
//! `VertexFinishedStateChecker`.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    CheckpointMetadata, DistributionMode, FinishedState, KeyedStateHandle, OperatorListState, OperatorState,
    OperatorSubtaskState, TaskRestore,
    evolution::{Evolution, evolution},
};
use crate::{
    base::{
        ids::{JobVertexId, OperatorId},
        key_group::key_group_range,
        stream_element::SnapshotLocation,
    },
    connector::{Committable, RestoredSource},
    graph::{
        job_graph::{ChainedOperator, DistributionPattern, JobVertex},
        stream_graph::{Operator, StateDeclaration},
    },
};

/// A checkpoint does not fit a job: one line that says what, where and what to do.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct AssignmentError(pub String);

/// A checkpoint, dealt to the parts of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobRestore {
    /// By vertex and subtask index; vertices none of whose operators had state are left out.
    pub tasks: BTreeMap<JobVertexId, Vec<Option<TaskRestore>>>,
    /// By node id of native sources.
    pub sources: BTreeMap<u32, RestoredSource>,
    /// By node id of native sinks: what the checkpoint commits.
    pub committables: BTreeMap<u32, Vec<Committable>>,
    /// Vertices whose derived number of key groups becomes that of the checkpoint.
    pub max_parallelisms: BTreeMap<JobVertexId, u32>,
}

/// Deals the state.
///
/// # Errors
/// Returns an error if state would be lost and that is not allowed, or key groups or types do not fit.
pub fn assign_state(
    metadata: &CheckpointMetadata,
    location: &SnapshotLocation,
    vertices: &[JobVertex],
    allow_non_restored_state: bool,
) -> Result<JobRestore, AssignmentError> {
    let assignment = Assignment { metadata, location, allow_non_restored_state };
    assignment.check_all_operators_known(vertices)?;
    let finished = assignment.finished_vertices(vertices)?;
    let mut restore = JobRestore::default();
    for vertex in vertices {
        assignment.assign_vertex(vertex, finished.contains(&vertex.id), &mut restore)?;
    }
    Ok(restore)
}

struct Assignment<'a> {
    metadata: &'a CheckpointMetadata,
    location: &'a SnapshotLocation,
    allow_non_restored_state: bool,
}

/// An operator as messages name it.
fn shown(name: &str, uid: Option<&str>, id: OperatorId) -> String {
    match uid {
        Some(uid) => format!("operator {name:?} (uid {uid:?})"),
        None => format!("operator {name:?} (id {id})"),
    }
}

impl<'a> Assignment<'a> {
    fn error(&self, what: &str) -> AssignmentError {
        let kind = if self.metadata.kind.is_savepoint() { "savepoint" } else { "checkpoint" };
        AssignmentError(format!("{kind} {} in {}: {what}", self.metadata.checkpoint_id, self.location))
    }

    /// The state of an operator: that of the id which the program gave, else of the generated one.
    fn matched(&self, operator: &ChainedOperator) -> Option<&'a OperatorState> {
        let user_defined = operator.user_defined_id.and_then(|id| self.metadata.operators.get(&id));
        user_defined.or_else(|| self.metadata.operators.get(&operator.operator_id))
    }

    fn check_all_operators_known(&self, vertices: &[JobVertex]) -> Result<(), AssignmentError> {
        if self.allow_non_restored_state {
            return Ok(());
        }
        let operators = vertices.iter().flat_map(|vertex| &vertex.operators);
        let known: BTreeSet<_> =
            operators.flat_map(|operator| operator.user_defined_id.into_iter().chain([operator.operator_id])).collect();
        let lost =
            self.metadata.operators.values().find(|state| !known.contains(&state.operator_id) && !state.is_empty());
        lost.map_or(Ok(()), |state| {
            let operator = shown(&state.name, state.uid.as_deref(), state.operator_id);
            Err(self.error(&format!(
                "{operator} has state there, and the job has no such operator: give it its uid again, or give up its \
                 state with --allow-non-restored-state"
            )))
        })
    }

    /// Vertices that process nothing, as they had processed all.
    fn finished_vertices(&self, vertices: &[JobVertex]) -> Result<BTreeSet<JobVertexId>, AssignmentError> {
        let mut states = BTreeMap::new();
        for vertex in vertices {
            states.insert(vertex.id, (vertex, self.finished_state(vertex)?));
        }
        for (vertex, state) in states.values() {
            for input in &vertex.inputs {
                let Some((producer, before)) = states.get(&input.producer) else { continue };
                let is_right = match (state, input.pattern) {
                    (FinishedState::None, _) => true,
                    (FinishedState::Partly, DistributionPattern::Pointwise) => *before != FinishedState::None,
                    (FinishedState::Partly, DistributionPattern::AllToAll) | (FinishedState::Fully, _) => {
                        *before == FinishedState::Fully
                    }
                };
                if !is_right {
                    return Err(self.error(&format!(
                        "{:?} had finished there, and {:?} before it had not, or is new: no operator can be put before \
                         one that has finished",
                        vertex.name, producer.name
                    )));
                }
            }
        }
        let finished = states.values().filter(|(_, state)| *state == FinishedState::Fully);
        Ok(finished.map(|(vertex, _)| vertex.id).collect())
    }

    fn finished_state(&self, vertex: &JobVertex) -> Result<FinishedState, AssignmentError> {
        let of = |operator| self.matched(operator).map_or(FinishedState::None, |state| state.finished);
        let mut operators = vertex.operators.iter();
        let head = operators.next().map_or(FinishedState::None, of);
        let Some(other) = operators.find(|operator| of(operator) != head) else { return Ok(head) };
        let (finished, unfinished) =
            if head == FinishedState::None { (other, vertex.head()) } else { (vertex.head(), other) };
        Err(self.error(&format!(
            "of the chain {:?}, operator {:?} had finished there and {:?} had not, or is new: chain them as they were, \
             or leave the new one out",
            vertex.name, finished.node.name, unfinished.node.name
        )))
    }

    fn assign_vertex(
        &self,
        vertex: &JobVertex,
        is_finished: bool,
        restore: &mut JobRestore,
    ) -> Result<(), AssignmentError> {
        let max_parallelism = self.max_parallelism(vertex)?;
        if max_parallelism != vertex.max_parallelism {
            restore.max_parallelisms.insert(vertex.id, max_parallelism);
        }
        let mut tasks = vec![BTreeMap::new(); vertex.parallelism as usize];
        let mut had_state = false;
        for operator in &vertex.operators {
            let Some(state) = self.matched(operator) else { continue };
            had_state = true;
            self.assign_coordinated(operator, state, restore)?;
            if is_finished {
                continue;
            }
            self.check_keyed(operator, state)?;
            let keyed = keyed_states(state, vertex.parallelism, max_parallelism);
            let lists = self.list_states(operator, state, vertex.parallelism)?;
            for (task, (mut states, lists)) in tasks.iter_mut().zip(keyed.into_iter().zip(lists)) {
                if let Some(first) = states.first_mut() {
                    first.lists = lists;
                }
                states.retain(|state| !state.is_empty());
                if !states.is_empty() {
                    task.insert(operator.node.id, states);
                }
            }
        }
        if had_state {
            let task = |operators| {
                Some(TaskRestore {
                    checkpoint_id: self.metadata.checkpoint_id,
                    location: self.location.clone(),
                    operators,
                    is_finished,
                })
            };
            restore.tasks.insert(vertex.id, tasks.into_iter().map(task).collect());
        }
        Ok(())
    }

    /// Number of key groups of the vertex: its own, or that of the checkpoint.
    fn max_parallelism(&self, vertex: &JobVertex) -> Result<u32, AssignmentError> {
        let mut adopted: Option<(&OperatorState, &ChainedOperator)> = None;
        for operator in &vertex.operators {
            let Some(state) = self.matched(operator).filter(|state| !state.is_empty()) else { continue };
            let name = &operator.node.name;
            if let Some((other, of)) = adopted.filter(|(other, _)| other.max_parallelism != state.max_parallelism) {
                return Err(self.error(&format!(
                    "operator {:?} has a max parallelism of {} there and operator {name:?} one of {}, and both are in \
                     the chain {:?}: do not chain them",
                    of.node.name, other.max_parallelism, state.max_parallelism, vertex.name
                )));
            }
            if state.max_parallelism != vertex.max_parallelism && vertex.max_parallelism_configured {
                return Err(self.error(&format!(
                    "operator {name:?} has a max parallelism of {} there, and the job sets {}: set {0}, as keys cannot \
                     be dealt to another number of key groups",
                    state.max_parallelism, vertex.max_parallelism
                )));
            }
            if state.max_parallelism < vertex.parallelism {
                return Err(self.error(&format!(
                    "operator {name:?} has a max parallelism of {} there, which its parallelism of {} exceeds: use at \
                     most {0}",
                    state.max_parallelism, vertex.parallelism
                )));
            }
            adopted = Some((state, operator));
        }
        Ok(adopted.map_or(vertex.max_parallelism, |(state, _)| state.max_parallelism))
    }

    /// What goes to the JobMaster: splits of sources, and what sinks had ready.
    fn assign_coordinated(
        &self,
        operator: &ChainedOperator,
        state: &OperatorState,
        restore: &mut JobRestore,
    ) -> Result<(), AssignmentError> {
        let lost = |what: &str| {
            Err(self.error(&format!(
                "operator {:?} is {what} there, and in the job it is not: leave it as it was, give the new one another \
                 uid, or give up its state with --allow-non-restored-state",
                operator.node.name
            )))
        };
        let subtasks = || state.subtasks.iter();
        let splits = subtasks().flat_map(|(index, subtask)| subtask.splits.iter().map(|split| (*index, split.clone())));
        let splits: Vec<_> = splits.collect();
        if state.coordinator.is_some() || !splits.is_empty() {
            if matches!(operator.node.operator, Operator::Source(_)) {
                let enumerator = state.coordinator.clone().unwrap_or_default();
                restore.sources.insert(operator.node.id, RestoredSource { enumerator, splits });
            } else if !self.allow_non_restored_state {
                return lost("a source");
            }
        }
        let committables: Vec<_> = subtasks().flat_map(|(_, subtask)| subtask.committables.iter().cloned()).collect();
        if matches!(operator.node.operator, Operator::Sink(_)) {
            restore.committables.insert(operator.node.id, committables);
        } else if !committables.is_empty() && !self.allow_non_restored_state {
            return lost("a sink with output that is not visible yet");
        }
        Ok(())
    }

    fn check_keyed(&self, operator: &ChainedOperator, state: &OperatorState) -> Result<(), AssignmentError> {
        let node = &operator.node;
        for handle in state.subtasks.values().filter_map(|subtask| subtask.keyed.as_ref()) {
            if node.key_type.as_ref() != Some(&handle.key_type) {
                let now = node.key_type.as_deref().unwrap_or("none");
                return Err(self.error(&format!(
                    "operator {:?} has keys of type {} there, and in the job {now}: leave the type of the key as it \
                     was, or give the operator another uid",
                    node.name, handle.key_type
                )));
            }
            for old in &handle.states {
                self.check_state(operator, old, true)?;
            }
        }
        Ok(())
    }

    /// A state must still be there, with a type that its values can be read as.
    fn check_state(
        &self,
        operator: &ChainedOperator,
        old: &StateDeclaration,
        has_content: bool,
    ) -> Result<(), AssignmentError> {
        let name = &operator.node.name;
        let Some(new) = operator.node.states.iter().find(|new| new.name == old.name) else {
            if self.allow_non_restored_state || !has_content {
                return Ok(());
            }
            return Err(self.error(&format!(
                "state {:?} of operator {name:?} is not declared any more: declare it again, or give it up with \
                 --allow-non-restored-state",
                old.name
            )));
        };
        match evolution(old, new) {
            Evolution::Same | Evolution::Converted(_) => Ok(()),
            Evolution::Incompatible(reason) => Err(self.error(&format!(
                "state {:?} of operator {name:?} is {} there and {} in the job: {reason}; leave it as it was, or give \
                 the state another name",
                old.name,
                described(old),
                described(new)
            ))),
        }
    }

    /// The list states of each new subtask.
    fn list_states(
        &self,
        operator: &ChainedOperator,
        state: &OperatorState,
        parallelism: u32,
    ) -> Result<Vec<Vec<OperatorListState>>, AssignmentError> {
        let mut by_name: BTreeMap<&str, Vec<(u32, &OperatorListState)>> = BTreeMap::new();
        for (index, subtask) in &state.subtasks {
            for list in &subtask.lists {
                self.check_state(operator, &list.declaration, !list.elements.is_empty())?;
                by_name.entry(&list.declaration.name).or_default().push((*index, list));
            }
        }
        let mut dealt = vec![Vec::new(); parallelism as usize];
        let mut start = 0;
        for (name, lists) in by_name {
            let (_, first) = lists[0];
            let Some(declaration) = operator.node.states.iter().find(|new| new.name == name) else { continue };
            let conversion = match evolution(&first.declaration, declaration) {
                Evolution::Converted(conversion) => Some(conversion),
                Evolution::Same | Evolution::Incompatible(_) => None,
            };
            let is_same_parallelism = state.parallelism == parallelism;
            let elements = deal(first.mode, &lists, parallelism, is_same_parallelism, &mut start);
            for (subtask, elements) in dealt.iter_mut().zip(elements) {
                let Some(mut elements) = elements else { continue };
                if let Some(conversion) = &conversion {
                    elements =
                        elements.iter().map(|element| conversion.convert(element)).collect::<Result<_, _>>().map_err(
                            |problem| {
                                let name = &operator.node.name;
                                self.error(&format!(
                                    "an element of state {:?} of operator {name:?}: {problem}",
                                    declaration.name
                                ))
                            },
                        )?;
                }
                subtask.push(OperatorListState { declaration: declaration.clone(), mode: first.mode, elements });
            }
        }
        Ok(dealt)
    }
}

/// Kind and types of a state as messages show them.
fn described(state: &StateDeclaration) -> String {
    let map_key = state.map_key_type.as_ref().map_or_else(String::new, |map_key| format!("{map_key} to "));
    let lives = if state.time_to_live.is_some() { " with time-to-live" } else { "" };
    format!("{:?} of {map_key}{}{lives}", state.kind, state.value_type)
}

/// The handles whose key groups meet those of each new subtask, with the sections it needs.
/// Each subtask gets one entry at least, for what is not keyed.
fn keyed_states(state: &OperatorState, parallelism: u32, max_parallelism: u32) -> Vec<Vec<OperatorSubtaskState>> {
    let is_same_parallelism = state.parallelism == parallelism;
    let lowest = (0..state.parallelism).map(|index| state.subtasks.get(&index).and_then(|old| old.watermark)).min();
    let subtasks = (0..parallelism).map(|index| {
        let range = key_group_range(index, max_parallelism, parallelism);
        let (first, last) = (*range.start(), *range.end());
        let meeting = state.subtasks.values().filter_map(|subtask| {
            let handle = subtask.keyed.as_ref()?;
            let meets = handle.key_groups.0 <= last && first <= handle.key_groups.1;
            meets.then(|| OperatorSubtaskState {
                keyed: Some(narrowed(handle, first, last)),
                watermark: subtask.watermark,
                ..OperatorSubtaskState::default()
            })
        });
        let mut states: Vec<_> = meeting.collect();
        if states.is_empty() {
            let own = state.subtasks.get(&index).and_then(|old| old.watermark);
            let watermark = if is_same_parallelism { own } else { lowest.flatten() };
            states.push(OperatorSubtaskState { watermark, ..OperatorSubtaskState::default() });
        }
        states
    });
    subtasks.collect()
}

/// A handle without the sections of other subtasks. One of the same key groups stays whole,
/// so that it can be built upon.
fn narrowed(handle: &KeyedStateHandle, first: u32, last: u32) -> KeyedStateHandle {
    let mut handle = handle.clone();
    if handle.key_groups != (first, last) {
        for part in &mut handle.parts {
            part.sections.retain(|section| (first..=last).contains(&section.key_group));
        }
        handle.parts.retain(|part| !part.sections.is_empty());
    }
    handle
}

/// Deals the elements of one list state to the new subtasks; none: a subtask does not get the
/// state. `lists` has those of the old subtasks that had it, `start` where leftovers begin.
fn deal(
    mode: DistributionMode,
    lists: &[(u32, &OperatorListState)],
    parallelism: u32,
    is_same_parallelism: bool,
    start: &mut usize,
) -> Vec<Option<Vec<Vec<u8>>>> {
    let count = parallelism as usize;
    let all = || lists.iter().flat_map(|(_, list)| list.elements.iter().cloned());
    let own = |index: usize| {
        let found = lists.iter().find(|(old, _)| *old as usize == index);
        found.map(|(_, list)| list.elements.clone())
    };
    match mode {
        DistributionMode::Split if is_same_parallelism => (0..count).map(own).collect(),
        DistributionMode::Split => {
            let total = lists.iter().map(|(_, list)| list.elements.len()).sum::<usize>();
            let (each, left) = (total / count, total % count);
            let mut elements = all();
            let mut dealt = vec![None; count];
            for turn in 0..count {
                let taken = elements.by_ref().take(each + usize::from(turn < left)).collect();
                dealt[(*start + turn) % count] = Some(taken);
            }
            *start = (*start + left) % count;
            dealt
        }
        DistributionMode::Union => vec![Some(all().collect()); count],
        DistributionMode::Broadcast if is_same_parallelism && lists.len() == count => (0..count).map(own).collect(),
        DistributionMode::Broadcast => {
            (0..count).map(|index| Some(lists[index % lists.len()].1.elements.clone())).collect()
        }
    }
}

#[cfg(test)]
mod tests;
