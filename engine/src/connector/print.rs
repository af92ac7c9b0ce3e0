//! Prints rows on standard output or standard error, as Flink's print sink does:
//! `3> text` from the third of several subtasks, `words:3> text` with a prefix,
//! `words> text` from a single subtask with one.
//! Rows are printed as they come: those of the time since the last checkpoint come again after a restart.
//!
//! Each stream of the process has one thread that writes to it: whoever reads may pause for ever, and a thread
//! that waits for it in the operating system cannot be told to stop. Tasks wait for room in the thread's
//! queue, and before they complete a checkpoint or end, for their rows to be written.

use std::{
    io::{self, Write},
    path::PathBuf,
    sync::{Mutex, PoisonError},
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded};

use super::{
    CANCEL_LOOK, Committable, ConnectorError, Role, SinkWriter, WriterContext, options::Options, text_rows::TextRows,
};
use crate::{
    base::stream_element::{CheckpointId, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// Batches that wait to be written to a stream, of all tasks.
const QUEUE_BATCHES: usize = 64;
/// How long a writer that is dropped before its end waits for what it has handed over.
const LAST_ROWS_TIME_MAX: Duration = Duration::from_millis(200);

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

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::StandardOutput => "standard output",
            Self::StandardError => "standard error",
        }
    }

    /// The queue of its thread, which is started for the first who asks.
    fn queue(self) -> io::Result<Sender<Batch>> {
        static QUEUES: Mutex<[Option<Sender<Batch>>; 2]> = Mutex::new([None, None]);
        let (place, to): (_, Box<dyn Write + Send>) = match self {
            Self::StandardOutput => (0, Box::new(io::stdout())),
            Self::StandardError => (1, Box::new(io::stderr())),
        };
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = &queues[place] {
            return Ok(queue.clone());
        }
        Ok(queues[place].insert(start_printing(to)?).clone())
    }
}

/// Rows that are written together, so that lines of several subtasks do not mix.
struct Batch {
    rows: Vec<u8>,
    /// Is told when they were written.
    written: Sender<io::Result<()>>,
}

fn start_printing(mut to: impl Write + Send + 'static) -> io::Result<Sender<Batch>> {
    let (sender, batches) = bounded::<Batch>(QUEUE_BATCHES);
    let printing = move || {
        for Batch { rows, written } in batches {
            // A writer that is gone does not want to know; to one that is there its channel has room.
            drop(written.try_send(print(&mut to, &rows)));
        }
    };
    thread::Builder::new().name("print".to_owned()).spawn(printing)?;
    Ok(sender)
}

/// Prints each batch as it comes.
pub(super) struct PrintWriter {
    prefix: String,
    rows: TextRows,
    printer: Printer,
}

/// One writer's way to a stream.
struct Printer {
    stream: Stream,
    queue: Sender<Batch>,
    written: Sender<io::Result<()>>,
    /// One for each batch that was handed over.
    results: Receiver<io::Result<()>>,
    /// Batches whose results are to come.
    outstanding: usize,
    is_canceled: Box<dyn Fn() -> bool>,
}

impl Printer {
    fn new(stream: Stream, queue: Sender<Batch>, is_canceled: Box<dyn Fn() -> bool>) -> Self {
        // At most so many are in the queue, with the one that is written and the one that is handed over.
        let (written, results) = bounded(QUEUE_BATCHES + 2);
        Self { stream, queue, written, results, outstanding: 0, is_canceled }
    }

    fn error(&self, source: io::Error) -> ConnectorError {
        ConnectorError::Io { action: "write to", path: PathBuf::from(self.stream.name()), source }
    }

    fn take(&mut self, result: io::Result<()>) -> Result<(), ConnectorError> {
        self.outstanding -= 1;
        result.map_err(|source| self.error(source))
    }

    /// Notes what was written.
    fn look(&mut self) -> Result<(), ConnectorError> {
        while let Ok(result) = self.results.try_recv() {
            self.take(result)?;
        }
        Ok(())
    }

    fn hand_over(&mut self, rows: Vec<u8>) -> Result<(), ConnectorError> {
        self.look()?;
        let mut batch = Batch { rows, written: self.written.clone() };
        loop {
            match self.queue.send_timeout(batch, CANCEL_LOOK) {
                Ok(()) => {
                    self.outstanding += 1;
                    return Ok(());
                }
                Err(SendTimeoutError::Timeout(back)) => batch = back,
                Err(SendTimeoutError::Disconnected(_)) => {
                    return Err(self.error(io::Error::other("its thread has ended, which is a bug")));
                }
            }
            if (self.is_canceled)() {
                return Err(ConnectorError::Canceled);
            }
        }
    }

