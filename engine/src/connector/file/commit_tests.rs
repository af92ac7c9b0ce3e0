//! The file sink with checkpoints: nothing is lost or repeated, whenever the process is killed.

use std::{collections::BTreeMap, fs, os::unix::fs::symlink, path::PathBuf, sync::Arc};

use proptest::{collection, prelude::*};
use tempfile::TempDir;

use crate::{
    base::{
        ids::JobId,
        stream_element::{BatchKind, CheckpointId, RecordBatch},
    },
    connector::{
        Committable, ConnectorError, Permissions, RestoredOutput, SinkCommitter, SinkWriter, create_committer,
        create_writer,
        tests::{spec, text_of, writer_context},
    },
};

struct Destination {
    _directory: TempDir,
    path: PathBuf,
    permissions: Arc<Permissions>,
    job: JobId,
}

impl Destination {
    fn new() -> Self {
        let directory = TempDir::new().expect("a directory");
        let root = directory.path().canonicalize().expect("it is there");
        let permissions = Permissions { write: vec![root.clone()], ..Permissions::default() };
        Self { _directory: directory, path: root.join("out"), permissions: Arc::new(permissions), job: JobId::random() }
    }

    fn may_also_write_into(&mut self, other: &Self) {
        let write = self.permissions.write.iter().chain(&other.permissions.write).cloned().collect();
        self.permissions = Arc::new(Permissions { write, ..Permissions::default() });
    }

    fn committer_of(&self, job: JobId) -> Box<dyn SinkCommitter> {
        let sink = spec("file", &[("path", self.path.to_str().expect("UTF-8"))]);
        create_committer(&sink, job, Arc::clone(&self.permissions)).expect("granted")
    }

    fn committer(&self) -> Box<dyn SinkCommitter> {
        self.committer_of(self.job)
    }

    fn writer(&self, subtask_index: u32, attempt_number: u32) -> Box<dyn SinkWriter> {
        let sink = spec("file", &[("path", self.path.to_str().expect("UTF-8"))]);
        create_writer(&sink, writer_context(subtask_index, 4, attempt_number, &self.permissions)).expect("granted")
    }

    /// The job comes back to a checkpoint of its own.
    fn restored(&self, checkpoint_id: CheckpointId, committables: Vec<Committable>) -> RestoredOutput {
        RestoredOutput { job: self.job, checkpoint_id, committables, was_committed: false }
    }

    fn recover(&self, checkpoint_id: CheckpointId, committables: Vec<Committable>) -> Result<(), ConnectorError> {
        self.committer().recover(self.restored(checkpoint_id, committables))
    }

    /// Name of a part of the job, by subtask and number.
    fn part(&self, numbers: &str) -> String {
        format!("part-{numbers}-{:08x}", crc32fast::hash(self.job.to_string().as_bytes()))
    }

    /// Name of the part that ends the output of a subtask, by subtask and attempt.
    fn end_part(&self, numbers: &str) -> String {
        format!("{}-end", self.part(numbers))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }

    /// Content of what can be seen, by name.
    fn visible(&self) -> BTreeMap<String, String> {
        let names = self.names().into_iter().filter(|name| !name.starts_with('.'));
        names.map(|name| (name.clone(), fs::read_to_string(self.path.join(&name)).expect("readable"))).collect()
    }

    fn visible_names(&self) -> Vec<String> {
        self.visible().into_keys().collect()
    }

    fn hidden_parts(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.starts_with(".part-")).collect()
    }
}

fn write(writer: &mut Box<dyn SinkWriter>, row: &str) {
    let data = format!("{row}\n").into_bytes().into();
    writer.write(&RecordBatch { kind: BatchKind::Lines, count: 1, data }).expect("written");
    writer.flush().expect("written");
}

fn prepare(writer: &mut Box<dyn SinkWriter>, id: CheckpointId) -> Vec<Committable> {
    writer.prepare_commit(id).expect("written")
}

