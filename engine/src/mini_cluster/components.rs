//! The JobMasters and tasks of a real cluster: what [`MiniClusterConfig`] is given
//! outside of tests.
//!
//! [`MiniClusterConfig`]: super::MiniClusterConfig

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    error::Error,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::Duration,
};

use super::{JobMasterContext, JobMasterFactoryMaker, TaskExecutorContext, TaskStarterFactory};
use crate::{
    base::{
        clock::Clock,
        config::{Configuration, options},
        ids::{BlobDigest, ExecutionGraphId, JobId, ResourceId},
        stream_element::SnapshotLocation,
    },
    checkpoint::{CheckpointStorage, CheckpointStorageError},
    connector::{self, Permissions, SinkCommitter},
    graph::{
        job_graph::{Artifact, JobGraph},
        stream_graph::Operator,
    },
    job_manager::{
        blob_store::BlobStore,
        dispatcher::{JobCleaner, chain},
        job_master::{
            Connectors, JobMaster, JobMasterParts,
            checkpoint_coordinator::{settings::CheckpointSettings, storage::ThreadedStore},
            effective_configuration,
        },
        job_master_runner::JobMasterFactory,
    },
    protocol::{
        job_master::{FailureCause, Recoverability},
        rpc::{Address, Endpoint, Envelope, Fence, Message},
        task_executor::{JobInformation, TaskDeployment},
    },
    task_manager::{
        TaskStarter,
        network::ResultPartitionManager,
        operator::{NativeConnectors, PrintedRows, SharedPlugin},
        task::{self, PluginProvider, SnapshotWriter, TaskServices},
    },
    wasm::PluginRuntime,
};

/// How long the Dispatcher, and with it all jobs, waits for what an ended job left to be removed, unless it waited in
/// vain for another one. Where storage works it takes milliseconds; beside the Dispatcher it may take as long as it
/// likes.
const CLEANING_WAIT_MAX: Duration = Duration::from_secs(10);

/// Makes JobMasters that reach the native connectors and store checkpoints.
pub fn job_master_factory(configuration: Configuration, clock: Clock) -> JobMasterFactoryMaker {
    Arc::new(move |context| make_job_master_factory(configuration.clone(), clock.clone(), context))
}

fn make_job_master_factory(
    configuration: Configuration,
    clock: Clock,
    JobMasterContext { blobs, state_directory, state_is_kept, send }: JobMasterContext,
) -> JobMasterFactory {
    Arc::new(move |job_graph, job_master_id| {
        let job_id = job_graph.job_id;
        let send = Arc::clone(&send);
        let address = Address::JobMaster(job_id);
        let send_to_itself = move |message| {
            let (from, to) = (address.clone(), address.clone());
            send(Envelope { from, to, fence: Fence::JobMaster(job_master_id), message: Message::JobMaster(message) });
        };
        let path_of = |artifact: &Artifact| (artifact.name.clone(), blobs.path(artifact.digest));
        let artifacts: BTreeMap<_, _> = job_graph.artifacts.iter().map(path_of).collect();
        let connectors = Connectors {
            enumerators: Arc::new(move |spec, parallelism, record_type, permissions, restored| {
                let permissions = Permissions { artifacts: artifacts.clone(), ..permissions.clone() };
                connector::create_enumerator(spec, parallelism, record_type, Arc::new(permissions), restored)
            }),
            committers: Arc::new(move |spec, _, _, permissions| {
                connector::create_committer(spec, job_id, Arc::new(permissions.clone()))
            }),
        };
        let parts = JobMasterParts {
            job_graph,
            job_master_id,
            submitted: clock.now(),
            configuration: configuration.clone(),
            connectors,
            checkpoint_store: Box::new(ThreadedStore::new(Arc::new(send_to_itself))),
            state_directory: state_directory.clone(),
            state_is_kept,
            dispatcher: Fence::None,
        };
        match JobMaster::new(parts) {
            Ok(job_master) => Ok(Box::new(job_master) as Box<dyn Endpoint + Send>),
            Err(error) => Err(unrecoverable("invalid-job", &error)),
        }
    })
}

