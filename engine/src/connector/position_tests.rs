//! Sources that go on from a checkpoint: a row that was returned before it is not read again,
//! every other one is, with any number of subtasks then.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    sync::Arc,
};

use flate2::write::GzEncoder;
use proptest::{collection, prelude::*};
use rand::{Rng, SeedableRng, rngs::StdRng};
use tempfile::TempDir;

use super::{
    tests::{Rejected, reader_context, rows_of, run, spec, text_of},
    *,
};
use crate::base::clock::Timestamp;

/// Longer lines are refused.
const ROW_BYTES_MAX: usize = 200;

/// One run of a source, up to a checkpoint or its end.
struct Epoch {
    parallelism: u32,
    /// By subtask, in the order in which it emitted them.
    rows: Vec<Vec<Vec<u8>>>,
    /// What the checkpoint holds; none: the source was read to its end.
    checkpoint: Option<RestoredSource>,
}

struct Job {
    spec: ConnectorSpec,
    record_type: &'static str,
    permissions: Arc<Permissions>,
    rejected: Rejected,
}

impl Job {
    fn reader(&self, index: u32, parallelism: u32, clock: &Clock) -> Box<dyn SourceReader> {
        let rejected = Some(Arc::clone(&self.rejected));
        let context = reader_context(index, parallelism, self.record_type, &self.permissions, clock, rejected);
        create_reader(&self.spec, ReaderContext { row_bytes_max: ROW_BYTES_MAX, ..context }).expect("valid")
    }

    /// Polls subtasks by chance, at most so many times.
    fn run(&self, parallelism: u32, restored: Option<RestoredSource>, polls: usize, random: &mut StdRng) -> Epoch {
        let clock = Clock::new_virtual(Timestamp(0));
        let permissions = Arc::clone(&self.permissions);
        let mut enumerator =
            create_enumerator(&self.spec, parallelism, self.record_type, permissions, restored).expect("restorable");
        assert!(enumerator.is_replayable() && can_replay(&self.spec.name));
        let mut readers: Vec<_> =
            (0..parallelism).map(|index| (self.reader(index, parallelism, &clock), false)).collect();
        let mut rows = vec![Vec::new(); parallelism as usize];
        for _ in 0..polls {
            if readers.iter().all(|(_, ended)| *ended) {
                return Epoch { parallelism, rows, checkpoint: None };
            }
            let index = random.random_range(0..parallelism);
            let (reader, ended) = &mut readers[index as usize];
            if *ended {
                continue;
            }
            match reader.poll(random.random_range(1..2000)).expect("readable") {
                ReaderOutput::Records(batch) => rows[index as usize].extend(rows_of(&batch)),
                ReaderOutput::Idle(pause) => clock.advance(pause + Duration::from_millis(random.random_range(0..9))),
                ReaderOutput::End => *ended = true,
                ReaderOutput::NeedSplit => match enumerator.next_split(index).expect("listed") {
                    SplitAssignment::Split(split) => reader.add_split(split).expect("it is there"),
                    SplitAssignment::NoMoreSplits => *ended = true,
                    SplitAssignment::Wait(_) => panic!("the source ends"),
                },
            }
        }
        let mut splits = Vec::new();
        for (index, (reader, ended)) in (0..).zip(&mut readers) {
            let left = reader.snapshot();
            assert!(!*ended || left.is_empty(), "a reader that has ended has nothing left");
            assert_eq!(reader.snapshot(), left, "a snapshot changes nothing");
            splits.extend(left.into_iter().map(|split| (index, split)));
        }
        Epoch { parallelism, rows, checkpoint: Some(RestoredSource { enumerator: enumerator.snapshot(), splits }) }
    }

    /// Runs with so many subtasks up to one checkpoint after the other, and then to the end.
    fn run_through(&self, epochs: &[(u32, usize)], seed: u64) -> Vec<Epoch> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut restored = None;
        let mut done = Vec::new();
        let to_the_end = epochs.last().map(|(parallelism, _)| (*parallelism, usize::MAX));
        for (parallelism, polls) in epochs.iter().copied().chain(to_the_end) {
            let epoch = self.run(parallelism, restored, polls, &mut random);
            restored = epoch.checkpoint.clone();
            let has_ended = restored.is_none();
            done.push(epoch);
            if has_ended {
                break;
            }
        }
        done
    }
}

