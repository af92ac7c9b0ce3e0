//! Talks to a JobManager's REST endpoint over HTTP. Every call blocks its thread,
//! for at most `client.timeout`.

use std::{io, time::Duration};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use ureq::{Agent, Body, http::Response};

use super::job_snapshot::{JobFailure, JobSnapshot, JobSummary};
use crate::{
    base::{
        config::{Configuration, options},
        ids::{JobId, ParseIdError},
    },
    graph::{job_graph::JobGraph, job_graph_codec},
    protocol::job_details::SlotShortage,
};

/// Bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// First pause between two questions about an operation; doubled up to [`OPERATION_PAUSE_MAX`].
const OPERATION_PAUSE_MIN: Duration = Duration::from_millis(20);
/// Longest pause between two questions about an operation.
const OPERATION_PAUSE_MAX: Duration = Duration::from_secs(1);
/// Metrics of a job that clients show.
/// How often something that goes on by itself is asked for again, and the pause between.
const PATIENCE_TRIES: u32 = 20;
const PATIENCE_PAUSE: Duration = Duration::from_millis(500);
const VERTEX_METRICS: &str = "numRejectedRows,numLogLinesDropped";
const JOB_METRICS: &str = "numRestarts,downtimeTotal,numSlotsAwaited,numSlotsAvailable";
/// Where a JobManager is looked for if nothing says where it is.
pub const DEFAULT_HOST: &str = "127.0.0.1";

/// A JobManager could not be asked, or refused.
#[derive(Debug, thiserror::Error)]
pub enum RestClientError {
    /// The address makes no sense.
    #[error("\"{0}\" is no address of a JobManager: expected one such as http://127.0.0.1:8081")]
    BadUrl(String),
    /// Nobody listens.
    #[error("no JobManager answers at {url}; start one with `engine cluster`, or say with --jobmanager where it is")]
    Unreachable {
        /// Where.
        url: String,
        /// Why not.
        source: ureq::Error,
    },
    /// The request failed on its way.
    #[error("could not {action} at {url}")]
    Transport {
        /// What was tried.
        action: String,
        /// Where.
        url: String,
        /// Why not.
        source: ureq::Error,
    },
    /// The JobManager refused.
    #[error("{}", messages.join("; "))]
    Refused {
        /// Status code.
        status: u16,
        /// What it says.
        messages: Vec<String>,
        /// Why a plugin is refused, for scripts.
        code: Option<String>,
    },
    /// Somebody else answers there, or another version.
    #[error("what answers at {url} is no JobManager of this version: {problem}")]
    Unexpected {
        /// Where.
        url: String,
        /// What was odd.
        problem: String,
    },
    /// What was asked for was begun and failed.
    #[error("{message}")]
    OperationFailed {
        /// Why.
        message: String,
    },
    /// No job has an id that begins so.
    #[error("there is no job {text}; `engine list -a` shows all")]
    NoSuchJob {
        /// As given.
        text: String,
    },
    /// Several jobs have an id that begins so.
    #[error("{count} jobs have ids that begin with {text}: write more of it")]
    AmbiguousJob {
        /// As given.
        text: String,
        /// How many.
        count: usize,
    },
}

impl RestClientError {
    /// True if asking again later may help: no connection, or no leader yet.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Transport { .. } => true,
            Self::Refused { status, .. } => *status == 503 || *status == 429,
            Self::BadUrl(_)
            | Self::Unexpected { .. }
            | Self::OperationFailed { .. }
            | Self::NoSuchJob { .. }
            | Self::AmbiguousJob { .. } => false,
        }
    }

    /// Status code of a refusal.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

/// The body of a refusal.
#[derive(Deserialize)]
struct Refusal {
    errors: Vec<String>,
    #[serde(default)]
    code: Option<String>,
}

/// A file that is sent.
#[derive(Clone, Debug)]
pub struct SentFile {
    /// Under which name the job graph or the operators know it.
    pub name: String,
    /// Its content.
    pub content: Bytes,
}

/// One JobManager. Cloning shares connections.
#[derive(Clone, Debug)]
pub struct RestClient {
    agent: Agent,
    /// Without a slash at the end.
    url: String,
}

