//! The stream graph while the program declares it: what `plan` returns, and
//! beside it the factories from which segments are built.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap},
    rc::Rc,
};

use crate::{
    bindings::engine::plugin::graph::{
        ChainingStrategy, Connector, Operator as OperatorKind, Partitioner, StateDeclaration, StateKind, StreamEdge,
        StreamGraph, StreamNode,
    },
    collector::AnyCollector,
    error::{Error, Result},
    operator::{OperatorFactory, SelectorFactory, Wiring, collector},
    record::{Key, Record, descriptor_of},
};

/// A graph that streams and the environment share while the program runs.
pub(crate) type SharedGraph = Rc<RefCell<Graph>>;

/// Makes the collector of a side output.
type SideOutputFactory = Box<dyn Fn(&mut dyn Wiring) -> Box<dyn AnyCollector>>;

/// Nodes, edges and factories. Node `i` has id `i + 1`, so ids are above those of all inputs.
#[derive(Default)]
pub(crate) struct Graph {
    pub(crate) job_name: Option<String>,
    pub(crate) parallelism: Option<u32>,
    pub(crate) max_parallelism: Option<u32>,
    pub(crate) configuration: BTreeMap<String, String>,
    pub(crate) nodes: Vec<StreamNode>,
    pub(crate) edges: Vec<StreamEdge>,
    factories: HashMap<u32, Box<dyn OperatorFactory>>,
    side_outputs: BTreeMap<(u32, String), SideOutput>,
    /// By number of the selector.
    pub(crate) selectors: Vec<Rc<dyn SelectorFactory>>,
    /// Sources that only one subtask can read.
    serial_sources: Vec<u32>,
    /// Operators that are one with the source before them: its parallelism is theirs.
    pub(crate) parts_of_sources: HashMap<u32, u32>,
    /// What the program did wrong, in order; the first is what the user reads.
    errors: Vec<String>,
}

struct SideOutput {
    record_type: String,
    make: SideOutputFactory,
}

/// Where the records of a stream come from and how they are dealt.
#[derive(Clone)]
pub(crate) struct Origin {
    pub(crate) node: u32,
    pub(crate) side_output: Option<String>,
    pub(crate) partitioner: Option<Partitioner>,
    pub(crate) selector: Option<u32>,
}

impl Graph {
    /// Adds a node and returns its id.
    pub(crate) fn add_node(&mut self, name: &str, operator: OperatorKind, types: NodeTypes) -> u32 {
        let id = u32::try_from(self.nodes.len() + 1).expect("a program makes fewer nodes");
        self.nodes.push(StreamNode {
            id,
            name: name.to_owned(),
            operator,
            uid: None,
            uid_hash: None,
            parallelism: None,
            max_parallelism: None,
            slot_sharing_group: None,
            co_location_group: None,
            chaining: ChainingStrategy::Always,
            buffer_timeout: None,
            input_types: types.inputs,
            output_type: types.output,
            key_type: None,
            states: Vec::new(),
            generates_watermarks: false,
        });
        id
    }

    /// Adds the factory of a node that is code of the plugin.
    pub(crate) fn add_factory(&mut self, node: u32, factory: Box<dyn OperatorFactory>) {
        self.factories.insert(node, factory);
    }

    /// Declares the key and the states of a node.
    pub(crate) fn set_keyed<K: Key + ?Sized>(&mut self, node: u32, states: Vec<StateDeclaration>) {
        self.set_states(node, states);
        self.node_mut(node).key_type = Some(descriptor_of::<K>());
    }

    /// Declares the states of a node without a key, which belong to no key.
    pub(crate) fn set_unkeyed(&mut self, node: u32, states: Vec<StateDeclaration>) {
        let is_unkeyed =
            |kind| matches!(kind, StateKind::Broadcast | StateKind::OperatorList | StateKind::OperatorUnionList);
        if let Some(keyed) = states.iter().find(|state| !is_unkeyed(state.kind)) {
            let node = &self.node_mut(node).name;
            let message = format!("\"{node}\" has the keyed state \"{}\", but its stream has no key", keyed.name);
            self.error(message);
        }
        self.set_states(node, states);
    }

    fn set_states(&mut self, node: u32, states: Vec<StateDeclaration>) {
        for (index, state) in states.iter().enumerate() {
            if states[..index].iter().any(|other| other.name == state.name) {
                let node = &self.node_mut(node).name;
                let message = format!("\"{node}\" has two states \"{}\": give each a name of its own", state.name);
                self.error(message);
            }
        }
        self.node_mut(node).states = states;
    }

    /// Leads the records of all origins into a zero-based input of a node.
    pub(crate) fn connect(&mut self, origins: &[Origin], (target, input): (u32, u32), record_type: &str) {
        for origin in origins {
            self.edges.push(StreamEdge {
                source: origin.node,
                target,
                input,
                partitioner: origin.partitioner,
                side_output: origin.side_output.clone(),
                selector: origin.selector,
                record_type: record_type.to_owned(),
            });
        }
    }

    /// Adds a selector and returns its number.
    pub(crate) fn add_selector(&mut self, selector: Rc<dyn SelectorFactory>) -> u32 {
        self.selectors.push(selector);
        u32::try_from(self.selectors.len() - 1).expect("a program makes fewer selectors")
    }

    /// Declares that somebody listens to a side output.
    pub(crate) fn add_side_output<T: Record + ?Sized>(&mut self, node: u32, name: &str) {
        let record_type = descriptor_of::<T>();
        let key = (node, name.to_owned());
        if let Some(known) = self.side_outputs.get(&key)
            && known.record_type != record_type
        {
            let known = known.record_type.clone();
            return self.error(format!("side output \"{name}\" is taken as {known} and as {record_type}"));
        }
        let owned_name = name.to_owned();
        let make: SideOutputFactory =
            Box::new(move |wiring: &mut dyn Wiring| Box::new(collector::<T>(wiring, Some(&owned_name))));
        self.side_outputs.insert(key, SideOutput { record_type, make });
    }

