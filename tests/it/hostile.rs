//! Plugins that attack the engine, through the command line: each attack is named
//! with what stopped it and where it happened, within seconds.

use std::time::{Duration, Instant};

use engine_tests::{Cluster, check_failure, describe, is_empty, plugin, run, sorted_rows, text};

/// Budgets that are soon used up, and still no obstacle for what is meant.
const BUDGETS: [&str; 6] =
    ["-D", "sandbox.plan.cpu-time=300ms", "-D", "sandbox.open.cpu-time=300ms", "-D", "sandbox.call.cpu-time=300ms"];
/// Most wall-clock time of one attack on a machine that is busy with others.
const END_MAX: Duration = Duration::from_secs(15);

/// Runs the attack, which must fail with `code` and one line that has all of `parts`.
#[track_caller]
fn check(at: &str, act: &str, code: i32, parts: &[&str]) -> String {
    check_with(&[], at, act, code, parts)
}

/// The same with further settings.
#[track_caller]
fn check_with(settings: &[&str], at: &str, act: &str, code: i32, parts: &[&str]) -> String {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let plugin = plugin("test_hostile");
    let start = Instant::now();
    let ended = run(&[&["submit"], &BUDGETS[..], settings, &[text(&plugin), at, act, text(&output)]].concat());
    assert!(start.elapsed() < END_MAX, "{at} {act} took {:?}", start.elapsed());
    assert!(is_empty(&output), "{at} {act} left output");
    check_failure(&ended, code, &[parts, &["test_hostile.wasm"]].concat())
}

/// An attack while a row is processed.
#[track_caller]
fn check_row(act: &str, parts: &[&str]) {
    check_row_with(&[], act, parts);
}

#[track_caller]
fn check_row_with(settings: &[&str], act: &str, parts: &[&str]) {
    let place = ["operator \"hostile 2\" (subtask 1/1, attempt 0)", "in process-batch", "row 5 of the batch"];
    check_with(settings, "process-batch", act, 1, &[parts, &place].concat());
}

#[test]
fn loops_end_when_their_cpu_time_is_used_up() {
    check_row("loop", &["used more than 300ms of CPU time (sandbox.call.cpu-time)"]);
    check_row("loop-emit", &["used more than 300ms of CPU time (sandbox.call.cpu-time)"]);
    check_row("loop-fill", &["used more than 300ms of CPU time (sandbox.call.cpu-time)"]);
    check("poll-source", "loop", 1, &["in poll-source", "sandbox.call.cpu-time"]);
    check("open", "loop", 1, &["in open", "used more than 300ms of CPU time (sandbox.open.cpu-time)"]);
    check("plan", "loop", 1, &["in plan", "used more than 300ms of CPU time (sandbox.plan.cpu-time)"]);
    check("close", "loop", 1, &["in close", "sandbox.call.cpu-time"]);
}

#[test]
fn memory_and_stack_are_limited() {
    for act in ["grow", "grow-to-4-gib"] {
        check_row(act, &["bytes of memory, the limit is 67108864 (sandbox.memory.max)"]);
    }
    check("plan", "grow", 1, &["in plan", "sandbox.memory.max"]);
    for act in ["recurse", "recurse-indirect"] {
        check_row(act, &["the stack of the plugin overflowed (sandbox.stack.max)"]);
    }
    check("plan", "recurse", 1, &["in plan", "sandbox.stack.max"]);
}

#[test]
fn output_is_limited_and_checked() {
    check_row("emit-much", &["emitted more than 67108864 bytes in one call (sandbox.emit.bytes-max)"]);
    check_row("emit-many", &["emitted more than 1000000 rows in one call (sandbox.emit.rows-max)"]);
    check_row("emit-large", &["sandbox.row.bytes-max"]);
    check_row("wrong-count", &["the batch is said to have 2 rows but has 1"]);
    check_row("cut-row", &["the row at byte 0 runs past the end of the batch"]);
    check_row("long-length", &["the row at byte 0 runs past the end of the batch"]);
    check_row("no-output", &["there is no output 7: the segment has 1"]);
    check_row("list-out-of-bounds", &["list pointer/length out of bounds of memory"]);
}

#[test]
fn a_plan_names_no_directory_and_no_savepoint() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plugin, elsewhere) = (plugin("test_hostile"), directory.path().join("elsewhere"));
    for key in [
        "execution.checkpointing.dir",
        "execution.checkpointing.savepoint-dir",
        "execution.state-recovery.path",
        "execution.row-errors.dead-letter.dir",
    ] {
        let setting = ["submit", text(&plugin), "plan", "set", key, text(&elsewhere)];
        let told = format!("the program sets \"{key}\", which only its submitter may set: with -D {key}=VALUE");
        check_failure(&run(&setting), 2, &[&told]);
        assert!(!elsewhere.exists(), "{key}");
    }
}

