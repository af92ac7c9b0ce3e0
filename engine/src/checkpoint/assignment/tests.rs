//! State dealt to jobs of other shapes, with Flink's vectors for list states.

use serde_json::Value;

use super::*;
use crate::{
    base::{
        clock::Timestamp,
        ids::{BlobDigest, IntermediateDataSetId, JobId},
        stream_element::SnapshotKind,
    },
    checkpoint::{KeyGroupSection, KeyedStatePart, StateData, StateFile},
    connector::SourceSplit,
    graph::{
        job_graph::JobEdge,
        stream_graph::{ChainingStrategy, ConnectorSpec, Partitioner, StateKind, StreamNode},
    },
};

fn id(number: u32) -> OperatorId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    OperatorId::from_bytes(bytes)
}

fn vertex_id(number: u32) -> JobVertexId {
    JobVertexId::from_bytes(*id(number).as_bytes())
}

fn connector() -> ConnectorSpec {
    ConnectorSpec { name: "file".into(), options: BTreeMap::new() }
}

fn declaration(name: &str, kind: StateKind, value_type: &str) -> StateDeclaration {
    StateDeclaration {
        name: name.into(),
        kind,
        value_type: value_type.into(),
        map_key_type: None,
        time_to_live: None,
        taken_at_end: false,
    }
}

/// An operator of node `number`, named "op-number", keyed by u32 with a value of type u64.
fn operator(number: u32, operator: Operator) -> ChainedOperator {
    let is_guest = operator.is_guest();
    let node = StreamNode {
        id: number,
        name: format!("op-{number}"),
        operator,
        uid: None,
        uid_hash: None,
        parallelism: None,
        max_parallelism: None,
        slot_sharing_group: None,
        co_location_group: None,
        chaining: ChainingStrategy::Always,
        buffer_timeout: None,
        input_types: Vec::new(),
        output_type: None,
        key_type: is_guest.then(|| "u32".into()),
        states: if is_guest { vec![declaration("count", StateKind::Value, "u64")] } else { Vec::new() },
        generates_watermarks: false,
    };
    ChainedOperator { node, operator_id: id(number), user_defined_id: None, plugin: None, managed_memory_fraction: 0.0 }
}

fn guest(number: u32) -> ChainedOperator {
    operator(number, Operator::Guest("map".into()))
}

fn vertex(operators: Vec<ChainedOperator>, parallelism: u32) -> JobVertex {
    JobVertex {
        id: JobVertexId::from_bytes(*operators[0].operator_id.as_bytes()),
        name: format!("chain of {}", operators[0].node.name),
        parallelism,
        max_parallelism: 128,
        max_parallelism_configured: false,
        operators,
        chained_edges: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        slot_sharing_group: "default".into(),
        co_location_group: None,
        resources: None,
    }
}

fn behind(mut vertex: JobVertex, producer: u32, pattern: DistributionPattern) -> JobVertex {
    vertex.inputs.push(JobEdge {
        source: IntermediateDataSetId::from_bytes([0; 16]),
        producer: vertex_id(producer),
        partitioner: Partitioner::Hash,
        pattern,
        target_node: 0,
        input: 0,
    });
    vertex
}

/// One part, with a section of each key group.
fn keyed(parallelism: u32, index: u32) -> KeyedStateHandle {
    let range = key_group_range(index, 128, parallelism);
    let section = |key_group| KeyGroupSection { key_group, offset: u64::from(key_group), bytes: 1 };
    KeyedStateHandle {
        key_groups: (*range.start(), *range.end()),
        key_type: "u32".into(),
        states: vec![declaration("count", StateKind::Value, "u64")],
        parts: vec![KeyedStatePart {
            checkpoint_id: 5,
            data: StateData::File(StateFile { path: format!("shared/{index}"), bytes: 128, crc32: 1 }),
            sections: range.map(section).collect(),
        }],
    }
}

fn state(number: u32, subtasks: Vec<OperatorSubtaskState>) -> OperatorState {
    OperatorState {
        operator_id: id(number),
        uid: None,
        name: format!("op-{number}"),
        parallelism: u32::try_from(subtasks.len()).unwrap(),
        max_parallelism: 128,
        subtasks: (0..).zip(subtasks).filter(|(_, state)| !state.is_empty()).collect(),
        coordinator: None,
        finished: FinishedState::None,
    }
}

fn keyed_state(number: u32, parallelism: u32) -> OperatorState {
    let subtask = |index| OperatorSubtaskState {
        keyed: Some(keyed(parallelism, index)),
        watermark: Some(100 + i64::from(index)),
        ..OperatorSubtaskState::default()
    };
    state(number, (0..parallelism).map(subtask).collect())
}

