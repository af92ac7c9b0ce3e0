//! What can be wrong with a graph, and the list of all of it.
//!
//! Words of the program are quoted with control characters escaped and cut, since
//! they are printed on terminals.

use std::fmt;

use engine_rows::descriptor::ParseDescriptorError;

use super::stream_graph::{Partitioner, StreamEdge, StreamNode};
use crate::base::{config::ConfigError, ids::OperatorId, key_group::MAX_PARALLELISM_LIMIT};

/// Errors that are kept; those above are counted.
pub const ERRORS_MAX: usize = 100;
/// Characters of the program's words in a message.
const QUOTED_CHARS_MAX: usize = 80;

/// A node in a message: `node 3 ("map")`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeName {
    /// As declared.
    pub id: u32,
    /// As declared.
    pub name: String,
}

impl From<&StreamNode> for NodeName {
    fn from(node: &StreamNode) -> Self {
        Self { id: node.id, name: cut(&node.name) }
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "node {} ({})", self.id, quoted(&self.name))
    }
}

/// An edge in a message: `the edge from node 1 to input 0 of node 2`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EdgeName {
    /// Id of the producing node.
    pub from: u32,
    /// Id of the consuming node.
    pub to: u32,
    /// Zero-based input.
    pub input: u32,
}

impl From<&StreamEdge> for EdgeName {
    fn from(edge: &StreamEdge) -> Self {
        Self { from: edge.source, to: edge.target, input: edge.input }
    }
}

impl fmt::Display for EdgeName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "the edge from node {} to input {} of node {}", self.from, self.input, self.to)
    }
}

/// As much of a text as messages show. Texts of a program may be as long as its
/// memory allows, and may be part of many errors.
pub(super) fn cut(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX + 1).collect()
}

/// The text in quotation marks, escaped and cut.
pub(super) fn quoted(text: &str) -> String {
    let escaped = text.chars().take(QUOTED_CHARS_MAX).collect::<String>().escape_debug().to_string();
    let cut = if text.chars().nth(QUOTED_CHARS_MAX).is_some() { "…" } else { "" };
    format!("\"{escaped}{cut}\"")
}

