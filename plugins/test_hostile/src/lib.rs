//! A plugin that attacks the engine: the tests of the sandbox run it.
//!
//! The arguments choose what it does: `AT ACT`, for example `process-batch loop`.
//! `AT` is the entry point in which it happens ("plan" included); everywhere
//! else the plugin behaves. Without arguments it hands each row on. With a third
//! argument, a directory, it is a whole job: a source of ten rows, a map in a task
//! of its own, and a sink of files. With a fourth, a file, its lines are the source, at
//! the rate that the fifth says, and the map numbers them: its number is operator state.

// The names of a plugin's exports are none for the linkers of other targets.
#![cfg(target_arch = "wasm32")]
// Not forbidden: an attack may do what a well-behaved plugin would not.
#![allow(unsafe_code, reason = "attacks on the boundary and the bindings need it")]
#![allow(unconditional_recursion, reason = "one of the attacks")]

use std::cell::{Cell, RefCell};

use engine::plugin::{
    graph::{ChainingStrategy, Connector, Operator, StateDeclaration, StateKind, StreamEdge, StreamNode},
    keyed_state, logging, metrics, operator_state, output, timers,
};
use exports::engine::plugin::{
    operator_chain::{
        BatchKind, Guest as OperatorChain, OperatorContext, SourceStatus, Status, TakeStatus, TimeDomain,
    },
    program::{Guest as Program, StreamGraph},
};

wit_bindgen::generate!({ path: "../../wit", world: "plugin" });

struct Hostile;

export!(Hostile);

/// What was planned: where to misbehave, and how.
#[derive(Clone, Default)]
struct Attack {
    at: String,
    act: String,
    /// Where a whole job writes; none: there is only the map, twice.
    output: Option<String>,
    /// What it reads and how many lines a second; none: it makes its rows.
    input: Option<(String, String)>,
}

