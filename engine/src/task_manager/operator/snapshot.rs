//! State of a task's operators on its way to a checkpoint and back.
//!
//! A snapshot is taken on the task's thread, between two batches, head to tail where rows
//! are completed and tail to head where state is taken; what is large is written by
//! somebody else ([`KeyedPart`]). The files of state that is restored were checked before
//! ([`RestoredOperators`]), as that may wait; a key group is read when it is taken over, so that
//! a restore needs little more memory than the state.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;

use super::{
    Backpressure, OperatorChain, OperatorError,
    operator_chain::{ChainNode, NodeKind},
};
use crate::{
    base::{
        clock::Timestamp,
        key_group::key_group_range,
        stream_element::{
            CheckpointBarrier, CheckpointId, CheckpointOptions, SnapshotLocation, StopMode, StreamElement,
        },
    },
    checkpoint::{
        CheckpointStorage, CheckpointStorageError, DistributionMode, Evolution, KeyGroupSection, KeyedStateHandle,
        KeyedStatePart, OperatorListState, OperatorSubtaskState, StateConversion, StateData, TaskRestore, conversions,
        convert_section, evolution,
    },
    failpoint,
    graph::{
        job_graph::ChainedOperator,
        stream_graph::{StateDeclaration, StateKind},
    },
    state::KeyedStateSnapshot,
    task_manager::operator::TaskContext,
    wasm::{RestoredKeyGroup, SegmentRestore, SegmentSnapshot},
};

/// State that operators go on from. What its files hold is read when it is taken over, a little at a time.
#[derive(Debug)]
pub struct RestoredOperators {
    /// Where the files are, as the JobMaster names it.
    location: SnapshotLocation,
    storage: CheckpointStorage,
    operators: BTreeMap<u32, Vec<OperatorSubtaskState>>,
}

impl RestoredOperators {
    /// Checks all files. May take as long as the store takes.
    ///
    /// # Errors
    /// Returns an error if a file is missing or damaged.
    pub fn verify(restore: TaskRestore) -> Result<Self, CheckpointStorageError> {
        let storage = CheckpointStorage::open(restore.location.clone())?;
        let parts = restore.operators.values().flatten().flat_map(|state| &state.keyed).flat_map(|keyed| &keyed.parts);
        for part in parts {
            if let StateData::File(file) = &part.data {
                storage.verify_file(file)?;
            }
        }
        Ok(Self { location: restore.location, storage, operators: restore.operators })
    }

    fn of(&self, node: u32) -> &[OperatorSubtaskState] {
        self.operators.get(&node).map_or(&[], Vec::as_slice)
    }

    /// The least watermark that the operator had anywhere.
    fn watermark(&self, node: u32) -> Option<Timestamp> {
        let watermarks = self.of(node).iter().map(|restored| restored.watermark);
        watermarks.min().flatten().map(Timestamp)
    }
}

/// Bytes of a file that are read at once: a key group of usual state has less.
const WINDOW_BYTES: u64 = 1 << 20;

/// The key groups of one part, which are read one after the other.
struct PartReader {
    storage: CheckpointStorage,
    data: StateData,
    sections: std::vec::IntoIter<KeyGroupSection>,
    states: Arc<[Option<usize>]>,
    conversions: Arc<[Option<StateConversion>]>,
    /// What was read of the file last, and where it begins.
    window: (u64, Bytes),
}

impl PartReader {
    fn content(&mut self, section: KeyGroupSection) -> Result<Bytes, String> {
        let KeyGroupSection { offset, bytes, .. } = section;
        let end = offset + bytes;
        let file = match &self.data {
            StateData::Inline(data) => {
                let whole = data.get(place(offset)..place(end)).ok_or("it is cut off")?;
                return Ok(Bytes::copy_from_slice(whole));
            }
            StateData::File(file) => file,
        };
        let (start, window) = &self.window;
        if offset < *start || *start + (window.len() as u64) < end {
            let ahead = file.bytes.min(end.max(offset + WINDOW_BYTES));
            // Let go first: a key group may be large.
            self.window = (offset, Bytes::new());
            let read = self.storage.read_range(file, offset..ahead);
            self.window.1 = read.map_err(|error| chain(&error))?;
        }
        let (start, window) = &self.window;
        Ok(window.slice(place(offset - start)..place(end - start)))
    }

