//! Whole tasks on their threads, wired in one process.

mod checkpoints;
mod event_time;
mod harness;
mod plugins;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, mpsc},
    time::Duration,
};

use proptest::prelude::*;

use self::harness::*;
use super::*;
use crate::{
    base::{
        clock::Timestamp,
        stream_element::{StopMode, StreamElement, WatermarkStatus},
    },
    connector::{SourceSplit, SplitAssignment},
    graph::stream_graph::{Operator, Partitioner},
    state::TimeDomain,
    task_manager::network::{FlushPolicy, NetworkConfig, ResultPartition, ResultPartitionSettings},
    wasm::GuestFailure,
};

const SMALL: &[(&str, &str)] =
    &[("taskmanager.memory.segment-size", "64"), ("taskmanager.network.memory.max-buffers-per-channel", "2")];

fn numbers(count: u8) -> VecDeque<Vec<u8>> {
    (0..count).collect::<Vec<_>>().chunks(10).map(<[u8]>::to_vec).collect()
}

fn only(job: &TestJob) -> ExecutionAttemptId {
    assert_eq!(job.deployments.len(), 1);
    job.deployments[0].attempt
}

#[test]
fn a_job_of_three_vertices_delivers_every_row_and_ends_in_order() {
    let nodes = [source(1, 2, "numbers"), guest(2, 2), guest(3, 3), guest(4, 3), sink(5, 3)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Hash), chained(3, 4), edge(4, 5, Partitioner::Rebalance)];
    let job = TestJob::new(&nodes, &edges, SMALL);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = Some(numbers(100));
    // The enumerator has nothing for a moment.
    cluster.splits.as_mut().unwrap().insert(1, Vec::new());
    cluster.start_all(&job);
    let finished = cluster.until_finished();

    assert_eq!(cluster.sorted_rows(), (0..100).map(|number| vec![number]).collect::<Vec<_>>());
    let calls = cluster.calls.lock().unwrap();
    let segments: Vec<_> = calls.keys().copied().collect();
    assert_eq!(segments, [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)]);
    for (segment, calls) in calls.iter() {
        let expected = [Call::Open, Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close];
        assert_eq!(calls[..], expected, "{segment:?}");
    }
    let end_states: Vec<_> = finished.iter().flat_map(|update| update.end_states.clone()).collect();
    assert_eq!(end_states.len(), 3);
    assert!(end_states.iter().all(|(node, state)| *node == 5 && state.committables.len() == 1));
}

#[test]
fn metrics_count_rows_bytes_and_time() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let mut cluster = Cluster::new(&job, Arc::new(|_, _, payload| Ok(vec![payload.to_vec(); 2])));
    cluster.splits = Some(numbers(20));
    cluster.start_all(&job);
    let finished = cluster.until_finished();
    let metrics = |index: usize| {
        let attempt = job.deployments[index].attempt;
        finished.iter().find(|update| update.attempt == attempt).unwrap().metrics.clone()
    };
    let (producer, consumer) = (metrics(0), metrics(1));
    assert_eq!((producer.records_in, producer.bytes_in), (20, 20 * 17));
    assert_eq!((producer.records_out, producer.bytes_out), (40, 40 * 17));
    assert_eq!((consumer.records_in, consumer.records_out), (40, 40));
    assert_eq!((producer.input_watermark, consumer.input_watermark), (None, Some(i64::MAX)));
    assert_eq!((producer.guest_memory_bytes, consumer.guest_memory_bytes), (65_536, 0));
    assert!(0 < producer.cpu_ns && 0 < consumer.cpu_ns);
    let by_operator: Vec<_> =
        producer.operators.iter().map(|metric| (metric.node, metric.name.as_str(), metric.value as i64)).collect();
    let expected = [
        (1, "numRecordsIn", 0),
        (1, "numRecordsOut", 20),
        (1, "currentOutputWatermark", i64::MAX),
        (2, "numRecordsIn", 20),
        (2, "numRecordsOut", 40),
        (2, "currentInputWatermark", i64::MAX),
        (2, "currentOutputWatermark", i64::MAX),
        (2, "stateBytes", 0),
        (2, "numStateEntries", 0),
        (2, "maxKeyGroupStateBytes", 0),
        (2, "numEventTimeTimers", 0),
        (2, "numProcessingTimeTimers", 0),
        (2, "calls", 7),
    ];
    assert_eq!(by_operator, expected);
}

