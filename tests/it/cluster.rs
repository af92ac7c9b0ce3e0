//! `engine cluster` and the commands that reach it.

use std::{
    fs,
    io::{Read, Write},
    net::TcpListener,
    time::Duration,
};

use crate::checkpoint_faults::await_that;
use engine_tests::{Cluster, await_file, check_failure, describe, is_empty, plugin, run, sorted_rows, submit, text};

#[test]
fn a_job_whose_guest_loops_is_cancelled_within_a_second() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    // More CPU time than the test lasts.
    let cluster = Cluster::start(&["-D", "sandbox.call.cpu-time=10min", "--allow-write", text(directory.path())]);
    let job = cluster.submit(&[], "test_hostile", &["process-batch", "loop", text(&output)]);
    cluster.await_answer(&format!("/jobs/{job}"), |answer| {
        answer["vertices"][1]["status"] == "RUNNING" && answer["vertices"][1]["metrics"]["read-records"] == 10
    });
    let cancelled = run(&["cancel", "--jobmanager", &cluster.url, &job]);
    assert!(cancelled.status.success(), "{}", describe(&cancelled));
    let details = cluster.await_state(&job, "CANCELED");
    let time = |state: &str| details["timestamps"][state].as_i64().expect("milliseconds");
    let took = time("CANCELED") - time("CANCELLING");
    assert!((0..1000).contains(&took), "cancelling took {took} ms");
    assert!(is_empty(&output));
}

#[test]
fn a_source_that_is_no_more_holds_no_connection_and_no_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = fs::canonicalize(directory.path()).expect("it is there");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let allowed = ["--slots", "2", "--allow-read", text(&root), "--allow-net", &address];
    let cluster = Cluster::start(&allowed);

    let job = cluster.submit(&["-p", "1"], "word_count", &["--socket", &address, "--updates"]);
    let mut connection = listener.accept().expect("the job connects").0;
    connection.write_all(b"to be\n").expect("the job reads");
    cluster.await_tasks(&job);
    let cancelled = run(&["cancel", "--jobmanager", &cluster.url, &job]);
    assert!(cancelled.status.success(), "{}", describe(&cancelled));
    connection.set_read_timeout(Some(Duration::from_secs(20))).expect("not zero");
    let read = connection.read(&mut [0]);
    assert!(matches!(read, Ok(0)), "the connection is open: {read:?}");

    let input = root.join("events");
    let bid =
        r#"{"Bid":{"auction":1,"bidder":2,"price":3,"channel":"","url":"","date_time":1767225600000,"extra":""}}"#;
    fs::write(&input, format!("{bid}\n").repeat(1000)).expect("writable");
    let arguments = ["--query", "q0", "--input", text(&input), "--rate", "10", "--discard"];
    let job = cluster.submit(&["-p", "1"], "nexmark", &arguments);
    await_that("the file is read", || cluster.has_open(&input));
    let cancelled = run(&["cancel", "--jobmanager", &cluster.url, &job]);
    assert!(cancelled.status.success(), "{}", describe(&cancelled));
    await_that("the file is closed", || !cluster.has_open(&input));
}

#[test]
fn a_submitted_job_cannot_raise_the_limits_of_the_cluster() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(&["-D", "sandbox.call.cpu-time=200ms", "--allow-write", text(directory.path())]);
    let output = directory.path().join("out");
    let plugin = engine_tests::plugin("test_hostile");
    let arguments = ["submit", "--jobmanager", &cluster.url, "-D", "sandbox.call.cpu-time=1h", text(&plugin)];
    let ended = run(&[&arguments[..], &["process-batch", "loop", text(&output)]].concat());
    engine_tests::check_failure(
        &ended,
        ended.status.code().filter(|code| *code != 0).unwrap_or(1),
        &["sandbox.call.cpu-time"],
    );
}

#[test]
fn a_submitted_job_cannot_raise_its_quotas() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(&["-D", "state.timers.max=1000", "--allow-write", text(directory.path())]);
    let output = directory.path().join("out");
    let plugin = plugin("test_hostile");
    let arguments = ["submit", "--jobmanager", &cluster.url, "-D", "state.timers.max=50000000", text(&plugin)];
    let ended = run(&[&arguments[..], &["process-batch", "timers-many", text(&output)]].concat());
    check_failure(&ended, 1, &["more than 1000 timers", "raise state.timers.max"]);
    let told = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(told.contains("warning: state.timers.max is decided by the owner of the JobManager"), "{told}");
}

