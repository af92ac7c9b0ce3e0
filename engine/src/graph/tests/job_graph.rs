//! JobGraphs of whole programs: ids, precedence, wiring, encoding, and JobGraphs that were forged.

use std::collections::BTreeMap;

use proptest::prelude::*;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::programs::{Program, configuration, job_graph, programs, spec, word_count};
use crate::{
    base::config::{Configuration, Origin},
    graph::{
        job_graph::{JobGraph, ResourceProfile},
        job_graph_codec::{DecodeJobGraphError, decode, encode},
        job_graph_generator::generate,
        job_graph_validation::validate_job_graph,
        partitioner::SubtaskStateMapper,
        regions::job_regions,
        slot_sharing::{slots_by_group, slots_needed},
        stream_graph::{ChainingStrategy, Partitioner, StateDeclaration, StateKind, StreamGraph},
        validate::validate,
    },
};

#[test]
fn word_count_has_the_vertex_ids_that_flink_gives_it() {
    let job_graph = job_graph(&word_count().graph).unwrap();
    let ids: Vec<_> = job_graph.vertices.iter().map(|vertex| vertex.id.to_string()).collect();
    assert_eq!(ids, ["cbc357ccb763df2852fee8c4fc7d55f2", "90bea66de1c231edf33913ecd54406c1"]);
}

#[test]
fn uid_hash_is_kept_beside_the_generated_id() {
    let mut program = word_count();
    program.at(3).uid_hash = Some("ABCDEF0123456789abcdef0123456789".to_owned());
    program.at(4).uid = Some("a".to_owned());
    let job_graph = job_graph(&program.graph).unwrap();
    let operators = &job_graph.vertices[1].operators;
    assert_eq!(operators[0].operator_id.to_string(), "90bea66de1c231edf33913ecd54406c1");
    let user_defined = operators[0].user_defined_id.map(|id| id.to_string());
    assert_eq!(user_defined.as_deref(), Some("abcdef0123456789abcdef0123456789"));
    assert_eq!(operators[1].operator_id.to_string(), "897859f6655555855a890e51483ab5e6");
}

/// Settings with their origins, a program's own values, the expected parallelism
/// and max parallelism of a node that sets neither.
#[track_caller]
fn check_precedence(
    settings: &[(&str, &str, Origin)],
    program: (Option<u32>, Option<u32>),
    expected: (u32, u32, bool),
) {
    let mut graph = Program::default();
    let source = graph.source("source");
    graph.operator("map", source);
    (graph.graph.parallelism, graph.graph.max_parallelism) = program;
    let mut configuration = Configuration::default();
    for (key, value, origin) in settings {
        configuration.set(key, value, *origin).unwrap();
    }
    let resolved = validate(&graph.graph, &configuration).unwrap();
    let node = &resolved.nodes()[1];
    let actual = (node.parallelism, node.max_parallelism, node.configured_max_parallelism.is_some());
    assert_eq!(actual, expected);
}

#[test]
fn parallelism_follows_the_strength_of_its_origin() {
    let (key, max) = ("parallelism.default", "pipeline.max-parallelism");
    check_precedence(&[], (None, None), (1, 128, false));
    check_precedence(&[(key, "3", Origin::File)], (None, None), (3, 128, false));
    check_precedence(&[(key, "3", Origin::File)], (Some(200), None), (200, 512, false));
    check_precedence(&[(key, "5", Origin::CommandLine)], (Some(2), None), (5, 128, false));
    check_precedence(&[(key, "5", Origin::CommandLine), (key, "6", Origin::Dynamic)], (Some(2), None), (6, 128, false));
    check_precedence(&[(max, "64", Origin::File)], (None, None), (1, 64, true));
    check_precedence(&[(max, "64", Origin::File)], (None, Some(32)), (1, 32, true));
    check_precedence(&[(max, "64", Origin::Dynamic)], (None, Some(32)), (1, 64, true));
}

#[test]
fn what_a_node_sets_wins() {
    let mut program = word_count();
    program.graph.parallelism = Some(3);
    program.graph.max_parallelism = Some(30);
    program.at(3).max_parallelism = Some(10);
    let mut configuration = configuration(&[]);
    configuration.set("parallelism.default", "7", Origin::Dynamic).unwrap();
    let job_graph = generate(&program.graph, &configuration, spec()).unwrap();
    let values = job_graph.vertices.iter().map(|vertex| (vertex.parallelism, vertex.max_parallelism));
    assert_eq!(values.collect::<Vec<_>>(), [(2, 30), (2, 10)]);
}

