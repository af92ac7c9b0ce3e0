//! What is submitted: one vertex per operator chain.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::stream_graph::{Partitioner, StreamEdge, StreamNode};
use crate::base::{
    config::Configuration,
    ids::{BlobDigest, GraphDigest, IntermediateDataSetId, JobId, JobVertexId, OperatorId},
};

/// Which subtasks of two vertices are connected.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum DistributionPattern {
    /// Each producer with each consumer.
    AllToAll,
    /// Each with a few neighbours; see `graph::distribution`.
    Pointwise,
}

/// One operator of a chain.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct ChainedOperator {
    /// The operator as the program declared it.
    pub node: StreamNode,
    /// Id under which state is kept.
    pub operator_id: OperatorId,
    /// `uid_hash` of the program, which wins when state is matched.
    pub user_defined_id: Option<OperatorId>,
    /// Plugin that holds the operator's code; none for native ones.
    pub plugin: Option<BlobDigest>,
    /// Share of the slot's managed memory, 0 to 1.
    pub managed_memory_fraction: f64,
}

/// Data that a vertex produces for one edge of the stream graph that is not chained.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct IntermediateDataSet {
    /// Unique in the job.
    pub id: IntermediateDataSetId,
    /// The edge: names the producing operator, side output and selector.
    pub edge: StreamEdge,
    /// How records are dealt.
    pub partitioner: Partitioner,
    /// Which subtasks are connected.
    pub pattern: DistributionPattern,
    /// The consuming vertex.
    pub consumer: JobVertexId,
    /// Milliseconds after which a partly filled buffer is sent; 0: after each
    /// batch; -1: only when full.
    pub buffer_timeout: i64,
}

/// Consumption of a data set; one input gate of each subtask.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct JobEdge {
    /// The data set.
    pub source: IntermediateDataSetId,
    /// The vertex that produces it.
    pub producer: JobVertexId,
    /// How records are dealt.
    pub partitioner: Partitioner,
    /// Which subtasks are connected.
    pub pattern: DistributionPattern,
    /// Node of this vertex that takes the records.
    pub target_node: u32,
    /// Zero-based input of that node.
    pub input: u32,
}

/// A chain of operators, run by `parallelism` tasks.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct JobVertex {
    /// Operator id of the chain's head.
    pub id: JobVertexId,
    /// For example "Source: file -> Map -> (Sink: a, Sink: b)".
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// True if the program or the user set `max_parallelism`.
    pub max_parallelism_configured: bool,
    /// The operators, the head first, each behind those it takes records from.
    pub operators: Vec<ChainedOperator>,
    /// Edges between operators of this vertex.
    pub chained_edges: Vec<StreamEdge>,
    /// One input gate each, in the order of the gates.
    pub inputs: Vec<JobEdge>,
    /// One result partition each, in the order of the partitions.
    pub outputs: Vec<IntermediateDataSet>,
    /// Vertices of one group may share slots.
    pub slot_sharing_group: String,
    /// Subtasks i of all vertices of one group share a slot.
    pub co_location_group: Option<String>,
    /// Explicit resources; none: unknown. All vertices of a job or none have them.
    pub resources: Option<ResourceProfile>,
}

impl JobVertex {
    /// The chain's head.
    pub fn head(&self) -> &ChainedOperator {
        self.operators.first().expect("a vertex has at least one operator")
    }
}

/// Resources of one subtask.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub struct ResourceProfile {
    /// CPU cores.
    pub cpu_cores: f64,
    /// Bytes of memory.
    pub memory: u64,
}

/// What the job may open, as the submitter named it; canonical paths.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Grants {
    /// Files, directories with all below them, and globs below a canonical directory, that may be read.
    pub read: Vec<PathBuf>,
    /// Directories, new or empty at submission, that may be written into.
    pub write: Vec<PathBuf>,
    /// Addresses `host:port` that may be connected to or listened on.
    pub net: Vec<String>,
}

/// A file of the submitter that every subtask can read: a file source with the path `artifact:NAME` does.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct Artifact {
    /// Name by which sources know it.
    pub name: String,
    /// Its content.
    pub digest: BlobDigest,
}

/// How to make the operators again in a task.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ProgramSpec {
    /// The plugin.
    pub plugin: BlobDigest,
    /// File name of the plugin, for messages.
    pub plugin_name: String,
    /// Arguments of `plan`.
    pub args: Vec<String>,
    /// What a replayed `plan` must return.
    pub graph_digest: GraphDigest,
}

/// What is submitted to the Dispatcher.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct JobGraph {
    /// Drawn by the client.
    pub job_id: JobId,
    /// Shown to users.
    pub name: String,
    /// In topological order: each behind its producers.
    pub vertices: Vec<JobVertex>,
    /// All settings of the job.
    pub configuration: Configuration,
    /// The program.
    pub program: ProgramSpec,
    /// What the job may open.
    pub grants: Grants,
    /// Files for the subtasks.
    pub artifacts: Vec<Artifact>,
    /// Flink's JSON plan.
    pub json_plan: String,
}

impl JobGraph {
    /// The vertex with the given id.
    pub fn vertex(&self, id: JobVertexId) -> Option<&JobVertex> {
        self.vertices.iter().find(|vertex| vertex.id == id)
    }
}
