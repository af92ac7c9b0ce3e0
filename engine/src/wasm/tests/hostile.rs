//! Attacks by a plugin that a compiler made.

use std::{collections::BTreeMap, sync::OnceLock, time::Instant};

use super::*;
use crate::{
    state::{StateUsage, TimeDomain},
    wasm::{EntryPoint, GuestFailure, MetricValue, RestoredKeyGroup, RestoredKeyGroups, SegmentSnapshot, SourceStatus},
};

fn plugin() -> &'static Arc<CompiledPlugin> {
    static PLUGIN: OnceLock<Arc<CompiledPlugin>> = OnceLock::new();
    PLUGIN.get_or_init(|| runtime().compile(&admit(hostile_bytes())).unwrap())
}

/// Opens the plugin with an attack that waits for `process-batch`.
fn attack(act: &str, limits: &SandboxLimits) -> Segment<Recorder> {
    open(plugin(), &["process-batch", act], limits, CancelFlag::default()).unwrap()
}

/// Runs an attack in `process-batch` of 8 rows.
#[track_caller]
fn run(act: &str, limits: &SandboxLimits) -> (GuestError, Segment<Recorder>) {
    let mut segment = attack(act, limits);
    let error = segment.process_batch(0, &batch(8)).unwrap_err();
    assert_eq!(error.entry_point, EntryPoint::ProcessBatch);
    (error, segment)
}

#[track_caller]
fn check(act: &str, failure: GuestFailure, message: &str) {
    let (error, segment) = run(act, &patient());
    assert_eq!(error.failure, failure, "{error}");
    assert!(error.message.contains(message), "{error}");
    assert!(!error.message.contains(char::is_control), "{error:?}");
    assert_eq!((error.node, error.row), expected_mark(failure), "{error}");
    assert_eq!(segment.memory_bytes(), 0, "the store is gone");
}

/// The plugin marks node 2 and the middle row; an error that it returns leaves no dump.
fn expected_mark(failure: GuestFailure) -> (Option<u32>, Option<u32>) {
    if failure == GuestFailure::UserError { (Some(2), None) } else { (Some(2), Some(4)) }
}

