//! Checks a stream graph that comes from an untrusted plugin.
//!
//! All errors are found, not only the first. Sizes are checked before anything
//! else, so that the work is bounded by the limits below; checks that need sound
//! ends of edges skip the edges without; what needs a sound graph runs last.

use std::collections::{BTreeMap, BTreeSet};

use engine_rows::descriptor::TypeDescriptor;

use super::{
    error::{EdgeName, Errors, GraphError, InvalidGraph, NodeName, cut, quoted},
    resolved::{JobDefaults, ResolvedStreamGraph, effective_configuration, origin_of},
    stream_graph::{Operator, Partitioner, StateKind, StreamEdge, StreamGraph, StreamNode},
};
use crate::base::{
    config::{Configuration, options},
    key_group::{self, MAX_PARALLELISM_LIMIT},
};

/// Nodes of a graph.
pub const NODES_MAX: usize = 1024;
/// Edges of a graph.
pub const EDGES_MAX: usize = 4096;
/// Settings of a program.
pub const SETTINGS_MAX: usize = 256;
/// Inputs of a node.
pub const INPUTS_MAX: usize = 256;
/// States of a node.
pub const STATES_MAX: usize = 256;
/// Options of a connector.
pub const CONNECTOR_OPTIONS_MAX: usize = 256;
/// Bytes of a name: of a job, node, uid, group, side output, state or connector.
pub const NAME_BYTES_MAX: usize = 1024;
/// Bytes of a value of a connector's option or of a setting.
pub const VALUE_BYTES_MAX: usize = 65_536;
/// Bytes of a type descriptor.
pub const TYPE_BYTES_MAX: usize = 65_536;

/// Checks a stream graph and decides what it leaves open.
///
/// `configuration` is that of the submission; the program's settings are merged
/// into it, each by the strength of its origin.
///
/// # Errors
/// Returns all that is wrong.
pub fn validate(
    stream_graph: &StreamGraph,
    configuration: &Configuration,
) -> Result<ResolvedStreamGraph, InvalidGraph> {
    check_sizes(stream_graph)?;
    let mut errors = Errors::default();
    let effective = effective_configuration(stream_graph, configuration, &mut errors);
    check_job(stream_graph, &effective, &mut errors);
    let defaults = JobDefaults::of(&effective);
    let auto_generate_uids = effective.get(&options::AUTO_GENERATE_UIDS);
    for node in &stream_graph.nodes {
        check_node(node, &mut errors);
        check_parallelism(node, &defaults, &mut errors);
        if !auto_generate_uids && node.uid.is_none() && node.uid_hash.is_none() {
            errors.push(GraphError::MissingUid { node: node.into() });
        }
    }
    let nodes = check_ids(stream_graph, &mut errors);
    for edge in &stream_graph.edges {
        check_edge(edge, &nodes, &defaults, &mut errors);
    }
    check_connected(stream_graph, &mut errors);
    check_order(stream_graph, &nodes, &mut errors);
    errors.check()?;

    let resolved = ResolvedStreamGraph::resolve(stream_graph, effective);
    let mut errors = Errors::default();
    check_co_location(&resolved, &mut errors);
    errors.check()?;
    Ok(resolved)
}

fn check_sizes(stream_graph: &StreamGraph) -> Result<(), InvalidGraph> {
    let mut errors = Errors::default();
    let mut check = |what: String, count: usize, max: usize| {
        if count > max {
            errors.push(GraphError::TooMany { what, count: count as u64, max: max as u64 });
        }
    };
    check("nodes".to_owned(), stream_graph.nodes.len(), NODES_MAX);
    check("edges".to_owned(), stream_graph.edges.len(), EDGES_MAX);
    check("settings of the program".to_owned(), stream_graph.configuration.len(), SETTINGS_MAX);
    // What is above the limit was counted, and need not be looked at.
    for node in stream_graph.nodes.iter().take(NODES_MAX) {
        check(format!("inputs of {}", NodeName::from(node)), node.input_types.len(), INPUTS_MAX);
        check(format!("states of {}", NodeName::from(node)), node.states.len(), STATES_MAX);
        if let Operator::Source(connector) | Operator::Sink(connector) = &node.operator {
            check(format!("options of {}", NodeName::from(node)), connector.options.len(), CONNECTOR_OPTIONS_MAX);
        }
    }
    // Settings are compared with all known ones and quoted: only short ones may get there.
    for (key, value) in stream_graph.configuration.iter().take(SETTINGS_MAX) {
        let subject = || format!("the program's setting {}", quoted(key));
        check_name(subject, "key", key, &mut errors);
        if check_length(subject, "value", value, VALUE_BYTES_MAX, &mut errors) && value.chars().any(char::is_control) {
            errors.push(GraphError::ControlCharacters { subject: subject(), what: "value", text: cut(value) });
        }
    }
    errors.check()
}