fn metadata(operators: Vec<OperatorState>) -> CheckpointMetadata {
    CheckpointMetadata {
        job: JobId::from_bytes([1; 16]),
        job_name: "job".into(),
        plugin: BlobDigest::from_bytes([2; 32]),
        checkpoint_id: 5,
        triggered: Timestamp(0),
        kind: SnapshotKind::Savepoint,
        operators: operators.into_iter().map(|state| (state.operator_id, state)).collect(),
    }
}

fn assign(metadata: &CheckpointMetadata, vertices: &[JobVertex]) -> Result<JobRestore, AssignmentError> {
    assign_state(metadata, &SnapshotLocation("/savepoints/a".into()), vertices, false)
}

#[track_caller]
fn refused(metadata: &CheckpointMetadata, vertices: &[JobVertex], parts: &[&str]) {
    let AssignmentError(message) = assign(metadata, vertices).unwrap_err();
    assert!(message.starts_with("savepoint 5 in /savepoints/a: ") && !message.contains('\n'), "{message}");
    for part in parts {
        assert!(message.contains(part), "{message} does not say {part}");
    }
}

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../tests-data/operator_state.json")).unwrap()
}

fn number(value: &Value) -> usize {
    usize::try_from(value.as_u64().unwrap()).unwrap()
}

/// List states of old subtasks: each element says its subtask and place.
fn lists(name: &str, mode: DistributionMode, counts: &Value) -> Vec<OperatorListState> {
    let kind = match mode {
        DistributionMode::Split => StateKind::OperatorList,
        DistributionMode::Union => StateKind::OperatorUnionList,
        DistributionMode::Broadcast => StateKind::Broadcast,
    };
    let list = |(subtask, count): (usize, &Value)| OperatorListState {
        declaration: declaration(name, kind, "bytes"),
        mode,
        elements: (0..number(count))
            .map(|place| vec![u8::try_from(subtask).unwrap(), u8::try_from(place).unwrap()])
            .collect(),
    };
    counts.as_array().unwrap().iter().enumerate().map(list).collect()
}

/// What each new subtask gets of each state, by name.
fn dealt(states: Vec<Vec<OperatorListState>>, parallelism: u32) -> Vec<BTreeMap<String, Vec<Vec<u8>>>> {
    let old = states.iter().map(Vec::len).max().unwrap();
    let subtask = |index: usize| OperatorSubtaskState {
        lists: states.iter().filter_map(|lists| lists.get(index).cloned()).collect(),
        ..OperatorSubtaskState::default()
    };
    let mut operator = guest(1);
    operator.node.states = states.iter().map(|lists| lists[0].declaration.clone()).collect();
    let mut old = state(1, (0..old).map(subtask).collect());
    old.parallelism = u32::try_from(states.iter().map(Vec::len).max().unwrap()).unwrap();
    let restore = assign(&metadata(vec![old]), &[vertex(vec![operator], parallelism)]).unwrap();
    let task = |task: &Option<TaskRestore>| {
        let states = task.as_ref().unwrap().operators.get(&1).map_or(&[][..], Vec::as_slice);
        let lists = states.iter().flat_map(|state| &state.lists);
        lists.map(|list| (list.declaration.name.clone(), list.elements.clone())).collect()
    };
    restore.tasks[&vertex_id(1)].iter().map(task).collect()
}

#[test]
fn list_states_are_dealt_as_in_flink() {
    let vectors = vectors();
    let cases = vectors["split"].as_array().unwrap();
    assert_eq!(cases.len(), 9);
    for case in cases {
        let parallelism = u32::try_from(number(&case["new_parallelism"])).unwrap();
        let old = lists("s", DistributionMode::Split, &case["old_items_per_subtask"]);
        if old.len() == parallelism as usize {
            continue;
        }
        let dealt = dealt(vec![old], parallelism);
        for subtask in case["new_subtasks"].as_array().unwrap() {
            let items = subtask["items"].as_array().unwrap().iter();
            let items: Vec<Vec<u8>> = items
                .map(|item| item.as_array().unwrap().iter().map(|part| u8::try_from(number(part)).unwrap()).collect())
                .collect();
            assert_eq!(dealt[number(&subtask["index"])].get("s").cloned().unwrap_or_default(), items, "{case}");
        }
    }
}

