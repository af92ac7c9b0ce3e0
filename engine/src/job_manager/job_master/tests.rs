//! The JobMaster against scripted ResourceManagers and TaskExecutors.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use proptest::prelude::*;

use super::{
    testing::{GraphBuilder, Harness, exchange, failure, metrics, pipelines, through_the_wire, update},
    *,
};
use crate::{
    base::ids::{AllocationId, ExecutionAttemptId, ResourceManagerId, SlotId},
    checkpoint::OperatorSubtaskState,
    connector::{Committable, SourceSplit, SplitAssignment},
    graph::job_graph::DistributionPattern,
    protocol::{
        job_details::SlotShortage,
        job_master::{
            SlotOffer, SlotOffers, SplitRequest, TaskExecutionStateUpdate, TaskExecutorHeartbeat, TaskState,
            WatermarkReport,
        },
        task_executor::TaskDeployment,
    },
};

const FIXED_DELAY: &[(&str, &str)] = &[
    ("restart-strategy.type", "fixed-delay"),
    ("restart-strategy.fixed-delay.attempts", "2"),
    ("restart-strategy.fixed-delay.delay", "3 s"),
];
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn te(name: &str) -> Address {
    Address::TaskExecutor(ResourceId(name.to_owned()))
}

fn finished(attempt: ExecutionAttemptId, node: u32, committable: &str) -> TaskExecutionStateUpdate {
    let committables = vec![Committable(committable.as_bytes().to_vec())];
    let end_states = [(node, OperatorSubtaskState { committables, ..OperatorSubtaskState::default() })].into();
    TaskExecutionStateUpdate { end_states, ..update(attempt, TaskState::Finished, None) }
}

/// The states that the Dispatcher was told, and whether the job terminated.
fn told_to_dispatcher(sent: &[Envelope]) -> (Vec<JobStatus>, Option<JobDetails>) {
    let mut states = Vec::new();
    let mut terminated = None;
    for envelope in sent {
        match &envelope.message {
            Message::Dispatcher(DispatcherMessage::JobStatusChanged(changed)) => {
                assert!(terminated.is_none(), "nothing follows the end");
                // Said again when subtasks changed.
                if states.last() != Some(&changed.overview.status) {
                    states.push(changed.overview.status);
                }
            }
            Message::Dispatcher(DispatcherMessage::JobTerminated(ended)) => terminated = Some(ended.details.clone()),
            _ => {}
        }
    }
    (states, terminated)
}

fn to_resource_manager(sent: &[Envelope]) -> Vec<(Fence, ResourceManagerMessage)> {
    let messages = sent.iter().filter_map(|envelope| match &envelope.message {
        Message::ResourceManager(message) => Some((envelope.fence, message.clone())),
        _ => None,
    });
    messages.collect()
}

fn declared(sent: &[Envelope]) -> Option<u32> {
    let totals = to_resource_manager(sent).into_iter().filter_map(|(_, message)| match message {
        ResourceManagerMessage::DeclareRequiredSlots(required) => {
            Some(required.slots.iter().map(|(_, count)| count).sum())
        }
        _ => None,
    });
    totals.reduce(|_, last| last)
}

/// Answers all deployments of a region with RUNNING.
fn run(harness: &mut Harness, deployed: &[TaskDeployment]) {
    for deployment in deployed {
        harness.report(deployment.attempt, TaskState::Initializing);
        harness.report(deployment.attempt, TaskState::Running);
    }
}

#[test]
fn the_job_master_can_move_between_threads() {
    fn check<T: Send>() {}
    check::<JobMaster>();
}

