//! `engine savepoint`: takes a savepoint, shows what is in one, deletes one.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{CliError, GlobalOptions, JobManagerOption, Outcome, Output, checkpoints::bytes_text, list, state_export};
use crate::{
    base::stream_element::{SnapshotKind, SnapshotLocation},
    checkpoint::{
        CheckpointMetadata, CheckpointStorage, FinishedState, OperatorState, OperatorSubtaskState, StateExport,
    },
    graph::stream_graph::StateDeclaration,
};

/// Savepoints that an error names.
const NAMED_MAX: usize = 5;

/// `engine savepoint`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Without a directory the savepoint is written below execution.checkpointing.savepoint-dir.\n\n\
        Examples:\n  engine savepoint 1f0c /data/savepoints\n  \
        engine savepoint inspect /data/savepoints/savepoint-1f0c6b-0123456789ab\n  \
        engine savepoint inspect --state counts/value /data/savepoints/savepoint-1f0c6b-0123456789ab\n  \
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
    /// Shows operators, states, types and sizes of a savepoint or checkpoint on this machine, or the content of a state.
    #[command(
        after_help = "With --state or --timers each entry is a line: comma-separated values below their names, or \
        with --output json an object, in which times are milliseconds since the Unix epoch. Entries come in no \
        particular order. No more than one key group is kept in memory.\n\n\
        Examples:\n  \
        engine savepoint inspect savepoints/savepoint-1f0c6b-0123456789ab\n  \
        engine savepoint inspect --state counts/value --output json checkpoints/1f0c6b/chk-17 | sort"
    )]
    Inspect {
        /// Prints the entries of a state: the operator's uid, id or name, a slash, and the state's name.
        #[arg(long, value_name = "OPERATOR/STATE", conflicts_with = "timers")]
        state: Option<String>,
        /// Prints the timers of an operator, by its uid, id or name.
        #[arg(long, value_name = "OPERATOR")]
        timers: Option<String>,
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
        Some(SavepointAction::Inspect { state, timers, path }) => {
            super::logging::start(global, "warn", None)?;
            check_is_snapshot(path)?;
            let (location, id) = SnapshotLocation::resolve(&path.to_string_lossy());
            let storage = CheckpointStorage::open(location).map_err(CliError::failed)?;
            let metadata = storage.load_metadata(id).map_err(CliError::failed)?;
            let export = match (state, timers) {
                (Some(state), _) => StateExport::of_state(&storage, &metadata, state),
                (None, Some(operator)) => StateExport::of_timers(&storage, &metadata, operator),
                (None, None) => return inspect(path, &storage, &metadata, global.output),
            };
            state_export::print(&export.map_err(CliError::usage)?, global.output)
        }
        Some(SavepointAction::Dispose { job_manager, path }) => {
            let rest = list::client(job_manager, global)?;
            let body = json!({ "savepoint-path": as_text(path)? });
            rest.operate("/savepoint-disposal", &body, |id| format!("/savepoint-disposal/{id}"))?;
            super::print(&format!("savepoint {} is deleted", path.display()))
        }
        None => take(savepoint, global),
    }
}

/// Refuses a directory on this machine that is no savepoint; names those below it, or beside what is not there.
fn check_is_snapshot(path: &Path) -> Outcome {
    let text = path.to_string_lossy();
    // What is no path of this machine is refused by whoever opens it.
    let Ok(directory) = SnapshotLocation::local_path(&text) else { return Ok(()) };
    let directory = Path::new(&directory);
    if directory.ends_with("_metadata") || directory.join("_metadata").exists() {
        return Ok(());
    }
    let is_there = directory.is_dir();
    let searched = if is_there { Some(directory) } else { directory.parent() };
    let searched = searched.map(|searched| if searched.as_os_str().is_empty() { Path::new(".") } else { searched });
    let entries = searched.and_then(|searched| std::fs::read_dir(searched).ok()).into_iter().flatten().flatten();
    let mut found: Vec<String> = entries
        .map(|entry| entry.path())
        .filter(|path| path.join("_metadata").exists())
        .map(|path| path.display().to_string())
        .collect();
    found.sort();
    let more = found.len().saturating_sub(NAMED_MAX);
    found.truncate(NAMED_MAX);
    let why = if is_there { "it has no _metadata" } else { "there is no such directory" };
    let named = match (found.is_empty(), more) {
        (true, _) => "name the directory savepoint-… or chk-… itself".to_owned(),
        (false, 0) => format!("there are {}", found.join(", ")),
        (false, more) => format!("there are {} and {more} more", found.join(", ")),
    };
    Err(CliError::usage(anyhow::anyhow!("there is no savepoint or checkpoint {text}: {why}; {named}")))
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

fn inspect(path: &Path, storage: &CheckpointStorage, metadata: &CheckpointMetadata, output: Output) -> Outcome {
    // What cannot be restored is shown all the same.
    let damage = storage.verify(metadata).err().map(|error| format!("{:#}", anyhow::Error::from(error)));
    match output {
        Output::Json => super::print_json(&json_of(metadata, damage.as_deref()))?,
        Output::Text => super::print(&text_of(metadata, damage.as_deref()))?,
    }
    match damage {
        None => Ok(()),
        Some(damage) => Err(CliError::failed(anyhow::anyhow!("{} cannot be restored: {damage}", path.display()))),
    }
}

fn kind_text(kind: SnapshotKind) -> &'static str {
    if kind.is_savepoint() { "savepoint" } else { "checkpoint" }
}

fn kind_name(state: &StateDeclaration) -> String {
    format!("{:?}", state.kind).to_lowercase()
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
        let states = operator.states().into_iter().map(|state| {
            json!({
                "name": state.name,
                "kind": kind_name(state),
                "type": state.value_type,
                "map-key-type": state.map_key_type,
            })
        });
        json!({
            "id": operator.operator_id,
            "uid": operator.uid,
            "name": operator.name,
            "parallelism": operator.parallelism,
            "max-parallelism": operator.max_parallelism,
            "finished": finished_text(operator.finished),
            "bytes": bytes(operator, metadata),
            "key-type": operator.key_type(),
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
        lines.extend(operator.key_type().map(|key| format!("  key {key}")));
        lines.extend(operator.states().into_iter().map(|state| {
            let map_key = state.map_key_type.as_ref().map_or_else(String::new, |key| format!("{key} to "));
            format!("  {} {}: {map_key}{}", kind_name(state), state.name, state.value_type)
        }));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn savepoints_below_a_directory_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let savepoint = directory.path().join("savepoint-1");
        std::fs::create_dir(&savepoint).unwrap();
        let refusal = |path: &Path| match check_is_snapshot(path) {
            Err(CliError::Usage(error)) => error.to_string(),
            other => panic!("{other:?}"),
        };
        assert!(
            refusal(directory.path()).ends_with("it has no _metadata; name the directory savepoint-… or chk-… itself")
        );
        std::fs::write(savepoint.join("_metadata"), "").unwrap();
        assert!(check_is_snapshot(&savepoint).is_ok());
        let there_is = format!("there are {}", savepoint.display());
        assert!(refusal(directory.path()).ends_with(&format!("it has no _metadata; {there_is}")));
        let typo = directory.path().join("savepiont-1");
        assert!(refusal(&typo).ends_with(&format!("there is no such directory; {there_is}")));
    }
}