fn check_job(stream_graph: &StreamGraph, effective: &Configuration, errors: &mut Errors) {
    if stream_graph.nodes.iter().all(|node| node.operator.is_source()) {
        errors.push(GraphError::NoOperator);
    }
    let puts_aside = effective.get(&options::ROW_ERROR_POLICY) == "dead-letter";
    if puts_aside && effective.get(&options::ROW_ERROR_DEAD_LETTER_DIR).is_none() {
        errors.push(GraphError::NoDeadLetterDirectory);
    }
    if let Some(name) = &stream_graph.job_name {
        check_name(|| "the job".to_owned(), "name", name, errors);
    }
    let parallelisms = [
        (
            &options::PARALLELISM.key,
            Some(effective.get(&options::PARALLELISM)),
            origin_of(effective, &options::PARALLELISM),
        ),
        (
            &options::MAX_PARALLELISM.key,
            effective.get(&options::MAX_PARALLELISM),
            origin_of(effective, &options::MAX_PARALLELISM),
        ),
    ];
    for (key, parallelism, origin) in parallelisms {
        if let Some(parallelism) = parallelism.filter(|value| !is_parallelism(*value)) {
            errors.push(GraphError::ParallelismOutOfBounds { subject: format!("{key} ({origin})"), parallelism });
        }
    }
}

fn is_parallelism(value: u32) -> bool {
    (1..=MAX_PARALLELISM_LIMIT).contains(&value)
}

pub(super) fn check_length(
    subject: impl FnOnce() -> String,
    what: &'static str,
    text: &str,
    max: usize,
    errors: &mut Errors,
) -> bool {
    let is_short = text.len() <= max;
    if !is_short {
        errors.push(GraphError::TooLong { subject: subject(), what, bytes: text.len(), max });
    }
    is_short
}

pub(super) fn check_name(subject: impl FnOnce() -> String, what: &'static str, text: &str, errors: &mut Errors) {
    if text.is_empty() {
        errors.push(GraphError::Empty { subject: subject(), what });
    } else if text.len() > NAME_BYTES_MAX {
        errors.push(GraphError::TooLong { subject: subject(), what, bytes: text.len(), max: NAME_BYTES_MAX });
    } else if text.chars().any(char::is_control) {
        errors.push(GraphError::ControlCharacters { subject: subject(), what, text: cut(text) });
    }
}

fn check_type(subject: &dyn Fn() -> String, what: &dyn Fn() -> String, text: &str, errors: &mut Errors) {
    if !check_length(subject, "type", text, TYPE_BYTES_MAX, errors) {
        return;
    }
    if text.chars().any(char::is_control) {
        errors.push(GraphError::ControlCharacters { subject: subject(), what: "type", text: cut(text) });
    } else if let Err(cause) = TypeDescriptor::parse(text) {
        errors.push(GraphError::TypeDescriptor { subject: subject(), what: what(), text: cut(text), cause });
    }
}

