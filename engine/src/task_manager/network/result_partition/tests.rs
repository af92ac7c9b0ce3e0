//! Rows dealt to subpartitions: sequences of Flink, order, flushing.

use std::collections::VecDeque;

use engine_rows::row::{self, Row, Rows};
use proptest::prelude::*;
use rand::{Rng as _, SeedableRng, rngs::StdRng};

use super::*;
use crate::{
    base::{
        clock::Timestamp,
        ids::{
            ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, IntermediateDataSetId,
            IntermediateResultPartitionId, JobVertexId,
        },
        key_group,
    },
    task_manager::network::InputGates,
};

/// Channels that Flink's partitioners choose for the first records.
const SEQUENCES: &str = include_str!("../partitioners.json");

fn partition_id(producer: u8) -> ResultPartitionId {
    let vertex = ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: u32::from(producer) };
    let graph = ExecutionGraphId::from_bytes([2; 16]);
    ResultPartitionId {
        partition: IntermediateResultPartitionId {
            data_set: IntermediateDataSetId::from_bytes([3; 16]),
            partition_index: u32::from(producer),
        },
        producer: ExecutionAttemptId { graph, execution_vertex: vertex, attempt_number: 0 },
    }
}

fn settings(partitioner: Partitioner, subpartitions: u32) -> ResultPartitionSettings {
    ResultPartitionSettings {
        id: partition_id(0),
        partitioner,
        subpartitions,
        consumer_max_parallelism: 128,
        flush: FlushPolicy::WhenFull,
        network: NetworkConfig { segment_bytes: 1 << 10, elements_per_channel_max: 4 },
    }
}

/// One gate for each channel, so that each can be read by itself.
struct Consumers(Vec<InputGates>);

impl Consumers {
    fn new(manager: &Arc<ResultPartitionManager>, settings: &ResultPartitionSettings) -> Self {
        let elements_max = settings.network.elements_per_channel_max;
        let gate = |index| InputGates::new(manager, &[vec![(settings.id, index)]], elements_max);
        Self((0..settings.subpartitions).map(gate).collect())
    }

    /// Reads all that has come, letting the producer go on meanwhile.
    fn read(&mut self, partition: &mut ResultPartition) -> Vec<Vec<StreamElement>> {
        let mut read = vec![Vec::new(); self.0.len()];
        loop {
            let stuck = partition.advance();
            for (gate, elements) in self.0.iter_mut().zip(&mut read) {
                while let Some(element) = gate.poll().unwrap() {
                    elements.push(element.element);
                }
            }
            if stuck.is_none() {
                return read;
            }
        }
    }
}

fn batch(rows: &[(u32, Vec<u8>)]) -> (u32, Vec<u8>) {
    let mut data = Vec::new();
    for (key_hash, payload) in rows {
        row::append(&mut data, Row { key_hash: *key_hash, timestamp: 7, payload });
    }
    (u32::try_from(rows.len()).unwrap(), data)
}

fn numbered_rows(count: u32) -> Vec<(u32, Vec<u8>)> {
    (0..count).map(|index| (index, index.to_le_bytes().to_vec())).collect()
}

/// The rows of the elements, and a check that each batch counts its rows.
fn rows_of(elements: &[StreamElement]) -> Vec<(u32, Vec<u8>)> {
    let mut rows = Vec::new();
    for element in elements {
        let StreamElement::Records(batch) = element else { continue };
        let before = rows.len();
        match batch.kind {
            BatchKind::Rows => {
                for row in Rows::new(&batch.data) {
                    let row = row.unwrap();
                    rows.push((row.key_hash, row.payload.to_vec()));
                }
            }
            BatchKind::Lines => {
                rows.extend(batch.data.split_inclusive(|byte| *byte == b'\n').map(|line| (0, line.to_vec())));
            }
        }
        assert_eq!(rows.len() - before, batch.count as usize);
    }
    rows
}

