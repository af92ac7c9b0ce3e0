//! How one version of a job takes the place of another: stop with a savepoint, start from it, and, if the new version
//! fails or the user gives up before its first checkpoint, back to the old one.
//!
//! The JobManager cancels the new version only if it has completed no checkpoint: so either nothing of it was
//! committed, and the old one may go on from the savepoint, or it goes on itself.

use std::{
    path::PathBuf,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{CliError, say};
use crate::{
    base::{
        config::{Origin, options},
        ids::JobId,
        option_scope::Scope,
        status::JobStatus,
    },
    client::{
        job_snapshot::JobSnapshot,
        rest_client::{RestClient, RestClientError, SentFile, wait},
    },
    graph::{job_graph::JobGraph, job_graph_codec, plan::json_plan},
    protocol::job_master::BEING_STOPPED,
};

/// Pause between two looks at the new job.
const LOOK_PAUSE: Duration = Duration::from_millis(100);
/// Longest wait for a job that was cancelled to end.
const CANCEL_TIME_MAX: Duration = Duration::from_secs(60);
/// Time for which a job that takes no checkpoints must run to count as taken over.
const PROBATION: Duration = Duration::from_secs(5);
/// Time after which slots that are awaited are spoken of.
const SHORTAGE_PATIENCE: Duration = Duration::from_secs(1);
/// Stands for a savepoint that is not taken yet.
const SAVEPOINT: &str = "SAVEPOINT";

/// One version of the program, as it is submitted.
pub(super) struct Version {
    pub(super) graph: JobGraph,
    pub(super) plugin: Bytes,
    /// Those of the graph.
    pub(super) artifacts: Vec<SentFile>,
}

/// What there is of a version in files.
#[derive(Default)]
pub(super) struct KeptFiles {
    pub(super) plugin: PathBuf,
    /// In the order of the version's artifacts.
    pub(super) artifacts: Vec<PathBuf>,
}

/// True for settings of a submitter that another submission takes over.
pub(super) fn is_handed_on(key: &str) -> bool {
    Scope::of(key) != Scope::Owner && key != options::RECOVERY_PATH.key
}

impl Version {
    /// Submits it as a job that goes on from a savepoint.
    fn start(
        &self,
        job: JobId,
        rest: &RestClient,
        savepoint: &str,
        allow_non_restored_state: bool,
    ) -> Result<(), String> {
        let mut graph = self.graph.clone();
        graph.job_id = job;
        graph.json_plan = json_plan(&graph);
        let allow = allow_non_restored_state.to_string();
        for (key, value) in
            [(options::RECOVERY_PATH.key, savepoint), (options::RECOVERY_IGNORE_UNCLAIMED.key, allow.as_str())]
        {
            graph.configuration.set(key, value, Origin::Dynamic).map_err(|error| error.to_string())?;
        }
        let encoded = Bytes::from(job_graph_codec::encode(&graph).map_err(|error| error.to_string())?);
        let plugin = SentFile { name: graph.program.plugin_name.clone(), content: self.plugin.clone() };
        match rest.patiently(|rest| rest.submit(&graph, encoded.clone(), &plugin, &self.artifacts)) {
            // An answer may have come late for a job that was taken: nobody else draws this id.
            Err(error) if error.status() == Some(409) => Ok(()),
            submitted => submitted.map_err(in_a_line),
        }
    }

    /// The command line that does the same by hand, with the files that plugin and artifacts are kept in.
    fn command(&self, rest: &RestClient, kept: &KeptFiles, savepoint: &str) -> String {
        let mut words: Vec<String> = ["engine", "submit", "-m", rest.url(), "--detached"].map(str::to_owned).to_vec();
        words.extend(["--from-savepoint".to_owned(), savepoint.to_owned()]);
        for (key, value, origin) in self.graph.configuration.iter() {
            let is_said = !matches!(origin, Origin::Default | Origin::Program);
            let is_of_start = [options::JOB_MANAGER_URL.key, options::RECOVERY_IGNORE_UNCLAIMED.key].contains(&key);
            if is_said && is_handed_on(key) && !is_of_start {
                words.extend(["-D".to_owned(), format!("{key}={value}")]);
            }
        }
        let grants = &self.graph.grants;
        let paths = |paths: &[PathBuf]| paths.iter().map(|path| path.to_string_lossy().into_owned()).collect();
        for (option, values) in [
            ("--allow-read", paths(&grants.read)),
            ("--allow-write", paths(&grants.write)),
            ("--allow-net", grants.net.clone()),
        ] {
            let values: Vec<String> = values;
            words.extend(values.into_iter().flat_map(|value| [option.to_owned(), value]));
        }
        for (artifact, path) in self.artifacts.iter().zip(&kept.artifacts) {
            words.extend(["--artifact".to_owned(), format!("{}={}", artifact.name, path.display())]);
        }
        words.push(kept.plugin.to_string_lossy().into_owned());
        words.extend(self.graph.program.args.iter().cloned());
        words.iter().map(|word| shell_word(word)).collect::<Vec<_>>().join(" ")
    }
}

/// A word of a command line, in quotes if a shell would read it as something else.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Whether the user wants to give up, and what there is if this process leaves at once.
#[derive(Default)]
pub(super) struct Interruption {
    is_asked: AtomicBool,
    state: Mutex<String>,
}

impl Interruption {
    /// Notes that the user wants to give up. Returns false if that is not the first time.
    pub(super) fn ask(&self) -> bool {
        !self.is_asked.swap(true, Ordering::Relaxed)
    }

    /// What there is now, and what to do.
    pub(super) fn state(&self) -> MutexGuard<'_, String> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_asked(&self) -> bool {
        self.is_asked.load(Ordering::Relaxed)
    }
}

