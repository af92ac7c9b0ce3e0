//! `engine checkpoints`: the checkpoints of a job as a table, or one of them by vertex and subtask.

use clap::Args;
use serde_json::{Map, Value, json};

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, list, progress};
use crate::{
    base::{ids::JobId, stream_element::CheckpointId},
    client::rest_client::RestClient,
};

/// `engine checkpoints`.
#[derive(Debug, Args)]
#[command(after_help = "Of one checkpoint each subtask is a line. DURATION is the time from the trigger to its \
    acknowledgement; START the time until the first barrier came, ALIGN from there to the last one, SYNC the time for \
    which the task did nothing else, ASYNC that of writing beside its work, with the wait for the thread that writes.\n\n\
    Examples:\n  engine checkpoints 1f0c\n  engine checkpoints 1f0c 17\n  engine checkpoints 1f0c --output json")]
pub(crate) struct CheckpointsOptions {
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Id of the job, or how it begins.
    job: String,
    /// Number of a checkpoint, of which each subtask is shown.
    #[arg(value_name = "CHECKPOINT")]
    checkpoint: Option<CheckpointId>,
}

pub(crate) fn run(checkpoints: &CheckpointsOptions, global: &GlobalOptions) -> Outcome {
    let rest = list::client(&checkpoints.job_manager, global)?;
    let job = rest.find_job(&checkpoints.job)?;
    let (answer, table) = match checkpoints.checkpoint {
        None => {
            let answer = rest.get(&format!("/jobs/{job}/checkpoints"))?;
            let table = table(&answer);
            (answer, table)
        }
        Some(id) => {
            let answer = with_subtasks(&rest, job, id)?;
            let table = subtask_table(&answer);
            (answer, table)
        }
    };
    match global.output {
        Output::Json => super::print_json(&answer),
        Output::Text => {
            let odd = || CliError::failed(anyhow::anyhow!("the JobManager's answer about checkpoints cannot be read"));
            super::print(&table.ok_or_else(odd)?)
        }
    }
}

/// A checkpoint, in whose tasks stand the names of the vertices, in their order, and their subtasks too.
fn with_subtasks(rest: &RestClient, job: JobId, id: CheckpointId) -> Result<Value, CliError> {
    let mut answer = rest.get(&format!("/jobs/{job}/checkpoints/details/{id}"))?;
    let detail = rest.get(&format!("/jobs/{job}"))?;
    let mut tasks = Map::new();
    for vertex in detail["vertices"].as_array().into_iter().flatten() {
        let Some(vertex_id) = vertex["id"].as_str().filter(|id| !answer["tasks"][*id].is_null()) else { continue };
        let mut task = rest.get(&format!("/jobs/{job}/checkpoints/details/{id}/subtasks/{vertex_id}"))?;
        task["name"] = vertex["name"].clone();
        task["position"] = json!(tasks.len());
        tasks.insert(vertex_id.to_owned(), task);
    }
    answer["tasks"] = Value::Object(tasks);
    Ok(answer)
}

/// None if fields are missing.
fn subtask_table(checkpoint: &Value) -> Option<String> {
    let number = |value: &Value| value.as_u64();
    let time = |value: &Value| value.as_u64().map_or_else(|| "-".to_owned(), duration_text);
    let status = checkpoint["status"].as_str()?;
    let mut lines = vec![format!(
        "{} {} is {status}: triggered {}, took {}, {}/{} tasks, state {}, written {}",
        kind_text(checkpoint)?,
        number(&checkpoint["id"])?,
        list::time_text(checkpoint["trigger_timestamp"].as_i64()?),
        time(&checkpoint["end_to_end_duration"]),
        number(&checkpoint["num_acknowledged_subtasks"])?,
        number(&checkpoint["num_subtasks"])?,
        bytes_text(number(&checkpoint["state_size"])?),
        bytes_text(number(&checkpoint["checkpointed_size"])?),
    )];
    lines.extend(checkpoint["failure_message"].as_str().map(|message| format!("  {message}")));
    lines.extend(checkpoint["external_path"].as_str().map(|path| format!("  {path}")));
    let mut tasks: Vec<&Value> = checkpoint["tasks"].as_object()?.values().collect();
    tasks.sort_by_key(|task| task["position"].as_u64());
    for task in tasks {
        lines.push(progress::shortened(task["name"].as_str()?));
        lines.push(format!(
            "{:>9}  {:9}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}",
            "SUBTASK", "STATUS", "DURATION", "START", "ALIGN", "SYNC", "ASYNC", "STATE", "WRITTEN"
        ));
        let subtasks = task["subtasks"].as_array()?;
        for subtask in subtasks {
            let place = format!("{}/{}", number(&subtask["index"])? + 1, subtasks.len());
            if subtask["status"] == "completed" {
                lines.push(format!(
                    "{place:>9}  {:9}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}",
                    "done",
                    time(&subtask["end_to_end_duration"]),
                    time(&subtask["start_delay"]),
                    time(&subtask["alignment"]["duration"]),
                    time(&subtask["checkpoint"]["sync"]),
                    time(&subtask["checkpoint"]["async"]),
                    bytes_text(number(&subtask["state_size"])?),
                    bytes_text(number(&subtask["checkpointed_size"])?),
                ));
            } else {
                // A checkpoint can be complete without those that have nothing more to say.
                let state = match status {
                    "COMPLETED" => "finished",
                    "IN_PROGRESS" => "pending",
                    _ => "missing",
                };
                lines.push(format!("{place:>9}  {state}"));
            }
        }
    }
    Some(lines.join("\n"))
}

fn kind_text(checkpoint: &Value) -> Option<String> {
    Some(match checkpoint["checkpoint_type"].as_str()? {
        "SYNC_SAVEPOINT" => "stop-savepoint".to_owned(),
        kind => kind.to_lowercase(),
    })
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
        let kind = kind_text(checkpoint)?;
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
    fn a_checkpoint_is_shown_by_vertex_and_subtask() {
        let answer = json!({
            "id": 7, "status": "FAILED", "checkpoint_type": "CHECKPOINT", "trigger_timestamp": 0,
            "end_to_end_duration": 1500, "num_subtasks": 3, "num_acknowledged_subtasks": 1, "state_size": 2048,
            "checkpointed_size": 100, "failure_message": "it took too long",
            "tasks": {
                "a": { "name": "Count", "position": 1, "subtasks": [
                    { "index": 0, "status": "completed", "end_to_end_duration": 90, "state_size": 2048,
                      "checkpointed_size": 100, "start_delay": 10, "checkpoint": { "sync": 3, "async": 44 },
                      "alignment": { "duration": 20 } },
                    { "index": 1, "status": "pending_or_failed" },
                ] },
                "b": { "name": "Source", "position": 0, "subtasks": [{ "index": 0, "status": "pending_or_failed" }] },
            },
        });
        let table = subtask_table(&answer).expect("all fields are there");
        let lines: Vec<String> =
            table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        assert_eq!(
            lines[0],
            "checkpoint 7 is FAILED: triggered 1970-01-01 00:00:00Z, took 1.50 s, 1/3 tasks, state 2.0 KiB, written 100 B"
        );
        assert_eq!(lines[1..3], ["it took too long", "Source"]);
        assert_eq!(lines[4..6], ["1/1 missing", "Count"]);
        assert_eq!(lines[7..], ["1/2 done 90 ms 10 ms 20 ms 3 ms 44 ms 2.0 KiB 100 B", "2/2 missing"]);
        assert_eq!(subtask_table(&json!({})), None);
    }

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
