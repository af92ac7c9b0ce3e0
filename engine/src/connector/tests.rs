//! Connectors as the engine uses them: an enumerator, readers that ask it, writers and a committer.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use crossbeam_channel::bounded;
use engine_rows::{descriptor::TypeDescriptor, json::JsonReader, row::Rows};

use super::*;
use crate::base::{clock::Timestamp, stream_element::BatchKind};

/// Rows of each subtask, in the order in which it emitted them.
pub(super) type Output = Vec<Vec<Vec<u8>>>;

pub(super) fn spec(name: &str, options: &[(&str, &str)]) -> ConnectorSpec {
    let options = options.iter().map(|(option, value)| ((*option).to_owned(), (*value).to_owned()));
    ConnectorSpec { name: name.to_owned(), options: options.collect() }
}

/// Refused rows as "position: message: payload".
pub(super) type Rejected = Arc<Mutex<Vec<String>>>;

pub(super) fn reader_context(
    subtask_index: u32,
    parallelism: u32,
    record_type: &str,
    permissions: &Arc<Permissions>,
    clock: &Clock,
    rejected: Option<Rejected>,
) -> ReaderContext {
    ReaderContext {
        subtask_index,
        parallelism,
        record_type: record_type.to_owned(),
        permissions: Arc::clone(permissions),
        clock: clock.clone(),
        row_bytes_max: 4 << 20,
        reject: Box::new(move |row| match &rejected {
            None => Verdict::Fail,
            Some(rejected) => {
                let payload = String::from_utf8_lossy(row.payload);
                let text = format!("{}: {}: {payload}", row.position, row.message);
                rejected.lock().expect("nobody panicked").push(text);
                Verdict::Skip
            }
        }),
    }
}

pub(super) fn rows_of(batch: &RecordBatch) -> Vec<Vec<u8>> {
    let rows: Vec<Vec<u8>> = match batch.kind {
        BatchKind::Rows => Rows::new(&batch.data).map(|row| row.expect("whole rows").payload.to_vec()).collect(),
        BatchKind::Lines => {
            let lines = batch.data.split_inclusive(|byte| *byte == b'\n');
            lines.map(|line| line.strip_suffix(b"\n").expect("ended lines").to_vec()).collect()
        }
    };
    assert_eq!(rows.len(), batch.count as usize, "the count is right");
    rows
}

/// Reads a source to its end; the subtasks take turns.
pub(super) fn run(
    spec: &ConnectorSpec,
    parallelism: u32,
    record_type: &str,
    permissions: &Arc<Permissions>,
    rejected: Option<&Rejected>,
) -> Result<Output, ConnectorError> {
    let clock = Clock::new_virtual(Timestamp(0));
    let mut enumerator = create_enumerator(spec, parallelism, record_type, Arc::clone(permissions), None)?;
    let mut readers = Vec::new();
    for index in 0..parallelism {
        let context = reader_context(index, parallelism, record_type, permissions, &clock, rejected.cloned());
        readers.push(Some(create_reader(spec, context)?));
    }
    let mut output: Output = vec![Vec::new(); parallelism as usize];
    while readers.iter().any(Option::is_some) {
        for (index, slot) in readers.iter_mut().enumerate() {
            let Some(reader) = slot else { continue };
            match reader.poll(1000)? {
                ReaderOutput::Records(batch) => output[index].extend(rows_of(&batch)),
                ReaderOutput::Idle(pause) => clock.advance(pause),
                ReaderOutput::End => *slot = None,
                ReaderOutput::NeedSplit => match enumerator.next_split(u32::try_from(index).expect("few"))? {
                    SplitAssignment::Split(split) => reader.add_split(split)?,
                    SplitAssignment::NoMoreSplits => *slot = None,
                    SplitAssignment::Wait(_) => panic!("the source ends"),
                },
            }
        }
    }
    Ok(output)
}

pub(super) fn writer_context(
    subtask_index: u32,
    parallelism: u32,
    attempt_number: u32,
    permissions: &Arc<Permissions>,
) -> WriterContext {
    WriterContext {
        subtask_index,
        parallelism,
        attempt_number,
        record_type: "string".to_owned(),
        permissions: Arc::clone(permissions),
        clock: Clock::new_virtual(Timestamp(0)),
        reject: Box::new(|row, message, _| {
            Err(ConnectorError::BadRow { position: format!("row {row}"), message: message.to_owned() })
        }),
        is_canceled: Box::new(|| false),
    }
}

