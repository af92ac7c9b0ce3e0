//! What a savepoint shows of itself, against words that were counted by a plain loop.

use std::{collections::BTreeMap, io::Write, net::TcpListener};

use engine_tests::{Cluster, check_failure, describe, run, text};
use serde_json::Value;

const WORDS: [&str; 4] = ["to", "be", "or, not", "élan"];

/// Counts in a savepoint, by word.
fn counts(savepoint: &str) -> BTreeMap<String, u64> {
    let shown = run(&["savepoint", "inspect", "--output", "json", "--state", "Keyed Count/value", savepoint]);
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

    let table = run(&["savepoint", "inspect", "--state", "Keyed Count/value", &savepoint]);
    let table = String::from_utf8(table.stdout).expect("text");
    assert!(
        table.starts_with("key,window,value\n") && table.contains(&format!("\nto,,{}\n", expected["to"])),
        "{table}"
    );
    let wrong = run(&["savepoint", "inspect", "--state", "Keyed Count/sum", &savepoint]);
    check_failure(&wrong, 2, &["there is no state \"Keyed Count/sum\"", "Keyed Count/value"]);
    let timers = run(&["savepoint", "inspect", "--timers", "Keyed Count", &savepoint]);
    assert_eq!(String::from_utf8_lossy(&timers.stdout), "key,window,domain,timestamp\n");
    drop(socket);
    cluster.await_state(&job, "FINISHED");
}
