//! Stream graphs for tests: written by hand, and drawn by proptest.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::{
    base::{
        config::{Configuration, Origin},
        ids::{BlobDigest, GraphDigest, JobId},
    },
    graph::{
        error::InvalidGraph,
        job_graph::{Artifact, Grants, JobGraph, ProgramSpec},
        job_graph_generator::{JobSpec, generate},
        stream_graph::{ChainingStrategy, ConnectorSpec, Operator, Partitioner, StreamEdge, StreamGraph, StreamNode},
    },
};

/// Type of all records that no test looks at.
pub(super) const TYPE: &str = "u64";

pub(super) fn connector(name: &str) -> ConnectorSpec {
    ConnectorSpec { name: name.to_owned(), options: BTreeMap::new() }
}

/// A program that is written node by node.
#[derive(Default)]
pub(super) struct Program {
    pub(super) graph: StreamGraph,
}

impl Program {
    fn node(&mut self, name: &str, operator: Operator, inputs: usize, output: Option<&str>) -> &mut StreamNode {
        let id = u32::try_from(self.graph.nodes.len()).unwrap() + 1;
        self.graph.nodes.push(StreamNode {
            id,
            name: name.to_owned(),
            operator,
            uid: None,
            uid_hash: None,
            parallelism: None,
            max_parallelism: None,
            slot_sharing_group: None,
            co_location_group: None,
            chaining: ChainingStrategy::Always,
            buffer_timeout: None,
            input_types: vec![TYPE.to_owned(); inputs],
            output_type: output.map(str::to_owned),
            key_type: None,
            states: Vec::new(),
            generates_watermarks: false,
        });
        self.graph.nodes.last_mut().unwrap()
    }

    /// A native source.
    pub(super) fn source(&mut self, name: &str) -> u32 {
        self.node(name, Operator::Source(connector("file")), 0, Some(TYPE)).id
    }

    /// An operator of one input behind `input`.
    pub(super) fn operator(&mut self, name: &str, input: u32) -> u32 {
        let id = self.node(name, Operator::Guest("Map".to_owned()), 1, Some(TYPE)).id;
        self.edge(input, id, 0);
        id
    }

    /// An operator behind others, each with the input that it leads to.
    pub(super) fn operator_of(&mut self, name: &str, inputs: &[(u32, u32)]) -> u32 {
        let count = inputs.iter().map(|(_, input)| *input as usize + 1).max().unwrap_or(0);
        let id = self.node(name, Operator::Guest("CoMap".to_owned()), count, Some(TYPE)).id;
        inputs.iter().for_each(|(source, input)| self.edge(*source, id, *input));
        id
    }

    /// A native sink.
    pub(super) fn sink(&mut self, name: &str, input: u32) -> u32 {
        let id = self.node(name, Operator::Sink(connector("print")), 1, None).id;
        self.edge(input, id, 0);
        id
    }

    pub(super) fn edge(&mut self, source: u32, target: u32, input: u32) {
        let record_type = TYPE.to_owned();
        self.graph.edges.push(StreamEdge {
            source,
            target,
            input,
            partitioner: None,
            side_output: None,
            selector: None,
            record_type,
        });
    }

    pub(super) fn at(&mut self, id: u32) -> &mut StreamNode {
        &mut self.graph.nodes[id as usize - 1]
    }

    /// Sets the partitioner of the edge that was made last.
    pub(super) fn partition(&mut self, partitioner: Partitioner) -> &mut StreamEdge {
        let edge = self.graph.edges.last_mut().unwrap();
        edge.partitioner = Some(partitioner);
        if matches!(partitioner, Partitioner::Hash | Partitioner::Custom) {
            edge.selector = Some(0);
        }
        edge
    }

    pub(super) fn all(mut self, parallelism: u32) -> Self {
        self.graph.nodes.iter_mut().for_each(|node| node.parallelism = Some(parallelism));
        self
    }
}

