//! Exports against what was put in, from parts that build upon each other; and what is wrong with files and names.

use std::collections::BTreeSet;

use super::*;
use crate::{
    base::{
        clock::Timestamp,
        ids::{BlobDigest, JobId, OperatorId},
        stream_element::{SnapshotKind, SnapshotLocation},
    },
    checkpoint::{FinishedState, OperatorListState, OperatorSubtaskState},
};

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

fn keyed_declarations() -> Vec<StateDeclaration> {
    vec![
        declaration("sum", StateKind::Reducing, "u32"),
        StateDeclaration { time_to_live: Some(1000), ..declaration("seen", StateKind::List, "string") },
        StateDeclaration { map_key_type: Some("u8".into()), ..declaration("by", StateKind::Map, "tuple(bool,string)") },
    ]
}

/// Four key groups in one subtask.
fn keyed_state() -> KeyedState {
    let descriptor = |state: &StateDeclaration| StateDescriptor {
        operator: "Count".into(),
        name: state.name.clone(),
        shape: shape(state.kind),
        has_time_to_live: state.time_to_live.is_some(),
        taken_at_end: false,
    };
    KeyedState::new(KeyedStateContext {
        operator: "Count".into(),
        is_keyed: true,
        states: keyed_declarations().iter().map(descriptor).collect(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 4,
        bytes_max: u64::MAX,
        value_bytes_max: usize::MAX,
        timers_max: u64::MAX,
        result_bytes_max: usize::MAX,
    })
}

fn counted(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for part in parts {
        bytes.extend_from_slice(&u32::try_from(part.len()).unwrap().to_le_bytes());
        bytes.extend_from_slice(part);
    }
    bytes
}

/// The window from 0 to 5000, by hand: the sign bit is flipped.
const WINDOW: [u8; 16] = [0x80, 0, 0, 0, 0, 0, 0, 0, 0x80, 0, 0, 0, 0, 0, 0x13, 0x88];

fn put(state: &mut KeyedState, place: u32, parts: &[&[u8]]) {
    state.put_many(place, 1, &counted(parts), Timestamp(0), &|| true).unwrap();
}

/// A part of a checkpoint: in a file, or in the metadata itself.
fn part(storage: &CheckpointStorage, state: &mut KeyedState, id: u64, is_inline: bool) -> KeyedStatePart {
    let mut bytes = Vec::new();
    let mut sections = Vec::new();
    let mut offset = 0;
    for (key_group, length) in state.snapshot(id, false).write(&mut bytes).unwrap() {
        sections.push(KeyGroupSection { key_group, offset, bytes: length });
        offset += length;
    }
    state.checkpoint_completed(id);
    let data = if is_inline {
        StateData::Inline(bytes)
    } else {
        StateData::File(storage.write(&format!("shared/{id}"), &mut |out| out.write_all(&bytes)).unwrap())
    };
    KeyedStatePart { checkpoint_id: id, data, sections }
}

fn id(number: u8) -> OperatorId {
    OperatorId::from_bytes([number; 16])
}

fn operator(number: u8, uid: Option<&str>, name: &str, subtasks: Vec<OperatorSubtaskState>) -> OperatorState {
    OperatorState {
        operator_id: id(number),
        uid: uid.map(str::to_owned),
        name: name.into(),
        parallelism: u32::try_from(subtasks.len()).unwrap(),
        max_parallelism: 4,
        subtasks: (0..).zip(subtasks).collect(),
        coordinator: None,
        finished: FinishedState::None,
    }
}

/// A checkpoint of an operator with keyed state in three parts, and of others with lists.
fn checkpoint(storage: &CheckpointStorage) -> CheckpointMetadata {
    let mut state = keyed_state();
    state.track_changes();
    for number in 0..100_u32 {
        let key = format!("k{number}");
        put(&mut state, 0, &[key.as_bytes(), b"", &number.to_le_bytes()]);
    }
    let timer = |domain: u8, key: &[u8], namespace: &[u8], timestamp: i64| {
        [&[domain][..], &timestamp.to_le_bytes(), &counted(&[key, namespace])].concat()
    };
    state.register_timers(1, &timer(0, b"k1", &WINDOW, 4999), &|| true).unwrap();
    state.register_timers(1, &timer(1, b"k2", b"", 70), &|| true).unwrap();
    state.register_timers(1, &timer(0, b"k3", b"", 10), &|| true).unwrap();
    let full = part(storage, &mut state, 1, false);
    put(&mut state, 0, &[b"k7", b"", &700_u32.to_le_bytes()]);
    put(&mut state, 0, &[b"k7", &WINDOW, &1_u32.to_le_bytes()]);
    let element = |until: i64, text: &str| [&until.to_le_bytes()[..], text.as_bytes()].concat();
    state
        .append_many(
            1,
            1,
            &counted(&[b"k1", b"", &counted(&[&element(50, "a"), &element(60, "b,\"c")])]),
            Timestamp(0),
            &|| true,
        )
        .unwrap();
    state.take_due_timers(TimeDomain::EventTime, Timestamp(20), &mut Vec::new());
    let first = part(storage, &mut state, 2, false);
    // Absent: the value of k8 is deleted.
    let absent = [&counted(&[b"k8", b""])[..], &u32::MAX.to_le_bytes()].concat();
    state.put_many(0, 1, &absent, Timestamp(0), &|| true).unwrap();
    for (map_key, text) in [(1_u8, "x"), (2, "y")] {
        let value = [&[map_key - 1][..], &counted(&[text.as_bytes()])].concat();
        put(&mut state, 2, &[b"k1", b"", &[map_key], &value]);
    }
    let second = part(storage, &mut state, 3, true);
    let keyed = KeyedStateHandle {
        key_groups: (0, 3),
        key_type: "string".into(),
        states: keyed_declarations(),
        parts: vec![full, first, second],
    };
    let with_list = |declaration: StateDeclaration, mode, elements: &[&[u8]]| {
        let elements = elements.iter().map(|element| element.to_vec()).collect();
        let lists = vec![OperatorListState { declaration, mode, elements }];
        OperatorSubtaskState { lists, ..OperatorSubtaskState::default() }
    };
    let list = |elements: &[&[u8]]| {
        with_list(declaration("last", StateKind::OperatorList, "u8"), DistributionMode::Split, elements)
    };
    let rules = || {
        let declaration = StateDeclaration {
            map_key_type: Some("string".into()),
            ..declaration("rules", StateKind::Broadcast, "u8")
        };
        with_list(declaration, DistributionMode::Broadcast, &[&[1, 0, 0, 0, b'r', 9]])
    };
    let counts = OperatorSubtaskState { keyed: Some(keyed), ..OperatorSubtaskState::default() };
    let operators = [
        operator(1, Some("counts"), "Count", vec![counts]),
        operator(2, None, "Read", vec![list(&[&[1], &[2]]), list(&[&[3]])]),
        operator(3, None, "Read", vec![rules(), rules()]),
    ];
    CheckpointMetadata {
        job: JobId::from_bytes([1; 16]),
        job_name: "job".into(),
        plugin: BlobDigest::from_bytes([2; 32]),
        checkpoint_id: 3,
        triggered: Timestamp(0),
        kind: SnapshotKind::Checkpoint,
        operators: operators.into_iter().map(|operator| (operator.operator_id, operator)).collect(),
    }
}

/// The entries, one text each.
fn entries(export: &StateExport<'_>, show: impl Fn(&ExportedEntry) -> String) -> Result<BTreeSet<String>, ExportError> {
    let mut shown = BTreeSet::new();
    export.export(&mut |entry| {
        assert!(shown.insert(show(entry)), "each entry comes once");
        Ok(())
    })?;
    Ok(shown)
}

fn set(expected: &[&str]) -> BTreeSet<String> {
    expected.iter().map(|text| (*text).to_owned()).collect()
}

fn storage(directory: &tempfile::TempDir) -> CheckpointStorage {
    CheckpointStorage::open(SnapshotLocation(directory.path().to_string_lossy().into_owned())).unwrap()
}

#[test]
fn states_and_timers_are_what_was_put_in() {
    let directory = tempfile::tempdir().unwrap();
    let storage = storage(&directory);
    let metadata = checkpoint(&storage);
    let of = |name: &str| StateExport::of_state(&storage, &metadata, name).unwrap();

    let sums = of("counts/sum");
    assert_eq!(sums.columns(), [Column::Key, Column::Window, Column::Value]);
    let mut expected: BTreeSet<String> = (0..100)
        .filter(|number| ![7, 8].contains(number))
        .map(|number| format!("\"k{number}\" None {number}"))
        .collect();
    expected.extend(set(&["\"k7\" None 700", "\"k7\" Window(0, 5000) 1"]));
    let show = |entry: &ExportedEntry| format!("{} {:?} {}", entry.key, entry.namespace, entry.value);
    assert_eq!(entries(&sums, show).unwrap(), expected);
    // By the name and by the id of the operator too.
    assert_eq!(entries(&of("Count/sum"), show).unwrap(), expected);
    assert_eq!(entries(&of(&format!("{}/sum", id(1))), show).unwrap(), expected);

    let seen = of("counts/seen");
    assert_eq!(seen.columns(), [Column::Key, Column::Window, Column::Index, Column::Value, Column::Until]);
    let show = |entry: &ExportedEntry| format!("{} {} {} {}", entry.key, entry.index, entry.value, entry.until);
    assert_eq!(entries(&seen, show).unwrap(), set(&["\"k1\" 0 \"a\" 50", r#""k1" 1 "b,\"c" 60"#]));

    let by = of("counts/by");
    assert_eq!(by.columns(), [Column::Key, Column::Window, Column::MapKey, Column::Value]);
    let show = |entry: &ExportedEntry| format!("{} {} {}", entry.key, entry.map_key, entry.value);
    assert_eq!(entries(&by, show).unwrap(), set(&[r#""k1" 1 [false,"x"]"#, r#""k1" 2 [true,"y"]"#]));

    let timers = StateExport::of_timers(&storage, &metadata, "counts").unwrap();
    assert_eq!(timers.columns(), [Column::Key, Column::Window, Column::Domain, Column::Timestamp]);
    let show = |entry: &ExportedEntry| {
        format!("{} {:?} {:?} {}", entry.key, entry.namespace, entry.domain.unwrap(), entry.timestamp)
    };
    let expected = ["\"k1\" Window(0, 5000) EventTime 4999", "\"k2\" None ProcessingTime 70"];
    assert_eq!(entries(&timers, show).unwrap(), set(&expected));

    let last = of(&format!("{}/last", id(2)));
    assert_eq!(last.columns(), [Column::Subtask, Column::Index, Column::Value]);
    let show = |entry: &ExportedEntry| format!("{} {} {}", entry.subtask, entry.index, entry.value);
    assert_eq!(entries(&last, show).unwrap(), set(&["0 0 1", "0 1 2", "1 0 3"]));

    // Which all subtasks have alike.
    let rules = of("Read/rules");
    assert_eq!(rules.columns(), [Column::MapKey, Column::Value]);
    let show = |entry: &ExportedEntry| format!("{} {}", entry.map_key, entry.value);
    assert_eq!(entries(&rules, show).unwrap(), set(&["\"r\" 9"]));
}

#[test]
fn names_that_are_not_there_are_answered_with_those_that_are() {
    let directory = tempfile::tempdir().unwrap();
    let storage = storage(&directory);
    let mut metadata = checkpoint(&storage);
    let refused = |metadata: &CheckpointMetadata, name: &str| {
        StateExport::of_state(&storage, metadata, name).unwrap_err().to_string()
    };
    let all = format!("counts/sum, counts/seen, counts/by, {}/last, {}/rules", id(2), id(3));
    for name in ["counts", "counts/nothing", "nobody/sum", "sum"] {
        let expected = format!("there is no state \"{name}\" (OPERATOR/STATE); there are: {all}");
        assert_eq!(refused(&metadata, name), expected);
    }
    let timers = StateExport::of_timers(&storage, &metadata, "Read").unwrap_err().to_string();
    assert_eq!(timers, "there is no operator \"Read\" with keyed state and timers; there are: counts");

    let mut twin = metadata.operators[&id(1)].clone();
    twin.operator_id = id(9);
    twin.uid = None;
    metadata.operators.insert(id(9), twin);
    let several = refused(&metadata, "Count/sum");
    assert!(several.ends_with(&format!("name the operator by its id, one of {}, {}", id(1), id(9))), "{several}");
    assert!(StateExport::of_state(&storage, &metadata, "counts/sum").is_ok());
}

#[test]
fn broken_files_are_named_before_anything_is_handed_out() {
    let directory = tempfile::tempdir().unwrap();
    let storage = storage(&directory);
    let metadata = checkpoint(&storage);
    let path = |name: &str| directory.path().join("shared").join(name);
    let mut bytes = std::fs::read(path("1")).unwrap();
    bytes[10] ^= 1;
    std::fs::write(path("1"), &bytes).unwrap();
    std::fs::remove_file(path("2")).unwrap();
    let export = StateExport::of_state(&storage, &metadata, "counts/sum").unwrap();
    let error = export.export(&mut |_| panic!("nothing is handed out")).unwrap_err().to_string();
    assert!(
        error.contains("shared/1 is damaged: its checksum is ") && error.contains("shared/2 is missing"),
        "{error}"
    );
    // Operators whose files are whole can be exported.
    let rules = StateExport::of_state(&storage, &metadata, "Read/rules").unwrap();
    assert_eq!(entries(&rules, |entry| entry.value.clone()).unwrap().len(), 1);
}

#[test]
fn bytes_of_another_type_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let storage = storage(&directory);
    let mut metadata = checkpoint(&storage);
    let keyed = metadata.operators.get_mut(&id(1)).unwrap().subtasks.get_mut(&0).unwrap().keyed.as_mut().unwrap();
    keyed.states[0].value_type = "u64".into();
    let export = StateExport::of_state(&storage, &metadata, "counts/sum").unwrap();
    let error = entries(&export, |entry| format!("{entry:?}")).unwrap_err().to_string();
    assert!(error.starts_with("state \"sum\" of operator \"Count\" cannot be read: key \"k"), "{error}");
    assert!(error.ends_with(": it is shorter than its type says"), "{error}");
}
