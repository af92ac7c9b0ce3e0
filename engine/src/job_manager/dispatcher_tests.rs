//! The Dispatcher by its messages: submission, ends, recovery, questions.

use std::sync::Mutex;

use super::*;
use crate::{
    base::stream_element::SnapshotLocation,
    graph::job_graph::Artifact,
    job_manager::{
        leader_election::Contender,
        storage::StorageDir,
        test_graphs::{PLUGIN, job_graph},
    },
    protocol::{job_details::JobDetails, rpc::Message},
};

type Spawned = Arc<Mutex<Vec<(JobId, JobMasterId, Box<dyn Endpoint + Send>)>>>;

/// Stands for a JobMaster: takes note of what it is told and says nothing.
struct Recorder(Arc<Mutex<Vec<JobMasterMessage>>>);

impl Endpoint for Recorder {
    fn on_start(&mut self, _now: Timestamp) -> Vec<Envelope> {
        Vec::new()
    }

    fn on_message(&mut self, envelope: Envelope, _now: Timestamp) -> Vec<Envelope> {
        if let Message::JobMaster(message) = envelope.message {
            self.0.lock().unwrap().push(message);
        }
        Vec::new()
    }

    fn on_deadline(&mut self, _now: Timestamp) -> Vec<Envelope> {
        Vec::new()
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        None
    }

    fn is_terminated(&self) -> bool {
        false
    }
}

struct Cluster {
    dispatcher: Dispatcher,
    fence: Fence,
    spawned: Spawned,
    fatal: Arc<Mutex<Vec<String>>>,
    /// Jobs whose checkpoints were to be deleted, with their states.
    deleted: Arc<Mutex<Vec<(JobId, JobStatus)>>>,
    blobs: Arc<BlobStore>,
    asked: u64,
    now: i64,
    _leader: Contender,
}

impl Cluster {
    /// A Dispatcher over `storage` whose JobMasters are made, or fail with a message.
    fn start(storage: &StorageDir, failure: Option<&str>) -> Result<Self, RecoveryError> {
        Self::start_for(storage, failure, Recovery::All)
    }

    fn start_for(storage: &StorageDir, failure: Option<&str>, recovery: Recovery) -> Result<Self, RecoveryError> {
        let deleted = Arc::<Mutex<Vec<_>>>::default();
        let results = JobResultStore::open(storage).unwrap();
        let election = LeaderElection::new();
        let leader = election.contend(Address::Dispatcher).unwrap();
        let fence = leader.session().unwrap();
        let Fence::Dispatcher(id) = fence else { panic!("{fence:?}") };
        assert!(leader.confirm(fence));
        let spawned = Spawned::default();
        let fatal = Arc::<Mutex<Vec<String>>>::default();
        let blobs = Arc::new(BlobStore::open(storage).unwrap());
        let failure = failure.map(|message| FailureCause {
            code: "test".to_owned(),
            message: message.to_owned(),
            detail: String::new(),
            recoverability: Recoverability::Unrecoverable,
        });
        let dispatcher = Dispatcher::recover(DispatcherParts {
            id,
            config: DispatcherConfig { recovery, ..DispatcherConfig::from_configuration(&Configuration::default()) },
            election,
            graphs: JobGraphStore::open(storage).unwrap(),
            results: JobResultStore::open(storage).unwrap(),
            blobs: Arc::clone(&blobs),
            job_master_factory: Arc::new(move |_graph, _id| match &failure {
                Some(cause) => Err(cause.clone()),
                None => Ok(Box::new(Recorder(Arc::default()))),
            }),
            clean_up: Arc::new({
                let deleted = Arc::clone(&deleted);
                move |graph, result| {
                    assert!(results.has_result(graph.job_id), "without them a crash now would run the job again");
                    deleted.lock().unwrap().push((graph.job_id, result.status));
                    Ok(())
                }
            }),
            spawn: Box::new({
                let spawned = Arc::clone(&spawned);
                move |job, job_master, endpoint| spawned.lock().unwrap().push((job, job_master, endpoint))
            }),
            on_fatal_error: Arc::new({
                let fatal = Arc::clone(&fatal);
                move |problem| fatal.lock().unwrap().push(problem)
            }),
        })?;
        let mut cluster = Self { dispatcher, fence, spawned, fatal, deleted, blobs, asked: 0, now: 0, _leader: leader };
        let sent = cluster.dispatcher.on_start(Timestamp(0));
        assert_eq!(sent, []);
        Ok(cluster)
    }

    fn fresh() -> (StorageDir, Self) {
        let storage = StorageDir::temporary().unwrap();
        let cluster = Self::start(&storage, None).unwrap();
        cluster.blobs.put(PLUGIN).unwrap();
        (storage, cluster)
    }

    fn send(&mut self, fence: Fence, message: DispatcherMessage) -> Vec<Envelope> {
        let from = Address::Client(0);
        let message = Message::Dispatcher(message);
        self.dispatcher.on_message(Envelope { from, to: Address::Dispatcher, fence, message }, Timestamp(self.now))
    }