fn check_node(node: &StreamNode, errors: &mut Errors) {
    let name = || NodeName::from(node);
    let subject = || name().to_string();
    if node.id == 0 {
        errors.push(GraphError::ZeroId { node: name() });
    }
    check_name(subject, "name", &node.name, errors);
    let groups = [
        ("uid", &node.uid),
        ("slot sharing group", &node.slot_sharing_group),
        ("co-location group", &node.co_location_group),
    ];
    for (what, text) in groups {
        if let Some(text) = text {
            check_name(subject, what, text, errors);
        }
    }
    if let Some(uid_hash) = &node.uid_hash
        && (uid_hash.len() != 32 || !uid_hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    {
        errors.push(GraphError::UidHashFormat { node: name(), uid_hash: cut(uid_hash) });
    }
    if let Some(milliseconds) = node.buffer_timeout.filter(|timeout| *timeout < -1) {
        errors.push(GraphError::BufferTimeout { node: name(), milliseconds });
    }
    check_operator(node, errors);
    for (input, text) in node.input_types.iter().enumerate() {
        check_type(&subject, &|| format!("type of input {input}"), text, errors);
    }
    if let Some(text) = &node.output_type {
        check_type(&subject, &|| "output type".to_owned(), text, errors);
    }
    if let Some(text) = &node.key_type {
        check_type(&subject, &|| "key type".to_owned(), text, errors);
    }
    check_states(node, errors);
}

fn check_operator(node: &StreamNode, errors: &mut Errors) {
    let name = || NodeName::from(node);
    let subject = || name().to_string();
    match &node.operator {
        Operator::Source(connector) | Operator::Sink(connector) => {
            check_name(subject, "connector name", &connector.name, errors);
            for (option, value) in &connector.options {
                check_name(subject, "option name", option, errors);
                check_length(subject, "value of an option", value, VALUE_BYTES_MAX, errors);
            }
        }
        Operator::Guest(kind) | Operator::GuestSource(kind) => check_name(subject, "kind", kind, errors),
    }
    match &node.operator {
        Operator::Source(_) | Operator::GuestSource(_) => {
            if !node.input_types.is_empty() {
                errors.push(GraphError::SourceWithInput { node: name() });
            }
            if node.output_type.is_none() {
                errors.push(GraphError::SourceWithoutOutput { node: name() });
            }
        }
        Operator::Sink(_) => {
            if node.output_type.is_some() {
                errors.push(GraphError::SinkWithOutput { node: name() });
            }
        }
        Operator::Guest(_) => {}
    }
    if !node.operator.is_source() && node.input_types.is_empty() {
        errors.push(GraphError::NoInput { node: name() });
    }
}

fn check_states(node: &StreamNode, errors: &mut Errors) {
    let subject = || NodeName::from(node).to_string();
    let mut names = BTreeSet::new();
    for state in &node.states {
        check_name(subject, "state name", &state.name, errors);
        if !names.insert(&state.name) {
            errors.push(GraphError::DuplicateState { node: node.into(), state: cut(&state.name) });
        }
        check_type(&subject, &|| "value type of a state".to_owned(), &state.value_type, errors);
        if let Some(text) = &state.map_key_type {
            check_type(&subject, &|| "map key type of a state".to_owned(), text, errors);
        }
        let is_map = matches!(state.kind, StateKind::Map | StateKind::Broadcast);
        let problem = match (is_map, &state.map_key_type) {
            (true, None) => Some("of a map without a map key type"),
            (false, Some(_)) => Some("with a map key type, but it is not a map"),
            (true, Some(_)) | (false, None) => None,
        };
        if let Some(problem) = problem {
            errors.push(GraphError::MapKeyType { node: node.into(), state: cut(&state.name), problem });
        }
        let is_keyed = match state.kind {
            StateKind::Value | StateKind::List | StateKind::Map | StateKind::Reducing | StateKind::Aggregating => true,
            StateKind::Broadcast | StateKind::OperatorList | StateKind::OperatorUnionList => false,
        };
        let is_value = matches!(state.kind, StateKind::Value | StateKind::Reducing | StateKind::Aggregating);
        if state.taken_at_end && !is_value {
            errors.push(GraphError::TakenAtEnd { node: node.into(), state: cut(&state.name) });
        }
        if is_keyed && node.key_type.is_none() {
            errors.push(GraphError::StateWithoutKey { node: node.into(), state: cut(&state.name) });
        }
    }
}

fn check_parallelism(node: &StreamNode, defaults: &JobDefaults, errors: &mut Errors) {
    let own = [("parallelism", node.parallelism), ("max parallelism", node.max_parallelism)];
    for (what, parallelism) in own {
        if let Some(parallelism) = parallelism.filter(|value| !is_parallelism(*value)) {
            let subject = format!("the {what} of {}", NodeName::from(node));
            errors.push(GraphError::ParallelismOutOfBounds { subject, parallelism });
        }
    }
    let parallelism = defaults.parallelism_of(node);
    let max_parallelism = node
        .max_parallelism
        .or(defaults.max_parallelism)
        .unwrap_or_else(|| key_group::default_max_parallelism(parallelism.min(MAX_PARALLELISM_LIMIT)));
    if is_parallelism(parallelism) && is_parallelism(max_parallelism) && parallelism > max_parallelism {
        errors.push(GraphError::ParallelismAboveMax { node: node.into(), parallelism, max_parallelism });
    }
}

/// The nodes by id, the first of those with one id.
fn check_ids<'a>(stream_graph: &'a StreamGraph, errors: &mut Errors) -> BTreeMap<u32, &'a StreamNode> {
    let mut nodes = BTreeMap::new();
    let mut uids = BTreeMap::new();
    let mut uid_hashes = BTreeMap::new();
    for node in &stream_graph.nodes {
        match nodes.get(&node.id) {
            None => {
                nodes.insert(node.id, node);
            }
            Some(first) => {
                let (first, second) = (NodeName::from(*first).name, NodeName::from(node).name);
                errors.push(GraphError::DuplicateId { id: node.id, first, second });
            }
        }
        let names = [
            ("uid", node.uid.clone(), &mut uids),
            ("uid hash", node.uid_hash.as_deref().map(str::to_ascii_lowercase), &mut uid_hashes),
        ];
        for (what, text, seen) in names {
            let Some(text) = text else { continue };
            match seen.get(&text) {
                None => {
                    seen.insert(text, NodeName::from(node));
                }
                Some(first) => {
                    let (first, second) = (first.clone(), node.into());
                    errors.push(GraphError::DuplicateUid { what, first, second, text: cut(&text) });
                }
            }
        }
    }
    nodes
}