    fn convert(&self, content: Bytes) -> Result<Bytes, String> {
        if self.conversions.iter().all(Option::is_none) {
            return Ok(content);
        }
        convert_section(&content, &self.conversions).map(Bytes::from).map_err(|error| error.to_string())
    }
}

impl Iterator for PartReader {
    type Item = Result<RestoredKeyGroup, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let section = self.sections.next()?;
        let content = self.content(section).and_then(|content| self.convert(content));
        let (key_group, states) = (section.key_group, Arc::clone(&self.states));
        Some(content.map(|content| RestoredKeyGroup { key_group, content, states }))
    }
}

/// An offset in memory.
fn place(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

/// An error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {}", chain(source)))
}

/// A declared state of an operator, and where it is among those of the segment.
#[derive(Debug)]
struct ListState {
    node: u32,
    place: usize,
    declaration: StateDeclaration,
    mode: DistributionMode,
}

/// How the keyed state of an operator was declared.
#[derive(Clone, Debug)]
struct KeyedDeclaration {
    key_groups: (u32, u32),
    key_type: String,
    states: Vec<StateDeclaration>,
}

/// What the parts of a checkpoint's handles are, as they were written.
type WrittenParts = Arc<Mutex<BTreeMap<CheckpointId, Vec<KeyedStatePart>>>>;

/// What a node of the chain keeps for its snapshots.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// The operator that rows enter.
    node: u32,
    /// It keeps something, for which its watermark counts.
    is_stateful: bool,
    keyed: Option<KeyedDeclaration>,
    lists: Vec<ListState>,
    /// Where `base` is; none: the next snapshot holds all.
    location: Option<SnapshotLocation>,
    /// Parts that the next snapshot may build upon.
    base: Vec<KeyedStatePart>,
    written: WrittenParts,
    /// From which the operator goes on.
    watermark: Option<Timestamp>,
}

fn distribution_mode(kind: StateKind) -> Option<DistributionMode> {
    match kind {
        StateKind::OperatorList => Some(DistributionMode::Split),
        StateKind::OperatorUnionList => Some(DistributionMode::Union),
        StateKind::Broadcast => Some(DistributionMode::Broadcast),
        StateKind::Value | StateKind::List | StateKind::Map | StateKind::Reducing | StateKind::Aggregating => None,
    }
}

/// Finds the state of a name among those declared; none if it is not declared any more.
fn find_state(
    node: u32,
    kept: &StateDeclaration,
    declared: &[StateDeclaration],
) -> Result<Option<usize>, OperatorError> {
    let Some(place) = declared.iter().position(|state| state.name == kept.name) else { return Ok(None) };
    let Evolution::Incompatible(reason) = evolution(kept, &declared[place]) else { return Ok(Some(place)) };
    let message = format!(
        "state \"{}\" was kept as {}, and is declared as {}: {reason}; declare it as it was, or under another name",
        kept.name, kept.value_type, declared[place].value_type,
    );
    Err(OperatorError::Restore { node, message })
}

