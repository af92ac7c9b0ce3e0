//! The programs that README's tutorial points to.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::Stdio,
};

use engine_tests::{engine, plugin, sorted_rows, submit, text};

/// Runs a plugin over the text in one file and over its lines dealt to three files, at
/// several parallelisms, and checks the rows.
#[track_caller]
fn check(plugin: &str, input: &str, arguments: &[&str], expected: &[&str]) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let whole = directory.path().join("whole");
    fs::write(&whole, input).expect("writable");
    for part in 0..3 {
        let lines: String = input.split_inclusive('\n').skip(part).step_by(3).collect();
        fs::write(directory.path().join(format!("dealt-{part}")), lines).expect("writable");
    }
    let dealt = directory.path().join("dealt-*");
    let expected: Vec<_> = expected.iter().map(|row| format!("{row}\n").into_bytes()).collect();
    for (what, input) in [("one file", &whole), ("three files", &dealt)] {
        for parallelism in [1, 2, 4] {
            let output = directory.path().join(format!("{what} {parallelism}"));
            let mut all = vec!["--input", text(input), "--output", text(&output)];
            all.extend(arguments);
            submit(parallelism, plugin, &all);
            assert!(sorted_rows(&output) == expected, "{what}, parallelism {parallelism}: {:?}", rows(&output));
        }
    }
}

fn rows(directory: &Path) -> Vec<String> {
    sorted_rows(directory).iter().map(|row| String::from_utf8_lossy(row).trim_end().to_owned()).collect()
}

const FLIGHTS: &str = r#"{"date":"2000/12/31 23:59","delay":12,"distance":447,"origin":"ABQ","destination":"DAL"}
{"date":"2001/01/01 00:00","delay":66,"distance":1750,"origin":"DTW","destination":"LAS"}
{"date":"2001/01/01 13:05","delay":-9,"distance":447,"origin":"ABQ","destination":"DAL"}
{"date":"2001/01/01 12:30","delay":-4,"distance":447,"origin":"ABQ","destination":"DAL"}
{"date":"2001/01/01 23:59","delay":30,"distance":1750,"origin":"DTW","destination":"LAS"}
{"date":"2001/01/03 08:15","delay":0,"distance":1750,"origin":"DTW","destination":"LAS"}
"#;

#[test]
fn flight_delays_are_summed_up_by_day_and_origin() {
    check(
        "flight_delays",
        FLIGHTS,
        &[],
        &["2000-12-31,ABQ,1,12,12", "2001-01-01,ABQ,2,-13,-4", "2001-01-01,DTW,2,96,66", "2001-01-03,DTW,1,0,0"],
    );
}

const SSHD_LOG: &str = "\
Feb 28 23:51:02 gate sshd[311]: Failed password for root from 192.0.2.7 port 40011 ssh2
Feb 28 23:51:02 gate sshd[311]: Received disconnect from 192.0.2.7: 11: Bye Bye [preauth]
Feb 28 23:52:40 gate sshd[312]: Failed password for invalid user x from 198.51.100.1 from 192.0.2.8 port 40012 ssh2
Feb 28 23:53:00 gate sshd[313]: message repeated 2 times: [ Failed password for root from 192.0.2.7 port 40011 ssh2]
Feb 28 23:59:57 gate sshd[314]: Failed password for invalid user admin from 192.0.2.7 port 40013 ssh2
Feb 28 23:59:59 gate sshd[315]: Failed password for invalid user admin from 192.0.2.7 port 40014 ssh2
Feb 29 00:00:00 gate sshd[316]: Failed password for invalid user admin from 192.0.2.7 port 40015 ssh2
Feb 29 00:00:01 gate sshd[317]: Accepted password for alice from 192.0.2.9 port 40016 ssh2
Mar  1 07:00:00 gate sshd[318]: Failed password for root from 2001:db8::1 port 40017 ssh2
";

/// Starts of the windows in milliseconds: the leap year 2024, UTC.
const SSHD_ROWS: [&str; 3] = [
    "1709164200000,192.0.2.7,3",
    "1709164800000,192.0.2.7,1",
    "1709276400000,2001:db8::1,1",
];

#[test]
fn failed_logins_are_counted_by_window_and_address() {
    check("sshd_guard", SSHD_LOG, &["--year", "2024"], &SSHD_ROWS);
}

#[test]
fn an_alert_is_raised_once_for_each_window_with_too_many_failed_logins() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("auth.log");
    fs::write(&input, SSHD_LOG).expect("writable");
    for (threshold, expected) in [
        (
            "0",
            &[
                "1709164262000,192.0.2.7",
                "1709164800000,192.0.2.7",
                "1709276400000,2001:db8::1",
            ][..],
        ),
        ("1", &["1709164797000,192.0.2.7"]),
        ("3", &[]),
    ] {
        let (output, alerts) = (directory.path().join(format!("rows-{threshold}")), directory.path().join(threshold));
        let arguments = ["--year", "2024", "--threshold", threshold, "--alerts", text(&alerts)];
        submit(2, "sshd_guard", &[&["--input", text(&input), "--output", text(&output)][..], &arguments].concat());
        assert_eq!(rows(&alerts), expected, "threshold {threshold}");
        assert_eq!(rows(&output), SSHD_ROWS, "threshold {threshold}");
    }
}

#[test]
fn words_from_a_socket_are_counted_while_it_is_open() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it is bound").to_string();
    let mut job = engine()
        .args(["submit", "-p", "2"])
        .arg(plugin("socket_window_word_count"))
        .args(["--socket", &address, "--seconds", "1"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the engine starts");
    let (mut socket, _) = listener.accept().expect("the job connects");
    socket.write_all(b"to be or\nnot to be\n").expect("the job reads");
    // The two lines may fall into two windows.
    let mut counts = std::collections::BTreeMap::<String, u64>::new();
    let mut lines = BufReader::new(job.stdout.take().expect("it is piped")).lines();
    while counts.values().sum::<u64>() < 6 {
        let line = lines.next().expect("the job prints all counts").expect("it prints text");
        let (word, count) = line.split_once(": ").expect("lines are word: count");
        *counts.entry(word.to_owned()).or_default() += count.parse::<u64>().expect("a count is a number");
    }
    let counts: Vec<_> = counts.iter().map(|(word, count)| (word.as_str(), *count)).collect();
    assert_eq!(counts, [("be", 2), ("not", 1), ("or", 1), ("to", 2)]);
    drop(socket);
    assert_eq!(lines.count(), 0, "nothing came after the counts");
    assert!(job.wait().expect("the job ends").success());
}
