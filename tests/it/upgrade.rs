//! A running job is taken over by another version of its plugin.

use std::{
    fs,
    io::{BufRead, BufReader, Lines},
    path::PathBuf,
    process::{Child, ChildStderr, Command, Stdio},
};

use engine_tests::{
    Cluster, check_failure, describe, engine,
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
        Self::with_input(false)
    }

    /// Starts version 1, which reads the events from an artifact, if it is to.
    fn with_input(is_artifact: bool) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut events = Vec::new();
        engine_benches::write_nexmark(0..EVENTS, &mut events).expect("writing to memory does not fail");
        let input = directory.path().join("events");
        fs::write(&input, &events).expect("writable");
        let root = text(directory.path());
        let cluster = Cluster::start(&["--slots", "8", "--allow-read", root, "--allow-write", root]);
        let output = directory.path().join("out");
        let artifact = format!("events={}", text(&input));
        let (path, artifact) = match is_artifact {
            true => ("artifact:events", &["--artifact", artifact.as_str()][..]),
            false => (text(&input), &[][..]),
        };
        let arguments = ["--version", "1", "--input", path, "--output", text(&output), "--rate", RATE];
        let flags = [&["-p", "2"][..], &INTERVAL, artifact].concat();
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
        let input = self.path("events");
        self.upgrade_with_input(text(&input), flags, version)
    }

    fn upgrade_with_input(&self, input: &str, flags: &[&str], version: &str) -> std::process::Output {
        let new = self.path("new.wasm");
        let [output, savepoints] = ["out", "savepoints"].map(|name| self.path(name));
        let command = ["upgrade", "-m", &self.cluster.url, "--savepoint", text(&savepoints)];
        let program = [&self.job, text(&new), "--version", version, "--input", input, "--output", text(&output)];
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
    let ended = scene.cluster.await_state(&successor, "FINISHED");
    assert_eq!(ended["name"], "test_upgrade", "the name stays, though the new plugin is called new.wasm");
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
fn versions_with_other_arguments_are_compared() {
    let plugin = plugin("test_upgrade");
    let check = |old: &[&str], version: &str| {
        let command =
            [&["check", "--upgrade-from", text(&plugin)], old, &[text(&plugin), "--version", version]].concat();
        run(&[&command[..], &["--input", "in", "--output", "out"]].concat())
    };
    // The old one is planned with the same arguments, or with its own.
    assert!(check(&[], "other-key").status.success());
    let old = ["--old-args", "--version 1 --input 'i n' --output=out"];
    let told = check(&old, "other-key");
    assert_eq!(told.status.code(), Some(1), "{}", describe(&told));
    assert!(String::from_utf8_lossy(&told.stdout).contains("its key was i64 and is string"), "{}", describe(&told));
    assert!(check(&old, "2").status.success());
    check_failure(&check(&["--old-args", "--version 9"], "2"), 2, &["the old version cannot be planned", "--old-args"]);
    check_failure(&check(&["--old-args", "'--version"], "2"), 2, &["open quote"]);
}

#[test]
fn operators_that_move_lose_what_their_source_and_sink_keep() {
    let compared = |old: &str, new: &str, flags: &[&str]| {
        let (old, new) = (plugin(old), plugin(new));
        let program = [text(&new), "--input", "in", "--output", "out"];
        run(&[&["check"], flags, &[text(&old)], &program].concat())
    };
    // One has uids, the other has not.
    for (old, new) in [("running_counts", "word_count"), ("word_count", "running_counts")] {
        let told = compared(old, new, &[]);
        assert_eq!(told.status.code(), Some(1), "{}", describe(&told));
        let text = String::from_utf8_lossy(&told.stdout);
        let (_, lost) = text.split_once("Is lost:\n").expect("something is lost");
        let (lost, _) = lost.split_once("\n\n").expect("and something is new");
        for kept in ["its positions in the input", "its state", "its rows that are not visible yet"] {
            assert!(lost.contains(&format!("{kept} would be lost")), "{text}");
        }
        assert_eq!(lost.lines().count(), 3, "{text}");
        assert!(compared(old, new, &["--allow-non-restored-state"]).status.success());
        let same = compared(old, old, &[]);
        assert!(same.status.success() && !describe(&same).contains("Is lost"), "{}", describe(&same));
    }
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
fn artifacts_go_over_to_the_new_version_and_back_to_the_old_one() {
    for version in ["2", "trap"] {
        let scene = Scene::with_input(true);
        // The job has the file.
        fs::rename(scene.path("events"), scene.path("moved")).expect("writable");
        fs::copy(plugin("test_upgrade"), scene.path("new.wasm")).expect("writable");
        let done = scene.upgrade_with_input("artifact:events", &[], version);
        let told = if version == "trap" {
            check_failure(&done, 1, &["this version is broken", "the old version goes on from the savepoint"])
        } else {
            assert!(done.status.success(), "{}", describe(&done));
            String::from_utf8_lossy(&done.stdout).into_owned()
        };
        let said = String::from_utf8_lossy(&done.stderr);
        let kept = said.split("--artifact events=").nth(1).and_then(|rest| rest.split(' ').next()).expect("it is said");
        assert_eq!(fs::read(kept).expect("it was kept"), scene.events);
        scene.cluster.await_state(&scene.job_in(&told), "FINISHED");
        scene.check();
    }
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
        ("no-window", &[], "the new program has no such operator, and its state would be lost"),
        (
            "new-ids",
            &[],
            "(uid events): the new program has no such operator, and its positions in the input would be lost",
        ),
        (
            "new-ids",
            &["--dry-run"],
            "(uid rows): the new program has no such operator, and its rows that are not visible",
        ),
        ("other-key", &["--allow-non-restored-state"], "its key was i64 and is string"),
    ] {
        let refused = scene.upgrade(flags, version);
        assert_eq!(refused.status.code(), Some(1), "{}", describe(&refused));
        let told = String::from_utf8_lossy(&refused.stdout);
        assert!(told.contains(expected), "{}", describe(&refused));
        assert!(String::from_utf8_lossy(&refused.stderr).contains("was not touched"), "{}", describe(&refused));
    }
    let allowed = scene.upgrade(&["--dry-run", "--allow-non-restored-state"], "new-ids");
    assert!(allowed.status.success(), "{}", describe(&allowed));
    let shown = scene.upgrade(&["--dry-run"], "2");
    assert!(shown.status.success(), "{}", describe(&shown));
    let answer = scene.cluster.get(&format!("/jobs/{}", scene.job));
    assert!(answer["state"] == "RUNNING" || answer["state"] == "FINISHED", "{answer}");
    assert_eq!(scene.cluster.get("/jobs")["jobs"].as_array().map(Vec::len), Some(1), "another job was started");
}

#[test]
fn an_upgrade_without_a_directory_for_its_savepoint_leaves_the_job_alone() {
    let scene = Scene::new();
    let new = scene.path("new.wasm");
    fs::copy(plugin("test_upgrade"), &new).expect("writable");
    let elsewhere = tempfile::tempdir().expect("a temporary directory");
    for (flags, expected) in [
        (&[][..], "there is no directory for the savepoint: give one with --savepoint DIR"),
        (&["--savepoint", text(elsewhere.path())], "may not be written to"),
    ] {
        // With the arguments of the job.
        let refused = run(&[&["upgrade", "-m", &scene.cluster.url], flags, &[&scene.job, text(&new)]].concat());
        let told = check_failure(&refused, 2, &[expected, "was not touched"]);
        assert!(!told.contains("about to be stopped"), "{told}");
    }
    assert_eq!(scene.cluster.get("/jobs")["jobs"].as_array().map(Vec::len), Some(1), "another job was started");
    let names =
        fs::read_dir(scene.directory.path()).expect("readable").map(|entry| entry.expect("readable").file_name());
    let kept: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("test_upgrade-")).collect();
    assert!(kept.is_empty(), "{kept:?}");
    scene.cluster.await_state(&scene.job, "FINISHED");
    scene.check();
}

