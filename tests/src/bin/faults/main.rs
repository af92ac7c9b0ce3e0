//! Kills the engine at every failpoint and at random times, damages its checkpoints, and
//! compares what the jobs wrote in the end with what one thread answers.
//!
//! `faults [--kills N] [--damages N] [--sessions N] [--seed S] [--only WORKLOAD] [--keep]`, after `make build`.
//! A job is a process `engine submit --job-id --state-dir` that is started again until it has
//! FINISHED, or one of those that an `engine cluster` runs, see [`session`]; `--sessions` runs nothing
//! but these. All that is random comes from the seed, but for when a process is killed by the clock.

mod cluster;
mod session;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    fs::{self, File},
    io::Write as _,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{Child, ExitCode, Stdio},
    time::{Duration, Instant},
};

use engine::{
    base::{
        failpoint::{CATALOGUE, VARIABLE},
        stream_element::SnapshotLocation,
    },
    checkpoint::CheckpointStorage,
};
use engine_tests::{engine, nexmark, plugin};
use rand::{Rng, SeedableRng, rngs::StdRng};
use session::run_sessions;

const EVENTS: u64 = 300_000;
const LINES: u64 = 40_000;
const PARALLELISM: u32 = 2;
const CHECKPOINT_INTERVAL: &str = "20ms";
/// Events a second, so that a job lasts for some checkpoints.
const RATE: &str = "600000";
/// Complete checkpoints that are kept, so that a damaged one can be passed over.
const RETAINED: usize = 3;
/// A process that takes longer hangs.
const PROCESS_TIMEOUT: Duration = Duration::from_secs(60);
/// Starts of one job.
const STARTS_MAX: u32 = 60;
/// Kills of one job at random times.
const RANDOM_KILLS_MAX: u32 = 15;
/// Places of files where these errors of the operating system, or that it takes long, must be survived
/// without a new process: a full disk, an fsync or a read that fails, a slow disk.
const STORAGE_FAULTS: [(&str, &[&str]); 20] = [
    ("source.opened", &["EIO"]),
    ("source.read", &["EIO"]),
    ("sink.file.create", &["ENOSPC", "EROFS"]),
    ("sink.file.created", &["EIO"]),
    ("sink.file.write", &["ENOSPC", "EIO"]),
    ("sink.file.written", &["ENOSPC", "EIO"]),
    ("sink.prepare", &["EIO"]),
    ("sink.prepare.synced", &["EIO"]),
    ("sink.prepared", &["EIO"]),
    ("sink.commit", &["EIO"]),
    ("sink.commit.rename", &["ENOSPC", "EIO"]),
    ("sink.commit.renamed", &["EIO"]),
    ("sink.commit.all-renamed", &["EIO"]),
    ("sink.commit.synced", &["ENOSPC", "EIO"]),
    ("checkpoint.file.write", &["ENOSPC", "EROFS"]),
    ("checkpoint.file.complete", &["ENOSPC", "EIO"]),
    ("checkpoint.file.written", &["EIO"]),
    ("checkpoint.metadata.store", &["ENOSPC", "EROFS"]),
    ("checkpoint.metadata.write", &["ENOSPC"]),
    ("checkpoint.metadata.stored", &["EIO"]),
];
/// The signal of a kill; every other one is that of a crash.
const SIGKILL: i32 = 9;
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Sessions of each round.
const SESSIONS_OF_ROUND: u64 = 12;

/// A job and what it must write.
struct Workload {
    name: &'static str,
    plugin: &'static str,
    arguments: Vec<String>,
    /// Rows that it reads.
    records: u64,
    expected: BTreeMap<Vec<u8>, u64>,
    /// Key of a row, and a number that ascends for the key in what one subtask writes.
    order: fn(&str) -> Option<(String, u64)>,
}

/// What is done to a job.
#[derive(Clone, Debug)]
enum Fault {
    /// The process fails by itself where it is told to.
    Failpoint(String),
    /// It is killed after so many milliseconds.
    Clock(u64),
    /// It is killed when the job has so many complete checkpoints.
    Checkpoints(usize),
}

