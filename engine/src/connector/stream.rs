//! Text that comes as it comes: standard input and sockets, read by one subtask.
//!
//! A thread reads and hands blocks of bytes to the task over a bounded queue, so
//! that the task never waits for input that does not come. The thread cannot be
//! joined while the operating system keeps it waiting: it ends by itself, a
//! socket's within moments, that of standard input with its next line. What was
//! read cannot be read again, so that a restart goes on with what follows.

use std::{
    io::{self, ErrorKind, Read},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

use super::{
    ConnectorError, Permissions, ReaderContext, ReaderOutput, RejectedRow, RestoredSource, Role, SourceReader,
    SourceSplit, Verdict,
    line_blocks::{Block, LineBlocks},
    line_position,
    options::Options,
    rate_limiter::RateLimiter,
    record_decoder::{FORMAT_OPTIONS, Format, RecordDecoder, Refused},
    socket::{SocketBytes, net_error, parse_address},
    split_queue::{Replayable, SplitQueue},
};
use crate::graph::stream_graph::ConnectorSpec;

/// Bytes read at a time.
const BLOCK_BYTES: usize = 64 << 10;
/// Blocks between the thread and the task.
const QUEUE_BLOCKS: usize = 4;
/// How long a poll waits for input.
const POLL_TIMEOUT: Duration = Duration::from_millis(10);

/// Where the text comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
enum Origin {
    StandardInput,
    Socket(String),
}

/// Validated options of the source.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct StreamOptions {
    origin: Origin,
    format: Format,
    rate: Option<u64>,
}

impl StreamOptions {
    pub(super) fn parse_stdin(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let known = [&["rate"][..], &FORMAT_OPTIONS].concat();
        let options = Options::new(spec, Role::Source, &known)?;
        let rate = options.positive("rate")?;
        Ok(Self { origin: Origin::StandardInput, format: Format::parse(&options)?, rate })
    }

    pub(super) fn parse_socket(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let known = [&["address", "rate"][..], &FORMAT_OPTIONS].concat();
        let options = Options::new(spec, Role::Source, &known)?;
        let origin = Origin::Socket(parse_address(&options)?);
        Ok(Self { origin, format: Format::parse(&options)?, rate: options.positive("rate")? })
    }

    pub(super) fn format(&self) -> Format {
        self.format
    }

    pub(super) fn check(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        match &self.origin {
            Origin::StandardInput => Ok(()),
            Origin::Socket(address) => permissions.reachable(address),
        }
    }
}

impl Origin {
    fn name(&self) -> &str {
        match self {
            Self::StandardInput => "standard input",
            Self::Socket(address) => address,
        }
    }

    fn error(&self, failure: Failure) -> ConnectorError {
        match self {
            Self::StandardInput => {
                ConnectorError::Io { action: failure.action, path: PathBuf::from(self.name()), source: failure.source }
            }
            Self::Socket(address) => net_error(failure.action, address)(failure.source),
        }
    }
}

/// What the thread could not do.
struct Failure {
    action: &'static str,
    source: io::Error,
}

/// One subtask reads all; its split says nothing more. A stream that had ended is not opened again.
///
/// # Errors
/// Returns an error if what is restored is damaged.
pub(super) fn enumerator(parallelism: u32, restored: Option<&RestoredSource>) -> Result<SplitQueue, ConnectorError> {
    let has_ended = match restored {
        None => false,
        Some(restored) => restored.splits.is_empty() && SplitQueue::decode(&restored.enumerator)?.splits.is_empty(),
    };
    let split = (!has_ended).then(|| (0, SourceSplit(Vec::new())));
    Ok(SplitQueue::new(parallelism, split, Replayable::No))
}

/// See the [module](self).
pub(super) struct StreamReader {
    origin: Origin,
    context: ReaderContext,
    decoder: RecordDecoder,
    limiter: RateLimiter,
    open: Option<OpenStream>,
}

/// The task's end of the thread. Dropping it tells the thread to stop.
struct OpenStream {
    received: Receiver<Result<Vec<u8>, Failure>>,
    stopped: Arc<AtomicBool>,
    blocks: LineBlocks,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Relaxed);
    }
}

impl OpenStream {
    fn start(
        name: &str,
        line_bytes_max: usize,
        open: impl FnOnce(Arc<AtomicBool>) -> io::Result<Box<dyn Read>> + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, received) = bounded(QUEUE_BLOCKS);
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        thread::Builder::new().name(name.to_owned()).spawn(move || match open(stop) {
            Ok(from) => read_blocks(from, &sender),
            // If nobody waits any more, nobody wants to know.
            Err(source) => drop(sender.send(Err(Failure { action: "connect to", source }))),
        })?;
        Ok(Self { received, stopped, blocks: LineBlocks::new(0, None, line_bytes_max) })
    }

    /// The next lines that have come, waiting a moment for them.
    fn next_block(&mut self, origin: &Origin) -> Result<Block, ConnectorError> {
        match self.received.recv_timeout(POLL_TIMEOUT) {
            Ok(Ok(bytes)) => Ok(self.blocks.push(&bytes)),
            Ok(Err(failure)) => Err(origin.error(failure)),
            Err(RecvTimeoutError::Timeout) => Ok(Block::Pending),
            // The thread has read to the end.
            Err(RecvTimeoutError::Disconnected) => Ok(self.blocks.finish()),
        }
    }
}

/// Sends what can be read until it ends or nobody receives it.
fn read_blocks(mut from: Box<dyn Read>, sender: &Sender<Result<Vec<u8>, Failure>>) {
    let mut buffer = vec![0; BLOCK_BYTES];
    loop {
        let sent = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => sender.send(Ok(buffer[..count].to_vec())),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(source) => {
                drop(sender.send(Err(Failure { action: "read from", source })));
                return;
            }
        };
        if sent.is_err() {
            return;
        }
    }
}

