//! Makes record batches of blocks of lines: text as it is, or rows by the
//! projecting readers of JSON and CSV.
//!
//! Text is handed on in the buffer it was read into. Blank lines are records of
//! the format `lines` and are passed over in the other two.

use std::{collections::VecDeque, mem};

use engine_rows::{
    csv::CsvReader,
    descriptor::TypeDescriptor,
    json::{JsonReader, LINE_BYTES_MAX, UnsupportedType},
    row::{self, HEADER_BYTES, NO_TIMESTAMP},
};

use super::{ConnectorError, Role, options::Options};
use crate::{
    base::stream_element::{BatchKind, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// Options of every source that reads text.
pub(super) const FORMAT_OPTIONS: [&str; 4] = ["format", "csv-delimiter", "csv-header", "json-skip-other"];

const BYTE_ORDER_MARK: char = '\u{feff}';

/// Room for the row that makes a batch full: without it, most batches would be copied to
/// twice the room for their last row.
const LAST_ROW_BYTES: usize = 1 << 10;

/// How lines are decoded.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Format {
    Lines,
    Json { skip_other: bool },
    Csv { delimiter: u8, header: bool },
}

impl Format {
    pub(super) fn parse(options: &Options<'_>) -> Result<Self, ConnectorError> {
        let delimiter = match options.text("csv-delimiter") {
            None => b',',
            Some("\\t" | "tab") => b'\t',
            Some(text) => match text.as_bytes() {
                [byte] if byte.is_ascii() && !b"\"\r\n".contains(byte) => *byte,
                _ => {
                    return Err(
                        options.error("csv-delimiter", format!("expected one ASCII character, found \"{text}\""))
                    );
                }
            },
        };
        let header = options.value::<bool>("csv-header")?.unwrap_or(false);
        let skip_other = options.value::<bool>("json-skip-other")?.unwrap_or(false);
        let formats =
            [("lines", Self::Lines), ("json", Self::Json { skip_other }), ("csv", Self::Csv { delimiter, header })];
        let format = options.choice("format", &formats)?;
        let of_one_format = [("csv-delimiter", "csv"), ("csv-header", "csv"), ("json-skip-other", "json")];
        let is_misplaced =
            |(option, of): &(&str, &str)| options.text(option).is_some() && options.text("format") != Some(*of);
        match of_one_format.into_iter().find(is_misplaced) {
            Some((option, of)) => Err(options.error(option, format!("is for format {of} only"))),
            None => Ok(format),
        }
    }
}

/// A line that does not fit the record type.
#[derive(Debug)]
pub(super) struct Refused<'a> {
    /// In bytes from the start of the file or stream.
    pub(super) offset: u64,
    /// Lines of the split before this one.
    pub(super) lines_before: u64,
    pub(super) message: &'a str,
    pub(super) payload: &'a [u8],
    /// A header: without it, none of the lines behind it can be read.
    pub(super) is_header: bool,
}

/// Decides over a refused line: an error ends decoding.
pub(super) type Refuse<'a> = dyn FnMut(Refused<'_>) -> Result<(), ConnectorError> + 'a;

/// Decodes the lines of one split after the other.
#[derive(Debug)]
pub(super) struct RecordDecoder {
    kind: Kind,
    /// Longer rows are refused.
    row_bytes_max: usize,
    /// Rows of this variant are left out.
    skipped: Option<u8>,
    /// What the header needs to be read, if there is one.
    header: bool,
    /// The next line is the header.
    header_expected: bool,
    /// Lines of the split that were decoded or refused.
    lines: u64,
    /// Lines of the split before the last batch.
    lines_before_batch: u64,
    /// For each line of the last batch that gave no row: the number of rows before it.
    gaps: Vec<u32>,
    /// Lines that were taken out of the undecoded text.
    removed: VecDeque<Removed>,
}

/// A line that was taken out of the text that is still to be decoded.
#[derive(Debug)]
struct Removed {
    /// Lines before it that are left there.
    lines_before: u64,
    /// Its length, its end included.
    bytes: u64,
}

#[derive(Debug)]
enum Kind {
    /// Lines that are handed on.
    Text(Unsplit),
    /// As [`Kind::Text`], but not of UTF-8: each line becomes a row.
    Bytes(Unsplit),
    Json(Box<JsonReader>, Undecoded),
    Csv(Box<CsvReader>, Undecoded),
}

/// Lines as they were read, each ended by `\n`, but for those that were refused; taken up to `at`.
#[derive(Debug, Default)]
struct Unsplit {
    lines: Vec<u8>,
    at: usize,
    /// Offset of the first line that was not taken, a refused one included, in the file or stream.
    offset: u64,
}

