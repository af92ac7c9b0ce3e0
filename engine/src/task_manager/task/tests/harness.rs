//! Jobs built by hand: vertices, wiring and a JobMaster of a few lines, with
//! sources and sinks in memory and operators in Rust instead of a plugin.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    sync::{Arc, Mutex},
    time::Duration,
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, TrySendError, bounded};
use engine_rows::{
    key_hash::key_hash,
    row::{self, NO_TIMESTAMP, Row, Rows},
};

use super::super::*;
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, Origin},
        ids::{
            AllocationId, ExecutionGraphId, ExecutionVertexId, GraphDigest, IntermediateDataSetId,
            IntermediateResultPartitionId, JobId, JobVertexId, OperatorId, ResultPartitionId,
        },
        stream_element::{BatchKind, CheckpointId, RecordBatch, WatermarkStatus},
    },
    connector::{
        Committable, ConnectorError, ReaderContext, ReaderOutput, SinkWriter, SourceReader, SourceSplit,
        SplitAssignment, SplitChange, SplitEnumerator, WriterContext,
    },
    graph::{
        job_graph::{
            ChainedOperator, DistributionPattern, Grants, IntermediateDataSet, JobEdge, JobGraph, ProgramSpec,
        },
        stream_graph::{
            ChainingStrategy, ConnectorSpec, Operator, Partitioner, StateDeclaration, StateKind, StreamEdge, StreamNode,
        },
    },
    protocol::{
        job_master::SplitRequest,
        task_executor::{InputChannelDeployment, InputGateDeployment, ResultPartitionDeployment},
    },
    state::{KeyedState, KeyedStateContext, StateUsage, TimeDomain},
    task_manager::operator::{GuestSegment, OpenSegment, Outputs, Plugin},
    wasm::{
        CancelFlag, EmitTarget, EntryPoint, GuestError, GuestFailure, MetricSnapshot, SegmentContext, SegmentSnapshot,
        SourceStatus,
    },
};

/// Longest time that a test waits for anything; only a failing test takes it.
pub const DEADLINE: Duration = Duration::from_secs(30);

/// The one plugin of these jobs.
pub const PLUGIN: BlobDigest = BlobDigest::from_bytes([9; 32]);

/// An operator in a test's graph.
#[derive(Clone, Debug)]
pub struct TestNode {
    pub id: u32,
    pub operator: Operator,
    pub inputs: usize,
    pub parallelism: u32,
    pub generates_watermarks: bool,
}

/// An edge in a test's graph.
#[derive(Clone, Debug)]
pub struct TestEdge {
    pub source: u32,
    pub target: u32,
    pub input: u32,
    /// None: chained.
    pub partitioner: Option<Partitioner>,
    pub buffer_timeout: i64,
}

pub fn source(id: u32, parallelism: u32, name: &str) -> TestNode {
    TestNode { id, operator: Operator::Source(connector(name)), inputs: 0, parallelism, generates_watermarks: false }
}

pub fn sink(id: u32, parallelism: u32) -> TestNode {
    TestNode { id, operator: Operator::Sink(connector("collect")), inputs: 1, parallelism, generates_watermarks: false }
}

pub fn guest(id: u32, parallelism: u32) -> TestNode {
    TestNode { id, operator: Operator::Guest("Map".into()), inputs: 1, parallelism, generates_watermarks: false }
}

/// An operator whose watermark is the number of rows that it has got.
pub fn watermarks(id: u32, parallelism: u32) -> TestNode {
    TestNode { generates_watermarks: true, ..guest(id, parallelism) }
}

pub fn connector(name: &str) -> ConnectorSpec {
    ConnectorSpec { name: name.to_owned(), options: BTreeMap::new() }
}

pub fn edge(source: u32, target: u32, partitioner: Partitioner) -> TestEdge {
    TestEdge { source, target, input: 0, partitioner: Some(partitioner), buffer_timeout: 100 }
}

pub fn chained(source: u32, target: u32) -> TestEdge {
    TestEdge { source, target, input: 0, partitioner: None, buffer_timeout: 100 }
}

fn vertex_id(node: u32) -> JobVertexId {
    let mut bytes = [0; 16];
    bytes[..4].copy_from_slice(&node.to_le_bytes());
    JobVertexId::from_bytes(bytes)
}

fn data_set_id(edge: usize) -> IntermediateDataSetId {
    let mut bytes = [1; 16];
    bytes[..8].copy_from_slice(&edge.to_le_bytes());
    IntermediateDataSetId::from_bytes(bytes)
}

fn stream_node(node: &TestNode) -> StreamNode {
    StreamNode {
        id: node.id,
        name: format!("op{}", node.id),
        operator: node.operator.clone(),
        uid: None,
        uid_hash: None,
        parallelism: Some(node.parallelism),
        max_parallelism: None,
        slot_sharing_group: None,
        co_location_group: None,
        chaining: ChainingStrategy::Always,
        buffer_timeout: None,
        input_types: vec!["bytes".into(); node.inputs],
        output_type: Some("bytes".into()),
        key_type: matches!(&node.operator, Operator::Guest(kind) if kind != "Counts").then(|| "bytes".into()),
        states: match &node.operator {
            Operator::Guest(kind) if kind == "Counts" => vec![state(COUNTS, StateKind::OperatorList)],
            Operator::Guest(kind) if kind == "Taken" => {
                vec![StateDeclaration { taken_at_end: true, ..state("taken", StateKind::Value) }]
            }
            _ => Vec::new(),
        },
        generates_watermarks: node.generates_watermarks,
    }
}

