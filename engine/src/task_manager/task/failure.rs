//! Turns what went wrong in a task into what its user reads.

use std::error::Error;

use crate::{
    connector::ConnectorError,
    graph::job_graph::JobVertex,
    protocol::job_master::{FailureCause, Recoverability},
    task_manager::operator::{OperatorError, RowErrorsError, TaskContext},
    wasm::{EntryPoint, GuestError, GuestFailure},
};

/// Names the task of a failure.
#[derive(Clone, Copy)]
pub(super) struct Culprit<'a> {
    pub(super) context: &'a TaskContext,
    pub(super) vertex: &'a JobVertex,
}

impl Culprit<'_> {
    fn operator_name(&self, node: u32) -> &str {
        let mut operators = self.vertex.operators.iter();
        operators.find(|operator| operator.node.id == node).map_or("unknown", |operator| &operator.node.name)
    }

    /// "job "words", operator "split" (subtask 3/8, attempt 0)".
    fn place(&self, node: Option<u32>) -> String {
        let TaskContext { job_name, subtask_index, parallelism, attempt_number, .. } = self.context;
        let operator = node.map_or(self.vertex.name.as_str(), |node| self.operator_name(node));
        let kind = if node.is_some() { "operator" } else { "task" };
        let subtask = subtask_index + 1;
        format!("job \"{job_name}\", {kind} \"{operator}\" (subtask {subtask}/{parallelism}, attempt {attempt_number})")
    }

    /// The cause of an error of an operator; none if the task was told to stop.
    pub(super) fn cause(&self, error: &OperatorError) -> Option<FailureCause> {
        let cause = match error {
            OperatorError::Interrupted => return None,
            OperatorError::Guest { error, input, position } => self.guest(error, *input, position),
            OperatorError::Connector { node, error, position } => self.connector(*node, error, position),
            OperatorError::Routing { node, error } => self.failed(Some(*node), "routing", &error.to_string()),
            OperatorError::RowErrors(error) => {
                let recoverability = match error {
                    RowErrorsError::Write { .. } => Recoverability::Recoverable,
                    RowErrorsError::UnknownPolicy(_) | RowErrorsError::NoDirectory | RowErrorsError::Directory(_) => {
                        Recoverability::Unrecoverable
                    }
                };
                FailureCause { recoverability, ..self.failed(None, "dead-letter", &chain(error)) }
            }
            OperatorError::UnexpectedElement(element) => {
                self.failed(None, "internal", &format!("{element} arrived at an operator, which is a bug"))
            }
            OperatorError::Restore { node, message } => FailureCause {
                recoverability: Recoverability::Unrecoverable,
                ..self.failed(Some(*node), "restore-failed", message)
            },
        };
        Some(cause)
    }

    /// A cause that a restart may mend.
    pub(super) fn failed(&self, node: Option<u32>, code: &str, what: &str) -> FailureCause {
        FailureCause {
            code: code.to_owned(),
            message: one_line(&format!("{}: {what}", self.place(node))),
            detail: String::new(),
            recoverability: Recoverability::Recoverable,
        }
    }

    fn guest(&self, error: &GuestError, input: Option<u32>, position: &str) -> FailureCause {
        let mut at = format!("plugin {}, in {}", error.plugin, error.entry_point.name());
        match (input, error.row) {
            (Some(input), Some(row)) => at.push_str(&format!(", input {input}, row {row} of the batch")),
            (Some(input), None) => at.push_str(&format!(", input {input}")),
            (None, Some(row)) => at.push_str(&format!(", row {row} of the batch")),
            (None, None) => {}
        }
        if !position.is_empty() && error.entry_point != EntryPoint::Open {
            at.push_str(&format!(", from {position}"));
        }
        let hint = hint(error.failure, error.entry_point);
        let separator = if hint.is_empty() { "" } else { "; " };
        let recoverability = match error.failure {
            GuestFailure::GraphMismatch | GuestFailure::RestoreFailed => Recoverability::Unrecoverable,
            _ => Recoverability::Recoverable,
        };
        let what = format!("{at}: {}{separator}{hint}", error.message);
        FailureCause {
            detail: error.backtrace.join("\n"),
            recoverability,
            ..self.failed(error.node, guest_code(error.failure), &what)
        }
    }

    fn connector(&self, node: u32, error: &ConnectorError, position: &str) -> FailureCause {
        let (code, recoverability) = match error {
            ConnectorError::Unknown { .. }
            | ConnectorError::Option { .. }
            | ConnectorError::NoArtifact { .. }
            | ConnectorError::Damaged(_) => ("connector", Recoverability::Unrecoverable),
            ConnectorError::NotGranted { .. } => ("not-granted", Recoverability::Unrecoverable),
            ConnectorError::DestinationNotEmpty { .. } => ("destination-not-empty", Recoverability::Unrecoverable),
            ConnectorError::BadRow { .. } => ("bad-row", Recoverability::Recoverable),
            _ => ("connector", Recoverability::Recoverable),
        };
        let at = match error {
            ConnectorError::Io { .. } | ConnectorError::Net { .. } if !position.is_empty() => {
                format!(" (source at {position})")
            }
            _ => String::new(),
        };
        let hint = match error {
            ConnectorError::BadRow { .. } => {
                "; to go on without such rows, set execution.row-errors.policy to skip or dead-letter"
            }
            _ => "",
        };
        FailureCause { recoverability, ..self.failed(Some(node), code, &format!("{}{at}{hint}", chain(error))) }
    }
}

fn guest_code(failure: GuestFailure) -> &'static str {
    match failure {
        GuestFailure::Panic => "guest-panic",
        GuestFailure::Trap => "guest-trap",
        failure => failure.code(),
    }
}

/// What the user can do.
fn hint(failure: GuestFailure, entry_point: EntryPoint) -> &'static str {
    match failure {
        GuestFailure::CpuTime => match entry_point {
            EntryPoint::Plan => "raise sandbox.plan.cpu-time if the work is meant",
            EntryPoint::Open => "raise sandbox.open.cpu-time if the work is meant",
            _ => "raise sandbox.call.cpu-time if the work is meant",
        },
        GuestFailure::MemoryLimit => "raise sandbox.memory.max if the plugin needs more",
        GuestFailure::StackOverflow => "look for recursion without an end",
        // The message names the limit.
        GuestFailure::OutputLimit => "emit less, or raise this limit if so much is meant",
        GuestFailure::BadBatch => "rebuild the plugin with the SDK of this engine",
        GuestFailure::UserError if entry_point == EntryPoint::ProcessBatch => {
            "to go on without such rows, set execution.row-errors.policy to skip or dead-letter"
        }
        GuestFailure::Panic if entry_point == EntryPoint::ProcessBatch => {
            "if the row caused it, return an error instead of panicking: such rows can be skipped"
        }
        GuestFailure::UserError
        | GuestFailure::Panic
        | GuestFailure::Trap
        | GuestFailure::Canceled
        | GuestFailure::IllegalState
        | GuestFailure::GraphMismatch
        // Their messages say what to do.
        | GuestFailure::WrongKeyGroup
        | GuestFailure::StateLimit
        | GuestFailure::StateValueLimit
        | GuestFailure::StateStorage
        | GuestFailure::TimerLimit
        | GuestFailure::RestoreFailed => "",
    }
}

/// The error and its causes.
pub(super) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// Escapes what would break the line.
fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() { line.extend(character.escape_default()) } else { line.push(character) }
    }
    line
}
