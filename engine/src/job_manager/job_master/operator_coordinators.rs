//! The companions of operators in the JobMaster: enumerators of sources, committers of sinks.
//!
//! Made and checked before any task is deployed, and brought to what they were at the
//! checkpoint that the job goes on from. Splits that were dealt since the latest checkpoint
//! are remembered, so that those of a reader that restarts are given back: what it had left
//! then, and what it was dealt since. What finished tasks deliver without checkpoints is
//! kept until the job has finished, and dropped with the attempt that made it.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    sync::Arc,
};

use super::{checkpoint_coordinator::CompletedParts, watermark_alignment::WatermarkAlignment};
use crate::{
    base::{
        clock::Timestamp,
        ids::{ExecutionVertexId, JobId, JobVertexId},
        stream_element::{CheckpointId, SnapshotLocation},
    },
    checkpoint::{CheckpointMetadata, OperatorSubtaskState},
    connector::{
        AlignmentOptions, Committable, ConnectorError, Permissions, RestoredOutput, RestoredSource, SinkCommitter,
        SourceSplit, SplitAssignment, SplitEnumerator,
    },
    failpoint,
    graph::{
        job_graph::{ChainedOperator, JobVertex},
        stream_graph::{ConnectorSpec, Operator},
    },
    protocol::job_master::{FailureCause, Recoverability},
};

/// Splits of one source that are remembered; a source that dealt more restarts as a whole.
const REMEMBERED_SPLITS_MAX: usize = 100_000;

/// Makes the enumerator of a source of the given parallelism and record type, which goes on from what was restored.
pub type EnumeratorFactory = Arc<
    dyn Fn(
            &ConnectorSpec,
            u32,
            &str,
            &Permissions,
            Option<RestoredSource>,
        ) -> Result<Box<dyn SplitEnumerator>, ConnectorError>
        + Send
        + Sync,
>;

/// Makes the committer of a sink of the given parallelism and record type.
pub type CommitterFactory = Arc<
    dyn Fn(&ConnectorSpec, u32, &str, &Permissions) -> Result<Box<dyn SinkCommitter>, ConnectorError> + Send + Sync,
>;

/// How connectors are reached.
#[derive(Clone)]
pub struct Connectors {
    /// See [`EnumeratorFactory`].
    pub enumerators: EnumeratorFactory,
    /// See [`CommitterFactory`].
    pub committers: CommitterFactory,
}

