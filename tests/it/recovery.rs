//! Jobs of a killed cluster whose checkpoints are away when it starts again, and savepoints of jobs that were being
//! stopped then: no row is lost, taken back or written twice.

use std::{
    fs,
    path::{Path, PathBuf},
};

use engine_tests::{
    Cluster, await_file, describe,
    nexmark::{answer, parse},
    run, sorted_rows, text,
};

use crate::{
    checkpoint_faults::{await_that, names},
    exactly_once::Scene,
};

/// A cluster whose jobs outlive it, and that is killed and started again.
struct Site {
    scene: Scene,
    storage: String,
    /// Of checkpoints, as on a device of its own.
    points: PathBuf,
}

impl Site {
    fn new() -> Self {
        let scene = Scene::new();
        let storage = format!("cluster.storage-dir={}", text(&scene.path("storage")));
        let points = scene.path("points");
        Self { scene, storage, points }
    }

    fn start(&self) -> Cluster {
        self.start_with_failpoints(None)
    }

    fn start_with_failpoints(&self, failpoints: Option<&str>) -> Cluster {
        let root = text(&self.scene.path("")).to_owned();
        let arguments = ["-D", &self.storage, "--slots", "4", "--allow-read", &root, "--allow-write", &root];
        match failpoints {
            None => Cluster::start(&arguments),
            Some(failpoints) => Cluster::start_with_failpoints(&arguments, failpoints),
        }
    }

    /// Submits `q0`, with a checkpoint each 100 ms.
    fn submit(&self, cluster: &Cluster, flags: &[&str], arguments: &[String]) -> String {
        let points = format!("execution.checkpointing.dir={}", text(&self.points));
        let checkpoints = ["-p", "2", "-D", "execution.checkpointing.interval=100ms", "-D", &points];
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        cluster.submit(&[&checkpoints[..], flags].concat(), "nexmark", &arguments)
    }

    /// `q0` at a rate at which it runs for a few seconds.
    fn query(&self) -> Vec<String> {
        let mut arguments = self.scene.query("q0");
        *arguments.last_mut().expect("the rate") = "12000".to_owned();
        arguments
    }

    fn output(&self) -> PathBuf {
        self.scene.path("out")
    }

    /// Stops a job with a savepoint.
    fn stop(&self, cluster: &Cluster, job: &str) -> String {
        let savepoints = self.scene.path("savepoints");
        let stopped = run(&["stop", "-m", &cluster.url, "--savepoint", text(&savepoints), job]);
        assert!(stopped.status.success(), "{}", describe(&stopped));
        cluster.await_state(job, "FINISHED");
        String::from_utf8_lossy(&stopped.stdout).trim().to_owned()
    }

    /// The job waits for its checkpoints and has touched nothing.
    fn check_waiting(&self, cluster: &Cluster, job: &str, before: &[String]) {
        let path = format!("/jobs/{job}");
        cluster.await_answer(&path, |answer| {
            assert_ne!(answer["state"], "FAILED", "{}", cluster.get(&format!("{path}/exceptions")));
            assert_ne!(answer["state"], "RUNNING", "{answer}");
            answer["state"] == "RESTARTING"
        });
        let cause = cluster.get(&format!("{path}/exceptions"))["root-exception"].to_string();
        let expected = format!("none of its checkpoints is in {}/{job}: make that directory", text(&self.points));
        assert!(cause.contains(&expected), "{cause}");
        assert_eq!(names(&self.output()), before);
    }

    fn check_finished(&self, cluster: &Cluster, job: &str) {
        cluster.await_answer(&format!("/jobs/{job}"), |answer| {
            assert_ne!(answer["state"], "FAILED", "{answer}");
            answer["state"] == "FINISHED"
        });
        assert!(sorted_rows(&self.output()) == answer("q0", &parse(self.scene.events())), "q0 differs from the model");
    }
}

fn move_directory(from: &Path, to: &Path) {
    fs::rename(from, to).expect("same file system");
}

fn a_job_waits_for_its_checkpoints(starts_from_savepoint: bool) {
    let site = Site::new();
    let away = site.scene.path("away");
    let slow = site.query();
    let cluster = site.start();
    let mut job = site.submit(&cluster, &[], &slow);
    if starts_from_savepoint {
        cluster.await_checkpoints(&job, 2);
        let savepoint = site.stop(&cluster, &job);
        job = site.submit(&cluster, &["--from-savepoint", &savepoint], &slow);
    }
    cluster.await_checkpoints(&job, 3);
    drop(cluster);
    let before = names(&site.output());
    assert!(before.iter().any(|name| name.starts_with("part-")), "{before:?}");

    move_directory(&site.points, &away);
    let cluster = site.start();
    site.check_waiting(&cluster, &job, &before);
    assert!(!site.points.exists(), "nothing is made in its place");
    drop(cluster);
    fs::create_dir(&site.points).expect("writable");
    let cluster = site.start();
    site.check_waiting(&cluster, &job, &before);
    fs::remove_dir(&site.points).expect("nothing is made in it");
    move_directory(&away, &site.points);
    site.check_finished(&cluster, &job);
}

#[test]
fn a_job_waits_for_its_checkpoints_and_takes_nothing_back() {
    a_job_waits_for_its_checkpoints(false);
}

#[test]
fn a_job_that_started_from_a_savepoint_waits_for_its_checkpoints_and_takes_nothing_back() {
    a_job_waits_for_its_checkpoints(true);
}

