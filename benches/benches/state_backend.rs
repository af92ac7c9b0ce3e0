//! What does keyed state in the host cost? Bytes a key in memory, nanoseconds an
//! entry of `get-many` and `put-many` (1,000 entries a call, keys at random), flushes of
//! 60,000 entries at once, values that change their length, snapshots, and timers.
//! What do checkpoints write if 1 % of the keys change between them, and for how long do
//! they hold the task up?
//!
//! `cargo bench --bench state_backend [KEYS]`, 10 million keys if none are given.
//! `cargo bench --bench state_backend -- disk [KEYS]` is about state on disk, 20 million
//! keys if none are given: how fast it is by the clock, and the most memory it takes.

mod cpu_time;

use std::{
    fs,
    time::{Duration, Instant},
};

use cpu_time::ThreadCpuTime;
use criterion::measurement::Measurement;
use engine::{
    base::clock::Timestamp,
    state::{DiskState, KeyedState, KeyedStateContext, StateDescriptor, StateShape, TimeDomain},
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

const VALUE_BYTES: usize = 64;
const CALL: u64 = 1000;
const NOW: Timestamp = Timestamp(0);

fn state() -> KeyedState {
    KeyedState::new(context())
}

fn context() -> KeyedStateContext {
    let state = |name: &str, shape| StateDescriptor {
        operator: "bench".to_owned(),
        name: name.to_owned(),
        shape: Some(shape),
        has_time_to_live: false,
        taken_at_end: false,
    };
    KeyedStateContext {
        operator: "bench".to_owned(),
        is_keyed: true,
        states: vec![state("value", StateShape::Value), state("list", StateShape::List), state("map", StateShape::Map)],
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        bytes_max: u64::MAX,
        value_bytes_max: usize::MAX,
        timers_max: u64::MAX,
        result_bytes_max: usize::MAX,
    }
}

fn part(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&u32::try_from(bytes.len()).expect("short").to_le_bytes());
    out.extend_from_slice(bytes);
}

/// An entry of a value state, with a value of so many bytes if some are given.
fn entry(out: &mut Vec<u8>, key: u64, value_bytes: Option<usize>) {
    part(out, &key.to_le_bytes());
    part(out, b"");
    if let Some(bytes) = value_bytes {
        let begin = out.len() + 4;
        part(out, &[0; 256][..bytes]);
        out[begin..begin + 8].copy_from_slice(&key.to_le_bytes());
    }
}

fn resident_bytes() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("the second number");
    pages * 4096
}