/// A source or sink failed in the JobMaster.
#[derive(Debug, thiserror::Error)]
pub enum CoordinatorError {
    /// A source cannot list its input.
    #[error("could not prepare source \"{operator}\"")]
    PrepareSource {
        /// Name of the operator.
        operator: String,
        /// Why not.
        source: ConnectorError,
    },
    /// A sink cannot use its destination.
    #[error("could not prepare sink \"{operator}\"")]
    PrepareSink {
        /// Name of the operator.
        operator: String,
        /// Why not.
        source: ConnectorError,
    },
    /// A source cannot list more of its input.
    #[error("could not get the next split of source \"{operator}\"")]
    NextSplit {
        /// Name of the operator.
        operator: String,
        /// Why not.
        source: ConnectorError,
    },
    /// Rows that were committed would be taken back if the job went on without its checkpoints.
    #[error(
        "the output of sink \"{operator}\" holds rows of the job up to checkpoint {checkpoint_id}, but none of its \
         checkpoints is in {location}: make that directory available again (is it mounted?), or submit the job under \
         another id with an output directory of its own"
    )]
    CheckpointMissing {
        /// Name of the operator.
        operator: String,
        /// The last checkpoint whose rows are visible.
        checkpoint_id: CheckpointId,
        /// Where the job's checkpoints should be.
        location: SnapshotLocation,
    },
    /// The output of a sink is not what it was at the checkpoint.
    #[error("could not bring the output of sink \"{operator}\" to checkpoint {checkpoint_id}")]
    Recover {
        /// Name of the operator.
        operator: String,
        /// The checkpoint.
        checkpoint_id: CheckpointId,
        /// Why not.
        source: ConnectorError,
    },
    /// The output of a checkpoint cannot be made visible.
    #[error("could not commit checkpoint {checkpoint_id} in sink \"{operator}\"")]
    CommitCheckpoint {
        /// Name of the operator.
        operator: String,
        /// The checkpoint.
        checkpoint_id: CheckpointId,
        /// Why not.
        source: ConnectorError,
    },
    /// Rows of a savepoint, or of a checkpoint that outlives its job, cannot be kept for those who start from it.
    #[error("could not keep the rows that savepoint or checkpoint {checkpoint_id} holds of sink \"{operator}\"")]
    Keep {
        /// Name of the operator.
        operator: String,
        /// The savepoint or checkpoint.
        checkpoint_id: CheckpointId,
        /// Why not.
        source: ConnectorError,
    },
    /// The output of a sink cannot be made visible.
    #[error("could not commit the output of sink \"{operator}\"")]
    Commit {
        /// Name of the operator.
        operator: String,
        /// Why not.
        source: ConnectorError,
    },
    /// The unfinished output of a sink cannot be removed.
    #[error("could not remove the unfinished output of sink \"{operator}\"")]
    Abort {
        /// Name of the operator.
        operator: String,
        /// Why not.
        source: ConnectorError,
    },
    /// A source dealt too many splits to know which ones to deal again.
    #[error(
        "source \"{operator}\" dealt more than {REMEMBERED_SPLITS_MAX} splits, so that it can only restart as a whole"
    )]
    SplitsForgotten {
        /// Name of the operator.
        operator: String,
    },
    /// A task asked for a source that its vertex has not.
    #[error("the task has no source with node id {0}")]
    UnknownSource(u32),
    /// A task delivered for a sink that its vertex has not.
    #[error("the task has no sink with node id {0}")]
    UnknownSink(u32),
}

impl CoordinatorError {
    /// The failure as it is recorded: one line with all causes.
    pub fn into_failure(self) -> FailureCause {
        let recoverability = match &self {
            Self::NextSplit { source, .. } => recoverability(source),
            Self::PrepareSource { source, .. }
            | Self::PrepareSink { source, .. }
            | Self::Recover { source, .. }
            | Self::CommitCheckpoint { source, .. }
            | Self::Keep { source, .. } => recoverability(source),
            Self::SplitsForgotten { .. } | Self::CheckpointMissing { .. } => Recoverability::Recoverable,
            Self::Commit { .. } | Self::Abort { .. } => Recoverability::Unrecoverable,
            Self::UnknownSource(_) | Self::UnknownSink(_) => Recoverability::Unrecoverable,
        };
        let mut message = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            message = format!("{message}: {error}");
            cause = error.source();
        }
        FailureCause { code: "connector".to_owned(), message, detail: String::new(), recoverability }
    }
}

/// A restart can help only where the outside may change.
fn recoverability(error: &ConnectorError) -> Recoverability {
    match error {
        ConnectorError::Io { .. }
        | ConnectorError::Net { .. }
        | ConnectorError::PartMissing { .. }
        | ConnectorError::Canceled => Recoverability::Recoverable,
        ConnectorError::Unknown { .. }
        | ConnectorError::Option { .. }
        | ConnectorError::NoArtifact { .. }
        | ConnectorError::NotGranted { .. }
        | ConnectorError::DestinationNotEmpty { .. }
        | ConnectorError::BadRow { .. }
        | ConnectorError::SharedDestination { .. }
        | ConnectorError::Damaged(_) => Recoverability::Unrecoverable,
    }
}

/// What operators of finished tasks left behind, by task and node.
pub type EndStates = BTreeMap<(ExecutionVertexId, u32), OperatorSubtaskState>;

/// A connector as one operator uses it.
struct Use {
    operator: String,
    vertex: JobVertexId,
    connector: ConnectorSpec,
    parallelism: u32,
    record_type: String,
}

struct SourceCoordinator {
    use_: Use,
    enumerator: Box<dyn SplitEnumerator>,
    /// By subtask index: what its reader had left at the latest checkpoint, if it was dealt by this enumerator.
    left: BTreeMap<u32, Vec<SourceSplit>>,
    dealt: DealtSplits,
}

