//! Flink's decision table and whole programs, and what holds for every chaining.

use std::collections::BTreeSet;

use proptest::prelude::*;
use serde_json::Value;

use super::programs::{Program, configuration, job_graph, programs, word_count};
use crate::{
    base::config::Configuration,
    graph::{
        chaining::{Chaining, ChainingDecision, EdgeEnd, EdgeFacts, ExchangeMode, NotChained, decide},
        stream_graph::{ChainingStrategy, Partitioner, StreamGraph},
        validate::validate,
    },
};

fn vectors() -> Value {
    serde_json::from_str(include_str!("../../../tests-data/chaining.json")).unwrap()
}

fn strategy(name: &str) -> ChainingStrategy {
    match name {
        "ALWAYS" => ChainingStrategy::Always,
        "NEVER" => ChainingStrategy::Never,
        "HEAD" => ChainingStrategy::Head,
        "HEAD_WITH_SOURCES" => ChainingStrategy::HeadWithSources,
        _ => panic!("{name}"),
    }
}

fn facts(row: &Value) -> EdgeFacts<'static> {
    let text = |key: &str| row[key].as_str().unwrap();
    let flag = |key: &str| row[key].as_bool().unwrap();
    let number = |key: &str| u32::try_from(row[key].as_i64().unwrap()).ok();
    EdgeFacts {
        chaining_enabled: flag("chaining_enabled"),
        chain_different_max_parallelism: flag("allow_diff_max_parallelism"),
        source: EdgeEnd {
            strategy: strategy(text("up")),
            slot_sharing_group: "default",
            parallelism: number("up_parallelism").unwrap(),
            max_parallelism: number("up_max_parallelism"),
        },
        target: EdgeEnd {
            strategy: strategy(text("down")),
            slot_sharing_group: if flag("same_slot_group") { "default" } else { "other" },
            parallelism: number("down_parallelism").unwrap(),
            max_parallelism: number("down_max_parallelism"),
        },
        partitioner: Partitioner::ALL.into_iter().find(|known| known.ship_strategy() == text("partitioner")).unwrap(),
        exchange: match text("exchange") {
            "UNDEFINED" => ExchangeMode::Undefined,
            "PIPELINED" => ExchangeMode::Pipelined,
            "BATCH" => ExchangeMode::Batch,
            other => panic!("{other}"),
        },
        target_in_edges: number("down_in_edges").unwrap() as usize,
        input_is_shared: false,
        source_is_new_source: flag("up_is_new_source"),
        target_yields: flag("down_is_yielding"),
        chain_head_is_legacy_source: flag("chain_head_is_legacy_source"),
    }
}

#[test]
fn decisions_equal_flinks() {
    let vectors = vectors();
    let rows = vectors["edges"].as_array().unwrap();
    assert_eq!(rows.len(), 24);
    for row in rows {
        let mut merged = vectors["base"].clone();
        for (key, value) in row["differs_from_base"].as_object().unwrap() {
            merged[key] = value.clone();
        }
        let decision = decide(&facts(&merged));
        assert_eq!(decision.is_chained(), row["chainable"].as_bool().unwrap(), "{}: {decision}", row["name"]);
    }
}

#[test]
fn every_reason_is_given() {
    let base = facts(&vectors()["base"]);
    let bad = EdgeFacts {
        chaining_enabled: false,
        chain_different_max_parallelism: false,
        source: EdgeEnd { strategy: ChainingStrategy::Never, max_parallelism: Some(7), ..base.source },
        target: EdgeEnd {
            strategy: ChainingStrategy::Head,
            slot_sharing_group: "other",
            parallelism: 5,
            max_parallelism: None,
        },
        partitioner: Partitioner::Custom,
        exchange: ExchangeMode::Batch,
        target_in_edges: 3,
        input_is_shared: true,
        source_is_new_source: false,
        target_yields: true,
        chain_head_is_legacy_source: true,
    };
    let expected = "not chained: pipeline.operator-chaining.enabled is false; 3 edges lead to the target, chaining \
                    needs exactly one; the slot sharing groups differ, \"default\" and \"other\"; the target yields, \
                    and the chain begins with a source that owns its thread; chaining is disabled for the source end; \
                    the target starts a new chain; the parallelism differs, 2 and 5; the max parallelism differs, 7 \
                    and unset; the partitioner is custom, chaining needs forward; the exchange is batch, chaining \
                    needs pipelined; another edge leads to the same input (union)";
    assert_eq!(decide(&bad).to_string(), expected);
}

