//! What a task tells operators that make watermarks, and how its source waits for others.

use super::*;
use crate::protocol::job_master::{MaxAllowedWatermark, WatermarkReport};

fn calls_of(cluster: &Cluster, node: u32) -> Vec<Call> {
    cluster.calls.lock().unwrap().get(&(node, 0)).cloned().unwrap_or_default()
}

#[test]
fn splits_are_named_before_their_rows_and_their_times_come_back() {
    let nodes = [source(1, 1, "splits"), watermarks(2, 1), guest(3, 1), sink(4, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward), edge(3, 4, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &[("pipeline.auto-watermark-interval", "0 ms")]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.until_finished();
    assert_eq!(cluster.sorted_rows(), [[1], [2], [3]]);
    use Call::{BeginSplit, Close, EndInput, EndSplit, Open, Watermark};
    let expected = [
        Open,
        BeginSplit(0),
        BeginSplit(1),
        BeginSplit(0),
        BeginSplit(1),
        EndSplit(0),
        EndSplit(1),
        Watermark(Timestamp::MAX),
        EndInput(0),
        Close,
    ];
    assert_eq!(calls_of(&cluster, 2), expected, "and no watermark but the last");
    assert_eq!(calls_of(&cluster, 3), [Open, Watermark(Timestamp::MAX), EndInput(0), Close]);
}

#[test]
fn time_is_told_once_an_interval_to_those_that_make_watermarks() {
    let nodes = [source(1, 1, "idle"), watermarks(2, 1), guest(3, 1), sink(4, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward), edge(3, 4, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &[("pipeline.auto-watermark-interval", "1 ms")]);
    let mut cluster = Cluster::new(&job, identity());
    cluster.start_all(&job);
    cluster.until(|cluster| calls_of(cluster, 2).iter().filter(|call| **call == Call::ProcessingTime).count() == 5);
    cluster.until(|cluster| calls_of(cluster, 3).contains(&Call::Watermark(Timestamp(0))));
    assert!(!calls_of(&cluster, 3).contains(&Call::ProcessingTime));
    for deployment in &job.deployments {
        cluster.cancel(deployment.attempt);
    }
}

#[test]
fn a_source_that_is_too_far_ahead_pauses_and_goes_on_when_it_may() {
    let mut endless = source(1, 1, "endless");
    let options = [
        ("watermark-alignment-group", "group"),
        ("watermark-alignment-max-drift", "1 s"),
        ("watermark-alignment-update-interval", "20 ms"),
    ];
    let Operator::Source(connector) = &mut endless.operator else { panic!("a source") };
    connector.options.extend(options.map(|(option, value)| (option.to_owned(), value.to_owned())));
    let nodes = [endless, watermarks(2, 1), sink(3, 1)];
    let edges = [chained(1, 2), edge(2, 3, Partitioner::Forward)];
    let job = TestJob::new(&nodes, &edges, &[("pipeline.auto-watermark-interval", "1 ms")]);
    let mut cluster = Cluster::new(&job, Arc::new(|_, _, _| Ok(Vec::new())));
    cluster.start_all(&job);
    let attempt = job.deployments[0].attempt;
    let next = |cluster: &Cluster| loop {
        match cluster.events.recv_timeout(DEADLINE).expect("a report in time") {
            TaskEvent::ReportWatermark(WatermarkReport { attempt: of, node, watermark }) => {
                assert_eq!((of, node), (attempt, 1));
                return watermark;
            }
            TaskEvent::StateChanged(_)
            | TaskEvent::RequestSplit(_)
            | TaskEvent::AcknowledgeCheckpoint(_)
            | TaskEvent::DeclineCheckpoint(_)
            | TaskEvent::EndOfDataReached(_) => {}
        }
    };
    assert_eq!(next(&cluster), Timestamp::MIN, "before the first watermark");
    let mut last = next(&cluster);
    assert!(Timestamp::MIN < last);
    let allow = |watermark| {
        cluster.tasks[&attempt].align_watermark(MaxAllowedWatermark { attempt, node: 1, watermark });
    };
    allow(Timestamp(0));
    // A report may have been on its way; then the watermark rises no more.
    loop {
        let watermark = next(&cluster);
        if watermark == last {
            break;
        }
        last = watermark;
    }
    let polls = cluster.polls.load(Ordering::SeqCst);
    let told = calls_of(&cluster, 2).len();
    assert_eq!([next(&cluster), next(&cluster)], [last; 2]);
    assert_eq!(cluster.polls.load(Ordering::SeqCst), polls);
    assert_eq!(calls_of(&cluster, 2).len(), told, "nothing makes it seem idle");
    allow(last);
    cluster.until(|cluster| polls < cluster.polls.load(Ordering::SeqCst));
    assert_eq!(calls_of(&cluster, 2)[told], Call::BeginSplit(0), "it is read again");
    for deployment in job.deployments.iter().rev() {
        cluster.cancel(deployment.attempt);
    }
}