#[test]
fn the_job_name_is_the_submitters_else_the_programs_else_the_plugins() {
    let mut graph = word_count().graph;
    assert_eq!(job_graph(&graph).unwrap().name, "test");
    graph.job_name = Some("program".to_owned());
    assert_eq!(job_graph(&graph).unwrap().name, "program");
    let mut configuration = configuration(&[("pipeline.name", "file")]);
    assert_eq!(generate(&graph, &configuration, spec()).unwrap().name, "program");
    configuration.set("pipeline.name", "mine", Origin::CommandLine).unwrap();
    assert_eq!(generate(&graph, &configuration, spec()).unwrap().name, "mine");
}

#[test]
fn settings_of_the_program_travel_with_the_job() {
    let mut graph = word_count().graph;
    graph.parallelism = Some(3);
    graph.configuration.insert("restart-strategy.type".to_owned(), "fixed-delay".to_owned());
    let configuration = configuration(&[("restart-strategy.type", "none"), ("rest.port", "0")]);
    let job_graph = generate(&graph, &configuration, spec()).unwrap();
    let settings: Vec<_> = job_graph.configuration.iter().collect();
    let expected = [
        ("parallelism.default", "3", Origin::Program),
        ("rest.port", "0", Origin::File),
        ("restart-strategy.type", "fixed-delay", Origin::Program),
    ];
    assert_eq!(settings, expected);
}

#[test]
fn buffer_timeouts_are_the_nodes_else_the_jobs() {
    let timeout = |settings: &[(&str, &str)], own: Option<i64>| {
        let mut program = word_count();
        program.at(2).buffer_timeout = own;
        let job_graph = generate(&program.graph, &configuration(settings), spec()).unwrap();
        job_graph.vertices[0].outputs[0].buffer_timeout
    };
    assert_eq!(timeout(&[], None), 100);
    assert_eq!(timeout(&[("execution.buffer-timeout.interval", "2 s")], None), 2000);
    assert_eq!(timeout(&[("execution.buffer-timeout.enabled", "false")], None), -1);
    assert_eq!(timeout(&[("execution.buffer-timeout.enabled", "false")], Some(0)), 0);
    assert_eq!(timeout(&[], Some(-1)), -1);
}

#[test]
fn stateful_operators_share_the_memory_of_their_slot() {
    let mut program = word_count();
    let second = program.operator("second", 3);
    program.partition(Partitioner::Hash);
    let third = program.operator("third", second);
    let other = program.operator("other", third);
    for id in [second, third, other] {
        program.at(id).states.push(StateDeclaration {
            name: "list".to_owned(),
            kind: StateKind::OperatorList,
            value_type: "u8".to_owned(),
            map_key_type: None,
            time_to_live: None,
            taken_at_end: false,
        });
    }
    program.at(other).slot_sharing_group = Some("apart".to_owned());
    let job_graph = job_graph(&program.all(2).graph).unwrap();
    let operators = job_graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let fractions: BTreeMap<_, _> =
        operators.map(|operator| (operator.node.name.as_str(), operator.managed_memory_fraction)).collect();
    let third = 1.0 / 3.0;
    for (name, expected) in
        [("source", 0.0), ("flatMap", 0.0), ("sum", third), ("second", third), ("third", third), ("other", 1.0)]
    {
        assert!((fractions[name] - expected).abs() < 1e-12, "{name}: {}", fractions[name]);
    }
}