fn state(name: &str, kind: StateKind) -> StateDeclaration {
    StateDeclaration {
        name: name.to_owned(),
        kind,
        value_type: "bytes".to_owned(),
        map_key_type: None,
        time_to_live: None,
        taken_at_end: false,
    }
}

fn stream_edge(edge: &TestEdge) -> StreamEdge {
    StreamEdge {
        source: edge.source,
        target: edge.target,
        input: edge.input,
        partitioner: edge.partitioner,
        side_output: None,
        // Rows of hash and custom edges differ from the others in their header.
        selector: match edge.partitioner {
            Some(Partitioner::Hash) => Some(1),
            Some(Partitioner::Custom) => Some(2),
            _ => None,
        },
        record_type: "bytes".into(),
    }
}

fn pattern(partitioner: Partitioner) -> DistributionPattern {
    match partitioner {
        Partitioner::Forward | Partitioner::Rescale => DistributionPattern::Pointwise,
        _ => DistributionPattern::AllToAll,
    }
}

/// Consumer subtasks of each partition, in the order of its subpartitions.
pub fn consumers(pattern: DistributionPattern, producers: u32, consumers: u32) -> Vec<Vec<u32>> {
    match pattern {
        DistributionPattern::AllToAll => vec![(0..consumers).collect(); producers as usize],
        DistributionPattern::Pointwise if consumers <= producers => {
            let mut of = vec![Vec::new(); producers as usize];
            for consumer in 0..consumers {
                for producer in consumer * producers / consumers..(consumer + 1) * producers / consumers {
                    of[producer as usize].push(consumer);
                }
            }
            of
        }
        DistributionPattern::Pointwise => (0..producers)
            .map(|producer| {
                ((producer * consumers).div_ceil(producers)..((producer + 1) * consumers).div_ceil(producers)).collect()
            })
            .collect(),
    }
}

/// A job and the deployments of all its tasks.
pub struct TestJob {
    pub info: JobInformation,
    pub deployments: Vec<TaskDeployment>,
}

impl TestJob {
    /// Makes vertices of chained operators and wires their subtasks.
    pub fn new(nodes: &[TestNode], edges: &[TestEdge], settings: &[(&str, &str)]) -> Self {
        let timed = edges.iter().map(|edge| (stream_edge(edge), edge.buffer_timeout)).collect::<Vec<_>>();
        Self::of_graph(&nodes.iter().map(stream_node).collect::<Vec<_>>(), &timed, settings)
    }

    /// The same for nodes with their parallelism set, and edges with their buffer
    /// timeouts. An edge without partitioner is chained.
    pub fn of_graph(nodes: &[StreamNode], edges: &[(StreamEdge, i64)], settings: &[(&str, &str)]) -> Self {
        let mut configuration = Configuration::default();
        for (key, value) in settings {
            configuration.set(key, value, Origin::Dynamic).unwrap();
        }
        let mut head_of: BTreeMap<u32, u32> = BTreeMap::new();
        for node in nodes {
            let before = edges.iter().find(|(edge, _)| edge.target == node.id && edge.partitioner.is_none());
            let head = before.map_or(node.id, |(edge, _)| head_of[&edge.source]);
            head_of.insert(node.id, head);
        }
        let heads = nodes.iter().filter(|node| head_of[&node.id] == node.id);
        let vertices = heads.map(|head| vertex(head, nodes, edges, &head_of)).collect::<Vec<_>>();
        let program = ProgramSpec {
            plugin: PLUGIN,
            plugin_name: "test.wasm".into(),
            args: Vec::new(),
            graph_digest: GraphDigest::from_bytes([0; 32]),
        };
        Self::of_job_graph(JobGraph {
            job_id: JobId::random(),
            name: "test".into(),
            vertices,
            configuration,
            program,
            grants: Grants::default(),
            artifacts: Vec::new(),
            json_plan: String::new(),
        })
    }

    /// Wires the subtasks of a job graph.
    pub fn of_job_graph(job_graph: JobGraph) -> Self {
        let JobGraph { job_id: job, name, vertices, configuration, program, grants, artifacts, .. } = job_graph;
        let graph = ExecutionGraphId::random();
        let attempt = |vertex: &JobVertex, subtask_index| ExecutionAttemptId {
            graph,
            execution_vertex: ExecutionVertexId { vertex: vertex.id, subtask_index },
            attempt_number: 0,
        };
        let mut deployments = Vec::new();
        for vertex in &vertices {
            for subtask in 0..vertex.parallelism {
                let find = |id: JobVertexId| vertices.iter().find(|vertex| vertex.id == id).unwrap();
                let partition_id = |vertex: &JobVertex, data_set: IntermediateDataSetId, index| ResultPartitionId {
                    partition: IntermediateResultPartitionId { data_set, partition_index: index },
                    producer: attempt(vertex, index),
                };
                let partitions = vertex.outputs.iter().map(|output| {
                    let consumer = find(output.consumer);
                    let wiring = consumers(output.pattern, vertex.parallelism, consumer.parallelism);
                    ResultPartitionDeployment {
                        partition: partition_id(vertex, output.id, subtask),
                        subpartitions: u32::try_from(wiring[subtask as usize].len()).unwrap(),
                        consumer_max_parallelism: consumer.max_parallelism,
                    }
                });
                let gates = vertex.inputs.iter().map(|input| {
                    let producer = find(input.producer);
                    let wiring = consumers(input.pattern, producer.parallelism, vertex.parallelism);
                    let mut channels = Vec::new();
                    for (index, of) in (0_u32..).zip(&wiring) {
                        if !of.contains(&subtask) {
                            continue;
                        }
                        let subpartition = match input.pattern {
                            DistributionPattern::AllToAll => subtask,
                            DistributionPattern::Pointwise => subtask % u32::try_from(of.len()).unwrap(),
                        };
                        let partition = partition_id(producer, input.source, index);
                        channels.push(InputChannelDeployment { partition, subpartition });
                    }
                    InputGateDeployment { data_set: input.source, channels }
                });
                deployments.push(TaskDeployment {
                    restore: None,
                    job,
                    attempt: attempt(vertex, subtask),
                    vertex: vertex.id,
                    allocation: AllocationId::random(),
                    partitions: partitions.collect(),
                    gates: gates.collect(),
                });
            }
        }
        let info = JobInformation { job, job_name: name, configuration, program, grants, artifacts, vertices };
        Self { info, deployments }
    }
}

