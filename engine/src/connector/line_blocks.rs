//! Cuts bytes into blocks of whole lines, and the lines out of a chunk of a file.
//!
//! A line belongs to the chunk in which it starts: a chunk that begins within a
//! line leaves that line to the one before, and reads on past its own end until
//! its last line ends. So each line of a file is read exactly once, wherever the
//! chunks begin. The last line counts also without its line end.
//!
//! Invariant: the first `filled` bytes of `buffer` hold no line end.

use std::{
    io::{self, Read},
    mem,
};

/// What is read beyond the end of a chunk at a time, to find the end of its last line.
const BEYOND_END_BYTES: u64 = 4 << 10;
/// The part of an overlong line that is kept for a message.
const HEAD_BYTES: usize = 1 << 10;

/// What came out of one step.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum Block {
    /// Whole lines, each ended by `\n`, the first of which starts at the offset.
    Lines {
        /// In bytes from the start of the file or stream.
        offset: u64,
        /// Never empty.
        lines: Vec<u8>,
    },
    /// A line longer than the limit, which only one that ends with what was read last
    /// may be; it is left out.
    LongLine {
        /// In bytes from the start of the file or stream.
        offset: u64,
        /// Its first bytes.
        head: Vec<u8>,
    },
    /// No line has ended yet.
    Pending,
    /// There are no more lines.
    End,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Skip {
    Nothing,
    /// The rest of a line that is not ours.
    ToLineEnd,
}

/// Cuts what is read into blocks of whole lines.
#[derive(Debug)]
pub(super) struct LineBlocks {
    /// Offset of the first byte of `buffer`.
    offset: u64,
    /// The beginning of a line, and behind it what an earlier block left: memory that
    /// is initialised already can be read into by any reader, in one call.
    buffer: Vec<u8>,
    /// Length of that beginning in bytes.
    filled: usize,
    /// A buffer that was given back, for the next block.
    spare: Vec<u8>,
    /// Lines that start here or behind are not ours.
    end: Option<u64>,
    line_bytes_max: usize,
    skip: Skip,
    ended: bool,
}

impl LineBlocks {
    /// The lines that start from `start` on and before `end`. The first byte to
    /// be handed over or read is that at [`Self::offset`].
    ///
    /// Of a line that is longer than `line_bytes_max`, no more than that is kept.
    pub(super) fn new(start: u64, end: Option<u64>, line_bytes_max: usize) -> Self {
        let (offset, skip) = match start.checked_sub(1) {
            None => (0, Skip::Nothing),
            // If the byte before the chunk is a line end, a line starts with the chunk.
            Some(before) => (before, Skip::ToLineEnd),
        };
        let ended = end.is_some_and(|end| end <= start);
        Self { offset, buffer: Vec::new(), filled: 0, spare: Vec::new(), end, line_bytes_max, skip, ended }
    }

    /// Offset of the first byte that was not given out.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// True if all that belongs to the chunk was given out.
    pub(super) fn is_ended(&self) -> bool {
        self.ended
    }

    /// Takes the buffer of a block for the next one: fresh memory costs more than reading into it.
    pub(super) fn give_back(&mut self, buffer: Vec<u8>) {
        self.spare = buffer;
    }

