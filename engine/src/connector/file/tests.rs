//! The file source and sink on real files.

use std::{fs, os::unix::fs::symlink, sync::Arc};

use flate2::write::GzEncoder;
use proptest::{collection, prelude::*};
use tempfile::TempDir;

use super::*;
use crate::{
    base::{
        clock::{Clock, Timestamp},
        ids::JobId,
    },
    connector::{
        Permissions, ReaderOutput, RestoredSource, SinkCommitter, SplitAssignment, SplitEnumerator, create_committer,
        create_enumerator, create_reader, create_writer,
        tests::{Output, Rejected, lines, reader_context, run, spec, text_of, writer_context},
    },
};

struct Directory {
    directory: TempDir,
    /// Canonical.
    path: PathBuf,
    permissions: Arc<Permissions>,
}

impl Directory {
    fn new() -> Self {
        let directory = TempDir::new().expect("a temporary directory");
        let path = directory.path().canonicalize().expect("it is there");
        let permissions = Permissions { read: vec![path.clone()], write: vec![path.clone()], ..Permissions::default() };
        Self { directory, path, permissions: Arc::new(permissions) }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.directory.path().join(name);
        fs::create_dir_all(path.parent().expect("below the directory")).expect("writable");
        fs::write(&path, content).expect("writable");
        self.name(name)
    }

    fn name(&self, name: &str) -> String {
        self.path.join(name).to_str().expect("UTF-8").to_owned()
    }

    fn names(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path.join(name)).expect("a directory");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    fn read(&self, options: &[(&str, &str)], parallelism: u32) -> Vec<String> {
        let output = run(&spec("file", options), parallelism, "string", &self.permissions, None).expect("runs");
        sorted_text(output)
    }
}

fn sorted_text(output: Output) -> Vec<String> {
    let mut rows: Vec<_> = output.into_iter().flatten().map(|row| String::from_utf8(row).expect("text")).collect();
    rows.sort();
    rows
}

fn chunk_of(split: &SourceSplit) -> FileSplit {
    match DealtFiles::decode(split).expect("its own") {
        DealtFiles::Chunk(chunk) => chunk,
        DealtFiles::SideBySide { .. } => panic!("a chunk was expected"),
    }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    io::Write::write_all(&mut encoder, content).expect("memory");
    encoder.finish().expect("memory")
}

fn zstd(content: &[u8]) -> Vec<u8> {
    zstd::encode_all(content, 1).expect("memory")
}

#[test]
fn files_are_read_in_order_and_each_line_once() {
    let directory = Directory::new();
    directory.write("in/b.txt", "b1\r\nb2\n\n");
    directory.write("in/a.txt", "a1\na2");
    directory.write("in/deep/er/c.txt", "c1\n");
    directory.write("in/empty.txt", "");
    directory.write("in/.hidden", "no\n");
    directory.write("in/_temporary/x", "no\n");
    let input = directory.name("in");
    let output = run(&spec("file", &[("path", &input)]), 1, "string", &directory.permissions, None).expect("runs");
    assert_eq!(output, [["a1", "a2", "b1", "b2", "", "c1"].map(|line| line.as_bytes().to_vec())]);
    let glob = format!("{input}/?.txt");
    assert_eq!(directory.read(&[("path", &glob)], 3), ["", "a1", "a2", "b1", "b2"]);
    let strange = directory.write("in/[a].txt", "literally\n");
    assert_eq!(directory.read(&[("path", &strange)], 1), ["literally"]);
}

#[test]
fn compressed_files_are_read_whole_by_content_or_name() {
    let directory = Directory::new();
    let content: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
    let (first, second) = content.as_bytes().split_at(54_321);
    let mut expected: Vec<_> = content.lines().collect();
    expected.sort_unstable();
    for (name, bytes) in [
        ("one.gz", gzip(content.as_bytes())),
        ("members.gz", [gzip(first), gzip(second)].concat()),
        ("without-extension", gzip(content.as_bytes())),
        ("one.zst", zstd(content.as_bytes())),
        ("frames.zst", [zstd(first), zstd(second)].concat()),
    ] {
        let path = directory.write(name, bytes);
        assert_eq!(directory.read(&[("path", &path)], 2), expected, "{name}");
    }
    let empty = directory.write("empty.gz", "");
    assert_eq!(directory.read(&[("path", &empty)], 1), [""; 0]);
    let raw = directory.write("raw.gz", "text\n");
    assert_eq!(directory.read(&[("path", &raw), ("compression", "none")], 1), ["text"]);
}

