//! Reads the files that one subtask was dealt; lives on the task's thread.
//!
//! A chunk is read after the one before. Files that are read side by side are splits of
//! their own: of those that are open, the one furthest behind in event time is read next,
//! so that no split has to be paused to wait for others.
//! Those that are not open yet hold the watermark back, because the first of them is named
//! before any row is read, and the next one when it is opened.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use engine_rows::json::LINE_BYTES_MAX;

use super::{Compression, DealtFiles, FileLeft, FileSourceOptions, FileSplit, OPEN_FILES_MAX, io_error, open_content};
use crate::{
    base::clock::Timestamp,
    connector::{
        ConnectorError, ReaderContext, ReaderOutput, RejectedRow, SourceReader, SourceSplit, SplitChange, Verdict,
        line_blocks::{Block, LineBlocks},
        line_position,
        rate_limiter::RateLimiter,
        record_decoder::{RecordDecoder, Refused},
    },
    failpoint,
    graph::stream_graph::ConnectorSpec,
};

/// Text read at a time where each line becomes a smaller row.
const TEXT_BYTES_MIN: usize = 64 << 10;
const TEXT_BYTES_MAX: usize = 128 << 10;
/// Text read at a time for each byte of rows that was asked for.
const TEXT_BYTES_PER_ROW_BYTE: usize = 8;
/// Least and most text read at a time where text is handed on.
const LINES_BYTES_MIN: usize = 4 << 10;
const LINES_BYTES_MAX: usize = 1 << 20;
/// A line behind this offset is named by its offset: to count the lines before it would take too long.
const COUNTED_BYTES_MAX: u64 = 64 << 20;
/// Decompressed bytes that are passed over in one poll: some milliseconds of work.
const PASS_BYTES: u64 = 1 << 20;
/// Bytes of a file that are read at a time to count its lines.
const COUNT_BLOCK_BYTES: usize = 256 << 10;

/// See the [module](self).
pub(in crate::connector) struct FileReader {
    options: FileSourceOptions,
    spec: ConnectorSpec,
    context: ReaderContext,
    limiter: RateLimiter,
    /// At most one chunk, or files that are read side by side.
    open: Vec<OpenSplit>,
    /// Place of the split that was read last, while it is open.
    current: Option<usize>,
    /// A decoder that no open split has.
    spare: Option<RecordDecoder>,
    /// Files that wait to be opened.
    waiting: VecDeque<FileLeft>,
    /// Further files are to be asked for.
    more: bool,
    /// Number of the next file that is opened.
    next_number: u32,
    /// Files below this number were named.
    named: u32,
    /// The split that was named last.
    named_last: Option<u32>,
    changes: Vec<SplitChange>,
    polls: u64,
}

struct OpenSplit {
    split: FileSplit,
    content: Box<dyn Read>,
    blocks: LineBlocks,
    /// Decompressed bytes before the split that are still to be passed over.
    before: u64,
    decoder: RecordDecoder,
    /// Lines of the file before the split; none: not counted yet.
    lines_before: Option<u64>,
    /// Where the first line of the split starts; none: nothing was read yet.
    first_offset: Option<u64>,
    /// Number of a file that is read side by side with others.
    number: Option<u32>,
    /// Highest event time seen, [`Timestamp::MIN`] before the first.
    time: Timestamp,
    /// The poll in which it was read last.
    polled: u64,
}

impl FileReader {
    pub(in crate::connector) fn new(
        options: &FileSourceOptions,
        spec: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let decoder = RecordDecoder::new(options.format, &context.record_type, spec, context.row_bytes_max)?;
        let limiter = RateLimiter::new(options.rate, context.parallelism, context.clock.clone());
        Ok(Self {
            options: options.clone(),
            spec: spec.clone(),
            context,
            limiter,
            open: Vec::new(),
            current: None,
            spare: Some(decoder),
            waiting: VecDeque::new(),
            more: false,
            next_number: 0,
            named: 0,
            named_last: None,
            changes: Vec::new(),
            polls: 0,
        })
    }

    fn open_split(&mut self, split: FileSplit, permitted: PathBuf, number: Option<u32>) -> Result<(), ConnectorError> {
        let mut decoder = match self.spare.take() {
            Some(decoder) => decoder,
            None => RecordDecoder::new(
                self.options.format,
                &self.context.record_type,
                &self.spec,
                self.context.row_bytes_max,
            )?,
        };
        let at_start = split.start == 0;
        decoder.begin(at_start);
        if decoder.has_header() && !at_start {
            let header = read_first_line(&permitted, split.compression)?;
            decoder
                .set_header(&header)
                .map_err(|message| ConnectorError::BadRow { position: format!("{} line 1", split.path), message })?;
        }
        self.open.push(OpenSplit::new(split, permitted, decoder, number)?);
        Ok(())
    }