/// What became of it.
pub(super) struct Outcome {
    /// The job that runs now.
    pub(super) job: JobId,
    pub(super) savepoint: String,
    /// Why the old version goes on; none: the new one does.
    pub(super) failure: Option<Failure>,
    /// Starts the old version from the savepoint.
    pub(super) command: String,
}

/// Why the new version did not take over.
pub(super) enum Failure {
    /// It failed; how.
    New(String),
    /// The user gave up.
    Interrupted,
}

/// Two versions, and the job that one of them runs as.
pub(super) struct Takeover {
    pub(super) rest: RestClient,
    pub(super) job: JobId,
    pub(super) old: Version,
    pub(super) new: Version,
    /// Files with the old plugin and its artifacts.
    pub(super) kept: KeptFiles,
    /// Below which the savepoint is written; none: as configured.
    pub(super) directory: Option<String>,
    pub(super) allow_non_restored_state: bool,
}

impl Takeover {
    /// Does it. Waits for the JobManager.
    ///
    /// # Errors
    /// Returns an error that says what there is and what to do if neither version could be made to run.
    pub(super) fn run(&self, interruption: &Interruption) -> Result<Outcome, CliError> {
        let job = self.job;
        let command = self.old.command(&self.rest, &self.kept, SAVEPOINT);
        let is_stopping = format!(
            "job {job} is about to be stopped with a savepoint; if it ends and this command does not go on, \
             `engine checkpoints -m {} {job}` names the savepoint, and the old version is started again by: {command}",
            self.rest.url()
        );
        say(&is_stopping);
        interruption.state().clone_from(&is_stopping);
        let body = json!({ "targetDirectory": self.directory, "drain": false });
        let path = format!("/jobs/{job}/stop");
        let taken = self.rest.operate(&path, &body, |id| format!("/jobs/{job}/savepoints/{id}"));
        let taken = taken.map_err(|error| self.not_stopped(error, &is_stopping))?;
        let Some(savepoint) = taken["location"].as_str().map(str::to_owned) else {
            return Err(CliError::failed(anyhow::anyhow!(
                "job {job} was stopped, but the JobManager names no savepoint"
            )));
        };
        let command = self.old.command(&self.rest, &self.kept, &savepoint);
        let is_stopped = format!(
            "job {job} was stopped; its savepoint is {savepoint}, its plugin {}; it is started again by: {command}",
            self.kept.plugin.display()
        );
        say(&is_stopped);
        *interruption.state() = is_stopped;
        let successor = JobId::random();
        let started = self.start_new(successor, &savepoint, &command, interruption);
        let was_taken = started.is_ok();
        let Err(failure) = started.and_then(|()| watch(&self.rest, successor, interruption)) else {
            return Ok(Outcome { job: successor, savepoint, failure: None, command });
        };
        self.go_back(successor, was_taken, savepoint, failure, command, interruption)
    }

