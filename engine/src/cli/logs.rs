//! `engine logs`: the latest log lines of a JobManager's process, or what concerns
//! one job: lines that name it, and its failures.

use std::{collections::BTreeSet, time::Duration};

use clap::Args;
use serde_json::Value;

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, list};
use crate::client::rest_client::RestClient;

/// Between two looks with `--follow`.
const FOLLOW_INTERVAL: Duration = Duration::from_secs(1);

/// `engine logs`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  engine logs\n  engine logs --follow\n  engine logs 1f0c")]
pub(crate) struct LogsOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Goes on with lines as they come, until Ctrl-C.
    #[arg(short, long)]
    follow: bool,
    /// Id of a job, or how it begins; without it, all lines.
    job: Option<String>,
}

pub(crate) fn run(logs: &LogsOptions, global: &GlobalOptions) -> Outcome {
    if logs.follow && global.output == Output::Json {
        return Err(CliError::usage(anyhow::anyhow!("--follow prints lines as they come: leave --output json out")));
    }
    let client = list::client(&logs.job_manager, global)?;
    let job = logs.job.as_deref().map(|job| client.find_job(job)).transpose()?;
    let path = match job {
        Some(job) => format!("/jobmanager/log?contains={job}"),
        None => "/jobmanager/log".to_owned(),
    };
    let text = client.get_text(&path)?;
    let failures = match job {
        Some(job) => failures(&client.get(&format!("/jobs/{job}/exceptions"))?),
        None => Vec::new(),
    };
    if global.output == Output::Json {
        let lines: Vec<&str> = text.lines().collect();
        return super::print_json(&serde_json::json!({ "lines": lines, "failures": failures }));
    }
    if !text.is_empty() {
        super::print(text.trim_end())?;
    }
    for failure in failures {
        super::print(&failure)?;
    }
    if logs.follow { follow(&client, &path, &text) } else { Ok(()) }
}

/// The failures of a job, the oldest first.
fn failures(answer: &Value) -> Vec<String> {
    let entries = answer["exceptionHistory"]["entries"].as_array().cloned().unwrap_or_default();
    let line = |entry: &Value| {
        format!(
            "{}  {}  {}",
            list::time_text(entry["timestamp"].as_i64().unwrap_or(0)),
            entry["taskName"].as_str().unwrap_or("job"),
            entry["stacktrace"].as_str().unwrap_or_default()
        )
    };
    entries.iter().rev().map(line).collect()
}

/// Prints lines that were not there at the last look. The log forgets its oldest
/// lines, so that lines are compared and not counted; each carries its time.
fn follow(client: &RestClient, path: &str, seen: &str) -> Outcome {
    let mut seen: BTreeSet<String> = seen.lines().map(str::to_owned).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        loop {
            tokio::select! {
                interrupted = tokio::signal::ctrl_c() => return interrupted.map_err(CliError::from),
                () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            }
            let text = client.get_text(path)?;
            for line in text.lines().filter(|line| !seen.contains(*line)) {
                super::print(line)?;
            }
            seen = text.lines().map(str::to_owned).collect();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_stand_in_the_order_in_which_they_happened() {
        let answer = serde_json::json!({ "exceptionHistory": { "entries": [
            { "timestamp": 2000, "taskName": "Map (1/2)", "stacktrace": "second" },
            { "timestamp": 1000, "taskName": null, "stacktrace": "first" },
        ] } });
        assert_eq!(failures(&answer), ["1970-01-01 00:00:01Z  job  first", "1970-01-01 00:00:02Z  Map (1/2)  second"]);
    }
}