    /// Opens as many of the waiting files as may be open, and names them and the first of
    /// those that go on waiting.
    fn open_waiting(&mut self) -> Result<(), ConnectorError> {
        while self.open.len() < OPEN_FILES_MAX
            && let Some(file) = self.waiting.pop_front()
        {
            let permitted = self.context.permissions.readable(Path::new(file.path()))?;
            let split = match file {
                FileLeft::Whole(file) => FileSplit::whole(file, &permitted, &self.options)?,
                FileLeft::Part(split) => split,
            };
            self.open_split(split, permitted, Some(self.next_number))?;
            self.next_number += 1;
        }
        let until = self.next_number + u32::from(!self.waiting.is_empty() || self.more);
        for number in self.named..until {
            self.name(number);
        }
        self.named = until;
        Ok(())
    }

    fn name(&mut self, number: u32) {
        self.changes.push(SplitChange::Begin(number));
        self.named_last = Some(number);
    }

    /// The open split that is furthest behind in event time; of several, the one that was
    /// not read for longest.
    fn next_to_read(&self) -> Option<usize> {
        (0..self.open.len()).min_by_key(|place| (self.open[*place].time, self.open[*place].polled))
    }

    /// Closes a split that was read to its end.
    fn close(&mut self, place: usize) -> Result<(), ConnectorError> {
        let OpenSplit { decoder, number, .. } = self.open.remove(place);
        self.current = None;
        self.spare = Some(decoder);
        // First the file that takes its place, lest the watermark passes it.
        self.open_waiting()?;
        self.changes.extend(number.map(SplitChange::End));
        Ok(())
    }
}

impl OpenSplit {
    fn new(
        split: FileSplit,
        permitted: PathBuf,
        decoder: RecordDecoder,
        number: Option<u32>,
    ) -> Result<Self, ConnectorError> {
        let mut file = File::open(&permitted).map_err(io_error("open", &permitted))?;
        failpoint!("source.opened").map_err(io_error("open", &permitted))?;
        let blocks = LineBlocks::new(split.start, split.end, decoder.line_bytes_max());
        let before = match split.compression {
            Compression::None => {
                file.seek(SeekFrom::Start(blocks.offset())).map_err(io_error("read", &permitted))?;
                0
            }
            Compression::Gzip | Compression::Zstd => blocks.offset(),
        };
        let content = open_content(file, split.compression, &permitted)?;
        let lines_before = split.lines_before;
        Ok(Self {
            split,
            content,
            blocks,
            before,
            decoder,
            lines_before,
            first_offset: None,
            number,
            time: Timestamp::MIN,
            polled: 0,
        })
    }

    /// Passes over some of the content before the split.
    fn pass_over(&mut self) -> Result<(), ConnectorError> {
        let wanted = self.before.min(PASS_BYTES);
        let passed = io::copy(&mut (&mut self.content).take(wanted), &mut io::sink());
        let passed = passed.map_err(io_error("decompress", self.path()))?;
        self.before -= passed;
        if passed < wanted {
            let (read, start) = (self.blocks.offset() - self.before, self.split.start);
            let problem = format!(
                "its content has {read} bytes, but byte {start} is to be read next: the file became shorter since"
            );
            return Err(io_error("read on in", self.path())(io::Error::other(problem)));
        }
        Ok(())
    }

    /// What is left to read, from the line behind the last row on; none: nothing.
    fn left(&self) -> Option<FileSplit> {
        let next = self.decoder.next_offset();
        if next.is_none() && self.blocks.is_ended() {
            return None;
        }
        // Before anything was read, the blocks begin with the byte before the split.
        let start = match next {
            Some(offset) => offset,
            None if self.before == 0 => self.blocks.offset().max(self.split.start),
            None => self.split.start,
        };
        let lines_before = match start == self.split.start {
            true => self.split.lines_before,
            false => self.lines_before.map(|before| before + self.decoder.lines()),
        };
        Some(FileSplit { start, lines_before, ..self.split.clone() })
    }

