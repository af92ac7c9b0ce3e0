//! Nexmark queries against the answers of another engine: Apache Flink 2.3.0 SQL
//! in batch mode over the same 100,000 events.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use engine_tests::{
    nexmark::{answer, parse},
    sha256, sorted_rows, submit, text,
};
use flate2::{Compression, write::GzEncoder};

pub const EVENTS: u64 = 100_000;
/// SHA-256 of the input.
const INPUT: &str = "8d932804c2bc9de75a72d50b9df53b31ffdbbf7af72d05a7e4d401fed5fcb0cc";
/// Query, number of rows, SHA-256 of the sorted rows.
pub const ANSWERS: [(&str, usize, &str); 16] = [
    ("q0", 92_000, "8fb1231d6d833bda8cce6acbcc2a27c445e8cd4721083a2fbdb9cf5cb5d6d0a6"),
    ("q1", 92_000, "b8ef04533df90c271cf01f6e33ff57bf9d839faca96eac816c985fb082b73fd7"),
    ("q2", 366, "a91d668ca0893ec9aeca1237e6fe6d543fefe23da35133de76853a0d93ccf86b"),
    ("q3", 671, "79cd079da3d3935d8f686fb554521f67fe25d14a5d90548d1b6a6a315a352d3e"),
    ("q4", 5, "1d9ac02bd9aeb2a7109a0a4433a4d6cc3cf57b5459f90ac4d26537ae47264aa5"),
    ("q5", 54, "8be930ee1dfb70e9f3fbf532139c1314300de6faab8876ceaf1565dca6035429"),
    ("q7", 10, "a2af77b7c2f9c3bc4d643f4eff24ec528732c59432d8ab822ebd42727e2e6150"),
    ("q8", 302, "1934b6381ce23b8e416988c54bdbb4ac2a4a7096ef3f58df5468651a227569c1"),
    ("q9", 5_573, "247cea00bdd37dc0e87082d17ce8f9263fe90959659d06b04fa83b77cd07cbeb"),
    ("q11", 2_906, "65d015cc46929d6822a3fb181897fb95a75dbd4f497c787a34719b7281f30e43"),
    ("q15", 1, "8cef7fcd763e614e1732905a04e8871e6764e65df971134531fc89b8ce1364aa"),
    ("q17", 6_000, "6e3618173be72a2fd1e90146ba157ae5ec4a95f0b77176dc6a6dfe1e3a6ef367"),
    ("q18", 28_380, "59b8f9140b252e83259d296889b9009cb2c8b7b0022be9fc5b18b9bfcc79a824"),
    ("q19", 43_964, "1571b6e36d0a2b558308a47dfa1f6dfcffe60724f7062641cc7ce5c4d8d9dece"),
    ("q20", 14_893, "f56f4c89e5334ec37f21605918645f242e41d9d69bfdeb0120d1dcb793a91a8b"),
    ("q22", 92_000, "b120b69da87022a60a7da03df59036e5ccbf793d40d67f163abcc68c7ac76f65"),
];
/// Those that look at each bid alone: enough to check how input is read.
pub const STATELESS: [&str; 4] = ["q0", "q1", "q2", "q22"];
/// Events may come this much behind others, in milliseconds; less than the plugin allows.
const DISORDER: u64 = 3_900;

fn events() -> &'static [u8] {
    static EVENTS_TEXT: OnceLock<Vec<u8>> = OnceLock::new();
    EVENTS_TEXT.get_or_init(|| {
        let mut text = Vec::new();
        engine_benches::write_nexmark(0..EVENTS, &mut text).expect("writing to memory does not fail");
        assert_eq!(sha256(std::slice::from_ref(&text)), INPUT);
        text
    })
}

/// Checks every query on `input` at parallelism 1 to 4.
#[track_caller]
fn check(directory: &Path, input: &Path) {
    for (query, count, digest) in ANSWERS {
        check_query((query, count, digest), directory, input);
    }
}

/// Checks the queries without state.
#[track_caller]
fn check_stateless(directory: &Path, input: &Path) {
    for (query, count, digest) in ANSWERS.into_iter().filter(|(query, ..)| STATELESS.contains(query)) {
        check_query((query, count, digest), directory, input);
    }
}

#[track_caller]
fn check_query((query, count, digest): (&str, usize, &str), directory: &Path, input: &Path) {
    for parallelism in 1..=4 {
        let output = directory.join(format!("{query}-{parallelism}"));
        submit(parallelism, "nexmark", &["--query", query, "--input", text(input), "--output", text(&output)]);
        let rows = sorted_rows(&output);
        assert_eq!((rows.len(), sha256(&rows).as_str()), (count, digest), "{query} at parallelism {parallelism}");
    }
}

fn lines() -> Vec<&'static [u8]> {
    events().split_inclusive(|byte| *byte == b'\n').collect()
}

/// A generator of random numbers (SplitMix64): the same in each run.
fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}

#[test]
fn answers_from_one_file() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("events.ndjson");
    fs::write(&input, events()).expect("writable");
    check(directory.path(), &input);
}

/// Writes the events into ten files in `directory`, each as `write` does.
fn ten_parts(directory: &Path, extension: &str, write: impl Fn(&[u8]) -> Vec<u8>) -> PathBuf {
    let lines = lines();
    for (index, part) in lines.chunks(lines.len().div_ceil(10)).enumerate() {
        let path = directory.join(format!("events-{index}.{extension}"));
        fs::write(path, write(&part.concat())).expect("writable");
    }
    directory.join(format!("events-*.{extension}"))
}

#[test]
fn answers_from_a_glob_of_ten() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let glob = ten_parts(directory.path(), "ndjson", <[u8]>::to_vec);
    check(directory.path(), &glob);
}

/// Each file covers all of the time.
#[test]
fn answers_from_ten_files_with_lines_dealt_at_random() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut files = vec![Vec::new(); 10];
    let mut random = random(1);
    for line in lines() {
        let file = usize::try_from(random() % 10).expect("it is small");
        files[file].extend_from_slice(line);
    }
    for (index, file) in files.iter().enumerate() {
        fs::write(directory.path().join(format!("events-{index}.ndjson")), file).expect("writable");
    }
    check(directory.path(), &directory.path().join("events-*.ndjson"));
}

#[test]
fn answers_from_events_out_of_order() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (lines, mut random) = (lines(), random(2));
    let mut order: Vec<_> = parse(events())
        .iter()
        .enumerate()
        .map(|(index, event)| (event.timestamp() + random() % DISORDER, index))
        .collect();
    order.sort_unstable();
    let disordered: Vec<_> = order.iter().map(|(_, index)| lines[*index]).collect();
    let input = directory.path().join("events.ndjson");
    fs::write(&input, disordered.concat()).expect("writable");
    check(directory.path(), &input);
}

#[test]
fn answers_from_gzip() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let glob = ten_parts(directory.path(), "ndjson.gz", |part| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(part).expect("writing to memory does not fail");
        encoder.finish().expect("writing to memory does not fail")
    });
    check_stateless(directory.path(), &glob);
}

#[test]
fn answers_from_zstandard() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("events.ndjson.zst");
    fs::write(&input, zstd::encode_all(events(), 1).expect("writing to memory does not fail")).expect("writable");
    check_stateless(directory.path(), &input);
}

/// The model serves where there are no answers of another engine: for other events.
#[test]
fn the_model_has_the_same_answers() {
    let events = parse(events());
    for (query, count, digest) in ANSWERS {
        let rows = answer(query, &events);
        assert_eq!((rows.len(), sha256(&rows).as_str()), (count, digest), "{query}");
    }
}
