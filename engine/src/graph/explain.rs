//! What becomes of a program, for `engine plan`: the stream graph, why each edge is
//! chained or not, and the job graph.
//!
//! `Display` is for people, `Serialize` for scripts; both are deterministic.

use std::{collections::BTreeMap, fmt};

use engine_rows::descriptor::TypeDescriptor;
use serde::Serialize;

use super::{
    chaining::{Chaining, ChainingDecision},
    error::InvalidGraph,
    job_graph::{JobGraph, JobVertex},
    plan::operator_tree,
    resolved::{ResolvedNode, ResolvedStreamGraph},
    slot_sharing,
    stream_graph::{Operator, StreamGraph},
    validate::validate,
};

/// Characters of a type in the text; JSON has all of it.
const TYPE_CHARS_MAX: usize = 48;

/// A program, explained.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// Name of the job.
    pub job: String,
    /// Nodes in ascending order of id.
    pub nodes: Vec<ExplainedNode>,
    /// Edges in the program's order.
    pub edges: Vec<ExplainedEdge>,
    /// Vertices in topological order.
    pub vertices: Vec<ExplainedVertex>,
    /// Slots by slot sharing group.
    pub slots: BTreeMap<String, u32>,
    /// Names of sources that are not run, since nothing reads them.
    pub unused_sources: Vec<String>,
}

/// A node of the stream graph.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedNode {
    /// Id in the program.
    pub id: u32,
    /// Name.
    pub name: String,
    /// What it does, such as "source file" or "Map".
    pub kind: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Group whose subtasks share slots.
    pub slot_sharing_group: String,
    /// Types of the inputs.
    pub input_types: Vec<String>,
    /// Type of the main output.
    pub output_type: Option<String>,
    /// As set by the program.
    pub uid: Option<String>,
    /// Id under which state is kept.
    pub operator_id: String,
    /// Id of the vertex that runs it.
    pub vertex: String,
}

/// An edge of the stream graph.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedEdge {
    /// Id of the producing node.
    pub source: u32,
    /// Id of the consuming node.
    pub target: u32,
    /// Zero-based input of the target.
    pub input: u32,
    /// Side output of the source.
    pub side_output: Option<String>,
    /// Name of the partitioner.
    pub partitioner: String,
    /// True if the program did not choose the partitioner.
    pub partitioner_is_default: bool,
    /// Type of the records.
    pub record_type: String,
    /// True if both ends run in one task.
    pub chained: bool,
    /// Why not, in words; empty if chained.
    pub not_chained_because: Vec<String>,
}

/// A vertex of the job graph.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedVertex {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups.
    pub max_parallelism: u32,
    /// Group whose subtasks share slots.
    pub slot_sharing_group: String,
    /// Group whose subtasks of one index share a slot.
    pub co_location_group: Option<String>,
    /// The chained operators as a tree, a line each.
    pub operators: Vec<String>,
    /// What it consumes, in the order of its gates.
    pub inputs: Vec<ExplainedInput>,
}

/// A gate of a vertex.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedInput {
    /// Id of the producing vertex.
    pub producer: String,
    /// Name of the producing vertex.
    pub producer_name: String,
    /// Name of the partitioner.
    pub partitioner: String,
    /// "ALL_TO_ALL" or "POINTWISE".
    pub pattern: String,
}

/// Explains a program by its stream graph and the job graph that was made of it.
///
/// # Errors
/// Returns an error if the stream graph is not valid: then it is not that of the
/// job graph.
pub fn explain(stream_graph: &StreamGraph, job_graph: &JobGraph) -> Result<Explanation, InvalidGraph> {
    let graph = validate(stream_graph, &job_graph.configuration)?;
    let chaining = Chaining::of(&graph);
    let slots = slot_sharing::slots_by_group(job_graph);
    Ok(Explanation {
        job: job_graph.name.clone(),
        nodes: graph.nodes().iter().map(|node| explain_node(node, job_graph)).collect(),
        edges: (0..graph.edges().len()).map(|edge| explain_edge(&graph, edge, &chaining.decisions[edge])).collect(),
        vertices: job_graph.vertices.iter().map(|vertex| explain_vertex(vertex, job_graph)).collect(),
        slots: slots.into_iter().map(|(group, slots)| (group.to_owned(), slots)).collect(),
        unused_sources: graph.unused_sources().iter().map(|node| node.name.clone()).collect(),
    })
}

fn explain_node(resolved: &ResolvedNode, job_graph: &JobGraph) -> ExplainedNode {
    let node = &resolved.node;
    let is_node = |vertex: &&JobVertex| vertex.operators.iter().any(|operator| operator.node.id == node.id);
    let vertex = job_graph.vertices.iter().find(is_node);
    let operators = job_graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let operator = operators.into_iter().find(|operator| operator.node.id == node.id);
    ExplainedNode {
        id: node.id,
        name: node.name.clone(),
        kind: match &node.operator {
            Operator::Source(connector) => format!("source {}", connector.name),
            Operator::Sink(connector) => format!("sink {}", connector.name),
            Operator::Guest(kind) => kind.clone(),
            Operator::GuestSource(kind) => format!("source {kind} of the plugin"),
        },
        parallelism: resolved.parallelism,
        max_parallelism: resolved.max_parallelism,
        slot_sharing_group: resolved.slot_sharing_group.clone(),
        input_types: node.input_types.clone(),
        output_type: node.output_type.clone(),
        uid: node.uid.clone(),
        operator_id: operator.map_or_else(String::new, |operator| operator.operator_id.to_string()),
        vertex: vertex.map_or_else(String::new, |vertex| vertex.id.to_string()),
    }
}

