//! What a task is made of before its loop begins: permissions, plugins, restored state, gates
//! and partitions.

use std::{
    collections::{BTreeMap, HashMap, hash_map::Entry},
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::bounded;

use super::{
    Reporter, TaskServices,
    failure::Culprit,
    mailbox::{Mailbox, Prepared, WaitFor},
    source_alignment::SourceAlignment,
    task_loop::{Ending, LoopError, Phase, RECORDS_PER_WATERMARK, Source, TaskLoop},
    times::Waiting,
};
use crate::{
    base::{config::options, ids::BlobDigest, stream_element::CheckpointingMode},
    checkpoint::{CheckpointStorageError, OperatorSubtaskState},
    connector::{AlignmentOptions, Permissions},
    graph::{
        job_graph::{IntermediateDataSet, JobVertex},
        stream_graph::Operator,
    },
    protocol::{
        job_master::{FailureCause, Recoverability, TaskState},
        task_executor::{JobInformation, ResultPartitionDeployment, TaskDeployment},
    },
    state::DiskState,
    task_manager::{
        network::{
            ChannelError, CheckpointBarrierHandler, FlushPolicy, GateError, InputGates, NetworkConfig, ResultPartition,
            ResultPartitionSettings,
        },
        operator::{
            ChainPlan, ChainSetup, CheckpointSettings, Interrupted, OperatorChain, OperatorError, PlannedKind,
            RestoredOperators, RowErrorPolicy, SharedPlugin, TaskContext, TaskCounters,
        },
    },
    wasm::{Replay, SandboxLimits},
};

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
pub(super) type Finished = BTreeMap<u32, OperatorSubtaskState>;

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
        let is_finished = self.deployment.restore.as_ref().is_some_and(|restore| restore.is_finished);
        let plugins = if is_finished { HashMap::new() } else { self.fetch_plugins()? };
        let restored = if is_finished { None } else { self.read_restored()? };
        let network = NetworkConfig::new(&self.info.configuration);
        let gates = self.open_gates(network);
        let checkpoints = self.checkpoint_settings();
        let barriers = self.barrier_handler(gates.channel_count());
        let setup = ChainSetup {
            vertex: self.vertex(),
            plan: &self.plan,
            partitions: self.open_partitions(network),
            plugins,
            connectors: &*self.services.connectors,
            context: self.context.clone(),
            replay: Replay { args: self.info.program.args.clone(), graph_digest: self.info.program.graph_digest },
            limits: SandboxLimits::from_configuration(&self.info.configuration),
            disk_state: self.disk_state(),
            cancel: reporter.shared.sender.cancel_flag().clone(),
            permissions: Arc::new(permissions),
            clock: self.services.clock.clone(),
            row_error_policy: policy,
            counters: Arc::clone(counters),
            restored,
            is_finished,
            checkpoints,
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
            barriers,
            ending: Ending::new(checkpoints.has_final_checkpoint),
            taken: BTreeMap::new(),
            last_complete: 0,
            inline_bytes_max: self.info.configuration.get(&options::DATA_INLINE_THRESHOLD).0,
            mailbox: &mut self.mailbox,
            clock: &self.services.clock,
            services: &self.services,
            attempt: &self.deployment,
            sinks_flushed: Duration::ZERO,
            published: Duration::ZERO,
            unpublished: true,
            watermark_interval,
            watermarks_due_at: RECORDS_PER_WATERMARK,
            watermarks_due: watermark_interval.map(|interval| self.services.clock.monotonic() + interval),
            counters,
        };
        let result = task_loop.run();
        task_loop.publish();
        drop(task_loop);
        result.map_err(|error| match error {
            LoopError::Operator(error) => self.stop(&error),
            LoopError::Gate(error) => self.gate_failed(error),
            LoopError::StopGivenUp(id) => {
                let what = format!("savepoint {id} was given up after the task had stopped for it");
                Stop::Failed(self.culprit().failed(None, "savepoint-failed", &what))
            }
        })
    }

    fn disk_state(&self) -> Option<DiskState> {
        let configuration = &self.info.configuration;
        let is_on_disk = configuration.get(&options::STATE_BACKEND) == "disk";
        is_on_disk.then(|| DiskState {
            directory: self.services.state_directory.clone(),
            memory_bytes: configuration.get(&options::STATE_BACKEND_DISK_MEMORY).0,
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
        let mut permissions = Permissions::from(&self.info.grants);
        for artifact in &self.info.artifacts {
            let path = (self.services.artifacts)(artifact).map_err(Stop::Failed)?;
            permissions.artifacts.insert(artifact.name.clone(), path);
        }
        Ok(permissions)
    }

    fn checkpoint_settings(&self) -> CheckpointSettings {
        let configuration = &self.info.configuration;
        let is_periodic = configuration.get(&options::CHECKPOINTING_INTERVAL).is_some();
        CheckpointSettings {
            has_final_checkpoint: is_periodic && configuration.get(&options::CHECKPOINTS_AFTER_TASKS_FINISH),
            is_incremental: is_periodic && configuration.get(&options::CHECKPOINTING_INCREMENTAL),
        }
    }

    fn barrier_handler(&self, channels: usize) -> CheckpointBarrierHandler {
        let configuration = &self.info.configuration;
        let mode = match configuration.get(&options::CHECKPOINTING_MODE).as_str() {
            "AT_LEAST_ONCE" => CheckpointingMode::AtLeastOnce,
            _ => CheckpointingMode::ExactlyOnce,
        };
        let after_tasks_finish = configuration.get(&options::CHECKPOINTS_AFTER_TASKS_FINISH);
        CheckpointBarrierHandler::new(mode, after_tasks_finish, channels)
    }

    /// Reads the state that the task goes on from.
    fn read_restored(&mut self) -> Result<Option<RestoredOperators>, Stop> {
        let Some(restore) = self.deployment.restore.clone() else { return Ok(None) };
        let checkpoint_id = restore.checkpoint_id;
        let read = move || Prepared::State(RestoredOperators::verify(restore));
        let Prepared::State(read) = self.prepare("state".to_owned(), "reading restored state", read)? else {
            unreachable!("state was asked for")
        };
        let failed = |error: CheckpointStorageError| {
            let what = format!("could not restore checkpoint {checkpoint_id}: {}", super::failure::chain(&error));
            let recoverability = match error {
                // The JobMaster looks at the checkpoint, and takes the one before if it is damaged.
                CheckpointStorageError::Io { .. }
                | CheckpointStorageError::Missing { .. }
                | CheckpointStorageError::Damaged { .. } => Recoverability::Recoverable,
                CheckpointStorageError::Foreign { .. }
                | CheckpointStorageError::Version { .. }
                | CheckpointStorageError::Refused { .. } => Recoverability::Unrecoverable,
            };
            Stop::Failed(FailureCause { recoverability, ..self.culprit().failed(None, "restore-failed", &what) })
        };
        read.map(Some).map_err(failed)
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

    /// Has a plugin made ready, which ends with the compilation, at the latest when that
    /// has used up its CPU time.
    fn fetch_plugin(&mut self, digest: BlobDigest) -> Result<SharedPlugin, Stop> {
        let provider = Arc::clone(&self.services.plugins);
        let fetch = move || Prepared::Plugin(provider.plugin(digest));
        match self.prepare(format!("plugin {digest}"), "loading the plugin", fetch)? {
            Prepared::Plugin(plugin) => plugin.map_err(Stop::Failed),
            Prepared::State(_) => unreachable!("a plugin was asked for"),
        }
    }

    /// Does what may take long on a thread of its own; nobody waits for it if the task is
    /// told to stop.
    fn prepare(
        &mut self,
        thread_name: String,
        what: &str,
        prepare: impl FnOnce() -> Prepared + Send + 'static,
    ) -> Result<Prepared, Stop> {
        let (answer, answers) = bounded(1);
        let thread = std::thread::Builder::new().name(thread_name).spawn(move || {
            // An error means that the task has ended meanwhile.
            drop(answer.send(prepare()));
        });
        let failed = |code, what: &str| Stop::Failed(self.culprit().failed(None, code, what));
        thread.map_err(|error| failed("thread", &format!("could not start a thread for {what}: {error}")))?;
        loop {
            self.mailbox.wait(Waiting::Idle, None, WaitFor::Prepared(&answers))?;
            match answers.try_recv() {
                Ok(prepared) => return Ok(prepared),
                Err(crossbeam_channel::TryRecvError::Empty) => {}
                Err(crossbeam_channel::TryRecvError::Disconnected) => {
                    let what = format!("{what} ended in a panic, which is a bug");
                    return Err(Stop::Failed(self.culprit().failed(None, "internal", &what)));
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