#[test]
fn a_plugin_that_behaves_is_planned_opened_and_run() {
    let graph = plugin().plan(&[], &limits()).unwrap();
    assert_eq!(graph.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(graph.edges[0].record_type, "string");
    assert_eq!(plugin().describe(&limits()).unwrap(), "attacks the engine: [AT ACT]");

    let mut segment = open(plugin(), &[], &limits(), CancelFlag::default()).unwrap();
    let rows = batch(1000);
    segment.process_batch(0, &rows).unwrap();
    segment.process_watermark(Timestamp(41)).unwrap();
    segment.process_watermark_status(WatermarkStatus::Idle).unwrap();
    assert_eq!(segment.poll_source(1000).unwrap(), SourceStatus::End);
    segment.end_input(0).unwrap();
    segment.close().unwrap();
    assert!(segment.memory_bytes() > 0);
    let target = segment.target();
    assert_eq!(target.rows, rows.data);
    assert_eq!(target.count, 1000);
    assert_eq!(target.watermarks, [Timestamp(41)]);
    assert_eq!(target.statuses, [WatermarkStatus::Idle]);
}

#[test]
fn a_loop_ends_at_the_budget_of_every_entry_point() {
    let spin = |at: &str| open(plugin(), &[at, "loop"], &limits(), CancelFlag::default());
    let check = |error: GuestError, entry_point, option: &str| {
        assert_eq!((error.failure, error.entry_point), (GuestFailure::CpuTime, entry_point), "{error}");
        assert!(error.message.contains(option), "{error}");
    };
    let planned = plugin().plan(&args(&["plan", "loop"]), &limits()).unwrap_err();
    check(planned, EntryPoint::Plan, "sandbox.plan.cpu-time");
    check(spin("plan").err().unwrap(), EntryPoint::Plan, "sandbox.plan.cpu-time");
    check(spin("open").err().unwrap(), EntryPoint::Open, "sandbox.open.cpu-time");
    let option = "sandbox.call.cpu-time";
    check(spin("process-batch").unwrap().process_batch(0, &batch(1)).unwrap_err(), EntryPoint::ProcessBatch, option);
    check(spin("poll-source").unwrap().poll_source(1).unwrap_err(), EntryPoint::PollSource, option);
    let error = spin("process-watermark").unwrap().process_watermark(Timestamp(1)).unwrap_err();
    check(error, EntryPoint::ProcessWatermark, option);
    let error = spin("process-watermark-status").unwrap().process_watermark_status(WatermarkStatus::Idle).unwrap_err();
    check(error, EntryPoint::ProcessWatermarkStatus, option);
    check(spin("take-state").unwrap().take_state().unwrap_err(), EntryPoint::TakeState, option);
    check(spin("end-input").unwrap().end_input(0).unwrap_err(), EntryPoint::EndInput, option);
    check(spin("close").unwrap().close().unwrap_err(), EntryPoint::Close, option);
    check(spin("begin-split").unwrap().begin_split(1).unwrap_err(), EntryPoint::BeginSplit, option);
    check(spin("end-split").unwrap().end_split(1).unwrap_err(), EntryPoint::EndSplit, option);
    let error = spin("advance-processing-time").unwrap().advance_processing_time(Timestamp(1)).unwrap_err();
    check(error, EntryPoint::AdvanceProcessingTime, option);
    check(spin("snapshot").unwrap().snapshot(1, true).err().unwrap(), EntryPoint::Snapshot, option);
    let error = spin("notify-checkpoint-complete").unwrap().notify_checkpoint_complete(1).unwrap_err();
    check(error, EntryPoint::NotifyCheckpointComplete, option);
    let error = spin("notify-checkpoint-aborted").unwrap().notify_checkpoint_aborted(1).unwrap_err();
    check(error, EntryPoint::NotifyCheckpointAborted, option);
    let mut firing = going_on_from("timers", &["fire-timers", "loop"], &limits(), CancelFlag::default());
    check(firing.fire_timers(TimeDomain::EventTime, Timestamp(5)).unwrap_err(), EntryPoint::FireTimers, option);
    let mut instance = plugin().instantiate(limits(), 0, CancelFlag::default(), Box::<Recorder>::default()).unwrap();
    instance.plan(&args(&["describe", "loop"])).unwrap();
    check(instance.describe().unwrap_err(), EntryPoint::Describe, "sandbox.plan.cpu-time");
}

#[test]
fn loops_through_imports_and_bulk_operations_end_too() {
    for act in ["loop-emit", "loop-log", "loop-fill"] {
        let (error, _) = run(act, &limits());
        assert_eq!(error.failure, GuestFailure::CpuTime, "{act}: {error}");
    }
}

#[test]
fn a_looping_guest_is_canceled_within_a_second() {
    let cancel = CancelFlag::default();
    let mut limits = patient();
    limits.call_cpu_time = Duration::from_secs(3600);
    let mut segment = open(plugin(), &["process-batch", "loop"], &limits, cancel.clone()).unwrap();
    let (canceler, canceled) = crossbeam_channel::bounded(1);
    let thread = std::thread::spawn(move || {
        cancel.cancel();
        canceler.send(Instant::now()).unwrap();
    });
    let error = segment.process_batch(0, &batch(1)).unwrap_err();
    let latency = canceled.recv().unwrap().elapsed();
    thread.join().unwrap();
    assert_eq!(error.failure, GuestFailure::Canceled);
    assert!(latency < Duration::from_secs(1), "{latency:?}");
    assert_eq!(segment.process_batch(0, &batch(1)).unwrap_err().failure, GuestFailure::Canceled);
}

#[test]
fn nothing_is_called_once_the_task_was_canceled() {
    let cancel = CancelFlag::default();
    let mut segment = open(plugin(), &[], &patient(), cancel.clone()).unwrap();
    cancel.cancel();
    assert_eq!(segment.process_batch(0, &batch(1)).unwrap_err().failure, GuestFailure::Canceled);
    assert_eq!(segment.target().count, 0);
    assert_eq!(open(plugin(), &[], &patient(), cancel).err().unwrap().failure, GuestFailure::Canceled);
}

#[test]
fn recursion_overflows_the_stack_of_the_plugin_only() {
    check("recurse", GuestFailure::StackOverflow, "sandbox.stack.max");
    check("recurse-indirect", GuestFailure::StackOverflow, "sandbox.stack.max");
}

#[test]
fn memory_cannot_grow_above_the_limit() {
    check("grow", GuestFailure::MemoryLimit, "sandbox.memory.max");
    check("grow-to-4-gib", GuestFailure::MemoryLimit, "sandbox.memory.max");
}

#[test]
fn a_slow_leak_is_seen_before_it_ends_at_the_limit() {
    let mut segment = attack("leak", &patient());
    let mut seen = vec![segment.memory_bytes()];
    let error = loop {
        match segment.process_batch(0, &batch(1)) {
            Ok(()) => seen.push(segment.memory_bytes()),
            Err(error) => break error,
        }
    };
    assert_eq!(error.failure, GuestFailure::MemoryLimit, "{error}");
    assert!(seen.is_sorted());
    let last = seen[seen.len() - 1];
    assert!((56 << 20..=64 << 20).contains(&last), "{last}");
}

#[test]
fn traps_are_named_with_operator_row_and_backtrace() {
    check("unreachable", GuestFailure::Trap, "unreachable");
    check("out-of-bounds", GuestFailure::Trap, "out of bounds memory access");
    check("indirect", GuestFailure::Trap, "indirect call type mismatch");
    let (error, _) = run("recurse", &patient());
    assert!(error.backtrace.iter().any(|frame| frame.contains("test_hostile::recurse")), "{:?}", error.backtrace);
    assert!(error.backtrace.len() <= crate::wasm::guest_error::BACKTRACE_FRAMES_MAX);
}

#[test]
fn a_panic_brings_its_message_and_place() {
    check("panic", GuestFailure::Panic, "the row is bad:\\n\\u{1b}[31m4");
    check("panic", GuestFailure::Panic, "panicked at plugins/test_hostile/src/lib.rs:");
    check("index", GuestFailure::Panic, "index out of bounds: the len is 0 but the index is 7");
    let (error, _) = run("panic-large", &patient());
    assert_eq!(error.failure, GuestFailure::Panic);
    assert!(error.message.len() < 5000, "{}", error.message.len());
    assert!(error.message.ends_with('…'));
}

#[test]
fn errors_of_user_code_are_carried_through() {
    check("fail", GuestFailure::UserError, "cannot parse \"x\\u{7}\" as a number");
    let (error, _) = run("failed", &patient());
    assert_eq!((error.failure, error.node), (GuestFailure::UserError, None));
    let (error, _) = run("fail-but-ok", &patient());
    assert_eq!((error.failure, error.node), (GuestFailure::UserError, Some(1)));
    let error = plugin().plan(&args(&["plan", "refuse"]), &patient()).unwrap_err();
    assert_eq!((error.failure, error.entry_point), (GuestFailure::UserError, EntryPoint::Plan));
    assert_eq!(error.message, "the argument --input is missing\\n\\u{1b}[31m");
}

#[test]
fn the_target_decides_over_a_refused_row() {
    let mut segment = attack("reject", &patient());
    segment.target_mut().verdict = Some(Verdict::Skip);
    segment.process_batch(0, &batch(1)).unwrap();
    segment.target_mut().verdict = Some(Verdict::Fail);
    let error = segment.process_batch(0, &batch(1)).unwrap_err();
    assert_eq!((error.failure, error.node), (GuestFailure::UserError, Some(2)));
    assert_eq!(error.message, "not a number");
    let rejected = (2, Some(0), "not a number".to_owned(), b"abc".to_vec());
    assert_eq!(segment.target().rejected, [rejected.clone(), rejected]);
}

#[test]
fn output_is_limited_in_bytes_rows_and_length() {
    check("emit-much", GuestFailure::OutputLimit, "sandbox.emit.bytes-max");
    check("emit-many", GuestFailure::OutputLimit, "sandbox.emit.rows-max");
    check("emit-empty-many", GuestFailure::OutputLimit, "sandbox.emit.rows-max");
    check("watermark-many", GuestFailure::OutputLimit, "sandbox.emit.rows-max");
    check("emit-large", GuestFailure::OutputLimit, "sandbox.row.bytes-max");
    let (_, segment) = run("emit-many", &patient());
    assert_eq!(segment.target().count, 1_000_000);
}

#[test]
fn the_limits_of_output_are_per_call() {
    let mut limits = patient();
    limits.emit_rows_max = 8;
    let mut segment = open(plugin(), &[], &limits, CancelFlag::default()).unwrap();
    for _ in 0..3 {
        segment.process_batch(0, &batch(8)).unwrap();
    }
    assert_eq!(segment.process_batch(0, &batch(9)).unwrap_err().failure, GuestFailure::OutputLimit);
}

#[test]
fn malformed_batches_are_refused() {
    check("no-output", GuestFailure::BadBatch, "there is no output 7: the segment has 1");
    check("wrong-count", GuestFailure::BadBatch, "2 rows were claimed, 1 were there");
    check("cut-row", GuestFailure::BadBatch, "runs past the end");
    check("long-length", GuestFailure::BadBatch, "runs past the end");
    check("list-out-of-bounds", GuestFailure::BadBatch, "out of bounds");
    check("log-not-utf8", GuestFailure::BadBatch, "utf-8");
}

#[test]
fn nothing_is_emitted_where_it_is_forbidden() {
    for act in ["emit", "emit-watermark", "reject"] {
        for at in ["plan", "open"] {
            let error = open(plugin(), &[at, act], &patient(), CancelFlag::default()).err().unwrap();
            assert_eq!(error.failure, GuestFailure::IllegalState, "{error}");
        }
        let mut segment = open(plugin(), &["close", act], &patient(), CancelFlag::default()).unwrap();
        let error = segment.close().unwrap_err();
        assert_eq!(error.failure, GuestFailure::IllegalState, "{error}");
        assert!(error.message.contains("nothing may be emitted in close"), "{error}");
        assert_eq!(segment.target().count, 0);
    }
}

#[test]
fn operator_states_are_those_that_were_declared_and_put_only_by_snapshots() {
    check("operator-state", GuestFailure::IllegalState, "state 0 of the segment is not an operator state");
    check("operator-state-put", GuestFailure::IllegalState, "operator-state.put may not be called in process-batch");
}

fn call_snapshot(act: &str, limits: &SandboxLimits) -> GuestError {
    let mut segment = open(plugin(), &["snapshot", act], limits, CancelFlag::default()).unwrap();
    segment.snapshot(1, true).map(|_| ()).unwrap_err()
}

#[test]
fn snapshots_have_limits_and_may_not_emit() {
    let mut limits = patient();
    limits.memory_bytes_max = 512 << 20;
    limits.state_bytes_max = 8 << 20;
    for (act, failure, part) in [
        ("operator-state-put", GuestFailure::IllegalState, "state 0 of the segment is not an operator state"),
        ("operator-state-cut", GuestFailure::BadBatch, "element 0 of an operator state is longer than the list"),
        ("operator-state-long", GuestFailure::StateValueLimit, "an element of state \"operator\" of operator \""),
        ("operator-state-over-quota", GuestFailure::StateLimit, "with state \"operator\" of operator \""),
        ("no-output", GuestFailure::IllegalState, "nothing may be emitted in snapshot"),
        ("index", GuestFailure::Panic, "index out of bounds"),
    ] {
        let error = call_snapshot(act, &limits);
        assert_eq!((error.failure, error.entry_point), (failure, EntryPoint::Snapshot), "{error}");
        assert!(error.message.contains(part), "{error}");
    }
    let quick = SandboxLimits { call_cpu_time: Duration::from_millis(50), ..patient() };
    assert_eq!(call_snapshot("loop", &quick).failure, GuestFailure::CpuTime);
    for at in ["notify-checkpoint-complete", "notify-checkpoint-aborted"] {
        let mut segment = open(plugin(), &[at, "no-output"], &patient(), CancelFlag::default()).unwrap();
        let told = match at {
            "notify-checkpoint-complete" => segment.notify_checkpoint_complete(1),
            _ => segment.notify_checkpoint_aborted(1),
        };
        let error = told.unwrap_err();
        assert!(error.message.contains(&format!("nothing may be emitted in {at}")), "{error}");
    }
}

/// Opens a segment that goes on from key groups and operator states.
fn restored(words: &[&str], restore: SegmentRestore) -> Result<Segment<Recorder>, GuestError> {
    restored_with(words, restore, patient(), CancelFlag::default())
}

fn restored_with(
    words: &[&str],
    restore: SegmentRestore,
    limits: SandboxLimits,
    cancel: CancelFlag,
) -> Result<Segment<Recorder>, GuestError> {
    let graph_digest = graph_digest(&plugin().plan(&[], &patient()).unwrap());
    let replay = Replay { args: args(words), graph_digest };
    let context = SegmentContext { restored: true, ..context() };
    Segment::open(plugin(), &replay, &context, limits, cancel, restore, Recorder::default())
}

/// The key groups of a snapshot, as they are restored.
fn key_groups(snapshot: SegmentSnapshot) -> Vec<RestoredKeyGroup> {
    let mut bytes = Vec::new();
    let sections = snapshot.keyed.unwrap().write(&mut bytes).unwrap();
    let states: Arc<[Option<usize>]> = (0..5).map(Some).collect();
    let mut offset = 0;
    let section = |(key_group, length): (u32, u64)| {
        let end = offset + usize::try_from(length).unwrap();
        let content = bytes::Bytes::copy_from_slice(&bytes[offset..end]);
        offset = end;
        RestoredKeyGroup { key_group, content, states: Arc::clone(&states) }
    };
    sections.into_iter().map(section).collect()
}

fn one_by_one(key_groups: Vec<RestoredKeyGroup>) -> RestoredKeyGroups {
    Box::new(key_groups.into_iter().map(Ok))
}

#[test]
fn a_segment_goes_on_from_its_snapshot() {
    for act in ["state", "timers"] {
        let mut before = open(plugin(), &["process-batch", act], &patient(), CancelFlag::default()).unwrap();
        before.process_batch(0, &batch(8)).unwrap();
        let snapshot = before.snapshot(1, true).unwrap();
        assert!(snapshot.lists.values().all(Vec::is_empty));
        let kept = key_groups(snapshot);
        assert!(!kept.is_empty());
        let mut after =
            restored(&[], SegmentRestore { key_groups: one_by_one(kept.clone()), ..SegmentRestore::default() })
                .unwrap();
        // Before anything is asked of it.
        let (was, is) = (before.state_usage(), after.state_usage());
        let again = key_groups(after.snapshot(2, true).unwrap());
        let counts =
            |usage: &StateUsage| usage.key_groups.iter().map(|of| (of.key_group, of.entries)).collect::<Vec<_>>();
        assert_eq!(counts(&is), counts(&was), "{act}");
        assert_eq!(is.event_time_timers, was.event_time_timers);
        assert_eq!(is.processing_time_timers, was.processing_time_timers);
        let bytes = |of: &[RestoredKeyGroup]| of.iter().map(|of| (of.key_group, of.content.len())).collect::<Vec<_>>();
        assert_eq!(bytes(&again), bytes(&kept), "{act}");

        let mut damaged = kept;
        let cut = damaged[0].content.len() - 1;
        damaged[0].content.truncate(cut);
        let restore = SegmentRestore { key_groups: one_by_one(damaged), ..SegmentRestore::default() };
        let error = restored(&[], restore).map(|_| ()).unwrap_err();
        assert_eq!((error.failure, error.entry_point), (GuestFailure::RestoreFailed, EntryPoint::Open), "{error}");
        // What cannot be read may be readable at another time.
        let key_groups: RestoredKeyGroups = Box::new(std::iter::once(Err("could not read shared/1".to_owned())));
        let restore = SegmentRestore { key_groups, ..SegmentRestore::default() };
        let error = restored(&[], restore).map(|_| ()).unwrap_err();
        assert_eq!((error.failure, error.message.as_str()), (GuestFailure::StateStorage, "could not read shared/1"));
    }
}

#[test]
fn operator_states_are_kept_and_handed_out() {
    let mut segment = open(plugin(), &["snapshot", "operator-state-keep"], &patient(), CancelFlag::default()).unwrap();
    let lists = segment.snapshot(1, false).unwrap().lists;
    assert_eq!(lists, BTreeMap::from([(4, vec![b"a".to_vec(), Vec::new()])]));
    for at in ["open", "process-batch", "snapshot"] {
        let restore = SegmentRestore { lists: lists.clone(), ..SegmentRestore::default() };
        let mut segment = restored(&[at, "operator-state-kept"], restore).unwrap();
        segment.process_batch(0, &batch(8)).unwrap();
        // What is not put again stays.
        assert_eq!(segment.snapshot(2, false).unwrap().lists, lists, "{at}");
    }
}

#[test]
fn state_and_timers_do_what_the_contract_says() {
    for at in ["open", "process-batch", "process-watermark", "end-input"] {
        for act in ["state", "timers"] {
            let mut segment = open(plugin(), &[at, act], &patient(), CancelFlag::default()).unwrap();
            segment.process_batch(0, &batch(8)).unwrap();
            segment.process_watermark(Timestamp(4)).unwrap();
            segment.end_input(0).unwrap();
            let usage = segment.state_usage();
            let entries: u64 = usage.key_groups.iter().map(|group| group.entries).sum();
            let timers = [usage.event_time_timers, usage.processing_time_timers];
            assert_eq!((entries, timers), if act == "state" { (3, [0, 0]) } else { (0, [1, 1]) }, "{at} {act}");
        }
    }
}

#[test]
fn timers_are_fired_in_pieces_and_may_fail_or_be_canceled() {
    let mut segment = attack("timers-20000", &patient());
    segment.process_batch(0, &batch(1)).unwrap();
    assert_eq!(segment.state_usage().event_time_timers, 20_000);
    assert!(segment.fire_timers(TimeDomain::EventTime, Timestamp(4999)).unwrap());
    assert!(segment.fire_timers(TimeDomain::EventTime, Timestamp(4999)).unwrap());
    assert!(!segment.fire_timers(TimeDomain::EventTime, Timestamp(4999)).unwrap());
    assert!(!segment.fire_timers(TimeDomain::ProcessingTime, Timestamp::MAX).unwrap());
    assert_eq!(segment.target().count, 1 + 5000);
    assert_eq!(segment.state_usage().event_time_timers, 15_000);

    let cancel = CancelFlag::default();
    let mut segment = open(plugin(), &["process-batch", "timers"], &patient(), cancel.clone()).unwrap();
    segment.process_batch(0, &batch(1)).unwrap();
    assert_eq!(segment.next_processing_time(), Some(Timestamp(6)));
    assert!(!segment.fire_timers(TimeDomain::ProcessingTime, Timestamp(5)).unwrap());
    assert!(segment.fire_timers(TimeDomain::ProcessingTime, Timestamp(6)).unwrap());
    assert_eq!(segment.next_processing_time(), None);
    cancel.cancel();
    let error = segment.fire_timers(TimeDomain::EventTime, Timestamp(5)).unwrap_err();
    assert_eq!((error.failure, error.entry_point), (GuestFailure::Canceled, EntryPoint::FireTimers));
}

/// A segment that goes on with ten values.
fn with_ten_values(words: &[&str], limits: &SandboxLimits, cancel: CancelFlag) -> Segment<Recorder> {
    going_on_from("state-ten", words, limits, cancel)
}

/// A segment that goes on from the state and timers of another.
fn going_on_from(act: &str, words: &[&str], limits: &SandboxLimits, cancel: CancelFlag) -> Segment<Recorder> {
    let mut before = attack(act, &patient());
    before.process_batch(0, &batch(1)).unwrap();
    let restore = SegmentRestore {
        key_groups: one_by_one(key_groups(before.snapshot(1, true).unwrap())),
        ..SegmentRestore::default()
    };
    restored_with(words, restore, limits.clone(), cancel).unwrap()
}

fn entries(segment: &Segment<Recorder>) -> u64 {
    segment.state_usage().key_groups.iter().map(|group| group.entries).sum()
}

#[test]
fn state_is_handed_over_in_pieces_behind_what_the_plugin_keeps() {
    let mut segment = with_ten_values(&[], &patient(), CancelFlag::default());
    let mut left = Vec::new();
    while segment.take_state().unwrap() {
        left.push((segment.target().count, entries(&segment)));
    }
    // In tests a piece is three entries.
    assert_eq!(left, [(0, 10), (3, 7), (6, 4), (9, 1), (10, 0)]);
    assert!(!segment.take_state().unwrap(), "a state is handed over once");
    segment.process_watermark(Timestamp::MAX).unwrap();
    segment.end_input(0).unwrap();
    assert_eq!(segment.target().count, 10);
}

#[test]
fn an_attack_on_the_handing_over_of_state_names_it() {
    let mut limits = patient();
    limits.memory_bytes_max = 512 << 20;
    limits.state_bytes_max = 8 << 20;
    for (act, failure, part) in [
        ("unreachable", GuestFailure::Trap, "unreachable"),
        ("out-of-bounds", GuestFailure::Trap, "out of bounds memory access"),
        ("recurse", GuestFailure::StackOverflow, "sandbox.stack.max"),
        ("panic", GuestFailure::Panic, "the row is bad"),
        ("fail", GuestFailure::UserError, "cannot parse"),
        ("failed", GuestFailure::UserError, "without saying why"),
        ("emit-much", GuestFailure::OutputLimit, "sandbox.emit.bytes-max"),
        ("emit-many", GuestFailure::OutputLimit, "sandbox.emit.rows-max"),
        ("emit-large", GuestFailure::OutputLimit, "sandbox.row.bytes-max"),
        ("no-output", GuestFailure::BadBatch, "there is no output 7"),
        ("state-over-quota", GuestFailure::StateLimit, "raise state.bytes-max"),
        ("operator-state-put", GuestFailure::IllegalState, "may not be called in take-state"),
    ] {
        let mut segment = with_ten_values(&["take-state", act], &limits, CancelFlag::default());
        let error = segment.take_state().unwrap_err();
        assert_eq!((error.failure, error.entry_point), (failure, EntryPoint::TakeState), "{act}: {error}");
        let node = (act != "failed").then_some(2);
        assert_eq!((error.node, error.row), (node, None), "{act}: {error}");
        assert!(error.message.contains(part), "{act}: {error}");
        assert!(error.to_string().contains("in take-state"), "{act}: {error}");
        assert_eq!(segment.take_state(), Err(error), "{act}");
        assert_eq!(segment.memory_bytes(), 0, "the store is gone");
    }
}

/// One says that it has more and the other puts back what it was handed: both go on until they are told to end.
#[test]
fn a_plugin_that_never_has_taken_all_is_canceled() {
    for (act, expected) in [("more", 0), ("state-ten", 3 * 99)] {
        let cancel = CancelFlag::default();
        let mut segment = with_ten_values(&["take-state", act], &patient(), cancel.clone());
        for _ in 0..100 {
            assert!(segment.take_state().unwrap(), "{act}");
        }
        assert_eq!(segment.target().count, expected, "{act}");
        assert!(entries(&segment) <= 10, "{act}");
        cancel.cancel();
        let error = segment.take_state().unwrap_err();
        assert_eq!((error.failure, error.entry_point), (GuestFailure::Canceled, EntryPoint::TakeState), "{error}");
    }
}

#[test]
fn state_and_timers_are_refused_where_they_are_forbidden() {
    for act in ["state", "state-read", "timers", "time"] {
        let planned = plugin().plan(&args(&["plan", act]), &patient()).unwrap_err();
        let described = {
            let mut instance =
                plugin().instantiate(patient(), 0, CancelFlag::default(), Box::<Recorder>::default()).unwrap();
            instance.plan(&args(&["describe", act])).unwrap();
            instance.describe().unwrap_err()
        };
        let mut segment = open(plugin(), &["close", act], &patient(), CancelFlag::default()).unwrap();
        let closed = segment.close().unwrap_err();
        for (at, error) in [("plan", planned), ("describe", described), ("close", closed)] {
            assert_eq!(error.failure, GuestFailure::IllegalState, "{error}");
            assert!(error.message.contains(&format!("may not be called in {at}")), "{error}");
        }
    }
    let not_keyed = SegmentContext { is_keyed: false, ..context() };
    let mut segment =
        open_in(plugin(), &not_keyed, &["process-batch", "timers"], &patient(), CancelFlag::default()).unwrap();
    let error = segment.process_batch(0, &batch(8)).unwrap_err();
    assert_eq!(error.failure, GuestFailure::IllegalState, "{error}");
    assert!(error.message.contains("only an operator behind key_by has timers"), "{error}");
}

#[test]
fn a_key_of_another_subtask_is_refused() {
    let context = SegmentContext { subtask_index: 2, parallelism: 4, ..context() };
    let words = ["process-batch", "state-foreign"];
    let mut segment = open_in(plugin(), &context, &words, &patient(), CancelFlag::default()).unwrap();
    let error = segment.process_batch(0, &batch(8)).unwrap_err();
    assert_eq!(error.failure, GuestFailure::WrongKeyGroup, "{error}");
    for part in ["state \"value\" of operator \"hostile 1\"", "key \"\\x00\"", "this one has 64 to 95"] {
        assert!(error.message.contains(part), "{error}");
    }
}

#[test]
fn state_and_timers_have_quotas() {
    let mut limits = patient();
    limits.memory_bytes_max = 512 << 20;
    limits.state_bytes_max = 8 << 20;
    limits.state_timers_max = 1000;
    let check = |act: &str, failure: GuestFailure, parts: &[&str]| {
        let (error, segment) = run(act, &limits);
        assert_eq!(error.failure, failure, "{error}");
        assert!(parts.iter().all(|part| error.message.contains(part)), "{error}");
        assert!(!error.message.contains(char::is_control), "{error:?}");
        segment.state_usage()
    };
    let bytes = |usage: &StateUsage| usage.key_groups.iter().map(|group| group.bytes).sum::<u64>();
    let value = "state \"value\" of operator \"hostile 1\", key ";
    let parts = [value, "the value has 104857600 bytes, the limit is 16777216: raise state.value.bytes-max"];
    check("state-long-value", GuestFailure::StateValueLimit, &parts);
    let parts = [value, "more than 8388608 bytes", "raise state.bytes-max"];
    for act in ["state-over-quota", "state-tiny-over-quota"] {
        let bytes = bytes(&check(act, GuestFailure::StateLimit, &parts));
        assert!(bytes < 10 << 20, "{act}: {bytes}");
    }
    let parts = ["timers of operator \"hostile 1\", key \"key\"", "more than 1000 timers", "raise state.timers.max"];
    let usage = check("timers-many", GuestFailure::TimerLimit, &parts);
    assert_eq!(usage.event_time_timers, 1001);
}

#[test]
fn what_a_call_returns_is_limited() {
    check("state-flood", GuestFailure::MemoryLimit, "one call asked for more than 67108864 bytes (sandbox.memory.max)");
}

#[test]
fn a_loop_of_long_lists_ends() {
    let (error, _) = run("state-loop", &limits());
    assert_eq!(error.failure, GuestFailure::CpuTime, "{error}");
}

#[test]
fn malformed_entries_are_refused() {
    let check = |act: &str, message: &str| check(act, GuestFailure::BadBatch, message);
    check(
        "state-cut",
        "state \"value\" of operator \"hostile 1\": the list of 1 entries ends in the middle of the 1th",
    );
    check("state-long-length", "ends in the middle of the 1th");
    check("state-wrong-count", "the list of 4294967295 entries ends in the middle of the 2th");
    check("state-bad-elements", "the elements of a list are not well formed");
    check("state-no-end-of-life", "a value does not begin with its end of life");
    check("state-wrong-kind", "append-many does not fit what the state holds");
    check("state-not-by-key", "the state is not kept by key");
    check("state-unknown", "there is no state 4294967295: the operators declared 5");
    check("state-out-of-bounds", "out of bounds");
    check("timers-cut", "the list of 2 timers ends in the middle of the 2th");
    check("timers-domain", "the 1th timer has the time domain 2, known are 0 and 1");
}

#[test]
fn a_log_flood_is_cut_to_the_rate_and_cannot_steer_a_terminal() {
    let mut limits = patient();
    limits.call_cpu_time = Duration::from_secs(60);
    let mut segment = attack("log-flood", &limits);
    segment.process_batch(0, &batch(1)).unwrap();
    let lines = &segment.target().lines;
    let line = "\\u{1b}[2Jone\\ntwo\\u{202e}";
    assert!(lines.iter().all(|(level, text)| *level == LogLevel::Warn && text == line));
    // The clock stands still: what comes through is one burst of four seconds.
    let burst = 4 * usize::try_from(limits.log_bytes_per_second).unwrap();
    assert_eq!(lines.len(), burst / line.len());
    assert_eq!(segment.dropped_log_lines(), 200_000 - lines.len() as u64);
}

#[test]
fn log_lines_are_cut_and_those_below_the_level_left_out() {
    let mut segment = attack("log-long", &patient());
    segment.process_batch(0, &batch(1)).unwrap();
    assert_eq!(segment.target().lines, [(LogLevel::Error, format!("{}…", "é".repeat(512)))]);
    let mut segment = attack("log-debug", &patient());
    segment.process_batch(0, &batch(1)).unwrap();
    assert_eq!(segment.target().lines, []);
    assert_eq!(segment.dropped_log_lines(), 0);
}

#[test]
fn metrics_are_counted_and_limited() {
    let mut segment = attack("metrics", &patient());
    segment.process_batch(0, &batch(1)).unwrap();
    segment.process_batch(0, &batch(1)).unwrap();
    let metrics: Vec<_> =
        segment.metrics().into_iter().map(|metric| (metric.node, metric.name, metric.value)).collect();
    let expected = [(1, "rows".to_owned(), MetricValue::Counter(6)), (2, "depth".to_owned(), MetricValue::Gauge(1.5))];
    assert_eq!(metrics, expected);

    let mut segment = attack("metrics-many", &patient());
    segment.process_batch(0, &batch(1)).unwrap();
    assert_eq!(segment.metrics().len(), 100);
    assert_eq!(segment.dropped_metrics(), 100_002 - 100);
    check("metric-unknown", GuestFailure::IllegalState, "no metric of this kind has the handle 77");
}

#[test]
fn a_graph_other_than_the_submitted_one_is_refused() {
    let error = open(plugin(), &["plan", "other-graph"], &patient(), CancelFlag::default()).err().unwrap();
    assert_eq!((error.failure, error.entry_point), (GuestFailure::GraphMismatch, EntryPoint::Plan));
    assert!(error.message.contains("nothing but its arguments"), "{error}");
}

#[test]
fn a_graph_that_is_too_large_is_refused() {
    let mut limits = patient();
    limits.memory_bytes_max = 1 << 30;
    let error = plugin().plan(&args(&["plan", "many-nodes"]), &limits).unwrap_err();
    assert_eq!(error.failure, GuestFailure::OutputLimit, "{error}");
}

#[test]
fn a_failed_segment_answers_with_its_failure_and_keeps_its_target() {
    let (error, mut segment) = run("panic", &patient());
    assert_eq!(segment.process_batch(0, &batch(1)), Err(error.clone()));
    assert_eq!(segment.close(), Err(error));
    assert_eq!(segment.target().count, 0);
    assert_eq!(segment.metrics(), []);
}

#[test]
fn a_batch_larger_than_the_memory_of_the_guest_fails_the_guest() {
    let mut segment = open(plugin(), &[], &patient(), CancelFlag::default()).unwrap();
    let row = vec![0; 70 << 20];
    let mut data = Vec::new();
    engine_rows::row::append(&mut data, engine_rows::row::Row { key_hash: 0, timestamp: 0, payload: &row });
    let batch = RecordBatch { kind: BatchKind::Rows, count: 1, data: data.into() };
    assert_eq!(segment.process_batch(0, &batch).unwrap_err().failure, GuestFailure::MemoryLimit);
}
