//! A job opens only what its submitter named.

use std::{fs, os::unix::fs::symlink};

use engine_tests::{Cluster, check_failure, is_empty, plugin, run, text};

#[test]
fn a_path_that_no_argument_names_is_refused_with_the_flag_that_would_grant_it() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (topology, output) = (plugin("test_topology"), directory.path().join("out"));
    // The argument names the directory, the program writes into others below it.
    let output_flag = format!("--allow-write {}/", text(&output));
    let refused = run(&["submit", text(&topology), "--output", text(&output)]);
    let code = refused.status.code().expect("it ended by itself");
    assert!(matches!(code, 1 | 2), "{code}");
    let message = String::from_utf8_lossy(&refused.stderr);
    assert!(message.contains(&output_flag), "{message}");
    assert!(is_empty(&output));
}

#[test]
fn a_cluster_decides_over_what_jobs_open() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let input = directory.path().join("words.txt");
    fs::write(&input, "a b a\n").expect("writable");
    let (allowed, elsewhere) = (directory.path().join("allowed"), directory.path().join("elsewhere"));
    let cluster = Cluster::start(&["--allow-read", text(&input), "--allow-write", text(&allowed)]);
    let word_count = plugin("word_count");
    let submit = |output: &std::path::Path, more: &[&str]| {
        let program = [text(&word_count), "--input", text(&input), "--output", text(output)];
        run(&[&["submit", "--jobmanager", &cluster.url], more, &program[..]].concat())
    };
    let refused = submit(&elsewhere.join("out"), &["--allow-write", text(&elsewhere)]);
    check_failure(&refused, 2, &["elsewhere", "--allow-write"]);
    assert!(!elsewhere.exists());
    let taken = submit(&allowed.join("out"), &[]);
    assert!(taken.status.success(), "{}", engine_tests::describe(&taken));
    assert_eq!(engine_tests::sorted_rows(&allowed.join("out")), [b"a,2\n".to_vec(), b"b,1\n".to_vec()]);
}

#[test]
fn a_symbolic_link_out_of_a_granted_directory_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let secret = directory.path().join("secret.txt");
    fs::write(&secret, "secret secret\n").expect("writable");
    let granted = directory.path().join("granted");
    fs::create_dir(&granted).expect("writable");
    fs::write(granted.join("words.txt"), "a\n").expect("writable");
    let word_count = plugin("word_count");
    let submit = |input: &std::path::Path, output: &std::path::Path, flags: &[&str]| {
        let program = [text(&word_count), "--input", text(input), "--output", text(output)];
        run(&[&["submit"], flags, &program[..]].concat())
    };
    symlink(&secret, granted.join("link.txt")).expect("links can be made");
    let output = directory.path().join("out");
    let refused = submit(&granted, &output, &[]);
    check_failure(&refused, 2, &["link.txt"]);
    assert!(is_empty(&output));

    // The same for output: the directory is named, and leads elsewhere by a link below it.
    let outside = directory.path().join("outside");
    fs::create_dir(&outside).expect("writable");
    fs::remove_file(granted.join("link.txt")).expect("it was made above");
    let root = directory.path().join("root");
    fs::create_dir(&root).expect("writable");
    symlink(&outside, root.join("way-out")).expect("links can be made");
    let cluster = Cluster::start(&["--allow-read", text(&granted), "--allow-write", text(&root)]);
    let destination = root.join("way-out").join("out");
    let refused = submit(&granted, &destination, &["--jobmanager", &cluster.url]);
    check_failure(&refused, 2, &["outside"]);
    assert!(is_empty(&outside));
}
