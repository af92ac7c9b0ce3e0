//! The loop of a task: takes messages, then elements of the gates and rows of the
//! sources in turn, and waits where there is nothing to do.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crossbeam_channel::bounded;

use super::{
    Reporter, TaskServices,
    failure::Culprit,
    mailbox::{Mailbox, PreparedPlugin, WaitFor},
    source_alignment::SourceAlignment,
    times::Waiting,
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::options,
        ids::BlobDigest,
        stream_element::WatermarkStatus,
    },
    connector::{AlignmentOptions, Committable, Permissions, SplitAssignment},
    graph::{
        job_graph::{IntermediateDataSet, JobVertex},
        stream_graph::Operator,
    },
    protocol::{
        job_master::{FailureCause, Recoverability, SplitAnswer, SplitRequest, TaskState, WatermarkReport},
        task_executor::{JobInformation, ResultPartitionDeployment, TaskDeployment},
    },
    task_manager::{
        TaskEvent,
        network::{
            ChannelError, FlushPolicy, GateError, InputGates, NetworkConfig, ResultPartition, ResultPartitionSettings,
        },
        operator::{
            ChainPlan, ChainSetup, Interrupted, OperatorChain, OperatorError, PlannedKind, RowErrorPolicy,
            SharedPlugin, SourcePoll, TaskContext, TaskCounters,
        },
    },
    wasm::{Replay, SandboxLimits},
};

/// Bytes that a source is asked for at once: enough rows that entering a guest
/// costs nothing beside them, few enough to stay in the cache.
const SOURCE_BATCH_BYTES: usize = 32 << 10;
/// Longest time for which a sink keeps rows to itself while the task is busy.
const SINK_FLUSH_INTERVAL: Duration = Duration::from_millis(100);
/// Time between two publications of what only the task's thread can read.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(500);
/// The same when the task waits and has done something since.
const PUBLISH_INTERVAL_IDLE: Duration = Duration::from_millis(20);

/// Everything that makes one attempt.
pub(super) struct StreamTask {
    pub(super) info: Arc<JobInformation>,
    /// Place in [`JobInformation::vertices`].
    pub(super) vertex: usize,
    pub(super) plan: ChainPlan,
    pub(super) deployment: TaskDeployment,
    pub(super) context: TaskContext,
    pub(super) services: TaskServices,
    pub(super) mailbox: Mailbox,
}

/// What a task returns when it has finished: what its sinks finished, by node.
type Finished = Vec<(u32, Vec<Committable>)>;

/// Why a task cannot go on.
enum Stop {
    /// It was told to; the mailbox knows why.
    Interrupted,
    Failed(FailureCause),
}

impl From<Interrupted> for Stop {
    fn from(_: Interrupted) -> Self {
        Self::Interrupted
    }
}

impl StreamTask {
    /// Runs to the end.
    pub(super) fn run(&mut self, reporter: &mut Reporter) -> Result<Finished, FailureCause> {
        let counters = Arc::clone(&reporter.shared.counters);
        self.try_run(reporter, &counters).map_err(|stop| match stop {
            Stop::Failed(cause) => cause,
            // Replaced by the reason for which the task was told to stop.
            Stop::Interrupted => self.culprit().failed(None, "stopped", "the task was told to stop"),
        })
    }

    fn vertex(&self) -> &JobVertex {
        &self.info.vertices[self.vertex]
    }