impl Fault {
    fn failpoint(&self) -> Option<&str> {
        match self {
            Self::Failpoint(text) => Some(text),
            Self::Clock(_) | Self::Checkpoints(_) => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Damage {
    FlippedByte,
    Truncated,
    Deleted,
}

/// What became of a process.
struct Run {
    end: End,
    /// How long it took until a checkpoint was complete, or the job.
    recovered: Option<Duration>,
    /// Its failpoint said that it did something.
    struck: bool,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum End {
    Finished,
    /// As planned.
    Killed,
    Failed,
    /// By a signal that nobody planned.
    Crashed(i32),
    /// It did not end by itself in time.
    Hung,
}

#[derive(Default)]
struct Tally {
    jobs: u64,
    records: u64,
    kills: u64,
    /// By failpoint: how often it struck.
    struck: BTreeMap<String, u64>,
    lost: u64,
    duplicated: u64,
    reordered: u64,
    checkpoints: u64,
    /// As the JobMasters say, those that were killed at it included.
    completed: u64,
    /// By reason.
    given_up: BTreeMap<String, u64>,
    /// Errors and delays that were asked for; the place may not be reached so often.
    storage_faults: u64,
    storage_errors: u64,
    storage_delays: u64,
    metadata_removed: u64,
    injected: u64,
    detected: u64,
    recoveries: Vec<Duration>,
    sessions: u64,
    clusters_killed: u64,
    savepoints: u64,
    /// Jobs that ended with a savepoint, upgrades included.
    stops: u64,
    upgrades: u64,
    /// Jobs that went on with another parallelism than the one before.
    rescaled: u64,
    problems: Vec<String>,
}

struct Job<'a> {
    workload: &'a Workload,
    id: String,
    root: PathBuf,
    /// Ids of complete checkpoints that were seen.
    checkpoints: BTreeSet<u64>,
}

impl Tally {
    /// Counts what a process said of its checkpoints.
    fn count_checkpoints(&mut self, said: &str) {
        self.completed += said.lines().filter(|line| line.contains(" checkpoint complete ")).count() as u64;
        for (_, why) in said.lines().filter_map(|line| line.split_once(" checkpoint given up: ")) {
            let reason = why.split(" job=").next().unwrap_or_default().split(':').next().unwrap_or_default();
            *self.given_up.entry(reason.to_owned()).or_default() += 1;
        }
    }
}

fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "another process is watched, which sends no message")]
    std::thread::sleep(time);
}

impl<'a> Job<'a> {
    fn new(workload: &'a Workload, root: &Path, random: &mut StdRng) -> Self {
        let id = format!("{:032x}", random.random::<u128>());
        let root = root.join(&id);
        fs::create_dir_all(&root).expect("the temporary directory is writable");
        Self { workload, id, root, checkpoints: BTreeSet::new() }
    }

    fn output(&self) -> PathBuf {
        self.root.join("out")
    }

    fn log(&self) -> PathBuf {
        self.root.join("log")
    }

