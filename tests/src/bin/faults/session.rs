//! Jobs of an `engine cluster` that are stopped with savepoints, started from them with another
//! parallelism, and upgraded, while the cluster is killed.
//!
//! A session is one output, written by one job after the other:
//!
//! ```text
//!   start slowly -> savepoint, stop and start again, or upgrade: 1 to 3 times -> stop -> start fast -> FINISHED
//! ```
//!
//! What a command answers is not trusted: what comes next is decided by what a live cluster runs.
//! So a command whose cluster died may have done nothing, a part, or all.

use std::{
    collections::{BTreeSet, VecDeque},
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use engine_tests::{describe, engine, plugin, text};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;

use super::{
    End, Job, LOOK_EVERY, Options, PROCESS_TIMEOUT, RATE, RETAINED, Tally, Workload,
    cluster::{Cluster, Fault, Life},
    names, pause,
};

/// Events a second of jobs that are to be stopped before they end by themselves, and to have written some rows.
const SLOW_RATE: &str = "40000";
const PARALLELISM_MAX: u32 = 3;
/// Processes that something happens to; those after them are left alone.
const FAULTS_MAX: usize = 4;
/// Steps before the last stop.
const STEPS_MAX: usize = 3;
/// With the long one, savepoints are all that there is.
const INTERVALS: [&str; 2] = ["20ms", "1h"];
/// For which a job runs before something is done with it.
const RUN_MAX: u64 = 300;
/// For which something may fail, or not be done, with a live cluster.
const PATIENCE: Duration = Duration::from_secs(60);
const RETRY_EVERY: Duration = Duration::from_millis(20);
/// For which a live cluster may clean up after its jobs.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(15);
/// What commands take about, of which the plugin is compiled by those that start a job.
const SNAPSHOT_TAKES: Duration = Duration::from_millis(30);
const SUBMIT_TAKES: Duration = Duration::from_millis(90);
const UPGRADE_TAKES: Duration = Duration::from_millis(250);

/// What is done with the job that runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Step {
    Savepoint,
    Stop,
    Upgrade,
}

/// A job that was started, as far as it is known.
struct Started {
    id: String,
    /// It reads to the end at full rate, and is not stopped.
    is_last: bool,
    /// The cluster has said that it has the job, and it was not asked to end.
    must_run: bool,
}

/// What became of a command.
enum Answer {
    Done(String),
    /// With a live cluster or a dead one.
    Failed(String),
}

struct Session<'a> {
    /// The directory, the log and the rows.
    job: Job<'a>,
    /// Of all sessions; the input is there.
    allowed: &'a Path,
    random: StdRng,
    interval: &'static str,
    faults: VecDeque<Fault>,
    steps: VecDeque<Step>,
    cluster: Option<Cluster>,
    started: Option<Started>,
    /// Ids and parallelisms of the jobs that were seen, the latest last.
    seen: Vec<(String, u64)>,
    /// Since when something is tried again and again.
    trying: Option<Instant>,
    /// Savepoints that a command was answered with.
    answered: Vec<String>,
    /// The step that is done was given as a command to the job that was seen last.
    is_asked: bool,
}

/// Runs so many sessions, or fewer if the kills are enough.
pub(super) fn run_sessions(
    workloads: &[Workload],
    count: u64,
    root: &Path,
    random: &mut StdRng,
    tally: &mut Tally,
    options: &Options,
) {
    let workloads: Vec<_> =
        workloads.iter().filter(|workload| workload.arguments.iter().any(|it| it == RATE)).collect();
    for (_, workload) in (0..count).zip(workloads.iter().cycle()) {
        if options.kills <= tally.kills {
            return;
        }
        Session::new(workload, root, random).run_to_the_end(tally, options.keep);
    }
}

