//! Generates the events of the Nexmark benchmark, as lines of JSON or straight
//! into rows.
//!
//! Records are `string`, which gives the events as `serde_json` writes them, or a
//! sum with variants among `Person`, `Auction` and `Bid` whose only field is a
//! struct, and a variant marked `*` for the others. The rows are those that the
//! JSON reader would make of the lines, without the text in between.

use engine_rows::{
    descriptor::{TypeDescriptor, Variant},
    row::{self, NO_TIMESTAMP},
};
use nexmark::{
    EventGenerator,
    config::NexmarkConfig,
    event::{Auction, Bid, Event, Person},
};
use serde::{Deserialize, Serialize};

use super::{
    ConnectorError, ReaderContext, ReaderOutput, RejectedRow, RestoredSource, Role, SourceReader, SourceSplit, Verdict,
    encoding,
    options::{Options, record_type_error},
    rate_limiter::RateLimiter,
    split_queue::{Replayable, SplitQueue},
};
use crate::{
    base::{
        config::nearest,
        stream_element::{BatchKind, RecordBatch},
    },
    graph::stream_graph::ConnectorSpec,
};

/// Event time of the first event: 2026-01-01.
const BASE_TIME: u64 = 1_767_225_600_000;
/// Events of a second of event time.
const EVENT_RATE: u64 = 1000;
/// Events generated in a poll, which bounds its time.
const EVENTS_PER_POLL_MAX: u64 = 4096;

/// Validated options of the source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct NexmarkOptions {
    /// Number of events of all subtasks together; none: without end.
    events: Option<u64>,
    rate: Option<u64>,
    base_time: u64,
    first_rate: u64,
    next_rate: u64,
    out_of_order_group_size: u64,
}

impl NexmarkOptions {
    pub(super) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let known = ["events", "rate", "base-time", "first-rate", "next-rate", "out-of-order-group-size"];
        let options = Options::new(spec, Role::Source, &known)?;
        let first_rate = options.positive("first-rate")?.unwrap_or(EVENT_RATE);
        let next_rate = options.positive("next-rate")?.unwrap_or(first_rate);
        if first_rate < next_rate {
            // The generator computes half of the difference, unsigned.
            let problem = format!("must not be above first-rate, which is {first_rate}, found {next_rate}");
            return Err(options.error("next-rate", problem));
        }
        Ok(Self {
            events: options.value::<u64>("events")?,
            rate: options.positive("rate")?,
            base_time: options.value::<u64>("base-time")?.unwrap_or(BASE_TIME),
            first_rate,
            next_rate,
            out_of_order_group_size: options.positive("out-of-order-group-size")?.unwrap_or(1),
        })
    }

    fn generator(&self) -> EventGenerator {
        let size = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        EventGenerator::new(NexmarkConfig {
            base_time: self.base_time,
            first_rate: size(self.first_rate),
            next_rate: size(self.next_rate),
            out_of_order_group_size: size(self.out_of_order_group_size),
            ..NexmarkConfig::default()
        })
    }
}

/// Every `step`th event from `first` on.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Ord, PartialEq, PartialOrd, Serialize)]
struct Stride {
    first: u64,
    step: u64,
    /// Exclusive; none: to the end of the source.
    end: Option<u64>,
}

impl Stride {
    fn is_empty(&self) -> bool {
        self.end.is_some_and(|end| end <= self.first)
    }
}

/// What one subtask generates, in the order of the events.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
struct EventSplit {
    /// That of the subtasks of a former parallelism, up to where the furthest of them was, and
    /// what follows.
    strides: Vec<Stride>,
}

impl EventSplit {
    fn encode(&self) -> SourceSplit {
        SourceSplit(encoding::encode(self))
    }