    /// What the processes said from this length of the log on.
    fn said(&self, from: usize) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        String::from_utf8_lossy(&log[from.min(log.len())..]).into_owned()
    }

    /// True if the job's end is durable: its checkpoints are not read any more.
    fn has_ended(&self) -> bool {
        let results = fs::read_dir(self.root.join("state/job-results"));
        results
            .is_ok_and(|results| results.flatten().any(|entry| !entry.file_name().to_string_lossy().starts_with('.')))
    }

    /// Directory of the job's checkpoints.
    fn checkpoint_directory(&self) -> PathBuf {
        self.root.join("state/checkpoints").join(&self.id)
    }

    fn spawn(&self, failpoints: Option<&str>) -> Child {
        let log = File::options().create(true).append(true).open(self.log()).expect("writable");
        let mut command = engine();
        command.args(["submit", "--job-id", &self.id, "--state-dir"]).arg(self.root.join("state"));
        command.args(["--log-level", "info", "-p", &PARALLELISM.to_string()]);
        for setting in [
            &format!("execution.checkpointing.interval={CHECKPOINT_INTERVAL}"),
            &format!("execution.checkpointing.num-retained={RETAINED}"),
            "execution.checkpointing.incremental=true",
            // Also small state is in files of its own, which can be damaged.
            "execution.checkpointing.data-inline-threshold=100b",
            "restart-strategy.type=fixed-delay",
            "restart-strategy.fixed-delay.attempts=20",
            "restart-strategy.fixed-delay.delay=10ms",
        ] {
            command.args(["-D", setting]);
        }
        if let Some(failpoints) = failpoints {
            command.arg("--failpoints").env(VARIABLE, failpoints);
        }
        command.arg(plugin(self.workload.plugin)).args(&self.workload.arguments).arg("--output").arg(self.output());
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("cloned")).stderr(log);
        command.spawn().expect("the engine starts")
    }

    /// Notes the complete checkpoints that are there.
    fn look(&mut self) {
        for entry in fs::read_dir(self.checkpoint_directory()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(id) = name.strip_prefix("chk-").and_then(|id| id.parse().ok())
                && entry.path().join("_metadata").exists()
            {
                self.checkpoints.insert(id);
            }
        }
    }

    /// Runs one process to its end.
    fn run(&mut self, fault: Option<&Fault>, tally: &mut Tally) -> Run {
        let from = fs::metadata(self.log()).map_or(0, |log| usize::try_from(log.len()).unwrap_or(usize::MAX));
        let (end, recovered) = self.run_process(fault);
        let said = self.said(from);
        tally.count_checkpoints(&said);
        let name = fault.and_then(Fault::failpoint).and_then(|text| text.split('=').next());
        let struck = name.is_some_and(|name| said.contains(&format!("failpoint {name}: ")));
        let is_planned = end != End::Killed || struck || !matches!(fault, Some(Fault::Failpoint(_)));
        Run { end: if is_planned { end } else { End::Crashed(SIGKILL) }, recovered, struck }
    }

    fn run_process(&mut self, fault: Option<&Fault>) -> (End, Option<Duration>) {
        let failpoints = fault.and_then(Fault::failpoint);
        let (last, began) = (self.checkpoints.last().copied(), Instant::now());
        let mut child = self.spawn(failpoints);
        let mut recovered = None;
        loop {
            self.look();
            let running = began.elapsed();
            if recovered.is_none() && self.checkpoints.last().copied() > last {
                recovered = Some(running);
            }
            if let Some(status) = child.try_wait().expect("it is our child") {
                let end = match (status.code(), status.signal()) {
                    (Some(0), _) => End::Finished,
                    (_, Some(SIGKILL)) if failpoints.is_some() => End::Killed,
                    (_, Some(signal)) => End::Crashed(signal),
                    _ => End::Failed,
                };
                return (end, recovered.or((end == End::Finished).then_some(running)));
            }
            let kills = match fault {
                Some(Fault::Clock(millis)) => Duration::from_millis(*millis) <= running,
                Some(Fault::Checkpoints(count)) => *count <= self.checkpoints.len(),
                Some(Fault::Failpoint(_)) | None => false,
            };
            if kills || PROCESS_TIMEOUT <= running {
                child.kill().expect("it is our child");
                child.wait().expect("it is our child");
                self.look();
                return (if kills { End::Killed } else { End::Hung }, recovered);
            }
            pause(LOOK_EVERY);
        }
    }

    /// Starts the job until it has ended, with these faults first. What of them are kills is counted.
    fn run_to_the_end(&mut self, faults: &[Fault], tally: &mut Tally) -> Option<End> {
        let mut faults = faults.iter();
        let mut was_killed = false;
        for _ in 0..STARTS_MAX {
            let fault = faults.next();
            let Run { end, recovered, struck } = self.run(fault, tally);
            if let (true, Some(Fault::Failpoint(text))) = (struck, fault) {
                match text.split_once('=') {
                    Some((_, action)) if action.starts_with("error") => tally.storage_errors += 1,
                    Some((_, action)) if action.starts_with("delay") => tally.storage_delays += 1,
                    _ => {}
                }
            }
            if was_killed {
                tally.recoveries.extend(recovered);
            }
            match (end, fault) {
                (End::Killed, Some(fault)) => {
                    tally.kills += 1;
                    was_killed = true;
                    if let Fault::Failpoint(text) = fault {
                        let name = text.split('=').next().unwrap_or_default();
                        *tally.struck.entry(name.to_owned()).or_default() += 1;
                    }
                }
                (End::Finished | End::Failed, _) => return Some(end),
                (End::Killed | End::Hung | End::Crashed(_), _) => {
                    self.problem(tally, &format!("a process {end:?} under {fault:?}"));
                    return None;
                }
            }
        }
        self.problem(tally, &format!("it did not end with {STARTS_MAX} starts"));
        None
    }

    fn problem(&self, tally: &mut Tally, problem: &str) {
        let text = format!("{} {}: {problem}; see {}", self.workload.name, self.id, self.log().display());
        eprintln!("{text}");
        tally.problems.push(text);
    }

    /// Rows of each subtask, in the order in which it wrote them.
    fn rows(&self) -> BTreeMap<u64, Vec<Vec<u8>>> {
        let mut parts = Vec::new();
        for entry in fs::read_dir(self.output()).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let Some(numbers) = name.strip_prefix("part-") else { continue };
            let mut numbers = numbers.split('-').map_while(|number| number.parse::<u64>().ok());
            let (subtask, checkpoint) = (numbers.next().unwrap_or(u64::MAX), numbers.next().unwrap_or(u64::MAX));
            parts.push(((subtask, checkpoint), fs::read(entry.path()).unwrap_or_default()));
        }
        parts.sort();
        let mut rows = BTreeMap::<u64, Vec<Vec<u8>>>::new();
        for ((subtask, _), content) in parts {
            let lines = content.split_inclusive(|byte| *byte == b'\n').map(<[u8]>::to_vec);
            rows.entry(subtask).or_default().extend(lines);
        }
        rows
    }

    /// Hidden files of the output that a savepoint names: they stay for a job that starts from it.
    fn kept_for_savepoints(&self) -> BTreeSet<String> {
        let mut kept = BTreeSet::new();
        let (savepoints, output) = (self.root.join("savepoints"), self.output());
        for name in names(&savepoints) {
            let location = SnapshotLocation(savepoints.join(name).to_string_lossy().into_owned());
            let Ok((_, metadata)) = CheckpointStorage::open_snapshot(&location) else { continue };
            let prefix = format!(".savepoint-{}-", metadata.checkpoint_id);
            for list in names(&output).into_iter().filter(|name| name.starts_with(&prefix)) {
                let parts = fs::read_to_string(output.join(&list)).unwrap_or_default();
                kept.extend(parts.lines().map(str::to_owned));
                kept.insert(list);
            }
        }
        kept
    }

    /// Compares the output of a job that has FINISHED.
    fn check(&self, tally: &mut Tally) {
        let rows = self.rows();
        let mut found = BTreeMap::<&[u8], u64>::new();
        rows.values().flatten().for_each(|row| *found.entry(row).or_default() += 1);
        let expected = &self.workload.expected;
        let count = |row: &[u8]| found.get(row).copied().unwrap_or(0);
        let lost: u64 = expected.iter().map(|(row, wanted)| wanted.saturating_sub(count(row))).sum();
        let wanted = |row: &[u8]| expected.get(row).copied().unwrap_or(0);
        let duplicated: u64 = found.iter().map(|(row, found)| found.saturating_sub(wanted(row))).sum();
        let mut reordered = 0;
        for rows in rows.values() {
            let mut last = BTreeMap::<String, u64>::new();
            for (key, number) in rows.iter().filter_map(|row| (self.workload.order)(std::str::from_utf8(row).ok()?)) {
                let before = last.insert(key, number);
                reordered += u64::from(before.is_some_and(|before| number < before));
            }
        }
        let kept = self.kept_for_savepoints();
        let hidden = names(&self.output()).iter().filter(|name| name.starts_with('.') && !kept.contains(*name)).count();
        if 0 < lost + duplicated + reordered || 0 < hidden {
            let text =
                format!("{lost} lost, {duplicated} duplicated, {reordered} reordered, {hidden} hidden files left");
            self.problem(tally, &text);
        }
        tally.lost += lost;
        tally.duplicated += duplicated;
        tally.reordered += reordered;
    }

    /// Ends the accounts of a job, and removes it unless something was wrong.
    fn close(self, end: Option<End>, tally: &mut Tally, keep: bool) {
        let problems = tally.problems.len();
        tally.jobs += 1;
        tally.records += self.workload.records;
        tally.checkpoints += self.checkpoints.len() as u64;
        match end {
            Some(End::Finished) => self.check(tally),
            Some(_) => self.problem(tally, "it FAILED"),
            None => {}
        }
        if !keep && problems == tally.problems.len() && end == Some(End::Finished) {
            fs::remove_dir_all(&self.root).expect("the temporary directory is writable");
        }
    }

    /// Files of the newest complete checkpoint: its metadata, and those that were written for it.
    fn newest_files(&self) -> Vec<PathBuf> {
        let directory = self.checkpoint_directory();
        let there = self.checkpoints.iter().rev().find(|id| directory.join(format!("chk-{id}/_metadata")).exists());
        let Some(id) = there else { return Vec::new() };
        let of_checkpoint = |path: &PathBuf| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{id}-"))
        };
        let shared = fs::read_dir(directory.join("shared")).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<_> = shared.filter(of_checkpoint).collect();
        files.sort();
        files.push(directory.join(format!("chk-{id}/_metadata")));
        files
    }
}

