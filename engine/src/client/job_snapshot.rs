//! A job as a client sees it at one moment, whether it asks in process or over REST.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    base::{
        clock::Timestamp,
        ids::{JobId, JobVertexId},
        status::{ExecutionState, JobStatus},
    },
    protocol::{
        job_details::{JobDetails, Restart, SlotShortage, VertexDetails},
        job_master::{
            FailureCause, HoldingSubtask,
            operator_metrics::{
                CURRENT_INPUT_WATERMARK, CURRENT_OUTPUT_WATERMARK, NUM_EVENT_TIME_TIMERS, NUM_LATE_RECORDS_DROPPED,
                NUM_PROCESSING_TIME_TIMERS, NUM_STATE_ENTRIES, STATE_BYTES, STATE_CACHE_BYTES, STATE_CACHE_ENTRIES,
                STATE_CACHE_HITS, STATE_CACHE_MISSES,
            },
        },
    },
};

/// A line of the list of jobs; the fields are those of REST.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct JobSummary {
    /// The job.
    #[serde(rename = "jid")]
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub state: JobStatus,
    /// When it was submitted, in milliseconds since the epoch.
    #[serde(rename = "start-time")]
    pub start_time: i64,
    /// When it ended; -1: not yet.
    #[serde(rename = "end-time")]
    pub end_time: i64,
    /// Milliseconds from start to end, or so far.
    pub duration: i64,
    /// Number of subtasks by state in lower case, and in total.
    pub tasks: std::collections::BTreeMap<String, u32>,
}

/// A job at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct JobSnapshot {
    /// The job.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// Its state.
    pub status: JobStatus,
    /// Milliseconds from submission to its end, or so far.
    pub duration_ms: u64,
    /// Restarts so far.
    pub restarts: u64,
    /// Milliseconds for which not all tasks ran because of them.
    pub downtime_ms: u64,
    /// The last restarts that are known, the newest first.
    pub last_restarts: Vec<RestartSnapshot>,
    /// Slots that it waits for.
    pub slot_shortage: Option<SlotShortage>,
    /// In topological order.
    pub vertices: Vec<(JobVertexId, VertexSnapshot)>,
    /// Why the job failed.
    pub failure: Option<JobFailure>,
}

/// A restart and what made it.
#[derive(Clone, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RestartSnapshot {
    /// When the failure came, in milliseconds since the epoch.
    pub time: i64,
    /// Stable name of the kind of failure.
    pub code: String,
    /// Why, in one line.
    pub cause: String,
    /// The task that failed; none: the job as a whole.
    pub task: Option<String>,
    /// Milliseconds until all tasks ran again, or so far.
    pub downtime_ms: u64,
    /// Not all tasks have run since.
    pub is_under_way: bool,
}

/// Why a job failed.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JobFailure {
    /// Stable name of the kind of failure, such as "guest-trap".
    pub code: String,
    /// One line.
    pub message: String,
    /// Frames of the plugin's backtrace, one a line, innermost first; empty if there are none.
    pub detail: String,
}

impl JobFailure {
    /// The code of a panic, whose message names its place in the source.
    const PANIC: &'static str = "guest-panic";

    /// What a user reads: the message, and below it, indented, the backtrace if the message does not tell the place.
    pub fn text(&self) -> String {
        let mut text = self.message.clone();
        if self.code != Self::PANIC {
            for frame in self.detail.lines() {
                text.push_str("\n    at ");
                text.push_str(frame);
            }
        }
        text
    }
}

/// Sums over the subtasks of a vertex.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct VertexSnapshot {
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Subtasks that process records or have finished.
    pub running_or_finished: u32,
    /// Rows that came in.
    pub records_in: u64,
    /// Rows that went out.
    pub records_out: u64,
    /// Bytes that came in.
    pub bytes_in: u64,
    /// Bytes that went out.
    pub bytes_out: u64,
    /// Milliseconds with full outputs.
    pub back_pressured_ms: u64,
    /// Milliseconds without work.
    pub idle_ms: u64,
    /// Milliseconds of work.
    pub busy_ms: u64,
    /// Rows that were refused and skipped or put aside.
    pub rejected_rows: u64,
    /// Log lines of plugins that were above the rate and are lost.
    pub dropped_log_lines: u64,
    /// Of the subtask whose watermark is least, the one that holds it back.
    pub held_back_by: Option<HoldingSubtask>,
    /// In ascending order of their nodes.
    pub operators: Vec<OperatorSnapshot>,
}

/// Time and state of one operator, over the subtasks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct OperatorSnapshot {
    /// Its name.
    pub name: String,
    /// Least watermark over all inputs, milliseconds since the epoch; none if a subtask has none.
    pub watermark_in: Option<i64>,
    /// Least watermark that went out; none if a subtask sent none.
    pub watermark_out: Option<i64>,
    /// Rows that came after their window had ended; none if the operator does not count them.
    pub late_records: Option<u64>,
    /// Keyed state; none if the operator has none.
    pub state: Option<StateSnapshot>,
}