/// What a source's readers were dealt since the latest checkpoint.
enum DealtSplits {
    /// `[subtask_index]`: in the order of dealing, with the last checkpoint whose state does not hold it.
    Remembered { splits: Vec<Vec<(CheckpointId, SourceSplit)>>, count: usize },
    /// More than [`REMEMBERED_SPLITS_MAX`]; the last of them with this checkpoint.
    TooMany(CheckpointId),
}

/// What sources and sinks go on from.
#[derive(Debug)]
pub struct RestoredConnectors {
    /// The job that took the checkpoint.
    pub job: JobId,
    /// The checkpoint.
    pub checkpoint_id: CheckpointId,
    /// It is a savepoint that its job stopped with: all of its output was committed.
    pub was_committed: bool,
    /// By node.
    pub sources: BTreeMap<u32, RestoredSource>,
    /// By node: what the checkpoint commits.
    pub committables: BTreeMap<u32, Vec<Committable>>,
    /// Nodes that the checkpoint knows.
    pub nodes: BTreeSet<u32>,
}

impl RestoredConnectors {
    fn take_output(&mut self, node: u32) -> RestoredOutput {
        RestoredOutput {
            job: self.job,
            checkpoint_id: self.checkpoint_id,
            committables: self.committables.remove(&node).unwrap_or_default(),
            was_committed: self.was_committed,
        }
    }
}

struct SinkCoordinator {
    use_: Use,
    committer: Box<dyn SinkCommitter>,
}

/// All coordinators of a job, by node id.
pub struct OperatorCoordinators {
    connectors: Connectors,
    permissions: Permissions,
    sources: BTreeMap<u32, SourceCoordinator>,
    sinks: BTreeMap<u32, SinkCoordinator>,
    /// What finished tasks left behind.
    end_states: EndStates,
    alignment: WatermarkAlignment,
    /// The last checkpoint for which the enumerators were asked for their state.
    last_snapshot: CheckpointId,
}

impl OperatorCoordinators {
    /// Makes no coordinator yet; see [`OperatorCoordinators::initialize_on_master`].
    pub fn new(connectors: Connectors, permissions: Permissions) -> Self {
        Self {
            connectors,
            permissions,
            sources: BTreeMap::new(),
            sinks: BTreeMap::new(),
            end_states: BTreeMap::new(),
            alignment: WatermarkAlignment::default(),
            last_snapshot: 0,
        }
    }

    /// Makes all coordinators, as they were at a checkpoint if one is restored, and checks inputs and
    /// destinations. Source: `JobVertex.initializeOnMaster`.
    ///
    /// `empty` is where checkpoints of this job were looked for and none was found. Then no destination may say that one
    /// was committed: the checkpoints are away, as before a mount, and what is there must not be taken back.
    ///
    /// # Errors
    /// Returns the first failure; destinations that were prepared are cleaned again, unless a
    /// checkpoint is restored.
    pub fn initialize_on_master(
        &mut self,
        vertices: &[JobVertex],
        mut restored: Option<RestoredConnectors>,
        empty: Option<&SnapshotLocation>,
    ) -> Result<(), CoordinatorError> {
        let is_fresh = restored.is_none();
        let start = restored.as_ref().map_or(0, |restored| restored.checkpoint_id);
        // No destination is touched before all are looked at.
        vertices
            .iter()
            .flat_map(|vertex| vertex.operators.iter().map(move |operator| (vertex, operator)))
            .try_for_each(|(vertex, operator)| self.create_coordinator(vertex, operator, restored.as_mut()))?;
        for sink in self.sinks.values() {
            sink.check_committed(start, empty)?;
        }
        let mut prepared = BTreeSet::new();
        let result = self.sinks.iter_mut().try_for_each(|(node, sink)| {
            let restored = restored.as_mut().filter(|restored| restored.nodes.contains(node));
            sink.prepare(restored.map(|restored| restored.take_output(*node)))?;
            prepared.insert(*node);
            Ok(())
        });
        if result.is_err() && is_fresh {
            self.sinks.retain(|node, _| prepared.contains(node));
            for error in self.abort(None, vertices) {
                tracing::warn!("{}", error.into_failure().message);
            }
        }
        result
    }