fn timed(what: impl FnOnce()) -> Duration {
    let start = ThreadCpuTime.start();
    what();
    Duration::from_nanos(u64::try_from(ThreadCpuTime.end(start)).expect("time passes"))
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn report(what: &str, entries: u64, took: Duration) {
    let nanos = took.as_nanos() as f64 / entries as f64;
    println!("{what:58} {nanos:8.1} ns an entry  {:8.2} million/s", 1000.0 / nanos);
}

/// Calls of `entries` entries in all, made beforehand so that only the calls are timed.
fn calls(entries: u64, mut write: impl FnMut(&mut Vec<u8>, u64)) -> Vec<Vec<u8>> {
    let call = |from: u64| {
        let mut list = Vec::new();
        (from..(from + CALL).min(entries)).for_each(|index| write(&mut list, index));
        list
    };
    (0..entries).step_by(usize::try_from(CALL).expect("small")).map(call).collect()
}

fn put(state: &mut KeyedState, number: u32, calls: &[Vec<u8>]) {
    for list in calls {
        state.put_many(number, u32::try_from(CALL).expect("small"), list, NOW, &|| true).expect("well formed");
    }
}

fn get(state: &KeyedState, calls: &[Vec<u8>]) {
    for list in calls {
        let values = state.get_many(0, u32::try_from(CALL).expect("small"), list, NOW, &|| true);
        std::hint::black_box(values.expect("well formed"));
    }
}

#[expect(clippy::cast_precision_loss, reason = "for people")]
fn values(keys: u64) {
    println!("\n{keys} keys of 8 bytes, values of {VALUE_BYTES}");
    let mut random = SmallRng::seed_from_u64(7);
    let before = resident_bytes();
    let mut state = state();
    // In portions, so that the lists do not count.
    let mut took = Duration::ZERO;
    for from in (0..keys).step_by(100_000) {
        let lists = calls(100_000, |list, index| entry(list, from + index, Some(VALUE_BYTES)));
        took += timed(|| put(&mut state, 0, &lists));
    }
    report("put-many, new", keys, took);
    let resident = resident_bytes() - before;
    println!(
        "{:58} {:8.1} bytes resident a key, {:.2} GiB; accounted {:.1} a key",
        "",
        resident as f64 / keys as f64,
        resident as f64 / (1_u64 << 30) as f64,
        state.bytes() as f64 / keys as f64
    );
    const TOUCHED: u64 = 1_000_000;
    let any = |random: &mut SmallRng| random.random_range(0..keys);
    let lists = calls(TOUCHED, |list, _| entry(list, any(&mut random), Some(VALUE_BYTES)));
    report("put-many, equal length, any key", TOUCHED, timed(|| put(&mut state, 0, &lists)));
    let lists = calls(TOUCHED, |list, _| entry(list, any(&mut random), None));
    report("get-many, any key", TOUCHED, timed(|| get(&state, &lists)));
    let lists = calls(TOUCHED, |list, _| entry(list, keys + any(&mut random), None));
    report("get-many, absent", TOUCHED, timed(|| get(&state, &lists)));
    let hot = calls(60_000, |list, _| entry(list, any(&mut random), Some(VALUE_BYTES)));
    let took = timed(|| put(&mut state, 0, &hot));
    report("flush of 60,000 entries", 60_000, took);
    println!("{:58} {:8.1} ms", "", took.as_secs_f64() * 1000.0);

    let mut snapshots: Vec<_> = (0..128).map(|group| state.key_group_snapshot(group)).collect();
    let took = timed(|| drop((0..128).map(|group| state.key_group_snapshot(group)).collect::<Vec<_>>()));
    println!("{:58} {:8.3} ms", "snapshot of all 128 key groups", took.as_secs_f64() * 1000.0);
    let took = timed(|| put(&mut state, 0, &hot));
    report("flush of 60,000 entries, first after a snapshot", 60_000, took);
    println!("{:58} {:8.1} ms", "", took.as_secs_f64() * 1000.0);
    report("flush of 60,000 entries, second", 60_000, timed(|| put(&mut state, 0, &hot)));
    let mut seen = 0_u64;
    let took = timed(|| {
        for snapshot in &mut snapshots {
            snapshot.visit(0, &mut |_, _, _, _| seen += 1).expect("it is in memory");
        }
    });
    report("reading the snapshot", seen, took);
    drop(snapshots);

    // Lengths change: what stood before is garbage, and what lives is moved now and then.
    const ROUNDS: u64 = 4;
    let mut took = Duration::ZERO;
    for _ in 0..ROUNDS {
        let lists = calls(TOUCHED, |list, _| {
            let bytes = random.random_range(VALUE_BYTES / 2..VALUE_BYTES * 3 / 2);
            entry(list, any(&mut random), Some(bytes));
        });
        took += timed(|| put(&mut state, 0, &lists));
    }
    report("put-many, another length, any key", ROUNDS * TOUCHED, took);
    println!("{:58} {:8.1} bytes resident a key", "", (resident_bytes() - before) as f64 / keys as f64);
}

fn lists_and_maps() {
    println!("\n100,000 keys");
    let mut random = SmallRng::seed_from_u64(7);
    const ENTRIES: u64 = 2_000_000;
    const KEYS: u64 = 100_000;
    let mut state = state();
    let lists = calls(ENTRIES, |list, _| {
        entry(list, random.random_range(0..KEYS), None);
        let mut elements = Vec::new();
        part(&mut elements, &[1; 32]);
        part(list, &elements);
    });
    let took = timed(|| {
        for list in &lists {
            state.append_many(1, u32::try_from(CALL).expect("small"), list, NOW, &|| true).expect("well formed");
        }
    });
    report("append-many, 20 elements of 32 bytes a list", ENTRIES, took);
    let lists = calls(ENTRIES, |list, index| {
        entry(list, random.random_range(0..KEYS), None);
        part(list, &index.to_be_bytes());
        part(list, &[1; 32]);
    });
    report("put-many, 20 pairs a map, ascending", ENTRIES, timed(|| put(&mut state, 2, &lists)));
}

fn timers() {
    println!("\ntimers");
    const TIMERS: u64 = 1_000_000;
    for (name, timestamps) in [("1,000 keys a timestamp", 1000), ("each at a time of its own", 1)] {
        let mut state = state();
        let lists = calls(TIMERS, |list, index| {
            list.push(0);
            list.extend_from_slice(&(index / timestamps).cast_signed().to_le_bytes());
            part(list, &index.to_le_bytes());
            part(list, &[0; 16]);
        });
        let made = resident_bytes();
        let took = timed(|| {
            for list in &lists {
                state.register_timers(u32::try_from(CALL).expect("small"), list, &|| true).expect("well formed");
            }
        });
        report(&format!("register-many, {name}"), TIMERS, took);
        let took = timed(|| drop(state.snapshot(1, true)));
        println!("{:58} {:8.3} ms", "snapshot", took.as_secs_f64() * 1000.0);
        println!("{:58} {:8.1} bytes resident a timer", "", (resident_bytes() - made) as f64 / TIMERS as f64);
        let mut fired = 0;
        let took = timed(|| {
            while fired < TIMERS {
                fired += u64::from(state.take_due_timers(TimeDomain::EventTime, Timestamp::MAX, &mut Vec::new()));
            }
        });
        report(&format!("firing, {name}"), TIMERS, took);
    }
}

/// A hundred checkpoints of as many keys.
#[expect(clippy::cast_precision_loss, reason = "for people")]
fn checkpoints(keys: u64) {
    println!("\ncheckpoints of {keys} keys, 1 % of which change between two");
    let mut state = state();
    for from in (0..keys).step_by(100_000) {
        put(&mut state, 0, &calls(100_000, |list, index| entry(list, from + index, Some(VALUE_BYTES))));
    }
    let entries = keys / 100;
    let some = &calls(entries, |list, index| entry(list, index * 99, Some(VALUE_BYTES)));
    put(&mut state, 0, some);
    report("put-many, changes not noted", entries, timed(|| put(&mut state, 0, some)));
    state.track_changes();
    let (mut written, mut full_bytes, mut held, mut noted) = (0, 0, Duration::ZERO, Duration::ZERO);
    for checkpoint in 1..=100 {
        if 1 < checkpoint {
            noted += timed(|| put(&mut state, 0, some));
        }
        let mut snapshot = None;
        held = held.max(timed(|| snapshot = Some(state.snapshot(checkpoint, false))));
        let sections = snapshot.expect("taken above").write(&mut std::io::sink()).expect("a sink takes all");
        let bytes: u64 = sections.iter().map(|(_, bytes)| bytes).sum();
        full_bytes = full_bytes.max(bytes);
        written += bytes;
        state.checkpoint_completed(checkpoint);
    }
    report("put-many, changes noted", 99 * entries, noted);
    println!("{:58} {:8.3} ms", "longest time that a snapshot held the task", held.as_secs_f64() * 1000.0);
    println!("{:58} {:8.2} %", "written on average, of a full snapshot", written as f64 / full_bytes as f64);
}

/// Memory of the state on disk: twice the default.
const DISK_MEMORY_BYTES: u64 = 256 << 20;

/// The most memory that the process had resident.
fn peak_mebibytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kibibytes.expect("a number of KiB") >> 10
}

