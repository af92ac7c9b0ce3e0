//! A fused segment: the operators of one task that belong to this plugin,
//! built from the closures that the replayed program left in the graph.

use std::{any::Any, collections::HashMap};

use crate::{
    bindings::exports::engine::plugin::operator_chain::{OperatorContext, SegmentOutput, TimeDomain},
    collector::Signal,
    current,
    error::{Error, Result},
    graph::Graph,
    metrics,
    operator::{Batch, ErasedTarget, Head, RuntimeContext, SideOutputs, SourceStatus, Wiring},
    state::{OperatorStates, StateBackend},
};

/// The call has failed; the engine was told why.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Failed;

/// The operators of a task, from the one that rows enter.
pub(crate) struct Segment {
    head: Box<dyn Head>,
    /// Keyed state and timers of the head.
    states: StateBackend,
    /// Inputs of the head that have not ended.
    open_inputs: usize,
}

impl Segment {
    /// Builds the operators from the last to the first.
    ///
    /// # Errors
    /// Returns an error if the context does not fit the graph or a source cannot be opened.
    pub(crate) fn open(graph: &Graph, context: &OperatorContext) -> Result<Self> {
        let runtime = runtime_context(context);
        let operator_states = OperatorStates::default();
        let mut builder =
            Builder { graph, context, runtime: &runtime, operator_states, node: 0, built: HashMap::new() };
        let (head, rest) = context.nodes.split_first().ok_or_else(|| Error::new("the segment has no nodes"))?;
        let mut rest = rest.to_vec();
        rest.sort_unstable();
        // Ids are above those of all inputs, so each node is built before the one it stands behind.
        for &node in rest.iter().rev() {
            builder.node = node;
            current::enter(node);
            let downstream = graph.factory(node)?.downstream(&mut builder)?;
            builder.built.insert(node, downstream);
        }
        builder.node = *head;
        current::enter(*head);
        let factory = graph.factory(*head)?;
        let node = graph.node(*head).expect("a node with a factory is in the graph");
        let open_inputs = node.input_types.len().max(1);
        let states = builder.states();
        let head = factory.head(&mut builder, &states)?;
        if let Some(node) = builder.built.keys().min() {
            return Err(Error::new(format!("node {node} of the segment stands behind no other")));
        }
        current::leave();
        Ok(Self { head, states, open_inputs })
    }

    /// Processes a batch of a zero-based input.
    pub(crate) fn process_batch(&mut self, input: u32, batch: Batch<'_>) -> Result<(), Failed> {
        self.call(|head, _| head.process_batch(input, batch))
    }

    /// Polls the source that stands first.
    pub(crate) fn poll_source(&mut self, bytes_max: u32) -> Result<SourceStatus, Failed> {
        let mut status = None;
        self.call(|head, _| status = head.poll_source(bytes_max))?;
        status.ok_or_else(|| {
            current::fail(0, "the first operator of the segment is not a source");
            Failed
        })
    }

    /// Fires timers of the first operator; `time` is the watermark or the processing time.
    pub(crate) fn fire_timers(&mut self, domain: TimeDomain, time: i64, timers: &[u8]) -> Result<(), Failed> {
        self.call(|head, states| {
            if domain == TimeDomain::EventTime {
                states.timers().set_watermark(time);
            }
            head.fire_timers(&states.timers(), domain, timers);
        })
    }

    /// Event time has ended: gives the first operator entries of the state that it takes then;
    /// without any, it takes the next of those that it keeps itself. Returns true if it keeps more.
    pub(crate) fn take_state(&mut self, entries: &[u8]) -> Result<bool, Failed> {
        let mut has_more = false;
        self.call(|head, states| {
            states.timers().set_watermark(i64::MAX);
            has_more = head.take_state(entries);
        })?;
        Ok(has_more)
    }

    /// Passes a watermark through all operators.
    pub(crate) fn process_watermark(&mut self, timestamp: i64) -> Result<(), Failed> {
        self.call(|head, states| {
            states.timers().set_watermark(timestamp);
            head.process_watermark(timestamp);
        })
    }

