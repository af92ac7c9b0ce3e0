//! Tests of the way from a stream graph to a JobGraph, over whole programs.

mod programs;
mod chaining;
mod validation;
mod job_graph;
mod explanation;
