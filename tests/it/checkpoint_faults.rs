//! Faults of the storage of checkpoints, of plugins that trap in snapshots, and what at-least-once means: the job
//! goes on or fails as it was told to, with a line that says what to do, and its output is exact.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use engine_tests::{Cluster, check_failure, describe, sorted_rows, text};

use crate::exactly_once::{JOB, RESTARTS, Scene, await_commit};

/// State is in files, not in the metadata, and each failure is told.
const TOLD: [&str; 4] = ["-D", "execution.checkpointing.data-inline-threshold=0b", "--log-level", "info"];
const NO_RESTART: [&str; 2] = ["-D", "restart-strategy.type=none"];
const TOLERANT: [&str; 2] = ["-D", "execution.checkpointing.tolerable-failed-checkpoints=1000"];
/// How long something is waited for.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Where a job's checkpoints are.
fn checkpoints(scene: &Scene) -> PathBuf {
    scene.path("state").join("checkpoints").join(JOB)
}

/// Looks until a condition holds.
#[track_caller]
pub fn await_that(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "it is still not so: {what}");
        thread::yield_now();
    }
}

/// Names in a directory, sorted; none if it is not there.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Numbers of the complete checkpoints, ascending.
fn complete(directory: &Path) -> Vec<u64> {
    let ids = names(directory).into_iter().filter_map(|name| name.strip_prefix("chk-")?.parse().ok());
    let mut ids: Vec<u64> = ids.filter(|id| directory.join(format!("chk-{id}/_metadata")).exists()).collect();
    ids.sort_unstable();
    ids
}

const FAULTS: [(&str, &str, &str); 5] = [
    ("checkpoint.file.write", "ENOSPC", "make room, or choose another directory (execution.checkpointing.dir)"),
    ("checkpoint.file.complete", "ENOSPC", "make room, or choose another directory (execution.checkpointing.dir)"),
    ("checkpoint.file.complete", "EIO", "Input/output error"),
    ("checkpoint.file.complete", "EROFS", "it must be possible to write there, or choose another directory"),
    ("checkpoint.metadata.store", "ENOSPC", "make room, or choose another directory (execution.checkpointing.dir)"),
];

#[test]
fn a_checkpoint_that_cannot_be_written_is_given_up_and_the_next_one_completes() {
    let scene = Scene::new();
    for (place, error, advice) in FAULTS {
        let failpoint = format!("{place}=error({error})@4");
        let done = scene.submit(&[&TOLD[..], &TOLERANT].concat(), "nexmark", &scene.query("q5"), Some(&failpoint));
        assert!(done.status.success(), "{failpoint}: {}", describe(&done));
        let told = String::from_utf8_lossy(&done.stderr);
        let given_up = told.lines().find(|line| line.contains("given up: ") && line.contains(advice));
        let line = given_up.unwrap_or_else(|| panic!("{failpoint}: {}", describe(&done)));
        assert!(line.contains(&format!("could not write {}/", text(&checkpoints(&scene)))), "{line}");
        let behind = told.split_once(line).expect("found in it").1;
        assert!(behind.contains("checkpoint complete"), "{failpoint}: {}", describe(&done));
        assert!(!told.contains("to RESTARTING"), "{failpoint}: {}", describe(&done));
        scene.check("q5");
        scene.clear();
    }
}

#[test]
fn more_failures_than_are_tolerable_restart_the_job_or_fail_it_with_what_to_do() {
    let scene = Scene::new();
    for (place, error, advice) in FAULTS {
        let arguments = scene.query("q5");
        // The fault is gone when the job comes back.
        let failpoint = format!("{place}=error({error})@4");
        let done = scene.submit(&[&TOLD[..], &RESTARTS].concat(), "nexmark", &arguments, Some(&failpoint));
        assert!(done.status.success(), "{failpoint}: {}", describe(&done));
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(told.contains("to RESTARTING") && told.contains("more than 0 failed one after the other"), "{told}");
        scene.check("q5");
        scene.clear();
        // It stays.
        let tolerant = ["-D", "execution.checkpointing.tolerable-failed-checkpoints=2"];
        let flags = [&TOLD[..2], &NO_RESTART, &tolerant].concat();
        let failed = scene.submit(&flags, "nexmark", &arguments, Some(&format!("{place}=error({error})@4+")));
        let path = format!("could not write {}/", text(&checkpoints(&scene)));
        let setting = "more than 2 failed one after the other (execution.checkpointing.tolerable-failed-checkpoints)";
        check_failure(&failed, 1, &[advice, &path, setting]);
        fs::remove_dir_all(scene.path("state")).expect("removable");
        fs::remove_dir_all(scene.path("out")).expect("removable");
    }
}

