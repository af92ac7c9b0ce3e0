//! Window assigners: to which windows a record belongs.

use std::{rc::Rc, time::Duration};

use super::TimeWindow;
use crate::{bindings::exports::engine::plugin::operator_chain::TimeDomain, record::Record};

/// Says to which windows records belong: tumbling, sliding, session or global windows.
pub trait WindowAssigner<T: Record + ?Sized>: sealed::Sealed<T> {}

impl<T: Record + ?Sized, A: sealed::Sealed<T>> WindowAssigner<T> for A {}

pub(crate) mod sealed {
    /// What an assigner comes down to.
    pub trait Sealed<T: crate::record::Record + ?Sized> {
        /// The windows, or what is wrong with the call that made them.
        fn windows(self) -> Result<super::Windows<T>, String>;
    }
}

/// Windows by whatever assigner.
#[doc(hidden)]
pub struct Windows<T: Record + ?Sized> {
    pub(crate) kind: WindowKind<T>,
    pub(crate) domain: TimeDomain,
}

impl<T: Record + ?Sized> Clone for Windows<T> {
    fn clone(&self) -> Self {
        Self { kind: self.kind.clone(), domain: self.domain }
    }
}

/// The kinds of windows.
pub(crate) enum WindowKind<T: Record + ?Sized> {
    /// Tumbling and sliding.
    Aligned(AlignedWindows),
    /// Merged where they touch.
    Session(SessionGap<T>),
    /// One window of all time; true if it is evaluated when event time ends.
    Global(bool),
}

impl<T: Record + ?Sized> Clone for WindowKind<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Aligned(windows) => Self::Aligned(*windows),
            Self::Session(gap) => Self::Session(gap.clone()),
            Self::Global(at_end) => Self::Global(*at_end),
        }
    }
}

/// A time without records after which a session has ended, in milliseconds.
pub(crate) enum SessionGap<T: Record + ?Sized> {
    /// The same for all records.
    Fixed(i64),
    /// By record.
    #[expect(clippy::type_complexity, reason = "the closure of the user, said once")]
    Dynamic(Rc<dyn for<'a> Fn(T::Ref<'a>) -> Duration>),
}

impl<T: Record + ?Sized> Clone for SessionGap<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Fixed(gap) => Self::Fixed(*gap),
            Self::Dynamic(gap) => Self::Dynamic(Rc::clone(gap)),
        }
    }
}

impl<T: Record + ?Sized> SessionGap<T> {
    /// The session of a record alone.
    ///
    /// # Errors
    /// Returns an error if the user's closure returns a gap that is none.
    #[inline]
    pub(crate) fn window(&self, record: T::Ref<'_>, timestamp: i64) -> Result<TimeWindow, String> {
        let gap = match self {
            Self::Fixed(gap) => *gap,
            Self::Dynamic(gap) => millis("with_dynamic_gap", "gap", gap(record))?,
        };
        Ok(TimeWindow::new(timestamp, timestamp.saturating_add(gap)))
    }
}

/// Windows of one size that begin every `slide` milliseconds.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct AlignedWindows {
    pub(crate) size: i64,
    pub(crate) slide: i64,
    /// At least 0, below `slide`.
    offset: i64,
}

impl AlignedWindows {
    /// Windows that begin at `offset` and every `slide` milliseconds before and after it.
    pub(crate) fn new(size: i64, slide: i64, offset: i64) -> Self {
        Self { size, slide, offset: offset.rem_euclid(slide) }
    }

    /// Start of the last window that begins at or before `timestamp`.
    #[inline]
    pub(crate) fn last_start(&self, timestamp: i64) -> i64 {
        let into_slide = timestamp.rem_euclid(self.slide) - self.offset;
        timestamp.saturating_sub(if into_slide < 0 { into_slide + self.slide } else { into_slide })
    }

    #[inline]
    pub(crate) fn window_from(&self, start: i64) -> TimeWindow {
        TimeWindow::new(start, start.saturating_add(self.size))
    }

    /// The windows of a timestamp, the latest first.
    #[inline]
    pub(crate) fn assign(self, timestamp: i64) -> impl Iterator<Item = TimeWindow> {
        let starts =
            std::iter::successors(Some(self.last_start(timestamp)), move |start| start.checked_sub(self.slide));
        starts.map(move |start| self.window_from(start)).take_while(move |window| timestamp < window.end)
    }

