//! How long is a row on its way? Rows that carry the time at which they were due go
//! through standard input, an exchange between two tasks and standard output, at a
//! tenth, half and nine tenths of the highest rate, with buffer timeouts of 0, 10 and
//! 100 ms. A pipe at either end and the generator's own delay are part of the figures.

mod engine_process;

use std::{
    io::{Read, Write},
    process::{Child, ChildStdout, Stdio},
    thread,
    time::{Duration, Instant},
};

use engine_process::{command, percentile, plugin_path};

/// Rows by which the highest rate is measured.
const ROWS_AT_ONCE: u64 = 4_000_000;
const RUN: Duration = Duration::from_secs(3);
/// Rows of the first moments, when the job starts, are not counted.
const WARM_UP: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(200);
const READ_BYTES: usize = 64 << 10;
/// Digits of a time in nanoseconds and a line end.
const ROW_BYTES: usize = 20;

fn start_engine(buffer_timeout: &str) -> Child {
    let plugin = plugin_path("bench_chain");
    let plugin = plugin.to_str().expect("a UTF-8 path");
    let timeout = format!("execution.buffer-timeout.interval={buffer_timeout}");
    let mut command = command(&["submit", "-p", "1", "-D", &timeout, plugin, "--lines"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the engine starts")
}

fn push_row(rows: &mut Vec<u8>, due: Duration) {
    writeln!(rows, "{:0width$}", due.as_nanos(), width = ROW_BYTES - 1).expect("memory takes it");
}

/// Hands each row's time to `f`, as soon as it comes, until there are no more.
fn read_rows(mut from: ChildStdout, mut f: impl FnMut(Duration)) {
    let mut buffer = vec![0; READ_BYTES];
    let mut filled = 0;
    loop {
        let read = from.read(&mut buffer[filled..]).expect("the engine writes");
        if read == 0 {
            return;
        }
        filled += read;
        let whole = filled - filled % ROW_BYTES;
        for row in buffer[..whole].chunks_exact(ROW_BYTES) {
            let digits = std::str::from_utf8(&row[..ROW_BYTES - 1]).expect("digits");
            f(Duration::from_nanos(digits.parse().expect("a number")));
        }
        buffer.copy_within(whole..filled, 0);
        filled -= whole;
    }
}

fn finish(mut engine: Child) {
    assert!(engine.wait().expect("it ends").success(), "the job failed");
}

/// Rows per second if they come as fast as they are taken.
#[expect(clippy::cast_precision_loss, reason = "below 2^53")]
fn highest_rate() -> f64 {
    let mut engine = start_engine("100 ms");
    let mut input = engine.stdin.take().expect("piped");
    let output = engine.stdout.take().expect("piped");
    let writer = thread::spawn(move || {
        let mut rows = Vec::new();
        for row in 0..ROWS_AT_ONCE {
            push_row(&mut rows, Duration::from_nanos(row));
            if READ_BYTES <= rows.len() || row + 1 == ROWS_AT_ONCE {
                input.write_all(&rows).expect("the engine reads");
                rows.clear();
            }
        }
    });
    let mut first = None;
    let mut count: u64 = 0;
    read_rows(output, |_| {
        first.get_or_insert_with(Instant::now);
        count += 1;
    });
    let passed = first.expect("rows came").elapsed();
    writer.join().expect("the writer is sound");
    finish(engine);
    assert_eq!(count, ROWS_AT_ONCE, "rows are missing");
    count as f64 / passed.as_secs_f64()
}

/// Milliseconds from due to read, ascending.
fn latencies(rate: f64, buffer_timeout: &str) -> Vec<f64> {
    let mut engine = start_engine(buffer_timeout);
    let mut input = engine.stdin.take().expect("piped");
    let output = engine.stdout.take().expect("piped");
    let start = Instant::now();
    let writer = thread::spawn(move || {
        let mut rows = Vec::new();
        let mut sent: u64 = 0;
        loop {
            let now = start.elapsed();
            loop {
                #[expect(clippy::cast_precision_loss, reason = "below 2^53")]
                let due = Duration::from_secs_f64(sent as f64 / rate);
                if now < due || RUN <= due {
                    break;
                }
                push_row(&mut rows, due);
                sent += 1;
            }
            input.write_all(&rows).expect("the engine reads");
            rows.clear();
            if RUN <= now {
                return sent;
            }
            #[expect(clippy::disallowed_methods, reason = "rows come at times, not by a message")]
            thread::sleep(PAUSE);
        }
    });
    let mut millis = Vec::new();
    let mut count = 0;
    read_rows(output, |due| {
        count += 1;
        if WARM_UP <= due {
            millis.push((start.elapsed() - due).as_secs_f64() * 1000.0);
        }
    });
    let sent = writer.join().expect("the writer is sound");
    finish(engine);
    assert_eq!(count, sent, "rows are missing");
    millis.sort_by(f64::total_cmp);
    millis
}

fn main() {
    let highest = highest_rate();
    println!("latency through an exchange; highest rate {highest:.0} rows a second");
    println!("  buffer timeout  share of the highest rate      p50      p99    p99.9");
    for buffer_timeout in ["0 ms", "10 ms", "100 ms"] {
        for share in [0.1, 0.5, 0.9] {
            let millis = latencies(highest * share, buffer_timeout);
            let [p50, p99, p999] = [500, 990, 999].map(|per_mille| percentile(&millis, per_mille));
            println!("  {buffer_timeout:>14}  {:>24} %  {p50:>6.2}   {p99:>6.2}   {p999:>6.2} ms", share * 100.0);
        }
    }
}