#[test]
fn leftovers_of_several_states_are_spread_as_in_flink() {
    let vectors = vectors();
    let cases = vectors["multi_state"].as_array().unwrap();
    let states = cases
        .iter()
        .map(|case| lists(case["state"].as_str().unwrap(), DistributionMode::Split, &case["old_items_per_subtask"]));
    let dealt = dealt(states.collect(), 4);
    for case in cases {
        let counts = dealt.iter().map(|subtask| subtask.get(case["state"].as_str().unwrap()).map_or(0, Vec::len));
        assert_eq!(
            counts.collect::<Vec<_>>(),
            case["counts"].as_array().unwrap().iter().map(number).collect::<Vec<_>>()
        );
    }
}

#[test]
fn union_and_broadcast_and_unchanged_parallelism_are_as_in_flink() {
    let vectors = vectors();
    let other = vectors["other"].as_array().unwrap();
    let union = lists("s", DistributionMode::Union, &other[0]["old_items_per_subtask"]);
    let all: Vec<_> = union.iter().flat_map(|list| list.elements.clone()).collect();
    assert_eq!(all.len(), 3);
    for parallelism in [2, 3] {
        let dealt = dealt(vec![union.clone()], parallelism);
        assert!(dealt.iter().all(|subtask| subtask["s"] == all), "in the order of the old subtasks, unchanged or not");
    }

    let broadcast = lists("s", DistributionMode::Broadcast, &serde_json::json!([1, 1]));
    let copies: Vec<_> =
        dealt(vec![broadcast.clone()], 5).iter().map(|subtask| usize::from(subtask["s"][0][0])).collect();
    assert_eq!(
        copies,
        other[1]["new_subtask_reads_copy_of_old"].as_array().unwrap().iter().map(number).collect::<Vec<_>>()
    );
    let kept = dealt(vec![broadcast], 2);
    assert_eq!(kept.iter().map(|subtask| subtask["s"][0][0]).collect::<Vec<_>>(), [0, 1]);

    let split = lists("s", DistributionMode::Split, &serde_json::json!([5, 0, 1]));
    let kept = dealt(vec![split], 3);
    assert_eq!(kept.iter().map(|subtask| subtask.get("s").map_or(0, Vec::len)).collect::<Vec<_>>(), [5, 0, 1]);
}

#[test]
fn keyed_handles_go_to_all_subtasks_whose_key_groups_they_meet() {
    for (old, new) in [(1, 4), (4, 3), (3, 2), (2, 1), (3, 128)] {
        let restore = assign(&metadata(vec![keyed_state(1, old)]), &[vertex(vec![guest(1)], new)]).unwrap();
        for (index, task) in (0..).zip(&restore.tasks[&vertex_id(1)]) {
            let task = task.as_ref().unwrap();
            assert_eq!((task.checkpoint_id, task.is_finished), (5, false));
            let handles = task.operators[&1].iter().map(|state| state.keyed.as_ref().unwrap());
            let sections = handles.flat_map(|handle| &handle.parts).flat_map(|part| &part.sections);
            let mut groups: Vec<_> = sections.map(|section| section.key_group).collect();
            groups.sort_unstable();
            assert_eq!(groups, key_group_range(index, 128, new).collect::<Vec<_>>(), "{old} to {new}");
        }
    }
    // As many as before: each its own, whole, with its watermark.
    let old = keyed_state(1, 3);
    let restore = assign(&metadata(vec![old.clone()]), &[vertex(vec![guest(1)], 3)]).unwrap();
    for (index, task) in (0..).zip(&restore.tasks[&vertex_id(1)]) {
        assert_eq!(task.as_ref().unwrap().operators[&1], [old.subtasks[&index].clone()]);
    }
    // Of two old subtasks both watermarks are there.
    let restore = assign(&metadata(vec![old]), &[vertex(vec![guest(1)], 2)]).unwrap();
    let first = restore.tasks[&vertex_id(1)][0].as_ref().unwrap();
    assert_eq!(first.operators[&1].iter().map(|state| state.watermark).collect::<Vec<_>>(), [Some(100), Some(101)]);
}

#[test]
fn the_watermark_of_an_operator_without_keys_is_the_least_when_the_parallelism_changes() {
    let subtask = |watermark| OperatorSubtaskState { watermark, ..OperatorSubtaskState::default() };
    let watermarks = |old: Vec<Option<i64>>, parallelism| {
        let count = old.len();
        let mut state = state(1, old.into_iter().map(subtask).collect());
        state.parallelism = u32::try_from(count).unwrap();
        let restore = assign(&metadata(vec![state]), &[vertex(vec![guest(1)], parallelism)]).unwrap();
        let tasks = restore.tasks[&vertex_id(1)]
            .iter()
            .map(|task| task.as_ref().unwrap().operators.get(&1).and_then(|states| states[0].watermark));
        tasks.collect::<Vec<_>>()
    };
    assert_eq!(watermarks(vec![Some(7), Some(5)], 2), [Some(7), Some(5)]);
    assert_eq!(watermarks(vec![Some(7), Some(5)], 3), [Some(5); 3]);
    assert_eq!(watermarks(vec![Some(7), None], 1), [None]);
}

