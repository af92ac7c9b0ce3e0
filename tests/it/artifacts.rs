//! Files that are sent along with a job, and read by name.

use std::{fmt::Write as _, fs, path::Path};

use engine_tests::{Cluster, check_failure, describe, plugin, run, sorted_rows, text};

/// A file that is dealt in chunks to several subtasks, and what is counted in it.
fn words(path: &Path) -> Vec<Vec<u8>> {
    const LINES: usize = 300_000;
    let mut content = String::new();
    for line in 0..LINES {
        writeln!(content, "w{} x", line % 7).expect("writing to a string does not fail");
    }
    fs::write(path, content).expect("writable");
    let counts = (0..7).map(|word| (0..LINES).filter(|line| line % 7 == word).count());
    let mut rows: Vec<Vec<u8>> =
        counts.enumerate().map(|(word, count)| format!("w{word},{count}\n").into_bytes()).collect();
    rows.push(format!("x,{LINES}\n").into_bytes());
    rows.sort_unstable();
    rows
}

#[test]
fn several_subtasks_read_an_artifact_that_was_sent_to_a_cluster() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (file, output) = (directory.path().join("file"), directory.path().join("out"));
    let expected = words(&file);
    let cluster = Cluster::start(&["--slots", "4", "--allow-write", text(directory.path())]);
    let artifact = format!("the words={}", text(&file));
    let flags = ["-p", "3", "--artifact", &artifact];
    let job = cluster.submit(&flags, "word_count", &["--input", "artifact:the words", "--output", text(&output)]);
    fs::remove_file(&file).expect("the job has its own");
    let ended = cluster.await_state(&job, "FINISHED");
    assert_eq!(sorted_rows(&output), expected);
    let vertex = &ended["vertices"][0]["id"];
    let source = cluster.get(&format!("/jobs/{job}/vertices/{}", vertex.as_str().expect("an id")));
    let subtasks = source["subtasks"].as_array().expect("subtasks");
    let readers = subtasks.iter().filter(|subtask| subtask["metrics"]["write-records"].as_u64() > Some(0)).count();
    assert!(1 < readers, "{source}");
}

#[test]
fn a_job_without_a_job_manager_reads_its_artifact() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (file, output) = (directory.path().join("file"), directory.path().join("out"));
    let expected = words(&file);
    let artifact = format!("words={}", text(&file));
    let word_count = plugin("word_count");
    let program = [text(&word_count), "--input", "artifact:words", "--output", text(&output)];
    let done = run(&[&["submit", "-p", "2", "--artifact", &artifact], &program[..]].concat());
    assert!(done.status.success(), "{}", describe(&done));
    assert_eq!(sorted_rows(&output), expected);
}

#[test]
fn an_artifact_that_the_job_does_not_have_is_refused_with_those_that_it_has() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("file");
    fs::write(&file, "a\n").expect("writable");
    let word_count = plugin("word_count");
    let program = [text(&word_count), "--input", "artifact:c"];
    let [a, b] = ["a", "b"].map(|name| format!("{name}={}", text(&file)));
    let refused = run(&[&["submit", "--artifact", &a, "--artifact", &b], &program[..]].concat());
    check_failure(&refused, 2, &["the job has no artifact \"c\", it has a, b; submit it with --artifact c=PATH"]);
    let refused = run(&[&["submit"], &program[..]].concat());
    check_failure(&refused, 2, &["the job has no artifact \"c\", it has none; submit it with --artifact c=PATH"]);
}
