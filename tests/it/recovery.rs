//! Jobs of a killed cluster whose checkpoints are away when it starts again, and savepoints of jobs that were being
//! stopped then: no row is lost, taken back or written twice.

use std::{
    fs,
    path::{Path, PathBuf},
};

use engine_tests::{
    Cluster, describe,
    nexmark::{answer, parse},
    run, sorted_rows, text,
};

use crate::{checkpoint_faults::names, exactly_once::Scene};

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