#[test]
fn state_of_operators_that_are_gone_is_only_dropped_if_allowed() {
    let two = metadata(vec![keyed_state(1, 1), keyed_state(2, 1)]);
    let one = [vertex(vec![guest(1)], 1)];
    refused(
        &two,
        &one,
        &["operator \"op-2\" (id 02000000", "the job has no such operator", "--allow-non-restored-state"],
    );
    let location = SnapshotLocation("/savepoints/a".into());
    assert_eq!(assign_state(&two, &location, &one, true).unwrap().tasks.len(), 1);
    let with_uid = metadata(vec![OperatorState { uid: Some("count".into()), ..keyed_state(2, 1) }]);
    refused(&with_uid, &one, &["operator \"op-2\" (uid \"count\")"]);
    // Without state nothing is lost.
    let empty = metadata(vec![keyed_state(1, 1), state(2, vec![OperatorSubtaskState::default()])]);
    assert!(assign(&empty, &one).is_ok());
    let coordinator = metadata(vec![OperatorState { coordinator: Some(vec![1]), ..state(2, Vec::new()) }]);
    refused(&coordinator, &one, &["op-2"]);
}

#[test]
fn the_user_defined_id_wins_over_the_generated_one() {
    let both = metadata(vec![keyed_state(1, 1), keyed_state(7, 1)]);
    let mut operator = guest(1);
    operator.user_defined_id = Some(id(7));
    let mut seven = both.clone();
    seven.operators.get_mut(&id(7)).unwrap().subtasks.get_mut(&0).unwrap().watermark = Some(-7);
    let restore = assign(&seven, &[vertex(vec![operator.clone()], 1)]).unwrap();
    assert_eq!(restore.tasks[&vertex_id(1)][0].as_ref().unwrap().operators[&1][0].watermark, Some(-7));
    let only_generated = metadata(vec![keyed_state(1, 1)]);
    assert_eq!(assign(&only_generated, &[vertex(vec![operator], 1)]).unwrap().tasks.len(), 1);
}

#[test]
fn key_groups_follow_flinks_rules() {
    let old = OperatorState { max_parallelism: 64, ..keyed_state(1, 1) };
    let metadata = metadata(vec![old]);
    let restore = assign(&metadata, &[vertex(vec![guest(1)], 64)]).unwrap();
    assert_eq!(restore.max_parallelisms, BTreeMap::from([(vertex_id(1), 64)]), "a derived one is adopted");
    let set = JobVertex { max_parallelism_configured: true, ..vertex(vec![guest(1)], 2) };
    refused(&metadata, &[set], &["\"op-1\"", "max parallelism of 64 there", "the job sets 128: set 64"]);
    refused(&metadata, &[vertex(vec![guest(1)], 65)], &["\"op-1\"", "parallelism of 65 exceeds", "at most 64"]);

    let mut two = metadata;
    two.operators.insert(id(2), keyed_state(2, 1));
    let chain = [vertex(vec![guest(1), guest(2)], 2)];
    refused(&two, &chain, &["\"op-1\" has a max parallelism of 64", "\"op-2\" one of 128", "do not chain them"]);
}

#[test]
fn other_types_are_refused_with_both() {
    let metadata = metadata(vec![keyed_state(1, 1)]);
    let change = |change: &dyn Fn(&mut StreamNode)| {
        let mut operator = guest(1);
        change(&mut operator.node);
        [vertex(vec![operator], 1)]
    };
    let key = change(&|node| node.key_type = Some("string".into()));
    refused(&metadata, &key, &["\"op-1\"", "keys of type u32 there, and in the job string"]);
    refused(&metadata, &change(&|node| node.key_type = None), &["keys of type u32 there, and in the job none"]);
    let value = change(&|node| node.states[0].value_type = "u32".into());
    refused(
        &metadata,
        &value,
        &["state \"count\" of operator \"op-1\" is Value of u64 there and Value of u32 in the job"],
    );
    let kind = change(&|node| node.states[0].kind = StateKind::List);
    refused(&metadata, &kind, &["Value of u64 there and List of u64 in the job", "another kind"]);
    let renamed = change(&|node| node.states[0].name = "counts".into());
    refused(&metadata, &renamed, &["state \"count\" of operator \"op-1\" is not declared any more"]);
    let location = SnapshotLocation("/savepoints/a".into());
    assert!(assign_state(&metadata, &location, &renamed, true).is_ok());
    let wider = change(&|node| node.states[0].value_type = "option<u64>".into());
    assert!(assign(&metadata, &wider).is_ok());
}

