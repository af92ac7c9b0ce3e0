//! Accepts jobs, stores them, starts a JobMaster for each, and answers clients.
//!
//! Receives [`DispatcherMessage`]. A job's way:
//!
//! ```text
//!   submit: checks -> blobs referenced -> graph stored -> JobMaster started -> acknowledged
//!   end:    details kept -> result stored as dirty -> checkpoints, graph and blobs removed -> clean
//! ```
//!
//! A crash at any point of it is made good by the next leader: [`Dispatcher::recover`]
//! cleans up after jobs with a dirty result and runs all other stored jobs. One that cannot be
//! run is shown as FAILED, the others go on, and what is stored of it stays; one whose
//! checkpoints, inputs or destinations are away for the time being is tried again and again.
//!
//! Invariants: a job runs only if its graph is stored, and never if it has a result; at
//! most one JobMaster per job, the next starting only when the former's loop has ended;
//! what a JobMaster says counts only under the leadership that was given to it.
//!
//! Handlers write files: the loop runs them so that others go on meanwhile.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    mem,
    sync::Arc,
    time::Duration,
};

use super::{
    blob_store::{BlobError, BlobStore},
    job_graph_store::{JobGraphStore, JobGraphStoreError},
    job_master_runner::{JobMasterFactory, JobMasterRunner},
    job_result_store::{JobResult, JobResultStore, JobResultStoreError, SubmittedProgram},
    leader_election::LeaderElection,
    terminated_jobs::TerminatedJobs,
};
use crate::{
    base::{
        clock::Timestamp,
        config::{Configuration, format_duration, options},
        ids::{BlobDigest, DispatcherId, JobId, JobMasterId},
        status::{ExecutionState, JobStatus},
    },
    graph::{job_graph::JobGraph, slot_sharing::slots_needed},
    protocol::{
        dispatcher::{
            DispatcherError, DispatcherMessage, DispatcherRequest, DispatcherResponse, JobMasterFailed,
            JobStatusChanged, JobTerminated,
        },
        job_details::{Downtime, FailureEntry, JobDetails, JobOverview, Restart, TaskExecutorDetails, VertexDetails},
        job_master::{FailureCause, JobMasterMessage, Recoverability, SnapshotRequest, TakenSnapshot},
        resource_manager::ResourceManagerMessage,
        rpc::{Address, Endpoint, Envelope, Fence, Message},
    },
};

/// Time that a JobMaster or the ResourceManager has to answer a client's question.
const ASK_TIMEOUT: Duration = Duration::from_secs(10);
/// Time that jobs have to be cancelled when the cluster is shut down; then they are suspended.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time that JobMasters have to suspend their jobs; then they are left behind.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause after a cleanup that failed; doubled up to [`CLEANUP_MAX_WAIT`], without end.
const CLEANUP_INITIAL_WAIT: Duration = Duration::from_secs(1);
const CLEANUP_MAX_WAIT: Duration = Duration::from_secs(3600);

/// Pause before a recovered job that could not start is tried again; doubled up to
/// [`RECOVERY_MAX_WAIT`], without end.
const RECOVERY_INITIAL_WAIT: Duration = Duration::from_secs(1);
const RECOVERY_MAX_WAIT: Duration = Duration::from_secs(60);

/// Runs an endpoint under an address in a loop of its own. When the loop has ended,
/// [`DispatcherMessage::JobMasterClosed`] follows, and before it, should the loop have
/// died, [`DispatcherMessage::JobMasterFailed`].
pub type JobMasterSpawner = Box<dyn FnMut(JobId, JobMasterId, Box<dyn Endpoint + Send>) + Send>;

/// Is told why this process cannot go on.
pub type FatalErrorHandler = Arc<dyn Fn(String) + Send + Sync>;

/// Gives the destinations of a job that ended so free, and deletes its checkpoints unless they
/// are to be kept; notes of the savepoint that it stopped with that it did. May be repeated.
pub type JobCleaner = Arc<dyn Fn(&JobGraph, &JobResult) -> Result<(), Box<dyn Error>> + Send + Sync>;

/// What a Dispatcher takes from the configuration.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct DispatcherConfig {
    /// Bytes of details of ended jobs.
    pub job_store_bytes_max: u64,
    /// Time for which ended jobs are shown.
    pub job_store_expiration: Duration,
    /// Which stored jobs are run.
    pub recovery: Recovery,
    /// Slots that all TaskExecutors will ever have; none: it is not known how many come.
    pub slots_total: Option<u64>,
}

/// Which of the stored jobs that have not ended a Dispatcher runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recovery {
    /// All.
    All,
    /// This one; others stay stored.
    Only(JobId),
}

impl DispatcherConfig {
    /// Takes over the settings.
    pub fn from_configuration(configuration: &Configuration) -> Self {
        Self {
            job_store_bytes_max: configuration.get(&options::JOB_STORE_CACHE_SIZE).0,
            job_store_expiration: configuration.get(&options::JOB_STORE_EXPIRATION),
            recovery: Recovery::All,
            slots_total: None,
        }
    }
}

/// What a Dispatcher is made of.
pub struct DispatcherParts {
    /// The leadership.
    pub id: DispatcherId,
    /// Settings.
    pub config: DispatcherConfig,
    /// Grants the JobMasters their leaderships.
    pub election: LeaderElection,
    /// Graphs of the jobs that have not ended.
    pub graphs: JobGraphStore,
    /// Results of those that have.
    pub results: JobResultStore,
    /// Plugins and artifacts.
    pub blobs: Arc<BlobStore>,
    /// Makes JobMasters.
    pub job_master_factory: JobMasterFactory,
    /// Removes what ended jobs leave elsewhere.
    pub clean_up: JobCleaner,
    /// Runs them.
    pub spawn: JobMasterSpawner,
    /// Is told if results cannot be stored.
    pub on_fatal_error: FatalErrorHandler,
}