fn explain_edge(graph: &ResolvedStreamGraph, index: usize, decision: &ChainingDecision) -> ExplainedEdge {
    let resolved = &graph.edges()[index];
    let edge = &resolved.edge;
    ExplainedEdge {
        source: edge.source,
        target: edge.target,
        input: edge.input,
        side_output: edge.side_output.clone(),
        partitioner: resolved.partitioner.to_string(),
        partitioner_is_default: edge.partitioner.is_none(),
        record_type: edge.record_type.clone(),
        chained: decision.is_chained(),
        not_chained_because: match decision {
            ChainingDecision::Chained => Vec::new(),
            ChainingDecision::NotChained(reasons) => reasons.iter().map(ToString::to_string).collect(),
        },
    }
}

fn explain_vertex(vertex: &JobVertex, job_graph: &JobGraph) -> ExplainedVertex {
    let lines = operator_tree(vertex);
    let inputs = vertex.inputs.iter().map(|input| ExplainedInput {
        producer: input.producer.to_string(),
        producer_name: job_graph.vertex(input.producer).map_or_else(String::new, |producer| producer.name.clone()),
        partitioner: input.partitioner.to_string(),
        pattern: input.pattern.to_string(),
    });
    ExplainedVertex {
        id: vertex.id.to_string(),
        name: vertex.name.clone(),
        parallelism: vertex.parallelism,
        max_parallelism: vertex.max_parallelism,
        slot_sharing_group: vertex.slot_sharing_group.clone(),
        co_location_group: vertex.co_location_group.clone(),
        operators: lines.iter().map(|line| format!("{}{} {}", line.prefix, line.id, line.name)).collect(),
        inputs: inputs.collect(),
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subtasks: u64 = self.vertices.iter().map(|vertex| u64::from(vertex.parallelism)).sum();
        writeln!(formatter, "Job \"{}\": {} vertices, {subtasks} subtasks", self.job, self.vertices.len())?;
        writeln!(formatter, "\nStream graph")?;
        let nodes = self.nodes.iter().map(|node| {
            let inputs: Vec<_> = node.input_types.iter().map(|text| short_type(text)).collect();
            let output = node.output_type.as_deref().map_or_else(|| "()".to_owned(), short_type);
            let types = format!("{} -> {output}", if inputs.is_empty() { "()".to_owned() } else { inputs.join(", ") });
            let parallelism = format!("parallelism {}", node.parallelism);
            [node.id.to_string(), node.name.clone(), node.kind.clone(), parallelism, types]
        });
        write_columns(formatter, &nodes.collect::<Vec<_>>())?;
        for source in &self.unused_sources {
            writeln!(formatter, "  not run, since nothing reads it: {source}")?;
        }
        writeln!(formatter, "\nEdges")?;
        let edges = self.edges.iter().map(|edge| {
            let input = if edge.input == 0 { String::new() } else { format!(" (input {})", edge.input) };
            let side_output =
                edge.side_output.as_ref().map_or_else(String::new, |name| format!(", side output {name}"));
            let decision = match edge.chained {
                true => "chained".to_owned(),
                false => format!("not chained: {}", edge.not_chained_because.join("; ")),
            };
            [format!("{} -> {}{input}{side_output}", edge.source, edge.target), edge.partitioner.clone(), decision]
        });
        write_columns(formatter, &edges.collect::<Vec<_>>())?;
        writeln!(formatter, "\nJob graph")?;
        self.vertices.iter().try_for_each(|vertex| write_vertex(formatter, vertex))?;
        writeln!(formatter, "\nSlots")?;
        self.slots.iter().try_for_each(|(group, slots)| writeln!(formatter, "  {slots} in group {group}"))
    }
}

fn write_vertex(formatter: &mut fmt::Formatter<'_>, vertex: &ExplainedVertex) -> fmt::Result {
    writeln!(formatter, "  {}", vertex.name)?;
    write!(formatter, "    id {}, parallelism {}, ", vertex.id, vertex.parallelism)?;
    write!(formatter, "max parallelism {}, slot sharing group {}", vertex.max_parallelism, vertex.slot_sharing_group)?;
    match &vertex.co_location_group {
        Some(group) => writeln!(formatter, ", co-location group {group}")?,
        None => writeln!(formatter)?,
    }
    for input in &vertex.inputs {
        writeln!(formatter, "    <= {} ({}, {})", input.producer_name, input.partitioner, input.pattern)?;
    }
    vertex.operators.iter().try_for_each(|line| writeln!(formatter, "    {line}"))
}

/// Rows of equal columns, two spaces between; the last column is not padded.
fn write_columns<const N: usize>(formatter: &mut fmt::Formatter<'_>, rows: &[[String; N]]) -> fmt::Result {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<_> = (0..N).map(width).collect();
    for row in rows {
        let (last, cells) = row.split_last().expect("a row has columns");
        for (cell, width) in cells.iter().zip(&widths) {
            write!(formatter, "  {cell:width$}")?;
        }
        writeln!(formatter, "  {last}")?;
    }
    Ok(())
}

/// The name of a struct or sum, and anything else cut.
fn short_type(text: &str) -> String {
    match TypeDescriptor::parse(text) {
        Ok(TypeDescriptor::Struct { name, .. }) => format!("{name}{{…}}"),
        Ok(TypeDescriptor::Sum { name, .. }) => format!("{name}[…]"),
        Ok(_) if text.chars().nth(TYPE_CHARS_MAX).is_none() => text.to_owned(),
        Ok(_) | Err(_) => text.chars().take(TYPE_CHARS_MAX).chain(['…']).collect(),
    }
}