#[test]
fn elements_of_lists_get_the_new_type() {
    let mut list = lists("s", DistributionMode::Split, &serde_json::json!([0]));
    list[0].declaration.value_type = "u8".into();
    list[0].elements = vec![vec![5], vec![6]];
    let subtask = OperatorSubtaskState { lists: list.clone(), ..OperatorSubtaskState::default() };
    let mut operator = guest(1);
    operator.node.states = vec![declaration("s", StateKind::OperatorList, "u16")];
    let job = [vertex(vec![operator.clone()], 1)];
    let restore = assign(&metadata(vec![state(1, vec![subtask.clone()])]), &job).unwrap();
    let restored = &restore.tasks[&vertex_id(1)][0].as_ref().unwrap().operators[&1][0].lists[0];
    assert_eq!((restored.declaration.value_type.as_str(), &restored.elements), ("u16", &vec![vec![5, 0], vec![6, 0]]));
    operator.node.states[0].value_type = "string".into();
    let job = [vertex(vec![operator], 1)];
    refused(
        &metadata(vec![state(1, vec![subtask])]),
        &job,
        &["\"s\"", "OperatorList of u8 there and OperatorList of string"],
    );
}

#[test]
fn splits_and_committables_go_to_the_master() {
    let reader = |splits: &[u8]| OperatorSubtaskState {
        splits: splits.iter().map(|split| SourceSplit(vec![*split])).collect(),
        ..OperatorSubtaskState::default()
    };
    let writer = |number| OperatorSubtaskState {
        committables: vec![Committable(vec![number])],
        ..OperatorSubtaskState::default()
    };
    let source =
        OperatorState { coordinator: Some(vec![9]), ..state(1, vec![reader(&[1, 2]), reader(&[]), reader(&[3])]) };
    let metadata = metadata(vec![source, state(2, vec![writer(1), writer(2)])]);
    let vertices = |first: Operator| {
        [vertex(vec![operator(1, first)], 1), vertex(vec![operator(2, Operator::Sink(connector()))], 4)]
    };
    let restore = assign(&metadata, &vertices(Operator::Source(connector()))).unwrap();
    let split = |number: u8| SourceSplit(vec![number]);
    let expected = RestoredSource { enumerator: vec![9], splits: vec![(0, split(1)), (0, split(2)), (2, split(3))] };
    assert_eq!(restore.sources, BTreeMap::from([(1, expected)]));
    assert_eq!(restore.committables, BTreeMap::from([(2, vec![Committable(vec![1]), Committable(vec![2])])]));
    assert!(restore.tasks.values().flatten().all(|task| task.as_ref().unwrap().operators.is_empty()));
    refused(&metadata, &vertices(Operator::Guest("map".into())), &["operator \"op-1\" is a source there"]);
}

#[test]
fn what_had_finished_processes_nothing_and_nothing_is_put_before_it() {
    let finished = |number| OperatorState {
        finished: FinishedState::Fully,
        ..state(number, vec![OperatorSubtaskState::default()])
    };
    let partly = |number| OperatorState { finished: FinishedState::Partly, ..keyed_state(number, 2) };
    let all = DistributionPattern::AllToAll;
    let chain =
        |patterns: DistributionPattern| [vertex(vec![guest(1)], 2), behind(vertex(vec![guest(2)], 2), 1, patterns)];
    let restore = assign(&metadata(vec![finished(1), keyed_state(2, 2)]), &chain(all)).unwrap();
    let is_finished = |number| restore.tasks[&vertex_id(number)].iter().all(|task| task.as_ref().unwrap().is_finished);
    assert_eq!((is_finished(1), is_finished(2)), (true, false));

    let before = ["\"chain of op-2\" had finished there", "\"chain of op-1\" before it had not, or is new"];
    refused(&metadata(vec![keyed_state(1, 2), finished(2)]), &chain(all), &before);
    refused(&metadata(vec![finished(2)]), &chain(all), &before);
    refused(&metadata(vec![partly(1), partly(2)]), &chain(all), &before);
    assert!(assign(&metadata(vec![partly(1), partly(2)]), &chain(DistributionPattern::Pointwise)).is_ok());
    let mixed = [vertex(vec![guest(1), guest(2)], 2)];
    refused(&metadata(vec![finished(1)]), &mixed, &["\"op-1\" had finished there and \"op-2\" had not, or is new"]);
}
