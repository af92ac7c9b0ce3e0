//! What does an idle job hold? A cluster in this process runs 1,000 jobs of one task
//! each, which wait for the next row of a slow source.

use std::{fs, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
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
    mini_cluster::{MiniCluster, MiniClusterConfig, Storage, components},
    protocol::{
        dispatcher::{DispatcherRequest, DispatcherResponse},
        rpc::Transport,
    },
    task_manager::operator::PrintedRows,
    wasm::{PluginRuntime, PluginRuntimeConfig},
};

const JOBS: u32 = 1000;
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
const LOOKS_MAX: usize = 600;

/// A figure of `/proc/self/status`, in its unit.
fn of_this_process(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux has it");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("Linux has it");
    line.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
}

async fn jobs(cluster: &MiniCluster) -> Vec<JobStatus> {
    match cluster.gateway().request(DispatcherRequest::ListJobs).await.expect("it answers") {
        DispatcherResponse::Jobs(jobs) => jobs.iter().map(|job| job.status).collect(),
        other => panic!("not a list of jobs: {other:?}"),
    }
}

async fn run() {
    let mut configuration = Configuration::default();
    configuration.set("restart-strategy.type", "none", Origin::Dynamic).expect("valid");
    let plugins =
        PluginRuntime::new(PluginRuntimeConfig::from_configuration(&configuration)).expect("the machine can run it");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/plugins/nexmark.wasm");
    let content = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}; `make plugins`", path.display()));
    let program = Program::load(&plugins, Bytes::from(content), "nexmark.wasm").expect("a plugin of ours");
    let cluster = MiniCluster::start(MiniClusterConfig {
        configuration: configuration.clone(),
        task_executors: 1,
        slots_per_task_executor: JOBS,
        clock: Clock::System,
        storage: Storage::Temporary,
        transport: Transport::Direct,
        job_master_factory: components::job_master_factory(configuration.clone(), Clock::System),
        task_starter_factory: components::task_starter_factory(Arc::clone(&plugins), PrintedRows::AsConfigured),
    });
    let cluster = cluster.await.expect("it starts");
    cluster.blobs().put(&program.content).expect("there is room");
    let before = of_this_process("VmRSS");
    // All rows but the first come later than anybody waits for.
    let args = ["--query", "q0", "--events", "1000000", "--rate", "1", "--discard"];
    for _ in 0..JOBS {
        let planned = program.plan(Submission {
            job: JobId::random(),
            args: args.into_iter().map(str::to_owned).collect(),
            configuration: configuration.clone(),
            explicit: ExplicitGrants::default(),
            site: Site::Here,
            artifacts: Vec::new(),
        });
        let job_graph = planned.expect("good arguments").job_graph;
        cluster.gateway().request(DispatcherRequest::SubmitJob(job_graph)).await.expect("it is taken");
    }
    for look in 0.. {
        let statuses = jobs(&cluster).await;
        assert!(statuses.iter().all(|status| !status.is_globally_terminal()), "a job ended: {statuses:?}");
        let threads = of_this_process("Threads");
        if statuses.iter().all(|status| *status == JobStatus::Running) && u64::from(JOBS) <= threads {
            break;
        }
        assert!(look < LOOKS_MAX, "{threads} threads run, of {statuses:?}");
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
    // Until the last of them has opened its operators.
    tokio::time::sleep(10 * LOOK_INTERVAL).await;
    let (resident, threads) = (of_this_process("VmRSS"), of_this_process("Threads"));
    println!(
        "{JOBS} idle jobs of one task: {} MiB resident, {} KiB a job, {threads} threads (bound: 1024 MiB)",
        resident >> 10,
        resident.saturating_sub(before) / u64::from(JOBS)
    );
    // The process ends with its jobs.
    std::process::exit(0);
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("threads can be started").block_on(run());
}