fn vertex(
    head: &StreamNode,
    nodes: &[StreamNode],
    edges: &[(StreamEdge, i64)],
    head_of: &BTreeMap<u32, u32>,
) -> JobVertex {
    let members: HashSet<u32> = nodes.iter().map(|node| node.id).filter(|id| head_of[id] == head.id).collect();
    let operators = nodes.iter().filter(|node| members.contains(&node.id)).map(|node| ChainedOperator {
        node: node.clone(),
        operator_id: OperatorId::from_bytes([0; 16]),
        user_defined_id: None,
        plugin: node.operator.is_guest().then_some(PLUGIN),
        managed_memory_fraction: 0.0,
    });
    let operators: Vec<_> = operators.collect();
    let names: Vec<_> = operators.iter().map(|operator| operator.node.name.as_str()).collect();
    let dealt = |(index, (edge, timeout)): (usize, &(StreamEdge, i64))| {
        edge.partitioner.map(|partitioner| (data_set_id(index), edge.clone(), *timeout, partitioner))
    };
    let dealt: Vec<_> = edges.iter().enumerate().filter_map(dealt).collect();
    let inputs = dealt.iter().filter(|(_, edge, ..)| members.contains(&edge.target));
    let inputs = inputs.map(|(id, edge, _, partitioner)| JobEdge {
        source: *id,
        producer: vertex_id(head_of[&edge.source]),
        partitioner: *partitioner,
        pattern: pattern(*partitioner),
        target_node: edge.target,
        input: edge.input,
    });
    let outputs = dealt.iter().filter(|(_, edge, ..)| members.contains(&edge.source));
    let outputs = outputs.map(|(id, edge, buffer_timeout, partitioner)| IntermediateDataSet {
        id: *id,
        edge: edge.clone(),
        partitioner: *partitioner,
        pattern: pattern(*partitioner),
        consumer: vertex_id(head_of[&edge.target]),
        buffer_timeout: *buffer_timeout,
    });
    let chained = edges.iter().map(|(edge, _)| edge);
    let chained = chained.filter(|edge| edge.partitioner.is_none() && members.contains(&edge.source));
    JobVertex {
        id: vertex_id(head.id),
        name: names.join(" -> "),
        parallelism: head.parallelism.unwrap(),
        max_parallelism: 128,
        max_parallelism_configured: false,
        chained_edges: chained.cloned().collect(),
        inputs: inputs.collect(),
        outputs: outputs.collect(),
        operators,
        slot_sharing_group: "default".into(),
        co_location_group: None,
        resources: None,
    }
}

/// What a guest operator makes of a row: node, input, payload.
pub type Function = Arc<dyn Fn(u32, u32, &[u8]) -> Result<Vec<Vec<u8>>, GuestFailure> + Send + Sync>;

/// A call that a segment got.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Call {
    Open,
    /// Number of timers.
    FireTimers(TimeDomain, Timestamp, u32),
    /// Number of entries.
    TakeState(u32),
    Watermark(Timestamp),
    Status(WatermarkStatus),
    BeginSplit(u32),
    EndSplit(u32),
    ProcessingTime,
    Snapshot(CheckpointId),
    Complete(CheckpointId),
    Aborted(CheckpointId),
    EndInput(u32),
    Close,
}

/// Why an operator registers timers.
pub enum Cause<'a> {
    Row(&'a [u8]),
    Timer(i64),
}