/// What was stored cannot be taken over.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// The graphs cannot be listed.
    #[error("could not recover the stored jobs")]
    Graphs(#[from] JobGraphStoreError),
    /// The results cannot be read.
    #[error("could not recover the results of jobs")]
    Results(#[from] JobResultStoreError),
    /// Blobs that nobody needs cannot be removed.
    #[error("could not remove the blobs of ended jobs")]
    Orphans(#[source] BlobError),
}

/// How a job came to this Dispatcher.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum JobOrigin {
    Submitted,
    Recovered,
}

/// A client's question that waits for an answer.
#[derive(Clone, Debug)]
struct Asker {
    client: Address,
    number: u64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum JobPhase {
    /// The JobMaster is being made, and may have been told to cancel.
    Initializing,
    /// The JobMaster has reported a state.
    Running,
    /// A recovered job could not start: another JobMaster is made when [`Postponed`] says.
    Postponed,
    /// The JobMaster has spoken its last word, and its loop is ending.
    Terminating,
}

struct Job {
    graph: JobGraph,
    job_master: JobMasterId,
    origin: JobOrigin,
    phase: JobPhase,
    overview: JobOverview,
    /// Clients who wait for its end.
    waiting: Vec<Asker>,
    /// Of a recovered job that could not start, at least once.
    postponed: Option<Postponed>,
    /// A client was told that it is cancelled before it had started.
    is_cancelled: bool,
}

impl Job {
    /// When it is tried again, if it was postponed and nothing of it is left.
    fn next_try(&self) -> Option<Timestamp> {
        self.postponed.as_ref()?.next_try
    }
}

/// When a recovered job is tried again.
#[derive(Clone)]
struct Postponed {
    /// None: the former JobMaster is still ending, or a new one has begun.
    next_try: Option<Timestamp>,
    wait: Duration,
    /// Why it could not start.
    cause: FailureCause,
}

/// A stored job that cannot be run as long as what is stored is as it is.
struct Unrecoverable {
    job: JobId,
    /// None: it cannot be read.
    graph: Option<JobGraph>,
    problem: String,
}

/// A submission that waits until the former JobMaster of its job has ended.
struct WaitingSubmission {
    graph: JobGraph,
    client: Asker,
}

/// A question that was passed on.
struct Question {
    asker: Asker,
    deadline: Timestamp,
    about: QuestionAbout,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum QuestionAbout {
    Job(JobId),
    Snapshot(JobId),
    TaskExecutors,
}

struct Cleanup {
    next_try: Timestamp,
    wait: Duration,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Running,
    /// Jobs are being cancelled.
    ShuttingDown {
        deadline: Timestamp,
    },
    /// Jobs are being suspended.
    Stopping {
        deadline: Timestamp,
    },
    Stopped,
}

/// The component. See the module's documentation.
pub struct Dispatcher {
    id: DispatcherId,
    election: LeaderElection,
    graphs: JobGraphStore,
    results: JobResultStore,
    blobs: Arc<BlobStore>,
    job_master_factory: JobMasterFactory,
    clean_up: JobCleaner,
    spawn: JobMasterSpawner,
    on_fatal_error: FatalErrorHandler,
    slots_total: Option<u64>,
    recovered: Vec<JobGraph>,
    unrecoverable: Vec<Unrecoverable>,
    jobs: BTreeMap<JobId, Job>,
    submissions: BTreeMap<JobId, WaitingSubmission>,
    terminated: TerminatedJobs,
    cleanups: BTreeMap<JobId, Cleanup>,
    /// By the number that the question was passed on with. As many as clients wait,
    /// which their gateways bound.
    questions: BTreeMap<u64, Question>,
    next_question: u64,
    phase: Phase,
    stale_messages: u64,
    outbox: Vec<Envelope>,
}

impl Dispatcher {
    /// Makes the component and takes over what is stored: jobs with a dirty result are
    /// cleaned up, all others are run when the loop starts, or shown as FAILED if their graphs or
    /// blobs are not whole.
    ///
    /// # Errors
    /// Returns an error if it cannot be seen what is stored: better not to start than to
    /// lose jobs.
    pub fn recover(parts: DispatcherParts) -> Result<Self, RecoveryError> {
        let DispatcherParts { id, config, election, mut graphs, results, blobs, .. } = parts;
        let (mut recovered, mut unrecoverable) = (Vec::new(), Vec::new());
        let mut is_each_graph_known = true;
        for job in graphs.job_ids()? {
            if results.has_result(job) {
                continue;
            }
            let is_wanted = match config.recovery {
                Recovery::All => true,
                Recovery::Only(wanted) => wanted == job,
            };
            match graphs.recover(job) {
                Ok(None) => {}
                Ok(Some(graph)) => match blobs.reference(job, blobs_of(&graph)) {
                    Ok(()) if is_wanted => recovered.push(graph),
                    Ok(()) => {}
                    Err(error) => {
                        // Those that are there stay.
                        blobs.keep(job, blobs_of(&graph));
                        if is_wanted {
                            let problem = format!("{}, by submitting the job again under its id", chain(&error));
                            unrecoverable.push(Unrecoverable { job, graph: Some(graph), problem });
                        }
                    }
                },
                Err(error) => {
                    is_each_graph_known = false;
                    if is_wanted {
                        unrecoverable.push(Unrecoverable { job, graph: None, problem: chain(&error) });
                    }
                }
            }
        }
        let cleanup = || Cleanup { next_try: Timestamp::MIN, wait: CLEANUP_INITIAL_WAIT };
        let cleanups = results.dirty_jobs()?.into_iter().map(|job| (job, cleanup())).collect();
        // A graph that cannot be read may need any of them.
        let orphans = match is_each_graph_known {
            true => blobs.remove_orphans().map_err(RecoveryError::Orphans)?,
            false => Vec::new(),
        };
        if !orphans.is_empty() {
            tracing::info!(count = orphans.len(), "removed blobs that no job needs");
        }
        Ok(Self {
            id,
            election,
            graphs,
            results,
            blobs,
            job_master_factory: parts.job_master_factory,
            clean_up: parts.clean_up,
            spawn: parts.spawn,
            on_fatal_error: parts.on_fatal_error,
            slots_total: config.slots_total,
            recovered,
            unrecoverable,
            jobs: BTreeMap::new(),
            submissions: BTreeMap::new(),
            terminated: TerminatedJobs::new(config.job_store_bytes_max, config.job_store_expiration),
            cleanups,
            questions: BTreeMap::new(),
            next_question: 0,
            phase: Phase::Running,
            stale_messages: 0,
            outbox: Vec::new(),
        })
    }

    /// Number of messages that were dropped since they were meant for another leadership.
    pub fn stale_messages(&self) -> u64 {
        self.stale_messages
    }

    /// True for a message of another leadership, of this component or of a JobMaster.
    fn is_fenced_off(&self, envelope: &Envelope) -> bool {
        let Message::Dispatcher(message) = &envelope.message else { return true };
        let is_own_fence = envelope.fence == Fence::Dispatcher(self.id);
        let is_led = |job: &JobId, job_master: &JobMasterId| {
            self.jobs.get(job).is_some_and(|known| known.job_master == *job_master)
        };
        match message {
            DispatcherMessage::Request(..) => !is_own_fence,
            DispatcherMessage::Stop(_) => !is_own_fence || envelope.from != Address::Dispatcher,
            DispatcherMessage::JobStatusChanged(changed) => !is_led(&changed.overview.job, &changed.job_master),
            DispatcherMessage::JobTerminated(terminated) => !is_led(&terminated.details.job, &terminated.job_master),
            DispatcherMessage::JobMasterFailed(failed) => !is_led(&failed.job, &failed.job_master),
            DispatcherMessage::JobMasterClosed(job, job_master) => !is_led(job, job_master),
            // Found by their numbers, which are given once per leadership.
            DispatcherMessage::JobDetails(..)
            | DispatcherMessage::TaskExecutors(..)
            | DispatcherMessage::SnapshotTaken(..) => match envelope.fence {
                Fence::Dispatcher(id) => id != self.id,
                Fence::None | Fence::JobMaster(_) | Fence::ResourceManager(_) => false,
            },
        }
    }

    fn handle(&mut self, from: Address, message: DispatcherMessage, now: Timestamp) {
        match message {
            DispatcherMessage::Request(number, request) => {
                self.handle_request(Asker { client: from, number }, request, now);
            }
            DispatcherMessage::JobStatusChanged(changed) => self.job_status_changed(changed),
            DispatcherMessage::JobTerminated(JobTerminated { details, .. }) => self.job_terminated(details, now),
            DispatcherMessage::JobMasterFailed(failed) => self.job_master_failed(failed, now),
            DispatcherMessage::JobMasterClosed(job, job_master) => self.job_master_closed(job, job_master, now),
            DispatcherMessage::JobDetails(number, details) => self.details_came(number, details),
            DispatcherMessage::TaskExecutors(number, list) => self.task_executors_came(number, list),
            DispatcherMessage::SnapshotTaken(number, result) => self.snapshot_came(number, result),
            DispatcherMessage::Stop(reason) => self.stop(&reason, now),
        }
    }

    fn handle_request(&mut self, asker: Asker, request: DispatcherRequest, now: Timestamp) {
        match request {
            DispatcherRequest::SubmitJob(graph) => self.submit_job(asker, graph, now),
            DispatcherRequest::CancelJob(job) => {
                let response = self.cancel_job(job, JobMasterMessage::Cancel, now);
                self.answer_result(&asker, response);
            }
            DispatcherRequest::CancelUncommitted(job) => {
                let response = self.cancel_job(job, JobMasterMessage::CancelUncommitted, now);
                self.answer_result(&asker, response);
            }
            DispatcherRequest::ListJobs => {
                let jobs = self.list_jobs();
                self.answer(&asker, DispatcherResponse::Jobs(jobs));
            }
            DispatcherRequest::JobDetails(job) => self.ask_for_details(asker, job, now),
            DispatcherRequest::TakeSnapshot(job, request) => self.take_snapshot(asker, job, request),
            DispatcherRequest::JobGraph(job) => self.tell_job_graph(&asker, job),
            DispatcherRequest::AwaitTermination(job) => self.await_termination(asker, job),
            DispatcherRequest::ListTaskExecutors => self.ask_for_task_executors(asker, now),
            DispatcherRequest::Shutdown => {
                self.answer(&asker, DispatcherResponse::Acknowledged);
                self.shut_down(now);
            }
        }
    }

    // Submission.

    fn submit_job(&mut self, asker: Asker, graph: JobGraph, now: Timestamp) {
        match self.check_submission(&graph) {
            // Acknowledged when the former JobMaster has ended and this one was started.
            Ok(()) if self.jobs.contains_key(&graph.job_id) => {
                self.submissions.insert(graph.job_id, WaitingSubmission { graph, client: asker });
            }
            Ok(()) => {
                let result = self.persist_and_run(graph, now);
                self.answer_result(&asker, result);
            }
            Err(error) => self.answer_result(&asker, Err(error)),
        }
    }

    /// The order of the checks is Flink's: ended, running or waiting, resources.
    fn check_submission(&self, graph: &JobGraph) -> Result<(), DispatcherError> {
        let job = graph.job_id;
        if self.phase != Phase::Running {
            return Err(DispatcherError::NoLeader("Dispatcher, since the cluster is shutting down,".to_owned()));
        }
        if self.results.has_result(job) {
            let result = self.results.result(job).map_err(|error| storage_error(&error))?;
            let status = result.map_or(JobStatus::Finished, |result| result.status);
            return Err(DispatcherError::DuplicateEndedJob(job, status));
        }
        let is_running = self.jobs.get(&job).is_some_and(|known| known.phase != JobPhase::Terminating);
        if is_running || self.submissions.contains_key(&job) {
            return Err(DispatcherError::DuplicateJob(job));
        }
        check_resources(graph)?;
        if let Some(total) = self.slots_total
            && total < slots_needed(graph)
        {
            return Err(DispatcherError::TooFewSlots { needed: slots_needed(graph), total });
        }
        match graph.vertices.iter().find(|vertex| vertex.parallelism == 0 || vertex.operators.is_empty()) {
            Some(vertex) => {
                let problem = format!("\"{}\" has no subtasks or no operators", vertex.name);
                Err(DispatcherError::InvalidJob(problem))
            }
            None if graph.vertices.is_empty() => {
                Err(DispatcherError::InvalidJob(format!("job \"{}\" has no operators", graph.name)))
            }
            None => Ok(()),
        }
    }

    fn persist_and_run(&mut self, graph: JobGraph, now: Timestamp) -> Result<(), DispatcherError> {
        let job = graph.job_id;
        let (was_stored, former) = (self.graphs.is_stored(job), self.blobs.references(job));
        self.blobs.reference(job, blobs_of(&graph)).map_err(|error| match error {
            BlobError::Missing(_) | BlobError::Damaged { .. } => {
                DispatcherError::InvalidJob(format!("the job's plugin or an artifact is not there: {error}"))
            }
            BlobError::Storage(_) => storage_error(&error),
        })?;
        if let Err(error) = self.graphs.put(&graph) {
            if was_stored {
                // What is there of it, whichever graph that is, can still be run.
                self.blobs.keep(job, former.into_iter().chain(blobs_of(&graph)).collect());
            } else {
                // The graph may be there all the same, and would be run by the next leader.
                self.graphs.remove(job).map_err(|error| storage_error(&error))?;
                self.blobs.release(job).map_err(|error| storage_error(&error))?;
            }
            return Err(storage_error(&error));
        }
        let started = self.run(graph, JobOrigin::Submitted, now);
        if started.is_err() {
            self.clean_up(job, now);
        }
        started
    }

    fn run(&mut self, graph: JobGraph, origin: JobOrigin, now: Timestamp) -> Result<(), DispatcherError> {
        let job = graph.job_id;
        let no_leader = || DispatcherError::NoLeader(format!("JobMaster of job {job}"));
        let contender = self.election.contend(Address::JobMaster(job)).map_err(|_| no_leader())?;
        let Some(Fence::JobMaster(job_master)) = contender.session() else { return Err(no_leader()) };
        let runner = JobMasterRunner::new(graph.clone(), job_master, contender, Arc::clone(&self.job_master_factory));
        let overview = JobOverview {
            job,
            name: graph.name.clone(),
            status: JobStatus::Initializing,
            started: now,
            ended: None,
            last_modified: now,
            tasks: BTreeMap::new(),
        };
        tracing::info!(%job, name = graph.name, ?origin, "starting the JobMaster");
        // One that could not be recovered is shown as FAILED until it is submitted again.
        self.terminated.remove(job);
        let phase = JobPhase::Initializing;
        let known = Job {
            graph,
            job_master,
            origin,
            phase,
            overview,
            waiting: Vec::new(),
            postponed: None,
            is_cancelled: false,
        };
        self.jobs.insert(job, known);
        (self.spawn)(job, job_master, Box::new(runner));
        Ok(())
    }

    // What JobMasters say.

    fn job_status_changed(&mut self, changed: JobStatusChanged) {
        let job = self.jobs.get_mut(&changed.overview.job).expect("the fence was checked");
        if [JobPhase::Initializing, JobPhase::Running].contains(&job.phase) {
            job.phase = JobPhase::Running;
            job.overview = changed.overview;
        }
    }

    fn job_terminated(&mut self, details: JobDetails, now: Timestamp) {
        let known = self.jobs.get_mut(&details.job).expect("the fence was checked");
        if known.phase == JobPhase::Terminating {
            return;
        }
        known.phase = JobPhase::Terminating;
        known.overview = overview_of(&details);
        let mut waiting = mem::take(&mut known.waiting);
        let program = &known.graph.program;
        let program = SubmittedProgram { plugin: program.plugin, args: program.args.clone() };
        // The JobMaster will not read what it was asked and has not answered.
        let about = QuestionAbout::Snapshot(details.job);
        let snapshots = self.questions.extract_if(.., |_, question| question.about == about);
        for Question { asker, .. } in snapshots.map(|(_, question)| question).collect::<Vec<_>>() {
            let message = format!("job {} has ended as {} before it was taken", details.job, details.status);
            self.answer_result(&asker, Err(DispatcherError::SnapshotFailed(message)));
        }
        let about = QuestionAbout::Job(details.job);
        let unanswered = self.questions.extract_if(.., |_, question| question.about == about);
        waiting.extend(unanswered.map(|(_, question)| question.asker));
        if !details.status.is_globally_terminal() {
            for asker in waiting {
                self.answer_result(&asker, Err(no_job_master(details.job)));
            }
            return;
        }
        let job = details.job;
        let result = result_of(&details, program);
        self.terminated.insert(details.clone(), overview_of(&details), now);
        if let Err(error) = self.results.create_dirty(result) {
            // Not stored, the job would run again after a restart, so nothing may go on.
            self.fail_fatally(&format!("the result of job {job} could not be stored: {}", chain(&error)));
            return;
        }
        for asker in waiting {
            self.answer(&asker, DispatcherResponse::Details(details.clone()));
        }
        self.clean_up(job, now);
    }

    /// The JobMaster could not be made, or died. A job that was recovered keeps what is
    /// stored of it, since another version of the engine may be able to run it.
    fn job_master_failed(&mut self, failed: JobMasterFailed, now: Timestamp) {
        let JobMasterFailed { job, cause, .. } = failed;
        let known = &self.jobs[&job];
        match known.phase {
            JobPhase::Terminating | JobPhase::Postponed => {}
            JobPhase::Initializing if known.is_cancelled => {
                let details = details_of_graph(&known.graph, JobStatus::Canceled, known.overview.started, now, None);
                self.job_terminated(details, now);
            }
            JobPhase::Initializing if known.origin == JobOrigin::Recovered => match cause.recoverability {
                Recoverability::Recoverable => self.postpone(job, cause, now),
                Recoverability::Unrecoverable => self.give_up_recovery(job, cause, now),
            },
            JobPhase::Initializing | JobPhase::Running => {
                let started = known.overview.started;
                let details = details_of_graph(&known.graph, JobStatus::Failed, started, now, Some(cause));
                self.job_terminated(details, now);
            }
        }
    }

    /// What the job goes on from, reads or writes is away: it is tried again.
    fn postpone(&mut self, job: JobId, cause: FailureCause, now: Timestamp) {
        let known = self.jobs.get_mut(&job).expect("the fence was checked");
        let wait = match &known.postponed {
            Some(former) => (former.wait * 2).min(RECOVERY_MAX_WAIT),
            None => RECOVERY_INITIAL_WAIT,
        };
        let after = format_duration(wait);
        tracing::error!(%job, "the recovered job could not start for this reason; trying again after {after}");
        known.phase = JobPhase::Postponed;
        known.overview.status = JobStatus::Restarting;
        known.overview.last_modified = now;
        known.postponed = Some(Postponed { next_try: None, wait, cause });
    }

    /// Has another JobMaster made for a job that was postponed; whoever waits for its end goes on waiting.
    fn try_again(&mut self, job: JobId, now: Timestamp) {
        let Some(Job { graph, waiting, postponed, overview, .. }) = self.jobs.remove(&job) else { return };
        let started = self.run(graph.clone(), JobOrigin::Recovered, now);
        if let Some(known) = self.jobs.get_mut(&job) {
            (known.waiting, known.postponed) = (waiting, postponed);
            known.overview.started = overview.started;
            if let Some(postponed) = &mut known.postponed {
                postponed.next_try = None;
            }
        }
        if let Err(error) = started {
            self.show_unrecoverable(Unrecoverable { job, graph: Some(graph), problem: error.to_string() }, now);
        }
    }

    /// The JobMaster of a recovered job cannot be made: the job is shown as FAILED, and what is stored of it stays.
    fn give_up_recovery(&mut self, job: JobId, cause: FailureCause, now: Timestamp) {
        let known = self.jobs.get_mut(&job).expect("the fence was checked");
        known.phase = JobPhase::Terminating;
        let (graph, waiting) = (known.graph.clone(), mem::take(&mut known.waiting));
        let details = self.show_unrecoverable(Unrecoverable { job, graph: Some(graph), problem: cause.message }, now);
        for asker in waiting {
            self.answer(&asker, DispatcherResponse::Details(details.clone()));
        }
    }

    fn show_unrecoverable(&mut self, unrecoverable: Unrecoverable, now: Timestamp) -> JobDetails {
        let Unrecoverable { job, graph, problem } = unrecoverable;
        let message = format!("the stored job cannot be run: {problem}; what is stored of it is kept");
        tracing::error!(%job, "{message}");
        let cause = FailureCause {
            code: "recovery".to_owned(),
            message,
            detail: String::new(),
            recoverability: Recoverability::Unrecoverable,
        };
        let details = match graph {
            Some(graph) => details_of_graph(&graph, JobStatus::Failed, now, now, Some(cause)),
            None => details_without_graph(job, now, cause),
        };
        self.terminated.insert(details.clone(), overview_of(&details), now);
        details
    }

    fn job_master_closed(&mut self, job: JobId, job_master: JobMasterId, now: Timestamp) {
        if self.jobs[&job].phase == JobPhase::Postponed && self.phase == Phase::Running {
            let known = self.jobs.get_mut(&job).expect("the fence was checked");
            if let Some(postponed) = &mut known.postponed {
                postponed.next_try = Some(now.plus(postponed.wait));
            }
            return;
        }
        let has_ended = [JobPhase::Terminating, JobPhase::Postponed].contains(&self.jobs[&job].phase);
        if !has_ended && self.phase == Phase::Running {
            let cause = FailureCause {
                code: "internal".to_owned(),
                message: "the JobMaster ended without a result".to_owned(),
                detail: String::new(),
                recoverability: Recoverability::Unrecoverable,
            };
            self.job_master_failed(JobMasterFailed { job, job_master, cause }, now);
        }
        self.jobs.remove(&job);
        if let Some(WaitingSubmission { graph, client }) = self.submissions.remove(&job) {
            // Checked again: the job may have got a result in the meantime.
            let result = self.check_submission(&graph).and_then(|()| self.persist_and_run(graph, now));
            self.answer_result(&client, result);
        }
    }

    /// Removes what a job left. Each step may be repeated, so a failure repeats them all.
    fn clean_up(&mut self, job: JobId, now: Timestamp) {
        let wait = self.cleanups.remove(&job).map_or(CLEANUP_INITIAL_WAIT, |cleanup| cleanup.wait);
        let cleaned = self.try_clean_up(job);
        if let Err(error) = cleaned {
            let after = format_duration(wait);
            tracing::warn!(%job, error = chain(error.as_ref()), "could not clean up, trying again after {after}");
            let cleanup = Cleanup { next_try: now.plus(wait), wait: (wait * 2).min(CLEANUP_MAX_WAIT) };
            self.cleanups.insert(job, cleanup);
        }
    }

    fn try_clean_up(&mut self, job: JobId) -> Result<(), Box<dyn Error>> {
        // Only now that its result is durable: without them it could not go on after a crash.
        if let (Some(result), Some(graph)) = (self.results.result(job)?, self.graphs.recover(job)?) {
            (self.clean_up)(&graph, &result)?;
        }
        self.graphs.remove(job)?;
        self.blobs.release(job)?;
        if self.results.has_result(job) {
            self.results.mark_clean(job)?;
        }
        Ok(())
    }

    // What clients ask.

    fn cancel_job(&mut self, job: JobId, cancel: JobMasterMessage, now: Timestamp) -> Result<(), DispatcherError> {
        match self.jobs.get_mut(&job) {
            // Whether it has completed a checkpoint is not known before it starts.
            Some(known) if known.phase == JobPhase::Postponed && cancel == JobMasterMessage::CancelUncommitted => {
                Err(DispatcherError::NoLeader(format!("JobMaster of job {job}, which could not start yet,")))
            }
            Some(known) if known.phase == JobPhase::Postponed => {
                let is_closed = known.next_try().is_some();
                let details = details_of_graph(&known.graph, JobStatus::Canceled, known.overview.started, now, None);
                self.job_terminated(details, now);
                if is_closed {
                    self.jobs.remove(&job);
                }
                Ok(())
            }
            Some(known) if known.phase != JobPhase::Terminating => {
                if known.phase == JobPhase::Initializing {
                    known.overview.status = JobStatus::Canceling;
                    known.is_cancelled |= cancel == JobMasterMessage::Cancel;
                }
                let job_master = known.job_master;
                self.send_to_job_master(job, job_master, cancel);
                Ok(())
            }
            Some(known) => Err(DispatcherError::AlreadyEnded(job, known.overview.status)),
            None => match self.ended_status(job)? {
                Some(status) => Err(DispatcherError::AlreadyEnded(job, status)),
                None => Err(DispatcherError::UnknownJob(job)),
            },
        }
    }

    fn ended_status(&self, job: JobId) -> Result<Option<JobStatus>, DispatcherError> {
        if let Some(details) = self.terminated.details(job) {
            return Ok(Some(details.status));
        }
        let result = self.results.result(job).map_err(|error| storage_error(&error))?;
        Ok(result.map(|result| result.status))
    }

    /// Running jobs by id, then ended ones in the order of their ends.
    fn list_jobs(&self) -> Vec<JobOverview> {
        let is_listed = |job: &&Job| self.terminated.details(job.graph.job_id).is_none();
        let running = self.jobs.values().filter(is_listed).map(|job| &job.overview);
        running.chain(self.terminated.overviews()).cloned().collect()
    }

    fn ask_for_details(&mut self, asker: Asker, job: JobId, now: Timestamp) {
        if let Some(details) = self.terminated.details(job) {
            let details = details.clone();
            self.answer(&asker, DispatcherResponse::Details(details));
            return;
        }
        match self.jobs.get(&job) {
            Some(known) if known.phase == JobPhase::Running => {
                let job_master = known.job_master;
                let number = self.ask(asker, QuestionAbout::Job(job), now);
                self.send_to_job_master(job, job_master, JobMasterMessage::RequestDetails(number));
            }
            Some(known) => {
                let JobOverview { status, started, last_modified, .. } = known.overview;
                let cause = known.postponed.as_ref().map(|postponed| postponed.cause.clone());
                let details = details_of_graph(&known.graph, status, started, last_modified, cause);
                self.answer(&asker, DispatcherResponse::Details(details));
            }
            None => self.answer_result(&asker, Err(DispatcherError::UnknownJob(job))),
        }
    }

    fn await_termination(&mut self, asker: Asker, job: JobId) {
        if let Some(details) = self.terminated.details(job) {
            let details = details.clone();
            self.answer(&asker, DispatcherResponse::Details(details));
            return;
        }
        match self.jobs.get_mut(&job) {
            Some(known) if known.phase != JobPhase::Terminating => known.waiting.push(asker),
            Some(_) => self.answer_result(&asker, Err(no_job_master(job))),
            None => self.answer_result(&asker, Err(DispatcherError::UnknownJob(job))),
        }
    }

    fn tell_job_graph(&mut self, asker: &Asker, job: JobId) {
        let known = self.jobs.contains_key(&job);
        let response = match if known { self.graphs.recover(job) } else { Ok(None) } {
            Ok(Some(job_graph)) => DispatcherResponse::JobGraph(Box::new(job_graph)),
            Ok(None) => DispatcherResponse::Refused(DispatcherError::UnknownJob(job)),
            Err(error) => DispatcherResponse::Refused(DispatcherError::Storage(chain(&error))),
        };
        self.answer(asker, response);
    }

    /// Passes on to the JobMaster, which answers when the checkpoint is complete: its timeout counts.
    fn take_snapshot(&mut self, asker: Asker, job: JobId, request: SnapshotRequest) {
        match self.jobs.get(&job) {
            Some(known) if known.phase == JobPhase::Running => {
                let job_master = known.job_master;
                let number = self.ask(asker, QuestionAbout::Snapshot(job), Timestamp::MAX);
                self.send_to_job_master(job, job_master, JobMasterMessage::TriggerSnapshot(number, request));
            }
            Some(known) => {
                let status = known.overview.status;
                let message = format!("job {job} is {status}: a checkpoint can be taken while it is RUNNING only");
                self.answer_result(&asker, Err(DispatcherError::SnapshotFailed(message)));
            }
            None => {
                let error = match self.ended_status(job) {
                    Ok(Some(status)) => DispatcherError::SnapshotFailed(format!(
                        "job {job} has ended as {status}: nothing is left to take"
                    )),
                    Ok(None) => DispatcherError::UnknownJob(job),
                    Err(error) => error,
                };
                self.answer_result(&asker, Err(error));
            }
        }
    }

    fn snapshot_came(&mut self, number: u64, result: Result<TakenSnapshot, String>) {
        let Some(question) = self.questions.remove(&number) else { return };
        match result {
            Ok(taken) => self.answer(&question.asker, DispatcherResponse::Snapshot(taken)),
            Err(message) => self.answer_result(&question.asker, Err(DispatcherError::SnapshotFailed(message))),
        }
    }

    fn ask_for_task_executors(&mut self, asker: Asker, now: Timestamp) {
        let Some(fence) = self.election.leader(&Address::ResourceManager) else {
            let error = DispatcherError::NoLeader("ResourceManager".to_owned());
            self.answer_result(&asker, Err(error));
            return;
        };
        let number = self.ask(asker, QuestionAbout::TaskExecutors, now);
        let message = Message::ResourceManager(ResourceManagerMessage::RequestTaskExecutors(number));
        self.send(Address::ResourceManager, fence, message);
    }

    /// Notes a question that is passed on, and returns its number.
    fn ask(&mut self, asker: Asker, about: QuestionAbout, now: Timestamp) -> u64 {
        self.next_question += 1;
        self.questions.insert(self.next_question, Question { asker, deadline: now.plus(ASK_TIMEOUT), about });
        self.next_question
    }

    fn details_came(&mut self, number: u64, details: JobDetails) {
        let Some(question) = self.questions.remove(&number) else { return };
        if question.about != QuestionAbout::Job(details.job) {
            self.questions.insert(number, question);
            return;
        }
        if let Some(known) = self.jobs.get_mut(&details.job)
            && known.phase == JobPhase::Running
        {
            known.overview = overview_of(&details);
        }
        self.answer(&question.asker, DispatcherResponse::Details(details));
    }

    fn task_executors_came(&mut self, number: u64, list: Vec<TaskExecutorDetails>) {
        if let Some(question) = self.questions.remove(&number) {
            self.answer(&question.asker, DispatcherResponse::TaskExecutors(list));
        }
    }

    fn expire_questions(&mut self, now: Timestamp) {
        let expired: Vec<Question> = self
            .questions
            .extract_if(.., |_, question| question.deadline <= now)
            .map(|(_, question)| question)
            .collect();
        for question in expired {
            let waited = format_duration(ASK_TIMEOUT);
            let who = match question.about {
                QuestionAbout::Job(job) => format!("JobMaster of job {job} that answers within {waited}"),
                QuestionAbout::Snapshot(job) => format!("JobMaster of job {job}"),
                QuestionAbout::TaskExecutors => format!("ResourceManager that answers within {waited}"),
            };
            self.answer_result(&question.asker, Err(DispatcherError::NoLeader(who)));
        }
    }

    // The end.

    fn shut_down(&mut self, now: Timestamp) {
        if self.phase != Phase::Running {
            return;
        }
        tracing::info!("the cluster is shutting down: cancelling all jobs");
        self.phase = Phase::ShuttingDown { deadline: now.plus(SHUTDOWN_TIMEOUT) };
        let jobs: Vec<JobId> = self.jobs.keys().copied().collect();
        for job in jobs {
            match self.cancel_job(job, JobMasterMessage::Cancel, now) {
                Ok(()) | Err(DispatcherError::AlreadyEnded(..)) => {}
                Err(error) => tracing::warn!(%job, %error, "could not cancel the job"),
            }
        }
    }

    fn stop(&mut self, reason: &str, now: Timestamp) {
        match self.phase {
            Phase::Running | Phase::ShuttingDown { .. } => {}
            Phase::Stopping { .. } | Phase::Stopped => return,
        }
        tracing::info!(reason, "the Dispatcher ends: suspending all jobs");
        self.phase = Phase::Stopping { deadline: now.plus(STOP_TIMEOUT) };
        // Nobody is there whose end would be told.
        let postponed: Vec<_> = self.jobs.extract_if(.., |_, known| known.next_try().is_some()).collect();
        for (job, known) in postponed {
            for asker in known.waiting {
                self.answer_result(&asker, Err(no_job_master(job)));
            }
        }
        let running: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, known)| [JobPhase::Initializing, JobPhase::Running].contains(&known.phase))
            .map(|(job, known)| (*job, known.job_master))
            .collect();
        for (job, job_master) in running {
            self.send_to_job_master(job, job_master, JobMasterMessage::Suspend(reason.to_owned()));
        }
    }

    fn end_when_due(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Running | Phase::Stopped => {}
            Phase::ShuttingDown { .. } | Phase::Stopping { .. } if self.jobs.is_empty() => {
                self.phase = Phase::Stopped;
            }
            Phase::ShuttingDown { deadline } if deadline <= now => {
                self.stop("jobs could not be cancelled in time", now);
            }
            Phase::Stopping { deadline } if deadline <= now => {
                let jobs: Vec<_> = self.jobs.keys().collect();
                tracing::error!(?jobs, "JobMasters did not end in time and are left behind");
                self.phase = Phase::Stopped;
            }
            Phase::ShuttingDown { .. } | Phase::Stopping { .. } => {}
        }
        if self.phase == Phase::Stopped {
            self.refuse_all_waiting();
        }
    }

    fn refuse_all_waiting(&mut self) {
        let questions = mem::take(&mut self.questions).into_values().map(|question| question.asker);
        let submissions = mem::take(&mut self.submissions).into_values().map(|submission| submission.client);
        let waiting = self.jobs.values_mut().flat_map(|job| mem::take(&mut job.waiting));
        let askers: Vec<Asker> = questions.chain(submissions).chain(waiting).collect();
        for asker in askers {
            self.answer_result(&asker, Err(DispatcherError::NoLeader("Dispatcher".to_owned())));
        }
    }

    fn fail_fatally(&mut self, problem: &str) {
        tracing::error!(problem, "the Dispatcher cannot go on");
        (self.on_fatal_error)(problem.to_owned());
        self.phase = Phase::Stopped;
        self.refuse_all_waiting();
    }

    // Sending.

    fn send(&mut self, to: Address, fence: Fence, message: Message) {
        self.outbox.push(Envelope { from: Address::Dispatcher, to, fence, message });
    }

    fn send_to_job_master(&mut self, job: JobId, job_master: JobMasterId, message: JobMasterMessage) {
        self.send(Address::JobMaster(job), Fence::JobMaster(job_master), Message::JobMaster(message));
    }

    fn answer(&mut self, asker: &Asker, response: DispatcherResponse) {
        self.send(asker.client.clone(), Fence::None, Message::Client(asker.number, response));
    }

    fn answer_result(&mut self, asker: &Asker, result: Result<(), DispatcherError>) {
        let response = match result {
            Ok(()) => DispatcherResponse::Acknowledged,
            Err(error) => DispatcherResponse::Refused(error),
        };
        self.answer(asker, response);
    }
}