#[test]
fn state_and_timers_are_limited_and_checked() {
    let quotas = ["-D", "state.bytes-max=8mb", "-D", "state.timers.max=1000", "-D", "state.value.bytes-max=2mb"];
    let value = "state \"value\" of operator \"hostile 2\", key ";
    let timers = "timers of operator \"hostile 2\", key \"key\": more than 1000 timers";
    let cases: [(&str, &[&str]); 3] = [
        ("state-over-quota", &[value, "takes more than 8388608 bytes: raise state.bytes-max"]),
        ("timers-many", &[timers, "raise state.timers.max"]),
        ("state-cut", &["the list of 1 entries ends in the middle of the 1th"]),
    ];
    for (act, parts) in cases {
        check_row_with(&quotas, act, parts);
    }
    for act in ["state", "timers"] {
        check("plan", act, 1, &["in plan", "may not be called in plan"]);
        check("close", act, 1, &["in close", "may not be called in close"]);
    }
}

#[test]
fn timers_that_wait_at_the_end_fire() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let ended = run(&["submit", text(&plugin("test_hostile")), "process-batch", "timers", text(&output)]);
    assert!(ended.status.success(), "{}", describe(&ended));
    // An event-time timer is left; the one by processing time for long ago fired before or was discarded.
    let rows = sorted_rows(&output);
    assert_eq!(rows.iter().filter(|row| row.starts_with(b"row")).count(), 10);
    assert!((1..=2).contains(&rows.iter().filter(|row| row.starts_with(b"fired")).count()), "{rows:?}");
}

#[test]
fn state_that_is_left_at_the_end_is_handed_over_and_attacks_on_that_are_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let ended = run(&["submit", text(&plugin("test_hostile")), "process-batch", "state-ten", text(&output)]);
    assert!(ended.status.success(), "{}", describe(&ended));
    let rows = sorted_rows(&output);
    assert_eq!(rows.iter().filter(|row| row.starts_with(b"row")).count(), 10);
    assert_eq!(rows.iter().filter(|row| row.starts_with(b"taken")).count(), 10, "{rows:?}");

    let place = "operator \"hostile 2\" (subtask 1/1, attempt 0)";
    for (act, part) in [
        ("loop", "used more than 300ms of CPU time (sandbox.call.cpu-time)"),
        ("unreachable", "unreachable"),
        ("emit-much", "emitted more than 67108864 bytes in one call (sandbox.emit.bytes-max)"),
    ] {
        check("take-state", act, 1, &["in take-state", place, part]);
    }
}

#[test]
fn traps_and_panics_are_told_without_what_a_terminal_would_obey() {
    check_row("unreachable", &["unreachable"]);
    check_row("out-of-bounds", &["out of bounds"]);
    let line =
        check("process-batch", "panic", 1, &["panicked at plugins/test_hostile/src/lib.rs:", "the row is bad:\\n"]);
    assert!(!line.contains('\u{1b}'), "{line:?}");
    let line = check("process-batch", "panic-large", 1, &["panicked at"]);
    assert!(line.len() < 16 << 10, "{} bytes", line.len());
}

#[test]
fn what_the_standard_library_lacks_is_told_with_what_to_use_instead() {
    check_row("instant", &["time not implemented on this platform; plugins have no clock: use the timestamps"]);
    check_row("system-time", &["time not implemented on this platform; plugins have no clock: use the timestamps"]);
    check_row("sleep", &["plugins cannot wait: give the source a rate"]);
    check_row("thread", &["plugins have no threads: raise the parallelism"]);
    check_row("file", &["plugins open no files and no connections: use a source or sink"]);
}

#[test]
fn only_a_message_without_a_place_has_a_backtrace() {
    for (act, has_backtrace) in [("unreachable", true), ("loop", true), ("panic", false)] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let output = directory.path().join("out");
        let plugin = plugin("test_hostile");
        let ended = run(&[&["submit"], &BUDGETS[..], &[text(&plugin), "process-batch", act, text(&output)]].concat());
        let message = String::from_utf8_lossy(&ended.stderr);
        let (summary, failure) = (message.find(" is FAILED after "), message.find("error: job "));
        assert!(summary.is_some() && summary < failure, "{}", describe(&ended));
        let has_frames = message.lines().any(|line| line.starts_with("    at ") && line.contains("test_hostile::"));
        assert_eq!(has_frames, has_backtrace, "{act}: {}", describe(&ended));
    }
}

