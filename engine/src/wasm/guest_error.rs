//! What a failed guest leaves behind: kind of failure, place, message, backtrace.
//!
//! Built by `instance`; read by whoever fails the task. Text that came from the
//! guest is cut and escaped before it gets here.

use std::fmt;

/// Frames kept of a backtrace.
pub(crate) const BACKTRACE_FRAMES_MAX: usize = 24;
/// Bytes kept of a function's name.
const FRAME_BYTES_MAX: usize = 200;
/// Bytes kept of a message of the guest.
pub(crate) const MESSAGE_BYTES_MAX: usize = 4096;

/// Entry point that was running.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum EntryPoint {
    /// Instantiation, before any export is called.
    Instantiate,
    /// `program.plan`.
    Plan,
    /// `program.describe`.
    Describe,
    /// `operator-chain.open`.
    Open,
    /// `operator-chain.process-batch`.
    ProcessBatch,
    /// `operator-chain.poll-source`.
    PollSource,
    /// `operator-chain.process-watermark`.
    ProcessWatermark,
    /// `operator-chain.process-watermark-status`.
    ProcessWatermarkStatus,
    /// `operator-chain.fire-timers`.
    FireTimers,
    /// `operator-chain.take-state`.
    TakeState,
    /// `operator-chain.begin-split`.
    BeginSplit,
    /// `operator-chain.end-split`.
    EndSplit,
    /// `operator-chain.advance-processing-time`.
    AdvanceProcessingTime,
    /// `operator-chain.snapshot`.
    Snapshot,
    /// `operator-chain.notify-checkpoint-complete`.
    NotifyCheckpointComplete,
    /// `operator-chain.notify-checkpoint-aborted`.
    NotifyCheckpointAborted,
    /// `operator-chain.end-input`.
    EndInput,
    /// `operator-chain.close`.
    Close,
}

impl EntryPoint {
    /// Name of the entry point in the contract.
    pub fn name(self) -> &'static str {
        match self {
            Self::Instantiate => "instantiation",
            Self::Plan => "plan",
            Self::Describe => "describe",
            Self::Open => "open",
            Self::ProcessBatch => "process-batch",
            Self::PollSource => "poll-source",
            Self::ProcessWatermark => "process-watermark",
            Self::ProcessWatermarkStatus => "process-watermark-status",
            Self::FireTimers => "fire-timers",
            Self::TakeState => "take-state",
            Self::BeginSplit => "begin-split",
            Self::EndSplit => "end-split",
            Self::AdvanceProcessingTime => "advance-processing-time",
            Self::Snapshot => "snapshot",
            Self::NotifyCheckpointComplete => "notify-checkpoint-complete",
            Self::NotifyCheckpointAborted => "notify-checkpoint-aborted",
            Self::EndInput => "end-input",
            Self::Close => "close",
        }
    }

    /// True if rows, watermarks and statuses may be emitted.
    pub(crate) fn may_emit(self) -> bool {
        match self {
            Self::Instantiate
            | Self::Plan
            | Self::Describe
            | Self::Open
            | Self::Snapshot
            | Self::NotifyCheckpointComplete
            | Self::NotifyCheckpointAborted
            | Self::Close => false,
            Self::ProcessBatch
            | Self::PollSource
            | Self::ProcessWatermark
            | Self::ProcessWatermarkStatus
            | Self::FireTimers
            | Self::TakeState
            | Self::BeginSplit
            | Self::EndSplit
            | Self::AdvanceProcessingTime
            | Self::EndInput => true,
        }
    }

    /// True if keyed state, timers and the time may be used.
    pub(crate) fn may_use_state(self) -> bool {
        match self {
            Self::Open | Self::Snapshot | Self::NotifyCheckpointComplete | Self::NotifyCheckpointAborted => true,
            _ => self.may_emit(),
        }
    }
}