fn dealt(partitioner: Partitioner, subpartitions: u32, rows: &[(u32, Vec<u8>)]) -> Vec<Vec<(u32, Vec<u8>)>> {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(partitioner, subpartitions);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut consumers = Consumers::new(&manager, &settings);
    let (count, data) = batch(rows);
    partition.emit_rows(count, &data).unwrap();
    partition.flush();
    consumers.read(&mut partition).iter().map(|elements| rows_of(elements)).collect()
}

#[test]
fn channels_are_chosen_as_by_flinks_partitioners() {
    let file: serde_json::Value = serde_json::from_str(SEQUENCES).unwrap();
    let sequences = file["sequences"].as_array().unwrap();
    assert_eq!(sequences.len(), 10);
    for sequence in sequences {
        let channels = u32::try_from(sequence["channels"].as_u64().unwrap()).unwrap();
        let records = u32::try_from(sequence["records"].as_u64().unwrap()).unwrap();
        let partitioner = match sequence["partitioner"].as_str().unwrap() {
            "REBALANCE" => Partitioner::Rebalance,
            "RESCALE" => Partitioner::Rescale,
            "FORWARD" => Partitioner::Forward,
            "GLOBAL" => Partitioner::Global,
            "BROADCAST" => Partitioner::Broadcast,
            other => panic!("unknown partitioner {other}"),
        };
        let manager = Arc::new(ResultPartitionManager::default());
        let settings = settings(partitioner, channels);
        let mut partition = ResultPartition::new(&manager, &settings);
        if let (Partitioner::Rebalance, ChannelSelector::RoundRobin { last, .. }) =
            (partitioner, &mut partition.selector)
        {
            *last = usize::try_from(sequence["random_start"].as_u64().unwrap()).unwrap();
        }
        let mut consumers = Consumers::new(&manager, &settings);
        for (index, (key_hash, payload)) in numbered_rows(records).into_iter().enumerate() {
            let (count, data) = batch(&[(key_hash, payload.clone())]);
            partition.emit_rows(count, &data).unwrap();
            partition.flush();
            let got = consumers.read(&mut partition);
            let got: Vec<u64> =
                (0..).zip(&got).filter(|(_, read)| !read.is_empty()).map(|(channel, _)| channel).collect();
            let expected = match &sequence["channel_sequence"][index] {
                serde_json::Value::Array(all) => all.iter().map(|channel| channel.as_u64().unwrap()).collect(),
                one => vec![one.as_u64().unwrap()],
            };
            assert_eq!(got, expected, "{partitioner:?} over {channels}, record {index}");
        }
    }
}

#[test]
fn hash_sends_each_row_to_the_owner_of_its_key_group() {
    // Key hash, key group of 128, and owner of 3, as in Flink.
    for (hash, owner) in [(0_i32, 2), (1, 2), (4, 0), (42, 0), (-1, 1), (i32::MAX, 1), (i32::MIN, 2)] {
        let dealt = dealt(Partitioner::Hash, 3, &[(hash.cast_unsigned(), b"row".to_vec())]);
        let got: Vec<usize> = (0..3).filter(|channel| !dealt[*channel].is_empty()).collect();
        assert_eq!(got, [owner], "{hash}");
    }
}

#[test]
fn custom_takes_the_channel_from_the_row_and_refuses_one_that_does_not_exist() {
    let dealt = dealt(Partitioner::Custom, 3, &[(2, vec![1]), (0, vec![2]), (2, vec![3])]);
    assert_eq!(dealt, [vec![(0, vec![2])], vec![], vec![(2, vec![1]), (2, vec![3])]]);

    let manager = Arc::new(ResultPartitionManager::default());
    let mut partition = ResultPartition::new(&manager, &settings(Partitioner::Custom, 3));
    let (count, data) = batch(&[(3, vec![1])]);
    let error = partition.emit_rows(count, &data).unwrap_err();
    assert_eq!(error, RoutingError::NoSuchChannel { channel: 3, channels: 3 });
}

