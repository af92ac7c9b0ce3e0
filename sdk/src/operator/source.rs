//! Sources of the plugin.

use std::any::Any;

use super::{Batch, Head, OperatorFactory, RuntimeContext, Wiring, collector};
use crate::{
    collector::{Collector, Lifecycle, Signal},
    current,
    error::{Error, Result},
    record::{Owned, Record},
    state::{OperatorListState, StateBackend, States},
};

/// A source is polled at most this often in one call, even if all it emits is filtered away.
const POLLS_MAX: u32 = 1024;

/// What a source did when polled.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SourceStatus {
    /// There is more, or may be: poll again.
    More,
    /// Nothing for the moment: poll again after a pause.
    Idle,
    /// The source has ended: it is not polled again.
    End,
}

/// A source that is part of the plugin. Each subtask has its own.
///
/// What it has read it says by an operator state, which a checkpoint takes along with all that
/// it has emitted: when the job goes on, the source is made anew and finds its state there.
/// Without one it begins from the start.
///
/// ```
/// use engine_sdk::{TestHarness, prelude::*};
///
/// /// The numbers below `end`.
/// struct Numbers {
///     end: u64,
///     next: OperatorListState<u64>,
/// }
///
/// impl SourceFunction<u64> for Numbers {
///     fn poll(&mut self, out: &mut Collector<u64>) -> Result<SourceStatus> {
///         let next = self.next.get().first().copied().unwrap_or(0);
///         if self.end <= next {
///             return Ok(SourceStatus::End);
///         }
///         out.collect(next);
///         self.next.update([next + 1]);
///         Ok(SourceStatus::More)
///     }
/// }
///
/// # fn main() -> Result<()> {
/// fn program(env: &StreamExecutionEnvironment, _args: &Args) -> Result<()> {
///     env.from_stateful_source("Numbers", |states: &mut States| Numbers { end: 3, next: states.operator_list("next") })
///         .set_parallelism(1)
///         .sink_to(DiscardSink);
///     Ok(())
/// }
/// let mut harness = TestHarness::new(program, &[])?;
/// harness.finish()?;
/// assert_eq!(harness.records::<u64>()?, [0, 1, 2]);
///
/// let snapshot = harness.snapshot()?;
/// let mut restored = TestHarness::restore(program, &[], &snapshot)?;
/// restored.finish()?;
/// assert!(restored.records::<u64>()?.is_empty());
/// # Ok(())
/// # }
/// ```
pub trait SourceFunction<U: Record + ?Sized>: 'static {
    /// Called once before the first poll; `context` tells which part of the input is this subtask's.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn open(&mut self, _context: &RuntimeContext) -> Result<()> {
        Ok(())
    }

    /// Emits some records, at most a few hundred, and returns.
    ///
    /// # Errors
    /// An error fails the attempt.
    fn poll(&mut self, out: &mut Collector<U>) -> Result<SourceStatus>;
}

/// A source in its place.
pub(crate) struct SourceOperator<U: Record + ?Sized, S> {
    node: u32,
    source: S,
    out: Collector<U>,
}

impl<U: Record + ?Sized, S: SourceFunction<U>> Head for SourceOperator<U, S> {
    fn process_batch(&mut self, _: u32, _: Batch<'_>) {
        current::fail(self.node, "a source got rows");
    }

    fn poll_source(&mut self, bytes_max: u32) -> Option<SourceStatus> {
        let bytes_before = current::emitted_bytes();
        for _ in 0..POLLS_MAX {
            if u64::from(bytes_max) <= current::emitted_bytes() - bytes_before {
                break;
            }
            current::enter(self.node);
            match self.source.poll(&mut self.out) {
                Ok(SourceStatus::More) if current::interrupted() => {
                    if !current::settle(None) {
                        return Some(SourceStatus::End);
                    }
                }
                Ok(SourceStatus::More) => {}
                Ok(status) => return Some(status),
                Err(error) => {
                    current::fail(self.node, &error.to_string());
                    return Some(SourceStatus::End);
                }
            }
        }
        Some(SourceStatus::More)
    }
}

impl<U: Record + ?Sized, S> Lifecycle for SourceOperator<U, S> {
    fn process_watermark(&mut self, timestamp: i64) {
        self.out.process_watermark(timestamp);
    }

    fn process_watermark_status(&mut self, idle: bool) {
        self.out.process_watermark_status(idle);
    }

    fn end_input(&mut self) {
        self.out.end_input();
    }

    fn notify(&mut self, signal: Signal) {
        self.out.notify(signal);
    }

    fn flush(&mut self) {
        self.out.flush();
    }
}

/// Makes a source anew for each segment.
pub(crate) struct SourceFactory<U: ?Sized, M> {
    make: M,
    _record: std::marker::PhantomData<std::rc::Rc<U>>,
}

impl<U: Record + ?Sized, M> SourceFactory<U, M> {
    /// `make` gets the states that the source declared.
    pub(crate) fn new(make: M) -> Self {
        Self { make, _record: std::marker::PhantomData }
    }
}

impl<U, S, M> OperatorFactory for SourceFactory<U, M>
where
    U: Record + ?Sized,
    S: SourceFunction<U>,
    M: Fn(&StateBackend) -> S + 'static,
{
    fn head(&self, wiring: &mut dyn Wiring, states: &StateBackend) -> Result<Box<dyn Head>> {
        let mut source = (self.make)(states);
        source.open(states.runtime())?;
        Ok(Box::new(SourceOperator { node: wiring.node(), source, out: collector::<U>(wiring, None) }))
    }

    fn downstream(&self, wiring: &mut dyn Wiring) -> Result<Box<dyn Any>> {
        Err(Error::new(format!("source {} is not the first node of its segment", wiring.node())))
    }
}

/// Emits the elements of a list.
pub(crate) struct Elements<U> {
    elements: Vec<U>,
    /// Number of elements that were emitted.
    position: OperatorListState<u64>,
}

impl<U> Elements<U> {
    pub(crate) fn new(elements: Vec<U>, states: &mut States) -> Self {
        Self { elements, position: states.operator_list("position") }
    }
}

impl<U: Owned + Clone> SourceFunction<U> for Elements<U> {
    fn poll(&mut self, out: &mut Collector<U>) -> Result<SourceStatus> {
        let mut position = 0;
        self.position.for_each(|restored| position = *restored);
        let element = usize::try_from(position).ok().and_then(|position| self.elements.get(position));
        let Some(element) = element else { return Ok(SourceStatus::End) };
        out.collect(element.clone());
        self.position.update([position + 1]);
        Ok(SourceStatus::More)
    }
}
