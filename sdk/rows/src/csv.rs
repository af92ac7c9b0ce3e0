//! Reads lines of CSV into rows: only the columns that a record type names.
//!
//! A [`CsvReader`] is made once from a [`TypeDescriptor`] of a struct or tuple and
//! then reads line by line. The columns are found by position, or by the names
//! in a header line.
//!
//! | type                  | text of the column                                       |
//! |-----------------------|----------------------------------------------------------|
//! | `bool`                | `true`, `false`                                          |
//! | `char`                | one character                                            |
//! | `u8` … `i64`          | a whole number in range; a sign `+` and leading zeros may stand |
//! | `f32`, `f64`          | a number that does not overflow, `NaN` or `inf`          |
//! | `string`, `bytes`     | the text                                                 |
//! | `option<T>`           | nothing, not even quotes, or `T`                         |
//! | `Name[A\|B\|*C]`      | the name of a variant                                    |
//!
//! Quotes are as in RFC 4180: a column that begins with `"` ends at the next single
//! `"`, and `""` stands for a quote. A quote within an unquoted column is text.
//! Spaces around numbers and truth values do not count. A record is one line: a
//! quoted column that goes on over the end of the line is refused, because chunks
//! of a file begin at any line.

use std::fmt;

use crate::{
    descriptor::{TypeDescriptor, Variant},
    json::{LINE_BYTES_MAX, UnsupportedType},
};

/// Most columns of a line.
pub const COLUMNS_MAX: usize = 16_384;
/// Longest text shown in a message, in characters.
const SHOWN_MAX: usize = 40;

/// A line that is not CSV or does not fit the record type.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CsvError {
    /// Name of the field, or its index in a tuple; empty: the whole line.
    pub field: String,
    /// One-based number of the column.
    pub column: usize,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for CsvError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "column {}", self.column)?;
        if !self.field.is_empty() {
            write!(formatter, ", field \"{}\"", self.field)?;
        }
        write!(formatter, ": {}", self.problem)
    }
}

impl std::error::Error for CsvError {}

/// Reads lines of CSV into the payload of rows of one type.
///
/// ```
/// use engine_rows::{csv::CsvReader, descriptor::TypeDescriptor};
///
/// let bid = TypeDescriptor::parse("Bid{price:u32,channel:string}").expect("a descriptor");
/// let mut reader = CsvReader::new(&bid, b';').expect("a type that CSV can be read into");
/// reader.set_header("channel;url;price").expect("has all columns");
/// let mut row = Vec::new();
/// reader.read("\"Apple\";ignored;7", &mut row).expect("fits");
/// assert_eq!(row, b"\x07\0\0\0\x05\0\0\0Apple");
/// ```
#[derive(Clone, Debug)]
pub struct CsvReader {
    delimiter: u8,
    fields: Vec<Field>,
    /// Columns of the header, if there is one.
    header_columns: Option<usize>,
    /// Columns of the line that is being read.
    cells: Vec<Cell>,
    unquoted: Vec<u8>,
}

#[derive(Clone, Debug)]
struct Field {
    name: String,
    kind: Kind,
    optional: bool,
    /// Zero-based; none: the header has no such column.
    column: Option<usize>,
}