#[test]
fn damaged_archives_are_named() {
    let directory = Directory::new();
    let mut cut = gzip(b"some text\n");
    cut.truncate(15);
    let mut flipped = zstd(&b"some text\n".repeat(100));
    flipped.truncate(12);
    for (name, bytes, compression) in [
        ("cut.gz", cut, "auto"),
        ("plain.gz", b"plain text".to_vec(), "auto"),
        ("cut.zst", flipped, "auto"),
        ("plain.txt", b"plain text".to_vec(), "zstd"),
    ] {
        let path = directory.write(name, bytes);
        let options = spec("file", &[("path", &path), ("compression", compression)]);
        let error = run(&options, 1, "string", &directory.permissions, None).expect_err("damaged");
        assert!(text_of(&error).starts_with(&format!("could not decompress {path}: ")), "{}", text_of(&error));
    }
}

#[test]
fn a_bomb_without_lines_is_one_refused_line() {
    let directory = Directory::new();
    let path = directory.write("bomb.gz", gzip(&[&vec![b'x'; 40 << 20][..], b"\nrest\n"].concat()));
    let rejected = Rejected::default();
    let options = spec("file", &[("path", &path)]);
    let output = run(&options, 1, "string", &directory.permissions, Some(&rejected)).expect("skips");
    assert_eq!(output, [[b"rest".to_vec()]]);
    let refused = rejected.lock().expect("nobody panicked").clone();
    assert_eq!(refused.len(), 1);
    let expected = format!("{path} line 1: the line is longer than 4194304 bytes (sandbox.row.bytes-max): xxx");
    assert!(refused[0].starts_with(&expected), "{}", &refused[0][..200]);
}

#[test]
fn bad_rows_are_named_by_file_line_and_field() {
    let directory = Directory::new();
    let mut content: String = (0..3000).map(|number| format!("{{\"a\":{number}}}\n")).collect();
    content.push_str("{\"a\":\"x\"}\n{\"a\":1}\n");
    let path = directory.write("in.json", &content);
    let options = [("path", &*path), ("format", "json")];
    let expected = format!("{path} line 3001: column 6, field \"a\": expected u16, found a string");
    for chunk in ["100", "8 MiB"] {
        let options = spec("file", &[&options[..], &[("chunk-bytes", chunk)]].concat());
        let error = run(&options, 2, "T{a:u16}", &directory.permissions, None).expect_err("a bad row");
        assert_eq!(error.to_string(), expected);
        let rejected = Rejected::default();
        let output = run(&options, 2, "T{a:u16}", &directory.permissions, Some(&rejected)).expect("skips");
        assert_eq!(output.concat().len(), 3001);
        assert_eq!(*rejected.lock().expect("nobody panicked"), [format!("{expected}: {{\"a\":\"x\"}}")]);
    }
    let packed = directory.write("in.json.gz", gzip(content.as_bytes()));
    let options = spec("file", &[("path", &packed), ("format", "json")]);
    let error = run(&options, 1, "T{a:u16}", &directory.permissions, None).expect_err("a bad row").to_string();
    assert!(error.starts_with(&format!("{packed} line 3001: ")), "{error}");
}

#[test]
fn lines_that_are_not_text_are_named_by_line() {
    let directory = Directory::new();
    let path = directory.write("in.txt", b"good\nb\xffd\ngood\n");
    let options = spec("file", &[("path", &path), ("chunk-bytes", "4")]);
    let error = run(&options, 1, "string", &directory.permissions, None).expect_err("a bad row").to_string();
    assert_eq!(error, format!("{path} line 2: not UTF-8 at byte 2 of the line"));
}