/// Why a guest failed: machine-readable, each with a stable code.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum GuestFailure {
    /// The guest returned an error.
    UserError,
    /// A panic of the guest's code.
    Panic,
    /// Any other trap: unreachable, division by zero, out of bounds, indirect call.
    Trap,
    /// The CPU time was used up.
    CpuTime,
    /// The task was cancelled while the guest ran.
    Canceled,
    /// Memory or table limit.
    MemoryLimit,
    /// Stack overflow.
    StackOverflow,
    /// Too much was emitted.
    OutputLimit,
    /// A malformed batch, list, string or enum crossed the boundary.
    BadBatch,
    /// A call that is not allowed at this point or not provided by this version.
    IllegalState,
    /// The replayed graph differs from the submitted one.
    GraphMismatch,
    /// State or timers of a key that belongs to another subtask.
    WrongKeyGroup,
    /// Keyed state takes too many bytes.
    StateLimit,
    /// A value of keyed state is too long.
    StateValueLimit,
    /// Files of state on disk cannot be read or written.
    StateStorage,
    /// Too many timers wait.
    TimerLimit,
    /// State of a checkpoint cannot be taken over.
    RestoreFailed,
}

impl GuestFailure {
    /// Stable code for scripts and metrics.
    pub fn code(self) -> &'static str {
        match self {
            Self::UserError => "user-error",
            Self::Panic => "panic",
            Self::Trap => "trap",
            Self::CpuTime => "cpu-time",
            Self::Canceled => "canceled",
            Self::MemoryLimit => "memory-limit",
            Self::StackOverflow => "stack-overflow",
            Self::OutputLimit => "output-limit",
            Self::BadBatch => "bad-batch",
            Self::IllegalState => "illegal-state",
            Self::GraphMismatch => "graph-mismatch",
            Self::WrongKeyGroup => "wrong-key-group",
            Self::StateLimit => "state-limit",
            Self::StateValueLimit => "state-value-limit",
            Self::StateStorage => "state-storage",
            Self::TimerLimit => "timer-limit",
            Self::RestoreFailed => "restore-failed",
        }
    }
}

/// A guest failed. `Display` is one line: what, where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GuestError {
    /// Kind of failure.
    pub failure: GuestFailure,
    /// File name of the plugin.
    pub plugin: String,
    /// What was running.
    pub entry_point: EntryPoint,
    /// Id of the node that was running, if known.
    pub node: Option<u32>,
    /// Zero-based row of the batch that was being processed, if known.
    pub row: Option<u32>,
    /// The panic's message and place, the user's error, or the trap.
    pub message: String,
    /// Demangled frames, innermost first; empty if there are none.
    pub backtrace: Vec<String>,
}

impl GuestError {
    /// The error as one line, with the name of the node's operator if the caller knows it.
    pub fn describe(&self, operator: Option<&str>) -> String {
        let mut text = format!("plugin {}", self.plugin);
        match (operator, self.node) {
            (Some(operator), _) => text.push_str(&format!(", operator \"{operator}\"")),
            (None, Some(node)) => text.push_str(&format!(", node {node}")),
            (None, None) => {}
        }
        text.push_str(&format!(", in {}", self.entry_point.name()));
        if let Some(row) = self.row {
            text.push_str(&format!(", row {row} of the batch"));
        }
        text.push_str(&format!(": {}", self.message));
        text
    }
}

impl fmt::Display for GuestError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.describe(None))
    }
}

impl std::error::Error for GuestError {}

/// Raised by an import or by the epoch callback: the call ends with this failure.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct HostTrap {
    pub(crate) failure: GuestFailure,
    pub(crate) message: String,
}

impl HostTrap {
    pub(crate) fn new(failure: GuestFailure, message: impl Into<String>) -> Self {
        Self { failure, message: message.into() }
    }
}

/// What is known of a call that ended in an error of wasmtime's.
pub(crate) struct CallEvidence<'a> {
    pub(crate) error: &'a wasmtime::Error,
    /// What the panic hook reported during the call.
    pub(crate) panic: Option<&'a str>,
    /// What the limiter refused during the call.
    pub(crate) refused: Option<&'a str>,
}

