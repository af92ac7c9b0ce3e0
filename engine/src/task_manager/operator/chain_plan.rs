//! Decides how the operators of a job vertex run: which are fused into one
//! segment, and where the rows of each go.
//!
//! An operator of a plugin joins the segment of the operator before it if both
//! are of one plugin and rows come to it from nowhere else. A segment is thus a
//! tree that rows enter at one operator. Pure: nothing is opened here.

use crate::{
    base::ids::BlobDigest,
    graph::{
        job_graph::JobVertex,
        stream_graph::{Operator, Partitioner},
    },
    wasm::SegmentOutput,
};

/// A deployment does not fit its vertex: a bug of the JobMaster.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum PlanError {
    /// Another number of gates than the vertex has inputs.
    #[error("vertex \"{vertex}\" has {inputs} inputs, but {gates} input gates were deployed")]
    Gates {
        /// Name of the vertex.
        vertex: String,
        /// Inputs of the vertex.
        inputs: usize,
        /// Gates deployed.
        gates: usize,
    },
    /// Another number of partitions than the vertex has outputs.
    #[error("vertex \"{vertex}\" has {outputs} outputs, but {partitions} result partitions were deployed")]
    Partitions {
        /// Name of the vertex.
        vertex: String,
        /// Outputs of the vertex.
        outputs: usize,
        /// Partitions deployed.
        partitions: usize,
    },
    /// An edge names a node that is not one of the vertex.
    #[error("vertex \"{vertex}\" has no operator {node}")]
    UnknownNode {
        /// Name of the vertex.
        vertex: String,
        /// Id of the node.
        node: u32,
    },
    /// An edge leads to an input that the operator does not have.
    #[error("operator {node} has no input {input}")]
    UnknownInput {
        /// Id of the node.
        node: u32,
        /// Zero-based input.
        input: u32,
    },
    /// An operator of a plugin without a plugin.
    #[error("operator {node} names no plugin")]
    NoPlugin {
        /// Id of the node.
        node: u32,
    },
}

/// Where rows go that leave a planned node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Destination {
    /// To another planned node of the chain.
    Node {
        /// Its place in [`ChainPlan::nodes`].
        node: usize,
        /// Its zero-based input.
        input: usize,
        /// Channel of that input's valve.
        channel: usize,
    },
    /// To the result partition at this place.
    Partition(usize),
}

/// One exit of a planned node with all that take its rows.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedOutput {
    /// The exit.
    pub exit: SegmentOutput,
    /// Who takes the rows.
    pub destinations: Vec<Destination>,
}

/// What runs a planned node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PlannedKind {
    /// A native source.
    Source,
    /// Operators of a plugin.
    Segment(BlobDigest),
    /// Operators of a plugin, the first of which is a source.
    SourceSegment(BlobDigest),
    /// A native sink.
    Sink,
}

/// Operators that run as one.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PlannedNode {
    /// What runs it.
    pub kind: PlannedKind,
    /// Places of the operators in [`JobVertex::operators`], the one that rows enter first.
    pub operators: Vec<usize>,
    /// Number of channels of each input: of gates, and one for each operator of
    /// the chain that sends rows there.
    pub inputs: Vec<usize>,
    /// Its exits.
    pub outputs: Vec<PlannedOutput>,
}

/// Where the elements of an input gate go.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct GateTarget {
    /// Place of the planned node.
    pub node: usize,
    /// Its zero-based input.
    pub input: usize,
    /// Channel of the input's valve for the gate's channel 0; the others follow.
    pub first_channel: usize,
}

/// How the operators of a vertex run.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ChainPlan {
    /// Each behind those that it takes rows from.
    pub nodes: Vec<PlannedNode>,
    /// By gate.
    pub gates: Vec<GateTarget>,
}

impl ChainPlan {
    /// Plans a vertex whose gates have so many channels, and whose partitions so
    /// many subpartitions.
    ///
    /// # Errors
    /// Returns an error if these do not fit the vertex.
    pub fn new(vertex: &JobVertex, gate_channels: &[usize], subpartitions: &[u32]) -> Result<Self, PlanError> {
        if vertex.inputs.len() != gate_channels.len() {
            return Err(PlanError::Gates {
                vertex: vertex.name.clone(),
                inputs: vertex.inputs.len(),
                gates: gate_channels.len(),
            });
        }
        if vertex.outputs.len() != subpartitions.len() {
            return Err(PlanError::Partitions {
                vertex: vertex.name.clone(),
                outputs: vertex.outputs.len(),
                partitions: subpartitions.len(),
            });
        }
        let mut planner = Planner { vertex, nodes: Vec::new(), planned: vec![0; vertex.operators.len()] };
        planner.place_operators()?;
        let gates = planner.connect_gates(gate_channels)?;
        planner.connect_chained_edges()?;
        planner.connect_partitions(subpartitions)?;
        Ok(Self { nodes: planner.nodes, gates })
    }
}

struct Planner<'a> {
    vertex: &'a JobVertex,
    nodes: Vec<PlannedNode>,
    /// By operator, the place of its planned node.
    planned: Vec<usize>,
}