impl NodeState {
    /// Of the operators of a segment, with what they go on from.
    ///
    /// # Errors
    /// Returns an error if a state was kept as another type.
    pub(super) fn open<'a>(
        operators: impl Iterator<Item = &'a ChainedOperator> + Clone,
        context: &TaskContext,
        restored: Option<&RestoredOperators>,
        is_incremental: bool,
    ) -> Result<(Self, SegmentRestore), OperatorError> {
        let head = &operators.clone().next().expect("a segment has an operator").node;
        let range = key_group_range(context.subtask_index, context.max_parallelism, context.parallelism);
        let keyed = head.key_type.as_ref().map(|key_type| KeyedDeclaration {
            key_groups: (*range.start(), *range.end()),
            key_type: key_type.clone(),
            states: head.states.clone(),
        });
        let mut lists = Vec::new();
        let mut place = 0;
        for node in operators.map(|operator| &operator.node) {
            for declaration in &node.states {
                if let Some(mode) = distribution_mode(declaration.kind) {
                    lists.push(ListState { node: node.id, place, declaration: declaration.clone(), mode });
                }
                place += 1;
            }
        }
        let is_stateful = keyed.is_some() || !lists.is_empty();
        let mut state = Self { node: head.id, is_stateful, keyed, lists, ..Self::default() };
        let mut restore = SegmentRestore { is_incremental, ..SegmentRestore::default() };
        if let Some(restored) = restored {
            state.restore_keyed(restored, &mut restore)?;
            state.restore_lists(restored, &mut restore)?;
            state.watermark = restored.watermark(head.id).filter(|_| is_stateful);
        }
        Ok((state, restore))
    }

    fn restore_keyed(&mut self, from: &RestoredOperators, to: &mut SegmentRestore) -> Result<(), OperatorError> {
        let handles: Vec<_> = from.of(self.node).iter().filter_map(|kept| kept.keyed.as_ref()).collect();
        if handles.is_empty() {
            return Ok(());
        }
        let node = self.node;
        let Some(declared) = &self.keyed else {
            let message = "it has keyed state, but is not behind key_by any more; allow non-restored state, or \
                           give the operator another uid";
            return Err(OperatorError::Restore { node, message: message.to_owned() });
        };
        let mut readers = Vec::new();
        for handle in &handles {
            if handle.key_type != declared.key_type {
                let (kept, now) = (&handle.key_type, &declared.key_type);
                let message = format!("its keys were of type {kept}, and are of type {now}; key by what it was");
                return Err(OperatorError::Restore { node, message });
            }
            let states = handle.states.iter().map(|kept| match distribution_mode(kept.kind) {
                Some(_) => Ok(None),
                None => find_state(node, kept, &declared.states),
            });
            let states: Arc<[Option<usize>]> = states.collect::<Result<_, _>>()?;
            let conversions: Arc<[_]> = conversions(&handle.states, &declared.states).into();
            for part in &handle.parts {
                let own = |section: &&KeyGroupSection| {
                    declared.key_groups.0 <= section.key_group && section.key_group <= declared.key_groups.1
                };
                let sections: Vec<_> = part.sections.iter().filter(own).copied().collect();
                let is_cut_off = |section: &&KeyGroupSection| {
                    section.offset.checked_add(section.bytes).is_none_or(|end| part.data.bytes() < end)
                };
                if let Some(section) = sections.iter().find(is_cut_off) {
                    let message = format!("key group {} ends behind the end of its file", section.key_group);
                    return Err(OperatorError::Restore { node, message });
                }
                readers.push(PartReader {
                    storage: from.storage.clone(),
                    data: part.data.clone(),
                    sections: sections.into_iter(),
                    states: Arc::clone(&states),
                    conversions: Arc::clone(&conversions),
                    window: (0, Bytes::new()),
                });
            }
        }
        to.key_groups = Box::new(readers.into_iter().flatten());
        let [handle] = handles[..] else { return Ok(()) };
        if handle.key_groups == declared.key_groups && handle.states == declared.states && to.is_incremental {
            self.location = Some(from.location.clone());
            self.base.clone_from(&handle.parts);
            to.part_bytes = handle.parts.iter().map(|part| part.data.bytes()).collect();
        }
        Ok(())
    }

    fn restore_lists(&self, from: &RestoredOperators, to: &mut SegmentRestore) -> Result<(), OperatorError> {
        for list in &self.lists {
            for kept in from.of(list.node).iter().flat_map(|kept| &kept.lists) {
                let declared = std::slice::from_ref(&list.declaration);
                if find_state(list.node, &kept.declaration, declared)?.is_some() {
                    to.lists.entry(list.place).or_default().extend(kept.elements.iter().cloned());
                }
            }
        }
        Ok(())
    }

    fn written(&self) -> MutexGuard<'_, BTreeMap<CheckpointId, Vec<KeyedStatePart>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if a snapshot of these options cannot build upon the last one.
    fn is_full(&self, options: &CheckpointOptions) -> bool {
        let elsewhere = self.location.as_ref().is_some_and(|location| *location != options.location);
        options.is_full || options.kind.is_savepoint() || elsewhere
    }

    /// What was written for the checkpoint is what the next one builds upon.
    fn confirm(&mut self, checkpoint_id: CheckpointId, location: &SnapshotLocation) {
        let parts = self.written().remove(&checkpoint_id);
        if let Some(parts) = parts {
            self.base = parts;
            self.location = Some(location.clone());
        }
        self.written().retain(|id, _| checkpoint_id < *id);
    }
}