#[derive(Clone, Debug)]
enum Kind {
    Bool,
    Char,
    /// Bytes of the encoding, and the name of the type.
    Unsigned(usize, &'static str),
    Signed(usize, &'static str),
    F32,
    F64,
    /// `string` and `bytes`.
    Text,
    Sum(Vec<Variant>),
}

/// A column of a line, without its quotes.
#[derive(Clone, Copy, Debug)]
struct Cell {
    start: usize,
    end: usize,
    quotes: Quotes,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Quotes {
    None,
    Around,
    /// Around, and doubled ones within.
    Within,
}

impl CsvReader {
    /// A reader of records of the given type, whose columns stand in the order of the fields.
    ///
    /// # Errors
    /// Returns an error if the type is no struct or tuple of single values.
    pub fn new(record_type: &TypeDescriptor, delimiter: u8) -> Result<Self, UnsupportedType> {
        let fields = match record_type {
            TypeDescriptor::Struct { fields, .. } => {
                fields.iter().enumerate().map(|(index, (name, kind))| Field::new(name.clone(), index, kind)).collect()
            }
            TypeDescriptor::Tuple(elements) => {
                elements.iter().enumerate().map(|(index, kind)| Field::new(index.to_string(), index, kind)).collect()
            }
            _ => Err(unsupported(record_type, "a line of CSV becomes a struct or a tuple")),
        };
        Ok(Self { delimiter, fields: fields?, header_columns: None, cells: Vec::new(), unquoted: Vec::new() })
    }

    /// Finds the columns by the names that stand in a header line.
    ///
    /// # Errors
    /// Returns an error if the line is not CSV, or does not have the column of a
    /// field that is not optional exactly once.
    pub fn set_header(&mut self, line: &str) -> Result<(), CsvError> {
        self.split(line)?;
        let mut names = Vec::new();
        for cell in &self.cells {
            let mut name = Vec::new();
            cell.append_text(line, &mut name);
            names.push(name);
        }
        for field in &mut self.fields {
            let mut found = names.iter().enumerate().filter(|(_, name)| **name == field.name.as_bytes());
            field.column = found.next().map(|(index, _)| index);
            if let Some((index, _)) = found.next() {
                return Err(field.error(index, "the header has the column twice"));
            }
            if field.column.is_none() && !field.optional {
                let listed = names.iter().map(|name| String::from_utf8_lossy(name)).collect::<Vec<_>>().join(", ");
                return Err(field.error(0, format!("the header has no such column, only {}", shown(&listed))));
            }
        }
        self.header_columns = Some(names.len());
        Ok(())
    }

    /// Appends the payload of the record on `line`, which has no line end, to `out`.
    ///
    /// # Errors
    /// Returns an error, and leaves `out` as it was, if the line is not CSV or does
    /// not fit the type.
    pub fn read(&mut self, line: &str, out: &mut Vec<u8>) -> Result<(), CsvError> {
        let start = out.len();
        self.read_line(line, out).inspect_err(|_| out.truncate(start))
    }

    fn read_line(&mut self, line: &str, out: &mut Vec<u8>) -> Result<(), CsvError> {
        self.split(line)?;
        let columns = self.cells.len();
        if let Some(expected) = self.header_columns.filter(|expected| *expected != columns) {
            return Err(whole(columns, format!("the line has {columns} columns, the header {expected}")));
        }
        for field in &self.fields {
            let cell = field.column.and_then(|column| self.cells.get(column));
            match cell {
                Some(cell) if !(field.optional && cell.is_empty()) => {
                    if field.optional {
                        out.push(1);
                    }
                    field.read(*cell, line, out, &mut self.unquoted)?;
                }
                _ if field.optional => out.push(0),
                _ => {
                    let problem = format!("the column is missing, the line has only {columns}");
                    return Err(field.error(field.column.unwrap_or(0), problem));
                }
            }
        }
        Ok(())
    }

    /// Finds the columns of a line.
    fn split(&mut self, line: &str) -> Result<(), CsvError> {
        self.cells.clear();
        if line.len() > LINE_BYTES_MAX {
            return Err(whole(1, format!("the line is longer than {LINE_BYTES_MAX} bytes")));
        }
        let bytes = line.as_bytes();
        let mut start = 0;
        loop {
            let column = self.cells.len() + 1;
            if column > COLUMNS_MAX {
                return Err(whole(column, format!("the line has more than {COLUMNS_MAX} columns")));
            }
            let end = match bytes.get(start) {
                Some(b'"') => {
                    let (cell, end) = quoted_cell(bytes, start).ok_or_else(|| {
                        whole(column, "the quotes are not closed on this line, and a record is one line".to_owned())
                    })?;
                    self.cells.push(cell);
                    end
                }
                _ => {
                    let rest = &bytes[start..];
                    let end = memchr::memchr(self.delimiter, rest).map_or(bytes.len(), |found| start + found);
                    self.cells.push(Cell { start, end, quotes: Quotes::None });
                    end
                }
            };
            match bytes.get(end) {
                None => return Ok(()),
                Some(byte) if *byte == self.delimiter => start = end + 1,
                Some(_) => return Err(whole(column, "text behind the closing quote".to_owned())),
            }
        }
    }
}

/// The cell whose opening quote stands at `start`, and where it ends behind its closing one.
fn quoted_cell(bytes: &[u8], start: usize) -> Option<(Cell, usize)> {
    let mut quotes = Quotes::Around;
    let mut at = start + 1;
    loop {
        let end = at + memchr::memchr(b'"', bytes.get(at..)?)?;
        if bytes.get(end + 1) != Some(&b'"') {
            return Some((Cell { start: start + 1, end, quotes }, end + 1));
        }
        quotes = Quotes::Within;
        at = end + 2;
    }
}

/// An error about a line as a whole.
fn whole(column: usize, problem: String) -> CsvError {
    CsvError { field: String::new(), column, problem }
}

fn unsupported(descriptor: &TypeDescriptor, problem: &'static str) -> UnsupportedType {
    UnsupportedType { descriptor: descriptor.to_string(), problem }
}

/// The text, shortened for a message.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_MAX) {
        None => text.to_owned(),
        Some((end, _)) => format!("{}…", &text[..end]),
    }
}

impl Cell {
    fn is_empty(&self) -> bool {
        self.start == self.end && self.quotes == Quotes::None
    }