    fn ask(&mut self, request: DispatcherRequest) -> Vec<Envelope> {
        self.asked += 1;
        self.send(self.fence, DispatcherMessage::Request(self.asked, request))
    }

    /// Asks, and expects the answer at once.
    fn answer(&mut self, request: DispatcherRequest) -> Result<DispatcherResponse, String> {
        let sent = self.ask(request);
        let last = sent.into_iter().rfind(|envelope| envelope.to == Address::Client(0)).expect("an answer");
        match last.message {
            Message::Client(number, response) => {
                assert_eq!(number, self.asked);
                match response {
                    DispatcherResponse::Refused(error) => Err(error.to_string()),
                    response => Ok(response),
                }
            }
            message => panic!("{message:?}"),
        }
    }

    fn submit(&mut self, graph: &JobGraph) -> Result<(), String> {
        self.answer(DispatcherRequest::SubmitJob(graph.clone())).map(|response| {
            assert_eq!(response, DispatcherResponse::Acknowledged);
        })
    }

    fn job_master(&self, job: JobId) -> JobMasterId {
        self.dispatcher.jobs[&job].job_master
    }

    /// The JobMaster reports a state.
    fn report(&mut self, graph: &JobGraph, status: JobStatus) {
        let job_master = self.job_master(graph.job_id);
        let overview = overview_of(&self.details(graph, status));
        let changed = JobStatusChanged { job_master, overview };
        self.send(Fence::None, DispatcherMessage::JobStatusChanged(changed));
    }

    /// The JobMaster ends, and its loop.
    fn end(&mut self, graph: &JobGraph, status: JobStatus) -> Vec<Envelope> {
        let job_master = self.job_master(graph.job_id);
        let details = self.details(graph, status);
        let terminated = DispatcherMessage::JobTerminated(JobTerminated { job_master, details });
        let mut sent = self.send(Fence::None, terminated);
        sent.extend(self.send(Fence::None, DispatcherMessage::JobMasterClosed(graph.job_id, job_master)));
        sent
    }

    fn details(&self, graph: &JobGraph, status: JobStatus) -> JobDetails {
        details_of_graph(graph, status, Timestamp(0), Timestamp(self.now), None)
    }

    fn list(&mut self) -> Vec<(JobId, JobStatus)> {
        let Ok(DispatcherResponse::Jobs(jobs)) = self.answer(DispatcherRequest::ListJobs) else { panic!("refused") };
        jobs.iter().map(|overview| (overview.job, overview.status)).collect()
    }

    fn spawned(&self) -> Vec<JobId> {
        self.spawned.lock().unwrap().iter().map(|(job, ..)| *job).collect()
    }
}

fn words() -> JobGraph {
    job_graph(1, &[("words", 2)])
}

fn responses(sent: &[Envelope]) -> Vec<(u64, DispatcherResponse)> {
    let answers = sent.iter().filter_map(|envelope| match &envelope.message {
        Message::Client(number, response) => Some((*number, response.clone())),
        Message::Dispatcher(_) | Message::ResourceManager(_) | Message::JobMaster(_) | Message::TaskExecutor(_) => None,
    });
    answers.collect()
}

#[test]
fn a_job_is_stored_before_it_runs_and_gone_when_it_has_ended() {
    let (storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    assert_eq!(cluster.submit(&graph), Ok(()));
    assert_eq!(cluster.spawned(), [job]);
    assert_eq!(JobGraphStore::open(&storage).unwrap().recover(job).unwrap(), Some(graph.clone()));
    assert_eq!(cluster.list(), [(job, JobStatus::Initializing)]);
    cluster.report(&graph, JobStatus::Running);
    assert_eq!(cluster.list(), [(job, JobStatus::Running)]);

    cluster.now = 70;
    cluster.blobs.discard_upload(graph.program.plugin).unwrap();
    cluster.end(&graph, JobStatus::Finished);
    assert_eq!(cluster.list(), [(job, JobStatus::Finished)]);
    let store = JobResultStore::open(&storage).unwrap();
    let result = store.result(job).unwrap().unwrap();
    assert_eq!((result.status, result.ended), (JobStatus::Finished, Timestamp(70)));
    assert_eq!(store.dirty_jobs().unwrap(), []);
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), []);
    assert!(!cluster.blobs.path(graph.program.plugin).exists());
}

#[test]
fn checks_come_in_flinks_order() {
    let (_storage, mut cluster) = Cluster::fresh();
    let mut partial = job_graph(1, &[("a", 1), ("b", 1)]);
    partial.vertices[0].resources = Some(crate::graph::job_graph::ResourceProfile { cpu_cores: 1.0, memory: 1 });
    let job = partial.job_id;
    let refused = "some vertices of the job have resources set and others have not: set them for all or none \
                   (set for \"a\", not for \"b\")";
    assert_eq!(cluster.submit(&partial), Err(refused.to_owned()));
    assert_eq!(cluster.submit(&words()), Ok(()));
    assert_eq!(cluster.submit(&partial), Err(format!("job {job} has been submitted already")));
    cluster.end(&words(), JobStatus::Canceled);
    let ended = format!("job {job} has been submitted already and has ended as CANCELED");
    assert_eq!(cluster.submit(&partial), Err(ended));
    partial.job_id = JobId::from_bytes([9; 16]);
    partial.vertices.iter_mut().for_each(|vertex| vertex.resources = partial_profile());
    assert_eq!(cluster.submit(&partial), Ok(()));
}

