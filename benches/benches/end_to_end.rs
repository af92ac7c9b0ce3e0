//! What does the engine add to a plain loop? CPU seconds of `engine submit -p 1` of
//! Nexmark q1, and of a loop that decodes the same file by the same reader, calls the
//! same guest without an engine, and writes the same rows. They run in turn, since the
//! speed of a machine changes while they do.

mod engine_process;
mod guest;

use std::{
    cell::RefCell,
    fs::{self, File},
    io::{BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::Stdio,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use engine::base::stream_element::{BatchKind, RecordBatch};
use engine_process::{command, plugin_path};
use engine_rows::{
    descriptor::TypeDescriptor,
    json::JsonReader,
    row::{self, NO_TIMESTAMP, Rows},
};
use rustix::time::{ClockId, clock_gettime};

/// As in the comparison with Flink; start-up is a hundredth of it.
const EVENTS: u64 = 10_000_000;
const RUNS: u32 = 7;
/// As the plugin's source declares it.
const RECORD: &str = "Event[Bid(Bid{auction:u64,bidder:u64,price:u64,date_time:i64})|*Other]";
/// Text read at a time, and bytes of rows handed over at a time, as in the engine.
const TEXT_BYTES: usize = 128 << 10;
const BATCH_BYTES: usize = 32 << 10;
const FILE_BUFFER_BYTES: usize = 256 << 10;

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(time.tv_sec).expect("positive"), u32::try_from(time.tv_nsec).expect("below 10^9"))
}

/// CPU time of the children that have ended, by `/proc/self/stat`: in ticks of 10 ms,
/// but counted exactly, so that the sum over several children is precise.
fn children_cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").expect("Linux has it");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    // Fields 16 and 17 of the line, of which two stand before these.
    fields[13..15].iter().map(|ticks| ticks.parse::<f64>().expect("a number") / 100.0).sum()
}

/// CPU seconds of one run of the engine, start-up included.
fn engine_seconds(input: &Path, output: &Path) -> f64 {
    let plugin = plugin_path("nexmark");
    let [plugin, input, output_text] = [&plugin, input, output].map(|path| path.to_str().expect("a UTF-8 path"));
    remove(output);
    let before = children_cpu_seconds();
    let args = ["submit", "-p", "1", plugin, "--query", "q1", "--input", input, "--output", output_text];
    let status = command(&args).stderr(Stdio::null()).status().expect("the engine starts");
    assert!(status.success(), "the job failed");
    children_cpu_seconds() - before
}

fn remove(directory: &Path) {
    if directory.exists() {
        fs::remove_dir_all(directory).expect("it is ours");
    }
}

/// CPU seconds of one run of the plain loop.
fn plain_loop_seconds(input: &Path, output: &Path) -> f64 {
    let file = File::create(output).expect("a directory of ours");
    let file = Rc::new(RefCell::new(BufWriter::with_capacity(FILE_BUFFER_BYTES, file)));
    let into = Rc::clone(&file);
    let mut segment = guest::open("nexmark", &["--query", "q1", "--input", "events"], move |_, rows| {
        let mut file = into.borrow_mut();
        for row in Rows::new(rows) {
            file.write_all(row.expect("whole rows").payload).and_then(|()| file.write_all(b"\n")).expect("written");
        }
    });
    let start = cpu_time();
    let record = TypeDescriptor::parse(RECORD).expect("a descriptor");
    let mut reader = JsonReader::new(&record).expect("a record type that JSON can hold");
    let mut from = File::open(input).expect("it was written");
    let mut text = vec![0; TEXT_BYTES];
    let mut filled = 0;
    loop {
        let read = from.read(&mut text[filled..]).expect("it can be read");
        if read == 0 {
            break;
        }
        filled += read;
        let end = memchr::memrchr(b'\n', &text[..filled]).expect("no line is that long") + 1;
        let lines = std::str::from_utf8(&text[..end]).expect("JSON is UTF-8");
        let mut at = 0;
        let mut count = 0;
        let mut data = Vec::with_capacity(BATCH_BYTES + 1024);
        while at < lines.len() {
            row::append_with(&mut data, 0, NO_TIMESTAMP, |data| {
                at += reader.read_first_line(&lines[at..], data).expect("an event") + 1;
            });
            count += 1;
            if BATCH_BYTES <= data.len() || at == lines.len() {
                let data = std::mem::replace(&mut data, Vec::with_capacity(BATCH_BYTES + 1024));
                let batch = RecordBatch { kind: BatchKind::Rows, count, data: Bytes::from(data) };
                segment.process_batch(0, &batch).expect("the guest is sound");
                count = 0;
            }
        }
        text.copy_within(end..filled, 0);
        filled -= end;
    }
    segment.close().expect("the guest is sound");
    drop(segment);
    file.borrow_mut().flush().expect("written");
    (cpu_time() - start).as_secs_f64()
}

/// Writes the events unless an earlier run did.
fn events(directory: &Path, count: u64) -> PathBuf {
    let path = directory.join(format!("events-{count}"));
    if !path.exists() {
        let partial = path.with_extension("partial");
        let file = BufWriter::with_capacity(1 << 20, File::create(&partial).expect("a directory of ours"));
        engine_benches::write_nexmark(0..count, file).expect("written");
        fs::rename(partial, &path).expect("a directory of ours");
    }
    path
}

fn main() {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let input = events(directory, EVENTS);
    let one = events(directory, 1);
    let plain_output = directory.join("plain-rows");
    let engine_output = directory.join("engine-rows");
    let mut seconds = [0.0; 3];
    for _ in 0..RUNS {
        seconds[0] += plain_loop_seconds(&input, &plain_output);
        seconds[1] += engine_seconds(&input, &engine_output);
        seconds[2] += engine_seconds(&one, &engine_output);
    }
    let [plain, engine, start_up] = seconds.map(|seconds| seconds / f64::from(RUNS));
    let is_part = |entry: fs::DirEntry| entry.file_name().to_string_lossy().starts_with("part-");
    let mut output = fs::read_dir(&engine_output).expect("the engine made it").flatten();
    assert!(!output.any(is_part), "the first event is not a bid");
    remove(&engine_output);
    #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
    let per_event = |seconds: f64| seconds / EVENTS as f64 * 1e9;
    println!("Nexmark q1, {EVENTS} events, CPU time, mean of {RUNS} runs");
    println!("  plain loop        {plain:.3} s  {:.0} ns an event", per_event(plain));
    println!(
        "  engine submit -p 1 {engine:.3} s  {:.0} ns an event, of which start-up {start_up:.3} s",
        per_event(engine)
    );
    println!("  ratio {:.2}, without start-up {:.2} (bound: 1.15)", engine / plain, (engine - start_up) / plain);
}
