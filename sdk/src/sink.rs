//! Sinks of the engine, by name with options; the engine checks the options.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use crate::{
    Connector,
    bindings::engine::plugin::graph::ChainingStrategy,
    collector::Downstream,
    graph::SharedGraph,
    operator::{FormatOutput, SelectorFactory},
    record::{Record, TypeDescriptor},
    source::Options,
    text::{Csv, Format, Text},
};

/// A sink of the engine for records of type `T`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not take records of type `{T}`",
    label = "does not take these records",
    note = "text sinks take records that implement `Display`, CSV sinks take tuples and pairs of numbers and text; `map` or `flat_map` the stream first"
)]
pub trait Sink<T: Record + ?Sized> {
    /// Shown to users.
    fn name(&self) -> &str;

    /// Name and options for the engine.
    fn connector(&self) -> Connector;

    /// What turns the records into text before they reach the sink; none: they go as they are.
    fn format(&self) -> Option<RecordFormat<T>>;
}

/// A text format for records of type `T`.
pub struct RecordFormat<T: ?Sized> {
    pub(crate) selector: Rc<dyn SelectorFactory>,
    _record: PhantomData<T>,
}

impl<T: Record + ?Sized> RecordFormat<T> {
    /// The format `F`; none if the records are text already.
    pub fn of<F: Format<T>>() -> Option<Self> {
        if F::PLAIN && T::descriptor(crate::record::Nesting::ROOT) == TypeDescriptor::String {
            return None;
        }
        let selector = Rc::new(|output: u32, _channels: u32| -> Box<dyn std::any::Any> {
            let downstream: Box<dyn Downstream<T>> = Box::new(FormatOutput::<F>::new(output));
            Box::new(downstream)
        });
        Some(Self { selector, _record: PhantomData })
    }
}

/// Writes lines of text into part files of a new or empty directory; they become
/// visible when the job has finished.
///
/// A record whose text has a line break would be read again as two. It is refused, by
/// the policy `execution.row-errors.policy`; this holds for CSV, too, in spite of its
/// quotes. A program that has such text escapes it, for example as JSON.
#[derive(Clone, Debug)]
pub struct FileSink<F = Text> {
    options: Options,
    _format: PhantomData<F>,
}

impl FileSink<Text> {
    /// One line for each record, by its `Display`.
    pub fn text_lines(path: impl Into<String>) -> Self {
        Self { options: Options::default().with("path", path.into()), _format: PhantomData }
    }
}

impl FileSink<Csv> {
    /// One line of comma-separated values for each record, which is a tuple or pair.
    pub fn csv(path: impl Into<String>) -> Self {
        Self { options: Options::default().with("path", path.into()), _format: PhantomData }
    }
}

#[diagnostic::do_not_recommend]
impl<T: Record + ?Sized, F: Format<T>> Sink<T> for FileSink<F> {
    fn name(&self) -> &str {
        "Sink: File"
    }

    fn connector(&self) -> Connector {
        self.options.connector("file")
    }

    fn format(&self) -> Option<RecordFormat<T>> {
        RecordFormat::of::<F>()
    }
}

/// Prints lines of text.
#[derive(Clone, Debug)]
pub struct PrintSink<F = Text> {
    options: Options,
    _format: PhantomData<F>,
}

impl PrintSink<Text> {
    /// One line for each record, by its `Display`, on standard output.
    pub fn text_lines() -> Self {
        Self { options: Options::default().with("stream", "stdout"), _format: PhantomData }
    }
}

impl PrintSink<Csv> {
    /// One line of comma-separated values for each record, on standard output.
    pub fn csv() -> Self {
        Self { options: Options::default().with("stream", "stdout"), _format: PhantomData }
    }
}

impl<F> PrintSink<F> {
    /// Prints on standard error instead.
    #[must_use]
    pub fn to_stderr(mut self) -> Self {
        self.options.set("stream", "stderr");
        self
    }

    /// Begins each line with a prefix.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.options.set("prefix", prefix);
        self
    }
}

#[diagnostic::do_not_recommend]
impl<T: Record + ?Sized, F: Format<T>> Sink<T> for PrintSink<F> {
    fn name(&self) -> &str {
        "Sink: Print"
    }

    fn connector(&self) -> Connector {
        self.options.connector("print")
    }

