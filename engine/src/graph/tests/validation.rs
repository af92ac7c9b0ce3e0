//! What a plugin may declare, and all the ways in which it may not.

use serde_json::Value;

use super::programs::{Program, configuration, job_graph, programs, word_count};
use crate::{
    base::config::Configuration,
    graph::{
        stream_graph::{Operator, Partitioner, StateDeclaration, StateKind, StreamGraph},
        validate::validate,
    },
};

/// All messages for a changed word count.
fn messages(change: impl FnOnce(&mut Program)) -> Vec<String> {
    let mut program = word_count();
    change(&mut program);
    messages_of(&program.graph, &Configuration::default())
}

fn messages_of(graph: &StreamGraph, configuration: &Configuration) -> Vec<String> {
    match validate(graph, configuration) {
        Ok(_) => Vec::new(),
        Err(error) => error.errors().iter().map(ToString::to_string).collect(),
    }
}

#[track_caller]
fn check(change: impl FnOnce(&mut Program), expected: &[&str]) {
    assert_eq!(messages(change), expected);
}

#[test]
fn a_program_without_operator_is_refused() {
    let message = "the program declares no operator: sources alone do nothing, connect them to an operator or a sink";
    assert_eq!(messages_of(&StreamGraph::default(), &Configuration::default()), [message]);
    let mut program = Program::default();
    program.source("source");
    assert_eq!(messages_of(&program.graph, &Configuration::default()), [message]);
}

#[test]
fn an_operator_without_sink_is_run() {
    let mut program = Program::default();
    let source = program.source("source");
    program.operator("map", source);
    assert_eq!(messages_of(&program.graph, &Configuration::default()), [""; 0]);
}

#[test]
fn cycles_are_named() {
    check(
        |program| program.edge(3, 2, 0),
        &[
            "the graph has a cycle: node 2 (\"flatMap\") -> node 3 (\"sum\") -> node 2 (\"flatMap\"); iterations are not \
           supported",
        ],
    );
    check(
        |program| program.edge(2, 2, 0),
        &["the graph has a cycle: node 2 (\"flatMap\") -> node 2 (\"flatMap\"); iterations are not supported"],
    );
}

#[test]
fn ids_ascend_along_edges() {
    check(
        |program| {
            program.at(1).id = 9;
            program.graph.edges[0].source = 9;
        },
        &["the edge from node 9 to input 0 of node 2: the id of a node must be above those of its inputs"],
    );
}

#[test]
fn duplicate_ids_and_uids_are_named() {
    check(
        |program| {
            program.at(1).uid = Some("a".to_owned());
            program.at(2).uid = Some("a".to_owned());
            program.at(3).uid_hash = Some("ab".repeat(16));
            program.at(4).uid_hash = Some("AB".repeat(16));
        },
        &[
            "node 1 (\"source\") and node 2 (\"flatMap\") have the same uid \"a\": choose another one",
            "node 3 (\"sum\") and node 4 (\"print\") have the same uid hash \"abababababababababababababababab\": choose \
             another one",
        ],
    );
    let all = messages(|program| program.at(2).id = 1);
    assert!(all.contains(&"nodes \"source\" and \"flatMap\" have the same id 1".to_owned()), "{all:?}");
    assert_eq!(
        messages(|program| program.graph.nodes[0].id = 0)[0],
        "node 0 (\"source\") has the id 0: ids are counted from 1"
    );
}

#[test]
fn a_uid_hash_that_collides_with_a_generated_id_is_refused() {
    let mut program = word_count();
    program.at(4).uid_hash = Some("90bea66de1c231edf33913ecd54406c1".to_owned());
    let message = job_graph(&program.graph).unwrap_err().to_string();
    assert_eq!(
        message,
        "node 3 (\"sum\") and node 4 (\"print\") have the same operator id 90bea66de1c231edf33913ecd54406c1: give one of \
         them another uid"
    );
    program.at(4).uid_hash = None;
    program.at(3).uid_hash = Some("90bea66de1c231edf33913ecd54406c1".to_owned());
    assert!(job_graph(&program.graph).is_ok());
}

