//! The types of `wit/plugin.wit` as they cross the boundary, and what they become.
//!
//! Private to the module: everything else uses the types of `graph` and of
//! [`super::instance`].

use wasmtime::component::{ComponentType, Lift, Lower};

use super::{LogLevel, SegmentContext, SourceStatus, metrics::MetricKind};
use crate::{
    base::stream_element::BatchKind,
    connector::Verdict,
    graph::stream_graph::{
        self, ChainingStrategy, ConnectorSpec, Operator, Partitioner, StateDeclaration, StateKind, StreamEdge,
        StreamGraph, StreamNode,
    },
    state::TimeDomain,
};

/// The text of the contract, by which plugins are checked.
pub(crate) const WIT: &str = include_str!("../../../wit/plugin.wit");
/// Version of the contract that this engine provides.
pub(crate) const VERSION: &str = "0.1.0";
/// Name of the world.
pub(crate) const WORLD: &str = "plugin";
/// Interfaces that a plugin may import.
pub(crate) const IMPORTS: [&str; 7] = [
    // Only types; imported by whoever exports `program`.
    "engine:plugin/graph@0.1.0",
    "engine:plugin/output@0.1.0",
    "engine:plugin/logging@0.1.0",
    "engine:plugin/metrics@0.1.0",
    "engine:plugin/keyed-state@0.1.0",
    "engine:plugin/operator-state@0.1.0",
    "engine:plugin/timers@0.1.0",
];
/// Interfaces that a plugin exports, all of them and nothing else.
pub(crate) const EXPORTS: [&str; 2] = [PROGRAM, OPERATOR_CHAIN];
/// See the interface in `wit/plugin.wit`.
pub(crate) const PROGRAM: &str = "engine:plugin/program@0.1.0";
/// See the interface in `wit/plugin.wit`.
pub(crate) const OPERATOR_CHAIN: &str = "engine:plugin/operator-chain@0.1.0";

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct WitConnector {
    name: String,
    options: Vec<(String, String)>,
}

#[derive(ComponentType, Lift)]
#[component(variant)]
pub(crate) enum WitOperator {
    #[component(name = "source")]
    Source(WitConnector),
    #[component(name = "sink")]
    Sink(WitConnector),
    #[component(name = "guest")]
    Guest(String),
    #[component(name = "guest-source")]
    GuestSource(String),
}

#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitChainingStrategy {
    #[component(name = "always")]
    Always,
    #[component(name = "never")]
    Never,
    #[component(name = "head")]
    Head,
    #[component(name = "head-with-sources")]
    HeadWithSources,
}

#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitPartitioner {
    #[component(name = "forward")]
    Forward,
    #[component(name = "rebalance")]
    Rebalance,
    #[component(name = "rescale")]
    Rescale,
    #[component(name = "shuffle")]
    Shuffle,
    #[component(name = "broadcast")]
    Broadcast,
    #[component(name = "global")]
    Global,
    #[component(name = "hash")]
    Hash,
    #[component(name = "custom")]
    Custom,
}

#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitStateKind {
    #[component(name = "value")]
    Value,
    #[component(name = "list")]
    List,
    #[component(name = "map")]
    Map,
    #[component(name = "reducing")]
    Reducing,
    #[component(name = "aggregating")]
    Aggregating,
    #[component(name = "broadcast")]
    Broadcast,
    #[component(name = "operator-list")]
    OperatorList,
    #[component(name = "operator-union-list")]
    OperatorUnionList,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct WitStateDeclaration {
    name: String,
    kind: WitStateKind,
    #[component(name = "value-type")]
    value_type: String,
    #[component(name = "map-key-type")]
    map_key_type: Option<String>,
    #[component(name = "time-to-live")]
    time_to_live: Option<u64>,
    #[component(name = "taken-at-end")]
    taken_at_end: bool,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct WitStreamNode {
    id: u32,
    name: String,
    operator: WitOperator,
    uid: Option<String>,
    #[component(name = "uid-hash")]
    uid_hash: Option<String>,
    parallelism: Option<u32>,
    #[component(name = "max-parallelism")]
    max_parallelism: Option<u32>,
    #[component(name = "slot-sharing-group")]
    slot_sharing_group: Option<String>,
    #[component(name = "co-location-group")]
    co_location_group: Option<String>,
    chaining: WitChainingStrategy,
    #[component(name = "buffer-timeout")]
    buffer_timeout: Option<i64>,
    #[component(name = "input-types")]
    input_types: Vec<String>,
    #[component(name = "output-type")]
    output_type: Option<String>,
    #[component(name = "key-type")]
    key_type: Option<String>,
    states: Vec<WitStateDeclaration>,
    #[component(name = "generates-watermarks")]
    generates_watermarks: bool,
}

#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct WitStreamEdge {
    source: u32,
    target: u32,
    input: u32,
    partitioner: Option<WitPartitioner>,
    #[component(name = "side-output")]
    side_output: Option<String>,
    selector: Option<u32>,
    #[component(name = "record-type")]
    record_type: String,
}

