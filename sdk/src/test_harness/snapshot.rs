//! Snapshots of a job in a test, and jobs that go on from them.

use std::collections::BTreeMap;

use engine_rows::key_hash::key_hash;

use super::{CACHE_BYTES, MAX_PARALLELISM, Opening, TestHarness};
use crate::{
    Result,
    args::Args,
    bindings::engine::plugin::graph::{StateKind, StreamGraph},
    environment::StreamExecutionEnvironment,
    host::{self, Kept, KeptInstance, KeptTimer},
    record::Reader,
    segment::Segment,
};

/// What the operators of a job kept at one moment, of one subtask each or of several.
///
/// Made by [`TestHarness::snapshot`]. It fits the program that it was taken of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TestSnapshot {
    /// By node, what each subtask kept.
    nodes: BTreeMap<u32, Vec<KeptNode>>,
}

/// What one subtask of an operator kept.
#[derive(Clone, Debug, Default, PartialEq)]
struct KeptNode {
    /// Name of the state, key, namespace and what is there.
    keyed: Vec<(String, Vec<u8>, Vec<u8>, Kept)>,
    timers: Vec<KeptTimer>,
    /// Elements of the operator states, by name.
    lists: BTreeMap<String, Vec<Vec<u8>>>,
    watermark: Option<i64>,
}

impl TestSnapshot {
    /// Puts the snapshots of several subtasks of one job together, in the order of their indexes.
    pub fn of_subtasks(snapshots: impl IntoIterator<Item = Self>) -> Self {
        let mut whole = Self::default();
        for (node, kept) in snapshots.into_iter().flat_map(|snapshot| snapshot.nodes) {
            whole.nodes.entry(node).or_default().extend(kept);
        }
        whole
    }
}

impl TestHarness {
    /// Takes what the operators keep, as a checkpoint does. The job goes on.
    ///
    /// # Errors
    /// Returns an error if user code fails.
    pub fn snapshot(&mut self) -> Result<TestSnapshot> {
        let mut snapshot = TestSnapshot::default();
        for instance in 0..self.segments.len() {
            self.call(instance, Segment::snapshot)?;
            let kept = host::kept_instance(instance);
            let nodes = self.segments[instance].nodes.clone();
            let mut place = 0;
            for node in &nodes {
                let declared = &self.declaration.nodes[*node as usize - 1];
                let mut of = KeptNode::default();
                for state in &declared.states {
                    let entries = kept.states.iter().filter(|(index, ..)| *index == place);
                    of.keyed.extend(entries.map(|(_, key, namespace, kept)| {
                        (state.name.clone(), key.clone(), namespace.clone(), kept.clone())
                    }));
                    if let Some(list) = kept.lists.get(&place) {
                        of.lists.insert(state.name.clone(), elements(list));
                    }
                    place += 1;
                }
                if *node == nodes[0] {
                    of.timers.clone_from(&kept.timers);
                    of.watermark = self.inputs.get(node).map(|input| input.watermark);
                }
                snapshot.nodes.insert(*node, vec![of]);
            }
        }
        Ok(snapshot)
    }

    /// Runs a program that goes on from a snapshot of it, with one subtask of each operator.
    ///
    /// # Errors
    /// As [`TestHarness::new`].
    pub fn restore(
        program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
        args: &[&str],
        snapshot: &TestSnapshot,
    ) -> Result<Self> {
        Self::restore_subtask(program, args, snapshot, 0, 1)
    }

    /// Runs one of several subtasks of each operator of a program that goes on from a snapshot. It
    /// gets the state and the timers of its keys, and the elements of operator states that the
    /// engine would deal to it; what is pushed is for it, whatever its key.
    ///
    /// # Errors
    /// As [`TestHarness::new`].
    ///
    /// # Panics
    /// Panics if there is no such subtask.
    pub fn restore_subtask(
        program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
        args: &[&str],
        snapshot: &TestSnapshot,
        subtask_index: u32,
        parallelism: u32,
    ) -> Result<Self> {
        assert!(subtask_index < parallelism, "there are {parallelism} subtasks");
        let opening = Opening {
            is_chained: true,
            cache_bytes: CACHE_BYTES,
            snapshot: Some(snapshot),
            subtask: (subtask_index, parallelism),
        };
        let mut harness = Self::open_with(program, args, opening)?;
        harness.restore_watermarks(snapshot)?;
        Ok(harness)
    }

    /// Takes operators to the least watermark that their subtasks had.
    fn restore_watermarks(&mut self, snapshot: &TestSnapshot) -> Result<()> {
        let mut restored = Vec::new();
        for (index, running) in self.segments.iter().enumerate() {
            let head = running.nodes[0];
            let kept = snapshot.nodes.get(&head).into_iter().flatten();
            let watermark = kept.map(|kept| kept.watermark).min().flatten();
            if let Some(watermark) = watermark.filter(|watermark| *watermark != i64::MIN) {
                self.inputs.entry(head).or_insert(super::EventTime::START).watermark = watermark;
                restored.push((index, watermark));
            }
        }
        // All of them are known before any is handed on: to go on is no rise of event time.
        restored
            .into_iter()
            .try_for_each(|(index, watermark)| self.call(index, |segment| segment.process_watermark(watermark)))
    }
}

