//! Every way to hand records on, in one job.

use engine_sdk::prelude::*;

/// Sends the numbers from 0 to 9,999 over each kind of edge, to a directory of its own.
///
///   --output DIR      a new or empty directory
///   --one-directory   not to directories of their own, which is refused
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let output = args.require("output")?;
    let in_one = args.flag("one-directory");
    let write = |stream: &DataStream<i64>, name: &str| {
        // A chain of its own, so that the records really go over an edge.
        let text = stream.map(|number| number.to_string()).start_new_chain().name(name);
        let directory = if in_one { "all" } else { name };
        text.sink_to(FileSink::text_lines(format!("{output}/{directory}")));
    };
    let numbers = env.from_sequence(0, 9_999).map(|number| number).name("Numbers");
    write(&numbers.forward(), "forward");
    write(&numbers.rebalance(), "rebalance");
    write(&numbers.rescale(), "rescale");
    write(&numbers.shuffle(), "shuffle");
    write(&numbers.broadcast(), "broadcast");
    write(&numbers.global(), "global");
    write(&numbers.partition_custom(|number, channels| (number / 10) as u32 % channels), "custom");
    let odd = OutputTag::<i64>::new("odd");
    let split = {
        let odd = odd.clone();
        numbers.process(move |number, context, out: &mut Collector<i64>| {
            if number % 2 == 0 {
                out.collect(number);
            } else {
                context.output(&odd, number);
            }
        })
    };
    write(&split, "even");
    write(&split.get_side_output(&odd).rebalance(), "odd");
    // One gate with two inputs, one of which comes from fewer subtasks.
    let few = env.from_sequence(10_000, 10_999).map(|number| number).set_parallelism(1);
    write(&numbers.union(&few), "union");
    // Straight from a native source into a sink that takes text.
    let few = env.from_sequence(0, 99).set_parallelism(1);
    few.broadcast().sink_to(FileSink::text_lines(format!("{output}/source-broadcast")));
    few.global().sink_to(FileSink::text_lines(format!("{output}/source-global")));
    // From p subtasks to three, and on to p.
    write(&numbers.rescale().map(|number| number).set_parallelism(3).rescale(), "rescale-three");
    Ok(())
}