/// Keyed state and timers of one operator, summed over the subtasks.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct StateSnapshot {
    /// Bytes that the engine keeps.
    pub bytes: u64,
    /// Values, lists and pairs of maps that the engine keeps.
    pub entries: u64,
    /// Bytes that the plugin keeps in its own memory, about; the engine may know older values of them.
    #[serde(default)]
    pub cache_bytes: u64,
    /// Values, lists and maps that the plugin keeps in its own memory.
    #[serde(default)]
    pub cache_entries: u64,
    /// Timers that wait.
    pub timers: u64,
    /// Entries that the plugin found in its own memory.
    pub cache_hits: u64,
    /// Entries that the plugin had to ask for.
    pub cache_misses: u64,
}

impl OperatorSnapshot {
    /// Of each operator of a vertex.
    pub fn of_vertex(vertex: &VertexDetails) -> Vec<Self> {
        vertex.operators.iter().map(|(node, name)| Self::of(vertex, *node, name)).collect()
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "they were whole numbers")]
    fn of(vertex: &VertexDetails, node: u32, name: &str) -> Self {
        // By subtask, the metric if it is there.
        let values = |name: &'static str| {
            vertex.subtasks.iter().map(move |subtask| {
                let mut metrics = subtask.current.metrics.operators.iter();
                metrics.find(|metric| metric.node == node && metric.name == name).map(|metric| metric.value)
            })
        };
        let sum = |name| values(name).flatten().map(|value| value as u64).reduce(u64::saturating_add);
        let least = |name| {
            let watermarks: Option<Vec<i64>> = values(name).map(|value| value.map(|value| value as i64)).collect();
            watermarks?.into_iter().min()
        };
        let state = sum(STATE_BYTES).map(|bytes| StateSnapshot {
            bytes,
            entries: sum(NUM_STATE_ENTRIES).unwrap_or(0),
            timers: sum(NUM_EVENT_TIME_TIMERS).unwrap_or(0) + sum(NUM_PROCESSING_TIME_TIMERS).unwrap_or(0),
            cache_bytes: sum(STATE_CACHE_BYTES).unwrap_or(0),
            cache_entries: sum(STATE_CACHE_ENTRIES).unwrap_or(0),
            cache_hits: sum(STATE_CACHE_HITS).unwrap_or(0),
            cache_misses: sum(STATE_CACHE_MISSES).unwrap_or(0),
        });
        Self {
            name: name.to_owned(),
            watermark_in: least(CURRENT_INPUT_WATERMARK),
            watermark_out: least(CURRENT_OUTPUT_WATERMARK),
            late_records: sum(NUM_LATE_RECORDS_DROPPED),
            state,
        }
    }
}

/// What holds back the subtask whose watermark is least.
pub fn held_back_by(vertex: &VertexDetails) -> Option<HoldingSubtask> {
    let holding = vertex.subtasks.iter().filter_map(|subtask| subtask.current.metrics.held_back_by.as_ref());
    holding.min_by_key(|holding| holding.watermark).cloned()
}

impl JobSnapshot {
    /// True if the job failed or is about to.
    pub fn has_failed(&self) -> bool {
        matches!(self.status, JobStatus::Failed | JobStatus::Failing)
    }

    /// Rows that were refused in all vertices.
    pub fn rejected_rows(&self) -> u64 {
        self.vertices.iter().map(|(_, vertex)| vertex.rejected_rows).sum()
    }

    /// Log lines of plugins that were dropped in all vertices.
    pub fn dropped_log_lines(&self) -> u64 {
        self.vertices.iter().map(|(_, vertex)| vertex.dropped_log_lines).sum()
    }

    /// Takes what clients show from all that is known of a job.
    pub fn of(job: &JobDetails, now_ms: i64) -> Self {
        let at = |status| job.timestamps.get(&status).map(|time| time.0);
        let start = at(JobStatus::Initializing).or(at(JobStatus::Created)).unwrap_or(now_ms);
        let end = if job.status.is_globally_terminal() { at(job.status) } else { None };
        let duration = end.unwrap_or(now_ms).saturating_sub(start);
        let vertices = job.vertices.iter().map(|vertex| {
            let mut sum = VertexSnapshot {
                name: vertex.name.clone(),
                parallelism: vertex.parallelism,
                held_back_by: held_back_by(vertex),
                operators: OperatorSnapshot::of_vertex(vertex),
                ..VertexSnapshot::default()
            };
            for attempt in vertex.subtasks.iter().map(|subtask| &subtask.current) {
                let metrics = &attempt.metrics;
                let alive = matches!(attempt.state, ExecutionState::Running | ExecutionState::Finished);
                sum.running_or_finished += u32::from(alive);
                sum.records_in += metrics.records_in;
                sum.records_out += metrics.records_out;
                sum.bytes_in += metrics.bytes_in;
                sum.bytes_out += metrics.bytes_out;
                sum.back_pressured_ms += metrics.back_pressured_ms;
                sum.idle_ms += metrics.idle_ms;
                sum.busy_ms += metrics.busy_ms;
                sum.rejected_rows += metrics.rejected_rows;
                sum.dropped_log_lines += metrics.log_lines_dropped;
            }
            (vertex.id, sum)
        });
        let now = Timestamp(end.unwrap_or(now_ms));
        let last_restarts = job.failures.iter().filter_map(|failure| {
            Some(RestartSnapshot {
                time: failure.time.0,
                code: failure.cause.code.clone(),
                cause: failure.cause.message.clone(),
                task: failure.task_name.clone(),
                downtime_ms: failure.downtime_ms(now)?,
                is_under_way: failure.restart == Restart::UnderWay,
            })
        });
        let failure = job.root_failure.as_ref().map(|failure| {
            let FailureCause { code, message, detail, .. } = failure.cause.clone();
            JobFailure { code, message, detail }
        });
        Self {
            id: job.job,
            name: job.name.clone(),
            status: job.status,
            duration_ms: u64::try_from(duration).unwrap_or(0),
            restarts: job.restarts,
            downtime_ms: job.downtime.total_ms(now),
            last_restarts: last_restarts.collect(),
            slot_shortage: job.slot_shortage,
            vertices: vertices.collect(),
            failure: failure.filter(|_| matches!(job.status, JobStatus::Failed | JobStatus::Failing)),
        }
    }