/// Finds kind and message of the failure.
pub(crate) fn classify(evidence: &CallEvidence<'_>) -> (GuestFailure, String) {
    let CallEvidence { error, panic, refused } = evidence;
    if let Some(HostTrap { failure, message }) = error.downcast_ref() {
        return (*failure, message.clone());
    }
    let trap = error.downcast_ref::<wasmtime::Trap>();
    if trap == Some(&wasmtime::Trap::StackOverflow) || is_overflow_in_memory(error) {
        return (GuestFailure::StackOverflow, "the stack of the plugin overflowed (sandbox.stack.max)".to_owned());
    }
    match (refused, panic) {
        (Some(refused), Some(panic)) => return (GuestFailure::MemoryLimit, format!("{refused}: {panic}")),
        (Some(refused), None) => return (GuestFailure::MemoryLimit, (*refused).to_owned()),
        (None, Some(panic)) => {
            return (GuestFailure::Panic, with_hint((*panic).to_owned()));
        }
        (None, None) => {}
    }
    match trap {
        Some(wasmtime::Trap::CannotEnterComponent | wasmtime::Trap::CannotLeaveComponent) => {
            (GuestFailure::IllegalState, format!("the plugin called an import where it may not: {}", reason(error)))
        }
        Some(_) => (GuestFailure::Trap, reason(error)),
        None if reason(error).contains("fuel allocated for hostcalls") => (
            GuestFailure::OutputLimit,
            "the plugin handed over more in one call than the host takes (sandbox.emit.bytes-max)".to_owned(),
        ),
        None => (GuestFailure::BadBatch, format!("a malformed value crossed the boundary: {}", reason(error))),
    }
}

/// Adds what to do instead of something that Rust's standard library does not have in a plugin.
pub(crate) fn with_hint(message: String) -> String {
    let hints = [
        ("time not implemented on this platform", "plugins have no clock: use the timestamps of records"),
        ("can't sleep", "plugins cannot wait: give the source a rate"),
        ("failed to spawn thread", "plugins have no threads: raise the parallelism of the operator"),
        (
            "operation not supported on this platform",
            "plugins open no files and no connections: use a source or sink, or an artifact that a file source reads",
        ),
    ];
    match hints.into_iter().find(|(said, _)| message.contains(said)) {
        Some((_, hint)) => format!("{message}; {hint}"),
        None => message,
    }
}

/// True if the stack that compilers keep in the plugin's memory ran below address 0:
/// an access just under 4 GiB, at the end of a chain of calls longer than a backtrace.
fn is_overflow_in_memory(error: &wasmtime::Error) -> bool {
    const HIGHEST_BYTES: u64 = 1 << 20;
    let is_long = error
        .downcast_ref::<wasmtime::WasmBacktrace>()
        .is_some_and(|backtrace| backtrace.frames().len() >= BACKTRACE_FRAMES_MAX);
    error.downcast_ref() == Some(&wasmtime::Trap::MemoryOutOfBounds)
        && is_long
        && fault_address(error).is_some_and(|address| (1_u64 << 32) - HIGHEST_BYTES <= address)
}

/// wasmtime tells the address of a fault in words only.
fn fault_address(error: &wasmtime::Error) -> Option<u64> {
    error.chain().find_map(|cause| {
        let text = cause.to_string();
        let (_, address) = text.split_once("memory fault at wasm address 0x")?;
        u64::from_str_radix(address.split_once(' ')?.0, 16).ok()
    })
}

/// The innermost cause, without the backtraces that wasmtime adds as context.
fn reason(error: &wasmtime::Error) -> String {
    let text = error.root_cause().to_string();
    escape(&text, MESSAGE_BYTES_MAX)
}

