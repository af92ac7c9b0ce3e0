//! Every kind of edge at several parallelisms, against what each promises.

use std::{collections::BTreeMap, fs, path::Path};

use engine_tests::{Cluster, text};

const NUMBERS: i64 = 10_000;

/// The numbers in the part file of each subtask, in the order in which they were written.
fn read(directory: &Path) -> BTreeMap<u32, Vec<i64>> {
    let mut parts = BTreeMap::new();
    for entry in fs::read_dir(directory).expect("readable") {
        let path = entry.expect("readable").path();
        let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
        let subtask = name.split('-').nth(1).expect("part-SUBTASK-ATTEMPT").parse().expect("a number");
        let content = fs::read_to_string(&path).expect("readable");
        parts.insert(subtask, content.lines().map(|line| line.parse().expect("a number")).collect());
    }
    parts
}

fn sorted<'a>(parts: impl IntoIterator<Item = &'a Vec<i64>>) -> Vec<i64> {
    let mut numbers: Vec<i64> = parts.into_iter().flatten().copied().collect();
    numbers.sort_unstable();
    numbers
}

/// Checks that no subtask has more than `spread` above any other.
#[track_caller]
fn check_balance(name: &str, parts: &BTreeMap<u32, Vec<i64>>, parallelism: u32, spread: usize) {
    assert_eq!(parts.len(), parallelism as usize, "{name}");
    let counts = parts.values().map(Vec::len);
    let (least, most) = (counts.clone().min().expect("not empty"), counts.max().expect("not empty"));
    assert!(most - least <= spread, "{name} at parallelism {parallelism}: {least} to {most}");
}

#[test]
fn every_edge_carries_what_it_promises() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let all: Vec<i64> = (0..NUMBERS).collect();
    for parallelism in [1, 2, 4] {
        let output = directory.path().join(parallelism.to_string());
        let plugin = engine_tests::plugin("test_topology");
        let parallelism_text = parallelism.to_string();
        let arguments = ["submit", "-p", &parallelism_text, "--allow-write", text(&output), text(&plugin)];
        let run = engine_tests::run(&[&arguments[..], &["--output", text(&output)]].concat());
        assert!(run.status.success(), "{}", engine_tests::describe(&run));
        let parts = |name: &str| read(&output.join(name));

        for name in ["forward", "rebalance", "rescale", "shuffle", "global", "custom", "rescale-three"] {
            assert_eq!(sorted(parts(name).values()), all, "{name} at parallelism {parallelism}");
        }
        // Each producer deals to each consumer in turn, beginning anywhere.
        check_balance("rebalance", &parts("rebalance"), parallelism, parallelism as usize);
        check_balance("odd", &parts("odd"), parallelism, parallelism as usize);
        // Subtasks of one index belong together, and order is kept.
        let forward = parts("forward");
        assert_eq!(parts("rescale"), forward);
        for (subtask, numbers) in &forward {
            assert!(numbers.is_sorted(), "forward: subtask {subtask} is out of order");
        }
        let global = parts("global");
        assert_eq!(global.keys().copied().collect::<Vec<_>>(), [0]);
        for (subtask, numbers) in parts("custom") {
            let expected: Vec<i64> =
                (0..NUMBERS).filter(|number| number / 10 % i64::from(parallelism) == i64::from(subtask)).collect();
            assert_eq!(sorted([&numbers]), expected, "custom: subtask {subtask}");
        }
        let broadcast = parts("broadcast");
        assert_eq!(broadcast.len(), parallelism as usize);
        for numbers in broadcast.values() {
            assert_eq!(sorted([numbers]), all, "broadcast");
        }
        let few: Vec<i64> = (0..100).collect();
        let from_source = parts("source-broadcast");
        assert_eq!(from_source.len(), parallelism as usize);
        assert!(from_source.values().all(|numbers| sorted([numbers]) == few), "broadcast of a native source");
        let from_source = parts("source-global");
        assert_eq!((from_source.len(), sorted(from_source.values())), (1, few), "global of a native source");
        // By chance alone: a share further from the mean than a fifth would be a miracle.
        check_balance("shuffle", &parts("shuffle"), parallelism, NUMBERS as usize / parallelism as usize / 5);

        let (even, odd): (Vec<i64>, Vec<i64>) = all.iter().partition(|number| *number % 2 == 0);
        assert_eq!(sorted(parts("even").values()), even);
        assert_eq!(sorted(parts("odd").values()), odd);
        assert_eq!(sorted(parts("union").values()), (0..NUMBERS + 1_000).collect::<Vec<_>>());
    }
}

#[test]
fn task_executors_of_one_slot_exchange_what_a_job_sends() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = text(directory.path());
    let cluster = Cluster::start(&["--task-executors", "3", "--slots", "1", "--allow-write", root]);
    let output = directory.path().join("out");
    let job = cluster.submit(&["--allow-write", root], "test_topology", &["--output", text(&output)]);
    cluster.await_state(&job, "FINISHED");
    assert_eq!(sorted(read(&output.join("rescale-three")).values()), (0..NUMBERS).collect::<Vec<_>>());
    assert_eq!(sorted(read(&output.join("union")).values()), (0..NUMBERS + 1_000).collect::<Vec<_>>());
}