/// Gives the destinations of ended jobs free, and deletes their checkpoints that are not to be kept. What the newest
/// of those that are kept holds stays in the destinations, too, until it is committed. Storage that hangs is not waited
/// for: whoever asks again learns whether it has been done meanwhile.
pub fn job_cleaner(configuration: Configuration, state_directory: PathBuf) -> JobCleaner {
    let clean: JobCleaner = Arc::new(move |job_graph, result| {
        let configuration = effective_configuration(&configuration, &job_graph.configuration);
        let settings = CheckpointSettings::new(&configuration, job_graph.job_id, &state_directory);
        let is_kept = settings.retention.keeps(result.status);
        let permissions = Arc::new(Permissions::from(&job_graph.grants));
        let mut committers = Vec::new();
        for operator in job_graph.vertices.iter().flat_map(|vertex| &vertex.operators) {
            if let Operator::Sink(connector) = &operator.node.operator {
                let committer = connector::create_committer(connector, job_graph.job_id, Arc::clone(&permissions))?;
                committers.push((operator.node.id, committer));
            }
        }
        // Without an interval none was stored.
        if is_kept && settings.interval.is_some() {
            keep_newest(job_graph, settings.location.clone(), &mut committers)?;
        }
        for (_, committer) in &mut committers {
            committer.abort()?;
        }
        if !is_kept {
            CheckpointStorage::open(settings.location)?.delete_all()?;
        }
        // Its end is durable: it will not go back to before the savepoint. A savepoint that cannot be written to
        // must not keep the destinations claimed.
        if let Some(location) = &result.stopped_with {
            CheckpointStorage::open(location.clone())?.note_stopped()?;
        }
        Ok(())
    });
    in_background(clean, CLEANING_WAIT_MAX)
}

/// Has jobs cleaned up by threads, and waits for so long for each when it is started, if none takes longer already.
fn in_background(clean: JobCleaner, wait_max: Duration) -> JobCleaner {
    let running: Mutex<BTreeMap<JobId, mpsc::Receiver<Result<(), String>>>> = Mutex::default();
    Arc::new(move |job_graph, result| {
        let job = job_graph.job_id;
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        let (cleaned, wait) = match running.remove(&job) {
            Some(cleaned) => (cleaned, Duration::ZERO),
            None => {
                let (answer, cleaned) = mpsc::sync_channel(1);
                let (clean, job_graph, result) = (Arc::clone(&clean), job_graph.clone(), result.clone());
                thread::Builder::new().name("clean-up".to_owned()).spawn(move || {
                    let cleaned = clean(&job_graph, &result).map_err(|error| chain(&*error));
                    // An error means that the cluster has ended.
                    drop(answer.send(cleaned));
                })?;
                (cleaned, if running.is_empty() { wait_max } else { Duration::ZERO })
            }
        };
        match cleaned.recv_timeout(wait) {
            Ok(cleaned) => cleaned.map_err(Into::into),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                running.insert(job, cleaned);
                Err("it takes long: the storage of its checkpoints or of its output may not answer".into())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => Err("it ended in a panic, which is a bug".into()),
        }
    })
}

/// Has sinks keep what the newest readable checkpoint of an ended job holds of them.
fn keep_newest(
    job_graph: &JobGraph,
    location: SnapshotLocation,
    committers: &mut [(u32, Box<dyn SinkCommitter>)],
) -> Result<(), Box<dyn Error>> {
    let claimed = committers.iter().map(|(_, committer)| committer.committed()).collect::<Result<Vec<_>, _>>()?;
    let Some(committed) = claimed.into_iter().flatten().max() else {
        // Nothing was written, or the JobMaster has tidied up.
        return Ok(());
    };
    let storage = CheckpointStorage::open(location)?;
    let ids = storage.checkpoints()?;
    for id in ids.iter().rev() {
        let metadata = match storage.load_metadata(Some(*id)) {
            Err(error @ CheckpointStorageError::Io { .. }) => return Err(error.into()),
            Err(_) => continue,
            Ok(metadata) => metadata,
        };
        let mut committables = metadata.committables(&job_graph.vertices);
        for (node, committer) in committers {
            committer.keep(*id, &committables.remove(node).unwrap_or_default())?;
        }
        return Ok(());
    }
    // What it started from may have been committed too.
    let start = job_graph.configuration.get(&options::RECOVERY_PATH).map(SnapshotLocation);
    let start = start.and_then(|location| CheckpointStorage::open_snapshot(&location).ok());
    let start = start.map_or(0, |(_, metadata)| metadata.checkpoint_id);
    if !ids.is_empty() || committed <= start {
        return Ok(());
    }
    let (job, location) = (job_graph.job_id, storage.location());
    let problem = format!(
        "job {job} committed checkpoint {committed}, but none of its checkpoints is in {location}: what they hold \
         stays in its output directories, claimed by .job-{job}, until that directory is available again, or the \
         claims are removed"
    );
    Err(problem.into())
}

