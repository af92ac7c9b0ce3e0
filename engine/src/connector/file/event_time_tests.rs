//! Event time of files: however a stream is cut into files, no record comes behind a
//! watermark that has passed it.

use std::{collections::BTreeMap, fs, sync::Arc};

use flate2::write::GzEncoder;
use proptest::{collection, prelude::*};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};
use tempfile::TempDir;

use super::*;
use crate::{
    base::clock::{Clock, Timestamp},
    connector::{
        Permissions, ReaderOutput, SplitAssignment, SplitChange, SplitEnumerator, create_enumerator, create_reader,
        tests::{Rejected, reader_context, rows_of, spec},
    },
};

/// A record comes at most this much of event time, in milliseconds, behind a later one.
const DISORDER: i64 = 4000;
/// Bytes of rows that are read at a time: two records.
const BATCH_BYTES: usize = 30;

/// What the operator that makes watermarks does, in a few lines: the least over the splits that
/// have not ended of the highest timestamp, less the bound.
struct Model {
    /// Highest timestamp by split; none: it was named only.
    splits: BTreeMap<u32, Option<i64>>,
    current: u32,
    watermark: i64,
}

impl Model {
    fn change(&mut self, change: SplitChange) {
        match change {
            SplitChange::Begin(split) => {
                self.splits.entry(split).or_insert(None);
                self.current = split;
            }
            SplitChange::End(split) => {
                self.splits.remove(&split).expect("it was named");
            }
        }
    }

    fn read(&mut self, timestamp: i64) {
        let highest = self.splits.entry(self.current).or_insert(None);
        *highest = Some(highest.map_or(timestamp, |highest| highest.max(timestamp)));
    }

    fn advance(&mut self) {
        let least = self.splits.values().map(|highest| highest.map_or(i64::MIN, |time| time - DISORDER - 1)).min();
        self.watermark = least.map_or(self.watermark, |least| least.max(self.watermark));
    }

    /// Event time between the split that is furthest behind and the one furthest ahead.
    fn spread(&self) -> Option<i64> {
        let times = || self.splits.values().copied().collect::<Option<Vec<_>>>();
        Some(times()?.into_iter().max()? - times()?.into_iter().min()?)
    }
}

struct Outcome {
    /// Number of records, by timestamp.
    read: Vec<i64>,
    late: usize,
    /// Most event time between two splits of one subtask, all of which were read.
    spread: i64,
    /// Watermarks of the subtasks at the end of their input.
    watermarks: Vec<i64>,
}

/// Reads a source to its end, subtasks and the periodic call in random order.
fn run(directory: &TempDir, options: &[(&str, &str)], parallelism: u32, seed: u64) -> Outcome {
    let root = directory.path().canonicalize().unwrap();
    let permissions = Arc::new(Permissions { read: vec![root.clone()], ..Permissions::default() });
    let input = root.to_str().unwrap();
    let options = spec("file", &[&[("path", input), ("format", "csv")], options].concat());
    let record_type = "T{time:i64}";
    let mut enumerator = create_enumerator(&options, parallelism, record_type, Arc::clone(&permissions), None).unwrap();
    let clock = Clock::new_virtual(Timestamp(0));
    let reader = |index| {
        let context = reader_context(index, parallelism, record_type, &permissions, &clock, None);
        let model = Model { splits: BTreeMap::new(), current: 0, watermark: i64::MIN };
        (create_reader(&options, context).unwrap(), model, false)
    };
    let mut subtasks: Vec<_> = (0..parallelism).map(reader).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut outcome = Outcome { read: Vec::new(), late: 0, spread: 0, watermarks: Vec::new() };
    while subtasks.iter().any(|(_, _, ended)| !ended) {
        let index = random.random_range(0..parallelism);
        let (reader, model, ended) = &mut subtasks[index as usize];
        if *ended {
            continue;
        }
        let polled = reader.poll(BATCH_BYTES).unwrap();
        reader.take_split_changes().into_iter().for_each(|change| model.change(change));
        match polled {
            ReaderOutput::Records(batch) => {
                for row in rows_of(&batch) {
                    let timestamp = i64::from_le_bytes(row.try_into().unwrap());
                    outcome.read.push(timestamp);
                    outcome.late += usize::from(timestamp <= model.watermark);
                    model.read(timestamp);
                }
                let highest = model.splits[&model.current].unwrap();
                reader.report_split_time(model.current, Timestamp(highest));
                outcome.spread = model.spread().map_or(outcome.spread, |spread| spread.max(outcome.spread));
            }
            ReaderOutput::Idle(pause) => clock.advance(pause),
            ReaderOutput::End => *ended = true,
            ReaderOutput::NeedSplit => match enumerator.next_split(index).unwrap() {
                SplitAssignment::Split(split) => {
                    reader.add_split(split).unwrap();
                    reader.take_split_changes().into_iter().for_each(|change| model.change(change));
                }
                SplitAssignment::NoMoreSplits => *ended = true,
                SplitAssignment::Wait(_) => panic!("the source ends"),
            },
        }
        if random.random_bool(0.3) {
            model.advance();
        }
    }
    outcome.watermarks = subtasks.iter().map(|(_, model, _)| model.watermark).collect();
    outcome.read.sort_unstable();
    outcome
}