    fn decode(split: &SourceSplit) -> Result<Self, ConnectorError> {
        const WHAT: &str = "a split of a Nexmark source";
        let decoded: Self = encoding::decode(&split.0, WHAT)?;
        match decoded.strides.iter().any(|stride| stride.step == 0) {
            true => Err(ConnectorError::Damaged(WHAT)),
            false => Ok(decoded),
        }
    }
}

/// Deals the events in turn, so that all subtasks are at the same event time.
///
/// # Errors
/// Returns an error if what is restored is damaged.
pub(super) fn enumerator(parallelism: u32, restored: Option<RestoredSource>) -> Result<SplitQueue, ConnectorError> {
    let splits = match restored {
        None => deal_from(0, parallelism),
        Some(restored) => {
            let state = SplitQueue::decode(&restored.enumerator)?;
            let mut splits = Vec::new();
            for (subtask, split) in state.splits.into_iter().chain(restored.splits) {
                splits.push((subtask, EventSplit::decode(&split)?));
            }
            if state.parallelism != parallelism {
                let strides = splits.into_iter().flat_map(|(_, split)| split.strides).collect();
                splits = deal_again(strides, parallelism);
            }
            splits
        }
    };
    let splits = splits.into_iter().map(|(subtask, split)| (subtask, split.encode()));
    Ok(SplitQueue::new(parallelism, splits, Replayable::Yes))
}

/// All events from one on, in turn.
fn deal_from(first: u64, parallelism: u32) -> Vec<(u32, EventSplit)> {
    let stride = |subtask| Stride { first: first + u64::from(subtask), step: u64::from(parallelism), end: None };
    (0..parallelism).map(|subtask| (subtask, EventSplit { strides: vec![stride(subtask)] })).collect()
}

/// What subtasks of another parallelism have left. Where all of them have something left from
/// one event on, that is dealt as from the beginning; else their strides are dealt whole.
fn deal_again(mut strides: Vec<Stride>, parallelism: u32) -> Vec<(u32, EventSplit)> {
    let endless = || strides.iter().filter(|stride| stride.end.is_none());
    let count = endless().count() as u64;
    let furthest = endless().map(|stride| stride.first).max();
    let mut splits: Vec<_> = (0..parallelism).map(|subtask| (subtask, EventSplit::default())).collect();
    if let Some(first) = furthest.filter(|_| endless().all(|stride| stride.step == count)) {
        strides.iter_mut().for_each(|stride| stride.end = stride.end.or(Some(first)));
        splits = deal_from(first, parallelism);
    }
    strides.retain(|stride| !stride.is_empty());
    strides.sort_unstable();
    for (index, stride) in strides.into_iter().enumerate() {
        splits[index % parallelism as usize].1.strides.push(stride);
    }
    splits.retain(|(_, split)| !split.strides.is_empty());
    splits
}

/// A field of an event.
enum Value<'a> {
    Number(u64),
    Text(&'a str),
}

/// Names and values of the fields of a kind of event.
type FieldTable<T> = &'static [(&'static str, for<'a> fn(&'a T) -> Value<'a>)];

const PERSON: FieldTable<Person> = &[
    ("id", |person| Value::Number(person.id as u64)),
    ("name", |person| Value::Text(&person.name)),
    ("email_address", |person| Value::Text(&person.email_address)),
    ("credit_card", |person| Value::Text(&person.credit_card)),
    ("city", |person| Value::Text(&person.city)),
    ("state", |person| Value::Text(&person.state)),
    ("date_time", |person| Value::Number(person.date_time)),
    ("extra", |person| Value::Text(&person.extra)),
];
const AUCTION: FieldTable<Auction> = &[
    ("id", |auction| Value::Number(auction.id as u64)),
    ("item_name", |auction| Value::Text(&auction.item_name)),
    ("description", |auction| Value::Text(&auction.description)),
    ("initial_bid", |auction| Value::Number(auction.initial_bid as u64)),
    ("reserve", |auction| Value::Number(auction.reserve as u64)),
    ("date_time", |auction| Value::Number(auction.date_time)),
    ("expires", |auction| Value::Number(auction.expires)),
    ("seller", |auction| Value::Number(auction.seller as u64)),
    ("category", |auction| Value::Number(auction.category as u64)),
    ("extra", |auction| Value::Text(&auction.extra)),
];
const BID: FieldTable<Bid> = &[
    ("auction", |bid| Value::Number(bid.auction as u64)),
    ("bidder", |bid| Value::Number(bid.bidder as u64)),
    ("price", |bid| Value::Number(bid.price as u64)),
    ("channel", |bid| Value::Text(&bid.channel)),
    ("url", |bid| Value::Text(&bid.url)),
    ("date_time", |bid| Value::Number(bid.date_time)),
    ("extra", |bid| Value::Text(&bid.extra)),
];