pub(super) fn lines(text: &'static [u8], count: u32) -> RecordBatch {
    RecordBatch { kind: BatchKind::Lines, count, data: Block::from_static(text) }
}

pub(super) fn text_of(error: &ConnectorError) -> String {
    let source = std::error::Error::source(error).map_or_else(String::new, |source| format!(": {source}"));
    format!("{error}{source}")
}

#[test]
fn what_is_unknown_or_invalid_is_refused_with_a_hint() {
    use Role::{Sink, Source};
    for (role, name, options, expected) in [
        (Source, "fiel", &[][..], "unknown source \"fiel\": did you mean \"file\"?"),
        (Source, "kafka", &[], "unknown source \"kafka\": there are file, socket, stdin, sequence, nexmark"),
        (Sink, "prnt", &[], "unknown sink \"prnt\": did you mean \"print\"?"),
        (
            Source,
            "file",
            &[("pth", "x")],
            "file source: option \"pth\": there is no such option, did you mean \"path\"?",
        ),
        (Source, "file", &[], "file source: option \"path\": is required"),
        (
            Source,
            "file",
            &[("path", "x"), ("format", "xml")],
            "file source: option \"format\": expected one of lines, json, csv, found \"xml\"",
        ),
        (
            Source,
            "file",
            &[("path", "x"), ("rate", "0")],
            "file source: option \"rate\": expected a whole number above 0, found \"0\"",
        ),
        (
            Source,
            "file",
            &[("path", "x"), ("chunk-bytes", "9 MiB")],
            "file source: option \"chunk-bytes\": expected 1 to 8388608 bytes, found 9437184",
        ),
        (
            Source,
            "file",
            &[("path", "x"), ("csv-header", "true")],
            "file source: option \"csv-header\": is for format csv only",
        ),
        (
            Source,
            "file",
            &[("path", "x"), ("format", "csv"), ("csv-delimiter", ";;")],
            "file source: option \"csv-delimiter\": expected one ASCII character, found \";;\"",
        ),
        (
            Source,
            "file",
            &[("path", "x"), ("watch-interval", "1 s")],
            "file source: option \"watch-interval\": needs watch = true",
        ),
        (
            Source,
            "socket",
            &[("address", "localhost")],
            "socket source: option \"address\": expected host:port, found \"localhost\"",
        ),
        (
            Source,
            "sequence",
            &[("from", "2"), ("to", "1")],
            "sequence source: option \"to\": must not be below from, which is 2, found 1",
        ),
        (
            Source,
            "nexmark",
            &[("next-rate", "2000")],
            "nexmark source: option \"next-rate\": must not be above first-rate, which is 1000, found 2000",
        ),
        (Sink, "discard", &[("path", "x")], "discard sink: option \"path\": there is no such option, it has none"),
        (
            Sink,
            "print",
            &[("stream", "tty")],
            "print sink: option \"stream\": expected one of stdout, stderr, found \"tty\"",
        ),
    ] {
        let error = validate(&spec(name, options), role).expect_err("refused");
        assert_eq!(error.to_string(), expected);
    }
    for (role, name, options) in [
        (Source, "stdin", &[][..]),
        (Source, "nexmark", &[("events", "10")]),
        (Source, "file", &[("path", "x"), ("format", "csv"), ("csv-delimiter", "tab"), ("chunk-bytes", "64 kb")]),
        (Sink, "socket", &[("address", "[::1]:80")]),
        (Sink, "discard", &[]),
    ] {
        validate(&spec(name, options), role).expect("valid");
    }
}

/// What a subtask failed within comes before what it would have been dealt next.
#[test]
fn what_is_given_back_is_dealt_in_its_order() {
    let sequence = spec("sequence", &[("from", "0"), ("to", "2999999")]);
    let enumerator = |restored| create_enumerator(&sequence, 3, "i64", Arc::default(), restored).expect("valid");
    let split_of = |dealt: SplitAssignment| match dealt {
        SplitAssignment::Split(split) => split,
        other => panic!("{other:?}"),
    };
    let mut source = enumerator(None);
    let splits: Vec<_> = (0..3).map(|_| split_of(source.next_split(0).expect("dealt"))).collect();
    // It fails with all three, and again with the first of them.
    source.add_splits_back(0, splits.clone());
    assert_eq!(split_of(source.next_split(0).expect("dealt")), splits[0]);
    let state = source.snapshot();
    source.add_splits_back(0, splits[..1].to_vec());
    for split in &splits {
        assert_eq!(split_of(source.next_split(0).expect("dealt")), *split);
    }
    // A checkpoint finds the first with the reader, and the others waiting.
    let mut source = enumerator(Some(RestoredSource { enumerator: state, splits: vec![(0, splits[0].clone())] }));
    for split in &splits {
        assert_eq!(split_of(source.next_split(0).expect("dealt")), *split);
    }
}