    fn format(&self) -> Option<RecordFormat<T>> {
        RecordFormat::of::<F>()
    }
}

/// Sends lines of text to a server. Records with a line break are refused, as by [`FileSink`].
#[derive(Clone, Debug)]
pub struct SocketSink {
    options: Options,
}

impl SocketSink {
    /// Connects to `host:port`; one line for each record, by its `Display`.
    pub fn text_lines(address: impl Into<String>) -> Self {
        Self { options: Options::default().with("address", address.into()) }
    }
}

impl<T: Record + ?Sized> Sink<T> for SocketSink
where
    Text: Format<T>,
{
    fn name(&self) -> &str {
        "Sink: Socket"
    }

    fn connector(&self) -> Connector {
        self.options.connector("socket")
    }

    fn format(&self) -> Option<RecordFormat<T>> {
        RecordFormat::of::<Text>()
    }
}

/// Drops all records, of whatever type.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiscardSink;

impl<T: Record + ?Sized> Sink<T> for DiscardSink {
    fn name(&self) -> &str {
        "Sink: Discard"
    }

    fn connector(&self) -> Connector {
        Options::default().connector("discard")
    }

    fn format(&self) -> Option<RecordFormat<T>> {
        None
    }
}

/// A sink in the graph; its settings can still be changed.
pub struct DataStreamSink {
    pub(crate) graph: SharedGraph,
    pub(crate) node: u32,
}

macro_rules! node_settings {
    ($type:ty, [$($generics:tt)*], $node:expr) => {
        impl<$($generics)*> $type {
            fn set(self, set: impl FnOnce(&mut $crate::bindings::engine::plugin::graph::StreamNode)) -> Self {
                let node: fn(&Self) -> Option<u32> = $node;
                let node = node(&self);
                let mut graph = self.graph.borrow_mut();
                match node {
                    Some(node) => set(graph.node_mut(node)),
                    None => graph.error(
                        "a setting such as `name` or `set_parallelism` must directly follow the operator that it is for"
                            .to_owned(),
                    ),
                }
                drop(graph);
                self
            }

            /// Sets the name that users see.
            pub fn name(self, name: &str) -> Self {
                self.set(|node| node.name = name.to_owned())
            }

            /// Sets the name under which state is kept across versions of the program; unique in the job.
            pub fn uid(self, uid: &str) -> Self {
                self.set(|node| node.uid = Some(uid.to_owned()))
            }

            /// Sets the operator id itself: 32 hexadecimal digits.
            pub fn uid_hash(self, uid_hash: &str) -> Self {
                self.set(|node| node.uid_hash = Some(uid_hash.to_owned()))
            }

            /// Puts the operator's subtasks into slots shared within this group.
            pub fn slot_sharing_group(self, group: &str) -> Self {
                self.set(|node| node.slot_sharing_group = Some(group.to_owned()))
            }

            /// Puts subtask `i` of all operators of this group into one slot; they must have one
            /// parallelism.
            pub fn co_location_group(self, group: &str) -> Self {
                self.set(|node| node.co_location_group = Some(group.to_owned()))
            }

            /// Chains the operator with none before or behind it.
            pub fn disable_chaining(self) -> Self {
                self.set(|node| node.chaining = $crate::bindings::engine::plugin::graph::ChainingStrategy::Never)
            }

            /// Sets the number of subtasks.
            pub fn set_parallelism(self, parallelism: u32) -> Self {
                let node: fn(&Self) -> Option<u32> = $node;
                match node(&self) {
                    Some(node) => {
                        self.graph.borrow_mut().set_parallelism(node, parallelism);
                        self
                    }
                    None => self.set(|_| {}),
                }
            }
        }
    };
}
pub(crate) use node_settings;

node_settings!(DataStreamSink, [], |sink| Some(sink.node));

impl DataStreamSink {
    /// Chains the sink with no operator before it; part of `disable_chaining` for a sink.
    pub fn start_new_chain(self) -> Self {
        self.set(|node| node.chaining = ChainingStrategy::Head)
    }

    /// Sets the time after which partly filled buffers are sent on; zero: after each batch.
    pub fn set_buffer_timeout(self, timeout: Duration) -> Self {
        self.set(|node| node.buffer_timeout = Some(i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX)))
    }
}
