//! Places in the code at which the process can be made to fail, for tests of recovery.
//!
//! They are compiled into every build: the program that is tested is the one that is used, and
//! there is one profile. They are off unless the process is started as `engine --failpoints`, and
//! then do what the environment variable `ENGINE_FAILPOINTS` says; the variable alone does
//! nothing, so that none of it can happen by accident. While they are off, a place costs one
//! relaxed load of a flag, and none stands where records are handled one by one.
//!
//! ```text
//! ENGINE_FAILPOINTS="sink.commit.renamed=kill@3;checkpoint.stored=delay(200)"
//! NAME=ACTION       at the first time that the place is reached
//! NAME=ACTION@N     at the Nth time
//! NAME=ACTION@N+    at the Nth time and each one after it
//! ```
//!
//! | action      | what happens                                                               |
//! |-------------|----------------------------------------------------------------------------|
//! | `kill`      | the process kills itself with SIGKILL: nothing is flushed or dropped       |
//! | `panic`     | the thread panics                                                          |
//! | `error`     | the place fails; panics where no error can be returned                     |
//! | `error(NAME)` | it fails as the operating system does: `ENOSPC`, `EIO`, `EROFS`          |
//! | `delay(MS)` | the thread waits so many milliseconds                                      |
//! | `torn`      | where bytes are written: half of them are, and the process ends; elsewhere as `kill` |
//!
//! Each time that a place does something, standard error says so first: `failpoint NAME: ACTION`.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::{
    io::Errno,
    process::{Signal, getpid, kill_process},
};

use super::config::nearest;

/// The variable that says what fails.
pub const VARIABLE: &str = "ENGINE_FAILPOINTS";

