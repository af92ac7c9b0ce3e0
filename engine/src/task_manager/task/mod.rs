//! One attempt to run one subtask: an OS thread that opens an operator chain,
//! feeds it until its input ends, and reports each state that it enters.
//!
//! ```text
//! start -> INITIALIZING -> RUNNING -> FINISHED
//!               |             |
//!               +-------------+----> CANCELED   told to stop
//!               +-------------+----> FAILED     an operator failed, or a panic
//! ```
//!
//! A task answers barriers as long as it runs, also when its input has ended: with
//! checkpoints it is FINISHED only when one has completed that it took after that.
//!
//! Invariants: each state is reported at most once, and exactly one terminal
//! state, when all that the task held was released; a panic is caught in one
//! place, here; a task that is told to stop does so wherever it waits, and a guest
//! that runs is interrupted.

mod failure;
mod mailbox;
mod snapshot_writer;
pub mod source_alignment;
mod stream_task;
mod task_loop;
mod times;

use std::{
    any::Any,
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    thread::JoinHandle,
};

pub use snapshot_writer::SnapshotWriter;
pub use times::{TimeShares, time_shares};

use self::{
    failure::Culprit,
    mailbox::{Mailbox, MailboxSender, PEER_GONE_GRACE, StopReason, TaskMessage},
    stream_task::StreamTask,
    times::TaskTimes,
};
use crate::{
    base::{
        clock::Clock,
        ids::{BlobDigest, ExecutionAttemptId, JobId},
        stream_element::CheckpointId,
    },
    checkpoint::OperatorSubtaskState,
    graph::job_graph::{Artifact, JobVertex},
    protocol::{
        job_master::{
            FailureCause, HoldingSubtask, MaxAllowedWatermark, OperatorMetric, Recoverability, SplitAnswer,
            TaskExecutionStateUpdate, TaskMetrics, TaskState,
            operator_metrics::{
                CURRENT_INPUT_WATERMARK, CURRENT_OUTPUT_WATERMARK, MAX_KEY_GROUP_STATE_BYTES, NUM_EVENT_TIME_TIMERS,
                NUM_PROCESSING_TIME_TIMERS, NUM_STATE_ENTRIES, STATE_BYTES,
            },
        },
        task_executor::{InputGateDeployment, JobInformation, TaskDeployment, TriggerCheckpoint},
    },
    task_manager::{
        RunningTask, TaskEvent, TaskEventSink,
        network::ResultPartitionManager,
        operator::{ChainPlan, Connectors, HoldingChannel, SharedPlugin, TaskContext, TaskCounters},
        task_name,
    },
    wasm::MetricValue,
};

/// Makes plugins ready to run.
pub trait PluginProvider: Send + Sync {
    /// The plugin with the given digest. May take as long as compiling takes: it is
    /// called from a thread of its own, so that the task can be cancelled meanwhile.
    ///
    /// # Errors
    /// Returns why there is no such plugin or it cannot be compiled.
    fn plugin(&self, digest: BlobDigest) -> Result<SharedPlugin, FailureCause>;
}

/// Makes an artifact a local file and returns its path.
pub type ArtifactProvider = Arc<dyn Fn(&Artifact) -> Result<PathBuf, FailureCause> + Send + Sync>;

/// What the tasks of one TaskExecutor share.
#[derive(Clone)]
pub struct TaskServices {
    /// Where producers and consumers of this process meet.
    pub partitions: Arc<ResultPartitionManager>,
    /// Plugins by digest.
    pub plugins: Arc<dyn PluginProvider>,
    /// Native sources and sinks.
    pub connectors: Arc<dyn Connectors>,
    /// Files of the submitter.
    pub artifacts: ArtifactProvider,
    /// Stack that the plugins' runtime lets a guest use (`sandbox.stack.max`).
    pub guest_stack_bytes: usize,
    /// Holds the files of state on disk.
    pub state_directory: PathBuf,
    /// Processing time.
    pub clock: Clock,
    /// Takes what tasks report.
    pub events: TaskEventSink,
    /// Writes what is large of snapshots.
    pub snapshots: Arc<SnapshotWriter>,
}

/// Stack of a task's thread beyond what guests may use.
const HOST_STACK_BYTES: usize = 1 << 20;

