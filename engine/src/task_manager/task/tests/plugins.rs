//! The same tasks with plugins that `make build` made.

use std::{
    path::PathBuf,
    sync::{Arc, OnceLock},
};

use super::harness::*;
use crate::{
    base::config::Configuration,
    graph::{digest::graph_digest, stream_graph::StreamGraph},
    protocol::job_master::TaskState,
    wasm::{CompiledPlugin, PluginRuntime, PluginRuntimeConfig, SandboxLimits},
};

fn runtime() -> &'static Arc<PluginRuntime> {
    static RUNTIME: OnceLock<Arc<PluginRuntime>> = OnceLock::new();
    RUNTIME.get_or_init(|| {
        let config = PluginRuntimeConfig::from_configuration(&Configuration::default());
        PluginRuntime::new(PluginRuntimeConfig { cache_dir: None, ..config }).unwrap()
    })
}

fn compile(name: &str) -> Arc<CompiledPlugin> {
    let directory = std::env::var_os("ENGINE_PLUGINS_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../target/plugins"), PathBuf::from);
    let path = directory.join(format!("{name}.wasm"));
    let bytes = std::fs::read(&path)
        .unwrap_or_else(|error| panic!("could not read {}: {error}; run `make build` first", path.display()));
    let admitted = runtime().admit(&bytes, &format!("{name}.wasm")).unwrap();
    runtime().compile(&admitted).unwrap()
}

/// A job of the plugin's own graph, every operator with the same parallelism.
fn job(plugin: &Arc<CompiledPlugin>, args: &[&str], parallelism: u32, settings: &[(&str, &str)]) -> TestJob {
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let limits = SandboxLimits::from_configuration(&Configuration::default());
    let graph: StreamGraph = plugin.plan(&args, &limits).unwrap();
    let digest = graph_digest(&graph);
    let mut nodes = graph.nodes;
    nodes.iter_mut().for_each(|node| node.parallelism = Some(parallelism));
    let edges: Vec<_> = graph.edges.into_iter().map(|edge| (edge, 100)).collect();
    let mut job = TestJob::of_graph(&nodes, &edges, settings);
    job.info.program.args = args;
    job.info.program.graph_digest = digest;
    job
}

/// Counts of the words of a text that repeats itself, as lines "word,count".
fn expected(lines: usize) -> Vec<String> {
    let mut expected = vec![format!("alpha,{}", 2 * lines), format!("beta,{lines}")];
    expected.extend((0..10).map(|digit| format!("n{digit},{}", lines / 10)));
    expected.sort();
    expected
}

#[test]
fn word_count_counts_words_at_any_parallelism() {
    let plugin = compile("word_count");
    const LINES: usize = 5_000;
    for parallelism in [1, 2, 4] {
        let settings = [("taskmanager.memory.segment-size", "1 kb")];
        let job = job(&plugin, &["--input", "log.txt", "--output", "counts"], parallelism, &settings);
        let mut cluster = Cluster::with_plugin(Arc::new(Arc::clone(&plugin)));
        let lines: Vec<String> = (0..LINES).map(|line| format!("Alpha, beta: alpha n{}\n", line % 10)).collect();
        cluster.splits = Some(lines.chunks(300).map(|lines| lines.concat().into_bytes()).collect());
        cluster.start_all(&job);
        let finished = cluster.until_finished();
        let rows = cluster.sorted_rows().into_iter().map(|row| String::from_utf8(row).unwrap());
        assert_eq!(rows.map(|row| row.trim_end().to_owned()).collect::<Vec<_>>(), expected(LINES));
        assert!(finished.iter().all(|update| 0 < update.metrics.guest_memory_bytes));
        let read: u64 = finished.iter().map(|update| update.metrics.records_in).sum();
        // Lines into the first vertex, words or partial counts into the second.
        assert!(LINES as u64 <= read, "{read}");
    }
}

#[test]
fn a_program_with_another_graph_is_refused() {
    let plugin = compile("word_count");
    let mut job = job(&plugin, &["--input", "log.txt", "--output", "counts"], 1, &[]);
    job.info.program.args = vec!["--input".into(), "log.txt".into(), "--updates".into()];
    let mut cluster = Cluster::with_plugin(Arc::new(plugin));
    cluster.start(&job, &job.deployments[0]);
    let update = cluster.until_update(|update| is_terminal(update.state));
    assert_eq!(update.state, TaskState::Failed);
    let cause = update.cause.unwrap();
    assert_eq!(cause.code, "graph-mismatch");
    assert!(cause.message.starts_with("job \"test\", task \""), "{}", cause.message);
    assert!(cause.message.contains("plugin word_count.wasm, in plan: "), "{}", cause.message);
}