/// Every place, with what has been done when it is reached.
pub const CATALOGUE: &[(&str, &str)] = &[
    ("source.listed", "an enumerator has listed its input"),
    ("source.opened", "a reader has opened a file"),
    ("source.read", "a reader has read a block, of which no row was returned"),
    ("source.dealt", "a split is about to go to a task, after the checkpoint or before it"),
    ("source.polled", "rows were read, and none of them processed"),
    ("task.deploy", "a task is about to be deployed, with what it goes on from"),
    ("task.start", "a task has restored its state and processed nothing"),
    ("task.snapshot", "a task has all barriers of a checkpoint, and done nothing for it"),
    ("task.snapshot.prepared", "its sinks are prepared, and no barrier is sent on"),
    ("task.snapshot.barrier-sent", "the barrier is sent on, and no state is taken"),
    ("task.snapshot.source", "the position of a source is about to be taken"),
    ("task.snapshot.plugin", "a plugin is about to write its state to the engine"),
    ("task.snapshot.taken", "all state is taken, and nothing of it written"),
    ("task.notify", "an operator is about to be told that a checkpoint is complete"),
    ("task.notified", "all operators of the task were told"),
    ("task.end-of-data", "a task has processed all its input, and told nobody"),
    ("task.finish", "a task is about to be FINISHED"),
    ("barrier.first", "the first barrier of a checkpoint has come to a task"),
    ("barrier.aligned", "the last one has"),
    ("snapshot.write", "state that was taken is about to be written"),
    ("snapshot.written", "it is written and not acknowledged"),
    ("snapshot.acknowledged", "the acknowledgement is on its way"),
    ("checkpoint.begun", "a checkpoint has a number, and no enumerator was asked"),
    ("checkpoint.triggered", "its sources were triggered"),
    ("checkpoint.acknowledged", "a task has acknowledged it"),
    ("checkpoint.all-acknowledged", "all have, and its metadata is not put together"),
    ("checkpoint.metadata.store", "its metadata is about to be stored"),
    ("checkpoint.metadata.write", "bytes of it are about to be written"),
    ("checkpoint.metadata.stored", "it is stored, and nobody knows"),
    ("checkpoint.complete", "the checkpoint is complete, and nothing committed"),
    ("checkpoint.notify", "its output is committed, and no task was told"),
    ("checkpoint.file.write", "a file of a checkpoint is about to be written"),
    ("checkpoint.file.complete", "all of it was handed over, and it is about to be flushed and renamed"),
    ("checkpoint.file.written", "it is written, and nothing refers to it"),
    ("checkpoint.file.delete", "a file that no checkpoint refers to is about to be deleted"),
    ("checkpoint.metadata.delete", "the metadata of an old checkpoint is about to be deleted"),
    ("checkpoint.metadata.deleted", "it is deleted, and its files are there"),
    ("checkpoint.delete-all", "all checkpoints of a job that has ended are about to be deleted"),
    ("restore.loaded", "the stored checkpoints are read, and none is restored"),
    ("sink.file.create", "a writer is about to make a hidden file"),
    ("sink.file.created", "it is made and empty"),
    ("sink.file.write", "rows are about to be written into it"),
    ("sink.file.written", "they are written and not durable"),
    ("sink.prepare", "a writer is about to complete its file for a checkpoint"),
    ("sink.prepare.synced", "the file is durable, its name is not"),
    ("sink.prepared", "both are, and the committable is not in the snapshot"),
    ("sink.claim", "a committer is about to claim its directory"),
    ("sink.claimed", "it has claimed it"),
    ("sink.commit", "a committer is about to make the parts of a checkpoint visible"),
    ("sink.commit.rename", "it is about to rename one"),
    ("sink.commit.renamed", "it has renamed one, and others may follow"),
    ("sink.commit.all-renamed", "all are renamed, which is not durable"),
    ("sink.commit.synced", "it is, and the claim does not say so"),
    ("sink.committed", "the claim says that the checkpoint is visible"),
    ("sink.recover", "a committer is about to bring its directory back to a checkpoint"),
    ("sink.recover.claimed", "it has looked at it and claimed it"),
    ("sink.recover.removed", "later parts are removed, and those of the checkpoint not yet renamed"),
    ("sink.recovered", "the directory is as it was at the checkpoint"),
    ("sink.remove", "a part file is about to be removed"),
    ("sink.release", "a committer is about to give its directory free"),
    ("sink.released", "it is free"),
    ("checkpoint.notified", "the tasks are told"),
    ("restore.connectors", "sources and sinks are brought there, and no task runs"),
    ("network.send", "a producer is about to put an element into a queue"),
    ("network.send.barrier", "that is a barrier"),
    ("network.receive", "a consumer has taken an element out of its queue"),
    ("network.receive.barrier", "that is a barrier"),
    ("storage.write", "a file of the control plane is about to be written under a temporary name"),
    ("storage.written", "it is written and not durable"),
    ("storage.synced", "it is durable and not renamed"),
    ("storage.renamed", "it is renamed, which is not durable"),
    ("storage.stored", "it is durable under its name"),
    ("storage.remove", "a file of the control plane is about to be removed"),
    ("storage.removed", "it is removed, which is not durable"),
    ("job-graph.put", "the graph of a job is about to be stored"),
    ("job-graph.stored", "it is stored, and the client not answered"),
    ("job-graph.remove", "the graph of a job that has ended is about to be removed"),
    ("job-result.dirty", "the result of a job is about to be stored, before it is cleaned up"),
    ("job-result.stored", "it is stored, and nothing cleaned up"),
    ("job-result.clean", "all is cleaned up, which is about to be noted"),
];

/// Reaches a place: `failpoint!("sink.commit")` returns `io::Result<()>`;
/// `failpoint!("network.send", infallible)` returns nothing, and an `error` there is a panic.
#[macro_export]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::base::failpoint::reached($name)
    };
    ($name:literal, infallible) => {
        $crate::base::failpoint::reached($name).expect("an error was asked for where none can be returned")
    };
}

static ON: AtomicBool = AtomicBool::new(false);
static ARMED: Mutex<Failpoints> = Mutex::new(Failpoints(BTreeMap::new()));