    /// Reads about `bytes_max` and cuts.
    ///
    /// # Errors
    /// Returns an error if reading fails, or ends before the end of the chunk.
    pub(super) fn read(&mut self, from: &mut dyn Read, bytes_max: usize) -> io::Result<Block> {
        if self.ended {
            return Ok(Block::End);
        }
        let position = self.offset + self.filled as u64;
        let wanted = match self.end {
            Some(end) => (bytes_max as u64).min(end.saturating_sub(position) + BEYOND_END_BYTES),
            None => bytes_max as u64,
        };
        let wanted = usize::try_from(wanted).unwrap_or(bytes_max);
        let read = self.fill(from, wanted)?;
        let at_end = read < wanted;
        match self.end {
            Some(end) if at_end && position + (read as u64) < end => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file became shorter while it was read"))
            }
            _ => Ok(self.cut(read, at_end)),
        }
    }

    /// Reads behind what is there until `wanted` bytes came or the end.
    fn fill(&mut self, from: &mut dyn Read, wanted: usize) -> io::Result<usize> {
        let room = self.filled + wanted;
        if self.buffer.len() < room {
            self.buffer.resize(room, 0);
        }
        let start = self.filled;
        while self.filled < room {
            match from.read(&mut self.buffer[self.filled..room]) {
                Ok(0) => break,
                Ok(read) => self.filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(self.filled - start)
    }

    /// Takes over bytes of a stream and cuts.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Block {
        self.append(bytes);
        self.cut(bytes.len(), false)
    }

    fn append(&mut self, bytes: &[u8]) {
        self.buffer.truncate(self.filled);
        self.buffer.extend_from_slice(bytes);
        self.filled = self.buffer.len();
    }

    /// The last line of a stream that ended, if it has no line end.
    pub(super) fn finish(&mut self) -> Block {
        if self.ended { Block::End } else { self.cut(0, true) }
    }

    /// Cuts behind the last line end. The last `fresh` bytes are new.
    fn cut(&mut self, fresh: usize, at_end: bool) -> Block {
        let mut searched = self.filled - fresh;
        if at_end && self.text().last().is_some_and(|last| *last != b'\n') {
            self.append(b"\n");
        }
        if self.skip == Skip::ToLineEnd {
            let Some(line_end) = memchr::memchr(b'\n', self.text()) else {
                self.offset += self.filled as u64;
                self.filled = 0;
                self.ended = at_end;
                return if at_end { Block::End } else { Block::Pending };
            };
            let skipped = line_end + 1;
            self.buffer.copy_within(skipped..self.filled, 0);
            self.filled -= skipped;
            self.offset += skipped as u64;
            self.skip = Skip::Nothing;
            searched = 0;
            if self.end.is_some_and(|end| end <= self.offset) {
                self.ended = true;
                return Block::End;
            }
        }
        self.ended = at_end;
        let cut = self.last_line_end(searched).map_or(0, |line_end| line_end + 1);
        if cut == 0 {
            return self.without_line(at_end);
        }
        let offset = self.offset;
        Block::Lines { offset, lines: self.take_lines(cut) }
    }

    /// What was not given out yet.
    fn text(&self) -> &[u8] {
        &self.buffer[..self.filled]
    }

    /// The first `cut` bytes; what is behind them moves to a buffer of its own.
    fn take_lines(&mut self, cut: usize) -> Vec<u8> {
        let mut lines = mem::replace(&mut self.buffer, mem::take(&mut self.spare));
        let rest = if self.ended { &[] } else { &lines[cut..self.filled] };
        self.filled = rest.len();
        if self.buffer.len() < rest.len() {
            self.buffer.resize(rest.len(), 0);
        }
        self.buffer[..rest.len()].copy_from_slice(rest);
        self.offset += cut as u64;
        lines.truncate(cut);
        lines
    }

    /// Where the last line ends that is ours; notes if there will be no more.
    fn last_line_end(&mut self, searched: usize) -> Option<usize> {
        let last_byte = self.end.and_then(|end| usize::try_from(end - 1 - self.offset).ok());
        let text = &self.buffer[..self.filled];
        match last_byte {
            // The line that holds the chunk's last byte is its last line.
            Some(last_byte) if last_byte < text.len() => {
                let from = last_byte.max(searched);
                if let Some(line_end) = memchr::memchr(b'\n', &text[from..]) {
                    self.ended = true;
                    return Some(from + line_end);
                }
                text.get(searched..from).and_then(|bytes| memchr::memrchr(b'\n', bytes)).map(|at| searched + at)
            }
            _ => memchr::memrchr(b'\n', &text[searched..]).map(|at| searched + at),
        }
    }

    fn without_line(&mut self, at_end: bool) -> Block {
        if at_end {
            return Block::End;
        }
        if self.filled <= self.line_bytes_max {
            return Block::Pending;
        }
        let head = self.buffer[..HEAD_BYTES.min(self.filled)].to_vec();
        let offset = self.offset;
        self.offset += self.filled as u64;
        // The room goes, too.
        self.buffer = Vec::new();
        self.filled = 0;
        self.skip = Skip::ToLineEnd;
        Block::LongLine { offset, head }
    }
}

#[cfg(test)]
mod tests {
    use engine_rows::json::LINE_BYTES_MAX;
    use proptest::{collection, prelude::*};

    use super::*;