    /// Text to read at a time for batches of about `bytes_max`.
    fn block_bytes(&self, bytes_max: usize) -> usize {
        if self.decoder.shrinks() {
            return bytes_max.saturating_mul(TEXT_BYTES_PER_ROW_BYTE).clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
        }
        bytes_max.clamp(LINES_BYTES_MIN, LINES_BYTES_MAX)
    }

    fn path(&self) -> &Path {
        Path::new(&self.split.path)
    }

    fn place(&mut self) -> Place<'_> {
        Place { split: &self.split, lines_before: &mut self.lines_before }
    }

    /// Name of a row: "input.log line 17", or the chunk that it is in where lines cannot be counted.
    fn row_position(&mut self, row: u32) -> String {
        let lines_before_row = self.decoder.lines_before_row(row);
        if self.lines_before.is_none()
            && let Some(offset) = self.first_offset.filter(|offset| *offset <= COUNTED_BYTES_MAX)
        {
            self.lines_before = count_lines(self.path(), offset);
        }
        match (self.lines_before, self.first_offset) {
            (Some(before), _) => format!("{} line {}", self.split.path, before + lines_before_row + 1),
            (None, offset) => {
                let offset = offset.unwrap_or(self.split.start);
                format!("{} line {} from byte {offset} on", self.split.path, lines_before_row + 1)
            }
        }
    }
}

/// Names the lines of a split while its decoder is at work.
struct Place<'a> {
    split: &'a FileSplit,
    lines_before: &'a mut Option<u64>,
}

impl Place<'_> {
    /// Name of a line: "input.log line 17", or by its offset where lines cannot be counted.
    fn line_position(&mut self, refused: &Refused<'_>) -> String {
        if self.lines_before.is_none() && refused.offset <= COUNTED_BYTES_MAX {
            let before = count_lines(Path::new(&self.split.path), refused.offset);
            *self.lines_before = before.and_then(|before| before.checked_sub(refused.lines_before));
        }
        match self.lines_before {
            Some(before) => format!("{} line {}", self.split.path, *before + refused.lines_before + 1),
            None => format!("{} byte {}", self.split.path, refused.offset),
        }
    }
}

/// Line ends in the first bytes of a file.
fn count_lines(path: &Path, bytes: u64) -> Option<u64> {
    let mut file = File::open(path).ok()?.take(bytes);
    let mut block = vec![0; COUNT_BLOCK_BYTES];
    let mut count = 0;
    loop {
        match file.read(&mut block).ok()? {
            0 => return Some(count),
            read => count += memchr::memchr_iter(b'\n', &block[..read]).count() as u64,
        }
    }
}

/// The first line of a file, its end included.
fn read_first_line(path: &Path, compression: Compression) -> Result<Vec<u8>, ConnectorError> {
    let file = File::open(path).map_err(io_error("open", path))?;
    let mut content = open_content(file, compression, path)?;
    let mut blocks = LineBlocks::new(0, None, LINE_BYTES_MAX);
    loop {
        match blocks.read(&mut *content, LINES_BYTES_MIN).map_err(io_error("read", path))? {
            Block::Lines { mut lines, .. } => {
                let end = memchr::memchr(b'\n', &lines).map_or(lines.len(), |line_end| line_end + 1);
                lines.truncate(end);
                return Ok(lines);
            }
            Block::Pending => {}
            Block::LongLine { .. } | Block::End => return Ok(Vec::new()),
        }
    }
}