impl<'a> Session<'a> {
    fn new(workload: &'a Workload, root: &'a Path, random: &mut StdRng) -> Self {
        let job = Job::new(workload, root, random);
        // How often it draws depends on time: other sessions must not.
        let mut random = StdRng::seed_from_u64(random.random());
        let faults = (0..random.random_range(1..=FAULTS_MAX)).map(|_| Fault::draw(&mut random)).collect();
        let kinds = [Step::Savepoint, Step::Stop, Step::Upgrade];
        let mut steps: VecDeque<_> =
            (0..random.random_range(1..=STEPS_MAX)).map(|_| kinds[random.random_range(0..kinds.len())]).collect();
        steps.push_back(Step::Stop);
        let interval = INTERVALS[random.random_range(0..INTERVALS.len())];
        let session = Self {
            job,
            allowed: root,
            random,
            interval,
            faults,
            steps,
            cluster: None,
            started: None,
            seen: Vec::new(),
            trying: None,
            answered: Vec::new(),
            is_asked: false,
        };
        session.note(&format!("every {interval}: {:?} with {:?}", session.steps, session.faults));
        session
    }

    /// Runs it, compares what it wrote, and counts what was done.
    fn run_to_the_end(mut self, tally: &mut Tally, keep: bool) {
        tally.sessions += 1;
        let outcome = self.run(tally).and_then(|()| self.await_cleanup(tally));
        let ended = self.cluster.take().map_or(Ok(()), |cluster| self.bury(cluster, tally));
        let outcome =
            outcome.and(ended).and_then(|()| self.check_savepoints()).and_then(|()| self.count_results(tally));
        let end = match outcome {
            Ok(()) => Some(End::Finished),
            Err(problem) => {
                self.job.problem(tally, &problem);
                None
            }
        };
        self.job.close(end, tally, keep);
    }

    /// # Errors
    /// Returns what is wrong.
    fn run(&mut self, tally: &mut Tally) -> Result<(), String> {
        loop {
            if !self.has_cluster(tally)? {
                continue;
            }
            match self.active_job()? {
                Active::Unknown => pause(RETRY_EVERY),
                Active::One(job) => {
                    if !self.has_seen(&job, tally) {
                        pause(RETRY_EVERY);
                    } else if self.started.as_ref().is_some_and(|started| started.is_last && started.id == job) {
                        self.fails("the last job has not ended")?;
                        pause(RETRY_EVERY);
                    } else {
                        self.step(&job, tally)?;
                    }
                }
                Active::None if self.has_ended()? => return Ok(()),
                Active::None => self.start(tally)?,
            }
        }
    }

    /// Notes what is done in the log.
    fn note(&self, what: &str) {
        let log = File::options().create(true).append(true).open(self.job.log());
        log.and_then(|mut log| writeln!(log, "# {what}")).expect("the temporary directory is writable");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.job.root.join(name)
    }

    /// Something is not done yet.
    ///
    /// # Errors
    /// Returns why, if that has lasted for too long with this cluster.
    fn fails(&mut self, problem: &str) -> Result<(), String> {
        let began = *self.trying.get_or_insert_with(Instant::now);
        if PATIENCE <= began.elapsed() {
            return Err(format!("for {} s: {problem}", PATIENCE.as_secs()));
        }
        Ok(())
    }

    // The cluster.

    /// True if there is a live cluster; starts one if there is none.
    ///
    /// # Errors
    /// Returns an error if one ended that was not to.
    fn has_cluster(&mut self, tally: &mut Tally) -> Result<bool, String> {
        if let Some(cluster) = &mut self.cluster {
            match cluster.life()? {
                Life::Serves => return Ok(true),
                Life::Killed => {}
            }
        }
        if let Some(cluster) = self.cluster.take() {
            let said = self.job.said(cluster.log_from);
            let Some(name) = cluster.fault.killed_at(&said) else {
                return Err(format!("a cluster was killed by nobody, with {:?}", cluster.fault));
            };
            *tally.struck.entry(name.to_owned()).or_default() += 1;
            self.count_kill(cluster, tally)?;
        }
        let fault = self.faults.pop_front().unwrap_or_default();
        self.note(&format!("a cluster with {fault:?}"));
        let cluster = Cluster::spawn(&self.job.root, self.allowed, &self.job.log(), fault);
        let cluster = self.cluster.insert(cluster);
        cluster.await_url(&self.job.root)?;
        Ok(matches!(cluster.life()?, Life::Serves))
    }