    fn culprit(&self) -> Culprit<'_> {
        Culprit { context: &self.context, vertex: self.vertex() }
    }

    fn stop(&self, error: &OperatorError) -> Stop {
        self.culprit().cause(error).map_or(Stop::Interrupted, Stop::Failed)
    }

    fn try_run(&mut self, reporter: &Reporter, counters: &Arc<TaskCounters>) -> Result<Finished, Stop> {
        self.mailbox.take_messages()?;
        let permissions = self.permissions()?;
        let policy = RowErrorPolicy::new(&self.info.configuration, &permissions);
        let policy = policy.map_err(|error| self.stop(&OperatorError::RowErrors(error)))?;
        let plugins = self.fetch_plugins()?;
        let network = NetworkConfig::new(&self.info.configuration);
        let gates = self.open_gates(network);
        let setup = ChainSetup {
            vertex: self.vertex(),
            plan: &self.plan,
            partitions: self.open_partitions(network),
            plugins,
            connectors: &*self.services.connectors,
            context: self.context.clone(),
            replay: Replay { args: self.info.program.args.clone(), graph_digest: self.info.program.graph_digest },
            limits: SandboxLimits::from_configuration(&self.info.configuration),
            cancel: reporter.shared.sender.cancel_flag().clone(),
            permissions: Arc::new(permissions),
            clock: self.services.clock.clone(),
            row_error_policy: policy,
            counters: Arc::clone(counters),
        };
        let mut chain = OperatorChain::open(setup).map_err(|error| self.stop(&error))?;
        self.mailbox.take_messages()?;
        reporter.report(TaskState::Running);

        let interval = self.info.configuration.get(&options::AUTO_WATERMARK_INTERVAL);
        let watermark_interval = (chain.generates_watermarks() && !interval.is_zero()).then_some(interval);
        let sources = self.open_sources(&mut chain)?;
        let mut task_loop = TaskLoop {
            sources,
            chain,
            gates,
            mailbox: &mut self.mailbox,
            clock: &self.services.clock,
            services: &self.services,
            attempt: &self.deployment,
            sinks_flushed: Duration::ZERO,
            published: Duration::ZERO,
            unpublished: true,
            watermark_interval,
            watermarks_due: watermark_interval.map(|interval| self.services.clock.monotonic() + interval),
            counters,
        };
        let result = task_loop.run();
        task_loop.publish();
        drop(task_loop);
        result.map_err(|error| match error {
            LoopError::Operator(error) => self.stop(&error),
            LoopError::Gate(error) => self.gate_failed(error),
        })
    }

    fn open_sources(&self, chain: &mut OperatorChain) -> Result<Vec<Source>, Stop> {
        let mut sources = Vec::new();
        for (place, node) in chain.sources() {
            let operators = self.vertex().operators.iter();
            let operator = operators.map(|operator| &operator.node).find(|operator| Some(operator.id) == node);
            let options = match operator.map(|operator| &operator.operator) {
                Some(Operator::Source(connector)) => AlignmentOptions::parse(connector),
                _ => Ok(None),
            };
            let node_id = node.unwrap_or(0);
            let options = options.map_err(|error| {
                self.stop(&OperatorError::Connector { node: node_id, error, position: String::new() })
            })?;
            let mut alignment = None;
            if let Some(options) = options {
                if chain.source_watermark(place).is_some() {
                    let now = self.services.clock.monotonic();
                    alignment = Some(SourceAlignment::new(options.update_interval, now));
                } else {
                    tracing::warn!(
                        task = self.context.task_name,
                        "source {node_id} does not wait for its group: its watermark strategy is not in its chain; \
                         give both one parallelism and do not separate them"
                    );
                }
            }
            sources.push(Source { place, node, phase: Phase::Ready, alignment });
        }
        Ok(sources)
    }

    /// What connectors may open: what was granted, and the artifacts.
    fn permissions(&self) -> Result<Permissions, Stop> {
        let grants = &self.info.grants;
        let mut permissions =
            Permissions { read: grants.read.clone(), write: grants.write.clone(), net: grants.net.clone() };
        for artifact in &self.info.artifacts {
            permissions.read.push((self.services.artifacts)(artifact).map_err(Stop::Failed)?);
        }
        Ok(permissions)
    }

    fn fetch_plugins(&mut self) -> Result<HashMap<BlobDigest, SharedPlugin>, Stop> {
        let mut plugins = HashMap::new();
        for node in 0..self.plan.nodes.len() {
            match self.plan.nodes[node].kind {
                PlannedKind::Segment(digest) | PlannedKind::SourceSegment(digest) => {
                    if let Entry::Vacant(entry) = plugins.entry(digest) {
                        entry.insert(self.fetch_plugin(digest)?);
                    }
                }
                PlannedKind::Source | PlannedKind::Sink => {}
            }
        }
        Ok(plugins)
    }

    /// Has a plugin made ready on a thread of its own, which ends with the
    /// compilation, at the latest when that has used up its CPU time; nobody waits
    /// for it if the task is told to stop.
    fn fetch_plugin(&mut self, digest: BlobDigest) -> Result<SharedPlugin, Stop> {
        let provider = Arc::clone(&self.services.plugins);
        let (answer, answers) = bounded::<PreparedPlugin>(1);
        let thread = std::thread::Builder::new().name(format!("plugin {digest}")).spawn(move || {
            // An error means that the task has ended meanwhile.
            drop(answer.send(provider.plugin(digest)));
        });
        let failed = |what: &str| Stop::Failed(self.culprit().failed(None, "thread", what));
        thread.map_err(|error| failed(&format!("could not start a thread to load the plugin: {error}")))?;
        self.mailbox.wait(Waiting::Idle, None, WaitFor::Plugin(&answers))?;
        loop {
            match answers.try_recv() {
                Ok(plugin) => return plugin.map_err(Stop::Failed),
                Err(crossbeam_channel::TryRecvError::Empty) => {
                    self.mailbox.wait(Waiting::Idle, None, WaitFor::Plugin(&answers))?;
                }
                Err(crossbeam_channel::TryRecvError::Disconnected) => {
                    let what = "loading the plugin ended in a panic, which is a bug";
                    return Err(Stop::Failed(self.culprit().failed(None, "internal", what)));
                }
            }
        }
    }

    fn open_gates(&self, network: NetworkConfig) -> InputGates {
        let channels = self
            .deployment
            .gates
            .iter()
            .map(|gate| gate.channels.iter().map(|channel| (channel.partition, channel.subpartition)).collect());
        let channels: Vec<Vec<_>> = channels.collect();
        InputGates::new(&self.services.partitions, &channels, network.elements_per_channel_max)
    }

    fn open_partitions(&self, network: NetworkConfig) -> Vec<ResultPartition> {
        let open = |(data_set, deployed): (&IntermediateDataSet, &ResultPartitionDeployment)| {
            let settings = ResultPartitionSettings {
                id: deployed.partition,
                partitioner: data_set.partitioner,
                subpartitions: deployed.subpartitions,
                consumer_max_parallelism: deployed.consumer_max_parallelism,
                flush: FlushPolicy::of_buffer_timeout(data_set.buffer_timeout),
                network,
            };
            ResultPartition::new(&self.services.partitions, &settings)
        };
        self.vertex().outputs.iter().zip(&self.deployment.partitions).map(open).collect()
    }

    fn gate_failed(&mut self, error: GateError) -> Stop {
        let producer = self.vertex().inputs.get(error.gate).map(|edge| edge.producer);
        let producer = self.info.vertices.iter().find(|vertex| Some(vertex.id) == producer);
        let producer = producer.map_or("unknown", |vertex| vertex.name.as_str());
        let what =
            format!("input gate {} from \"{producer}\", channel {}: {}", error.gate, error.channel, error.source);
        match error.source {
            // The JobMaster knows why; it is its word that counts.
            ChannelError::ProducerGone => self.mailbox.wait_for_stop("producer-gone", &what).into(),
            ChannelError::Gap { .. } => Stop::Failed(FailureCause {
                recoverability: Recoverability::Recoverable,
                ..self.culprit().failed(None, "internal", &what)
            }),
        }
    }
}

