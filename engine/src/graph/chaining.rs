//! Which edges are chained, and the chains that follow from it.
//!
//! A chain is run by one task: its operators hand records over by direct call.
//!
//! # Invariants
//! Each node is in exactly one chain. All nodes of a chain have one parallelism and
//! one slot sharing group. Only the head of a chain has in-edges that are not chained.
//!
//! Source: Flink's `StreamingJobGraphGenerator#isChainable` and `#createChain`.
//!
//! One thing of Flink is not done: a source before an operator of several inputs
//! with the strategy HEAD_WITH_SOURCES does not become a source input within that
//! operator's task, since a task is driven by one source or by its gates. It is a
//! task of its own, and the decision for the edge says so. Results are the same.

use std::fmt;

use super::{
    resolved::{ResolvedNode, ResolvedStreamGraph},
    stream_graph::{ChainingStrategy, Operator, Partitioner},
};
use crate::base::config::options;

/// How the data of an edge is to be handed over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExchangeMode {
    /// Left to the engine, which hands it over while it is produced.
    Undefined,
    /// While it is produced.
    Pipelined,
    /// When it is complete.
    Batch,
}

/// What chaining looks at in one end of an edge.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EdgeEnd<'a> {
    /// How the node may be chained.
    pub strategy: ChainingStrategy,
    /// Slot sharing group.
    pub slot_sharing_group: &'a str,
    /// Number of subtasks.
    pub parallelism: u32,
    /// Number of key groups, if it was set.
    pub max_parallelism: Option<u32>,
}

/// All that decides whether an edge is chained.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct EdgeFacts<'a> {
    /// `pipeline.operator-chaining.enabled`.
    pub chaining_enabled: bool,
    /// `pipeline.operator-chaining.chain-operators-with-different-max-parallelism`.
    pub chain_different_max_parallelism: bool,
    /// The producing end.
    pub source: EdgeEnd<'a>,
    /// The consuming end.
    pub target: EdgeEnd<'a>,
    /// How records are dealt.
    pub partitioner: Partitioner,
    /// How data is handed over.
    pub exchange: ExchangeMode,
    /// Number of edges that lead to the target.
    pub target_in_edges: usize,
    /// True if another edge leads to the same input of the target.
    pub input_is_shared: bool,
    /// True if the producing end is a source that does not own a thread.
    pub source_is_new_source: bool,
    /// True if the target re-enters the mailbox while it processes.
    pub target_yields: bool,
    /// True if the chain of the producing end begins with a source that owns a thread.
    pub chain_head_is_legacy_source: bool,
}

/// A reason not to chain an edge.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NotChained {
    /// It is switched off for the job.
    Disabled,
    /// Several edges lead to the target.
    TargetInEdges(usize),
    /// The ends are in different slot sharing groups.
    SlotSharingGroups(String, String),
    /// The target would yield to a source that holds the thread.
    YieldsBehindLegacySource,
    /// The source end forbids it.
    SourceStrategy,
    /// The target's strategy forbids it.
    TargetStrategy(ChainingStrategy),
    /// The ends have different parallelism.
    Parallelism(u32, u32),
    /// The ends have different max parallelism, and the job forbids that.
    MaxParallelism(Option<u32>, Option<u32>),
    /// Records are not simply forwarded.
    Partitioner(Partitioner),
    /// Data is handed over only when complete.
    BatchExchange,
    /// Another edge leads to the same input.
    SharedInput,
    /// The edge would make the source an input within the target's task.
    SourceInput,
}

/// In words: the end of the sentence "not chained: …".
impl fmt::Display for NotChained {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let max = |parallelism: &Option<u32>| parallelism.map_or("unset".to_owned(), |value| value.to_string());
        match self {
            Self::Disabled => formatter.write_str("pipeline.operator-chaining.enabled is false"),
            Self::TargetInEdges(count) => {
                write!(formatter, "{count} edges lead to the target, chaining needs exactly one")
            }
            Self::SlotSharingGroups(source, target) => {
                let (source, target) = (super::error::quoted(source), super::error::quoted(target));
                write!(formatter, "the slot sharing groups differ, {source} and {target}")
            }
            Self::YieldsBehindLegacySource => {
                formatter.write_str("the target yields, and the chain begins with a source that owns its thread")
            }
            Self::SourceStrategy => formatter.write_str("chaining is disabled for the source end"),
            Self::TargetStrategy(ChainingStrategy::Never) => formatter.write_str("chaining is disabled for the target"),
            Self::TargetStrategy(ChainingStrategy::HeadWithSources) => {
                formatter.write_str("the target is chained behind sources only")
            }
            Self::TargetStrategy(ChainingStrategy::Head | ChainingStrategy::Always) => {
                formatter.write_str("the target starts a new chain")
            }
            Self::Parallelism(source, target) => {
                write!(formatter, "the parallelism differs, {source} and {target}")
            }
            Self::MaxParallelism(source, target) => {
                write!(formatter, "the max parallelism differs, {} and {}", max(source), max(target))
            }
            Self::Partitioner(partitioner) => {
                write!(formatter, "the partitioner is {partitioner}, chaining needs forward")
            }
            Self::BatchExchange => formatter.write_str("the exchange is batch, chaining needs pipelined"),
            Self::SharedInput => formatter.write_str("another edge leads to the same input (union)"),
            Self::SourceInput => {
                formatter.write_str("a source as an input within a task of several inputs is not provided")
            }
        }
    }
}