    /// Names of sources whose rows cannot be read again, so that a failure loses those since a checkpoint.
    pub fn not_replayable(&self) -> Vec<&str> {
        let sources = self.sources.values().filter(|source| !source.enumerator.is_replayable());
        sources.map(|source| source.use_.operator.as_str()).collect()
    }

    fn create_coordinator(
        &mut self,
        vertex: &JobVertex,
        operator: &ChainedOperator,
        restored: Option<&mut RestoredConnectors>,
    ) -> Result<(), CoordinatorError> {
        let node = &operator.node;
        let use_of = |connector: &ConnectorSpec, record_type: Option<&String>| Use {
            operator: node.name.clone(),
            vertex: vertex.id,
            connector: connector.clone(),
            parallelism: vertex.parallelism,
            record_type: record_type.cloned().unwrap_or_default(),
        };
        match &node.operator {
            Operator::Source(connector) => {
                let use_ = use_of(connector, node.output_type.as_ref());
                let restored = restored.and_then(|restored| restored.sources.remove(&node.id));
                let enumerator = self.create_enumerator(&use_, restored)?;
                let alignment = AlignmentOptions::parse(connector);
                let error = |source| CoordinatorError::PrepareSource { operator: node.name.clone(), source };
                if let Some(options) = alignment.map_err(error)? {
                    self.alignment.add_source(node.id, options);
                }
                let dealt = DealtSplits::new(vertex.parallelism);
                let left = BTreeMap::new();
                self.sources.insert(node.id, SourceCoordinator { use_, enumerator, left, dealt });
            }
            Operator::Sink(connector) => {
                let use_ = use_of(connector, node.input_types.first());
                let error = |source| CoordinatorError::PrepareSink { operator: node.name.clone(), source };
                let Use { connector, parallelism, record_type, .. } = &use_;
                let committer = (self.connectors.committers)(connector, *parallelism, record_type, &self.permissions)
                    .map_err(error)?;
                self.sinks.insert(node.id, SinkCoordinator { use_, committer });
            }
            Operator::Guest(_) | Operator::GuestSource(_) => {}
        }
        Ok(())
    }

    fn create_enumerator(
        &self,
        use_: &Use,
        restored: Option<RestoredSource>,
    ) -> Result<Box<dyn SplitEnumerator>, CoordinatorError> {
        let Use { connector, parallelism, record_type, operator, .. } = use_;
        (self.connectors.enumerators)(connector, *parallelism, record_type, &self.permissions, restored)
            .map_err(|source| CoordinatorError::PrepareSource { operator: operator.clone(), source })
    }

    /// Answers a reader that asks for a split.
    ///
    /// # Errors
    /// Returns an error if the task has no such source or its input cannot be listed.
    pub fn next_split(&mut self, task: ExecutionVertexId, node: u32) -> Result<SplitAssignment, CoordinatorError> {
        let source = self.sources.get_mut(&node).filter(|source| source.use_.vertex == task.vertex);
        let source = source.ok_or(CoordinatorError::UnknownSource(node))?;
        let assignment = source
            .enumerator
            .next_split(task.subtask_index)
            .map_err(|error| CoordinatorError::NextSplit { operator: source.use_.operator.clone(), source: error })?;
        match &assignment {
            SplitAssignment::Split(split) => {
                failpoint!("source.dealt", infallible);
                source.dealt.remember(self.last_snapshot, task.subtask_index, split);
            }
            SplitAssignment::Wait(_) | SplitAssignment::NoMoreSplits => {}
        }
        Ok(assignment)
    }

    /// State of all enumerators, by node. What is dealt from here on is behind the checkpoint.
    pub fn snapshot(&mut self, checkpoint_id: CheckpointId) -> BTreeMap<u32, Vec<u8>> {
        self.last_snapshot = checkpoint_id;
        self.sources.iter().map(|(node, source)| (*node, source.enumerator.snapshot())).collect()
    }