#[test]
fn rows_are_visible_when_their_checkpoint_is_complete() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(2, 0);
    write(&mut writer, "a");
    let first = prepare(&mut writer, 1);
    write(&mut writer, "b");
    assert_eq!(destination.visible_names(), [""; 0]);
    committer.commit(first.clone()).expect("committed");
    assert_eq!(destination.visible(), [(destination.part("2-1"), "a\n".to_owned())].into());
    assert_eq!(prepare(&mut writer, 4).len(), 1);
    // Without rows there is no file.
    assert_eq!(prepare(&mut writer, 5), []);
    committer.commit(first).expect("idempotent");
    let claim = format!(".job-{}", destination.job);
    assert!(destination.names().contains(&claim));
    committer.abort().expect("free");
    assert!(!destination.names().contains(&claim));
}

#[test]
fn what_was_not_confirmed_belongs_to_the_next_checkpoint_too() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    let mut parts = prepare(&mut writer, 1);
    write(&mut writer, "b");
    parts.extend(prepare(&mut writer, 2));
    committer.commit(parts.clone()).expect("committed");
    assert_eq!(destination.visible_names(), ["0-1", "0-2"].map(|numbers| destination.part(numbers)));
    // The notification was lost: they stand in the next one again.
    write(&mut writer, "c");
    parts.extend(prepare(&mut writer, 3));
    committer.commit(parts).expect("committed");
    assert_eq!(destination.visible_names(), ["0-1", "0-2", "0-3"].map(|numbers| destination.part(numbers)));
}

#[test]
fn a_killed_job_finds_its_output_again() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    let first = prepare(&mut writer, 1);
    committer.commit(first).expect("committed");
    assert_eq!(destination.committer().committed().expect("readable"), Some(0), "it might be the job's end");
    committer.checkpoint_committed(1).expect("noted");
    assert_eq!(destination.committer().committed().expect("readable"), Some(1));
    write(&mut writer, "b");
    let second = prepare(&mut writer, 2);
    write(&mut writer, "c");
    // Checkpoint 2 is complete, and the process is killed before it commits.
    drop((committer, writer));
    for _ in 0..2 {
        destination.recover(2, second.clone()).expect("its own");
        let expected = [(destination.part("0-1"), "a\n".to_owned()), (destination.part("0-2"), "b\n".to_owned())];
        assert_eq!(destination.visible(), expected.into());
        assert_eq!(destination.hidden_parts(), [""; 0], "what came behind checkpoint 2 is read again");
    }
    assert_eq!(destination.committer().committed().expect("readable"), Some(2));
    // An older checkpoint, as the newest is damaged: what came later goes.
    destination.recover(1, Vec::new()).expect("its own");
    assert_eq!(destination.visible_names(), [destination.part("0-1")]);
    assert_eq!(destination.committer().committed().expect("readable"), Some(1));
    // Of another job, or of a directory that is not there, nothing is known.
    assert_eq!(destination.committer_of(JobId::random()).committed().expect("readable"), None);
    fs::remove_dir_all(&destination.path).expect("removable");
    assert_eq!(destination.committer().committed().expect("readable"), None);
}

#[test]
fn a_part_that_somebody_took_away_is_told_from_one_that_is_lost() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    let first = prepare(&mut writer, 1);
    committer.commit(first.clone()).expect("committed");
    committer.checkpoint_committed(1).expect("noted");
    fs::remove_file(destination.path.join(destination.part("0-1"))).expect("removable");
    destination.recover(1, first).expect("it was committed");
    write(&mut writer, "b");
    let second = prepare(&mut writer, 2);
    let hidden = destination.path.join(&destination.hidden_parts()[0]);
    fs::remove_file(&hidden).expect("removable");
    let error = destination.recover(2, second).expect_err("lost");
    let expected = format!(
        "{} is missing, and so is {}, which it would be if it were committed: rows would be lost; put one of them \
         back, or go on from another checkpoint or savepoint",
        hidden.display(),
        destination.part("0-2")
    );
    assert_eq!(text_of(&error), expected);
}

#[test]
fn nothing_is_written_over() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    let part = prepare(&mut writer, 1);
    fs::write(destination.path.join(destination.part("0-1")), "other\n").expect("writable");
    let error = text_of(&committer.commit(part).expect_err("there already"));
    assert!(error.ends_with("File exists (os error 17)"), "{error}");
    assert_eq!(destination.visible()[&destination.part("0-1")], "other\n");
}

