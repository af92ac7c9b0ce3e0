//! Flink's JSON plan of a job, as REST shows it under `plan`.
//!
//! Source: Flink's `JsonPlanGenerator`. Vertices stand in topological order, and
//! descriptions are trees of the chained operators, a line each.

use std::collections::BTreeMap;

use serde::Serialize;

use super::job_graph::{JobGraph, JobVertex};

#[derive(Serialize)]
struct Plan<'a> {
    jid: String,
    name: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    nodes: Vec<PlanNode>,
}

#[derive(Serialize)]
struct PlanNode {
    id: String,
    parallelism: u32,
    operator: &'static str,
    operator_strategy: &'static str,
    description: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    inputs: Vec<PlanInput>,
    optimizer_properties: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct PlanInput {
    num: usize,
    id: String,
    ship_strategy: &'static str,
    exchange: &'static str,
}

/// The plan as text of a JSON object.
pub fn json_plan(job_graph: &JobGraph) -> String {
    let nodes = job_graph.vertices.iter().map(|vertex| PlanNode {
        id: vertex.id.to_string(),
        parallelism: vertex.parallelism,
        operator: "",
        operator_strategy: "",
        description: description(vertex),
        inputs: inputs(vertex),
        optimizer_properties: BTreeMap::new(),
    });
    let plan =
        Plan { jid: job_graph.job_id.to_string(), name: &job_graph.name, kind: "STREAMING", nodes: nodes.collect() };
    serde_json::to_string(&plan).expect("text and numbers serialize")
}

fn inputs(vertex: &JobVertex) -> Vec<PlanInput> {
    let inputs = vertex.inputs.iter().enumerate().map(|(num, input)| PlanInput {
        num,
        id: input.producer.to_string(),
        ship_strategy: input.partitioner.ship_strategy(),
        exchange: "pipelined_bounded",
    });
    inputs.collect()
}

/// Each line of the tree, escaped for HTML and ended by `<br/>`.
fn description(vertex: &JobVertex) -> String {
    let mut text = String::new();
    for line in operator_tree(vertex) {
        text.push_str(&line.prefix);
        for character in line.name.chars() {
            match character {
                '&' => text.push_str("&amp;"),
                '<' => text.push_str("&lt;"),
                '>' => text.push_str("&gt;"),
                '"' => text.push_str("&quot;"),
                '\\' => text.push_str("&#92;"),
                other => text.push(other),
            }
        }
        text.push_str("<br/>");
    }
    text
}

/// An operator in the tree of its vertex.
pub(super) struct TreeLine<'a> {
    /// Branches left of the name: ":- ", "+- ", ":  " and "   ".
    pub(super) prefix: String,
    /// Id of the node.
    pub(super) id: u32,
    /// Name of the node.
    pub(super) name: &'a str,
}

/// The chained operators as a tree, in the order of the vertex's operators.
pub(super) fn operator_tree(vertex: &JobVertex) -> Vec<TreeLine<'_>> {
    let mut children: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for edge in &vertex.chained_edges {
        children.entry(edge.source).or_default().push(edge.target);
    }
    let mut prefixes: BTreeMap<u32, String> = BTreeMap::new();
    let mut lines = Vec::with_capacity(vertex.operators.len());
    // An operator stands behind the one it takes records from, whose prefix is known.
    for operator in &vertex.operators {
        let node = &operator.node;
        let prefix = prefixes.remove(&node.id).unwrap_or_default();
        let below = prefix.replace("+-", "  ").replace(":-", ": ");
        let targets = children.remove(&node.id).unwrap_or_default();
        for (index, target) in targets.iter().enumerate() {
            let branch = if index + 1 == targets.len() { "+- " } else { ":- " };
            prefixes.insert(*target, format!("{below}{branch}"));
        }
        lines.push(TreeLine { prefix, id: node.id, name: &node.name });
    }
    lines
}