#[test]
fn graphs_that_no_job_can_have_are_refused() {
    let cases = [
        ("many-nodes", "sandbox.memory.max"),
        ("long-names", "sandbox.emit.bytes-max"),
        ("many-edges", "200000 edges: at most"),
        ("cycle", "the graph has a cycle: node 2 (\"hostile 2\") -> node 2 (\"hostile 2\")"),
        ("parallelism", "the parallelism of node 2 (\"hostile 2\") is 4294967295: expected 1 to 32768"),
        ("no-such-node", "there is no node 77"),
    ];
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plugin, output) = (plugin("test_hostile"), directory.path().join("out"));
    for (act, message) in cases {
        let refused = run(&["submit", text(&plugin), "plan", act, text(&output)]);
        let code = refused.status.code();
        assert!(matches!(code, Some(1 | 2)), "{act}: {}", describe(&refused));
        assert!(String::from_utf8_lossy(&refused.stderr).contains(message), "{act}: {}", describe(&refused));
        assert!(!output.exists(), "{act}");
    }
}

#[test]
fn a_flood_of_log_lines_is_cut_and_escaped() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("out");
    let plugin = plugin("test_hostile");
    let patience = ["submit", "-D", "sandbox.call.cpu-time=20s", text(&plugin)];
    let finished = run(&[&patience[..], &["process-batch", "log-flood", text(&output)]].concat());
    assert!(finished.status.success(), "{}", describe(&finished));
    let log = String::from_utf8_lossy(&finished.stderr);
    // 64 kB a second, of which the job takes few, out of 200,000 lines.
    assert!(log.len() < 4 << 20, "{} bytes of log", log.len());
    assert!(!log.contains('\u{1b}') && !log.contains('\u{202e}'), "control characters reached the log");
    assert!(log.contains("\\u{1b}[2Jone\\ntwo\\u{202e}"), "the lines are not as expected: {log:.1000}");
    assert_eq!(sorted_rows(&output).len(), 10);
    let dropped = log.lines().find_map(|line| line.split_once(" log lines of the plugin dropped"));
    let dropped = dropped.and_then(|(before, _)| before.rsplit(' ').next()?.replace(',', "").parse::<u64>().ok());
    assert!(dropped.is_some_and(|dropped| (100_000..200_000).contains(&dropped)), "{dropped:?}");

    let output = directory.path().join("long");
    let finished = run(&["submit", text(&plugin), "process-batch", "log-long", text(&output)]);
    assert!(finished.status.success(), "{}", describe(&finished));
    let longest = String::from_utf8_lossy(&finished.stderr).lines().map(str::len).max();
    assert!(longest.is_some_and(|longest| (1024..4096).contains(&longest)), "{longest:?}");
}

#[test]
fn dropped_log_lines_are_counted() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = text(directory.path());
    let cluster = Cluster::start(&["-D", "sandbox.call.cpu-time=20s", "--allow-write", root]);
    let output = directory.path().join("out");
    let job = cluster.submit(&[], "test_hostile", &["process-batch", "log-flood", text(&output)]);
    let details = cluster.await_state(&job, "FINISHED");
    let vertex = details["vertices"][1]["id"].as_str().expect("an id");
    let metrics = cluster.get(&format!("/jobs/{job}/vertices/{vertex}/metrics?get=0.numLogLinesDropped"));
    let dropped: f64 = metrics[0]["value"].as_str().and_then(|value| value.parse().ok()).expect("a number");
    assert!((100_000.0..200_000.0).contains(&dropped), "{metrics}");
}

#[test]
fn a_cluster_survives_the_jobs_that_fail_in_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cluster = Cluster::start(&[&BUDGETS[..], &["--allow-write", text(directory.path())]].concat());
    let hostile = |act: &str| {
        let output = directory.path().join(act);
        (cluster.submit(&[], "test_hostile", &["process-batch", act, text(&output)]), output)
    };
    let attacks = ["loop", "grow", "recurse", "emit-much", "unreachable"].map(hostile);
    let good = directory.path().join("good");
    let job = cluster.submit(&[], "test_hostile", &["nowhere", "nothing", text(&good)]);
    cluster.await_state(&job, "FINISHED");
    assert_eq!(sorted_rows(&good).len(), 10);
    for (job, output) in attacks {
        cluster.await_state(&job, "FAILED");
        assert!(is_empty(&output));
    }
    let again = directory.path().join("again");
    let job = cluster.submit(&[], "test_hostile", &["nowhere", "nothing", text(&again)]);
    cluster.await_state(&job, "FINISHED");
    assert_eq!(sorted_rows(&again).len(), 10);
}