#[test]
fn storage_that_is_slow_costs_checkpoints_and_no_rows() {
    let scene = Scene::new();
    let timeout = ["-D", "execution.checkpointing.timeout=200ms"];
    let flags = [&TOLD[..], &TOLERANT, &timeout].concat();
    for (slow, expected) in [
        ("checkpoint.file.write=delay(1000)@4", "tasks had not answered after 200 ms"),
        ("checkpoint.metadata.write=delay(1000)@2", "its metadata was not stored within 200 ms"),
    ] {
        let done = scene.submit(&flags, "nexmark", &scene.query("q5"), Some(slow));
        assert!(done.status.success(), "{}", describe(&done));
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(told.contains(expected), "{}", describe(&done));
        scene.check("q5");
        assert!(!checkpoints(&scene).exists(), "what came late is left behind");
        scene.clear();
    }
}

#[test]
fn a_place_that_is_no_directory_is_named_with_what_to_do() {
    let scene = Scene::new();
    let file = scene.path("file");
    fs::write(&file, "").expect("writable");
    let directory = format!("execution.checkpointing.dir={}/points", text(&file));
    let flags = [&TOLD[..2], &NO_RESTART, &["-D", &directory]].concat();
    let refused = scene.submit(&flags, "nexmark", &scene.query("q5"), None);
    check_failure(&refused, 1, &[text(&file), "a part of that path is a file", "execution.checkpointing.dir"]);
    assert!(!names(&scene.path("out")).iter().any(|name| name.starts_with("part-")));
}

#[test]
fn a_directory_that_vanishes_for_a_while_costs_checkpoints_and_no_rows() {
    let scene = Scene::new();
    let root = text(&scene.path("")).to_owned();
    let cluster = Cluster::start(&["--slots", "4", "--allow-read", &root, "--allow-write", &root]);
    let directory = scene.path("points");
    let setting = format!("execution.checkpointing.dir={}", text(&directory));
    let mut arguments = scene.query("q5");
    *arguments.last_mut().expect("the rate") = "15000".to_owned();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let interval = ["-p", "2", "-D", "execution.checkpointing.interval=50ms"];
    let job =
        cluster.submit(&[&interval[..], &TOLD[..2], &TOLERANT, &["-D", &setting]].concat(), "nexmark", &arguments);
    cluster.await_checkpoints(&job, 2);
    // Its device is not mounted any more, and what is mounted there cannot be written into.
    let elsewhere = scene.path("elsewhere");
    fs::rename(&directory, &elsewhere).expect("same file system");
    fs::write(&directory, "").expect("writable");
    let url = format!("/jobs/{job}/checkpoints");
    let failed = |answer: &serde_json::Value| answer["counts"]["failed"].as_u64().expect("counted");
    let answer = cluster.await_answer(&url, |answer| 2 <= failed(answer));
    let message = answer["latest"]["failed"]["failure_message"].as_str().expect("told");
    assert!(message.contains(&format!("could not open {}/{job}", text(&directory))), "{message}");
    assert!(message.contains("a part of that path is a file; name another directory"), "{message}");
    assert_eq!(cluster.state(&job), "RUNNING");
    fs::remove_file(&directory).expect("removable");
    fs::rename(&elsewhere, &directory).expect("same file system");
    let completed = answer["counts"]["completed"].as_u64().expect("counted");
    cluster.await_answer(&url, |answer| answer["counts"]["completed"].as_u64().is_some_and(|now| completed < now));
    cluster.await_state(&job, "FINISHED");
    let exceptions = cluster.get(&format!("/jobs/{job}/exceptions"));
    assert_eq!(exceptions["exceptionHistory"]["entries"].as_array().map(Vec::len), Some(0), "{exceptions}");
    scene.check("q5");
}

/// What happens to a file of the newest checkpoint.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Flipped,
    Torn,
    Missing,
}

fn damage(path: &Path, damage: Damage) {
    let mut content = fs::read(path).expect("it is there");
    match damage {
        Damage::Flipped => {
            let middle = content.len() / 2;
            content[middle] ^= 0x10;
            fs::write(path, content).expect("writable");
        }
        Damage::Torn => fs::write(path, &content[..content.len() / 2]).expect("writable"),
        Damage::Missing => fs::remove_file(path).expect("removable"),
    }
}