#[test]
fn a_job_with_output_survives_a_killed_cluster() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [input, output, expected, storage] =
        ["in.ndjson", "out", "expected", "storage"].map(|name| directory.path().join(name));
    let mut events = Vec::new();
    engine_benches::write_nexmark(0..30_000, &mut events).expect("writing to memory does not fail");
    fs::write(&input, events).expect("writable");
    let arguments = |output| ["--query", "q0", "--input", text(&input), "--output", output];
    submit(1, "nexmark", &arguments(text(&expected)));

    let storage = format!("cluster.storage-dir={}", text(&storage));
    let root = text(directory.path());
    let start = || Cluster::start(&["-D", &storage, "--allow-read", root, "--allow-write", root]);
    let cluster = start();
    // At a rate at which the job is still writing when its first rows are seen.
    let slowly = [&arguments(text(&output))[..], &["--rate", "10000"]].concat();
    let job = cluster.submit(&["-p", "1"], "nexmark", &slowly);
    await_file(&output, ".part-0-0-");
    // Killed: nothing is tidied up.
    drop(cluster);
    await_file(&output, ".part-0-0-");

    let cluster = start();
    cluster.await_answer(&format!("/jobs/{job}"), |answer| {
        assert_ne!(answer["state"], "FAILED", "{answer}");
        answer["state"] == "FINISHED"
    });
    assert!(sorted_rows(&output) == sorted_rows(&expected), "the output is not that of one run");
}

#[test]
fn a_stored_job_waits_for_its_files_and_a_damaged_one_stops_no_other() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [data, away, expected, storage] =
        ["data", "away", "expected", "storage"].map(|name| directory.path().join(name));
    let (input, output) = (data.join("in.ndjson"), data.join("out"));
    let mut events = Vec::new();
    engine_benches::write_nexmark(0..20_000, &mut events).expect("writing to memory does not fail");
    fs::create_dir(&data).and_then(|()| fs::write(&input, events)).expect("writable");
    let arguments = |output| ["--query", "q0", "--input", text(&input), "--output", output];
    submit(1, "nexmark", &arguments(text(&expected)));

    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let setting = format!("cluster.storage-dir={}", text(&storage));
    let root = text(directory.path());
    let start =
        || Cluster::start(&["-D", &setting, "--allow-read", root, "--allow-write", root, "--allow-net", &address]);
    let cluster = start();
    let slowly = [&arguments(text(&output))[..], &["--rate", "5000"]].concat();
    let job = cluster.submit(&["-p", "1", "-D", "execution.checkpointing.interval=100ms"], "nexmark", &slowly);
    let damaged = cluster.submit(&["-p", "1"], "word_count", &["--socket", &address]);
    cluster.await_checkpoints(&job, 3);
    drop(cluster);

    // As before a disk is mounted; and with a plugin that is not what it was.
    fs::rename(&data, &away).expect("writable");
    let content = fs::read(plugin("word_count")).expect("it is built");
    let blob = storage.join("blobs").join(engine_tests::sha256(&[content]));
    assert!(blob.exists());
    fs::write(&blob, "damaged").expect("writable");
    let cluster = start();
    let job_path = format!("/jobs/{job}");
    cluster.await_answer(&job_path, |answer| answer["state"] == "RESTARTING");
    let cause = cluster.get(&format!("{job_path}/exceptions"))["root-exception"].to_string();
    assert!(cause.contains("could not go on writing into") && cause.contains(text(&output)), "{cause}");
    assert!(!data.exists(), "nothing is made in its place");
    cluster.await_state(&damaged, "FAILED");
    let cause = cluster.get(&format!("/jobs/{damaged}/exceptions"))["root-exception"].to_string();
    assert!(cause.contains("is damaged") && cause.contains("what is stored of it is kept"), "{cause}");
    assert!(storage.join("job-graphs").join(format!("{damaged}.graph")).exists());

    fs::rename(&away, &data).expect("writable");
    cluster.await_answer(&job_path, |answer| {
        assert_ne!(answer["state"], "FAILED", "{answer}");
        answer["state"] == "FINISHED"
    });
    assert!(sorted_rows(&output) == sorted_rows(&expected), "the output is not that of one run");
}