/// What is written of an event.
enum Projection {
    Json,
    Sum { person: Variants<Person>, auction: Variants<Auction>, bid: Variants<Bid> },
}

/// How one kind of event is written.
struct Variants<T: 'static> {
    /// Index of the variant that takes it; none: the type has none, and it is refused.
    index: Option<u8>,
    fields: Vec<ProjectedField<T>>,
}

struct ProjectedField<T: 'static> {
    name: String,
    get: for<'a> fn(&'a T) -> Value<'a>,
    encoding: Encoding,
    optional: bool,
}

#[derive(Clone, Copy)]
enum Encoding {
    /// Bytes, and the largest value.
    Integer(usize, u64),
    F64,
    Text,
}

impl Projection {
    fn new(record_type: &str) -> Result<Self, String> {
        let descriptor = TypeDescriptor::parse(record_type).map_err(|error| error.to_string())?;
        match &descriptor {
            TypeDescriptor::String => Ok(Self::Json),
            TypeDescriptor::Sum { variants, .. } => {
                let known = ["Person", "Auction", "Bid"];
                let stranger =
                    variants.iter().find(|variant| !variant.other && !known.contains(&variant.name.as_str()));
                if let Some(stranger) = stranger {
                    return Err(format!("there is no event {}, only {}", stranger.name, known.join(", ")));
                }
                Ok(Self::Sum {
                    person: Variants::new("Person", PERSON, variants)?,
                    auction: Variants::new("Auction", AUCTION, variants)?,
                    bid: Variants::new("Bid", BID, variants)?,
                })
            }
            _ => Err(format!("it gives text or an enum of Person, Auction and Bid, but the records are {record_type}")),
        }
    }

    /// Appends the row of an event, or says why it does not fit.
    fn append(&self, event: &Event, out: &mut Vec<u8>) -> Result<(), String> {
        match self {
            Self::Json => {
                serde_json::to_writer(&mut *out, event).map_err(|error| error.to_string())?;
                out.push(b'\n');
                Ok(())
            }
            Self::Sum { person, auction, bid } => {
                let start = out.len();
                let mut written = Ok(());
                row::append_with(out, 0, NO_TIMESTAMP, |out| {
                    written = match event {
                        Event::Person(event) => person.append(event, out),
                        Event::Auction(event) => auction.append(event, out),
                        Event::Bid(event) => bid.append(event, out),
                    };
                });
                written.inspect_err(|_| out.truncate(start))
            }
        }
    }
}

impl<T> Variants<T> {
    fn new(name: &str, table: FieldTable<T>, variants: &[Variant]) -> Result<Self, String> {
        let known = variants.iter().position(|variant| variant.name == name && !variant.other);
        let taken = known.or_else(|| variants.iter().position(|variant| variant.other));
        let index = taken.map(|index| u8::try_from(index).expect("at most 256 variants"));
        let fields = match known.map(|index| variants[index].fields.as_slice()) {
            None => Vec::new(),
            Some([TypeDescriptor::Struct { fields, .. }]) => fields
                .iter()
                .map(|(field, kind)| ProjectedField::new(name, field, kind, table))
                .collect::<Result<_, _>>()?,
            Some(_) => return Err(format!("variant {name} must hold one struct")),
        };
        Ok(Self { index, fields })
    }

