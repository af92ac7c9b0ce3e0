//! The engine's own sources and sinks, as the chain asks for them.

use super::Connectors;
use crate::{
    connector::{self, ConnectorError, ReaderContext, SinkWriter, SourceReader, WriterContext},
    graph::stream_graph::ConnectorSpec,
};

/// The engine's own sources and sinks.
#[derive(Clone, Copy, Debug)]
pub struct NativeConnectors;

impl Connectors for NativeConnectors {
    fn create_reader(
        &self,
        connector: &ConnectorSpec,
        context: ReaderContext,
    ) -> Result<Box<dyn SourceReader>, ConnectorError> {
        connector::create_reader(connector, context)
    }

    fn create_writer(
        &self,
        connector: &ConnectorSpec,
        context: WriterContext,
    ) -> Result<Box<dyn SinkWriter>, ConnectorError> {
        connector::create_writer(connector, context)
    }
}
