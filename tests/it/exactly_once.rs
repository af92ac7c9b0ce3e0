//! Jobs with checkpoints write what they would have written undisturbed, whatever happens to them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Output, Stdio},
};

use ::nexmark::event::Event;
use engine_tests::{
    Cluster, await_file, check_failure, describe, engine,
    nexmark::{answer, parse},
    plugin, run, sha256, sorted_rows, text,
};

use crate::nexmark;

pub const JOB: &str = "0123456789abcdef0123456789abcdef";
/// At this rate, in events a second, a job runs long enough to be disturbed.
const RATE: &str = "30000";
const SLOW_RATE: &str = "6000";
/// For queries that do without bids, of which the events are few.
const SLOW_RATE_WITHOUT_BIDS: &str = "500";
const EVENTS: u64 = 60_000;
pub const RESTARTS: [&str; 6] = [
    "-D",
    "restart-strategy.type=fixed-delay",
    "-D",
    "restart-strategy.fixed-delay.delay=10ms",
    "-D",
    "restart-strategy.fixed-delay.attempts=5",
];

/// A directory with Nexmark events, and places for output and state.
pub struct Scene {
    directory: tempfile::TempDir,
    events: Vec<u8>,
}

impl Scene {
    pub fn new() -> Self {
        Self::of_events(EVENTS)
    }

    fn of_events(count: u64) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut events = Vec::new();
        engine_benches::write_nexmark(0..count, &mut events).expect("writing to memory does not fail");
        fs::write(directory.path().join("events"), &events).expect("writable");
        Self { directory, events }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Arguments of the plugin.
    pub fn query(&self, query: &str) -> Vec<String> {
        self.query_at(query, RATE)
    }

    /// As [`Scene::query`], so slow that it runs for seconds while others do something to it.
    pub fn slow_query(&self, query: &str) -> Vec<String> {
        let without_bids = ["q3", "q8"].contains(&query);
        self.query_at(query, if without_bids { SLOW_RATE_WITHOUT_BIDS } else { SLOW_RATE })
    }

    fn query_at(&self, query: &str, rate: &str) -> Vec<String> {
        let (input, output) = (self.path("events"), self.path("out"));
        let arguments = ["--query", query, "--input", text(&input), "--output", text(&output), "--rate", rate];
        arguments.map(str::to_owned).to_vec()
    }

    /// `engine submit` under an id and with a state directory.
    pub fn spawn(&self, flags: &[&str], name: &str, arguments: &[String], failpoints: Option<&str>) -> Child {
        let mut command = engine();
        command.args(["submit", "--job-id", JOB, "--state-dir"]).arg(self.path("state"));
        command.args(["-p", "2", "-D", "execution.checkpointing.interval=50ms"]).args(flags);
        if let Some(failpoints) = failpoints {
            command.arg("--failpoints").env("ENGINE_FAILPOINTS", failpoints);
        }
        command.arg(plugin(name)).args(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the engine starts")
    }

    pub fn submit(&self, flags: &[&str], name: &str, arguments: &[String], failpoints: Option<&str>) -> Output {
        self.spawn(flags, name, arguments, failpoints).wait_with_output().expect("it ends")
    }

    /// What `q0` and others read.
    pub fn events(&self) -> &[u8] {
        &self.events
    }

    /// Takes output and state away.
    pub fn clear(&self) {
        fs::remove_dir_all(self.path("out")).expect("removable");
        fs::remove_dir_all(self.path("state")).expect("removable");
    }

    #[track_caller]
    pub fn check(&self, query: &str) {
        let expected = answer(query, &parse(&self.events));
        assert!(sorted_rows(&self.path("out")) == expected, "{query} differs from the model");
    }
}

/// Waits until the job has made rows of at least one checkpoint visible.
pub fn await_commit(output: &Path) {
    await_file(output, "part-");
}

#[test]
fn checkpoints_change_nothing_in_the_output() {
    let scene = Scene::new();
    for query in ["q5", "q11", "q4"] {
        let done = scene.submit(&[], "nexmark", &scene.query(query), None);
        assert!(done.status.success(), "{}", describe(&done));
        scene.check(query);
        fs::remove_dir_all(scene.path("out")).expect("removable");
        fs::remove_dir_all(scene.path("state")).expect("removable");
    }
}

#[test]
fn a_killed_process_goes_on_where_it_was() {
    let scene = Scene::new();
    for query in ["q0", "q5"] {
        let arguments = scene.query(query);
        for _ in 0..3 {
            let mut process = scene.spawn(&[], "nexmark", &arguments, None);
            await_commit(&scene.path("out"));
            process.kill().expect("it is our child");
            process.wait().expect("it is our child");
        }
        let done = scene.submit(&[], "nexmark", &arguments, None);
        assert!(done.status.success(), "{}", describe(&done));
        scene.check(query);
        let rows = sorted_rows(&scene.path("out"));
        // A job that has finished is not run again.
        let again = scene.submit(&[], "nexmark", &arguments, None);
        assert!(again.status.success(), "{}", describe(&again));
        assert!(rows == sorted_rows(&scene.path("out")));
        fs::remove_dir_all(scene.path("out")).expect("removable");
        fs::remove_dir_all(scene.path("state")).expect("removable");
    }
}

/// Directories of tasks that keep their state on disk.
fn task_directories(state: &Path) -> usize {
    let Ok(entries) = fs::read_dir(state) else { return 0 };
    let directories = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(|path| path.is_dir());
    directories
        .map(|path| {
            let is_task = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("task-"));
            if is_task { 1 } else { task_directories(&path) }
        })
        .sum()
}