fn partial_profile() -> Option<crate::graph::job_graph::ResourceProfile> {
    Some(crate::graph::job_graph::ResourceProfile { cpu_cores: 1.0, memory: 1 })
}

#[test]
fn a_job_whose_plugin_is_missing_is_refused_and_leaves_nothing() {
    let storage = StorageDir::temporary().unwrap();
    let mut cluster = Cluster::start(&storage, None).unwrap();
    let plugin = words().program.plugin;
    let refused = format!("the job's plugin or an artifact is not there: there is no blob {plugin}: upload it again");
    assert_eq!(cluster.submit(&words()), Err(refused));
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), []);
    cluster.blobs.put(PLUGIN).unwrap();
    assert_eq!(cluster.submit(&words()), Ok(()));
}

#[test]
fn a_job_without_operators_is_refused() {
    let (_storage, mut cluster) = Cluster::fresh();
    let refused = Err("job \"job 1\" has no operators".to_owned());
    assert_eq!(cluster.submit(&job_graph(1, &[])), refused);
    let refused = Err("\"a\" has no subtasks or no operators".to_owned());
    assert_eq!(cluster.submit(&job_graph(1, &[("a", 0)])), refused);
}

#[test]
fn a_job_is_submitted_again_when_its_suspended_job_master_has_ended() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    let former = cluster.job_master(job);
    let details = cluster.details(&graph, JobStatus::Suspended);
    let terminated = JobTerminated { job_master: former, details };
    cluster.send(Fence::None, DispatcherMessage::JobTerminated(terminated));

    let waiting = cluster.ask(DispatcherRequest::SubmitJob(graph.clone()));
    assert_eq!(responses(&waiting), []);
    let number = cluster.asked;
    assert_eq!(cluster.submit(&graph), Err(format!("job {job} has been submitted already")));
    // The endpoint is gone before its end is told, and with it its leadership.
    cluster.spawned.lock().unwrap().clear();
    let sent = cluster.send(Fence::None, DispatcherMessage::JobMasterClosed(job, former));
    assert_eq!(responses(&sent), [(number, DispatcherResponse::Acknowledged)]);
    assert_eq!(cluster.spawned(), [job]);
    assert_ne!(cluster.job_master(job), former);
}

#[test]
fn what_another_job_master_says_is_dropped() {
    let (_storage, mut cluster) = Cluster::fresh();
    let graph = words();
    cluster.submit(&graph).unwrap();
    let details = cluster.details(&graph, JobStatus::Failed);
    let terminated = JobTerminated { job_master: JobMasterId::random(), details };
    cluster.send(Fence::None, DispatcherMessage::JobTerminated(terminated));
    let other = Fence::Dispatcher(DispatcherId::random());
    assert_eq!(cluster.send(other, DispatcherMessage::Request(1, DispatcherRequest::ListJobs)), []);
    assert_eq!(cluster.send(Fence::None, DispatcherMessage::Request(1, DispatcherRequest::ListJobs)), []);
    assert_eq!(cluster.dispatcher.stale_messages(), 3);
    assert_eq!(cluster.list(), [(graph.job_id, JobStatus::Initializing)]);
}

#[test]
fn a_job_whose_job_master_cannot_be_made_has_failed() {
    let storage = StorageDir::temporary().unwrap();
    let mut cluster = Cluster::start(&storage, Some("no such source")).unwrap();
    cluster.blobs.put(PLUGIN).unwrap();
    cluster.submit(&words()).unwrap();
    let job = words().job_id;
    let waiting = cluster.ask(DispatcherRequest::AwaitTermination(job));
    assert_eq!(responses(&waiting), []);
    let (_, _, mut runner) = cluster.spawned.lock().unwrap().remove(0);
    let sent = runner.on_start(Timestamp(5));
    assert!(runner.is_terminated());
    cluster.now = 5;
    let answers = sent.into_iter().flat_map(|envelope| cluster.dispatcher.on_message(envelope, Timestamp(5)));
    let answers: Vec<_> = answers.collect();
    let [(_, DispatcherResponse::Details(details))] = &responses(&answers)[..] else { panic!("{answers:?}") };
    assert_eq!(details.status, JobStatus::Failed);
    assert_eq!(details.root_failure.as_ref().unwrap().cause.message, "no such source");
    assert_eq!(cluster.list(), [(job, JobStatus::Failed)]);
    let stored = JobResultStore::open(&storage).unwrap().result(job).unwrap().unwrap();
    assert_eq!(stored.failure.unwrap().message, "no such source");
}