impl Unsplit {
    fn is_empty(&self) -> bool {
        self.at == self.lines.len()
    }

    /// Takes whole lines. All of them, as is usual, are not copied.
    fn take(&mut self, bytes: usize) -> Vec<u8> {
        let end = self.at + bytes;
        if self.at == 0 && end == self.lines.len() {
            return mem::take(&mut self.lines);
        }
        let taken = self.lines[self.at..end].to_vec();
        self.at = end;
        if self.is_empty() {
            self.lines = Vec::new();
            self.at = 0;
        }
        taken
    }
}

/// Lines of UTF-8, each ended by `\n`, decoded up to `at`.
#[derive(Debug, Default)]
struct Undecoded {
    text: String,
    at: usize,
    /// Offset of the text in the file or stream.
    offset: u64,
}

impl Undecoded {
    fn next_offset(&self) -> u64 {
        // The byte order mark belongs to the first line.
        if self.offset == 0 && self.at == BYTE_ORDER_MARK.len_utf8() && self.text.starts_with(BYTE_ORDER_MARK) {
            return 0;
        }
        self.offset + self.at as u64
    }
}

impl RecordDecoder {
    /// # Errors
    /// Returns an error if records of the type cannot be read in the format.
    pub(super) fn new(
        format: Format,
        record_type: &str,
        spec: &ConnectorSpec,
        row_bytes_max: usize,
    ) -> Result<Self, ConnectorError> {
        let error = |problem: String| ConnectorError::Option {
            connector: format!("{} {}", spec.name, Role::Source.word()),
            option: "format".to_owned(),
            problem,
        };
        let descriptor = TypeDescriptor::parse(record_type).map_err(|parse| error(parse.to_string()))?;
        let unsupported = |problem: UnsupportedType| error(problem.to_string());
        let kind = match (format, &descriptor) {
            (Format::Lines, TypeDescriptor::String) => Kind::Text(Unsplit::default()),
            (Format::Lines, TypeDescriptor::Bytes) => Kind::Bytes(Unsplit::default()),
            (Format::Lines, _) => {
                return Err(error(format!("lines are text, but the records are {record_type}: set it to json or csv")));
            }
            (Format::Json { .. }, _) => {
                Kind::Json(Box::new(JsonReader::new(&descriptor).map_err(unsupported)?), Undecoded::default())
            }
            (Format::Csv { delimiter, .. }, _) => {
                let reader = CsvReader::new(&descriptor, delimiter).map_err(unsupported)?;
                Kind::Csv(Box::new(reader), Undecoded::default())
            }
        };
        let header = matches!(format, Format::Csv { header: true, .. });
        let skipped = match format {
            Format::Json { skip_other: true } => Some(other_variant(&descriptor).ok_or_else(|| {
                let problem = format!("the records are {record_type}, and have no variant marked #[record(other)]");
                Options::unchecked(spec, Role::Source).error("json-skip-other", problem)
            })?),
            _ => None,
        };
        Ok(Self {
            kind,
            row_bytes_max,
            skipped,
            header,
            header_expected: false,
            lines: 0,
            lines_before_batch: 0,
            gaps: Vec::new(),
            removed: VecDeque::new(),
        })
    }

    /// Longest line that need be read: where lines are rows, that of a row.
    pub(super) fn line_bytes_max(&self) -> usize {
        match self.kind {
            Kind::Text(_) | Kind::Bytes(_) => self.row_bytes_max,
            Kind::Json(..) | Kind::Csv(..) => LINE_BYTES_MAX,
        }
    }

    /// What is wrong with a line longer than [`RecordDecoder::line_bytes_max`].
    pub(super) fn long_line_message(&self) -> String {
        match self.kind {
            Kind::Text(_) | Kind::Bytes(_) => too_long("line", self.row_bytes_max),
            Kind::Json(..) | Kind::Csv(..) => format!("the line is longer than {LINE_BYTES_MAX} bytes"),
        }
    }

    /// Begins with the lines of another split, which starts with its file or stream, or within it.
    pub(super) fn begin(&mut self, at_start: bool) {
        self.lines = 0;
        self.removed.clear();
        self.header_expected = self.header && at_start;
    }

    /// True if the names of the columns stand in the first line of each file.
    pub(super) fn has_header(&self) -> bool {
        self.header
    }

    /// Takes the header of the file, for a split that does not start with it.
    ///
    /// # Errors
    /// Returns what is wrong with the header.
    pub(super) fn set_header(&mut self, line: &[u8]) -> Result<(), String> {
        match &mut self.kind {
            Kind::Csv(reader, _) => set_header(reader, line),
            Kind::Text(_) | Kind::Bytes(_) | Kind::Json(..) => Ok(()),
        }
    }