#[test]
fn uid_hashes_are_hexadecimal() {
    let expected = "node 1 (\"source\") has the uid hash \"xyz\": expected 32 hexadecimal digits";
    check(|program| program.at(1).uid_hash = Some("xyz".to_owned()), &[expected]);
}

#[test]
fn operators_need_a_uid_if_none_may_be_generated() {
    let mut program = word_count();
    program.at(1).uid = Some("a".to_owned());
    program.at(2).uid_hash = Some("ab".repeat(16));
    let configuration = configuration(&[("pipeline.auto-generate-uids", "false")]);
    let suffix = "has no uid: pipeline.auto-generate-uids is false, so call uid() on each operator";
    let expected = [format!("node 3 (\"sum\") {suffix}"), format!("node 4 (\"print\") {suffix}")];
    assert_eq!(messages_of(&program.graph, &configuration), expected);
}

#[test]
fn parallelism_has_bounds() {
    check(
        |program| {
            program.at(1).parallelism = Some(0);
            program.at(2).parallelism = Some(1 << 31);
            program.at(3).max_parallelism = Some(32_769);
            program.at(4).max_parallelism = Some(1);
            program.graph.parallelism = Some(40_000);
        },
        &[
            "invalid value \"40000\" for \"parallelism.default\": expected a whole number from 1 to 32768",
            "the parallelism of node 1 (\"source\") is 0: expected 1 to 32768",
            "the parallelism of node 2 (\"flatMap\") is 2147483648: expected 1 to 32768",
            "the max parallelism of node 3 (\"sum\") is 32769: expected 1 to 32768",
            "node 4 (\"print\") has parallelism 2, which is above its max parallelism 1",
        ],
    );
    let mut program = word_count();
    program.at(1).parallelism = Some(32_768);
    program.at(1).max_parallelism = Some(32_768);
    assert_eq!(messages_of(&program.graph, &Configuration::default()), [""; 0]);
}

/// The calls that Flink's key group arithmetic refuses never happen.
#[test]
fn no_graph_leads_to_a_key_group_that_cannot_be() {
    let vectors: Value = serde_json::from_str(include_str!("../../../tests-data/keygroups.json")).unwrap();
    for row in vectors["errors"].as_array().unwrap().iter().filter(|row| row["call"] != "assign") {
        let number = |key: &str| row[key].as_u64().map(|number| u32::try_from(number).unwrap());
        let messages = messages(|program| {
            program.at(4).parallelism = number("parallelism");
            program.at(4).max_parallelism = number("max_parallelism");
        });
        assert_eq!(messages.len(), 1, "{row}: {messages:?}");
    }
}

#[test]
fn tasks_and_channels_have_limits() {
    let mut program = word_count();
    program.graph.nodes.iter_mut().for_each(|node| node.parallelism = Some(32_768));
    let message = job_graph(&program.graph).unwrap_err().to_string();
    assert_eq!(message, "1073741824 channels between subtasks: at most 4194304 are allowed");
    let mut program = Program::default();
    let mut previous = program.source("source");
    for _ in 0..3 {
        previous = program.operator("map", previous);
        program.at(previous).chaining = crate::graph::stream_graph::ChainingStrategy::Head;
    }
    let message = job_graph(&program.all(20_000).graph).unwrap_err().to_string();
    assert_eq!(message, "80000 subtasks: at most 65536 are allowed");
}

#[test]
fn forward_names_both_ends() {
    check(
        |program| {
            program.at(4).parallelism = Some(3);
            program.graph.edges[2].partitioner = Some(Partitioner::Forward);
        },
        &[
            "the edge from node 3 to input 0 of node 4: forward partitioning does not allow a change of parallelism, but \
           node 3 (\"sum\") has parallelism 2 and node 4 (\"print\") has 3: set them equal, or use rebalance or rescale",
        ],
    );
}

