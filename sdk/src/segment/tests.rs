//! Segments as the engine calls them.

use engine_rows::{
    key_hash::key_hash,
    row::{self, NO_TIMESTAMP, Row, Rows},
};

use super::{Failed, Segment};
use crate::{
    bindings::{
        engine::plugin::graph::{Partitioner, StreamGraph},
        exports::engine::plugin::operator_chain::{OperatorContext, SegmentOutput, TimeDomain},
    },
    current,
    exports::declare,
    graph::SharedGraph,
    host::{self, Call},
    operator::Batch,
    prelude::*,
};

fn plan(program: impl FnOnce(&StreamExecutionEnvironment)) -> (SharedGraph, StreamGraph) {
    current::reset();
    host::reset();
    declare(
        |env, _| {
            program(env);
            Ok(())
        },
        Vec::new(),
    )
    .unwrap()
}

fn context(nodes: &[u32], outputs: &[(u32, Option<u32>)]) -> OperatorContext {
    let output = |&(node, selector)| SegmentOutput { node, side_output: None, selector, channels: 1 };
    OperatorContext {
        job_name: "job".to_owned(),
        task_name: "task".to_owned(),
        subtask_index: 0,
        parallelism: 1,
        max_parallelism: 128,
        attempt: 0,
        nodes: nodes.to_vec(),
        outputs: outputs.iter().map(output).collect(),
        restored: false,
        state_cache_bytes: 1 << 24,
        state_value_bytes_max: 16 << 20,
    }
}

fn open(graph: &SharedGraph, nodes: &[u32], outputs: &[(u32, Option<u32>)]) -> Segment {
    let kinds = graph.borrow().nodes[nodes[0] as usize - 1].states.iter().map(|state| state.kind).collect();
    host::declare_instance(0, kinds);
    Segment::open(&graph.borrow(), &context(nodes, outputs)).unwrap()
}

fn rows(records: &[i64]) -> Vec<u8> {
    let mut batch = Vec::new();
    for record in records {
        row::append(&mut batch, Row { key_hash: 0, timestamp: 7, payload: &record.to_le_bytes() });
    }
    batch
}