#[test]
fn shuffle_reaches_all_channels() {
    let dealt = dealt(Partitioner::Shuffle, 4, &numbered_rows(1000));
    // Each channel gets 250 on average; 100 is eleven standard deviations away.
    assert!(dealt.iter().all(|rows| rows.len() > 100), "{:?}", dealt.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(dealt.iter().map(Vec::len).sum::<usize>(), 1000);
}

#[test]
fn malformed_rows_are_refused() {
    let manager = Arc::new(ResultPartitionManager::default());
    let (count, data) = batch(&numbered_rows(3));
    let mut huge = data.clone();
    huge[40..44].copy_from_slice(&u32::MAX.to_le_bytes());
    for (claimed, rows, expected) in [
        (2, &data[..], RoutingError::BadCount { claimed: 2, found: 3 }),
        (4, &data[..], RoutingError::BadCount { claimed: 4, found: 3 }),
        (count, &data[..59], RoutingError::BadRow(40)),
        (count, &data[..41], RoutingError::BadRow(40)),
        (count, &huge[..], RoutingError::BadRow(40)),
    ] {
        for partitioner in [Partitioner::Forward, Partitioner::Hash, Partitioner::Broadcast, Partitioner::Rebalance] {
            let mut partition = ResultPartition::new(&manager, &settings(partitioner, 2));
            assert_eq!(partition.emit_rows(claimed, rows), Err(expected.clone()), "{partitioner:?}");
        }
    }
}

#[test]
fn lines_pass_whole_on_one_channel_and_are_split_over_several() {
    let lines = RecordBatch { kind: BatchKind::Lines, count: 3, data: Bytes::from_static(b"a\n\nccc\n") };
    for (partitioner, channels, expected) in [
        (Partitioner::Forward, 1, vec![vec!["a\n", "\n", "ccc\n"]]),
        (Partitioner::Broadcast, 2, vec![vec!["a\n", "\n", "ccc\n"]; 2]),
        (Partitioner::Rescale, 2, vec![vec!["a\n", "ccc\n"], vec!["\n"]]),
    ] {
        let manager = Arc::new(ResultPartitionManager::default());
        let settings = settings(partitioner, channels);
        let mut partition = ResultPartition::new(&manager, &settings);
        let mut consumers = Consumers::new(&manager, &settings);
        partition.emit_batch(&lines).unwrap();
        partition.flush();
        let read = consumers.read(&mut partition);
        let got: Vec<Vec<String>> = read
            .iter()
            .map(|elements| rows_of(elements).into_iter().map(|(_, line)| String::from_utf8(line).unwrap()).collect())
            .collect();
        assert_eq!(got, expected, "{partitioner:?}");
        assert!(read.iter().all(|elements| elements.len() == 1), "{partitioner:?}");
    }
}

#[test]
fn a_large_batch_passes_on_without_a_copy() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Forward, 1);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut consumers = Consumers::new(&manager, &settings);
    let data = Bytes::from(vec![b'\n'; 600]);
    let lines = RecordBatch { kind: BatchKind::Lines, count: 600, data: data.clone() };
    partition.emit_batch(&lines).unwrap();
    let read = consumers.read(&mut partition);
    let [StreamElement::Records(passed)] = &read[0][..] else { panic!("one batch, not {read:?}") };
    assert_eq!(passed.data.as_ptr(), data.as_ptr());
}

#[test]
fn buffers_are_sent_when_full_and_long_rows_travel_alone() {
    let dealt_sizes = |lengths: &[usize]| {
        let manager = Arc::new(ResultPartitionManager::default());
        let settings = settings(Partitioner::Forward, 1);
        let mut partition = ResultPartition::new(&manager, &settings);
        let mut consumers = Consumers::new(&manager, &settings);
        let rows: Vec<_> = lengths.iter().map(|length| (0, vec![0; length - HEADER_BYTES])).collect();
        let (count, data) = batch(&rows);
        partition.emit_rows(count, &data).unwrap();
        let sent = consumers.read(&mut partition);
        let sizes = |elements: &[StreamElement]| elements.iter().map(StreamElement::data_bytes).collect::<Vec<_>>();
        let full = sizes(&sent[0]);
        partition.flush();
        (full, sizes(&consumers.read(&mut partition)[0]))
    };
    assert_eq!(dealt_sizes(&[512, 512]), (vec![], vec![1024]));
    assert_eq!(dealt_sizes(&[512, 512, 16]), (vec![1024], vec![16]));
    assert_eq!(dealt_sizes(&[512, 513]), (vec![512], vec![513]));
    assert_eq!(dealt_sizes(&[100, 5000, 100]), (vec![100, 5000], vec![100]));
}

