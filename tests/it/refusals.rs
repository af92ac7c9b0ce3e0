//! What bad input gets: one line that says what, where and what to do, the right
//! exit code, and nothing half-written.

use std::{fs, process::Command};

use engine_tests::{Cluster, check_failure, describe, plugin, run, text};

/// Runs `engine ARGUMENTS`, which must end with `code` and a message that has all `parts`.
#[track_caller]
fn check(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = run(arguments);
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{}", describe(&output));
    for part in parts {
        assert!(message.contains(part), "the message lacks {part:?}: {}", describe(&output));
    }
    assert!(!message.contains("panicked at engine"), "{}", describe(&output));
}

#[test]
fn unknown_things_are_refused_with_the_nearest_name() {
    let nexmark = plugin("nexmark");
    let nexmark = nexmark.to_str().expect("UTF-8");
    check(&["submitt"], 2, &["submit"]);
    check(&["submit", "--paralelism", "2", nexmark], 2, &["--parallelism"]);
    check(&["submit", "-D", "paralelism.default=2", nexmark], 2, &["paralelism.default", "parallelism.default"]);
    check(&["submit", nexmark, "--query", "q99", "--events", "10"], 2, &["q99"]);
    check(&["submit", "no-such-plugin.wasm"], 2, &["no-such-plugin.wasm"]);
}

/// With `--output json`, a refusal is an object too, with a code that scripts may rely on.
#[test]
fn a_script_reads_why_a_plugin_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let not_wasm = directory.path().join("words.wasm");
    fs::write(&not_wasm, "#!/bin/sh").expect("writable");
    let nexmark = plugin("nexmark");
    let cluster = Cluster::start(&[]);
    let on_cluster = ["--jobmanager", cluster.url.as_str(), "--detached"];
    let word_count = plugin("word_count");
    let [output, input] = ["out", "missing.txt"].map(|name| directory.path().join(name));
    let cases: [(&[&str], &[&str], Option<&str>); 4] = [
        (&[], &[text(&not_wasm)], Some("not-a-component")),
        (&[], &[text(&nexmark), "--query", "q99"], Some("user-error")),
        (&[], &["missing.wasm"], None),
        (&on_cluster, &[text(&word_count), "--input", text(&input), "--output", text(&output)], None),
    ];
    for (options, arguments, code) in cases {
        let refused = run(&[&["submit", "--output", "json"], options, arguments].concat());
        let line = check_failure(&refused, 2, &[]);
        let answer: serde_json::Value = serde_json::from_slice(&refused.stdout).expect("JSON");
        assert_eq!(answer["code"].as_str(), code, "{answer}");
        assert_eq!(answer["error"].as_str(), line.strip_prefix("error: "), "{answer}");
    }
}

/// Like mistakes have like exit codes, with and without a JobManager: what can be
/// known before the job runs is bad usage.
#[test]
fn what_cannot_be_read_or_written_is_refused_before_the_job_runs() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = |name: &str| text(&directory.path().join(name)).to_owned();
    for name in ["words.txt", "used/mine"] {
        let file = directory.path().join(name);
        fs::create_dir_all(file.parent().expect("within the directory")).expect("writable");
        fs::write(file, "a\n").expect("writable");
    }
    let made = Command::new("mkfifo").arg(path("fifo")).status().expect("there is mkfifo");
    assert!(made.success());
    let root = text(directory.path());
    let cluster = Cluster::start(&["--allow-read", root, "--allow-write", root]);
    let (word_count, words, new) = (plugin("word_count"), path("words.txt"), path("new"));
    let cases = [
        (path("missing.txt"), new.clone(), "missing.txt"),
        (path("*.log"), new.clone(), "the pattern matches no file"),
        (path("fifo"), new.clone(), "it is neither a file nor a directory"),
        (words.clone(), path("used"), "not empty"),
        (words.clone(), words.clone() + "/below", "words.txt"),
        (words.clone(), path("used/mine"), "used/mine"),
    ];
    for (input, output, problem) in &cases {
        for site in [&["--jobmanager", cluster.url.as_str()][..], &[]] {
            let program = [text(&word_count), "--input", input, "--output", output];
            let refused = run(&[&["submit"], site, &program[..]].concat());
            check_failure(&refused, 2, &[problem]);
        }
    }
    let program = [text(&word_count), "--input", &words, "--output", &new];
    let policy = ["submit", "-D", "execution.row-errors.policy=dead-letter"];
    check_failure(&run(&[&policy[..], &program[..]].concat()), 2, &["execution.row-errors.dead-letter.dir"]);
    let letters = format!("execution.row-errors.dead-letter.dir={words}");
    check_failure(&run(&[&policy[..], &["-D", &letters], &program[..]].concat()), 2, &["words.txt"]);
    assert!(!directory.path().join("new").exists());
    assert_eq!(cluster.get("/jobs")["jobs"], serde_json::json!([]), "a job was run");
}

#[test]
fn a_missing_input_names_the_file() {
    let word_count = plugin("word_count");
    let word_count = word_count.to_str().expect("UTF-8");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let missing = directory.path().join("missing.txt");
    let output = directory.path().join("out");
    let arguments = ["submit", word_count, "--input", missing.to_str().expect("UTF-8"), "--output"];
    check(&[&arguments[..], &[output.to_str().expect("UTF-8")]].concat(), 2, &["missing.txt"]);
    assert!(!output.exists() || fs::read_dir(&output).expect("readable").next().is_none());
}

#[test]
fn an_output_directory_in_use_is_left_as_it_is() {
    let word_count = plugin("word_count");
    let word_count = word_count.to_str().expect("UTF-8");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("words.txt");
    fs::write(&input, "a\n").expect("writable");
    let output = directory.path().join("out");
    fs::create_dir(&output).expect("writable");
    fs::write(output.join("mine"), "precious").expect("writable");
    let arguments =
        ["submit", word_count, "--input", input.to_str().expect("UTF-8"), "--output", output.to_str().expect("UTF-8")];
    check(&arguments, 2, &["not empty", "out"]);
    assert_eq!(fs::read_to_string(output.join("mine")).expect("still there"), "precious");
    assert_eq!(fs::read_dir(&output).expect("readable").count(), 1);
}

#[test]
fn what_is_no_plugin_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("text.wasm");
    fs::write(&file, "not a plugin").expect("writable");
    check(&["submit", file.to_str().expect("UTF-8")], 2, &["text.wasm"]);
}

#[test]
fn two_sinks_cannot_have_one_directory() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (topology, output) = (plugin("test_topology"), text(directory.path()).to_owned() + "/out");
    let program = ["--output", &output, "--one-directory"];
    let refused = run(&[&["submit", "--allow-write", &output, text(&topology)], &program[..]].concat());
    check_failure(&refused, 2, &["operator \"", "writes into", "a directory of its own"]);
    assert!(!directory.path().join("out").exists());
}

#[test]
fn a_path_to_read_that_is_not_there_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (word_count, output) = (plugin("word_count"), directory.path().join("out"));
    let missing = text(&directory.path().join("*.log")).to_owned();
    let program = [text(&word_count), "--stdin", "--output", text(&output)];
    let refused = run(&[&["submit", "--allow-read", &missing], &program[..]].concat());
    check_failure(&refused, 2, &[&format!("--allow-read {missing}"), "No such file or directory"]);
}