    /// True if blocks are better larger than the batches that are asked for.
    pub(super) fn shrinks(&self) -> bool {
        matches!(self.kind, Kind::Json(..) | Kind::Csv(..))
    }

    /// True if all lines were decoded.
    pub(super) fn is_empty(&self) -> bool {
        match &self.kind {
            Kind::Text(lines) | Kind::Bytes(lines) => lines.is_empty(),
            Kind::Json(_, undecoded) | Kind::Csv(_, undecoded) => undecoded.at == undecoded.text.len(),
        }
    }

    /// Offset of the first line that was not decoded, in the file or stream; none: all were.
    pub(super) fn next_offset(&self) -> Option<u64> {
        if self.is_empty() {
            return None;
        }
        match &self.kind {
            Kind::Text(unsplit) | Kind::Bytes(unsplit) => Some(unsplit.offset),
            Kind::Json(_, undecoded) | Kind::Csv(_, undecoded) => Some(undecoded.next_offset()),
        }
    }

    /// The buffer of a block that was decoded, if it was not handed on.
    pub(super) fn take_buffer(&mut self) -> Vec<u8> {
        match &mut self.kind {
            Kind::Json(_, undecoded) | Kind::Csv(_, undecoded) if undecoded.at == undecoded.text.len() => {
                mem::take(undecoded).text.into_bytes()
            }
            _ => Vec::new(),
        }
    }

    /// Lines of the split that were decoded or refused.
    pub(super) fn lines(&self) -> u64 {
        self.lines
    }

    /// Lines of the split before the line of a row of the last batch.
    pub(super) fn lines_before_row(&self, row: u32) -> u64 {
        let gaps = self.gaps.partition_point(|rows_before| *rows_before <= row);
        self.lines_before_batch + u64::from(row) + gaps as u64
    }

    /// Counts a line of the split that was left out before.
    pub(super) fn count_line(&mut self) {
        self.lines += 1;
    }

    /// Takes whole lines, the first of which starts at `offset`. All lines before must be decoded.
    pub(super) fn push(
        &mut self,
        mut lines: Vec<u8>,
        offset: u64,
        refuse: &mut Refuse<'_>,
    ) -> Result<(), ConnectorError> {
        debug_assert!(self.is_empty(), "blocks are decoded one after the other");
        self.lines += self.removed.len() as u64;
        self.removed.clear();
        let is_text = matches!(self.kind, Kind::Text(_));
        match &mut self.kind {
            Kind::Text(block) | Kind::Bytes(block) => {
                // No line can be longer than the block, so only long blocks are walked over.
                block.offset = offset;
                let is_bad =
                    self.row_bytes_max < lines.len() || (is_text && simdutf8::basic::from_utf8(&lines).is_err());
                if is_bad {
                    let lines_before = self.lines;
                    let removed = &mut self.removed;
                    let read = &lines[..];
                    let judge = |line: &[u8]| {
                        if self.row_bytes_max < line.len() {
                            return Some(too_long("line", self.row_bytes_max));
                        }
                        std::str::from_utf8(line).err().filter(|_| is_text).map(|error| bad_utf8_message(&error))
                    };
                    let kept = without_bad(read, &judge, &mut |index, at, line, message| {
                        let line_end = memchr::memchr(b'\n', &read[at..]).map_or(read.len() - at, |end| end + 1);
                        let left_before = index - removed.len() as u64;
                        removed.push_back(Removed { lines_before: left_before, bytes: line_end as u64 });
                        refuse(Refused {
                            offset: offset + at as u64,
                            lines_before: lines_before + index,
                            message,
                            payload: line,
                            is_header: false,
                        })
                    })?;
                    lines = kept;
                }
                block.lines = lines;
                block.at = 0;
            }
            Kind::Json(_, undecoded) | Kind::Csv(_, undecoded) => {
                let text = match text_of(lines) {
                    Ok(text) => text,
                    Err(lines) => {
                        let lines_before = self.lines;
                        blank_bad_utf8(lines, &mut |index, at, line, message| {
                            refuse(Refused {
                                offset: offset + at as u64,
                                lines_before: lines_before + index,
                                message,
                                payload: line,
                                is_header: false,
                            })
                        })?
                    }
                };
                // A byte order mark is no part of the first line.
                let has_mark = offset == 0 && text.starts_with(BYTE_ORDER_MARK);
                let at = if has_mark { BYTE_ORDER_MARK.len_utf8() } else { 0 };
                *undecoded = Undecoded { text, at, offset };
            }
        }
        Ok(())
    }

