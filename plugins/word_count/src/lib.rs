//! Counts words of text: how often does each occur?
//!
//! The source, the counting operator and the file sink have state, and so each has a uid, under which it is found again.

use engine_sdk::prelude::*;

/// Counts words: maximal runs of ASCII letters, digits and underscores, lower-cased.
/// Writes rows `word,count`.
///
///   --input PATH       reads lines from a file, a directory or a pattern
///   --socket ADDRESS   reads lines from HOST:PORT
///   --stdin            reads lines from standard input
///   --output DIR       writes into a new or empty directory; without it, prints
///   --updates          writes each count as it changes, not only at the end
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let words = lines(env, args)?.flat_map(split_words).name("Words");
    let by_word = words.key_by_ref(|word: &str| word);
    let counts = match args.flag("updates") {
        true => by_word.count(),
        false => by_word.window(GlobalWindows::end_of_stream()).count(),
    }
    .uid("counts");
    match args.get::<String>("output")? {
        Some(directory) => counts.sink_to(FileSink::csv(directory)).uid("rows"),
        None => counts.sink_to(PrintSink::csv()),
    };
    env.set_job_name("Word count");
    Ok(())
}

/// The one input that was named.
fn lines(env: &StreamExecutionEnvironment, args: &Args) -> Result<DataStream<str>> {
    match (args.get::<String>("input")?, args.get::<String>("socket")?, args.flag("stdin")) {
        (Some(path), None, false) => Ok(env.from_source(FileSource::text_lines(path)).uid("lines")),
        (None, Some(address), false) => Ok(env.from_source(SocketSource::text_lines(address)).uid("lines")),
        (None, None, true) => Ok(env.from_source(StdinSource::text_lines()).uid("lines")),
        _ => engine_sdk::bail!("give one of --input PATH, --socket HOST:PORT and --stdin"),
    }
}

fn split_words(line: &str, out: &mut Collector<str>) {
    let line = line.to_ascii_lowercase();
    let mut bytes = line.bytes().enumerate();
    while let Some((start, _)) = bytes.find(|(_, byte)| is_word_byte(*byte)) {
        let end = bytes.find(|(_, byte)| !is_word_byte(*byte)).map_or(line.len(), |(end, _)| end);
        out.collect(&line[start..end]);
    }
}

fn is_word_byte(byte: u8) -> bool {
    const IS_WORD_BYTE: [bool; 256] = {
        let mut table = [false; 256];
        let mut byte = 0_u8;
        while byte < 128 {
            table[byte as usize] = byte.is_ascii_alphanumeric() || byte == b'_';
            byte += 1;
        }
        table
    };
    IS_WORD_BYTE[usize::from(byte)]
}

#[cfg(test)]
mod tests {
    use engine_sdk::TestHarness;

    use super::main;

    #[track_caller]
    fn check(args: &[&str], lines: &[&str], expected: &[&str]) {
        let mut harness = TestHarness::new(main, args).unwrap();
        for line in lines {
            harness.push::<str>(line).unwrap();
        }
        harness.finish().unwrap();
        let mut counts = harness.lines().unwrap();
        // Final counts come in no particular order.
        if !args.contains(&"--updates") {
            counts.sort();
        }
        assert_eq!(counts, expected);
    }

    #[test]
    fn words_are_counted_at_the_end() {
        check(
            &["--input", "log"],
            &["To be, or not TO_BE", "", "to  be-2:Ä;be"],
            &["2,1", "be,3", "not,1", "or,1", "to,2", "to_be,1"],
        );
    }

    #[test]
    fn counts_are_written_as_they_change_if_asked_for() {
        check(&["--stdin", "--updates", "--output", "counts"], &["a b a"], &["a,1", "b,1", "a,2"]);
    }

    #[test]
    fn there_is_one_input() {
        for args in [&[][..], &["--stdin", "--input", "log"]] {
            let error = TestHarness::new(main, args).map(|_| ()).unwrap_err();
            assert_eq!(error.to_string(), "give one of --input PATH, --socket HOST:PORT and --stdin");
        }
    }
}