/// One thing that is wrong with a graph. All are the author's or the submitter's to mend.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[expect(missing_docs, reason = "each message says what its fields are")]
pub enum GraphError {
    /// There is nothing to run.
    #[error("the program declares no operator: sources alone do nothing, connect them to an operator or a sink")]
    NoOperator,
    /// Refused rows are to be put aside, but nothing says where.
    #[error(
        "execution.row-errors.policy is dead-letter, but nothing says where: set execution.row-errors.dead-letter.dir \
         to a directory"
    )]
    NoDeadLetterDirectory,
    /// A limit on a number was passed.
    #[error("{count} {what}: at most {max} are allowed")]
    TooMany { what: String, count: u64, max: u64 },
    /// A limit on a length was passed.
    #[error("{subject} has a {what} of {bytes} bytes: at most {max} are allowed")]
    TooLong { subject: String, what: &'static str, bytes: usize, max: usize },
    /// A name cannot be printed.
    #[error("{subject} has control characters in its {what} {}", quoted(.text))]
    ControlCharacters { subject: String, what: &'static str, text: String },
    /// A required text is empty.
    #[error("{subject} has an empty {what}")]
    Empty { subject: String, what: &'static str },
    /// The program set what only the submitter may set.
    #[error(
        "the program sets {}, which only its submitter may set: with -D {key}=VALUE, or in the configuration file",
        quoted(.key)
    )]
    ForbiddenSetting { key: String },
    /// A setting that cannot be.
    #[error("{0}")]
    Setting(ConfigError),
    /// Ids count from 1.
    #[error("{node} has the id 0: ids are counted from 1")]
    ZeroId { node: NodeName },
    /// Two nodes with one id.
    #[error("nodes {} and {} have the same id {id}", quoted(.first), quoted(.second))]
    DuplicateId { id: u32, first: String, second: String },
    /// Two nodes with one uid or uid hash.
    #[error("{first} and {second} have the same {what} {}: choose another one", quoted(.text))]
    DuplicateUid { what: &'static str, text: String, first: NodeName, second: NodeName },
    /// Two operators would keep their state under one id.
    #[error("{first} and {second} have the same operator id {id}: give one of them another uid")]
    DuplicateOperatorId { id: OperatorId, first: NodeName, second: NodeName },
    /// A uid hash of another form.
    #[error("{node} has the uid hash {}: expected 32 hexadecimal digits", quoted(.uid_hash))]
    UidHashFormat { node: NodeName, uid_hash: String },
    /// `pipeline.auto-generate-uids` is false.
    #[error("{node} has no uid: pipeline.auto-generate-uids is false, so call uid() on each operator")]
    MissingUid { node: NodeName },
    /// A parallelism that cannot be.
    #[error("{subject} is {parallelism}: expected 1 to {MAX_PARALLELISM_LIMIT}")]
    ParallelismOutOfBounds { subject: String, parallelism: u32 },
    /// More subtasks than key groups.
    #[error("{node} has parallelism {parallelism}, which is above its max parallelism {max_parallelism}")]
    ParallelismAboveMax { node: NodeName, parallelism: u32, max_parallelism: u32 },
    /// A buffer timeout that cannot be.
    #[error("{node} has the buffer timeout {milliseconds} ms: expected -1 (only when full), 0 or more")]
    BufferTimeout { node: NodeName, milliseconds: i64 },
    /// Text is not a type.
    #[error("{subject} has the {what} {}, which is {cause}", quoted(.text))]
    TypeDescriptor { subject: String, what: String, text: String, cause: ParseDescriptorError },
    /// Two states with one name.
    #[error("{node} declares the state {} twice", quoted(.state))]
    DuplicateState { node: NodeName, state: String },
    /// Only maps have map keys, and they need one.
    #[error("{node} declares the state {} {problem}", quoted(.state))]
    MapKeyType { node: NodeName, state: String, problem: &'static str },
    /// Lists and maps may be too long to be handed over whole.
    #[error("{node} takes the state {} at the end, which is no value", quoted(.state))]
    TakenAtEnd { node: NodeName, state: String },
    /// Keyed state needs a key.
    #[error("{node} declares the keyed state {}, but has no key type", quoted(.state))]
    StateWithoutKey { node: NodeName, state: String },
    /// A source that reads.
    #[error("{node} is a source, but has inputs")]
    SourceWithInput { node: NodeName },
    /// A source of nothing.
    #[error("{node} is a source, but has no output type")]
    SourceWithoutOutput { node: NodeName },
    /// A sink that emits.
    #[error("{node} is a sink, but has an output")]
    SinkWithOutput { node: NodeName },
    /// An operator that is never run.
    #[error("{node} has no input")]
    NoInput { node: NodeName },
    /// An input that nothing arrives at.
    #[error("no edge leads to input {input} of {node}")]
    UnconnectedInput { node: NodeName, input: usize },
    /// An edge from or to nowhere.
    #[error("{edge}: there is no node {missing}")]
    DanglingEdge { edge: EdgeName, missing: u32 },
    /// Iterations do not exist.
    #[error("the graph has a cycle: {}; iterations are not supported", cycle(.nodes))]
    Cycle { nodes: Vec<NodeName> },
    /// Ids are not in topological order.
    #[error("{edge}: the id of a node must be above those of its inputs")]
    IdNotAboveInput { edge: EdgeName },
    /// An input that the target does not have.
    #[error("{edge}: {to} has {inputs} inputs")]
    UnknownInput { edge: EdgeName, to: NodeName, inputs: usize },
    /// The source of the edge emits nothing.
    #[error("{edge}: {from} has no main output")]
    NoOutput { edge: EdgeName, from: NodeName },
    /// The consumer expects something else.
    #[error("{edge} carries {}, but the input takes {}", quoted(.record_type), quoted(.input_type))]
    InputType { edge: EdgeName, record_type: String, input_type: String },
    /// The producer emits something else.
    #[error("{edge} carries {}, but {from} emits {}", quoted(.record_type), quoted(.output_type))]
    OutputType { edge: EdgeName, from: NodeName, record_type: String, output_type: String },
    /// A native connector cannot run code of the plugin.
    #[error("{edge}: {from} is native and cannot apply {what}, put an operator of the plugin between")]
    NativeProducer { edge: EdgeName, from: NodeName, what: &'static str },
    /// Rows would have no key hash or channel.
    #[error("{edge}: the partitioner {partitioner} needs a selector")]
    MissingSelector { edge: EdgeName, partitioner: Partitioner },
    /// Forward connects subtasks of one index.
    #[error(
        "{edge}: forward partitioning does not allow a change of parallelism, but {from} has parallelism \
         {from_parallelism} and {to} has {to_parallelism}: set them equal, or use rebalance or rescale"
    )]
    ForwardParallelism { edge: EdgeName, from: NodeName, from_parallelism: u32, to: NodeName, to_parallelism: u32 },
    /// Subtasks that share a slot must be allowed to.
    #[error(
        "{first} and {second} have the co-location group {}, but different slot sharing groups {} and {}",
        quoted(.group), quoted(.first_slot_sharing_group), quoted(.second_slot_sharing_group)
    )]
    CoLocationAcrossSlots {
        group: String,
        first: NodeName,
        first_slot_sharing_group: String,
        second: NodeName,
        second_slot_sharing_group: String,
    },
    /// A task can belong to one group only.
    #[error(
        "{first} and {second} are chained, but have different co-location groups {} and {}: call start_new_chain \
         on the second",
        quoted(.first_group), quoted(.second_group)
    )]
    CoLocationWithinChain { first: NodeName, first_group: String, second: NodeName, second_group: String },
    /// A vertex of a JobGraph is not what the generator makes.
    #[error("vertex {vertex}: {problem}")]
    Vertex { vertex: String, problem: String },
    /// Some part of a JobGraph is not what the generator makes.
    #[error("the job graph's {part} {problem}")]
    JobGraph { part: &'static str, problem: &'static str },
}