fn check_edge(edge: &StreamEdge, nodes: &BTreeMap<u32, &StreamNode>, defaults: &JobDefaults, errors: &mut Errors) {
    let name = EdgeName::from(edge);
    let (source, target) = (nodes.get(&edge.source), nodes.get(&edge.target));
    for (id, node) in [(edge.source, source), (edge.target, target)] {
        if node.is_none() {
            errors.push(GraphError::DanglingEdge { edge: name, missing: id });
        }
    }
    check_type(&|| name.to_string(), &|| "record type".to_owned(), &edge.record_type, errors);
    if let Some(side_output) = &edge.side_output {
        check_name(|| name.to_string(), "side output", side_output, errors);
    }
    if let Some(partitioner @ (Partitioner::Hash | Partitioner::Custom)) = edge.partitioner
        && edge.selector.is_none()
    {
        errors.push(GraphError::MissingSelector { edge: name, partitioner });
    }
    if let Some(source) = source {
        check_producer(edge, source, errors);
    }
    if let Some(target) = target {
        match usize::try_from(edge.input).ok().and_then(|input| target.input_types.get(input)) {
            None => {
                let inputs = target.input_types.len();
                errors.push(GraphError::UnknownInput { edge: name, to: (*target).into(), inputs });
            }
            Some(input_type) if *input_type != edge.record_type => {
                let (record_type, input_type) = (cut(&edge.record_type), cut(input_type));
                errors.push(GraphError::InputType { edge: name, record_type, input_type });
            }
            Some(_) => {}
        }
    }
    if let (Some(source), Some(target), Some(Partitioner::Forward)) = (source, target, edge.partitioner) {
        let (from_parallelism, to_parallelism) = (defaults.parallelism_of(source), defaults.parallelism_of(target));
        if from_parallelism != to_parallelism {
            errors.push(GraphError::ForwardParallelism {
                edge: name,
                from: (*source).into(),
                from_parallelism,
                to: (*target).into(),
                to_parallelism,
            });
        }
    }
}

