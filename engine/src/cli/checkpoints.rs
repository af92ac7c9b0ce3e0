//! `engine checkpoints`: the checkpoints of a job as a table.

use clap::Args;
use serde_json::Value;

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, list, progress};

/// `engine checkpoints`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  engine checkpoints 1f0c\n  engine checkpoints 1f0c --output json")]
pub(crate) struct CheckpointsOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Id of the job, or how it begins.
    job: String,
}

pub(crate) fn run(checkpoints: &CheckpointsOptions, global: &GlobalOptions) -> Outcome {
    let rest = list::client(&checkpoints.job_manager, global)?;
    let job = rest.find_job(&checkpoints.job)?;
    let answer = rest.get(&format!("/jobs/{job}/checkpoints"))?;
    match global.output {
        Output::Json => super::print_json(&answer),
        Output::Text => {
            let odd = || CliError::failed(anyhow::anyhow!("the JobManager's answer about checkpoints cannot be read"));
            super::print(&table(&answer).ok_or_else(odd)?)
        }
    }
}

/// None if fields are missing.
fn table(answer: &Value) -> Option<String> {
    let counts = &answer["counts"];
    let count = |name: &str| counts[name].as_u64();
    let mut lines = vec![format!(
        "{} completed, {} failed, {} in progress, {} restored",
        count("completed")?,
        count("failed")?,
        count("in_progress")?,
        count("restored")?
    )];
    let history = answer["history"].as_array()?;
    if !history.is_empty() {
        lines.push(format!(
            "{:>6}  {:14} {:11}  {:20}  {:>10}  {:>10}  {:>7}  {:>10}  {:>10}",
            "ID", "KIND", "STATUS", "TRIGGERED", "DURATION", "ALIGNMENT", "TASKS", "STATE", "WRITTEN"
        ));
    }
    for checkpoint in history {
        let number = |name: &str| checkpoint[name].as_u64();
        let kind = match checkpoint["checkpoint_type"].as_str()? {
            "SYNC_SAVEPOINT" => "stop-savepoint".to_owned(),
            kind => kind.to_lowercase(),
        };
        let duration = number("end_to_end_duration").map_or_else(|| "-".to_owned(), duration_text);
        // Of the subtask that waited longest for its barriers.
        let alignment = number("alignment_duration_max").map_or_else(|| "-".to_owned(), duration_text);
        lines.push(format!(
            "{:>6}  {kind:14} {:11}  {:20}  {duration:>10}  {alignment:>10}  {:>7}  {:>10}  {:>10}",
            number("id")?,
            checkpoint["status"].as_str()?,
            list::time_text(checkpoint["trigger_timestamp"].as_i64()?),
            format!("{}/{}", number("num_acknowledged_subtasks")?, number("num_subtasks")?),
            bytes_text(number("state_size")?),
            bytes_text(number("checkpointed_size")?),
        ));
        if let Some(message) = checkpoint["failure_message"].as_str() {
            lines.push(format!("        {message}"));
        }
    }
    let latest = &answer["latest"];
    if let Some(path) = latest["completed"]["external_path"].as_str() {
        lines.push(format!("latest checkpoint: {path}"));
    }
    if let Some(path) = latest["savepoint"]["external_path"].as_str() {
        lines.push(format!("latest savepoint:  {path}"));
    }
    if let Some(path) = latest["restored"]["external_path"].as_str() {
        lines.push(format!("last restored:     {path}"));
    }
    Some(lines.join("\n"))
}

/// "250 ms", "1.50 s".
fn duration_text(millis: u64) -> String {
    if millis < 1000 { format!("{millis} ms") } else { progress::duration_text(millis) }
}

/// "512 B", "1.5 MiB".
#[expect(clippy::cast_precision_loss, reason = "shown with one digit")]
pub(crate) fn bytes_text(bytes: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, size)| *size <= bytes) {
        Some((unit, size)) => format!("{:.1} {unit}", bytes as f64 / size as f64),
        None => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_table_shows_history_and_paths() {
        let answer = json!({
            "counts": { "completed": 1, "failed": 1, "in_progress": 0, "restored": 0, "total": 2 },
            "latest": { "completed": { "external_path": "/c/chk-1" }, "savepoint": null, "restored": null },
            "history": [
                { "id": 2, "checkpoint_type": "SYNC_SAVEPOINT", "status": "FAILED", "trigger_timestamp": 1000,
                  "end_to_end_duration": -1, "num_subtasks": 4, "num_acknowledged_subtasks": 3, "state_size": 0,
                  "checkpointed_size": 0, "failure_message": "a task was ending" },
                { "id": 1, "checkpoint_type": "CHECKPOINT", "status": "COMPLETED", "trigger_timestamp": 0,
                  "end_to_end_duration": 250, "alignment_duration_max": 1500, "num_subtasks": 4, "num_acknowledged_subtasks": 4,
                  "state_size": 1_572_864, "checkpointed_size": 512 },
            ],
        });
        let table = table(&answer).expect("all fields are there");
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = table.lines().map(words).collect();
        assert_eq!(lines[0], "1 completed, 1 failed, 0 in progress, 0 restored");
        assert_eq!(lines[2], "2 stop-savepoint FAILED 1970-01-01 00:00:01Z - - 3/4 0 B 0 B");
        assert_eq!(lines[3], "a task was ending");
        assert!(lines[4].ends_with("250 ms 1.50 s 4/4 1.5 MiB 512 B"), "{}", lines[4]);
        assert_eq!(lines[5], "latest checkpoint: /c/chk-1");
        assert_eq!(super::table(&json!({})), None);
    }
}
