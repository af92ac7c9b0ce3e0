//! Reads lines of JSON into rows: only the fields that a record type names.
//!
//! A [`JsonReader`] is made once from a [`TypeDescriptor`] and then reads line by
//! line. It walks over the whole line, so that malformed JSON is noticed wherever
//! it stands, but looks only at what the type names. It remembers at which place
//! of an object which key stood the last time, white space included, and looks
//! there first; of a variant marked `*` it remembers that for each name.
//!
//! | type                  | JSON                                                     |
//! |-----------------------|----------------------------------------------------------|
//! | `bool`                | `true`, `false`                                          |
//! | `char`                | a string of one character                                |
//! | `u8` … `i64`          | a whole number in range; not `1.0`, `1e3` or `-0`        |
//! | `f32`, `f64`          | any number that does not overflow                        |
//! | `string`              | a string                                                 |
//! | `bytes`               | a string, taken as UTF-8, or an array of numbers up to 255 |
//! | `option<T>`           | `null`, `T`, or nothing where it is the field of a struct |
//! | `list<T>`             | an array                                                 |
//! | `map<K,V>`            | an object; keys are text, characters, whole numbers or truth values in quotes |
//! | `tuple(A,B)`          | an array of as many elements; `tuple()` is `null`        |
//! | `Name{a:T}`           | an object; other keys are ignored                        |
//! | `Name[A(T)\|B\|*C]`   | `{"A":T}` (an array if `A` has several fields); `"B"` or `{"B":null}`; anything else of this form becomes `C` |
//!
//! A key that stands twice in an object counts with its last value, and an entry
//! of a map keeps the place of its last one. What is read and what is refused
//! equals `serde_json`, with these exceptions: containers nested [`DEPTH_MAX`]
//! deep are refused also where nobody reads them, numbers that overflow `f32`
//! are refused, and a variant marked `*` takes any content, which is not looked at
//! if it is the rest of the line.

mod cursor;
mod writer;

use std::fmt;

pub use writer::write_json;

use crate::descriptor::TypeDescriptor;
use cursor::{Cursor, Parsed};

/// Objects and arrays may be nested less deep than this, as in `serde_json`.
pub const DEPTH_MAX: usize = 128;
/// Longest line.
pub const LINE_BYTES_MAX: usize = 16 << 20;
/// Longest row. Absent options can make a row longer than its line.
pub const ROW_BYTES_MAX: usize = 64 << 20;
/// Places of an object at which the key is remembered.
const EXPECTED_KEYS_MAX: usize = 256;
/// Names of variants that are remembered.
const KNOWN_VARIANTS_MAX: usize = 8;
/// Keys longer than this, with punctuation, are not remembered.
const EXPECTED_BYTES_MAX: usize = 32;
/// Texts up to this length are copied in one go.
const SHORT_TEXT_BYTES: usize = 16;
/// Most objects that are not tried as regular ones after some were not.
const PAUSE_MAX: u8 = 63;

/// A line that is not JSON or does not fit the record type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct JsonError {
    /// Path of the field, such as "Bid.price" or "tags[3]"; empty: the whole line.
    pub field: String,
    /// One-based, in bytes.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for JsonError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "column {}", self.column)?;
        if !self.field.is_empty() {
            write!(formatter, ", field \"{}\"", self.field)?;
        }
        write!(formatter, ": {}", self.problem)
    }
}

impl std::error::Error for JsonError {}

impl JsonError {
    #[cold]
    fn within(mut self: Box<Self>, outer: &str) -> Box<Self> {
        let separator = if self.field.is_empty() || self.field.starts_with('[') { "" } else { "." };
        self.field = format!("{outer}{separator}{}", self.field);
        self
    }
}

/// A type that text cannot be read into.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct UnsupportedType {
    /// The type.
    pub descriptor: String,
    /// Why not.
    pub problem: &'static str,
}

impl fmt::Display for UnsupportedType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "type {}: {}", self.descriptor, self.problem)
    }
}

impl std::error::Error for UnsupportedType {}

/// Reads lines of JSON into the payload of rows of one type.
///
/// ```
/// use engine_rows::{descriptor::TypeDescriptor, json::JsonReader};
///
/// let bid = TypeDescriptor::parse("Bid{price:u32,channel:string}").expect("a descriptor");
/// let mut reader = JsonReader::new(&bid).expect("a type that JSON can be read into");
/// let mut row = Vec::new();
/// reader.read(r#"{"url": ["ignored"], "channel": "Apple", "price": 7}"#, &mut row).expect("fits");
/// assert_eq!(row, b"\x07\0\0\0\x05\0\0\0Apple");
/// let error = reader.read(r#"{"price":-7,"channel":"Apple"}"#, &mut row).expect_err("does not fit");
/// assert_eq!(error.to_string(), "column 10, field \"price\": -7 is out of range for u32");
/// ```
#[derive(Clone, Debug)]
pub struct JsonReader {
    plan: Plan,
    scratch: Scratch,
}

