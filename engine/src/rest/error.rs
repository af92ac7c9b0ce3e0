//! Errors of REST: Flink's status codes and its body, `{"errors": [...]}`, with a stable
//! code beside it where a plugin is refused.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header::RETRY_AFTER},
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::ProgramError;
use crate::{base::status::JobStatus, protocol::dispatcher::DispatcherError};

/// A request that is not served.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RestError {
    /// Status code of the answer.
    pub status: StatusCode,
    /// What the client reads, one or more sentences.
    pub messages: Vec<String>,
    /// Why a plugin is refused, for scripts, such as "forbidden-import".
    pub code: Option<String>,
}

impl RestError {
    /// An error with one message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, messages: vec![message.into()], code: None }
    }

    /// 400: a parameter, body or part that is not valid.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 404: an id that is not known.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 500: the server could not do its part.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

impl From<DispatcherError> for RestError {
    fn from(error: DispatcherError) -> Self {
        let status = match &error {
            DispatcherError::UnknownJob(_) => StatusCode::NOT_FOUND,
            DispatcherError::DuplicateJob(_)
            | DispatcherError::DuplicateEndedJob(..)
            | DispatcherError::AlreadyEnded(..) => StatusCode::CONFLICT,
            DispatcherError::PartialResources(_)
            | DispatcherError::TooFewSlots { .. }
            | DispatcherError::InvalidJob(_) => StatusCode::BAD_REQUEST,
            DispatcherError::Storage(_) | DispatcherError::SnapshotFailed(_) => StatusCode::INTERNAL_SERVER_ERROR,
            DispatcherError::NoLeader(_) => StatusCode::SERVICE_UNAVAILABLE,
        };
        match error {
            // Cancelling what was cancelled is done already; the caller decides.
            DispatcherError::AlreadyEnded(job, status_of_job) if status_of_job != JobStatus::Canceled => Self::new(
                status,
                format!("job {job} has ended as {status_of_job} already and cannot be cancelled any more"),
            ),
            error => Self::new(status, error.to_string()),
        }
    }
}

/// What the request asks for is refused.
impl From<String> for RestError {
    fn from(message: String) -> Self {
        Self::bad_request(message)
    }
}

impl From<ProgramError> for RestError {
    fn from(error: ProgramError) -> Self {
        Self { code: error.code, ..Self::bad_request(error.message) }
    }
}

impl IntoResponse for RestError {
    fn into_response(self) -> Response {
        let mut body = json!({ "errors": self.messages });
        if let Some(code) = self.code {
            body["code"] = code.into();
        }
        let mut response = (self.status, Json(body)).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE || self.status == StatusCode::TOO_MANY_REQUESTS {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
