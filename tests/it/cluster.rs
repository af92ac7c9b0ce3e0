//! `engine cluster` and the commands that reach it.

use engine_tests::{Cluster, describe, is_empty, run, text};

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
