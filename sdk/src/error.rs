//! Errors of user code and what closures may return.

use std::fmt;

/// Result of user code.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of user code, with its causes; any error turns into one by `?`.
pub struct Error(String);

impl Error {
    /// An error that says this.
    pub fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    /// Puts what was tried in front of the error.
    #[must_use]
    pub fn context(self, tried: impl fmt::Display) -> Self {
        Self(format!("{tried}: {}", self.0))
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            message.push_str(": ");
            message.push_str(&cause.to_string());
            source = cause.source();
        }
        Self(message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// What a closure without a value may return: nothing, or `engine_sdk::Result<()>`.
///
/// An error rejects the row that is being processed.
#[diagnostic::on_unimplemented(
    message = "this closure returns `{Self}`, but may return only `()` or `engine_sdk::Result<()>`",
    label = "neither `()` nor `engine_sdk::Result<()>`",
    note = "records leave by the collector: `out.collect(record)`"
)]
pub trait Outcome {
    /// The outcome as a result.
    ///
    /// # Errors
    /// Returns the error of the closure.
    fn into_result(self) -> Result<()>;
}

impl Outcome for () {
    #[inline]
    fn into_result(self) -> Result<()> {
        Ok(())
    }
}

impl Outcome for Result<()> {
    #[inline]
    fn into_result(self) -> Result<()> {
        self
    }
}

/// Returns an error with a formatted message.
#[macro_export]
macro_rules! bail {
    ($($message:tt)*) => {
        return ::core::result::Result::Err($crate::Error::new(::std::format!($($message)*)))
    };
}
