//! Whole command lines, by exit code; and jobs that a scripted Dispatcher ends.

use tokio::sync::mpsc;

use super::*;
use crate::{
    base::{
        clock::{Clock, Timestamp},
        config::{Configuration, Origin},
        ids::JobId,
        status::JobStatus,
    },
    client::{
        job_client::JobClient,
        rest_client::{RestClient, SentFile},
    },
    graph::job_graph_codec,
    protocol::{
        dispatcher::{DispatcherRequest, DispatcherResponse},
        job_details::SlotShortage,
        rpc::{ClientCall, DispatcherGateway},
    },
    rest::tests::{FAILED, FINISHED, Fixture, PLUGIN, RUNNING, job, job_graph},
};

fn parse(line: &[&str]) -> Result<Cli, clap::Error> {
    parse_line(std::iter::once("engine").chain(line.iter().copied()).map(OsString::from))
}

/// Runs a command line that must not find a configuration of this machine's user.
fn code(line: &[&str]) -> u8 {
    let empty = tempfile::NamedTempFile::new().expect("a file");
    let mut arguments: Vec<OsString> = vec!["engine".into(), "--config".into(), empty.path().into()];
    arguments.extend(line.iter().map(OsString::from));
    run_with(arguments)
}

#[test]
fn the_command_line_is_consistent() {
    <Cli as clap::CommandFactory>::command().debug_assert();
}

#[test]
fn every_verb_has_examples() {
    let command = <Cli as clap::CommandFactory>::command();
    for verb in command.get_subcommands() {
        let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
        assert!(help.contains("Examples:\n  engine "), "{} has no examples", verb.get_name());
        assert!(help.contains(&format!("engine {}", verb.get_name())), "{}", verb.get_name());
    }
}

#[test]
fn what_stands_behind_the_plugin_belongs_to_the_program() {
    let line = [
        "submit",
        "-p",
        "4",
        "-D",
        "rest.port=1",
        "--name",
        "n",
        "w.wasm",
        "--output",
        "json",
        "-D",
        "x",
        "-p",
        "--help",
        "--",
        "-m",
    ];
    let cli = parse(&line).expect("valid");
    assert_eq!(cli.global.dynamic, ["rest.port=1"]);
    assert_eq!(cli.global.output, Output::Text);
    let Verb::Submit(submit) = cli.verb else { panic!("another verb") };
    assert_eq!(submit.program.parallelism, Some(4));
    assert_eq!(submit.plugin_and_args, ["w.wasm", "--output", "json", "-D", "x", "-p", "--help", "--", "-m"]);
    let cli = parse(&["plan", "--output", "json", "w.wasm", "-p", "3"]).expect("valid");
    let Verb::Plan(_) = cli.verb else { panic!("another verb") };
    assert_eq!(cli.global.output, Output::Json);
}

#[test]
fn unknown_words_name_the_nearest() {
    for (line, nearest) in [
        (&["submti", "w.wasm"][..], "submit"),
        (&["submit", "--paralelism", "4", "w.wasm"], "--parallelism"),
        (&["cluster", "--allow-raed", "/"], "--allow-read"),
        (&["new", "--template", "word-cuont", "x"], "word-count"),
    ] {
        let error = parse(line).expect_err("unknown").to_string();
        assert!(error.contains(nearest), "{line:?}: {error}");
    }
}

#[test]
fn arguments_of_the_program_before_the_plugin_are_told_apart() {
    for (line, is_told) in [
        (&["submit", "--output", "out", "w.wasm", "--input", "f"][..], true),
        (&["submit", "--input", "f", "w.wasm"], true),
        (&["plan", "--output=out", "w.wasm"], true),
        (&["submit", "-p", "many", "w.wasm"], false),
        (&["list", "--output", "out"], false),
    ] {
        let error = parse(line).expect_err("invalid").to_string();
        assert_eq!(error.contains("arguments of the program stand behind the plugin"), is_told, "{line:?}: {error}");
    }
}