/// The programs of the vectors, by their text.
fn program(text: &str) -> StreamGraph {
    let mut program = Program::default();
    match text {
        "source(p1) -> map(p2) -> sink(p2)" => {
            let source = program.source("source");
            let map = program.operator("map", source);
            let sink = program.sink("sink", map);
            program.at(map).parallelism = Some(2);
            program.at(sink).parallelism = Some(2);
        }
        "source(p2) -> flatMap(p2) -> keyBy -> sum(p2) -> print(p2)" => program = word_count(),
        "source(p1) -> filter(p1) -> map(p1).disableChaining -> sink(p1)"
        | "source(p1) -> filter(p1) -> map(p1).startNewChain -> sink(p1)" => {
            let source = program.source("source");
            let filter = program.operator("filter", source);
            let map = program.operator("map", filter);
            program.sink("sink", map);
            program.at(map).chaining = match text.contains("disableChaining") {
                true => ChainingStrategy::Never,
                false => ChainingStrategy::Head,
            };
        }
        "source(p1) -> (a(p1), b(p1))" => {
            let source = program.source("source");
            program.operator("a", source);
            program.operator("b", source);
        }
        "s1(p1), s2(p1) -> union -> map(p1) -> sink(p1)" => {
            let (one, two) = (program.source("s1"), program.source("s2"));
            let map = program.operator_of("map", &[(one, 0), (two, 0)]);
            program.sink("sink", map);
        }
        "s1(p1), s2(p1) -> connect -> coMap(p1) -> sink(p1)" => {
            let (one, two) = (program.source("s1"), program.source("s2"));
            let map = program.operator_of("coMap", &[(one, 0), (two, 1)]);
            program.sink("sink", map);
        }
        "source(p2).slotSharingGroup(\"g1\") -> map(p2).slotSharingGroup(\"g2\") -> sink(p2)" => {
            let source = program.source("source");
            let map = program.operator("map", source);
            program.sink("sink", map);
            program.at(source).slot_sharing_group = Some("g1".to_owned());
            program.at(map).slot_sharing_group = Some("g2".to_owned());
            program = program.all(2);
        }
        "source(p2) -> map(p2).forward() -> map(p3)" => {
            let source = program.source("source");
            let map = program.operator("map", source);
            let second = program.operator("map", map);
            program.partition(Partitioner::Forward);
            program = program.all(2);
            program.at(second).parallelism = Some(3);
        }
        _ => panic!("{text}"),
    }
    program.graph
}