fn clocked(what: impl FnOnce()) -> Duration {
    let start = Instant::now();
    what();
    start.elapsed()
}

fn on_disk(keys: u64) {
    println!("\n{keys} keys of 8 bytes, values of {VALUE_BYTES}, on disk, by the clock");
    let mut random = SmallRng::seed_from_u64(7);
    let any = |random: &mut SmallRng| random.random_range(0..keys);
    let disk = DiskState { directory: std::env::temp_dir().join("engine-bench"), memory_bytes: DISK_MEMORY_BYTES };
    let mut state = KeyedState::on_disk(context(), &disk).expect("the temporary directory can be written to");
    let (mut took, mut longest) = (Duration::ZERO, Duration::ZERO);
    for from in (0..keys).step_by(100_000) {
        for list in &calls(100_000, |list, index| entry(list, from + index, Some(VALUE_BYTES))) {
            let call = clocked(|| put(&mut state, 0, std::slice::from_ref(list)));
            (took, longest) = (took + call, longest.max(call));
        }
    }
    report("put-many, new", keys, took);
    println!("{:58} {:8.1} ms the longest call of 1,000", "", longest.as_secs_f64() * 1000.0);
    println!("{:58} {:8} MiB resident at most", "", peak_mebibytes());
    const TOUCHED: u64 = 1_000_000;
    let lists = calls(TOUCHED, |list, _| entry(list, any(&mut random), None));
    report("get-many, any key", TOUCHED, clocked(|| get(&state, &lists)));
    let lists = calls(TOUCHED, |list, _| entry(list, keys + any(&mut random), None));
    report("get-many, absent", TOUCHED, clocked(|| get(&state, &lists)));
    let lists = calls(TOUCHED, |list, _| entry(list, any(&mut random), Some(VALUE_BYTES)));
    report("put-many, any key", TOUCHED, clocked(|| put(&mut state, 0, &lists)));
    let some: Vec<u64> = (0..100_000).map(|_| any(&mut random)).collect();
    let lists = calls(TOUCHED, |list, index| entry(list, some[index as usize % some.len()], None));
    report("get-many, one of 100,000", TOUCHED, clocked(|| get(&state, &lists)));
    let mut snapshot = None;
    let held = clocked(|| snapshot = Some(state.snapshot(1, true)));
    println!("{:58} {:8.3} ms", "a snapshot holds the task", held.as_secs_f64() * 1000.0);
    let took = clocked(|| {
        snapshot.take().expect("taken above").write(&mut std::io::sink()).expect("a sink takes all");
    });
    report("writing the snapshot", keys, took);
    println!("{:58} {:8} MiB resident at most", "", peak_mebibytes());
}

fn main() {
    let keys = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    if std::env::args().any(|arg| arg == "disk") {
        return on_disk(keys.unwrap_or(20_000_000));
    }
    let keys = keys.unwrap_or(10_000_000);
    // First, while no memory lies about that was used before.
    values(keys);
    values(1_000_000);
    checkpoints(keys);
    lists_and_maps();
    timers();
}