/// Interrupts a process, as Ctrl-C does.
fn interrupt(process: &Child) {
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", process.id())]).status();
    assert!(sent.expect("there is a shell").success());
}

/// Reads what a process says, up to a line with `part`; returns all of it.
fn read_until(lines: &mut impl Iterator<Item = std::io::Result<String>>, part: &str) -> String {
    let mut said = String::new();
    for line in lines {
        let line = line.expect("text");
        let is_last = line.contains(part);
        said.push_str(&line);
        said.push('\n');
        if is_last {
            return said;
        }
    }
    panic!("{part:?} was not said, but {said}");
}

/// An upgrade whose new version needs more slots than another job leaves, and what it says.
fn upgrade_without_slots(scene: &Scene) -> (Child, Lines<BufReader<ChildStderr>>) {
    let new = scene.path("new.wasm");
    fs::copy(plugin("test_upgrade"), &new).expect("writable");
    let [input, output, savepoints, aside] = ["events", "out", "savepoints", "aside"].map(|name| scene.path(name));
    let other = ["--version", "1", "--input", text(&input), "--output", text(&aside), "--rate", "50"];
    let other = scene.cluster.submit(&["-p", "1"], "test_upgrade", &other);
    scene.cluster.await_tasks(&other);
    let mut upgrade = engine()
        .args(["upgrade", "-m", &scene.cluster.url, "--savepoint", text(&savepoints)])
        // There are eight, and the other job has one.
        .args(["-p", "8", &scene.job, text(&new), "--version", "2"])
        .args(["--input", text(&input), "--output", text(&output), "--rate", RATE])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let lines = BufReader::new(upgrade.stderr.take().expect("it is piped")).lines();
    (upgrade, lines)
}

