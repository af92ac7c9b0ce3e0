//! Rows that user code or a format refuses: each policy, counts and coordinates.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Output,
};

use engine_tests::{check_failure, describe, is_empty, plugin, run, sorted_rows, text};
use serde_json::Value;

struct Case {
    directory: tempfile::TempDir,
    /// `--lines`, `--json` or `--csv`.
    format: &'static str,
    input: PathBuf,
}

impl Case {
    fn new(format: &'static str, content: &[u8]) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let input = directory.path().join("rows.txt");
        fs::write(&input, content).expect("writable");
        Self { directory, format, input }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn submit(&self, policy: &str, output: &Path) -> Output {
        let letters = self.path("letters");
        let policy = format!("execution.row-errors.policy={policy}");
        let directory = format!("execution.row-errors.dead-letter.dir={}", text(&letters));
        let plugin = plugin("test_failing");
        let arguments = ["submit", "-p", "2", "-D", &policy, "-D", &directory, "--allow-write", text(&letters)];
        let program = [text(&plugin), self.format, text(&self.input), "--output", text(output)];
        run(&[&arguments[..], &program[..]].concat())
    }

    /// Checks all policies: `rows` are written, and `refused` are line number, message
    /// and row of what is not.
    #[track_caller]
    fn check(&self, operator: &str, rows: &[&str], refused: &[(u32, &str, &str)]) {
        let output = self.path("fail");
        let failed = self.submit("fail", &output);
        let (line, message, _) = refused[0];
        let place = format!("{} line {line}", text(&self.input));
        let operator_part = format!("operator \"{operator}\" (subtask ");
        let parts = [&operator_part, &place, message, "execution.row-errors.policy", "attempt 0"];
        check_failure(&failed, 1, &parts);
        assert!(is_empty(&output));

        for policy in ["skip", "dead-letter"] {
            let output = self.path(policy);
            let finished = self.submit(policy, &output);
            assert!(finished.status.success(), "{}", describe(&finished));
            let mut expected: Vec<Vec<u8>> = rows.iter().map(|row| format!("{row}\n").into_bytes()).collect();
            expected.sort_unstable();
            assert_eq!(sorted_rows(&output), expected, "{policy}");
            let count = format!("{} rejected rows", refused.len());
            let summary = String::from_utf8_lossy(&finished.stderr);
            assert!(summary.contains(&count), "{count}: {}", describe(&finished));
            // Of a letter the directory tells.
            let told = format!("row at {place} was skipped: ");
            let told = summary.lines().find(|line| line.contains(&told));
            assert_eq!(told.is_some_and(|line| line.contains(message)), policy == "skip", "{}", describe(&finished));
        }

        let mut letters: Vec<Value> = Vec::new();
        for entry in fs::read_dir(self.path("letters")).expect("readable") {
            let content = fs::read_to_string(entry.expect("readable").path()).expect("readable");
            letters.extend(content.lines().map(|line| serde_json::from_str(line).expect("each line is JSON")));
        }
        assert_eq!(letters.len(), refused.len());
        for (line, message, payload) in refused {
            let position = format!("{} line {line}", text(&self.input));
            let letter = letters.iter().find(|letter| letter["position"] == *position);
            let letter = letter.unwrap_or_else(|| panic!("no letter from {position}: {letters:?}"));
            assert!(letter["message"].as_str().expect("text").contains(message), "{letter}");
            assert_eq!(letter["payload"], *payload);
            assert_eq!((&letter["operator"], &letter["jobName"]), (&operator.into(), &"Failing".into()));
            assert_eq!(letter["attempt"], 0);
        }
    }
}

#[test]
fn rows_that_user_code_refuses_follow_the_policy() {
    let mut lines = String::new();
    for number in 0..1000 {
        lines.push_str(&match number {
            7 => "seven\n".to_owned(),
            500 => "\n".to_owned(),
            // The last line, without its end.
            999 => "12x".to_owned(),
            number => format!("{number}\n"),
        });
    }
    let refused = [
        (8, "\"seven\" is no number: invalid digit found in string", "seven"),
        (501, "\"\" is no number: cannot parse integer from empty string", ""),
        (1000, "\"12x\" is no number", "12x"),
    ];
    let rows: Vec<String> =
        (0..999).filter(|number| ![7, 500].contains(number)).map(|number| (2 * number).to_string()).collect();
    let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
    Case::new("--lines", lines.as_bytes()).check("Double", &rows, &refused);
}

#[test]
fn json_lines_that_do_not_fit_are_named_by_file_line_and_field() {
    let content = concat!(
        "{\"id\":1,\"name\":\"a\"}\n",
        "{\"id\":\"x\",\"name\":\"b\"}\n",
        "{\"other\":[1,{}],\"name\":\"c\",\"id\":3}\r\n",
        "{\"id\":4}\n",
        "{\"id\":-5,\"name\":\"e\"}\n",
        "not json\n",
        "{\"id\":7,\"name\":\"g\"}",
    );
    let refused = [
        (2, "column 7, field \"id\": expected u64, found a string", "{\"id\":\"x\",\"name\":\"b\"}"),
        (4, "field \"name\": the field is missing", "{\"id\":4}"),
        (5, "column 7, field \"id\": -5 is out of range for u64", "{\"id\":-5,\"name\":\"e\"}"),
        (6, "column 1: expected an object", "not json"),
    ];
    Case::new("--json", content.as_bytes()).check("Source: File", &["1 a", "3 c", "7 g"], &refused);
}

#[test]
fn csv_lines_that_do_not_fit_are_named_by_file_line_and_field() {
    let content = "1,a\nx,b\n3\n4,\"d,\"\"d\"\n18446744073709551616,e\n";
    let refused = [
        (2, "column 1, field \"id\": expected u64, a whole number from 0 to 18446744073709551615, found \"x\"", "x,b"),
        (3, "field \"name\": the column is missing", "3"),
        (5, "field \"id\": expected u64", "18446744073709551616,e"),
    ];
    Case::new("--csv", content.as_bytes()).check("Source: File", &["1 a", "4 d,\"d"], &refused);
}

#[test]
fn a_row_with_a_line_break_is_not_written_as_two_lines() {
    let content = "{\"id\":1,\"name\":\"a\"}\n{\"id\":2,\"name\":\"b\\nc\"}\n{\"id\":3,\"name\":\"d\"}\n";
    let case = Case::new("--json", content.as_bytes());
    let output = case.path("fail");
    let parts = ["operator \"Sink: File\"", "a line break at byte 4", "execution.row-errors.policy"];
    check_failure(&case.submit("fail", &output), 1, &parts);
    assert!(is_empty(&output));
    let output = case.path("dead-letter");
    let finished = case.submit("dead-letter", &output);
    assert!(finished.status.success(), "{}", describe(&finished));
    assert_eq!(sorted_rows(&output), [b"1 a\n".to_vec(), b"3 d\n".to_vec()]);
    let letters = fs::read_dir(case.path("letters")).expect("readable");
    let letters: String =
        letters.map(|entry| fs::read_to_string(entry.expect("readable").path()).expect("text")).collect();
    let letter: Value = serde_json::from_str(letters.trim_end()).expect("one letter");
    assert_eq!((&letter["payload"], &letter["operator"]), (&"2 b\nc".into(), &"Sink: File".into()));
}

#[test]
fn lines_longer_than_a_row_may_be_are_refused() {
    let content = ["1\n".to_owned(), "7".repeat(3000) + "\n", "2\n".to_owned()].concat();
    let case = Case::new("--lines", content.as_bytes());
    let submit = |policy: &str, output: &Path| {
        let policy = format!("execution.row-errors.policy={policy}");
        let limits = ["submit", "-D", "sandbox.row.bytes-max=1kb", "-D", &policy];
        run(&[&limits[..], &[text(&plugin("test_failing")), "--lines", text(&case.input), "--output", text(output)]]
            .concat())
    };
    let output = case.path("out");
    let place = format!("{} line 2", text(&case.input));
    check_failure(&submit("fail", &output), 1, &[&place, "longer than 1024 bytes (sandbox.row.bytes-max)"]);
    let finished = submit("skip", &output);
    assert!(finished.status.success(), "{}", describe(&finished));
    assert_eq!(sorted_rows(&output), [b"2\n".to_vec(), b"4\n".to_vec()]);
}
