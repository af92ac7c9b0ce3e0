//! Ids under which the state of operators is kept.
//!
//! An operator with a uid has the hash of the uid; another one has a hash of its
//! place in the graph. Neither depends on node ids, names, parallelism or code.
//!
//! Source: Flink's `StreamGraphHasherV2`; the hash is MurmurHash3 x64 128-bit, seed 0.

use std::collections::VecDeque;

use super::resolved::ResolvedStreamGraph;
use crate::base::ids::{IntermediateDataSetId, JobVertexId, OperatorId};

/// MurmurHash3 x64 128-bit with seed 0, both halves little-endian.
pub fn murmur3_x64_128(bytes: &[u8]) -> [u8; 16] {
    const C1: u64 = 0x87c3_7b91_1142_53d5;
    const C2: u64 = 0x4cf5_ad43_2745_937f;
    let mix1 = |k: u64| k.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2);
    let mix2 = |k: u64| k.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1);
    let halves = |block: &[u8; 16]| {
        let whole = u128::from_le_bytes(*block);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves of the block")]
        let halves = (whole as u64, (whole >> 64) as u64);
        halves
    };
    let (blocks, tail) = bytes.as_chunks::<16>();
    let (mut h1, mut h2) = (0_u64, 0_u64);
    for block in blocks {
        let (k1, k2) = halves(block);
        h1 ^= mix1(k1);
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52dc_e729);
        h2 ^= mix2(k2);
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5ab5);
    }
    // Zeros behind the tail mix to zero, so that they change nothing.
    let mut last = [0; 16];
    last[..tail.len()].copy_from_slice(tail);
    let (k1, k2) = halves(&last);
    h1 ^= mix1(k1);
    h2 ^= mix2(k2);
    let length = bytes.len() as u64;
    h1 ^= length;
    h2 ^= length;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    h1 = finalize(h1);
    h2 = finalize(h2);
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    (u128::from(h1) | (u128::from(h2) << 64)).to_le_bytes()
}