/// What a source does next. All times are on the monotonic clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    /// It is polled.
    Ready,
    /// It waits for the answer to its request for a split.
    SplitRequested,
    /// It asks for a split again at this time.
    RequestSplitAt(Duration),
    /// It is polled again at this time.
    IdleUntil(Duration),
    /// It has ended.
    Ended,
}

struct Source {
    /// Its place in the chain.
    place: usize,
    /// Its node, if it gets splits.
    node: Option<u32>,
    phase: Phase,
    /// How it waits for other sources.
    alignment: Option<SourceAlignment>,
}

impl Source {
    fn is_paused(&self) -> bool {
        self.alignment.as_ref().is_some_and(SourceAlignment::is_paused)
    }
}

enum LoopError {
    Operator(OperatorError),
    Gate(GateError),
}

impl From<OperatorError> for LoopError {
    fn from(error: OperatorError) -> Self {
        Self::Operator(error)
    }
}

impl From<Interrupted> for LoopError {
    fn from(interrupted: Interrupted) -> Self {
        Self::Operator(interrupted.into())
    }
}

impl From<GateError> for LoopError {
    fn from(error: GateError) -> Self {
        Self::Gate(error)
    }
}

struct TaskLoop<'a> {
    chain: OperatorChain,
    gates: InputGates,
    sources: Vec<Source>,
    mailbox: &'a mut Mailbox,
    clock: &'a Clock,
    services: &'a TaskServices,
    attempt: &'a TaskDeployment,
    sinks_flushed: Duration,
    published: Duration,
    /// True if something was done since.
    unpublished: bool,
    /// Time between two watermarks, if operators of the chain make them.
    watermark_interval: Option<Duration>,
    /// When they make them next, on the monotonic clock.
    watermarks_due: Option<Duration>,
    counters: &'a TaskCounters,
}