    /// Why the job could not be stopped, and that it runs as before, if it does. Without an outcome, or if somebody else
    /// is stopping the job, it may end at any moment.
    fn not_stopped(&self, error: RestClientError, is_stopping: &str) -> CliError {
        let is_decided = match &error {
            RestClientError::OperationFailed { message } => !message.contains(BEING_STOPPED),
            RestClientError::Refused { .. } => !error.is_transient(),
            _ => false,
        };
        let is_running = || self.rest.snapshot(self.job).is_ok_and(|job| job.status == JobStatus::Running);
        let error = in_a_line(error);
        CliError::failed(match is_decided {
            true if is_running() => anyhow::anyhow!("{error}; job {} goes on as before", self.job),
            true => anyhow::anyhow!(error),
            false => anyhow::anyhow!("{error}; {is_stopping}"),
        })
    }

    /// Submits the new version, unless the user has given up before.
    fn start_new(
        &self,
        successor: JobId,
        savepoint: &str,
        command: &str,
        interruption: &Interruption,
    ) -> Result<(), Failure> {
        if interruption.is_asked() {
            return Err(Failure::Interrupted);
        }
        *interruption.state() = format!(
            "job {} was stopped, and the new version may have been submitted as job {successor}: unless that is listed, \
             the old version is started again by: {command}",
            self.job
        );
        let started = self.new.start(successor, &self.rest, savepoint, self.allow_non_restored_state);
        started.map_err(Failure::New)?;
        say(&format!("the new version was submitted with JobID {successor}"));
        *interruption.state() = format!(
            "the new version goes on as job {successor}, in place of job {}; as long as it has completed no checkpoint, \
             it can be cancelled and the old version started by: {command}",
            self.job
        );
        Ok(())
    }

    /// Ends the new version, unless it has taken over meanwhile, and starts the old one.
    fn go_back(
        &self,
        successor: JobId,
        was_taken: bool,
        savepoint: String,
        failure: Failure,
        command: String,
        interruption: &Interruption,
    ) -> Result<Outcome, CliError> {
        let problem = match &failure {
            Failure::New(problem) => problem.clone(),
            Failure::Interrupted => "it was given up".to_owned(),
        };
        match end_uncommitted(&self.rest, successor, was_taken) {
            Ok(End::Nothing) => {}
            Ok(End::TookOver) => {
                say(&format!("the new version has completed a checkpoint meanwhile, and goes on: {problem}"));
                return Ok(Outcome { job: successor, savepoint, failure: None, command });
            }
            Ok(End::FailedLater) => {
                return Err(CliError::failed(anyhow::anyhow!(
                    "the new version, job {successor}, failed after its first checkpoint: {problem}; its output until \
                     there is visible, so that the old version was not started"
                )));
            }
            Err(error) => {
                return Err(CliError::failed(anyhow::anyhow!(
                    "{problem}; and it is not known what became of the new version, job {successor}: {error}; if it has \
                     completed no checkpoint, cancel it and start the old version by: {command}"
                )));
            }
        }
        let back = JobId::random();
        *interruption.state() = format!(
            "the old version may have been submitted as job {back}: unless that is listed, no version runs, and the old \
             one is started by: {command}"
        );
        if let Err(error) = self.old.start(back, &self.rest, &savepoint, false) {
            let is_listed = self.rest.patiently(RestClient::jobs).map(|jobs| jobs.iter().any(|job| job.id == back));
            let what = match is_listed {
                Ok(true) => None,
                Ok(false) => Some(format!("could not be started again: {error}; start it by: {command}")),
                Err(_) => Some(format!(
                    "may not have been started again, as job {back}: {error}; unless that is listed, start it by: {command}"
                )),
            };
            if let Some(what) = what {
                return Err(CliError::failed(anyhow::anyhow!("{problem}; and the old version {what}")));
            }
        }
        Ok(Outcome { job: back, savepoint, failure: Some(failure), command })
    }
}