#[test]
fn a_job_runs_from_its_start_to_its_end() {
    let mut harness = Harness::start(exchange(2).option("splits", "3"), &[]);
    assert_eq!(harness.journal.take(), ["enumerator test of 2 string", "committer test of 2 string", "prepare"]);
    let sent = harness.take_sent();
    assert_eq!(told_to_dispatcher(&sent), (vec![JobStatus::Created, JobStatus::Running], None));
    assert_eq!(to_resource_manager(&sent).len(), 1);
    assert_eq!(to_resource_manager(&sent)[0].0, Fence::None);
    assert_eq!(harness.states(), "source0#0 SCHEDULED, source1#0 SCHEDULED, sink0#0 SCHEDULED, sink1#0 SCHEDULED");

    harness.register();
    let sent = harness.take_sent();
    assert_eq!(to_resource_manager(&sent)[0].0, Fence::ResourceManager(harness.resource_manager));
    assert_eq!(declared(&sent), Some(2));

    // One slot is not enough for the region.
    harness.offer("te", 1);
    assert_eq!(harness.take_deployed(), []);
    harness.offer("other", 1);
    let sent = harness.take_to_task_executors();
    let kinds: Vec<_> = sent
        .iter()
        .map(|(id, message)| match message {
            TaskExecutorMessage::SubmitTask(deployment) => format!("{id}: {}", harness.name(deployment.attempt)),
            TaskExecutorMessage::JobInformation(information) => {
                format!("{id}: information on {} vertices", information.vertices.len())
            }
            TaskExecutorMessage::AcceptSlots(_, accepted) => format!("{id}: accepts {}", accepted.len()),
            TaskExecutorMessage::JobMasterHeartbeat(_) => format!("{id}: heartbeat"),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [
            "other: heartbeat",
            "other: accepts 1",
            "te: information on 2 vertices",
            "te: source0#0",
            "other: information on 2 vertices",
            "other: source1#0",
            "te: sink0#0",
            "other: sink1#0",
        ]
    );
    let deployed: Vec<_> = sent
        .into_iter()
        .filter_map(|(_, message)| match message {
            TaskExecutorMessage::SubmitTask(deployment) => Some(deployment),
            _ => None,
        })
        .collect();
    assert_eq!(deployed[2].gates[0].channels.len(), 2);
    assert_eq!(deployed[0].partitions[0].partition, deployed[2].gates[0].channels[0].partition);
    assert_eq!(deployed[0].allocation, deployed[2].allocation);

    run(&mut harness, &deployed);
    harness.take_sent();
    let request = SplitRequest { attempt: deployed[0].attempt, node: 1 };
    harness.deliver(te("te"), JobMasterMessage::RequestSplit(request));
    let (to, message) = harness.take_to_task_executors().remove(0);
    let TaskExecutorMessage::SplitAssigned(answer) = message else { panic!("{message:?}") };
    assert_eq!(to, "te");
    assert_eq!((answer.attempt, answer.node), (deployed[0].attempt, 1));
    assert_eq!(answer.assignment, SplitAssignment::Split(SourceSplit(vec![0])));

    harness.advance(5 * SECOND);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.report(deployed[1].attempt, TaskState::Finished);
    harness.report_update(finished(deployed[3].attempt, 2, "b"));
    assert_eq!(harness.status(), JobStatus::Running);
    harness.take_sent();
    harness.journal.take();
    harness.report_update(finished(deployed[2].attempt, 2, "a"));

    assert_eq!(harness.journal.take(), ["commit a b"]);
    assert!(harness.master.is_terminated());
    assert_eq!(harness.master.next_deadline(), None);
    let sent = harness.take_sent();
    let (states, details) = told_to_dispatcher(&sent);
    assert_eq!(states, [JobStatus::Finished]);
    let details = details.unwrap();
    assert_eq!(details, harness.consistent_details());
    assert_eq!(details.timestamps[&JobStatus::Finished], Timestamp(1_005_000));
    let source = &details.vertices[0].subtasks[0].current;
    assert_eq!(source.metrics, metrics(1));
    assert_eq!(source.timestamps[&ExecutionState::Deploying], Timestamp(1_000_000));
    assert_eq!(source.timestamps[&ExecutionState::Finished], Timestamp(1_005_000));
    assert_eq!(source.task_executor, Some(ResourceId("te".to_owned())));
    let rest: Vec<_> = sent
        .iter()
        .filter_map(|envelope| match &envelope.message {
            Message::TaskExecutor(TaskExecutorMessage::FreeSlot(..)) => Some("free"),
            Message::TaskExecutor(TaskExecutorMessage::DisconnectJobMaster(..)) => Some("disconnect"),
            Message::ResourceManager(ResourceManagerMessage::DisconnectJobMaster(..)) => Some("end"),
            _ => None,
        })
        .collect();
    assert_eq!(rest, ["free", "free", "disconnect", "disconnect", "end"]);
}

#[test]
fn a_job_whose_input_or_destination_is_away_is_handed_back_before_any_task() {
    for (step, journal, message) in [
        (
            "enumerator",
            vec!["enumerator test of 1 string"],
            "could not prepare source \"source\": could not open enumerator: permission denied",
        ),
        (
            "prepare",
            vec!["enumerator test of 1 string", "committer test of 1 string", "prepare"],
            "could not prepare sink \"sink\": could not open prepare: permission denied",
        ),
    ] {
        let mut harness = Harness::start(exchange(1).option("fail", step), FIXED_DELAY);
        assert_eq!(harness.journal.take(), journal);
        let sent = harness.take_sent();
        let [Message::Dispatcher(DispatcherMessage::JobMasterFailed(failed))] =
            sent.iter().map(|envelope| &envelope.message).collect::<Vec<_>>()[..]
        else {
            panic!("{sent:?}")
        };
        // The Dispatcher knows whether the job was recovered, and is tried again, or has failed.
        assert_eq!(failed.cause.message, message);
        assert_eq!(failed.cause.recoverability, Recoverability::Recoverable);
        assert!(harness.master.is_terminated());
    }
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    // Each valid by itself, which the configuration has checked.
    let settings = [
        ("restart-strategy.type", "exponential-delay"),
        ("restart-strategy.exponential-delay.initial-backoff", "5 s"),
        ("restart-strategy.exponential-delay.max-backoff", "1 s"),
    ];
    let expected = "invalid value 1 s for \"restart-strategy.exponential-delay.max-backoff\"";
    let mut configuration = Configuration::default();
    for (key, value) in settings {
        configuration.set(key, value, crate::base::config::Origin::File).unwrap();
    }
    let harness = Harness::start(exchange(1), &[]);
    let parts = JobMasterParts {
        job_graph: harness.master.job_graph.clone(),
        job_master_id: harness.id,
        submitted: Timestamp(0),
        configuration,
        connectors: harness.journal.connectors(),
        checkpoint_store: Box::new(harness.store.clone()),
        state_directory: "/state".into(),
        state_is_kept: true,
        dispatcher: Fence::None,
    };
    let error = JobMaster::new(parts).err().unwrap().to_string();
    assert!(error.starts_with(expected), "{error}");
}

#[test]
fn settings_of_the_job_win_over_those_of_the_cluster() {
    let set = |values: &[(&str, &str)], origin| {
        let mut configuration = Configuration::default();
        for (key, value) in values {
            configuration.set(key, value, origin).unwrap();
        }
        configuration
    };
    use crate::base::config::Origin;
    let cluster = set(&[("heartbeat.interval", "1 s"), ("slot.idle.timeout", "7 s")], Origin::Dynamic);
    let job = set(&[("heartbeat.interval", "2 s")], Origin::Program);
    let effective = effective_configuration(&cluster, &job);
    assert_eq!(effective.get(&options::HEARTBEAT_INTERVAL), 2 * SECOND);
    assert_eq!(effective.get(&options::SLOT_IDLE_TIMEOUT), 7 * SECOND);
}

#[test]
fn the_registration_is_repeated_until_it_is_answered() {
    let mut harness = Harness::start(exchange(1), &[]);
    harness.take_sent();
    harness.advance(1500 * MILLI);
    // After 100, 300, 700 and 1500 ms.
    assert_eq!(to_resource_manager(&harness.take_sent()).len(), 4);
    harness.register();
    assert_eq!(declared(&harness.take_sent()), Some(1));
    harness.register();
    assert_eq!(declared(&harness.take_sent()), Some(1));
    harness.advance(SECOND);
    assert_eq!(to_resource_manager(&harness.take_sent()), []);
}

#[test]
fn a_refused_registration_waits_and_a_silent_resource_manager_is_left() {
    let mut harness = Harness::start(exchange(1), &[]);
    harness.deliver(Address::ResourceManager, JobMasterMessage::ResourceManagerRefused("unknown job".to_owned()));
    harness.take_sent();
    harness.advance(30 * SECOND - MILLI);
    assert_eq!(to_resource_manager(&harness.take_sent()), []);
    harness.advance(MILLI);
    assert_eq!(to_resource_manager(&harness.take_sent()).len(), 1);
    harness.register();
    harness.take_sent();
    harness.advance(49 * SECOND);
    harness.deliver(Address::ResourceManager, JobMasterMessage::ResourceManagerHeartbeat);
    let sent = to_resource_manager(&harness.take_sent());
    assert_eq!(sent[0].1, ResourceManagerMessage::JobMasterHeartbeat(harness.job));
    // Slots are missing still: said again.
    assert_eq!(sent.len(), 2);
    harness.advance(50 * SECOND);
    let sent = to_resource_manager(&harness.take_sent());
    assert_eq!(sent.len(), 1);
    assert_eq!(sent[0].0, Fence::None);
    assert_eq!(harness.status(), JobStatus::Running);
    harness.resource_manager = ResourceManagerId::from_bytes([77; 16]);
    harness.register();
    let sent = to_resource_manager(&harness.take_sent());
    assert_eq!(sent[0].0, Fence::ResourceManager(harness.resource_manager));
}

#[test]
fn the_first_failure_fails_a_job_without_strategy() {
    let (mut harness, deployed) = Harness::running(exchange(2), &[]);
    harness.report(deployed[0].attempt, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Failing);
    assert_eq!(harness.take_canceled(), ["source1#0", "sink0#0", "sink1#0"]);
    harness.journal.take();
    for deployment in &deployed[1..] {
        harness.report(deployment.attempt, TaskState::Canceled);
    }
    assert_eq!(harness.status(), JobStatus::Failed);
    assert_eq!(harness.journal.take(), ["abort"]);
    let details = harness.consistent_details();
    let failure = details.root_failure.unwrap();
    assert_eq!(failure.task_name.as_deref(), Some("source (1/2)"));
    assert_eq!(failure.task_executor, Some(ResourceId("te".to_owned())));
    assert_eq!(failure.cause.code, "guest-panic");
    assert_eq!(details.vertices[0].subtasks[0].current.failure, Some(failure.cause));
    assert_eq!(details.restarts, 0);
}

#[test]
fn a_restart_waits_for_the_delay_and_for_the_cancelled_tasks() {
    let (mut harness, deployed) = Harness::running(exchange(1), FIXED_DELAY);
    let (source, sink) = (deployed[0].attempt, deployed[1].attempt);
    // The delay passes first.
    harness.report(source, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Restarting);
    harness.advance(4 * SECOND);
    assert_eq!(harness.states(), "source0#0 FAILED, sink0#0 CANCELING");
    harness.take_sent();
    harness.report(sink, TaskState::Canceled);
    assert_eq!(harness.status(), JobStatus::Running);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, sink0#1 DEPLOYING");
    let deployed = harness.take_deployed();
    assert_eq!(deployed.len(), 2);
    assert_eq!(deployed[1].gates[0].channels[0].partition.producer, deployed[0].attempt);
    run(&mut harness, &deployed);
    // The tasks end first. FINISHED, while cancelled, counts as CANCELED.
    harness.report(deployed[1].attempt, TaskState::Failed);
    harness.report_update(finished(deployed[0].attempt, 1, "never used"));
    assert_eq!(harness.states(), "source0#1 CANCELED, sink0#1 FAILED");
    harness.advance(3 * SECOND - MILLI);
    assert_eq!(harness.status(), JobStatus::Restarting);
    harness.advance(MILLI);
    assert_eq!(harness.states(), "source0#2 DEPLOYING, sink0#2 DEPLOYING");
    // Two restarts are allowed.
    let deployed = harness.take_deployed();
    harness.report(deployed[0].attempt, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Failing);
    harness.report(deployed[1].attempt, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Failed);
    let details = harness.consistent_details();
    assert_eq!(details.restarts, 2);
    assert_eq!(details.failures.len(), 3);
    // The last made nothing restart. The first had cost the 4 s after which the second tasks ran; the second was never
    // over: its 3 s last until the job ended.
    let downtimes: Vec<_> = details.failures.iter().map(|failure| failure.downtime_ms(Timestamp(0))).collect();
    assert_eq!(downtimes, [None, Some(0), Some(4000)]);
    assert_eq!(details.downtime, Downtime { past_ms: 7000, since: None });
    assert_eq!(details.vertices[0].subtasks[0].former.len(), 2);
    assert!(details.restart_strategy.ends_with("each restart begins from scratch, since the job takes no checkpoints"));
}

#[test]
fn each_strategy_decides_over_restarts() {
    for (settings, allowed, delay) in [
        (vec![("restart-strategy.type", "fixed-delay")], 1, SECOND),
        (
            vec![
                ("restart-strategy.type", "failure-rate"),
                ("restart-strategy.failure-rate.max-failures-per-interval", "3"),
            ],
            3,
            SECOND,
        ),
        (
            vec![
                ("restart-strategy.type", "exponential-delay"),
                ("restart-strategy.exponential-delay.jitter-factor", "0"),
                ("restart-strategy.exponential-delay.backoff-multiplier", "1"),
                ("restart-strategy.exponential-delay.attempts-before-reset-backoff", "4"),
            ],
            4,
            SECOND,
        ),
        (vec![("restart-strategy.type", "none")], 0, SECOND),
    ] {
        let (mut harness, mut deployed) = Harness::running(pipelines(1), &settings);
        for restart in 1..=allowed {
            harness.report(deployed[0].attempt, TaskState::Failed);
            harness.report(deployed[1].attempt, TaskState::Canceled);
            assert_eq!(harness.status(), JobStatus::Restarting, "{settings:?}");
            harness.advance(delay - MILLI);
            harness.take_sent();
            assert_eq!(harness.status(), JobStatus::Restarting, "{settings:?}");
            // The exponential delay counts a failure as another from just after the restart on.
            harness.advance(2 * MILLI);
            deployed = harness.take_deployed();
            assert_eq!(deployed[0].attempt.attempt_number, restart, "{settings:?}");
        }
        harness.report(deployed[0].attempt, TaskState::Failed);
        harness.report(deployed[1].attempt, TaskState::Canceled);
        assert_eq!(harness.status(), JobStatus::Failed, "{settings:?}");
        assert_eq!(harness.consistent_details().restarts, u64::from(allowed));
    }
}

#[test]
fn an_unrecoverable_failure_is_not_restarted() {
    let (mut harness, deployed) = Harness::running(pipelines(1), FIXED_DELAY);
    let cause = failure("row-error", Recoverability::Unrecoverable);
    harness.report_update(update(deployed[1].attempt, TaskState::Failed, Some(cause)));
    assert_eq!(harness.status(), JobStatus::Failing);
}

#[test]
fn only_the_failed_region_restarts_and_its_splits_and_output_are_made_again() {
    let (mut harness, deployed) = Harness::running(pipelines(2).option("splits", "4"), FIXED_DELAY);
    let [source0, sink0, source1, sink1] = [0, 1, 2, 3].map(|task| deployed[task].attempt);
    let dealt = |harness: &mut Harness, attempt| {
        harness.deliver(te("te"), JobMasterMessage::RequestSplit(SplitRequest { attempt, node: 1 }));
        let mut sent = harness.take_to_task_executors();
        match sent.remove(0).1 {
            TaskExecutorMessage::SplitAssigned(answer) => answer.assignment,
            other => panic!("{other:?}"),
        }
    };
    let split = |number| SplitAssignment::Split(SourceSplit(vec![number]));
    assert_eq!(dealt(&mut harness, source0), split(0));
    assert_eq!(dealt(&mut harness, source1), split(1));
    assert_eq!(dealt(&mut harness, source0), split(2));
    harness.journal.take();
    harness.report_update(finished(sink1, 2, "kept"));
    harness.report(sink0, TaskState::Failed);
    assert_eq!(harness.take_canceled(), ["source0#0"]);
    harness.report(source0, TaskState::Canceled);
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, source1#0 RUNNING, sink0#1 DEPLOYING, sink1#0 FINISHED");
    let back = vec![SourceSplit(vec![0]), SourceSplit(vec![2])];
    assert_eq!(harness.journal.take(), [format!("back from 0: {back:?}")]);

    let deployed = harness.take_deployed();
    run(&mut harness, &deployed);
    harness.take_sent();
    assert_eq!(dealt(&mut harness, deployed[0].attempt), split(3));
    assert_eq!(dealt(&mut harness, deployed[0].attempt), split(0));
    assert_eq!(dealt(&mut harness, source1), split(2));
    assert_eq!(dealt(&mut harness, source1), SplitAssignment::NoMoreSplits);
    harness.report(source1, TaskState::Finished);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.report_update(finished(deployed[1].attempt, 2, "again"));
    // What the discarded attempt left behind is removed when the job's end is durable.
    assert_eq!(harness.journal.take(), ["commit again kept"]);
    assert_eq!(harness.status(), JobStatus::Finished);
    harness.consistent_details();
}

#[test]
fn a_source_that_dealt_too_many_splits_to_remember_restarts_as_a_whole() {
    let (mut harness, deployed) = Harness::running(pipelines(2).option("splits", "200000"), FIXED_DELAY);
    let [source0, sink0] = [0, 1].map(|task| deployed[task].attempt);
    for _ in 0..100_001 {
        harness.master.coordinators.next_split(source0.execution_vertex, 1).unwrap();
    }
    harness.journal.take();
    harness.report(sink0, TaskState::Failed);
    assert_eq!(harness.take_canceled(), ["source0#0", "source1#0", "sink1#0"]);
    for deployment in &deployed {
        harness.report(deployment.attempt, TaskState::Canceled);
    }
    harness.advance(3 * SECOND);
    assert_eq!(harness.journal.take(), ["enumerator test of 2 string", "prepare"]);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, source1#1 DEPLOYING, sink0#1 DEPLOYING, sink1#1 DEPLOYING");
}

#[test]
fn splits_forgotten_while_a_region_waits_for_its_restart_make_all_restart() {
    let (mut harness, deployed) = Harness::running(pipelines(2).option("splits", "200000"), FIXED_DELAY);
    let [source0, sink0, source1, sink1] = [0, 1, 2, 3].map(|task| deployed[task].attempt);
    harness.report(source0, TaskState::Failed);
    harness.report(sink0, TaskState::Canceled);
    for _ in 0..100_001 {
        harness.master.coordinators.next_split(source1.execution_vertex, 1).unwrap();
    }
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 CANCELED, source1#0 CANCELING, sink0#1 CANCELED, sink1#0 CANCELING");
    harness.report(source1, TaskState::Canceled);
    harness.report(sink1, TaskState::Canceled);
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#2 DEPLOYING, source1#1 DEPLOYING, sink0#2 DEPLOYING, sink1#1 DEPLOYING");
    let details = harness.consistent_details();
    assert!(details.failures[0].cause.message.contains("can only restart as a whole"));
}

#[test]
fn a_whole_restart_makes_new_enumerators_and_cleans_destinations() {
    let mut settings = FIXED_DELAY.to_vec();
    settings.push(("jobmanager.execution.failover-strategy", "full"));
    let (mut harness, deployed) = Harness::running(pipelines(2).option("splits", "4"), &settings);
    harness.journal.take();
    let sink1 = deployed.iter().find(|deployment| harness.name(deployment.attempt) == "sink1#0").unwrap().attempt;
    harness.report_update(finished(sink1, 2, "dropped"));
    harness.report(deployed[0].attempt, TaskState::Failed);
    assert_eq!(harness.take_canceled(), ["source1#0", "sink0#0"]);
    for deployment in &deployed {
        harness.report(deployment.attempt, TaskState::Canceled);
    }
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, source1#1 DEPLOYING, sink0#1 DEPLOYING, sink1#1 DEPLOYING");
    assert_eq!(harness.journal.take(), ["enumerator test of 2 string", "prepare"]);
}

#[test]
fn failures_of_two_regions_are_two_restarts_and_running_waits_for_both() {
    let (mut harness, deployed) = Harness::running(pipelines(2), FIXED_DELAY);
    let [source0, sink0, source1, sink1] = [0, 1, 2, 3].map(|task| deployed[task].attempt);
    harness.report(source0, TaskState::Failed);
    harness.report(sink0, TaskState::Canceled);
    harness.advance(SECOND);
    harness.report(source1, TaskState::Failed);
    harness.advance(2 * SECOND);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, source1#0 FAILED, sink0#1 DEPLOYING, sink1#0 CANCELING");
    assert_eq!(harness.status(), JobStatus::Restarting);
    harness.report(sink1, TaskState::Canceled);
    harness.advance(SECOND);
    assert_eq!(harness.status(), JobStatus::Running);
    let details = harness.master.details();
    assert_eq!(details.restarts, 2);
    assert!(details.failures.iter().all(|failure| failure.restart == Restart::UnderWay));
}

#[test]
fn a_later_failure_of_the_job_takes_over_tasks_that_wait_for_their_restart() {
    let (mut harness, deployed) = Harness::running(pipelines(2).option("fail", "next_split"), FIXED_DELAY);
    let [source0, sink0, source1, sink1] = [0, 1, 2, 3].map(|task| deployed[task].attempt);
    harness.report(source0, TaskState::Failed);
    harness.report(sink0, TaskState::Canceled);
    harness.advance(2 * SECOND);
    // The enumerator fails: all must restart, two seconds later than the region would have.
    harness.deliver(te("te"), JobMasterMessage::RequestSplit(SplitRequest { attempt: source1, node: 1 }));
    harness.report(source1, TaskState::Canceled);
    harness.report(sink1, TaskState::Canceled);
    harness.advance(2 * SECOND);
    assert_eq!(harness.states(), "source0#0 FAILED, source1#0 CANCELED, sink0#0 CANCELED, sink1#0 CANCELED");
    harness.advance(SECOND);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, source1#1 DEPLOYING, sink0#1 DEPLOYING, sink1#1 DEPLOYING");
    let details = harness.consistent_details();
    assert_eq!(
        details.root_failure.unwrap().cause.message,
        "could not get the next split of source \"source\": could not open next_split: permission denied"
    );
}

#[test]
fn a_lost_task_executor_is_one_failure_and_its_tasks_restart_elsewhere() {
    let mut harness = Harness::start(exchange(2), FIXED_DELAY);
    harness.register();
    harness.offer("lost", 1);
    harness.offer("te", 1);
    let deployed = harness.take_deployed();
    run(&mut harness, &deployed);
    let on_te: Vec<_> = deployed.iter().map(|it| it.attempt).filter(|it| harness.location(*it) == te("te")).collect();
    // The other one gives signs of life.
    for _ in 0..5 {
        harness.advance(10 * SECOND - MILLI);
        harness.heartbeat("te", &on_te);
    }
    harness.take_sent();
    harness.advance(10 * SECOND);
    assert_eq!(harness.status(), JobStatus::Restarting);
    assert_eq!(harness.states(), "source0#0 FAILED, source1#0 CANCELING, sink0#0 FAILED, sink1#0 CANCELING");
    let details = harness.consistent_details();
    assert_eq!(details.failures.len(), 1);
    assert_eq!(details.failures[0].cause.message, "TaskExecutor lost was silent for 50 s");
    let sent = harness.take_to_task_executors();
    let disconnects =
        sent.iter().filter(|(_, message)| matches!(message, TaskExecutorMessage::DisconnectJobMaster(..)));
    assert_eq!(disconnects.map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["lost"]);

    for attempt in on_te {
        harness.report(attempt, TaskState::Canceled);
    }
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 SCHEDULED, source1#1 SCHEDULED, sink0#1 SCHEDULED, sink1#1 SCHEDULED");
    // A late message of the lost one: it is told that its task is unknown.
    harness.take_sent();
    harness.report(deployed[0].attempt, TaskState::Finished);
    let unknown = TaskExecutorMessage::AttemptUnknown(deployed[0].attempt);
    assert_eq!(harness.take_to_task_executors(), [("lost".to_owned(), unknown)]);
    harness.heartbeat("lost", &[deployed[0].attempt]);
    let sent = harness.take_to_task_executors();
    assert!(matches!(sent[0].1, TaskExecutorMessage::DisconnectJobMaster(..)), "{sent:?}");
    harness.offer("spare", 1);
    assert_eq!(harness.take_deployed().len(), 4);
}

#[test]
fn a_task_executor_that_disconnects_is_lost_at_once() {
    let (mut harness, _) = Harness::running(exchange(1), FIXED_DELAY);
    let id = ResourceId("te".to_owned());
    harness.deliver(te("te"), JobMasterMessage::DisconnectTaskExecutor(id.clone(), "stopped".to_owned()));
    assert_eq!(harness.states(), "source0#0 FAILED, sink0#0 FAILED");
    harness.deliver(te("te"), JobMasterMessage::DisconnectTaskExecutor(id, "stopped".to_owned()));
    let details = harness.consistent_details();
    assert_eq!(details.failures.len(), 1);
    assert_eq!(details.failures[0].cause.message, "TaskExecutor te disconnected: stopped");
}

#[test]
fn a_refused_task_fails_and_its_slot_is_given_back() {
    let mut harness = Harness::start(exchange(1), FIXED_DELAY);
    harness.register();
    harness.offer("te", 1);
    let deployed = harness.take_deployed();
    harness.deliver(te("te"), JobMasterMessage::TaskRefused(deployed[1].attempt, "no such slot".to_owned()));
    let sent = harness.take_to_task_executors();
    assert!(
        matches!(&sent[0].1, TaskExecutorMessage::FreeSlot(allocation, _) if *allocation == deployed[1].allocation)
    );
    assert_eq!(harness.states(), "source0#0 FAILED, sink0#0 FAILED");
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 SCHEDULED, sink0#1 SCHEDULED");
    let details = harness.consistent_details();
    assert_eq!(details.failures[0].task_name.as_deref(), Some("sink (1/1)"));
    assert_eq!(details.failures[0].cause.message, "TaskExecutor te refused the task: no such slot");
}

#[test]
fn cancelling_works_in_every_state() {
    // Before there are slots: at once.
    let mut harness = Harness::start(exchange(2), &[]);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    let (states, details) = told_to_dispatcher(&harness.take_sent());
    assert_eq!(states, [JobStatus::Created, JobStatus::Running, JobStatus::Canceling, JobStatus::Canceled]);
    assert_eq!(details.unwrap(), harness.consistent_details());
    assert_eq!(harness.journal.take().last().unwrap(), "abort");

    // While deploying.
    let mut harness = Harness::start(exchange(1), &[]);
    harness.register();
    harness.offer("te", 1);
    let deployed = harness.take_deployed();
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    assert_eq!(harness.take_canceled(), ["source0#0", "sink0#0"]);
    harness.report(deployed[0].attempt, TaskState::Initializing);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.report(deployed[1].attempt, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Canceled);
    assert_eq!(harness.states(), "source0#0 CANCELED, sink0#0 CANCELED");

    // While running, with one finished; a second request changes nothing.
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    assert_eq!(harness.take_canceled(), ["sink0#0"]);
    harness.report(deployed[1].attempt, TaskState::Canceled);
    assert_eq!(harness.status(), JobStatus::Canceled);
    assert_eq!(harness.states(), "source0#0 FINISHED, sink0#0 CANCELED");

    // While restarting: nothing restarts any more.
    let (mut harness, deployed) = Harness::running(exchange(1), FIXED_DELAY);
    harness.report(deployed[0].attempt, TaskState::Failed);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    assert_eq!(harness.status(), JobStatus::Canceling);
    harness.report(deployed[1].attempt, TaskState::Canceled);
    assert_eq!(harness.status(), JobStatus::Canceled);

    // While failing: the user's wish counts.
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    harness.report(deployed[0].attempt, TaskState::Failed);
    assert_eq!(harness.status(), JobStatus::Failing);
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    harness.report(deployed[1].attempt, TaskState::Canceled);
    assert_eq!(harness.status(), JobStatus::Canceled);
    harness.consistent_details();

    // After the end: nothing.
    harness.take_sent();
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    assert_eq!(harness.take_sent(), []);
}

#[test]
fn a_cancel_is_sent_three_times_and_then_with_each_heartbeat_that_shows_the_task() {
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    let attempts = [deployed[0].attempt, deployed[1].attempt];
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    harness.report(attempts[0], TaskState::Canceled);
    assert_eq!(harness.take_canceled(), ["source0#0", "sink0#0"]);
    harness.advance(2 * SECOND);
    assert_eq!(harness.take_canceled(), ["sink0#0"]);
    harness.heartbeat("te", &attempts[1..]);
    assert_eq!(harness.take_canceled(), Vec::<String>::new());
    harness.advance(2 * SECOND);
    assert_eq!(harness.take_canceled(), ["sink0#0"]);
    harness.advance(30 * SECOND);
    assert_eq!(harness.take_canceled(), Vec::<String>::new());
    harness.heartbeat("te", &attempts[1..]);
    assert_eq!(harness.take_canceled(), ["sink0#0"]);
    // The report that it ended was lost.
    harness.heartbeat("te", &[]);
    assert_eq!(harness.status(), JobStatus::Canceled);
}

#[test]
fn heartbeats_bring_counters_and_show_what_is_missing_or_unknown() {
    let mut harness = Harness::start(exchange(1), FIXED_DELAY);
    harness.register();
    harness.offer("te", 1);
    let deployed = harness.take_deployed();
    let [source, sink] = [deployed[0].attempt, deployed[1].attempt];
    harness.report(source, TaskState::Running);
    assert_eq!(harness.states(), "source0#0 RUNNING, sink0#0 DEPLOYING");
    harness.heartbeat("te", &[source]);
    // The deployment may be on its way.
    assert_eq!(harness.states(), "source0#0 RUNNING, sink0#0 DEPLOYING");
    assert_eq!(harness.master.details().vertices[0].subtasks[0].current.metrics.records_in, 17);
    harness.advance(10 * SECOND);
    let invented = ExecutionAttemptId { attempt_number: 9, ..sink };
    harness.take_sent();
    harness.heartbeat("te", &[source, invented]);
    let sent = harness.take_to_task_executors();
    assert_eq!(sent[0].1, TaskExecutorMessage::AttemptUnknown(invented));
    assert_eq!(sent[1].1, TaskExecutorMessage::CancelTask(source));
    assert_eq!(harness.states(), "source0#0 CANCELING, sink0#0 FAILED");
    assert_eq!(harness.master.details().failures[0].cause.message, "TaskExecutor te does not have the task");
}

#[test]
fn heartbeats_go_to_all_task_executors_every_ten_seconds() {
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    let attempts = [deployed[0].attempt, deployed[1].attempt];
    for _ in 0..10 {
        harness.take_sent();
        harness.advance(10 * SECOND);
        let beats = harness.take_to_task_executors();
        assert_eq!(beats, [("te".to_owned(), TaskExecutorMessage::JobMasterHeartbeat(harness.job))]);
        harness.heartbeat("te", &attempts);
    }
    assert_eq!(harness.status(), JobStatus::Running);
}

#[test]
fn a_failing_commit_fails_the_job() {
    let (mut harness, deployed) = Harness::running(exchange(1).option("fail", "commit"), FIXED_DELAY);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.journal.take();
    harness.take_sent();
    harness.report_update(finished(deployed[1].attempt, 2, "a"));
    assert_eq!(harness.journal.take(), ["commit a", "abort"]);
    let (states, details) = told_to_dispatcher(&harness.take_sent());
    assert_eq!(states, [JobStatus::Failing, JobStatus::Failed]);
    let details = details.unwrap();
    assert_eq!(
        details.root_failure.unwrap().cause.message,
        "could not commit the output of sink \"sink\": could not open commit: permission denied"
    );
}

#[test]
fn too_few_slots_fail_the_job_after_five_minutes_with_advice() {
    let mut harness = Harness::start(exchange(4), &[]);
    harness.register();
    assert_eq!(harness.master.details().slot_shortage, Some(SlotShortage { needed: 4, available: None }));
    harness.deliver(Address::ResourceManager, JobMasterMessage::NotEnoughSlots(2));
    assert_eq!(harness.master.details().slot_shortage, Some(SlotShortage { needed: 4, available: Some(2) }));
    harness.offer("te", 1);
    for _ in 0..29 {
        harness.advance(10 * SECOND);
        harness.heartbeat("te", &[]);
    }
    harness.advance(10 * SECOND - MILLI);
    assert_eq!(harness.status(), JobStatus::Running);
    harness.advance(MILLI);
    assert_eq!(harness.status(), JobStatus::Failed);
    assert_eq!(
        harness.consistent_details().root_failure.unwrap().cause.message,
        "the job needs 4 slots, but only 2 are available after 5 min: raise taskmanager.numberOfTaskSlots, start \
         more TaskExecutors, wait until other jobs end, or submit with a lower parallelism"
    );
}

#[test]
fn a_job_that_is_being_cancelled_asks_for_no_slots() {
    let mut harness = Harness::start(pipelines(2), &[]);
    harness.register();
    harness.offer("te", 1);
    let attempts = harness.take_deployed().iter().map(|it| it.attempt).collect::<Vec<_>>();
    harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
    for _ in 0..40 {
        harness.advance(10 * SECOND);
        harness.heartbeat("te", &attempts);
    }
    assert_eq!(harness.status(), JobStatus::Canceling);
    assert_eq!(harness.consistent_details().failures, []);
    harness.heartbeat("te", &[]);
    assert_eq!(harness.status(), JobStatus::Canceled);
}

#[test]
fn independent_pipelines_run_one_after_the_other_in_one_slot() {
    let mut harness = Harness::start(pipelines(2), &[]);
    harness.register();
    assert_eq!(declared(&harness.take_sent()), Some(2));
    harness.offer("te", 1);
    let first = harness.take_deployed();
    assert_eq!(first.len(), 2);
    harness.report(first[0].attempt, TaskState::Finished);
    assert_eq!(harness.take_deployed(), []);
    harness.report(first[1].attempt, TaskState::Finished);
    let sent = harness.take_sent();
    assert_eq!(declared(&sent), Some(1));
    assert_eq!(harness.states(), "source0#0 FINISHED, source1#0 DEPLOYING, sink0#0 FINISHED, sink1#0 DEPLOYING");
}

#[test]
fn an_idle_slot_is_given_back_after_fifty_seconds() {
    let mut harness = Harness::start(pipelines(2), &[]);
    harness.register();
    harness.offer("busy", 1);
    harness.offer("idle", 1);
    let deployed = harness.take_deployed();
    let (idle, busy): (Vec<_>, Vec<_>) =
        deployed.iter().map(|it| it.attempt).partition(|it| harness.location(*it) == te("idle"));
    for attempt in idle {
        harness.report(attempt, TaskState::Finished);
    }
    harness.take_sent();
    for _ in 0..4 {
        harness.advance(10 * SECOND);
        harness.heartbeat("busy", &busy);
        harness.heartbeat("idle", &[]);
    }
    let sent = harness.take_to_task_executors();
    assert!(sent.iter().all(|(_, message)| matches!(message, TaskExecutorMessage::JobMasterHeartbeat(_))), "{sent:?}");
    harness.advance(10 * SECOND);
    let sent = harness.take_to_task_executors();
    assert!(sent.iter().any(|(id, message)| id == "idle" && matches!(message, TaskExecutorMessage::FreeSlot(..))));
    let goodbye = |message: &TaskExecutorMessage| matches!(message, TaskExecutorMessage::DisconnectJobMaster(..));
    assert!(sent.iter().any(|(id, message)| id == "idle" && goodbye(message)));
    assert_eq!(harness.status(), JobStatus::Running);
}

#[test]
fn slots_beyond_the_need_are_not_accepted() {
    let mut harness = Harness::start(exchange(1), &[]);
    harness.register();
    harness.take_sent();
    harness.offer("te", 3);
    let sent = harness.take_to_task_executors();
    let accepted = sent.iter().find_map(|(_, message)| match message {
        TaskExecutorMessage::AcceptSlots(_, accepted) => Some(accepted.len()),
        _ => None,
    });
    assert_eq!(accepted, Some(1));
}

#[test]
fn suspension_ends_at_once_and_leaves_slots_and_output_to_the_next_leader() {
    let (mut harness, deployed) = Harness::running(exchange(1), FIXED_DELAY);
    harness.report(deployed[0].attempt, TaskState::Finished);
    harness.journal.take();
    harness.take_sent();
    harness.deliver(Address::Dispatcher, JobMasterMessage::Suspend("leadership lost".to_owned()));
    let sent = harness.take_sent();
    let (states, details) = told_to_dispatcher(&sent);
    assert_eq!(states, [JobStatus::Suspended]);
    assert_eq!(details.unwrap(), harness.consistent_details());
    assert_eq!(harness.states(), "source0#0 FINISHED, sink0#0 CANCELED");
    assert_eq!(harness.journal.take(), Vec::<String>::new());
    assert!(!sent.iter().any(|it| matches!(it.message, Message::TaskExecutor(TaskExecutorMessage::FreeSlot(..)))));
    assert!(harness.master.is_terminated());
}

#[test]
fn messages_for_another_leadership_are_dropped_and_counted() {
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    let (from, to) = (te("te"), Address::JobMaster(harness.job));
    let failed = update(deployed[0].attempt, TaskState::Failed, None);
    let message = Message::JobMaster(JobMasterMessage::UpdateTaskExecutionState(failed));
    let registered = Message::JobMaster(JobMasterMessage::RegisteredAtResourceManager(ResourceManagerId::random()));
    let other = Fence::JobMaster(JobMasterId::random());
    let misdirected = Message::ResourceManager(ResourceManagerMessage::RequestTaskExecutors(1));
    for (fence, message) in [
        (other, &message),
        (Fence::None, &message),
        (Fence::ResourceManager(harness.resource_manager), &message),
        (other, &registered),
        (Fence::JobMaster(harness.id), &misdirected),
    ] {
        harness.deliver_envelope(Envelope { from: from.clone(), to: to.clone(), fence, message: message.clone() });
    }
    assert_eq!(harness.master.stale_messages(), 5);
    assert_eq!(harness.states(), "source0#0 RUNNING, sink0#0 RUNNING");
    assert_eq!(harness.take_sent(), []);
    harness.deliver_envelope(Envelope { from, to, fence: Fence::JobMaster(harness.id), message });
    assert_eq!(harness.states(), "source0#0 FAILED, sink0#0 CANCELING");
}

#[test]
fn duplicate_and_late_reports_change_nothing() {
    let (mut harness, deployed) = Harness::running(exchange(1), &[]);
    harness.report(deployed[0].attempt, TaskState::Initializing);
    harness.report(deployed[0].attempt, TaskState::Running);
    assert_eq!(harness.states(), "source0#0 RUNNING, sink0#0 RUNNING");
    assert_eq!(harness.take_sent(), []);
    harness.report(deployed[0].attempt, TaskState::Finished);
    for late in [TaskState::Running, TaskState::Finished, TaskState::Failed, TaskState::Canceled] {
        harness.report(deployed[0].attempt, late);
        let unknown = TaskExecutorMessage::AttemptUnknown(deployed[0].attempt);
        assert_eq!(harness.take_to_task_executors(), [("te".to_owned(), unknown)]);
    }
    assert_eq!(harness.states(), "source0#0 FINISHED, sink0#0 RUNNING");
    // Somebody else speaks of the task.
    let impostor = JobMasterMessage::UpdateTaskExecutionState(update(deployed[1].attempt, TaskState::Failed, None));
    harness.deliver(te("other"), impostor);
    let unknown = TaskExecutorMessage::AttemptUnknown(deployed[1].attempt);
    assert_eq!(harness.take_to_task_executors(), [("other".to_owned(), unknown)]);
    assert_eq!(harness.states(), "source0#0 FINISHED, sink0#0 RUNNING");
}

#[test]
fn a_report_of_a_task_that_was_not_deployed_is_illegal() {
    let mut harness = Harness::start(pipelines(1), FIXED_DELAY);
    harness.register();
    let attempt = harness.master.graph.vertex(0).current().attempt();
    harness.report(attempt, TaskState::Initializing);
    assert_eq!(harness.take_canceled(), ["source0#0"]);
    assert_eq!(harness.states(), "source0#0 FAILED, sink0#0 CANCELED");
    harness.offer("te", 1);
    harness.advance(3 * SECOND);
    assert_eq!(harness.states(), "source0#1 DEPLOYING, sink0#1 DEPLOYING");
}

#[test]
fn details_are_answered_with_the_number_of_the_request() {
    let (mut harness, _) = Harness::running(exchange(1), &[]);
    harness.deliver(Address::Dispatcher, JobMasterMessage::RequestDetails(42));
    let sent = harness.take_sent();
    let Message::Dispatcher(DispatcherMessage::JobDetails(42, details)) = &sent[0].message else { panic!("{sent:?}") };
    assert_eq!(*details, harness.consistent_details());
}

#[test]
fn the_history_of_failures_is_bounded() {
    let settings = [
        ("restart-strategy.type", "fixed-delay"),
        ("restart-strategy.fixed-delay.attempts", "100"),
        ("restart-strategy.fixed-delay.delay", "0 ms"),
    ];
    let (mut harness, mut deployed) = Harness::running(pipelines(1), &settings);
    for _ in 0..20 {
        harness.report(deployed[0].attempt, TaskState::Failed);
        harness.report(deployed[1].attempt, TaskState::Canceled);
        deployed = harness.take_deployed();
    }
    let details = harness.consistent_details();
    assert_eq!((details.failures.len(), details.restarts), (16, 20));
    assert_eq!(details.vertices[0].subtasks[0].former.len(), 16);
}

#[test]
fn a_job_information_is_sent_again_to_a_task_executor_that_registers_again() {
    let (mut harness, deployed) = Harness::running(exchange(1), FIXED_DELAY);
    let id = ResourceId("te".to_owned());
    harness.deliver(te("te"), JobMasterMessage::RegisterTaskExecutor(id));
    harness.report(deployed[0].attempt, TaskState::Failed);
    harness.report(deployed[1].attempt, TaskState::Canceled);
    harness.take_sent();
    harness.advance(3 * SECOND);
    let sent = harness.take_to_task_executors();
    let informations = sent.iter().filter(|(_, message)| matches!(message, TaskExecutorMessage::JobInformation(_)));
    assert_eq!(informations.count(), 1);
}

/// A TaskExecutor that behaves, behind a network that does not.
struct ModelTaskExecutor {
    id: ResourceId,
    tasks: BTreeMap<ExecutionAttemptId, TaskState>,
    offered: Vec<SlotOffer>,
    allocations: u64,
}

impl ModelTaskExecutor {
    fn registration(&mut self, slots: u32) -> Vec<JobMasterMessage> {
        self.tasks.clear();
        self.offered.clear();
        for index in 0..slots {
            self.allocations += 1;
            let mut bytes = [0; 16];
            bytes[..8].copy_from_slice(&self.allocations.to_le_bytes());
            bytes[8] = self.id.0.as_bytes()[2];
            let slot = SlotId { task_executor: self.id.clone(), index };
            self.offered.push(SlotOffer { allocation: AllocationId::from_bytes(bytes), slot });
        }
        let offers = SlotOffers { task_executor: self.id.clone(), offers: self.offered.clone() };
        vec![JobMasterMessage::RegisterTaskExecutor(self.id.clone()), JobMasterMessage::OfferSlots(offers)]
    }

    fn report(attempt: ExecutionAttemptId, state: TaskState) -> JobMasterMessage {
        let cause = (state == TaskState::Failed).then(|| failure("guest-panic", Recoverability::Recoverable));
        JobMasterMessage::UpdateTaskExecutionState(update(attempt, state, cause))
    }

    fn on_message(&mut self, message: TaskExecutorMessage) -> Vec<JobMasterMessage> {
        match message {
            TaskExecutorMessage::SubmitTask(deployment) => {
                let attempt = deployment.attempt;
                let is_mine = self.offered.iter().any(|offer| offer.allocation == deployment.allocation);
                if !is_mine || self.tasks.contains_key(&attempt) {
                    return vec![JobMasterMessage::TaskRefused(attempt, "no".to_owned())];
                }
                self.tasks.insert(attempt, TaskState::Running);
                vec![Self::report(attempt, TaskState::Initializing), Self::report(attempt, TaskState::Running)]
            }
            TaskExecutorMessage::CancelTask(attempt) => match self.tasks.remove(&attempt) {
                Some(_) => vec![Self::report(attempt, TaskState::Canceled)],
                None => Vec::new(),
            },
            TaskExecutorMessage::AttemptUnknown(attempt) => {
                self.tasks.remove(&attempt);
                Vec::new()
            }
            TaskExecutorMessage::FreeSlot(allocation, _) => {
                self.offered.retain(|offer| offer.allocation != allocation);
                Vec::new()
            }
            TaskExecutorMessage::JobMasterHeartbeat(_) => {
                let tasks = self.tasks.keys().map(|attempt| (*attempt, metrics(3))).collect();
                let heartbeat = TaskExecutorHeartbeat { task_executor: self.id.clone(), tasks };
                vec![JobMasterMessage::TaskExecutorHeartbeat(heartbeat)]
            }
            TaskExecutorMessage::DisconnectJobMaster(..) => self.registration(2),
            _ => Vec::new(),
        }
    }

    /// The task of the given number, if there is one, ends.
    fn end_task(&mut self, number: usize, state: TaskState) -> Option<JobMasterMessage> {
        let attempt = *self.tasks.keys().nth(number % self.tasks.len().max(1))?;
        self.tasks.remove(&attempt);
        Some(Self::report(attempt, state))
    }
}

/// One thing that happens; the number chooses which message or task.
#[derive(Clone, Debug)]
enum Step {
    DeliverToMaster(usize),
    DuplicateToMaster(usize),
    LoseToMaster(usize),
    DeliverToTaskExecutors,
    LoseToTaskExecutors,
    Finish(usize),
    Fail(usize),
    TaskExecutorDies(usize),
    TimePasses(u64),
    Cancel,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        10 => (0..8_usize).prop_map(Step::DeliverToMaster),
        2 => (0..8_usize).prop_map(Step::DuplicateToMaster),
        1 => (0..8_usize).prop_map(Step::LoseToMaster),
        10 => Just(Step::DeliverToTaskExecutors),
        1 => Just(Step::LoseToTaskExecutors),
        4 => (0..8_usize).prop_map(Step::Finish),
        1 => (0..8_usize).prop_map(Step::Fail),
        1 => (0..8_usize).prop_map(Step::TaskExecutorDies),
        4 => (1..20_000_u64).prop_map(Step::TimePasses),
    ];
    let cancel = prop_oneof![3 => Just(None), 1 => Just(Some(Step::Cancel))];
    (proptest::collection::vec(step, 0..120), cancel, any::<proptest::sample::Index>()).prop_map(
        |(mut steps, cancel, position)| {
            if let Some(cancel) = cancel {
                steps.insert(position.index(steps.len() + 1), cancel);
            }
            steps
        },
    )
}