/// Keyed state of an operator that is still to be written.
pub struct KeyedPart {
    /// The operator.
    pub node: u32,
    /// Its state.
    pub snapshot: KeyedStateSnapshot,
    /// How large it is, about.
    pub bytes: u64,
    declaration: KeyedDeclaration,
    base: Vec<KeyedStatePart>,
    written: WrittenParts,
}

impl KeyedPart {
    /// The handle, once the snapshot was written as `part`. None if there is no state.
    pub fn into_handle(
        declaration: KeyedPartRest,
        checkpoint_id: CheckpointId,
        part: KeyedStatePart,
        is_full: bool,
    ) -> Option<KeyedStateHandle> {
        let KeyedPartRest { declaration, base, written } = declaration;
        let mut parts = if is_full { Vec::new() } else { base };
        if !part.sections.is_empty() {
            parts.push(part);
        }
        written.lock().unwrap_or_else(PoisonError::into_inner).insert(checkpoint_id, parts.clone());
        let KeyedDeclaration { key_groups, key_type, states } = declaration;
        (!parts.is_empty()).then_some(KeyedStateHandle { key_groups, key_type, states, parts })
    }

    /// Takes the snapshot out, which is used up as it is written.
    pub fn split(self) -> (KeyedStateSnapshot, KeyedPartRest) {
        (self.snapshot, KeyedPartRest { declaration: self.declaration, base: self.base, written: self.written })
    }
}

/// What a [`KeyedPart`] is without its snapshot.
pub struct KeyedPartRest {
    declaration: KeyedDeclaration,
    base: Vec<KeyedStatePart>,
    written: WrittenParts,
}

/// The number under which state is asked for that is left behind when no checkpoint is taken.
const NO_CHECKPOINT: CheckpointId = 0;

/// State of all operators of a task at one moment, but for what is still to be written.
pub struct ChainSnapshot {
    /// By node; operators without state are in here, too.
    pub operators: BTreeMap<u32, OperatorSubtaskState>,
    /// To be written.
    pub keyed: Vec<KeyedPart>,
    /// All input was processed.
    pub is_finished: bool,
}

impl OperatorChain {
    /// Completes what sinks wrote so far, and what was put aside.
    ///
    /// # Errors
    /// Returns an error if an output cannot be written.
    pub fn prepare_snapshot(&mut self, checkpoint_id: CheckpointId) -> Result<(), OperatorError> {
        for node in &mut self.nodes {
            if let NodeKind::Sink(sink) = &mut node.kind {
                sink.prepare_commit(checkpoint_id)?;
            }
        }
        self.flush_row_errors()
    }

    /// Sends an element that is not rows to all consumers, behind all rows.
    ///
    /// # Errors
    /// Returns an error if the task is told to stop.
    pub fn broadcast(
        &mut self,
        element: &StreamElement,
        backpressure: &mut dyn Backpressure,
    ) -> Result<(), OperatorError> {
        for outputs in self.nodes.iter_mut().filter_map(ChainNode::outputs) {
            outputs.broadcast(element);
            outputs.send_pending(backpressure)?;
        }
        Ok(())
    }