impl JsonReader {
    /// A reader of records of the given type.
    ///
    /// # Errors
    /// Returns an error if a struct has two fields of one name, or the keys of a
    /// map cannot stand in quotes.
    pub fn new(record_type: &TypeDescriptor) -> Result<Self, UnsupportedType> {
        Ok(Self { plan: Plan::new(record_type)?, scratch: Scratch::default() })
    }

    /// Appends the payload of the record on `line` to `out`.
    ///
    /// # Errors
    /// Returns an error, and leaves `out` as it was, if the line is not JSON or
    /// does not fit the type.
    #[inline]
    pub fn read(&mut self, line: &str, out: &mut Vec<u8>) -> Result<(), JsonError> {
        let start = out.len();
        self.read_line(line, out).map_err(|error| {
            out.truncate(start);
            *error
        })
    }

    /// Reads the record on the first line of a text, appends its payload, and returns the
    /// length of the line, so that nobody need search for the line's end before.
    ///
    /// Returns `None`, and leaves `out` as it was, if the line has no end, or has to be read
    /// by [`Self::read`] to know what is wrong with it.
    #[inline]
    pub fn read_first_line(&mut self, text: &str, out: &mut Vec<u8>) -> Option<usize> {
        let start = out.len();
        let mut cursor = Cursor::of_first_line(text);
        let read = self.read_record(&mut cursor, out);
        if read.is_ok() && cursor.peek() == Some(b'\n') && cursor.at <= LINE_BYTES_MAX {
            return Some(cursor.at);
        }
        out.truncate(start);
        None
    }

    /// Passes over the first lines of a text that fall to the variant marked `*` by names that
    /// did so before; returns their length, line ends included, and their number.
    ///
    /// [`Self::read_first_line`] would read each of them as that variant.
    #[inline]
    pub fn skip_other_lines(&self, text: &str) -> (usize, u32) {
        match &self.plan {
            Plan::Sum(plan) if plan.other.is_some() => plan.skip_other_lines(text.as_bytes()),
            _ => (0, 0),
        }
    }

    fn read_line(&mut self, line: &str, out: &mut Vec<u8>) -> Parsed<()> {
        let mut cursor = Cursor::new(line);
        if line.len() > LINE_BYTES_MAX {
            return Err(cursor.error(format!("the line is longer than {LINE_BYTES_MAX} bytes")));
        }
        self.read_record(&mut cursor, out)?;
        match cursor.peek() {
            None => Ok(()),
            Some(_) => Err(cursor.error("text after the end of the value")),
        }
    }

    /// Reads a record and the space around it.
    fn read_record(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
        self.scratch.row_end_max = out.len().saturating_add(ROW_BYTES_MAX);
        self.scratch.spans.clear();
        cursor.skip_space();
        match &mut self.plan {
            // As a whole record, text has no length.
            Plan::String if cursor.take(b'"') => cursor.read_string(out)?,
            Plan::Bytes => read_bytes(cursor, out)?,
            Plan::Sum(plan) => plan.read(cursor, out, &mut self.scratch)?,
            plan => plan.read(cursor, out, &mut self.scratch)?,
        }
        cursor.skip_space();
        Ok(())
    }
}

/// Where a value stands in the output.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: usize,
    end: usize,
}

impl Span {
    const ABSENT: Self = Self { start: usize::MAX, end: usize::MAX };

    fn is_absent(self) -> bool {
        self.start == usize::MAX
    }
}

/// Buffers used over and over.
#[derive(Clone, Debug, Default)]
struct Scratch {
    /// Spans of the fields of all structs and maps that are being read, the innermost last.
    spans: Vec<Span>,
    /// Values on their way to their places.
    bytes: Vec<u8>,
    /// Length at which `out` holds a row of [`ROW_BYTES_MAX`].
    row_end_max: usize,
}

impl Scratch {
    #[inline]
    fn check_size(&self, cursor: &Cursor<'_>, out: &[u8]) -> Parsed<()> {
        if out.len() <= self.row_end_max {
            return Ok(());
        }
        Err(cursor.error(format!("the row is longer than {ROW_BYTES_MAX} bytes")))
    }
}

/// How to read a value of a type.
#[derive(Clone, Debug)]
enum Plan {
    Bool,
    Char,
    Unsigned(Integer),
    Signed(Integer),
    F32,
    F64,
    String,
    Bytes,
    Unit,
    Option(Box<Plan>),
    List(Box<Plan>),
    Map(Box<MapPlan>),
    Tuple(Vec<Plan>),
    Struct(Box<StructPlan>),
    Sum(Box<SumPlan>),
}

#[derive(Clone, Copy, Debug)]
struct Integer {
    /// Bytes of the encoding.
    width: usize,
    name: &'static str,
}

impl Integer {
    /// The greatest number without sign.
    #[inline]
    fn unsigned_max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.width)
    }
}

#[derive(Clone, Debug)]
struct MapPlan {
    key: Plan,
    value: Plan,
}