impl RestClient {
    /// A client of the JobManager that the configuration names, by default the one of this machine.
    ///
    /// # Errors
    /// Returns an error if `rest.address` is no HTTP address.
    pub fn new(configuration: &Configuration) -> Result<Self, RestClientError> {
        let url = match configuration.get(&options::JOB_MANAGER_URL) {
            Some(url) => normalized(&url, configuration.get(&options::REST_PORT))?,
            None => format!("http://{DEFAULT_HOST}:{}", configuration.get(&options::REST_PORT)),
        };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            // An answer to an error is read like any other; a proxy has no business between the two.
            .proxy(None)
            .timeout_connect(Some(configuration.get(&options::REST_CONNECTION_TIMEOUT)))
            .timeout_global(Some(configuration.get(&options::CLIENT_TIMEOUT)))
            .user_agent(concat!("engine/", env!("CARGO_PKG_VERSION")))
            .build()
            .into();
        Ok(Self { agent, url })
    }

    /// Where the JobManager is.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn answer(&self, action: &str, result: Result<Response<Body>, ureq::Error>) -> Result<String, RestClientError> {
        let body = self.body(action, result)?;
        String::from_utf8(body).map_err(|_| self.unexpected("it is no text".to_owned()))
    }

    fn body(&self, action: &str, result: Result<Response<Body>, ureq::Error>) -> Result<Vec<u8>, RestClientError> {
        let url = self.url.clone();
        let mut response = result.map_err(|source| match &source {
            ureq::Error::Io(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                RestClientError::Unreachable { url: url.clone(), source }
            }
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => {
                RestClientError::Unreachable { url: url.clone(), source }
            }
            _ => RestClientError::Transport { action: action.to_owned(), url: url.clone(), source },
        })?;
        let status = response.status().as_u16();
        let body = response
            .body_mut()
            .with_config()
            .limit(ANSWER_BYTES_MAX)
            .read_to_vec()
            .map_err(|source| RestClientError::Transport { action: action.to_owned(), url: url.clone(), source })?;
        if (200..300).contains(&status) {
            return Ok(body);
        }
        let refusal = serde_json::from_slice::<Refusal>(&body);
        let Refusal { errors: messages, code } = refusal.map_err(|_| RestClientError::Unexpected {
            url,
            problem: format!("it answers with the status {status}"),
        })?;
        Err(RestClientError::Refused { status, messages, code })
    }

    fn json(&self, action: &str, result: Result<Response<Body>, ureq::Error>) -> Result<Value, RestClientError> {
        let text = self.answer(action, result)?;
        serde_json::from_str(&text).map_err(|error| self.unexpected(error.to_string()))
    }

    fn unexpected(&self, problem: String) -> RestClientError {
        RestClientError::Unexpected { url: self.url.clone(), problem }
    }

    /// Reads a path that begins with a slash.
    ///
    /// # Errors
    /// Returns an error if there is no answer or a refusal.
    pub fn get(&self, path: &str) -> Result<Value, RestClientError> {
        self.json(&format!("read {path}"), self.agent.get(format!("{}/v1{path}", self.url)).call())
    }

    /// Reads text from a path that begins with a slash.
    ///
    /// # Errors
    /// As [`RestClient::get`].
    pub fn get_text(&self, path: &str) -> Result<String, RestClientError> {
        self.answer(&format!("read {path}"), self.agent.get(format!("{}/v1{path}", self.url)).call())
    }

    /// Sends a JSON body to a path that begins with a slash.
    ///
    /// # Errors
    /// As [`RestClient::get`].
    pub fn post(&self, path: &str, body: &Value) -> Result<Value, RestClientError> {
        let request = self.agent.post(format!("{}/v1{path}", self.url)).content_type("application/json");
        self.json(&format!("ask for {path}"), request.send(body.to_string()))
    }

    /// Has the JobManager do something that takes its time, and waits for the outcome, which is
    /// asked for at the path that `polled` makes of the operation's id.
    ///
    /// # Errors
    /// Returns an error if there is no answer, a refusal, or the operation fails.
    pub fn operate(&self, path: &str, body: &Value, polled: impl Fn(&str) -> String) -> Result<Value, RestClientError> {
        let begun = self.post(path, body)?;
        let Some(id) = begun["request-id"].as_str() else {
            return Err(self.unexpected("it does not name the operation".to_owned()));
        };
        let path = polled(id);
        let mut pause = OPERATION_PAUSE_MIN;
        loop {
            // The operation goes on, whoever asks.
            let answer = self.patiently(|rest| rest.get(&path))?;
            if answer["status"]["id"] == "COMPLETED" {
                let operation = &answer["operation"];
                let failure =
                    ["failure-cause", "failureCause"].iter().find_map(|key| operation[*key]["stack-trace"].as_str());
                return match failure {
                    None => Ok(operation.clone()),
                    Some(message) => Err(RestClientError::OperationFailed { message: message.to_owned() }),
                };
            }
            wait(pause);
            pause = (pause * 2).min(OPERATION_PAUSE_MAX);
        }
    }

    /// Asks again for some time while nobody answers, or cannot at the moment.
    ///
    /// # Errors
    /// Returns the last error.
    pub fn patiently<T>(&self, ask: impl Fn(&Self) -> Result<T, RestClientError>) -> Result<T, RestClientError> {
        for _ in 0..PATIENCE_TRIES {
            match ask(self) {
                Err(error) if error.is_transient() => tracing::debug!("{error}; asking again"),
                answer => return answer,
            }
            wait(PATIENCE_PAUSE);
        }
        ask(self)
    }

    /// All jobs, running and ended.
    ///
    /// # Errors
    /// As [`RestClient::get`].
    pub fn jobs(&self) -> Result<Vec<JobSummary>, RestClientError> {
        let answer = self.get("/jobs/overview")?;
        let jobs = answer.get("jobs").cloned().unwrap_or_default();
        serde_json::from_value(jobs).map_err(|error| self.unexpected(error.to_string()))
    }

    /// The job whose id is, or begins with, the text.
    ///
    /// # Errors
    /// Returns an error if there is none or several.
    pub fn find_job(&self, text: &str) -> Result<JobId, RestClientError> {
        let whole: Result<JobId, ParseIdError> = text.parse();
        if let Ok(job) = whole {
            return Ok(job);
        }
        let wanted = text.to_lowercase();
        let matching: Vec<JobId> =
            self.jobs()?.into_iter().map(|job| job.id).filter(|id| id.to_string().starts_with(&wanted)).collect();
        match matching.as_slice() {
            [job] => Ok(*job),
            [] => Err(RestClientError::NoSuchJob { text: text.to_owned() }),
            several => Err(RestClientError::AmbiguousJob { text: text.to_owned(), count: several.len() }),
        }
    }

    /// How a job is now.
    ///
    /// # Errors
    /// As [`RestClient::get`].
    pub fn snapshot(&self, job: JobId) -> Result<JobSnapshot, RestClientError> {
        let detail = self.get(&format!("/jobs/{job}"))?;
        let mut snapshot = JobSnapshot::from_rest(&detail)
            .ok_or_else(|| self.unexpected("fields of the job are missing".to_owned()))?;
        snapshot
            .add_operators(&self.get(&format!("/jobs/{job}/operators"))?)
            .ok_or_else(|| self.unexpected("fields of the operators are missing".to_owned()))?;
        let metrics = self.get(&format!("/jobs/{job}/metrics?get={JOB_METRICS}"))?;
        let value = |name: &str| {
            let metrics = metrics.as_array().into_iter().flatten();
            metrics.filter(|metric| metric["id"] == name).find_map(|metric| number(&metric["value"]))
        };
        snapshot.restarts = value("numRestarts").unwrap_or(0);
        snapshot.downtime_ms = value("downtimeTotal").unwrap_or(0);
        let slots = |name: &str| value(name).and_then(|count| u32::try_from(count).ok());
        snapshot.slot_shortage =
            slots("numSlotsAwaited").map(|needed| SlotShortage { needed, available: slots("numSlotsAvailable") });
        for (id, vertex) in &mut snapshot.vertices {
            let path = format!("/jobs/{job}/vertices/{id}/subtasks/metrics?get={VERTEX_METRICS}&agg=sum");
            let sums = self.get(&path)?;
            vertex.rejected_rows = sum(&sums, "numRejectedRows");
            vertex.dropped_log_lines = sum(&sums, "numLogLinesDropped");
        }
        if snapshot.has_failed() || 0 < snapshot.restarts {
            let exceptions = self.get(&format!("/jobs/{job}/exceptions"))?;
            snapshot.failure = root_failure(&exceptions).filter(|_| snapshot.has_failed());
            snapshot
                .add_restarts(&exceptions)
                .ok_or_else(|| self.unexpected("fields of the failures are missing".to_owned()))?;
        }
        Ok(snapshot)
    }

    /// What a running job was submitted as.
    ///
    /// # Errors
    /// Returns an error if there is no such job, or its graph is of another version of the engine.
    pub fn job_graph(&self, job: JobId) -> Result<JobGraph, RestClientError> {
        let encoded = self.get_bytes(&format!("/jobs/{job}/job-graph"))?;
        job_graph_codec::decode(&encoded).map_err(|error| self.unexpected(error.to_string()))
    }

    /// The plugin of a running job.
    ///
    /// # Errors
    /// Returns an error if there is no such job.
    pub fn plugin(&self, job: JobId) -> Result<Bytes, RestClientError> {
        self.get_bytes(&format!("/jobs/{job}/plugin"))
    }

    /// An artifact of a running job.
    ///
    /// # Errors
    /// Returns an error if there is no such job, or it has no such artifact.
    pub fn artifact(&self, job: JobId, name: &str) -> Result<Bytes, RestClientError> {
        self.get_bytes(&format!("/jobs/{job}/artifacts/{}", percent_encoded(name)))
    }

    fn get_bytes(&self, path: &str) -> Result<Bytes, RestClientError> {
        let result = self.agent.get(format!("{}/v1{path}", self.url)).call();
        self.body(&format!("read {path}"), result).map(Bytes::from)
    }

    /// Asks for a job to be cancelled.
    ///
    /// # Errors
    /// Returns an error if the job is not known or has ended.
    pub fn cancel(&self, job: JobId) -> Result<(), RestClientError> {
        let url = format!("{}/v1/jobs/{job}?mode=cancel", self.url);
        self.answer("cancel the job", self.agent.patch(url).send_empty()).map(drop)
    }

    /// Asks for a job to be cancelled unless it has completed a checkpoint.
    ///
    /// # Errors
    /// Returns an error if the job is not known or has ended.
    pub fn cancel_uncommitted(&self, job: JobId) -> Result<(), RestClientError> {
        let url = format!("{}/v1/jobs/{job}?mode=cancel-uncommitted", self.url);
        self.answer("cancel the job", self.agent.patch(url).send_empty()).map(drop)
    }

    /// Submits a job with its plugin and artifacts.
    ///
    /// # Errors
    /// Returns an error if the JobManager does not take it.
    pub fn submit(
        &self,
        job_graph: &JobGraph,
        encoded: impl Into<Bytes>,
        plugin: &SentFile,
        artifacts: &[SentFile],
    ) -> Result<(), RestClientError> {
        let artifact_names: Vec<Value> = artifacts
            .iter()
            .enumerate()
            .map(|(index, artifact)| json!({ "entryName": artifact.name, "fileName": artifact_file_name(index) }))
            .collect();
        let request = json!({
            "jobGraphFileName": JOB_GRAPH_FILE_NAME,
            "jobJarFileNames": [PLUGIN_FILE_NAME],
            "jobArtifactFileNames": artifact_names,
        });
        let mut parts = vec![
            Part { name: "request", file_name: None, content: Bytes::from(request.to_string()) },
            Part { name: "file", file_name: Some(JOB_GRAPH_FILE_NAME.to_owned()), content: encoded.into() },
            Part { name: "file", file_name: Some(PLUGIN_FILE_NAME.to_owned()), content: plugin.content.clone() },
        ];
        parts.extend(artifacts.iter().enumerate().map(|(index, artifact)| Part {
            name: "file",
            file_name: Some(artifact_file_name(index)),
            content: artifact.content.clone(),
        }));
        // No file contains a boundary that was drawn for it.
        let boundary = format!("engine-{}", JobId::random());
        let body = multipart(&boundary, &parts);
        let result = self
            .agent
            .post(format!("{}/v1/jobs", self.url))
            .content_type(format!("multipart/form-data; boundary={boundary}"))
            .send(&body[..]);
        let answer = self.json("submit the job", result)?;
        let expected = format!("/jobs/{}", job_graph.job_id);
        if answer["jobUrl"].as_str() == Some(expected.as_str()) {
            return Ok(());
        }
        Err(self.unexpected("it answers a submission with another job".to_owned()))
    }
}

