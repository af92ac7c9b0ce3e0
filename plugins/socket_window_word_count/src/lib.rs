//! Counts words that come over a socket, every five seconds: Flink's `SocketWindowWordCount`.

use std::time::Duration;

use engine_sdk::prelude::*;

/// Counts the words of lines from a socket in windows of processing time. Prints `word: count`.
///
///   --socket ADDRESS   reads lines from HOST:PORT, for example of `nc -lk 9000`
///   --seconds N        makes a window N seconds long; 5 if not given
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let size = Duration::from_secs(args.get_or("seconds", 5)?);
    env.from_source(SocketSource::text_lines(args.require("socket")?))
        .flat_map(|line, out: &mut Collector<str>| line.split_whitespace().for_each(|word| out.collect(word)))
        .key_by_ref(|word| word)
        .window(TumblingProcessingTimeWindows::of(size))
        .count_then(|word, _window, count, out: &mut Collector<str>| out.write(format_args!("{word}: {count}")))
        .print()
        .set_parallelism(1);
    env.set_job_name("Socket window word count");
    Ok(())
}

#[cfg(test)]
mod tests {
    use engine_sdk::TestHarness;

    use super::main;

    #[test]
    fn each_window_counts_its_own_words() {
        let mut harness = TestHarness::new(main, &["--socket", "localhost:9000"]).unwrap();
        harness.set_processing_time(12_000).unwrap();
        harness.push::<str>("to be or").unwrap();
        harness.push::<str>("not to be").unwrap();
        harness.set_processing_time(14_998).unwrap();
        assert!(harness.lines().unwrap().is_empty());
        harness.set_processing_time(15_000).unwrap();
        let mut lines = harness.lines().unwrap();
        lines.sort();
        assert_eq!(lines, ["be: 2", "not: 1", "or: 1", "to: 2"]);
        harness.push::<str>("to").unwrap();
        harness.set_processing_time(20_000).unwrap();
        assert_eq!(harness.lines().unwrap()[4..], ["to: 1"]);
    }
}