    /// A checkpoint is complete: it is what readers go back to.
    ///
    /// # Errors
    /// Returns the first failure to commit; all sinks are tried.
    pub fn checkpoint_completed(&mut self, parts: CompletedParts) -> Result<(), CoordinatorError> {
        let CompletedParts { id, is_savepoint, mut splits, committables } = parts;
        for (node, source) in &mut self.sources {
            source.dealt.checkpoint_completed(id, source.use_.parallelism);
            let of_node = splits.extract_if(.., |(other, _), _| other == node);
            source.left = of_node.map(|((_, subtask_index), left)| (subtask_index, left)).collect();
        }
        let mut result = Ok(());
        for (node, committables) in committables {
            let Some(sink) = self.sinks.get_mut(&node) else { continue };
            let operator = || sink.use_.operator.clone();
            let mut committed = sink.committer.commit(committables);
            // A job whose savepoint is complete, but that did not stop, goes back to its latest checkpoint.
            if committed.is_ok() && !is_savepoint {
                committed = sink.committer.checkpoint_committed(id);
            }
            let committed = committed.map_err(|source| CoordinatorError::CommitCheckpoint {
                operator: operator(),
                checkpoint_id: id,
                source,
            });
            result = result.and(committed);
        }
        result
    }

    /// A savepoint that commits nothing is complete: what it holds of each node must not be lost.
    ///
    /// # Errors
    /// Returns the first sink that cannot keep it.
    pub fn savepoint_taken(
        &mut self,
        checkpoint_id: CheckpointId,
        committables: &BTreeMap<u32, Vec<Committable>>,
    ) -> Result<(), CoordinatorError> {
        for (node, committables) in committables {
            let Some(sink) = self.sinks.get_mut(node) else { continue };
            let operator = || sink.use_.operator.clone();
            sink.committer.keep(checkpoint_id, committables).map_err(|source| CoordinatorError::Keep {
                operator: operator(),
                checkpoint_id,
                source,
            })?;
        }
        Ok(())
    }

    /// Notes how far a source is in event time; returns how far its watermark may rise before it
    /// pauses, if it waits for others.
    pub fn report_watermark(&mut self, task: ExecutionVertexId, node: u32, watermark: Timestamp) -> Option<Timestamp> {
        self.sources.get(&node).filter(|source| source.use_.vertex == task.vertex)?;
        self.alignment.report(node, task.subtask_index, watermark)
    }

    /// A task has ended: nobody waits for its sources.
    pub fn task_ended(&mut self, task: ExecutionVertexId) {
        for (node, _) in self.sources.iter().filter(|(_, source)| source.use_.vertex == task.vertex) {
            self.alignment.forget(*node, task.subtask_index);
        }
    }

    /// Keeps what the operators of a finished task left behind.
    ///
    /// # Errors
    /// Returns an error if it left output and has no such sink.
    pub fn task_finished(
        &mut self,
        task: ExecutionVertexId,
        end_states: BTreeMap<u32, OperatorSubtaskState>,
    ) -> Result<(), CoordinatorError> {
        for (node, state) in end_states {
            let is_sink = self.sinks.get(&node).is_some_and(|sink| sink.use_.vertex == task.vertex);
            if !is_sink && !state.committables.is_empty() {
                return Err(CoordinatorError::UnknownSink(node));
            }
            self.end_states.insert((task, node), state);
        }
        Ok(())
    }

    /// What these finished tasks left behind, by task and node: output becomes visible at the job's end.
    pub fn end_states(&self, finished: &BTreeSet<ExecutionVertexId>) -> EndStates {
        let of_finished =
            self.end_states.iter().filter(|((task, _), state)| finished.contains(task) && !state.is_empty());
        of_finished.map(|(place, state)| (*place, state.clone())).collect()
    }