#[test]
fn edges_need_both_ends_and_an_input() {
    check(
        |program| {
            program.edge(8, 9, 0);
            program.edge(1, 2, 5);
        },
        &[
            "the edge from node 8 to input 0 of node 9: there is no node 8",
            "the edge from node 8 to input 0 of node 9: there is no node 9",
            "the edge from node 1 to input 5 of node 2: node 2 (\"flatMap\") has 1 inputs",
        ],
    );
    check(
        |program| program.at(2).input_types.push("u64".to_owned()),
        &["no edge leads to input 1 of node 2 (\"flatMap\")"],
    );
    check(
        |program| {
            program.at(3).input_types.clear();
            program.graph.edges.remove(1);
        },
        &["node 3 (\"sum\") has no input"],
    );
}

#[test]
fn types_of_an_edge_must_agree() {
    check(
        |program| program.graph.edges[0].record_type = "i64".to_owned(),
        &[
            "the edge from node 1 to input 0 of node 2 carries \"i64\", but node 1 (\"source\") emits \"u64\"",
            "the edge from node 1 to input 0 of node 2 carries \"i64\", but the input takes \"u64\"",
        ],
    );
    check(
        |program| program.at(4).input_types[0] = "list<u64".to_owned(),
        &[
            "node 4 (\"print\") has the type of input 0 \"list<u64\", which is not a type descriptor: expected > at byte 8",
            "the edge from node 3 to input 0 of node 4 carries \"u64\", but the input takes \"list<u64\"",
        ],
    );
    // A formatter makes text of any record; a side output has a type of its own.
    check(
        |program| {
            program.at(4).input_types[0] = "string".to_owned();
            program.graph.edges[2].record_type = "string".to_owned();
            program.graph.edges[2].selector = Some(1);
            let late = program.sink("late", 3);
            program.at(late).input_types[0] = "bytes".to_owned();
            program.graph.edges[3].record_type = "bytes".to_owned();
            program.graph.edges[3].side_output = Some("late".to_owned());
        },
        &[],
    );
}

#[test]
fn native_connectors_run_no_code_of_the_plugin() {
    check(
        |program| {
            program.graph.edges[0].selector = Some(0);
            program.graph.edges[0].side_output = Some("late".to_owned());
        },
        &[
            "the edge from node 1 to input 0 of node 2: node 1 (\"source\") is native and cannot apply a selector, put an \
             operator of the plugin between",
            "the edge from node 1 to input 0 of node 2: node 1 (\"source\") is native and cannot apply a side output, put \
             an operator of the plugin between",
        ],
    );
    check(
        |program| program.graph.edges[1].selector = None,
        &["the edge from node 2 to input 0 of node 3: the partitioner hash needs a selector"],
    );
    check(
        |program| program.at(4).output_type = Some("u64".to_owned()),
        &["node 4 (\"print\") is a sink, but has an output"],
    );
    check(
        |program| program.at(3).output_type = None,
        &["the edge from node 3 to input 0 of node 4: node 3 (\"sum\") has no main output"],
    );
}

#[test]
fn states_are_checked() {
    let state = |name: &str, kind, map_key_type: Option<&str>| StateDeclaration {
        name: name.to_owned(),
        kind,
        value_type: "u64".to_owned(),
        map_key_type: map_key_type.map(str::to_owned),
        time_to_live: None,
        taken_at_end: false,
    };
    check(
        |program| {
            program.at(3).states = vec![state("a", StateKind::Map, None), state("a", StateKind::Value, Some("u8"))];
            program.at(2).states = vec![state("b", StateKind::Value, None), state("c", StateKind::OperatorList, None)];
        },
        &[
            "node 2 (\"flatMap\") declares the keyed state \"b\", but has no key type",
            "node 3 (\"sum\") declares the state \"a\" of a map without a map key type",
            "node 3 (\"sum\") declares the state \"a\" twice",
            "node 3 (\"sum\") declares the state \"a\" with a map key type, but it is not a map",
        ],
    );
}