#[test]
fn sequences_are_dealt_without_gaps() {
    let permissions = Arc::default();
    for (from, to, parallelism) in [(0, 0, 4), (-3, 9, 3), (i64::MAX - 5, i64::MAX, 2), (0, 1_100_000, 1)] {
        let sequence = spec("sequence", &[("from", &from.to_string()), ("to", &to.to_string())]);
        let output = run(&sequence, parallelism, "i64", &permissions, None).expect("runs");
        let number = |row: Vec<u8>| i64::from_le_bytes(row.try_into().expect("eight bytes"));
        let mut numbers: Vec<i64> = output.into_iter().flatten().map(number).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().eq(from..=to), "{from} to {to}");
    }
    let all = spec("sequence", &[("from", &i64::MIN.to_string()), ("to", &i64::MAX.to_string())]);
    let mut enumerator = create_enumerator(&all, 4, "i64", Arc::clone(&permissions), None).expect("valid");
    assert!(matches!(enumerator.next_split(0), Ok(SplitAssignment::Split(_))));
    let error = run(&all, 1, "u64", &permissions, None).expect_err("another type");
    assert_eq!(error.to_string(), "sequence source: option \"record type\": it gives i64, but the records are u64");
}

#[test]
fn a_number_of_a_sequence_is_named() {
    let permissions = Arc::default();
    let sequence = spec("sequence", &[("from", "5"), ("to", "8")]);
    let mut enumerator = create_enumerator(&sequence, 1, "i64", Arc::clone(&permissions), None).expect("valid");
    let context = reader_context(0, 1, "i64", &permissions, &Clock::new_virtual(Timestamp(0)), None);
    let mut reader = create_reader(&sequence, context).expect("valid");
    assert_eq!(reader.position(), "sequence before its first number");
    let SplitAssignment::Split(split) = enumerator.next_split(0).expect("has splits") else { panic!("no split") };
    reader.add_split(split).expect("valid");
    assert!(matches!(reader.poll(1 << 20), Ok(ReaderOutput::Records(batch)) if batch.count == 4));
    assert_eq!((reader.row_position(0).as_str(), reader.row_position(3).as_str()), ("sequence at 5", "sequence at 8"));
    assert_eq!(reader.position(), "sequence behind 8");
}

#[test]
fn a_rate_is_that_of_all_subtasks_together() {
    let permissions = Arc::default();
    let sequence = spec("sequence", &[("from", "1"), ("to", "1000"), ("rate", "100")]);
    let clock = Clock::new_virtual(Timestamp(0));
    let mut enumerator = create_enumerator(&sequence, 2, "i64", Arc::clone(&permissions), None).expect("valid");
    let mut emitted = 0;
    let mut readers: Vec<_> = (0..2)
        .map(|index| {
            let context = reader_context(index, 2, "i64", &permissions, &clock, None);
            create_reader(&sequence, context).expect("valid")
        })
        .collect();
    for reader in &mut readers {
        let SplitAssignment::Split(split) = enumerator.next_split(0).expect("has splits") else { panic!("no split") };
        reader.add_split(split).expect("valid");
    }
    for _ in 0..3000 {
        clock.advance(Duration::from_millis(1));
        for reader in &mut readers {
            if let ReaderOutput::Records(batch) = reader.poll(1 << 20).expect("reads") {
                assert_eq!(batch.count, 1, "smoothly");
                emitted += batch.count;
            }
        }
    }
    assert!((298..=300).contains(&emitted), "{emitted}");
}