impl StreamReader {
    pub(super) fn new(
        options: &StreamOptions,
        spec: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Self, ConnectorError> {
        options.check(&context.permissions)?;
        let decoder = RecordDecoder::new(options.format, &context.record_type, spec, context.row_bytes_max)?;
        // One subtask reads all.
        let limiter = RateLimiter::new(options.rate, 1, context.clock.clone());
        Ok(Self { origin: options.origin.clone(), context, decoder, limiter, open: None })
    }
}

fn refuse(
    reject: &mut dyn FnMut(RejectedRow<'_>) -> Verdict,
    origin: &Origin,
    refused: &Refused<'_>,
) -> Result<(), ConnectorError> {
    let position = format!("{} line {}", origin.name(), refused.lines_before + 1);
    let message = refused.message;
    if !refused.is_header {
        match reject(RejectedRow { message, position: &position, payload: refused.payload }) {
            Verdict::Skip => return Ok(()),
            Verdict::Fail => {}
        }
    }
    Err(ConnectorError::BadRow { position, message: message.to_owned() })
}

impl SourceReader for StreamReader {
    fn add_split(&mut self, _split: SourceSplit) -> Result<(), ConnectorError> {
        self.decoder.begin(true);
        let line_bytes_max = self.decoder.line_bytes_max();
        let opened = match self.origin.clone() {
            Origin::StandardInput => {
                OpenStream::start("stdin-reader", line_bytes_max, |_| Ok(Box::new(io::stdin()) as Box<dyn Read>))
            }
            Origin::Socket(address) => OpenStream::start("socket-reader", line_bytes_max, move |stopped| {
                SocketBytes::connect(&address, stopped).map(|bytes| Box::new(bytes) as Box<dyn Read>)
            }),
        };
        let opened = opened.map_err(|source| self.origin.error(Failure { action: "start a thread for", source }));
        self.open = Some(opened?);
        Ok(())
    }

    fn poll(&mut self, max_bytes: usize) -> Result<ReaderOutput, ConnectorError> {
        let Some(open) = &mut self.open else { return Ok(ReaderOutput::NeedSplit) };
        let rows_max = match self.limiter.available() {
            Ok(rows_max) => rows_max,
            Err(pause) => return Ok(ReaderOutput::Idle(pause)),
        };
        let reject = &mut *self.context.reject;
        let origin = &self.origin;
        if self.decoder.is_empty() {
            open.blocks.give_back(self.decoder.take_buffer());
            match open.next_block(origin)? {
                Block::Lines { offset, lines } => {
                    self.decoder.push(lines, offset, &mut |refused| refuse(reject, origin, &refused))?;
                }
                Block::LongLine { offset, head } => {
                    let message = self.decoder.long_line_message();
                    let lines_before = self.decoder.lines();
                    let is_header = self.decoder.has_header() && offset == 0;
                    let line = Refused { offset, lines_before, message: &message, payload: &head, is_header };
                    refuse(reject, origin, &line)?;
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
        let batch = self.decoder.decode(rows_max, max_bytes, &mut |refused| refuse(reject, origin, &refused))?;
        self.limiter.take(batch.count);
        if batch.count == 0 {
            return Ok(ReaderOutput::Idle(Duration::ZERO));
        }
        Ok(ReaderOutput::Records(batch))
    }

    /// The split says that there may be more: what was read so far is not read again.
    fn snapshot(&mut self) -> Vec<SourceSplit> {
        self.open.iter().map(|_| SourceSplit(Vec::new())).collect()
    }

    fn position(&self) -> String {
        line_position(self.origin.name(), self.decoder.lines())
    }

    fn row_position(&mut self, row: u32) -> String {
        format!("{} line {}", self.origin.name(), self.decoder.lines_before_row(row) + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives the parts one after the other, then an error.
    struct Broken(Vec<&'static [u8]>);

    impl Read for Broken {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Err(io::Error::other("unplugged"));
            }
            let part = self.0.remove(0);
            buffer[..part.len()].copy_from_slice(part);
            Ok(part.len())
        }
    }

    fn next(open: &mut OpenStream) -> Result<Block, String> {
        loop {
            match open.next_block(&Origin::StandardInput) {
                Ok(Block::Pending) => {}
                Ok(block) => return Ok(block),
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    return Err(format!("{error}: {}", cause.unwrap_or_default()));
                }
            }
        }
    }

    #[test]
    fn lines_come_before_the_failure_that_follows_them() {
        let parts = Broken(vec![b"a\nb", b"c\n"]);
        let mut open =
            OpenStream::start("test-reader", 1 << 20, |_| Ok(Box::new(parts) as Box<dyn Read>)).expect("starts");
        assert_eq!(next(&mut open), Ok(Block::Lines { offset: 0, lines: b"a\n".to_vec() }));
        assert_eq!(next(&mut open), Ok(Block::Lines { offset: 2, lines: b"bc\n".to_vec() }));
        assert_eq!(next(&mut open), Err("could not read from standard input: unplugged".to_owned()));
    }

    #[test]
    fn much_input_waits_for_the_task() {
        let content: Vec<u8> = (0..200_000_u32).flat_map(|number| format!("{number}\n").into_bytes()).collect();
        let given = content.clone();
        let mut open =
            OpenStream::start("test-reader", 1 << 20, |_| Ok(Box::new(io::Cursor::new(given)) as Box<dyn Read>))
                .expect("starts");
        let mut received = Vec::new();
        loop {
            match next(&mut open).expect("readable") {
                Block::Lines { lines, .. } => received.extend(lines),
                Block::End => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(received == content, "all bytes arrive in order");
    }
}