    fn count_kill(&mut self, cluster: Cluster, tally: &mut Tally) -> Result<(), String> {
        tally.kills += 1;
        tally.clusters_killed += 1;
        // The next one has its own time.
        self.trying = None;
        self.bury(cluster, tally)
    }

    /// Ends a cluster, if it has not ended, and counts what it said.
    fn bury(&self, cluster: Cluster, tally: &mut Tally) -> Result<(), String> {
        let (from, fault) = (cluster.log_from, cluster.fault.clone());
        drop(cluster);
        let said = self.job.said(from);
        tally.count_checkpoints(&said);
        if let Some(struck) = fault.error_struck(&said) {
            tally.storage_faults += 1;
            tally.storage_errors += u64::from(struck);
        }
        match said.lines().find(|line| line.contains("panicked at")) {
            Some(line) => Err(format!("a cluster said: {line}")),
            None => Ok(()),
        }
    }

    /// Gives a command, during which the cluster may be killed.
    ///
    /// # Errors
    /// Returns an error if it does not end in time.
    fn command(&mut self, usual: Duration, arguments: &[&str], tally: &mut Tally) -> Result<Answer, String> {
        let is_killed = self.cluster.as_mut().is_some_and(|cluster| cluster.fault.kills_at_command());
        let mut kill = is_killed.then(|| usual.mul_f64(self.random.random_range(0.0..1.2)));
        self.note(&format!("engine {}", arguments.join(" ")));
        let began = Instant::now();
        let mut process = engine()
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the engine starts");
        loop {
            let has_ended = process.try_wait().expect("it is our child").is_some();
            if kill.is_some_and(|after| after <= began.elapsed()) {
                kill = None;
                self.kill_cluster(tally)?;
            }
            if has_ended && kill.is_none() {
                break;
            }
            if PROCESS_TIMEOUT <= began.elapsed() {
                process.kill().expect("it is our child");
                let output = process.wait_with_output().expect("it is our child");
                return Err(format!("it hung: engine {}: {}", arguments.join(" "), describe(&output)));
            }
            pause(LOOK_EVERY);
        }
        let output = process.wait_with_output().expect("its output is piped");
        self.note(&format!("after {} ms: {}", began.elapsed().as_millis(), describe(&output)));
        let Output { status, stdout, stderr } = output;
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        Ok(if status.success() { Answer::Done(words(&stdout)) } else { Answer::Failed(words(&stderr)) })
    }

    fn kill_cluster(&mut self, tally: &mut Tally) -> Result<(), String> {
        let Some(mut cluster) = self.cluster.take() else { return Ok(()) };
        // Nobody else has killed it.
        if matches!(cluster.life()?, Life::Killed) {
            self.cluster = Some(cluster);
            return Ok(());
        }
        cluster.kill();
        self.note("killed");
        self.count_kill(cluster, tally)
    }

    fn url(&self) -> String {
        self.cluster.as_ref().map_or_else(String::new, |cluster| cluster.url.clone())
    }

    // The jobs.

    /// What the cluster runs.
    ///
    /// # Errors
    /// Returns an error if a job has FAILED or there are two.
    fn active_job(&mut self) -> Result<Active, String> {
        let overview = self.cluster.as_ref().and_then(|cluster| cluster.get("/jobs/overview"));
        let Some(jobs) = overview.as_ref().and_then(|overview| overview["jobs"].as_array()) else {
            self.fails("the cluster does not list its jobs")?;
            return Ok(Active::Unknown);
        };
        let state = |job: &Value| job["state"].as_str().unwrap_or_default().to_owned();
        for failed in jobs.iter().filter(|job| state(job) == "FAILED") {
            match self.result(failed["jid"].as_str().unwrap_or_default()) {
                Some(result) if never_ran(&result) => {}
                Some(result) => return Err(format!("a job FAILED: {result}")),
                None => {
                    self.fails(&format!("a job FAILED, of which there is no result: {failed}"))?;
                    return Ok(Active::Unknown);
                }
            }
        }
        let ended = ["FINISHED", "CANCELED", "FAILED"];
        let active: Vec<_> = jobs.iter().filter(|job| !ended.contains(&state(job).as_str())).collect();
        match active[..] {
            [] if self.unended().is_empty() => Ok(Active::None),
            [] => {
                self.fails(&format!("no job runs, but these are stored and have no result: {:?}", self.unended()))?;
                Ok(Active::Unknown)
            }
            [job] => Ok(Active::One(job["jid"].as_str().unwrap_or_default().to_owned())),
            _ => Err(format!("two jobs write into one directory: {overview:?}")),
        }
    }

