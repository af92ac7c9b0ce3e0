//! Which tasks take part in a checkpoint, and which of them get no barrier from others.
//! Source: Flink's `DefaultCheckpointPlanCalculator`.

use crate::{
    base::{ids::JobVertexId, status::ExecutionState},
    job_manager::job_master::execution_graph::{ExecutionGraph, VertexIndex},
};

/// Who does what in a checkpoint.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct CheckpointPlan {
    /// Tasks that are told to begin: no running task sends them a barrier. Ascending.
    pub to_trigger: Vec<VertexIndex>,
    /// Tasks whose acknowledgements are awaited, and which are told how it ended. Ascending.
    pub to_wait: Vec<VertexIndex>,
    /// Tasks that have finished. Ascending.
    pub finished: Vec<VertexIndex>,
    /// Vertices all of whose tasks have finished.
    pub fully_finished: Vec<JobVertexId>,
}

/// A task that must take part does not run: nothing is begun.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NotRunning(pub VertexIndex);

/// Makes the plan from the states of the current attempts.
///
/// # Errors
/// Returns a task that neither runs nor has finished, or, unless `after_tasks_finish`, one that has finished.
pub fn calculate(graph: &ExecutionGraph, after_tasks_finish: bool) -> Result<CheckpointPlan, NotRunning> {
    let mut plan = CheckpointPlan::default();
    for job_vertex in graph.job_vertices() {
        let before = plan.finished.len();
        let last = job_vertex.first + job_vertex.job_vertex.parallelism as usize;
        for vertex in job_vertex.first..last {
            match graph.vertex(vertex).current().state() {
                ExecutionState::Running => plan.to_wait.push(vertex),
                ExecutionState::Finished if after_tasks_finish => plan.finished.push(vertex),
                _ => return Err(NotRunning(vertex)),
            }
        }
        if plan.finished.len() - before == last - job_vertex.first {
            plan.fully_finished.push(job_vertex.job_vertex.id);
        }
    }
    let has_finished = |vertex: VertexIndex| plan.finished.binary_search(&vertex).is_ok();
    let gets_no_barrier = |vertex: &VertexIndex| {
        // Where none has finished, whoever has an input gets barriers.
        let is_source = graph.job_vertex_of(*vertex).job_vertex.inputs.is_empty();
        is_source || (!plan.finished.is_empty() && graph.producers_of(*vertex).all(has_finished))
    };
    plan.to_trigger = plan.to_wait.iter().copied().filter(gets_no_barrier).collect();
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::{
        base::{clock::Timestamp, ids::ExecutionGraphId},
        graph::job_graph::DistributionPattern,
        job_manager::job_master::testing::GraphBuilder,
    };

    #[derive(Deserialize)]
    struct Vectors {
        scenarios: Vec<Scenario>,
    }

    #[derive(Deserialize)]
    struct Scenario {
        name: String,
        parallelism: Vec<u32>,
        finished_subtasks: Vec<Vec<u32>>,
        edges: Vec<Edge>,
        trigger: Vec<(usize, u32)>,
        wait_for_ack_and_notify: Vec<(usize, u32)>,
        fully_finished_vertices: Vec<usize>,
    }

    #[derive(Deserialize)]
    struct Edge {
        from: usize,
        to: usize,
        pattern: String,
    }

    fn graph(scenario: &Scenario) -> ExecutionGraph {
        let name = |vertex: usize| format!("v{vertex}");
        let mut builder = GraphBuilder::default();
        for (vertex, parallelism) in scenario.parallelism.iter().enumerate() {
            builder = builder.vertex(&name(vertex), *parallelism);
        }
        for edge in &scenario.edges {
            let pattern = match edge.pattern.as_str() {
                "ALL_TO_ALL" => DistributionPattern::AllToAll,
                "POINTWISE" => DistributionPattern::Pointwise,
                other => panic!("{other}"),
            };
            builder = builder.edge(&name(edge.from), &name(edge.to), pattern);
        }
        let id = ExecutionGraphId::from_bytes([1; 16]);
        let mut graph = ExecutionGraph::attach(&builder.build(), id, 1, Timestamp(0)).unwrap();
        use ExecutionState as State;
        for vertex in 0..graph.vertex_count() {
            for state in [State::Scheduled, State::Deploying, State::Initializing, State::Running] {
                graph.transition_to(vertex, state, Timestamp(0)).unwrap();
            }
        }
        for (vertex, subtasks) in scenario.finished_subtasks.iter().enumerate() {
            for subtask in subtasks {
                let index = graph.job_vertices()[vertex].first + *subtask as usize;
                graph.transition_to(index, State::Finished, Timestamp(0)).unwrap();
            }
        }
        graph
    }

    fn scenarios() -> Vec<Scenario> {
        let text = include_str!("../../../../tests-data/job_master/checkpoint_plan.json");
        serde_json::from_str::<Vectors>(text).unwrap().scenarios
    }

    #[test]
    fn plans_are_flinks() {
        let scenarios = scenarios();
        assert_eq!(scenarios.len(), 7);
        for scenario in scenarios {
            let graph = graph(&scenario);
            let index = |(vertex, subtask): &(usize, u32)| graph.job_vertices()[*vertex].first + *subtask as usize;
            let plan = calculate(&graph, true).unwrap();
            let name = &scenario.name;
            assert_eq!(plan.to_trigger, scenario.trigger.iter().map(index).collect::<Vec<_>>(), "{name}");
            let waited: Vec<_> = scenario.wait_for_ack_and_notify.iter().map(index).collect();
            assert_eq!(plan.to_wait, waited, "{name}");
            let fully =
                scenario.fully_finished_vertices.iter().map(|vertex| graph.job_vertices()[*vertex].job_vertex.id);
            assert_eq!(plan.fully_finished, fully.collect::<Vec<_>>(), "{name}");
            assert_eq!(plan.finished.len() + plan.to_wait.len(), graph.vertex_count(), "{name}");
        }
    }

    #[test]
    fn who_neither_runs_nor_has_finished_prevents_a_checkpoint() {
        let scenario = scenarios().swap_remove(1);
        let mut graph = graph(&scenario);
        let first_finished = graph.job_vertices()[0].first;
        assert_eq!(calculate(&graph, false), Err(NotRunning(first_finished)));
        graph.transition_to(6, ExecutionState::Canceling, Timestamp(0)).unwrap();
        assert_eq!(calculate(&graph, true), Err(NotRunning(6)));
    }
}