impl Endpoint for Dispatcher {
    fn on_start(&mut self, now: Timestamp) -> Vec<Envelope> {
        let dirty: Vec<JobId> = self.cleanups.keys().copied().collect();
        for job in dirty {
            self.clean_up(job, now);
        }
        for unrecoverable in mem::take(&mut self.unrecoverable) {
            self.show_unrecoverable(unrecoverable, now);
        }
        for graph in mem::take(&mut self.recovered) {
            if let Err(error) = self.run(graph.clone(), JobOrigin::Recovered, now) {
                let (job, problem) = (graph.job_id, error.to_string());
                self.show_unrecoverable(Unrecoverable { job, graph: Some(graph), problem }, now);
            }
        }
        mem::take(&mut self.outbox)
    }

    fn on_message(&mut self, envelope: Envelope, now: Timestamp) -> Vec<Envelope> {
        if self.is_fenced_off(&envelope) {
            self.stale_messages += 1;
            tracing::debug!(from = %envelope.from, "a message of another leadership was dropped");
            return Vec::new();
        }
        if let Message::Dispatcher(message) = envelope.message {
            self.handle(envelope.from, message, now);
        }
        self.end_when_due(now);
        mem::take(&mut self.outbox)
    }

    fn on_deadline(&mut self, now: Timestamp) -> Vec<Envelope> {
        self.terminated.expire(now);
        self.expire_questions(now);
        let due = self.cleanups.iter().filter(|(_, cleanup)| cleanup.next_try <= now).map(|(job, _)| *job);
        for job in due.collect::<Vec<_>>() {
            self.clean_up(job, now);
        }
        let postponed = self.jobs.iter().filter(|(_, known)| known.next_try().is_some_and(|time| time <= now));
        for job in postponed.map(|(job, _)| *job).collect::<Vec<_>>() {
            self.try_again(job, now);
        }
        self.end_when_due(now);
        mem::take(&mut self.outbox)
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        let questions = self.questions.values().map(|question| question.deadline);
        let cleanups = self.cleanups.values().map(|cleanup| cleanup.next_try);
        let postponed = self.jobs.values().filter_map(Job::next_try);
        let end = match self.phase {
            Phase::ShuttingDown { deadline } | Phase::Stopping { deadline } => Some(deadline),
            Phase::Running | Phase::Stopped => None,
        };
        questions.chain(cleanups).chain(postponed).chain(end).chain(self.terminated.next_deadline()).min()
    }