/// What a place does.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Action {
    Kill,
    Panic,
    Error,
    /// By the number of the operating system.
    OsError(i32),
    Delay(Duration),
    Torn,
}

#[derive(Debug)]
struct Armed {
    action: Action,
    /// Which time it acts, from 1.
    time: u64,
    /// Each time after it, too.
    and_after: bool,
    reached: u64,
}

/// The places that do something, by name.
#[derive(Debug, Default)]
struct Failpoints(BTreeMap<String, Armed>);

impl Failpoints {
    fn parse(text: &str) -> Result<Self, String> {
        let mut points = BTreeMap::new();
        for entry in text.split(';').map(str::trim).filter(|entry| !entry.is_empty()) {
            let wrong =
                || format!("{VARIABLE}: expected NAME=ACTION, NAME=ACTION@N or NAME=ACTION@N+, found \"{entry}\"");
            let (name, action) = entry.split_once('=').ok_or_else(wrong)?;
            let names = || CATALOGUE.iter().map(|(name, _)| *name);
            if !names().any(|known| known == name) {
                let hint =
                    nearest(name, names()).map_or_else(String::new, |near| format!(", did you mean \"{near}\"?"));
                return Err(format!("{VARIABLE}: there is no failpoint \"{name}\"{hint}"));
            }
            let (action, time) = action.split_once('@').unwrap_or((action, "1"));
            let (time, and_after) = time.strip_suffix('+').map_or((time, false), |time| (time, true));
            let time = time.parse().ok().filter(|time| 0 < *time).ok_or_else(wrong)?;
            let action = Action::parse(action).ok_or_else(|| {
                format!(
                    "{VARIABLE}: expected kill, panic, error, error(ENOSPC), error(EIO), error(EROFS), delay(MS) or \
                     torn, found \"{action}\""
                )
            })?;
            points.insert(name.to_owned(), Armed { action, time, and_after, reached: 0 });
        }
        Ok(Self(points))
    }

    /// Counts a place and says what it does this time.
    fn reach(&mut self, name: &str) -> Option<Action> {
        let armed = self.0.get_mut(name)?;
        armed.reached += 1;
        let acts = armed.reached == armed.time || (armed.and_after && armed.time < armed.reached);
        acts.then_some(armed.action)
    }
}

impl Action {
    fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "kill" => Self::Kill,
            "panic" => Self::Panic,
            "error" => Self::Error,
            "torn" => Self::Torn,
            "error(ENOSPC)" => Self::OsError(Errno::NOSPC.raw_os_error()),
            "error(EIO)" => Self::OsError(Errno::IO.raw_os_error()),
            "error(EROFS)" => Self::OsError(Errno::ROFS.raw_os_error()),
            _ => {
                let millis = text.strip_prefix("delay(")?.strip_suffix(')')?;
                Self::Delay(Duration::from_millis(millis.parse().ok()?))
            }
        })
    }
}

/// Turns the places on, with what [`VARIABLE`] says.
///
/// # Errors
/// Returns what is wrong with it.
pub fn turn_on(text: &str) -> Result<(), String> {
    *ARMED.lock().unwrap_or_else(PoisonError::into_inner) = Failpoints::parse(text)?;
    ON.store(true, Ordering::Relaxed);
    Ok(())
}

/// See [`failpoint!`].
///
/// # Errors
/// Returns an error if one was asked for.
#[inline]
pub fn reached(name: &'static str) -> io::Result<()> {
    if ON.load(Ordering::Relaxed) { act(name) } else { Ok(()) }
}

/// Reaches a place at which bytes are written, of which only a part may be.
///
/// # Errors
/// Returns an error if one was asked for, or `write` does.
#[inline]
pub fn write(name: &'static str, bytes: &[u8], write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
    if !ON.load(Ordering::Relaxed) {
        return write(bytes);
    }
    match reach(name) {
        Some(Action::Torn) => {
            write(&bytes[..bytes.len() / 2])?;
            end()
        }
        action => {
            perform(name, action)?;
            write(bytes)
        }
    }
}