/// Names of what is in a directory, sorted.
fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn damage(path: &Path, damage: Damage, random: &mut StdRng) {
    let mut content = fs::read(path).expect("it was listed");
    match damage {
        Damage::Deleted => return fs::remove_file(path).expect("the temporary directory is writable"),
        Damage::FlippedByte => {
            let at = random.random_range(0..content.len());
            content[at] ^= 1 << random.random_range(0..8);
        }
        Damage::Truncated => content.truncate(random.random_range(0..content.len())),
    }
    fs::write(path, content).expect("the temporary directory is writable");
}

fn counted(rows: impl IntoIterator<Item = Vec<u8>>) -> BTreeMap<Vec<u8>, u64> {
    let mut counts = BTreeMap::new();
    rows.into_iter().for_each(|row| *counts.entry(row).or_default() += 1);
    counts
}

fn column(row: &str, index: usize) -> Option<&str> {
    row.trim_end().split(',').nth(index)
}

fn workloads(root: &Path) -> Vec<Workload> {
    let (words, events) = (root.join("words"), root.join("events"));
    let mut text = Vec::new();
    engine_benches::write_words(LINES, 7, &mut text).expect("memory can be written");
    fs::write(&words, &text).expect("the temporary directory is writable");
    let mut counts = BTreeMap::<&str, u64>::new();
    let mut updates = BTreeMap::new();
    for word in std::str::from_utf8(&text).expect("words are ASCII").split_ascii_whitespace() {
        let count = counts.entry(word).or_default();
        *count += 1;
        updates.insert(format!("{word},{count}\n").into_bytes(), 1);
    }
    let mut event_text = Vec::new();
    engine_benches::write_nexmark(0..EVENTS, &mut event_text).expect("memory can be written");
    fs::write(&events, &event_text).expect("the temporary directory is writable");
    let parsed = nexmark::parse(&event_text);
    let input = |path: &Path| vec!["--input".to_owned(), path.to_str().expect("UTF-8").to_owned()];
    let query = |name: &'static str, order: fn(&str) -> Option<(String, u64)>| Workload {
        name,
        plugin: "nexmark",
        arguments: [["--query", name, "--rate", RATE].map(str::to_owned).to_vec(), input(&events)].concat(),
        records: EVENTS,
        expected: counted(nexmark::answer(name, &parsed)),
        order,
    };
    vec![
        Workload {
            name: "word count",
            plugin: "word_count",
            arguments: [input(&words), vec!["--updates".to_owned()]].concat(),
            records: LINES,
            expected: updates,
            order: |row| Some((column(row, 0)?.to_owned(), column(row, 1)?.parse().ok()?)),
        },
        // One row for each category.
        query("q4", |_| None),
        // Windows end in the order of their time.
        query("q5", |row| Some((String::new(), column(row, 0)?.parse().ok()?))),
        query("q11", |row| Some((column(row, 0)?.to_owned(), column(row, 2)?.parse().ok()?))),
    ]
}

