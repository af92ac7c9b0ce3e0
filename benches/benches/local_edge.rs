//! What does it cost to deal a row to the subtasks of the next vertex?
//!
//! Batches of 1,024 rows go through a result partition into the queues of its
//! channels, which are read at once by the same thread. Reported per row.

use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use engine::{
    base::{
        config::Configuration,
        ids::{
            ExecutionAttemptId, ExecutionGraphId, ExecutionVertexId, IntermediateDataSetId,
            IntermediateResultPartitionId, JobVertexId, ResultPartitionId,
        },
    },
    graph::stream_graph::Partitioner,
    task_manager::network::{
        FlushPolicy, InputGates, NetworkConfig, ResultPartition, ResultPartitionManager, ResultPartitionSettings,
    },
};
use engine_rows::{
    key_hash::key_hash,
    row::{self, HEADER_BYTES, Row},
};

const ROWS: u32 = 1024;

fn partition_id() -> ResultPartitionId {
    let execution_vertex = ExecutionVertexId { vertex: JobVertexId::from_bytes([1; 16]), subtask_index: 0 };
    ResultPartitionId {
        partition: IntermediateResultPartitionId {
            data_set: IntermediateDataSetId::from_bytes([3; 16]),
            partition_index: 0,
        },
        producer: ExecutionAttemptId {
            graph: ExecutionGraphId::from_bytes([2; 16]),
            execution_vertex,
            attempt_number: 0,
        },
    }
}

fn batch(row_bytes: usize) -> Vec<u8> {
    let payload = vec![7; row_bytes - HEADER_BYTES];
    let mut batch = Vec::new();
    for index in 0..ROWS {
        row::append(&mut batch, Row { key_hash: key_hash(&index.to_le_bytes()), timestamp: 0, payload: &payload });
    }
    batch
}

fn deal(criterion: &mut Criterion, partitioner: Partitioner, channels: u32, row_bytes: usize) {
    let settings = ResultPartitionSettings {
        id: partition_id(),
        partitioner,
        subpartitions: channels,
        consumer_max_parallelism: 128,
        flush: FlushPolicy::WhenFull,
        network: NetworkConfig::new(&Configuration::default()),
    };
    let manager = Arc::new(ResultPartitionManager::default());
    let elements_max = settings.network.elements_per_channel_max;
    let mut partition = ResultPartition::new(&manager, &settings);
    let gate = (0..channels).map(|index| (settings.id, index)).collect();
    let mut gates = InputGates::new(&manager, &[gate], elements_max);
    let batch = batch(row_bytes);
    let mut group = criterion.benchmark_group("deal");
    group.throughput(Throughput::Elements(u64::from(ROWS)));
    let id = BenchmarkId::new(format!("{partitioner:?}"), format!("{channels} channels, {row_bytes} B rows"));
    group.bench_function(id, |bencher| {
        bencher.iter(|| {
            partition.emit_rows(ROWS, &batch).expect("the rows are well formed");
            while gates.poll().expect("the producer is there").is_some() {}
        });
    });
    group.finish();
}

fn local_edge(criterion: &mut Criterion) {
    for channels in [2, 8, 64] {
        deal(criterion, Partitioner::Hash, channels, 64);
    }
    deal(criterion, Partitioner::Hash, 8, 80);
    deal(criterion, Partitioner::Hash, 8, 216);
    deal(criterion, Partitioner::Rebalance, 8, 64);
    deal(criterion, Partitioner::Forward, 1, 64);
    deal(criterion, Partitioner::Broadcast, 8, 64);
}

criterion_group!(benches, local_edge);
criterion_main!(benches);