#[test]
fn state_on_disk_is_that_in_memory_also_when_the_process_is_killed() {
    let scene = Scene::new();
    // So little memory that nearly all is read from files.
    let flags = ["state.backend.type=disk", "state.backend.disk.memory=1kb", "state.cache.bytes=10kb"];
    let flags: Vec<&str> = flags.into_iter().flat_map(|flag| ["-D", flag]).collect();
    for query in ["q5", "q11", "q4"] {
        let arguments = scene.query(query);
        let mut process = scene.spawn(&flags, "nexmark", &arguments, None);
        await_commit(&scene.path("out"));
        process.kill().expect("it is our child");
        process.wait().expect("it is our child");
        assert_ne!(task_directories(&scene.path("state")), 0, "{query}");
        let done = scene.submit(&flags, "nexmark", &arguments, None);
        assert!(done.status.success(), "{}", describe(&done));
        scene.check(query);
        assert_eq!(task_directories(&scene.path("state")), 0, "{query}");
        fs::remove_dir_all(scene.path("out")).expect("removable");
        fs::remove_dir_all(scene.path("state")).expect("removable");
    }
}

#[test]
fn a_task_that_fails_goes_on_from_the_last_checkpoint() {
    let scene = Scene::new();
    for failpoint in ["network.receive.barrier=panic@20", "sink.prepared=panic@9", "source.read=error@5"] {
        let done = scene.submit(&RESTARTS, "nexmark", &scene.query("q5"), Some(failpoint));
        assert!(done.status.success(), "{failpoint}: {}", describe(&done));
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(told.contains("restart"), "{failpoint}: {told}");
        scene.check("q5");
        fs::remove_dir_all(scene.path("out")).expect("removable");
        fs::remove_dir_all(scene.path("state")).expect("removable");
    }
}

#[test]
fn word_count_counts_each_word_once_and_in_order() {
    let scene = Scene::new();
    let mut words = Vec::new();
    engine_benches::write_words(30_000, 7, &mut words).expect("writing to memory does not fail");
    let (input, output) = (scene.path("words"), scene.path("out"));
    fs::write(&input, &words).expect("writable");
    let arguments = ["--input", text(&input), "--output", text(&output), "--updates"].map(str::to_owned);
    let killed = scene.submit(&[], "word_count", &arguments, Some("sink.commit.renamed=kill@2"));
    assert_eq!(killed.status.code(), None, "{}", describe(&killed));
    let done = scene.submit(&[], "word_count", &arguments, None);
    assert!(done.status.success(), "{}", describe(&done));
    // Each count of a word once.
    let mut counts = std::collections::BTreeMap::<&str, u32>::new();
    let mut expected = Vec::new();
    for word in std::str::from_utf8(&words).expect("ASCII").split_ascii_whitespace() {
        let count = counts.entry(word).or_default();
        *count += 1;
        expected.push(format!("{word},{count}\n").into_bytes());
    }
    expected.sort_unstable();
    assert!(sorted_rows(&output) == expected, "updates differ from the model");
}