#[test]
fn a_newest_checkpoint_that_is_damaged_is_named_and_the_one_before_is_used() {
    let scene = Scene::new();
    let retained = ["-D", "execution.checkpointing.num-retained=3"];
    let flags = [&TOLD[..], &retained].concat();
    for is_state in [true, false] {
        for what in [Damage::Flipped, Damage::Torn, Damage::Missing] {
            let arguments = scene.query("q5");
            let mut process = scene.spawn(&flags, "nexmark", &arguments, None);
            let directory = checkpoints(&scene);
            let of =
                |id: u64| names(&directory.join("shared")).into_iter().find(|name| name.starts_with(&format!("{id}-")));
            await_commit(&scene.path("out"));
            await_that("there are three checkpoints with files", || {
                let ids = complete(&directory);
                2 < ids.len() && ids.last().is_some_and(|id| of(*id).is_some())
            });
            process.kill().and_then(|()| process.wait()).expect("it is our child");
            let newest = *complete(&directory).last().expect("three");
            let file = match of(newest) {
                Some(file) if is_state => directory.join("shared").join(file),
                _ => directory.join(format!("chk-{newest}/_metadata")),
            };
            damage(&file, what);
            let done = scene.submit(&flags, "nexmark", &arguments, None);
            assert!(done.status.success(), "{what:?}: {}", describe(&done));
            let told = String::from_utf8_lossy(&done.stderr);
            // Without its metadata it is none.
            if is_state || !matches!(what, Damage::Missing) {
                let path = text(&file);
                let passed_over = |line: &str| line.contains("is passed over: ") && line.contains(path);
                assert!(told.lines().any(passed_over), "{what:?} {path}: {}", describe(&done));
            }
            assert!(told.contains("going on from a checkpoint"), "{}", describe(&done));
            scene.check("q5");
            scene.clear();
        }
    }
}

#[test]
fn files_of_a_checkpoint_that_a_kill_cut_off_go_when_the_job_is_recovered() {
    let scene = Scene::new();
    let mut arguments = scene.query("q5");
    // It runs for so long that it cannot have ended.
    *arguments.last_mut().expect("the rate") = "1000".to_owned();
    let flags = &TOLD[..2];
    let directory = checkpoints(&scene);
    let shared = directory.join("shared");
    // All files of a checkpoint are written then, and its metadata is not. One that changed nothing has none.
    let left = (3..9).find_map(|checkpoint| {
        let failpoint = format!("checkpoint.all-acknowledged=kill@{checkpoint}");
        let killed = scene.submit(flags, "nexmark", &arguments, Some(&failpoint));
        // Not the signal of a crash.
        assert_eq!(killed.status.signal(), Some(9), "{}", describe(&killed));
        let report = "failpoint checkpoint.all-acknowledged: Kill";
        assert!(String::from_utf8_lossy(&killed.stderr).contains(report), "{}", describe(&killed));
        let last = *complete(&directory).last().expect("one is complete");
        let id = |name: &str| name.split_once('-').and_then(|(id, _)| id.parse().ok()).unwrap_or(0);
        let left: Vec<String> = names(&shared).into_iter().filter(|name| last < id(name)).collect();
        if left.is_empty() {
            scene.clear();
        }
        Some(left).filter(|left| !left.is_empty())
    });
    let left = left.unwrap_or_else(|| panic!("no checkpoint wrote a file: {:?}", names(&shared)));
    // What nobody is known to have written, and a savepoint, which is its user's.
    fs::create_dir(shared.join("savepoint-1")).expect("writable");
    fs::write(shared.join("savepoint-1/_metadata"), "").expect("writable");
    let mut process = scene.spawn(flags, "nexmark", &arguments, None);
    await_that("they are gone", || {
        let now = names(&shared);
        left.iter().all(|name| !now.contains(name))
    });
    assert!(process.try_wait().expect("it is our child").is_none(), "the job had ended");
    assert!(shared.join("savepoint-1/_metadata").exists());
    process.kill().and_then(|()| process.wait()).expect("it is our child");
    // Nothing that is needed went with them: it goes on.
    let process = scene.spawn(&TOLD, "nexmark", &arguments, Some("task.start=kill"));
    let ended = process.wait_with_output().expect("it ends");
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(told.contains("going on from a checkpoint") && !told.contains("is passed over"), "{}", describe(&ended));
}