#[derive(Clone, Debug)]
struct StructPlan {
    fields: Vec<FieldPlan>,
    /// Indices of `fields`, ordered by name.
    by_name: Vec<usize>,
    /// What stood at each place of the object the last time.
    expected: Vec<ExpectedKey>,
    /// Objects that are not tried as regular ones: the last ones were not.
    pause: u8,
    /// Length of the next pause.
    next_pause: u8,
}

#[derive(Clone, Debug)]
struct FieldPlan {
    name: String,
    plan: Plan,
}

/// Text that leads to a value, from the brace or comma to the value itself.
#[derive(Clone, Copy, Debug)]
struct ExpectedKey {
    text: [u8; EXPECTED_BYTES_MAX],
    /// All ones for each byte of `text` that counts.
    mask: [u8; EXPECTED_BYTES_MAX],
    length: usize,
    /// None: nobody asked for the value.
    field: Option<usize>,
}

#[derive(Clone, Debug)]
struct SumPlan {
    variants: Vec<VariantPlan>,
    /// The variant marked `*`.
    other: Option<usize>,
    /// What objects of this type began with, from the brace to the content; `field` is the variant.
    known: Vec<ExpectedKey>,
    /// Which of them the last one began with.
    last: usize,
}

#[derive(Clone, Debug)]
struct VariantPlan {
    name: String,
    fields: Vec<Plan>,
}

impl Plan {
    fn new(descriptor: &TypeDescriptor) -> Result<Self, UnsupportedType> {
        let unsupported = |problem| UnsupportedType { descriptor: descriptor.to_string(), problem };
        let integer = |width, name| Integer { width, name };
        Ok(match descriptor {
            TypeDescriptor::Bool => Self::Bool,
            TypeDescriptor::Char => Self::Char,
            TypeDescriptor::U8 => Self::Unsigned(integer(1, "u8")),
            TypeDescriptor::U16 => Self::Unsigned(integer(2, "u16")),
            TypeDescriptor::U32 => Self::Unsigned(integer(4, "u32")),
            TypeDescriptor::U64 => Self::Unsigned(integer(8, "u64")),
            TypeDescriptor::I8 => Self::Signed(integer(1, "i8")),
            TypeDescriptor::I16 => Self::Signed(integer(2, "i16")),
            TypeDescriptor::I32 => Self::Signed(integer(4, "i32")),
            TypeDescriptor::I64 => Self::Signed(integer(8, "i64")),
            TypeDescriptor::F32 => Self::F32,
            TypeDescriptor::F64 => Self::F64,
            TypeDescriptor::String => Self::String,
            TypeDescriptor::Bytes => Self::Bytes,
            TypeDescriptor::Option(element) => Self::Option(Box::new(Self::new(element)?)),
            TypeDescriptor::List(element) => Self::List(Box::new(Self::new(element)?)),
            TypeDescriptor::Map(key, value) => {
                let key = Self::new(key)?;
                if !matches!(key, Self::String | Self::Char | Self::Bool | Self::Unsigned(_) | Self::Signed(_)) {
                    return Err(unsupported(
                        "keys of a map in JSON are text, characters, whole numbers or truth values",
                    ));
                }
                Self::Map(Box::new(MapPlan { key, value: Self::new(value)? }))
            }
            TypeDescriptor::Tuple(elements) if elements.is_empty() => Self::Unit,
            TypeDescriptor::Tuple(elements) => Self::Tuple(Self::all(elements)?),
            TypeDescriptor::Struct { fields, .. } => {
                let fields =
                    fields.iter().map(|(name, field)| Ok(FieldPlan { name: name.clone(), plan: Self::new(field)? }));
                let fields = fields.collect::<Result<Vec<_>, _>>()?;
                let mut by_name: Vec<usize> = (0..fields.len()).collect();
                by_name.sort_by(|left, right| fields[*left].name.cmp(&fields[*right].name));
                if by_name.windows(2).any(|pair| fields[pair[0]].name == fields[pair[1]].name) {
                    return Err(unsupported("two fields have the same name"));
                }
                Self::Struct(Box::new(StructPlan { fields, by_name, expected: Vec::new(), pause: 1, next_pause: 1 }))
            }
            TypeDescriptor::Sum { variants, .. } => {
                let other = variants.iter().position(|variant| variant.other);
                let variants = variants
                    .iter()
                    .map(|variant| Ok(VariantPlan { name: variant.name.clone(), fields: Self::all(&variant.fields)? }));
                let variants = variants.collect::<Result<Vec<_>, _>>()?;
                Self::Sum(Box::new(SumPlan { variants, other, known: Vec::new(), last: 0 }))
            }
        })
    }

    fn all(descriptors: &[TypeDescriptor]) -> Result<Vec<Self>, UnsupportedType> {
        descriptors.iter().map(Self::new).collect()
    }