    /// Lines of the chunk with their offsets, read in blocks of `block` bytes.
    fn lines_of(content: &[u8], start: u64, end: Option<u64>, block: usize) -> Vec<(u64, Vec<u8>)> {
        let mut blocks = LineBlocks::new(start, end, LINE_BYTES_MAX);
        let mut from = &content[usize::try_from(blocks.offset()).expect("small")..];
        let mut lines = Vec::new();
        loop {
            match blocks.read(&mut from, block).expect("memory can be read") {
                Block::Lines { mut offset, lines: bytes } => {
                    assert_eq!(bytes.last(), Some(&b'\n'));
                    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                        lines.push((offset, line[..line.len() - 1].to_vec()));
                        offset += line.len() as u64;
                    }
                }
                Block::LongLine { .. } => panic!("no line is that long"),
                Block::Pending => {}
                Block::End => return lines,
            }
        }
    }

    /// Lines as `str::lines` would give them, but for the bytes `\r`.
    fn expected_lines(content: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut offset = 0;
        let lines = content.split_inclusive(|byte| *byte == b'\n').map(|line| {
            let start = offset;
            offset += line.len() as u64;
            (start, line.strip_suffix(b"\n").unwrap_or(line).to_vec())
        });
        lines.collect()
    }

    #[test]
    fn a_line_belongs_to_the_chunk_in_which_it_starts() {
        let content = b"ab\ncd\n\nefg";
        for (start, end, expected) in [
            (0, 1, vec![(0, "ab")]),
            (0, 3, vec![(0, "ab")]),
            (0, 4, vec![(0, "ab"), (3, "cd")]),
            (1, 3, vec![]),
            (3, 6, vec![(3, "cd")]),
            (6, 7, vec![(6, "")]),
            (7, 10, vec![(7, "efg")]),
            (8, 10, vec![]),
        ] {
            let expected: Vec<_> = expected.into_iter().map(|(at, line)| (at, line.as_bytes().to_vec())).collect();
            for block in 1..12 {
                assert_eq!(lines_of(content, start, Some(end), block), expected, "{start}..{end} by {block}");
            }
        }
    }

    #[test]
    fn a_file_that_became_shorter_is_noticed() {
        let mut blocks = LineBlocks::new(0, Some(100), LINE_BYTES_MAX);
        let error = blocks.read(&mut &b"ab\n"[..], 64).expect_err("too short");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn an_overlong_line_is_left_out() {
        let mut content = b"first\n".to_vec();
        content.extend(std::iter::repeat_n(b'x', LINE_BYTES_MAX + (2 << 20)));
        content.extend_from_slice(b"\nlast");
        let mut from = &content[..];
        let mut blocks = LineBlocks::new(0, None, LINE_BYTES_MAX);
        let mut seen = Vec::new();
        loop {
            match blocks.read(&mut from, 1 << 20).expect("memory can be read") {
                Block::Lines { offset, lines } => seen.push((offset, lines)),
                Block::LongLine { offset, head } => seen.push((offset, head)),
                Block::Pending => {}
                Block::End => break,
            }
        }
        let last = 6 + LINE_BYTES_MAX as u64 + (2 << 20) + 1;
        let summary: Vec<_> = seen.iter().map(|(offset, bytes)| (*offset, bytes.len(), bytes[0])).collect();
        assert_eq!(summary, [(0, 6, b'f'), (6, HEAD_BYTES, b'x'), (last, 5, b'l')]);
    }

    #[test]
    fn streams_are_cut_as_they_come() {
        let mut blocks = LineBlocks::new(0, None, LINE_BYTES_MAX);
        assert_eq!(blocks.push(b"a"), Block::Pending);
        assert_eq!(blocks.push(b"b\nc\nd"), Block::Lines { offset: 0, lines: b"ab\nc\n".to_vec() });
        assert_eq!(blocks.push(b"\n"), Block::Lines { offset: 5, lines: b"d\n".to_vec() });
        assert_eq!(blocks.push(b"e"), Block::Pending);
        assert_eq!(blocks.finish(), Block::Lines { offset: 7, lines: b"e\n".to_vec() });
        assert_eq!(blocks.finish(), Block::End);
    }

    proptest! {
        #[test]
        fn chunks_have_each_line_exactly_once(
            content in collection::vec(prop::sample::select(b"ab\r\n\n".to_vec()), 0..200),
            chunk in 1_u64..40,
            block in 1_usize..50,
        ) {
            let size = content.len() as u64;
            let starts = (0..size).step_by(usize::try_from(chunk).expect("small"));
            let lines: Vec<_> = starts
                .flat_map(|start| lines_of(&content, start, Some((start + chunk).min(size)), block))
                .collect();
            prop_assert_eq!(lines, expected_lines(&content));
            prop_assert_eq!(lines_of(&content, 0, None, block), expected_lines(&content));
        }
    }
}