    fn is_terminated(&self) -> bool {
        self.phase == Phase::Stopped
    }
}

fn blobs_of(graph: &JobGraph) -> BTreeSet<BlobDigest> {
    let operators = graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let plugins = operators.filter_map(|operator| operator.plugin);
    let artifacts = graph.artifacts.iter().map(|artifact| artifact.digest);
    plugins.chain(artifacts).chain([graph.program.plugin]).collect()
}

fn check_resources(graph: &JobGraph) -> Result<(), DispatcherError> {
    let names = |are_set: bool| -> Vec<String> {
        let vertices = graph.vertices.iter().filter(|vertex| vertex.resources.is_some() == are_set);
        vertices.map(|vertex| format!("\"{}\"", vertex.name)).collect()
    };
    let (set, unset) = (names(true), names(false));
    if set.is_empty() || unset.is_empty() {
        return Ok(());
    }
    let message = format!("set for {}, not for {}", set.join(", "), unset.join(", "));
    Err(DispatcherError::PartialResources(message))
}

fn no_job_master(job: JobId) -> DispatcherError {
    DispatcherError::NoLeader(format!("JobMaster of job {job}"))
}

fn storage_error(error: &dyn Error) -> DispatcherError {
    DispatcherError::Storage(chain(error))
}

/// An error with its causes in one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// Details of a stored job of which nothing can be read but its id.
fn details_without_graph(job: JobId, now: Timestamp, cause: FailureCause) -> JobDetails {
    let name = format!("job {job}");
    let root_failure = FailureEntry { time: now, cause, task_name: None, task_executor: None, restart: Restart::None };
    JobDetails {
        job,
        json_plan: serde_json::json!({ "jid": job, "name": name, "type": "STREAMING", "nodes": [] }).to_string(),
        name,
        status: JobStatus::Failed,
        timestamps: BTreeMap::from([(JobStatus::Initializing, now), (JobStatus::Failed, now)]),
        vertices: Vec::new(),
        configuration: Configuration::default(),
        restart_strategy: "none: the JobMaster has not started".to_owned(),
        restarts: 0,
        downtime: Downtime::default(),
        slot_shortage: None,
        failures: vec![root_failure.clone()],
        root_failure: Some(root_failure),
        checkpoints: None,
        stopped_with: None,
    }
}