thread_local! {
    static ATTACK: RefCell<Attack> = RefCell::default();
    /// Lines that were numbered.
    static NUMBERED: Cell<u64> = const { Cell::new(0) };
    static LEAKED: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

/// Node and row, as `mark-address` promises.
static mut MARK: [u32; 2] = [0; 2];

/// Stands for none in `MARK`.
const NO_ROW: u32 = u32::MAX;

fn mark(node: u32, row: u32) {
    // Written through a pointer and volatile, so that the compiler keeps the store before a trap.
    unsafe { (&raw mut MARK).write_volatile([node, row]) };
}

impl Program for Hostile {
    fn plan(args: Vec<String>) -> Result<StreamGraph, String> {
        std::panic::set_hook(Box::new(|panic| {
            let message = panic.payload_as_str().unwrap_or("no message");
            let (file, line, column) =
                panic.location().map_or(("?", 0, 0), |place| (place.file(), place.line(), place.column()));
            logging::panicked(message, file, line, column);
        }));
        let attack = Attack {
            at: args.first().cloned().unwrap_or_default(),
            act: args.get(1).cloned().unwrap_or_default(),
            output: args.get(2).cloned(),
            input: args.get(3).cloned().zip(args.get(4).cloned()),
        };
        ATTACK.set(attack);
        if args.first().is_some_and(|at| at == "plan") {
            match args.get(1).map(String::as_str) {
                Some("refuse") => return Err("the argument --input is missing\n\u{1b}[31m".to_owned()),
                Some("many-nodes") => {
                    let mut graph = graph();
                    graph.nodes = vec![graph.nodes[0].clone(); 400_000];
                    return Ok(graph);
                }
                Some("cycle") => {
                    let mut graph = graph();
                    graph.edges.push(StreamEdge { source: 2, target: 2, ..graph.edges[0].clone() });
                    return Ok(graph);
                }
                Some("parallelism") => {
                    let mut graph = graph();
                    graph.nodes[1].parallelism = Some(u32::MAX);
                    return Ok(graph);
                }
                Some("many-edges") => {
                    let mut graph = graph();
                    graph.edges = vec![graph.edges[0].clone(); 200_000];
                    return Ok(graph);
                }
                Some("no-such-node") => {
                    let mut graph = graph();
                    graph.edges[0].target = 77;
                    return Ok(graph);
                }
                Some("long-names") => {
                    let mut graph = graph();
                    graph.nodes[0].name = "n".repeat(16 << 20);
                    return Ok(graph);
                }
                // A setting, as key and value.
                Some("set") => {
                    let mut graph = graph();
                    let [key, value] = [2, 3].map(|index| args.get(index).cloned().unwrap_or_default());
                    graph.configuration.push((key, value));
                    return Ok(graph);
                }
                Some("other-graph") => {
                    let mut graph = graph();
                    graph.job_name = Some("another".to_owned());
                    return Ok(graph);
                }
                _ => {}
            }
        }
        misbehave("plan", 0);
        Ok(graph())
    }

    fn describe() -> String {
        misbehave("describe", 0);
        "attacks the engine: [AT ACT]".to_owned()
    }
}

/// A source, the map and a sink.
fn whole_job(output: String) -> StreamGraph {
    let mut graph = graph_of_maps();
    let sink = Connector { name: "file".to_owned(), options: vec![("path".to_owned(), output)] };
    graph.nodes.push(StreamNode {
        id: 3,
        name: "Sink: File".to_owned(),
        operator: Operator::Sink(sink),
        output_type: None,
        ..graph.nodes[0].clone()
    });
    graph.edges.push(StreamEdge { source: 2, target: 3, ..graph.edges[0].clone() });
    graph.nodes[0].operator = match ATTACK.with_borrow(|attack| attack.input.clone()) {
        Some((path, rate)) => {
            let options = vec![("path".to_owned(), path), ("rate".to_owned(), rate)];
            Operator::Source(Connector { name: "file".to_owned(), options })
        }
        None => Operator::GuestSource("Source".to_owned()),
    };
    graph.nodes[0].input_types.clear();
    graph.nodes[1].chaining = ChainingStrategy::Head;
    graph
}

fn graph() -> StreamGraph {
    match ATTACK.with_borrow(|attack| attack.output.clone()) {
        Some(output) => whole_job(output),
        None => graph_of_maps(),
    }
}

/// One state of each kind, of the second map.
fn states(node: u32) -> Vec<StateDeclaration> {
    if node != 2 {
        return Vec::new();
    }
    let state = |name: &str, kind, time_to_live| StateDeclaration {
        name: name.to_owned(),
        kind,
        value_type: "bytes".to_owned(),
        map_key_type: (kind == StateKind::Map).then(|| "bytes".to_owned()),
        time_to_live,
        taken_at_end: name == "value",
    };
    vec![
        state("value", StateKind::Value, None),
        state("list", StateKind::List, None),
        state("map", StateKind::Map, None),
        state("short-lived", StateKind::Value, Some(1)),
        state("operator", StateKind::OperatorList, None),
    ]
}

fn graph_of_maps() -> StreamGraph {
    let node = |id| StreamNode {
        id,
        name: format!("hostile {id}"),
        operator: Operator::Guest("Map".to_owned()),
        uid: None,
        uid_hash: None,
        parallelism: None,
        max_parallelism: None,
        slot_sharing_group: None,
        co_location_group: None,
        chaining: ChainingStrategy::Always,
        buffer_timeout: None,
        input_types: vec!["string".to_owned()],
        output_type: Some("string".to_owned()),
        key_type: Some("string".to_owned()),
        states: states(id),
        generates_watermarks: false,
    };
    StreamGraph {
        job_name: None,
        parallelism: None,
        max_parallelism: None,
        configuration: Vec::new(),
        nodes: vec![node(1), node(2)],
        edges: vec![StreamEdge {
            source: 1,
            target: 2,
            input: 0,
            partitioner: None,
            side_output: None,
            selector: None,
            record_type: "string".to_owned(),
        }],
    }
}

impl OperatorChain for Hostile {
    fn open(_: OperatorContext) -> Status {
        mark(2, 0);
        if is_numbering()
            && let Some(number) = operator_state::get(NOT_BY_KEY).get(4..12)
        {
            NUMBERED.set(u64::from_le_bytes(number.try_into().expect("eight bytes")));
        }
        let status = misbehave("open", 0);
        mark(0, 0);
        status
    }

    fn process_batch(_: u32, kind: BatchKind, count: u32, data: Vec<u8>) -> Status {
        let half = count / 2;
        mark(2, half);
        let status = misbehave("process-batch", half);
        if status == Status::Ok && is_numbering() {
            number_lines(kind, &data);
        } else if status == Status::Ok && kind == BatchKind::Rows {
            output::emit(0, count, &data);
        }
        mark(0, 0);
        status
    }

    fn poll_source(_: u32) -> SourceStatus {
        match misbehave("poll-source", 0) {
            Status::Ok => {
                if ATTACK.with_borrow(|attack| attack.output.is_some()) {
                    output::emit(0, 10, &rows(10, b"row"));
                }
                SourceStatus::End
            }
            Status::Failed => SourceStatus::Failed,
        }
    }

    fn process_watermark(timestamp: i64) -> Status {
        let status = misbehave("process-watermark", 0);
        output::emit_watermark(0, timestamp);
        status
    }

    fn process_watermark_status(idle: bool) -> Status {
        let status = misbehave("process-watermark-status", 0);
        output::emit_watermark_status(0, idle);
        status
    }

    /// Emits a row for each timer.
    fn fire_timers(_: TimeDomain, _: i64, count: u32, _: Vec<u8>) -> Status {
        let status = misbehave("fire-timers", 0);
        output::emit(0, count, &rows(count, b"fired"));
        status
    }

    /// Emits a row for each entry.
    fn take_state(_: u32, count: u32, _: Vec<u8>) -> TakeStatus {
        mark(2, NO_ROW);
        let status = misbehave("take-state", 0);
        output::emit(0, count, &rows(count, b"taken"));
        mark(0, NO_ROW);
        match status {
            Status::Ok if ATTACK.with_borrow(|attack| attack.act == "more") => TakeStatus::More,
            Status::Ok => TakeStatus::All,
            Status::Failed => TakeStatus::Failed,
        }
    }

    fn begin_split(_: u32) -> Status {
        misbehave("begin-split", 0)
    }

    fn end_split(_: u32) -> Status {
        misbehave("end-split", 0)
    }

    fn advance_processing_time(_: i64) -> Status {
        misbehave("advance-processing-time", 0)
    }

    fn snapshot(checkpoint_id: u64) -> Status {
        if is_numbering() {
            operator_state::put(NOT_BY_KEY, &part(&NUMBERED.get().to_le_bytes()));
        }
        if checkpoint_id % 2 == 0 {
            misbehave("even-snapshot", 0);
        }
        misbehave("snapshot", 0)
    }

    fn notify_checkpoint_complete(_: u64) -> Status {
        misbehave("notify-checkpoint-complete", 0)
    }

    fn notify_checkpoint_aborted(_: u64) -> Status {
        misbehave("notify-checkpoint-aborted", 0)
    }

    fn end_input(_: u32) -> Status {
        misbehave("end-input", 0)
    }

    fn close() -> Status {
        misbehave("close", 0)
    }

    fn mark_address() -> u32 {
        (&raw const MARK) as usize as u32
    }
}

fn rows(count: u32, payload: &[u8]) -> Vec<u8> {
    let mut rows = Vec::new();
    for _ in 0..count {
        rows.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        rows.extend_from_slice(&[0; 4]);
        rows.extend_from_slice(&i64::MIN.to_le_bytes());
        rows.extend_from_slice(payload);
    }
    rows
}

fn is_numbering() -> bool {
    ATTACK.with_borrow(|attack| attack.input.is_some())
}

/// Emits each line with its number before it.
fn number_lines(kind: BatchKind, mut data: &[u8]) {
    while !data.is_empty() {
        let line;
        if kind == BatchKind::Lines {
            let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
            (line, data) = (&data[..end], data.get(end + 1..).unwrap_or_default());
        } else {
            let length = u32::from_le_bytes(data[..4].try_into().expect("a row begins with its length")) as usize;
            (line, data) = data[16..].split_at(length);
        }
        let number = NUMBERED.replace(NUMBERED.get() + 1);
        let text = [number.to_string().as_bytes(), b" ", line].concat();
        output::emit(0, 1, &rows(1, &text));
    }
}

fn misbehave(at: &str, row: u32) -> Status {
    let attack = ATTACK.with_borrow(Clone::clone);
    if attack.at != at {
        return Status::Ok;
    }
    match attack.act.as_str() {
        "loop" => loop {
            std::hint::spin_loop();
        },
        "loop-emit" => loop {
            output::emit(0, 0, &[]);
        },
        "loop-log" => loop {
            logging::log(logging::Level::Info, "again and again");
        },
        "loop-fill" => {
            let mut block = vec![0_u8; 32 << 20];
            for byte in 0_u8.. {
                block.fill(byte);
                std::hint::black_box(&block);
                if byte == u8::MAX {
                    continue;
                }
            }
        }
        "recurse" => {
            std::hint::black_box(recurse(row));
        }
        "recurse-indirect" => {
            std::hint::black_box(recurse_indirect(row, std::hint::black_box(recurse_indirect as *const () as usize)));
        }
        "grow" => {
            let mut blocks: Vec<Vec<u8>> = Vec::new();
            loop {
                blocks.push(vec![1; 1 << 20]);
            }
        }
        "grow-to-4-gib" => {
            if core::arch::wasm32::memory_grow::<0>(65_535) == usize::MAX {
                core::arch::wasm32::unreachable();
            }
        }
        "leak" => LEAKED.with_borrow_mut(|leaked| leaked.push(vec![1; 4 << 20])),
        "unreachable" => {
            core::arch::wasm32::unreachable();
        }
        "out-of-bounds" => {
            let pointer = std::hint::black_box(0xffff_fff0_usize) as *const u8;
            std::hint::black_box(unsafe { pointer.read_volatile() });
        }
        "indirect" => {
            let recurse = std::hint::black_box(recurse as *const () as usize);
            let function: fn(u64) -> u64 = unsafe { std::mem::transmute(recurse) };
            std::hint::black_box(function(1));
        }
        "panic" => panic!("the row is bad:\n\u{1b}[31m{row}"),
        "instant" => drop(std::hint::black_box(std::time::Instant::now())),
        "system-time" => drop(std::hint::black_box(std::time::SystemTime::now())),
        "sleep" => std::thread::sleep(std::time::Duration::from_millis(1)),
        "thread" => drop(std::thread::spawn(|| ())),
        "file" => drop(std::fs::read("/etc/hostname").unwrap()),
        "panic-large" => panic!("{}", "x".repeat(10 << 20)),
        "index" => {
            let empty: &[u32] = std::hint::black_box(&[]);
            std::hint::black_box(empty[std::hint::black_box(7)]);
        }
        "failed" => return Status::Failed,
        "fail" => {
            output::fail(2, "cannot parse \"x\u{7}\" as a number");
            return Status::Failed;
        }
        "fail-but-ok" => output::fail(1, "said ok afterwards"),
        "reject" => {
            if output::reject_row(2, Some(row), "not a number", b"abc") == output::Verdict::Fail {
                return Status::Failed;
            }
        }
        "emit" => output::emit(0, 1, &rows(1, b"x")),
        "emit-watermark" => output::emit_watermark(0, 1),
        "emit-large" => output::emit(0, 1, &rows(1, &vec![7; 5 << 20])),
        "emit-much" => {
            let rows = rows(1, &vec![7; 1 << 20]);
            loop {
                output::emit(0, 1, &rows);
            }
        }
        "emit-many" => {
            let rows = rows(1000, b"");
            loop {
                output::emit(0, 1000, &rows);
            }
        }
        "emit-empty-many" => loop {
            output::emit(0, 1 << 30, &[]);
        },
        "watermark-many" => loop {
            output::emit_watermark(0, 1);
        },
        "no-output" => output::emit(7, 1, &rows(1, b"x")),
        "wrong-count" => output::emit(0, 2, &rows(1, b"x")),
        "cut-row" => output::emit(0, 1, &rows(1, b"abcdef")[..20]),
        "long-length" => {
            let mut rows = rows(1, b"x");
            rows[..4].fill(0xff);
            output::emit(0, 1, &rows);
        }
        "log-flood" => {
            for _ in 0..200_000 {
                logging::log(logging::Level::Warn, "\u{1b}[2Jone\ntwo\u{202e}");
            }
        }
        "log-long" => logging::log(logging::Level::Error, &"é".repeat(1 << 20)),
        "log-debug" => logging::log(logging::Level::Debug, "below the level"),
        "log-not-utf8" => {
            let text = unsafe { std::str::from_utf8_unchecked(std::hint::black_box(&[b'a', 0xff, 0xfe])) };
            logging::log(logging::Level::Info, text);
        }
        "list-out-of-bounds" => {
            let slice = unsafe { std::slice::from_raw_parts(0xffff_ff00_usize as *const u8, 0x7fff_ffff) };
            output::emit(0, 1, slice);
        }
        "metrics-many" => {
            for index in 0..100_000 {
                metrics::register(1, metrics::Kind::Counter, &format!("metric_{index}"));
            }
            metrics::register(1, metrics::Kind::Counter, &"n".repeat(1 << 20));
            metrics::register(1, metrics::Kind::Gauge, "bad name\n");
        }
        "metrics" => {
            let counter = metrics::register(1, metrics::Kind::Counter, "rows");
            metrics::add(counter, 3);
            metrics::set(metrics::register(2, metrics::Kind::Gauge, "depth"), 1.5);
        }
        "metric-unknown" => metrics::add(77, 1),
        // Said by what the entry point returns.
        "more" => {}
        "state" => use_state(),
        "state-ten" => {
            for key in 0..10 {
                keyed_state::put_many(VALUE, 1, &entry(&[key], &[b"value"]));
            }
        }
        "state-read" => {
            keyed_state::get_many(VALUE, 0, &[]);
        }
        "state-foreign" => {
            // Some of these keys belong to another subtask.
            for key in 0..=u8::MAX {
                keyed_state::get_many(VALUE, 1, &entry(&[key], &[]));
            }
        }
        "state-long-value" => keyed_state::put_many(VALUE, 1, &entry(b"key", &[&vec![7; 100 << 20]])),
        "state-over-quota" => {
            for key in 0_u32.. {
                keyed_state::put_many(VALUE, 1, &entry(&key.to_le_bytes(), &[&vec![7; 1 << 20]]));
            }
        }
        "state-tiny-over-quota" => {
            for list in 0_u32.. {
                let entries: Vec<_> =
                    (0..1000).flat_map(|key| entry(&(list * 1000 + key).to_le_bytes(), &[b""])).collect();
                keyed_state::put_many(VALUE, 1000, &entries);
            }
        }
        "state-flood" => {
            keyed_state::put_many(VALUE, 1, &entry(b"key", &[&vec![7; 1 << 20]]));
            keyed_state::get_many(VALUE, 100_000, &entry(b"key", &[]).repeat(100_000));
        }
        "state-loop" => {
            let entries = entry(b"key", &[b"value"]).repeat(1 << 20);
            loop {
                keyed_state::put_many(VALUE, 1 << 20, &entries);
            }
        }
        "state-cut" => keyed_state::put_many(VALUE, 1, &entry(b"key", &[b"value"])[..15]),
        "state-long-length" => {
            let mut entries = entry(b"key", &[b"value"]);
            entries[..4].fill(0xff);
            keyed_state::put_many(VALUE, 1, &entries);
        }
        "state-wrong-count" => keyed_state::put_many(VALUE, u32::MAX, &entry(b"key", &[b"value"])),
        "state-bad-elements" => keyed_state::append_many(LIST, 1, &entry(b"key", &[b"value"])),
        "state-no-end-of-life" => keyed_state::put_many(SHORT_LIVED, 1, &entry(b"key", &[b"value"])),
        "state-wrong-kind" => keyed_state::append_many(VALUE, 1, &entry(b"key", &[b"value"])),
        "state-not-by-key" => {
            keyed_state::get_many(NOT_BY_KEY, 0, &[]);
        }
        "state-unknown" => {
            keyed_state::get_many(u32::MAX, 0, &[]);
        }
        "state-out-of-bounds" => {
            let slice = unsafe { std::slice::from_raw_parts(0xffff_ff00_usize as *const u8, 0x7fff_ffff) };
            keyed_state::put_many(VALUE, 1, slice);
        }
        "operator-state" => {
            operator_state::get(0);
        }
        "operator-state-put" => operator_state::put(VALUE, &[]),
        "operator-state-keep" => operator_state::put(NOT_BY_KEY, &[part(b"a"), part(b"")].concat()),
        "operator-state-kept" => {
            assert_eq!(operator_state::get(NOT_BY_KEY), [part(b"a"), part(b"")].concat());
        }
        "operator-state-cut" => operator_state::put(NOT_BY_KEY, &part(b"abc")[..6]),
        "operator-state-long" => operator_state::put(NOT_BY_KEY, &part(&vec![0; 20 << 20])),
        "operator-state-over-quota" => operator_state::put(NOT_BY_KEY, &part(&vec![0; 1 << 20]).repeat(9)),
        "time" => {
            timers::processing_time();
        }
        "timers" => {
            // Twice the same is one.
            let list = [timer(0, 5), timer(1, 5), timer(0, 5), timer(0, 6)].concat();
            timers::register_many(4, &list);
            timers::delete_many(1, &timer(0, 6));
        }
        "timers-20000" | "timers-many" => {
            let count = if attack.act == "timers-many" { 10_000_000 } else { 20_000 };
            for from in (0..count).step_by(1000) {
                let list: Vec<_> = (from..from + 1000).flat_map(|timestamp| timer(0, timestamp)).collect();
                timers::register_many(1000, &list);
            }
        }
        "timers-cut" => timers::register_many(2, &timer(0, 5)),
        "timers-domain" => timers::register_many(1, &timer(2, 5)),
        act => panic!("no such attack: {act}"),
    }
    Status::Ok
}

/// Places of the states that the tests declare, or this plugin in a whole job.
const VALUE: u32 = 0;
const LIST: u32 = 1;
const MAP: u32 = 2;
const SHORT_LIVED: u32 = 3;
const NOT_BY_KEY: u32 = 4;

fn part(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// An entry with an empty namespace, and what follows it.
fn entry(key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
    let mut entry = [part(key), part(b"")].concat();
    parts.iter().for_each(|bytes| entry.extend(part(bytes)));
    entry
}

fn timer(domain: u8, timestamp: i64) -> Vec<u8> {
    [vec![domain], timestamp.to_le_bytes().to_vec(), entry(b"key", &[])].concat()
}

/// Uses every call as it is meant, and panics if an answer is wrong.
fn use_state() {
    let absent = u32::MAX.to_le_bytes().to_vec();
    let key = entry(b"key", &[]);
    keyed_state::put_many(VALUE, 2, &[entry(b"key", &[b"value"]), entry(b"other", &[b""])].concat());
    let values = keyed_state::get_many(VALUE, 3, &[&key[..], &entry(b"other", &[]), &entry(b"none", &[])].concat());
    assert_eq!(values, [part(b"value"), part(b""), absent.clone()].concat());
    keyed_state::put_many(VALUE, 1, &[&key[..], &absent].concat());
    assert_eq!(keyed_state::get_many(VALUE, 1, &key), absent);

    for element in [b"a", b"b"] {
        keyed_state::append_many(LIST, 1, &entry(b"key", &[&part(element)]));
    }
    assert_eq!(keyed_state::get_many(LIST, 1, &key), part(&[part(b"a"), part(b"b")].concat()));

    keyed_state::put_many(MAP, 2, &[entry(b"key", &[b"2", b"two"]), entry(b"key", &[b"1", b"one"])].concat());
    assert_eq!(keyed_state::get_many(MAP, 1, &entry(b"key", &[b"2"])), part(b"two"));
    let (one, two) = ([part(b"1"), part(b"one")].concat(), [part(b"2"), part(b"two")].concat());
    assert_eq!(keyed_state::load_maps(MAP, 1, &key, 100), part(&[&one[..], &two].concat()));
    assert_eq!(keyed_state::load_maps(MAP, 1, &key, 10), absent);
    assert_eq!(keyed_state::scan_map(MAP, &key, None, 1), one);
    assert_eq!(keyed_state::scan_map(MAP, &key, Some(b"1"), 100), two);
    keyed_state::clear_many(MAP, 1, &key);
    assert_eq!(keyed_state::load_maps(MAP, 1, &key, 100), part(b""));

    let now = timers::processing_time();
    let entries = [&(now + 1).to_le_bytes()[..], &now.to_le_bytes()].map(|ends_at| entry(b"key", &[ends_at]));
    keyed_state::put_many(SHORT_LIVED, 1, &entries[0]);
    assert_eq!(keyed_state::get_many(SHORT_LIVED, 1, &key).len(), 12);
    keyed_state::put_many(SHORT_LIVED, 1, &entries[1]);
    assert_eq!(keyed_state::get_many(SHORT_LIVED, 1, &key), absent);
    keyed_state::put_many(SHORT_LIVED, 1, &entries[0]);
}

#[inline(never)]
fn recurse(depth: u32) -> u32 {
    let local = std::hint::black_box([depth; 64]);
    recurse(local[0].wrapping_add(1)).wrapping_add(local[1])
}

#[inline(never)]
fn recurse_indirect(depth: u32, function: usize) -> u32 {
    let next: fn(u32, usize) -> u32 = unsafe { std::mem::transmute(function) };
    std::hint::black_box(next(depth.wrapping_add(1), function)).wrapping_add(1)
}