    /// The node of this id.
    ///
    /// # Panics
    /// Panics if there is none: ids come from [`Graph::add_node`].
    pub(crate) fn node_mut(&mut self, id: u32) -> &mut StreamNode {
        &mut self.nodes[id as usize - 1]
    }

    /// The node of this id, if it is in the graph.
    pub(crate) fn node(&self, id: u32) -> Option<&StreamNode> {
        self.nodes.get((id as usize).checked_sub(1)?)
    }

    /// True for a native source: no code of the plugin runs in it.
    pub(crate) fn is_native(&self, id: u32) -> bool {
        matches!(self.node(id).map(|node| &node.operator), Some(OperatorKind::Source(_)))
    }

    /// Sets the number of subtasks, or refuses one that the node cannot have.
    pub(crate) fn set_parallelism(&mut self, node: u32, parallelism: u32) {
        if let Some(source) = self.parts_of_sources.get(&node).copied() {
            self.set_parallelism(source, parallelism);
        }
        self.node_mut(node).parallelism = Some(parallelism);
        if parallelism == 0 {
            self.error("the parallelism must be at least 1".to_owned());
        }
        if self.serial_sources.contains(&node) && parallelism != 1 {
            let name = &self.node_mut(node).name;
            let message = format!("\"{name}\" can be read by one subtask only, not by {parallelism}");
            self.error(message);
        }
    }

    /// The native sources that records of a node come from, and whether any come from a source
    /// of the plugin.
    pub(crate) fn sources_before(&self, node: u32) -> (Vec<u32>, bool) {
        let (mut native, mut others) = (Vec::new(), false);
        let (mut seen, mut open) = (vec![node], vec![node]);
        while let Some(node) = open.pop() {
            match self.node(node).map(|node| &node.operator) {
                Some(OperatorKind::Source(_)) => native.push(node),
                Some(OperatorKind::GuestSource(_)) => others = true,
                _ => {}
            }
            for edge in self.edges.iter().filter(|edge| edge.target == node) {
                if !seen.contains(&edge.source) {
                    seen.push(edge.source);
                    open.push(edge.source);
                }
            }
        }
        (native, others)
    }

    /// The connector of a native source.
    pub(crate) fn connector_mut(&mut self, source: u32) -> Option<&mut Connector> {
        match &mut self.node_mut(source).operator {
            OperatorKind::Source(connector) => Some(connector),
            _ => None,
        }
    }

    /// Limits a source to one subtask.
    pub(crate) fn set_serial(&mut self, node: u32) {
        self.serial_sources.push(node);
        self.node_mut(node).parallelism = Some(1);
    }

    /// Notes a mistake of the program.
    pub(crate) fn error(&mut self, message: String) {
        self.errors.push(message);
    }

    /// The factory of a node.
    ///
    /// # Errors
    /// Returns an error if the node is not code of this plugin.
    pub(crate) fn factory(&self, node: u32) -> Result<&dyn OperatorFactory> {
        self.factories
            .get(&node)
            .map(|factory| &**factory)
            .ok_or_else(|| Error::new(format!("node {node} is not an operator of this plugin")))
    }

    /// The side outputs of a node that somebody listens to.
    pub(crate) fn side_outputs(&self, node: u32) -> impl Iterator<Item = (&str, &SideOutputFactory)> {
        self.side_outputs
            .range((node, String::new())..)
            .take_while(move |((source, _), _)| *source == node)
            .map(|((_, name), side_output)| (name.as_str(), &side_output.make))
    }

    /// What `plan` returns.
    ///
    /// # Errors
    /// Returns the first mistake of the program.
    pub(crate) fn declaration(&self) -> Result<StreamGraph> {
        if let Some(error) = self.errors.first() {
            return Err(Error::new(error));
        }
        for node in &self.nodes {
            if let Some(state) = node.states.iter().find(|state| state.time_to_live == Some(0)) {
                return Err(Error::new(format!(
                    "state \"{}\" of operator \"{}\": a time to live must be at least 1 ms",
                    state.name, node.name
                )));
            }
        }
        if self.nodes.is_empty() {
            return Err(Error::new("the program declares no stream"));
        }
        Ok(StreamGraph {
            job_name: self.job_name.clone(),
            parallelism: self.parallelism,
            max_parallelism: self.max_parallelism,
            configuration: self.configuration.iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
            nodes: self.nodes.clone(),
            edges: self.edges.clone(),
        })
    }
}

/// Types of a node's inputs and main output.
pub(crate) struct NodeTypes {
    pub(crate) inputs: Vec<String>,
    pub(crate) output: Option<String>,
}

impl NodeTypes {
    /// An operator from `T` to `U`.
    pub(crate) fn operator<T: Record + ?Sized, U: Record + ?Sized>() -> Self {
        Self { inputs: vec![descriptor_of::<T>()], output: Some(descriptor_of::<U>()) }
    }

    /// A source of `T`.
    pub(crate) fn source<T: Record + ?Sized>() -> Self {
        Self { inputs: Vec::new(), output: Some(descriptor_of::<T>()) }
    }
}

/// Declaration of a state whose values, elements or map values are `V`.
pub(crate) fn state<V: Record + ?Sized>(name: &str, kind: StateKind) -> StateDeclaration {
    StateDeclaration {
        name: name.to_owned(),
        kind,
        value_type: descriptor_of::<V>(),
        map_key_type: None,
        time_to_live: None,
        taken_at_end: false,
    }
}