#[test]
fn names_are_short_and_printable() {
    let long = "n".repeat(1025);
    check(
        |program| {
            program.at(1).name = "a\u{1b}[31m\n".to_owned();
            program.at(2).name = String::new();
            program.at(3).uid = Some(long.clone());
            program.at(4).operator = Operator::Guest("x".to_owned());
        },
        &[
            "node 1 (\"a\\u{1b}[31m\\n\") has control characters in its name \"a\\u{1b}[31m\\n\"",
            "node 2 (\"\") has an empty name",
            "node 3 (\"sum\") has a uid of 1025 bytes: at most 1024 are allowed",
        ],
    );
}

#[test]
fn endless_texts_are_neither_copied_nor_compared() {
    let long = "x".repeat(4 << 20);
    let error = {
        let mut program = word_count();
        program.at(2).input_types[0].clone_from(&long);
        (0..99).for_each(|_| program.edge(1, 2, 0));
        validate(&program.graph, &Configuration::default()).unwrap_err()
    };
    assert_eq!(error.errors().len(), 100);
    assert!(format!("{error:?}").len() < 100_000);
    let expected =
        format!("the program's setting \"{}…\" has a key of 4194304 bytes: at most 1024 are allowed", "x".repeat(80));
    check(
        |program| {
            program.graph.configuration.insert(long.clone(), "\u{1b}".to_owned());
            program.graph.configuration.insert("a\n".to_owned(), String::new());
        },
        &[
            "the program's setting \"a\\n\" has control characters in its key \"a\\n\"",
            &expected,
            &format!("the program's setting \"{}…\" has control characters in its value \"\\u{{1b}}\"", "x".repeat(80)),
        ],
    );
}

#[test]
fn types_are_printable() {
    check(
        |program| program.at(3).key_type = Some("tuple(A{\u{1b}[2J:u8})".to_owned()),
        &["node 3 (\"sum\") has control characters in its type \"tuple(A{\\u{1b}[2J:u8})\""],
    );
}

#[test]
fn a_program_may_not_loosen_its_own_sandbox() {
    check(
        |program| {
            for (key, value) in [
                ("sandbox.memory.max", "4 gb"),
                ("execution.row-errors.dead-letter.dir", "/etc"),
                ("restart-strategy.type", "none"),
                ("restart-stratgy.type", "none"),
                ("execution.buffer-timeout.interval", "soon"),
            ] {
                program.graph.configuration.insert(key.to_owned(), value.to_owned());
            }
        },
        &[
            "invalid value \"soon\" for \"execution.buffer-timeout.interval\": expected a duration such as \"100 ms\" or \
             \"10 s\"",
            "the program sets \"execution.row-errors.dead-letter.dir\", which only its submitter may set: with -D \
             execution.row-errors.dead-letter.dir=VALUE, or in the configuration file",
            "unknown configuration key \"restart-stratgy.type\", did you mean \"restart-strategy.type\"?",
            "the program sets \"sandbox.memory.max\", which only its submitter may set: with -D \
             sandbox.memory.max=VALUE, or in the configuration file",
        ],
    );
}

#[test]
fn a_program_names_no_place_no_savepoint_and_no_size() {
    for (key, value) in [
        ("execution.checkpointing.dir", "/etc"),
        ("execution.checkpointing.savepoint-dir", "/etc"),
        ("execution.checkpointing.data-inline-threshold", "1 mb"),
        ("execution.checkpointing.num-retained", "9"),
        ("execution.state-recovery.path", "/points/of-another-job"),
        ("execution.state-recovery.ignore-unclaimed-state", "true"),
        ("state.backend.type", "disk"),
        ("state.bytes-max", "1 tb"),
        ("plugin.cache-dir", "/tmp"),
        ("cluster.storage-dir", "/tmp"),
        ("heartbeat.interval", "1 s"),
    ] {
        let refusal = format!(
            "the program sets \"{key}\", which only its submitter may set: with -D {key}=VALUE, or in the configuration \
             file"
        );
        check(|program| drop(program.graph.configuration.insert(key.to_owned(), value.to_owned())), &[&refusal]);
    }
}