/// Demangled frames of the backtrace that wasmtime attached, innermost first.
pub(crate) fn backtrace(error: &wasmtime::Error) -> Vec<String> {
    let Some(backtrace) = error.downcast_ref::<wasmtime::WasmBacktrace>() else {
        return Vec::new();
    };
    backtrace
        .frames()
        .iter()
        .take(BACKTRACE_FRAMES_MAX)
        .map(|frame| match frame.func_name() {
            Some(name) => escape(&format!("{:#}", rustc_demangle::demangle(name)), FRAME_BYTES_MAX),
            None => format!("function {}", frame.func_index()),
        })
        .collect()
}

/// Cuts text of a guest and escapes its control characters, so that it cannot
/// steer a terminal or forge a line of a log.
pub(crate) fn escape(text: &str, bytes_max: usize) -> String {
    let kept = cut(text, bytes_max);
    let mut escaped = String::with_capacity(kept.len() + 4);
    for character in kept.chars() {
        if character.is_control() || is_invisible_format(character) {
            escaped.extend(character.escape_default());
        } else {
            escaped.push(character);
        }
    }
    if kept.len() < text.len() {
        escaped.push('…');
    }
    escaped
}

/// Marks that turn the direction of text around or join lines: they would hide what a line says.
fn is_invisible_format(character: char) -> bool {
    matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

/// The longest beginning of whole characters that has at most `bytes_max` bytes.
pub(crate) fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: &wasmtime::Error, panic: Option<&str>, refused: Option<&str>, expected: GuestFailure) {
        assert_eq!(classify(&CallEvidence { error, panic, refused }).0, expected);
    }

    #[test]
    fn the_cause_decides_over_the_kind_of_failure() {
        let unreachable = wasmtime::Error::from(wasmtime::Trap::UnreachableCodeReached);
        check(&unreachable, None, None, GuestFailure::Trap);
        check(&unreachable, Some("panicked"), None, GuestFailure::Panic);
        check(&unreachable, Some("panicked"), Some("memory"), GuestFailure::MemoryLimit);
        check(&unreachable, None, Some("memory"), GuestFailure::MemoryLimit);
        let overflow = wasmtime::Error::from(wasmtime::Trap::StackOverflow);
        check(&overflow, Some("panicked"), None, GuestFailure::StackOverflow);
        let leave = wasmtime::Error::from(wasmtime::Trap::CannotLeaveComponent);
        check(&leave, None, None, GuestFailure::IllegalState);
        let host = wasmtime::Error::from(HostTrap::new(GuestFailure::OutputLimit, "too much"));
        check(&host, Some("panicked"), Some("memory"), GuestFailure::OutputLimit);
        let lift = wasmtime::Error::msg("string pointer/length out of bounds of memory");
        check(&lift, None, None, GuestFailure::BadBatch);
    }

    #[test]
    fn text_of_guests_cannot_steer_a_terminal() {
        assert_eq!(escape("a\u{1b}[31mb\nc\u{202e}", 100), "a\\u{1b}[31mb\\nc\\u{202e}");
        assert_eq!(escape("grüße, 世界", 100), "grüße, 世界");
        assert_eq!(escape("grüße", 3), "gr…");
        assert_eq!(escape("grüße", 4), "grü…");
        assert_eq!(escape("", 0), "");
    }

    #[test]
    fn an_error_is_one_line_that_says_what_and_where() {
        let error = GuestError {
            failure: GuestFailure::Panic,
            plugin: "word_count.wasm".into(),
            entry_point: EntryPoint::ProcessBatch,
            node: Some(3),
            row: Some(17),
            message: "index out of bounds (src/lib.rs:4:9)".into(),
            backtrace: vec![],
        };
        assert_eq!(
            error.to_string(),
            "plugin word_count.wasm, node 3, in process-batch, row 17 of the batch: index out of bounds (src/lib.rs:4:9)"
        );
        assert_eq!(
            error.describe(Some("split")),
            "plugin word_count.wasm, operator \"split\", in process-batch, row 17 of the batch: \
             index out of bounds (src/lib.rs:4:9)"
        );
    }
}