#[test]
fn the_header_of_csv_holds_for_all_chunks() {
    let directory = Directory::new();
    let rows: String = (0..100).map(|number| format!("x;{}\n", number % 256)).collect();
    let path = directory.write("in.csv", format!("name;a\n{rows}"));
    let options = |chunk| {
        let options = [("path", &*path), ("format", "csv"), ("csv-header", "true"), ("csv-delimiter", ";")];
        spec("file", &[&options[..], &[("chunk-bytes", chunk)]].concat())
    };
    for chunk in ["1", "20", "8 MiB"] {
        let output = run(&options(chunk), 3, "T{a:u8}", &directory.permissions, None).expect("runs");
        let mut numbers = output.concat().concat();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..100).collect::<Vec<u8>>(), "{chunk}");
    }
    // A wrong header is no row that might be skipped.
    let rejected = Rejected::default();
    for chunk in ["20", "8 MiB"] {
        let error =
            run(&options(chunk), 1, "T{b:u8}", &directory.permissions, Some(&rejected)).expect_err("no column b");
        let expected = "line 1: column 1, field \"b\": the header has no such column, only name, a";
        assert_eq!(error.to_string(), format!("{path} {expected}"));
    }
}

#[test]
fn nothing_is_opened_that_was_not_granted() {
    let directory = Directory::new();
    let secret = directory.write("secret/key", "secret\n");
    directory.write("in/a.txt", "a\n");
    symlink(&secret, directory.name("in/link.txt")).expect("links can be made");
    let input = directory.name("in");
    let permissions = Arc::new(Permissions { read: vec![PathBuf::from(&input)], ..Permissions::default() });
    for path in [&secret, &input, &format!("{input}/*"), &format!("{input}/../secret/key")] {
        let error = run(&spec("file", &[("path", path)]), 1, "string", &permissions, None).expect_err("refused");
        let text = error.to_string();
        assert!(text.starts_with("the job may not read ") && text.contains("submit with --allow-read "), "{text}");
    }
    // A split does not open what its reader may not.
    let clock = Clock::new_virtual(Timestamp(0));
    let options = spec("file", &[("path", &input)]);
    let context = reader_context(0, 1, "string", &permissions, &clock, None);
    let mut reader = create_reader(&options, context).expect("valid");
    let split = FileSplit {
        number: 0,
        path: secret,
        start: 0,
        end: Some(7),
        compression: Compression::None,
        lines_before: Some(0),
    };
    let error = reader.add_split(DealtFiles::Chunk(split).encode()).expect_err("refused").to_string();
    assert!(error.starts_with("the job may not read "), "{error}");
}

#[test]
fn what_is_not_there_is_named() {
    let directory = Directory::new();
    let missing = directory.name("missing");
    for (path, expected) in [
        (missing.clone(), format!("could not open {missing}: No such file or directory (os error 2)")),
        (format!("{missing}*"), format!("could not open {missing}*: the pattern matches no file")),
    ] {
        let error = run(&spec("file", &[("path", &path)]), 1, "string", &directory.permissions, None);
        assert_eq!(text_of(&error.expect_err("missing")), expected);
    }
    fs::create_dir(directory.name("empty")).expect("writable");
    assert_eq!(directory.read(&[("path", &directory.name("empty"))], 1), [""; 0]);
}

