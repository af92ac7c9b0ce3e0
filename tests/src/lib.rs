//! Runs the engine as a user does: the binary and the plugins that `make build` left.

use std::{
    fmt::Write as _,
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;
use sha2::{Digest, Sha256};

pub mod nexmark;

/// The folder of the workspace.
pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the workspace").to_owned()
}

/// A file that `make build` leaves.
///
/// # Panics
/// Panics if it is not there.
pub fn built(path: &str) -> PathBuf {
    let built = workspace().join("target").join(path);
    assert!(built.exists(), "{} is missing: run `make build` first", built.display());
    built
}

/// The engine's command line, with a configuration of its own and no terminal.
pub fn engine() -> Command {
    let mut command = Command::new(built("release/engine"));
    command.env_remove("ENGINE_JOBMANAGER").env_remove("ENGINE_CONFIG").env_remove("ENGINE_LOG");
    command
}

/// A plugin by name.
pub fn plugin(name: &str) -> PathBuf {
    built(&format!("plugins/{name}.wasm"))
}

/// What a command did, for messages.
pub fn describe(output: &Output) -> String {
    format!(
        "exit code {:?}\n--- standard output\n{}\n--- standard error\n{}",
        output.status.code(),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs `engine submit -p PARALLELISM PLUGIN ARGUMENTS`, which must succeed.
///
/// # Panics
/// Panics with the command's output if it fails.
pub fn submit(parallelism: u32, name: &str, arguments: &[&str]) -> Output {
    let output = engine()
        .args(["submit", "-p", &parallelism.to_string()])
        .arg(plugin(name))
        .args(arguments)
        .output()
        .expect("the engine starts");
    assert!(output.status.success(), "{}", describe(&output));
    output
}

/// Runs `engine ARGUMENTS`.
///
/// # Panics
/// Panics if the engine cannot be started.
pub fn run(arguments: &[&str]) -> Output {
    engine().args(arguments).output().expect("the engine starts")
}

/// Of the end of a message, by which it is known again in a log line.
const CAUSE_CHARS: usize = 40;

/// Checks that a command ended with `code` and that it told why once, in one line
/// with all of `parts`, below which stand only the indented frames of a backtrace;
/// returns that line.
///
/// # Panics
/// Panics with the command's output if not.
#[track_caller]
pub fn check_failure(output: &Output, code: i32, parts: &[&str]) -> String {
    assert_eq!(output.status.code(), Some(code), "{}", describe(output));
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!message.contains("panicked at engine"), "{}", describe(output));
    let mut lines = message.lines().skip_while(|line| !line.starts_with("error: "));
    let line = lines.next().unwrap_or_else(|| panic!("there is no line \"error: \": {}", describe(output)));
    for part in parts {
        assert!(line.contains(part), "the message lacks {part:?}: {}", describe(output));
    }
    assert!(lines.all(|line| line.starts_with("    at ")), "more than a backtrace follows: {}", describe(output));
    let cause: String = line.chars().skip(line.chars().count().saturating_sub(CAUSE_CHARS)).collect();
    assert_eq!(
        message.lines().filter(|line| line.contains(&cause)).count(),
        1,
        "the cause is told more than once: {}",
        describe(output)
    );
    line.to_owned()
}

/// A path as an argument.
///
/// # Panics
/// Panics if it is not UTF-8.
pub fn text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}

/// True if there is nothing in a directory, or no such directory.
///
/// # Panics
/// Panics if it cannot be read.
pub fn is_empty(directory: &Path) -> bool {
    !directory.exists() || fs::read_dir(directory).expect("directories are readable").next().is_none()
}

/// How long a state of a cluster, or a file, is waited for.
const STATE_TIMEOUT: Duration = Duration::from_secs(20);

/// Looks until a file of a directory, which may not be there yet, has a name with this prefix.
///
/// # Panics
/// Panics if there is none in time.
pub fn await_file(directory: &Path, prefix: &str) {
    let deadline = Instant::now() + STATE_TIMEOUT;
    let is_there = || {
        let mut entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.any(|entry| entry.file_name().to_string_lossy().starts_with(prefix))
    };
    while !is_there() {
        assert!(Instant::now() < deadline, "there is still no {prefix}* in {}", directory.display());
        std::thread::yield_now();
    }
}

/// A running `engine cluster`, which ends when this is dropped.
pub struct Cluster {
    process: Child,
    /// Address of its REST endpoint: `http://127.0.0.1:PORT`.
    pub url: String,
}

impl Cluster {
    /// Starts `engine cluster --port 0 --output json ARGUMENTS`.
    ///
    /// # Panics
    /// Panics if it does not say where REST is served.
    pub fn start(arguments: &[&str]) -> Self {
        Self::spawn(engine(), arguments)
    }

    /// Starts a cluster in which failpoints do what `failpoints` says.
    ///
    /// # Panics
    /// As [`Cluster::start`].
    pub fn start_with_failpoints(arguments: &[&str], failpoints: &str) -> Self {
        let mut command = engine();
        command.arg("--failpoints").env("ENGINE_FAILPOINTS", failpoints);
        Self::spawn(command, arguments)
    }