/// Details of a job whose JobMaster is not there to give them: without attempts.
pub(crate) fn details_of_graph(
    graph: &JobGraph,
    status: JobStatus,
    submitted: Timestamp,
    changed: Timestamp,
    failure: Option<FailureCause>,
) -> JobDetails {
    let vertices = graph.vertices.iter().map(|vertex| VertexDetails {
        id: vertex.id,
        name: vertex.name.clone(),
        parallelism: vertex.parallelism,
        max_parallelism: vertex.max_parallelism,
        slot_sharing_group: vertex.slot_sharing_group.clone(),
        operators: vertex.operators.iter().map(|chained| (chained.node.id, chained.node.name.clone())).collect(),
        subtasks: Vec::new(),
    });
    let root_failure = failure.map(|cause| FailureEntry {
        time: changed,
        cause,
        task_name: None,
        task_executor: None,
        restart: Restart::None,
    });
    JobDetails {
        job: graph.job_id,
        name: graph.name.clone(),
        status,
        timestamps: BTreeMap::from([(JobStatus::Initializing, submitted), (status, changed)]),
        vertices: vertices.collect(),
        json_plan: graph.json_plan.clone(),
        configuration: graph.configuration.clone(),
        restart_strategy: "none: the JobMaster has not started".to_owned(),
        restarts: 0,
        downtime: Downtime::default(),
        slot_shortage: None,
        failures: root_failure.iter().cloned().collect(),
        root_failure,
        checkpoints: None,
        stopped_with: None,
    }
}

