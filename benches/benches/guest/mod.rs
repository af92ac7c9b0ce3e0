//! Guests without an engine around them: segments of the plugins in `target/plugins`.

use std::path::Path;

use engine::{
    base::{clock::Timestamp, config::Configuration, stream_element::WatermarkStatus},
    connector::Verdict,
    graph::{
        digest::graph_digest,
        stream_graph::{StateDeclaration, StateKind, StreamNode},
    },
    state::{StateDescriptor, StateShape},
    wasm::{
        CancelFlag, EmitError, EmitTarget, LogLevel, PluginRuntime, PluginRuntimeConfig, Replay, SandboxLimits,
        Segment, SegmentContext, SegmentOutput, SegmentRestore,
    },
};

/// Takes the rows that a guest emits.
pub struct Rows<F>(pub F);

impl<F: FnMut(u32, &[u8]) + 'static> EmitTarget for Rows<F> {
    fn emit(&mut self, _: u32, count: u32, rows: &[u8]) -> Result<(), EmitError> {
        (self.0)(count, rows);
        Ok(())
    }

    fn emit_watermark(&mut self, _: u32, _: Timestamp) {}

    fn emit_watermark_status(&mut self, _: u32, _: WatermarkStatus) {}

    fn reject_row(&mut self, _: u32, _: Option<u32>, message: &str, _: &[u8]) -> Verdict {
        panic!("a row was refused: {message}");
    }

    fn log(&mut self, _: LogLevel, message: &str) {
        eprintln!("{message}");
    }
}

/// Opens all operators of a program of one segment, which ends in one native sink.
#[allow(dead_code, reason = "each bench is compiled with this module and uses a part of it")]
pub fn open<F>(plugin: &str, args: &[&str], rows: F) -> Segment<Rows<F>>
where
    F: FnMut(u32, &[u8]) + 'static,
{
    open_nodes(plugin, args, 0, None, rows)
}

/// Opens the operators behind the first one, which only deals the rows of a source by their key.
#[allow(dead_code, reason = "each bench is compiled with this module and uses a part of it")]
pub fn open_keyed<F>(plugin: &str, args: &[&str], rows: F) -> Segment<Rows<F>>
where
    F: FnMut(u32, &[u8]) + 'static,
{
    open_nodes(plugin, args, 1, None, rows)
}

/// As [`open_keyed`], with so many bytes for caches of state.
#[allow(dead_code, reason = "each bench is compiled with this module and uses a part of it")]
pub fn open_cached<F>(plugin: &str, args: &[&str], cache_bytes: u64, rows: F) -> Segment<Rows<F>>
where
    F: FnMut(u32, &[u8]) + 'static,
{
    open_nodes(plugin, args, 1, Some(cache_bytes), rows)
}

fn open_nodes<F>(plugin: &str, args: &[&str], first: usize, cache_bytes: Option<u64>, rows: F) -> Segment<Rows<F>>
where
    F: FnMut(u32, &[u8]) + 'static,
{
    let configuration = Configuration::default();
    let runtime =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).expect("the machine can run it");
    let plugins = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/plugins");
    let path = plugins.join(plugin).with_extension("wasm");
    let content = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make plugins`", path.display()));
    let admitted = runtime.admit(&content, plugin).expect("a plugin of ours");
    let compiled = runtime.compile(&admitted).expect("a plugin of ours");
    let limits = SandboxLimits::from_configuration(&configuration);
    let args: Vec<String> = args.iter().copied().map(str::to_owned).collect();
    let graph = compiled.plan(&args, &limits).expect("good arguments");
    let guests = graph.nodes.iter().filter(|node| node.operator.is_guest()).map(|node| node.id);
    let nodes: Vec<u32> = guests.skip(first).collect();
    let exits = graph.edges.iter().filter(|edge| nodes.contains(&edge.source) && !nodes.contains(&edge.target));
    let outputs = exits.map(|edge| SegmentOutput {
        node: edge.source,
        side_output: edge.side_output.clone(),
        selector: edge.selector,
        channels: 1,
    });
    let in_segment = || graph.nodes.iter().filter(|node| nodes.contains(&node.id));
    let context = SegmentContext {
        job_name: "bench".to_owned(),
        task_name: plugin.to_owned(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
        state_cache_bytes: cache_bytes.unwrap_or(limits.state_cache_bytes as u64),
        state_value_bytes_max: limits.state_value_bytes_max as u64,
        disk_state: None,
        restored: false,
        outputs: outputs.collect(),
        operator: plugin.to_owned(),
        is_keyed: in_segment().any(|node| node.key_type.is_some()),
        states: in_segment().flat_map(|node| node.states.iter().map(|state| described(node, state))).collect(),
        nodes: nodes.clone(),
    };
    let replay = Replay { args, graph_digest: graph_digest(&graph) };
    Segment::open(&compiled, &replay, &context, limits, CancelFlag::default(), SegmentRestore::default(), Rows(rows))
        .expect("it opens")
}

fn described(node: &StreamNode, state: &StateDeclaration) -> StateDescriptor {
    StateDescriptor {
        operator: node.name.clone(),
        name: state.name.clone(),
        shape: match state.kind {
            StateKind::Value | StateKind::Reducing | StateKind::Aggregating => Some(StateShape::Value),
            StateKind::List => Some(StateShape::List),
            StateKind::Map => Some(StateShape::Map),
            StateKind::Broadcast | StateKind::OperatorList | StateKind::OperatorUnionList => None,
        },
        has_time_to_live: state.time_to_live.is_some(),
        taken_at_end: state.taken_at_end,
    }
}