#[test]
fn rows_of_one_producer_stay_in_order_on_each_channel() {
    let nodes = [source(1, 1, "numbers"), guest(2, 3), sink(3, 3)];
    let edges = [edge(1, 2, Partitioner::Rebalance), edge(2, 3, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, SMALL);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = Some(numbers(200));
    cluster.start_all(&job);
    cluster.until_finished();
    let collected = cluster.collected.lock().unwrap();
    assert_eq!(collected.len(), 3);
    for rows in collected.values() {
        assert!(rows.is_sorted());
        // Every third row, wherever the first one went.
        assert!(rows.windows(2).all(|pair| pair[1][0] - pair[0][0] == 3), "{rows:?}");
    }
}

#[test]
fn an_operator_with_two_inputs_ends_each_and_then_itself() {
    let two_inputs = TestNode { inputs: 2, ..guest(3, 1) };
    let nodes = [source(1, 2, "numbers"), source(2, 1, "lines"), two_inputs, sink(4, 1)];
    let second = TestEdge { input: 1, ..edge(2, 3, Partitioner::Rebalance) };
    let edges = [edge(1, 3, Partitioner::Rebalance), second, chained(3, 4)];
    let job = TestJob::new(&nodes, &edges, SMALL);
    let function: Function = Arc::new(|_, input, payload| {
        let mut row = vec![u8::try_from(input).unwrap()];
        row.extend_from_slice(payload);
        Ok(vec![row])
    });
    let mut cluster = Cluster::new(&job, function);
    cluster.splits = Some(numbers(5));
    cluster.start_all(&job);
    cluster.until_finished();
    let mut expected: Vec<Vec<u8>> = (0..5).map(|number| vec![0, number]).collect();
    expected.extend([&b"\x01a"[..], b"\x01bb", b"\x01", b"\x01ccc"].map(<[u8]>::to_vec));
    expected.sort();
    assert_eq!(cluster.sorted_rows(), expected);
    let calls = cluster.calls.lock().unwrap()[&(3, 0)].clone();
    assert_eq!(calls.iter().filter(|call| **call == Call::Watermark(Timestamp::MAX)).count(), 1);
    assert_eq!(calls.iter().filter(|call| **call == Call::EndInput(0)).count(), 1);
    assert_eq!(calls.iter().filter(|call| **call == Call::EndInput(1)).count(), 1);
    assert_eq!(calls.last(), Some(&Call::Close));
}

#[test]
fn event_time_timers_fire_in_pieces_before_their_watermark_goes_on() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, SMALL);
    // Each of ten rows registers 1,000 timers; each timer below 5 registers another one.
    let registers: Registers = Arc::new(|cause| match cause {
        Cause::Row(&[number]) => {
            let from = i64::from(number) * 1000;
            (from..from + 1000).map(|timestamp| (TimeDomain::EventTime, timestamp)).collect()
        }
        Cause::Timer(timestamp @ 0..5) => vec![(TimeDomain::EventTime, 20_000 + timestamp)],
        Cause::Timer(_) | Cause::Row(_) => Vec::new(),
    });
    let mut cluster = Cluster::with_timers(&job, Arc::new(|_, _, payload| Ok(vec![payload.to_vec()])), registers);
    cluster.splits = Some(numbers(10));
    cluster.start_all(&job);
    cluster.until_finished();
    let fired = |count| Call::FireTimers(TimeDomain::EventTime, Timestamp::MAX, count);
    let calls = cluster.calls.lock().unwrap()[&(2, 0)].clone();
    let end = [Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close];
    let expected = [vec![Call::Open, fired(4096), fired(4096), fired(1813)], end.to_vec()].concat();
    assert_eq!(calls, expected);
    // What they emitted came in the order of the timers.
    let rows = cluster.collected.lock().unwrap()[&(0, 0)].clone();
    assert_eq!(rows[..10], (0..10).map(|number| vec![number]).collect::<Vec<_>>());
    let timestamps = rows[10..].iter().map(|row| i64::from_be_bytes(row[..].try_into().unwrap()));
    assert!(timestamps.eq((0..10_000).chain(20_000..20_005)));
}