#[test]
fn gates_stand_in_the_order_in_which_chains_are_connected() {
    // Declared as union(b, a), but the walk from the sources connects a first.
    let mut program = Program::default();
    let (a, b) = (program.source("a"), program.source("b"));
    let union = program.operator_of("union", &[(b, 0), (a, 0)]);
    let one = program.operator("one", union);
    let two = program.operator("two", union);
    program.at(one).chaining = ChainingStrategy::Head;
    program.at(two).chaining = ChainingStrategy::Head;
    program.operator_of("both", &[(two, 1), (one, 0), (one, 1)]);
    let job_graph = job_graph(&program.graph).unwrap();
    let names: Vec<_> = job_graph.vertices.iter().map(|vertex| vertex.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "union", "one", "two", "both"]);
    let inputs = |index: usize| {
        let inputs = job_graph.vertices[index].inputs.iter();
        inputs.map(|input| (job_graph.vertex(input.producer).unwrap().name.as_str(), input.input)).collect::<Vec<_>>()
    };
    assert_eq!(inputs(2), [("a", 0), ("b", 0)]);
    assert_eq!(inputs(5), [("one", 0), ("one", 1), ("two", 1)]);
}

#[test]
fn the_json_plan_has_flinks_fields() {
    let mut program = word_count();
    program.at(2).name = "split <\"a\" & \\>".to_owned();
    program.operator("second", 3);
    let job_graph = job_graph(&program.all(2).graph).unwrap();
    let plan: serde_json::Value = serde_json::from_str(&job_graph.json_plan).unwrap();
    let expected = json!({
        "jid": "07".repeat(16),
        "name": "test",
        "type": "STREAMING",
        "nodes": [
            {
                "id": "cbc357ccb763df2852fee8c4fc7d55f2",
                "parallelism": 2,
                "operator": "",
                "operator_strategy": "",
                "description": "source<br/>+- split &lt;&quot;a&quot; &amp; &#92;&gt;<br/>",
                "optimizer_properties": {}
            },
            {
                "id": job_graph.vertices[1].id.to_string(),
                "parallelism": 2,
                "operator": "",
                "operator_strategy": "",
                "description": "sum<br/>:- print<br/>+- second<br/>",
                "inputs": [{
                    "num": 0,
                    "id": "cbc357ccb763df2852fee8c4fc7d55f2",
                    "ship_strategy": "HASH",
                    "exchange": "pipelined_bounded"
                }],
                "optimizer_properties": {}
            }
        ]
    });
    assert_eq!(plan, expected);
}

#[test]
fn slots_are_the_largest_parallelism_of_each_group() {
    let mut program = word_count();
    program.at(3).parallelism = Some(5);
    let sink = program.sink("apart", 3);
    program.at(sink).slot_sharing_group = Some("sinks".to_owned());
    program.at(sink).parallelism = Some(3);
    let job_graph = job_graph(&program.graph).unwrap();
    assert_eq!(slots_by_group(&job_graph), BTreeMap::from([("default", 5), ("sinks", 3)]));
    assert_eq!(slots_needed(&job_graph), 8);
}

#[test]
fn regions_follow_the_patterns() {
    let mut program = Program::default();
    let source = program.source("source");
    let map = program.operator("map", source);
    program.at(map).chaining = ChainingStrategy::Head;
    let mut program = program.all(3);
    let regions = |graph: &StreamGraph| -> Vec<Vec<u32>> {
        let regions = job_regions(&job_graph(graph).unwrap());
        regions.iter().map(|region| region.iter().map(|id| id.subtask_index).collect()).collect()
    };
    assert_eq!(regions(&program.graph), [[0, 0], [1, 1], [2, 2]]);
    program.partition(Partitioner::Rebalance);
    assert_eq!(regions(&program.graph), [[0, 1, 2, 0, 1, 2]]);
    program.partition(Partitioner::Rescale);
    program.at(2).parallelism = Some(4);
    assert_eq!(regions(&program.graph), [vec![0, 0, 1], vec![1, 2], vec![2, 3]]);
}

#[test]
fn a_source_that_nothing_reads_is_not_run() {
    let mut program = word_count();
    program.source("unused");
    let with_unused = job_graph(&program.graph).unwrap();
    assert_eq!(with_unused.vertices, job_graph(&word_count().graph).unwrap().vertices);
    assert_eq!(validate(&program.graph, &Configuration::default()).unwrap().unused_sources()[0].name, "unused");
}