/// Hands a refused line to the task's policy.
fn refuse(
    reject: &mut dyn FnMut(RejectedRow<'_>) -> Verdict,
    place: &mut Place<'_>,
    refused: &Refused<'_>,
) -> Result<(), ConnectorError> {
    let position = place.line_position(refused);
    let message = refused.message;
    if !refused.is_header {
        match reject(RejectedRow { message, position: &position, payload: refused.payload }) {
            Verdict::Skip => return Ok(()),
            Verdict::Fail => {}
        }
    }
    Err(ConnectorError::BadRow { position, message: message.to_owned() })
}

impl SourceReader for FileReader {
    fn add_split(&mut self, split: SourceSplit) -> Result<(), ConnectorError> {
        match DealtFiles::decode(&split)? {
            DealtFiles::Chunk(split) => {
                let permitted = self.context.permissions.readable(Path::new(&split.path))?;
                self.open_split(split, permitted, None)
            }
            DealtFiles::SideBySide { files, more } => {
                self.waiting.extend(files);
                self.more = more;
                self.open_waiting()
            }
        }
    }

    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        if self.more && self.waiting.is_empty() {
            return Ok(ReaderOutput::NeedSplit);
        }
        let Some(index) = self.next_to_read() else { return Ok(ReaderOutput::NeedSplit) };
        let rows_max = match self.limiter.available() {
            Ok(rows_max) => rows_max,
            Err(pause) => return Ok(ReaderOutput::Idle(pause)),
        };
        self.polls += 1;
        self.current = Some(index);
        let open = &mut self.open[index];
        open.polled = self.polls;
        let reject = &mut self.context.reject;
        if 0 < open.before {
            open.pass_over()?;
            return Ok(ReaderOutput::Idle(Duration::ZERO));
        }
        if open.decoder.is_empty() {
            let action = if open.split.compression == Compression::None { "read" } else { "decompress" };
            open.blocks.give_back(open.decoder.take_buffer());
            let block_bytes = open.block_bytes(max_bytes);
            let block = open.blocks.read(&mut *open.content, block_bytes);
            failpoint!("source.read").map_err(io_error(action, open.path()))?;
            match block.map_err(io_error(action, open.path()))? {
                Block::Lines { offset, lines } => {
                    open.first_offset.get_or_insert(offset);
                    let mut place = Place { split: &open.split, lines_before: &mut open.lines_before };
                    open.decoder.push(lines, offset, &mut |refused| refuse(&mut **reject, &mut place, &refused))?;
                }
                Block::LongLine { offset, head } => {
                    let message = open.decoder.long_line_message();
                    let lines_before = open.decoder.lines();
                    let is_header = open.decoder.has_header() && offset == 0;
                    let line = Refused { offset, lines_before, message: &message, payload: &head, is_header };
                    refuse(&mut **reject, &mut open.place(), &line)?;
                    open.decoder.count_line();
                    return Ok(ReaderOutput::Idle(Duration::ZERO));
                }
                Block::Pending => return Ok(ReaderOutput::Idle(Duration::ZERO)),
                Block::End => {
                    self.close(index)?;
                    let next =
                        if self.open.is_empty() { ReaderOutput::NeedSplit } else { ReaderOutput::Idle(Duration::ZERO) };
                    return Ok(next);
                }
            }
        }
        let mut place = Place { split: &open.split, lines_before: &mut open.lines_before };
        let refuse = &mut |refused: Refused<'_>| refuse(&mut **reject, &mut place, &refused);
        let batch = open.decoder.decode(rows_max, max_bytes, refuse)?;
        let number = open.number;
        self.limiter.take(batch.count);
        if batch.count == 0 {
            return Ok(ReaderOutput::Idle(Duration::ZERO));
        }
        if let Some(number) = number
            && self.named_last != Some(number)
        {
            self.name(number);
        }
        Ok(ReaderOutput::Records(batch))
    }

    fn snapshot(&mut self) -> Vec<SourceSplit> {
        let numbered = self.open.iter().filter(|open| open.number.is_some());
        let begun = numbered.filter_map(OpenSplit::left).map(FileLeft::Part);
        let files: Vec<_> = begun.chain(self.waiting.iter().cloned()).collect();
        let side_by_side = (!files.is_empty()).then_some(DealtFiles::SideBySide { files, more: self.more });
        let chunks = self.open.iter().filter(|open| open.number.is_none());
        let chunks = chunks.filter_map(OpenSplit::left).map(DealtFiles::Chunk);
        chunks.chain(side_by_side).map(|dealt| dealt.encode()).collect()
    }

    fn take_split_changes(&mut self) -> Vec<SplitChange> {
        std::mem::take(&mut self.changes)
    }

    fn report_split_time(&mut self, split: u32, time: Timestamp) {
        if let Some(open) = self.open.iter_mut().find(|open| open.number == Some(split)) {
            open.time = open.time.max(time);
        }
    }

    fn position(&self) -> String {
        match self.current.or((self.open.len() == 1).then_some(0)).map(|place| &self.open[place]) {
            None => "between two files".to_owned(),
            Some(open) => match open.lines_before {
                Some(before) => line_position(&open.split.path, before + open.decoder.lines()),
                None => format!("{} byte {}", open.split.path, open.blocks.offset()),
            },
        }
    }

    fn row_position(&mut self, row: u32) -> String {
        match self.current {
            Some(place) => self.open[place].row_position(row),
            None => self.position(),
        }
    }
}