fn sorted(epochs: &[Epoch]) -> Vec<Vec<u8>> {
    let mut rows: Vec<_> = epochs.iter().flat_map(|epoch| epoch.rows.iter().flatten().cloned()).collect();
    rows.sort();
    rows
}

/// Checks that each subtask emits ascending rows, and goes on where it stood if the parallelism stays.
fn check_order(epochs: &[Epoch], place: &BTreeMap<Vec<u8>, usize>) {
    let mut last: Vec<Option<usize>> = Vec::new();
    let mut parallelism = 0;
    for epoch in epochs {
        if epoch.parallelism != parallelism {
            parallelism = epoch.parallelism;
            last = vec![None; parallelism as usize];
        }
        for (last, rows) in last.iter_mut().zip(&epoch.rows) {
            for row in rows {
                let place = Some(place[row]);
                assert!(*last < place, "{place:?} comes behind {last:?}");
                *last = place;
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Packing {
    Plain,
    Gzip,
    Zstd,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Text {
    Lines,
    Json,
    Csv,
    CsvWithHeader,
}

/// What a line of a file is.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// A row with so many bytes beside its name.
    Row(usize),
    Blank,
    /// Refused.
    NotUtf8,
    /// Refused.
    TooLong(usize),
}

fn line() -> impl Strategy<Value = Line> {
    prop_oneof![
        20 => (0_usize..60).prop_map(Line::Row),
        1 => Just(Line::Blank),
        1 => Just(Line::NotUtf8),
        1 => prop_oneof![Just(300_usize), Just(9000)].prop_map(Line::TooLong),
    ]
}

fn content(file: usize, lines: &[Line], text: Text, has_mark: bool, random: &mut StdRng) -> Vec<u8> {
    let mut content = Vec::new();
    if has_mark && text != Text::Lines {
        content.extend_from_slice("\u{feff}".as_bytes());
    }
    if text == Text::CsvWithHeader {
        content.extend_from_slice(b"other,name\r\n");
    }
    for (number, line) in lines.iter().enumerate() {
        let name = format!("{file:03}-{number:05}");
        let padded = |bytes: usize| format!("{name}{}", "\u{e9}".repeat(bytes / 2));
        let written = |value: String| match text {
            Text::Lines => value,
            Text::Json => format!("{{\"other\":[1],\"name\":\"{value}\"}}"),
            Text::Csv => value,
            Text::CsvWithHeader => format!("7,{value}"),
        };
        match line {
            Line::Row(bytes) => content.extend(written(padded(*bytes)).into_bytes()),
            // Text that is blank is a row: it must be told apart from others.
            Line::Blank if text == Text::Lines => content.extend(name.into_bytes()),
            Line::Blank => {}
            Line::NotUtf8 => content.extend([written(name).as_bytes(), b"\xff"].concat()),
            Line::TooLong(bytes) => content.extend(written(padded(*bytes)).into_bytes()),
        }
        let is_last = number + 1 == lines.len();
        match random.random_range(0..3) {
            0 if is_last => {}
            1 => content.extend_from_slice(b"\r\n"),
            _ => content.push(b'\n'),
        }
    }
    content
}

fn pack(content: &[u8], packing: Packing) -> Vec<u8> {
    match packing {
        Packing::Plain => content.to_vec(),
        Packing::Gzip => {
            let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(content).expect("memory");
            encoder.finish().expect("memory")
        }
        Packing::Zstd => zstd::encode_all(content, 1).expect("memory"),
    }
}

fn file_job(directory: &TempDir, text: Text, options: &[(&str, &str)]) -> Job {
    let path = directory.path().canonicalize().expect("it is there");
    let format: &[(&str, &str)] = match text {
        Text::Lines => &[],
        Text::Json => &[("format", "json")],
        Text::Csv => &[("format", "csv")],
        Text::CsvWithHeader => &[("format", "csv"), ("csv-header", "true")],
    };
    let path_option = [("path", path.to_str().expect("UTF-8"))];
    Job {
        spec: spec("file", &[&path_option, format, options].concat()),
        record_type: if text == Text::Lines { "string" } else { "T{name:string}" },
        permissions: Arc::new(Permissions { read: vec![path], ..Permissions::default() }),
        rejected: Rejected::default(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn files_are_read_on_from_any_place(
        files in collection::vec(
            (collection::vec(line(), 0..150), prop::sample::select(vec![Packing::Plain, Packing::Gzip, Packing::Zstd])),
            1..6,
        ),
        text in prop::sample::select(vec![Text::Lines, Text::Json, Text::Csv, Text::CsvWithHeader]),
        order in prop::sample::select(vec!["in-order", "side-by-side", "auto"]),
        chunk in 1_u32..6000,
        rate in prop::option::of(500_u32..50_000),
        epochs in collection::vec((1_u32..6, 0_usize..60), 1..6),
        has_mark in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut random = StdRng::seed_from_u64(seed);
        let directory = TempDir::new().expect("a directory");
        for (file, (lines, packing)) in files.iter().enumerate() {
            let content = content(file, lines, text, has_mark, &mut random);
            fs::write(directory.path().join(format!("{file:03}")), pack(&content, *packing)).expect("writable");
        }
        let (chunk, rate) = (chunk.to_string(), rate.map(|rate| rate.to_string()));
        let mut options = vec![("read-order", order), ("chunk-bytes", chunk.as_str())];
        options.extend(rate.as_deref().map(|rate| ("rate", rate)));
        let job = file_job(&directory, text, &options);
        let undisturbed = file_job(&directory, text, &[]);
        let expected = undisturbed.run_through(&[(1, usize::MAX)], seed);
        let epochs = job.run_through(&epochs, seed);
        prop_assert_eq!(sorted(&epochs), sorted(&expected));
        // Refused lines are named by the same numbers; those behind the last row may be refused again.
        let name = |refused: &String| refused.split(": ").next().expect("named").to_owned();
        let refused = |job: &Job| job.rejected.lock().expect("nobody panicked").iter().map(name).collect::<BTreeSet<_>>();
        prop_assert_eq!(refused(&job), refused(&undisturbed));
        let rows = &expected[0].rows[0];
        let place: BTreeMap<_, _> = rows.iter().enumerate().map(|(place, row)| (row.clone(), place)).collect();
        prop_assert_eq!(place.len(), rows.len(), "rows are told apart");
        if order == "in-order" {
            check_order(&epochs, &place);
        }
    }

    #[test]
    fn generators_go_on_from_any_place(
        events in 1_u64..3000,
        rate in prop::option::of(1000_u32..1_000_000),
        epochs in collection::vec((1_u32..6, 0_usize..40), 1..7),
        seed in any::<u64>(),
    ) {
        let rate = rate.map(|rate| rate.to_string());
        let rate = rate.as_deref().map(|rate| ("rate", rate));
        let (count, last) = (events.to_string(), (events * 5).to_string());
        let nexmark: Vec<_> = [("events", count.as_str())].into_iter().chain(rate).collect();
        let sequence: Vec<_> = [("from", "-7"), ("to", last.as_str())].into_iter().chain(rate).collect();
        for (name, record_type, options) in [("nexmark", "string", nexmark), ("sequence", "i64", sequence)] {
            let permissions = Arc::new(Permissions::default());
            let spec = spec(name, &options);
            let without_rate: Vec<_> = options.iter().copied().filter(|(option, _)| *option != "rate").collect();
            let expected = super::tests::run(&super::tests::spec(name, &without_rate), 1, record_type, &permissions, None);
            let expected = expected.expect("runs").swap_remove(0);
            let place = expected.iter().cloned().enumerate().map(|(place, row)| (row, place)).collect();
            let job = Job { spec, record_type, permissions, rejected: Rejected::default() };
            let epochs = job.run_through(&epochs, seed);
            let mut expected = expected;
            expected.sort();
            prop_assert_eq!(sorted(&epochs), expected);
            check_order(&epochs, &place);
        }
    }
}

#[test]
fn a_large_archive_is_passed_over_in_short_steps() {
    let directory = TempDir::new().expect("a directory");
    let content: Vec<u8> = (0..1_000_000_u32).flat_map(|number| format!("{number:09}\n").into_bytes()).collect();
    fs::write(directory.path().join("in.gz"), pack(&content, Packing::Gzip)).expect("writable");
    let job = file_job(&directory, Text::Lines, &[]);
    let clock = Clock::new_virtual(Timestamp(0));
    let enumerator = |restored| {
        create_enumerator(&job.spec, 1, job.record_type, Arc::clone(&job.permissions), restored).expect("restorable")
    };
    let mut first = enumerator(None);
    let mut reader = job.reader(0, 1, &clock);
    let SplitAssignment::Split(split) = first.next_split(0).expect("listed") else { panic!("one file") };
    reader.add_split(split).expect("it is there");
    let mut read = 0;
    while read < 700_000 {
        let ReaderOutput::Records(batch) = reader.poll(1 << 20).expect("readable") else { continue };
        read += batch.count;
    }
    let splits: Vec<_> = reader.snapshot().into_iter().map(|split| (0, split)).collect();
    let mut second = enumerator(Some(RestoredSource { enumerator: first.snapshot(), splits: splits.clone() }));
    let mut reader = job.reader(0, 1, &clock);
    let SplitAssignment::Split(split) = second.next_split(0).expect("listed") else { panic!("the rest of a file") };
    reader.add_split(split.clone()).expect("it is there");
    let mut pauses = 0;
    let batch = loop {
        match reader.poll(1 << 20).expect("readable") {
            ReaderOutput::Records(batch) => break batch,
            _ => pauses += 1,
        }
        // A checkpoint in the middle of it has the same place.
        assert_eq!(reader.snapshot(), std::slice::from_ref(&split));
    };
    assert_eq!(rows_of(&batch)[0], format!("{read:09}").into_bytes());
    assert!(6 <= pauses, "{pauses} steps for 7 MB");
    assert_eq!(reader.row_position(0).rsplit('/').next(), Some(format!("in.gz line {}", read + 1).as_str()));
}

#[test]
fn a_file_that_has_shrunk_or_vanished_is_named() {
    for (packing, shrunk) in [
        (Packing::Plain, "could not read PATH: the file became shorter while it was read"),
        (
            Packing::Gzip,
            "could not read on in PATH: its content has 10 bytes, but byte 4095 is to be read next: the file became \
             shorter since",
        ),
    ] {
        let directory = TempDir::new().expect("a directory");
        let path = directory.path().canonicalize().expect("it is there").join("in");
        fs::write(&path, pack(&b"line\n".repeat(10_000), packing)).expect("writable");
        let job = file_job(&directory, Text::Lines, &[]);
        let mut random = StdRng::seed_from_u64(1);
        let epoch = loop {
            let epoch = job.run(1, None, 2, &mut random);
            if !epoch.rows[0].is_empty() {
                break epoch;
            }
        };
        let go_on = || {
            let restored = epoch.checkpoint.clone();
            let permissions = Arc::clone(&job.permissions);
            let mut enumerator = create_enumerator(&job.spec, 1, "string", permissions, restored)?;
            let mut reader = job.reader(0, 1, &Clock::new_virtual(Timestamp(0)));
            let SplitAssignment::Split(split) = enumerator.next_split(0)? else { panic!("the rest of a file") };
            reader.add_split(split)?;
            loop {
                reader.poll(1000)?;
            }
        };
        let text = |error: ConnectorError| text_of(&error).replace(path.to_str().expect("UTF-8"), "PATH");
        fs::write(&path, pack(&b"line\n".repeat(2), packing)).expect("writable");
        let error: Result<(), _> = go_on();
        assert_eq!(text(error.expect_err("shrunk")), shrunk);
        fs::remove_file(&path).expect("removable");
        let error = go_on().expect_err("gone");
        assert_eq!(text(error), "could not open PATH: No such file or directory (os error 2)");
    }
}

#[test]
fn a_watched_directory_remembers_its_files() {
    let directory = TempDir::new().expect("a directory");
    let write = |name: &str| fs::write(directory.path().join(name), format!("{name}\n")).expect("writable");
    for order in ["in-order", "side-by-side"] {
        ["a", "b"].into_iter().for_each(write);
        let job = file_job(&directory, Text::Lines, &[("watch", "true"), ("read-order", order)]);
        let read = |parallelism: u32, restored| {
            let permissions = Arc::clone(&job.permissions);
            let mut enumerator =
                create_enumerator(&job.spec, parallelism, "string", permissions, restored).expect("restorable");
            let clock = Clock::new_virtual(Timestamp(0));
            let (mut names, mut splits) = (Vec::new(), Vec::new());
            for index in 0..parallelism {
                let mut reader = job.reader(index, parallelism, &clock);
                loop {
                    match reader.poll(1000).expect("readable") {
                        ReaderOutput::Records(batch) => {
                            names.extend(rows_of(&batch).into_iter().map(|row| String::from_utf8(row).expect("text")))
                        }
                        ReaderOutput::NeedSplit => match enumerator.next_split(index).expect("listed") {
                            SplitAssignment::Split(split) => reader.add_split(split).expect("it is there"),
                            SplitAssignment::Wait(_) => break,
                            SplitAssignment::NoMoreSplits => panic!("it does not end"),
                        },
                        _ => {}
                    }
                }
                splits.extend(reader.snapshot().into_iter().map(|split| (index, split)));
            }
            names.sort();
            (names, RestoredSource { enumerator: enumerator.snapshot(), splits })
        };
        let (names, checkpoint) = read(1, None);
        assert_eq!(names, ["a", "b"]);
        write("c");
        assert_eq!(read(1, Some(checkpoint.clone())).0, ["c"]);
        let (names, checkpoint) = read(3, Some(checkpoint));
        assert_eq!(names, ["c"]);
        assert_eq!(read(3, Some(checkpoint)).0, [""; 0]);
        fs::remove_file(directory.path().join("c")).expect("removable");
    }
}

#[test]
fn streams_cannot_be_read_again_and_say_so() {
    let restored =
        |enumerator: &dyn SplitEnumerator, splits| RestoredSource { enumerator: enumerator.snapshot(), splits };
    let stdin = spec("stdin", &[]);
    let make = |restored| create_enumerator(&stdin, 2, "string", Arc::default(), restored).expect("valid");
    let mut first = make(None);
    assert!(!first.is_replayable() && !can_replay("stdin") && !can_replay("socket"));
    let split = SplitAssignment::Split(SourceSplit(Vec::new()));
    // It was not dealt yet.
    assert_eq!(make(Some(restored(&*first, Vec::new()))).next_split(0).expect("dealt"), split);
    assert_eq!(first.next_split(0).expect("dealt"), split);
    // A reader has it, which goes on with what comes then.
    let held = vec![(0, SourceSplit(Vec::new()))];
    assert_eq!(make(Some(restored(&*first, held))).next_split(0).expect("dealt"), split);
    // It was read to its end.
    assert_eq!(make(Some(restored(&*first, Vec::new()))).next_split(0).expect("dealt"), SplitAssignment::NoMoreSplits);
}

#[test]
fn damaged_positions_are_refused() {
    let directory = TempDir::new().expect("a directory");
    fs::write(directory.path().join("in"), "line\n").expect("writable");
    let file = file_job(&directory, Text::Lines, &[]);
    let sequence = spec("sequence", &[("from", "1"), ("to", "9")]);
    for (spec, record_type, what) in
        [(&file.spec, "string", "file"), (&sequence, "i64", "sequence"), (&spec("nexmark", &[]), "string", "Nexmark")]
    {
        let make = |restored| create_enumerator(spec, 1, record_type, Arc::clone(&file.permissions), restored);
        for damaged in [&b""[..], b"\x02\x00\x00", b"\x01\xff\xff"] {
            let restored = RestoredSource { enumerator: damaged.to_vec(), splits: Vec::new() };
            let error = make(Some(restored)).err().expect("damaged").to_string();
            assert!(
                error.starts_with("the state of a ")
                    && error.contains("source is damaged, or that of another connector"),
                "{error}"
            );
            let context = reader_context(0, 1, record_type, &file.permissions, &Clock::System, None);
            let mut reader = create_reader(spec, context).expect("valid");
            let error = reader.add_split(SourceSplit(damaged.to_vec())).expect_err("damaged").to_string();
            assert!(error.starts_with(&format!("a split of a {what} source is damaged, or ")), "{error}");
        }
    }
    let output = run(&file.spec, 1, "string", &file.permissions, None).expect("the file is good");
    assert_eq!(output, [[b"line"]]);
}