/// The timers that the first operator of a segment registers, all for one empty key.
pub type Registers = Arc<dyn Fn(Cause<'_>) -> Vec<(TimeDomain, i64)> + Send + Sync>;

/// Bytes of a fired timer with an empty key and namespace.
const TIMER_BYTES: usize = 16;

/// Calls by segment's first node and subtask.
pub type Calls = Arc<Mutex<BTreeMap<(u32, u32), Vec<Call>>>>;

/// Name of the operator state in which "counts" keeps what it has counted.
pub const COUNTS: &str = "counts";

/// An operator that keeps rows in keyed state and emits each once when event time ends.
pub fn taken(id: u32, parallelism: u32) -> TestNode {
    TestNode { operator: Operator::Guest("Taken".into()), ..guest(id, parallelism) }
}

/// An operator that counts equal rows, over both its inputs, and appends the count to each.
pub fn counts(id: u32, parallelism: u32) -> TestNode {
    TestNode { operator: Operator::Guest("Counts".into()), inputs: 2, ..guest(id, parallelism) }
}

/// An empty namespace and a value, each behind its length.
const KEPT: &[u8] = b"\0\0\0\0\x04\0\0\0kept";

/// Operators in Rust that run as a plugin's would.
#[derive(Clone)]
pub struct TestPlugin {
    pub edges: Vec<StreamEdge>,
    pub function: Function,
    pub registers: Registers,
    pub calls: Calls,
}

struct TestSegment {
    plugin: TestPlugin,
    state: KeyedState,
    context: SegmentContext,
    outputs: Outputs,
    cancel: CancelFlag,
    polls: u32,
    rows: i64,
    split: Option<u32>,
    /// True if rows are kept until they are taken at the end, each once.
    takes_rows: bool,
    /// How often rows came, of an operator that counts.
    counts: Option<BTreeMap<Vec<u8>, u64>>,
}

impl Plugin for TestPlugin {
    fn open(&self, request: OpenSegment<'_>) -> Result<Box<dyn GuestSegment>, GuestError> {
        let SegmentContext { subtask_index, parallelism, max_parallelism, .. } = *request.context;
        let mut state = KeyedState::new(KeyedStateContext {
            operator: request.context.operator.clone(),
            is_keyed: true,
            states: request.context.states.clone(),
            subtask_index,
            parallelism,
            max_parallelism,
            bytes_max: 1 << 20,
            value_bytes_max: 1 << 10,
            timers_max: 100_000,
            result_bytes_max: 0,
        });
        for restored in request.restore.key_groups {
            let restored = restored.expect("readable");
            state.restore(restored.key_group, &restored.content, &restored.states, Timestamp::MIN).unwrap();
        }
        if request.restore.is_incremental {
            state.track_changes();
            state.build_upon(&request.restore.part_bytes);
        }
        let segment = TestSegment {
            plugin: self.clone(),
            state,
            context: request.context.clone(),
            outputs: request.outputs,
            cancel: request.cancel,
            polls: 0,
            rows: 0,
            split: None,
            takes_rows: request.context.states.iter().any(|state| state.taken_at_end),
            counts: request.context.states.iter().any(|state| state.shape.is_none()).then(|| {
                let kept = request.restore.lists.get(&0).into_iter().flatten();
                let kept = kept.map(|element| element.split_first_chunk::<8>().unwrap());
                kept.map(|(count, row)| (row.to_vec(), u64::from_le_bytes(*count))).collect()
            }),
        };
        segment.note(Call::Open);
        Ok(Box::new(segment))
    }
}

impl TestSegment {
    fn list_elements(&self) -> BTreeMap<usize, Vec<Vec<u8>>> {
        let elements = |counts: &BTreeMap<Vec<u8>, u64>| {
            counts.iter().map(|(row, count)| [&count.to_le_bytes()[..], row].concat()).collect()
        };
        self.counts.iter().map(|counts| (0, elements(counts))).collect()
    }

    fn note(&self, call: Call) {
        let key = (self.context.nodes[0], self.context.subtask_index);
        self.plugin.calls.lock().unwrap().entry(key).or_default().push(call);
    }

    fn register_timers(&mut self, cause: Cause<'_>) {
        for (domain, timestamp) in (self.plugin.registers)(cause) {
            let mut timer = vec![u8::from(domain == TimeDomain::ProcessingTime)];
            timer.extend_from_slice(&timestamp.to_le_bytes());
            timer.extend_from_slice(&[0; TIMER_BYTES - 8]);
            self.state.register_timers(1, &timer, &|| true).unwrap();
        }
    }

    fn keep(&mut self, payload: &[u8]) {
        let entry = [&u32::try_from(payload.len()).unwrap().to_le_bytes(), payload, KEPT].concat();
        self.state.put_many(0, 1, &entry, Timestamp(0), &|| true).unwrap();
    }

    fn error(&self, failure: GuestFailure, node: u32, row: u32, message: &str) -> GuestError {
        GuestError {
            failure,
            plugin: "test.wasm".into(),
            entry_point: EntryPoint::ProcessBatch,
            node: Some(node),
            row: Some(row),
            message: message.to_owned(),
            backtrace: vec!["inner".into(), "outer".into()],
        }
    }

    fn process_row(&mut self, node: u32, input: u32, row: u32, payload: &[u8]) -> Result<(), GuestError> {
        let made = match (self.plugin.function)(node, input, payload) {
            Ok(made) => made,
            Err(GuestFailure::UserError) => match self.outputs.reject_row(node, Some(row), "refused", payload) {
                crate::connector::Verdict::Skip => return Ok(()),
                crate::connector::Verdict::Fail => {
                    return Err(self.error(GuestFailure::UserError, node, row, "refused"));
                }
            },
            Err(GuestFailure::Canceled) => {
                // Stands for a loop without an end, which only the flag stops.
                while !self.cancel.is_canceled() {
                    std::thread::yield_now();
                }
                return Err(self.error(GuestFailure::Canceled, node, row, "cancelled"));
            }
            Err(failure) => return Err(self.error(failure, node, row, "failed on purpose")),
        };
        for mut payload in made {
            if let Some(counts) = &mut self.counts {
                let count = counts.entry(payload.clone()).or_default();
                *count += 1;
                payload.extend_from_slice(&count.to_le_bytes());
            }
            self.emit(node, row, &payload)?;
            let next = self.plugin.edges.iter().filter(|edge| edge.source == node && edge.partitioner.is_none());
            let next = next.map(|edge| edge.target).filter(|target| self.context.nodes.contains(target));
            for target in next.collect::<Vec<_>>() {
                self.process_row(target, 0, row, &payload)?;
            }
        }
        Ok(())
    }

    fn emit(&mut self, node: u32, row: u32, payload: &[u8]) -> Result<(), GuestError> {
        for index in 0..self.context.outputs.len() {
            let exit = &self.context.outputs[index];
            if exit.node != node {
                continue;
            }
            let key_hash = match exit.selector {
                Some(1) => key_hash(payload),
                Some(_) => key_hash(payload) % exit.channels,
                None => 0,
            };
            let mut rows = Vec::new();
            row::append(&mut rows, Row { key_hash, timestamp: NO_TIMESTAMP, payload });
            let emitted = self.outputs.emit(u32::try_from(index).unwrap(), 1, &rows);
            emitted.map_err(|error| self.error(GuestFailure::BadBatch, node, row, &error.to_string()))?;
        }
        Ok(())
    }
}

impl GuestSegment for TestSegment {
    fn process_batch(&mut self, input: u32, batch: &RecordBatch) -> Result<(), GuestError> {
        let node = self.context.nodes[0];
        match batch.kind {
            BatchKind::Rows => {
                for (index, row) in (0..).zip(Rows::new(&batch.data)) {
                    let payload = row.unwrap().payload;
                    self.register_timers(Cause::Row(payload));
                    match self.takes_rows {
                        true => self.keep(payload),
                        false => self.process_row(node, input, index, payload)?,
                    }
                }
            }
            BatchKind::Lines => {
                for (index, line) in (0..).zip(batch.data.split_inclusive(|byte| *byte == b'\n')) {
                    self.process_row(node, input, index, &line[..line.len() - 1])?;
                }
            }
        }
        self.rows += i64::from(batch.count);
        if let Some(split) = self.split {
            self.outputs.report_split_time(split, Timestamp(self.rows));
        }
        Ok(())
    }

    fn process_watermark(&mut self, watermark: Timestamp) -> Result<(), GuestError> {
        self.note(Call::Watermark(watermark));
        for output in 0..u32::try_from(self.context.outputs.len()).unwrap() {
            self.outputs.emit_watermark(output, watermark);
        }
        Ok(())
    }

    fn process_watermark_status(&mut self, status: WatermarkStatus) -> Result<(), GuestError> {
        self.note(Call::Status(status));
        for output in 0..u32::try_from(self.context.outputs.len()).unwrap() {
            self.outputs.emit_watermark_status(output, status);
        }
        Ok(())
    }

    fn take_state(&mut self) -> Result<bool, GuestError> {
        let mut entries = Vec::new();
        let Some((_, count)) = self.state.take_entries(&mut entries).unwrap() else { return Ok(false) };
        self.note(Call::TakeState(count));
        // Each emits its key; all else of an entry is as `keep` wrote it.
        let mut rest = &entries[..];
        while let Some((length, behind)) = rest.split_first_chunk() {
            let (key, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            self.emit(self.context.nodes[0], 0, key)?;
            rest = behind.strip_prefix(KEPT).unwrap();
        }
        Ok(true)
    }

    fn fire_timers(&mut self, domain: TimeDomain, time: Timestamp) -> Result<bool, GuestError> {
        let mut fired = Vec::new();
        let count = self.state.take_due_timers(domain, time, &mut fired);
        if count == 0 {
            return Ok(false);
        }
        self.note(Call::FireTimers(domain, time, count));
        // Each emits its timestamp.
        for timer in fired.chunks(TIMER_BYTES) {
            let timestamp = i64::from_le_bytes(timer[..8].try_into().unwrap());
            self.emit(self.context.nodes[0], 0, &timestamp.to_be_bytes())?;
            self.register_timers(Cause::Timer(timestamp));
        }
        Ok(true)
    }

    fn next_processing_time(&self) -> Option<Timestamp> {
        self.state.next_processing_time()
    }

    fn state_usage(&self) -> StateUsage {
        self.state.usage()
    }

    fn poll_source(&mut self, _max_bytes: u32) -> Result<SourceStatus, GuestError> {
        self.polls += 1;
        match self.polls {
            1 | 3 => {
                self.emit(self.context.nodes[0], 0, &self.polls.to_le_bytes())?;
                Ok(SourceStatus::More)
            }
            2 => Ok(SourceStatus::Idle),
            _ => Ok(SourceStatus::End),
        }
    }

    fn begin_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.note(Call::BeginSplit(split));
        self.split = Some(split);
        Ok(())
    }

    fn end_split(&mut self, split: u32) -> Result<(), GuestError> {
        self.note(Call::EndSplit(split));
        Ok(())
    }

    fn advance_processing_time(&mut self, _now: Timestamp) -> Result<(), GuestError> {
        self.note(Call::ProcessingTime);
        for output in 0..u32::try_from(self.context.outputs.len()).unwrap() {
            self.outputs.emit_watermark(output, Timestamp(self.rows));
        }
        Ok(())
    }

    fn snapshot(&mut self, checkpoint_id: CheckpointId, is_full: bool) -> Result<SegmentSnapshot, GuestError> {
        self.note(Call::Snapshot(checkpoint_id));
        let lists = self.list_elements();
        let keyed = self.context.is_keyed.then(|| self.state.snapshot(checkpoint_id, is_full));
        Ok(SegmentSnapshot { keyed, keyed_bytes: self.state.bytes(), lists })
    }

    fn lists(&self) -> BTreeMap<usize, Vec<Vec<u8>>> {
        self.list_elements()
    }

    fn notify_checkpoint_complete(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.note(Call::Complete(checkpoint_id));
        self.state.checkpoint_completed(checkpoint_id);
        Ok(())
    }

    fn notify_checkpoint_aborted(&mut self, checkpoint_id: CheckpointId) -> Result<(), GuestError> {
        self.note(Call::Aborted(checkpoint_id));
        Ok(())
    }

    fn end_input(&mut self, input: u32) -> Result<(), GuestError> {
        self.note(Call::EndInput(input));
        Ok(())
    }

    fn close(&mut self) -> Result<(), GuestError> {
        self.note(Call::Close);
        Ok(())
    }

    fn outputs(&mut self) -> &mut Outputs {
        &mut self.outputs
    }

    fn memory_bytes(&self) -> usize {
        65_536
    }

    fn metrics(&self) -> Vec<MetricSnapshot> {
        vec![MetricSnapshot { node: self.context.nodes[0], name: "calls".into(), value: MetricValue::Counter(7) }]
    }

    fn dropped_log_lines(&self) -> u64 {
        0
    }
}

/// What each sink subtask got, in order, by node and subtask.
pub type Collected = Arc<Mutex<BTreeMap<(u32, u32), Vec<Vec<u8>>>>>;

/// Sources and sinks in memory.
///
/// Sources: "numbers" reads splits of numbers, "idle" has nothing, "endless"
/// never ends, "splits" reads two splits in turn, "bad" has a row that does not fit, "panic" panics, "lines" has lines.
pub struct TestConnectors {
    pub collected: Collected,
    /// Counts the polls of "endless".
    pub polls: Arc<std::sync::atomic::AtomicU64>,
}

impl Connectors for TestConnectors {
    fn create_reader(
        &self,
        connector: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Box<dyn SourceReader>, ConnectorError> {
        Ok(Box::new(TestReader {
            kind: connector.name.clone(),
            context,
            split: VecDeque::new(),
            read: 0,
            polls: Arc::clone(&self.polls),
            changes: Vec::new(),
            times: Vec::new(),
        }))
    }

    fn create_writer(
        &self,
        _connector: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        Ok(Box::new(TestWriter { context, collected: Arc::clone(&self.collected), uncommitted: Vec::new() }))
    }
}

struct TestReader {
    kind: String,
    context: ReaderContext,
    split: VecDeque<u8>,
    read: u64,
    polls: Arc<std::sync::atomic::AtomicU64>,
    changes: Vec<SplitChange>,
    /// How far splits were said to be.
    times: Vec<(u32, i64)>,
}

impl SourceReader for TestReader {
    fn snapshot(&mut self) -> Vec<SourceSplit> {
        let left: Vec<u8> = self.split.iter().copied().collect();
        if left.is_empty() { Vec::new() } else { vec![SourceSplit(left)] }
    }

    fn add_split(&mut self, split: SourceSplit) -> Result<(), ConnectorError> {
        self.split.extend(split.0);
        Ok(())
    }

    fn poll(&mut self, _max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        let mut batch = Vec::new();
        match self.kind.as_str() {
            "numbers" => {
                let count = self.split.len().min(7);
                if count == 0 {
                    return Ok(ReaderOutput::NeedSplit);
                }
                for number in self.split.drain(..count) {
                    self.read += 1;
                    row::append(&mut batch, Row { key_hash: 0, timestamp: NO_TIMESTAMP, payload: &[number] });
                }
                let count = u32::try_from(count).unwrap();
                Ok(ReaderOutput::Records(RecordBatch { kind: BatchKind::Rows, count, data: Bytes::from(batch) }))
            }
            "lines" if self.read == 0 => {
                self.read = 1;
                let data = Bytes::from_static(b"a\nbb\n\nccc\n");
                Ok(ReaderOutput::Records(RecordBatch { kind: BatchKind::Lines, count: 4, data }))
            }
            "lines" => Ok(ReaderOutput::End),
            "splits" => {
                use SplitChange::{Begin, End};
                self.read += 1;
                self.changes = match self.read {
                    1 => vec![Begin(0), Begin(1), Begin(0)],
                    2 => vec![Begin(1)],
                    3 => vec![End(0)],
                    _ => vec![End(1)],
                };
                if self.read == 4 {
                    assert_eq!(self.times, [(0, 1), (1, 2), (1, 3)], "split and number of rows");
                    return Ok(ReaderOutput::End);
                }
                let number = u8::try_from(self.read).unwrap();
                row::append(&mut batch, Row { key_hash: 0, timestamp: NO_TIMESTAMP, payload: &[number] });
                Ok(ReaderOutput::Records(RecordBatch { kind: BatchKind::Rows, count: 1, data: Bytes::from(batch) }))
            }
            "idle" => Ok(ReaderOutput::Idle(Duration::from_secs(3600))),
            "endless" => {
                self.polls.fetch_add(1, Ordering::SeqCst);
                row::append(&mut batch, Row { key_hash: 0, timestamp: NO_TIMESTAMP, payload: &[0; 1000] });
                Ok(ReaderOutput::Records(RecordBatch { kind: BatchKind::Rows, count: 1, data: Bytes::from(batch) }))
            }
            "bad" if self.read == 0 => {
                self.read = 1;
                let row = crate::connector::RejectedRow {
                    message: "field \"price\": expected a number",
                    position: "in.json line 3",
                    payload: b"\xff{",
                };
                match (self.context.reject)(row) {
                    crate::connector::Verdict::Skip => Ok(ReaderOutput::End),
                    crate::connector::Verdict::Fail => Err(ConnectorError::BadRow {
                        position: row_position().to_owned(),
                        message: "field \"price\": expected a number".to_owned(),
                    }),
                }
            }
            "panic" => panic!("the reader panicked"),
            other => panic!("no source {other}"),
        }
    }

    fn take_split_changes(&mut self) -> Vec<SplitChange> {
        std::mem::take(&mut self.changes)
    }

    fn report_split_time(&mut self, split: u32, time: Timestamp) {
        self.times.push((split, time.0));
    }

    fn position(&self) -> String {
        format!("{} at {}", self.kind, self.read)
    }
}

fn row_position() -> &'static str {
    "in.json line 3"
}

struct TestWriter {
    context: WriterContext,
    collected: Collected,
    /// Rows since the last checkpoint.
    uncommitted: Vec<Vec<u8>>,
}

impl SinkWriter for TestWriter {
    fn prepare_commit(&mut self, checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        if self.uncommitted.is_empty() {
            return Ok(Vec::new());
        }
        let rows = std::mem::take(&mut self.uncommitted);
        let committable = serde_json::json!([checkpoint_id, self.context.subtask_index, rows]);
        Ok(vec![Committable(committable.to_string().into_bytes())])
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        if batch.kind == BatchKind::Rows {
            self.uncommitted.extend(Rows::new(&batch.data).map(|row| row.unwrap().payload.to_vec()));
        }
        let mut collected = self.collected.lock().unwrap();
        let rows = collected.entry((self.context.record_type_node(), self.context.subtask_index)).or_default();
        match batch.kind {
            BatchKind::Rows => rows.extend(Rows::new(&batch.data).map(|row| row.unwrap().payload.to_vec())),
            BatchKind::Lines => rows.extend(batch.data.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec)),
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        let rows = std::mem::take(&mut self.uncommitted);
        let committable = serde_json::json!([u64::MAX, self.context.subtask_index, rows]);
        Ok(vec![Committable(committable.to_string().into_bytes())])
    }
}

trait SinkNode {
    fn record_type_node(&self) -> u32;
}

impl SinkNode for WriterContext {
    /// All sinks of a test collect as one.
    fn record_type_node(&self) -> u32 {
        0
    }
}

struct Plugins(SharedPlugin);

impl PluginProvider for Plugins {
    fn plugin(&self, digest: BlobDigest) -> Result<SharedPlugin, FailureCause> {
        assert_eq!(digest, PLUGIN);
        Ok(Arc::clone(&self.0))
    }
}

/// Runs tasks and plays their JobMaster.
pub struct Cluster {
    pub services: TaskServices,
    pub events: Receiver<TaskEvent>,
    pub collected: Collected,
    pub calls: Calls,
    pub polls: Arc<std::sync::atomic::AtomicU64>,
    pub tasks: HashMap<ExecutionAttemptId, Box<dyn RunningTask>>,
    pub states: HashMap<ExecutionAttemptId, Vec<TaskState>>,
    /// Tasks that ended while something else was awaited.
    ended: Vec<TaskExecutionStateUpdate>,
    /// Splits still to be dealt; none: requests are not answered.
    pub splits: Option<VecDeque<Vec<u8>>>,
    /// By node; a source with an enumerator gets its splits.
    pub enumerators: HashMap<u32, Box<dyn SplitEnumerator>>,
}

/// Events that tests may leave unread.
const EVENTS_MAX: usize = 10_000;

impl Cluster {
    pub fn new(job: &TestJob, function: Function) -> Self {
        Self::with_timers(job, function, Arc::new(|_| Vec::new()))
    }

    pub fn with_timers(job: &TestJob, function: Function, registers: Registers) -> Self {
        let calls = Calls::default();
        let edges = job.info.vertices.iter().flat_map(|vertex| vertex.chained_edges.clone()).collect();
        let plugin = TestPlugin { edges, function, registers, calls: Arc::clone(&calls) };
        Self { calls, ..Self::with_plugin(Arc::new(plugin)) }
    }

    pub fn with_plugin(plugin: SharedPlugin) -> Self {
        let (sender, events) = bounded(EVENTS_MAX);
        let collected = Collected::default();
        let polls = Arc::default();
        let services = TaskServices {
            partitions: Arc::default(),
            plugins: Arc::new(Plugins(plugin)),
            connectors: Arc::new(TestConnectors { collected: Arc::clone(&collected), polls: Arc::clone(&polls) }),
            artifacts: Arc::new(|artifact| panic!("no artifact {}", artifact.name)),
            guest_stack_bytes: 512 << 10,
            state_directory: std::env::temp_dir().join("engine-state-of-tests"),
            clock: Clock::System,
            events: Arc::new(move |event| {
                // Snapshots may still be written when a test has ended.
                let sent = sender.try_send(event);
                assert!(!matches!(sent, Err(TrySendError::Full(_))), "the test reads its events");
            }),
            snapshots: Arc::default(),
        };
        Self {
            services,
            events,
            collected,
            calls: Calls::default(),
            polls,
            tasks: HashMap::new(),
            states: HashMap::new(),
            ended: Vec::new(),
            splits: Some(VecDeque::new()),
            enumerators: HashMap::new(),
        }
    }

    pub fn start(&mut self, job: &TestJob, deployment: &TaskDeployment) {
        let task = start(Arc::new(job.info.clone()), deployment.clone(), &self.services).unwrap();
        self.tasks.insert(deployment.attempt, task);
    }

    pub fn start_all(&mut self, job: &TestJob) {
        for deployment in &job.deployments {
            self.start(job, deployment);
        }
    }

    /// Handles events until `wanted` accepts a state update.
    #[track_caller]
    pub fn until_update(
        &mut self,
        mut wanted: impl FnMut(&TaskExecutionStateUpdate) -> bool,
    ) -> TaskExecutionStateUpdate {
        loop {
            let event = self.events.recv_timeout(DEADLINE).expect("the task reports in time");
            match event {
                TaskEvent::StateChanged(update) => {
                    self.states.entry(update.attempt).or_default().push(update.state);
                    if wanted(&update) {
                        return update;
                    }
                }
                TaskEvent::RequestSplit(request) => self.assign_split(request),
                TaskEvent::ReportWatermark(_) => {}
                TaskEvent::AcknowledgeCheckpoint(_)
                | TaskEvent::DeclineCheckpoint(_)
                | TaskEvent::EndOfDataReached(_) => {}
            }
        }
    }

    /// Handles events until a source asks for a split, and leaves it without an answer.
    #[track_caller]
    pub fn until_split_request(&mut self) {
        loop {
            match self.events.recv_timeout(DEADLINE).expect("the source asks in time") {
                TaskEvent::StateChanged(update) => {
                    self.states.entry(update.attempt).or_default().push(update.state);
                    if is_terminal(update.state) {
                        self.ended.push(update);
                    }
                }
                TaskEvent::RequestSplit(_) => return,
                TaskEvent::ReportWatermark(_) => {}
                TaskEvent::AcknowledgeCheckpoint(_)
                | TaskEvent::DeclineCheckpoint(_)
                | TaskEvent::EndOfDataReached(_) => {}
            }
        }
    }

    pub fn answer_split(&self, attempt: ExecutionAttemptId, node: u32, assignment: SplitAssignment) {
        self.tasks[&attempt].split_assigned(SplitAnswer { attempt, node, assignment });
    }

    pub fn assign_split(&mut self, request: SplitRequest) {
        let subtask_index = request.attempt.execution_vertex.subtask_index;
        let assignment = match (self.enumerators.get_mut(&request.node), &mut self.splits) {
            (Some(enumerator), _) => enumerator.next_split(subtask_index).unwrap(),
            (None, None) => return,
            (None, Some(splits)) => match splits.pop_front() {
                Some(split) if split.is_empty() => SplitAssignment::Wait(1),
                Some(split) => SplitAssignment::Split(SourceSplit(split)),
                None => SplitAssignment::NoMoreSplits,
            },
        };
        self.answer_split(request.attempt, request.node, assignment);
    }

    /// Handles events until all tasks have finished, and returns their last updates.
    #[track_caller]
    pub fn until_finished(&mut self) -> Vec<TaskExecutionStateUpdate> {
        let mut finished = Vec::new();
        while finished.len() < self.tasks.len() {
            let update = self.ended.pop().unwrap_or_else(|| self.until_update(|update| is_terminal(update.state)));
            assert_eq!(update.state, TaskState::Finished, "{:?}", update.cause);
            let states = &self.states[&update.attempt];
            assert_eq!(states[..], [TaskState::Initializing, TaskState::Running, TaskState::Finished]);
            finished.push(update);
        }
        assert_eq!(self.services.partitions.waiting_count(), 0);
        finished
    }

    pub fn until_running(&mut self, attempt: ExecutionAttemptId) {
        self.until_update(|update| update.attempt == attempt && update.state == TaskState::Running);
    }

    /// Waits for a condition.
    #[track_caller]
    pub fn until(&self, condition: impl Fn(&Self) -> bool) {
        let clock = Clock::System;
        let deadline = clock.monotonic() + DEADLINE;
        while !condition(self) {
            assert!(clock.monotonic() < deadline, "the condition did not come true in time");
            std::thread::yield_now();
        }
    }

    /// Waits for a condition on the metrics of a task.
    #[track_caller]
    pub fn until_metrics(&self, attempt: ExecutionAttemptId, condition: impl Fn(&TaskMetrics) -> bool) {
        self.until(|cluster| condition(&cluster.tasks[&attempt].metrics()));
    }

    /// Cancels a task and checks that it ends so within a second.
    #[track_caller]
    pub fn cancel(&mut self, attempt: ExecutionAttemptId) -> TaskExecutionStateUpdate {
        let clock = Clock::System;
        let begin = clock.monotonic();
        self.tasks[&attempt].cancel();
        let update = self.until_update(|update| update.attempt == attempt && is_terminal(update.state));
        assert_eq!(update.state, TaskState::Canceled, "{:?}", update.cause);
        let took = clock.monotonic() - begin;
        assert!(took < Duration::from_secs(1), "cancelling took {took:?}");
        update
    }

    /// All collected rows, sorted.
    pub fn sorted_rows(&self) -> Vec<Vec<u8>> {
        let mut rows: Vec<_> = self.collected.lock().unwrap().values().flatten().cloned().collect();
        rows.sort();
        rows
    }
}

pub fn is_terminal(state: TaskState) -> bool {
    matches!(state, TaskState::Finished | TaskState::Canceled | TaskState::Failed)
}

/// A function that passes rows on.
pub fn identity() -> Function {
    Arc::new(|_, _, payload| Ok(vec![payload.to_vec()]))
}