struct Options {
    kills: u64,
    damages: u64,
    /// Nothing but so many sessions.
    sessions: Option<u64>,
    seed: u64,
    only: Option<String>,
    keep: bool,
}

fn options() -> Result<Options, String> {
    let mut options = Options { kills: 1000, damages: 60, sessions: None, seed: 1, only: None, keep: false };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        if option == "--keep" {
            options.keep = true;
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        let number =
            || value.parse::<u64>().map_err(|_| format!("{option}: expected a whole number, found \"{value}\""));
        match option.as_str() {
            "--kills" => options.kills = number()?,
            "--damages" => options.damages = number()?,
            "--sessions" => options.sessions = Some(number()?),
            "--seed" => options.seed = number()?,
            "--only" => options.only = Some(value),
            _ => {
                let known = "--kills, --damages, --sessions, --seed, --only, --keep";
                return Err(format!("there is no option {option}: use {known}"));
            }
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let options = match options() {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("error: {problem}");
            return ExitCode::from(2);
        }
    };
    let root = tempfile::Builder::new().prefix("faults-").tempdir().expect("there is a temporary directory");
    let path = root.path().to_owned();
    let mut workloads = workloads(&path);
    workloads.retain(|workload| options.only.as_deref().is_none_or(|only| workload.name == only));
    let mut random = StdRng::seed_from_u64(options.seed);
    let mut tally = Tally::default();
    match options.sessions {
        Some(count) => run_sessions(&workloads, count, &path, &mut random, &mut tally, &options),
        None => run_all(&workloads, &path, &mut random, &mut tally, &options),
    }
    println!("{tally}");
    let never: Vec<_> =
        CATALOGUE.iter().map(|(name, _)| *name).filter(|name| !tally.struck.contains_key(*name)).collect();
    println!("failpoints that were never reached by these jobs: {}", never.join(", "));
    std::io::stdout().flush().expect("there is somebody who reads");
    if tally.problems.is_empty() {
        if options.keep {
            println!("all is kept in {}", root.keep().display());
        }
        return ExitCode::SUCCESS;
    }
    println!("{} problems; all is kept in {}", tally.problems.len(), root.keep().display());
    ExitCode::FAILURE
}

/// Kills at each failpoint, by the clock and in sessions until the kills are enough, then damages storage.
fn run_all(workloads: &[Workload], root: &Path, random: &mut StdRng, tally: &mut Tally, options: &Options) {
    let mut lasts = Vec::new();
    for workload in workloads {
        let (mut job, began) = (Job::new(workload, root, random), Instant::now());
        let end = job.run_to_the_end(&[], tally);
        lasts.push(u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX).max(2));
        println!(
            "{}: undisturbed {end:?} in {:?}, {} checkpoints",
            workload.name,
            began.elapsed(),
            job.checkpoints.len()
        );
        job.close(end, tally, options.keep);
    }
    let mut round = 0_u64;
    while tally.kills < options.kills && tally.problems.len() < 20 {
        kill_at_failpoints(workloads, round, root, random, tally, options);
        kill_by_the_clock(workloads, &lasts, root, random, tally, options);
        run_sessions(workloads, SESSIONS_OF_ROUND, root, random, tally, options);
        round += 1;
        println!("after round {round}: {} kills, {} problems", tally.kills, tally.problems.len());
        if round == 100 {
            break;
        }
    }
    fail_storage(workloads, root, random, tally, options);
    println!("after errors and delays of storage: {} problems", tally.problems.len());
    // A job may end before it could be damaged.
    for number in 0..4 * options.damages {
        if options.damages <= tally.injected + tally.metadata_removed {
            break;
        }
        damage_checkpoints(workloads, number, root, random, tally, options);
    }
}