#[test]
fn only_its_own_destination_is_recovered() {
    let destination = Destination::new();
    fs::create_dir(&destination.path).expect("writable");
    let refused = |destination: &Destination, id, hint: &str| {
        let names = destination.names();
        let error = destination.recover(id, Vec::new()).expect_err("refused").to_string();
        assert!(error.contains("is not empty") && error.contains(hint), "{error}");
        assert_eq!(destination.names(), names, "nothing is touched");
    };
    // Files of somebody else.
    fs::write(destination.path.join("notes"), "").expect("writable");
    refused(&destination, 1, "a file sink needs a new or empty directory");
    // Also if the job has claimed the directory.
    fs::write(destination.path.join(format!(".job-{}", destination.job)), "").expect("writable");
    refused(&destination, 1, "");
    fs::remove_file(destination.path.join("notes")).expect("removable");
    destination.committer().abort().expect("its own");
    // Another job writes here.
    let other = JobId::random();
    destination.committer_of(other).prepare().expect("empty");
    refused(&destination, 1, &format!(".job-{other}"));
    destination.committer_of(other).abort().expect("its own");
    // Output that is newer than the savepoint, of a job that has ended.
    fs::write(destination.path.join(destination.part("0-2")), "row\n").expect("writable");
    refused(&destination, 1, "");
    refused(&destination, 0, "");
    // Hidden parts that the savepoint does not name.
    fs::write(destination.path.join(".part-0-0-00000000-0.inprogress"), "row\n").expect("writable");
    refused(&destination, 2, "");
    fs::remove_file(destination.path.join(".part-0-0-00000000-0.inprogress")).expect("removable");
    // Output up to the savepoint: a new version of the job goes on in the same directory.
    destination.recover(2, Vec::new()).expect("its output goes on");
    assert_eq!(destination.visible_names(), [destination.part("0-2")]);
}

#[test]
fn a_savepoint_commits_nothing_and_its_rows_come_with_the_next_checkpoint_or_the_end() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 1);
    write(&mut writer, "a");
    let savepoint = prepare(&mut writer, 1);
    write(&mut writer, "b");
    // The attempt and the savepoint have the same number, but the parts not the same name.
    let end = writer.finish().expect("finished");
    committer.commit([savepoint.clone(), end].concat()).expect("committed");
    let expected = [(destination.part("0-1"), "a\n".to_owned()), (destination.end_part("0-1"), "b\n".to_owned())];
    assert_eq!(destination.visible(), expected.clone().into());
    committer.abort().expect("free");
    // Nor if the job begins with the savepoint.
    let mut committer = destination.committer();
    fs::remove_file(destination.path.join(destination.end_part("0-1"))).expect("removable");
    committer.recover(destination.restored(1, savepoint)).expect("its output goes on");
    let mut writer = destination.writer(0, 1);
    write(&mut writer, "b");
    let end = writer.finish().expect("finished");
    committer.commit(end.clone()).expect("committed");
    committer.commit(end).expect("idempotent");
    assert_eq!(destination.visible(), expected.into());
}

