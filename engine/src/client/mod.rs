//! What a submitter runs: plans a program in the sandbox, decides what the job may
//! open, and watches it, in this process or over REST.
//!
//! The command line calls it; so does REST for plugins that were uploaded. It
//! makes JobGraphs and never runs one.

pub mod program;
pub mod grants;
pub mod job_snapshot;
pub mod job_client;
pub mod rest_client;

use std::path::PathBuf;

use self::{grants::GrantError, rest_client::RestClientError};
use crate::{
    connector::ConnectorError,
    graph::error::InvalidGraph,
    protocol::dispatcher::DispatcherError,
    wasm::{AdmissionError, CompileError, GuestError, GuestFailure, LoadError, RuntimeError},
};

fn did_you_mean(nearest: Option<&PathBuf>) -> String {
    nearest.map_or_else(String::new, |nearest| format!("; did you mean {}?", nearest.display()))
}

/// A submission or a question about a job failed.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// There is no such file.
    #[error("there is no plugin {}{}", path.display(), did_you_mean(.nearest.as_ref()))]
    NoPlugin {
        /// As given.
        path: PathBuf,
        /// The plugin most like it.
        nearest: Option<PathBuf>,
    },
    /// The plugin's file cannot be read.
    #[error("could not read the plugin {}", path.display())]
    PluginUnreadable {
        /// As given.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// An artifact's file cannot be read.
    #[error("could not read the artifact {}", path.display())]
    ArtifactUnreadable {
        /// As given.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The sandbox cannot be started.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The plugin is refused.
    #[error(transparent)]
    Admission(#[from] AdmissionError),
    /// The plugin cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
    /// The program refused its arguments or failed.
    #[error(transparent)]
    Program(#[from] GuestError),
    /// The program's graph cannot be run.
    #[error(transparent)]
    InvalidGraph(#[from] InvalidGraph),
    /// A source or sink is not used as it can be.
    #[error("operator \"{node}\"")]
    Connector {
        /// Name of the operator.
        node: String,
        /// What is wrong.
        source: ConnectorError,
    },
    /// The job would open what was not granted.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// The Dispatcher refused.
    #[error(transparent)]
    Dispatcher(#[from] DispatcherError),
    /// The JobManager could not be asked, or refused.
    #[error(transparent)]
    Rest(#[from] RestClientError),
    /// The Dispatcher answered another question: a bug.
    #[error("the Dispatcher did not answer what it was asked")]
    UnexpectedAnswer,
}

/// Status of an answer that refuses what was asked for, so that nothing was run.
const BAD_REQUEST: u16 = 400;

impl From<LoadError> for ClientError {
    fn from(error: LoadError) -> Self {
        match error {
            LoadError::Admission(error) => Self::Admission(error),
            LoadError::Compile(error) => Self::Compile(error),
        }
    }
}

impl ClientError {
    /// Why a plugin or its program is refused: stable, for scripts; none for what has no name.
    pub fn code(&self) -> Option<&str> {
        match self {
            Self::Admission(error) => Some(error.code()),
            Self::Program(error) => Some(error.failure.code()),
            Self::Rest(RestClientError::Refused { code, .. }) => code.as_deref(),
            Self::Compile(_) => Some("not-compiled"),
            Self::InvalidGraph(_) => Some("invalid-graph"),
            Self::Connector { .. } => Some("connector"),
            Self::Grant(error) => Some(error.code()),
            _ => None,
        }
    }

    /// True if what the user wrote is at fault, and nothing was run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::NoPlugin { .. }
            | Self::PluginUnreadable { .. }
            | Self::ArtifactUnreadable { .. }
            | Self::Admission(_)
            | Self::InvalidGraph(_)
            | Self::Connector { .. }
            | Self::Grant(_)
            | Self::Dispatcher(DispatcherError::TooFewSlots { .. })
            | Self::Rest(
                RestClientError::BadUrl(_)
                | RestClientError::NoSuchJob { .. }
                | RestClientError::AmbiguousJob { .. }
                | RestClientError::Refused { status: BAD_REQUEST, .. },
            ) => true,
            Self::Program(error) => error.failure == GuestFailure::UserError,
            Self::Runtime(_)
            | Self::Compile(_)
            | Self::Dispatcher(_)
            | Self::Rest(
                RestClientError::Unreachable { .. }
                | RestClientError::Transport { .. }
                | RestClientError::Refused { .. }
                | RestClientError::Unexpected { .. }
                | RestClientError::OperationFailed { .. },
            )
            | Self::UnexpectedAnswer => false,
        }
    }
}
