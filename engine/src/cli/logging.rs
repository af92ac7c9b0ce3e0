//! Logs to standard error and, in a cluster, into the buffer that REST serves.

use std::{
    io::{self, IsTerminal},
    sync::Arc,
};

use tracing_subscriber::{EnvFilter, fmt::MakeWriter};

use super::{CliError, GlobalOptions};
use crate::{
    job_manager::job_master::JOB_FAILURE_TARGET,
    rest::log_buffer::{LogBuffer, LogWriter},
};

/// Makes writers into one buffer.
struct BufferedWriters(Arc<LogBuffer>);

impl<'a> MakeWriter<'a> for BufferedWriters {
    type Writer = LogWriter<'a>;

    fn make_writer(&'a self) -> Self::Writer {
        LogWriter(&self.0)
    }
}

/// Starts logging, once in a process; `default_level` counts if the user says nothing.
pub(crate) fn start(
    global: &GlobalOptions,
    default_level: &str,
    buffer: Option<Arc<LogBuffer>>,
) -> Result<(), CliError> {
    let level = global.log_level.as_deref().unwrap_or(default_level);
    let mut directives = level.to_owned();
    if buffer.is_none() {
        // The end of the command says it.
        directives.push_str(&format!(",{JOB_FAILURE_TARGET}=off"));
    }
    let filter = EnvFilter::try_new(directives).map_err(|error| {
        CliError::usage(anyhow::anyhow!(
            "--log-level {level}: {error}; expected error, warn, info, debug, trace, or levels by module such as \
             warn,engine::rest=debug"
        ))
    })?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_target(false);
    let started = match buffer {
        Some(buffer) => builder.with_ansi(false).with_writer(BufferedWriters(buffer)).try_init(),
        None => builder.with_ansi(io::stderr().is_terminal()).with_writer(io::stderr).try_init(),
    };
    // Tests run several command lines in one process, of which the first one logs.
    if let Err(error) = started {
        tracing::debug!("logging was started already: {error}");
    }
    Ok(())
}
