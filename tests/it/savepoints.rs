//! Jobs that start from savepoints: whatever became of the output, and what is refused.

use std::{fs, path::Path};

use engine::{
    base::stream_element::SnapshotLocation,
    checkpoint::{CheckpointMetadata, CheckpointStorage, StateData},
};
use engine_tests::{
    Cluster, await_file, check_failure, describe,
    nexmark::{answer, parse},
    plugin, run, sorted_rows, text,
};

use crate::{
    checkpoint_faults::{await_that, names},
    exactly_once::Scene,
};

/// Cancels a job, until its output is free.
fn cancel(cluster: &Cluster, job: &str, output: &Path) {
    let canceled = run(&["cancel", "-m", &cluster.url, job]);
    assert!(canceled.status.success(), "{}", describe(&canceled));
    cluster.await_state(job, "CANCELED");
    await_that("the claim is gone", || !names(output).iter().any(|name| name.starts_with(".job-")));
}

/// `engine stop` and `engine savepoint`, and what becomes of the output directory.
#[test]
fn savepoints_can_be_started_from_whatever_becomes_of_the_output() {
    let scene = Scene::new();
    let root = text(&scene.path("")).to_owned();
    let cluster = Cluster::start(&["--slots", "8", "--allow-read", &root, "--allow-write", &root]);
    let (slow, fast) = (scene.slow_query("q0"), scene.query("q0"));
    let [slow, fast] = [&slow, &fast].map(|arguments| arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let (savepoints, output) = (scene.path("savepoints"), scene.path("out"));
    let expected = answer("q0", &parse(scene.events()));
    // Its rows were visible when it was handed out: their owner takes them, and the directory with them.
    let job = cluster.submit(&["-p", "2"], "nexmark", &slow);
    await_file(&output, ".part-");
    let stopped = run(&["stop", "-m", &cluster.url, "--savepoint", text(&savepoints), &job]);
    assert!(stopped.status.success(), "{}", describe(&stopped));
    let path = String::from_utf8_lossy(&stopped.stdout).trim().to_owned();
    cluster.await_state(&job, "FINISHED");
    let mut rows = sorted_rows(&output);
    assert!(!rows.is_empty() && rows.len() < expected.len());
    fs::remove_dir_all(&output).expect("removable");
    let job = cluster.submit(&["-p", "2", "--from-savepoint", &path], "nexmark", &fast);
    cluster.await_state(&job, "FINISHED");
    rows.extend(sorted_rows(&output));
    rows.sort_unstable();
    assert!(rows == expected, "q0 differs from the model");
    fs::remove_dir_all(&output).expect("removable");

    // A job that is cancelled after a savepoint leaves the rows that only the savepoint names.
    let job = cluster.submit(&["-p", "2"], "nexmark", &slow);
    await_file(&output, ".part-");
    let taken = run(&["savepoint", "-m", &cluster.url, &job, text(&savepoints)]);
    assert!(taken.status.success(), "{}", describe(&taken));
    let path = String::from_utf8_lossy(&taken.stdout).trim().to_owned();
    cancel(&cluster, &job, &output);
    let job = cluster.submit(&["-p", "2", "--from-savepoint", &path], "nexmark", &fast);
    cluster.await_state(&job, "FINISHED");
    await_that("only rows are left", || names(&output).iter().all(|name| name.starts_with("part-")));
    assert!(sorted_rows(&output) == expected, "q0 differs from the model");
}

/// A source of a plugin has no enumerator that knows what it has read: its position is kept when a subtask ends.
#[test]
fn a_source_of_a_plugin_that_ended_in_one_subtask_does_not_begin_anew() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| directory.path().join(name);
    let (root, storage) = (text(directory.path()), format!("cluster.storage-dir={}", text(&path("storage"))));
    let start = || Cluster::start(&["--slots", "4", "-D", &storage, "--allow-read", root, "--allow-write", root]);
    let mut expected: Vec<_> = [(0, 10), (1, 200)]
        .into_iter()
        .flat_map(|(subtask, end)| (0..end).map(move |number| format!("{subtask},{number}\n").into_bytes()))
        .collect();
    expected.sort();
    let submit = |cluster: &Cluster, flags: &[&str], output: &Path| {
        let flags = [&["-p", "2"], flags].concat();
        cluster.submit(&flags, "test_operators", &["--operator", "source", "--output", text(output)])
    };
    let await_end_of_one = |cluster: &Cluster, job: &str| {
        cluster.await_answer(&format!("/jobs/{job}"), |answer| answer["vertices"][0]["tasks"]["FINISHED"] == 1);
    };

    let (cluster, output) = (start(), path("from-savepoint"));
    let job = submit(&cluster, &[], &output);
    await_end_of_one(&cluster, &job);
    let taken = run(&["savepoint", "-m", &cluster.url, &job, text(&path("savepoints"))]);
    assert!(taken.status.success(), "{}", describe(&taken));
    let savepoint = String::from_utf8_lossy(&taken.stdout).trim().to_owned();
    cancel(&cluster, &job, &output);
    let job = submit(&cluster, &["--from-savepoint", &savepoint], &output);
    cluster.await_state(&job, "FINISHED");
    assert!(sorted_rows(&output) == expected, "the rows differ behind a savepoint");

    let output = path("from-checkpoint");
    let job = submit(&cluster, &["-D", "execution.checkpointing.interval=50ms"], &output);
    await_end_of_one(&cluster, &job);
    let complete = cluster.get(&format!("/jobs/{job}/checkpoints"))["counts"]["completed"].as_u64().unwrap_or(0);
    cluster.await_checkpoints(&job, complete + 2);
    drop(cluster);
    let cluster = start();
    cluster.await_state(&job, "FINISHED");
    assert!(sorted_rows(&output) == expected, "the rows differ behind a checkpoint");
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("writable");
    for name in names(from) {
        fs::copy(from.join(&name), to.join(&name)).expect("writable");
    }
}

