//! The ExecutionGraph: the parallel form of a JobGraph, with the state of every attempt.
//!
//! One ExecutionVertex per subtask, one IntermediateResultPartition per producing
//! subtask and data set. Vertices are numbered through in topological order
//! ([`VertexIndex`]). Pure: the JobMaster alone changes it, and states change in
//! [`ExecutionGraph::transition_to`] only, which keeps the counts.

use std::collections::{BTreeMap, HashMap, VecDeque};

pub mod execution;
pub mod regions;

use execution::{Execution, TaskLocation};
use regions::Regions;

use crate::{
    base::{
        clock::Timestamp,
        ids::{
            ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, IntermediateDataSetId,
            IntermediateResultPartitionId, JobVertexId, ResultPartitionId,
        },
        key_group::MAX_PARALLELISM_LIMIT,
        status::{ExecutionState, IllegalTransition},
    },
    graph::{
        distribution::ConsumedPartitions,
        job_graph::{DistributionPattern, JobVertex},
        regions::{Exchange, TopologyEdge},
    },
    protocol::{
        job_details::{SubtaskDetails, VertexDetails},
        job_master::{FailureCause, TaskMetrics},
        task_executor::{InputChannelDeployment, InputGateDeployment, ResultPartitionDeployment},
    },
};

/// Number of an ExecutionVertex among all of its graph, zero-based, in topological order.
pub type VertexIndex = usize;

/// A JobGraph cannot be made into an ExecutionGraph.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum AttachError {
    /// There is nothing to run.
    #[error("the job has no vertices")]
    Empty,
    /// Two vertices have one id.
    #[error("vertex {0} is attached twice")]
    DuplicateVertex(JobVertexId),
    /// Two data sets have one id.
    #[error("data set {0} is attached twice")]
    DuplicateDataSet(IntermediateDataSetId),
    /// A vertex comes before its producer, or the producer is missing.
    #[error("vertex \"{vertex}\" consumes data set {data_set}, which no vertex before it produces")]
    MissingDataSet {
        /// Name of the consumer.
        vertex: String,
        /// What it consumes.
        data_set: IntermediateDataSetId,
    },
    /// Producer and consumer of a data set disagree about each other.
    #[error("data set {data_set} does not join vertex \"{producer}\" to vertex \"{consumer}\" as both say")]
    Mismatch {
        /// The data set.
        data_set: IntermediateDataSetId,
        /// Name of the producer.
        producer: String,
        /// Name of the consumer.
        consumer: String,
    },
    /// A data set is consumed by nobody.
    #[error("data set {0} has no consumer")]
    Unconsumed(IntermediateDataSetId),
    /// The parallelism is out of range.
    #[error(
        "vertex \"{vertex}\" has parallelism {parallelism} and max parallelism {max_parallelism}: expected 1 <= parallelism <= max parallelism <= {MAX_PARALLELISM_LIMIT}"
    )]
    Parallelism {
        /// Name of the vertex.
        vertex: String,
        /// As given.
        parallelism: u32,
        /// As given.
        max_parallelism: u32,
    },
}

/// One JobVertex with its subtasks.
#[derive(Clone, Debug)]
pub struct ExecutionJobVertex {
    /// The vertex.
    pub job_vertex: JobVertex,
    /// Number of its first subtask; the others follow.
    pub first: VertexIndex,
}

/// One subtask over all its attempts.
#[derive(Clone, Debug)]
pub struct ExecutionVertex {
    id: ExecutionVertexId,
    /// Position of the ExecutionJobVertex.
    job_vertex: usize,
    current: Execution,
    /// The oldest first; at most `attempts_history_max`.
    former: VecDeque<Execution>,
    /// Counts the failures that touched it; a restart of an older version is outdated.
    version: u64,
}

impl ExecutionVertex {
    /// Its id.
    pub fn id(&self) -> ExecutionVertexId {
        self.id
    }

    /// The attempt that counts.
    pub fn current(&self) -> &Execution {
        &self.current
    }

    /// Former attempts that are kept, the oldest first.
    pub fn former(&self) -> impl Iterator<Item = &Execution> {
        self.former.iter()
    }