    /// Start of the first window that ends behind `timestamp`.
    #[inline]
    pub(crate) fn first_start_ending_after(&self, timestamp: i64) -> i64 {
        self.last_start(timestamp.saturating_sub(self.size)).saturating_add(self.slide)
    }

    /// The pane of a timestamp: windows begin and end only between panes. If `slide` does not
    /// divide `size`, panes are the two parts of a slide that one window's end cuts it into.
    #[inline]
    pub(crate) fn pane(&self, timestamp: i64) -> TimeWindow {
        let start = self.last_start(timestamp);
        let cut = start.saturating_add(self.size % self.slide);
        let end = start.saturating_add(self.slide);
        if timestamp < cut { TimeWindow::new(start, cut) } else { TimeWindow::new(cut, end) }
    }
}

/// A duration of the user in milliseconds.
fn millis(call: &str, what: &str, duration: Duration) -> Result<i64, String> {
    if !duration.subsec_nanos().is_multiple_of(1_000_000) {
        return Err(format!("{call}: the {what} must be whole milliseconds, not {duration:?}"));
    }
    match i64::try_from(duration.as_millis()) {
        Ok(0) => Err(format!("{call}: the {what} must be at least 1 ms")),
        Ok(millis) => Ok(millis),
        Err(_) => Err(format!("{call}: the {what} is too long: {duration:?}")),
    }
}

/// Where windows begin: some time after the epoch, or before it.
#[derive(Clone, Copy, Debug)]
enum Offset {
    After(Duration),
    Before(Duration),
}

impl Offset {
    fn millis(self, call: &str) -> Result<i64, String> {
        match self {
            Self::After(Duration::ZERO) | Self::Before(Duration::ZERO) => Ok(0),
            Self::After(offset) => millis(call, "offset", offset),
            Self::Before(offset) => millis(call, "offset", offset).map(|offset| -offset),
        }
    }
}

/// # Errors
/// Returns what is wrong with the call.
fn aligned(call: &str, size: Duration, slide: Option<Duration>, offset: Offset) -> Result<AlignedWindows, String> {
    let call = format!("{call}::of");
    let size = millis(&call, "size", size)?;
    let offset = offset.millis(&call)?;
    let (slide, limit) = match slide {
        None => (size, "size"),
        Some(slide) => (millis(&call, "slide", slide)?, "slide"),
    };
    if slide <= offset.abs() {
        return Err(format!("{call}: the offset of {offset} ms must be shorter than the {limit} of {slide} ms"));
    }
    Ok(AlignedWindows::new(size, slide, offset))
}

macro_rules! offsets {
    ($type:ident) => {
        impl $type {
            /// Lets windows begin this much later than at multiples from the Unix epoch, for example
            /// at a quarter past each hour.
            #[must_use]
            pub fn with_offset(self, offset: Duration) -> Self {
                Self { offset: Offset::After(offset), ..self }
            }

            /// Lets windows begin this much earlier than at multiples from the Unix epoch: days of
            /// a time zone that is eight hours ahead begin eight hours before those of UTC.
            #[must_use]
            pub fn with_negative_offset(self, offset: Duration) -> Self {
                Self { offset: Offset::Before(offset), ..self }
            }
        }
    };
}

macro_rules! tumbling {
    ($($type:ident $domain:ident $doc:literal;)*) => { $(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $type {
            size: Duration,
            offset: Offset,
        }

        impl $type {
            /// Windows of this size, one behind the other: whole milliseconds, at least one.
            pub fn of(size: Duration) -> Self {
                Self { size, offset: Offset::After(Duration::ZERO) }
            }
        }

        offsets!($type);

        impl<T: Record + ?Sized> sealed::Sealed<T> for $type {
            fn windows(self) -> Result<Windows<T>, String> {
                let windows = aligned(stringify!($type), self.size, None, self.offset)?;
                Ok(Windows { kind: WindowKind::Aligned(windows), domain: TimeDomain::$domain })
            }
        }
    )* };
}