/// Whether there is a directory for the savepoint that the JobManager lets clients write to. Touches nothing.
///
/// # Errors
/// Returns an error that says that there is none, or why it may not be used.
pub(super) fn check_savepoint_directory(
    rest: &RestClient,
    job: JobId,
    old: &JobGraph,
    directory: Option<&str>,
) -> Result<(), CliError> {
    let refused = |problem: String| Err(CliError::usage(anyhow::anyhow!("{problem}; job {job} was not touched")));
    let Some(directory) = directory else {
        let settings = rest.get("/jobmanager/config")?;
        let is_set = |setting: &Value| {
            setting["key"] == options::SAVEPOINT_DIR.key && setting["value"] != options::SAVEPOINT_DIR.default
        };
        let of_cluster = settings.as_array().is_some_and(|settings| settings.iter().any(is_set));
        return if of_cluster || old.configuration.get(&options::SAVEPOINT_DIR).is_some() {
            Ok(())
        } else {
            refused(format!(
                "there is no directory for the savepoint: give one with --savepoint DIR, or start the cluster with -D {}=DIR",
                options::SAVEPOINT_DIR.key
            ))
        };
    };
    // The JobManager looks at the directory before it looks for the job: it refuses either that or a job that is not there.
    let path = format!("/jobs/{}/savepoints", JobId::random());
    match rest.post(&path, &json!({ "target-directory": directory })) {
        Err(RestClientError::Refused { status: 404, .. }) | Ok(_) => Ok(()),
        Err(error @ RestClientError::Refused { .. }) => refused(in_a_line(error)),
        Err(error) => Err(error.into()),
    }
}

fn in_a_line(error: RestClientError) -> String {
    format!("{:#}", anyhow::Error::from(error))
}

/// Waits until a job has completed a checkpoint, or has finished.
///
/// # Errors
/// Returns why it did not.
fn watch(rest: &RestClient, job: JobId, interruption: &Interruption) -> Result<(), Failure> {
    let mut running_since = None;
    let mut shortage = Shortage::default();
    loop {
        let unknown = |error| Failure::New(in_a_line(error));
        let snapshot = rest.patiently(|rest| rest.snapshot(job)).map_err(unknown)?;
        let completed = completed_checkpoints(rest, job).map_err(unknown)?;
        let failed = || {
            let exceptions = rest.get(&format!("/jobs/{job}/exceptions")).unwrap_or_default();
            let root = exceptions["root-exception"].as_str().unwrap_or_default();
            Failure::New(root.lines().next().unwrap_or("no cause is known").to_owned())
        };
        match (snapshot.status, completed) {
            (JobStatus::Finished, _) => return Ok(()),
            (JobStatus::Failed | JobStatus::Canceled, _) => return Err(failed()),
            (_, Some(true)) => return Ok(()),
            _ if 0 < snapshot.restarts => return Err(failed()),
            (JobStatus::Running, None) => {
                let since = running_since.get_or_insert_with(Instant::now);
                if snapshot.slot_shortage.is_some() {
                    *since = Instant::now();
                } else if PROBATION <= since.elapsed() {
                    return Ok(());
                }
            }
            _ => running_since = None,
        }
        if interruption.is_asked() {
            return Err(Failure::Interrupted);
        }
        if let Some(line) = shortage.line(&snapshot) {
            say(&line);
        }
        wait(LOOK_PAUSE);
    }
}

/// Slots that a job has waited for, and whether that was said.
#[derive(Default)]
struct Shortage {
    since: Option<Instant>,
    said: Option<String>,
}

impl Shortage {
    /// What is to be said: once the job has waited for a while, and again if it waits for something else.
    fn line(&mut self, snapshot: &JobSnapshot) -> Option<String> {
        let Some(shortage) = snapshot.slot_shortage.filter(|shortage| shortage.available.is_some()) else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert_with(Instant::now);
        let line = format!("job {} is {shortage}", snapshot.id);
        if since.elapsed() < SHORTAGE_PATIENCE || self.said.as_ref() == Some(&line) {
            return None;
        }
        self.said = Some(line.clone());
        Some(line)
    }
}

