//! Which operators the engine would chain, and the segments that follow from it.

use crate::bindings::engine::plugin::graph::{
    ChainingStrategy, Operator as OperatorKind, Partitioner, StreamEdge, StreamGraph, StreamNode,
};

/// Configuration keys that chaining looks at.
const ENABLED: &str = "pipeline.operator-chaining.enabled";
const DIFFERENT_MAX_PARALLELISM: &str = "pipeline.operator-chaining.chain-operators-with-different-max-parallelism";

/// Nodes of each segment, the first one first.
pub(super) fn segments_of(graph: &StreamGraph, chained: bool) -> Vec<Vec<u32>> {
    let groups = slot_sharing_groups(graph);
    let mut segments: Vec<Vec<u32>> = Vec::new();
    for node in &graph.nodes {
        if !matches!(node.operator, OperatorKind::Guest(_) | OperatorKind::GuestSource(_)) {
            continue;
        }
        let mut inputs = graph.edges.iter().filter(|edge| edge.target == node.id);
        let before = match (inputs.next(), inputs.next()) {
            (Some(edge), None) if chained && is_chainable(graph, &groups, edge) => {
                segments.iter_mut().find(|segment| segment.contains(&edge.source))
            }
            _ => None,
        };
        match before {
            Some(segment) => segment.push(node.id),
            None => segments.push(vec![node.id]),
        }
    }
    segments
}

/// True if the engine would chain the two nodes of an edge, which is the target's only one.
fn is_chainable(graph: &StreamGraph, groups: &[String], edge: &StreamEdge) -> bool {
    let is_on = |key: &str| graph.configuration.iter().all(|(known, value)| known != key || value != "false");
    let (source, target) = (node(graph, edge.source), node(graph, edge.target));
    let parallelism = |node: &StreamNode| node.parallelism.or(graph.parallelism).unwrap_or(1);
    let max_parallelism = |node: &StreamNode| node.max_parallelism.or(graph.max_parallelism);
    is_on(ENABLED)
        && matches!(edge.partitioner, None | Some(Partitioner::Forward))
        && parallelism(source) == parallelism(target)
        && (is_on(DIFFERENT_MAX_PARALLELISM) || max_parallelism(source) == max_parallelism(target))
        && groups[edge.source as usize - 1] == groups[edge.target as usize - 1]
        && source.chaining != ChainingStrategy::Never
        && match target.chaining {
            ChainingStrategy::Always => true,
            ChainingStrategy::HeadWithSources => matches!(source.operator, OperatorKind::GuestSource(_)),
            ChainingStrategy::Head | ChainingStrategy::Never => false,
        }
}

/// The slot sharing group of each node: its own, else that of its inputs if they agree.
fn slot_sharing_groups(graph: &StreamGraph) -> Vec<String> {
    let mut groups: Vec<String> = Vec::new();
    for node in &graph.nodes {
        let inputs = graph.edges.iter().filter(|edge| edge.target == node.id);
        let mut of_inputs: Vec<_> = inputs.map(|edge| groups[edge.source as usize - 1].clone()).collect();
        of_inputs.dedup();
        groups.push(match (&node.slot_sharing_group, of_inputs.as_slice()) {
            (Some(group), _) => group.clone(),
            (None, [group]) => group.clone(),
            (None, _) => "default".to_owned(),
        });
    }
    groups
}

fn node(graph: &StreamGraph, id: u32) -> &StreamNode {
    &graph.nodes[id as usize - 1]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{exports::declare, prelude::*};

    #[track_caller]
    fn check(program: impl Fn(&StreamExecutionEnvironment), expected: &[&[u32]]) {
        let (_, graph) = declare(
            |env, _| {
                program(env);
                Ok(())
            },
            Vec::new(),
        )
        .unwrap();
        assert_eq!(segments_of(&graph, true), expected);
        assert!(segments_of(&graph, false).iter().all(|segment| segment.len() == 1));
    }

    /// Two maps behind a source, with settings of the second.
    fn two_maps(settings: impl Fn(DataStream<i64>) -> DataStream<i64>) -> impl Fn(&StreamExecutionEnvironment) {
        move |env| _ = settings(env.from_sequence(0, 1).map(|n| n).map(|n| n)).sink_to(DiscardSink)
    }

    #[test]
    fn operators_are_chained_as_by_the_engine() {
        check(two_maps(|stream| stream), &[&[2, 3]]);
        check(two_maps(|stream| stream.set_parallelism(1)), &[&[2, 3]]);
        check(two_maps(|stream| stream.set_parallelism(2)), &[&[2], &[3]]);
        check(two_maps(DataStream::start_new_chain), &[&[2], &[3]]);
        check(two_maps(DataStream::disable_chaining), &[&[2], &[3]]);
        check(two_maps(|stream| stream.slot_sharing_group("other")), &[&[2], &[3]]);
        check(two_maps(|stream| stream.set_max_parallelism(9)), &[&[2, 3]]);
        check(
            |env| {
                env.disable_operator_chaining();
                two_maps(|stream| stream)(env);
            },
            &[&[2], &[3]],
        );
        check(
            |env| {
                env.configure(DIFFERENT_MAX_PARALLELISM, "false");
                two_maps(|stream| stream.set_max_parallelism(9))(env);
            },
            &[&[2], &[3]],
        );
        check(
            |env| {
                let first = env.from_sequence(0, 1).slot_sharing_group("group").map(|n| n);
                first.map(|n| n).rebalance().map(|n| n).sink_to(DiscardSink);
            },
            &[&[2, 3], &[4]],
        );
    }
}