/// Starts tasks that run plugins in `runtime` and reach the native connectors. The
/// tasks of one job meet in one [`ResultPartitionManager`], which all TaskExecutors
/// of the process share.
pub fn task_starter_factory(runtime: Arc<PluginRuntime>, printed_rows: PrintedRows) -> TaskStarterFactory {
    let jobs = Arc::new(SharedJobs::default());
    Arc::new(move |context| {
        let TaskExecutorContext { id, blobs, state_directory, events, clock } = context;
        let start = {
            let (id, jobs, runtime) = (id.clone(), Arc::clone(&jobs), Arc::clone(&runtime));
            let snapshots = Arc::new(SnapshotWriter::default());
            move |information: Arc<JobInformation>, deployment: TaskDeployment| {
                jobs.enter(information.job, deployment.attempt.graph, &id);
                let artifacts = Arc::clone(&blobs);
                let plugins = JobPlugins {
                    runtime: Arc::clone(&runtime),
                    blobs: Arc::clone(&blobs),
                    name: information.program.plugin_name.clone(),
                };
                let services = TaskServices {
                    partitions: Arc::clone(&jobs.partitions),
                    plugins: Arc::new(plugins),
                    connectors: Arc::new(NativeConnectors { printed_rows }),
                    artifacts: Arc::new(move |artifact| Ok(artifacts.path(artifact.digest))),
                    guest_stack_bytes: runtime.stack_bytes_max(),
                    state_directory: state_directory.clone(),
                    clock: clock.clone(),
                    events: Arc::clone(&events),
                    snapshots: Arc::clone(&snapshots),
                };
                task::start(information, deployment, &services)
            }
        };
        let jobs = Arc::clone(&jobs);
        TaskStarter { start: Box::new(start), job_left: Box::new(move |job| jobs.leave(job, &id)) }
    })
}

/// Which TaskExecutors of the process run tasks of which jobs, so that the output
/// that nobody will read goes with the last of them: a producer may have ended on
/// one while its consumer has yet to begin on another.
#[derive(Default)]
struct SharedJobs {
    partitions: Arc<ResultPartitionManager>,
    holders: Mutex<HashMap<JobId, Holders>>,
}

#[derive(Default)]
struct Holders {
    graphs: BTreeSet<ExecutionGraphId>,
    task_executors: BTreeSet<ResourceId>,
}

impl SharedJobs {
    fn lock(&self) -> MutexGuard<'_, HashMap<JobId, Holders>> {
        self.holders.lock().expect("no code panics while it holds the lock")
    }

    fn enter(&self, job: JobId, graph: ExecutionGraphId, task_executor: &ResourceId) {
        let mut jobs = self.lock();
        let holders = jobs.entry(job).or_default();
        holders.graphs.insert(graph);
        if !holders.task_executors.contains(task_executor) {
            holders.task_executors.insert(task_executor.clone());
        }
    }

    fn leave(&self, job: JobId, task_executor: &ResourceId) {
        let mut jobs = self.lock();
        let Some(holders) = jobs.get_mut(&job) else { return };
        holders.task_executors.remove(task_executor);
        if holders.task_executors.is_empty()
            && let Some(holders) = jobs.remove(&job)
        {
            holders.graphs.into_iter().for_each(|graph| self.partitions.release(graph));
        }
    }
}

/// The plugins of one job, from the blob store.
struct JobPlugins {
    runtime: Arc<PluginRuntime>,
    blobs: Arc<BlobStore>,
    /// File name of the plugin, for messages.
    name: String,
}