    /// Decodes at most `rows_max` rows and about `bytes_max` bytes. The batch is
    /// empty if none of the lines became a row.
    pub(super) fn decode(
        &mut self,
        rows_max: u64,
        bytes_max: usize,
        refuse: &mut Refuse<'_>,
    ) -> Result<RecordBatch, ConnectorError> {
        self.lines_before_batch = self.lines;
        self.gaps.clear();
        let is_text = matches!(self.kind, Kind::Text(_));
        let limits = Limits { rows_max, bytes_max, row_bytes_max: self.row_bytes_max, skipped: self.skipped };
        match &mut self.kind {
            Kind::Text(block) | Kind::Bytes(block) => {
                let (count, cut) = leading_lines(&block.lines[block.at..], rows_max);
                block.offset += cut as u64;
                // A line that was taken out behind the last row of the batch belongs to it too.
                while let Some(removed) = self.removed.pop_front_if(|line| line.lines_before <= u64::from(count)) {
                    block.offset += removed.bytes;
                    self.gaps.push(u32::try_from(removed.lines_before).expect("at most the batch's count"));
                }
                self.removed.iter_mut().for_each(|removed| removed.lines_before -= u64::from(count));
                self.lines += u64::from(count) + self.gaps.len() as u64;
                let mut taken = block.take(cut);
                normalize_line_ends(&mut taken);
                if is_text {
                    return Ok(RecordBatch { kind: BatchKind::Lines, count, data: taken.into() });
                }
                let mut data = Vec::new();
                for line in taken.split_inclusive(|byte| *byte == b'\n') {
                    let line = line.strip_suffix(b"\n").unwrap_or(line);
                    row::append_with(&mut data, 0, NO_TIMESTAMP, |data| data.extend_from_slice(line));
                }
                Ok(RecordBatch { kind: BatchKind::Rows, count, data: data.into() })
            }
            Kind::Json(reader, undecoded) => {
                let mut progress =
                    Progress { lines: &mut self.lines, gaps: &mut self.gaps, header_expected: &mut false };
                decode_text(undecoded, &mut progress, limits, refuse, &mut **reader)
            }
            Kind::Csv(reader, undecoded) => {
                let mut progress = Progress {
                    lines: &mut self.lines,
                    gaps: &mut self.gaps,
                    header_expected: &mut self.header_expected,
                };
                decode_text(undecoded, &mut progress, limits, refuse, &mut **reader)
            }
        }
    }
}

/// Reads lines of one format.
trait LineReader {
    /// Appends the payload of the first line of a text and returns the line's length, if that
    /// can be had without searching for the line's end.
    fn read_first_line(&mut self, text: &str, data: &mut Vec<u8>) -> Option<usize>;

    /// Passes over the first lines of a text that fall to a variant of which no rows are wanted;
    /// returns their length and number. Not all such lines need be found.
    fn skip_lines(&self, text: &str) -> (usize, u32);

    /// Reads a line, of which is said whether it is the header, and appends its payload.
    fn read(&mut self, line: &str, is_header: bool, data: &mut Vec<u8>) -> Result<Decoded, String>;
}

impl LineReader for JsonReader {
    #[inline]
    fn read_first_line(&mut self, text: &str, data: &mut Vec<u8>) -> Option<usize> {
        JsonReader::read_first_line(self, text, data)
    }

    #[inline]
    fn skip_lines(&self, text: &str) -> (usize, u32) {
        self.skip_other_lines(text)
    }

    fn read(&mut self, line: &str, _is_header: bool, data: &mut Vec<u8>) -> Result<Decoded, String> {
        if line.bytes().all(|byte| byte.is_ascii_whitespace()) {
            return Ok(Decoded::Nothing);
        }
        JsonReader::read(self, line, data).map(|()| Decoded::Row).map_err(|error| error.to_string())
    }
}

impl LineReader for CsvReader {
    fn read_first_line(&mut self, _text: &str, _data: &mut Vec<u8>) -> Option<usize> {
        None
    }

    fn skip_lines(&self, _text: &str) -> (usize, u32) {
        (0, 0)
    }

    fn read(&mut self, line: &str, is_header: bool, data: &mut Vec<u8>) -> Result<Decoded, String> {
        if is_header {
            return set_header(self, line.as_bytes()).map(|()| Decoded::Nothing);
        }
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.bytes().all(|byte| byte == b' ') {
            return Ok(Decoded::Nothing);
        }
        CsvReader::read(self, line, data).map(|()| Decoded::Row).map_err(|error| error.to_string())
    }
}