    /// Ids of jobs whose graph is stored.
    fn stored(&self) -> BTreeSet<String> {
        names(&self.path("storage/job-graphs"))
            .into_iter()
            .filter_map(|name| Some(name.strip_suffix(".graph")?.to_owned()))
            .collect()
    }

    /// Those that have no result.
    fn unended(&self) -> BTreeSet<String> {
        self.stored().into_iter().filter(|job| self.result(job).is_none()).collect()
    }

    /// How a job ended.
    fn result(&self, job: &str) -> Option<Value> {
        let results = self.path("storage/job-results");
        let read = |suffix: &str| fs::read(results.join(format!("{job}{suffix}"))).ok();
        // It may be renamed between the two.
        let content = read(".json").or_else(|| read("_DIRTY.json")).or_else(|| read(".json"))?;
        let stored: Value = serde_json::from_slice(&content).ok()?;
        Some(stored["result"].clone())
    }

    /// True if the last job has ended; there is none that runs.
    ///
    /// # Errors
    /// Returns an error if there should be one.
    fn has_ended(&self) -> Result<bool, String> {
        let Some(started) = &self.started else { return Ok(false) };
        let result = self.result(&started.id).unwrap_or_default();
        // A slow one can do so, too, if all took long.
        if result["status"] == "FINISHED" && result["stopped-with"].is_null() {
            return Ok(true);
        }
        if started.must_run && !never_ran(&result) {
            return Err(format!("job {} was taken, and runs no more", started.id));
        }
        Ok(false)
    }

    /// Notes which job runs, and with which parallelism; false if the cluster does not say.
    fn has_seen(&mut self, job: &str, tally: &mut Tally) -> bool {
        if self.seen.last().is_some_and(|(id, _)| id == job) {
            return true;
        }
        let details = self.cluster.as_ref().and_then(|cluster| cluster.get(&format!("/jobs/{job}")));
        let vertices = details.as_ref().and_then(|details| details["vertices"].as_array());
        let Some(parallelism) = vertices.into_iter().flatten().filter_map(|it| it["parallelism"].as_u64()).max() else {
            return false;
        };
        if self.seen.last().is_some_and(|(_, before)| *before != parallelism) {
            tally.rescaled += 1;
        }
        self.note(&format!("job {job} runs with parallelism {parallelism}"));
        self.seen.push((job.to_owned(), parallelism));
        if self.started.as_ref().is_none_or(|started| started.id != job) {
            // That of an upgrade that did not come to its end.
            self.started = Some(Started { id: job.to_owned(), is_last: false, must_run: true });
        }
        true
    }

    /// Directories of the savepoints that jobs were stopped with, which are complete, the newest last.
    fn stops(&self) -> Vec<PathBuf> {
        let stops = self.path("stops");
        let with_time = |name: String| {
            let written = fs::metadata(stops.join(&name).join("_metadata")).and_then(|metadata| metadata.modified());
            Some((written.ok()?, stops.join(name)))
        };
        let mut complete: Vec<_> = names(&stops).into_iter().filter_map(with_time).collect();
        complete.sort();
        complete.into_iter().map(|(_, path)| path).collect()
    }

    fn parallelism(&mut self) -> String {
        self.random.random_range(1..=PARALLELISM_MAX).to_string()
    }

