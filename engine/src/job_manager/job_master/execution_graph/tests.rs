//! Tests of the ExecutionGraph as a whole.

use super::*;
use crate::job_manager::job_master::testing::{GraphBuilder, exchange, pipelines};

const NOW: Timestamp = Timestamp(5);

fn attach(vertices: &[JobVertex]) -> Result<ExecutionGraph, AttachError> {
    ExecutionGraph::attach(vertices, ExecutionGraphId::from_bytes([1; 16]), 16, NOW)
}

fn end(graph: &mut ExecutionGraph, vertex: VertexIndex) {
    graph.transition_to(vertex, ExecutionState::Scheduled, NOW).unwrap();
    graph.transition_to(vertex, ExecutionState::Failed, NOW).unwrap();
}

#[test]
fn there_is_one_vertex_per_subtask_and_one_partition_per_producer() {
    let graph = attach(&exchange(3).build()).unwrap();
    assert_eq!(graph.vertex_count(), 6);
    assert_eq!(graph.count(ExecutionState::Created), 6);
    let (partitions, gates) = graph.deployment(1);
    assert_eq!(partitions.len(), 1);
    assert_eq!(partitions[0].partition.partition.partition_index, 1);
    assert_eq!((partitions[0].subpartitions, partitions[0].consumer_max_parallelism), (3, 128));
    assert!(gates.is_empty());
    let (partitions, gates) = graph.deployment(3 + 2);
    assert!(partitions.is_empty());
    let read: Vec<_> = gates[0]
        .channels
        .iter()
        .map(|channel| (channel.partition.partition.partition_index, channel.subpartition))
        .collect();
    assert_eq!(read, [(0, 2), (1, 2), (2, 2)]);
    assert_eq!(gates[0].channels[1].partition.producer, graph.vertex(1).current().attempt());
}

#[test]
fn a_channel_reads_the_partition_of_the_current_attempt() {
    let mut graph = attach(&pipelines(2).build()).unwrap();
    end(&mut graph, 1);
    graph.reset_for_new_execution(1, NOW);
    let (_, gates) = graph.deployment(3);
    assert_eq!(gates[0].channels[0].partition.producer.attempt_number, 1);
    assert_eq!(graph.deployment(1).0[0].partition, gates[0].channels[0].partition);
}

#[test]
fn an_all_to_all_edge_makes_one_region_and_forward_edges_make_one_per_pipeline() {
    assert_eq!(attach(&exchange(3).build()).unwrap().regions().vertices, [[0, 1, 2, 3, 4, 5]]);
    assert_eq!(attach(&pipelines(3).build()).unwrap().regions().vertices, [[0, 3], [1, 4], [2, 5]]);
}

#[test]
fn the_history_forgets_the_oldest_attempts() {
    let mut graph = attach(&pipelines(1).build()).unwrap();
    for _ in 0..20 {
        end(&mut graph, 0);
        graph.reset_for_new_execution(0, NOW);
    }
    let vertex = graph.vertex(0);
    assert_eq!(vertex.current().attempt().attempt_number, 20);
    let former: Vec<_> = vertex.former().map(|execution| execution.attempt().attempt_number).collect();
    assert_eq!(former, (4..20).collect::<Vec<_>>());
    assert_eq!(graph.index_of_attempt(vertex.current().attempt()), Some(0));
    let former = vertex.former().next().unwrap().attempt();
    assert_eq!(graph.index_of_attempt(former), None);
}

#[test]
fn attempts_print_graph_vertex_subtask_and_attempt() {
    let graph = attach(&pipelines(2).build()).unwrap();
    let expected = format!("{}_{}_1_0", "01".repeat(16), "02".repeat(16));
    assert_eq!(graph.vertex(3).current().attempt().to_string(), expected);
    assert_eq!(graph.task_name(3), "sink (2/2)");
}

#[test]
fn an_illegal_transition_changes_nothing() {
    let mut graph = attach(&pipelines(1).build()).unwrap();
    graph.transition_to(0, ExecutionState::Running, NOW).unwrap_err();
    assert_eq!(graph.vertex(0).current().state(), ExecutionState::Created);
    assert_eq!(graph.vertex(0).current().entered(ExecutionState::Running), None);
    assert_eq!(graph.count(ExecutionState::Created), 2);
}

#[test]
fn graphs_that_contradict_themselves_are_refused() {
    let vertices = || exchange(2).build();
    let check = |vertices: &[JobVertex], expected: &str| {
        let error = attach(vertices).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(&[], "no vertices");
    check(&[vertices()[0].clone(), vertices()[0].clone()], "attached twice");
    check(&vertices()[..1], "no consumer");
    check(&[vertices()[1].clone(), vertices()[0].clone()], "no vertex before it produces");
    let mut mismatch = vertices();
    mismatch[1].inputs[0].pattern = DistributionPattern::Pointwise;
    check(&mismatch, "as both say");
    let mut parallelism = vertices();
    parallelism[1].parallelism = 129;
    check(&parallelism, "parallelism 129 and max parallelism 128");
    let mut twice = GraphBuilder::default().vertex("a", 1).build();
    let output = vertices()[0].outputs[0].clone();
    twice[0].outputs = vec![output.clone(), output];
    check(&twice, "attached twice");
}
