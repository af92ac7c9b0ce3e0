//! Word count against a single-threaded model.

use std::{collections::BTreeMap, fs, io::Write, process::Stdio};

use engine_tests::{describe, engine, plugin, run, sorted_rows, submit, text};

/// Rows `word,count` of a text, sorted bytewise.
pub(crate) fn model(text: &str) -> Vec<Vec<u8>> {
    let mut counts = BTreeMap::<String, u64>::new();
    for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|word| !word.is_empty()) {
        *counts.entry(word.to_ascii_lowercase()).or_default() += 1;
    }
    let mut rows: Vec<_> = counts.iter().map(|(word, count)| format!("{word},{count}\n").into_bytes()).collect();
    rows.sort_unstable();
    rows
}

#[test]
fn counts_equal_the_model_at_each_parallelism() {
    let mut lines = Vec::new();
    engine_benches::write_words(20_000, 7, &mut lines).expect("writing to memory does not fail");
    let mut lines = String::from_utf8(lines).expect("words are ASCII");
    // Unicode, empty lines, carriage returns and a last line without its end.
    lines.push_str("\n\r\nFoo_1 bär,FOO_1;\u{2003}x\r\nlast line");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("words.txt");
    fs::write(&input, &lines).expect("writable");
    let expected = model(&lines);
    for parallelism in [1, 2, 4] {
        let output = directory.path().join(format!("counts-{parallelism}"));
        submit(parallelism, "word_count", &["--input", text(&input), "--output", text(&output)]);
        assert!(sorted_rows(&output) == expected, "parallelism {parallelism} differs from the model");
    }
}

#[test]
fn standard_input_is_counted_as_a_file_is() {
    let mut lines = Vec::new();
    engine_benches::write_words(20_000, 11, &mut lines).expect("writing to memory does not fail");
    // Characters of two bytes, at odd places: a pipe is filled by pages, so that each piece ends within one.
    lines.extend_from_slice(if lines.len() % 2 == 0 { b"x" } else { b"" });
    lines.extend_from_slice(format!("{}b\n", "ä".repeat(400)).repeat(500).as_bytes());
    lines.extend_from_slice("bär last line".as_bytes());
    let expected = model(std::str::from_utf8(&lines).expect("UTF-8"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = directory.path().join("counts");
    let mut engine = engine()
        .args(["submit", "-p", "2"])
        .arg(plugin("word_count"))
        .args(["--stdin", "--output", text(&output)])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("the engine starts");
    let mut input = engine.stdin.take().expect("piped");
    input.write_all(&lines).expect("the engine reads");
    drop(input);
    assert!(engine.wait().expect("it ends").success());
    assert!(sorted_rows(&output) == expected, "the counts differ from the model");
}

#[test]
fn updates_count_up_without_a_gap() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("words.txt");
    fs::write(&input, "a b a\nc a b\n").expect("writable");
    let output = directory.path().join("updates");
    submit(2, "word_count", &["--input", text(&input), "--output", text(&output), "--updates"]);
    let expected = ["a,1\n", "a,2\n", "a,3\n", "b,1\n", "b,2\n", "c,1\n"].map(|row| row.as_bytes().to_vec());
    assert_eq!(sorted_rows(&output), expected);
}

#[test]
fn an_empty_file_gives_no_rows() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("empty.txt");
    fs::write(&input, "").expect("writable");
    let output = directory.path().join("counts");
    submit(2, "word_count", &["--input", text(&input), "--output", text(&output)]);
    assert!(sorted_rows(&output).is_empty());
}

#[test]
fn a_script_reads_json_only_even_if_rows_are_printed() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("words.txt");
    fs::write(&input, "a b a\n").expect("writable");
    let printed = run(&["submit", "--output", "json", text(&plugin("word_count")), "--input", text(&input)]);
    assert!(printed.status.success(), "{}", describe(&printed));
    let summary: serde_json::Value = serde_json::from_slice(&printed.stdout).expect("it is JSON and nothing else");
    assert_eq!((&summary["status"], &summary["failure"]), (&"FINISHED".into(), &serde_json::Value::Null));
    let rows = String::from_utf8_lossy(&printed.stderr);
    assert!(rows.lines().any(|line| line == "a,2") && rows.lines().any(|line| line == "b,1"), "{rows}");

    let printed = run(&["submit", text(&plugin("word_count")), "--input", text(&input)]);
    let rows = String::from_utf8_lossy(&printed.stdout);
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_unstable();
    assert_eq!(rows, ["a,2", "b,1"]);
}
