//! The store on a local directory and in memory, and what damages its files.

use std::fs;

use object_store::memory::InMemory;
use proptest::prelude::*;

use super::*;
use crate::{
    base::stream_element::SnapshotKind,
    checkpoint::{
        KeyedStatePart, StateData,
        tests::{metadata_of, part},
    },
};

fn local(directory: &std::path::Path) -> CheckpointStorage {
    CheckpointStorage::open(SnapshotLocation(directory.to_string_lossy().into_owned())).unwrap()
}

fn in_memory() -> CheckpointStorage {
    CheckpointStorage {
        location: SnapshotLocation("memory".into()),
        store: Arc::new(InMemory::new()),
        prefix: Path::parse("jobs/a").unwrap(),
        directory: None,
    }
}

fn write(storage: &CheckpointStorage, path: &str, content: &[u8]) -> StateFile {
    storage.write(path, &mut |out| out.write_all(content)).unwrap()
}

fn files(directory: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(path.strip_prefix(directory).unwrap().to_string_lossy().into_owned());
            }
        }
    }
    found.sort();
    found
}

/// A checkpoint with one file.
fn checkpoint(storage: &CheckpointStorage, id: CheckpointId) -> CheckpointMetadata {
    let file = write(storage, &format!("shared/{id}-0"), &[7; 1000]);
    let metadata = metadata_of(id, vec![KeyedStatePart { data: StateData::File(file), ..part(id, "") }]);
    storage.store_metadata(&metadata).unwrap();
    metadata
}

#[test]
fn a_checkpoint_is_found_again_on_both_stores() {
    let directory = tempfile::tempdir().unwrap();
    for storage in [local(&directory.path().join("not there yet/50% #1")), in_memory()] {
        assert!(storage.checkpoints().unwrap().is_empty());
        let ten = checkpoint(&storage, 10);
        let nine = checkpoint(&storage, 9);
        assert_eq!(storage.checkpoints().unwrap(), [9, 10]);
        assert_eq!(storage.load_metadata(Some(10)).unwrap(), ten);
        storage.verify(&ten).unwrap();
        let file = ten.files().next().unwrap();
        assert_eq!(file.bytes, 1000);
        assert_eq!(storage.read(file).unwrap(), [7; 1000].as_slice());

        storage.delete_metadata(9).unwrap();
        storage.delete_metadata(9).unwrap();
        assert_eq!(storage.checkpoints().unwrap(), [10]);
        let file = nine.files().next().unwrap();
        storage.delete(&file.path).unwrap();
        storage.delete(&file.path).unwrap();
        let missing = storage.read(file).unwrap_err();
        assert!(matches!(missing, CheckpointStorageError::Missing { .. }), "{missing}");
        assert!(missing.to_string().ends_with("/shared/9-0 is missing"), "{missing}");
        storage.delete_all().unwrap();
        storage.delete_all().unwrap();
        assert!(storage.checkpoints().unwrap().is_empty());
    }
    assert_eq!(files(directory.path()), Vec::<String>::new());
}

#[test]
fn the_layout_is_flinks_and_nothing_else_lies_about() {
    let directory = tempfile::tempdir().unwrap();
    let storage = local(directory.path());
    checkpoint(&storage, 3);
    assert_eq!(files(directory.path()), ["chk-3/_metadata", "shared/3-0"]);
    let bytes = fs::read(directory.path().join("chk-3/_metadata")).unwrap();
    assert_eq!(&bytes[..12], b"EngChkpt\x01\0\0\0");
    storage.delete_metadata(3).unwrap();
    assert!(!directory.path().join("chk-3").exists());
}

#[test]
fn a_file_of_several_parts_is_streamed_and_read_as_it_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for storage in [local(directory.path()), in_memory()] {
        let piece: Vec<u8> =
            (0..1_000_003_u32).map(|number| number.to_le_bytes()[0] ^ number.to_le_bytes()[1]).collect();
        let file = storage.write("shared/large", &mut |out| (0..20).try_for_each(|_| out.write_all(&piece))).unwrap();
        assert_eq!(file.bytes, 20 * 1_000_003);
        assert_eq!(file.crc32, crc32fast::hash(&piece.repeat(20)));
        assert_eq!(storage.read(&file).unwrap(), piece.repeat(20));
        storage.verify(&metadata_of(1, vec![KeyedStatePart { data: StateData::File(file), ..part(1, "") }])).unwrap();
    }
}