    /// Reads the value that begins at the cursor and appends its encoding.
    fn read(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        match self {
            Self::Unsigned(integer) => read_unsigned(cursor, out, *integer),
            Self::Signed(integer) => read_signed(cursor, out, *integer),
            Self::String => read_text(cursor, out),
            Self::Struct(plan) => plan.read(cursor, out, scratch),
            Self::Sum(plan) => plan.read(cursor, out, scratch),
            Self::Bool => read_bool(cursor, out),
            Self::Char => read_char(cursor, out),
            Self::F32 => {
                let (start, number) = read_float::<f32>(cursor, "f32")?;
                check_finite(cursor, start, number.is_finite(), "f32")?;
                out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }
            Self::F64 => {
                let (start, number) = read_float::<f64>(cursor, "f64")?;
                check_finite(cursor, start, number.is_finite(), "f64")?;
                out.extend_from_slice(&number.to_le_bytes());
                Ok(())
            }
            Self::Bytes => {
                let start = out.len();
                out.extend_from_slice(&[0; 4]);
                read_bytes(cursor, out)?;
                patch_length(out, start);
                Ok(())
            }
            Self::Unit if cursor.take_literal("null") => Ok(()),
            Self::Unit => Err(cursor.unexpected("null")),
            Self::Option(element) => {
                if cursor.take_literal("null") {
                    out.push(0);
                    return Ok(());
                }
                out.push(1);
                element.read(cursor, out, scratch)
            }
            Self::List(element) => read_list(element, cursor, out, scratch),
            Self::Map(plan) => plan.read(cursor, out, scratch),
            Self::Tuple(elements) => read_tuple(elements, cursor, out, scratch),
        }
    }
}