fn emitted(calls: Vec<Call>) -> Vec<(u32, u32, Vec<i64>)> {
    calls
        .into_iter()
        .map(|call| match call {
            Call::Emit { output, count, rows } => {
                let records = Rows::new(&rows).map(|row| {
                    let row = row.unwrap();
                    assert_eq!(row.timestamp, 7);
                    i64::from_le_bytes(row.payload.try_into().unwrap())
                });
                (output, count, records.collect())
            }
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn one_output_of_a_node_serves_edges_with_and_without_a_selector() {
    let (graph, declaration) = plan(|env| {
        let numbers = env.from_sequence(0, 9).map(|n| n + 1);
        numbers.key_by(|n| *n % 2).count().sink_to(DiscardSink);
        numbers.sink_to(DiscardSink);
        numbers.filter(|n| 2 < *n).sink_to(DiscardSink);
    });
    assert_eq!(declaration.edges[1].partitioner, Some(Partitioner::Hash));
    assert_eq!(declaration.edges[1].selector, Some(0));
    // Map (2) with filter (6) behind it; outputs are not in the order of the edges.
    let mut segment = open(&graph, &[2, 6], &[(6, None), (2, Some(0)), (2, None)]);
    assert_eq!(segment.process_batch(0, Batch::Rows(&rows(&[0, 1, 2]))), Ok(()));
    let calls = host::take_calls();
    for call in &calls {
        if let Call::Emit { output, rows, .. } = call {
            for row in Rows::new(rows).map(|row| row.unwrap()) {
                let n = i64::from_le_bytes(row.payload.try_into().unwrap());
                let expected = if *output == 1 { key_hash(&(n % 2).to_le_bytes()) } else { 0 };
                assert_eq!(row.key_hash, expected, "output {output}, record {n}");
            }
        }
    }
    let mut emitted = emitted(calls);
    emitted.sort_unstable();
    assert_eq!(emitted, [(0, 1, vec![3]), (1, 3, vec![1, 2, 3]), (2, 3, vec![1, 2, 3])]);
}

#[test]
fn rows_are_handed_over_when_a_buffer_is_full_and_at_the_end_of_a_call() {
    let (graph, _) = plan(|env| _ = env.from_sequence(0, 9).map(|n| n).sink_to(DiscardSink));
    let mut segment = open(&graph, &[2], &[(2, None)]);
    let records: Vec<i64> = (0..2000).collect();
    assert_eq!(segment.process_batch(0, Batch::Rows(&rows(&records))), Ok(()));
    let emitted = emitted(host::take_calls());
    // A row has 24 bytes; the 1,366th crosses 32 KiB.
    assert_eq!(emitted.iter().map(|(_, count, _)| *count).collect::<Vec<_>>(), [1366, 634]);
    assert_eq!(emitted.into_iter().flat_map(|(_, _, records)| records).collect::<Vec<_>>(), records);
}

#[test]
fn timers_fire_before_the_watermark_is_forwarded() {
    let (graph, _) = plan(|env| {
        let counts = env.from_sequence(0, 9).key_by(|n| *n).window(GlobalWindows::end_of_stream()).count();
        counts.map(|(_, count)| count).sink_to(DiscardSink);
    });
    let mut segment = open(&graph, &[3, 4], &[(4, None)]);
    let mut batch = Vec::new();
    for n in [5_i64, 5] {
        row::append(
            &mut batch,
            Row { key_hash: key_hash(&n.to_le_bytes()), timestamp: NO_TIMESTAMP, payload: &n.to_le_bytes() },
        );
    }
    segment.process_batch(0, Batch::Rows(&batch)).unwrap();
    segment.process_watermark(99).unwrap();
    segment.process_watermark_status(true).unwrap();
    assert_eq!(host::take_due_timers(0, TimeDomain::EventTime, i64::MAX, 10), None);
    assert_eq!(segment.take_state(&[]), Ok(false));
    assert!(host::take_entries(0, 0, 10).is_empty(), "the plugin's memory had all");
    segment.process_watermark(i64::MAX).unwrap();
    segment.end_input(0).unwrap();
    let mut expected = Vec::new();
    row::append(&mut expected, Row { key_hash: 0, timestamp: i64::MAX, payload: &2_u64.to_le_bytes() });
    assert_eq!(
        host::take_calls(),
        [
            Call::EmitWatermark { output: 0, timestamp: 99 },
            Call::EmitWatermarkStatus { output: 0, idle: true },
            Call::Emit { output: 0, count: 1, rows: expected },
            Call::EmitWatermark { output: 0, timestamp: i64::MAX },
        ]
    );
}

#[test]
fn lines_are_read_without_headers() {
    let vectors: serde_json::Value = serde_json::from_str(include_str!("../../../wit/rows.json")).unwrap();
    let vector = &vectors["lines"][0];
    let hex = vector["batch"].as_str().unwrap();
    let batch: Vec<u8> =
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect();
    let (graph, _) = plan(|env| {
        let lines = env.from_source(StdinSource::text_lines());
        lines.flat_map(|line, out: &mut Collector<str>| out.write(format_args!("[{line}]"))).sink_to(DiscardSink);
    });
    let mut segment = open(&graph, &[2], &[(2, None)]);
    segment.process_batch(0, Batch::Lines(&batch)).unwrap();
    let calls = host::take_calls();
    let [Call::Emit { rows, .. }] = &calls[..] else { panic!("{calls:?}") };
    let lines = Rows::new(rows).map(|row| String::from_utf8(row.unwrap().payload.to_owned()).unwrap());
    let expected = vector["lines"].as_array().unwrap().iter().map(|line| format!("[{}]", line.as_str().unwrap()));
    assert!(lines.eq(expected));
}

#[track_caller]
fn check_failure(segment: &mut Segment, batch: Batch<'_>, message: &str) {
    assert_eq!(segment.process_batch(0, batch), Err(Failed));
    assert_eq!(host::take_calls(), [Call::Fail { node: 2, message: message.to_owned() }]);
    current::reset();
}

#[test]
fn batches_that_are_not_as_agreed_fail_the_call() {
    let (graph, _) = plan(|env| _ = env.from_sequence(0, 9).map(|n| n).sink_to(DiscardSink));
    let mut segment = open(&graph, &[2], &[]);
    check_failure(&mut segment, Batch::Rows(&[1]), "the row at byte 0 runs past the end of the batch");
    check_failure(&mut segment, Batch::Lines(b"a\n"), "got lines of text for records of type i64");
    check_failure(&mut segment, Batch::Lines(b"\xff\n"), "a batch of lines is not UTF-8");
    let mut batch = rows(&[1]);
    row::append(&mut batch, Row { key_hash: 0, timestamp: 0, payload: &[0; 9] });
    let message = "row 1 of the batch is not a record of type i64: bytes are left over behind the record";
    check_failure(&mut segment, Batch::Rows(&batch), message);
}

#[test]
fn a_failed_row_ends_the_batch_and_is_handed_over_as_it_came() {
    let (graph, _) = plan(|env| {
        let numbers = env.from_sequence(0, 9).map(|n| n - 1);
        numbers.try_map(|n| u8::try_from(n).map_err(Into::into)).sink_to(DiscardSink);
    });
    let mut segment = open(&graph, &[2, 3], &[(3, None)]);
    assert_eq!(segment.process_batch(0, Batch::Rows(&rows(&[1, 0, 5]))), Err(Failed));
    let message = "out of range integral type conversion attempted".to_owned();
    let payload = 0_i64.to_le_bytes().to_vec();
    assert_eq!(host::take_calls(), [Call::RejectRow { node: 3, row: Some(1), message, payload }]);
}

#[test]
fn segments_that_do_not_fit_the_graph_are_refused() {
    let (graph, _) = plan(|env| {
        let numbers = env.from_elements(vec![1_i64]);
        numbers.map(|n| n).sink_to(DiscardSink);
        numbers.map(|n| n).sink_to(DiscardSink);
    });
    for (nodes, message) in [
        (&[][..], "the segment has no nodes"),
        (&[9], "node 9 is not an operator of this plugin"),
        (&[2, 4], "node 4 of the segment stands behind no other"),
        (&[2, 1], "source 1 is not the first node of its segment"),
    ] {
        let error = Segment::open(&graph.borrow(), &context(nodes, &[])).map(|_| ()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
}

#[test]
fn the_running_operator_and_row_are_marked() {
    let (graph, _) = plan(|env| {
        let numbers = env.from_sequence(0, 9).filter(|_| current::node() == 2).map(|n| {
            assert_eq!(current::node(), 3);
            n
        });
        let kept = numbers.filter(|_| true);
        kept.map(|n| n).sink_to(DiscardSink);
        kept.key_by(|_| current::node()).count().sink_to(DiscardSink);
    });
    let mut segment = open(&graph, &[2, 3, 4, 5], &[(5, None), (4, Some(0))]);
    segment.process_batch(0, Batch::Rows(&rows(&[1, 2]))).unwrap();
    assert_eq!(current::node(), 0);
    for call in host::take_calls() {
        if let Call::Emit { output: 1, rows, .. } = call {
            let hashes = Rows::new(&rows).map(|row| row.unwrap().key_hash);
            assert_eq!(hashes.collect::<Vec<_>>(), [key_hash(&4_u32.to_le_bytes()); 2]);
        }
    }
}

#[test]
fn the_host_gets_all_state_with_the_end_of_the_last_input() {
    let (graph, _) = plan(|env| _ = env.from_sequence(0, 9).key_by(|n| *n).count().sink_to(DiscardSink));
    let mut segment = open(&graph, &[3], &[]);
    let mut batch = Vec::new();
    for n in [5_i64, 6, 5] {
        let payload = n.to_le_bytes();
        row::append(&mut batch, Row { key_hash: key_hash(&payload), timestamp: NO_TIMESTAMP, payload: &payload });
    }
    segment.process_batch(0, Batch::Rows(&batch)).unwrap();
    assert!(host::kept(0, 0).is_empty());
    segment.end_input(0).unwrap();
    let expected = [(5_i64, 2_u64), (6, 1)]
        .map(|(key, count)| (key.to_le_bytes().to_vec(), Vec::new(), host::Kept::Bytes(count.to_le_bytes().to_vec())));
    assert_eq!(host::kept(0, 0), expected);
}