#[test]
fn what_fails_while_it_is_written_is_not_there() {
    let directory = tempfile::tempdir().unwrap();
    let storage = local(directory.path());
    for megabytes in [0, 1, 20] {
        let failed = storage.write("shared/a", &mut |out| {
            out.write_all(&vec![1; megabytes << 20])?;
            Err(io::ErrorKind::StorageFull.into())
        });
        let message = failed.unwrap_err().to_string();
        assert!(message.starts_with("could not write ") && message.contains("/shared/a: make room"), "{message}");
        assert_eq!(files(directory.path()), Vec::<String>::new());
    }
    // A directory that cannot be made.
    fs::write(directory.path().join("file"), b"").unwrap();
    let storage = local(&directory.path().join("file"));
    let message = storage.write("shared/a", &mut |out| out.write_all(b"x")).unwrap_err().to_string();
    assert!(message.contains("/file/shared/a: it must be possible to write there"), "{message}");
}

#[test]
fn what_a_killed_process_left_behind_is_deleted_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    for storage in [local(&directory.path().join("job")), in_memory()] {
        let mut registry = SharedStateRegistry::default();
        assert_eq!(storage.unreferenced(&registry).unwrap(), [""; 0]);
        let kept = checkpoint(&storage, 1);
        assert!(registry.register(&kept).is_empty());
        let orphan = write(&storage, "shared/2-0", b"of a checkpoint that did not complete");
        let mut expected = vec!["shared/2-0"];
        if let Some(directory) = &storage.directory {
            fs::write(directory.join("shared/2-1#1"), b"half").unwrap();
            // A savepoint that somebody put there.
            fs::create_dir(directory.join("shared/savepoint-1")).unwrap();
            fs::write(directory.join("shared/savepoint-1/_metadata"), b"").unwrap();
            expected.push("shared/2-1#1");
        }
        let found = storage.unreferenced(&registry).unwrap();
        assert_eq!(found, expected);
        found.iter().for_each(|path| storage.delete(path).unwrap());
        found.iter().for_each(|path| storage.delete(path).expect("idempotent"));
        assert_eq!(storage.unreferenced(&registry).unwrap(), [""; 0]);
        assert!(matches!(storage.read(&orphan), Err(CheckpointStorageError::Missing { .. })));
        storage.verify(&kept).unwrap();
    }
    let left = ["job/chk-1/_metadata", "job/shared/1-0", "job/shared/savepoint-1/_metadata"];
    assert_eq!(files(directory.path()), left);
}

#[test]
fn a_user_names_a_savepoint_a_checkpoint_or_its_metadata() {
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| SnapshotLocation(directory.path().join(path).to_string_lossy().into_owned());
    let storage = CheckpointStorage::open(at("job")).unwrap();
    let metadata = checkpoint(&storage, 4);
    for path in ["job/chk-4", "job/chk-4/", "job/chk-4/_metadata"] {
        let (found, loaded) = CheckpointStorage::open_snapshot(&at(path)).unwrap();
        assert_eq!((found.location(), &loaded), (storage.location(), &metadata));
        found.verify(&loaded).unwrap();
    }
    let url = SnapshotLocation(format!("file://{}", at("job/chk-4").0));
    assert_eq!(CheckpointStorage::open_snapshot(&url).unwrap().1, metadata);

    // A savepoint may be moved.
    let savepoint = CheckpointStorage::open(at("savepoint-1")).unwrap();
    let file = write(&savepoint, "1-0", b"state");
    let metadata = metadata_of(5, vec![KeyedStatePart { data: StateData::File(file), ..part(5, "") }]);
    let metadata = CheckpointMetadata { kind: SnapshotKind::Savepoint, ..metadata };
    savepoint.store_metadata(&metadata).unwrap();
    fs::rename(&at("savepoint-1").0, &at("chk-77").0).unwrap();
    let (found, loaded) = CheckpointStorage::open_snapshot(&at("chk-77")).unwrap();
    assert_eq!(loaded, metadata);
    found.verify(&loaded).unwrap();
}