#[test]
fn a_cancel_waits_for_the_job_master_and_is_shown() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    assert_eq!(cluster.answer(DispatcherRequest::CancelJob(job)), Err(format!("there is no job {job}")));
    cluster.submit(&graph).unwrap();
    let sent = cluster.ask(DispatcherRequest::CancelJob(job));
    let to_job_master: Vec<_> = sent.iter().filter(|envelope| envelope.to == Address::JobMaster(job)).collect();
    assert_eq!(to_job_master.len(), 1);
    assert_eq!(to_job_master[0].message, Message::JobMaster(JobMasterMessage::Cancel));
    assert_eq!(cluster.list(), [(job, JobStatus::Canceling)]);
    cluster.end(&graph, JobStatus::Canceled);
    let ended = format!("job {job} has ended as CANCELED and cannot be cancelled");
    assert_eq!(cluster.answer(DispatcherRequest::CancelJob(job)), Err(ended));
}

#[test]
fn a_question_is_answered_by_the_job_master_or_in_time() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    let Ok(DispatcherResponse::Details(details)) = cluster.answer(DispatcherRequest::JobDetails(job)) else {
        panic!("a job that is being started can be shown")
    };
    assert_eq!(details.status, JobStatus::Initializing);
    cluster.report(&graph, JobStatus::Running);

    cluster.ask(DispatcherRequest::JobDetails(job));
    let first = cluster.asked;
    let asked = cluster.ask(DispatcherRequest::JobDetails(job));
    assert_eq!(asked[0].message, Message::JobMaster(JobMasterMessage::RequestDetails(2)));
    let details = cluster.details(&graph, JobStatus::Running);
    let sent = cluster.send(Fence::None, DispatcherMessage::JobDetails(2, details.clone()));
    assert_eq!(responses(&sent), [(cluster.asked, DispatcherResponse::Details(details.clone()))]);
    assert_eq!(cluster.send(Fence::None, DispatcherMessage::JobDetails(2, details)), []);

    assert_eq!(cluster.dispatcher.next_deadline(), Some(Timestamp(10_000)));
    let sent = cluster.dispatcher.on_deadline(Timestamp(10_000));
    let who = format!("JobMaster of job {job} that answers within 10 s");
    let refused = DispatcherResponse::Refused(DispatcherError::NoLeader(who));
    assert_eq!(responses(&sent), [(first, refused)]);
    assert_eq!(cluster.dispatcher.next_deadline(), None);
}

#[test]
fn what_an_ended_job_master_was_asked_is_answered_at_once() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    cluster.report(&graph, JobStatus::Running);
    cluster.ask(DispatcherRequest::JobDetails(job));
    let asked = cluster.asked;
    let sent = cluster.end(&graph, JobStatus::Finished);
    let details = cluster.details(&graph, JobStatus::Finished);
    assert_eq!(responses(&sent), [(asked, DispatcherResponse::Details(details))]);

    let (_storage, mut cluster) = Cluster::fresh();
    cluster.submit(&graph).unwrap();
    cluster.report(&graph, JobStatus::Running);
    cluster.ask(DispatcherRequest::JobDetails(job));
    let asked = cluster.asked;
    let sent = cluster.end(&graph, JobStatus::Suspended);
    let refused = DispatcherError::NoLeader(format!("JobMaster of job {job}"));
    assert_eq!(responses(&sent), [(asked, DispatcherResponse::Refused(refused))]);
}

#[test]
fn whoever_waits_for_the_end_is_told_it() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    let unknown = Err(format!("there is no job {job}"));
    assert_eq!(cluster.answer(DispatcherRequest::AwaitTermination(job)), unknown);
    cluster.submit(&graph).unwrap();
    cluster.ask(DispatcherRequest::AwaitTermination(job));
    cluster.ask(DispatcherRequest::AwaitTermination(job));
    let last = cluster.asked;
    let sent = cluster.end(&graph, JobStatus::Finished);
    let details = cluster.details(&graph, JobStatus::Finished);
    let told = DispatcherResponse::Details(details);
    assert_eq!(responses(&sent), [(last - 1, told.clone()), (last, told.clone())]);
    assert_eq!(cluster.answer(DispatcherRequest::AwaitTermination(job)), Ok(told));
}

#[test]
fn an_ended_job_is_forgotten_after_its_time_but_not_its_id() {
    let (_storage, mut cluster) = Cluster::fresh();
    cluster.submit(&words()).unwrap();
    cluster.end(&words(), JobStatus::Finished);
    let hour = Timestamp(3_600_000);
    assert_eq!(cluster.dispatcher.next_deadline(), Some(hour));
    cluster.dispatcher.on_deadline(hour);
    assert_eq!(cluster.list(), []);
    let job = words().job_id;
    let ended = Err(format!("job {job} has been submitted already and has ended as FINISHED"));
    assert_eq!(cluster.submit(&words()), ended);
}