/// Writes the length of what was appended behind the four bytes at `start` into these.
#[inline]
fn patch_length(out: &mut [u8], start: usize) {
    let length = u32::try_from(out.len() - start - 4).expect("no longer than the line");
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends a text, the first `length` bytes of `text_and_more`, behind its length.
#[inline(always)]
fn append_text(out: &mut Vec<u8>, text_and_more: &[u8], length: usize) {
    let count = u32::try_from(length).expect("no longer than the line");
    out.extend_from_slice(&count.to_le_bytes());
    match text_and_more.first_chunk::<SHORT_TEXT_BYTES>() {
        // A copy of a fixed size needs no call.
        Some(chunk) if length <= chunk.len() => {
            out.extend_from_slice(chunk);
            out.truncate(out.len() - (chunk.len() - length));
        }
        _ => out.extend_from_slice(&text_and_more[..length]),
    }
}

#[inline]
fn append_integer(out: &mut Vec<u8>, bytes: [u8; 8], width: usize) {
    match width {
        8 => out.extend_from_slice(&bytes),
        4 => out.extend_from_slice(&bytes[..4]),
        width => out.extend_from_slice(&bytes[..width]),
    }
}

#[inline(always)]
fn read_unsigned(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, integer: Integer) -> Parsed<()> {
    let start = cursor.at;
    let (negative, magnitude) = match cursor.take_short_integer() {
        Some(magnitude) => (false, magnitude),
        None => cursor.read_unusual_integer(integer.name)?,
    };
    if negative || magnitude > integer.unsigned_max() {
        return Err(cursor.out_of_range(start, integer.name));
    }
    append_integer(out, magnitude.to_le_bytes(), integer.width);
    Ok(())
}

#[inline(always)]
fn read_signed(cursor: &mut Cursor<'_>, out: &mut Vec<u8>, integer: Integer) -> Parsed<()> {
    let start = cursor.at;
    let negative = cursor.take(b'-');
    let (negative, magnitude) = match cursor.take_short_integer() {
        Some(magnitude) if magnitude != 0 || !negative => (negative, magnitude),
        _ => {
            cursor.at = start;
            cursor.read_unusual_integer(integer.name)?
        }
    };
    let max = i64::MAX.cast_unsigned() >> (64 - 8 * integer.width);
    if magnitude > max + u64::from(negative) {
        return Err(cursor.out_of_range(start, integer.name));
    }
    let value = if negative { magnitude.wrapping_neg() } else { magnitude };
    append_integer(out, value.to_le_bytes(), integer.width);
    Ok(())
}

#[inline]
fn read_text(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    cursor.expect(b'"', "a string")?;
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    cursor.read_string(out)?;
    patch_length(out, start);
    Ok(())
}

fn read_bool(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    if cursor.take_literal("true") {
        out.push(1);
        return Ok(());
    }
    if cursor.take_literal("false") {
        out.push(0);
        return Ok(());
    }
    Err(cursor.unexpected("true or false"))
}

fn read_char(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    let start = cursor.at;
    cursor.expect(b'"', "a string of one character")?;
    let text_start = out.len();
    cursor.read_string(out)?;
    let mut characters = std::str::from_utf8(&out[text_start..]).unwrap_or_default().chars();
    let (Some(character), None) = (characters.next(), characters.next()) else {
        return Err(cursor.error_at(start, "expected a string of one character"));
    };
    out.truncate(text_start);
    out.extend_from_slice(&u32::from(character).to_le_bytes());
    Ok(())
}

/// Reads a number; returns where it began, too.
fn read_float<T: std::str::FromStr>(cursor: &mut Cursor<'_>, expected: &'static str) -> Parsed<(usize, T)> {
    let start = cursor.at;
    if !matches!(cursor.peek(), Some(b'-' | b'0'..=b'9')) {
        return Err(cursor.unexpected(expected));
    }
    let (text, _) = cursor.skip_number()?;
    match text.parse() {
        Ok(number) => Ok((start, number)),
        Err(_) => Err(cursor.out_of_range(start, expected)),
    }
}

fn check_finite(cursor: &Cursor<'_>, start: usize, finite: bool, expected: &'static str) -> Parsed<()> {
    if finite { Ok(()) } else { Err(cursor.out_of_range(start, expected)) }
}

fn read_bytes(cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
    if cursor.take(b'"') {
        return cursor.read_string(out);
    }
    if cursor.peek() != Some(b'[') {
        return Err(cursor.unexpected("a string or an array of bytes"));
    }
    read_elements(cursor, |cursor, index| {
        read_unsigned(cursor, out, Integer { width: 1, name: "u8" }).map_err(|error| in_element(error, index))
    })?;
    Ok(())
}

#[cold]
fn in_element(error: Box<JsonError>, index: usize) -> Box<JsonError> {
    error.within(&format!("[{index}]"))
}

/// Walks over the array at the cursor; `read` is given the index of each element. Returns their number.
#[inline]
fn read_elements<'a>(
    cursor: &mut Cursor<'a>,
    mut read: impl FnMut(&mut Cursor<'a>, usize) -> Parsed<()>,
) -> Parsed<usize> {
    cursor.expect(b'[', "an array")?;
    cursor.enter()?;
    cursor.skip_space();
    let mut count = 0;
    if !cursor.take(b']') {
        loop {
            read(cursor, count)?;
            count += 1;
            cursor.skip_space();
            if cursor.take(b']') {
                break;
            }
            cursor.expect(b',', "\",\" or \"]\"")?;
            cursor.skip_space();
        }
    }
    cursor.leave();
    Ok(count)
}

fn append_count(out: &mut [u8], start: usize, count: usize) {
    let count = u32::try_from(count).expect("fewer than bytes in the line");
    out[start..start + 4].copy_from_slice(&count.to_le_bytes());
}

fn read_list(element: &mut Plan, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    let count = read_elements(cursor, |cursor, index| {
        element.read(cursor, out, scratch).map_err(|error| in_element(error, index))?;
        scratch.check_size(cursor, out)
    })?;
    append_count(out, start, count);
    Ok(())
}

fn read_tuple(elements: &mut [Plan], cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
    let start = cursor.at;
    let expected = elements.len();
    let count = read_elements(cursor, |cursor, index| match elements.get_mut(index) {
        Some(element) => element.read(cursor, out, scratch).map_err(|error| in_element(error, index)),
        None => Err(cursor.error(format!("expected an array of {expected} elements, found more"))),
    })?;
    if count < expected {
        return Err(cursor.error_at(start, format!("expected an array of {expected} elements, found {count}")));
    }
    Ok(())
}

impl MapPlan {
    fn read(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        let start = out.len();
        out.extend_from_slice(&[0; 4]);
        cursor.expect(b'{', "an object")?;
        cursor.enter()?;
        cursor.skip_space();
        let base = scratch.spans.len();
        if !cursor.take(b'}') {
            loop {
                let entry_start = out.len();
                let key_at = cursor.at;
                self.read_key(cursor, out, scratch)?;
                scratch.spans.push(Span { start: entry_start, end: out.len() });
                let read = self.value.read(cursor, out, scratch);
                read.map_err(|error| error.within(key_text(cursor, key_at)))?;
                scratch.check_size(cursor, out)?;
                cursor.skip_space();
                if cursor.take(b'}') {
                    break;
                }
                cursor.expect(b',', "\",\" or \"}\"")?;
                cursor.skip_space();
            }
        }
        cursor.leave();
        let count = keep_last_entries(out, start + 4, &mut scratch.spans, base);
        append_count(out, start, count);
        Ok(())
    }

    fn read_key(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        if cursor.peek() != Some(b'"') {
            return Err(cursor.unexpected("a key in quotes"));
        }
        match self.key {
            Plan::String | Plan::Char => self.key.read(cursor, out, scratch)?,
            _ => {
                cursor.at += 1;
                self.key.read(cursor, out, scratch)?;
                cursor.expect(b'"', "the end of the key")?;
            }
        }
        cursor.skip_colon()
    }
}

/// The key whose opening quote stands at `at`, for messages.
#[cold]
fn key_text<'a>(cursor: &Cursor<'a>, at: usize) -> &'a str {
    let rest = cursor.bytes().get(at + 1..).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == b'"').unwrap_or(rest.len());
    std::str::from_utf8(&rest[..end]).unwrap_or_default()
}