#[test]
fn buffers_are_allocated_on_their_first_row() {
    let manager = Arc::new(ResultPartitionManager::default());
    let mut partition = ResultPartition::new(&manager, &settings(Partitioner::Custom, 64));
    let (count, data) = batch(&[(5, vec![1])]);
    partition.emit_rows(count, &data).unwrap();
    let allocated: Vec<usize> =
        (0..64).filter(|channel| partition.channels.buffers[*channel].data.capacity() > 0).collect();
    assert_eq!(allocated, [5]);
}

#[test]
fn the_buffer_timeout_runs_from_the_first_row() {
    let manager = Arc::new(ResultPartitionManager::default());
    let millis = Duration::from_millis;
    let mut settings = settings(Partitioner::Forward, 1);
    settings.flush = FlushPolicy::of_buffer_timeout(100);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut consumers = Consumers::new(&manager, &settings);
    let (count, data) = batch(&numbered_rows(1));

    assert_eq!(partition.flush_if_due(millis(10)), None);
    partition.emit_rows(count, &data).unwrap();
    assert_eq!(partition.flush_if_due(millis(20)), Some(millis(120)));
    partition.emit_rows(count, &data).unwrap();
    assert_eq!(partition.flush_if_due(millis(119)), Some(millis(120)));
    assert_eq!(consumers.read(&mut partition), [[]]);
    assert_eq!(partition.flush_if_due(millis(120)), None);
    assert_eq!(rows_of(&consumers.read(&mut partition)[0]).len(), 2);

    for (timeout, sent) in [(0, 1), (-1, 0)] {
        partition.flush = FlushPolicy::of_buffer_timeout(timeout);
        partition.emit_rows(count, &data).unwrap();
        assert_eq!(partition.flush_if_due(millis(1_000_000)), None);
        assert_eq!(rows_of(&consumers.read(&mut partition)[0]).len(), sent);
    }
}

#[test]
fn events_follow_the_rows_on_all_channels() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Custom, 2);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut consumers = Consumers::new(&manager, &settings);
    let (count, data) = batch(&[(1, vec![9])]);
    partition.emit_rows(count, &data).unwrap();
    let watermark = StreamElement::Watermark(Timestamp(5));
    partition.broadcast(&watermark);
    partition.broadcast(&StreamElement::EndOfPartition);
    let read = consumers.read(&mut partition);
    assert_eq!(read[0], [watermark.clone(), StreamElement::EndOfPartition]);
    assert_eq!(rows_of(&read[1][..1]), [(1, vec![9])]);
    assert_eq!(read[1][1..], [watermark, StreamElement::EndOfPartition]);
    assert!(consumers.0.iter().all(|gate| gate.open_channels() == 0));
}

#[test]
fn what_does_not_fit_into_a_full_queue_waits_and_is_bounded_by_what_was_emitted() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Forward, 1);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut consumers = Consumers::new(&manager, &settings);
    let rows: Vec<_> = (0..10_u8).map(|index| (0, vec![index; 1008])).collect();
    let (count, data) = batch(&rows);
    partition.emit_rows(count, &data).unwrap();
    partition.flush();
    assert_eq!(partition.advance(), Some((0, Progress::Full)));
    // Four of ten buffers are in the queue.
    assert_eq!(partition.pending_bytes(), 6 * 1024);
    assert_eq!(rows_of(&consumers.read(&mut partition)[0]), rows);
    assert_eq!(partition.pending_bytes(), 0);
}

