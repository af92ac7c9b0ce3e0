//! Write stream jobs as Rust closures; run them as WebAssembly plugins.
//!
//! A plugin is a library crate (`crate-type = ["cdylib"]`) with one function:
//!
//! ```
//! # mod plugin {
//! use engine_sdk::prelude::*;
//!
//! /// Counts words.
//! #[engine_sdk::job]
//! fn main(env: &StreamExecutionEnvironment, args: &Args) -> Result<()> {
//!     env.from_source(FileSource::text_lines(args.require("input")?))
//!         .flat_map(|line, out: &mut Collector<str>| line.split_whitespace().for_each(|word| out.collect(word)))
//!         .key_by_ref(|word| word)
//!         .count()
//!         .sink_to(PrintSink::csv());
//!     Ok(())
//! }
//! # }
//! # fn main() {}
//! ```

extern crate self as engine_sdk;

#[cfg(target_arch = "wasm32")]
const VERSION: &[u8] = env!("CARGO_PKG_VERSION").as_bytes();

/// Tells `engine inspect` by which version of the SDK a plugin was made.
#[cfg(target_arch = "wasm32")]
#[expect(unsafe_code, reason = "a custom section holds text that nothing executes")]
#[used]
#[unsafe(link_section = "engine-sdk")]
static VERSION_SECTION: [u8; VERSION.len()] = {
    let mut text = [0; VERSION.len()];
    text.copy_from_slice(VERSION);
    text
};

mod error;
mod args;
pub mod record;
mod text;
mod line_reader;
mod key;
mod collector;
mod state;
mod operator;
mod watermark;
mod source;
mod sink;
mod graph;
mod window;
mod environment;
mod data_stream;
mod keyed_stream;
mod join;
mod rank;
mod connected_streams;
mod segment;
mod exports;
mod current;
mod host;
mod log;
mod metrics;
#[cfg(not(target_arch = "wasm32"))]
mod test_harness;

#[allow(
    missing_docs,
    unsafe_code,
    clippy::all,
    clippy::allow_attributes_without_reason,
    unused_lifetimes,
    elided_lifetimes_in_paths,
    reason = "generated from wit/plugin.wit"
)]
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../wit",
        world: "plugin",
        pub_export_macro: true,
        export_macro_name: "export_plugin",
        default_bindings_module: "engine_sdk::__private::bindings",
        additional_derives: [PartialEq],
    });
}

pub use engine_sdk_macros::{Key, Record, job};

pub use crate::{
    args::Args,
    bindings::engine::plugin::graph::Connector,
    collector::Collector,
    connected_streams::{
        BroadcastConnectedStream, ConnectedStreams, KeyedBroadcastConnectedStream, KeyedConnectedStreams,
    },
    data_stream::{DataStream, OutputTag},
    environment::StreamExecutionEnvironment,
    error::{Error, Outcome, Result},
    join::{
        IntervalJoin, IntervalJoinContext, IntervalJoined, JoinEqualTo, JoinWhere, JoinedStreams, RegularJoin,
        WindowedJoin,
    },
    key::{KeySelector, KeyWriter},
    keyed_stream::KeyedStream,
    line_reader::{CsvReader, JsonReader},
    metrics::{Counter, Gauge, Histogram},
    operator::{
        AggregateFunction, BroadcastContext, BroadcastProcessFunction, Context, KeyedBroadcastProcessFunction,
        KeyedCoProcessFunction, KeyedContext, KeyedProcessFunction, Number, OnTimerContext, ProcessFunction,
        RuntimeContext, SourceFunction, SourceStatus, TimerService,
    },
    rank::{Deduplicate, EventTimeDeduplicate, Keep, TopN},
    record::{Bytes, Either, Key, Owned, Pair, Record, TaggedUnion},
    sink::{DataStreamSink, DiscardSink, FileSink, PrintSink, RecordFormat, Sink, SocketSink},
    source::{Compression, FileSource, NexmarkSource, ReadOrder, SequenceSource, SocketSource, Source, StdinSource},
    state::{
        AggregatingState, BroadcastState, BroadcastStateWriter, ListState, MapState, OperatorListState, ReducingState,
        StateTtlConfig, States, UpdateType, ValueState,
    },
    text::{Csv, CsvField, CsvRow, Format, Text},
    watermark::{
        AscendingTimestampsWatermarks, BoundedOutOfOrdernessWatermarks, WatermarkGenerator, WatermarkOutput,
        WatermarkStrategy,
    },
    window::{
        AllWindowedStream, ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger, CountEvictor, CountTrigger,
        DeltaEvictor, DeltaTrigger, EventTimeSessionWindows, EventTimeTrigger, Evictor, GlobalWindows, NeverTrigger,
        ProcessWindowFunction, ProcessingTimeSessionWindows, ProcessingTimeTrigger, PurgingTrigger,
        SlidingEventTimeWindows, SlidingProcessingTimeWindows, TimeEvictor, TimeWindow, Trigger, TriggerContext,
        TriggerResult, TumblingEventTimeWindows, TumblingProcessingTimeWindows, WindowAssigner, WindowContext,
        WindowElements, WindowStates, WindowedStream,
    },
};

#[cfg(not(target_arch = "wasm32"))]
pub use crate::test_harness::{TestHarness, TestSnapshot};

/// What most programs need.
pub mod prelude {
    #[cfg(not(target_arch = "wasm32"))]
    pub use crate::TestHarness;
    pub use crate::{
        AggregateFunction, AggregatingState, Args, BroadcastContext, BroadcastProcessFunction, BroadcastState,
        Collector, Context, ContinuousEventTimeTrigger, CountEvictor, CountTrigger, CsvReader, DataStream, DiscardSink,
        EventTimeSessionWindows, EventTimeTrigger, Evictor, FileSink, FileSource, GlobalWindows, JsonReader, Keep, Key,
        KeyWriter, KeyedBroadcastProcessFunction, KeyedCoProcessFunction, KeyedContext, KeyedProcessFunction,
        KeyedStream, ListState, MapState, NexmarkSource, OnTimerContext, OperatorListState, OutputTag, Pair, PrintSink,
        ProcessFunction, ProcessWindowFunction, ProcessingTimeSessionWindows, ProcessingTimeTrigger, PurgingTrigger,
        ReadOrder, Record, ReducingState, Result, RuntimeContext, SequenceSource, SlidingEventTimeWindows,
        SlidingProcessingTimeWindows, SocketSink, SocketSource, SourceFunction, SourceStatus, StateTtlConfig, States,
        StdinSource, StreamExecutionEnvironment, TimeEvictor, TimeWindow, Trigger, TriggerContext, TriggerResult,
        TumblingEventTimeWindows, TumblingProcessingTimeWindows, UpdateType, ValueState, WatermarkStrategy,
        WindowContext, WindowElements, WindowStates,
    };
}

/// What the macros expand to; not for use by hand.
#[doc(hidden)]
pub mod __private {
    pub use crate::{
        bindings::{self, export_plugin},
        exports::{Plugin, Program},
        log::{Level, log},
        record::{DecodeError, KeyValue, Nesting, Reader, TypeDescriptor, Value, decode_value},
    };
    pub use engine_rows::descriptor::Variant;
}
