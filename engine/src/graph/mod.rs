//! From what the user wrote to what is submitted. Knows nothing of threads or Wasm.

pub mod stream_graph;
pub mod digest;
pub mod job_graph;
