//! From what the user wrote to what is submitted. Knows nothing of threads or Wasm.
//!
//! ```text
//! StreamGraph -validate-> ResolvedStreamGraph -chaining, operator_ids-> JobGraph
//!                                  |                                      |
//!                               explain                   plan, job_graph_codec, regions
//! ```

pub mod stream_graph;
pub mod error;
pub mod resolved;
pub mod validate;
pub mod partitioner;
pub mod chaining;
pub mod operator_ids;
pub mod digest;
pub mod job_graph;
pub mod job_graph_generator;
pub mod job_graph_validation;
pub mod job_graph_codec;
pub mod plan;
pub mod explain;
pub mod distribution;
pub mod regions;
pub mod slot_sharing;

#[cfg(test)]
mod tests;