#[test]
fn exit_codes_tell_bad_usage_from_failure() {
    assert_eq!(code(&["--version"]), 0);
    assert_eq!(code(&["submit", "--help"]), 0);
    assert_eq!(code(&["submit", "--print-config"]), 0);
    for usage in [
        &[][..],
        &["submit"],
        &["submit", "--nonsense", "w.wasm"],
        &["submit", "/nowhere/plugin.wasm"],
        &["submit", "--detached", "w.wasm"],
        &["-D", "nonsense=1", "submit", "w.wasm"],
        &["-D", "parallelism.default=0", "submit", "w.wasm"],
        &["submit", "-p", "0", "w.wasm"],
        &["submit", "-p", "many", "w.wasm"],
        &["--log-level", "loud=?", "submit", "w.wasm"],
        &["list", "-m", "https://localhost"],
        &["build", "/nowhere"],
        &["new", "1"],
        &["cluster", "--task-executors", "0"],
    ] {
        assert_eq!(code(usage), 2, "{usage:?}");
    }
    // The port was free a moment ago, and nothing listens on it.
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("an address");
    assert_eq!(code(&["list", "-m", &port.to_string()]), 1);
}

#[test]
fn a_file_that_is_no_plugin_is_bad_usage() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("w.wasm");
    std::fs::write(&path, "no plugin").expect("written");
    let path = path.to_str().expect("text");
    for verb in ["submit", "plan", "inspect"] {
        let cache = format!("plugin.cache-dir={}", directory.path().join("cache").display());
        assert_eq!(code(&["-D", &cache, verb, path]), 2, "{verb}");
    }
    assert_eq!(code(&["submit", "--config", "/nowhere.toml", path]), 2);
}

/// A Dispatcher with one job, which ends in the given state as soon as somebody waits for it.
async fn dispatcher(mut calls: mpsc::Receiver<ClientCall>, status: JobStatus) {
    while let Some(ClientCall { request, reply }) = calls.recv().await {
        let answer = match request {
            DispatcherRequest::AwaitTermination(id) | DispatcherRequest::JobDetails(id) => {
                DispatcherResponse::Details(job(id, status))
            }
            _ => DispatcherResponse::Acknowledged,
        };
        reply.send(answer).expect("the caller waits");
    }
}

fn outcome_of(status: JobStatus) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let (sender, calls) = mpsc::channel(4);
        tokio::spawn(dispatcher(calls, status));
        let clock = Clock::new_virtual(Timestamp(5000));
        let client = JobClient::Embedded { gateway: DispatcherGateway::new(sender), clock: clock.clone() };
        let snapshot = submit::watch(&client, RUNNING, submit::EndRequests::of_client()?, &clock).await?;
        assert_eq!(snapshot.restarts, 2);
        assert_eq!(snapshot.vertices[0].1.records_in, 300);
        submit::conclude(&snapshot, Output::Text)
    })
}

#[test]
fn the_end_of_a_job_is_the_exit_code() {
    assert!(outcome_of(JobStatus::Finished).is_ok());
    for (status, expected) in [
        // Of a panic, the message names the place, and there is nothing below it.
        (JobStatus::Failed, "failed: \"Flat Map\" (1/2) panicked: <b>no</b>"),
        (JobStatus::Canceled, "was cancelled"),
    ] {
        match outcome_of(status) {
            Err(CliError::Failed(error)) => {
                let text = format!("{error:#}");
                assert!(text.ends_with(expected), "{text}");
            }
            other => panic!("{status}: {other:?}"),
        }
    }
}

fn client(fixture: &Fixture) -> RestClient {
    let mut configuration = Configuration::default();
    configuration.set("rest.address", &fixture.address.to_string(), Origin::CommandLine).expect("valid");
    RestClient::new(&configuration).expect("an address")
}