/// Writes metadata of a savepoint with something else in it, as somebody who knows the format could.
fn edit(path: &Path, edit: impl FnOnce(&mut CheckpointMetadata)) {
    let location = SnapshotLocation(text(path).to_owned());
    let (storage, mut metadata) = CheckpointStorage::open_snapshot(&location).expect("it is whole");
    edit(&mut metadata);
    storage.store_metadata(&metadata).expect("writable");
}

fn first_file(metadata: &mut CheckpointMetadata) -> &mut String {
    let subtasks = metadata.operators.values_mut().flat_map(|operator| operator.subtasks.values_mut());
    let mut parts = subtasks.filter_map(|subtask| subtask.keyed.as_mut()).flat_map(|keyed| &mut keyed.parts);
    let file = parts.find_map(|part| match &mut part.data {
        StateData::File(file) => Some(&mut file.path),
        StateData::Inline(_) => None,
    });
    file.expect("state is in files")
}

/// Puts another version into metadata, whose checksum of all before it is its last four bytes.
fn with_version(path: &Path, version: u8) {
    let file = path.join("_metadata");
    let mut content = fs::read(&file).expect("readable");
    content[8] = version;
    let end = content.len() - 4;
    let mut checksum = flate2::Crc::new();
    checksum.update(&content[..end]);
    content[end..].copy_from_slice(&checksum.sum().to_le_bytes());
    fs::write(file, content).expect("writable");
}

