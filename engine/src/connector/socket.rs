//! Text over TCP: a source that connects and reads lines, and a sink that
//! connects and writes them. What was sent before a failure is sent again after a restart.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Shutdown, TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Committable, ConnectorError, Permissions, RejectWrite, Role, SinkWriter, WriterContext, options::Options,
    text_rows::TextRows,
};
use crate::{
    base::stream_element::{CheckpointId, RecordBatch},
    graph::stream_graph::ConnectorSpec,
};

/// How long the other side may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a read waits before it looks whether it is still wanted.
const READ_TIMEOUT: Duration = Duration::from_millis(200);
/// How long the other side may take nothing: a task that is stuck in a write
/// cannot be cancelled, and a cancel must not take longer than a second.
const WRITE_TIMEOUT: Duration = Duration::from_millis(800);
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
        let stream = connect(&address).map_err(net_error("connect to", &address))?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).map_err(net_error("connect to", &address))?;
        Ok(Self { address, stream, rows, reject: context.reject, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    fn send(&mut self) -> Result<(), ConnectorError> {
        self.stream.write_all(&self.buffer).map_err(net_error("write to", &self.address))?;
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