#[test]
fn nexmark_rows_are_those_of_its_json() {
    let permissions = Arc::default();
    let whole = "Event[Person(Person{id:u64,name:string,email_address:string,credit_card:string,city:string,state:string,\
        date_time:i64,extra:option<string>})|Auction(Auction{id:u64,item_name:string,description:string,initial_bid:u64,\
        reserve:f64,date_time:u64,expires:u64,seller:u64,category:u8,extra:bytes})|Bid(Bid{auction:u64,bidder:u64,\
        price:u64,channel:string,url:string,date_time:u64,extra:string})]";
    let bids = "Event[*Other|Bid(Bid{date_time:u64,price:option<u32>})]";
    let nexmark = spec("nexmark", &[("events", "2000")]);
    let json: Output = run(&nexmark, 1, "string", &permissions, None).expect("runs");
    assert_eq!(json[0].len(), 2000);
    // The beginning of the input that the project's expected results were made of.
    let first = String::from_utf8(json[0][0].clone()).expect("JSON is text");
    assert!(
        first.starts_with("{\"Person\":{\"id\":1000,\"name\":\"vicky noris\",\"email_address\":\"yplkvgz@qbxfg.com\"")
    );
    assert!(first.contains("\"date_time\":1767225600000"));
    for record_type in [whole, bids] {
        let descriptor = TypeDescriptor::parse(record_type).expect("a descriptor");
        let mut reader = JsonReader::new(&descriptor).expect("a type for JSON");
        let expected: Vec<Vec<u8>> = json[0]
            .iter()
            .map(|line| {
                let mut row = Vec::new();
                reader.read(std::str::from_utf8(line).expect("text"), &mut row).expect("events fit");
                row
            })
            .collect();
        for parallelism in [1, 3] {
            let output = run(&nexmark, parallelism, record_type, &permissions, None).expect("runs");
            let step = parallelism as usize;
            for (index, rows) in output.iter().enumerate() {
                assert!(rows.iter().eq(expected.iter().skip(index).step_by(step)), "{record_type} at {index}/{step}");
            }
        }
    }
}

#[test]
fn nexmark_says_what_does_not_fit() {
    let permissions = Arc::default();
    let nexmark = spec("nexmark", &[("events", "60")]);
    for (record_type, expected) in [
        ("u64", "it gives text or an enum of Person, Auction and Bid, but the records are u64"),
        ("E[Bit(Bid{price:u64})]", "there is no event Bit, only Person, Auction, Bid"),
        ("E[Bid(Bid{prize:u64})|*O]", "Bid has no field \"prize\", did you mean \"price\"?"),
        ("E[Bid(Bid{price:string})|*O]", "field \"Bid.price\" is a number, and cannot become string"),
        ("E[Bid(Bid{url:u8})|*O]", "field \"Bid.url\" is text, and cannot become u8"),
        ("E[Bid(u64)|*O]", "variant Bid must hold one struct"),
    ] {
        let error = run(&nexmark, 1, record_type, &permissions, None).expect_err("refused").to_string();
        assert_eq!(error, format!("nexmark source: option \"record type\": {expected}"));
    }
    let error = run(&nexmark, 1, "E[Bid(Bid{price:u8})|*O]", &permissions, None).expect_err("too large");
    assert!(text_of(&error).starts_with("Nexmark event "), "{error}");
    assert!(text_of(&error).ends_with(" is out of range, which ends at 255"), "{error}");
    let rejected = Rejected::default();
    let output = run(&nexmark, 1, "E[Bid(Bid{price:u64})]", &permissions, Some(&rejected)).expect("skips");
    let refused = rejected.lock().expect("nobody panicked").len();
    assert_eq!((output[0].len(), refused), (52, 8), "a person and three auctions in fifty events");
}

#[test]
fn sockets_are_read_by_one_subtask_until_they_close() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let server = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("the source connects");
        stream.write_all(b"first\r\nsec").expect("sent");
        stream.write_all(b"ond\nlast").expect("sent");
    });
    let permissions = Arc::new(Permissions { net: vec![address.clone()], ..Permissions::default() });
    let socket = spec("socket", &[("address", &address)]);
    let output = run(&socket, 3, "string", &permissions, None).expect("runs");
    server.join().expect("served");
    assert_eq!(output, [vec![b"first".to_vec(), b"second".to_vec(), b"last".to_vec()], vec![], vec![]]);
}

