//! Whole clusters in their loops, with scripted JobMasters and tasks that end at once.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::{
        Mutex,
        atomic::{AtomicU32, Ordering},
    },
};

use super::{scripted_job_master::ScriptedJobMaster, *};
use crate::{
    base::{status::JobStatus, stream_element::CheckpointId},
    graph::{job_graph::JobGraph, slot_sharing::slots_needed},
    job_manager::test_graphs::{PLUGIN, job_graph},
    protocol::{
        dispatcher::{DispatcherError, DispatcherRequest, DispatcherResponse},
        job_details::JobDetails,
        job_master::{MaxAllowedWatermark, SplitAnswer, TaskExecutionStateUpdate, TaskMetrics, TaskState},
        task_executor::{JobInformation, TaskDeployment, TriggerCheckpoint},
    },
    task_manager::{RunningTask, TaskEvent},
};

/// What the tasks of a test do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Behaviour {
    /// A thread ends each at once.
    Finish,
    /// Each runs until it is told to end.
    RunUntilTold,
    /// The JobMaster dies when it is made.
    PanicInJobMaster,
}

struct Task {
    told: Box<dyn Fn(TaskState) + Send>,
}

impl RunningTask for Task {
    fn trigger_checkpoint(&self, _: TriggerCheckpoint) {}

    fn notify_checkpoint_complete(&self, _: CheckpointId) {}

    fn notify_checkpoint_aborted(&self, _: CheckpointId) {}

    fn cancel(&self) {
        (self.told)(TaskState::Canceled);
    }

    fn split_assigned(&self, _answer: SplitAnswer) {}

    fn align_watermark(&self, _max_allowed: MaxAllowedWatermark) {}

    fn metrics(&self) -> TaskMetrics {
        TaskMetrics::default()
    }

    fn fail(&self, _reason: &str) {
        (self.told)(TaskState::Failed);
    }
}

struct TestCluster {
    config: MiniClusterConfig,
    /// Number of tasks that have ended.
    ended: Arc<AtomicU32>,
    /// Number of tasks that were started.
    started: Arc<AtomicU32>,
}