tumbling! {
    TumblingEventTimeWindows EventTime "Each record belongs to one window, by its timestamp.";
    TumblingProcessingTimeWindows ProcessingTime "Each record belongs to one window, by the clock when it is processed.";
}

macro_rules! sliding {
    ($($type:ident $domain:ident $doc:literal;)*) => { $(
        #[doc = $doc]
        ///
        /// Neither a record nor a result costs more if windows overlap more. For this, records are
        /// aggregated by the parts that windows share, and those in the order of time: the
        /// function must not depend on the order of records, as where sessions merge.
        #[derive(Clone, Copy, Debug)]
        pub struct $type {
            size: Duration,
            slide: Duration,
            offset: Offset,
        }

        impl $type {
            /// Windows of this size, one beginning every `slide`: both whole milliseconds, at
            /// least one. With a slide longer than the size, some records belong to no window.
            pub fn of(size: Duration, slide: Duration) -> Self {
                Self { size, slide, offset: Offset::After(Duration::ZERO) }
            }
        }

        offsets!($type);

        impl<T: Record + ?Sized> sealed::Sealed<T> for $type {
            fn windows(self) -> Result<Windows<T>, String> {
                let windows = aligned(stringify!($type), self.size, Some(self.slide), self.offset)?;
                Ok(Windows { kind: WindowKind::Aligned(windows), domain: TimeDomain::$domain })
            }
        }
    )* };
}

sliding! {
    SlidingEventTimeWindows EventTime "Windows that overlap; each record belongs to several, by its timestamp.";
    SlidingProcessingTimeWindows ProcessingTime
        "Windows that overlap; each record belongs to several, by the clock when it is processed.";
}

macro_rules! session {
    ($($type:ident $dynamic:ident $domain:ident $doc:literal;)*) => { $(
        #[doc = $doc]
        #[derive(Clone, Copy, Debug)]
        pub struct $type(Duration);

        impl $type {
            /// A session ends with this much time without records: whole milliseconds, at least one.
            pub fn with_gap(gap: Duration) -> Self {
                Self(gap)
            }

            /// A session ends with as much time without records as the closure says for each.
            pub fn with_dynamic_gap<T, F>(gap: F) -> $dynamic<T>
            where
                T: Record + ?Sized,
                F: for<'a> Fn(T::Ref<'a>) -> Duration + 'static,
            {
                $dynamic(SessionGap::Dynamic(Rc::new(gap)))
            }
        }

        impl<T: Record + ?Sized> sealed::Sealed<T> for $type {
            fn windows(self) -> Result<Windows<T>, String> {
                let gap = millis(concat!(stringify!($type), "::with_gap"), "gap", self.0)?;
                Ok(Windows { kind: WindowKind::Session(SessionGap::Fixed(gap)), domain: TimeDomain::$domain })
            }
        }

        #[doc = $doc]
        /// The gap depends on the record.
        pub struct $dynamic<T: Record + ?Sized>(SessionGap<T>);

        impl<T: Record + ?Sized> sealed::Sealed<T> for $dynamic<T> {
            fn windows(self) -> Result<Windows<T>, String> {
                Ok(Windows { kind: WindowKind::Session(self.0), domain: TimeDomain::$domain })
            }
        }
    )* };
}

session! {
    EventTimeSessionWindows DynamicEventTimeSessionWindows EventTime
        "Groups records whose timestamps are no further apart than a gap.";
    ProcessingTimeSessionWindows DynamicProcessingTimeSessionWindows ProcessingTime
        "Groups records that are processed no further apart than a gap.";
}

/// Assigns all records of a key to one window.
#[derive(Clone, Copy, Debug)]
pub struct GlobalWindows {
    at_end: bool,
}

impl GlobalWindows {
    /// The window never fires by itself: it needs a trigger, without which the program is refused.
    pub fn create() -> Self {
        Self { at_end: false }
    }

    /// The window fires once, when event time or the input ends.
    pub fn end_of_stream() -> Self {
        Self { at_end: true }
    }
}

impl<T: Record + ?Sized> sealed::Sealed<T> for GlobalWindows {
    fn windows(self) -> Result<Windows<T>, String> {
        Ok(Windows { kind: WindowKind::Global(self.at_end), domain: TimeDomain::EventTime })
    }
}