#[test]
fn a_consumer_may_come_before_or_after_its_producer() {
    for producer_first in [true, false] {
        let manager = Arc::new(ResultPartitionManager::default());
        let settings = settings(Partitioner::Forward, 1);
        let (count, data) = batch(&numbered_rows(2));
        let produce = || {
            let mut partition = ResultPartition::new(&manager, &settings);
            partition.emit_rows(count, &data).unwrap();
            partition.broadcast(&StreamElement::EndOfPartition);
        };
        if producer_first {
            produce();
        }
        let mut gates = InputGates::new(&manager, &[vec![(settings.id, 0)]], 4);
        if !producer_first {
            assert_eq!(gates.poll().unwrap(), None);
            produce();
        }
        let first = gates.poll().unwrap().expect("rows were sent");
        assert_eq!(rows_of(&[first.element]), numbered_rows(2));
        assert_eq!(gates.poll().unwrap().expect("the end was sent").element, StreamElement::EndOfPartition);
        assert_eq!(gates.poll().unwrap(), None);
        assert_eq!(manager.waiting_count(), 0);
    }
}

#[test]
fn the_end_of_either_side_is_seen_by_the_other() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Forward, 1);
    let (count, data) = batch(&numbered_rows(1));

    let mut partition = ResultPartition::new(&manager, &settings);
    let mut gates = InputGates::new(&manager, &[vec![(settings.id, 0)]], 4);
    partition.emit_rows(count, &data).unwrap();
    partition.flush();
    drop(partition);
    assert!(gates.poll().unwrap().is_some());
    let error = gates.poll().unwrap_err();
    assert_eq!(error.source, super::super::ChannelError::ProducerGone);

    let mut partition = ResultPartition::new(&manager, &settings);
    drop(InputGates::new(&manager, &[vec![(settings.id, 0)]], 4));
    partition.emit_rows(count, &data).unwrap();
    partition.flush();
    assert_eq!(partition.advance(), Some((0, Progress::ConsumerGone)));
    drop(partition);
    assert_eq!(manager.waiting_count(), 0);
}

#[test]
fn what_waits_for_a_side_that_never_comes_is_forgotten() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Rebalance, 3);
    drop(ResultPartition::new(&manager, &settings));
    assert_eq!(manager.waiting_count(), 0);
    drop(Consumers::new(&manager, &settings));
    assert_eq!(manager.waiting_count(), 0);
    let mut partition = ResultPartition::new(&manager, &settings);
    partition.broadcast(&StreamElement::EndOfPartition);
    drop(partition);
    assert_eq!(manager.waiting_count(), 3);
    manager.release(settings.id.producer.graph);
    assert_eq!(manager.waiting_count(), 0);
}

#[test]
fn the_priority_lane_overtakes_and_the_rest_stays_in_order() {
    let manager = Arc::new(ResultPartitionManager::default());
    let settings = settings(Partitioner::Forward, 1);
    let mut partition = ResultPartition::new(&manager, &settings);
    let mut gates = InputGates::new(&manager, &[vec![(settings.id, 0)]], 4);
    let watermark = |at| StreamElement::Watermark(Timestamp(at));
    // More than the queue holds, so that some of it is overtaken while it waits.
    (0..6).for_each(|at| partition.broadcast(&watermark(at)));
    partition.broadcast_priority(&StreamElement::CancelCheckpoint(1));
    partition.broadcast(&watermark(6));
    partition.broadcast_priority(&StreamElement::CancelCheckpoint(2));
    partition.broadcast(&StreamElement::EndOfPartition);
    let mut read = Vec::new();
    while gates.open_channels() > 0 {
        partition.advance();
        read.extend(gates.poll().unwrap().map(|read| read.element));
    }
    let mut expected = vec![StreamElement::CancelCheckpoint(1), StreamElement::CancelCheckpoint(2)];
    expected.extend((0..7).map(watermark));
    expected.push(StreamElement::EndOfPartition);
    assert_eq!(read, expected);
}