/// Whether an edge is chained, or else every reason why not.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum ChainingDecision {
    /// Both ends run in one task.
    Chained,
    /// Never empty.
    NotChained(Vec<NotChained>),
}

impl ChainingDecision {
    /// True if both ends run in one task.
    pub fn is_chained(&self) -> bool {
        *self == Self::Chained
    }
}

/// "chained", or "not chained: " and the reasons.
impl fmt::Display for ChainingDecision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chained => formatter.write_str("chained"),
            Self::NotChained(reasons) => {
                let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
                write!(formatter, "not chained: {}", reasons.join("; "))
            }
        }
    }
}

/// Decides over one edge.
pub fn decide(facts: &EdgeFacts<'_>) -> ChainingDecision {
    let mut reasons = Vec::new();
    let mut require = |holds: bool, reason: NotChained| {
        if !holds {
            reasons.push(reason);
        }
    };
    let (source, target) = (&facts.source, &facts.target);
    require(facts.chaining_enabled, NotChained::Disabled);
    require(facts.target_in_edges == 1, NotChained::TargetInEdges(facts.target_in_edges));
    require(
        source.slot_sharing_group == target.slot_sharing_group,
        NotChained::SlotSharingGroups(source.slot_sharing_group.to_owned(), target.slot_sharing_group.to_owned()),
    );
    // Flink's fourth condition, that both ends have an operator, holds for every node.
    require(!(facts.target_yields && facts.chain_head_is_legacy_source), NotChained::YieldsBehindLegacySource);
    require(source.strategy != ChainingStrategy::Never, NotChained::SourceStrategy);
    let target_allows = match target.strategy {
        ChainingStrategy::Always => true,
        ChainingStrategy::HeadWithSources => facts.source_is_new_source,
        ChainingStrategy::Never | ChainingStrategy::Head => false,
    };
    require(target_allows, NotChained::TargetStrategy(target.strategy));
    require(source.parallelism == target.parallelism, NotChained::Parallelism(source.parallelism, target.parallelism));
    require(
        facts.chain_different_max_parallelism || source.max_parallelism == target.max_parallelism,
        NotChained::MaxParallelism(source.max_parallelism, target.max_parallelism),
    );
    require(facts.partitioner == Partitioner::Forward, NotChained::Partitioner(facts.partitioner));
    require(facts.exchange != ExchangeMode::Batch, NotChained::BatchExchange);
    require(!facts.input_is_shared, NotChained::SharedInput);
    match reasons.is_empty() {
        true => ChainingDecision::Chained,
        false => ChainingDecision::NotChained(reasons),
    }
}

/// A chain: node and edge indices of the resolved graph.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chain {
    /// The head first, each behind the one it takes records from.
    pub nodes: Vec<usize>,
    /// Edges within the chain, in the order of the nodes they lead to.
    pub chained_edges: Vec<usize>,
    /// Edges that leave the chain: those of an operator behind those of the
    /// operators chained to it.
    pub out_edges: Vec<usize>,
}

impl Chain {
    /// Index of the head.
    pub fn head(&self) -> usize {
        self.nodes[0]
    }
}

/// The chaining of a whole graph.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Chaining {
    /// As `[edge index]`.
    pub decisions: Vec<ChainingDecision>,
    /// In the order in which Flink makes them: a chain behind those it leads to.
    pub chains: Vec<Chain>,
}

impl Chaining {
    /// Chains a graph.
    pub fn of(graph: &ResolvedStreamGraph) -> Self {
        let decisions: Vec<_> = (0..graph.edges().len()).map(|edge| decide_in(graph, edge)).collect();
        let is_chained: Vec<_> = decisions.iter().map(ChainingDecision::is_chained).collect();
        Self { chains: chains(graph, &is_chained), decisions }
    }

    /// Whether each edge is chained, as `[edge index]`.
    pub fn is_chained(&self) -> Vec<bool> {
        self.decisions.iter().map(ChainingDecision::is_chained).collect()
    }