/// Each failpoint in turn, with one job each and up to three processes that meet it.
fn kill_at_failpoints(
    workloads: &[Workload],
    round: u64,
    root: &Path,
    random: &mut StdRng,
    tally: &mut Tally,
    options: &Options,
) {
    for (index, (name, _)) in CATALOGUE.iter().enumerate() {
        if options.kills <= tally.kills {
            return;
        }
        let workload = &workloads[(index + usize::try_from(round).unwrap_or(0)) % workloads.len()];
        let is_write = ["sink.file.write", "storage.write", "checkpoint.metadata.write"].contains(name);
        // Places that only a process meets which goes on from a checkpoint.
        let is_recovery = name.starts_with("restore.") || name.starts_with("sink.recover");
        let first = is_recovery.then(|| Fault::Failpoint("task.notified=kill@1".to_owned()));
        let faults: Vec<_> = first
            .into_iter()
            .chain((0..3).map(|_| {
                let action = if is_write && random.random_bool(0.5) { "torn" } else { "kill" };
                // Mostly early: some places are reached once in a job.
                let time = if random.random_bool(0.6) { 1 } else { random.random_range(1..12) };
                Fault::Failpoint(format!("{name}={action}@{time}"))
            }))
            .collect();
        let mut job = Job::new(workload, root, random);
        let end = job.run_to_the_end(&faults, tally);
        job.close(end, tally, options.keep);
    }
}