/// How a stream is cut into files.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Consecutive,
    /// Each record into a file by chance, as servers would write them.
    Dealt,
}

fn write_files(stream: &[i64], files: usize, cut: Cut, seed: u64) -> TempDir {
    let mut random = StdRng::seed_from_u64(seed);
    let mut contents = vec![String::new(); files];
    for (index, time) in stream.iter().enumerate() {
        let file = match cut {
            Cut::Consecutive => index * files / stream.len(),
            Cut::Dealt => random.random_range(0..files),
        };
        contents[file].push_str(&format!("{time}\n"));
    }
    let directory = TempDir::new().unwrap();
    for (index, content) in contents.iter().enumerate() {
        let path = directory.path().join(format!("{index:05}"));
        match index % 5 {
            3 => {
                let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
                io::Write::write_all(&mut encoder, content.as_bytes()).unwrap();
                fs::write(path, encoder.finish().unwrap()).unwrap();
            }
            4 => fs::write(path, zstd::encode_all(content.as_bytes(), 1).unwrap()).unwrap(),
            _ => fs::write(path, content).unwrap(),
        }
    }
    directory
}

/// A stream in which records come at most [`DISORDER`] behind later ones.
fn stream_of(steps: &[(i64, i64)]) -> Vec<i64> {
    let mut time = 1_700_000_000_000;
    let record = |(step, behind): &(i64, i64)| {
        time += step;
        time - behind
    };
    steps.iter().map(record).collect()
}

fn steps(count: usize, seed: u64) -> Vec<(i64, i64)> {
    let mut random = StdRng::seed_from_u64(seed);
    (0..count).map(|_| (random.random_range(0..2000), random.random_range(0..=DISORDER))).collect()
}

fn sorted(mut stream: Vec<i64>) -> Vec<i64> {
    stream.sort_unstable();
    stream
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn no_record_is_ever_late(
        steps in collection::vec((0_i64..2000, 0..=DISORDER), 1..400),
        files in 1_usize..11,
        dealt in any::<bool>(),
        parallelism in 1_u32..5,
        chunk in 8_u32..2000,
        seed in any::<u64>(),
    ) {
        let stream = stream_of(&steps);
        let cut = if dealt { Cut::Dealt } else { Cut::Consecutive };
        let directory = write_files(&stream, files, cut, seed);
        let chunk = chunk.to_string();
        let outcome = run(&directory, &[("read-order", "auto"), ("chunk-bytes", &chunk)], parallelism, seed);
        prop_assert_eq!(&outcome.read, &sorted(stream));
        prop_assert_eq!(outcome.late, 0);
        if !dealt {
            let outcome = run(&directory, &[("read-order", "in-order"), ("chunk-bytes", &chunk)], parallelism, seed);
            prop_assert_eq!(outcome.late, 0);
        }
    }
}

#[test]
fn files_that_cover_the_same_time_need_to_be_read_side_by_side() {
    let stream = stream_of(&steps(2000, 1));
    let directory = write_files(&stream, 10, Cut::Dealt, 2);
    for parallelism in 1..=4 {
        let in_order = run(&directory, &[("read-order", "in-order")], parallelism, 3);
        assert_eq!(in_order.read.len(), 2000);
        assert!(500 < in_order.late, "{} of 2000 are late at parallelism {parallelism}", in_order.late);
        let side_by_side = run(&directory, &[("read-order", "side-by-side")], parallelism, 3);
        assert_eq!(side_by_side.late, 0);
        assert_eq!(side_by_side.read, in_order.read);
        // Each file has a tenth of the records: from one to the next it is 10 s on average.
        assert!(side_by_side.spread < 150_000, "{}", side_by_side.spread);
        let last = sorted(stream.clone())[1999];
        assert!(side_by_side.watermarks.iter().all(|watermark| last - 200_000 < *watermark));
    }
}