    fn append_text(&self, line: &str, out: &mut Vec<u8>) {
        let text = &line.as_bytes()[self.start..self.end];
        if self.quotes != Quotes::Within {
            out.extend_from_slice(text);
            return;
        }
        let mut quote_before = false;
        for byte in text {
            // The second one of each pair is left out.
            quote_before = *byte == b'"' && !quote_before;
            if *byte != b'"' || quote_before {
                out.push(*byte);
            }
        }
    }
}

impl Field {
    fn new(name: String, index: usize, descriptor: &TypeDescriptor) -> Result<Self, UnsupportedType> {
        let (descriptor, optional) = match descriptor {
            TypeDescriptor::Option(element) => (&**element, true),
            other => (other, false),
        };
        let kind = match descriptor {
            TypeDescriptor::Bool => Kind::Bool,
            TypeDescriptor::Char => Kind::Char,
            TypeDescriptor::U8 => Kind::Unsigned(1, "u8"),
            TypeDescriptor::U16 => Kind::Unsigned(2, "u16"),
            TypeDescriptor::U32 => Kind::Unsigned(4, "u32"),
            TypeDescriptor::U64 => Kind::Unsigned(8, "u64"),
            TypeDescriptor::I8 => Kind::Signed(1, "i8"),
            TypeDescriptor::I16 => Kind::Signed(2, "i16"),
            TypeDescriptor::I32 => Kind::Signed(4, "i32"),
            TypeDescriptor::I64 => Kind::Signed(8, "i64"),
            TypeDescriptor::F32 => Kind::F32,
            TypeDescriptor::F64 => Kind::F64,
            TypeDescriptor::String | TypeDescriptor::Bytes => Kind::Text,
            TypeDescriptor::Sum { variants, .. } if variants.iter().all(|variant| variant.fields.is_empty()) => {
                Kind::Sum(variants.clone())
            }
            _ => return Err(unsupported(descriptor, "a column of CSV holds a single value")),
        };
        Ok(Self { name, kind, optional, column: Some(index) })
    }

    #[cold]
    fn error(&self, column: usize, problem: impl Into<String>) -> CsvError {
        CsvError { field: self.name.clone(), column: column + 1, problem: problem.into() }
    }

    #[inline]
    fn read(&self, cell: Cell, line: &str, out: &mut Vec<u8>, unquoted: &mut Vec<u8>) -> Result<(), CsvError> {
        if let Kind::Text = self.kind {
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            cell.append_text(line, out);
            let length = u32::try_from(out.len() - start - 4).expect("no longer than the line");
            out[start..start + 4].copy_from_slice(&length.to_le_bytes());
            return Ok(());
        }
        let text = match cell.quotes {
            Quotes::Within => {
                unquoted.clear();
                cell.append_text(line, unquoted);
                std::str::from_utf8(unquoted).unwrap_or_default()
            }
            Quotes::None | Quotes::Around => &line[cell.start..cell.end],
        };
        self.read_value(text, out).map_err(|expected| {
            let column = self.column.unwrap_or(0);
            self.error(column, format!("expected {expected}, found \"{}\"", shown(text)))
        })
    }