/// Of the entries from `start` on, whose keys are at the spans from `base` on,
/// keeps the last one of each key. Takes the spans away and returns how many are left.
fn keep_last_entries(out: &mut Vec<u8>, start: usize, spans: &mut Vec<Span>, base: usize) -> usize {
    let keys = &spans[base..];
    let count = keys.len();
    let key = |index: usize| &out[keys[index].start..keys[index].end];
    let mut sorted: Vec<usize> = Vec::new();
    if count > 1 {
        sorted.extend(0..count);
        // By key, and of equal ones the last first.
        sorted.sort_unstable_by(|left, right| key(*left).cmp(key(*right)).then(right.cmp(left)));
        sorted.dedup_by(|later, kept| key(*later) == key(*kept));
    }
    if sorted.len() < count && count > 1 {
        sorted.sort_unstable();
        let end_of = |index: usize| keys.get(index + 1).map_or(out.len(), |next| next.start);
        let kept: Vec<u8> = sorted.iter().flat_map(|index| &out[keys[*index].start..end_of(*index)]).copied().collect();
        out.truncate(start);
        out.extend_from_slice(&kept);
        spans.truncate(base);
        return sorted.len();
    }
    spans.truncate(base);
    count
}

impl ExpectedKey {
    /// No text begins like this.
    const NONE: Self = Self {
        text: [u8::MAX; EXPECTED_BYTES_MAX],
        mask: [u8::MAX; EXPECTED_BYTES_MAX],
        length: EXPECTED_BYTES_MAX,
        field: None,
    };

    fn new(text: &[u8], field: Option<usize>) -> Self {
        let mut expected = Self { field, ..Self::NONE };
        // A line end could stand behind the line.
        if let Some(room) = expected.text.get_mut(..text.len())
            && !text.contains(&b'\n')
        {
            room.copy_from_slice(text);
            expected.mask[text.len()..].fill(0);
            expected.length = text.len();
        }
        expected
    }

    /// Takes the text if it stands at the cursor.
    #[inline(always)]
    fn take(&self, cursor: &mut Cursor<'_>) -> bool {
        let found = match cursor.rest().first_chunk() {
            Some(window) => self.begins(window),
            None => cursor.rest().starts_with(&self.text[..self.length]),
        };
        if found {
            cursor.at += self.length;
            // There may be more of it than the last time.
            cursor.skip_space();
        }
        found
    }

    /// Takes the text if it stands at the cursor, away from the end of the line.
    #[inline(always)]
    fn take_exactly(&self, cursor: &mut Cursor<'_>) -> bool {
        let found = cursor.rest().first_chunk().is_some_and(|window| self.begins(window));
        cursor.at += if found { self.length } else { 0 };
        found
    }

    /// Compares without a loop: keys are too short for one to pay.
    #[inline(always)]
    fn begins(&self, window: &[u8; EXPECTED_BYTES_MAX]) -> bool {
        let half = |bytes: &[u8; EXPECTED_BYTES_MAX], index: usize| {
            let half = bytes[16 * index..].first_chunk().expect("two halves of 16 bytes");
            u128::from_le_bytes(*half)
        };
        let differs = |index| (half(window, index) ^ half(&self.text, index)) & half(&self.mask, index) != 0;
        !differs(0) && (self.length <= 16 || !differs(1))
    }
}

/// The cursor behind a value that nobody asked for.
#[inline(always)]
fn skipped(mut cursor: Cursor<'_>) -> Option<Cursor<'_>> {
    if cursor.take(b'"') {
        cursor.take_plain_string()?;
        return Some(cursor);
    }
    if cursor.take_short_integer().is_some() {
        return Some(cursor);
    }
    skipped_slowly(cursor)
}

#[inline(never)]
fn skipped_slowly(mut cursor: Cursor<'_>) -> Option<Cursor<'_>> {
    cursor.skip_value().ok()?;
    Some(cursor)
}

/// The cursor behind a value that was read.
#[inline(never)]
fn read_with<'a>(
    plan: &mut Plan,
    mut cursor: Cursor<'a>,
    out: &mut Vec<u8>,
    scratch: &mut Scratch,
) -> Option<Cursor<'a>> {
    plan.read(&mut cursor, out, scratch).ok()?;
    Some(cursor)
}

/// What follows at some place of an object.
enum Next {
    /// The value of a field.
    Field(usize),
    /// A value that nobody asked for.
    Ignored,
    /// The object was closed.
    End,
}

impl StructPlan {
    #[inline(never)]
    fn read(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        if self.pause == 0 {
            let start = out.len();
            if let Some(end) = self.read_regular(*cursor, out, scratch) {
                cursor.at = end;
                self.next_pause = 1;
                return Ok(());
            }
            out.truncate(start);
            self.pause = self.next_pause;
            self.next_pause = (2 * self.next_pause).min(PAUSE_MAX);
        } else {
            self.pause -= 1;
        }
        self.read_any(cursor, out, scratch)
    }