#[test]
fn files_that_are_not_open_hold_the_watermark_back() {
    let mut stream = stream_of(&steps(3300, 4));
    for (files, cut) in [(150, Cut::Dealt), (150, Cut::Consecutive), (1100, Cut::Consecutive), (2100, Cut::Dealt)] {
        for parallelism in [1, 2] {
            let directory = write_files(&stream, files, cut, 5);
            let outcome = run(&directory, &[("read-order", "auto")], parallelism, 6);
            assert_eq!(outcome.read, sorted(stream.clone()));
            assert_eq!(outcome.late, 0, "{files} files, {cut:?}");
            assert!(outcome.watermarks.iter().all(|watermark| i64::MIN < *watermark));
        }
    }
    // Also if the first file is the last one in time.
    stream.shuffle(&mut StdRng::seed_from_u64(7));
    let directory = TempDir::new().unwrap();
    for (index, time) in stream.iter().take(200).enumerate() {
        fs::write(directory.path().join(format!("{index:05}")), format!("{time}\n")).unwrap();
    }
    assert_eq!(run(&directory, &[("read-order", "side-by-side")], 1, 8).late, 0);
}

#[test]
fn files_that_are_read_side_by_side_keep_their_lines_and_headers_apart() {
    let root = TempDir::new().unwrap();
    let path = root.path().canonicalize().unwrap();
    let permissions = Arc::new(Permissions { read: vec![path.clone()], ..Permissions::default() });
    let rows = |bad: usize| (0..500).map(move |row| if row == bad { "x,x".to_owned() } else { format!("{row},7") });
    let content = |header: &str, bad| [header.to_owned()].into_iter().chain(rows(bad)).collect::<Vec<_>>().join("\n");
    fs::write(path.join("a"), content("time,other", 100)).unwrap();
    fs::write(path.join("b"), content("other,time", 300)).unwrap();
    let options = spec(
        "file",
        &[("path", path.to_str().unwrap()), ("read-order", "auto"), ("format", "csv"), ("csv-header", "true")],
    );
    let rejected = Rejected::default();
    let output = crate::connector::tests::run(&options, 1, "T{time:i64}", &permissions, Some(&rejected)).unwrap();
    let mut times: Vec<_> = output[0].iter().map(|row| i64::from_le_bytes(row[..].try_into().unwrap())).collect();
    // Both files were read together.
    let switches = times.windows(2).filter(|pair| (pair[0] == 7) != (pair[1] == 7)).count();
    assert!(2 < switches, "{switches}");
    times.sort_unstable();
    let mut expected: Vec<i64> = (0..500).filter(|row| *row != 100).chain([7; 499]).collect();
    expected.sort_unstable();
    assert_eq!(times, expected);
    let places = |file: &str| path.join(file).to_str().unwrap().to_owned();
    let mut rejected = rejected.lock().unwrap().clone();
    rejected.sort();
    assert!(rejected[0].starts_with(&format!("{} line 102: ", places("a"))), "{rejected:?}");
    assert!(rejected[1].starts_with(&format!("{} line 302: ", places("b"))), "{rejected:?}");
    // A row that an operator refuses is named by its own file.
    let mut enumerator = create_enumerator(&options, 1, "T{time:i64}", Arc::clone(&permissions), None).unwrap();
    let SplitAssignment::Split(split) = enumerator.next_split(0).unwrap() else { panic!("two files") };
    let context = reader_context(0, 1, "T{time:i64}", &permissions, &Clock::new_virtual(Timestamp(0)), None);
    let mut reader = create_reader(&options, context).unwrap();
    reader.add_split(split).unwrap();
    for (file, time) in [("a", 10), ("b", 20), ("a", 30)] {
        let Ok(ReaderOutput::Records(batch)) = reader.poll(BATCH_BYTES) else { panic!("rows") };
        let number = u32::from(file == "b");
        assert_eq!(
            reader.row_position(batch.count - 1),
            format!("{} line {}", places(file), batch.count * (1 + time / 30) + 1)
        );
        reader.report_split_time(number, Timestamp(i64::from(time)));
    }
}