#[test]
fn a_damaged_or_foreign_encoding_is_refused() {
    let job_graph = job_graph(&word_count().graph).unwrap();
    let bytes = encode(&job_graph).unwrap();
    assert_eq!(decode(&bytes), Ok(job_graph));
    assert_eq!(decode(b""), Err(DecodeJobGraphError::Magic));
    assert_eq!(decode(b"PK\x03\x04 something else"), Err(DecodeJobGraphError::Magic));
    let mut other_version = bytes.clone();
    other_version[8] = 2;
    assert_eq!(decode(&other_version), Err(DecodeJobGraphError::Version { found: 2 }));
    let message = decode(&other_version).unwrap_err().to_string();
    assert!(message.contains("version 2") && message.contains("version 1"), "{message}");
    for length in 8..bytes.len() {
        assert!(decode(&bytes[..length]).is_err(), "{length}");
    }
    let longer = [bytes.as_slice(), b"x"].concat();
    assert!(matches!(decode(&longer), Err(DecodeJobGraphError::Length { .. })), "{:?}", decode(&longer));
    for index in 12..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[index] ^= 0x40;
        assert!(decode(&damaged).is_err(), "{index}");
    }
}

/// A JobGraph that was changed by hand, and words of the refusal.
#[track_caller]
fn check_forged(change: impl FnOnce(&mut JobGraph), expected: &str) {
    let mut forged = job_graph(&word_count().graph).unwrap();
    validate_job_graph(&forged).unwrap();
    change(&mut forged);
    let message = validate_job_graph(&forged).unwrap_err().to_string();
    assert!(message.contains(expected), "{message}");
}

#[test]
fn a_forged_job_graph_is_refused() {
    check_forged(|graph| graph.vertices[1].parallelism = 1 << 31, "its parallelism do not follow");
    check_forged(
        |graph| graph.vertices[0].operators[0].node.parallelism = Some(1 << 31),
        "is 2147483648: expected 1 to",
    );
    check_forged(|graph| graph.vertices.truncate(1), "there is no node 3");
    check_forged(|graph| graph.vertices.clear(), "no operator");
    check_forged(|graph| graph.vertices.push(graph.vertices[1].clone()), "have the same id 3");
    check_forged(|graph| graph.vertices.swap(0, 1), "do not follow");
    check_forged(|graph| graph.vertices[1].inputs[0].input = 9, "its inputs do not follow");
    check_forged(|graph| graph.vertices[1].inputs.clear(), "its inputs do not follow");
    check_forged(|graph| graph.vertices[0].outputs[0].partitioner = Partitioner::Forward, "its outputs do not follow");
    check_forged(|graph| graph.vertices[0].outputs[0].edge.target = 1, "a cycle");
    check_forged(|graph| graph.vertices[0].chained_edges.clear(), "no edge leads to input 0 of node 2");
    check_forged(|graph| graph.vertices[0].operators[1].plugin = None, "its operators do not follow");
    check_forged(|graph| graph.vertices[0].operators[0].managed_memory_fraction = f64::NAN, "its operators");
    check_forged(
        |graph| graph.vertices[0].operators[1].operator_id = graph.vertices[1].operators[0].operator_id,
        "have the same operator id",
    );
    check_forged(|graph| graph.vertices[0].operators[0].node.uid = Some("a".to_owned()), "not the hash of the uid");
    let resources = Some(ResourceProfile { cpu_cores: f64::NAN, memory: 1 });
    check_forged(|graph| graph.vertices[0].resources = resources, "its resources are not numbers");
    check_forged(|graph| graph.json_plan.push(' '), "JSON plan");
    check_forged(|graph| graph.name = "a\u{1b}[2J".to_owned(), "control characters");
    check_forged(|graph| graph.program.args = vec![String::new(); 5000], "5000 program arguments: at most 4096");
    let vertex = job_graph(&word_count().graph).unwrap().vertices[0].clone();
    check_forged(|graph| graph.vertices = vec![vertex; 20_000], "20000 vertices: at most 1024");
    check_forged(
        |graph| graph.configuration.set("sandbox.memory.max", "1 gb", Origin::Program).unwrap(),
        "the program sets \"sandbox.memory.max\"",
    );
}

#[test]
fn a_job_graph_with_explicit_resources_is_valid() {
    let mut graph = job_graph(&word_count().graph).unwrap();
    graph.vertices[0].resources = Some(ResourceProfile { cpu_cores: 0.5, memory: 1 << 20 });
    assert_eq!(validate_job_graph(&graph), Ok(()));
}