fn config(behaviour: Behaviour, storage: Storage) -> TestCluster {
    let (started, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let clock = Clock::System;
    let factory_clock = clock.clone();
    let config = MiniClusterConfig {
        configuration: Configuration::default(),
        task_executors: 2,
        slots_per_task_executor: 2,
        clock,
        storage,
        transport: Transport::Wire,
        job_master_factory: Arc::new(move |_| {
            let clock = factory_clock.clone();
            Arc::new(move |graph, job_master| {
                assert_ne!(behaviour, Behaviour::PanicInJobMaster, "as told");
                Ok(Box::new(ScriptedJobMaster::new(graph, job_master, clock.now())))
            })
        }),
        task_starter_factory: Arc::new({
            let (started, ended) = (Arc::clone(&started), Arc::clone(&ended));
            move |context| starter(context.events, behaviour, Arc::clone(&started), Arc::clone(&ended))
        }),
    };
    TestCluster { config, ended, started }
}

fn starter(events: TaskEventSink, behaviour: Behaviour, started: Arc<AtomicU32>, ended: Arc<AtomicU32>) -> TaskStarter {
    let start = move |_: Arc<JobInformation>, deployment: TaskDeployment| {
        started.fetch_add(1, Ordering::SeqCst);
        let attempt = deployment.attempt;
        let report = {
            let (events, ended, reported) = (Arc::clone(&events), Arc::clone(&ended), Mutex::new(false));
            Arc::new(move |state| {
                if set_flag(&reported) {
                    return;
                }
                ended.fetch_add(1, Ordering::SeqCst);
                let (metrics, end_states) = (TaskMetrics::default(), BTreeMap::new());
                let update = TaskExecutionStateUpdate { attempt, state, cause: None, metrics, end_states };
                events(TaskEvent::StateChanged(update));
            })
        };
        if behaviour == Behaviour::Finish {
            let report = Arc::clone(&report);
            std::thread::spawn(move || report(TaskState::Finished));
        }
        let task: Box<dyn RunningTask> = Box::new(Task { told: Box::new(move |state| report(state)) });
        Ok(task)
    };
    TaskStarter { start: Box::new(start), job_left: Box::new(|_| {}) }
}

/// Sets the flag and returns what it was.
fn set_flag(flag: &Mutex<bool>) -> bool {
    std::mem::replace(&mut *flag.lock().unwrap(), true)
}

async fn submit(cluster: &MiniCluster, graph: &JobGraph) {
    cluster.blobs().put(PLUGIN).unwrap();
    let submitted = cluster.gateway().request(DispatcherRequest::SubmitJob(graph.clone())).await;
    assert_eq!(submitted, Ok(DispatcherResponse::Acknowledged));
}

async fn await_end(gateway: DispatcherGateway, job: JobId) -> JobDetails {
    match gateway.request(DispatcherRequest::AwaitTermination(job)).await {
        Ok(DispatcherResponse::Details(details)) => details,
        other => panic!("{other:?}"),
    }
}

/// Asks again while whoever knows is not leading yet.
async fn status(cluster: &MiniCluster, job: JobId) -> JobStatus {
    loop {
        match cluster.gateway().request(DispatcherRequest::JobDetails(job)).await {
            Ok(DispatcherResponse::Details(details)) => return details.status,
            Err(DispatcherError::NoLeader(_)) => tokio::task::yield_now().await,
            other => panic!("{other:?}"),
        }
    }
}

/// Yields to the other loops until the number is reached.
async fn until(counter: &AtomicU32, count: u32) {
    while counter.load(Ordering::SeqCst) < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_runs_with_every_message_through_the_codec() {
    let test = config(Behaviour::Finish, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graph = job_graph(1, &[("a", 4), ("b", 2)]);
    assert_eq!(slots_needed(&graph), 4);
    submit(&cluster, &graph).await;
    let details = await_end(cluster.gateway(), graph.job_id).await;
    assert_eq!(details.status, JobStatus::Finished);
    assert_eq!(test.started.load(Ordering::SeqCst), 6);
    let counts = cluster.rpc().counts();
    assert_eq!((counts.unencodable, counts.queue_full, counts.given_up), (0, 0, 0));
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_needs_more_slots_than_there_are_is_refused() {
    let test = config(Behaviour::Finish, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    cluster.blobs().put(PLUGIN).unwrap();
    // Two TaskExecutors with two slots each.
    let gateway = cluster.gateway();
    let refused = gateway.request(DispatcherRequest::SubmitJob(job_graph(1, &[("a", 5)]))).await;
    assert_eq!(refused, Err(DispatcherError::TooFewSlots { needed: 5, total: 4 }));
    assert_eq!(gateway.request(DispatcherRequest::ListJobs).await, Ok(DispatcherResponse::Jobs(Vec::new())));
    // Its id is not taken.
    let graph = job_graph(1, &[("a", 4)]);
    submit(&cluster, &graph).await;
    assert_eq!(await_end(gateway.clone(), graph.job_id).await.status, JobStatus::Finished);
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_jobs_run_and_one_is_cancelled() {
    let test = config(Behaviour::RunUntilTold, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graphs = [job_graph(1, &[("a", 1)]), job_graph(2, &[("a", 2)])];
    for graph in &graphs {
        submit(&cluster, graph).await;
    }
    until(&test.started, 3).await;
    let gateway = cluster.gateway();
    let Ok(DispatcherResponse::TaskExecutors(list)) = gateway.request(DispatcherRequest::ListTaskExecutors).await
    else {
        panic!("refused")
    };
    let free: Vec<_> = list.iter().map(|details| (details.id.0.as_str(), details.slots)).collect();
    assert_eq!(free, [("taskmanager-1", 2), ("taskmanager-2", 2)]);
    assert_eq!(list.iter().map(|details| details.free_slots).sum::<u32>(), 1);
    assert_eq!(status(&cluster, graphs[0].job_id).await, JobStatus::Running);

    let cancelled = gateway.request(DispatcherRequest::CancelJob(graphs[0].job_id)).await;
    assert_eq!(cancelled, Ok(DispatcherResponse::Acknowledged));
    assert_eq!(await_end(gateway.clone(), graphs[0].job_id).await.status, JobStatus::Canceled);
    assert_eq!(status(&cluster, graphs[1].job_id).await, JobStatus::Running);

    // Whoever waits for a job when the cluster goes is told so.
    let waiting = tokio::spawn({
        let (gateway, job) = (gateway.clone(), graphs[1].job_id);
        async move { gateway.request(DispatcherRequest::AwaitTermination(job)).await }
    });
    tokio::task::yield_now().await;
    cluster.shutdown().await.unwrap();
    assert!(matches!(waiting.await.unwrap(), Err(DispatcherError::NoLeader(_))));
    assert_eq!(test.ended.load(Ordering::SeqCst), 3);
    let refused = gateway.request(DispatcherRequest::ListJobs).await;
    assert_eq!(refused, Err(DispatcherError::NoLeader("Dispatcher".to_owned())));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_by_a_client_cancels_and_ends_the_cluster() {
    let test = config(Behaviour::RunUntilTold, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graph = job_graph(1, &[("a", 2)]);
    submit(&cluster, &graph).await;
    until(&test.started, 2).await;
    let acknowledged = cluster.gateway().request(DispatcherRequest::Shutdown).await;
    assert_eq!(acknowledged, Ok(DispatcherResponse::Acknowledged));
    cluster.terminated().await.unwrap();
    cluster.shutdown().await.unwrap();
    assert_eq!(test.ended.load(Ordering::SeqCst), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_master_that_panics_fails_its_job_and_nothing_else() {
    let test = config(Behaviour::PanicInJobMaster, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graph = job_graph(1, &[("a", 1)]);
    submit(&cluster, &graph).await;
    let details = await_end(cluster.gateway(), graph.job_id).await;
    assert_eq!(details.status, JobStatus::Failed);
    let message = details.root_failure.unwrap().cause.message;
    assert!(message.contains("as told"), "{message}");
    cluster.shutdown().await.unwrap();
}

async fn suspend_a_job(directory: &Path) -> JobId {
    let test = config(Behaviour::RunUntilTold, Storage::Directory(directory.to_owned()));
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graph = job_graph(1, &[("a", 1)]);
    submit(&cluster, &graph).await;
    until(&test.started, 1).await;
    cluster.shutdown().await.unwrap();
    graph.job_id
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_cluster_takes_over_what_the_former_left() {
    let directory = tempfile::tempdir().unwrap();
    let job = suspend_a_job(directory.path()).await;
    let test = config(Behaviour::Finish, Storage::Directory(directory.path().to_owned()));
    let cluster = MiniCluster::start(test.config.clone()).await.unwrap();
    assert_eq!(await_end(cluster.gateway(), job).await.status, JobStatus::Finished);
    let locked = MiniCluster::start(test.config.clone()).await.err().map(|error| format!("{error:?}"));
    assert!(locked.is_some_and(|error| error.contains("Locked")));
    cluster.shutdown().await.unwrap();

    let cluster = MiniCluster::start(test.config).await.unwrap();
    let again = cluster.gateway().request(DispatcherRequest::SubmitJob(job_graph(1, &[("a", 1)]))).await;
    assert_eq!(again, Err(DispatcherError::DuplicateEndedJob(job, JobStatus::Finished)));
    cluster.shutdown().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_over_a_damaged_graph_shows_the_job_as_failed_and_leaves_it() {
    let directory = tempfile::tempdir().unwrap();
    let job = suspend_a_job(directory.path()).await;
    let path = directory.path().join("job-graphs").join(format!("{job}.graph"));
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, &bytes).unwrap();
    let test = config(Behaviour::Finish, Storage::Directory(directory.path().to_owned()));
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let details = await_end(cluster.gateway(), job).await;
    assert_eq!(details.status, JobStatus::Failed);
    let message = details.root_failure.map(|failure| failure.cause.message).unwrap_or_default();
    let damaged = format!("the stored graph of job {job} is damaged: its checksum does not fit");
    assert!(message.contains(&damaged), "{message}");
    let other = JobGraph { job_id: JobId::from_bytes([7; 16]), ..job_graph(1, &[("a", 1)]) };
    submit(&cluster, &other).await;
    assert_eq!(await_end(cluster.gateway(), other.job_id).await.status, JobStatus::Finished);
    cluster.shutdown().await.unwrap();
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_leader_goes_on_with_the_jobs_of_the_former() {
    let test = config(Behaviour::RunUntilTold, Storage::Temporary);
    let cluster = MiniCluster::start(test.config).await.unwrap();
    let graph = job_graph(1, &[("a", 2)]);
    submit(&cluster, &graph).await;
    until(&test.started, 2).await;
    let mut leader = cluster.election().listen(Address::Dispatcher);
    let former = *leader.borrow_and_update();
    let mut election = cluster.election().clone();
    election.revoke();
    assert_eq!(leader.wait_for(Option::is_none).await.map(|leader| *leader).unwrap(), None);
    // The tasks of the suspended job have ended before the next leader starts it again.
    until(&test.ended, 2).await;
    election.grant();
    let next = *leader.wait_for(Option::is_some).await.unwrap();
    assert_ne!(next, former);
    assert_ne!(status(&cluster, graph.job_id).await, JobStatus::Suspended);
    until(&test.started, 4).await;
    let cancelled = cluster.gateway().request(DispatcherRequest::CancelJob(graph.job_id)).await;
    assert_eq!(cancelled, Ok(DispatcherResponse::Acknowledged));
    assert_eq!(await_end(cluster.gateway(), graph.job_id).await.status, JobStatus::Canceled);
    cluster.shutdown().await.unwrap();
}

#[test]
fn the_memory_of_the_machine_is_known_on_linux() {
    if Path::new("/proc/meminfo").exists() {
        assert!(memory_bytes().is_some_and(|bytes| 1 << 20 < bytes));
    }
}