fn reach(name: &str) -> Option<Action> {
    let action = ARMED.lock().unwrap_or_else(PoisonError::into_inner).reach(name)?;
    // Not through the log, which may be held back, or show warnings only.
    drop(writeln!(io::stderr(), "failpoint {name}: {action:?}"));
    Some(action)
}

#[cold]
fn act(name: &'static str) -> io::Result<()> {
    let action = reach(name);
    perform(name, action)
}

fn perform(name: &'static str, action: Option<Action>) -> io::Result<()> {
    match action {
        None => Ok(()),
        Some(Action::Kill | Action::Torn) => end(),
        Some(Action::Panic) => panic!("failpoint {name}"),
        Some(Action::Error) => Err(io::Error::other(format!("failpoint {name}"))),
        Some(Action::OsError(number)) => Err(io::Error::from_raw_os_error(number)),
        Some(Action::Delay(pause)) => {
            wait(pause);
            Ok(())
        }
    }
}

/// No thread runs on, nothing is flushed, no destructor is called. Not `abort`, whose signal is that of a bug, too.
fn end() -> ! {
    kill_process(getpid(), Signal::KILL).expect("a process may kill itself");
    unreachable!("no process survives that")
}

#[expect(clippy::disallowed_methods, reason = "to hold a thread up is what was asked for")]
fn wait(pause: Duration) {
    std::thread::sleep(pause);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_acts_when_it_was_told_to() {
        let mut points = Failpoints::parse("sink.commit=kill@2; sink.prepare=delay(5)@2+;sink.claim=torn").unwrap();
        let mut reach = |name| (0..4).map(|_| points.reach(name)).collect::<Vec<_>>();
        assert_eq!(reach("sink.commit"), [None, Some(Action::Kill), None, None]);
        let pause = Some(Action::Delay(Duration::from_millis(5)));
        assert_eq!(reach("sink.prepare"), [None, pause, pause, pause]);
        assert_eq!(reach("sink.claim"), [Some(Action::Torn), None, None, None]);
        assert_eq!(reach("sink.release"), [None; 4]);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for (text, expected) in [
            ("sink.comit=kill", "there is no failpoint \"sink.comit\", did you mean \"sink.commit\"?"),
            ("sink.commit", "expected NAME=ACTION, NAME=ACTION@N or NAME=ACTION@N+, found \"sink.commit\""),
            (
                "sink.commit=kill@0",
                "expected NAME=ACTION, NAME=ACTION@N or NAME=ACTION@N+, found \"sink.commit=kill@0\"",
            ),
            (
                "sink.commit=explode",
                "expected kill, panic, error, error(ENOSPC), error(EIO), error(EROFS), delay(MS) or torn, found \
                 \"explode\"",
            ),
            (
                "sink.commit=error(ENOENT)",
                "expected kill, panic, error, error(ENOSPC), error(EIO), error(EROFS), delay(MS) or torn, found \
                 \"error(ENOENT)\"",
            ),
            (
                "sink.commit=delay(x)",
                "expected kill, panic, error, error(ENOSPC), error(EIO), error(EROFS), delay(MS) or torn, found \
                 \"delay(x)\"",
            ),
        ] {
            assert_eq!(Failpoints::parse(text).unwrap_err(), format!("{VARIABLE}: {expected}"));
        }
        assert!(Failpoints::parse("").unwrap().0.is_empty());
    }

    #[test]
    fn nothing_happens_unless_they_are_on() {
        // No test of this process turns them on.
        assert!(failpoint!("sink.commit").is_ok());
        let mut written = Vec::new();
        write("sink.file.write", b"row", |bytes| {
            written.extend_from_slice(bytes);
            Ok(())
        })
        .unwrap();
        assert_eq!(written, b"row");
    }
}