fn newest_checkpoint(site: &Site, job: &str) -> PathBuf {
    let directory = site.points.join(job);
    let ids = names(&directory).into_iter().filter_map(|name| name.strip_prefix("chk-")?.parse::<u64>().ok());
    let newest = ids.max().expect("one is complete");
    directory.join(format!("chk-{newest}"))
}

fn has_claim(site: &Site) -> bool {
    names(&site.output()).iter().any(|name| name.starts_with(".job-"))
}

fn cancel(cluster: &Cluster, job: &str) {
    let canceled = run(&["cancel", "-m", &cluster.url, job]);
    assert!(canceled.status.success(), "{}", describe(&canceled));
    cluster.await_state(job, "CANCELED");
}

/// Another job goes on from the checkpoint to the end of the input.
fn go_on(site: &Site, cluster: &Cluster, checkpoint: &Path) {
    await_that("the claim is gone", || !has_claim(site));
    let hidden = names(&site.output()).iter().filter(|name| name.starts_with(".part-")).count();
    assert!(0 < hidden, "what is not committed is kept");
    let job = site.submit(cluster, &["--from-checkpoint", text(checkpoint)], &site.scene.query("q0"));
    cluster.await_state(&job, "FINISHED");
    await_that("only rows are left", || names(&site.output()).iter().all(|name| name.starts_with("part-")));
    site.check_finished(cluster, &job);
}

const RETAIN: [&str; 2] = ["-D", "execution.checkpointing.externalized-checkpoint-retention=RETAIN_ON_CANCELLATION"];

#[test]
fn a_job_that_fails_to_commit_its_last_checkpoint_leaves_it_whole() {
    let site = Site::new();
    let cluster = site.start_with_failpoints(Some("sink.commit.rename=error(ENOSPC)@5"));
    let job = site.submit(&cluster, &["-D", "restart-strategy.type=none"], &site.query());
    cluster.await_state(&job, "FAILED");
    let cause = cluster.get(&format!("/jobs/{job}/exceptions"))["root-exception"].to_string();
    let newest = newest_checkpoint(&site, &job);
    assert!(cause.contains("could not commit checkpoint") && cause.contains(text(&newest)), "{cause}");
    go_on(&site, &cluster, &newest);
}

#[test]
fn a_retained_checkpoint_of_a_job_that_is_cancelled_while_it_restarts_is_whole() {
    let site = Site::new();
    let cluster = site.start_with_failpoints(Some("sink.commit.rename=error(EIO)@5"));
    let restart = ["-D", "restart-strategy.type=fixed-delay", "-D", "restart-strategy.fixed-delay.delay=1h"];
    let job = site.submit(&cluster, &[&RETAIN[..], &restart].concat(), &site.query());
    cluster.await_state(&job, "RESTARTING");
    cancel(&cluster, &job);
    go_on(&site, &cluster, &newest_checkpoint(&site, &job));
}

#[test]
fn a_retained_checkpoint_is_whole_though_it_was_away_when_its_job_was_cancelled() {
    let site = Site::new();
    let away = site.scene.path("away");
    // Complete, and not committed.
    let cluster = site.start_with_failpoints(Some("checkpoint.complete=kill@3"));
    let job = site.submit(&cluster, &RETAIN, &site.query());
    let third = site.points.join(&job).join("chk-3");
    await_that("the cluster is killed", || third.join("_metadata").exists() && cluster.is_gone());
    drop(cluster);
    let before = names(&site.output());
    move_directory(&site.points, &away);
    let cluster = site.start();
    site.check_waiting(&cluster, &job, &before);
    cancel(&cluster, &job);
    assert_eq!(names(&site.output()), before);
    move_directory(&away, &site.points);
    go_on(&site, &cluster, &third);
}

/// The savepoint is complete and its rows were visible, but the cluster is killed before the job is FINISHED: it goes
/// on from before the savepoint and takes them back.
#[test]
fn a_savepoint_whose_job_did_not_stop_is_not_started_from_without_its_rows() {
    let site = Site::new();
    let never = ["-D", "execution.checkpointing.interval=1h"];
    let cluster = site.start_with_failpoints(Some("job-result.dirty=kill"));
    let job = site.submit(&cluster, &never, &site.query());
    await_file(&site.output(), ".part-");
    let savepoints = site.scene.path("savepoints");
    run(&["stop", "-m", &cluster.url, "--savepoint", text(&savepoints), &job]);
    await_that("the cluster is killed", || cluster.is_gone());
    drop(cluster);
    assert!(names(&site.output()).iter().any(|name| name.starts_with("part-")));
    let savepoint = savepoints.join(names(&savepoints).first().expect("it is complete"));
    let cluster = site.start();
    cluster.await_tasks(&job);
    cancel(&cluster, &job);
    await_that("the claim is gone", || !has_claim(&site));
    assert_eq!(names(&site.output()), [""; 0], "the rows of the savepoint were taken back");
    let next = site.submit(&cluster, &["--from-savepoint", text(&savepoint)], &site.query());
    cluster.await_answer(&format!("/jobs/{next}"), |answer| {
        assert_ne!(answer["state"], "RUNNING", "{answer}");
        answer["state"] == "FAILED"
    });
    let cause = cluster.get(&format!("/jobs/{next}/exceptions"))["root-exception"].to_string();
    assert!(cause.contains("rows would be lost"), "{cause}");
}