/// How much is decoded at a time, and what of it becomes rows.
#[derive(Clone, Copy)]
struct Limits {
    rows_max: u64,
    bytes_max: usize,
    /// Of one row, without its header.
    row_bytes_max: usize,
    /// Rows of this variant are left out.
    skipped: Option<u8>,
}

/// What of a decoder changes line by line.
struct Progress<'a> {
    lines: &'a mut u64,
    gaps: &'a mut Vec<u32>,
    header_expected: &'a mut bool,
}

/// What became of a line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Decoded {
    Row,
    Nothing,
}

fn decode_text(
    undecoded: &mut Undecoded,
    progress: &mut Progress<'_>,
    limits: Limits,
    refuse: &mut Refuse<'_>,
    reader: &mut impl LineReader,
) -> Result<RecordBatch, ConnectorError> {
    let wanted = limits.bytes_max.saturating_add(LAST_ROW_BYTES);
    let mut data = Vec::with_capacity(wanted.min(undecoded.text.len() - undecoded.at));
    let mut count: u32 = 0;
    let is_too_long = |data: &[u8], row_start: usize| limits.row_bytes_max < data.len() - row_start - HEADER_BYTES;
    let is_skipped = |data: &[u8], row_start: usize| {
        limits.skipped.is_some_and(|variant| data.get(row_start + HEADER_BYTES) == Some(&variant))
    };
    while u64::from(count) < limits.rows_max && data.len() < limits.bytes_max {
        if limits.skipped.is_some() {
            let (length, lines) = reader.skip_lines(&undecoded.text[undecoded.at..]);
            undecoded.at += length;
            *progress.lines += u64::from(lines);
            progress.gaps.resize(progress.gaps.len() + lines as usize, count);
        }
        let text = &undecoded.text[undecoded.at..];
        let row_start = data.len();
        let mut first_line = None;
        row::append_with(&mut data, 0, NO_TIMESTAMP, |data| first_line = reader.read_first_line(text, data));
        if let Some(length) = first_line
            && !is_too_long(&data, row_start)
        {
            undecoded.at += length + 1;
            *progress.lines += 1;
            if is_skipped(&data, row_start) {
                data.truncate(row_start);
                progress.gaps.push(count);
            } else {
                count += 1;
            }
            continue;
        }
        data.truncate(row_start);
        let Some(length) = memchr::memchr(b'\n', text.as_bytes()) else { break };
        let line = &text[..length];
        let offset = undecoded.offset + undecoded.at as u64;
        undecoded.at += length + 1;
        let is_header = mem::take(progress.header_expected);
        let mut decoded = Ok(Decoded::Nothing);
        row::append_with(&mut data, 0, NO_TIMESTAMP, |data| decoded = reader.read(line, is_header, data));
        if decoded == Ok(Decoded::Row) && is_too_long(&data, row_start) {
            decoded = Err(too_long("row", limits.row_bytes_max));
        }
        if decoded == Ok(Decoded::Row) && is_skipped(&data, row_start) {
            decoded = Ok(Decoded::Nothing);
        }
        if let Ok(Decoded::Row) = decoded {
            count += 1;
        } else {
            data.truncate(row_start);
            progress.gaps.push(count);
        }
        if let Err(message) = decoded {
            let (lines_before, payload) = (*progress.lines, line.as_bytes());
            refuse(Refused { offset, lines_before, message: &message, payload, is_header })?;
        }
        *progress.lines += 1;
    }
    Ok(RecordBatch { kind: BatchKind::Rows, count, data: data.into() })
}

/// Place of the variant that records of other kinds become.
fn other_variant(descriptor: &TypeDescriptor) -> Option<u8> {
    let TypeDescriptor::Sum { variants, .. } = descriptor else { return None };
    u8::try_from(variants.iter().position(|variant| variant.other)?).ok()
}

fn set_header(reader: &mut CsvReader, line: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(line).map_err(|error| bad_utf8_message(&error))?;
    let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(text);
    let text = text.strip_suffix('\n').unwrap_or(text);
    reader.set_header(text.strip_suffix('\r').unwrap_or(text)).map_err(|error| error.to_string())
}

/// A block as text; as it was if it is not UTF-8.
#[expect(unsafe_code, reason = "the standard library has no faster check of text than its own, which each byte passes")]
fn text_of(lines: Vec<u8>) -> Result<String, Vec<u8>> {
    if simdutf8::basic::from_utf8(&lines).is_err() {
        return Err(lines);
    }
    // SAFETY: the bytes were just found to be UTF-8.
    Ok(unsafe { String::from_utf8_unchecked(lines) })
}