    /// Appends the encoding of a value other than text, or says what was expected.
    #[inline]
    fn read_value(&self, text: &str, out: &mut Vec<u8>) -> Result<(), String> {
        let trimmed = text.trim_matches([' ', '\t']);
        match &self.kind {
            Kind::Bool => out.push(match trimmed {
                "true" => 1,
                "false" => 0,
                _ => return Err("true or false".to_owned()),
            }),
            Kind::Char => {
                let mut characters = text.chars();
                let (Some(character), None) = (characters.next(), characters.next()) else {
                    return Err("one character".to_owned());
                };
                out.extend_from_slice(&u32::from(character).to_le_bytes());
            }
            Kind::Unsigned(width, name) => {
                let max = u64::MAX >> (64 - 8 * width);
                let value = trimmed.parse().ok().filter(|value: &u64| *value <= max);
                let value = value.ok_or_else(|| format!("{name}, a whole number from 0 to {max}"))?;
                out.extend_from_slice(&value.to_le_bytes()[..*width]);
            }
            Kind::Signed(width, name) => {
                let max = i64::MAX >> (64 - 8 * width);
                let value = trimmed.parse().ok().filter(|value: &i64| (-max - 1..=max).contains(value));
                let value = value.ok_or_else(|| format!("{name}, a whole number from {} to {max}", -max - 1))?;
                out.extend_from_slice(&value.to_le_bytes()[..*width]);
            }
            Kind::F32 => {
                let value = trimmed.parse().ok().filter(|value: &f32| !overflows(trimmed, value.is_infinite()));
                out.extend_from_slice(&value.ok_or("f32, a number")?.to_le_bytes());
            }
            Kind::F64 => {
                let value = trimmed.parse().ok().filter(|value: &f64| !overflows(trimmed, value.is_infinite()));
                out.extend_from_slice(&value.ok_or("f64, a number")?.to_le_bytes());
            }
            Kind::Text => {}
            Kind::Sum(variants) => {
                let known = variants.iter().position(|variant| variant.name == text);
                let variant = known.or_else(|| variants.iter().position(|variant| variant.other));
                let Some(index) = variant.and_then(|index| u8::try_from(index).ok()) else {
                    let known: Vec<&str> = variants.iter().map(|variant| variant.name.as_str()).collect();
                    return Err(format!("one of {}", known.join(", ")));
                };
                out.push(index);
            }
        }
        Ok(())
    }
}

/// True if the number became infinite without saying so.
fn overflows(text: &str, infinite: bool) -> bool {
    infinite && text.bytes().any(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use proptest::{collection, prelude::*};

    use super::*;

    fn reader(descriptor: &str) -> CsvReader {
        let descriptor = TypeDescriptor::parse(descriptor).expect("a descriptor");
        CsvReader::new(&descriptor, b',').expect("a type for CSV")
    }

    fn read(reader: &mut CsvReader, line: &str) -> Result<Vec<u8>, String> {
        let mut out = b"before".to_vec();
        match reader.read(line, &mut out) {
            Ok(()) => Ok(out.split_off(6)),
            Err(error) => {
                assert_eq!(out, b"before", "an error leaves the output as it was");
                Err(error.to_string())
            }
        }
    }

    #[test]
    fn single_values_are_encoded_as_described() {
        for (descriptor, text, expected) in [
            ("bool", " true", &[1][..]),
            ("char", "\u{e9}", &[0xe9, 0, 0, 0]),
            ("u8", "+007", &[7]),
            ("i16", " -32768 ", &[0, 0x80]),
            ("u64", "18446744073709551615", &[0xff; 8]),
            ("i64", "-9223372036854775808", &i64::MIN.to_le_bytes()),
            ("f32", "0.5", &0.5_f32.to_le_bytes()),
            ("f64", "-inf", &f64::NEG_INFINITY.to_le_bytes()),
            ("string", " a b ", b"\x05\0\0\0 a b "),
            ("string", "", b"\0\0\0\0"),
            ("bytes", "\"a\"\"b,\"", b"\x04\0\0\0a\"b,"),
            ("string", "a\"b", b"\x03\0\0\0a\"b"),
            ("option<string>", "", &[0]),
            ("option<string>", "\"\"", &[1, 0, 0, 0, 0]),
            ("option<u8>", "5", &[1, 5]),
            ("S[A|B|*C]", "B", &[1]),
            ("S[A|B|*C]", "x", &[2]),
            ("u16", "\"1\"", &[1, 0]),
        ] {
            let mut reader = reader(&format!("tuple({descriptor})"));
            assert_eq!(read(&mut reader, text), Ok(expected.to_vec()), "{descriptor} from {text}");
        }
    }

    #[test]
    fn columns_are_found_by_position_or_by_name() {
        let mut by_position = reader("T{a:u8,b:option<u8>}");
        assert_eq!(read(&mut by_position, "1,2"), Ok(vec![1, 1, 2]));
        assert_eq!(read(&mut by_position, "1,2,3"), Ok(vec![1, 1, 2]), "columns that nobody asked for");
        assert_eq!(read(&mut by_position, "1"), Ok(vec![1, 0]));
        let mut by_name = reader("T{a:u8,b:option<u8>,c:option<u8>}");
        by_name.set_header("x,\"b\",a").expect("has all columns");
        assert_eq!(read(&mut by_name, "9,2,1"), Ok(vec![1, 1, 2, 0]));
        assert_eq!(read(&mut by_name, "9,,1"), Ok(vec![1, 0, 0]));
    }

    #[test]
    fn messages_name_field_and_column() {
        let bid = "Bid{price:u16,channel:string,kind:S[A|B],rate:f64}";
        for (line, expected) in [
            ("", "column 1, field \"price\": expected u16, a whole number from 0 to 65535, found \"\""),
            ("-1,a,A,0", "column 1, field \"price\": expected u16, a whole number from 0 to 65535, found \"-1\""),
            ("65536,a,A,0", "column 1, field \"price\": expected u16, a whole number from 0 to 65535, found \"65536\""),
            ("1,a,X,0", "column 3, field \"kind\": expected one of A, B, found \"X\""),
            ("1,a,A,1e999", "column 4, field \"rate\": expected f64, a number, found \"1e999\""),
            ("1,a", "column 3, field \"kind\": the column is missing, the line has only 2"),
            ("1,\"a", "column 2: the quotes are not closed on this line, and a record is one line"),
            ("1,\"a\"\"", "column 2: the quotes are not closed on this line, and a record is one line"),
            ("1,\"a\"b,A,0", "column 2: text behind the closing quote"),
        ] {
            assert_eq!(read(&mut reader(bid), line), Err(expected.to_owned()), "{line}");
        }
        let many = ",".repeat(COLUMNS_MAX);
        let expected = format!("column {}: the line has more than {COLUMNS_MAX} columns", COLUMNS_MAX + 1);
        assert_eq!(read(&mut reader("tuple(string)"), &many), Err(expected));
    }

    #[test]
    fn headers_that_do_not_fit_are_refused() {
        let mut reader = reader("T{a:u8,b:u8}");
        let error = reader.set_header("a,c").expect_err("no b").to_string();
        assert_eq!(error, "column 1, field \"b\": the header has no such column, only a, c");
        let error = reader.set_header("a,b,b").expect_err("b twice").to_string();
        assert_eq!(error, "column 3, field \"b\": the header has the column twice");
        reader.set_header("a,b,c").expect("has all columns");
        assert_eq!(read(&mut reader, "1,2"), Err("column 2: the line has 2 columns, the header 3".to_owned()));
    }

    #[test]
    fn types_that_do_not_fit_csv_are_refused() {
        for (descriptor, expected) in [
            ("u8", "type u8: a line of CSV becomes a struct or a tuple"),
            ("tuple(list<u8>)", "type list<u8>: a column of CSV holds a single value"),
            ("T{a:option<option<u8>>}", "type option<u8>: a column of CSV holds a single value"),
        ] {
            let descriptor = TypeDescriptor::parse(descriptor).expect("a descriptor");
            assert_eq!(CsvReader::new(&descriptor, b',').expect_err("refused").to_string(), expected);
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read_again(
            columns in collection::vec(("[ab,;\"\u{e9} ]{0,6}", any::<bool>()), 1..6),
            delimiter in prop::sample::select(vec![b',', b';', b'\t']),
        ) {
            let character = char::from(delimiter);
            let written = columns.iter().map(|(text, quote)| {
                if *quote || text.starts_with('"') || text.contains(character) {
                    format!("\"{}\"", text.replace('"', "\"\""))
                } else {
                    text.clone()
                }
            });
            let line = written.collect::<Vec<_>>().join(&character.to_string());
            let descriptor = TypeDescriptor::Tuple(vec![TypeDescriptor::String; columns.len()]);
            let mut reader = CsvReader::new(&descriptor, delimiter).expect("a type for CSV");
            let expected: Vec<u8> = columns
                .iter()
                .flat_map(|(text, _)| [&u32::try_from(text.len()).expect("short").to_le_bytes(), text.as_bytes()].concat())
                .collect();
            prop_assert_eq!(read(&mut reader, &line), Ok(expected), "{}", line);
        }

        #[test]
        fn any_text_is_survived(line in any::<String>()) {
            let mut reader = reader("T{a:string,b:option<i32>,c:option<char>}");
            let _judged = read(&mut reader, &line);
            let _judged = reader.set_header(&line);
        }
    }
}
