//! What the user wrote: one node per operator, source and sink.
//!
//! Made by `client` from what `plan` returned; the types mirror
//! `interface graph` of `wit/plugin.wit`, where their meaning is described.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A connector of the engine by name, with its options.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct ConnectorSpec {
    /// For example "file".
    pub name: String,
    /// Values by option.
    pub options: BTreeMap<String, String>,
}

/// What a node does.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum Operator {
    /// A native source.
    Source(ConnectorSpec),
    /// A native sink.
    Sink(ConnectorSpec),
    /// An operator of the plugin; the text is its kind.
    Guest(String),
    /// A source of the plugin; the text is its kind.
    GuestSource(String),
}

impl Operator {
    /// True for sources, native or not.
    pub fn is_source(&self) -> bool {
        matches!(self, Self::Source(_) | Self::GuestSource(_))
    }

    /// True if code of the plugin runs.
    pub fn is_guest(&self) -> bool {
        matches!(self, Self::Guest(_) | Self::GuestSource(_))
    }
}

/// How a node may be chained.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum ChainingStrategy {
    /// With predecessor and successors.
    Always,
    /// Not at all.
    Never,
    /// Only with successors.
    Head,
    /// With successors and with sources before it.
    HeadWithSources,
}

/// How records are dealt to the subtasks of the target.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq, Serialize)]
pub enum Partitioner {
    /// To the one local consumer.
    Forward,
    /// Round robin over all consumers.
    Rebalance,
    /// Round robin over the local subset of consumers.
    Rescale,
    /// At random.
    Shuffle,
    /// To all.
    Broadcast,
    /// To the first.
    Global,
    /// By key group.
    Hash,
    /// By the user's function.
    Custom,
}

/// Kind of a declared state.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub enum StateKind {
    /// One value per key.
    Value,
    /// A list per key.
    List,
    /// A map per key.
    Map,
    /// A value per key, reduced on writing.
    Reducing,
    /// An accumulator per key.
    Aggregating,
    /// A map that is equal in all subtasks.
    Broadcast,
    /// A list per subtask, split on rescaling.
    OperatorList,
    /// A list per subtask, given whole to all on rescaling.
    OperatorUnionList,
}

/// A named state of a node.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StateDeclaration {
    /// Unique within the node.
    pub name: String,
    /// Kind of state.
    pub kind: StateKind,
    /// Type of the value, of a list's element or of a map's value.
    pub value_type: String,
    /// Type of a map's key.
    pub map_key_type: Option<String>,
    /// Milliseconds that an entry is kept after it was written.
    pub time_to_live: Option<u64>,
    /// The operator takes all entries when event time ends.
    #[serde(default)]
    pub taken_at_end: bool,
}

/// One operator, source or sink.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamNode {
    /// Unique and above the ids of all inputs.
    pub id: u32,
    /// Shown to users.
    pub name: String,
    /// What the node does.
    pub operator: Operator,
    /// Stable name under which state is kept.
    pub uid: Option<String>,
    /// Operator id that overrides the generated one.
    pub uid_hash: Option<String>,
    /// Number of subtasks; none: the job's default.
    pub parallelism: Option<u32>,
    /// Number of key groups; none: derived.
    pub max_parallelism: Option<u32>,
    /// Group whose subtasks share slots.
    pub slot_sharing_group: Option<String>,
    /// Group whose subtasks of one index share a slot.
    pub co_location_group: Option<String>,
    /// How the node may be chained.
    pub chaining: ChainingStrategy,
    /// Milliseconds; 0: after each batch, -1: only when full; none: the job's default.
    pub buffer_timeout: Option<i64>,
    /// Type of the records of each input.
    pub input_types: Vec<String>,
    /// Type of the records of the main output; none for a sink.
    pub output_type: Option<String>,
    /// Type of the key, if the node keeps keyed state.
    pub key_type: Option<String>,
    /// Named states.
    pub states: Vec<StateDeclaration>,
    /// True if the node assigns timestamps and makes watermarks.
    pub generates_watermarks: bool,
}

/// A stream of records from one node to another.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamEdge {
    /// Id of the producing node.
    pub source: u32,
    /// Id of the consuming node.
    pub target: u32,
    /// Zero-based input of the target.
    pub input: u32,
    /// None: forward for equal parallelism, else rebalance.
    pub partitioner: Option<Partitioner>,
    /// Side output of the source; none: its main output.
    pub side_output: Option<String>,
    /// Key selector or custom partitioner within the plugin.
    pub selector: Option<u32>,
    /// Type of the records.
    pub record_type: String,
}

/// What `plan` declared.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct StreamGraph {
    /// Name given by the program.
    pub job_name: Option<String>,
    /// Default parallelism given by the program.
    pub parallelism: Option<u32>,
    /// Default max parallelism given by the program.
    pub max_parallelism: Option<u32>,
    /// Further settings given by the program, by configuration key.
    pub configuration: BTreeMap<String, String>,
    /// Nodes in ascending order of id.
    pub nodes: Vec<StreamNode>,
    /// Edges in the order in which the program made them.
    pub edges: Vec<StreamEdge>,
}