#[test]
fn state_is_taken_behind_the_last_timers_and_before_the_end_of_event_time_goes_on() {
    let nodes = [source(1, 1, "numbers"), taken(2, 1), guest(3, 1), sink(4, 1)];
    let edges = [edge(1, 2, Partitioner::Hash), edge(2, 3, Partitioner::Forward), edge(3, 4, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, SMALL);
    // A timer for the end of time is what older plugins have for each key.
    let registers: Registers = Arc::new(|cause| match cause {
        Cause::Row([0]) => vec![(TimeDomain::EventTime, i64::MAX), (TimeDomain::EventTime, 7)],
        Cause::Timer(_) | Cause::Row(_) => Vec::new(),
    });
    let mut cluster = Cluster::with_timers(&job, identity(), registers);
    cluster.splits = Some(numbers(10));
    cluster.start_all(&job);
    cluster.until_finished();
    let calls = |node| cluster.calls.lock().unwrap()[&(node, 0)].clone();
    let end = [Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close];
    let taken = [0, 3, 3, 3, 1].map(Call::TakeState);
    let fired = [Call::FireTimers(TimeDomain::EventTime, Timestamp::MAX, 2)];
    assert_eq!(calls(2), [&[Call::Open], &fired[..], &taken, &end].concat());
    // The operator behind it, which passes rows on, had all of them before its own timers fired.
    assert_eq!(calls(3), [&[Call::Open], &fired[..], &end].concat());
    let rows = cluster.collected.lock().unwrap()[&(0, 0)].clone();
    let of_timers = [7_i64, i64::MAX].map(|timestamp| timestamp.to_be_bytes().to_vec());
    assert_eq!((&rows[..2], &rows[12..]), (&of_timers[..], &of_timers[..]));
    let mut of_state = rows[2..12].to_vec();
    of_state.sort_unstable();
    assert_eq!(of_state, (0..10).map(|number| vec![number]).collect::<Vec<_>>());
}

#[test]
fn processing_time_timers_fire_a_millisecond_late_and_not_after_the_end() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    let edges = [chained(1, 2), chained(2, 3)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let registers: Registers = Arc::new(|cause| match cause {
        Cause::Row([1]) => vec![(TimeDomain::ProcessingTime, 1100), (TimeDomain::ProcessingTime, 1200)],
        Cause::Timer(1100) => vec![(TimeDomain::ProcessingTime, 1300), (TimeDomain::ProcessingTime, 900)],
        Cause::Timer(_) | Cause::Row(_) => Vec::new(),
    });
    let mut cluster = Cluster::with_timers(&job, identity(), registers);
    let clock = Clock::new_virtual(Timestamp(1000));
    cluster.services.clock = clock.clone();
    cluster.start_all(&job);
    let attempt = only(&job);
    let row = |cluster: &mut Cluster, number| {
        cluster.until_split_request();
        cluster.answer_split(attempt, 1, SplitAssignment::Split(SourceSplit(vec![number])));
        cluster.until(|cluster| cluster.collected.lock().unwrap().values().flatten().any(|row| *row == [number]));
    };
    let fired = |cluster: &Cluster| {
        let calls = cluster.calls.lock().unwrap()[&(2, 0)].clone();
        let times = calls.into_iter().filter_map(|call| match call {
            Call::FireTimers(TimeDomain::ProcessingTime, time, count) => Some((time.0, count)),
            _ => None,
        });
        times.collect::<Vec<_>>()
    };
    row(&mut cluster, 1);
    clock.advance(Duration::from_millis(100));
    // A row goes through while the time of the first timer has come but not passed.
    row(&mut cluster, 2);
    assert_eq!(fired(&cluster), []);
    cluster.until_metrics(attempt, |metrics| {
        let timers = metrics.operators.iter().find(|metric| metric.name == "numProcessingTimeTimers");
        timers.is_some_and(|timers| (timers.node, timers.value as u64) == (2, 2))
    });
    clock.advance(Duration::from_millis(1));
    // The timer for 900, which it registers, is overdue and fires at once.
    cluster.until(|cluster| fired(cluster) == [(1101, 1), (1101, 1)]);
    clock.advance(Duration::from_millis(150));
    cluster.until(|cluster| fired(cluster).len() == 3);
    assert_eq!(fired(&cluster)[2], (1251, 1));
    cluster.until_split_request();
    cluster.answer_split(attempt, 1, SplitAssignment::NoMoreSplits);
    cluster.until_finished();
    assert_eq!(fired(&cluster).len(), 3, "the timer for 1300 is discarded");
}

#[test]
fn the_subtask_that_holds_the_watermark_back_is_named() {
    let nodes = [source(1, 2, "numbers"), source(2, 1, "lines"), guest(3, 1), sink(4, 1)];
    let edges = [edge(1, 3, Partitioner::Rebalance), edge(2, 3, Partitioner::Rebalance), chained(3, 4)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = None;
    cluster.start_all(&job);
    let attempt = |vertex: &str, subtask: u32| {
        let vertex = job.info.vertices.iter().find(|known| known.name == vertex).unwrap().id;
        let attempts = job.deployments.iter().map(|deployment| deployment.attempt);
        let mut attempts = attempts.filter(|attempt| attempt.execution_vertex.vertex == vertex);
        attempts.find(|attempt| attempt.execution_vertex.subtask_index == subtask).unwrap()
    };
    // "lines" ends at once, and the first subtask of "numbers" is told to.
    cluster.until_split_request();
    cluster.until_split_request();
    cluster.answer_split(attempt("op1", 0), 1, SplitAssignment::NoMoreSplits);
    let holding = |subtask_index| HoldingSubtask { vertex: "op1".into(), subtask_index, watermark: None };
    cluster.until_metrics(attempt("op3 -> op4", 0), |metrics| metrics.held_back_by == Some(holding(1)));
    cluster.answer_split(attempt("op1", 1), 1, SplitAssignment::NoMoreSplits);
    let finished = cluster.until_finished();
    assert!(finished.iter().all(|update| update.metrics.held_back_by.is_none()));
}

#[test]
fn a_union_takes_the_least_watermark_of_its_gates() {
    let nodes = [source(1, 1, "numbers"), source(2, 1, "lines"), guest(3, 1), sink(4, 1)];
    let edges = [edge(1, 3, Partitioner::Rebalance), edge(2, 3, Partitioner::Rebalance), chained(3, 4)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = Some(numbers(3));
    cluster.start_all(&job);
    cluster.until_finished();
    assert_eq!(cluster.sorted_rows().len(), 3 + 4);
    let calls = cluster.calls.lock().unwrap()[&(3, 0)].clone();
    assert_eq!(calls, [Call::Open, Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close]);
}

#[test]
fn watermarks_of_the_channels_are_combined_before_an_operator_sees_them() {
    // The test itself is the producer, with two subtasks.
    let nodes = [source(1, 2, "numbers"), guest(2, 1), guest(3, 1), sink(4, 1)];
    let edges = [edge(1, 2, Partitioner::Rebalance), chained(2, 3), edge(3, 4, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let mut cluster = Cluster::new(&job, identity());
    let mut producers: Vec<_> = job.deployments[..2]
        .iter()
        .map(|deployment| {
            let settings = ResultPartitionSettings {
                id: deployment.partitions[0].partition,
                partitioner: Partitioner::Rebalance,
                subpartitions: 1,
                consumer_max_parallelism: 128,
                flush: FlushPolicy::WhenFull,
                network: NetworkConfig::new(&job.info.configuration),
            };
            ResultPartition::new(&cluster.services.partitions, &settings)
        })
        .collect();
    cluster.start(&job, &job.deployments[2]);
    cluster.start(&job, &job.deployments[3]);
    let watermark = |at| StreamElement::Watermark(Timestamp(at));
    let status = StreamElement::WatermarkStatus;
    let expected = [
        (0, watermark(5), None),
        (1, watermark(3), Some(Call::Watermark(Timestamp(3)))),
        (1, status(WatermarkStatus::Idle), Some(Call::Watermark(Timestamp(5)))),
        (0, status(WatermarkStatus::Idle), Some(Call::Status(WatermarkStatus::Idle))),
        (1, status(WatermarkStatus::Active), Some(Call::Status(WatermarkStatus::Active))),
        (1, watermark(9), Some(Call::Watermark(Timestamp(9)))),
        (0, status(WatermarkStatus::Active), None),
        (0, watermark(i64::MAX), None),
        (1, watermark(i64::MAX), Some(Call::Watermark(Timestamp::MAX))),
        (0, StreamElement::EndOfData(StopMode::Drain), None),
        (1, StreamElement::EndOfData(StopMode::Drain), Some(Call::EndInput(0))),
    ];
    let mut calls = vec![Call::Open];
    for (producer, element, call) in expected {
        producers[producer].broadcast(&element);
        calls.extend(call);
        // The channels are read in turn, so that each element is awaited where it makes a call.
        cluster.until(|cluster| cluster.calls.lock().unwrap().get(&(2, 0)) == Some(&calls));
        if element == watermark(3) {
            cluster.until_metrics(job.deployments[2].attempt, |metrics| {
                let holding = metrics.held_back_by.as_ref();
                holding.map(|holding| (holding.subtask_index, holding.watermark)) == Some((1, Some(3)))
            });
        }
    }
    producers.iter_mut().for_each(|producer| producer.broadcast(&StreamElement::EndOfPartition));
    cluster.until_finished();
    calls.push(Call::Close);
    assert_eq!(cluster.calls.lock().unwrap()[&(2, 0)], calls);
}

#[test]
fn a_stop_without_drain_finishes_no_operator() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    let edges = [edge(1, 2, Partitioner::Forward), chained(2, 3)];
    let job = TestJob::new(&nodes, &edges, &[]);
    let mut cluster = Cluster::new(&job, identity());
    let settings = ResultPartitionSettings {
        id: job.deployments[0].partitions[0].partition,
        partitioner: Partitioner::Forward,
        subpartitions: 1,
        consumer_max_parallelism: 128,
        flush: FlushPolicy::WhenFull,
        network: NetworkConfig::new(&job.info.configuration),
    };
    let mut producer = ResultPartition::new(&cluster.services.partitions, &settings);
    cluster.start(&job, &job.deployments[1]);
    producer.broadcast(&StreamElement::EndOfData(StopMode::NoDrain));
    producer.broadcast(&StreamElement::EndOfPartition);
    let finished = cluster.until_finished();
    assert_eq!(finished[0].end_states, [(3, OperatorSubtaskState::default())].into());
    assert_eq!(cluster.calls.lock().unwrap()[&(2, 0)], [Call::Open, Call::Close]);
}

#[test]
fn a_source_of_the_plugin_is_polled_to_its_end() {
    let operator = Operator::GuestSource("Counter".into());
    let nodes = [TestNode { operator, inputs: 0, ..guest(1, 2) }, sink(2, 2)];
    let job = TestJob::new(&nodes, &[chained(1, 2)], &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.until_finished();
    let rows = |number: u32| number.to_le_bytes().to_vec();
    assert_eq!(cluster.sorted_rows(), [rows(1), rows(1), rows(3), rows(3)]);
    let calls = cluster.calls.lock().unwrap()[&(1, 0)].clone();
    assert_eq!(calls, [Call::Open, Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close]);
}

#[test]
fn rows_that_one_exit_sends_to_several_are_all_there() {
    // One operator feeds a chained sink, a chained operator and two partitions.
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1), guest(4, 1), sink(5, 1), sink(6, 2), sink(7, 2)];
    let edges = [
        chained(1, 2),
        chained(2, 3),
        chained(2, 4),
        chained(4, 5),
        edge(2, 6, Partitioner::Broadcast),
        edge(2, 7, Partitioner::Hash),
    ];
    let job = TestJob::new(&nodes, &edges, SMALL);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = Some(numbers(50));
    cluster.start_all(&job);
    cluster.until_finished();
    let mut counts = BTreeMap::new();
    cluster.sorted_rows().into_iter().for_each(|row| *counts.entry(row).or_insert(0) += 1);
    assert_eq!(counts.len(), 50);
    // Two chained sinks, twice by broadcast, once by hash.
    assert!(counts.values().all(|count| *count == 5), "{counts:?}");
}

#[test]
fn lines_reach_a_forward_consumer_as_lines() {
    let nodes = [source(1, 1, "lines"), sink(2, 1)];
    let job = TestJob::new(&nodes, &[edge(1, 2, Partitioner::Forward)], &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.until_finished();
    assert_eq!(cluster.collected.lock().unwrap()[&(0, 0)], [&b"a\n"[..], b"bb\n", b"\n", b"ccc\n"]);
}

#[test]
fn a_task_with_an_empty_gate_is_cancelled() {
    let job = TestJob::new(&[source(1, 1, "idle"), sink(2, 1)], &[edge(1, 2, Partitioner::Forward)], &[]);
    let consumer = job.deployments[1].attempt;
    let mut cluster = Cluster::new(&job, identity());
    cluster.start(&job, &job.deployments[1]);
    cluster.until_metrics(consumer, |metrics| 0 < metrics.idle_ms);
    cluster.cancel(consumer);
    assert_eq!(cluster.states[&consumer], [TaskState::Initializing, TaskState::Running, TaskState::Canceled]);
    assert_eq!(cluster.services.partitions.waiting_count(), 0);
}

#[test]
fn a_task_with_a_full_output_waits_with_bounded_memory_and_is_cancelled() {
    let settings =
        [("taskmanager.memory.segment-size", "1 kb"), ("taskmanager.network.memory.max-buffers-per-channel", "3")];
    let nodes = [source(1, 1, "endless"), guest(2, 1), sink(3, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &settings);
    let producer = job.deployments[0].attempt;
    let mut cluster = Cluster::new(&job, identity());
    cluster.start(&job, &job.deployments[0]);
    cluster.until_metrics(producer, |metrics| 5 < metrics.back_pressured_ms);
    // Three buffers in the queue, one that waits for room, one that is being filled.
    assert_eq!(cluster.polls.load(Ordering::SeqCst), 5);
    let update = cluster.cancel(producer);
    assert_eq!(update.metrics.records_out, 5);
    assert!(5 < update.metrics.back_pressured_ms);
}

#[test]
fn a_split_that_comes_while_the_output_is_full_is_taken() {
    let timed = TestEdge { buffer_timeout: 1, ..edge(1, 2, Partitioner::Forward) };
    let settings = [("taskmanager.network.memory.max-buffers-per-channel", "1")];
    let job = TestJob::new(&[source(1, 1, "numbers"), sink(2, 1)], &[timed], &settings);
    let producer = job.deployments[0].attempt;
    let mut cluster = Cluster::new(&job, identity());
    // Two splits fill the queue and what waits for room behind it.
    cluster.splits = None;
    cluster.start(&job, &job.deployments[0]);
    for number in [0, 1] {
        cluster.until_split_request();
        cluster.answer_split(producer, 1, SplitAssignment::Split(SourceSplit(vec![number])));
        cluster.until_metrics(producer, |metrics| u64::from(number) < metrics.records_out);
        // After five idle milliseconds the buffer timeout of one has passed.
        let idle = cluster.tasks[&producer].metrics().idle_ms;
        cluster.until_metrics(producer, |metrics| idle + 5 < metrics.idle_ms + metrics.back_pressured_ms);
    }
    cluster.until_split_request();
    cluster.until_metrics(producer, |metrics| 1 < metrics.back_pressured_ms);
    cluster.answer_split(producer, 1, SplitAssignment::NoMoreSplits);
    cluster.start(&job, &job.deployments[1]);
    cluster.until_finished();
    assert_eq!(cluster.sorted_rows(), [[0], [1]]);
}

#[test]
fn a_guest_that_loops_is_cancelled() {
    let nodes = [source(1, 1, "endless"), guest(2, 1), sink(3, 1)];
    let job = TestJob::new(&nodes, &[chained(1, 2), chained(2, 3)], &[]);
    let (looping, loops) = mpsc::sync_channel(1);
    let function: Function = Arc::new(move |_, _, _| {
        looping.send(()).unwrap();
        Err(GuestFailure::Canceled)
    });
    let mut cluster = Cluster::new(&job, function);
    cluster.start_all(&job);
    loops.recv_timeout(DEADLINE).unwrap();
    cluster.cancel(only(&job));
}

#[test]
fn a_task_whose_source_has_nothing_is_cancelled() {
    let job = TestJob::new(&[source(1, 1, "idle"), sink(2, 1)], &[chained(1, 2)], &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.until_metrics(only(&job), |metrics| 0 < metrics.idle_ms);
    cluster.cancel(only(&job));
}

#[test]
fn a_task_that_waits_for_a_split_is_cancelled() {
    let job = TestJob::new(&[source(1, 1, "numbers"), sink(2, 1)], &[chained(1, 2)], &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = None;
    cluster.start_all(&job);
    cluster.until_metrics(only(&job), |metrics| 0 < metrics.idle_ms);
    cluster.cancel(only(&job));
}

#[test]
fn a_task_that_waits_for_its_plugin_is_cancelled() {
    struct Never(mpsc::SyncSender<()>, std::sync::Mutex<mpsc::Receiver<()>>);
    impl PluginProvider for Never {
        fn plugin(&self, _: BlobDigest) -> Result<SharedPlugin, FailureCause> {
            self.0.send(()).unwrap();
            // Until the test ends.
            let ended = self.1.lock().unwrap().recv();
            Err(misfit(format!("{ended:?}")))
        }
    }
    let job = TestJob::new(&[source(1, 1, "numbers"), guest(2, 1)], &[chained(1, 2)], &[]);
    let (asked, asks) = mpsc::sync_channel(1);
    let (_end, ends) = mpsc::sync_channel(1);
    let mut cluster = Cluster::new(&job, identity());
    cluster.services.plugins = Arc::new(Never(asked, std::sync::Mutex::new(ends)));
    cluster.start_all(&job);
    asks.recv_timeout(DEADLINE).unwrap();
    cluster.cancel(only(&job));
    assert_eq!(cluster.states[&only(&job)], [TaskState::Initializing, TaskState::Canceled]);
}

#[test]
fn a_consumer_whose_producer_is_gone_waits_for_the_word_of_the_job_master() {
    let job = TestJob::new(&[source(1, 1, "numbers"), sink(2, 1)], &[edge(1, 2, Partitioner::Forward)], &[]);
    let (producer, consumer) = (job.deployments[0].attempt, job.deployments[1].attempt);
    let mut cluster = Cluster::new(&job, identity());
    cluster.splits = None;
    cluster.start_all(&job);
    cluster.until_running(producer);
    cluster.cancel(producer);
    cluster.tasks[&consumer].fail("its producer failed");
    let update = cluster.until_update(|update| update.attempt == consumer && is_terminal(update.state));
    assert_eq!(update.state, TaskState::Failed);
    assert_eq!(update.cause.unwrap().code, "stopped");
}

#[test]
fn a_task_whose_peer_is_gone_fails_by_itself_in_the_end() {
    let times = Arc::new(TaskTimes::new(Clock::System.monotonic()));
    let (mut mailbox, sender) = Mailbox::new(Clock::System, times, std::time::Duration::ZERO);
    mailbox.wait_for_stop("producer-gone", "the producer is gone");
    let message = "the producer is gone".to_owned();
    assert_eq!(sender.stop_reason(), Some(StopReason::Failed { code: "producer-gone", message }));
}

#[test]
fn a_dropped_handle_ends_the_task() {
    let job = TestJob::new(&[source(1, 1, "idle"), sink(2, 1)], &[chained(1, 2)], &[]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.tasks.clear();
    cluster.until_update(|update| update.state == TaskState::Canceled);
}

#[test]
fn a_cancel_with_a_full_mailbox_arrives() {
    let times = Arc::new(TaskTimes::new(Clock::System.monotonic()));
    let (mut mailbox, sender) = Mailbox::new(Clock::System, times, std::time::Duration::ZERO);
    let job = TestJob::new(&[source(1, 1, "idle"), sink(2, 1)], &[chained(1, 2)], &[]);
    let assignment = SplitAssignment::NoMoreSplits;
    for _ in 0..256 {
        let answer = SplitAnswer { attempt: only(&job), node: 1, assignment: assignment.clone() };
        sender.send(TaskMessage::SplitAssigned(answer));
    }
    assert_eq!(sender.stop_reason(), None);
    sender.stop(StopReason::Canceled);
    assert!(mailbox.take_messages().is_err());
    assert_eq!(sender.stop_reason(), Some(StopReason::Canceled));
}

#[track_caller]
fn failure(nodes: &[TestNode], edges: &[TestEdge], settings: &[(&str, &str)], function: Function) -> FailureCause {
    let job = TestJob::new(nodes, edges, settings);
    let mut cluster = Cluster::new(&job, function);
    cluster.splits = Some(numbers(5));
    cluster.start_all(&job);
    let update = cluster.until_update(|update| update.state == TaskState::Failed);
    update.cause.unwrap()
}

#[test]
fn failures_name_job_operator_subtask_plugin_and_position() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), guest(3, 1), sink(4, 1)];
    let edges = [chained(1, 2), chained(2, 3), chained(3, 4)];
    let fail_with = |failure: GuestFailure| -> Function {
        Arc::new(
            move |node, _, payload| {
                if (node, payload) == (3, &[2][..]) { Err(failure) } else { Ok(vec![payload.to_vec()]) }
            },
        )
    };
    let cause = failure(&nodes, &edges, &[], fail_with(GuestFailure::Panic));
    assert_eq!(cause.code, "guest-panic");
    assert_eq!(
        cause.message,
        "job \"test\", operator \"op3\" (subtask 1/1, attempt 0): plugin test.wasm, in process-batch, input 0, \
         row 2 of the batch, from numbers at 5: failed on purpose; if the row caused it, return an error instead of \
         panicking: such rows can be skipped"
    );
    assert_eq!(cause.detail, "inner\nouter");
    assert_eq!(cause.recoverability, Recoverability::Recoverable);

    let cause = failure(&nodes, &edges, &[], fail_with(GuestFailure::CpuTime));
    assert_eq!(cause.code, "cpu-time");
    assert!(cause.message.ends_with("; raise sandbox.call.cpu-time if the work is meant"), "{}", cause.message);

    let cause = failure(&nodes, &edges, &[], fail_with(GuestFailure::UserError));
    assert_eq!(cause.code, "user-error");

    let gated = [edge(1, 2, Partitioner::Forward), chained(2, 3), chained(3, 4)];
    let cause = failure(&nodes, &gated, &[], fail_with(GuestFailure::Trap));
    assert_eq!(cause.code, "guest-trap");
    assert!(cause.message.contains(", from input gate 0, channel 0: "), "{}", cause.message);
}

#[test]
fn a_source_that_fails_or_panics_fails_the_task() {
    let edges = [chained(1, 2)];
    let cause = failure(&[source(1, 1, "bad"), sink(2, 1)], &edges, &[], identity());
    assert_eq!(cause.code, "bad-row");
    assert_eq!(
        cause.message,
        "job \"test\", operator \"op1\" (subtask 1/1, attempt 0): in.json line 3: field \"price\": expected a number; \
         to go on without such rows, set execution.row-errors.policy to skip or dead-letter"
    );
    let cause = failure(&[source(1, 1, "panic"), sink(2, 1)], &edges, &[], identity());
    assert_eq!(cause.code, "internal");
    assert!(cause.message.ends_with("which is a bug: the reader panicked"), "{}", cause.message);
}

fn refuse_three() -> Function {
    Arc::new(|_, _, payload| if payload == [3] { Err(GuestFailure::UserError) } else { Ok(vec![payload.to_vec()]) })
}

#[test]
fn refused_rows_are_skipped_and_counted() {
    let nodes = [source(1, 1, "numbers"), guest(2, 1), sink(3, 1)];
    let job = TestJob::new(&nodes, &[chained(1, 2), chained(2, 3)], &[("execution.row-errors.policy", "skip")]);
    let mut cluster = Cluster::new(&job, refuse_three());
    cluster.splits = Some(numbers(5));
    cluster.start_all(&job);
    let finished = cluster.until_finished();
    assert_eq!(cluster.sorted_rows(), [[0], [1], [2], [4]]);
    assert_eq!(finished[0].metrics.rejected_rows, 1);
}

#[test]
fn refused_rows_are_put_aside_with_their_coordinates() {
    let directory = tempfile::tempdir().unwrap();
    let letters = directory.path().canonicalize().unwrap().join("letters");
    let settings = [
        ("execution.row-errors.policy", "dead-letter"),
        ("execution.row-errors.dead-letter.dir", letters.to_str().unwrap()),
    ];
    let nodes = [source(1, 1, "numbers"), guest(2, 1), source(3, 1, "bad"), sink(4, 1)];
    let edges = [chained(1, 2), chained(2, 4), edge(3, 2, Partitioner::Forward)];
    let mut job = TestJob::new(&nodes, &edges, &settings);
    job.info.grants.write = vec![letters.clone()];
    let mut cluster = Cluster::new(&job, refuse_three());
    cluster.splits = Some(numbers(5));
    cluster.start_all(&job);
    cluster.until_finished();

    let read = |head: u32| {
        let path = letters.join(format!("{}-{head}-0.jsonl", job.info.job));
        let text = std::fs::read_to_string(path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let expected = serde_json::json!({
        "job": job.info.job.to_string(), "jobName": "test", "operator": "op2", "node": 2, "subtask": 0, "attempt": 0,
        "position": "numbers at 5", "message": "refused", "payload": "\u{3}",
    });
    assert_eq!(read(1), [expected]);
    let expected = serde_json::json!({
        "job": job.info.job.to_string(), "jobName": "test", "operator": "op3", "node": 3, "subtask": 0, "attempt": 0,
        "position": "in.json line 3", "message": "field \"price\": expected a number", "payloadHex": "ff7b",
    });
    assert_eq!(read(3), [expected]);
}

#[test]
fn dead_letters_need_a_granted_directory() {
    let nodes = [source(1, 1, "numbers"), sink(2, 1)];
    let edges = [chained(1, 2)];
    let dead_letter = ("execution.row-errors.policy", "dead-letter");
    let cause = failure(&nodes, &edges, &[dead_letter], identity());
    assert!(cause.message.contains("execution.row-errors.dead-letter.dir"), "{}", cause.message);
    assert_eq!(cause.recoverability, Recoverability::Unrecoverable);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let cause = failure(&nodes, &edges, &[dead_letter, ("execution.row-errors.dead-letter.dir", path)], identity());
    assert!(cause.message.contains(&format!("--allow-write {path}")), "{}", cause.message);
}

#[test]
fn a_deployment_that_does_not_fit_is_refused() {
    let job = TestJob::new(&[source(1, 1, "numbers"), sink(2, 1)], &[edge(1, 2, Partitioner::Forward)], &[]);
    let cluster = Cluster::new(&job, identity());
    let mut deployment = job.deployments[1].clone();
    deployment.gates.clear();
    let refused = start(Arc::new(job.info.clone()), deployment, &cluster.services).err().unwrap();
    assert_eq!(refused.code, "deployment");
    assert_eq!(refused.message, "vertex \"op2\" has 1 inputs, but 0 input gates were deployed");
}

/// What node `node` makes of a row: passes it on, drops some, or doubles it.
fn model_function(node: u32, payload: &[u8]) -> Vec<Vec<u8>> {
    let mut row = payload.to_vec();
    row.push(u8::try_from(node).unwrap());
    match node % 3 {
        0 if payload[0].is_multiple_of(4) => vec![],
        1 => vec![payload.to_vec(), row],
        _ => vec![row],
    }
}

/// A tree of operators behind a source, with a sink behind each leaf.
fn topology() -> impl Strategy<Value = (Vec<TestNode>, Vec<TestEdge>)> {
    let partitioner = prop::sample::select(vec![
        None,
        Some(Partitioner::Forward),
        Some(Partitioner::Rebalance),
        Some(Partitioner::Rescale),
        Some(Partitioner::Shuffle),
        Some(Partitioner::Broadcast),
        Some(Partitioner::Global),
        Some(Partitioner::Hash),
        Some(Partitioner::Custom),
    ]);
    let step = (any::<prop::sample::Index>(), partitioner, 1_u32..4, prop::sample::select(vec![0_i64, -1, 1, 100]));
    (1_u32..4, prop::collection::vec(step, 1..7)).prop_map(|(parallelism, steps)| {
        let mut nodes = vec![source(1, parallelism, "numbers")];
        let mut edges: Vec<TestEdge> = Vec::new();
        for (id, (before, partitioner, parallelism, buffer_timeout)) in (2..).zip(steps) {
            let before = before.get(&nodes).clone();
            // The header of a source's rows holds no hash and no channel.
            let from_source = before.id == 1;
            let partitioner = match partitioner {
                Some(Partitioner::Hash | Partitioner::Custom) if from_source => Some(Partitioner::Rebalance),
                other => other,
            };
            let keeps = matches!(partitioner, None | Some(Partitioner::Forward));
            nodes.push(guest(id, if keeps { before.parallelism } else { parallelism }));
            edges.push(TestEdge { source: before.id, target: id, input: 0, partitioner, buffer_timeout });
        }
        let leaves = nodes.iter().filter(|node| edges.iter().all(|edge| edge.source != node.id));
        let sinks: Vec<_> = (100..).zip(leaves.cloned().collect::<Vec<_>>()).collect();
        for (id, leaf) in sinks {
            nodes.push(sink(id, leaf.parallelism));
            edges.push(chained(leaf.id, id));
        }
        (nodes, edges)
    })
}

/// What the sinks get, by one thread that keeps lists.
fn model(nodes: &[TestNode], edges: &[TestEdge], input: &[u8]) -> Vec<Vec<u8>> {
    let mut sent: BTreeMap<u32, Vec<Vec<u8>>> = BTreeMap::new();
    let mut sunk = Vec::new();
    sent.insert(1, input.iter().map(|number| vec![*number]).collect());
    for node in &nodes[1..] {
        let edge = edges.iter().find(|edge| edge.target == node.id).unwrap();
        let copies = if edge.partitioner == Some(Partitioner::Broadcast) { node.parallelism as usize } else { 1 };
        let got = sent[&edge.source].iter().flat_map(|row| std::iter::repeat_n(row.clone(), copies));
        if node.operator.is_guest() {
            let made = got.flat_map(|row| model_function(node.id, &row)).collect();
            sent.insert(node.id, made);
        } else {
            sunk.extend(got);
        }
    }
    sunk.sort();
    sunk
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn any_topology_delivers_what_one_thread_would(
        (nodes, edges) in topology(),
        input in prop::collection::vec(any::<u8>(), 0..120),
        segment in prop::sample::select(vec!["64", "100", "32 kb"]),
        buffers in prop::sample::select(vec!["1", "2", "10"]),
    ) {
        let settings = [
            ("taskmanager.memory.segment-size", segment),
            ("taskmanager.network.memory.max-buffers-per-channel", buffers),
        ];
        let job = TestJob::new(&nodes, &edges, &settings);
        let mut cluster = Cluster::new(&job, Arc::new(|node, _, payload| Ok(model_function(node, payload))));
        cluster.splits = Some(input.chunks(13).map(<[u8]>::to_vec).collect());
        cluster.start_all(&job);
        cluster.until_finished();
        prop_assert_eq!(cluster.sorted_rows(), model(&nodes, &edges, &input));
        for calls in cluster.calls.lock().unwrap().values() {
            let expected = [Call::Open, Call::Watermark(Timestamp::MAX), Call::EndInput(0), Call::Close];
            prop_assert_eq!(&calls[..], &expected);
        }
    }
}
