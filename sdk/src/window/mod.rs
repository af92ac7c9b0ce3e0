//! Windows: how records are grouped by time, when a group is evaluated and how
//! long it is kept. Meaning and names are those of Flink.
//!
//! Assigners, triggers, evictors, sessions and panes are pure; the operators put
//! them onto keyed state and timers. Windows with the trigger of their assigner are
//! aggregated by one of three operators that keep little: an entry for each key and
//! window (tumbling), panes (sliding) or sessions for each key. All else goes
//! through the operator that calls a trigger for each record and window.

mod time_window;
mod assigner;
mod trigger;
mod evictor;
mod panes;
mod sessions;
mod input;
mod emit;
mod contents;
mod process;
mod tumbling_windows;
mod sliding_windows;
mod session_windows;
mod triggered_windows;
mod stream;
#[cfg(test)]
mod vectors;
#[cfg(test)]
mod tests;

pub(crate) use self::input::{LATE_RECORDS, LATE_RECORDS_DROPPED};
pub use self::{
    assigner::{
        EventTimeSessionWindows, GlobalWindows, ProcessingTimeSessionWindows, SlidingEventTimeWindows,
        SlidingProcessingTimeWindows, TumblingEventTimeWindows, TumblingProcessingTimeWindows, WindowAssigner,
    },
    evictor::{CountEvictor, DeltaEvictor, Evictor, TimeEvictor, WindowElements},
    process::{ProcessWindowFunction, WindowContext, WindowStates},
    stream::{AllWindowedStream, DefaultTrigger, Evaluation, NoKey, Triggered, WindowedStream},
    time_window::TimeWindow,
    trigger::{
        ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger, CountTrigger, DeltaTrigger, EventTimeTrigger,
        NeverTrigger, ProcessingTimeTrigger, PurgingTrigger, Trigger, TriggerContext, TriggerResult,
    },
};