    #[inline]
    fn append(&self, event: &T, out: &mut Vec<u8>) -> Result<(), String> {
        let Some(index) = self.index else { return Err("the record type has no variant for the event".to_owned()) };
        out.push(index);
        self.fields.iter().try_for_each(|field| field.append(event, out))
    }
}

impl<T> ProjectedField<T> {
    fn new(variant: &str, name: &str, kind: &TypeDescriptor, table: FieldTable<T>) -> Result<Self, String> {
        type D = TypeDescriptor;
        let Some((_, get)) = table.iter().find(|(known, _)| *known == name) else {
            let known: Vec<&str> = table.iter().map(|(known, _)| *known).collect();
            let hint = nearest(name, known.iter().copied())
                .map_or_else(|| format!("only {}", known.join(", ")), |nearest| format!("did you mean \"{nearest}\"?"));
            return Err(format!("{variant} has no field \"{name}\", {hint}"));
        };
        let (kind, optional) = match kind {
            D::Option(element) => (&**element, true),
            kind => (kind, false),
        };
        let encoding = match kind {
            D::U8 => Encoding::Integer(1, u8::MAX.into()),
            D::U16 => Encoding::Integer(2, u16::MAX.into()),
            D::U32 => Encoding::Integer(4, u32::MAX.into()),
            D::U64 => Encoding::Integer(8, u64::MAX),
            D::I8 => Encoding::Integer(1, i8::MAX.cast_unsigned().into()),
            D::I16 => Encoding::Integer(2, i16::MAX.cast_unsigned().into()),
            D::I32 => Encoding::Integer(4, i32::MAX.cast_unsigned().into()),
            D::I64 => Encoding::Integer(8, i64::MAX.cast_unsigned()),
            D::F64 => Encoding::F64,
            D::String | D::Bytes => Encoding::Text,
            _ => return Err(format!("field \"{variant}.{name}\" is a number or text, and cannot become {kind}")),
        };
        // Whether a field is a number does not depend on the event.
        let is_text = TEXT_FIELDS.contains(&name);
        if is_text != matches!(encoding, Encoding::Text) {
            let is = if is_text { "text" } else { "a number" };
            return Err(format!("field \"{variant}.{name}\" is {is}, and cannot become {kind}"));
        }
        Ok(Self { name: format!("{variant}.{name}"), get: *get, encoding, optional })
    }

