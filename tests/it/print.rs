//! Rows that are printed, and a reader of them that pauses.

use std::{
    fmt::Write as _,
    fs,
    io::Read,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use engine_tests::{engine, plugin, text};

/// A job that prints far more than a pipe holds.
const LINES: usize = 100_000;

fn print_into_a_pipe(directory: &tempfile::TempDir) -> std::process::Child {
    let input = directory.path().join("words");
    let content = (0..LINES).fold(String::new(), |mut content, line| {
        writeln!(content, "w{}", line % 10).expect("writing to a string does not fail");
        content
    });
    fs::write(&input, content).expect("writable");
    engine()
        .args(["submit", "-p", "2", text(&plugin("word_count")), "--updates", "--input", text(&input)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the engine starts")
}

#[test]
fn a_job_whose_rows_nobody_reads_can_be_cancelled() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut job = print_into_a_pipe(&directory);
    let mut rows = job.stdout.take().expect("it is piped");
    // It prints, and nobody reads on.
    rows.read_exact(&mut [0; 1]).expect("a row");
    std::thread::park_timeout(Duration::from_millis(500));
    let begun = Instant::now();
    let sent = Command::new("sh").args(["-c", &format!("kill -INT {}", job.id())]).status();
    assert!(sent.expect("there is a shell").success());
    let code = loop {
        if let Some(status) = job.try_wait().expect("it can be asked") {
            break status.code();
        }
        if Duration::from_secs(5) < begun.elapsed() {
            job.kill().expect("it runs");
            panic!("it has not ended");
        }
        std::thread::yield_now();
    };
    assert_eq!(code, Some(1), "a job that was cancelled");
}

#[test]
fn a_reader_that_pauses_gets_all_rows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut job = print_into_a_pipe(&directory);
    let mut rows = job.stdout.take().expect("it is piped");
    std::thread::park_timeout(Duration::from_millis(1500));
    let mut read = String::new();
    rows.read_to_string(&mut read).expect("text");
    assert!(job.wait().expect("it ends").success());
    assert_eq!(read.lines().count(), LINES);
    for word in 0..10 {
        // Each count of a word is one more than the one before.
        let mark = format!("w{word},");
        let counts =
            read.lines().filter_map(|line| line.split_once("> ").map_or(line, |(_, row)| row).strip_prefix(&mark));
        let counts: Vec<usize> = counts.map(|count| count.parse().expect("a number")).collect();
        assert!(counts.iter().copied().eq(1..=LINES / 10), "{mark}");
    }
}