/// On the way chains are broken, and state goes to disk; the answers are those of Flink.
#[test]
fn a_job_is_rescaled_through_savepoints() {
    let scene = Scene::of_events(nexmark::EVENTS);
    let root = text(scene.directory.path()).to_owned();
    let cluster = Cluster::start(&["--slots", "8", "--allow-read", &root, "--allow-write", &root]);
    let savepoints = scene.path("savepoints");
    for (query, count, digest) in nexmark::ANSWERS {
        if nexmark::STATELESS.contains(&query) {
            continue;
        }
        let (slow, fast) = (scene.slow_query(query), scene.query_at(query, "1000000"));
        let [slow, fast] = [&slow, &fast].map(|arguments| arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let mut from: Option<String> = None;
        for (parallelism, chaining) in [("1", "true"), ("4", "false"), ("3", "true")] {
            let chaining = format!("pipeline.operator-chaining.enabled={chaining}");
            let mut flags = vec!["-p", parallelism, "-D", "execution.checkpointing.interval=50ms", "-D", &chaining];
            flags.extend(from.iter().flat_map(|path| ["--from-savepoint", path]));
            let job = cluster.submit(&flags, "nexmark", &slow);
            cluster.await_checkpoints(&job, 3);
            let stopped = run(&["stop", "-m", &cluster.url, "--savepoint", text(&savepoints), &job]);
            assert!(stopped.status.success(), "{}", describe(&stopped));
            from = Some(String::from_utf8_lossy(&stopped.stdout).trim().to_owned());
            cluster.await_state(&job, "FINISHED");
        }
        let path = from.expect("three savepoints");
        let mut flags = vec!["-p", "2", "-D", "execution.checkpointing.interval=50ms", "--from-savepoint", &path];
        flags.extend(["-D", "state.backend.type=disk"]);
        let job = cluster.submit(&flags, "nexmark", &fast);
        cluster.await_state(&job, "FINISHED");
        let rows = sorted_rows(&scene.path("out"));
        assert_eq!((rows.len(), sha256(&rows).as_str()), (count, digest), "{query} differs from Flink's answer");
        fs::remove_dir_all(scene.path("out")).expect("removable");
    }
}

/// Stops a job with a savepoint and returns where it is.
#[track_caller]
fn stop(cluster: &Cluster, flags: &[&str], savepoints: &Path, job: &str) -> String {
    let stopped = run(&[&["stop", "-m", &cluster.url, "--savepoint", text(savepoints)], flags, &[job]].concat());
    assert!(stopped.status.success(), "{}", describe(&stopped));
    cluster.await_state(job, "FINISHED");
    String::from_utf8_lossy(&stopped.stdout).trim().to_owned()
}

/// True if `rows` answer `query` over the first events, however many.
fn answers_a_prefix(query: &str, events: &[Event], rows: &[Vec<u8>]) -> bool {
    let counts: Vec<usize> = (0..=events.len()).collect();
    let least = counts.partition_point(|count| answer(query, &events[..*count]).len() < rows.len());
    let answers = counts[least..].iter().map(|count| answer(query, &events[..*count]));
    answers.take_while(|answer| answer.len() == rows.len()).any(|answer| answer == rows)
}

/// These queries emit nothing before the end of event time, and then what they have kept for each key.
#[test]
fn state_that_is_taken_at_the_end_goes_through_savepoints_and_is_taken_once() {
    let scene = Scene::new();
    let events = parse(&scene.events);
    let root = text(scene.directory.path()).to_owned();
    let cluster = Cluster::start(&["--slots", "8", "--allow-read", &root, "--allow-write", &root]);
    let savepoints = scene.path("savepoints");
    for (query, backend) in [("q18", "hashmap"), ("q18", "disk"), ("q17", "disk")] {
        let backend = format!("state.backend.type={backend}");
        let (slow, fast) = (scene.slow_query(query), scene.query(query));
        // So small a cache that most of the state is with the engine.
        let settings = ["execution.checkpointing.interval=50ms", "state.cache.bytes=100kb", &backend];
        let submit = |parallelism: &str, from: Option<&str>| {
            let mut flags = vec!["-p", parallelism];
            flags.extend(settings.iter().flat_map(|setting| ["-D", setting]));
            flags.extend(from.iter().flat_map(|path| ["--from-savepoint", path]));
            let arguments = if from.is_some() { &fast } else { &slow };
            cluster.submit(&flags, "nexmark", &arguments.iter().map(String::as_str).collect::<Vec<_>>())
        };
        let job = submit("2", None);
        cluster.await_checkpoints(&job, 3);
        let savepoint = stop(&cluster, &[], &savepoints, &job);
        assert_eq!(sorted_rows(&scene.path("out")).len(), 0, "{query}, {backend}");
        cluster.await_state(&submit("3", Some(&savepoint)), "FINISHED");
        scene.check(query);
        fs::remove_dir_all(scene.path("out")).expect("removable");

        let job = submit("1", None);
        cluster.await_checkpoints(&job, 3);
        let savepoint = stop(&cluster, &["--drain"], &savepoints, &job);
        let rows = sorted_rows(&scene.path("out"));
        assert!(!rows.is_empty() && answers_a_prefix(query, &events, &rows), "{query}, {backend}: {}", rows.len());
        // Event time has ended: what goes on from there finds nothing to do.
        cluster.await_state(&submit("1", Some(&savepoint)), "FINISHED");
        assert!(sorted_rows(&scene.path("out")) == rows, "{query}, {backend}");
        fs::remove_dir_all(scene.path("out")).expect("removable");
    }
}

#[test]
fn a_process_that_is_killed_at_the_end_of_event_time_takes_state_once() {
    let scene = Scene::new();
    for backend in ["hashmap", "disk"] {
        let backend = format!("state.backend.type={backend}");
        let flags = ["-D", &backend, "-D", "state.cache.bytes=100kb"];
        // Two sources have ended and an operator has emitted all; all is in the last checkpoint.
        for failpoint in ["task.end-of-data=kill@3", "sink.commit.renamed=kill@1"] {
            let arguments = scene.query("q18");
            let killed = scene.submit(&flags, "nexmark", &arguments, Some(failpoint));
            assert_eq!(killed.status.code(), None, "{failpoint}: {}", describe(&killed));
            let done = scene.submit(&flags, "nexmark", &arguments, None);
            assert!(done.status.success(), "{failpoint}: {}", describe(&done));
            scene.check("q18");
            fs::remove_dir_all(scene.path("out")).expect("removable");
            fs::remove_dir_all(scene.path("state")).expect("removable");
        }
    }
}

#[test]
fn failpoints_do_nothing_unless_they_are_asked_for() {
    let scene = Scene::new();
    let plugin = plugin("nexmark");
    let arguments = scene.query("q2");
    let program: Vec<_> = arguments.iter().map(String::as_str).collect();
    let submit = |flags: &[&str], failpoints: &str| {
        let arguments = [&["submit"], flags, &[text(&plugin)], &program[..]].concat();
        engine().args(arguments).env("ENGINE_FAILPOINTS", failpoints).output().expect("the engine starts")
    };
    let done = submit(&[], "source.opened=kill");
    assert!(done.status.success(), "{}", describe(&done));
    scene.check("q2");
    let refused = submit(&["--failpoints"], "source.opend=kill");
    check_failure(&refused, 2, &["there is no failpoint \"source.opend\", did you mean \"source.opened\"?"]);
}
