//! State on disk: larger than its memory, its directory, and disks that fail.

use std::fs;

use super::{
    tests::{Backend, LIST, MAP, VALUE, context, disk, entry, go_on, with},
    *,
};
use crate::base::clock::Timestamp;

const NOW: Timestamp = Timestamp(0);

fn put(state: &mut KeyedState, keys: std::ops::Range<u32>, value: &[u8]) -> Result<(), StateError> {
    keys.into_iter().try_for_each(|number| {
        let value = with(entry(&number.to_be_bytes(), b""), &[&number.to_le_bytes(), value].concat());
        state.put_many(VALUE, 1, &value, NOW, &go_on)
    })
}

fn get(state: &KeyedState, number: u32) -> Vec<u8> {
    state.get_many(VALUE, 1, &entry(&number.to_be_bytes(), b""), NOW, &go_on).unwrap()
}

#[test]
fn what_is_larger_than_its_memory_is_found_overwritten_and_deleted() {
    let large = KeyedStateContext { bytes_max: u64::MAX, ..context() };
    let mut state = KeyedState::on_disk(large, &disk(8 << 20)).unwrap();
    // Rounds of 100,000 keys with 100 bytes: many tables and files, merged with one another.
    for round in 0..5_u8 {
        put(&mut state, 0..100_000, &[round; 96]).unwrap();
    }
    let accounted = state.bytes();
    put(&mut state, 0..100_000, &[9; 96]).unwrap();
    assert_eq!(state.bytes(), accounted);
    for number in (0..100_000_u32).step_by(7) {
        let value = [&number.to_le_bytes()[..], &[9; 96]].concat();
        assert_eq!(get(&state, number), with(Vec::new(), &value));
    }
    let absent = u32::MAX.to_le_bytes();
    assert_eq!(get(&state, 100_000), absent);
    for number in 0..100_000_u32 {
        let gone = [entry(&number.to_be_bytes(), b""), absent.to_vec()].concat();
        state.put_many(VALUE, 1, &gone, NOW, &go_on).unwrap();
    }
    assert_eq!((state.bytes(), get(&state, 7)), (0, absent.to_vec()));
    assert!(state.usage().key_groups.iter().all(|group| group.bytes == 0 && group.entries == 0));
}

#[test]
fn lists_of_many_pieces_and_large_maps_are_read_in_order() {
    let large = KeyedStateContext { bytes_max: u64::MAX, value_bytes_max: usize::MAX, ..context() };
    let mut state = Backend::Disk.state(large);
    let at = entry(b"key", b"ns");
    let mut list = Vec::new();
    for number in 0..2000_u32 {
        list = with(list, &number.to_le_bytes());
        let more = with(at.clone(), &with(Vec::new(), &number.to_le_bytes()));
        state.append_many(LIST, 1, &more, NOW, &go_on).unwrap();
        // Map keys of several lengths, the first one empty.
        let map_key = &number.to_be_bytes()[..number as usize % 5];
        let pair = with(with(at.clone(), map_key), &number.to_le_bytes());
        state.put_many(MAP, 1, &pair, NOW, &go_on).unwrap();
    }
    assert_eq!(state.get_many(LIST, 1, &at, NOW, &go_on).unwrap(), with(Vec::new(), &list));
    let pairs = state.load_maps(MAP, 1, &at, u32::MAX, NOW, &go_on).unwrap();
    let keys: Vec<_> = entries::elements(&pairs[4..]).step_by(2).collect();
    assert!(keys.is_sorted() && keys[0].is_empty(), "{keys:?}");
    // 400 of four bytes, 8 of three that differ, and one of each other length.
    assert_eq!(keys.len(), 400 + 8 + 3);
}

#[test]
fn files_are_removed_with_the_state_and_the_last_snapshot() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("below");
    let mut state =
        KeyedState::on_disk(context(), &DiskState { directory: path.clone(), memory_bytes: 1 << 20 }).unwrap();
    put(&mut state, 0..3000, &[1; 96]).unwrap();
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    let mut snapshots: Vec<_> = (0..4).map(|key_group| state.key_group_snapshot(key_group)).collect();
    drop(state);
    let mut seen = 0;
    for snapshot in &mut snapshots {
        snapshot.visit(VALUE as usize, &mut |_, _, _, _| seen += 1).unwrap();
    }
    assert_eq!(seen, 3000);
    drop(snapshots);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "{path:?} has files");
}

#[test]
fn a_disk_that_fails_is_an_error_that_names_operator_state_and_files() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a file");
    fs::write(&file, "").unwrap();
    let config = DiskState { directory: file, memory_bytes: 1 << 20 };
    let error = KeyedState::on_disk(context(), &config).err().unwrap();
    assert_eq!(error.failure, StateFailure::Storage);
    assert!(error.message.starts_with("state of operator \"Count\": could not make files in "), "{error}");
    assert!(error.message.contains("a file") && !error.message.contains('\n'), "{error}");

    let config = DiskState { directory: directory.path().to_owned(), memory_bytes: 0 };
    let large = KeyedStateContext { bytes_max: u64::MAX, ..context() };
    let mut state = KeyedState::on_disk(large.clone(), &config).unwrap();
    put(&mut state, 0..10, b"value").unwrap();
    for task in fs::read_dir(directory.path()).unwrap().filter(|entry| entry.as_ref().unwrap().path().is_dir()) {
        fs::remove_dir_all(task.unwrap().path()).unwrap();
    }
    // The task does not wait for ever for a table that cannot be written.
    let error = put(&mut state, 0..1_000_000, &[1; 96]).unwrap_err();
    assert_eq!(error.failure, StateFailure::Storage, "{error}");
    assert!(error.message.starts_with("state \"value\" of operator \"Count\": its files in "), "{error}");
    assert!(error.message.contains("No such file") && !error.message.contains('\n'), "{error}");
    // It stays.
    let scanned = state.scan_map(MAP, &entry(b"key", b""), None, 1000, NOW);
    assert_eq!(scanned.unwrap_err().failure, StateFailure::Storage);
    let restored = state.restore(0, &[1], &[], Timestamp::MIN).unwrap_err();
    assert!(restored.to_string().contains("operator \"Count\": its files in "), "{restored}");

    // A key that is too long for the files fails the task, too.
    let mut state = KeyedState::on_disk(large, &config).unwrap();
    for call in 0..3 {
        let at = entry(&[7; 70_000], b"");
        let done = match call {
            0 => state.put_many(VALUE, 1, &with(at, b"v"), NOW, &go_on),
            1 => state.append_many(LIST, 1, &with(at, &with(Vec::new(), b"v")), NOW, &go_on),
            _ => state.put_many(MAP, 1, &with(with(at, b"m"), b"v"), NOW, &go_on),
        };
        let error = done.unwrap_err();
        assert!(error.message.contains("have 70") && error.message.contains("more than 65535"), "{error}");
    }
}