#[test]
fn a_savepoint_that_goes_on_elsewhere_commits_where_it_was_taken() {
    let old = Destination::new();
    old.committer().prepare().expect("new");
    let mut writer = old.writer(0, 0);
    write(&mut writer, "a");
    let savepoint = prepare(&mut writer, 1);
    let mut new = Destination::new();
    // It may not write there.
    let error = new.committer().recover(old.restored(1, savepoint.clone())).expect_err("not granted").to_string();
    assert!(error.contains("--allow-write"), "{error}");
    new.may_also_write_into(&old);
    // The old job goes on, and makes its rows visible itself.
    new.committer().recover(old.restored(1, savepoint.clone())).expect("granted");
    assert_eq!((old.hidden_parts().len(), old.visible_names().len()), (1, 0));
    old.committer().keep(1, &savepoint).expect("listed");
    old.committer().abort().expect("free");
    for _ in 0..2 {
        new.committer().recover(old.restored(1, savepoint.clone())).expect("granted");
    }
    assert_eq!((old.visible_names(), new.visible_names()), (vec![old.part("0-1")], vec![]));
    // A committable whose directory was edited into a link is no way out.
    let elsewhere = TempDir::new().expect("a directory");
    symlink(elsewhere.path(), new.path.join("link")).expect("links can be made");
    let error = new.recover(1, Vec::new()).expect_err("foreign").to_string();
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn rows_of_a_savepoint_that_were_made_again_are_not_made_visible_from_elsewhere() {
    let old = Destination::new();
    let savepoint = output_of_savepoint(&old);
    let mut committer = old.committer();
    committer.keep(3, &savepoint).expect("listed");
    // All attempts fail, and make the row again.
    committer.recover(old.restored(2, Vec::new())).expect("its own");
    let mut writer = old.writer(0, 1);
    write(&mut writer, "a");
    committer.commit(prepare(&mut writer, 4)).expect("committed");
    committer.abort().expect("free");
    let mut new = Destination::new();
    new.may_also_write_into(&old);
    let error = text_of(&new.committer().recover(old.restored(3, savepoint)).expect_err("they are there"));
    assert!(error.contains(&old.part("0-4")) && error.contains("start from a later savepoint"), "{error}");
    assert_eq!(old.visible(), [(old.part("0-4"), "a\n".to_owned())].into());
}

#[test]
fn a_start_that_is_refused_changes_nothing() {
    let destination = Destination::new();
    destination.committer().prepare().expect("new");
    let mut writers = [destination.writer(0, 0), destination.writer(1, 0)];
    writers.iter_mut().for_each(|writer| write(writer, "a"));
    let savepoint: Vec<_> = writers.iter_mut().flat_map(|writer| prepare(writer, 3)).collect();
    let mut committer = destination.committer();
    committer.keep(3, &savepoint).expect("listed");
    committer.abort().expect("free");
    let lost = destination.hidden_parts().into_iter().find(|name| name.starts_with(".part-1-")).expect("written");
    fs::remove_file(destination.path.join(lost)).expect("removable");
    let before = destination.names();
    let refused = destination.committer_of(JobId::random()).recover(destination.restored(3, savepoint));
    let error = text_of(&refused.expect_err("a part is lost"));
    assert!(error.contains("is missing, and so is part-1-3-"), "{error}");
    assert_eq!(destination.names(), before);
}

/// As when the commit of a savepoint that stops the job fails behind the first part.
#[test]
fn a_job_that_begins_anew_takes_back_what_it_had_made_visible() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    committer.commit(prepare(&mut writer, 1)).expect("committed");
    committer.prepare().expect("its own");
    assert_eq!(destination.visible_names(), [""; 0]);
}

fn output_of_savepoint(destination: &Destination) -> Vec<Committable> {
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    prepare(&mut writer, 3)
}

#[test]
fn output_of_a_savepoint_that_stopped_its_job_may_have_been_taken_away() {
    let old = Destination::new();
    let savepoint = output_of_savepoint(&old);
    let restored = RestoredOutput { was_committed: true, ..old.restored(3, savepoint.clone()) };
    let goes_on = |job: JobId| {
        let mut committer = old.committer_of(job);
        committer.recover(restored.clone()).expect("its rows were visible");
        committer.abort().expect("free");
    };
    // The process was killed before it was committed: that is made up for.
    old.committer().abort().expect("free");
    assert_eq!(old.names(), [""; 0]);
    let savepoint_elsewhere = output_of_savepoint(&old);
    old.committer()
        .recover(RestoredOutput { was_committed: true, ..old.restored(3, savepoint_elsewhere) })
        .expect("hidden");
    assert_eq!(old.visible(), [(old.part("0-3"), "a\n".to_owned())].into());
    old.committer().abort().expect("free");
    // Its owner took the rows, then the whole directory.
    fs::remove_file(old.path.join(old.part("0-3"))).expect("removable");
    goes_on(JobId::random());
    fs::remove_dir(&old.path).expect("empty");
    goes_on(JobId::random());
    // Into another directory, without a grant for the old one.
    let new = Destination::new();
    new.committer().recover(restored.clone()).expect("nothing is to be done in the old one");
    // A savepoint of a job that went on names rows that only it holds.
    let error = text_of(&old.recover(3, savepoint).expect_err("lost"));
    assert!(error.contains("is missing, and so is") && error.ends_with("another checkpoint or savepoint"), "{error}");
}