/// The JobMaster with two TaskExecutors and what is on its way between them.
struct Model {
    harness: Harness,
    task_executors: Vec<ModelTaskExecutor>,
    to_master: VecDeque<(Address, JobMasterMessage)>,
    to_task_executors: VecDeque<(String, TaskExecutorMessage)>,
}

impl Model {
    fn new(graph: GraphBuilder, settings: &[(&str, &str)]) -> Self {
        let mut harness = Harness::start(graph, settings);
        harness.register();
        let mut model = Self {
            harness,
            task_executors: Vec::new(),
            to_master: VecDeque::new(),
            to_task_executors: VecDeque::new(),
        };
        for name in ["te1", "te2"] {
            let id = ResourceId(name.to_owned());
            let mut task_executor =
                ModelTaskExecutor { id, tasks: BTreeMap::new(), offered: Vec::new(), allocations: 0 };
            let messages = task_executor.registration(2);
            model.to_master.extend(messages.into_iter().map(|message| (te(name), message)));
            model.task_executors.push(task_executor);
        }
        model
    }

    fn collect(&mut self) {
        self.to_task_executors.extend(self.harness.take_to_task_executors());
    }

    fn deliver_to_master(&mut self, index: usize) {
        if let Some((from, message)) = self.to_master.remove(index) {
            self.harness.deliver(from, message);
            self.collect();
        }
    }