/// How many of the lines may be taken, and their bytes.
fn leading_lines(lines: &[u8], rows_max: u64) -> (u32, usize) {
    let rows_max = u32::try_from(rows_max).unwrap_or(u32::MAX);
    let mut count = 0;
    let mut cut = 0;
    for line_end in memchr::memchr_iter(b'\n', lines) {
        if count == rows_max {
            break;
        }
        count += 1;
        cut = line_end + 1;
    }
    (count, cut)
}

/// Turns `\r\n` into `\n`, in place and only if there is any.
fn normalize_line_ends(lines: &mut Vec<u8>) {
    let Some(first) = memchr::memmem::find(lines, b"\r\n") else { return };
    let mut write = first;
    for read in first..lines.len() {
        if lines[read] == b'\r' && lines.get(read + 1) == Some(&b'\n') {
            continue;
        }
        lines[write] = lines[read];
        write += 1;
    }
    lines.truncate(write);
}

/// Is given index and offset within the block, the line without its end, and what is wrong.
type BadLine<'a> = dyn FnMut(u64, usize, &[u8], &str) -> Result<(), ConnectorError> + 'a;

fn bad_utf8_message(error: &std::str::Utf8Error) -> String {
    format!("not UTF-8 at byte {} of the line", error.valid_up_to() + 1)
}

fn too_long(what: &str, bytes_max: usize) -> String {
    format!("the {what} is longer than {bytes_max} bytes (sandbox.row.bytes-max)")
}

/// Says what is wrong with a line, which is given without its end.
type JudgeLine<'a> = dyn Fn(&[u8]) -> Option<String> + 'a;

fn visit_lines(
    lines: &[u8],
    judge: &JudgeLine<'_>,
    bad: &mut BadLine<'_>,
    visit: &mut dyn FnMut(&[u8], bool),
) -> Result<(), ConnectorError> {
    let mut at = 0;
    for (index, line) in lines.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        let content = content.strip_suffix(b"\r").unwrap_or(content);
        let problem = judge(content);
        if let Some(problem) = &problem {
            bad(index as u64, at, content, problem)?;
        }
        visit(line, problem.is_none());
        at += line.len();
    }
    Ok(())
}

/// The lines with which nothing is wrong.
fn without_bad(lines: &[u8], judge: &JudgeLine<'_>, bad: &mut BadLine<'_>) -> Result<Vec<u8>, ConnectorError> {
    let mut kept = Vec::with_capacity(lines.len());
    visit_lines(lines, judge, bad, &mut |line, good| {
        if good {
            kept.extend_from_slice(line);
        }
    })?;
    Ok(kept)
}

