//! The same tasks with plugins that `make build` made, and with the engine's own
//! sources and sinks.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

use super::{harness::*, *};
use crate::{
    base::{
        config::{Configuration, Origin},
        ids::JobId,
    },
    connector::{self, Committable, Permissions},
    graph::{
        digest::graph_digest,
        job_graph::{Grants, JobGraph, ProgramSpec},
        job_graph_generator::{self, JobSpec},
        stream_graph::Operator,
    },
    task_manager::operator::NativeConnectors,
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

/// The job graph of the plugin's own stream graph.
fn job_graph(plugin: &Arc<CompiledPlugin>, args: &[&str], settings: &[(&str, &str)], grants: Grants) -> JobGraph {
    let mut configuration = Configuration::default();
    for (key, value) in settings {
        configuration.set(key, value, Origin::Dynamic).unwrap();
    }
    let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
    let stream_graph = plugin.plan(&args, &SandboxLimits::from_configuration(&configuration)).unwrap();
    let program = ProgramSpec {
        plugin: PLUGIN,
        plugin_name: plugin.name().to_owned(),
        args,
        graph_digest: graph_digest(&stream_graph),
    };
    let job_id = JobId::random();
    let spec = JobSpec { job_id, default_name: "test".into(), program, grants, artifacts: Vec::new() };
    job_graph_generator::generate(&stream_graph, &configuration, spec).unwrap()
}

/// Runs a job as its JobMaster would, and makes its output visible.
fn run_to_end(plugin: &Arc<CompiledPlugin>, job_graph: JobGraph) -> Vec<TaskExecutionStateUpdate> {
    let permissions = Arc::new(Permissions {
        read: job_graph.grants.read.clone(),
        write: job_graph.grants.write.clone(),
        ..Permissions::default()
    });
    let mut cluster = Cluster::with_plugin(Arc::new(Arc::clone(plugin)));
    cluster.services.connectors = Arc::new(NativeConnectors::default());
    let mut committers = Vec::new();
    let operators = job_graph
        .vertices
        .iter()
        .flat_map(|vertex| vertex.operators.iter().map(move |operator| (vertex.parallelism, &operator.node)));
    for (parallelism, node) in operators {
        match &node.operator {
            Operator::Source(spec) => {
                let record_type = node.output_type.as_deref().unwrap();
                let enumerator =
                    connector::create_enumerator(spec, parallelism, record_type, Arc::clone(&permissions), None)
                        .unwrap();
                cluster.enumerators.insert(node.id, enumerator);
            }
            Operator::Sink(spec) => {
                let committer = connector::create_committer(spec, job_graph.job_id, Arc::clone(&permissions)).unwrap();
                committers.push((node.id, committer));
            }
            Operator::Guest(_) | Operator::GuestSource(_) => {}
        }
    }
    committers.iter_mut().for_each(|(_, committer)| committer.prepare().unwrap());
    let job = TestJob::of_job_graph(job_graph);
    cluster.start_all(&job);
    let finished = cluster.until_finished();
    for (node, committer) in &mut committers {
        let of_node = finished.iter().flat_map(|update| &update.end_states).filter(|(id, _)| *id == node);
        let committables: Vec<Committable> = of_node.flat_map(|(_, state)| state.committables.clone()).collect();
        committer.commit(committables).unwrap();
    }
    finished
}

/// All lines of the visible files of a directory, sorted.
fn sorted_lines(directory: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_file() && !entry.file_name().to_string_lossy().starts_with('.') {
            let text = std::fs::read_to_string(entry.path()).unwrap();
            lines.extend(text.lines().map(str::to_owned));
        }
    }
    lines.sort();
    lines
}