    fn program(&self, rate: &str) -> Vec<String> {
        let arguments = self.job.workload.arguments.iter();
        let arguments = arguments.map(|argument| if argument == RATE { rate.to_owned() } else { argument.clone() });
        arguments.chain(["--output".to_owned(), text(&self.job.output()).to_owned()]).collect()
    }

    /// Starts a job where the one before it stopped: no job runs.
    fn start(&mut self, tally: &mut Tally) -> Result<(), String> {
        if self.is_asked && !self.seen.is_empty() {
            // It ended with what it was asked for.
            self.steps.pop_front();
        }
        self.is_asked = false;
        let newest = self.stops().pop();
        let ran = |job: &String| !self.result(job).is_some_and(|result| never_ran(&result));
        if let Some((job, _)) = self.seen.iter().rfind(|(job, _)| ran(job)) {
            let result = self.result(job).unwrap_or_default();
            let stopped_with = result["stopped-with"].as_str();
            if stopped_with.map(Path::new) != newest.as_deref() {
                return Err(format!("job {job} ended so: {result}, but the newest savepoint is {newest:?}"));
            }
        }
        let is_last = self.steps.is_empty();
        let id = format!("{:032x}", self.random.random::<u128>());
        let (url, parallelism) = (self.url(), self.parallelism());
        let settings = [
            format!("execution.checkpointing.interval={}", self.interval),
            format!("execution.checkpointing.num-retained={RETAINED}"),
            "execution.checkpointing.incremental=true".to_owned(),
            "execution.checkpointing.data-inline-threshold=100b".to_owned(),
            "restart-strategy.type=fixed-delay".to_owned(),
            "restart-strategy.fixed-delay.attempts=20".to_owned(),
            "restart-strategy.fixed-delay.delay=10ms".to_owned(),
        ];
        let mut arguments =
            ["submit", "--detached", "--jobmanager", &url, "--job-id", &id, "-p", &parallelism].to_vec();
        settings.iter().for_each(|setting| arguments.extend(["-D", setting]));
        if let Some(newest) = &newest {
            arguments.extend(["--from-savepoint", text(newest)]);
        }
        let plugin = plugin(self.job.workload.plugin);
        arguments.push(text(&plugin));
        let program = self.program(if is_last { RATE } else { SLOW_RATE });
        arguments.extend(program.iter().map(String::as_str));
        self.started = Some(Started { id: id.clone(), is_last, must_run: false });
        match self.command(SUBMIT_TAKES, &arguments, tally)? {
            Answer::Done(_) => {
                self.started = Some(Started { id, is_last, must_run: true });
                self.trying = None;
                Ok(())
            }
            Answer::Failed(why) => {
                pause(RETRY_EVERY);
                self.fails(&format!("no job could be started: {why}"))
            }
        }
    }

    /// Does the next step with the job that runs.
    fn step(&mut self, job: &str, tally: &mut Tally) -> Result<(), String> {
        if self.trying.is_none() {
            pause(Duration::from_millis(self.random.random_range(0..RUN_MAX)));
        }
        // The last one may have been answered by a cluster that did not live to end the job.
        let step = self.steps.front().copied().unwrap_or(Step::Stop);
        let url = self.url();
        let [savepoints, stops, new] = ["savepoints", "stops", "new.wasm"].map(|name| self.path(name));
        let answer = match step {
            Step::Savepoint => {
                self.command(SNAPSHOT_TAKES, &["savepoint", "-m", &url, job, text(&savepoints)], tally)?
            }
            Step::Stop => {
                self.asks_to_end();
                self.command(SNAPSHOT_TAKES, &["stop", "-m", &url, "--savepoint", text(&stops), job], tally)?
            }
            Step::Upgrade => {
                self.asks_to_end();
                fs::copy(plugin(self.job.workload.plugin), &new).expect("the temporary directory is writable");
                let parallelism = self.parallelism();
                // The new version has taken over when it has completed a checkpoint.
                let interval = format!("execution.checkpointing.interval={}", INTERVALS[0]);
                let mut arguments = ["upgrade", "-m", &url, "--savepoint", text(&stops), "-D", &interval].to_vec();
                if self.random.random_bool(0.7) {
                    arguments.extend(["-p", &parallelism]);
                }
                let program = self.program(SLOW_RATE);
                arguments.extend([job, text(&new)]);
                arguments.extend(program.iter().map(String::as_str));
                self.command(UPGRADE_TAKES, &arguments, tally)?
            }
        };
        match answer {
            Answer::Done(said) => {
                self.done(step, &said, tally);
                Ok(())
            }
            Answer::Failed(why) => {
                pause(RETRY_EVERY);
                self.fails(&format!("{step:?} of job {job} fails: {why}"))
            }
        }
    }