#[test]
fn a_failed_cleanup_is_repeated_and_waits_longer_each_time() {
    let (storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    // A directory in the graph's place cannot be removed as a file.
    let path = storage.path().join("job-graphs").join(format!("{job}.graph"));
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    cluster.end(&graph, JobStatus::Finished);
    let results = JobResultStore::open(&storage).unwrap();
    assert_eq!(results.dirty_jobs().unwrap(), [job]);
    assert_eq!(cluster.dispatcher.next_deadline(), Some(Timestamp(1000)));
    cluster.dispatcher.on_deadline(Timestamp(1000));
    assert_eq!(cluster.dispatcher.next_deadline(), Some(Timestamp(3000)));
    std::fs::remove_dir(&path).unwrap();
    cluster.dispatcher.on_deadline(Timestamp(3000));
    assert_eq!(results.dirty_jobs().unwrap(), []);
    assert!(results.has_result(job));
}

#[test]
fn a_result_that_cannot_be_stored_is_fatal() {
    let (storage, mut cluster) = Cluster::fresh();
    cluster.submit(&words()).unwrap();
    std::fs::remove_dir_all(storage.path().join("job-results")).unwrap();
    cluster.end(&words(), JobStatus::Finished);
    assert!(cluster.dispatcher.is_terminated());
    let fatal = cluster.fatal.lock().unwrap().join("");
    let begin = format!("the result of job {} could not be stored: could not use the store", words().job_id);
    assert!(fatal.starts_with(&begin), "{fatal}");
    // What is needed to run it again is still there.
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), [words().job_id]);
}

#[test]
fn a_crash_between_storing_and_running_loses_no_job() {
    let storage = StorageDir::temporary().unwrap();
    JobGraphStore::open(&storage).unwrap().put(&words()).unwrap();
    BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
    BlobStore::open(&storage).unwrap().put(b"of a refused submission").unwrap();
    let mut cluster = Cluster::start(&storage, None).unwrap();
    assert_eq!(cluster.spawned(), [words().job_id]);
    assert_eq!(cluster.list(), [(words().job_id, JobStatus::Initializing)]);
    assert_eq!(cluster.blobs.get(words().program.plugin).unwrap(), PLUGIN);
    assert!(!cluster.blobs.path(BlobStore::digest(b"of a refused submission")).exists());
}

#[test]
fn a_crash_before_the_cleanup_leaves_only_the_cleanup() {
    for has_graph in [true, false] {
        let storage = StorageDir::temporary().unwrap();
        let (graph, job) = (words(), words().job_id);
        if has_graph {
            JobGraphStore::open(&storage).unwrap().put(&graph).unwrap();
            BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
        }
        let results = JobResultStore::open(&storage).unwrap();
        let details = details_of_graph(&graph, JobStatus::Finished, Timestamp(1), Timestamp(2), None);
        results
            .create_dirty(result_of(&details, SubmittedProgram { plugin: graph.program.plugin, args: Vec::new() }))
            .unwrap();
        let cluster = Cluster::start(&storage, None).unwrap();
        assert_eq!(cluster.spawned(), []);
        assert_eq!(results.dirty_jobs().unwrap(), []);
        assert!(results.has_result(job));
        assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), []);
        assert!(!cluster.blobs.path(graph.program.plugin).exists());
    }
}

/// Message of the failure of a job that is shown as FAILED.
fn shown_failure(cluster: &mut Cluster, job: JobId) -> String {
    let Ok(DispatcherResponse::Details(details)) = cluster.answer(DispatcherRequest::JobDetails(job)) else {
        panic!("job {job} is not there")
    };
    assert_eq!(details.status, JobStatus::Failed);
    details.root_failure.expect("it failed").cause.message
}

