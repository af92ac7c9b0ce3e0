//! Tests of the sandbox against plugins that attack it.
//!
//! `hostile` runs the plugin `test_hostile`, whose arguments choose the attack;
//! `handwritten` runs core modules in text form that do what no compiler emits;
//! `refused` holds what must not get as far as the compiler.

mod handwritten;
mod hostile;
mod refused;

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
    time::Duration,
};

use engine_rows::row::Rows;

use super::{
    AdmittedPlugin, CancelFlag, CompiledPlugin, EmitError, EmitTarget, GuestError, LogLevel, PluginRuntime,
    PluginRuntimeConfig, Replay, SandboxLimits, Segment, SegmentContext, SegmentOutput, SegmentRestore,
};
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::Configuration,
        stream_element::{BatchKind, RecordBatch, WatermarkStatus},
    },
    connector::Verdict,
    graph::digest::graph_digest,
    state::{StateDescriptor, StateShape},
};

/// A runtime without a disk cache, and with a clock that stands still.
fn runtime() -> &'static Arc<PluginRuntime> {
    static RUNTIME: OnceLock<Arc<PluginRuntime>> = OnceLock::new();
    RUNTIME.get_or_init(|| PluginRuntime::new(config()).unwrap())
}

fn config() -> PluginRuntimeConfig {
    PluginRuntimeConfig {
        cache_dir: None,
        clock: Clock::new_virtual(Timestamp(0)),
        ..PluginRuntimeConfig::from_configuration(&Configuration::default())
    }
}

/// Bytes of a plugin that `make build` made.
fn plugin_bytes(name: &str) -> Vec<u8> {
    let directory = std::env::var_os("ENGINE_PLUGINS_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/plugins"), PathBuf::from);
    let path = directory.join(format!("{name}.wasm"));
    std::fs::read(&path)
        .unwrap_or_else(|error| panic!("could not read {}: {error}; run `make build` first", path.display()))
}

fn hostile_bytes() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| plugin_bytes("test_hostile"))
}

fn admit(bytes: &[u8]) -> AdmittedPlugin {
    runtime().admit(bytes, "test.wasm").unwrap()
}

/// Limits as configured by default, with budgets that a test can wait for.
fn limits() -> SandboxLimits {
    SandboxLimits {
        plan_cpu_time: Duration::from_millis(50),
        open_cpu_time: Duration::from_millis(50),
        call_cpu_time: Duration::from_millis(50),
        ..SandboxLimits::from_configuration(&Configuration::default())
    }
}

/// Budgets that an attack on another limit does not use up on a slow machine.
fn patient() -> SandboxLimits {
    SandboxLimits::from_configuration(&Configuration::default())
}

fn context() -> SegmentContext {
    SegmentContext {
        state_cache_bytes: 1 << 20,
        state_value_bytes_max: 16 << 20,
        disk_state: None,
        restored: false,
        job_name: "test".into(),
        task_name: "test (1/1)#0".into(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
        nodes: vec![1, 2],
        operator: "hostile 1".into(),
        is_keyed: true,
        states: states(),
        outputs: vec![SegmentOutput { node: 2, side_output: None, selector: None, channels: 1 }],
    }
}

/// A state of each kind, the second value with a time to live, and one that is not kept by key.
fn states() -> Vec<StateDescriptor> {
    let state = |name: &str, shape, has_time_to_live| StateDescriptor {
        operator: "hostile 1".into(),
        name: name.into(),
        shape,
        has_time_to_live,
        taken_at_end: name == "value",
    };
    vec![
        state("value", Some(StateShape::Value), false),
        state("list", Some(StateShape::List), false),
        state("map", Some(StateShape::Map), false),
        state("short-lived", Some(StateShape::Value), true),
        state("operator", None, false),
    ]
}

fn args(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Opens a segment of a plugin with the graph that it planned.
fn open(
    plugin: &Arc<CompiledPlugin>,
    words: &[&str],
    limits: &SandboxLimits,
    cancel: CancelFlag,
) -> Result<Segment<Recorder>, GuestError> {
    open_in(plugin, &context(), words, limits, cancel)
}

/// The same at a place of its own.
fn open_in(
    plugin: &Arc<CompiledPlugin>,
    context: &SegmentContext,
    words: &[&str],
    limits: &SandboxLimits,
    cancel: CancelFlag,
) -> Result<Segment<Recorder>, GuestError> {
    // The graph does not depend on the attack, so it is planned without one.
    let graph_digest = graph_digest(&plugin.plan(&[], &patient())?);
    let replay = Replay { args: args(words), graph_digest };
    Segment::open(plugin, &replay, context, limits.clone(), cancel, SegmentRestore::default(), Recorder::default())
}

fn batch(rows: u32) -> RecordBatch {
    let mut data = Vec::new();
    for index in 0..rows {
        let payload = index.to_le_bytes();
        let row = engine_rows::row::Row { key_hash: index, timestamp: 7, payload: &payload };
        engine_rows::row::append(&mut data, row);
    }
    RecordBatch { kind: BatchKind::Rows, count: rows, data: data.into() }
}

/// Target that checks batches and keeps what came, of rows only the first MiB.
#[derive(Debug, Default)]
struct Recorder {
    rows: Vec<u8>,
    count: u64,
    watermarks: Vec<Timestamp>,
    statuses: Vec<WatermarkStatus>,
    rejected: Vec<(u32, Option<u32>, String, Vec<u8>)>,
    verdict: Option<Verdict>,
    lines: Vec<(LogLevel, String)>,
}

impl EmitTarget for Recorder {
    fn emit(&mut self, _: u32, count: u32, rows: &[u8]) -> Result<(), EmitError> {
        let mut walked = 0;
        for row in Rows::new(rows) {
            row.map_err(|error| EmitError::BadBatch(error.to_string()))?;
            walked += 1;
        }
        if walked != count {
            return Err(EmitError::BadBatch(format!("{count} rows were claimed, {walked} were there")));
        }
        self.count += u64::from(count);
        if self.rows.len() < 1 << 20 {
            self.rows.extend_from_slice(rows);
        }
        Ok(())
    }

    fn emit_watermark(&mut self, _: u32, watermark: Timestamp) {
        self.watermarks.push(watermark);
    }

    fn emit_watermark_status(&mut self, _: u32, status: WatermarkStatus) {
        self.statuses.push(status);
    }

    fn reject_row(&mut self, node: u32, row: Option<u32>, message: &str, payload: &[u8]) -> Verdict {
        self.rejected.push((node, row, message.to_owned(), payload.to_owned()));
        self.verdict.unwrap_or(Verdict::Fail)
    }

    fn log(&mut self, level: LogLevel, message: &str) {
        self.lines.push((level, message.to_owned()));
    }
}