#[test]
fn parts_of_another_job_are_neither_taken_for_its_own_nor_removed() {
    let destination = Destination::new();
    let foreign = Destination::new();
    let savepoint = output_of_savepoint(&destination);
    destination.committer().keep(3, &savepoint).expect("listed");
    destination.committer().abort().expect("free");
    // Another job's rows of the same subtask and number.
    fs::write(destination.path.join(foreign.part("0-3")), "other\n").expect("writable");
    let next = JobId::random();
    let mut committer = destination.committer_of(next);
    committer.recover(destination.restored(3, savepoint.clone())).expect("up to the savepoint");
    let expected = [(foreign.part("0-3"), "other\n".to_owned()), (destination.part("0-3"), "a\n".to_owned())];
    assert_eq!(destination.visible(), expected.clone().into());
    // Were the rows gone, the other's would not pass for them.
    committer.abort().expect("free");
    fs::remove_file(destination.path.join(destination.part("0-3"))).expect("removable");
    let error = destination.committer_of(JobId::random()).recover(destination.restored(3, savepoint));
    assert!(text_of(&error.expect_err("lost")).contains("is missing"));
    fs::write(destination.path.join(format!(".job-{next}")), "").expect("writable");
    // Later ones of others stay, when the job is brought back to an older checkpoint and when it begins anew.
    fs::write(destination.path.join(foreign.part("0-9")), "other\n").expect("writable");
    committer.recover(RestoredOutput { job: next, ..destination.restored(1, Vec::new()) }).expect("its own");
    assert_eq!(destination.visible_names(), [foreign.part("0-3"), foreign.part("0-9")]);
    fs::write(destination.path.join(format!(".job-{next}")), "").expect("writable");
    let error = destination.committer_of(next).prepare().expect_err("not its own").to_string();
    assert!(error.contains("is not empty"), "{error}");
    assert_eq!(destination.visible_names(), [foreign.part("0-3"), foreign.part("0-9")]);
    // What has no name of a job's is nobody's.
    fs::write(destination.path.join("part-0-1"), "other\n").expect("writable");
    let error = destination.recover(3, Vec::new()).expect_err("foreign").to_string();
    assert!(error.contains("is not empty"), "{error}");
}

#[test]
fn rows_of_a_savepoint_survive_the_end_and_the_restarts_of_its_job() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    committer.commit(prepare(&mut writer, 1)).expect("committed");
    write(&mut writer, "b");
    let second = prepare(&mut writer, 2);
    committer.keep(2, &second).expect("listed");
    write(&mut writer, "c");
    let third = [second.clone(), prepare(&mut writer, 3)].concat();
    committer.keep(3, &third).expect("listed");
    write(&mut writer, "d");
    drop(writer);
    // All attempts fail, and the process is killed: "d" is of no use, "b" and "c" are named.
    destination.recover(1, Vec::new()).expect("its own");
    assert_eq!(destination.hidden_parts().len(), 2);
    // The job is cancelled.
    destination.committer().abort().expect("free");
    assert_eq!((destination.hidden_parts().len(), destination.visible_names()), (2, vec![destination.part("0-1")]));
    // No other job may begin there, nor this one.
    let error = destination.committer_of(JobId::random()).prepare().expect_err("not empty").to_string();
    assert!(error.contains("is not empty"), "{error}");
    // Another job starts from the first of the savepoints: the rows of the second stay.
    let next = JobId::random();
    destination.committer_of(next).recover(destination.restored(2, second)).expect("all is there");
    assert_eq!(destination.visible()[&destination.part("0-2")], "b\n");
    assert_eq!(destination.hidden_parts().len(), 1);
    destination.committer_of(next).abort().expect("free");
    // And one from the second.
    destination.committer_of(JobId::random()).recover(destination.restored(3, third)).expect("all is there");
    let rows: String = destination.visible().into_values().collect();
    assert_eq!(rows, "a\nb\nc\n");
    let lists = destination.names().into_iter().filter(|name| name.starts_with(".savepoint-")).count();
    assert_eq!((destination.hidden_parts().len(), lists), (0, 0), "nothing is left of the savepoints");
}