impl PluginProvider for JobPlugins {
    fn plugin(&self, digest: BlobDigest) -> Result<SharedPlugin, FailureCause> {
        if let Some(compiled) = self.runtime.compiled(digest, &self.name) {
            return Ok(Arc::new(compiled));
        }
        let content = self.blobs.get(digest).map_err(|error| unrecoverable("blob", &error))?;
        let compiled = self.runtime.load(&content, &self.name).map_err(|error| unrecoverable(error.code(), &error))?;
        Ok(Arc::new(compiled))
    }
}

fn unrecoverable(code: &str, error: &dyn std::error::Error) -> FailureCause {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        message.push_str(": ");
        message.push_str(&cause.to_string());
        source = cause.source();
    }
    FailureCause {
        code: code.to_owned(),
        message,
        detail: String::new(),
        recoverability: Recoverability::Unrecoverable,
    }
}

#[cfg(test)]
mod tests {
    use std::{
        error::Error,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;
    use crate::{
        base::{
            clock::Timestamp,
            ids::{
                ExecutionAttemptId, ExecutionVertexId, IntermediateDataSetId, IntermediateResultPartitionId,
                JobVertexId, ResultPartitionId,
            },
            status::JobStatus,
        },
        job_manager::{job_result_store::JobResult, test_graphs::job_graph},
    };

    fn partition(graph: u8) -> ResultPartitionId {
        let execution_vertex = ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: 0 };
        let data_set = IntermediateDataSetId::from_bytes([2; 16]);
        ResultPartitionId {
            partition: IntermediateResultPartitionId { data_set, partition_index: 0 },
            producer: ExecutionAttemptId {
                graph: ExecutionGraphId::from_bytes([graph; 16]),
                execution_vertex,
                attempt_number: 0,
            },
        }
    }

    #[test]
    fn storage_that_hangs_is_not_waited_for_and_asked_once() {
        let (go_on, goes_on) = mpsc::channel::<()>();
        let (goes_on, begun) = (Mutex::new(goes_on), Arc::new(AtomicUsize::new(0)));
        let begins = Arc::clone(&begun);
        let clean: JobCleaner = Arc::new(move |_, _| {
            begins.fetch_add(1, Ordering::SeqCst);
            Ok(goes_on.lock().unwrap().recv()?)
        });
        let cleaner = in_background(Arc::clone(&clean), Duration::ZERO);
        let job = job_graph(1, &[("a", 1)]);
        let result = JobResult {
            job_id: job.job_id,
            job_name: job.name.clone(),
            status: JobStatus::Canceled,
            started: Timestamp(0),
            ended: Timestamp(1),
            failure: None,
            program: None,
            stopped_with: None,
        };
        let text = |result: Result<(), Box<dyn Error>>| result.map_err(|error| error.to_string());
        let hangs = Err("it takes long: the storage of its checkpoints or of its output may not answer".to_owned());
        assert_eq!(text(cleaner(&job, &result)), hangs);
        assert_eq!(text(cleaner(&job, &result)), hangs);
        go_on.send(()).unwrap();
        while text(cleaner(&job, &result)) == hangs {
            thread::yield_now();
        }
        assert_eq!(begun.load(Ordering::SeqCst), 1);
        // What went wrong is told; asked again, it is tried again.
        drop(go_on);
        let cleaner = in_background(clean, Duration::from_secs(20));
        assert_eq!(text(cleaner(&job, &result)), Err("receiving on a closed channel".to_owned()));
        assert!(cleaner(&job, &result).is_err());
        assert_eq!(begun.load(Ordering::SeqCst), 3);
    }

    #[test]
    fn output_goes_with_the_last_task_executor_that_leaves_its_job() {
        let jobs = SharedJobs::default();
        let job = JobId::from_bytes([9; 16]);
        let [one, other] = ["one", "other"].map(|id| ResourceId(id.to_owned()));
        for (graph, task_executor) in [(1, &one), (1, &other), (2, &one)] {
            jobs.enter(job, ExecutionGraphId::from_bytes([graph; 16]), task_executor);
        }
        for graph in [1, 2, 3] {
            drop(jobs.partitions.producer_end(partition(graph), 0, 1));
        }
        jobs.leave(job, &one);
        jobs.leave(job, &one);
        assert_eq!(jobs.partitions.waiting_count(), 3);
        jobs.leave(job, &other);
        // Graph 3 is of another job.
        assert_eq!(jobs.partitions.waiting_count(), 1);
        jobs.leave(job, &other);
        assert!(jobs.lock().is_empty());
    }
}