#[test]
fn a_program_says_how_its_job_is_checkpointed_and_restarted() {
    let mut program = word_count();
    for (key, value) in [
        ("parallelism.default", "2"),
        ("pipeline.auto-watermark-interval", "1 s"),
        ("execution.buffer-timeout.interval", "5 ms"),
        ("execution.row-errors.policy", "skip"),
        ("execution.checkpointing.interval", "1 s"),
        ("execution.checkpointing.mode", "AT_LEAST_ONCE"),
        ("execution.checkpointing.timeout", "1 min"),
        ("execution.checkpointing.min-pause", "1 s"),
        ("execution.checkpointing.max-concurrent-checkpoints", "2"),
        ("execution.checkpointing.tolerable-failed-checkpoints", "3"),
        ("execution.checkpointing.externalized-checkpoint-retention", "RETAIN_ON_CANCELLATION"),
        ("restart-strategy.type", "exponential-delay"),
        ("restart-strategy.exponential-delay.max-backoff", "10 s"),
    ] {
        program.graph.configuration.insert(key.to_owned(), value.to_owned());
    }
    let settings = program.graph.configuration.clone();
    let job_graph = job_graph(&program.graph).unwrap();
    let set: std::collections::BTreeMap<_, _> =
        job_graph.configuration.iter().map(|(key, value, _)| (key.to_owned(), value.to_owned())).collect();
    assert_eq!(set, settings);
}

#[test]
fn co_location_stays_within_a_slot() {
    check(
        |program| {
            program.at(2).co_location_group = Some("pair".to_owned());
            program.at(3).co_location_group = Some("pair".to_owned());
            program.at(3).slot_sharing_group = Some("apart".to_owned());
        },
        &["node 2 (\"flatMap\") and node 3 (\"sum\") have the co-location group \"pair\", but different slot sharing \
           groups \"default\" and \"apart\""],
    );
    let mut program = word_count();
    program.at(1).co_location_group = Some("one".to_owned());
    program.at(2).co_location_group = Some("two".to_owned());
    let message = job_graph(&program.graph).unwrap_err().to_string();
    assert!(message.contains("are chained, but have different co-location groups \"one\" and \"two\""), "{message}");
    program.at(2).co_location_group = None;
    program.at(3).co_location_group = Some("one".to_owned());
    let groups = job_graph(&program.graph).unwrap().vertices;
    assert!(groups.iter().all(|vertex| vertex.co_location_group.as_deref() == Some("one")));
}

#[test]
fn sizes_are_checked_before_anything_else() {
    let mut program = word_count();
    let node = program.graph.nodes[1].clone();
    program.graph.nodes.resize(100_000, node);
    let edge = program.graph.edges[0].clone();
    program.graph.edges.resize(100_000, edge);
    let expected = ["100000 nodes: at most 1024 are allowed", "100000 edges: at most 4096 are allowed"];
    assert_eq!(messages_of(&program.graph, &Configuration::default()), expected);
    let inputs = messages(|program| program.at(2).input_types = vec![String::new(); 1000]);
    assert_eq!(inputs, ["1000 inputs of node 2 (\"flatMap\"): at most 256 are allowed"]);
}

#[test]
fn errors_above_the_limit_are_counted() {
    let mut program = word_count();
    for _ in 0..150 {
        program.edge(77, 3, 0);
    }
    let error = validate(&program.graph, &Configuration::default()).unwrap_err();
    assert_eq!((error.errors().len(), error.omitted()), (100, 50));
    let message = error.to_string();
    assert!(message.starts_with("the graph has 150 errors:\n- the edge from node 77"), "{message}");
    assert!(message.ends_with("\n- and 50 more"), "{message}");
}

proptest::proptest! {
    /// However an edge is bent, the answer is a graph or a list of errors.
    #[test]
    fn no_edge_makes_validation_panic(
        mut graph in programs(),
        edge in 0_usize..100,
        ends in (0_u32..20, 0_u32..20, 0_u32..3),
    ) {
        let count = graph.edges.len();
        let edge = &mut graph.edges[edge % count];
        (edge.source, edge.target, edge.input) = ends;
        if let Ok(resolved) = validate(&graph, &Configuration::default()) {
            proptest::prop_assert!(resolved.edges().iter().all(|edge| edge.source < edge.target));
        }
    }
}
