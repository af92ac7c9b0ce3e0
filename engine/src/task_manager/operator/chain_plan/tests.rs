//! Which operators share a segment, and where its outputs lead.

use super::*;
use crate::{
    base::ids::{IntermediateDataSetId, JobVertexId, OperatorId},
    graph::{
        job_graph::{ChainedOperator, DistributionPattern, IntermediateDataSet, JobEdge},
        stream_graph::{ChainingStrategy, ConnectorSpec, StreamEdge, StreamNode},
    },
};

/// Nodes as words: "source", "sink", "a" and "b" for operators of plugins a and
/// b, "a-source" for a source of plugin a; "a2" has two inputs.
fn operator(id: u32, word: &str) -> ChainedOperator {
    let connector = ConnectorSpec { name: "x".into(), options: Default::default() };
    let (operator, plugin, inputs) = match word {
        "source" => (Operator::Source(connector), None, 0),
        "sink" => (Operator::Sink(connector), None, 1),
        "a-source" => (Operator::GuestSource("S".into()), Some(1), 0),
        "a" => (Operator::Guest("Map".into()), Some(1), 1),
        "a2" => (Operator::Guest("Join".into()), Some(1), 2),
        "b" => (Operator::Guest("Map".into()), Some(2), 1),
        other => panic!("no operator {other}"),
    };
    ChainedOperator {
        node: StreamNode {
            id,
            name: format!("{word}{id}"),
            operator,
            uid: None,
            uid_hash: None,
            parallelism: Some(1),
            max_parallelism: None,
            slot_sharing_group: None,
            co_location_group: None,
            chaining: ChainingStrategy::Always,
            buffer_timeout: None,
            input_types: vec!["bytes".into(); inputs],
            output_type: None,
            key_type: None,
            states: Vec::new(),
            generates_watermarks: false,
        },
        operator_id: OperatorId::from_bytes([0; 16]),
        user_defined_id: None,
        plugin: plugin.map(|plugin| BlobDigest::from_bytes([plugin; 32])),
        managed_memory_fraction: 0.0,
    }
}

/// An edge as "source>target", with ".input" and ":side" where they are not 0 and main.
fn edge(text: &str) -> StreamEdge {
    let (text, side_output) = match text.split_once(':') {
        Some((text, side)) => (text, Some(side.to_owned())),
        None => (text, None),
    };
    let (source, target) = text.split_once('>').unwrap();
    let (target, input) = target.split_once('.').unwrap_or((target, "0"));
    StreamEdge {
        source: source.parse().unwrap(),
        target: target.parse().unwrap(),
        input: input.parse().unwrap(),
        partitioner: None,
        side_output,
        selector: None,
        record_type: "bytes".into(),
    }
}

fn vertex(operators: &[&str], chained: &[&str], inputs: &[&str], outputs: &[(&str, Partitioner)]) -> JobVertex {
    JobVertex {
        id: JobVertexId::from_bytes([0; 16]),
        name: "v".into(),
        parallelism: 1,
        max_parallelism: 128,
        max_parallelism_configured: false,
        operators: (1..).zip(operators).map(|(id, word)| operator(id, word)).collect(),
        chained_edges: chained.iter().map(|text| edge(text)).collect(),
        inputs: inputs
            .iter()
            .map(|text| JobEdge {
                source: IntermediateDataSetId::from_bytes([0; 16]),
                producer: JobVertexId::from_bytes([1; 16]),
                partitioner: Partitioner::Rebalance,
                pattern: DistributionPattern::AllToAll,
                target_node: edge(text).target,
                input: edge(text).input,
            })
            .collect(),
        outputs: outputs
            .iter()
            .map(|(text, partitioner)| IntermediateDataSet {
                id: IntermediateDataSetId::from_bytes([0; 16]),
                edge: edge(text),
                partitioner: *partitioner,
                pattern: DistributionPattern::AllToAll,
                consumer: JobVertexId::from_bytes([2; 16]),
                buffer_timeout: 100,
            })
            .collect(),
        slot_sharing_group: "default".into(),
        co_location_group: None,
        resources: None,
    }
}