/// What a segment of these nodes goes on from.
pub(super) fn restored(
    snapshot: &TestSnapshot,
    graph: &StreamGraph,
    nodes: &[u32],
    (subtask_index, parallelism): (u32, u32),
) -> KeptInstance {
    let mut instance = KeptInstance::default();
    let mut place = 0;
    let is_own = |key: &[u8]| key_group(key) * parallelism / MAX_PARALLELISM == subtask_index;
    for node in nodes {
        let kept = snapshot.nodes.get(node).map_or(&[][..], Vec::as_slice);
        for state in &graph.nodes[*node as usize - 1].states {
            for (name, key, namespace, value) in kept.iter().flat_map(|kept| &kept.keyed) {
                if *name == state.name && is_own(key) {
                    instance.states.push((place, key.clone(), namespace.clone(), value.clone()));
                }
            }
            let lists: Vec<_> = kept.iter().map(|kept| kept.lists.get(&state.name)).collect();
            let list = dealt(state.kind, &lists, subtask_index as usize, parallelism as usize);
            let mut bytes = Vec::new();
            for element in list {
                let length = u32::try_from(element.len()).expect("state of a test is small");
                bytes.extend_from_slice(&length.to_le_bytes());
                bytes.extend_from_slice(&element);
            }
            instance.lists.insert(place, bytes);
            place += 1;
        }
        instance.timers.extend(kept.iter().flat_map(|kept| &kept.timers).filter(|timer| is_own(&timer.key)).cloned());
    }
    instance
}

/// The elements that a subtask is dealt of an operator state, as Flink deals them.
fn dealt(kind: StateKind, lists: &[Option<&Vec<Vec<u8>>>], subtask: usize, parallelism: usize) -> Vec<Vec<u8>> {
    let of = |index: usize| lists[index].cloned().unwrap_or_default();
    let all = || (0..lists.len()).flat_map(of).collect::<Vec<_>>();
    match kind {
        _ if lists.is_empty() => Vec::new(),
        StateKind::Broadcast => of(subtask % lists.len()),
        StateKind::OperatorUnionList => all(),
        _ if lists.len() == parallelism => of(subtask),
        _ => {
            let elements = all();
            let (least, more) = (elements.len() / parallelism, elements.len() % parallelism);
            let start = subtask * least + subtask.min(more);
            let count = least + usize::from(subtask < more);
            elements[start..start + count].to_vec()
        }
    }
}

fn elements(list: &[u8]) -> Vec<Vec<u8>> {
    let mut elements = Vec::new();
    let mut reader = Reader::new(list);
    while 0 < reader.remaining() {
        let element = reader.count().and_then(|count| reader.bytes(count));
        elements.push(element.expect("operators put whole elements").to_owned());
    }
    elements
}

/// The key group of an encoded key, as the engine computes it.
fn key_group(key: &[u8]) -> u32 {
    let mut code = key_hash(key).wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    code = code.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64) ^ 4;
    code = (code ^ (code >> 16)).wrapping_mul(0x85eb_ca6b);
    code = (code ^ (code >> 13)).wrapping_mul(0xc2b2_ae35);
    code ^= code >> 16;
    let code = code.cast_signed().checked_abs().map_or(0, i32::cast_unsigned);
    code % MAX_PARALLELISM
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of Flink's `RoundRobinOperatorStateRepartitioner`, as far as one list goes.
    #[test]
    fn lists_are_dealt_in_runs_the_first_of_which_are_longer() {
        let element = |number: u8| vec![number];
        let (a, b) = ((0..3).map(element).collect::<Vec<_>>(), (3..5).map(element).collect::<Vec<_>>());
        let lists = [Some(&a), Some(&b)];
        let deal = |kind, parallelism| {
            (0..parallelism).map(|subtask| dealt(kind, &lists, subtask, parallelism).concat()).collect::<Vec<_>>()
        };
        assert_eq!(deal(StateKind::OperatorList, 2), [vec![0, 1, 2], vec![3, 4]]);
        assert_eq!(deal(StateKind::OperatorList, 3), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(deal(StateKind::OperatorList, 1), [vec![0, 1, 2, 3, 4]]);
        assert_eq!(deal(StateKind::OperatorUnionList, 2), [vec![0, 1, 2, 3, 4], vec![0, 1, 2, 3, 4]]);
        assert_eq!(deal(StateKind::Broadcast, 3), [vec![0, 1, 2], vec![3, 4], vec![0, 1, 2]]);
    }
}