/// The lines with spaces in place of those that are not UTF-8, so that offsets stay right.
fn blank_bad_utf8(lines: Vec<u8>, bad: &mut BadLine<'_>) -> Result<String, ConnectorError> {
    let mut text = String::with_capacity(lines.len());
    let judge = |line: &[u8]| std::str::from_utf8(line).err().map(|error| bad_utf8_message(&error));
    visit_lines(&lines, &judge, bad, &mut |line, good| match std::str::from_utf8(line) {
        Ok(line) if good => text.push_str(line),
        _ => {
            text.extend(std::iter::repeat_n(' ', line.len() - 1));
            text.push('\n');
        }
    })?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ConnectorSpec {
        ConnectorSpec { name: "file".to_owned(), options: Default::default() }
    }

    /// The batches of the lines, as text, and the refused lines.
    fn decode(format: Format, record_type: &str, blocks: &[&[u8]], rows_max: u64) -> (Vec<String>, Vec<String>) {
        let mut decoder = RecordDecoder::new(format, record_type, &spec(), 4 << 20).expect("fits");
        decoder.begin(true);
        let mut offset = 0;
        let mut batches = Vec::new();
        let mut refused = Vec::new();
        let mut refuse = |row: Refused<'_>| {
            let payload = String::from_utf8_lossy(row.payload);
            refused.push(format!("{} {} {}: {payload}", row.offset, row.lines_before, row.message));
            Ok(())
        };
        for block in blocks {
            decoder.push(block.to_vec(), offset, &mut refuse).expect("skips");
            offset += block.len() as u64;
            while !decoder.is_empty() {
                let batch = decoder.decode(rows_max, 1 << 20, &mut refuse).expect("skips");
                let text = match batch.kind {
                    BatchKind::Lines => String::from_utf8_lossy(&batch.data).into_owned(),
                    BatchKind::Rows => {
                        let rows = row::Rows::new(&batch.data).map(|row| format!("{:?}", row.expect("whole").payload));
                        rows.collect()
                    }
                };
                batches.push(format!("{}:{text}", batch.count));
            }
        }
        (batches, refused)
    }

    /// Checks that rows are known by their lines, which hold their numbers, one-based;
    /// other lines give no row.
    #[track_caller]
    fn check_lines(format: Format, record_type: &str, blocks: &[&[u8]]) {
        for rows_max in [1, 2, 3, u64::MAX] {
            let mut decoder = RecordDecoder::new(format, record_type, &spec(), 4 << 20).expect("fits");
            decoder.begin(true);
            for block in blocks {
                decoder.push(block.to_vec(), 1, &mut |_| Ok(())).expect("skips");
                while !decoder.is_empty() {
                    let batch = decoder.decode(rows_max, 1 << 20, &mut |_| Ok(())).expect("skips");
                    let numbers: Vec<u64> = match batch.kind {
                        BatchKind::Lines => {
                            let text = std::str::from_utf8(&batch.data).expect("text");
                            text.lines().map(|line| line.parse().expect("a number")).collect()
                        }
                        BatchKind::Rows => {
                            let rows = row::Rows::new(&batch.data);
                            rows.map(|row| u64::from(row.expect("whole").payload[0])).collect()
                        }
                    };
                    let lines: Vec<_> = (0..batch.count).map(|row| decoder.lines_before_row(row) + 1).collect();
                    assert_eq!(lines, numbers, "at most {rows_max} rows");
                }
            }
        }
    }

    #[test]
    fn a_row_is_known_by_its_line() {
        let json: &[&[u8]] = &[b"1\n\n\n4\nx\n6\n\xff\n", b"\xff\n \n", b"x\n11\n12\n"];
        check_lines(Format::Json { skip_other: false }, "u8", json);
        let lines: &[&[u8]] =
            &[b"\xff\n2\n3\r\n\xff\n\xff\n6\n7\n8\n\xff\n", b"\xff\n\xfe\n", b"12\n13\n", b"\xff\n15\n"];
        check_lines(Format::Lines, "string", lines);
    }

    #[test]
    fn records_of_other_kinds_are_left_out_and_their_lines_counted() {
        let format = Format::Json { skip_other: true };
        let record_type = "E[A(u8)|*Rest|B(u8)]";
        let text = "{\"A\":1}\n{\"C\":{}}\n{\"B\":2}\n{\"C\":[1,\n \"D\"\n{\"A\":3}\n{\"A\":999}\n\"C\"";
        for rows_max in [1, 2, u64::MAX] {
            let (batches, refused) = decode(format, record_type, &[format!("{text}\n").as_bytes()], rows_max);
            let rows: String = batches.iter().map(|batch| batch.split_once(':').expect("a count").1).collect();
            assert_eq!(rows, "[0, 1][2, 2][0, 3]", "at most {rows_max} rows");
            let message = "column 6, field \"A\": 999 is out of range for u8: {\"A\":999}";
            assert_eq!(refused, [format!("47 6 {message}")]);
        }
        let error = RecordDecoder::new(format, "E[A(u8)]", &spec(), 4 << 20).expect_err("refused").to_string();
        let problem = "the records are E[A(u8)], and have no variant marked #[record(other)]";
        assert_eq!(error, format!("file source: option \"json-skip-other\": {problem}"));
        let mut decoder = RecordDecoder::new(format, record_type, &spec(), 4 << 20).expect("fits");
        decoder.begin(true);
        decoder.push(format!("{text}\n").into_bytes(), 0, &mut |_| Ok(())).expect("decodes");
        decoder.decode(u64::MAX, 1 << 20, &mut |_| Ok(())).expect("decodes");
        assert_eq!([0, 1, 2].map(|row| decoder.lines_before_row(row)), [0, 2, 5]);
    }

    #[test]
    fn lines_are_handed_on_without_carriage_returns() {
        let (batches, refused) = decode(Format::Lines, "string", &[b"a\r\nb\n\nc\rd\r\n", b"\r\n"], u64::MAX);
        assert_eq!(batches, ["4:a\nb\n\nc\rd\n", "1:\n"]);
        assert_eq!(refused, [""; 0]);
    }

    #[test]
    fn as_many_lines_as_allowed_are_taken() {
        let (batches, _) = decode(Format::Lines, "string", &[b"a\nb\nc\n"], 2);
        assert_eq!(batches, ["2:a\nb\n", "1:c\n"]);
        let (batches, _) = decode(Format::Json { skip_other: false }, "u8", &[b"1\n2\n3\n"], 2);
        assert_eq!(batches, ["2:[1][2]", "1:[3]"]);
    }

    #[test]
    fn lines_that_are_not_utf8_are_refused_with_their_place() {
        let blocks: &[&[u8]] = &[b"a\nb\xff\r\nc\n", b"\xfe\nd\n"];
        let (batches, refused) = decode(Format::Lines, "string", blocks, u64::MAX);
        assert_eq!(batches, ["2:a\nc\n", "1:d\n"]);
        let expected =
            ["2 1 not UTF-8 at byte 2 of the line: b\u{fffd}", "8 3 not UTF-8 at byte 1 of the line: \u{fffd}"];
        assert_eq!(refused, expected);
        let (batches, refused) = decode(Format::Json { skip_other: false }, "u8", &[b"1\n\xff\n2\nx\n"], u64::MAX);
        assert_eq!(batches, ["2:[1][2]"]);
        let expected = ["2 1 not UTF-8 at byte 1 of the line: \u{fffd}", "6 3 column 1: expected u8, found 'x': x"];
        assert_eq!(refused, expected);
    }

    #[test]
    fn rows_longer_than_the_limit_are_refused_with_their_place() {
        let mut refused = Vec::new();
        let mut check = |format, record_type: &str, lines: &str, numbers: &[u64]| {
            let mut decoder = RecordDecoder::new(format, record_type, &spec(), 8).expect("fits");
            decoder.begin(true);
            let mut refuse = |row: Refused<'_>| {
                refused.push((row.offset, row.lines_before, row.message.to_owned()));
                Ok(())
            };
            decoder.push(lines.as_bytes().to_vec(), 0, &mut refuse).expect("skips");
            let batch = decoder.decode(u64::MAX, 1 << 20, &mut refuse).expect("skips");
            let lines: Vec<u64> = (0..batch.count).map(|row| decoder.lines_before_row(row) + 1).collect();
            assert_eq!(lines, numbers, "{record_type}");
        };
        check(Format::Lines, "string", "12345678\r\n123456789\nx\n", &[1, 3]);
        check(Format::Lines, "bytes", "x\n123456789\n12345678\n123456789\ny\n", &[1, 3, 5]);
        check(Format::Json { skip_other: false }, "string", "\"12345678\"\n\"123456789\"\n\"\"\n", &[1, 3]);
        let long = |what: &str| format!("the {what} is longer than 8 bytes (sandbox.row.bytes-max)");
        let expected = [(10, 1, "line"), (2, 1, "line"), (21, 3, "line"), (11, 1, "row")];
        assert_eq!(refused, expected.map(|(offset, before, what)| (offset, before, long(what))));
    }

    #[test]
    fn bytes_need_not_be_text() {
        let (batches, refused) = decode(Format::Lines, "bytes", &[b"\xff\r\n\n"], u64::MAX);
        assert_eq!(batches, ["2:[255][]"]);
        assert_eq!(refused, [""; 0]);
    }

    #[test]
    fn blank_lines_and_marks_are_passed_over() {
        let text = "\u{feff}1\r\n \n\r\n2\n";
        let (batches, refused) = decode(Format::Json { skip_other: false }, "u8", &[text.as_bytes()], u64::MAX);
        assert_eq!((batches, refused), (vec!["2:[1][2]".to_owned()], vec![]));
    }

    #[test]
    fn the_first_line_of_csv_may_name_the_columns() {
        let format = Format::Csv { delimiter: b';', header: true };
        let text = "\u{feff}b;a\r\n\r\n2;1\r\n4;3\n4;x\n";
        let (batches, refused) = decode(format, "T{a:u8,b:u8}", &[text.as_bytes()], u64::MAX);
        assert_eq!(batches, ["2:[1, 2][3, 4]"]);
        let message = "column 2, field \"a\": expected u8, a whole number from 0 to 255, found \"x\"";
        assert_eq!(refused, [format!("19 4 {message}: 4;x")]);
    }

    #[test]
    fn types_that_a_format_cannot_give_are_refused() {
        for (format, record_type, expected) in [
            (Format::Lines, "T{a:u8}", "lines are text, but the records are T{a:u8}: set it to json or csv"),
            (
                Format::Json { skip_other: false },
                "map<f64,u8>",
                "type map<f64,u8>: keys of a map in JSON are text, characters, whole numbers or truth values",
            ),
            (Format::Json { skip_other: false }, "T{", "not a type descriptor: expected a name at byte 2"),
        ] {
            let error = RecordDecoder::new(format, record_type, &spec(), 4 << 20).expect_err("refused").to_string();
            assert_eq!(error, format!("file source: option \"format\": {expected}"));
        }
    }
}
