//! User code that panics: restarts from scratch, or the failure that its user reads.

use std::process::{Command, Stdio};

use serde_json::Value;

use engine_tests::{Cluster, await_file, check_failure, describe, engine, is_empty, plugin, run, sorted_rows, text};

const FIXED_DELAY: [&str; 6] = [
    "-D",
    "restart-strategy.type=fixed-delay",
    "-D",
    "restart-strategy.fixed-delay.delay=10ms",
    "-D",
    "restart-strategy.fixed-delay.attempts=3",
];

fn submit(flags: &[&str], panics: &str, output: &std::path::Path) -> std::process::Output {
    let plugin = plugin("test_failing");
    let program = [text(&plugin), "--panic-attempts", panics, "--output", text(output)];
    run(&[&["submit", "-p", "2"], flags, &program[..]].concat())
}

#[test]
fn a_restarted_job_writes_each_row_once() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let finished = submit(&FIXED_DELAY, "3", &output);
    assert!(finished.status.success(), "{}", describe(&finished));
    let mut expected: Vec<Vec<u8>> = (0..1000).map(|number| format!("{number}\n").into_bytes()).collect();
    expected.sort_unstable();
    assert!(sorted_rows(&output) == expected, "the output is not that of one attempt");
    assert!(String::from_utf8_lossy(&finished.stderr).contains("3 restarts that cost "), "{}", describe(&finished));
}

#[test]
fn restarts_are_told_with_cause_and_time() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let cluster = Cluster::start(&["--slots", "2", "--allow-write", text(directory.path())]);
    let job = cluster.submit(
        &[&["-p", "2"][..], &FIXED_DELAY].concat(),
        "test_failing",
        &["--panic-attempts", "2", "--output", text(&output)],
    );
    cluster.await_state(&job, "FINISHED");
    let status = run(&["status", "-m", &cluster.url, "--output", "json", &job]);
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    assert_eq!(status["restarts"], 2);
    let restarts = status["last-restarts"].as_array().expect("a list");
    // Time counts once if the job failed anew before all its tasks ran again.
    let (mut lost, mut down_until) = (0, u64::MAX);
    for (restart, attempt) in restarts.iter().zip([1, 0]) {
        let cause = restart["cause"].as_str().expect("a line");
        assert!(cause.contains(&format!("number 600 on attempt {attempt}")), "{cause}");
        assert_eq!((&restart["code"], &restart["is-under-way"]), (&"guest-panic".into(), &false.into()));
        // At least the delay.
        let downtime = restart["downtime-ms"].as_u64().expect("a number");
        assert!((10..60_000).contains(&downtime), "{downtime} ms");
        // The newer one stands before the older one.
        let failed = restart["time"].as_u64().expect("a number");
        lost += downtime - (failed + downtime).saturating_sub(down_until);
        down_until = failed;
    }
    assert_eq!((restarts.len(), status["downtime-ms"].as_u64()), (2, Some(lost)));
    let shown = run(&["status", "-m", &cluster.url, &job]);
    let shown = String::from_utf8(shown.stdout).expect("text");
    let lines: Vec<&str> = shown.lines().filter(|line| line.starts_with("  restarted at ")).collect();
    assert_eq!(lines.len(), 2, "{shown}");
    assert!(lines.iter().all(|line| line.contains(", down for ") && line.contains("number 600")), "{shown}");
}

#[test]
fn restarts_end_where_the_strategy_says() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let failed = submit(&FIXED_DELAY, "4", &output);
    check_failure(&failed, 1, &["number 600 on attempt 3", "attempt 3)"]);
    assert!(is_empty(&output));
}

#[test]
fn without_a_restart_strategy_the_line_names_all_that_helps() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let failed = submit(&["-D", "restart-strategy.type=none"], "1", &output);
    let parts = [
        "job \"Failing\"",
        "operator \"Panics\" (subtask 1/2, attempt 0)",
        "plugin test_failing.wasm",
        "in poll-source",
        "panicked at plugins/test_failing/src/lib.rs:",
        "number 600 on attempt 0",
    ];
    check_failure(&failed, 1, &parts);
    assert!(is_empty(&output));
}

#[test]
fn a_terminated_submit_cancels_its_job_and_leaves_nothing() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [output, temporary] = ["out", "tmp"].map(|name| directory.path().join(name));
    std::fs::create_dir(&temporary).expect("writable");
    // More CPU time than the test lasts.
    let submitted = engine()
        .env("TMPDIR", &temporary)
        .args(["submit", "-D", "sandbox.call.cpu-time=10min", text(&plugin("test_hostile"))])
        .args(["process-batch", "loop", text(&output)])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    await_file(&output, ".job-");
    let killed = Command::new("sh").args(["-c", &format!("kill -TERM {}", submitted.id())]).status();
    assert!(killed.expect("there is a shell").success());
    let ended = submitted.wait_with_output().expect("it ends");
    check_failure(&ended, 1, &["was cancelled"]);
    assert!(is_empty(&output) && is_empty(&temporary), "something is left: {}", describe(&ended));
}

/// Runs a job that keeps too much, with settings; its failure must be one line with all of `parts`.
/// Returns the line.
#[track_caller]
fn check_greedy(what: &str, settings: &[&str], parts: &[&str]) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let plugin = plugin("test_failing");
    let program = [text(&plugin), "--greedy", what, "--output", text(&output)];
    let patient = ["submit", "-D", "sandbox.call.cpu-time=20s"];
    let failed = run(&[&patient[..], settings, &program[..]].concat());
    let line = check_failure(&failed, 1, &[&["operator \"Greedy\""], parts].concat());
    assert!(is_empty(&output));
    line
}

#[test]
fn what_is_kept_in_the_memory_of_the_plugin_counts_for_the_limits_of_state() {
    let parts = ["state \"value\"", "the value has 104857600 bytes, the limit is 16777216", "state.value.bytes-max"];
    // A value is found to be too long behind the row that made it so, which is not named.
    let line = check_greedy("value", &["-D", "sandbox.memory.max=1gb"], &parts);
    assert!(!line.contains("row 0") && !line.contains("row 1"), "{line}");
    let parts = ["state \"value\"", "1048576 bytes", "raise state.bytes-max"];
    check_greedy("values", &["-D", "state.bytes-max=1mb"], &parts);
    check_greedy("list", &[], &["state \"list\"", "the limit is 16777216", "state.value.bytes-max"]);
    let parts = ["more than 100000 timers wait in this task", "raise state.timers.max"];
    check_greedy("timers", &["-D", "state.timers.max=100000"], &parts);
}
