//! The latest log lines of this process, kept in memory for `GET /jobmanager/log`.
//!
//! The subscriber writes whole lines into it from any thread, next to stderr;
//! handlers copy them out. It holds [`LOG_BYTES_MAX`] and forgets the oldest.

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Mutex, PoisonError},
};

/// Bytes of log that are kept.
const LOG_BYTES_MAX: usize = 4 << 20;

/// Log lines, the oldest first.
#[derive(Debug, Default)]
pub struct LogBuffer {
    // A lock, since any thread may log at any time, and a message to a loop
    // would need a queue that either blocks those threads or loses lines.
    lines: Mutex<Lines>,
}

#[derive(Debug, Default)]
struct Lines {
    lines: VecDeque<Box<str>>,
    bytes: usize,
}

impl LogBuffer {
    /// Appends the lines of `text`.
    pub fn append(&self, text: &str) {
        let mut kept = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        for line in text.lines() {
            kept.bytes += line.len() + 1;
            kept.lines.push_back(line.into());
        }
        while LOG_BYTES_MAX < kept.bytes {
            let Some(oldest) = kept.lines.pop_front() else { break };
            kept.bytes -= oldest.len() + 1;
        }
    }

    /// The lines that contain `needle`, each ended by `\n`; all for an empty one.
    pub fn text(&self, needle: &str) -> String {
        let kept = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::with_capacity(if needle.is_empty() { kept.bytes } else { 0 });
        for line in kept.lines.iter().filter(|line| line.contains(needle)) {
            text.push_str(line);
            text.push('\n');
        }
        text
    }

    /// Bytes of all lines.
    pub fn size(&self) -> usize {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

/// Writes to stderr and into a buffer; one per log line.
pub struct LogWriter<'a>(pub &'a LogBuffer);

impl Write for LogWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.append(&String::from_utf8_lossy(bytes));
        io::stderr().write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_the_latest_lines_within_the_limit() {
        let buffer = LogBuffer::default();
        let line = "x".repeat(1023);
        for _ in 0..5000 {
            buffer.append(&line);
        }
        buffer.append("job 17 failed\nand this follows");
        assert!(buffer.size() <= LOG_BYTES_MAX);
        assert_eq!(buffer.text("job 17"), "job 17 failed\n");
        assert!(buffer.text("").ends_with("xx\njob 17 failed\nand this follows\n"));
        assert_eq!(buffer.text("").len(), buffer.size());
    }
}
