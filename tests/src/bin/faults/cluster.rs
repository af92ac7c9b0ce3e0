//! One process `engine cluster` of a session, what is to happen to it, and how its REST is asked.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use engine::base::failpoint::{CATALOGUE, VARIABLE};
use engine_tests::{engine, text};
use rand::{Rng, rngs::StdRng};
use serde_json::Value;

use super::{LOOK_EVERY, PROCESS_TIMEOUT, SIGKILL, STORAGE_FAULTS, pause};

/// Longest wait for an answer of REST.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(20);
/// Commands that a cluster may carry out before the one at which it is killed.
const COMMANDS_BEFORE_MAX: u32 = 2;

/// What happens to one process.
#[derive(Clone, Debug, Default)]
pub(super) struct Fault {
    /// An error of storage, which it survives.
    error: Option<String>,
    kill: Option<Kill>,
}

#[derive(Clone, Debug)]
enum Kill {
    /// It ends by itself where it is told to.
    Failpoint(String),
    /// It is killed during a command, when it has carried out so many others.
    AtCommand(u32),
}

impl Fault {
    pub(super) fn draw(random: &mut StdRng) -> Self {
        let error = random.random_bool(0.25).then(|| {
            let (name, errors) = STORAGE_FAULTS[random.random_range(0..STORAGE_FAULTS.len())];
            let error = errors[random.random_range(0..errors.len())];
            format!("{name}=error({error})@{}", random.random_range(1..4))
        });
        let kill = match random.random_range(0..10) {
            0..6 => {
                let (name, _) = CATALOGUE[random.random_range(0..CATALOGUE.len())];
                let time = if random.random_bool(0.7) { 1 } else { random.random_range(1..12) };
                Some(Kill::Failpoint(format!("{name}=kill@{time}")))
            }
            6..9 => Some(Kill::AtCommand(random.random_range(0..=COMMANDS_BEFORE_MAX))),
            _ => None,
        };
        Self { error, kill }
    }

    fn failpoint(&self) -> Option<&str> {
        match &self.kill {
            Some(Kill::Failpoint(text)) => Some(text),
            Some(Kill::AtCommand(_)) | None => None,
        }
    }

    fn variable(&self) -> Option<String> {
        let both: Vec<_> = self.error.as_deref().into_iter().chain(self.failpoint()).collect();
        (!both.is_empty()).then(|| both.join(";"))
    }

    /// Name of the place that kills, if the process said that it was reached.
    pub(super) fn killed_at(&self, said: &str) -> Option<&str> {
        self.failpoint().and_then(|text| struck(text, said))
    }

    /// True if the process said that its error of storage struck; none: it was to have none.
    pub(super) fn error_struck(&self, said: &str) -> Option<bool> {
        self.error.as_deref().map(|text| struck(text, said).is_some())
    }

    /// True if the process is to be killed during the command that is about to be given.
    pub(super) fn kills_at_command(&mut self) -> bool {
        match &mut self.kill {
            Some(Kill::AtCommand(0)) => true,
            Some(Kill::AtCommand(before)) => {
                *before -= 1;
                false
            }
            Some(Kill::Failpoint(_)) | None => false,
        }
    }
}

/// Name of a failpoint that did what it was told to.
fn struck<'a>(text: &'a str, said: &str) -> Option<&'a str> {
    let name = text.split('=').next().unwrap_or_default();
    said.contains(&format!("failpoint {name}: ")).then_some(name)
}

/// A process, which ends when this is dropped.
pub(super) struct Cluster {
    process: Child,
    /// Where its REST is served; empty as long as it has not said so.
    pub(super) url: String,
    pub(super) fault: Fault,
    /// Length of the log when it was started.
    pub(super) log_from: usize,
}

/// How a process is.
pub(super) enum Life {
    Serves,
    Killed,
}

impl Cluster {
    /// Starts one that keeps what it needs in `root`, and may read and write below `allowed`.
    pub(super) fn spawn(root: &Path, allowed: &Path, log: &Path, fault: Fault) -> Self {
        let log_from = fs::metadata(log).map_or(0, |log| usize::try_from(log.len()).unwrap_or(usize::MAX));
        let log = File::options().create(true).append(true).open(log).expect("writable");
        let served = File::create(root.join("served")).expect("writable");
        let mut command = engine();
        if let Some(failpoints) = fault.variable() {
            command.arg("--failpoints").env(VARIABLE, failpoints);
        }
        command.args(["cluster", "--port", "0", "--slots", "8", "--output", "json", "--log-level", "info"]);
        command.args(["--allow-read", text(allowed), "--allow-write", text(allowed)]);
        command.arg("-D").arg(format!("cluster.storage-dir={}", text(&root.join("storage"))));
        command.stdin(Stdio::null()).stdout(served).stderr(log);
        Self { process: command.spawn().expect("the engine starts"), url: String::new(), fault, log_from }
    }

    /// Waits until it says where REST is served, or has ended.
    ///
    /// # Errors
    /// Returns what is wrong if it does neither in time.
    pub(super) fn await_url(&mut self, root: &Path) -> Result<(), String> {
        let began = Instant::now();
        while began.elapsed() < PROCESS_TIMEOUT {
            let said = fs::read_to_string(root.join("served")).unwrap_or_default();
            if let Some((line, _)) = said.split_once('\n') {
                let served: Value = serde_json::from_str(line).map_err(|error| format!("{line:?}: {error}"))?;
                served["rest-url"].as_str().unwrap_or_default().clone_into(&mut self.url);
                return Ok(());
            }
            if self.process.try_wait().expect("it is our child").is_some() {
                return Ok(());
            }
            pause(LOOK_EVERY);
        }
        Err("a cluster did not say where REST is served".to_owned())
    }

    /// # Errors
    /// Returns how it ended if nobody killed it.
    pub(super) fn life(&mut self) -> Result<Life, String> {
        match self.process.try_wait().expect("it is our child") {
            None => Ok(Life::Serves),
            Some(status) if status.signal() == Some(SIGKILL) => Ok(Life::Killed),
            Some(status) => Err(format!("a cluster ended by itself, {status}, with {:?}", self.fault)),
        }
    }

    pub(super) fn kill(&mut self) {
        self.process.kill().and_then(|()| self.process.wait()).expect("it is our child");
    }

    /// What REST answers; none: it does not.
    pub(super) fn get(&self, path: &str) -> Option<Value> {
        let request = ureq::get(format!("{}{path}", self.url)).config().timeout_global(Some(ANSWER_TIMEOUT)).build();
        request.call().ok()?.body_mut().read_json().ok()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.process.kill().and_then(|()| self.process.wait()).is_err() {
            eprintln!("a cluster had ended");
        }
    }
}
