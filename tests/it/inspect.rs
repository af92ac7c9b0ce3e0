//! What savepoints and checkpoints show of themselves, against words that were counted by a plain loop, and against
//! delays of known places.

use std::{collections::BTreeMap, io::Write, net::TcpListener};

use engine_tests::{Cluster, check_failure, describe, run, text};
use serde_json::Value;

const WORDS: [&str; 4] = ["to", "be", "or, not", "élan"];

/// Counts in a savepoint, by word.
fn counts(savepoint: &str) -> BTreeMap<String, u64> {
    let shown = run(&["savepoint", "inspect", "--output", "json", "--state", "counts/value", savepoint]);
    assert!(shown.status.success(), "{}", describe(&shown));
    let lines = String::from_utf8(shown.stdout).expect("text");
    let entry = |line: &str| {
        let entry: Value = serde_json::from_str(line).expect("a line is an object");
        (entry["key"].as_str().expect("a word").to_owned(), entry["value"].as_u64().expect("a count"))
    };
    let counts: BTreeMap<_, _> = lines.lines().map(entry).collect();
    assert_eq!(counts.len(), lines.lines().count(), "each word stands there once");
    counts
}

#[test]
fn counts_in_a_savepoint_are_those_of_a_plain_loop() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let root = text(directory.path());
    let cluster = Cluster::start(&["--slots", "2", "--allow-net", &address, "--allow-write", root]);
    let output = directory.path().join("out");
    let arguments = ["--socket", &address, "--output", text(&output), "--updates"];
    let job = cluster.submit(&["-p", "2"], "word_count", &arguments);
    let (mut socket, _) = listener.accept().expect("the job connects");

    let mut expected = BTreeMap::<String, u64>::new();
    let mut lines = String::new();
    for number in 0..3000_usize {
        let line = format!("{} word{}", WORDS[number % WORDS.len()], number % 97);
        for word in line.split(|character: char| !character.is_ascii_alphanumeric()).filter(|word| !word.is_empty()) {
            *expected.entry(word.to_owned()).or_default() += 1;
        }
        lines.push_str(&line);
        lines.push('\n');
    }
    socket.write_all(lines.as_bytes()).expect("the job reads");

    cluster.await_tasks(&job);
    // Until the job has read all of it.
    let savepoints = directory.path().join("savepoints");
    let savepoint = loop {
        let taken = run(&["savepoint", "-m", &cluster.url, &job, text(&savepoints)]);
        assert!(taken.status.success(), "{}", describe(&taken));
        let path = String::from_utf8_lossy(&taken.stdout).trim().to_owned();
        if counts(&path).values().sum::<u64>() == expected.values().sum::<u64>() {
            break path;
        }
    };
    assert_eq!(counts(&savepoint), expected);

    let table = run(&["savepoint", "inspect", "--state", "counts/value", &savepoint]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(
        table.starts_with("key,window,value\n") && table.contains(&format!("\nto,,{}\n", expected["to"])),
        "{table}"
    );
    let wrong = run(&["savepoint", "inspect", "--state", "counts/sum", &savepoint]);
    check_failure(&wrong, 2, &["there is no state \"counts/sum\"", "counts/value"]);
    let timers = run(&["savepoint", "inspect", "--timers", "counts", &savepoint]);
    assert_eq!(String::from_utf8_lossy(&timers.stdout), "key,window,domain,timestamp\n");
    drop(socket);
    cluster.await_state(&job, "FINISHED");
}

/// Milliseconds by which a figure that is measured between whole milliseconds may be less than it was.
const ROUNDING: u64 = 3;

#[test]
fn durations_of_a_checkpoint_are_true_figures() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let root = text(directory.path());
    let (before_barrier, behind_barrier, write) = (90, 60, 150);
    let cluster = Cluster::start_with_failpoints(
        &["--slots", "1", "--allow-net", &address, "--allow-write", root],
        &format!(
            "task.snapshot.prepared=delay({before_barrier})@1+;task.snapshot.taken=delay({behind_barrier})@1+;\
             snapshot.write=delay({write})@1+"
        ),
    );
    let output = directory.path().join("out");
    let arguments = ["--socket", &address, "--output", text(&output), "--updates"];
    let job = cluster.submit(&["-p", "1"], "word_count", &arguments);
    let (mut socket, _) = listener.accept().expect("the job connects");
    socket.write_all(b"to be\n").expect("the job reads");
    cluster.await_tasks(&job);
    let taken = run(&["savepoint", "-m", &cluster.url, &job, text(&directory.path().join("savepoints"))]);
    assert!(taken.status.success(), "{}", describe(&taken));

    let shown = run(&["checkpoints", "-m", &cluster.url, "--output", "json", &job, "1"]);
    assert!(shown.status.success(), "{}", describe(&shown));
    let checkpoint: Value = serde_json::from_slice(&shown.stdout).expect("JSON");
    let mut tasks: Vec<&Value> = checkpoint["tasks"].as_object().expect("tasks").values().collect();
    tasks.sort_by_key(|task| task["position"].as_u64());
    assert_eq!(tasks.len(), 2, "{checkpoint}");
    let [source, counts] = [tasks[0], tasks[1]].map(|task| &task["subtasks"][0]);
    let number = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{value} is no number"));
    for subtask in [source, counts] {
        assert!(before_barrier + behind_barrier <= number(&subtask["checkpoint"]["sync"]), "{checkpoint}");
        assert!(write <= number(&subtask["checkpoint"]["async"]), "{checkpoint}");
    }
    // The barrier had to wait in the source.
    assert!(before_barrier <= number(&counts["start_delay"]) + ROUNDING, "{checkpoint}");
    let whole = |subtask: &Value| {
        let parts = [&subtask["start_delay"], &subtask["alignment"]["duration"]].map(number);
        let parts = parts.iter().sum::<u64>()
            + number(&subtask["checkpoint"]["sync"])
            + number(&subtask["checkpoint"]["async"]);
        let (acknowledged, triggered) = (number(&subtask["ack_timestamp"]), number(&checkpoint["trigger_timestamp"]));
        let duration = number(&subtask["end_to_end_duration"]);
        assert_eq!(duration, acknowledged - triggered);
        assert!(parts <= duration + ROUNDING, "{checkpoint}");
        duration
    };
    let durations = [source, counts].map(whole);
    assert_eq!(number(&checkpoint["end_to_end_duration"]), durations[0].max(durations[1]));
    for size in ["state_size", "checkpointed_size"] {
        assert_eq!(number(&checkpoint[size]), number(&source[size]) + number(&counts[size]), "{checkpoint}");
    }
    // A savepoint is written whole. Two words are counted.
    assert!(0 < number(&counts["state_size"]) && counts["state_size"] == counts["checkpointed_size"], "{checkpoint}");
    let table = run(&["checkpoints", "-m", &cluster.url, &job, "1"]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(table.starts_with("savepoint 1 is COMPLETED: ") && table.matches("1/1  done").count() == 2, "{table}");
    check_failure(
        &run(&["checkpoints", "-m", &cluster.url, &job, "99"]),
        1,
        &["Could not find checkpoint with id 99. Known are 1"],
    );
    drop(socket);
    cluster.await_state(&job, "FINISHED");
}
