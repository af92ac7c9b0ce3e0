//! A running job is taken over by another version of its plugin.

use std::{fs, path::PathBuf};

use engine_tests::{
    Cluster, check_failure, describe,
    nexmark::{answer, parse},
    plugin, run, sorted_rows, text,
};

const EVENTS: u64 = 50_000;
/// Events a second: the job runs long enough to be taken over.
const RATE: &str = "5000";
/// With a pause before the first checkpoint too: a version that traps at once does so before it.
const INTERVAL: [&str; 4] =
    ["-D", "execution.checkpointing.interval=200ms", "-D", "execution.checkpointing.min-pause=150ms"];

struct Scene {
    directory: tempfile::TempDir,
    events: Vec<u8>,
    cluster: Cluster,
    job: String,
}

impl Scene {
    /// Starts version 1 and waits until it has committed something.
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut events = Vec::new();
        engine_benches::write_nexmark(0..EVENTS, &mut events).expect("writing to memory does not fail");
        let input = directory.path().join("events");
        fs::write(&input, &events).expect("writable");
        let root = text(directory.path());
        let cluster = Cluster::start(&["--slots", "8", "--allow-read", root, "--allow-write", root]);
        let output = directory.path().join("out");
        let arguments = ["--version", "1", "--input", text(&input), "--output", text(&output), "--rate", RATE];
        let flags = [&["-p", "2"][..], &INTERVAL].concat();
        let job = cluster.submit(&flags, "test_upgrade", &arguments);
        engine_tests::await_file(&output, "part-");
        Self { directory, events, cluster, job }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn upgrade(&self, flags: &[&str], version: &str) -> std::process::Output {
        // A copy, since the old plugin is kept beside the new one.
        let new = self.path("new.wasm");
        fs::copy(plugin("test_upgrade"), &new).expect("writable");
        let [input, output, savepoints] = ["events", "out", "savepoints"].map(|name| self.path(name));
        let command = ["upgrade", "-m", &self.cluster.url, "--savepoint", text(&savepoints)];
        let program = [&self.job, text(&new), "--version", version, "--input", text(&input), "--output", text(&output)];
        run(&[&command[..], flags, &program, &["--rate", RATE]].concat())
    }

    /// Rows without what a version adds to them.
    fn check(&self) {
        let rows = sorted_rows(&self.path("out"));
        let mut rows: Vec<Vec<u8>> = rows
            .into_iter()
            .map(|row| {
                let row = String::from_utf8(row).expect("text");
                format!("{}\n", row.trim_end().trim_end_matches(",hot")).into_bytes()
            })
            .collect();
        rows.sort_unstable();
        assert!(rows == answer("q5", &parse(&self.events)), "the rows of both versions are not those of one run");
    }

    fn job_in(&self, text: &str) -> String {
        let mut ids = text.split(|character: char| !character.is_ascii_hexdigit()).filter(|word| word.len() == 32);
        ids.rfind(|id| *id != self.job).unwrap_or_else(|| panic!("no other job in {text}")).to_owned()
    }
}

#[test]
fn a_version_with_one_more_column_takes_over() {
    let scene = Scene::new();
    let done = scene.upgrade(&[], "2");
    assert!(done.status.success(), "{}", describe(&done));
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(told.contains("Carries over:") && told.contains("(uid counts)"), "{}", describe(&done));
    let successor = scene.job_in(&told);
    scene.cluster.await_state(&scene.job, "FINISHED");
    scene.cluster.await_state(&successor, "FINISHED");
    let rows = sorted_rows(&scene.path("out"));
    let new = rows.iter().filter(|row| row.ends_with(b",hot\n")).count();
    assert!(0 < new && new < rows.len(), "{new} of {} rows are of the new version", rows.len());
    scene.check();
    let kept = fs::read_dir(scene.directory.path())
        .expect("readable")
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    assert!(kept.into_iter().any(|name| name.starts_with("test_upgrade-") && name.ends_with(".wasm")));
}

#[test]
fn a_version_whose_state_has_one_more_field_takes_over() {
    let scene = Scene::new();
    let done = scene.upgrade(&[], "wide");
    assert!(done.status.success(), "{}", describe(&done));
    let successor = scene.job_in(&String::from_utf8_lossy(&done.stdout));
    scene.cluster.await_state(&successor, "FINISHED");
    let exceptions = scene.cluster.get(&format!("/jobs/{successor}/exceptions"));
    assert_eq!(exceptions["exceptionHistory"]["entries"].as_array().map(Vec::len), Some(0), "{exceptions}");
    scene.check();
}

#[test]
fn a_version_that_traps_gives_way_to_the_old_one() {
    let scene = Scene::new();
    let failed = scene.upgrade(&[], "trap");
    let told = check_failure(&failed, 1, &["this version is broken", "nothing of it was committed"]);
    let old_again = scene.job_in(&told);
    scene.cluster.await_state(&old_again, "FINISHED");
    scene.check();
}

#[test]
fn a_version_that_does_not_fit_leaves_the_job_alone() {
    let scene = Scene::new();
    for (version, flags, expected) in [
        ("other-key", &[][..], "its key was i64 and is string"),
        ("no-window", &[], "the new program has no such operator"),
        ("other-key", &["--allow-non-restored-state"], "its key was i64 and is string"),
    ] {
        let refused = scene.upgrade(flags, version);
        assert_eq!(refused.status.code(), Some(1), "{}", describe(&refused));
        let told = String::from_utf8_lossy(&refused.stdout);
        assert!(told.contains(expected), "{}", describe(&refused));
    }
    let shown = scene.upgrade(&["--dry-run"], "2");
    assert!(shown.status.success(), "{}", describe(&shown));
    let answer = scene.cluster.get(&format!("/jobs/{}", scene.job));
    assert!(answer["state"] == "RUNNING" || answer["state"] == "FINISHED", "{answer}");
    assert_eq!(scene.cluster.get("/jobs")["jobs"].as_array().map(Vec::len), Some(1), "another job was started");
}