impl TaskLoop<'_> {
    fn run(&mut self) -> Result<Finished, LoopError> {
        loop {
            self.mailbox.take_messages()?;
            while let Some(answer) = self.mailbox.take_split() {
                self.split_assigned(answer)?;
            }
            let now = self.clock.monotonic();
            let next_flush = self.chain.flush_if_due(now, self.mailbox)?;
            self.take_care(now)?;
            self.align_sources(now)?;

            let mut progress = self.fire_timers()?;
            for index in 0..self.sources.len() {
                progress |= self.step_source(index, now)?;
            }
            if let Some(element) = self.gates.poll()? {
                self.chain.process_element(element, self.mailbox)?;
                progress = true;
            }
            if self.chain.is_ended() && self.gates.open_channels() == 0 {
                return Ok(self.chain.finish(self.mailbox)?);
            }
            self.unpublished |= progress;
            if !progress {
                self.wait(now, next_flush)?;
            }
        }
    }

    /// Fires processing-time timers. Returns false if none is due.
    fn fire_timers(&mut self) -> Result<bool, OperatorError> {
        let Some(at) = self.chain.next_processing_time() else { return Ok(false) };
        let now = self.clock.now();
        if now < at {
            return Ok(false);
        }
        self.chain.fire_processing_timers(now, self.mailbox)?;
        Ok(true)
    }

    /// Does what is due from time to time.
    fn take_care(&mut self, now: Duration) -> Result<(), OperatorError> {
        if self.sinks_flushed + SINK_FLUSH_INTERVAL <= now {
            self.sinks_flushed = now;
            self.chain.flush_sinks()?;
        }
        if self.published + PUBLISH_INTERVAL <= now {
            self.published = now;
            self.publish();
        }
        if self.watermarks_due.is_some_and(|due| due <= now) {
            self.watermarks_due = self.watermark_interval.map(|interval| now + interval);
            let Self { chain, sources, mailbox, clock, .. } = self;
            let is_paused = |place| sources.iter().any(|source| source.place == place && source.is_paused());
            chain.advance_processing_time(clock.now(), is_paused, &mut **mailbox)?;
        }
        Ok(())
    }

    /// Reports how far sources are that wait for others, and lets them pause or go on.
    fn align_sources(&mut self, now: Duration) -> Result<(), OperatorError> {
        while let Some(max_allowed) = self.mailbox.take_alignment() {
            let source = self.sources.iter_mut().find(|source| source.node == Some(max_allowed.node));
            if let Some(alignment) = source.and_then(|source| source.alignment.as_mut()) {
                alignment.allow(max_allowed.watermark);
            }
        }
        for source in &mut self.sources {
            let (Some(alignment), Some(node)) = (&mut source.alignment, source.node) else { continue };
            let Some((watermark, status)) = self.chain.source_watermark(source.place) else { continue };
            if alignment.take_report(watermark, now) {
                // Nobody waits for a source that is idle.
                let watermark = if status == WatermarkStatus::Idle { Timestamp::MAX } else { watermark };
                let report = WatermarkReport { attempt: self.attempt.attempt, node, watermark };
                (self.services.events)(TaskEvent::ReportWatermark(report));
            }
            if alignment.update(watermark) {
                self.chain.resume_source(source.place, self.mailbox)?;
            }
        }
        Ok(())
    }

    fn publish(&self) {
        publish_cpu_time(self.counters);
        self.chain.publish_metrics();
    }

    fn split_assigned(&mut self, answer: SplitAnswer) -> Result<(), OperatorError> {
        let source = self.sources.iter_mut().find(|source| source.node == Some(answer.node));
        let Some(source) = source.filter(|source| source.phase == Phase::SplitRequested) else {
            // An answer to a request that was answered before; splits are dealt once.
            tracing::warn!(task = %self.attempt.attempt, "a split came that was not asked for");
            return Ok(());
        };
        match answer.assignment {
            SplitAssignment::Split(split) => {
                source.phase = Phase::Ready;
                self.chain.add_split(source.place, split, self.mailbox)
            }
            SplitAssignment::Wait(millis) => {
                source.phase = Phase::RequestSplitAt(self.clock.monotonic() + Duration::from_millis(millis));
                Ok(())
            }
            SplitAssignment::NoMoreSplits => {
                source.phase = Phase::Ended;
                self.chain.end_source(source.place, self.mailbox)
            }
        }
    }

    /// Lets a source do what it can. Returns false if it can do nothing now.
    fn step_source(&mut self, index: usize, now: Duration) -> Result<bool, OperatorError> {
        let source = &mut self.sources[index];
        if source.is_paused() {
            return Ok(false);
        }
        match source.phase {
            Phase::Ready => {}
            Phase::IdleUntil(at) if at <= now => {}
            Phase::RequestSplitAt(at) if at <= now => {
                self.request_split(index);
                return Ok(true);
            }
            Phase::IdleUntil(_) | Phase::RequestSplitAt(_) | Phase::SplitRequested | Phase::Ended => return Ok(false),
        }
        let place = source.place;
        match self.chain.poll_source(place, SOURCE_BATCH_BYTES, self.mailbox)? {
            SourcePoll::More => self.sources[index].phase = Phase::Ready,
            SourcePoll::NeedSplit => self.request_split(index),
            SourcePoll::Idle(pause) => {
                self.sources[index].phase = Phase::IdleUntil(self.clock.monotonic() + pause);
                return Ok(false);
            }
            SourcePoll::Ended => self.sources[index].phase = Phase::Ended,
        }
        Ok(true)
    }

    fn request_split(&mut self, index: usize) {
        let source = &mut self.sources[index];
        let node = source.node.expect("only native sources ask for splits");
        source.phase = Phase::SplitRequested;
        (self.services.events)(TaskEvent::RequestSplit(SplitRequest { attempt: self.attempt.attempt, node }));
    }

    /// Waits until there is something to do.
    fn wait(&mut self, now: Duration, next_flush: Option<Duration>) -> Result<(), OperatorError> {
        if self.mailbox.has_answers() {
            // It came while the task waited for room.
            return Ok(());
        }
        self.chain.flush_sinks()?;
        let publish_at = self.published + PUBLISH_INTERVAL_IDLE;
        if self.unpublished && publish_at <= now {
            self.published = now;
            self.unpublished = false;
            self.publish();
        }
        let publish_at = self.unpublished.then_some(publish_at);
        let alarms = self.sources.iter().filter_map(|source| match source.phase {
            Phase::IdleUntil(at) | Phase::RequestSplitAt(at) => Some(at),
            Phase::Ready | Phase::SplitRequested | Phase::Ended => None,
        });
        let next_timer = self.chain.next_processing_time();
        let next_timer = next_timer.map(|at| self.clock.monotonic() + at.since(self.clock.now()));
        let reports = self.sources.iter().filter_map(|source| source.alignment.as_ref().map(SourceAlignment::due));
        let due = self.watermarks_due.into_iter().chain(next_timer).chain(publish_at);
        let alarm = alarms.chain(next_flush).chain(reports).chain(due).min();
        let timeout = alarm.map(|at| at.saturating_sub(self.clock.monotonic()));
        Ok(self.mailbox.wait(Waiting::Idle, timeout, WaitFor::Element(&self.gates))?)
    }
}

/// Publishes the CPU time of the calling thread.
pub(super) fn publish_cpu_time(counters: &TaskCounters) {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    counters.cpu_ns.store(seconds * 1_000_000_000 + nanos, Ordering::Relaxed);
}