#[test]
fn rows_that_a_savepoint_holds_do_not_keep_its_own_job_from_beginning_anew() {
    let destination = Destination::new();
    let savepoint = output_of_savepoint(&destination);
    let mut committer = destination.committer();
    committer.recover(destination.restored(3, Vec::new())).expect("its own");
    let savepoint_of_nothing = committer.keep(4, &[]);
    savepoint_of_nothing.expect("nothing to keep");
    assert!(!destination.names().iter().any(|name| name.starts_with(".savepoint-")));
    drop((committer, savepoint));
    let destination = Destination::new();
    let savepoint = output_of_savepoint(&destination);
    let mut committer = destination.committer();
    committer.keep(3, &savepoint).expect("listed");
    // What a restart without checkpoints does.
    committer.abort().expect("free");
    committer.prepare().expect("its own");
    assert_eq!(destination.hidden_parts().len(), 1);
    let mut writer = destination.writer(0, 1);
    write(&mut writer, "a");
    committer.commit(writer.finish().expect("finished")).expect("committed");
    committer.abort().expect("free");
    assert_eq!(destination.visible(), [(destination.end_part("0-1"), "a\n".to_owned())].into());
    assert_eq!(destination.hidden_parts().len(), 1);
    let error = destination.committer().prepare().expect_err("rows are there").to_string();
    assert!(error.contains("is not empty"), "{error}");
    // Nor may another job go on from the savepoint beside them.
    let going_on = destination.committer_of(JobId::random()).recover(destination.restored(3, savepoint));
    let error = going_on.expect_err("rows behind the savepoint are there").to_string();
    assert!(error.contains("is not empty"), "{error}");
    fs::remove_file(destination.path.join(destination.end_part("0-1"))).expect("removable");
    let error = destination.committer_of(JobId::random()).prepare().expect_err("of another").to_string();
    assert!(error.contains("savepoints name rows in them") && error.contains("remove .savepoint-*"), "{error}");
}

/// A committer whose claim is gone, for whatever reason, has nothing to clean.
#[test]
fn hidden_files_of_the_job_that_came_next_stay() {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare().expect("new");
    committer.abort().expect("free");
    destination.committer_of(JobId::random()).prepare().expect("free");
    write(&mut destination.writer(0, 0), "row");
    committer.abort().expect("nothing to do");
    assert_eq!(destination.hidden_parts().len(), 1);
}

