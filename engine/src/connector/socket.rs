//! Text over TCP: a source that connects and reads lines, and a sink that
//! connects and writes them. What was sent before a failure is sent again after a restart.
//! A sink whose rows nobody takes waits for as long as that is so, and the job with it.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use crossbeam_channel::{RecvTimeoutError, bounded};

use super::{
    CANCEL_LOOK, Committable, ConnectorError, Permissions, RejectWrite, Role, SinkWriter, WriterContext,
    options::Options, text_rows::TextRows,
};
use crate::{
    base::stream_element::{CheckpointId, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// How long the other side may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a read waits before it looks whether it is still wanted.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// Rows gathered before they are sent.
const BUFFER_BYTES: usize = 32 << 10;

/// Checks the form of an address: "host:port".
pub(super) fn parse_address(options: &Options<'_>) -> Result<String, ConnectorError> {
    let address = options.required("address")?;
    let port = address.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
    match port.map(str::parse::<u16>) {
        Some(Ok(port)) if 0 < port => Ok(address.to_owned()),
        _ => Err(options.error("address", format!("expected host:port, found \"{address}\""))),
    }
}

pub(super) fn net_error(action: &'static str, address: &str) -> impl FnOnce(io::Error) -> ConnectorError {
    let address = address.to_owned();
    move |source| ConnectorError::Net { action, address, source }
}

/// Connects to the first of the addresses behind a name that answers.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut refused = io::Error::new(ErrorKind::NotFound, "the name has no address");
    for candidate in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
            Ok(stream) => return Ok(stream),
            Err(error) => refused = error,
        }
    }
    Err(refused)
}

/// Connects on a thread of its own, since neither looking for the name nor connecting can be interrupted.
fn connect_unless(
    is_canceled: &dyn Fn() -> bool,
    address: &str,
    connect: fn(&str) -> io::Result<TcpStream>,
) -> Result<TcpStream, ConnectorError> {
    let (answer, answers) = bounded(1);
    let wanted = address.to_owned();
    // If nobody waits any more, nobody wants the connection.
    let connecting = move || drop(answer.send(connect(&wanted)));
    let thread = thread::Builder::new().name("socket-connect".to_owned()).spawn(connecting);
    thread.map_err(net_error("start a thread for", address))?;
    loop {
        match answers.recv_timeout(CANCEL_LOOK) {
            Ok(connected) => return connected.map_err(net_error("connect to", address)),
            Err(RecvTimeoutError::Timeout) if is_canceled() => return Err(ConnectorError::Canceled),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                let ended = io::Error::other("the thread that connects has ended, which is a bug");
                return Err(net_error("connect to", address)(ended));
            }
        }
    }
}

/// The bytes that come over a connection; ends also when nobody wants them any more.
pub(super) struct SocketBytes {
    stream: TcpStream,
    stopped: Arc<AtomicBool>,
}

impl SocketBytes {
    pub(super) fn connect(address: &str, stopped: Arc<AtomicBool>) -> io::Result<Self> {
        let stream = connect(address)?;
        stream.set_read_timeout(Some(READ_TIMEOUT))?;
        Ok(Self { stream, stopped })
    }
}

impl Read for SocketBytes {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while !self.stopped.load(Ordering::Relaxed) {
            match self.stream.read(buffer) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                read => return read,
            }
        }
        Ok(0)
    }
}

/// Validated options of the sink.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct SocketSinkOptions {
    address: String,
}

impl SocketSinkOptions {
    pub(super) fn parse(spec: &ConnectorSpec) -> Result<Self, ConnectorError> {
        let options = Options::new(spec, Role::Sink, &["address"])?;
        Ok(Self { address: parse_address(&options)? })
    }

    pub(super) fn check(&self, permissions: &Permissions) -> Result<(), ConnectorError> {
        permissions.reachable(&self.address)
    }
}

/// Sends the rows of one subtask over a connection of its own.
pub(super) struct SocketWriter {
    address: String,
    stream: TcpStream,
    rows: TextRows,
    reject: Box<RejectWrite<'static>>,
    is_canceled: Box<dyn Fn() -> bool>,
    buffer: Vec<u8>,
}

impl SocketWriter {
    pub(super) fn new(
        options: &SocketSinkOptions,
        spec: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Self, ConnectorError> {
        options.check(&context.permissions)?;
        let rows = TextRows::new(&context.record_type, spec)?;
        let address = options.address.clone();
        let WriterContext { reject, is_canceled, .. } = context;
        let stream = connect_unless(&*is_canceled, &address, connect)?;
        stream.set_write_timeout(Some(CANCEL_LOOK)).map_err(net_error("connect to", &address))?;
        Ok(Self { address, stream, rows, reject, is_canceled, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    /// Waits for as long as the other side takes nothing.
    fn send(&mut self) -> Result<(), ConnectorError> {
        let mut unsent = &self.buffer[..];
        while !unsent.is_empty() {
            if (self.is_canceled)() {
                return Err(ConnectorError::Canceled);
            }
            match self.stream.write(unsent) {
                Ok(0) => return Err(net_error("write to", &self.address)(ErrorKind::WriteZero.into())),
                Ok(sent) => unsent = &unsent[sent..],
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                Err(error) => return Err(net_error("write to", &self.address)(error)),
            }
        }
        self.buffer.clear();
        Ok(())
    }
}

impl SinkWriter for SocketWriter {
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ConnectorError> {
        self.rows.append_lines(batch, &mut self.buffer, &mut *self.reject)?;
        if self.buffer.len() < BUFFER_BYTES {
            return Ok(());
        }
        self.send()
    }

    fn flush(&mut self) -> Result<(), ConnectorError> {
        self.send()
    }

    fn prepare_commit(&mut self, _checkpoint_id: CheckpointId) -> Result<Vec<Committable>, ConnectorError> {
        self.flush()?;
        Ok(Vec::new())
    }

    fn finish(&mut self) -> Result<Vec<Committable>, ConnectorError> {
        self.send()?;
        self.stream.shutdown(Shutdown::Write).map_err(net_error("write to", &self.address))?;
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn who_is_told_to_stop_waits_for_no_connection() {
        // As a name server or another side that does not answer.
        let silent = |_: &str| {
            thread::park_timeout(Duration::from_secs(60));
            Err(ErrorKind::TimedOut.into())
        };
        let begun = Instant::now();
        let connected = connect_unless(&move || Duration::from_millis(300) < begun.elapsed(), "far:1", silent);
        assert!(matches!(connected, Err(ConnectorError::Canceled)), "{connected:?}");
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    }
}