#[test]
fn files_that_go_away_or_shrink_are_named() {
    let directory = Directory::new();
    let path = directory.write("in.txt", "line\n".repeat(100));
    let options = spec("file", &[("path", &path), ("chunk-bytes", "100")]);
    let clock = Clock::new_virtual(Timestamp(0));
    let mut enumerator =
        create_enumerator(&options, 1, "string", Arc::clone(&directory.permissions), None).expect("it is there");
    let mut next = || match enumerator.next_split(0).expect("dealt") {
        SplitAssignment::Split(split) => split,
        other => panic!("{other:?}"),
    };
    let context = reader_context(0, 1, "string", &directory.permissions, &clock, None);
    let mut reader = create_reader(&options, context).expect("valid");
    let (first, second) = (next(), next());
    fs::write(&path, "line\n".repeat(10)).expect("writable");
    reader.add_split(first).expect("it is there");
    let error = reader.poll(1000).expect_err("too short");
    assert_eq!(text_of(&error), format!("could not read {path}: the file became shorter while it was read"));
    fs::remove_file(&path).expect("removable");
    let error = reader.add_split(second).expect_err("gone");
    assert_eq!(text_of(&error), format!("could not open {path}: No such file or directory (os error 2)"));
}

#[test]
fn watched_directories_are_looked_at_once_an_interval() {
    let directory = Directory::new();
    directory.write("in/a", "a\n");
    let input = directory.name("in");
    let options = spec("file", &[("path", &input), ("watch", "true"), ("watch-interval", "10 s")]);
    let options = FileSourceOptions::parse(&options).expect("valid");
    let clock = Clock::new_virtual(Timestamp(0));
    let mut enumerator =
        FileEnumerator::new(options, 2, Arc::clone(&directory.permissions), clock.clone(), None).expect("it is there");
    let mut next = |subtask_index| match enumerator.next_split(subtask_index).expect("listed") {
        SplitAssignment::Split(split) => chunk_of(&split).path,
        SplitAssignment::Wait(millis) => format!("wait {millis}"),
        SplitAssignment::NoMoreSplits => "no more".to_owned(),
    };
    assert_eq!(next(0), directory.name("in/a"));
    directory.write("in/b", "b\n");
    assert_eq!(next(0), "wait 10000");
    clock.advance(Duration::from_secs(4));
    assert_eq!(next(1), "wait 6000");
    clock.advance(Duration::from_secs(6));
    assert_eq!(next(1), directory.name("in/b"));
    assert_eq!(next(0), "wait 10000");
    clock.advance(Duration::from_secs(60));
    assert_eq!(next(0), "wait 10000", "nothing is read twice");
}

/// Which files were read is not known: all would be read again.
#[test]
fn a_directory_that_was_not_watched_is_not_watched_from_a_checkpoint_on() {
    let directory = Directory::new();
    directory.write("in/a", "a\n");
    let input = directory.name("in");
    let enumerator = |options: &[(&str, &str)], restored| {
        let options = spec("file", &[&[("path", &*input)], options].concat());
        create_enumerator(&options, 1, "string", Arc::clone(&directory.permissions), restored)
    };
    let once = enumerator(&[], None).expect("it is there");
    let restored = RestoredSource { enumerator: once.snapshot(), splits: Vec::new() };
    let error = enumerator(&[("watch", "true")], Some(restored)).map(drop).expect_err("refused").to_string();
    assert!(error.starts_with("file source: option \"watch\": was not set when the checkpoint was taken"), "{error}");
}

#[test]
fn chunks_are_small_enough_for_all_subtasks() {
    let directory = Directory::new();
    let path = directory.write("in.txt", vec![b'\n'; 3 << 20]);
    let chunks = |options: &[(&str, &str)], parallelism| {
        let options = spec("file", &[&[("path", &*path)], options].concat());
        let permissions = Arc::clone(&directory.permissions);
        let mut enumerator =
            create_enumerator(&options, parallelism, "string", permissions, None).expect("it is there");
        let mut sizes = Vec::new();
        while let SplitAssignment::Split(split) = enumerator.next_split(0).expect("dealt") {
            let split = chunk_of(&split);
            assert_eq!(split.start, sizes.iter().sum::<u64>(), "in file order");
            sizes.push(split.end.expect("plain") - split.start);
        }
        sizes
    };
    let kib = |sizes: Vec<u64>| sizes.iter().map(|size| size >> 10).collect::<Vec<_>>();
    assert_eq!(kib(chunks(&[], 1)), [768; 4]);
    assert_eq!(kib(chunks(&[], 2)), [384; 8]);
    assert_eq!(kib(chunks(&[], 8)), [256; 12]);
    assert_eq!(chunks(&[("rate", "10")], 8).len(), 32);
    assert_eq!(kib(chunks(&[("chunk-bytes", "2 MiB")], 8)), [2048, 1024]);
}