    /// Reads an object whose keys stand where they stood the last time, with the fields in their
    /// order, and no more space; returns where it ends. None: it is not so, and what was
    /// appended is to be taken back.
    ///
    /// All that changes here can be kept in registers.
    #[inline(always)]
    fn read_regular(&mut self, mut cursor: Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Option<usize> {
        cursor.enter().ok()?;
        let start = cursor.at;
        let mut in_order = 0;
        for expected in &self.expected {
            if !expected.take_exactly(&mut cursor) {
                break;
            }
            let Some(field) = expected.field else {
                cursor = skipped(cursor)?;
                continue;
            };
            if field != in_order {
                return None;
            }
            in_order += 1;
            match &mut self.fields[field].plan {
                Plan::Unsigned(integer) => {
                    let value = cursor.take_short_integer()?;
                    if value > integer.unsigned_max() {
                        return None;
                    }
                    append_integer(out, value.to_le_bytes(), integer.width);
                }
                Plan::Signed(integer) => {
                    let value = cursor.take_short_integer()?;
                    if value > integer.unsigned_max() >> 1 {
                        return None;
                    }
                    append_integer(out, value.to_le_bytes(), integer.width);
                }
                Plan::String => {
                    if !cursor.take(b'"') {
                        return None;
                    }
                    let text_and_more = cursor.rest();
                    let length = cursor.take_plain_string()?.len();
                    append_text(out, text_and_more, length);
                }
                plan => cursor = read_with(plan, cursor, out, scratch)?,
            }
        }
        // The brace that opens the object belongs to the first key.
        let ends = start < cursor.at && cursor.take(b'}');
        (ends && in_order == self.fields.len() && out.len() <= scratch.row_end_max).then_some(cursor.at)
    }

    /// Reads any object, and remembers its keys.
    fn read_any(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        let start = out.len();
        let base = scratch.spans.len();
        scratch.spans.resize(base + self.fields.len(), Span::ABSENT);
        // Fields 0..in_order were written one after the other.
        let mut in_order = 0;
        let mut disordered = false;
        let mut place = 0;
        cursor.enter()?;
        loop {
            match self.next(cursor, place, &mut scratch.bytes)? {
                Next::Field(index) => {
                    let field = &mut self.fields[index];
                    let value_start = out.len();
                    // The commonest types without a call.
                    let read = match &mut field.plan {
                        Plan::Unsigned(integer) => read_unsigned(cursor, out, *integer),
                        Plan::Signed(integer) => read_signed(cursor, out, *integer),
                        Plan::String => read_text(cursor, out),
                        plan => plan.read(cursor, out, scratch),
                    };
                    if let Err(error) = read {
                        return Err(error.within(&field.name));
                    }
                    scratch.spans[base + index] = Span { start: value_start, end: out.len() };
                    disordered |= index != in_order;
                    in_order += 1;
                }
                Next::Ignored => cursor.skip_value()?,
                Next::End => break,
            }
            place += 1;
        }
        cursor.leave();
        if disordered {
            self.put_in_order(cursor, out, start, scratch, base)?;
        } else {
            for field in &self.fields[in_order..] {
                field.append_absent(cursor, out)?;
            }
        }
        scratch.spans.truncate(base);
        scratch.check_size(cursor, out)
    }

    #[inline]
    fn next(&mut self, cursor: &mut Cursor<'_>, place: usize, scratch: &mut Vec<u8>) -> Parsed<Next> {
        match self.expected.get(place) {
            Some(expected) if expected.take(cursor) => {
                return Ok(expected.field.map_or(Next::Ignored, Next::Field));
            }
            _ => {}
        }
        if place > 0 && cursor.take(b'}') {
            return Ok(Next::End);
        }
        self.next_unexpected(cursor, place, scratch)
    }

    /// As [`Self::next`], for a key that did not stand here the last time.
    #[cold]
    fn next_unexpected(&mut self, cursor: &mut Cursor<'_>, place: usize, scratch: &mut Vec<u8>) -> Parsed<Next> {
        let start = cursor.at;
        if place == 0 {
            cursor.expect(b'{', "an object")?;
            cursor.skip_space();
            if cursor.take(b'}') {
                return Ok(Next::End);
            }
        } else {
            cursor.skip_space();
            if cursor.take(b'}') {
                return Ok(Next::End);
            }
            cursor.expect(b',', "\",\" or \"}\"")?;
            cursor.skip_space();
        }
        cursor.expect(b'"', "a key in quotes")?;
        scratch.clear();
        cursor.read_string(scratch)?;
        cursor.skip_colon()?;
        let found = self.by_name.binary_search_by(|index| self.fields[*index].name.as_bytes().cmp(scratch));
        let field = found.ok().map(|found| self.by_name[found]);
        let learned = ExpectedKey::new(&cursor.bytes()[start..cursor.at], field);
        let known = self.expected.len();
        match self.expected.get_mut(place) {
            Some(expected) => *expected = learned,
            None if place == known && place < EXPECTED_KEYS_MAX => self.expected.push(learned),
            None => {}
        }
        Ok(field.map_or(Next::Ignored, Next::Field))
    }

    /// Rewrites the fields, which stand from `start` on in the order of the text.
    fn put_in_order(
        &self,
        cursor: &Cursor<'_>,
        out: &mut Vec<u8>,
        start: usize,
        scratch: &mut Scratch,
        base: usize,
    ) -> Parsed<()> {
        scratch.bytes.clear();
        scratch.bytes.extend_from_slice(&out[start..]);
        out.truncate(start);
        for (field, span) in self.fields.iter().zip(&scratch.spans[base..]) {
            if span.is_absent() {
                field.append_absent(cursor, out)?;
            } else {
                out.extend_from_slice(&scratch.bytes[span.start - start..span.end - start]);
            }
        }
        Ok(())
    }
}

impl FieldPlan {
    fn append_absent(&self, cursor: &Cursor<'_>, out: &mut Vec<u8>) -> Parsed<()> {
        match self.plan {
            Plan::Option(_) => {
                out.push(0);
                Ok(())
            }
            _ => Err(cursor.error_at(cursor.at.saturating_sub(1), "the field is missing").within(&self.name)),
        }
    }
}

impl SumPlan {
    #[inline]
    fn read(&mut self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        if cursor.take(b'"') {
            return self.read_tag(cursor, out, scratch);
        }
        cursor.enter()?;
        if !self.known.get(self.last).is_some_and(|known| known.take(cursor)) {
            self.last = match self.known.iter().position(|known| known.take(cursor)) {
                Some(known) => known,
                None => self.learn_variant(cursor, &mut scratch.bytes)?,
            };
        }
        let variant = self.known[self.last].field.unwrap_or_default();
        // At most 256 variants.
        out.push(u8::try_from(variant).unwrap_or(u8::MAX));
        if self.other == Some(variant) && cursor.is_outermost() {
            cursor.skip_line();
            cursor.leave();
            return Ok(());
        }
        let plan = &mut self.variants[variant];
        let read = match plan.fields.as_mut_slice() {
            [] if self.other == Some(variant) => cursor.skip_value(),
            [] => Plan::Unit.read(cursor, out, scratch),
            [field] => field.read(cursor, out, scratch),
            fields => read_tuple(fields, cursor, out, scratch),
        };
        read.map_err(|error| error.within(&plan.name))?;
        cursor.skip_space();
        cursor.expect(b'}', "\"}\" behind the only variant")?;
        cursor.leave();
        Ok(())
    }

