//! Reads the chunks of files that one subtask was dealt; lives on the task's thread.

use std::{
    fs::File,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    time::Duration,
};

use engine_rows::json::LINE_BYTES_MAX;

use super::{Compression, FileSourceOptions, FileSplit, io_error, open_content};
use crate::{
    connector::{
        ConnectorError, ReaderContext, ReaderOutput, RejectedRow, SourceReader, SourceSplit, Verdict,
        line_blocks::{Block, LineBlocks},
        line_position,
        rate_limiter::RateLimiter,
        record_decoder::{RecordDecoder, Refused},
    },
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
/// Bytes of a file that are read at a time to count its lines.
const COUNT_BLOCK_BYTES: usize = 256 << 10;

/// See the [module](self).
pub(in crate::connector) struct FileReader {
    context: ReaderContext,
    decoder: RecordDecoder,
    limiter: RateLimiter,
    open: Option<OpenSplit>,
}

struct OpenSplit {
    split: FileSplit,
    content: Box<dyn Read>,
    blocks: LineBlocks,
    /// Lines of the file before the split; none: not counted yet.
    lines_before: Option<u64>,
    /// Where the first line of the split starts; none: nothing was read yet.
    first_offset: Option<u64>,
}

impl FileReader {
    pub(in crate::connector) fn new(
        options: &FileSourceOptions,
        spec: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Self, ConnectorError> {
        let decoder = RecordDecoder::new(options.format, &context.record_type, spec, context.row_bytes_max)?;
        let limiter = RateLimiter::new(options.rate, context.parallelism, context.clock.clone());
        Ok(Self { context, decoder, limiter, open: None })
    }

    fn block_bytes(&self, bytes_max: usize) -> usize {
        if self.decoder.shrinks() {
            return bytes_max.saturating_mul(TEXT_BYTES_PER_ROW_BYTE).clamp(TEXT_BYTES_MIN, TEXT_BYTES_MAX);
        }
        bytes_max.clamp(LINES_BYTES_MIN, LINES_BYTES_MAX)
    }
}

impl OpenSplit {
    fn new(split: FileSplit, permitted: PathBuf, line_bytes_max: usize) -> Result<Self, ConnectorError> {
        let mut file = File::open(&permitted).map_err(io_error("open", &permitted))?;
        let blocks = LineBlocks::new(split.start, split.end, line_bytes_max);
        if 0 < blocks.offset() {
            file.seek(SeekFrom::Start(blocks.offset())).map_err(io_error("read", &permitted))?;
        }
        let content = open_content(file, split.compression, &permitted)?;
        let lines_before = (split.start == 0).then_some(0);
        Ok(Self { split, content, blocks, lines_before, first_offset: None })
    }

    fn path(&self) -> &Path {
        Path::new(&self.split.path)
    }

    /// Name of a line: "input.log line 17", or by its offset where lines cannot be counted.
    fn line_position(&mut self, refused: &Refused<'_>) -> String {
        if self.lines_before.is_none() && refused.offset <= COUNTED_BYTES_MAX {
            let before = count_lines(self.path(), refused.offset);
            self.lines_before = before.and_then(|before| before.checked_sub(refused.lines_before));
        }
        match self.lines_before {
            Some(before) => format!("{} line {}", self.split.path, before + refused.lines_before + 1),
            None => format!("{} byte {}", self.split.path, refused.offset),
        }
    }
}

/// Name of a row: "input.log line 17", or the chunk that it is in where lines cannot be counted.
fn row_position(open: &mut OpenSplit, lines_before_row: u64) -> String {
    if open.lines_before.is_none()
        && let Some(offset) = open.first_offset.filter(|offset| *offset <= COUNTED_BYTES_MAX)
    {
        open.lines_before = count_lines(open.path(), offset);
    }
    match (open.lines_before, open.first_offset) {
        (Some(before), _) => format!("{} line {}", open.split.path, before + lines_before_row + 1),
        (None, offset) => {
            let offset = offset.unwrap_or(open.split.start);
            format!("{} line {} from byte {offset} on", open.split.path, lines_before_row + 1)
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
    open: &mut OpenSplit,
    refused: &Refused<'_>,
) -> Result<(), ConnectorError> {
    let position = open.line_position(refused);
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
        let split = FileSplit::decode(&split)?;
        let permitted = self.context.permissions.readable(Path::new(&split.path))?;
        let at_start = split.start == 0;
        self.decoder.begin(at_start);
        if self.decoder.has_header() && !at_start {
            let header = read_first_line(&permitted, split.compression)?;
            self.decoder
                .set_header(&header)
                .map_err(|message| ConnectorError::BadRow { position: format!("{} line 1", split.path), message })?;
        }
        self.open = Some(OpenSplit::new(split, permitted, self.decoder.line_bytes_max())?);
        Ok(())
    }

    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        let block_bytes = self.block_bytes(max_bytes);
        let Some(open) = &mut self.open else { return Ok(ReaderOutput::NeedSplit) };
        let rows_max = match self.limiter.available() {
            Ok(rows_max) => rows_max,
            Err(pause) => return Ok(ReaderOutput::Idle(pause)),
        };
        let reject = &mut self.context.reject;
        if self.decoder.is_empty() {
            let action = if open.split.compression == Compression::None { "read" } else { "decompress" };
            open.blocks.give_back(self.decoder.take_buffer());
            let block = open.blocks.read(&mut *open.content, block_bytes);
            match block.map_err(io_error(action, open.path()))? {
                Block::Lines { offset, lines } => {
                    open.first_offset.get_or_insert(offset);
                    self.decoder.push(lines, offset, &mut |refused| refuse(&mut **reject, open, &refused))?;
                }
                Block::LongLine { offset, head } => {
                    let message = self.decoder.long_line_message();
                    let lines_before = self.decoder.lines();
                    let is_header = self.decoder.has_header() && offset == 0;
                    let line = Refused { offset, lines_before, message: &message, payload: &head, is_header };
                    refuse(&mut **reject, open, &line)?;
                    self.decoder.count_line();
                    return Ok(ReaderOutput::Idle(Duration::ZERO));
                }
                Block::Pending => return Ok(ReaderOutput::Idle(Duration::ZERO)),
                Block::End => {
                    self.open = None;
                    return Ok(ReaderOutput::NeedSplit);
                }
            }
        }
        let batch = self.decoder.decode(rows_max, max_bytes, &mut |refused| refuse(&mut **reject, open, &refused))?;
        self.limiter.take(batch.count);
        if batch.count == 0 {
            return Ok(ReaderOutput::Idle(Duration::ZERO));
        }
        Ok(ReaderOutput::Records(batch))
    }

    fn position(&self) -> String {
        match &self.open {
            None => "between two files".to_owned(),
            Some(open) => match open.lines_before {
                Some(before) => line_position(&open.split.path, before + self.decoder.lines()),
                None => format!("{} byte {}", open.split.path, open.blocks.offset()),
            },
        }
    }

    fn row_position(&mut self, row: u32) -> String {
        let lines_before_row = self.decoder.lines_before_row(row);
        match &mut self.open {
            Some(open) => row_position(open, lines_before_row),
            None => self.position(),
        }
    }
}