#[test]
fn word_count_counts_words_from_file_to_file_at_any_parallelism() {
    const LINES: usize = 5_000;
    let plugin = compile("word_count");
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().canonicalize().unwrap();
    let input = root.join("log.txt");
    let lines: String = (0..LINES).map(|line| format!("Alpha, beta: alpha n{}\n", line % 10)).collect();
    std::fs::write(&input, lines).unwrap();
    let mut expected = vec![format!("alpha,{}", 2 * LINES), format!("beta,{LINES}")];
    expected.extend((0..10).map(|digit| format!("n{digit},{}", LINES / 10)));

    for parallelism in ["1", "2", "4"] {
        let output = root.join(parallelism);
        let settings = [("parallelism.default", parallelism), ("taskmanager.memory.segment-size", "1 kb")];
        let args = ["--input", input.to_str().unwrap(), "--output", output.to_str().unwrap()];
        let grants = Grants { read: vec![input.clone()], write: vec![output.clone()], net: Vec::new() };
        let finished = run_to_end(&plugin, job_graph(&plugin, &args, &settings, grants));
        assert_eq!(sorted_lines(&output), expected);
        let read: u64 = finished.iter().map(|update| update.metrics.records_in).sum();
        assert_eq!(read, (LINES + 4 * LINES) as u64);
        assert!(finished.iter().all(|update| 0 < update.metrics.guest_memory_bytes));
    }
}

#[test]
fn a_program_with_another_graph_is_refused() {
    let plugin = compile("word_count");
    let mut job_graph = job_graph(&plugin, &["--input", "log.txt", "--output", "counts"], &[], Grants::default());
    job_graph.program.args = vec!["--input".into(), "log.txt".into(), "--updates".into()];
    let job = TestJob::of_job_graph(job_graph);
    let mut cluster = Cluster::with_plugin(Arc::new(plugin));
    cluster.start(&job, &job.deployments[0]);
    let update = cluster.until_update(|update| is_terminal(update.state));
    assert_eq!(update.state, TaskState::Failed);
    let cause = update.cause.unwrap();
    assert_eq!(cause.code, "graph-mismatch");
    assert!(cause.message.starts_with("job \"Word count\", task \""), "{}", cause.message);
    assert!(cause.message.contains("plugin word_count.wasm, in plan: "), "{}", cause.message);
}

/// The job of a source, the hostile plugin, and a sink; the arguments choose the attack.
fn hostile_job(plugin: &Arc<CompiledPlugin>, args: &[&str]) -> TestJob {
    let nodes = [source(100, 1, "endless"), guest(1, 1), guest(2, 1), sink(101, 1)];
    let edges = [edge(100, 1, Partitioner::Forward), chained(1, 2), chained(2, 101)];
    let mut job = TestJob::new(&nodes, &edges, &[("sandbox.call.cpu-time", "1 min")]);
    let graph = plugin.plan(&[], &SandboxLimits::from_configuration(&Configuration::default())).unwrap();
    job.info.program.graph_digest = graph_digest(&graph);
    job.info.program.args = args.iter().map(|&arg| arg.to_owned()).collect();
    job
}

#[test]
fn a_plugin_that_loops_is_cancelled_within_a_second() {
    let plugin = compile("test_hostile");
    for (at, act) in [("process-batch", "loop"), ("open", "loop"), ("plan", "loop")] {
        let mut job = hostile_job(&plugin, &[at, act]);
        for key in ["sandbox.open.cpu-time", "sandbox.plan.cpu-time"] {
            job.info.configuration.set(key, "1 min", Origin::Dynamic).unwrap();
        }
        let mut cluster = Cluster::with_plugin(Arc::new(Arc::clone(&plugin)));
        cluster.start_all(&job);
        let looping = job.deployments[1].attempt;
        // The source has sent what the queue holds, so that the guest has got a batch,
        // or will not get any because it loops before.
        cluster.until_metrics(job.deployments[0].attempt, |metrics| 0 < metrics.back_pressured_ms);
        cluster.cancel(looping);
    }
}

#[test]
fn a_trap_names_operator_row_and_origin() {
    let plugin = compile("test_hostile");
    let job = hostile_job(&plugin, &["process-batch", "index"]);
    let mut cluster = Cluster::with_plugin(Arc::new(Arc::clone(&plugin)));
    cluster.start_all(&job);
    let update = cluster.until_update(|update| update.state == TaskState::Failed);
    let cause = update.cause.unwrap();
    assert_eq!(cause.code, "guest-panic");
    let expected = "job \"test\", operator \"op2\" (subtask 1/1, attempt 0): plugin test_hostile.wasm, in \
                    process-batch, input 0, row ";
    assert!(cause.message.starts_with(expected), "{}", cause.message);
    assert!(cause.message.contains(", from input gate 0, channel 0: "), "{}", cause.message);
    assert!(cause.detail.contains("test_hostile::"), "{}", cause.detail);
}