/// What `plan` returns.
#[derive(ComponentType, Lift)]
#[component(record)]
pub(crate) struct WitStreamGraph {
    #[component(name = "job-name")]
    job_name: Option<String>,
    parallelism: Option<u32>,
    #[component(name = "max-parallelism")]
    max_parallelism: Option<u32>,
    configuration: Vec<(String, String)>,
    nodes: Vec<WitStreamNode>,
    edges: Vec<WitStreamEdge>,
}

impl From<WitConnector> for ConnectorSpec {
    fn from(connector: WitConnector) -> Self {
        Self { name: connector.name, options: connector.options.into_iter().collect() }
    }
}

impl From<WitOperator> for Operator {
    fn from(operator: WitOperator) -> Self {
        match operator {
            WitOperator::Source(connector) => Self::Source(connector.into()),
            WitOperator::Sink(connector) => Self::Sink(connector.into()),
            WitOperator::Guest(kind) => Self::Guest(kind),
            WitOperator::GuestSource(kind) => Self::GuestSource(kind),
        }
    }
}

impl From<WitChainingStrategy> for ChainingStrategy {
    fn from(strategy: WitChainingStrategy) -> Self {
        match strategy {
            WitChainingStrategy::Always => Self::Always,
            WitChainingStrategy::Never => Self::Never,
            WitChainingStrategy::Head => Self::Head,
            WitChainingStrategy::HeadWithSources => Self::HeadWithSources,
        }
    }
}

impl From<WitPartitioner> for Partitioner {
    fn from(partitioner: WitPartitioner) -> Self {
        match partitioner {
            WitPartitioner::Forward => Self::Forward,
            WitPartitioner::Rebalance => Self::Rebalance,
            WitPartitioner::Rescale => Self::Rescale,
            WitPartitioner::Shuffle => Self::Shuffle,
            WitPartitioner::Broadcast => Self::Broadcast,
            WitPartitioner::Global => Self::Global,
            WitPartitioner::Hash => Self::Hash,
            WitPartitioner::Custom => Self::Custom,
        }
    }
}

impl From<WitStateKind> for StateKind {
    fn from(kind: WitStateKind) -> Self {
        match kind {
            WitStateKind::Value => Self::Value,
            WitStateKind::List => Self::List,
            WitStateKind::Map => Self::Map,
            WitStateKind::Reducing => Self::Reducing,
            WitStateKind::Aggregating => Self::Aggregating,
            WitStateKind::Broadcast => Self::Broadcast,
            WitStateKind::OperatorList => Self::OperatorList,
            WitStateKind::OperatorUnionList => Self::OperatorUnionList,
        }
    }
}

impl From<WitStateDeclaration> for StateDeclaration {
    fn from(state: WitStateDeclaration) -> Self {
        Self {
            name: state.name,
            kind: state.kind.into(),
            value_type: state.value_type,
            map_key_type: state.map_key_type,
            time_to_live: state.time_to_live,
            taken_at_end: state.taken_at_end,
        }
    }
}

impl From<WitStreamNode> for StreamNode {
    fn from(node: WitStreamNode) -> Self {
        Self {
            id: node.id,
            name: node.name,
            operator: node.operator.into(),
            uid: node.uid,
            uid_hash: node.uid_hash,
            parallelism: node.parallelism,
            max_parallelism: node.max_parallelism,
            slot_sharing_group: node.slot_sharing_group,
            co_location_group: node.co_location_group,
            chaining: node.chaining.into(),
            buffer_timeout: node.buffer_timeout,
            input_types: node.input_types,
            output_type: node.output_type,
            key_type: node.key_type,
            states: node.states.into_iter().map(Into::into).collect(),
            generates_watermarks: node.generates_watermarks,
        }
    }
}

impl From<WitStreamEdge> for StreamEdge {
    fn from(edge: WitStreamEdge) -> Self {
        Self {
            source: edge.source,
            target: edge.target,
            input: edge.input,
            partitioner: edge.partitioner.map(Into::into),
            side_output: edge.side_output,
            selector: edge.selector,
            record_type: edge.record_type,
        }
    }
}

impl From<WitStreamGraph> for StreamGraph {
    fn from(graph: WitStreamGraph) -> Self {
        let mut nodes: Vec<stream_graph::StreamNode> = graph.nodes.into_iter().map(Into::into).collect();
        nodes.sort_by_key(|node| node.id);
        Self {
            job_name: graph.job_name,
            parallelism: graph.parallelism,
            max_parallelism: graph.max_parallelism,
            configuration: graph.configuration.into_iter().collect(),
            nodes,
            edges: graph.edges.into_iter().map(Into::into).collect(),
        }
    }
}

#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct WitSegmentOutput {
    node: u32,
    #[component(name = "side-output")]
    side_output: Option<String>,
    selector: Option<u32>,
    channels: u32,
}

