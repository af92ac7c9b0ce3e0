//! Digest of a stream graph, by which a task checks the graph that it replayed.
//!
//! Invariant: everything but parallelism takes part. A subtask that replays
//! `plan` gets the graph as the program made it, while the submitted one may
//! run with another parallelism.

use sha2::{Digest as _, Sha256};

use super::stream_graph::{
    ChainingStrategy, ConnectorSpec, Operator, Partitioner, StateDeclaration, StateKind, StreamEdge, StreamGraph,
    StreamNode,
};
use crate::base::{config::options, ids::GraphDigest};

/// SHA-256 over a canonical encoding of the graph.
///
/// The encoding writes the fields in the order of their declaration: integers
/// little-endian, text and lists with a u32 length before them, options and
/// variants with a leading byte. Left out are the parallelism of graph and
/// nodes, and the setting `parallelism.default`.
pub fn graph_digest(graph: &StreamGraph) -> GraphDigest {
    let mut encoder = Encoder(Sha256::new());
    encoder.graph(graph);
    GraphDigest::from_bytes(encoder.0.finalize().into())
}

/// Feeds the hash; every value is framed, so that no two graphs give the same bytes.
struct Encoder(Sha256);

impl Encoder {
    fn graph(&mut self, graph: &StreamGraph) {
        let StreamGraph { job_name, parallelism: _, max_parallelism, configuration, nodes, edges } = graph;
        self.option(job_name.as_deref(), Self::text);
        self.option(*max_parallelism, Self::u32);
        let settings: Vec<_> = configuration.iter().filter(|(key, _)| *key != options::PARALLELISM.key).collect();
        self.list(&settings, |encoder, (key, value)| {
            encoder.text(key);
            encoder.text(value);
        });
        self.list(nodes, Self::node);
        self.list(edges, Self::edge);
    }

    fn node(&mut self, node: &StreamNode) {
        let StreamNode {
            id,
            name,
            operator,
            uid,
            uid_hash,
            parallelism: _,
            max_parallelism,
            slot_sharing_group,
            co_location_group,
            chaining,
            buffer_timeout,
            input_types,
            output_type,
            key_type,
            states,
            generates_watermarks,
        } = node;
        self.u32(*id);
        self.text(name);
        self.operator(operator);
        self.option(uid.as_deref(), Self::text);
        self.option(uid_hash.as_deref(), Self::text);
        self.option(*max_parallelism, Self::u32);
        self.option(slot_sharing_group.as_deref(), Self::text);
        self.option(co_location_group.as_deref(), Self::text);
        self.byte(match chaining {
            ChainingStrategy::Always => 0,
            ChainingStrategy::Never => 1,
            ChainingStrategy::Head => 2,
            ChainingStrategy::HeadWithSources => 3,
        });
        self.option(*buffer_timeout, |encoder, millis| encoder.bytes(&millis.to_le_bytes()));
        self.list(input_types, |encoder, text| encoder.text(text));
        self.option(output_type.as_deref(), Self::text);
        self.option(key_type.as_deref(), Self::text);
        self.list(states, Self::state);
        self.byte(u8::from(*generates_watermarks));
    }

    fn operator(&mut self, operator: &Operator) {
        match operator {
            Operator::Source(connector) => self.connector(0, connector),
            Operator::Sink(connector) => self.connector(1, connector),
            Operator::Guest(kind) => {
                self.byte(2);
                self.text(kind);
            }
            Operator::GuestSource(kind) => {
                self.byte(3);
                self.text(kind);
            }
        }
    }

    fn connector(&mut self, tag: u8, connector: &ConnectorSpec) {
        let ConnectorSpec { name, options } = connector;
        self.byte(tag);
        self.text(name);
        self.list(&options.iter().collect::<Vec<_>>(), |encoder, (name, value)| {
            encoder.text(name);
            encoder.text(value);
        });
    }

    fn state(&mut self, state: &StateDeclaration) {
        let StateDeclaration { name, kind, value_type, map_key_type, time_to_live, taken_at_end } = state;
        self.text(name);
        self.byte(match kind {
            StateKind::Value => 0,
            StateKind::List => 1,
            StateKind::Map => 2,
            StateKind::Reducing => 3,
            StateKind::Aggregating => 4,
            StateKind::Broadcast => 5,
            StateKind::OperatorList => 6,
            StateKind::OperatorUnionList => 7,
        });
        self.text(value_type);
        self.option(map_key_type.as_deref(), Self::text);
        self.option(*time_to_live, |encoder, millis| encoder.bytes(&millis.to_le_bytes()));
        self.byte(u8::from(*taken_at_end));
    }

    fn edge(&mut self, edge: &StreamEdge) {
        let StreamEdge { source, target, input, partitioner, side_output, selector, record_type } = edge;
        self.u32(*source);
        self.u32(*target);
        self.u32(*input);
        self.option(*partitioner, |encoder, partitioner| {
            encoder.byte(match partitioner {
                Partitioner::Forward => 0,
                Partitioner::Rebalance => 1,
                Partitioner::Rescale => 2,
                Partitioner::Shuffle => 3,
                Partitioner::Broadcast => 4,
                Partitioner::Global => 5,
                Partitioner::Hash => 6,
                Partitioner::Custom => 7,
            });
        });
        self.option(side_output.as_deref(), Self::text);
        self.option(*selector, Self::u32);
        self.text(record_type);
    }

