//! The engine's own sources and sinks, as the chain asks for them.

use super::Connectors;
use crate::{
    connector::{self, ConnectorError, ReaderContext, SinkWriter, SourceReader, WriterContext},
    graph::stream_graph::ConnectorSpec,
};

/// Where print sinks write.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum PrintedRows {
    /// Where each is told to.
    #[default]
    AsConfigured,
    /// On standard error, all of them: standard output is for something else.
    ToStandardError,
}

/// The engine's own sources and sinks.
#[derive(Clone, Copy, Debug, Default)]
pub struct NativeConnectors {
    /// Where print sinks write.
    pub printed_rows: PrintedRows,
}

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
        if self.printed_rows == PrintedRows::ToStandardError && connector.name == "print" {
            let mut redirected = connector.clone();
            redirected.options.insert("stream".to_owned(), "stderr".to_owned());
            return connector::create_writer(&redirected, context);
        }
        connector::create_writer(connector, context)
    }
}
