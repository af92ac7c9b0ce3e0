//! How long from the command to the first row? `engine submit` of a cached plugin
//! whose operators are all chained to a print sink: 21 runs.

mod engine_process;

use std::{
    fs::File,
    io::{BufWriter, Read},
    path::Path,
    process::Stdio,
    time::Instant,
};

use engine_process::{command, percentile, plugin_path};

const RUNS: usize = 21;
const EVENTS: u64 = 100;

fn first_row_millis(input: &Path) -> f64 {
    let plugin = plugin_path("nexmark");
    let [plugin, input] = [&plugin, input].map(|path| path.to_str().expect("a UTF-8 path"));
    let mut command = command(&["submit", "-p", "1", plugin, "--query", "q0", "--input", input]);
    let start = Instant::now();
    let mut engine = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("the engine starts");
    let mut rows = engine.stdout.take().expect("piped");
    rows.read_exact(&mut [0]).expect("there are rows");
    let passed = start.elapsed();
    rows.read_to_end(&mut Vec::new()).expect("the rest comes");
    assert!(engine.wait().expect("it ends").success(), "the job failed");
    passed.as_secs_f64() * 1000.0
}

fn main() {
    let input = Path::new(env!("CARGO_TARGET_TMPDIR")).join("first-events");
    let file = BufWriter::new(File::create(&input).expect("a directory of ours"));
    engine_benches::write_nexmark(0..EVENTS, file).expect("written");
    // The first run may have to compile the plugin.
    first_row_millis(&input);
    let mut millis: Vec<f64> = (0..RUNS).map(|_| first_row_millis(&input)).collect();
    millis.sort_by(f64::total_cmp);
    println!(
        "start-up to the first row, {RUNS} runs: median {:.1} ms, least {:.1} ms, most {:.1} ms (bound: 50 ms)",
        percentile(&millis, 500),
        millis[0],
        millis[RUNS - 1]
    );
}