    fn list<T>(&mut self, items: &[T], mut item: impl FnMut(&mut Self, &T)) {
        self.length(items.len());
        for element in items {
            item(self, element);
        }
    }

    fn option<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            None => self.byte(0),
            Some(value) => {
                self.byte(1);
                write(self, value);
            }
        }
    }

    fn text(&mut self, text: &str) {
        self.length(text.len());
        self.bytes(text.as_bytes());
    }

    fn length(&mut self, length: usize) {
        self.u32(u32::try_from(length).expect("a graph that was handed over is smaller than 4 GiB"));
    }

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn byte(&mut self, byte: u8) {
        self.bytes(&[byte]);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(id: u32) -> StreamNode {
        StreamNode {
            id,
            name: "Map".into(),
            operator: Operator::Guest("Map".into()),
            uid: None,
            uid_hash: None,
            parallelism: None,
            max_parallelism: None,
            slot_sharing_group: None,
            co_location_group: None,
            chaining: ChainingStrategy::Always,
            buffer_timeout: None,
            input_types: vec!["string".into()],
            output_type: Some("string".into()),
            key_type: None,
            states: vec![],
            generates_watermarks: false,
        }
    }

    fn edge() -> StreamEdge {
        StreamEdge {
            source: 1,
            target: 2,
            input: 0,
            partitioner: None,
            side_output: None,
            selector: None,
            record_type: "string".into(),
        }
    }

    fn graph() -> StreamGraph {
        StreamGraph { nodes: vec![node(1), node(2)], edges: vec![edge()], ..StreamGraph::default() }
    }

    #[test]
    fn the_empty_graph_hashes_the_documented_bytes() {
        // No name, no max parallelism, three empty lists.
        let expected: [u8; 32] = Sha256::digest([0; 2 + 3 * 4]).into();
        assert_eq!(graph_digest(&StreamGraph::default()), GraphDigest::from_bytes(expected));
    }

    #[test]
    fn parallelism_takes_no_part() {
        let mut other = graph();
        other.parallelism = Some(4);
        other.nodes[0].parallelism = Some(7);
        other.configuration.insert("parallelism.default".into(), "3".into());
        assert_eq!(graph_digest(&other), graph_digest(&graph()));
    }

    #[test]
    fn every_other_change_gives_another_digest() {
        let changes: Vec<fn(&mut StreamGraph)> = vec![
            |graph| graph.job_name = Some(String::new()),
            |graph| graph.max_parallelism = Some(128),
            |graph| drop(graph.configuration.insert("a".into(), "b".into())),
            |graph| drop(graph.configuration.insert("ab".into(), String::new())),
            |graph| drop(graph.nodes.pop()),
            |graph| graph.nodes[0].id = 3,
            |graph| graph.nodes[0].name.push('x'),
            |graph| graph.nodes[0].operator = Operator::GuestSource("Map".into()),
            |graph| {
                graph.nodes[0].operator = Operator::Source(ConnectorSpec { name: "file".into(), options: [].into() });
            },
            |graph| {
                graph.nodes[0].operator = Operator::Sink(ConnectorSpec { name: "file".into(), options: [].into() });
            },
            |graph| {
                graph.nodes[0].operator = Operator::Sink(ConnectorSpec {
                    name: "file".into(),
                    options: [("path".into(), "b".into())].into(),
                });
            },
            |graph| graph.nodes[0].uid = Some("a".into()),
            |graph| graph.nodes[0].uid_hash = Some("a".into()),
            |graph| graph.nodes[0].max_parallelism = Some(1),
            |graph| graph.nodes[0].slot_sharing_group = Some("a".into()),
            |graph| graph.nodes[0].co_location_group = Some("a".into()),
            |graph| graph.nodes[0].chaining = ChainingStrategy::Head,
            |graph| graph.nodes[0].buffer_timeout = Some(0),
            |graph| graph.nodes[0].input_types.push("string".into()),
            |graph| graph.nodes[0].output_type = None,
            |graph| graph.nodes[0].key_type = Some("u32".into()),
            |graph| {
                graph.nodes[0].states.push(StateDeclaration {
                    name: "sum".into(),
                    kind: StateKind::Value,
                    value_type: "u64".into(),
                    map_key_type: None,
                    time_to_live: None,
                    taken_at_end: false,
                });
            },
            |graph| drop(graph.edges.pop()),
            |graph| graph.edges[0].source = 9,
            |graph| graph.edges[0].target = 9,
            |graph| graph.edges[0].input = 1,
            |graph| graph.edges[0].partitioner = Some(Partitioner::Forward),
            |graph| graph.edges[0].partitioner = Some(Partitioner::Hash),
            |graph| graph.edges[0].side_output = Some("late".into()),
            |graph| graph.edges[0].selector = Some(0),
            |graph| graph.edges[0].record_type = "bytes".into(),
        ];
        let mut digests = vec![graph_digest(&graph())];
        for change in &changes {
            let mut changed = graph();
            change(&mut changed);
            digests.push(graph_digest(&changed));
        }
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), changes.len() + 1);
    }
}