/// The line of a list that details shrink to.
pub(crate) fn overview_of(details: &JobDetails) -> JobOverview {
    let mut tasks = BTreeMap::<ExecutionState, u32>::new();
    for subtask in details.vertices.iter().flat_map(|vertex| &vertex.subtasks) {
        *tasks.entry(subtask.current.state).or_default() += 1;
    }
    let times = details.timestamps.values().copied();
    let last_modified = times.clone().max().unwrap_or(Timestamp(0));
    let ended = details.timestamps.get(&details.status).copied().filter(|_| details.status.is_terminal());
    JobOverview {
        job: details.job,
        name: details.name.clone(),
        status: details.status,
        started: times.min().unwrap_or(Timestamp(0)),
        ended,
        last_modified,
        tasks,
    }
}

fn result_of(details: &JobDetails, program: SubmittedProgram) -> JobResult {
    let overview = overview_of(details);
    JobResult {
        job_id: details.job,
        job_name: details.name.clone(),
        status: details.status,
        started: overview.started,
        ended: overview.ended.unwrap_or(overview.last_modified),
        program: Some(program),
        stopped_with: details.stopped_with.clone(),
        failure: match details.status {
            JobStatus::Failed => details.root_failure.as_ref().map(|entry| entry.cause.clone()),
            JobStatus::Initializing
            | JobStatus::Created
            | JobStatus::Running
            | JobStatus::Failing
            | JobStatus::Canceling
            | JobStatus::Canceled
            | JobStatus::Finished
            | JobStatus::Restarting
            | JobStatus::Suspended
            | JobStatus::Reconciling => None,
        },
    }
}

#[cfg(test)]
#[path = "dispatcher_tests.rs"]
mod tests;