#[test]
fn chunks_of_failed_subtasks_are_dealt_again() {
    let directory = Directory::new();
    let path = directory.write("in.txt", "0123456789");
    let options = spec("file", &[("path", &path), ("chunk-bytes", "4")]);
    let mut enumerator =
        create_enumerator(&options, 2, "string", Arc::clone(&directory.permissions), None).expect("it is there");
    let mut next = |subtask_index| enumerator.next_split(subtask_index).expect("dealt");
    let first = next(0);
    let SplitAssignment::Split(second) = next(1) else { panic!("three chunks") };
    enumerator.add_splits_back(1, vec![second.clone()]);
    let mut next = |subtask_index| enumerator.next_split(subtask_index).expect("dealt");
    // Another subtask may be further ahead in event time: then its rows would come late.
    let SplitAssignment::Split(split) = next(0) else { panic!("three chunks") };
    assert_eq!(next(1), SplitAssignment::Split(second));
    let third = chunk_of(&split);
    assert_eq!((third.start, third.end), (8, Some(10)));
    assert_eq!(next(1), SplitAssignment::NoMoreSplits);
    // What a subtask failed within comes before what still waits for it.
    let SplitAssignment::Split(first) = first else { panic!("three chunks") };
    let third = split;
    enumerator.add_splits_back(0, vec![first.clone(), third.clone()]);
    assert_eq!(enumerator.next_split(0).expect("dealt"), SplitAssignment::Split(first.clone()));
    let state = enumerator.snapshot();
    enumerator.add_splits_back(0, vec![first.clone()]);
    let restored = RestoredSource { enumerator: state, splits: vec![(0, first.clone())] };
    let goes_on = create_enumerator(&options, 2, "string", Arc::clone(&directory.permissions), Some(restored));
    for mut enumerator in [enumerator, goes_on.expect("whole")] {
        for split in [&first, &third] {
            assert_eq!(enumerator.next_split(0).expect("dealt"), SplitAssignment::Split(split.clone()));
        }
    }
}

#[test]
fn positions_say_where_reading_stands() {
    let directory = Directory::new();
    let path = directory.write("in.txt", "a\nb\nc\n");
    let options = spec("file", &[("path", &path), ("rate", "10")]);
    let clock = Clock::new_virtual(Timestamp(0));
    let mut enumerator =
        create_enumerator(&options, 1, "string", Arc::clone(&directory.permissions), None).expect("it is there");
    let context = reader_context(0, 1, "string", &directory.permissions, &clock, None);
    let mut reader = create_reader(&options, context).expect("valid");
    assert!(matches!(reader.poll(1000), Ok(ReaderOutput::NeedSplit)));
    let SplitAssignment::Split(split) = enumerator.next_split(0).expect("dealt") else { panic!("one chunk") };
    reader.add_split(split).expect("it is there");
    assert_eq!(reader.position(), format!("{path} before its first line"));
    for line in 1..=3 {
        assert!(matches!(reader.poll(1000), Ok(ReaderOutput::Idle(pause)) if pause == Duration::from_millis(100)));
        clock.advance(Duration::from_millis(100));
        assert!(matches!(reader.poll(1000), Ok(ReaderOutput::Records(batch)) if batch.count == 1));
        assert_eq!(reader.position(), format!("{path} line {line}"));
    }
}

