//! Job graphs for the tests of this module: sources without edges.

use crate::{
    base::ids::{BlobDigest, GraphDigest, JobId, JobVertexId, OperatorId},
    graph::{
        job_graph::{ChainedOperator, Grants, JobGraph, JobVertex, ProgramSpec},
        stream_graph::{ChainingStrategy, ConnectorSpec, Operator, StreamNode},
    },
    job_manager::blob_store::BlobStore,
};

/// Bytes of the plugin that [`job_graph`] names.
pub(crate) const PLUGIN: &[u8] = b"a plugin";

/// A job with id `number` and one vertex per name and parallelism, all in one slot
/// sharing group.
pub(crate) fn job_graph(number: u8, vertices: &[(&str, u32)]) -> JobGraph {
    let vertices = (0..).zip(vertices).map(|(index, (name, parallelism))| vertex(index, name, *parallelism));
    JobGraph {
        job_id: JobId::from_bytes([number; 16]),
        name: format!("job {number}"),
        vertices: vertices.collect(),
        configuration: Default::default(),
        program: ProgramSpec {
            plugin: BlobStore::digest(PLUGIN),
            plugin_name: "test.wasm".to_owned(),
            args: Vec::new(),
            graph_digest: GraphDigest::from_bytes([0; 32]),
        },
        grants: Grants::default(),
        artifacts: Vec::new(),
        json_plan: "{}".to_owned(),
    }
}

fn vertex(index: u8, name: &str, parallelism: u32) -> JobVertex {
    let operator = Operator::Source(ConnectorSpec { name: "sequence".to_owned(), options: Default::default() });
    JobVertex {
        id: JobVertexId::from_bytes([index + 1; 16]),
        name: name.to_owned(),
        parallelism,
        max_parallelism: 128,
        max_parallelism_configured: false,
        operators: vec![ChainedOperator {
            node: StreamNode {
                id: u32::from(index) + 1,
                name: name.to_owned(),
                operator,
                uid: None,
                uid_hash: None,
                parallelism: Some(parallelism),
                max_parallelism: None,
                slot_sharing_group: None,
                co_location_group: None,
                chaining: ChainingStrategy::Always,
                buffer_timeout: None,
                input_types: Vec::new(),
                output_type: Some("i64".to_owned()),
                key_type: None,
                states: Vec::new(),
                generates_watermarks: false,
            },
            operator_id: OperatorId::from_bytes([index + 1; 16]),
            user_defined_id: None,
            plugin: None::<BlobDigest>,
            managed_memory_fraction: 0.0,
        }],
        chained_edges: Vec::new(),
        inputs: Vec::new(),
        outputs: Vec::new(),
        slot_sharing_group: "default".to_owned(),
        co_location_group: None,
        resources: None,
    }
}