    /// Adds the answer to `GET /jobs/:jobid/operators`; nothing if a field is missing.
    pub(crate) fn add_operators(&mut self, answer: &Value) -> Option<()> {
        for vertex in answer.get("vertices")?.as_array()? {
            let id: JobVertexId = vertex.get("id")?.as_str()?.parse().ok()?;
            if let Some((_, known)) = self.vertices.iter_mut().find(|(known, _)| *known == id) {
                known.held_back_by = serde_json::from_value(vertex.get("held-back-by")?.clone()).ok()?;
                known.operators = serde_json::from_value(vertex.get("operators")?.clone()).ok()?;
            }
        }
        Some(())
    }

    /// Adds the restarts that the answer to `GET /jobs/:jobid/exceptions` tells of; nothing if a field is missing.
    pub(crate) fn add_restarts(&mut self, exceptions: &Value) -> Option<()> {
        let entries = exceptions["exceptionHistory"]["entries"].as_array()?;
        let restarts = entries.iter().filter(|entry| !entry["failureLabels"]["downtime-ms"].is_null()).map(|entry| {
            let labels = &entry["failureLabels"];
            Some(RestartSnapshot {
                time: entry["timestamp"].as_i64()?,
                code: entry["exceptionName"].as_str()?.to_owned(),
                cause: entry["stacktrace"].as_str()?.lines().next().unwrap_or_default().to_owned(),
                task: entry["taskName"].as_str().map(str::to_owned),
                downtime_ms: labels["downtime-ms"].as_str()?.parse().ok()?,
                is_under_way: labels["recovered-timestamp"].is_null(),
            })
        });
        self.last_restarts = restarts.collect::<Option<_>>()?;
        Some(())
    }

    /// Reads the answer to `GET /jobs/:jobid`; nothing if a field is missing.
    /// Restarts, missing slots, rejected rows, dropped log lines, operators and the failure stand in other answers.
    pub(crate) fn from_rest(answer: &Value) -> Option<Self> {
        let vertices = answer.get("vertices")?.as_array()?.iter().map(|vertex| {
            let metrics = vertex.get("metrics")?;
            let count = |name: &str| metrics.get(name)?.as_u64();
            let tasks = |state: ExecutionState| {
                vertex["tasks"][state.name()].as_u64().and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
            };
            let snapshot = VertexSnapshot {
                name: vertex.get("name")?.as_str()?.to_owned(),
                parallelism: u32::try_from(vertex.get("parallelism")?.as_u64()?).ok()?,
                running_or_finished: tasks(ExecutionState::Running) + tasks(ExecutionState::Finished),
                records_in: count("read-records")?,
                records_out: count("write-records")?,
                bytes_in: count("read-bytes")?,
                bytes_out: count("write-bytes")?,
                back_pressured_ms: count("accumulated-backpressured-time")?,
                idle_ms: count("accumulated-idle-time")?,
                busy_ms: count("accumulated-busy-time")?,
                rejected_rows: 0,
                held_back_by: None,
                operators: Vec::new(),
                dropped_log_lines: 0,
            };
            Some((vertex.get("id")?.as_str()?.parse().ok()?, snapshot))
        });
        Some(Self {
            id: answer.get("jid")?.as_str()?.parse().ok()?,
            name: answer.get("name")?.as_str()?.to_owned(),
            status: serde_json::from_value(answer.get("state")?.clone()).ok()?,
            duration_ms: u64::try_from(answer.get("duration")?.as_i64()?).unwrap_or(0),
            restarts: 0,
            downtime_ms: 0,
            last_restarts: Vec::new(),
            slot_shortage: None,
            vertices: vertices.collect::<Option<_>>()?,
            failure: None,
        })
    }
}