#[test]
fn a_stored_job_that_is_damaged_is_shown_and_kept_and_the_others_run() {
    let storage = StorageDir::temporary().unwrap();
    let (whole, without_blob) = (words(), {
        let mut graph = job_graph(2, &[("other", 1)]);
        graph.program.plugin = BlobStore::digest(b"missing");
        graph.artifacts.push(Artifact { name: "a".to_owned(), digest: BlobStore::digest(b"there") });
        graph
    });
    let unreadable = JobId::from_bytes([3; 16]);
    let mut graphs = JobGraphStore::open(&storage).unwrap();
    graphs.put(&whole).unwrap();
    graphs.put(&without_blob).unwrap();
    let path = storage.path().join("job-graphs").join(format!("{unreadable}.graph"));
    std::fs::write(&path, b"WSEJ").unwrap();
    for blob in [PLUGIN, b"there", b"of the unreadable job"] {
        BlobStore::open(&storage).unwrap().put(blob).unwrap();
    }
    let mut cluster = Cluster::start(&storage, None).unwrap();
    assert_eq!(cluster.spawned(), [whole.job_id]);
    assert_eq!(*cluster.fatal.lock().unwrap(), [""; 0]);
    let (failed, starting) = (JobStatus::Failed, JobStatus::Initializing);
    let listed = [(whole.job_id, starting), (without_blob.job_id, failed), (unreadable, failed)];
    assert_eq!(cluster.list(), listed);
    let missing = BlobStore::digest(b"missing");
    assert_eq!(
        shown_failure(&mut cluster, without_blob.job_id),
        format!(
            "the stored job cannot be run: there is no blob {missing}: upload it again, by submitting the job again \
             under its id; what is stored of it is kept"
        )
    );
    let problem = format!("the stored graph of job {unreadable} cut off after 4 bytes; remove {}", path.display());
    assert_eq!(
        shown_failure(&mut cluster, unreadable),
        format!("the stored job cannot be run: {problem} to give the job up; what is stored of it is kept")
    );
    // What is stored of them is there, and they have no result.
    for blob in [PLUGIN, b"there", b"of the unreadable job"] {
        assert!(cluster.blobs.path(BlobStore::digest(blob)).exists());
    }
    assert_eq!(
        JobGraphStore::open(&storage).unwrap().job_ids().unwrap(),
        [whole.job_id, without_blob.job_id, unreadable]
    );
    let results = JobResultStore::open(&storage).unwrap();
    assert!(listed.iter().all(|(job, _)| !results.has_result(*job)));
    cluster.blobs.put(b"missing").unwrap();
    // One that cannot be stored takes nothing from what is.
    let job = without_blob.job_id;
    let path = storage.path().join("job-graphs").join(format!("{job}.graph"));
    let stored = std::fs::read(&path).unwrap();
    std::fs::remove_file(&path).and_then(|()| std::fs::create_dir(&path)).unwrap();
    cluster.submit(&without_blob).expect_err("it cannot be stored");
    assert!(cluster.blobs.references(job).contains(&missing));
    std::fs::remove_dir(&path).and_then(|()| std::fs::write(&path, stored)).unwrap();
    // With what was missing it runs, and is shown so.
    cluster.submit(&without_blob).unwrap();
    assert_eq!(cluster.spawned(), [whole.job_id, job]);
    assert!(cluster.list().contains(&(job, starting)));
}

#[test]
fn checkpoints_go_when_the_result_is_durable() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    cluster.report(&graph, JobStatus::Running);
    assert_eq!(*cluster.deleted.lock().unwrap(), []);
    cluster.end(&graph, JobStatus::Canceled);
    assert_eq!(*cluster.deleted.lock().unwrap(), [(job, JobStatus::Canceled)]);
}

#[test]
fn one_job_of_several_that_are_stored_is_taken_over() {
    let storage = StorageDir::temporary().unwrap();
    let other = job_graph(2, &[("other", 1)]);
    let mut graphs = JobGraphStore::open(&storage).unwrap();
    graphs.put(&words()).unwrap();
    graphs.put(&other).unwrap();
    BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
    let cluster = Cluster::start_for(&storage, None, Recovery::Only(words().job_id)).unwrap();
    assert_eq!(cluster.spawned(), [words().job_id]);
    drop(cluster);
    let nothing = Cluster::start_for(&storage, None, Recovery::Only(JobId::from_bytes([9; 16]))).unwrap();
    assert_eq!(nothing.spawned(), []);
    drop(nothing);
    let all = Cluster::start(&storage, None).unwrap();
    assert_eq!(all.spawned(), [words().job_id, other.job_id], "nothing of the others was lost");
}

#[test]
fn a_savepoint_is_asked_of_the_job_master_for_as_long_as_it_takes() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    let request = || DispatcherRequest::TakeSnapshot(job, SnapshotRequest::Savepoint(None));
    assert_eq!(cluster.answer(request()), Err(format!("there is no job {job}")));
    cluster.submit(&graph).unwrap();
    let message = format!("job {job} is INITIALIZING: a checkpoint can be taken while it is RUNNING only");
    assert_eq!(cluster.answer(request()), Err(message));
    cluster.report(&graph, JobStatus::Running);
    let sent = cluster.ask(request());
    let [Envelope { message: Message::JobMaster(JobMasterMessage::TriggerSnapshot(number, _)), .. }] = sent.as_slice()
    else {
        panic!("{sent:?}")
    };
    let number = *number;
    cluster.dispatcher.on_deadline(Timestamp(3_600_000));
    let taken = TakenSnapshot { checkpoint_id: 3, location: SnapshotLocation("/points/savepoint-1".to_owned()) };
    let sent = cluster.send(Fence::None, DispatcherMessage::SnapshotTaken(number, Ok(taken.clone())));
    assert_eq!(responses(&sent), [(cluster.asked, DispatcherResponse::Snapshot(taken))]);
    // The job ends before another one.
    cluster.ask(request());
    let asked = cluster.asked;
    let sent = cluster.end(&graph, JobStatus::Failed);
    let failed = DispatcherError::SnapshotFailed(format!("job {job} has ended as FAILED before it was taken"));
    assert_eq!(responses(&sent), [(asked, DispatcherResponse::Refused(failed))]);
    let message = format!("job {job} has ended as FAILED: nothing is left to take");
    assert_eq!(cluster.answer(request()), Err(message));
}

