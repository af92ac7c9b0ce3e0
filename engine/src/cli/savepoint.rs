//! `engine savepoint`: takes a savepoint, shows what is in one, deletes one.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, checkpoints::bytes_text, list};
use crate::{
    base::stream_element::{SnapshotKind, SnapshotLocation},
    checkpoint::{CheckpointMetadata, CheckpointStorage, FinishedState, OperatorState, OperatorSubtaskState},
};

/// `engine savepoint`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Without a directory the savepoint is written below execution.checkpointing.savepoint-dir.\n\n\
        Examples:\n  engine savepoint 1f0c /data/savepoints\n  \
        engine savepoint inspect /data/savepoints/savepoint-1f0c6b-0123456789ab\n  \
        engine savepoint dispose /data/savepoints/savepoint-1f0c6b-0123456789ab"
)]
pub(crate) struct SavepointOptions {
    #[command(subcommand)]
    action: Option<SavepointAction>,
    #[command(flatten)]
    job_manager: JobManagerOption,
    /// Id of the job, or how it begins.
    #[arg(required = true)]
    job: Option<String>,
    /// Directory below which the savepoint is written, as the JobManager sees it.
    directory: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum SavepointAction {
    /// Shows operators, states, types and sizes of a savepoint or checkpoint on this machine.
    Inspect {
        /// Directory of a savepoint, or of a checkpoint (…/chk-N).
        path: PathBuf,
    },
    /// Has the JobManager delete a savepoint.
    Dispose {
        #[command(flatten)]
        job_manager: JobManagerOption,
        /// Directory of the savepoint, as the JobManager sees it.
        path: PathBuf,
    },
}

pub(crate) fn run(savepoint: &SavepointOptions, global: &GlobalOptions) -> Outcome {
    match &savepoint.action {
        Some(SavepointAction::Inspect { path }) => inspect(path, global),
        Some(SavepointAction::Dispose { job_manager, path }) => {
            let rest = list::client(job_manager, global)?;
            let body = json!({ "savepoint-path": as_text(path)? });
            rest.operate("/savepoint-disposal", &body, |id| format!("/savepoint-disposal/{id}"))?;
            super::print(&format!("savepoint {} is deleted", path.display()))
        }
        None => take(savepoint, global),
    }
}

/// What is sent in JSON.
pub(crate) fn as_text(path: &Path) -> Result<String, CliError> {
    let absolute = if path.to_string_lossy().contains("://") { path.to_owned() } else { std::path::absolute(path)? };
    absolute.to_str().map(str::to_owned).ok_or_else(|| {
        CliError::usage(anyhow::anyhow!("{}: the path is not UTF-8, which it has to be to be sent", path.display()))
    })
}

fn take(savepoint: &SavepointOptions, global: &GlobalOptions) -> Outcome {
    let text = savepoint.job.as_deref().unwrap_or_default();
    let rest = list::client(&savepoint.job_manager, global)?;
    let job = rest.find_job(text)?;
    let directory = savepoint.directory.as_deref().map(as_text).transpose()?;
    let body = json!({ "target-directory": directory, "cancel-job": false });
    let taken = rest.operate(&format!("/jobs/{job}/savepoints"), &body, |id| format!("/jobs/{job}/savepoints/{id}"))?;
    print_location(&taken, global.output)
}

/// Prints where a savepoint is.
pub(crate) fn print_location(taken: &Value, output: Output) -> Outcome {
    let location = taken["location"].as_str().unwrap_or_default();
    match output {
        Output::Text => super::print(location),
        Output::Json => super::print_json(&json!({ "location": location })),
    }
}

fn inspect(path: &Path, global: &GlobalOptions) -> Outcome {
    super::logging::start(global, "warn", None)?;
    let (location, id) = SnapshotLocation::resolve(&path.to_string_lossy());
    let storage = CheckpointStorage::open(location).map_err(CliError::failed)?;
    let metadata = storage.load_metadata(id).map_err(CliError::failed)?;
    // What cannot be restored is shown all the same.
    let damage = storage.verify(&metadata).err().map(|error| format!("{:#}", anyhow::Error::from(error)));
    match global.output {
        Output::Json => super::print_json(&json_of(&metadata, damage.as_deref()))?,
        Output::Text => super::print(&text_of(&metadata, damage.as_deref()))?,
    }
    match damage {
        None => Ok(()),
        Some(damage) => Err(CliError::failed(anyhow::anyhow!("{} cannot be restored: {damage}", path.display()))),
    }
}

fn kind_text(kind: SnapshotKind) -> &'static str {
    if kind.is_savepoint() { "savepoint" } else { "checkpoint" }
}