    fn deliver_to_task_executors(&mut self) {
        let Some((id, message)) = self.to_task_executors.pop_front() else { return };
        let Some(task_executor) = self.task_executors.iter_mut().find(|it| it.id.0 == id) else { return };
        let answers = task_executor.on_message(message);
        self.to_master.extend(answers.into_iter().map(|answer| (te(&id), answer)));
    }

    fn end_task(&mut self, number: usize, state: TaskState) {
        let index = number % 2;
        let task_executor = &mut self.task_executors[index];
        let from = Address::TaskExecutor(task_executor.id.clone());
        if let Some(report) = task_executor.end_task(number / 2, state) {
            self.to_master.push_back((from, report));
        }
    }

    fn step(&mut self, step: Step) {
        let pending = self.to_master.len().max(1);
        match step {
            Step::DeliverToMaster(index) => self.deliver_to_master(index % pending),
            Step::DuplicateToMaster(index) => {
                if let Some(message) = self.to_master.get(index % pending).cloned() {
                    self.to_master.push_back(message);
                }
            }
            Step::LoseToMaster(index) => drop(self.to_master.remove(index % pending)),
            Step::DeliverToTaskExecutors => self.deliver_to_task_executors(),
            Step::LoseToTaskExecutors => drop(self.to_task_executors.pop_front()),
            Step::Finish(number) => self.end_task(number, TaskState::Finished),
            Step::Fail(number) => self.end_task(number, TaskState::Failed),
            Step::TaskExecutorDies(number) => {
                let task_executor = &mut self.task_executors[number % 2];
                let from = Address::TaskExecutor(task_executor.id.clone());
                let messages = task_executor.registration(2);
                self.to_master.extend(messages.into_iter().map(|message| (from.clone(), message)));
            }
            Step::TimePasses(millis) => {
                self.harness.advance(Duration::from_millis(millis));
                self.collect();
            }
            Step::Cancel => {
                self.harness.deliver(Address::Dispatcher, JobMasterMessage::Cancel);
                self.collect();
            }
        }
    }