    /// See [`ExecutionGraph::record_modification`].
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// What a vertex makes for one JobEdge: one partition per producing subtask.
#[derive(Clone, Debug)]
pub struct IntermediateResult {
    /// The data set.
    pub id: IntermediateDataSetId,
    /// Position of the producing ExecutionJobVertex.
    pub producer: usize,
    /// Position of the consuming ExecutionJobVertex.
    pub consumer: usize,
    /// How partitions and consumers are joined.
    pub pattern: DistributionPattern,
    /// Number of producing subtasks, which is that of partitions.
    pub producers: u32,
    /// Number of consuming subtasks.
    pub consumers: u32,
}

impl IntermediateResult {
    fn consumed_partitions(&self, consumer: u32) -> ConsumedPartitions {
        self.pattern.consumed_partitions(self.producers, self.consumers, consumer)
    }
}

/// The parallel form of a JobGraph.
#[derive(Clone, Debug)]
pub struct ExecutionGraph {
    id: ExecutionGraphId,
    attempts_history_max: usize,
    job_vertices: Vec<ExecutionJobVertex>,
    vertices: Vec<ExecutionVertex>,
    /// Position in `job_vertices`.
    job_vertex_by_id: HashMap<JobVertexId, usize>,
    results: HashMap<IntermediateDataSetId, IntermediateResult>,
    regions: Regions,
    counts: BTreeMap<ExecutionState, u32>,
}

impl ExecutionGraph {
    /// Builds the graph of vertices in topological order, every attempt in the state CREATED.
    ///
    /// # Errors
    /// Returns an error if the vertices are not in topological order or contradict each other.
    pub fn attach(
        job_vertices: &[JobVertex],
        id: ExecutionGraphId,
        attempts_history_max: usize,
        now: Timestamp,
    ) -> Result<Self, AttachError> {
        if job_vertices.is_empty() {
            return Err(AttachError::Empty);
        }
        let mut graph = Self {
            id,
            attempts_history_max,
            job_vertices: Vec::with_capacity(job_vertices.len()),
            vertices: Vec::new(),
            job_vertex_by_id: HashMap::new(),
            results: HashMap::new(),
            regions: Regions::new(0, &[]),
            counts: BTreeMap::new(),
        };
        let mut produced = HashMap::new();
        for job_vertex in job_vertices {
            graph.attach_vertex(job_vertex, &mut produced, now)?;
        }
        if let Some(data_set) = produced.keys().min() {
            return Err(AttachError::Unconsumed(*data_set));
        }
        graph.regions = Regions::new(graph.vertices.len(), &graph.spanning_edges());
        Ok(graph)
    }

    /// Adds a vertex; `produced` holds the producers of the data sets that await their consumer.
    fn attach_vertex(
        &mut self,
        job_vertex: &JobVertex,
        produced: &mut HashMap<IntermediateDataSetId, usize>,
        now: Timestamp,
    ) -> Result<(), AttachError> {
        let JobVertex { parallelism, max_parallelism, .. } = *job_vertex;
        if parallelism == 0 || max_parallelism < parallelism || MAX_PARALLELISM_LIMIT < max_parallelism {
            let vertex = job_vertex.name.clone();
            return Err(AttachError::Parallelism { vertex, parallelism, max_parallelism });
        }
        let position = self.job_vertices.len();
        if self.job_vertex_by_id.insert(job_vertex.id, position).is_some() {
            return Err(AttachError::DuplicateVertex(job_vertex.id));
        }
        for input in &job_vertex.inputs {
            let Some(producer) = produced.remove(&input.source) else {
                return Err(AttachError::MissingDataSet { vertex: job_vertex.name.clone(), data_set: input.source });
            };
            let producer_vertex = &self.job_vertices[producer].job_vertex;
            let agrees = producer_vertex.id == input.producer
                && producer_vertex.outputs.iter().any(|output| {
                    output.id == input.source && output.consumer == job_vertex.id && output.pattern == input.pattern
                });
            if !agrees {
                return Err(AttachError::Mismatch {
                    data_set: input.source,
                    producer: producer_vertex.name.clone(),
                    consumer: job_vertex.name.clone(),
                });
            }
            let result = IntermediateResult {
                id: input.source,
                producer,
                consumer: position,
                pattern: input.pattern,
                producers: producer_vertex.parallelism,
                consumers: parallelism,
            };
            self.results.insert(input.source, result);
        }
        for output in &job_vertex.outputs {
            if self.results.contains_key(&output.id) || produced.insert(output.id, position).is_some() {
                return Err(AttachError::DuplicateDataSet(output.id));
            }
        }
        let first = self.vertices.len();
        self.job_vertices.push(ExecutionJobVertex { job_vertex: job_vertex.clone(), first });
        for subtask_index in 0..parallelism {
            let id = ExecutionVertexId { vertex: job_vertex.id, subtask_index };
            let attempt = ExecutionAttemptId { graph: self.id, execution_vertex: id, attempt_number: 0 };
            let current = Execution::new(attempt, now);
            let vertex = ExecutionVertex { id, job_vertex: position, current, former: VecDeque::new(), version: 0 };
            self.vertices.push(vertex);
        }
        *self.counts.entry(ExecutionState::Created).or_default() += parallelism;
        Ok(())
    }