/// What happens to a job with a file sink.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A subtask writes a row.
    Write(u32),
    /// All subtasks take part in a checkpoint, which completes and is committed.
    Checkpoint,
    /// It completes, and the process is killed before anything is committed.
    KilledBeforeCommit,
    /// It completes, and the process is killed after the parts of the first subtask were committed.
    KilledWithinCommit,
    /// It is aborted; the job goes on.
    Aborted,
    /// The process is killed between two checkpoints.
    Killed,
    /// All attempts fail and begin again from the last checkpoint.
    Failed,
    /// The newest checkpoint is lost, and the one before restored.
    Fallback,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        10 => (0_u32..3).prop_map(Step::Write),
        3 => Just(Step::Checkpoint),
        1 => Just(Step::KilledBeforeCommit),
        1 => Just(Step::KilledWithinCommit),
        1 => Just(Step::Aborted),
        1 => Just(Step::Killed),
        1 => Just(Step::Failed),
        1 => Just(Step::Fallback),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// The rows of a subtask are numbered; where it stands is in the checkpoint, as that of a source is.
    #[test]
    fn each_row_is_visible_once_and_in_order(steps in collection::vec(step(), 1..60)) {
        let destination = Destination::new();
        let subtasks = 0..3_u32;
        /// Number of the checkpoint, rows written by each subtask, committables.
        type Complete = (CheckpointId, Vec<u32>, Vec<Committable>);
        let mut complete: Vec<Complete> = Vec::new();
        let (mut id, mut attempt) = (0, 0);
        let mut written = vec![0_u32; 3];
        let mut pending: Vec<Committable> = Vec::new();
        let mut committer = destination.committer();
        committer.prepare().expect("new");
        let begin = |attempt: u32| -> Vec<_> { subtasks.clone().map(|index| destination.writer(index, attempt)).collect() };
        let mut writers = begin(0);
        for step in steps.into_iter().chain([Step::Checkpoint]) {
            let checkpoint = match step {
                Step::Write(subtask) => {
                    let number = &mut written[subtask as usize];
                    write(&mut writers[subtask as usize], &format!("{subtask} {number}"));
                    *number += 1;
                    continue;
                }
                Step::Checkpoint | Step::KilledBeforeCommit | Step::KilledWithinCommit | Step::Aborted => {
                    id += 1;
                    pending.extend(writers.iter_mut().flat_map(|writer| prepare(writer, id)));
                    pending.clone()
                }
                Step::Killed | Step::Failed | Step::Fallback => Vec::new(),
            };
            match step {
                Step::Write(_) | Step::Aborted => continue,
                Step::Checkpoint => {
                    complete.push((id, written.clone(), checkpoint.clone()));
                    committer.commit(checkpoint).expect("committed");
                    pending.clear();
                    continue;
                }
                Step::KilledBeforeCommit => complete.push((id, written.clone(), checkpoint)),
                Step::KilledWithinCommit => {
                    complete.push((id, written.clone(), checkpoint.clone()));
                    committer.commit(checkpoint.into_iter().take(1).collect()).expect("committed");
                }
                Step::Killed | Step::Failed => {}
                // The last one of all is not passed over: what it committed would be deleted.
                Step::Fallback if 1 < complete.len() => drop(complete.pop()),
                Step::Fallback => {}
            }
            if !matches!(step, Step::Failed) {
                committer = destination.committer();
                attempt = 0;
            } else {
                attempt += 1;
            }
            pending.clear();
            match complete.last() {
                None => {
                    committer.prepare().expect("its own");
                    written = vec![0; 3];
                }
                Some((restored, rows, committables)) => {
                    committer.recover(destination.restored(*restored, committables.clone())).expect("its own");
                    written = rows.clone();
                }
            }
            writers = begin(attempt);
        }
        let mut parts: Vec<_> = destination.visible().into_iter().map(|(name, content)| {
            let mut numbers = name["part-".len()..].split('-');
            let (subtask, checkpoint) = (numbers.next().expect("a part"), numbers.next().expect("a part"));
            ((subtask.parse::<u32>().expect("a number"), checkpoint.parse::<u64>().expect("a number")), content)
        }).collect();
        parts.sort();
        let rows: String = parts.into_iter().map(|(_, content)| content).collect();
        let expected = subtasks.clone().flat_map(|subtask| (0..written[subtask as usize]).map(move |row| format!("{subtask} {row}\n")));
        prop_assert_eq!(rows, expected.collect::<String>());
        prop_assert_eq!(destination.hidden_parts(), [""; 0]);
        committer.abort().expect("free");
        prop_assert!(destination.names().iter().all(|name| name.starts_with("part-")));
    }
}

/// A committer that fails names what it could not do.
#[test]
fn a_destination_that_went_away_is_an_error() -> Result<(), ConnectorError> {
    let destination = Destination::new();
    let mut committer = destination.committer();
    committer.prepare()?;
    let mut writer = destination.writer(0, 0);
    write(&mut writer, "a");
    fs::remove_dir_all(&destination.path).expect("removable");
    let error = text_of(&writer.prepare_commit(1).expect_err("gone"));
    assert_eq!(
        error,
        format!("could not write to {}: No such file or directory (os error 2)", destination.path.display())
    );
    Ok(())
}