#[test]
fn a_plugin_whose_snapshot_traps_every_other_time_costs_checkpoints_and_no_rows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [input, output] = ["lines", "out"].map(|name| directory.path().join(name));
    let lines: String = (0..8_000).map(|number| format!("line {}\n", number * 7)).collect();
    fs::write(&input, lines).expect("writable");
    let root = text(directory.path());
    let cluster = Cluster::start(&["--slots", "2", "--allow-read", root, "--allow-write", root]);
    let arguments = ["even-snapshot", "unreachable", text(&output), text(&input), "10000"];
    let delay = [
        "-p",
        "1",
        "-D",
        "execution.checkpointing.interval=50ms",
        "-D",
        "restart-strategy.type=fixed-delay",
        "-D",
        "restart-strategy.fixed-delay.delay=10ms",
        "-D",
        "restart-strategy.fixed-delay.attempts=1000",
    ];
    let job = cluster.submit(&delay, "test_hostile", &arguments);
    cluster.await_state(&job, "FINISHED");
    let answer = cluster.get(&format!("/jobs/{job}/checkpoints"));
    let count = |name: &str| answer["counts"][name].as_u64().expect("counted");
    // None with an even number is complete, and each of those ended an attempt, which went on from the one before.
    assert!(3 <= count("failed") && 3 <= count("completed") && 3 <= count("restored"), "{answer}");
    for checkpoint in answer["history"].as_array().expect("a history") {
        let id = checkpoint["id"].as_u64().expect("numbered");
        // Restored behind the end of its input, the plugin does not run any more, and has no state.
        let ran = checkpoint["state_size"].as_u64() != Some(0);
        let expected = if id % 2 == 0 && ran { "FAILED" } else { "COMPLETED" };
        let is_cut_off = checkpoint["failure_message"] == "a task was ending" || (id % 2 == 0 && !ran);
        let is_cut_off = is_cut_off && checkpoint["status"] == "FAILED";
        assert!(checkpoint["status"] == expected || is_cut_off, "{checkpoint}");
    }
    let exceptions = cluster.get(&format!("/jobs/{job}/exceptions"));
    let cause = exceptions["exceptionHistory"]["entries"][0]["stacktrace"].as_str().expect("told");
    assert!(cause.contains("in snapshot") && cause.contains("test_hostile"), "{cause}");
    // Each line once, and numbered by a state that was restored each time.
    let mut expected: Vec<_> =
        (0..8_000).map(|number| format!("{number} line {}\n", number * 7).into_bytes()).collect();
    expected.sort_unstable();
    assert!(sorted_rows(&output) == expected, "rows differ from those of an undisturbed run");
}

#[test]
fn at_least_once_nothing_is_lost_whatever_happens() {
    let scene = Scene::new();
    let mut words = Vec::new();
    engine_benches::write_words(200_000, 7, &mut words).expect("writing to memory does not fail");
    let (input, output) = (scene.path("words"), scene.path("out"));
    fs::write(&input, &words).expect("writable");
    let arguments = ["--input", text(&input), "--output", text(&output), "--updates"].map(str::to_owned);
    let mode = ["-D", "execution.checkpointing.mode=AT_LEAST_ONCE", "-D", "execution.checkpointing.interval=10ms"];
    let flags = [&mode[..], &RESTARTS].concat();
    let killing = ["sink.commit.renamed=kill@2", "task.snapshot.barrier-sent=kill@4", "network.receive.barrier=kill@6"];
    for failpoint in killing {
        let killed = scene.submit(&flags, "word_count", &arguments, Some(failpoint));
        assert_eq!(killed.status.code(), None, "{}", describe(&killed));
    }
    let done = scene.submit(&flags, "word_count", &arguments, Some("barrier.aligned=panic@3"));
    assert!(done.status.success(), "{}", describe(&done));
    // Each count of a word at least once; what was counted again makes further ones.
    let mut counts = BTreeMap::<&str, u64>::new();
    for word in std::str::from_utf8(&words).expect("ASCII").split_ascii_whitespace() {
        *counts.entry(word).or_default() += 1;
    }
    let mut found = BTreeMap::<String, std::collections::BTreeSet<u64>>::new();
    for row in sorted_rows(&output) {
        let row = String::from_utf8(row).expect("text");
        let (word, count) = row.trim_end().rsplit_once(',').expect("two columns");
        found.entry(word.to_owned()).or_default().insert(count.parse().expect("a number"));
    }
    assert_eq!(found.len(), counts.len());
    for (word, count) in counts {
        let lost: Vec<u64> = (1..=count).filter(|count| !found[word].contains(count)).collect();
        assert!(lost.is_empty(), "{word}: {lost:?} of {count} are lost");
    }
}