/// source -> flatMap -> keyBy -> sum -> print, all with parallelism 2.
pub(super) fn word_count() -> Program {
    let mut program = Program::default();
    let source = program.source("source");
    let flat_map = program.operator("flatMap", source);
    let sum = program.operator("sum", flat_map);
    program.partition(Partitioner::Hash);
    program.at(sum).key_type = Some("string".to_owned());
    program.sink("print", sum);
    program.all(2)
}

pub(super) fn configuration(settings: &[(&str, &str)]) -> Configuration {
    let mut configuration = Configuration::default();
    for (key, value) in settings {
        configuration.set(key, value, Origin::File).unwrap();
    }
    configuration
}

pub(super) fn spec() -> JobSpec {
    JobSpec {
        job_id: JobId::from_bytes([7; 16]),
        default_name: "test".to_owned(),
        program: ProgramSpec {
            plugin: BlobDigest::from_bytes([1; 32]),
            plugin_name: "test.wasm".to_owned(),
            args: vec!["--input".to_owned(), "a".to_owned()],
            graph_digest: GraphDigest::from_bytes([2; 32]),
        },
        grants: Grants { read: vec!["/data/a".into()], write: Vec::new(), net: vec!["localhost:1".to_owned()] },
        artifacts: vec![Artifact { name: "model".to_owned(), digest: BlobDigest::from_bytes([3; 32]) }],
    }
}

pub(super) fn job_graph(graph: &StreamGraph) -> Result<JobGraph, InvalidGraph> {
    generate(graph, &Configuration::default(), spec())
}

const STRATEGIES: [ChainingStrategy; 6] = [
    ChainingStrategy::Always,
    ChainingStrategy::Always,
    ChainingStrategy::Always,
    ChainingStrategy::Never,
    ChainingStrategy::Head,
    ChainingStrategy::HeadWithSources,
];

/// A drawn node: parallelism, strategy, group, keyed, and its inputs (node before it, input, partitioner).
type DrawnNode = (Option<u32>, usize, Option<u8>, bool, Vec<(usize, u32, Option<usize>)>);

/// Valid programs of 2 to 14 nodes.
pub(super) fn programs() -> impl Strategy<Value = StreamGraph> {
    let input = (0_usize..100, 0_u32..2, proptest::option::of(0_usize..8));
    let node = (
        proptest::option::of(1_u32..4),
        0..STRATEGIES.len(),
        proptest::option::weighted(0.2, 0_u8..2),
        any::<bool>(),
        proptest::collection::vec(input, 0..3),
    );
    proptest::collection::vec(node, 2..15).prop_map(program_of)
}

fn program_of(drawn: Vec<DrawnNode>) -> StreamGraph {
    let mut program = Program::default();
    let last = drawn.len() - 1;
    for (index, (parallelism, strategy, group, keyed, mut inputs)) in drawn.into_iter().enumerate() {
        if index == last && inputs.is_empty() {
            inputs.push((0, 0, None));
        }
        let name = format!("n{index}");
        let is_source = index == 0 || inputs.is_empty();
        let id = if is_source {
            program.node(&name, Operator::GuestSource("Numbers".to_owned()), 0, Some(TYPE)).id
        } else {
            inputs[0].1 = 0;
            let count = inputs.iter().map(|(_, input, _)| *input as usize + 1).max().unwrap();
            program.node(&name, Operator::Guest("Map".to_owned()), count, Some(TYPE)).id
        };
        let node = program.at(id);
        node.parallelism = parallelism;
        node.chaining = STRATEGIES[strategy];
        node.slot_sharing_group = group.map(|group| format!("g{group}"));
        node.key_type = keyed.then(|| TYPE.to_owned());
        for (source, input, partitioner) in inputs.into_iter().filter(|_| !is_source) {
            let source = u32::try_from(source % index).unwrap() + 1;
            program.edge(source, id, input);
            let of = |id: u32| program.graph.nodes[id as usize - 1].parallelism.unwrap_or(1);
            match partitioner.map(|partitioner| Partitioner::ALL[partitioner]) {
                Some(Partitioner::Forward) if of(source) != of(id) => {}
                Some(partitioner) => {
                    program.partition(partitioner);
                }
                None => {}
            }
        }
    }
    program.graph
}
