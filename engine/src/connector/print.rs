//! Prints rows on standard output or standard error, as Flink's print sink does:
//! `3> text` from the third of several subtasks, `words:3> text` with a prefix,
//! `words> text` from a single subtask with one.
//! Rows are printed as they come: those of the time since the last checkpoint come again after a restart.

use std::{
    io::{self, Write},
    path::PathBuf,
};

use super::{Committable, ConnectorError, Role, SinkWriter, WriterContext, options::Options, text_rows::TextRows};
use crate::{
    base::stream_element::{CheckpointId, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Stream {
    StandardOutput,
    StandardError,
}

/// Validated options of the sink.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PrintOptions {
    stream: Stream,
    prefix: String,
}

impl PrintOptions {
    pub(super) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let options = Options::new(spec, Role::Sink, &["stream", "prefix"])?;
        let streams = [("stdout", Stream::StandardOutput), ("stderr", Stream::StandardError)];
        let prefix = options.text("prefix").unwrap_or_default().to_owned();
        Ok(Self { stream: options.choice("stream", &streams)?, prefix })
    }
}

/// Prints each batch at once, so that lines of several subtasks do not mix.
pub(super) struct PrintWriter {
    stream: Stream,
    prefix: String,
    rows: TextRows,
    buffer: Vec<u8>,
}

impl PrintWriter {
    pub(super) fn new(
        options: &PrintOptions,
        spec: &ConnectorSpec,
        context: &WriterContext,
    ) -> Result<Self, ConnectorError> {
        let prefix = line_prefix(&options.prefix, context.subtask_index, context.parallelism);
        let rows = TextRows::new(&context.record_type, spec)?;
        Ok(Self { stream: options.stream, prefix, rows, buffer: Vec::new() })
    }
}

fn line_prefix(prefix: &str, subtask_index: u32, parallelism: u32) -> String {
    match (prefix, parallelism) {
        ("", 0 | 1) => String::new(),
        ("", _) => format!("{}> ", subtask_index + 1),
        (prefix, 0 | 1) => format!("{prefix}> "),
        (prefix, _) => format!("{prefix}:{}> ", subtask_index + 1),
    }
}

fn print(to: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    to.write_all(bytes)?;
    to.flush()
}

impl SinkWriter for PrintWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.buffer.clear();
        if self.prefix.is_empty() {
            self.rows.append(batch, &mut self.buffer)?;
        } else {
            self.rows.append_with_prefix(&self.prefix, batch, &mut self.buffer)?;
        }
        let (printed, name) = match self.stream {
            Stream::StandardOutput => (print(&mut io::stdout().lock(), &self.buffer), "standard output"),
            Stream::StandardError => (print(&mut io::stderr().lock(), &self.buffer), "standard error"),
        };
        printed.map_err(|source| ConnectorError::Io { action: "write to", path: PathBuf::from(name), source })
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        Ok(())
    }

    fn prepare_commit(&mut self, _checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        self.flush()?;
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use engine_rows::row::{self, NO_TIMESTAMP, Row};

    use super::*;
    use crate::base::stream_element::BatchKind;

    #[test]
    fn prefixes_are_those_of_flink() {
        for (prefix, subtask_index, parallelism, expected) in
            [("", 0, 1, ""), ("", 2, 4, "3> "), ("words", 0, 1, "words> "), ("words", 2, 4, "words:3> ")]
        {
            assert_eq!(line_prefix(prefix, subtask_index, parallelism), expected);
        }
    }

    #[test]
    fn each_row_of_either_layout_has_the_prefix() {
        let mut data = Vec::new();
        for payload in [&b"a"[..], b""] {
            row::append(&mut data, Row { key_hash: 1, timestamp: NO_TIMESTAMP, payload });
        }
        let spec = ConnectorSpec { name: "print".to_owned(), options: Default::default() };
        let rows = TextRows::new("string", &spec).expect("text");
        let batches = [
            RecordBatch { kind: BatchKind::Rows, count: 2, data: data.into() },
            RecordBatch { kind: BatchKind::Lines, count: 2, data: Bytes::from_static(b"a\n\n") },
        ];
        for batch in batches {
            let mut out = Vec::new();
            rows.append_with_prefix("1> ", &batch, &mut out).expect("whole rows");
            rows.append(&batch, &mut out).expect("whole rows");
            assert_eq!(out, b"1> a\n1> \na\n\n");
        }
        let error = TextRows::new("T{a:u8}", &spec).expect_err("no text").to_string();
        let expected =
            "print sink: option \"record type\": it writes text, but the records are T{a:u8}: map them to text first";
        assert_eq!(error, expected);
    }

    #[test]
    fn a_reader_that_went_away_is_an_error() {
        let (reader, mut writer) = io::pipe().expect("pipes can be made");
        drop(reader);
        let error = print(&mut writer, b"row\n").expect_err("nobody reads");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    }
}