/// Starts the thread of a task and returns at once; what follows is reported
/// through [`TaskServices::events`].
///
/// # Errors
/// Returns an error if the deployment does not fit the job, or no thread can be
/// started; nothing is reported then.
pub fn start(
    info: Arc<JobInformation>,
    deployment: TaskDeployment,
    services: &TaskServices,
) -> Result<Box<dyn RunningTask>, FailureCause> {
    let (job, attempt) = (info.job, deployment.attempt);
    let vertex = info.vertices.iter().position(|vertex| vertex.id == deployment.vertex);
    let vertex = vertex.ok_or_else(|| misfit(format!("the job has no vertex {}", deployment.vertex)))?;
    let JobVertex { name, parallelism, max_parallelism, operators, .. } = &info.vertices[vertex];
    let context = TaskContext {
        job: info.job,
        job_name: info.job_name.clone(),
        task_name: task_name(name, attempt, *parallelism),
        subtask_index: attempt.execution_vertex.subtask_index,
        parallelism: *parallelism,
        max_parallelism: *max_parallelism,
        attempt_number: attempt.attempt_number,
    };
    let gate_channels: Vec<usize> = deployment.gates.iter().map(|gate| gate.channels.len()).collect();
    let subpartitions: Vec<u32> = deployment.partitions.iter().map(|partition| partition.subpartitions).collect();
    let plan = ChainPlan::new(&info.vertices[vertex], &gate_channels, &subpartitions);
    let plan = plan.map_err(|error| misfit(error.to_string()))?;

    let counters = Arc::new(TaskCounters::new(operators.iter().map(|operator| operator.node.id)));
    let times = Arc::new(TaskTimes::new(services.clock.monotonic()));
    let (mailbox, sender) = Mailbox::new(services.clock.clone(), Arc::clone(&times), PEER_GONE_GRACE);
    let inputs = TaskInputs { info: Arc::clone(&info), vertex, gates: deployment.gates.clone() };
    let shared = SharedTask { sender, counters, times, clock: services.clock.clone(), inputs: Arc::new(inputs) };
    let events = Arc::clone(&services.events);
    let reporter = Reporter { attempt, events, shared: shared.clone(), terminal: false };
    // Linux shows the first 15 bytes; a name with a zero byte would be refused.
    let thread_name = context.task_name.replace('\0', " ");
    let task = StreamTask { info, vertex, plan, deployment, context, services: services.clone(), mailbox };
    let stack_bytes = HOST_STACK_BYTES.saturating_add(services.guest_stack_bytes);
    let thread = std::thread::Builder::new().name(thread_name).stack_size(stack_bytes);
    let thread = thread.spawn(move || run(task, reporter));
    let thread = thread.map_err(|error| FailureCause {
        code: "thread".to_owned(),
        message: format!("could not start a thread for the task: {error}"),
        detail: String::new(),
        recoverability: Recoverability::Recoverable,
    })?;
    let snapshots = Arc::clone(&services.snapshots);
    Ok(Box::new(TaskHandle { job, attempt, shared, snapshots, thread: Some(thread) }))
}

fn misfit(message: String) -> FailureCause {
    FailureCause {
        code: "deployment".to_owned(),
        message,
        detail: String::new(),
        recoverability: Recoverability::Unrecoverable,
    }
}

/// How a task ended.
enum Outcome {
    Finished(BTreeMap<u32, OperatorSubtaskState>),
    Canceled,
    Failed(FailureCause),
}