#[test]
fn each_file_belongs_to_one_subtask_or_one_file_to_several() {
    let root = TempDir::new().unwrap();
    let path = root.path().canonicalize().unwrap();
    let permissions = Arc::new(Permissions { read: vec![path.clone()], ..Permissions::default() });
    for index in 0..5 {
        fs::write(path.join(index.to_string()), "12345678\n".repeat(10)).unwrap();
    }
    let dealt = |parallelism: u32| {
        let options = spec("file", &[("path", path.to_str().unwrap()), ("read-order", "auto"), ("chunk-bytes", "40")]);
        let mut enumerator =
            create_enumerator(&options, parallelism, "string", Arc::clone(&permissions), None).unwrap();
        let mut splits = vec![Vec::new(); parallelism as usize];
        // The subtasks take turns.
        let mut ended = 0;
        while ended < parallelism {
            ended = 0;
            for subtask in 0..parallelism {
                match enumerator.next_split(subtask).unwrap() {
                    SplitAssignment::Split(split) => splits[subtask as usize].push(split),
                    SplitAssignment::NoMoreSplits => ended += 1,
                    SplitAssignment::Wait(_) => panic!("nothing is watched"),
                }
            }
        }
        // What a failed subtask had comes back to it alone, and in its order.
        if 1 < splits.len() {
            enumerator.add_splits_back(1, splits[1].clone());
            assert_eq!(enumerator.next_split(0).unwrap(), SplitAssignment::NoMoreSplits);
            for split in &splits[1] {
                assert_eq!(enumerator.next_split(1).unwrap(), SplitAssignment::Split(split.clone()));
            }
        }
        let name = |path: &str| path.rsplit('/').next().unwrap().to_owned();
        let text = |split: &SourceSplit| match DealtFiles::decode(split).unwrap() {
            DealtFiles::SideBySide { files, more } => {
                assert!(!more);
                files.iter().map(|file| name(file.path())).collect::<Vec<_>>().join(" ")
            }
            DealtFiles::Chunk(chunk) => format!("{}:{}", name(&chunk.path), chunk.start),
        };
        splits.iter().map(|splits| splits.iter().map(text).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    assert_eq!(dealt(1), [["0 1 2 3 4"]]);
    assert_eq!(dealt(2), [["0 2 4"], ["1 3"]]);
    assert_eq!(dealt(5), [["0"], ["1"], ["2"], ["3"], ["4"]]);
    let six = dealt(6);
    assert_eq!(six[0], ["0:0", "0:80"]);
    assert_eq!(six[1], ["1:0", "1:40", "1:80"]);
    assert_eq!(six[5], ["0:40"]);
}

#[test]
fn new_files_of_a_watched_directory_are_read_side_by_side_too() {
    let root = TempDir::new().unwrap();
    let path = root.path().canonicalize().unwrap();
    let permissions = Arc::new(Permissions { read: vec![path.clone()], ..Permissions::default() });
    let clock = Clock::new_virtual(Timestamp(0));
    let options = spec(
        "file",
        &[("path", path.to_str().unwrap()), ("read-order", "auto"), ("watch", "true"), ("watch-interval", "1 s")],
    );
    let options = FileSourceOptions::parse(&options).unwrap();
    let mut enumerator = FileEnumerator::new(options, 2, permissions, clock.clone(), None).unwrap();
    let mut next = |subtask| match enumerator.next_split(subtask).unwrap() {
        SplitAssignment::Split(split) => match DealtFiles::decode(&split).unwrap() {
            DealtFiles::SideBySide { files, .. } => files.len(),
            DealtFiles::Chunk(_) => panic!("all is read side by side"),
        },
        SplitAssignment::Wait(_) => 0,
        SplitAssignment::NoMoreSplits => panic!("a watched directory does not end"),
    };
    assert_eq!([next(0), next(1)], [0, 0]);
    for index in 0..3 {
        fs::write(path.join(index.to_string()), "line\n").unwrap();
    }
    clock.advance(Duration::from_secs(1));
    assert_eq!([next(0), next(1)], [2, 1]);
    fs::write(path.join("3"), "line\n").unwrap();
    clock.advance(Duration::from_secs(1));
    assert_eq!([next(0), next(1)], [0, 1]);
}