/// Waits before the JobManager is asked again.
#[expect(clippy::disallowed_methods, reason = "a command line has nothing else to wait for")]
pub fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

const JOB_GRAPH_FILE_NAME: &str = "flink-jobgraph.bin";
const PLUGIN_FILE_NAME: &str = "plugin.wasm";

fn artifact_file_name(index: usize) -> String {
    format!("artifact-{index}")
}

/// A name as one component of a path of a URL. Source: RFC 3986, section 2.1.
fn percent_encoded(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

/// Why a job failed, from the answer to `GET /jobs/:jobid/exceptions`.
fn root_failure(exceptions: &Value) -> Option<JobFailure> {
    let root = exceptions["root-exception"].as_str()?;
    let (message, detail) = root.split_once('\n').unwrap_or((root, ""));
    let entries = exceptions["exceptionHistory"]["entries"].as_array().into_iter().flatten();
    let named = entries.filter(|entry| entry["stacktrace"] == root).find_map(|entry| entry["exceptionName"].as_str());
    let code = named.unwrap_or("unknown").to_owned();
    Some(JobFailure { code, message: message.to_owned(), detail: detail.to_owned() })
}

/// The number of a metric in an answer about aggregated ones; 0 before there is one.
fn sum(answer: &Value, name: &str) -> u64 {
    let metrics = answer.as_array().into_iter().flatten();
    metrics.filter(|metric| metric["id"] == name).find_map(|metric| number(&metric["sum"])).unwrap_or(0)
}

/// A metric's value: values are texts, aggregates numbers.
fn number(value: &Value) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counters are whole and not negative")]
    let as_count = |number: f64| number as u64;
    value.as_f64().or_else(|| value.as_str()?.parse().ok()).map(as_count)
}