    /// The index of the chain of each node, as `[node index]`.
    pub fn chain_of_nodes(&self) -> Vec<usize> {
        let mut chain_of = vec![0; self.chains.iter().map(|chain| chain.nodes.len()).sum()];
        for (index, chain) in self.chains.iter().enumerate() {
            chain.nodes.iter().for_each(|node| chain_of[*node] = index);
        }
        chain_of
    }
}

fn decide_in(graph: &ResolvedStreamGraph, edge_index: usize) -> ChainingDecision {
    let facts = edge_facts(graph, edge_index);
    let mut decision = decide(&facts);
    // Flink chains such a source whatever other edges lead to the target.
    let as_source_input = EdgeFacts { target_in_edges: 1, ..facts };
    if let ChainingDecision::NotChained(reasons) = &mut decision
        && facts.source_is_new_source
        && facts.target.strategy == ChainingStrategy::HeadWithSources
        && graph.out_edges(graph.edges()[edge_index].source).len() == 1
        && decide(&as_source_input).is_chained()
    {
        reasons.push(NotChained::SourceInput);
    }
    decision
}

fn edge_facts(graph: &ResolvedStreamGraph, edge_index: usize) -> EdgeFacts<'_> {
    let edge = &graph.edges()[edge_index];
    let (source, target) = (&graph.nodes()[edge.source], &graph.nodes()[edge.target]);
    let in_edges = graph.in_edges(edge.target);
    // Flink's sources make watermarks themselves; here an operator right behind does, which
    // must know of the source's splits.
    let is_part_of_source = matches!(source.node.operator, Operator::Source(_)) && target.node.generates_watermarks;
    EdgeFacts {
        chaining_enabled: is_part_of_source || graph.configuration().get(&options::OPERATOR_CHAINING),
        chain_different_max_parallelism: graph.configuration().get(&options::CHAIN_DIFFERENT_MAX_PARALLELISM),
        source: edge_end(source),
        target: edge_end(target),
        partitioner: edge.partitioner,
        exchange: ExchangeMode::Undefined,
        target_in_edges: in_edges.len(),
        input_is_shared: in_edges.iter().filter(|other| graph.edges()[**other].edge.input == edge.edge.input).count()
            > 1,
        // Sources are polled on the thread of their task; none owns a thread, and
        // no operator of the plugin contract re-enters the mailbox.
        source_is_new_source: source.node.operator.is_source(),
        target_yields: false,
        chain_head_is_legacy_source: false,
    }
}

fn edge_end(node: &ResolvedNode) -> EdgeEnd<'_> {
    EdgeEnd {
        strategy: node.node.chaining,
        slot_sharing_group: &node.slot_sharing_group,
        parallelism: node.parallelism,
        max_parallelism: node.configured_max_parallelism,
    }
}

/// The chains, from the sources on. Walks with stacks of its own, so that a graph
/// of any depth can be walked.
fn chains(graph: &ResolvedStreamGraph, is_chained: &[bool]) -> Vec<Chain> {
    let mut chains = Vec::new();
    let mut begun = vec![false; graph.nodes().len()];
    for source in (0..graph.nodes().len()).filter(|node| graph.in_edges(*node).is_empty()) {
        begun[source] = true;
        let mut path = vec![(chain_from(graph, is_chained, source), 0)];
        while let Some((chain, position)) = path.pop() {
            let Some(edge) = chain.out_edges.get(position) else {
                chains.push(chain);
                continue;
            };
            let target = graph.edges()[*edge].target;
            path.push((chain, position + 1));
            if !std::mem::replace(&mut begun[target], true) {
                path.push((chain_from(graph, is_chained, target), 0));
            }
        }
    }
    chains
}

fn chain_from(graph: &ResolvedStreamGraph, is_chained: &[bool], head: usize) -> Chain {
    enum Step {
        Enter(usize),
        Leave(usize),
    }
    let mut chain = Chain { nodes: Vec::new(), chained_edges: Vec::new(), out_edges: Vec::new() };
    let mut steps = vec![Step::Enter(head)];
    while let Some(step) = steps.pop() {
        match step {
            Step::Enter(node) => {
                if node != head {
                    chain.chained_edges.extend(graph.in_edges(node));
                }
                chain.nodes.push(node);
                steps.push(Step::Leave(node));
                let chained = graph.out_edges(node).iter().rev().filter(|edge| is_chained[**edge]);
                steps.extend(chained.map(|edge| Step::Enter(graph.edges()[*edge].target)));
            }
            Step::Leave(node) => {
                chain.out_edges.extend(graph.out_edges(node).iter().filter(|edge| !is_chained[**edge]));
            }
        }
    }
    chain
}