    /// Takes the state of all operators, the last of the chain first.
    ///
    /// # Errors
    /// Returns an error if an operator fails.
    pub fn take_snapshot(&mut self, barrier: &CheckpointBarrier) -> Result<ChainSnapshot, OperatorError> {
        let id = barrier.checkpoint_id;
        let mut snapshot = ChainSnapshot {
            operators: BTreeMap::new(),
            keyed: Vec::new(),
            is_finished: self.is_ended() && self.stop_mode() == StopMode::Drain,
        };
        for place in (0..self.nodes.len()).rev() {
            let node = &mut self.nodes[place];
            match &mut node.kind {
                NodeKind::Source(source) => {
                    failpoint!("task.snapshot.source", infallible);
                    let splits = source.reader.borrow_mut().snapshot();
                    let state = OperatorSubtaskState { splits, ..OperatorSubtaskState::default() };
                    snapshot.operators.insert(source.node, state);
                }
                NodeKind::Sink(sink) => {
                    snapshot.operators.insert(sink.node, sink.state());
                }
                NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) => {
                    let is_full = node.state.is_full(&barrier.options);
                    failpoint!("task.snapshot.plugin", infallible);
                    let taken = segment.snapshot(id, is_full);
                    let taken = taken.map_err(|error| self.guest_failed(error, None))?;
                    self.keep_segment(place, taken, &mut snapshot);
                }
                NodeKind::Finished(_) => {}
            }
        }
        Ok(snapshot)
    }

    fn keep_segment(&mut self, place: usize, taken: SegmentSnapshot, snapshot: &mut ChainSnapshot) {
        let node = &self.nodes[place];
        let state = &node.state;
        let mut lists = taken.lists;
        for list in &state.lists {
            let elements = lists.remove(&list.place).unwrap_or_default();
            let kept = OperatorListState { declaration: list.declaration.clone(), mode: list.mode, elements };
            snapshot.operators.entry(list.node).or_default().lists.push(kept);
        }
        if state.is_stateful {
            let watermark = node.combined.watermark();
            let head = snapshot.operators.entry(state.node).or_default();
            head.watermark = (watermark != Timestamp::MIN).then_some(watermark.0);
        }
        if let (Some(keyed), Some(declaration)) = (taken.keyed, &state.keyed) {
            snapshot.keyed.push(KeyedPart {
                node: state.node,
                snapshot: keyed,
                bytes: taken.keyed_bytes,
                declaration: declaration.clone(),
                base: state.base.clone(),
                written: Arc::clone(&state.written),
            });
        }
    }

    /// Adds the lists of a node that later checkpoints hold although its task has FINISHED: without them a
    /// source of a plugin would begin anew when the job goes on while other subtasks of it still ran, and
    /// subtasks that share a union list would miss these elements. Lists of other operators are of no use any more.
    pub(super) fn keep_lists(
        &mut self,
        place: usize,
        end_states: &mut BTreeMap<u32, OperatorSubtaskState>,
    ) -> Result<(), OperatorError> {
        let node = &mut self.nodes[place];
        let is_source = matches!(node.kind, NodeKind::SourceSegment(_));
        let (NodeKind::Segment(segment) | NodeKind::SourceSegment(segment)) = &mut node.kind else { return Ok(()) };
        let head = node.state.node;
        let outlives = |list: &&ListState| list.mode == DistributionMode::Union || is_source && list.node == head;
        if !node.state.lists.iter().any(|list| outlives(&list)) {
            return Ok(());
        }
        // With a final checkpoint that one has asked for them behind the end of the input.
        if !self.checkpoints.has_final_checkpoint
            && let Err(error) = segment.snapshot(NO_CHECKPOINT, true)
        {
            return Err(self.guest_failed(error, None));
        }
        let mut lists = segment.lists();
        for list in node.state.lists.iter().filter(outlives) {
            let elements = lists.remove(&list.place).unwrap_or_default();
            let kept = OperatorListState { declaration: list.declaration.clone(), mode: list.mode, elements };
            let state: &mut OperatorSubtaskState = end_states.entry(list.node).or_default();
            state.lists.push(kept);
            state.watermark = Some(Timestamp::MAX.0);
        }
        Ok(())
    }

    /// A checkpoint that was taken is complete: its sinks' output is visible, or will be.
    ///
    /// # Errors
    /// Returns an error if an operator fails.
    pub fn notify_checkpoint_complete(
        &mut self,
        checkpoint_id: CheckpointId,
        location: &SnapshotLocation,
    ) -> Result<(), OperatorError> {
        for place in (0..self.nodes.len()).rev() {
            let node = &mut self.nodes[place];
            failpoint!("task.notify", infallible);
            node.state.confirm(checkpoint_id, location);
            match &mut node.kind {
                NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) => {
                    let notified = segment.notify_checkpoint_complete(checkpoint_id);
                    notified.map_err(|error| self.guest_failed(error, None))?;
                }
                NodeKind::Sink(sink) => sink.committed(checkpoint_id),
                NodeKind::Source(_) | NodeKind::Finished(_) => {}
            }
        }
        Ok(())
    }

    /// A checkpoint that was taken was given up.
    ///
    /// # Errors
    /// Returns an error if an operator fails.
    pub fn notify_checkpoint_aborted(&mut self, checkpoint_id: CheckpointId) -> Result<(), OperatorError> {
        for place in (0..self.nodes.len()).rev() {
            if let NodeKind::Segment(segment) | NodeKind::SourceSegment(segment) = &mut self.nodes[place].kind {
                let notified = segment.notify_checkpoint_aborted(checkpoint_id);
                notified.map_err(|error| self.guest_failed(error, None))?;
            }
        }
        Ok(())
    }

    /// Takes operators to the watermarks that they had, before any row.
    ///
    /// # Errors
    /// Returns an error if an operator fails or the task is told to stop.
    pub fn restore_watermarks(&mut self, backpressure: &mut dyn Backpressure) -> Result<(), OperatorError> {
        for place in 0..self.nodes.len() {
            let node = &mut self.nodes[place];
            let Some(watermark) = node.state.watermark.take() else { continue };
            node.combined.restore(watermark);
            if let NodeKind::Segment(segment) = &mut node.kind {
                let processed = segment.process_watermark(watermark);
                processed.map_err(|error| self.guest_failed(error, None))?;
                self.drain(place, backpressure)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_groups_are_read_one_after_the_other_and_not_before_they_are_needed() {
        let directory = tempfile::tempdir().unwrap();
        let location = SnapshotLocation(directory.path().to_str().unwrap().to_owned());
        let storage = CheckpointStorage::open(location).unwrap();
        // Small ones, one that is larger than a window, an empty one, and gaps of other subtasks.
        let window = place(WINDOW_BYTES);
        let lengths = [10, 0, 100_000, window + 5, 1, window - 1, window, 3, 700_000, 700_000, 700_000];
        let content: Vec<u8> = (0..lengths.iter().sum::<usize>()).map(|at| (at % 251) as u8).collect();
        let file = storage.write("shared/1", &mut |out| out.write_all(&content)).unwrap();
        let mut offset = 0;
        let mut sections = Vec::new();
        for (key_group, length) in (0..).zip(lengths) {
            sections.push(KeyGroupSection { key_group, offset, bytes: length as u64 });
            offset += length as u64;
        }
        sections.retain(|section| ![2, 7].contains(&section.key_group));
        for data in [StateData::File(file), StateData::Inline(content.clone())] {
            let is_file = matches!(data, StateData::File(_));
            let mut reader = PartReader {
                storage: storage.clone(),
                data,
                sections: sections.clone().into_iter(),
                states: Arc::new([]),
                conversions: Arc::new([]),
                window: (0, Bytes::new()),
            };
            for section in &sections[..7] {
                let read = reader.next().unwrap().unwrap();
                assert_eq!(read.key_group, section.key_group);
                assert!(read.content == content[place(section.offset)..place(section.offset + section.bytes)]);
                let held = reader.window.1.len() as u64;
                assert!(held <= WINDOW_BYTES.max(section.bytes), "{held} bytes are held");
            }
            if is_file {
                std::fs::remove_file(directory.path().join("shared/1")).unwrap();
                let error = reader.by_ref().find_map(Result::err).expect("it was not read before");
                assert!(error.ends_with("/shared/1 is missing"), "{error}");
            } else {
                assert_eq!(reader.filter(Result::is_ok).count(), sections.len() - 7);
            }
        }
    }
}