    fn spawn(mut command: Command, arguments: &[&str]) -> Self {
        command.args(["cluster", "--port", "0", "--output", "json", "--log-level", "error"]).args(arguments);
        let process = command.stdout(Stdio::piped()).spawn().expect("the engine starts");
        // From here on, the process ends with this.
        let mut cluster = Self { process, url: String::new() };
        let mut line = String::new();
        let mut output = BufReader::new(cluster.process.stdout.take().expect("it is piped"));
        output.read_line(&mut line).expect("messages are UTF-8");
        let served: Option<Value> = serde_json::from_str(&line).ok();
        let url = served.and_then(|served| Some(served["rest-url"].as_str()?.to_owned()));
        cluster.url = url.unwrap_or_else(|| panic!("the cluster does not say where REST is served, but {line:?}"));
        cluster
    }

    /// True if REST is not served any more.
    pub fn is_gone(&self) -> bool {
        ureq::get(&self.url).config().http_status_as_error(false).build().call().is_err()
    }

    /// True if the process holds a file open.
    pub fn has_open(&self, file: &Path) -> bool {
        let descriptors = fs::read_dir(format!("/proc/{}/fd", self.process.id())).into_iter().flatten().flatten();
        descriptors.filter_map(|descriptor| fs::read_link(descriptor.path()).ok()).any(|target| target == file)
    }

    /// Submits a job, which must be taken, and returns its id.
    ///
    /// # Panics
    /// Panics with the command's output if it is not.
    pub fn submit(&self, flags: &[&str], name: &str, arguments: &[&str]) -> String {
        let output = engine()
            .args(["submit", "--detached", "--jobmanager", &self.url])
            .args(flags)
            .arg(plugin(name))
            .args(arguments)
            .output()
            .expect("the engine starts");
        assert!(output.status.success(), "{}", describe(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What REST answers.
    ///
    /// # Panics
    /// Panics if it does not answer, or not in JSON.
    pub fn get(&self, path: &str) -> Value {
        let url = format!("{}{path}", self.url);
        // The message of a refusal stands in its body.
        let request = ureq::get(&url).config().http_status_as_error(false).build();
        let mut response = request.call().unwrap_or_else(|error| panic!("{url}: {error}"));
        let body: Value = response.body_mut().read_json().unwrap_or_else(|error| panic!("{url}: {error}"));
        assert!(response.status().is_success(), "{url}: {}: {body}", response.status());
        body
    }

    /// State of a job.
    pub fn state(&self, job: &str) -> String {
        self.get(&format!("/jobs/{job}"))["state"].as_str().unwrap_or_default().to_owned()
    }

    /// Asks until `condition` holds of what REST answers.
    ///
    /// # Panics
    /// Panics with the last answer if it does not in time.
    pub fn await_answer(&self, path: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + STATE_TIMEOUT;
        loop {
            let answer = self.get(path);
            if condition(&answer) {
                return answer;
            }
            assert!(Instant::now() < deadline, "{path} still answers {answer}");
        }
    }

    /// Waits until so many checkpoints of a job are complete.
    ///
    /// # Panics
    /// Panics if they are not in time.
    pub fn await_checkpoints(&self, job: &str, count: u64) {
        let url = format!("{}/jobs/{job}/checkpoints", self.url);
        let deadline = Instant::now() + STATE_TIMEOUT;
        loop {
            // Before the first one there is nothing to tell of.
            let request = ureq::get(&url).config().http_status_as_error(false).build();
            let mut response = request.call().unwrap_or_else(|error| panic!("{url}: {error}"));
            let answer: Value = response.body_mut().read_json().unwrap_or_else(|error| panic!("{url}: {error}"));
            if answer["counts"]["completed"].as_u64().is_some_and(|completed| count <= completed) {
                return;
            }
            assert!(Instant::now() < deadline, "{url} still answers {answer}");
        }
    }

    /// Waits until each task of a job is RUNNING.
    ///
    /// # Panics
    /// As [`Cluster::await_answer`].
    pub fn await_tasks(&self, job: &str) {
        self.await_answer(&format!("/jobs/{job}"), |answer| {
            let vertices = answer["vertices"].as_array().expect("a job has vertices");
            vertices.iter().all(|vertex| vertex["tasks"]["RUNNING"] == vertex["parallelism"])
        });
    }

    /// Waits for a state of a job.
    pub fn await_state(&self, job: &str, state: &str) -> Value {
        self.await_answer(&format!("/jobs/{job}"), |answer| answer["state"] == state)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self.process.kill().and_then(|()| self.process.wait()).is_err() {
            eprintln!("the cluster had ended");
        }
    }
}

/// The rows of all part files of a directory, sorted bytewise.
///
/// # Panics
/// Panics if a file cannot be read or does not end with a whole row.
pub fn sorted_rows(directory: &Path) -> Vec<Vec<u8>> {
    let mut rows = Vec::new();
    for entry in fs::read_dir(directory).expect("the output directory is readable") {
        let path = entry.expect("the output directory is readable").path();
        let name = path.file_name().expect("files have names").to_string_lossy().into_owned();
        assert!(name.starts_with("part-"), "unexpected file {name} in the output");
        let content = fs::read(&path).expect("part files are readable");
        assert!(content.is_empty() || content.ends_with(b"\n"), "{name} ends within a row");
        rows.extend(content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec));
    }
    rows.sort_unstable();
    rows
}

/// SHA-256 of rows as hexadecimal digits.
pub fn sha256(rows: &[Vec<u8>]) -> String {
    let mut hash = Sha256::new();
    rows.iter().for_each(|row| hash.update(row));
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}