    /// Vertices of which a restart must take all subtasks or none, because what their
    /// readers were dealt is not known any more.
    pub fn indivisible_vertices(&self) -> impl Iterator<Item = JobVertexId> {
        self.sources.values().filter_map(|source| match source.dealt {
            DealtSplits::Remembered { .. } => None,
            DealtSplits::TooMany(_) => Some(source.use_.vertex),
        })
    }

    /// Makes ready for fresh attempts of the subtasks, which go on from a checkpoint or begin from
    /// scratch: gives their splits back and drops their committables. `subtasks` are all the ended
    /// attempts of one restart, by vertex.
    ///
    /// # Errors
    /// Returns an error if an input cannot be listed anew or a destination cannot be cleaned.
    pub fn subtasks_reset(
        &mut self,
        subtasks: &BTreeMap<JobVertexId, Vec<u32>>,
        mut restored: Option<RestoredConnectors>,
    ) -> Result<(), CoordinatorError> {
        let is_reset = |task: &ExecutionVertexId| {
            subtasks.get(&task.vertex).is_some_and(|reset| reset.contains(&task.subtask_index))
        };
        self.end_states.retain(|(task, _), _| !is_reset(task));
        let mut sources = std::mem::take(&mut self.sources);
        let result = sources.iter_mut().try_for_each(|(node, source)| match subtasks.get(&source.use_.vertex) {
            Some(subtasks) => {
                let restored = restored.as_mut().and_then(|restored| restored.sources.remove(node));
                self.reset_source(source, subtasks, restored)
            }
            None => Ok(()),
        });
        self.sources = sources;
        result?;
        for (node, sink) in &mut self.sinks {
            if let Some(subtasks) = subtasks.get(&sink.use_.vertex) {
                let known = restored.as_mut().filter(|restored| restored.nodes.contains(node));
                sink.subtasks_reset(subtasks, known.map(|restored| restored.take_output(*node)))?;
            }
        }
        Ok(())
    }

    fn reset_source(
        &self,
        source: &mut SourceCoordinator,
        subtasks: &[u32],
        restored: Option<RestoredSource>,
    ) -> Result<(), CoordinatorError> {
        if subtasks.len() == source.use_.parallelism as usize {
            // All splits go back to the enumerator: readers start with none.
            source.enumerator = self.create_enumerator(&source.use_, restored)?;
            source.left.clear();
            source.dealt = DealtSplits::new(source.use_.parallelism);
            return Ok(());
        }
        for subtask_index in subtasks {
            let operator = || source.use_.operator.clone();
            let dealt = source.dealt.take(*subtask_index);
            let dealt = dealt.ok_or_else(|| CoordinatorError::SplitsForgotten { operator: operator() })?;
            let mut splits = source.left.remove(subtask_index).unwrap_or_default();
            splits.extend(dealt);
            source.enumerator.add_splits_back(*subtask_index, splits);
        }
        Ok(())
    }

    /// The job has finished: makes what finished tasks delivered visible, and `uncommitted` of each node.
    ///
    /// # Errors
    /// Returns the first failure; sinks before it are committed, those behind it are not.
    pub fn commit(&mut self, mut uncommitted: BTreeMap<u32, Vec<Committable>>) -> Result<(), CoordinatorError> {
        for (node, sink) in &mut self.sinks {
            let operator = || sink.use_.operator.clone();
            let of_sink = self.end_states.iter_mut().filter(|((_, of), _)| of == node);
            let delivered = of_sink.flat_map(|(_, state)| std::mem::take(&mut state.committables));
            let mut committables = uncommitted.remove(node).unwrap_or_default();
            // A task may deliver again what it named for a savepoint.
            for committable in delivered {
                if !committables.contains(&committable) {
                    committables.push(committable);
                }
            }
            sink.committer
                .commit(committables)
                .map_err(|source| CoordinatorError::Commit { operator: operator(), source })?;
        }
        Ok(())
    }