    /// Pipelined edges that join the same vertices as all edges do, but are only as
    /// many as the vertices where all are joined to all.
    fn spanning_edges(&self) -> Vec<TopologyEdge> {
        let mut edges = Vec::new();
        for result in self.results.values() {
            let producer = self.job_vertices[result.producer].first;
            let consumer = self.job_vertices[result.consumer].first;
            let mut join = |partition: u32, subtask: u32| {
                let (source, target) = (producer + partition as usize, consumer + subtask as usize);
                edges.push(TopologyEdge { source, target, exchange: Exchange::Pipelined });
            };
            match result.pattern {
                DistributionPattern::AllToAll => {
                    (0..result.producers).for_each(|partition| join(partition, 0));
                    (0..result.consumers).for_each(|subtask| join(0, subtask));
                }
                DistributionPattern::Pointwise => {
                    for subtask in 0..result.consumers {
                        for partition in result.consumed_partitions(subtask).partitions {
                            join(partition, subtask);
                        }
                    }
                }
            }
        }
        edges
    }

    /// Id of this instance of the graph, part of every attempt's id.
    pub fn id(&self) -> ExecutionGraphId {
        self.id
    }

    /// All vertices of the job, in topological order.
    pub fn job_vertices(&self) -> &[ExecutionJobVertex] {
        &self.job_vertices
    }

    /// Number of subtasks.
    pub fn vertex_count(&self) -> usize {
        self.vertices.len()
    }

    /// A subtask.
    pub fn vertex(&self, index: VertexIndex) -> &ExecutionVertex {
        &self.vertices[index]
    }

    /// The vertex of the job that a subtask belongs to.
    pub fn job_vertex_of(&self, index: VertexIndex) -> &ExecutionJobVertex {
        &self.job_vertices[self.vertices[index].job_vertex]
    }

    /// All data sets, in no order.
    pub fn results(&self) -> impl Iterator<Item = &IntermediateResult> {
        self.results.values()
    }

    /// The pipelined regions.
    pub fn regions(&self) -> &Regions {
        &self.regions
    }

    /// Number of subtasks by the state of their current attempts; no zeros.
    pub fn counts(&self) -> &BTreeMap<ExecutionState, u32> {
        &self.counts
    }

    /// Number of subtasks whose current attempt is in the state.
    pub fn count(&self, state: ExecutionState) -> usize {
        self.counts.get(&state).map_or(0, |count| *count as usize)
    }

    /// True if no current attempt runs or waits.
    pub fn all_terminal(&self) -> bool {
        self.counts.keys().all(|state| state.is_terminal())
    }

    /// Number of a subtask, if it belongs to this graph.
    pub fn index_of(&self, id: ExecutionVertexId) -> Option<VertexIndex> {
        let job_vertex = &self.job_vertices[*self.job_vertex_by_id.get(&id.vertex)?];
        (id.subtask_index < job_vertex.job_vertex.parallelism).then(|| job_vertex.first + id.subtask_index as usize)
    }

    /// Number of the subtask whose current attempt this is; none if the attempt is
    /// former, of another graph, or invented.
    pub fn index_of_attempt(&self, attempt: ExecutionAttemptId) -> Option<VertexIndex> {
        let index = self.index_of(attempt.execution_vertex)?;
        (self.vertices[index].current.attempt() == attempt).then_some(index)
    }

    /// The subtasks whose partitions a subtask reads, gate by gate.
    pub fn producers_of(&self, index: VertexIndex) -> impl Iterator<Item = VertexIndex> {
        let subtask_index = self.vertices[index].id.subtask_index;
        self.job_vertex_of(index).job_vertex.inputs.iter().flat_map(move |input| {
            let result = &self.results[&input.source];
            let first = self.job_vertices[result.producer].first;
            let consumed = result.consumed_partitions(subtask_index);
            consumed.partitions.map(move |partition| first + partition as usize)
        })
    }

    /// Name of a subtask in messages: "Map -> Sink (3/8)".
    pub fn task_name(&self, index: VertexIndex) -> String {
        let JobVertex { name, parallelism, .. } = &self.job_vertex_of(index).job_vertex;
        format!("{name} ({}/{parallelism})", self.vertices[index].id.subtask_index + 1)
    }