#[test]
fn programs_become_flinks_job_vertices() {
    let vectors = vectors();
    let rows = vectors["programs"].as_array().unwrap();
    assert_eq!(rows.len(), 9);
    for row in rows {
        let text = row["program"].as_str().unwrap();
        let generated = job_graph(&program(text));
        if let Some(error) = row["error"].as_str() {
            let message = generated.unwrap_err().to_string();
            assert!(message.to_lowercase().contains(&error.to_lowercase().replace("allow ", "allow a ")), "{message}");
            continue;
        }
        let job_graph = generated.unwrap();
        let names: Vec<_> = job_graph.vertices.iter().map(|vertex| vertex.name.as_str()).collect();
        let expected: Vec<_> =
            row["job_vertices"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
        assert_eq!(names, expected, "{text}");
        let inputs: Vec<_> = job_graph.vertices.iter().flat_map(|vertex| &vertex.inputs).collect();
        let expected: Vec<_> = row["edges"].as_array().unwrap().iter().map(|edge| edge.as_str().unwrap()).collect();
        if expected == ["2 edges, input 1 and 2"] {
            assert_eq!(inputs.iter().map(|input| input.input + 1).collect::<Vec<_>>(), [1, 2], "{text}");
            continue;
        }
        assert_eq!(inputs.len(), expected.len(), "{text}");
        for (input, expected) in inputs.iter().zip(expected) {
            let actual = format!("{}/{}", input.partitioner.ship_strategy(), input.pattern);
            assert!(expected.contains(&actual), "{text}: {actual}");
        }
    }
}

#[test]
fn two_edges_of_a_union_lead_to_one_input() {
    let job_graph = job_graph(&program("s1(p1), s2(p1) -> union -> map(p1) -> sink(p1)")).unwrap();
    let map = &job_graph.vertices[2];
    assert_eq!(map.inputs.iter().map(|input| (input.target_node, input.input)).collect::<Vec<_>>(), [(3, 0), (3, 0)]);
    assert_eq!(map.inputs[0].producer, job_graph.vertices[0].id);
    assert_eq!(map.inputs[1].producer, job_graph.vertices[1].id);
}

#[test]
fn a_sink_inherits_the_group_of_its_only_input() {
    let text = "source(p2).slotSharingGroup(\"g1\") -> map(p2).slotSharingGroup(\"g2\") -> sink(p2)";
    let job_graph = job_graph(&program(text)).unwrap();
    let groups: Vec<_> = job_graph.vertices.iter().map(|vertex| vertex.slot_sharing_group.as_str()).collect();
    assert_eq!(groups, ["g1", "g2"]);
}

#[test]
fn a_source_before_several_inputs_stays_a_task_and_says_why() {
    let mut graph = program("s1(p1), s2(p1) -> connect -> coMap(p1) -> sink(p1)");
    graph.nodes[2].chaining = ChainingStrategy::HeadWithSources;
    let resolved = validate(&graph, &Configuration::default()).unwrap();
    let chaining = Chaining::of(&resolved);
    let expected = ChainingDecision::NotChained(vec![NotChained::TargetInEdges(2), NotChained::SourceInput]);
    assert_eq!(chaining.decisions[..2], [expected.clone(), expected]);
    assert_eq!(chaining.chains.len(), 3);
}

#[test]
fn switching_chaining_off_gives_a_vertex_for_each_node() {
    let resolved = validate(&word_count().graph, &configuration(&[("pipeline.operator-chaining.enabled", "false")]));
    let chaining = Chaining::of(&resolved.unwrap());
    assert_eq!(chaining.chains.len(), 4);
    assert!(chaining.decisions.iter().all(|decision| decision.to_string().contains("enabled is false")));
}

#[test]
fn an_operator_that_makes_watermarks_is_chained_to_its_source_in_any_case() {
    let mut graph = word_count().graph;
    graph.nodes[1].generates_watermarks = true;
    graph.nodes[2].generates_watermarks = true;
    let resolved = validate(&graph, &configuration(&[("pipeline.operator-chaining.enabled", "false")]));
    let chaining = Chaining::of(&resolved.unwrap());
    assert_eq!(chaining.is_chained(), [true, false, false]);
    assert_eq!(chaining.chains.len(), 3);
}

#[test]
fn a_deep_chain_needs_no_deep_stack() {
    let mut program = Program::default();
    let mut previous = program.source("source");
    for _ in 1..1024 {
        previous = program.operator("map", previous);
    }
    let job_graph = job_graph(&program.graph).unwrap();
    assert_eq!(job_graph.vertices.len(), 1);
    assert_eq!(job_graph.vertices[0].operators.len(), 1024);
}

proptest! {
    #[test]
    fn chains_are_what_they_promise(graph in programs()) {
        let resolved = validate(&graph, &Configuration::default()).unwrap();
        let chaining = Chaining::of(&resolved);
        let mut seen = BTreeSet::new();
        for chain in &chaining.chains {
            let head = &resolved.nodes()[chain.head()];
            prop_assert_eq!(chain.chained_edges.len() + 1, chain.nodes.len());
            for (position, node) in chain.nodes.iter().enumerate() {
                prop_assert!(seen.insert(*node), "a node in two chains");
                let resolved_node = &resolved.nodes()[*node];
                prop_assert_eq!(resolved_node.parallelism, head.parallelism);
                prop_assert_eq!(&resolved_node.slot_sharing_group, &head.slot_sharing_group);
                for edge in resolved.in_edges(*node) {
                    prop_assert_eq!(chaining.decisions[*edge].is_chained(), position > 0);
                    if position > 0 {
                        let source = resolved.edges()[*edge].source;
                        prop_assert!(chain.nodes[..position].contains(&source), "behind its producer");
                    }
                }
                for edge in resolved.out_edges(*node) {
                    let list = if chaining.decisions[*edge].is_chained() { &chain.chained_edges } else { &chain.out_edges };
                    prop_assert_eq!(list.iter().filter(|other| *other == edge).count(), 1);
                }
            }
        }
        prop_assert_eq!(seen.len(), resolved.nodes().len());
        for (edge, decision) in resolved.edges().iter().zip(&chaining.decisions) {
            if let ChainingDecision::NotChained(reasons) = decision {
                prop_assert!(!reasons.is_empty());
            } else {
                prop_assert_eq!(edge.partitioner, Partitioner::Forward);
                prop_assert_eq!(resolved.in_edges(edge.target).len(), 1);
            }
        }
    }
}