#[test]
fn channels_of_broadcasts_have_no_state_to_map() {
    assert_eq!(Partitioner::Broadcast.downstream_state_mapper(), SubtaskStateMapper::Unsupported);
    assert!(SubtaskStateMapper::Unsupported.former_subtasks(0, 3, 2).is_empty());
}

fn ids_by_position(job_graph: &JobGraph) -> Vec<String> {
    let operators = job_graph.vertices.iter().flat_map(|vertex| &vertex.operators);
    let mut ids: Vec<_> = operators.map(|operator| (operator.node.id, operator.operator_id.to_string())).collect();
    ids.sort();
    ids.into_iter().map(|(_, id)| id).collect()
}

proptest! {
    #[test]
    fn job_graphs_are_consistent_and_survive_their_encoding(graph in programs()) {
        let job_graph = job_graph(&graph).unwrap();
        let bytes = encode(&job_graph).unwrap();
        prop_assert_eq!(&decode(&bytes).unwrap(), &job_graph);
        prop_assert_eq!(encode(&super::programs::job_graph(&graph).unwrap()).unwrap(), bytes);
        prop_assert_eq!(validate_job_graph(&job_graph), Ok(()));
        let mut data_sets = BTreeMap::new();
        let mut fractions: BTreeMap<&str, f64> = BTreeMap::new();
        for vertex in &job_graph.vertices {
            for input in &vertex.inputs {
                let data_set = data_sets.remove(&input.source);
                prop_assert!(data_set.is_some(), "produced by a vertex before, consumed once");
                let (producer, consumer, partitioner) = data_set.unwrap();
                prop_assert_eq!((producer, consumer, partitioner), (input.producer, vertex.id, input.partitioner));
            }
            for output in &vertex.outputs {
                let replaced = data_sets.insert(output.id, (vertex.id, output.consumer, output.partitioner));
                prop_assert!(replaced.is_none(), "ids of data sets are unique");
            }
            let sum: f64 = vertex.operators.iter().map(|operator| operator.managed_memory_fraction).sum();
            *fractions.entry(&vertex.slot_sharing_group).or_default() += sum;
        }
        prop_assert!(data_sets.is_empty(), "all data is consumed");
        prop_assert!(fractions.values().all(|sum| *sum <= 1.0));
        let subtasks: usize = job_graph.vertices.iter().map(|vertex| vertex.parallelism as usize).sum();
        prop_assert_eq!(job_regions(&job_graph).iter().map(Vec::len).sum::<usize>(), subtasks);
    }

    #[test]
    fn operator_ids_do_not_depend_on_names_node_ids_or_parallelism(graph in programs(), factor in 2_u32..5) {
        let expected = ids_by_position(&job_graph(&graph).unwrap());
        let mut other = graph.clone();
        for node in &mut other.nodes {
            node.id = node.id * 3 + 5;
            node.name = format!("another {}", node.name);
            node.parallelism = Some(node.parallelism.unwrap_or(1) * factor);
        }
        for edge in &mut other.edges {
            edge.source = edge.source * 3 + 5;
            edge.target = edge.target * 3 + 5;
        }
        prop_assert_eq!(ids_by_position(&job_graph(&other).unwrap()), expected);
    }

    /// Past the checksum, the decoder sees what was forged: it answers an error, or
    /// a JobGraph that is refused unless its topology is still what it was.
    #[test]
    fn no_forged_byte_makes_anything_panic(graph in programs(), position in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let job_graph = job_graph(&graph).unwrap();
        let mut payload = postcard::to_stdvec(&job_graph).unwrap();
        *position.get_mut(&mut payload) = byte;
        let mut file = b"engineJG\x01\0\0\0".to_vec();
        file.extend((payload.len() as u64).to_le_bytes());
        file.extend(Sha256::digest(&payload));
        file.extend(payload);
        if let Ok(forged) = decode(&file)
            && validate_job_graph(&forged).is_ok()
        {
            let parallelisms = |job_graph: &JobGraph| {
                job_graph.vertices.iter().map(|vertex| vertex.parallelism).collect::<Vec<_>>()
            };
            prop_assert_eq!(parallelisms(&forged), parallelisms(&job_graph));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut file = b"engineJG\x01\0\0\0".to_vec();
        file.extend(&bytes);
        prop_assert!(decode(&file).is_err());
    }
}