/// A job of each kind, killed again and again whatever it does.
fn kill_by_the_clock(
    workloads: &[Workload],
    lasts: &[u64],
    root: &Path,
    random: &mut StdRng,
    tally: &mut Tally,
    options: &Options,
) {
    for (workload, last) in workloads.iter().zip(lasts) {
        if options.kills <= tally.kills {
            return;
        }
        let kills = random.random_range(1..=RANDOM_KILLS_MAX);
        let faults: Vec<_> = (0..kills).map(|_| Fault::Clock(random.random_range(1..=*last))).collect();
        let mut job = Job::new(workload, root, random);
        let end = job.run_to_the_end(&faults, tally);
        job.close(end, tally, options.keep);
    }
}

/// Errors and delays where files are used: the job must survive them within its process.
fn fail_storage(workloads: &[Workload], root: &Path, random: &mut StdRng, tally: &mut Tally, options: &Options) {
    for (index, (name, errors)) in STORAGE_FAULTS.iter().enumerate() {
        let errors = errors.iter().map(|error| format!("error({error})"));
        for action in errors.chain(["delay(300)".to_owned()]) {
            let workload = &workloads[index % workloads.len()];
            let time = random.random_range(1..4);
            let mut job = Job::new(workload, root, random);
            let end = job.run_to_the_end(&[Fault::Failpoint(format!("{name}={action}@{time}"))], tally);
            tally.storage_faults += 1;
            job.close(end, tally, options.keep);
        }
    }
}

