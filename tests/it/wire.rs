//! A whole job with every message between the components through the wire codec.

use std::{fs, sync::Arc};

use engine::{
    base::{
        clock::Clock,
        config::{Configuration, Origin},
        ids::JobId,
        status::JobStatus,
    },
    client::{
        grants::{ExplicitGrants, Site},
        program::{Program, Submission},
    },
    graph::slot_sharing::slots_needed,
    mini_cluster::{MiniCluster, MiniClusterConfig, Storage, components},
    protocol::{
        dispatcher::{DispatcherRequest, DispatcherResponse},
        rpc::Transport,
    },
    task_manager::operator::PrintedRows,
    wasm::{PluginRuntime, PluginRuntimeConfig},
};
use engine_tests::{plugin, sorted_rows, text};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn word_count_equals_the_model_with_every_message_through_the_codec() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut lines = Vec::new();
    engine_benches::write_words(5_000, 3, &mut lines).expect("writing to memory does not fail");
    let (input, output) = (directory.path().join("words.txt"), directory.path().join("counts"));
    fs::write(&input, &lines).expect("writable");

    let mut configuration = Configuration::default();
    configuration.set("parallelism.default", "3", Origin::Dynamic).expect("valid");
    let cache = text(directory.path()).to_owned() + "/cache";
    configuration.set("plugin.cache-dir", &cache, Origin::Dynamic).expect("valid");
    let plugins = PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).expect("it starts");
    let content = bytes::Bytes::from(fs::read(plugin("word_count")).expect("readable"));
    let program = Program::load(&plugins, content.clone(), "word_count.wasm").expect("it is a plugin");
    let planned = program.plan(Submission {
        job: JobId::random(),
        args: ["--input", text(&input), "--output", text(&output)].map(str::to_owned).to_vec(),
        explicit: ExplicitGrants::default(),
        configuration: configuration.clone(),
        site: Site::Here,
        artifacts: Vec::new(),
    });
    let job_graph = planned.expect("the program plans").job_graph;
    let job = job_graph.job_id;

    // Two TaskExecutors, so that subtasks are apart from those that they read from.
    let slots = u32::try_from(slots_needed(&job_graph)).expect("few").div_ceil(2);
    let cluster = MiniCluster::start(MiniClusterConfig {
        configuration: configuration.clone(),
        task_executors: 2,
        slots_per_task_executor: slots,
        clock: Clock::System,
        storage: Storage::Temporary,
        transport: Transport::Wire,
        job_master_factory: components::job_master_factory(configuration, Clock::System),
        task_starter_factory: components::task_starter_factory(Arc::clone(&plugins), PrintedRows::AsConfigured),
    })
    .await
    .expect("the cluster starts");
    cluster.blobs().put(&content).expect("blobs can be stored");
    let submitted = cluster.gateway().request(DispatcherRequest::SubmitJob(job_graph)).await;
    assert_eq!(submitted, Ok(DispatcherResponse::Acknowledged));
    let details = match cluster.gateway().request(DispatcherRequest::AwaitTermination(job)).await {
        Ok(DispatcherResponse::Details(details)) => details,
        other => panic!("{other:?}"),
    };
    assert_eq!(details.status, JobStatus::Finished, "{details:?}");
    let counts = cluster.rpc().counts();
    assert_eq!((counts.unencodable, counts.queue_full, counts.given_up), (0, 0, 0));
    cluster.shutdown().await.expect("the cluster ends");

    let lines = String::from_utf8(lines).expect("words are ASCII");
    assert!(sorted_rows(&output) == crate::word_count::model(&lines), "the counts differ from the model");
}