#[test]
fn a_savepoint_is_deleted_with_its_files_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let at = |path: &str| directory.path().join(path);
    let savepoint = |name: &str| {
        let storage = local(&at(name));
        let parts = [write(&storage, "shared/1-0", b"state"), write(&storage, "1-1", b"more")]
            .map(|file| KeyedStatePart { data: StateData::File(file), ..part(5, "") });
        let metadata = CheckpointMetadata { kind: SnapshotKind::Savepoint, ..metadata_of(5, parts.into()) };
        storage.store_metadata(&metadata).unwrap();
        storage
    };
    let stopped = savepoint("savepoint-1");
    stopped.note_stopped().unwrap();
    stopped.delete_savepoint().unwrap();
    stopped.note_stopped().unwrap();
    assert!(!stopped.is_stopped().unwrap(), "nothing is made where it was");
    assert!(!at("savepoint-1").exists());

    let storage = savepoint("savepoint-2");
    fs::write(at("savepoint-2/of-a-user"), "kept").unwrap();
    fs::create_dir(at("savepoint-2/shared/mine")).unwrap();
    storage.delete_savepoint().unwrap();
    let left: BTreeSet<String> = fs::read_dir(at("savepoint-2"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(left, ["of-a-user".to_owned(), "shared".to_owned()].into());
    assert_eq!(fs::read_dir(at("savepoint-2/shared")).unwrap().count(), 1, "what is not its own");
    assert!(matches!(storage.delete_savepoint(), Err(CheckpointStorageError::Missing { .. })));

    // A checkpoint, under its own name or another.
    checkpoint(&local(&at("job")), 4);
    let check_refused = |name: &str| {
        let refused = local(&at(name)).delete_savepoint().unwrap_err().to_string();
        assert!(refused.contains("only savepoints can be disposed of"), "{refused}");
        assert!(at(name).join(METADATA).exists());
    };
    check_refused("job/chk-4");
    fs::rename(at("job/chk-4"), at("job/renamed")).unwrap();
    check_refused("job/renamed");
}

#[test]
fn the_number_of_the_last_savepoint_is_noted() {
    let directory = tempfile::tempdir().unwrap();
    let storage = local(&directory.path().join("job"));
    assert_eq!(storage.last_savepoint().unwrap(), 0);
    for (id, last) in [(9, 9), (12, 12), (11, 12)] {
        storage.note_savepoint(id).unwrap();
        assert_eq!(storage.last_savepoint().unwrap(), last);
    }
    assert_eq!(storage.checkpoints().unwrap(), [0; 0]);
    fs::write(directory.path().join("job").join(LAST_SAVEPOINT), "twelve").unwrap();
    assert!(matches!(storage.last_savepoint(), Err(CheckpointStorageError::Damaged { .. })));
}

#[test]
fn a_directory_is_probed_before_a_savepoint_is_written_there() {
    let root = tempfile::tempdir().unwrap();
    let (file, fresh) = (root.path().join("a-file"), root.path().join("fresh/points"));
    local(&fresh).probe().unwrap();
    assert!(fs::read_dir(&fresh).unwrap().next().is_none(), "nothing is left");
    fs::write(&file, "of a user").unwrap();
    let refused = local(&file).probe().unwrap_err().to_string();
    assert!(refused.starts_with("could not write "), "{refused}");
    let advice = ": it must be possible to write there, or choose another directory for the savepoint";
    assert!(refused.ends_with(advice), "{refused}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "of a user");
    let read = local(&file).load_metadata(None).unwrap_err().to_string();
    assert!(read.ends_with(": that is no savepoint or checkpoint directory"), "{read}");
}

#[test]
fn locations_and_paths_that_cannot_be_used_are_refused() {
    for (location, part) in [
        ("s3://bucket/a", "stores of kind \"s3\" are not known"),
        ("file://host/a", "has no host"),
        ("file:///a%zz", "two hexadecimal digits"),
        ("", "it is empty"),
    ] {
        let error = CheckpointStorage::open(SnapshotLocation(location.to_owned())).unwrap_err();
        assert!(matches!(error, CheckpointStorageError::Refused { .. }) && error.to_string().contains(part), "{error}");
    }
    let directory = tempfile::tempdir().unwrap();
    let storage = local(&directory.path().join("job"));
    fs::write(directory.path().join("secret"), b"secret").unwrap();
    for path in ["../secret", "/etc/passwd", "shared/../../secret", "shared//a", "", ".", "a\\..\\b", "a\0b"] {
        let metadata = metadata_of(1, vec![part(1, path)]);
        let file = metadata.files().next().unwrap();
        let refused = |error: CheckpointStorageError| {
            assert!(matches!(error, CheckpointStorageError::Refused { .. }), "{path}: {error}");
            assert!(!error.to_string().contains('\n'));
        };
        refused(storage.read(file).unwrap_err());
        refused(storage.delete(path).unwrap_err());
        refused(storage.write(path, &mut |_| Ok(())).unwrap_err());
        refused(storage.verify(&metadata).unwrap_err());
        storage.store_metadata(&metadata).unwrap();
        refused(storage.load_metadata(Some(1)).unwrap_err());
    }
    assert_eq!(fs::read(directory.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn metadata_of_others_and_of_other_versions_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let storage = local(directory.path());
    checkpoint(&storage, 1);
    let path = directory.path().join("chk-1/_metadata");
    let whole = fs::read(&path).unwrap();
    let load = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        storage.load_metadata(Some(1)).unwrap_err().to_string()
    };
    assert!(
        load(b"\x49\x60\x67\x2d\0\0\0\x04").contains(
            "not the metadata of a checkpoint or savepoint of this engine: it begins as those of Apache Flink"
        )
    );
    assert!(load(b"#!/bin/sh").ends_with("of this engine"));
    assert!(load(b"").contains("is damaged: it is cut off after 0 bytes"));

    let mut newer = whole.clone();
    newer[8] = 2;
    let end = newer.len() - 4;
    let checksum = crc32fast::hash(&newer[..end]);
    newer[end..].copy_from_slice(&checksum.to_le_bytes());
    assert!(load(&newer).contains("has format version 2, this engine reads version 1"));

    fs::create_dir(directory.path().join("chk-2")).unwrap();
    fs::write(directory.path().join("chk-2/_metadata"), &whole).unwrap();
    let message = storage.load_metadata(Some(2)).unwrap_err().to_string();
    assert!(message.contains("not that of checkpoint 2, but of 1"), "{message}");
    let missing = storage.load_metadata(Some(3)).unwrap_err();
    assert!(matches!(missing, CheckpointStorageError::Missing { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Any byte flipped, any cut, anything appended, of state and of metadata.
    #[test]
    fn every_damage_is_found(at in any::<prop::sample::Index>(), bit in 0_u32..8, kind in 0_u8..3, is_state: bool) {
        thread_local! {
            static WRITTEN: (tempfile::TempDir, CheckpointMetadata) = {
                let directory = tempfile::tempdir().unwrap();
                let metadata = checkpoint(&local(directory.path()), 1);
                (directory, metadata)
            };
        }
        let error = WRITTEN.with(|(directory, metadata)| {
            let storage = local(directory.path());
            let path = directory.path().join(if is_state { "shared/1-0" } else { "chk-1/_metadata" });
            let whole = fs::read(&path).unwrap();
            let mut bytes = whole.clone();
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] ^= 1 << bit,
                1 => bytes.truncate(at),
                _ => bytes.push(0),
            }
            fs::write(&path, bytes).unwrap();
            let error = if is_state {
                assert!(storage.read(metadata.files().next().unwrap()).is_err());
                storage.verify(metadata).unwrap_err()
            } else {
                storage.load_metadata(Some(1)).unwrap_err()
            };
            fs::write(&path, whole).unwrap();
            error
        });
        let is_right = matches!(error, CheckpointStorageError::Damaged { .. } | CheckpointStorageError::Foreign { .. });
        prop_assert!(is_right, "{}", error);
    }
}