impl Planner<'_> {
    fn operator(&self, node: u32) -> Result<usize, PlanError> {
        let found = self.vertex.operators.iter().position(|operator| operator.node.id == node);
        found.ok_or_else(|| PlanError::UnknownNode { vertex: self.vertex.name.clone(), node })
    }

    fn place_operators(&mut self) -> Result<(), PlanError> {
        // A node's id is above the ids of all that it takes rows from.
        let mut order: Vec<usize> = (0..self.vertex.operators.len()).collect();
        order.sort_by_key(|index| self.vertex.operators[*index].node.id);
        for index in order {
            if let Some(predecessor) = self.fused_with(index)? {
                let node = self.planned[predecessor];
                self.nodes[node].operators.push(index);
                self.planned[index] = node;
                continue;
            }
            let operator = &self.vertex.operators[index];
            let plugin = operator.plugin.ok_or(PlanError::NoPlugin { node: operator.node.id });
            let (kind, inputs) = match &operator.node.operator {
                Operator::Source(_) => (PlannedKind::Source, 0),
                Operator::Sink(_) => (PlannedKind::Sink, operator.node.input_types.len().max(1)),
                Operator::GuestSource(_) => (PlannedKind::SourceSegment(plugin?), 0),
                Operator::Guest(_) => (PlannedKind::Segment(plugin?), operator.node.input_types.len().max(1)),
            };
            self.planned[index] = self.nodes.len();
            self.nodes.push(PlannedNode { kind, operators: vec![index], inputs: vec![0; inputs], outputs: Vec::new() });
        }
        Ok(())
    }

    /// The operator whose segment an operator joins.
    fn fused_with(&self, index: usize) -> Result<Option<usize>, PlanError> {
        let operator = &self.vertex.operators[index];
        let node = operator.node.id;
        let mut edges = self.vertex.chained_edges.iter().filter(|edge| edge.target == node);
        let (Some(edge), None) = (edges.next(), edges.next()) else { return Ok(None) };
        let from_gate = self.vertex.inputs.iter().any(|input| input.target_node == node);
        let predecessor = self.operator(edge.source)?;
        let before = &self.vertex.operators[predecessor];
        let both_guests = operator.node.operator.is_guest() && before.node.operator.is_guest();
        let fused = both_guests && !from_gate && operator.plugin == before.plugin;
        Ok(fused.then_some(predecessor))
    }

    /// Adds channels to an input and returns the first of them.
    fn add_channels(&mut self, node: u32, input: u32, channels: usize) -> Result<(usize, usize), PlanError> {
        let planned = self.planned[self.operator(node)?];
        let unknown = PlanError::UnknownInput { node, input };
        let count = self.nodes[planned].inputs.get_mut(input as usize).ok_or(unknown)?;
        let first = *count;
        *count += channels;
        Ok((planned, first))
    }

    fn connect_gates(&mut self, gate_channels: &[usize]) -> Result<Vec<GateTarget>, PlanError> {
        let vertex = self.vertex;
        let connect = |(edge, channels): (&crate::graph::job_graph::JobEdge, &usize)| {
            let (node, first_channel) = self.add_channels(edge.target_node, edge.input, *channels)?;
            Ok(GateTarget { node, input: edge.input as usize, first_channel })
        };
        vertex.inputs.iter().zip(gate_channels).map(connect).collect()
    }

    fn connect_chained_edges(&mut self) -> Result<(), PlanError> {
        for edge in &self.vertex.chained_edges {
            let source = self.planned[self.operator(edge.source)?];
            if source == self.planned[self.operator(edge.target)?] {
                continue;
            }
            let (node, channel) = self.add_channels(edge.target, edge.input, 1)?;
            let exit = SegmentOutput {
                node: edge.source,
                side_output: edge.side_output.clone(),
                selector: edge.selector,
                channels: 0,
            };
            let destination = Destination::Node { node, input: edge.input as usize, channel };
            self.add_destination(source, exit, destination);
        }
        Ok(())
    }

    fn connect_partitions(&mut self, subpartitions: &[u32]) -> Result<(), PlanError> {
        for (index, (data_set, channels)) in self.vertex.outputs.iter().zip(subpartitions).enumerate() {
            let source = self.planned[self.operator(data_set.edge.source)?];
            let exit = SegmentOutput {
                node: data_set.edge.source,
                side_output: data_set.edge.side_output.clone(),
                selector: data_set.edge.selector,
                channels: if data_set.partitioner == Partitioner::Custom { *channels } else { 0 },
            };
            self.add_destination(source, exit, Destination::Partition(index));
        }
        Ok(())
    }

    /// Destinations that take the same rows share one exit.
    fn add_destination(&mut self, source: usize, exit: SegmentOutput, destination: Destination) {
        let outputs = &mut self.nodes[source].outputs;
        match outputs.iter_mut().find(|output| output.exit == exit) {
            Some(output) => output.destinations.push(destination),
            None => outputs.push(PlannedOutput { exit, destinations: vec![destination] }),
        }
    }
}

#[cfg(test)]
mod tests;