    /// Removes the output that is not visible; returns what went wrong. What a checkpoint that outlives the job
    /// holds is kept: it may be complete and not committed.
    pub fn abort(&mut self, kept: Option<&CheckpointMetadata>, vertices: &[JobVertex]) -> Vec<CoordinatorError> {
        self.end_states.clear();
        let kept = kept.map(|kept| (kept.checkpoint_id, kept.committables(vertices)));
        self.sinks
            .iter_mut()
            .filter_map(|(node, sink)| {
                let operator = sink.use_.operator.clone();
                if let Some((checkpoint_id, kept)) = &kept
                    && let Some(committables) = kept.get(node)
                    && let Err(source) = sink.committer.keep(*checkpoint_id, committables)
                {
                    // Nothing goes; the job's cleaner tries again.
                    return Some(CoordinatorError::Keep { operator, checkpoint_id: *checkpoint_id, source });
                }
                sink.committer.abort().err().map(|source| CoordinatorError::Abort { operator, source })
            })
            .collect()
    }
}

impl SinkCoordinator {
    /// Fails if a checkpoint behind `start`, which the job is to go on from, was committed, and none was found in `empty`.
    fn check_committed(&self, start: CheckpointId, empty: Option<&SnapshotLocation>) -> Result<(), CoordinatorError> {
        let operator = || self.use_.operator.clone();
        let Some(location) = empty else { return Ok(()) };
        let committed = self.committer.committed();
        let committed = committed.map_err(|source| CoordinatorError::PrepareSink { operator: operator(), source })?;
        match committed.filter(|committed| start < *committed) {
            Some(checkpoint_id) => {
                let location = location.clone();
                Err(CoordinatorError::CheckpointMissing { operator: operator(), checkpoint_id, location })
            }
            None => Ok(()),
        }
    }

    /// Makes the destination what it was at a checkpoint, or ready for a job that begins anew.
    fn prepare(&mut self, restored: Option<RestoredOutput>) -> Result<(), CoordinatorError> {
        let operator = || self.use_.operator.clone();
        match restored {
            Some(restored) => {
                let checkpoint_id = restored.checkpoint_id;
                self.committer.recover(restored).map_err(|source| CoordinatorError::Recover {
                    operator: operator(),
                    checkpoint_id,
                    source,
                })
            }
            None => self
                .committer
                .prepare()
                .map_err(|source| CoordinatorError::PrepareSink { operator: operator(), source }),
        }
    }

    /// `restored` is what the subtasks go on from.
    fn subtasks_reset(&mut self, subtasks: &[u32], restored: Option<RestoredOutput>) -> Result<(), CoordinatorError> {
        if subtasks.len() < self.use_.parallelism as usize {
            // Others go on writing, so that cleaning waits until the job has ended.
            return Ok(());
        }
        self.prepare(restored)
    }
}

impl DealtSplits {
    fn new(parallelism: u32) -> Self {
        Self::Remembered { splits: vec![Vec::new(); parallelism as usize], count: 0 }
    }

    fn remember(&mut self, behind: CheckpointId, subtask_index: u32, split: &SourceSplit) {
        match self {
            Self::Remembered { splits, count } if *count < REMEMBERED_SPLITS_MAX => {
                splits[subtask_index as usize].push((behind, split.clone()));
                *count += 1;
            }
            Self::Remembered { .. } | Self::TooMany(_) => *self = Self::TooMany(behind),
        }
    }

    /// Forgets what was dealt before the checkpoint: it has what is left of it.
    fn checkpoint_completed(&mut self, id: CheckpointId, parallelism: u32) {
        match self {
            Self::Remembered { splits, count } => {
                splits.iter_mut().for_each(|splits| splits.retain(|(behind, _)| id <= *behind));
                *count = splits.iter().map(Vec::len).sum();
            }
            Self::TooMany(last) if *last < id => *self = Self::new(parallelism),
            Self::TooMany(_) => {}
        }
    }

    fn take(&mut self, subtask_index: u32) -> Option<Vec<SourceSplit>> {
        match self {
            Self::Remembered { splits, count } => {
                let taken = std::mem::take(&mut splits[subtask_index as usize]);
                *count -= taken.len();
                Some(taken.into_iter().map(|(_, split)| split).collect())
            }
            Self::TooMany(_) => None,
        }
    }
}