#[test]
fn a_quiet_socket_does_not_hold_the_task() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let permissions = Arc::new(Permissions { net: vec![address.clone()], ..Permissions::default() });
    let socket = spec("socket", &[("address", &address)]);
    let clock = Clock::new_virtual(Timestamp(0));
    let mut reader = create_reader(&socket, reader_context(0, 1, "string", &permissions, &clock, None)).expect("valid");
    reader.add_split(SourceSplit(Vec::new())).expect("starts");
    let (mut stream, _) = listener.accept().expect("the source connects");
    for _ in 0..3 {
        assert!(matches!(reader.poll(1000), Ok(ReaderOutput::Idle(Duration::ZERO))));
    }
    drop(reader);
    // The thread gives the connection up, which the other side sees.
    assert_eq!(stream.read(&mut [0; 16]).expect("readable"), 0);
}

#[test]
fn addresses_need_a_grant_and_somebody_who_listens() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    let socket = spec("socket", &[("address", &address)]);
    let nothing = Arc::default();
    let refused = format!("the job may not connect to {address}; to allow it, submit with --allow-net {address}");
    assert_eq!(run(&socket, 1, "string", &nothing, None).expect_err("refused").to_string(), refused);
    let error = create_writer(&socket, writer_context(0, 1, 0, &nothing)).err().expect("refused");
    assert_eq!(error.to_string(), refused);
    let error = create_committer(&socket, JobId::random(), nothing).err().expect("refused");
    assert_eq!(error.to_string(), refused);
    let permissions = Arc::new(Permissions { net: vec![address.clone()], ..Permissions::default() });
    let expected = format!("could not connect to {address}: Connection refused (os error 111)");
    assert_eq!(text_of(&run(&socket, 1, "string", &permissions, None).expect_err("nobody listens")), expected);
    let error = create_writer(&socket, writer_context(0, 1, 0, &permissions)).err().expect("nobody listens");
    assert_eq!(text_of(&error), expected);
}

#[test]
fn a_consumer_that_pauses_holds_the_socket_sink_until_it_reads_or_the_task_is_told_to_stop() {
    const ROWS: &[u8] = &[b'\n'; 1 << 20];
    // More than the buffers of a connection hold.
    const BATCHES: usize = 32;
    for is_told in [false, true] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let canceled = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&canceled);
        let (done, is_done) = bounded(1);
        let writing = std::thread::spawn(move || {
            let permissions = Arc::new(Permissions { net: vec![address.clone()], ..Permissions::default() });
            let is_canceled = Box::new(move || told.load(Ordering::Relaxed));
            let context = WriterContext { is_canceled, ..writer_context(0, 1, 0, &permissions) };
            let mut writer = create_writer(&spec("socket", &[("address", &address)]), context)?;
            let written = (0..BATCHES).try_for_each(|_| writer.write(&lines(ROWS, 1 << 20)));
            done.send(()).expect("somebody waits");
            written.and_then(|()| writer.finish())
        });
        let (mut stream, _) = listener.accept().expect("the sink connects");
        // Longer than any wait of the sink.
        assert!(is_done.recv_timeout(Duration::from_millis(1500)).is_err(), "nobody reads");
        if is_told {
            canceled.store(true, Ordering::Relaxed);
            is_done.recv_timeout(Duration::from_secs(1)).expect("it stops");
            assert!(matches!(writing.join().expect("no panic"), Err(ConnectorError::Canceled)));
        } else {
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("readable");
            assert_eq!(received.len(), BATCHES * ROWS.len());
            writing.join().expect("no panic").expect("all was sent");
        }
    }
}

#[test]
fn the_socket_sink_sends_all_rows_when_it_finishes() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    let permissions = Arc::new(Permissions { net: vec![address.clone()], ..Permissions::default() });
    let socket = spec("socket", &[("address", &address)]);
    let mut writer = create_writer(&socket, writer_context(0, 1, 0, &permissions)).expect("somebody listens");
    let (mut stream, _) = listener.accept().expect("the sink connects");
    writer.write(&lines(b"a\nb\n", 2)).expect("sent");
    assert_eq!(writer.finish().expect("sent"), []);
    let mut received = String::new();
    stream.read_to_string(&mut received).expect("text");
    assert_eq!(received, "a\nb\n");
    drop(stream);
    // The other side is gone: at the latest the second write hears of it.
    let failed = (0..100).find_map(|_| writer.write(&lines(b"c\n", 1)).and_then(|()| writer.flush()).err());
    let text = text_of(&failed.expect("nobody receives it"));
    assert!(text.starts_with(&format!("could not write to {address}: ")), "{text}");
}