    fn skip_other_lines(&self, text: &[u8]) -> (usize, u32) {
        let (mut at, mut lines) = (0, 0);
        while let Some(window) = text.get(at..).and_then(|rest| rest.first_chunk()) {
            let is_other = |known: &ExpectedKey| known.field == self.other && known.begins(window);
            if !self.known.iter().any(is_other) {
                break;
            }
            match memchr::memchr(b'\n', &text[at..]) {
                Some(length) if length <= LINE_BYTES_MAX => at += length + 1,
                _ => break,
            }
            lines += 1;
        }
        (at, lines)
    }

    /// Reads the rest of a variant that is only a string.
    fn read_tag(&self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, scratch: &mut Scratch) -> Parsed<()> {
        let start = cursor.at - 1;
        scratch.bytes.clear();
        cursor.read_string(&mut scratch.bytes)?;
        let variant = self.find(cursor, start, &scratch.bytes)?;
        if !self.variants[variant].fields.is_empty() {
            let name = &self.variants[variant].name;
            return Err(cursor.error_at(start, format!("expected an object {{\"{name}\":…}}, found a string")));
        }
        out.push(u8::try_from(variant).unwrap_or(u8::MAX));
        Ok(())
    }

    /// Reads what an object of this type begins with; returns its place among the known.
    #[cold]
    fn learn_variant(&mut self, cursor: &mut Cursor<'_>, scratch: &mut Vec<u8>) -> Parsed<usize> {
        let start = cursor.at;
        cursor.expect(b'{', "an object with one key or a string")?;
        cursor.skip_space();
        let key_at = cursor.at;
        cursor.expect(b'"', "the name of a variant in quotes")?;
        scratch.clear();
        cursor.read_string(scratch)?;
        let variant = self.find(cursor, key_at, scratch)?;
        cursor.skip_colon()?;
        let known = ExpectedKey::new(&cursor.bytes()[start..cursor.at], Some(variant));
        if self.known.len() < KNOWN_VARIANTS_MAX {
            self.known.push(known);
            return Ok(self.known.len() - 1);
        }
        let place = (self.last + 1) % KNOWN_VARIANTS_MAX;
        self.known[place] = known;
        Ok(place)
    }

    fn find(&self, cursor: &Cursor<'_>, at: usize, name: &[u8]) -> Parsed<usize> {
        let known = self.variants.iter().position(|variant| variant.name.as_bytes() == name);
        known.or(self.other).ok_or_else(|| {
            let known: Vec<&str> = self.variants.iter().map(|variant| variant.name.as_str()).collect();
            let name = String::from_utf8_lossy(name);
            cursor.error_at(at, format!("unknown variant \"{name}\", expected one of {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests;