#[test]
fn a_savepoint_that_is_not_whole_or_does_not_fit_is_refused_and_the_whole_one_goes_on() {
    let scene = Scene::new();
    let root = text(&scene.path("")).to_owned();
    let cluster = Cluster::start(&["--slots", "8", "--allow-read", &root, "--allow-write", &root]);
    let (input, output, savepoints) = (scene.path("events"), scene.path("out"), scene.path("savepoints"));
    let inline = ["-p", "2", "-D", "execution.checkpointing.data-inline-threshold=0b"];
    let program = |version: &'static str, rate: &'static str| {
        ["--version", version, "--input", text(&input), "--output", text(&output), "--rate", rate].map(str::to_owned)
    };
    let arguments = program("1", "15000");
    let job = cluster.submit(&inline, "test_upgrade", &arguments.each_ref().map(String::as_str));
    await_file(&output, ".part-");
    let stopped = run(&["stop", "-m", &cluster.url, "--savepoint", text(&savepoints), &job]);
    assert!(stopped.status.success(), "{}", describe(&stopped));
    let whole = Path::new(String::from_utf8_lossy(&stopped.stdout).trim()).to_owned();
    cluster.await_state(&job, "FINISHED");
    let written = names(&whole);
    assert!(2 < written.len(), "{written:?}");
    let before = names(&output);

    let submit = |savepoint: &Path, flags: &[&str], version: &'static str| {
        let program = program(version, "1000000");
        let program: Vec<_> = program.iter().map(String::as_str).collect();
        let from = ["submit", "--from-savepoint", text(savepoint)];
        run(&[&from[..], flags, &[text(&plugin("test_upgrade"))], &program].concat())
    };
    let refused = |what: &str, flags: &[&str], version, parts: &[&str]| {
        let refused = submit(&scene.path(what), flags, version);
        let line = check_failure(&refused, refused.status.code().expect("it ends"), parts);
        assert!(!refused.status.success(), "{what}");
        assert_eq!(names(&output), before, "{what}: {line}");
    };
    let case = |what: &str| {
        let path = scene.path(what);
        copy(&whole, &path);
        path
    };
    // At a JobManager, before there is a job.
    let jobs = cluster.get("/jobs");
    let refused_there = |what: &str, flags: &[&str], parts: &[&str]| {
        let (from, program) = (scene.path(what), program("1", "1000000"));
        let command = ["submit", "-m", &cluster.url, "--detached", "--from-savepoint", text(&from)];
        let program: Vec<_> = program.iter().map(String::as_str).collect();
        let refused = run(&[&command[..], flags, &[text(&plugin("test_upgrade"))], &program].concat());
        check_failure(&refused, 2, parts);
        assert!(refused.stdout.is_empty(), "{what}");
        assert_eq!((names(&output), cluster.get("/jobs")), (before.clone(), jobs.clone()), "{what}");
    };
    let of_state = written.iter().find(|name| *name != "_metadata").expect("state is in files");

    // Half-copied: without its metadata, without a file, with half of one.
    fs::remove_file(case("no-metadata").join("_metadata")).expect("removable");
    refused("no-metadata", &[], "1", &["no-metadata/_metadata is missing"]);
    refused_there("no-metadata", &[], &["the job cannot start from", "no-metadata/_metadata is missing"]);
    refused_there("typo", &[], &["the job cannot start from", "typo/_metadata is missing"]);
    fs::remove_file(case("no-file").join(of_state)).expect("removable");
    refused("no-file", &[], "1", &[&format!("no-file/{of_state} is missing"), "that is whole"]);
    for (what, name) in [("half-a-file", of_state.as_str()), ("half-the-metadata", "_metadata")] {
        let file = case(what).join(name);
        let content = fs::read(&file).expect("readable");
        fs::write(&file, &content[..content.len() / 2]).expect("writable");
        refused(what, &[], "1", &[&format!("{what}/{name} is damaged: "), "that is whole"]);
    }
    // Edited.
    for (what, name) in [("edited-file", of_state.as_str()), ("edited-metadata", "_metadata")] {
        let file = case(what).join(name);
        let mut content = fs::read(&file).expect("readable");
        let middle = content.len() / 2;
        content[middle] ^= 1;
        fs::write(&file, content).expect("writable");
        refused(what, &[], "1", &[&format!("{what}/{name} is damaged: "), "checksum"]);
    }
    // A path that leaves its directory.
    for (what, path) in [("up", "../stolen"), ("absolute", "/etc/passwd"), ("up-later", "a/../../stolen")] {
        edit(&case(what), |metadata| path.clone_into(first_file(metadata)));
        refused(what, &[], "1", &[&format!("{what}/_metadata cannot be used: of a file it names, the path")]);
    }
    // Of another version of the engine, and of something else.
    with_version(&case("version"), 7);
    refused("version", &[], "1", &["version/_metadata has format version 7, this engine reads version 1"]);
    fs::write(case("text").join("_metadata"), "not what you think").expect("writable");
    refused("text", &[], "1", &["text/_metadata is not the metadata of a checkpoint or savepoint of this engine"]);
    // A state of another type, and one that would be lost.
    case("whole");
    refused("whole", &[], "narrow", &["the job cannot start from", "bids:u32", "bids:u16"]);
    refused("whole", &[], "no-window", &["the job cannot start from", "--allow-non-restored-state"]);
    // What its source and its sink keep is seen by a comparison too.
    let compared = |version| {
        let program = program(version, "1000000");
        let program: Vec<_> = program.iter().map(String::as_str).collect();
        run(&[&["check", "--savepoint", text(&whole), text(&plugin("test_upgrade"))], &program[..]].concat())
    };
    assert!(compared("1").status.success());
    let moved = compared("new-ids");
    assert_eq!(moved.status.code(), Some(1), "{}", describe(&moved));
    let told = String::from_utf8_lossy(&moved.stdout).into_owned();
    assert!(
        told.contains("(uid events): the new program has no such operator, and its positions in the input"),
        "{told}"
    );
    // More subtasks than it has key groups.
    refused("whole", &["-p", "129"], "1", &["the job cannot start from", "128", "129"]);
    refused_there("whole", &["-p", "8", "-D", "pipeline.max-parallelism=64"], &["the job cannot start from", "64"]);
    // Of another job.
    let words = ["--input", text(&input), "--output", text(&output)];
    let counter = plugin("word_count");
    let other = ["submit", "--from-savepoint", text(&whole), text(&counter)];
    let other = run(&[&other[..], &words].concat());
    check_failure(
        &other,
        other.status.code().expect("it ends"),
        &["the job cannot start from", "--allow-non-restored-state"],
    );
    assert!(!other.status.success());

    // All that was tried left it as it was.
    assert_eq!((names(&whole), names(&output)), (written.clone(), before.clone()));
    let done = submit(&whole, &["-p", "3"], "1");
    assert!(done.status.success(), "{}", describe(&done));
    assert!(sorted_rows(&output) == answer("q5", &parse(scene.events())), "q5 differs from the model");
}