/// Damages a file of the newest checkpoint of a killed job, which must tell of it and go on from an older one.
fn damage_checkpoints(
    workloads: &[Workload],
    number: u64,
    root: &Path,
    random: &mut StdRng,
    tally: &mut Tally,
    options: &Options,
) {
    let index = usize::try_from(number).unwrap_or(0) % workloads.len();
    let mut job = Job::new(&workloads[index], root, random);
    let kind = [Damage::FlippedByte, Damage::Truncated, Damage::Deleted][usize::try_from(number / 4 % 3).unwrap_or(0)];
    let count = random.random_range(2..5);
    let end = job.run(Some(&Fault::Checkpoints(count)), tally).end;
    let killed = end == End::Killed;
    tally.kills += u64::from(killed);
    if matches!(end, End::Crashed(_) | End::Hung) {
        job.problem(tally, &format!("a process {end:?} before anything was damaged"));
    }
    let files = if killed { job.newest_files() } else { Vec::new() };
    if job.checkpoints.len() < 2 || files.is_empty() || job.has_ended() {
        // It ended before it could be damaged.
        let end = job.run_to_the_end(&[], tally);
        return job.close(end, tally, options.keep);
    }
    let file = &files[random.random_range(0..files.len())];
    let from = fs::read(job.log()).unwrap_or_default().len();
    damage(file, kind, random);
    if matches!(kind, Damage::Deleted) && file.ends_with("_metadata") {
        // Without metadata it is one that was never complete: nothing can be told of it, and the rows
        // must be right all the same.
        tally.metadata_removed += 1;
        let end = job.run_to_the_end(&[], tally);
        return job.close(end, tally, options.keep);
    }
    tally.injected += 1;
    let end = job.run_to_the_end(&[], tally);
    let said = job.said(from);
    let warned: Vec<_> = said.lines().filter(|line| line.contains(" WARN ")).collect();
    let words = ["damaged", "missing", "No such file", "not found"];
    if warned.iter().any(|line| words.iter().any(|word| line.contains(word))) {
        tally.detected += 1;
    } else {
        job.problem(tally, &format!("{kind:?} {} was not told of", file.display()));
    }
    job.close(end, tally, options.keep);
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut times = self.recoveries.clone();
        times.sort_unstable();
        let at = |share: f64| {
            let place = ((times.len() as f64 * share) as usize).min(times.len().saturating_sub(1));
            times.get(place).map_or_else(|| "-".to_owned(), |time| format!("{} ms", time.as_millis()))
        };
        let struck: u64 = self.struck.values().sum();
        let rows = [
            ("jobs", self.jobs.to_string()),
            ("kills", self.kills.to_string()),
            ("of them at failpoints", format!("{struck}, at {} of {}", self.struck.len(), CATALOGUE.len())),
            ("records read by the jobs, repetitions aside", self.records.to_string()),
            ("rows lost", self.lost.to_string()),
            ("rows duplicated", self.duplicated.to_string()),
            ("rows reordered within a key", self.reordered.to_string()),
            ("checkpoints seen complete", self.checkpoints.to_string()),
            ("completed, as the log says", self.completed.to_string()),
            ("given up", self.given_up.values().sum::<u64>().to_string()),
            (
                "errors of storage that struck, delays, of so many asked for",
                format!("{}, {}, {}", self.storage_errors, self.storage_delays, self.storage_faults),
            ),
            ("files damaged", self.injected.to_string()),
            ("of them detected", self.detected.to_string()),
            ("checkpoints that lost their metadata, passed over", self.metadata_removed.to_string()),
            ("sessions with a cluster, each counted as a job", self.sessions.to_string()),
            ("kills of clusters", self.clusters_killed.to_string()),
            ("savepoints taken", self.savepoints.to_string()),
            ("stops with savepoint, those of upgrades included", self.stops.to_string()),
            ("upgrades", self.upgrades.to_string()),
            ("jobs that went on with another parallelism", self.rescaled.to_string()),
            ("process start to next checkpoint, p50", at(0.5)),
            ("p99", at(0.99)),
            ("longest", at(1.0)),
        ];
        writeln!(formatter, "\n| what | |\n|---|---|")?;
        let reasons = self.given_up.iter().map(|(reason, count)| (format!("given up: {reason}"), count.to_string()));
        let rows = rows.into_iter().map(|(what, value)| (what.to_owned(), value)).chain(reasons);
        rows.into_iter().try_for_each(|(what, value)| writeln!(formatter, "| {what} | {value} |"))
    }
}