    /// From here on nothing is lost, and tasks finish.
    fn behave_until_the_end(&mut self) {
        for _ in 0..500 {
            while !self.to_master.is_empty() || !self.to_task_executors.is_empty() {
                self.deliver_to_master(0);
                self.deliver_to_task_executors();
            }
            if self.harness.master.is_terminated() {
                return;
            }
            for number in 0..8 {
                self.end_task(number, TaskState::Finished);
            }
            // A ResourceManager would see to it that a free slot is offered.
            for index in 0..2 {
                let task_executor = &self.task_executors[index];
                let from = Address::TaskExecutor(task_executor.id.clone());
                let offers = task_executor.offered.clone();
                let offers = SlotOffers { task_executor: task_executor.id.clone(), offers };
                self.to_master.push_back((from, JobMasterMessage::OfferSlots(offers)));
            }
            self.harness.advance(SECOND);
            self.collect();
        }
        panic!("the job never ends: {} {}", self.harness.status(), self.harness.states());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_job_ends_whatever_is_lost_doubled_or_late(
        steps in steps(),
        one_region in any::<bool>(),
        attempts in 0..5_u32,
    ) {
        let attempts = attempts.to_string();
        let settings = [
            ("restart-strategy.type", "fixed-delay"),
            ("restart-strategy.fixed-delay.attempts", attempts.as_str()),
        ];
        let graph = if one_region { exchange(2) } else { pipelines(3) };
        let mut model = Model::new(graph, &settings);
        let mut canceled = false;
        for step in steps {
            let is_cancel = matches!(step, Step::Cancel);
            canceled |= is_cancel && !model.harness.master.is_terminated();
            model.step(step);
            model.harness.consistent_details();
        }
        model.behave_until_the_end();
        let details = model.harness.consistent_details();
        prop_assert!(details.status.is_globally_terminal());
        if canceled {
            prop_assert_eq!(details.status, JobStatus::Canceled);
        }
        if details.status == JobStatus::Failed {
            prop_assert!(!details.failures.is_empty());
        }
        // Nothing is sent after the end.
        model.harness.take_sent();
        model.harness.heartbeat("te1", &[]);
        model.harness.advance(1000 * SECOND);
        prop_assert_eq!(model.harness.take_sent(), vec![]);
    }

    #[test]
    fn a_job_without_mishaps_finishes_at_any_interleaving(order in proptest::collection::vec(0..4_usize, 0..200)) {
        let mut model = Model::new(exchange(2), &[]);
        for choice in order {
            match choice {
                // In order: a connection delivers what was sent, as it was sent.
                0 => model.deliver_to_master(0),
                1 | 2 => model.deliver_to_task_executors(),
                _ => model.end_task(choice, TaskState::Finished),
            }
        }
        model.behave_until_the_end();
        let details = model.harness.consistent_details();
        prop_assert_eq!(details.status, JobStatus::Finished);
        prop_assert_eq!(details.restarts, 0);
    }
}

#[test]
fn sources_of_a_group_are_told_how_far_they_may_go() {
    let graph =
        pipelines(2).option("watermark-alignment-group", "group").option("watermark-alignment-max-drift", "500 ms");
    let (mut harness, deployed) = Harness::running(graph, FIXED_DELAY);
    let [source0, sink0, source1, sink1] = [0, 1, 2, 3].map(|task| deployed[task].attempt);
    let report = |harness: &mut Harness, attempt, watermark| {
        let report = WatermarkReport { attempt, node: 1, watermark: Timestamp(watermark) };
        harness.deliver(te("te"), JobMasterMessage::ReportWatermark(report));
        let answers = harness.take_to_task_executors().into_iter().map(|(to, message)| match message {
            TaskExecutorMessage::AlignWatermark(answer) => {
                assert_eq!((to.as_str(), answer.attempt, answer.node), ("te", attempt, 1));
                answer.watermark.0
            }
            other => panic!("{other:?}"),
        });
        answers.collect::<Vec<_>>()
    };
    assert_eq!(report(&mut harness, source0, 1000), [1500]);
    assert_eq!(report(&mut harness, source1, i64::MIN), [i64::MIN + 500]);
    assert_eq!(report(&mut harness, source0, 1000), [i64::MIN + 500]);
    assert_eq!(report(&mut harness, source1, 700), [1200]);
    assert_eq!(report(&mut harness, source0, 1400), [1200]);
    assert_eq!(report(&mut harness, sink0, 1), [0_i64; 0], "no source");
    // A failed subtask, and one of an attempt before, hold nobody back.
    harness.report(source1, TaskState::Failed);
    harness.report(sink1, TaskState::Canceled);
    harness.take_sent();
    assert_eq!(report(&mut harness, source0, 1400), [1900]);
    harness.advance(3 * SECOND);
    let deployed = harness.take_deployed();
    run(&mut harness, &deployed);
    harness.take_sent();
    let late = WatermarkReport { attempt: source1, node: 1, watermark: Timestamp(0) };
    harness.deliver(te("te"), JobMasterMessage::ReportWatermark(late));
    harness.take_sent();
    assert_eq!(report(&mut harness, source0, 1400), [1900]);
    let again = deployed.iter().find(|deployment| harness.name(deployment.attempt) == "source1#1").unwrap().attempt;
    assert_eq!(report(&mut harness, again, 100), [600]);
    assert_eq!(report(&mut harness, source0, 1400), [600]);
    harness.report(again, TaskState::Finished);
    harness.take_sent();
    assert_eq!(report(&mut harness, source0, 1400), [1900], "who has finished holds nobody back");
}

#[test]
fn every_kind_of_message_survives_the_wire() {
    let harness = Harness::start(
        GraphBuilder::default().vertex("a", 2).vertex("b", 1).edge("a", "b", DistributionPattern::AllToAll),
        &[],
    );
    let attempt = harness.master.graph.vertex(0).current().attempt();
    let id = ResourceId("te".to_owned());
    for message in [
        JobMasterMessage::RegisteredAtResourceManager(harness.resource_manager),
        JobMasterMessage::ResourceManagerRefused("no".to_owned()),
        JobMasterMessage::ResourceManagerHeartbeat,
        JobMasterMessage::NotEnoughSlots(3),
        JobMasterMessage::RegisterTaskExecutor(id.clone()),
        JobMasterMessage::OfferSlots(SlotOffers { task_executor: id.clone(), offers: Vec::new() }),
        JobMasterMessage::UpdateTaskExecutionState(finished(attempt, 1, "x")),
        JobMasterMessage::TaskRefused(attempt, "no".to_owned()),
        JobMasterMessage::RequestSplit(SplitRequest { attempt, node: 1 }),
        JobMasterMessage::ReportWatermark(WatermarkReport { attempt, node: 1, watermark: Timestamp::MIN }),
        JobMasterMessage::TaskExecutorHeartbeat(TaskExecutorHeartbeat {
            task_executor: id.clone(),
            tasks: vec![(attempt, metrics(1))],
        }),
        JobMasterMessage::DisconnectTaskExecutor(id, "gone".to_owned()),
        JobMasterMessage::Cancel,
        JobMasterMessage::CancelUncommitted,
        JobMasterMessage::RequestDetails(u64::MAX),
        JobMasterMessage::Suspend("lost".to_owned()),
    ] {
        let (from, to) = (Address::Dispatcher, Address::JobMaster(harness.job));
        let fence = Fence::JobMaster(harness.id);
        through_the_wire(&Envelope { from, to, fence, message: Message::JobMaster(message) });
    }
}