#[test]
fn the_client_reads_what_rest_writes() {
    let fixture = Fixture::start(&[]);
    let client = client(&fixture);
    let jobs = client.jobs().expect("listed");
    assert_eq!(jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [RUNNING, FAILED, FINISHED]);
    assert_eq!((jobs[2].state, jobs[2].end_time, jobs[2].duration), (JobStatus::Finished, 2000, 1000));
    let snapshot = client.snapshot(RUNNING).expect("known");
    assert_eq!(snapshot.slot_shortage, Some(SlotShortage { needed: 4, available: Some(1) }));
    let vertex = &snapshot.vertices[0].1;
    assert_eq!((vertex.rejected_rows, vertex.dropped_log_lines), (3, 10), "of a job that runs, too");
    let line = progress::summary(&snapshot).lines().nth(1).map(str::to_owned).unwrap_or_default();
    assert!(line.starts_with("  waiting for 4 slots, 1 is available: raise taskmanager.numberOfTaskSlots"), "{line}");
    let snapshot = client.snapshot(FAILED).expect("known");
    assert_eq!(snapshot.slot_shortage, None);
    assert_eq!(snapshot.status, JobStatus::Failed);
    assert_eq!(snapshot.restarts, 2);
    let mut failure = snapshot.failure.clone().expect("it failed");
    assert_eq!((failure.code.as_str(), failure.detail.as_str()), ("guest-panic", "at lib.rs:3"));
    assert_eq!(failure.text(), "\"Flat Map\" (1/2) panicked: <b>no</b>");
    failure.code = "guest-trap".to_owned();
    failure.detail = "divide\nmain".to_owned();
    assert_eq!(failure.text(), "\"Flat Map\" (1/2) panicked: <b>no</b>\n    at divide\n    at main");
    let vertex = &snapshot.vertices[0].1;
    assert_eq!((vertex.records_in, vertex.back_pressured_ms, vertex.rejected_rows), (300, 50, 3));
    assert_eq!(client.find_job("0101").expect("one"), RUNNING);
    assert!(client.find_job("ff").expect_err("none").to_string().starts_with("there is no job ff"));
    assert!(client.find_job("0").expect_err("several").to_string().starts_with("3 jobs have ids"));
    let error = client.cancel(FINISHED).expect_err("ended").to_string();
    assert!(error.contains("has ended as FINISHED"), "{error}");
    assert!(client.snapshot(JobId::random()).expect_err("unknown").to_string().contains("there is no job"));
}

#[test]
fn the_client_submits_what_rest_takes() {
    let fixture = Fixture::start(&[]);
    let client = client(&fixture);
    let job = JobId::random();
    let submit = |job: JobId| {
        let graph = job_graph(job, PLUGIN);
        let encoded = job_graph_codec::encode(&graph).expect("encodes");
        let plugin = SentFile { name: "w\"ö.wasm".to_owned(), content: PLUGIN.into() };
        client.submit(&graph, encoded, &plugin, &[])
    };
    submit(job).expect("taken");
    assert_eq!(fixture.submitted(), [job]);
    let error = submit(RUNNING).expect_err("known already");
    assert!(!error.is_transient());
    assert!(error.to_string().contains("has been submitted already"), "{error}");
}

#[test]
fn verbs_work_against_a_job_manager() {
    let fixture = Fixture::start(&[]);
    let url = fixture.address.to_string();
    let job = RUNNING.to_string();
    for line in [
        &["list", "-m", &url][..],
        &["list", "-a", "--output", "json", "-m", &url],
        &["status", "-m", &url, "0202"],
        &["status", "--output", "json", "-m", &url, &job],
        &["cancel", "--no-wait", "-m", &url, "0101"],
        &["logs", "-m", &url],
        &["logs", "-m", &url, &job],
    ] {
        assert_eq!(code(line), 0, "{line:?}");
    }
    assert_eq!(code(&["status", "-m", &url, "ff"]), 2);
    assert_eq!(code(&["status", "-m", &url, &"f".repeat(32)]), 1);
    assert_eq!(code(&["cancel", "-m", &url, &FINISHED.to_string()]), 1);
    let asked = fixture.asked.lock().expect("no panic");
    assert!(asked.contains(&DispatcherRequest::CancelJob(RUNNING)));
}
