//! Event time in whole jobs: however a stream is cut into files and read, no record is late.

use std::{fs, path::Path};

use engine_tests::{describe, plugin, text};

const RECORDS: usize = 60_000;
/// A record comes at most this much, in milliseconds, behind a later one.
const DISORDER: u64 = 4000;

/// Numbers that look random and are the same each time.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn stream() -> Vec<u64> {
    let mut state = 1;
    let mut time = 1_700_000_000_000;
    let mut record = || {
        time += random(&mut state) % 200;
        time - random(&mut state) % (DISORDER + 1)
    };
    (0..RECORDS).map(|_| record()).collect()
}

/// Writes the records into files, each into the one that `file_of` names by its number.
fn write(directory: &Path, stream: &[u64], files: usize, mut file_of: impl FnMut(usize) -> usize) {
    let mut contents = vec![String::new(); files];
    for (index, time) in stream.iter().enumerate() {
        contents[file_of(index)].push_str(&format!("{time}\n"));
    }
    fs::create_dir(directory).expect("writable");
    for (index, content) in contents.into_iter().enumerate() {
        fs::write(directory.join(format!("part-{index:02}")), content).expect("writable");
    }
}

/// Runs the job; returns the times that were read, sorted, how many records were late, and how
/// many different watermarks there were.
fn run(input: &Path, output: &Path, parallelism: u32, options: &[&str]) -> (Vec<u64>, usize, usize) {
    let (input, output_text) = (format!("{}/*", text(input)), text(output));
    let plugin = engine_tests::plugin("test_event_time");
    let parallelism = parallelism.to_string();
    let arguments = [
        &["submit", "-p", &parallelism, "-D", "pipeline.auto-watermark-interval=1 ms", "-D"][..],
        &["execution.buffer-timeout.interval=1 ms"],
        &[text(&plugin), "--input", &input, "--output", output_text],
        options,
    ];
    let run = engine_tests::run(&arguments.concat());
    assert!(run.status.success(), "{}", engine_tests::describe(&run));
    let (mut times, mut late, mut watermarks) = (Vec::new(), 0, std::collections::BTreeSet::new());
    for entry in fs::read_dir(output).expect("readable") {
        let content = fs::read_to_string(entry.expect("readable").path()).expect("readable");
        for line in content.lines() {
            let (time, watermark) = line.split_once(',').expect("two values");
            let (time, watermark): (u64, i64) = (time.parse().expect("a time"), watermark.parse().expect("a time"));
            late += usize::from(i64::try_from(time).expect("a time") <= watermark);
            watermarks.insert(watermark);
            times.push(time);
        }
    }
    times.sort_unstable();
    (times, late, watermarks.len())
}

#[test]
fn no_record_is_late_however_the_stream_is_cut_into_files() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let stream = stream();
    let mut sorted = stream.clone();
    sorted.sort_unstable();
    let path = |name: &str| directory.path().join(name);
    write(&path("one"), &stream, 1, |_| 0);
    write(&path("consecutive"), &stream, 10, |index| index * 10 / RECORDS);
    let mut state = 7;
    write(&path("dealt"), &stream, 10, |_| usize::try_from(random(&mut state) % 10).expect("small"));
    for (number, (input, parallelism, options)) in [
        ("one", 1, &[][..]),
        ("one", 2, &[]),
        ("one", 3, &[]),
        ("one", 4, &[]),
        ("consecutive", 1, &[]),
        ("consecutive", 4, &[]),
        ("consecutive", 2, &["--read-order", "in-order"]),
        ("dealt", 1, &[]),
        ("dealt", 2, &[]),
        ("dealt", 3, &[]),
        ("dealt", 4, &["--read-order", "side-by-side"]),
        ("one", 2, &["--each-record"]),
        ("consecutive", 2, &["--each-record"]),
        ("dealt", 1, &["--each-record"]),
        ("dealt", 3, &["--each-record"]),
    ]
    .into_iter()
    .enumerate()
    {
        let (times, late, watermarks) = run(&path(input), &path(&number.to_string()), parallelism, options);
        assert_eq!(late, 0, "{input} at parallelism {parallelism}");
        assert!(times == sorted, "{input} at parallelism {parallelism}: {} records", times.len());
        // Event time comes forward, too; how often periodic watermarks come depends on the machine.
        let least = if options.contains(&"--each-record") { 100 } else { 1 };
        assert!(least <= watermarks, "{input} at parallelism {parallelism}: {watermarks} watermarks");
    }
    // File by file, most of the other files is late.
    let (times, late, _) = run(&path("dealt"), &path("in-order"), 1, &["--read-order", "in-order"]);
    assert!(times == sorted);
    assert!(RECORDS / 4 < late, "{late} late");
}

/// Operators that run as one segment show the watermark that they hand on, too.
#[test]
fn each_operator_shows_its_watermarks() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (plugin, output) = (plugin("nexmark"), directory.path().join("out"));
    let program = [text(&plugin), "--query", "q9", "--events", "20000", "--output", text(&output)];
    let done = engine_tests::run(&[&["submit", "--output", "json"][..], &program].concat());
    assert!(done.status.success(), "{}", describe(&done));
    let summary: serde_json::Value = serde_json::from_slice(&done.stdout).expect("JSON");
    let vertices = summary["vertices"].as_array().expect("a list").iter();
    let operators: Vec<_> = vertices.flat_map(|vertex| vertex["operators"].as_array().expect("a list")).collect();
    let watermarks = |name: &str| {
        let operator = operators.iter().find(|operator| operator["name"] == name).expect("an operator of q9");
        ["watermark-in", "watermark-out"].map(|field| operator[field].as_i64())
    };
    let end = Some(i64::MAX);
    // What is before the operator that makes watermarks hands on none that matters.
    assert_eq!(watermarks("Timestamps/Watermarks"), [None, end]);
    assert_eq!((watermarks("Keyed Process"), watermarks("Flat Map")), ([end, end], [end, end]));
    assert_eq!(watermarks("Sink: File"), [end, None]);
}