#[test]
fn a_job_that_waits_for_slots_says_so_and_what_helps() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [input, output, held, small] = ["in.txt", "out", "held", "small"].map(|name| directory.path().join(name));
    fs::write(&input, "a b\n").expect("writable");
    let root = text(directory.path());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
    let address = listener.local_addr().expect("it is bound").to_string();
    let flags = ["--slots", "3", "--allow-read", root, "--allow-write", root, "--allow-net", &address];
    let cluster = Cluster::start(&flags);
    let holder = ["--socket", &address, "--output", text(&held)];
    let holder = cluster.submit(&["-p", "1"], "word_count", &holder);
    cluster.await_tasks(&holder);
    // Subtasks that exchange rows run at the same time or not at all.
    let program = ["--input", text(&input), "--output", text(&output)];
    let counter = plugin("word_count");
    let too_much = ["submit", "-m", &cluster.url, "--detached", "-p", "4", text(&counter)];
    let refused = run(&[&too_much[..], &program].concat());
    check_failure(
        &refused,
        2,
        &["the job needs 4 slots, but the cluster has 3 in all", "taskmanager.numberOfTaskSlots"],
    );
    let job = cluster.submit(&["-p", "3"], "word_count", &program);
    let awaited = cluster
        .await_answer(&format!("/jobs/{job}/metrics?get=numSlotsAwaited,numSlotsAvailable"), |answer| {
            answer.as_array().is_some_and(|metrics| metrics.len() == 2)
        });
    let values: Vec<_> = awaited.as_array().expect("metrics").iter().map(|metric| metric["value"].as_str()).collect();
    assert_eq!(values, [Some("3"), Some("2")], "{awaited}");
    let status = run(&["status", "--jobmanager", &cluster.url, &job]);
    let line = "  waiting for 3 slots, 2 are available: raise taskmanager.numberOfTaskSlots";
    assert!(String::from_utf8_lossy(&status.stdout).contains(line), "{}", describe(&status));
    // The list tells how the subtasks are, though the job's state has not changed since.
    let jobs = cluster.get("/jobs/overview");
    let waiting = jobs["jobs"].as_array().and_then(|jobs| jobs.iter().find(|known| known["jid"] == *job));
    let tasks = &waiting.expect("it is listed")["tasks"];
    assert_eq!(tasks["scheduled"], tasks["total"], "{jobs}");
    // It keeps no slot from one that can run.
    let program = ["--input", text(&input), "--output", text(&small)];
    let small = cluster.submit(&["-p", "2"], "word_count", &program);
    cluster.await_state(&small, "FINISHED");
    assert_eq!(cluster.get(&format!("/jobs/{job}/metrics?get=numSlotsAwaited"))[0]["value"], "3");
    // And it runs when there is room.
    assert!(run(&["cancel", "-m", &cluster.url, &holder]).status.success());
    cluster.await_state(&job, "FINISHED");
}

#[test]
fn who_submits_is_told_that_a_socket_cannot_be_read_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("counts");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let cluster = Cluster::start(&["--allow-net", &address, "--allow-write", text(directory.path())]);
    let submit = |settings: &[&str]| {
        let plugin = plugin("word_count");
        let program = [text(&plugin), "--socket", &address, "--updates", "--output", text(&output)];
        let submitted = run(&[&["submit", "-m", &cluster.url, "--detached"], settings, &program].concat());
        assert!(submitted.status.success(), "{}", describe(&submitted));
        let job = String::from_utf8_lossy(&submitted.stdout).trim().to_owned();
        assert!(run(&["cancel", "-m", &cluster.url, &job]).status.success());
        String::from_utf8_lossy(&submitted.stderr).contains("cannot read its rows again")
    };
    assert!(!submit(&[]));
    assert!(submit(&["-D", "execution.checkpointing.interval=10s"]));
}