/// What `open` takes.
#[derive(ComponentType, Lower)]
#[component(record)]
pub(crate) struct WitOperatorContext {
    #[component(name = "job-name")]
    job_name: String,
    #[component(name = "task-name")]
    task_name: String,
    #[component(name = "subtask-index")]
    subtask_index: u32,
    parallelism: u32,
    #[component(name = "max-parallelism")]
    max_parallelism: u32,
    attempt: u32,
    nodes: Vec<u32>,
    outputs: Vec<WitSegmentOutput>,
    restored: bool,
    #[component(name = "state-cache-bytes")]
    state_cache_bytes: u64,
    #[component(name = "state-value-bytes-max")]
    state_value_bytes_max: u64,
}

impl From<&SegmentContext> for WitOperatorContext {
    fn from(context: &SegmentContext) -> Self {
        Self {
            job_name: context.job_name.clone(),
            task_name: context.task_name.clone(),
            subtask_index: context.subtask_index,
            parallelism: context.parallelism,
            max_parallelism: context.max_parallelism,
            attempt: context.attempt,
            nodes: context.nodes.clone(),
            outputs: context
                .outputs
                .iter()
                .map(|output| WitSegmentOutput {
                    node: output.node,
                    side_output: output.side_output.clone(),
                    selector: output.selector,
                    channels: output.channels,
                })
                .collect(),
            restored: context.restored,
            state_cache_bytes: context.state_cache_bytes,
            state_value_bytes_max: context.state_value_bytes_max,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WitBatchKind {
    #[component(name = "rows")]
    Rows,
    #[component(name = "lines")]
    Lines,
}

impl From<BatchKind> for WitBatchKind {
    fn from(kind: BatchKind) -> Self {
        match kind {
            BatchKind::Rows => Self::Rows,
            BatchKind::Lines => Self::Lines,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WitTimeDomain {
    #[component(name = "event-time")]
    EventTime,
    #[component(name = "processing-time")]
    ProcessingTime,
}

impl From<TimeDomain> for WitTimeDomain {
    fn from(domain: TimeDomain) -> Self {
        match domain {
            TimeDomain::EventTime => Self::EventTime,
            TimeDomain::ProcessingTime => Self::ProcessingTime,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Debug, Eq, Lift, PartialEq)]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WitStatus {
    #[component(name = "ok")]
    Ok,
    #[component(name = "failed")]
    Failed,
}

#[derive(Clone, Copy, Debug, ComponentType, Eq, Lift, PartialEq)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitTakeStatus {
    #[component(name = "more")]
    More,
    #[component(name = "all")]
    All,
    #[component(name = "failed")]
    Failed,
}

#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitSourceStatus {
    #[component(name = "more")]
    More,
    #[component(name = "idle")]
    Idle,
    #[component(name = "end")]
    End,
    #[component(name = "failed")]
    Failed,
}

impl WitSourceStatus {
    /// None if the source failed.
    pub(crate) fn status(self) -> Option<SourceStatus> {
        match self {
            Self::More => Some(SourceStatus::More),
            Self::Idle => Some(SourceStatus::Idle),
            Self::End => Some(SourceStatus::End),
            Self::Failed => None,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Lower)]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WitVerdict {
    #[component(name = "skip")]
    Skip,
    #[component(name = "fail")]
    Fail,
}

impl From<Verdict> for WitVerdict {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict::Skip => Self::Skip,
            Verdict::Fail => Self::Fail,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Lift, Lower)]
#[component(enum)]
#[repr(u8)]
pub(crate) enum WitLevel {
    #[component(name = "trace")]
    Trace,
    #[component(name = "debug")]
    Debug,
    #[component(name = "info")]
    Info,
    #[component(name = "warn")]
    Warn,
    #[component(name = "error")]
    Error,
}

impl From<WitLevel> for LogLevel {
    fn from(level: WitLevel) -> Self {
        match level {
            WitLevel::Trace => Self::Trace,
            WitLevel::Debug => Self::Debug,
            WitLevel::Info => Self::Info,
            WitLevel::Warn => Self::Warn,
            WitLevel::Error => Self::Error,
        }
    }
}

impl From<LogLevel> for WitLevel {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Trace => Self::Trace,
            LogLevel::Debug => Self::Debug,
            LogLevel::Info => Self::Info,
            LogLevel::Warn => Self::Warn,
            LogLevel::Error => Self::Error,
        }
    }
}

#[derive(Clone, Copy, ComponentType, Lift)]
#[component(enum)]
#[repr(u8)]
#[expect(dead_code, reason = "made only when lifted")]
pub(crate) enum WitMetricKind {
    #[component(name = "counter")]
    Counter,
    #[component(name = "gauge")]
    Gauge,
    #[component(name = "histogram")]
    Histogram,
}

impl From<WitMetricKind> for MetricKind {
    fn from(kind: WitMetricKind) -> Self {
        match kind {
            WitMetricKind::Counter => Self::Counter,
            WitMetricKind::Gauge => Self::Gauge,
            WitMetricKind::Histogram => Self::Histogram,
        }
    }
}