fn check_producer(edge: &StreamEdge, source: &StreamNode, errors: &mut Errors) {
    let name = EdgeName::from(edge);
    let native = |what| GraphError::NativeProducer { edge: name, from: source.into(), what };
    if !source.operator.is_guest() {
        if edge.selector.is_some() {
            errors.push(native("a selector"));
        }
        if edge.side_output.is_some() {
            errors.push(native("a side output"));
        }
    }
    match &source.output_type {
        _ if edge.side_output.is_some() => {}
        None => errors.push(GraphError::NoOutput { edge: name, from: source.into() }),
        // A selector may be a formatter, whose rows are text.
        Some(_) if edge.selector.is_some() && edge.record_type == "string" => {}
        Some(output_type) if *output_type != edge.record_type => {
            let (record_type, output_type) = (cut(&edge.record_type), cut(output_type));
            errors.push(GraphError::OutputType { edge: name, from: source.into(), record_type, output_type });
        }
        Some(_) => {}
    }
}

/// Each input of each node must be fed.
fn check_connected(stream_graph: &StreamGraph, errors: &mut Errors) {
    let fed: BTreeSet<_> = stream_graph.edges.iter().map(|edge| (edge.target, edge.input as usize)).collect();
    for node in &stream_graph.nodes {
        for input in 0..node.input_types.len() {
            if !fed.contains(&(node.id, input)) {
                errors.push(GraphError::UnconnectedInput { node: node.into(), input });
            }
        }
    }
}

/// No cycle, and ids in topological order.
fn check_order(stream_graph: &StreamGraph, nodes: &BTreeMap<u32, &StreamNode>, errors: &mut Errors) {
    let mut targets: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for edge in &stream_graph.edges {
        if nodes.contains_key(&edge.source) && nodes.contains_key(&edge.target) {
            targets.entry(edge.source).or_default().push(edge.target);
        }
    }
    if let Some(ids) = find_cycle(&targets) {
        let nodes = ids.iter().filter_map(|id| nodes.get(id)).map(|node| NodeName::from(*node)).collect();
        errors.push(GraphError::Cycle { nodes });
        return;
    }
    for edge in &stream_graph.edges {
        // An edge without both ends is an error already.
        let has_ends = nodes.contains_key(&edge.source) && nodes.contains_key(&edge.target);
        if has_ends && edge.source >= edge.target {
            errors.push(GraphError::IdNotAboveInput { edge: edge.into() });
        }
    }
}

/// The ids of one cycle, in the order of its edges, if there is one.
fn find_cycle(targets: &BTreeMap<u32, Vec<u32>>) -> Option<Vec<u32>> {
    let mut finished = BTreeSet::new();
    for start in targets.keys() {
        if finished.contains(start) {
            continue;
        }
        // The path from the start, each with the position of the next edge to walk.
        let mut path = vec![(*start, 0)];
        let mut on_path = BTreeSet::from([*start]);
        while let Some((id, position)) = path.pop() {
            let next = targets.get(&id).and_then(|targets| targets.get(position));
            match next {
                Some(next) if on_path.contains(next) => {
                    let ids = path.iter().map(|(id, _)| *id).chain([id]);
                    return Some(ids.skip_while(|id| id != next).collect());
                }
                Some(next) => {
                    path.push((id, position + 1));
                    if !finished.contains(next) {
                        on_path.insert(*next);
                        path.push((*next, 0));
                    }
                }
                None => {
                    on_path.remove(&id);
                    finished.insert(id);
                }
            }
        }
    }
    None
}

/// Subtasks can share a slot only if their vertices may.
fn check_co_location(graph: &ResolvedStreamGraph, errors: &mut Errors) {
    let mut firsts = BTreeMap::new();
    for node in graph.nodes() {
        let Some(group) = &node.node.co_location_group else { continue };
        let first = *firsts.entry(group).or_insert(node);
        if first.slot_sharing_group != node.slot_sharing_group {
            errors.push(GraphError::CoLocationAcrossSlots {
                group: group.clone(),
                first: (&first.node).into(),
                first_slot_sharing_group: first.slot_sharing_group.clone(),
                second: (&node.node).into(),
                second_slot_sharing_group: node.slot_sharing_group.clone(),
            });
        }
    }
}