    /// Waits until all that was handed over is written.
    fn await_written(&mut self) -> Result<(), ConnectorError> {
        while 0 < self.outstanding {
            match self.results.recv_timeout(CANCEL_LOOK) {
                Ok(result) => self.take(result)?,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) if (self.is_canceled)() => {
                    return Err(ConnectorError::Canceled);
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
            }
        }
        Ok(())
    }
}

impl Drop for Printer {
    /// The process may end after the task: what it printed before it failed is to be seen.
    fn drop(&mut self) {
        while 0 < self.outstanding && self.results.recv_timeout(LAST_ROWS_TIME_MAX).is_ok() {
            self.outstanding -= 1;
        }
    }
}

impl PrintWriter {
    pub(super) fn new(
        options: &PrintOptions,
        spec: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Self, ConnectorError> {
        let prefix = line_prefix(&options.prefix, context.subtask_index, context.parallelism);
        let rows = TextRows::new(&context.record_type, spec)?;
        let stream = options.stream;
        let queue = stream.queue().map_err(|source| ConnectorError::Io {
            action: "start a thread for",
            path: PathBuf::from(stream.name()),
            source,
        })?;
        Ok(Self { prefix, rows, printer: Printer::new(stream, queue, context.is_canceled) })
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
        let mut rows = Vec::new();
        if self.prefix.is_empty() {
            self.rows.append(batch, &mut rows)?;
        } else {
            self.rows.append_with_prefix(&self.prefix, batch, &mut rows)?;
        }
        self.printer.hand_over(rows)
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.printer.look()
    }

    fn prepare_commit(&mut self, _checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        self.printer.await_written()?;
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        self.printer.await_written()?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        sync::{
            Arc,
            atomic::{AtomicBool, Ordering},
        },
    };

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

    fn printer(queue: &Sender<Batch>, canceled: &Arc<AtomicBool>) -> Printer {
        let canceled = Arc::clone(canceled);
        let is_canceled = Box::new(move || canceled.load(Ordering::Relaxed));
        Printer::new(Stream::StandardOutput, queue.clone(), is_canceled)
    }

    #[test]
    fn a_reader_that_went_away_is_an_error() {
        let (reader, writer) = io::pipe().expect("pipes can be made");
        drop(reader);
        let mut printer = printer(&start_printing(writer).expect("starts"), &Arc::default());
        printer.hand_over(b"row\n".to_vec()).expect("it is not written yet");
        let error = printer.await_written().expect_err("nobody reads");
        assert!(matches!(&error, ConnectorError::Io { source, .. } if source.kind() == io::ErrorKind::BrokenPipe));
        assert_eq!(error.to_string(), "could not write to standard output");
    }

    #[test]
    fn whoever_waits_for_a_reader_that_pauses_can_be_told_to_stop() {
        let (reader, writer) = io::pipe().expect("pipes can be made");
        let queue = start_printing(writer).expect("starts");
        // More than a pipe holds.
        let rows = vec![b'\n'; 1 << 20];
        let canceled = Arc::new(AtomicBool::new(false));
        type Wait = fn(Printer, Vec<u8>) -> Result<(), ConnectorError>;
        let waits: [Wait; 2] = [
            |mut printer, rows| printer.hand_over(rows).and_then(|()| printer.await_written()),
            |mut printer, rows| loop {
                printer.hand_over(rows.clone())?;
            },
        ];
        for wait in waits {
            canceled.store(false, Ordering::Relaxed);
            let (queue, canceled_too, rows) = (queue.clone(), Arc::clone(&canceled), rows.clone());
            let (done, is_done) = bounded(1);
            thread::spawn(move || {
                let ended = wait(printer(&queue, &canceled_too), rows);
                done.send(matches!(ended, Err(ConnectorError::Canceled))).expect("somebody waits");
            });
            assert!(is_done.recv_timeout(Duration::from_millis(300)).is_err(), "nobody reads");
            canceled.store(true, Ordering::Relaxed);
            assert_eq!(is_done.recv_timeout(Duration::from_secs(1)), Ok(true));
        }
        drop(reader);
    }

    #[test]
    fn rows_are_written_in_their_order_before_the_writer_ends() {
        let (mut reader, writer) = io::pipe().expect("pipes can be made");
        let queue = start_printing(writer).expect("starts");
        let reading = thread::spawn(move || {
            let mut read = String::new();
            reader.read_to_string(&mut read).map(|_| read)
        });
        let mut printer = printer(&queue, &Arc::default());
        let rows = |number: usize| format!("{number}\n").repeat(100).into_bytes();
        // Many more than are queued.
        (0..10 * QUEUE_BATCHES).try_for_each(|number| printer.hand_over(rows(number))).expect("taken");
        printer.await_written().expect("written");
        drop((printer, queue));
        let read = reading.join().expect("no panic").expect("text");
        let expected: Vec<u8> = (0..10 * QUEUE_BATCHES).flat_map(rows).collect();
        assert!(read.into_bytes() == expected, "rows are missing or out of order");
    }
}
