//! What `engine plan` prints.

use super::programs::{Program, job_graph, word_count};
use crate::graph::{
    explain::explain,
    stream_graph::{ChainingStrategy, Partitioner},
};

fn program() -> Program {
    let mut program = word_count();
    let word = "Word{text:string,count:u64}".to_owned();
    program.at(2).output_type = Some(word.clone());
    program.at(3).input_types = vec![word.clone()];
    program.graph.edges[1].record_type = word;
    let joined = program.operator_of("joined", &[(3, 0), (1, 1)]);
    program.at(joined).parallelism = Some(1);
    program.graph.edges[3].partitioner = Some(Partitioner::Global);
    program.source("unused");
    let map = program.operator("map", joined);
    program.at(map).chaining = ChainingStrategy::Head;
    program
}

#[test]
fn the_text_tells_of_nodes_edges_and_chains() {
    let graph = program().graph;
    let text = explain(&graph, &job_graph(&graph).unwrap()).unwrap().to_string();
    let expected = "\
Job \"test\": 4 vertices, 6 subtasks

Stream graph
  1  source   source file  parallelism 2  () -> u64
  2  flatMap  Map          parallelism 2  u64 -> Word{…}
  3  sum      Map          parallelism 2  Word{…} -> u64
  4  print    sink print   parallelism 2  u64 -> ()
  5  joined   CoMap        parallelism 1  u64, u64 -> u64
  7  map      Map          parallelism 1  u64 -> u64
  not run, since nothing reads it: unused

Edges
  1 -> 2            forward    chained
  2 -> 3            hash       not chained: the partitioner is hash, chaining needs forward
  3 -> 4            forward    chained
  3 -> 5            global     not chained: 2 edges lead to the target, chaining needs exactly one; the parallelism differs, 2 and 1; the partitioner is global, chaining needs forward
  1 -> 5 (input 1)  rebalance  not chained: 2 edges lead to the target, chaining needs exactly one; the parallelism differs, 2 and 1; the partitioner is rebalance, chaining needs forward
  5 -> 7            forward    not chained: the target starts a new chain

Job graph
  source -> flatMap
    id cbc357ccb763df2852fee8c4fc7d55f2, parallelism 2, max parallelism 128, slot sharing group default
    1 source
    +- 2 flatMap
";
    assert!(text.starts_with(expected), "{text}");
    let rest = &text[expected.len()..];
    for line in [
        "  sum -> print\n",
        "    <= source -> flatMap (hash, ALL_TO_ALL)\n    3 sum\n    +- 4 print\n",
        "    <= sum -> print (global, ALL_TO_ALL)\n    <= source -> flatMap (rebalance, ALL_TO_ALL)\n    5 joined\n",
        "    <= joined (forward, POINTWISE)\n    7 map\n",
        "\nSlots\n  2 in group default\n",
    ] {
        assert!(rest.contains(line), "{line}{text}");
    }
}

#[test]
fn json_tells_the_same() {
    let graph = program().graph;
    let job_graph = job_graph(&graph).unwrap();
    let json = serde_json::to_value(explain(&graph, &job_graph).unwrap()).unwrap();
    assert_eq!(json["nodes"][1]["output_type"], "Word{text:string,count:u64}");
    assert_eq!(json["nodes"][1]["vertex"], job_graph.vertices[0].id.to_string());
    assert_eq!(json["edges"][1]["chained"], false);
    assert_eq!(json["edges"][1]["not_chained_because"][0], "the partitioner is hash, chaining needs forward");
    assert_eq!(json["vertices"][0]["operators"][1], "+- 2 flatMap");
    assert_eq!(json["slots"]["default"], 2);
    assert_eq!(json["unused_sources"][0], "unused");
}

#[test]
fn the_explanation_is_the_same_each_time() {
    let graph = program().graph;
    let explained = || explain(&graph, &job_graph(&graph).unwrap()).unwrap().to_string();
    assert_eq!(explained(), explained());
}
