//! The exports of a plugin: each call of the engine ends up here.

use std::cell::{Cell, RefCell};

use crate::{
    args::Args,
    bindings::exports::engine::plugin::{
        operator_chain::{
            self, BatchKind, OperatorContext, SourceStatus as PluginSourceStatus, Status, TakeStatus, TimeDomain,
        },
        program::{self, StreamGraph},
    },
    collector::Signal,
    current,
    environment::StreamExecutionEnvironment,
    error::Result,
    graph::SharedGraph,
    host,
    operator::{Batch, SourceStatus},
    segment::{Failed, Segment},
};

/// The program of a plugin; implemented by `#[engine_sdk::job]`.
pub trait Program {
    /// What stands above the program's function as documentation.
    const DESCRIPTION: &str;

    /// Declares the job.
    ///
    /// # Errors
    /// An error fails the submission.
    fn declare(env: &StreamExecutionEnvironment, args: &Args) -> Result<()>;
}

thread_local! {
    static GRAPH: RefCell<Option<SharedGraph>> = const { RefCell::new(None) };
    static SEGMENT: RefCell<Option<Segment>> = const { RefCell::new(None) };
    static HOOK_INSTALLED: Cell<bool> = const { Cell::new(false) };
}

/// Runs a program: the graph it declares, complete.
///
/// # Errors
/// Returns the program's error, or the first mistake in its arguments or its use of streams.
pub(crate) fn declare(
    program: impl FnOnce(&StreamExecutionEnvironment, &Args) -> Result<()>,
    args: Vec<String>,
) -> Result<(SharedGraph, StreamGraph)> {
    let env = StreamExecutionEnvironment::new();
    let args = Args::new(args);
    // An argument with a typing error is often the cause of the program's own error.
    match program(&env, &args) {
        Ok(()) => args.finish()?,
        Err(error) => return Err(args.explain(error)),
    }
    let declaration = env.graph.borrow().declaration()?;
    Ok((env.graph, declaration))
}

/// Implements the exports for a program.
pub struct Plugin<P>(std::marker::PhantomData<P>);

impl<P: Program> program::Guest for Plugin<P> {
    fn plan(args: Vec<String>) -> Result<StreamGraph, String> {
        install_panic_hook();
        current::reset();
        let (graph, declaration) = declare(P::declare, args).map_err(|error| error.to_string())?;
        GRAPH.set(Some(graph));
        Ok(declaration)
    }

    fn describe() -> String {
        install_panic_hook();
        P::DESCRIPTION.trim().to_owned()
    }
}

impl<P: Program> operator_chain::Guest for Plugin<P> {
    fn open(context: OperatorContext) -> Status {
        install_panic_hook();
        let opened = GRAPH.with_borrow(|graph| match graph {
            Some(graph) => Segment::open(&graph.borrow(), &context),
            None => Err(crate::Error::new("open was called before plan")),
        });
        match opened {
            Ok(segment) => {
                SEGMENT.set(Some(segment));
                Status::Ok
            }
            Err(error) => {
                current::fail(current::node(), &error.to_string());
                Status::Failed
            }
        }
    }

    fn process_batch(input: u32, kind: BatchKind, _count: u32, data: Vec<u8>) -> Status {
        let batch = match kind {
            BatchKind::Rows => Batch::Rows(&data),
            BatchKind::Lines => Batch::Lines(&data),
        };
        status(|segment| segment.process_batch(input, batch))
    }

    fn poll_source(max_bytes: u32) -> PluginSourceStatus {
        match with_segment(|segment| segment.poll_source(max_bytes)) {
            Ok(SourceStatus::More) => PluginSourceStatus::More,
            Ok(SourceStatus::Idle) => PluginSourceStatus::Idle,
            Ok(SourceStatus::End) => PluginSourceStatus::End,
            Err(Failed) => PluginSourceStatus::Failed,
        }
    }

    fn process_watermark(timestamp: i64) -> Status {
        status(|segment| segment.process_watermark(timestamp))
    }

    fn process_watermark_status(idle: bool) -> Status {
        status(|segment| segment.process_watermark_status(idle))
    }

    fn fire_timers(domain: TimeDomain, time: i64, _count: u32, timers: Vec<u8>) -> Status {
        status(|segment| segment.fire_timers(domain, time, &timers))
    }

    fn take_state(_state: u32, _count: u32, entries: Vec<u8>) -> TakeStatus {
        match with_segment(|segment| segment.take_state(&entries)) {
            Ok(true) => TakeStatus::More,
            Ok(false) => TakeStatus::All,
            Err(Failed) => TakeStatus::Failed,
        }
    }

    fn begin_split(split: u32) -> Status {
        status(|segment| segment.notify(Signal::BeginSplit(split)))
    }

    fn end_split(split: u32) -> Status {
        status(|segment| segment.notify(Signal::EndSplit(split)))
    }

    fn advance_processing_time(now: i64) -> Status {
        status(|segment| segment.notify(Signal::ProcessingTime(now)))
    }

    fn snapshot(_checkpoint_id: u64) -> Status {
        status(Segment::snapshot)
    }

    /// Operators of this version have nothing to do when a checkpoint is complete.
    fn notify_checkpoint_complete(_checkpoint_id: u64) -> Status {
        Status::Ok
    }

    /// Operators of this version have nothing to do when a checkpoint was given up.
    fn notify_checkpoint_aborted(_checkpoint_id: u64) -> Status {
        Status::Ok
    }

    fn end_input(input: u32) -> Status {
        status(|segment| segment.end_input(input))
    }

    fn close() -> Status {
        SEGMENT.set(None);
        Status::Ok
    }

    fn mark_address() -> u32 {
        current::mark_address()
    }
}

fn with_segment<R>(f: impl FnOnce(&mut Segment) -> Result<R, Failed>) -> Result<R, Failed> {
    SEGMENT.with_borrow_mut(|segment| match segment {
        Some(segment) => f(segment),
        None => {
            current::fail(0, "an operator was called before open or after close");
            Err(Failed)
        }
    })
}

fn status(f: impl FnOnce(&mut Segment) -> Result<(), Failed>) -> Status {
    match with_segment(f) {
        Ok(()) => Status::Ok,
        Err(Failed) => Status::Failed,
    }
}

/// Lets the engine know message and place of a panic, which a trap does not carry.
fn install_panic_hook() {
    if HOOK_INSTALLED.replace(true) {
        return;
    }
    std::panic::set_hook(Box::new(|panic| {
        let message = panic.payload_as_str().unwrap_or("a panic without a message");
        let (file, line, column) = panic.location().map_or(("", 0, 0), |at| (at.file(), at.line(), at.column()));
        host::panicked(message, file, line, column);
    }));
}