    fn asks_to_end(&mut self) {
        self.is_asked = true;
        if let Some(started) = &mut self.started {
            started.must_run = false;
        }
    }

    /// A command was answered.
    fn done(&mut self, step: Step, said: &str, tally: &mut Tally) {
        self.trying = None;
        match step {
            Step::Savepoint => {
                tally.savepoints += 1;
                self.answered.push(said.to_owned());
                self.steps.pop_front();
            }
            // The step is done when no job runs.
            Step::Stop => self.answered.push(said.to_owned()),
            Step::Upgrade => {
                tally.upgrades += 1;
                self.is_asked = false;
                self.steps.pop_front();
                let successor =
                    said.split(" goes on in place of ").next().and_then(|before| before.split(' ').next_back());
                let id = successor.unwrap_or_default().to_owned();
                self.started = Some(Started { id, is_last: false, must_run: true });
            }
        }
    }

    // The end.

    /// Waits until nothing is left of jobs that have ended.
    fn await_cleanup(&mut self, tally: &mut Tally) -> Result<(), String> {
        let mut began = Instant::now();
        loop {
            let before = tally.clusters_killed;
            if !self.has_cluster(tally)? || tally.clusters_killed != before {
                began = Instant::now();
                continue;
            }
            let mut left: Vec<_> = names(&self.path("storage/job-graphs"));
            left.extend(names(&self.path("storage/job-results")).into_iter().filter(|name| name.contains("DIRTY")));
            let checkpoints = self.path("storage/checkpoints");
            let of_job =
                |job: String| names(&checkpoints.join(&job)).into_iter().map(move |name| format!("{job}/{name}"));
            left.extend(names(&checkpoints).into_iter().flat_map(of_job));
            if left.is_empty() {
                return Ok(());
            }
            if CLEANUP_TIMEOUT <= began.elapsed() {
                return Err(format!("{} s after the last job ended, there are {left:?}", CLEANUP_TIMEOUT.as_secs()));
            }
            pause(RETRY_EVERY);
        }
    }

    /// Savepoints outlive the jobs that took them.
    fn check_savepoints(&self) -> Result<(), String> {
        for path in &self.answered {
            let inspected = engine().args(["savepoint", "inspect", path]).output().expect("the engine starts");
            if !inspected.status.success() {
                return Err(format!("a command was answered with \"{path}\": {}", describe(&inspected)));
            }
        }
        Ok(())
    }

    /// Looks at how all jobs have ended.
    fn count_results(&self, tally: &mut Tally) -> Result<(), String> {
        for name in names(&self.path("storage/job-results")) {
            let result = self.result(name.trim_end_matches(".json")).unwrap_or_default();
            let has_failed = result["status"].as_str().is_none_or(|status| status == "FAILED");
            if has_failed && !never_ran(&result) {
                return Err(format!("a job ended so: {result}"));
            }
            tally.stops += u64::from(result["stopped-with"].is_string());
        }
        Ok(())
    }
}

/// What a cluster runs.
enum Active {
    None,
    One(String),
    /// It is not known yet.
    Unknown,
}

/// True of the result of a job that was submitted and met an error of storage, of those that are asked for, when its
/// output was brought to the savepoint: nobody tries that again but who submitted it.
fn never_ran(result: &Value) -> bool {
    let message = result["failure"]["message"].as_str().unwrap_or_default();
    let errors = ["(os error 5)", "(os error 28)", "(os error 30)"];
    message.starts_with("could not bring the output of sink") && errors.iter().any(|error| message.ends_with(error))
}