fn finalize(mut half: u64) -> u64 {
    half = (half ^ (half >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    half = (half ^ (half >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    half ^ (half >> 33)
}

/// The id of an operator with a uid.
pub fn of_uid(uid: &str) -> OperatorId {
    OperatorId::from_bytes(murmur3_x64_128(uid.as_bytes()))
}

/// The id of a vertex, given its head's.
pub fn vertex_id(head: OperatorId) -> JobVertexId {
    JobVertexId::from_bytes(*head.as_bytes())
}

/// The id of the zero-based output of a vertex: a hash of both.
pub fn data_set_id(producer: JobVertexId, output: u32) -> IntermediateDataSetId {
    let mut bytes = [0; 20];
    bytes[..16].copy_from_slice(producer.as_bytes());
    bytes[16..].copy_from_slice(&output.to_le_bytes());
    IntermediateDataSetId::from_bytes(murmur3_x64_128(&bytes))
}

/// Ids of all nodes, as `[node index]`; `chained` tells for each edge whether it is.
pub fn operator_ids(graph: &ResolvedStreamGraph, chained: &[bool]) -> Vec<OperatorId> {
    let uids: Vec<_> = graph.nodes().iter().map(|node| node.node.uid.as_deref()).collect();
    let edges: Vec<_> = graph
        .edges()
        .iter()
        .zip(chained)
        .map(|(edge, chained)| Link { source: edge.source, target: edge.target, chained: *chained })
        .collect();
    ids_of_topology(&uids, &edges)
}

/// An edge as far as the ids see it.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// Index of the node.
    source: usize,
    /// Index of the node.
    target: usize,
    chained: bool,
}

/// `uids` in ascending order of node id; the graph has no cycle.
fn ids_of_topology(uids: &[Option<&str>], edges: &[Link]) -> Vec<OperatorId> {
    let mut outputs = vec![Vec::new(); uids.len()];
    let mut inputs = vec![Vec::new(); uids.len()];
    for edge in edges {
        outputs[edge.source].push(edge);
        inputs[edge.target].push(edge.source);
    }
    let mut ids: Vec<Option<OperatorId>> = vec![None; uids.len()];
    let mut hashed = 0_u32;
    let mut visited: Vec<bool> = inputs.iter().map(Vec::is_empty).collect();
    let mut remaining: VecDeque<usize> = (0..uids.len()).filter(|node| visited[*node]).collect();
    while let Some(node) = remaining.pop_front() {
        let id = match uids[node] {
            Some(uid) => of_uid(uid),
            None => {
                let chained = outputs[node].iter().filter(|edge| edge.chained).count();
                let Some(id) = of_position(hashed, chained, inputs[node].iter().map(|input| ids[*input])) else {
                    // An input has no id yet: it will lead here again.
                    visited[node] = false;
                    continue;
                };
                id
            }
        };
        ids[node] = Some(id);
        hashed += 1;
        for edge in &outputs[node] {
            if !std::mem::replace(&mut visited[edge.target], true) {
                remaining.push_back(edge.target);
            }
        }
    }
    ids.into_iter().map(|id| id.expect("each node of an acyclic graph is reached from its sources")).collect()
}

/// The `count`-th hash, or nothing if an input has none yet.
fn of_position(
    count: u32,
    chained_outputs: usize,
    inputs: impl Iterator<Item = Option<OperatorId>>,
) -> Option<OperatorId> {
    let inputs = inputs.collect::<Option<Vec<_>>>()?;
    let mut hash = murmur3_x64_128(&count.to_le_bytes().repeat(1 + chained_outputs));
    for input in inputs {
        for (byte, other) in hash.iter_mut().zip(input.as_bytes()) {
            *byte = byte.wrapping_mul(37) ^ other;
        }
    }
    Some(OperatorId::from_bytes(hash))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Vectors {
        uid: Vec<UidRow>,
        graphs: Vec<GraphRow>,
    }

    #[derive(Deserialize)]
    struct UidRow {
        uid: String,
        hash_hex: String,
    }

    #[derive(Deserialize)]
    struct GraphRow {
        name: String,
        nodes: Vec<NodeRow>,
        edges: Vec<EdgeRow>,
        hash_hex: BTreeMap<u32, String>,
    }

    #[derive(Deserialize)]
    struct NodeRow {
        id: u32,
        uid: Option<String>,
        is_source: bool,
    }

    #[derive(Deserialize)]
    struct EdgeRow {
        from: u32,
        to: u32,
        chainable: bool,
    }

    fn vectors() -> Vectors {
        serde_json::from_str(include_str!("../../tests-data/operator_ids.json")).unwrap()
    }

    #[test]
    fn ids_of_uids_equal_flinks() {
        let rows = vectors().uid;
        assert_eq!(rows.len(), 11);
        for row in rows {
            assert_eq!(of_uid(&row.uid).to_string(), row.hash_hex, "{}", row.uid);
        }
    }

    /// Published vectors of MurmurHash3_x64_128 with seed 0.
    #[test]
    fn hashes_equal_the_published_vectors() {
        for (text, h1, h2) in [
            ("", 0_u64, 0_u64),
            ("hello", 0xcbd8_a7b3_41bd_9b02, 0x5b1e_906a_48ae_1d19),
            ("The quick brown fox jumps over the lazy dog", 0xe34b_bc7b_bc07_1b6c, 0x7a43_3ca9_c49a_9347),
        ] {
            let mut expected = h1.to_le_bytes().to_vec();
            expected.extend(h2.to_le_bytes());
            assert_eq!(murmur3_x64_128(text.as_bytes()).as_slice(), expected, "{text}");
        }
    }

    #[test]
    fn ids_of_graphs_equal_flinks() {
        let rows = vectors().graphs;
        assert_eq!(rows.len(), 13);
        for row in rows {
            let index: BTreeMap<u32, usize> = row.nodes.iter().enumerate().map(|(i, node)| (node.id, i)).collect();
            let uids: Vec<_> = row.nodes.iter().map(|node| node.uid.as_deref()).collect();
            let edges: Vec<_> = row
                .edges
                .iter()
                .map(|edge| Link { source: index[&edge.from], target: index[&edge.to], chained: edge.chainable })
                .collect();
            for node in &row.nodes {
                assert_eq!(node.is_source, edges.iter().all(|edge| edge.target != index[&node.id]), "{}", row.name);
            }
            let ids = ids_of_topology(&uids, &edges);
            for (node, expected) in &row.hash_hex {
                assert_eq!(&ids[index[node]].to_string(), expected, "{}: node {node}", row.name);
            }
        }
    }

    #[test]
    fn data_sets_of_one_vertex_differ() {
        let vertex = vertex_id(of_uid("a"));
        let ids: BTreeSet<_> = (0..100).map(|output| data_set_id(vertex, output)).collect();
        assert_eq!(ids.len(), 100);
        assert_ne!(data_set_id(vertex, 0), data_set_id(vertex_id(of_uid("b")), 0));
    }

    fn topologies() -> impl Strategy<Value = Vec<Link>> {
        proptest::collection::vec((0_usize..20, 0_usize..20, any::<bool>()), 0..40).prop_map(|edges| {
            edges
                .into_iter()
                .filter(|(one, other, _)| one != other)
                .map(|(one, other, chained)| Link { source: one.min(other), target: one.max(other), chained })
                .collect()
        })
    }

    proptest! {
        #[test]
        fn every_node_gets_an_id_of_its_own(edges in topologies()) {
            let ids = ids_of_topology(&[None; 20], &edges);
            prop_assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), 20);
            prop_assert_eq!(ids_of_topology(&[None; 20], &edges), ids);
        }

        #[test]
        fn uids_do_not_depend_on_the_topology(edges in topologies()) {
            let uids: Vec<_> = (0..20).map(|node| format!("uid {node}")).collect();
            let uids: Vec<_> = uids.iter().map(|uid| Some(uid.as_str())).collect();
            let expected: Vec<_> = uids.iter().flatten().map(|uid| of_uid(uid)).collect();
            prop_assert_eq!(ids_of_topology(&uids, &edges), expected);
        }
    }
}
