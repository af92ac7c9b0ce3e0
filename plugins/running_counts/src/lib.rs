//! The plugin on the first screen of README.md: a count for each word, as it changes.

use engine_sdk::prelude::*;

#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    env.from_source(FileSource::text_lines(args.require("input")?))
        .flat_map(|line, out: &mut Collector<str>| line.split_whitespace().for_each(|word| out.collect(word)))
        .key_by_ref(|word| word)
        .count()
        .sink_to(FileSink::csv(args.require("output")?));
    Ok(())
}