#[test]
fn a_recovered_job_that_cannot_be_made_is_shown_and_stays_stored() {
    let storage = StorageDir::temporary().unwrap();
    JobGraphStore::open(&storage).unwrap().put(&words()).unwrap();
    BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
    let mut cluster = Cluster::start(&storage, Some("no such source")).unwrap();
    let job = words().job_id;
    cluster.ask(DispatcherRequest::AwaitTermination(job));
    let waiting = cluster.asked;
    let (_, job_master, mut runner) = cluster.spawned.lock().unwrap().remove(0);
    let mut sent = Vec::new();
    for envelope in runner.on_start(Timestamp(0)) {
        sent.extend(cluster.dispatcher.on_message(envelope, Timestamp(0)));
    }
    sent.extend(cluster.send(Fence::None, DispatcherMessage::JobMasterClosed(job, job_master)));
    let [(number, DispatcherResponse::Details(told))] = &responses(&sent)[..] else { panic!("{sent:?}") };
    assert_eq!((*number, told.status), (waiting, JobStatus::Failed));
    let message = "the stored job cannot be run: no such source; what is stored of it is kept";
    assert_eq!(shown_failure(&mut cluster, job), message);
    assert!(!cluster.dispatcher.is_terminated(), "other jobs go on");
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), [job]);
    assert!(!JobResultStore::open(&storage).unwrap().has_result(job));
    assert!(cluster.blobs.path(words().program.plugin).exists());
}

/// A recovered job whose JobMaster said that its input is away, and has ended.
fn postponed() -> (StorageDir, Cluster) {
    let storage = StorageDir::temporary().unwrap();
    JobGraphStore::open(&storage).unwrap().put(&words()).unwrap();
    BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
    let mut cluster = Cluster::start(&storage, None).unwrap();
    cannot_start(&mut cluster);
    (storage, cluster)
}

fn cannot_start(cluster: &mut Cluster) {
    let job = words().job_id;
    let job_master = cluster.job_master(job);
    cluster.spawned.lock().unwrap().clear();
    let cause = FailureCause {
        code: "connector".to_owned(),
        message: "could not open /data".to_owned(),
        detail: String::new(),
        recoverability: Recoverability::Recoverable,
    };
    let failed = JobMasterFailed { job, job_master, cause };
    cluster.send(Fence::None, DispatcherMessage::JobMasterFailed(failed));
    assert_eq!(cluster.dispatcher.next_deadline(), None, "the former JobMaster has not ended");
    cluster.send(Fence::None, DispatcherMessage::JobMasterClosed(job, job_master));
}

#[test]
fn a_recovered_job_whose_input_is_away_is_tried_again_until_it_starts() {
    let (storage, mut cluster) = postponed();
    let job = words().job_id;
    let waiting = cluster.ask(DispatcherRequest::AwaitTermination(job));
    assert_eq!(responses(&waiting), []);
    let number = cluster.asked;
    let mut tries = Vec::new();
    for _ in 0..8 {
        assert_eq!(cluster.list(), [(job, JobStatus::Restarting)]);
        let Ok(DispatcherResponse::Details(details)) = cluster.answer(DispatcherRequest::JobDetails(job)) else {
            panic!("it is there")
        };
        assert_eq!(details.root_failure.expect("it could not start").cause.message, "could not open /data");
        assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), [job]);
        let next = cluster.dispatcher.next_deadline().expect("it is tried again");
        assert_eq!(cluster.spawned(), []);
        tries.push(next.0 - cluster.now);
        cluster.now = next.0;
        cluster.dispatcher.on_deadline(next);
        assert_eq!(cluster.spawned(), [job]);
        assert_eq!(cluster.list(), [(job, JobStatus::Initializing)]);
        cannot_start(&mut cluster);
    }
    assert_eq!(tries, [1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]);
    let next = cluster.dispatcher.next_deadline().expect("it is tried again");
    cluster.dispatcher.on_deadline(next);
    cluster.report(&words(), JobStatus::Running);
    assert_eq!(cluster.list(), [(job, JobStatus::Running)]);
    let ended = cluster.end(&words(), JobStatus::Finished);
    assert!(matches!(responses(&ended)[..], [(told, DispatcherResponse::Details(_))] if told == number));
}