    #[inline]
    fn append(&self, event: &T, out: &mut Vec<u8>) -> Result<(), String> {
        if self.optional {
            out.push(1);
        }
        match ((self.get)(event), self.encoding) {
            (Value::Number(number), Encoding::Integer(width, max)) => {
                if max < number {
                    return Err(format!("field \"{}\": {number} is out of range, which ends at {max}", self.name));
                }
                out.extend_from_slice(&number.to_le_bytes()[..width]);
            }
            (Value::Number(number), Encoding::F64) => out.extend_from_slice(&(number as f64).to_le_bytes()),
            (Value::Text(text), Encoding::Text) => {
                let length = u32::try_from(text.len()).expect("generated text is short");
                out.extend_from_slice(&length.to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }
            (Value::Number(_), Encoding::Text) | (Value::Text(_), _) => {
                return Err(format!("field \"{}\" has another type", self.name));
            }
        }
        Ok(())
    }
}

/// Fields that are text; all others are numbers.
const TEXT_FIELDS: [&str; 10] =
    ["name", "email_address", "credit_card", "city", "state", "extra", "item_name", "description", "channel", "url"];

pub(super) fn check_record_type(spec: &ConnectorSpec, record_type: &str) -> Result<(), ConnectorError> {
    Projection::new(record_type).map(drop).map_err(|problem| record_type_error(spec, Role::Source, problem))
}

/// Generates the events of one subtask.
pub(super) struct NexmarkReader {
    options: NexmarkOptions,
    context: ReaderContext,
    projection: Projection,
    limiter: RateLimiter,
    /// None of them has ended; empty: a split is needed.
    open: Vec<OpenStride>,
}

struct OpenStride {
    generator: EventGenerator,
    /// From the next event on, whose number is zero-based.
    left: Stride,
}

impl OpenStride {
    /// The stride whose next event comes first, of those that are not empty.
    fn earliest(open: &mut [Self]) -> Option<&mut Self> {
        match open {
            [one] => Some(one),
            many => many.iter_mut().min_by_key(|stride| stride.left.first),
        }
    }
}

impl NexmarkReader {
    pub(super) fn new(
        options: &NexmarkOptions,
        spec: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let projection =
            Projection::new(&context.record_type).map_err(|problem| record_type_error(spec, Role::Source, problem))?;
        let limiter = RateLimiter::new(options.rate, context.parallelism, context.clock.clone());
        Ok(Self { options: options.clone(), context, projection, limiter, open: Vec::new() })
    }
}

impl SourceReader for NexmarkReader {
    fn add_split(&mut self, split: SourceSplit) -> Result<(), ConnectorError> {
        let events = self.options.events;
        for mut left in EventSplit::decode(&split)?.strides {
            left.end = left.end.into_iter().chain(events).min();
            let generator = self.options.generator().with_offset(left.first).with_step(left.step);
            self.open.push(OpenStride { generator, left });
        }
        Ok(())
    }

    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        self.open.retain(|stride| !stride.left.is_empty());
        if self.open.is_empty() {
            return Ok(ReaderOutput::NeedSplit);
        }
        let rows_max = match self.limiter.available() {
            Ok(rows_max) => rows_max.min(EVENTS_PER_POLL_MAX),
            Err(pause) => return Ok(ReaderOutput::Idle(pause)),
        };
        let mut data = Vec::with_capacity(max_bytes);
        let mut count = 0;
        while u64::from(count) < rows_max
            && data.len() < max_bytes
            && let Some(OpenStride { generator, left }) = OpenStride::earliest(&mut self.open)
            && !left.is_empty()
            && let Some(event) = generator.next()
        {
            let number = left.first;
            left.first = number.saturating_add(left.step);
            match self.projection.append(&event, &mut data) {
                Ok(()) => count += 1,
                Err(message) => {
                    let position = format!("Nexmark event {number}");
                    let payload = serde_json::to_vec(&event).unwrap_or_default();
                    let row = RejectedRow { message: &message, position: &position, payload: &payload };
                    match (self.context.reject)(row) {
                        Verdict::Skip => {}
                        Verdict::Fail => return Err(ConnectorError::BadRow { position, message }),
                    }
                }
            }
        }
        self.limiter.take(count);
        if count == 0 {
            return Ok(ReaderOutput::Idle(std::time::Duration::ZERO));
        }
        let kind = match self.projection {
            Projection::Json => BatchKind::Lines,
            Projection::Sum { .. } => BatchKind::Rows,
        };
        Ok(ReaderOutput::Records(RecordBatch { kind, count, data: data.into() }))
    }

    fn snapshot(&mut self) -> Vec<SourceSplit> {
        // The end of the source is no end of the stride: restored, it may have more events.
        let end = |left: &Stride| left.end.filter(|end| Some(*end) != self.options.events);
        let left = self.open.iter().map(|stride| Stride { end: end(&stride.left), ..stride.left });
        let split = EventSplit { strides: left.collect() };
        if split.strides.is_empty() { Vec::new() } else { vec![split.encode()] }
    }

    fn position(&self) -> String {
        match self.open.iter().map(|stride| stride.left.first).min() {
            Some(next) => format!("Nexmark event {next}"),
            None => "Nexmark source without a split".to_owned(),
        }
    }
}