struct Part {
    name: &'static str,
    file_name: Option<String>,
    content: Bytes,
}

fn multipart(boundary: &str, parts: &[Part]) -> Vec<u8> {
    let mut body = Vec::with_capacity(parts.iter().map(|part| part.content.len() + 256).sum());
    for part in parts {
        body.extend(format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{}\"", part.name).bytes());
        if let Some(file_name) = &part.file_name {
            body.extend(format!("; filename=\"{file_name}\"\r\nContent-Type: application/octet-stream").bytes());
        }
        body.extend(b"\r\n\r\n");
        body.extend(&part.content);
        body.extend(b"\r\n");
    }
    body.extend(format!("--{boundary}--\r\n").bytes());
    body
}

/// An address with scheme and without a slash at the end. A host alone, as `rest.address` of Flink
/// is, is taken with the port.
fn normalized(url: &str, port: u32) -> Result<String, RestClientError> {
    let bad = || RestClientError::BadUrl(url.to_owned());
    let is_host = !url.contains(['/', ':']);
    let with_scheme = if url.contains("://") {
        url.to_owned()
    } else if is_host {
        format!("http://{url}:{port}")
    } else {
        format!("http://{url}")
    };
    let uri: ureq::http::Uri = with_scheme.trim_end_matches('/').parse().map_err(|_| bad())?;
    let plain = uri.scheme_str() == Some("http") && uri.host().is_some_and(|host| !host.is_empty());
    if !plain || uri.query().is_some() {
        return Err(bad());
    }
    Ok(uri.to_string().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_need_neither_scheme_nor_slash() {
        for (given, expected) in [
            ("localhost:8082", "http://localhost:8082"),
            ("localhost", "http://localhost:8081"),
            ("http://127.0.0.1:9/", "http://127.0.0.1:9"),
            ("http://proxy/engine/", "http://proxy/engine"),
        ] {
            assert_eq!(normalized(given, 8081).expect("an address"), expected);
        }
        for bad in ["", "https://x", "ftp://x", "http://", "a b", "http://x?y=1"] {
            let error = normalized(bad, 8081).expect_err("no address");
            assert!(error.to_string().contains("is no address of a JobManager"), "{bad}");
        }
    }
}