/// One line for each planned node: its operators, the channels of its inputs,
/// and its exits with their destinations.
fn dump(plan: &ChainPlan, vertex: &JobVertex) -> Vec<String> {
    let node = |planned: &PlannedNode| {
        let ids = planned.operators.iter().map(|index| vertex.operators[*index].node.id.to_string());
        let exits = planned.outputs.iter().map(|output| {
            let destinations = output.destinations.iter().map(|destination| match destination {
                Destination::Node { node, input, channel } => format!("n{node}.{input}.{channel}"),
                Destination::Partition(index) => format!("p{index}"),
            });
            let side = output.exit.side_output.as_ref().map_or(String::new(), |side| format!(":{side}"));
            let channels = if output.exit.channels == 0 { String::new() } else { format!("/{}", output.exit.channels) };
            format!("{}{side}{channels}={}", output.exit.node, destinations.collect::<Vec<_>>().join("+"))
        });
        let exits = exits.collect::<Vec<_>>().join(" ");
        format!("[{}] {:?} {exits}", ids.collect::<Vec<_>>().join(" "), planned.inputs)
    };
    plan.nodes.iter().map(node).collect()
}

#[track_caller]
fn check(vertex: &JobVertex, gates: &[usize], subpartitions: &[u32], expected: &[&str]) {
    let plan = ChainPlan::new(vertex, gates, subpartitions).unwrap();
    assert_eq!(dump(&plan, vertex), expected);
}

#[test]
fn consecutive_operators_of_one_plugin_are_fused() {
    let chain = vertex(&["source", "a", "a", "a", "sink"], &["1>2", "2>3", "3>4", "4>5"], &[], &[]);
    check(&chain, &[], &[], &["[1] [] 1=n1.0.0", "[2 3 4] [1] 4=n2.0.0", "[5] [1] "]);
    let source = vertex(&["a-source", "a", "sink"], &["1>2", "2>3"], &[], &[]);
    check(&source, &[], &[], &["[1 2] [] 2=n1.0.0", "[3] [1] "]);
}

#[test]
fn another_plugin_starts_another_segment() {
    let chain = vertex(&["a", "b", "a"], &["1>2", "2>3"], &["0>1"], &[("3>9", Partitioner::Hash)]);
    check(&chain, &[4], &[2], &["[1] [4] 1=n1.0.0", "[2] [1] 2=n2.0.0", "[3] [1] 3=p0"]);
}

#[test]
fn a_segment_is_a_tree_with_an_exit_for_each_kind_of_rows() {
    let outputs = [
        ("2>9", Partitioner::Rebalance),
        ("2>10", Partitioner::Broadcast),
        ("3>9:late", Partitioner::Rebalance),
        ("1>9", Partitioner::Custom),
        ("1>10", Partitioner::Custom),
    ];
    let tree = vertex(&["a", "a", "a", "sink"], &["1>2", "1>3", "2>4"], &["0>1"], &outputs);
    let exits = "2=n1.0.0+p0+p1 3:late=p2 1/2=p3 1/5=p4";
    check(&tree, &[1], &[3, 3, 3, 2, 5], &[&format!("[1 2 3] [1] {exits}"), "[4] [1] "]);
}

#[test]
fn gates_and_chained_sources_share_the_inputs_of_an_operator() {
    // A source of the plugin that is chained before an operator with a gate is not fused with it.
    let joined = vertex(&["a-source", "source", "a2"], &["1>3.0", "2>3.1"], &["0>3.1", "0>3.1"], &[]);
    let plan = ChainPlan::new(&joined, &[2, 3], &[]).unwrap();
    assert_eq!(dump(&plan, &joined), ["[1] [] 1=n2.0.0", "[2] [] 2=n2.1.5", "[3] [1, 6] "]);
    let gate = |first_channel| GateTarget { node: 2, input: 1, first_channel };
    assert_eq!(plan.gates, [gate(0), gate(2)]);
}

#[test]
fn what_does_not_fit_is_refused() {
    #[track_caller]
    fn refused(vertex: &JobVertex, gates: &[usize], subpartitions: &[u32], expected: &str) {
        assert_eq!(ChainPlan::new(vertex, gates, subpartitions).unwrap_err().to_string(), expected);
    }
    let map = || vertex(&["a"], &[], &["0>1"], &[("1>9", Partitioner::Hash)]);
    refused(&map(), &[], &[1], "vertex \"v\" has 1 inputs, but 0 input gates were deployed");
    refused(&map(), &[1], &[], "vertex \"v\" has 1 outputs, but 0 result partitions were deployed");
    refused(&vertex(&["a"], &[], &["0>7"], &[]), &[1], &[], "vertex \"v\" has no operator 7");
    refused(&vertex(&["a"], &[], &["0>1.3"], &[]), &[1], &[], "operator 1 has no input 3");
    let mut without_plugin = map();
    without_plugin.operators[0].plugin = None;
    refused(&without_plugin, &[1], &[1], "operator 1 names no plugin");
}