/// One state of an operator over its subtasks.
struct StateLine {
    name: String,
    kind: String,
    value_type: String,
}

fn states(operator: &OperatorState) -> Vec<StateLine> {
    let Some(first) = operator.subtasks.values().find(|subtask| subtask.keyed.is_some() || !subtask.lists.is_empty())
    else {
        return Vec::new();
    };
    let keyed = first.keyed.iter().flat_map(|keyed| &keyed.states);
    let lists = first.lists.iter().map(|list| &list.declaration);
    let line = |state: &crate::graph::stream_graph::StateDeclaration| StateLine {
        name: state.name.clone(),
        kind: format!("{:?}", state.kind).to_lowercase(),
        value_type: state.value_type.clone(),
    };
    let mut lines: Vec<StateLine> = Vec::new();
    for state in keyed.chain(lists).map(line) {
        if lines.iter().all(|known| known.name != state.name) {
            lines.push(state);
        }
    }
    lines
}

fn key_type(operator: &OperatorState) -> Option<&str> {
    operator.subtasks.values().find_map(|subtask| subtask.keyed.as_ref()).map(|keyed| keyed.key_type.as_str())
}

fn bytes(operator: &OperatorState, metadata: &CheckpointMetadata) -> u64 {
    let coordinator = operator.coordinator.as_ref().map_or(0, |state| state.len() as u64);
    let sizes = |subtask: &OperatorSubtaskState| subtask.sizes(metadata.checkpoint_id).full;
    coordinator + operator.subtasks.values().map(sizes).sum::<u64>()
}

fn finished_text(finished: FinishedState) -> &'static str {
    match finished {
        FinishedState::None => "no",
        FinishedState::Partly => "partly",
        FinishedState::Fully => "yes",
    }
}

fn json_of(metadata: &CheckpointMetadata, damage: Option<&str>) -> Value {
    let operators = metadata.operators.values().map(|operator| {
        let states = states(operator)
            .into_iter()
            .map(|state| json!({ "name": state.name, "kind": state.kind, "type": state.value_type }));
        json!({
            "id": operator.operator_id,
            "uid": operator.uid,
            "name": operator.name,
            "parallelism": operator.parallelism,
            "max-parallelism": operator.max_parallelism,
            "finished": finished_text(operator.finished),
            "bytes": bytes(operator, metadata),
            "key-type": key_type(operator),
            "states": states.collect::<Vec<_>>(),
        })
    });
    json!({
        "id": metadata.checkpoint_id,
        "kind": kind_text(metadata.kind),
        "job": metadata.job,
        "job-name": metadata.job_name,
        "plugin": metadata.plugin,
        "triggered": metadata.triggered.0,
        "damage": damage,
        "operators": operators.collect::<Vec<_>>(),
    })
}

fn text_of(metadata: &CheckpointMetadata, damage: Option<&str>) -> String {
    let mut lines = vec![
        format!(
            "{} {} of job {} \"{}\"",
            kind_text(metadata.kind),
            metadata.checkpoint_id,
            metadata.job,
            metadata.job_name
        ),
        format!("triggered {}, plugin {}", list::time_text(metadata.triggered.0), metadata.plugin),
    ];
    lines.extend(damage.map(|damage| format!("DAMAGED, it cannot be restored: {damage}")));
    for operator in metadata.operators.values() {
        let uid = operator.uid.as_ref().map_or_else(String::new, |uid| format!(", uid \"{uid}\""));
        lines.push(format!(
            "\n{} \"{}\"{uid}\n  parallelism {} of at most {}, {}, finished: {}",
            operator.operator_id,
            operator.name,
            operator.parallelism,
            operator.max_parallelism,
            bytes_text(bytes(operator, metadata)),
            finished_text(operator.finished),
        ));
        lines.extend(key_type(operator).map(|key| format!("  key {key}")));
        lines.extend(
            states(operator).iter().map(|state| format!("  {} {}: {}", state.kind, state.name, state.value_type)),
        );
        let splits: usize = operator.subtasks.values().map(|subtask| subtask.splits.len()).sum();
        if 0 < splits {
            lines.push(format!("  {splits} splits being read"));
        }
        let committables: usize = operator.subtasks.values().map(|subtask| subtask.committables.len()).sum();
        if 0 < committables {
            lines.push(format!("  {committables} outputs to commit"));
        }
    }
    lines.join("\n")
}