/// The body of a task's thread.
fn run(mut task: StreamTask, mut reporter: Reporter) {
    reporter.report(TaskState::Initializing);
    let info = Arc::clone(&task.info);
    let context = task.context.clone();
    let culprit = Culprit { context: &context, vertex: &info.vertices[task.vertex] };
    let result = catch_unwind(AssertUnwindSafe(|| {
        let result = task.run(&mut reporter);
        // Releases the partitions, gates and instances before the end is reported.
        drop(task);
        result
    }));
    let stopped = reporter.shared.sender.stop_reason();
    let outcome = match (result, stopped) {
        (Ok(Ok(end_states)), _) => Outcome::Finished(end_states),
        (_, Some(StopReason::Canceled)) => Outcome::Canceled,
        (_, Some(StopReason::Failed { code, message })) => Outcome::Failed(culprit.failed(None, code, &message)),
        (Ok(Err(cause)), None) => Outcome::Failed(cause),
        (Err(panic), None) => {
            let what = format!("the engine panicked, which is a bug: {}", panic_message(&*panic));
            Outcome::Failed(culprit.failed(None, "internal", &what))
        }
    };
    reporter.report_end(outcome);
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// Reports the states of one task, and a terminal one in any case.
struct Reporter {
    attempt: ExecutionAttemptId,
    events: TaskEventSink,
    shared: SharedTask,
    terminal: bool,
}

impl Reporter {
    fn report(&self, state: TaskState) {
        self.send(state, None, BTreeMap::new());
    }

    fn report_end(&mut self, outcome: Outcome) {
        self.terminal = true;
        task_loop::publish_cpu_time(&self.shared.counters);
        self.shared.times.finish(self.shared.clock.monotonic());
        match outcome {
            Outcome::Finished(end_states) => self.send(TaskState::Finished, None, end_states),
            Outcome::Canceled => self.send(TaskState::Canceled, None, BTreeMap::new()),
            Outcome::Failed(cause) => self.send(TaskState::Failed, Some(cause), BTreeMap::new()),
        }
    }

    fn send(&self, state: TaskState, cause: Option<FailureCause>, end_states: BTreeMap<u32, OperatorSubtaskState>) {
        let metrics = self.shared.metrics();
        let update = TaskExecutionStateUpdate { attempt: self.attempt, state, cause, metrics, end_states };
        (self.events)(TaskEvent::StateChanged(update));
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if !self.terminal {
            self.report_end(Outcome::Failed(FailureCause {
                code: "internal".to_owned(),
                message: "the task's thread ended without saying why, which is a bug".to_owned(),
                detail: String::new(),
                recoverability: Recoverability::Recoverable,
            }));
        }
    }
}

/// What the thread of a task shares with those who watch it.
#[derive(Clone)]
struct SharedTask {
    sender: Arc<MailboxSender>,
    counters: Arc<TaskCounters>,
    times: Arc<TaskTimes>,
    clock: Clock,
    inputs: Arc<TaskInputs>,
}

/// Where the channels of a task's gates come from.
struct TaskInputs {
    info: Arc<JobInformation>,
    /// Place in [`JobInformation::vertices`].
    vertex: usize,
    gates: Vec<InputGateDeployment>,
}

impl TaskInputs {
    fn holding_subtask(&self, holding: HoldingChannel) -> Option<HoldingSubtask> {
        let producer = self.info.vertices[self.vertex].inputs.get(holding.gate)?.producer;
        let vertex = self.info.vertices.iter().find(|vertex| vertex.id == producer)?;
        let channel = self.gates.get(holding.gate)?.channels.get(holding.channel)?;
        Some(HoldingSubtask {
            vertex: vertex.name.clone(),
            subtask_index: channel.partition.partition.partition_index,
            watermark: known(holding.watermark.0),
        })
    }
}

/// A watermark, if there was one.
fn known(watermark: i64) -> Option<i64> {
    (watermark != i64::MIN).then_some(watermark)
}

impl SharedTask {
    fn metrics(&self) -> TaskMetrics {
        let counters = &self.counters;
        let shares = self.times.shares(self.clock.monotonic());
        let held_back_by = *counters.held_back_by.lock().expect("the writer only copies");
        TaskMetrics {
            records_in: counters.records_in.load(Ordering::Relaxed),
            records_out: counters.records_out.load(Ordering::Relaxed),
            bytes_in: counters.bytes_in.load(Ordering::Relaxed),
            bytes_out: counters.bytes_out.load(Ordering::Relaxed),
            idle_ms: shares.idle_ms,
            back_pressured_ms: shares.back_pressured_ms,
            busy_ms: shares.busy_ms,
            cpu_ns: counters.cpu_ns.load(Ordering::Relaxed),
            input_watermark: known(counters.input_watermark.load(Ordering::Relaxed)),
            held_back_by: held_back_by.and_then(|holding| self.inputs.holding_subtask(holding)),
            rejected_rows: counters.rejected_rows.load(Ordering::Relaxed),
            guest_memory_bytes: counters.guest_memory_bytes.load(Ordering::Relaxed),
            log_lines_dropped: counters.log_lines_dropped.load(Ordering::Relaxed),
            operators: operator_metrics(counters),
        }
    }
}

/// A task as the TaskExecutor holds it. Dropping it ends the task.
struct TaskHandle {
    job: JobId,
    attempt: ExecutionAttemptId,
    shared: SharedTask,
    snapshots: Arc<SnapshotWriter>,
    /// Taken when the handle is dropped.
    thread: Option<JoinHandle<()>>,
}

impl RunningTask for TaskHandle {
    fn trigger_checkpoint(&self, trigger: TriggerCheckpoint) {
        self.shared.sender.send(TaskMessage::TriggerCheckpoint(trigger));
    }

    fn notify_checkpoint_complete(&self, checkpoint_id: CheckpointId) {
        self.shared.sender.send(TaskMessage::CheckpointComplete(checkpoint_id));
    }

    fn notify_checkpoint_aborted(&self, checkpoint_id: CheckpointId) {
        self.snapshots.give_up(self.job, self.attempt, Some(checkpoint_id));
        self.shared.sender.send(TaskMessage::CheckpointAborted(checkpoint_id));
    }

    fn cancel(&self) {
        self.shared.sender.stop(StopReason::Canceled);
    }

    fn split_assigned(&self, answer: SplitAnswer) {
        self.shared.sender.send(TaskMessage::SplitAssigned(answer));
    }

    fn align_watermark(&self, max_allowed: MaxAllowedWatermark) {
        self.shared.sender.align_watermark(max_allowed);
    }

    fn metrics(&self) -> TaskMetrics {
        self.shared.metrics()
    }

    fn fail(&self, reason: &str) {
        self.shared.sender.stop(StopReason::Failed { code: "stopped", message: reason.to_owned() });
    }
}

#[expect(clippy::cast_precision_loss, reason = "counters above 2^53 are shown rounded")]
fn operator_metrics(counters: &TaskCounters) -> Vec<OperatorMetric> {
    let metric = |node, name: &str, value| OperatorMetric { node, name: name.to_owned(), value };
    let mut metrics = Vec::new();
    for (node, operator) in &counters.operators {
        metrics.push(metric(*node, "numRecordsIn", operator.records_in.load(Ordering::Relaxed) as f64));
        metrics.push(metric(*node, "numRecordsOut", operator.records_out.load(Ordering::Relaxed) as f64));
        // In this order: what went out had come in before.
        let output = operator.output_watermark.load(Ordering::Acquire);
        let input = operator.input_watermark.load(Ordering::Relaxed);
        for (name, watermark) in [(CURRENT_INPUT_WATERMARK, input), (CURRENT_OUTPUT_WATERMARK, output)] {
            let watermark = known(watermark);
            metrics.extend(watermark.map(|watermark| metric(*node, name, watermark as f64)));
        }
        if let Some(state) = operator.state.get() {
            for (name, value) in [
                (STATE_BYTES, &state.bytes),
                (NUM_STATE_ENTRIES, &state.entries),
                (MAX_KEY_GROUP_STATE_BYTES, &state.key_group_bytes_max),
                (NUM_EVENT_TIME_TIMERS, &state.event_time_timers),
                (NUM_PROCESSING_TIME_TIMERS, &state.processing_time_timers),
            ] {
                metrics.push(metric(*node, name, value.load(Ordering::Relaxed) as f64));
            }
        }
    }
    for guest in counters.guest_metrics.lock().expect("the writer only copies").iter() {
        match &guest.value {
            MetricValue::Counter(value) => metrics.push(metric(guest.node, &guest.name, *value as f64)),
            MetricValue::Gauge(value) => metrics.push(metric(guest.node, &guest.name, *value)),
            MetricValue::Histogram(statistics) => {
                for (suffix, value) in [
                    ("count", statistics.count as f64),
                    ("min", statistics.min),
                    ("max", statistics.max),
                    ("mean", statistics.mean),
                    ("p50", statistics.p50),
                    ("p95", statistics.p95),
                    ("p99", statistics.p99),
                ] {
                    metrics.push(metric(guest.node, &format!("{}.{suffix}", guest.name), value));
                }
            }
        }
    }
    metrics
}

impl Drop for TaskHandle {
    fn drop(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.cancel();
        self.snapshots.give_up(self.job, self.attempt, None);
        // The thread itself may drop the handle, through the sink that it reports to.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("a task's thread ended by a panic outside of the task");
        }
    }
}

#[cfg(test)]
mod tests;
