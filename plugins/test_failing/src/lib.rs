//! User code that fails: it panics on the first attempts, refuses rows, or keeps too much.

use engine_sdk::{RuntimeContext, prelude::*};

/// Fails in one of the ways that user code may.
///
///   --panic-attempts N   writes 0 to 999 and panics at 600 on the first N attempts
///   --lines PATH         doubles the numbers of a file's lines; refuses other lines
///   --json PATH          writes `id` and `name` of JSON lines
///   --csv PATH           writes `id` and `name` of CSV lines
///   --greedy WHAT        keeps too much: value, values, list, timers
///   --output DIR         a new or empty directory
#[engine_sdk::job]
fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
    let output = FileSink::text_lines(args.require("output")?);
    if let Some(attempts) = args.get("panic-attempts")? {
        let numbers = env.from_source_function("Numbers", Numbers::default);
        numbers.map(move |number| panic_early(number, attempts)).name("Panics").sink_to(output);
    } else if let Some(what) = args.get::<String>("greedy")? {
        let greedy = env.from_sequence(0, 99).key_by(|number| *number).process(move |states| Greedy {
            what: what.clone(),
            value: states.value("value"),
            list: states.list("list"),
        });
        greedy.name("Greedy").sink_to(output);
    } else if let Some(path) = args.get::<String>("lines")? {
        let doubled = env.from_source(FileSource::text_lines(path)).try_map(double).name("Double");
        doubled.rebalance().map(|number| number.to_string()).sink_to(output);
    } else {
        let named: DataStream<Named> = match args.get::<String>("json")? {
            Some(path) => env.from_source(FileSource::json_lines(path)),
            None => env.from_source(FileSource::csv(args.require("csv")?)),
        };
        named.map(|row: Named| format!("{} {}", row.id, row.name)).sink_to(output);
    }
    env.set_job_name("Failing");
    Ok(())
}

const ROWS: u64 = 1000;
const PANICS_AT: u64 = 600;

/// Numbers from the first subtask, each with the attempt that made it.
#[derive(Default)]
struct Numbers {
    attempt: u32,
    next: u64,
    end: u64,
}

impl SourceFunction<(u64, u32)> for Numbers {
    fn open(&mut self, context: &RuntimeContext) -> Result<()> {
        self.attempt = context.attempt;
        self.end = if context.subtask_index == 0 { ROWS } else { 0 };
        Ok(())
    }

    fn poll(&mut self, out: &mut Collector<(u64, u32)>) -> Result<SourceStatus> {
        for number in self.next..self.end.min(self.next + 100) {
            out.collect((number, self.attempt));
        }
        self.next += 100;
        Ok(if self.next < self.end { SourceStatus::More } else { SourceStatus::End })
    }
}

fn panic_early((number, attempt): (u64, u32), attempts: u32) -> String {
    assert!(number != PANICS_AT || attempts <= attempt, "number {number} on attempt {attempt}");
    number.to_string()
}

fn double(line: &str) -> Result<i64> {
    match line.parse::<i64>() {
        Ok(number) => Ok(2 * number),
        Err(error) => Err(engine_sdk::Error::from(error).context(format_args!("\"{line}\" is no number"))),
    }
}

/// A row of a table.
#[derive(Clone, Record)]
struct Named {
    id: u64,
    name: String,
}

/// Keeps more than it may.
struct Greedy {
    what: String,
    value: ValueState<String>,
    list: ListState<u64>,
}

impl KeyedProcessFunction<i64, i64> for Greedy {
    type Output = String;

    fn process_element(&self, _: i64, context: &mut KeyedContext<'_, i64>, _: &mut Collector<String>) -> Result<()> {
        match self.what.as_str() {
            "value" => self.value.update("x".repeat(100 << 20)),
            "values" => self.value.update("x".repeat(100_000)),
            "list" => (0..10_000_000).for_each(|number| self.list.add(&number)),
            _ => (0..10_000_000).for_each(|time| context.timer_service().register_event_time_timer(time)),
        }
        Ok(())
    }
}