    /// What the current attempt of a subtask writes and reads, in the order of its
    /// vertex's outputs and inputs.
    pub fn deployment(&self, index: VertexIndex) -> (Vec<ResultPartitionDeployment>, Vec<InputGateDeployment>) {
        let vertex = &self.vertices[index];
        let job_vertex = &self.job_vertex_of(index).job_vertex;
        let subtask_index = vertex.id.subtask_index;
        let partitions = job_vertex.outputs.iter().map(|output| {
            let result = &self.results[&output.id];
            ResultPartitionDeployment {
                partition: ResultPartitionId {
                    partition: IntermediateResultPartitionId { data_set: output.id, partition_index: subtask_index },
                    producer: vertex.current.attempt(),
                },
                subpartitions: result.pattern.subpartition_count(result.producers, result.consumers, subtask_index),
                consumer_max_parallelism: self.job_vertices[result.consumer].job_vertex.max_parallelism,
            }
        });
        let gates = job_vertex.inputs.iter().map(|input| {
            let result = &self.results[&input.source];
            let first = self.job_vertices[result.producer].first;
            let ConsumedPartitions { partitions, subpartition } = result.consumed_partitions(subtask_index);
            let channels = partitions.map(|partition_index| InputChannelDeployment {
                partition: ResultPartitionId {
                    partition: IntermediateResultPartitionId { data_set: input.source, partition_index },
                    producer: self.vertices[first + partition_index as usize].current.attempt(),
                },
                subpartition,
            });
            InputGateDeployment { data_set: input.source, channels: channels.collect() }
        });
        (partitions.collect(), gates.collect())
    }

    /// Takes the current attempt of a subtask to another state.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the state may not follow.
    pub fn transition_to(
        &mut self,
        index: VertexIndex,
        next: ExecutionState,
        now: Timestamp,
    ) -> Result<(), IllegalTransition<ExecutionState>> {
        let current = &mut self.vertices[index].current;
        let before = current.state();
        current.transition_to(next, now)?;
        self.move_count(before, next);
        Ok(())
    }

    /// Makes a fresh attempt of a subtask whose current one has ended; the oldest
    /// attempt beyond the history's bound is forgotten.
    pub fn reset_for_new_execution(&mut self, index: VertexIndex, now: Timestamp) {
        let vertex = &mut self.vertices[index];
        let before = vertex.current.state();
        assert!(before.is_terminal(), "only an ended attempt is followed by another");
        let ended = vertex.current.attempt();
        let attempt = ExecutionAttemptId { attempt_number: ended.attempt_number + 1, ..ended };
        vertex.former.push_back(std::mem::replace(&mut vertex.current, Execution::new(attempt, now)));
        if self.attempts_history_max < vertex.former.len() {
            vertex.former.pop_front();
        }
        self.move_count(before, ExecutionState::Created);
    }

    /// Notes that a failure touched a subtask; returns its version from then on.
    /// Source: `ExecutionVertexVersioner`.
    pub fn record_modification(&mut self, index: VertexIndex) -> u64 {
        self.vertices[index].version += 1;
        self.vertices[index].version
    }

    /// Notes where the current attempt is deployed to.
    pub fn set_location(&mut self, index: VertexIndex, location: TaskLocation) {
        self.vertices[index].current.location = Some(location);
    }

    /// Takes over the number of key groups of a checkpoint, before anything is deployed.
    pub fn set_max_parallelism(&mut self, vertex: JobVertexId, max_parallelism: u32) {
        if let Some(position) = self.job_vertex_by_id.get(&vertex) {
            self.job_vertices[*position].job_vertex.max_parallelism = max_parallelism;
        }
    }

    /// Takes over reported counters.
    pub fn set_metrics(&mut self, index: VertexIndex, metrics: TaskMetrics) {
        self.vertices[index].current.metrics = metrics;
    }

    /// Notes why the current attempt failed.
    pub fn set_failure(&mut self, index: VertexIndex, cause: FailureCause) {
        self.vertices[index].current.failure = Some(cause);
    }

    /// What is shown of all vertices, in topological order.
    pub fn details(&self) -> Vec<VertexDetails> {
        self.job_vertices.iter().map(|job_vertex| self.vertex_details(job_vertex)).collect()
    }

    fn vertex_details(&self, ExecutionJobVertex { job_vertex, first }: &ExecutionJobVertex) -> VertexDetails {
        let subtasks = &self.vertices[*first..*first + job_vertex.parallelism as usize];
        let operators = &job_vertex.operators;
        VertexDetails {
            id: job_vertex.id,
            name: job_vertex.name.clone(),
            parallelism: job_vertex.parallelism,
            max_parallelism: job_vertex.max_parallelism,
            slot_sharing_group: job_vertex.slot_sharing_group.clone(),
            operators: operators.iter().map(|operator| (operator.node.id, operator.node.name.clone())).collect(),
            subtasks: subtasks
                .iter()
                .map(|vertex| SubtaskDetails {
                    current: vertex.current.details(),
                    former: vertex.former.iter().map(Execution::details).collect(),
                })
                .collect(),
        }
    }

    fn move_count(&mut self, from: ExecutionState, to: ExecutionState) {
        let count = self.counts.get_mut(&from).expect("every current attempt is counted");
        *count -= 1;
        if *count == 0 {
            self.counts.remove(&from);
        }
        *self.counts.entry(to).or_default() += 1;
    }
}

#[cfg(test)]
mod tests;
