//! Metadata as tests need it.

use std::collections::BTreeMap;

use super::*;

/// A part in a file.
pub(crate) fn part(checkpoint_id: CheckpointId, path: &str) -> KeyedStatePart {
    let file = StateFile { path: path.to_owned(), bytes: 10, crc32: 7 };
    let sections = vec![KeyGroupSection { key_group: 3, offset: 0, bytes: 10 }];
    KeyedStatePart { checkpoint_id, data: StateData::File(file), sections }
}

/// An operator of one subtask that has these parts.
pub(crate) fn metadata_of(checkpoint_id: CheckpointId, parts: Vec<KeyedStatePart>) -> CheckpointMetadata {
    let keyed = KeyedStateHandle { key_groups: (0, 127), key_type: "u32".into(), states: Vec::new(), parts };
    let operator_id = OperatorId::from_bytes([1; 16]);
    let operator = OperatorState {
        operator_id,
        uid: Some("count".into()),
        name: "Count".into(),
        parallelism: 1,
        max_parallelism: 128,
        subtasks: BTreeMap::from([(0, OperatorSubtaskState { keyed: Some(keyed), ..Default::default() })]),
        coordinator: None,
        finished: FinishedState::None,
    };
    CheckpointMetadata {
        job: JobId::from_bytes([2; 16]),
        job_name: "job".into(),
        plugin: BlobDigest::from_bytes([3; 32]),
        checkpoint_id,
        triggered: Timestamp(1_700_000_000_000),
        kind: SnapshotKind::Checkpoint,
        operators: BTreeMap::from([(operator_id, operator)]),
    }
}