    /// Passes a watermark status through all operators.
    pub(crate) fn process_watermark_status(&mut self, idle: bool) -> Result<(), Failed> {
        self.call(|head, _| head.process_watermark_status(idle))
    }

    /// Tells the operators that make watermarks what they need to know.
    pub(crate) fn notify(&mut self, signal: Signal) -> Result<(), Failed> {
        self.call(|head, _| head.notify(signal))
    }

    /// Lets the host know all state that it does not. What is kept here stays as it is.
    pub(crate) fn snapshot(&mut self) -> Result<(), Failed> {
        self.call(|head, states| {
            head.flush_state();
            states.show_metrics();
            states.operator_states().snapshot();
        })
    }

    /// Ends a zero-based input of the first operator. With the last one the host gets all state:
    /// what never left the caches counts for its limits, too.
    pub(crate) fn end_input(&mut self, input: u32) -> Result<(), Failed> {
        self.open_inputs = self.open_inputs.saturating_sub(1);
        let is_last = self.open_inputs == 0;
        self.call(|head, states| {
            head.end_input_number(input);
            if is_last && !current::failed() {
                head.flush_state();
            }
            states.show_metrics();
        })
    }

    fn call(&mut self, f: impl FnOnce(&mut dyn Head, &StateBackend)) -> Result<(), Failed> {
        self.states.begin_call();
        f(&mut *self.head, &self.states);
        let is_failed = current::interrupted() && !current::settle(None);
        current::leave();
        if is_failed {
            return Err(Failed);
        }
        self.head.flush();
        self.states.end_call();
        metrics::flush();
        Ok(())
    }
}

fn runtime_context(context: &OperatorContext) -> RuntimeContext {
    RuntimeContext {
        job_name: context.job_name.clone(),
        task_name: context.task_name.clone(),
        subtask_index: context.subtask_index,
        parallelism: context.parallelism,
        max_parallelism: context.max_parallelism,
        attempt: context.attempt,
    }
}

struct Builder<'g> {
    graph: &'g Graph,
    context: &'g OperatorContext,
    runtime: &'g RuntimeContext,
    operator_states: OperatorStates,
    /// The node that is being built.
    node: u32,
    /// Operators that no other one leads to yet.
    built: HashMap<u32, Box<dyn Any>>,
}

impl Wiring for Builder<'_> {
    fn node(&self) -> u32 {
        self.node
    }

    fn runtime(&self) -> &RuntimeContext {
        self.runtime
    }

    fn states(&self) -> StateBackend {
        let Self { graph, context, runtime, operator_states, node, .. } = self;
        let of = |node: u32| graph.node(node).expect("a node of a segment is in the graph");
        let before = context.nodes.iter().take_while(|other| *other != node);
        let first_state: usize = before.map(|other| of(*other).states.len()).sum();
        let first_state = u32::try_from(first_state).expect("a program declares fewer states");
        StateBackend::of_node(context, (*runtime).clone(), of(*node), first_state, operator_states.clone())
    }

    fn targets(&mut self, side_output: Option<&str>) -> Vec<ErasedTarget> {
        let Self { graph, context, node, built, .. } = self;
        let chained = graph.edges.iter().filter(|edge| {
            edge.source == *node && edge.side_output.as_deref() == side_output && edge.selector.is_none()
        });
        let mut targets: Vec<_> =
            chained.filter_map(|edge| built.remove(&edge.target)).map(ErasedTarget::Downstream).collect();
        for (index, output) in (0_u32..).zip(&context.outputs) {
            let SegmentOutput { node: source, side_output: of, selector, channels } = output;
            if source != node || of.as_deref() != side_output {
                continue;
            }
            targets.push(match selector {
                None => ErasedTarget::Output(index),
                Some(number) => {
                    ErasedTarget::Downstream(graph.selectors[*number as usize].downstream(index, *channels))
                }
            });
        }
        targets
    }

    fn side_outputs(&mut self) -> SideOutputs {
        let graph = self.graph;
        let node = self.node;
        SideOutputs(graph.side_outputs(node).map(|(name, make)| (name.to_owned(), make(self))).collect())
    }
}

#[cfg(test)]
mod tests;