#[test]
fn part_files_are_visible_after_the_commit_only() {
    let directory = Directory::new();
    let out = directory.name("out/of/job");
    let sink = spec("file", &[("path", &out)]);
    let job_id = JobId::random();
    let mut committer = create_committer(&sink, job_id, Arc::clone(&directory.permissions)).expect("granted");
    committer.prepare().expect("a new directory");
    let owner = crc32fast::hash(job_id.to_string().as_bytes());
    let parts = ["part-0-0", "part-1-2"].map(|name| format!("{name}-{owner:08x}-end"));
    let visible =
        || directory.names("out/of/job").into_iter().filter(|name| !name.starts_with('.')).collect::<Vec<_>>();
    let mut committables = Vec::new();
    for (subtask_index, attempt_number) in [(0, 0), (1, 2), (2, 0)] {
        let context = writer_context(subtask_index, 3, attempt_number, &directory.permissions);
        let mut writer = create_writer(&sink, context).expect("granted");
        if subtask_index < 2 {
            writer.write(&lines(b"row\nanother\n", 2)).expect("written");
        }
        writer.flush().expect("written");
        committables.extend(writer.finish().expect("written"));
    }
    // An attempt that failed, and one that is only cut off.
    let mut failed = create_writer(&sink, writer_context(1, 3, 1, &directory.permissions)).expect("granted");
    failed.write(&lines(b"half\n", 1)).expect("written");
    failed.flush().expect("written");
    drop(failed);
    assert_eq!(visible(), [""; 0]);
    assert_eq!(committables.len(), 2, "without rows there is no file");
    committer.commit(committables.clone()).expect("committed");
    assert_eq!(visible(), parts);
    committer.commit(committables.clone()).expect("idempotent");
    committer.abort().expect("cleaned");
    committer.commit(committables).expect("idempotent");
    committer.abort().expect("idempotent");
    assert_eq!(directory.names("out/of/job"), parts);
    let content = fs::read_to_string(directory.name(&format!("out/of/job/{}", parts[1]))).expect("visible");
    assert_eq!(content, "row\nanother\n");
}

#[test]
fn a_destination_must_be_new_or_empty_and_belongs_to_one_job() {
    let directory = Directory::new();
    let committer = |path: &str, job_id| {
        let sink = spec("file", &[("path", path)]);
        create_committer(&sink, job_id, Arc::clone(&directory.permissions)).expect("valid")
    };
    directory.write("full/old", "");
    let full = directory.name("full");
    let error = committer(&full, JobId::random()).prepare().expect_err("not empty").to_string();
    assert_eq!(error, format!("{full} is not empty: a file sink needs a new or empty directory"));
    let file = directory.name("full/old");
    let error = committer(&file, JobId::random()).prepare().expect_err("a file");
    assert_eq!(text_of(&error), format!("could not create {file}: File exists (os error 17)"));

    fs::create_dir(directory.name("empty")).expect("writable");
    let empty = directory.name("empty");
    let job_id = JobId::random();
    let mut first = committer(&empty, job_id);
    first.prepare().expect("empty");
    let mut second = committer(&empty, JobId::random());
    let error = second.prepare().expect_err("claimed by the first").to_string();
    assert!(error.contains(&format!("hidden files of a job: .job-{job_id}; if that job was killed")), "{error}");
    let mut writer = create_writer(&spec("file", &[("path", &empty)]), writer_context(0, 1, 0, &directory.permissions))
        .expect("granted");
    writer.write(&lines(b"row\n", 1)).expect("written");
    writer.flush().expect("written");
    second.abort().expect("it has nothing to remove");
    assert_eq!(directory.names("empty").len(), 2, "what belongs to the first job is left alone");
    // The job's own JobMaster may prepare again, also after a crash.
    committer(&empty, job_id).prepare().expect("its own");
    assert_eq!(directory.names("empty"), [format!(".job-{job_id}")], "attempts are counted from zero again");
    committer(&empty, job_id).abort().expect("its own");
    assert_eq!(directory.names("empty"), [""; 0]);
    second.prepare().expect("free again");
}