fn cycle(nodes: &[NodeName]) -> String {
    let names: Vec<_> = nodes.iter().chain(nodes.first()).map(ToString::to_string).collect();
    names.join(" -> ")
}

/// All that is wrong with a graph; never empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct InvalidGraph {
    errors: Vec<GraphError>,
    omitted: usize,
}

impl InvalidGraph {
    /// The errors, at most [`ERRORS_MAX`].
    pub fn errors(&self) -> &[GraphError] {
        &self.errors
    }

    /// How many more there are.
    pub fn omitted(&self) -> usize {
        self.omitted
    }
}

impl From<GraphError> for InvalidGraph {
    fn from(error: GraphError) -> Self {
        Self { errors: vec![error], omitted: 0 }
    }
}

/// One error in one line; several as a list, a line each.
impl fmt::Display for InvalidGraph {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let ([error], 0) = (self.errors.as_slice(), self.omitted) {
            return write!(formatter, "{error}");
        }
        write!(formatter, "the graph has {} errors:", self.errors.len() + self.omitted)?;
        for error in &self.errors {
            write!(formatter, "\n- {error}")?;
        }
        match self.omitted {
            0 => Ok(()),
            omitted => write!(formatter, "\n- and {omitted} more"),
        }
    }
}

impl std::error::Error for InvalidGraph {}

/// Collects errors.
#[derive(Debug, Default)]
pub(super) struct Errors {
    errors: Vec<GraphError>,
    omitted: usize,
}

impl Errors {
    pub(super) fn push(&mut self, error: GraphError) {
        match self.errors.len() < ERRORS_MAX {
            true => self.errors.push(error),
            false => self.omitted += 1,
        }
    }

    /// Succeeds if there are none.
    pub(super) fn check(self) -> Result<(), InvalidGraph> {
        match self.errors.is_empty() {
            true => Ok(()),
            false => Err(InvalidGraph { errors: self.errors, omitted: self.omitted }),
        }
    }
}