#[test]
fn channels_are_read_in_turn() {
    let manager = Arc::new(ResultPartitionManager::default());
    let mut partitions: Vec<_> = (0..2)
        .map(|producer| {
            let settings = ResultPartitionSettings { id: partition_id(producer), ..settings(Partitioner::Forward, 1) };
            ResultPartition::new(&manager, &settings)
        })
        .collect();
    let channels = vec![(partition_id(0), 0), (partition_id(1), 0)];
    let mut gates = InputGates::new(&manager, &[channels], 4);
    for partition in &mut partitions {
        (0..3).for_each(|at| partition.broadcast(&StreamElement::Watermark(Timestamp(at))));
    }
    let order: Vec<usize> = std::iter::from_fn(|| gates.poll().unwrap()).map(|read| read.channel).collect();
    assert_eq!(order, [0, 1, 0, 1, 0, 1]);
}

/// What each channel gets, by a partitioner that keeps one row at a time.
fn model(selector: &mut ChannelSelector, rows: &[(u32, Vec<u8>)], channels: usize) -> Vec<Vec<(u32, Vec<u8>)>> {
    let mut dealt = vec![Vec::new(); channels];
    for row in rows {
        let targets = match selector {
            ChannelSelector::First => vec![0],
            ChannelSelector::Broadcast => (0..channels).collect(),
            ChannelSelector::RoundRobin { last, .. } => {
                *last = (*last + 1) % channels;
                vec![*last]
            }
            ChannelSelector::Random { rng, .. } => vec![rng.random_range(0..channels)],
            ChannelSelector::KeyGroup { .. } => {
                let channels = u32::try_from(channels).unwrap();
                vec![key_group::subtask_index(key_group::key_group(row.0, 128), 128, channels) as usize]
            }
            ChannelSelector::Chosen { .. } => vec![row.0 as usize],
        };
        targets.into_iter().for_each(|target| dealt[target].push(row.clone()));
    }
    dealt
}

fn selector(partitioner: Partitioner, channels: u32) -> ChannelSelector {
    match ChannelSelector::new(partitioner, channels, 128) {
        ChannelSelector::RoundRobin { channels, .. } => ChannelSelector::RoundRobin { last: 0, channels },
        ChannelSelector::Random { channels, .. } => {
            ChannelSelector::Random { rng: Box::new(StdRng::seed_from_u64(7)), channels }
        }
        other => other,
    }
}

proptest! {
    #[test]
    fn any_batches_arrive_whole_and_in_order_on_the_right_channels(
        partitioner in prop::sample::select(vec![
            Partitioner::Global, Partitioner::Rebalance, Partitioner::Shuffle, Partitioner::Broadcast,
            Partitioner::Hash, Partitioner::Custom,
        ]),
        channels in 1_u32..6,
        batches in prop::collection::vec(
            prop::collection::vec((any::<u32>(), prop::collection::vec(any::<u8>(), 0..700)), 0..12), 0..8),
        flushes in prop::collection::vec(any::<bool>(), 8),
    ) {
        let manager = Arc::new(ResultPartitionManager::default());
        let settings = settings(partitioner, channels);
        let mut partition = ResultPartition::new(&manager, &settings);
        partition.selector = selector(partitioner, channels);
        let mut consumers = Consumers::new(&manager, &settings);
        let mut read = vec![Vec::new(); channels as usize];
        let mut all = VecDeque::new();
        for (mut rows, flush) in batches.into_iter().zip(flushes) {
            if partitioner == Partitioner::Custom {
                rows.iter_mut().for_each(|row| row.0 %= channels);
            }
            let (count, data) = batch(&rows);
            partition.emit_rows(count, &data).unwrap();
            all.extend(rows);
            if flush {
                partition.flush();
                for (read, elements) in read.iter_mut().zip(consumers.read(&mut partition)) {
                    read.extend(elements);
                }
            }
        }
        partition.flush();
        for (read, elements) in read.iter_mut().zip(consumers.read(&mut partition)) {
            read.extend(elements);
        }
        let all: Vec<_> = all.into();
        let expected = model(&mut selector(partitioner, channels), &all, channels as usize);
        let got: Vec<_> = read.iter().map(|elements| rows_of(elements)).collect();
        prop_assert_eq!(got, expected);
    }
}
