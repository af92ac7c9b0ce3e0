//! What bad input gets: one line that says what, where and what to do, the right
//! exit code, and nothing half-written.

use std::fs;

use engine_tests::{describe, engine, plugin};

/// Runs `engine ARGUMENTS`, which must end with `code` and a message that has all `parts`.
#[track_caller]
fn check(arguments: &[&str], code: i32, parts: &[&str]) {
    let output = engine().args(arguments).output().expect("the engine starts");
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