#[test]
fn records_that_are_no_text_are_refused_by_text_sinks() {
    let permissions = Arc::new(Permissions {
        write: vec![PathBuf::from("/")],
        net: vec!["x:1".to_owned()],
        ..Permissions::default()
    });
    for (name, options) in [("print", &[][..]), ("file", &[("path", "/out")]), ("socket", &[("address", "x:1")])] {
        let context = WriterContext { record_type: "u64".to_owned(), ..writer_context(0, 1, 0, &permissions) };
        let error = create_writer(&spec(name, options), context).err().expect("refused").to_string();
        let problem = "it writes text, but the records are u64: map them to text first";
        assert_eq!(error, format!("{name} sink: option \"record type\": {problem}"));
    }
}

#[test]
fn discarded_rows_may_be_anything() {
    let context = WriterContext { record_type: "u64".to_owned(), ..writer_context(0, 1, 0, &Arc::default()) };
    let mut writer = create_writer(&spec("discard", &[]), context).expect("valid");
    writer.write(&lines(b"x\n", 1)).expect("discarded");
    assert_eq!(writer.finish().expect("finished"), []);
    let mut committer = create_committer(&spec("discard", &[]), JobId::random(), Arc::default()).expect("valid");
    committer.prepare().expect("nothing to prepare");
    committer.commit(Vec::new()).expect("nothing to commit");
    committer.commit(vec![Committable(vec![1])]).expect_err("it makes none");
    committer.abort().expect("nothing to remove");
}

#[test]
fn splits_of_failed_subtasks_are_dealt_again() {
    let permissions = Arc::default();
    for (name, options, record_type) in
        [("sequence", &[("from", "1"), ("to", "4")][..], "i64"), ("nexmark", &[], "string"), ("stdin", &[], "string")]
    {
        let mut enumerator =
            create_enumerator(&spec(name, options), 2, record_type, Arc::clone(&permissions), None).expect("valid");
        let mut dealt = BTreeMap::new();
        for index in 0..2 {
            if let SplitAssignment::Split(split) = enumerator.next_split(index).expect("dealt") {
                dealt.insert(index, split);
            }
            assert_eq!(
                enumerator.next_split(index).ok().filter(|_| name == "nexmark"),
                (name == "nexmark").then_some(SplitAssignment::NoMoreSplits)
            );
        }
        let split = dealt.remove(&0).expect("the first subtask has one");
        enumerator.add_splits_back(0, vec![split.clone()]);
        assert_eq!(enumerator.next_split(0).expect("dealt"), SplitAssignment::Split(split), "{name}");
        assert_eq!(enumerator.next_split(0).expect("asked"), SplitAssignment::NoMoreSplits, "{name}");
    }
}

#[test]
fn a_granted_path_with_wildcards_in_its_name_is_only_itself() {
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path().canonicalize().expect("there");
    for name in ["a[1].log", "a1.log", "dir?/x", "dir1/x"] {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("within the root")).expect("made");
        std::fs::write(path, "").expect("written");
    }
    let permissions = Permissions { read: vec![root.join("a[1].log"), root.join("dir?")], ..Permissions::default() };
    for (name, is_granted) in [("a[1].log", true), ("a1.log", false), ("dir?/x", true), ("dir1/x", false)] {
        assert_eq!(permissions.readable(&root.join(name)).is_ok(), is_granted, "{name}");
    }
}

#[test]
fn a_granted_glob_holds_its_matches_and_what_lies_in_them() {
    let root = tempfile::tempdir().expect("a directory");
    let root = root.path().canonicalize().expect("there");
    for name in ["a.log", "b.txt", "logs-1/x", "deep/c.log"] {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("within the root")).expect("made");
        std::fs::write(path, "").expect("written");
    }
    std::os::unix::fs::symlink(root.join("b.txt"), root.join("link.log")).expect("linked");
    let permissions = Permissions { read: vec![root.join("*.log"), root.join("logs-*")], ..Permissions::default() };
    for (name, is_granted) in
        [("a.log", true), ("logs-1/x", true), ("b.txt", false), ("deep/c.log", false), ("link.log", false)]
    {
        assert_eq!(permissions.readable(&root.join(name)).is_ok(), is_granted, "{name}");
    }
}