#[test]
fn a_job_that_waits_to_be_tried_again_can_be_cancelled_or_left_stored() {
    let (storage, mut cluster) = postponed();
    let job = words().job_id;
    cluster.ask(DispatcherRequest::AwaitTermination(job));
    let waiting = cluster.asked;
    let sent = cluster.ask(DispatcherRequest::CancelJob(job));
    let [(told, DispatcherResponse::Details(details)), (_, DispatcherResponse::Acknowledged)] = &responses(&sent)[..]
    else {
        panic!("{sent:?}")
    };
    assert_eq!((*told, details.status), (waiting, JobStatus::Canceled));
    assert_eq!(cluster.list(), [(job, JobStatus::Canceled)]);
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), []);
    assert_eq!(JobResultStore::open(&storage).unwrap().result(job).unwrap().unwrap().status, JobStatus::Canceled);
    assert_eq!(cluster.spawned(), []);

    let (storage, mut cluster) = postponed();
    let stop = Message::Dispatcher(DispatcherMessage::Stop("bye".to_owned()));
    let (from, to, fence) = (Address::Dispatcher, Address::Dispatcher, cluster.fence);
    cluster.dispatcher.on_message(Envelope { from, to, fence, message: stop }, Timestamp(0));
    assert!(cluster.dispatcher.is_terminated());
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), [job]);
}

/// Whether it has completed a checkpoint is not known.
#[test]
fn a_job_that_waits_to_be_tried_again_does_not_give_way() {
    let (_storage, mut cluster) = postponed();
    let job = words().job_id;
    let refused = cluster.answer(DispatcherRequest::CancelUncommitted(job)).expect_err("it may have committed");
    assert_eq!(
        refused,
        format!("there is no leading JobMaster of job {job}, which could not start yet, at the moment; try again")
    );
    assert_eq!(cluster.list(), [(job, JobStatus::Restarting)]);
}

#[test]
fn a_recovered_job_that_was_cancelled_before_it_could_start_does_not_start_later() {
    let storage = StorageDir::temporary().unwrap();
    JobGraphStore::open(&storage).unwrap().put(&words()).unwrap();
    BlobStore::open(&storage).unwrap().put(PLUGIN).unwrap();
    let mut cluster = Cluster::start(&storage, None).unwrap();
    let job = words().job_id;
    cluster.ask(DispatcherRequest::CancelJob(job));
    let cause = FailureCause {
        code: "connector".to_owned(),
        message: "could not open /data".to_owned(),
        detail: String::new(),
        recoverability: Recoverability::Recoverable,
    };
    let failed = JobMasterFailed { job, job_master: cluster.job_master(job), cause };
    cluster.send(Fence::None, DispatcherMessage::JobMasterFailed(failed));
    assert_eq!(cluster.list(), [(job, JobStatus::Canceled)]);
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), []);
}

#[test]
fn a_stop_suspends_the_jobs_and_keeps_what_is_stored() {
    let (storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    cluster.ask(DispatcherRequest::AwaitTermination(job));
    let number = cluster.asked;
    let stop = Message::Dispatcher(DispatcherMessage::Stop("bye".to_owned()));
    let (from, to, fence) = (Address::Dispatcher, Address::Dispatcher, cluster.fence);
    let sent = cluster.dispatcher.on_message(Envelope { from, to, fence, message: stop }, Timestamp(0));
    assert_eq!(sent[0].message, Message::JobMaster(JobMasterMessage::Suspend("bye".to_owned())));
    assert!(!cluster.dispatcher.is_terminated());
    let refused = "there is no leading Dispatcher, since the cluster is shutting down, at the moment; try again";
    assert_eq!(cluster.submit(&job_graph(2, &[("a", 1)])), Err(refused.to_owned()));
    let sent = cluster.end(&graph, JobStatus::Suspended);
    let no_leader = DispatcherError::NoLeader(format!("JobMaster of job {job}"));
    assert_eq!(responses(&sent), [(number, DispatcherResponse::Refused(no_leader))]);
    assert!(cluster.dispatcher.is_terminated());
    assert_eq!(JobGraphStore::open(&storage).unwrap().job_ids().unwrap(), [job]);
    assert!(!JobResultStore::open(&storage).unwrap().has_result(job));
}

#[test]
fn a_shutdown_cancels_the_jobs_and_gives_up_in_time() {
    let (_storage, mut cluster) = Cluster::fresh();
    cluster.submit(&words()).unwrap();
    let sent = cluster.ask(DispatcherRequest::Shutdown);
    assert_eq!(responses(&sent), [(cluster.asked, DispatcherResponse::Acknowledged)]);
    assert_eq!(sent[1].message, Message::JobMaster(JobMasterMessage::Cancel));
    let suspended = cluster.dispatcher.on_deadline(Timestamp(30_000));
    assert_eq!(suspended.len(), 1);
    assert!(!cluster.dispatcher.is_terminated());
    cluster.dispatcher.on_deadline(Timestamp(40_000));
    assert!(cluster.dispatcher.is_terminated());
}

#[test]
fn a_job_master_that_ends_without_a_word_has_failed() {
    let (_storage, mut cluster) = Cluster::fresh();
    let (graph, job) = (words(), words().job_id);
    cluster.submit(&graph).unwrap();
    cluster.report(&graph, JobStatus::Running);
    let closed = DispatcherMessage::JobMasterClosed(job, cluster.job_master(job));
    cluster.send(Fence::None, closed);
    assert_eq!(cluster.list(), [(job, JobStatus::Failed)]);
}