#[test]
fn an_upgrade_that_waits_for_slots_says_so_and_gives_way_when_it_is_interrupted() {
    let scene = Scene::new();
    let (mut upgrade, mut lines) = upgrade_without_slots(&scene);
    let said = read_until(&mut lines, "waiting for 8 slots, 7 are available: ");
    // The command that starts the old version again came before the job was touched, and with the savepoint after.
    let kept = said.split("its plugin ").nth(1).and_then(|rest| rest.split(';').next()).expect("it is said");
    for savepoint in ["SAVEPOINT".to_owned(), format!("{}/savepoint-", text(&scene.path("savepoints")))] {
        let command = format!("engine submit -m {} --detached --from-savepoint {savepoint}", scene.cluster.url);
        assert!(said.contains(&command), "{said}");
    }
    assert!(said.contains(&format!("{kept} --version 1 --input {}", text(&scene.path("events")))), "{said}");
    interrupt(&upgrade);
    let said = read_until(&mut lines, "goes on from the savepoint as job ");
    assert!(said.contains("giving the upgrade up"), "{said}");
    assert_eq!(upgrade.wait().expect("it ends").code(), Some(130));
    let old_again = scene.job_in(&said);
    let ended = scene.cluster.await_state(&old_again, "FINISHED");
    assert_eq!(ended["name"], scene.cluster.get(&format!("/jobs/{}", scene.job))["name"]);
    scene.check();
}

#[test]
fn the_printed_command_starts_the_old_version_after_the_upgrade_was_killed() {
    let scene = Scene::new();
    let (mut upgrade, mut lines) = upgrade_without_slots(&scene);
    let said = read_until(&mut lines, "was submitted with JobID ");
    upgrade.kill().and_then(|()| upgrade.wait()).expect("it ends");
    // The new version has no slots, and so no checkpoint.
    let successor = scene.job_in(&said);
    assert!(run(&["cancel", "-m", &scene.cluster.url, &successor]).status.success());
    scene.cluster.await_state(&successor, "CANCELED");
    let command = said.split("it is started again by: engine ").nth(1).expect("it was said");
    let command =
        format!("{} {}", text(&engine_tests::built("release/engine")), command.lines().next().expect("a line"));
    let started = Command::new("sh").args(["-c", &command]).output().expect("there is a shell");
    assert!(started.status.success(), "{command}: {}", describe(&started));
    let old_again = String::from_utf8_lossy(&started.stdout).trim().to_owned();
    scene.cluster.await_state(&old_again, "FINISHED");
    scene.check();
}

#[test]
fn a_check_names_operators_whose_state_has_no_uid() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let [input, output] = ["in", "out"].map(|name| directory.path().join(name));
    std::fs::write(&input, "to be\n").expect("writable");
    let check = |name: &str| {
        let program = ["--input", text(&input), "--output", text(&output)];
        let checked = run(&[&["check", text(&plugin(name))], &program[..]].concat());
        assert!(checked.status.success(), "{}", describe(&checked));
        String::from_utf8_lossy(&checked.stdout).into_owned()
    };
    let told = check("running_counts");
    assert!(
        told.contains("have state and no uid") && told.contains(": Source: File, Keyed Count, Sink: File; "),
        "{told}"
    );
    let told = check("word_count");
    assert!(told.trim_end().ends_with("can run: 4 operators"), "{told}");
}