/// Whether the job has completed a checkpoint; none: it takes none, or has not started.
fn completed_checkpoints(rest: &RestClient, job: JobId) -> Result<Option<bool>, RestClientError> {
    let ask = |path: &str| match rest.patiently(|rest| rest.get(&format!("/jobs/{job}/{path}"))) {
        Err(error) if error.status() == Some(404) => Ok(Value::Null),
        answer => answer,
    };
    let interval = ask("checkpoints/config")?["interval"].as_u64();
    if interval.is_none_or(|interval| i64::MAX.unsigned_abs() <= interval) {
        return Ok(None);
    }
    let latest = &ask("checkpoints")?["latest"];
    // A JobMaster that has recovered the job completed none itself.
    let is_restored = latest["restored"]["is_savepoint"] == false;
    Ok(Some(latest["completed"].is_object() || is_restored))
}

/// How the new version ended.
enum End {
    /// Without a checkpoint, or it was never there: nothing of it was committed.
    Nothing,
    /// It has completed a checkpoint and goes on, or has finished.
    TookOver,
    /// It has completed a checkpoint, and has not gone on.
    FailedLater,
}

/// Ends a job, unless it has completed a checkpoint. `was_taken`: the JobManager has said that it took the job.
fn end_uncommitted(rest: &RestClient, job: JobId, was_taken: bool) -> Result<End, String> {
    if rest.patiently(RestClient::jobs).map_err(in_a_line)?.iter().all(|known| known.id != job) {
        let is_forgotten = || "the JobManager does not know it any more, as some time after its end".to_owned();
        return if was_taken { Err(is_forgotten()) } else { Ok(End::Nothing) };
    }
    match rest.patiently(|rest| rest.cancel_uncommitted(job)) {
        // It has ended by itself.
        Err(error) if matches!(error.status(), Some(404 | 409)) => {}
        asked => asked.map_err(in_a_line)?,
    }
    let begun = Instant::now();
    while begun.elapsed() < CANCEL_TIME_MAX {
        let status = rest.patiently(|rest| rest.snapshot(job)).map_err(in_a_line)?.status;
        let has_committed = completed_checkpoints(rest, job).map_err(in_a_line)? == Some(true);
        match status {
            JobStatus::Finished => return Ok(End::TookOver),
            status if status.is_globally_terminal() => {
                return Ok(if has_committed { End::FailedLater } else { End::Nothing });
            }
            JobStatus::Failing | JobStatus::Canceling => {}
            _ if has_committed => return Ok(End::TookOver),
            _ => {}
        }
        wait(LOOK_PAUSE);
    }
    Err(format!("it was cancelled, but has not ended within {} s", CANCEL_TIME_MAX.as_secs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{base::config::Configuration, client::rest_client::RestClient, job_manager::test_graphs::job_graph};

    #[test]
    fn the_old_version_is_started_again_by_one_command() {
        let mut graph = job_graph(1, &[("a", 1)]);
        graph.configuration = Configuration::default();
        for (key, value, origin) in [
            (options::PARALLELISM.key, "2", Origin::CommandLine),
            (options::CHECKPOINTING_INTERVAL.key, "10 s", Origin::Dynamic),
            (options::JOB_NAME.key, "Old", Origin::Program),
            (options::RECOVERY_PATH.key, "/older", Origin::Dynamic),
        ] {
            graph.configuration.set(key, value, origin).unwrap();
        }
        graph.grants.read = vec![PathBuf::from("/in put")];
        graph.grants.write = Vec::new();
        graph.grants.net = Vec::new();
        graph.program.args = ["--input", "it's*"].map(str::to_owned).to_vec();
        let artifacts = vec![SentFile { name: "model".to_owned(), content: Bytes::new() }];
        let version = Version { graph, plugin: Bytes::new(), artifacts };
        let kept = KeptFiles { plugin: "words-1.wasm".into(), artifacts: vec!["a b/model-2".into()] };
        let rest = RestClient::new(&Configuration::default()).unwrap();
        assert_eq!(
            version.command(&rest, &kept, "/s/savepoint-1"),
            format!(
                "engine submit -m {} --detached --from-savepoint /s/savepoint-1 -D 'execution.checkpointing.interval=10 s' \
                 -D parallelism.default=2 --allow-read '/in put' --artifact 'model=a b/model-2' words-1.wasm --input 'it'\\''s*'",
                rest.url()
            )
        );
    }
}