#[test]
fn writers_of_one_attempt_do_not_share_a_file() {
    // Attempts are counted from zero again when a JobManager was killed.
    let directory = Directory::new();
    let out = directory.name("");
    let sink = spec("file", &[("path", &out)]);
    let writer = || create_writer(&sink, writer_context(0, 1, 0, &directory.permissions)).expect("granted");
    let (mut one, mut other) = (writer(), writer());
    one.write(&lines(b"a\n", 1)).and_then(|()| one.flush()).expect("written");
    other.write(&lines(b"b\n", 1)).and_then(|()| other.flush()).expect("written");
    let hidden = directory.names("");
    assert_eq!(hidden.len(), 2);
    assert!(hidden.iter().all(|name| name.starts_with(".part-0-0-") && name.ends_with("-0.inprogress")), "{hidden:?}");
}

#[test]
fn commits_check_what_they_are_given() {
    let directory = Directory::new();
    let options = FileSinkOptions::parse(&spec("file", &[("path", &directory.name("out"))])).expect("valid");
    let mut committer = FileCommitter::new(options, JobId::random(), Arc::clone(&directory.permissions));
    committer.prepare().expect("new");
    let sink = spec("file", &[("path", &directory.name("out"))]);
    let mut writer = create_writer(&sink, writer_context(0, 1, 0, &directory.permissions)).expect("granted");
    writer.write(&lines(b"row\n", 1)).expect("written");
    let committables = writer.finish().expect("written");
    let hidden = directory.names("out").into_iter().find(|name| name.starts_with(".part-")).expect("written");
    let hidden = directory.name(&format!("out/{hidden}"));
    fs::write(&hidden, "ro").expect("writable");
    let error = committer.commit(committables.clone()).expect_err("cut off");
    assert_eq!(text_of(&error), format!("could not make visible {hidden}: it has 2 bytes, but 4 were written"));
    fs::remove_file(&hidden).expect("removable");
    let error = committer.commit(committables).expect_err("gone");
    let error = text_of(&error);
    assert!(error.starts_with(&format!("{hidden} is missing, and so is part-0-0-")), "{error}");
    let damaged = committer.commit(vec![crate::connector::Committable(vec![0xff; 30])]);
    assert!(damaged.expect_err("damaged").to_string().starts_with("a committable of a file sink is damaged, or "));
}

#[test]
fn writing_needs_a_grant() {
    let directory = Directory::new();
    let nothing = Arc::default();
    let path = directory.name("out");
    let sink = spec("file", &[("path", &path)]);
    let expected = format!("the job may not write {path}; to allow it, submit with --allow-write {path}");
    let error = create_writer(&sink, writer_context(0, 1, 0, &nothing)).err().expect("refused");
    assert_eq!(error.to_string(), expected);
    let mut committer = create_committer(&sink, JobId::random(), nothing).expect("valid");
    assert_eq!(committer.prepare().expect_err("refused").to_string(), expected);
    // A link out of the granted directory does not help.
    let elsewhere = TempDir::new().expect("a temporary directory");
    symlink(elsewhere.path(), directory.name("link")).expect("links can be made");
    let sink = spec("file", &[("path", &directory.name("link/out"))]);
    let error = create_writer(&sink, writer_context(0, 1, 0, &directory.permissions)).err().expect("refused");
    assert!(error.to_string().starts_with("the job may not write "), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_line_is_read_exactly_once(
        files in collection::vec(collection::vec(prop::sample::select(b"abcdefgh\r\n\n".to_vec()), 0..300), 1..4),
        chunk in 1_u64..400,
        parallelism in 1_u32..5,
    ) {
        let directory = Directory::new();
        let mut expected = Vec::new();
        for (index, content) in files.iter().enumerate() {
            directory.write(&format!("in/{index}"), content);
            let text = std::str::from_utf8(content).expect("ASCII");
            // `lines` takes away one carriage return, as the reader does, but not one at the very end.
            expected.extend(text.split_inclusive('\n').map(|line| {
                line.strip_suffix("\r\n").or(line.strip_suffix('\n')).or(line.strip_suffix('\r')).unwrap_or(line).to_owned()
            }));
        }
        expected.sort();
        let (path, chunk) = (directory.name("in"), chunk.to_string());
        prop_assert_eq!(directory.read(&[("path", &path), ("chunk-bytes", &chunk)], parallelism), expected);
    }
}
